"""Predicting a distributed run: the plans of the ranks, played on a cluster that need not be here."""

from __future__ import annotations

import sys
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
from .timing import StretchTimes, timed_units

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

    _repr_html_ = html_text


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
    (:meth:`Cluster.measure`), steps are timed here, on as many ranks at once as it has cores, and scaled to the cluster.

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
    if executor is None:  # how much memory this machine has left is of no matter where nothing is timed on it
        executor = (
            Executor() if here else Executor(memory_limit=sys.maxsize if cluster.memory is None else cluster.memory)
        )
    types = input_types(graph, inputs, sizes, what="simulation")
    config = settled(executor, graph, types, config, cluster, here)
    return predict(executor, Job(graph, types, config, executor, places=[(0, 0)]), cluster, here)


def predict(executor: Executor, job: Job, cluster: Cluster, here: Cluster | None) -> Simulation:
    """Predict a run of a job that holds the rank with the largest shares of each stage."""
    plan = distributed_plan(executor, job)
    devices = job.mesh.size
    events = []
    copies = 1 if here is None else min(devices, here.cores_per_machine or 1)
    for own in plan.ranks:
        timed = {} if here is None else timed_units(executor, own, job.totals, job.config, copies)
        units = {
            way: _events(unit, own, plan, cluster, _seconds(unit, cluster, devices, here, copies, timed.get(way)))
            for way, unit in own.units.items()
        }
        events.append([(batch, event) for way, batch in own.turns for event in units[way]])
    # of each stage one rank is played; on its machine there are others
    cores = cluster.at_once(devices) * len(events) / cluster.neighbours(devices)
    times = _play(events, cores)
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
    inside = (rounds(step.op, step.arg_types) or 1) * sum(
        _estimate(each, cluster, devices) for body in step.bodies[:1] for each in body.steps
    )
    dtype = str(step.types[0].dtype) if step.types else "float32"
    return (
        cluster.call * cluster.crowding(devices) + cluster.seconds(step.flops, traffic_bytes, dtype, devices) + inside
    )


def _stretches(unit: ExecutionPlan, cluster: Cluster, devices: int) -> list[float]:
    """Return what a unit computes before, between and after its collectives, in estimated seconds."""
    found = [0.0]
    for step in unit.steps:
        if isinstance(step.op, ops.Collective):
            found.append(0.0)
        else:
            found[-1] += _estimate(step, cluster, devices)
    return found


def _seconds(
    unit: ExecutionPlan, cluster: Cluster, devices: int, here: Cluster | None, copies: int, timed: StretchTimes | None
) -> list[float]:
    """Return what a unit computes before, between and after its collectives: as timed here and scaled to the cluster, or estimated."""
    there = _stretches(unit, cluster, devices)
    if here is None or timed is None:
        return there
    scales = [a / b if b else 1.0 for a, b in zip(there, _stretches(unit, here, copies), strict=True)]
    found = [took * scale for took, scale in zip(timed.seconds, scales, strict=True)]
    found[0] += timed.rest * cluster.crowding(devices) / here.crowding(copies)
    return found


def _events(
    unit: ExecutionPlan, own: RankPlan, plan: DistributedPlan, cluster: Cluster, seconds: Sequence[float]
) -> list[_Event]:
    """Return what a rank does in one unit, in order; ``seconds`` are what it computes before, between and after its collectives."""
    devices = plan.mesh.size
    meanwhile = cluster.goes_on_meanwhile(devices)
    found = [_Event("compute", seconds[0])]
    collectives = [step for step in unit.steps if isinstance(step.op, ops.Collective)]
    for step, after in zip(collectives, seconds[1:], strict=True):
        op = step.op
        assert isinstance(op, ops.Collective)
        given, awaited = traffic(step)
        group = sorted([own.rank, *peers_of(plan.mesh, own.rank, op)])
        meeting = cluster.meeting(op, given, awaited, group, devices)
        match op:
            case ops.Send():
                later = meeting.seconds
                if not meanwhile:  # a core of this machine carries it, before it is on its way
                    later = min(later, cluster.send_link(group, devices)[1])
                    found.append(_Event("meet", meeting.seconds - later))
                found.append(_Event("send", later, op.over, meeting.nbytes, op.to, op.label))
            case ops.Receive():
                found.append(_Event("receive", 0.0, op.over, 0, op.source, op.label))
            case ops.StartAllReduce() if meanwhile:
                found.append(_Event("start", meeting.seconds, op.over, meeting.nbytes, label=op.label))
            case ops.Wait():
                if meanwhile:
                    found.append(_Event("wait", 0.0, op.over, label=op.label))
            case _:
                found.append(_Event("meet", meeting.seconds, op.over, meeting.nbytes))
        found.append(_Event("compute", after))
    return found


