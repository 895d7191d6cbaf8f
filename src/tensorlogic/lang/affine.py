"""Index arithmetic in one form: a sum of variables with whole coefficients, and where it stands for whole numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ..errors import GraphError
from . import syntax as s


class Affine(NamedTuple):
    """``constant`` plus each variable times its coefficient, such as ``x + dx`` or ``2*t - 1``; divided where ``divisor`` is not 1.

    >>> Affine((("x", 1), ("dx", 1)), 0).variables
    ('x', 'dx')
    """

    terms: tuple[tuple[str, int], ...]
    constant: int
    divisor: int = 1

    @property
    def variables(self) -> tuple[str, ...]:
        """The variables, in order of first occurrence."""
        return tuple(name for name, _ in self.terms)

    @property
    def is_plain(self) -> bool:
        """Whether it is a variable by itself."""
        return len(self.terms) == 1 and self.terms[0][1] == 1 and self.constant == 0 and self.divisor == 1

    @property
    def is_step(self) -> bool:
        """Whether it is a variable plus or minus a number, or a variable by itself."""
        return len(self.terms) == 1 and self.terms[0][1] == 1 and self.divisor == 1

    def bounds(self, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
        """Return the least and the greatest value where each variable is in its range (start, stop)."""
        low = high = self.constant
        for name, factor in self.terms:
            ends = factor * ranges[name][0], factor * (ranges[name][1] - 1)
            low, high = low + min(ends), high + max(ends)
        return low // self.divisor, high // self.divisor


def affine(index: s.Index, scalars: Mapping[str, int | float]) -> Affine:
    """Bring an index into this form; names of scalars stand for their values.

    >>> from tensorlogic.lang.syntax import Arithmetic, Constant, Variable
    >>> affine(Arithmetic("+", Variable("t"), Constant(1)), {})
    Affine(terms=(('t', 1),), constant=1, divisor=1)
    """
    match index:
        case s.Variable(name=name):
            return Affine(((name, 1),), 0)
        case s.Constant():
            return Affine((), whole(index, scalars))
        case s.Arithmetic(operator=operator, left=left, right=right):
            a, b = affine(left, scalars), affine(right, scalars)
            if operator in "+-" and a.divisor == b.divisor == 1:
                sign = 1 if operator == "+" else -1
                total = dict(a.terms)
                for name, factor in b.terms:
                    total[name] = total.get(name, 0) + sign * factor
                return Affine(tuple((n, f) for n, f in total.items() if f), a.constant + sign * b.constant)
            if operator == "*" and a.divisor == b.divisor == 1 and (not a.terms or not b.terms):
                by, of = (a.constant, b) if not a.terms else (b.constant, a)
                return Affine(tuple((n, f * by) for n, f in of.terms if f * by), of.constant * by)
            if operator == "/" and not b.terms and b.divisor == 1:
                if b.constant < 1:
                    message = f"an index is divided by {b.constant}"
                    raise GraphError(message, "divide by 1 or more", code="E670", location=index.at)
                if not a.terms:
                    return Affine((), a.constant // a.divisor // b.constant)
                return Affine(a.terms, a.constant, a.divisor * b.constant)
    hint = "write sums and differences of variables and numbers, multiples by a number, or one division at the end: x/2"
    raise GraphError("index arithmetic of this form is not there", hint, code="E670", location=index.at)


def whole(constant: s.Constant, scalars: Mapping[str, int | float]) -> int:
    """Return the whole number that a constant in index arithmetic stands for."""
    value: object = constant.value
    if isinstance(value, str) and not constant.quoted and value in scalars:
        value = scalars[value]
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if not isinstance(value, int):
        hint = f"define it: {value} = 3" if isinstance(value, str) and not constant.quoted else "write a whole number"
        message = f"{value!r} is no whole number, so it cannot be calculated with"
        raise GraphError(message, hint, code="E671", location=constant.at)
    return value
