"""The pipeline: the levels of optimization, which passes run at each, and what they did; every pass is named, timed and checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import msgspec

from ..errors import CancelledError, GraphError, TensorLogicError, expect
from ..events import Hook, check_contexts, span
from ..ir.check import require_valid
from ..ir.graph import EinsumGraph, Node, bodies, with_bodies
from ..ir.ops import Einsum, Input, Op, Reduce
from ..tables import table
from .merge import merge_einsums, stack_products, waits_for_sizes
from .rewrite import Pass, drop_dead, merge_equal
from .simplify import Evaluate, fold_constants, simplify


class OptimizationLevel(Enum):
    """How much is done to a graph before it runs.

    Up to STANDARD every value is computed as it is written, so answers stay the same bit for bit; only a sum or product of
    numbers that now lie otherwise in memory may round otherwise. AGGRESSIVE reorders contractions: answers agree to rounding.

    >>> [level.name for level in OptimizationLevel]
    ['NONE', 'BASIC', 'STANDARD', 'AGGRESSIVE']
    """

    NONE = 0
    BASIC = 1
    STANDARD = 2
    AGGRESSIVE = 3


class CompilationConfig(msgspec.Struct, frozen=True):
    """What is done to a graph before it runs.

    >>> config = CompilationConfig().with_optimization_level(OptimizationLevel.AGGRESSIVE).with_fusion_enabled(False)
    >>> config.optimization_level.name, config.fusion_enabled
    ('AGGRESSIVE', False)
    """

    optimization_level: OptimizationLevel = OptimizationLevel.STANDARD
    fusion_enabled: bool = True
    constant_folding: bool = True

    def __post_init__(self) -> None:
        levels = [f"use OptimizationLevel.{each.name}" for each in OptimizationLevel]
        expect(self.optimization_level, OptimizationLevel, "an optimization level is expected", *levels)
        for name in ("fusion_enabled", "constant_folding"):
            expect(getattr(self, name), bool, f"{name} must be True or False")

    def with_optimization_level(self, level: OptimizationLevel) -> CompilationConfig:
        """Return the config at another level."""
        return msgspec.structs.replace(self, optimization_level=level)

    def with_fusion_enabled(self, enabled: bool) -> CompilationConfig:
        """Return the config with or without passes that make several operations one."""
        return msgspec.structs.replace(self, fusion_enabled=enabled)

    def with_constant_folding(self, enabled: bool) -> CompilationConfig:
        """Return the config with or without computing beforehand what needs no input."""
        return msgspec.structs.replace(self, constant_folding=enabled)


LEVELS: dict[OptimizationLevel, tuple[Callable[..., EinsumGraph], ...]] = {
    OptimizationLevel.NONE: (),
    OptimizationLevel.BASIC: (drop_dead,),
    OptimizationLevel.STANDARD: (drop_dead, merge_equal, fold_constants, simplify),
    OptimizationLevel.AGGRESSIVE: (
        drop_dead,
        merge_equal,
        fold_constants,
        simplify,
        merge_einsums,
        stack_products,
        fold_constants,
    ),
}


FUSING = (merge_einsums, stack_products)  # the passes that make several operations one


def passes_of(
    config: CompilationConfig | OptimizationLevel, evaluate: Evaluate | None = None, *, differentiable: bool = True
) -> tuple[Pass, ...]:
    """Return the passes of a config or level; without something to evaluate constants with, they are not folded.

    Nor stacked then: what is stacked would be concatenated anew in each run. A graph that is only run from here on, and so
    need not be ``differentiable``, loses its stops of gradients with what is dead.

    >>> [p.__name__ for p in passes_of(OptimizationLevel.BASIC)]
    ['drop_dead']
    """
    if isinstance(config, OptimizationLevel):
        config = CompilationConfig(config)
    chosen: list[Pass] = []
    folds = evaluate is not None and config.constant_folding
    for p in LEVELS[config.optimization_level]:
        if p in (fold_constants, stack_products) and not folds:
            continue
        if p is fold_constants and evaluate is not None:
            chosen.append(partial(fold_constants, evaluate=evaluate))
        elif p is drop_dead and not differentiable:
            chosen.append(partial(drop_dead, differentiable=False))
        elif config.fusion_enabled or p not in FUSING:
            chosen.append(p)
    return tuple(chosen)


def sized_passes(graph: EinsumGraph, passes: Sequence[Pass]) -> tuple[Pass, ...]:
    """Return those of the passes that a graph went through which may find more to do where its sizes have become numbers.

    There are none unless an operation names a size (a reshape to ``n``), one size has two names, or a contraction waits to be merged.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", ("n", 3), "float32")
    >>> [len(sized_passes(b.build(y=y), passes_of(OptimizationLevel.STANDARD))) for y in (b.exp(x), b.reshape(x, ("n*3",)))]
    [0, 2]
    """
    waiting = [p for p in passes if getattr(p, "func", p) is not drop_dead]
    return tuple(waiting) if _has_named_sizes(graph, merge_einsums in passes) else ()


def _has_named_sizes(graph: EinsumGraph, merges: bool) -> bool:
    """Tell whether the name of a size keeps a pass from doing something."""
    if graph.inference.equalities:
        return True
    for node in graph.nodes:
        if not isinstance(node.op, Input) and any(isinstance(size, str) for size in node.op.sizes()):
            return True
        may_merge = merges and isinstance(node.op, Einsum | Reduce)
        reads_einsum = may_merge and any(isinstance(graph.nodes[a].op, Einsum) for a in node.args)
        if reads_einsum and waits_for_sizes(graph, node.op, node.args):
            return True
        if any(_has_named_sizes(body, merges) for body in bodies(node.op)):
            return True
    return False


class PassReport(NamedTuple):
    """What one pass did.

    >>> PassReport("simplify", 0.001, 10, 7).removed
    3
    """

    name: str
    seconds: float
    nodes_before: int
    nodes_after: int

    @property
    def removed(self) -> int:
        """How many nodes fewer there are."""
        return self.nodes_before - self.nodes_after


def pass_table(reports: Sequence[PassReport]) -> str:
    """Return what passes did as a table."""
    rows = [[r.name, f"{r.seconds * 1e3:.2f}", str(r.nodes_before), str(r.nodes_after)] for r in reports]
    return table(["pass", "ms", "nodes before", "after"], rows, right={1, 2, 3})


class Optimized(NamedTuple):
    """A graph after its passes, and what each of them did. It prints as a table."""

    graph: EinsumGraph
    reports: tuple[PassReport, ...]

    def __str__(self) -> str:
        return pass_table(self.reports)


def optimize(graph: EinsumGraph, passes: Sequence[Pass], hooks: Sequence[Hook] = ()) -> Optimized:
    """Run passes over a graph and the bodies inside it; one that breaks the graph is named.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (3,), "float32")
    >>> done = optimize(b.build(y=-(-x)), passes_of(OptimizationLevel.STANDARD))
    >>> len(done.graph), [r.name for r in done.reports]
    (1, ['drop_dead', 'merge_equal', 'simplify'])
    """
    reports = []
    for p in passes:
        check_contexts(" while it was being planned")
        name = _name(p)
        start = perf_counter()
        with span(f"pass {name}", hooks):
            after = _checked(p, name, graph)
        reports.append(PassReport(name, perf_counter() - start, len(graph.nodes), len(after.nodes)))
        graph = after
    return Optimized(graph, tuple(reports))


def _name(p: Any) -> str:
    return str(getattr(p, "__name__", None) or getattr(getattr(p, "func", p), "__name__", type(p).__name__))


def _checked(p: Pass, name: str, graph: EinsumGraph) -> EinsumGraph:
    """Run one pass on a graph and its bodies and make sure that inputs, outputs and types are as they were."""
    if graph.has_bodies:
        changed = [Node(_with_bodies(node.op, p, name), node.args, node.locations) for node in graph.nodes]
        if any(a.op is not b.op for a, b in zip(changed, graph.nodes, strict=True)):
            inner = EinsumGraph(changed, graph.outputs, graph.constants)
            inner.inference = graph.inference  # each body was checked to have the types it had
            graph = inner
    try:
        after = p(graph)
        if after is graph:
            return graph
        if not isinstance(after, EinsumGraph):
            raise GraphError(f"it returned {type(after).__name__}, not an EinsumGraph", code="E108")
        require_valid(after)
        _compare(graph, after)
    except CancelledError:
        raise
    except TensorLogicError as error:
        raise error.renamed(f"the pass {name} broke the graph: {error.diagnostic.message}") from error
    return after


def _compare(before: EinsumGraph, after: EinsumGraph) -> None:
    for what, old, new in (
        ("input", list(before.inputs.items()), list(after.inputs.items())),
        ("output", before.outputs, after.outputs),
    ):
        names, now = ([name for name, _ in each] for each in (old, new))
        if names != now:
            raise GraphError(f"its {what}s were {names} and are now {now}", code="E108")
        for (name, i), (_, j) in zip(old, new, strict=True):
            if before.type_of(i) != after.type_of(j):
                raise GraphError(f"{what} {name!r} was {before.type_of(i)} and is now {after.type_of(j)}", code="E108")


def _with_bodies(op: Op, p: Pass, name: str) -> Op:
    """Return an operation whose bodies went through a pass; the operation itself where they did not change."""
    after = [_checked(p, name, body) for body in bodies(op)]
    return op if all(a is b for a, b in zip(after, bodies(op), strict=True)) else with_bodies(op, after)
