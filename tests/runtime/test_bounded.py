"""Running within a budget: the same answers in less memory, as tracemalloc measures it, or figures of what is lacking."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import GraphBuilder, InputError, OutOfMemoryError, TensorShape, TensorType
from tensorlogic.plan import groups
from tensorlogic.plan.budget import Slicing, slicing_for
from tensorlogic.plan.build import ExecutionPlan
from tensorlogic.plan.cost import nbytes

MIB = 1 << 20
EX = tl.Executor()
Made = tuple[tl.EinsumGraph, dict[str, Any]]


def numbers(*shape: int, dtype: str = "f4") -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def types(inputs: dict[str, Any]) -> dict[str, TensorType]:
    return {n: TensorType(TensorShape(x.shape), x.dtype.name) for n, x in inputs.items()}


def attention() -> Made:
    b = GraphBuilder()
    q, k, v = (b.input(n, ("n", 16), "float32") for n in "qkv")
    return b.build(y=b.attention(q, k, v)), {n: numbers(1024, 16) * 0.1 for n in "qkv"}


def layers() -> Made:
    b = GraphBuilder()
    x, w = b.input("x", ("n", 8), "float32"), b.input("w", (8, 8), "float32")
    for _ in range(3):
        x = x + b.attention(x @ w, x, x)
    return b.build(y=x), {"x": numbers(512, 8) * 0.1, "w": numbers(8, 8)}


def join() -> Made:
    b = GraphBuilder()
    r, s, t = (b.input(n, ("n", "n"), "float32") for n in "rst")
    paths = b.einsum("xy,yz->xyz", r, s) * b.reshape(t, (1, "n", "n"))  # n³ on the way
    return b.build(y=b.sum(paths, 1)), {n: numbers(96, 96) for n in "rst"}


def contracted() -> Made:
    b = GraphBuilder()
    x, w, v = b.input("x", (4, "n"), "float32"), b.input("w", ("n", "m"), "float32"), b.input("v", ("m", 3), "float32")
    h = b.relu(b.reshape(x, (4, "n", 1)) * w)  # 4 × n × m, of which only sums are needed
    return b.build(y=b.einsum("bnm,mk->bk", h, v)), {
        "x": numbers(4, 400),
        "w": numbers(400, 1000),
        "v": numbers(1000, 3),
    }


def pairs() -> Made:
    b = GraphBuilder()
    x = b.input("x", ("n", 4), "float32")
    far = b.sum(b.square(b.reshape(x, ("n", 1, 4)) - x), 2)
    best = b.min(far, 1)
    return b.build(nearest=best, mean=b.mean(far), kept=x * 2, score=b.softmax(best)), {"x": numbers(400, 4)}


def closure() -> Made:
    b = GraphBuilder()
    edge = b.input("edge", ("n", "n"), "bool")
    path = b.fixpoint(lambda p: b.einsum("xy,yz->xz", p, edge, algebra="boolean"), edge, combine="or")
    return b.build(count=b.sum(path, 1)), {"edge": np.random.default_rng(3).random((400, 400)) < 0.004}


@pytest.fixture(autouse=True)
def on_numpy(monkeypatch):
    monkeypatch.setattr(groups, "PAYS", float("inf"))  # packed bits would need no budget
    monkeypatch.setattr(groups, "MANY_ROWS", 0)


def run_within(executor, graph, inputs, budget):
    return executor.execute(graph, inputs, budget=budget)


GRAPHS: dict[str, tuple[Callable[[], Made], int]] = {  # and a budget well below what they take at once
    "attention": (attention, MIB),
    "three layers of attention": (layers, MIB // 2),
    "a chain join": (join, MIB // 2),
    "a contracted index": (contracted, MIB),
    "all pairs": (pairs, MIB // 2),
    "a transitive closure": (closure, MIB),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_it_runs_within_its_budget(name, measured):
    make, budget = GRAPHS[name]
    graph, inputs = make()
    at_once = EX.plan(graph, inputs).peak_bytes
    assert at_once > 2 * budget
    want = EX.execute(graph, inputs)
    executor = tl.Executor()
    executor.execute(graph, inputs, budget=budget)  # imports, and what is kept for good
    got, peak = measured(executor.execute, graph, inputs, budget=budget)
    assert list(got.keys()) == list(want.keys())
    for key, value in want.items():
        assert got[key].dtype == value.dtype
        np.testing.assert_allclose(got[key], value, rtol=2e-4, atol=2e-4)
    assert peak <= 1.1 * budget, f"{peak:,} of {budget:,}"


@pytest.mark.parametrize("name", GRAPHS)
def test_the_planned_peak_fits_and_fewer_parts_would_not(name):
    make, budget = GRAPHS[name]
    graph, inputs = make()
    found = slicing_for(graph, types(inputs), budget)
    assert isinstance(found, Slicing)
    assert found.peak_bytes <= budget < found.whole_bytes
    assert slicing_for(graph, types(inputs), found.whole_bytes) is None
    smaller = slicing_for(graph, types(inputs), found.peak_bytes)  # its own peak is enough for it
    assert smaller is not None
    assert smaller.peak_bytes <= found.peak_bytes


def test_the_fewest_parts_are_chosen():
    graph, inputs = attention()
    numbers_of_parts = []
    for budget in (8 * MIB, 4 * MIB, MIB, MIB // 4):
        found = slicing_for(graph, types(inputs), budget)
        numbers_of_parts.append(1 if found is None else found.number)
    assert numbers_of_parts == sorted(numbers_of_parts)
    assert numbers_of_parts[:2] == [1, 2]  # 4 MiB of scores fit; with the result, two halves of them do


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 40), st.integers(1, 30), st.integers(200, 20_000), st.booleans())
def test_any_budget_gives_the_answer_or_says_what_is_lacking(n, m, budget, exact):
    b = GraphBuilder()
    x, y = b.input("x", ("n", 3), "float64"), b.input("y", ("m", 3), "float64")
    far = b.sum(b.absolute(b.reshape(x, ("n", 1, 3)) - y), 2)
    graph = b.build(low=b.min(far, 0), total=b.sum(far), order=b.argmin(far, 1))
    inputs = {"x": np.arange(3.0 * n).reshape(n, 3) % 7, "y": np.arange(3.0 * m).reshape(m, 3) % 5}
    executor = tl.Executor(optimization_level=tl.OptimizationLevel.NONE if exact else None)
    try:
        got = run_within(executor, graph, inputs, budget)
    except OutOfMemoryError as error:
        assert "more than the budget" in str(error)
        return
    for key, value in executor.execute(graph, inputs).items():
        assert np.array_equal(got[key], value)


def test_what_fits_is_run_at_once():
    graph, inputs = pairs()
    assert slicing_for(graph, types(inputs), 100 * MIB) is None
    with tl.trace() as trace:
        run_within(EX, graph, inputs, 100 * MIB)
    assert len(trace.runs()) == 1


def test_hooks_see_every_part():
    graph, inputs = attention()
    found = slicing_for(graph, types(inputs), MIB)
    assert found is not None
    executor = tl.Executor()
    with tl.trace() as trace:
        run_within(executor, graph, inputs, MIB)
    assert len(trace.runs()) >= found.number
    assert executor.context.phase is tl.ExecutionPhase.COMPLETE


def test_wrappers_go_around_the_steps_of_parts():
    seen: list[str] = []

    def noted(call):
        def inner(step, args):
            seen.append(step.op.name)
            return call(step, args)

        return inner

    graph, inputs = attention()
    got = run_within(tl.Executor(wrap=[noted]), graph, inputs, 2 * MIB)
    np.testing.assert_allclose(got["y"], EX.execute(graph, inputs)["y"], rtol=1e-5, atol=1e-5)
    assert seen.count("exp") > 1


def test_half_floats_integers_and_truth_values_are_joined_as_they_should():
    b = GraphBuilder()
    x, i, t = b.input("x", ("n", 8), "float16"), b.input("i", ("n", 8), "int8"), b.input("t", ("n", 8), "bool")
    graph = b.build(
        sum=b.sum(x * x * x, 0), mean=b.mean(b.exp(x)), whole=b.mean(i * i), ints=b.sum(i * i, 0), any=b.any(t & t, 0),
        odds=b.einsum("nk,nk->k", x, x, algebra="noisy_or"), product=b.prod(b.cast(t, "float32") + 1, 0),
        logs=b.einsum("nk,nk->k", x, x, algebra="log_sum_exp"),
    )  # fmt: skip
    rng = np.random.default_rng(4)
    inputs = {
        "x": (rng.random((500, 8)) * 0.05).astype("f2"),
        "i": rng.integers(-9, 9, (500, 8)).astype("i1"),
        "t": rng.random((500, 8)) < 0.01,
    }
    got, want = run_within(EX, graph, inputs, 6_000), EX.execute(graph, inputs)
    for key, value in want.items():
        assert got[key].dtype == value.dtype
        np.testing.assert_allclose(got[key], value, rtol=5e-3, err_msg=key)


def test_empty_inputs_and_no_inputs():
    b = GraphBuilder()
    graph = b.build(y=b.sum(b.input("x", ("n", 3), "float32") * 2, 0))
    assert list(run_within(EX, graph, {"x": np.zeros((0, 3), "f4")}, 1000)["y"]) == [0, 0, 0]
    constant = b.build(y=b.constant(np.ones(3)) + 1)
    assert list(run_within(EX, constant, {}, 1000)["y"]) == [2, 2, 2]


def test_inputs_are_checked_as_by_execute():
    graph, inputs = pairs()
    with pytest.raises(InputError, match="input 'x' is missing"):
        run_within(EX, graph, {}, MIB)
    with pytest.raises(InputError, match="no input 'z'"):
        run_within(EX, graph, {**inputs, "z": 1}, MIB)
    for budget in (-1, 2.5, True, "1MB", [1], {}):
        with pytest.raises(InputError, match="a budget is a number of bytes"):
            run_within(EX, graph, inputs, budget)
        with pytest.raises(InputError, match="a budget is a number of bytes"):
            EX.execute(graph, inputs, budget=budget)


@pytest.mark.parametrize("budget", [100, MIB])
@pytest.mark.parametrize("call", ["execute", "plan"])
def test_sizes_are_checked_within_a_budget_too(call, budget):
    b = GraphBuilder()
    graph = b.build(y=b.sum(b.exp(b.input("x", ("n", 3), "float64"))))
    run = getattr(EX, call)
    given = {"x": np.ones((4, 3))}
    for sizes, error, what in (
        ({"m": 4}, InputError, "the graph has no size 'm'"),
        ({"n": 4, "k": 1}, InputError, "the graph has no size 'k'"),
        ({1: 4}, InputError, "must map names to integers, got 1: 4"),
        ([4], InputError, "must be a mapping of names to integers"),
        ({"n": 2.5}, tl.ShapeError, r"an integer or a name, got 2\.5"),
        ({"n": -1}, tl.ShapeError, r"0 to 2\^63 - 1, got -1"),
        ({"n": 5}, tl.ShapeError, "size 'n' is 5 by sizes=, but axis 0 of input 'x' is 4"),
    ):
        with pytest.raises(error, match=what):
            run(graph, given, sizes=sizes, budget=budget)
    run(graph, given, sizes={"n": 4}, budget=MIB)


def test_the_error_says_by_how_much_it_does_not_fit():
    b = GraphBuilder()
    x = b.input("x", ("n",), "float64")
    graph = b.build(y=b.sqrt(b.reshape(x, ("n", 1)) * x))
    with pytest.raises(OutOfMemoryError) as caught:
        run_within(EX, graph, {"x": np.ones(1000)}, 4_000_000)
    found = caught.value.diagnostic
    assert found.code == "E003"
    assert found.message == (
        "the graph takes 7.6 MiB in the best way found to cut it, 3.8 MiB more than the budget of 3.8 MiB"
    )
    assert any("the outputs are 7.6 MiB and must be held" in line for line in found.context)
    assert any("largest result" in line for line in found.context)
    needed = next(int(line.split()[1].replace(",", "")) for line in found.suggestions if line.startswith("allow"))
    assert run_within(EX, graph, {"x": np.ones(1000)}, needed)["y"].shape == (1000, 1000)
    assert any("reduce the outputs" in line for line in found.suggestions)


def test_an_index_that_all_is_needed_of():
    b = GraphBuilder()
    x = b.input("x", (10_000,), "float64")
    graph = b.build(y=b.sum(b.sort(b.exp(x))[:3]))
    with pytest.raises(OutOfMemoryError, match="in the best way found"):
        run_within(EX, graph, {"x": np.ones(10_000)}, 50_000)


def test_several_threads_at_once():
    graph, inputs = pairs()
    want = EX.execute(graph, inputs)
    wrong: list[Any] = []

    def work() -> None:
        for _ in range(3):
            got = run_within(EX, graph, inputs, MIB // 2)
            if not np.allclose(got["score"], want["score"]):
                wrong.append(got)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_print(golden):
    made = []
    for name, (make, budget) in GRAPHS.items():
        graph, inputs = make()
        made.append(f"{name}:\n{slicing_for(graph, types(inputs), budget)}\n")
    golden("slicing.txt", "\n".join(made))


def test_stages_that_do_not_fit_are_cut_again():
    graph, inputs = layers()
    found = slicing_for(graph, types(inputs), GRAPHS["three layers of attention"][1])
    assert found is not None
    stages = [found.before, *found.pieces.values(), found.after]
    assert any(isinstance(piece, Slicing) for piece in stages)


@pytest.mark.parametrize("backend", ["reference", "null"])
def test_other_backends(backend):
    graph, inputs = pairs()
    small = {"x": inputs["x"][:20]}
    executor = tl.Executor(backend)
    got, want = run_within(executor, graph, small, 3_000), executor.execute(graph, small)
    for key, value in want.items():
        assert (got[key].shape, got[key].dtype) == (value.shape, value.dtype)
        if backend != "null":  # which has shapes alone
            np.testing.assert_allclose(got[key], value, rtol=1e-5)


def test_the_executor_takes_a_budget_and_plans_once() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 8), "float64")
    graph = b.build(far=b.max(b.sum(b.square(x.reshape(-1, 1, 8) - x), axis=2)))
    given = {"x": np.random.default_rng(0).random((100, 8))}
    executor = tl.Executor()
    want = executor.execute(graph, given)["far"]
    for _ in range(3):
        np.testing.assert_array_equal(executor.execute(graph, given, budget=200_000)["far"], want)
    np.testing.assert_array_equal(executor.execute(graph, given, budget=np.int64(200_000))["far"], want)
    assert executor.cache_stats().entries == 2  # with the budget, and without
    with pytest.raises(tl.OutOfMemoryError):
        executor.execute(graph, given, budget=100)


def test_a_scalar_noisy_or_is_joined_from_its_parts():
    b = tl.GraphBuilder()
    x = b.input("x", (100, 1000), "float64")
    graph = b.build(y=b.einsum("ij,ij->", x, x, algebra="noisy_or"))
    inputs = {"x": np.random.default_rng(0).random((100, 1000)) * 1e-3}
    whole, parts = tl.Executor().execute(graph, inputs), tl.Executor().execute(graph, inputs, budget=12_000)
    np.testing.assert_allclose(parts[0], whole[0], rtol=1e-9)


def packed_bytes(plan: ExecutionPlan) -> int:
    """Return the bytes that steps read and write, those of parts as often as there are parts, on all levels."""
    total = 0
    for step in plan.steps:
        if step.cut:
            total += len(step.cut.ranges) * packed_bytes(step.bodies[0])
        else:
            total += sum(map(nbytes, (*step.arg_types, *step.types)))
    return total


@pytest.mark.parametrize("sizes", [(6000, 6000, 6000), (20000, 500, 2000), (3000, 200, 30000)])
def test_parts_of_a_boolean_join_are_few_because_each_packs_the_other_operand_again(monkeypatch, sizes):
    """In 188 parts of 32 rows it took twelve times as long as at once, and so it did in 6 parts of 3 parts of 2."""
    monkeypatch.undo()  # this one is on packed bits
    b = tl.GraphBuilder()
    x, y = b.input("x", sizes[:2], "bool"), b.input("y", sizes[1:], "bool")
    graph = b.build(r=b.einsum("xy,yz->xz", x, y, algebra="boolean"))
    executor = tl.Executor()
    with pytest.raises(tl.OutOfMemoryError) as caught:
        executor.plan(graph, budget=1000)
    least = int(re.search(r"allow ([\d,]+) bytes", str(caught.value)).group(1).replace(",", ""))
    whole = executor.plan(graph)
    for budget in (least, (least + whole.peak_bytes) // 2):
        plan = executor.plan(graph, budget=budget)
        assert plan.peak_bytes <= budget < whole.peak_bytes
        assert packed_bytes(plan) <= 2.25 * packed_bytes(whole)


@pytest.mark.parametrize("budget", [280_000, 225_000])
def test_parts_write_where_their_results_belong_and_over_no_result_that_is_held(budget):
    b = GraphBuilder()
    x, y = b.input("x", (256, 64), "float64"), b.input("y", (64, 100), "float64")
    graph = b.build(y=b.sin(b.einsum("ij,jk->ik", b.cos(x), y)))
    executor, held = tl.Executor(), []
    given = [{"x": numbers(256, 64, dtype="f8") * scale, "y": numbers(64, 100, dtype="f8")} for scale in (1, 2, 3)]
    plan = executor.plan(graph, given[0], budget=budget)
    assert [step.into for step in plan.steps] == [(-1,)]
    for one in given:
        held.append(executor.execute(graph, one, budget=budget)["y"])
    for one, result in zip(given, held, strict=True):
        np.testing.assert_allclose(result, np.sin(np.cos(one["x"]) @ one["y"]), rtol=1e-10)


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("spec", ["ijk,nik->nj", "ijk,nik->jn"])
def test_copies_of_ranges_of_later_axes_are_counted(
    native: bool, spec: str, measured: Callable[..., tuple[Any, int]]
) -> None:
    rng, b = np.random.default_rng(0), tl.GraphBuilder()
    x, y = b.input("x", (20, 600, 30), "float32"), b.input("y", (4, 20, 30), "float32")
    wide = b.input("wide", (16, 200, 401), "float32")
    rows = b.input("rows", (200, 1), "float32")
    graph = b.build(z=b.einsum(spec, x, y), w=b.sum(b.tanh(wide + rows) * b.exp(wide), axis=0))
    inputs = {name: rng.random(graph.type_of(i).shape, np.float32) for name, i in graph.inputs.items()}
    executor = tl.Executor(native=native)
    peak = executor.plan(graph, inputs).peak_bytes
    tried = 0
    for share in (2, 4, 8):
        try:
            planned = executor.plan(graph, inputs, budget=peak // share).peak_bytes
        except tl.OutOfMemoryError:
            continue
        executor.execute(graph, inputs, budget=peak // share)
        tried += 1
        assert measured(executor.execute, graph, inputs, budget=peak // share)[1] <= planned + (256 << 10)
    assert tried


@pytest.mark.parametrize("native", [False, True])
def test_outputs_that_come_after_the_parts_and_joined_ones_have_places_of_their_own(native: bool) -> None:
    b, shape = tl.GraphBuilder(), (64, 64, 8)
    x, y = b.input("x", shape, "float64"), b.input("y", shape, "float64")
    e = b.einsum("abd,bcd->acd", x, y, algebra="log_sum_exp")
    graph = b.build(turned=b.concat([e[1:], e[:1]], axis=0), first=e)
    inputs = {"x": numbers(*shape, dtype="f8"), "y": numbers(*shape, dtype="f8")}
    executor = tl.Executor(native=native)
    want = tl.Executor().execute(graph, inputs)
    budget = 3_000_000
    assert native or len(executor.plan(graph, inputs, budget=budget).steps) == 2  # the parts, and what comes after
    out = {name: np.full([int(d) for d in graph.type_of(i).shape or ()], np.nan) for name, i in graph.outputs}
    found = executor.execute(graph, inputs, budget=budget, out=out)
    for name, _ in graph.outputs:
        np.testing.assert_allclose(found[name], want[name], err_msg=name)
        np.testing.assert_allclose(out[name], want[name], err_msg=name)


def test_deep_graphs_are_cut_though_they_have_many_weights() -> None:
    b, layers = tl.GraphBuilder(), 60
    weights = [(b.input(f"u{n}", (32, 256), "float32"), b.input(f"d{n}", (256, 32), "float32")) for n in range(layers)]
    h = b.input("x", (2000, 32), "float32")
    for up, down in weights:
        h = h + b.relu(b.relu(h @ up) @ down)
    graph = b.build(y=b.sum(h, axis=1))
    whole = tl.Executor().plan(graph)
    assert tl.Executor().plan(graph, budget=whole.peak_bytes // 3).peak_bytes <= whole.peak_bytes // 3


def test_a_boolean_matrix_times_a_vector_is_not_cut_into_hundreds_of_parts(monkeypatch):
    """In 500 parts it took five times as long as at once: comparing truth values had been thought to be slow."""
    monkeypatch.undo()
    b = GraphBuilder()
    x, y = b.input("x", (5000, 5000), "bool"), b.input("y", (5000,), "bool")
    graph = b.build(r=b.einsum("ij,j->i", x, y, algebra="boolean"))
    executor = tl.Executor()
    whole = executor.plan(graph).peak_bytes
    with pytest.raises(OutOfMemoryError) as caught:
        executor.plan(graph, budget=1000)
    least = int(re.search(r"allow ([\d,]+) bytes", str(caught.value)).group(1).replace(",", ""))
    assert least <= whole  # which works
    plan = executor.plan(graph, budget=least)
    assert plan.peak_bytes <= least
    assert all(step.cut is None or len(step.cut.ranges) < 150 for step in plan.steps)


def test_a_log_sum_exp_within_a_budget_is_neither_numpys_nor_in_parts_of_few_rows(monkeypatch):
    """NumPy's needs less memory and takes forty times as long as machine code; parts of 8 rows take eighteen times as long."""
    monkeypatch.undo()
    b = GraphBuilder()
    x, y = b.input("x", (300, 300), "float32"), b.input("y", (300, 300), "float32")
    graph = b.build(r=b.einsum("xy,yz->xz", x, y, algebra="log_sum_exp"))
    executor = tl.Executor(native=True)
    whole = executor.plan(graph)
    with pytest.raises(OutOfMemoryError) as caught:
        executor.plan(graph, budget=1000)
    least = int(re.search(r"allow ([\d,]+) bytes", str(caught.value)).group(1).replace(",", ""))
    for budget in (whole.peak_bytes - 1, least):
        plan = executor.plan(graph, budget=budget)
        for body in [body for step in plan.steps for body in step.bodies] or [plan]:
            assert [step.op.kind for step in body.steps] == ["algebra"]
            assert min(body.steps[0].types[0].shape) > 8
