"""The threads of a trace as objects, one an event: what the columns of :mod:`tensorlogic.observe.tracks` are checked against."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from tensorlogic import Trace, TraceEvent
from tensorlogic.observe.tracks import tracks


class Nested(NamedTuple):
    """An event with its depth in the events around it; its end is cut to theirs where clocks were rounded."""

    event: TraceEvent
    end_ns: int
    depth: int


class Lane(NamedTuple):
    """Events of one thread that nest: what begins inside of another ends inside of it."""

    name: str
    thread: int
    events: list[Nested]


def lanes(trace: Trace) -> Iterator[Lane]:
    events = trace.columns()
    all_events = trace.events()
    for t in tracks(trace, events):
        rows = zip(t.row.tolist(), t.inner_end.tolist(), t.depth.tolist(), strict=True)
        yield Lane(t.name, t.thread, [Nested(all_events[n], end, depth) for n, end, depth in rows])


def own_times(lane: Lane) -> Iterator[tuple[TraceEvent, int]]:
    """Go through the events of a lane as they end, each with the nanoseconds it spent outside of those inside of it."""
    stack: list[tuple[TraceEvent, int, int]] = []  # what is open, its time, and how much of it is spent inside
    for event, end_ns, depth in lane.events:
        while len(stack) > depth:
            done, took, inside = stack.pop()
            yield done, took - inside
        took = end_ns - event.start_ns
        if stack:
            around, time, inside = stack[-1]
            stack[-1] = around, time, inside + took
        stack.append((event, took, 0))
    for done, took, inside in reversed(stack):
        yield done, took - inside
