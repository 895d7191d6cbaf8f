"""A process that is one rank: it waits for calls of the process that started it, and ends when that one does.

Run as ``python -m tensorlogic.runtime.distributed.worker``; calls come on standard input, answers go to standard output, arrays through
files that both have open.
"""

from __future__ import annotations

import hmac
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

import numpy as np

from ...diagnostics import Diagnostic
from ...errors import ExecutionError, TensorLogicError
from ...ir.graph import EinsumGraph
from ...passes.pipeline import OptimizationLevel
from ..executor import Executor
from .config import Mesh
from .messages import Answer, Arena, Call, KeptMessage, Setup, receive, send
from .rank import RankResult, Task, mesh_ways, run_rank
from .timing import run_alone
from .torch_ways import join_world


class RankProcess:
    """What a process that is one rank holds between calls: its executor, the way to the others, graphs, and values that stay."""

    def __init__(
        self, rank: int, size: int, address: str, token: str, timeout: float, kind: tuple[str, str, str]
    ) -> None:
        backend, level, policy = kind
        self.executor = Executor(backend, optimization_level=OptimizationLevel[level], policy=policy)
        self.world = join_world(rank, size, address, timeout, token)
        self.graphs: dict[int, EinsumGraph] = {}
        self.kept: dict[int, dict[str, Any]] = {}
        self._token = token

    def begin(self, token: str, graphs: Mapping[int, str], drop: Sequence[int]) -> None:
        """Begin a call: refuse one that does not come from the group of this rank, take new graphs in, and let values go."""
        if not hmac.compare_digest(token, self._token):
            raise ExecutionError("a call came without the token of this group, and was refused", code="E397")
        self.graphs |= {number: EinsumGraph.from_json(text) for number, text in graphs.items()}
        for number in drop:
            self.kept.pop(number, None)

    def run(self, mesh: Sequence[int], tasks: Sequence[Task], stay: KeptMessage) -> RankResult:
        """Run the tasks of this rank; the values that are asked for come after their outputs."""
        kept = self.kept.setdefault(stay.number, {}) if stay.number else {}
        kept |= {name: np.array(value) for name, value in stay.put.items()}
        result = run_rank(self.executor, mesh_ways(self.world, Mesh(*mesh)), tasks, kept, stay.carried)
        if stay.take:
            result.outputs.append({name: kept[name] for name in stay.take})
        return result


def main(calls: IO[bytes], answers: IO[bytes]) -> None:
    """Answer calls until there are no more."""
    setup = receive(calls)
    assert isinstance(setup, Setup)
    rank = RankProcess(setup.rank, setup.size, setup.address, setup.token, setup.timeout, setup.kind)
    inputs, outputs = Arena(setup.inputs, writes=False), Arena(setup.outputs)
    send(answers, Answer())  # ready
    while (call := receive(calls)) is not None:
        assert isinstance(call, Call)
        try:
            answer = _answer(rank, inputs, outputs, call)
        except Exception as error:
            answer = Answer(failure=diagnosed(error))
        send(answers, answer)
        if answer.failure is not None and answer.failure.code != "E397":
            rank.world.leave(answer.failure.message)
            break  # the ways to the others are of no use any more
    os._exit(0)  # gloo's threads may still wait for ranks that are gone


def diagnosed(error: Exception) -> Diagnostic:
    """Return what an error says, whoever raised it."""
    if isinstance(error, TensorLogicError):
        return error.diagnostic
    return Diagnostic.error(f"{type(error).__name__}: {error}").with_code("E373")


def _answer(rank: RankProcess, inputs: Arena, outputs: Arena, call: Call) -> Answer:
    rank.begin(call.token, call.graphs, call.drop)
    tasks = [Task(rank.graphs[t.graph], inputs.views(t.inputs), t.wanted, t.one_thread, t.totals) for t in call.tasks]
    if call.alone:
        return Answer([], run_alone(rank.executor, tasks))
    result = rank.run(call.mesh, tasks, KeptMessage(call.kept, inputs.views(call.put), call.carried, call.take))
    outputs.clear()
    return Answer([outputs.put_all(own) for own in result.outputs], result.times)


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not stand among the answers
    main(sys.stdin.buffer, channel)
