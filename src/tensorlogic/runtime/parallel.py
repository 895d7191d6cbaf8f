"""Parallel steps: chains that do not wait for each other run on threads, where that was measured to be faster.

A plan that runs so has no buffers in common, and BLAS keeps to one thread while several chains run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

from ..backends.threads import on_one_thread, together
from ..plan.build import ExecutionPlan
from ..plan.schedule import Scheduler, SchedulingStrategy
from .loop import Program, run_alone, run_entries

COST = 1_000_000  # flops and bytes below which a chain is not worth a thread of its own
TRIALS = 5  # timed runs of each kind before one is kept

Chains = tuple[tuple[int, ...], ...]  # steps, by number


def chains_of(plan: ExecutionPlan) -> list[Chains]:
    """Return the groups of a plan, each cut into chains of steps that may run at the same time."""
    place = {step.node: n for n, step in enumerate(plan.steps)}
    schedule = Scheduler(SchedulingStrategy.CostBased(COST)).schedule(plan.graph)
    groups = [
        tuple(tuple(place[i] for i in chain if i in place) for chain in group) for group in schedule.chains
    ]  # fmt: skip
    return [tuple(chain for chain in group if chain) for group in groups]


class ParallelProgram:
    """A program and its parallel form, which race for the first runs; the faster one stays.

    ``apart`` is the same plan bound without buffers, so that steps may run in any order that respects what they read.
    """

    def __init__(
        self, program: Program, apart: Program, threads: int, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.program, self.apart, self.threads = program, apart, threads
        self.groups = [g for g in chains_of(apart.plan) if g]
        self.clock = clock
        self._lock = threading.Lock()
        self._taken: dict[bool, list[float]] = {False: [], True: []}  # parallel or not: seconds
        worth = any(len(group) > 1 for group in self.groups) and threads > 1
        self.parallel: bool | None = None if worth else False  # None while they race

    def run(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """Run whichever is faster; while that is not known, the one that was tried less."""
        chosen = self.parallel
        if chosen is not None:
            return self._together(inputs) if chosen else run_alone(self.program, inputs)
        with self._lock:
            trial = len(self._taken[True]) < len(self._taken[False])
        start = self.clock()
        outputs = self._together(inputs) if trial else run_alone(self.program, inputs)
        with self._lock:
            self._taken[trial].append(self.clock() - start)
            if self.parallel is None and all(len(times) > TRIALS for times in self._taken.values()):
                alone, together = (median(self._taken[kind][1:]) for kind in (False, True))  # the first ones are cold
                self.parallel = together < alone
        return outputs

    def explain(self) -> str:
        """Say which form runs, and why."""
        if self.parallel is None:
            return "not decided yet: both forms are being timed"
        if not all(self._taken.values()):
            return "one step after another: no two chains are worth a thread of their own"
        alone, together = (median(self._taken[kind][1:]) * 1e6 for kind in (False, True))
        which = f"chains on {self.threads} threads" if self.parallel else "one step after another"
        return f"{which}: in order {alone:.1f} µs, on threads {together:.1f} µs"

    def _together(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        return on_one_thread(self._groups)(inputs) if self.groups else run_alone(self.apart, inputs)

    def _groups(self, inputs: Sequence[Any]) -> tuple[Any, ...]:
        program = self.apart
        slots = program.template.copy()
        for (_, slot, _), value in zip(program.plan.inputs, inputs, strict=True):
            slots[slot] = value
        own = copy_context() if program.context is None else program.context.copy()
        for group in self.groups:
            together([partial(own.copy().run, run_entries, program, slots, chain) for chain in group], self.threads)
            for chain in group:
                for n in chain:
                    for slot in program.bound[n].frees:
                        slots[slot] = None
        return tuple([slots[slot] for slot in program.outputs])
