"""What nobody needs, and what is there twice."""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import EinsumGraph, Node, reachable, renumbered
from .rewrite import inputs_of, rewrite


def drop_dead(graph: EinsumGraph, *, differentiable: bool = True) -> EinsumGraph:
    """Drop nodes that no output needs; inputs stay. A graph that need not be differentiable loses its stops of gradients too.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (3,))
    >>> unused = b.exp(x)
    >>> graph = b.build(y=b.stop_gradient(b.sin(x)))
    >>> len(drop_dead(graph)), len(drop_dead(graph, differentiable=False))
    (3, 2)
    """
    if not differentiable:
        graph = _without_stops(graph)
    live = reachable(graph.nodes, [*inputs_of(graph.nodes), *(i for _, i in graph.outputs)])
    if len(live) == len(graph.nodes):
        return graph
    return renumbered(graph.nodes, live, graph.outputs, graph.constants, graph.__dict__.get("inference"))


def _without_stops(graph: EinsumGraph) -> EinsumGraph:
    """Let readers of a stop of gradients read its operand instead; a number is made a tensor by it, so there it stays."""
    stops = [isinstance(node.op, ops.StopGradient) and not graph.type_of(node.args[0]).weak for node in graph.nodes]
    if not any(stops):
        return graph
    source: list[int] = []  # for each node the one that its value comes from
    for i, node in enumerate(graph.nodes):
        source.append(source[node.args[0]] if stops[i] else i)
    nodes = [Node(node.op, tuple([source[a] for a in node.args]), node.locations) for node in graph.nodes]
    result = EinsumGraph(nodes, [(name, source[i]) for name, i in graph.outputs], graph.constants)
    result.inference = graph.inference
    return result


def merge_equal(graph: EinsumGraph) -> EinsumGraph:
    """Compute once what is written twice.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (3,))
    >>> len(merge_equal(b.build(y=b.exp(x) + b.exp(x))))
    3
    """
    return rewrite(graph, {})
