"""Steps that multiply small numbers: bytes by bytes with whole sums, and floats by weights that stay packed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
from numba import types

from ...ir import ops
from ...ir.packed_numbers import KINDS, pack, unpack_numbers
from ...ir.quantize_arrays import quantize_array
from ...plan.build import Step
from ...plan.cost import Contraction
from ...plan.fused_steps import Fused
from ..base import Kernel
from ..threads import allowed, share
from .explicit import NUMBER, Explicit
from .fuzzy import bind_fuzzy
from .integer_matmul import binary_matmul, counting, integer_matmul
from .integer_matmul import make_ready as make_integers_ready
from .weight_matmul import Weights, weight_matmul
from .weight_matmul import make_ready as make_weights_ready

Array = Any
Reader = Callable[[Sequence[Array]], Array]  # from the operands of a step to one array


class _Parts:
    """The parts of a step by what they write, and how each slot is read."""

    def __init__(self, step: Step) -> None:
        assert isinstance(step.op, Fused)
        self.makers = {part.writes[0]: part for part in step.parts}
        self.product = next(part for part in step.parts if part.contraction is not None)
        self._places = {slot: n for n, slot in enumerate(step.reads)}
        self._literals = {slot: np.asarray(op.value) for slot, op in step.op.literals}

    def is_zero(self, slot: int) -> bool:
        """Tell whether a slot is known to be 0 before anything runs."""
        return slot in self._literals and not self._literals[slot].any()

    def read(self, slot: int) -> Reader:
        """Return how a slot that comes from outside is read."""
        if slot in self._literals:
            value = self._literals[slot]
            return lambda operands: value
        n = self._places[slot]
        return lambda operands: operands[n]


def _turned(form: Contraction, n: int) -> Callable[[Array], Array]:
    """Return what lays a factor out as batches of rows, with the sum's indices last."""
    own, free = form.labels[n], (form.left, form.right)[n]
    groups = (form.batch, free, form.inner)
    axes = [own.index(x) for group in groups for x in group]
    shape = [math.prod(form.sizes[x] for x in group) for group in groups]
    return lambda x: np.transpose(x, axes).reshape(shape)


class _Result:
    """Where the batches of a product go: into the result itself where its axes are in that order, else into an array beside it."""

    def __init__(self, form: Contraction, dtype: Any) -> None:
        labels = (*form.batch, *form.left, *form.right)
        self.dtype, self.in_order = dtype, labels == form.spec.output
        self.shape = [form.sizes[x] for x in form.spec.output]
        self._beside = [form.sizes[x] for x in labels]
        self._axes = [labels.index(x) for x in form.spec.output]
        self._whole = [math.prod(form.sizes[x] for x in group) for group in (form.batch, form.left, form.right)]

    def batches(self, out: Array) -> Array:
        """Return an array of batches × rows × columns to write to."""
        return (out if self.in_order else np.empty(self._beside, self.dtype)).reshape(self._whole)

    def finish(self, batches: Array, out: Array) -> None:
        """Write the batches to the result, if they are not there already."""
        if not self.in_order:
            out[...] = batches.reshape(self._beside).transpose(self._axes)


def bind_integers(step: Step) -> Kernel:
    """Return the kernel of a product of bytes; where the step also writes what it multiplies, as int32, that too."""
    parts = _Parts(step)
    form, last = parts.product.contraction, step.parts[-1]
    assert form is not None
    casts = [parts.makers[slot] for slot in parts.product.reads]
    sides = [_bytes_of(parts, cast.reads[0]) for cast in casts]
    wanted = [(casts[n], n) for n in (0, 1) if casts[n].writes[0] in step.writes]
    turns, result = [_turned(form, n) for n in (0, 1)], _Result(form, np.dtype(np.int32))
    scale, zero = (parts.read(s) for s in last.reads[1:]) if isinstance(last.op, ops.Dequantize) else (None, None)
    bits = None if wanted else _binary_sides(parts, casts, form)
    rows, columns = (math.prod(form.sizes[x] for x in free) for free in (form.left, form.right))
    if bits is not None:
        counting().load()
    else:
        make_integers_ready(rows, columns, *(cast.arg_types[0].dtype or "int8" for cast in casts))
    for part in step.parts:
        if isinstance(part.op, ops.Quantize) and part.op.kind is None:
            _quantizing(part.op.dtype).load()
    if scale is not None:
        _dequantizing().load()

    def product(factors: Sequence[Array], out: Array) -> None:
        sums = result.batches(out)
        a, b = (turn(x) for turn, x in zip(turns, factors, strict=True))
        for n in range(len(sums)):
            integer_matmul(a[n], b[n], sums[n])
        result.finish(sums, out)

    def run(*operands: Array, out: Array = None) -> Any:
        sums = out if out is not None and scale is None else np.empty(result.shape, np.int32)
        factors: list[Array] = []
        if bits is not None:
            a, b = (side(operands) for side in bits)
            binary_matmul(a, b, form.sizes[form.inner[0]], sums.reshape(-1, sums.shape[-1]))
        else:
            factors = [side(operands) for side in sides]
            product(factors, sums)
        if scale is not None and zero is not None:
            floats = np.empty(result.shape, np.float32) if out is None else out
            dequantize_sums(sums, scale(operands), zero(operands), floats)
            sums = floats
        if not wanted:
            return sums
        found = {cast.writes[0]: factors[n].astype(np.int32) for cast, n in wanted}
        return tuple(found.get(slot, sums) for slot in step.writes)

    return run


