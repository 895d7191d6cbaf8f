"""The order of a plan: the one that holds the least memory at once, where that is not the graph's own.

What is computed stays the same bit for bit; only when each node runs, and so how long its operands wait, changes.
"""

from __future__ import annotations

from ..ir.graph import EinsumGraph
from . import memory
from .node_costs import known_costs, peak, reordered, working
from .schedule import frugal


def frugal_order(graph: EinsumGraph) -> EinsumGraph:
    """Return a graph whose sizes are known in an order that keeps less alive; itself where none is found.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (512, 512), "float32")
    >>> large = [b.exp(x), b.sin(x), b.cos(x)]  # all three are there before the first is summed
    >>> graph = b.build({f"y{n}": b.sum(each) for n, each in enumerate(large)})
    >>> [node.op.name for node in graph.nodes]
    ['input', 'exp', 'sin', 'cos', 'sum', 'sum', 'sum']
    >>> [node.op.name for node in frugal_order(graph).nodes]
    ['input', 'exp', 'sum', 'sin', 'sum', 'cos', 'sum']
    """
    written = working(graph)
    costs = known_costs(graph)
    before = peak(graph, costs, written)
    if before < memory.LEAST:
        return graph
    order = frugal(graph, costs, written)
    return reordered(graph, order) if peak(graph, costs, order) < before else graph
