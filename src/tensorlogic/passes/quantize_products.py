"""Which products and lookups of a graph can have quantized weights, and how each lies as a matrix product.

A product is an einsum in the real algebra of a value and a weight, which depends on no input. Its labels are those that only the
value has (rows), only the weight has (columns), and both have and the result has not (terms). Weights are kept as matrices
(columns, terms), so that what is added up lies together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import expect_known
from ..ir import ops, spec
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan
from ..ir.ops import add_constant
from ..ir.types import FLOATS, Array, TensorType


class Product(NamedTuple):
    """A value times a weight: the nodes, and the orders of axes that make it a matrix product."""

    node: int
    x: int
    w: int
    name: str  # of the weight
    x_order: tuple[int, ...]  # axes of the value: rows, then terms
    w_order: tuple[int, ...]  # axes of the weight: columns, then terms
    result_order: tuple[int, ...]  # from (rows, columns) to the axes of the result
    rows: int  # how many axes of the value are rows
    columns: tuple[int, ...]  # the sizes of the columns
    terms: int
    lookup: bool = False  # rows of the weight are taken by their numbers, as of an embedding: nothing is multiplied

    def value_matrix(self, x: Array) -> Array:
        """Return a value as a matrix (rows, terms)."""
        return np.transpose(x, self.x_order).reshape(-1, self.terms)

    def weight_matrix(self, w: Array) -> Array:
        """Return the weight as a matrix (columns, terms)."""
        return np.transpose(w, self.w_order).reshape(-1, self.terms)


def with_params(
    graph: EinsumGraph, params: Mapping[str, Any], types: Mapping[str, TensorType]
) -> tuple[EinsumGraph, dict[int, str]]:
    """Return the graph with some inputs as constants and the others of a known dtype, and the names of the constants by node.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", ("n", 2)) @ b.input("w", (2, 3)))
    >>> with_params(graph, {"w": np.ones((2, 3), "float32")}, {})[0].input_names
    ['x']
    """
    expect_known("the graph has no input", params, graph.inputs)
    nodes: list[Node] = []
    constants = dict(graph.constants)
    names: dict[int, str] = {}
    default = "float64" if any(np.asarray(value).dtype == np.float64 for value in params.values()) else "float32"
    for i, node in enumerate(graph.nodes):
        op = node.op
        if isinstance(op, ops.Input) and op.label in params:
            names[i] = op.label
            node = Node(add_constant(constants, params[op.label]), (), node.locations)
        elif isinstance(op, ops.Input) and op.dtype is None:
            known = types.get(op.label)
            node = Node(ops.Input(op.label, op.shape, (known and known.dtype) or default), (), node.locations)
        elif isinstance(op, ops.Constant):
            names[i] = f"const.{op.digest[:6]}"
        nodes.append(node)
    return EinsumGraph(nodes, graph.outputs, constants, graph.axis_names), names


def constant_nodes(graph: EinsumGraph) -> bytearray:
    """Return for each node whether it depends on no input."""
    fixed = bytearray(len(graph.nodes))
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Constant):
            fixed[i] = 1
        elif not isinstance(node.op, ops.Input | ops.Literal | Fixpoint | Scan | Cond | ops.Item):
            fixed[i] = bool(node.args) and all(
                fixed[a] or isinstance(graph.nodes[a].op, ops.Literal) for a in node.args
            )
    return fixed


def find_products(graph: EinsumGraph, names: Mapping[int, str], weights: bytearray) -> list[Product]:
    """Return the products of a value with a weight, and lookups of its rows, in order; ``weights`` marks the nodes that are weights."""
    found = []
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Gather) and weights[node.args[0]] and not weights[node.args[1]]:
            found += _lookup(graph, i, node.op, names)
        if isinstance(node.op, ops.Einsum) and node.op.algebra == "real" and len(node.args) == 2:
            for n in (0, 1):
                if weights[node.args[n]] and not weights[node.args[1 - n]]:
                    product = _product(graph, i, 1 - n, n, names)
                    found += [] if product is None else [product]
    return found


def _lookup(graph: EinsumGraph, i: int, op: ops.Gather, names: Mapping[int, str]) -> list[Product]:
    """Return a lookup of rows of a matrix of floats, if the node is one."""
    ids, table = graph.nodes[i].args[1], graph.nodes[i].args[0]
    kind = graph.type_of(table)
    if op.axis not in (0, -2) or op.batch or kind.dtype not in FLOATS or kind.shape is None or not kind.shape.is_static:
        return []
    sizes = tuple(int(d) for d in kind.shape)
    if len(sizes) != 2 or 0 in sizes:
        return []
    return [Product(i, ids, table, _name(graph, table, names), (), (0, 1), (), 0, sizes[:1], sizes[1], lookup=True)]


def _product(graph: EinsumGraph, i: int, value: int, weight: int, names: Mapping[int, str]) -> Product | None:
    node = graph.nodes[i]
    types = [graph.type_of(a) for a in node.args]
    if any(t.shape is None or t.dtype not in FLOATS for t in types) or not types[weight].shape.is_static:  # type: ignore[union-attr]
        return None
    assert isinstance(node.op, ops.Einsum)
    form = spec.expand(spec.parse(node.op.spec), tuple(len(t.shape or ()) for t in types))
    own, other = form.inputs[value], form.inputs[weight]
    rows = [x for x in own if x in form.output and x not in other]
    columns = [x for x in other if x in form.output and x not in own]
    terms = [x for x in own if x in other and x not in form.output]
    plain = len({*own}) == len(own) == len(rows) + len(terms) and len({*other}) == len(other) == len(columns) + len(
        terms
    )
    sizes = dict(zip(other, (int(d) for d in types[weight].shape or ()), strict=True)) if plain else {}
    met = dict(zip(own, types[value].shape or (), strict=True)) if plain else {}
    if not plain or not columns or not terms or any(sizes[t] != met[t] for t in terms) or 0 in sizes.values():
        return None
    order = [*rows, *columns]
    return Product(
        i,
        node.args[value],
        node.args[weight],
        _name(graph, node.args[weight], names),
        tuple(own.index(x) for x in [*rows, *terms]),
        tuple(other.index(x) for x in [*columns, *terms]),
        tuple(order.index(x) for x in form.output),
        len(rows),
        tuple(sizes[x] for x in columns),
        math.prod(sizes[x] for x in terms),
    )


def _name(graph: EinsumGraph, i: int, names: Mapping[int, str]) -> str:
    """Return the name of the first constant that a weight is made of."""
    while i not in names and graph.nodes[i].args:
        i = graph.nodes[i].args[0]
    return names.get(i, f"%{i}")
