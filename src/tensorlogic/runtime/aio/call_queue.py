"""Calls on worker threads: a handle to await or cancel, and queues that limit how many run at one time, in order."""

from __future__ import annotations

import asyncio
import os
from collections import OrderedDict, deque
from collections.abc import Callable, Generator
from contextvars import copy_context
from functools import partial
from time import monotonic, perf_counter
from typing import Any, Generic, NoReturn, TypeVar

from ...backends.threads import surely
from ...errors import CancelledError, TensorLogicError
from ...store import Lock, of_one_process
from ..context import ExecutionContext
from .signals import Signal, in_trio
from .workers import queues, workers

T = TypeVar("T")


class AsyncHandle(Generic[T]):
    """A call that runs on a worker thread: await it for its result, or cancel it. It starts without being awaited.

    On asyncio a call that was cancelled raises ``asyncio.CancelledError`` where it is awaited, on trio
    :class:`~tensorlogic.CancelledError`. One that is over its time raises :class:`~tensorlogic.DeadlineError`, a ``TimeoutError``.
    Whoever awaits it and is cancelled meanwhile, by ``asyncio.timeout`` for one, cancels it too.

    >>> import asyncio, tensorlogic as tl
    >>> async def main():
    ...     handle = tl.run_async(sum, [1, 2, 3])
    ...     return await handle, handle.done(), handle.cancel()
    >>> asyncio.run(main())
    (6, True, False)
    """

    __slots__ = (
        "_context", "_error", "_on_end", "_settled", "_surroundings", "_value", "_work", "begun_at", "brief", "deadline",
        "ended_at", "late", "queue", "queued_at", "reason", "stopped_signal",
    )  # fmt: skip

    def __init__(
        self,
        queue: CallQueue,
        work: Callable[[], T],
        timeout: float | None = None,
        *,
        brief: bool = False,
        on_end: Callable[[AsyncHandle[T]], object] = bool,
    ) -> None:
        self._on_end = on_end  # called once, with the outcome
        self.queue, self.brief = queue, brief
        self.late = False  # whether it waits for a moment, to see whether it is awaited at once
        self.deadline = None if timeout is None else monotonic() + timeout
        self._context: ExecutionContext | None = None  # what stops it while it runs
        self._work: Callable[[], T] | None = work
        self._surroundings = copy_context()  # of the caller, as asyncio.to_thread does
        self._value: T | None = None
        self._error: BaseException | None = None
        self._settled, self.stopped_signal = Signal(), Signal()
        self.reason: str | None = None  # why it was cancelled
        self.queued_at = perf_counter()
        self.begun_at = self.ended_at = 0.0

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a handle of a call", "await it, and keep its result")

    def done(self) -> bool:
        """Tell whether it has returned, failed or been cancelled."""
        return self._settled.is_set

    def cancelled(self) -> bool:
        """Tell whether it was cancelled."""
        return self.reason is not None

    def failed(self) -> bool:
        """Tell whether it raised an error, or was over its time."""
        return self._error is not None

    def cancel(self, reason: str = "cancel() was called") -> bool:
        """Stop it: before it begins, or before its next step; return False where it is done already. Any thread may."""
        return self._stop(None, str(reason))  # None would not be told from a call that nobody cancelled

    def _stop(self, error: BaseException | None, reason: str, *, begun: bool = True) -> bool:
        """End it, where it has not ended; with ``begun=False`` only where no thread does it yet."""
        try:
            return self._stop_once(error, reason, begun)
        except BaseException:  # an interrupt
            if self.ended_at:
                surely(self._settle)
            raise

    def _stop_once(self, error: BaseException | None, reason: str, begun: bool) -> bool:
        queue = self.queue
        if self.ended_at and not self._settled.is_set:  # it ends just now, or an interrupt came as it did
            self._settle()
        with queue.lock:
            if self.ended_at or (self.begun_at and not begun):
                return False
            self.ended_at, self._error = perf_counter(), error
            if error is None:
                self.reason = reason
            was_waiting = queue.line.pop(self, queue) is None  # a place in line, which somebody else may have
            held = self in queue.running
            self._work = None  # frees the inputs, where it has not begun
            context = self._context
        if context is not None:
            context.cancel(reason)
        self._settle()
        if was_waiting:
            queue.let_in()
        if not held:
            self.stopped_signal.set()
        return True

    def perform(self, *, here: bool = False) -> None:
        """Do the work, unless it was cancelled: on the thread of a worker, or ``here`` on that of an event loop, where nothing could stop it."""
        context = None if here else ExecutionContext(deadline=self.deadline)
        with self.queue.lock:
            work, self._work = self._work, None
            if work is None:
                return
            self.begun_at, self._context = perf_counter(), context
        if context is not None:
            value, error = self._surroundings.run(_attempt_in, context, work)
        elif (late := self._late()) is not None:
            value, error = None, late
        else:
            value, error = self._surroundings.run(_attempt, work)
        del work
        with self.queue.lock:
            if self.ended_at:
                return  # cancelled meanwhile: what was made is nobody's
            self.ended_at, self._value, self._error = perf_counter(), value, error
        self._settle()

    def _settle(self) -> None:
        """Tell everybody; it may be called again after an interrupt."""
        with self.queue.lock:
            on_end, self._on_end = self._on_end, bool
        on_end(self)
        self._settled.set()

    def forget_tasks(self) -> None:
        """Wake nobody: the tasks that wait are another process's."""
        for signal in (self._settled, self.stopped_signal):
            signal.forget()

    def fail(self, error: BaseException, *, begun: bool = False) -> None:
        """Settle it with an error, unless it is done, or a thread does it already; ``begun``, where that is this one."""
        self._stop(error, "it was interrupted" if begun else "it could not begin", begun=begun)

    def __await__(self) -> Generator[Any, None, T]:
        return self._outcome().__await__()

    def expire(self) -> None:
        """Settle it where its time is over."""
        if (late := self._late()) is not None:
            self._stop(late, "its time was over")

    def remaining(self) -> float | None:
        """Return the seconds that are left, not below 0; None where it may take any time."""
        return None if self.deadline is None else max(0.0, self.deadline - monotonic())

    def _late(self) -> CancelledError | None:
        """Return the error of a call whose time is over."""
        if self.deadline is None or monotonic() < self.deadline:
            return None
        try:
            ExecutionContext(deadline=self.deadline).check()
        except CancelledError as error:
            return error
        return None

    async def _outcome(self) -> T:
        trio = in_trio()
        if self.late and (trio or self.queue.outstanding()):
            self._begin_now()
        elif self.late:
            self.late = False
            self.begin_here(asyncio.get_running_loop(), at_once=True)
        elif self.brief and not self.begun_at and not trio:
            self.begin_here(asyncio.get_running_loop(), at_once=True)
        if trio or not self._settled.is_set:
            try:
                while not await self._settled.wait(self.remaining()):
                    self.expire()
            except BaseException:  # whoever awaits it was cancelled
                self.cancel("the task that awaited it was cancelled")
                raise
        if self.reason is not None:
            if trio:
                raise CancelledError(f"the run was cancelled: {self.reason}", code="E980")
            raise asyncio.CancelledError(self.reason)
        if isinstance(self._error, TensorLogicError):
            self._error.at_caller()
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def begin(self) -> AsyncHandle[T]:
        """Let it run on a worker thread, or stand in line."""
        self.queue.submit(self)
        return self

    def begin_here(self, loop: asyncio.AbstractEventLoop, *, at_once: bool = False) -> None:
        """Let a brief call run on an event loop, soon or at once; the loop it was made on may be closed by now."""
        from .short_calls import brief_calls

        calls = brief_calls(loop)
        if at_once:
            calls.begin(self)
        if not self.done():
            calls.add(self, loop)

    def begin_late(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let a quick call run on the event loop where it is awaited at once and alone, else on a worker thread."""
        self.late = True
        loop.call_soon(self._begin_now)

    def _begin_now(self) -> None:
        if self.late:
            self.late = False
            if not self.ended_at:
                self.begin()

    async def stopped(self) -> None:
        """Return when nothing of it runs any more: after a cancel that may be one step later than its outcome."""
        await self.stopped_signal.wait()

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "failed" if self._error is not None else "done"
        if not self.done():
            state = "running" if self.begun_at else "waiting"
        return f"<AsyncHandle {state}>"


def _attempt_in(context: ExecutionContext, work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return what work returns, and what it raises, while it keeps to a context."""
    try:
        context.check()
    except CancelledError as error:
        return None, error
    with context:
        return _attempt(work)


def _attempt(work: Callable[[], T]) -> tuple[T | None, BaseException | None]:
    """Return what work returns, and what it raises: exactly one of them counts."""
    try:
        return work(), None
    except CancelledError as error:
        error.__cause__ = error.__context__ = None
        return None, error.with_traceback(None)  # its frames hold what the run held
    except BaseException as error:  # also what would end the thread: whoever awaits the call gets it
        return None, error


class CallQueue:
    """Calls that share a limit on how many run at one time; the others wait in line, first come, first served."""

    def __init__(self, most: int, threshold: int) -> None:
        self.most, self.threshold = most, threshold
        self.line: OrderedDict[AsyncHandle[Any], None] = OrderedDict()
        self.running: set[AsyncHandle[Any]] = set()
        self.rooms: deque[Signal] = deque()  # of those who wait for room in line
        self.coming = 0  # who were given room and are not in line yet
        self.lock = Lock()
        queues.add(self)

    def forget(self) -> None:
        """Start empty in a forked process, where no thread works on the calls of the parent: here they are cancelled."""
        lost = self.outstanding()
        self.line.clear()
        self.running.clear()
        self.rooms.clear()
        self.coming = 0
        for handle in lost:
            handle.forget_tasks()
            handle.cancel("the process was forked")
            handle.stopped_signal.set()

    def submit(self, handle: AsyncHandle[Any], *, invited: bool = False) -> None:
        """Let a call begin, or stand in line; ``invited`` had waited for :meth:`room`."""
        expected = int(invited)
        try:
            with self.lock:
                self.coming -= expected
                expected = 0
                begins = len(self.running) < self.most and not self.line
                if begins:
                    self.running.add(handle)
                else:
                    self.line[handle] = None
            if begins:
                workers.begin(handle)
            elif invited:
                self.let_in()
        except BaseException as error:  # an interrupt, before or after a thread took the call
            self.coming -= expected
            surely(partial(self.give_up, handle, error))
            raise

    def enter(self, handle: AsyncHandle[Any]) -> bool:
        """Take a call in that runs on this thread now; False where it has begun or is done, or stands in line because there is no room."""
        with self.lock:
            if handle.begun_at or handle.ended_at or handle in self.running or handle in self.line:
                return False
            if len(self.running) < self.most and not self.line:
                self.running.add(handle)
                return True
            self.line[handle] = None
            return False

    async def room(self, timeout: float | None = None) -> bool:
        """Return True when there is room in line, or False when the time is over first.

        Whoever is told True submits a call that is invited, or calls :meth:`decline`.
        """
        signal = Signal()
        with self.lock:
            if not self.rooms and self._free():
                self.coming += 1
                return True
            self.rooms.append(signal)
        try:
            await signal.wait(timeout)
        except BaseException:
            if not self._leave(signal):
                self.decline()
            raise
        return not self._leave(signal)

    def _leave(self, signal: Signal) -> bool:
        """Wait for room no longer; False where room was given already."""
        with self.lock:
            if signal not in self.rooms:
                return False
            self.rooms.remove(signal)
            return True

    def decline(self) -> None:
        """Give room back that was not used."""
        with self.lock:
            self.coming -= 1
        self.let_in()

    def _free(self) -> bool:
        return len(self.running) + len(self.line) + self.coming < self.most + self.threshold

    def let_in(self) -> None:
        """Give the room that there is to those who wait for it."""
        while True:
            with self.lock:
                if not self.rooms or not self._free():
                    return
                signal = self.rooms.popleft()
                self.coming += 1
            signal.set()

    def after(self, handle: AsyncHandle[Any]) -> AsyncHandle[Any] | None:
        """Take a call out that is over; return the next one in line, which runs in its place."""
        with self.lock:
            self.running.discard(handle)
            following = None
            if self.line and len(self.running) < self.most:
                following, _ = self.line.popitem(last=False)
                self.running.add(following)
        handle.stopped_signal.set()
        if self.rooms:
            self.let_in()
        return following

    def give_up(self, handle: AsyncHandle[Any], error: BaseException, *, here: bool = False) -> None:
        """Settle a call that was interrupted, unless a thread does it; ``here``, where that is this one.

        The interrupt may also have kept others from beginning. They begin now; one that begins twice is done once.
        """
        handle.fail(error, begun=here)
        if here or not handle.begun_at:
            self.running.discard(handle)
            handle.stopped_signal.set()
        with self.lock:
            while self.line and len(self.running) < self.most:
                self.running.add(self.line.popitem(last=False)[0])
            waiting = [handle for handle in self.running if not handle.begun_at]
        for other in waiting:
            workers.begin(other)
        self.let_in()

    def outstanding(self) -> list[AsyncHandle[Any]]:
        """Return the calls that run or wait now."""
        with self.lock:
            return [*self.running, *self.line]


def _in_child() -> None:
    for queue in list(queues):
        queue.forget()


if hasattr(os, "register_at_fork"):  # after the one of the store, which resets the locks
    os.register_at_fork(after_in_child=_in_child)
