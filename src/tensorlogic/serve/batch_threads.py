"""The threads that run the batches of one batcher: begun when there is work and none is free, asleep in between, gone after a while."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from contextvars import Context
from functools import partial
from math import inf

from ..runtime.aio.call_queue import AsyncHandle, CallQueue
from .batch_queue import Batch, BatchQueue, Decision, Request
from .outcomes import deliver_late

KEPT = 10.0  # seconds that a thread without work stays
TRUST = 1.0  # seconds within which a thread that was called looks: after an interrupt at a bad moment it may never come
THREADS = 1 << 20  # there are as many as run batches, one to keep the time, and those that callbacks hold up


class BatchThreads:
    """Threads that ask what to do (``take``) and do it (``run``); ``ended`` is told of each that is done.

    What they share with their batcher they change under its lock, which ``changed`` belongs to.
    """

    def __init__(
        self,
        queue: BatchQueue,
        changed: threading.Condition,
        clock: Callable[[], float],
        take: Callable[[float], Decision],
        run: Callable[[Batch], object],
        ended: Callable[[AsyncHandle[None]], None],
    ) -> None:
        self._queue, self._changed, self._clock = queue, changed, clock
        self._take, self._run, self._on_end = take, run, ended
        self._calls = CallQueue(THREADS, 0)
        self.count = self._sleeping = self._busy = 0  # that serve; of those so many sleep, and so many run a batch
        self._called, self._called_at = False, -inf  # whether one that sleeps was called and has not looked yet; when
        self._wake_at = inf  # when the last one that fell asleep wakes by itself
        self.handed: deque[Batch] = deque()  # batches that an event loop took and a thread is to run

    def wake(self, deadline: float = inf) -> bool:
        """See to it that a thread looks at the queue, to run a batch or to be in time for a deadline; True where one has to be started. Under the lock."""
        if self._called or self.count > self._sleeping + self._busy:
            if self._clock() - self._called_at < TRUST:
                return False  # somebody is about to look
            self._called, self.count = False, self._sleeping + self._busy
        queue = self._queue
        if (
            not self.handed
            and len(queue.running) >= queue.config.workers
            and (deadline == inf or (self._sleeping and self._wake_at <= deadline))
        ):
            return False  # whoever runs a batch looks after it
        self._called_at = self._clock()
        if self._sleeping:
            self._called = True
            self._changed.notify()
            return False
        self.count += 1
        return True

    def start(self) -> None:
        """Begin one more thread. Without the lock."""
        work = partial(AsyncHandle[None], self._calls, self._serve, on_end=self._on_end)
        Context().run(work).begin()  # not in the contexts of whoever came first

    def _serve(self) -> None:
        """Run batches, and tell requests that are late, until there is nothing to do for a while."""
        while (work := self._next()) is not None:
            batch, late = work
            deliver_late(late, self._clock)
            if batch is not None:
                try:
                    self._run(batch)
                finally:  # also after callbacks, which take as long as they like
                    with self._changed:
                        self._busy -= 1
                        self._called_at = self._clock()

    def _next(self) -> tuple[Batch | None, list[Request]] | None:
        """Sleep until there is something to do; None where this thread is not needed any more."""
        start, idle, queue = False, False, self._queue
        with self._changed:
            while True:
                now = self._clock()
                batch, late, wake_at = self._take(now)
                if batch is not None or late:
                    break
                if idle or (queue.draining and not queue.waiting):
                    self.count -= 1
                    return None
                self._sleeping, self._wake_at = self._sleeping + 1, wake_at
                called = self._changed.wait(min(KEPT, max(0.0, wake_at - now)))
                self._sleeping, self._called = self._sleeping - 1, False
                idle = not called and wake_at == inf  # then it looks once more, and goes
            if batch is not None:
                self._busy += 1
                if self.handed or queue.waiting or wake_at < inf:
                    start = self.wake(wake_at)
        if start:
            self.start()
        return batch, late