def _bytes_of(parts: _Parts, slot: int) -> Reader:
    """Return what gives a factor as bytes: as it comes, unpacked, or quantized here."""
    maker = parts.makers.get(slot)
    if maker is None:
        return parts.read(slot)
    op = maker.op
    source = parts.read(maker.reads[0])
    if isinstance(op, ops.Unpack):
        return lambda operands: unpack_numbers(source(operands), op.kind, int(op.count))
    assert isinstance(op, ops.Quantize)
    scale, zero = (parts.read(s) for s in maker.reads[1:])
    if op.kind is not None:
        return lambda operands: quantize_array(source(operands), scale(operands), zero(operands), op)
    return lambda operands: quantize_rows(source(operands), scale(operands), zero(operands), op.dtype)


def _binary_sides(parts: _Parts, casts: Sequence[Step], form: Contraction) -> list[Reader] | None:
    """Return what gives both factors as packed bits, rows × bytes, where both hold only -1 and 1; None elsewhere."""
    makers = [parts.makers.get(cast.reads[0]) for cast in casts]
    kinds = [maker.op.kind if maker and isinstance(maker.op, ops.Unpack | ops.Quantize) else None for maker in makers]
    rows = (*form.left, *form.right) == form.spec.output and len(form.right) == 1 and len(form.inner) == 1
    if kinds != ["binary", "binary"] or not rows or any(own[-1:] != form.inner for own in form.labels):
        return None
    return [_bits_of(parts, cast.reads[0]) for cast in casts]


def _bits_of(parts: _Parts, slot: int) -> Reader:
    """Return what gives a factor of -1 and 1 as packed bits, rows × bytes."""
    maker = parts.makers[slot]
    if isinstance(maker.op, ops.Unpack):
        source = parts.read(maker.reads[0])
        return lambda operands: _as_rows(source(operands))
    numbers, x, scale = _bytes_of(parts, slot), parts.read(maker.reads[0]), parts.read(maker.reads[1])

    def signs(operands: Sequence[Array]) -> Array:
        scales = scale(operands)
        if (scales > 0).all() and (scales < np.inf).all():  # then it is the sign that decides
            return np.packbits(_as_rows(~(x(operands) < 0)), axis=-1, bitorder="little")
        return pack(_as_rows(numbers(operands)), 1)

    return signs


def _as_rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def bind_weights(step: Step) -> Kernel:
    """Return the kernel of a product of floats with a matrix of weights that stays packed."""
    parts = _Parts(step)
    form = parts.product.contraction
    assert form is not None
    side = next(n for n, slot in enumerate(parts.product.reads) if slot in parts.makers)
    scaled = parts.makers[parts.product.reads[side]]
    assert isinstance(scaled.op, ops.Dequantize)
    group = scaled.op.group
    unpacked = parts.makers.get(scaled.reads[0])
    kind = scaled.arg_types[0].dtype or "int8"
    if unpacked is not None:
        assert isinstance(unpacked.op, ops.Unpack)
        kind = unpacked.op.kind
    bits, signed = KINDS[kind].bits, KINDS[kind].low < 0
    data, scale, zero = (parts.read(s) for s in ((unpacked or scaled).reads[0], *scaled.reads[1:]))
    x = parts.read(parts.product.reads[1 - side])
    columns, depth = (form.sizes[label] for label in form.labels[side])
    turn, result = _turned(form, 1 - side), _Result(_facing(form, side), np.dtype(np.float32))
    rows = math.prod(form.sizes[label] for label in (form.left, form.right)[1 - side])
    size = max(1, depth) if group is None else group
    all_zero = parts.is_zero(scaled.reads[2])
    make_weights_ready(rows, bits, signed, depth, size, zeros=not all_zero)

    def run(*operands: Array, out: Array = None) -> Array:
        octets = np.ascontiguousarray(data(operands)).view(np.uint8).reshape(columns, -1)
        scales, zeros = _by_row(scale(operands), columns, np.float32), None
        if not all_zero and (given := zero(operands)).any():
            scales, zeros = _one_width(scales, _by_row(given, columns, np.int32))
        weights = Weights(octets, bits, signed, depth, scales, zeros, size if scales.shape[1] > 1 else max(1, depth))
        out = np.empty(result.shape, np.float32) if out is None else out
        products = result.batches(out)
        weight_matmul(turn(x(operands))[0], weights, products[0])
        result.finish(products, out)
        return out

    return run


def bind_fuzzy_step(step: Step) -> Kernel:
    """Return the kernel of a join of truth values that are bytes before and after."""
    parts = _Parts(step)
    op, form = parts.product.op, parts.product.contraction
    assert isinstance(op, ops.Einsum) and form is not None
    sides = [_truths_of(parts, slot) for slot in parts.product.reads]
    kernel = bind_fuzzy(op.algebra, form, step.types[0])
    return lambda *operands, out=None: kernel(*(side(operands) for side in sides), out=out)


