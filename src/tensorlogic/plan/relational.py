"""Plans of graphs that are given relations: which nodes run on sets of tuples, and in which layout each value is held.

A Boolean input that comes as a :class:`~tensorlogic.backends.sparse.SparseTensor` stays one. The nodes that follow from it are joins,
unions, complements and fixpoints of relations, one step together; where a node needs an array, the relation becomes one there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..ir import ops, spec
from ..ir.graph import EinsumGraph, Fixpoint, reachable
from ..ir.types import TensorType
from .build import ExecutionPlan, Groups, Step, lay_out
from .cost import nbytes
from .fused_steps import Fusable, Fused
from .query_ops import reads_as_query

GROWTH = 8  # times its facts, that a recursive relation is thought to have tuples
MOST = 64  # times the facts, that any relation is thought to have: an estimate must not refuse what might fit, the run will


def relational_plan(
    graph: EinsumGraph, sparse: Mapping[str, TensorType], others: Groups, *, in_place: bool, threads: Callable[[], int]
) -> ExecutionPlan:
    """Return the plan of a graph some inputs of which are relations; ``others`` groups the nodes that run on arrays."""
    own = relation_groups(graph, sparse)
    taken = {i for g in own for i in g.nodes}

    def groups(part: EinsumGraph) -> Sequence[Fusable]:
        found = others(part)
        return [*own, *(g for g in found if taken.isdisjoint(g.nodes))] if part is graph else found

    return _with_layouts(lay_out(graph, in_place=in_place, groups=groups, threads=threads), sparse)


class _Marks(NamedTuple):
    """What is known of nodes: whether each can be part of a query, holds a relation, and in which group it would run."""

    able: list[bool]
    relation: list[bool]
    level: list[int]


def relation_groups(graph: EinsumGraph, sparse: Mapping[str, TensorType]) -> list[Fusable]:
    """Return the nodes that run on relations, those that do not wait for an array in between in one group."""
    marks = _marks(graph, sparse)
    users = _users(graph)
    chosen = {i for i, node in enumerate(graph.nodes) if marks.able[i] and marks.relation[i] and _is_step(node.op)}
    chosen |= _counts(graph, marks, users, chosen)
    for i in sorted(_needed(graph, marks, users, chosen), reverse=True):
        chosen.add(i)
    by_level: dict[int, list[int]] = {}
    for i in sorted(chosen):
        by_level.setdefault(marks.level[i], []).append(i)
    return [Fusable(tuple(members), "relations", "relations", exact=True) for members in by_level.values()]


def _is_step(op: ops.Op) -> bool:
    return not isinstance(op, ops.Input | ops.Constant | ops.Literal | ops.Item)


def _users(graph: EinsumGraph) -> list[list[int]]:
    users: list[list[int]] = [[] for _ in graph.nodes]
    for i in reachable(graph.nodes, (i for _, i in graph.outputs)):
        for a in graph.nodes[i].args:
            users[a].append(i)
    for _, i in graph.outputs:
        users[i].append(-1)
    return users


def _marks(graph: EinsumGraph, sparse: Mapping[str, TensorType]) -> _Marks:
    types = graph.inference.types
    able, relation, level = [], [], []
    for i, node in enumerate(graph.nodes):
        args = node.args
        if isinstance(node.op, ops.Input | ops.Constant | ops.Literal):
            able.append(False)
            relation.append(isinstance(node.op, ops.Input) and node.op.label in sparse)
            level.append(0)
            continue
        if isinstance(node.op, ops.Item):
            able.append(able[args[0]])
            relation.append(relation[args[0]])
            level.append(level[args[0]])
            continue
        symbolic = all(
            types[a][0].dtype == "bool" or able[a] or isinstance(graph.nodes[a].op, ops.Constant | ops.Literal)
            for a in args
        )
        able.append(
            symbolic
            and all(t.shape is not None for t in types[i])
            and reads_as_query(node.op, [types[a][0] for a in args], types[i][0])
        )
        relation.append(able[i] and any(relation[a] for a in args))
        # what runs on arrays after a relation was computed comes later, and so does what reads that
        level.append(
            max((level[a] + (relation[a] and _is_step(graph.nodes[a].op) and not able[i]) for a in args), default=0)
        )
    return _Marks(able, relation, level)


def _needed(graph: EinsumGraph, marks: _Marks, users: Sequence[Sequence[int]], chosen: set[int]) -> set[int]:
    """Return nodes without relations, such as comparisons of indices, that only nodes on relations read."""
    found: set[int] = set()
    for i in range(len(graph.nodes) - 1, -1, -1):
        if i in chosen or not marks.able[i] or not _is_step(graph.nodes[i].op) or not users[i]:
            continue
        if all(u in chosen or u in found for u in users[i]):
            found.add(i)
    for i in found:  # they run where they are read
        marks.level[i] = 0
    for i in sorted(found, reverse=True):
        marks.level[i] = min(marks.level[u] for u in users[i])
    return found


def _counts(graph: EinsumGraph, marks: _Marks, users: Sequence[Sequence[int]], chosen: set[int]) -> set[int]:
    """Return the nodes that count the tuples of relations: a cast to numbers that is only added up."""
    found: set[int] = set()
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.op, ops.Cast) or node.args[0] not in chosen or not users[i]:
            continue
        if graph.type_of(i).dtype != "bool" and all(u >= 0 and _adds_up(graph.nodes[u].op) for u in users[i]):
            members = {i, *users[i]}
            for m in members:
                marks.level[m] = marks.level[node.args[0]]
            found |= members
    return found


def _adds_up(op: ops.Op) -> bool:
    if isinstance(op, ops.Reduce):
        return op.kind == "sum"
    if isinstance(op, ops.Einsum) and op.algebra == "real" and "," not in op.spec:
        parsed = spec.parse(op.spec)
        [own] = parsed.inputs
        kept = [x for x in own if x in parsed.output]
        return len(set(own)) == len(own) and tuple(kept) == tuple(parsed.output)
    return False


# layouts


def _with_layouts(plan: ExecutionPlan, sparse: Mapping[str, TensorType]) -> ExecutionPlan:
    """Return a plan whose types say in which layout each value is held, and how many tuples a relation is thought to have."""
    layout: dict[int, TensorType] = {}
    inputs = tuple((n, s, sparse.get(n, t)) for n, s, t in plan.inputs)
    layout.update((s, t) for _, s, t in inputs if t.layout != "dense")
    steps = []
    for step in plan.steps:
        if isinstance(step.op, Fused) and step.op.kind == "relations":
            counts = _estimates(step, {s: layout[s].tuples or 0 for s in step.reads if s in layout})
            types = []
            for slot, t in zip(step.writes, step.types, strict=True):
                if t.dtype == "bool":
                    t = layout[slot] = t._replace(layout="sparse", tuples=counts.get(slot, 0))
                types.append(t)
            pairs = sum(counts.values())
            step = step._replace(types=tuple(types), nbytes=sum(map(nbytes, types)), flops=pairs, scratch=8 * pairs)
        arg_types = tuple(layout.get(s, t) for s, t in zip(step.reads, step.arg_types, strict=True))
        steps.append(step._replace(arg_types=arg_types) if arg_types != step.arg_types else step)
    outputs = tuple((n, s, layout.get(s, t)) for n, s, t in plan.outputs)
    return plan._replace(inputs=inputs, outputs=outputs, steps=tuple(steps), name="relations")


def _estimates(step: Step, known: Mapping[int, int]) -> dict[int, int]:
    """Return about how many tuples each relation of a step has."""
    counts = dict(known)
    bound = MOST * max([1024, *known.values()])
    for part in step.parts:
        cells = [math.prod(int(n) for n in t.shape or ()) for t in part.types]
        given = [
            counts.get(s, math.prod(int(n) for n in t.shape or ()))
            for s, t in zip(part.reads, part.arg_types, strict=True)
        ]
        if isinstance(part.op, ops.Einsum):
            made = _join_estimate(part.op, part.arg_types, given)
        elif isinstance(part.op, Fixpoint):
            made = GROWTH * sum(given)
        elif isinstance(part.op, ops.Elementwise) and part.op.fn in ("logical_and", "minimum", "multiply"):
            made = min(given)
        else:
            made = sum(given)
        for slot, most in zip(part.writes, cells, strict=True):
            counts[slot] = min(made, most, bound)
    return counts


def _join_estimate(op: ops.Einsum, args: Sequence[TensorType], given: Sequence[int]) -> int:
    """Return the tuples of a join, were the values of every column equally frequent."""
    parsed = spec.expand(spec.parse(op.spec), tuple(len(t.shape or ()) for t in args))
    times: dict[str, int] = {}
    size: dict[str, int] = {}
    for labels, t in zip(parsed.inputs, args, strict=True):
        for label, n in zip(labels, t.shape or (), strict=True):
            times[label] = times.get(label, 0) + 1
            size[label] = max(size.get(label, 1), int(n))
    found = math.prod(given)
    for label, n in times.items():
        found //= max(size[label], 1) ** (n - 1) or 1
    return max(found, 1)
