"""Reverse-mode rules of views, pads, concatenations, gathers and scatters: where an element came from, its gradient goes."""

from __future__ import annotations

from ..ir import ops
from ..ir.ops import Op
from ..ir.sizes import Dim, add, sub
from .grad_reverse import Call, Grads, Rule
from .grad_tape import Tape, Value, filled, full, known_shape, number_like


def _slice(t: Tape, call: Call) -> Grads:
    shape = known_shape(call.x, "gradients of slices")
    g = full(t, call.g, call.y)
    widths = [(0, 0)] * len(shape)
    left: list[int] = []
    for axis, ((start, count, step), size) in enumerate(zip(call.op.ranges, shape, strict=True)):
        after = sub(sub(size, start), count)
        if (start, count, step) == (0, size, 1):
            continue
        if step == 1 and isinstance(start, int) and isinstance(after, int) and after >= 0:
            widths[axis] = (start, after)
        else:
            left.append(axis)
    if any(w != (0, 0) for w in widths):
        g = t.pad(g, widths, 0)
    for axis in left:  # a stride, or a place that depends on a size: by index
        index = t.apply(ops.Slice((call.op.ranges[axis],)), t.iota(shape[axis]))
        room = [*(g.shape or ())]
        room[axis] = shape[axis]
        g = t.scatter_add(filled(t, 0.0, room, g.dtype, g), index, g, axis)
    return [g]


def _reshape(t: Tape, call: Call) -> Grads:
    return [t.reshape(full(t, call.g, call.y), known_shape(call.x, "gradients of reshapes"))]


def _transpose(t: Tape, call: Call) -> Grads:
    order = call.op.order
    return [t.transpose(full(t, call.g, call.y), [order.index(a) for a in range(len(order))])]


def _broadcast(t: Tape, call: Call) -> Grads:
    own = known_shape(call.x, "gradients of broadcasts")
    g = full(t, call.g, call.y)
    place = dict(zip(call.op.axes, own, strict=True))
    new = [a for a in range(len(call.op.shape)) if a not in place]
    wide = [a for a, d in place.items() if d == 1 and call.op.shape[a] != 1]
    if not new:
        return [t.sum(g, wide, keepdims=True) if wide else g]
    summed = t.sum(g, sorted([*new, *wide]))
    return [t.reshape(summed, own) if wide else summed]


def _window(t: Tape, call: Call) -> Grads:
    shape = known_shape(call.x, "gradients of windows")
    op, axis = call.op, call.op.axis % len(shape)
    return [t.apply(ops.OverlapAdd(axis, shape[axis], op.step, op.dilation), full(t, call.g, call.y))]


def _overlap_add(t: Tape, call: Call) -> Grads:
    op, size = call.op, known_shape(call.x, "gradients of windows")[-1]
    return [t.apply(ops.Window(op.axis, size, op.step, op.dilation), full(t, call.g, call.y))]


def _pad(t: Tape, call: Call) -> Grads:
    shape = known_shape(call.x, "gradients of pads")
    g = full(t, call.g, call.y)
    inside = t.apply(ops.Slice(tuple((low, d, 1) for (low, _), d in zip(call.op.widths, shape, strict=True))), g)
    if not call.wants[1]:
        return [inside, None]
    around = t.apply(call.op, t.broadcast_to(False, shape), True)
    return [inside, t.sum(t.where(around, g, 0))]


def _concat(t: Tape, call: Call) -> Grads:
    shapes = [known_shape(x, "gradients of concatenations") for x in call.args]
    axis = call.op.axis % len(shapes[0])
    g = full(t, call.g, call.y)
    start: Dim = 0
    found: list[Value | None] = []
    for shape, want in zip(shapes, call.wants, strict=True):
        ranges = tuple((start if a == axis else 0, d, 1) for a, d in enumerate(shape))
        found.append(t.apply(ops.Slice(ranges), g) if want else None)
        start = add(start, shape[axis])
    return found


def _gather(t: Tape, call: Call) -> Grads:
    op = ops.ScatterAdd(call.op.axis, call.op.batch)
    return [t.apply(op, number_like(t, 0.0, call.x), call.args[1], full(t, call.g, call.y)), None]


def _scatter_add(t: Tape, call: Call) -> Grads:
    gathered = None
    if call.wants[2]:
        gathered = t.apply(ops.Gather(call.op.axis, call.op.batch), full(t, call.g, call.y), call.args[1])
    return [call.g, None, gathered]


RULES: dict[type[Op], Rule] = {
    ops.Slice: _slice,
    ops.Reshape: _reshape,
    ops.Transpose: _transpose,
    ops.Broadcast: _broadcast,
    ops.Window: _window,
    ops.OverlapAdd: _overlap_add,
    ops.Pad: _pad,
    ops.Concat: _concat,
    ops.Gather: _gather,
    ops.ScatterAdd: _scatter_add,
}
