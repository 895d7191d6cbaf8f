"""What a step costs: arithmetic operations and bytes of new memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir import ops
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import Cond, Fixpoint, Scan
from ..ir.ops import Op
from ..ir.types import ITEMSIZE, TensorType
from .contract import Contraction


def elements(t: TensorType) -> int:
    """Return the number of elements of a tensor whose sizes are known."""
    return math.prod(int(d) for d in t.shape or ())


def nbytes(t: TensorType) -> int:
    """Return the bytes that a tensor takes: a relation, by its tuples, of which each is a code and a place in an index."""
    if t.layout == "sparse":
        return 12 * (t.tuples or 0)
    return elements(t) * ITEMSIZE[t.dtype or "float64"]


def flops(op: Op, args: Sequence[TensorType], results: Sequence[TensorType], form: Contraction | None) -> int:
    """Return the arithmetic operations of one step; loops count one round (see :func:`rounds`)."""
    size = elements(results[0]) if results else 0
    match op:
        case ops.Einsum():
            return 0 if form is None else form.flops
        case ops.ContractVJP():
            return 0 if form is None else 4 * math.prod(form.sizes.values())
        case ops.Elementwise():
            return FUNCTIONS[op.fn].cost * size
        case ops.Reduce() | ops.Cumulate() | ops.OverlapAdd():
            return elements(args[0])
        case ops.Sort() | ops.TopK():
            n = elements(args[0])
            return n * max(1, n.bit_length())
        case ops.ScatterAdd():
            return elements(args[2])
        case ops.Quantize() | ops.Dequantize() | ops.Unpack():
            return 4 * size
        case _:
            return 0


def rounds(op: Op, args: Sequence[TensorType]) -> int | None:
    """Return how often an operation runs its body: None where only running tells."""
    match op:
        case Scan():
            if op.length is not None:
                return int(op.length)
            return int((args[op.carries].shape or (0,))[0])
        case Cond():
            return 1
        case Fixpoint():
            return None
        case _:
            return 0


def allocates(op: Op, form: Contraction | None) -> bool:
    """Tell whether a step makes new memory, rather than a view of an operand."""
    if isinstance(op, ops.Einsum):
        return form is None or form.kernel != "view"
    return not op.is_view or isinstance(op, ops.Reshape)  # a reshape may have to copy
