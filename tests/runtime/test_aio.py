"""Awaiting calls: outcomes, cancellation and timeouts, on asyncio and on trio."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import anyio
import numpy as np
import pytest
from async_calls import CANCELLED, Gate, X, awaited, chain, expected

import tensorlogic as tl
from tensorlogic.events import active_contexts

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
        assert scope.cancelled_caught or brief  # that one may be over before it is awaited
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
        waiting = asyncio.ensure_future(awaited(asyncio.shield(awaited(handle))))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        np.testing.assert_array_equal((await handle)["y"], expected(X))

    asyncio.run(main())


def test_timeouts_count_from_the_call(run):
    gate = Gate()
    executor = tl.Executor(wrap=[gate])
    config = tl.AsyncConfig(max_concurrent=1).with_timeout(0.3)  # the first is planned by then, on a busy machine too

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
