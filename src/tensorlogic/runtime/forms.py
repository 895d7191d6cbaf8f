"""The forms in which a plan may run: step by step, on threads, as kernels, as one function; which is fastest, a race decides."""

from __future__ import annotations

import warnings
from functools import partial

from ..backends.base import Backend, NativeBackend
from ..backends.native.support import NativeWarning
from ..plan.build import ExecutionPlan, lay_out
from .limits import available_memory
from .loop import Program, bind, run_alone
from .parallel import on_threads
from .race import Form, Race
from .side import side_by_side

ALONE = "one step after another"


def raced(plan: ExecutionPlan, backend: Backend, threads: int, limit: int | None = None) -> Program:
    """Return the program of a plan with a race between its forms; the first of them is what is shown until one has won.

    Forms that would take more memory than the plan, and more than ``limit`` bytes or half of what is free, stay away.
    """
    forms = []
    most = max(plan.peak_bytes, available_memory() // 2 if limit is None else limit)
    if any(step.parts for step in plan.steps):
        forms.append(_whole(plan, backend) or _form("native", bind(plan, backend)))
        if isinstance(backend, NativeBackend):
            forms += side_by_side(forms[0].program, backend, most)
        plan = lay_out(plan.graph, in_place=True)
    apart = bind(plan, backend)
    if plan.peak_bytes <= most:
        forms.append(_form(ALONE, apart))
    if threads > 1:
        separate = lay_out(plan.graph)
        chains = on_threads(bind(separate, backend), threads) if separate.peak_bytes <= most else None
        forms += [chains] if chains is not None else []
    program = forms[0].program
    if len(forms) > 1 or threads > 1 or program is not apart:
        program.team = Race(
            forms, why="no two chains are worth a thread of their own" if threads > 1 else "", finest=apart
        )
    return program


def every_form(plan: ExecutionPlan, backend: NativeBackend) -> list[Form]:
    """Return all forms that a plan can take, whichever would win: for tests, which must not depend on a race."""
    steps = bind(plan, backend)
    one = _whole(plan, backend)
    alone = bind(lay_out(plan.graph, in_place=True), backend)
    return [_form("native", steps), *([one] if one else []), *side_by_side(steps, backend), _form(ALONE, alone)]


def _form(name: str, program: Program) -> Form:
    return Form(name, partial(run_alone, program), program)


def _whole(plan: ExecutionPlan, backend: Backend) -> Form | None:
    """Return a small plan as one function, where that can be made."""
    found = backend.whole(plan.graph) if isinstance(backend, NativeBackend) else None
    if found is None:
        return None
    try:
        return _form("one function", bind(found, backend))
    except Exception as error:  # numba raises anything where it cannot compile
        warnings.warn(f"a graph of {len(plan.steps)} steps runs step by step, because no function could be made of it: "
                      f"{type(error).__name__}: {error}", NativeWarning, stacklevel=2)  # fmt: skip
        return None
