"""The gradient checker: what it finds, what it forgives, and how it says so."""

import warnings

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.testing import GradientChecker, GradientReport


def mlp(dtype="float32"):
    b = tl.GraphBuilder()
    x, w, c = b.input("x", ("n", 10), dtype), b.input("w", (10, 4), dtype), b.input("c", (4,), dtype)
    return b.build(loss=b.sum(b.tanh(b.linear(x, w, c))))


def inputs(n=5):
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(n, 10)), "w": rng.normal(size=(10, 4)), "c": rng.normal(size=4)}


def test_a_right_gradient_passes_in_float64_whatever_is_declared():
    report = GradientChecker().check(mlp(), inputs(), wrt=["w", "c"])
    assert isinstance(report, GradientReport)
    assert report.passed
    assert [c.name for c in report.checks] == ["w", "c"]
    assert all(c.error < 1e-8 for c in report.checks)
    assert str(report).endswith("all 2 gradients agree with central differences")


def test_a_wrong_gradient_is_found_and_the_worst_element_named():
    def wrong(t, g, y, x):
        bump = t.reshape(t.cast(t.equal(t.iota(20), 7), "float64"), (5, 4))
        return g * (1 - t.square(y)) + bump * 0.25

    report = GradientChecker().check(mlp(), inputs(), wrt=["c"], custom={"tanh": wrong})
    assert not report.passed
    assert report.worst.name == "c"
    assert report.worst.place == "[3]"  # element 7 of 5 x 4 is in column 3
    assert report.worst.derivative - report.worst.quotient == pytest.approx(0.25)
    lines = str(report).splitlines()
    assert lines[0].split() == [
        "input",
        "shape",
        "checked",
        "worst",
        "at",
        "derivative",
        "quotient",
        "error",
        "verdict",
    ]
    assert lines[1].split()[0] == "c"
    assert lines[1].split()[-1] == "wrong"
    assert lines[2] == "1 of 1 gradients is wrong"


def test_large_tensors_are_checked_at_some_elements_and_along_directions():
    b = tl.GraphBuilder()
    x = b.input("x", (300, 20))
    report = GradientChecker(elements=5, directions=3).check(b.build(y=b.sin(x)), {"x": np.ones((300, 20))})
    assert report.passed
    assert report.checks[0].checked == "5 elements, 3 directions"
    # a gradient that is wrong at one place in 6,000 is seen along a direction
    off = {"sin": lambda t, g, y, x: g * t.cos(x) + t.reshape(t.cast(t.equal(t.iota(6000), 17), "float64"), (300, 20))}
    report = GradientChecker(elements=5, directions=3).check(b.build(y=b.sin(x)), {"x": np.ones((300, 20))}, custom=off)
    assert not report.passed
    assert report.worst.place.startswith("direction")


def test_ties_are_kinks_not_errors():
    b = tl.GraphBuilder()
    graph = b.build(y=b.max(b.input("x", (3,))))
    report = GradientChecker().check(graph, {"x": [1.0, 2.0, 2.0]})
    assert report.passed
    wrong = {"max": lambda t, g, y, x: g * 2 + x * 0}
    assert not GradientChecker().check(graph, {"x": [1.0, 2.0, 2.0]}, custom=wrong).passed


def curve(make):
    b = tl.GraphBuilder()
    return b.build(y=make(b, b.input("x", ())))


@pytest.mark.parametrize(
    ("make", "custom", "at", "options"),
    [
        (lambda b, x: b.exp(x * 1000), {"exp": lambda t, g, y, x: g * y * 1.002}, 0.001, {}),
        (lambda b, x: b.square(x), {"square": lambda t, g, y, x: g * (2 * x + 5e-6)}, 0.0, {"atol": 1e-9}),
        (lambda b, x: b.sin(x * 1000), {"sin": lambda t, g, y, x: g * t.cos(x) + 1e-3}, 0.002, {}),
        (lambda b, x: b.absolute(x) ** 1.5, {"absolute": lambda t, g, y, x: g * 0 + 1e-3}, 1e-2, {}),
        (lambda b, x: b.absolute(x), {"absolute": lambda t, g, y, x: g * 1.001}, 0.0, {}),
    ],
)
def test_a_curve_is_no_kink(make, custom, at, options):
    graph, checker = curve(make), GradientChecker(**options)
    report = checker.check(graph, {"x": at}, custom=custom)
    assert [c.verdict for c in report.checks] == ["wrong"], str(report)
    assert checker.check(graph, {"x": at}).passed


@pytest.mark.parametrize(
    "make",
    [
        lambda b, x: b.absolute(x),
        lambda b, x: b.relu(x) + 2,
        lambda b, x: b.relu(x - 50 * x * x),  # curved on one side
        lambda b, x: 1000 * x + 0.5 * b.absolute(x),  # small beside the slope
        lambda b, x: b.stack([b.absolute(x), b.where(x > 5, x, -np.inf)]),  # beside an infinity that stays
    ],
)
@pytest.mark.parametrize("side", [0.0, 1.0])
def test_a_kink_takes_any_slope_between_its_sides(make, side):
    custom = {"absolute": lambda t, g, y, x: g * (2 * side - 1), "relu": lambda t, g, y, x: g * side}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.GradientWarning)
        report = GradientChecker().check(curve(make), {"x": 0.0}, custom=custom)
    assert report.passed, str(report)


