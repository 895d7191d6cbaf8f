"""The processes of a driver: one for each rank, which stay for the next run and end with the driver."""

from __future__ import annotations

import os
import secrets
import select
import subprocess
import sys
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...diagnostics import SourceLocation
from ...errors import ExecutionError
from ...ir.graph import EinsumGraph
from .answers import checked, collect, raise_ended
from .config import Mesh
from .joining import torch_distributed
from .messages import Answer, Arena, Call, KeptMessage, Setup, TaskMessage, receive, send
from .rank import RankResult, Task
from .shared_inputs import SharedInputs

if TYPE_CHECKING:
    from ..executor import Executor

START = 60.0  # seconds that workers may take to come up, beside the timeout


class WorkerGroup(ABC):
    """The processes of ranks as their driver sees them, however they are started: graphs that they know, and values that stay with them."""

    restarts: ClassVar[bool]  # whether it goes on after a failure; else another group takes its place

    def __init__(self, executor: Executor, size: int, timeout: float) -> None:
        self.size, self.timeout, self.kind = size, timeout, executor_kind(executor)
        self._numbers: dict[EinsumGraph, int] = {}
        self._known: list[set[int]] = [set() for _ in range(size)]  # the graphs that each rank has
        self._last_kept, self._drop = 0, list[int]()

    @abstractmethod
    def close(self) -> None:
        """End the processes."""

    def new_kept(self) -> int:
        """Return a number for values that stay with the ranks."""
        self._last_kept += 1
        return self._last_kept

    def drop(self, number: int) -> None:
        """Let the ranks forget values that stayed, when they are called next."""
        self._drop.append(number)

    def _numbered(self, rank: int, tasks: Sequence[Task]) -> tuple[list[int], dict[int, str]]:
        """Return the number of each task's graph, and as JSON the graphs that a rank has not been sent yet."""
        numbers, new = [], {}
        for task in tasks:
            number = self._numbers.setdefault(task.graph, len(self._numbers))
            numbers.append(number)
            if number not in self._known[rank]:
                self._known[rank].add(number)
                new[number] = task.graph.to_json()
        return numbers, new


class Workers(WorkerGroup):
    """Worker processes on this machine, one for each rank."""

    restarts = False

    def __init__(self, executor: Executor, size: int, timeout: float) -> None:
        torch_distributed()
        super().__init__(executor, size, timeout)
        self._files = [_file() for _ in range(size + 1)]
        *self._arenas, shared = [Arena(descriptor) for descriptor in self._files]
        self.inputs = SharedInputs(shared)
        self._folder = tempfile.TemporaryDirectory(prefix="tensorlogic-ranks-")
        self._token = secrets.token_hex(16)  # told on the pipe, where nobody else reads it
        self._processes = [self._started(rank) for rank in range(size)]
        self._end = weakref.finalize(self, _ended, self._processes, self._files, self._folder)
        address = (Path(self._folder.name) / "meeting").as_uri()
        *outputs, inputs = self._files
        for rank, own in enumerate(outputs):
            self._tell(rank, Setup(rank, size, address, self._token, timeout, inputs, own, self.kind))
        self._answers(START + timeout, "started")

    def _started(self, rank: int) -> subprocess.Popen[bytes]:
        inputs, outputs = self._files[-1], self._files[rank]
        threads = str(max(1, (os.cpu_count() or 1) // self.size))
        names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        own = {name: os.environ.get(name, threads) for name in names}  # what the user says counts
        return subprocess.Popen(
            [sys.executable, "-m", "tensorlogic.runtime.distributed.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(inputs, outputs),
            env={**os.environ, **own, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        )

    def fits(self, executor: Executor, size: int, timeout: float) -> bool:
        """Tell whether these workers can run what an executor would, and are all there."""
        alive = all(process.poll() is None for process in self._processes)
        return alive and (self.size, self.timeout, self.kind) == (size, timeout, executor_kind(executor))

    def check(self) -> None:
        """Raise where the process of a rank has ended since it was called."""
        for rank, process in enumerate(self._processes):
            if process.poll() is not None:
                raise_ended(rank, f"{self._ended(rank)} between two calls", {})

    def run(
        self,
        mesh: Mesh,
        tasks: Sequence[Sequence[Task]],
        kept: Sequence[KeptMessage] | None = None,
        *,
        alone: bool = False,
    ) -> list[RankResult]:
        """Run the tasks of each rank in its process and return what came out; ``kept`` says what stays with each rank.

        Where each is ``alone``, nothing passes between them and nothing comes back but times.
        """
        self.inputs.begin()
        drop, self._drop = self._drop, []
        try:
            stay = [KeptMessage()] * self.size if kept is None else kept
            # all are told at once: the first would wait for others whose inputs are still compared, and take a core from that
            calls = [self._call(rank, mesh, own, stay[rank], drop, alone) for rank, own in enumerate(tasks)]
            for rank, call in enumerate(calls):
                self._tell(rank, call)
            answers = self._answers(None, "ran")
        except BaseException as error:
            for process in self._processes:
                process.kill()  # what they wait for does not come
            if isinstance(error, ExecutionError) and error.diagnostic.location is not None:
                error.diagnostic = error.diagnostic.with_location(self._own_place(error.diagnostic.location))
            raise
        results = []
        for arena, answer in zip(self._arenas, answers, strict=True):
            outputs = [{name: np.array(arena.view(place)) for name, place in own.items()} for own in answer.outputs]
            results.append(RankResult(outputs, answer.times, []))
        return results

    def _own_place(self, named: SourceLocation) -> SourceLocation:
        """Return the place in a file of this process that a worker means, which knows the file's name only."""
        for graph in self._numbers:
            for place in (at for node in graph.nodes for at in node.locations):
                if place.file and place.with_file(PurePath(place.file).name) == named:
                    return place
        return named

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _call(
        self, rank: int, mesh: Mesh, tasks: Sequence[Task], kept: KeptMessage, drop: list[int], alone: bool
    ) -> Call:
        numbers, graphs = self._numbered(rank, tasks)
        inputs, messages = self.inputs, []
        for number, (graph, values, wanted, one_thread, totals) in zip(numbers, tasks, strict=True):
            places = {name: inputs.put(value) for name, value in values.items()}
            asked = graph.output_names if wanted is None else list(wanted)
            messages.append(TaskMessage(number, places, asked, one_thread, dict(totals)))
        put = {name: inputs.put(value) for name, value in kept.put.items()}
        carried, take = list(kept.carried), list(kept.take)
        return Call(self._token, mesh, messages, graphs, kept.number, put, carried, take, drop, alone)

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


def executor_kind(executor: Executor) -> tuple[str, str, str]:
    """Return what makes two executors alike: backend, optimization level and policy."""
    return executor.backend.name, executor.config.optimization_level.name, executor.programs.policy


def _file() -> int:
    """Return the descriptor of a new file without a name, which is kept in memory where that is possible."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("tensorlogic-ranks")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _ended(processes: Sequence[subprocess.Popen[bytes]], files: Sequence[int], folder: Any) -> None:
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
    for descriptor in files:
        os.close(descriptor)
    folder.cleanup()
