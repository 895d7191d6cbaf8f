"""Ranges of an index side by side: the same answers, where the caller says, however uneven the ranges are."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import threads
from tensorlogic.backends.native.facts import NativeFacts
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.plan import candidates
from tensorlogic.plan.build import lay_out
from tensorlogic.plan.groups import find_groups
from tensorlogic.runtime import parts
from tensorlogic.runtime.call import call
from tensorlogic.runtime.program import Program, bind


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NativeFacts, "threads", lambda _: 2)


def network(b: tl.GraphBuilder, n: int) -> dict[str, Any]:
    x, w = b.input("x", (n, 24), "float32"), b.input("w", (24, 40), "float32")
    h = b.gelu(b.linear(x, w, b.constant(np.linspace(-1, 1, 40, dtype="float32"))))
    return {"h": h, "p": b.softmax(h @ b.constant(np.eye(40, 7, dtype="float32"))), "s": b.sum(h, axis=1)}


def ranges_of(graph: tl.EinsumGraph) -> list[Program]:
    """Return the programs that run ranges of an index of a graph on threads."""
    facts = NativeFacts()
    concrete = tl.Executor().plan(graph).graph
    plan = lay_out(concrete, in_place=True, groups=lambda g: find_groups(g, facts), threads=facts.threads)
    return [bind(p, NumpyBackend()) for p in candidates.side_by_side(plan, facts)]


def programs_of(n: int, cached: int = 1 << 30) -> tuple[tl.EinsumGraph, dict[str, Any], list[Program]]:
    b = tl.GraphBuilder()
    graph = b.build(**network(b, n))
    rng = np.random.default_rng(n)
    inputs = {"x": rng.normal(size=(n, 24)).astype("float32"), "w": rng.normal(size=(24, 40)).astype("float32")}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "CACHED", cached)
        return graph, inputs, ranges_of(graph)


@pytest.mark.parametrize("n", [1001, 2000])
def test_parts_answer_as_the_whole_does(n: int) -> None:
    graph, inputs, forms = programs_of(n, 100_000)
    assert [p.plan.name.split(" of ")[1] for p in forms] == ["axis 0"] * 2
    want = tl.Executor().execute(graph, inputs)
    for form in forms:
        for _ in range(2):
            made = call(form, [inputs["x"], inputs["w"]])
            for name, value in zip(("h", "p", "s"), made, strict=True):
                np.testing.assert_allclose(value, want[name], rtol=2e-5, atol=2e-6)


def test_outputs_go_where_the_caller_says_and_are_never_written_over() -> None:
    _, inputs, [form] = programs_of(1500)
    target = np.full((1500, 7), -1, "float32")
    values = [inputs["x"], inputs["w"]]
    first = call(form, values, (), [None, target, None])
    assert first[1] is target and (target >= 0).all()
    held, copy = first[0], first[0].copy()
    again = call(form, [inputs["x"] * 2, inputs["w"]])
    assert again[0] is not held
    np.testing.assert_array_equal(held, copy)
    where = held.ctypes.data
    del held, first
    third = call(form, values)
    assert third[0].ctypes.data == where or again[0].ctypes.data != third[0].ctypes.data


def test_a_target_that_shows_an_input_is_not_written_while_it_is_read() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (300_000,), "float32")
    graph = b.build(y=b.exp(-x) + b.tanh(x))
    [form, *_] = ranges_of(graph)
    value = np.linspace(0, 1, 300_000, dtype="float32")
    want = np.exp(-value) + np.tanh(value)
    [made] = call(form, [value], (), [value])
    assert made is value
    np.testing.assert_allclose(made, want, rtol=1e-6)


def test_a_constant_that_has_the_index_is_cut_too() -> None:
    b = tl.GraphBuilder()
    x, c = b.input("x", (3001, 50), "float32"), np.arange(3001 * 50, dtype="float32").reshape(3001, 50)
    graph = b.build(y=b.tanh(x) + b.constant(c) * 2.0)
    value = np.linspace(-1, 1, c.size, dtype="float32").reshape(c.shape)
    forms = ranges_of(graph)
    assert forms
    for form in forms:
        [made] = call(form, [value])
        np.testing.assert_allclose(made, np.tanh(value) + c * 2, rtol=1e-6)


def test_a_part_that_fails_is_told_after_all_have_ended_and_the_next_run_is_right() -> None:
    b = tl.GraphBuilder()
    x, i = b.input("x", (2000, 300), "float32"), b.input("i", (2000,), "int64")
    y = b.input("y", (2000, 300), "float32")
    graph = b.build(y=b.exp(y) * 2.0 + b.gather(x, i))
    forms = ranges_of(graph)
    assert forms
    rows, wrong = np.arange(2000)[::-1].copy(), np.arange(2000)
    wrong[[3, 1999]] = 5000  # in the first part, and in the last one
    values = {"x": np.ones((2000, 300), "float32"), "y": np.zeros((2000, 300), "float32"), "i": rows}
    for form in forms:
        order = [name for name, _, _ in form.plan.inputs]
        for _ in range(3):
            with pytest.raises(tl.ExecutionError, match="out of range"):
                call(form, [(values | {"i": wrong})[name] for name in order])
            [made] = call(form, [values[name] for name in order])
            np.testing.assert_array_equal(made, np.full((2000, 300), 3, "float32"))


def test_an_interrupt_comes_through_and_leaves_everything_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, inputs, [form] = programs_of(1200)
    want = tl.Executor().execute(graph, inputs)["h"]
    before = [lib.get_num_threads() for lib in threads._libraries()]
    whole = parts.run

    def interrupted(*args: Any) -> Any:
        whole(*args)
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return whole(*args)

    with monkeypatch.context() as patch:
        patch.setattr(parts, "run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            call(form, [inputs["x"], inputs["w"]])
    assert [lib.get_num_threads() for lib in threads._libraries()] == before
    np.testing.assert_allclose(call(form, [inputs["x"], inputs["w"]])[0], want, rtol=2e-5, atol=2e-6)


def test_while_blas_keeps_to_one_thread_others_still_plan_for_all() -> None:
    before = threads.workers()
    found: list[int] = []
    threads.on_one_thread(lambda: found.append(threads.workers()))()
    assert found == [before]


def test_what_has_no_index_in_all_outputs_is_left_alone() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3000, 300), "float32")
    for graph in (b.build(y=b.sum(b.exp(x) * 2.0)), b.build(y=b.softmax(x, axis=0) * 2.0), b.build(y=b.exp(x.T) * 2.0)):
        assert ranges_of(graph) == []


def test_blas_has_its_threads_back_and_an_error_comes_through() -> None:
    libraries = list(threads._libraries())  # SciPy may bring one of its own meanwhile
    before = [lib.get_num_threads() for lib in libraries]
    b = tl.GraphBuilder()
    x, i = b.input("x", (2000, 300), "float32"), b.input("i", (2000,), "int64")
    graph = b.build(y=b.exp(b.gather(x, i)) * 2.0 + 1.0)
    assert graph
    executor = tl.Executor(native=True)
    value = {"x": np.ones((2000, 300), "float32"), "i": np.full(2000, 5000)}
    for _ in range(3):
        with pytest.raises(tl.ExecutionError, match="out of range"):
            executor.execute(graph, value)
    assert [lib.get_num_threads() for lib in libraries] == before


def test_several_callers_at_once() -> None:
    graph, inputs, [form] = programs_of(1200)
    want = tl.Executor().execute(graph, inputs)["h"]
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(10):
            made = call(form, [inputs["x"], inputs["w"]])
            if not np.allclose(made[0], want, rtol=1e-4, atol=1e-5):
                wrong.append(made)

    callers = [threading.Thread(target=work) for _ in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert not wrong
