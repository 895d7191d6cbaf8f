"""The threads of a trace, each with its events and how they are nested."""

from __future__ import annotations

from collections import Counter
from heapq import heappop, heappush
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .columns import EventColumns
from .trace import Trace

SLACK_NS = 1000  # files with whole microseconds let a child outlast its parent by this much


class Track(NamedTuple):
    """The events of one thread, as columns; what begins inside of another event ends inside of it."""

    name: str
    thread: int
    row: NDArray[np.intp]  # the place of each event among all
    kind: NDArray[np.intp]  # what each event is, by its place among the kinds
    start: NDArray[Any]
    end: NDArray[Any]
    inner_end: NDArray[Any]  # its end, cut to that of the event around it where clocks were rounded
    depth: NDArray[np.intp]
    around: NDArray[np.intp]  # the place in the track of the event around it, -1 where there is none

    def own(self) -> NDArray[Any]:
        """Return the nanoseconds that each event spent outside of those inside of it."""
        whole = self.inner_end - self.start
        own: NDArray[Any] = whole.copy()
        inside = np.flatnonzero(self.around >= 0)
        np.subtract.at(own, self.around[inside], whole[inside])
        return own

    def outermost(self, group: NDArray[np.intp]) -> NDArray[np.bool_]:
        """Tell of each event whether no event around it is of the same group."""
        if not self.depth.any():
            return np.ones(len(group), bool)
        alone: list[bool] = []
        around: list[int] = []
        count: Counter[int] = Counter()  # how often each group is among those around
        for own, depth in zip(group.tolist(), self.depth.tolist(), strict=True):
            while len(around) > depth:
                count[around.pop()] -= 1
            alone.append(not count[own])
            around.append(own)
            count[own] += 1
        return np.array(alone, bool)


def tracks(trace: Trace, events: EventColumns | None = None) -> list[Track]:
    """Return the threads of a trace, or of some of its events; those that overlap without nesting get a track of their own."""
    events = trace.columns() if events is None else events
    rows: list[Track] = []
    places = places_of(events.thread, len(events.threads))
    for own in sorted((own for own in places if len(own)), key=lambda own: int(own[0])):
        thread = events.threads[events.thread[own[0]]]
        name = trace.thread_name(thread)
        track, others = _nest(events, own, name, thread)
        rows.append(track)
        if len(others):
            number = np.array(first_fit(events.start[others].tolist(), events.end[others].tolist()), np.intp)
            for n, fitting in enumerate(places_of(number, int(number.max()) + 1)):
                rows.append(_nest(events, others[fitting], f"{name} ({n + 2})", thread)[0])
    return rows


def places_of(number: NDArray[np.intp], count: int) -> list[NDArray[np.intp]]:
    """Return the places in a column that hold each of the numbers below ``count``."""
    return np.split(np.argsort(number, kind="stable"), np.cumsum(np.bincount(number, minlength=count))[:-1])


def first_fit(starts: list[int], ends: list[int]) -> list[int]:
    """Return the track of each event, in order of their start: the first on which it nests in what is open there.

    >>> first_fit([0, 5_000, 6_000, 20_000], [10_000, 15_000, 9_000, 30_000])
    [0, 1, 0, 0]
    """
    number: list[int] = []
    stacks: list[list[int]] = []  # the ends of what is open on each track
    closing: list[tuple[int, int]] = []  # the same of all tracks, each with its track, as a heap
    room = _Room()
    for start, end in zip(starts, ends, strict=True):
        while closing and closing[0][0] <= start:
            _, track = heappop(closing)
            stack = stacks[track]
            stack.pop()
            room.set(track, stack[-1] + SLACK_NS if stack else inf)
        track = room.first(end)
        if track == len(stacks):
            stacks.append([])
        stack = stacks[track]
        stack.append(min(end, stack[-1]) if stack else end)
        heappush(closing, (stack[-1], track))
        room.set(track, stack[-1] + SLACK_NS)
        number.append(track)
    return number


class _Room:
    """Up to when an event may run on each of many tracks: a tree whose every node has the most of those below it."""

    def __init__(self) -> None:
        self._size, self._most = 1, [inf, inf]  # the root is at 1, and what is below a node at twice its place

    def set(self, track: int, until: float) -> None:
        """Say up to when an event may run on a track."""
        node, most = self._size + track, self._most
        most[node] = until
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])

    def first(self, end: int) -> int:
        """Return the first track on which an event may run up to an end."""
        if self._most[1] < end:  # on none so far
            levels, level = [], self._most[self._size :] + [inf] * self._size
            while level:
                levels.append(level)
                level = [max(pair) for pair in zip(level[::2], level[1::2], strict=False)]
            self._size, self._most = 2 * self._size, [inf, *chain.from_iterable(reversed(levels))]
        node = 1
        while node < self._size:
            node = 2 * node + (self._most[2 * node] < end)
        return node - self._size


def self_times(trace: Trace, events: EventColumns, several: list[Track] | None = None) -> NDArray[Any]:
    """Return, for each event, the nanoseconds it spent outside of those inside of it on its thread; ``several`` are its tracks.

    Where events of a thread overlap without nesting, a moment belongs to the one that began last, so that no moment counts twice.
    """
    own = np.zeros_like(events.start)
    threads: dict[int, list[Track]] = {}
    for track in tracks(trace, events) if several is None else several:
        threads.setdefault(track.thread, []).append(track)
    for group in threads.values():
        if len(group) == 1:
            own[group[0].row] = group[0].own()
        else:
            rows = np.sort(np.concatenate([track.row for track in group]))
            own[rows] = _latest(events.start[rows].tolist(), events.end[rows].tolist())
    return own


def _latest(starts: list[int], ends: list[int]) -> list[int]:
    """Return, for events in order of their start, how long each was the one of those under way that began last."""
    own, under_way, now = [0] * len(starts), list[int](), 0
    for n, until in enumerate([*starts, max(ends)]):
        while under_way and now < until:
            last = under_way[-1]
            if ends[last] <= now:
                under_way.pop()
                continue
            at = min(ends[last], until)
            own[last] += at - now
            now = at
        now = until
        under_way.append(n)
    return own


def _nest(events: EventColumns, places: NDArray[np.intp], name: str, thread: int) -> tuple[Track, NDArray[np.intp]]:
    """Place events, sorted by start, inside one another; return those that fit, and the places of the others."""
    kind, starts, ends = events.kind[places], events.start[places], events.end[places]
    if bool(np.all(starts[1:] >= ends[:-1])):  # one after another: nothing nests
        flat = np.zeros(len(places), np.intp)
        return Track(name, thread, places, kind, starts, ends, ends, flat, flat - 1), places[:0]
    rows: list[tuple[int, int, int, int]] = []  # of each event that fits: place, end, depth, what is around it
    others: list[int] = []
    open_events: list[tuple[int, int]] = []  # end, and place among the rows
    for n, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while open_events and open_events[-1][0] <= start:
            open_events.pop()
        limit, around = open_events[-1] if open_events else (end, -1)
        if end > limit + SLACK_NS:
            others.append(n)
            continue
        rows.append((n, min(end, limit), len(open_events), around))
        open_events.append((min(end, limit), len(rows) - 1))
    fits, inner_ends, depths, arounds = zip(*rows, strict=True)
    chosen = np.array(fits, np.intp)
    return Track(
        name,
        thread,
        places[chosen],
        kind[chosen],
        starts[chosen],
        ends[chosen],
        np.array(inner_ends, starts.dtype),
        np.array(depths, np.intp),
        np.array(arounds, np.intp),
    ), places[others]
