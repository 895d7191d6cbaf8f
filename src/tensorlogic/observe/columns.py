"""The column store behind every trace: rows of numbers, each of one of a few kinds, and one way to group them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from .trace import TraceEvent

FAR = 1 << 62  # whole numbers below it, and sums that stay below, fit a column
CHUNK = 4096  # rows looked at together when the longest are sought


class EventColumns(NamedTuple):
    """Events by start, what encloses before what it encloses; what many events have in common is kept once, as a kind.

    Times are int64, or Python's integers where those are too small.
    """

    kinds: list[TraceEvent]  # a step of a plan is one kind for all of its runs, with times of 0
    kind: NDArray[np.intp]  # the place of each event's kind
    start: NDArray[Any]
    end: NDArray[Any]
    thread: NDArray[np.intp]  # the place of each event's thread
    threads: list[int]

    def where(self, wanted: Iterable[bool]) -> EventColumns:
        """Return the events of some kinds: one truth value for each kind.

        >>> none = np.zeros(0, np.intp)
        >>> EventColumns([], none, none, none, none, []).where([]).kind.size
        0
        """
        chosen = np.fromiter(wanted, bool, len(self.kinds))
        return self if chosen.all() else self.take(chosen[self.kind])

    def take(self, rows: NDArray[Any]) -> EventColumns:
        """Return the events at some places, or those for which a column is true."""
        return self._replace(kind=self.kind[rows], start=self.start[rows], end=self.end[rows], thread=self.thread[rows])


class Names(dict[Any, int]):
    """Values kept once each: a value's number is its place in order of first occurrence.

    >>> names = Names()
    >>> names.number("relu"), names.number("exp"), names.number("relu"), list(names)
    (0, 1, 0, ['relu', 'exp'])
    """

    def number(self, value: Hashable) -> int:
        """Return the number of a value, a new one for one that was not there."""
        return self.setdefault(value, len(self))


class Groups:
    """Rows grouped by a column of whole numbers from 0 to ``size``; each question goes through the rows once.

    >>> groups = Groups(np.array([0, 1, 0]), 2)
    >>> groups.counts().tolist(), groups.sums(np.array([1, 2, 4])).tolist(), groups.largest(np.array([1, 2, 4])).tolist()
    ([2, 1], [5, 2], [4, 2])
    >>> [values.tolist() for values in groups.ordered(np.array([9.0, 2.0, 4.0]))]
    [[4.0, 9.0], [2.0]]
    """

    def __init__(self, key: NDArray[np.intp], size: int) -> None:
        self.key, self.size = key, size

    def counts(self) -> NDArray[np.intp]:
        """Return how many rows each group has."""
        return np.bincount(self.key, minlength=self.size)

    def sums(self, values: NDArray[Any]) -> NDArray[Any]:
        """Add values up; whole numbers exactly, as Python's integers where 64 bits are too few."""
        if values.dtype == np.float64:
            return np.bincount(self.key, values, self.size)
        if values.dtype != object and values.size and int(np.abs(values).max()) >= FAR // values.size:
            values = values.astype(object)
        total = np.zeros(self.size, values.dtype)
        np.add.at(total, self.key, values)
        return total

    def largest(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the largest value of each group; 0 where none is larger."""
        most = np.zeros(self.size, values.dtype)
        np.maximum.at(most, self.key, values)
        return most

    def ordered(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Return the values of each group from least to greatest, of which any percentile can be read."""
        order = np.lexsort((values, self.key))
        return np.split(values[order], np.cumsum(self.counts()))[: self.size]


def longest(duration: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Return the places of the n largest, largest first; equal ones in order, NaN last.

    >>> longest(np.array([1.0, np.nan, 3.0, 3.0]), 3).tolist()
    [2, 3, 0]
    """
    starts = np.arange(0, duration.size, CHUNK)
    places = None
    if n <= starts.size:
        # the n-th largest of the chunks' maxima: at least n rows reach it, and most chunks have none that does
        most = np.fmax.reduceat(duration, starts)
        most = np.where(np.isnan(most), -np.inf, most)
        least = np.partition(most, most.size - n)[most.size - n]
        if least > -np.inf:
            near = np.flatnonzero(most >= least) * CHUNK
            places = np.concatenate([np.flatnonzero(duration[at : at + CHUNK] >= least) + at for at in near.tolist()])
    values = duration if places is None else duration[places]
    key = np.where(np.isnan(values), -np.inf, values)
    if n < key.size:
        least = np.partition(key, key.size - n)[key.size - n]
        above = np.flatnonzero(key > least)
        chosen = np.concatenate([above, np.flatnonzero(key == least)[: n - above.size]])
    else:
        chosen = np.arange(key.size)
    order = chosen[np.argsort(-key[chosen], kind="stable")]
    return order if places is None else places[order]
