"""A process that is one rank: it waits for calls of the process that started it, and ends when that one does.

Run as ``python -m tensorlogic.runtime.distributed.worker``; calls come on standard input, answers go to standard output, arrays through
files that both have open.
"""

from __future__ import annotations

import hmac
import os
import sys
from typing import IO, Any, NamedTuple

import numpy as np

from ...diagnostics import Diagnostic
from ...errors import ExecutionError, TensorLogicError
from ...ir.graph import EinsumGraph
from ...passes.pipeline import OptimizationLevel
from ..executor import Executor
from .config import Mesh
from .messages import Answer, Arena, Call, Setup, receive, send
from .rank import Task, mesh_ways, run_rank
from .timing import run_alone
from .torch_ways import TorchCommunication, join_world


class _State(NamedTuple):
    executor: Executor
    world: TorchCommunication
    inputs: Arena
    outputs: Arena
    graphs: dict[int, EinsumGraph]
    token: str
    kept: dict[int, dict[str, Any]]


def main(calls: IO[bytes], answers: IO[bytes]) -> None:
    """Answer calls until there are no more."""
    setup = receive(calls)
    assert isinstance(setup, Setup)
    executor = Executor(setup.backend, optimization_level=OptimizationLevel[setup.level], policy=setup.policy)
    world = join_world(setup.rank, setup.size, setup.address, setup.timeout, setup.token)
    inputs, outputs = Arena(setup.inputs, writes=False), Arena(setup.outputs)
    state = _State(executor, world, inputs, outputs, {}, setup.token, {})
    send(answers, Answer())  # ready
    while (call := receive(calls)) is not None:
        assert isinstance(call, Call)
        try:
            answer = _answer(state, call)
        except Exception as error:
            answer = Answer(failure=diagnosed(error))
        send(answers, answer)
        if answer.failure is not None and answer.failure.code != "E397":
            world.leave(answer.failure.message)
            break  # the ways to the others are of no use any more
    os._exit(0)  # gloo's threads may still wait for ranks that are gone


def diagnosed(error: Exception) -> Diagnostic:
    """Return what an error says, whoever raised it."""
    if isinstance(error, TensorLogicError):
        return error.diagnostic
    return Diagnostic.error(f"{type(error).__name__}: {error}").with_code("E373")


def check_token(given: str, own: str) -> None:
    """Refuse work that does not come from the group of this worker."""
    if not hmac.compare_digest(given, own):
        raise ExecutionError("a call came without the token of this group, and was refused", code="E397")


def _answer(state: _State, call: Call) -> Answer:
    check_token(call.token, state.token)
    inputs, outputs = state.inputs, state.outputs
    for number, text in call.graphs.items():
        state.graphs[number] = EinsumGraph.from_json(text)
    for number in call.drop:
        state.kept.pop(number, None)
    kept = state.kept.setdefault(call.kept, {}) if call.kept else {}
    for name, place in call.put.items():
        kept[name] = np.array(inputs.view(place))
    tasks = [
        Task(
            state.graphs[t.graph],
            {n: inputs.view(place) for n, place in t.inputs.items()},
            t.wanted,
            t.one_thread,
            t.totals,
        )
        for t in call.tasks
    ]
    if call.alone:
        alone = run_alone(state.executor, tasks)
        return Answer([], alone[:4], stretches_ns=[list(own) for own in alone.stretches_ns])
    result = run_rank(state.executor, mesh_ways(state.world, Mesh(*call.mesh)), tasks, kept, call.carried)
    outputs.clear()
    found = [outputs.put_all(own) for own in result.outputs]
    if call.take:
        found.append(outputs.put_all({name: kept[name] for name in call.take}))
    times = result.times
    return Answer(found, times[:4], dict(times.moved), times.held_bytes, times.kept_bytes)


if __name__ == "__main__":
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not stand among the answers
    main(sys.stdin.buffer, channel)
