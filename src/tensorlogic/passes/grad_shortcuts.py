"""Gradients of a few nodes at once, where the sum of their rules does work that cancels.

``softmax`` and ``logsumexp`` shift by a maximum so that nothing overflows; the result does not depend on the shift, so no
gradient goes there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ..ir import ops
from ..ir.type_rules import reduced_axes
from .grad_reverse import Call
from .grad_tape import Tape, Value

_DIVIDE, _ADD = ops.Elementwise("divide"), ops.Elementwise("add")
_EXP, _SUBTRACT, _LOG = ops.Elementwise("exp"), ops.Elementwise("subtract"), ops.Elementwise("log")


def _shifted_sum(t: Tape, total: int) -> tuple[int, int, int, tuple[int, ...]] | None:
    """Match sum(exp(x - shift)) with axes kept; return the exponentials, x, the shift and the axes."""
    op = t.draft.op(total)
    if not (isinstance(op, ops.Reduce) and op.kind == "sum" and op.keepdims):
        return None
    (e,) = t.draft.args(total)
    if t.draft.op(e) != _EXP:
        return None
    (away,) = t.draft.args(e)
    if t.draft.op(away) != _SUBTRACT:
        return None
    x, shift = t.draft.args(away)
    whole, small = t.draft.type(x).shape, t.draft.type(shift).shape
    if whole is None or small is None or t.draft.type(e).shape != whole:
        return None
    axes = reduced_axes(op, len(whole))
    lead = len(whole) - len(small)
    if any(a >= lead and small[a - lead] != 1 for a in axes):
        return None
    return e, x, shift, axes


def softmax(t: Tape, call: Call) -> Mapping[int, Value] | None:
    """Differentiate exp(x - shift) / sum(exp(x - shift)) for x."""
    if call.op != _DIVIDE:
        return None
    e, total = (a.node for a in call.args)
    found = _shifted_sum(t, total)
    if found is None or found[0] != e:
        return None
    y, g = call.y, call.g
    weighted = y * g
    return {found[1]: weighted - y * t.sum(weighted, found[3], keepdims=True)}


def logsumexp(t: Tape, call: Call) -> Mapping[int, Value] | None:
    """Differentiate log(sum(exp(x - shift))) + shift for x."""
    if call.op != _ADD:
        return None
    for logged, shift in (call.args, call.args[::-1]):
        if t.draft.op(logged.node) != _LOG:
            continue
        (total,) = t.draft.args(logged.node)
        found = _shifted_sum(t, total)
        if found is not None and found[2] == shift.node:
            whole = Value(t, total)
            some = t.where(t.equal(whole, 0), 1, whole)  # all of x may be -inf
            return {found[1]: Value(t, found[0]) * (call.g / some)}
    return None


SHORTCUTS = (softmax, logsumexp)
