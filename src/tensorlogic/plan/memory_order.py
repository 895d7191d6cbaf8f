"""The order of a plan: the one that holds the least memory at once, where that is not the graph's own.

What is computed stays the same bit for bit; only when each node runs, and so how long its operands wait, changes.
"""

from __future__ import annotations

from collections.abc import Callable

from ..ir.graph import EinsumGraph
from ..passes.pipeline import optimize
from .build import ExecutionPlan
from .memory import peak_bytes
from .node_costs import known_costs, peak, reordered, working
from .schedule import frugal

MOST = 20_000  # nodes up to which an order is looked for; it takes about as long as laying out the plan
LEAST = 1 << 20  # bytes at once from which it is worth the time


def lighter(plan: ExecutionPlan, lay_out: Callable[[EinsumGraph], ExecutionPlan]) -> ExecutionPlan:
    """Return the plan, or the one that ``lay_out`` makes of the same graph in an order with a smaller peak.

    Both are laid out and compared, so that the answer is never worse; where the new order would take more steps, because
    less of it runs together, the old one stays.
    """
    before = peak_bytes(plan)
    if len(plan.graph.nodes) > MOST or before < LEAST:
        return plan
    graph = optimize(plan.graph, (frugal_order,)).graph  # the bodies of loops too
    if graph is plan.graph:
        return plan
    other = lay_out(graph)
    return other if peak_bytes(other) < before and len(other.steps) <= len(plan.steps) else plan


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
    if before < LEAST:
        return graph
    order = frugal(graph, costs, written)
    return reordered(graph, order) if peak(graph, costs, order) < before else graph
