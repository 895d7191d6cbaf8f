"""Awaiting calls: outcomes, cancellation, timeouts, limits and pools, on asyncio and on trio."""

from __future__ import annotations

import asyncio
import gc
import random
import subprocess
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anyio
import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.events import active_contexts
from tensorlogic.runtime.aio import lanes
from tensorlogic.runtime.aio.brief import brief_call

X = np.linspace(0.0, 1.0, 5)
PATIENCE = 60  # seconds after which a test that waits for something has failed


@pytest.fixture(params=["asyncio", "trio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[Any]]], Any]:
    """Run an async function to its end, on each library."""
    return lambda function: anyio.run(function, backend=request.param)


def chain(steps: int = 6) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    z = b.input("x", ("n",), "float64")
    for _ in range(steps):
        z = b.tanh(z)
    return b.build(y=z)


def expected(x: Any, steps: int = 6) -> Any:
    for _ in range(steps):
        x = np.tanh(x)
    return x


class Gate:
    """A wrapper whose steps tell that they began and wait until they may go on."""

    def __init__(self) -> None:
        self.steps, self.most, self.now = 0, 0, 0
        self.began, self.open, self.lock = threading.Event(), threading.Event(), threading.Lock()

    def __call__(self, call: Any) -> Any:
        def guarded(step: Any, args: Any) -> Any:
            with self.lock:
                self.steps += 1
                self.now += 1
                self.most = max(self.most, self.now)
            self.began.set()
            try:
                assert self.open.wait(PATIENCE)
                return call(step, args)
            finally:
                with self.lock:
                    self.now -= 1

        return guarded

    async def passed(self, event: threading.Event) -> None:
        assert await anyio.to_thread.run_sync(event.wait, PATIENCE)


CANCELLED = (asyncio.CancelledError, tl.CancelledError)  # of a handle that was cancelled, on asyncio and on trio


# one call


def test_an_awaited_call_is_the_call(run):
    executor, graph = tl.Executor(), chain()

    async def main() -> None:
        for _ in range(3):  # planned, then ready
            out = await executor.execute_async(graph, {"x": X})
            np.testing.assert_array_equal(out["y"], executor.execute(graph, {"x": X})["y"])
            assert isinstance(out, tl.Outputs)
        n = await executor.execute_async(graph, {"x": np.ones(7)}, sizes={"n": 7})
        assert n["y"].shape == (7,)
        into = np.empty(5)
        assert (await executor.execute_async(graph, {"x": X}, out={"y": into}))["y"] is into

    run(main)


def test_errors_come_where_the_call_is_awaited(run):
    executor, graph = tl.Executor(), chain()

    async def main() -> None:
        with pytest.raises(tl.InputError, match="'x' is missing"):
            await executor.execute_async(graph, {})
        handle = executor.execute_async(graph, {"y": X})
        for _ in range(2):
            with pytest.raises(tl.InputError, match="no input 'y'"):
                await handle
        assert handle.done()
        assert handle.failed()
        assert not handle.cancelled()
        for wrong in (lambda: executor.execute_async(3), lambda: executor.execute_async(graph, {"x": X}, "fast")):
            with pytest.raises(tl.InputError, match="expected"):
                wrong()

    run(main)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration, GeneratorExit, MemoryError])
def test_whatever_a_step_raises_is_the_outcome_and_the_worker_lives_on(error):
    def failing(call: Any) -> Any:
        def fail(step: Any, args: Any) -> Any:
            raise error("from a step")

        return fail

    bad, good = tl.Executor(wrap=[failing]), tl.Executor()

    async def main() -> None:
        with pytest.raises(BaseException) as caught:
            await bad.execute_async(chain(), {"x": X})
        assert "from a step" in str(caught.value)

    for _ in range(3):
        if error in (KeyboardInterrupt, SystemExit):  # asyncio lets these end the loop too
            with pytest.raises(error):
                asyncio.run(_only(bad.execute_async, chain(), {"x": X}))
        else:
            asyncio.run(main())
    out = asyncio.run(_only(good.execute_async, chain(), {"x": X}))
    np.testing.assert_array_equal(out["y"], expected(X))


async def _only(function: Any, *args: Any) -> Any:
    return await function(*args)


