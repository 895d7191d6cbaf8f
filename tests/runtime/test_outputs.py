"""Who owns an output: the caller, always; its memory is written again only when nobody holds it, or where out= says."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl

N = 400  # large enough that an output's array is made before the run


def chain(outputs: int = 1) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", (N, N), "float64")
    made = {f"y{k}": b.tanh(b.sin(x * float(k + 1)) + 1.0) for k in range(outputs)}
    return b.build(made)


def answer(x: Any, k: int = 0) -> Any:
    return np.tanh(np.sin(x * float(k + 1)) + 1.0)


def some(seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=(N, N))


def test_a_chain_is_computed_in_the_array_of_its_output() -> None:
    plan = tl.Executor().plan(chain())
    assert plan.buffers == ()
    assert {step.into for step in plan.steps} == {(-1,)}
    assert plan.peak_bytes == N * N * 8


def test_results_that_are_held_never_change() -> None:
    executor, graph = tl.Executor(), chain(2)
    held = []
    for seed in range(6):
        out = executor.execute(graph, {"x": some(seed)})
        held.append((seed, out["y0"], out["y1"][3:5]))  # one whole, of one only a view
    for seed, whole, part in held:
        np.testing.assert_array_equal(whole, answer(some(seed)))
        np.testing.assert_array_equal(part, answer(some(seed), 1)[3:5])


def test_memory_of_a_dropped_result_is_used_again() -> None:
    executor, graph, x = tl.Executor(), chain(), some()
    seen = set()
    for _ in range(5):
        out = executor.execute(graph, {"x": x})["y0"]
        seen.add(out.ctypes.data)
        del out
    assert len(seen) == 1


@pytest.mark.parametrize("hold", [memoryview, np.asarray, lambda a: a.T, lambda a: a.reshape(-1)[5:], iter])
def test_anything_that_shows_a_result_holds_it(hold: Any) -> None:
    executor, graph = tl.Executor(), chain()
    out = executor.execute(graph, {"x": some()})["y0"]
    place, kept = out.ctypes.data, hold(out)
    del out
    assert executor.execute(graph, {"x": some(1)})["y0"].ctypes.data != place
    del kept


def test_threads_get_arrays_of_their_own() -> None:
    executor, graph = tl.Executor(), chain()
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = some(seed)
        for _ in range(10):
            if not np.array_equal(executor.execute(graph, {"x": x})["y0"], answer(x)):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


@pytest.mark.parametrize("n", [3, N], ids=["small", "large"])
def test_out_is_written_and_returned(n: int) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", "n"), "float64")
    graph = b.build(y=b.exp(x) @ x, total=b.sum(x), same=x, turned=x.T)
    executor = tl.Executor()
    given = np.random.default_rng(0).random((n, n)) / n
    want = executor.execute(graph, {"x": given})
    for _ in range(3):  # planned, then the quick way
        out = {k: np.full_like(np.asarray(v), np.nan) for k, v in want.items()}
        got = executor.execute(graph, {"x": given}, out=out)
        for name, value in want.items():
            assert got[name] is out[name]
            np.testing.assert_array_equal(out[name], value)
    one = np.empty((n, n))
    assert executor.execute(graph, {"x": given}, out={"y": one})["total"] == want["total"]


def test_out_may_be_an_input_or_not_contiguous() -> None:
    executor, graph = tl.Executor(), chain()
    for make in (some, lambda: np.asfortranarray(some()), lambda: np.empty((N, 2 * N))[:, ::2]):
        x, target = some(), make()
        got = executor.execute(graph, {"x": x}, out={"y0": target})["y0"]
        assert got is target
        np.testing.assert_array_equal(target, answer(some()))
    x = some()
    b = tl.GraphBuilder()
    i = b.input("x", (N, N), "float64")
    twice = b.build(y=b.tanh(i + i.T) + i)
    tl.Executor().execute(twice, {"x": x}, out={"y": x})
    np.testing.assert_array_equal(x, np.tanh(some() + some().T) + some())


def test_mistakes_in_out_are_named() -> None:
    executor, graph, x = tl.Executor(), chain(), {"x": some()}
    for _ in range(2):
        with pytest.raises(tl.InputError, match="no output 'z'"):
            executor.execute(graph, x, out={"z": some()})
        with pytest.raises(tl.InputError, match="must be an array float64"):
            executor.execute(graph, x, out={"y0": np.empty((N, N), "float32")})
        with pytest.raises(tl.InputError, match="mapping"):
            executor.execute(graph, x, out=some())
        frozen = some()
        frozen.setflags(write=False)
        with pytest.raises(tl.InputError, match="cannot be written"):
            executor.execute(graph, x, out={"y0": frozen})
        executor.execute(graph, x)


def test_out_is_checked_and_written_under_hooks_budgets_and_compiled_too() -> None:
    graph, x = chain(2), {"x": some()}
    executor = tl.Executor()
    same = np.empty((N, N))
    with tl.trace():
        for _ in range(2):
            with pytest.raises(tl.InputError, match="no output 'z'"):
                executor.execute(graph, x, out={"z": same})
            with pytest.raises(tl.InputError, match="mapping"):
                executor.execute(graph, x, out=same)
            assert executor.execute(graph, x, out={"y1": same})["y1"] is same
    np.testing.assert_array_equal(same, answer(some(), 1))
    with pytest.raises(tl.InputError, match="same memory"):
        executor.execute(graph, x, out={"y0": same, "y1": same})
    target = np.empty((N, N))
    assert executor.execute(graph, x, out={"y0": target}, budget=10**9)["y0"] is target
    np.testing.assert_array_equal(target, answer(some()))
    target[...] = 0
    executor.execute_compiled(executor.compile_graph(graph), x, out={"y0": target})
    np.testing.assert_array_equal(target, answer(some()))


@pytest.mark.parametrize("option", [{"memory_limit": -1}, {"memory_limit": "1GB"}, {"plans": "a"}, {"threads": True}])
def test_options_are_whole_numbers(option: dict[str, Any]) -> None:
    with pytest.raises(tl.InputError, match="whole number"):
        tl.Executor(**option)


def test_compiling_takes_the_executors_level() -> None:
    executor = tl.Executor(optimization_level=tl.OptimizationLevel.AGGRESSIVE)
    assert executor.compile_graph(chain()).config.optimization_level is tl.OptimizationLevel.AGGRESSIVE
