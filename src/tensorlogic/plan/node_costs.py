"""What the nodes of a graph cost and hold before there is a plan, for sizes that are known or counted as 64."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import TensorLogicError
from ..ir import ops, spec
from ..ir.check import require_valid
from ..ir.graph import EinsumGraph, bodies, renumbered
from ..passes.specialize import known_inputs, specialize
from .cost import allocates, contraction_of, flops, nbytes, rounds

STAND_IN = 64  # a size that nobody gave; a tensor of unknown rank counts as a float32 matrix of this size
GIVEN = (ops.Input, ops.Constant, ops.Literal)  # nodes that are there before anything runs


class NodeCosts(NamedTuple):
    """What every node of a graph costs and holds, by number."""

    cost: tuple[int, ...]  # flops plus bytes written
    fresh: tuple[int, ...]  # bytes of new memory
    size: tuple[int, ...]  # bytes of its value, a view's too
    root: tuple[int, ...]  # the node whose memory it shows: itself, or what it is a view of
    assumed: tuple[str, ...] = ()  # sizes and inputs that nobody gave
    known: EinsumGraph | None = None  # the graph with the sizes that were counted; None where a rank is unknown


def concrete(
    graph: EinsumGraph, inputs: Mapping[str, Any] | None, sizes: Mapping[str, int] | None
) -> tuple[EinsumGraph | None, tuple[str, ...]]:
    """Return the graph for given inputs and sizes, 64 where they are unknown, and what was assumed.

    It is None where that does not work out: a rank is unknown, or a size of 64 contradicts another.
    """
    require_valid(graph)
    types = [t for results in graph.inference.types for t in results]
    known = all(t.shape is not None and t.shape.is_static and t.dtype is not None for t in types)
    if not inputs and not sizes and known and not any(bodies(node.op) for node in graph.nodes):
        return graph, ()
    declared = known_inputs(graph, inputs, sizes, stand_in=STAND_IN)
    assumed = (*declared.assumed, *declared.unranked)
    if not declared.unranked:
        try:
            return specialize(graph, declared.types, declared.sizes), assumed
        except TensorLogicError:
            if not assumed:
                raise
    return None, assumed


def node_costs(graph: EinsumGraph, inputs: Mapping[str, Any] | None, sizes: Mapping[str, int] | None) -> NodeCosts:
    """Return the costs of a graph's nodes for given inputs and sizes; where a rank is unknown, every tensor counts alike."""
    known, assumed = concrete(graph, inputs, sizes)
    return (_rough(graph) if known is None else known_costs(known))._replace(assumed=assumed, known=known)


def known_costs(graph: EinsumGraph) -> NodeCosts:
    """Return the costs of a graph whose types are all known."""
    types = graph.inference.types
    cost, fresh, size = [], [], []
    root: list[int] = []
    for i, node in enumerate(graph.nodes):
        op, args = node.op, [types[a][0] for a in node.args]
        size.append(0 if isinstance(op, ops.Literal) else sum(map(nbytes, types[i])))
        form = contraction_of(op, args)
        own = not isinstance(op, GIVEN) and not op.is_view and allocates(op, form)  # a reshape hardly ever copies
        fresh.append(size[i] if own else 0)
        root.append(i if own or not node.args else root[node.args[0]])
        work = flops(op, args, types[i], form) + fresh[i]
        runs = rounds(op, args)
        inside = max((sum(known_costs(body).cost) for body in bodies(op)), default=0)
        cost.append(work + (1 if runs is None else runs) * inside)
    return NodeCosts(tuple(cost), tuple(fresh), tuple(size), tuple(root))