def test_a_handle_may_be_awaited_by_several_tasks_and_more_than_once(run):
    executor = tl.Executor()

    async def main() -> None:
        handle = executor.execute_async(chain(), {"x": X})
        found = []

        async def one() -> None:
            found.append(await handle)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
        assert len(found) == 5
        assert all(f is found[0] for f in found)

    run(main)


def test_a_handle_made_outside_of_a_loop_is_awaited_in_any(run):
    executor = tl.Executor()
    handle = executor.execute_async(chain(), {"x": X})

    async def main() -> Any:
        return await handle

    first, second = run(main), run(main)
    assert first is second
    np.testing.assert_array_equal(first["y"], expected(X))


def test_a_brief_call_of_a_loop_that_is_closed_is_awaited_in_another():
    executor, graph = tl.Executor(), chain()
    executor.execute(graph, {"x": X})

    async def begin() -> Any:
        return executor.execute_async(graph, {"x": X})

    async def end(handle: Any) -> Any:
        return await handle

    loop = asyncio.new_event_loop()
    handle = loop.run_until_complete(begin())
    loop.close()
    assert handle.brief
    np.testing.assert_array_equal(asyncio.run(end(handle))["y"], expected(X))


def test_any_function_can_be_awaited(run):
    program = tl.Program("Parent(Bob, Charlie)\nParent(Ann, Bob)\nOld(x) <- Parent(x, y)")
    executor, graph = tl.Executor(), chain()

    async def main() -> None:
        assert await tl.run_async(program.query, "Old(x)?") == program.query("Old(x)?")
        compiled = await tl.run_async(executor.compile_graph, graph, sizes={"n": 5})
        np.testing.assert_array_equal(executor.execute_compiled(compiled, {"x": X})["y"], expected(X))
        with pytest.raises(tl.InputError, match="a function is expected"):
            tl.run_async(3)

    run(main)


# cancelling


def test_a_call_cancelled_before_it_begins_never_runs(run):
    gate = Gate()
    executor, config = tl.Executor(wrap=[gate]), tl.AsyncConfig(max_concurrent=1)

    async def main() -> None:
        first = executor.execute_async(chain(1), {"x": X}, config)
        await gate.passed(gate.began)
        second = executor.execute_async(chain(1), {"x": X}, config)
        assert repr(first), repr(second) == ("<AsyncHandle running>", "<AsyncHandle waiting>")
        assert second.cancel("not needed")
        assert not second.cancel()
        with pytest.raises(CANCELLED, match="not needed"):
            await second
        await second.stopped()
        gate.open.set()
        np.testing.assert_array_equal((await first)["y"], np.tanh(X))
        assert not first.cancel()
        assert (first.cancelled(), second.cancelled()) == (False, True)

    run(main)
    assert gate.steps == 1


def test_a_call_cancelled_while_it_runs_stops_before_its_next_step_and_frees_what_it_held(run):
    gate, kept = Gate(), []

    def noting(call: Any) -> Any:
        def noted(step: Any, args: Any) -> Any:
            value = call(step, args)
            kept.append(weakref.ref(value))
            return value

        return noted

    executor = tl.Executor(wrap=[gate, noting])

    async def main() -> None:
        x = np.ones(1000)
        kept.append(weakref.ref(x))
        handle = executor.execute_async(chain(), {"x": x})
        del x
        await gate.passed(gate.began)
        handle.cancel()
        with pytest.raises(CANCELLED):
            await handle
        gate.open.set()
        await handle.stopped()
        assert gate.steps == 1
        gc.collect()
        assert [ref() is None for ref in kept] == [True, True]

    run(main)


@pytest.mark.parametrize("brief", [False, True])
def test_cancelling_whoever_awaits_stops_the_run(run, brief):
    gate = Gate()
    executor = tl.Executor(wrap=[] if brief else [gate])
    executor.context.clock()

    async def main() -> None:
        handle = None
        with anyio.CancelScope() as scope:
            handle = executor.execute_async(chain(), {"x": X})
            scope.cancel()
            await handle
        assert scope.cancelled_caught
        assert handle is not None
        gate.open.set()
        await handle.stopped()
        assert gate.steps <= 1
        np.testing.assert_array_equal((await executor.execute_async(chain(), {"x": X}))["y"], expected(X))

    run(main)


