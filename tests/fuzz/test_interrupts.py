"""Interrupts at the places of a call, one after another: the process ends, what comes next is right, and nothing is lost."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checking import quiet, same_bits
from interrupted import blas_threads, check_surroundings, interrupted_at

import tensorlogic as tl
from tensorlogic.runtime.aio.call_queue import AsyncHandle, CallQueue

MOST = 60  # places of a call that are tried, evenly spread

ENDS = """
import sys
sys.path.insert(0, sys.argv[1])
from interrupted import interrupted_at
from tensorlogic.runtime.jit import JitCompiler

made, place, more = [], 0, True
while more:
    made.append(JitCompiler())
    more = interrupted_at(place, lambda: made[-1].submit(lambda: None))
    place += 1 if place < 400 else 50  # the first call of all imports something, which has many
for compiler in made:
    before = compiler.done
    compiler.submit(lambda: None)
    compiler.wait()
    assert compiler.done > before
print("all compiled")
"""


def test_a_process_ends_wherever_its_first_compilation_was_interrupted() -> None:
    """One between the start of a thread and the note that it was started once left the process waiting for it for ever."""
    command = [sys.executable, "-c", ENDS, str(Path(__file__).parent)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "all compiled\n"), done.stderr


def test_a_process_that_ends_waits_for_what_it_compiles() -> None:
    script = """
import time
from tensorlogic.runtime.jit import JitCompiler

compiler = JitCompiler()
begun = []
compiler.submit(lambda: (begun.append(1), time.sleep(0.3), print("done")))
compiler.submit(lambda: print("never"))
while not begun:
    time.sleep(0.001)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_a_queue_of_awaited_calls_loses_no_place_to_an_interrupt() -> None:
    more, place = True, 0
    while more:
        queue = CallQueue(1, 10)
        more = interrupted_at(place, AsyncHandle(queue, int).begin)
        following, end = AsyncHandle(queue, int).begin(), time.monotonic() + 60
        while not following.done() and time.monotonic() < end:
            time.sleep(1e-4)
        assert following.done(), f"nothing begins after an interrupt at place {place}"
        place += 1
    assert place > 5


def test_calls_that_stand_in_line_begin_wherever_another_was_interrupted() -> None:
    more, place = True, 0
    while more:
        queue = CallQueue(1, 10)
        gate = threading.Event()
        first = AsyncHandle(queue, gate.wait).begin()
        second = AsyncHandle(queue, int)
        more = interrupted_at(place, second.begin)
        third = AsyncHandle(queue, int).begin()
        gate.set()
        end = time.monotonic() + 60
        while queue.outstanding() and time.monotonic() < end:
            time.sleep(1e-4)
        assert not queue.outstanding(), f"a call is stuck after an interrupt at place {place}"
        assert first.done(), f"what ran is lost by an interrupt at place {place}"
        assert third.done(), f"what stood in line is lost by an interrupt at place {place}"
        place += 1
    assert place > 3


BESIDE = """
import sys
sys.path.insert(0, sys.argv[1])
from interrupted import interrupted_at
from tensorlogic.ir.whole_files import Beside

def sums():
    beside = Beside(thread=True)
    try:
        calls = [beside.call(sum, range(k)) for k in range(4)]
        assert [call() for call in calls] == [0, 0, 1, 3]
    finally:
        beside.close()

place = 0
while interrupted_at(place, sums):
    sums()
    place += 1
print("all added up", place > 20)
"""


def test_a_process_ends_wherever_the_work_beside_a_file_was_interrupted() -> None:
    command = [sys.executable, "-c", BESIDE, str(Path(__file__).parent)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "all added up True\n"), done.stderr


def layer() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 8), "float32"), b.input("w", (8, 8), "float32")
    y = b.tanh(x @ w)
    return b.build(y=b.softmax(y * 0.5 + x), mean=b.mean(y))


VALUES = {
    "x": np.linspace(-1, 1, 160, dtype="float32").reshape(20, 8),
    "w": np.linspace(0, 1, 64, dtype="float32").reshape(8, 8),
}
FAMILY = """
Parent(Alice, Bob); Parent(Bob, Carol)
Ancestor(x,y) <- Parent(x,y)
Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)
"""


def streamed(executor: tl.Executor) -> Any:
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(7))
    stream = executor.execute_stream(layer(), {"x": VALUES["x"]}, config, inputs={"w": VALUES["w"]})
    return [*(result.outputs["y"] for result in stream), stream.outputs["mean"]]


def on_ranks(executor: tl.Executor) -> Any:
    config = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)])
    return list(executor.execute_distributed(layer(), VALUES, config).values())


def on_threads(executor: tl.Executor) -> Any:
    large = {"x": np.tile(VALUES["x"], (4000, 1)), "w": VALUES["w"]}
    return list(tl.Executor(threads=2).execute(layer(), large).values())


def compiled(executor: tl.Executor) -> Any:
    return list(executor.execute_jit(layer(), VALUES, tl.JitConfig(hot_path_threshold=1)).values())


def trained(executor: tl.Executor) -> Any:
    config = tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=1, batch_size=8, seed=0)
    trainer = tl.Trainer(executor, config)
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 8), "float32"), b.input("w", (8, 8), "float32")
    trainer.fit(b.build(loss=b.mean(b.square(b.tanh(x @ w)))), {"w": VALUES["w"]}, {"x": VALUES["x"]})
    return list(trainer.params.values())


def asked(executor: tl.Executor) -> Any:
    program = tl.Program(FAMILY, executor=executor)
    program.add("Parent", [("Carol", "Emil")])
    return [np.frombuffer(str(program.query("Ancestor(Alice, x)?")).encode(), "uint8")]


def places(function: Callable[[], Any]) -> Iterator[int]:
    """Return places of a call, evenly spread."""
    count = 0

    def look(frame: Any, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_return")

    sys.setprofile(look)
    try:
        function()
    finally:
        sys.setprofile(None)
    return iter(range(0, count, max(1, count // MOST)))


@pytest.mark.parametrize("road", [streamed, on_ranks, on_threads, compiled, trained, asked])
@pytest.mark.parametrize("first", [True, False], ids=["first call", "later calls"])
def test_what_comes_after_an_interrupt_is_right(road: Callable[[tl.Executor], Any], first: bool) -> None:
    with quiet():
        executor = tl.Executor()
        want, before = road(executor), blas_threads()  # the first call may load SciPy, which has a BLAS of its own
        for place in places(partial(road, tl.Executor() if first else executor)):
            own = tl.Executor() if first else executor
            interrupted_at(place, partial(road, own))
            check_surroundings(f"place {place}", before)
            made = road(own)
            assert len(made) == len(want)
            assert all(map(same_bits, made, want)), f"differs after an interrupt at place {place}"
    assert threading.active_count() < 50
