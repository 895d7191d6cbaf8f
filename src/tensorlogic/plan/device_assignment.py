"""Spreading nodes over numbered devices: by load, by memory or by what moves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from heapq import heappop, heappush
from typing import NamedTuple

from ..diagnostics import MemoryDiagnostic, bytes_text
from ..errors import GraphError, OutOfMemoryError
from ..ir import ops
from ..ir.graph import EinsumGraph
from .node_costs import NodeCosts

EVERYWHERE = (ops.Constant, ops.Literal)  # each device has its own: they are part of the graph, and never move


class Job(NamedTuple):
    """What there is to place: a node is placed with its leader, itself unless it is a view."""

    graph: EinsumGraph
    costs: NodeCosts
    names: list[str]
    limits: list[int | None]
    leader: list[int]  # -1 where a node is on every device
    pinned: list[int]  # the device a leader must be on, or -1


def make_job(graph: EinsumGraph, costs: NodeCosts, names: list[str], limits: list[int | None]) -> Job:
    """Work out which nodes stay together, and which have no choice."""
    leader: list[int] = []
    pinned: list[int] = []
    for i, node in enumerate(graph.nodes):
        follows, pin = i, -1
        if isinstance(node.op, EVERYWHERE):
            follows = -1
        elif isinstance(node.op, ops.Transfer):
            if node.op.device not in names:
                strange = f"node %{i} transfers to {node.op.device}, which is not among the devices {', '.join(names)}"
                hint = "name that device too, or place the graph that has no transfers"
                raise GraphError(strange, hint, code="E335").at(node.location)
            pin = names.index(node.op.device)
        elif all(leader[a] < 0 for a in node.args):
            pin = 0  # an input, or what reads nothing that has a place
        elif costs.root[i] != i and leader[node.args[0]] >= 0:
            follows = leader[node.args[0]]
        leader.append(follows)
        pinned.append(pin)
    return Job(graph, costs, names, limits, leader, pinned)


def sweep(job: Job, choose: Callable[[int, list[int]], int]) -> tuple[list[int], list[int]]:
    """Go through the nodes in order; return where ``choose(node, bytes each device would then hold)`` puts them, and peaks.

    A result is held until its last reader has run, a copy likewise; inputs, outputs and constants to the end.
    """
    graph, costs, leader = job.graph, job.costs, job.leader
    devices = range(len(job.names))
    reads = [{leader[a] for a in node.args if leader[a] >= 0} for node in graph.nodes]
    unread = Counter(a for leaders in reads for a in leaders)  # nodes that have yet to read a leader or its views
    to_the_end = {leader[i] for _, i in graph.outputs} | set(graph.inputs.values())
    holds, peaks = [0 for _ in devices], [0 for _ in devices]
    own = [0] * len(graph)  # bytes that a node's result takes where it runs
    place = [-1] * len(graph)
    copies: set[tuple[int, int]] = set()  # of nodes on other devices, constants too
    copied: dict[int, list[tuple[int, int]]] = {}  # by leader: the device and bytes of each copy
    for n, node in enumerate(graph.nodes):
        if leader[n] < 0:
            continue
        args = set(node.args)
        own[n] = costs.size[n] if isinstance(node.op, ops.Input) else costs.fresh[n]
        if isinstance(node.op, ops.Transfer):
            own[n] = costs.size[n] if place[node.args[0]] != job.pinned[n] else 0
            args = set()  # its result is the copy
        if leader[n] != n:
            d = place[leader[n]]
        else:
            would = [
                holds[d] + own[n] + sum(costs.size[a] for a in args if place[a] != d and (a, d) not in copies)
                for d in devices
            ]
            d = job.pinned[n] if job.pinned[n] >= 0 else choose(n, would)
            limit = job.limits[d]
            if limit is not None and would[d] > limit:
                raise _too_much(job, n, d, would[d], limit)
        place[n] = d
        holds[d] += own[n]
        for a in args:
            if place[a] != d and (a, d) not in copies:
                copies.add((a, d))
                holds[d] += costs.size[a]
                if leader[a] >= 0:
                    copied.setdefault(leader[a], []).append((d, costs.size[a]))
        peaks[d] = max(peaks[d], holds[d])
        unread.subtract(reads[n])
        for a in reads[n] | ({n} if leader[n] == n else set()):
            if not unread[a]:
                for at, size in copied.pop(a, ()):
                    holds[at] -= size
                if a not in to_the_end:
                    holds[place[a]] -= own[a]
    return place, peaks


def _too_much(job: Job, n: int, d: int, needed: int, limit: int) -> OutOfMemoryError:
    diagnostic = MemoryDiagnostic.out_of_memory(needed, limit)
    diagnostic = diagnostic.with_context(f"device {job.names[d]} would hold {bytes_text(needed)} at node %{n}")
    diagnostic = diagnostic.with_suggestion("give more devices, a higher memory_limit, or PlacementStrategy.MEMORY")
    return OutOfMemoryError.of(diagnostic).at(job.graph.nodes[n].location)


def by_memory(job: Job) -> list[int]:
    """Put each node, in order, where the least is held once it and what it reads are there."""

    def emptiest(n: int, would: list[int]) -> int:
        fits = [d for d, held in enumerate(would) if (limit := job.limits[d]) is None or held <= limit]
        return min(fits or range(len(would)), key=would.__getitem__)

    return sweep(job, emptiest)[0]


def by_load(job: Job) -> list[int]:
    """List scheduling: whenever a device is free it takes the ready node with the longest path ahead of it.

    So the last node ends no later than total / devices + (1 - 1 / devices) * longest path, what moves not counted
    (Graham's bound); among free devices the one that holds most of the operands takes it.
    """
    graph, costs, leader = job.graph, job.costs, job.leader
    ahead = [0] * len(graph)
    after: list[list[int]] = [[] for _ in graph.nodes]
    waits = [0] * len(graph)
    tasks = [n for n, node in enumerate(graph.nodes) if leader[n] == n and not isinstance(node.op, ops.Input)]
    before: dict[int, tuple[int, ...]] = {}
    for n in tasks:
        before[n] = tuple(dict.fromkeys(leader[a] for a in graph.nodes[n].args if leader[a] >= 0))
        for m in before[n]:
            if not isinstance(graph.nodes[m].op, ops.Input):
                after[m].append(n)
                waits[n] += 1
    for n in reversed(tasks):
        ahead[n] = costs.cost[n] + max((ahead[m] for m in after[n]), default=0)
    place = [0 if isinstance(node.op, ops.Input) else -1 for node in graph.nodes]
    holders = [1 if d == 0 else 0 for d in place]  # devices that have a value, a bit each
    now = 0
    running: list[tuple[int, int]] = []  # (end, node)
    idle = set(range(len(job.names)))
    ready: list[tuple[int, int]] = []
    fixed: list[list[tuple[int, int]]] = [[] for _ in job.names]  # ready nodes that must run on a device

    def make_ready(n: int) -> None:
        heappush(ready if job.pinned[n] < 0 else fixed[job.pinned[n]], (-ahead[n], n))

    def start(n: int, d: int) -> None:
        place[n] = d
        idle.discard(d)
        holders[n] |= 1 << d
        for m in before[n]:
            holders[m] |= 1 << d
        heappush(running, (now + costs.cost[n], n))

    for n in tasks:
        if not waits[n]:
            make_ready(n)
    while ready or running or any(fixed):
        for d in sorted(idle):
            if fixed[d]:
                start(heappop(fixed[d])[1], d)
        while ready and idle:
            n = heappop(ready)[1]
            near = {d: sum(costs.size[m] for m in before[n] if holders[m] >> d & 1) for d in idle}
            start(n, min(idle, key=lambda d: (-near[d], d)))
        now = running[0][0]
        while running and running[0][0] == now:
            n = heappop(running)[1]
            idle.add(place[n])
            for m in after[n]:
                waits[m] -= 1
                if not waits[m]:
                    make_ready(m)
    return [place[m] if m >= 0 else -1 for m in leader]


def by_communication(job: Job) -> list[int]:
    """Take the placement that moves least: of two by clusters, small and large, and the one by load.

    No device gets more than total / devices + max(total / devices / 2, costliest node), what is pinned aside; small
    clusters always keep to that, the others are passed over where they do not.
    """
    single = [job.costs.cost[n] for n in range(len(job.graph)) if _movable(job, n)]
    share = sum(single) / len(job.names)
    extra = max([share / 2, *single])
    small, large = (_by_clusters(job, most, share + extra) for most in (extra, share + extra))
    fair = [place for place in (large, by_load(job)) if _heaviest(job, place) <= share + extra]
    return min([small, *fair], key=lambda place: _moved(job, place))


def _movable(job: Job, n: int) -> bool:
    return job.leader[n] == n and job.pinned[n] < 0


def _heaviest(job: Job, place: list[int]) -> int:
    own = [(d, job.costs.cost[n]) for n, d in enumerate(place) if _movable(job, n)]
    return max(sum(cost for at, cost in own if at == d) for d in range(len(job.names)))


def _moved(job: Job, place: list[int]) -> int:
    """Return the bytes that go from one device to another."""
    moves = {(a, place[n]) for n, node in enumerate(job.graph.nodes) for a in node.args if place[a] >= 0}
    return sum(job.costs.size[a] for a, d in moves if place[a] != d)


def _by_clusters(job: Job, largest: float, most: float) -> list[int]:
    """Join the two ends of each edge, heaviest first, into clusters; place clusters, heaviest first, where most they touch is.

    No cluster of several nodes costs more than ``largest``; a device takes up to ``most``, and then the emptiest does.
    """
    graph, costs, leader = job.graph, job.costs, job.leader
    count = len(job.names)
    movable = [_movable(job, n) for n in range(len(graph))]
    pairs = ((a, leader[a], leader[n]) for n, node in enumerate(graph.nodes) for a in dict.fromkeys(node.args))
    edges = sorted((-costs.size[a], m, n) for a, m, n in pairs if m >= 0 and m != n)
    cluster = list(range(len(graph)))
    weight = [costs.cost[n] if movable[n] else 0 for n in range(len(graph))]

    def find(n: int) -> int:
        while cluster[n] != n:
            cluster[n] = n = cluster[cluster[n]]
        return n

    for _, a, b in edges:
        if movable[a] and movable[b]:
            a, b = find(a), find(b)
            if a != b and weight[a] + weight[b] <= largest:
                a, b = (a, b) if weight[a] >= weight[b] else (b, a)
                cluster[b] = a
                weight[a] += weight[b]
    touches: dict[int, list[tuple[int, int]]] = {}
    for size, a, b in edges:
        a, b = (find(x) if movable[x] else x for x in (a, b))
        if a != b:
            touches.setdefault(a, []).append((b, -size))
            touches.setdefault(b, []).append((a, -size))
    place = [job.pinned[n] for n in range(len(graph))]
    load = [0] * count
    roots = [n for n in range(len(graph)) if movable[n] and find(n) == n]
    for c in sorted(roots, key=lambda n: (-weight[n], n)):
        near = [0] * count
        for other, size in touches.get(c, ()):
            if place[other] >= 0:
                near[place[other]] += size
        fits = [d for d in range(count) if load[d] + weight[c] <= most]
        fits = fits or [min(range(count), key=load.__getitem__)]
        place[c] = min(fits, key=lambda d: (-near[d], load[d], d))
        load[place[c]] += weight[c]
    return [-1 if m < 0 else place[find(m) if movable[m] else m] for m in leader]
