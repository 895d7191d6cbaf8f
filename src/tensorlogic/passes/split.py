"""One split: cut a graph along one index into what comes before, one part for each range of the index, and what comes after.

A batch is one more index. A chunk, a shard, a micro-batch and a memory-bound slice each fix a range of one index. Where the
index survives, parts are put end to end; where it was contracted, they are combined by the algebra's reduction, at the node
that removes it. Sizes must be known (:func:`~tensorlogic.passes.specialize.specialize`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..errors import GraphError, ShapeError, expect_known, expect_whole
from ..ir import ops
from ..ir.collectives import share
from ..ir.graph import EinsumGraph, Fixpoint, Node, Scan, extract, node_name
from ..ir.ops import Op
from ..ir.type_rules import reduced_axes
from ..ir.types import TensorType, dims, normal_axis
from ..tables import table
from .follow_index import AFTER, BEFORE, PART, WHOLE, Carried, cut_input, follow, matching, producing, resized
from .indices import Index

SOURCES = (ops.Input, ops.Constant, ops.Literal)  # which every stage has as they are
_WIDER = frozenset({"add", "mean", "logaddexp", "noisy_or", "multiply"})  # partial results of half floats stay wider


class Role(NamedTuple):
    """What a node has to do with an index: the stage it runs in, the axis that is the index, how its parts are joined."""

    stage: str
    axis: int | None = None
    how: str = ""


class Feed(NamedTuple):
    """A value that a part is given: a node of the whole graph, cut along an axis (None: whole)."""

    label: str
    node: int
    axis: int | None


class Join(NamedTuple):
    """A value that the parts make together: put end to end along an axis (``how`` is "concat"), or combined."""

    label: str
    node: int
    how: str
    axis: int | None
    type: TensorType  # of the whole
    divisor: int = 1  # of a mean, which parts add up


class Split(NamedTuple):
    """A graph cut along one index of a size.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, w = b.input("x", (6, 3), "float32"), b.input("w", (3, 2), "float32")
    >>> cut = split(b.build(y=b.sum(b.relu(x @ w), axis=1), loss=b.sum(b.square(x))), "x", 0)
    >>> print(cut)
    index of size 6, axis 0 of 'x'
    value  given to a part  joined
    x      cut along 0
    w      whole
    y                       concat along 0
    loss                    add
    0 nodes before, 6 in a part, 0 after
    >>> cut.part(2).type_of(0)
    TensorType(shape=TensorShape([2, 3]), dtype='float32', weak=False)
    """

    graph: EinsumGraph
    place: str  # in words
    size: int
    roles: tuple[Role, ...]
    before: EinsumGraph  # what parts, and what comes after, need whole; outputs are named by :func:`label`
    after: EinsumGraph
    feeds: tuple[Feed, ...]
    joins: tuple[Join, ...]
    outputs: tuple[tuple[str, str, str], ...]  # name, the stage that makes it, its label there
    picks: Mapping[int, Index]

    def part(self, size: int) -> EinsumGraph:
        """Return the graph of one part of a size: its inputs are the feeds, its outputs are the joins."""
        return _part(self, size)

    def __str__(self) -> str:
        called = {i: name for name, i in reversed(self.graph.outputs)}
        names = {i: called.get(i, node_name(self.graph.nodes, i).strip("'")) for i in range(len(self.graph))}
        rows = [[names[f.node], "whole" if f.axis is None else f"cut along {f.axis}", ""] for f in self.feeds]
        rows += [[names[j.node], "", j.how + (f" along {j.axis}" if j.axis is not None else "")] for j in self.joins]
        counts = [sum(r.stage == stage for r in self.roles) for stage in (BEFORE, PART, AFTER)]
        pairs = zip(self.graph.nodes, self.roles, strict=True)
        before = counts[0] - sum(isinstance(n.op, SOURCES) and r.stage == BEFORE for n, r in pairs)
        count = f"{before} node{'s' * (before != 1)} before, {counts[1]} in a part, {counts[2]} after"
        head = ["value", "given to a part", "joined"]
        return "\n".join([f"index of size {self.size}, {self.place}", table(head, rows), count])


def parts(size: int, count: int) -> list[range]:
    """Return ranges of nearly equal length that make up a size, the longer ones first; none is empty unless the size is 0.

    >>> parts(10, 4)
    [range(0, 3), range(3, 6), range(6, 8), range(8, 10)]
    """
    expect_whole("the number of parts", count, 1)
    count = max(1, min(size, count))
    return [share(size, count, n) for n in range(count)]


def split(
    graph: EinsumGraph,
    node: int | str,
    axis: int,
    *,
    operand: int | None = None,
    comes_after: Callable[[int, Index], bool] | None = None,
) -> Split | None:
    """Cut a graph along an axis of a node's result, or of one of its operands; None where that cannot be done.

    ``comes_after`` tells of nodes that could run part by part, and are to be given whole operands after the parts.
    """
    number = _number(graph, node)
    found = _followed(graph, number, axis, operand, comes_after)
    if found is None:
        return None
    carried, size = found
    place = node_name(graph.nodes, number) if operand is None else f"operand {operand} of %{number}"
    return _built(graph, carried, size, f"axis {axis} of {place}")


def split_inputs(graph: EinsumGraph, axes: Mapping[str, int]) -> Split:
    """Cut a graph along an index that some inputs have, each at an axis: what a stream does, whose inputs come in ranges.

    What needs all of the index at once is left to what comes after, which then reads values that are put end to end.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, y = b.input("x", (6, 3), "float32"), b.input("y", (6,), "float32")
    >>> print(split_inputs(b.build(total=b.sum(x, axis=0), ranks=b.sort(y)), {"x": 0, "y": 0}))
    index of size 6, axis 0 of 'x', axis 0 of 'y'
    value  given to a part  joined
    x      cut along 0
    total                   add
    0 nodes before, 3 in a part, 1 after
    """
    numbers = {_number(graph, name): axis for name, axis in axes.items()}
    place = ", ".join(f"axis {axis} of {name!r}" for name, axis in axes.items())
    at = next(iter(numbers.items()))
    return _built(graph, follow(graph, numbers, {}), dims(graph.type_of(at[0]))[at[1]], place)


def _number(graph: EinsumGraph, node: int | str) -> int:
    if isinstance(node, str):
        expect_known("the graph has no input", [node], graph.inputs, kind=GraphError)
        return graph.inputs[node]
    if not 0 <= node < len(graph.nodes):
        raise GraphError(f"the graph has {len(graph.nodes)} nodes, and no node %{node}", code="E816")
    return node


def _followed(
    graph: EinsumGraph, i: int, axis: int, operand: int | None, comes_after: Callable[[int, Index], bool] | None
) -> tuple[Carried, int] | None:
    node, types = graph.nodes[i], graph.inference.types
    args = [types[a][0] for a in node.args]
    if operand is not None and not 0 <= operand < len(args):
        raise GraphError(f"%{i} has {len(args)} operands, and no operand {operand}", code="E816")
    own = types[i][0] if operand is None else args[operand]
    if own.shape is None or not own.shape.is_static:
        hint = "specialize the graph for its inputs first"
        raise ShapeError(f"a split needs sizes that are known; %{i} is {own}", hint, code="E304")
    axis = normal_axis(axis, len(own.shape), "split")
    size = dims(own)[axis]
    if size < 2:
        return None
    if isinstance(node.op, ops.Input):
        found = follow(graph, {i: axis}, {}, comes_after)
    else:
        if operand is None and isinstance(node.op, Fixpoint | Scan) and node.op.carries:
            operand = 0  # its first result is its first carry
        if operand is not None:
            pick = matching(node.op, args, types[i], {operand: axis})
        else:
            pick = producing(node.op, args, types[i], axis)
        if pick is None:
            return None
        found = follow(graph, {}, {i: pick}, comes_after)
    return (found, size) if any(found.stages[n] == PART for n in found.picks) else None


def label(graph: EinsumGraph, node: int) -> str:
    """Return the name under which a value goes from one stage to another: an input's own, else its number."""
    op = graph.nodes[node].op
    if isinstance(op, ops.Input):
        return op.label
    name = f"%{node}"
    while name in graph.inputs:
        name = "%" + name
    return name