@pytest.mark.parametrize("away", [1e-9, 1e-7, 2e-7, 2.5e-7, 3e-7, 1e-6, 5e-6])
def test_a_kink_nearby_is_no_error(away):
    graph = curve(lambda b, x: b.absolute(x))
    assert GradientChecker().check(graph, {"x": away}).passed
    assert not GradientChecker().check(graph, {"x": away}, custom={"absolute": lambda t, g, y, x: g * 1.5}).passed


def test_lists_take_the_declared_dtype_as_in_a_run():
    b = tl.GraphBuilder()
    graph = b.build(y=b.sum(b.square(b.input("x", (2,), "float32")) * b.input("k", (2,), "int64")))
    for x in ([1, 2], [True, False], (1, 2.5)):
        report = GradientChecker().check(graph, {"x": x, "k": [3, 4]})
        assert [(c.name, c.verdict) for c in report.checks] == [("x", "ok")]
    b = tl.GraphBuilder()
    assert GradientChecker().check(b.build(y=b.exp(b.input("s", (), "float64"))), {"s": 1}).passed


def test_several_outputs_integers_and_truths():
    b = tl.GraphBuilder()
    x, k = b.input("x", (3,), "float32"), b.input("k", (3,), "int64")
    graph = b.build(y=x * k, n=b.argmax(x), t=x > 0, z=b.cast(x, "float16"))
    report = GradientChecker().check(graph, {"x": [1.0, 2.0, 3.0], "k": [1, 2, 3]})
    assert report.passed
    assert [c.name for c in report.checks] == ["x"]


def test_infinities_that_stay_do_not_count():
    b = tl.GraphBuilder()
    graph = b.build(y=b.logsumexp(b.where(b.input("m", (2, 3), "bool"), b.input("x", (2, 3)), -np.inf)))
    mask = np.array([[True, True, False], [False, False, False]])
    assert GradientChecker().check(graph, {"x": np.arange(6.0).reshape(2, 3), "m": mask}).passed


def test_scalars_and_empty_inputs():
    b = tl.GraphBuilder()
    graph = b.build(y=b.sum(b.input("e", (0, 2))) + b.input("s", ()) ** 2)
    report = GradientChecker().check(graph, {"e": np.ones((0, 2)), "s": 3.0})
    assert [c.checked for c in report.checks] == ["nothing", "1 element"]
    assert report.passed


def test_it_runs_on_any_executor():
    class Counting:
        calls = 0

        def execute(self, graph, inputs):
            self.calls += 1
            return tl.Executor().execute(graph, inputs)

    counting = Counting()
    assert GradientChecker(executor=counting).check(mlp(), inputs(2), wrt="c").passed
    assert counting.calls == 2 + 1 + 2 * 4


def test_what_is_refused():
    with pytest.raises(tl.InputError, match="step= is a positive number"):
        GradientChecker(step=0)
    with pytest.raises(tl.InputError, match="rtol= is a positive number"):
        GradientChecker(rtol=-1)
    with pytest.raises(tl.GraphError, match="no input 'v'"):
        GradientChecker().check(mlp(), inputs(), wrt=["v"])
    with pytest.raises(tl.InputError, match="input 'c' is missing"):
        GradientChecker().check(mlp(), {k: v for k, v in inputs().items() if k != "c"}, wrt=["c"])
    assert repr(GradientChecker()) == "<GradientChecker rtol=1e-05, atol=1e-07, step=6.1e-06>"


def test_one_output_of_several_is_checked_by_name():
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    graph = b.build(right=b.sum(b.tanh(x)), wrong=b.sum(b.exp(x)))
    rule = {"exp": lambda t, g, y, x: g * y * 2}
    at = {"x": [0.1, 0.2, 0.3]}
    assert GradientChecker().check(graph, at, of="right", custom=rule).passed
    assert not GradientChecker().check(graph, at, of="wrong", custom=rule).passed
    assert not GradientChecker().check(graph, at, custom=rule).passed
    by_output = {"wrong": lambda t, g, y, x: g * 2}
    assert GradientChecker().check(graph, at, of="right", custom=by_output).passed
    assert not GradientChecker().check(graph, at, of="wrong", custom=by_output).passed
    with pytest.raises(tl.InputError, match="custom= maps operations, outputs or nodes to functions, got 'exp'"):
        GradientChecker().check(graph, at, custom="exp")
    with pytest.raises(tl.InputError, match="no output 'rihgt'"):
        GradientChecker().check(graph, at, of="rihgt")
    with pytest.raises(tl.InputError, match="takes no unrol="):
        GradientChecker().check(graph, at, unrol=3)
    with pytest.raises(tl.InputError, match="inputs are given by name, got"):
        GradientChecker().check(graph, [np.ones(3)])
    with pytest.raises(tl.InputError, match="elements must be a whole number of at least 0, got -1"):
        GradientChecker(elements=-1)
