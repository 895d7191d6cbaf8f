"""The element-wise functions as machine code that loops of other kernels take in and vectorise.

Each is an intrinsic that writes LLVM instructions straight into its caller: nothing to compile by itself, nothing to call.
They have no branches (a choice computes both sides), and each instruction carries a flag that means nothing to it, because
numba gives its caller's fast-math flags only to those without any: an answer depends neither on the caller's flags nor on
whether an element was in the body of a vectorised loop or left over behind it.

``FUNCTIONS`` and ``EXPRESSIONS`` together hold every name of ``ir/elementwise.py``. A function takes operands of one dtype, the
one NumPy computes in, and returns NumPy's; expressions may return a wider one. numba does not see changes of this file in
kernels it has cached: put :func:`version` into their key.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types as numba_types
from numba.extending import intrinsic

from . import elementary as e
from . import sincos
from .llvm_values import Value, is_nan, select, true

types: Any = numba_types  # its annotations are not yet right


def _sign(x: Value) -> Value:
    below = x.like(0) if x.kind in "ub" else select(x < 0, x.like(-1), 0)
    sign = select(x > 0, x.like(1), below)
    return select(is_nan(x), x, sign) if x.kind == "f" else sign


def _absolute(x: Value) -> Value:
    return x.call("fabs") if x.kind == "f" else select(x < 0, -x, x) if x.kind == "i" else x


def _reciprocal(x: Value) -> Value:
    if x.kind == "f":
        return 1.0 / x
    with np.errstate(all="ignore"):  # C leaves open what this is: whatever NumPy has on this machine
        zero = int(np.reciprocal(np.zeros(1, f"{x.kind}{x.raw.type.width // 8}"))[0])
    result = select(x.compare("==", 0), x.like(zero), select(x.compare("==", 1), x, 0))
    return select(x.compare("==", -1), x, result) if x.kind == "i" else result


def _relu(x: Value) -> Value:
    return select(x <= 0, 0.0, x) if x.kind == "f" else select(x > 0, x, 0)


def _rounding(name: str) -> Callable[[Value], Value]:
    return lambda x: x.call(name) if x.kind == "f" else x


def _maximum(x: Value, y: Value) -> Value:
    above = x >= y
    return select(above | is_nan(x) if x.kind == "f" else above, x, y)


def _minimum(x: Value, y: Value) -> Value:
    below = x <= y
    return select(below | is_nan(x) if x.kind == "f" else below, x, y)


def _lukasiewicz(x: Value, y: Value) -> Value:
    total = x + y
    return select(total < 1, 1, total) - 1  # in this order unsigned integers are safe


def _divisor(y: Value) -> Value:
    """Return a divisor that the processor does not trap on; -1 and the least integer are such a case."""
    bad = y.compare("==", 0)
    return select(bad | y.compare("==", -1) if y.kind == "i" else bad, 1, y)


def _differ(x: Value, y: Value) -> Value:
    """Tell whether one of them is below zero and x is not zero."""
    return true(x) & ((x < 0) ^ (y < 0))


def _remainder(x: Value, y: Value) -> Value:
    if x.kind == "f":
        rest = x.write("frem frem", y)
        adjusted = select(true(rest), select(_differ(rest, y), rest + y, rest), x.like(0.0).call("copysign", y))
        return select(true(y), adjusted, rest)
    if x.kind != "i":
        return select(true(y), x.write("urem urem", _divisor(y)), 0)
    rest = x.write("srem srem", _divisor(y))
    return select(true(y), select(_differ(rest, y), rest + y, rest), 0)


def _floor_divide(x: Value, y: Value) -> Value:
    if x.kind == "f":
        rest = x.write("frem frem", y)
        whole = (x - rest) / y
        whole = select(_differ(rest, y), whole - 1.0, whole)
        floor = whole.call("floor")
        floor = select(whole - floor > 0.5, floor + 1.0, floor)
        quotient = x / y
        floor = select(true(whole), floor, x.like(0.0).call("copysign", quotient))
        return select(true(y), floor, quotient)
    if x.kind != "i":
        return select(true(y), x.write("udiv udiv", _divisor(y)), 0)
    safe = _divisor(y)
    whole = x.write("sdiv sdiv", safe)
    whole = select(_differ(x - whole * safe, y), whole - 1, whole)
    return select(true(y), select(y.compare("==", -1), -x, whole), 0)


def _test(write: Callable[[Value], Value], integers: bool) -> Callable[[Value], Value]:
    return lambda x: write(x) if x.kind == "f" else Value(x.builder, ir.Constant(ir.IntType(1), int(integers)), "b")


def _unary(name: str, write: Callable[[Value], Value], result: Any = None) -> Any:
    def define(typing: Any, x: Any) -> Any:
        return _typed([x], write, result)

    return _named(name, define)


def _binary(name: str, write: Callable[[Value, Value], Value], result: Any = None) -> Any:
    def define(typing: Any, x: Any, y: Any) -> Any:
        return _typed([x, y], write, result)

    return _named(name, define)


def _named(name: str, define: Any) -> Any:
    define.__name__ = define.__qualname__ = name
    return intrinsic(define)


def _typed(operands: list[Any], write: Callable[..., Value], result: Any) -> Any:
    """Return the signature of an intrinsic for these types, with what writes it; nothing where it has none."""
    kinds = [types.unliteral(t) for t in operands]
    if kinds[-1] != kinds[len(kinds) > 2] or not all(_kind(t) for t in kinds):
        return None  # numba then says which types it was asked for

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        values = [Value(builder, raw, _kind(t)) for raw, t in zip(args, signature.args, strict=True)]
        return write(*values).raw

    return (result or kinds[-1])(*kinds), generate


def _kind(t: Any) -> str:
    if t == types.boolean:
        return "b"
    if isinstance(t, types.Integer):
        return "i" if t.signed else "u"
    return "f" if t in (types.float32, types.float64) else ""


def _library(name: str, function: Any, arity: int) -> Any:
    """Return an intrinsic that calls the C library's function, one element after the other, unless there is our own."""

    def typed(*operands: Any) -> Any:
        if operands[0] not in (types.float32, types.float64) or operands[0] != operands[-1]:
            return None
        signature = operands[0](*operands)

        def generate(context: Any, builder: Any, _: Any, args: Any) -> Any:
            if name in _SINGLE and operands[0] == types.float32:
                return _SINGLE[name](Value(builder, args[0], "f")).raw
            return context.get_function(function, signature)(builder, args)

        return signature, generate

    def one(typing: Any, x: Any) -> Any:
        return typed(x)

    def two(typing: Any, x: Any, y: Any) -> Any:
        return typed(x, y)

    return _named(name, one if arity == 1 else two)


