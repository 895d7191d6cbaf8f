"""Traces for viewers: Chrome and Perfetto, speedscope, and collapsed stacks for flame graphs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError
from .analyze import frame_name

if TYPE_CHECKING:
    from .trace import EventColumns, Trace, TraceEvent

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


class Track(NamedTuple):
    """A lane in columns, which say of each event what it is, when it was, and what encloses it."""

    name: str
    thread: int
    which: NDArray[np.intp]  # the number of its head
    starts: NDArray[Any]
    ends: NDArray[Any]
    cut: NDArray[Any]  # the end that its surroundings allow
    depths: NDArray[np.intp]
    around: NDArray[np.intp]  # the place in the track of what encloses it, -1 where nothing does

    def own(self) -> NDArray[Any]:
        """Return the nanoseconds each event spent outside of those inside of it."""
        took: NDArray[Any] = self.cut - self.starts
        inner = np.flatnonzero(self.around >= 0)
        np.subtract.at(took, self.around[inner], (self.cut - self.starts)[inner])
        return took


def tracks(trace: Trace) -> tuple[list[TraceEvent], list[Track]]:
    """Return what there is to say of events, and the threads; events that overlap without nesting go to tracks of their own."""
    found = trace.columns()
    made: list[Track] = []
    _, first = np.unique(found.threads, return_index=True)
    for at in np.sort(first).tolist():
        number = found.threads[at]
        rest = np.flatnonzero(found.threads == number)
        thread = found.idents[number]
        name, count = trace.thread_name(thread), 0
        while len(rest):
            count += 1
            track, rest = _nest(found, rest, name if count == 1 else f"{name} ({count})", thread)
            made.append(track)
    return found.heads, made


def lanes(trace: Trace) -> Iterator[Lane]:
    """Go through the threads as objects, one an event; :func:`tracks` has the same in columns."""
    from .trace import TraceEvent

    heads, found = tracks(trace)
    for t in found:
        events = []
        columns = (t.which.tolist(), t.starts.tolist(), t.ends.tolist(), t.cut.tolist(), t.depths.tolist())
        for w, start, end, cut, depth in zip(*columns, strict=True):
            head = heads[w]
            event = head if head.step is None else TraceEvent(head.name, head.kind, start, end, t.thread, head.step)
            events.append(Nested(event, cut, depth))
        yield Lane(t.name, t.thread, events)


def _nest(found: EventColumns, places: NDArray[np.intp], name: str, thread: int) -> tuple[Track, NDArray[np.intp]]:
    """Place events, sorted by start, inside one another; what would stick out is left over."""
    starts, ends = found.starts[places], found.ends[places]
    if bool(np.all(starts[1:] >= ends[:-1])):  # one after another: nothing nests
        flat = np.zeros(len(places), np.intp)
        return Track(name, thread, found.which[places], starts, ends, ends, flat, flat - 1), places[:0]
    kept: list[int] = []
    left: list[int] = []
    cut: list[int] = []
    depths: list[int] = []
    around: list[int] = []
    open_ends: list[int] = []
    opened: list[int] = []
    for n, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
            opened.pop()
        if open_ends and end > open_ends[-1]:
            if end > open_ends[-1] + SLACK_NS:
                left.append(n)
                continue
            end = open_ends[-1]
        depths.append(len(open_ends))
        around.append(opened[-1] if opened else -1)
        open_ends.append(end)
        opened.append(len(kept))
        kept.append(n)
        cut.append(end)
    track = Track(
        name, thread, found.which[places][kept], starts[kept], ends[kept], np.array(cut, starts.dtype),
        np.array(depths, np.intp), np.array(around, np.intp),
    )  # fmt: skip
    return track, places[left]


def clean(name: str) -> str:
    """Return a name that UTF-8 can hold: halves of surrogate pairs become question marks."""
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


def _micro(ns: int) -> float | Decimal:
    """Return nanoseconds as microseconds, without loss."""
    return ns / 1e3 if -EXACT < ns < EXACT else Decimal(ns).scaleb(-3)


def _micros(times: NDArray[Any], encode: Any) -> list[bytes]:
    """Return times as JSON writes them, in microseconds."""
    near = times.dtype != object and bool(np.all(np.abs(times) < EXACT))
    values: Sequence[Any] = (times / 1e3).tolist() if near else [_micro(ns) for ns in times.tolist()]
    text: bytes = encode(values)
    return text[1:-1].split(b",")


def to_chrome(trace: Trace) -> str:
    """Return the trace as Chrome trace JSON, which Perfetto reads too; times are microseconds with nanoseconds behind the point."""
    encode = msgspec.json.Encoder(decimal_format="number", enc_hook=_told).encode
    written: list[bytes] = [b'{"displayTimeUnit":"ns","traceEvents":[']
    facts: dict[int, bytes] = {}  # what is said of a step, written once for all of its runs
    heads, found = tracks(trace)
    try:
        for number, track in enumerate(found):
            name = {"name": clean(track.name)}
            meta = {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": name}
            written.append((b",\n" if number else b"") + encode(meta))
            which = track.which.tolist()
            before: dict[int, bytes] = {}
            for w in dict.fromkeys(which):
                head = heads[w]
                if w not in facts:
                    facts[w] = b',"args":' + encode(head.facts()) + b"}"
                said = encode({"ph": "X", "cat": head.kind, "name": clean(head.name), "pid": 1, "tid": number})
                before[w] = b",\n" + said[:-1] + b',"ts":'
            pieces = [b',"dur":'] * (5 * len(which))  # of each event five, put together once
            pieces[0::5] = [before[w] for w in which]
            pieces[1::5] = _micros(track.starts, encode)
            pieces[3::5] = _micros(track.ends - track.starts, encode)
            pieces[4::5] = [facts[w] for w in which]
            written += pieces
    except UnicodeEncodeError as error:
        raise FormatError(f"the text {error.object!r} holds half a character, which JSON cannot", code="E703") from None
    written.append(b"]}")
    return b"".join(written).decode()


def _told(value: Any) -> Any:
    """Return what JSON can hold for something that an event was given to say: a number, else how it prints."""
    return value.item() if isinstance(value, np.generic) else str(value)


def to_speedscope(trace: Trace) -> str:
    """Return the trace in speedscope's own format: opening and closing events that balance and never go back in time.

    Times that are too large for its numbers count from the first event.
    """
    frames: dict[str, int] = {}
    profiles = []
    heads, found = tracks(trace)
    ends = [track.cut.max() for track in found]
    origin = min(int(track.starts[0]) for track in found) if max(ends, default=0) >= EXACT else 0
    for track in found:
        which = track.which.tolist()
        frame_of = {w: frames.setdefault(clean(heads[w].name), len(frames)) for w in dict.fromkeys(which)}
        marks: list[str] = []
        stack: list[str] = []  # how what is open will close
        columns = which, (track.starts - origin).tolist(), (track.cut - origin).tolist(), track.depths.tolist()
        for w, start, end, depth in zip(*columns, strict=True):
            while len(stack) > depth:
                marks.append(stack.pop())
            frame = frame_of[w]
            marks.append(f'{{"type":"O","frame":{frame},"at":{start}}}')
            stack.append(f'{{"type":"C","frame":{frame},"at":{end}}}')
        marks += reversed(stack)
        last = int(track.cut[track.depths == 0][-1]) - origin
        profiles.append({
            "type": "evented", "name": clean(track.name), "unit": "nanoseconds", "startValue": int(track.starts[0]) - origin,
            "endValue": last, "events": msgspec.Raw(f"[{','.join(marks)}]".encode()),
        })  # fmt: skip
    return msgspec.json.encode({
        "$schema": SPEEDSCOPE, "shared": {"frames": [{"name": f} for f in frames]}, "profiles": profiles,
        "exporter": "tensorlogic",
    }).decode()  # fmt: skip


def to_collapsed(trace: Trace) -> str:
    """Return the trace as collapsed stacks, ``frame;frame weight`` a line; weights are nanoseconds of a frame's own time."""
    weights: dict[str, int] = {}
    heads, found = tracks(trace)
    names = [frame_name(head.name) for head in heads]
    for track in found:
        path: list[str] = []  # the stack of each frame that is open
        columns = track.which.tolist(), track.own().tolist(), track.depths.tolist()
        for w, own, depth in zip(*columns, strict=True):
            del path[depth:]
            here = f"{path[-1]};{names[w]}" if path else names[w]
            weights[here] = weights.get(here, 0) + own
            path.append(here)
    return "\n".join(f"{stack} {weight}" for stack, weight in sorted(weights.items()) if weight > 0)
