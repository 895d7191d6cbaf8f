"""The processes of a driver: one for each rank, which stay for the next run and end with the driver."""

from __future__ import annotations

import os
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

import msgspec

from ...errors import ExecutionError
from ...ir.graph import EinsumGraph
from ..values import Inputs
from .config import Mesh
from .messages import Answer, Arena, Call, TaskMessage, receive, send
from .rank import RankResult, RankTimes, Task
from .torch_ways import torch_distributed
from .worker import Setup

if TYPE_CHECKING:
    from ..executor import Executor

START = 60.0  # seconds that workers may take to come up, beside the timeout
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
        address = (Path(self._folder.name) / "meeting").as_uri()
        self._processes = [self._started(rank, address) for rank in range(size)]
        self._end = weakref.finalize(self, _ended, self._processes, self._files, self._folder)
        self._answers(START + timeout, "started")

    def _started(self, rank: int, address: str) -> subprocess.Popen[bytes]:
        backend, level, policy = self.kind
        descriptor = self._files[rank].fileno()
        setup = Setup(rank, self.size, address, self.timeout, descriptor, backend, level, policy)
        threads = str(max(1, (os.cpu_count() or 1) // self.size))
        own = dict.fromkeys(
            ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads
        )
        return subprocess.Popen(
            [sys.executable, "-m", "tensorlogic.runtime.distributed.worker", msgspec.json.encode(setup).decode()],
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
        for rank, own in enumerate(tasks):
            self._tell(rank, self._call(rank, mesh, own))
        answers = self._answers(None, "ran")
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
        return Call((mesh.data, mesh.model, mesh.stage), messages, graphs, arena.used)

    def _tell(self, rank: int, call: Call) -> None:
        pipe = self._processes[rank].stdin
        assert pipe is not None
        try:
            send(pipe, call)
        except OSError:
            raise self._lost(rank, "was called") from None

    def _answers(self, limit: float | None, what: str) -> list[Answer]:
        """Wait for one answer of each worker; raise where one dies or fails."""
        pipes: dict[IO[bytes], int] = {}
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            pipes[process.stdout] = rank
        answers: dict[int, Answer] = {}
        end = None if limit is None else monotonic() + limit
        failure: tuple[bool, int, Answer] | None = None
        while len(answers) < self.size:
            waiting = [pipe for pipe, rank in pipes.items() if rank not in answers]
            if failure is not None:
                end = min(end or monotonic() + 1.0, monotonic() + 1.0)
            ready, _, _ = select.select(waiting, [], [], None if end is None else max(0.0, end - monotonic()))
            if not ready:
                break
            for pipe in ready:
                rank, message = pipes[pipe], receive(pipe)
                if message is None:
                    raise self._lost(rank, what)
                assert isinstance(message, Answer)
                answers[rank] = message
                if message.error and (failure is None or (failure[0] and not message.follows)):
                    failure = message.follows, rank, message
        if failure is not None:
            _, rank, answer = failure
            raise ExecutionError(f"rank {rank}: {answer.error}", code=answer.code or "E373")
        if len(answers) < self.size:
            missing = ", ".join(str(r) for r in range(self.size) if r not in answers)
            raise ExecutionError(f"rank {missing} did not answer within {limit:g} s", code="E374")
        return [answers[rank] for rank in range(self.size)]

    def _lost(self, rank: int, what: str) -> ExecutionError:
        process = self._processes[rank]
        try:
            code: int | None = process.wait(1.0)
        except subprocess.TimeoutExpired:
            code = None
        how = "" if code is None else f" by signal {-code}" if code < 0 else f" with exit code {code}"
        return ExecutionError(
            f"the process of rank {rank} ended{how} while it {what}",
            "run it again: workers are started anew",
            code="E382",
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
