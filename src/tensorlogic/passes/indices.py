"""The indices of each operation: which axis of its operands and results is which, and which of them can be cut.

An operation can be cut along an index when a range of its result depends on just that range of the operands that have the
index, or when results over ranges combine to the result over all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ..ir import ops
from ..ir.algebra import ALGEBRAS
from ..ir.ops import Op
from ..ir.spec import expand, parse
from ..ir.type_rules import label_sizes, reduced_axes
from ..ir.types import Scope, TensorType, dims, normal_axis

JOIN_OF = {  # Algebra.reduce or Reduce.kind: how partial results combine
    "sum": "add",
    "prod": "multiply",
    "max": "maximum",
    "min": "minimum",
    "any": "or",
    "all": "and",
    "mean": "mean",
    "logsumexp": "logaddexp",
    "noisy_or": "noisy_or",
}
Shape = tuple[int, ...]


class Index(NamedTuple):
    """One index of an operation: its axis in each result and operand (None: absent), and how it disappears, if it does."""

    outs: tuple[int | None, ...]
    args: tuple[int | None, ...]
    size: int
    how: str = ""


Found = list[Index]


def indices(op: Op, args: Sequence[TensorType], results: Sequence[TensorType]) -> list[Index]:
    """Return the indices of an operation that it can be cut along; those of loops are found by what is given to them.

    >>> from tensorlogic import TensorShape
    >>> matrix = TensorType(TensorShape([4, 4]), "float32")
    >>> for index in indices(ops.Einsum("ij,jk->ik"), (matrix, matrix), (matrix,)):
    ...     print(index)
    Index(outs=(0,), args=(0, None), size=4, how='')
    Index(outs=(None,), args=(1, 0), size=4, how='add')
    Index(outs=(1,), args=(None, 1), size=4, how='')
    """
    find = INDICES.get(type(op)) or (_pointwise if op.is_pointwise else None)
    shapes = [dims(t) for t in args]
    return [] if find is None else [i for i in find(op, shapes, dims(results[0]), results[0]) if i.size > 1]


def _pointwise(op: Op, args: list[Shape], out: Shape, t: TensorType) -> Found:
    def at(s: Shape, r: int) -> int | None:
        a = r - len(out) + len(s)
        return a if a >= 0 and s[a] == out[r] else None

    return [Index((r,), tuple(at(s, r) for s in args), size) for r, size in enumerate(out)]


def _labels(op: ops.Einsum | ops.ContractVJP, args: list[Shape], count: int) -> list[tuple[str, int, list[int | None]]]:
    """Return each label of an einsum that no operand has twice, its size, and its axis in each factor."""
    form = expand(parse(op.spec), tuple(len(s) for s in args[:count]))
    sizes = label_sizes(form, args[:count], Scope(0, str, (), []))
    found = []
    for label, size in sizes.items():
        if all(labels.count(label) < 2 for labels in form.inputs):
            axes = [own.index(label) if label in own else None for own in form.inputs]
            axes = [a if a is not None and s[a] == size else None for a, s in zip(axes, args, strict=False)]
            found.append((label, int(size), axes))
    return found


def _einsum(op: ops.Einsum, args: list[Shape], out: Shape, t: TensorType) -> Found:
    output = expand(parse(op.spec), tuple(len(s) for s in args)).output
    how = "or" if t.dtype == "bool" and op.algebra == "real" else JOIN_OF[ALGEBRAS[op.algebra].reduce]
    return [
        Index((output.index(x) if x in output else None,), tuple(axes), size, "" if x in output else how)
        for x, size, axes in _labels(op, args, len(args))
    ]


def _contract_vjp(op: ops.ContractVJP, args: list[Shape], out: Shape, t: TensorType) -> Found:
    count = len(args) - 2
    output = expand(parse(op.spec), tuple(len(s) for s in args[:count])).output
    found = []  # ties are counted over what is contracted, so only what the result has can be cut
    for x, size, axes in _labels(op, args, count):
        if x in output:
            own, at = axes[op.wrt], output.index(x)
            found.append(Index((own,), (*axes, at, at), size, "add" if own is None else ""))
    return found


def _reduce(op: ops.Reduce, args: list[Shape], out: Shape, t: TensorType) -> Found:
    gone = reduced_axes(op, len(args[0]))
    found, at = [], 0
    for a, size in enumerate(args[0]):
        if a not in gone:
            found.append(Index((at,), (a,), size))
        elif op.kind in JOIN_OF:
            found.append(Index((None,), (a,), size, JOIN_OF[op.kind]))
        at += a not in gone or op.keepdims
    return found


def _along(op: Any, args: list[Shape], out: Shape, t: TensorType) -> Found:
    own = normal_axis(op.axis, len(args[0]), op.name)
    return [Index((a,), (a,) * len(args), size) for a, size in enumerate(args[0]) if a != own]


def _overlap_add(op: ops.OverlapAdd, args: list[Shape], out: Shape, t: TensorType) -> Found:
    return _along(op, [out], out, t)


def _slice(op: ops.Slice, args: list[Shape], out: Shape, t: TensorType) -> Found:
    pairs = enumerate(zip(op.ranges, args[0], strict=True))
    return [Index((a,), (a,), size) for a, (own, size) in pairs if own == (0, size, 1)]


def _reshape(op: ops.Reshape, args: list[Shape], out: Shape, t: TensorType) -> Found:
    (own,) = args
    if 0 in own:
        return []
    at = {(math.prod(own[:a]), size): a for a, size in enumerate(own)}  # as many elements before it, and its size
    places = ((r, size, at.get((math.prod(out[:r]), size))) for r, size in enumerate(out))
    return [Index((r,), (a,), size) for r, size, a in places if a is not None]


def _transpose(op: ops.Transpose, args: list[Shape], out: Shape, t: TensorType) -> Found:
    return [Index((r,), (a,), out[r]) for r, a in enumerate(op.order)]


def _broadcast(op: ops.Broadcast, args: list[Shape], out: Shape, t: TensorType) -> Found:
    source = {r: a for a, r in enumerate(op.axes) if args[0][a] == out[r]}
    return [Index((r,), (source.get(r),), size) for r, size in enumerate(out)]


def _pad(op: ops.Pad, args: list[Shape], out: Shape, t: TensorType) -> Found:
    return [Index((a,), (a, None), size) for a, size in enumerate(args[0]) if op.widths[a] == (0, 0)]


def _gather(op: ops.Gather, args: list[Shape], out: Shape, t: TensorType) -> Found:
    axis, taken = normal_axis(op.axis, len(args[0]), op.name), len(args[1]) - op.batch
    found = [Index((b,), (b, b), args[0][b]) for b in range(op.batch)]
    rest = [a for a in range(op.batch, len(args[0])) if a != axis]
    found += [Index((a if a < axis else a - 1 + taken,), (a, None), args[0][a]) for a in rest]
    return found + [Index((axis + n,), (None, op.batch + n), args[1][op.batch + n]) for n in range(taken)]


def _scatter_add(op: ops.ScatterAdd, args: list[Shape], out: Shape, t: TensorType) -> Found:
    gathered = _gather(ops.Gather(op.axis, op.batch), args, out, t)
    return [Index((i.args[0],), (*i.args, i.outs[0]), i.size) for i in gathered if i.args[0] is not None]


def _channels(op: Any, args: list[Shape], out: Shape, t: TensorType) -> Found:
    if op.group is not None:  # groups of the last axis stay whole
        places = [tuple(a if s else None for s in args[1:]) for a in range(len(out))]
        return [Index((a,), (a, *places[a]), size) for a, size in enumerate(out[:-1])]
    own = None if op.axis is None else normal_axis(op.axis, len(out), op.name)
    return [Index((a,), (a, *(0 if a == own and s else None for s in args[1:])), size) for a, size in enumerate(out)]


def _gathered(op: Any, args: list[Shape], out: Shape, t: TensorType) -> Found:
    return [Index((a,), (a,), size) for a, size in enumerate(out) if args[0][a] == size and a != op.axis]


def _moved(op: ops.AllToAll, args: list[Shape], out: Shape, t: TensorType) -> Found:
    return [Index((a,), (a,), size) for a, size in enumerate(out) if a not in (op.cut, op.joined)]


INDICES: dict[type[Op], Callable[..., Found]] = {
    **dict.fromkeys((ops.Cumulate, ops.Sort, ops.TopK, ops.Window, ops.Concat), _along),
    ops.Einsum: _einsum,
    ops.ContractVJP: _contract_vjp,
    ops.Reduce: _reduce,
    ops.OverlapAdd: _overlap_add,
    ops.Slice: _slice,
    ops.Reshape: _reshape,
    ops.Transpose: _transpose,
    ops.Broadcast: _broadcast,
    ops.Pad: _pad,
    ops.Gather: _gather,
    ops.ScatterAdd: _scatter_add,
    ops.Quantize: _channels,
    ops.Dequantize: _channels,
    ops.AllGather: _gathered,
    ops.ReduceScatter: _gathered,
    ops.AllToAll: _moved,
    ops.StartAllReduce: lambda op, args, out, t: [],
    ops.Unpack: lambda op, args, out, t: [Index((a,), (a,), size) for a, size in enumerate(out[:-1])],
}
