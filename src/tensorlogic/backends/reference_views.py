"""The definitions of operations that move elements, and of numbers in few bits: views, padding, gathering, rounding to 8 bits and less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import ops
from ..ir.ops import Op
from ..ir.packed_numbers import FLOAT8, KINDS, float8_table
from ..ir.types import TensorType, index_error, normal_axis
from .reference_values import Array, Definition, Index, fill, indices, wrap
from .scalars import SCALARS


def _slice(op: ops.Slice, args: list[Array], types: Sequence[TensorType]) -> Array:
    starts = [(int(a), s) for a, _, s in op.ranges]
    return fill(
        types[0], lambda index: args[0][tuple(a + i * s for i, (a, s) in zip(index, starts, strict=True))].item()
    )


def _reshape(op: ops.Reshape, args: list[Array], types: Sequence[TensorType]) -> Array:
    flat = [args[0][i] for i in indices(args[0].shape)]
    shape = [int(d) for d in types[0].shape or ()]
    out = np.zeros(shape, args[0].dtype)
    for index, value in zip(indices(shape), flat, strict=True):
        out[index] = value
    return out


def _transpose(op: ops.Transpose, args: list[Array], types: Sequence[TensorType]) -> Array:
    def element(index: Index) -> Any:
        source = [0] * len(index)
        for i, axis in zip(index, op.order, strict=True):
            source[axis] = i
        return args[0][tuple(source)].item()

    return fill(types[0], element)


def _broadcast(op: ops.Broadcast, args: list[Array], types: Sequence[TensorType]) -> Array:
    x = args[0]
    return fill(
        types[0],
        lambda index: x[tuple(0 if n == 1 else index[a] for a, n in zip(op.axes, x.shape, strict=True))].item(),
    )


def _window(op: ops.Window, args: list[Array], types: Sequence[TensorType]) -> Array:
    axis = normal_axis(op.axis, args[0].ndim, "window")

    def element(index: Index) -> Any:
        *outer, within = index
        outer[axis] = outer[axis] * op.step + within * op.dilation
        return args[0][tuple(outer)].item()

    return fill(types[0], element)


def _overlap_add(op: ops.OverlapAdd, args: list[Array], types: Sequence[TensorType]) -> Array:
    x, axis = args[0], normal_axis(op.axis, args[0].ndim - 1, "overlap_add")

    def element(index: Index) -> Any:
        terms = []
        for within in range(x.shape[-1]):
            place, rest = divmod(index[axis] - within * op.dilation, op.step)
            if rest == 0 and 0 <= place < x.shape[axis]:
                terms.append(x[(*index[:axis], place, *index[axis + 1 :], within)].item())
        return wrap(sum(terms), x.dtype)

    return fill(types[0], element)


def _pad(op: ops.Pad, args: list[Array], types: Sequence[TensorType]) -> Array:
    x, value = args[0], args[1].astype(args[0].dtype).item()
    if x.dtype.kind in "iu" and value != args[1].item():
        raise OverflowError(f"the value {args[1].item()} does not fit {x.dtype}")

    def element(index: Index) -> Any:
        source = tuple(i - low for i, (low, _) in zip(index, op.widths, strict=True))
        return x[source].item() if all(0 <= i < n for i, n in zip(source, x.shape, strict=True)) else value

    return fill(types[0], element)


def _concat(op: ops.Concat, args: list[Array], types: Sequence[TensorType]) -> Array:
    axis = normal_axis(op.axis, args[0].ndim, "concat")

    def element(index: Index) -> Any:
        place = index[axis]
        for x in args:
            if place < x.shape[axis]:
                return x[(*index[:axis], place, *index[axis + 1 :])].item()
            place -= x.shape[axis]
        raise AssertionError(index)

    return fill(types[0], element)


def _gathered(op: ops.Gather | ops.ScatterAdd, x: Array, indices: Array, index: Index) -> Index:
    """Return the place in x that a gather reads, or a scatter writes, for one place of its result or updates."""
    axis = normal_axis(op.axis, x.ndim, op.name)
    inner = indices.ndim - op.batch
    place = (*index[: op.batch], *index[axis : axis + inner])
    chosen = indices[place].item()
    if not -x.shape[axis] <= chosen < x.shape[axis]:
        raise index_error(op.name, chosen, place, x.shape[axis])
    return (*index[:axis], chosen % x.shape[axis], *index[axis + inner :])


def _gather(op: ops.Gather, args: list[Array], types: Sequence[TensorType]) -> Array:
    return fill(types[0], lambda index: args[0][_gathered(op, args[0], args[1], index)].item())


def _scatter_add(op: ops.ScatterAdd, args: list[Array], types: Sequence[TensorType]) -> Array:
    dtype = np.dtype(types[0].dtype or "float64")
    out = args[0].astype(dtype)
    for index in indices(args[2].shape):
        place = _gathered(op, args[0], args[1], index)
        total = out[place].item() or 0
        out[place] = wrap(total + args[2][index].item(), dtype) if dtype != np.bool_ else total or args[2][index].item()
    return out


def _cast(op: ops.Cast, args: list[Array], types: Sequence[TensorType]) -> Array:
    return args[0].astype(op.dtype)


def _channel(x: Array, op: ops.Quantize | ops.Dequantize, index: Index) -> Any:
    if not x.ndim:
        return x.item()
    if op.group is not None:
        return x[(*index[:-1], index[-1] // op.group)].item()
    return x[index[op.axis or 0]].item()


def _quantize(op: ops.Quantize, args: list[Array], types: Sequence[TensorType]) -> Array:
    x, scale, zero = args
    row = KINDS.get(op.kind or "")
    low, high = (row.low, row.high) if row else (int(np.iinfo(op.dtype).min), int(np.iinfo(op.dtype).max))

    def element(index: Index) -> Any:
        value = SCALARS["divide"](x[index].item(), _channel(scale, op, index))
        if op.kind in FLOAT8:
            return _nearest_float8(value + _channel(zero, op, index), op.kind)
        if op.kind == "binary":
            return -1 if value < 0 else 1
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return high if value > 0 else low
        return max(low, min(high, round(value) + _channel(zero, op, index)))

    return fill(types[0], element)


def _nearest_float8(value: float, kind: str) -> float:
    """Return the finite value of the table that is nearest, of two the one with the even code."""
    if math.isnan(value):
        return value
    size, sign = min(abs(value), KINDS[kind].high), math.copysign(1.0, value)
    codes = [
        (abs(float(v) - size), code % 2, float(v)) for code, v in enumerate(float8_table(kind)[:128]) if v < math.inf
    ]
    return sign * min(codes)[2]


def _dequantize(op: ops.Dequantize, args: list[Array], types: Sequence[TensorType]) -> Array:
    q, scale, zero = args
    return fill(types[0], lambda index: (q[index].item() - _channel(zero, op, index)) * _channel(scale, op, index))


def _unpack(op: ops.Unpack, args: list[Array], types: Sequence[TensorType]) -> Array:
    kind = KINDS[op.kind]
    each = 8 // kind.bits

    def element(index: Index) -> Any:
        byte = args[0][(*index[:-1], index[-1] // each)].item()
        if op.kind in FLOAT8:
            return float8_table(op.kind)[byte].item()
        code = byte >> kind.bits * (index[-1] % each) & ((1 << kind.bits) - 1)
        if op.kind == "binary":
            return 2 * code - 1
        return code if kind.low == 0 or code < 1 << (kind.bits - 1) else code - (1 << kind.bits)

    return fill(types[0], element)


MOVING: dict[type[Op], Definition] = {
    ops.Slice: _slice,
    ops.Reshape: _reshape,
    ops.Transpose: _transpose,
    ops.Broadcast: _broadcast,
    ops.Window: _window,
    ops.OverlapAdd: _overlap_add,
    ops.Pad: _pad,
    ops.Concat: _concat,
    ops.Gather: _gather,
    ops.ScatterAdd: _scatter_add,
    ops.Cast: _cast,
    ops.Quantize: _quantize,
    ops.Dequantize: _dequantize,
    ops.Unpack: _unpack,
}
