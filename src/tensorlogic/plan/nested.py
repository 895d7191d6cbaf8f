"""Plans whose steps run other plans: ranges of an index one after the other or on threads, and stages around them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from ..ir import ops
from ..ir.types import TensorType, dims
from ..passes.split import Join, Split, label, parts
from .build import ExecutionPlan, Step, freed
from .cost import nbytes, points_of
from .fused_steps import NESTED, Cut, Fused

SMALL_PRODUCT = 50_000_000  # arithmetic operations of a matrix product, well below a millisecond


def nested_plan(
    cut: Split,
    count: int,
    bodies: Sequence[ExecutionPlan],
    before: ExecutionPlan | None = None,
    after: ExecutionPlan | None = None,
    *,
    threads: int = 1,
    name: str = "",
    flops: int | None = None,
) -> ExecutionPlan:
    """Return the plan that runs a cut graph in so many ranges: ``bodies`` are the plans of a range, by length, longest first.

    Ranges write into the arrays of the outputs themselves where they can, on threads always.
    """
    graph, ranges = cut.graph, tuple(parts(cut.size, count))
    types: list[TensorType] = []  # by slot
    slot_of: dict[str, int] = {}
    places: dict[tuple[str, str], int] = {}  # by stage and label
    constants: list[tuple[int, ops.Op]] = []
    shared: set[int] = set()
    steps: list[Step] = []

    def slot(name: str, t: TensorType) -> int:
        if name not in slot_of:
            slot_of[name] = len(types)
            types.append(t)
        return slot_of[name]

    def add(
        op: Fused, reads: Iterable[int], writes: Sequence[int], inner: Sequence[ExecutionPlan], **more: Any
    ) -> None:
        arg_types, own = tuple(types[s] for s in reads), tuple(types[s] for s in writes)
        size, device = sum(map(nbytes, own)), inner[0].steps[-1].device if inner[0].steps else "cpu:0"
        slots: dict[str, Any] = {
            "reads": tuple(reads),
            "writes": tuple(writes),
            "frees": (),
            "arg_types": arg_types,
            "types": own,
        }
        more |= {"nbytes": size, "device": device, "location": None, "bodies": tuple(inner)}
        steps.append(Step(len(graph) - 1, op, **slots, **more))

    def stage(plan: ExecutionPlan | None, name: str) -> None:
        if plan is None or not plan.outputs:
            return
        reads = [slot_of[own] for own, _, _ in plan.inputs]
        writes = []
        for own, at, t in plan.outputs:
            places[name, own] = slot(own if own not in slot_of else f"{name} {own}", t)
            writes.append(places[name, own])
            if at in plan.shared:
                shared.add(writes[-1])
        left = plan.peak_bytes - sum(nbytes(t) for _, _, t in plan.outputs)
        op = Fused(f"{name} the parts", len(plan.steps), "stage")
        add(op, reads, writes, [plan], flops=plan.flops, scratch=max(0, left))

    inputs = tuple((name, slot(name, graph.type_of(i)), graph.type_of(i)) for name, i in graph.inputs.items())
    stage(before, "before")
    reads: dict[int, None] = {}
    feeds = []
    fed = {f.label: f for f in cut.feeds}
    for own, _, _ in bodies[0].inputs:
        op, value = graph.nodes[fed[own].node].op, label(graph, fed[own].node)
        if isinstance(op, ops.Constant) and value not in slot_of:
            constants.append((slot(value, graph.type_of(fed[own].node)), op))
        reads.setdefault(slot_of[value])
        feeds.append((list(reads).index(slot_of[value]), fed[own].axis))
    by_label = {join.label: join for join in cut.joins}
    joins = tuple(by_label[own] for own, _, _ in bodies[0].outputs)
    writes = [places.setdefault(("join", join.label), slot(join.label, join.type)) for join in joins]
    extra = sum(joined_bytes(j, t) - nbytes(j.type) for j, (_, _, t) in zip(joins, bodies[0].outputs, strict=True))
    side = f"{len(ranges)} ranges of {cut.place} on {threads} threads"
    many = threads > 1
    # among all outputs, the first of those that are the same
    place = {own: n for n, (_, kind, own) in reversed(list(enumerate(cut.outputs))) if kind == "join"}
    plain = all(
        join.how == "concat" and join.label in place and t.dtype == join.type.dtype
        for join, (_, _, t) in zip(joins, bodies[0].outputs, strict=True)
    )
    direct = many or (plain and not (before and before.outputs))  # a stage before them would run beside those arrays
    add(
        Fused(side if many else f"{len(ranges)} parts of {cut.place}", len(ranges), "ranges"),
        reads,
        writes,
        bodies,
        flops=bodies[0].flops * len(ranges) if flops is None else flops,
        threads=threads if many else 1 if _has_small_products(bodies) else 0,  # 1 keeps BLAS to one thread
        scratch=extra + threads * max(b.peak_bytes + copied_bytes(cut, b) for b in bodies),
        cut=Cut(ranges, threads, tuple(feeds), joins),
        into=tuple(-1 - place[join.label] for join in joins) if direct else (),
    )
    stage(after, "after")
    ends = zip(graph.outputs, cut.outputs, strict=True)
    outputs = tuple((name, places[kind, own], graph.type_of(i)) for (name, i), (_, kind, own) in ends)
    slots = [s for _, s, _ in outputs]
    shared.update(s for n, s in enumerate(slots) if s in slots[:n])
    held = {s for _, s, _ in (*inputs, *outputs)} | {s for s, _ in constants}
    exact = not many and all(b.exact for s in steps for b in s.bodies) and all(join.how == "concat" for join in joins)
    return ExecutionPlan(
        graph,
        inputs,
        outputs,
        tuple(constants),
        tuple(freed(steps, held)),
        len(types),
        frozenset(shared),
        (),
        name or side,
        exact,
    )


def is_small_product(step: Step) -> bool:
    """Tell whether threads of BLAS, each waiting for the others, may take longer for a product than one does, should a core be busy.

    Of products of many matrices, NumPy gives BLAS one after the other.
    """
    form = step.contraction
    number = points_of(form, form.batch) if form is not None else 1
    return step.kernel == "matmul" and step.flops < SMALL_PRODUCT * max(1, number)


def _has_small_products(bodies: Iterable[ExecutionPlan]) -> bool:
    """Tell whether all matrix products of some plans, of which there are some, are small."""
    products = [step for body in bodies for step in body.steps if step.kernel == "matmul"]
    return bool(products) and all(map(is_small_product, products))


def copied_bytes(cut: Split, body: ExecutionPlan) -> int:
    """Return what a step of a part copies at most of what the part is given: ranges of a later axis are arrays with gaps.

    Machine code reads arrays without gaps; a matrix product does where indices on both sides of a gap become one.
    """
    axes = {feed.label: feed.axis or 0 for feed in cut.feeds}
    gaps = {slot: axes[name] for name, slot, t in body.inputs if math.prod(dims(t)[: axes[name]]) > 1}

    def copies(step: Step, n: int) -> bool:
        axis, form = gaps.get(step.reads[n]), step.contraction
        if axis is None:
            return False
        if isinstance(step.op, Fused):
            return step.op.kind not in NESTED  # bodies have copies of their own
        if form is None:
            return False
        # a gradient is given the result and its cotangent too
        own = (*form.spec.inputs, form.spec.output, form.spec.output)[n]
        before, after = set(own[:axis]), set(own[axis:])
        return any(before & set(group) and after & set(group) for group in (form.left, form.right, form.inner))

    if not gaps:
        return 0
    sums = (sum(nbytes(t) for n, t in enumerate(step.arg_types) if copies(step, n)) for step in body.steps)
    return max(sums, default=0)


def joined_bytes(join: Join, part: TensorType) -> int:
    """Return what a result takes while parts are joined into it: itself, wider where parts are, and a scratch array."""
    wide = nbytes(join.type._replace(dtype=part.dtype))
    return wide + (nbytes(join.type) if part.dtype != join.type.dtype else wide if join.how == "noisy_or" else 0)
