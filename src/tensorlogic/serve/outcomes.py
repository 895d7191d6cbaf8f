"""Telling requests what became of them, on the event loop or the thread that waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any

from ..errors import DeadlineError
from ..runtime.aio.signals import Signal
from ..runtime.values import Outputs
from .batch_queue import Request
from .batch_runs import Outcome


def deliver(pairs: Sequence[tuple[Request, Outcome]]) -> None:
    """Tell requests their outcomes: those of an event loop by one call of it for all of them."""
    here = asyncio._get_running_loop()
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Request, Outcome]]] = {}
    for request, outcome in pairs:
        if request.loop is None or request.loop is here:
            request.tell(outcome)
        else:
            by_loop.setdefault(request.loop, []).append((request, outcome))
    for loop, own in by_loop.items():
        with suppress(RuntimeError):  # it is closed, and nobody waits there any more
            loop.call_soon_threadsafe(tell_all, own)


def deliver_late(late: Sequence[Request], clock: Callable[[], float]) -> None:
    """Tell requests that their time is over."""
    if late:
        now, message = clock(), "the request was not answered in time: it came {:.3g} s ago"
        hint = "give it more time: submit(inputs, timeout=seconds); stats() says how long requests wait"
        deliver([(r, DeadlineError(message.format(now - r.arrived), hint, code="E454")) for r in late])


async def outcome_of(future: Future[Outputs]) -> Outputs:
    """Wait for a future of threads in a task of any library; a task that is cancelled meanwhile cancels it."""
    done = Signal()
    future.add_done_callback(lambda _: done.set())
    try:
        await done.wait()
    except BaseException:
        future.cancel()
        raise
    return future.result()


class Waiter:
    """What a thread waits on for its outcome: a lock, which costs a tenth of what a future does."""

    __slots__ = ("_lock", "_outcome")

    def __init__(self, request: Request) -> None:
        request.tell = self.tell
        self._lock = threading.Lock()
        self._lock.acquire()

    def tell(self, outcome: Outcome) -> None:
        """Note the outcome, and let the thread go on."""
        self._outcome = outcome
        self._lock.release()

    def wait(self) -> Outputs:
        """Wait for the outcome; return the outputs, or raise what went wrong."""
        self._lock.acquire()
        outcome = self._outcome
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


def tell_all(pairs: Sequence[tuple[Request, Outcome]]) -> None:
    """Tell requests their outcomes, on the event loop that they belong to."""
    for request, outcome in pairs:
        request.tell(outcome)


def settle(future: Any, outcome: Outcome) -> None:
    """Give a future its outcome, unless it was cancelled."""
    if future.done():
        return  # cancelled by whoever holds it
    try:
        if type(outcome) is Outputs:
            future.set_result(outcome)
        else:
            future.set_exception(outcome)
    except InvalidStateError:
        return  # cancelled in this moment
