"""Exports that their own readers accept, whatever names and times a trace has."""

import json
import re
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import lanes

import tensorlogic as tl
from tensorlogic.observe.trace_export import to_chrome, to_collapsed, to_speedscope

LINE = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")  # what flamegraph.pl accepts
SCHEMA = json.loads((Path(__file__).parent / "data" / "speedscope.schema.json").read_text(encoding="utf-8"))
ODD = [
    "a;b",
    "two\nlines",
    "naïve ☃",
    "",
    " ",
    "tab\there",
    'quo"te',
    "back\\slash",
    "null\x00",
    "\ud800 half",
    "x" * 10_000,
]


def event(name, start, end, thread=1, kind="step"):
    return tl.TraceEvent(name, kind, start, end, thread)


@pytest.fixture
def real():
    b = tl.GraphBuilder()
    e = b.input("edge", ("n", "n"), "bool")
    graph = b.build(path=b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, e, algebra="boolean"), e, combine="or"))
    with tl.trace() as t, tl.span("outer; with\nodd name"):
        for _ in range(3):
            tl.Executor().execute(graph, {"edge": np.eye(5, k=1, dtype=bool)})
    return t


def chrome_events(trace):
    return [e for e in json.loads(to_chrome(trace))["traceEvents"] if e["ph"] == "X"]


def check_speedscope(text):
    """Validate against the published schema, and as the reader does: balanced, never back in time."""
    file = json.loads(text)
    jsonschema.validate(file, SCHEMA)
    for profile in file["profiles"]:
        stack, at = [], profile["startValue"]
        for mark in profile["events"]:
            assert mark["at"] >= at
            at = mark["at"]
            assert 0 <= mark["frame"] < len(file["shared"]["frames"])
            if mark["type"] == "O":
                stack.append(mark["frame"])
            else:
                assert stack.pop() == mark["frame"]
        assert stack == []
        assert at <= profile["endValue"]
    return file


def test_chrome_parses_back(real):
    found, events = chrome_events(real), real.events()
    assert len(found) == len(events)
    assert sorted(round(e["dur"] * 1000) for e in found) == sorted(e.duration_ns for e in events)
    assert sorted(round(e["ts"] * 1000) for e in found) == sorted(e.start_ns for e in events)
    assert all(set(e) == {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"} for e in found)


def test_speedscope_is_valid(real):
    file = check_speedscope(to_speedscope(real))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    assert sum(m["type"] == "O" for p in file["profiles"] for m in p["events"]) == len(real)


def test_the_schema_refuses_what_is_wrong():
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"$schema": "x", "profiles": []}, SCHEMA)


def test_collapsed_lines_are_accepted_and_add_up(real):
    lines = to_collapsed(real).split("\n")
    assert all(LINE.match(line) for line in lines)
    outer = next(e for e in real.events() if e.name.startswith("outer"))
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == outer.duration_ns
    assert any(line.startswith("outer\\x3b with\\x0aodd name;fixpoint;round 1;einsum") for line in lines)


def test_empty():
    t = tl.Trace()
    assert json.loads(to_chrome(t))["traceEvents"] == []
    assert check_speedscope(to_speedscope(t))["profiles"] == []
    assert to_collapsed(t) == ""


def test_one_entry():
    t = tl.Trace([event("relu", 5, 9)])
    assert [(e["ts"], e["dur"]) for e in chrome_events(t)] == [(0.005, 0.004)]
    assert [m["at"] for m in check_speedscope(to_speedscope(t))["profiles"][0]["events"]] == [5, 9]
    assert to_collapsed(t) == "relu 4"


def test_overlaps_that_do_not_nest_get_a_lane_of_their_own():
    t = tl.Trace([event("a", 0, 10_000), event("b", 5_000, 15_000), event("c", 6_000, 7_000)], threads={1: "loop"})
    assert [(x.name, [n.event.name for n in x.events]) for x in lanes(t)] == [("loop", ["a", "c"]), ("loop (2)", ["b"])]
    assert sorted(e["dur"] for e in chrome_events(t)) == [1.0, 10.0, 10.0]
    check_speedscope(to_speedscope(t))
    assert to_collapsed(t).split("\n") == ["a 9000", "a;c 1000", "b 10000"]


