"""Cutting a graph into stages that follow each other, where the work is balanced and little has to be handed on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..errors import GraphError
from ..ir import ops
from ..ir.graph import EinsumGraph, Node, extract, reachable
from ..ir.types import ITEMSIZE, dims

SOURCES = (ops.Input, ops.Constant, ops.Literal, ops.Iota)  # every stage has those that it needs
SLACK = 0.25  # of a stage's work that a cut may be moved by, to where less is handed on


class Stage(NamedTuple):
    """One stage: its graph, and the outputs of the whole that it makes."""

    graph: EinsumGraph
    outputs: tuple[str, ...]


def stage_of_nodes(graph: EinsumGraph, costs: Sequence[int], count: int) -> list[int]:
    """Return for each node the stage that runs it: stretches of about equal cost, cut where little is handed on.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> y = b.input("x", (4,), "float32")
    >>> for _ in range(4):
    ...     y = b.sin(y) + 1
    >>> stage_of_nodes(b.build(y=y), [1] * 10, 2)
    [0, 0, 0, 0, 0, 0, 1, 1, 1, 1]
    """
    work = [0 if isinstance(node.op, SOURCES) else max(1, cost) for node, cost in zip(graph.nodes, costs, strict=True)]
    places = sum(1 for cost in work if cost)
    if places < count:
        raise GraphError(f"a graph of {places} operations cannot be cut into {count} stages", code="E378")
    handed = _handed_on(graph)
    before = [0]
    for cost in work:
        before.append(before[-1] + cost)
    total, cuts, at = before[-1], [], 0
    for n in range(1, count):
        aim, slack = total * n / count, SLACK * total / count
        window = [k for k in range(at + 1, len(work)) if abs(before[k] - aim) <= slack and before[k] > before[at]]
        left = [k for k in range(at + 1, len(work)) if before[k] > before[at]]
        at = min(window or left, key=lambda k: (handed[k] if window else 0, abs(before[k] - aim)))
        cuts.append(at)
    return [sum(i >= cut for cut in cuts) for i in range(len(work))]


def _handed_on(graph: EinsumGraph) -> list[int]:
    """Return for each place before a node the bytes of what is made before it and read from there on."""
    last = list(range(len(graph.nodes)))
    for i, node in enumerate(graph.nodes):
        for a in node.args:
            last[a] = max(last[a], i)
    change = [0] * (len(graph.nodes) + 1)
    for i, node in enumerate(graph.nodes):
        if not isinstance(node.op, SOURCES) and last[i] > i:
            types = graph.inference.types[i]
            size = 1
            for d in dims(types[0]):
                size *= d
            own = (
                (1 << 62) if len(types) > 1 else size * ITEMSIZE[types[0].dtype or "float64"]
            )  # several are no message
            change[i + 1] += own
            change[last[i] + 1] -= own
    found, total = [], 0
    for each in change[:-1]:
        total += each
        found.append(total)
    return found


def cut_stages(graph: EinsumGraph, stage_of: Sequence[int], over: str = "stage") -> list[Stage]:
    """Return the graphs of the stages: what one makes and another reads is sent and received under the number of its node."""
    count = max(stage_of, default=0) + 1
    live = set(reachable(graph.nodes, (i for _, i in graph.outputs)))
    sends: dict[tuple[int, int], None] = {}  # value, the stage that reads it
    for i in sorted(live):
        for a in graph.nodes[i].args:
            if stage_of[a] != stage_of[i] and not isinstance(graph.nodes[a].op, SOURCES):
                sends[a, stage_of[i]] = None
    stages = []
    for n in range(count):
        nodes = list(graph.nodes)
        for a, to in sends:
            if to == n:
                t = graph.type_of(a)
                receive = ops.Receive(over, count, n, stage_of[a], f"%{a}", dims(t), str(t.dtype))
                nodes[a] = Node(receive, (), graph.nodes[a].locations)
        outputs = []
        for a, to in sends:
            if stage_of[a] == n:
                nodes.append(Node(ops.Send(over, count, n, to, f"%{a}"), (a,), graph.nodes[a].locations))
                outputs.append((f"%{a} to {to}", len(nodes) - 1))
        own = [
            (name, i)
            for name, i in graph.outputs
            if (n == count - 1 if isinstance(graph.nodes[i].op, SOURCES) else stage_of[i] == n)
        ]
        made = extract(nodes, [*own, *outputs], graph.constants)
        stages.append(Stage(made, tuple(name for name, _ in own)))
    return stages
