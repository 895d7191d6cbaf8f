"""Following one index through a graph: which nodes carry it, which remove it, and which need all of it at once.

The index is pushed forward from where it begins. What carries it and what removes it runs part by part; what reads a result
of all parts comes after. Then demands go back: a value of which parts need only their range is made part by part as well,
unless somebody needs the whole of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, reachable, with_bodies
from ..ir.ops import Op
from ..ir.types import Results, TensorType, dims
from .indices import Index, indices

BEFORE, PART, AFTER, DEAD = "before", "part", "after", "dead"
WHOLE = -1  # a demand for all of a value
Axes = dict[int, int]  # operand or input number: axis


class Carried(NamedTuple):
    """For every node the stage it runs in, the axes of its results that are the index, and what is demanded of it.

    ``picks`` are the indices of the nodes that run part by part; demands are axes, or WHOLE.
    """

    stages: list[str]
    outs: list[tuple[int | None, ...]]
    picks: dict[int, Index]
    wants: list[set[int]]


def follow(
    graph: EinsumGraph,
    inputs: Mapping[int, int],
    seeds: Mapping[int, Index],
    comes_after: Callable[[int, Index], bool] | None = None,
) -> Carried:
    """Follow the index that begins at axes of some inputs, and at some nodes, each with an index of its own.

    ``comes_after`` tells of nodes that could run part by part, and are to be given whole operands after the parts.
    """
    types = graph.inference.types
    count = len(graph.nodes)
    live = set(reachable(graph.nodes, (i for _, i in graph.outputs)))
    stages = [BEFORE if i in live else DEAD for i in range(count)]
    outs: list[tuple[int | None, ...]] = [()] * count
    picks: dict[int, Index] = {}
    for i, node in enumerate(graph.nodes):
        if stages[i] == DEAD:
            continue
        if i in inputs:
            stages[i], outs[i] = PART, (inputs[i],)
            continue
        met = {a: outs[a] for a in node.args if stages[a] == PART}
        if any(stages[a] == AFTER for a in node.args) or any(None in axes for axes in met.values()):
            stages[i] = AFTER  # it reads what only all parts together make
            continue
        if isinstance(node.op, ops.Item) and met:
            stages[i], outs[i] = PART, (outs[node.args[0]][node.op.index],)
            picks[i] = Index(outs[i], (outs[i][0],), 0)
            continue
        known = {n: axis for n, a in enumerate(node.args) if a in met for axis in met[a] if axis is not None}
        pick = seeds.get(i)
        if pick is None and known:
            pick = matching(node.op, [types[a][0] for a in node.args], types[i], known)
        elif pick is not None and any(pick.args[n] != axis for n, axis in known.items()):
            pick = None
        if pick is not None and not (comes_after is not None and comes_after(i, pick)):
            stages[i], outs[i], picks[i] = PART, pick.outs, pick
        elif known or i in seeds:
            stages[i] = AFTER
    return _demanded(graph, Carried(stages, outs, picks, [set() for _ in range(count)]))


def _demanded(graph: EinsumGraph, found: Carried) -> Carried:
    """Ask operands for what their readers need, from the last node to the first."""
    stages, outs, picks, wants = found
    types = graph.inference.types
    for _, i in graph.outputs:
        wants[i].add(WHOLE)
    for i in range(len(graph.nodes) - 1, -1, -1):
        node = graph.nodes[i]
        if stages[i] == BEFORE and wants[i] and WHOLE not in wants[i] and len(wants[i]) == 1:
            (axis,) = wants[i]
            pick = producing(node.op, [types[a][0] for a in node.args], types[i], axis)
            if pick is not None:
                stages[i], outs[i], picks[i] = PART, pick.outs, pick
        if stages[i] == PART and i in picks:
            for a, need in zip(node.args, picks[i].args, strict=True):
                wants[a].add(WHOLE if need is None else need)
        elif stages[i] == AFTER or (stages[i] == BEFORE and wants[i]):
            for a in node.args:
                wants[a].add(WHOLE)
    return found


def matching(op: Op, args: Sequence[TensorType], results: Results, known: Axes) -> Index | None:
    """Return the index of an operation that has the given axes in the given operands; None where it cannot be cut so."""
    if isinstance(op, Fixpoint | Scan | Cond):
        return _of_bodies(op, args, known)
    for index in indices(op, args, results):
        if all(index.args[n] == axis for n, axis in known.items()):
            return index
    return None


def producing(op: Op, args: Sequence[TensorType], results: Results, axis: int) -> Index | None:
    """Return the index of an operation whose only result has it at an axis; None where it cannot be cut so."""
    if len(results) != 1:
        return None
    if isinstance(op, Fixpoint) or (isinstance(op, Scan) and op.carries):
        return _of_bodies(op, args, {0: axis})
    return next((i for i in indices(op, args, results) if i.outs == (axis,)), None)


def _of_bodies(op: Fixpoint | Scan | Cond, args: Sequence[TensorType], known: Axes) -> Index | None:
    """Return the index of a loop whose bodies carry it from end to end, untouched; None where one does not."""
    if isinstance(op, Fixpoint) and op.tolerance:
        return None  # parts would end when they are near enough, each in its own round
    axes: Axes | None = dict(known)
    while True:  # a body may find that further operands must be cut; there are only so many
        assert axes is not None
        before = dict(axes)
        found = [_body(body, inner) for body, inner in _insides(op, axes)]
        outs: tuple[int | None, ...] = ()
        for inner in found:
            if inner is None:
                return None
            axes = _outside(op, inner[0], axes)
            if axes is None:
                return None
            outs = inner[1]
        if isinstance(op, Cond) and any(inner is not None and inner[1] != outs for inner in found):
            return None
        carries = 0 if isinstance(op, Cond) else op.carries
        for k, axis in enumerate(outs[:carries]):
            if axis is None or axes.setdefault(k, axis) != axis:
                return None
        if None in outs or not outs:
            return None
        if axes == before:
            break
    moved = [a + 1 if a is not None and k >= carries and isinstance(op, Scan) else a for k, a in enumerate(outs)]
    at = next(iter(axes.items()))
    return Index(tuple(moved), tuple(axes.get(n) for n in range(len(args))), dims(args[at[0]])[at[1]])


def _insides(op: Fixpoint | Scan | Cond, axes: Axes) -> list[tuple[EinsumGraph, Axes | None]]:
    """Return the bodies of an operation, with the axes of their inputs; None where an operand cannot be cut there."""
    match op:
        case Cond():
            inner = None if 0 in axes else {n - 1: a for n, a in axes.items()}
            return [(op.then, inner), (op.otherwise, inner)]
        case Scan():
            rows = range(op.carries, op.carries + op.scanned)
            if any(axes.get(n) == 0 for n in rows):
                return [(op.body, None)]  # it runs along that axis, step by step
            return [(op.body, {n: a - (n in rows) for n, a in axes.items()})]
        case _:
            return [(op.body, axes)]


def _outside(op: Fixpoint | Scan | Cond, inner: Axes, axes: Axes) -> Axes | None:
    """Return the axes of operands, with what a body asks for; None where two bodies ask for different things."""
    merged = dict(axes)
    for n, a in inner.items():
        if isinstance(op, Cond):
            n += 1
        elif isinstance(op, Scan) and op.carries <= n < op.carries + op.scanned:
            a += 1
        if merged.setdefault(n, a) != a:
            return None
    return merged


def _body(body: EinsumGraph, axes: Axes | None) -> tuple[Axes, tuple[int | None, ...]] | None:
    """Return the axes of a body's inputs and of its outputs that are the index; None where all of it is needed at once."""
    if axes is None:
        return None
    found = _inside(body, axes)
    if AFTER in found.stages or any(pick.how for pick in found.picks.values()):
        return None
    numbers = {i: n for n, i in enumerate(body.inputs.values())}
    asked: Axes = dict(axes)
    for i, wants in enumerate(found.wants):
        cut = wants - {WHOLE}
        if found.stages[i] != BEFORE or not cut:
            continue
        if len(wants) > 1 or i not in numbers:
            return None  # only operands can be cut from outside
        asked[numbers[i]] = cut.pop()
    return asked, tuple((found.outs[i] or (None,))[0] for _, i in body.outputs)


