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
from pathlib import Path, PurePath
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...diagnostics import SourceLocation
from ...errors import ExecutionError
from ...ir.graph import EinsumGraph
from .answers import checked, collect, raise_ended
from .config import Mesh
from .joining import torch_distributed
from .messages import Answer, Arena, Call, Setup, TaskMessage, receive, send
from .rank import RankResult, RankTimes, Task
from .shared_inputs import SharedInputs

if TYPE_CHECKING:
    from ..executor import Executor

START = 60.0  # seconds that workers may take to come up, beside the timeout
GRAPHS = 256  # that workers keep


class KeptMessage(NamedTuple):
    """What stays with a rank: the number of those values, new ones, those that outputs take the place of, and those asked for."""

    number: int = 0
    put: Mapping[str, Any] = {}
    carried: Sequence[str] = ()
    take: Sequence[str] = ()


class Workers:
    """Worker processes on this machine, one for each rank."""

    restarts = False  # after a failure others take their place

    def __init__(self, executor: Executor, size: int, timeout: float) -> None:
        torch_distributed()
        self.size, self.timeout, self.kind = size, timeout, _kind(executor)
        self._numbers: dict[EinsumGraph, int] = {}
        self._known: list[set[int]] = [set() for _ in range(size)]
        self._files = [_file() for _ in range(size + 1)]
        *self._arenas, shared = [Arena(descriptor) for descriptor in self._files]
        self.inputs = SharedInputs(shared)
        self._last_kept, self._drop = 0, list[int]()
        self._folder = tempfile.TemporaryDirectory(prefix="tensorlogic-ranks-")
        self._token = secrets.token_hex(16)  # told on the pipe, where nobody else reads it
        self._processes = [self._started(rank) for rank in range(size)]
        self._end = weakref.finalize(self, _ended, self._processes, self._files, self._folder)
        address = (Path(self._folder.name) / "meeting").as_uri()
        *outputs, inputs = self._files
        for rank, own in enumerate(outputs):
            self._tell(rank, Setup(rank, size, address, self._token, timeout, inputs, own, *self.kind))
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
        return alive and (self.size, self.timeout, self.kind) == (size, timeout, _kind(executor))

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
            times = RankTimes(*answer.times, answer.moved, answer.held_bytes, answer.kept_bytes, answer.stretches_ns)
            results.append(RankResult(outputs, times, []))
        return results

    def _own_place(self, named: SourceLocation) -> SourceLocation:
        """Return the place in a file of this process that a worker means, which knows the file's name only."""
        for graph in self._numbers:
            for place in (at for node in graph.nodes for at in node.locations):
                if place.file and place.with_file(PurePath(place.file).name) == named:
                    return place
        return named

    def new_kept(self) -> int:
        """Return a number for values that stay with the ranks."""
        self._last_kept += 1
        return self._last_kept

    def drop(self, number: int) -> None:
        """Let the ranks forget values that stayed, when they are called next."""
        self._drop.append(number)

    def close(self) -> None:
        """End the processes."""
        self._end()

    def _call(
        self, rank: int, mesh: Mesh, tasks: Sequence[Task], kept: KeptMessage, drop: list[int], alone: bool
    ) -> Call:
        known, inputs = self._known[rank], self.inputs
        graphs, messages = {}, []
        for graph, values, wanted, one_thread, totals in tasks:
            number = self._numbers.setdefault(graph, len(self._numbers))
            if number not in known:
                known.add(number)
                graphs[number] = graph.to_json()
            places = {name: inputs.put(value) for name, value in values.items()}
            asked = graph.output_names if wanted is None else list(wanted)
            messages.append(TaskMessage(number, places, asked, one_thread, dict(totals)))
        put = {name: inputs.put(value) for name, value in kept.put.items()}
        shape = (mesh.data, mesh.model, mesh.stage)
        carried, take = list(kept.carried), list(kept.take)
        return Call(self._token, shape, messages, graphs, kept.number, put, carried, take, drop, alone)

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


def _kind(executor: Executor) -> tuple[str, str, str]:
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
