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
    """Events by start, what encloses before what it encloses; what many events have in common is kept once, as a kind."""

    kinds: list[TraceEvent]  # a step of a plan is one kind for all of its runs, with times of 0
    kind: NDArray[np.intp]  # the place of each event's kind
    start: NDArray[Any]  # nanoseconds as int64, or Python's integers where those are too small
    end: NDArray[Any]
    thread: NDArray[np.intp]  # the place of each event's thread
    threads: list[int]

    def where(self, wanted: Iterable[bool]) -> EventColumns:
        """Return the events of some kinds: one truth value for each kind."""
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
        order = np.argsort(self.key.astype(np.min_scalar_type(self.size)), kind="stable")  # of small numbers by radix
        groups = np.split(values[order], np.cumsum(self.counts()))[: self.size]
        for group in groups:
            group.sort()
        return groups


def longest(duration: NDArray[np.float64], n: int) -> NDArray[np.intp]:
    """Return the places of the n largest, largest first; equal ones in order, NaN last."""
    # the n-th largest of the chunks' maxima: at least n rows reach it, and most chunks have none that does
    starts = np.arange(0, duration.size, CHUNK)
    near, least = _reaching(np.fmax.reduceat(duration, starts) if n < starts.size else duration, n)
    if n < starts.size:
        chunks = ((at, duration[at : at + CHUNK]) for at in starts[near].tolist())
        near = np.concatenate([np.flatnonzero(~(chunk < least)) + at for at, chunk in chunks])
        near = near[_reaching(duration[near], n)[0]]
    return near[np.argsort(-duration[near], kind="stable")[:n]]  # which puts NaN last


def _reaching(values: NDArray[np.float64], n: int) -> tuple[NDArray[np.intp], float]:
    """Return the places of those that are as large as the n-th largest, and that; NaN is least."""
    key = np.where(np.isnan(values), -np.inf, values)
    least = np.partition(key, -n)[-n] if n < key.size else -np.inf
    return np.flatnonzero(key >= least), least
