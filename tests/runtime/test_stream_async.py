"""Streams for event loops: async iterables in, an async iterator out, with back-pressure, on asyncio and on trio."""

from __future__ import annotations

import gc
import threading
from collections.abc import AsyncIterator
from typing import Any

import anyio
import numpy as np
import pytest
from async_calls import PATIENCE, Gate

import tensorlogic as tl

ROWS = np.arange(24.0).reshape(12, 2)


def graph() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 2), "float64")
    return b.build(double=x * 2.0, total=b.sum(x, axis=0), largest=b.max(x))


class Source:
    """Chunks of rows, one at a time; it notes how many were asked for and whether it was closed."""

    def __init__(self, chunks: int = 6, fails_at: int | None = None) -> None:
        self.chunks, self.fails_at, self.given, self.closed = chunks, fails_at, 0, False

    async def read(self) -> AsyncIterator[dict[str, Any]]:
        try:
            for n in range(self.chunks):
                await anyio.sleep(0)
                if n == self.fails_at:
                    raise OSError("the line is dead")
                self.given += 1
                yield {"x": ROWS[2 * n % 12 : 2 * n % 12 + 2]}
        finally:
            self.closed = True


def test_chunks_come_back_in_order_and_totals_are_those_of_one_run(run):
    async def main() -> None:
        source = Source()
        stream = tl.Executor().execute_stream_async(graph(), source.read())
        results = [result async for result in stream]
        assert [r.metadata.chunk_id for r in results] == list(range(6))
        np.testing.assert_array_equal(np.concatenate([r.outputs["double"] for r in results]), 2 * ROWS)
        whole = tl.Executor().execute(graph(), {"x": ROWS})
        np.testing.assert_array_equal(stream.outputs["total"], whole["total"])
        np.testing.assert_array_equal(stream.outputs["largest"], whole["largest"])
        assert source.closed
        assert [r async for r in stream] == []

    run(main)


def test_sources_of_other_kinds_are_read_on_a_thread(run, tmp_path):
    np.save(tmp_path / "x.npy", ROWS)
    streaming = tl.StreamingConfig(tl.StreamingMode.FixedChunk(5))
    main_thread, threads = threading.get_ident(), []

    def chunks() -> Any:
        for start in range(0, 12, 4):
            threads.append(threading.get_ident())
            yield {"x": ROWS[start : start + 4]}

    async def main() -> None:
        for source in ({"x": ROWS}, tmp_path / "x.npy", chunks()):
            async with tl.Executor().execute_stream_async(graph(), source, streaming=streaming) as stream:
                sizes = [r.metadata.size async for r in stream]
            assert sizes == [5, 5, 2]
            np.testing.assert_array_equal(stream.outputs["total"], ROWS.sum(0))
        assert (await tl.Executor().execute_stream_async(graph(), {"x": ROWS}).result())["largest"] == 23.0

    run(main)
    assert main_thread not in threads


def test_as_many_chunks_are_computed_at_one_time_as_may_be_and_totals_keep_their_order(run):
    two = threading.Barrier(2)

    def together(call: Any) -> Any:
        def waiting(step: Any, args: Any) -> Any:
            if step.op.name == "multiply":
                two.wait(PATIENCE)  # for another chunk that is computed meanwhile
            return call(step, args)

        return waiting

    async def main() -> None:
        parts = np.random.default_rng(0).normal(size=(8, 50, 2)) * 10.0 ** np.arange(8)[:, None, None]

        async def chunks() -> AsyncIterator[dict[str, Any]]:
            for part in parts:
                yield {"x": part}

        config = tl.AsyncConfig(max_concurrent=2)
        async with tl.Executor(wrap=[together]).execute_stream_async(graph(), chunks(), config) as stream:
            results = [result async for result in stream]
        assert [r.metadata.start for r in results] == list(range(0, 400, 50))
        np.testing.assert_array_equal(np.stack([r.outputs["double"] for r in results]), 2 * parts)
        one_by_one = tl.StreamProcessor(tl.Executor(), graph())
        for part in parts:
            one_by_one.push({"x": part})
        np.testing.assert_array_equal(stream.outputs["total"], one_by_one.finish()["total"], strict=True)

    run(main)


@pytest.mark.parametrize("asynchronous", [True, False])
def test_streams_of_one_executor_share_its_limit(run, asynchronous):
    gate = Gate()
    gate.open.set()

    async def main() -> None:
        executor, config = tl.Executor(wrap=[gate]), tl.AsyncConfig(max_concurrent=1)
        totals = []

        async def one() -> None:
            source = Source().read() if asynchronous else {"x": ROWS}
            totals.append((await executor.execute_stream_async(graph(), source, config).result())["total"])

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
        np.testing.assert_array_equal(totals, [ROWS.sum(0)] * 3)
        assert gate.most == 1

    run(main)


