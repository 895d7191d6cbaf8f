"""The batcher at work: answers as if each request had run alone, and one outcome for each, whatever happens."""

import asyncio
import contextlib
import gc
import os
import random
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError as FutureCancelled
from concurrent.futures import wait

import numpy as np
import pytest
import trio

import tensorlogic as tl
from tensorlogic import BatcherConfig, BatchingStrategy, DynamicBatcher, Priority

RNG = np.random.default_rng(0)


def gather(count, **more):
    """Return the config of a batcher that waits until so many requests have come."""
    return BatcherConfig(strategy=BatchingStrategy.THROUGHPUT, max_wait=30, max_batch=count, **more)


def scores():
    """Return a graph of element-wise functions, whose batches have the bits of single runs, for rows of 3."""
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    return b.build(y=b.tanh(x) * 2.0, best=b.argmax(x, axis=0))


def rows(count, width=3):
    return [RNG.normal(size=width) for _ in range(count)]


class Gate:
    """A wrapper that holds every step until it is opened, and raises what it is told to."""

    def __init__(self, *, is_open=False):
        self.event, self.entered, self.error = threading.Event(), threading.Event(), None
        self.calls = 0
        if is_open:
            self.event.set()

    def __call__(self, call):
        def held(step, args):
            self.entered.set()
            self.event.wait(10)
            self.calls += 1
            if self.error is not None:
                raise self.error
            if any(np.isnan(np.asarray(a)).any() for a in args):
                raise ValueError("a NaN came in")
            return call(step, args)

        return held


def alone(graph, inputs):
    return tl.Executor().execute(graph, inputs)


def check(graph, inputs, answers, *, exact=True):
    for each, answer in zip(inputs, answers, strict=True):
        for name, expected in alone(graph, each).items():
            assert answer[name].dtype == expected.dtype
            assert answer[name].shape == expected.shape
            if exact:
                np.testing.assert_array_equal(answer[name], expected)
            else:
                np.testing.assert_allclose(answer[name], expected, rtol=1e-5, atol=1e-6)


def test_answers_of_tasks_are_those_of_single_runs():
    graph, inputs = scores(), [{"x": row} for row in rows(200)]

    async def main():
        async with DynamicBatcher(tl.Executor(), graph) as batcher:
            found = []
            for _ in range(3):  # on threads first, then on the loop
                found = await asyncio.gather(*[batcher.submit(i) for i in inputs])
            return found, batcher.stats()

    answers, stats = asyncio.run(main())
    check(graph, inputs, answers)
    assert stats.completed == 600
    assert stats.batches < 100
    assert "600 completed" in str(stats)
    answers[0]["y"][:] = 7.0  # an array of its own
    check(graph, inputs[1:2], answers[1:2])


def test_answers_of_threads_are_those_of_single_runs():
    graph, inputs = scores(), [{"x": row} for row in rows(50)]
    with DynamicBatcher(tl.Executor(), graph, gather(50)) as batcher:
        futures = [batcher.submit_nowait(i) for i in inputs]
        check(graph, inputs, [f.result(10) for f in futures])
    assert batcher.stats().batches == 1


def test_answers_in_trio():
    graph, inputs, answers = scores(), [{"x": row} for row in rows(20)], {}

    async def one(batcher, n):
        answers[n] = await batcher.submit(inputs[n])

    async def main():
        async with DynamicBatcher(tl.Executor(), graph) as batcher:
            async with trio.open_nursery() as nursery:
                for n in range(20):
                    nursery.start_soon(one, batcher, n)
            with trio.move_on_after(0):
                await batcher.submit(inputs[0])
            return batcher.stats()

    stats = trio.run(main)
    check(graph, inputs, [answers[n] for n in range(20)])
    assert stats.completed + stats.cancelled == 21


def test_products_differ_by_rounding_only_and_weights_are_shared():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 20), "float32"), b.input("w", (20, 5), "float32")
    graph, weights = b.build(y=b.softmax(x @ w)), RNG.normal(size=(20, 5)).astype("float32")
    inputs = [{"x": RNG.normal(size=(n % 3 + 1, 20)).astype("float32")} for n in range(30)]
    for config in (gather(10), gather(30, pad={"n": 4})):
        with DynamicBatcher(tl.Executor(), graph, config, shared={"w": weights}) as batcher:
            answers = [f.result(10) for f in [batcher.submit_nowait(i) for i in inputs]]
        check(graph, [i | {"w": weights} for i in inputs], answers, exact=False)
        assert batcher.stats().batches == (1 if config.pad else 3)  # by shape, or filled up
    with pytest.raises(tl.InputError, match="given as shared"):
        batcher.submit_nowait(inputs[0] | {"w": weights})
    compiled = tl.Executor().compile_graph(graph)
    with DynamicBatcher(compiled, graph, gather(10), shared={"w": weights}) as batcher:
        answers = [f.result(30) for f in [batcher.submit_nowait(i) for i in inputs[::3]]]
    check(graph, [i | {"w": weights} for i in inputs[::3]], answers, exact=False)
    with pytest.raises(tl.InputError, match="another graph"):
        DynamicBatcher(compiled, scores())


