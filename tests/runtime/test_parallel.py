"""Steps on threads: the same answers, the measured winner, and nothing left running after an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.threads import _libraries, on_one_thread
from tensorlogic.runtime import forms
from tensorlogic.runtime.parallel import chains_of
from tensorlogic.runtime.race import TRIALS, Form, Race

N = 300


def wide(branches: int = 4) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", (N, N), "float64")
    parts = [b.tanh(b.einsum("ij,jk->ik", x * float(k + 1), x) * 0.01) for k in range(branches)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return b.build(y=total, first=parts[0])


def race(graph: tl.EinsumGraph, clock: Callable[[], float]) -> Race:
    executor = tl.Executor()
    made = forms.raced(executor.plan(graph), executor.backend, 2).team
    assert isinstance(made, Race)
    made._clock = clock
    return made


def test_answers_are_the_same_while_they_race_and_after() -> None:
    graph = wide()
    x = np.random.default_rng(0).normal(size=(N, N))
    want = tl.Executor().execute(graph, {"x": x})
    executor = tl.Executor(threads=2)
    for _ in range(3 * TRIALS):
        out = executor.execute(graph, {"x": x})
        np.testing.assert_allclose(out["y"], want["y"], rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(out["first"], want["first"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("faster", [True, False])
def test_the_faster_form_stays(faster: bool) -> None:
    now = 0.0
    running = ""

    def clock() -> float:
        return now

    program = race(wide(), clock)
    assert "not decided" in program.explain()
    x = np.random.default_rng(0).normal(size=(N, N))
    for name, form in program.forms.items():

        def slowed(inputs: Any, out: Any, form: Form = form, name: str = name) -> Any:
            nonlocal now, running
            running = name
            now += 1.0 if name.startswith("chains") == faster else 2.0
            return form.run(inputs, out)

        program.forms[name] = form._replace(run=slowed)
    for _ in range(2 * TRIALS + 2):
        program.run([x])
    assert program.winner is not None
    want = "chains on 2 threads" if faster else "one step after another"
    assert program.winner.name == want
    assert program.explain().startswith(want)
    program.run([x])
    assert running == want


def test_a_chain_has_nothing_to_run_at_once() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.sin(b.input("x", (N, N), "float64"))))
    program = race(graph, lambda: 0.0)
    assert program.winner is not None
    assert "no two chains" in program.explain()


def test_chains_hold_every_step_once_and_read_only_what_came_before() -> None:
    plan = tl.Executor().plan(wide(6))
    groups = chains_of(plan)
    order = [n for group in groups for chain in group for n in chain]
    assert sorted(order) == list(range(len(plan.steps)))
    written = {slot for _, slot, _ in plan.inputs} | {slot for slot, _ in plan.constants}
    for group in groups:
        made: dict[int, int] = {}
        for c, chain in enumerate(group):
            for n in chain:
                step = plan.steps[n]
                assert all(s in written or made.get(s) == c for s in step.reads)
                made.update(dict.fromkeys(step.writes, c))
        written |= made.keys()


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


def test_hooks_see_every_step_in_order() -> None:
    graph = wide()
    executor = tl.Executor(threads=2)
    with tl.trace() as t:
        executor.execute(graph, {"x": np.ones((N, N))})
    assert t.step_count() == len(executor.plan(graph).steps)


def test_the_executor_says_how_plans_run() -> None:
    executor = tl.Executor(threads=2)
    assert executor.explain() == "no plan is ready yet"
    executor.execute(wide(), {"x": np.ones((N, N))})
    assert "not decided yet" in executor.explain()
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
