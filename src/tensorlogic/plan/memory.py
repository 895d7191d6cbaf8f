"""Memory of a plan: when each slot lives, and the most that is alive at once."""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import Fixpoint
from .build import ExecutionPlan, Step
from .cost import elements, nbytes
from .fused import Fused
from .layout import copying_reshapes


def lifetimes(plan: ExecutionPlan) -> dict[int, tuple[int, int]]:
    """Return, for every slot that a step writes, the first and last step it is alive at.

    A slot whose memory a view still shows lives as long as the view; an output lives to the end.
    """
    spans: dict[int, tuple[int, int]] = {}
    owner: dict[int, int] = {}
    end = len(plan.steps)
    copies = copying_reshapes(plan)
    for n, step in enumerate(plan.steps):
        fresh = step.nbytes > 0 and (n in copies or not isinstance(step.op, ops.Reshape))
        for slot in step.writes:
            source = owner.get(step.reads[0]) if not fresh and step.reads else None
            if source is not None:
                owner[slot] = source
            elif fresh:
                owner[slot] = slot
                spans[slot] = (n, n)
        for slot in (*step.reads, *step.writes):
            if slot in owner:
                spans[owner[slot]] = (spans[owner[slot]][0], n)
    for _, slot, _ in plan.outputs:
        if slot in owner:
            spans[owner[slot]] = (spans[owner[slot]][0], end)
    return spans


def peak_bytes(plan: ExecutionPlan) -> int:
    """Return the most bytes that results of steps and their scratch take at once; inputs and constants are the caller's."""
    size: dict[int, int] = {}
    for step in plan.steps:
        for n, (slot, t) in enumerate(zip(step.writes, step.types, strict=True)):
            size[slot] = nbytes(t) if step.nbytes and not (step.into and step.into[n] is not None) else 0
    change = [0] * (len(plan.steps) + 2)
    for slot, (first, last) in lifetimes(plan).items():
        change[first] += size[slot]
        change[last + 1] -= size[slot]
    made = {-1 - b for s in plan.steps for b in s.into if b is not None and b < 0}  # outputs that wait to be written
    alive = peak = sum(plan.buffers) + sum(nbytes(plan.outputs[k][2]) for k in made)
    for n, step in enumerate(plan.steps):
        alive += change[n]
        peak = max(peak, alive + _inside(step) + step.scratch + _ordering(step))
    kept = alive + change[len(plan.steps)] if plan.steps else 0  # and what copies of shared outputs take
    return max(peak, kept + sum(nbytes(t) for _, slot, t in plan.outputs if slot in plan.shared))


def _ordering(step: Step) -> int:
    """Return what a step takes that sorts places: those of every element, counted from either end, before it has a result."""
    op = step.op
    descending = isinstance(op, ops.TopK) or (isinstance(op, ops.Sort) and op.indices and op.descending)
    return max(0, 16 * elements(step.arg_types[0]) - step.nbytes) if descending else 0


def _inside(step: Step) -> int:
    """Return the most that the bodies of a step take, and what a fixpoint needs between two rounds."""
    if isinstance(step.op, Fused):
        return 0  # what its plans take is part of its scratch memory
    most = max((peak_bytes(body) for body in step.bodies), default=0)
    if isinstance(step.op, Fixpoint):
        state = sum(map(nbytes, step.types))
        bits = max(map(elements, step.types), default=0)  # where a carry stayed as it was, and where it is NaN
        gap = max(map(nbytes, step.types), default=0) if step.op.tolerance else 0
        joined = 0 if step.op.combine == "replace" else state
        most = max(most, sum(step.bodies[0].buffers) + state + max(joined, gap + 2 * bits))
    return most


def largest_step(plan: ExecutionPlan) -> Step | None:
    """Return the step whose results take the most memory."""
    return max(plan.steps, key=lambda s: s.nbytes, default=None)
