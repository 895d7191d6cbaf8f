"""How results over parts of an index combine to the result over all of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

COMBINE: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "mean": np.add,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "or": np.logical_or,
    "and": np.logical_and,
    "logaddexp": np.logaddexp,
}


def combine_into(how: str, total: Any, value: Any) -> Any:
    """Combine a value into a total, which is written over.

    >>> combine_into("noisy_or", np.array([0.5]), np.array([0.5]))
    array([0.75])
    """
    if how == "noisy_or":  # a + b - ab, which keeps small chances that 1 - (1 - a)(1 - b) would round away
        rest = np.multiply(np.subtract(1, total, dtype=total.dtype), value)
        return np.add(total, rest, out=total)
    return COMBINE[how](total, value, out=total)


def combined(how: str, values: Sequence[Any]) -> Any:
    """Combine the values of several ranks in their order, so that the sums are the same on each; half floats as float32.

    >>> combined("maximum", [np.array([1, 5]), np.array([3, 2])])
    array([3, 5])
    """
    dtype = values[0].dtype
    total = values[0].astype("float32" if dtype == np.float16 else dtype)
    for value in values[1:]:
        total = combine_into(how, total, value)
    return total.astype(dtype, copy=False)


def combine_to(how: str, values: Sequence[Any], total: Any) -> None:
    """Combine the values of several ranks in their order, into an array, as :func:`combined` does.

    >>> total = np.zeros(2)
    >>> combine_to("add", [np.ones(2), np.array([1.0, 2.0])], total)
    >>> total
    array([2., 3.])
    """
    if how == "noisy_or" or len(values) == 1 or total.dtype == np.float16:
        np.copyto(total, combined(how, values))
        return
    COMBINE[how](values[0], values[1], out=total)
    for value in values[2:]:
        combine_into(how, total, value)
