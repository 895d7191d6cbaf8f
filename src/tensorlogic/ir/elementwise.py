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


def _rows() -> list[Function]:
    same, inexact, test = np.absolute, np.exp, np.isnan
    F = Function
    return [
        F("negative", 1, np.negative), F("absolute", 1, same), F("sign", 1, np.sign), F("square", 1, np.square),
        F("sqrt", 1, np.sqrt, 4), F("reciprocal", 1, np.reciprocal, 4), F("exp", 1, inexact, 10),
        F("expm1", 1, inexact, 10), F("log", 1, inexact, 10), F("log1p", 1, inexact, 10), F("log2", 1, inexact, 10),
        F("sin", 1, inexact, 10), F("cos", 1, inexact, 10), F("tan", 1, inexact, 15), F("arcsin", 1, inexact, 15),
        F("arccos", 1, inexact, 15), F("arctan", 1, inexact, 15), F("sinh", 1, inexact, 15),
        F("cosh", 1, inexact, 15), F("tanh", 1, inexact, 15), F("erf", 1, inexact, 15), F("sigmoid", 1, inexact, 15),
        F("relu", 1, same), F("step", 1, same), F("floor", 1, np.floor), F("ceil", 1, np.ceil),
        F("trunc", 1, np.trunc), F("rint", 1, np.rint), F("isnan", 1, test), F("isinf", 1, test),
        F("isfinite", 1, test), F("logical_not", 1, np.logical_not),
        F("add", 2, np.add, 1, True), F("subtract", 2, np.subtract),
        F("multiply", 2, np.multiply, 1, True), F("divide", 2, np.divide, 4),
        F("floor_divide", 2, np.floor_divide, 4), F("remainder", 2, np.remainder, 4), F("power", 2, np.power, 20),
        F("minimum", 2, np.minimum, 1, True), F("maximum", 2, np.maximum, 1, True),
        F("arctan2", 2, np.arctan2, 15), F("logaddexp", 2, np.logaddexp, 20, True),
        F("lukasiewicz", 2, np.subtract, 3, True),
        F("godel_implies", 2, np.divide, 2), F("goguen_implies", 2, np.divide, 6),
        F("equal", 2, np.equal, 1, True), F("not_equal", 2, np.not_equal, 1, True), F("less", 2, np.less),
        F("less_equal", 2, np.less_equal), F("greater", 2, np.greater), F("greater_equal", 2, np.greater_equal),
        F("logical_and", 2, np.logical_and, 1, True), F("logical_or", 2, np.logical_or, 1, True),
        F("logical_xor", 2, np.logical_xor, 1, True),
        F("where", 3, np.maximum),  # the dtype of its second and third operand
    ]  # fmt: skip


FUNCTIONS = {row.name: row for row in _rows()}
