"""Placement: on which device every node runs, and what has to move between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from ..diagnostics import bytes_text
from ..errors import GraphError, InputError
from ..ir import ops
from ..ir.graph import EinsumGraph, Node
from ..tables import table
from .device_assignment import Job, by_communication, by_load, by_memory, make_job, sweep
from .node_costs import assumption, counted, weigh


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


class PlacementPlan(NamedTuple):
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
    transfers: tuple[Move, ...]
    load: Mapping[Place, int]  # what its nodes cost: flops plus bytes written
    memory: Mapping[Place, int]  # the most bytes it holds at once, run in the graph's order
    present: frozenset[str]  # the devices this machine has as memory of their own
    assumed: tuple[str, ...]  # sizes and inputs that nobody gave

    @property
    def bytes_moved(self) -> int:
        """The bytes of all transfers."""
        return sum(move.nbytes for move in self.transfers)

    def apply(self, graph: EinsumGraph | None = None) -> EinsumGraph:
        """Return the graph with a transfer wherever a value goes to another device."""
        if graph is not None and graph != self.graph:
            raise GraphError(
                f"this placement is of another graph, of {counted(len(self.graph), 'node')}; "
                f"the one given has {counted(len(graph), 'node')}",
                code="E106",
                suggestions=["place it: PlacementOptimizer(devices, strategy).optimize(graph)"],
            )
        place = self.node_placements
        nodes: list[Node] = []
        new: list[int] = []
        copies: dict[tuple[int, Place], int] = {}
        for i, node in enumerate(self.graph.nodes):
            args = []
            for a in node.args:
                if a not in place or place[a] == place[i] or isinstance(node.op, ops.Transfer):
                    args.append(new[a])
                    continue
                key = (a, place[i])
                if key not in copies:
                    copies[key] = len(nodes)
                    nodes.append(Node(ops.Transfer(_name(place[i])), (new[a],), self.graph.nodes[a].locations))
                args.append(copies[key])
            new.append(len(nodes))
            nodes.append(Node(node.op, tuple(args), node.locations))
            if isinstance(node.op, ops.Transfer):
                copies[node.args[0], place[i]] = new[i]
        return EinsumGraph(nodes, ((name, new[i]) for name, i in self.graph.outputs), self.graph.constants)

    def label(self, device: Place) -> str:
        """Return how a device is called in print.

        >>> import tensorlogic as tl
        >>> plan = PlacementOptimizer([tl.Device.CPU(0), tl.Device.CPU(1)]).optimize(tl.EinsumGraph((), ()))
        >>> [plan.label(d) for d in plan.devices]
        ['cpu:0', 'virtual cpu:1']
        """
        return _name(device) if _name(device) in self.present else f"virtual {_name(device)}"

    def table(self, limit: int | None = 20) -> str:
        """Return the devices, and the first ``limit`` transfers, as tables."""
        nodes = dict.fromkeys(self.devices, 0)
        for device in self.node_placements.values():
            nodes[device] += 1
        received = dict.fromkeys(self.devices, 0)
        for move in self.transfers:
            received[move.target] += move.nbytes
        rows = [
            [self.label(d), f"{nodes[d]:,}", f"{self.load[d]:,}", bytes_text(self.memory[d]), bytes_text(received[d])]
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
            raise InputError(
                f"devices must be a list of at least one device, got {devices!r}",
                code="E301",
                suggestions=["write [Device.CPU(0), Device.CPU(1)]"],
            )
        if len(set(map(_name, given))) < len(given):
            raise InputError(
                f"a device is given twice: {', '.join(map(_name, given))}",
                code="E301",
                suggestions=["number them: [Device.CPU(0), Device.CPU(1)]"],
            )
        if strategy not in _STRATEGIES:
            raise InputError(
                f"{strategy!r} is no placement strategy",
                code="E301",
                suggestions=[f"use one of {', '.join(str(s) for s in PlacementStrategy)}"],
            )
        self.devices = tuple(given)
        self.strategy = strategy
        if isinstance(memory_limit, Mapping) and not set(memory_limit) <= set(given):
            raise InputError(
                f"memory_limit names {', '.join(str(d) for d in memory_limit if d not in given)}, not among the devices",
                code="E301",
                suggestions=[f"the devices: {', '.join(map(_name, given))}"],
            )
        for limit in memory_limit.values() if isinstance(memory_limit, Mapping) else (memory_limit,):
            if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
                raise InputError(f"memory_limit is a number of bytes, got {limit!r}", code="E301",
                                 suggestions=["write 64 << 20 for 64 MiB"])  # fmt: skip
        limits = memory_limit if isinstance(memory_limit, Mapping) else dict.fromkeys(given, memory_limit)
        self._limits = [limits.get(d) for d in given]
        self._present = frozenset({"cpu:0"} if present is None else map(_name, present))

    def optimize(
        self, graph: EinsumGraph, inputs: Mapping[str, Any] | None = None, *, sizes: Mapping[str, int] | None = None
    ) -> PlacementPlan:
        """Place a graph for inputs (arrays or types) and sizes; a size that is not given counts as 64."""
        w = weigh(graph, inputs, sizes)
        job = make_job(graph, w, [_name(d) for d in self.devices], self._limits)
        found = _STRATEGIES[self.strategy](job)
        found, memory = sweep(job, lambda n, held: found[n])
        place = {n: self.devices[d] for n, d in enumerate(found) if d >= 0}
        load = dict.fromkeys(self.devices, 0)
        for n, device in place.items():
            load[device] += w.cost[n]
        moves: dict[tuple[int, Place], Move] = {}
        for n, node in enumerate(graph.nodes):
            for a in node.args:
                if a in place and place[a] != place[n] and (a, place[n]) not in moves:
                    moves[a, place[n]] = Move(a, place[a], place[n], w.size[a])
        return PlacementPlan(
            graph, self.strategy, self.devices, MappingProxyType(place), tuple(moves.values()), MappingProxyType(load),
            MappingProxyType(dict(zip(self.devices, memory, strict=True))), self._present, w.assumed,
        )  # fmt: skip


def _name(device: Place) -> str:
    return f"{device.kind}:{device.index}"


_STRATEGIES: dict[PlacementStrategy, Callable[[Job], list[int]]] = {
    PlacementStrategy.LOAD_BALANCE: by_load,
    PlacementStrategy.MEMORY: by_memory,
    PlacementStrategy.COMMUNICATION: by_communication,
}


def step_devices(graph: EinsumGraph, first: str = "cpu:0") -> list[str]:
    """Return the device of every node: a transfer's own, otherwise where the operands are; inputs are on the ``first``.

    What depends on constants alone is wherever it is read, as they are; it counts to the first.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> moved = b.apply(ops.Transfer("cpu:1"), b.input("x", (3,)))
    >>> step_devices(b.build(y=moved + 1))
    ['cpu:0', 'cpu:1', 'cpu:0', 'cpu:1']
    """
    devices: list[str | None] = []  # None: anywhere
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Transfer | ops.Input):
            devices.append(node.op.device if isinstance(node.op, ops.Transfer) else first)
            continue
        at = dict.fromkeys(d for d in (devices[a] for a in node.args) if d is not None)
        if len(at) > 1:
            raise GraphError(
                f"{node.op.name} (node %{i}) reads from {' and '.join(at)}",
                code="E105",
                suggestions=["put a transfer before it, as PlacementPlan.apply does"],
            ).at(node.location)
        devices.append(next(iter(at), None))
    return [first if d is None else d for d in devices]
