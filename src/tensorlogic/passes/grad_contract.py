"""The gradient of a contraction's gradient: ``ContractVJP`` written out in operations that have rules.

The contracted indices are scanned, one inside the other, so that no array over the whole index space is made here either.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce

import numpy as np

from ..ir import ops
from ..ir.algebra import ALGEBRAS, Algebra
from ..ir.graph import EinsumGraph, Scan
from ..ir.ops import Op
from ..ir.spec import Labels
from ..ir.types import TensorShape, TensorType
from .derivatives import slopes
from .grad_bodies import inline_reverse
from .grad_einsum import Form, form_of, laid_out, real_gradient, squeezed
from .grad_reverse import Call, Grads, Rule
from .grad_tape import Tape, Value, filled, full_cotangent, indicator, scalar, unknown_rank

Part = tuple[Value, Labels]
Points = Callable[[Tape, Sequence[Value]], Value]  # a function of the parts at every point of the index space


def _contract_vjp(t: Tape, call: Call) -> Grads:
    given = [x.type._replace(weak=False) for x in call.args]
    if any(x.shape is None for x in call.args):
        raise unknown_rank(call.x, "gradients of gradients of contractions")
    graph = written_out(call.op, given)
    return inline_reverse(t, graph, call.args, call.wants, [full_cotangent(t, call.g, call.y)], call.options)


def written_out(op: ops.ContractVJP, given: Sequence[TensorType]) -> EinsumGraph:
    """Return a graph of the factors, the result and its cotangent that computes what the operation does."""
    t = Tape(EinsumGraph([], []))
    *factors, y, g = (t.input(f"x{n}", kind) for n, kind in enumerate(given))
    form = form_of(op.spec, factors)
    assert form is not None
    row = ALGEBRAS[op.algebra]
    own = factors[op.wrt]
    if row.name == "real":
        found = real_gradient(t, form, factors, op.wrt, y, g)
        return t.finish([("r0", full_cotangent(t, found, own))])
    parts = [_distinct(t, x, labels) for x, labels in zip(factors, form.inputs, strict=True)]
    count = len(parts)
    wide = tuple(c for c in form.output if form.sizes[c] != 1)
    out = [squeezed(t, v, form.output, [form.sizes[c] == 1 for c in form.output])[0] for v in (y, g)]
    sums: list[Part] = []
    if row.reduce in ("max", "min"):
        best, labels = _over(t, form, form.contracted, parts, lambda s, v: _joined(s, row, v), wide, row.reduce)
        ties = _over(
            t,
            form,
            form.contracted,
            [*parts, (best, labels)],
            lambda s, v: indicator(s, s.equal(_joined(s, row, v[:-1]), v[-1]), v[-1]),
            wide,
            "sum",
        )
        sums = [(best, labels), ties]
    elif row.reduce == "noisy_or":
        terms = ((_certain, "sum"), (_left_by_certain, "sum"), (_left_by_others, "product"))
        sums = [_over(t, form, form.contracted, parts, _of_terms(row, f), wide, how) for f, how in terms]

    def share(s: Tape, v: Sequence[Value]) -> Value:
        each, (value, cotangent), more = v[:count], v[count : count + 2], v[count + 2 :]
        weight = _weight(s, row, _joined(s, row, each), value, more)
        return s.multiply(weight * cotangent, _slope(s, row, each, op.wrt))

    space = [*parts, *((v, wide) for v in out), *sums]
    target = tuple(dict.fromkeys(parts[op.wrt][1]))
    total, labels = _over(t, form, form.contracted, space, share, target, "sum")
    ordered = t.transpose(total, [labels.index(c) for c in target]) if labels != target else total
    return t.finish([("r0", full_cotangent(t, laid_out(t, ordered, target, form.inputs[op.wrt], form, own), own))])


def _distinct(t: Tape, x: Value, labels: Labels) -> Part:
    """Take diagonals and drop axes of size 1: every label once, and as large as it gets."""
    unique = tuple(dict.fromkeys(labels))
    if len(unique) < len(labels):
        x = t.einsum(f"{''.join(labels)}->{''.join(unique)}", x)
    return squeezed(t, x, unique, [d == 1 for d in x.shape or ()])


def _over(
    t: Tape, form: Form, left: Labels, parts: Sequence[Part], points: Points, target: Labels, how: str
) -> tuple[Value, Labels]:
    """Reduce a function of the parts over every index that is not in ``target``; indices in ``left`` one step at a time."""
    left = tuple(c for c in left if form.sizes[c] != 1)
    if not left:
        return _at_once(t, form, parts, points, target, how)
    label, size = left[0], form.sizes[left[0]]
    rows = [n for n, (_, labels) in enumerate(parts) if label in labels]
    fixed = [n for n in range(len(parts)) if n not in rows]
    body = Tape(EinsumGraph([], []))
    inner: dict[int, Part] = {}
    keep = label in target
    fronts = {}
    for n in rows:
        value, labels = parts[n]
        rest = tuple(c for c in labels if c != label)
        fronts[n] = t.transpose(value, [labels.index(c) for c in (label, *rest)])
        shape = TensorShape((fronts[n].shape or ())[1:])
        inner[n] = (body.input(f"x{n}", TensorType(shape, value.dtype)), rest)
    for n in fixed:
        inner[n] = (body.input(f"k{n}", parts[n][0].type), parts[n][1])
    part, labels = _over(body, form, left[1:], [inner[n] for n in range(len(parts))], points, target, how)
    captured = [parts[n][0] for n in fixed]
    scanned = [fronts[n] for n in rows]
    if keep:
        graph = body.finish([("r0", part)])
        (made,) = t.apply_many(Scan(graph, 0, len(rows), size), *scanned, *captured)
        return made, (label, *labels)
    carry = body.input("c0", part.type)
    after = {"sum": body.add, "product": body.multiply, "max": body.maximum, "min": body.minimum}[how](carry, part)
    body.given = [carry.node, *(inner[n][0].node for n in rows), *(inner[n][0].node for n in fixed)]
    start = {"sum": 0.0, "product": 1.0, "max": -np.inf, "min": np.inf}[how]
    first = filled(t, start, part.shape or (), part.dtype, parts[0][0])
    (made,) = t.apply_many(Scan(body.finish([("r0", after)]), 1, len(rows), size), first, *scanned, *captured)
    return made, labels


def _at_once(
    t: Tape, form: Form, parts: Sequence[Part], points: Points, target: Labels, how: str
) -> tuple[Value, Labels]:
    space = tuple(c for c in form.output if form.sizes[c] != 1)
    laid = []
    for value, labels in parts:
        moved = t.transpose(value, [labels.index(c) for c in space if c in labels]) if len(labels) > 1 else value
        laid.append(t.reshape(moved, [form.sizes[c] if c in labels else 1 for c in space]))
    whole = points(t, laid)
    shape = [form.sizes[c] for c in space]
    whole = whole if tuple(whole.shape or ()) == tuple(shape) else t.broadcast_to(whole, shape)
    gone = [n for n, c in enumerate(space) if c not in target]
    kept = tuple(c for c in space if c in target)
    return (t.apply(ops.Reduce(how, tuple(gone)), whole) if gone else whole), kept


def _joined(t: Tape, row: Algebra, values: Sequence[Value]) -> Value:
    return reduce(partial(t.apply, ops.Elementwise(row.combine)), values)


def _weight(t: Tape, row: Algebra, term: Value, value: Value, more: Sequence[Value]) -> Value:
    """Return the derivative of the reduction for a term."""
    match row.reduce:
        case "max" | "min":
            best, ties = more
            return t.where(t.equal(term, best), 1 / ties, 0)
        case "logsumexp":
            endless = t.equal(value, np.inf)  # nothing moves it, as in the kernels
            difference = t.where(endless, 0, term - t.where(t.isinf(value), 0, value))
            return t.where(endless, 0, t.exp(difference))
        case _:  # noisy or: the product of what the other terms leave
            certain, left, product = more
            others = certain - _certain(t, term)
            # what other certain terms leave is 0, but of a single one it has a derivative, which second derivatives need
            gone = t.where(t.equal(others, 1), left - _left_by_certain(t, term), 0)
            return product / _left_by_others(t, term) * t.where(t.equal(others, 0), 1, gone)


def _of_terms(row: Algebra, function: Callable[[Tape, Value], Value]) -> Points:
    return lambda t, values: function(t, _joined(t, row, values))


def _certain(t: Tape, term: Value) -> Value:
    """Return 1 where a term of a noisy or is certain, so that it leaves nothing to the others."""
    return indicator(t, t.equal(term, 1), term)


def _left_by_certain(t: Tape, term: Value) -> Value:
    """Return what a certain term leaves, and 0 for another: 0 in any case, but it has a derivative."""
    return t.where(t.equal(term, 1), 1 - term, 0)


def _left_by_others(t: Tape, term: Value) -> Value:
    """Return what a term leaves that is not certain, and 1 for one that is."""
    return t.where(t.equal(term, 1), 1, 1 - term)


def _slope(t: Tape, row: Algebra, values: Sequence[Value], wrt: int) -> Value | float:
    """Return the derivative of the join for one factor."""
    rest = [v for n, v in enumerate(values) if n != wrt]
    own = values[wrt]
    if not rest or row.combine == "add":
        return 1.0
    match row.combine:
        case "multiply":
            return _joined(t, row, rest)
        case "minimum" | "maximum":
            best = _joined(t, row, values)
            each = [indicator(t, t.equal(v, best), own) for v in values]
            return each[wrt] / reduce(operator.add, each)
        case _:
            slope = slopes(row.combine)[min(wrt, 1)]
            return 0.0 if slope is None else slope(t, values, _joined(t, row, values), scalar(t, 1.0, own))


RULES: dict[type[Op], Rule] = {ops.ContractVJP: _contract_vjp}
