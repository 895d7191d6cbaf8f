"""What a run tells those who watch: phases, and one event per step.

A hook overrides what it wants to hear of. While no hook is attached nothing is recorded at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from threading import get_ident, local
from time import perf_counter_ns
from typing import Any, NamedTuple

from .errors import expect
from .store import Lock


class ExecutionPhase(Enum):
    """The phases of a run, in order.

    >>> ExecutionPhase.GRAPH_LOAD.value
    'graph load'
    """

    GRAPH_LOAD = "graph load"
    OPTIMIZATION = "optimization"
    PLANNING = "planning"
    COMPILATION = "compilation"
    EXECUTION = "execution"
    COMPLETE = "complete"
    ERROR = "error"


class StepEvent(NamedTuple):
    """One step of a run: which, when it began and ended in nanoseconds of ``time.perf_counter_ns``.

    >>> StepEvent(step=0, start_ns=5, end_ns=9).duration_ns
    4
    """

    step: int
    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        """How long the step took."""
        return self.end_ns - self.start_ns


class RunRecord:
    """The steps of one run: when it began, and when each step ended. It becomes events when it is read.

    A step begins where the one before it ended, so one reading of the clock a step is enough, and the steps of a run add
    up to all of it. Where hooks were called between steps, ``starts`` tells when each step really began.

    >>> [e.duration_ns for e in RunRecord(plan=None, times=[10, 12, 19])]
    [2, 7]
    """

    __slots__ = ("body", "plan", "starts", "thread", "times")

    def __init__(self, plan: Any, times: list[int] | None = None, thread: int = 0, *, body: bool = False) -> None:
        self.plan, self.thread = plan, thread
        self.times = [] if times is None else times
        self.starts: list[int] = []
        self.body = body  # one round of a fixpoint, scan or cond, inside of another run

    def __len__(self) -> int:
        return max(0, len(self.times) - 1)

    def __iter__(self) -> Iterator[StepEvent]:
        times = zip(self.starts or self.times, self.times[1:], strict=False)
        return (StepEvent(n, start, end) for n, (start, end) in enumerate(times))


class Hook:
    """The base of everything that watches; each method does nothing until overridden.

    >>> class Names(Hook):
    ...     def on_step(self, plan, event, values):
    ...         print(plan.steps[event.step].op.name, event.duration_ns >= 0)
    """

    detail: str = "step"  # "op": steps that hold many operations run them one by one, as for those who ask for values
    # whether it may stop a run and look at the frame: what a step read is then not written over
    stops: bool = False

    def on_phase(self, phase: ExecutionPhase) -> None:
        """Called when a run enters a phase."""

    def on_start(self, plan: Any, inputs: Sequence[Any], *, body: bool) -> None:
        """Called before the first step of a run, or of a round of a body inside it, with the values of its inputs."""

    def on_run(self, record: RunRecord) -> None:
        """Called once after a run, with all of its steps; and after each round of a body inside it."""

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Called when a span ends: planning, or one that a user marked."""

    def on_step(self, plan: Any, event: StepEvent, values: tuple[Any, ...]) -> None:
        """Called after each step with its results, which are valid during the call only."""


class _Running(local):
    """What holds on this thread now."""

    hooks: Sequence[Hook] = ()  # of the run that it is in
    listening: tuple[Hook, ...] = ()  # of the spans around
    contexts: tuple[Any, ...] = ()  # that the run it is in keeps to, the outermost first: see ExecutionContext
    ranks: Any = None  # by the name of a group, the way to its other ranks
    frame: Any = None  # of the run whose hooks are called between its steps


running = _Running()
# contexts that were entered by this thread or task: tasks of an event loop share a thread, and must not share contexts. Kernels run in
# contexts of their own, which do not see this variable; that is what running.contexts is for
entered_contexts: ContextVar[tuple[Any, ...]] = ContextVar("tensorlogic_contexts", default=())


def active_contexts() -> tuple[Any, ...]:
    """Return the contexts that hold here: those of the run around, and those that were entered since.

    >>> active_contexts()
    ()
    """
    active, entered = running.contexts, entered_contexts.get()
    if not entered or entered is active:
        return active
    return tuple(dict.fromkeys((*active, *entered)))


def fine(hooks: Iterable[Hook]) -> bool:
    """Tell whether some hooks want to see every operation: they ask for values, or for that detail."""
    for hook in hooks:  # noqa: SIM110 - any() would take longer than a small run can spare
        if hook.detail == "op" or type(hook).on_step is not Hook.on_step:
            return True
    return False


_watchers: tuple[Hook, ...] = ()  # those who watch every run in the process; replaced, never changed in place
_lock = Lock()


def watchers() -> tuple[Hook, ...]:
    """Return the hooks that watch every run in the process."""
    return _watchers


@contextmanager
def watching(hook: Hook) -> Iterator[Hook]:
    """Let a hook watch every run in the process, on every thread, for a while.

    >>> with watching(Hook()) as hook:
    ...     hook in watchers()
    True
    >>> watchers()
    ()
    """
    expect(hook, Hook, "a hook derives from tensorlogic.Hook", "give an instance, such as LoggingHook()")
    global _watchers  # noqa: PLW0603 - the one place where it changes
    try:  # from the start: an interrupt must not leave a hook that watches for ever
        with _lock:
            _watchers = (*_watchers, hook)
        yield hook
    finally:
        interrupt = None
        while hook in _watchers:
            try:
                with _lock:
                    _watchers = tuple(h for h in _watchers if h is not hook)
            except BaseException as error:
                interrupt = error
        if interrupt is not None:
            raise interrupt


@contextmanager
def entered(active: Sequence[Any]) -> Iterator[None]:
    """Let runs on this thread keep to some contexts: those of the thread that hands the work over.

    >>> with entered([]):
    ...     running.contexts
    ()
    """
    around = running.contexts
    try:
        running.contexts = tuple(active)
        yield
    finally:
        running.contexts = around


def check_contexts(where: str = "") -> None:
    """Stop what runs here where it was cancelled or is over its time; long loops ask between rounds."""
    for context in active_contexts():
        context.check(where)


@contextmanager
def span(name: str, hooks: Sequence[Hook] = ()) -> Iterator[None]:
    """Mark a stretch of time by name for those who watch.

    >>> with span("load data"):
    ...     data = list(range(3))
    """
    around = running.listening
    given = (*hooks, *(h for context in active_contexts() for h in context.hooks))
    own = (*around, *dict.fromkeys(h for h in given if h not in around and h not in _watchers))  # told once
    listening = (*own, *_watchers)
    start = perf_counter_ns()
    try:
        running.listening = own  # spans inside tell the same hooks
        yield
    finally:
        running.listening = around
        end = perf_counter_ns()
        for hook in listening:
            hook.on_span(name, start, end, get_ident())


def tell_wrappers(wrap: Sequence[Any], calls: Sequence[Any], what: str) -> None:
    """Tell wrappers that want to know (they have a method ``planned``) which calls they will be around."""
    for wrapper in wrap:
        if hasattr(wrapper, "planned"):
            wrapper.planned(calls, what)
