"""What could be better about a graph: fusions, and work that nobody needs; and the passes that see to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..ir import ops
from ..ir.check import require_valid
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import EinsumGraph, reachable
from ..passes.pipeline import CompilationConfig, OptimizationLevel, Optimized, optimize, passes_of
from ..passes.simplify import Evaluate
from ..tables import counted
from .build import lay_out
from .fusion_planner import Fusion, FusionPlanner, listed, show_fusions
from .fusion_strategies import FusionCostModel, FusionOptimizer, FusionStrategy
from .node_costs import GIVEN, assumption, concrete, constant_nodes


class OptimizationResult(NamedTuple):
    """What could be better about a graph; nodes are numbers of the graph that was given. It prints as a table.

    >>> OptimizationResult((), (3,), (), (), 1.5).dead_nodes
    (3,)
    """

    fusion_opportunities: tuple[Fusion, ...]
    dead_nodes: tuple[int, ...]  # that no output needs
    redundant_nodes: tuple[int, ...]  # that do what an earlier node does
    constant_nodes: tuple[int, ...]  # that depend on constants alone
    estimated_speedup: float  # by the cost model: the graph as it is written, against its native plan after all passes
    assumed: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [show_fusions(self.fusion_opportunities)] if self.fusion_opportunities else []
        for nodes, what in (
            (self.dead_nodes, "not needed by any output"),
            (self.redundant_nodes, "the same as an earlier one"),
            (self.constant_nodes, "made of constants alone"),
        ):
            if nodes:
                lines.append(f"{counted(len(nodes), 'node')} {what}: {listed(nodes)}")
        count = len(self.fusion_opportunities)
        lines.append(
            f"{count} fusion opportunit{'y' if count == 1 else 'ies'}, estimated speedup {self.estimated_speedup:.2f} "
            "(by the cost model, with all passes, on the native tier)"
        )
        return "\n".join(lines + assumption(self.assumed))


class GraphOptimizer:
    """Says what could be better about a graph, and runs the passes of a level.

    ``evaluate`` runs a graph of constants, such as ``Executor().execute``; without it :meth:`optimize` folds none.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder(intern=False)
    >>> x = b.input("x", (64, 10), "float32")
    >>> unused = b.cos(x)
    >>> graph = b.build(y=b.exp(b.sin(b.square(x))))
    >>> result = GraphOptimizer().analyze(graph)
    >>> [found.pattern for found in result.fusion_opportunities], result.dead_nodes
    (['element-wise chain'], (1,))
    >>> len(GraphOptimizer().optimize(graph).graph)
    4
    """

    def __init__(
        self,
        level: OptimizationLevel = OptimizationLevel.AGGRESSIVE,
        *,
        evaluate: Evaluate | None = None,
        model: FusionCostModel | None = None,
    ) -> None:
        self.level = CompilationConfig(level).optimization_level  # which refuses what is no level
        self.evaluate, self.model = evaluate, model or FusionCostModel()

    def optimize(self, graph: EinsumGraph) -> Optimized:
        """Run the passes of the level; the result holds the new graph and prints what each pass did."""
        require_valid(graph)
        return optimize(graph, passes_of(self.level, self.evaluate))

    def analyze(
        self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> OptimizationResult:
        """Return fusions and needless work, with an estimated speedup; a size that is not given counts as 64."""
        fusions = FusionPlanner().find_fusion_opportunities(graph, inputs, sizes=sizes)
        live = set(reachable(graph.nodes, (i for _, i in graph.outputs)))
        dead = tuple(i for i, n in enumerate(graph.nodes) if i not in live and not isinstance(n.op, GIVEN))
        constant = tuple(sorted(constant_nodes(graph) & live))
        known, assumed = concrete(graph, inputs, sizes)
        speedup = 1.0
        if known is not None:
            before = self.model.seconds(lay_out(known).steps)
            better = optimize(known, passes_of(self.level)).graph
            plan = FusionOptimizer(FusionStrategy.AGGRESSIVE, model=self.model).optimize(better)
            speedup = before / max(plan.fused_seconds, self.model.machine.call) if before else 1.0
        return OptimizationResult(tuple(fusions), dead, _redundant(graph, live), constant, speedup, assumed)


def _redundant(graph: EinsumGraph, live: Iterable[int]) -> tuple[int, ...]:
    """Return the nodes that do just what an earlier one does."""
    first: dict[Any, int] = {}
    same: dict[int, int] = {}
    for i in sorted(live):
        op, args = graph.nodes[i].op, [same[a] for a in graph.nodes[i].args]
        if isinstance(op, ops.Elementwise) and FUNCTIONS[op.fn].commutative and op.fn not in ("maximum", "minimum"):
            args.sort()
        same[i] = first.setdefault((op, *args), i)
    return tuple(i for i, n in same.items() if n != i and not isinstance(graph.nodes[i].op, GIVEN))
