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
from numba.extending import intrinsic, overload

LOW32, LOW64 = np.int32(0x7FFFFFFF), np.int64(0x7FFFFFFFFFFFFFFF)
INF32, INF64 = np.int32(0x7F800000), np.int64(0x7FF0000000000000)
LEAST32, LEAST64 = np.int32(-0x80000000), np.int64(-0x8000000000000000)


@intrinsic
def bits(typingctx: Any, x: Any) -> Any:
    """Return the bits of a float as an integer of its width."""
    if x not in (types.float32, types.float64):
        return None
    whole, width = (types.int32, 32) if x is types.float32 else (types.int64, 64)

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], ir.IntType(width))

    return whole(x), build


@intrinsic
def floating(typingctx: Any, x: Any) -> Any:
    """Return the float that has the bits of an integer."""
    if x not in (types.int32, types.int64):
        return None
    result, kind = (types.float32, ir.FloatType()) if x is types.int32 else (types.float64, ir.DoubleType())

    def build(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], kind)

    return result(x), build


def upper_key(x: Any) -> Any:
    """Return the place of a number in the order in which NaN is greatest."""
    raise NotImplementedError


def lower_key(x: Any) -> Any:
    """Return the place of a number in the order in which NaN is least."""
    raise NotImplementedError


def unkey(k: Any) -> Any:
    """Return the float at a place of the order."""
    raise NotImplementedError


@overload(upper_key, inline="always")
def _upper_key(x: Any) -> Any:
    if x is types.float32:

        def upper32(x: Any) -> Any:
            b = bits(x)
            return LOW32 if (b & LOW32) > INF32 else np.int32(b ^ ((b >> np.int32(31)) & LOW32))

        return upper32

    def upper64(x: Any) -> Any:
        b = bits(x)
        return LOW64 if (b & LOW64) > INF64 else b ^ ((b >> np.int64(63)) & LOW64)

    return upper64


@overload(lower_key, inline="always")
def _lower_key(x: Any) -> Any:
    if x is types.float32:

        def lower32(x: Any) -> Any:
            b = bits(x)
            return LEAST32 if (b & LOW32) > INF32 else np.int32(b ^ ((b >> np.int32(31)) & LOW32))

        return lower32

    def lower64(x: Any) -> Any:
        b = bits(x)
        return LEAST64 if (b & LOW64) > INF64 else b ^ ((b >> np.int64(63)) & LOW64)

    return lower64


@overload(unkey, inline="always")
def _unkey(k: Any) -> Any:
    if k is types.int32:

        def unkey32(k: Any) -> Any:
            return floating(np.int32(k ^ ((k >> np.int32(31)) & LOW32)))

        return unkey32

    def unkey64(k: Any) -> Any:
        return floating(k ^ ((k >> np.int64(63)) & LOW64))

    return unkey64
