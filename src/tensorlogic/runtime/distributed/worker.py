"""A process that is one rank: it waits for calls of the process that started it, and ends when that one does.

Run as ``python -m tensorlogic.runtime.distributed.worker``; calls come on standard input, answers go to standard output, arrays through a
file that both have open.
"""

from __future__ import annotations

import os
import sys
from typing import IO, NamedTuple

import msgspec

from ...errors import TensorLogicError
from ...ir.graph import EinsumGraph
from ...passes.pipeline import OptimizationLevel
from ..executor import Executor
from .config import Mesh
from .messages import Answer, Arena, Call, receive, send
from .rank import Task, mesh_ways, run_rank
from .torch_ways import TorchCommunication, join_world


class Setup(msgspec.Struct):
    """What a worker is told when it starts."""

    rank: int
    size: int
    address: str
    timeout: float
    descriptor: int
    backend: str
    level: str
    policy: str


class _State(NamedTuple):
    executor: Executor
    world: TorchCommunication
    arena: Arena
    graphs: dict[int, EinsumGraph]


def main(setup: Setup, calls: IO[bytes], answers: IO[bytes]) -> None:
    """Answer calls until there are no more."""
    executor = Executor(setup.backend, optimization_level=OptimizationLevel[setup.level], policy=setup.policy)
    world = join_world(setup.rank, setup.size, setup.address, setup.timeout)
    state = _State(executor, world, Arena(setup.descriptor), {})
    send(answers, Answer())  # ready
    while (call := receive(calls)) is not None:
        assert isinstance(call, Call)
        try:
            answer = _answer(state, call)
        except TensorLogicError as error:
            code = error.diagnostic.code or ""
            answer = Answer(error=str(error), code=code, follows=code == "E373")
        except Exception as error:
            answer = Answer(error=f"{type(error).__name__}: {error}")
        send(answers, answer)
        if answer.error:
            break  # the ways to the others are of no use any more
    os._exit(0)  # gloo's threads may still wait for ranks that are gone


def _answer(state: _State, call: Call) -> Answer:
    arena = state.arena
    for number, text in call.graphs.items():
        state.graphs[number] = EinsumGraph.from_json(text)
    tasks: list[Task] = [
        (state.graphs[task.graph], {name: arena.get(place) for name, place in task.inputs.items()})
        for task in call.tasks
    ]
    result = run_rank(state.executor, mesh_ways(state.world, Mesh(*call.mesh)), tasks)
    arena.used = call.used
    outputs = [arena.put_all(own) for own in result.outputs]
    return Answer(outputs, result.times[:4], dict(result.times.moved))


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not stand among the answers
    main(msgspec.json.decode(sys.argv[1], type=Setup), sys.stdin.buffer, channel)
