"""Reads traces: the content tells whether it is Chrome's form, speedscope's, collapsed stacks or a recorded trace."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

import msgspec

from ..errors import FormatError, nearest
from .analyze import frame_text
from .broken_traces import BrokenFile
from .columns import FAR, Names
from .recorded_traces import RecordedExecutionTrace, RecordedTraceEntry
from .trace import ChromeParts, Trace, TraceEvent

WEIGHT = re.compile(r"\d+(?:\.\d*)?")  # of a stack, as flamegraph.pl accepts it
JSON_START = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[{\[\]])')  # and not a stack whose first frame begins with a bracket
SKIPPED = {"E249": "with a time out of range", "E258": "without a time", "E259": "without a duration"}
END_FIELDS = {"sf": "esf", "stack": "estack"}  # what an event with a duration calls those of its end
UNITS = {"nanoseconds": 1, "microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9, "none": 1}


class _ChromeEvent(msgspec.Struct, gc=False):
    """What is read here of an event of the Chrome form, and what flows and instants have beside."""

    ph: str
    name: str = ""
    cat: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: dict[str, Any] | None = None
    id: Any = None
    bp: Any = None
    s: Any = None


READ = frozenset(_ChromeEvent.__struct_fields__) - {"id", "bp", "s"}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class _PlainEvent(_ChromeEvent, gc=False, forbid_unknown_fields=True):
    """An event that has no other fields, as most do not."""


class _Frame(msgspec.Struct):
    name: str


class _Shared(msgspec.Struct):
    frames: list[_Frame]


class _Mark(msgspec.Struct):
    type: str
    frame: int
    at: Decimal


class _Profile(msgspec.Struct):
    type: str
    unit: str
    name: str = ""
    events: list[_Mark] | None = None


class _SpeedscopeFile(msgspec.Struct):
    shared: _Shared
    profiles: list[_Profile]


def read(data: bytes, damage: str | None = None) -> Trace:
    """Read a trace from the bytes of a file, or from what could be unpacked of a damaged one."""
    trace = _read(data.removeprefix(b"\xef\xbb\xbf"), damage is not None)
    trace.damage = damage or trace.damage
    return trace


def _read(data: bytes, damaged: bool) -> Trace:
    if not JSON_START.match(data):
        return _collapsed(data[: data.rfind(b"\n") + 1] if damaged else data)  # a line that was cut has another weight
    try:
        file = _decoded(data, dict[str, msgspec.Raw] if data.lstrip()[:1] == b"{" else list[msgspec.Raw])
    except FormatError as error:
        if error.diagnostic.code not in ("E245", "E246", "E231") or b'"ph"' not in data:
            raise
        broken = BrokenFile(data.decode("utf-8", "replace"))
        trace = _chrome(broken.events(), "$.traceEvents", broken.fields, error)
        trace.damage = broken.damage
        return trace
    if isinstance(file, list):
        return _chrome(map(bytes, file), "$", {})
    if "traceEvents" in file:
        events: list[msgspec.Raw] = _decoded(file.pop("traceEvents"), list[msgspec.Raw])
        return _chrome(map(bytes, events), "$.traceEvents", {name: bytes(value) for name, value in file.items()})
    if "profiles" in file:
        return _speedscope(_decoded(data, _SpeedscopeFile))
    if "entries" in file:
        return from_recorded(RecordedExecutionTrace.from_json(data))
    hint = 'Chrome files have "traceEvents", speedscope files "profiles", those of the Rust crate "entries"'
    raise FormatError("this JSON is not a trace", hint, code="E703")


def _decoded(data: bytes | msgspec.Raw, type: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError:
        raise FormatError("the JSON is nested too deeply", code="E246") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text: {error.reason} at byte {error.start}", code="E231") from None
    except msgspec.ValidationError as error:
        raise FormatError(f"this is not a trace: {error}", code="E248") from None
    except msgspec.DecodeError as error:
        text, place = bytes(data), re.search(r"\(byte (\d+)\)", str(error))
        if place is None:  # it ends too early
            line, end = text.count(b"\n") + 1, text[-40:].decode("utf-8", "replace")
            message = f"the JSON stops short at byte {len(text)}, line {line}, after {end!r}"
            raise FormatError(message, "the file was cut off while it was written or copied", code="E245") from None
        at = int(place[1])
        line, column = text.count(b"\n", 0, at) + 1, at - text.rfind(b"\n", 0, at)
        near = text[max(0, at - 20) : at + 20].decode("utf-8", "replace")
        raise FormatError(f"not JSON: {error}, line {line}, column {column}, at {near!r}", code="E245") from None


def _ns(value: Decimal, scale: int, path: str) -> int:
    """Return a time in nanoseconds, rounded."""
    if value.is_finite() and value.adjusted() < 19:
        number = int((value * scale).to_integral_value())
        if -FAR < number < FAR:
            return number
    raise _no_trace(f"the time {value:.6g} is out of range", path, "E249")


def _no_trace(what: str, path: str, code: str) -> FormatError:
    return FormatError(f"this is not a trace: {what} - at `{path}`", code=code)


def _chrome(
    elements: Iterable[bytes], path: str, fields: Mapping[str, bytes], broken: FormatError | None = None
) -> Trace:
    """Read events of the Chrome form; what cannot be read is skipped and counted, unless nothing else is there."""
    plain, decode = msgspec.json.Decoder(_PlainEvent).decode, msgspec.json.Decoder(_ChromeEvent).decode
    threads = Names()  # processes and threads
    others: list[bytes] = []  # metadata, counters, flows, instants: kept as they stand
    processes: dict[int | str, str] = {}
    names: dict[int, str] = {}
    events: list[TraceEvent] = []
    marks: dict[int, list[Mark]] = {}  # by thread: events that only begin or end
    skipped: Counter[str] = Counter()
    for n, element in enumerate(elements):
        further = None  # fields that are kept as they stand
        try:
            try:
                e: _ChromeEvent = plain(element)
            except msgspec.ValidationError:
                e, further = decode(element), _further(element)
            if e.ph not in ("X", "B", "E"):
                others.append(element)
                name = (e.args or {}).get("name")
                if e.ph == "M" and e.name == "process_name" and isinstance(name, str):
                    processes[e.pid] = name
                elif e.ph == "M" and e.name == "thread_name" and isinstance(name, str):
                    names[threads.number((e.pid, e.tid))] = name
                continue
            if e.id is not None or e.bp is not None or e.s is not None:
                further = _further(element)
            if e.ts is None:
                raise _no_trace(f"an event {e.ph!r} needs a time", f"{path}[{n}].ts", "E258")
            start = _ns(e.ts, 1000, f"{path}[{n}].ts")
            if e.ph != "X":
                marks.setdefault(threads.number((e.pid, e.tid)), []).append((start, n, e, further))
                continue
            spot = f"{path}[{n}].dur"
            if e.dur is None or not e.dur.is_finite() or e.dur < 0:
                raise _no_trace(
                    f"an event has {'no duration' if e.dur is None else f'the duration {e.dur}'}", spot, "E259"
                )
            _ns(e.dur, 1000, spot)  # in range by itself, so that it can be added
            end, thread = _ns(e.ts + e.dur, 1000, spot), threads.number((e.pid, e.tid))
            events.append(TraceEvent(e.name, e.cat or "event", start, end, thread, None, e.args, further))
        except FormatError as error:
            skipped[SKIPPED[error.diagnostic.code or ""]] += 1
            broken = broken or error
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            skipped["that are no events"] += 1
            text = f"not UTF-8 text, {error.reason}" if isinstance(error, UnicodeDecodeError) else str(error)
            what, _, where = text.partition(" - at `$")
            broken = broken or _no_trace(what, f"{path}[{n}]{where.removesuffix('`')}", "E248")
    for thread, own in marks.items():
        pairs, alone = _paired(thread, own)
        events += pairs
        for _, n, e, _ in alone:
            begins = e.ph == "B"
            skipped["that begin and never end" if begins else "that end and never begin"] += 1
            text = f"{e.name!r} begins and never ends" if begins else "an end without a begin"
            broken = broken or _no_trace(text, f"{path}[{n}]", "E251")
    if broken is not None and not events:
        raise broken
    trace = Trace(events, threads=_thread_names(threads, names, processes, {e.thread for e in events}))
    trace.chrome = ChromeParts(fields, others, {n: place for place, n in threads.items()})
    trace.skipped = dict(skipped)
    return trace


Mark = tuple[
    int, int, _ChromeEvent, dict[str, bytes] | None
]  # time, place in the file, event and what else is said of it


def _further(element: bytes) -> dict[str, bytes]:
    """Return the fields of an event that are not read here, as JSON."""
    return {name: bytes(value) for name, value in _fields(element).items() if name not in READ}


def _paired(thread: int, marks: list[Mark]) -> tuple[list[TraceEvent], list[Mark]]:
    """Match each end with the latest begin of its thread that is still open; return those without a partner too."""
    events: list[TraceEvent] = []
    stack: list[Mark] = []
    alone: list[Mark] = []
    for mark in sorted(marks, key=lambda m: m[:2]):  # of equal times the one that stands first in the file
        at, _, e, further = mark
        if e.ph == "B":
            stack.append(mark)
        elif not stack:
            alone.append(mark)
        else:
            start, _, begin, own = stack.pop()
            args = {**(begin.args or {}), **(e.args or {})}
            chrome = {**{END_FIELDS.get(name, name): value for name, value in (further or {}).items()}, **(own or {})}
            events.append(TraceEvent(begin.name, begin.cat or "event", start, at, thread, None, args, chrome))
    return events, alone + stack


def _thread_names(
    tracks: Mapping[tuple[int | str, int | str], int],
    names: Mapping[int, str],
    processes: Mapping[int | str, str],
    used: set[int],
) -> dict[int, str]:
    """Name threads as the file does; with the process before, where there are several."""
    several = len({pid for (pid, _), n in tracks.items() if n in used}) > 1
    full = {}
    for (pid, tid), n in tracks.items():
        own = names.get(n, f"thread {tid}" if isinstance(tid, int) else tid).strip()
        around = f"{processes[pid]} {pid}" if pid in processes and processes[pid] != str(pid) else str(pid)
        full[n] = f"{around}: {own}" if several else own
    return full


def _speedscope(file: _SpeedscopeFile) -> Trace:
    frames = file.shared.frames
    events: list[TraceEvent] = []
    for p, profile in enumerate(file.profiles):
        path = f"$.profiles[{p}]"
        if profile.type != "evented" or profile.events is None:
            raise _no_trace(f"only evented profiles are read, not {profile.type!r}", f"{path}.type", "E250")
        if profile.unit not in UNITS:
            hints = nearest(profile.unit, UNITS)
            raise FormatError(f"the unit {profile.unit!r} is no time - at `{path}.unit`", *hints, code="E250")
        stack: list[tuple[int, int]] = []
        last = None
        for n, mark in enumerate(profile.events):
            spot = f"{path}.events[{n}]"
            at = _ns(mark.at, UNITS[profile.unit], f"{spot}.at")
            if not 0 <= mark.frame < len(frames):
                raise _no_trace(f"there is no frame {mark.frame}", f"{spot}.frame", "E251")
            if last is not None and at < last:
                raise _no_trace(f"time goes back from {last} to {at} ns", f"{spot}.at", "E251")
            last = at
            if mark.type == "O":
                stack.append((mark.frame, at))
            elif mark.type != "C" or not stack or stack[-1][0] != mark.frame:
                raise _no_trace(f"{mark.type!r} of frame {mark.frame} closes nothing that is open", spot, "E251")
            else:
                events.append(TraceEvent(frames[mark.frame].name, "frame", stack.pop()[1], at, p))
        if stack:
            raise _no_trace(f"{frames[stack[-1][0]].name!r} is opened and never closed", f"{path}.events", "E251")
    return Trace(events, threads={p: profile.name or f"profile {p}" for p, profile in enumerate(file.profiles)})


def stacks(text: str) -> dict[tuple[str, ...], int]:
    """Read collapsed stacks: the weight of each, in order of first occurrence."""
    weights: Counter[tuple[str, ...]] = Counter()
    for n, line in enumerate(text.split("\n")):
        line = line.removesuffix("\r")
        if not line.strip():
            continue
        head = line.rstrip("0123456789.")
        weight = line[len(head) :]
        if not WEIGHT.fullmatch(weight) or not head[-1:].isspace():
            hint = "a line of collapsed stacks reads: main;load;parse 12"
            raise FormatError(f"line {n + 1} is not a stack and its weight: {line[:60]!r}", hint, code="E252")
        if len(weight) > 30:
            raise FormatError(f"line {n + 1}: the weight {weight[:30]}... is out of range", code="E249")
        frames = tuple(frame_text(f) for f in head[:-1].split(";"))
        weights[frames] += _ns(Decimal(weight), 1, f"line {n + 1}")
    return weights


def _collapsed(data: bytes) -> Trace:
    """Lay stacks side by side: their order in time is not known, their weights count as nanoseconds."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = f"this is not a trace: it is not UTF-8 text, {error.reason} at byte {error.start}"
        raise FormatError(text, "traces are JSON or collapsed stacks, or gzip of those", code="E231") from None
    events: list[TraceEvent] = []
    path: list[tuple[str, int]] = []  # frames that are open, and since when
    at = 0
    for frames, weight in [*sorted(stacks(text).items()), ((), 0)]:  # none at the end, which closes all
        differs = (n for n, (around, frame) in enumerate(zip(path, frames, strict=False)) if around[0] != frame)
        same = next(differs, min(len(path), len(frames)))
        events += [TraceEvent(name, "frame", start, at, 0) for name, start in path[same:]]
        path = path[:same] + [(name, at) for name in frames[same:]]
        at += weight
    return Trace(events, threads={0: "stacks"})


def from_recorded(recorded: RecordedExecutionTrace) -> Trace:
    """Return a recorded trace as one whose entries follow one another, because it does not say when they ran."""
    events = []
    at = 0
    for n, e in enumerate(recorded.entries):
        spot = f"$.entries[{n}].duration_us"
        if not e.duration_us >= 0:
            raise _no_trace(f"an entry has the duration {e.duration_us}", spot, "E249")
        end = at + _ns(Decimal(e.duration_us), 1000, spot)
        events.append(TraceEvent(e.operation, "step", at, end, 0, None, _args(e)))
        at = end
    return Trace(events, threads={0: "entries"})


def _args(entry: RecordedTraceEntry) -> dict[str, Any]:
    args: dict[str, Any] = {"inputs": [str(list(s)) for s in entry.input_shapes], "memory_bytes": entry.memory_bytes}
    if entry.output_shape or entry.output_elements:
        args["outputs"] = [str(list(entry.output_shape))]
    if entry.device_id is not None:
        args["device"] = entry.device_id
    return args
