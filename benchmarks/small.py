"""Small graphs: how the cost of a call grows with depth, and with callers at once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from harness import Table, contest

import tensorlogic as tl

DEPTHS = (1, 10, 100, 1000)
CALLERS = (1, 2, 4, 8)
CALLS = 64


def layers(depth: int) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return so many small layers by hand and through the executor."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(16, 16)).astype("float32")
    w = (rng.normal(size=(16, 16)) / 4).astype("float32")
    b = tl.GraphBuilder()
    z, tw = b.input("x", (16, 16), "float32"), b.input("w", (16, 16), "float32")
    for _ in range(depth):
        z = b.tanh(z @ tw)
    graph, executor, inputs = b.build(z=z), tl.Executor(), {"x": x, "w": w}

    def by_hand() -> np.ndarray:
        z = x
        for _ in range(depth):
            z = np.tanh(np.matmul(z, w))
        return z

    return by_hand, lambda: executor.execute(graph, inputs)[0]


def together(call: Callable[[], object], pool: ThreadPoolExecutor, callers: int) -> Callable[[], object]:
    """Return what makes the same number of calls from so many threads."""

    def several(_: int) -> None:
        for _ in range(CALLS // callers):
            call()

    return lambda: deque(pool.map(several, range(callers)), maxlen=0)


def formula() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a formula over 100,000 elements: NumPy lets other threads run meanwhile."""
    rng = np.random.default_rng(0)
    facts = {name: rng.random(100_000, dtype="float32") for name in "ab"}
    b = tl.GraphBuilder()
    x, y = (b.input(name, (100_000,), "float32") for name in "ab")
    graph, executor = b.build(y=b.exp(-b.minimum(x, 1 - y))), tl.Executor()
    return (
        lambda: np.exp(-np.minimum(facts["a"], 1 - facts["b"])),
        lambda: executor.execute(graph, facts)[0],
    )


def count(n: int, thing: str) -> str:
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def tables() -> list[Table]:
    ours = "Executor.execute"
    found = []
    for depth in DEPTHS:
        by_hand, executed = layers(depth)
        note = "A product and a tanh each, float32, argument checks included."
        contenders = {"NumPy by hand": by_hand, ours: executed}
        found.append(contest(f"{count(depth, 'layer')} of 16×16", note, contenders, ours=(ours,), agree=1e-4))
    by_hand, executed = formula()
    for callers in CALLERS:
        with ThreadPoolExecutor(callers) as pool:
            note = f"{CALLS} calls of a formula over 100,000 elements from {count(callers, 'thread')}, one executor for all of them."
            contenders = {
                "NumPy by hand": together(by_hand, pool, callers),
                ours: together(executed, pool, callers),
            }
            title = f"{count(callers, 'caller')} at once"
            found.append(contest(title, note, contenders, ours=(ours,), calls=1))
    return found
