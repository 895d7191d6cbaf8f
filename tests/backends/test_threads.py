"""Costly steps in halves, products by rows: the same answers as whole, whatever the shapes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import threads
from tensorlogic.backends.erf import erf32
from tensorlogic.plan import sharing
from tensorlogic.runtime.call import run
from tensorlogic.runtime.program import bind
from tensorlogic.testing.every_plan import native_plan


@pytest.fixture(autouse=True)
def two_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "workers", lambda: 3)  # an odd number, so that parts differ


def split_steps(graph: tl.EinsumGraph) -> list[str]:
    return [s.op.name for s in tl.Executor().plan(graph).steps if s.threads]


@pytest.mark.parametrize("fn", ["exp", "tanh", "erf", "sigmoid", "sin", "log1p"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_costly_functions_in_parts(fn: str, dtype: str) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (601, 503), dtype)
    graph = b.build(y=getattr(b, fn)(x) + 0.0)
    assert split_steps(graph) == [fn]
    rng = np.random.default_rng(0)
    given = np.abs(rng.normal(size=(601, 503))).astype(dtype)
    given[0, :4] = np.nan, np.inf, 0.0, 1e30
    whole = tl.Executor(wrap=[lambda call: call]).execute(graph, {"x": given})["y"]  # wrapped plans run step by step
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        np.testing.assert_array_equal(tl.Executor().execute(graph, {"x": given})["y"], whole)
    turned = np.asfortranarray(given)
    np.testing.assert_array_equal(tl.Executor().execute(graph, {"x": turned})["y"], whole)


@pytest.mark.parametrize(
    ("spec", "a", "c"),
    [
        ("ij,jk->ik", (601, 300), (300, 200)), ("bij,jk->bik", (7, 90, 300), (300, 200)),
        ("ij,kj->ik", (601, 300), (200, 300)), ("bijc,cjk->bik", (5, 80, 20, 15), (15, 20, 200)),
        ("bij,jk->bik", (2, 300, 300), (300, 200)), ("ij,jk->ki", (601, 300), (300, 200)),
    ],
)  # fmt: skip
def test_products_by_rows(spec: str, a: tuple[int, ...], c: tuple[int, ...]) -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", a, "float32"), b.input("w", c, "float32")
    big = b.input("z", (600, 600), "float32")
    graph = b.build(y=b.einsum(spec, x, w) * 2.0, e=b.exp(big) * 2.0)
    assert split_steps(graph) == ["einsum", "exp"]
    rng = np.random.default_rng(0)
    given = {"x": rng.random(a, np.float32), "w": rng.random(c, np.float32), "z": rng.random((600, 600), np.float32)}
    got = tl.Executor().execute(graph, given)
    np.testing.assert_allclose(got["y"], 2 * np.einsum(spec, given["x"], given["w"]), rtol=1e-5)
    np.testing.assert_array_equal(got["e"], np.exp(given["z"]) * 2)


def test_a_dot_product_has_no_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large one beside a costly step was once an IndexError."""
    monkeypatch.setattr(sharing, "WIDE", 1000)
    b = tl.GraphBuilder()
    x, big = b.input("x", (64, 64), "float32"), b.input("z", (600, 600), "float32")
    graph = b.build(y=b.einsum("ij,ij->", b.relu(x), x) * 2.0, e=b.exp(big) * 2.0)
    given = {"x": np.full((64, 64), 0.5, np.float32), "z": np.zeros((600, 600), np.float32)}
    assert tl.Executor().execute(graph, given)["y"] == 2048


def test_without_costly_steps_blas_keeps_its_threads() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (600, 600), "float32")
    assert split_steps(b.build(y=b.relu(x @ x) @ x)) == []


