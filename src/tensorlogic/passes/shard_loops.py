"""Fixpoints over relations of which every rank has some rows: nobody ever holds all of one.

Inside the body a join needs rows that other ranks have. They come block by block: each rank in turn gives its rows to all, who join them and
forget them. So a rank holds its own rows and one block at a time. The ranks go round together until nothing moves on any of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..ir import ops
from ..ir.algebra import ALGEBRAS
from ..ir.collectives import share
from ..ir.graph import Fixpoint, Node, extract, with_bodies
from ..ir.spec import ELLIPSIS, parse
from ..ir.types import dims
from .indices import Index

if TYPE_CHECKING:
    from .shard import Draft

# how parts of a contraction are combined
JOINS = {"any": "logical_or", "max": "maximum", "min": "minimum", "sum": "add"}


def loop_in_shares(draft: Draft, node: Node, shares: Mapping[int, int]) -> tuple[Fixpoint, dict[int, int]] | None:
    """Return the fixpoint that a rank runs on its shares of carries and captures, and the axis of each such operand.

    ``shares`` are the operands that lie in shares already. None is returned where the body needs more than blocks of other ranks.
    """
    op = node.op
    if not isinstance(op, Fixpoint) or op.tolerance:
        return None
    axes = {k: shares.get(k, 0) for k in range(op.carries)} | dict(shares)
    types = [draft.types[a][0] for a in node.args]
    if any(axis >= len(types[n].shape or ()) or dims(types[n])[axis] < draft.ranks for n, axis in axes.items()):
        return None
    names = list(op.body.inputs)
    inner = type(draft)(op.body, {names[n]: axis for n, axis in axes.items()}, {}, draft.ranks, draft.rank, draft.over)
    inner.in_blocks = True
    inner.place_all()
    results = []
    for k, (name, i) in enumerate(op.body.outputs):
        inner.origin = i
        results.append((name, inner.share(i, axes[k])))
    inputs = [inner.sources[i] for i in op.body.inputs.values()]
    body = extract(inner.nodes, results, inner.constants, inputs)
    if any(isinstance(n.op, ops.Collective) and not isinstance(n.op, ops.BroadcastFrom) for n in body.nodes):
        return None
    loop = with_bodies(op, [body])
    assert isinstance(loop, Fixpoint)
    return loop, axes


def joined_in_blocks(draft: Draft, node: Node, pick: Index) -> int | None:
    """Write a contraction whose second factor lies in shares along the contracted index, block by block; None where it is none.

    The first factor, and the result, lie in shares along the index of ``pick``.
    """
    op = node.op
    if not isinstance(op, ops.Einsum) or len(node.args) != 2 or pick.how or pick.args.count(None) != 1:
        return None
    labels, how = parse(op.spec), JOINS.get(ALGEBRAS[op.algebra].reduce)
    b = pick.args.index(None)
    other = draft.values[node.args[b]]
    if how is None or other.whole is not None or not other.shares or any(ELLIPSIS in own for own in labels.inputs):
        return None
    axis, own = next(iter(other.shares.items()))
    label = labels.inputs[b][axis]
    first = labels.inputs[1 - b]
    if label in labels.output or first.count(label) != 1 or labels.inputs[b].count(label) != 1:
        return None
    t = draft.types[node.args[b]][0]
    size, at = dims(t)[axis], first.index(label)
    if t.dtype in ("float16", "bfloat16") and how == "add":
        return None  # such sums are kept in float32
    axis_of_share = pick.args[1 - b]
    assert axis_of_share is not None
    rows = draft.share(node.args[1 - b], axis_of_share)
    shape = list(dims(draft.types[node.args[1 - b]][0]))
    shape[axis_of_share] = len(share(pick.size, draft.ranks, draft.rank))
    given = _padded(draft, own, dims(t), axis, size)
    total: int | None = None
    for root in range(draft.ranks):
        places = share(size, draft.ranks, root)
        block = draft.add(ops.BroadcastFrom(draft.over, draft.ranks, draft.rank, root), (given,))
        if len(places) < len(share(size, draft.ranks, 0)):
            block = draft.add(_range(dims(t), axis, range(len(places))), (block,))
        part = draft.add(_range(shape, at, places), (rows,))
        joined = draft.add(op, (part, block) if b else (block, part))
        total = joined if total is None else draft.add(ops.Elementwise(how), (total, joined))
    return total


def _padded(draft: Draft, own: int, shape: tuple[int, ...], axis: int, size: int) -> int:
    """Return a rank's rows with as many more as the longest share has: what one gives to all has one shape."""
    more = len(share(size, draft.ranks, 0)) - len(share(size, draft.ranks, draft.rank))
    if not more:
        return own
    widths = tuple((0, more if a == axis else 0) for a in range(len(shape)))
    return draft.add(ops.Pad(widths), (own, draft.add(ops.Literal.of(False))))


def _range(shape: tuple[int, ...] | list[int], axis: int, places: range) -> ops.Slice:
    ranges = [(places.start, len(places), 1) if a == axis else (0, n, 1) for a, n in enumerate(shape)]
    return ops.Slice(tuple(ranges))
