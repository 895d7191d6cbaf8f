"""One split: parts of an index, joined, are the whole; bit for bit where arithmetic is exact."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import GraphBuilder, GraphError, InputError, ShapeError
from tensorlogic.ir import ops
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.ir.types import TensorShape, TensorType, dtype_name
from tensorlogic.passes.indices import indices
from tensorlogic.passes.specialize import specialize
from tensorlogic.passes.split import Join, Split, label, parts, split
from tensorlogic.testing.cases import cases

EX = tl.Executor()
PLAIN = tl.Executor(optimization_level=tl.OptimizationLevel.NONE)
Seed = tuple[int, int, int | None]


def known(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> tl.EinsumGraph:
    return specialize(
        graph, {n: TensorType(TensorShape(np.shape(x)), dtype_name(np.asarray(x).dtype)) for n, x in inputs.items()}
    )


def seeds(graph: tl.EinsumGraph) -> Iterator[Seed]:
    """Every axis of every result, and every contracted index."""
    types = graph.inference.types
    for i, node in enumerate(graph.nodes):
        yield from ((i, axis, None) for axis in range(len(types[i][0].shape or ())))
        for index in indices(node.op, [types[a][0] for a in node.args], types[i]):
            if index.how:
                n = next(n for n, axis in enumerate(index.args) if axis is not None)
                yield i, index.args[n] or 0, n


def joined(join: Join, made: list[Any]) -> Any:
    """Join what the parts made, in the plainest way."""
    match join.how:
        case "concat":
            return np.concatenate(made, join.axis)
        case "noisy_or":
            total = 1 - np.prod([1 - x for x in made], axis=0)
        case "mean":
            total = np.sum(made, axis=0) / join.divisor
        case how:
            ufunc = {"or": np.logical_or, "and": np.logical_and}.get(how) or getattr(np, how)
            total = ufunc.reduce(np.stack(made))
    return np.asarray(total).astype(join.type.dtype)


def run_split(cut: Split, inputs: dict[str, Any], count: int, executor: tl.Executor = PLAIN) -> dict[str, Any]:
    """Run before, the parts and after, each by itself."""

    def outputs(graph: tl.EinsumGraph, values: dict[str, Any]) -> dict[str, Any]:
        chosen = {n: values[n] for n in graph.inputs}
        return dict(executor.execute(graph, chosen).items()) if graph.outputs else {}

    before = outputs(cut.before, inputs)
    made: dict[str, list[Any]] = {join.label: [] for join in cut.joins}
    for own in parts(cut.size, count):
        values = {}
        for feed in cut.feeds:
            op = cut.graph.nodes[feed.node].op
            whole = (
                inputs[op.label] if isinstance(op, ops.Input)
                else cut.graph.constants[op.digest] if isinstance(op, ops.Constant)
                else before[label(cut.graph, feed.node)]
            )  # fmt: skip
            values[feed.label] = whole if feed.axis is None else np.take(whole, list(own), feed.axis)
        for name, value in outputs(cut.part(len(own)), values).items():
            made[name].append(value)
    with np.errstate(all="ignore"):
        together = {join.label: joined(join, made[join.label]) for join in cut.joins}
    after = outputs(cut.after, {**inputs, **before, **together})
    found = {"before": before, "join": together, "after": after}
    return {name: found[stage][handed] for name, stage, handed in cut.outputs}


def same(graph: tl.EinsumGraph, inputs: dict[str, Any], seed: Seed, count: int, tolerance: float = 0.0) -> Split | None:
    """Compare a split with the whole; None where there is none."""
    cut = split(known(graph, inputs), seed[0], seed[1], operand=seed[2])
    if cut is not None:
        got, want = run_split(cut, inputs, count), PLAIN.execute(graph, inputs)
        for name, value in want.items():
            assert (got[name].shape, got[name].dtype) == (value.shape, value.dtype)
            np.testing.assert_allclose(got[name], value, rtol=tolerance, atol=tolerance, err_msg=f"{name} {seed}")
    return cut


EVERY = list(cases())
SOME = [c for n, c in enumerate(EVERY) if not c.name.startswith("einsum/") or n % 31 == 0]


@pytest.mark.parametrize("case", SOME, ids=lambda c: c.name)
def test_every_operation_cut_along_every_index(case):
    graph, inputs = case.make()
    for seed in seeds(known(graph, inputs)):
        cut = same(graph, inputs, seed, 2, tolerance=1e-2 if case.name.endswith("float16") else 1e-6)
        assert cut is None or cut.size > 1


def test_the_conformance_table_has_every_kind_of_join():
    found = set()
    for case in SOME:
        graph, inputs = case.make()
        concrete = known(graph, inputs)
        for i, node in enumerate(concrete.nodes):
            args = [concrete.type_of(a) for a in node.args]
            found |= {index.how for index in indices(node.op, args, concrete.inference.types[i])}
    assert found == {"", "add", "or", "and", "multiply", "maximum", "minimum", "logaddexp", "noisy_or", "mean"}


@st.composite
def graphs(draw: st.DrawFn) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    """Graphs over small whole numbers, which every order of arithmetic gets right to the last bit."""
    b = GraphBuilder()
    n = draw(st.integers(2, 4))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    inputs = {name: rng.integers(-3, 4, (n, n)).astype("f8") for name in "xy"}
    pool = [b.input(name, ("n", "n"), "float64") for name in "xy"] + [b.constant(np.arange(16.0).reshape(4, 4)[:n, :n])]
    for _ in range(draw(st.integers(2, 7))):
        x, y = (draw(st.sampled_from(pool)) for _ in range(2))
        made = draw(st.sampled_from([
            lambda x=x, y=y: x + y, lambda x=x, y=y: b.maximum(x, y.T), lambda x=x, y=y: b.where(x > y, x, y),
            lambda x=x, y=y: b.einsum("ij,jk->ik", x, y), lambda x=x, y=y: b.einsum("ij,kj->ki", x, y),
            lambda x=x, y=y: b.einsum("ij,jk->ik", x, y, algebra="min_plus"),
            lambda x=x, y=y: b.einsum("ij,jk,kl->il", x, y, x, algebra="max_plus"),
            lambda x=x, y=y: x - b.sum(y, 0, keepdims=True), lambda x=x, y=y: x - b.max(y, 1, keepdims=True),
            lambda x=x, y=y: b.sort(x, 0), lambda x=x, y=y: b.cumsum(x, 1), lambda x=x, y=y: x.reshape(-1).reshape(n, n),
            lambda x=x, y=y: b.concat([x, y], 0)[:n], lambda x=x, y=y: x[::-1] + b.iota(n),
            lambda x=x, y=y: b.gather(x, b.cast(b.remainder(y[0], n), "int64")),
            lambda x=x, y=y: b.einsum("ii,j->ij", x, y[0]), lambda x=x, y=y: b.broadcast_to(y[0], (n, n)) * x,
        ]))()  # fmt: skip
        pool.append(b.remainder(made, 7.0))
    outputs = {"z": pool[-1], "total": b.sum(pool[-2]), "least": b.min(pool[-3], 0), "all": b.all(pool[-1] > 0, 1)}
    graph = b.build(outputs)
    return graph, {name: inputs[name] for name in graph.inputs}


@settings(deadline=None, max_examples=60)
@given(graphs(), st.data())
def test_split_is_whole_bit_for_bit(made, data):
    graph, inputs = made
    concrete = known(graph, inputs)
    seed = data.draw(st.sampled_from(list(seeds(concrete))))
    same(graph, inputs, seed, data.draw(st.integers(1, 5)))


def layer(build: Callable[[GraphBuilder], Any], **shapes: tuple[int, ...]) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    b = GraphBuilder()
    rng = np.random.default_rng(0)
    inputs = {n: rng.uniform(0.1, 0.9, s).astype("f4") for n, s in shapes.items()}
    made = build(b, *(b.input(n, s, "float32") for n, s in shapes.items()))
    return b.build(y=made), inputs


LAYERS: dict[str, tuple[Any, dict[str, tuple[int, ...]], int, int]] = {  # and the axis of the first input that is cut, where
    "mlp over its batch": (
        lambda b, x, w, v: b.linear(b.gelu(b.linear(x, w)), v), {"x": (7, 5), "w": (5, 6), "v": (6, 3)}, 0, 0),
    "attention over its batch": (
        lambda b, q, k, v: b.attention(q, k, v), dict.fromkeys("qkv", (3, 4, 5, 6)), 0, 0),
    "attention over its heads": (
        lambda b, q, k, v: b.attention(q, k, v), dict.fromkeys("qkv", (3, 4, 5, 6)), 1, 0),
    "attention over its queries": (
        lambda b, q, k, v: b.attention(q, k, v), dict.fromkeys("qkv", (3, 4, 5, 6)), 2, 0),
    "softmax over another axis": (lambda b, x: b.softmax(x, 1), {"x": (4, 5)}, 0, 0),
    "softmax over its own axis": (lambda b, x: b.softmax(x, 0), {"x": (4, 5)}, 0, 4),
    "layer norm": (lambda b, x: b.layer_norm(x), {"x": (4, 5)}, 0, 0),
    "a loss": (lambda b, x, y: b.cross_entropy(x, b.softmax(y)), {"x": (4, 5), "y": (4, 5)}, 0, 0),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("count", [2, 3, 99])
def test_layers(name, count):
    build, shapes, axis, after = LAYERS[name]
    graph, inputs = layer(build, **shapes)
    cut = same(graph, inputs, (0, axis, None), count, tolerance=1e-6)
    assert cut is not None
    assert sum(role.stage == "after" for role in cut.roles) == after


@pytest.mark.parametrize("algebra", ALGEBRAS)
@pytest.mark.parametrize("axis", [0, 1])
def test_joins_over_free_and_contracted_indices(algebra, axis):
    graph, inputs = layer(lambda b, s, p: b.einsum("xy,yz->xz", s, p, algebra=algebra), s=(5, 6), p=(6, 4))
    cut = same(graph, inputs, (2, axis, 0), 3, tolerance=1e-6 if axis or algebra == "real" else 0.0)
    assert cut is not None
    assert cut.joins[0].how == ("concat" if axis == 0 else {
        "sum": "add", "any": "or", "max": "maximum", "min": "minimum", "logsumexp": "logaddexp", "noisy_or": "noisy_or",
    }[ALGEBRAS[algebra].reduce])  # fmt: skip


def test_a_logical_rule():
    x, y, z = tl.variables("x y z", domain="Person")
    rule = tl.compile(tl.exists(y, tl.pred("sister", x, y) & tl.pred("parent", y, z)),
                      tl.CompilerContext(domains={"Person": 6}), strategy="hard_boolean")  # fmt: skip
    rng = np.random.default_rng(1)
    facts = {name: rng.random((6, 6)) < 0.3 for name in ("sister", "parent")}
    made = [cut for seed in seeds(known(rule, facts)) if (cut := same(rule, facts, seed, 4))]
    assert {"concat", "or"} <= {join.how for cut in made for join in cut.joins}


def closure(b: GraphBuilder, **options: Any) -> Any:
    edge = b.input("edge", ("n", "n"), "bool")
    return b.fixpoint(lambda path: b.einsum("xy,yz->xz", path, edge, algebra="boolean"), edge, combine="or", **options)


def test_a_fixpoint_is_cut_along_the_axis_it_carries_untouched():
    b = GraphBuilder()
    graph = b.build(path=closure(b))
    edge = np.roll(np.eye(9, dtype=bool), 1, 1)
    edge[8] = False  # a chain: rows settle in different rounds
    (loop,) = (i for i, n in enumerate(graph.nodes) if n.op.name == "fixpoint")
    cut = same(graph, {"edge": edge}, (loop, 0, None), 4)
    assert cut is not None
    assert sorted((f.label, f.axis) for f in cut.feeds) == [("edge", None), ("edge'", 0)]
    assert split(known(graph, {"edge": edge}), loop, 1) is None  # each round needs all of the other axis
    cut = same(graph, {"edge": edge}, (0, 0, None), 4)  # both of its uses at once: nothing is left to cut
    assert cut is None


def test_a_fixpoint_whose_body_needs_an_operand_cut_and_whole_is_not_cut():
    b = GraphBuilder()
    edge, start = b.input("edge", (4, 4), "bool"), b.input("start", (4, 4), "bool")
    step = b.fixpoint(lambda p: edge | b.einsum("xy,yz->xz", p, edge, algebra="boolean"), start, combine="or")
    graph = b.build(path=step)
    (loop,) = (i for i, n in enumerate(graph.nodes) if n.op.name == "fixpoint")
    assert split(graph, loop, 0) is None


def test_a_fixpoint_with_a_tolerance_is_not_cut():
    b = GraphBuilder()
    x = b.input("x", (4, 3), "float64")
    graph = b.build(y=b.fixpoint(lambda h: h * 0.5 + 1, x, tolerance=1e-3))
    assert split(graph, "x", 0) is None


def test_a_scan_is_cut_along_every_axis_but_its_own():
    b = GraphBuilder()
    u, h, w = b.input("u", (5, 4, 3), "float64"), b.input("h", (4, 3), "float64"), b.input("w", (3, 3), "float64")
    last, rows = b.scan(lambda h, x: ((new := b.remainder(x + h @ w, 7.0)), new + 1), h, u)
    graph = b.build(last=last, rows=rows)
    rng = np.random.default_rng(2)
    inputs = {n: rng.integers(0, 4, s).astype("f8") for n, s in {"u": (5, 4, 3), "h": (4, 3), "w": (3, 3)}.items()}
    for name, axis in (("u", 1), ("h", 0)):
        cut = same(graph, inputs, (graph.inputs[name], axis, None), 3)
        assert cut is not None
        assert [(join.how, join.axis) for join in cut.joins] == [("concat", 0), ("concat", 1)]
    assert split(graph, "u", 0) is None
    assert split(graph, "u", 2) is None  # the product needs all of it


def test_a_cond_is_cut_where_both_bodies_carry_the_index():
    b = GraphBuilder()
    x, y = b.input("x", (4, 3), "float64"), b.input("y", (3,), "float64")
    pick = b.sum(y) > 0
    graph = b.build(a=b.cond(pick, lambda: x + y, lambda: x * 2), c=b.cond(pick, lambda: b.sort(x, 0), lambda: x * 2))
    for total in (1.0, -1.0):
        inputs = {"x": np.arange(12.0).reshape(4, 3), "y": np.full(3, total)}
        cut = same(graph, inputs, (graph.inputs["x"], 0, None), 2)
        assert cut is not None
        assert [stage for _, stage, _ in cut.outputs] == ["join", "after"]


def test_what_no_part_needs_whole_is_made_in_parts():
    b = GraphBuilder()
    x = b.input("x", (6,), "float64")
    mask = b.iota(6).reshape(6, 1) >= b.iota(6)  # each part needs its rows alone
    graph = b.build(y=b.where(mask, x, 0.0))
    cut = same(graph, {"x": np.arange(6.0)}, (len(graph) - 1, 0, None), 3)
    assert cut is not None
    compared = next(i for i, n in enumerate(graph.nodes) if n.op.name == "greater_equal")
    assert cut.roles[compared].stage == "part"
    needed = b.build(y=b.where(mask, x, 0.0), mask=mask)  # but here somebody needs all of it
    cut = same(needed, {"x": np.arange(6.0)}, (len(needed) - 1, 0, None), 3)
    assert cut is not None
    assert cut.roles[compared].stage == "before"


def test_a_value_may_be_needed_cut_and_whole():
    b = GraphBuilder()
    x, w = b.input("x", (6, 4), "float64"), b.input("w", (4, 4), "float64")
    h = b.remainder(x @ w, 5.0)
    graph = b.build(y=b.einsum("qd,kd->qk", h, h))
    inputs = {"x": np.arange(24.0).reshape(6, 4), "w": np.eye(4)}
    cut = same(graph, inputs, (len(graph) - 1, 0, None), 3)
    assert cut is not None
    assert [f.axis for f in cut.feeds] == [None, 0]
    assert cut.feeds[0].node == cut.feeds[1].node
    cut = same(graph, inputs, (graph.inputs["x"], 0, None), 3)  # cut from the input on, the product comes after
    assert cut is not None
    assert cut.roles[-1].stage == "after"


def test_half_floats_add_up_in_single_precision():
    b = GraphBuilder()
    x = b.input("x", (4096,), "float16")
    graph = b.build(total=b.sum(x), mean=b.mean(x), product=b.einsum("i,i->", x, x))
    inputs = {"x": np.full(4096, 4.0, "f2")}  # 16384, 4, and more than float16 has
    cut = split(known(graph, inputs), "x", 0)
    assert cut is not None
    assert [cut.part(5).type_of(i).dtype for _, i in cut.part(5).outputs] == ["float32"] * 3
    got = run_split(cut, inputs, 64)
    assert (float(got["total"]), float(got["mean"]), float(got["product"])) == (16384.0, 4.0, math.inf)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf, -0.0])
def test_special_values(special):
    b = GraphBuilder()
    x = b.input("x", (5, 3), "float64")
    graph = b.build(top=b.max(x, 0), low=b.min(x), mean=b.mean(x, 0), any=b.any(x), rows=b.sum(x, 1),
                    joined=b.einsum("ij,ij->j", x, x, algebra="log_sum_exp"))  # fmt: skip
    inputs = {"x": np.arange(15.0).reshape(5, 3)}
    inputs["x"][3, 1] = special
    for axis in (0, 1):
        assert same(graph, inputs, (0, axis, None), 3, tolerance=1e-12) is not None


def test_inputs_handed_through_and_names():
    b = GraphBuilder()
    x, odd = b.input("%1", (4,), "float64"), b.input("αβγ 'x'", (4,), "float64")
    graph = b.build({"x": x, "half": b.sum(x * odd), "again": x * odd, "one": b.literal(1.0)})
    inputs = {"%1": np.arange(4.0), "αβγ 'x'": np.ones(4)}
    concrete = known(graph, inputs)
    cut = split(concrete, "%1", 0)
    assert cut is not None
    got = run_split(cut, inputs, 2)
    assert list(got) == ["x", "half", "again", "one"]
    assert got["half"] == 6
    assert got["one"] == 1


def test_indices_that_cannot_be_cut():
    b = GraphBuilder()
    x = b.input("x", (3, 1, 0), "float32")
    graph = b.build(y=b.sum(x, 2))
    assert split(graph, "x", 1) is None  # of size 1
    assert split(graph, "x", 2) is None  # of size 0
    d = b.build(y=b.einsum("ii->i", b.input("d", (3, 3), "float32")))
    assert split(d, "d", 0) is None  # a diagonal needs both axes at once
    with pytest.raises(GraphError, match="no input 'z'"):
        split(graph, "z", 0)
    with pytest.raises(ShapeError, match="there is no axis 7"):
        split(graph, "x", 7)
    with pytest.raises(GraphError, match="no node %99"):
        split(graph, 99, 0)
    with pytest.raises(GraphError, match="no operand 3"):
        split(graph, 1, 0, operand=3)
    with pytest.raises(ShapeError, match="sizes that are known"):
        split(b.build(y=b.input("n", ("n",), "float32") + 1), "n", 0)


@given(st.integers(0, 50), st.integers(1, 60))
def test_parts_make_up_the_whole(size, count):
    found = parts(size, count)
    assert [i for own in found for i in own] == list(range(size))
    lengths = [len(own) for own in found]
    assert len(found) == max(1, min(size, count))
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


def test_no_parts():
    with pytest.raises(InputError, match="the number of parts must be a whole number of at least 1"):
        parts(3, 0)


def test_print(golden):
    graph, _ = layer(lambda b, q, k, v: b.softmax(b.attention(q, k, v), 2), **dict.fromkeys("qkv", (2, 3, 4, 5)))
    cut = split(graph, "q", 2)
    assert cut is not None
    golden("split.txt", f"{cut}\n")


def test_a_carry_that_its_body_does_not_read_is_cut_as_well() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3, 5), "float32")
    last, rows = b.scan(lambda carry, row: (row, row * 2), x[0], x)
    graph = b.build(last=last, rows=rows)
    values = np.arange(15, dtype="float32").reshape(3, 5)
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(2))
    results = list(tl.Executor().execute_stream(graph, {"x": values}, config, over={"x": 1}))
    np.testing.assert_array_equal(np.concatenate([r.outputs["rows"] for r in results], 1), values * 2)
    np.testing.assert_array_equal(np.concatenate([r.outputs["last"] for r in results]), values[2])
