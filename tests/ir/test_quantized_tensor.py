"""Quantized tensors: rounding as onnx has it, scales of every granularity, files, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.ir.ops import Dequantize, Quantize
from tensorlogic.ir.packed_numbers import KINDS
from tensorlogic.ir.quantize_arrays import dequantize_array, quantize_array
from tensorlogic.ir.quantized_files import load_quantized, save_quantized

T, G = tl.QuantizationType, tl.QuantizationGranularity
GRANULARITIES = (G.PER_TENSOR, G.PER_CHANNEL(0), G.PER_CHANNEL(-1), G.PER_GROUP(4), G.PER_GROUP(5), G.PER_GROUP(1000))
OURS = {"int4": "int4", "int2": "int2", "float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}  # by ml_dtypes' names


def node_tests(module: str, operation: str) -> list[tuple[Any, list[Any], list[Any], str]]:
    """Return onnx's own node tests of an operation, as (node, inputs, outputs, name)."""
    onnx = pytest.importorskip("onnx")
    from importlib import import_module

    cases = import_module(f"onnx.backend.test.case.node.{module}")
    found: list[Any] = []
    before = cases.expect
    cases.expect = lambda node, inputs, outputs, name, **more: found.append((node, inputs, outputs, name))
    try:
        for name in dir(getattr(cases, operation)):
            if name.startswith("export"):
                getattr(getattr(cases, operation), name)()
    finally:
        cases.expect = before
    arrays = [
        [[x if hasattr(x, "dtype") else onnx.numpy_helper.to_array(x) for x in side] for side in case[1:3]]
        for case in found
    ]
    return [(case[0], *sides, case[3]) for case, sides in zip(found, arrays, strict=True)]


def place(node: Any, x: Any, scale: Any) -> tuple[int | None, int | None, Any]:
    """Return the axis and the group that a node's attributes mean, and how to bring the groups to the last axis."""
    facts = {a.name: a.i for a in node.attribute}
    if facts.get("block_size"):
        return None, facts["block_size"], lambda array: np.moveaxis(array, facts.get("axis", 1), -1)
    return (facts.get("axis", 1) if np.ndim(scale) else None), None, lambda array: array


def plain(array: Any) -> Any:
    return array.astype(np.float32 if "float" in array.dtype.name else np.int32) if array.dtype.name in OURS else array


def test_quantize_is_onnx_quantize_linear() -> None:
    done = 0
    for node, (x, scale, *zero), (expected,), name in node_tests("quantizelinear", "QuantizeLinear"):
        kind = OURS.get(expected.dtype.name)
        if expected.dtype.name not in KINDS and kind is None and expected.dtype.kind not in "iu":
            continue  # uint4, uint2 and floats of 4 bits are not ours
        if expected.dtype.name in ("uint4", "uint2"):
            continue
        axis, group, move = place(node, x, scale)
        off = plain(zero[0]) if zero else np.zeros_like(scale, np.int32)
        off = off.astype(np.int32) if np.ndim(scale) else np.int32(np.ravel(off)[0])
        dtype = KINDS[kind].dtype if kind else expected.dtype.name
        op = Quantize(dtype, axis, group, kind)
        got = quantize_array(move(x), move(scale) if group else scale, move(off) if group else off, op)
        np.testing.assert_array_equal(got, plain(move(expected)), err_msg=name)
        done += 1
    assert done >= 10


def test_dequantize_is_onnx_dequantize_linear() -> None:
    done = 0
    for node, (q, scale, *zero), (expected,), name in node_tests("dequantizelinear", "DequantizeLinear"):
        if q.dtype.name in ("uint4", "uint2", "float4_e2m1fn"):
            continue
        axis, group, move = place(node, q, scale)
        off = plain(zero[0]).astype(np.int32) if zero else np.zeros_like(scale, np.int32)
        off = off if np.ndim(scale) else np.int32(np.ravel(off)[0])
        op = Dequantize(axis, group)
        numbers, scales, zeros = (move(a) if group else a for a in (plain(q), scale, off))
        got = dequantize_array(numbers, scales, zeros, op, expected.dtype.name)
        np.testing.assert_array_equal(got, move(expected), err_msg=name)
        done += 1
    assert done >= 9


@given(st.sampled_from(list(T)), st.sampled_from(GRANULARITIES), st.booleans(), st.booleans(), st.integers(0, 999))
def test_every_value_is_at_most_half_a_step_away(
    kind: Any, granularity: Any, symmetric: bool, search: bool, seed: int
) -> None:
    x = np.random.default_rng(seed).normal(size=(5, 13)).astype(np.float32)
    t = tl.QuantizedTensor.of(x, kind, granularity, symmetric=symmetric, search=search)
    back = np.asarray(t)
    assert back.dtype == np.float32 and back.shape == x.shape
    row = KINDS[kind.value]
    numbers = t.numbers()
    assert numbers.min() >= row.low and numbers.max() <= row.high
    if kind in (T.INT8, T.UINT8, T.INT4) and not search:
        step = dequantize_array(
            np.ones(x.shape, np.int8), t.scales, np.zeros_like(t.zero_points), Dequantize(t.axis, t.group), "float32"
        )
        limit = 0.5 if symmetric and kind is not T.UINT8 else 1.0  # a rounded zero point moves the ends of the range
        assert (np.abs(back - x) <= step * (limit + 1e-5)).all()
    assert t == tl.QuantizedTensor.of(x, kind, granularity, symmetric=symmetric, search=search)


