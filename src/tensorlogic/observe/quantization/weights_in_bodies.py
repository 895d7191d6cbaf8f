"""Weights inside of loops and conditions: what a body reads without change becomes its constant, and is kept packed there.

Activations inside of a body are rounded in each round or not at all: nobody watches them on calibration data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ...ir import ops
from ...ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, bodies, body_fields
from ...ir.ops import Op
from ...ir.types import Array
from ...passes.quantize import Choice, lowered, with_pairs
from ...passes.quantize_products import Product, constant_nodes, find_products, with_params

if TYPE_CHECKING:
    from ...ir.quantized import QuantizedTensor

Chooser = Callable[[EinsumGraph, list[Product]], Mapping[int, tuple[Array, Choice]]]


class InnerWeight(NamedTuple):
    """A weight that a body reads: its matrix (columns, terms), and what it became; None where it stays as it is."""

    name: str
    matrix: Array | None
    tensor: QuantizedTensor | None


def quantize_bodies(
    graph: EinsumGraph, names: Mapping[int, str], choose: Chooser
) -> tuple[EinsumGraph, list[InnerWeight]]:
    """Return the graph, node for node, with the products inside of its bodies quantized as chosen, and their weights."""
    nodes, found = list(graph.nodes), []
    for i, node in enumerate(graph.nodes):
        if not bodies(node.op):
            continue
        skipped = 1 if isinstance(node.op, Cond) else 0  # the truth value is no input of a body
        held = {  # of the operands that every round reads alike, those that are constants
            k: graph.constants[op.digest]
            for k, a in enumerate(node.args)
            if k >= _first_capture(node.op) and isinstance(op := graph.nodes[a].op, ops.Constant)
        }
        new, inner = {}, []
        for field in body_fields(type(node.op)):
            body: EinsumGraph = getattr(node.op, field)
            labels = dict(enumerate(body.input_names, skipped))
            types = {label: graph.type_of(node.args[k]) for k, label in labels.items()}
            inside, own = with_params(body, {labels[k]: array for k, array in held.items()}, types)
            called = {labels[k]: names.get(node.args[k], labels[k]) for k in held}
            own = {n: called.get(name, name) for n, name in own.items()}
            inside, deeper = quantize_bodies(inside, own, choose)
            products = find_products(inside, own, constant_nodes(inside))
            chosen = choose(inside, products)
            inner += deeper
            pairs = {}
            for p in products:
                matrix, choice = chosen.get(p.node, (None, None))
                inner.append(InnerWeight(p.name, matrix, None if choice is None else choice.tensor))
                if choice is not None:
                    pairs[p.node] = p, choice
            new[field] = lowered(with_pairs(inside, pairs))
        found += inner
        if any(weight.tensor is not None for weight in inner):
            args = tuple(a for k, a in enumerate(node.args) if k not in held)
            nodes[i] = Node(msgspec.structs.replace(node.op, **new), args, node.locations)
    return EinsumGraph(nodes, graph.outputs, graph.constants, graph.axis_names) if found else graph, found


def _first_capture(op: Op) -> int:
    """Return where the operands that every round reads alike begin."""
    if isinstance(op, Scan):
        return op.carries + op.scanned
    return op.carries if isinstance(op, Fixpoint) else 1
