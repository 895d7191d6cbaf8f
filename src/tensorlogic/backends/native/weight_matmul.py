"""Products of float32 rows with weights that stay packed: 8, 4, 2 and 1 bits, with scales and zero points.

Few rows: each row of weights is read once, and multiplied by the rows as whole numbers. Many rows: a block of weights becomes float32, for BLAS
to multiply. Weights stand as (out, in), the reduced index last. A weight q stands for (q - zero) * scale. For few rows, a row is rounded
to whole numbers of a step that is at most 2 ** -23 of its largest element, and sums are exact until they are scaled; for many rows each
weight is rounded to float32, and sums are those of BLAS.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ...ir.packed_numbers import unpack
from ..threads import allowed, on_one_thread, share
from .dot_instructions import FEW_BITS, DotForm, dot_form
from .explicit import NUMBER, Explicit
from .weight_dots import LINE, WeightForm, weight_dot_of, weight_floats_of

Array = Any
FEW = 16  # rows up to which dot products of whole numbers are faster than BLAS on a block of floats
# a largest element beyond is left to BLAS, as steps could be no normal numbers
LEAST, MOST = np.float32(2.0**-90), np.float32(2.0**90)
MOST_SPAN = 4  # blocks of a group that are written out one after another
NO_ZEROS = np.zeros(1, np.int32)
BLOCK_BYTES = 16 << 20  # of floats that weights become at once: BLAS lays rows out anew for each block
_FLOATS, _FLOATS_OUT = types.Array(types.float32, 1, "C", readonly=True), types.Array(types.float32, 1, "C")
_ROWS = types.Array(types.float32, 2, "C", readonly=True)
_OCTETS = types.Array(types.uint8, 1, "C", readonly=True)
_WHOLE = types.Array(types.int32, 1, "C", readonly=True)
_WHOLE_OUT = types.Array(types.int32, 1, "C")
_PLACES = types.Array(types.int64, 1, "C", readonly=True)


class Weights(NamedTuple):
    """Packed weights: so many rows of ``depth`` numbers; scales, and zeros where there are any, have a column for each group."""

    data: Array  # uint8, rows × bytes
    bits: int
    signed: bool
    depth: int
    scales: Array  # float32, rows × groups
    zeros: Array | None  # int32, rows × groups
    group: int  # numbers that share a scale


class _Layout(NamedTuple):
    """How rows of weights are read in blocks of words."""

    form: WeightForm
    blocks: int  # in a row of weights
    span: int  # blocks that are added up before they are scaled; 0 where groups and blocks do not fit each other
    next_scale: int  # from the scale of a span to that of the next

    @property
    def spans(self) -> int:
        return -(-self.blocks // self.span)


def weight_matmul(x: Array, weights: Weights, out: Array) -> None:
    """Write the product of float32 rows with the weights, turned over, into a contiguous ``out`` of rows × rows of weights."""
    if not out.size or not weights.depth:
        out.fill(0)
        return
    layout = _layout_of(weights.bits, weights.signed, weights.depth, weights.group, weights.zeros is not None)
    if len(x) <= FEW and layout.span and _by_whole_numbers(x, weights, out, layout):
        return
    if weights.scales.shape[1] > 1 and weights.group % layout.form.each:
        _by_blas(x, weights, out, _floats_by_numpy(weights))
    else:
        _by_blas(_in_order(x, weights, layout), weights, out, _floats_in_blocks(weights, layout))


def make_ready(rows: int, bits: int, signed: bool, depth: int, group: int, zeros: bool) -> None:
    """Compile the loop for so many rows, or load it from the disk."""
    form = _layout_of(bits, signed, depth, group, zeros).form
    if rows <= FEW:
        _laying_out(form.dot.terms, form.dot.lanes, form.places, form.limbs, form.limb_bits).load()
        _dotting(form).load()
    else:
        _unpacking(form.plain).load()


def _layout_of(bits: int, signed: bool, depth: int, group: int, zeros: bool) -> _Layout:
    dot = dot_form()
    return _layout(FEW_BITS.get(dot.instruction, dot) if bits <= 4 else dot, bits, signed, depth, group, zeros)


@cache
def _layout(dot: DotForm, bits: int, signed: bool, depth: int, group: int, zeros: bool) -> _Layout:
    """Return how weights are multiplied: with so many groups in a block of words, or so many blocks in a group."""
    form = WeightForm(bits, signed, dot, zeros=zeros)
    size = form.block
    blocks = -(-depth // size)
    if group >= depth:
        return _Layout(form, blocks, min(blocks, form.most_blocks), 0)
    if depth % max(group, size) == 0:
        if group < size and size % group == 0 and group % form.each == 0:
            form = form._replace(parts=size // group, span=1)
        elif group % size == 0 and group <= MOST_SPAN * size:
            form = form._replace(span=group // size)
    span = form.span or (group // size if group % size == 0 else 0)
    return _Layout(form, blocks, span if span <= form.most_blocks else 0, form.parts)


@cache
def _dotting(form: WeightForm) -> Explicit:
    weight_dot, size = weight_dot_of(form), 4 * form.dot.lanes

    def dots(
        data: Any, width: int, x: Any, at_x: int, next_x: int, sums: Any, next_sums: int, steps: Any, scales: Any, zeros: Any, groups: int,
        span: int, spans: int, next_scale: int, out: Any, columns: int, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Write the dot products of rows with the rows ``lo`` to ``hi`` of the weights into a result of so many columns."""
        blocks = width // size
        left = width - blocks * size
        rest = np.zeros(size, np.uint8)
        for o in range(lo, hi):
            for t in range(left):
                rest[t] = data[o * width + blocks * size + t]
            for r in range(len(steps)):
                out[r * columns + o] = weight_dot(
                    data, o * width, blocks, rest, min(left, 1), x, at_x + r * next_x, sums, r * next_sums, steps[r], scales, zeros,
                    o * groups, span, spans, next_scale,
                )  # fmt: skip

    kinds = (
        _OCTETS, NUMBER, _limbs(form.dot.terms), NUMBER, NUMBER, _WHOLE, NUMBER, _FLOATS, _FLOATS, _WHOLE, *[NUMBER] * 4, _FLOATS_OUT,
        *[NUMBER] * 3,
    )  # fmt: skip
    return Explicit(dots, kinds, repr(form), fast=False)


