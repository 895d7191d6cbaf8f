"""Choosing among fusions by what they save: each strategy is a plan, and the choice is what that plan does.

Seconds come from a cost model of the plan's steps and are called estimates wherever they are printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from ..diagnostics import bytes_text
from ..errors import InputError, expect
from ..ir.graph import EinsumGraph
from ..tables import counted, table
from . import fusion_planner
from .build import ExecutionPlan, Step
from .cost import rounds
from .fused_steps import Fusable
from .fusion_planner import Fusion, FusionType, Replacement, bytes_moved
from .machine import Machine, machine, roofline_seconds
from .node_costs import assumption, concrete


class FusionCost(NamedTuple):
    """Seconds that some nodes take one by one and as one, by the cost model."""

    apart: float
    fused: float

    @property
    def saved(self) -> float:
        """The seconds that fusing saves."""
        return self.apart - self.fused


class FusionCostModel:
    """Estimates the seconds of a plan's steps from the speeds of a machine: arithmetic, bytes to and from memory, and calls.

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
        self._machine = self._machine or machine()
        return self._machine

    def seconds(self, steps: Iterable[Step]) -> float:
        """Return what steps take one after another; a loop whose rounds only running tells counts one."""
        total = 0.0
        for step in steps:
            dtype = (step.types[0].dtype if step.types else None) or "float32"
            total += roofline_seconds(step.flops, bytes_moved(step), self.machine, dtype) + self.machine.call
            times = rounds(step.op, step.arg_types)
            total += (1 if times is None else times) * max((self.seconds(b.steps) for b in step.bodies), default=0)
        return total

    def estimate(
        self,
        graph: EinsumGraph,
        fusion: Fusion,
        inputs: Mapping[str, Any] | None = None,
        *,
        sizes: Mapping[str, int] | None = None,
    ) -> FusionCost:
        """Return what the nodes of a fusion take one by one and together; a size that is not given counts as 64."""
        known, _ = concrete(graph, inputs, sizes)
        for r in [] if known is None else fusion_planner.replacements(known):
            if r.fusion.nodes == fusion.nodes:
                return self.cost(r)
        nothing = (
            f"no step and no pass makes {fusion_planner.listed(fusion.nodes)} one, so there is nothing to estimate"
        )
        raise InputError(nothing, "FusionPlanner().validate(graph, fusion) says why", code="E330")

    def cost(self, replacement: Replacement) -> FusionCost:
        """Return what the steps before and after a fusion take."""
        return FusionCost(self.seconds(replacement.before), self.seconds(replacement.after))


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

    least_bytes: int  # that a fused step must save
    types: frozenset[FusionType]
    goal: str = "time"  # what every fusion must save: time by the cost model, or bytes read and written


LIMITS = {
    FusionStrategy.CONSERVATIVE: Limits(1 << 16, frozenset({FusionType.ELEMENT_WISE})),
    FusionStrategy.BALANCED: Limits(1 << 12, frozenset(FusionType)),
    FusionStrategy.AGGRESSIVE: Limits(0, frozenset(FusionType)),
    FusionStrategy.MEMORY_AWARE: Limits(1, frozenset(FusionType), "bytes"),
}


class FusionChoice(NamedTuple):
    """A fusion, what it saves, whether it was taken, and why or why not."""

    fusion: Fusion
    cost: FusionCost
    taken: bool
    why: str


