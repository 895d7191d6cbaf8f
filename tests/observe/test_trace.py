"""Tracing real runs, and exports that their readers accept."""

import itertools
import json
import re
import threading

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.observe.export import to_chrome, to_collapsed, to_speedscope

LINE = re.compile(r"^(.*)\s+?(\d+(?:\.\d*)?)$")  # what flamegraph.pl accepts


def layer():
    b = tl.GraphBuilder()
    return b.build(y=b.relu(b.input("x", ("n", 3), "float32") @ b.input("w", (3, 2), "float32")))


def closure():
    b = tl.GraphBuilder()
    e = b.input("edge", ("n", "n"), "bool")
    return b.build(path=b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, e, algebra="boolean"), e, combine="or"))


INPUTS = {"x": np.ones((4, 3), "float32"), "w": np.ones((3, 2), "float32")}


@pytest.fixture
def traced():
    ex = tl.Executor()
    with tl.trace() as t, tl.span("outer; with\nodd name"):
        ex.execute(layer(), INPUTS)
        ex.execute(layer(), INPUTS)
        ex.execute(closure(), {"edge": np.eye(5, k=1, dtype=bool)})
    return t


def test_every_step_and_span_is_there(traced):
    events = traced.events()
    names = [e.name for e in events]
    assert names.count("einsum ij,jk->ik") == names.count("relu") == 2
    assert names.count("plan") == 2, "the second run of a graph finds its plan"
    assert names.count("einsum xy,yz->xz (boolean)") == 4, "rounds of a fixpoint are steps too"
    assert all(a.start_ns <= b.start_ns for a, b in itertools.pairwise(events))
    relu = next(e for e in events if e.name == "relu")
    facts = relu.facts()
    assert facts["outputs"] == ["float32[4, 2]"]
    assert facts["bytes"] == 32
    assert facts["device"] == "cpu:0"
    assert "test_trace.py" in facts["source"]


def test_nothing_is_recorded_outside():
    with tl.trace() as t:
        pass
    tl.Executor().execute(layer(), INPUTS)
    assert len(t) == 0
    assert t.events() == []
    for export in (to_chrome, to_speedscope, to_collapsed):
        export(t)


def test_threads_are_told_apart():
    ex = tl.Executor()
    graph = layer()
    with tl.trace() as t:
        threads = [threading.Thread(target=ex.execute, args=(graph, INPUTS)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([e for e in t.events() if e.name == "relu"]) == 4
    assert len(json.loads(to_speedscope(t))["profiles"]) == len({e.thread for e in t.events()})


def test_a_failing_run_keeps_its_steps():
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "int64")
    graph = b.build(y=b.gather(x, x + 1))
    with tl.trace() as t, pytest.raises(tl.ExecutionError):
        tl.Executor().execute(graph, {"x": [5, 6, 7]})
    assert [e.name for e in t.events() if e.kind == "step"] == ["add"]


def test_recorded(traced):
    recorded = traced.to_recorded()
    steps = [e for e in traced.events() if e.kind == "step"]
    assert recorded.step_count() == len(steps)
    assert [e.step for e in recorded.entries] == list(range(len(steps)))
    assert recorded.total_duration_us == pytest.approx(sum(e.duration_ns for e in steps) / 1e3)
    first = recorded.entries[0]
    assert (first.operation, first.device_id, first.input_shapes, first.output_shape, first.memory_bytes) == (
        "einsum ij,jk->ik", "cpu:0", [(4, 3), (3, 2)], (4, 2), 32,
    )  # fmt: skip
    assert tl.TraceAnalyzer.operation_summary(recorded)["relu"].count == 2


def test_chrome_parses_back(traced):
    found = [e for e in json.loads(to_chrome(traced))["traceEvents"] if e["ph"] == "X"]
    events = traced.events()
    assert len(found) == len(events)
    assert sum(e["dur"] for e in found) == pytest.approx(sum(e.duration_ns for e in events) / 1e3)
    assert all(set(e) == {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"} for e in found)


def test_speedscope_is_balanced_and_never_goes_back(traced):
    file = json.loads(to_speedscope(traced))
    assert file["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    for profile in file["profiles"]:
        assert profile["type"] == "evented"
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


def test_collapsed_lines_are_accepted_and_add_up(traced):
    lines = to_collapsed(traced).split("\n")
    assert all(LINE.match(line) for line in lines)
    outer = next(e for e in traced.events() if e.name.startswith("outer"))
    assert sum(int(line.rsplit(" ", 1)[1]) for line in lines) == outer.duration_ns
    assert any(line.startswith("outer\\x3b with\\x0aodd name;fixpoint;einsum") for line in lines)


def test_it_prints_and_saves(traced, tmp_path):
    text = str(traced)
    assert text.splitlines()[0].split() == ["operation", "count", "total", "ms", "mean", "µs", "max", "µs", "share"]
    for name, start in (
        ("t.json", '{"displayTimeUnit"'),
        ("t.speedscope.json", '{"$schema"'),
        ("t.collapsed", "outer"),
    ):
        traced.save(tmp_path / name)
        assert (tmp_path / name).read_text().startswith(start)
