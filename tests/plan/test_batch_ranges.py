"""Ranges of a batch on threads within a plan: the same answers, what is added up and what comes after, and donated arrays."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir.types import TensorType
from tensorlogic.plan.batch_ranges import batch_on_threads
from tensorlogic.plan.build import ExecutionPlan, lay_out
from tensorlogic.runtime.call import call
from tensorlogic.runtime.program import bind


def network(rows: int, hidden: int = 24) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    """The loss of a network, its gradients and an output with a row for each example."""
    b = tl.GraphBuilder()
    x, labels = b.input("x", (rows, 12), "float32"), b.input("labels", (rows,), "int64")
    w, c = b.input("w", (12, hidden), "float32"), b.input("c", (hidden,), "float32")
    v = b.input("v", (hidden, 3), "float32")
    loss = b.build(loss=b.cross_entropy(b.tanh(b.linear(x, w, c)) @ v, labels))
    rng = np.random.default_rng(rows)
    inputs = {name: rng.normal(size=shape).astype("float32") for name, shape in
              {"x": (rows, 12), "w": (12, hidden), "c": (hidden,), "v": (hidden, 3)}.items()}  # fmt: skip
    return tl.value_and_grad(loss, wrt=["w", "c", "v"]), {**inputs, "labels": rng.integers(0, 3, rows)}


def convolution(rows: int) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    b = tl.GraphBuilder()
    x, w = b.input("x", (rows, 6, 6, 2), "float32"), b.input("w", (3, 3, 2, 4), "float32")
    h = b.max_pool(b.relu(b.conv(x, w, padding="same")), 2)
    rng = np.random.default_rng(rows)
    inputs = {
        "x": rng.normal(size=(rows, 6, 6, 2)).astype("float32"),
        "w": rng.normal(size=(3, 3, 2, 4)).astype("float32"),
    }
    return tl.value_and_grad(b.build(loss=b.mean(b.square(h)), h=h), wrt=["w"], of="loss"), inputs


def ranged(graph: tl.EinsumGraph, inputs: dict[str, Any], donate: frozenset[str] = frozenset()) -> list[ExecutionPlan]:
    """The plan on two threads, on NumPy's kernels alone."""
    executor = tl.Executor()
    types = {name: TensorType.of(inputs[name]) for name in graph.inputs}
    concrete = executor.programs._concrete(graph, types, None, True)
    return batch_on_threads(lay_out(concrete, in_place=True), 2, lambda g, taken: [], donate)


@pytest.mark.parametrize("make", [network, convolution])
@pytest.mark.parametrize("rows", [2, 7, 40])
def test_ranges_answer_as_the_whole(make: Any, rows: int) -> None:
    graph, inputs = make(rows)
    [plan] = ranged(graph, inputs)
    assert [s.computed_by for s in plan.steps if s.cut] == ["ranges ×2"]
    program = bind(plan, tl.Executor().backend)
    want = tl.Executor("reference" if rows == 2 else "numpy").execute(graph, inputs)
    for _ in range(3):  # arrays of a run before are used again
        found = call(program, [inputs[name] for name in plan.graph.inputs])
        for (name, _), value in zip(graph.outputs, found, strict=True):
            assert value.dtype == want[name].dtype
            np.testing.assert_allclose(value, want[name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_what_is_larger_than_its_operands_comes_after_the_ranges() -> None:
    graph, inputs = network(8, hidden=64)  # a gradient of 12 by 64 from 8 rows
    [plan] = ranged(graph, inputs)
    products = [str(s.types[0]) for s in plan.steps if s.contraction is not None]
    assert products == ["float32[12, 64]"]
    graph, inputs = network(400, hidden=64)
    [plan] = ranged(graph, inputs)
    assert not [s for s in plan.steps if s.contraction is not None]
    assert {join.how for s in plan.steps if s.cut for join in s.cut.joins} == {"add", "mean"}


def test_donated_arrays_are_written_over() -> None:
    gradients, inputs = network(40)
    b = tl.GraphBuilder()
    made = b.inline(gradients)
    params = {n: b.input(n, made[f"d_{n}"].shape, "float32") for n in ("w", "c", "v")}
    graph = b.build(loss=made["loss"], **{n: w - 0.1 * made[f"d_{n}"] for n, w in params.items()})
    want = {name: tl.Executor().execute(graph, inputs)[name] for name in params}
    [plan] = ranged(graph, inputs, frozenset(params))
    program = bind(plan, tl.Executor().backend)
    values = [inputs[name].copy() for name in plan.graph.inputs]
    found = dict(zip(program.names, call(program, values), strict=True))
    for name, value in zip(plan.graph.inputs, values, strict=True):
        if name in params:
            assert found[name] is value
            np.testing.assert_allclose(value, want[name], rtol=2e-5, atol=1e-6)


def test_runs_allocate_nothing_once_both_ranges_have_their_memory() -> None:
    graph, inputs = network(4000, hidden=64)  # results of 1 MiB, half of that in each range
    [plan] = ranged(graph, inputs)
    program, values = bind(plan, tl.Executor().backend), [inputs[name] for name in plan.graph.inputs]
    peaks = []
    for _ in range(6):
        tracemalloc.start()
        try:
            call(program, values)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    # the ranges of a call may run one after the other in the same memory; the first time they run at once it is taken for both
    assert sum(peak > 400_000 for peak in peaks) <= 2, peaks  # below are NumPy's buffers, and those of both threads


def test_a_graph_without_a_batch_has_no_such_plan() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (40, 8), "float32")
    graph = b.build(y=b.sort(x, axis=0) - b.mean(b.sort(x, axis=0), axis=0))
    assert ranged(graph, {"x": np.ones((40, 8), "float32")}) == []
    graph, inputs = network(1)
    assert ranged(graph, inputs) == []


def test_the_fast_policy_offers_it() -> None:
    graph, inputs = network(600, hidden=64)
    executor = tl.Executor(policy="fast")
    types = {name: TensorType.of(inputs[name]) for name in graph.inputs}
    names = [plan.name for plan in executor.programs.options(graph, types, None)]
    if executor.programs.facts is not None and executor.programs.facts.threads() > 1:
        assert "native steps, 2 ranges of axis 0 of 'x' on 2 threads" in names


def test_those_who_watch_see_the_ranges() -> None:
    class Runs(tl.Hook):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_run(self, record: tl.RunRecord) -> None:
            self.steps.append(len(record.plan.steps))

    graph, inputs = network(40)
    [plan] = ranged(graph, inputs)
    hook = Runs()
    call(bind(plan, tl.Executor().backend), [inputs[name] for name in plan.graph.inputs], [hook])
    assert len(hook.steps) == 3 and hook.steps[0] == hook.steps[1]
