"""Statistics of tensors, and the first bad one with the path to it."""

import math
import re
import threading

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import tensorlogic as tl
from tensorlogic.debug import BreakpointManager, TensorInspector, TensorStats
from tensorlogic.observe.tensorstats import is_bad


def inspected(graph, inputs, **options):
    inspector = TensorInspector(**options)
    inspector.enable()
    tl.Executor(context=tl.ExecutionContext([inspector])).execute(graph, inputs)
    return inspector


def chain():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    return b.build(y=b.log(b.relu(x @ w)) * 0.5)


X, W = np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), np.ones((3, 2))


# statistics


@given(
    arrays(
        st.sampled_from([np.float16, np.float32, np.float64]),
        st.tuples(st.integers(0, 5), st.integers(0, 4)),
        elements=st.floats(-1000, 1000, width=16) | st.sampled_from([np.nan, np.inf, -np.inf]),
    )
)
def test_floats_agree_with_numpy(a):
    s = TensorStats.of("a", a.T)
    sound = a[np.isfinite(a)].astype(np.float64)
    assert (s.num_nans, s.num_infs) == (np.isnan(a).sum(), np.isinf(a).sum())
    assert is_bad(a) == (not np.isfinite(a).all())
    assert is_bad(a, nan_only=True) == bool(np.isnan(a).any())
    if sound.size == 0:
        assert s.min is s.max is s.mean is s.std is s.histogram is None
        return
    assert (s.min, s.max) == (sound.min(), sound.max())
    assert s.mean == pytest.approx(sound.mean(), rel=1e-12, abs=1e-12)
    assert s.std == pytest.approx(sound.std(), rel=1e-9, abs=1e-12)
    assert sum(s.histogram.counts) == sound.size
    assert len(s.histogram.edges) == len(s.histogram.counts) + 1
    assert (s.histogram.edges[0], s.histogram.edges[-1]) == (s.min, s.max)


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=20))
def test_integers_are_exact(values):
    s = TensorStats.of(0, np.array(values, np.int64))
    assert (s.min, s.max, s.num_nans, s.num_infs) == (min(values), max(values), 0, 0)
    assert s.mean == sum(values) / len(values)
    assert sum(s.histogram.counts) == len(values)


def test_close_large_integers_keep_their_deviation():
    assert TensorStats.of(0, np.array([2**62 + 1, 2**62 + 3])).std == 1.0
    top = TensorStats.of(0, np.array([0, 2**64 - 1], np.uint64))
    assert (top.min, top.max, top.mean) == (0, 2**64 - 1, (2**64 - 1) / 2)


def test_small_ranges_of_integers_have_a_bar_each():
    s = TensorStats.of("mask", np.array([True, False, True, True]))
    assert (s.min, s.max, s.mean, s.histogram.counts, s.histogram.edges) == (0, 1, 0.75, (1, 3), (-0.5, 0.5, 1.5))
    assert str(s) == "mask: bool[4] in 0 .. 1, mean 0.75, std 0.433013  ▃█"


@pytest.mark.parametrize("size", [1e308, 1.0, 1e-308, 5e-324])
def test_no_size_of_float_overflows_or_vanishes(size):
    s = TensorStats.of(0, np.array([-size, size]))
    assert (s.mean, s.std) == (0.0, size)
    assert s.histogram.counts[0] == s.histogram.counts[-1] == 1
    assert all(map(math.isfinite, s.histogram.edges))


@pytest.mark.parametrize("value", [np.zeros((0, 3)), np.float32(2), 5, np.array(["a"]), np.array([1j, np.nan])])
def test_odd_values_are_fine(value):
    s = TensorStats.of("odd", value)
    assert str(s).startswith("odd: ")
    assert tuple(s.shape) == np.shape(value)


def test_values_next_to_each_other_have_a_histogram():
    s = TensorStats.of(0, np.array([1.0, np.nextafter(1.0, 2)]))
    assert sum(s.histogram.counts) == 2


def test_a_large_tensor_needs_no_second_one(measured):
    a = np.ones((2000, 2000)).T  # 32 MB
    s, peak = measured(TensorStats.of, 0, a)
    assert s.mean == 1.0
    assert peak < a.nbytes / 8


# the inspector


