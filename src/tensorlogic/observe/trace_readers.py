"""Reads traces: the content tells whether it is Chrome's form, speedscope's, collapsed stacks or a recorded trace."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from itertools import chain
from typing import Any

import msgspec

from ..errors import FormatError
from .broken_traces import BETWEEN_EVENTS, BrokenFile
from .columns import Names
from .other_readers import collapsed, rust, speedscope
from .trace import ChromeParts, Trace, TraceEvent
from .trace_decoding import (
    NEVER_BEGIN,
    NEVER_END,
    NO_TIME,
    UNREADABLE,
    Skipped,
    UnreadableError,
    decoded,
    duration_ns,
    ns,
    with_skipped,
    without_nan,
)

JSON_START = re.compile(rb'\s*(?:\{\s*["}]|\[\s*[{\[\]])')  # and not a stack whose first frame begins with a bracket
END_FIELDS = {"sf": "esf", "stack": "estack"}  # what an event with a duration calls those of its end


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


Mark = tuple[int, int, _ChromeEvent, dict[str, bytes] | None]  # time, place in the file, event and its other fields


def read(data: bytes, damage: str | None = None) -> Trace:
    """Read a trace from the bytes of a file, or from what could be unpacked of a damaged one."""
    trace = _read(data.removeprefix(b"\xef\xbb\xbf"), damage is not None)
    trace.damage = damage or trace.damage
    return trace


def _read(data: bytes, damaged: bool) -> Trace:
    if not JSON_START.match(data):
        try:
            return collapsed(
                data[: data.rfind(b"\n") + 1] if damaged else data
            )  # a line that was cut has another weight
        except FormatError as error:
            return _without_beginning(data.decode("utf-8", "replace"), error)
    try:
        file = decoded(data, dict[str, msgspec.Raw] if data.lstrip()[:1] == b"{" else list[msgspec.Raw])
    except FormatError as error:
        if error.diagnostic.code not in ("E245", "E246", "E231"):
            raise
        if b'"ph"' not in data:
            whole = without_nan(data) if error.diagnostic.code == "E245" else None
            if whole is None:
                raise
            return _read(whole, damaged)
        broken = BrokenFile(data.decode("utf-8", "replace"))
        trace = _chrome(broken.events(), "$.traceEvents", broken.fields, error)
        trace.damage = broken.damage
        return trace
    if isinstance(file, list):
        return _chrome(map(bytes, file), "$", {})
    if "traceEvents" in file:
        events: list[msgspec.Raw] = decoded(file.pop("traceEvents"), list[msgspec.Raw])
        return _chrome(map(bytes, events), "$.traceEvents", {name: bytes(value) for name, value in file.items()})
    if "profiles" in file:
        return speedscope(data)
    if "entries" in file:
        return rust(data)
    hint = 'Chrome files have "traceEvents", speedscope files "profiles", those of the Rust crate "entries"'
    raise FormatError("this JSON is not a trace", hint, code="E703")


def _without_beginning(text: str, error: FormatError) -> Trace:
    """Read a Chrome file whose beginning is missing; raise the error where nothing looks like the next of its events."""
    following = BETWEEN_EVENTS[0].search(text)
    if following is None:
        raise error
    broken = BrokenFile('{"traceEvents": [' + text[following.end() :])
    before = [b""] if '"' in text[: following.start()] else []  # what is left of the event that was cut
    trace = _chrome(chain(before, broken.events()), "$.traceEvents", broken.fields, error)
    trace.damage = "its beginning is missing"
    return trace


def _chrome(
    elements: Iterable[bytes], path: str, fields: Mapping[str, bytes], broken: FormatError | None = None
) -> Trace:
    """Read events of the Chrome form; what cannot be read is skipped and counted."""
    plain, decode = msgspec.json.Decoder(_PlainEvent).decode, msgspec.json.Decoder(_ChromeEvent).decode
    threads = Names()  # processes and threads
    others: list[bytes] = []  # metadata, counters, flows, instants: kept as they stand
    processes: dict[int | str, str] = {}
    names: dict[int, str] = {}
    events: list[TraceEvent] = []
    marks: dict[int, list[Mark]] = {}  # by thread: events that only begin or end
    skipped = Skipped()
    skipped.broken = broken
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
                raise UnreadableError(NO_TIME)
            start = ns(e.ts, 1000)
            if e.ph != "X":
                marks.setdefault(threads.number((e.pid, e.tid)), []).append((start, n, e, further))
                continue
            duration_ns(e.dur, 1000)  # in range by itself, so that it can be added
            end, thread = ns(e.ts + e.dur, 1000), threads.number((e.pid, e.tid))  # type: ignore[operator]
            events.append(TraceEvent(e.name, e.cat or "event", start, end, thread, None, e.args, further))
        except UNREADABLE as error:
            skipped.note(error, f"{path}[{n}]")
    for thread, own in marks.items():
        pairs, alone = _paired(thread, own)
        events += pairs
        skipped.update(NEVER_END if e.ph == "B" else NEVER_BEGIN for _, _, e, _ in alone)
    trace = Trace(events, threads=_thread_names(threads, names, processes, {e.thread for e in events}))
    trace.chrome = ChromeParts(fields, others, {n: place for place, n in threads.items()})
    return with_skipped(trace, skipped)


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