def _built(graph: EinsumGraph, found: Carried, size: int, place: str) -> Split:
    types = graph.inference.types
    fed: dict[tuple[int, int | None], None] = {}
    joins = []
    for i, pick in sorted(found.picks.items()):
        for a, need in zip(graph.nodes[i].args, pick.args, strict=True):
            own = isinstance(op := graph.nodes[a].op, ops.Literal) or (isinstance(op, ops.Constant) and need is None)
            if a not in found.picks and not own:  # a part has scalars, and constants of which it needs the whole
                fed[a, need] = None
        if WHOLE in found.wants[i]:
            joins.append(
                Join(
                    label(graph, i),
                    i,
                    pick.how or "concat",
                    pick.outs[0],
                    types[i][0],
                    mean_divisor(graph, i) if pick.how == "mean" else 1,
                )
            )
    feeds = []
    taken: set[str] = set()
    for a, axis in sorted(fed, key=lambda f: (f[0], -1 if f[1] is None else f[1])):
        name = label(graph, a)
        while name in taken:  # a value may be needed cut along one axis, along another and whole
            name += "'"
        taken.add(name)
        feeds.append(Feed(name, a, axis))
    late = [i for i, stage in enumerate(found.stages) if stage == AFTER]
    handed = {f.node for f in feeds} | {a for i in late for a in graph.nodes[i].args}
    stages = {i: "join" if i in found.picks else found.stages[i] for i in handed | {i for _, i in graph.outputs}}
    kept = {i for i in handed if stages[i] == BEFORE and not isinstance(graph.nodes[i].op, SOURCES)}
    outputs = []
    for name, i in graph.outputs:
        stage = BEFORE if isinstance(graph.nodes[i].op, ops.Input) else stages[i]
        outputs.append((name, stage, label(graph, i)))
        if stage == BEFORE:
            kept.add(i)
    before = extract(graph.nodes, [(label(graph, i), i) for i in sorted(kept)], graph.constants)
    after = _after(graph, late, [i for _, i in graph.outputs if found.stages[i] == AFTER])
    how = {i: pick.how for i, pick in found.picks.items()}
    each = enumerate(zip(found.stages, found.outs, strict=True))
    roles = tuple(Role(stage, (outs or (None,))[0], how.get(i, "")) for i, (stage, outs) in each)
    return Split(graph, place, size, roles, before, after, tuple(feeds), tuple(joins), tuple(outputs), found.picks)


