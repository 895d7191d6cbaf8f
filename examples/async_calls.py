"""A small service on an event loop: requests at once, one that gives up, one that is late, and a stream of measurements.

Nothing here blocks the loop: planning and running happen on worker threads. Run it: python examples/async_calls.py
"""

import asyncio

import numpy as np

import tensorlogic as tl


def model() -> tuple[tl.EinsumGraph, dict[str, np.ndarray]]:
    """Return a layer and its weights."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 4)), b.input("w", (4, 3))
    weights = np.linspace(-1.0, 1.0, 12).reshape(4, 3)
    return b.build(scores=b.softmax(x @ w)), {"w": weights}


async def many_requests() -> None:
    """Answer a hundred requests through a pool of two executors."""
    graph, weights = model()
    rows = np.random.default_rng(0).normal(size=(100, 1, 4))
    async with tl.AsyncExecutorPool([tl.Executor(), tl.Executor()]) as pool:
        answers = await asyncio.gather(*[pool.execute(graph, {"x": row, **weights}) for row in rows])
    stats = pool.stats()
    together = tl.Executor().execute(graph, {"x": rows[:, 0], **weights})["scores"]
    same = all(np.allclose(a["scores"][0], t) for a, t in zip(answers, together, strict=True))
    print(f"{stats.total_executions} requests, {stats.failures} failed; as one run would answer: {same}")


async def impatient_requests() -> None:
    """Cancel one request, and let another be late."""
    graph, weights = model()
    executor, inputs = tl.Executor(), {"x": np.ones((1, 4)), **weights}
    handle = executor.execute_async(graph, inputs)
    handle.cancel("the client left")
    try:
        await handle
    except asyncio.CancelledError as error:
        print("cancelled:", error)
    try:
        await executor.execute_async(graph, inputs, tl.AsyncConfig(timeout=0))
    except TimeoutError as error:
        print("late:", type(error).__name__)


async def measurements():
    """Give readings as they come."""
    for hour in range(4):
        await asyncio.sleep(0)
        yield {"reading": np.arange(3.0) + 10 * hour}


async def a_stream() -> None:
    """Follow readings, and know their mean at the end."""
    b = tl.GraphBuilder()
    reading = b.input("reading", ("n",))
    graph = b.build(high=b.maximum(reading - 20.0, 0.0), mean=b.mean(reading))
    async with tl.Executor().execute_stream_async(graph, measurements()) as stream:
        async for result in stream:
            print(f"hour {result.metadata.chunk_id}: above 20 by", result.outputs["high"])
    print("mean:", stream.outputs["mean"])


async def main() -> None:
    """Run all three."""
    await many_requests()
    await impatient_requests()
    await a_stream()


asyncio.run(main())
