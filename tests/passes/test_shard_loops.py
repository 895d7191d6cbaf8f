"""Fixpoints over relations in shares: the closure of one process, within memory that holds it on no single rank."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Fixpoint
from tensorlogic.ir.types import TensorType
from tensorlogic.passes.specialize import specialize

S = tl.DistributedParallelismStrategy
RULES = {
    "edge last": lambda b, r, e: b.einsum("xy,yz->xz", r, e, algebra="boolean"),
    "edge first": lambda b, r, e: b.einsum("xy,yz->xz", e, r, algebra="boolean"),
    "by halves": lambda b, r, e: b.einsum("xy,yz->xz", r, r, algebra="boolean"),
    "with edges": lambda b, r, e: e | b.einsum("xy,yz->xz", r, e, algebra="boolean"),
}


def closure(rule: str, size: object = "n") -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    e = b.input("edge", (size, size), "bool")
    start = b.broadcast_to(b.constant(np.array(False)), (size, size)) if rule == "with edges" else e
    return b.build(path=b.fixpoint(lambda r: RULES[rule](b, r, e), start, combine="or"))


def edges(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).random((n, n)) < 1.4 / n


def config(ranks: int, axis: int = 0) -> tl.DistributedConfig:
    spec = tl.ShardingSpec().shard_tensor("edge", axis, ranks)
    devices = [tl.Device.CPU(n) for n in range(ranks)]
    return tl.DistributedConfig(devices, strategy=S.ModelParallel(spec), timeout=60)


def rank_graph(graph: tl.EinsumGraph, edge: np.ndarray, ranks: int, rank: int = 0) -> tl.EinsumGraph:
    return tl.shard(specialize(graph, {"edge": TensorType.of(edge)}), {"edge": 0}, ranks, rank, "model").graph


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("n", "ranks"), [(12, 2), (11, 3), (9, 4)])
def test_the_closure_is_that_of_one_process(rule: str, n: int, ranks: int) -> None:
    graph, edge = closure(rule), edges(n)
    expected = tl.Executor("reference").execute(graph, {"edge": edge})["path"]
    for backend in ("numpy", "reference"):
        path = tl.Executor(backend).execute_distributed(graph, {"edge": edge}, config(ranks))["path"]
        np.testing.assert_array_equal(path, expected)


@pytest.mark.parametrize("rule", ["edge last", "edge first", "by halves"])
def test_no_rank_holds_all_edges(rule: str) -> None:
    graph = rank_graph(closure(rule), edges(12), 3)
    (loop,) = [node.op for node in graph.nodes if isinstance(node.op, Fixpoint)]
    inside = [node for node in loop.body.nodes if isinstance(node.op, ops.Collective)]
    assert [node.op.name for node in inside] == ["broadcast_from"] * 3
    shapes = [graph.type_of(i).shape for i in range(len(graph.nodes))]
    shapes += [loop.body.type_of(i).shape for i in range(len(loop.body.nodes))]
    assert max(int(np.prod(shape)) for shape in shapes) == 4 * 12
    assert not any(isinstance(node.op, ops.Collective) for node in graph.nodes)


def test_words_of_packed_bits_go_between_ranks() -> None:
    n, ranks = 1024, 4
    graph, edge = closure("edge first"), edges(n)
    plan = tl.Executor().plan(rank_graph(graph, edge, ranks), {"edge": edge[: n // ranks]})
    assert [step.computed_by.split()[0] for step in plan.steps] == ["fixpoint"]
    executor = tl.Executor()
    path = executor.execute_distributed(graph, {"edge": edge}, config(ranks))["path"]
    np.testing.assert_array_equal(path, tl.Executor().execute(graph, {"edge": edge})["path"])
    moved = executor.get_distributed_stats().bytes
    rounds = moved["all_reduce"] // ranks
    assert moved["broadcast"] == rounds * n * n // 8  # in each round a bit for each pair


def test_a_closure_that_fits_on_no_single_rank() -> None:
    n, ranks = 1024, 4
    graph, edge = closure("edge first"), edges(n, 1)
    alone = tl.Executor().plan(graph, {"edge": edge}).peak_bytes
    shared = [
        tl.Executor().plan(rank_graph(graph, edge, ranks, rank), {"edge": edge[: n // ranks]}).peak_bytes
        for rank in range(ranks)
    ]
    bound = alone // 2
    assert max(shared) < bound
    executor = tl.Executor(memory_limit=bound)
    with pytest.raises(tl.OutOfMemoryError):
        executor.execute(graph, {"edge": edge})
    path = executor.execute_distributed(graph, {"edge": edge}, config(ranks))["path"]
    np.testing.assert_array_equal(path, tl.Executor().execute(graph, {"edge": edge})["path"])


def test_ranks_run_into_the_limit_of_rounds_together() -> None:
    b = tl.GraphBuilder()
    e = b.input("edge", (12, 12), "bool")
    step = lambda r: b.einsum("xy,yz->xz", r, e, algebra="boolean")  # noqa: E731
    graph = b.build(path=b.fixpoint(step, e, combine="or", limit=3))
    chain = np.eye(12, k=1, dtype=bool)
    with pytest.raises(tl.ConvergenceError, match="3 rounds"):
        tl.Executor().execute_distributed(graph, {"edge": chain}, config(3))


def test_a_loop_that_needs_more_than_blocks_is_refused() -> None:
    b = tl.GraphBuilder()
    e = b.input("edge", ("n", "n"), "bool")
    graph = b.build(path=b.fixpoint(lambda r: b.einsum("xy,zy->xz", r, e, algebra="boolean"), e, combine="or"))
    with pytest.raises(tl.ShapeError, match=r"'edge' cannot be sharded along axis 0: .*fixpoint"):
        tl.Executor().execute_distributed(graph, {"edge": edges(12)}, config(2))


def test_shortest_paths_in_shares() -> None:
    b = tl.GraphBuilder()
    d = b.input("edge", ("n", "n"), "float64")
    graph = b.build(path=b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, d, algebra="min_plus"), d, combine="min"))
    rng = np.random.default_rng(2)
    distance = np.where(rng.random((10, 10)) < 0.3, rng.integers(1, 9, (10, 10)), np.inf).astype(float)
    path = tl.Executor().execute_distributed(graph, {"edge": distance}, config(3))["path"]
    np.testing.assert_array_equal(path, tl.Executor("reference").execute(graph, {"edge": distance})["path"])
