"""Refusing what does not fit in memory, before anything is allocated."""

from __future__ import annotations

import os
from pathlib import Path

from ..diagnostics import MemoryDiagnostic
from ..errors import OutOfMemoryError
from ..plan.build import ExecutionPlan, describe
from ..plan.memory import largest_step


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
    info = Path("/proc/meminfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, _container_memory())
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1 << 62  # nobody can say: leave it to the allocator


def _container_memory() -> int:
    """Return what a container's limit leaves, where there is one."""
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        return max(0, int(text) - int(used.read_text()) + _given_back())
    return 1 << 62


def _given_back() -> int:
    """Return the bytes of files in memory that the system lets go of when somebody asks for more."""
    told = Path("/sys/fs/cgroup/memory.stat")
    lines = told.read_text().splitlines() if told.exists() else []
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)
