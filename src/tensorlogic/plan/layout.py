"""Which reshapes of a plan only look at what is there, and which copy it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..ir import ops
from ..ir.types import Layout, dims, in_order, is_in_order

if TYPE_CHECKING:
    from .build import ExecutionPlan, Step


def reshaped(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return the layout of a reshape that copies nothing, or None where it must copy.

    >>> turned = Layout((3, 2), (1, 3))  # a transposed matrix
    >>> reshaped(turned, (6,)), reshaped(turned, (3, 2, 1))
    (None, Layout(shape=(3, 2, 1), strides=(1, 3, 1)))
    """
    if 0 in layout.shape:
        return in_order(shape)
    old = [(n, s) for n, s in zip(*layout, strict=True) if n != 1]
    strides: list[int] = []
    i = j = 0
    while j < len(shape):
        if shape[j] == 1:
            strides.append(1)
            j += 1
            continue
        first, last = i, j + 1  # axes of either side that hold the same elements together
        have, want = old[i][0], shape[j]
        i += 1
        while have != want:
            if have < want:
                have *= old[i][0]
                i += 1
            else:
                want *= shape[last]
                last += 1
        if any(old[k][1] != old[k + 1][0] * old[k + 1][1] for k in range(first, i - 1)):
            return None
        strides += [old[i - 1][1] * s for s in in_order(shape[j:last]).strides]
        j = last
    return Layout(tuple(shape), tuple(strides))


def copying_reshapes(plan: ExecutionPlan) -> frozenset[int]:
    """Return the steps, by number, whose reshape has to copy; inputs are taken to lie in order."""
    found = set()
    known: dict[int, Layout | None] = {}  # of slots that do not lie in order; None: nobody knows how
    for n, step in enumerate(plan.steps):
        if len(step.writes) != 1:
            continue
        layout: Layout | None = in_order(dims(step.types[0]))
        if isinstance(step.op, ops.Reshape):
            if step.reads[0] in known:
                own = known[step.reads[0]]
                layout = None if own is None else reshaped(own, dims(step.types[0]))
                if layout is None:
                    found.add(n)
                    continue  # the copy is in order
        elif not any(into is not None for into in step.into):
            layout = _made(step, known)
        if layout is None or not is_in_order(layout):
            known[step.writes[0]] = layout
    return frozenset(found)


def _made(step: Step, known: dict[int, Layout | None]) -> Layout | None:
    """Return how a step's result lies; None where it is hard to say."""
    plain = in_order(dims(step.types[0]))
    read = [known.get(r, in_order(dims(t))) for r, t in zip(step.reads, step.arg_types, strict=True)]
    own = read[0] if read else plain
    match step.op:
        case ops.Transpose() if own is not None:
            return Layout(plain.shape, tuple(own.strides[a] for a in step.op.order))
        case ops.Slice() if own is not None:
            return Layout(plain.shape, tuple(s * by for s, (_, _, by) in zip(own.strides, step.op.ranges, strict=True)))
        case ops.Transpose() | ops.Slice() | ops.Broadcast() | ops.Window():
            return None
        case ops.Same():
            return own
        case ops.Elementwise() | ops.Cast():  # NumPy keeps the order of the first operand that has all axes
            full = [x for x, t in zip(read, step.arg_types, strict=True) if dims(t) == plain.shape]
            return _packed(full[0]) if full and full[0] is not None else plain
        case ops.Einsum() if step.contraction is not None and step.contraction.kernel == "view":
            labels = step.contraction.spec.inputs[0]
            if own is None or len(set(labels)) < len(labels):
                return None
            return Layout(plain.shape, tuple(own.strides[labels.index(x)] for x in step.contraction.spec.output))
        case ops.Einsum() if (
            step.contraction is not None and step.contraction.kernel == "matmul" and not step.contraction.in_order
        ):
            left, right, output = step.contraction.left, step.contraction.right, step.contraction.spec.output
            if left and right and output.index(right[0]) < output.index(left[0]):
                left, right = right, left
            made = (*step.contraction.batch, *left, *right)
            product = in_order([step.contraction.sizes[x] for x in made])
            return Layout(plain.shape, tuple(product.strides[made.index(x)] for x in output))
        case ops.Sort() | ops.Cumulate() if getattr(step.op, "descending", False) or getattr(step.op, "reverse", False):
            return None  # computed forwards and shown backwards
        case _:
            return plain


def _packed(layout: Layout) -> Layout:
    """Return the layout of a new array whose axes lie in the same order, without gaps."""
    axes = sorted(range(len(layout.shape)), key=lambda a: -abs(layout.strides[a]))
    strides = dict(zip(axes, in_order([layout.shape[a] for a in axes]).strides, strict=True))
    return Layout(layout.shape, tuple(strides[a] for a in range(len(layout.shape))))
