"""Strategies: what executors they give, and how one is chosen; the clock is scripted."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.runtime import strategy_optimizer as module
from tensorlogic.runtime.strategy_optimizer import LEAST

L, M, P = tl.OptimizationLevel, tl.MemoryStrategy, tl.ParallelismStrategy


@pytest.fixture(autouse=True)
def two_cores(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 2)


def layer() -> tl.EinsumGraph:
    b = tl.GraphBuilder(intern=False)
    x, w = b.input("x", ("n", 10)), b.input("w", (10, 4))
    return b.build(y=b.relu(x @ w) + b.relu(x @ w))


def scripted(*stages: Sequence[float]) -> Callable[[], float]:
    """Return a clock under which the ways of each stage take the given seconds in each of LEAST rounds."""
    ticks, now = [], 0.0
    for stage in stages:
        for _ in range(LEAST):
            for seconds in stage:
                ticks += [now, now + seconds]
                now += seconds
    return iter(ticks).__next__


@pytest.mark.parametrize("memory", list(M))
@pytest.mark.parametrize("parallelism", list(P))
@pytest.mark.parametrize("level", list(L))
def test_every_strategy_answers_alike(memory, parallelism, level):
    way = tl.ExecutionStrategy(memory=memory, parallelism=parallelism, optimization_level=level)
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(5, 10)), "w": rng.normal(size=(10, 4))}
    executor = way.executor()
    expected = 2 * np.maximum(data["x"] @ data["w"], 0)
    np.testing.assert_allclose(executor.execute(layer(), data)["y"], expected)
    np.testing.assert_allclose(executor.compile_graph(layer())(data)["y"], expected)
    buffers = executor.plan(layer(), data).buffers
    assert bool(buffers) is (memory is M.OPTIMIZE)


def test_every_mode_answers_alike():
    data = {"x": np.ones((5, 10), "f4"), "w": np.full((10, 4), 0.5, "f4")}
    for mode in tl.ExecutionMode:
        executor = tl.ExecutionStrategy(mode=mode).executor()
        np.testing.assert_allclose(executor.execute(layer(), data)["y"], np.full((5, 4), 10))
    plan = tl.ExecutionStrategy(mode=tl.ExecutionMode.EAGER).executor().plan(layer(), data)
    assert len(plan.steps) == 5 and not plan.buffers  # as it is written


def test_one_thread_during_products_only():
    threadpoolctl = pytest.importorskip("threadpoolctl")
    blas = [c for c in threadpoolctl.ThreadpoolController().lib_controllers if c.user_api == "blas"]
    before = [c.get_num_threads() for c in blas]
    tl.ExecutionStrategy(parallelism=P.SINGLE).executor().execute(
        layer(), {"x": np.ones((3, 10)), "w": np.ones((10, 4))}
    )
    assert [c.get_num_threads() for c in blas] == before


def test_the_clearly_fastest_is_chosen():
    # threads: given, single; levels: those that differ; memory: given, separate; mode: graph, native
    clock = scripted([1.0, 0.5], [1.0, 1.0], [1.0, 1.5], [1.0, 0.9])
    best = tl.StrategyOptimizer(seconds=0, clock=clock).optimize_for_throughput(layer(), sizes={"n": 4})
    assert best.parallelism is P.SINGLE
    assert best.optimization_level is L.STANDARD
    assert best.memory is M.OPTIMIZE
    assert [t.compared for t in best.trials] == [
        "threads",
        "threads",
        "level",
        "level",
        "memory",
        "memory",
        "mode",
        "mode",
    ]
    assert [t.seconds for t in best.trials] == pytest.approx([1.0, 0.5, 1.0, 1.0, 1.0, 1.5, 1.0, 0.9])
    assert best.mode is tl.ExecutionMode.JIT and best.executor().native
    assert {t.runs for t in best.trials} == {LEAST}


def test_a_little_better_is_noise():
    clock = scripted([1.0, 0.98], [1.0, 0.99], [1.0, 0.975], [1.0, 0.98])
    given = tl.ExecutionStrategy(precision=tl.PrecisionMode.FP64)
    best = tl.StrategyOptimizer(seconds=0, clock=clock).optimize_for_latency(layer(), given, sizes={"n": 4})
    assert (best.parallelism, best.optimization_level, best.memory) == (P.AUTO, L.STANDARD, M.OPTIMIZE)
    assert best.precision is tl.PrecisionMode.FP64
    assert "nothing tried is better" in best.explain()


def test_memory_is_planned_not_timed():
    def never() -> float:
        raise AssertionError("the clock was read")

    best = tl.StrategyOptimizer(clock=never).optimize_for_memory(layer(), sizes={"n": 1000})
    chosen = [t for t in best.trials if t.chosen][-1]
    assert chosen.peak_bytes == min(t.peak_bytes for t in best.trials)
    assert {t.seconds for t in best.trials} == {None}
    assert {t.compared for t in best.trials} == {"level", "memory"}


def test_exact_leaves_out_what_may_round_otherwise():
    b = tl.GraphBuilder()
    x, w, v = (b.input(n, (6, 6), "float32") for n in "xwv")
    graph = b.build(y=b.sum((x @ w) @ v, axis=0))
    levels = {
        exact: {t.level for t in tl.StrategyOptimizer(seconds=0, exact=exact).optimize_for_memory(graph).trials}
        for exact in (False, True)
    }
    assert L.AGGRESSIVE in levels[False]
    assert L.AGGRESSIVE not in levels[True]


def test_explanation(golden):
    clock = scripted([1e-3, 0.5e-3], [0.5e-3, 0.7e-3], [0.5e-3, 0.6e-3], [0.5e-3, 0.2e-3])
    best = tl.StrategyOptimizer(seconds=0, clock=clock).optimize_for_throughput(layer())
    assert best.mode is tl.ExecutionMode.JIT
    golden("strategy.txt", f"{best}\n")


def test_given_inputs_are_used_and_fix_sizes():
    data = {"x": np.ones((7, 10), "f4")}
    best = tl.StrategyOptimizer(seconds=0).optimize_for_latency(layer(), None, data)
    assert "not given are random numbers: w" in best.explain()
    assert "sizes that were not given" not in best.explain()


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint64", "float16"])
def test_stand_ins_of_any_dtype(dtype):
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 0), dtype)
    assert tl.StrategyOptimizer(seconds=0).optimize_for_throughput(b.build(y=x + x)).explain()


def test_sizes_that_no_input_fixes():
    b = tl.GraphBuilder()
    graph = b.build(y=b.cast(b.iota("k"), "float32") * b.input("x", (), "float32"))
    assert "not given are 64: k" in tl.StrategyOptimizer(seconds=0).optimize_for_latency(graph).explain()


def test_what_cannot_be_is_said():
    with pytest.raises(tl.BackendError, match="bfloat16"):
        tl.StrategyOptimizer().optimize_for_memory(layer(), tl.ExecutionStrategy(precision=tl.PrecisionMode.BF16))
    with pytest.raises(tl.InputError, match="ExecutionStrategy is expected"):
        tl.StrategyOptimizer().optimize_for_memory(layer(), "fast")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="EinsumGraph is expected"):
        tl.StrategyOptimizer().optimize_for_memory("graph")  # type: ignore[arg-type]
    with pytest.raises(tl.InputError, match="memory is of MemoryStrategy, got 'separate'"):
        tl.ExecutionStrategy(memory="separate")  # type: ignore[arg-type]
    for seconds in ("1", -1, float("nan")):
        with pytest.raises(tl.InputError, match="seconds is how long"):
            tl.StrategyOptimizer(seconds=seconds)  # type: ignore[arg-type]


class Slotted:
    """A backend with no room for other attributes."""

    __slots__ = ()
    name, passes = "slotted", NumpyBackend.passes
    capabilities, asarray, bind = NumpyBackend.capabilities, NumpyBackend.asarray, NumpyBackend.bind
    guard, finish, bind_into = NumpyBackend.guard, NumpyBackend.finish, NumpyBackend.bind_into
    scalar, context = NumpyBackend.scalar, NumpyBackend.context


def test_any_backend_can_be_told_otherwise():
    strategy = tl.ExecutionStrategy(memory=tl.MemoryStrategy.SEPARATE, parallelism=tl.ParallelismStrategy.SINGLE)
    executor = strategy.executor(Slotted())
    assert executor.backend.name == "slotted"
    assert not executor.capabilities().supports("in_place")
    b = tl.GraphBuilder()
    x = b.input("x", (2, 2))
    assert executor.execute(b.build(y=x @ x), {"x": np.eye(2)})["y"].tolist() == [[1, 0], [0, 1]]


def test_made_up_inputs_that_do_not_suit_are_blamed():
    b = tl.GraphBuilder()
    s, _ = b.scan(lambda h, x: (h, x), np.float32(0), b.input("x", (2,), "float32"))
    grows = b.fixpoint(lambda t: t + 1.0, b.input("z", (), "float64") + s, limit=3)
    with pytest.raises(tl.ConvergenceError, match="made-up inputs"):
        tl.StrategyOptimizer(seconds=0).optimize_for_latency(b.build(y=grows))


def branches(n: int) -> tl.EinsumGraph:
    """Two heavy products that do not wait for each other."""
    b = tl.GraphBuilder()
    x, u, v = (b.input(name, (n, n), "float32") for name in "xuv")
    return b.build(y=b.tanh(x @ u), z=b.exp(x @ v * 0.01))


def test_steps_on_threads_are_tried_where_chains_are_heavy_enough(monkeypatch):
    monkeypatch.setattr(module, "MOST", 5)  # the executor's own race is not waited for
    clock = scripted([1.0, 1.1, 0.5], [1.0], [1.0, 1.0])
    best = tl.StrategyOptimizer(seconds=0, exact=True, clock=clock).optimize_for_latency(branches(256))
    threads = [t for t in best.trials if t.compared == "threads"]
    assert [t.parallelism for t in threads] == [P.AUTO, P.SINGLE, P.STEPS]
    assert best.parallelism is P.STEPS
    assert best.executor().threads == 2
    assert "parallelism steps" in best.explain()
    rng = np.random.default_rng(0)
    data = {name: rng.random((256, 256), np.float32) for name in "xuv"}
    plain = tl.Executor().execute(branches(256), data)
    for _ in range(3):
        for found, expected in zip(best.executor().execute(branches(256), data), plain, strict=True):
            np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_steps_on_threads_are_not_tried_where_nothing_runs_beside():
    best = tl.StrategyOptimizer(seconds=0).optimize_for_latency(branches(4))
    assert P.STEPS not in {t.parallelism for t in best.trials}
    assert "no two chains of steps are worth a thread" in best.explain()


def test_threads_that_were_asked_for_are_measured_as_well(monkeypatch):
    monkeypatch.setattr(module, "MOST", 5)
    given = tl.ExecutionStrategy(parallelism=P.STEPS)
    clock = scripted([1.0, 1.0, 1.0], [1.0, 1.0], [1.0, 1.0])
    best = tl.StrategyOptimizer(seconds=0, exact=True, clock=clock).optimize_for_latency(layer(), given, sizes={"n": 4})
    assert best.trials[0].parallelism is P.STEPS
    assert best.parallelism is P.STEPS


def test_one_core_has_no_threads_to_try(monkeypatch):
    monkeypatch.setattr(module.os, "cpu_count", lambda: 1)
    best = tl.StrategyOptimizer(seconds=0).optimize_for_latency(branches(256))
    assert "threads" not in {t.compared for t in best.trials}
    assert tl.ExecutionStrategy(parallelism=P.STEPS).executor().threads == 1
