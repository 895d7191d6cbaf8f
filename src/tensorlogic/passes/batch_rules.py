"""What one more leading axis does to each operation: the table of :func:`~tensorlogic.passes.batch.batched`.

A rule is given an operation, its operands (some with the batch axis, some without) and the types that its results have for
one item; it returns the result with the batch axis in front. Operations with bodies have theirs in
:mod:`~tensorlogic.passes.batch_bodies`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ..errors import ShapeError
from ..ir import ops
from ..ir.graph import EinsumGraph, Scan
from ..ir.ops import Op
from ..ir.sizes import Dim, prod
from ..ir.spec import Spec, expand, lettered, parse, spare_letters
from ..ir.type_rules import reduced_axes
from ..ir.types import Results, TensorShape, TensorType, normal_axis
from .grad_tape import Tape, Value


class Operand(NamedTuple):
    """A value of the graph being batched: what stands for it now, whether that has the batch axis, the type of one item."""

    value: Value
    batched: bool
    type: TensorType

    @property
    def shape(self) -> TensorShape:
        """The shape of one item, which must be known."""
        return item_shape(self.value.tape, self.type)


def item_shape(t: Tape, kind: TensorType) -> TensorShape:
    """Return the shape of one item, or raise that it must be declared."""
    if kind.shape is None:
        hint = "declare the inputs' shapes: b.input('x', ('n', 3)); names stand for unknown sizes"
        error = ShapeError("a batch needs shapes, and one of unknown rank is met", hint, code="E511")
        raise error.at(t.draft.origin.location)
    return kind.shape


class Batcher:
    """A graph while it gets its batch axis: the tape that it is written on, and the size of the axis."""

    def __init__(self, tape: Tape, size: Dim) -> None:
        self.tape, self.size = tape, size

    def apply(self, op: Op, *values: Value) -> Value:
        """Add just this operation."""
        return Value(self.tape, self.tape.draft.add(op, tuple([v.node for v in values])))

    def lead(self, x: Operand) -> Value:
        """Return a value with the batch axis: what all items share is repeated."""
        if x.batched:
            return x.value
        shape = x.shape
        return self.apply(ops.Broadcast((self.size, *shape), tuple(range(1, len(shape) + 1))), x.value)

    def ranked(self, x: Operand, rank: int) -> Value:
        """Return a value whose items broadcast against those of a rank, as they do without the batch axis."""
        if not x.batched or len(x.shape) == rank:
            return x.value
        return self.apply(ops.Reshape((self.size, *(1,) * (rank - len(x.shape)), *x.shape)), x.value)


Rule = Callable[[Batcher, Any, Sequence[Operand], Results], Value]


def item_by_item(b: Batcher, op: Op, args: Sequence[Operand], types: Results) -> Value:
    """Return the results of an operation on each item, one after another, as a scan along the batch axis."""
    inner = Tape(EinsumGraph([], []))
    inner.draft.origin = b.tape.draft.origin
    rows = [n for n, x in enumerate(args) if x.batched]
    numbers = {n: number for n, x in enumerate(args) if (number := b.tape.literal_of(x.value)) is not None}
    rest = [n for n in range(len(args)) if n not in rows and n not in numbers]
    values: dict[int, Any] = {n: inner.input(f"x{n}", args[n].type) for n in (*rows, *rest)}
    values |= numbers
    body = inner.finish([("y", inner.apply(op, *(values[n] for n in range(len(args)))))])
    return b.apply(Scan(body, 0, len(rows)), *(args[n].value for n in (*rows, *rest)))


def _pointwise(b: Batcher, op: Op, args: Sequence[Operand], types: Results) -> Value:
    if len(args) == 1:
        return b.apply(op, args[0].value)
    rank = max(len(x.shape) for x in args)
    return b.apply(op, *(b.ranked(x, rank) for x in args))


def _einsum(b: Batcher, op: ops.Einsum, args: Sequence[Operand], types: Results) -> Value:
    form = lettered(expand(parse(op.spec), tuple(len(x.shape) for x in args)))
    return b.apply(replace(op, spec=_with_index(form, args)), *(x.value for x in args))


def _with_index(form: Spec, args: Sequence[Operand]) -> str:
    index = next(spare_letters(form.labels))
    inputs = tuple((index, *own) if x.batched else own for own, x in zip(form.inputs, args, strict=True))
    return str(Spec(inputs, (index, *form.output)))


def _contract_vjp(b: Batcher, op: ops.ContractVJP, args: Sequence[Operand], types: Results) -> Value:
    # each item has a gradient of its own, also for a factor that all share
    factors = [x._replace(value=b.lead(x), batched=True) if n == op.wrt else x for n, x in enumerate(args[:-2])]
    form = lettered(expand(parse(op.spec), tuple(len(x.shape) for x in factors)))
    values = [x.value for x in factors] + [b.lead(x) for x in args[-2:]]
    return b.apply(replace(op, spec=_with_index(form, factors)), *values)


def _reduce(b: Batcher, op: ops.Reduce, args: Sequence[Operand], types: Results) -> Value:
    (x,) = args
    rank = len(x.shape)
    if op.axes is None and op.kind.startswith("arg"):  # of all elements of an item
        flat = b.apply(ops.Reshape((b.size, prod(x.shape))), x.value)
        found = b.apply(ops.Reduce(op.kind, (1,)), flat)
        return b.apply(ops.Reshape((b.size, *(1,) * rank)), found) if op.keepdims else found
    return b.apply(replace(op, axes=tuple(a + 1 for a in reduced_axes(op, rank))), x.value)


def _along(b: Batcher, op: Any, args: Sequence[Operand], types: Results) -> Value:
    axis = normal_axis(op.axis, len(args[0].shape), op.name)
    return b.apply(replace(op, axis=axis + 1), *(x.value for x in args))


def _concat(b: Batcher, op: ops.Concat, args: Sequence[Operand], types: Results) -> Value:
    axis = normal_axis(op.axis, len(args[0].shape), op.name)
    return b.apply(ops.Concat(axis + 1), *(b.lead(x) for x in args))


def _slice(b: Batcher, op: ops.Slice, args: Sequence[Operand], types: Results) -> Value:
    return b.apply(ops.Slice(((0, b.size, 1), *op.ranges)), args[0].value)


def _reshape(b: Batcher, op: ops.Reshape, args: Sequence[Operand], types: Results) -> Value:
    shape = op.shape if types[0].shape is None else types[0].shape  # one size may have been left open
    return b.apply(ops.Reshape((b.size, *shape)), args[0].value)


def _transpose(b: Batcher, op: ops.Transpose, args: Sequence[Operand], types: Results) -> Value:
    return b.apply(ops.Transpose((0, *(a + 1 for a in op.order))), args[0].value)


def _broadcast(b: Batcher, op: ops.Broadcast, args: Sequence[Operand], types: Results) -> Value:
    return b.apply(ops.Broadcast((b.size, *op.shape), (0, *(a + 1 for a in op.axes))), args[0].value)


def _pad(b: Batcher, op: ops.Pad, args: Sequence[Operand], types: Results) -> Value:
    x, value = args
    if value.batched:  # every item is surrounded with a value of its own
        return item_by_item(b, op, args, types)
    return b.apply(ops.Pad(((0, 0), *op.widths)), x.value, value.value)


def _gather(b: Batcher, op: ops.Gather, args: Sequence[Operand], types: Results) -> Value:
    x, places = args
    axis = normal_axis(op.axis, len(x.shape), op.name)
    if not places.batched and not op.batch:
        return b.apply(ops.Gather(axis + 1), x.value, places.value)
    if x.batched or op.batch:
        return b.apply(ops.Gather(axis + 1, op.batch + 1), b.lead(x), b.lead(places))
    found = b.apply(ops.Gather(axis), x.value, places.value)  # the batch axis stands where the places do
    order = (axis, *(a for a in range(len(x.shape) + len(places.shape)) if a != axis))
    return found if axis == 0 else b.apply(ops.Transpose(order), found)


def _scatter_add(b: Batcher, op: ops.ScatterAdd, args: Sequence[Operand], types: Results) -> Value:
    x, places, updates = args
    if updates.type.weak:  # a Python number takes the dtype of what it is added to
        return item_by_item(b, op, args, types)
    axis = normal_axis(op.axis, len(x.shape), op.name)
    if not places.batched and not op.batch:
        return b.apply(ops.ScatterAdd(axis + 1), b.lead(x), places.value, b.lead(updates))
    return b.apply(ops.ScatterAdd(axis + 1, op.batch + 1), b.lead(x), b.lead(places), b.lead(updates))


def _channels(b: Batcher, op: Any, args: Sequence[Operand], types: Results) -> Value:
    x, *scales = args
    if op.group is not None:
        if any(s.batched and not s.shape for s in scales):
            return item_by_item(b, op, args, types)
        return b.apply(op, b.lead(x), *(b.lead(s) if s.shape else s.value for s in scales))
    if op.axis is None:  # a scale of each item's own is one of its channel
        axis = 0 if any(s.batched for s in scales) else None
    elif any(s.batched for s in scales):
        return item_by_item(b, op, args, types)
    else:
        axis = normal_axis(op.axis, len(x.shape), op.name) + 1
    return b.apply(replace(op, axis=axis), b.lead(x), *(s.value for s in scales))


def _all_to_all(b: Batcher, op: ops.AllToAll, args: Sequence[Operand], types: Results) -> Value:
    return b.apply(replace(op, cut=op.cut + 1, joined=op.joined + 1), args[0].value)


_ALONG = (ops.Cumulate, ops.Sort, ops.TopK, ops.Window, ops.OverlapAdd, ops.AllGather, ops.ReduceScatter)
RULES: dict[type[Op], Rule] = {
    **dict.fromkeys(_ALONG, _along),
    ops.Einsum: _einsum,
    ops.ContractVJP: _contract_vjp,
    ops.Reduce: _reduce,
    ops.Slice: _slice,
    ops.Reshape: _reshape,
    ops.Transpose: _transpose,
    ops.Broadcast: _broadcast,
    ops.Pad: _pad,
    ops.Concat: _concat,
    ops.Gather: _gather,
    ops.ScatterAdd: _scatter_add,
    ops.Quantize: _channels,
    ops.Dequantize: _channels,
    ops.AllToAll: _all_to_all,
    ops.StartAllReduce: item_by_item,
    ops.Unpack: lambda b, op, args, types: b.apply(op, b.lead(args[0])),
}


def rule_of(op: Op) -> Rule:
    """Return the rule of an operation: its row, or what it says of itself; else its items run one after another."""
    return RULES.get(type(op)) or (_pointwise if op.is_pointwise else item_by_item)
