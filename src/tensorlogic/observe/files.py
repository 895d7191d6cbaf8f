"""Trace files: written in the form that the name asks for, read in whatever form they are."""

from __future__ import annotations

import contextlib
import gzip
import re
import zlib
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec

from ..errors import FormatError, nearest
from ..ir.files import write_whole
from .analyze import frame_text
from .export import to_chrome, to_collapsed, to_speedscope
from .recorded import RecordedExecutionTrace, RecordedTraceEntry
from .trace import Trace, TraceEvent

STACK = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")  # what flamegraph.pl accepts
UNITS = {"nanoseconds": 1, "microseconds": 10**3, "milliseconds": 10**6, "seconds": 10**9, "none": 1}
ENDINGS = {  # the first that fits says the form
    "speedscope.json": "speedscope", ".rust.json": "rust", ".json": "chrome", ".speedscope": "speedscope",
    ".collapsed": "collapsed", ".folded": "collapsed", ".txt": "collapsed", ".svg": "flame",
}  # fmt: skip
ABSENT = msgspec.Raw()
FAR = 1 << 62  # times beyond it do not fit a column


class _ChromeEvent(msgspec.Struct, gc=False):
    """One event of the Chrome form; a file may say more of it than is read here."""

    ph: str
    name: str = ""
    cat: str | None = None
    pid: int | str = 0
    tid: int | str = 0
    ts: Decimal | None = None
    dur: Decimal | None = None
    args: dict[str, Any] | None = None


class _ChromeFile(msgspec.Struct, rename={"events": "traceEvents"}):
    events: list[_ChromeEvent]


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


class _Kind(msgspec.Struct, rename={"chrome": "traceEvents", "speedscope": "profiles", "rust": "entries"}):
    """Which of the JSON forms a file has, seen without reading it."""

    chrome: msgspec.Raw = ABSENT
    speedscope: msgspec.Raw = ABSENT
    rust: msgspec.Raw = ABSENT


def form_of(path: str | Path) -> str:
    """Return the form that a file's name asks for.

    >>> form_of("run.json"), form_of("run.speedscope.json.gz"), form_of("run.collapsed"), form_of("run.svg")
    ('chrome', 'speedscope', 'collapsed', 'flame')
    """
    name = Path(path).name.removesuffix(".gz")
    for ending, form in ENDINGS.items():
        if name.endswith(ending):
            return form
    raise FormatError(f"the name {Path(path).name!r} does not say what form the trace should have", code="E221", suggestions=[
        "end it in .json (Chrome, Perfetto), .speedscope.json, .rust.json, .collapsed or .svg; .gz behind compresses"])  # fmt: skip


def write(trace: Trace, form: str) -> str:
    """Return a trace in a form: chrome, speedscope, collapsed, rust or flame."""
    from .flame import flame_svg

    writers: dict[str, Callable[[Trace], str]] = {
        "chrome": to_chrome, "speedscope": to_speedscope, "collapsed": to_collapsed, "flame": flame_svg,
        "rust": lambda t: t.to_recorded().to_json(),
    }  # fmt: skip
    return writers[form](trace)


def save(trace: Trace, path: str | Path, form: str | None = None) -> None:
    """Write a trace in a form, else in the one that the name asks for."""
    save_text(path, write(trace, form or form_of(path)))


def save_text(path: str | Path, text: str) -> None:
    """Write text, compressed where the name ends in ``.gz``."""
    data = text.encode()
    write_file(path, gzip.compress(data, 6, mtime=0) if Path(path).suffix == ".gz" else data)


def write_file(path: str | Path, data: bytes) -> None:
    """Write a file that appears whole or not at all; what is there and no file, such as ``/dev/stdout``, is written to."""
    try:
        place = Path(path)
        if place.exists() and not place.is_file():
            place.write_bytes(data)
        else:  # resolved, so that a link stays one
            write_whole(place.resolve(), lambda temporary: temporary.write_bytes(data))
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot write {str(path)!r}: {reason(error)}", code="E221",
                          suggestions=["give a file in a folder that is there and can be written"]) from None  # fmt: skip


