"""The pass: products become sums of whole numbers, pairs cancel, scales fold, and the graph stays a graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.passes.quantize import lowered

T, G, A, C = tl.QuantizationType, tl.QuantizationGranularity, tl.ActivationMode, tl.QuantizationConfig
RNG = np.random.default_rng(0)
W1, C1, W2 = ((RNG.normal(size=s) / 6).astype("f4") for s in ((24, 4, 5), (4, 5), (4, 5, 3)))
X = RNG.normal(size=(7, 24)).astype("f4")


def model(b: tl.GraphBuilder) -> tl.Tensor:
    """Return two products whose weights have three axes: heads and their parts, kept by one and summed over by the other."""
    x = b.input("x", ("n", 24), "float32")
    z = b.relu(b.einsum("nd,dhk->hnk", x, b.input("w1", (24, 4, 5), "float32")) + b.input("c1", (4, 1, 5), "float32"))
    return b.einsum("hnk,hko->no", z, b.input("w2", (4, 5, 3), "float32"))


PARAMS = {"w1": W1, "c1": C1[:, None], "w2": W2}
b0 = tl.GraphBuilder()
GRAPH = b0.build(y=model(b0))
EXACT = tl.Executor().execute(GRAPH, {"x": X, **PARAMS})["y"]


def names(graph: tl.EinsumGraph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def decibels(got: Any, exact: Any = EXACT) -> float:
    return float(10 * np.log10(np.square(exact).sum() / np.square(got - exact).sum()))


@pytest.mark.parametrize("activations", list(A))
@pytest.mark.parametrize("granularity", [G.PER_TENSOR, G.PER_CHANNEL(), G.PER_GROUP(6)])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("kind", [T.INT8, T.UINT8, T.INT4, T.TERNARY, T.BINARY, T.FP8_E5M2])
def test_a_quantized_graph_prints_saves_runs_and_agrees(
    kind: Any, symmetric: bool, granularity: Any, activations: Any
) -> None:
    try:
        config = C(kind, granularity, symmetric=symmetric, activations=activations)
    except tl.InputError as error:
        assert error.diagnostic.code == "E325"
        assert kind is T.FP8_E5M2 or granularity == G.PER_GROUP(6)
        return
    small = tl.quantize(GRAPH, config, calibration=[{"x": X}], params=PARAMS)
    assert small.input_names == ["x"]
    assert tl.EinsumGraph.from_json(small.to_json()) == small == tl.EinsumGraph.from_text(small.to_text())
    got = tl.Executor().execute(small, {"x": X})["y"]
    least = {T.INT8: 33, T.UINT8: 33, T.INT4: 12, T.FP8_E5M2: 20}.get(kind, 0)
    assert decibels(got) > least
    expected = tl.Executor("reference").execute(small, {"x": X[:2]})["y"]
    np.testing.assert_allclose(got[:2], expected, rtol=1e-4, atol=1e-5)
    if activations is not A.WEIGHT_ONLY:
        whole = [n for n in small.nodes if isinstance(n.op, ops.Einsum)]
        assert len(whole) == 2 and all(
            small.type_of(i).dtype == "int32" for i, n in enumerate(small.nodes) if n in whole
        )


def test_weights_stay_packed_through_every_level_of_passes() -> None:
    small = tl.quantize(GRAPH, C(T.INT4, activations=A.WEIGHT_ONLY), params=PARAMS)
    for level in tl.OptimizationLevel:
        executor = tl.Executor(optimization_level=level)
        kept = [n.op for n in executor.plan(small, {"x": X}).graph.nodes if isinstance(n.op, ops.Constant)]
        assert {op.shape for op in kept if op.dtype == "uint8"} == {(20, 12), (3, 10)}
        assert max(np.prod(op.shape) for op in kept if op.dtype == "float32") <= 20
        assert decibels(executor.execute(small, {"x": X})["y"]) > 12


def test_static_products_fold_scales_and_zero_points_into_one_dequantize() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=(b.input("x", ("n", 24), "float32") @ b.constant(W1.reshape(24, 20))) * 0.5)
    small = tl.quantize(graph, C(), calibration=[{"x": np.abs(X)}])
    assert names(small).count("multiply") == 0  # the half is in the scale
    (last,) = [n for n in small.nodes if isinstance(n.op, ops.Dequantize)]
    zero = small.nodes[last.args[2]].op
    assert isinstance(zero, ops.Constant) and zero.shape == (20,) and zero.dtype == "int32"
    np.testing.assert_allclose(
        tl.Executor().execute(small, {"x": np.abs(X)})["y"], 0.5 * np.abs(X) @ W1.reshape(24, 20), atol=0.02
    )


def test_names_of_axes_stay() -> None:
    named = GRAPH.with_axis_names({"y": (None, ("ann", "bob", "eve"))})
    assert tl.quantize(named, C(), params=PARAMS).axis_names == named.axis_names


def test_pairs_that_meet_cancel_and_other_pairs_stay() -> None:
    b = tl.GraphBuilder()
    x, s = b.input("x", ("n", 3), "float32"), np.float32(0.25)
    twice = b.quantize(b.dequantize(b.quantize(x, s, 3), s, 3), s, 3)
    assert names(lowered(b.build(y=twice))).count("quantize") == 1
    other = b.quantize(b.dequantize(b.quantize(x, s, 3), s, 3), s, 4)
    assert names(lowered(b.build(y=other))).count("quantize") == 2
    narrow = b.quantize(b.dequantize(b.quantize(x, s, 0), s, 0), s, 0, "int4")
    assert names(lowered(b.build(y=narrow))).count("quantize") == 2
    before = b.quantize(x * 4.0, s, 0)
    after = lowered(b.build(y=before))
    assert "multiply" not in names(after)
    given = {"x": np.linspace(-9, 9, 12, dtype="f4").reshape(4, 3)}
    np.testing.assert_array_equal(*(tl.Executor().execute(g, given)["y"] for g in (after, b.build(y=before))))


def test_sums_of_whole_numbers_are_exact_and_never_overflow() -> None:
    b = tl.GraphBuilder()
    n = 70_000
    x, w = np.full((2, n), 127.0, "f4"), np.full((n, 1), 127.0, "f4")
    small = tl.quantize(
        b.build(y=b.input("x", (2, n), "float32") @ b.constant(w)), C(granularity=G.PER_TENSOR), calibration=[{"x": x}]
    )
    np.testing.assert_allclose(tl.Executor().execute(small, {"x": x})["y"], 127.0 * 127.0 * n, rtol=1e-6)
    most = 140_000  # sums of so many terms do not fit in 32 bits: they stay floats
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", (2, most), "float32") @ b.constant(np.ones((most, 1), "f4")))
    wide = tl.quantize(graph, C(), calibration=[{"x": np.ones((2, most), "f4")}])
    assert all(t.dtype != "int32" for types in wide.inference.types for t in types)


def test_dynamic_rows_have_scales_of_their_own() -> None:
    small = tl.quantize(GRAPH, C(activations=A.DYNAMIC), params=PARAMS)
    loud = X.copy()
    loud[0] *= 1000
    loud[1] = 0
    both = tl.Executor().execute(small, {"x": loud})["y"]
    np.testing.assert_allclose(both[2:], tl.Executor().execute(small, {"x": X})["y"][2:], rtol=1e-5, atol=1e-6)
    assert np.isfinite(both).all()
    bad = X.copy()
    bad[3, 5] = np.nan
    with np.errstate(invalid="ignore"):
        assert np.isnan(tl.Executor().execute(small, {"x": bad})["y"][3]).all()  # what is no number does not become one


@pytest.mark.parametrize("activations", list(A))
def test_gradients_pass_straight_through(activations: Any) -> None:
    small = tl.quantize(GRAPH, C(activations=activations), calibration=[{"x": X}], params=PARAMS)
    found = []
    for graph, given in ((small, {"x": X}), (GRAPH, {"x": X, **PARAMS})):
        b = tl.GraphBuilder()
        loss = b.build(loss=b.sum(b.square(b.inline(graph)["y"])))
        found.append(tl.Executor().execute(tl.grad(loss, "x", straight_through=True), given)["d_x"])
    assert decibels(found[0], found[1]) > 15


def test_a_batch_and_a_split_of_a_quantized_graph() -> None:
    from tensorlogic.passes.split import split

    small = tl.quantize(GRAPH, C(T.INT4, G.PER_GROUP(8)), params=PARAMS)
    once = tl.Executor().execute(small, {"x": X})["y"]
    many = tl.Executor().execute(tl.batched(small, over=["x"]), {"x": np.stack([X, X])})["y"]
    np.testing.assert_allclose(many, np.stack([once, once]), rtol=1e-5, atol=1e-6)
    cut = split(tl.Executor(optimization_level=tl.OptimizationLevel.NONE).plan(small, {"x": X}).graph, "x", 0)
    assert cut is not None and [join.how for join in cut.joins] == ["concat"]


def test_weights_that_stay_inputs_are_rounded_in_each_run() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.einsum("ni,ij->nj", b.input("x", ("n", 24)), b.input("w", (24, 20)))))
    w = W1.reshape(24, 20)
    small = tl.quantize(graph, C(T.INT8), calibration=[{"x": X, "w": w}])
    assert small.input_names == ["x", "w"]
    exact = np.maximum(X @ w, 0)
    assert decibels(tl.Executor().execute(small, {"x": X, "w": w})["y"], exact) > 33


def test_what_is_no_product_stays_as_it_is() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 24), "float32")
    per_head = b.einsum("nhd,hde->nhe", b.reshape(x, (-1, 4, 6)), b.constant(np.ones((4, 6, 2), "f4")))
    vector = b.einsum("nd,d->n", x, b.constant(np.ones(24, "f4")))
    logic = b.einsum("nd,de->ne", b.sigmoid(x), b.constant(np.full((24, 3), 0.5, "f4")), algebra="max_product")
    real = x @ b.constant(W1.reshape(24, 20))
    small = tl.quantize(b.build(a=per_head, b=vector, c=logic, d=real), C())
    assert names(small).count("dequantize") == 1
    with pytest.raises(tl.InputError, match="no product of a value with a weight"):
        tl.quantize(b.build(c=logic), C())
    with pytest.raises(tl.DTypeError, match="is of int64; only floats"):
        tl.quantize(b.build(d=b.cast(x, "int64") @ b.constant(np.ones((24, 2), "i8"))), C())
