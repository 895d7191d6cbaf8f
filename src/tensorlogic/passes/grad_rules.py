"""Reverse-mode rules of element-wise functions, reductions, cumulations, sorts and casts."""

from __future__ import annotations

import math

import numpy as np
from msgspec.structs import replace

from ..errors import ShapeError
from ..ir import ops
from ..ir.graph import EinsumGraph, Scan
from ..ir.ops import Op
from ..ir.packed_numbers import KINDS
from ..ir.sizes import Dim, mul, prod, sub
from ..ir.type_rules import reduced_axes
from ..ir.types import FLOATS, TensorShape, TensorType
from .derivatives import slopes
from .grad_reverse import Call, Grads, Rule
from .grad_tape import (
    Tape,
    Value,
    count,
    filled,
    full,
    indicator,
    known_shape,
    number_like,
    on_device,
    scalar,
    unbroadcast,
)

CHOOSING = frozenset({"relu", "minimum", "maximum", "lukasiewicz", "godel_implies", "goguen_implies", "where"})


def _elementwise(t: Tape, call: Call) -> Grads:
    g = of_choice(t, call.op.fn, call.g, call.y)
    found: list[Value | None] = [None] * len(call.args)
    for n, slope in enumerate(slopes(call.op.fn, straight=call.options.straight)):
        if slope is not None and call.wants[n]:
            others = [x for k, x in enumerate(call.args) if k != n]
            found[n] = unbroadcast(t, slope(t, call.args, call.y, g), call.args[n], others, call.y.shape)
    return found


def of_choice(t: Tape, fn: str, g: Value, y: Value) -> Value:
    """Return a change that a function may choose: a choice of two literals would have no dtype of its own."""
    number = t.literal_of(g) if fn in CHOOSING else None
    return g if number is None else scalar(t, number, y)


def expanded(t: Tape, v: Value, x: Value, op: ops.Reduce) -> Value:
    """Return a value of a reduction's result (or what broadcasts to it) so that it broadcasts to the operand."""
    if op.keepdims or v.shape == () or (op.axes is None and (x.shape is None or v.shape is None)):
        return v
    whole, own = (known_shape(each, "gradients of reductions along axes") for each in (x, v))
    axes = sorted(reduced_axes(op, len(whole)))
    if axes == list(range(len(axes))):
        return v
    kept = iter((1,) * (len(whole) - len(axes) - len(own)) + tuple(own))
    shape = [1 if a in axes else next(kept) for a in range(len(whole))]
    while shape and shape[0] == 1:  # broadcasting puts them back
        shape.pop(0)
    return t.reshape(v, shape)


def _reduce(t: Tape, call: Call) -> Grads:
    op, x, y = call.op, call.x, call.y
    g = expanded(t, call.g, x, op)
    match op.kind:
        case "sum":
            return [g]
        case "mean":
            return [g / sizes_of(t, x, op)]
        case "max" | "min" | "any" | "all":
            if op.kind in ("any", "all"):  # straight through: the greatest or the least truth
                x = t.cast(t.not_equal(x, 0), "float32")
                y = t.apply(ops.Reduce("max" if op.kind == "any" else "min", op.axes, op.keepdims), x)
            chosen, ties = extremes(t, x, y, op)
            return [t.where(chosen, g / ties, 0)]
        case _:
            return [g * others(t, x, op)]


def sizes_of(t: Tape, x: Value, op: ops.Reduce) -> Value | float:
    """Return the number of elements that a mean divides by."""
    if x.shape is not None and (x.dtype is not None or x.shape.is_static):
        sizes = [x.shape[a] for a in reduced_axes(op, len(x.shape))]
        number = count(t, sizes, x.dtype or "float64")
        return number or 1.0  # of no elements: whatever, there is nothing to give it to
    return t.sum(number_like(t, 1.0, x), op.axes, keepdims=True)


def extremes(t: Tape, x: Value, y: Value, op: ops.Reduce) -> tuple[Value, Value]:
    """Return where a maximum or minimum is attained, and how often."""
    chosen = t.equal(x, expanded(t, y, x, op))
    return chosen, t.sum(indicator(t, chosen, x), op.axes, keepdims=True)


