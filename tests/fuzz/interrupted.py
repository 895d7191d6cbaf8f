"""Ctrl-C at random moments and places, and forks while threads work: nothing is broken after."""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, BinaryIO

from checking import TAKEN, Expected, Wrong, copies, quiet, run, same_bits

import tensorlogic as tl
from tensorlogic.backends.threads import _libraries
from tensorlogic.events import running, watchers

ROADS = ("plain", "threads", "traced", "budget", "compiled", "jit", "bits")
PATIENCE = 60.0  # seconds for a child


def executing(road: str, graph: tl.EinsumGraph) -> Callable[[dict[str, Any]], Any]:
    """Return a road as a function of inputs."""
    executor = tl.Executor(threads=2) if road in ("threads", "bits") else tl.Executor()
    if road == "compiled":
        return executor.compile_graph(graph, tl.CompilationConfig(optimization_level=tl.OptimizationLevel.STANDARD))
    if road == "jit":
        return partial(executor.execute_jit, graph, config=tl.JitConfig(hot_path_threshold=2))
    if road == "budget":
        return partial(executor.execute, graph, budget=1 << 30)
    if road == "traced":

        def traced(inputs: dict[str, Any]) -> Any:
            with tl.trace(detail="op"):
                return executor.execute(graph, inputs)

        return traced
    return partial(executor.execute, graph)


def interrupted(seconds: float, function: Callable[[], Any]) -> None:
    """Call a function in the main thread and raise KeyboardInterrupt in it after so long, once."""
    armed = True

    def handler(signum: int, frame: FrameType | None) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    before, hook = signal.signal(signal.SIGALRM, handler), sys.unraisablehook
    sys.unraisablehook = lambda _: None  # one that comes in a finalizer is only told
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            function()
        finally:
            armed = False
    except KeyboardInterrupt:
        pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook


def interrupted_at(place: int, function: Callable[[], Any]) -> bool:
    """Call a function and raise KeyboardInterrupt at a place of it, counted from 0; tell whether it has so many.

    The places are those where Python looks for interrupts: as a function begins, and after a call of C.
    """
    left = place + 1

    def look(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal left
        if event in ("call", "c_return"):
            left -= 1
            if not left:
                sys.setprofile(None)
                raise KeyboardInterrupt

    before, hook = sys.getprofile(), sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        sys.setprofile(look)
        function()
    except KeyboardInterrupt:
        pass
    finally:
        sys.setprofile(before)
        sys.unraisablehook = hook
    return left <= 0


def check_surroundings(what: str, before: list[int]) -> None:
    """Look whether an interrupt left a trace on, or BLAS with another number of threads."""
    if watchers() or getattr(running, "hooks", ()) or getattr(running, "listening", ()):
        raise Wrong(f"{what}: an interrupt leaves a trace on")
    if blas_threads() != before:
        raise Wrong(f"{what}: an interrupt leaves BLAS with {blas_threads()} threads, not {before}")


def blas_threads() -> list[int]:
    """Return how many threads each BLAS library may use."""
    return [library.get_num_threads() for library in _libraries()]


def interrupts(expected: Expected, moments: list[float | int]) -> None:
    """Interrupt calls, the first ones too, after so many seconds or at such places, and look whether the next ones are right."""
    case = expected.case
    if expected.error is not None:
        return
    for road in ROADS:
        if not expected.takes(f"interrupted {road}"):
            continue
        before = blas_threads()
        with quiet():
            execute = executing(road, case.graph)
            for moment in moments:
                inputs = copies(case.inputs)
                if isinstance(moment, int):
                    interrupted_at(moment, partial(execute, inputs))
                else:
                    interrupted(moment, partial(execute, inputs))
                for name, array in case.inputs.items():
                    if not same_bits(inputs[name], array):
                        raise Wrong(f"{road}, interrupted at {moment}: input {name} was written over")
        check_surroundings(road, before)
        run(f"{road}, after an interrupt", expected, execute, always=True)
        run(
            f"plain, after an interrupt of {road}",
            expected,
            partial(tl.Executor().execute, case.graph),
            times=1,
            always=True,
        )


# forks: in a process without JAX, which has threads that do not survive one


class _Helper:
    def __init__(self) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}  # see "What it cannot promise" in docs/reliability.md
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__)), "serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        atexit.register(self.close)

    def ask(self, task: Any) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        pickle.dump(task, self.process.stdin)
        self.process.stdin.flush()
        return str(pickle.load(self.process.stdout))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


_helper: list[_Helper] = []


def stop_helper() -> None:
    """End the process that forks."""
    while _helper:
        helper = _helper.pop()
        atexit.unregister(helper.close)
        helper.close()


def forks(expected: Expected) -> None:
    """Fork after a call, with threads at work, and look whether child and parent still answer."""
    if expected.error is not None or not hasattr(os, "fork"):
        return
    for road in ROADS:
        if not expected.takes(f"forked {road}"):
            continue
        TAKEN[""] += 1
        if not _helper:
            _helper.append(_Helper())
        try:
            said = _helper[0].ask((road, expected.case.graph.to_json(), expected.case.inputs, expected.outputs))
        except (EOFError, BrokenPipeError, pickle.UnpicklingError) as error:
            stop_helper()
            raise Wrong(f"{road}: the process that forked is gone") from error
        if said:
            raise Wrong(f"{road}, forked: {said}")


def _differs(made: Any, want: dict[str, Any]) -> str:
    return next((f"{name} differs" for name, array in want.items() if not same_bits(made[name], array)), "")


def _forked(road: str, text: str, inputs: dict[str, Any], want: dict[str, Any]) -> str:
    graph = tl.EinsumGraph.from_json(text)
    execute = executing(road, graph)
    with quiet():
        for _ in range(3):
            execute(copies(inputs))
    child = os.fork()
    if not child:
        code = 3
        try:
            with quiet():
                wrong = _differs(execute(copies(inputs)), want) or _differs(
                    tl.Executor().execute(graph, copies(inputs)), want
                )
                code = 1 if wrong else 0
        finally:
            os._exit(code)
    end = time.monotonic() + PATIENCE
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if time.monotonic() > end:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "the child hangs"
        time.sleep(0.0005)
    code = os.waitstatus_to_exitcode(status)
    if code:
        return {1: "the child's answer differs", 3: "the child raised"}.get(code, f"the child ended with {code}")
    with quiet():
        return _differs(execute(copies(inputs)), want)


def serve(source: BinaryIO, sink: BinaryIO) -> None:
    """Fork as asked until there is nothing more to do."""
    warnings.simplefilter("ignore", DeprecationWarning)  # Python warns of forking with threads
    while True:
        try:
            task = pickle.load(source)
        except EOFError:
            return
        try:
            said = _forked(*task)
        except Exception as error:
            said = f"the parent raised {type(error).__name__}: {error}"
        pickle.dump(said, sink)
        sink.flush()


if __name__ == "__main__" and sys.argv[1:] == ["serve"]:
    serve(sys.stdin.buffer, sys.stdout.buffer)
