"""NumPy's basic indexing, over sizes that may be names."""

from __future__ import annotations

from typing import Any

from ..diagnostics import value_text
from ..errors import ShapeError
from .sizes import Dim, add, dim, floordiv, integer, sub

LONGEST = (1 << 63) - 1  # axis, and so step of a slice


def index_range(key: Any, size: Dim, axis: int) -> tuple[Dim, Dim, int]:
    """Turn one index of NumPy's basic indexing into (start, count, step)."""
    if not isinstance(key, slice):
        if key is None or isinstance(key, bool | str):
            raise _no_index(key, axis)
        place = _part(key, key, axis)
        if isinstance(size, int) and not -size <= place < size:
            raise ShapeError(f"index {value_text(place)} is out of range for axis {axis} of size {size}", code="E010")
        return (place if place >= 0 else add(size, place), 1, 1)
    low, high, step = (_part(p, key, axis) for p in (key.start, key.stop, 1 if key.step is None else key.step))
    if isinstance(step, str):
        raise _no_index(key, axis)
    if step == 0:
        raise ShapeError("a slice cannot have step 0", code="E011")
    step = max(-LONGEST, min(step, LONGEST))  # a longer one leads out of every axis all the same
    if isinstance(size, int) and not isinstance(low, str) and not isinstance(high, str):
        start, stop, _ = slice(low, high, step).indices(size)
        return (start, len(range(start, stop, step)), step)
    first: Dim = _bound(low, size, 0 if step > 0 else sub(size, 1))
    if high is None and step < 0:
        return (first, add(floordiv(first, -step), 1), step)
    last = _bound(high, size, size)
    span = sub(last, first) if step > 0 else sub(first, last)
    return (first, span if abs(step) == 1 else floordiv(add(span, abs(step) - 1), abs(step)), step)


def _part(part: Any, key: Any, axis: int) -> Any:
    """Return one part of an index as an integer, a name or None."""
    if part is None or isinstance(part, str):
        return part
    try:
        return integer(part, "an index")
    except ShapeError:
        if isinstance(part, int):  # one that no file holds
            raise
        raise _no_index(key, axis) from None


def _no_index(key: Any, axis: int) -> ShapeError:
    hints = ["use b.gather(x, indices, axis) for an array of indices"]
    if getattr(key, "dtype", 0) in (None, "bool"):  # how many a mask keeps is not known while a graph is built
        hints.append("use b.where(mask, x, 0) for a mask: all places are kept, and it says which count")
    return ShapeError(f"index {value_text(key)} on axis {axis} is not an integer or a slice", *hints, code="E012")


def _bound(value: Dim | None, size: Dim, default: Dim) -> Dim:
    if value is None:
        return default
    if isinstance(value, str):
        return dim(value)
    return value if value >= 0 else add(size, value)
