"""Parallel steps: chains that do not wait for each other run on threads.

A plan that runs so has no buffers in common, and BLAS keeps to one thread while several chains run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import copy_context
from functools import partial
from typing import Any

from ..backends.threads import on_one_thread, together
from ..plan.build import ExecutionPlan
from ..plan.schedule import Scheduler, SchedulingStrategy
from .loop import Program, run_entries
from .race import Form

COST = 1_000_000  # flops and bytes below which a chain is not worth a thread of its own

Chains = tuple[tuple[int, ...], ...]  # steps, by number


def chains_of(plan: ExecutionPlan) -> list[Chains]:
    """Return the groups of a plan, each cut into chains of steps that may run at the same time."""
    place = {step.node: n for n, step in enumerate(plan.steps)}
    schedule = Scheduler(SchedulingStrategy.CostBased(COST)).schedule(plan.graph)
    groups = [
        tuple(tuple(place[i] for i in chain if i in place) for chain in group) for group in schedule.chains
    ]  # fmt: skip
    return [tuple(chain for chain in group if chain) for group in groups]


def on_threads(apart: Program, threads: int) -> Form | None:
    """Return the form that runs chains of a program on threads, or None where no two are worth a thread of their own.

    ``apart`` is bound without buffers, so that steps may run in any order that respects what they read.
    """
    groups = [g for g in chains_of(apart.plan) if g]
    if threads < 2 or not any(len(group) > 1 for group in groups):
        return None
    run = on_one_thread(partial(_run, apart, groups, threads))
    return Form(f"chains on {threads} threads", lambda inputs, out: run(inputs), apart)


def _run(program: Program, groups: Sequence[Chains], threads: int, inputs: Sequence[Any]) -> tuple[Any, ...]:
    slots = program.template.copy()
    for (_, slot, _), value in zip(program.plan.inputs, inputs, strict=True):
        slots[slot] = value
    own = copy_context() if program.context is None else program.context.copy()
    for group in groups:
        together([partial(own.copy().run, run_entries, program, slots, chain) for chain in group], threads)
        for chain in group:
            for n in chain:
                for slot in program.bound[n].frees:
                    slots[slot] = None
    return tuple([slots[slot] for slot in program.outputs])
