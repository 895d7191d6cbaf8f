"""The element-wise functions as Python arithmetic on one element: what the reference backend means by them."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

INF, NAN = math.inf, math.nan


def _guarded(function: Callable[..., float], overflow: float = INF) -> Callable[..., float]:
    """Give a function of :mod:`math` IEEE answers where it raises."""

    def safe(*args: float) -> float:
        if any(math.isnan(a) for a in args):
            return NAN
        try:
            return function(*args)
        except OverflowError:
            return overflow
        except ValueError:
            return NAN

    return safe


def _log(x: float) -> float:
    return -INF if x == 0 else math.log(x) if x > 0 else NAN


def _log1p(x: float) -> float:
    return -INF if x == -1 else math.log1p(x) if x > -1 else NAN


def _log2(x: float) -> float:
    return -INF if x == 0 else math.log2(x) if x > 0 else NAN


def _sinh(x: float) -> float:
    try:
        return math.sinh(x)
    except OverflowError:
        return math.copysign(INF, x)


def _power(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        if y < 0:
            raise ValueError("integers to negative integer powers are not allowed")
        return x**y if y < 64 or -2 < x < 2 else pow(x, y, 1 << 64)  # the last 64 bits are kept of it anyway
    x, y = float(x), float(y)
    if x == 1 or y == 0:
        return 1.0
    try:
        return math.pow(x, y)
    except OverflowError:
        return -INF if x < 0 and y % 2 == 1 else INF
    except ValueError:
        if x == 0:
            return -INF if math.copysign(1, x) < 0 and y % 2 == 1 else INF
        return NAN


def _divide(x: float, y: float) -> float:
    x, y = float(x), float(y)
    if y == 0:
        return NAN if x == 0 or math.isnan(x) else math.copysign(INF, x) * math.copysign(1, y)
    return x / y


def _floor_divide(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        return 0 if y == 0 else x // y
    return _divide(x, y) if y == 0 else float(x) // float(y)


def _remainder(x: Any, y: Any) -> Any:
    if isinstance(x, int) and isinstance(y, int):
        return 0 if y == 0 else x % y
    if y == 0 or math.isinf(x):
        return NAN
    return float(x) % float(y)


def _rounded(function: Callable[[float], int]) -> Callable[[Any], Any]:
    def apply(x: Any) -> Any:
        if isinstance(x, int) or math.isnan(x) or math.isinf(x):
            return x
        return math.copysign(function(x), x)

    return apply


def _extreme(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda x, y: NAN if x != x or y != y else choose(x, y)


def _logaddexp(x: float, y: float) -> float:
    if math.isnan(x) or math.isnan(y):
        return NAN
    top = max(x, y)
    return top if math.isinf(top) else top + math.log1p(math.exp(-abs(x - y)))


def _sigmoid(x: float) -> float:
    if math.isnan(x):
        return NAN
    e = math.exp(-abs(x))
    return 1 / (1 + e) if x >= 0 else e / (1 + e)


SCALARS: dict[str, Callable[..., Any]] = {
    **{name: _guarded(getattr(math, name)) for name in "sqrt exp expm1 sin cos tan cosh".split()},
    **{name: _rounded(getattr(math, name)) for name in "floor ceil trunc".split()},
    "rint": _rounded(round),
    "arcsin": _guarded(math.asin),
    "arccos": _guarded(math.acos),
    "arctan": math.atan,
    "log": _log,
    "log1p": _log1p,
    "log2": _log2,
    "sinh": _sinh,
    "tanh": math.tanh,
    "erf": math.erf,
    "negative": operator.neg,
    "absolute": abs,
    "sigmoid": _sigmoid,
    "logical_not": operator.not_,
    "sign": lambda x: x if x != x else (x > 0) - (x < 0),
    "square": lambda x: x * x,
    "reciprocal": lambda x: _divide(1.0, x) if isinstance(x, float) else int(_divide(1.0, x)) if x else 0,
    "relu": lambda x: x if x != x or x > 0 else type(x)(0),
    "step": lambda x: 1 if x > 0 else 0,
    "isnan": lambda x: x != x,
    "isinf": lambda x: x in (INF, -INF),
    "isfinite": lambda x: x == x and x not in (INF, -INF),
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": _divide,
    "floor_divide": _floor_divide,
    "remainder": _remainder,
    "power": _power,
    "arctan2": math.atan2,
    "minimum": _extreme(min),
    "maximum": _extreme(max),
    "logaddexp": _logaddexp,
    "lukasiewicz": lambda x, y: NAN if x + y != x + y else max(x + y - 1, 0),
    "godel_implies": lambda x, y: NAN if x != x else 1.0 if x <= y else y,
    "goguen_implies": lambda x, y: NAN if x != x else 1.0 if x <= y else _divide(y, x),
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "logical_and": lambda x, y: bool(x) and bool(y),
    "logical_or": lambda x, y: bool(x) or bool(y),
    "logical_xor": lambda x, y: bool(x) != bool(y),
    "where": lambda c, x, y: x if c else y,
}
