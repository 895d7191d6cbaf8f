"""Awaited calls: what one costs beside the direct call, ten thousand at once, and how long an event loop is held up."""

from __future__ import annotations

import asyncio
import gc
import resource
import statistics
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from itertools import count
from time import perf_counter

import numpy as np
from harness import Table, Timing, contest

import tensorlogic as tl

AT_ONCE = 10_000
ROUNDS = 5
TICK = 0.0005  # seconds between two looks at the clock of the loop


def layer(size: int) -> tuple[tl.EinsumGraph, dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    graph = b.build(
        y=b.tanh(b.input("x", (size, size), "float32") @ b.input("w", (size, size), "float32")),
    )
    return graph, {name: rng.normal(size=(size, size)).astype("float32") for name in "xw"}


def one_call(size: int, what: str) -> Table:
    """Time a call, awaited and direct, beside asyncio's own way to a thread."""
    graph, inputs = layer(size)
    executor, loop = tl.Executor(), asyncio.new_event_loop()
    calls = 50 if size < 500 else 10

    async def ours() -> None:
        for _ in range(calls):
            await executor.execute_async(graph, inputs)

    async def to_thread() -> None:
        for _ in range(calls):
            await asyncio.to_thread(executor.execute, graph, inputs)

    def direct() -> None:
        for _ in range(calls):
            executor.execute(graph, inputs)

    contenders = {
        "Executor.execute": direct,
        "await execute_async": lambda: loop.run_until_complete(ours()),
        "await asyncio.to_thread(execute)": lambda: loop.run_until_complete(to_thread()),
    }
    note = f"{calls} calls one after another, {what}: the difference to the first row, divided by {calls}, is what awaiting costs a call."
    table = contest(f"An awaited call, {size}×{size}", note, contenders, calls=1)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    return table


def at_once() -> Table:
    """Time ten thousand calls that are awaited at one time."""
    graph, inputs = layer(16)
    executor = tl.Executor(plans=8)
    pool = tl.AsyncExecutorPool([tl.Executor(), tl.Executor()])

    def direct() -> None:
        for _ in range(AT_ONCE):
            executor.execute(graph, inputs)

    async def gathered(call: Callable[[], Awaitable[object]]) -> None:
        async def one() -> None:
            await call()

        await asyncio.gather(*[one() for _ in range(AT_ONCE)])

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    contenders = {
        "one after another, direct": direct,
        "awaited at once": lambda: asyncio.run(gathered(lambda: executor.execute_async(graph, inputs))),
        "a pool of two executors": lambda: asyncio.run(gathered(lambda: pool.execute(graph, inputs))),
    }
    table = contest(f"{AT_ONCE:,} calls at once, 16×16", "", contenders, calls=1, rounds=ROUNDS)
    more = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return table._replace(note=f"Peak memory grew by {more:.0f} MB, of which the tasks of asyncio are the larger part.")


def long_plan(graphs: Iterator[int]) -> tl.EinsumGraph:
    """Return a graph that was never planned, of a thousand nodes."""
    b = tl.GraphBuilder()
    z = b.input("x", (8, 8), "float32")
    for n in range(500):
        z = b.tanh(z @ z) + float(next(graphs) + n)
    return b.build(z=z)


def new_kernel(graphs: Iterator[int]) -> tl.EinsumGraph:
    """Return a graph that was never compiled."""
    b = tl.GraphBuilder()
    x = b.input("x", (50_000,), "float32")
    z = x
    for _ in range(2 + next(graphs) % 97):
        z = b.exp(-b.abs(z))
    return b.build(z=z * float(next(graphs)))


def stalls() -> Table:
    """Measure the longest time that an event loop waited for its turn while others worked on threads."""
    numbers = count(int(perf_counter() * 1e6) % 100_000)
    big, inputs = layer(1500)
    plain, native = tl.Executor(), tl.Executor(native=True)
    nodes, edges = 3000, np.random.default_rng(0).integers(0, 3000, (6000, 2))
    rules = "Path(x, y) <- Edge(x, y)\nPath(x, z) <- Edge(x, y), Path(y, z), Node(x)"

    def recursion() -> int:
        program = tl.Program(rules)
        program.add("Edge", [(f"n{a}", f"n{b}") for a, b in edges[:800]])
        program.add("Node", [(f"n{a}",) for a in range(nodes)])
        return len(program.query("Path(x, y)?"))

    async def four() -> None:
        await asyncio.gather(*[plain.execute_async(big, inputs) for _ in range(4)])

    def spin() -> None:
        until = perf_counter() + 0.1
        while perf_counter() < until:
            pass

    async def bare_four() -> None:
        await asyncio.gather(*[asyncio.to_thread(np.matmul, inputs["x"], inputs["w"]) for _ in range(4)])

    def planning() -> Callable[[], Awaitable[object]]:
        return partial(plain.execute_async, long_plan(numbers), {"x": np.ones((8, 8), "float32")})

    def compiling() -> Callable[[], Awaitable[object]]:
        return partial(native.execute_async, new_kernel(numbers), {"x": np.ones(50_000, "float32")})

    work: dict[str, Callable[[], Callable[[], Awaitable[object]]]] = {
        "nothing": lambda: partial(asyncio.sleep, 0.3),
        "a loop of Python, asyncio.to_thread": lambda: partial(asyncio.to_thread, spin),
        "four products, asyncio.to_thread(np.matmul)": lambda: bare_four,
        "planning 1,500 nodes": planning,
        "compiling a kernel": compiling,
        "four products of 1500×1500": lambda: four,
        "a recursion over relations, its facts read": lambda: partial(tl.run_async, recursion),
    }
    longest: dict[str, list[float]] = {name: [] for name in work}
    collector: list[float] = []
    for turn in range(ROUNDS + 1):
        gc.collect()
        for name, prepare in work.items():
            gc.disable()  # a full collection stops every thread of Python, whoever's objects it looks at
            worst = asyncio.run(_longest_stall(prepare()))
            gc.enable()
            if turn:  # the first loads modules
                longest[name].append(worst)
        start = perf_counter()
        gc.collect()
        collector.append(perf_counter() - start)
    note = (
        "The longest that a loop which looks at the clock every 0.5 ms was held up beyond that, in each of several rounds; the first "
        "row is what the machine does to a loop without work, the next two what any thread of Python and of BLAS does to it. Goal: under 5 ms. While awaited calls "
        "run, threads of Python take turns every 0.5 ms, and not every 5. Python's collector of cycles was off: a full "
        f"collection stops every thread for {statistics.median(collector) * 1e3:.0f} ms here, and gc.freeze() after a warm-up spares that."
    )
    timings = tuple(Timing(n, min(t), statistics.median(t), tuple(t)) for n, t in longest.items())
    return Table("How long an event loop is held up", note, timings)


async def _longest_stall(work: Callable[[], Awaitable[object]]) -> float:
    loop = asyncio.get_running_loop()
    worst, over = 0.0, False

    async def ticking() -> None:
        nonlocal worst
        before = perf_counter()
        while not over:
            await asyncio.sleep(TICK)
            now = perf_counter()
            worst = max(worst, now - before - TICK)
            before = now

    ticker = loop.create_task(ticking())
    await asyncio.sleep(0.01)
    worst = 0.0
    await work()
    over = True
    await ticker
    return worst


def tables() -> list[Table]:
    return [
        one_call(16, "which takes microseconds and runs on the event loop itself"),
        one_call(
            256, "which is measured to take less than a millisecond, so that it runs there too when it is awaited alone"
        ),
        one_call(640, "which runs on a worker thread"),
        at_once(),
        stalls(),
    ]
