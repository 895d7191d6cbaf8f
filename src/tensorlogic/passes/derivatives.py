"""The derivatives of the element-wise functions: one table for forward and reverse mode.

A row holds, for each operand, what multiplies a change by the partial derivative there: a function of the tape, the
operands, the result and the change. A function whose derivative is zero almost everywhere has None; :data:`STRAIGHT` says
what takes its place where a straight-through estimator is asked for. Numbers meet the change first: it is often a number
itself, or small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ..ir.elementwise import FUNCTIONS
from .grad_tape import Tape, Value, may_be_float

Slope = Callable[[Tape, Sequence[Value], Value, Value], Value]


def _same(t: Tape, x: Sequence[Value], y: Value, g: Value) -> Value:
    return g


def _minus(t: Tape, x: Sequence[Value], y: Value, g: Value) -> Value:
    return -g


def _power_base(t: Tape, x: Sequence[Value], y: Value, g: Value) -> Value:
    base, exponent = x
    number = t.literal_of(exponent)
    if number is not None:
        if number == 2:
            return g * 2 * base
        return g * float(number) * t.power(base, number - 1) if number else t.where(False, base, 0) * g
    nothing = t.equal(exponent, 0)  # 0 * 0**-1 is not a number
    if may_be_float(exponent.type):  # above 0 the derivative still changes with the exponent
        nothing = t.logical_and(nothing, t.logical_not(t.greater(t.absolute(base), 0)))
    return g * (exponent * t.power(t.where(nothing, 1, base), exponent - 1))


def _chosen(n: int) -> Slope:
    """The derivative of an extreme: all of it where operand n is the only one that equals the result, else half."""

    def slope(t: Tape, x: Sequence[Value], y: Value, g: Value) -> Value:
        other = x[1 - n]
        return t.where(t.equal(x[n], y), t.where(t.equal(other, y), g * 0.5, g), 0)

    return slope


def _logaddexp(n: int) -> Slope:
    def slope(t: Tape, x: Sequence[Value], y: Value, g: Value) -> Value:
        shift = t.where(t.equal(y, -math.inf), 0, y)  # of two impossible terms neither counts
        return g * t.exp(x[n] - shift)

    return slope


def _angle(n: int) -> Slope:
    def slope(t: Tape, x: Sequence[Value], y: Value, g: Value) -> Value:
        part = g * x[1 - n] / (t.square(x[0]) + t.square(x[1]))
        return -part if n else part

    return slope


DERIVATIVES: dict[str, tuple[Slope | None, ...]] = {
    "negative": (_minus,),
    "absolute": (lambda t, x, y, g: g * t.sign(x[0]),),
    "square": (lambda t, x, y, g: g * 2 * x[0],),
    "sqrt": (lambda t, x, y, g: g * 0.5 / y,),
    "reciprocal": (lambda t, x, y, g: -(g * t.square(y)),),
    "exp": (lambda t, x, y, g: g * y,),
    "expm1": (lambda t, x, y, g: g * (y + 1),),
    "log": (lambda t, x, y, g: g / x[0],),
    "log1p": (lambda t, x, y, g: g / (x[0] + 1),),
    "log2": (lambda t, x, y, g: g * (1 / math.log(2)) / x[0],),
    "sin": (lambda t, x, y, g: g * t.cos(x[0]),),
    "cos": (lambda t, x, y, g: -(g * t.sin(x[0])),),
    "tan": (lambda t, x, y, g: g * (t.square(y) + 1),),
    "arcsin": (lambda t, x, y, g: g / t.sqrt(1 - t.square(x[0])),),
    "arccos": (lambda t, x, y, g: -(g / t.sqrt(1 - t.square(x[0]))),),
    "arctan": (lambda t, x, y, g: g / (t.square(x[0]) + 1),),
    "sinh": (lambda t, x, y, g: g * t.cosh(x[0]),),
    "cosh": (lambda t, x, y, g: g * t.sinh(x[0]),),
    "tanh": (lambda t, x, y, g: g * (1 - t.square(y)),),
    "erf": (lambda t, x, y, g: g * (2 / math.sqrt(math.pi)) * t.exp(-t.square(x[0])),),
    "sigmoid": (lambda t, x, y, g: g * (y * (1 - y)),),
    "relu": (lambda t, x, y, g: t.where(y > 0, g, 0),),
    **dict.fromkeys("sign step floor ceil trunc rint isnan isinf isfinite logical_not".split(), (None,)),
    "add": (_same, _same),
    "subtract": (_same, _minus),
    "multiply": (lambda t, x, y, g: g * x[1], lambda t, x, y, g: g * x[0]),
    "divide": (lambda t, x, y, g: g / x[1], lambda t, x, y, g: -(g * y / x[1])),
    "floor_divide": (None, None),
    "remainder": (_same, lambda t, x, y, g: -(g * t.floor_divide(x[0], x[1]))),
    # 0**y stays 0 for every y > 0
    "power": (_power_base, lambda t, x, y, g: g * (y * t.log(t.where(t.equal(x[0], 0), 1, x[0])))),
    "minimum": (_chosen(0), _chosen(1)),
    "maximum": (_chosen(0), _chosen(1)),
    "arctan2": (_angle(0), _angle(1)),
    "logaddexp": (_logaddexp(0), _logaddexp(1)),
    "lukasiewicz": (lambda t, x, y, g: t.where(y > 0, g, 0),) * 2,
    "godel_implies": (None, lambda t, x, y, g: t.where(x[0] > x[1], g, 0)),
    "goguen_implies": (
        lambda t, x, y, g: t.where(x[0] > x[1], -(g * y / x[0]), 0),
        lambda t, x, y, g: t.where(x[0] > x[1], g / x[0], 0),
    ),
    **dict.fromkeys("equal not_equal less less_equal greater greater_equal".split(), (None, None)),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), (None, None)),
    "where": (None, lambda t, x, y, g: t.where(x[0], g, 0), lambda t, x, y, g: t.where(x[0], 0, g)),
}


TRUTHS = frozenset(f for f, row in FUNCTIONS.items() if row.arity < 3 and row.dtype_like.types[-2][-1] == "?")


def _truth(t: Tape, x: Value) -> Value:
    """Return truth as a number: 0 or 1."""
    return t.cast(t.not_equal(x, 0), "float32")


STRAIGHT: dict[str, tuple[Slope | None, ...]] = {
    **dict.fromkeys(("sign", "step", "floor", "ceil", "trunc", "rint"), (_same,)),
    "logical_not": (_minus,),
    "less": (_minus, _same),
    "less_equal": (_minus, _same),
    "greater": (_same, _minus),
    "greater_equal": (_same, _minus),
    "logical_and": (lambda t, x, y, g: g * _truth(t, x[1]), lambda t, x, y, g: g * _truth(t, x[0])),
    "logical_or": (lambda t, x, y, g: g * (1 - _truth(t, x[1])), lambda t, x, y, g: g * (1 - _truth(t, x[0]))),
    "logical_xor": (lambda t, x, y, g: g * (1 - 2 * _truth(t, x[1])), lambda t, x, y, g: g * (1 - 2 * _truth(t, x[0]))),
    "where": (lambda t, x, y, g: g * (x[1] - x[2]), *DERIVATIVES["where"][1:]),
}


def slopes(fn: str, *, straight: bool = False) -> tuple[Slope | None, ...]:
    """Return what multiplies a change by the derivative of a function, for each of its operands.

    >>> slopes("step"), len(slopes("multiply"))
    ((None,), 2)
    """
    return STRAIGHT.get(fn, DERIVATIVES[fn]) if straight else DERIVATIVES[fn]