def _truths_of(parts: _Parts, slot: int) -> Reader:
    """Return what gives a factor as bytes; others read it as floats too, which are within a rounding of q / 255."""
    if slot in parts.makers:
        return parts.read(parts.makers[slot].reads[0])
    floats = parts.read(slot)
    return lambda operands: np.rint(floats(operands) * np.float32(255)).astype(np.uint8)


def _facing(form: Contraction, side: int) -> Contraction:
    """Return the form with the weights on the right."""
    return form if side == 1 else form._replace(left=form.right, right=form.left)


def _by_row(values: Array, rows: int, dtype: Any) -> Array:
    """Return scales or zeros as a matrix: one row for each row of weights, one column for each group."""
    array = np.asarray(values, dtype)
    if array.ndim < 2:
        array = array.reshape(-1, 1) if array.size == rows else np.full((rows, 1), array)
    return np.ascontiguousarray(array)


def _one_width(scales: Array, zeros: Array) -> tuple[Array, Array]:
    """Return scales and zeros, as many of the one as of the other: where only one of the two has groups, the other is repeated."""
    wide = max(scales.shape[1], zeros.shape[1])
    scales, zeros = (
        x if x.shape[1] == wide else np.ascontiguousarray(np.broadcast_to(x, (len(x), wide))) for x in (scales, zeros)
    )
    return scales, zeros


_FLOATS, _FLOATS_OUT = types.Array(types.float32, 2, "C", readonly=True), types.Array(types.float32, 2, "C")
_SCALES, _ZEROS = types.Array(types.float32, 1, "C", readonly=True), types.Array(types.int64, 1, "C", readonly=True)
_SUMS = types.Array(types.int32, 2, "C", readonly=True)


@cache
def _quantizing(dtype: str) -> Explicit:
    low, high = (float(KINDS[dtype].low), float(KINDS[dtype].high))
    kind = np.dtype(dtype).type

    def quantize(x: Any, scales: Any, each: int, zero: float, out: Any, lo: int, hi: int) -> None:
        """Write the rows ``lo`` to ``hi`` as bytes; a row has a scale of its own where ``each`` is 1."""
        for r in range(lo, hi):
            scale, row, target = np.float64(scales[r * each]), x[r], out[r]
            for k in range(len(row)):
                step = np.float64(row[k]) / scale
                whole = np.rint(step) + zero
                whole = low if whole < low else high if whole > high else whole
                target[k] = kind(np.int32(whole if step == step else 0.0))

    target = types.Array(getattr(types, dtype), 2, "C")
    kinds = (_FLOATS, _SCALES, NUMBER, types.float64, target, NUMBER, NUMBER)
    return Explicit(quantize, kinds, dtype, fast=False)


def quantize_rows(x: Array, scale: Array, zero: Array, dtype: str) -> Array:
    """Return what Quantize makes of float32 rows, with one scale for all or one for each row; the bits are NumPy's."""
    rows = np.ascontiguousarray(x).reshape(-1, x.shape[-1] if x.ndim else 1)
    scales = np.ascontiguousarray(scale, np.float32).reshape(-1)
    out = np.empty(rows.shape, dtype)
    zeros = np.asarray(zero)
    if zeros.size != 1:
        return quantize_array(x, scale, zero, ops.Quantize(dtype, None, x.shape[-1]))
    each = int(scales.size > 1)
    loop = partial(_quantizing(dtype), rows, scales, each, float(zeros.reshape(())), out)
    share(loop, len(rows), min(allowed(), max(1, len(rows))))
    return out.reshape(x.shape)


@cache
def _dequantizing() -> Explicit:
    def dequantize(
        sums: Any, scales: Any, next_scale: int, zeros: Any, next_zero: int, out: Any, lo: int, hi: int
    ) -> None:
        """Write (sums - zero) * scale of the rows ``lo`` to ``hi``, each product rounded once."""
        for r in range(lo, hi):
            row, target = sums[r], out[r]
            for k in range(len(row)):
                away = np.float64(np.int64(row[k]) - zeros[k * next_zero])
                target[k] = np.float32(away * np.float64(scales[k * next_scale]))

    kinds = (_SUMS, _SCALES, NUMBER, _ZEROS, NUMBER, _FLOATS_OUT, NUMBER, NUMBER)
    return Explicit(dequantize, kinds, "sums", fast=False)


def dequantize_sums(sums: Array, scale: Array, zero: Array, out: Array) -> None:
    """Write what Dequantize makes of int32 sums, scales and zeros being scalars or one for each column; the bits are NumPy's."""
    rows, target = (x.reshape(-1, x.shape[-1] if x.ndim else 1) for x in (sums, out))
    scales, zeros = np.asarray(scale, np.float32).reshape(-1), np.asarray(zero, np.int64).reshape(-1)
    loop = partial(_dequantizing(), rows, scales, int(scales.size > 1), zeros, int(zeros.size > 1), target)
    share(loop, len(rows), min(allowed(), max(1, len(rows))))
