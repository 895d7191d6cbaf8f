"""The element-wise functions: one row each, with the facts that passes and backends need."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Function(NamedTuple):
    """One element-wise function.

    >>> FUNCTIONS["add"].arity, FUNCTIONS["add"].commutative
    (2, True)
    """

    name: str
    arity: int
    dtype_like: np.ufunc  # the NumPy function whose result dtype it shares
    cost: int = 1  # relative work per element
    commutative: bool = False


def _rows(
    arity: int, names: str, like: np.ufunc | None = None, cost: int = 1, commutative: bool = False
) -> list[Function]:
    """Return the rows of functions that differ in nothing but their names; unless it is told, each is like NumPy's of that name."""
    return [Function(name, arity, like or getattr(np, name), cost, commutative) for name in names.split()]


_TABLE = [
    *_rows(1, "negative absolute sign square"),
    *_rows(1, "sqrt reciprocal", cost=4),
    *_rows(1, "exp expm1 log log1p log2 sin cos", np.exp, 10),
    *_rows(1, "tan arcsin arccos arctan sinh cosh tanh erf sigmoid", np.exp, 15),
    *_rows(1, "relu step", np.absolute),
    *_rows(1, "floor ceil trunc rint"),
    *_rows(1, "isnan isinf isfinite", np.isnan),
    *_rows(1, "logical_not"),
    *_rows(2, "add", commutative=True),
    *_rows(2, "subtract"),
    *_rows(2, "multiply", commutative=True),
    *_rows(2, "divide floor_divide remainder", cost=4),
    *_rows(2, "power", cost=20),
    *_rows(2, "minimum maximum", commutative=True),
    *_rows(2, "arctan2", cost=15),
    *_rows(2, "logaddexp", cost=20, commutative=True),
    *_rows(2, "lukasiewicz", np.subtract, 3, commutative=True),
    *_rows(2, "godel_implies", np.divide, 2),
    *_rows(2, "goguen_implies", np.divide, 6),
    *_rows(2, "equal not_equal", commutative=True),
    *_rows(2, "less less_equal greater greater_equal"),
    *_rows(2, "logical_and logical_or logical_xor", commutative=True),
    *_rows(3, "where", np.maximum),  # the dtype of its second and third operand
]
FUNCTIONS = {row.name: row for row in _TABLE}
