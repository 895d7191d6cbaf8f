"""Constant folding: what depends on constants alone is computed once, when the graph is prepared."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import CancelledError, GraphError, TensorLogicError
from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, constant_op, extract, frozen_copy
from ..ir.types import ITEMSIZE, TensorShape, TensorType
from .order import BLAS, einsum_cost
from .rewrite import drop_dead

Evaluate = Callable[[EinsumGraph], Sequence[Any]]
LARGEST = 64 << 20  # bytes; a larger result is not worth keeping
GROWTH = 4  # a result this many times larger than what it is made of is made anew in each run
SMALL = 1 << 16  # bytes that are kept in any case
DEAREST = BLAS << 31  # what one contraction may cost: about a second


def fold_constants(graph: EinsumGraph, evaluate: Evaluate) -> EinsumGraph:
    """Replace what needs no input by its value; ``evaluate`` runs a graph without inputs.

    >>> import numpy as np
    >>> from tensorlogic import Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> w = b.constant(np.eye(2)) * 3.0
    >>> folded = fold_constants(b.build(y=b.input("x", (2, 2)) @ w), Executor().execute)
    >>> [node.op.name for node in folded.nodes]
    ['constant', 'input', 'einsum']
    """
    types = graph.inference.types
    fixed = bytearray(len(graph.nodes))
    for i, node in enumerate(graph.nodes):
        match node.op:
            case ops.Constant() | ops.Literal():
                fixed[i] = 1
            case (
                ops.Input()
                | ops.Collective()
                | Fixpoint()
                | Scan()
                | Cond()
                | ops.Item()
                | ops.Unpack()
                | ops.Dequantize()
            ):
                continue  # what was made small to be kept stays small
            case ops.Cast("int32") if types[node.args[0]][0].dtype in ("int8", "uint8"):
                continue
            case _:
                t = types[i][0]
                known = t.shape is not None and t.shape.is_static and t.dtype not in (None, "bfloat16") and not t.weak
                if known and (node.args or isinstance(node.op, ops.Iota)) and all(fixed[a] for a in node.args):
                    fixed[i] = _bytes(graph, i) <= LARGEST and _cost(graph, i) <= DEAREST
    wanted = set()
    kept = [i for _, i in graph.outputs]
    for i, node in enumerate(graph.nodes):
        if not fixed[i]:
            kept += node.args
    for i in kept:
        while graph.nodes[i].op.is_view and fixed[i]:  # costs nothing, and how it lies in memory decides how sums round
            i = graph.nodes[i].args[0]
        if fixed[i] and not isinstance(graph.nodes[i].op, ops.Constant | ops.Literal) and _worth(graph, i):
            wanted.add(i)
    if not wanted:
        return graph
    chosen = sorted(wanted)
    try:
        values = evaluate(extract(graph.nodes, [(str(i), i) for i in chosen], graph.constants))
    except CancelledError:
        raise
    except TensorLogicError:
        return graph  # what cannot be computed says so if it ever runs; a branch that is not taken does not
    arrays = {i: frozen_copy(v) for i, v in zip(chosen, values, strict=True)}
    constants = dict(graph.constants)
    nodes = []
    for i, node in enumerate(graph.nodes):
        if i in arrays:
            op = constant_op(arrays[i])
            if TensorType(TensorShape(op.shape), op.dtype) != types[i][0]:
                found = f"{op.dtype}{list(op.shape)}"
                raise GraphError(f"%{i} should be {types[i][0]}, but was computed as {found}", code="E108")
            constants[op.digest] = arrays[i]
            nodes.append(Node(op, (), node.locations))
        else:
            nodes.append(node)
    result = EinsumGraph(nodes, graph.outputs, constants)
    result.inference = graph.inference
    return drop_dead(result)


def _bytes(graph: EinsumGraph, i: int) -> int:
    t = graph.type_of(i)
    return math.prod(int(d) for d in t.shape or ()) * ITEMSIZE[t.dtype or "float64"]


def _cost(graph: EinsumGraph, i: int) -> int:
    """Return what a contraction costs; all else takes about as long as its operands are large, and so is no concern."""
    node = graph.nodes[i]
    if not isinstance(node.op, ops.Einsum | ops.ContractVJP):
        return 0
    factors = node.args if isinstance(node.op, ops.Einsum) else node.args[:-2]
    return einsum_cost(node.op.spec, node.op.algebra, [graph.type_of(a) for a in factors], graph.type_of(i))


def _worth(graph: EinsumGraph, i: int) -> bool:
    """A large array made of little, such as a broadcast or an iota, is cheaper to make than to keep."""
    size = _bytes(graph, i)
    if size <= SMALL:
        return True
    seen, pending, made_of = set(), [i], 0
    while pending:
        for a in graph.nodes[pending.pop()].args:
            if a not in seen:
                seen.add(a)
                pending.append(a)
                if isinstance(graph.nodes[a].op, ops.Constant):
                    made_of += _bytes(graph, a)
    return size <= GROWTH * made_of
