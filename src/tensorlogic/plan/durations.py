"""About how long a plan takes, as far as its steps tell: to compare running a graph in parts with running it at once."""

from __future__ import annotations

import math

from ..ir.types import dims
from ..passes.split import Split
from .build import ExecutionPlan, Step
from .cost import LARGEST, Contraction, elements, nbytes, points_of, rounds
from .fused_steps import Fused
from .nested import is_small_product
from .sharing import THIN

# Operations in a second by the kind of step, else 6e9: the rates of fast processors, so that what parts add is not taken for too little
# beside the rest. Joins on bits take as long as bits are set, which may be few: only packing is counted.
_RATE = {
    "bits": math.inf,
    "fixpoint": math.inf,
    "closure": 5e10,
    "algebra": 2e11,
    "matmul": 5e10,
    "truths": 5e10,
    "exponentials": 2e9,
}
# Bytes in a second by the kind of step, else 1e10: each part packs what it reads, and makes tables.
_BYTES = {"bits": 4e9, "fixpoint": 1e9}
_FEW = 8  # rows with which a product of matrices takes twice as long for each as with many
_SHORT = 32  # the same of elements of a last axis, which NumPy goes along in its inmost loop
_PART = 2e-5  # seconds to feed a part and to join what it gives
_RUN = 1.5e-8  # seconds to go to a row of neighbours in memory, which long ones hide


def seconds(plan: ExecutionPlan, *, part: bool = False) -> float:
    """Return about how long a plan takes: its arithmetic, the memory it moves, and a little for each step.

    As a ``part`` it has BLAS on one thread for small products (see :func:`.nested.is_small_product`).
    """
    total = 0.0
    for step in plan.steps:
        if step.cut:  # in parts
            total += len(step.cut.ranges) / step.cut.threads * (_PART + max(map(seconds, step.bodies)))
            continue
        kind = step.op.kind if isinstance(step.op, Fused) else step.kernel
        if kind == "algebra" and step.types[0].dtype == "bool":
            kind = "bits"
        elif kind == "blocks" and step.types[0].dtype == "bool":  # truth values that are compared where they are
            kind = "truths"
        read, made = (sum(map(nbytes, types)) if step.nbytes else 0 for types in (step.arg_types, step.types))
        moved = read + (made if kind != "fixpoint" else 0)  # a closure goes through what it reads
        rate = _RATE.get("exponentials" if kind == "algebra" and _is_thin(step) else kind, 6e9)
        work, move = min(step.flops, LARGEST) / rate, min(moved, LARGEST) / _BYTES.get(kind, 1e10)
        if kind == "matmul" and step.contraction:
            work *= (1 + _FEW / _least_side(step.contraction)) * (1 + (part and is_small_product(step)))
        elif kind not in _BYTES:
            work, move = (cost * (1 + _SHORT / _last_axis(step)) for cost in (work, move))
        inner = max((seconds(body) for body in step.bodies), default=0.0) * (rounds(step.op, step.arg_types) or 16)
        total += 5e-6 + work + move + inner
    return total


def seconds_of_parts(cut: Split, number: int, each: float) -> float:
    """Return about how long so many parts of a cut take, of which each takes so long by itself.

    Of what is cut along one of its last axes, each part has many short rows.
    """
    cut_axes = [(cut.graph.type_of(feed.node), feed.axis) for feed in cut.feeds]
    cut_axes += [(join.type, join.axis if join.how == "concat" else None) for join in cut.joins]
    rows = sum(number * math.prod(dims(t)[:axis]) for t, axis in cut_axes if axis is not None)
    joined = sum(nbytes(join.type) * (1 if join.how == "concat" else number) for join in cut.joins)
    return number * (_PART + each) + min(rows, LARGEST) * _RUN + min(joined, LARGEST) / 1e10


def _is_thin(step: Step) -> bool:
    """Tell whether a kernel takes an exponential for each term, because too few rows or columns share one: see :mod:`.native_memory`."""
    own = step.parts[0]
    if own.contraction is None or getattr(own.op, "algebra", "") != "log_sum_exp" or len(own.contraction.labels) != 2:
        return False
    result, (a, b) = own.contraction.spec.output, own.contraction.labels
    sides = ([x for x in result if (x in one) and x not in other] for one, other in ((a, b), (b, a)))
    return min(math.prod(own.contraction.sizes[x] for x in side) for side in sides) <= THIN


def _last_axis(step: Step) -> float:
    """Return the length of the last axis of the largest tensor of a step; of one with one axis NumPy goes along the whole."""
    shape = dims(max((*step.arg_types, *step.types), key=elements))
    return max(1, shape[-1]) if len(shape) > 1 else math.inf


def _least_side(form: Contraction) -> float:
    """Return the least side of the matrices that a contraction multiplies; one row goes as fast as sixteen."""
    sides = [points_of(form, labels) for labels in (form.left, form.right, form.inner)]
    return 16 if 1 in sides else max(1, min(sides))