def test_inputs_and_steps_are_looked_at(golden):
    inspector = inspected(chain(), {"x": X, "w": W})
    assert [s.name for s in inspector.stats()] == ["x", "w", "%2", "%3", "%4", "y"]
    assert inspector.stats("%3") == inspector.stats(3)
    assert [s.name for s in inspector.find_problematic_tensors()] == ["%4", "y"]
    golden("debug_inspector.txt", f"{inspector}\n")


def test_the_first_problem_and_its_path(golden):
    problem = inspected(chain(), {"x": X, "w": W}).first_problem()
    assert problem.stats.tensor_id == 4
    assert problem.origin == "made by log from finite operands"
    assert [s.node for s in problem.path] == [2, 3, 4], "what comes after it is not on the path"
    assert problem.path[-1].location.file == __file__
    golden("debug_problem.txt", re.sub(r"\S*/(test_inspect.py):\d+:\d+", r"\1", f"{problem}\n"))


def test_a_bad_input():
    inspector = inspected(chain(), {"x": np.array([[1.0, np.nan, 1.0]]), "w": W})
    problem = inspector.first_problem()
    assert (problem.stats.name, problem.origin) == ("x", "it came in as the input 'x'")
    assert str(problem) == "x has 1 NaN of 3: it came in as the input 'x'"
    assert len(inspector.problems()) == 1, "what follows from it is not a problem of its own"


def test_a_bad_constant():
    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.input("x", (2,)) * b.constant(np.array([1.0, np.inf]))))
    origin = inspected(graph, {"x": [1.0, 1.0]}).first_problem().origin
    assert re.fullmatch(r"made by multiply from the constant const\.\w{6}, which is bad already", origin)
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", (2,)) + float("inf"))
    assert inspected(graph, {"x": [1.0, 1.0]}).first_problem().origin.endswith("the constant inf, which is bad already")


def test_a_round_of_a_fixpoint(golden):
    b = tl.GraphBuilder()
    x = b.relu(b.input("x", (3,)))
    graph = b.build(y=b.fixpoint(lambda r: b.sqrt(r - 1.0), x))
    inspector = inspected(graph, {"x": [3.0, 2.5, 9.0]})
    problem = inspector.first_problem()
    assert problem.origin == "made by sqrt from finite operands, in the body of %2, round 3"
    assert [(s.operation, bool(s.inside)) for s in problem.path] == [
        ("relu", False), ("fixpoint", False), ("subtract", True), ("sqrt", True),
    ]  # fmt: skip
    golden("debug_round.txt", re.sub(r"\S*/(test_inspect.py):\d+:\d+", r"\1", f"{problem}\n"))


def test_inner_rounds_count_anew():
    b = tl.GraphBuilder()
    u = b.input("u", (3,))

    def row(h, x):
        inner = b.fixpoint(lambda r: b.minimum(r + 1.0, 3.0), x)
        return b.log(inner - 4.0 + h), inner

    last, rows = b.scan(row, np.float64(2.0), u)
    inspector = inspected(b.build(last=last, rows=rows), {"u": [0.0, 0.0, 0.0]})
    assert re.fullmatch(
        r"made by log from finite operands, in the body of %\d+, round 2", inspector.first_problem().origin
    )
    inner = [re.findall(r"round (\d)", s.name) for s in inspector.stats() if s.operation == "minimum"]
    assert inner == [[row, turn] for row in "123" for turn in "1234"]


def test_infinities_may_be_granted():
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    graph = b.build(y=b.log(x), z=b.sqrt(x - 1.0))
    inputs = {"x": [0.0, 1.0]}
    assert inspected(graph, inputs).first_problem().stats.operation == "log"
    granted = inspected(graph, inputs, nan_only=True)
    assert granted.first_problem().stats.operation == "sqrt"
    assert [s.name for s in granted.find_problematic_tensors()] == ["z"]


def test_watching_narrows_what_is_kept_not_the_search():
    inspector = TensorInspector()
    inspector.enable()
    for name in (3, "y", "x", "nowhere", 77):
        inspector.watch(name)
    tl.Executor(context=tl.ExecutionContext([inspector])).execute(chain(), {"x": X, "w": W})
    assert [s.name for s in inspector.stats()] == ["x", "%3", "y"]
    assert inspector.first_problem().stats.name == "%4"
    assert {s.name for s in inspector.find_problematic_tensors()} == {"%4", "y"}
    assert str(inspector).endswith("watched, but never met: 77, nowhere")
    for name in (3, "y", "x", "nowhere", 77):
        inspector.unwatch(name)
    inspector.clear()
    tl.Executor(context=tl.ExecutionContext([inspector])).execute(chain(), {"x": X, "w": W})
    assert len(inspector.stats()) == 6


