"""Steps on threads: the same answers, the measured winner, and nothing left running after an error."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.threads import _libraries, on_one_thread
from tensorlogic.events import watchers
from tensorlogic.plan.build import ExecutionPlan
from tensorlogic.plan.fused_steps import Fused
from tensorlogic.runtime import tuning
from tensorlogic.runtime.call import call
from tensorlogic.runtime.program import bind

N = 300


def wide(branches: int = 4) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", (N, N), "float64")
    parts = [b.tanh(b.einsum("ij,jk->ik", x * float(k + 1), x) * 0.01) for k in range(branches)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return b.build(y=total, first=parts[0])


def plans(graph: tl.EinsumGraph) -> list[ExecutionPlan]:
    executor = tl.Executor(threads=2)
    return executor.programs.options(
        graph, {n: tl.TensorType(tl.TensorShape((N, N)), "float64") for n in graph.inputs}, None
    )


def test_answers_are_the_same_in_every_call() -> None:
    graph = wide()
    x = np.random.default_rng(0).normal(size=(N, N))
    want = tl.Executor().execute(graph, {"x": x})
    executor = tl.Executor(threads=2)
    first = executor.execute(graph, {"x": x})
    for _ in range(15):
        out = executor.execute(graph, {"x": x})
        for name in ("y", "first"):
            np.testing.assert_allclose(out[name], want[name], rtol=1e-10, atol=1e-12)
            np.testing.assert_array_equal(out[name], first[name])


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_plan_is_chosen_and_said(faster: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def best(self: tuning.AdaptiveOptimizer, name: str) -> float:
        return 1.0 if name.startswith("chains") == faster else 2.0

    monkeypatch.setattr(tuning.AdaptiveOptimizer, "best", best)
    executor = tl.Executor(threads=2)
    x = np.random.default_rng(0).normal(size=(N, N))
    executor.execute(wide(), {"x": x})
    want = "chains on 2 threads" if faster else "one step after another"
    assert executor.plan(wide(), {"x": x}).name == want
    assert f"{want}, measured on the inputs given" in executor.explain()


def test_a_plan_that_fails_while_it_is_measured_is_not_chosen() -> None:
    executor = tl.Executor(threads=2)
    graph, x = wide(), np.random.default_rng(0).normal(size=(N, N))
    programs = [bind(plan, executor.backend) for plan in plans(graph)]
    assert [p.plan.name for p in programs] == ["one step after another", "chains on 2 threads"]

    def broken(*args: Any) -> Any:
        raise tl.ExecutionError("no")

    programs[1].function = broken
    assert tuning.choose(programs, [x], "x") is programs[0]


@pytest.mark.parametrize("busy", [(0.0, 0.05), (0.05, 0.1), (0.1, 0.2), (0.15, 0.3)])
@pytest.mark.parametrize("fastest", [0, 1])
def test_a_busy_moment_of_the_machine_does_not_change_the_choice(busy: tuple[float, float], fastest: int) -> None:
    executor, now = tl.Executor(threads=2), [0.0]
    graph, x = wide(2), np.random.default_rng(0).normal(size=(N, N))
    programs = [bind(plan, executor.backend) for plan in plans(graph)]
    results = call(programs[0], [x])

    def takes(seconds: float) -> Any:
        def function(*args: Any) -> Any:
            now[0] += 10 * seconds if busy[0] <= now[0] < busy[1] else seconds
            return tuple(results)

        return function

    for n, program in enumerate(programs):
        program.function = takes(0.001 if n == fastest else 0.002)
    assert tuning.choose(programs, [x], "x", lambda: now[0]) is programs[fastest]
    turn = 2 * tuning.SETTLE / tuning.TURNS
    assert now[0] < 2 * tuning.SETTLE + turn + 0.1  # one more turn than on a quiet machine, to see that times stay


def test_a_chain_has_nothing_to_run_at_once() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.sin(b.input("x", (N, N), "float64"))))
    assert [plan.name for plan in plans(graph)] == ["one step after another"]


def test_chains_hold_every_step_once_and_read_only_what_came_before() -> None:
    plan = next(plan for plan in plans(wide(6)) if plan.name == "chains on 2 threads")
    written = {slot for _, slot, _ in plan.inputs} | {slot for slot, _ in plan.constants}
    nodes = []
    for step in plan.steps:
        chains = [body.steps for body in step.bodies] if isinstance(step.op, Fused) else [(step,)]
        new: set[int] = set()
        for chain in chains:
            own = set[int]()
            for inner in chain:
                assert written.union(own).issuperset(inner.reads)
                own.update(inner.writes)
                nodes.append(inner.node)
            new |= own
        written |= new
    alone = tl.Executor().plan(wide(6))
    assert sorted(nodes) == sorted(step.node for step in alone.steps)


def late_reader() -> tl.EinsumGraph:
    """``sin(a)`` runs beside an earlier step, so that ``equal`` is the last to read ``a``: in the graph it is the first."""
    b = tl.GraphBuilder()
    x = b.input("x", (N, N), "float64")
    a = b.floor(x)
    return b.build(e=b.equal(a, b.floor(b.cos(b.sin(b.cos(b.sin(x)))))), z=b.sin(a))


def gradients() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    value = b.input("x", (N, N), "float64")
    for layer in range(3):
        value = b.tanh(value @ b.input(f"w{layer}", (N, N), "float64"))
    return tl.grad(b.build(loss=b.sum(b.square(value))), wrt=["w0", "w1", "w2"])


@pytest.mark.parametrize("graph", [late_reader(), gradients(), wide(6)], ids=["late", "gradients", "wide"])
def test_no_step_of_chains_reads_what_an_earlier_one_freed(graph: tl.EinsumGraph) -> None:
    (plan,) = [plan for plan in plans(graph) if plan.name == "chains on 2 threads"]
    gone: set[int] = set()
    for step in plan.steps:
        assert gone.isdisjoint(step.reads)
        gone.update(step.frees)
    assert gone.isdisjoint(slot for _, slot, _ in plan.outputs)


def test_a_reader_in_a_later_chain_finds_what_it_reads() -> None:
    x = np.random.default_rng(0).random((N, N)) * 3
    right = np.floor(x) == np.floor(np.cos(np.sin(np.cos(np.sin(x)))))
    assert 0 < right.sum() < right.size
    executor = tl.Executor(threads=2)
    options = plans(late_reader())
    assert [plan.name for plan in options] == ["one step after another", "chains on 2 threads"]
    for plan in options:
        program = bind(plan, executor.backend)
        for _ in range(5):
            e, z = call(program, [x])
            np.testing.assert_array_equal(e, right)
            np.testing.assert_array_equal(z, np.sin(np.floor(x)))
    for _ in range(12):
        out = executor.execute(late_reader(), {"x": x})
        np.testing.assert_array_equal(out["e"], right)
        np.testing.assert_array_equal(out["z"], np.sin(np.floor(x)))


def test_an_error_on_a_thread_names_its_step_and_leaves_the_executor_usable() -> None:
    b = tl.GraphBuilder()
    x, i = b.input("x", (N, N), "float64"), b.input("i", (N,), "int64")
    graph = b.build(y=b.sum(x @ x) + b.sum(b.gather(x @ (x * 2.0), i)) + b.sum(x @ (x * 3.0)))
    executor = tl.Executor(threads=2)
    good = {"x": np.ones((N, N)), "i": np.zeros(N, np.int64)}
    bad = {"x": np.ones((N, N)), "i": np.full(N, N)}
    for _ in range(3):
        executor.execute(graph, good)
        with pytest.raises(tl.ExecutionError, match="out of range"):
            executor.execute(graph, bad)
    assert threading.active_count() < 50


def test_hooks_see_every_step() -> None:
    graph = wide()
    executor = tl.Executor(threads=2)
    [_, chains] = [bind(plan, executor.backend) for plan in plans(graph)]
    with tl.trace() as t:
        call(chains, [np.ones((N, N))], watchers())
    nested = sum(len(body.steps) for step in chains.plan.steps for body in step.bodies)
    assert nested > 0
    assert t.step_count() == len(chains.plan.steps) + nested


def test_the_executor_says_how_plans_run() -> None:
    executor = tl.Executor(threads=2)
    assert executor.explain() == "no plan is ready yet"
    executor.execute(wide(), {"x": np.ones((N, N))})
    assert "measured on the inputs given" in executor.explain()
    alone = tl.Executor()
    alone.execute(wide(), {"x": np.ones((N, N))})
    assert "one step after another" in alone.explain()


@pytest.mark.parametrize("threads", [0, -1, 1.5, "2", True])
def test_threads_are_a_whole_number(threads: Any) -> None:
    with pytest.raises(tl.InputError, match="at least 1"):
        tl.Executor(threads=threads)


def test_blas_gets_its_threads_back() -> None:
    before = [lib.get_num_threads() for lib in _libraries()]
    seen = []
    on_one_thread(on_one_thread(lambda: seen.extend(lib.get_num_threads() for lib in _libraries())))()
    assert all(n == 1 for n in seen)
    with pytest.raises(ZeroDivisionError):
        on_one_thread(lambda: 1 / 0)()
    assert [lib.get_num_threads() for lib in _libraries()] == before