def others(t: Tape, x: Value, op: ops.Reduce) -> Value:
    """Return for each element the product of all the others; zeros are no exception."""
    shape = known_shape(x, "gradients of products")
    axes = reduced_axes(op, len(shape))
    if len(axes) == 1:
        return _but_itself(t, x, axes[0])
    if not axes:
        return number_like(t, 1.0, x)
    kept = [a for a in range(len(shape)) if a not in axes]
    order = [*kept, *axes]
    moved = t.transpose(x, order)
    flat = t.reshape(moved, [*(shape[a] for a in kept), prod(tuple(shape[a] for a in axes))])
    result = t.reshape(_but_itself(t, flat, len(kept)), moved.shape or ())
    return t.transpose(result, [order.index(a) for a in range(len(order))])


def _but_itself(t: Tape, x: Value, axis: int) -> Value:
    return exclusive(t, x, axis, False) * exclusive(t, x, axis, True)


def exclusive(t: Tape, x: Value, axis: int, reverse: bool) -> Value:
    """Return the running product along an axis of all that comes before an element."""
    return _window(t, t.cumprod(_padded(t, x, axis, not reverse, 1.0), axis, reverse=reverse), x, axis, reverse)


def beside(t: Tape, x: Value, axis: int, after: bool, value: float) -> Value:
    """Return each element's neighbour along an axis, and a value where there is none."""
    return _window(t, _padded(t, x, axis, not after, value), x, axis, after)


def _padded(t: Tape, x: Value, axis: int, before: bool, value: float) -> Value:
    width = (1, 0) if before else (0, 1)
    return t.pad(x, [width if a == axis else (0, 0) for a in range(len(x.shape or ()))], value)


def _window(t: Tape, padded: Value, x: Value, axis: int, late: bool) -> Value:
    ranges = tuple((1 if late and a == axis else 0, d, 1) for a, d in enumerate(x.shape or ()))
    return t.apply(ops.Slice(ranges), padded)


def recurrence(t: Tape, factor: Value, term: Value, axis: int, reverse: bool) -> Value:
    """Return s with s[i] = term[i] + factor[i] * (the s before it) along an axis; from the far end if ``reverse``."""
    shape = term.shape or TensorShape()
    front = [axis, *(a for a in range(len(shape)) if a != axis)]
    factor, term = (v if axis == 0 else t.transpose(v, front) for v in (factor, term))
    row = TensorType(TensorShape((term.shape or ())[1:]), term.dtype)
    body = Tape(EinsumGraph([], []))
    carry, a, b = (body.input(name, row) for name in ("c0", "x0", "x1"))
    after = b + a * carry
    graph = body.finish([("r0", after), ("r1", after)])
    start = filled(t, 0.0, row.shape or (), row.dtype, term)
    _, rows = t.apply_many(Scan(graph, 1, 2, shape[axis], reverse), start, factor, term)
    return rows if axis == 0 else t.transpose(rows, [front.index(a) for a in range(len(front))])


def _cumulate(t: Tape, call: Call) -> Grads:
    op, x, y = call.op, call.x, call.y
    g = full(t, call.g, y)
    if op.kind == "sum":
        return [t.cumsum(g, op.axis, reverse=not op.reverse)]
    axis = op.axis % len(known_shape(x, "gradients of running products and extremes"))
    if op.kind == "prod":
        after = beside(t, x, axis, not op.reverse, 0.0)
        return [exclusive(t, x, axis, op.reverse) * recurrence(t, after, g, axis, not op.reverse)]
    # the result stays the same along runs; a step of a run is shared by the elements of the run that attained it so far
    tie = t.equal(x, y)
    number = indicator(t, tie, x)
    begins = t.not_equal(y, beside(t, y, axis, op.reverse, math.nan))
    total = t.cumsum(number, axis, reverse=op.reverse)
    before = t.cummax(t.where(begins, total - number, 0), axis, reverse=op.reverse)
    goes_on = indicator(t, t.equal(y, beside(t, y, axis, not op.reverse, math.nan)), x)
    return [t.where(tie, recurrence(t, goes_on, g / (total - before), axis, not op.reverse), 0)]


def last_axis(t: Tape, v: Value, axis: int, *, back: bool = False) -> Value:
    """Move an axis to the end, or back from there."""
    rank = len(v.shape or ())
    if axis == rank - 1:
        return v
    order = [a for a in range(rank) if a != axis] + [axis]
    return t.transpose(v, [order.index(a) for a in range(rank)] if back else order)