def test_a_source_that_keeps_a_stream_waiting_keeps_no_other_call_waiting(run):
    go_on = threading.Event()

    def slow() -> Any:
        yield {"x": ROWS[:4]}
        assert go_on.wait(PATIENCE)
        yield {"x": ROWS[4:6]}

    async def main() -> None:
        executor, config = tl.Executor(), tl.AsyncConfig(max_concurrent=1)
        streaming = tl.StreamingConfig(tl.StreamingMode.FixedChunk(2), prefetch=0)
        async with executor.execute_stream_async(graph(), slow(), config, streaming=streaming) as stream:
            assert (await anext(stream)).metadata.chunk_id == 0
            assert (await executor.execute_async(graph(), {"x": ROWS}, config))["largest"] == 23.0
            go_on.set()
            assert [r.metadata.chunk_id async for r in stream] == [1, 2]

    run(main)


def test_chunks_that_are_no_arrays_become_such_on_a_thread(run):
    async def lists() -> AsyncIterator[dict[str, Any]]:
        for start in range(0, 12, 4):
            yield {"x": ROWS[start : start + 4].tolist()}

    async def main() -> None:
        stream = tl.Executor().execute_stream_async(graph(), lists())
        assert [r.metadata.start async for r in stream] == [0, 4, 8]
        np.testing.assert_array_equal(stream.outputs["total"], ROWS.sum(0))

    run(main)


def test_the_source_is_not_read_further_ahead_than_the_threshold(run):
    async def main() -> None:
        source = Source(chunks=50)
        config = tl.AsyncConfig(backpressure_threshold=3)
        async with tl.Executor().execute_stream_async(graph(), source.read(), config) as stream:
            seen = 0
            async for _ in stream:
                seen += 1
                for _ in range(20):
                    await anyio.sleep(0)
                assert source.given <= seen + 4
        assert seen == 50

    run(main)


def test_a_slow_source_does_not_hold_back_results_that_are_there(run):
    async def main() -> None:
        go_on = anyio.Event()

        async def slow() -> AsyncIterator[dict[str, Any]]:
            yield {"x": ROWS[:2]}
            await go_on.wait()
            yield {"x": ROWS[2:4]}

        stream = tl.Executor().execute_stream_async(graph(), slow())
        first = await anext(stream)
        assert first.metadata.chunk_id == 0
        go_on.set()
        assert [r.metadata.chunk_id async for r in stream] == [1]

    run(main)


def test_a_source_that_fails_half_way_is_told_after_the_chunks_before_it(run):
    async def main() -> None:
        source = Source(fails_at=3)
        stream = tl.Executor().execute_stream_async(graph(), source.read())
        seen = []
        with pytest.raises(tl.InputError, match="the source failed at chunk 3: OSError: the line is dead"):
            async for result in stream:
                seen.append(result.metadata.chunk_id)
        assert seen == [0, 1, 2]
        assert source.closed

    run(main)


def test_a_chunk_that_does_not_fit_ends_the_stream(run):
    async def chunks() -> AsyncIterator[dict[str, Any]]:
        yield {"x": ROWS[:2]}
        yield {"x": np.ones((2, 5))}
        yield {"x": ROWS[2:4]}

    async def main() -> None:
        stream = tl.Executor().execute_stream_async(graph(), chunks())
        assert (await anext(stream)).metadata.size == 2
        with pytest.raises(tl.TensorLogicError):
            await anext(stream)
        with pytest.raises(StopAsyncIteration):
            await anext(stream)

    run(main)


def test_an_empty_source_is_an_error(run):
    async def main() -> None:
        with pytest.raises(tl.InputError) as caught:
            await tl.Executor().execute_stream_async(graph(), Source(chunks=0).read()).result()
        assert caught.value.diagnostic.code == "E537"

    run(main)


@pytest.mark.parametrize("how", ["close", "forget", "cancel"])
def test_a_consumer_that_stops_early_closes_the_source(run, how):
    async def main() -> None:
        source = Source(chunks=100_000)
        stream = tl.Executor().execute_stream_async(graph(), source.read(), tl.AsyncConfig(backpressure_threshold=2))
        await anext(stream)
        if how == "close":
            await stream.aclose()
            with pytest.raises(StopAsyncIteration):
                await anext(stream)
        elif how == "cancel":
            with anyio.CancelScope() as scope:
                scope.cancel()
                async for _ in stream:
                    pass
        del stream
        gc.collect()
        with anyio.fail_after(30):
            while not source.closed:
                await anyio.sleep(0.001)
        assert source.given < 500  # it is cancelled when it next waits

    run(main)


def test_a_chunk_may_be_over_its_time(run):
    def slow(call: Any) -> Any:
        def waiting(step: Any, args: Any) -> Any:
            threading.Event().wait(0.05)
            return call(step, args)

        return waiting

    async def main() -> None:
        config = tl.AsyncConfig(timeout=0.01)
        stream = tl.Executor(wrap=[slow]).execute_stream_async(graph(), Source().read(), config)
        with pytest.raises(tl.DeadlineError):
            await anext(stream)
        await stream.aclose()

    run(main)


def test_options_that_async_chunks_cannot_have_are_refused():
    with pytest.raises(tl.InputError) as caught:
        tl.Executor().execute_stream_async(graph(), Source().read(), sink="y.npy")
    assert caught.value.diagnostic.code == "E563"
