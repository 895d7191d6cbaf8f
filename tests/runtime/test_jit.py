"""The JIT: at once on the loop, compiled when hot, the measured winner kept, and never another answer."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.plan.printing import STEPWISE
from tensorlogic.runtime import tuning
from tensorlogic.runtime.jit import Jit


def graph(symbolic: bool = True) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n" if symbolic else 20, 16), "float32")
    return b.build(y=b.softmax(b.tanh(x * 0.5) + x))


def inputs(n: int = 20, seed: int = 0) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).normal(size=(n, 16)).astype("float32")}


def jit(executor: tl.Executor) -> Jit:
    assert executor.jit is not None
    return executor.jit


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
        np.testing.assert_array_equal(executor.execute_jit(g, inputs(), config)["y"], want)
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


def test_a_native_version_that_is_not_faster_is_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=1, exact=False)
    monkeypatch.setattr(tuning.AdaptiveOptimizer, "best", lambda self, name: 1.0 if name != STEPWISE else 1e-12)
    executor.execute_jit(g, inputs(), config)
    jit(executor).compiler.wait()
    [program] = jit(executor).cache.values()
    assert program.plan.name == program.choice.plan == STEPWISE
    assert executor.get_jit_stats().discarded == 1


def test_answers_keep_their_bits_when_a_graph_becomes_hot() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 16), "float32"), b.input("w", (16, 16), "float32")
    h = b.relu(x @ w + 0.25) * 3.0 - b.minimum(x, 0.5)
    g = b.build(y=b.exp(h), s=b.sum(h, axis=1), m=b.max(h * h, axis=1))
    rng = np.random.default_rng(0)
    for n in (20, 3000):
        given = {"x": rng.normal(size=(n, 16)).astype("f4"), "w": rng.normal(size=(16, 16)).astype("f4")}
        executor, config = tl.Executor(), tl.JitConfig(hot_path_threshold=2)
        want = executor.execute_jit(g, given, config)
        for _ in range(30):
            found = executor.execute_jit(g, given, config)
            for a, c in zip(found, want, strict=True):
                np.testing.assert_array_equal(a, c)
            if executor.get_jit_stats().compiled:
                break
            jit(executor).compiler.wait()
        [program] = jit(executor).cache.values()
        assert program.plan.exact
        for a, c in zip(executor.execute_jit(g, given, config), want, strict=True):
            np.testing.assert_array_equal(a, c)


def test_the_adaptive_policy_is_the_jit() -> None:
    executor, g = tl.Executor(policy="adaptive"), graph()
    for _ in range(12):
        executor.execute(g, inputs())
    assert executor.get_jit_stats().hot_paths_detected == 1


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


def test_what_had_to_go_comes_back_when_it_is_hot_again() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=2, max_cache_size=1)
    for n in (5, 6, 5, 6):
        for _ in range(3):
            executor.execute_jit(g, inputs(n), config)
            jit(executor).compiler.wait()
    stats = executor.get_jit_stats()
    assert (stats.calls, stats.hot_paths_detected, stats.cache.evictions) == (12, 2, 3)
    assert stats.cache.hits == 1 + 2 + 1 + 1  # the second size waits for no second call; one that had to go does


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_finds_the_jit_ready(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import os, warnings, numpy as np, tensorlogic as tl
        warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forking with threads
        graphs = []
        for k in range(3):
            b = tl.GraphBuilder()
            x = b.input("x", (2000, 8), "float32")
            graphs.append(b.build(y=b.softmax(b.tanh(x * float(k + 1)))))
        value, config = {"x": np.ones((2000, 8), "float32")}, tl.JitConfig(hot_path_threshold=1)
        executor = tl.Executor()
        executor.execute_jit(graphs[0], value, config)
        executor.jit.compiler.wait()
        executor.execute_jit(graphs[1], value, config)  # is being compiled while the child begins
        pid = os.fork()
        if pid == 0:
            for g in graphs:
                executor.execute_jit(g, value, config)
            executor.jit.compiler.wait()
            os._exit(0 if len(executor.jit.cache.values()) == 3 else 1)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    """)
    env = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=120, env=env
    )
    assert done.stdout == "0\n", done.stderr


def test_what_fails_to_compile_goes_on_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=1)
    want = executor.execute_jit(g, inputs(), tl.JitConfig(hot_path_threshold=99))["y"]

    def broken(*args: Any) -> Any:
        raise RuntimeError("no memory for code")

    executor.jit = Jit(executor, config)
    monkeypatch.setattr(executor.jit.hot, "make", broken)
    for _ in range(3):
        np.testing.assert_array_equal(executor.execute_jit(g, inputs(), config)["y"], want)
    jit(executor).compiler.wait()
    assert executor.get_jit_stats().failures == ("RuntimeError: no memory for code",)


