"""What the numpy backend wants done to a graph.

An einsum of many operands becomes a chain of pairs, in the order that costs least (:mod:`tensorlogic.passes.contraction_paths`). Windows that a
reshape would copy are copied by a step of their own, which has a buffer. bfloat16, which NumPy only holds, is kept in two bytes and computed in
float32: every operation rounds its result once.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from ..ir import ops, spec
from ..ir.algebra import ALGEBRAS
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, bodies, with_bodies
from ..ir.ops import Op
from ..ir.type_rules import label_sizes
from ..ir.types import Scope, TensorType
from .rewrite import Draft, Rules, only_with, rewrite


@only_with(ops.Einsum, operands=3)
def order_contractions(graph: EinsumGraph) -> EinsumGraph:
    """Split einsums of three or more operands where the algebra allows it; sizes must be known.

    Every pair is computed in the dtype of the whole (float16 in float32), so that splitting does not change how the
    result is rounded or whether it overflows.
    """
    nodes: list[Node] = []
    new: list[int] = []
    for i, node in enumerate(graph.nodes):
        args = tuple(new[a] for a in node.args)
        if isinstance(node.op, ops.Einsum) and len(args) > 2 and ALGEBRAS[node.op.algebra].distributive:
            types = [graph.type_of(a) for a in node.args]
            new.append(_split(nodes, node, node.op, args, types, graph.type_of(i)))
        else:
            nodes.append(Node(node.op, args, node.locations))
            new.append(len(nodes) - 1)
    return EinsumGraph(nodes, ((name, new[i]) for name, i in graph.outputs), graph.constants)


def _split(
    nodes: list[Node], node: Node, op: ops.Einsum, args: tuple[int, ...], types: list[TensorType], whole: TensorType
) -> int:
    shapes = [t.shape or () for t in types]
    form = spec.expand(spec.parse(op.spec), tuple(len(s) for s in shapes))
    sizes = label_sizes(form, shapes, Scope(0, str, args, []))
    if any(sizes[x] == 0 for x in form.contracted):
        return _add(nodes, node, op, *args)  # the reduction of nothing is one value, not a product of several
    working = "float32" if whole.dtype == "float16" else whole.dtype
    from .contraction_paths import best_path

    path = best_path(form.inputs, form.output, {x: int(n) for x, n in sizes.items()}, op.algebra, str(working))
    exact = op.algebra == "boolean"
    given = [
        a if exact or t.dtype == working else _add(nodes, node, ops.Cast(str(working)), a)
        for a, t in zip(args, types, strict=True)
    ]
    pending = list(zip(form.inputs, given, strict=True))
    for pair in path:
        chosen = [pending.pop(n) for n in sorted(pair, reverse=True)][::-1]
        if pending:
            needed = set(form.output).union(*(labels for labels, _ in pending))
            output = tuple(dict.fromkeys(x for labels, _ in chosen for x in labels if x in needed))
        else:
            output = form.output
        step = ops.Einsum(str(spec.lettered(spec.Spec(tuple(labels for labels, _ in chosen), output))), op.algebra)
        pending.append((output, _add(nodes, node, step, *(arg for _, arg in chosen))))
    result = pending[0][1]
    return result if exact or working == whole.dtype else _add(nodes, node, ops.Cast(str(whole.dtype)), result)


def _add(nodes: list[Node], origin: Node, op: ops.Op, *args: int) -> int:
    nodes.append(Node(op, args, origin.locations))
    return len(nodes) - 1


BRAIN = "bfloat16"
SUMS = (ops.Einsum, ops.ContractVJP, ops.Reduce, ops.Cumulate, ops.ScatterAdd, ops.OverlapAdd)
COMPUTING = (ops.Elementwise, *SUMS, ops.Quantize, ops.Sort)


@cache
def has_bfloat16() -> bool:
    """Tell whether NumPy can hold bfloat16 here: the package ml_dtypes, which comes with JAX, teaches it."""
    from importlib.util import find_spec

    return find_spec("ml_dtypes") is not None


@only_with(dtype=BRAIN)
def compute_in_float32(graph: EinsumGraph) -> EinsumGraph:
    """Let every operation on bfloat16 compute in float32 and round its result; what only moves elements stays as it is.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (3,), "bfloat16")
    >>> [node.op.name for node in compute_in_float32(b.build(y=b.exp(x))).nodes]
    ['input', 'cast', 'exp', 'cast']
    """
    if not has_bfloat16():
        return graph  # the backend says that it has no such dtype
    import ml_dtypes  # noqa: F401 - NumPy knows the dtype by name from here on

    return rewrite(graph, RULES)


def _computed(draft: Draft, op: Op, args: tuple[int, ...]) -> int | None:
    wide = tuple([draft.add(ops.Cast("float32"), (a,)) if draft.type(a).dtype == BRAIN else a for a in args])
    if wide == args:
        return None
    result = draft.add(op, wide)
    return draft.add(ops.Cast(BRAIN), (result,)) if draft.results(op, args)[0].dtype == BRAIN else result


def _looped(draft: Draft, op: Any, args: tuple[int, ...]) -> int | None:
    inner = [compute_in_float32(body) for body in bodies(op)]
    if all(new is old for new, old in zip(inner, bodies(op), strict=True)):
        return None
    return draft.add(with_bodies(op, inner), args)


RULES: Rules = {kind: [_computed] for kind in COMPUTING} | {kind: [_looped] for kind in (Fixpoint, Scan, Cond)}


@only_with(ops.Window)
def copy_windows(graph: EinsumGraph) -> EinsumGraph:
    """Put a copy between windows that overlap and the reshape that makes a matrix of them.

    A reshape is a view where it can be, so it has no buffer, and what it copies would be new memory in every run.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (8,), "float32")
    >>> [node.op.name for node in copy_windows(b.build(y=b.reshape(b.window(x, 0, 3), (18,)))).nodes]
    ['input', 'window', 'cast', 'reshape']
    """
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
