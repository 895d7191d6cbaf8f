"""Limits: a plan that would take more arithmetic than is allowed is refused before it runs."""

from __future__ import annotations

from collections.abc import Iterator

from ..diagnostics import count_text
from ..errors import InputError
from ..ir.graph import Fixpoint
from .build import ExecutionPlan, Step
from .cost import LARGEST, rounds
from .printing import describe


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
    types, repeated = ", ".join(map(str, heaviest.types)), f", {times:,} times" if times != 1 else ""
    context = [
        f"Over by {count_text(needed - limit)} flops, {min(needed, LARGEST) / max(limit, 1):,.1f} times the limit",
        f"The heaviest step is {describe(heaviest.op)}, which makes {types}: {count_text(heaviest.flops)} flops{repeated}, "
        f"{100 * heaviest.flops * times / needed:.0f}% of all",
    ]
    if any(isinstance(step.op, Fixpoint) for step, _ in every):
        context.append("A fixpoint counts one round, because only running tells how many there are")
    raise InputError(
        f"The plan takes {count_text(needed)} flops, the limit is {count_text(limit)}",
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
