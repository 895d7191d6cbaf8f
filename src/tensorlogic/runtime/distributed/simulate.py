"""Predicting a distributed run: the plans of the ranks, played on a cluster that need not be here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from ...diagnostics import bytes_text
from ...errors import expect
from ...ir import ops
from ...ir.graph import EinsumGraph
from ...passes.specialize import input_types
from ...passes.stages import KEEP, SEND
from ...plan.build import ExecutionPlan, Step
from ...plan.cost import nbytes, rounds
from ...plan.estimate import estimate_plan
from ...tables import counted, html_text, table
from .cluster import Cluster
from .config import DistributedConfig
from .plan import DistributedPlan, RankPlan, distributed_plan, peers_of, traffic
from .schedule import BACKWARD, LAST, live_batches
from .timing import measured_steps

if TYPE_CHECKING:
    from ..executor import Executor
    from .job import Job

HINT = "write simulate(graph, config, Cluster(flops=60e12, memory_bandwidth=2e12, bandwidth=25e9, latency=1e-5))"


@dataclass(frozen=True, slots=True)
class StagePrediction:
    """What is predicted for the ranks of one stage, by that which has the largest shares."""

    stage: int
    computation_seconds: float
    communication_seconds: float
    waiting_seconds: float
    memory_bytes: int
    kept_bytes: int  # of it, what is kept between forward and backward units
    live_batches: int  # micro-batches of which something is kept at a time
    link_bytes: Mapping[str, int]  # that a rank sends along each axis of the mesh


@dataclass(frozen=True, slots=True)
class Simulation:
    """A prediction of one run on a cluster; it prints as a table, and :meth:`to_json` is for programs.

    ``bubble`` is the share of the ranks' time in which they have nothing to do. ``caller_seconds`` is what the process that
    calls does before and after micro-batches, which ranks do not wait for. ``measured`` tells whether steps were timed here.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.sum(b.input("x", (64, 8), "float32"), axis=0))
    >>> cluster = tl.Cluster(flops=1e12, memory_bandwidth=1e12, bandwidth=1e9, latency=1e-5)
    >>> found = tl.simulate(graph, tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)]), cluster)
    >>> found.bytes_per_link, found.bubble
    ({'data': 32}, 0.0)
    """

    devices: int
    mesh: Mapping[str, int]
    strategy: str
    micro_batches: int
    step_seconds: float
    bubble: float
    stages: tuple[StagePrediction, ...]
    caller_seconds: float
    measured: bool
    fits: bool  # in the memory of a device, where the cluster tells it

    @property
    def memory_bytes(self) -> int:
        """The most that a device needs: inputs, results, and what is kept."""
        return max(own.memory_bytes for own in self.stages)

    @property
    def bytes_per_link(self) -> dict[str, int]:
        """The most that a rank sends along each axis of the mesh."""
        axes = {axis: max(own.link_bytes.get(axis, 0) for own in self.stages) for axis in self.mesh}
        return {axis: count for axis, count in axes.items() if count}

    @property
    def efficiency(self) -> float:
        """The share of the ranks' time in which they compute."""
        return sum(own.computation_seconds for own in self.stages) / (self.step_seconds * len(self.stages) or 1.0)

    def to_json(self) -> str:
        """Return the prediction as JSON."""
        own = {
            **asdict(self),
            "memory_bytes": self.memory_bytes,
            "bytes_per_link": self.bytes_per_link,
            "efficiency": self.efficiency,
        }
        return msgspec.json.encode(own).decode()

    def __str__(self) -> str:
        axes = " × ".join(f"{n} {axis}" for axis, n in self.mesh.items() if n > 1) or "one device"
        batches = f", {self.micro_batches} micro-batches" if self.micro_batches > 1 else ""
        lines = [
            f"predicted for {counted(self.devices, 'device')} ({axes}{batches}): {1e3 * self.step_seconds:.3f} ms a step"
        ]
        rows = [
            [
                str(own.stage),
                *(f"{1e3 * t:.3f}" for t in (own.computation_seconds, own.communication_seconds, own.waiting_seconds)),
                bytes_text(own.memory_bytes),
                str(own.live_batches or ""),
                ", ".join(f"{axis} {bytes_text(count)}" for axis, count in own.link_bytes.items()),
            ]
            for own in self.stages
        ]
        head = ["stage", "computing ms", "communicating", "waiting", "memory", "live batches", "sent by a rank"]
        lines.append(table(head, rows, right={1, 2, 3, 4, 5}))
        how = "steps timed here" if self.measured else "steps estimated"
        memory = "" if self.fits else "; does not fit in the memory of a device"
        lines.append(f"bubble {self.bubble:.1%}, efficiency {self.efficiency:.0%}; {how}{memory}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return html_text(self)


class _Event(NamedTuple):
    """One thing that a rank does: computes, meets others, begins that and waits for it, sends to a stage or receives from one."""

    kind: str
    seconds: float
    axis: str = ""
    nbytes: int = 0
    peer: int = -1
    label: str = ""


def simulate(
    graph: EinsumGraph,
    config: DistributedConfig,
    cluster: Cluster,
    inputs: Mapping[str, Any] | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    executor: Executor | None = None,
    here: Cluster | None = None,
) -> Simulation:
    """Predict a run of a graph on a cluster: step time, memory of a device, bytes on links and the bubble of a pipeline.

    ``inputs`` are arrays or types; without them the declared types count, and ``sizes``. The plans are those that ranks would run. How long a
    step takes is estimated from its arithmetic and its traffic of memory; with ``here``, the figures of this machine
    (:meth:`Cluster.measure`), each step is timed here, and scaled to the cluster.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, w = b.input("x", ("n", 1024), "float32"), b.input("w", (1024, 1024), "float32")
    >>> graph = b.build(y=b.sum(b.relu(x @ w), axis=0))
    >>> config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(64)])
    >>> cluster = tl.Cluster(flops=10e12, memory_bandwidth=1e12, bandwidth=25e9, latency=1e-5)
    >>> print(tl.simulate(graph, config, cluster, sizes={"n": 65536}))
    predicted for 64 devices (64 data): 0.363 ms a step
    stage  computing ms  communicating  waiting    memory  live batches  sent by a rank
    0             0.242          0.120    0.000  12.0 MiB                data 8.0 KiB
    bubble 0.0%, efficiency 67%; steps estimated
    """
    from ..executor import Executor
    from .job import Job
    from .search import settled

    expect(cluster, Cluster, "a Cluster is expected", HINT)
    expect(config, DistributedConfig, "a DistributedConfig is expected", HINT)
    own = Executor() if executor is None else executor
    types = input_types(graph, inputs, sizes, what="simulation")
    config = settled(own, graph, types, config, cluster, here)
    return predict(own, Job(graph, types, config, own, places=[(0, 0)]), cluster, here)


def predict(executor: Executor, job: Job, cluster: Cluster, here: Cluster | None) -> Simulation:
    """Predict a run of a job that holds the rank with the largest shares of each stage."""
    plan = distributed_plan(executor, job)
    devices = job.mesh.size
    events = []
    for own in plan.ranks:
        units = {way: _events(executor, unit, own, plan, cluster, here) for way, unit in own.units.items()}
        events.append([units[way] for way, _ in own.turns])
    times = _play(events, [own.turns for own in plan.ranks])
    end = max(own.end for own in times)
    stages = tuple(_stage(job, own, cluster, found, end) for own, found in zip(plan.ranks, times, strict=True))
    busy = sum(own.computing + own.meeting for own in times)
    outside = 0.0
    for part in () if job.cut is None else (job.cut.before, job.cut.after):
        if part.outputs:
            around = executor.programs.plan(part, {n: part.type_of(i) for n, i in part.inputs.items()}, None)
            outside += sum(_estimate(step, cluster, 1) for step in around.steps)
    return Simulation(
        devices,
        job.mesh._asdict(),
        str(job.config.strategy),
        len(plan.batches),
        end,
        max(0.0, 1.0 - busy / (end * len(times))) if end else 0.0,
        stages,
        outside,
        here is not None,
        cluster.memory is None or all(own.memory_bytes <= cluster.memory for own in stages),
    )


def _estimate(step: Step, cluster: Cluster, devices: int) -> float:
    """Return what a step takes by the figures of a cluster while so many devices work."""
    traffic_bytes = 0 if not step.nbytes else step.nbytes + sum(map(nbytes, step.arg_types))
    inside = sum(
        (rounds(step.op, step.arg_types) or 1) * _plan_estimate(body, cluster, devices) for body in step.bodies[:1]
    )
    dtype = str(step.types[0].dtype) if step.types else "float32"
    return (
        cluster.call * cluster.crowding(devices) + cluster.seconds(step.flops, traffic_bytes, dtype, devices) + inside
    )


def _plan_estimate(plan: ExecutionPlan, cluster: Cluster, devices: int) -> float:
    return sum(_estimate(step, cluster, devices) for step in plan.steps)


def _events(
    executor: Executor,
    unit: ExecutionPlan,
    own: RankPlan,
    plan: DistributedPlan,
    cluster: Cluster,
    here: Cluster | None,
) -> list[_Event]:
    """Return what a rank does in one unit, in order."""
    devices = plan.mesh.size
    seconds: Sequence[float] = [_estimate(step, cluster, devices) for step in unit.steps]
    found = []
    if here is not None:
        timed = measured_steps(executor, unit.graph)
        unit = timed.plan
        seconds = [
            took * _estimate(step, cluster, devices) / _estimate(step, here, 1)
            for step, took in zip(unit.steps, timed.seconds, strict=True)
        ]
        found.append(_Event("compute", timed.rest * cluster.crowding(devices)))
    for step, took in zip(unit.steps, seconds, strict=True):
        op = step.op
        if not isinstance(op, ops.Collective):
            found.append(_Event("compute", took))
            continue
        given, awaited = traffic(step)
        group = sorted([own.rank, *peers_of(plan.mesh, own.rank, op)])
        meeting = cluster.meeting(op, given, awaited, group, devices)
        match op:
            case ops.Send():
                found.append(_Event("send", meeting.seconds, op.over, meeting.nbytes, op.to, op.label))
            case ops.Receive():
                found.append(_Event("receive", 0.0, op.over, 0, op.source, op.label))
            case ops.StartAllReduce() if cluster.goes_on_meanwhile(devices):
                found.append(_Event("start", meeting.seconds, op.over, meeting.nbytes, label=op.label))
            case ops.Wait():
                if cluster.goes_on_meanwhile(devices):
                    found.append(_Event("wait", 0.0, op.over, label=op.label))
            case _:
                found.append(_Event("meet", meeting.seconds, op.over, meeting.nbytes))
    return found


class _Times:
    """What a rank did until now."""

    def __init__(self) -> None:
        self.end = self.computing = self.meeting = 0.0
        self.link = 0.0  # until when its link is in use by what it began
        self.begun: dict[str, float] = {}  # by label, when that will be over
        self.sent: dict[str, int] = {}


def _play(events: Sequence[Sequence[Sequence[_Event]]], turns: Sequence[Sequence[tuple[int, int]]]) -> list[_Times]:
    """Let a rank of each stage do its turns, each event as soon as what it waits for has come."""
    times = [_Times() for _ in events]
    lines = [
        [(batch, event) for (_, batch), unit in zip(turns[stage], own, strict=True) for event in unit]
        for stage, own in enumerate(events)
    ]
    at = [0] * len(lines)
    mail: dict[tuple[int, int, str, int], float] = {}
    moved = True
    while moved:
        moved = False
        for stage, line in enumerate(lines):
            own = times[stage]
            while at[stage] < len(line):
                batch, event = line[at[stage]]
                if event.kind == "receive":
                    arrival = mail.get((event.peer, stage, event.label, batch))
                    if arrival is None:
                        break
                    own.end = max(own.end, arrival)
                elif event.kind == "send":
                    mail[stage, event.peer, event.label, batch] = own.end + event.seconds
                elif event.kind == "start":
                    own.link = own.begun[event.label] = max(own.end, own.link) + event.seconds
                elif event.kind == "wait":
                    own.meeting += max(0.0, own.begun[event.label] - own.end)
                    own.end = max(own.end, own.begun[event.label])
                elif event.kind == "compute":
                    own.computing += event.seconds
                    own.end += event.seconds
                else:
                    own.meeting += event.seconds
                    own.end += event.seconds
                if event.nbytes:
                    own.sent[event.axis] = own.sent.get(event.axis, 0) + event.nbytes
                at[stage] += 1
                moved = True
    assert all(n == len(line) for n, line in zip(at, lines, strict=True)), "a stage waits for what nobody sends"
    return times


def _stage(job: Job, own: RankPlan, cluster: Cluster, times: _Times, end: float) -> StagePrediction:
    batches = len({batch for _, batch in own.turns})
    weights: dict[str, int] = {}
    rows = kept = results = 0
    for way, unit in own.units.items():
        if way == LAST:
            continue  # works in what was added up
        for name, _, t in unit.inputs:
            if name in job.rows:
                rows += batches * nbytes(t)
            elif not name.startswith(KEEP):
                weights[name] = nbytes(t)
        for name, _, t in unit.outputs:
            if name.startswith(KEEP):
                kept += nbytes(t)
            elif not name.startswith(SEND):
                results += nbytes(t) * (1 if name in job.totals else batches)
    stages = job.mesh.stage
    live = live_batches(getattr(job.config.strategy, "schedule", "1f1b"), own.place["stage"], stages, batches)
    live = live if BACKWARD in own.units else 0
    estimates = [estimate_plan(unit) for unit in own.units.values()]
    working = max(e.peak_bytes for e in estimates) + sum(e.constant_bytes for e in estimates)
    memory = sum(weights.values()) + rows + live * kept + results + working
    waiting = max(0.0, end - times.computing - times.meeting)
    return StagePrediction(
        own.place["stage"], times.computing, times.meeting, waiting, memory, live * kept, live, times.sent
    )
