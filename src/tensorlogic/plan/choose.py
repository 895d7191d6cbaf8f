"""Choosing among fusions by what they would save.

Nothing here runs or changes how a graph runs. Seconds come from a cost model and are called estimates wherever they are printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ..diagnostics import bytes_text
from ..errors import InputError, TensorLogicError
from ..ir import ops
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import EinsumGraph, Node
from ..passes.merge import merge_einsums
from ..passes.order import order_contractions
from ..passes.specialize import specialize
from ..tables import table
from .fuse import Fusion, FusionType, find_groups, listed, record
from .machine import Machine, machine, roofline_seconds
from .node_costs import GIVEN, Weights, assumption, counted, known_types, weigh
from .row_groups import MOST, Reading, Shape, aligned, footing, frame_of, read

CHEAP = 4  # the relative work per element up to which a value is rather computed twice than kept


class FusionCost(NamedTuple):
    """Seconds that some nodes take one by one and as one kernel, by the cost model."""

    apart: float
    fused: float

    @property
    def saved(self) -> float:
        """The seconds that fusing would save."""
        return self.apart - self.fused


class FusionCostModel:
    """Estimates seconds from the speeds of a machine: arithmetic, bytes to and from memory, and calls.

    Without a machine, this one is measured when first needed.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.exp(b.sin(b.input("x", (1000, 1000), "float32"))))
    >>> [chain] = tl.FusionPlanner().find_fusion_opportunities(graph)
    >>> model = FusionCostModel(tl.Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=5e-7))
    >>> cost = model.estimate(graph, chain)
    >>> round(cost.apart * 1e6), round(cost.fused * 1e6)
    (1601, 800)
    """

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine

    @property
    def machine(self) -> Machine:
        """The speeds that estimates rest on."""
        if self._machine is None:
            self._machine = machine()
        return self._machine

    def estimate(
        self,
        graph: EinsumGraph,
        fusion: Fusion,
        inputs: Mapping[str, Any] | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> FusionCost:
        """Return what a fusion takes now and would take; a size that is not given counts as 64."""
        return self._cost(graph, weigh(graph, inputs, sizes), fusion, _concrete(graph, inputs, sizes))

    def seconds(self, graph: EinsumGraph, w: Weights, nodes: Iterable[int]) -> float:
        """Return what nodes take one by one."""
        return sum(self._one(graph, w, i) for i in nodes)

    def _one(self, graph: EinsumGraph, w: Weights, i: int) -> float:
        node = graph.nodes[i]
        if isinstance(node.op, GIVEN):
            return 0.0
        moved = sum(w.size[a] for a in set(node.args)) + w.fresh[i] if w.fresh[i] else 0
        return self._roofline(graph, i, w.cost[i] - w.fresh[i], moved) + self.machine.call

    def _roofline(self, graph: EinsumGraph, i: int, flops: float, moved: float) -> float:
        types = graph.inference.types[i]
        return roofline_seconds(flops, moved, self.machine, (types[0].dtype if types else None) or "float32")

    def _cost(self, graph: EinsumGraph, w: Weights, fusion: Fusion, concrete: EinsumGraph | None) -> FusionCost:
        again = set(fusion.repeated)
        apart = self.seconds(graph, w, (n for n in fusion.nodes if n not in again))
        if fusion.pattern == "einsum chain":
            return FusionCost(apart, apart if concrete is None else min(apart, self._reordered(concrete, fusion)))
        flops = sum(w.cost[n] - w.fresh[n] for n in fusion.nodes)
        moved = sum(w.size[n] for n in (*fusion.operands, *fusion.results))
        if fusion.pattern == "sibling products":  # matrices that are not constant are put side by side in each run
            moved += 2 * sum(w.size[n] for n in fusion.operands[1:] if not isinstance(graph.nodes[n].op, ops.Constant))
        return FusionCost(apart, self._roofline(graph, fusion.nodes[-1], flops, moved) + self.machine.call)

    def _reordered(self, graph: EinsumGraph, fusion: Fusion) -> float:
        """Return what a chain of einsums takes in the order that is best over all of its operands."""
        place: dict[int, int] = {}
        nodes: list[Node] = []
        for n in (*fusion.operands, *fusion.nodes):
            node, t = graph.nodes[n], graph.type_of(n)
            place[n] = len(nodes)
            if n in fusion.nodes:
                nodes.append(Node(node.op, tuple(place[a] for a in node.args)))
            else:
                nodes.append(Node(ops.Input(f"x{n}", tuple(t.shape or ()), t.dtype)))
        alone = EinsumGraph(nodes, [(f"y{n}", place[n]) for n in fusion.results])
        best = order_contractions(merge_einsums(alone))
        return self.seconds(best, weigh(best, None, None), range(len(best)))


def _concrete(
    graph: EinsumGraph, inputs: Mapping[str, Any] | None, sizes: Mapping[str, int] | None
) -> EinsumGraph | None:
    """Return the graph with every size known or stood in for; None where no stand-in fits."""
    types, known, _ = known_types(graph, inputs or {}, sizes or {})
    try:
        return None if types is None else specialize(graph, types, known)
    except TensorLogicError:
        return None


class FusionStrategy(Enum):
    """How eagerly fusions are chosen; the rows of ``LIMITS`` say what each means.

    >>> [strategy.name for strategy in FusionStrategy]
    ['CONSERVATIVE', 'BALANCED', 'AGGRESSIVE', 'MEMORY_AWARE']
    """

    CONSERVATIVE = "conservative"
    BALANCED = "balanced"
    AGGRESSIVE = "aggressive"
    MEMORY_AWARE = "memory-aware"


class Limits(NamedTuple):
    """What a strategy lets through."""

    most: int  # nodes of one group
    least_bytes: int  # that a group must save
    reductions: bool  # whether groups may hold them
    einsums: bool  # whether products take part
    repeat: bool  # whether a cheap value may be computed twice rather than kept
    by_bytes: bool = False  # the most bytes first, not the most seconds


LIMITS = {
    FusionStrategy.CONSERVATIVE: Limits(8, 1 << 16, reductions=False, einsums=False, repeat=False),
    FusionStrategy.BALANCED: Limits(64, 1 << 12, reductions=True, einsums=True, repeat=False),
    FusionStrategy.AGGRESSIVE: Limits(MOST, 0, reductions=True, einsums=True, repeat=True),
    FusionStrategy.MEMORY_AWARE: Limits(MOST, 1, reductions=True, einsums=True, repeat=True, by_bytes=True),
}


class FusionChoice(NamedTuple):
    """A fusion, what it would save, whether it was taken, and why or why not."""

    fusion: Fusion
    cost: FusionCost
    taken: bool
    why: str


class FusionPlan(NamedTuple):
    """Which fusions were chosen: no node is in two, but for those that are repeated. It prints as a table.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.gelu(b.input("x", (1000, 1000), "float32")))
    >>> slow = tl.Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=5e-7)
    >>> print(tl.FusionOptimizer(model=tl.FusionCostModel(slow)).optimize(graph))
    pattern  nodes              saves  one by one     fused  taken
    gelu     %2 %4 %5 %7 %8  34.3 MiB   4402.5 µs  800.5 µs  yes: saves the most time
    1 group of 5 nodes; estimated 5.50 times as fast, by the cost model, where kernels run whole groups
    """

    graph: EinsumGraph
    strategy: FusionStrategy
    fusions: tuple[Fusion, ...]  # that were taken, in the order of their first nodes
    choices: tuple[FusionChoice, ...]
    seconds: float  # of all nodes one by one, estimated
    fused_seconds: float
    assumed: tuple[str, ...] = ()

    @property
    def bytes_saved(self) -> int:
        """Bytes that would be read and written less in a run."""
        return sum(f.bytes_saved for f in self.fusions)

    @property
    def estimated_speedup(self) -> float:
        """How many times as fast the cost model expects the fused graph to be."""
        return self.seconds / self.fused_seconds if self.fused_seconds else 1.0

    def table(self, limit: int = 60) -> str:
        """Return the choices as a table."""
        rows = [
            [c.fusion.pattern, listed(c.fusion.nodes),
             bytes_text(c.fusion.bytes_saved), f"{c.cost.apart * 1e6:.1f} µs", f"{c.cost.fused * 1e6:.1f} µs",
             f"{'yes' if c.taken else 'no'}: {c.why}"]
            for c in self.choices[:limit]
        ]  # fmt: skip
        lines = (
            [table(["pattern", "nodes", "saves", "one by one", "fused", "taken"], rows, right={2, 3, 4})]
            if rows
            else []
        )
        if len(self.choices) > limit:
            lines.append(f"... {len(self.choices) - limit:,} more")
        inside = counted(len({n for f in self.fusions for n in f.nodes}), "node")
        lines.append(
            f"{counted(len(self.fusions), 'group')} of {inside}; estimated {self.estimated_speedup:.2f} times as fast, "
            "by the cost model, where kernels run whole groups"
        )
        return "\n".join(lines + assumption(self.assumed))

    def __str__(self) -> str:
        return self.table()


class FusionOptimizer:
    """Chooses among the fusions of a graph. What it returns is a plan: nothing runs faster for having one.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.softmax(b.input("x", (64, 10), "float32")))
    >>> plan = FusionOptimizer(FusionStrategy.BALANCED).optimize(graph)
    >>> [fusion.pattern for fusion in plan.fusions]
    ['softmax']
    """

    def __init__(
        self, strategy: FusionStrategy = FusionStrategy.BALANCED, *, model: FusionCostModel | None = None
    ) -> None:
        if not isinstance(strategy, FusionStrategy):
            raise InputError(f"{strategy!r} is no fusion strategy", code="E301",
                             suggestions=[f"use FusionStrategy.{s.name}" for s in FusionStrategy])  # fmt: skip
        self.strategy, self.model = strategy, model or FusionCostModel()

    def optimize(
        self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> FusionPlan:
        """Choose fusions of a graph for inputs and sizes; a size that is not given counts as 64."""
        limits, model = LIMITS[self.strategy], self.model
        found = find_groups(
            graph, inputs, sizes=sizes, most=limits.most, reductions=limits.reductions, einsums=limits.einsums
        )
        w = weigh(graph, inputs, sizes)
        concrete = _concrete(graph, inputs, sizes) if any(f.pattern == "einsum chain" for f in found) else None
        costs = {f: model._cost(graph, w, f, concrete) for f in found}
        order = sorted(found, key=lambda f: (-f.bytes_saved if limits.by_bytes else 0, -costs[f].saved, f.nodes))
        owner: dict[int, Fusion] = {}
        refused: dict[Fusion, str] = {}
        for f in order:
            rival = next((owner[n] for n in f.nodes if n in owner), None)
            if f.bytes_saved < limits.least_bytes and (limits.by_bytes or f.pattern != "einsum chain"):
                refused[f] = f"{self.strategy.value} wants {bytes_text(limits.least_bytes)} at least"
            elif costs[f].saved <= 0:
                refused[f] = "no faster by the estimate"
            elif rival is not None:
                refused[f] = f"{rival.pattern} at %{rival.nodes[0]} saves more"
            else:
                owner.update(dict.fromkeys(f.nodes, f))
        taken = {f: f for f in found if f not in refused}
        if limits.repeat:
            taken = _repeated(read(graph, inputs, sizes), list(taken))
        best = "saves the most " + ("memory traffic" if limits.by_bytes else "time")
        choices = []
        for f in order:
            now = taken.get(f)
            again = f", computes {listed(now.repeated, 4)} for itself" if now is not None and now.repeated else ""
            cost = costs[f] if now is None else model._cost(graph, w, now, concrete)
            choices.append(FusionChoice(now or f, cost, now is not None, refused.get(f, best + again)))
        whole = model.seconds(graph, w, range(len(graph)))
        saved = sum(c.cost.saved for c in choices if c.taken)
        fusions = tuple(sorted(taken.values(), key=lambda f: f.nodes))
        return FusionPlan(graph, self.strategy, fusions, tuple(choices), whole, whole - saved, w.assumed)


def _repeated(r: Reading, taken: Sequence[Fusion]) -> dict[Fusion, Fusion]:
    """Let groups compute cheap members of other groups for themselves where then nobody has to write them."""
    now = {n: f for n, f in enumerate(taken) if f.fusion_type is not FusionType.EINSUM}
    of = {i: n for n, f in now.items() for i in f.nodes}
    for n in now:
        for u in taken[n].results:
            readers = {of.get(i, -1) for i in r.readers[u]} - {n}
            node = r.nodes[u]
            cheap = isinstance(node.op, ops.Cast) or (
                isinstance(node.op, ops.Elementwise) and FUNCTIONS[node.op.fn].cost <= CHEAP
            )
            inside = any(of.get(a) == n for a in node.args)  # then its operands would have to be written
            if not cheap or inside or u in r.outputs or not readers or -1 in readers:
                continue
            more = [sum(r.size[a] for a in set(node.args) - set(now[m].operands)) for m in readers]
            gain = r.size[u] + sum(r.size[u] - extra for extra in more)
            if gain > 0 and all(_takes(r, now[m], u) for m in readers):
                kept = tuple(i for i in now[n].results if i != u)
                now[n] = now[n]._replace(
                    results=kept, bytes_saved=now[n].bytes_saved + r.size[u], repeated=(*now[n].repeated, u)
                )
                for m in readers:
                    now[m] = _with(r, now[m], u)
    return {f: now.get(n, f) for n, f in enumerate(taken)}


def _takes(r: Reading, fusion: Fusion, u: int) -> bool:
    """Tell whether a node can be one more member of a group, with the frame and rows the group has."""
    shapes, axis = set[Shape](), None
    for i in (*fusion.nodes, u):
        own = footing(r, i)
        if isinstance(own, str):
            return False
        shapes |= own[0]
        axis = own[1] if axis is None else axis
    fits = len(fusion.nodes) < MOST and frame_of(shapes, axis) == (fusion.frame, fusion.row)
    return fits and (fusion.frame == 0 or all(aligned(r, i, u) for i in fusion.nodes if u in r.nodes[i].args))


def _with(r: Reading, fusion: Fusion, u: int) -> Fusion:
    given_up = [i for i in fusion.nodes if i in fusion.repeated]
    found = record(r, sorted((*fusion.nodes, u)), (*given_up, u))
    saved = fusion.bytes_saved + sum(r.size[a] for a in fusion.operands) - sum(r.size[a] for a in found.operands)
    return found._replace(bytes_saved=saved, pattern=fusion.pattern, results=fusion.results)
