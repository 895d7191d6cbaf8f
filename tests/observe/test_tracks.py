"""Exports from columns say byte for byte what the same code says that goes through an object an event."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import lanes, own_times

import tensorlogic as tl
from tensorlogic.observe import tracks as tracks_module
from tensorlogic.observe.analyze import frame_name
from tensorlogic.observe.compare_traces import totals
from tensorlogic.observe.trace import Trace, TraceEvent
from tensorlogic.observe.trace_export import EXACT, SPEEDSCOPE, clean, to_chrome, to_collapsed, to_speedscope
from tensorlogic.observe.tracks import SLACK_NS, Track, first_fit, tracks


def micro(ns: int) -> float | Decimal:
    return ns / 1e3 if -EXACT < ns < EXACT else Decimal(ns).scaleb(-3)


def chrome(trace: Trace) -> str:
    encode = msgspec.json.Encoder(decimal_format="number").encode
    lines = []
    for number, lane in enumerate(lanes(trace)):
        meta: dict[str, Any] = {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": lane.name}}
        lines.append(encode(meta))
        for event, _, _ in lane.events:
            lines.append(encode({
                "ph": "X", "cat": event.kind, "name": clean(event.name), "pid": 1, "tid": number,
                "ts": micro(event.start_ns), "dur": micro(event.duration_ns), "args": event.facts(),
            }))  # fmt: skip
    return '{"displayTimeUnit":"ns","traceEvents":[' + b",\n".join(lines).decode() + "]}"


def speedscope(trace: Trace) -> str:
    frames: dict[str, int] = {}
    every = list(lanes(trace))
    latest = max((n.end_ns for lane in every for n in lane.events), default=0)
    origin = min(lane.events[0].event.start_ns for lane in every) if latest >= EXACT else 0
    profiles = []
    for lane in every:
        marks: list[dict[str, Any]] = []
        stack: list[tuple[int, int]] = []
        for event, end, depth in [*lane.events, (None, 0, 0)]:
            while len(stack) > depth:
                frame, at = stack.pop()
                marks.append({"type": "C", "frame": frame, "at": at - origin})
            if event is not None:
                frame = frames.setdefault(clean(event.name), len(frames))
                marks.append({"type": "O", "frame": frame, "at": event.start_ns - origin})
                stack.append((frame, end))
        profiles.append({
            "type": "evented", "name": lane.name, "unit": "nanoseconds", "startValue": marks[0]["at"],
            "endValue": marks[-1]["at"], "events": marks,
        })  # fmt: skip
    return msgspec.json.encode({
        "$schema": SPEEDSCOPE, "shared": {"frames": [{"name": f} for f in frames]}, "profiles": profiles,
        "exporter": "tensorlogic",
    }).decode()  # fmt: skip


def collapsed(trace: Trace) -> str:
    weights: dict[str, int] = {}
    for lane in lanes(trace):
        path: list[str] = []
        for event, end, depth in lane.events:
            del path[depth:]
            here = ";".join([*path[-1:], frame_name(event.name)])
            weights[here] = weights.get(here, 0) + end - event.start_ns
            if path:
                weights[path[-1]] -= end - event.start_ns
            path.append(here)
    return "\n".join(f"{stack} {weight}" for stack, weight in sorted(weights.items()) if weight > 0)


def latest(events: list[TraceEvent]) -> dict[int, int]:
    own = {id(e): 0 for e in events}
    moments = sorted({t for e in events for t in (e.start_ns, e.end_ns)})
    for start, end in pairwise(moments):
        under_way = [e for e in events if e.start_ns <= start and e.end_ns >= end]
        if under_way:
            own[id(under_way[-1])] += end - start
    return own


def sums(trace: Trace, by: Callable[[TraceEvent], Any], kind: str | None) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    order, several = trace.events(), Counter(lane.thread for lane in lanes(trace))
    for lane in lanes(trace):
        own = {id(event): own for event, own in own_times(lane)}
        if several[lane.thread] > 1:  # a moment belongs to the event that began last
            own = latest([e for e in order if e.thread == lane.thread])
        path: list[Any] = []
        for event, _, depth in lane.events:
            del path[depth:]
            shown = event.kind == kind if kind is not None else event.kind != "span"
            if shown:
                row = found.setdefault(by(event), [0, 0, 0, 0, 0])
                took = event.duration_ns
                first = 0 if by(event) in path else took
                row[:] = row[0] + 1, row[1] + first, row[2] + own[id(event)], max(row[3], took), row[4] + took
            path.append(by(event) if shown else None)
    return found


def busy(trace: Trace, kind: str | None) -> dict[Any, int]:
    """Return how long any of the events ran on the threads of each name; those that overlap count once."""
    found: dict[Any, int] = {}
    for thread in {event.thread for event in trace.events()}:
        own = [n for lane in lanes(trace) if lane.thread == thread for n in lane.events]
        spans = [n for n in own if (n.event.kind == kind if kind is not None else n.event.kind != "span")]
        moments = sorted({t for n in spans for t in (n.event.start_ns, n.end_ns)})
        name = trace.thread_name(thread), ""
        for start, end in pairwise(moments):
            if any(n.event.start_ns <= start and n.end_ns >= end for n in spans):
                found[name] = found.get(name, 0) + end - start
    return found


def check(trace: Trace) -> None:
    assert to_chrome(trace) == chrome(trace)
    assert to_speedscope(trace) == speedscope(trace)
    assert to_collapsed(trace) == collapsed(trace)
    ways: dict[str, Callable[[TraceEvent], tuple[str, str]]] = {
        "operation": lambda e: (e.name, e.kind),
        "device": lambda e: (e.device or "unknown", ""),
        "thread": lambda e: (trace.thread_name(e.thread), ""),
    }
    for by, name in ways.items():
        for kind in (None, "span", "step"):
            rows = {
                (t.name, t.kind): [
                    t.count,
                    t.total_ns,
                    t.self_ns,
                    t.max_ns,
                    t.total_ns if t.sum_ns is None else t.sum_ns,
                ]
                for t in totals(trace, by=by, kind=kind)
            }
            expected = sums(trace, name, kind)
            if by == "thread":
                for thread, row in expected.items():
                    row[1] = busy(trace, kind).get(thread, 0)
            assert rows == expected
            assert all(type(n) is int for row in rows.values() for n in row)
    events = sorted(trace.events(), key=lambda e: (e.thread, e.start_ns, e.end_ns, e.name, e.kind))
    again = [n.event for lane in lanes(trace) for n in lane.events]
    assert sorted(again, key=lambda e: (e.thread, e.start_ns, e.end_ns, e.name, e.kind)) == events


SCALES = [1, 1000, 10**9, 10**15, 10**19, 10**24]  # from nanoseconds to beyond 64 bits


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    scale = draw(st.sampled_from(SCALES))
    events = []
    for _ in range(draw(st.integers(0, 25))):
        start = draw(st.integers(-5, 60)) * scale
        end = start + draw(st.integers(0, 30)) * draw(st.sampled_from([1, scale]))
        args = draw(st.sampled_from([None, {"device": 0}, {"device": "gpu:1", "k": [1, 2.5, "é"]}]))
        name, kind = draw(st.sampled_from(["relu", "a;b", "☃\n"])), draw(st.sampled_from(["step", "span", "cpu_op"]))
        events.append(TraceEvent(name, kind, start, end, draw(st.sampled_from([1, 2, 10**20])), None, args))
    return Trace(events, threads={1: "main", 2: "né"})


@settings(deadline=None, max_examples=150)
@given(traces())
def test_whatever_is_in_a_trace(trace: Trace):
    check(trace)


@pytest.fixture
def real() -> Trace:
    b = tl.GraphBuilder()
    e, x = b.input("edge", ("n", "n"), "bool"), b.input("x", (4, 4), "float32")
    loop = b.build(path=b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, e, algebra="boolean"), e, combine="or"))
    plain = b.build(y=b.relu(b.exp(x) @ x) + 1)
    executor = tl.Executor()
    with tl.trace() as trace, tl.span("outer"):
        for _ in range(4):
            executor.execute(loop, {"edge": np.eye(5, k=1, dtype=bool)})
            executor.execute(plain, {"x": np.ones((4, 4), "f4")})
    return trace


def test_real_runs(real: Trace):
    check(real)


def test_runs_beside_events_of_a_file(real: Trace):
    steps, loose = len(real.runs()), len(real.spans)
    real.spans.append(TraceEvent("far away", "span", 10**30, 10**30 + 5, 7))
    assert real.columns().start.dtype == object  # such times do not fit 64 bits
    assert (len(real.runs()), len(real.spans)) == (steps, loose + 1)
    check(real)


def test_steps_are_said_once_and_nothing_nests_where_they_follow_each_other(real: Trace):
    assert len(real.columns().kinds) < len(real)
    assert sum(len(track.kind) for track in tracks(real)) == len(real)
    flat = Trace([TraceEvent("a", "step", n, n + 1, 1) for n in range(5)])
    (track,) = tracks(flat)
    assert track.depth.tolist() == [0] * 5
    assert track.around.tolist() == [-1] * 5
    assert track.own().tolist() == [1] * 5
    (inner,) = tracks(Trace([TraceEvent("a", "step", 0, 9, 1), TraceEvent("b", "step", 2, 6, 1)]))
    assert inner.around.tolist() == [-1, 0]
    assert inner.own().tolist() == [5, 4]


def one_track_after_the_other(starts: list[int], ends: list[int]) -> list[int]:
    """Return what :func:`first_fit` does, by going through the events that are left once for each track."""
    number, rest, track = [0] * len(starts), list(range(len(starts))), 0
    while rest:
        others, stack = [], list[int]()
        for n in rest:
            while stack and stack[-1] <= starts[n]:
                stack.pop()
            if stack and ends[n] > stack[-1] + SLACK_NS:
                others.append(n)
            else:
                stack.append(min([ends[n], *stack[-1:]]))
                number[n] = track
        rest, track = others, track + 1
    return number


@settings(deadline=None, max_examples=300)
@given(
    st.lists(st.tuples(st.integers(-5, 60), st.integers(0, 30)), max_size=40),
    st.sampled_from([1, 100, 700, 10**6, 10**25]),
)
def test_events_that_overlap_are_on_the_first_track_that_takes_them(times, scale):
    times = sorted(((start * scale, (start + took) * scale) for start, took in times), key=lambda t: (t[0], -t[1]))
    starts, ends = [start for start, _ in times], [end for _, end in times]
    assert first_fit(starts, ends) == one_track_after_the_other(starts, ends)


def counted(name: str) -> Any:
    def compare(one: Counting, other: object) -> Any:
        Counting.compared += 1
        return getattr(int, name)(one, other)

    return compare


class Counting(int):
    """A number that counts how often such are compared."""

    compared = 0
    __lt__, __le__, __gt__, __ge__, __eq__ = map(counted, ("__lt__", "__le__", "__gt__", "__ge__", "__eq__"))
    __hash__ = int.__hash__

    def __add__(self, other: int) -> Counting:
        return Counting(int(self) + other)


@pytest.mark.parametrize("step", [1, 10, SLACK_NS])
def test_many_events_that_all_overlap_take_little_work(step, monkeypatch):
    n = 4000
    starts, ends = ([Counting((k + more) * step) for k in range(n)] for more in (0, n))
    Counting.compared = 0
    number = first_fit(starts, ends)
    assert max(number) + 1 == -(-n // (SLACK_NS // step + 1))
    assert Counting.compared < 60 * n  # by going through the rest for each track up to 4 million
    trace = Trace([TraceEvent("a", "step", int(s), int(e), 1) for s, e in zip(starts, ends, strict=True)])
    placed, nest = [], tracks_module._nest
    monkeypatch.setattr(tracks_module, "_nest", lambda *given: placed.append(len(given[1])) or nest(*given))
    found = tracks(trace)
    assert (sum(len(track.row) for track in found), sum(placed) <= 2 * n) == (n, True)
    assert [track.name for track in found[:3]] == ["thread 1", "thread 1 (2)", "thread 1 (3)"][: len(found)]


def test_events_inside_of_many_are_not_sought_among_all_of_them():
    n = 3000
    (track,) = tracks(Trace([TraceEvent(f"op{k}", "step", k, 10 * n - k, 1) for k in range(n)]))
    groups = np.array([Counting(k) for k in [*range(n - 1), 0]], object)
    Counting.compared = 0
    alone = Track.outermost(track, groups)
    assert alone.tolist() == [True] * (n - 1) + [False]
    assert Counting.compared < 10 * n


def test_an_empty_trace():
    assert tracks(Trace()) == []
    check(Trace())
