"""Constant folding: what needs no input is computed once, unless keeping it costs more than making it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder, OptimizationLevel
from tensorlogic.ir import ops
from tensorlogic.passes.simplify import DEAREST, LARGEST, SMALL, _cost, fold_constants

EVALUATE = tl.Executor(optimization_level=OptimizationLevel.NONE).execute


def folded(graph: EinsumGraph) -> list[str]:
    return [n.op.name for n in fold_constants(graph, EVALUATE).nodes]


def test_the_largest_constant_parts_become_constants() -> None:
    b = GraphBuilder()
    c = b.constant(np.arange(4.0))
    graph = b.build(y=b.input("x", (4,), "float64") * b.exp(c + 1), z=b.sum(c))
    done = fold_constants(graph, EVALUATE)
    assert [n.op.name for n in done.nodes] == ["constant", "input", "multiply", "constant"] or sorted(
        n.op.name for n in done.nodes
    ) == ["constant", "constant", "input", "multiply"]
    values = [done.constants[n.op.digest] for n in done.nodes if isinstance(n.op, ops.Constant)]
    assert any(np.array_equal(v, np.exp(np.arange(4.0) + 1)) for v in values)
    assert any(np.array_equal(v, 6.0) for v in values)
    assert not any(v.flags.writeable for v in values)


def test_nothing_to_fold_leaves_the_graph() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.input("x", (4,)) * b.constant(np.ones(4)))

    def never(_: EinsumGraph) -> Sequence[Any]:
        raise AssertionError("nothing needs computing")

    assert fold_constants(graph, never) is graph


def test_python_scalars_stay_what_they_are() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.input("x", (4,), "float32") * 2 + 1)
    assert folded(graph) == [n.op.name for n in graph.nodes]
    assert tl.Executor().execute(graph, {"x": np.ones(4, "float32")})["y"].dtype == np.float32


def test_views_stay_views() -> None:
    b = GraphBuilder()
    c = b.constant(np.arange(6.0).reshape(2, 3))
    graph = b.build(y=b.input("x", (4, 3), "float64") @ c.T, z=c[:, ::-1], w=b.exp(c).T)
    names = folded(graph)
    assert names.count("transpose") == 2
    assert names.count("slice") == 1
    assert "exp" not in names


@pytest.mark.parametrize(("elements", "gone"), [(SMALL // 8, True), (SMALL // 8 + 1, False), (LARGEST // 8 + 1, False)])
def test_a_large_iota_is_made_anew(elements: int, gone: bool) -> None:
    b = GraphBuilder()
    graph = b.build(y=b.input("x", (), "int64") + b.iota(elements))
    if elements > LARGEST // 8:
        assert folded(graph) == [n.op.name for n in graph.nodes]
    else:
        assert ("iota" not in folded(graph)) == gone


def test_a_large_broadcast_is_not_kept() -> None:
    b = GraphBuilder()
    c = b.constant(np.arange(10.0))
    graph = b.build(y=b.input("x", (4000, 10)) * (b.broadcast_to(c, (4000, 10)) + 1))
    assert "broadcast" in folded(graph)


def test_what_is_not_much_larger_than_its_parts_is_kept() -> None:
    b = GraphBuilder()
    c = b.constant(np.arange(20000.0))
    assert "add" not in folded(b.build(y=b.input("x", (20000,)) * (c + 1)))


def test_the_zeros_and_nans_of_constants_stay() -> None:
    b = GraphBuilder()
    c = b.constant(np.array([-0.0, np.nan, -np.inf], "float16"))
    graph = b.build(y=b.absolute(c) * -1.0)
    done = tl.Executor().execute(graph)["y"]
    assert done.tobytes() == tl.Executor(optimization_level=OptimizationLevel.NONE).execute(graph)["y"].tobytes()


def test_what_fails_says_so_only_if_it_runs() -> None:
    b = GraphBuilder()
    x = b.input("x", (2,), "float64")
    bad = b.gather(b.constant(np.arange(3.0)), np.array([7, 7]))
    graph = b.build(
        y=b.cond(b.sum(x) > 0, lambda: x, lambda: x + b.gather(b.constant(np.arange(3.0)), np.array([7, 7])))
    )
    assert tl.Executor().execute(graph, {"x": np.ones(2)})["y"].tolist() == [1, 1]
    with pytest.raises(tl.ExecutionError, match="index 7 is out of range"):
        tl.Executor().execute(graph, {"x": -np.ones(2)})
    with pytest.raises(tl.ExecutionError, match=r"Node \d+ \(gather\) failed: gather: index 7"):
        tl.Executor().execute(b.build(y=x + bad), {"x": np.ones(2)})


def test_bodies_fold() -> None:
    b = GraphBuilder()
    x = b.input("x", (3,), "float64")
    graph = b.build(y=b.scan(lambda c, _: (c + b.exp(b.constant(np.zeros(3))), None), x, (), length=2)[0])
    (body,) = next(s.bodies for s in tl.Executor().plan(graph).steps if s.bodies)
    assert [s.op.name for s in body.steps] == ["add"]
    assert tl.Executor().execute(graph, {"x": np.zeros(3)})["y"].tolist() == [2, 2, 2]


def test_an_evaluator_that_answers_wrongly_is_not_believed() -> None:
    b = GraphBuilder()
    graph = b.build(y=b.input("x", (3,), "float64") + b.exp(b.constant(np.zeros(3))))
    with pytest.raises(tl.GraphError, match=r"should be float64\[3\], but was computed as float32\[2\]"):
        fold_constants(graph, lambda _: [np.zeros(2, "float32")])


def test_what_would_take_too_long_is_left_for_the_run() -> None:
    b = GraphBuilder()
    n = b.iota(8_000_000)
    graph = b.build(y=b.einsum("i,j->", n, n, algebra="noisy_or"))  # 6.4e13 points, and one number
    assert "einsum i,j->" in str(tl.Executor().plan(graph))
    few = b.build(y=b.einsum("i,j->", b.iota(80), b.iota(80), algebra="noisy_or"))
    assert "einsum" not in str(tl.Executor().plan(few))
    m = b.constant(np.ones((500, 500), "float32"))
    chain = b.build(y=b.einsum("ij,jk,kl->il", m, m, m))  # cheap in the right order, not as one loop
    assert "einsum" not in str(tl.Executor().plan(chain))


def spent(graph: EinsumGraph) -> int:
    """What folding a graph costs: the sum over all that is evaluated."""
    asked = []

    def evaluate(part: EinsumGraph) -> Sequence[Any]:
        asked.append(sum(_cost(part, i) for i in range(len(part.nodes))))
        types = [part.type_of(i) for _, i in part.outputs]
        return [np.zeros([int(n) for n in t.shape or ()], t.dtype) for t in types]

    fold_constants(graph, evaluate)
    return sum(asked)


def hungry(b: GraphBuilder, kind: str) -> tl.Tensor:
    if kind == "matmul":
        y = m = b.constant(np.eye(1000))
        for _ in range(20):
            y = y @ m
        return y
    y = b.constant(np.arange(1_000_000.0))
    for j in range(200):
        y = b.sort(y) if kind == "sort" else b.cumsum(y, 0) if kind == "cumsum" else b.sin(y)
        y = y + j
    return b.sum(y)


@pytest.mark.parametrize("kind", ["matmul", "sort", "cumsum", "sin"])
def test_all_that_is_folded_together_is_bounded(kind: str) -> None:
    b = GraphBuilder()
    graph = b.build(y=hungry(b, kind))
    assert 0 < spent(graph) <= DEAREST


def test_a_long_chain_of_an_iota_is_left_for_the_run() -> None:
    b = GraphBuilder()
    y = b.cast(b.iota(4_000_000), "float64")
    for j in range(200):
        y = b.sin(y) + j
    graph = b.build(y=b.sum(y))

    def never(_: EinsumGraph) -> Sequence[Any]:
        raise AssertionError("it would take long")

    assert fold_constants(graph, never) is graph


def test_small_constants_fold_beside_what_is_too_dear() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (4,), "float64"), hungry(b, "sin")
    small = b.exp(b.constant(np.arange(4.0)))
    for _ in range(100):
        small = b.tanh(small)
    names = folded(b.build(y=y, z=x * small))
    assert 0 < names.count("sin") < 200
    assert "tanh" not in names
