"""Quantized weights that are no factors of plain products: rows that are looked up, and what bodies of loops read."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl

T, G, A = tl.QuantizationType, tl.QuantizationGranularity, tl.ActivationMode


def test_lookups_read_packed_rows() -> None:
    """Only the rows that are taken become floats, and they are those of the tensor."""
    rng = np.random.default_rng(0)
    table, ids = rng.normal(size=(50, 24)).astype("float32"), rng.integers(0, 50, (3, 4))
    b = tl.GraphBuilder()
    taken = b.gather(b.input("table", (50, 24), "float32"), b.input("ids", ("n", "t"), "int64"), axis=0)
    graph = b.build(y=taken)
    for kind in (T.INT8, T.UINT8, T.INT4, T.BINARY, T.FP8):
        for granularity in (G.PER_TENSOR, G.PER_CHANNEL(0), G.PER_GROUP(10)):
            symmetric = kind is not T.UINT8
            config = tl.QuantizationConfig(kind, granularity, symmetric=symmetric)
            small = tl.quantize(graph, config, params={"table": table})
            tensor = tl.QuantizedTensor.of(table, kind, granularity, symmetric=symmetric)
            np.testing.assert_array_equal(tl.Executor().execute(small, {"ids": ids})["y"], tensor.dequantize()[ids])
            assert max(a.nbytes for a in small.constants.values()) <= max(tensor.packed.nbytes, tensor.scales.nbytes)
    both = tl.QuantizationConfig(T.INT4, rounding=tl.QuantizationRounding.COMPENSATING)
    assert tl.quantize(graph, both, params={"table": table}, calibration={"ids": ids}).input_names == ["ids"]


def recurrent() -> tuple[tl.EinsumGraph, dict[str, np.ndarray], np.ndarray]:
    rng = np.random.default_rng(1)
    sizes = {"u": (8, 16), "w": (16, 16), "gate": (2, 16)}
    params = {name: (rng.normal(size=size) / 4).astype("float32") for name, size in sizes.items()}
    b = tl.GraphBuilder()
    u, w, gate = (b.input(name, size, "float32") for name, size in sizes.items())
    start = np.zeros((2, 16), "float32")
    last, _ = b.scan(lambda h, x: (b.tanh(x @ u + h @ w) * gate, h), start, b.input("x", ("t", 2, 8), "float32"))
    return b.build(y=last), params, rng.normal(size=(5, 2, 8)).astype("float32")


def test_weights_inside_of_loops_are_quantized() -> None:
    graph, params, x = recurrent()
    config = tl.QuantizationConfig(T.INT4, G.PER_GROUP(8))
    small = tl.quantize(graph, config, params=params)
    assert small.input_names == ["x"]
    rounded = {n: tl.QuantizedTensor.of(params[n].T, T.INT4, G.PER_GROUP(8)).dequantize().T for n in ("u", "w")}
    expected = tl.Executor().execute(graph, {"x": x, **params, **rounded})["y"]
    np.testing.assert_allclose(tl.Executor().execute(small, {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)
    dynamic = tl.quantize(
        graph, tl.QuantizationConfig(T.INT8, activations=A.STATIC), params=params, calibration={"x": x}
    )
    assert "int32" in str(dynamic)
    exact = tl.Executor().execute(graph, {"x": x, **params})["y"]
    np.testing.assert_allclose(tl.Executor().execute(dynamic, {"x": x})["y"], exact, atol=0.02)


def test_the_report_names_what_stays_as_it_is() -> None:
    graph, params, x = recurrent()
    config = {"w": tl.QuantizationConfig(T.INT8)}
    report = tl.QuantizationReport.of(graph, config, params=params, data={"x": x})
    assert [row.name for row in report.tensors] == ["w"]
    assert {row.name: row.readers for row in report.left if row.name in params} == {
        "u": ("einsum in a scan",),
        "gate": ("multiply in a scan",),
    }
    assert "u (8×16, 512 B) stays as it is; read by einsum in a scan" in str(report)
    assert report.outputs["y"].sqnr_db > 30
    with pytest.raises(tl.InputError, match="no weight 'v'"):
        tl.quantize(graph, {"v": tl.QuantizationConfig()}, params=params)
    b = tl.GraphBuilder()
    last, _ = b.scan(lambda c, y: (c + y, c), np.float32(0), b.input("y", ("t",), "float32"))
    with pytest.raises(tl.InputError, match="no product"):
        tl.quantize(b.build(y=last))
