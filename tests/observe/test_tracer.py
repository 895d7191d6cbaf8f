"""The tracer: real runs and operations told by hand."""

import inspect
import itertools
import subprocess
import sys
import threading

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import debug
from tensorlogic.debug import ExecutionTracer, watching


def layer():
    b = tl.GraphBuilder()
    return b.build(y=b.relu(b.input("x", ("n", 3)) @ b.input("w", (3, 2))))


def closure():
    b = tl.GraphBuilder()
    e = b.input("edge", ("n", "n"), "bool")
    return b.build(path=b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, e, algebra="boolean"), e, combine="or"))


INPUTS = {"x": np.ones((4, 3)), "w": np.ones((3, 2))}


@pytest.fixture
def tracer():
    made = ExecutionTracer()
    made.enable()
    return made


@pytest.mark.parametrize("name", sorted(debug.__all__))
def test_every_name_of_the_module_has_an_example(name):
    doc = inspect.getdoc(getattr(debug, name)) or ""
    assert doc.split("\n")[0].endswith("."), f"{name} has no opening sentence"
    assert ">>>" in doc, f"{name} has no example"


def test_a_run_is_recorded_step_by_step(tracer):
    ex = tl.Executor(context=tl.ExecutionContext([tracer]))
    ex.execute(layer(), INPUTS)
    entries = tracer.get_trace().entries
    assert [(e.node_id, e.operation, e.input_ids, e.output_ids) for e in entries] == [
        (2, "einsum ij,jk->ik", (0, 1), (2,)),
        (3, "relu", (2,), (3,)),
    ]
    assert entries[0].metadata["outputs"] == ["float64[4, 2]"]
    assert all(a.end_ns <= b.start_ns for a, b in itertools.pairwise(entries))
    assert [s.node for s in ex.plan(layer(), INPUTS).steps] == [e.node_id for e in entries], "nodes are the plan's"


def test_it_is_off_until_enabled_and_starts_anew():
    tracer = ExecutionTracer()
    ex = tl.Executor(context=tl.ExecutionContext([tracer]))
    ex.execute(layer(), INPUTS)
    assert tracer.record_operation_start(1, "relu", []) == 0
    tracer.record_operation_end(0, 1, "relu", [], [], {})
    assert tracer.get_trace().entries == ()
    tracer.enable()
    ex.execute(layer(), INPUTS)
    tracer.disable()
    ex.execute(layer(), INPUTS)
    assert tracer.get_trace().summary().total_operations == 2
    tracer.start_trace("again")
    assert tracer.get_trace() == ("again", ())


def test_rounds_of_a_body_count_once_in_the_total(tracer):
    with watching(tracer):
        tl.Executor().execute(closure(), {"edge": np.eye(5, k=1, dtype=bool)})
    trace = tracer.get_trace()
    outer = [e for e in trace.entries if not e.body]
    assert [e.operation for e in outer] == ["fixpoint"]
    rounds = [e for e in trace.entries if e.body]
    assert len(rounds) == 4
    assert all(outer[0].start_ns <= e.start_ns and e.end_ns <= outer[0].end_ns for e in rounds)
    summary = trace.summary()
    assert summary.total_time_ms == outer[0].duration_ms()
    assert summary.operations["einsum xy,yz->xz (boolean)"].count == 4
    assert summary.total_operations == 5


def test_by_hand_with_a_clock_of_ones_own(golden):
    ticks = iter([0, 5_000_000, 6_000_000, 7_000_000, 10_000_000, 11_000_000, 12_000_000])
    tracer = ExecutionTracer(clock=ticks.__next__)
    tracer.enable()
    tracer.start_trace(7)
    for node, op in ((2, "einsum"), (3, "relu"), (4, "einsum")):
        handle = tracer.record_operation_start(node, op, [0, 1])
        tracer.record_operation_end(handle, node, op, [0, 1], [node], {"algebra": "real"})
    trace = tracer.get_trace()
    assert trace.graph_id == 7
    assert [e.node_id for e in trace.slowest_operations(2)] == [2, 3]
    assert trace.slowest_operations(0) == []
    assert trace.entries[0].metadata == {"algebra": "real"}
    golden("debug_trace.txt", f"{trace}\n\n{trace.summary()}\n")
    with pytest.raises(tl.InputError, match="no operation with the handle 1 is running"):
        tracer.record_operation_end(1, 2, "einsum")


def test_operations_by_hand_may_overlap():
    tracer = ExecutionTracer(clock=iter([0, 1, 2, 3]).__next__)
    tracer.enable()
    outer = tracer.record_operation_start(1, "outer")
    inner = tracer.record_operation_start(2, "inner")
    tracer.record_operation_end(inner, 2, "inner")
    tracer.record_operation_end(outer, 1, "outer")
    assert [(e.operation, e.start_ns, e.end_ns) for e in tracer.get_trace().entries] == [
        ("outer", 0, 3),
        ("inner", 1, 2),
    ]


def test_an_empty_trace_prints(tracer):
    assert str(tracer.get_trace()) == "trace: 0 operations, 0.000 ms"
    assert "&lt;" not in tracer.get_trace()._repr_html_()


def test_several_threads(tracer):
    graph, ex = layer(), tl.Executor(context=tl.ExecutionContext([tracer]))

    def work():
        for n in range(20):
            ex.execute(graph, INPUTS)
            handle = tracer.record_operation_start(n, "by hand")
            tracer.record_operation_end(handle, n, "by hand")

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    summary = tracer.get_trace().summary()
    assert {name: s.count for name, s in summary.operations.items()} == {
        "einsum ij,jk->ik": 80, "relu": 80, "by hand": 80,
    }  # fmt: skip


def test_debug_is_at_hand():
    code = "import tensorlogic as tl; print(tl.debug.ExecutionTracer.__name__)"  # where nothing imported it yet
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "ExecutionTracer\n"
