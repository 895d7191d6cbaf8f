"""Choosing fusions by cost, and what a graph could do without."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.plan.choose import LIMITS
from tensorlogic.plan.fuse import validate

S = tl.FusionStrategy
MODEL = tl.FusionCostModel(tl.Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=5e-7))


def mlp() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 32), "float32")
    h = b.gelu(b.linear(h, b.input("w", (32, 32), "float32"), b.input("c", (32,), "float32")))
    return b.build(y=b.softmax(h))


def test_every_strategy_has_a_row():
    assert set(LIMITS) == set(S)


@pytest.mark.parametrize("strategy", list(S))
def test_chosen_groups_do_not_overlap(strategy):
    graph = mlp()
    plan = tl.FusionOptimizer(strategy, model=MODEL).optimize(graph, sizes={"n": 1000})
    nodes = [n for f in plan.fusions for n in f.nodes if n not in f.repeated]
    assert nodes
    assert len(nodes) == len(set(nodes))
    assert plan.estimated_speedup > 1
    assert plan.fused_seconds == pytest.approx(plan.seconds - sum(c.cost.saved for c in plan.choices if c.taken))
    assert tuple(sorted((c.fusion for c in plan.choices if c.taken), key=lambda f: f.nodes)) == plan.fusions


def test_strategies_differ():
    graph = mlp()
    chosen = {s: tl.FusionOptimizer(s, model=MODEL).optimize(graph, sizes={"n": 4}).fusions for s in S}
    assert chosen[S.CONSERVATIVE] == ()  # nothing saves 64 KiB
    assert [f.pattern for f in chosen[S.BALANCED]] == ["matmul + bias + gelu + softmax"]
    big = tl.FusionOptimizer(S.CONSERVATIVE, model=MODEL).optimize(graph, sizes={"n": 10_000})
    assert {f.fusion_type for f in big.fusions} == {tl.FusionType.ELEMENT_WISE}


def test_cheap_values_are_repeated():
    b = tl.GraphBuilder()
    x = b.input("x", (100, 100), "float32")
    u = x * 2.0
    graph = b.build(y=b.tanh(u + b.square(b.transpose(b.tanh(u)))))
    plans = {s: tl.FusionOptimizer(s, model=MODEL).optimize(graph) for s in (S.BALANCED, S.AGGRESSIVE)}
    assert all(f.repeated == () for f in plans[S.BALANCED].fusions)
    first, second = plans[S.AGGRESSIVE].fusions
    assert first.repeated == second.repeated == (2,)
    assert 2 not in first.results  # nobody has to write it
    assert 2 not in second.operands
    assert validate(graph, first) == validate(graph, second) == []
    assert plans[S.AGGRESSIVE].bytes_saved > plans[S.BALANCED].bytes_saved
    assert "computes %2 for itself" in str(plans[S.AGGRESSIVE])


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


def test_siblings_of_inputs_must_be_put_side_by_side():
    def build(constant):
        b = tl.GraphBuilder()
        x, ones = b.input("x", (4, 400), "float32"), np.ones((400, 400), "f4")
        u, v = (b.constant(ones * n) if constant else b.input(f"w{n}", (400, 400), "float32") for n in (1, 2))
        graph = b.build(p=x @ u, q=x @ v)
        [f] = tl.FusionPlanner().find_fusion_opportunities(graph)
        return MODEL.estimate(graph, f).saved

    assert build(True) > 0 > build(False)


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
    with pytest.raises(tl.InputError, match="no fusion strategy"):
        tl.FusionOptimizer("balanced")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="an optimization level is expected"):
        tl.GraphOptimizer(2)  # type: ignore[arg-type]


def test_the_machine_is_measured_when_needed():
    assert tl.FusionCostModel().machine is tl.machine()
