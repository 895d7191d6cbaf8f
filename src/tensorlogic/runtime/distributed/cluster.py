"""What the devices of a cluster and the links between them can do: given by hand, or measured on this machine."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ...backends.base import Device
from ...diagnostics import value_text
from ...errors import InputError
from ...ir import ops
from ...ir.builder import GraphBuilder
from ...ir.graph import EinsumGraph
from ...tables import table
from .config import DataParallel, DistributedConfig
from .rank import RankTimes, Task

if TYPE_CHECKING:
    from ..executor import Executor

WIDE = frozenset({"float64", "int64", "uint64", "complex64"})
MATRIX = 384  # rows of the matrices that are multiplied: enough for BLAS, and over before others get a turn
STREAM = 4 << 20  # numbers of an array that is read and written, beyond the caches of most processors
SMALL_STEPS = 64
MESSAGES = (1 << 10, 1 << 20)  # numbers that ranks give each other, to tell latency from bandwidth
MEETINGS = 16  # of one run
BUSY_STEPS = 64  # products of a rank that keeps a core busy
ROUNDS, BUDGET = 30, 0.4  # runs of each measurement at the most, and seconds that they may take


class Meeting(NamedTuple):
    """What a collective takes, and the bytes that a rank sends over its link for it."""

    seconds: float
    nbytes: int


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and links, for :func:`simulate` and the strategy ``Auto``: rates in flops and bytes a second, latency in seconds.

    Machines hold ``devices_per_machine`` (None: there is one machine); between them the network's figures count.
    Where devices share what their machine has, such as processes that share its cores, ``machine_flops`` and
    ``machine_memory_bandwidth`` are what all of them reach together, and ``cores_per_machine`` says how many of them compute at a time, while
    the others wait for a core (None: each device has its own). Where what one stage sends to another takes another way than collectives,
    ``send_bandwidth`` and ``send_latency`` are those of that way, and ``crowded_latency`` where there are more devices than cores. ``call`` is
    what a step takes beside its arithmetic.

    >>> cluster = Cluster(flops=60e12, memory_bandwidth=2e12, bandwidth=250e9, latency=5e-6, devices_per_machine=8,
    ...                   network_bandwidth=25e9, network_latency=20e-6)
    >>> cluster.link([0, 1]), cluster.link([0, 8])
    ((250000000000.0, 5e-06), (25000000000.0, 2e-05))
    """

    flops: float  # of float32 matrix products; half of it counts for float64
    memory_bandwidth: float
    bandwidth: float  # of the link between two devices of a machine
    latency: float  # of a message
    call: float = 5e-6
    memory: int | None = None  # bytes of a device
    devices_per_machine: int | None = None
    network_bandwidth: float | None = None
    network_latency: float | None = None
    machine_flops: float | None = None
    machine_memory_bandwidth: float | None = None
    cores_per_machine: int | None = None
    send_bandwidth: float | None = None
    send_latency: float | None = None
    crowded_latency: float | None = None

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not value > 0):
                message = f"{field.name} of a cluster is a number above 0, got {value_text(value)}"
                raise InputError(message, "write Cluster(flops=60e12, memory_bandwidth=2e12, ...)", code="E391")
        if self.devices_per_machine and not (self.network_bandwidth and self.network_latency):
            message = f"machines of {self.devices_per_machine} devices need network_bandwidth and network_latency"
            raise InputError(message, "give both, or leave devices_per_machine out", code="E391")

    def neighbours(self, devices: int) -> int:
        """Return how many of so many devices are on one machine."""
        return min(devices, self.devices_per_machine or devices)

    def at_once(self, devices: int) -> int:
        """Return how many of so many devices compute at a time on one machine."""
        return min(self.neighbours(devices), self.cores_per_machine or devices)

    def crowding(self, devices: int) -> float:
        """Return by how much a device is slower at arithmetic because others of its machine compute at the same time.

        >>> Cluster(flops=50e9, memory_bandwidth=1e10, bandwidth=1e9, latency=1e-4, machine_flops=100e9).crowding(4)
        2.0
        """
        return max(1.0, self.at_once(devices) * self.flops / (self.machine_flops or float("inf")))

    def goes_on_meanwhile(self, devices: int) -> bool:
        """Tell whether a device can compute while it communicates; where its machine has no core to spare, it cannot.

        >>> shared = Cluster(flops=50e9, memory_bandwidth=1e10, bandwidth=1e9, latency=1e-4, machine_flops=95e9)
        >>> shared.goes_on_meanwhile(1), shared.goes_on_meanwhile(2)
        (True, False)
        """
        if self.cores_per_machine is not None:
            return self.neighbours(devices) < self.cores_per_machine
        return self.machine_flops is None or self.neighbours(devices) * self.flops < 0.9 * self.machine_flops

    def seconds(self, flops: float, nbytes: float, dtype: str, devices: int) -> float:
        """Return what arithmetic and traffic of memory take on one device while so many work."""
        rate = self.flops / self.crowding(devices) / (2 if dtype in WIDE else 1)
        shared = (self.machine_memory_bandwidth or float("inf")) / self.at_once(devices)
        return max(flops / rate, nbytes / min(self.memory_bandwidth, shared))

    def link(self, ranks: Sequence[int]) -> tuple[float, float]:
        """Return the bandwidth and the latency of the slowest link between ranks."""
        size = self.devices_per_machine
        if size is None or len({rank // size for rank in ranks}) == 1:
            return self.bandwidth, self.latency
        assert self.network_bandwidth is not None and self.network_latency is not None
        return self.network_bandwidth, self.network_latency

    def send_link(self, ranks: Sequence[int], devices: int) -> tuple[float, float]:
        """Return the bandwidth and the latency of what one of two ranks sends to the other, while so many devices work."""
        bandwidth, latency = self.link(ranks)
        if (bandwidth, latency) == (self.bandwidth, self.latency):  # on one machine
            crowded = self.crowded_latency if self.at_once(devices) < self.neighbours(devices) else None
            return self.send_bandwidth or bandwidth, crowded or self.send_latency or latency
        return bandwidth, latency

    def meeting(self, op: ops.Collective, given: int, awaited: int, ranks: Sequence[int], devices: int) -> Meeting:
        """Return what a collective takes between ranks, by the better of a ring and a tree, and the bytes on each rank's link."""
        sends = isinstance(op, ops.Send | ops.Receive)
        bandwidth, latency = self.send_link(ranks, devices) if sends else self.link(ranks)
        p = len(ranks)
        hops = math.ceil(math.log2(p)) if p > 1 else 0
        ring: tuple[float, float]  # messages one after the other, and bytes
        tree: tuple[float, float]
        match op:
            case ops.AllReduce() | ops.StartAllReduce():
                ring, tree = (2 * (p - 1), 2 * (p - 1) / p * given), (2 * hops, 2 * given)
            case ops.AllGather():
                ring = tree = (hops, awaited)
            case ops.ReduceScatter():
                ring = tree = (hops, (p - 1) / p * given)
            case ops.AllToAll():
                ring = tree = (p - 1, (p - 1) / p * given)
            case ops.BroadcastFrom():
                ring = tree = (hops, max(given, awaited))
            case _:
                ring = tree = (1, max(given, awaited))
        # the cores of a machine also move what its devices give each other; where they are counted, a device waits for one
        crowding = self.crowding(devices) if self.cores_per_machine is None else 1.0
        seconds, moved = min((crowding * (latency * n + size / bandwidth), size) for n, size in (ring, tree))
        return Meeting(seconds, round(moved))

    def __str__(self) -> str:
        rows = [
            [f.name, _number(getattr(self, f.name), f.name)] for f in fields(self) if getattr(self, f.name) is not None
        ]
        return table(["cluster", ""], rows)

    @classmethod
    def measure(
        cls, communication: str = "local", *, ranks: int | None = None, executor: Executor | None = None
    ) -> Cluster:
        """Measure this machine, whose devices are ranks that communicate so: threads (``"local"``) or processes (``"torch"``).

        One rank computes alone, then as many as there are cores, or ``ranks`` if they are fewer, then two exchange values, also while others keep
        all cores busy; that takes some seconds.
        """
        from ..executor import Executor

        own = Executor() if executor is None else executor
        there = os.cpu_count() or 1
        cores = min(there, ranks or sys.maxsize)
        try:
            alone = _rates(own, communication, 1)
            together = alone if cores == 1 else _rates(own, communication, cores)
            latency, bandwidth = _link(own, communication, _sum_graph)
            send_latency, send_bandwidth = _link(own, communication, _send_graph)
            crowded = _crowded_latency(own, communication, there)
        finally:
            if executor is None and own.distributed is not None:
                own.distributed.close()
        return cls(
            flops=alone[0],
            memory_bandwidth=alone[1],
            bandwidth=bandwidth,  # of two ranks, each hands half of its value to the other, and half of the sum
            latency=latency / 2,
            call=alone[2],
            machine_flops=cores * together[0],
            machine_memory_bandwidth=cores * together[1],
            cores_per_machine=there,
            send_bandwidth=send_bandwidth,
            send_latency=send_latency,
            crowded_latency=crowded,
        )


def _number(value: float, name: str) -> str:
    units = {"flops": "FLOP/s", "bandwidth": "B/s", "memory": "B", "latency": "s", "call": "s"}
    unit = next((u for word, u in units.items() if name.endswith(word)), "")
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
        if value >= factor:
            return f"{value / factor:.1f} {prefix}{unit}"
    return f"{value * 1e6:.1f} µ{unit}" if unit == "s" else f"{value:g} {unit}".strip()


def _rates(executor: Executor, communication: str, ranks: int) -> tuple[float, float, float]:
    """Return flops, bytes a second and seconds a call of a rank while so many compute."""
    b = GraphBuilder()
    x, w = b.input("x", (MATRIX, MATRIX), "float32"), b.input("w", (MATRIX, MATRIX), "float32")
    shapes = {"x": (MATRIX,) * 2, "w": (MATRIX,) * 2}
    product = _computing(executor, communication, ranks, b.build(y=x @ w), shapes)
    long = b.build(y=b.negative(b.input("s", (STREAM,), "float32")))
    streamed = _computing(executor, communication, ranks, long, {"s": (STREAM,)})
    small = b.input("v", (4,), "float32")
    for _ in range(SMALL_STEPS):
        small = b.sort(small) * 1.0
    calls = _computing(executor, communication, ranks, b.build(y=small), {"v": (4,)})
    return 2 * MATRIX**3 / product, 8 * STREAM / streamed, calls / (2 * SMALL_STEPS)


def _computing(
    executor: Executor, communication: str, ranks: int, graph: EinsumGraph, shapes: Mapping[str, tuple[int, ...]]
) -> float:
    """Return how many seconds the slowest of some ranks computes when all run a graph at once."""
    inputs = {name: np.full(shape, 1 / MATRIX, "float32") for name, shape in shapes.items()}
    runs = _runs(executor, communication, [Task(graph, inputs, ())] * ranks)
    return usual([max(own.computation_ns for own in times) / 1e9 for times in runs])


def _link(executor: Executor, communication: str, build: Callable[[int, int], EinsumGraph]) -> tuple[float, float]:
    """Return the latency of what two ranks do together, and its bytes a second."""
    seconds = []
    for count in MESSAGES:
        graphs = [build(rank, count) for rank in range(2)]
        tasks = [Task(graph, {name: np.ones(count, "float32") for name in graph.inputs}, ()) for graph in graphs]
        runs = _runs(executor, communication, tasks)
        # the rank that came last did not wait for the other to come
        seconds.append(usual([min(own.communication_ns for own in times) / 1e9 for times in runs]) / MEETINGS)
    short, long = seconds
    per_byte = max(long - short, 1e-6) / (4 * (MESSAGES[1] - MESSAGES[0]))
    return max(short - 4 * MESSAGES[0] * per_byte, 1e-7), 1 / per_byte


def _crowded_latency(executor: Executor, communication: str, cores: int) -> float:
    """Return the latency of what two ranks send to each other while others keep all cores busy."""
    b = GraphBuilder()
    x, w = b.input("x", (MATRIX, MATRIX), "float32"), b.input("w", (MATRIX, MATRIX), "float32")
    for _ in range(BUSY_STEPS):
        x = x @ w
    busy = Task(b.build(y=x), {name: np.full((MATRIX, MATRIX), 1 / MATRIX, "float32") for name in "xw"}, ())
    graphs = [_send_graph(rank, MESSAGES[0], 2 + cores) for rank in range(2)]
    tasks = [Task(graph, {name: np.ones(MESSAGES[0], "float32") for name in graph.inputs}, ()) for graph in graphs]
    runs = _runs(executor, communication, [*tasks, *[busy] * cores])
    return usual([min(own.communication_ns for own in times[:2]) / 1e9 for times in runs]) / MEETINGS


def _sum_graph(rank: int, count: int) -> EinsumGraph:
    """Return the graph of one of two ranks that add up so many numbers, again and again."""
    b = GraphBuilder()
    x = b.input("x", (count,), "float32")
    for _ in range(MEETINGS):
        x = b.apply(ops.AllReduce("data", 2, rank), x)
    return b.build(y=x)


def _send_graph(rank: int, count: int, ranks: int = 2) -> EinsumGraph:
    """Return the graph of one of two ranks, the first of all, that send so many numbers to each other, in turn."""
    b = GraphBuilder()
    x, outputs = b.input("x", (count,), "float32"), {}
    for n in range(MEETINGS):
        if n % 2 == rank:
            outputs[f"sent{n}"] = b.apply(ops.Send("data", ranks, rank, 1 - rank, str(n)), x)
        else:
            x = b.apply(ops.Receive("data", ranks, rank, 1 - rank, str(n), (count,), "float32"))
    return b.build(y=x, **outputs)


def _runs(executor: Executor, communication: str, tasks: Sequence[Task]) -> list[list[RankTimes]]:
    """Return the times of the ranks in each of some runs."""
    from ..modes import distributed_of

    config = DistributedConfig(tuple(Device.CPU(n) for n in range(len(tasks))), communication, DataParallel(len(tasks)))
    runs: list[list[RankTimes]] = []
    end = perf_counter() + BUDGET
    while len(runs) < ROUNDS and (len(runs) < 6 or perf_counter() < end):
        results = distributed_of(executor).run_tasks(executor, config.mesh, [[task] for task in tasks], config)
        runs.append([result.times for result in results])
    return runs[1:]


def usual(values: Sequence[float]) -> float:
    """Return what something usually takes where nothing else is in its way: a quarter of the values are below.

    >>> usual([5, 1, 2, 9, 3])
    2
    """
    return sorted(values)[len(values) // 4]
