"""The processes of a driver: one for each rank, which stay for the next run and end with the driver."""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import IO, TYPE_CHECKING, Any

from ...diagnostics import Diagnostic
from ...errors import ExecutionError
from ...ir.graph import EinsumGraph
from ..inputs import Inputs
from .config import Mesh
from .messages import Answer, Arena, Call, Setup, TaskMessage, receive, send
from .rank import RankResult, RankTimes, Task, of_rank
from .torch_ways import torch_distributed

if TYPE_CHECKING:
    from ..executor import Executor

START = 60.0  # seconds that workers may take to come up, beside the timeout
FAREWELL = 3.0  # seconds in which the others say what they missed, after one is gone
GRAPHS = 256  # that workers keep


class Workers:
    """Worker processes on this machine, one for each rank."""

    def __init__(self, executor: Executor, size: int, timeout: float) -> None:
        torch_distributed()
        self.size, self.timeout, self.kind = size, timeout, _kind(executor)
        self._numbers: dict[EinsumGraph, int] = {}
        self._known: list[set[int]] = [set() for _ in range(size)]
        self._files = [tempfile.TemporaryFile(dir=_memory()) for _ in range(size)]  # noqa: SIM115 - closed with the workers
        self._arenas = [Arena(file.fileno()) for file in self._files]
        self._folder = tempfile.TemporaryDirectory(prefix="tensorlogic-ranks-")
        self._token = secrets.token_hex(16)  # told on the pipe, where nobody else reads it
        self._processes = [self._started(rank) for rank in range(size)]
        self._end = weakref.finalize(self, _ended, self._processes, self._files, self._folder)
        address = (Path(self._folder.name) / "meeting").as_uri()
        for rank, file in enumerate(self._files):
            self._tell(rank, Setup(rank, size, address, self._token, timeout, file.fileno(), *self.kind))
        self._answers(START + timeout, "started")

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        descriptor = self._files[rank].fileno()
        threads = str(max(1, (os.cpu_count() or 1) // self.size))
        own = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads
        )
        return subprocess.Popen(
            [sys.executable, "-m", "tensorlogic.runtime.distributed.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(descriptor,),
            env={**os.environ, **own, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def fits(self, executor: Executor, size: int, timeout: float) -> bool:
        """Tell whether these workers can run what an executor would, and are all there."""
        alive = all(process.poll() is None for process in self._processes)
        return alive and (self.size, self.timeout, self.kind) == (size, timeout, _kind(executor))

    def run(self, mesh: Mesh, tasks: Sequence[Sequence[Task]]) -> list[RankResult]:
        """Run the tasks of each rank in its process and return what came out."""
        try:
            for rank, own in enumerate(tasks):
                self._tell(rank, self._call(rank, mesh, own))
            answers = self._answers(None, "ran")
        except BaseException:
            for process in self._processes:
                process.kill()  # what they wait for does not come
            raise
        results = []
        for arena, answer in zip(self._arenas, answers, strict=True):
            outputs = [{name: arena.get(place) for name, place in own.items()} for own in answer.outputs]
            results.append(RankResult(outputs, RankTimes(*answer.times, answer.moved), []))
        return results

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _call(self, rank: int, mesh: Mesh, tasks: Sequence[Task]) -> Call:
        arena, known = self._arenas[rank], self._known[rank]
        arena.used = 0
        graphs, messages = {}, []
        placed: dict[int, Any] = {}  # arrays that several tasks share, such as weights
        for graph, inputs in tasks:
            number = self._numbers.setdefault(graph, len(self._numbers))
            if number not in known:
                known.add(number)
                graphs[number] = graph.to_json()
            messages.append(TaskMessage(number, _placed(arena, placed, inputs)))
        return Call(self._token, (mesh.data, mesh.model, mesh.stage), messages, graphs, arena.used)

    def _tell(self, rank: int, message: Setup | Call) -> None:
        pipe = self._processes[rank].stdin
        assert pipe is not None
        try:
            send(pipe, message)
        except OSError:
            raise self._lost(rank, "was called") from None

    def _answers(self, limit: float | None, what: str) -> list[Answer]:
        """Wait for one answer of each worker; raise where one dies or fails, or comes later than others by more than the timeout."""
        pipes: dict[IO[bytes], int] = {}
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            pipes[process.stdout] = rank
        answers: dict[int, Answer | None] = {}  # None: the process ended
        end = None if limit is None else monotonic() + limit
        while len(answers) < self.size:
            waiting = [pipe for pipe, rank in pipes.items() if rank not in answers]
            ready, _, _ = select.select(waiting, [], [], None if end is None else max(0.0, end - monotonic()))
            if not ready:
                break
            for pipe in ready:
                message = receive(pipe)
                assert message is None or isinstance(message, Answer)
                answers[pipes[pipe]] = message
            codes = {answer.failure.code for answer in answers.values() if answer is not None and answer.failure}
            if codes - {"E373"}:
                break  # it is known what went wrong
            lost = None in answers.values() or codes
            later = monotonic() + (FAREWELL if lost else self.timeout)
            end = later if end is None else min(end, later)
        return self._checked(answers, what)

    def _checked(self, answers: Mapping[int, Answer | None], what: str) -> list[Answer]:
        """Return answers in the order of the ranks; raise for those that are missing or say that something failed."""
        failures = {rank: a.failure for rank, a in answers.items() if a is not None and a.failure is not None}
        ended = [rank for rank, answer in answers.items() if answer is None]
        if ended:
            raise self._lost(ended[0], what, failures)
        if failures:
            rank, failure = min(failures.items(), key=lambda found: (found[1].code == "E373", found[0]))
            raise of_rank(ExecutionError.of(failure), rank)
        if len(answers) < self.size:
            missing = ", ".join(str(rank) for rank in range(self.size) if rank not in answers)
            message = f"rank {missing} did not answer within {self.timeout:g} s of the others"
            hint = "look at what that rank does, or allow more time: timeout="
            raise ExecutionError(message, hint, code="E374")
        return [answer for _, answer in sorted(answers.items()) if answer is not None]

    def _lost(self, rank: int, what: str, others: Mapping[int, Diagnostic] | None = None) -> ExecutionError:
        """Return the error of a rank that is gone, with the step and the line at which the others missed it."""
        process = self._processes[rank]
        try:
            code: int | None = process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        how = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
        first = next(iter((others or {}).values()), None)
        return ExecutionError(
            f"the process of rank {rank} ended{how} while it {what}",
            "run it again: workers are started anew",
            code="E382",
            location=None if first is None else first.location,
            context=[line for own in (others or {}).values() for line in (own.message, *own.context)],
        )


def _placed(arena: Arena, placed: dict[int, Any], inputs: Inputs | Mapping[str, Any]) -> dict[str, Any]:
    for value in inputs.values():
        if id(value) not in placed:
            placed[id(value)] = arena.put(value)
    return {name: placed[id(value)] for name, value in inputs.items()}


def _kind(executor: Executor) -> tuple[str, str, str]:
    return executor.backend.name, executor.config.optimization_level.name, executor.programs.policy


def _memory() -> str | None:
    """Return a folder whose files are kept in memory, where there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _ended(processes: Sequence[subprocess.Popen[bytes]], files: Sequence[IO[bytes]], folder: Any) -> None:
    for process in processes:
        if process.stdin is not None:
            with suppress(BrokenPipeError):  # of one that is dead
                process.stdin.close()  # which ends its loop
    for process in processes:
        try:
            process.wait(2.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
    for file in files:
        file.close()
    folder.cleanup()
