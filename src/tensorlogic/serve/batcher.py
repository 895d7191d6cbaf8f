"""A batcher: requests of one model, from tasks and threads, gather into batches that run as one more index.

The policy is a state machine (``batch_queue.py``); this is what carries it out, under one lock. Batches run on worker threads. Those that
take microseconds by their plan run on the event loop that their requests came from, because a thread would take longer.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextvars import Context
from datetime import timedelta
from functools import partial
from math import inf
from time import monotonic
from typing import Self

from ..errors import CancelledError, ExecutionError, InputError, QueueFullError, TensorLogicError, expect
from ..events import active_contexts, entered_contexts
from ..ir.graph import EinsumGraph
from ..runtime.aio.call_queue import AsyncHandle, CallQueue
from ..runtime.aio.calls import run_async
from ..runtime.aio.signals import in_trio
from ..runtime.compile import CompiledGraph
from ..runtime.context import seconds
from ..runtime.executor import Executor
from ..runtime.values import Inputs, Outputs
from ..store import reset_in_child
from .batch_queue import RUNNING, Batch, BatchQueue, Decision, Priority, Request
from .batch_runs import BatchedGraph, Outcome, rounded
from .batcher_stats import BatcherStats, Counts
from .outcomes import deliver, deliver_late, outcome_of, tell
from .pace import BatcherConfig

KEPT = 10.0  # seconds that a thread without work stays
TRUST = 1.0  # seconds within which a thread that was called looks: after an interrupt at a bad moment it may never come
THREADS = 1 << 20  # there are as many as run batches, one to keep the time, and those that callbacks hold up


class DynamicBatcher:
    """Answers requests of one graph, which is written for one of them, by running those that come close together as one batch.

    ``await batcher.submit(inputs)`` works on asyncio and trio, ``submit_nowait`` from any thread. Inputs in ``shared`` (weights) are the same
    for all requests. An answer is what the request would have got alone, up to rounding of sums where those are added in
    another order. A request has exactly one outcome: its outputs, its own error, :class:`DeadlineError` when its time is over,
    or :class:`QueueFullError` at once. Leave inputs as they are until then.

    >>> import asyncio, numpy as np, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> layer = b.build(y=b.relu(b.input("x", (3,)) @ b.input("w", (3, 2))))
    >>> async def main():
    ...     async with tl.DynamicBatcher(tl.Executor(), layer, shared={"w": np.ones((3, 2))}) as batcher:
    ...         answers = await asyncio.gather(*[batcher.submit({"x": np.full(3, float(n))}) for n in range(4)])
    ...     return [out["y"].tolist() for out in answers], batcher.stats().completed
    >>> asyncio.run(main())
    ([[0.0, 0.0], [3.0, 3.0], [6.0, 6.0], [9.0, 9.0]], 4)
    """

    def __init__(
        self,
        executor: Executor | CompiledGraph,
        graph: EinsumGraph | None = None,
        config: BatcherConfig | None = None,
        *,
        shared: Inputs | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        if isinstance(executor, CompiledGraph):
            if graph is not None and graph.digest not in (executor.source_digest, executor.optimized.digest):
                hint = "write DynamicBatcher(compiled)"
                raise InputError("the compiled graph was made of another graph", hint, code="E453")
            graph, executor = executor.optimized, executor.executor
        if config is not None:
            expect(config, BatcherConfig, "a BatcherConfig is expected", "write config=BatcherConfig(max_batch=32)")
        self.config = config = config or BatcherConfig()
        self._graph = BatchedGraph(executor, graph, shared, config.pad)  # type: ignore[arg-type]
        self._clock = clock
        self._counts = Counts()
        self._lane = CallQueue(THREADS, 0)
        self._closed = ""  # why nothing is let in any more
        self.reset_lock()
        reset_in_child(self)

    def reset_lock(self) -> None:
        """Begin without requests and threads, as a forked process does; requests that another process answers are cancelled here."""
        old: BatchQueue | None = getattr(self, "_queue", None)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._queue = BatchQueue(self.config)
        self._threads = self._sleeping = self._busy = 0  # that serve; of those so many sleep, and so many run a batch
        self._called, self._called_at = False, -inf  # whether one that sleeps was called and has not looked yet; when
        self._wake_at = inf  # when the last one that fell asleep wakes by itself
        self._handed: deque[Batch] = deque()  # batches that an event loop took and a thread is to run
        self._turn_on: asyncio.AbstractEventLoop | None = None  # the event loop that is to run the next batch,
        self._timer: asyncio.TimerHandle | None = None  # then; None: soon
        if old is not None:
            error = CancelledError("the process was forked: its parent answers the request", code="E456")
            for request in [*old, *(r for batch in old.running for r in batch.requests)]:
                if request.loop is None and request.future is not None:
                    request.future._condition = threading.Condition()  # a thread of the parent may hold it
                    tell(request.future, error)

    # requests

    async def submit(
        self, inputs: Inputs, priority: Priority = Priority.NORMAL, timeout: float | timedelta | None = None
    ) -> Outputs:
        """Return the outputs for inputs, after the batch that they ran in; a task that is cancelled meanwhile takes its request back."""
        if in_trio():
            return await outcome_of(self.submit_nowait(inputs, priority, timeout))
        request = self._request(inputs, priority, timeout)
        self._enter(request, asyncio.get_running_loop())
        try:
            outputs: Outputs = await request.future
        except asyncio.CancelledError:
            self._cancel(request)
            raise
        except TensorLogicError as error:
            error.at_caller()
            raise
        return outputs

    def submit_on_loop(
        self, inputs: Inputs, priority: Priority = Priority.NORMAL, timeout: float | timedelta | None = None
    ) -> asyncio.Future[Outputs]:
        """Return a future of the running event loop at once: for protocols that have no task for each request."""
        request = self._request(inputs, priority, timeout)
        self._enter(request, asyncio.get_running_loop())
        future: asyncio.Future[Outputs] = request.future
        future.add_done_callback(partial(self._if_cancelled, request))
        return future

    def submit_nowait(
        self, inputs: Inputs, priority: Priority = Priority.NORMAL, timeout: float | timedelta | None = None
    ) -> Future[Outputs]:
        """Return a future at once, from any thread: ``submit_nowait(inputs).result()`` waits."""
        request = self._request(inputs, priority, timeout)
        future: Future[Outputs] = Future()
        request.future = future
        future.add_done_callback(partial(self._if_cancelled, request))
        self._enter(request, None)
        return future

    def _request(self, inputs: Inputs, priority: Priority, timeout: float | timedelta | None) -> Request:
        kind, values, sizes = self._graph.read(inputs)
        if type(priority) is not Priority:
            expect(priority, Priority, "a priority is expected", "write priority=Priority.HIGH")
        limit = self.config.timeout if timeout is None else seconds(timeout, "timeout")
        if entered_contexts.get():
            for context in active_contexts():
                context.check()
                left = context.remaining()
                limit = left if limit is None or (left is not None and left < limit) else limit
        return Request(kind, values, priority, inf if limit is None else self._clock() + limit, sizes)

    def _enter(self, request: Request, loop: asyncio.AbstractEventLoop | None) -> None:
        """Let a request in, and see to it that somebody runs it."""
        start, retry_after = False, None
        if loop is not None:
            request.loop, request.future = loop, loop.create_future()
        with self._lock:
            closed, queue = self._closed, self._queue
            if not closed:
                retry_after = queue.add(request, self._clock())
            if closed or retry_after is not None:
                self._counts.refused += 1
            elif loop is None or not self._soon_on(loop, request):
                start = self._wake(request.deadline)
        if closed:
            raise InputError(f"the batcher takes no requests: {closed}", code="E457")
        if retry_after is not None:
            message = f"{self.config.max_queue:,} requests wait already, as many as max_queue allows"
            raise QueueFullError(message, f"come back in {retry_after:.3g} s", retry_after=retry_after, code="E458")
        if start:
            self._start()

    def _if_cancelled(self, request: Request, future: Future[Outputs] | asyncio.Future[Outputs]) -> None:
        if future.cancelled():
            self._cancel(request)
            if isinstance(future, Future):
                future.set_running_or_notify_cancel()

    def _cancel(self, request: Request) -> None:
        with self._lock:
            self._counts.cancelled += self._queue.cancel(request)

    # batches on an event loop

    def _soon_on(self, loop: asyncio.AbstractEventLoop, request: Request) -> bool:
        """Have an event loop run what waits in a moment, where that takes microseconds; False where threads are to do it."""
        turn_on = self._turn_on
        if turn_on is not None and turn_on is not loop and turn_on.is_closed():
            turn_on = self._turn_on = self._timer = None
        if turn_on is loop and self._timer is None:
            return True
        if turn_on is not loop and (turn_on is not None or self._queue.running or not request.kind.brief):
            return False
        if self._timer is not None:
            self._timer.cancel()
        loop.call_soon(self._turn, loop, context=Context())  # not in the contexts of whoever came first
        self._turn_on, self._timer = loop, None
        return True

    def _turn(self, loop: asyncio.AbstractEventLoop) -> None:
        """Run a batch here, hand it to a thread where it may take longer, or come back when one is due."""
        here, start = False, False
        with self._lock:
            self._turn_on = self._timer = None
            now = self._clock()
            batch, late, wake_at = self._take(now)
            if batch is not None:
                here = self._graph.is_brief(batch.requests[0].kind, len(batch.requests))
                if not here:
                    self._handed.append(batch)
                    start = self._wake(batch.deadline, handed=True)
                elif self._queue.waiting:
                    loop.call_soon(self._turn, loop, context=Context())
                    self._turn_on = loop
            elif wake_at < inf and self._queue.waiting:
                self._timer = loop.call_later(max(0.0, wake_at - now), self._turn, loop, context=Context())
                self._turn_on = loop
        if start:
            self._start()
        deliver_late(late, self._clock)
        if here and batch is not None:
            self._run(batch, here=True)

    # batches on threads

    def _wake(self, deadline: float, *, handed: bool = False) -> bool:
        """See to it that a thread looks at the queue, to run a batch or to be in time for a deadline; True where one has to be started."""
        if self._called or self._threads > self._sleeping + self._busy:
            if self._clock() - self._called_at < TRUST:
                return False  # somebody is about to look
            self._called, self._threads = False, self._sleeping + self._busy
        if (
            not handed
            and len(self._queue.running) >= self.config.workers
            and (deadline == inf or (self._sleeping and self._wake_at <= deadline))
        ):
            return False  # whoever runs a batch looks after it
        self._called_at = self._clock()
        if self._sleeping:
            self._called = True
            self._changed.notify()
            return False
        self._threads += 1
        return True

    def _start(self) -> None:
        """Begin one more thread."""
        work = partial(AsyncHandle[None], self._lane, self._serve, on_end=partial(self._ended, self._queue))
        Context().run(work).begin()  # not in the contexts of whoever came first

    def _serve(self) -> None:
        """Run batches, and tell requests that are late, until there is nothing to do for a while."""
        while (work := self._next()) is not None:
            batch, late = work
            deliver_late(late, self._clock)
            if batch is not None:
                try:
                    self._run(batch, here=False)
                finally:  # also after callbacks, which take as long as they like
                    with self._lock:
                        self._busy -= 1
                        self._called_at = self._clock()

    def _next(self) -> tuple[Batch | None, list[Request]] | None:
        """Sleep until there is something to do; None where this thread is not needed any more."""
        start, idle = False, False
        with self._changed:
            while True:
                now = self._clock()
                batch, late, wake_at = self._take(now)
                if batch is not None or late:
                    break
                if idle or (self._closed and not self._queue.waiting):
                    self._threads -= 1
                    return None
                self._sleeping, self._wake_at = self._sleeping + 1, wake_at
                called = self._changed.wait(min(KEPT, max(0.0, wake_at - now)))
                self._sleeping, self._called = self._sleeping - 1, False
                idle = not called and wake_at == inf  # then it looks once more, and goes
            if batch is not None:
                self._busy += 1
                if self._handed or self._queue.waiting or wake_at < inf:
                    start = self._wake(wake_at, handed=bool(self._handed))
        if start:
            self._start()
        return batch, late

    def _take(self, now: float) -> Decision:
        """Ask the policy what to do, unless there is a batch that an event loop handed over."""
        if self._handed:
            return Decision(self._handed.popleft(), [], self._queue.next_deadline())
        found = self._queue.take(now)
        self._counts.late += len(found.late)
        if found.batch is not None:
            self._counts.taken([r.arrived for r in found.batch.requests], now)
        return found

    def _ended(self, queue: BatchQueue, handle: AsyncHandle[None]) -> None:
        """Told when a thread is done. One that was stopped, because the process ends, or could not begin takes all that wait with it."""
        if queue is not self._queue or not (handle.cancelled() or handle.failed()):
            return  # a queue of the process that this one was forked from
        with self._changed:
            self._threads -= not handle.begun_at
            if handle.cancelled():
                self._closed = self._closed or str(handle.reason)
            waiting = self._queue.cancel_waiting()
            self._counts.cancelled += len(waiting)
            self._changed.notify_all()
        why = f"the request did not run: {handle.reason or 'no thread could be started'}"
        deliver([(r, CancelledError(why, code="E456")) for r in waiting])

    # outcomes

    def _run(self, batch: Batch, *, here: bool) -> None:
        """Run a batch and tell its requests what became of them, whatever happens."""
        requests = batch.requests
        interrupt: BaseException | None = None
        outcomes: Sequence[Outcome]
        try:
            kind = requests[0].kind
            outcomes = self._graph.run(kind, [r.values for r in requests], [r.sizes for r in requests])
        except BaseException as error:  # an interrupt, or no memory left
            interrupt = error
            outcomes = [ExecutionError(f"the batch was ended by {error!r}", code="E455") for _ in requests]
        start, now = False, self._clock()
        with self._changed:
            told = [(r, outcome) for r, outcome in zip(requests, outcomes, strict=True) if r.state is RUNNING]
            self._queue.finish(batch, now)
            failed = sum([isinstance(outcome, BaseException) for _, outcome in told])
            self._counts.finished([now - r.arrived for r, _ in told], failed)
            if self._closed:
                self._changed.notify_all()
            elif here and self._queue.waiting and self._turn_on is None:
                start = self._wake(inf)
        if start:
            self._start()
        deliver(told)
        if here and interrupt is not None and not isinstance(interrupt, Exception):
            raise interrupt

    # the whole

    def warm_up(self, inputs: Inputs) -> None:
        """Plan batches of every size, and learn how long they take, on the inputs of a request, so that no caller waits for it."""
        kind, values, sizes = self._graph.read(inputs)
        for count in sorted({rounded(n) for n in range(1, self.config.max_batch + 1)}):
            for _ in range(2):
                start = self._clock()
                outcomes = self._graph.run(kind, [values] * count, [sizes] * count)
                took = self._clock() - start
            if isinstance(outcomes[0], BaseException):
                raise outcomes[0]
            with self._lock:
                self._queue.pace.finished(count, took, took)

    def stats(self) -> BatcherStats:
        """Return the counts and times so far."""
        with self._lock:
            running = sum(len(batch.requests) for batch in self._queue.running)
            pace = self._queue.pace
            return self._counts.report(self._queue.waiting, running, pace.limit, pace.wait)

    def close(self, drain: bool = True) -> None:
        """Take no more requests and return when there are none; those that wait are answered first, or cancelled with ``drain=False``."""
        with self._changed:
            self._closed = self._closed or "it was closed"
            self._queue.draining = True
            waiting = [] if drain else self._queue.cancel_waiting()
            self._counts.cancelled += len(waiting)
            self._changed.notify_all()
        error = "the batcher was closed before the request ran"
        deliver([(r, CancelledError(error, code="E456")) for r in waiting])
        while True:  # with a hand in the work: an event loop that closes it cannot have its turn
            with self._changed:
                batch, late, wake_at = self._take(now := self._clock())
                if batch is None and not late:
                    if not self._queue.waiting and not self._queue.running:
                        return
                    self._changed.wait(min(KEPT, max(0.0, wake_at - now)))
                    continue
            deliver_late(late, self._clock)
            if batch is not None:
                self._run(batch, here=False)

    async def aclose(self, drain: bool = True) -> None:
        """Close it without holding up the event loop."""
        await run_async(self.close, drain)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.aclose(drain=kind is None)
