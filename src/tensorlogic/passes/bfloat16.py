"""bfloat16 on an engine that computes in float32: values are kept in two bytes, and every operation rounds its result once."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Scan, bodies, with_bodies
from ..ir.ops import Op
from .rewrite import Draft, Rules, rewrite

BRAIN = "bfloat16"
COMPUTING = (
    ops.Elementwise, ops.Einsum, ops.ContractVJP, ops.Reduce, ops.Cumulate, ops.ScatterAdd, ops.OverlapAdd, ops.Quantize,
    ops.Sort,
)  # fmt: skip


@cache
def has_bfloat16() -> bool:
    """Tell whether NumPy can hold bfloat16 here: the package ml_dtypes, which comes with JAX, teaches it."""
    return find_spec("ml_dtypes") is not None


def compute_in_float32(graph: EinsumGraph) -> EinsumGraph:
    """Let every operation on bfloat16 compute in float32 and round its result; what only moves elements stays as it is.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", (3,), "bfloat16")
    >>> [node.op.name for node in compute_in_float32(b.build(y=b.exp(x))).nodes]
    ['input', 'cast', 'exp', 'cast']
    """
    if not any(t.dtype == BRAIN for own in graph.inference.types for t in own) or not has_bfloat16():
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
