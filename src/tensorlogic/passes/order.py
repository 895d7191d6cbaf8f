"""Contraction order: an einsum of many operands becomes a chain of pairs, in the order opt_einsum finds best."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..ir import ops, spec
from ..ir.algebra import algebra
from ..ir.graph import EinsumGraph, Node
from ..ir.rules import Scope, label_sizes
from ..ir.types import TensorType

EXHAUSTIVE = 6  # operands up to which every order is tried: two milliseconds
DYNAMIC = 12  # operands up to which dynamic programming takes some milliseconds


def order_contractions(graph: EinsumGraph) -> EinsumGraph:
    """Split einsums of three or more operands where the algebra allows it; sizes must be known.

    Every pair is computed in the dtype of the whole (float16 in float32), so that splitting does not change how the
    result is rounded or whether it overflows.
    """
    if not any(isinstance(n.op, ops.Einsum) and len(n.args) > 2 for n in graph.nodes):
        return graph
    nodes: list[Node] = []
    new: list[int] = []
    for i, node in enumerate(graph.nodes):
        args = tuple(new[a] for a in node.args)
        if isinstance(node.op, ops.Einsum) and len(args) > 2 and algebra(node.op.algebra).distributive:
            types = [graph.type_of(a) for a in node.args]
            new.append(_split(nodes, node, node.op, args, types, graph.type_of(i)))
        else:
            nodes.append(Node(node.op, args, node.locations))
            new.append(len(nodes) - 1)
    return EinsumGraph(nodes, ((name, new[i]) for name, i in graph.outputs), graph.constants)


def best_path(inputs: Sequence[spec.Labels], output: spec.Labels, sizes: Mapping[str, int]) -> list[tuple[int, ...]]:
    """Return the pairs to contract, in order: the best there is for few operands, the best of two searches for more.

    >>> best_path([("i", "j"), ("j", "k"), ("k",)], ("i",), {"i": 9, "j": 9, "k": 9})
    [(1, 2), (0, 1)]
    """
    from opt_einsum.paths import DynamicProgramming, auto, optimal  # a quarter of a second, only where it is needed

    given = [frozenset(labels) for labels in inputs], frozenset(output), dict(sizes)
    found = [(optimal if len(inputs) <= EXHAUSTIVE else auto)(*given)]
    if len(inputs) <= DYNAMIC:  # where operands share indices three ways, either may miss what the other finds
        found.append(DynamicProgramming("flops", search_outer=True)(*given))
    return [tuple(sorted(pair)) for pair in min(found, key=lambda path: _flops(path, *given))]


def _flops(
    path: Sequence[Sequence[int]], inputs: list[frozenset[str]], output: frozenset[str], sizes: Mapping[str, int]
) -> int:
    """Return the arithmetic of a path: an addition too where an index is summed."""
    pending, total = list(inputs), 0
    for pair in path:
        chosen = [pending.pop(n) for n in sorted(pair, reverse=True)]
        union = frozenset().union(*chosen)
        left = union & output.union(*pending)
        total += math.prod(sizes[x] for x in union) * (max(1, len(chosen) - 1) + (left != union))
        pending.append(left)
    return total


def _split(
    nodes: list[Node], node: Node, op: ops.Einsum, args: tuple[int, ...], types: list[TensorType], whole: TensorType
) -> int:
    shapes = [t.shape or () for t in types]
    form = spec.expand(spec.parse(op.spec), tuple(len(s) for s in shapes))
    sizes = label_sizes(form, shapes, Scope(0, str, args, []))
    if any(sizes[x] == 0 for x in form.contracted):
        return _add(nodes, node, op, *args)  # the reduction of nothing is one value, not a product of several
    path = best_path(form.inputs, form.output, {x: int(n) for x, n in sizes.items()})
    working = "float32" if whole.dtype == "float16" else whole.dtype
    pending = [
        (
            labels,
            arg if op.algebra == "boolean" or t.dtype == working else _add(nodes, node, ops.Cast(str(working)), arg),
        )
        for labels, arg, t in zip(form.inputs, args, types, strict=True)
    ]
    for pair in path:
        chosen = [pending.pop(n) for n in sorted(pair, reverse=True)][::-1]
        if pending:
            needed = set(form.output).union(*(labels for labels, _ in pending))
            output = tuple(dict.fromkeys(x for labels, _ in chosen for x in labels if x in needed))
        else:
            output = form.output
        step = ops.Einsum(_letters([labels for labels, _ in chosen], output), op.algebra)
        pending.append((output, _add(nodes, node, step, *(arg for _, arg in chosen))))
    result = pending[0][1]
    return (
        result
        if working == whole.dtype or op.algebra == "boolean"
        else _add(nodes, node, ops.Cast(str(whole.dtype)), result)
    )


def _add(nodes: list[Node], origin: Node, op: ops.Op, *args: int) -> int:
    nodes.append(Node(op, args, origin.locations))
    return len(nodes) - 1


def _letters(inputs: list[spec.Labels], output: spec.Labels) -> str:
    """Return a spec of single letters; labels that stood for ``...`` get letters of their own."""
    used = {x for labels in inputs for x in labels if len(x) == 1}
    spare = (c for c in map(spec.symbol, range(10**6)) if c not in used)
    name: dict[str, str] = {}
    for labels in inputs:
        for x in labels:
            if x not in name:
                name[x] = x if len(x) == 1 else next(spare)
    return ",".join("".join(name[x] for x in labels) for labels in inputs) + "->" + "".join(name[x] for x in output)
