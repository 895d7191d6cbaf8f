"""Contexts: deadlines, cancellation, budgets, labels and hooks, in every mode of running."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from async_calls import chain

import tensorlogic as tl
from tensorlogic.events import active_contexts, entered_contexts, running

X = np.linspace(0.0, 1.0, 5)


class Clock:
    """A clock that moves on by itself a little each time it is read."""

    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def cancelling(context: tl.ExecutionContext, after: int, log: list[str]) -> Callable[[Any], Any]:
    """Return a wrapper that cancels a context in the call of a step, and counts the steps that ran."""

    def wrapper(call: Any) -> Any:
        def noted(step: Any, args: Any) -> Any:
            log.append(str(step.op))
            if len(log) == after:
                context.cancel("enough")
            return call(step, args)

        return noted

    return wrapper


# what a context says


def test_a_cancelled_context_lets_nothing_begin():
    context = tl.ExecutionContext()
    context.cancel("the client left")
    with context, pytest.raises(tl.CancelledError, match="the client left"):
        tl.Executor().execute(chain(), {"x": X})
    assert context.cancelled
    assert tl.Executor().execute(chain(), {"x": X})["y"].shape == (5,)


def test_the_next_step_does_not_run():
    context, log = tl.ExecutionContext(), []
    executor = tl.Executor(wrap=[cancelling(context, 3, log)])
    with context, pytest.raises(tl.CancelledError, match=r"before step 4 of 6 \(tanh\): enough"):
        executor.execute(chain(), {"x": X})
    assert len(log) == 3
    assert executor.execute(chain(), {"x": X})["y"].shape == (5,)


def test_a_run_that_has_done_its_last_step_is_over():
    context, log = tl.ExecutionContext(), []
    executor = tl.Executor(wrap=[cancelling(context, 6, log)])
    with context:
        out = executor.execute(chain(), {"x": X})
        assert out["y"].shape == (5,)
        with pytest.raises(tl.CancelledError):
            executor.execute(chain(), {"x": X})


def test_a_context_of_an_executor_stops_what_runs_already():
    context, log = tl.ExecutionContext(), []
    executor = tl.Executor(wrap=[cancelling(context, 2, log)], context=context)
    with pytest.raises(tl.CancelledError, match="before step 3 of 6"):
        executor.execute(chain(), {"x": X})


def test_the_context_that_an_executor_made_itself_can_be_cancelled():
    executor = tl.Executor()
    executor.execute(chain(), {"x": X})
    executor.context.cancel()
    with pytest.raises(tl.CancelledError):
        executor.execute(chain(), {"x": X})


class Records(tl.Hook):
    """Keeps what it is told of runs."""

    def __init__(self) -> None:
        self.runs: list[Any] = []

    def on_run(self, record: Any) -> None:
        self.runs.append(record)


def test_hooks_are_told_of_every_step_that_ran_before_a_run_was_stopped():
    hook, log = Records(), []
    context = tl.ExecutionContext([hook])
    executor = tl.Executor(wrap=[cancelling(context, 3, log)], context=context)
    with pytest.raises(tl.CancelledError, match="before step 4 of 6"):
        executor.execute(chain(), {"x": X})
    assert [len(record) for record in hook.runs] == [3]


@pytest.mark.parametrize("around", [(), (tl.ExecutionContext(),)], ids=["one context", "two contexts"])
def test_one_context_costs_no_call_for_each_step_and_several_cost_one(around: tuple[tl.ExecutionContext, ...]):
    calls = {}
    for n in (2, 12):
        hook, names = Records(), []
        executor, graph = tl.Executor(context=tl.ExecutionContext([hook])), chain(n)
        with ExitStack() as stack:
            for context in around:
                stack.enter_context(context)
            executor.execute(graph, {"x": X})
            sys.setprofile(lambda frame, event, _, n=names: n.append(frame.f_code.co_name) if event == "call" else None)
            try:
                executor.execute(graph, {"x": X})
            finally:
                sys.setprofile(None)
        assert [len(record) for record in hook.runs] == [n, n]
        calls[n] = len(names)
    # where several contexts hold, one question asks them all; one alone is looked at without a call
    assert calls[12] - calls[2] == (10 if around else 0)


def test_a_deadline_is_looked_at_before_each_step():
    clock = Clock(step=1.0)
    context = tl.ExecutionContext(timeout=5.5, clock=clock)
    executor = tl.Executor()
    executor.execute(chain(), {"x": X})
    with context, pytest.raises(tl.DeadlineError, match=r"before step \d of 6"):
        executor.execute(chain(), {"x": X})
    assert issubclass(tl.DeadlineError, TimeoutError)


def test_the_earliest_deadline_counts_and_contexts_add_up():
    clock = Clock()
    outer = tl.ExecutionContext(timeout=10, clock=clock)
    inner = tl.ExecutionContext(timeout=timedelta(seconds=100), clock=clock)
    with outer, inner:
        tl.Executor().execute(chain(), {"x": X})
        clock.now = 11
        with pytest.raises(tl.DeadlineError, match="over 1 s ago"):
            tl.Executor().execute(chain(), {"x": X})
    assert outer.remaining() == 0
    assert inner.remaining() == 89
    assert tl.ExecutionContext().remaining() is None


def test_an_error_points_at_the_step_it_stopped_before():
    context, log = tl.ExecutionContext(), []
    executor = tl.Executor(wrap=[cancelling(context, 1, log)])
    program = tl.Program("B[i] = exp(A[i])\nC[i] = tanh(B[i])", executor=executor)
    with context, pytest.raises(tl.CancelledError) as caught:
        program.run(A=np.ones(3))["C"]
    found = caught.value.diagnostic
    assert found.code == "E980"
    assert found.location is not None
    assert found.location.line == 2


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (lambda: tl.ExecutionContext(timeout=-1), "E983"),
        (lambda: tl.ExecutionContext(timeout="soon"), "E983"),
        (lambda: tl.ExecutionContext(timeout=float("nan")), "E983"),
        (lambda: tl.ExecutionContext(timeout=True), "E983"),
        (lambda: tl.ExecutionContext(deadline="noon"), "E983"),
        (lambda: tl.ExecutionContext(labels="request"), "E301"),
        (lambda: tl.ExecutionContext(hooks=3), "E301"),
        (lambda: tl.ExecutionContext(memory_limit=-1), "E310"),
        (lambda: tl.ExecutionContext(flops_limit=1.5), "E310"),
        (lambda: tl.Executor(context=3), "E301"),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, code):
    with pytest.raises(tl.InputError) as caught:
        wrong()
    assert caught.value.diagnostic.code == code


# budgets


def test_a_memory_limit_holds_for_each_run():
    graph = chain()
    needed = tl.Executor().plan(graph, {"x": X}).peak_bytes
    with tl.ExecutionContext(memory_limit=needed):
        for _ in range(3):
            tl.Executor().execute(graph, {"x": X})
    with tl.ExecutionContext(memory_limit=needed - 1), pytest.raises(tl.OutOfMemoryError):
        tl.Executor().execute(graph, {"x": X})


def test_a_flops_limit_holds_for_all_runs_together():
    graph, executor = chain(), tl.Executor()
    once = executor.plan(graph, {"x": X}).flops
    context = tl.ExecutionContext(flops_limit=3 * once)
    with context:
        for _ in range(3):
            executor.execute(graph, {"x": X})
        with pytest.raises(tl.InputError, match="and 0 of"):
            executor.execute(graph, {"x": X})
    assert context.flops_used == 3 * once


# labels and hooks


class Spans(tl.Hook):
    """Notes spans and runs, in the order they end."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.runs = 0

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        self.names.append(name)

    def on_run(self, record: Any) -> None:
        self.runs += not record.body


