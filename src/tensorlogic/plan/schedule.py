"""Schedules: in which order the nodes of a graph run, and which of them may run at the same time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..diagnostics import bytes_text, value_text
from ..errors import InputError
from ..ir.graph import EinsumGraph
from ..tables import counted, table
from . import memory
from .build import lay_out
from .node_costs import (
    GIVEN,
    NodeCosts,
    assumption,
    known_costs,
    longest_path,
    memory_reads,
    node_costs,
    peak,
    reordered,
    working,
)
from .printing import begin_and_end

Group = tuple[tuple[int, ...], ...]  # chains of nodes: each runs in order, none waits for another of its group


class SchedulingStrategy(msgspec.Struct, frozen=True):
    """How nodes are ordered: one after another, level by level, or by what they cost.

    >>> SchedulingStrategy.PARALLEL, SchedulingStrategy.CostBased(cost_threshold=1000)
    (SchedulingStrategy.PARALLEL, SchedulingStrategy.CostBased(cost_threshold=1000))
    """

    kind: str
    cost_threshold: float = 0

    SEQUENTIAL: ClassVar[SchedulingStrategy]
    PARALLEL: ClassVar[SchedulingStrategy]

    @classmethod
    def CostBased(cls, cost_threshold: float = 1000) -> SchedulingStrategy:  # noqa: N802 - the seed's name
        """Nodes that cost less than the threshold, in flops plus bytes written, share a chain with a neighbour."""
        if not isinstance(cost_threshold, int | float | np.number) or not cost_threshold >= 0:
            wanted = f"cost_threshold must be a number of 0 or more, got {value_text(cost_threshold)}"
            raise InputError(wanted, "write SchedulingStrategy.CostBased(cost_threshold=1000)", code="E331")
        return cls("cost_based", cost_threshold)

    def __repr__(self) -> str:
        if self.kind == "cost_based":
            return f"SchedulingStrategy.CostBased(cost_threshold={self.cost_threshold})"
        return f"SchedulingStrategy.{self.kind.upper()}"


SchedulingStrategy.SEQUENTIAL = SchedulingStrategy("sequential")
SchedulingStrategy.PARALLEL = SchedulingStrategy("parallel")


class Schedule(msgspec.Struct, frozen=True, dict=True):
    """An order of a graph's nodes, by number, in groups; inputs, constants and literals are in none. It prints as a table.

    ``chains`` has for each group its chains: a chain runs in order, and no chain reads from another of its group. Under
    the sequential and the parallel strategy every chain is one node.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, u, v = (b.input(n, (8, 8), "float32") for n in "xuv")
    >>> print(Scheduler(SchedulingStrategy.PARALLEL).schedule(b.build(y=b.relu(x @ u) + b.exp(x @ v))))
    group  nodes    operations   cost
        0  %3 | %5  2 einsum    2,560
        1  %4 | %6  relu, exp   1,216
        2  %7       add           320
    5 nodes in 3 groups, cost 4,096 (flops and bytes written), longest path 2,496, peak 768 B
    """

    graph: EinsumGraph
    strategy: SchedulingStrategy
    chains: tuple[Group, ...]
    critical_path: tuple[int, ...]  # the nodes of the most costly path, first to last
    costs: NodeCosts  # what every node of the graph costs and holds

    @cached_property
    def parallel_groups(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each group."""
        return tuple(tuple(n for chain in group for n in chain) for group in self.chains)

    @cached_property
    def node_order(self) -> tuple[int, ...]:
        """The nodes of all groups: everything a node reads stands before it."""
        return tuple(n for group in self.parallel_groups for n in group)

    @cached_property
    def peak_bytes(self) -> int:
        """The peak of a plan that runs in this order; where a rank is unknown, every tensor counts alike."""
        return _peak(self.graph, self.costs, self.node_order)

    @property
    def node_costs(self) -> tuple[int, ...]:
        """What every node of the graph costs: flops plus bytes written."""
        return self.costs.cost

    @property
    def assumed(self) -> tuple[str, ...]:
        """The sizes and inputs that nobody gave."""
        return self.costs.assumed

    def apply(self) -> EinsumGraph:
        """Return the graph with its nodes in this order, so that plans of it run so.

        >>> import tensorlogic as tl
        >>> b = tl.GraphBuilder()
        >>> x = b.input("x", (9,), "float32")
        >>> large = [b.exp(x), b.sin(x)]
        >>> graph = b.build({f"y{n}": b.sum(each) for n, each in enumerate(large)})
        >>> [node.op.name for node in Scheduler().schedule(graph).apply().nodes]
        ['input', 'exp', 'sum', 'sin', 'sum']
        """
        return reordered(self.graph, self.node_order)

    @property
    def cost(self) -> int:
        """What all nodes cost together."""
        return sum(self.node_costs)

    @property
    def critical_cost(self) -> int:
        """What the most costly path costs: no number of workers takes less."""
        return sum(self.node_costs[n] for n in self.critical_path)

    @property
    def group_costs(self) -> tuple[int, ...]:
        """What the most costly chain of each group costs."""
        return tuple(max(sum(self.node_costs[n] for n in chain) for chain in group) for group in self.chains)

    def table(self, limit: int | None = 60) -> str:
        """Return the groups as a table; a long one shows its beginning and end."""
        count = len(self.chains)
        ends = begin_and_end(range(count), limit)
        rows = [["", f"... {n:,} more groups", "", ""] if g is None else self._row(g) for n, g in ends]
        lines = [table(["group", "nodes", "operations", "cost"], rows, right={0, 3})]
        lines.append(
            f"{counted(len(self.node_order), 'node')} in {counted(count, 'group')}, cost {self.cost:,} (flops and "
            f"bytes written), longest path {self.critical_cost:,}, peak {bytes_text(self.peak_bytes)}"
        )
        return "\n".join(lines + assumption(self.assumed))

    def _row(self, g: int) -> list[str]:
        nodes = self.parallel_groups[g]
        shown, left = [], 8
        for chain in self.chains[g]:
            shown.append(" ".join(f"%{n}" for n in chain[:left]))
            left -= min(left, len(chain))
            if not left:
                break
        more = f" ... {len(nodes) - 8:,} more" if len(nodes) > 8 else ""
        kinds = Counter(self.graph.nodes[n].op.name for n in nodes).most_common()
        words = [name if k == 1 else f"{k:,} {name}" for name, k in kinds[:4]] + ["..."] * (len(kinds) > 4)
        cost = sum(self.node_costs[n] for n in nodes)
        return [str(g), " | ".join(shown) + more, ", ".join(words), f"{cost:,}"]

    def __str__(self) -> str:
        return self.table()


