"""Traces for viewers: Chrome and Perfetto, speedscope, and collapsed stacks for flame graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from ..errors import FormatError
from .analyze import frame_name

if TYPE_CHECKING:
    from .trace import Trace, TraceEvent

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"
SLACK_NS = 1000  # files with whole microseconds let a child outlast its parent by so much
EXACT = 1 << 53  # whole numbers up to here are floats without loss


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
    """Go through the threads; events that overlap without nesting, as those of coroutines do, go to lanes of their own."""
    threads: dict[int, list[TraceEvent]] = {}
    for event in trace.events():
        threads.setdefault(event.thread, []).append(event)
    for thread, rest in threads.items():
        name, count = trace.thread_name(thread), 0
        while rest:
            placed, rest = _nest(rest)
            count += 1
            yield Lane(name if count == 1 else f"{name} ({count})", thread, placed)


def _nest(events: Sequence[TraceEvent]) -> tuple[list[Nested], list[TraceEvent]]:
    """Place events, sorted by start, inside one another; what would stick out is left over."""
    placed: list[Nested] = []
    left: list[TraceEvent] = []
    ends: list[int] = []
    for event in events:
        _, _, start, end, *_ = event
        while ends and ends[-1] <= start:
            ends.pop()
        if ends and end > ends[-1]:
            if end > ends[-1] + SLACK_NS:
                left.append(event)
                continue
            end = ends[-1]
        placed.append(Nested(event, end, len(ends)))
        ends.append(end)
    return placed, left


def clean(name: str) -> str:
    """Return a name that UTF-8 can hold: halves of surrogate pairs become question marks."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def _micro(ns: int) -> float | Decimal:
    """Return nanoseconds as microseconds, without loss."""
    return ns / 1e3 if -EXACT < ns < EXACT else Decimal(ns).scaleb(-3)


def to_chrome(trace: Trace) -> str:
    """Return the trace as Chrome trace JSON, which Perfetto reads too; times are microseconds with nanoseconds behind the point."""
    encode = msgspec.json.Encoder(decimal_format="number", enc_hook=_told).encode
    written: list[bytes] = []
    known: dict[int, msgspec.Raw] = {}  # what is said of a step, written once for all of its runs
    try:
        for number, lane in enumerate(lanes(trace)):
            name = {"name": clean(lane.name)}
            written.append(encode({"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": name}))
            for event, _, _ in lane.events:
                facts = known.get(id(event.step))
                if facts is None:
                    facts = msgspec.Raw(encode(event.facts()))
                    if event.step is not None:
                        known[id(event.step)] = facts
                written.append(encode({
                    "ph": "X", "cat": event.kind, "name": clean(event.name), "pid": 1, "tid": number,
                    "ts": _micro(event.start_ns), "dur": _micro(event.duration_ns), "args": facts,
                }))  # fmt: skip
    except UnicodeEncodeError as error:
        raise FormatError(f"the text {error.object!r} holds half a character, which JSON cannot", code="E703") from None
    return '{"displayTimeUnit":"ns","traceEvents":[' + b",\n".join(written).decode() + "]}"


def _told(value: Any) -> Any:
    """Return what JSON can hold for something that an event was given to say: a number, else how it prints."""
    return value.item() if isinstance(value, np.generic) else str(value)


def to_speedscope(trace: Trace) -> str:
    """Return the trace in speedscope's own format: opening and closing events that balance and never go back in time.

    Times that are too large for its numbers count from the first event.
    """
    frames: dict[str, int] = {}
    profiles = []
    tracks = list(lanes(trace))
    ends = [n.end_ns for lane in tracks for n in lane.events]
    origin = min(lane.events[0].event.start_ns for lane in tracks) if max(ends, default=0) >= EXACT else 0
    for lane in tracks:
        marks: list[dict[str, Any]] = []
        stack: list[tuple[int, int]] = []  # frame, end
        for event, end_ns, depth in lane.events:
            while len(stack) > depth:
                frame, end = stack.pop()
                marks.append({"type": "C", "frame": frame, "at": end - origin})
            frame = frames.setdefault(clean(event.name), len(frames))
            marks.append({"type": "O", "frame": frame, "at": event.start_ns - origin})
            stack.append((frame, end_ns))
        while stack:
            frame, end = stack.pop()
            marks.append({"type": "C", "frame": frame, "at": end - origin})
        profiles.append({
            "type": "evented", "name": clean(lane.name), "unit": "nanoseconds", "startValue": marks[0]["at"],
            "endValue": marks[-1]["at"], "events": marks,
        })  # fmt: skip
    return msgspec.json.encode({
        "$schema": SPEEDSCOPE, "shared": {"frames": [{"name": f} for f in frames]}, "profiles": profiles,
        "exporter": "tensorlogic",
    }).decode()  # fmt: skip


def to_collapsed(trace: Trace) -> str:
    """Return the trace as collapsed stacks, ``frame;frame weight`` a line; weights are nanoseconds of a frame's own time."""
    weights: dict[str, int] = {}
    for lane in lanes(trace):
        path: list[str] = []  # the stack of each frame that is open
        for event, end_ns, depth in lane.events:
            del path[depth:]
            name = frame_name(event.name)
            here = f"{path[-1]};{name}" if path else name
            took = end_ns - event.start_ns
            weights[here] = weights.get(here, 0) + took
            if path:
                weights[path[-1]] -= took
            path.append(here)
    return "\n".join(f"{stack} {weight}" for stack, weight in sorted(weights.items()) if weight > 0)
