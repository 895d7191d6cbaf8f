"""One executor, many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl

THREADS = 8


def _together(work: Callable[[int], Any]) -> list[Any]:
    """Run ``work(0)`` to ``work(7)`` on as many threads, all let go at one moment."""
    gate = threading.Barrier(THREADS)

    def one(n: int) -> Any:
        gate.wait(timeout=30)
        return work(n)

    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(one, range(THREADS)))


def _mlp() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w, v = b.input("x", ("n", 8)), b.input("w", (8, 16)), b.input("v", (16, 3))
    return b.build(y=b.softmax(b.relu(x @ w) @ v), s=b.sum(x))


def _expected(x: Any, w: Any, v: Any) -> Any:
    z = np.maximum(x @ w, 0) @ v
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_one_graph_with_different_inputs() -> None:
    executor, graph = tl.Executor(), _mlp()

    def work(n: int) -> int:
        rng = np.random.default_rng(n)
        for size in (1, 5, 5, 9, 1, 5) * 5:
            x, w, v = rng.random((size, 8)), rng.random((8, 16)), rng.random((16, 3))
            out = executor.execute(graph, {"x": x, "w": w, "v": v})
            np.testing.assert_allclose(out["y"], _expected(x, w, v), rtol=1e-10)
            np.testing.assert_allclose(out["s"], x.sum())
        return n

    assert _together(work) == list(range(THREADS))
    stats = executor.cache_stats()
    assert stats.entries == 3
    assert stats.hits + stats.misses == THREADS * 30


def test_different_graphs_with_a_small_plan_cache() -> None:
    executor = tl.Executor(plans=3)

    def work(n: int) -> None:
        b = tl.GraphBuilder()
        x = b.input("x", ("k",))
        graphs = [b.build(y=x * float(n) + float(m)) for m in range(6)]
        for turn in range(4):
            for m, graph in enumerate(graphs):
                given = np.full(turn + 1, 2.0)
                np.testing.assert_array_equal(executor.execute(graph, {"x": given})["y"], given * n + m)

    _together(work)
    assert executor.cache_stats().entries <= 3


def test_loops_and_blocks() -> None:
    b = tl.GraphBuilder()
    edge = b.input("edge", ("n", "n"), "bool")
    path = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or")
    w = b.input("w", ("n", "n"))
    graph = b.build(path=path, join=b.einsum("ij,jk->ik", w, w, algebra="max_min"))
    executor = tl.Executor()

    def work(n: int) -> None:
        size = 12 + n % 3
        given = np.eye(size, k=1, dtype=bool)
        weights = np.random.default_rng(n).random((size, size))
        join = np.max(np.minimum(weights[:, :, None], weights[None]), axis=1)
        for _ in range(5):
            out = executor.execute(graph, {"edge": given, "w": weights})
            np.testing.assert_array_equal(out["path"], np.triu(np.ones((size, size), bool), 1))
            np.testing.assert_array_equal(out["join"], join)

    _together(work)


def test_errors_stay_with_the_thread_that_made_them() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.gather(b.input("x", (4,)), b.input("i", (1,), "int64")))
    executor = tl.Executor()

    def work(n: int) -> None:
        for turn in range(20):
            place = n if turn % 2 else n % 4
            if place < 4:
                assert executor.execute(graph, {"x": np.arange(4.0), "i": [place]})["y"].tolist() == [place]
            else:
                with pytest.raises(tl.ExecutionError, match=f"index {place} is out of range"):
                    executor.execute(graph, {"x": np.arange(4.0), "i": [place]})

    _together(work)


def test_a_shared_context_hears_every_run() -> None:
    class Count(tl.Hook):
        def __init__(self) -> None:
            self.threads: list[int] = []
            self.steps = 0

        def on_run(self, record: tl.RunRecord) -> None:
            self.threads.append(record.thread)
            assert len(record) == len(record.plan.steps)

    hook = Count()
    executor = tl.Executor(context=tl.ExecutionContext([hook]))
    graph = _mlp()
    x, w, v = np.ones((2, 8)), np.ones((8, 16)), np.ones((16, 3))

    def work(n: int) -> int:
        for _ in range(10):
            executor.execute(graph, {"x": x, "w": w, "v": v})
        return threading.get_ident()

    idents = _together(work)
    assert len(hook.threads) == THREADS * 10
    assert set(hook.threads) == set(idents)


def test_building_on_many_threads() -> None:
    def work(n: int) -> tl.EinsumGraph:
        b = tl.GraphBuilder()
        x = b.input("x", (2,) * 3)
        base = 60 + n  # labels beyond the alphabet are made on first use
        y = b.einsum([[base, base + 1, base + 2], [base + 2, base]], x)
        return b.build(y=b.tanh(y))

    x = np.arange(8.0).reshape(2, 2, 2)
    for graph in _together(work):
        got = tl.Executor().execute(graph, {"x": x})["y"]
        np.testing.assert_allclose(got, np.tanh(np.einsum("abc->ca", x)))


def test_callers_that_come_at_once_all_run_what_the_first_chose(monkeypatch):
    b = tl.GraphBuilder()
    graph = b.build(y=b.tanh(b.input("x", (4,), "float32")))
    executor, gate, made = tl.Executor(), threading.Barrier(2, timeout=30), []
    make, peek = executor.programs.make, executor.programs.store.get

    def noted(*args):
        made.append(make(*args))
        return made[-1]

    def missing(key):
        gate.wait()  # neither finds a program ready
        return peek(key)

    monkeypatch.setattr(executor.programs, "make", noted)
    monkeypatch.setattr(executor.programs.store, "get", missing)
    x = {"x": np.zeros(4, "f4")}
    got = []
    callers = [
        threading.Thread(target=lambda: got.append(executor.programs.for_call(graph, *executor.arrays(graph, x), None)))
        for _ in range(2)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(made) == 1 and got[0] is got[1]
