"""Which operations can be read as queries over relations."""

from __future__ import annotations

from collections.abc import Sequence

from ..ir import ops
from ..ir import spec as specs
from ..ir.graph import Fixpoint
from ..ir.ops import Op
from ..ir.types import TensorType, dims
from .build import lay_out
from .queries import COMPARISONS, FUNCTIONS

AND = frozenset({"logical_and", "minimum", "multiply"})  # of truth values
OR = frozenset({"logical_or", "maximum", "add"})
OR_AND = frozenset({"boolean", "real", "max_min", "max_product"})  # over truth values these are one: or of ands
SAME = frozenset({"relu", "step", "absolute"})


def reads_as_query(op: Op, args: Sequence[TensorType], result: TensorType) -> bool:
    """Tell whether an operation with known sizes can be part of queries over relations."""
    boolean = result.dtype == "bool" and all(t.dtype == "bool" for t in args)
    match op:
        case ops.Einsum():
            return boolean and op.algebra in OR_AND and not _repeats(op)
        case ops.Elementwise(fn=fn):
            if boolean:
                return fn in AND or fn in OR or fn in SAME or fn in ("logical_not", "greater", "less")
            return (
                fn in FUNCTIONS
                and all(_is_integer(t) for t in args)
                and (_is_integer(result) or (fn in COMPARISONS and result.dtype == "bool"))
            )
        case ops.Iota():
            return _is_integer(result)
        case ops.Reshape():
            return (boolean or _is_integer(result)) and _only_ones(dims(args[0]), dims(result))
        case ops.Broadcast() | ops.Transpose() | ops.Slice() | ops.Same():
            return boolean or _is_integer(result)
        case ops.Reduce():
            return boolean and op.kind in ("any", "max")
        case ops.Pad():
            return boolean and all(before >= 0 and after >= 0 for before, after in op.widths)
        case ops.Concat() | ops.Cast():
            return boolean
        case Fixpoint():
            return (
                op.combine in ("or", "max") and all(t.dtype == "bool" for t in args[: op.carries]) and _body_reads(op)
            )
        case _:
            return False


def _repeats(op: ops.Einsum) -> bool:
    output = specs.parse(op.spec).output
    return len(set(output)) < len(output)


def _is_integer(t: TensorType) -> bool:
    return t.dtype in ("int64", "int32")


def _body_reads(op: Fixpoint) -> bool:
    """Tell whether a body can be read, and grows with what it is given: nothing in it negates what a round adds to."""
    plan = lay_out(op.body)
    varying = {slot for _, slot, _ in plan.inputs[: op.carries]}
    for step in plan.steps:
        if isinstance(step.op, Fixpoint) or not reads_as_query(step.op, step.arg_types, step.types[0]):
            return False
        if not varying.isdisjoint(step.reads):
            varying.update(step.writes)
            if isinstance(step.op, ops.Elementwise) and step.op.fn in ("logical_not", "greater", "less"):
                return False
    return True


def _only_ones(before: Sequence[int], after: Sequence[int]) -> bool:
    """Tell whether two shapes differ in axes of size 1 only."""
    return 0 not in before and [n for n in before if n != 1] == [n for n in after if n != 1]
