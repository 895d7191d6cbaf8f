"""NumPy kernels that write their result where they are told: ``kernel(*operands, out=array)``.

They answer just as the kernels of :mod:`tensorlogic.backends.numpy` do. An element-wise one may be told to write over an
operand; ``where`` may not, because it writes in two strokes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

from ..ir import ops
from ..ir.type_rules import reduced_axes
from ..ir.types import TensorType, dims
from ..plan.build import Step
from ..plan.cost import FEW, in_few_slices
from .base import Kernel
from .contract import bind_matmul_into
from .erf import bind_erf, in_blocks
from .numpy_windows import bind_overlap_add, bind_pad
from .threads import in_parts, in_rows

Array = Any
BLOCK = 1 << 16  # elements
FEW_CHOICES = 256  # elements up to which NumPy's own choice takes less time than three calls
ZEROS = 1 << 14  # kept of each dtype, to compare with
# so many rows of so few elements NumPy's einsum adds up several times as fast as its sum, in the same order
MANY_ROWS, NARROW = 256, 128


def bind_into(step: Step) -> Kernel:
    """Return the kernel of a step that has a buffer (see :func:`tensorlogic.plan.memory.writes_into`)."""
    op, result = step.op, step.types[0]
    match op:
        case ops.Elementwise():
            kernel = _elementwise(op.fn, step.arg_types[0], result)
            return in_parts(kernel, step.threads) if step.threads else kernel
        case ops.Reduce():
            kernel, own = _reduce(op, step.arg_types[0], result), step.arg_types[0]
            return kernel if not own.weak else lambda x, out: kernel(np.asarray(x, own.dtype), out)
        case ops.Einsum() if step.contraction is not None:
            if step.threads:
                return in_rows(lambda form: bind_matmul_into(op, form, result), step.contraction, step.threads)
            return bind_matmul_into(op, step.contraction, result)
        case ops.Cast():
            return _cast(step.arg_types[0])
        case ops.Pad():
            return bind_pad(op, step.arg_types, result)
        case ops.OverlapAdd():
            return bind_overlap_add(op, step.arg_types, result)
        case ops.StartAllReduce():
            from .collectives import bind_start

            return bind_start(op, result)
        case _:
            raise AssertionError(op)


def _cast(operand: TensorType) -> Kernel:
    dtype = operand.dtype if operand.weak else None  # NumPy would hold a Python scalar to the dtype it goes to

    def cast(x: Any, out: Array) -> Array:
        np.copyto(out, x if dtype is None else np.asarray(x, dtype), casting="unsafe")
        return out

    return cast


def _elementwise(fn: str, operand: TensorType, result: TensorType) -> Kernel:
    dtype = np.dtype(result.dtype or "float64")
    zero, one = np.zeros((), dtype), np.ones((), dtype)
    match fn:
        case "relu":
            return _relu(dtype, dims(result))
        case "step":
            return lambda x, out: np.greater(x, zero, out)
        case "sigmoid":
            return lambda x, out: sigmoid(np.asarray(x, dtype), out)
        case "erf":
            return bind_erf(dtype, operand.dtype)
        case "where":
            return _where
        case "lukasiewicz":

            def bounded(x: Any, y: Any, out: Array) -> Array:
                np.add(x, y, out)
                return np.subtract(np.maximum(out, one, out=out), one, out)

            return bounded
        case _:
            return _named(fn)


@cache
def _zeros(dtype: np.dtype[Any]) -> Array:
    zeros = np.zeros(ZEROS, dtype)
    zeros.setflags(write=False)
    return zeros


def _relu(dtype: np.dtype[Any], shape: tuple[int, ...]) -> Kernel:
    """Return the larger of x and 0: NumPy compares an array with an array in vectors, with a number element by element."""
    zeros, size = _zeros(dtype), math.prod(shape)
    alike = zeros[:size].reshape(shape) if size <= ZEROS else None

    def relu(x: Any, out: Array) -> Array:
        if alike is not None and out.shape == shape:
            return np.maximum(x, alike, out=out)
        if type(x) is not np.ndarray or not (x.flags.c_contiguous and out.flags.c_contiguous):
            return np.maximum(x, zeros[0], out=out)
        source, target = x.reshape(-1), out.reshape(-1)
        for start in range(0, out.size, ZEROS):
            part = target[start : start + ZEROS]
            np.maximum(source[start : start + ZEROS], zeros[: part.size], out=part)
        return out

    return relu


def _named(fn: str) -> Kernel:
    function: Kernel = getattr(np, fn)
    return function


def sigmoid(x: Array, out: Array = None) -> Array:
    """Return 1 / (1 + exp(-x)) without overflow, written where ``out`` says; it may be x itself."""
    out = np.empty_like(x) if out is None else out
    if out.flags.c_contiguous and x.shape == out.shape:
        for part, target in in_blocks(x, out, BLOCK):  # so that its temporaries stay in cache
            _sigmoid_block(part, target)
    else:
        _sigmoid_block(x, out)
    return out


def _sigmoid_block(x: Array, out: Array) -> None:
    positive = x >= 0
    e = np.exp(np.negative(np.abs(x, out=out), out=out), out=out)
    below = 1 + e
    np.divide(np.maximum(e, positive, out=e), below, out=out)  # 1 where x is positive, for e is at most 1


def _where(pick: Any, x: Any, y: Any, out: Array) -> Array:
    """Choose bit by bit, y ^ (x ^ y) * mask, as whole numbers: NumPy's own choice takes several times as long."""
    mask, dtype = np.asarray(pick), out.dtype
    plain = type(x) is np.ndarray and type(y) is np.ndarray and mask.dtype == _BOOL and mask.ndim
    if not plain or out.size <= FEW_CHOICES:
        np.copyto(out, y)
        np.copyto(out, x, where=mask if mask.dtype == _BOOL else mask.astype(bool))
        return out
    if x.dtype != dtype or y.dtype != dtype:
        x, y = x.astype(dtype, copy=False), y.astype(dtype, copy=False)
    kind = _BITS[dtype.itemsize]
    chosen, other, target = x.view(kind), y.view(kind), out.view(kind)
    if not y.ndim and not other:
        np.multiply(chosen, mask, target)
        return out
    if dtype == _BOOL:
        chosen, other, target = x, y, out
    if out.size > BLOCK and all(v.shape in (out.shape, ()) and v.flags.c_contiguous for v in (mask, x, y, out)):
        parts = [v.reshape(-1) for v in (mask, chosen, other, target)]
        for start in range(0, out.size, BLOCK):  # what is written first is in cache when it is read again
            _pick(*(v if v.size == 1 else v[start : start + BLOCK] for v in parts))
    else:
        _pick(mask, chosen, other, target)
    return out


