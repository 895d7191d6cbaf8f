"""Brief calls: a call that takes less time than handing it to a thread runs on the event loop of asyncio itself.

Only calls count as brief whose plan is ready and says that they take microseconds, whatever the values are: no loops, little arithmetic, nobody
who watches. After a stretch the loop sees to everything else before it goes on. Calls that were measured to take less than a millisecond run there too
where they are awaited at once and no other call is under way; several at one time are for threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ...backends.threads import surely
from ...ir.graph import EinsumGraph, bodies
from ...plan.fused_steps import Fused
from ..call import same_again
from .call_queue import AsyncHandle
from .workers import workers

if TYPE_CHECKING:
    from ..executor import Executor
    from ..program import Program

STRETCH = 0.0005  # seconds after which the event loop has its turn
BRIEF = 0.0001  # seconds that a brief call takes at most, by the plan
QUICK, RUNS = 0.001, 3  # seconds, and how many runs in a row must have taken less
STEP, FLOP, BYTE = 3e-6, 2e-9, 5e-10  # seconds, rather too many: the estimate is an upper bound


def is_brief(program: Program) -> bool:
    """Tell whether a program takes microseconds on any values; worked out once."""
    if program.brief is None:
        estimate = len(program.plan.steps) * STEP + program.flops * FLOP + program.peak_bytes * BYTE
        program.brief = estimate <= BRIEF and is_steady(program)
    return program.brief


def is_steady(program: Program) -> bool:
    """Tell whether a program takes as long on any values: it has no loops, and nobody's wrappers."""
    return program.trusted and not any(
        bodies(s.op) or s.bodies or (isinstance(s.op, Fused) and s.op.kind == "relations") for s in program.plan.steps
    )


def short_call(executor: Executor, graph: EinsumGraph, inputs: Any) -> str:
    """Return "brief" or "quick" for a call that is just like the last one of its graph, where its plan or its last runs say so and nobody watches; else ""."""
    ready = executor.last_calls.of(graph)
    if ready is None or same_again(ready, graph, inputs) is None or executor.hooks():
        return ""
    return "brief" if is_brief(ready.program) else "quick" if ready.program.quick_runs >= RUNS else ""


def note_time(executor: Executor, graph: EinsumGraph, handle: AsyncHandle[Any]) -> None:
    """Note how long a call ran, for the next ones like it."""
    ready = executor.last_calls.of(graph)
    if ready is not None and handle.begun_at and not ready.program.brief:
        took, program = handle.ended_at - handle.begun_at, ready.program
        program.quick_runs = (
            program.quick_runs + 1 if took < QUICK and (program.quick_runs or is_steady(program)) else 0
        )


class BriefCalls:
    """The brief calls of one event loop: those that wait, and how long others took since the loop had its last turn."""

    __slots__ = ("_scheduled", "_spent", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[AsyncHandle[Any]] = deque()
        self._scheduled = False
        self._spent = 0.0

    def add(self, handle: AsyncHandle[Any], loop: asyncio.AbstractEventLoop) -> None:
        """Let a call begin in a moment."""
        self._waiting.append(handle)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._stretch)

    def begin(self, handle: AsyncHandle[Any]) -> None:
        """Run a call now, because it is awaited, unless it is the loop's turn first."""
        if self._spent < STRETCH:
            self._run(handle)

    def _stretch(self) -> None:
        self._scheduled, self._spent = False, 0.0
        while self._waiting and self._spent < STRETCH:
            self._run(self._waiting.popleft())
        if self._waiting:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._stretch)

    def _run(self, handle: AsyncHandle[Any]) -> None:
        start, queue = perf_counter(), handle.queue
        try:
            if queue.enter(handle):
                handle.perform(here=True)
                following = queue.after(handle)
                if following is not None:
                    workers.begin(following)
        except BaseException as error:  # an interrupt outside of the work itself
            surely(partial(queue.give_up, handle, error, here=True))
            raise
        self._spent += perf_counter() - start


_loops: WeakKeyDictionary[asyncio.AbstractEventLoop, BriefCalls] = WeakKeyDictionary()


def brief_calls(loop: asyncio.AbstractEventLoop) -> BriefCalls:
    """Return the brief calls of an event loop."""
    found = _loops.get(loop)
    return _loops.setdefault(loop, BriefCalls()) if found is None else found
