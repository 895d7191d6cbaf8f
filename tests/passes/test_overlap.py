"""Sums over ranks that are started early: buckets, products in parts, and the order in which ranks go on."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.passes.overlap import overlap_reductions

RNG = np.random.default_rng(0)


def loss(width=64, layers=3):
    b = tl.GraphBuilder()
    h = b.input("x", ("n", width), "float32")
    for n in range(layers):
        h = b.tanh(h @ b.input(f"w{n}", (width, width), "float32") + b.input(f"c{n}", (width,), "float32"))
    return b.build(loss=b.mean(b.square(h)))


def step(layers=3, width=64):
    graph, b = loss(width, layers), tl.GraphBuilder()
    names = [n for n in graph.inputs if n != "x"]
    made = b.inline(tl.value_and_grad(graph, wrt=names))
    old = {n: b.input(n, made[f"d_{n}"].shape, "float32") for n in names}
    return b.build(loss=made["loss"], **{n: old[n] - 0.1 * made[f"d_{n}"] for n in names})


def given(rows, width=64, layers=3):
    found = {"x": RNG.normal(size=(rows, width)).astype("f4")}
    for n in range(layers):
        found[f"w{n}"] = (RNG.normal(size=(width, width)) / 8).astype("f4")
        found[f"c{n}"] = RNG.normal(size=width).astype("f4")
    return found


def of_rank(graph, inputs, ranks=2):
    from tensorlogic.ir.types import TensorType
    from tensorlogic.passes.shard import shard
    from tensorlogic.passes.specialize import specialize

    known = specialize(graph, {name: TensorType.of(value) for name, value in inputs.items()})
    return shard(known, {"x": 0}, ranks, 0).graph


def places(graph, kind):
    return [i for i, node in enumerate(graph.nodes) if isinstance(node.op, kind)]


def test_sums_begin_while_gradients_are_still_computed():
    own = overlap_reductions(of_rank(step(), given(8)), bucket=64 * 64 * 4)
    starts, waits = places(own, ops.StartAllReduce), places(own, ops.Wait)
    products = places(own, ops.Einsum)
    assert not places(own, ops.AllReduce)
    assert len(starts) == len(waits) > 2
    assert starts[0] < products[-1], "the first bucket travels while products are left to do"
    assert max(starts) < min(waits), "nothing is waited for while something is left to do"
    assert [own.nodes[i].op.label for i in waits] == [own.nodes[i].op.label for i in starts]


def test_small_ones_travel_together():
    own = overlap_reductions(of_rank(step(), given(8)), bucket=1 << 30)
    assert len(places(own, ops.StartAllReduce)) == 1
    (start,) = places(own, ops.StartAllReduce)
    assert len(own.nodes[start].args) == 7  # three weights, three biases and the loss


def test_a_large_product_is_made_in_parts():
    graph, inputs = step(1), given(8, layers=1)
    own = overlap_reductions(of_rank(graph, inputs), bucket=21 * 64 * 4)
    assert len(places(own, ops.StartAllReduce)) == 3  # the bias and the loss travel with the first
    assert len(places(own, ops.Concat)) == 1


@pytest.mark.parametrize("rows", [8, 13])
def test_the_answer_is_that_of_one_device(rows, monkeypatch):
    from tensorlogic.passes import overlap

    monkeypatch.setattr(overlap.overlap_reductions, "__defaults__", (1 << 13,))
    graph, inputs = step(), given(rows)
    config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(3)])
    executor = tl.Executor()
    outputs = executor.execute_distributed(graph, inputs, config)
    for name, value in tl.Executor().execute(graph, inputs).items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-6)
    assert "start_all_reduce" in str(executor.plan(of_rank(graph, inputs)))


def test_what_cannot_go_on_by_itself_stays():
    b = tl.GraphBuilder()
    x, t = b.input("x", (4,), "float32"), b.input("t", (4,), "bool")
    most, some = b.apply(ops.AllReduce("data", 2, 0, "maximum"), x), b.apply(ops.AllReduce("data", 2, 0, "or"), t)
    graph = b.build(most=most, some=some)
    assert overlap_reductions(graph) is graph


def test_sums_in_the_middle_of_a_graph_are_waited_for_there():
    b = tl.GraphBuilder()
    x = b.input("x", (4,), "float32")
    total = b.apply(ops.AllReduce("data", 2, 0), x)
    again = b.apply(ops.AllReduce("data", 2, 0), b.exp(total))
    graph = overlap_reductions(b.build(y=again, other=b.tanh(x)))
    names = [node.op.name if node.op.name != "elementwise" else node.op.fn for node in graph.nodes]
    assert names == ["input", "start_all_reduce", "tanh", "wait", "exp", "start_all_reduce", "wait"] or names == [
        "input", "tanh", "start_all_reduce", "wait", "exp", "start_all_reduce", "wait"
    ]  # fmt: skip


def test_the_gradient_is_taken_before():
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float32")
    start = b.apply(ops.StartAllReduce("data", 1, 0, "add", "1"), x)
    graph = b.build(loss=b.sum(b.apply(ops.Wait("data", 1, 0, "1"), start)))
    with pytest.raises(tl.GraphError, match="no gradient"):
        tl.grad(graph, wrt=["x"])


def test_operands_of_a_bucket_have_one_dtype():
    b = tl.GraphBuilder()
    with pytest.raises(tl.TensorLogicError, match="one dtype"):
        b.apply(ops.StartAllReduce("data", 2, 0), b.input("x", (2,), "float32"), b.input("y", (2,), "float64"))
