"""Several loops and threads on one executor, and awaited calls as processes end or fork."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from async_calls import PATIENCE, Gate, X, awaited, chain, expected

import tensorlogic as tl
from tensorlogic.runtime.aio import call_queue, workers

# many loops, many threads, and ends of processes


def test_several_loops_in_several_threads_use_one_executor():
    executor, graph = tl.Executor(), chain()
    config = tl.AsyncConfig(max_concurrent=2)

    def loop(n: int) -> int:
        async def main() -> int:
            for turn in range(5):
                given = [np.full(3 + n, turn + k / 10) for k in range(10)]
                outputs = await asyncio.gather(*[executor.execute_async(graph, {"x": x}, config) for x in given])
                for x, out in zip(given, outputs, strict=True):
                    np.testing.assert_array_equal(out["y"], expected(x))
            return n

        return asyncio.run(main())

    with ThreadPoolExecutor(6) as threads:
        assert list(threads.map(loop, range(6))) == list(range(6))


def test_loops_that_are_closed_early_leave_the_executor_usable(recwarn):
    gate = Gate()
    executor = tl.Executor(wrap=[gate])

    async def begin() -> list[Any]:
        return [executor.execute_async(chain(), {"x": X}) for _ in range(4)]

    async def wait_a_moment() -> None:
        waiting = [asyncio.ensure_future(awaited(h)) for h in await begin()]
        await asyncio.sleep(0)
        assert len(waiting) == 4  # asyncio.run cancels them

    handles = asyncio.run(begin())
    asyncio.run(wait_a_moment())
    gate.open.set()
    for handle in handles:
        np.testing.assert_array_equal(asyncio.run(awaited(handle))["y"], expected(X))
    assert not recwarn.list


def _child(code: str) -> str:
    head = "import asyncio, os, sys, time, threading, numpy as np, tensorlogic as tl\n"
    head += "b = tl.GraphBuilder(); z = b.input('x', ('n',), 'float64')\nfor _ in range(6): z = b.tanh(z)\n"
    head += "g, x = b.build(y=z), {'x': np.ones(3)}\n"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", head + code],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_process_can_end_while_calls_run_and_wait():
    code = """
def slow(call):
    def f(step, args):
        time.sleep(0.05)
        return call(step, args)
    return f
ex = tl.Executor(wrap=[slow])
async def main():
    handles = [ex.execute_async(g, x) for _ in range(50)]
    await asyncio.sleep(0.02)
    print("leaving")
asyncio.run(main())
"""
    assert _child(code) == "leaving\n"


def test_a_forked_process_cancels_the_calls_of_its_parent_and_makes_its_own():
    code = """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 and later warn of forks among threads
opened, began = [], []  # no Event: a thread that is about to wait for one holds its lock, in the child for ever
def waiting(call):
    def f(step, args):
        began.append(step)
        while not opened: time.sleep(0.001)
        return call(step, args)
    return f
ex, plain = tl.Executor(wrap=[waiting]), tl.Executor()
async def get(h): return await h
asyncio.run(get(plain.execute_async(g, x)))  # loads what calls need: a fork while another thread imports may hang
handles = [ex.execute_async(g, x) for _ in range(10)]
while len(began) < min(10, tl.AsyncConfig().max_concurrent): time.sleep(0.001)
pid = os.fork()
opened.append(True)
if pid == 0:
    lost = 0
    for h in handles:
        try:
            asyncio.run(get(h))
        except asyncio.CancelledError as error:
            lost += "forked" in str(error)
    out = asyncio.run(get(plain.execute_async(g, x)))
    out2 = asyncio.run(get(ex.execute_async(g, x)))
    os._exit(0 if lost == 10 and np.array_equal(out["y"], out2["y"]) else 1)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
for h in handles:
    asyncio.run(get(h))
print("both")
"""
    assert _child(code) == "both\n"


def test_a_call_that_is_begun_as_the_process_ends_has_an_outcome():
    code = """
import atexit
ex = tl.Executor()
ex.execute(g, x)
def last():
    async def main():
        try:
            out = await ex.execute_async(g, {"x": np.ones(9)})
            print("answer", out["y"].shape)
        except tl.TensorLogicError as error:
            print(error.diagnostic.code)
    asyncio.run(main())
from tensorlogic.runtime.aio import call_queue
atexit.register(last)
"""
    assert _child(code) in ("answer (9,)\n", "E560\n")


def test_threads_without_work_leave(monkeypatch):
    monkeypatch.setattr(workers, "KEPT", 0.01)
    own = workers.Workers()
    monkeypatch.setattr(call_queue, "workers", own)
    lane = call_queue.CallQueue(2, 10)
    interval = sys.getswitchinterval()

    async def main() -> list[int]:
        handles = [call_queue.AsyncHandle(lane, lambda n=n: n * n) for n in range(20)]
        for handle in handles:
            lane.submit(handle)
        return [await h for h in handles]

    assert asyncio.run(main()) == [n * n for n in range(20)]
    for _ in range(1000):
        if own.threads() == 0:
            break
        threading.Event().wait(0.01)
    assert own.threads() == 0
    assert sys.getswitchinterval() == pytest.approx(interval)
    assert asyncio.run(main()) == [n * n for n in range(20)]
