"""The JIT: at once on the loop, compiled when hot, the measured winner kept, and never another answer."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.forms import ALONE
from tensorlogic.runtime.jit import Jit
from tensorlogic.runtime.race import Race


def graph(symbolic: bool = True) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n" if symbolic else 20, 16), "float32")
    return b.build(y=b.softmax(b.tanh(x * 0.5) + x))


def inputs(n: int = 20, seed: int = 0) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(size=(n, 16)).astype("float32")}


def jit(executor: tl.Executor) -> Jit:
    assert executor._jit is not None
    return executor._jit


def test_a_graph_runs_at_once_and_is_compiled_when_it_is_hot() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=3)
    want = tl.Executor().execute(g, inputs())["y"]
    for call in range(1, 4):
        np.testing.assert_array_equal(executor.execute_jit(g, inputs(), config)["y"], want)
        assert executor.get_jit_stats().hot_paths_detected == (1 if call == 3 else 0)
    jit(executor).compiler.wait()
    stats = executor.get_jit_stats()
    assert (stats.compiled, stats.failures, stats.cache.entries) == (1, (), 1)
    for _ in range(5):
        np.testing.assert_allclose(executor.execute_jit(g, inputs(), config)["y"], want, rtol=1e-6, atol=1e-7)
    assert executor.get_jit_stats().cache_hit_rate == 5 / 8
    assert str(executor.get_jit_stats()).startswith("8 calls, 1 hot path: 1 compiled")


def test_another_size_of_a_hot_graph_waits_for_nothing() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=2)
    for _ in range(2):
        executor.execute_jit(g, inputs(), config)
    jit(executor).compiler.wait()
    executor.execute_jit(g, inputs(33), config)
    jit(executor).compiler.wait()
    assert executor.get_jit_stats().compiled == 2
    found = executor.execute_jit(g, inputs(33), config)["y"]
    np.testing.assert_allclose(found, tl.Executor().execute(g, inputs(33))["y"], rtol=1e-6, atol=1e-7)


def test_a_native_version_that_is_not_faster_is_discarded() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=1)
    executor.execute_jit(g, inputs(), config)
    jit(executor).compiler.wait()
    [program] = jit(executor).cache.values()
    race = program.team
    assert isinstance(race, Race)
    for name in race.choice.times:
        race.choice.times[name] = [1.0, 1.0 if name != ALONE else 1e-12] * 10
    for _ in range(2):
        executor.execute_jit(g, inputs(), config)
    assert race.winner is not None and race.winner.name == ALONE
    assert executor.get_jit_stats().discarded == 1


def test_what_was_not_used_longest_goes_first_and_clearing_forgets_all() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=1, max_cache_size=2)
    for n in (5, 6, 7):
        executor.execute_jit(g, inputs(n), config)
        jit(executor).compiler.wait()
    stats = executor.get_jit_stats()
    assert (stats.cache.entries, stats.cache.evictions) == (2, 1)
    executor.clear_jit_cache()
    assert executor.get_jit_stats().cache.entries == 0
    executor.execute_jit(g, inputs(5), config)
    assert executor.get_jit_stats().hot_paths_detected == 1


def test_what_fails_to_compile_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=1)
    want = executor.execute_jit(g, inputs(), tl.JitConfig(hot_path_threshold=99))["y"]

    def broken(*args: Any) -> Any:
        raise RuntimeError("no memory for code")

    executor._jit = Jit(executor, config)
    monkeypatch.setattr(executor._jit.hot, "prepare", broken)
    for _ in range(3):
        np.testing.assert_array_equal(executor.execute_jit(g, inputs(), config)["y"], want)
    jit(executor).compiler.wait()
    assert executor.get_jit_stats().failures == ("RuntimeError: no memory for code",)


def test_hooks_and_out_work_when_compiled() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=1)
    executor.execute_jit(g, inputs(), config)
    jit(executor).compiler.wait()
    target = np.empty((20, 16), "float32")
    assert executor.execute_jit(g, inputs(), config, out={"y": target})["y"] is target
    with tl.trace() as trace:
        executor.execute_jit(g, inputs(), config)
    assert "one function" in str(trace)
    with tl.trace(detail="op") as trace:
        executor.execute_jit(g, inputs(), config)
    assert "one function" not in str(trace) and "tanh" in str(trace)


def test_wrong_inputs_are_named_as_always() -> None:
    executor = tl.Executor()
    with pytest.raises(tl.InputError, match="'x' is missing"):
        executor.execute_jit(graph(), {})
    with pytest.raises(tl.InputError, match="JitConfig"):
        executor.execute_jit(graph(), inputs(), "hot")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="at least 1"):
        tl.JitConfig(hot_path_threshold=0)


def test_several_threads_may_find_the_same_graph_hot() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=5)
    want = tl.Executor().execute(g, inputs())["y"]
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(30):
            found = executor.execute_jit(g, inputs(), config)["y"]
            if not np.allclose(found, want, rtol=1e-5, atol=1e-6):
                wrong.append(found)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert executor.get_jit_stats().hot_paths_detected == 1