def reason(error: Exception) -> str:
    """Say why a file could not be read or written, without its name, which is said already."""
    return getattr(error, "strerror", None) or str(error)


def load(path: str | Path) -> Trace:
    """Read a trace file; its form is seen from what it holds, not from its name."""
    path = Path(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        there: list[str] = []
        with contextlib.suppress(OSError):
            there = sorted(p.name for p in path.parent.iterdir() if not p.name.startswith("."))[:1000]
        raise FormatError(
            f"there is no file {str(path)!r}", code="E221", suggestions=nearest(path.name, there)
        ) from None
    except (OSError, ValueError) as error:
        raise FormatError(f"cannot read {str(path)!r}: {reason(error)}", code="E221") from None
    try:
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return read(data)
    except (OSError, EOFError, zlib.error) as error:
        raise FormatError(f"{str(path)!r} is not whole: {error}", code="E703") from None
    except FormatError as error:
        raise error.renamed(f"{str(path)!r}: {error.diagnostic.message}") from None


def read(data: bytes) -> Trace:
    """Read a trace from the bytes of a file."""
    data = data.removeprefix(b"\xef\xbb\xbf")
    start = data.lstrip()[:1]
    if start == b"[":
        return _chrome(_decoded(data, list[_ChromeEvent]), "$")
    if start != b"{":
        return _collapsed(data)
    kind: _Kind = _decoded(data, _Kind)
    if kind.chrome is not ABSENT:
        return _chrome(_decoded(data, _ChromeFile).events, "$.traceEvents")
    if kind.speedscope is not ABSENT:
        return _speedscope(_decoded(data, _SpeedscopeFile))
    if kind.rust is not ABSENT:
        return from_recorded(RecordedExecutionTrace.from_json(data))
    raise FormatError("this JSON is not a trace", code="E703", suggestions=[
        'Chrome files have "traceEvents", speedscope files "profiles", those of the Rust crate "entries"'])  # fmt: skip


def _decoded(data: bytes, type: Any) -> Any:
    try:
        return msgspec.json.decode(data, type=type)
    except RecursionError:
        raise FormatError("the JSON is nested too deeply", code="E703") from None
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 text: {error.reason} at byte {error.start}", code="E703") from None
    except msgspec.ValidationError as error:
        raise FormatError(f"this is not a trace: {error}", code="E703") from None
    except msgspec.DecodeError as error:
        said = str(error)
        place = re.search(r"\(byte (\d+)\)", said)
        if place is None:  # it ends too early
            line, end = data.count(b"\n") + 1, data[-40:].decode("utf-8", "replace")
            raise FormatError(f"the JSON stops short at byte {len(data)}, line {line}, after {end!r}",
                              code="E703", suggestions=["the file was cut off while it was written or copied"]) from None  # fmt: skip
        at = int(place[1])
        line, column = data.count(b"\n", 0, at) + 1, at - data.rfind(b"\n", 0, at)
        near = data[max(0, at - 20) : at + 20].decode("utf-8", "replace")
        raise FormatError(f"not JSON: {said}, line {line}, column {column}, at {near!r}", code="E703") from None


def _ns(value: Decimal, scale: int, path: str) -> int:
    """Return a time in nanoseconds, rounded."""
    if value.is_finite() and value.adjusted() < 19:
        number = int((value * scale).to_integral_value())
        if -FAR < number < FAR:
            return number
    raise FormatError(f"this is not a trace: the time {value:.6g} is out of range - at `{path}`", code="E703")


def _chrome(events: list[_ChromeEvent], path: str) -> Trace:
    tracks: dict[tuple[int | str, int | str], int] = {}
    processes: dict[int | str, str] = {}
    names: dict[int, str] = {}
    made: list[TraceEvent] = []
    marks: dict[int, list[tuple[int, int]]] = {}  # by track: when and which, of events that only begin or end
    for n, e in enumerate(events):
        if e.ph == "M":
            said = (e.args or {}).get("name")
            if e.name == "process_name" and isinstance(said, str):
                processes[e.pid] = said
            elif e.name == "thread_name" and isinstance(said, str):
                names[tracks.setdefault((e.pid, e.tid), len(tracks))] = said
        elif e.ph in ("X", "B", "E"):
            if e.ts is None:
                raise FormatError(
                    f"this is not a trace: an event {e.ph!r} needs a time - at `{path}[{n}].ts`", code="E703"
                )
            track, start = tracks.setdefault((e.pid, e.tid), len(tracks)), _ns(e.ts, 1000, f"{path}[{n}].ts")
            if e.ph != "X":
                marks.setdefault(track, []).append((start, n))
                continue
            if e.dur is None or not e.dur >= 0:
                said = "no duration" if e.dur is None else f"the duration {e.dur}"
                raise FormatError(f"this is not a trace: an event has {said} - at `{path}[{n}].dur`", code="E703")
            end = _ns(e.ts + e.dur, 1000, f"{path}[{n}].dur")
            made.append(TraceEvent(e.name, e.cat or "event", start, end, track, None, e.args))
    for track, own in marks.items():
        made += _paired(track, own, events, path)
    return Trace(made, threads=_thread_names(tracks, names, processes, {e.thread for e in made}))


def _paired(track: int, marks: list[tuple[int, int]], events: list[_ChromeEvent], path: str) -> list[TraceEvent]:
    """Match each end with the latest begin of its thread that is still open."""
    made: list[TraceEvent] = []
    stack: list[tuple[int, int]] = []
    for at, n in sorted(marks):  # of equal times the one that stands first in the file
        if events[n].ph == "B":
            stack.append((at, n))
            continue
        if not stack:
            raise FormatError(f"this is not a trace: an end without a begin - at `{path}[{n}]`", code="E703")
        start, first = stack.pop()
        begin, args = events[first], {**(events[first].args or {}), **(events[n].args or {})}
        made.append(TraceEvent(begin.name, begin.cat or "event", start, at, track, None, args))
    if stack:
        raise FormatError(f"this is not a trace: {events[stack[0][1]].name!r} begins and never ends - at `{path}[{stack[0][1]}]`",
                          code="E703")  # fmt: skip
    return made


def _thread_names(
    tracks: Mapping[tuple[int | str, int | str], int],
    names: Mapping[int, str],
    processes: Mapping[int | str, str],
    used: set[int],
) -> dict[int, str]:
    """Name threads as the file does; with the process before, where there are several."""
    several = len({pid for (pid, _), n in tracks.items() if n in used}) > 1
    found = {}
    for (pid, tid), n in tracks.items():
        own = names.get(n, f"thread {tid}" if isinstance(tid, int) else tid).strip()
        around = f"{processes[pid]} {pid}" if pid in processes and processes[pid] != str(pid) else str(pid)
        found[n] = f"{around}: {own}" if several else own
    return found


def _speedscope(file: _SpeedscopeFile) -> Trace:
    made: list[TraceEvent] = []
    for p, profile in enumerate(file.profiles):
        path = f"$.profiles[{p}]"
        if profile.type != "evented" or profile.events is None:
            raise FormatError(
                f"only evented profiles are read, this one is {profile.type!r} - at `{path}.type`", code="E703"
            )
        if profile.unit not in UNITS:
            raise FormatError(f"the unit {profile.unit!r} is no time - at `{path}.unit`", code="E703",
                              suggestions=nearest(profile.unit, UNITS))  # fmt: skip
        stack: list[tuple[int, int]] = []
        last = None
        for n, mark in enumerate(profile.events):
            spot = f"{path}.events[{n}]"
            at = _ns(mark.at, UNITS[profile.unit], f"{spot}.at")
            if not 0 <= mark.frame < len(file.shared.frames):
                raise FormatError(f"there is no frame {mark.frame} - at `{spot}.frame`", code="E703")
            if last is not None and at < last:
                raise FormatError(f"time goes back from {last} to {at} ns - at `{spot}.at`", code="E703")
            last = at
            if mark.type == "O":
                stack.append((mark.frame, at))
            elif mark.type != "C" or not stack or stack[-1][0] != mark.frame:
                raise FormatError(
                    f"{mark.type!r} of frame {mark.frame} closes nothing that is open - at `{spot}`", code="E703"
                )
            else:
                frame, start = stack.pop()
                made.append(TraceEvent(file.shared.frames[frame].name, "frame", start, at, p))
        if stack:
            name = file.shared.frames[stack[-1][0]].name
            raise FormatError(f"{name!r} is opened and never closed - at `{path}.events`", code="E703")
    return Trace(made, threads={p: profile.name or f"profile {p}" for p, profile in enumerate(file.profiles)})


def stacks(text: str) -> dict[tuple[str, ...], int]:
    r"""Read collapsed stacks: the weight of each, in order of first occurrence.

    >>> stacks("a;b 3\na 2\na;b 1")
    {('a', 'b'): 4, ('a',): 2}
    """
    found: dict[tuple[str, ...], int] = {}
    for n, line in enumerate(text.split("\n")):
        line = line.removesuffix("\r")
        if not line.strip():
            continue
        match = STACK.match(line)
        if match is None:
            raise FormatError(f"line {n + 1} is not a stack and its weight: {line[:60]!r}", code="E703",
                              suggestions=["a line of collapsed stacks reads: main;load;parse 12"])  # fmt: skip
        if len(match[2]) > 30:
            raise FormatError(f"line {n + 1}: the weight {match[2][:30]}... is out of range", code="E703")
        frames = tuple(frame_text(f) for f in match[1].split(";"))
        found[frames] = found.get(frames, 0) + _ns(Decimal(match[2]), 1, f"line {n + 1}")
    return found


def _collapsed(data: bytes) -> Trace:
    """Lay stacks side by side: their order in time is not known, their weights count as nanoseconds."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise FormatError(f"this is not a trace: it is not UTF-8 text, {error.reason} at byte {error.start}", code="E703",
                          suggestions=["traces are JSON or collapsed stacks, with gzip around them or without"]) from None  # fmt: skip
    made: list[TraceEvent] = []
    path: list[tuple[str, int]] = []  # frames that are open, and since when
    at = 0
    for frames, weight in sorted(stacks(text).items()):
        same = 0
        while same < min(len(path), len(frames)) and path[same][0] == frames[same]:
            same += 1
        made += [TraceEvent(name, "frame", start, at, 0) for name, start in path[same:]]
        path = path[:same] + [(name, at) for name in frames[same:]]
        at += weight
    made += [TraceEvent(name, "frame", start, at, 0) for name, start in path]
    return Trace(made, threads={0: "stacks"})


def from_recorded(recorded: RecordedExecutionTrace) -> Trace:
    """Return a recorded trace as one whose entries follow one another, because it does not say when they ran."""
    made = []
    at = 0
    for n, e in enumerate(recorded.entries):
        if not e.duration_us >= 0:
            raise FormatError(f"this is not a trace: an entry has the duration {e.duration_us} - at `$.entries[{n}].duration_us`",
                              code="E703")  # fmt: skip
        end = at + _ns(Decimal(e.duration_us), 1000, f"$.entries[{n}].duration_us")
        made.append(TraceEvent(e.operation, "step", at, end, 0, None, _args(e)))
        at = end
    return Trace(made, threads={0: "entries"})


def _args(entry: RecordedTraceEntry) -> dict[str, Any]:
    args: dict[str, Any] = {"inputs": [str(list(s)) for s in entry.input_shapes], "memory_bytes": entry.memory_bytes}
    if entry.output_shape or entry.output_elements:
        args["outputs"] = [str(list(entry.output_shape))]
    if entry.device_id is not None:
        args["device"] = entry.device_id
    return args
