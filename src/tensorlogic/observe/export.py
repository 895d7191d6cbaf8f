"""Traces for viewers: Chrome and Perfetto, speedscope, and collapsed stacks for flame graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from .analyze import frame_name

if TYPE_CHECKING:
    from .trace import Trace, TraceEvent

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"


class _Nested(NamedTuple):
    """An event with its depth in the events around it, its end cut to theirs."""

    event: TraceEvent
    end_ns: int
    depth: int


def nested(events: Sequence[TraceEvent]) -> Iterator[_Nested]:
    """Go through one thread's events, sorted by start, and tell how deep each stands; none outlasts what encloses it."""
    open_ends: list[int] = []
    for event in events:
        while open_ends and open_ends[-1] <= event.start_ns:
            open_ends.pop()
        end = min(event.end_ns, open_ends[-1]) if open_ends else event.end_ns
        yield _Nested(event, end, len(open_ends))
        open_ends.append(end)


def by_thread(trace: Trace) -> dict[int, list[TraceEvent]]:
    """Return the events of each thread, sorted by start."""
    threads: dict[int, list[TraceEvent]] = {}
    for event in trace.events():
        threads.setdefault(event.thread, []).append(event)
    return threads


def to_chrome(trace: Trace) -> str:
    """Return the trace as Chrome trace JSON, which Perfetto reads too; times are microseconds with nanoseconds behind the point."""
    events: list[dict[str, Any]] = []
    for number, (thread, own) in enumerate(by_thread(trace).items()):
        events.append({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": f"thread {thread}"}})
        events += [
            {
                "ph": "X", "cat": n.event.kind, "name": n.event.name, "pid": 1, "tid": number,
                "ts": n.event.start_ns / 1e3, "dur": (n.end_ns - n.event.start_ns) / 1e3, "args": n.event.facts(),
            }
            for n in nested(own)
        ]  # fmt: skip
    return msgspec.json.encode({"displayTimeUnit": "ns", "traceEvents": events}).decode()


def to_speedscope(trace: Trace) -> str:
    """Return the trace in speedscope's own format: opening and closing events that balance and never go back in time."""
    frames: dict[str, int] = {}
    profiles = []
    for thread, own in by_thread(trace).items():
        marks: list[dict[str, Any]] = []
        stack: list[tuple[int, int]] = []  # frame, end
        for n in nested(own):
            while len(stack) > n.depth:
                frame, end = stack.pop()
                marks.append({"type": "C", "frame": frame, "at": end})
            frame = frames.setdefault(n.event.name, len(frames))
            marks.append({"type": "O", "frame": frame, "at": n.event.start_ns})
            stack.append((frame, n.end_ns))
        while stack:
            frame, end = stack.pop()
            marks.append({"type": "C", "frame": frame, "at": end})
        profiles.append({
            "type": "evented", "name": f"thread {thread}", "unit": "nanoseconds", "startValue": marks[0]["at"],
            "endValue": max(m["at"] for m in marks), "events": marks,
        })  # fmt: skip
    return msgspec.json.encode({
        "$schema": SPEEDSCOPE, "shared": {"frames": [{"name": f} for f in frames]}, "profiles": profiles,
        "exporter": "tensorlogic",
    }).decode()  # fmt: skip


def to_collapsed(trace: Trace) -> str:
    """Return the trace as collapsed stacks, ``frame;frame weight`` a line; weights are nanoseconds of a frame's own time."""
    weights: dict[str, int] = {}
    for own in by_thread(trace).values():
        path: list[str] = []
        for n in nested(own):
            del path[n.depth :]
            around = ";".join(path)
            path.append(frame_name(n.event.name))
            took = n.end_ns - n.event.start_ns
            here = ";".join(path)
            weights[here] = weights.get(here, 0) + took
            if around:
                weights[around] -= took
    return "\n".join(f"{stack} {weight}" for stack, weight in sorted(weights.items()) if weight > 0)
