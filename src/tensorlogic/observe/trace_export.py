"""Traces for viewers: Chrome and Perfetto, speedscope, and collapsed stacks for flame graphs."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..diagnostics import clean
from .analyze import first_frame, frame_name
from .recorded_traces import half_a_character
from .trace import ChromeParts, Trace
from .tracks import tracks

SPEEDSCOPE = "https://www.speedscope.app/file-format-schema.json"
EXACT = 1 << 53  # whole numbers up to here are floats without loss


def _micros(times: NDArray[Any], encode: Any) -> list[bytes]:
    """Return times as JSON writes them, in microseconds, without loss."""
    if times.dtype != object and np.all(np.abs(times) < EXACT):
        values = (times / 1e3).tolist()
    else:
        values = [ns / 1e3 if -EXACT < ns < EXACT else Decimal(ns).scaleb(-3) for ns in times.tolist()]
    text: bytes = encode(values)
    return text[1:-1].split(b",")


def to_chrome(trace: Trace) -> str:
    """Return the trace as Chrome trace JSON, which Perfetto reads too; times are microseconds with nanoseconds behind the point."""
    encode = msgspec.json.Encoder(decimal_format="number", enc_hook=_json_value).encode
    chrome = trace.chrome or ChromeParts({"displayTimeUnit": b'"ns"'}, (), {})
    fields = b"".join(encode(name) + b":" + value + b"," for name, value in chrome.fields.items())
    written = [b",\n" + other for other in chrome.others]
    facts: dict[int, bytes] = {}  # what is said of a step, written once for all of its runs
    events = trace.columns()
    try:
        for number, track in enumerate(tracks(trace, events)):
            pid, tid = chrome.threads.get(track.thread, (1, number))
            if track.thread not in chrome.threads:
                name = {"name": clean(track.name)}
                meta = {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": name}
                written.append(b",\n" + encode(meta))
            kinds = track.kind.tolist()
            before: dict[int, bytes] = {}
            for k in dict.fromkeys(kinds):
                kind = events.kinds[k]
                if k not in facts:
                    facts[k] = b',"args":' + encode(kind.facts()) + b"}"
                    if kind.chrome:
                        further = (b"," + encode(field) + b":" + value for field, value in kind.chrome.items())
                        facts[k] = facts[k][:-1] + b"".join(further) + b"}"
                head = encode({"ph": "X", "cat": kind.kind, "name": clean(kind.name), "pid": pid, "tid": tid})
                before[k] = b",\n" + head[:-1] + b',"ts":'
            pieces = [b',"dur":'] * (5 * len(kinds))  # of each event five, put together once
            pieces[0::5] = [before[k] for k in kinds]
            pieces[1::5] = _micros(track.start, encode)
            pieces[3::5] = _micros(track.end - track.start, encode)
            pieces[4::5] = [facts[k] for k in kinds]
            written += pieces
    except UnicodeEncodeError as error:
        raise half_a_character(error) from None
    written[:1] = [b"{", fields, b'"traceEvents":[', *(first[2:] for first in written[:1])]  # no comma before the first
    written.append(b"]}")
    return b"".join(written).decode("utf-8", "replace")  # what stands as a file had it may be no UTF-8


def _json_value(value: Any) -> Any:
    """Return what JSON can hold for something that an event was given to say: a number, else how it prints."""
    return value.item() if isinstance(value, np.generic) else str(value)


def to_speedscope(trace: Trace) -> str:
    """Return the trace in speedscope's own format: opening and closing events that balance and never go back in time."""
    frames: dict[str, int] = {}
    profiles = []
    events = trace.columns()
    threads = tracks(trace, events)
    latest = max((track.inner_end.max() for track in threads), default=0)
    origin = min(int(track.start[0]) for track in threads) if latest >= EXACT else 0  # its numbers are floats
    for track in threads:
        kinds = track.kind.tolist()
        frame_of = {k: frames.setdefault(clean(events.kinds[k].name), len(frames)) for k in dict.fromkeys(kinds)}
        marks: list[str] = []
        stack: list[str] = []  # how what is open will close
        columns = kinds, (track.start - origin).tolist(), (track.inner_end - origin).tolist(), track.depth.tolist()
        for k, start, end, depth in zip(*columns, strict=True):
            while len(stack) > depth:
                marks.append(stack.pop())
            frame = frame_of[k]
            marks.append(f'{{"type":"O","frame":{frame},"at":{start}}}')
            stack.append(f'{{"type":"C","frame":{frame},"at":{end}}}')
        marks += reversed(stack)
        first, last = int(track.start[0]) - origin, int(track.inner_end[track.depth == 0][-1]) - origin
        head = {"type": "evented", "name": clean(track.name), "unit": "nanoseconds"}
        events_json = msgspec.Raw(f"[{','.join(marks)}]".encode())
        profiles.append({**head, "startValue": first, "endValue": last, "events": events_json})
    shared = {"frames": [{"name": f} for f in frames]}
    file = {"$schema": SPEEDSCOPE, "shared": shared, "profiles": profiles, "exporter": "tensorlogic"}
    return msgspec.json.encode(file).decode()


def to_collapsed(trace: Trace) -> str:
    """Return the trace as collapsed stacks, ``frame;frame weight`` a line; weights are nanoseconds of a frame's own time."""
    weights: dict[str, int] = {}
    events = trace.columns()
    names = [frame_name(kind.name) for kind in events.kinds]
    outer = [first_frame(name) for name in names]
    for track in tracks(trace, events):
        path: list[str] = []  # the stack of each frame that is open
        columns = track.kind.tolist(), track.own().tolist(), track.depth.tolist()
        for k, own, depth in zip(*columns, strict=True):
            del path[depth:]
            here = f"{path[-1]};{names[k]}" if path else outer[k]
            weights[here] = weights.get(here, 0) + own
            path.append(here)
    return "\n".join(f"{stack} {weight}" for stack, weight in sorted(weights.items()) if weight > 0)
