"""A batch on threads: ranges of its index run side by side, and what needs all of them follows, as steps of the same plan.

A training step is of this kind: losses and what comes before them are computed example by example, while gradients of weights add up
over all examples. Each thread takes a range of the batch through all that is done example by example without waiting. What adds up
over the batch is added up within a range and joined, unless it is larger than what it is made of: then it comes after, from whole operands.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet

from ..ir import ops
from ..ir.graph import EinsumGraph
from ..passes.indices import Index
from ..passes.split import Split, parts, split
from .build import ExecutionPlan, Groups, Step, lay_out, node_slots
from .cost import nbytes
from .fused_steps import Cut, Fusable, Fused

TRIED = 8  # inputs that may hold the batch
JOINS = frozenset({"concat", "add", "mean", "multiply", "maximum", "minimum", "or", "and"})
LEAST_SHARE = 0.25  # of the arithmetic that ranges must have, to be worth a plan


def batch_on_threads(
    plan: ExecutionPlan,
    threads: int,
    groups: Callable[[EinsumGraph, AbstractSet[int]], Collection[Fusable]],
    donate: AbstractSet[str],
) -> list[ExecutionPlan]:
    """Return the plan in which ranges of the batch run on threads; nothing where no input holds a batch, or little is done with it.

    ``groups`` are the nodes of a graph that run as one step each, but for some that are taken.
    """
    graph = plan.graph
    cut = _batch_cut(plan, donate)
    if cut is None or cut.size < threads or not all(j.how in JOINS and not j.axis for j in cut.joins):
        return []
    inside = frozenset(i for i in cut.picks if not isinstance(graph.nodes[i].op, ops.Item))
    title = f"{threads} ranges of {cut.place}"

    def own_groups(g: EinsumGraph) -> list[Fusable]:
        return (
            [Fusable(tuple(sorted(inside)), title, "ranges"), *groups(g, inside)]
            if g is graph
            else [*groups(g, frozenset())]
        )

    whole = lay_out(graph, in_place=True, groups=own_groups, threads=lambda: threads, donate=donate)
    steps = [
        _bound(step, cut, graph, threads, lambda g: [*groups(g, frozenset())]) if _is_ranges(step) else step
        for step in whole.steps
    ]
    if None in steps or not any(_is_ranges(step) for step in whole.steps):
        return []
    return [
        whole._replace(
            steps=tuple(s for s in steps if s is not None), name=f"native steps, {title} on {threads} threads"
        )
    ]


def _is_ranges(step: Step) -> bool:
    return isinstance(step.op, Fused) and step.op.kind == "ranges"


def _batch_cut(plan: ExecutionPlan, donate: AbstractSet[str]) -> Split | None:
    """Return the graph cut along the first axis of the input that most of the arithmetic follows from."""
    graph = plan.graph
    flops = {part.node: part.flops for step in plan.steps for part in step.parts or (step,)}
    types = graph.inference.types

    def comes_after(i: int, pick: Index) -> bool:
        if not pick.how:
            return False
        return sum(map(nbytes, types[i])) > sum(nbytes(types[a][0]) for a in graph.nodes[i].args)

    best: tuple[int, Split] | None = None
    names = [name for name, i in graph.inputs.items() if name not in donate and graph.type_of(i).shape][:TRIED]
    for name in names:
        cut = split(graph, name, 0, comes_after=comes_after)
        share = 0 if cut is None else sum(flops.get(i, 0) for i in cut.picks)
        if cut is not None and (best is None or share > best[0]):
            best = share, cut
    return None if best is None or best[0] < LEAST_SHARE * plan.flops else best[1]


def _bound(step: Step, cut: Split, graph: EinsumGraph, threads: int, groups: Groups) -> Step | None:
    """Give the step of the ranges the plans of a range, what each is fed and how results are joined; None where they do not fit together."""
    slot_of = node_slots(graph)
    place = {slot: n for n, slot in enumerate(step.writes)}
    slots = [slot_of[join.node][0] for join in cut.joins]
    if sorted(slots) != sorted(place):
        return None
    ranges = tuple(parts(cut.size, threads))
    bodies = tuple(lay_out(cut.part(n), in_place=True, groups=groups) for n in dict.fromkeys(map(len, ranges)))
    fed = {feed.label: feed for feed in cut.feeds}
    reads = {slot: n for n, slot in enumerate(step.reads)}
    feeds = tuple((reads[slot_of[fed[name].node][0]], fed[name].axis) for name, _, _ in bodies[0].inputs)
    order = [place[slot] for slot in slots]
    return step._replace(
        writes=tuple(slots),
        types=tuple(step.types[n] for n in order),
        into=tuple(step.into[n] for n in order) if step.into else (),
        parts=(),
        bodies=bodies,
        cut=Cut(ranges, threads, feeds, cut.joins),
        scratch=threads * max(body.peak_bytes for body in bodies),
    )