def test_padding_is_refused_where_it_would_change_an_answer():
    b = tl.GraphBuilder()
    x, square = b.input("x", ("n", 3)), b.input("square", ("m", "m"))
    pad = BatcherConfig(pad={"n": 8})
    for wrong in (b.mean(x, axis=0), b.softmax(x, axis=0), b.sort(x, axis=0), x[::-1]):
        with pytest.raises(tl.InputError, match="cannot be padded"):
            DynamicBatcher(tl.Executor(), b.build(y=wrong), pad)
    with pytest.raises(tl.InputError, match="cannot be padded"):
        DynamicBatcher(tl.Executor(), b.build(y=square * 2), BatcherConfig(pad={"m": 8}))
    with pytest.raises(tl.InputError, match="no size 'k'"):
        DynamicBatcher(tl.Executor(), b.build(y=x * 2), BatcherConfig(pad={"k": 8}))
    graph = b.build(y=b.cumsum(x, axis=1), same=x, sums=b.sum(x, axis=1), fixed=b.constant(np.ones(2)))
    inputs = [{"x": RNG.normal(size=(n, 3))} for n in (1, 7, 8, 9, 3, 0)]
    with DynamicBatcher(tl.Executor(), graph, pad) as batcher:
        check(graph, inputs, [f.result(10) for f in [batcher.submit_nowait(i) for i in inputs]])


def test_a_bad_request_fails_alone():
    gate = Gate(is_open=True)
    inputs = [{"x": row} for row in rows(40)]
    inputs[7] = {"x": np.array([0.0, np.nan, 0.0])}
    with DynamicBatcher(tl.Executor(wrap=[gate]), scores(), gather(40)) as batcher:
        futures = [batcher.submit_nowait(i) for i in inputs]
        with pytest.raises(tl.ExecutionError, match="a NaN came in"):
            futures[7].result(10)
        good = [f for n, f in enumerate(futures) if n != 7]
        check(scores(), [i for n, i in enumerate(inputs) if n != 7], [f.result(10) for f in good])
        for wrong in ({"x": np.ones(4)}, {"y": np.ones(3)}, {}, 3, {"x": "text"}):
            with pytest.raises(tl.TensorLogicError):
                batcher.submit_nowait(wrong)
    stats = batcher.stats()
    assert (stats.completed, stats.failed) == (39, 1)


@pytest.mark.parametrize("error", [StopIteration(), MemoryError(), SystemExit(1), KeyboardInterrupt()])
def test_whatever_a_step_raises_is_an_outcome(error):
    gate = Gate(is_open=True)
    gate.error = error
    with DynamicBatcher(tl.Executor(wrap=[gate]), scores()) as batcher:
        futures = [batcher.submit_nowait({"x": row}) for row in rows(5)]
        for future in futures:
            assert isinstance(future.exception(10), Exception)
        gate.error = None
        assert batcher.submit_nowait({"x": np.ones(3)}).result(10)["best"] == 0


def test_an_interrupt_on_the_event_loop_leaves_nobody_waiting():
    async def main():
        batcher = DynamicBatcher(tl.Executor(), scores())
        batcher.warm_up({"x": np.ones(3)})
        run = batcher._graph.run
        batcher._graph.run = lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        futures.append(batcher.submit_on_loop({"x": np.ones(3)}))
        batchers.append((batcher, run))
        await futures[0]

    futures, batchers = [], []
    with pytest.raises((KeyboardInterrupt, tl.ExecutionError)):
        asyncio.run(main())
    assert isinstance(futures[0].exception(), tl.ExecutionError)
    batcher, batcher._graph.run = batchers[0]
    assert batcher.submit_nowait({"x": np.ones(3)}).result(10)["best"] == 0
    batcher.close()


