"""Type rules of operations that move elements or hold numbers in few bits: views, padding, gathering, sorting, quantizing."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..diagnostics import value_text
from ..errors import DTypeError, GraphError, ShapeError, nearest
from . import ops
from .ops import Op
from .packed_numbers import KINDS, NumberKind
from .sizes import Dim, add, floordiv, mul, prod, sub
from .types import (
    FLOATS,
    INTEGERS,
    Results,
    Rule,
    Scope,
    TensorShape,
    TensorType,
    Types,
    dtype_name,
    equal_shapes,
    normal_axis,
    promote,
    ufunc_dtype_of,
)


def _put(shape: Sequence[Dim], axis: int, *sizes: Dim) -> TensorShape:
    return TensorShape([*shape[:axis], *sizes, *shape[axis + 1 :]])


def _slice(op: ops.Slice, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    if len(op.ranges) != len(shape):
        raise ShapeError(f"slice has {len(op.ranges)} ranges for {len(shape)} axes", code="E013")
    for axis, ((start, count, step), size) in enumerate(zip(op.ranges, shape, strict=True)):
        if step == 0:
            raise ShapeError("a slice cannot have step 0", code="E011")
        if isinstance(count, int) and count < 0:
            raise ShapeError(f"slice: axis {axis} of {scope.operand(0)} would have {count} elements", code="E014")
        if isinstance(start, int) and isinstance(count, int) and isinstance(size, int) and count > 0:
            last = start + (count - 1) * step
            if not (0 <= start < size and 0 <= last < size):
                place = f"axis {axis}, which has {size}, in {scope.operand(0)}"
                raise ShapeError(f"slice reads elements {start} to {last} of {place}", code="E010")
    return (TensorType(TensorShape(count for _, count, _ in op.ranges), args[0].dtype),)


def _reshape(op: ops.Reshape, args: Types, scope: Scope) -> Results:
    shape, dtype = args[0].shape, args[0].dtype
    free = [i for i, d in enumerate(op.shape) if d == -1]
    if len(free) > 1:
        raise ShapeError(f"reshape may leave one size open, got {list(op.shape)}", code="E019")
    if shape is None:
        return (TensorType(None if free else TensorShape(op.shape), dtype),)
    total, target = prod(shape), list(op.shape)
    if free:
        rest = prod(tuple(d for d in op.shape if d != -1))
        target[free[0]] = 0 if rest == 0 else floordiv(total, rest)
    new = prod(tuple(target))
    what = f"cannot reshape {scope.operand(0)} of shape {shape} ({total} elements) to {list(op.shape)} ({new} elements)"
    scope.same(total, new, what)
    return (TensorType(TensorShape(target), dtype),)


def _transpose(op: ops.Transpose, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if sorted(op.order) != list(range(len(op.order))) or (shape is not None and len(op.order) != len(shape)):
        shown = "" if shape is None else f" of shape {shape}"
        raise ShapeError(f"transpose order {list(op.order)} does not fit {scope.operand(0)}{shown}", code="E020")
    return (TensorType(None if shape is None else TensorShape(shape[a] for a in op.order), args[0].dtype),)


def _window(op: ops.Window, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if op.step < 1 or op.dilation < 1 or (isinstance(op.size, int) and op.size < 1):
        raise ShapeError("a window needs a size, step and dilation of at least 1", code="E022")
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    axis = normal_axis(op.axis, len(shape), "window")
    reach = add(mul(sub(op.size, 1), op.dilation), 1)
    spare = sub(shape[axis], reach)
    if isinstance(spare, int) and spare < 0:
        place = f"axis {axis} of {scope.operand(0)}, which has {shape[axis]}"
        raise ShapeError(f"a window that reaches over {reach} elements does not fit {place}", code="E022")
    count = add(floordiv(spare, op.step), 1)
    return (TensorType(TensorShape([*_put(shape, axis, count), op.size]), args[0].dtype),)


def _overlap_add(op: ops.OverlapAdd, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    if args[0].dtype == "bool" or len(shape) < 2:
        raise ShapeError(f"overlap_add: {scope.operand(0)} of type {args[0]} holds no windows of numbers", code="E880")
    axis = normal_axis(op.axis, len(shape) - 1, "overlap_add")
    room = TensorType(TensorShape(_put(shape[:-1], axis, op.length)), args[0].dtype)
    (windows,) = _window(ops.Window(axis, shape[-1], op.step, op.dilation), (room,), scope)
    count = (windows.shape or ())[axis]
    what = f"overlap_add: an axis of {op.length} has {count} windows of {shape[-1]}, but {scope.operand(0)}"
    scope.same(shape[axis], count, f"{what} has {shape[axis]}")
    return (room,)


def _pad(op: ops.Pad, args: Types, scope: Scope) -> Results:
    shape = args[0].shape
    if args[1].shape:
        raise ShapeError(f"pad: the value must be a scalar, got shape {args[1].shape}", code="E023")
    if any(w < 0 for pair in op.widths for w in pair):
        raise ShapeError(f"pad widths cannot be negative: {list(op.widths)}", code="E016")
    if shape is None:
        return (TensorType(None, args[0].dtype),)
    if len(op.widths) != len(shape):
        raise ShapeError(f"pad has {len(op.widths)} widths for {len(shape)} axes", code="E013")
    padded = [add(d, low + high) for d, (low, high) in zip(shape, op.widths, strict=True)]
    return (TensorType(TensorShape(padded), args[0].dtype),)


def _concat(op: ops.Concat, args: Types, scope: Scope) -> Results:
    if not args:
        raise GraphError("concat needs at least one operand", code="E105")
    dtype = None
    if all(a.dtype is not None for a in args):
        dtype = promote((a.dtype or "", a.weak) for a in args)
    if any(a.shape is None for a in args):
        return (TensorType(None, dtype),)
    first = args[0].shape or TensorShape()
    axis = normal_axis(op.axis, len(first), "concat")
    total: Dim = first[axis]
    for n, a in enumerate(args[1:], 1):
        shape = a.shape or TensorShape()
        if len(shape) != len(first):
            raise ShapeError(f"concat: {scope.operand(n)} has shape {shape}, the first one {first}", code="E001")
        message = f"concat along axis {axis}: {scope.operand(n)} has shape {shape}, the first one {first}; the other axes must be equal"
        for at, (here, there) in enumerate(zip(first, shape, strict=True)):
            if at != axis:
                scope.same(here, there, message)
        total = add(total, shape[axis])
    return (TensorType(_put(first, axis, total), dtype),)


def _indexed(op: ops.Gather | ops.ScatterAdd, args: Types, scope: Scope) -> TensorShape | None:
    """Check data and indices of a gather or scatter; return the gathered shape."""
    data, indices = args[0].shape, args[1].shape
    if args[1].dtype is not None and args[1].dtype not in INTEGERS:
        hint = "cast them: b.cast(indices, 'int64')"
        if args[1].dtype == "bool":  # as numbers they would be the places 0 and 1
            hint = "a mask is no list of places: keep all places with b.where(mask, x, 0), or give np.flatnonzero(mask)"
        raise DTypeError(f"{op.name}: indices must be integers, got {args[1].dtype}", hint, code="E121")
    if data is None or indices is None:
        return None
    axis = normal_axis(op.axis, len(data), op.name)
    if not 0 <= op.batch <= min(axis, len(indices)):
        raise ShapeError(f"{op.name}: batch {op.batch} does not fit axis {axis} and indices {indices}", code="E025")
    what = f"{op.name}: the batch axes of data and indices"
    equal_shapes(TensorShape(data[: op.batch]), TensorShape(indices[: op.batch]), what, scope)
    return _put(data, axis, *indices[op.batch :])


def _scatter_add(op: ops.ScatterAdd, args: Types, scope: Scope) -> Results:
    places = _indexed(op, args, scope)
    equal_shapes(places, args[2].shape, "scatter_add: the updates and the places they go to", scope)
    return (TensorType(args[0].shape, ufunc_dtype_of(np.add, (args[0], args[2]))),)


def _channels(op: ops.Quantize | ops.Dequantize, args: Types, scope: Scope) -> None:
    if op.group is not None and (op.group < 1 or op.axis is not None):
        message = f"{op.name}: a group has at least one element of the last axis, got group={op.group}, axis={op.axis}"
        raise ShapeError(message, "write group=32 without axis=", code="E319")
    for n in (1, 2):
        shape, whole = args[n].shape, args[0].shape
        if shape is None or whole is None:
            continue
        if op.group is not None and shape:
            if not whole:
                raise ShapeError(f"{op.name}: a scalar has no last axis to make groups of", code="E319")
            groups = floordiv(add(whole[-1], op.group - 1), op.group)
            what = f"{op.name}: {scope.operand(n)} and groups of {op.group}"
            equal_shapes(shape, TensorShape([*whole[:-1], groups]), what, scope)
            continue
        if op.axis is None and shape:
            raise ShapeError(f"{op.name}: {scope.operand(n)} must be a scalar unless axis= is given", code="E023")
        if op.axis is not None and shape:
            axis = normal_axis(op.axis, len(whole), op.name)
            what = f"{op.name}: {scope.operand(n)} and axis {axis}"
            equal_shapes(shape, TensorShape([whole[axis]]), what, scope)
    for n, what, kinds in ((2, "zero point must be an integer", INTEGERS), (1, "scale must be a float", FLOATS)):
        if args[n].dtype is not None and args[n].dtype not in kinds:
            raise DTypeError(f"{op.name}: the {what}, got {args[n].dtype}", code="E121")


def _sort(op: ops.Sort, args: Types, scope: Scope) -> Results:
    if args[0].shape is not None:
        normal_axis(op.axis, len(args[0].shape), "sort")
    return (TensorType(args[0].shape, "int64" if op.indices else args[0].dtype),)


def _top_k(op: ops.TopK, args: Types, scope: Scope) -> Results:
    dtype = "int64" if op.indices else args[0].dtype
    if args[0].shape is None:
        return (TensorType(None, dtype),)
    axis = normal_axis(op.axis, len(args[0].shape), "top_k")
    size = args[0].shape[axis]
    if op.k < 0 or (isinstance(size, int) and op.k > size):
        raise ShapeError(f"top_k asks for {value_text(op.k)} of {size} elements along axis {axis}", code="E018")
    shape = TensorShape([*args[0].shape[:axis], op.k, *args[0].shape[axis + 1 :]])
    return (TensorType(shape, dtype),)


def _quantize(op: ops.Quantize, args: Types, scope: Scope) -> Results:
    _channels(op, args, scope)
    if op.kind is not None:
        held = _kind(op.kind, "quantize").dtype
        if op.dtype != held:
            raise DTypeError(f"quantize to {op.kind} makes {held}, not {op.dtype}", f"use {held!r}", code="E121")
    elif dtype_name(op.dtype) not in INTEGERS:
        raise DTypeError(f"quantize makes integers, not {op.dtype}", "use 'int8'", code="E121")
    return (TensorType(args[0].shape, op.dtype),)


def _kind(name: str, what: str) -> NumberKind:
    if name not in KINDS:
        raise DTypeError(f"{what}: there is no kind of number {value_text(name)}", *nearest(name, KINDS), code="E318")
    return KINDS[name]


def _unpack(op: ops.Unpack, args: Types, scope: Scope) -> Results:
    kind = _kind(op.kind, "unpack")
    if args[0].dtype not in (None, "uint8"):
        raise DTypeError(f"unpack reads bytes, got {args[0].dtype}", "give a uint8 array", code="E121")
    shape = args[0].shape
    if shape is None:
        return (TensorType(None, kind.dtype),)
    if not shape:
        raise ShapeError("unpack: a scalar has no last axis that numbers are packed along", code="E024")
    size = floordiv(add(mul(op.count, kind.bits), 7), 8)
    scope.same(size, shape[-1], f"unpack: {op.count} of {op.kind} are {size} bytes, the operand has {shape[-1]}")
    return (TensorType(TensorShape([*shape[:-1], op.count]), kind.dtype),)


def _dequantize(op: ops.Dequantize, args: Types, scope: Scope) -> Results:
    _channels(op, args, scope)
    return (TensorType(args[0].shape, "float32" if args[1].weak else args[1].dtype),)


RULES: dict[type[Op], Rule] = {
    ops.Slice: _slice,
    ops.Reshape: _reshape,
    ops.Transpose: _transpose,
    ops.Window: _window,
    ops.OverlapAdd: _overlap_add,
    ops.Pad: _pad,
    ops.Concat: _concat,
    ops.Gather: lambda op, args, scope: (TensorType(_indexed(op, args, scope), args[0].dtype),),
    ops.ScatterAdd: _scatter_add,
    ops.Sort: _sort,
    ops.TopK: _top_k,
    ops.Quantize: _quantize,
    ops.Dequantize: _dequantize,
    ops.Unpack: _unpack,
}
