"""Reads traces in other forms than Chrome's: speedscope files, collapsed stacks and the Rust crate's recorded traces."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from typing import Any, Literal

import msgspec

from ..errors import FormatError, nearest
from .analyze import frame_text
from .recorded_traces import Natural, Shape
from .trace import Trace, TraceEvent
from .trace_decoding import (
    NEVER_BEGIN,
    NEVER_END,
    NO_TIME,
    UNREADABLE,
    Skipped,
    UnreadableError,
    decoded,
    duration_ns,
    no_trace,
    ns,
    with_skipped,
)

ESCAPED = re.compile("[\udc80-\udcff]")  # a byte that is no text
WEIGHT = re.compile(r"\d+(?:\.\d*)?")  # of a stack, as flamegraph.pl accepts it
UNITS = {"nanoseconds": 1, "microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9, "none": 1}


class _Frame(msgspec.Struct):
    name: str


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _SpeedscopeEvent(msgspec.Struct):
    type: Literal["O", "C"]
    frame: int
    at: Decimal | None = None


class _Profile(msgspec.Struct):
    type: str
    unit: str
    name: str = ""
    events: list[msgspec.Raw] | None = None


class _SpeedscopeFile(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]


class _RustEntry(msgspec.Struct):
    step: Natural
    operation: str
    input_shapes: list[Shape]
    output_shape: Shape
    duration_us: Decimal | None
    output_elements: Natural
    memory_bytes: Natural
    device_id: str | None = None


class _RustFile(msgspec.Struct):
    entries: list[msgspec.Raw]
    total_duration_us: float | None
    metadata: dict[str, Any]


def speedscope(data: bytes) -> Trace:
    """Read evented profiles, each a thread; what cannot be read is skipped and counted."""
    file: _SpeedscopeFile = decoded(data, _SpeedscopeFile)
    frames, decode = file.shared.frames, msgspec.json.Decoder(_SpeedscopeEvent).decode
    events: list[TraceEvent] = []
    skipped = Skipped()
    for p, profile in enumerate(file.profiles):
        path = f"$.profiles[{p}]"
        if profile.type != "evented" or profile.events is None:
            raise no_trace(f"only evented profiles are read, not {profile.type!r}", f"{path}.type", "E250")
        if profile.unit not in UNITS:
            hints = nearest(profile.unit, UNITS)
            raise FormatError(f"the unit {profile.unit!r} is no time - at `{path}.unit`", *hints, code="E250")
        stack: list[tuple[int, int]] = []  # frames that are open, and since when
        count: Counter[int] = Counter()  # of each frame, how often it is among them
        last: int | None = None
        for n, element in enumerate(profile.events):
            try:
                e = decode(element)
                if e.at is None:
                    raise UnreadableError(NO_TIME)
                at = ns(e.at, UNITS[profile.unit])
                if not 0 <= e.frame < len(frames):
                    raise UnreadableError("of a frame that is not in the file")
                if last is not None and at < last:
                    raise UnreadableError("whose time goes back")
                last = at
                if e.type == "O":
                    stack.append((e.frame, at))
                    count[e.frame] += 1
                    continue
                if not count[e.frame]:
                    raise UnreadableError(NEVER_BEGIN)
                while True:
                    frame, start = stack.pop()
                    count[frame] -= 1
                    if frame == e.frame:
                        break
                    skipped[NEVER_END] += 1
                events.append(TraceEvent(frames[frame].name, "frame", start, at, p))
            except UNREADABLE as error:
                skipped.note(error, f"{path}.events[{n}]")
        skipped.update([NEVER_END] * len(stack))
    names = {p: profile.name or f"profile {p}" for p, profile in enumerate(file.profiles)}
    return with_skipped(Trace(events, threads=names), skipped)


def _stack(line: str) -> tuple[tuple[str, ...], int] | None:
    """Return the frames and the weight that stand on a line of collapsed stacks; None where it is none."""
    head = line.rstrip("0123456789.")
    weight = line[len(head) :]
    if len(weight) > 30 or not WEIGHT.fullmatch(weight) or not head[-1:].isspace():
        return None
    try:
        return tuple(frame_text(f) for f in head[:-1].split(";")), ns(Decimal(weight), 1)
    except UnreadableError:
        return None


def collapsed(data: bytes) -> Trace:
    """Lay stacks side by side: their order in time is not known, their weights count as nanoseconds."""
    text, no_text = data.decode("utf-8", "surrogateescape"), None
    if ESCAPED.search(text):
        try:
            data.decode()
        except UnicodeDecodeError as error:
            what = f"this is not a trace: it is not UTF-8 text, {error.reason} at byte {error.start}"
            no_text = FormatError(what, "traces are JSON or collapsed stacks, or gzip of those", code="E231")
    weights: Counter[tuple[str, ...]] = Counter()
    lines = text.split("\n")
    read, broken = 0, list[int]()  # the places of lines that are no stacks
    for n, line in enumerate(lines):
        stack = None if no_text and ESCAPED.search(line) else _stack(line.removesuffix("\r"))
        if stack is not None:
            weights[stack[0]] += stack[1]
            read += 1
        elif line.strip():
            broken.append(n)
    whole = [n for n in broken if n + 1 < len(lines)]  # without the last line, which may have been cut
    if broken and read <= len(whole):  # another text, of which some lines end in numbers
        first = f"line {broken[0] + 1} is not a stack and its weight: {lines[broken[0]][:60]!r}"
        raise no_text or FormatError(first, "a line of collapsed stacks reads: main;load;parse 12", code="E252")
    events: list[TraceEvent] = []
    path: list[tuple[str, int]] = []  # frames that are open, and since when
    at = 0
    for frames, weight in [*sorted(weights.items()), ((), 0)]:  # none at the end, which closes all
        differs = (n for n, (around, frame) in enumerate(zip(path, frames, strict=False)) if around[0] != frame)
        same = next(differs, min(len(path), len(frames)))
        events += [TraceEvent(name, "frame", start, at, 0) for name, start in path[same:]]
        path = path[:same] + [(name, at) for name in frames[same:]]
        at += weight
    trace = Trace(events, threads={0: "stacks"})
    trace.skipped = {"that are no stacks": len(broken)} if broken else {}
    return trace


def rust(data: bytes) -> Trace:
    """Read entries of the Rust crate, which follow one another, because the file does not say when they ran."""
    file: _RustFile = decoded(data, _RustFile)
    decode = msgspec.json.Decoder(_RustEntry).decode
    events: list[TraceEvent] = []
    skipped = Skipped()
    at = 0
    for n, element in enumerate(file.entries):
        try:
            e = decode(element)
            end = at + duration_ns(e.duration_us, 1000)
            events.append(TraceEvent(e.operation, "step", at, end, 0, None, _args(e)))
            at = end
        except UNREADABLE as error:
            skipped.note(error, f"$.entries[{n}]")
    return with_skipped(Trace(events, threads={0: "entries"}), skipped)


def _args(entry: _RustEntry) -> dict[str, Any]:
    args: dict[str, Any] = {"inputs": [str(list(s)) for s in entry.input_shapes], "memory_bytes": entry.memory_bytes}
    if entry.output_shape or entry.output_elements:
        args["outputs"] = [str(list(entry.output_shape))]
    if entry.device_id is not None:
        args["device"] = entry.device_id
    return args
