"""Awaiting answers, as the seed's README shows it."""

import asyncio

import numpy as np
import pytest

import tensorlogic as tl


def test_execute_async(executor, layer, inputs, relu_of):
    async def main():
        outputs = await executor.execute_async(layer, inputs)
        assert len(outputs) == 1
        np.testing.assert_allclose(outputs["y"], relu_of(inputs))

    asyncio.run(main())
    assert isinstance(executor, tl.TlAsyncExecutor)


def test_execute_batch_async(executor, layer, make_inputs, relu_of):
    batch_inputs = [make_inputs(seed) for seed in range(4)]

    async def main():
        return await executor.execute_batch_async(layer, batch_inputs)

    batch_outputs = asyncio.run(main())
    assert isinstance(executor, tl.TlAsyncBatchExecutor)
    for outputs, inputs in zip(batch_outputs, batch_inputs, strict=True):
        np.testing.assert_allclose(outputs["y"], relu_of(inputs))


def test_execute_stream_async(executor, fixed_layer):
    graph, w = fixed_layer
    config = tl.AsyncConfig().with_max_concurrent(4).with_backpressure_threshold(100)
    assert config == tl.AsyncConfig(max_concurrent=4, backpressure_threshold=100)
    rows = np.random.default_rng(0).normal(size=(12, 8, 10))

    async def input_stream():
        for block in rows:
            yield {"x": block}

    async def main():
        return [result async for result in executor.execute_stream_async(graph, input_stream(), config)]

    stream_results = asyncio.run(main())
    assert isinstance(executor, tl.TlAsyncStreamExecutor)
    np.testing.assert_allclose(
        np.concatenate([r.outputs["y"] for r in stream_results]), np.maximum(np.vstack(rows) @ w, 0)
    )


def test_pool(layer, make_inputs, relu_of):
    pool = tl.AsyncExecutorPool([tl.Executor() for _ in range(4)])
    requests = [make_inputs(seed) for seed in range(10)]

    async def main():
        return await asyncio.gather(*(pool.execute(layer, inputs) for inputs in requests))

    for outputs, inputs in zip(asyncio.run(main()), requests, strict=True):
        np.testing.assert_allclose(outputs["y"], relu_of(inputs))
    stats = pool.stats()
    assert stats.total_executions == 10
    assert stats.avg_queue_time_ms >= 0


def test_cancel(executor, layer, inputs):
    async def main():
        handle = executor.execute_async(layer, inputs)
        if handle.cancel():  # unless it was done before
            with pytest.raises(asyncio.CancelledError):
                await handle

    asyncio.run(main())
