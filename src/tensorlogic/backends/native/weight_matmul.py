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
from .dot_instructions import dot_form
from .explicit import NUMBER, Explicit
from .weight_dots import WeightForm, weight_dot_of, weight_floats_of

Array = Any
FEW = 16  # rows up to which dot products of whole numbers are faster than BLAS on a block of floats
LEAST, MOST = (
    np.float32(2.0**-90),
    np.float32(2.0**90),
)  # a largest element beyond is left to BLAS, as steps could be no normal numbers
MOST_SPAN = 4  # blocks of a group that are written out one after another
LINE = 64  # bytes
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


def weight_matmul(x: Array, weights: Weights, out: Array) -> None:
    """Write the product of float32 rows with the weights, turned over, into a contiguous ``out`` of rows × rows of weights."""
    if not out.size or not weights.depth:
        out.fill(0)
        return
    form = _form(weights.bits, weights.signed, weights.depth, weights.group, weights.zeros is not None)
    if len(x) <= FEW and _span(weights, form) and _by_whole_numbers(x, weights, out, form):
        return
    if weights.scales.shape[1] > 1 and weights.group % form.each:
        _by_blas(x, weights, out, _floats_by_numpy(weights))
    else:
        _by_blas(_in_order(x, weights, form), weights, out, _floats_in_blocks(weights, form))


def make_ready(rows: int, bits: int, signed: bool, depth: int, group: int, zeros: bool) -> None:
    """Compile the loop for so many rows, or load it from the disk."""
    form = _form(bits, signed, depth, group, zeros)
    if rows <= FEW:
        _laying_out(form.dot.terms, form.limbs, form.limb_bits).load()
        _dotting(form).load()
    else:
        _unpacking(form.plain).load()


