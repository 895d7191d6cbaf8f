"""Maxima and minima of floats that vectorise and let NaN win: over integers that stand in the same order.

The bits of a float, read as an integer with the lower bits of negative numbers turned over, order as the floats do. Every NaN
becomes the end of that order that wins, whatever its sign. LLVM vectorises a maximum of integers, but not one of floats that
must respect NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LOW32, LOW64 = np.int32(0x7FFFFFFF), np.int64(0x7FFFFFFFFFFFFFFF)
LEAST32, LEAST64 = np.int32(-0x80000000), np.int64(-0x8000000000000000)
INF = {32: 0x7F800000, 64: 0x7FF0000000000000}


def _turned(builder: Any, bits: Any, width: int) -> Any:
    """Turn over the lower bits of what is below zero; doing it again undoes it."""
    sign = builder.ashr(bits, bits.type(width - 1))
    return builder.xor(bits, builder.and_(sign, bits.type((1 << (width - 1)) - 1)))


def _fold(r: Any, x: Any, *, greatest: bool) -> Any:
    """Return the signature of a fold over places in the order, and what writes it without a branch."""
    if x not in (types.float32, types.float64):
        return None
    whole, width = (types.int32, 32) if x is types.float32 else (types.int64, 64)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        so_far, bits = args[0], builder.bitcast(args[1], ir.IntType(width))
        low = bits.type((1 << (width - 1)) - 1)
        nan = builder.icmp_signed(">", builder.and_(bits, low), bits.type(INF[width]))
        end = low if greatest else bits.type(-(1 << (width - 1)))
        key = builder.select(nan, end, _turned(builder, bits, width))
        return builder.select(builder.icmp_signed(">" if greatest else "<", key, so_far), key, so_far)

    return whole(whole, x), build


@intrinsic
def highest(typingctx: Any, r: Any, x: Any) -> Any:
    """Return the place of the greater of two: one given by its place, one by its value; NaN is greatest."""
    return _fold(r, x, greatest=True)


@intrinsic
def lowest(typingctx: Any, r: Any, x: Any) -> Any:
    """Return the place of the lesser of two: one given by its place, one by its value; NaN is least."""
    return _fold(r, x, greatest=False)


@intrinsic
def unkey(typingctx: Any, k: Any) -> Any:
    """Return the float at a place of the order."""
    if k not in (types.int32, types.int64):
        return None
    result, kind = (types.float32, ir.FloatType()) if k is types.int32 else (types.float64, ir.DoubleType())

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(_turned(builder, args[0], k.bitwidth), kind)

    return result(k), build
