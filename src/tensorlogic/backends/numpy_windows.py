"""NumPy kernels of windows: to show them, to add them up where they overlap, and to pad what they go along."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..ir import ops
from ..ir.types import TensorType, normal_axis
from .base import Kernel

Array = Any
LONG_RUN = 64  # elements side by side from which NumPy adds as fast as it copies
COPIED = 1 << 20  # bytes that are copied at a time


def bind_window(op: ops.Window, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    """Return what shows all windows along an axis, without a copy."""
    axis = normal_axis(op.axis, len(args[0].shape or ()), "window")
    shape = tuple(int(d) for d in result.shape or ())

    def windows(x: Array) -> Array:
        strides = [*x.strides, x.strides[axis] * op.dilation]
        strides[axis] *= op.step
        # the plan has checked that every window lies inside x
        return np.lib.stride_tricks.as_strided(x, shape, strides, writeable=False)

    return windows


def bind_overlap_add(op: ops.OverlapAdd, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    """Return the kernel that adds windows up where they overlap; it writes its result where ``out=`` says."""
    *_, size = (int(d) for d in args[0].shape or ())
    shape, dtype = tuple(int(d) for d in result.shape or ()), np.dtype(result.dtype or "float64")
    axis = normal_axis(op.axis, len(shape), "overlap_add")
    count = int((args[0].shape or ())[axis])
    before = (slice(None),) * axis
    starts = [k * op.dilation for k in range(size)]
    places = [(*before, slice(start, start + (count - 1) * op.step + 1, op.step)) for start in starts]
    apart = starts[-1] < op.step
    filled = apart and count * size == shape[axis]  # every element is written to
    working = np.dtype("float32") if dtype == np.float16 and not apart else dtype

    def overlap_add(x: Array, out: Array = None) -> Array:
        own = out is not None and working == dtype
        total = out if own else np.empty(shape, working)
        if not filled:
            total.fill(0)
        for k, place in enumerate(places) if count else ():
            if k == 0 or apart:
                total[place] = x[..., k]
            else:
                _add(total[place], x[..., k], axis > 0)
        if own or out is None:
            return total.astype(dtype, copy=False)
        out[...] = total
        return out

    return overlap_add


def _add(total: Array, x: Array, in_blocks: bool) -> None:
    """Add an array to another; short runs of memory are first copied side by side, which NumPy does faster than to add them."""
    if not in_blocks or _run(x) >= LONG_RUN or x.dtype != total.dtype:
        np.add(total, x, out=total, casting="same_kind")
        return
    rows = max(1, COPIED * len(x) // max(1, x.nbytes))
    room = np.empty((min(rows, len(x)), *x.shape[1:]), x.dtype)
    for start in range(0, len(x), rows):
        part, own = total[start : start + rows], room[: len(x) - start]
        np.copyto(own, x[start : start + rows])
        np.add(part, own, part)


def _run(x: Array) -> int:
    """Return how many elements of an array stand side by side in memory, those of its last axes."""
    run = 1
    for size, stride in zip(reversed(x.shape), reversed(x.strides), strict=True):
        if stride != run * x.itemsize:
            break
        run *= size
    return run


def bind_pad(op: ops.Pad, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    """Return the kernel that surrounds an array with a value; it writes its result where ``out=`` says."""
    shape = tuple(int(d) for d in result.shape or ())
    inner = tuple(slice(low, n - high) for (low, high), n in zip(op.widths, shape, strict=True))

    def padded(x: Array, value: Any, out: Array = None) -> Array:
        out = np.empty(shape, x.dtype) if out is None else out
        out[...] = fill = np.asarray(value).astype(x.dtype)
        if x.dtype.kind in "iu" and fill != value:
            raise OverflowError(f"the value {value} does not fit {x.dtype}")
        out[inner] = x
        return out

    return padded
