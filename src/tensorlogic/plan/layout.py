"""Which steps of a plan only look at what is there, and which copy it because it does not lie in order."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ..ir import ops
from ..ir.types import ITEMSIZE, Layout, dims, in_order, is_in_order
from .cost import is_copied, nbytes, points_of

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
    return frozenset(n for n, _, _, copies in _walked(plan) if copies)


def _walked(plan: ExecutionPlan) -> Iterator[tuple[int, Step, dict[int, Layout | None], bool]]:
    """Yield steps by number, with operands that do not lie in order, by place, and whether the step is a reshape that copies."""
    known: dict[int, Layout | None] = {}  # of slots that do not lie in order; None: nobody knows how
    for n, step in enumerate(plan.steps):
        apart = {i: known[slot] for i, slot in enumerate(step.reads) if slot in known}
        layout: Layout | None = in_order(dims(step.types[0])) if len(step.writes) == 1 else None
        copies = False
        if layout is None:
            pass
        elif isinstance(step.op, ops.Reshape):
            if apart:
                own = apart[0]
                found = None if own is None else reshaped(own, dims(step.types[0]))
                copies = found is None  # and the copy is in order
                layout = found or layout
        elif not any(into is not None for into in step.into):
            layout = _made(step, known)
        yield n, step, apart, copies
        if len(step.writes) == 1 and (layout is None or not is_in_order(layout)):
            known[step.writes[0]] = layout


def copied_operands(plan: ExecutionPlan) -> dict[int, int]:
    """Return the bytes that steps take, by number, for operands that do not lie in order: copies, or sums in memory of NumPy's own."""
    found = {}
    for n, step, apart, _ in _walked(plan):
        if apart and (size := _copied(step, apart)):
            found[n] = size
    return found


def _copied(step: Step, apart: dict[int, Layout | None]) -> int:
    """Return the bytes that a step takes for operands, by place, that lie apart."""
    match step.op:
        case ops.Reduce("argmax" | "argmin") | ops.Gather(batch=0) if 0 in apart:
            return max(0, nbytes(step.arg_types[0]) - step.scratch)
        # not into the buffer: the order decides how a sum rounds, see backends/numpy_inplace.py
        case ops.Reduce("sum" | "prod" | "mean") if step.into:
            return nbytes(step.types[0])
        case ops.Einsum() if (form := step.contraction) is not None and form.kernel == "matmul":
            size = ITEMSIZE[step.types[0].dtype or "float64"]
            wide = 4 if step.types[0].dtype in ("bool", "float16") else size
            named, groups = {*form.spec.output, *form.inner}, (form.left, form.right, form.inner)
            kept = [tuple(x for x in own if x in named) for own in form.labels]
            again = (own for i, own in enumerate(kept) if i in apart and not _is_matrix(apart[i]))
            return sum(points_of(form, own) * wide for own in again if not is_copied(form, own, groups))
    return 0


def _is_matrix(layout: Layout | None) -> bool:
    """Tell whether BLAS takes what lies so: rows or columns of a matrix, which may have something between them."""
    if layout is None or len(layout.shape) != 2:
        return False
    (m, n), (down, right) = layout
    return (right == 1 and down >= n) or (down == 1 and right >= m)


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
        case ops.Window() if own is not None:
            by = own.strides[step.op.axis]
            strides = list(own.strides)
            strides[step.op.axis] = by * step.op.step
            return Layout(plain.shape, (*strides, by * step.op.dilation))
        case ops.Broadcast() if own is not None:
            spread = dict(zip(step.op.axes, zip(*own, strict=True), strict=True))
            found = (spread.get(r, (1, 0)) for r in range(len(plain.shape)))
            return Layout(
                plain.shape, tuple(0 if n == 1 < size else s for size, (n, s) in zip(plain.shape, found, strict=True))
            )
        case ops.Transpose() | ops.Slice() | ops.Broadcast() | ops.Window():
            return None
        case ops.Same():
            return own
        case ops.Elementwise() | ops.Cast():  # NumPy keeps the order of the first operand that has all axes
            full = [x for x, t in zip(read, step.arg_types, strict=True) if dims(t) == plain.shape]
            if not full or full[0] is None or (0 in full[0].strides and isinstance(step.op, ops.Elementwise)):
                return plain  # where functions find elements repeated, they keep the order of the axes
            return _packed(full[0])
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
