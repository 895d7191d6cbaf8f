"""What nobody needs, and what is there twice."""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import EinsumGraph, Node, reachable
from ..ir.infer import Inference
from .rewrite import rewrite


def drop_dead(graph: EinsumGraph) -> EinsumGraph:
    """Drop nodes that no output needs; inputs stay.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder(intern=False)
    >>> x = b.input("x", (3,))
    >>> unused = b.exp(x)
    >>> len(drop_dead(b.build(y=b.sin(x))))
    2
    """
    inputs = [i for i, node in enumerate(graph.nodes) if isinstance(node.op, ops.Input)]
    live = reachable(graph.nodes, [*inputs, *(i for _, i in graph.outputs)])
    if len(live) == len(graph.nodes):
        return graph
    place = {old: new for new, old in enumerate(live)}
    nodes = [Node(n.op, tuple([place[a] for a in n.args]), n.locations) for n in map(graph.nodes.__getitem__, live)]
    result = EinsumGraph(nodes, [(name, place[i]) for name, i in graph.outputs], graph.constants)
    if "inference" in graph.__dict__:  # known already: working types out again would cost more than all the rest
        types, equalities = graph.inference
        relied = tuple([e._replace(node=place[e.node]) for e in equalities if e.node in place])
        result.inference = Inference(tuple([types[i] for i in live]), relied)
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
