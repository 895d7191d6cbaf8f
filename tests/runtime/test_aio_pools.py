"""Pools of executors: who gets a call, who rests, and what is counted."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import numpy as np
import pytest
from async_calls import PATIENCE, Gate, X, chain, expected

import tensorlogic as tl

# pools


def test_a_pool_answers_and_counts(run):
    pool = tl.AsyncExecutorPool([tl.Executor(), tl.Executor()])

    async def main() -> None:
        async def one(n: int) -> None:
            out = await pool.execute(chain(), {"x": X + n})
            np.testing.assert_array_equal(out["y"], expected(X + n))

        async with pool, anyio.create_task_group() as group:
            for n in range(50):
                group.start_soon(one, n)
        with pytest.raises(tl.InputError, match="the pool is closed"):
            await pool.execute(chain(), {"x": X})

    run(main)
    stats = pool.stats()
    assert (stats.total_executions, stats.failures, stats.cancelled, stats.waiting) == (50, 0, 0, 0)
    assert sum(e.executions for e in stats.executors) == 50
    assert min(e.executions for e in stats.executors) > 0
    assert stats.avg_queue_time_ms >= 0
    assert 0 < stats.latency_p50_ms <= stats.latency_p95_ms <= stats.latency_p99_ms
    assert "50 executions, 0 failed" in str(stats)


def test_calls_go_to_the_executor_with_least_to_do(run):
    gate = Gate()
    pool = tl.AsyncExecutorPool([tl.Executor(wrap=[gate]) for _ in range(3)])

    async def main() -> None:
        async with pool:
            handles = [await pool.submit(chain(1), {"x": X}) for _ in range(3)]
            while gate.steps < 3:
                await anyio.sleep(0.001)
            assert [e.outstanding for e in pool.stats().executors] == [1, 1, 1]
            gate.open.set()
            for handle in handles:
                await handle

    run(main)


def test_a_pool_takes_in_no_more_than_its_threshold(run):
    gate, taken = Gate(), []
    config = tl.AsyncConfig(max_concurrent=1, backpressure_threshold=2)
    pool = tl.AsyncExecutorPool([tl.Executor(wrap=[gate])], config)

    async def main() -> None:
        async def producer() -> None:
            for n in range(10):
                taken.append(await pool.submit(chain(1), {"x": X + n}))

        async with anyio.create_task_group() as group:
            group.start_soon(producer)
            await gate.passed(gate.began)
            for _ in range(20):
                await anyio.sleep(0)
            assert len(taken) == 3  # one runs, two wait in line
            assert pool.stats().waiting == 2
            gate.open.set()
        for handle in taken:
            await handle
        await pool.shutdown()

    run(main)
    assert pool.stats().total_executions == 10


def test_waiting_for_room_can_be_cancelled_and_timed(run):
    gate = Gate()
    config = tl.AsyncConfig(max_concurrent=1, backpressure_threshold=0, timeout=PATIENCE)
    pool = tl.AsyncExecutorPool([tl.Executor(wrap=[gate])], config)

    async def main() -> None:
        first = await pool.submit(chain(1), {"x": X})
        await gate.passed(gate.began)
        with anyio.move_on_after(0.01) as scope:
            await pool.submit(chain(1), {"x": X})
        assert scope.cancelled_caught
        pool.config = config.with_timeout(0.01)
        with pytest.raises(tl.DeadlineError):
            await pool.execute(chain(1), {"x": X})
        pool.config = config
        gate.open.set()
        await first
        await pool.execute(chain(1), {"x": X})
        await pool.shutdown()

    run(main)
    stats = pool.stats()
    assert (stats.total_executions, stats.failures, stats.cancelled) == (3, 1, 1)
    assert gate.steps == 2


class Now:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_executor_that_fails_rests_and_is_tried_again(run):
    broken, clock = [True], Now()

    def failing(call: Any) -> Any:
        def step_of(step: Any, args: Any) -> Any:
            if broken[0]:
                raise OSError("the device is gone")
            return call(step, args)

        return step_of

    config = tl.AsyncConfig(max_concurrent=1)
    pool = tl.AsyncExecutorPool([tl.Executor(wrap=[failing]), tl.Executor()], config, failures=2, rest=1.0, clock=clock)

    async def calls(count: int) -> int:
        failures = 0
        for _ in range(count):
            try:
                out = await pool.execute(chain(1), {"x": X})
                np.testing.assert_array_equal(out["y"], np.tanh(X))
            except tl.ExecutionError:
                failures += 1
        return failures

    async def main() -> None:
        assert await calls(10) == 2
        assert [e.healthy for e in pool.stats().executors] == [False, True]
        clock.now = 1.5  # tried again, in vain: it rests twice as long
        assert await calls(10) == 1
        clock.now = 3.0
        assert await calls(10) == 0
        clock.now, broken[0] = 4.0, False
        assert await calls(10) == 0
        assert [e.healthy for e in pool.stats().executors] == [True, True]
        await pool.shutdown()

    run(main)
    assert pool.stats().failures == 3


def test_mistakes_of_callers_do_not_count_against_an_executor(run):
    pool = tl.AsyncExecutorPool([tl.Executor()], failures=1)

    async def main() -> None:
        for _ in range(5):
            with pytest.raises(tl.InputError):
                await pool.execute(chain(), {"y": X})
        assert pool.stats().executors[0].healthy

    run(main)


def test_where_every_executor_fails_the_calls_still_have_an_outcome(run):
    def failing(call: Any) -> Any:
        def fail(step: Any, args: Any) -> Any:
            raise OSError("gone")

        return fail

    pool = tl.AsyncExecutorPool([tl.Executor(wrap=[failing]) for _ in range(2)], failures=1)

    async def main() -> None:
        for _ in range(6):
            with pytest.raises(tl.ExecutionError, match="gone"):
                await pool.execute(chain(), {"x": X})

    run(main)
    assert pool.stats().failures == 6


def test_shutting_down_drains_and_an_error_cancels(run):
    gate = Gate()
    pool = tl.AsyncExecutorPool([tl.Executor(wrap=[gate])], tl.AsyncConfig(max_concurrent=1))

    def open_once_cancelled(handles: list[Any]) -> None:
        while not all(h.cancelled() for h in handles):
            threading.Event().wait(0.001)
        gate.open.set()

    async def main() -> None:
        handles: list[Any] = []
        with pytest.raises(ValueError, match="of the user"):
            async with pool:
                handles += [await pool.submit(chain(), {"x": X}) for _ in range(3)]
                await gate.passed(gate.began)
                threading.Thread(target=open_once_cancelled, args=(handles,)).start()
                raise ValueError("of the user")
        assert all(h.cancelled() for h in handles)

    run(main)


@pytest.mark.parametrize("wrong", [[], 3, [3]])
def test_pools_are_checked(wrong):
    with pytest.raises(tl.InputError):
        tl.AsyncExecutorPool(wrong)
