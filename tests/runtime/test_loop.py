"""The loop: hooks that watch, wrappers that intervene, and errors that say where."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.call import Call

P = tl.ExecutionPhase


class Watch(tl.Hook):
    """Notes all it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.records: list[tl.RunRecord] = []

    def on_phase(self, phase: tl.ExecutionPhase) -> None:
        self.told.append(phase)

    def on_run(self, record: tl.RunRecord) -> None:
        self.told.append("run")
        self.records.append(record)


class Values(tl.Hook):
    """Copies every result."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[Any]]] = []

    def on_step(self, plan: Any, event: tl.StepEvent, values: tuple[Any, ...]) -> None:
        self.seen.append((plan.steps[event.step].op.name, [np.array(v) for v in values]))


def _graph(build: Callable[[tl.GraphBuilder, Any], Any], shape: Any = ("n",)) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(y=build(b, b.input("x", shape)))


def _watched(*hooks: tl.Hook, **options: Any) -> tl.Executor:
    return tl.Executor(context=tl.ExecutionContext(hooks), **options)


CHAIN = _graph(lambda b, x: b.sum(b.exp(x + 1)))
FAILS = _graph(lambda b, x: b.gather(x + 1, np.array([7])) * 2)


# hooks


def test_phases_come_in_order() -> None:
    hook = Watch()
    executor = _watched(hook)
    executor.execute(CHAIN, {"x": np.ones(3)})
    assert hook.told == [P.PLANNING, P.COMPILATION, P.EXECUTION, "run", P.COMPLETE]
    assert executor.context.phase is P.COMPLETE
    hook.told.clear()
    executor.execute(CHAIN, {"x": np.zeros(3)})  # planned already
    assert hook.told == [P.EXECUTION, "run", P.COMPLETE]


def test_a_step_that_fails_is_reported_and_ends_in_the_error_phase() -> None:
    hook = Watch()
    executor = _watched(hook)
    with pytest.raises(tl.ExecutionError):
        executor.execute(FAILS, {"x": np.ones(3)})
    assert hook.told == [P.PLANNING, P.COMPILATION, P.EXECUTION, "run", P.ERROR]
    assert executor.context.phase is P.ERROR
    assert [e.step for e in hook.records[0]] == [0]  # the one step that finished


def test_a_plan_that_fails_ends_in_the_error_phase() -> None:
    hook = Watch()
    with pytest.raises(tl.ShapeError):
        _watched(hook).execute(_graph(lambda b, x: x + 1, (3,)), {"x": np.ones(4)})
    assert hook.told == [P.PLANNING, P.ERROR]


def test_the_phase_is_true_without_hooks_too() -> None:
    context = tl.ExecutionContext()
    tl.Executor(context=context).execute(CHAIN, {"x": np.ones(3)})
    assert context.phase in (P.COMPLETE, None)


@pytest.mark.parametrize("backend", ["numpy", "reference", "null"])
def test_the_record_of_a_run(backend: str) -> None:
    hook = Watch()
    executor = _watched(hook, backend=backend)
    for _ in range(2):
        executor.execute(CHAIN, {"x": np.ones(3)})
    assert len(hook.records) == 2
    for record in hook.records:
        events = list(record)
        assert len(record) == len(events) == len(record.plan.steps) == 3
        assert [e.step for e in events] == [0, 1, 2]
        assert record.thread == threading.get_ident()
        times = [t for e in events for t in (e.start_ns, e.end_ns)]
        assert times == sorted(times)
        assert all(e.duration_ns >= 0 for e in events)
    assert list(hook.records[0])[-1].end_ns <= next(iter(hook.records[1])).start_ns


def test_hooks_see_the_values_of_every_step() -> None:
    hook = Values()
    x = np.array([0.0, 1.0])
    out = _watched(hook).execute(CHAIN, {"x": x})["y"]
    assert [name for name, _ in hook.seen] == ["add", "exp", "sum"]
    np.testing.assert_allclose(hook.seen[0][1][0], x + 1)
    np.testing.assert_allclose(hook.seen[1][1][0], np.exp(x + 1))
    np.testing.assert_allclose(hook.seen[2][1][0], out)


def test_a_step_with_several_results_gives_all_of_them() -> None:
    hook = Values()
    b = tl.GraphBuilder()
    last, sums = b.scan(lambda c, r: (c + r, c + r), np.float64(0), b.input("x", (3,)))
    _watched(hook).execute(b.build(last=last, sums=sums), {"x": np.arange(3.0)})
    assert [name for name, _ in hook.seen] == ["add", "add", "add", "scan"]  # the rounds of the body, then the scan
    name, values = hook.seen[-1]
    assert name == "scan"
    assert values[0] == 3
    assert values[1].tolist() == [0, 1, 3]


def test_hooks_do_not_change_the_answer() -> None:
    x = np.random.default_rng(0).random(5)
    plain = tl.Executor().execute(CHAIN, {"x": x})["y"]
    assert _watched(Watch(), Values()).execute(CHAIN, {"x": x})["y"] == plain


def test_hooks_come_and_go() -> None:
    hook = Watch()
    context = tl.ExecutionContext()
    executors = [tl.Executor(context=context), tl.Executor("reference", context=context)]
    executors[0].execute(CHAIN, {"x": np.ones(2)})
    assert hook.told == []
    context.add_hook(hook)
    for executor in executors:
        executor.execute(CHAIN, {"x": np.ones(2)})
    assert len(hook.records) == 2
    context.remove_hook(hook)
    executors[0].execute(CHAIN, {"x": np.ones(2)})
    assert len(hook.records) == 2


@pytest.mark.parametrize("step", [0, 1, 2])
def test_an_exception_in_a_hook_is_the_hooks_own(step: int) -> None:
    class Breaks(tl.Hook):
        def on_step(self, plan: Any, event: tl.StepEvent, values: tuple[Any, ...]) -> None:
            if event.step == step:
                raise ZeroDivisionError("the hook's own trouble")

    hook = Watch()
    executor = _watched(hook, Breaks())
    with pytest.raises((ZeroDivisionError, tl.TensorLogicError), match="the hook's own trouble") as caught:
        executor.execute(CHAIN, {"x": np.ones(2)})
    assert "(exp) failed" not in str(caught.value)  # the step after it has not run, let alone failed
    assert "(sum) failed" not in str(caught.value)
    assert hook.told[-1] is P.ERROR
    assert len(hook.records[0]) == step + 1


def test_logging_hook_writes_phases_and_runs() -> None:
    lines: list[str] = []
    _watched(tl.LoggingHook(lines.append)).execute(CHAIN, {"x": np.ones(2)})
    assert lines[0] == "phase: planning"
    assert lines[1] == "phase: compilation"
    assert lines[2] == "phase: execution"
    assert lines[3].startswith("run: 3 steps in ")
    assert lines[4] == "phase: complete"


# wrappers


def _noting(label: str, log: list[str]) -> Callable[[Call], Call]:
    def wrapper(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            log.append(f"{label} before {step.op.name}")
            value = call(step, args)
            log.append(f"{label} after {step.op.name}")
            return value

        return wrapped

    return wrapper


def test_the_first_wrapper_is_outermost() -> None:
    log: list[str] = []
    executor = tl.Executor(wrap=[_noting("outer", log), _noting("inner", log)])
    out = executor.execute(_graph(lambda b, x: x + 1), {"x": np.ones(2)})["y"]
    assert out.tolist() == [2, 2]
    assert log == ["outer before add", "inner before add", "inner after add", "outer after add"]


def test_a_wrapper_may_replace_a_value_and_its_operands() -> None:
    def fake(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            if step.op.name == "exp":
                return np.full(2, 10.0)
            return call(step, tuple(a * 2 for a in args) if step.op.name == "sum" else args)

        return wrapped

    assert tl.Executor(wrap=[fake]).execute(CHAIN, {"x": np.ones(2)})["y"] == 40


def test_a_step_can_be_tried_again_with_its_operands_intact() -> None:
    tries: list[str] = []

    def flaky(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            tries.append(step.op.name)
            if tries.count(step.op.name) < 3:
                raise OSError("not this time")
            return call(step, args)

        return wrapped

    def retry(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            for _ in range(5):
                try:
                    return call(step, args)
                except OSError:
                    continue
            raise AssertionError

        return wrapped

    got = tl.Executor(wrap=[retry, flaky]).execute(CHAIN, {"x": np.array([0.0, 1.0])})["y"]
    np.testing.assert_allclose(got, np.exp(1) + np.exp(2))
    assert tries == ["add"] * 3 + ["exp"] * 3 + ["sum"] * 3


def test_wrappers_reach_into_bodies() -> None:
    names: list[str] = []

    def count(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            names.append(step.op.name)
            return call(step, args)

        return wrapped

    b = tl.GraphBuilder()
    x = b.input("x", ("t",))
    _, rows = b.scan(lambda c, r: (c + r, b.cond(r > 0, lambda: b.exp(r), lambda: b.negative(r))), np.float64(0), x)
    tl.Executor(wrap=[count]).execute(b.build(y=rows), {"x": np.array([1.0, -1.0, 2.0])})
    assert names[0] == "scan"
    assert (names.count("add"), names.count("cond"), names.count("exp"), names.count("negative")) == (3, 3, 2, 1)


def test_wrappers_and_hooks_together() -> None:
    hook = Values()
    log: list[str] = []
    executor = tl.Executor(context=tl.ExecutionContext([hook]), wrap=[_noting("w", log)])
    executor.execute(CHAIN, {"x": np.ones(2)})
    assert len(log) == 6
    assert len(hook.seen) == 3


def test_an_error_from_a_wrapper_names_the_step() -> None:
    def broken(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            raise LookupError("no such thing")

        return wrapped

    with pytest.raises(tl.ExecutionError, match=r"\(add\) failed: .*no such thing") as caught:
        tl.Executor(wrap=[broken]).execute(CHAIN, {"x": np.ones(2)})
    assert isinstance(caught.value.__cause__, LookupError)


# errors


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize("hooks", [[], [Watch()], [Values()]], ids=["no hook", "record", "values"])
def test_a_failed_kernel_names_node_operands_and_line(backend: str, hooks: list[tl.Hook]) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))
    i = b.input("i", (2,), "int64")
    y = b.gather(x * 2, i)  # the user's line
    graph = b.build(y=y + 1)
    with pytest.raises(tl.ExecutionError) as caught:
        _watched(*hooks, backend=backend).execute(graph, {"x": np.ones(3), "i": [0, 9]})
    text = str(caught.value)
    assert "(gather) failed" in text
    assert "index 9 is out of range for an axis of 3 elements" in text
    assert "operand 0: float64 (3,)" in text
    assert "operand 1: int64 (2,)" in text
    assert "y = b.gather(x * 2, i)  # the user's line" in text
    assert caught.value.diagnostic.location is not None
    assert isinstance(caught.value.__cause__, IndexError)


@pytest.mark.parametrize("hooks", [[], [Watch()]], ids=["no hook", "record"])
def test_an_error_of_our_own_points_at_the_users_line_too(hooks: list[tl.Hook]) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    y = b.einsum("i,i->", x, x, algebra="max_product")  # the user's line
    with pytest.raises(tl.TensorLogicError, match="max_product algebra is for factors") as caught:
        _watched(*hooks).execute(b.build(y=y), {"x": -np.ones(2)})
    assert "# the user's line" in str(caught.value)


def test_a_failure_inside_a_body_points_into_the_body() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,))

    def body(c: Any, r: Any) -> Any:
        place = b.cast(r, "int64")
        return c, b.gather(x, place)  # in the body

    _, rows = b.scan(body, np.float64(0), x)
    with pytest.raises(tl.ExecutionError, match="index 8 is out of range") as caught:
        tl.Executor().execute(b.build(y=rows), {"x": [0.0, 1.0, 8.0]})
    assert "return c, b.gather(x, place)  # in the body" in str(caught.value)


def test_a_memory_error_in_a_kernel_is_ours() -> None:
    def exhausted(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            raise MemoryError

        return wrapped

    with pytest.raises(tl.OutOfMemoryError, match="MemoryError"):
        tl.Executor(wrap=[exhausted]).execute(CHAIN, {"x": np.ones(2)})


@pytest.mark.parametrize("hooks", [[], [Watch()]], ids=["no hook", "record"])
@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_passes_through(hooks: list[Any], kind: type[BaseException]) -> None:
    def interrupted(call: Call) -> Call:
        def wrapped(step: Any, args: tuple[Any, ...]) -> Any:
            if step.op.name == "exp" and broken:
                raise kind
            return call(step, args)

        return wrapped

    broken = True
    executor = _watched(*hooks, wrap=[interrupted])
    with pytest.raises(kind):
        executor.execute(CHAIN, {"x": np.ones(2)})
    for hook in hooks:
        assert hook.told[-1] is P.ERROR
        assert [e.step for e in hook.records[-1]] == [0]
    broken = False
    np.testing.assert_allclose(executor.execute(CHAIN, {"x": np.ones(2)})["y"], 2 * np.exp(2))
