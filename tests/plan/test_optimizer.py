"""Choosing fusions by cost, and what a graph could do without."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.plan.build import lay_out
from tensorlogic.plan.fusion_planner import native_groups
from tensorlogic.plan.fusion_strategies import LIMITS

S = tl.FusionStrategy
MODEL = tl.FusionCostModel(tl.Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=5e-7))


def mlp() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 32), "float32")
    h = b.gelu(b.linear(h, b.input("w", (32, 32), "float32"), b.input("c", (32,), "float32")))
    return b.build(y=b.softmax(h))


def layers() -> tl.EinsumGraph:
    """An element-wise group, a product, and a group with reductions."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 32), "float32"), b.input("w", (32, 32), "float32")
    return b.build(y=b.softmax(b.gelu(x) @ w))


def test_every_strategy_has_a_row():
    assert set(LIMITS) == set(S)


@pytest.mark.parametrize("strategy", list(S))
def test_what_is_chosen_is_what_the_plan_runs(strategy):
    graph = layers()
    chosen = tl.FusionOptimizer(strategy, model=MODEL).optimize(graph, sizes={"n": 1000})
    nodes = [n for f in chosen.fusions for n in f.nodes]
    assert len(chosen.fusions) == (1 if strategy is S.CONSERVATIVE else 2)
    assert len(nodes) == len(set(nodes))
    assert chosen.plan is not None
    steps = [tuple(sorted(p.node for p in s.parts)) for s in chosen.plan.steps if len(s.parts) > 1]
    assert sorted(steps) == [f.nodes for f in chosen.fusions]
    assert tl.FusionPlanner().find_fusion_opportunities(chosen.plan) == list(chosen.fusions)
    assert chosen.estimated_speedup > 1
    assert chosen.fused_seconds == MODEL.seconds(chosen.plan.steps)
    assert chosen.fused_seconds == pytest.approx(chosen.seconds - sum(c.cost.saved for c in chosen.choices if c.taken))
    assert tuple(sorted((c.fusion for c in chosen.choices if c.taken), key=lambda f: f.nodes)) == chosen.fusions


def test_the_eager_strategies_run_what_a_compiled_executor_runs():
    graph = mlp()
    executor = tl.Executor(native=True, optimization_level=tl.OptimizationLevel.AGGRESSIVE)
    prepared = executor.plan(graph, sizes={"n": 1000})
    for strategy in (S.AGGRESSIVE, S.MEMORY_AWARE):
        chosen = tl.FusionOptimizer(strategy, model=MODEL).optimize(prepared.graph)
        assert chosen.plan is not None
        assert chosen.plan.steps == lay_out(prepared.graph, groups=native_groups).steps


def test_strategies_differ():
    graph = mlp()
    chosen = {s: tl.FusionOptimizer(s, model=MODEL).optimize(graph, sizes={"n": 4}) for s in S}
    assert chosen[S.CONSERVATIVE].fusions == ()  # nothing saves 64 KiB
    assert chosen[S.CONSERVATIVE].choices[0].why == "conservative leaves reduction fusions"
    assert [f.pattern for f in chosen[S.BALANCED].fusions] == ["gelu + softmax"]
    big = tl.FusionOptimizer(S.CONSERVATIVE, model=MODEL).optimize(elementwise(), sizes={"n": 10_000})
    assert {f.fusion_type for f in big.fusions} == {tl.FusionType.ELEMENT_WISE}
    small = tl.FusionOptimizer(S.CONSERVATIVE, model=MODEL).optimize(elementwise(), sizes={"n": 10})
    assert [c.why for c in small.choices] == ["conservative wants 64.0 KiB at least"]


def elementwise() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(y=b.exp(b.sin(b.input("x", ("n", 32), "float32"))))


def test_a_chain_pays_where_another_order_is_cheaper():
    b = tl.GraphBuilder()
    a, c, d = (
        b.input("a", (500, 500), "float32"),
        b.input("c", (500, 500), "float32"),
        b.input("d", (500, 1), "float32"),
    )
    good, bad = b.build(y=(a @ c) @ d), b.build(y=a @ (c @ d))
    for graph, better in ((good, True), (bad, False)):
        [f] = [f for f in tl.FusionPlanner().find_fusion_opportunities(graph) if f.pattern == "einsum chain"]
        cost = MODEL.estimate(graph, f)
        assert (cost.saved > 0) is better
        assert (f in tl.FusionOptimizer(model=MODEL).optimize(graph).fusions) is better


