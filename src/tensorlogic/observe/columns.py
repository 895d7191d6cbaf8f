"""What columns are made of: words kept once each, and the largest of many numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

CHUNK = 4096  # entries looked at together when the longest are sought


class Words:
    """Values kept once each, by number.

    >>> words = Words()
    >>> words.of("relu"), words.of("exp"), words.of("relu"), words.values
    (0, 1, 0, ['relu', 'exp'])
    """

    __slots__ = ("number", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.number: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        """Return the number of a value, a new one for one that was not there."""
        found = self.number.get(value)
        if found is None:
            found = self.number[value] = len(self.values)
            self.values.append(value)
        return found


def longest(duration: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Return the places of the n largest, largest first; equal ones in order, NaN last.

    >>> longest(np.array([1.0, np.nan, 3.0, 3.0]), 3).tolist()
    [2, 3, 0]
    """
    starts = np.arange(0, duration.size, CHUNK)
    places = None
    if n <= starts.size:
        # the n-th largest of the chunks' maxima: at least n entries reach it, most chunks have none that does
        most = np.fmax.reduceat(duration, starts)
        most = np.where(np.isnan(most), -np.inf, most)
        least = np.partition(most, most.size - n)[most.size - n]
        if least > -np.inf:
            near = np.flatnonzero(most >= least) * CHUNK
            found = [np.flatnonzero(duration[at : at + CHUNK] >= least) + at for at in near.tolist()]
            places = np.concatenate(found)
    chosen = duration if places is None else duration[places]
    key = np.where(np.isnan(chosen), -np.inf, chosen)
    if n < key.size:
        least = np.partition(key, key.size - n)[key.size - n]
        above = np.flatnonzero(key > least)
        kept = np.concatenate([above, np.flatnonzero(key == least)[: n - above.size]])
    else:
        kept = np.arange(key.size)
    order = kept[np.argsort(-key[kept], kind="stable")]
    return order if places is None else places[order]