def test_time_that_is_over_waiting_and_running():
    gate = Gate()
    with DynamicBatcher(tl.Executor(wrap=[gate]), scores(), BatcherConfig(timeout=30)) as batcher:
        running = batcher.submit_nowait({"x": np.ones(3)}, timeout=0.05)
        gate.entered.wait(10)
        waiting = batcher.submit_nowait({"x": np.ones(3)}, Priority.CRITICAL, timeout=0.02)
        patient = batcher.submit_nowait({"x": np.ones(3)})
        for future in (waiting, running):  # although the step is held
            with pytest.raises(tl.DeadlineError, match="not answered in time"):
                future.result(10)
        with tl.ExecutionContext(timeout=0), pytest.raises(tl.DeadlineError):
            batcher.submit_nowait({"x": np.ones(3)})
        gate.event.set()
        assert patient.result(10)["best"] == 0
    stats = batcher.stats()
    assert (stats.late, stats.completed) == (2, 1)


def test_cancelling_before_and_while_it_runs():
    gate = Gate()
    batcher = DynamicBatcher(tl.Executor(wrap=[gate]), scores(), BatcherConfig(max_batch=1))
    running, waiting, other = (batcher.submit_nowait({"x": np.ones(3)}) for _ in range(3))
    gate.entered.wait(10)
    assert running.cancel()
    assert waiting.cancel()
    assert wait([running, waiting], 10).not_done == set()
    gate.event.set()
    assert other.result(10)["best"] == 0
    with pytest.raises(FutureCancelled):
        waiting.result()
    batcher.close()
    assert (batcher.stats().cancelled, batcher.stats().completed) == (2, 1)

    async def main():
        held = Gate()
        async with DynamicBatcher(tl.Executor(wrap=[held]), scores()) as batcher:
            task = asyncio.create_task(batcher.submit({"x": np.ones(3)}))
            future = batcher.submit_on_loop({"x": np.ones(3)})
            await asyncio.sleep(0)
            task.cancel()
            future.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0):
                    await batcher.submit({"x": np.ones(3)})
            held.event.set()
            return await batcher.submit({"x": np.ones(3)}), batcher

    answer, batcher = asyncio.run(main())
    assert answer["best"] == 0
    assert batcher.stats().cancelled == 3


def test_a_full_queue_refuses_at_once():
    gate = Gate()
    batcher = DynamicBatcher(tl.Executor(wrap=[gate]), scores(), BatcherConfig(max_batch=1, max_queue=3))
    futures = [batcher.submit_nowait({"x": np.ones(3)})]
    gate.entered.wait(10)
    futures += [batcher.submit_nowait({"x": np.ones(3)}) for _ in range(3)]
    with pytest.raises(tl.QueueFullError, match="3 requests wait") as caught:
        batcher.submit_nowait({"x": np.ones(3)})
    assert caught.value.retry_after > 0
    assert futures[-1].cancel()  # then there is room
    futures[-1] = batcher.submit_nowait({"x": np.ones(3)})
    gate.event.set()
    assert all(f.result(10) for f in futures)
    batcher.close()
    assert batcher.stats().refused == 1


def test_urgent_requests_go_first():
    gate, order = Gate(), []
    batcher = DynamicBatcher(tl.Executor(wrap=[gate]), scores(), BatcherConfig(max_batch=1))
    batcher.submit_nowait({"x": np.ones(3)})
    gate.entered.wait(10)
    for priority in Priority:
        future = batcher.submit_nowait({"x": np.ones(3)}, priority)
        future.add_done_callback(lambda _, p=priority: order.append(p))
    gate.event.set()
    batcher.close()
    assert order == sorted(Priority, reverse=True)
    with pytest.raises(tl.InputError, match="priority is expected"):
        batcher.submit_nowait({"x": np.ones(3)}, "high")


def test_closing_answers_or_cancels_what_waits():
    gate = Gate()
    batcher = DynamicBatcher(tl.Executor(wrap=[gate]), scores(), BatcherConfig(max_batch=1))
    running = batcher.submit_nowait({"x": np.ones(3)})
    gate.entered.wait(10)
    waiting = batcher.submit_nowait({"x": np.ones(3)})
    closing = threading.Thread(target=batcher.close, args=(False,))
    closing.start()
    with pytest.raises(tl.CancelledError, match="closed before"):
        waiting.result(10)
    gate.event.set()
    closing.join(10)
    assert running.result(0)["best"] == 0
    with pytest.raises(tl.InputError, match="takes no requests: it was closed"):
        batcher.submit_nowait({"x": np.ones(3)})

    async def main():
        batcher = DynamicBatcher(tl.Executor(), scores(), gather(20))
        futures = [batcher.submit_on_loop({"x": np.ones(3)}) for _ in range(5)]
        batcher.close()  # on the event loop that the answers are for
        return [(await f)["best"] for f in futures]

    assert asyncio.run(main()) == [0] * 5


