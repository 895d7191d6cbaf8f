"""How many awaited calls run at one time, those that run on the event loop itself, and all kinds of ends at once."""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from typing import Any

import anyio
import numpy as np
import pytest
from async_calls import CANCELLED, PATIENCE, Gate, X, chain, expected

import tensorlogic as tl
from tensorlogic.runtime.aio import calls, short_calls
from tensorlogic.runtime.aio.short_calls import short_call

# limits


@pytest.mark.parametrize("most", [1, 3])
def test_so_many_run_at_one_time_first_come_first_served(run, most):
    gate = Gate()
    executor, config = tl.Executor(wrap=[gate]), tl.AsyncConfig(max_concurrent=most)

    async def main() -> None:
        handles = [executor.execute_async(chain(1), {"x": X}, config) for _ in range(20)]
        await gate.passed(gate.began)
        gate.open.set()
        for handle in handles:
            await handle
        begun = [h.begun_at for h in handles]
        assert most > 1 or begun == sorted(begun)

    run(main)
    assert gate.steps == 20
    assert gate.most <= most


def test_ten_thousand_calls_at_once():
    executor, graph = tl.Executor(), chain(2)

    async def main() -> Counter[bool]:
        handles = [executor.execute_async(graph, {"x": np.full(3, float(n))}) for n in range(10_000)]
        outputs = await asyncio.gather(*handles)
        return Counter(bool(np.array_equal(o["y"], expected(np.full(3, float(n)), 2))) for n, o in enumerate(outputs))

    assert asyncio.run(main()) == {True: 10_000}


def test_configs_are_checked():
    config = tl.AsyncConfig().with_max_concurrent(4).with_backpressure_threshold(0).with_timeout(1.5)
    assert config == tl.AsyncConfig(max_concurrent=4, backpressure_threshold=0, timeout=1.5)
    for wrong in (
        lambda: tl.AsyncConfig(max_concurrent=0),
        lambda: tl.AsyncConfig(backpressure_threshold=-1),
        lambda: tl.AsyncConfig(timeout=-1),
        lambda: tl.AsyncConfig(timeout="soon"),
        lambda: tl.AsyncConfig().with_max_concurrent(1.5),
    ):
        with pytest.raises(tl.InputError):
            wrong()


# brief calls


def test_which_calls_are_brief():
    graph, executor = chain(), tl.Executor()
    assert not short_call(executor, graph, {"x": X})  # not planned yet
    executor.execute(graph, {"x": X})
    assert short_call(executor, graph, {"x": X}) == "brief"
    assert not short_call(executor, graph, {"x": np.ones(7)})  # planned for another size
    assert not short_call(executor, graph, {"x": list(X)})
    with tl.trace():
        assert not short_call(executor, graph, {"x": X})
    executor.execute(graph, {"x": np.ones(1_000_000)})
    assert not short_call(executor, graph, {"x": np.ones(1_000_000)})
    wrapped = tl.Executor(wrap=[lambda call: call])
    wrapped.execute(graph, {"x": X})
    assert not short_call(wrapped, graph, {"x": X})
    b = tl.GraphBuilder()
    loop = b.build(y=b.fixpoint(lambda c: b.minimum(c + 1.0, 9.0), b.input("x", (5,), "float64")))
    executor.execute(loop, {"x": X})
    assert not short_call(executor, loop, {"x": X})


def test_quick_calls_run_on_the_loop_where_they_are_awaited_at_once_and_alone(monkeypatch):
    monkeypatch.setattr(short_calls, "BRIEF", 0.0)  # no call is brief by its plan
    monkeypatch.setattr(short_calls, "QUICK", float("inf"))  # however busy the machine is
    graph, executor, threads = chain(), tl.Executor(), []
    executor.execute(graph, {"x": X})

    async def call() -> None:
        def told(handle: Any) -> None:
            threads.append(threading.current_thread().name)
            note(executor, graph, handle)

        monkeypatch.setattr(calls, "note_time", lambda executor, graph, handle: told(handle))
        handle = executor.execute_async(graph, {"x": X})
        np.testing.assert_array_equal((await handle)["y"], expected(X))
        await handle.stopped()  # else the next call may not be alone yet

    async def main() -> None:
        for _ in range(short_calls.RUNS):
            await call()
        assert all(name.startswith("tensorlogic-call") for name in threads)
        await call()
        assert threads[-1] == threading.current_thread().name
        threads.clear()
        handles = [executor.execute_async(graph, {"x": X}) for _ in range(3)]
        await asyncio.sleep(0)  # nobody awaits them in this turn of the loop
        for handle in handles:
            await handle
        assert all(name.startswith("tensorlogic-call") for name in threads)
        cancelled = executor.execute_async(graph, {"x": X})
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    note = calls.note_time
    asyncio.run(main())


