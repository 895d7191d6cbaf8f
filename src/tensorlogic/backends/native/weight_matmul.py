"""Products of float32 rows with weights that stay packed: 8, 4, 2 and 1 bits, with scales and zero points.

Few rows: each row of weights is read once and unpacked in registers. Many rows: a block of weights becomes float32, for BLAS to multiply.
Weights stand as (out, in), the reduced index last. A weight q stands for (q - zero) * scale; that product is rounded once, and sums are
float32 in an order that depends on the processor, as those of BLAS are.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
from numba import types

from ..threads import allowed, on_one_thread, share
from .dot_instructions import dot_form
from .explicit import NUMBER, Explicit
from .weight_dots import WeightForm, weight_dots_of

Array = Any
FEW = 16  # rows up to which unpacking in registers is faster than BLAS on a block of floats
LEAST = 2.0**-90  # what is smaller, but not 0, could become too small for a normal number
AT_ONCE = 4  # rows that share what was unpacked
BLOCK_BYTES = 1 << 20  # of floats that weights become at once
_FLOATS, _FLOATS_OUT = types.Array(types.float32, 1, "C", readonly=True), types.Array(types.float32, 1, "C")
_OCTETS = types.Array(types.uint8, 1, "C", readonly=True)
_NUMBERS = types.Array(types.int32, 1, "C", readonly=True)
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
def _unpacking(bits: int, signed: bool) -> Explicit:
    each, top = 8 // bits, 32 - bits

    def unpack(
        data: Any, width: int, depth: int, scales: Any, zeros: Any, groups: int, group: int, first: int, out: Any, lo: int, hi: int
    ) -> None:
        """Write the weights of rows ``lo`` to ``hi`` as floats; ``first`` is the row that the result begins with."""
        for o in range(lo, hi):
            target = out[(o - first) * depth : (o - first + 1) * depth]
            source = data[o * width : (o + 1) * width]
            whole = depth // each
            for j in range(whole):
                code = np.int32(source[j])
                for t in range(each):
                    target[j * each + t] = number(code, t)
            for k in range(whole * each, depth):
                target[k] = number(np.int32(source[whole]), k - whole * each)
            for g in range(groups):
                scale, zero = scales[o * groups + g], np.float32(zeros[o * groups + g])
                part = target[g * group : min(depth, (g + 1) * group)]
                for k in range(len(part)):
                    part[k] = (part[k] - zero) * scale

    import numba

    @numba.njit(inline="always")
    def number(code: Any, t: int) -> Any:
        if bits == 1:
            return np.float32(2 * ((code >> t) & 1) - 1)
        high = np.int32(code << np.int32(top - bits * t))
        return np.float32(high >> np.int32(top)) if signed else np.float32((code >> (bits * t)) & ((1 << bits) - 1))

    kinds = (_OCTETS, NUMBER, NUMBER, _FLOATS, _NUMBERS, NUMBER, NUMBER, NUMBER, _FLOATS_OUT, NUMBER, NUMBER)
    return Explicit(unpack, kinds, f"{bits} {signed}", fast=False)


def weight_matmul(x: Array, weights: Weights, out: Array) -> None:
    """Write the product of float32 rows with the weights, turned over, into a contiguous ``out`` of rows × rows of weights."""
    rows, outputs = (1, 1 if weights.bits == 8 else 2) if len(x) == 1 else (AT_ONCE, 2)
    form = WeightForm(weights.bits, weights.signed, min(8, dot_form().lanes), rows, outputs)
    if len(x) > FEW or weights.group % form.each or not _scalable(x):
        _by_blas(x, weights, out)
    else:
        _in_registers(x, weights, out, form)


def _scalable(x: Array) -> bool:
    """Tell whether numbers can be made 2 ** 30 times smaller without a loss."""
    size = np.abs(x)
    return bool(size.max(initial=0) < np.inf) and bool(np.where(size == 0, 1, size).min(initial=1) > LEAST)


def _in_registers(x: Array, weights: Weights, out: Array, form: WeightForm) -> None:
    data, (rows, width) = weights.data, (len(x), weights.data.shape[1])
    lanes, block, groups = form.lanes, form.block, weights.scales.shape[1]
    padded = -(-rows // form.rows) * form.rows
    blocks = -(-width // (4 * lanes))
    wide = np.zeros((padded, blocks, lanes, form.each), np.float32)
    wide.reshape(padded, blocks * block)[:rows, : weights.depth] = x
    span = max(1, blocks) if groups == 1 else 0 if weights.group % block else weights.group // block
    sums = wide.sum(3)
    if span > 1:
        sums = np.add.reduceat(sums, range(0, blocks, span), axis=1) if blocks else sums
    # as words give them: lane after lane for each place in a word
    laid = np.multiply(wide.swapaxes(2, 3), np.array(form.factors, np.float32)[:, None], order="C")
    scale_of = np.minimum(np.arange(1 if span else blocks * lanes) * form.each // weights.group, groups - 1)
    zeros = np.array([form.bias], np.float32) if weights.zeros is None else weights.zeros.astype(np.float32) + np.float32(form.bias)
    result = np.empty((padded, len(data)), np.float32) if padded != rows else out
    loop = partial(
        _dotting(form), data.reshape(-1), width, laid.reshape(-1), blocks * block, sums.reshape(-1), sums[0].size, padded,
        weights.scales.reshape(-1), zeros.reshape(-1), groups, int(weights.zeros is not None), scale_of, span, result.reshape(-1), len(data),
    )  # fmt: skip
    share(loop, len(data), min(allowed(), max(1, len(data))))
    if padded != rows:
        out[...] = result[:rows]


def _by_blas(x: Array, weights: Weights, out: Array) -> None:
    """Multiply by blocks of weights as floats, each small enough for a cache."""
    columns, (groups, width) = len(weights.data), (weights.scales.shape[1], weights.data.shape[1])
    unpack = _unpacking(weights.bits, weights.signed)
    zeros = np.zeros(weights.scales.shape, np.int32) if weights.zeros is None else weights.zeros
    size = max(1, BLOCK_BYTES // max(4, 4 * weights.depth))

    def part(lo: int, hi: int) -> None:
        floats = np.empty((min(size, hi - lo), weights.depth), np.float32)
        for first in range(lo, hi, size):
            last = min(hi, first + size)
            unpack(
                weights.data.reshape(-1), width, weights.depth, weights.scales.reshape(-1), zeros.reshape(-1), groups,
                weights.group, first, floats.reshape(-1), first, last,
            )  # fmt: skip
            np.matmul(x, floats[: last - first].T, out=out[:, first:last])

    on_one_thread(share)(part, columns, min(allowed(), max(1, columns)))
