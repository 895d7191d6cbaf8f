"""Placement: on which device every node runs, and what has to move between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

import msgspec

from ..diagnostics import bytes_text, value_text
from ..errors import GraphError, InputError, expect, expect_whole
from ..ir import ops
from ..ir.graph import EinsumGraph, Node
from ..tables import counted, table
from .build import step_devices as step_devices
from .device_assignment import Job, by_communication, by_load, by_memory, make_job, sweep
from .node_costs import NodeCosts, assumption, node_costs


class Place(Protocol):
    """A device as placement sees it: a kind and a number, such as cpu and 1; ``tensorlogic.Device`` is one."""

    @property
    def kind(self) -> str:
        """The word for what it is."""

    @property
    def index(self) -> int:
        """Which of its kind it is."""


class PlacementStrategy(Enum):
    """What a placement is good at.

    >>> PlacementStrategy.LOAD_BALANCE.value
    'no device waits while another has work to spare'
    """

    LOAD_BALANCE = "no device waits while another has work to spare"
    MEMORY = "every device holds about as much"
    COMMUNICATION = "little moves between devices"


class Move(NamedTuple):
    """A value that goes from one device to another, once."""

    node: int
    source: Place
    target: Place
    nbytes: int


class PlacementPlan(msgspec.Struct, frozen=True, dict=True):
    """Where every node runs and what moves; constants and literals are on every device. It prints as a table.

    Devices that this machine does not have as memory of their own are called virtual: a transfer there copies nothing.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, u, v = (b.input(n, (64, 64), "float32") for n in "xuv")
    >>> plan = PlacementOptimizer([tl.Device.CPU(0), tl.Device.CPU(1)]).optimize(b.build(y=x @ u + x @ v))
    >>> print(plan)
    device         nodes     load    memory  receives
    cpu:0              5  561,152  96.0 KiB  16.0 KiB
    virtual cpu:1      1  540,672  48.0 KiB  32.0 KiB
    moves  from           to                bytes
    %0     cpu:0          virtual cpu:1  16.0 KiB
    %2     cpu:0          virtual cpu:1  16.0 KiB
    %4     virtual cpu:1  cpu:0          16.0 KiB
    3 transfers, 48.0 KiB
    """

    graph: EinsumGraph
    strategy: PlacementStrategy
    devices: tuple[Place, ...]
    node_placements: Mapping[int, Place]
    memory: Mapping[Place, int]  # the most bytes it holds at once, run in the graph's order
    present: frozenset[str]  # the devices this machine has as memory of their own
    costs: NodeCosts  # what every node of the graph costs and holds

    @property
    def load(self) -> Mapping[Place, int]:
        """What the nodes of each device cost: flops plus bytes written."""
        load = dict.fromkeys(self.devices, 0)
        for n, device in self.node_placements.items():
            load[device] += self.costs.cost[n]
        return load

    @property
    def transfers(self) -> tuple[Move, ...]:
        """What goes from one device to another."""
        return self._applied[1]

    @property
    def bytes_moved(self) -> int:
        """The bytes of all transfers."""
        return sum(move.nbytes for move in self.transfers)

    @property
    def assumed(self) -> tuple[str, ...]:
        """The sizes and inputs that nobody gave."""
        return self.costs.assumed

    def apply(self, graph: EinsumGraph | None = None) -> EinsumGraph:
        """Return the graph with a transfer wherever a value goes to another device: its plans run so."""
        if graph is not None and graph != self.graph:
            sizes = [counted(len(each), "node") for each in (self.graph, graph)]
            other = f"this placement is of another graph, of {sizes[0]}; the one given has {sizes[1]}"
            raise GraphError(other, "place it: PlacementOptimizer(devices, strategy).optimize(graph)", code="E333")
        return self._applied[0]

    @cached_property
    def _applied(self) -> tuple[EinsumGraph, tuple[Move, ...]]:
        place = self.node_placements
        nodes: list[Node] = []
        new: list[int] = []
        copies: dict[tuple[int, Place], int] = {}
        moves: list[Move] = []
        for i, node in enumerate(self.graph.nodes):
            args = list(node.args)
            for n, a in enumerate(args):
                args[n] = new[a]
                if a not in place or place[a] == place[i]:
                    continue
                key, itself = (a, place[i]), isinstance(node.op, ops.Transfer)  # which is the copy itself
                if key not in copies:
                    moves.append(Move(a, place[a], place[i], self.costs.size[a]))
                    copies[key] = len(nodes)
                    if not itself:
                        nodes.append(Node(ops.Transfer(_name(place[i])), (new[a],), self.graph.nodes[a].locations))
                args[n] = args[n] if itself else copies[key]
            new.append(len(nodes))
            nodes.append(Node(node.op, tuple(args), node.locations))
        outputs = [(name, new[i]) for name, i in self.graph.outputs]
        return EinsumGraph(nodes, outputs, self.graph.constants), tuple(moves)

    def label(self, device: Place) -> str:
        """Return how a device is called in print."""
        return _name(device) if _name(device) in self.present else f"virtual {_name(device)}"

    def table(self, limit: int | None = 20) -> str:
        """Return the devices, and the first ``limit`` transfers, as tables."""
        nodes, received, load = Counter(self.node_placements.values()), Counter[Place](), self.load
        for move in self.transfers:
            received[move.target] += move.nbytes
        rows = [
            [self.label(d), f"{nodes[d]:,}", f"{load[d]:,}", bytes_text(self.memory[d]), bytes_text(received[d])]
            for d in self.devices
        ]
        lines = [table(["device", "nodes", "load", "memory", "receives"], rows, right={1, 2, 3, 4})]
        if self.transfers:
            shown = self.transfers[:limit]
            moves = [[f"%{m.node}", self.label(m.source), self.label(m.target), bytes_text(m.nbytes)] for m in shown]
            lines.append(table(["moves", "from", "to", "bytes"], moves, right={3}))
        if self.transfers and len(shown) < len(self.transfers):
            lines.append(f"... {len(self.transfers) - len(shown):,} more")
        lines.append(f"{counted(len(self.transfers), 'transfer')}, {bytes_text(self.bytes_moved)}")
        return "\n".join(lines + assumption(self.assumed))

    def __str__(self) -> str:
        return self.table()


class PlacementOptimizer:
    """Spreads the nodes of a graph over devices, which count as equally fast.

    Inputs are on the first device, and so is what reads only constants. Views stay with what they show, a loop with its
    body. ``memory_limit`` is in bytes, for every device or by device. ``present`` names the devices that this machine
    has as memory of their own, by default the processor; the others are virtual.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, u, v = (b.input(n, (64, 64)) for n in "xuv")
    >>> optimizer = PlacementOptimizer([tl.Device.CPU(0), tl.Device.CPU(1)], PlacementStrategy.LOAD_BALANCE)
    >>> plan = optimizer.optimize(b.build(y=x @ u + x @ v))
    >>> {n: str(device) for n, device in plan.node_placements.items() if n > 2}
    {3: 'cpu:0', 4: 'cpu:1', 5: 'cpu:0'}
    """

    def __init__(
        self,
        devices: Sequence[Place],
        strategy: PlacementStrategy = PlacementStrategy.LOAD_BALANCE,
        *,
        memory_limit: int | Mapping[Any, int] | None = None,
        present: Sequence[Place] | None = None,
    ) -> None:
        given = list(devices) if isinstance(devices, Sequence) else []
        if not given or not all(hasattr(d, "kind") and hasattr(d, "index") for d in given):
            wanted = f"devices must be a list of at least one device, got {value_text(devices)}"
            raise InputError(wanted, "write [Device.CPU(0), Device.CPU(1)]", code="E301")
        names = list(map(_name, given))
        if len(set(names)) < len(names):
            twice = f"a device is given twice: {', '.join(names)}"
            raise InputError(twice, "number them: [Device.CPU(0), Device.CPU(1)]", code="E334")
        expect(strategy, PlacementStrategy, "a PlacementStrategy is expected", *(f"use {s}" for s in PlacementStrategy))
        limits = memory_limit if isinstance(memory_limit, Mapping) else dict.fromkeys(given, memory_limit)
        for device, limit in limits.items():
            if device not in given:
                strange = f"memory_limit names {device}, which is not among the devices {', '.join(names)}"
                raise InputError(strange, code="E335")
            if limit is not None:
                expect_whole("memory_limit", limit, 0, "it is in bytes: write 64 << 20 for 64 MiB")
        self.devices, self.strategy = tuple(given), strategy
        self._limits = [limits.get(d) for d in given]
        self._present = frozenset({"cpu:0"} if present is None else map(_name, present))

    def optimize(
        self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> PlacementPlan:
        """Place a graph for inputs (arrays or types) and sizes; a size that is not given counts as 64."""
        costs = node_costs(graph, inputs, sizes)
        job = make_job(graph, costs, [_name(d) for d in self.devices], self._limits)
        chosen = _STRATEGIES[self.strategy](job)
        numbers, peaks = sweep(job, lambda n, held: chosen[n])
        place = MappingProxyType({n: self.devices[d] for n, d in enumerate(numbers) if d >= 0})
        memory = MappingProxyType(dict(zip(self.devices, peaks, strict=True)))
        return PlacementPlan(graph, self.strategy, self.devices, place, memory, self._present, costs)


def _name(device: Place) -> str:
    return f"{device.kind}:{device.index}"


_STRATEGIES: dict[PlacementStrategy, Callable[[Job], list[int]]] = {
    PlacementStrategy.LOAD_BALANCE: by_load,
    PlacementStrategy.MEMORY: by_memory,
    PlacementStrategy.COMMUNICATION: by_communication,
}