def test_several_callers_at_once() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (600, 600), "float32")
    graph, executor = b.build(y=b.tanh(b.exp(x) @ x) + 1.0), tl.Executor()
    wrong: list[int] = []

    def work(seed: int) -> None:
        given = np.random.default_rng(seed).random((600, 600), np.float32) / 100
        for _ in range(5):
            if not np.allclose(
                executor.execute(graph, {"x": given})["y"], np.tanh(np.exp(given) @ given) + 1, rtol=1e-4
            ):
                wrong.append(seed)

    callers = [threading.Thread(target=work, args=(k,)) for k in range(6)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong


def test_an_error_in_a_part_is_raised_after_all_ended() -> None:
    ended: list[int] = []

    def kernel(x: Any, out: Any) -> None:
        ended.append(x.size)
        if x[0] == 0:
            raise ValueError("the first part")

    with pytest.raises(ValueError, match="the first part"):
        threads.in_parts(kernel, 3)(np.arange(10.0), np.empty(10))
    assert sum(ended) == 10


def test_a_thread_that_is_held_up_does_fewer_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "PART", 10)
    all_begun, parts = threading.Event(), list[tuple[str, int]]()

    def kernel(x: Any, out: Any) -> None:
        here = threading.current_thread() is threading.main_thread()
        parts.append(("here" if here else "there", x.size))
        if len(parts) == 8:
            all_begun.set()
        assert not here or all_begun.wait(30)

    threads.in_parts(kernel, 2)(np.arange(80.0), np.empty(80))
    assert [size for _, size in parts] == [10] * 8
    assert [where for where, _ in parts].count("there") >= 7


def test_erf_is_within_a_unit_in_the_last_place() -> None:
    from scipy.special import erf

    x = np.concatenate([np.linspace(-6, 6, 200_001), 10.0 ** np.linspace(-44, 1, 20_001), [0.0, -0.0, np.inf, -np.inf]])
    x = x.astype("float32")
    want = erf(x.astype("float64"))
    unit = np.spacing(np.abs(want.astype("float32"))).astype("float64")
    assert np.max(np.abs(erf32(x) - want) / unit) < 0.6
    assert np.signbit(erf32(np.array([-0.0], "float32")))[0]
    assert np.isnan(erf32(np.array([np.nan], "float32")))[0]
    assert erf32(np.zeros((0, 3), "float32")).shape == (0, 3)


def test_what_runs_together_runs_its_own_calls_one_after_another() -> None:
    seen: list[int] = []

    def outer(n: int) -> None:
        threads.together([partial(seen.append, 10 * n + k) for k in range(3)])

    threads.together([partial(outer, n) for n in range(4)], 2)
    assert sorted(seen) == sorted(10 * n + k for n in range(4) for k in range(3))


INTERRUPTS = """
import os, signal, sys, threading, time
import numpy as np
from tensorlogic.backends import threads

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for what they run in the background

def blas():
    return [library.get_num_threads() for library in threads._libraries()]

before = blas()
x = np.ones((40, 40))
kernel = threads.on_one_thread(lambda: x @ x)
ended = [0]

def part():
    x @ x
    ended[0] += 1

def work():
    kernel()
    threads.together([part] * 6, 3)

over, begun = [], []  # an Event has a lock, which an interrupt may leave held

def interrupt():
    while not over:
        time.sleep(0.0004)
        if begun:
            os.kill(os.getpid(), signal.SIGINT)

sender = threading.Thread(target=interrupt)
count = 0
sender.start()
end = time.monotonic() + 60
while count < 600 and time.monotonic() < end:
    try:
        while True:
            begun[:] = [True]
            work()
    except KeyboardInterrupt:
        count += 1
while True:
    try:
        over[:] = [True]
        sender.join()
        break
    except KeyboardInterrupt:
        pass
work()
assert count >= 100, count
assert blas() == before, (blas(), before)
print("fine")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals are sent otherwise")
def test_interrupts_leave_blas_and_the_pool_as_they_were() -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTS], check=False, capture_output=True, text=True, timeout=150,
        env=os.environ | {"OPENBLAS_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.stdout == "fine\n", done.stderr[-2000:]


def ends(call: Any) -> bool:
    """Tell whether a call on another thread comes to its end."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def test_an_interrupt_after_a_ticket_ended_leaves_nobody_waiting() -> None:
    ticket = threads._Ticket(lambda: None)
    ticket.use()
    assert ticket.done.acquire(timeout=20)  # as the caller did who was interrupted before it went on
    assert ends(ticket.finish)