def test_hooks_and_out_work_when_compiled() -> None:
    executor, g, config = tl.Executor(), graph(), tl.JitConfig(hot_path_threshold=1, exact=False)
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


def many(k: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 16), "float32"), b.input("w", (16, 16), "float32")
    if k == 3:
        return b.build(y=b.einsum("ij,jk->ik", x > 0.0, w > 0.0, algebra="boolean"))
    return b.build(y=b.softmax(b.tanh(x @ w + float(k))), s=b.sum(b.relu(x) * float(k + 1), axis=1))


def stress(seconds: float) -> None:
    """Eight threads on different and equal graphs, through the JIT and compiled; outputs are held and looked at again."""
    rng = np.random.default_rng(0)
    graphs, sizes = [many(k) for k in range(4)], (3, 64, 3000)
    given = {n: {"x": rng.normal(size=(n, 16)).astype("float32"), "w": rng.normal(size=(16, 16)).astype("float32")} for n in sizes}  # fmt: skip
    want = {(k, n): dict(tl.Executor().execute(g, given[n])) for k, g in enumerate(graphs) for n in sizes}
    executor, config = tl.Executor(), tl.JitConfig(hot_path_threshold=3, max_cache_size=6)
    aggressive = tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE)
    compiled = [executor.compile_graph(g, aggressive) for g in graphs]
    wrong: list[Any] = []
    end = time.monotonic() + seconds

    def work(seed: int) -> None:
        own = np.random.default_rng(seed)
        held: list[tuple[Any, Any]] = []
        calls = 0
        while (calls < 20 or time.monotonic() < end) and not wrong:
            calls += 1
            k, n = int(own.integers(4)), int(own.choice(sizes))
            out = {"y": np.empty_like(want[k, n]["y"])} if own.random() < 0.2 else None
            try:
                if own.random() < 0.6:
                    made = executor.execute_jit(graphs[k], given[n], config, out=out)
                else:
                    made = compiled[k](given[n], out=out)
            except BaseException as error:
                wrong.append(error)
                return
            if out is not None and made["y"] is not out["y"]:
                wrong.append((k, n, "out"))
            for name, value in want[k, n].items():
                if not np.allclose(made[name], value, rtol=1e-4, atol=1e-5):
                    wrong.append((k, n, name))
            held = [*held[-4:], (made, [np.array(v) for v in made])]
            if any(not np.array_equal(a, b) for outputs, copies in held for a, b in zip(outputs, copies, strict=True)):
                wrong.append((k, n, "written over"))
            if own.random() < 0.005:
                executor.clear_jit_cache()

    callers = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong
    assert executor.get_jit_stats().failures == ()


def test_eight_threads_on_different_and_equal_graphs() -> None:
    stress(2.0)


@pytest.mark.full
def test_eight_threads_for_a_minute(request: pytest.FixtureRequest) -> None:
    if "full" not in request.config.option.markexpr:
        pytest.skip("the minute runs with -m full (make conformance)")
    stress(60.0)


def test_a_first_run_that_loads_machine_code_does_not_decide():
    choice = tuning.AdaptiveOptimizer(["native", "loop"])
    first = {"native": 3.0, "loop": 0.004}
    while choice.winner is None:
        name = choice.next()
        choice.record(name, first.pop(name, {"native": 0.0001, "loop": 0.003}[name]))
    assert choice.winner == "native"


def test_a_plan_that_takes_very_long_is_run_once():
    choice = tuning.AdaptiveOptimizer(["slow", "quick"])
    while choice.winner is None:
        name = choice.next()
        choice.record(name, {"slow": 60.0, "quick": 3.0}[name])
    assert choice.winner == "quick" and {n: len(times) for n, times in choice.times.items()} == {"slow": 1, "quick": 2}


def test_plans_timed_on_a_busy_machine_are_timed_until_they_stop_becoming_faster():
    choice, runs = tuning.AdaptiveOptimizer(["quick", "slow"]), 0
    while choice.winner is None:
        name, runs = choice.next(), runs + 1
        busy = runs < 45  # into the second turn of both
        choice.record(name, {"quick": 0.004 if busy else 0.001, "slow": 0.003 if busy else 0.002}[name])
    assert choice.winner == "quick" and choice.turn > tuning.TURNS + 1


def test_plans_that_become_faster_for_ever_are_not_timed_for_ever():
    choice, seconds = tuning.AdaptiveOptimizer(["a", "b"]), 0.1
    while choice.winner is None:
        seconds *= 0.97
        choice.record(choice.next(), seconds)
    assert choice.turn == tuning.MOST_TURNS + 1
