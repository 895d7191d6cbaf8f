"""A batcher: requests of one model, from tasks and threads, gather into batches that run as one more index.

The policy is a state machine (``batch_queue.py``); this is what carries it out, under one lock. Batches run on worker threads. Those that
take microseconds by their plan run on the event loop that their requests came from, because a thread would take longer.
"""

from __future__ import annotations

import asyncio
import threading
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
from ..runtime.aio.call_queue import AsyncHandle
from ..runtime.aio.calls import run_async
from ..runtime.aio.signals import in_trio
from ..runtime.compile import CompiledGraph
from ..runtime.context import seconds
from ..runtime.executor import Executor
from ..runtime.values import Inputs, Outputs
from ..store import Lock, reset_in_child
from .batch_queue import RUNNING, Batch, BatchQueue, Decision, Priority, Request
from .batch_runs import HAND_OVER, QUICK, BatchedGraph, Outcome, batch_size
from .batch_threads import KEPT, BatchThreads
from .batcher_stats import BatcherStats, Counts
from .outcomes import Waiter, deliver, deliver_late, outcome_of, settle
from .pace import BatcherConfig


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
        self._closed = ""  # why nothing is let in any more
        self.reset_lock()
        reset_in_child(self)

    def reset_lock(self) -> None:
        """Begin without requests and threads, as a forked process does; requests that another process answers are cancelled here."""
        old: BatchQueue | None = getattr(self, "_queue", None)
        self._lock = Lock()
        self._changed = threading.Condition(self._lock)
        self._queue = queue = BatchQueue(self.config)
        ended = partial(self._ended, queue)
        self._threads = BatchThreads(queue, self._changed, self._clock, self._take, self._run, ended)
        self._turn_on: asyncio.AbstractEventLoop | None = None  # the event loop that is to run the next batch,
        self._timer: asyncio.TimerHandle | None = None  # then; None: soon
        if old is not None:
            error = CancelledError("the process was forked: its parent answers the request", code="E456")
            for request in [*old, *(r for batch in old.running for r in batch.requests)]:
                if request.loop is None and isinstance(request.tell, partial):
                    # of a future, which a thread of the parent may hold
                    request.tell.args[0]._condition = threading.Condition(Lock())
                    request.tell(error)

    # requests

    async def submit(
        self, inputs: Inputs, priority: Priority = Priority.NORMAL, timeout: float | timedelta | None = None
    ) -> Outputs:
        """Return the outputs for inputs, after the batch that they ran in; a task that is cancelled meanwhile takes its request back."""
        if in_trio():
            return await outcome_of(self.submit_nowait(inputs, priority, timeout))
        try:
            return await self.submit_on_loop(inputs, priority, timeout)
        except TensorLogicError as error:
            error.at_caller()
            raise

    def submit_on_loop(
        self, inputs: Inputs, priority: Priority = Priority.NORMAL, timeout: float | timedelta | None = None
    ) -> asyncio.Future[Outputs]:
        """Return a future of the running event loop at once: for protocols that have no task for each request."""
        loop = asyncio.get_running_loop()
        request, future = self.request(inputs, priority, timeout), loop.create_future()
        request.tell = partial(settle, future)
        future.add_done_callback(partial(self._if_cancelled, request))
        self.enter(request, loop)
        return future

    def submit_nowait(
        self, inputs: Inputs, priority: Priority = Priority.NORMAL, timeout: float | timedelta | None = None
    ) -> Future[Outputs]:
        """Return a future at once, from any thread: ``submit_nowait(inputs).result()`` waits."""
        request, future = self.request(inputs, priority, timeout), Future[Outputs]()
        request.tell = partial(settle, future)
        future.add_done_callback(partial(self._if_cancelled, request))
        self.enter(request, None)
        return future

    def submit_and_wait(
        self, inputs: Inputs, priority: Priority = Priority.NORMAL, timeout: float | timedelta | None = None
    ) -> Outputs:
        """Return the outputs for inputs, in a thread that waits for them.

        Where nothing else runs, that thread runs the batch itself. A request that takes less time than waiting for others runs alone.
        """
        request = self.request(inputs, priority, timeout)
        if request.kind.seconds.get(1, inf) < HAND_OVER and request.deadline > self._clock() and not self._closed:
            return self._run_alone(request)
        waiter = Waiter(request)
        batch = self.enter(request, None, runs=True)
        try:
            if batch is not None:
                Context().run(self._run_some, batch)  # others' requests are no business of the contexts that hold here
            return waiter.wait()
        except TensorLogicError as error:
            error.at_caller()
            raise
        except BaseException:
            self.cancel(request)
            raise

    def request(self, inputs: Inputs, priority: Priority, timeout: float | timedelta | None = None) -> Request:
        """Return a request for inputs, which are checked; :meth:`enter` lets it in."""
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

    def enter(self, request: Request, loop: asyncio.AbstractEventLoop | None, *, runs: bool = False) -> Batch | None:
        """Let a request in, and see to it that somebody runs it; its ``tell`` is called with the outcome, on the loop where there is one.

        Where the caller ``runs`` batches itself, one that is ready is returned to it.
        """
        start, retry_after, batch, request.loop = False, None, None, loop
        late: Sequence[Request] = ()
        with self._lock:
            closed, queue = self._closed, self._queue
            if not closed:
                retry_after = queue.add(request, self._clock())
            if closed or retry_after is not None:
                self._counts.refused += 1
            elif loop is None or not self._soon_on(loop, request):
                if runs:
                    batch, late, _ = self._take(self._clock())
                if batch is None or batch.deadline < inf or queue.waiting:
                    start = self._threads.wake(request.deadline)
        if closed:
            raise InputError(f"the batcher takes no requests: {closed}", code="E457")
        if retry_after is not None:
            message = f"{self.config.max_queue:,} requests wait already, as many as max_queue allows"
            raise QueueFullError(message, f"come back in {retry_after:.3g} s", retry_after=retry_after, code="E458")
        if start:
            self._threads.start()
        deliver_late(late, self._clock)
        return batch

    def _if_cancelled(self, request: Request, future: Future[Outputs] | asyncio.Future[Outputs]) -> None:
        if future.cancelled():
            self.cancel(request)
            if isinstance(future, Future):
                future.set_running_or_notify_cancel()

    def cancel(self, request: Request) -> bool:
        """Take a request back, which is then not told anything; False where it is done already."""
        with self._lock:
            found = self._queue.cancel(request)
            self._counts.cancelled += found
        return found

    # batches on an event loop

    def _soon_on(self, loop: asyncio.AbstractEventLoop, request: Request) -> bool:
        """Have an event loop run what waits in a moment, where that takes microseconds; False where threads are to do it."""
        turn_on = self._turn_on
        if turn_on is not None and turn_on is not loop and turn_on.is_closed():
            turn_on = self._turn_on = self._timer = None
        if turn_on is loop and self._timer is None:
            return True
        if turn_on is not loop and (turn_on is not None or self._queue.running or not request.kind.quick):
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
                here = self._graph.is_quick(batch.requests[0].kind, len(batch.requests))
                if not here:
                    self._threads.handed.append(batch)
                    start = self._threads.wake()
                elif self._queue.waiting:
                    loop.call_soon(self._turn, loop, context=Context())
                    self._turn_on = loop
            elif wake_at < inf and self._queue.waiting:
                self._timer = loop.call_later(max(0.0, wake_at - now), self._turn, loop, context=Context())
                self._turn_on = loop
        if start:
            self._threads.start()
        deliver_late(late, self._clock)
        if here and batch is not None:
            self._run_some(batch, 0.0)

    # batches

    def _take(self, now: float) -> Decision:
        """Ask the policy what to do, unless there is a batch that an event loop handed over."""
        if handed := self._threads.handed:
            return Decision(handed.popleft(), [], self._queue.next_deadline())
        found = self._queue.take(now)
        self._counts.late += len(found.late)
        if found.batch is not None:
            self._counts.taken([r.arrived for r in found.batch.requests], now)
        return found

    def _ended(self, queue: BatchQueue, handle: AsyncHandle[None]) -> None:
        """Told when a thread is done. One that was stopped, because the process ends, or could not begin takes all that wait with it."""
        if queue is not self._queue or not (handle.cancelled() or handle.failed()):
            return  # a queue of the process that this one was forked from
        with self._lock:
            self._threads.count -= not handle.begun_at
            if handle.cancelled():
                self._closed, queue.draining = self._closed or str(handle.reason), True
            waiting = self._queue.cancel_waiting()
            self._counts.cancelled += len(waiting)
            self._changed.notify_all()
        why = f"the request did not run: {handle.reason or 'no thread could be started'}"
        deliver([(r, CancelledError(why, code="E456")) for r in waiting])

    # outcomes

    def _run_some(self, batch: Batch | None, seconds: float = QUICK) -> None:
        """Run a batch where we are, and what waits then, for a moment; after that it is for a thread of ours."""
        end = self._clock() + seconds
        while batch is not None:
            interrupt, batch = self._run(batch), None
            late: list[Request] = []
            start, now = False, self._clock()
            with self._lock:
                if self._queue.waiting and self._turn_on is None and not self._closed:
                    if now < end and interrupt is None:
                        batch, late, _ = self._take(now)
                    start = batch is None and self._threads.wake()
            if start:
                self._threads.start()
            deliver_late(late, self._clock)
            if interrupt is not None:
                raise interrupt

    def _run_alone(self, request: Request) -> Outputs:
        """Run a request where we are, beside what else runs."""
        begun = self._clock()
        outcome = self._graph.run(request.kind, [request.values], [request.sizes])[0]
        took = self._clock() - begun
        with self._lock:
            self._graph.note_time(request.kind, 1, took)
            self._counts.taken([begun], begun)
            self._counts.finished([took], isinstance(outcome, BaseException))
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def _run(self, batch: Batch) -> BaseException | None:
        """Run a batch and tell its requests what became of them, whatever happens; return what interrupted it."""
        requests = batch.requests
        interrupt: BaseException | None = None
        outcomes: Sequence[Outcome]
        kind, begun = requests[0].kind, self._clock()
        try:
            outcomes = self._graph.run(kind, [r.values for r in requests], [r.sizes for r in requests])
        except BaseException as error:  # an interrupt, or no memory left
            interrupt = error
            outcomes = [ExecutionError(f"the batch was ended by {error!r}", code="E455") for _ in requests]
        now = self._clock()
        self._graph.note_time(kind, len(requests), now - begun)
        with self._lock:
            pairs = [(r, outcome) for r, outcome in zip(requests, outcomes, strict=True) if r.state is RUNNING]
            self._queue.finish(batch, now)
            failed = sum([isinstance(outcome, BaseException) for _, outcome in pairs])
            self._counts.finished([now - r.arrived for r, _ in pairs], failed)
            if self._closed:
                self._changed.notify_all()
        deliver(pairs)
        return None if isinstance(interrupt, Exception) else interrupt

    # the whole

    def warm_up(self, inputs: Inputs, within: float | timedelta | None = None) -> None:
        """Plan batches of every size, or of those that are done ``within`` a time, and learn how long they take, on the inputs of a request."""
        kind, values, sizes = self._graph.read(inputs)
        end = inf if within is None else self._clock() + seconds(within, "within")
        each, most = 0.0, batch_size(self.config.max_batch)
        for count in sorted({batch_size(n) for n in range(1, most + 1)}, key=lambda n: (n not in (1, most), n)):
            if self._clock() + 2 * each * count > end:
                continue  # a smaller one may be in time
            for _ in range(2):  # the first one plans
                start = self._clock()
                outcomes = self._graph.run(kind, [values] * count, [sizes] * count)
                took = self._clock() - start
            if isinstance(outcomes[0], BaseException):
                raise outcomes[0]
            with self._lock:
                self._graph.note_time(kind, count, took)
                self._queue.pace.finished(count, took, took)
            each = each or took

    def stats(self) -> BatcherStats:
        """Return the counts and times so far."""
        with self._lock:
            running = sum(len(batch.requests) for batch in self._queue.running)
            pace = self._queue.pace
            return self._counts.report(self._queue.waiting, running, pace.limit, pace.wait)

    def close(self, drain: bool = True) -> None:
        """Take no more requests and return when there are none; those that wait are answered first, or cancelled with ``drain=False``."""
        with self._lock:
            self._closed = self._closed or "it was closed"
            self._queue.draining = True
            waiting = [] if drain else self._queue.cancel_waiting()
            self._counts.cancelled += len(waiting)
            self._changed.notify_all()
        error = "the batcher was closed before the request ran"
        deliver([(r, CancelledError(error, code="E456")) for r in waiting])
        while True:  # with a hand in the work: an event loop that closes it cannot have its turn
            with self._lock:
                batch, late, wake_at = self._take(now := self._clock())
                if batch is None and not late:
                    if not self._queue.waiting and not self._queue.running:
                        return
                    self._changed.wait(min(KEPT, max(0.0, wake_at - now)))
                    continue
            deliver_late(late, self._clock)
            if batch is not None:
                self._run(batch)

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
