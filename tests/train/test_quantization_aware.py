"""Learning with rounded weights: scales learn, it pays, and the converted graph answers as the learning one did."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl

T, G, A, C = tl.QuantizationType, tl.QuantizationGranularity, tl.ActivationMode, tl.QuantizationConfig
RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 32)).astype("f4")
LABELS = (X @ RNG.normal(size=(32, 4))).argmax(-1)
DATA = {"x": X, "labels": LABELS}


def network(b: tl.GraphBuilder) -> tl.Tensor:
    x = b.input("x", ("n", 32), "float32")
    z = b.relu(b.linear(x, b.input("w1", (32, 24), "float32"), b.input("c1", (24,), "float32")))
    return b.linear(z, b.input("w2", (24, 4), "float32"), b.input("c2", (4,), "float32"))


def _graphs() -> tuple[tl.EinsumGraph, tl.EinsumGraph]:
    b = tl.GraphBuilder()
    y = network(b)
    return b.build(y=y), b.build(loss=b.cross_entropy(y, b.input("labels", ("n",), "int64")))


MODEL, LOSS = _graphs()


def learn(loss: tl.EinsumGraph, params: Any, epochs: int, **more: Any) -> dict[str, Any]:
    config = tl.TrainerConfig(optimizer=tl.optim.adam(5e-3), epochs=epochs, batch_size=40, **more)
    trainer = tl.Trainer(tl.Executor(), config)
    trainer.fit(loss, params, DATA)
    return trainer.params


PARAMS = learn(LOSS, tl.initial(LOSS, ["w1", "c1", "w2", "c2"], "he", seed=0), 15)


def right(graph: tl.EinsumGraph, params: Any = None) -> float:
    y = tl.Executor().execute(graph, {"x": X, **(params or {})})["y"]
    return float(np.mean(y.argmax(-1) == LABELS))


def weights(graph: tl.EinsumGraph, given: Any) -> list[Any]:
    """Return the weights that a graph multiplies by, after rounding."""
    places = [n for n, node in enumerate(graph.nodes) if node.op.name == "dequantize"]
    asked = tl.EinsumGraph(graph.nodes, [(f"w{n}", at) for n, at in enumerate(places)], graph.constants)
    return list(tl.Executor().execute(asked, given).values())


@pytest.mark.parametrize(
    ("kind", "granularity"), [(T.TERNARY, G.PER_CHANNEL()), (T.INT2, G.PER_GROUP(8)), (T.BINARY, G.PER_TENSOR)]
)
def test_learning_with_rounding_beats_rounding_afterwards(kind: Any, granularity: Any) -> None:
    config = C(kind, granularity)
    fake = tl.fake_quantize(LOSS, config, params=PARAMS)
    assert set(fake.scales) == {"w1.scale", "w2.scale"}
    learned = learn(
        fake.graph, {**PARAMS, **fake.scales}, 10, straight_through=True, settings={"*.scale": {"rate": 0.1}}
    )
    assert all(not np.array_equal(learned[n], fake.scales[n]) for n in fake.scales)
    after = tl.convert_quantized(MODEL, config, learned)
    afterwards = tl.quantize(MODEL, config, params=PARAMS)
    assert right(after) > right(afterwards)
    assert right(after) > right(MODEL, PARAMS) - 0.12
    asked = tl.fake_quantize(MODEL, config, params=PARAMS)
    runs = (asked.graph, {"x": X, **learned}), (after, {"x": X})
    outputs = [tl.Executor().execute(graph, given)["y"] for graph, given in runs]
    np.testing.assert_allclose(*outputs, rtol=1e-5, atol=1e-5)  # BLAS may add up transposed weights in another order
    for one, other in zip(*[weights(graph, given) for graph, given in runs], strict=True):
        np.testing.assert_array_equal(one, other)  # to the bit


def test_sums_of_whole_numbers_are_the_fake_ones_where_these_are_exact() -> None:
    config = C(T.INT4, activations=A.STATIC)
    fake = tl.fake_quantize(MODEL, config, params=PARAMS, calibration=[{"x": X}])
    assert set(fake.scales) == {"w1.scale", "w2.scale", "w1.input_scale", "w2.input_scale"}
    scales = {
        n: 2.0 ** np.round(np.log2(s)).astype("f4") for n, s in fake.scales.items()
    }  # products of these are exact
    held = {**PARAMS, **scales, "c1": np.zeros(24, "f4"), "c2": np.zeros(4, "f4")}
    small = tl.convert_quantized(MODEL, config, held)
    kinds = [small.type_of(i).dtype for i, n in enumerate(small.nodes) if n.op.name == "einsum"]
    assert kinds == ["int32", "int32"]
    both = tl.Executor().execute(fake.graph, {"x": X, **held})["y"], tl.Executor().execute(small, {"x": X})["y"]
    np.testing.assert_array_equal(*both)


def test_dynamic_activations_need_no_scale_of_their_own() -> None:
    config = C(activations=A.DYNAMIC)
    fake = tl.fake_quantize(LOSS, config, params=PARAMS)
    assert set(fake.scales) == {"w1.scale", "w2.scale"}
    learned = learn(fake.graph, {**PARAMS, **fake.scales}, 1, straight_through=True)
    small = tl.convert_quantized(MODEL, config, learned)
    assert right(small) > right(MODEL, PARAMS) - 0.05


def test_the_gradient_of_a_scale_is_what_rounding_adds() -> None:
    b = tl.GraphBuilder()
    x, s = b.input("x", (2, 5), "float64"), b.input("s", (2, 2), "float64")
    loss = b.build(loss=b.sum(b.dequantize(b.quantize(x, s, 0, "int4", group=3), s, 0, group=3)))
    given = {"x": RNG.normal(size=(2, 5)) * 3, "s": np.array([[0.5, 0.3], [0.2, 1.0]])}
    found = tl.Executor().execute(tl.grad(loss, straight_through=True), given)
    steps = given["x"] / np.repeat(given["s"], 3, 1)[:, :5]
    whole = np.clip(np.rint(steps), -8, 7)
    inside = (np.rint(steps) >= -8) & (np.rint(steps) <= 7)
    share = np.pad(np.where(inside, whole - steps, whole), [(0, 0), (0, 1)]).reshape(2, 2, 3).sum(-1)
    np.testing.assert_allclose(found["d_s"], share)
    np.testing.assert_allclose(found["d_x"], inside)


def test_mistakes_are_told() -> None:
    fake = tl.fake_quantize(LOSS, C(T.INT4), params=PARAMS)
    with pytest.raises(tl.GraphError, match="no gradient"):
        learn(fake.graph, {**PARAMS, **fake.scales}, 1)
    codes = {
        "E344": lambda: tl.convert_quantized(MODEL, C(T.INT4), PARAMS),
        "E345": lambda: tl.fake_quantize(LOSS, C(symmetric=False), params=PARAMS),
        "E326": lambda: tl.fake_quantize(LOSS, C(activations=A.STATIC), params=PARAMS),
        "E328": lambda: tl.fake_quantize(LOSS, C(), params={"c1": PARAMS["c1"]}),
        "E321": lambda: tl.fake_quantize(LOSS, C(), params={**PARAMS, "w1": np.full((32, 24), np.nan, "f4")}),
    }
    for code, call in codes.items():
        with pytest.raises(tl.TensorLogicError) as error:
            call()
        assert error.value.diagnostic.code == code
