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
from typing import IO, TYPE_CHECKING, Any

from ...ir.graph import EinsumGraph
from ..inputs import Inputs
from .answers import checked, collect, raise_ended
from .config import Mesh
from .messages import Answer, Arena, Call, Setup, TaskMessage, receive, send
from .rank import RankResult, RankTimes, Task
from .torch_ways import torch_distributed

if TYPE_CHECKING:
    from ..executor import Executor

START = 60.0  # seconds that workers may take to come up, beside the timeout
GRAPHS = 256  # that workers keep


class Workers:
    """Worker processes on this machine, one for each rank."""

    restarts = False  # after a failure others take their place

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
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        own = {name: os.environ.get(name, threads) for name in names}  # what the user says counts
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
            results.append(RankResult(outputs, RankTimes(*answer.times, answer.moved, answer.kept_bytes), []))
        return results

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _call(self, rank: int, mesh: Mesh, tasks: Sequence[Task]) -> Call:
        arena, known = self._arenas[rank], self._known[rank]
        arena.used = 0
        graphs, messages = {}, []
        placed: dict[int, Any] = {}  # arrays that several tasks share, such as weights
        for graph, inputs, totals in tasks:
            number = self._numbers.setdefault(graph, len(self._numbers))
            if number not in known:
                known.add(number)
                graphs[number] = graph.to_json()
            messages.append(TaskMessage(number, _placed(arena, placed, inputs), dict(totals)))
        return Call(self._token, (mesh.data, mesh.model, mesh.stage), messages, graphs, arena.used)

    def _tell(self, rank: int, message: Setup | Call) -> None:
        pipe = self._processes[rank].stdin
        assert pipe is not None
        try:
            send(pipe, message)
        except OSError:
            raise_ended(rank, f"{self._ended(rank)} before it was called", {})

    def _answers(self, limit: float | None, what: str) -> list[Answer]:
        """Wait for one answer of each worker; raise where one dies, fails or does not come."""
        pipes: dict[int, IO[bytes]] = {}
        for rank, process in enumerate(self._processes):
            assert process.stdout is not None
            pipes[rank] = process.stdout

        def wait(ranks: Sequence[int], seconds: float | None) -> dict[int, Answer | None]:
            ready = select.select([pipes[rank] for rank in ranks], [], [], seconds)[0]
            found: dict[int, Answer | None] = {}
            for rank in ranks:
                if pipes[rank] in ready:
                    message = receive(pipes[rank])
                    assert message is None or isinstance(message, Answer)
                    found[rank] = message
            return found

        answers = collect(self.size, self.timeout, limit, wait)
        return checked(answers, self.size, self.timeout, lambda rank: f"{self._ended(rank)} while it {what}")

    def _ended(self, rank: int) -> str:
        try:
            code = self._processes[rank].wait(1.0)
        except subprocess.TimeoutExpired:
            return ""
        return f" by signal {-code}" if code < 0 else f" with exit code {code}"


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
