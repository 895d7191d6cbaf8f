"""Execution contexts: hooks, deadlines, limits and cancellation for a group of runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ..diagnostics import value_text
from ..errors import CancelledError, DeadlineError, InputError, expect, expect_whole
from ..events import ExecutionPhase, Hook, RunRecord, active_contexts, entered_contexts, running, span, watchers
from ..store import Lock

if TYPE_CHECKING:
    from .program import Program

T = TypeVar("T")
_counting = Lock()  # of what runs use


def context_room(contexts: Iterable[ExecutionContext]) -> int | None:
    """Return the bytes that a run in these contexts may take, or None where none of them has a limit."""
    return min((c.memory_limit for c in contexts if c.memory_limit is not None), default=None)


class ExecutionContext:
    """Settings shared by a group of runs: hooks, a deadline, limits of memory and arithmetic, labels; it can cancel them all.

    Give it to an executor, and it holds for all its runs; or enter it, and it holds for every run of this thread or task meanwhile,
    in every mode: batches, streams, retries, programs and what they start themselves. Contexts add up: the earliest deadline counts,
    and cancelling any of them stops the run before its next step.

    >>> context = ExecutionContext(timeout=60, labels={"request": "17"})
    >>> context.cancel("the client left")
    >>> from tensorlogic import CancelledError, Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.exp(b.input("x", (3,))))
    >>> try:
    ...     with context:
    ...         Executor().execute(graph, {"x": [1.0, 2.0, 3.0]})
    ... except CancelledError as error:
    ...     print(error.diagnostic.message)
    the run was cancelled while it was being planned: the client left

    ``timeout`` counts seconds from now; ``deadline`` is a reading of the ``clock``. ``memory_limit`` bounds the bytes of one run,
    ``flops_limit`` the planned arithmetic of all runs together. In a trace, what ran under ``labels`` stands inside a span that
    they name.
    """

    def __init__(
        self,
        hooks: Sequence[Hook] = (),
        *,
        timeout: float | timedelta | None = None,
        deadline: float | None = None,
        memory_limit: int | None = None,
        flops_limit: int | None = None,
        labels: Mapping[str, str] | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if type(hooks) is not tuple:
            expect(hooks, Sequence, "hooks are given as a list", "write ExecutionContext([hook])")
        self.hooks: list[Hook] = []
        for hook in hooks:
            self.add_hook(hook)
        for name, value in (("memory_limit", memory_limit), ("flops_limit", flops_limit)):
            if value is not None:
                expect_whole(name, value)
        if labels is not None:
            expect(labels, Mapping, "labels are a mapping of names to text", 'write labels={"request": "17"}')
        if deadline is not None and (
            isinstance(deadline, bool) or not isinstance(deadline, int | float) or deadline != deadline
        ):
            hint = "write timeout=2.5 for seconds from now"
            raise InputError(
                f"a deadline is a reading of the clock, a number, got {value_text(deadline)}", hint, code="E983"
            )
        expect(clock, Callable, "a clock is a function of no arguments", "write clock=time.monotonic")  # type: ignore[arg-type]
        self.clock, self.labels = clock, dict(labels or {})
        self.memory_limit, self.flops_limit, self.flops_used = memory_limit, flops_limit, 0
        ends = [] if deadline is None else [deadline]
        if timeout is not None:
            ends.append(clock() + seconds(timeout, "timeout"))
        self.deadline = min(ends, default=None)
        self.reason: str | None = None  # why it was cancelled
        # whether the runs of its executor look at this context; a context that nobody asked for is not looked at before it is cancelled
        self.entered = True
        self.phase: ExecutionPhase | None = None

    @property
    def cancelled(self) -> bool:
        """Whether runs were told to stop."""
        return self.reason is not None

    def cancel(self, reason: str = "cancel() was called") -> None:
        """Stop every run before its next step; safe from any thread and from a signal handler."""
        self.reason, self.entered = str(reason), True  # None would not be told from a context that nobody cancelled

    def remaining(self) -> float | None:
        """Return the seconds that are left, not below 0; None without a deadline."""
        return None if self.deadline is None else max(0.0, self.deadline - self.clock())

    def check(self, where: str = "") -> None:
        """Raise the error that stops a run, where it was cancelled or is over its time; ``where`` completes the message."""
        if self.reason is not None:
            raise CancelledError(f"the run was cancelled{where}: {self.reason}", code="E980")
        if self.deadline is not None and (late := self.clock() - self.deadline) >= 0:
            hint = (
                "give it more time: ExecutionContext(timeout=seconds), or AsyncConfig(timeout=seconds) of an async call"
            )
            raise DeadlineError(f"the run was stopped{where}: its time was over {late:.3g} s ago", hint, code="E981")

    def admit(self, program: Program) -> None:
        """Refuse what comes too late, or takes more memory or arithmetic than is left; count the arithmetic of what is run."""
        if self.reason is not None or self.deadline is not None:
            self.check()
        if self.memory_limit is not None and program.peak_bytes > self.memory_limit:
            from ..plan.memory import check_memory

            check_memory(program.plan, self.memory_limit)
        if self.flops_limit is None:
            return
        flops = program.flops
        with _counting:
            left = self.flops_limit - self.flops_used
            if flops > left:
                what = f"the run takes {flops:,} flops, and {left:,} of {self.flops_limit:,} are left"
                raise InputError(what, "raise flops_limit= of the context, or run less", code="E982")
            self.flops_used += flops

    def __enter__(self) -> Self:
        entered_contexts.set((*entered_contexts.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        active = list(entered_contexts.get())
        if self in active:  # a generator may be closed by another task than the one that ran it
            del active[len(active) - 1 - active[::-1].index(self)]
            entered_contexts.set(tuple(active))

    def add_hook(self, hook: Hook) -> None:
        """Attach one more hook."""
        expect(hook, Hook, "a hook derives from tensorlogic.Hook", "give an instance, such as LoggingHook()")
        self.hooks.append(hook)

    def remove_hook(self, hook: Hook) -> None:
        """Detach a hook."""
        if hook not in self.hooks:
            raise InputError(f"{value_text(hook)} is not attached", code="E930")
        self.hooks.remove(hook)

    def notify(self, phase: ExecutionPhase) -> None:
        """Enter a phase and tell every hook."""
        self.phase = phase
        for hook in self.hooks:
            hook.on_phase(phase)


def contexts_to_join(own: ExecutionContext) -> tuple[ExecutionContext, ...] | None:
    """Return what a run has to keep to, where that is more than this thread knows of; else None."""
    active, around = running.contexts, entered_contexts.get()
    if not around or around is active:
        return (*active, own) if own.entered and own not in active else None
    if not active and not own.entered:
        return around
    found = tuple(dict.fromkeys((*active, *around, own) if own.entered else (*active, *around)))
    return None if len(found) == len(active) else found


def hooks_around(own: ExecutionContext, profiles: Sequence[Hook]) -> tuple[Hook, ...]:
    """Return those who watch the runs of an executor now: in its own context and in those around it, profiles and all who watch everything."""
    active = running.contexts
    if not entered_contexts.get() and (not active or (len(active) == 1 and active[0] is own)):
        return (*own.hooks, *profiles, *watchers())
    around = [hook for context in active_contexts() for hook in context.hooks]
    return tuple(dict.fromkeys((*own.hooks, *around, *profiles, *watchers())))


def in_contexts(own: ExecutionContext, function: Callable[[], T]) -> T:
    """Return what a function does while its runs keep to an executor's own context and to those entered around it."""
    contexts = contexts_to_join(own) if own.entered or entered_contexts.get() else None
    return function() if contexts is None else joined(contexts, own.hooks, function)