def test_labels_name_a_span_around_each_run():
    with tl.trace() as t, tl.ExecutionContext(labels={"request": "17", "user": "ann"}):
        tl.Executor().execute(chain(), {"x": X})
    [span] = [e for e in t.events() if e.name == "request=17, user=ann"]
    steps = [e for e in t.events() if e.kind == "step"]
    assert len(steps) == 6
    assert all(span.start_ns <= e.start_ns and e.end_ns <= span.end_ns for e in steps)


def test_planning_stands_inside_the_span_of_its_labels():
    spans = Spans()
    with tl.ExecutionContext([spans], labels={"request": "1"}):
        tl.Executor().execute(chain(), {"x": X})
    assert spans.names[-1] == "request=1"
    assert "plan" in spans.names


def test_runs_inside_runs_do_not_repeat_the_labels():
    spans, inner = Spans(), tl.Executor()

    def nested(call: Any) -> Any:
        def with_another(step: Any, args: Any) -> Any:
            inner.execute(chain(1), {"x": X})
            return call(step, args)

        return with_another

    executor = tl.Executor(wrap=[nested])
    with tl.ExecutionContext([spans], labels={"request": "1"}):
        executor.execute(chain(3), {"x": X})
    assert spans.names.count("request=1") == 1
    assert spans.runs == 4


