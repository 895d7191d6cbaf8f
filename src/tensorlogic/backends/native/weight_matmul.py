"""Products of float32 rows with weights that stay packed: 8, 4, 2 and 1 bits, with scales and zero points.

Few rows: each row of weights is read once and unpacked in registers. Many rows: a block of weights becomes float32, for BLAS to multiply.
Weights stand as (out, in), the reduced index last. A weight q stands for (q - zero) * scale; that product is rounded once, and sums are
float32 in an order that depends on the processor, as those of BLAS are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ...ir.packed_numbers import unpack
from ..threads import allowed, on_one_thread, share
from .dot_instructions import dot_form
from .explicit import NUMBER, Explicit, explicit
from .weight_dots import WeightForm, weight_dots_of, weight_floats_of

Array = Any
FEW = 128  # rows up to which unpacking in registers is faster than BLAS on a block of floats
NEAR = 16  # rows that stay in the second cache while weights go by
LEAST, MOST = (
    np.float32(2.0**-90),
    np.float32(2.0**90),
)  # what is beyond could become too small or too large for a normal number
AT_ONCE = 4  # rows that share what was unpacked
BLOCK_BYTES = 4 << 20  # of floats that weights become at once
_FLOATS, _FLOATS_OUT = types.Array(types.float32, 1, "C", readonly=True), types.Array(types.float32, 1, "C")
_ROWS = types.Array(types.float32, 2, "C", readonly=True)
_OCTETS = types.Array(types.uint8, 1, "C", readonly=True)
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


@cache
def _dotting(form: WeightForm) -> Explicit:
    weight_dots, size, height, at_once = weight_dots_of(form), 4 * form.lanes, form.rows, form.outputs

    def dots(
        data: Any, width: int, x: Any, next_x: int, x_sums: Any, next_sums: int, rows: int, scales: Any, zeros: Any, groups: int, zero_step: int,
        scale_of: Any, span: int, out: Any, columns: int, lo: int, hi: int,
    ) -> None:  # fmt: skip
        """Write the dot products with the rows ``lo`` to ``hi`` of the weights into a result of as many columns."""
        whole = width // size * size
        rest = np.zeros(at_once * size, np.uint8)
        for first in range(lo, hi, at_once):
            for n in range(at_once):
                for t in range(width - whole):
                    rest[n * size + t] = data[min(first + n, hi - 1) * width + whole + t]
            for row in range(0, rows, height):
                weight_dots(
                    data, width, rest, x, next_x, x_sums, next_sums, scales, zeros, groups, zero_step, scale_of, span, out, columns, row, first, hi
                )  # fmt: skip

    kinds = (
        _OCTETS, NUMBER, _FLOATS, NUMBER, _FLOATS, NUMBER, NUMBER, _FLOATS, _FLOATS, NUMBER, NUMBER, _PLACES, NUMBER, _FLOATS_OUT, *[NUMBER] * 3
    )  # fmt: skip
    return Explicit(dots, kinds, repr(form))


@cache
def _unpacking(form: WeightForm) -> Explicit:
    weight_floats, size, block = weight_floats_of(form), 4 * form.lanes, form.block

    def write(
        data: Any,
        width: int,
        scales: Any,
        zeros: Any,
        groups: int,
        zero_step: int,
        scale_of: Any,
        out: Any,
        next_out: int,
        lo: int,
        hi: int,
    ) -> None:
        """Write the rows ``lo`` to ``hi`` of the weights as floats, one after the other."""
        blocks = width // size
        left = width - blocks * size
        rest = np.zeros(size, np.uint8)
        for o in range(lo, hi):
            at, spot = (o - lo) * next_out, o * groups
            weight_floats(data, o * width, scales, zeros, spot, zero_step, scale_of, 0, blocks, out, at)
            if left > 0:
                for t in range(left):
                    rest[t] = data[o * width + blocks * size + t]
                words = blocks * form.lanes
                weight_floats(rest, 0, scales, zeros, spot, zero_step, scale_of, words, 1, out, at + blocks * block)

    kinds = (_OCTETS, NUMBER, _FLOATS, _FLOATS, NUMBER, NUMBER, _PLACES, _FLOATS_OUT, *[NUMBER] * 3)
    return Explicit(write, kinds, repr(form), fast=False)


def weight_matmul(x: Array, weights: Weights, out: Array) -> None:
    """Write the product of float32 rows with the weights, turned over, into a contiguous ``out`` of rows × rows of weights."""
    if not out.size or not weights.depth:
        out.fill(0)
        return
    form = _form(len(x), weights.bits, weights.signed)
    if weights.scales.shape[1] > 1 and weights.group % form.each:
        _by_blas(x, weights, out, _floats_by_numpy(weights))
        return
    size = NEAR if len(x) <= FEW else len(x)
    for first in range(0, len(x), size):
        part, target = x[first : first + size], out[first : first + size]
        if len(x) > FEW or not _in_registers(part, weights, target, form):
            _by_blas(_in_order(part, weights, form), weights, target, _floats_in_blocks(weights, form))


def make_ready(rows: int, bits: int, signed: bool) -> None:
    """Compile the loop for so many rows, or load it from the disk."""
    form = _form(rows, bits, signed)
    _lay_out.load()
    (_unpacking if rows > FEW else _dotting)(form).load()


def _form(rows: int, bits: int, signed: bool) -> WeightForm:
    height, outputs = (1, 1 if bits == 8 else 2) if rows == 1 or rows > FEW else (AT_ONCE, 2)
    return WeightForm(bits, signed, min(8, dot_form().lanes), height, outputs)


@explicit(_ROWS, _FLOATS, NUMBER, NUMBER, NUMBER, _FLOATS_OUT, _FLOATS_OUT)
def _lay_out(x: Any, factors: Any, lanes: int, blocks: int, span: int, laid: Any, sums: Any) -> bool:
    """Lay rows out as words give weights: lane after lane for each place in a word; add lanes up for each span of blocks.

    Return whether that is exact: numbers are made up to 2 ** 30 times smaller here, and 2 ** 8 times larger in a product.
    """
    each = len(factors)
    spans = len(sums) // (len(x) * lanes)
    fine = True
    for r in range(len(x)):
        for block in range(blocks):
            for lane in range(lanes):
                total, first = np.float32(0), (block * lanes + lane) * each
                for s in range(each):
                    value = x[r, first + s] if first + s < x.shape[1] else np.float32(0)
                    size = abs(value)
                    fine &= (size < MOST) & ((size > LEAST) | (size == 0))
                    total += value
                    laid[((r * blocks + block) * each + s) * lanes + lane] = value * factors[s]
                sums[(r * spans + block // span) * lanes + lane] += total
    return fine


def _in_order(x: Array, weights: Weights, form: WeightForm) -> Array:
    """Return rows in the order in which weights become floats, filled up with zeros."""
    blocks = -(-weights.data.shape[1] // (4 * form.lanes))
    laid = np.zeros((len(x), blocks * form.block), np.float32)
    _lay_out(
        np.ascontiguousarray(x),
        np.ones(form.each, np.float32),
        form.lanes,
        blocks,
        blocks,
        laid.reshape(-1),
        np.zeros(len(x) * form.lanes, np.float32),
    )
    return laid


class _Spread(NamedTuple):
    """Weights cut into blocks of words: how many, how many share a scale (0: each word has its own), and where those stand."""

    blocks: int
    span: int
    scale_of: Array  # for each word of a row its scale; only one where spans share them
    zeros: Array  # float32, with the bias
    zero_step: int


def _spread_of(weights: Weights, form: WeightForm, *, by_word: bool) -> _Spread:
    groups, blocks = weights.scales.shape[1], -(-weights.data.shape[1] // (4 * form.lanes))
    span = blocks if groups == 1 else 0 if weights.group % form.block else weights.group // form.block
    words = blocks * form.lanes if by_word or not span else 1
    zeros = np.array([form.bias], np.float32)
    if weights.zeros is not None:
        zeros = zeros + weights.zeros.astype(np.float32)
    scale_of = np.minimum(np.arange(words) * form.each // max(1, weights.group), groups - 1)
    return _Spread(blocks, span, scale_of, zeros.reshape(-1), int(weights.zeros is not None))


def _in_registers(x: Array, weights: Weights, out: Array, form: WeightForm) -> bool:
    """Multiply, and return True; where rows cannot be laid out exactly, only return False."""
    rows, columns, lanes = len(x), len(weights.data), form.lanes
    spread = _spread_of(weights, form, by_word=False)
    padded, spans = -(-rows // form.rows) * form.rows, -(-spread.blocks // (spread.span or 1))
    laid, sums = np.zeros(padded * spread.blocks * form.block, np.float32), np.zeros(padded * spans * lanes, np.float32)
    factors, given = np.array(form.factors, np.float32), np.ascontiguousarray(x)
    if not _lay_out(given, factors, lanes, spread.blocks, spread.span or 1, laid, sums[: rows * spans * lanes]):
        return False
    result = np.empty((padded, columns), np.float32) if padded != rows else out
    loop = partial(
        _dotting(form), weights.data.reshape(-1), weights.data.shape[1], laid, spread.blocks * form.block, sums, spans * lanes, padded,
        weights.scales.reshape(-1), spread.zeros, weights.scales.shape[1], spread.zero_step, spread.scale_of, spread.span,
        result.reshape(-1), columns,
    )  # fmt: skip
    share(loop, columns, min(allowed(), columns))
    if padded != rows:
        out[...] = result[:rows]
    return True


Floats = Callable[[int, int], Array]  # some rows of weights as floats


def _by_blas(x: Array, weights: Weights, out: Array, floats: Floats) -> None:
    """Multiply by blocks of weights as floats, each small enough for a cache."""
    columns, size = len(weights.data), max(1, BLOCK_BYTES // (4 * weights.depth))

    def part(lo: int, hi: int) -> None:
        for first in range(lo, hi, size):
            last = min(hi, first + size)
            np.matmul(x, floats(first, last).T, out=out[:, first:last])

    on_one_thread(share)(part, columns, min(allowed(), columns))


def _floats_in_blocks(weights: Weights, form: WeightForm) -> Floats:
    """Return what gives rows of weights as floats in the order in which rows are laid out."""
    spread = _spread_of(weights, form, by_word=True)
    write, width = _unpacking(form), spread.blocks * form.block

    def floats(lo: int, hi: int) -> Array:
        out = np.empty((hi - lo, width), np.float32)
        write(
            weights.data.reshape(-1), weights.data.shape[1], weights.scales.reshape(-1), spread.zeros, weights.scales.shape[1],
            spread.zero_step, spread.scale_of, out.reshape(-1), width, lo, hi,
        )  # fmt: skip
        return out

    return floats


def _floats_by_numpy(weights: Weights) -> Floats:
    """Return what gives rows of weights as floats where groups are no whole words."""

    def floats(lo: int, hi: int) -> Array:
        data = weights.data[lo:hi]
        if weights.bits == 8:
            numbers = data.view(np.int8 if weights.signed else np.uint8)
        else:
            numbers = unpack(data, weights.bits, weights.depth, signed=weights.signed)
        zeros = 0 if weights.zeros is None else np.repeat(weights.zeros[lo:hi], weights.group, 1)[:, : weights.depth]
        scales = np.repeat(weights.scales[lo:hi], weights.group, 1)[:, : weights.depth]
        return np.asarray((numbers - np.asarray(zeros, np.float32)) * scales)

    return floats
