"""Algebras: how the factors of an einsum combine and how its indices are reduced.

A row of the table is all there is to an algebra; planner, passes and kernels read its facts.
"""

from __future__ import annotations

from typing import NamedTuple, NoReturn

from ..diagnostics import value_text
from ..errors import GraphError, nearest


class Algebra(NamedTuple):
    """One way to join and project.

    >>> ALGEBRAS["real"].combine, ALGEBRAS["min_plus"].zero
    ('multiply', inf)
    """

    name: str
    combine: str  # the element-wise function that joins factors
    reduce: str  # how an index disappears
    zero: float  # the reduction of nothing
    one: float  # the join of nothing
    distributive: bool = True  # contractions may be reordered
    differentiable: bool = True
    numbers: bool = False  # bool operands must be cast first
    inexact: bool = False  # integers become floats
    domain: tuple[float, float] | None = None  # factors outside of it are refused: there it is no semiring


class _Table(dict[str, Algebra]):
    """Algebras by name; one that is not there is named in the error, with the nearest that is."""

    def __missing__(self, name: object) -> NoReturn:
        raise GraphError(f"unknown algebra {value_text(name)}", *nearest(name, self), code="E104")


_INF = float("inf")
ALGEBRAS = _Table(
    (row.name, row)
    for row in (
        Algebra("real", "multiply", "sum", 0, 1),  # bool operands: or of ands, as NumPy
        Algebra("boolean", "logical_and", "any", 0, 1, differentiable=False),  # non-zero is true; the result is bool
        Algebra("max_product", "multiply", "max", 0, 1, domain=(0, _INF)),  # most likely explanation
        Algebra("min_product", "multiply", "min", 1, 1, domain=(0, 1)),  # its dual: for all, and
        Algebra("max_min", "minimum", "max", 0, 1),  # fuzzy truth
        Algebra("min_max", "maximum", "min", 1, 0),  # its dual: for all, or
        Algebra("min_plus", "add", "min", _INF, 0, numbers=True),  # shortest paths
        Algebra("max_plus", "add", "max", -_INF, 0, numbers=True),  # longest paths
        Algebra("log_sum_exp", "add", "logsumexp", -_INF, 0, numbers=True, inexact=True),  # products of logs
        Algebra("lukasiewicz", "lukasiewicz", "max", 0, 1, numbers=True, domain=(0, 1)),  # fuzzy truth
        # 1-∏(1-ab): never reordered
        Algebra("noisy_or", "multiply", "noisy_or", 0, 1, distributive=False, numbers=True, inexact=True),
        # for all, implies; two factors
        Algebra("godel_residuum", "godel_implies", "min", 1, 1, distributive=False, numbers=True, inexact=True),
        Algebra("goguen_residuum", "goguen_implies", "min", 1, 1, distributive=False, numbers=True, inexact=True),
    )
)


def check_domain(row: Algebra, least: float, greatest: float) -> None:
    """Refuse factors outside of an algebra's domain; what rounding may have added is let pass."""
    if row.domain is not None and (least < row.domain[0] - 1e-6 or greatest > row.domain[1] + 1e-6):
        wrong = least if least < row.domain[0] else greatest
        message = f"a factor is {wrong}; the {row.name} algebra is for factors in {row.domain[0]} to {row.domain[1]}"
        raise GraphError(message, "clip the factors, or join by b.multiply and reduce as you like", code="E125")


def algebra(name: object) -> Algebra:
    """Return the algebra that a caller asked for, whatever was given as its name."""
    return ALGEBRAS[name] if isinstance(name, str) else ALGEBRAS.__missing__(name)