def test_a_call_that_takes_long_is_not_quick_any_more():
    executor, graph = tl.Executor(), chain()
    executor.execute(graph, {"x": np.ones(200_000)})
    program = executor.last_calls.of(graph).program
    program.quick_runs, inputs = short_calls.RUNS, {"x": np.ones(200_000)}
    assert short_call(executor, graph, inputs) == "quick"
    handle = asyncio.run(awaited_handle(executor, graph, inputs))
    assert (handle.ended_at - handle.begun_at < short_calls.QUICK) == (short_call(executor, graph, inputs) == "quick")


async def awaited_handle(executor: tl.Executor, graph: tl.EinsumGraph, inputs: Any) -> tl.AsyncHandle[Any]:
    handle = executor.execute_async(graph, inputs)
    await handle
    return handle


def test_brief_calls_leave_the_loop_its_turns():
    executor, graph, turns = tl.Executor(), chain(), []
    executor.execute(graph, {"x": X})

    async def ticking() -> None:
        while True:
            turns.append(None)
            await asyncio.sleep(0)

    async def main() -> None:
        ticker = asyncio.ensure_future(ticking())
        await asyncio.sleep(0)
        for _ in range(3000):
            await executor.execute_async(graph, {"x": X})
        one_by_one = len(turns)
        await asyncio.gather(*[executor.execute_async(graph, {"x": X}) for _ in range(3000)])
        assert one_by_one > 10
        assert len(turns) - one_by_one > 10
        ticker.cancel()

    asyncio.run(main())


# everything at once


@pytest.mark.parametrize("seed", range(3))
def test_random_cancels_timeouts_and_failures_leave_one_outcome_each(run, seed):
    rng = random.Random(seed)

    def sometimes(call: Any) -> Any:
        def step_of(step: Any, args: Any) -> Any:
            chance = rng.random()
            if chance < 0.02:
                raise OSError("now and then")
            if chance < 0.04:
                threading.Event().wait(0.001)
            return call(step, args)

        return step_of

    config = tl.AsyncConfig(max_concurrent=3, backpressure_threshold=5)
    executors = [tl.Executor(wrap=[sometimes]), tl.Executor(), tl.Executor(wrap=[sometimes])]
    pool = tl.AsyncExecutorPool(executors, config, failures=2, rest=0.001)
    outcomes: Counter[str] = Counter()
    count = 600

    async def one(n: int) -> None:
        kind = rng.choice(["pool", "pool", "call", "call", "cancel", "timeout", "leave"])
        x = np.full(1 + n % 4, n / count)
        try:
            with anyio.move_on_after(rng.random() * 0.02 if kind == "leave" else PATIENCE) as scope:
                if kind in ("pool", "leave"):
                    out = await pool.execute(chain(), {"x": x})
                else:
                    limits = config.with_timeout(rng.random() * 0.01) if kind == "timeout" else config
                    handle = rng.choice(executors).execute_async(chain(), {"x": x}, limits)
                    if kind == "cancel":
                        if rng.random() < 0.5:
                            await anyio.sleep(rng.random() * 0.005)
                        handle.cancel()
                    try:
                        out = await handle
                    except asyncio.CancelledError:
                        outcomes["cancelled" if handle.cancelled() else "lost"] += 1
                        return
                np.testing.assert_array_equal(out["y"], expected(x))
                outcomes["answer"] += 1
                return
            assert scope.cancelled_caught
            outcomes["left"] += 1
        except tl.DeadlineError:
            outcomes["late"] += 1
        except tl.CancelledError:
            outcomes["cancelled"] += 1
        except tl.ExecutionError:
            outcomes["failed"] += 1

    async def main() -> None:
        async with pool, anyio.create_task_group() as group:
            for n in range(count):
                group.start_soon(one, n)
                if rng.random() < 0.1:
                    await anyio.sleep(0)

    run(main)
    assert sum(outcomes.values()) == count
    assert outcomes["lost"] == 0
    assert outcomes["answer"] > count / 4
    stats = pool.stats()
    assert (stats.running, stats.waiting) == (0, 0)
    assert all(e.outstanding == 0 for e in stats.executors)

    async def afterwards() -> Any:
        return await executors[1].execute_async(chain(), {"x": X}, config)

    np.testing.assert_array_equal(run(afterwards)["y"], expected(X))


# batches


def test_a_batch_can_be_awaited(run):
    executor, items = tl.Executor(), [{"x": X + n} for n in range(9)]
    items[4] = {"y": X}

    async def main() -> None:
        for options in ({}, {"num_threads": 2}):
            result = await executor.execute_batch_async(chain(), items, **options)
            assert list(result.errors) == [4]
            for n in (0, 1, 2, 3, 5, 6, 7, 8):
                np.testing.assert_array_equal(result[n]["y"], expected(X + n))
        handle = executor.execute_batch_async(chain(), items)
        handle.cancel()
        with pytest.raises(CANCELLED):
            await handle

    run(main)
