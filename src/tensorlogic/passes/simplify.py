"""Small identities that need dtypes: what changes neither value nor dtype is dropped."""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import EinsumGraph, Node


def drop_identities(graph: EinsumGraph) -> EinsumGraph:
    """Drop x * 1 and casts that keep both value and dtype; types must be known."""
    new: list[int] = []
    nodes: list[Node] = []
    changed = False
    for i, node in enumerate(graph.nodes):
        same = _same_as(graph, i, node)
        if same is not None:
            new.append(new[same])
            changed = True
            continue
        new.append(len(nodes))
        nodes.append(Node(node.op, tuple(new[a] for a in node.args), node.locations))
    if not changed:
        return graph
    return EinsumGraph(nodes, ((name, new[i]) for name, i in graph.outputs), graph.constants)


def _same_as(graph: EinsumGraph, i: int, node: Node) -> int | None:
    match node.op:
        case ops.Elementwise(fn="multiply"):
            for x, one in (node.args, node.args[::-1]):
                unit = graph.nodes[one].op
                if isinstance(unit, ops.Literal) and unit.value == 1 and graph.type_of(x) == graph.type_of(i):
                    return x
        case ops.Cast() if graph.type_of(node.args[0]) == graph.type_of(i):
            return node.args[0]
    return None