def _where(typing: Any, condition: Any, x: Any, y: Any) -> Any:
    return _typed([condition, x, y], lambda c, x, y: select(true(c), x, y), None)


_BOOL = types.boolean
_UNARY: dict[str, Callable[[Value], Value]] = {
    "negative": lambda x: -x,
    "absolute": _absolute,
    "sign": _sign,
    "square": lambda x: x & x if x.kind == "b" else x * x,
    "sqrt": lambda x: x.call("sqrt"),
    "reciprocal": _reciprocal,
    "exp": e.exp,
    "expm1": e.expm1,
    "log": e.log,
    "log1p": e.log1p,
    "log2": e.log2,
    "tanh": e.tanh,
    "erf": e.erf,
    "sigmoid": e.sigmoid,
    "relu": _relu,
    "step": lambda x: select(x > 0, x.like(1), 0),
    "floor": _rounding("floor"),
    "ceil": _rounding("ceil"),
    "trunc": _rounding("trunc"),
    "rint": _rounding("rint"),
}
_TESTS: dict[str, Callable[[Value], Value]] = {
    "isnan": _test(is_nan, False),
    "isinf": _test(lambda x: x.call("fabs").compare("==", math.inf), False),
    "isfinite": _test(lambda x: x.call("fabs") < math.inf, True),
    "logical_not": lambda x: x.compare("==", 0),
}
_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": lambda x, y: x | y if x.kind == "b" else x + y,
    "subtract": lambda x, y: x - y,
    "multiply": lambda x, y: x & y if x.kind == "b" else x * y,
    "divide": lambda x, y: x / y,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "minimum": _minimum,
    "maximum": _maximum,
    "logaddexp": e.logaddexp,
    "lukasiewicz": _lukasiewicz,
    "godel_implies": lambda x, y: select(x <= y, 1.0, select(is_nan(x), x, y)),
    "goguen_implies": lambda x, y: select(x <= y, 1.0, y / x),
}
_JOINS: dict[str, Callable[[Value, Value], Value]] = {
    "logical_and": lambda x, y: true(x) & true(y),
    "logical_or": lambda x, y: true(x) | true(y),
    "logical_xor": lambda x, y: true(x) ^ true(y),
}
_SINGLE: dict[str, Callable[[Value], Value]] = {"sin": sincos.sin, "cos": sincos.cos}  # of float32
_LIBRARY: dict[str, tuple[Any, int]] = {
    "sin": (math.sin, 1),
    "cos": (math.cos, 1),
    "tan": (math.tan, 1),
    "arcsin": (math.asin, 1),
    "arccos": (math.acos, 1),
    "arctan": (math.atan, 1),
    "sinh": (math.sinh, 1),
    "cosh": (math.cosh, 1),
    "arctan2": (math.atan2, 2),
    "power": (math.pow, 2),
}

FUNCTIONS: dict[str, Any] = {
    **{name: _unary(name, write) for name, write in _UNARY.items()},
    **{name: _unary(name, write, _BOOL) for name, write in _TESTS.items()},
    **{name: _binary(name, write) for name, write in _BINARY.items()},
    **{name: _binary(name, write, _BOOL) for name, write in _JOINS.items()},
    **{name: _library(name, function, arity) for name, (function, arity) in _LIBRARY.items()},
    "where": _named("where", _where),
}
# the sum of two, in whatever order it suits: for reductions, so that the rest of a kernel needs no fast-math flags
# (nsz beside reassoc would let LLVM cancel x - x in what is added, infinities and NaN with it)
accumulate = _binary("accumulate", lambda x, y: x.write("fadd add", y, flags=("reassoc",)))
# the same as Python writes them; where a kernel has fast-math flags, these are reordered and FUNCTIONS are not
EXPRESSIONS: dict[str, str] = {
    "negative": "(-{0})",
    "add": "({0} + {1})",
    "subtract": "({0} - {1})",
    "multiply": "({0} * {1})",
    "divide": "({0} / {1})",
    "equal": "({0} == {1})",
    "not_equal": "({0} != {1})",
    "less": "({0} < {1})",
    "less_equal": "({0} <= {1})",
    "greater": "({0} > {1})",
    "greater_equal": "({0} >= {1})",
}
# by name and kind of dtype, as in np.dtype.kind: what NumPy does that these do not
UNSUPPORTED: dict[tuple[str, str], str] = {
    ("power", kind): "an integer to a negative power is an error, and kernels raise none" for kind in "iu"
}