def _limbs(terms: int, *, readonly: bool = True) -> Any:
    return types.Array(types.int16 if terms == 2 else types.int8, 1, "C", readonly=readonly)


@cache
def _laying_out(terms: int, lanes: int, places: int, limbs: int, limb_bits: int) -> Explicit:
    half, size = 1 << limb_bits - 1, lanes * terms
    largest = sum(half - 1 << limb_bits * n for n in range(limbs))
    least, most = (int(x.view(np.int32)) for x in (LEAST, MOST))

    def lay_out(x: Any, bits: Any, blocks: int, span: int, times: int, laid: Any, sums: Any, steps: Any) -> int:
        """Write rows as limbs of whole numbers in the order in which weights come, and what limbs add up to, span by span.

        ``bits`` are the bits of the rows. Return where in ``laid`` rows begin: with a line of the cache, so that vectors are read from
        one line each. Return -1 where a largest element is too small or too large, infinite or NaN.
        """
        whole = np.zeros(blocks * size * places, np.int32)
        begin = -laid.ctypes.data % LINE // laid.itemsize
        spans = -(-blocks // span)
        for r in range(len(x)):
            high = np.int32(0)
            for k in range(x.shape[1]):  # floats without a sign are in the order of their bits
                high = max(high, bits[r, k] & np.int32(0x7FFFFFFF))
            if high > most or 0 < high < least:
                return -1
            high = max(high, np.int32(least))  # a row of zeros
            exponent = int(high >> 23) - 126 - limbs * limb_bits + 1
            exponent += (int(high) & 0x7FFFFF | 0x800000) * 2.0 ** (limbs * limb_bits - 25) > largest
            steps[r] = math.ldexp(1.0, exponent)
            up = np.float32(math.ldexp(1.0, -exponent))
            for k in range(x.shape[1]):
                whole[k] = np.int32(np.rint(x[r, k] * up))
            for block in range(blocks):
                own = (r * spans + block // span) * limbs * lanes
                for p in range(places):
                    target = begin + ((r * blocks + block) * places + p) * limbs * size
                    for k in range(size):
                        left = whole[block * size * places + k * places + p]
                        for n in range(limbs):
                            limb = left
                            if n < limbs - 1:
                                limb = (left + np.int32(half) & np.int32(2 * half - 1)) - np.int32(half)
                                left = left - limb >> np.int32(limb_bits)
                            laid[target + n * size + k] = limb
                    for n in range(limbs):
                        for lane in range(lanes):
                            total = np.int32(0)
                            for t in range(terms):
                                total += np.int32(laid[target + n * size + lane * terms + t])
                            sums[own + n * lanes + lane] += np.int32(times) * total
        return begin

    kinds = (
        _ROWS, types.Array(types.int32, 2, "C", readonly=True), *[NUMBER] * 3, _limbs(terms, readonly=False), _WHOLE_OUT, _FLOATS_OUT,
    )  # fmt: skip
    return Explicit(lay_out, kinds, f"{terms} {lanes} {places}", fast=False)


def _by_whole_numbers(x: Array, weights: Weights, out: Array, layout: _Layout) -> bool:
    """Multiply, and return True; where rows or zero points cannot be laid out, only return False."""
    form, zeros = layout.form, NO_ZEROS
    if weights.zeros is not None:
        zeros, least = weights.zeros.reshape(-1), -(1 << form.bits - 1) if form.signed else 0
        if zeros.min() < least or zeros.max() >= least + (1 << form.bits):
            return False  # no zero point of such numbers: sums could be too large
    rows, lanes, limbs = len(x), form.dot.lanes, form.limbs
    next_x, next_sums = layout.blocks * form.block * limbs, layout.spans * limbs * lanes
    laid = np.empty(rows * next_x + LINE, np.int16 if form.dot.terms == 2 else np.int8)
    sums, steps = np.zeros(rows * next_sums, np.int32), np.empty(rows, np.float32)
    floats = np.ascontiguousarray(x)
    lay_out = _laying_out(form.dot.terms, lanes, form.places, limbs, form.limb_bits)
    times = -1 if form.zeros else -form.bias
    begin = lay_out(floats, floats.view(np.int32), layout.blocks, layout.span, times, laid, sums, steps)
    if begin < 0:
        return False
    columns, width = weights.data.shape
    loop = partial(
        _dotting(form), weights.data.reshape(-1), width, laid, begin, next_x, sums, next_sums, steps, weights.scales.reshape(-1), zeros,
        weights.scales.shape[1], layout.span, layout.spans, layout.next_scale, out.reshape(-1), columns,
    )  # fmt: skip
    share(loop, columns, min(allowed(), columns))
    return True


Floats = Callable[[int, int, Array], None]  # writes some rows of weights as floats


def _by_blas(x: Array, weights: Weights, out: Array, floats: Floats) -> None:
    """Multiply by blocks of weights as floats, each small enough for a cache."""
    columns, size = len(weights.data), max(1, BLOCK_BYTES // (4 * x.shape[1]))

    def part(lo: int, hi: int) -> None:
        space = np.empty((min(size, hi - lo), x.shape[1]), np.float32)
        for first in range(lo, hi, size):
            last = min(hi, first + size)
            floats(first, last, space[: last - first])
            np.matmul(x, space[: last - first].T, out=out[:, first:last])

    on_one_thread(share)(part, columns, min(allowed(), columns))


def _in_order(x: Array, weights: Weights, layout: _Layout) -> Array:
    """Return rows in the order in which weights become floats, filled up with zeros."""
    form, blocks = layout.form, layout.blocks
    laid = np.zeros((len(x), blocks, form.each, form.dot.lanes), np.float32)
    whole = weights.depth // form.block
    words = x[:, : whole * form.block].reshape(len(x), whole, form.dot.lanes, form.each)
    laid[:, :whole] = words.transpose(0, 1, 3, 2)
    if whole < blocks:
        rest = np.zeros((len(x), form.block), np.float32)
        rest[:, : weights.depth - whole * form.block] = x[:, whole * form.block :]
        laid[:, whole] = rest.reshape(len(x), form.dot.lanes, form.each).transpose(0, 2, 1)
    return laid.reshape(len(x), -1)


@cache
def _unpacking(form: WeightForm) -> Explicit:
    weight_floats, lanes, block = weight_floats_of(form), form.dot.lanes, form.block
    least = -(1 << form.bits - 1) if form.signed and form.bits > 1 else 0

    def write(
        data: Any, width: int, scales: Any, zeros: Any, groups: int, zero_step: int, scale_of: Any, out: Any, next_out: int, lo: int, hi: int
    ) -> None:  # fmt: skip
        """Write the rows ``lo`` to ``hi`` of the weights as floats; ``scale_of`` says the scale of each word."""
        blocks = width // (4 * lanes)
        left = width - blocks * 4 * lanes
        rest = np.zeros(4 * lanes, np.uint8)
        scale, zero = np.empty(lanes, np.float32), np.empty(lanes, np.float32)
        for o in range(lo, hi):
            first = 0
            while first < blocks + min(left, 1):
                own = scale_of[first * lanes]
                last = first + 1
                if own == scale_of[last * lanes - 1]:
                    while last < blocks and scale_of[(last + 1) * lanes - 1] == own:
                        last += 1
                for n in range(lanes):
                    spot = o * groups + scale_of[first * lanes + n]
                    scale[n] = scales[spot]
                    zero[n] = zeros[spot * zero_step] - least
                at = (o - lo) * next_out + first * block
                if first < blocks:
                    weight_floats(data, o * width + first * 4 * lanes, last - first, scale, zero, out, at)
                else:
                    for t in range(left):
                        rest[t] = data[o * width + blocks * 4 * lanes + t]
                    weight_floats(rest, 0, 1, scale, zero, out, at)
                first = last

    kinds = (
        _OCTETS, NUMBER, _FLOATS, _WHOLE, NUMBER, NUMBER, _PLACES, _FLOATS_OUT, *[NUMBER] * 3
    )  # fmt: skip
    return Explicit(write, kinds, repr(form), fast=False)


def _floats_in_blocks(weights: Weights, layout: _Layout) -> Floats:
    """Return what gives rows of weights as floats in the order in which rows are laid out."""
    form, blocks, groups = layout.form, layout.blocks, weights.scales.shape[1]
    words = np.arange(blocks * form.dot.lanes)
    scale_of = np.minimum(words * form.each // max(1, weights.group), groups - 1)
    zeros = NO_ZEROS if weights.zeros is None else weights.zeros.reshape(-1)
    write, width = _unpacking(form.plain), blocks * form.block

    def floats(lo: int, hi: int, out: Array) -> None:
        write(
            weights.data.reshape(-1), weights.data.shape[1], weights.scales.reshape(-1), zeros, groups, int(weights.zeros is not None), scale_of,
            out.reshape(-1), width, lo, hi,
        )  # fmt: skip

    return floats


def _floats_by_numpy(weights: Weights) -> Floats:
    """Return what gives rows of weights as floats where groups are no whole words."""

    def floats(lo: int, hi: int, out: Array) -> None:
        data = weights.data[lo:hi]
        if weights.bits == 8:
            numbers = data.view(np.int8 if weights.signed else np.uint8)
        else:
            numbers = unpack(data, weights.bits, weights.depth, signed=weights.signed)
        zeros = 0 if weights.zeros is None else np.repeat(weights.zeros[lo:hi], weights.group, 1)[:, : weights.depth]
        scales = np.repeat(weights.scales[lo:hi], weights.group, 1)[:, : weights.depth]
        np.multiply(numbers - np.asarray(zeros, np.float32), scales, out=out)

    return floats