def _rough(graph: EinsumGraph) -> NodeCosts:
    """Return costs by the kind of operation alone: every tensor is a square matrix of float32."""
    points = STAND_IN**2
    cost, root = [], list[int]()
    fresh = [0 if isinstance(n.op, GIVEN) or n.op.is_view else 4 * points for n in graph.nodes]
    for i, node in enumerate(graph.nodes):
        root.append(root[node.args[0]] if node.op.is_view and node.args else i)
        work = points + sum(sum(_rough(body).cost) for body in bodies(node.op))
        if isinstance(node.op, ops.Einsum | ops.ContractVJP):
            work = 2 * STAND_IN ** len({x for labels in spec.parse(node.op.spec).inputs for x in labels})
        cost.append(work + fresh[i] if fresh[i] else 0)
    size = tuple(0 if isinstance(node.op, ops.Literal) else 4 * points for node in graph.nodes)
    return NodeCosts(tuple(cost), tuple(fresh), size, tuple(root))


def working(graph: EinsumGraph) -> list[int]:
    """Return the nodes that compute, in the graph's order."""
    return [i for i, node in enumerate(graph.nodes) if not isinstance(node.op, GIVEN)]


def constant_nodes(graph: EinsumGraph) -> set[int]:
    """Return the nodes that compute something out of constants alone."""
    fixed: set[int] = set()
    for i, node in enumerate(graph.nodes):
        match node.op:
            case ops.Constant() | ops.Literal():
                fixed.add(i)
            case ops.Iota() if isinstance(node.op.size, int):
                fixed.add(i)
            case ops.Item() | ops.Input():
                continue
            case _ if node.args and not bodies(node.op) and fixed.issuperset(node.args):
                fixed.add(i)
    return fixed.difference(i for i in fixed if isinstance(graph.nodes[i].op, GIVEN))


def reordered(graph: EinsumGraph, order: Sequence[int]) -> EinsumGraph:
    """Return a graph whose nodes that compute stand in another order; inputs, constants and literals come first, as they stood."""
    every = [i for i, node in enumerate(graph.nodes) if isinstance(node.op, GIVEN)] + list(order)
    return renumbered(graph.nodes, every, graph.outputs, graph.constants, graph.inference)


def longest_path(graph: EinsumGraph, cost: Sequence[int]) -> tuple[int, ...]:
    """Return the most costly path of nodes that compute, first to last."""
    total: dict[int, int] = {}  # of the most costly path that ends at a node
    before: dict[int, int] = {}
    for i in working(graph):
        before[i] = max((a for a in graph.nodes[i].args if a in total), key=total.__getitem__, default=-1)
        total[i] = cost[i] + total.get(before[i], 0)
    path = []
    end = max(total, key=total.__getitem__, default=-1)
    while end >= 0:
        path.append(end)
        end = before[end]
    return tuple(reversed(path))


def memory_reads(graph: EinsumGraph, costs: NodeCosts) -> list[tuple[int, ...]]:
    """Return the memory that every node reads, by the node that made it; a view reads what it shows."""
    return [tuple(dict.fromkeys(costs.root[a] for a in node.args)) for node in graph.nodes]


def peak(graph: EinsumGraph, costs: NodeCosts, order: Sequence[int]) -> int:
    """Return the most bytes of results that are alive at once in an order of the nodes that compute."""
    reads = memory_reads(graph, costs)
    unread = Counter(r for n in order for r in reads[n])
    outputs = {costs.root[i] for _, i in graph.outputs}
    most = alive = 0
    for n in order:
        alive += costs.fresh[n]
        most = max(most, alive)
        for r in reads[n]:
            unread[r] -= 1
            if not unread[r] and r not in outputs:
                alive -= costs.fresh[r]
        if costs.root[n] == n and n not in outputs and not unread[n]:
            alive -= costs.fresh[n]  # nobody reads it
    return most


def assumption(assumed: Sequence[str]) -> list[str]:
    """Return the line that says what was taken for granted, if anything was."""
    few = ", ".join(assumed[:6]) + (f" and {len(assumed) - 6:,} more" if len(assumed) > 6 else "")
    return [f"not given, counted as size {STAND_IN}: {few}"] if assumed else []