def test_asyncio_timeout_stops_the_run():
    gate = Gate()
    executor = tl.Executor(wrap=[gate])

    async def main() -> None:
        handle = executor.execute_async(chain(), {"x": X})
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await handle
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(executor.execute_async(chain(), {"x": X}), 0.01)
        gate.open.set()
        await handle.stopped()
        assert handle.cancelled()

    asyncio.run(main())
    assert gate.steps <= 2


def test_a_shielded_call_goes_on():
    executor = tl.Executor()

    async def main() -> None:
        handle = executor.execute_async(chain(), {"x": X})
        waiting = asyncio.ensure_future(_await(asyncio.shield(_await(handle))))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        np.testing.assert_array_equal((await handle)["y"], expected(X))

    asyncio.run(main())


async def _await(handle: Any) -> Any:
    return await handle


def test_timeouts_count_from_the_call(run):
    gate = Gate()
    executor = tl.Executor(wrap=[gate])
    config = tl.AsyncConfig(max_concurrent=1).with_timeout(0.02)

    async def main() -> None:
        handles = [executor.execute_async(chain(), {"x": X}, config) for _ in range(3)]  # two of them wait in line
        for handle in handles:
            with pytest.raises(tl.DeadlineError, match="time was over") as caught:
                await handle
            assert isinstance(caught.value, TimeoutError)
            assert not handle.cancelled()
        gate.open.set()
        for handle in handles:
            await handle.stopped()

    run(main)
    assert gate.steps == 1


def test_a_call_nobody_awaits_is_over_its_time_too():
    clock_is_over = tl.AsyncConfig(timeout=0)
    gate = Gate()
    executor = tl.Executor(wrap=[gate])

    async def main() -> None:
        handle = executor.execute_async(chain(), {"x": X}, clock_is_over)
        await handle.stopped()
        with pytest.raises(tl.DeadlineError):
            await handle

    asyncio.run(main())
    assert gate.steps == 0


def test_a_call_keeps_to_the_contexts_of_its_task(run):
    executor, seen = tl.Executor(), []

    def looking(call: Any) -> Any:
        def look(step: Any, args: Any) -> Any:
            seen.append({k: v for c in active_contexts() for k, v in c.labels.items()})
            return call(step, args)

        return look

    watched = tl.Executor(wrap=[looking])

    async def main() -> None:
        with tl.ExecutionContext(labels={"request": "7"}):
            handle = watched.execute_async(chain(1), {"x": X})
        await handle
        context = tl.ExecutionContext()
        context.cancel("the client left")
        with context, pytest.raises(tl.CancelledError, match="the client left"):
            await executor.execute_async(chain(), {"x": X})

    run(main)
    assert seen == [{"request": "7"}]


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
    assert not brief_call(executor, graph, {"x": X})  # not planned yet
    executor.execute(graph, {"x": X})
    assert brief_call(executor, graph, {"x": X})
    assert not brief_call(executor, graph, {"x": np.ones(7)})  # planned for another size
    assert not brief_call(executor, graph, {"x": list(X)})
    with tl.trace():
        assert not brief_call(executor, graph, {"x": X})
    executor.execute(graph, {"x": np.ones(1_000_000)})
    assert not brief_call(executor, graph, {"x": np.ones(1_000_000)})
    wrapped = tl.Executor(wrap=[lambda call: call])
    wrapped.execute(graph, {"x": X})
    assert not brief_call(wrapped, graph, {"x": X})
    b = tl.GraphBuilder()
    loop = b.build(y=b.fixpoint(lambda c: b.minimum(c + 1.0, 9.0), b.input("x", (5,), "float64")))
    executor.execute(loop, {"x": X})
    assert not brief_call(executor, loop, {"x": X})


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


# many loops, many threads, and ends of processes


def test_several_loops_in_several_threads_use_one_executor():
    executor, graph = tl.Executor(), chain()
    config = tl.AsyncConfig(max_concurrent=2)

    def loop(n: int) -> int:
        async def main() -> int:
            for turn in range(5):
                given = [np.full(3 + n, turn + k / 10) for k in range(10)]
                outputs = await asyncio.gather(*[executor.execute_async(graph, {"x": x}, config) for x in given])
                for x, out in zip(given, outputs, strict=True):
                    np.testing.assert_array_equal(out["y"], expected(x))
            return n

        return asyncio.run(main())

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(loop, range(6))) == list(range(6))