class Scheduler:
    """Orders the nodes of a graph.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, u, v = (b.input(n, (64, 64)) for n in "xuv")
    >>> schedule = Scheduler(SchedulingStrategy.CostBased(cost_threshold=1000)).schedule(b.build(y=x @ u + x @ v))
    >>> schedule.node_order, schedule.parallel_groups
    ((3, 4, 5), ((3, 4), (5,)))
    """

    def __init__(self, strategy: SchedulingStrategy = SchedulingStrategy.SEQUENTIAL) -> None:
        if not isinstance(strategy, SchedulingStrategy) or strategy.kind not in _STRATEGIES:
            hint = "use SchedulingStrategy.SEQUENTIAL, .PARALLEL or .CostBased(cost_threshold=1000)"
            raise InputError(f"{value_text(strategy)} is no scheduling strategy", hint, code="E332")
        self.strategy = strategy

    def schedule(
        self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> Schedule:
        """Order a graph for inputs (arrays or types) and sizes; a size that is not given counts as 64."""
        costs = node_costs(graph, inputs, sizes)
        chains = _STRATEGIES[self.strategy.kind](graph, costs, self.strategy.cost_threshold)
        return Schedule(graph, self.strategy, chains, longest_path(graph, costs.cost), costs)


def _sequential(graph: EinsumGraph, costs: NodeCosts, threshold: float) -> tuple[Group, ...]:
    """Take the frugal order, or the one the graph came in."""
    written = working(graph)
    order = frugal(graph, costs, written)
    # a greedy choice can be wrong: it is never worse than the order the graph came in
    better = order != written and _peak(graph, costs, order) < _peak(graph, costs, written)
    return tuple(((n,),) for n in (order if better else written))


def _peak(graph: EinsumGraph, costs: NodeCosts, order: Sequence[int]) -> int:
    return peak(graph, costs, order) if costs.known is None else lay_out(reordered(costs.known, order)).peak_bytes


def frugal(graph: EinsumGraph, costs: NodeCosts, nodes: list[int]) -> list[int]:
    """Return an order that runs next what adds the least memory: what it makes, less what it is the last to read."""
    reads = memory_reads(graph, costs)
    outputs = {costs.root[i] for _, i in graph.outputs}
    unread, readers = Counter[int](), Counter[int]()  # how many still read a memory, and the sum of their numbers
    waits = [0] * len(graph)
    after: list[list[int]] = [[] for _ in range(len(graph))]
    for n in nodes:
        for r in reads[n]:
            unread[r] += 1
            readers[r] += n
        for a in dict.fromkeys(graph.nodes[n].args):
            if not isinstance(graph.nodes[a].op, GIVEN):
                waits[n] += 1
                after[a].append(n)
    # an unread result goes at once
    adds = [0 if not unread[n] and n not in outputs else costs.fresh[n] for n in range(len(graph))]
    for r, count in unread.items():
        if count == 1 and r not in outputs:
            adds[readers[r]] -= costs.fresh[r]
    ready = [(adds[n], n) for n in nodes if not waits[n]]
    heapify(ready)
    done = bytearray(len(graph))
    order = []
    while ready:
        _, n = heappop(ready)
        if done[n]:
            continue  # it stood here twice, because it came to add less
        done[n] = 1
        order.append(n)
        for r in reads[n]:
            unread[r] -= 1
            readers[r] -= n
            if unread[r] == 1 and r not in outputs:
                last = readers[r]  # the sum of one number
                adds[last] -= costs.fresh[r]
                if not waits[last]:
                    heappush(ready, (adds[last], last))
        for m in after[n]:
            waits[m] -= 1
            if not waits[m]:
                heappush(ready, (adds[m], m))
    return order


def _cost_based(graph: EinsumGraph, costs: NodeCosts, threshold: float) -> tuple[Group, ...]:
    """Start a chain for what costs the threshold or more; let the rest join the chain of what it reads.

    A node may join the one chain of the latest group it reads from. It does where nothing else waits for that chain, or
    where the chain's cheap guests stay below the threshold together, so that no other reader waits long for them. Guests
    beyond that share chains of the next group. A costly node joins only a chain of cheap ones that feeds nothing else.
    """
    readers = Counter(a for n in working(graph) for a in dict.fromkeys(graph.nodes[n].args))
    chain_of: dict[int, _Chain] = {}
    chains: list[_Chain] = []
    for n in working(graph):
        reads = Counter(chain_of[a] for a in dict.fromkeys(graph.nodes[n].args) if a in chain_of)
        level = max((c.level for c in reads), default=-1)
        latest = [c for c in reads if c.level == level]
        cost, cheap, chain = costs.cost[n], costs.cost[n] < threshold, None
        if len(latest) == 1 and threshold > 0:
            near = latest[0]
            if near.waiting == reads[near] and (cheap or not near.costly):
                chain = near
            elif cheap:
                chain = next((c for c in (near, near.overflow) if c and c.guests + cost <= threshold), None)
                if chain is not None:
                    chain.guests += cost
        if chain is None:
            chain = _Chain(level + 1)
            chains.append(chain)
            if cheap and len(latest) == 1:
                latest[0].overflow, chain.guests = chain, cost
        chain_of[n] = chain
        chain.nodes.append(n)
        chain.costly |= not cheap
        chain.waiting += readers[n] - reads[chain]
    groups: list[list[tuple[int, ...]]] = [[] for _ in range(max((c.level for c in chains), default=-1) + 1)]
    for chain in chains:
        groups[chain.level].append(tuple(chain.nodes))
    return tuple(map(tuple, groups))


class _Chain:
    """A chain while it grows: its guests are cheap nodes that joined while others were waiting for it."""

    def __init__(self, level: int) -> None:
        self.level, self.nodes, self.costly = level, list[int](), False
        self.guests = 0.0  # what they cost
        self.waiting = 0  # reads by nodes outside
        self.overflow: _Chain | None = None  # takes guests that are too many


_STRATEGIES: dict[str, Callable[[EinsumGraph, NodeCosts, float], tuple[Group, ...]]] = {
    "sequential": _sequential,
    "parallel": lambda graph, costs, _: _cost_based(graph, costs, 0),
    "cost_based": _cost_based,
}


def frugal_order(graph: EinsumGraph) -> EinsumGraph:
    """Return a graph whose sizes are known in an order that keeps less alive; itself where none is found.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (512, 512), "float32")
    >>> large = [b.exp(x), b.sin(x), b.cos(x)]  # all three are there before the first is summed
    >>> graph = b.build({f"y{n}": b.sum(each) for n, each in enumerate(large)})
    >>> [node.op.name for node in graph.nodes]
    ['input', 'exp', 'sin', 'cos', 'sum', 'sum', 'sum']
    >>> [node.op.name for node in frugal_order(graph).nodes]
    ['input', 'exp', 'sum', 'sin', 'sum', 'cos', 'sum']
    """
    written = working(graph)
    costs = known_costs(graph)
    before = peak(graph, costs, written)
    if before < memory.LEAST:
        return graph
    order = frugal(graph, costs, written)
    return reordered(graph, order) if peak(graph, costs, order) < before else graph