class Library:
    """A BLAS that is interrupted when a number of threads is set."""

    def __init__(self) -> None:
        self.count, self.interrupts = 4, 0

    def get_num_threads(self) -> int:
        return self.count

    def set_num_threads(self, count: int) -> None:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        self.count = count


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupt_while_limits_are_set_does_not_leave_them(monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    library = Library()
    monkeypatch.setattr(threads, "_libraries", lambda: [library])
    library.interrupts = 2 * (when == "before")

    def kernel() -> None:
        assert library.count == 1
        library.interrupts = 2

    run = threads.on_one_thread(kernel)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert library.count == 4 and not threads._before
    library.interrupts = 0
    threads.on_one_thread(lambda: None)()
    assert library.count == 4


def test_limits_end_with_the_last_of_nested_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(threads, "_libraries", lambda: [library])
    counts: list[int] = []
    inner = threads.on_one_thread(lambda: counts.append(library.count))

    def outer() -> None:
        inner()
        counts.append(library.count)

    threads.on_one_thread(outer)()
    assert counts == [1, 1] and library.count == 4


def test_limits_are_set_and_lifted_from_any_thread() -> None:
    """The thread that asked first may have been another: threadpoolctl itself ignores all others."""
    threads.on_one_thread(lambda: None)()  # from this thread
    [library, *_] = threads._libraries()
    before, seen = library.get_num_threads(), []
    run = threads.on_one_thread(lambda: seen.append(library.get_num_threads()))
    with ThreadPoolExecutor(1) as pool:
        threads._setter(library)(3)
        try:
            pool.submit(run).result()
            seen.append(library.get_num_threads())
        finally:
            threads._setter(library)(before)
    assert seen == [1, 3]


def test_calls_end_though_every_thread_is_gone_or_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_serve", lambda tickets: None)  # threads that end at once
    monkeypatch.setattr(threads, "_threads", 0)
    numbers: list[int] = []
    threads.together([partial(numbers.append, n) for n in range(5)], 3)
    assert sorted(numbers) == list(range(5))
    monkeypatch.setattr(threads, "_threads", 0)

    def refuse(*args: Any, **options: Any) -> Any:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    threads.together([partial(numbers.append, n) for n in range(5)], 3)
    assert len(numbers) == 10


def test_a_ticket_that_nobody_took_keeps_no_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_serve", lambda tickets: None)
    monkeypatch.setattr(threads, "_threads", 0)
    monkeypatch.setattr(threads, "_tickets", SimpleQueue())
    array = np.ones(3)
    kept = weakref.ref(array)
    threads.together([partial(np.negative, array, out=array)] * 4, 2)
    del array
    assert threads._tickets.qsize() == 1 and kept() is None


def test_no_more_threads_take_part_than_asked_for() -> None:
    lock, now, most = threading.Lock(), [0], [0]

    def call() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1

    threads.together([lambda: None] * 6, 6)  # the pool grows
    threads.together([call] * 8, 2)
    assert most[0] <= 2


def test_a_worker_that_is_interrupted_still_gives_its_ticket_back() -> None:
    def call() -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        threads.together([call, call, call], 3)
    ended: list[int] = []
    threads.together([partial(ended.append, n) for n in range(4)], 3)
    assert sorted(ended) == [0, 1, 2, 3]


def _build(spec: str, *shapes: tuple[int, ...], algebra: str = "real", dtype: str = "float32") -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    factors = [b.input(f"x{n}", shape, dtype) for n, shape in enumerate(shapes)]
    return b.build(y=b.einsum(spec, *factors, algebra=algebra))


def _gradient(n: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, y = b.input("x0", (n, n), "float32"), b.input("x1", (n, n), "float32")
    return tl.grad(b.build(loss=b.sum(b.einsum("ij,jk->ik", x, y, algebra="max_product"))), wrt=["x0"])


def _closure(n: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    edges = b.input("x0", (n, n), "bool")
    reach = lambda s, e: b.einsum("ij,jk->ik", s, e, algebra="boolean")  # noqa: E731
    return b.build(y=b.fixpoint(lambda s: reach(s, edges) | edges, edges, combine="or"))


def _beside_costly(rows: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w = b.input("x0", (rows, 300), "float32"), b.input("x1", (300, 300), "float32")
    return b.build(y=b.einsum("ij,jk->ik", x, w) * 2.0, e=b.exp(b.input("x2", (600, 600), "float32")) * 2.0)


@pytest.mark.parametrize(
    ("graph", "by"),
    [
        (_build("ij,jk->ik", (200, 200), (200, 200), algebra="max_min"), "algebra ×3"),
        (_build("ij,jk->ik", (100, 100), (100, 100), algebra="max_min"), "algebra"),
        (_build("ij,jk->ik", (200, 200), (200, 200), algebra="log_sum_exp"), "algebra ×3"),
        (_build("ij,jk->ik", (60, 60), (60, 60), algebra="log_sum_exp"), "algebra"),
        (_gradient(128), "algebra ×3"),
        (_gradient(64), "algebra"),
        (_build("ij,jk->ik", (1000, 1000), (1000, 1000), algebra="boolean", dtype="bool"), "bits ×3"),
        (_build("ij,jk->ik", (200, 200), (200, 200), algebra="boolean", dtype="bool"), "bits"),
        (_closure(200), "fixpoint"),
        (_build("bij,bjk->bik", (8, 30, 30), (8, 30, 30)), "numpy ×1"),
        (_build("bij,bjk->bik", (2, 300, 300), (2, 300, 300)), "numpy"),
        (_beside_costly(600), "numpy ×3"),
        (_beside_costly(20), "numpy ×1"),
    ],
    ids=lambda x: x if isinstance(x, str) else repr(x),
)
def test_what_a_plan_prints_about_threads_is_what_runs(
    monkeypatch: pytest.MonkeyPatch, graph: tl.EinsumGraph, by: str
) -> None:
    rng, executor = np.random.default_rng(0), tl.Executor(native=not by.startswith("numpy"))
    given = {
        name: rng.random([int(d) for d in t.shape or ()]) > 0.5
        if t.dtype == "bool"
        else rng.random(t.shape, np.float32)
        for name, t in ((name, graph.type_of(node)) for name, node in graph.inputs.items())
    }
    plan = native_plan(executor, graph, given) if executor.programs.policy == "fast" else executor.plan(graph, given)
    program, values = bind(plan, executor.backend), [given[name] for name, _, _ in plan.inputs]
    step = next(s for s in reversed(plan.steps) if s.kernel in ("matmul", "fused"))
    assert step.computed_by == by
    assert (by in str(plan)) or by == "numpy"
    run(program, values)
    teams, library, counts = list[int](), Library(), list[int]()
    monkeypatch.setattr(library, "set_num_threads", counts.append)
    real = threads._hand_out
    monkeypatch.setattr(threads, "_hand_out", lambda tickets: (teams.append(len(tickets) + 1), real(tickets)))
    monkeypatch.setattr(threads, "_libraries", lambda: [library])
    run(program, values)
    assert set(teams) == {s.threads for s in plan.steps if s.threads > 1}
    if by.startswith("numpy"):
        assert (1 in counts) == (step.threads > 0)