def test_loops_that_are_closed_early_leave_the_executor_usable(recwarn):
    gate = Gate()
    executor = tl.Executor(wrap=[gate])

    async def begin() -> list[Any]:
        return [executor.execute_async(chain(), {"x": X}) for _ in range(4)]

    async def wait_a_moment() -> None:
        waiting = [asyncio.ensure_future(_await(h)) for h in await begin()]
        await asyncio.sleep(0)
        assert len(waiting) == 4  # asyncio.run cancels them

    handles = asyncio.run(begin())
    asyncio.run(wait_a_moment())
    gate.open.set()
    for handle in handles:
        np.testing.assert_array_equal(asyncio.run(_await(handle))["y"], expected(X))
    assert not recwarn.list


def _child(code: str) -> str:
    head = "import asyncio, os, sys, time, threading, numpy as np, tensorlogic as tl\n"
    head += "b = tl.GraphBuilder(); z = b.input('x', ('n',), 'float64')\nfor _ in range(6): z = b.tanh(z)\n"
    head += "g, x = b.build(y=z), {'x': np.ones(3)}\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_process_can_end_while_calls_run_and_wait():
    code = """
def slow(call):
    def f(step, args):
        time.sleep(0.05)
        return call(step, args)
    return f
ex = tl.Executor(wrap=[slow])
async def main():
    handles = [ex.execute_async(g, x) for _ in range(50)]
    await asyncio.sleep(0.02)
    print("leaving")
asyncio.run(main())
"""
    assert _child(code) == "leaving\n"


def test_a_forked_process_cancels_the_calls_of_its_parent_and_makes_its_own():
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn of forks among threads
opened, began = [], []  # no Event: a thread that is about to wait for one holds its lock, in the child for ever
def waiting(call):
    def f(step, args):
        began.append(step)
        while not opened: time.sleep(0.001)
        return call(step, args)
    return f
ex, plain = tl.Executor(wrap=[waiting]), tl.Executor()
async def get(h): return await h
asyncio.run(get(plain.execute_async(g, x)))  # loads what calls need: a fork while another thread imports may hang
handles = [ex.execute_async(g, x) for _ in range(10)]
while len(began) < min(10, tl.AsyncConfig().max_concurrent): time.sleep(0.001)
pid = os.fork()
opened.append(True)
if pid == 0:
    lost = 0
    for h in handles:
        try:
            asyncio.run(get(h))
        except asyncio.CancelledError as error:
            lost += "forked" in str(error)
    out = asyncio.run(get(plain.execute_async(g, x)))
    out2 = asyncio.run(get(ex.execute_async(g, x)))
    os._exit(0 if lost == 10 and np.array_equal(out["y"], out2["y"]) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
for h in handles:
    asyncio.run(get(h))
print("both")
"""
    assert _child(code) == "both\n"


def test_a_call_that_is_begun_as_the_process_ends_has_an_outcome():
    code = """
import atexit
ex = tl.Executor()
ex.execute(g, x)
def last():
    async def main():
        try:
            out = await ex.execute_async(g, {"x": np.ones(9)})
            print("answer", out["y"].shape)
        except tl.TensorLogicError as error:
            print(error.diagnostic.code)
    asyncio.run(main())
from tensorlogic.runtime.aio import lanes
atexit.register(last)
"""
    assert _child(code) in ("answer (9,)\n", "E560\n")


def test_threads_without_work_leave(monkeypatch):
    monkeypatch.setattr(lanes, "KEPT", 0.01)
    own = lanes.Workers()
    monkeypatch.setattr(lanes, "workers", own)
    lane = lanes.Lane(2, 10)
    interval = sys.getswitchinterval()

    async def main() -> list[int]:
        handles = [lanes.AsyncHandle(lane, lambda n=n: n * n) for n in range(20)]
        for handle in handles:
            lane.submit(handle)
        return [await h for h in handles]

    assert asyncio.run(main()) == [n * n for n in range(20)]
    for _ in range(1000):
        if own.threads() == 0:
            break
        threading.Event().wait(0.01)
    assert own.threads() == 0
    assert sys.getswitchinterval() == pytest.approx(interval)
    assert asyncio.run(main()) == [n * n for n in range(20)]


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