@pytest.mark.parametrize("kind", list(T))
@pytest.mark.parametrize("symmetric", [True, False])
def test_zeros_and_constants_need_no_division_by_zero(kind: Any, symmetric: bool) -> None:
    for value in (0.0, 3.0, -2.5, 1e-45, 3e38):
        x = np.full((2, 3), value, np.float32)
        back = np.asarray(tl.QuantizedTensor.of(x, kind, G.PER_CHANNEL(0), symmetric=symmetric))
        assert np.isfinite(back).all()
        if value == 0.0:
            assert np.abs(back).max() < 1e-37
        elif abs(value) > 1e-30 and kind not in (T.INT2, T.BINARY, T.TERNARY):
            np.testing.assert_allclose(back, x, rtol=0.07)
    empty = tl.QuantizedTensor.of(np.zeros((0, 3), np.float32), kind, symmetric=symmetric)
    assert np.asarray(empty).shape == (0, 3)


def test_a_scalar_and_bytes_of_each_kind() -> None:
    assert np.asarray(tl.QuantizedTensor.of(np.float32(2.5))).shape == ()
    x = np.ones((4, 33), np.float32)
    sizes = {kind.name: tl.QuantizedTensor.of(x, kind).packed.nbytes for kind in T}
    assert sizes == {"INT8": 132, "UINT8": 132, "INT4": 68, "INT2": 36, "FP8_E4M3": 132, "FP8_E5M2": 132, "TERNARY": 36, "BINARY": 20}  # fmt: skip


def test_a_search_of_scales_makes_the_squared_error_less() -> None:
    x = np.random.default_rng(0).standard_t(4, size=(8, 64)).astype(np.float32)
    for kind in (T.INT4, T.INT2):
        errors = [
            np.square(np.asarray(tl.QuantizedTensor.of(x, kind, G.PER_CHANNEL(0), search=s)) - x).sum() for s in (0, 1)
        ]
        assert errors[1] < 0.9 * errors[0]


@pytest.mark.parametrize("kind", list(T))
def test_files_bring_tensors_back(kind: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
    tensors = {str(g): tl.QuantizedTensor.of(x, kind, g, symmetric=False) for g in GRANULARITIES}
    save_quantized(tensors, tmp_path / "w.safetensors")
    assert load_quantized(tmp_path / "w.safetensors") == tensors
    tensors["per tensor"].save(tmp_path / "one.safetensors")
    assert tl.QuantizedTensor.load(tmp_path / "one.safetensors") == tensors["per tensor"]


def test_files_that_are_cut_short_or_lie_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    tl.QuantizedTensor.of(np.ones((3, 7)), T.INT4, G.PER_CHANNEL(0)).save(path)
    whole = path.read_bytes()
    for stop in range(0, len(whole), 7):
        path.write_bytes(whole[:stop])
        with pytest.raises(tl.FormatError, match="no whole file") as error:
            tl.QuantizedTensor.load(path)
        assert error.value.diagnostic.code == "E322"
    lies = [
        (b"[3,7]", b"[3,9]"), (b'\\"axis\\":0', b'\\"axis\\":5'), (b'\\"axis\\":0', b'\\"axis\\":1'),
        (b'\\"int4\\"', b'\\"int9\\"'), (b'\\"int4\\"', b'\\"int2\\"'),
    ]  # fmt: skip
    done = 0
    for old, new in lies:
        if old in whole:
            path.write_bytes(whole.replace(old, new, 1))
            with pytest.raises(tl.FormatError) as error:
                tl.QuantizedTensor.load(path)
            assert error.value.diagnostic.code in ("E322", "E323")
            done += 1
    assert done == len(lies)
    from safetensors.numpy import save

    path.write_bytes(save({"x": np.zeros(3)}))
    with pytest.raises(tl.FormatError, match="holds no quantized tensors"):
        load_quantized(path)
    with pytest.raises(tl.FormatError, match="there is no file"):
        load_quantized(tmp_path / "none")


def test_what_cannot_be_quantized_says_why() -> None:
    with pytest.raises(tl.DTypeError, match="'w' is of int64; only floats"):
        tl.QuantizedTensor.of(np.arange(3), name="w")
    for bad in (np.nan, np.inf):
        with pytest.raises(
            tl.InputError, match=r"1 of 4 values of the tensor 'w' are NaN or infinite, the first at \[1, 0\]"
        ):
            tl.QuantizedTensor.of(np.array([[1.0, 2.0], [bad, 3.0]]), name="w")
    with pytest.raises(tl.InputError, match="infinite"):
        tl.QuantizedTensor.of(np.array([1e300]))  # more than float32 holds
    with pytest.raises(tl.ShapeError, match="axis"):
        tl.QuantizedTensor.of(np.ones((2, 2)), granularity=G.PER_CHANNEL(2))
    with pytest.raises(tl.ShapeError, match="a scalar has no axis"):
        tl.QuantizedTensor.of(1.0, granularity=G.PER_GROUP(4))
    with pytest.raises(tl.InputError):
        G.PER_GROUP(0)
    with pytest.raises(tl.InputError):
        G.PER_CHANNEL("rows")
    with pytest.raises(tl.DTypeError):
        tl.QuantizedTensor.of([1.0]).dequantize("int8")