def _inside(body: EinsumGraph, axes: Axes) -> Carried:
    nodes = list(body.inputs.values())
    return follow(body, {nodes[n]: a for n, a in axes.items()}, {})


def resized(op: Op, pick: Index, results: Results, size: int) -> Op:
    """Return the operation that does for a range of an index what ``op`` does for all of it."""
    shape = list(dims(results[0]))
    if pick.outs[0] is not None:
        shape[pick.outs[0]] = size
    match op:
        case ops.Slice():
            return ops.Slice(tuple((start, n, step) for (start, _, step), n in zip(op.ranges, shape, strict=True)))
        case ops.Reshape():
            return ops.Reshape(tuple(shape))
        case ops.Broadcast():
            return ops.Broadcast(tuple(shape), op.axes)
        case Fixpoint() | Scan() | Cond():
            axes = {n: a for n, a in enumerate(pick.args) if a is not None}
            return with_bodies(op, [_resized_body(body, inner or {}, size) for body, inner in _insides(op, axes)])
        case _:
            return op


def _resized_body(body: EinsumGraph, axes: Axes, size: int) -> EinsumGraph:
    found = _inside(body, axes)
    types = body.inference.types
    nodes: list[Node] = []
    cut = {
        i: axes[n] for n, i in enumerate(body.inputs.values()) if n in axes
    }  # those that nothing reads are cut as well
    for i, node in enumerate(body.nodes):
        op = node.op
        if isinstance(op, ops.Input) and i in cut:
            op = cut_input(op.label, types[i][0], cut[i], size)
        elif i in found.picks:
            op = resized(op, found.picks[i], types[i], size)
        dead = found.stages[i] == DEAD and not isinstance(op, ops.Input)  # it may not fit the new sizes
        nodes.append(Node(ops.Iota(0)) if dead else Node(op, node.args, node.locations))
    return EinsumGraph(nodes, body.outputs, body.constants)


def cut_input(label: str, t: TensorType, axis: int | None, size: int) -> ops.Input:
    """Return the input for a range of a value, or for all of it."""
    return ops.Input(label, tuple(size if a == axis else d for a, d in enumerate(dims(t))), t.dtype)
