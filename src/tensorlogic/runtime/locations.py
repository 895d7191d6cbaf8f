"""Where an error stands in the graph that a caller gave, when the program that ran was made for an equal one."""

from __future__ import annotations

from collections.abc import Iterator

from ..diagnostics import caller
from ..errors import TensorLogicError
from ..ir.graph import EinsumGraph, Node, bodies


def point_at(graph: EinsumGraph, error: TensorLogicError, made_for: EinsumGraph) -> None:
    """Point an error at the lines of a graph, where it points at those of an equal graph that the program was made for.

    Equal graphs share a program, which keeps the lines of the first. Where several lines are possible, the error points at none of them,
    but at the call.
    """
    where = error.diagnostic.location
    if made_for is graph or error.guessed or where is None:
        return
    pairs = list(zip(_nodes(made_for), _nodes(graph), strict=True))
    if found := {own.location for theirs, own in pairs if where in theirs.locations}:
        own_line = found.pop() if len(found) == 1 else None
        error.guessed = own_line is None
        error.diagnostic = error.diagnostic.with_location(own_line or caller())


def _nodes(graph: EinsumGraph) -> Iterator[Node]:
    """Go through the nodes of a graph and of the bodies in it, in the same order for equal graphs."""
    for node in graph.nodes:
        yield node
        for body in bodies(node.op):
            yield from _nodes(body)
