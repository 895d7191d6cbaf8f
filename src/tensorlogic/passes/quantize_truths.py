"""Fuzzy truth values in 8 bits: joins read and write bytes, where q stands for q / 255.

Rounding moves a truth value by at most 1/510. A max-min join of rounded values is the rounded join of exact ones, so the error does
not grow however many joins follow each other. A max-product join of two factors that are e and f away is at most e + f + ef + 1/510 away.
"""

from __future__ import annotations

import numpy as np

from ..errors import InputError, expect
from ..ir import ops
from ..ir.graph import EinsumGraph
from ..ir.ops import add_constant
from .quantize_products import with_params
from .quantize_rules import cancel
from .rewrite import Draft, rewrite

FUZZY = frozenset({"max_min", "max_product"})
STEP = np.float32(1 / 255)


def quantize_truths(graph: EinsumGraph) -> EinsumGraph:
    """Return a graph whose max-min and max-product joins are of truth values in 8 bits; what they join lies between 0 and 1.

    Inputs of no declared dtype become float32; values beyond 0 and 1 count as 0 and 1. The error of a result is at most 1/510 through any number of max-min joins, and
    3/510 + 1/510² after one max-product join. Joins inside of recursions stay as they are.

    >>> from tensorlogic import Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> p = b.input("p", (2, 2), "float32")
    >>> graph = b.build(y=b.einsum("xy,yz->xz", p, p, algebra="max_min"))
    >>> Executor().execute(quantize_truths(graph), {"p": [[0.5, 1.0], [0.25, 0.1]]})["y"]
    array([[0.49803925, 0.49803925],
           [0.2509804 , 0.2509804 ]], dtype=float32)
    """
    expect(graph, EinsumGraph, "quantize_truths takes an EinsumGraph", "build one: b.build(y=y)")
    typed = with_params(graph, {}, {})[0]
    found = rewrite(typed, {ops.Einsum: (_join,)})
    if found is typed or not any(_is_join(node.op) for node in graph.nodes):
        hint = 'compile rules with strategy="fuzzy_godel" or "fuzzy_product", for inputs of float32'
        raise InputError("the graph has no max-min or max-product join of float32", hint, code="E346")
    return rewrite(found, {ops.Quantize: (cancel,)}).with_axis_names(graph.axis_names)


def _is_join(op: ops.Op) -> bool:
    return isinstance(op, ops.Einsum) and op.algebra in FUZZY


def _join(draft: Draft, op: ops.Einsum, args: tuple[int, ...]) -> int | None:
    if not _is_join(op) or any(draft.type(a).dtype != "float32" or draft.type(a).weak for a in args):
        return None
    scale, zero = draft.make(add_constant(draft.constants, STEP), ()), draft.make(ops.Literal.of(0), ())

    def rounded(i: int) -> int:
        numbers = draft.make(ops.Quantize("uint8"), (i, scale, zero))
        return draft.make(ops.Dequantize(), (numbers, scale, zero))

    return rounded(draft.add(op, tuple(rounded(a) for a in args)))