def test_tasks_threads_and_trio_at_once_with_a_storm_of_cancellations():
    """Each request has one outcome, and the counts add up."""
    graph = scores()
    config = BatcherConfig(max_batch=16, max_queue=200, workers=2, timeout=20)
    batcher, outcomes, errors = DynamicBatcher(tl.Executor(), graph, config), [], []

    def request(choice):
        row = np.array([choice.random(), 2.0, 0.0])
        return {"x": row}, choice.choice(list(Priority)), choice.choice([None, 0.0005, 10.0])

    def expect(inputs, answer):
        if not np.array_equal(answer["y"], np.tanh(inputs["x"]) * 2.0):
            errors.append(inputs)
        outcomes.append("answer")

    async def impatient(choice, cancelled):
        inputs, priority, timeout = request(choice)
        try:
            expect(inputs, await batcher.submit(inputs, priority, timeout))
        except tl.DeadlineError:
            outcomes.append("late")
        except tl.QueueFullError:
            outcomes.append("full")
        except cancelled:
            outcomes.append("cancelled")
            raise

    async def on_asyncio(seed):
        choice = random.Random(seed)
        for _ in range(8):
            tasks = [asyncio.create_task(impatient(choice, asyncio.CancelledError)) for _ in range(25)]
            await asyncio.sleep(choice.random() * 0.002)
            for task in choice.sample(tasks, 8):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def on_trio(seed):
        choice = random.Random(seed)
        for _ in range(8):
            async with trio.open_nursery() as nursery:
                for _ in range(25):
                    nursery.start_soon(impatient, choice, trio.Cancelled)
                await trio.sleep(choice.random() * 0.002)
                if choice.random() < 0.5:
                    nursery.cancel_scope.cancel()

    def on_thread(seed):
        choice = random.Random(seed)
        for _ in range(100):
            inputs, priority, timeout = request(choice)
            try:
                future = batcher.submit_nowait(inputs, priority, timeout)
                if choice.random() < 0.3 and future.cancel():
                    outcomes.append("cancelled")
                else:
                    expect(inputs, future.result(20))
            except tl.DeadlineError:
                outcomes.append("late")
            except tl.QueueFullError:
                outcomes.append("full")

    threads = [threading.Thread(target=on_thread, args=(n,)) for n in range(3)]
    threads += [threading.Thread(target=lambda n=n: asyncio.run(on_asyncio(n))) for n in range(2)]
    threads += [threading.Thread(target=lambda: trio.run(on_trio, 5))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    batcher.close()
    assert not errors
    stats = batcher.stats()
    assert stats.completed >= outcomes.count("answer") > 0
    assert (stats.waiting, stats.running, stats.failed) == (0, 0, 0)
    sent = stats.completed + stats.late + stats.cancelled + stats.refused
    # tasks of trio and asyncio that were cancelled before they began sent nothing
    assert len(outcomes) - 200 <= sent <= 900


async def leave(batcher):
    batcher.submit_on_loop({"x": np.ones(3)})  # and the loop ends before its turn


async def ask(batcher):
    return (await batcher.submit({"x": np.ones(3)}))["best"]


def test_loops_that_end_leave_the_batcher_usable():
    batcher = DynamicBatcher(tl.Executor(), scores())
    batcher.warm_up({"x": np.ones(3)})
    for _ in range(3):
        asyncio.run(leave(batcher))
        assert batcher.submit_nowait({"x": np.ones(3)}).result(10)["best"] == 0
        asyncio.run(leave(batcher))
        assert asyncio.run(ask(batcher)) == 0
    batcher.close()
    gone = weakref.ref(batcher)
    del batcher
    for _ in range(200):
        gc.collect()
        if gone() is None:
            break
        time.sleep(0.01)  # until its threads are gone
    assert gone() is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_a_fork_begins_anew():
    gate = Gate()
    batcher = DynamicBatcher(tl.Executor(wrap=[gate]), scores(), BatcherConfig(max_batch=1))
    running = batcher.submit_nowait({"x": np.ones(3)})
    gate.entered.wait(10)
    waiting = batcher.submit_nowait({"x": np.ones(3)})
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            gate.event.set()
            forked = all(isinstance(f.exception(5), tl.CancelledError) for f in (running, waiting))
            answer = batcher.submit_nowait({"x": np.ones(3)}).result(5)
            os._exit(0 if forked and answer["best"] == 0 else 1)
        os._exit(2)
    gate.event.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert running.result(10)["best"] == waiting.result(10)["best"] == 0
    batcher.close()


def test_a_process_ends_with_requests_in_line():
    code = """
import numpy as np, time, tensorlogic as tl
b = tl.GraphBuilder()
graph = b.build(y=b.input("x", (3,)) * 2.0)
def slow(call):
    def held(step, args):
        time.sleep(0.05)
        return call(step, args)
    return held
batcher = tl.DynamicBatcher(tl.Executor(wrap=[slow]), graph, tl.BatcherConfig(max_batch=1))
futures = [batcher.submit_nowait({"x": np.ones(3)}, timeout=60) for _ in range(500)]
futures[0].result()
futures[-1].add_done_callback(lambda f: print(type(f.exception()).__name__, flush=True))
"""
    env = {**os.environ, "PYTHONWARNINGS": "error"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "CancelledError\n", "")


def test_watchers_see_batches():
    with tl.trace() as trace, DynamicBatcher(tl.Executor(), scores(), gather(5)) as batcher:
        for future in [batcher.submit_nowait({"x": row}) for row in rows(5)]:
            future.result(10)
    assert "batch of 5" in {event.name for event in trace.events()}


def test_callbacks_may_wait_for_other_requests():
    with DynamicBatcher(tl.Executor(), scores()) as batcher:
        found, done = [], threading.Event()

        def again(_):
            found.append(batcher.submit_nowait({"x": np.ones(3)}).result(10)["best"])
            if len(found) == 3:
                done.set()

        for _ in range(3):
            batcher.submit_nowait({"x": np.ones(3)}).add_done_callback(again)
        assert done.wait(20)


def test_a_thread_that_never_came_is_not_waited_for():
    late = [0.0]
    with DynamicBatcher(tl.Executor(), scores(), clock=lambda: time.monotonic() + late[0]) as batcher:
        batcher._threads.count += 1  # as an interrupt leaves it, between counting a thread and starting it
        batcher._threads._called_at = time.monotonic()
        lost = batcher.submit_nowait({"x": np.ones(3)})
        late[0] = 5.0
        assert batcher.submit_nowait({"x": np.ones(3)}).result(10)["best"] == 0
        assert lost.result(10)["best"] == 0


def test_configs_are_checked():
    for wrong in ({"max_batch": 0}, {"max_queue": -1}, {"strategy": "latency"}, {"max_wait": -1}, {"pad": {"n": 0}}):
        with pytest.raises(tl.InputError):
            BatcherConfig(**wrong)
    with pytest.raises(tl.InputError, match="Executor"):
        DynamicBatcher(3, scores())
    with pytest.raises(tl.InputError, match="EinsumGraph"):
        DynamicBatcher(tl.Executor())
    with pytest.raises(tl.InputError, match="BatcherConfig"):
        DynamicBatcher(tl.Executor(), scores(), {"max_batch": 3})


@pytest.mark.parametrize("warm", [False, True])
def test_threads_that_wait_run_batches_themselves(warm):
    """Each gets its own answer, whoever ran it; a request that is brief by measure runs alone."""
    graph, found = scores(), {}
    with DynamicBatcher(tl.Executor(), graph, BatcherConfig(max_batch=8)) as batcher:
        if warm:
            batcher.warm_up({"x": np.ones(3)})

        def caller(number):
            for n in range(10):
                row = np.roll(np.array([3.0, 2.0, 1.0]), number + n)
                found[number, n] = (
                    batcher.submit_and_wait({"x": row}, Priority(n % 4), timeout=20)["best"] == row.argmax()
                )

        threads = [threading.Thread(target=caller, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(found) == 120 and all(found.values())
        assert batcher.stats().completed == 120
        with pytest.raises(tl.DeadlineError):
            batcher.submit_and_wait({"x": np.ones(3)}, timeout=0)
        with pytest.raises(tl.ShapeError):
            batcher.submit_and_wait({"x": np.ones(4)})
    with pytest.raises(tl.InputError, match="takes no requests"):
        batcher.submit_and_wait({"x": np.ones(3)})


def test_what_waits_behind_a_thread_that_runs_is_answered():
    gate = Gate()
    with DynamicBatcher(tl.Executor(wrap=[gate]), scores(), BatcherConfig(max_batch=1)) as batcher:
        answers = []
        first = threading.Thread(target=lambda: answers.append(batcher.submit_and_wait({"x": np.ones(3)})["best"]))
        first.start()
        gate.entered.wait(10)
        futures = [batcher.submit_nowait({"x": np.ones(3)}) for _ in range(3)]
        late = batcher.submit_nowait({"x": np.ones(3)}, timeout=0.02)  # somebody keeps the time meanwhile
        with pytest.raises(tl.DeadlineError):
            late.result(10)
        gate.event.set()
        first.join(10)
        assert answers == [0] and all(f.result(10)["best"] == 0 for f in futures)
