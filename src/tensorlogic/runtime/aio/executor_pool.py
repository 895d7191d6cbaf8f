"""A pool of executors for event loops: each call goes to the least busy one, and one that keeps failing is paused for a while."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from ...errors import CancelledError, GraphError, InputError, expect, expect_whole
from ...events import span
from ...ir.graph import EinsumGraph
from ...store import Lock
from ...tables import table
from ..context import seconds
from ..values import Inputs, check_call
from .call_queue import AsyncHandle, CallQueue
from .calls import CORES, AsyncConfig, checked_config

if TYPE_CHECKING:
    from ..executor import Executor
    from ..values import Outputs

KEPT = 10_000  # latencies that percentiles are taken of: the latest
LONGEST = 60.0  # seconds that an executor rests at most before it is tried again
CALLERS_FAULT = (CancelledError, GraphError, InputError)  # errors that say nothing about the executor


class ExecutorState(NamedTuple):
    """One executor of a pool: how many calls it runs now, has run and has failed, and whether it takes new ones."""

    outstanding: int
    executions: int
    failures: int
    healthy: bool


class PoolReport(NamedTuple):
    """What a pool did so far; latencies count from the call to its outcome, in milliseconds.

    >>> print(PoolReport(3, 0, 1, 0, 0, 0.5, 2.0, 3.0, 3.0, (ExecutorState(0, 3, 0, True),)))
    3 executions, 0 failed, 1 cancelled; 0 running, 0 waiting
    in line 0.500 ms on average; latency 2.000 ms (p50), 3.000 ms (p95), 3.000 ms (p99)
    executor  executions  failures  outstanding  state
           0           3         0            0  in use
    """

    total_executions: int  # that ended, failures included; cancelled ones are not
    failures: int
    cancelled: int
    running: int
    waiting: int
    avg_queue_time_ms: float
    latency_p50_ms: float
    latency_p95_ms: float
    latency_p99_ms: float
    executors: tuple[ExecutorState, ...]

    def __str__(self) -> str:
        rows = [
            [str(n), str(e.executions), str(e.failures), str(e.outstanding), "in use" if e.healthy else "resting"]
            for n, e in enumerate(self.executors)
        ]
        return (
            f"{self.total_executions:,} executions, {self.failures:,} failed, {self.cancelled:,} cancelled; "
            f"{self.running:,} running, {self.waiting:,} waiting\n"
            f"in line {self.avg_queue_time_ms:.3f} ms on average; latency {self.latency_p50_ms:.3f} ms (p50), "
            f"{self.latency_p95_ms:.3f} ms (p95), {self.latency_p99_ms:.3f} ms (p99)\n"
            + table(["executor", "executions", "failures", "outstanding", "state"], rows, right=range(4))
        )


class _Member:
    """One executor and what is known of it."""

    __slots__ = ("executions", "executor", "failures", "in_a_row", "outstanding", "rests_for", "rests_until", "trial")

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        self.outstanding = self.executions = self.failures = self.in_a_row = 0
        self.rests_until = self.rests_for = 0.0
        self.trial = False  # whether the call that tries it again runs now


class AsyncExecutorPool:
    """Several executors that share one queue of calls: each call goes to the executor that is least busy.

    An executor that fails ``failures`` times in a row, through no fault of the inputs, rests for ``rest`` seconds and is then tried with
    one call; each time that fails too, it rests twice as long. Where all rest, the one that is due first is used. A call has exactly one
    outcome, and is never run twice. ``async with`` waits for all calls at the end.

    >>> import asyncio, tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", (2,), "float64")))
    >>> async def main():
    ...     async with tl.AsyncExecutorPool([tl.Executor(), tl.Executor()]) as pool:
    ...         calls = [pool.execute(graph, {"x": [-1.0, float(n)]}) for n in range(3)]
    ...         outputs = await asyncio.gather(*calls)
    ...     return [out["y"].tolist() for out in outputs], pool.stats().total_executions
    >>> asyncio.run(main())
    ([[0.0, 0.0], [0.0, 1.0], [0.0, 2.0]], 3)
    """

    def __init__(
        self,
        executors: Sequence[Executor],
        config: AsyncConfig | None = None,
        *,
        failures: int = 3,
        rest: float = 1.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        expect(
            executors, Sequence, "executors are given as a list", "write AsyncExecutorPool([Executor(), Executor()])"
        )
        if not executors:
            raise InputError("a pool needs an executor", "write AsyncExecutorPool([Executor()])", code="E561")
        for executor in executors:
            if not callable(getattr(executor, "execute", None)):
                expect(executor, (), "an executor has a method execute(graph, inputs)", "write Executor()")
        expect_whole("failures", failures, 1)
        self.config = AsyncConfig(max(CORES, len(executors))) if config is None else checked_config(config)
        self._members = [_Member(executor) for executor in executors]
        self._queue = CallQueue(self.config.max_concurrent, self.config.backpressure_threshold)
        self._most_failures, self._rest, self._clock = failures, seconds(rest, "rest"), clock
        self._closed = False
        self._executions = self._failures = self._cancelled = self._begun = 0
        self._queue_time = 0.0
        self._latencies: deque[float] = deque(maxlen=KEPT)
        self._lock = Lock()

    async def execute(self, graph: EinsumGraph, inputs: Inputs | None = None, **options: Any) -> Outputs:
        """Run a graph on one of the executors and return its outputs; waits while too many calls stand in line."""
        return await (await self.submit(graph, inputs, **options))

    async def submit(self, graph: EinsumGraph, inputs: Inputs | None = None, **options: Any) -> AsyncHandle[Outputs]:
        """Return the handle of a call once there is room for it in line: what reads requests from a source waits here."""
        check_call(graph, {} if inputs is None else inputs)
        self._check_open()
        work = partial(self._run, graph, inputs, options)
        handle: AsyncHandle[Outputs] = AsyncHandle(self._queue, work, self.config.timeout, on_end=self._note)
        try:
            if not await self._queue.room(handle.remaining()):
                handle.expire()
                return handle
            self._check_open(room=True)
        except BaseException:
            handle.cancel("there was no room for it in time")
            raise
        self._queue.submit(handle, invited=True)
        return handle

    def _check_open(self, *, room: bool = False) -> None:
        if self._closed:
            if room:
                self._queue.decline()
            raise InputError("the pool is closed", "make calls before shutdown(), or inside `async with`", code="E562")

    def stats(self) -> PoolReport:
        """Return the counts and times so far."""
        with self._lock:
            times = sorted(self._latencies)
            p50, p95, p99 = (1e3 * percentile(times, share) for share in (0.50, 0.95, 0.99))
            mean_wait_ms = 1e3 * self._queue_time / self._begun if self._begun else 0.0
            members = [ExecutorState(m.outstanding, m.executions, m.failures, not m.rests_for) for m in self._members]
            return PoolReport(
                self._executions,
                self._failures,
                self._cancelled,
                len(self._queue.running),
                len(self._queue.line),
                mean_wait_ms,
                p50,
                p95,
                p99,
                tuple(members),
            )

    async def shutdown(self, *, cancel: bool = False) -> None:
        """Take no more calls in and wait until those that run or wait are done; ``cancel`` stops them first."""
        self._closed = True
        while outstanding := self._queue.outstanding():
            for handle in outstanding if cancel else ():
                handle.cancel("the pool was shut down")
            for handle in outstanding:
                await handle.stopped()
        self._queue.let_in()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.shutdown(cancel=kind is not None)

    def _run(self, graph: EinsumGraph, inputs: Inputs | None, options: dict[str, Any]) -> Any:
        """Run a call on the executor with least to do; on the thread of a worker."""
        number, member = self._choose()
        error: BaseException | None = None
        try:
            with span(f"request on executor {number}"):
                return member.executor.execute(graph, inputs, **options)
        except BaseException as found:
            error = found
            raise
        finally:
            self._judge(member, error)
            error = None  # whose frames hold this one

    def _choose(self) -> tuple[int, _Member]:
        with self._lock:
            now = self._clock()
            able = [
                (m.outstanding, m.executions, n)
                for n, m in enumerate(self._members)
                if m.rests_until <= now and not m.trial
            ]
            due = [(m.rests_until, m.outstanding, n) for n, m in enumerate(self._members)]
            *_, n = min(able or due)
            member = self._members[n]
            member.outstanding += 1
            member.trial = member.rests_for > 0
            return n, member

    def _judge(self, member: _Member, error: BaseException | None) -> None:
        """Note how a call ended; take an executor out that failed too often, and one back in that did not."""
        with self._lock:
            member.outstanding -= 1
            member.executions += 1
            if isinstance(error, CALLERS_FAULT):
                member.trial = False
                return
            if error is None:
                member.in_a_row, member.rests_until, member.rests_for, member.trial = 0, 0.0, 0.0, False
                return
            member.failures += 1
            member.in_a_row += 1
            if member.trial or member.in_a_row >= self._most_failures:
                member.rests_for = min(2 * member.rests_for or self._rest, LONGEST)
                member.rests_until, member.trial = self._clock() + member.rests_for, False

    def _note(self, handle: AsyncHandle[Any]) -> None:
        """Count the outcome of a call: each has one."""
        with self._lock:
            if handle.begun_at:
                self._begun += 1
                self._queue_time += handle.begun_at - handle.queued_at
            if handle.cancelled():
                self._cancelled += 1
                return
            self._executions += 1
            self._failures += handle.failed()
            self._latencies.append(handle.ended_at - handle.queued_at)


def percentile(times: Sequence[float], share: float) -> float:
    """Return the time that so large a share of calls did not exceed; 0 of none.

    >>> percentile([1.0, 2.0, 3.0, 4.0], 0.5)
    2.0
    """
    return times[math.ceil(len(times) * share) - 1] if times else 0.0