def joined(contexts: tuple[ExecutionContext, ...], hooks: Sequence[Hook], function: Callable[[], T]) -> T:
    """Return what a function does while runs on this thread keep to contexts, inside a span that their labels name."""
    known = running.contexts
    labels = ", ".join(
        [f"{name}={text}" for c in contexts if c.labels and c not in known for name, text in c.labels.items()]
    )
    try:
        running.contexts = contexts
        if not labels:
            return function()
        with span(labels, hooks):
            return function()
    finally:
        running.contexts = known


def seconds(value: float | timedelta, name: str) -> float:
    """Return a stretch of time in seconds.

    >>> seconds(timedelta(milliseconds=250), "timeout")
    0.25
    """
    found = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(found, bool) or not isinstance(found, int | float) or not found >= 0:
        hint = "write 2.5 or timedelta(seconds=2.5)"
        raise InputError(
            f"{name} must be seconds, 0 or more, or a timedelta, got {value_text(value)}", hint, code="E983"
        )
    return float(found) if found <= sys.float_info.max else math.inf


class Profiles:
    """The trace of the latest profile and, while it grows, the same among the hooks; shared with executors made from one."""

    __slots__ = ("hooks", "policies", "trace")

    def __init__(self) -> None:
        self.trace: Any = None
        self.hooks: tuple[Hook, ...] = ()
        self.policies: set[str] = set()  # of the executors whose runs are in it


class LoggingHook(Hook):
    """Writes phases and a line per run to the log of the package, or to any function of a string.

    >>> LoggingHook(print).on_phase(ExecutionPhase.COMPLETE)
    phase: complete
    """

    def __init__(self, write: object = None) -> None:
        if not callable(write):
            import logging  # loaded by those who log

            write = logging.getLogger("tensorlogic").info
        self._write = write

    def on_phase(self, phase: ExecutionPhase) -> None:
        """Write the phase."""
        self._write(f"phase: {phase.value}")

    def on_run(self, record: RunRecord) -> None:
        """Write how many steps ran and how long they took; rounds of a body are part of the run around them."""
        if record.body:
            return
        total = sum(e.duration_ns for e in record)
        self._write(f"run: {len(record)} steps in {total / 1e6:.3f} ms")