@pytest.mark.parametrize("wrong", [True, None, 1.5])
def test_only_numbers_and_names_are_watched(wrong):
    with pytest.raises(tl.InputError, match="by its node number or its name"):
        TensorInspector().watch(wrong)


def test_an_output_that_is_an_input_answers_to_both_names():
    b = tl.GraphBuilder()
    x = b.input("größe", (2,))
    inspector = TensorInspector()
    inspector.enable()
    inspector.watch("y")
    tl.Executor(context=tl.ExecutionContext([inspector])).execute(b.build(y=x, z=b.relu(x)), {"größe": [1.0, 2.0]})
    assert [s.name for s in inspector.stats()] == ["größe"]


def test_off_it_sees_nothing_and_what_is_kept_is_bounded():
    inspector = TensorInspector(keep=4)
    ex = tl.Executor(context=tl.ExecutionContext([inspector]))
    ex.execute(chain(), {"x": X, "w": W})
    inspector.record_stats(TensorStats(1, [2], "f64").with_statistics(0, 1, 0, 0, 1, 0))
    assert inspector.stats() == inspector.problems() == []
    assert inspector.first_problem() is None
    assert str(inspector) == "no tensor was looked at"
    inspector.enable()
    for _ in range(3):
        ex.execute(chain(), {"x": X, "w": W})
    assert len(inspector.stats()) == 4
    assert len(inspector.problems()) == 3, "one a run"


def test_by_hand():
    inspector = TensorInspector()
    inspector.enable()
    inspector.record_stats(TensorStats(5, [64, 128], "f64").with_statistics(0.0, 1.0, 0.5, 0.1, 3, 1))
    assert str(inspector.first_problem()) == "%5 has 3 NaN and 1 infinite of 8,192: recorded by hand"
    assert "3 NaN and 1 infinite of 8,192" in str(inspector)


def test_a_run_that_fails_leaves_nothing_behind():
    b = tl.GraphBuilder()
    e = b.input("e", (2,))
    graph = b.build(y=b.fixpoint(lambda r: r + e, e, limit=3))
    inspector = TensorInspector()
    inspector.enable()
    ex = tl.Executor(context=tl.ExecutionContext([inspector]))
    with pytest.raises(tl.ConvergenceError):
        ex.execute(graph, {"e": [1.0, 1.0]})
    inspector.clear()
    ex.execute(chain(), {"x": X, "w": W})
    assert [s.name for s in inspector.stats()] == ["x", "w", "%2", "%3", "%4", "y"]


def test_several_threads_do_not_mix():
    inspector = TensorInspector()
    inspector.enable()
    graph, ex = chain(), tl.Executor(context=tl.ExecutionContext([inspector]))
    data = [{"x": X, "w": W}, {"x": np.ones((2, 3)), "w": W}]
    threads = [threading.Thread(target=lambda d=d: [ex.execute(graph, d) for _ in range(10)]) for d in data * 2]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(inspector.problems()) == 20
    assert {p.stats.name for p in inspector.problems()} == {"%4"}
    assert {tuple(s.operation for s in p.path) for p in inspector.problems()} == {("einsum ij,jk->ik", "relu", "log")}


def test_a_long_path_keeps_its_nearest_operations():
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    for _ in range(80):
        x = x + 1.0
    problem = inspected(b.build(y=b.log(x - x)), {"x": [1.0, 2.0]}).first_problem()
    assert len(problem.path) == 50
    assert problem.omitted == 32
    assert problem.path[-1].operation == "log"
    assert "(32 earlier operations left out)" in str(problem)


def test_a_run_that_another_hook_makes_in_between_does_not_blind_it():
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    outer, inner = b.build(y=b.log(b.relu(x))), b.build(z=b.exp(x))
    inspector = TensorInspector()
    inspector.enable()
    points = BreakpointManager(lambda hit: executor.execute(inner, {"x": [0.0, 1.0]}))
    points.enable()
    points.add_operation_breakpoint("relu")
    executor = tl.Executor(context=tl.ExecutionContext([inspector, points]))
    executor.execute(outer, {"x": [0.0, 1.0]})
    assert inspector.first_problem().stats.operation == "log"
