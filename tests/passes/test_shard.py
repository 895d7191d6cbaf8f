"""Sharding: every graph gives on several ranks, put together, what it gives on one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.collectives import share
from tensorlogic.ir.types import TensorType
from tensorlogic.passes.shard import shard
from tensorlogic.passes.specialize import specialize
from tensorlogic.runtime.distributed.local import local_group
from tensorlogic.runtime.distributed.rank import Task, run_rank

RNG = np.random.default_rng(0)


def on_ranks(graph, inputs, axes, ranks=3):
    """Run a graph on ranks, put its outputs together, and return them with the graph of rank 0."""
    concrete = specialize(graph, {n: TensorType.of(np.asarray(v)) for n, v in inputs.items()})
    graphs = [shard(concrete, axes, ranks, rank) for rank in range(ranks)]
    ways = local_group(ranks, 20)
    executor = tl.Executor()

    def work(rank):
        own = graphs[rank]
        values = {}
        for name, value in inputs.items():
            axis = own.inputs.get(name)
            if axis is not None:
                part = share(np.shape(value)[axis], ranks, rank)
                value = np.asarray(value)[(slice(None),) * axis + (slice(part.start, part.stop),)]
            values[name] = value
        try:
            return run_rank(executor, {"data": ways[rank]}, [Task(own.graph, values)]).outputs[0]
        except BaseException as error:
            ways[rank].fail(str(error))
            raise

    with ThreadPoolExecutor(ranks) as pool:
        results = list(pool.map(work, range(ranks)))
    outputs = {}
    for name in graph.output_names:
        axis = graphs[0].outputs.get(name)
        if axis is None:
            for other in results[1:]:
                np.testing.assert_array_equal(other[name], results[0][name])
            outputs[name] = results[0][name]
        else:
            outputs[name] = np.concatenate([r[name] for r in results], axis)
    return outputs, graphs[0].graph


def check(graph, inputs, axes, ranks=3, rtol=1e-5):
    outputs, own = on_ranks(graph, inputs, axes, ranks)
    want = tl.Executor("reference").execute(graph, inputs)
    for name in graph.output_names:
        got = outputs[name]
        assert got.dtype == want[name].dtype and got.shape == want[name].shape
        np.testing.assert_allclose(got, want[name], rtol=rtol, atol=1e-6)
    return [node.op.name for node in own.nodes if isinstance(node.op, ops.Collective)]


def mlp(b=None):
    b = b or tl.GraphBuilder()
    x = b.input("x", ("n", 6), "float32")
    h = b.relu(x @ b.input("w1", (6, 8), "float32"))
    return b, x, h @ b.input("w2", (8, 5), "float32")


def values(rows=10):
    return {n: RNG.normal(size=s).astype("f4") for n, s in {"x": (rows, 6), "w1": (6, 8), "w2": (8, 5)}.items()}


def test_rows_need_no_meeting():
    b, _, y = mlp()
    assert check(b.build(y=y), values(), {"x": 0}) == []


def test_columns_then_rows_of_weights_meet_once():
    b, _, y = mlp()
    assert check(b.build(y=y), values(), {"w1": 1}) == ["all_reduce"]
    concrete = specialize(b.build(y=y), {n: TensorType.of(v) for n, v in values().items()})
    assert shard(concrete, {"w1": 1}, 2, 0).inputs == {"w1": 1, "w2": 0}  # of which only shares are read


def test_contracted_weights_are_summed():
    b, _, y = mlp()
    assert check(b.build(y=y), values(), {"w1": 0}) == ["all_reduce"]


@pytest.mark.parametrize("rows", [3, 4, 7, 66])
def test_uneven_shares(rows):
    b, x, y = mlp()
    graph = b.build(y=y, mean=b.mean(y), top=b.max(x, axis=0), total=b.sum(x), share=b.softmax(y, axis=0))
    check(graph, values(rows), {"x": 0})


def test_gradients_of_rows_are_summed_over_ranks():
    b, _, y = mlp()
    loss = tl.value_and_grad(b.build(loss=b.mean(b.square(y))), wrt=["w1", "w2"])
    met = check(loss, values(), {"x": 0}, rtol=1e-4)
    assert met.count("all_reduce") == 3


@pytest.mark.parametrize(
    "algebra", ["boolean", "max_product", "max_min", "min_plus", "log_sum_exp", "noisy_or", "real"]
)
@pytest.mark.parametrize("axis", [0, 1])
def test_every_algebra_is_combined_by_its_own_rule(algebra, axis):
    b = tl.GraphBuilder()
    dtype = "bool" if algebra == "boolean" else "float64"
    x, y = b.input("x", (5, 7), dtype), b.input("y", (7, 4), dtype)
    graph = b.build(z=b.einsum("ij,jk->ik", x, y, algebra=algebra))
    given = {"x": RNG.random((5, 7)), "y": RNG.random((7, 4))}
    if algebra == "boolean":
        given = {n: v > 0.7 for n, v in given.items()}
    met = check(graph, given, {"x": axis})
    assert met == (["all_reduce"] if axis else [])


def test_what_needs_all_of_an_index_gathers_it():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 2), "float64")
    graph = b.build(sorted=b.sort(x * 2, axis=0), kept=x + 1)
    assert check(graph, {"x": RNG.normal(size=(9, 2))}, {"x": 0}) == ["all_gather"]


def test_shares_change_place():
    b = tl.GraphBuilder()
    x = b.input("x", (6, 9), "float64")
    first = b.sort(x, axis=1)  # in shares of axis 0
    graph = b.build(y=b.sort(first, axis=0) + b.input("z", (6, 9), "float64"))
    check(graph, {"x": RNG.normal(size=(6, 9)), "z": RNG.normal(size=(6, 9))}, {"x": 0, "z": 1})


def test_a_scan_runs_on_shares():
    b = tl.GraphBuilder()
    x = b.input("x", (4, 6, 3), "float64")
    last, rows = b.scan(lambda c, r: (b.tanh(c + r), c * r), b.sum(x, axis=0), x)
    check(b.build(last=last, rows=rows), {"x": RNG.normal(size=(4, 6, 3))}, {"x": 1})


def test_a_closure_runs_on_rows():
    b = tl.GraphBuilder()
    edges, start = b.input("edges", (8, 8), "bool"), b.input("start", (8, 8), "bool")
    closure = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edges, algebra="boolean") | start, start, combine="or")
    given = RNG.random((8, 8)) < 0.2
    check(b.build(closure=closure), {"edges": given, "start": given}, {"start": 0})


def test_half_floats_are_summed_wider():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3), "float16")
    graph = b.build(total=b.sum(x, axis=0), mean=b.mean(x, axis=0))
    check(graph, {"x": RNG.normal(size=(100, 3)).astype("f2")}, {"x": 0}, rtol=2e-3)


def test_a_constant_is_kept_in_shares():
    b = tl.GraphBuilder()
    x = b.input("x", (9, 2), "float64")
    graph = b.build(y=x * b.constant(np.arange(18.0).reshape(9, 2)))
    _, own = on_ranks(graph, {"x": np.ones((9, 2))}, {"x": 0})
    assert [a.shape for a in own.constants.values()] == [(3, 2)]


def test_gradients_of_collectives():
    """The gradient of the sum of what all ranks return, against that of the whole."""
    b = tl.GraphBuilder()
    x = b.input("x", (3, 2), "float64")
    whole = b.apply(ops.AllGather("data", 2, 0, 0, 6), x)
    loss = b.build(loss=b.sum(b.square(whole)))
    names = [node.op.name for node in tl.grad(loss).nodes]
    assert "reduce_scatter" in names


def test_mistakes_are_named():
    b, _, y = mlp()
    graph = specialize(b.build(y=y), {n: TensorType.of(v) for n, v in values().items()})
    with pytest.raises(tl.GraphError, match="no input 'w3'"):
        shard(graph, {"w3": 0}, 2, 0)
    with pytest.raises(tl.ShapeError, match="which 7 ranks cannot share"):
        shard(graph, {"w1": 0}, 7, 0)
    b = tl.GraphBuilder()
    alone = b.build(y=b.sort(b.input("x", (4,), "float32")))
    with pytest.raises(tl.ShapeError, match=r"cannot be sharded along axis 0: .*sort"):
        shard(alone, {"x": 0}, 2, 0)
