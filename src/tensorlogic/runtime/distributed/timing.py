"""Times of what one rank computes, measured here without the others: its collectives return at once."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...backends.collectives import put_end_to_end
from ...ir import ops
from ...ir.collectives import share
from ...ir.graph import EinsumGraph
from ...plan.build import ExecutionPlan, lay_out
from ...plan.node_costs import known_costs
from ..call import call
from ..parts import RecordCollector
from ..program import bind
from ..tuning import made_up_inputs
from .rank import meeting

if TYPE_CHECKING:
    from ..executor import Executor

Array = Any
ROUNDS, BUDGET_NS = 20, 400_000_000  # runs at the most, and how long they may take together


class SilentCommunication:
    """A way to ranks that are not there: what they would give is made up, so that one rank can run alone.

    >>> SilentCommunication(4, 0).all_gather(np.zeros((2, 3)), 0, 8).shape
    (8, 3)
    """

    def __init__(self, size: int, rank: int) -> None:
        self.size, self.rank = size, rank

    def all_reduce(self, x: Array, how: str) -> Array:
        """Return the value of this rank alone."""
        return np.array(x)

    def start_all_reduce(self, operands: Sequence[Array], total: Array, how: str, label: str) -> None:
        """Take the values of this rank alone."""
        put_end_to_end(operands, total)

    def wait(self, label: str) -> None:
        """Go on."""

    def all_gather(self, x: Array, axis: int, length: int) -> Array:
        """Return an array of the length that the ranks have together."""
        return np.ones((*x.shape[:axis], length, *x.shape[axis + 1 :]), x.dtype)

    def reduce_scatter(self, x: Array, axis: int, how: str) -> Array:
        """Return this rank's share of its own value."""
        own = share(x.shape[axis], self.size, self.rank)
        return np.array(x[(slice(None),) * axis + (slice(own.start, own.stop),)])

    def all_to_all(self, x: Array, cut: int, joined: int, length: int) -> Array:
        """Return an array with a share of one axis and all of another."""
        shape = list(x.shape)
        shape[cut], shape[joined] = len(share(shape[cut], self.size, self.rank)), length
        return np.ones(shape, x.dtype)

    def broadcast(self, x: Array, root: int) -> Array:
        """Return the value of this rank."""
        return np.array(x)

    def send(self, x: Array, to: int, label: str) -> None:
        """Send nothing."""

    def receive(self, source: int, label: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return an array of the shape that would come."""
        return np.ones(shape, dtype)

    def group(self, ranks: Sequence[int]) -> SilentCommunication:
        """Return the way to some of the ranks."""
        return SilentCommunication(len(ranks), list(ranks).index(self.rank))

    def close(self) -> None:
        """Leave nobody."""


class StepTimes(NamedTuple):
    """How long each step of a plan took, in seconds, and what a run takes beside its steps."""

    plan: ExecutionPlan
    seconds: tuple[float, ...]
    rest: float


def measured_steps(executor: Executor, graph: EinsumGraph) -> StepTimes:
    """Run the graph of a rank alone, on inputs that are made up, and return the times of its fastest run."""
    types = {name: graph.type_of(i) for name, i in graph.inputs.items()}
    values = made_up_inputs(types)
    return _fastest(executor.programs.for_call(graph, list(types), values, None), values)


def _fastest(program: Any, values: Sequence[Any]) -> StepTimes:
    """Return the shortest time of each step over some runs, so that what else the machine does counts little."""
    plan: ExecutionPlan = program.plan
    collectives = {op.over: op for step in plan.steps if isinstance(op := step.op, ops.Collective)}
    ways = {over: SilentCommunication(op.ranks, op.rank) for over, op in collectives.items()}
    best: list[float] = [float("inf")] * len(plan.steps)
    rest, spent = float("inf"), 0
    with meeting(ways), np.errstate(all="ignore"):
        call(program, values)  # touches memory, compiles, wakes threads
        for _ in range(ROUNDS):
            watch = RecordCollector()
            start = perf_counter_ns()
            call(program, values, (watch,))
            took = perf_counter_ns() - start
            (record,) = [r for r in watch.records if not r.body]
            own = [event.duration_ns for event in record]
            best = [min(old, new / 1e9) for old, new in zip(best, own, strict=True)]
            rest, spent = min(rest, (took - sum(own)) / 1e9), spent + took
            if spent > BUDGET_NS:
                break
    return StepTimes(plan, tuple(best), max(0.0, rest))


def cut_costs(executor: Executor, graph: EinsumGraph, *, measure: bool) -> Sequence[int]:
    """Return what every node of a rank's graph costs: as a plan estimates it, or in nanoseconds, measured node by node."""
    if not measure:
        return known_costs(graph).cost
    program = bind(lay_out(graph), executor.backend)
    types = {name: graph.type_of(i) for name, i in graph.inputs.items()}
    times = _fastest(program, made_up_inputs(types))
    costs = [0] * len(graph.nodes)
    for step, seconds in zip(times.plan.steps, times.seconds, strict=True):
        costs[step.node] += round(seconds * 1e9)
    return costs
