"""The cost budget: what is over it is refused before anything is allocated, with figures and what to do."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder
from tensorlogic.passes import split
from tensorlogic.plan.limits import check_flops


def product(n: int = 64) -> EinsumGraph:
    b = GraphBuilder()
    return b.build(y=b.relu(b.input("x", (n, n), "float32") @ b.input("w", (n, n), "float32")))


def ones(n: int = 64) -> dict[str, Any]:
    return {"x": np.ones((n, n), np.float32), "w": np.ones((n, n), np.float32)}


def test_a_plan_over_its_limit_is_refused_before_anything_is_allocated():
    executor = tl.Executor(flops_limit=10**9)
    x = np.broadcast_to(np.float32(1), (2000, 2000))
    executor.plan(product(2000))  # loads what planning needs: the code of modules would be counted
    tracemalloc.start()
    try:
        with pytest.raises(tl.InputError) as caught:
            executor.execute(product(2000), {"x": x, "w": x})
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert caught.value.diagnostic.code == "E309"
    text = str(caught.value)
    assert "The plan takes 16,004,000,000 flops, the limit is 1,000,000,000" in text
    assert "Over by 15,004,000,000 flops, 16.0 times the limit" in text
    assert (
        "The heaviest step is einsum ij,jk->ik, which makes float32[2000, 2000]: 16,000,000,000 flops, 100% of all"
        in text
    )
    assert "hint: Raise the limit with Executor(flops_limit=flops)" in text
    assert "OptimizationLevel.AGGRESSIVE" in text
    assert "test_limit.py" in text


def test_at_the_limit_it_runs_and_after_a_refusal_too():
    needed = tl.Executor().plan(product()).flops
    executor = tl.Executor(flops_limit=needed)
    assert executor.execute(product(), ones())["y"][0, 0] == 64
    tight = tl.Executor(flops_limit=needed - 1)
    with pytest.raises(tl.InputError, match="The plan takes"):
        tight.execute(product(), ones())
    assert tight.execute(product(8), ones(8))["y"][0, 0] == 8


def test_every_way_to_run_is_held_to_it():
    executor = tl.Executor(flops_limit=1000)
    with pytest.raises(tl.InputError, match="the limit is 1,000"):
        executor.compile_graph(product())
    with pytest.raises(tl.InputError, match="the limit is 1,000"):
        executor.execute(product(), ones(), budget=10**6)
    assert executor.execute(product(4), ones(4), budget=10**6)["y"][0, 0] == 4
    b = GraphBuilder()
    heavy = b.constant(np.ones((64, 64), np.float32))
    folded = b.build(y=b.input("x", (64, 64), "float32") + heavy @ heavy)
    with pytest.raises(tl.InputError, match="the limit is 1,000"):
        executor.execute(folded, {"x": ones()["x"]})
    assert executor.plan(product()).flops > 1000  # a plan may be looked at


def test_shapes_alone_cost_nothing():
    executor = tl.Executor("null", flops_limit=1)
    assert executor.execute(product(), ones())["y"].shape == (64, 64)


def test_no_limit_and_none_of_all():
    b = GraphBuilder()
    empty = b.build(y=b.input("x", (3,), "float32"))
    assert tl.Executor(flops_limit=0).execute(empty, {"x": np.ones(3, np.float32)})["y"].sum() == 3
    check_flops(tl.Executor().plan(product()), None)
    with pytest.raises(tl.InputError, match="the limit is 0"):
        check_flops(tl.Executor().plan(product()), 0)


def test_a_loop_counts_its_rounds_and_the_step_inside_is_named():
    b = GraphBuilder()
    x = b.input("x", (16, 16), "float64")
    last, _ = b.scan(lambda c, _: (b.tanh(c @ x), None), x, (), length=50)
    graph = b.build(y=last)
    with pytest.raises(tl.InputError) as caught:
        tl.Executor(flops_limit=10_000).execute(graph, {"x": np.ones((16, 16))})
    assert "einsum ij,jk->ik, which makes float64[16, 16]: 8,192 flops, 50 times" in str(caught.value)


def test_a_fixpoint_says_that_it_counts_one_round():
    b = GraphBuilder()
    edges = b.input("edges", (20, 20), "bool")
    graph = b.build(y=b.fixpoint(lambda r: b.einsum("ij,jk->ik", r, edges, algebra="boolean"), edges, combine="or"))
    with pytest.raises(tl.InputError, match="A fixpoint counts one round"):
        tl.Executor(flops_limit=10).execute(graph, {"edges": np.eye(20, dtype=bool)})


@pytest.mark.parametrize("limit", [-1, 1.5, "many", True])
def test_what_is_no_limit(limit: Any):
    with pytest.raises(tl.InputError, match="flops_limit must be a whole number of at least 0"):
        tl.Executor(flops_limit=limit)


def huge(axes: int) -> tl.EinsumGraph:
    """Return a graph whose sizes, multiplied, are more than a float holds."""
    b = tl.GraphBuilder()
    x = b.broadcast_to(b.input("x", ()), [2**63 - 1] * axes)
    y = b.einsum([list(range(axes)), list(range(axes, 2 * axes)), [0, axes]], x, b.exp(x))
    return b.build(y=b.sum(y))


@pytest.mark.parametrize("how", ["plain", "budget", "flops", "threads"])
def test_sizes_whose_product_no_float_holds_are_refused(how):
    ex = tl.Executor(
        memory_limit=10**8, flops_limit=10 if how == "flops" else None, threads=2 if how == "threads" else 1
    )
    with pytest.raises(tl.InputError if how == "flops" else tl.OutOfMemoryError):
        ex.execute(huge(20), {"x": 1.0}, budget=10**6 if how == "budget" else None)


def test_cuts_into_more_parts_than_can_be_listed_are_refused():
    b = tl.GraphBuilder()
    x = b.broadcast_to(b.input("x", ()), [2**62, 2**62])
    with pytest.raises(tl.OutOfMemoryError):
        tl.Executor(memory_limit=10**8).execute(b.build(y=b.sum(b.exp(x))), {"x": 1.0}, budget=10**6)


def test_an_answer_with_thousands_of_axes_is_refused_with_a_short_reason():
    formula = tl.parse_expr("p(" + ",".join(f"x{n}" for n in range(20_000)) + ")")
    with pytest.raises(tl.OutOfMemoryError, match=r"about 1e6020 elements.* 19992 more") as caught:
        tl.compile(formula, tl.CompilerContext(domains={"D": 2}))
    assert len(caught.value.diagnostic.message) < 300


def test_a_budget_over_many_axes_is_refused_after_a_short_search(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    of_size = split._part

    def counted(whole: Any, size: int) -> EinsumGraph:
        nonlocal made
        made += 1
        return of_size(whole, size)

    monkeypatch.setattr(split, "_part", counted)
    b = GraphBuilder()
    graph = b.build(y=b.sum(b.var(b.broadcast_to(b.input("x", ()), [2**63 - 1] * 60))))
    with pytest.raises(tl.OutOfMemoryError, match="budget"):
        tl.Executor().execute(graph, {"x": np.ones(())}, budget=10**6)
    assert made < 10_000  # of 61,384 when a node of 60 axes counted as one of a single axis
