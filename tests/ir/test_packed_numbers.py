"""Small numbers as bytes: they come back, and lie as ml_dtypes and onnx say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorlogic.ir.packed_numbers import (
    FLOAT8,
    KINDS,
    NARROW,
    decode_float8,
    encode_float8,
    float8_table,
    pack,
    pack_numbers,
    packed_size,
    unpack,
    unpack_numbers,
)


@given(st.sampled_from([1, 2, 4]), st.booleans(), st.integers(0, 40), st.integers(0, 2**32 - 1))
def test_integers_come_back_and_take_as_few_bytes_as_they_can(bits: int, signed: bool, count: int, seed: int) -> None:
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    values = np.random.default_rng(seed).integers(low, high + 1, (2, 3, count)).astype(np.int8)
    if bits == 1 and signed:
        values = np.where(values < 0, np.int8(-1), np.int8(1))
    packed = pack(values, bits, signed=signed)
    assert packed.shape == (2, 3, packed_size(count, bits))
    np.testing.assert_array_equal(unpack(packed, bits, count, signed=signed), values)


def test_the_first_number_is_in_the_low_bits_and_the_rest_of_the_last_byte_is_zero() -> None:
    assert pack(np.array([1, -8, 7], np.int8), 4).tolist() == [0x81, 0x07]
    assert pack(np.array([1, 0, -1, -2, 1], np.int8), 2).tolist() == [0b10_11_00_01, 0b01]
    assert pack(np.array([1, -1, 1, 1], np.int8), 1).tolist() == [0b1101]


@pytest.mark.parametrize(("kind", "name"), [("int4", "int4"), ("int2", "int2")])
def test_bytes_lie_as_in_onnx_tensors(kind: str, name: str) -> None:
    onnx, ml_dtypes = pytest.importorskip("onnx"), pytest.importorskip("ml_dtypes")
    values = np.random.default_rng(0).integers(KINDS[kind].low, KINDS[kind].high + 1, 37).astype(np.int8)
    theirs = onnx.numpy_helper.from_array(values.astype(getattr(ml_dtypes, name)))
    assert pack_numbers(values, kind).tobytes() == theirs.raw_data


@pytest.mark.parametrize("kind", list(FLOAT8))
def test_floats_of_8_bits_are_those_of_ml_dtypes(kind: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    theirs = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}[kind]
    table = np.arange(256, dtype=np.uint8).view(theirs).astype(np.float32)
    np.testing.assert_array_equal(float8_table(kind), table)
    finite = table[np.isfinite(table)]
    ties = (np.sort(finite)[1:].astype("f8") + np.sort(finite)[:-1]) / 2
    rng = np.random.default_rng(0)
    spread = rng.normal(size=20_000) * np.exp(rng.normal(size=20_000) * 5)
    x = np.clip(np.concatenate([ties, spread, finite]), -KINDS[kind].high, KINDS[kind].high).astype(np.float32)
    np.testing.assert_array_equal(encode_float8(x, kind), x.astype(theirs).view(np.uint8))


@pytest.mark.parametrize("kind", list(FLOAT8))
def test_floats_that_are_too_large_become_the_largest_and_nan_stays(kind: str) -> None:
    most = KINDS[kind].high
    values = decode_float8(encode_float8(np.array([1e30, -np.inf, np.nan, most]), kind), kind)
    np.testing.assert_array_equal(values, [most, -most, np.nan, most])


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_kind_of_number_comes_back(kind: str) -> None:
    row = KINDS[kind]
    if kind in FLOAT8:
        values = float8_table(kind)[np.isfinite(float8_table(kind))]
    else:
        values = np.array([v for v in range(row.low, row.high + 1) if v or kind != "binary"], row.dtype)
    packed = pack_numbers(values, kind)
    assert packed.dtype == np.uint8 and packed.shape == (packed_size(len(values), row.bits),)
    np.testing.assert_array_equal(unpack_numbers(packed, kind, len(values)), values)
    assert (kind in NARROW) == (row.bits < 8)


@pytest.mark.parametrize("kind", ["e4m3", "e5m2"])
@pytest.mark.parametrize("value", [3.0, -448.0, np.nan, 0.0])
def test_a_number_alone_is_coded_as_in_an_array(kind: str, value: float) -> None:
    assert encode_float8(np.array(value), kind) == encode_float8(np.array([value]), kind)[0]
    assert encode_float8(np.array(value), kind).shape == ()