class _Rank:
    """What a rank has done until now, and what it does."""

    def __init__(self, events: Sequence[tuple[int, _Event]]) -> None:
        self.events, self.at = events, 0  # each with its micro-batch
        self.end = self.computing = self.meeting = 0.0
        self.left = 0.0  # of the event it is at, in seconds of a core
        self.until = 0.0  # when what it waits for will be there
        self.link = 0.0  # until when its link is in use by what it began
        self.begun: dict[str, float] = {}  # by label, when that will be over
        self.sent: dict[str, int] = {}

    def goes_on(self, now: float, stage: int, mail: dict[tuple[int, int, str, int], float]) -> bool:
        """Begin what comes next, unless it computes or waits; tell whether it did something that others may wait for."""
        moved = False
        while self.left <= 0 and self.until <= now and self.at < len(self.events):
            batch, event = self.events[self.at]
            if event.kind == "receive":
                arrival = mail.get((event.peer, stage, event.label, batch))
                if arrival is None:
                    return moved
                self.until = arrival
            elif event.kind == "send":
                mail[stage, event.peer, event.label, batch] = now + event.seconds
                moved = True
            elif event.kind == "start":
                self.link = self.begun[event.label] = max(now, self.link) + event.seconds
            elif event.kind == "wait":
                self.until = self.begun[event.label]
                self.meeting += max(0.0, self.until - now)
            else:
                self.left = event.seconds
            if event.nbytes:
                self.sent[event.axis] = self.sent.get(event.axis, 0) + event.nbytes
            self.at += 1
            self.end = max(now, self.until)
        return moved

    def goes_ahead(self, stage: int, mail: dict[tuple[int, int, str, int], float]) -> bool:
        """Do all that it can with a core of its own; tell whether that was anything."""
        first = self.at
        while True:
            at = self.at
            self.goes_on(self.end, stage, mail)
            if self.left > 0:
                self.work(self.end, self.left, 1.0)
            elif self.at == at:
                return at > first

    def work(self, now: float, seconds: float, rate: float) -> None:
        """Do what it is at for some seconds, at the share of a core that it has."""
        if self.left > 0:
            if self.events[self.at - 1][1].kind == "compute":
                self.computing += seconds
            else:
                self.meeting += seconds
            self.left = max(0.0, self.left - seconds * rate)
            self.end = now + seconds


def _play(events: Sequence[Sequence[tuple[int, _Event]]], cores: float) -> list[_Rank]:
    """Let a rank of each stage do its turns, each event as soon as what it waits for has come; those that compute at a time share the cores."""
    ranks = [_Rank(own) for own in events]
    mail: dict[tuple[int, int, str, int], float] = {}
    now = 0.0
    if cores >= len(ranks):  # nobody waits for a core: each has a clock of its own
        while sum(own.goes_ahead(stage, mail) for stage, own in enumerate(ranks)):
            pass
        now = max(own.end for own in ranks)
    while True:
        while any(own.goes_on(now, stage, mail) for stage, own in enumerate(ranks)):
            pass
        busy = [own.left for own in ranks if own.left > 0]
        rate = min(1.0, cores / len(busy)) if busy else 1.0
        ends = [left / rate for left in busy] + [own.until - now for own in ranks if own.until > now]
        if not ends:
            break
        passed = min(ends)
        for own in ranks:
            own.work(now, passed, rate)
            if 0 < own.left <= 1e-9 * passed:  # but for rounding it is over
                own.left = 0.0
        now += passed
    assert all(own.at == len(own.events) for own in ranks), "a stage waits for what nobody sends"
    return ranks


def _stage(job: Job, own: RankPlan, cluster: Cluster, times: _Rank, end: float) -> StagePrediction:
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
