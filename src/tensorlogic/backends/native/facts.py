"""What kernels compiled by numba can do, facts that plans decide by, and how an element-wise operation is written in their source.

Nothing here loads numba before it is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...ir import ops
from ...ir.elementwise import FUNCTIONS as ROWS
from ...ir.graph import Fixpoint, Scan
from ...ir.types import TensorType
from ...plan.build import ExecutionPlan, Step
from ...plan.cost import Contraction

SMALL = 3_000_000  # arithmetic operations of a contraction below which BLAS is as fast as packing
OR_AND = frozenset({"boolean", "real", "max_min", "max_product"})  # over truth values these are one: or of ands
Dtype = np.dtype[Any]
BOOL = np.dtype(bool)
_OF_BOOL = {"add": "({0} | {1})", "multiply": "({0} & {1})"}
_NOT_OF_BOOL = frozenset({"negative", "subtract", "divide", "floor_divide", "remainder", "power", "lukasiewicz"})
_WEAK: Mapping[str, type] = {"bool": bool, "int64": int, "float64": float}


class NativeFacts:
    """The facts of the numpy backend's native tier (see :class:`tensorlogic.plan.groups.Facts`)."""

    def usable(self) -> bool:
        """Tell whether numba is there and works."""
        from .support import usable

        return usable()

    def threads(self) -> int:
        """Return how many threads of our pool there are."""
        from ..threads import workers

        return workers()

    def runs_in_rows(self, op: ops.Op, args: Sequence[TensorType], literals: Sequence[ops.Literal | None]) -> bool:
        """Tell whether an operation can be written as an expression of a row kernel."""
        return supported(op, args, literals)

    def runs_on_bits(
        self, op: ops.Op, args: Sequence[TensorType], result: TensorType, form: Contraction | None
    ) -> bool:
        """Tell whether an operation runs on packed bits without unpacking anything large."""
        from ..bitplan import on_words

        found = on_words(op, args, result, form)
        return found is not None and found.cheap

    def joins_bits(self, op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> bool:
        """Tell whether a contraction is a large or of ands."""
        return joins_bits(op, form, args, result)

    def contracts(
        self, op: ops.Einsum | ops.ContractVJP, form: Contraction, args: Sequence[TensorType], result: TensorType
    ) -> bool:
        """Tell whether a contraction in another algebra, or its gradient, has a kernel and is large enough for it."""
        if isinstance(op, ops.ContractVJP):
            from . import vjp

            return vjp.worth(op, args, result)
        if op.algebra in ("real", "boolean") or result.dtype not in ("float32", "float64", "uint8"):
            return False
        from ...plan.small_numbers import plain_join
        from .semiring import ROWS as ALGEBRAS_OF_ROWS
        from .semiring import worth

        if result.dtype == "uint8" and not (op.algebra == "max_min" and plain_join(form)):
            return False
        return op.algebra in ALGEBRAS_OF_ROWS and worth(form)

    def scans(self, op: Scan) -> bool:
        """Tell whether the body of a scan is small and can be one function."""
        from .scan import loop_text

        return loop_text(op) is not None

    def loop_on_bits(self, op: Fixpoint, args: Sequence[TensorType]) -> str | None:
        """Return how a fixpoint over truth values runs on packed bits."""
        from ..bit_fixpoints import loop_on_bits

        return loop_on_bits(op, args)

    def function(self, plan: ExecutionPlan, reads: Sequence[int]) -> tuple[str, tuple[int, ...], int] | None:
        """Return a small plan as the source of one function, the numbers it takes and the bytes it works in, or None where it cannot be one."""
        from .whole import small, write

        return write(plan, reads) if small(plan) else None


def joins_bits(op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> bool:
    """Tell whether a contraction is an or of ands with an index that both factors share, and large."""
    if op.algebra not in OR_AND or result.dtype != "bool" or len(form.labels) != 2:
        return False
    if op.algebra != "boolean" and any(t.dtype != "bool" for t in args):
        return False
    shared = set(form.labels[0]).intersection(form.labels[1]).difference(form.spec.output)
    points = 2
    for n in form.sizes.values():
        points *= n
    return bool(shared) and points >= SMALL


def loop_dtypes(fn: str, args: Sequence[TensorType]) -> tuple[list[Dtype], Dtype] | None:
    """Return the dtypes that operands are cast to and the dtype that comes out, as NumPy has them; None where it has no loop.

    >>> f, i = TensorType(None, "float32"), TensorType(None, "int32")
    >>> loop_dtypes("add", [f, i])
    ([dtype('float64'), dtype('float64')], dtype('float64'))
    """
    if fn == "where":
        found = loop_dtypes("maximum", args[1:])
        return None if found is None else ([BOOL, *found[0]], found[1])
    given: list[Any] = [_WEAK[t.dtype or "float64"] if t.weak else np.dtype(t.dtype or "float64") for t in args]
    if all(t.weak for t in args):
        return None
    try:
        *operands, result = ROWS[fn].dtype_like.resolve_dtypes((*given, None))
    except TypeError:
        return None
    return operands, result


def cast(expression: str, have: Dtype, want: Dtype) -> str:
    """Return an expression converted from one dtype to another."""
    if have == want:
        return expression
    return f"({expression} != 0)" if want == BOOL else f"np.{want.name}({expression})"


def literal(value: bool | int | float, dtype: Dtype) -> str:
    """Return a Python scalar as an expression of a dtype.

    >>> literal(0.5, np.dtype("float32")), literal(2, BOOL)
    ('np.float32(0.5)', 'True')
    """
    if dtype == BOOL:
        return str(bool(value))
    return f"np.{dtype.name}({float(value) if dtype.kind == 'f' else int(value)!r})"


def literal_bits(value: bool | int | float, dtype: Dtype) -> int:
    """Return a Python scalar as a signed integer of the same 64 bits: a float as it stands in memory.

    >>> literal_bits(2**64 - 1, np.dtype("uint64")), hex(literal_bits(1.0, np.dtype("float32")))
    (-1, '0x3ff0000000000000')
    """
    if dtype.kind == "f":
        return int(np.float64(value).view(np.int64))
    return (int(value) + 2**63) % 2**64 - 2**63


def stays_in_source(fn: str, place: int, value: bool | int | float, dtype: Dtype) -> bool:
    """Tell whether a literal operand is part of the source text: truth values, bounds of 0 and 1, and exponents for which LLVM knows a better way.

    All others are arguments, so that graphs which differ in a literal share their machine code.
    """
    if fn in ("maximum", "minimum") and value in (0, 1):  # no NaN, so that half of the comparisons go
        return True
    return dtype == BOOL or (fn == "power" and place == 1 and value in (-1, 0.5, 2))


def supported(op: ops.Op, args: Sequence[TensorType], literals: Sequence[ops.Literal | None]) -> bool:
    """Tell whether an operation can be written as an expression that means just what NumPy does; literals are operands, or None."""
    from .functions import EXPRESSIONS, FUNCTIONS, UNSUPPORTED

    if any(t.weak and value is None for t, value in zip(args, literals, strict=True)):
        return False
    if isinstance(op, ops.Cast):
        kinds = np.dtype(args[0].dtype or "float64").kind, np.dtype(op.dtype).kind
        return not args[0].weak and not (kinds[0] == "f" and kinds[1] in "iu")  # how that overflows is the machine's
    if isinstance(op, ops.Reduce):
        return not args[0].weak
    if not isinstance(op, ops.Elementwise) or not (op.fn in EXPRESSIONS or op.fn in FUNCTIONS):
        return False
    loop = loop_dtypes(op.fn, args)
    if loop is None or any(d.kind not in "biuf" or d == np.float16 for d in (*loop[0], loop[1])):
        return False
    operands = loop[0][1:] if op.fn == "where" else loop[0]
    if len(set(operands)) > 1:
        return False  # NumPy compares int64 with uint64 in a loop of its own
    if (op.fn, operands[0].kind) in UNSUPPORTED or (operands[0] == BOOL and op.fn in _NOT_OF_BOOL):
        return False
    return all(value is None or _fits(value.value, d) for value, d in zip(literals, loop[0], strict=True))


def _fits(value: bool | int | float, dtype: Dtype) -> bool:
    """Tell whether a Python scalar becomes a dtype without a word from NumPy."""
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return isinstance(value, int) and info.min <= value <= info.max
    if dtype.kind == "f" and isinstance(value, int):
        return abs(value) < 1 << 53
    return True


def expression(
    part: Step, operands: Sequence[tuple[str, Dtype] | ops.Literal], name: Callable[[int, ops.Literal, Dtype], str]
) -> str:
    """Return what an element-wise step or a cast computes.

    Operands are expressions with their dtypes, or literals; ``name`` gives the literal at a place the name of an argument.
    """
    from .functions import EXPRESSIONS

    op, want = part.op, np.dtype(part.types[0].dtype or "float64")
    if isinstance(op, ops.Cast):
        [operand] = operands
        assert not isinstance(operand, ops.Literal)
        return cast(*operand, np.dtype(op.dtype))
    assert isinstance(op, ops.Elementwise)
    loop = loop_dtypes(op.fn, part.arg_types)
    assert loop is not None
    texts = []
    for n, (operand, dtype) in enumerate(zip(operands, loop[0], strict=True)):
        if not isinstance(operand, ops.Literal):
            texts.append(cast(*operand, dtype))
        elif stays_in_source(op.fn, n, operand.value, dtype):
            texts.append(literal(operand.value, dtype))
        else:
            texts.append(name(n, operand, dtype))
    template = _OF_BOOL.get(op.fn) if loop[0][-1] == BOOL else None
    template = template or EXPRESSIONS.get(op.fn)
    text = template.format(*texts) if template else f"{op.fn}({', '.join(texts)})"
    if loop[1].kind in "iu" and loop[1].itemsize < 8:
        text = f"np.{loop[1].name}({text})"  # numba computes with 64 bits
    return cast(text, loop[1], want)
