"""Small numbers as bytes: integers of 1, 2 and 4 bits, several to a byte, and floats of 8 bits.

Integers are packed along the last axis, element 0 in the low bits, the last byte filled up with zeros. Those of 2 and 4
bits are in two's complement (-2..1 and -8..7) or unsigned (0..3 and 0..15); of one bit, signed is -1 (bit 0) or +1
(bit 1) and unsigned 0 or 1. Floats of 8 bits are E4M3 (no infinities, at most 448) and E5M2 (at most 57344), read by a
table of their 256 values and written by rounding to the nearest one, a tie going to the even code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
FLOAT8 = {"e4m3": (3, 7), "e5m2": (2, 15)}  # bits of the fraction, bias of the exponent


class NumberKind(NamedTuple):
    """A kind of small number: its bits, the least and the greatest value, and the dtype that holds it unpacked.

    >>> KINDS["int4"].low, KINDS["int4"].high, KINDS["int4"].dtype
    (-8, 7, 'int8')
    """

    bits: int
    low: int
    high: int
    dtype: str = "int8"


KINDS = {
    "int8": NumberKind(8, -128, 127),
    "uint8": NumberKind(8, 0, 255, "uint8"),
    "int4": NumberKind(4, -8, 7),
    "int2": NumberKind(2, -2, 1),
    "ternary": NumberKind(2, -1, 1),
    "binary": NumberKind(1, -1, 1),
    "e4m3": NumberKind(8, -448, 448, "float32"),
    "e5m2": NumberKind(8, -57344, 57344, "float32"),
}
PACKED = tuple(name for name in KINDS if "int8" not in name)  # those whose bytes are not the numbers themselves
NARROW = tuple(name for name in PACKED if KINDS[name].dtype == "int8")  # whole numbers, several to a byte


def packed_size(count: int, bits: int) -> int:
    """Return how many bytes hold ``count`` numbers of some bits.

    >>> packed_size(5, 4), packed_size(0, 2), packed_size(9, 1)
    (3, 0, 2)
    """
    return -(-count * bits // 8)


def pack(values: Array, bits: int, *, signed: bool = True) -> Array:
    """Return integers of 1, 2 or 4 bits as bytes, along the last axis.

    >>> pack(np.array([1, -8, 7], np.int8), 4), pack(np.array([1, -1, 1], np.int8), 1)
    (array([129,   7], dtype=uint8), array([5], dtype=uint8))
    """
    codes = (values > 0 if bits == 1 and signed else values).astype(np.uint8) & ((1 << bits) - 1)
    if bits == 1:
        return np.packbits(codes, axis=-1, bitorder="little")
    each = 8 // bits
    count = values.shape[-1]
    whole = packed_size(count, bits)
    if whole * each != count:
        codes = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, whole * each - count)])
    out = codes[..., 0::each].copy()
    for n in range(1, each):
        out |= codes[..., n::each] << np.uint8(n * bits)
    return out


@lru_cache(8)
def byte_table(bits: int, signed: bool) -> Array:
    """Return, for each of the 256 bytes, the numbers of some bits that it holds, as int8."""
    codes = np.arange(256)[:, None] >> np.arange(0, 8, bits) & ((1 << bits) - 1)
    if signed:
        codes = 2 * codes - 1 if bits == 1 else codes - ((codes >> (bits - 1)) << bits)
    table = codes.astype(np.int8)
    table.setflags(write=False)
    return table


def unpack(packed: Array, bits: int, count: int, *, signed: bool = True) -> Array:
    """Return the first ``count`` integers along the last axis of bytes that :func:`pack` made, as int8.

    >>> unpack(np.array([129, 7], np.uint8), 4, 3)
    array([ 1, -8,  7], dtype=int8)
    """
    each = 8 // bits
    wide = byte_table(bits, signed)[packed].reshape(*packed.shape[:-1], packed.shape[-1] * each)
    return wide if wide.shape[-1] == count else np.ascontiguousarray(wide[..., :count])


@lru_cache(4)
def float8_table(kind: str) -> Array:
    """Return the 256 values of a float of 8 bits as float32, in the order of their codes.

    >>> float8_table("e4m3")[[0, 1, 0x7E, 0x7F, 0x80]].tolist()
    [0.0, 0.001953125, 448.0, nan, -0.0]
    """
    fractions, bias = FLOAT8[kind]
    code = np.arange(128)
    exponent, fraction = code >> fractions, (code & ((1 << fractions) - 1)) / (1 << fractions)
    with np.errstate(over="ignore"):
        values = np.where(exponent == 0, np.ldexp(fraction, 1 - bias), np.ldexp(1 + fraction, exponent - bias))
    if kind == "e4m3":
        values[127] = np.nan
    else:
        values[124] = np.inf
        values[125:] = np.nan
    table = np.concatenate([values, -values]).astype(np.float32)
    table.setflags(write=False)
    return table


@lru_cache(4)
def _midpoints(kind: str) -> Array:
    values = float8_table(kind)[:128].astype(np.float64)
    finite = values[np.isfinite(values)]
    return (finite[1:] + finite[:-1]) / 2  # exact: each needs one bit more than its neighbours


def encode_float8(values: Array, kind: str) -> Array:
    """Return the codes of the nearest floats of 8 bits; a tie goes to the even code, what is too large to the largest.

    >>> encode_float8(np.array([1.0, -1.0, 1e9, 17.0]), "e4m3")
    array([ 56, 184, 126,  88], dtype=uint8)
    """
    wide = np.asarray(values, np.float64)
    size = np.abs(wide)
    middle = _midpoints(kind)
    code = np.searchsorted(middle, size).astype(np.uint8)
    tie = middle[np.minimum(code, len(middle) - 1)] == size
    code += tie & (code % 2 == 1)
    code = np.where(np.isnan(wide), np.uint8(0x7F), code)
    return np.asarray(code | (np.signbit(wide).astype(np.uint8) << 7), np.uint8)


def decode_float8(codes: Array, kind: str) -> Array:
    """Return the values that codes of floats of 8 bits stand for, as float32.

    >>> decode_float8(np.array([56, 184], np.uint8), "e4m3").tolist()
    [1.0, -1.0]
    """
    return np.asarray(float8_table(kind)[codes])


def pack_numbers(values: Array, kind: str) -> Array:
    """Return numbers of a kind as bytes, along the last axis.

    >>> pack_numbers(np.array([1.0, -448.0]), "e4m3"), pack_numbers(np.array([-1, 1], np.int8), "ternary")
    (array([ 56, 254], dtype=uint8), array([7], dtype=uint8))
    """
    if kind in FLOAT8:
        return encode_float8(values, kind)
    if kind in NARROW:
        return pack(values, KINDS[kind].bits)
    return np.ascontiguousarray(values).view(np.uint8)


def unpack_numbers(packed: Array, kind: str, count: int) -> Array:
    """Return the numbers of a kind that bytes hold, in the dtype of the kind.

    >>> unpack_numbers(np.array([7], np.uint8), "ternary", 2)
    array([-1,  1], dtype=int8)
    """
    if kind in FLOAT8:
        return decode_float8(packed, kind)
    if kind in NARROW:
        return unpack(packed, KINDS[kind].bits, count)
    return packed.view(KINDS[kind].dtype)
