"""Fused steps of one operation, packed bits with literals, and bounds: what is odd about operands, results and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.native import facts, semiring, whole
from tensorlogic.backends.native.facts import NativeFacts
from tensorlogic.plan import groups
from tensorlogic.plan.build import ExecutionPlan, lay_out
from tensorlogic.plan.candidates import one_function
from tensorlogic.runtime import programs
from tensorlogic.runtime.call import call
from tensorlogic.testing.every_plan import every_program, native_plan


def same(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> list[str]:
    """Check the answers, and return the kinds of fused steps."""
    executor = tl.Executor(native=True)
    want = tl.Executor().execute(graph, inputs)
    _, values = executor.arrays(graph, inputs)
    for program in every_program(executor, graph, inputs):
        for value, right in zip(call(program, values), want, strict=True):
            np.testing.assert_allclose(value, right, rtol=1e-5, atol=1e-6)
    return [step.op.kind for step in native_plan(executor, graph, inputs).steps if step.parts]


@pytest.mark.parametrize("length", [0, 1, 5])
@pytest.mark.parametrize("used", ["last", "rows", "one of several", "all"])
def test_a_scan_may_start_twice_from_one_tensor_and_have_results_that_nobody_reads(length: int, used: str) -> None:
    b = tl.GraphBuilder()
    x, h = b.input("x", (length, 3), "float32"), b.input("h", (3,), "float32")
    (a, c), rows = b.scan(lambda s, x: ((s[0] + x, s[0] * 0.5), s[1] - x), (h, h), x)
    every = {"a": a, "c": c, "rows": rows}
    chosen = {"last": ["a"], "rows": ["rows"], "one of several": ["c"], "all": list(every)}[used]
    rng = np.random.default_rng(0)
    given = {"x": rng.normal(size=(length, 3)).astype("float32"), "h": rng.normal(size=3).astype("float32")}
    assert same(b.build({name: every[name] for name in chosen}), given) == ["scan"]


@pytest.mark.parametrize("algebra", ["max_min", "noisy_or", "boolean"])
def test_a_contraction_of_a_tensor_with_itself(algebra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    monkeypatch.setattr(semiring, "WORTH", 0)
    b = tl.GraphBuilder()
    x = b.input("x", (20, 20), "bool" if algebra == "boolean" else "float32")
    value = np.random.default_rng(0).random((20, 20)).astype("float32")
    graph = b.build(y=b.einsum("ij,jk->ik", x, x, algebra=algebra))
    assert same(graph, {"x": value > 0.9 if algebra == "boolean" else value}) == ["algebra"]


def test_a_literal_among_packed_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    b = tl.GraphBuilder()
    x, c = b.input("x", (30, 30), "bool"), b.input("c", (30, 30), "bool")
    y = b.where(c, b.einsum("ij,jk->ik", x, x, algebra="boolean"), True)
    rng = np.random.default_rng(0)
    given = {"x": rng.random((30, 30)) < 0.1, "c": rng.random((30, 30)) < 0.5}
    assert same(b.build(y=b.logical_xor(y, c)), given) == ["bits"]


def test_a_single_element_with_more_axes_than_the_row() -> None:
    b = tl.GraphBuilder()
    x, c = b.input("x", (4,), "float32"), b.input("c", (1, 1), "float32")
    graph = b.build(y=b.sum(b.exp(x)) * c + 1.0)
    assert same(graph, {"x": np.ones(4, "float32"), "c": np.full((1, 1), 2, "float32")}) == ["rows"]


def test_what_cancels_in_a_sum_keeps_its_nan() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 9), "float32")
    d = x - x
    value = np.zeros((3, 9), "float32")
    value[1, 4], value[2, 2] = np.inf, np.nan
    found = tl.Executor(native=True).execute(b.build(d=d, s=b.sum(d, axis=1)), {"x": value})["s"]
    np.testing.assert_array_equal(found, [0, np.nan, np.nan])


def test_half_precision_is_left_to_numpy_without_a_word() -> None:
    b = tl.GraphBuilder()
    x, y = b.input("x", (4, 6), "float16"), b.input("y", (4, 6), "float32")
    graph = b.build(a=b.transpose(x), b=b.exp(y) * 2.0)
    assert same(graph, {"x": np.ones((4, 6), "float16"), "y": np.ones((4, 6), "float32")}) == ["rows"]


def many_groups(count: int) -> tl.EinsumGraph:
    """As many chains that have no kernel in common, between products."""
    b = tl.GraphBuilder()
    x, w = b.input("x", (4,), "float32"), b.input("w", (4, 4), "float32")
    names = ["tanh", "exp", "sin", "cos", "sigmoid", "erf", "log1p"]
    for n in range(count):
        first, second = names[n % 7], names[n // 7]
        x = getattr(b, first)(getattr(b, second)(b.einsum("ij,j->i", w, x)))
    return b.build(y=x)


def native_steps(graph: tl.EinsumGraph) -> ExecutionPlan:
    return lay_out(
        tl.Executor().plan(graph).graph, in_place=True, groups=lambda g: groups.find_groups(g, NativeFacts())
    )


def test_only_so_many_kernels_are_made_of_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "KERNELS", 5)
    monkeypatch.setattr(whole, "MOST_FUNCTIONS", 5)
    few, many = (native_steps(many_groups(n)) for n in (5, 40))
    assert [sum(bool(s.parts) for s in plan.steps) for plan in (few, many)] == [5, 5]
    assert one_function(few.graph, NativeFacts()) and not one_function(many.graph, NativeFacts())


def test_groups_that_are_alike_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "KERNELS", 2)
    b = tl.GraphBuilder()
    x, w = b.input("x", (4,), "float32"), b.input("w", (4, 4), "float32")
    for _ in range(20):
        x = b.tanh(b.einsum("ij,j->i", w, x) + 1.0)
    assert sum(bool(s.parts) for s in native_steps(b.build(y=x)).steps) == 20


def test_a_plan_that_needs_more_memory_than_there_is_does_not_compete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "available_memory", lambda: 0)
    b = tl.GraphBuilder()
    x = b.input("x", (200_000,), "float32")
    graph = b.build(y=b.sum(b.exp(x) * 2.0 + b.tanh(x)))
    executor, value = tl.Executor(native=True), {"x": np.ones(200_000, "float32")}
    executor.execute(graph, value)
    assert "steps: native steps\n" in executor.explain()
    with tl.trace(detail="op") as trace:
        executor.execute(graph, value)
    assert "tanh" in str(trace)


def test_a_single_operation_is_shown_as_itself_in_detail() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", (4,), "float32")))
    executor = tl.Executor(native=True)
    with tl.trace(detail="op") as trace:
        executor.execute(graph, {"x": np.ones(4, "float32")})
    assert "one function" not in str(trace) and "exp" in str(trace)


def test_a_boolean_closure_stays_packed_in_the_native_tier(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorlogic.backends.native import bind

    seen = []
    real = bind.bind_fixpoint
    monkeypatch.setattr(bind, "bind_fixpoint", lambda step: seen.append(real(step)) or seen[-1])
    n = 700
    b = tl.GraphBuilder()
    e = b.input("e", (n, n), "bool")
    graph = b.build(r=b.fixpoint(lambda r: b.einsum("ij,jk->ik", r, e, algebra="boolean"), e, combine="or"))
    edge = np.random.default_rng(0).random((n, n)) < 0.003
    found = tl.Executor(native=True).execute(graph, {"e": edge})["r"]
    assert seen and seen[0] is not None
    paths = edge
    while True:
        more = paths | ((paths.astype("float32") @ edge.astype("float32")) > 0)
        if np.array_equal(more, paths):
            break
        paths = more
    np.testing.assert_array_equal(found, paths)


def test_a_backend_without_native_code_says_so() -> None:
    with pytest.raises(tl.BackendError, match="reference backend makes no machine code"):
        tl.Executor("reference", native=True)
    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.input("x", (3,))))
    config = tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE)
    assert tl.Executor("reference").compile_graph(graph, config)({"x": [-1.0, 0.0, 1.0]})["y"].tolist() == [0, 0, 1]
    assert tl.Executor("reference").execute_jit(graph, {"x": [-1.0, 0.0, 1.0]})["y"].tolist() == [0, 0, 1]


def test_a_kernel_that_cannot_be_made_leaves_a_step_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorlogic.backends.native import bind
    from tensorlogic.backends.native.support import NativeWarning

    def broken(*args: object) -> None:
        raise RuntimeError("no machine code today")

    monkeypatch.setattr(bind, "make_ready", broken)
    monkeypatch.setattr(groups, "PAYS", 0.0)
    monkeypatch.setattr(programs, "QUICK", 0)
    b = tl.GraphBuilder()
    x = b.input("x", (60, 60), "float32")
    graph = b.build(y=b.einsum("ij,jk->ik", x, x, algebra="max_plus"))
    value = np.random.default_rng(0).random((60, 60)).astype("float32")
    executor = tl.Executor()
    with pytest.warns(NativeWarning, match="no kernel could be made"):
        first = executor.execute(graph, {"x": value})["y"]
    assert [step.computed_by for step in executor.plan(graph, {"x": value}).steps] == ["numpy"]
    np.testing.assert_array_equal(executor.execute(graph, {"x": value})["y"], first)
    np.testing.assert_array_equal(first, (value[:, :, None] + value[None]).max(axis=1))


def test_one_profile_sees_what_runs_compiled() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", (50, 4), "float32")) * 2.0)
    executor = tl.Executor()
    compiled = executor.compile_graph(graph)
    executor.enable_profiling()
    for _ in range(3):
        executor.execute_compiled(compiled, {"x": np.ones((50, 4), "float32")})
    assert executor.get_profile_data().op_profiles["exp"].count == 3


def test_the_source_of_a_scan_is_shown_too() -> None:
    b = tl.GraphBuilder()
    last, _ = b.scan(lambda c, x: (b.tanh(c + x), c), b.input("c", (3,), "float32"), b.input("x", (5, 3), "float32"))
    config = tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE)
    compiled = tl.Executor().compile_graph(b.build(y=last), config)
    assert "# scan\n" in compiled.source and "def body(" in compiled.source
    assert tl.Executor().compile_graph(b.build(y=last)).source == ""
