"""The forms in which a plan may run: step by step, chains on threads, kernels; which is fastest, a race decides."""

from __future__ import annotations

from functools import partial

from ..backends.base import Backend
from ..plan.build import lay_out
from .loop import Program, bind, run_alone
from .parallel import on_threads
from .race import Form, Race


def race(program: Program, backend: Backend, threads: int) -> Race:
    """Return a race between a program and its other forms."""
    plan = program.plan
    fused = any(step.parts for step in plan.steps)
    forms = []
    if fused:
        forms.append(Form("native", partial(run_alone, program), program))
        program = bind(lay_out(plan.graph, in_place=True), backend)
    forms.append(Form("one step after another", partial(run_alone, program), program))
    if threads > 1:
        chains = on_threads(bind(lay_out(plan.graph), backend), threads)
        forms += [chains] if chains is not None else []
    return Race(forms, why="no two chains are worth a thread of their own" if threads > 1 else "")
