"""Fault injection: what is chosen fails, nothing else does."""

import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.testing import FailpointWarning, failing_at


def plain(step, args):
    return sum(args)


def outcomes(point, times, step="add"):
    """Return what each of some calls does: a value, or the error it raises."""
    call, found = point(plain), []
    for n in range(times):
        try:
            found.append(call(step, (n, 1)))
        except OSError as error:
            found.append(type(error).__name__)
    return found


@pytest.mark.parametrize(
    ("call", "expected"),
    [(2, [1, "OSError", 3, 4]), (range(3, 9), [1, 2, "OSError", "OSError"]), ({1, 4}, ["OSError", 2, 3, "OSError"]),
     (None, ["OSError"] * 4)],
)  # fmt: skip
def test_calls_are_counted_from_one(call, expected):
    point = failing_at(call=call)
    assert outcomes(point, 4) == expected
    assert point.count == 4 and point.strikes == expected.count("OSError")


def test_steps_are_chosen_by_name_number_or_a_function():
    b = tl.GraphBuilder()
    graph = b.build(y=b.log(b.exp(b.input("x", (2,)))))
    inputs = {"x": np.ones(2)}
    numbers = {s.op.name: s.node for s in tl.Executor(wrap=[failing_at()]).plan(graph, inputs).steps}
    for chosen in ("log", numbers["log"], lambda step: step.op.name == "log"):
        with pytest.raises(tl.ExecutionError, match="log") as caught:
            tl.Executor(wrap=[failing_at(chosen)]).execute(graph, inputs)
        assert isinstance(caught.value.__cause__, OSError)
    other = tl.Executor(wrap=[failing_at("sqrt")])
    with pytest.warns(FailpointWarning):
        np.testing.assert_allclose(other.execute(graph, inputs)["y"], inputs["x"])


@pytest.mark.parametrize(
    ("step", "said"),
    [
        ("logg", r"failing_at\('logg'\) concerns none of the 3 steps of a graph, so that none of them fails: did you mean 'log'\?"),
        ("fsync", "known: 'exp', 'log', 'sum'"),
        (99, r"failing_at\(99\) .* they are \d+ \(exp\), \d+ \(log\), \d+ \(sum\)"),
        (lambda step: False, r"failing_at\(a function\) .* they are exp, log, sum"),
    ],
)  # fmt: skip
def test_a_step_that_no_graph_has_is_told_once(step, said):
    b = tl.GraphBuilder()
    graph = b.build(y=b.sum(b.log(b.exp(b.input("x", (2,))))))
    executor = tl.Executor(wrap=[failing_at(step)])
    with pytest.warns(FailpointWarning, match=said) as caught:
        executor.execute(graph, {"x": np.ones(2)})
    assert len(caught) == 1 and caught[0].filename == __file__
    executor.execute(graph, {"x": np.ones(2)})
    b = tl.GraphBuilder()
    executor.execute(b.build(y=b.tanh(b.input("x", (2,)))), {"x": np.ones(2)})


def test_a_step_in_the_body_of_a_loop_is_found():
    b = tl.GraphBuilder()
    start = b.input("x", (2,))
    graph = b.build(y=b.scan(lambda state, _: (b.tanh(state), state), start, length=3)[0])
    with pytest.raises(tl.ExecutionError):
        tl.Executor(wrap=[failing_at("tanh")]).execute(graph, {"x": np.ones(2)})


def test_an_operation_on_files_that_is_none_is_told(tmp_path):
    with pytest.warns(FailpointWarning, match=r"none of the 5 operations on files.*did you mean 'fsync'\?"):
        tl.CheckpointManager(tmp_path, wrap=[failing_at("sync")])
    tl.CheckpointManager(tmp_path, wrap=[failing_at("fsync")])


def test_chance_follows_the_generator():
    found = [outcomes(failing_at(chance=0.5, rng=random.Random(seed)), 40) for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    assert 10 < found[0].count("OSError") < 30
    assert "OSError" not in outcomes(failing_at(chance=0.0), 20)


def test_a_delay_alone_only_delays():
    slept = []
    assert outcomes(failing_at(call=2, delay=0.5, sleep=slept.append), 3) == [1, 2, 3]
    assert slept == [0.5]
    point = failing_at(call=1, delay=0.5, error=TimeoutError, sleep=slept.append)
    assert outcomes(point, 1) == ["TimeoutError"] and slept == [0.5, 0.5]


def test_an_error_that_is_given_is_raised_anew_each_time():
    error = OSError(28, "full")
    call = failing_at(error=error)(plain)
    raised = []
    for _ in range(2):
        with pytest.raises(OSError, match="full") as caught:
            call("add", ())
        raised.append(caught.value)
    assert raised[0] is not raised[1] is not error and raised[1].errno == 28


def test_calls_of_many_threads_are_counted():
    point = failing_at(call=500)
    call = point(plain)

    def one(_):
        try:
            return call("add", (1,)) and 0
        except OSError:
            return 1

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(one, range(1000))) == 1
    assert point.count == 1000


@pytest.mark.parametrize("wrong", [{"chance": 2}, {"chance": -0.1}, {"call": 0}, {"delay": -1}, {"step": -1}])
def test_arguments_that_cannot_be(wrong):
    with pytest.raises(tl.InputError):
        failing_at(**wrong)
