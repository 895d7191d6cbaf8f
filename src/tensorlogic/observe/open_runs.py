"""Shared by the debugging hooks: the on/off switch, and the runs that are under way on each thread."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any, NoReturn

from ..events import Hook
from ..ir import ops
from ..plan.build import ExecutionPlan
from ..store import of_one_process


class DebugHook(Hook):
    """A hook that is off until it is enabled; what it knows stays when it is disabled."""

    enabled = False

    def __reduce__(self) -> NoReturn:
        raise of_one_process(f"a hook ({type(self).__name__})", "make one in each process")

    def enable(self) -> None:
        """Watch from now on."""
        self.enabled = True

    def disable(self) -> None:
        """Watch no more; what is known stays."""
        self.enabled = False


class OpenRun:
    """A run, or a round of a body, that is under way on one thread."""

    def __init__(self, plan: ExecutionPlan, around: OpenRun | None) -> None:
        self.plan, self.around = plan, around
        self.step: int | None = None  # whose body it is, in the plan around
        self.round = 0  # of a body, from 1
        self.values: dict[Any, Any] = {}  # what the hook keeps of slots
        self.folder: Path | None = None  # where a recorder writes it
        self.bad: set[int] = set()  # slots that hold a NaN or an infinity
        self.found = False  # something bad was met in it, or in a body of it
        self._rounds: dict[int, int] = {}  # bodies, and how often they ran
        if around is not None:
            places = (n for n, s in enumerate(around.plan.steps) if any(b is plan for b in s.bodies))
            self.step = next(places, None)
            self.round = around._rounds[id(plan)] = around._rounds.get(id(plan), 0) + 1

    def outermost(self) -> OpenRun:
        """Return the run that this is a part of."""
        return self if self.around is None else self.around.outermost()

    def inside(self) -> str:
        """Return the body and round this is, in a few words; nothing for a run itself."""
        if self.around is None or self.step is None:
            return ""
        step = self.around.plan.steps[self.step]
        return f"{self.around.inside()}body of %{step.node}, round {self.round}: "


class OpenRuns(threading.local):
    """The runs of each thread, outermost first; rounds that another hook's error left open are dropped."""

    def __init__(self) -> None:
        self.stack: list[OpenRun] = []
        self.busy = False  # the hook runs something itself, which it does not watch
        self.last: object = None  # what the hook heard just now

    def enter(self, plan: ExecutionPlan, *, body: bool) -> OpenRun:
        """Begin a run, or a round of a body inside the last one; a hook may run other graphs in between."""
        run = OpenRun(plan, self.stack[-1] if body and self.stack else None)
        self.stack.append(run)
        return run

    def find(self, plan: ExecutionPlan) -> OpenRun | None:
        """Return the run of a plan that this thread is in; None where it was not entered."""
        if not any(run.plan is plan for run in self.stack):
            return None
        while self.stack[-1].plan is not plan:
            self.stack.pop()
        return self.stack[-1]

    def leave(self, plan: ExecutionPlan) -> None:
        """End the run of a plan."""
        if self.find(plan) is not None:
            self.stack.pop()


def constant_value(plan: ExecutionPlan, slot: int) -> Any:
    """Return the value of a constant of a plan; None for a slot that holds none."""
    op = dict(plan.constants).get(slot)
    if isinstance(op, ops.Constant):
        return plan.graph.constants[op.digest]
    return op.value if isinstance(op, ops.Literal) else None