class FusionPlan(NamedTuple):
    """Which fusions were chosen, and the plan that runs them. It prints as a table.

    No node is in two fused steps; a merged einsum may be part of one.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.gelu(b.input("x", (1000, 1000), "float32")))
    >>> slow = tl.Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=5e-7)
    >>> chosen = tl.FusionOptimizer(model=tl.FusionCostModel(slow)).optimize(graph)
    >>> print(chosen)
    pattern  nodes              saves  one by one     fused  taken
    gelu     %2 %4 %5 %7 %8  34.3 MiB   4402.5 µs  800.5 µs  yes: saves time
    1 group of 5 nodes; estimated 5.50 times as fast, by the cost model
    >>> [part.op.name for part in chosen.plan.steps[0].parts]
    ['multiply', 'multiply', 'erf', 'add', 'multiply']
    """

    graph: EinsumGraph
    strategy: FusionStrategy
    plan: ExecutionPlan | None  # with just these fusions; None where a rank is unknown
    fusions: tuple[Fusion, ...]  # that were taken, in the order of their first nodes
    choices: tuple[FusionChoice, ...]
    seconds: float  # of all nodes one by one, estimated
    fused_seconds: float  # of the plan
    assumed: tuple[str, ...] = ()

    @property
    def bytes_saved(self) -> int:
        """Bytes that are read and written less in a run."""
        return sum(f.bytes_saved for f in self.fusions)

    @property
    def estimated_speedup(self) -> float:
        """How many times as fast the cost model expects the fused graph to be."""
        return self.seconds / self.fused_seconds if self.fused_seconds else 1.0

    def table(self, limit: int = 60) -> str:
        """Return the choices as a table."""
        rows = [
            [
                c.fusion.pattern,
                fusion_planner.listed(c.fusion.nodes),
                bytes_text(c.fusion.bytes_saved),
                f"{c.cost.apart * 1e6:.1f} µs",
                f"{c.cost.fused * 1e6:.1f} µs",
                f"{'yes' if c.taken else 'no'}: {c.why}",
            ]
            for c in self.choices[:limit]
        ]
        head = ["pattern", "nodes", "saves", "one by one", "fused", "taken"]
        lines = [table(head, rows, right={2, 3, 4})] if rows else []
        if len(self.choices) > limit:
            lines.append(f"... {len(self.choices) - limit:,} more")
        inside = counted(len({n for f in self.fusions for n in f.nodes}), "node")
        groups = counted(len(self.fusions), "group")
        lines.append(f"{groups} of {inside}; estimated {self.estimated_speedup:.2f} times as fast, by the cost model")
        return "\n".join(lines + assumption(self.assumed))

    def __str__(self) -> str:
        return self.table()


class FusionOptimizer:
    """Chooses among the fusions of a graph by a strategy; the result holds the plan that runs what was chosen.

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
        expect(strategy, FusionStrategy, "a FusionStrategy is expected", *(f"use {each}" for each in FusionStrategy))
        self.strategy, self.model = strategy, model or FusionCostModel()

    def optimize(
        self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> FusionPlan:
        """Choose fusions of a graph for inputs and sizes; a size that is not given counts as 64."""
        known, assumed = concrete(graph, inputs, sizes)
        if known is None:
            return FusionPlan(graph, self.strategy, None, (), (), 0.0, 0.0, assumed)
        passes, choices = fusion_planner.EXACT, list[FusionChoice]()
        apart = fusion_planner.planned(known, fusion_planner.EXACT)
        merged = fusion_planner.merged_einsums(known) if FusionType.EINSUM in LIMITS[self.strategy].types else []
        if merged:  # the passes merge all or none
            why = self._refused(apart.steps(), fusion_planner.planned(known, fusion_planner.MERGING).steps())
            passes = fusion_planner.EXACT if why else fusion_planner.MERGING
            choices += [self._choice(r, why) for r in merged]
        every = fusion_planner.fused_steps(fusion_planner.planned(known, passes, fusion_planner.native_groups))
        choices += [self._choice(r, self._too_little(r)) for r in every]
        choices.sort(key=lambda c: (-c.cost.saved, c.fusion.nodes))
        taken = tuple(sorted((c.fusion for c in choices if c.taken), key=lambda f: f.nodes))
        final = fusion_planner.planned(known, passes, self._groups)
        before, after = self.model.seconds(apart.steps()), self.model.seconds(final.steps())
        return FusionPlan(graph, self.strategy, final.plan, taken, tuple(choices), before, after, assumed)

    def _groups(self, graph: EinsumGraph) -> Sequence[Fusable]:
        """Return the groups of native kernels that the strategy takes; kernels of single nodes are no fusions."""
        every = fusion_planner.fused_steps(fusion_planner.planned(graph, (), fusion_planner.native_groups))
        refused = {r.fusion.nodes for r in every if self._too_little(r)}
        return [group for group in fusion_planner.native_groups(graph) if tuple(sorted(group.nodes)) not in refused]

    def _choice(self, r: Replacement, why: str) -> FusionChoice:
        return FusionChoice(r.fusion, self.model.cost(r), not why, why or f"saves {LIMITS[self.strategy].goal}")

    def _too_little(self, r: Replacement) -> str:
        """Return why a fused step is not taken; nothing where it is."""
        limits = LIMITS[self.strategy]
        if r.fusion.fusion_type not in limits.types:
            return f"{self.strategy.value} leaves {r.fusion.fusion_type.value} fusions"
        if r.fusion.bytes_saved < limits.least_bytes:
            return f"{self.strategy.value} wants {bytes_text(limits.least_bytes)} at least"
        return self._refused(r.before, r.after)

    def _refused(self, before: Sequence[Step], after: Sequence[Step]) -> str:
        """Return why steps do not give way to others; nothing where they do."""
        goal = LIMITS[self.strategy].goal
        old, new = (self.model.seconds(s) if goal == "time" else sum(map(bytes_moved, s)) for s in (before, after))
        return "" if new < old else f"saves no {goal}"
