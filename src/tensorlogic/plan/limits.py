"""Limits: a plan that would take more memory or arithmetic than there is or than is allowed is refused before it runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..diagnostics import MemoryDiagnostic
from ..errors import InputError, OutOfMemoryError
from ..ir.graph import Fixpoint
from .build import ExecutionPlan, Step, describe
from .cost import rounds
from .memory import largest_step


def check_memory(plan: ExecutionPlan, limit: int | None) -> None:
    """Refuse a plan that would take more memory than there is, before anything is allocated."""
    available = available_memory() if limit is None else limit
    needed = plan.peak_bytes
    if needed <= available:
        return
    found = MemoryDiagnostic.out_of_memory(needed, available)
    step = largest_step(plan)
    if step is not None:
        shapes = ", ".join(str(t) for t in step.types)
        found = found.with_context(f"the largest result is {shapes}, of {describe(step.op)}")
        if step.location is not None:
            found = found.with_location(step.location)
    raise OutOfMemoryError.of(found)


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


def check_flops(plan: ExecutionPlan, limit: int | None) -> None:
    """Refuse a plan whose estimated arithmetic is over a limit; the error names its heaviest step.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> plan = tl.Executor().plan(b.build(y=b.input("x", (8, 8)) @ b.input("w", (8, 8))))
    >>> check_flops(plan, 1024)
    >>> try:
    ...     check_flops(plan, 1000)
    ... except tl.InputError as error:
    ...     print(error.diagnostic.message)
    The plan takes 1,024 flops, the limit is 1,000
    """
    if limit is None or (needed := plan.flops) <= limit:
        return
    every = list(_steps(plan))
    heaviest, times = max(every, key=lambda each: each[0].flops * each[1])
    made, repeated = ", ".join(map(str, heaviest.types)), f", {times:,} times" if times != 1 else ""
    context = [
        f"Over by {needed - limit:,} flops, {needed / max(limit, 1):,.1f} times the limit",
        f"The heaviest step is {describe(heaviest.op)}, which makes {made}: {heaviest.flops:,} flops{repeated}, "
        f"{100 * heaviest.flops * times / needed:.0f}% of all",
    ]
    if any(isinstance(step.op, Fixpoint) for step, _ in every):
        context.append("A fixpoint counts one round, because only running tells how many there are")
    raise InputError(
        f"The plan takes {needed:,} flops, the limit is {limit:,}",
        code="E309",
        context=context,
        suggestions=[
            "Use a smaller batch or smaller inputs",
            "Use Executor(optimization_level=OptimizationLevel.AGGRESSIVE), which orders contractions over whole chains",
            "Raise the limit with Executor(flops_limit=flops)",
        ],
    ).at(heaviest.location)


def _steps(plan: ExecutionPlan, times: int = 1) -> Iterator[tuple[Step, int]]:
    """Yield all steps, those of bodies too, and how often each runs."""
    for step in plan.steps:
        yield step, times
        for body in step.bodies:
            yield from _steps(body, times * (rounds(step.op, step.arg_types) or 1))
