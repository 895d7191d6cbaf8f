"""Algebras: how the factors of an einsum combine and how its indices are reduced.

A row of the table is all there is to an algebra; planner, passes and kernels read its facts.
"""

from __future__ import annotations

from typing import NamedTuple

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
    idempotent: bool = False  # a term counted twice counts once
    packable: bool = False  # runs on packed bits
    differentiable: bool = True
    numbers: bool = False  # bool operands must be cast first
    inexact: bool = False  # integers become floats
    domain: tuple[float, float] | None = None  # factors outside of it are refused: there it is no semiring
    note: str = ""


_INF = float("inf")
ALGEBRAS = {
    row.name: row
    for row in (
        Algebra("real", "multiply", "sum", 0, 1, note="sum of products; bool operands: or of ands, as NumPy"),
        Algebra(
            "boolean", "logical_and", "any", 0, 1,
            idempotent=True, packable=True, differentiable=False, note="non-zero is true; the result is bool",
        ),
        Algebra("max_product", "multiply", "max", 0, 1, idempotent=True, domain=(0, _INF), note="most likely explanation"),
        Algebra("min_product", "multiply", "min", 1, 1, idempotent=True, domain=(0, 1), note="its dual: for all, and"),
        Algebra("max_min", "minimum", "max", 0, 1, idempotent=True, note="fuzzy truth"),
        Algebra("min_max", "maximum", "min", 1, 0, idempotent=True, note="its dual: for all, or"),
        Algebra("min_plus", "add", "min", _INF, 0, idempotent=True, numbers=True, note="shortest paths"),
        Algebra("max_plus", "add", "max", -_INF, 0, idempotent=True, numbers=True, note="longest paths"),
        Algebra("log_sum_exp", "add", "logsumexp", -_INF, 0, numbers=True, inexact=True, note="products of logs"),
        Algebra("lukasiewicz", "lukasiewicz", "max", 0, 1, idempotent=True, numbers=True, domain=(0, 1), note="fuzzy truth"),
        Algebra(
            "noisy_or", "multiply", "noisy_or", 0, 1,
            distributive=False, numbers=True, inexact=True, note="1-∏(1-ab): never reordered",
        ),
        Algebra(
            "godel_residuum", "godel_implies", "min", 1, 1,
            distributive=False, idempotent=True, numbers=True, inexact=True, note="for all, implies; two factors",
        ),
        Algebra(
            "goguen_residuum", "goguen_implies", "min", 1, 1,
            distributive=False, idempotent=True, numbers=True, inexact=True, note="for all, implies; two factors",
        ),
    )
}  # fmt: skip


def check_domain(row: Algebra, least: float, greatest: float) -> None:
    """Refuse factors outside of an algebra's domain; what rounding may have added is let pass.

    >>> check_domain(ALGEBRAS["max_product"], 0.0, 7.0)
    """
    if row.domain is not None and (least < row.domain[0] - 1e-6 or greatest > row.domain[1] + 1e-6):
        wrong = least if least < row.domain[0] else greatest
        message = f"a factor is {wrong}; the {row.name} algebra is for factors in {row.domain[0]} to {row.domain[1]}"
        raise GraphError(message, "clip the factors, or join by b.multiply and reduce as you like", code="E125")


def algebra(name: str) -> Algebra:
    """Look an algebra up by name.

    >>> algebra("boolean").packable
    True
    """
    try:
        return ALGEBRAS[name]
    except (KeyError, TypeError):
        raise GraphError(f"unknown algebra {name!r}", *nearest(str(name), ALGEBRAS), code="E104") from None
