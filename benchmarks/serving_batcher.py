"""Requests that gather into batches beside requests one by one, in one process; and what a cascade spares."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
from harness import Table, contest

import tensorlogic as tl

CALLERS, EACH = 64, 20  # callers at one time, and requests of each


def mlp() -> tuple[tl.EinsumGraph, np.ndarray]:
    """Return an MLP 784-512-256-10 for one row, and rows to ask it for."""
    rng = np.random.default_rng(0)
    sizes = (784, 512, 256, 10)
    b = tl.GraphBuilder()
    h = b.input("x", (784,), "float32")
    for n, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        h = h @ b.constant((rng.normal(size=(fan_in, fan_out)) / np.sqrt(fan_in)).astype("float32"))
        h = h + b.constant(np.zeros(fan_out, "float32"))
        h = b.relu(h) if n < 2 else b.softmax(h)
    return b.build(p=h), rng.normal(size=(256, 784)).astype("float32")


def tiny() -> tuple[tl.EinsumGraph, np.ndarray]:
    """Return a layer of a few numbers, whose time is all in the calls."""
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.input("x", (8,), "float32") @ b.constant(rng.normal(size=(8, 4)).astype("float32"))))
    return graph, rng.normal(size=(256, 8)).astype("float32")


def on_threads(call: Callable[[dict[str, np.ndarray]], object], rows: np.ndarray) -> None:
    """Let every caller ask one request after another, each on a thread of its own."""

    def caller(number: int) -> None:
        for n in range(EACH):
            call({"x": rows[(number + n) % len(rows)]})

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(CALLERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


async def on_tasks(call: Callable[[dict[str, np.ndarray]], object], rows: np.ndarray) -> None:
    """Let every caller ask one request after another, each in a task of its own."""

    async def caller(number: int) -> None:
        for n in range(EACH):
            await call({"x": rows[(number + n) % len(rows)]})  # type: ignore[misc]

    await asyncio.gather(*[caller(number) for number in range(CALLERS)])


def callers(title: str, graph: tl.EinsumGraph, rows: np.ndarray) -> Table:
    """Time many callers at one time, with and without a batcher between them and the executor."""
    executor, loop = tl.Executor(), asyncio.new_event_loop()
    batchers = {
        f"DynamicBatcher, tasks, {strategy.name}": tl.DynamicBatcher(
            executor, graph, tl.BatcherConfig(strategy=strategy, max_wait=0.002)
        )
        for strategy in tl.BatchingStrategy
    }
    threaded = tl.DynamicBatcher(executor, graph)
    contenders: dict[str, Callable[[], object]] = {
        "one by one, tasks (execute_async)": lambda: loop.run_until_complete(
            on_tasks(partial(executor.execute_async, graph), rows)
        ),
        "one by one, threads (execute)": lambda: on_threads(partial(executor.execute, graph), rows),
    }
    for batcher in (*batchers.values(), threaded):
        batcher.warm_up({"x": rows[0]})
    for name, batcher in batchers.items():
        contenders[name] = lambda batcher=batcher: loop.run_until_complete(on_tasks(batcher.submit, rows))
    contenders["DynamicBatcher, threads"] = lambda: on_threads(threaded.submit_and_wait, rows)
    contenders["DynamicBatcher, threads, futures"] = lambda: on_threads(
        lambda i: threaded.submit_nowait(i).result(), rows
    )
    note = (
        f"{CALLERS} callers with {EACH} requests each, one after another; divide by {CALLERS * EACH:,} for a request."
    )
    table = contest(title, note, contenders, calls=1)
    for batcher in (*batchers.values(), threaded):
        batcher.close()
    loop.close()
    return table


def cascade() -> Table:
    """Time a large model alone beside a cascade in which a small one decides the rows that it is sure of."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(10, 256))
    labels = rng.integers(0, 10, 4096)
    rows = (centres[labels] + 1.5 * rng.normal(size=(4096, 256))).astype("float32")

    def model(columns: int, width: int) -> tl.EinsumGraph:
        b = tl.GraphBuilder()
        x = b.input("x", ("n", 256), "float32")
        h = x
        for _ in range(2 if width else 0):  # layers that a larger model has, and that change nothing
            mix = np.linalg.qr(rng.normal(size=(width, 256)))[0].astype("float32")
            h = (h @ b.constant(mix.T.copy())) @ b.constant(mix)
        seen = np.zeros_like(centres)
        seen[:, :columns] = centres[:, :columns]
        scores = h @ b.constant((seen.T / 2.25).astype("float32")) - b.constant(np.square(seen).sum(1) / 4.5)
        return b.build(p=b.softmax(scores))

    coordinator = tl.MultiModelCoordinator()
    coordinator.register("small", model(48, 0), cost=1)
    coordinator.register("large", model(256, 1024), cost=400)
    names = ["small", "large"]
    routed = coordinator.route({"x": rows}, tl.RoutingStrategy.CASCADE, names)
    alone = coordinator.run("large", {"x": rows})["p"]
    on = routed.cascade.stages[1].rows if routed.cascade else 0
    right = [float(np.mean(p.argmax(1) == labels)) for p in (alone, routed.outputs["p"])]
    note = (
        f"4,096 rows, 10 classes: {on:,} rows go on to the large model at a confidence of 0.9; "
        f"{right[0]:.1%} of its answers are right alone, {right[1]:.1%} of the cascade's."
    )
    contenders = {
        "the large model for all rows": lambda: coordinator.run("large", {"x": rows}),
        "a cascade of a small one and it": lambda: coordinator.route({"x": rows}, tl.RoutingStrategy.CASCADE, names),
    }
    return contest("A cascade with early exit", note, contenders, calls=1)


def tables() -> list[Table]:
    return [
        callers("64 callers of an MLP 784-512-256-10", *mlp()),
        callers("64 callers of a tiny layer", *tiny()),
        cascade(),
    ]
