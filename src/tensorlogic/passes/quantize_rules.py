"""Rules by which pairs of Quantize and Dequantize sink into products, fold into their neighbours, and cancel where they meet."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import ops, spec
from ..ir.ops import add_constant
from ..ir.packed_numbers import KINDS, PACKED, pack_numbers, unpack_numbers
from ..ir.quantize_arrays import quantize_array
from ..ir.types import Array, normal_axis
from .rewrite import Draft, Rules

LARGEST_SUM = (1 << 31) - 1
BYTES = ("int8", "uint8")


def _held(draft: Draft, i: int) -> Array | None:
    """Return the numbers that a node holds without any input: a constant, an unpacked one, a literal; else None."""
    op = draft.op(i)
    if isinstance(op, ops.Constant):
        return draft.constants[op.digest]
    if isinstance(op, ops.Literal):
        return np.asarray(op.value)
    if isinstance(op, ops.Unpack) and (packed := _held(draft, draft.args(i)[0])) is not None:
        return unpack_numbers(packed, op.kind, int(op.count))
    if isinstance(op, ops.Reshape) and (value := _held(draft, draft.args(i)[0])) is not None:
        return value.reshape([int(d) for d in draft.type(i).shape or ()])
    if isinstance(op, ops.Transpose) and (value := _held(draft, draft.args(i)[0])) is not None:
        return np.transpose(value, op.order)
    return None


def _constant(draft: Draft, value: Any) -> int:
    return draft.make(add_constant(draft.constants, value), ())


def keep_packed(draft: Draft, op: ops.Quantize, args: tuple[int, ...]) -> int | None:
    """Quantize a constant once for all: it stays as packed numbers."""
    values, scale, zero = (_held(draft, a) for a in args)
    if values is None or scale is None or zero is None or isinstance(draft.op(args[0]), ops.Literal):
        return None
    numbers = quantize_array(values, scale, zero, op)
    if op.kind is None or op.kind not in PACKED:
        return _constant(draft, numbers)
    return draft.make(ops.Unpack(op.kind, numbers.shape[-1]), (_constant(draft, pack_numbers(numbers, op.kind)),))


def whole_number_product(draft: Draft, op: ops.Einsum, args: tuple[int, ...]) -> int | None:
    """Multiply numbers of 8 bits and add them up in int32, where both sides of a product are such; then scale the sums."""
    if op.algebra != "real" or len(args) != 2 or not all(isinstance(draft.op(a), ops.Dequantize) for a in args):
        return None
    form = spec.parse(op.spec)
    x, w = form.inputs
    if len(w) != 2 or w[1] != x[-1] or form.output != (*x[:-1], w[0]) or w[0] in x:
        return None
    (qx, sx, zx), (qw, sw, zw) = (draft.args(a) for a in args)
    of_x, of_w = draft.op(args[0]), draft.op(args[1])
    assert isinstance(of_x, ops.Dequantize) and isinstance(of_w, ops.Dequantize)
    kinds = [draft.type(q).dtype for q in (qx, qw)]
    terms = (draft.type(qw).shape or (0, 0))[1]
    numbers, scales, zeros = _held(draft, qw), _held(draft, sw), _held(draft, zw)
    x_zero = _held(draft, zx)
    if (
        not all(k in BYTES for k in kinds)
        or not isinstance(terms, int)
        or scales is None
        or zeros is None
        or x_zero is None
    ):
        return None
    by_row = of_x.group is not None
    if (by_row and (of_x.group != terms or x_zero.any())) or of_x.axis is not None or of_w.group is not None:
        return None
    if of_w.axis not in (None, 0) or (numbers is None and (zeros.any() or x_zero.any())):
        return None
    limits = [max(-KINDS[k or ""].low, KINDS[k or ""].high) for k in kinds]
    if terms * limits[0] * limits[1] > LARGEST_SUM:
        return None
    wide = [draft.make(ops.Cast("int32"), (q,)) for q in (qx, qw)]
    total = draft.add(op, (wide[0], wide[1]))
    last = len(form.output) - 1
    shift: Any = 0
    if zeros.any():  # (a - u) (b - v) = ab - ub - va + uv: what a row of a adds up to is taken v times off
        sums = draft.make(ops.Reduce("sum", (last,), True), (wide[0],))
        off = draft.make(ops.Elementwise("multiply"), (sums, _constant(draft, zeros.astype(np.int32).reshape(-1))))
        total = draft.make(ops.Elementwise("subtract"), (total, off))
        shift = shift - terms * int(x_zero) * zeros.astype(np.int64)
    if x_zero.any() and numbers is not None:
        shift = shift + int(x_zero) * numbers.astype(np.int64).sum(1)
    dtype = draft.type(args[0]).dtype or "float32"
    zero = _constant(draft, np.asarray(shift, np.int32)) if np.any(shift) else draft.make(ops.Literal.of(0), ())
    axis = last if scales.ndim or np.ndim(shift) else None
    x_scale = None if by_row else _held(draft, sx)
    if x_scale is not None:
        both = (x_scale.astype(np.float64) * scales.astype(np.float64)).astype(dtype)
        return draft.make(ops.Dequantize(axis), (total, _constant(draft, both), zero))
    result = draft.make(ops.Dequantize(axis), (total, sw, zero))
    return draft.make(ops.Elementwise("multiply"), (result, sx))


def cancel(draft: Draft, op: ops.Quantize, args: tuple[int, ...]) -> int | None:
    """Quantize what was dequantized by the same scale: the numbers themselves."""
    x, scale, zero = args
    inner = draft.op(x)
    if not isinstance(inner, ops.Dequantize) or (inner.axis, inner.group) != (op.axis, op.group):
        return None
    numbers, by, off = draft.args(x)
    same = (by, off) == (scale, zero) and draft.type(numbers).dtype == op.dtype
    return numbers if same and (op.kind is None or _kind(draft, numbers) == op.kind) else None


def _kind(draft: Draft, i: int) -> str | None:
    op = draft.op(i)
    return op.kind if isinstance(op, ops.Quantize | ops.Unpack) else None


def scaled_after(draft: Draft, op: ops.Elementwise, args: tuple[int, ...]) -> int | None:
    """Multiply or divide what was dequantized by a constant: the scale takes it up."""
    if op.fn not in ("multiply", "divide"):
        return None
    for n, other in ((0, 1), (1, 0)) if op.fn == "multiply" else ((0, 1),):
        inner, factor = draft.op(args[n]), _held(draft, args[other])
        if (
            not isinstance(inner, ops.Dequantize)
            or factor is None
            or inner.group is not None
            or draft.uses[args[n]] > 1
        ):
            continue
        q, s, z = draft.args(args[n])
        scales = _held(draft, s)
        rank = len(draft.type(args[n]).shape or ())
        if scales is None or factor.size == 0 or not np.isfinite(factor).all():
            continue
        flat = factor.reshape(-1)
        along = inner.axis is not None and normal_axis(inner.axis, rank, "dequantize") == rank - 1
        if factor.ndim and not (along and factor.ndim == 1 and scales.shape == factor.shape):
            continue
        if op.fn == "divide" and not flat.all():
            continue
        both = scales.astype(np.float64) * (flat if factor.ndim else flat[0]) ** (1 if op.fn == "multiply" else -1)
        if draft.results(op, args)[0].dtype != draft.type(args[n]).dtype or not np.isfinite(both).all():
            continue
        return draft.make(inner, (q, _constant(draft, both.astype(scales.dtype)), z))
    return None


def scaled_before(draft: Draft, op: ops.Quantize, args: tuple[int, ...]) -> int | None:
    """Quantize what was multiplied by a number: the scale is divided by it instead."""
    x, scale, zero = args
    inner = draft.op(x)
    held = _held(draft, scale)
    if not isinstance(inner, ops.Elementwise) or inner.fn != "multiply" or held is None or op.group is not None:
        return None
    for n, other in ((0, 1), (1, 0)):
        factor = _held(draft, draft.args(x)[other])
        source = draft.args(x)[n]
        if factor is None or factor.ndim or not factor > 0 or draft.type(source).dtype != draft.type(x).dtype:
            continue
        new = held.astype(np.float64) / float(factor)
        if draft.type(source).shape == draft.type(x).shape and np.isfinite(new).all() and (new > 0).all():
            return draft.make(op, (source, _constant(draft, new.astype(held.dtype)), zero))
    return None


LOWER: Rules = {ops.Quantize: (keep_packed, cancel), ops.Einsum: (whole_number_product,)}
CANCEL: Rules = {ops.Quantize: (cancel, scaled_before), ops.Elementwise: (scaled_after,)}
