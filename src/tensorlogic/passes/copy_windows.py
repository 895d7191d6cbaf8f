"""Windows that a reshape must copy are copied by a step of their own, which has a buffer, before they are reshaped."""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import EinsumGraph
from .rewrite import Draft, rewrite


def copy_windows(graph: EinsumGraph) -> EinsumGraph:
    """Put a copy between windows that overlap and the reshape that makes a matrix of them.

    A reshape is a view where it can be, so it has no buffer, and what it copies would be new memory in every run.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (8,), "float32")
    >>> [node.op.name for node in copy_windows(b.build(y=b.reshape(b.window(x, 0, 3), (18,)))).nodes]
    ['input', 'window', 'cast', 'reshape']
    """
    if not any(isinstance(node.op, ops.Window) for node in graph.nodes):
        return graph
    return rewrite(graph, {ops.Reshape: [_copied]})


def _copied(draft: Draft, op: ops.Reshape, args: tuple[int, ...]) -> int | None:
    own = draft.type(args[0])
    if own.dtype is None or not _overlaps(draft, args[0]) or len(op.shape) >= len(own.shape or ()):
        return None
    return draft.add(op, (draft.add(ops.Cast(own.dtype), args),))


def _overlaps(draft: Draft, i: int) -> bool:
    """Tell whether a node is windows that share elements, seen from any side."""
    while isinstance(op := draft.op(i), ops.Transpose | ops.Window):
        if isinstance(op, ops.Window) and isinstance(op.size, int) and op.step <= (op.size - 1) * op.dilation:
            return True
        (i,) = draft.args(i)
    return False
