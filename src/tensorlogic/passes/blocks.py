"""Sums in a fixed order: the rows of a graph in blocks, whose results are combined pair by pair, whoever computed them.

How many blocks there are, and in which order they are combined, depends on the rows alone. So any number of ranks gives the same bits: each
computes some of the blocks as it would alone, and what they have is gathered before it is combined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from ..ir import ops
from ..ir.builder import GraphBuilder
from ..ir.collectives import share
from ..ir.graph import EinsumGraph
from ..ir.tensor import Tensor
from ..ir.types import dims
from .split import Join, parts, split_inputs

BLOCKS = 8  # of the rows of a batch, where it has as many
T = TypeVar("T")
_COMBINE = {
    **{how: how for how in ("add", "multiply", "maximum", "minimum", "logaddexp")},
    "mean": "add",
    "or": "logical_or",
    "and": "logical_and",
}


def in_blocks(
    graph: EinsumGraph, axes: Mapping[str, int], ranks: int, rank: int, over: str = "data", blocks: int = BLOCKS
) -> EinsumGraph:
    """Return the graph of one rank, which computes some blocks of the rows; ``axes`` are the inputs that have rows. All inputs are given whole.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> print(in_blocks(b.build(total=b.sum(b.input("x", (6,), "float32"))), {"x": 0}, ranks=2, rank=0, blocks=3))
    graph {
      x: float32[6] = input()
      %1: float32[2] = slice(x, ranges=[[0, 2, 1]])
      %2: float32[] = sum(%1)
      %3: float32[2] = slice(x, ranges=[[2, 2, 1]])
      %4: float32[] = sum(%3)
      %5: float32[] = add(%2, %4)
      %6: float32[1] = reshape(%5, shape=[1])
      %7: float32[2] = all_gather(%6, over="data", ranks=2, rank=0, size=2)
      %8: float32[1] = slice(%7, ranges=[[0, 1, 1]])
      %9: float32[] = reshape(%8, shape=[])
      %10: float32[1] = slice(%7, ranges=[[1, 1, 1]])
      %11: float32[] = reshape(%10, shape=[])
      %12: float32[] = add(%9, %11)
      return total=%12
    }
    """
    cut = split_inputs(graph, axes)
    ranges = parts(cut.size, blocks)
    own = share(len(ranges), ranks, rank)
    b = GraphBuilder()
    known: dict[str, Tensor] = {}
    for name, i in graph.inputs.items():
        t = graph.type_of(i)
        known[name] = b.input(name, t.shape, t.dtype)
    known |= b.inline(cut.before, {name: known[name] for name in cut.before.inputs})
    for feed in cut.feeds:
        op = graph.nodes[feed.node].op
        if isinstance(op, ops.Constant):
            known[feed.label.rstrip("'")] = b.constant(graph.constants[op.digest])
    made = []
    for n in own:
        feeds = {f.label: _range(b, known[f.label.rstrip("'")], f.axis, ranges[n]) for f in cut.feeds}
        made.append(b.inline(cut.part(len(ranges[n])), feeds))
    group = _Group(b, over, ranks, rank, ranges)
    for join in cut.joins:
        known[join.label] = _joined(b, group, join, [each[join.label] for each in made])
    after = b.inline(cut.after, {name: known[name] for name in cut.after.inputs}) if cut.after.outputs else {}
    known |= after
    return b.build({name: known[label] for name, _, label in cut.outputs})


class _Group:
    """The ranks that share the blocks, and how what they have is brought together."""

    def __init__(self, b: GraphBuilder, over: str, ranks: int, rank: int, ranges: Sequence[range]) -> None:
        self.b, self.over, self.ranks, self.rank, self.ranges = b, over, ranks, rank, ranges
        self.shares = [share(len(ranges), ranks, r) for r in range(ranks)]
        level = [range(len(ranges))]
        while len(level) < ranks and all(len(each) > 1 for each in level):
            level = [half for each in level for half in _halves(each)]
        self.subtrees = level == self.shares  # each rank can combine all that it has before it is gathered

    def gathered(self, values: Sequence[Tensor], count: int) -> list[Tensor]:
        """Return the values of all ranks, of which each has its share of a count."""
        if self.ranks == 1:
            return list(values)
        shape = dims(values[0].type)
        own = (
            self.b.concat([x.reshape(1, *shape) for x in values], 0)
            if len(values) > 1
            else values[0].reshape(1, *shape)
        )
        whole = self.b.apply(ops.AllGather(self.over, self.ranks, self.rank, 0, count), own)
        return [_range(self.b, whole, 0, range(n, n + 1)).reshape(*shape) for n in range(count)]


def _joined(b: GraphBuilder, group: _Group, join: Join, values: Sequence[Tensor]) -> Tensor:
    """Return what the blocks of all ranks make together."""
    if join.how == "concat":
        assert join.axis is not None
        longest = len(group.ranges[0])
        padded = [_padded(b, x, join.axis, longest) for x in values]
        found = group.gathered(padded, len(group.ranges)) if group.ranks > 1 else list(values)
        cut = [_range(b, x, join.axis, range(len(r))) for x, r in zip(found, group.ranges, strict=True)]
        return cut[0] if len(cut) == 1 else b.concat(cut, join.axis)

    def combine(x: Tensor, y: Tensor) -> Tensor:
        return x + (1 - x) * y if join.how == "noisy_or" else b.apply(ops.Elementwise(_COMBINE[join.how]), x, y)

    if group.subtrees:
        total = _tree(group.gathered([_tree(values, combine)], group.ranks), combine)
    else:
        total = _tree(group.gathered(values, len(group.ranges)), combine)
    if join.how == "mean":
        total = total / float(join.divisor)
    return total if total.dtype == join.type.dtype else b.cast(total, join.type.dtype or "float64")


def _halves(places: range) -> tuple[range, range]:
    middle = places.start + (len(places) + 1) // 2
    return range(places.start, middle), range(middle, places.stop)


def _tree(values: Sequence[T], combine: Callable[[T, T], T]) -> T:
    """Combine values pair by pair: those of the first half, of the second, and both.

    >>> _tree("abcde", lambda x, y: f"({x}{y})")
    '(((ab)c)(de))'
    """
    if len(values) == 1:
        return values[0]
    first, second = _halves(range(len(values)))
    return combine(_tree(values[: first.stop], combine), _tree(values[second.start :], combine))


def _range(b: GraphBuilder, x: Tensor, axis: int | None, places: range) -> Tensor:
    """Return a range of a tensor along an axis; all of it where there is no axis, or nothing else."""
    shape = dims(x.type)
    if axis is None or places == range(shape[axis]):
        return x
    ranges = [(places.start, len(places), 1) if a == axis else (0, size, 1) for a, size in enumerate(shape)]
    return b.apply(ops.Slice(tuple(ranges)), x)


def _padded(b: GraphBuilder, x: Tensor, axis: int, length: int) -> Tensor:
    shape = dims(x.type)
    missing = [(0, length - shape[axis]) if a == axis else (0, 0) for a in range(len(shape))]
    return x if shape[axis] == length else b.pad(x, missing)
