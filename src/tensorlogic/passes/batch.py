"""Batching: a graph for one item becomes the graph for many, by one more leading axis (what ``jax.vmap`` is)."""

from __future__ import annotations

from collections.abc import Sequence

from ..diagnostics import value_text
from ..errors import GraphError, expect, expect_whole, nearest
from ..ir.check import expect_graph, require_valid
from ..ir.graph import EinsumGraph
from ..ir.sizes import Dim, dim
from .batch_bodies import add_graph, input_of
from .batch_rules import Batcher
from .grad_tape import Tape, unused


def batched(graph: EinsumGraph, over: str | Sequence[str], size: Dim = "batch") -> EinsumGraph:
    """Return the graph that does for many items what ``graph`` does for one; the items are the leading axis.

    Each input named in ``over`` has the items as one more axis in front, and so has every output. The other inputs are shared by
    all items, and what depends on them alone is computed once. ``size`` is a number, or the name of the new size; a name that
    the graph has already gets an underscore.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, w = b.input("x", (3,), "float32"), b.input("w", (3, 2), "float32")
    >>> print(batched(b.build(y=b.relu(x @ w)), over=["x"]))
    graph {
      x: float32[batch, 3] = input()
      w: float32[3, 2] = input()
      %2: float32[batch, 2] = einsum(x, w, spec="aj,jk->ak")
      %3: float32[batch, 2] = relu(%2)
      return y=%3
    }
    """
    expect_graph(graph)
    require_valid(graph)
    expect(over, (str, Sequence, set, frozenset), "over= names inputs", *nearest("", graph.inputs))
    names = [over] if isinstance(over, str) else list(over)
    if not names:
        raise GraphError("over= names no input, so there is nothing to batch", *nearest("", graph.inputs), code="E510")
    for name in names:
        if not isinstance(name, str) or name not in graph.inputs:
            raise GraphError(
                f"the graph has no input {value_text(name)} to batch", *nearest(name, graph.inputs), code="E302"
            )
    if isinstance(size, str):
        size = dim(unused(size, graph.size_names))
    else:
        expect_whole("size", size)
    types = graph.inference.types
    b = Batcher(Tape(EinsumGraph([], [])), size)
    inputs = []
    for name, i in graph.inputs.items():
        b.tape.draft.origin = graph.nodes[i]
        inputs.append(input_of(b, name, types[i][0], name in names))
    outputs = add_graph(b, graph, inputs, types)
    found = []
    for (name, i), x in zip(graph.outputs, outputs, strict=True):
        b.tape.draft.origin = graph.nodes[i]
        found.append((name, b.lead(x)))
    return b.tape.finish(found).with_scores(graph.scores)