def test_hooks_of_contexts_see_runs_of_every_executor():
    spans = Spans()
    with tl.ExecutionContext([spans]):
        tl.Executor().execute(chain(), {"x": X})
        tl.Executor(native=False, threads=2).execute(chain(), {"x": X})
    tl.Executor().execute(chain(), {"x": X})
    assert spans.runs == 2


# every mode


def loop(kind: str) -> tuple[tl.EinsumGraph, dict[str, Any]]:
    b = tl.GraphBuilder()
    if kind == "scan":
        x = b.input("x", (300, 5), "float64")
        _, ys = b.scan(lambda c, row: (b.tanh(c + row), c), b.sum(x, axis=0), x)
        return b.build(y=ys), {"x": np.ones((300, 5))}
    if kind == "fixpoint":
        x = b.input("x", (5,), "float64")
        y = b.fixpoint(lambda c: b.minimum(c + 1.0, 100.0), x)
        return b.build(y=y), {"x": X}
    edge = b.input("edge", (70, 70), "bool")
    other = b.input("other", (70, 70), "bool")
    path = b.fixpoint(
        lambda r: b.logical_or(
            b.einsum("xy,yz,zw->xw", r, edge, r, algebra="boolean"),
            b.einsum("xy,yz->xz", edge, other, algebra="boolean"),
        ),
        edge,
        combine="or",
    )
    line = np.eye(70, k=1, dtype=bool)
    return b.build(y=path), {"edge": line, "other": line}


def compiled(executor: tl.Executor, graph: tl.EinsumGraph, inputs: dict[str, Any]) -> Any:
    return executor.execute_compiled(executor.compile_graph(graph), inputs)


def gradients(executor: tl.Executor, graph: tl.EinsumGraph, inputs: dict[str, Any]) -> Any:
    outputs = executor.forward(graph, inputs)
    executor.backward(outputs, [np.ones_like(outputs[0])])
    return outputs


def stepwise(executor: tl.Executor, graph: tl.EinsumGraph, inputs: dict[str, Any]) -> Any:
    return executor.frame(graph, inputs).run()


def eagerly(executor: tl.Executor, graph: tl.EinsumGraph, inputs: dict[str, Any]) -> Any:
    return executor.variable(inputs["x"]) * 2.0


