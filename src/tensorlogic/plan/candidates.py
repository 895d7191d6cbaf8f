"""The plans that a graph with known sizes can have: complete ones, of which one is chosen before the caller's runs.

Where several ways compete they are several plans: steps on NumPy, native steps, one native function, ranges of an index side by
side on threads, chains of steps side by side. Each prints as what it is, and runs as it prints.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING

from ..ir import ops
from ..ir.graph import EinsumGraph
from ..ir.types import TensorShape, TensorType
from .build import ExecutionPlan, Groups, Step, freed, lay_out
from .cost import nbytes
from .fused_steps import Fusable, Fused
from .groups import Facts, find_groups
from .memory import lighter
from .printing import STEPWISE
from .row_groups import single_rows

if TYPE_CHECKING:
    from ..passes.split import Split

LEAST = 2_000_000  # arithmetic operations and bytes below which threads are not worth waking
CACHED = 1 << 20  # bytes of results in one range that stay near a core
CHAIN = 1_000_000  # flops and bytes below which a chain of steps is not worth a thread of its own
MOST_NODES = 2000  # of a graph that becomes one function
FEW_NODES = 300  # of one that is tried as one function before anything else is planned
LEAST_CALLS = 4  # steps of a tiny plan
COST_OF_A_CALL = 256  # flops and bytes that take less time than the call of a step
ONE_FUNCTION = "one function"


def candidates(
    graph: EinsumGraph,
    facts: Facts | None,
    *,
    policy: str = "exact",
    in_place: bool = True,
    chains: int = 1,
    room: int | None = None,
    donate: Iterable[str] = (),
    reorder: bool = True,
    without: frozenset[object] = frozenset(),
    sparse: Mapping[str, TensorType] | None = None,
) -> list[ExecutionPlan]:
    """Return the plans of a graph, the one that is thought best first; the first takes the least memory that is known.

    ``chains`` is the number of threads that independent chains of steps may run on. Plans that take more than ``room`` bytes, and more
    than the first, are left out. ``without`` names groups (as :func:`group_key` does) of which no kernel could be made. ``sparse``
    has the types of inputs that are relations; such a graph has one plan.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> [plan.name for plan in candidates(b.build(y=b.relu(b.input("x", (2, 3), "float32"))), None)]
    ['one step after another']
    """

    def groups(policy: str) -> Groups | None:
        return None if facts is None else partial(_groups, facts=facts, policy=policy, without=without)

    pool = None if facts is None else facts.threads

    def laid_out(policy: str) -> Callable[[EinsumGraph], ExecutionPlan]:
        return partial(lay_out, in_place=in_place, groups=groups(policy), threads=pool, donate=frozenset(donate))

    if sparse and facts is not None:
        from .relational import relational_plan

        others = partial(_groups, facts=facts, policy=policy, without=without)
        return [relational_plan(graph, sparse, others, in_place=in_place, threads=facts.threads)]
    whole = policy == "fast" and not donate and facts is not None and ONE_FUNCTION not in without
    if whole and facts is not None and len(graph.nodes) <= FEW_NODES and facts.usable():
        plans = one_function(graph, facts)
        if plans and _is_tiny(plans[0]):
            return plans
    first = laid_out(policy)(graph)
    if reorder:  # a saved plan has its order, and needs none of the passes
        first = lighter(first, laid_out(policy))
    if policy == "adaptive" and facts is not None:
        first = _with_products_of(laid_out("exact")(first.graph), first)
    plans = [first]
    if policy != "exact" and facts is not None and any(step.parts for step in first.steps):
        if whole:
            plans = [*one_function(first.graph, facts), *plans][:1]
        if policy == "fast" and not donate:
            plans += side_by_side(first, facts, without)
        if policy == "fast" and len(plans) == 1 and _worth_threads(first) and (threads := facts.threads()) > 1:
            from .batch_ranges import batch_on_threads

            if any(step.threads and step.kernel == "matmul" for step in first.steps):
                alone = lay_out(first.graph, in_place=in_place, groups=groups(policy), donate=frozenset(donate))
                plans.append(alone._replace(name="native steps, threads of BLAS"))
            fast = partial(_groups, facts=facts, policy="fast", without=without)
            ranges = batch_on_threads(first, threads, fast, frozenset(donate))
            # what is donated is written over
            plans += [plan for plan in ranges if len(plan.donors) == len(first.donors)]
        plans.append(laid_out("exact")(first.graph))
    if chains > 1:
        plans += _chains(lay_out(first.graph, groups=groups("exact"), threads=pool), chains)
    if room is None or len(plans) == 1:
        return plans
    most = max(plans[0].peak_bytes, room)
    return [plan for plan in plans if plan.peak_bytes <= most]


def _groups(
    graph: EinsumGraph, taken: AbstractSet[int] = frozenset(), *, facts: Facts, policy: str, without: frozenset[object]
) -> Sequence[Fusable]:
    found = find_groups(graph, facts, policy, taken)
    return [g for g in found if not without or group_key((i, graph.nodes[i].op) for i in g.nodes) not in without]


def group_key(nodes: Iterable[tuple[int, ops.Op]]) -> object:
    """Return what a group is known by: its nodes and their operations."""
    return tuple(nodes)


def one_function(graph: EinsumGraph, facts: Facts) -> list[ExecutionPlan]:
    """Return the plan of a small graph that is one step, which runs as one function; nothing where it is not small or cannot be one."""
    if len(graph.nodes) > MOST_NODES:
        return []
    inner = lay_out(graph, groups=lambda graph: single_rows(graph, facts.runs_in_rows))
    literal = {slot for slot, op in inner.constants if isinstance(op, ops.Literal)}
    held = [(slot, op) for slot, op in inner.constants if isinstance(op, ops.Constant)]
    reads = [slot for _, slot, _ in inner.inputs] + [slot for slot, _ in held]
    writes = [slot for _, slot, _ in inner.outputs]
    found = facts.function(inner, reads)
    if found is None or len(set(writes)) < len(writes) or set(writes) & (set(reads) | literal):
        return []  # an output that is another, or an input
    text, numbers, scratch = found
    types = [t for _, _, t in inner.inputs] + [TensorType(TensorShape(op.shape), op.dtype) for _, op in held]
    results = [t for _, _, t in inner.outputs]
    step = inner.steps[-1]._replace(
        op=Fused(ONE_FUNCTION, sum(len(s.parts) or 1 for s in inner.steps), "whole", (), text, numbers),
        reads=tuple(reads),
        writes=tuple(writes),
        frees=(),
        arg_types=tuple(types),
        types=tuple(results),
        flops=inner.flops,
        nbytes=sum(map(nbytes, results)),
        contraction=None,
        bodies=(),
        parts=inner.steps,
        scratch=scratch,
    )
    return [inner._replace(steps=(step,), buffers=(), shared=frozenset(), name=ONE_FUNCTION, exact=False)]


def _is_tiny(plan: ExecutionPlan) -> bool:
    """Tell whether the calls of steps would take longer than what they compute, so that one function need not be measured against them."""
    [step] = plan.steps
    calls = sum(len(s.parts) or 1 for s in step.parts)
    many = calls >= max(LEAST_CALLS, len(step.reads) + len(step.writes))
    return many and step.flops + step.nbytes <= COST_OF_A_CALL * calls


def _with_products_of(exact: ExecutionPlan, plan: ExecutionPlan) -> ExecutionPlan:
    """Return a plan with matrix products on as many threads as in the exact one: how many share a product decides how it rounds.

    Where they are those of BLAS, which spin after a product, row kernels keep to one.
    """
    like = {part.node: part for step in exact.steps for part in (step, *step.parts)}
    steps = []
    for step in plan.steps:
        own = like.get(step.node)
        if own is not None and step.bodies and len(own.bodies) == len(step.bodies):
            bodies = zip(own.bodies, step.bodies, strict=True)
            step = step._replace(bodies=tuple(_with_products_of(*pair) for pair in bodies))
        if own is not None and step.kernel == "matmul":
            step = step._replace(threads=own.threads)
        steps.append(step)
    if any(step.kernel == "matmul" and not step.threads for step in steps):
        rows = [isinstance(step.op, Fused) and step.op.kind == "rows" for step in steps]
        steps = [step._replace(threads=0) if row else step for step, row in zip(steps, rows, strict=True)]
    return plan._replace(steps=tuple(steps))


def _worth_threads(plan: ExecutionPlan) -> bool:
    return plan.flops + sum(step.nbytes for step in plan.steps) >= LEAST


def side_by_side(plan: ExecutionPlan, facts: Facts, without: frozenset[object] = frozenset()) -> list[ExecutionPlan]:
    """Return plans in which ranges of an index run on threads: one range a thread, or several that fit the cache.

    Nothing waits between the steps of a range, what it works on is smaller, and BLAS keeps to one thread meanwhile.
    """
    moved = sum(step.nbytes for step in plan.steps)
    if not _worth_threads(plan) or not plan.outputs or (threads := facts.threads()) < 2:
        return []
    cut = _cut_of_all(plan.graph)
    if cut is None or cut.size < threads:
        return []
    counts = {threads}
    more = threads * math.ceil(moved / CACHED / threads)
    if more > threads and cut.size >= more and len(plan.steps) > 1:
        counts.add(min(more, threads * 8))
    groups = partial(_groups, facts=facts, policy="fast", without=without)
    return [_ranges(plan, cut, threads, count, groups) for count in sorted(counts)]


def _cut_of_all(graph: EinsumGraph) -> Split | None:
    """Return a graph cut along the first axis of an input, where every output has that index first and nothing else is needed."""
    from ..passes.split import split

    tried = 0
    for name, node in graph.inputs.items():
        if not graph.type_of(node).shape or tried == 4:
            continue
        tried += 1
        cut = split(graph, name, 0)
        if cut is None or any(j.how != "concat" or j.axis != 0 for j in cut.joins) or any(f.axis for f in cut.feeds):
            continue
        given = all(isinstance(cut.graph.nodes[f.node].op, ops.Input | ops.Constant) for f in cut.feeds)
        if given and all(stage == "join" for _, stage, _ in cut.outputs):
            return cut
    return None


def _ranges(plan: ExecutionPlan, cut: Split, threads: int, count: int, groups: Groups) -> ExecutionPlan:
    """Return the plan whose one step runs ranges of an index on threads, each by a plan of its own."""
    from ..passes.split import parts
    from .nested import nested_plan

    lengths = dict.fromkeys(map(len, parts(cut.size, count)))
    bodies = [lay_out(cut.part(n), in_place=True, groups=groups) for n in lengths]  # each on the thread it is given
    return nested_plan(cut, count, bodies, threads=threads, flops=plan.flops)


def _chains(plan: ExecutionPlan, threads: int) -> list[ExecutionPlan]:
    """Return the plan in which chains of steps that do not wait for each other run on threads; nothing where none are worth one."""
    from .schedule import Scheduler, SchedulingStrategy

    place = {part.node: n for n, step in enumerate(plan.steps) for part in step.parts or (step,)}
    chain_of: dict[int, int] = {}  # of each step, by number, the chain it runs in
    groups: list[list[list[Step]]] = []
    for group in Scheduler(SchedulingStrategy.CostBased(CHAIN)).schedule(plan.graph).chains:
        chains: list[list[Step]] = []
        for nodes in group:
            numbers = [n for n in dict.fromkeys(place[i] for i in nodes if i in place) if n not in chain_of]
            chain_of |= dict.fromkeys(numbers, len(chain_of))
            chains += [[plan.steps[n] for n in numbers]] if numbers else []
        groups += [chains] if chains else []
    if not any(len(group) > 1 for group in groups):
        return []
    outputs = {slot for _, slot, _ in plan.outputs}
    readers: dict[int, set[int]] = {}
    for n, step in enumerate(plan.steps):
        for slot in step.reads:
            readers.setdefault(slot, set()).add(chain_of[n])
    number = {id(step): chain_of[n] for n, step in enumerate(plan.steps)}
    steps: list[Step] = []
    for chains in groups:
        if len(chains) == 1:
            steps += chains[0]
            continue
        inner = []
        for steps_of_chain in chains:
            chain = [step._replace(threads=0) for step in steps_of_chain]  # each on the thread it is given
            written = {slot for step in chain for slot in step.writes}
            inner.append(
                subplan(
                    plan,
                    chain,
                    {s for s in written if s in outputs or readers.get(s, set()) - {number[id(steps_of_chain[0])]}},
                )
            )
        steps.append(_chains_step(inner, threads))
    kept = {slot for _, slot, _ in (*plan.inputs, *plan.outputs)} | {slot for slot, _ in plan.constants}
    alone = freed([step._replace(frees=()) for step in steps], kept)
    return [plan._replace(steps=tuple(alone), name=f"chains on {threads} threads")]


def _chains_step(plans: Sequence[ExecutionPlan], threads: int) -> Step:
    reads = dict.fromkeys(slot for plan in plans for _, slot, _ in plan.inputs)
    types = {slot: t for plan in plans for _, slot, t in (*plan.inputs, *plan.outputs)}
    writes = [slot for plan in plans for _, slot, _ in plan.outputs]
    last = plans[-1].steps[-1]
    return Step(
        node=last.node,
        op=Fused(f"{len(plans)} chains", sum(len(p.steps) for p in plans), "chains"),
        reads=tuple(reads),
        writes=tuple(writes),
        frees=(),
        arg_types=tuple(types[s] for s in reads),
        types=tuple(types[s] for s in writes),
        flops=sum(p.flops for p in plans),
        nbytes=sum(nbytes(types[s]) for s in writes),
        device=last.device,
        location=None,
        bodies=tuple(plans),
        threads=threads,
        scratch=sum(p.peak_bytes for p in plans),
    )


def subplan(plan: ExecutionPlan, steps: Sequence[Step], wanted: Iterable[int]) -> ExecutionPlan:
    """Return some steps of a plan as a plan of their own, over the same slots: it takes what they read and gives what is wanted."""
    written = {slot: t for s in steps for slot, t in zip(s.writes, s.types, strict=True)}
    read = {slot: t for s in steps for slot, t in zip(s.reads, s.arg_types, strict=True)}
    fixed, names = dict(plan.constants), plan.slot_names()
    inputs = tuple((names[s], s, t) for s, t in read.items() if s not in written and s not in fixed)
    needed = frozenset(wanted)
    outputs = tuple((names[s], s, t) for s, t in written.items() if s in needed)
    kept = {s for _, s, _ in (*inputs, *outputs)} | fixed.keys()
    constants = tuple((s, op) for s, op in plan.constants if s in read)
    alone = tuple(freed([s._replace(frees=()) for s in steps], kept))
    return plan._replace(
        inputs=inputs, outputs=outputs, constants=constants, steps=alone, shared=frozenset(), buffers=(), name=STEPWISE
    )
