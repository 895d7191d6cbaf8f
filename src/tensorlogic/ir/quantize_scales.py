"""Scales and zero points: from the range of values, from their mean size, or by search for the least squared error."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .ops import Dequantize, Quantize
from .packed_numbers import KINDS
from .quantize_arrays import dequantize_array, quantize_array

Array = NDArray[Any]
TINY = float(np.finfo(np.float32).tiny)  # the least scale, so that nothing is ever divided by 0
FACTORS = np.linspace(1.0, 0.3, 36)[1:]  # of the scale of the range, that a search tries
ROUNDS = 12  # of the search for the threshold of ternary numbers


def range_scales(low: Any, high: Any, kind: str, *, symmetric: bool) -> tuple[Array, Array]:
    """Return the scales (float32) and zero points (int32) by which numbers of a kind cover ranges of values; 0 is in each.

    >>> range_scales(np.float64(-1.0), np.float64(3.0), "uint8", symmetric=False)
    (array(0.01568628, dtype=float32), array(64, dtype=int32))
    """
    row = KINDS[kind]
    low, high = np.minimum(low, 0.0), np.maximum(high, 0.0)
    if symmetric or row.dtype == "float32":
        middle = (row.high + row.low + 1) // 2 if row.low == 0 else 0
        most = np.maximum(-low, high)
        scale = _no_zero(most / (row.high - middle), most)
        return scale, np.full(scale.shape, middle, np.int32)
    scale = _no_zero((high - low) / (row.high - row.low), high - low)
    zero = np.clip(np.rint(row.low - low / scale), row.low, row.high)
    return scale, np.asarray(zero, np.int32)


def _no_zero(scale: Array, most: Array) -> Array:
    """Return scales as float32: 1 where all values are 0, and never less than the least normal number."""
    return np.asarray(np.where(most > 0, np.clip(scale, TINY, np.finfo(np.float32).max), 1.0), np.float32)


def scales_of(
    values: Array, kind: str, axis: int | None, group: int | None, *, symmetric: bool, search: bool
) -> tuple[Array, Array]:
    """Return the scales and zero points of an array, one for each slice along an axis or group of the last one."""
    rows = as_rows(values, axis, group)
    shape = () if rows.ndim == 1 else rows.shape[:-1]
    flat = rows.reshape(math.prod(shape), rows.shape[-1])
    if kind == "binary":
        scale = _mean_size(flat)
        zero = np.zeros(scale.shape, np.int32)
    elif kind == "ternary":
        scale = _ternary(flat)
        zero = np.zeros(scale.shape, np.int32)
    else:
        low, high = (f(flat, axis=-1, initial=0.0, where=~np.isnan(flat)) for f in (np.min, np.max))
        scale, zero = range_scales(low.astype(np.float64), high.astype(np.float64), kind, symmetric=symmetric)
        if search:
            scale, zero = searched(flat, kind, scale, zero)
    return scale.reshape(shape), zero.reshape(shape)


def as_rows(values: Array, axis: int | None, group: int | None) -> Array:
    """Return an array with what shares a scale as last axis; a last group that is shorter is filled up with NaN.

    >>> as_rows(np.arange(3.0), None, 2).tolist()
    [[0.0, 1.0], [2.0, nan]]
    """
    if group is not None:
        missing = -values.shape[-1] % group
        if missing:
            values = np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)], constant_values=np.nan)
        return values.reshape(*values.shape[:-1], values.shape[-1] // group, group)
    if axis is None:
        return values.reshape(-1)
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def _mean_size(rows: Array) -> Array:
    """Return the mean size of the values of each row: of all scales of -1 and +1 the one with the least squared error."""
    size = np.where(np.isnan(rows), 0.0, np.abs(rows)).astype(np.float64)
    count = np.maximum((~np.isnan(rows)).sum(-1), 1)
    return np.asarray(np.maximum(size.sum(-1) / count, TINY), np.float32)


def _ternary(rows: Array) -> Array:
    """Return for each row the scale that is the mean of the sizes above half of it: they settle in a few rounds."""
    size = np.where(np.isnan(rows), 0.0, np.abs(rows)).astype(np.float64)
    most = size.max(-1, initial=0.0)
    scale = 1.4 * size.sum(-1) / np.maximum((~np.isnan(rows)).sum(-1), 1)  # where a normal distribution nearly settles
    for _ in range(ROUNDS):
        above = size > scale[:, None] / 2
        count = above.sum(-1)
        scale = np.where(count > 0, (size * above).sum(-1) / np.maximum(count, 1), most)
    return _no_zero(scale, most)


def searched(rows: Array, kind: str, scale: Array, zero: Array) -> tuple[Array, Array]:
    """Return for each row the scale, of those below the one of its range, with the least squared error."""
    best = np.full(len(rows), np.inf)
    found = scale.copy()
    op, back = Quantize(KINDS[kind].dtype, 0, None, kind), Dequantize(0)
    values = np.where(np.isnan(rows), 0.0, rows).astype(np.float32)
    for factor in (1.0, *FACTORS):
        trial = np.maximum(scale * np.float32(factor), np.float32(TINY))
        numbers = quantize_array(values, trial, zero, op)
        error = np.square(dequantize_array(numbers, trial, zero, back, "float32") - values, dtype=np.float64).sum(-1)
        better = error < best
        best, found = np.where(better, error, best), np.where(better, trial, found)
    return np.asarray(found, np.float32), zero
