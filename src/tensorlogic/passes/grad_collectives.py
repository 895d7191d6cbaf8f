"""Reverse-mode rules of what ranks do together: the gradient of the sum of what all ranks return.

What a rank has of a value is differentiated for what it does on every rank. So a loss that all ranks hold alike counts once for each of them.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..errors import GraphError
from ..ir import ops
from ..ir.ops import Op
from .grad_reverse import Call, Grads, Rule
from .grad_tape import Tape, full, known_shape


def _all_reduce(t: Tape, call: Call) -> Grads:
    op, x, y = call.op, call.x, call.y
    g = t.apply(replace(op, how="add"), full(t, call.g, y))
    match op.how:
        case "add":
            return [g]
        case "maximum" | "minimum":
            chosen = t.cast(t.apply(ops.Elementwise("equal"), x, y), str(y.dtype))
            return [g * chosen / t.apply(replace(op, how="add"), chosen)]
        case "logaddexp":
            return [g * t.apply(ops.Elementwise("exp"), x - y)]
        case "noisy_or":
            return [g * (1 - y) / (1 - x)]
        case _:
            raise GraphError(f"an all_reduce by {op.how!r} has no gradient", code="E111")


def _all_gather(t: Tape, call: Call) -> Grads:
    op = call.op
    return [t.apply(ops.ReduceScatter(op.over, op.ranks, op.rank, op.axis), full(t, call.g, call.y))]


def _reduce_scatter(t: Tape, call: Call) -> Grads:
    op = call.op
    if op.how != "add":
        raise GraphError(f"a reduce_scatter by {op.how!r} has no gradient", code="E111")
    size = known_shape(call.x, "gradients of reduce_scatter")[op.axis]
    return [t.apply(ops.AllGather(op.over, op.ranks, op.rank, op.axis, size), full(t, call.g, call.y))]


def _all_to_all(t: Tape, call: Call) -> Grads:
    op = call.op
    size = known_shape(call.x, "gradients of all_to_all")[op.cut]
    return [t.apply(ops.AllToAll(op.over, op.ranks, op.rank, op.joined, op.cut, size), full(t, call.g, call.y))]


def _broadcast_from(t: Tape, call: Call) -> Grads:
    op = call.op
    total = t.apply(ops.AllReduce(op.over, op.ranks, op.rank), full(t, call.g, call.y))
    return [total if op.rank == op.root else total * 0]


def _refused(t: Tape, call: Call) -> Grads:
    raise GraphError(
        f"{call.op.name} has no gradient",
        "differentiate the graph before it is cut into stages and planned",
        code="E111",
    )


RULES: dict[type[Op], Rule] = {
    ops.AllReduce: _all_reduce,
    ops.AllGather: _all_gather,
    ops.ReduceScatter: _reduce_scatter,
    ops.AllToAll: _all_to_all,
    ops.BroadcastFrom: _broadcast_from,
    ops.Send: _refused,
    ops.StartAllReduce: _refused,
    ops.Wait: _refused,
}