def mean_divisor(graph: EinsumGraph, i: int) -> int:
    """Return how many elements a mean is made of."""
    op, shape = graph.nodes[i].op, dims(graph.type_of(graph.nodes[i].args[0]))
    assert isinstance(op, ops.Reduce)
    return math.prod(shape[a] for a in reduced_axes(op, len(shape)))


def _after(graph: EinsumGraph, late: list[int], wanted: list[int]) -> EinsumGraph:
    """Return the graph of what comes after; what it reads of earlier stages are inputs, named by :func:`label`."""
    nodes = list(graph.nodes)
    for i in {a for n in late for a in graph.nodes[n].args} - set(late):
        if not isinstance(nodes[i].op, SOURCES):
            nodes[i] = Node(cut_input(label(graph, i), graph.type_of(i), None, 0), (), nodes[i].locations)
    return extract(nodes, dict.fromkeys((label(graph, i), i) for i in wanted), graph.constants)


def _part(whole: Split, size: int) -> EinsumGraph:
    graph, types = whole.graph, whole.graph.inference.types
    nodes: list[Node] = []
    given: dict[tuple[int, int | None], int] = {}
    place: dict[int, int] = {}

    def add(op: Op, args: tuple[int, ...], origin: int) -> int:
        nodes.append(Node(op, args, graph.nodes[origin].locations))
        return len(nodes) - 1

    for feed in whole.feeds:
        given[feed.node, feed.axis] = add(cut_input(feed.label, types[feed.node][0], feed.axis, size), (), feed.node)
    for i, pick in sorted(whole.picks.items()):
        args = []
        for a, need in zip(graph.nodes[i].args, pick.args, strict=True):
            if a in whole.picks:
                args.append(place[a])
            elif (a, need) in given:
                args.append(given[a, need])
            else:
                args.append(given.setdefault((a, need), add(graph.nodes[a].op, (), a)))
        op = resized(graph.nodes[i].op, pick, types[i], size)
        if isinstance(op, ops.Reduce | ops.Einsum) and pick.how:
            if pick.how == "mean" and isinstance(op, ops.Reduce):
                op = ops.Reduce("sum", op.axes, op.keepdims)
            working = working_dtype(pick.how, types[i][0].dtype or "float64")
            if working is not None:
                args = [
                    n if types[a][0].dtype == working or types[a][0].weak else add(ops.Cast(working), (n,), i)
                    for n, a in zip(args, graph.nodes[i].args, strict=True)
                ]
        place[i] = add(op, tuple(args), i)
    return EinsumGraph(nodes, [(join.label, place[join.node]) for join in whole.joins], graph.constants)


def working_dtype(how: str, dtype: str) -> str | None:
    """Return the dtype that partial results are made in; None where it is that of the whole."""
    if dtype in ("float16", "bfloat16") and how in _WIDER:
        return "float32"
    return dtype if how == "mean" else None
