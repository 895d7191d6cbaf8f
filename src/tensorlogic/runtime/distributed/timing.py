"""Times of what ranks compute, measured here without their exchanges: collectives return at once."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...backends.base import Device
from ...backends.collectives import put_end_to_end
from ...ir import ops
from ...ir.collectives import share
from ...ir.graph import EinsumGraph, bodies
from ...passes.stages import KEEP, TOTAL
from ...plan.build import ExecutionPlan, lay_out
from ...plan.node_costs import known_costs
from ..call import call
from ..parts import RecordCollector, range_of
from ..program import bind
from ..tuning import made_up_inputs
from .cluster import usual
from .config import DataParallel, DistributedConfig
from .plan import RankPlan
from .rank import RankTimes, Task, meeting, run_rank
from .schedule import LAST

if TYPE_CHECKING:
    from ..executor import Executor

Array = Any
ROUNDS, BUDGET_NS = 20, 400_000_000  # runs at the most, and how long they may take together
# of ranks at once, which take longer as others of this machine come and go; the first counts for nothing
LEAST_ROUNDS, MOST_ROUNDS, LONG_BUDGET_NS = 4, 40, 600_000_000


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
        return np.array(range_of(x, axis, share(x.shape[axis], self.size, self.rank)))

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


class StretchTimes(NamedTuple):
    """How long a rank takes in one unit, in seconds: before, between and after its collectives, and beside the steps."""

    seconds: tuple[float, ...]
    rest: float


def timed_units(
    executor: Executor, own: RankPlan, totals: Mapping[str, str], config: DistributedConfig, copies: int
) -> dict[int, StretchTimes]:
    """Let as many ranks at once as there are ``copies`` do the turns of one, on inputs that are made up, and return what its units usually take.

    They are threads or processes, as the ranks of the config are. So a step is timed beside others that want the same memory and caches.
    """
    tasks = _made_up_tasks(own, totals, config.deterministic)
    found: dict[int, list[Sequence[int]]] = {way: [] for way in own.units}
    rests, spent = [], 0
    for n in range(MOST_ROUNDS):
        if n >= LEAST_ROUNDS and spent > LONG_BUDGET_NS:
            break
        start = perf_counter_ns()
        times = _at_once(executor, tasks, config, copies)
        if not n:  # touches memory, compiles
            continue
        spent += perf_counter_ns() - start
        for each in times:
            rests.append(each.total_ns - each.computation_ns - each.communication_ns)
            for (way, _), stretches in zip(own.turns, each.stretches_ns, strict=True):
                found[way].append(stretches)
    rest = max(0.0, usual(rests)) / len(tasks) / 1e9
    return {
        way: StretchTimes(tuple([usual(stretch) / 1e9 for stretch in zip(*runs, strict=True)]), rest)
        for way, runs in found.items()
    }


def _made_up_tasks(own: RankPlan, totals: Mapping[str, str], one_thread: bool) -> list[Task]:
    """Return the turns of a rank as tasks; what one hands to the next is real."""
    units = {}
    for way, plan in own.units.items():
        graph = plan.graph
        types = {n: graph.type_of(i) for n, i in graph.inputs.items() if not n.startswith((KEEP, TOTAL))}
        combined = {name: how for name, how in totals.items() if way != LAST and name in graph.output_names}
        values = [np.asarray(value) for value in made_up_inputs(types)]
        for value in values:
            value.setflags(write=False)  # sent once
        units[way] = Task(graph, dict(zip(types, values, strict=True)), (), one_thread, combined)
    return [units[way] for way, _ in own.turns]


def _at_once(executor: Executor, tasks: Sequence[Task], config: DistributedConfig, copies: int) -> list[RankTimes]:
    from ..modes import distributed_of

    if config.communication == "local":
        with ThreadPoolExecutor(copies) as pool:
            return list(pool.map(lambda _: run_alone(executor, tasks), range(copies)))
    distributed = distributed_of(executor)
    there = getattr(distributed.workers, "size", 0)
    size = there if there > copies else copies  # the others wait
    devices = tuple(Device.CPU(n) for n in range(size))
    both = DistributedConfig(devices, "torch", DataParallel(size), timeout=config.timeout)
    calls = [tasks] * copies + [[]] * (size - copies)
    results = distributed.on_workers(executor, both.mesh, both, lambda w: w.run(both.mesh, calls, alone=True))
    return [result.times for result in results[:copies]]


def run_alone(executor: Executor, tasks: Sequence[Task]) -> RankTimes:
    """Run the tasks of a rank without the others, and return its times."""
    ways: dict[str, SilentCommunication] = {}
    for task in tasks:
        _find_ways(task.graph, ways)
    with np.errstate(all="ignore"):
        return run_rank(executor, ways, tasks).times


def _find_ways(graph: EinsumGraph, ways: dict[str, SilentCommunication]) -> None:
    for node in graph.nodes:
        if isinstance(node.op, ops.Collective):
            ways[node.op.over] = SilentCommunication(node.op.ranks, node.op.rank)
        for body in bodies(node.op):
            _find_ways(body, ways)


def cut_costs(executor: Executor, graph: EinsumGraph, *, measure: bool) -> Sequence[int]:
    """Return what every node of a rank's graph costs: as a plan estimates it, or in nanoseconds, measured node by node."""
    if not measure:
        return known_costs(graph).cost
    program = bind(lay_out(graph), executor.backend)
    values = made_up_inputs({name: graph.type_of(i) for name, i in graph.inputs.items()})
    plan: ExecutionPlan = program.plan
    ways: dict[str, SilentCommunication] = {}
    _find_ways(graph, ways)
    best = [sys.maxsize] * len(plan.steps)  # the shortest times, so that what else the machine does counts little
    spent = 0
    with meeting(ways), np.errstate(all="ignore"):
        call(program, values)  # touches memory, compiles, wakes threads
        for _ in range(ROUNDS):
            watch = RecordCollector()
            start = perf_counter_ns()
            call(program, values, (watch,))
            spent += perf_counter_ns() - start
            (record,) = [r for r in watch.records if not r.body]
            best = [min(old, event.duration_ns) for old, event in zip(best, record, strict=True)]
            if spent > BUDGET_NS:
                break
    costs = [0] * len(graph.nodes)
    for step, took in zip(plan.steps, best, strict=True):
        costs[step.node] += took
    return costs
