"""The threads of a trace, each with its events and how they are nested."""

from __future__ import annotations

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
        alone = np.ones(len(group), bool)
        if self.depth.any():
            around: list[int] = []
            for n, (own, depth) in enumerate(zip(group.tolist(), self.depth.tolist(), strict=True)):
                del around[depth:]
                alone[n] = own not in around
                around.append(own)
        return alone


def tracks(trace: Trace, events: EventColumns | None = None) -> list[Track]:
    """Return the threads of a trace, or of some of its events; those that overlap without nesting get a track of their own."""
    events = trace.columns() if events is None else events
    rows: list[Track] = []
    places = [np.flatnonzero(events.thread == number) for number in range(len(events.threads))]
    for rest in sorted((own for own in places if len(own)), key=lambda own: int(own[0])):
        thread = events.threads[events.thread[rest[0]]]
        name, count = trace.thread_name(thread), 0
        while len(rest):
            count += 1
            track, rest = _nest(events, rest, name if count == 1 else f"{name} ({count})", thread)
            rows.append(track)
    return rows


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
