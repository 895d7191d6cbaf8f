"""Signals: set by any thread, awaited by tasks of asyncio and of trio.

A thread that finishes work wakes the event loop once for everything that finishes meanwhile.
"""

from __future__ import annotations

import asyncio
import math
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from ...store import Lock

_lock = Lock()  # of all signals, which are set and awaited for moments only


class Signal:
    """Something that happens once: any thread sets it, and tasks of any event loop wait for it.

    >>> signal = Signal()
    >>> signal.set()
    >>> asyncio.run(signal.wait())
    True
    """

    __slots__ = ("_wakes", "is_set")

    def __init__(self) -> None:
        self.is_set = False
        self._wakes: tuple[Callable[[], object], ...] = ()

    def set(self) -> None:
        """Wake everyone who waits; those who come later do not wait."""
        with _lock:
            self.is_set = True
            wakes, self._wakes = self._wakes, ()
        for wake in wakes:
            wake()

    def add(self, wake: Callable[[], object]) -> bool:
        """Have a function called once it is set; return False where it is already, and the function is not called."""
        with _lock:
            if not self.is_set:
                self._wakes = (*self._wakes, wake)
            return not self.is_set

    def remove(self, wake: Callable[[], object]) -> None:
        """Take a function back."""
        with _lock:
            self._wakes = tuple(w for w in self._wakes if w is not wake)

    def forget(self) -> None:
        """Forget who waits."""
        self._wakes = ()

    async def wait(self, timeout: float | None = None) -> bool:
        """Return True when it is set, or False when the time is over first."""
        if in_trio():
            return await _wait_in_trio(self, timeout)
        return self.is_set or await _wait_in_asyncio(self, timeout)


def in_trio() -> bool:
    """Tell whether this is a task of trio; everything else is asyncio's."""
    trio = sys.modules.get("trio")  # nobody runs in a library that is not loaded
    return trio is not None and bool(trio.lowlevel.in_trio_task())


def patience(seconds: float) -> Any:
    """Return a scope in which a task that is cancelled may wait a little longer; None for asyncio alone, which cancels once."""
    library = sys.modules.get("trio") if in_trio() else sys.modules.get("anyio")
    return None if library is None else library.move_on_after(seconds, shield=True)


class _Mailbox:
    """What threads have for one event loop of asyncio: futures to resolve, and whether the loop was told to look."""

    __slots__ = ("called", "futures")

    def __init__(self) -> None:
        self.futures: deque[asyncio.Future[None]] = deque()
        self.called = False

    def post(self, future: asyncio.Future[None]) -> None:
        """Have the loop of a future resolve it soon."""
        if asyncio._get_running_loop() is future.get_loop():
            return _resolve(future)
        self.futures.append(future)
        if not self.called:
            self.called = True
            try:
                future.get_loop().call_soon_threadsafe(self.deliver)
            except RuntimeError:  # the loop is closed, so nobody waits there any more
                self.called = False
                self.futures.clear()
        return None

    def deliver(self) -> None:
        """Resolve what there is; what comes after this line has the loop called again."""
        self.called = False
        while self.futures:
            _resolve(self.futures.popleft())


_mailboxes: WeakKeyDictionary[asyncio.AbstractEventLoop, _Mailbox] = WeakKeyDictionary()


def _mailbox(loop: asyncio.AbstractEventLoop) -> _Mailbox:
    found = _mailboxes.get(loop)
    if found is None:
        with _lock:
            found = _mailboxes.setdefault(loop, _Mailbox())
    return found


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _wait_in_asyncio(signal: Signal, timeout: float | None) -> bool:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    wake = partial(_mailbox(loop).post, future)
    if not signal.add(wake):
        return True
    timer = None if timeout is None or timeout == math.inf else loop.call_later(timeout, _resolve, future)
    try:
        await future
    finally:
        if timer is not None:
            timer.cancel()
        if not signal.is_set:
            signal.remove(wake)
    return signal.is_set


async def _wait_in_trio(signal: Signal, timeout: float | None) -> bool:
    import trio

    event, token = trio.Event(), trio.lowlevel.current_trio_token()

    def wake() -> None:
        with suppress(trio.RunFinishedError):  # nobody waits there any more
            token.run_sync_soon(event.set)

    if not signal.add(wake):
        await trio.lowlevel.checkpoint()
        return True
    try:
        with trio.move_on_after(math.inf if timeout is None else timeout):
            await event.wait()
    finally:
        signal.remove(wake)
    return signal.is_set


def spawn(function: Callable[[], Awaitable[Any]]) -> Callable[[], object]:
    """Start a task beside this one and return what cancels it, from any thread; the function raises nothing but what cancels it."""
    if in_trio():
        import trio

        scope = trio.CancelScope()

        async def inside() -> None:
            with scope:
                await function()

        token = trio.lowlevel.current_trio_token()
        trio.lowlevel.spawn_system_task(inside, context=copy_context())
        return partial(_from_thread, token.run_sync_soon, scope.cancel, trio.RunFinishedError)

    async def alone() -> None:
        with suppress(asyncio.CancelledError):
            await function()

    loop = asyncio.get_running_loop()
    task = loop.create_task(alone())
    _tasks.add(task)  # the loop itself holds tasks weakly
    task.add_done_callback(_tasks.discard)
    return partial(_from_thread, loop.call_soon_threadsafe, task.cancel, RuntimeError)


def _from_thread(call: Callable[..., object], function: Callable[[], object], closed: type[Exception]) -> None:
    """Have an event loop call a function, unless it is closed."""
    with suppress(closed):
        call(function)


_tasks: set[asyncio.Task[None]] = set()
