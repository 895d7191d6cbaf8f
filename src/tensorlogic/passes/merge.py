"""Rewrites that change the order of arithmetic: answers agree to rounding, not bit for bit.

Einsums flow into the einsums that read them, so that the contraction order is chosen over all of their operands; sums of an
einsum become part of it; sibling products of one operand with constants become one product.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..ir import ops, spec
from ..ir.algebra import algebra
from ..ir.graph import EinsumGraph, Node
from ..ir.ops import Op
from ..ir.rules import reduced_axes
from ..ir.spec import Labels, Spec
from ..ir.types import TensorType
from .order import EXHAUSTIVE
from .rewrite import Draft, Rules, rewrite

OPERANDS = EXHAUSTIVE  # up to here every contraction order is tried, so that merging never makes it worse
FULL = frozenset(
    {"float32", "float64", "bool"}
)  # partial results in these dtypes round, or saturate, as the whole does
REDUCTION = {"sum": "sum", "any": "any", "max": "max", "min": "min"}  # Reduce.kind: Algebra.reduce


def merge_einsums(graph: EinsumGraph) -> EinsumGraph:
    """Merge einsums into the einsums and sums that are their only readers, where the algebra distributes.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> a, c, d = (b.input(n, (4, 4), "float32") for n in "acd")
    >>> merged = merge_einsums(b.build(y=b.sum((a @ c) @ d, axis=0)))
    >>> [n.op.spec for n in merged.nodes if n.op.name == "einsum"]
    ['ab,bc,cd->d']
    """
    return rewrite(graph, RULES)


def _plain(op: Op, types: Iterable[TensorType]) -> Spec | None:
    """Return the labels of an einsum whose algebra distributes, those that stand for ``...`` named; None of others."""
    if not isinstance(op, ops.Einsum) or not algebra(op.algebra).distributive:
        return None
    form = spec.parse(op.spec)
    if spec.ELLIPSIS not in form.output and not any(spec.ELLIPSIS in labels for labels in form.inputs):
        return form
    shapes = [t.shape for t in types]
    if any(shape is None for shape in shapes):
        return None
    return spec.expand(form, tuple(len(shape or ()) for shape in shapes))


def _of(draft: Draft, i: int) -> Spec | None:
    return _plain(draft.op(i), (draft.type(a) for a in draft.args(i))) if isinstance(draft.op(i), ops.Einsum) else None


def _sums_alone(form: Spec) -> bool:
    """Tell whether an operand is summed by itself before it meets others, which the search for an order cannot say."""
    return any(sum(x in labels for labels in form.inputs) == 1 for x in form.contracted)


def _fresh(used: Iterable[str], count: int) -> list[str]:
    taken, n = set(used), 0
    found: list[str] = []
    while len(found) < count:
        letter = spec.symbol(n)
        if letter not in taken:
            found.append(letter)
        n += 1
    return found


def _renamed(form: Spec) -> Spec:
    """Name the labels a, b, c ... in order, so that equal einsums are equal text."""
    every = dict.fromkeys(x for labels in (*form.inputs, form.output) for x in labels)
    name = {x: spec.symbol(n) for n, x in enumerate(every)}
    return Spec(tuple(tuple(name[x] for x in labels) for labels in form.inputs), tuple(name[x] for x in form.output))


def _einsum(draft: Draft, op: Op, args: tuple[int, ...]) -> int | None:
    form = _plain(op, (draft.type(a) for a in args))
    if form is None or not isinstance(op, ops.Einsum):
        return None
    result = draft.results(op, args)[0]
    for n, a in enumerate(args):
        inner_op, inner = draft.op(a), _of(draft, a)
        if inner is None or not isinstance(inner_op, ops.Einsum) or inner_op.algebra != op.algebra:
            continue
        parts = draft.args(a)
        if draft.uses[a] > 1 or len(args) - 1 + len(parts) > OPERANDS or len(inner.output) != len(form.inputs[n]):
            continue
        if _sums_alone(form) or _sums_alone(inner) or any(0 in (draft.type(x).shape or ()) for x in (*parts, *args)):
            continue  # the product of a sum of nothing and of what is not finite is NaN, the merged sum is not
        if result.dtype not in FULL or any(draft.type(x).dtype != result.dtype for x in (*parts, *args)):
            continue
        name = dict(zip(inner.output, form.inputs[n], strict=True))
        gone = inner.contracted
        name |= dict(zip(gone, _fresh((x for labels in form.inputs for x in labels), len(gone)), strict=True))
        inlined = [tuple(name[x] for x in labels) for labels in inner.inputs]
        inputs: tuple[Labels, ...] = (*form.inputs[:n], *inlined, *form.inputs[n + 1 :])
        merged = ops.Einsum(str(_renamed(Spec(inputs, form.output))), op.algebra)
        return draft.make(merged, (*args[:n], *parts, *args[n + 1 :]))
    return None


def _reduce(draft: Draft, op: Op, args: tuple[int, ...]) -> int | None:
    assert isinstance(op, ops.Reduce)
    form, inner = _of(draft, args[0]), draft.op(args[0])
    if form is None or not isinstance(inner, ops.Einsum) or draft.uses[args[0]] > 1 or op.keepdims:
        return None
    t = draft.type(args[0])
    if REDUCTION.get(op.kind) != algebra(inner.algebra).reduce or t.shape is None or t.dtype not in FULL:
        return None
    if any(draft.type(x).dtype != t.dtype for x in draft.args(args[0])) or draft.results(op, args)[0].dtype != t.dtype:
        return None
    if len(form.inputs) > 1 and _sums_alone(form):
        return None
    if any(d == 0 or not isinstance(d, int) for d in t.shape):
        return None  # the maximum of nothing is an error, the einsum's is its zero
    axes = reduced_axes(op, len(t.shape))
    output = tuple(x for n, x in enumerate(form.output) if n not in axes)
    return draft.make(ops.Einsum(str(_renamed(Spec(form.inputs, output))), inner.algebra), draft.args(args[0]))


def _transpose(draft: Draft, op: Op, args: tuple[int, ...]) -> int | None:
    """Let an einsum put out its axes in the order wanted; the product is computed the other way round then."""
    assert isinstance(op, ops.Transpose)
    inner = draft.op(args[0])
    form = _of(draft, args[0])
    if form is None or not isinstance(inner, ops.Einsum) or draft.uses[args[0]] > 1:
        return None
    output = tuple(form.output[a] for a in op.order)
    return draft.make(ops.Einsum(str(_renamed(Spec(form.inputs, output))), inner.algebra), draft.args(args[0]))


RULES: Rules = {ops.Einsum: (_einsum,), ops.Reduce: (_reduce,), ops.Transpose: (_transpose,)}


def stack_products(graph: EinsumGraph) -> EinsumGraph:
    """Turn several products of one operand with constant matrices into one product and slices of it.

    >>> import numpy as np
    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (2, 3), "float32")
    >>> q, k = (x @ b.constant(np.full((3, 4), v, "float32")) for v in (1, 2))
    >>> [n.op.name for n in stack_products(b.build(q=q, k=k)).nodes]
    ['input', 'constant', 'constant', 'concat', 'einsum', 'slice', 'slice']
    """
    siblings: dict[tuple[int, str], list[int]] = {}
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Einsum) and node.op.algebra == "real" and len(node.args) == 2:
            form = _plain(node.op, (graph.type_of(a) for a in node.args))
            if form is not None and _projects(form) and isinstance(graph.nodes[node.args[1]].op, ops.Constant):
                dtypes = {graph.type_of(a).dtype for a in node.args}
                if len(dtypes) == 1 and dtypes <= {"float32", "float64"}:
                    siblings.setdefault((node.args[0], str(_renamed(form))), []).append(i)
    leader = {i: group for group in siblings.values() if len(group) > 1 for i in group}
    if not leader:
        return graph
    nodes: list[Node] = []
    new: dict[int, int] = {}
    cut: dict[int, int] = {}

    def put(op: Op, args: tuple[int, ...], origin: Node) -> int:
        nodes.append(Node(op, args, origin.locations))
        return len(nodes) - 1

    for i, node in enumerate(graph.nodes):
        if i not in leader:
            new.setdefault(i, put(node.op, tuple(new[a] for a in node.args), node) if i not in new else new[i])
            continue
        if i not in cut:
            weights = [graph.nodes[s].args[1] for s in leader[i]]
            for w in weights:
                if w not in new:
                    new[w] = put(graph.nodes[w].op, (), graph.nodes[w])
            stacked = put(ops.Concat(1), tuple(new[w] for w in weights), node)
            assert isinstance(node.op, ops.Einsum)
            whole = put(node.op, (new[node.args[0]], stacked), node)
            start = 0
            for s, w in zip(leader[i], weights, strict=True):
                width = int((graph.type_of(w).shape or (0, 0))[1])
                shape = graph.type_of(s).shape or ()
                ranges = (*((0, d, 1) for d in shape[:-1]), (start, width, 1))
                cut[s] = put(ops.Slice(ranges), (whole,), graph.nodes[s])
                start += width
        new[i] = cut[i]
    return EinsumGraph(nodes, [(name, new[i]) for name, i in graph.outputs], graph.constants)


def _projects(form: Spec) -> bool:
    """Tell whether a spec is x @ w over the last axis of x."""
    left, right = form.inputs
    return (
        len(right) == 2
        and left[-1:] == right[:1]
        and form.output == (*left[:-1], right[1])
        and len(set(left)) == len(left)
    )
