"""What one rank does in a run: its graphs, one micro-batch after another, and how long it computed, communicated and waited."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...backends.collectives import CommunicationBackend
from ...backends.combine import combine_into
from ...backends.threads import on_one_thread
from ...errors import TensorLogicError
from ...events import RunRecord, running
from ...ir import ops
from ...ir.graph import EinsumGraph
from ...passes.stages import KEEP, SEND, TOTAL
from ..call import call
from ..parts import RecordCollector
from .config import Mesh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..executor import Executor

Ways = Mapping[str, CommunicationBackend]
NAMES_RANKS = ("E373", "E374", "E375", "E376", "E383", "E388")  # faults whose messages say which rank it is


class Task(NamedTuple):
    """A graph, its inputs, the outputs that are asked for (None: all), and whether BLAS keeps to one thread, so that it always rounds alike.

    ``totals`` are outputs that a rank combines over its tasks, and how: its last task returns them.
    """

    graph: EinsumGraph
    inputs: Mapping[str, Any]
    wanted: Sequence[str] | None = None
    one_thread: bool = False
    totals: Mapping[str, str] = {}


class RankTimes(NamedTuple):
    """How long a rank took in all, computed, communicated and, of that, waited for others; the bytes that it gave, and that it holds.

    What it holds are the inputs of its tasks, and values that stay with it. ``kept_bytes`` is the most that it kept at a time between the
    forward and the backward units of micro-batches. ``stretches_ns`` is, for each task, what it computed before, between and after its collectives.
    """

    total_ns: int = 0
    computation_ns: int = 0
    communication_ns: int = 0
    waiting_ns: int = 0
    moved: Mapping[str, int] = {}
    held_bytes: int = 0
    kept_bytes: int = 0
    stretches_ns: Sequence[Sequence[int]] = ()


class RankResult(NamedTuple):
    """The outputs of each of a rank's tasks, by name, its times, and the records of its runs."""

    outputs: list[dict[str, Any]]
    times: RankTimes
    records: list[RunRecord]


def mesh_ways(world: CommunicationBackend, mesh: Mesh) -> dict[str, CommunicationBackend]:
    """Return the way of a rank to the others along each axis of the mesh."""
    return {axis: world.group(mesh.group(world.rank, axis)) for axis in Mesh._fields if getattr(mesh, axis) > 1}


@contextmanager
def meeting(ways: Ways) -> Iterator[None]:
    """Let collective operations that run on this thread meet others on these ways; after an error, nothing that was begun is left.

    >>> with meeting({}):
    ...     running.ranks
    {}
    """
    around = running.ranks
    try:
        running.ranks = ways
        yield
    except BaseException:
        for way in ways.values():
            if hasattr(way, "abandon"):
                way.abandon()
        raise
    finally:
        running.ranks = around


def run_rank(
    executor: Executor,
    ways: Ways,
    tasks: Sequence[Task],
    kept: dict[str, Any] | None = None,
    carried: Sequence[str] = (),
) -> RankResult:
    """Run the tasks of a rank in turn; values that are ``kept`` are inputs too, and those ``carried`` are written over by outputs of their names."""
    watch = RecordCollector()
    outputs = []
    stay = {} if kept is None else kept
    held = {id(value): value.nbytes for task in tasks for value in (*task.inputs.values(), *stay.values())}
    store = _BetweenTasks()
    before = _counts(ways)
    start = perf_counter_ns()
    with meeting(ways):
        for task in tasks:
            names, values = executor.arrays(task.graph, {**store.given(task), **stay})
            program = executor.programs.for_call(task.graph, names, values, None, None, tuple(carried))
            act = on_one_thread(call) if task.one_thread else call
            results = dict(zip(program.names, act(program, values, (watch,)), strict=True))
            del values
            for name in carried:
                stay[name] = results.pop(name)
            outputs.append(store.sorted(task, results))
        for way in ways.values():
            if hasattr(way, "settle"):  # what was sent is with those who receive it
                way.settle()
    total = perf_counter_ns() - start
    if outputs:
        outputs[-1] |= {name: value for name, value in store.totals.items() if _wanted(tasks[-1], name)}
    times = _times(watch.records, before, _counts(ways), total)
    times = times._replace(held_bytes=sum(held.values()), kept_bytes=store.most)
    return RankResult(outputs, times, watch.records)


def _wanted(task: Task, name: str) -> bool:
    return task.wanted is None or name in task.wanted


class _BetweenTasks:
    """What a rank holds from one task to the next: what units of a stage keep for later ones, first in, first out; and totals."""

    def __init__(self) -> None:
        self.kept: defaultdict[str, deque[Any]] = defaultdict(deque)
        self.totals: dict[str, Any] = {}
        self.bytes = self.most = 0

    def given(self, task: Task) -> Mapping[str, Any]:
        """Return the inputs of a task: its own, what was kept for it, and totals."""
        taken = {name: self.kept[name].popleft() for name in task.graph.inputs if name.startswith(KEEP)}
        self.bytes -= sum(value.nbytes for value in taken.values())
        names = [name for name in task.graph.inputs if name.startswith(TOTAL)]
        taken |= {name: self.totals.pop(name.removeprefix(TOTAL)) for name in names}
        return {**task.inputs, **taken} if taken else task.inputs

    def sorted(self, task: Task, results: Mapping[str, Any]) -> dict[str, Any]:
        """Keep what is for later tasks, add to the totals, and return the outputs that are asked for."""
        outputs = {}
        for name, value in results.items():
            if name.startswith(KEEP):
                self.kept[name].append(value)
                self.bytes += value.nbytes
            elif name in task.totals:
                before = self.totals.get(name)
                own = np.asarray(value)
                self.totals[name] = np.array(own) if before is None else combine_into(task.totals[name], before, own)
            elif not name.startswith(SEND) and _wanted(task, name):
                outputs[name] = value
        self.most = max(self.most, self.bytes)
        return outputs


def _counts(ways: Ways) -> tuple[int, Counter[str]]:
    """Return how long a rank waited on its ways so far, and the bytes that it gave."""
    waited, moved = 0, Counter[str]()
    for way in ways.values():
        waited += getattr(way, "waited_ns", 0)
        moved.update(getattr(way, "moved", {}))
    return waited, moved


def _times(records: Sequence[RunRecord], before: Any, after: Any, total: int) -> RankTimes:
    communication, stretches = 0, []
    for record in records:
        if record.body:
            continue
        stretches.append(own := [0])
        for step, start, end in zip(record.plan.steps, record.starts or record.times, record.times[1:], strict=False):
            if isinstance(step.op, ops.Collective):
                communication += end - start
                own.append(0)
            else:
                own[-1] += end - start
    waiting, computation = after[0] - before[0], sum(map(sum, stretches))
    inside = max(0, waiting - communication)  # of steps that meet other ranks in the body of a loop
    computation, communication = max(0, computation - inside), communication + inside
    times = RankTimes(total, computation, communication, min(waiting, communication), after[1] - before[1])
    return times._replace(stretches_ns=stretches)


def of_rank(error: BaseException, rank: int) -> BaseException:
    """Return an error that names the rank it was raised on."""
    if isinstance(error, TensorLogicError) and error.diagnostic.code not in NAMES_RANKS:
        return error.renamed(f"rank {rank}: {error.diagnostic.message}").with_traceback(error.__traceback__)
    return error