MODES: dict[str, Callable[[tl.Executor, tl.EinsumGraph, dict[str, Any]], Any]] = {
    "plain": lambda ex, g, i: ex.execute(g, i),
    "compiled": compiled,
    "jit": lambda ex, g, i: ex.execute_jit(g, i),
    "budget": lambda ex, g, i: ex.execute(g, i, budget=1 << 20),
    "gradients": gradients,
    "frame": stepwise,
    "eager": eagerly,
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_keeps_to_a_context(mode):
    executor, graph, inputs = tl.Executor(), chain(), {"x": X}
    before = MODES[mode](executor, graph, inputs)
    context = tl.ExecutionContext()
    with context:
        same = MODES[mode](executor, graph, inputs)
        context.cancel("over")
        with pytest.raises(tl.CancelledError, match="over"):
            MODES[mode](executor, graph, inputs)
    np.testing.assert_array_equal(np.asarray(before[0]), np.asarray(same[0]))
    assert running.contexts == () == entered_contexts.get()
    MODES[mode](executor, graph, inputs)


@pytest.mark.parametrize("native", [False, True], ids=["numpy", "native"])
@pytest.mark.parametrize("kind", ["scan", "fixpoint", "bits"])
def test_loops_give_the_same_under_a_context_and_stop_in_the_middle(kind, native):
    graph, inputs = loop(kind)
    executor = tl.Executor(native=native)
    expected = executor.execute(graph, inputs)["y"]
    with tl.ExecutionContext(timeout=1000):
        np.testing.assert_array_equal(executor.execute(graph, inputs)["y"], expected)
    clock = Clock(step=1.0)
    context = tl.ExecutionContext(deadline=1e9, clock=clock)
    with context:
        executor.execute(graph, inputs)
    looked = clock.now
    assert looked > 4, "the rounds do not look at the context"
    late = tl.ExecutionContext(deadline=looked / 2, clock=Clock(step=1.0))
    with late, pytest.raises(tl.DeadlineError):
        executor.execute(graph, inputs)


def test_a_recursion_over_relations_stops_between_rounds():
    n, executor = 400, tl.Executor()

    def generation() -> tl.Program:
        rules = "Same(x, y) <- Up(x, a), Same(a, b), Down(b, y), Good(x)\nSame(x, y) <- Flat(x, y)"
        program = tl.Program(rules, executor=executor)
        program.add("Up", [(str(i), str(i + 1)) for i in range(n)])
        program.add("Down", [(str(i + 1), str(i)) for i in range(n)])
        program.add("Flat", [(str(n), str(n))])
        program.add("Good", [(str(i),) for i in range(n)])
        return program

    assert len(generation().query("Same(x, y)?")) == n + 1
    clock = Clock(step=1.0)
    with tl.ExecutionContext(deadline=1e9, clock=clock):
        assert len(generation().query("Same(x, y)?")) == n + 1
    assert clock.now > n / 2, "the rounds do not look at the context"
    program = generation()
    late = tl.ExecutionContext(deadline=clock.now / 2, clock=Clock(step=1.0))
    with late, pytest.raises(tl.DeadlineError):
        program.query("Same(x, y)?")
    assert len(program.query("Same(x, y)?")) == n + 1


def test_threads_keep_to_the_context_of_whoever_hands_them_work():
    b = tl.GraphBuilder()
    x = b.input("x", (400, 300), "float64")
    graph = b.build(y=b.sum(b.exp(b.sin(x)), axis=1), z=b.sum(b.exp(b.cos(x)), axis=1))
    executor = tl.Executor(threads=2)
    given = {"x": np.ones((400, 300))}
    expected = executor.execute(graph, given)
    with tl.ExecutionContext() as context:
        for name, value in zip(("y", "z"), executor.execute(graph, given), strict=True):
            np.testing.assert_array_equal(value, expected[name])
        context.cancel()
        with pytest.raises(tl.CancelledError):
            executor.execute(graph, given)


def test_planning_stops_too():
    class Cancels(tl.Hook):
        def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
            if name.startswith("pass "):
                context.cancel("planned enough")

    context = tl.ExecutionContext([Cancels()])
    executor = tl.Executor()
    with context, pytest.raises(tl.CancelledError, match="while it was being planned: planned enough"):
        executor.execute(chain(), {"x": X})
    assert executor.cache_stats().entries == 0
    assert executor.execute(chain(), {"x": X})["y"].shape == (5,)


def test_choosing_between_plans_passes_a_cancellation_on():
    class Cancels(tl.Hook):
        def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
            if name == "bind":
                context.cancel("chosen enough")

    context = tl.ExecutionContext([Cancels()])
    executor = tl.Executor(native=True)
    with context, pytest.raises(tl.CancelledError, match="chosen enough"):
        executor.execute(chain(), {"x": np.ones(1000)})
    np.testing.assert_allclose(executor.execute(chain(1), {"x": X})["y"], np.tanh(X))


def test_constants_are_not_left_unfolded_because_of_a_deadline():
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.constant(np.arange(4.0))) + b.input("x", (4,), "float64"))
    with tl.ExecutionContext(timeout=0), pytest.raises(tl.DeadlineError) as caught:
        tl.Executor().execute(graph, {"x": np.ones(4)})
    assert "broke the graph" not in str(caught.value)


# whose context it is