def test_siblings_pay_where_weights_are_put_together_beforehand():
    b = tl.GraphBuilder()
    x, ones = b.input("x", (4, 400), "float32"), np.ones((400, 400), "f4")
    graph = b.build(p=x @ b.constant(ones), q=x @ b.constant(ones * 2))
    [f] = tl.FusionPlanner().find_fusion_opportunities(graph)
    # the slices are steps too, but a product is saved
    assert MODEL.estimate(graph, f).saved == pytest.approx(4 * 400 * 4 / 10e9 - 5e-7)


def test_only_what_runs_is_estimated():
    graph = elementwise()
    [f] = tl.FusionPlanner().find_fusion_opportunities(graph)
    assert MODEL.estimate(graph, f._replace(pattern="by hand")) == MODEL.estimate(graph, f)
    b = tl.GraphBuilder()
    open_rank = b.build(y=b.exp(b.sin(b.input("x"))))
    for other, nodes in ((open_rank, f.nodes), (graph, (0, 1))):
        with pytest.raises(tl.InputError, match="no step and no pass makes %") as caught:
            MODEL.estimate(other, f._replace(nodes=nodes))
        assert caught.value.diagnostic.code == "E330"


def test_print(golden):
    graph = mlp()
    plan = tl.FusionOptimizer(model=MODEL).optimize(graph)
    result = tl.GraphOptimizer(model=MODEL).analyze(graph)
    golden("fusion.txt", f"{plan}\n\n{result}\n")


def test_analysis():
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (8, 8), "float32")
    b.cos(x)  # 1
    k = b.constant(np.eye(8, dtype="f4"))  # 2
    fixed = b.exp(k)  # 3
    one, other = x + fixed, fixed + x  # 4, 5
    graph = b.build(y=b.sin(one) * b.sin(other))  # 6, 7, 8
    result = tl.GraphOptimizer(model=MODEL).analyze(graph)
    assert result.dead_nodes == (1,)
    assert result.constant_nodes == (3,)
    assert result.redundant_nodes == (5, 7)
    assert result.estimated_speedup > 1
    assert "estimated speedup" in str(result)
    folding = tl.GraphOptimizer(evaluate=tl.Executor().execute)
    assert [n.op.name for n in folding.optimize(graph).graph.nodes].count("exp") == 0
    assert [r.name for r in tl.GraphOptimizer(tl.OptimizationLevel.BASIC).optimize(graph).reports] == ["drop_dead"]


def test_nothing_to_do():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", (4,)))
    result = tl.GraphOptimizer(model=MODEL).analyze(graph)
    assert result == tl.OptimizationResult((), (), (), (), 1.0, ())
    assert str(tl.FusionOptimizer(model=MODEL).optimize(graph)).startswith("0 groups of 0 nodes; estimated 1.00")


def test_unknown_ranks_are_estimated_roughly():
    b = tl.GraphBuilder()
    x = b.input("x")
    result = tl.GraphOptimizer(model=MODEL).analyze(b.build(y=b.exp(b.sin(x))))
    assert result.assumed == ("x",)
    assert result.estimated_speedup == 1.0


def test_loops_are_weighed_and_left():
    b = tl.GraphBuilder()
    u = b.input("u", (5, 3), "float32")
    last, rows = b.scan(lambda h, x: (h + x, b.exp(b.sin(h))), np.zeros(3, "f4"), u)
    result = tl.GraphOptimizer(model=MODEL).analyze(b.build(y=b.exp(b.tanh(rows)), z=last))
    assert [f.pattern for f in result.fusion_opportunities] == ["element-wise chain"]


def test_wrong_arguments():
    with pytest.raises(tl.InputError, match="a FusionStrategy is expected, got 'balanced'"):
        tl.FusionOptimizer("balanced")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="an optimization level is expected"):
        tl.GraphOptimizer(2)  # type: ignore[arg-type]


def test_the_machine_is_measured_when_needed():
    assert tl.FusionCostModel().machine is tl.machine()