def _form(bits: int, signed: bool, depth: int, group: int, zeros: bool) -> WeightForm:
    """Return how weights are multiplied: with so many groups in a block of words, or so many blocks in a group."""
    form = WeightForm(bits, signed, dot_form(), zeros=zeros)
    block = form.block
    if group >= depth or depth % max(group, block):
        return form
    if group < block and block % group == 0 and group % form.each == 0:
        return form._replace(parts=block // group, span=1)
    return form._replace(span=group // block) if group % block == 0 and group <= MOST_SPAN * block else form


def _span(weights: Weights, form: WeightForm) -> int:
    """Return how many blocks are added up before they are scaled; 0 where groups and blocks do not fit each other."""
    if weights.scales.shape[1] == 1:
        return min(-(-weights.data.shape[1] // (4 * form.dot.lanes)), form.most_blocks)
    size = form.span or (weights.group // form.block if weights.group % form.block == 0 else 0)
    return size if size <= form.most_blocks else 0


@cache
def _dotting(form: WeightForm) -> Explicit:
    weight_dot, size = weight_dot_of(form), 4 * form.dot.lanes

    def dots(
        data: Any, width: int, x: Any, next_x: int, sums: Any, next_sums: int, steps: Any, scales: Any, zeros: Any, groups: int,
        span: int, next_scale: int, out: Any, columns: int, lo: int, hi: int,
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
                    data, o * width, blocks, rest, min(left, 1), x, r * next_x, sums, r * next_sums, steps[r], scales, zeros, o * groups,
                    span, next_scale,
                )  # fmt: skip

    kinds = (
        _OCTETS, NUMBER, _limbs(form.dot.terms), NUMBER, _WHOLE, NUMBER, _FLOATS, _FLOATS, _WHOLE, NUMBER, NUMBER, NUMBER, _FLOATS_OUT,
        *[NUMBER] * 3,
    )  # fmt: skip
    return Explicit(dots, kinds, repr(form), fast=False)


def _limbs(terms: int, *, readonly: bool = True) -> Any:
    return types.Array(types.int16 if terms == 2 else types.int8, 1, "C", readonly=readonly)


@cache
def _laying_out(terms: int, limbs: int, limb_bits: int) -> Explicit:
    half = 1 << limb_bits - 1
    largest = sum(half - 1 << limb_bits * n for n in range(limbs))
    least, most = (int(x.view(np.int32)) for x in (LEAST, MOST))

    def lay_out(
        x: Any, bits: Any, places: int, lanes: int, blocks: int, span: int, times: int, laid: Any, sums: Any, steps: Any
    ) -> bool:
        """Write rows as limbs of whole numbers in the order in which weights come, and what limbs add up to, span by span.

        ``bits`` are the bits of the rows. Return whether all rows could be laid out: the largest elements are neither too small nor too
        large, nor infinite, nor NaN.
        """
        whole = np.zeros(blocks * lanes * terms * places, np.int32)
        size, spans = lanes * terms, -(-blocks // span)
        for r in range(len(x)):
            high, at = np.int32(0), 0
            for k in range(x.shape[1]):  # floats without a sign are in the order of their bits
                if bits[r, k] & 0x7FFFFFFF > high:
                    high, at = bits[r, k] & 0x7FFFFFFF, k
            if high > most or 0 < high < least:
                return False
            exponent = math.frexp(abs(x[r, at]))[1] - limbs * limb_bits + 1
            exponent += math.ldexp(abs(x[r, at]), -exponent) > largest
            steps[r] = math.ldexp(1.0, exponent)
            up = np.float32(math.ldexp(1.0, -exponent))
            for k in range(x.shape[1]):
                whole[k] = np.int32(np.rint(x[r, k] * up))
            for block in range(blocks):
                for p in range(places):
                    target = ((r * blocks + block) * places + p) * limbs * size
                    own = ((r * spans + block // span) * limbs) * lanes
                    for lane in range(lanes):
                        for t in range(terms):
                            left = whole[block * size * places + (lane * terms + t) * places + p]
                            for n in range(limbs):
                                limb = left
                                if n < limbs - 1:
                                    limb = (left + half & 2 * half - 1) - half
                                    left = left - limb >> limb_bits
                                laid[target + n * size + lane * terms + t] = limb
                                sums[own + n * lanes + lane] += times * limb
        return True

    kinds = (
        _ROWS,
        types.Array(types.int32, 2, "C", readonly=True),
        *[NUMBER] * 5,
        _limbs(terms, readonly=False),
        _WHOLE_OUT,
        _FLOATS_OUT,
    )
    return Explicit(lay_out, kinds, str(terms), fast=False)


def _by_whole_numbers(x: Array, weights: Weights, out: Array, form: WeightForm) -> bool:
    """Multiply, and return True; where rows or zero points cannot be laid out, only return False."""
    zeros = NO_ZEROS if weights.zeros is None else weights.zeros.reshape(-1)
    least = -(1 << form.bits - 1) if form.signed else 0
    if weights.zeros is not None and (zeros.min() < least or zeros.max() >= least + (1 << form.bits)):
        return False  # no zero point of such numbers: sums could be too large
    rows, lanes, span = len(x), form.dot.lanes, _span(weights, form)
    groups, blocks = weights.scales.shape[1], -(-weights.data.shape[1] // (4 * lanes))
    spans = -(-blocks // span)
    laid = _aligned((rows, blocks * form.block * form.limbs), np.dtype(np.int16 if form.dot.terms == 2 else np.int8))
    sums, steps = np.zeros((rows, spans * form.limbs * lanes), np.int32), np.empty(rows, np.float32)
    floats = np.ascontiguousarray(x)
    fine = _laying_out(form.dot.terms, form.limbs, form.limb_bits)(
        floats, floats.view(np.int32), form.places, lanes, blocks, span, -1 if form.zeros else -form.bias, laid.reshape(-1), sums.reshape(-1), steps,
    )  # fmt: skip
    if not fine:
        return False
    next_scale = form.parts if groups > 1 else 0
    loop = partial(
        _dotting(form), weights.data.reshape(-1), weights.data.shape[1], laid.reshape(-1), laid.shape[1], sums.reshape(-1), sums.shape[1],
        steps, weights.scales.reshape(-1), zeros, groups, span, next_scale, out.reshape(-1), len(weights.data),
    )  # fmt: skip
    share(loop, len(weights.data), min(allowed(), len(weights.data)))
    return True


def _aligned(shape: tuple[int, int], dtype: np.dtype[Any]) -> Array:
    """Return an array that begins where a line of the cache does: vectors of it are read from one line each."""
    size = math.prod(shape) * dtype.itemsize
    octets = np.empty(size + LINE, np.uint8)
    first = -octets.ctypes.data % LINE
    return octets[first : first + size].view(dtype).reshape(shape)


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


def _in_order(x: Array, weights: Weights, form: WeightForm) -> Array:
    """Return rows in the order in which weights become floats, filled up with zeros."""
    blocks = -(-weights.data.shape[1] // (4 * form.dot.lanes))
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


def _floats_in_blocks(weights: Weights, form: WeightForm) -> Floats:
    """Return what gives rows of weights as floats in the order in which rows are laid out."""
    blocks, groups = -(-weights.data.shape[1] // (4 * form.dot.lanes)), weights.scales.shape[1]
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
