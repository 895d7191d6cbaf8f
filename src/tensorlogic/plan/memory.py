"""Memory of a plan: when each slot lives, the most that is alive at once, and whether that much is there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from ..diagnostics import MemoryDiagnostic
from ..errors import OutOfMemoryError
from ..ir import ops
from ..ir.graph import EinsumGraph, Fixpoint
from .build import ExecutionPlan, Step, describe
from .cost import elements, nbytes
from .fused import Fused

MOST = 20_000  # nodes up to which an order is looked for; it takes about as long as laying out the plan
LEAST = 1 << 20  # bytes at once from which it is worth the time


def lifetimes(plan: ExecutionPlan) -> dict[int, tuple[int, int]]:
    """Return, for every slot that a step writes, the first and last step it is alive at.

    A slot whose memory a view still shows lives as long as the view; an output lives to the end.
    """
    spans: dict[int, tuple[int, int]] = {}
    owner: dict[int, int] = {}
    end = len(plan.steps)
    copies: frozenset[int] = frozenset()
    if any(isinstance(step.op, ops.Reshape) for step in plan.steps):
        from .layout import copying_reshapes

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
    early = {-1 - b for s in plan.steps for b in s.into if b is not None and b < 0}  # outputs that wait to be written
    alive = peak = sum(plan.buffers) + sum(nbytes(plan.outputs[k][2]) for k in early)
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


def check_memory(plan: ExecutionPlan, limit: int | None) -> None:
    """Refuse a plan that would take more memory than there is, before anything is allocated."""
    available = available_memory() if limit is None else limit
    needed = plan.peak_bytes
    if needed <= available:
        return
    found = MemoryDiagnostic.out_of_memory(needed, available, wide=has_wide_types(plan.graph))
    step = largest_step(plan)
    if step is not None:
        shapes = ", ".join(str(t) for t in step.types)
        found = found.with_context(f"the largest result is {shapes}, of {describe(step.op)}")
        if step.location is not None:
            found = found.with_location(step.location)
    raise OutOfMemoryError.of(found)


def has_wide_types(graph: EinsumGraph) -> bool:
    """Tell whether a graph has numbers of eight bytes, which could be narrower."""
    return any(t.dtype in ("float64", "int64", "uint64") for own in graph.inference.types for t in own)


def available_memory() -> int:
    """Return the bytes of memory that are free for use now, swap not counted."""
    free = _number("/proc/meminfo", "MemAvailable:")
    if free is not None:
        return min(free * 1024, _container_memory())
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62  # nobody can say: leave it to the allocator


def _container_memory() -> int:
    """Return what a container's limit leaves, where there is one."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        files = _number("/sys/fs/cgroup/memory.stat", "inactive_file ") or 0  # which the system lets go of when asked
        return max(0, int(text) - int(used.read_text()) + files)
    return 1 << 62


def _number(path: str, word: str) -> int | None:
    """Return the number that a file of the system has in the line of a word."""
    lines = Path(path).read_text().splitlines() if Path(path).exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith(word)), None)


def lighter(plan: ExecutionPlan, lay_out: Callable[[EinsumGraph], ExecutionPlan]) -> ExecutionPlan:
    """Return the plan, or the one that ``lay_out`` makes of the same graph in an order with a smaller peak.

    Both are laid out and compared, so that the answer is never worse; where the new order would take more steps, because
    less of it runs together, the old one stays.
    """
    before = peak_bytes(plan)
    if len(plan.graph.nodes) > MOST or before < LEAST:
        return plan
    from ..passes.pipeline import optimize
    from .schedule import frugal_order

    graph = optimize(plan.graph, (frugal_order,)).graph  # the bodies of loops too
    if graph is plan.graph:
        return plan
    other = lay_out(graph)
    return other if peak_bytes(other) < before and len(other.steps) <= len(plan.steps) else plan
