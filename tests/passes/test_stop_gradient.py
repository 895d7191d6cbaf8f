"""Stops of gradients: a value as a constant, in graphs and in what was computed eagerly; transfers move and are differentiated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import eager
from tensorlogic.ir import ops
from tensorlogic.passes.simplify import simplify
from tensorlogic.passes.split import split

X = np.array([3.0, 4.0])


def stopped(b: tl.GraphBuilder, x: Any) -> Any:
    return b.sum(x * b.stop_gradient(x))


def test_no_gradient_goes_through_a_stop() -> None:
    b = tl.GraphBuilder()
    graph = b.build(loss=stopped(b, b.input("x", (2,), "float64")))
    ex = tl.Executor()
    assert ex.execute(graph, {"x": X})[0] == 25.0
    assert ex.execute(tl.grad(graph), {"x": X})["d_x"].tolist() == [3.0, 4.0]
    assert ex.execute(tl.jvp(graph), {"x": X, "t_x": np.ones(2)})["t_loss"] == 7.0
    assert ex.execute(tl.grad(simplify(graph)), {"x": X})["d_x"].tolist() == [3.0, 4.0]
    again = tl.EinsumGraph.from_text(graph.to_text())
    assert again == graph
    assert tl.EinsumGraph.from_json(graph.to_json()) == graph


def test_a_gradient_that_only_goes_through_a_stop_is_zero_with_a_warning() -> None:
    b = tl.GraphBuilder()
    graph = b.build(loss=b.sum(b.input("x", (2,), "float64").stop_gradient()))
    with pytest.warns(tl.GradientWarning, match="stop_gradient"):
        g = tl.grad(graph)
    assert tl.Executor().execute(g, {"x": X})["d_x"].tolist() == [0.0, 0.0]


def test_rounding_passes_gradients_straight_through() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float64")
    graph = b.build(loss=b.sum(b.square(x + b.stop_gradient(b.rint(x) - x))))
    given = {"x": np.array([1.25, -2.75])}
    assert tl.Executor().execute(graph, given)[0] == 10.0
    assert tl.Executor().execute(tl.grad(graph), given)["d_x"].tolist() == [2.0, -6.0]


def test_a_plan_has_no_step_for_a_stop_and_fuses_through_it() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (64, 64), "float32")
    plain, with_stop = b.build(y=b.exp(b.sin(x))), b.build(y=b.exp(b.stop_gradient(b.sin(x))))
    ex = tl.Executor()
    assert ex.plan(with_stop).graph == ex.plan(plain).graph


def test_an_output_that_is_a_stop_of_an_input_is_not_the_callers_memory() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.stop_gradient(b.input("x", (2,), "float64")))
    for config in map(tl.CompilationConfig, tl.OptimizationLevel):
        assert not np.shares_memory(tl.Executor().compile_graph(graph, config)({"x": X})[0], X)


def test_a_split_goes_through_a_stop() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (6, 3), "float32")
    cut = split(b.build(y=b.stop_gradient(b.exp(x))), "x", 0)
    assert cut is not None
    assert [join.how for join in cut.joins] == ["concat"]


def test_detach_ends_the_gradient_of_a_graph_too() -> None:
    def fn(x: Any) -> Any:
        return (x * x.detach()).sum()

    x = tl.Variable(X)
    fn(x).backward()
    graph = eager.graph_of(fn, X)
    assert tl.Executor().execute(tl.grad(graph), {"x": X})["d_x"].tolist() == x.grad.tolist() == [3.0, 4.0]


def test_no_grad_ends_the_gradient_of_a_graph_too() -> None:
    def fn(x: Any) -> Any:
        with tl.no_grad():
            scale = x * 2
            more = scale + 1
        return (x * scale + more).sum()

    x = tl.Variable(X)
    fn(x).backward()
    graph = eager.graph_of(fn, X)
    assert sum(isinstance(n.op, ops.StopGradient) for n in graph.nodes) == 1
    assert tl.Executor().execute(tl.grad(graph), {"x": X})["d_x"].tolist() == x.grad.tolist() == [6.0, 8.0]


def test_an_eager_stop_ends_the_gradient() -> None:
    x = tl.Variable(X)
    y = eager.stop_gradient(x)
    assert not y.requires_grad
    (x * y).sum().backward()
    assert x.grad.tolist() == [3.0, 4.0]


def placed() -> tuple[tl.EinsumGraph, tl.EinsumGraph]:
    b = tl.GraphBuilder()
    x, u, v = (b.input(n, (8, 8), "float64") for n in "xuv")
    graph = b.build(loss=b.sum(b.square(b.tanh(x @ u) + x @ v)))
    plan = tl.PlacementOptimizer([tl.Device.CPU(0), tl.Device.CPU(1)]).optimize(graph)
    return graph, plan.apply()


def test_a_placed_graph_has_a_gradient() -> None:
    graph, there = placed()
    assert any(isinstance(n.op, ops.Transfer) for n in there.nodes)
    rng = np.random.default_rng(0)
    given = {n: rng.normal(size=(8, 8)) for n in "xuv"}
    ex = tl.Executor()
    for whole, cut in ((tl.grad(graph), tl.grad(there)), (tl.value_and_grad(graph), tl.value_and_grad(there))):
        for a, b in zip(ex.execute(whole, given), ex.execute(cut, given), strict=True):
            np.testing.assert_allclose(a, b)
    tangents = {f"t_{n}": rng.normal(size=(8, 8)) for n in "xuv"}
    ahead = [ex.execute(tl.jvp(g), given | tangents)[0] for g in (graph, there)]
    np.testing.assert_allclose(*ahead)


def test_a_cotangent_is_moved_to_the_device_of_its_output() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float64")
    graph = b.build(y=b.square(b.apply(ops.Transfer("cpu:1"), x)))
    back = tl.Executor().execute(tl.vjp(graph), {"x": X, "d_y": np.ones(2)})
    assert back["d_x"].tolist() == [6.0, 8.0]


def test_a_gradient_that_computes_values_again_has_a_gradient_itself() -> None:
    from tensorlogic.runtime.recompute import recompute

    b = tl.GraphBuilder()
    y = b.input("x", (2,), "float64")
    for _ in range(4):
        y = b.sin(y) * y
    loss = b.build(loss=b.sum(y))
    first = tl.grad(loss)
    again = recompute(first, loss)
    assert any(isinstance(n.op, ops.Barrier) for n in again.nodes)
    assert not any(isinstance(n.op, ops.Transfer) for n in again.nodes)
    second = [tl.vjp(g) for g in (first, again)]
    given = {"x": X, "d_d_x": np.ones(2)}
    np.testing.assert_allclose(*(tl.Executor().execute(g, given)[0] for g in second))
