"""Rewrites that change the order of arithmetic: answers agree to rounding, not bit for bit.

Einsums flow into the einsums that read them, so that the contraction order is chosen over all of their operands; sums of an
einsum become part of it; sibling products of one operand with constants become one product.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from ..ir import ops, spec
from ..ir.algebra import ALGEBRAS
from ..ir.graph import EinsumGraph
from ..ir.ops import Op
from ..ir.sizes import Dim
from ..ir.spec import Labels, Spec
from ..ir.type_rules import reduced_axes
from ..ir.types import TensorType
from .rewrite import Draft, Rules, finished, only_with, rewrite
from .simplify import without_transposes

OPERANDS = 6  # up to here (and a little further) every contraction order is tried, so that merging never makes it worse
FULL = frozenset({"float32", "float64", "bool"})  # partial results in these round, or saturate, as the whole does
BLAS = frozenset({"real", "boolean"})  # algebras whose contractions are matrix products


@only_with(ops.Einsum, ops.Reduce, ops.Transpose, ops.Reshape, reading=(ops.Einsum, ops.Transpose))
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
    if not isinstance(op, ops.Einsum) or not ALGEBRAS[op.algebra].distributive:
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


def _sums_over_names(form: Spec, types: Sequence[TensorType]) -> bool:
    """Tell whether an einsum of operands of these types sums over an index whose size is not known yet."""
    sizes = {
        x: d for labels, t in zip(form.inputs, types, strict=True) for x, d in zip(labels, t.shape or (), strict=False)
    }
    return any(isinstance(sizes.get(x), str) for x in form.contracted)


def _written(inputs: Iterable[Labels], output: Labels) -> str:
    """Return a spec whose labels are a, b, c ... in order, so that equal einsums are equal text."""
    form = Spec(tuple(inputs), output)
    return str(form.renamed({x: spec.symbol(n) for n, x in enumerate(form.labels)}))


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
        if op.algebra != "boolean" and _sums_over_names(inner, [draft.type(x) for x in parts]):
            continue  # which may turn out to be 0
        if result.dtype not in FULL or any(draft.type(x).dtype != result.dtype for x in (*parts, *args)):
            continue
        name = dict(zip(inner.output, form.inputs[n], strict=True))
        name |= dict(zip(inner.contracted, spec.spare_letters(form.labels), strict=False))
        inlined = [tuple(name[x] for x in labels) for labels in inner.inputs]
        inputs: tuple[Labels, ...] = (*form.inputs[:n], *inlined, *form.inputs[n + 1 :])
        merged = ops.Einsum(_written(inputs, form.output), op.algebra)
        return draft.make(merged, (*args[:n], *parts, *args[n + 1 :]))
    return None


def _reduce(draft: Draft, op: ops.Reduce, args: tuple[int, ...]) -> int | None:
    form, inner = _of(draft, args[0]), draft.op(args[0])
    if form is None or not isinstance(inner, ops.Einsum) or draft.uses[args[0]] > 1 or op.keepdims:
        return None
    t = draft.type(args[0])
    if op.kind != ALGEBRAS[inner.algebra].reduce or t.shape is None or t.dtype not in FULL:
        return None
    if any(draft.type(x).dtype != t.dtype for x in draft.args(args[0])) or draft.results(op, args)[0].dtype != t.dtype:
        return None
    if (len(form.inputs) > 1 and _sums_alone(form)) or 0 in t.shape or _named(op, t):
        return None  # the maximum of nothing is an error, the einsum's is its zero
    axes = reduced_axes(op, len(t.shape))
    output = tuple(x for n, x in enumerate(form.output) if n not in axes)
    return draft.make(ops.Einsum(_written(form.inputs, output), inner.algebra), draft.args(args[0]))


def _named(op: ops.Reduce, t: TensorType) -> bool:
    """Tell whether a reduction must not be of nothing, and has an operand whose sizes are not all known yet."""
    return op.kind not in ("sum", "any") and any(isinstance(d, str) for d in t.shape or ())


def _transpose(draft: Draft, op: ops.Transpose, args: tuple[int, ...]) -> int | None:
    """Let an einsum put out its axes in the order wanted, where BLAS can; the product is computed the other way round then."""
    inner = draft.op(args[0])
    form = _of(draft, args[0])
    if form is None or not isinstance(inner, ops.Einsum) or draft.uses[args[0]] > 1:
        return None
    wanted = Spec(form.inputs, tuple(form.output[a] for a in op.order))
    if inner.algebra in BLAS and len(form.inputs) == 2 and _moved(wanted) > _moved(form):
        return None  # a transpose is a view, what is moved is copied
    return draft.make(ops.Einsum(_written(*wanted), inner.algebra), draft.args(args[0]))


def _moved(form: Spec) -> int:
    """Return how many of two operands and their product must be brought into another order around a matrix product."""
    a, b = form.inputs
    batch = tuple(x for x in form.output if x in a and x in b)
    left, right = (tuple(x for x in form.output if x in own and x not in batch) for own in (a, b))
    inner = tuple(x for x in a if x in b and x not in form.output)
    in_order = form.output in ((*batch, *left, *right), (*batch, *right, *left))
    return sum(not _runs(own, group) for own, group in ((a, left), (a, inner), (b, right), (b, inner))) + (not in_order)


def _runs(labels: Labels, group: Labels) -> bool:
    """Tell whether a group of labels stands together and in order, so that it can be seen as one axis."""
    return not group or labels[(at := labels.index(group[0])) : at + len(group)] == group


def _operands(draft: Draft, op: ops.Einsum, args: tuple[int, ...]) -> int | None:
    """Take transposes of operands into the spec, however many there are; ``simplify`` does so for up to two."""
    form = _plain(op, (draft.type(a) for a in args))
    if form is None or len(args) < 3:
        return None
    inputs, operands = without_transposes(draft, form, args)
    if operands == args:
        return None
    return draft.make(ops.Einsum(_written(inputs, form.output), op.algebra), operands)


def _reshape(draft: Draft, op: ops.Reshape, args: tuple[int, ...]) -> int | None:
    """Drop reshapes that make one axis of several for a product and several of it again: kernels take many batch axes."""
    form, inner = _of(draft, args[0]), draft.op(args[0])
    if form is None or not isinstance(inner, ops.Einsum) or draft.uses[args[0]] > 1 or len(form.inputs) < 2:
        return None
    runs = _joined(op.shape, draft.type(args[0]).shape or ())
    if runs is None:
        return None
    split = {x: run for x, run in zip(form.output, runs, strict=True) if len(run) > 1}
    alone = [x for x in split if sum(x in own for own in form.inputs) < len(form.inputs)]
    if not split or (alone and inner.algebra in BLAS):
        return None  # rows or columns of a matrix: what BLAS wants is one axis
    fresh = spec.spare_letters(form.labels)
    letters = {x: tuple(next(fresh) for _ in run) for x, run in split.items()}
    inputs, operands = [], []
    for labels, a in zip(form.inputs, draft.args(args[0]), strict=True):
        if not any(x in split for x in labels):
            inputs.append(labels)
            operands.append(a)
            continue
        before = draft.op(a)
        if not isinstance(before, ops.Reshape):
            return None
        (source,) = draft.args(a)
        own = _joined(draft.type(source).shape or (), draft.type(a).shape or ())
        if own is None or any(run != split.get(x, run[:1]) for x, run in zip(labels, own, strict=True)):
            return None
        inputs.append(tuple(y for x in labels for y in letters.get(x, (x,))))
        operands.append(source)
    output = tuple(y for x in form.output for y in letters.get(x, (x,)))
    return draft.make(ops.Einsum(_written(inputs, output), inner.algebra), tuple(operands))


def _joined(several: Iterable[Dim], fewer: Iterable[Dim]) -> list[tuple[int, ...]] | None:
    """Return for each axis of the second shape the axes of the first that it is made of; None where it is not so simple.

    >>> _joined((2, 3, 5), (6, 5)), _joined((6, 5), (2, 3, 5))
    ([(2, 3), (5,)], None)
    """
    rest, found = list(several), []
    for size in fewer:
        run: list[int] = []
        while not run or math.prod(run) != size:
            first = rest.pop(0) if rest else None
            if not isinstance(first, int) or not isinstance(size, int) or first < 1 or math.prod(run) * first > size:
                return None
            run.append(first)
        found.append(tuple(run))
    return None if rest else found


def waits_for_sizes(graph: EinsumGraph, op: Op, args: tuple[int, ...]) -> bool:
    """Tell whether more may be merged into an operation once sizes are known that have names now."""
    for a in args if isinstance(op, ops.Einsum | ops.Reduce) else ():
        types = [graph.type_of(x) for x in graph.nodes[a].args] if isinstance(graph.nodes[a].op, ops.Einsum) else []
        form = _plain(graph.nodes[a].op, types)
        if form is not None and isinstance(op, ops.Einsum) and _sums_over_names(form, types):
            return True
        if form is not None and isinstance(op, ops.Reduce) and _named(op, graph.type_of(a)):
            return True
    return False


RULES: Rules = {
    ops.Einsum: (_operands, _einsum),
    ops.Reduce: (_reduce,),
    ops.Transpose: (_transpose,),
    ops.Reshape: (_reshape,),
}


@only_with(ops.Einsum, reading=(ops.Constant,))
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
                    siblings.setdefault((node.args[0], _written(*form)), []).append(i)
    leader = {i: group for group in siblings.values() if len(group) > 1 for i in group}
    if not leader:
        return graph
    draft = Draft(graph, {})
    new: list[int] = []
    cut: dict[int, int] = {}
    for i, node in enumerate(graph.nodes):
        draft.origin = node
        if i in leader and i not in cut:
            weights = [graph.nodes[s].args[1] for s in leader[i]]
            stacked = draft.add(ops.Concat(1), tuple(draft.add(graph.nodes[w].op, ()) for w in weights))
            whole = draft.add(node.op, (new[node.args[0]], stacked))
            start = 0
            for s, w in zip(leader[i], weights, strict=True):
                width = int((graph.type_of(w).shape or (0, 0))[1])
                ranges = (*((0, d, 1) for d in (graph.type_of(s).shape or ())[:-1]), (start, width, 1))
                draft.origin = graph.nodes[s]
                cut[s] = draft.add(ops.Slice(ranges), (whole,))
                start += width
        new.append(cut[i] if i in cut else draft.add(node.op, tuple(new[a] for a in node.args)))
    return finished(draft, new)


def _projects(form: Spec) -> bool:
    """Tell whether a spec is x @ w over the last axis of x."""
    left, right = form.inputs
    last = len(right) == 2 and left[-1:] == right[:1] and form.output == (*left[:-1], right[1])
    return last and len(set(left)) == len(left)