_BOOL = np.dtype(bool)  # comparing dtypes with it is quicker than with the type
_BITS = {size: np.dtype(f"i{size}") for size in (1, 2, 4, 8)}


def _pick(mask: Array, chosen: Array, other: Array, target: Array) -> None:
    np.bitwise_xor(chosen, other, target)
    np.multiply(target, mask, target)
    np.bitwise_xor(target, other, target)


_PLAIN = (np.dtype("float32"), np.dtype("float64"))
_UFUNC = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def of_slices(function: Any, shape: Sequence[int], axes: Sequence[int], keep: bool, dtype: Any) -> Kernel:
    """Return what combines whole slices along some axes by a function of two, in the order in which NumPy's reduction takes them."""
    places = [
        tuple((slice(at[a], at[a] + 1) if keep else at[a]) if a in at else slice(None) for a in range(len(shape)))
        for at in (dict(zip(axes, own, strict=True)) for own in itertools.product(*(range(shape[a]) for a in axes)))
    ]

    # a sum of NumPy begins with 0, so that one of negative zeros is 0
    zero = np.zeros((), dtype) if function is np.add else None

    def combined(x: Array, out: Array = None) -> Array:
        out = function(x[places[0]], x[places[1]], out=out)
        for place in places[2:]:
            function(out, x[place], out=out)
        return function(out, zero, out=out) if zero is not None else out

    return combined


def _reduce(op: ops.Reduce, operand: TensorType, result: TensorType) -> Kernel:
    shape = [int(d) for d in operand.shape or ()]
    axes = reduced_axes(op, len(shape))
    keep = op.keepdims
    dtype = np.dtype(result.dtype or "float64")
    reduce: Any = _UFUNC[op.kind].reduce
    divide: Any = np.true_divide
    few = math.prod(shape) >= FEW and in_few_slices(shape, axes)
    if few and (op.kind in ("max", "min") or (op.kind == "sum" and operand.dtype == dtype in _PLAIN)):
        slices = of_slices(_UFUNC[op.kind], shape, axes, keep, dtype)
        if op.kind != "sum":
            return slices
        return lambda x, out: slices(x, out) if x.flags.c_contiguous else reduce(x, axes, dtype, None, keep)
    if op.kind not in ("sum", "prod", "mean"):
        return lambda x, out: reduce(x, axes, None, out, keep)
    count = math.prod(shape[a] for a in axes)
    width = math.prod(shape) // count if count else 0
    first = list(axes) == list(range(len(axes))) and operand.dtype == dtype in _PLAIN
    if op.kind == "sum" and first and 1 < width <= NARROW and count >= MANY_ROWS:

        def rows(x: Array, out: Array) -> Array:
            if not x.flags.c_contiguous:
                return reduce(x, axes, dtype, None, keep)
            np.einsum("ij->j", x.reshape(count, width), out=out.reshape(width))
            return out

        return rows
    if op.kind == "mean" and count == 0:

        def nothing(x: Array, out: Array) -> Array:
            out.fill(np.nan)
            return out

        return nothing
    if dtype == np.float16:  # accumulate in float32, round once

        def narrow(x: Array, out: Array) -> Array:
            total = reduce(x, axes, np.float32, None, keep)
            np.copyto(out, total if op.kind != "mean" else total / np.float32(count), casting="unsafe")
            return out

        return narrow
    # NumPy goes through an operand in the order of where it writes to, and the order decides how a sum rounds: what is not
    # in C order is summed into memory of NumPy's own choice, as it would be without a buffer
    if op.kind != "mean":
        return lambda x, out: reduce(x, axes, dtype, out if x.flags.c_contiguous else None, keep)
    by = np.intp(count)  # as np.mean divides

    def mean(x: Array, out: Array) -> Array:
        total = reduce(x, axes, dtype, out if x.flags.c_contiguous else None, keep)
        return divide(total, by, total if isinstance(total, np.ndarray) else out, casting="unsafe")

    return mean
