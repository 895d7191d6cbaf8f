"""Recovery: retries, fallbacks, degradation and checkpoints give the answer of a plain run, or say what is missing."""

import errno
import os
import random
import signal
import warnings

import numpy as np
import pytest
from forked import in_child
from hypothesis import given, settings

import tensorlogic as tl
from tensorlogic import RecoveryConfig, RecoveryResult, RecoveryStrategy, RetryPolicy
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.plan.fused_steps import Fused
from tensorlogic.runtime.recovery.checkpoints import Checkpoint
from tensorlogic.runtime.recovery.unfinished import Source, from_checkpoint, to_checkpoint, unfinished
from tensorlogic.testing import failing_at
from tensorlogic.testing.strategies import graphs

CHECKPOINT, FALLBACK = RecoveryStrategy.CHECKPOINT, RecoveryStrategy.FALLBACK_EXECUTION
DEGRADE, RETRY = RecoveryStrategy.GRACEFUL_DEGRADATION, RecoveryStrategy.RETRY_WITH_BACKOFF
LEVELS = list(tl.OptimizationLevel)


def model(rounds=3):
    """Return a graph of many kinds of steps and two outputs, and inputs for it."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 4), "float64"), b.input("w", (4, 4), "float64")
    links = b.input("links", ("n", "n"), "bool")
    h = x
    for _ in range(rounds):
        h = b.tanh(h @ w) + b.constant(np.linspace(0, 1, 4))
    reach = b.fixpoint(lambda r: b.logical_or(r, b.einsum("ij,jk->ik", r, r, algebra="boolean")), links)
    total, sums = b.scan(lambda carry, row: (carry + row, b.sum(carry * row)), b.constant(np.zeros(4)), h)
    graph = b.build(
        mixed=b.log(b.sum(b.square(h), axis=1) + 1.0), reach=b.sum(b.cast(reach, "float64"), axis=1),
        total=total * 2.0, sums=b.exp(sums * 0.01),
    )  # fmt: skip
    rng = np.random.default_rng(7)
    return graph, {"x": rng.normal(size=(9, 4)), "w": rng.normal(size=(4, 4)), "links": rng.random((9, 9)) > 0.85}


GRAPH, INPUTS = model()
PLAIN = tl.Executor().execute(GRAPH, INPUTS)


def assert_same(outputs, expected=PLAIN):
    assert list(outputs.keys()) == list(expected.keys())
    for name, value in expected.items():
        assert outputs[name].dtype == value.dtype and outputs[name].tobytes() == value.tobytes(), name


class Time:
    """A clock that only sleeping moves."""

    def __init__(self):
        self.now, self.sleeps = 100.0, []

    def clock(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        self.sleeps.append(seconds)


def recover(executor, config, time=None, graph=GRAPH, inputs=INPUTS):
    time = Time() if time is None else time
    return executor.execute_with_recovery(
        graph, inputs, config, clock=time.clock, sleep=time.sleep, rng=random.Random(0)
    )


def names(trace):
    return [span.name for span in trace.spans]


# retries


def test_a_fault_that_passes_is_retried():
    point, time = failing_at("exp", call=range(1, 3), error=TimeoutError("no answer")), Time()
    with tl.trace() as trace:
        found = recover(tl.Executor(wrap=[point]), RecoveryConfig(retry_policy=RetryPolicy(jitter=0)), time)
    match found:
        case RecoveryResult.Success(result, stats):
            assert_same(result)
            assert stats.retries == 2 and stats.waited_ms == pytest.approx(300)
        case other:
            pytest.fail(str(other))
    assert point.count == 3 and time.sleeps == [0.1, 0.2]
    assert [n for n in names(trace) if n.startswith("retry ")] == [
        "retry 1 of exp after TimeoutError",
        "retry 2 of exp after TimeoutError",
    ]


@pytest.mark.parametrize(
    "error", [OSError("disk"), MemoryError(), ConnectionResetError(), OSError(errno.ENOSPC, "full"), TimeoutError()]
)
def test_errors_that_can_pass(error):
    found = recover(tl.Executor(wrap=[failing_at("log", call=1, error=error)]), RecoveryConfig())
    assert isinstance(found, RecoveryResult.Success) and found.stats.retries == 1
    assert_same(found.result)


class BusyError(Exception):
    transient = True


def test_a_class_of_errors_can_say_that_it_passes():
    found = recover(tl.Executor(wrap=[failing_at("log", call=1, error=BusyError())]), RecoveryConfig())
    assert found.stats.retries == 1


@pytest.mark.parametrize(
    "error",
    [ValueError("bad"), tl.ShapeError("no", code="E001"), FileNotFoundError(), PermissionError(), ZeroDivisionError()],
)
def test_errors_that_cannot_pass_are_not_retried(error):
    point, time = failing_at("log", error=error), Time()
    found = recover(tl.Executor(wrap=[point]), RecoveryConfig(), time)
    assert isinstance(found, RecoveryResult.Failure) and found.stats.retries == 0
    assert point.count == 1 and time.sleeps == []
    cause = found.error if isinstance(error, tl.ShapeError) else found.error.__cause__
    assert type(cause) is type(error)


def test_a_shape_error_is_a_failure_at_once():
    time = Time()
    found = recover(tl.Executor(), RecoveryConfig(), time, inputs={**INPUTS, "w": np.ones((3, 4))})
    assert isinstance(found, RecoveryResult.Failure) and isinstance(found.error, tl.ShapeError) and time.sleeps == []


def test_a_fault_that_stays_is_given_up_after_as_many_retries_as_allowed():
    point = failing_at("log")
    found = recover(tl.Executor(wrap=[point]), RecoveryConfig(retry_policy=RetryPolicy.fixed(4, 10)))
    assert isinstance(found, RecoveryResult.Failure)
    assert found.stats.retries == 4 and point.count == 5
    assert isinstance(found.error, tl.ExecutionError) and "log" in str(found.error)


def test_a_step_inside_a_loop_is_not_retried_again_by_the_loop():
    b = tl.GraphBuilder()
    graph = b.build(y=b.scan(lambda carry, row: (carry + b.exp(row), row), b.constant(0.0), b.input("x", (3,)))[0])
    point = failing_at("exp", call=range(2, 99))
    executor = tl.Executor(wrap=[point])
    found = recover(
        executor, RecoveryConfig(retry_policy=RetryPolicy.fixed(2, 1)), graph=graph, inputs={"x": np.zeros(3)}
    )
    assert isinstance(found, RecoveryResult.Failure) and found.stats.retries == 2 and point.count == 4


@pytest.mark.parametrize("strategy", [s for s in RecoveryStrategy if s is not RETRY])
def test_other_strategies_retry_only_where_told_and_fail_fast_never(strategy):
    config = RecoveryConfig(strategy=strategy, fallback_backends=())
    assert isinstance(recover(tl.Executor(wrap=[failing_at("log", call=1)]), config), RecoveryResult.Failure)
    told = config.with_retry_policy(RetryPolicy.fixed(1, 1))
    found = recover(tl.Executor(wrap=[failing_at("log", call=1)]), told)
    expected = RecoveryResult.Failure if strategy is RecoveryStrategy.FAIL_FAST else RecoveryResult.Success
    assert isinstance(found, expected)


def test_waits_grow_keep_below_the_cap_and_vary():
    policy = RetryPolicy.exponential(50, 100, max_delay_ms=1000, jitter=0.5)
    assert [policy.delay(n, lambda: 0.0) for n in (1, 2, 4, 5, 5000)] == [0.1, 0.2, 0.8, 1.0, 1.0]
    draw = random.Random(1).random
    waits = [policy.delay(3, draw) for _ in range(200)]
    assert 0.2 <= min(waits) < 0.22 and 0.38 < max(waits) <= 0.4
    assert RetryPolicy.fixed(3, 60_000).delay(3, draw) == 60


@pytest.mark.parametrize(
    "values",
    [{"max_retries": -1}, {"initial_delay_ms": -1}, {"multiplier": 0.5}, {"jitter": 2}, {"max_delay_ms": "1"}, {"jitter": float("nan")}],
)  # fmt: skip
def test_policies_that_cannot_be(values):
    with pytest.raises(tl.InputError):
        RetryPolicy(**values)


# cancellation


def test_cancelling_while_waiting_stops_the_run():
    context, time = tl.ExecutionContext(), Time()

    def sleep(seconds):
        time.sleep(seconds)
        if time.now > 100.3:
            context.cancel("enough")

    executor = tl.Executor(wrap=[failing_at("log")])
    config = RecoveryConfig(retry_policy=RetryPolicy.fixed(5, 10_000))
    with context, pytest.raises(tl.CancelledError, match="while it waited to try again: enough"):
        executor.execute_with_recovery(GRAPH, INPUTS, config, clock=time.clock, sleep=sleep)
    assert max(time.sleeps) <= 0.05 and sum(time.sleeps) < 0.5


def test_waiting_ends_at_the_deadline():
    time = Time()
    executor = tl.Executor(wrap=[failing_at("log")], context=tl.ExecutionContext(deadline=100.22, clock=time.clock))
    with pytest.raises(tl.DeadlineError):
        recover(executor, RecoveryConfig(retry_policy=RetryPolicy.fixed(5, 10_000)), time)
    assert sum(time.sleeps) == pytest.approx(0.22)


@pytest.mark.parametrize("strategy", list(RecoveryStrategy))
@pytest.mark.parametrize("error", [tl.CancelledError("stop", code="E980"), KeyboardInterrupt()])
def test_cancellation_is_never_swallowed(strategy, error):
    config = RecoveryConfig(strategy=strategy, optional=("mixed", "reach", "total", "sums"))
    point = failing_at("log", error=error)
    with pytest.raises(type(error)):
        recover(tl.Executor(wrap=[point]), config)
    assert point.count == 1


# fallbacks


def test_another_backend_takes_over_what_is_left():
    point = failing_at("log", call=1, error=RuntimeError("broken kernel"))
    count = failing_at(call=10**9)
    executor = tl.Executor(wrap=[count, point])
    with tl.trace() as trace:
        found = recover(executor, RecoveryConfig(strategy=FALLBACK))
    assert isinstance(found, RecoveryResult.Success)
    assert found.stats.fallbacks == ("numpy -> reference: Node 22 (log) failed: broken kernel",)
    for name, value in PLAIN.items():
        np.testing.assert_allclose(found.result[name], value, rtol=1e-12)
    assert "fallback to reference" in names(trace)
    steps = len(executor.plan(GRAPH, INPUTS).steps)
    assert count.count <= steps + 60  # what was computed before is not computed again; bodies count too


class Breaking(NumpyBackend):
    """NumPy, but every fused step spoils what it writes into, and fails."""

    def bind(self, step, run_body):
        return self._broken if isinstance(step.op, Fused) else super().bind(step, run_body)

    def bind_into(self, step):
        return self._broken if isinstance(step.op, Fused) else super().bind_into(step)

    @staticmethod
    def _broken(*operands, out=None):
        for array in out if isinstance(out, list) else [out]:
            if array is not None:
                array[...] = 0
        raise RuntimeError("illegal instruction")


def test_machine_code_that_fails_gives_way_to_plain_steps():
    b = tl.GraphBuilder()
    x = y = b.input("x", (2000, 50), "float32")
    for n in range(10):  # so many passes over memory that one is quicker on any machine, however busy
        y = b.abs(y * x + float(n)) - y
    graph = b.build(y=y, z=b.exp(x[:9] @ b.input("w", (50, 50), "float32")))
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(2000, 50)).astype("f4") / 4, "w": rng.normal(size=(50, 50)).astype("f4")}
    executor = tl.Executor(Breaking(), native=True)
    assert any(isinstance(s.op, Fused) for s in tl.Executor(native=True).plan(graph, inputs).steps)
    with tl.trace() as trace:
        found = recover(executor, RecoveryConfig(strategy=FALLBACK), graph=graph, inputs=inputs)
    assert isinstance(found, RecoveryResult.Success)
    assert len(found.stats.fallbacks) == 1
    assert found.stats.fallbacks[0].startswith("numpy -> numpy, one step after another: ")
    assert_same(found.result, tl.Executor().execute(graph, inputs))
    assert "fallback to numpy, one step after another" in names(trace)


def test_what_fails_everywhere_fails_and_what_is_the_callers_mistake_falls_back_nowhere():
    found = recover(tl.Executor(wrap=[failing_at("log", error=RuntimeError("no"))]), RecoveryConfig(strategy=FALLBACK))
    assert isinstance(found, RecoveryResult.Failure) and len(found.stats.fallbacks) == 1
    found = recover(tl.Executor(), RecoveryConfig(strategy=FALLBACK), inputs={**INPUTS, "w": np.ones((3, 4))})
    assert isinstance(found, RecoveryResult.Failure) and found.stats.fallbacks == ()


# degradation


def test_optional_outputs_are_left_out_and_named():
    count = failing_at("exp", call=10**9)
    executor = tl.Executor(wrap=[failing_at("log", error=ValueError("no logarithm today")), count])
    with tl.trace() as trace:
        found = recover(executor, RecoveryConfig(strategy=DEGRADE).with_optional("mixed"))
    match found:
        case RecoveryResult.PartialSuccess(result, [failed], stats):
            assert list(result.keys()) == ["reach", "total", "sums"]
            assert failed.operation == "log" and failed.outputs == ("mixed",)
            assert "no logarithm today" in str(failed.error)
        case other:
            pytest.fail(str(other))
    for name in result.keys():  # noqa: SIM118 - no mapping
        assert result[name].tobytes() == PLAIN[name].tobytes()
    assert stats.retries == 0 and count.count == 1
    assert "without mixed: log failed" in names(trace)


def test_several_optional_outputs_may_fail():
    executor = tl.Executor(wrap=[failing_at("log"), failing_at("exp")])
    found = recover(executor, RecoveryConfig(strategy=DEGRADE, optional=("mixed", "sums")))
    assert isinstance(found, RecoveryResult.PartialSuccess)
    assert list(found.result.keys()) == ["reach", "total"]
    assert sorted(node.operation for node in found.failed_nodes) == ["exp", "log"]


def test_an_output_that_is_not_optional_fails_the_run():
    found = recover(tl.Executor(wrap=[failing_at("log")]), RecoveryConfig(strategy=DEGRADE, optional=("sums",)))
    assert isinstance(found, RecoveryResult.Failure) and "log" in str(found.error)


def test_nodes_can_be_optional():
    logs = [i for i, node in enumerate(GRAPH.nodes) if node.op.name == "log"]
    found = recover(tl.Executor(wrap=[failing_at("log")]), RecoveryConfig(strategy=DEGRADE, optional=tuple(logs)))
    assert isinstance(found, RecoveryResult.PartialSuccess) and "mixed" not in found.result


@pytest.mark.parametrize("optional", [("mixd",), (10_000,), (-1,), (None,), (True,)])
def test_what_is_optional_must_be_there(optional):
    with pytest.raises(tl.InputError) as caught:
        recover(tl.Executor(), RecoveryConfig(strategy=DEGRADE, optional=optional))
    assert caught.value.diagnostic.code == "E590"


# checkpoints


def run_to(step, graph=GRAPH, inputs=INPUTS, executor=None):
    """Return a frame that stands before a step."""
    frame = (executor or tl.Executor()).frame(graph, inputs)
    frame.run(until=lambda f: f.at == step)
    return frame


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize("level", LEVELS)
def test_what_is_left_after_any_step_gives_the_same_answer_anywhere(backend, level):
    first = tl.Executor(optimization_level=level)
    source = Source(GRAPH, INPUTS)
    executors = [tl.Executor(backend, optimization_level=other) for other in LEVELS[:: 3 if backend == "numpy" else 2]]
    whole = len(first.plan(GRAPH, INPUTS).steps)
    for step in range(whole + 1):
        arrays, facts = to_checkpoint(unfinished(run_to(step, executor=first), INPUTS), source)
        assert not any(name == f"value:{given}" for name in arrays for given in INPUTS)
        left = from_checkpoint(Checkpoint(1, arrays, facts), source)
        for executor in executors if step % 3 == 0 else executors[:1]:
            outputs = executor.execute(left.graph, left.values)
            assert list(outputs.keys()) == list(PLAIN.keys())
            for name, value in PLAIN.items():
                np.testing.assert_allclose(outputs[name], value, rtol=1e-12, atol=1e-12)
                assert outputs[name].dtype == value.dtype


@settings(max_examples=60)
@given(graphs())
def test_random_graphs_go_on_from_any_step(case):
    executor, reference = tl.Executor(), tl.Executor("reference")
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            expected = executor.execute(case.graph, case.inputs)
            frame = executor.frame(case.graph, case.inputs)
            slow = reference.execute(case.graph, case.inputs)
        except tl.TensorLogicError:
            return
        source = Source(case.graph, case.inputs)
        while True:
            arrays, facts = to_checkpoint(unfinished(frame, case.inputs), source)
            left = from_checkpoint(Checkpoint(1, arrays, facts), source)
            outputs = executor.execute(left.graph, left.values)
            assert_same(outputs, expected)
            if frame.done:
                break
            frame.advance()
        again = reference.execute(left.graph, left.values)
        for name in slow.keys():  # noqa: SIM118 - no mapping
            assert again[name].dtype == slow[name].dtype and again[name].shape == slow[name].shape


def config(folder, **options):
    return RecoveryConfig(strategy=CHECKPOINT, folder=str(folder), checkpoint_seconds=None, **options)


def test_a_process_killed_at_any_step_is_taken_up_where_it_was(tmp_path):
    call, ended = -2, None
    while ended != 0:
        call += 3
        folder, point = tmp_path / str(call), failing_at(lambda s: s.op.name != "item", call=call, kill=True)
        killed = tl.Executor(wrap=[point])
        ended = in_child(lambda folder=folder, killed=killed: recover(killed, config(folder, checkpoint_steps=1)))
        if ended == 0:
            assert not list(folder.glob("checkpoint-*"))  # it was done
            break
        assert ended == -signal.SIGKILL
        saved = tl.CheckpointManager(folder).numbers()
        count = failing_at(lambda s: s.op.name != "item", call=10**9)
        level = LEVELS[call % 3]
        found = recover(tl.Executor(wrap=[count], optimization_level=level), config(folder))
        assert isinstance(found, RecoveryResult.Success)
        assert found.stats.resumed_from == (saved[-1] if saved else None)
        assert_same(found.result)
    assert call > 20


def test_only_what_is_missing_runs(tmp_path):
    executor = tl.Executor(optimization_level=tl.OptimizationLevel.NONE)
    names_of = [s.op.name for s in executor.plan(GRAPH, INPUTS).steps]
    point = failing_at("log", error=ValueError("stop"))
    failing = tl.Executor(wrap=[point], optimization_level=tl.OptimizationLevel.NONE)
    assert isinstance(recover(failing, config(tmp_path)), RecoveryResult.Failure)
    ran = []

    def note(call):
        return lambda step, args: (ran.append(step.op.name), call(step, args))[1]

    found = recover(tl.Executor(wrap=[note], optimization_level=tl.OptimizationLevel.NONE), config(tmp_path))
    assert_same(found.result)
    assert "tanh" not in ran and ran[0] == "log" and len(ran) < len(names_of) + 40


def test_a_failed_run_can_be_saved_and_taken_up_by_another_executor(tmp_path):
    executor = tl.Executor(wrap=[failing_at("exp", call=1, error=ValueError("no"))])
    found = recover(executor, RecoveryConfig(strategy=CHECKPOINT))
    assert isinstance(found, RecoveryResult.Failure)
    assert executor.save_checkpoint(tmp_path / "run") == 1
    for other in (tl.Executor("reference"), tl.Executor(native=True), tl.Executor(optimization_level=LEVELS[3])):
        assert other.load_checkpoint(tmp_path / "run") == 1
        again = recover(other, RecoveryConfig(strategy=CHECKPOINT))
        assert again.stats.resumed_from == 1
        for name, value in PLAIN.items():
            np.testing.assert_allclose(again.result[name], value, rtol=1e-12)
    assert recover(other, RecoveryConfig(strategy=CHECKPOINT)).stats.resumed_from is None  # it was used once


def test_a_finished_run_keeps_its_answer_whatever_happens_to_the_arrays(tmp_path):
    executor = tl.Executor()
    found = recover(executor, RecoveryConfig(checkpointing=True))
    for value in found.result:
        value[...] = 0
    executor.save_checkpoint(tmp_path)
    other = tl.Executor()
    other.load_checkpoint(tmp_path)
    assert_same(recover(other, RecoveryConfig(checkpointing=True)).result)


def test_a_run_that_was_cancelled_goes_on(tmp_path):
    context = tl.ExecutionContext()

    def cancelling(call):
        def cancel(step, args):
            if step.op.name == "log":
                context.cancel("shutting down")
            return call(step, args)

        return cancel

    with context, pytest.raises(tl.CancelledError):
        recover(tl.Executor(wrap=[cancelling]), config(tmp_path))
    assert tl.CheckpointManager(tmp_path).numbers() == [1]
    found = recover(tl.Executor(), config(tmp_path))
    assert found.stats.resumed_from == 1
    assert_same(found.result)


def test_checkpoints_come_after_seconds_too(tmp_path):
    time = Time()

    def slow(call):
        def later(step, args):
            time.now += 1.0
            return call(step, args)

        return later

    count = failing_at(call=10**9)
    with tl.trace() as trace:
        found = recover(
            tl.Executor(wrap=[slow, count]),
            RecoveryConfig(strategy=CHECKPOINT, folder=str(tmp_path), checkpoint_seconds=10.0), time,
        )  # fmt: skip
    assert 2 <= found.stats.checkpoints <= count.count // 10
    assert sum(n.startswith("checkpoint ") for n in names(trace)) == found.stats.checkpoints
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_trace_reads_like_a_story(tmp_path):
    point = failing_at("log", call=1, error=TimeoutError())
    told = config(tmp_path, checkpoint_steps=8, retry_policy=RetryPolicy.fixed(1, 1))
    with tl.trace() as trace:
        recover(tl.Executor(wrap=[point]), told)
    story = [n for n in names(trace) if n not in ("plan", "bind") and "pass" not in n]
    assert "retry 1 of log after TimeoutError" in story and "checkpoint 1" in story
    assert trace.step_count() > 10  # the steps are in it as well


def test_a_checkpoint_of_another_graph_is_refused(tmp_path):
    failing = tl.Executor(wrap=[failing_at("exp", error=ValueError())])
    recover(failing, config(tmp_path))
    graph, inputs = model(rounds=2)
    with pytest.raises(tl.CheckpointError, match=f"of graph {GRAPH.digest}, this one is {graph.digest}") as caught:
        recover(tl.Executor(), config(tmp_path), graph=graph, inputs=inputs)
    assert caught.value.diagnostic.code == "E585"
    other = {**INPUTS, "w": INPUTS["w"].copy()}
    other["w"][0, :2] = other["w"][0, 1::-1]
    with pytest.raises(tl.CheckpointError, match="of another input 'w'") as caught:
        recover(tl.Executor(), config(tmp_path), inputs=other)
    assert caught.value.diagnostic.code == "E586"
    with tl.CheckpointManager(tmp_path / "other") as manager:
        manager.save({}, {"epoch": 3})
    with pytest.raises(tl.CheckpointError, match="something else than a run"):
        recover(tl.Executor(), config(tmp_path / "other"))
    assert_same(recover(tl.Executor(), config(tmp_path)).result)  # nothing was lost


def test_a_damaged_newest_checkpoint_costs_only_the_steps_since(tmp_path):
    failing = tl.Executor(wrap=[failing_at("exp", error=ValueError())])
    recover(failing, config(tmp_path, checkpoint_steps=3))
    manager = tl.CheckpointManager(tmp_path)
    newest = manager.numbers()[-1]
    (manager.path(newest) / "values.safetensors").write_bytes(b"rubbish")
    with pytest.warns(tl.CheckpointWarning, match="the one before is used"):
        found = recover(tl.Executor(), config(tmp_path))
    assert found.stats.resumed_from == newest - 1
    assert_same(found.result)


def test_two_runs_on_one_folder(tmp_path):
    with tl.CheckpointManager(tmp_path), pytest.raises(tl.CheckpointError, match="in use by process"):
        recover(tl.Executor(), config(tmp_path))
    assert_same(recover(tl.Executor(), config(tmp_path)).result)


def test_a_full_disk_is_a_clear_error_and_loses_nothing(tmp_path, monkeypatch):
    fsync, count = os.fsync, [0]

    def full(handle):
        count[0] += 1
        if count[0] > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        found = recover(tl.Executor(), config(tmp_path, checkpoint_steps=2))
    assert isinstance(found, RecoveryResult.Failure) and isinstance(found.error, tl.CheckpointError)
    assert "No space left on device" in str(found.error) and found.stats.checkpoints == 3
    again = recover(tl.Executor(), config(tmp_path))
    assert again.stats.resumed_from == 3
    assert_same(again.result)


def test_an_error_stays_the_error_when_saving_fails_too(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    found = recover(tl.Executor(wrap=[failing_at("log", error=ValueError("no"))]), config(tmp_path))
    assert isinstance(found.error, tl.ExecutionError)
    assert "could not be saved: cannot write" in found.error.__notes__[0]


def test_a_checkpoint_that_fails_drops_no_output(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    told = RecoveryConfig(DEGRADE, checkpointing=True, folder=str(tmp_path), checkpoint_steps=1, optional=("mixed",))
    found = recover(tl.Executor(), told)
    assert isinstance(found, RecoveryResult.Failure) and isinstance(found.error, tl.CheckpointError)


def test_a_degraded_run_that_goes_on_still_says_what_failed(tmp_path):
    told = RecoveryConfig(DEGRADE, checkpointing=True, folder=str(tmp_path), checkpoint_steps=1, optional=("mixed",))
    executor = tl.Executor(
        wrap=[failing_at("log", error=ValueError("no logarithm")), failing_at("exp", error=OSError())]
    )
    assert isinstance(recover(executor, told), RecoveryResult.Failure)
    found = recover(tl.Executor(), told)
    assert isinstance(found, RecoveryResult.PartialSuccess)
    assert [(node.operation, node.outputs) for node in found.failed_nodes] == [("log", ("mixed",))]
    assert "no logarithm" in str(found.failed_nodes[0].error)
    assert found.result["sums"].tobytes() == PLAIN["sums"].tobytes()


def test_the_hooks_of_an_executor_hear_of_retries():
    class Names(tl.Hook):
        heard = []

        def on_span(self, name, start_ns, end_ns, thread):
            self.heard.append(name)

    executor = tl.Executor(context=tl.ExecutionContext([Names()]), wrap=[failing_at("log", call=1)])
    recover(executor, RecoveryConfig())
    assert "retry 1 of log after OSError" in Names.heard and Names.heard[-1] == "run with recovery: retry with backoff"


def test_relations_that_are_outputs_are_kept(tmp_path):
    b = tl.GraphBuilder()
    links = b.input("links", (300, 300), "bool")
    graph = b.build(two=b.einsum("ij,jk->ik", links, links, algebra="boolean"))
    dense = np.random.default_rng(3).random((300, 300)) > 0.999
    executor, other = tl.Executor(), tl.Executor()
    told = RecoveryConfig(checkpointing=True, strategy=CHECKPOINT)
    first = recover(executor, told, graph=graph, inputs={"links": tl.SparseTensor(dense)})
    executor.save_checkpoint(tmp_path)
    other.load_checkpoint(tmp_path)
    again = recover(other, told, graph=graph, inputs={"links": tl.SparseTensor(dense)})
    assert again.stats.resumed_from == 1
    np.testing.assert_array_equal(np.asarray(again.result["two"]), np.asarray(first.result["two"]))
    np.testing.assert_array_equal(np.asarray(again.result["two"]), (dense.astype(int) @ dense) > 0)


def test_a_disk_that_is_full_for_a_while_is_waited_for(tmp_path, monkeypatch):
    fsync, count = os.fsync, [0]

    def flaky(handle):
        count[0] += 1
        if count[0] == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", flaky)
    found = recover(tl.Executor(), config(tmp_path, checkpoint_steps=4, retry_policy=RetryPolicy.fixed(2, 50)))
    assert isinstance(found, RecoveryResult.Success) and found.stats.retries == 1
    assert_same(found.result)


def test_relations_are_saved_as_relations(tmp_path):
    b = tl.GraphBuilder()
    links = b.input("links", (400, 400), "bool")
    two = b.einsum("ij,jk->ik", links, links, algebra="boolean")
    graph = b.build(
        counts=b.sum(b.cast(b.einsum("ij,jk->ik", two, links, algebra="boolean"), "float64"), axis=1), two=two
    )
    rng = np.random.default_rng(3)
    dense = rng.random((400, 400)) > 0.999
    inputs = {"links": tl.SparseTensor(dense)}
    expected = tl.Executor().execute(graph, {"links": dense})
    steps = len(tl.Executor().frame(graph, inputs).program.plan.steps)
    source = Source(graph, inputs)
    sparse = 0
    for step in range(steps + 1):
        arrays, facts = to_checkpoint(unfinished(run_to(step, graph, inputs), inputs), source)
        sparse += len(facts["sparse"])
        left = from_checkpoint(Checkpoint(1, arrays, facts), source)
        outputs = tl.Executor().execute(left.graph, left.values)
        for name, value in expected.items():
            np.testing.assert_array_equal(np.asarray(outputs[name]), value)
    assert sparse > 0


def test_a_step_that_spoilt_its_operands_does_not_spoil_the_answer(tmp_path):
    class Spoiling(NumpyBackend):
        def bind_into(self, step):
            kernel = super().bind_into(step)

            def spoil(*operands, out):
                if step.op.name == "tanh" and armed:
                    out[...] = 77
                    armed.clear()
                    raise RuntimeError("half-way")
                return kernel(*operands, out=out)

            return spoil

    b = tl.GraphBuilder()
    x = b.input("x", (50, 50), "float64")
    graph = b.build(y=b.tanh(b.tanh(x @ x) + 1.0) @ x)
    inputs = {"x": np.random.default_rng(1).normal(size=(50, 50))}
    armed = [1]
    executor = tl.Executor(Spoiling())
    recover(executor, RecoveryConfig(strategy=CHECKPOINT, folder=str(tmp_path)), graph=graph, inputs=inputs)
    assert armed == []
    again = recover(tl.Executor(), config(tmp_path), graph=graph, inputs=inputs)
    assert_same(again.result, tl.Executor().execute(graph, inputs))


def test_there_must_be_something_to_save_and_to_load(tmp_path):
    executor = tl.Executor()
    with pytest.raises(tl.InputError, match="there is no run to save"):
        executor.save_checkpoint(tmp_path)
    recover(executor, RecoveryConfig())
    with pytest.raises(tl.InputError, match="there is no run to save"):
        executor.save_checkpoint(tmp_path)
    with pytest.raises(tl.CheckpointError, match="there is no checkpoint in"):
        executor.load_checkpoint(tmp_path)


@pytest.mark.parametrize(
    "values",
    [{"strategy": "retry"}, {"retry_policy": 3}, {"checkpointing": 1}, {"folder": 3}, {"keep": 0}, {"checkpoint_steps": 0},
     {"checkpoint_seconds": -1}, {"optional": "mixed"}],
)  # fmt: skip
def test_configs_that_cannot_be(values):
    with pytest.raises(tl.InputError):
        RecoveryConfig(**values)
    with pytest.raises(tl.BackendError):
        RecoveryConfig(fallback_backends=("nompy",))


def test_inputs_that_are_missing_are_raised():
    with pytest.raises(tl.InputError, match="input 'w' is missing"):
        tl.Executor().execute_with_recovery(GRAPH, {"x": INPUTS["x"]})
    with pytest.raises(tl.InputError, match="a RecoveryConfig is expected"):
        tl.Executor().execute_with_recovery(GRAPH, INPUTS, 3)


@pytest.mark.parametrize("strategy", list(RecoveryStrategy))
@pytest.mark.parametrize("way", ["with_folder", "folder"])
def test_a_folder_is_used_whatever_the_strategy(strategy, way, tmp_path):
    made = RecoveryConfig(strategy)
    made = made.with_folder(tmp_path) if way == "with_folder" else RecoveryConfig(strategy, folder=tmp_path)
    assert made.folder == str(tmp_path)
    b = tl.GraphBuilder()
    graph = b.build(y=b.log(b.exp(b.input("x", (2,)))))
    executor = tl.Executor(wrap=[failing_at("log", call=1, error=ValueError("no"))])
    executor.execute_with_recovery(graph, {"x": np.ones(2)}, made.with_fallback_backends())
    again = tl.Executor().execute_with_recovery(graph, {"x": np.ones(2)}, made)
    assert isinstance(again, RecoveryResult.Success)
    assert again.stats.resumed_from == 1
    assert made.with_checkpointing(False).folder == (str(tmp_path) if strategy is CHECKPOINT else None)