def test_a_child_that_outlasts_its_parent_by_a_rounding_stays_inside():
    t = tl.Trace([event("parent", 0, 10_000), event("child", 2_000, 11_000)])
    assert to_collapsed(t).split("\n") == ["parent 2000", "parent;child 8000"]
    assert [e["dur"] for e in chrome_events(t)] == [10.0, 9.0], "the Chrome form keeps what was recorded"


def test_equal_times_and_no_time_at_all():
    t = tl.Trace([event("c", 5, 5), event("inner", 0, 9), event("outer", 0, 10), event("d", 5, 5)])
    assert [n.event.name for x in lanes(t) for n in x.events] == ["outer", "inner", "c", "d"]
    check_speedscope(to_speedscope(t))
    assert to_collapsed(t).split("\n") == ["outer 1", "outer;inner 9"]


def test_times_beyond_floats_stay_exact():
    start = 1_661_938_466_265_032_123
    t = tl.Trace([event("kernel", start, start + 7)])
    assert f'"ts":{start // 1000}.123' in to_chrome(t)
    assert [m["at"] for m in check_speedscope(to_speedscope(t))["profiles"][0]["events"]] == [0, 7]


@pytest.mark.parametrize("name", ODD, ids=ascii)
def test_odd_names(name):
    t = tl.Trace([event(name, 0, 5), event("inside", 1, 2)], threads={1: name})
    assert len(chrome_events(t)) == 2
    check_speedscope(to_speedscope(t))
    lines = to_collapsed(t).split("\n")
    assert len(lines) == 2
    assert all(LINE.match(line) for line in lines)
    assert [line.count(";") for line in lines] == [0, 1]
    for export in (to_chrome, to_speedscope, to_collapsed):
        export(t).encode()


def test_many_names():
    t = tl.Trace([event(f"op{n}", n, n + 1) for n in range(100_000)])
    assert len(chrome_events(t)) == 100_000
    assert len(json.loads(to_speedscope(t))["shared"]["frames"]) == 100_000
    assert to_collapsed(t).count("\n") == 99_999


times = st.tuples(st.integers(0, 5_000), st.integers(0, 5_000), st.integers(0, 2), st.sampled_from("abc;"))


@settings(max_examples=80, deadline=None)
@given(st.lists(times, max_size=20))
def test_any_times_in_any_order(rows):
    t = tl.Trace([event(name, start, start + took, thread) for start, took, thread, name in rows])
    assert sorted(round(e["dur"] * 1000) for e in chrome_events(t)) == sorted(took for _, took, _, _ in rows)
    check_speedscope(to_speedscope(t))
    for lane in lanes(t):
        ends = []
        for n in lane.events:
            del ends[n.depth :]
            assert not ends or n.end_ns <= ends[-1]
            assert n.end_ns >= n.event.start_ns
            ends.append(n.end_ns)
    own = sum(int(line.rsplit(" ", 1)[1]) for line in to_collapsed(t).split("\n") if line)
    assert own == sum(n.end_ns - n.event.start_ns for x in lanes(t) for n in x.events if n.depth == 0)


def test_what_events_say_is_written_as_far_as_json_can():
    said = {"loss": np.float32(0.5), "where": Path("a"), "n": 3}
    t = tl.Trace([tl.TraceEvent("a", "step", 0, 5, 1, None, said)])
    assert json.loads(to_chrome(t))["traceEvents"][-1]["args"] == {"loss": 0.5, "where": "a", "n": 3}


def test_half_a_character_is_a_clear_error():
    t = tl.Trace([tl.TraceEvent("a", "step", 0, 5, 1, None, {"name": "\ud800 half"})])
    with pytest.raises(tl.FormatError, match="holds half a character"):
        to_chrome(t)
    with pytest.raises(tl.FormatError, match="holds half a character"):
        tl.RecordedExecutionTrace([tl.RecordedTraceEntry(0, "\ud800 half")]).to_json()


def test_durations_that_add_up_to_more_than_a_float_holds_are_no_json():
    trace = tl.RecordedExecutionTrace([tl.RecordedTraceEntry(n, "a", duration_us=1e308) for n in range(2)])
    with pytest.raises(tl.FormatError, match="the durations add up to inf, which JSON cannot hold"):
        trace.to_json()
