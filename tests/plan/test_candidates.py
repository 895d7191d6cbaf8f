"""Complete plans: what the policies compile, what a plan says of itself, and budgets that are worth keeping to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.plan.durations import seconds
from tensorlogic.plan.groups import EXACT_FUNCTIONS, find_groups
from tensorlogic.runtime.call import call
from tensorlogic.runtime.program import bind
from tensorlogic.testing.every_plan import every_program, native_plan


def join(n: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(
        z=b.einsum("xy,yz->xz", b.input("x", (n, n), "bool"), b.input("y", (n, n), "bool"), algebra="boolean")
    )


def rules(n: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    p = b.input("p", (n, n), "bool")
    grand = b.einsum("xy,yz->xz", p, p, algebra="boolean")
    return b.build(cousin=b.logical_and(b.einsum("xy,zy->xz", grand, grand, algebra="boolean"), b.logical_not(grand)))


def test_the_plain_executor_joins_large_relations_on_bits_from_the_first_call() -> None:
    assert {s.computed_by.partition(" ×")[0] for s in tl.Executor().plan(rules(2000)).steps} == {"bits"}
    assert {s.computed_by for s in tl.Executor().plan(rules(50)).steps} == {"numpy"}


def test_a_join_on_bits_takes_little_more_than_its_result() -> None:
    n = 45_000
    assert tl.Executor().plan(join(n)).peak_bytes < 2 * n * n


@pytest.mark.parametrize("budget", [40 << 20, 45 << 20, 140 << 20, 200 << 20])
def test_the_search_for_parts_keeps_to_three_times_the_estimate_of_the_whole(budget: int) -> None:
    executor = tl.Executor()
    whole = seconds(executor.plan(join(6000)))
    try:
        plan = executor.plan(join(6000), budget=budget)
    except tl.OutOfMemoryError as error:
        [hint, *_] = error.diagnostic.suggestions
        least = int(hint.split(" bytes")[0].removeprefix("allow ").replace(",", ""))
        plan = executor.plan(join(6000), budget=least)  # what it names works
        assert plan.peak_bytes <= least
    cost = sum(seconds(step.bodies[0]) * len(step.cut.ranges) for step in plan.steps if step.cut) or seconds(plan)
    assert cost <= max(3 * whole, 0.005)


def test_parts_are_no_short_rows() -> None:
    """In parts of 2 columns a variance took 13 times as long as at once."""
    b = tl.GraphBuilder()
    x = b.input("x", (4000, 1500), "float64")
    executor, graph = tl.Executor(), b.build(y=b.var(x * x, axis=0))
    [step] = executor.plan(graph, budget=least_budget(executor, graph)).steps
    assert step.cut is not None
    assert min(map(len, step.cut.ranges)) >= 16


def test_small_products_of_parts_keep_to_one_thread() -> None:
    """With a core busy elsewhere, threads of BLAS that wait for each other took up to 400 times as long."""
    b = tl.GraphBuilder()
    x, w = b.input("x", (8000, 64), "float32"), b.input("w", (64, 256), "float32")
    plan = tl.Executor().plan(b.build(y=b.sum(b.tanh(x @ w))), budget=400_000)
    assert [step.threads for step in plan.steps if step.cut] == [1]
    assert [step.threads for step in plan.steps[0].bodies[0].steps if step.kernel == "matmul"] == [0]


@pytest.mark.parametrize("native", [False, True])
def test_parts_of_products_are_not_of_a_few_rows(native: bool) -> None:
    """In parts of 3 rows attention took 7 to 37 times as long as at once."""
    b = tl.GraphBuilder()
    shape = (4000, 64)
    graph = b.build(y=b.attention(*(b.input(name, shape, "float32") for name in "qkv")))
    executor = tl.Executor(native=native)
    least = least_budget(executor, graph)
    plan = executor.plan(graph, budget=least)
    assert plan.peak_bytes <= least < executor.plan(graph).peak_bytes / 4
    [parts] = [step.cut.ranges for step in plan.steps if step.cut]
    assert min(map(len, parts)) >= 8


def test_small_graphs_are_not_cut_into_many_parts() -> None:
    b = tl.GraphBuilder()
    x, y, z = (b.input(name, (100, 100), "bool") for name in "xyz")
    rule = b.einsum("xy,yz,zw->xw", x, y, z, algebra="boolean")  # 0.2 ms, and 90 ms in 10,000 parts
    executor, graph = tl.Executor(), b.build(some=b.einsum("xy,yz,zx->", x, y, z, algebra="boolean"), rule=rule)
    assert 2 < leaves(executor.plan(graph, budget=least_budget(executor, graph))) <= 1000


def leaves(plan: tl.ExecutionPlan) -> int:
    """Return how many steps a run of a plan takes, in all parts of parts."""
    return sum(len(s.cut.ranges) * leaves(s.bodies[0]) if s.cut else 1 for s in plan.steps)


def least_budget(executor: tl.Executor, graph: tl.EinsumGraph) -> int:
    with pytest.raises(tl.OutOfMemoryError) as caught:
        executor.plan(graph, budget=1)
    return int(caught.value.diagnostic.suggestions[0].split(" bytes")[0].removeprefix("allow ").replace(",", ""))


@pytest.mark.parametrize("rows", [100, 300])
def test_a_closure_within_a_budget_runs_on_bits(rows: int) -> None:
    b, n = tl.GraphBuilder(), 300
    start, edge = b.input("start", (rows, n), "bool"), b.input("edge", (n, n), "bool")
    graph = b.build(y=b.fixpoint(lambda s: b.einsum("xy,yz->xz", s, edge, algebra="boolean"), start, combine="or"))
    executor = tl.Executor()
    least = least_budget(executor, graph)
    assert least < executor.plan(graph).peak_bytes / 2
    inputs = {"start": np.eye(rows, n, dtype=bool), "edge": np.eye(n, k=1, dtype=bool)}
    assert "fixpoint on packed bits" in str(executor.plan(graph, inputs, budget=least))
    found = executor.execute(graph, inputs, budget=least)["y"]
    np.testing.assert_array_equal(found, np.triu(np.ones((rows, n), bool)))


@pytest.mark.parametrize("fn", sorted(EXACT_FUNCTIONS - {"where", "godel_implies", "goguen_implies"}))
def test_functions_that_are_called_exact_are(fn: str) -> None:
    b = tl.GraphBuilder()
    x, y = b.input("x", (2000,), "float32"), b.input("y", (2000,), "float32")
    arity = 1 if (hasattr(np, fn) and getattr(np, fn).nin == 1) or fn in ("relu", "step") else 2
    value = getattr(b, fn)(*([x, y][:arity]))
    graph = b.build(y=b.where(value, x, y) + x if value.dtype == "bool" else value * 0.5 + x)
    rng = np.random.default_rng(0)
    values = [(rng.normal(size=2000) * 3).astype("f4") for _ in range(2)]
    values[0][:4], values[1][:4] = [np.nan, np.inf, -0.0, 0.0], [1.0, -np.inf, 0.0, -0.0]
    executor = tl.Executor(policy="adaptive")
    inputs = dict(zip("xy", values, strict=True))
    inputs = {name: inputs[name] for name in graph.inputs}
    want = tl.Executor().execute(graph, inputs)["y"]
    for program in every_program(executor, graph, inputs):
        assert program.plan.exact
        [found] = call(program, list(inputs.values()))
        np.testing.assert_array_equal(found, want)


def test_adaptive_plans_leave_products_on_the_threads_they_have_on_numpy() -> None:
    b = tl.GraphBuilder()  # with more terms than BLAS adds up in one go, threads that share a product round otherwise
    x, w = b.input("x", (700, 1100), "float32"), b.input("w", (1100, 700), "float32")
    graph = b.build(y=b.relu((x * 2.0 - 1.0) @ w + 1.0))
    rng = np.random.default_rng(0)
    inputs: dict[str, Any] = {n: rng.normal(size=graph.type_of(i).shape).astype("f4") for n, i in graph.inputs.items()}
    want = tl.Executor().execute(graph, inputs)["y"]
    types = {name: tl.TensorType.of(value) for name, value in inputs.items()}
    plans = tl.Executor(policy="adaptive").programs.options(graph, types, None)
    assert [plan.name for plan in plans] == ["native steps", "one step after another"]
    assert len({tuple(s.threads for s in plan.steps if s.kernel == "matmul") for plan in plans}) == 1
    for plan in plans:
        [found] = call(bind(plan, tl.Executor().backend), list(inputs.values()))
        assert found.tobytes() == want.tobytes()


def test_a_plan_knows_whether_it_is_exact() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (1000, 8), "float32")
    inputs: dict[str, Any] = {"x": np.ones((1000, 8), "f4")}
    executor = tl.Executor(native=True)
    assert native_plan(executor, b.build(y=b.relu(x) * 2.0 + 1.0), inputs).exact
    assert not native_plan(executor, b.build(y=b.exp(x) * 2.0), inputs).exact
    assert not native_plan(executor, b.build(y=b.sum(x * 2.0, axis=1)), inputs).exact
    assert native_plan(executor, b.build(y=b.max(x * 2.0, axis=1)), inputs).exact


def test_a_kernel_that_cannot_be_made_is_planned_without() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (50_000,), "float32")
    graph = b.build(y=b.exp(x) * 2.0, z=b.tanh(x) + 1.0)
    executor = tl.Executor(native=True)
    facts = executor.programs.facts
    assert facts is not None
    groups = find_groups(
        executor.programs.options(graph, {"x": tl.TensorType(tl.TensorShape((50_000,)), "float32")}, None)[0].graph,
        facts,
    )
    assert groups
    plan = native_plan(executor, graph, {"x": np.ones(50_000, "f4")})
    assert bind(plan, executor.backend).plan is plan
