"""The plan of a distributed run: for each rank what it computes, sends and waits for, with bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

from ...diagnostics import bytes_text
from ...errors import expect
from ...ir import ops
from ...ir.graph import EinsumGraph
from ...passes.specialize import input_types
from ...plan.build import ExecutionPlan, Step
from ...plan.cost import nbytes
from ...plan.printing import begin_and_end, describe
from ...tables import counted, html_text, table
from .config import DistributedConfig, Mesh
from .schedule import BACKWARD, Turn

if TYPE_CHECKING:
    from ..executor import Executor
    from .job import Job

UNITS = ("forward", "backward", "last")
SHOWN = 16  # ranks of a printed plan
OPERATIONS = 3  # of a stretch of steps that are named


class RankPlan(NamedTuple):
    """What one rank runs: the plans of its units (forward; backward in a training step; last, to combine totals), and its turns."""

    rank: int
    place: Mapping[str, int]  # along each axis of the mesh
    units: Mapping[int, ExecutionPlan]
    turns: tuple[Turn, ...]

    @property
    def flops(self) -> int:
        """The arithmetic of all its turns."""
        return sum(self.units[way].flops for way, _ in self.turns)


class DistributedPlan(NamedTuple):
    """What all ranks run; it prints as a table.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w = b.input("x", (6, 4), "float32"), b.input("w", (4, 8), "float32")
    >>> graph = b.build(total=b.sum(b.relu(x @ w), axis=0))
    >>> config = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)])
    >>> print(tl.Executor().plan_distributed(graph, config=config))
    2 ranks: 2 along data
    rank  place   does                                         flops  sends  waits for
    0     data 0  3 steps: einsum ij,jk->ik, relu, sum over 0    240
                  start_all_reduce 1 over data                        32 B
                  wait 1 over data                                           32 B from rank 1
    1     data 1  3 steps: einsum ij,jk->ik, relu, sum over 0    240
                  start_all_reduce 1 over data                        32 B
                  wait 1 over data                                           32 B from rank 0
    """

    mesh: Mesh
    batches: tuple[int, ...]  # the rows of each micro-batch
    schedule: str
    ranks: tuple[RankPlan, ...]

    def __str__(self) -> str:
        axes = ", ".join(f"{n} along {axis}" for axis, n in self.mesh._asdict().items() if n > 1) or "alone"
        head = f"{counted(self.mesh.size, 'rank')}: {axes}"
        if self.mesh.stage > 1:
            sizes = " or ".join(dict.fromkeys(str(n) for n in self.batches))
            head += f"; {len(self.batches):,} micro-batches of {sizes} rows"
            if any(BACKWARD in own.units for own in self.ranks):
                head += f", {self.schedule}"
        rows: list[list[str]] = []
        for n, own in begin_and_end(self.ranks, SHOWN):
            rows += [[f"... {n:,} more ranks", *[""] * 5]] if own is None else self._rank_rows(own)
        return "\n".join([head, table(["rank", "place", "does", "flops", "sends", "waits for"], rows, right={3})])

    def _repr_html_(self) -> str:
        return html_text(self)

    def _rank_rows(self, own: RankPlan) -> list[list[str]]:
        place = ", ".join(f"{axis} {n}" for axis, n in own.place.items() if getattr(self.mesh, axis) > 1)
        rows = []
        for way, plan in own.units.items():
            times = sum(turn[0] == way for turn in own.turns)
            if len(own.units) > 1 or times > 1:
                rows.append([UNITS[way] + (f", {times} times:" if times > 1 else ":"), "", "", ""])
            rows += self._unit_rows(own, plan)
        first = [str(own.rank), place]
        return [(first if n == 0 else ["", ""]) + row for n, row in enumerate(rows)] or [[*first, *[""] * 4]]

    def _unit_rows(self, own: RankPlan, plan: ExecutionPlan) -> list[list[str]]:
        rows: list[list[str]] = []
        for what, group in groupby(plan.steps, partial(_kind, self.mesh, own.rank)):
            steps = list(group)
            rows.append(_stretch(steps) if what is None else _meeting_row(steps, *what))
        return rows


def _kind(mesh: Mesh, rank: int, step: Step) -> tuple[str, tuple[int, ...]] | None:
    """Return what a collective is and whom it meets; None for a step that computes."""
    if not isinstance(step.op, ops.Collective):
        return None
    return describe(step.op).split(",")[0], tuple(peers_of(mesh, rank, step.op))


def _stretch(steps: Sequence[Step]) -> list[str]:
    names = [describe(step.op) for step in steps]
    shown = ", ".join(names[:OPERATIONS]) + (", ..." if len(names) > OPERATIONS else "")
    return [f"{counted(len(steps), 'step')}: {shown}", f"{sum(s.flops for s in steps):,}", "", ""]


def _meeting_row(steps: Sequence[Step], what: str, peers: Sequence[int]) -> list[str]:
    """Describe collectives that follow each other with the same ranks."""
    given, awaited = (sum(each) for each in zip(*map(traffic, steps), strict=True))
    shown = ", ".join(map(str, peers[:4])) + (f" and {len(peers) - 4} more" if len(peers) > 4 else "")
    named = f"{'rank' if len(peers) == 1 else 'ranks'} {shown}"
    to = f" to {named}" if isinstance(steps[0].op, ops.Send) else ""
    waits = f"{bytes_text(awaited)} from {named}" if awaited else ""
    often = f"{len(steps)} × " if len(steps) > 1 else ""
    return [often + what, "", f"{bytes_text(given)}{to}" if given else "", waits]


def traffic(step: Step) -> tuple[int, int]:
    """Return the bytes that a rank gives to a collective, and those that it waits for."""
    result = sum(map(nbytes, step.types))
    given = sum(map(nbytes, step.arg_types))
    match step.op:
        case ops.Send() | ops.StartAllReduce():
            return given, 0
        case ops.Receive() | ops.Wait():
            return 0, result
        case ops.AllGather():
            return given, result - given
        case ops.BroadcastFrom():
            return (given, 0) if step.op.rank == step.op.root else (0, result)
        case _:
            return given, result


def peers_of(mesh: Mesh, rank: int, op: ops.Collective) -> list[int]:
    """Return the ranks that a rank meets in a collective."""
    group = mesh.group(rank, op.over)
    match op:
        case ops.Send():
            return [group[op.to]]
        case ops.Receive():
            return [group[op.source]]
        case _:
            return [other for other in group if other != rank]


def distributed_plan(executor: Executor, job: Job) -> DistributedPlan:
    """Return what the ranks of a job run; of a job for some places along data and model, those."""
    ranges = job.micro_batches()
    part = job.part(len(ranges[0]))
    found = []
    for rank in range(job.mesh.size):
        place = job.mesh.coordinates(rank)
        if (place["data"], place["model"]) not in part.ranks:
            continue
        turns = job.turns(part, place["stage"], len(ranges))
        graphs = {way: part.unit(place, way, job.mesh.stage) for way in sorted({way for way, _ in turns})}
        plans = {
            way: executor.programs.plan(graph, {name: graph.type_of(i) for name, i in graph.inputs.items()}, None)
            for way, graph in graphs.items()
        }
        found.append(RankPlan(rank, place, plans, tuple(turns)))
    schedule = getattr(job.config.strategy, "schedule", "")
    return DistributedPlan(job.mesh, tuple(len(r) for r in ranges), schedule, tuple(found))


def plan_ranks(
    executor: Executor,
    graph: EinsumGraph,
    inputs: Mapping[str, Any] | None,
    config: DistributedConfig | None,
    sizes: Mapping[str, int] | None,
) -> DistributedPlan:
    """Return what the ranks of a config run for inputs, or for the types that are declared."""
    from .job import Job
    from .search import settled

    hint = "write plan_distributed(graph, inputs, DistributedConfig([Device.CPU(0), Device.CPU(1)]))"
    expect(config, DistributedConfig, "a DistributedConfig is expected", hint)
    assert config is not None
    types = input_types(graph, inputs, sizes, what="plan")
    return distributed_plan(executor, Job(graph, types, settled(executor, graph, types, config), executor))
