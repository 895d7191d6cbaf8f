"""The arithmetic of Quantize and Dequantize on NumPy arrays, in one place for kernels and for tensors that are kept packed.

The quotient is taken in float64 and rounded half to even. A product of a small whole number and a float32 scale is rounded
once, so it is the same whether it is taken in float32 or float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ops import Dequantize, Quantize
from .packed_numbers import FLOAT8, KINDS, decode_float8, encode_float8

Array = NDArray[Any]


def spread_scales(scales: Any, shape: tuple[int, ...], op: Quantize | Dequantize) -> Array:
    """Return scales, or zero points, so that they broadcast against their tensor.

    >>> spread_scales([1.0, 2.0], (5,), Quantize("int8", group=3))
    array([1., 1., 1., 2., 2.])
    """
    array = np.asarray(scales)
    if array.ndim == 0:
        return array
    if op.group is not None:
        if array.shape[-1] == 1:
            return array
        return np.asarray(np.repeat(array, op.group, axis=-1)[..., : shape[-1]])
    wide = [1] * len(shape)
    wide[op.axis or 0] = array.shape[0]
    return array.reshape(wide)


def quantize_array(x: Any, scale: Any, zero: Any, op: Quantize) -> Array:
    """Return what the operation makes of an array.

    >>> quantize_array(np.array([0.5, 1.5, -9.0]), 1.0, 0, Quantize("int8", kind="int4"))
    array([ 0,  2, -8], dtype=int8)
    """
    x = np.asarray(x)
    steps = np.divide(x, spread_scales(scale, x.shape, op), dtype=np.float64)
    zeros = spread_scales(zero, x.shape, op)
    if op.kind in FLOAT8:
        return decode_float8(encode_float8(steps + zeros, op.kind), op.kind)
    if op.kind == "binary":
        return np.where(steps < 0, np.int8(-1), np.int8(1))
    row = KINDS.get(op.kind or op.dtype)
    low, high = (row.low, row.high) if row else (np.iinfo(op.dtype).min, np.iinfo(op.dtype).max)
    bad = np.isnan(steps)
    whole = np.clip(np.rint(steps) + zeros, low, high)
    if bad.any():
        whole = np.where(bad, 0.0, whole)
    if row:
        return np.asarray(whole.astype(op.dtype))
    return np.where(whole >= high, high, whole.astype(op.dtype))  # float64 cannot hold 2^63 - 1


def dequantize_array(q: Any, scale: Any, zero: Any, op: Dequantize, dtype: str) -> Array:
    """Return what the operation makes of an array.

    >>> dequantize_array(np.array([3, -1], np.int8), np.float32(0.5), 1, Dequantize(), "float32")
    array([ 1., -1.], dtype=float32)
    """
    q = np.asarray(q)
    scales, zeros = spread_scales(scale, q.shape, op), spread_scales(zero, q.shape, op)
    if dtype == "float32" and q.dtype.itemsize == 1 and scales.dtype == np.float32:
        away = q.astype(np.float32)
        if zeros.any():
            away -= zeros
        return np.asarray(np.multiply(away, scales, out=away) if away.ndim else away * scales)
    if q.dtype.kind == "f":
        return np.asarray(((q - zeros) * scales.astype(np.float64)).astype(dtype))
    return np.asarray(((q.astype(np.int64) - zeros.astype(np.int64)) * scales.astype(np.float64)).astype(dtype))
