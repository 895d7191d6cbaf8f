"""The order of a plan: never more memory than the graph's own order, and the same answers bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder, TensorShape, TensorType
from tensorlogic.ir import ops
from tensorlogic.passes.specialize import specialize
from tensorlogic.plan import memory
from tensorlogic.plan.build import build_plan, lay_out
from tensorlogic.plan.memory import lighter
from tensorlogic.plan.schedule import frugal_order


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let plans of any size be reordered."""
    monkeypatch.setattr(memory, "LEAST", 0)


def nothing(graph: EinsumGraph) -> EinsumGraph:
    return graph


def wide(n: int, count: int = 6) -> EinsumGraph:
    """Large results first, and what makes them small after all of them."""
    b = GraphBuilder()
    x = b.input("x", (n, n), "float32")
    large = [b.exp(x * (k + 0.5)) for k in range(count)]
    total = b.sum(large[0])
    for each in large[1:]:
        total = total + b.sum(each)
    return b.build(y=total)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[EinsumGraph, dict[str, Any]]:
    b = GraphBuilder(intern=False)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    inputs: dict[str, Any] = {"x": rng.random((6, 6)), "v": rng.random(6)}
    pool = [b.input("x", (6, 6), "float64"), b.input("v", (6,), "float64")]
    for _ in range(draw(st.integers(2, 25))):
        x, y = draw(st.sampled_from(pool)), draw(st.sampled_from(pool))
        try:
            pool.append(
                [
                    lambda x, y: x + y, lambda x, y: b.exp(-x), lambda x, y: x.T, lambda x, y: b.sum(x, 0),
                    lambda x, y: x @ y, lambda x, y: b.reshape(x, (-1,))[:6], lambda x, y: b.sort(x)[::-1],
                    lambda x, y: b.top_k(x, 2)[0] * b.cast(b.top_k(y, 2)[1], "float64"),
                    lambda x, y: b.scan(lambda c, _: (b.tanh(c + y), c * 0.5), x, (), length=2)[0],
                ][draw(st.integers(0, 8))](x, y)
            )  # fmt: skip
        except tl.TensorLogicError:
            continue
    chosen = {draw(st.integers(0, len(pool) - 1)), len(pool) - 1}
    return b.build({f"y{n}": pool[i] for n, i in enumerate(sorted(chosen))}), inputs


@settings(deadline=None, max_examples=80)
@given(graphs())
def test_any_graph_has_the_same_answers_and_no_more_memory(problem: tuple[EinsumGraph, dict[str, Any]]):
    graph, inputs = problem
    types = {n: TensorType(TensorShape(a.shape), a.dtype.name) for n, a in inputs.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "LEAST", 0)
        for in_place in (True, False):
            written = lay_out(specialize(graph, types), in_place=in_place)
            plan = build_plan(graph, types, passes=(nothing,), in_place=in_place)
            assert plan.peak_bytes <= written.peak_bytes
            assert sorted(s.op.name for s in plan.steps) == sorted(s.op.name for s in written.steps)
        executor = tl.Executor()
        found = executor.execute(graph, inputs)
        patch.setattr(memory, "MOST", 0)
        kept = tl.Executor().execute(graph, inputs)
    for a, b in zip(found, kept, strict=True):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()


def test_large_results_are_used_before_the_next_is_made():
    graph = wide(512)
    plan = tl.Executor().plan(graph)
    assert lay_out(graph, in_place=True).peak_bytes > 5 << 20
    assert plan.peak_bytes < 1.1 * (1 << 20)
    assert list(plan.graph.inputs) == ["x"]


def test_a_budget_that_the_written_order_exceeds_is_enough(monkeypatch: pytest.MonkeyPatch):
    graph = wide(512)
    x = np.ones((512, 512), np.float32)
    assert tl.Executor(memory_limit=2 << 20).execute(graph, {"x": x})["y"].shape == ()
    monkeypatch.setattr(memory, "MOST", 0)
    with pytest.raises(tl.OutOfMemoryError):
        tl.Executor(memory_limit=2 << 20).execute(graph, {"x": x})
    plan = build_plan(graph, {"x": TensorType(TensorShape(x.shape), "float32")})
    assert plan.graph.nodes == graph.nodes  # without passes it runs as it is written


def test_small_and_very_long_plans_keep_their_order(monkeypatch: pytest.MonkeyPatch):
    graph = wide(16)
    assert tl.Executor().plan(graph).graph.nodes == lay_out(graph).graph.nodes
    assert frugal_order(graph) is graph
    large = wide(512)
    plan = lay_out(large, in_place=True)
    monkeypatch.setattr(memory, "MOST", len(large) - 1)
    assert lighter(plan, lay_out) is plan


@pytest.mark.usefixtures("small")
def test_an_order_that_is_no_better_is_not_taken():
    b = GraphBuilder()
    x = b.input("x", (8,), "float32")
    graph = b.build(y=b.exp(b.sin(x)))
    assert frugal_order(graph) is graph
    plan = lay_out(graph)
    assert lighter(plan, lay_out) is plan


def test_an_order_that_takes_more_steps_is_not_taken():
    plan = lay_out(wide(512))
    assert lighter(plan, lambda g: (more := lay_out(g))._replace(steps=(*more.steps, more.steps[-1]))) is plan
    assert lighter(plan, lay_out) is not plan


@pytest.mark.usefixtures("small")
def test_bodies_keep_the_order_of_their_inputs():
    b = GraphBuilder()
    x, w = b.input("x", (12, 12), "float32"), b.input("w", (3, 12), "float32")

    def body(carry: Any, row: Any) -> tuple[Any, Any]:
        large = [b.exp(carry * row), b.sin(carry - row), b.cos(carry)]
        total = b.sum(large[0], 0) + b.sum(large[1], 0) * 2.0 + b.sum(large[2], 0) * 3.0
        return b.tanh(total + carry), total

    last, rows = b.scan(body, x, w)
    graph = b.build(last=last, rows=rows)
    plan = tl.Executor().plan(graph)
    (inner,) = next(s.bodies for s in plan.steps if s.bodies)
    names = [s.op.name for s in inner.steps]
    assert names.index("sum") < names.index("sin")
    assert plan.peak_bytes < lay_out(graph, in_place=True).peak_bytes
    rng = np.random.default_rng(1)
    given = {"x": rng.random((12, 12), np.float32), "w": rng.random((3, 12), np.float32)}
    for found, expected in zip(
        tl.Executor().execute(graph, given), tl.Executor("reference").execute(graph, given), strict=True
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_types_and_equalities_move_with_their_nodes():
    graph = wide(512)
    moved = frugal_order(graph)
    assert moved is not graph
    fresh = EinsumGraph(moved.nodes, moved.outputs, moved.constants)
    assert fresh.inference.types == moved.inference.types
    assert sum(isinstance(n.op, ops.Literal) for n in moved.nodes) == 6


def test_a_saved_plan_keeps_the_order(tmp_path: Any):
    graph = wide(512)
    compiled = tl.Executor().compile_graph(graph)
    compiled.save(tmp_path / "saved")
    again = tl.CompiledGraph.load(tmp_path / "saved")
    (before,), (after,) = compiled.plans(), again.plans()
    assert after.peak_bytes == before.peak_bytes < 2 << 20