def test_contexts_belong_to_the_thread_that_entered_them():
    seen = []
    with tl.ExecutionContext():
        assert len(active_contexts()) == 1
        thread = threading.Thread(target=lambda: seen.append(active_contexts()))
        thread.start()
        thread.join()
    assert seen == [()]


def test_tasks_of_one_event_loop_do_not_share_contexts():
    executor, graph = tl.Executor(), chain()
    spans: dict[str, Spans] = {name: Spans() for name in "ab"}

    async def request(name: str) -> None:
        with tl.ExecutionContext([spans[name]], labels={"request": name}):
            for _ in range(3):
                await asyncio.sleep(0)
                executor.execute(graph, {"x": X})
        assert active_contexts() == ()

    async def main() -> None:
        await asyncio.gather(request("a"), request("b"))

    asyncio.run(main())
    for name, heard in spans.items():
        assert heard.runs == 3
        assert [n for n in heard.names if n.startswith("request")] == [f"request={name}"] * 3


def test_contexts_left_in_another_order_than_they_were_entered():
    a, b = tl.ExecutionContext(), tl.ExecutionContext()
    a.__enter__()
    b.__enter__()
    a.__exit__()
    assert active_contexts() == (b,)
    b.__exit__()
    assert active_contexts() == ()


def test_a_stopped_run_holds_no_memory():
    context, log, kept = tl.ExecutionContext(), [], []

    def noting(call: Any) -> Any:
        def noted(step: Any, args: Any) -> Any:
            value = call(step, args)
            kept.append(weakref.ref(value))
            return value

        return noted

    executor = tl.Executor(wrap=[cancelling(context, 3, log), noting])
    with context:
        try:
            executor.execute(chain(), {"x": np.ones(1000)})
        except tl.CancelledError:
            pass
        else:
            pytest.fail("it ran on")
    gc.collect()
    assert [ref() for ref in kept] == [None] * 3


# batches and streams


def test_batches_keep_to_a_context():
    executor, graph = tl.Executor(), chain()
    items = [{"x": X + n} for n in range(8)]
    expected = executor.execute_batch(graph, items)
    context = tl.ExecutionContext(labels={"batch": "1"})
    with tl.trace() as t, context:
        for a, b in zip(executor.execute_batch(graph, items), expected, strict=True):
            np.testing.assert_array_equal(a["y"], b["y"])
        context.cancel("enough")
        for run in (executor.execute_batch, lambda g, i: executor.execute_batch_parallel(g, i, 2)):
            with pytest.raises(tl.CancelledError, match="enough"):
                run(graph, items)
    assert any(e.name == "batch=1" for e in t.events())


def test_streams_keep_to_a_context():
    executor, graph = tl.Executor(), chain()
    context = tl.ExecutionContext()
    with context:
        stream = executor.execute_stream(graph, {"x": X}, tl.StreamingConfig(tl.StreamingMode.FixedChunk(2)))
        assert next(stream).metadata.size == 2
        context.cancel("enough")
        with pytest.raises(tl.CancelledError, match="enough"):
            next(stream)


def test_retries_do_not_wait_beyond_a_cancellation():
    context = tl.ExecutionContext()

    def failing(call: Any) -> Any:
        def fail(step: Any, args: Any) -> Any:
            context.cancel("enough")
            raise OSError("now and then")

        return fail

    config = tl.RecoveryConfig(
        tl.RecoveryStrategy.RETRY_WITH_BACKOFF, retry_policy=tl.RetryPolicy.exponential(5, 60_000)
    )
    with context, pytest.raises(tl.CancelledError, match="enough"):
        tl.Executor(wrap=[failing]).execute_with_recovery(chain(), {"x": X}, config)


def test_a_reason_of_none_cancels_too():
    context = tl.ExecutionContext()
    context.cancel(None)  # type: ignore[arg-type]
    assert context.cancelled

    async def main() -> None:
        handle = tl.run_async(sum, [1, 2])
        if handle.cancel(None):  # type: ignore[arg-type]
            with pytest.raises(asyncio.CancelledError):
                await handle

    asyncio.run(main())


def test_a_deadline_that_never_comes_is_refused():
    with pytest.raises(tl.InputError):
        tl.ExecutionContext(deadline=float("nan"))
