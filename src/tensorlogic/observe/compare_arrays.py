"""How two arrays differ: in shape, in dtype, or in elements that are too far apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

TOLERANCE = {"float16": 2e-2, "float32": 2e-5, "float64": 1e-10}


class Difference(NamedTuple):
    """What differs: a shape, a dtype, or some elements, of which the worst is shown.

    >>> print(difference(np.array([1.0, 2.0]), np.array([1.0, 2.5])))
    element (1,) is 2.0, expected 2.5 (tolerance 1e-10, 1 of 2 elements)
    """

    kind: str  # "shape", "dtype" or "value"
    got: Any
    want: Any
    place: tuple[int, ...] = ()
    error: float = 0.0  # of the worst element, relative to the larger of it and 1
    wrong: int = 0  # elements that are too far off
    size: int = 0
    tolerance: float = 0.0

    def __str__(self) -> str:
        if self.kind != "value":
            return f"{self.kind} {self.got}, expected {self.want}"
        return (
            f"element {self.place} is {self.got}, expected {self.want} "
            f"(tolerance {self.tolerance}, {self.wrong} of {self.size} elements)"
        )


def difference(got: Any, want: Any, rtol: float | None = None) -> Difference | None:
    """Say how two arrays differ in shape, dtype or value; None where they agree.

    Floats may be off by ``rtol`` times the larger of 1 and the wanted value; without it, by what their dtype allows.
    NaN equals NaN, and everything else is compared exactly.

    >>> difference(np.array([1.0, 2.0]), np.array([1.0, 2.5])).place
    (1,)
    >>> difference(np.array([1.0, np.nan]), np.array([1.0 + 1e-12, np.nan])) is None
    True
    """
    if got.shape != want.shape:
        return Difference("shape", got.shape, want.shape)
    if got.dtype != want.dtype:
        return Difference("dtype", got.dtype, want.dtype)
    inexact = want.dtype.kind in "fc"
    tolerance = TOLERANCE.get(want.dtype.name, 0.0) if rtol is None else rtol if inexact else 0.0
    near = got == want
    if inexact:
        with np.errstate(all="ignore"):
            near |= np.isfinite(want) & (np.abs(got - want) <= tolerance * np.maximum(1, np.abs(want)))
            near |= np.isnan(got) & np.isnan(want)
    if np.all(near):
        return None
    places = np.flatnonzero(~np.asarray(near))
    wide = np.complex128 if want.dtype.kind == "c" else np.float64
    with np.errstate(all="ignore"):
        a, b = (np.asarray(side).reshape(-1)[places].astype(wide) for side in (got, want))
        off = np.abs(a - b) / np.maximum(1, np.abs(b))
    off[~np.isfinite(off)] = np.inf
    worst = int(np.argmax(off))
    place = tuple(int(i) for i in np.unravel_index(int(places[worst]), want.shape))
    return Difference("value", got[place], want[place], place, float(off[worst]), len(places), want.size, tolerance)