def places(t: Tape, x: Value, op: ops.Sort | ops.TopK) -> Value:
    """Return the indices that a sort, or a choice of the greatest, reads."""
    return t.apply(replace(op, indices=True), x)


def _sort(t: Tape, call: Call) -> Grads:
    op, x = call.op, call.x
    rank = len(known_shape(x, "gradients of sorts"))
    axis = op.axis % rank
    index, g = (last_axis(t, v, axis) for v in (places(t, x, op), full(t, call.g, call.y)))
    result = t.scatter_add(last_axis(t, number_like(t, 0.0, x), axis), index, g, rank - 1, batch=rank - 1)
    return [last_axis(t, result, axis, back=True)]


def channel(t: Tape, v: Value, x: Value, op: ops.Quantize | ops.Dequantize) -> Value:
    """Lay a scale or a zero point along the axis of its tensor, or over its groups."""
    if not v.shape or x.shape is None:
        return v
    if op.group is not None:
        wide = t.broadcast_to(t.reshape(v, (*v.shape, 1)), (*v.shape, op.group))
        flat = t.reshape(wide, (*x.shape[:-1], mul(v.shape[-1], op.group)))
        return t.apply(ops.Slice(tuple((0, d, 1) for d in x.shape)), flat)
    axis = (op.axis or 0) % len(x.shape)
    shape: list[Dim] = [x.shape[axis]] + [1] * (len(x.shape) - 1 - axis)
    return t.reshape(v, shape)


def _to_scales(t: Tape, share: Value, scale: Value, op: ops.Quantize | ops.Dequantize) -> Value:
    """Add up what each element has for its scale."""
    shape = known_shape(share, "gradients of scales")
    if not scale.shape or op.group is None:
        own = None if op.axis is None or not scale.shape else op.axis % len(shape)
        return t.sum(share, [a for a in range(len(shape)) if a != own])
    missing = sub(mul(scale.shape[-1], op.group), shape[-1])
    if not isinstance(missing, int):
        raise ShapeError("gradients of the scales of groups need the size of the last axis", code="E007")
    whole = t.apply(ops.Pad((*((0, 0),) * (len(shape) - 1), (0, missing))), share, 0) if missing else share
    return t.sum(t.reshape(whole, (*scale.shape, op.group)), [len(shape)])


def _quantize(t: Tape, call: Call) -> Grads:
    """Straight through: as if nothing were rounded, but what was clamped stays where it is."""
    x, scale, zero = call.args
    s, z = (channel(t, v, x, call.op) for v in (scale, zero))
    row = KINDS.get(call.op.kind or call.op.dtype)
    low, high = (row.low, row.high) if row else (int(np.iinfo(call.op.dtype).min), int(np.iinfo(call.op.dtype).max))
    steps = x / s
    place = t.rint(steps) + t.cast(z, x.dtype or "float32")
    d_x = t.where(t.logical_and(t.greater_equal(place, low), t.less_equal(place, high)), call.g / s, 0)
    if not call.wants[1]:
        return [d_x, None, None]
    share = t.negative(full(t, d_x, call.y) * steps)
    return [d_x, _to_scales(t, t.cast(share, scale.dtype or "float32"), scale, call.op), None]


def _dequantize(t: Tape, call: Call) -> Grads:
    q, scale, zero = call.args
    s, z = (channel(t, v, q, call.op) for v in (scale, zero))
    found: list[Value | None] = [call.g * s if call.wants[0] else None, None, None]
    if call.wants[1]:
        dtype = scale.dtype or "float32"
        steps = (
            t.cast(t.subtract(t.cast(q, "int32"), t.cast(z, "int32")), dtype)
            if q.dtype not in FLOATS
            else q - t.cast(z, dtype)
        )
        found[1] = _to_scales(t, full(t, call.g, call.y) * steps, scale, call.op)
    return found


RULES: dict[type[Op], Rule] = {
    ops.Elementwise: _elementwise,
    ops.Reduce: _reduce,
    ops.Cumulate: _cumulate,
    ops.Sort: _sort,
    ops.TopK: _sort,
    ops.Cast: lambda t, call: [call.g],  # whoever takes it has it in its own dtype
    ops.Transfer: lambda t, call: [on_device(t, call.g, call.x)],
    ops.Quantize: _quantize,
    ops.Dequantize: _dequantize,
    ops.Unpack: lambda t, call: [None],  # bytes have none
}
