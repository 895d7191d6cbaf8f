"""logsumexp, as the layer builds it from a maximum and a shifted sum, as one contraction of the log-sum-exp algebra.

The layer reads its operand twice, so that it cannot be made from parts; the contraction can: its parts are combined by logaddexp.
"""

from __future__ import annotations

from ..ir import ops
from ..ir.graph import EinsumGraph
from ..ir.type_rules import reduced_axes
from ..ir.types import dims
from .rewrite import Draft, Rules, rewrite

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def contract_logsumexp(graph: EinsumGraph) -> EinsumGraph:
    """Return the graph, whose sizes are known, with every logsumexp as a contraction.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> print(contract_logsumexp(b.build(y=b.logsumexp(b.input("x", (6, 3), "float32"), axis=0))))
    graph {
      x: float32[6, 3] = input()
      %1: float32[3] = einsum(x, spec="ab->b", algebra="log_sum_exp")
      return y=%1
    }
    """
    found = any(_fn(node.op) == "isfinite" for node in graph.nodes)
    return rewrite(graph, RULES) if found else graph


def _fn(op: ops.Op) -> str:
    return op.fn if isinstance(op, ops.Elementwise) else op.kind if isinstance(op, ops.Reduce) else ""


def _shifted_sum(draft: Draft, op: ops.Elementwise, args: tuple[int, ...]) -> int | None:
    """Replace ``log(sum(exp(x - shift))) + shift``, where the shift is the maximum of x, or 0 where that is infinite."""
    if op.fn != "add" or _fn(draft.op(args[0])) != "log":
        return None
    total, shift = draft.args(args[0])[0], args[1]
    reduce = draft.op(total)
    if not isinstance(reduce, ops.Reduce) or reduce.kind != "sum" or not reduce.keepdims:
        return None
    power = draft.args(total)[0]
    away = draft.args(power)[0] if _fn(draft.op(power)) == "exp" else None
    if away is None or _fn(draft.op(away)) != "subtract" or draft.args(away)[1] != shift:
        return None
    x = draft.args(away)[0]
    top = draft.known(ops.Reduce("max", reduce.axes, keepdims=True), (x,))
    if top is None or _fn(draft.op(shift)) != "where" or draft.args(shift)[1] != top:
        return None
    shape = dims(draft.type(x))
    dtype = draft.results(op, args)[0].dtype
    if draft.type(x).dtype is None or dtype is None or len(shape) > len(LETTERS):
        return None
    gone = reduced_axes(reduce, len(shape))
    own = LETTERS[: len(shape)]
    kept = "".join(letter for a, letter in enumerate(own) if a not in gone)
    if draft.type(x).dtype != dtype:  # whole numbers and truth values, which the subtraction made floats
        x = draft.make(ops.Cast(dtype), (x,))
    contraction = draft.make(ops.Einsum(f"{own}->{kept}", "log_sum_exp"), (x,))
    if draft.type(contraction).dtype != dtype:
        return None
    return draft.make(ops.Reshape(tuple(1 if a in gone else n for a, n in enumerate(shape))), (contraction,))


def _dropped_axes(draft: Draft, op: ops.Reduce, args: tuple[int, ...]) -> int | None:
    """Replace a sum over the axes of size 1 that the contraction was given back."""
    source = draft.op(args[0])
    if op.kind != "sum" or op.keepdims or not isinstance(source, ops.Reshape):
        return None
    inner = draft.args(args[0])[0]
    made = draft.op(inner)
    if (
        not isinstance(made, ops.Einsum)
        or made.algebra != "log_sum_exp"
        or draft.type(inner).shape != draft.results(op, args)[0].shape
    ):
        return None
    return inner if all(source.shape[a] == 1 for a in reduced_axes(op, len(source.shape))) else None


RULES: Rules = {ops.Elementwise: (_shifted_sum,), ops.Reduce: (_dropped_axes,)}
