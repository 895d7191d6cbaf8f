"""What contractions take while NumPy runs them, beside their results: casts, copies into matrices, and blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..ir import ops
from ..ir.algebra import ALGEBRAS, Algebra
from ..ir.spec import Labels
from ..ir.types import ITEMSIZE, TensorType
from .cost import BLOCK, Contraction, elements

# arrays of a block that are held at once while two factors are joined, beside truth values, and while terms are reduced
_JOINED = {"lukasiewicz": 1, "godel_implies": 2, "goguen_implies": 3}
REDUCED = {"logsumexp": (1, 5), "noisy_or": (1, 2)}  # of the terms, and of what becomes of them; elsewhere none and one


def numpy_bytes(
    op: ops.Einsum | ops.ContractVJP, form: Contraction, args: Sequence[TensorType], result: TensorType
) -> int:
    """Return the bytes that a contraction, or its gradient, takes while NumPy runs it."""
    row, size = ALGEBRAS[op.algebra], ITEMSIZE[result.dtype or "float64"]
    if isinstance(op, ops.ContractVJP):
        return _gradient_bytes(row, form, args, result)
    narrow = result.dtype == "float16"
    if form.kernel == "matmul":
        return _matrix_bytes(form, args, result, 4 if narrow or result.dtype == "bool" else size)
    if form.kernel in ("product", "reduce", "view") and row.distributive:
        gone = any(x not in form.spec.output for own in form.labels for x in own)
        return _product_bytes(row, form, args, result, 4 if narrow and gone else size)
    wide = 4 if narrow else size
    out = elements(result) * wide if narrow else 0
    return block_bytes(row, form, wide) + cast_bytes(form, args, result, wide) + out


def points_of(form: Contraction, labels: Sequence[str]) -> int:
    """Return how many points indices have."""
    return math.prod(form.sizes[x] for x in labels)


def cast_bytes(form: Contraction, args: Sequence[TensorType], result: TensorType, wide: int) -> int:
    """Return what factors take that are cast to the dtype of the result, or to the wider one that is computed in."""
    size = ITEMSIZE[result.dtype or "float64"]
    pairs = zip(form.labels, args, strict=False)
    return sum(points_of(form, own) * wide for own, t in pairs if t.dtype != result.dtype or wide != size)


def _matrix_bytes(form: Contraction, args: Sequence[TensorType], result: TensorType, wide: int) -> int:
    """Return what a matrix product takes: casts, sums over what one factor has alone, copies into matrices, and a wider result."""
    named = {*form.spec.output, *form.inner}
    total = cast_bytes(form, args, result, wide)
    total += elements(result) * wide if wide != ITEMSIZE[result.dtype or "float64"] else 0
    for own in form.labels:
        kept = tuple(x for x in own if x in named)
        summed = len(kept) < len(own)
        total += points_of(form, kept) * wide * (summed + is_copied(form, kept, (form.left, form.right, form.inner)))
    if result.dtype == "bool":  # truth values before they are cast
        pairs = zip(form.labels, args, strict=True)
        total += max(0 if t.dtype == "bool" else points_of(form, own) for own, t in pairs)
    return total


def _product_bytes(row: Algebra, form: Contraction, args: Sequence[TensorType], result: TensorType, wide: int) -> int:
    """Return what factors take that are reduced each alone and then joined: casts, terms and what is left of each."""
    terms, values = REDUCED.get(row.reduce, (0, 1))
    total = cast_bytes(form, args, result, wide)
    for own in form.labels:
        kept = [x for x in own if x in form.spec.output]
        if len(kept) < len(own):
            total += wide * (terms * points_of(form, own) + (values - (len(form.labels) == 1)) * points_of(form, kept))
    return total + (elements(result) * wide if wide != ITEMSIZE[result.dtype or "float64"] else 0)


def block_labels(form: Contraction, row: Algebra) -> Labels:
    """Return the indices of the index space in the order in which its blocks are cut: the last are whole first.

    Truth values may be joined in any order: then blocks lie together in the largest factor.
    """
    space = (*form.spec.output, *form.spec.contracted)
    if row.reduce != "any":
        return space
    largest = max(form.labels, key=lambda own: points_of(form, own))
    return tuple(sorted(space, key=lambda x: largest.index(x) if x in largest else -1))


def block_bytes(row: Algebra, form: Contraction, wide: int) -> int:
    """Return what one block of the index space takes: its terms, and what they are reduced to, twice where that joins another's."""
    if 0 in form.sizes.values():
        return 0
    sides, room = {}, BLOCK
    for x in reversed(block_labels(form, row)):
        sides[x] = max(1, min(form.sizes[x], room))
        room //= max(1, form.sizes[x])
    points = math.prod(sides.values())
    left = math.prod(sides[x] for x in form.spec.output)
    many = len(form.labels)
    terms, values = REDUCED.get(row.reduce, (0, 1))
    joined = 0 if many == 1 else _JOINED.get(row.combine, 1) + (many > 2)
    masks = points if row.combine in ("godel_implies", "goguen_implies") else 0
    reduced = left < points or row.reduce == "noisy_or"
    again = any(sides[x] < form.sizes[x] for x in form.spec.contracted)
    kept = min(joined, 1) + terms  # terms while they are reduced
    return wide * max(joined * points, kept * points + left * (values + again) * reduced) + masks


def is_copied(form: Contraction, own: Labels, groups: Sequence[Labels]) -> bool:
    """Tell whether a factor is copied where groups of its indices become one: where those do not stand side by side."""
    own = tuple(x for x in own if form.sizes[x] != 1)
    for group in groups:
        inside = tuple(x for x in group if x in own)
        first = own.index(inside[0]) if inside else 0
        if own[first : first + len(inside)] != inside:
            return True
    return False


def _gradient_bytes(row: Algebra, form: Contraction, args: Sequence[TensorType], result: TensorType) -> int:
    """Return what a gradient takes in blocks: casts, the extremes and how many terms they have, and some arrays of a block."""
    wide = max(4, ITEMSIZE[result.dtype or "float64"])
    own, out = elements(result), points_of(form, form.spec.output)
    facts = {"max": 2, "min": 2, "noisy_or": 2}.get(row.reduce, 0)
    casts = cast_bytes(form, args, result, wide)
    casts += sum(
        out * wide for t in args[-2:] if t.dtype != result.dtype or wide != ITEMSIZE[result.dtype or "float64"]
    )
    points = 1
    for x in reversed((*form.spec.output, *form.spec.contracted)):
        points *= max(1, min(form.sizes[x], BLOCK // points))
    held = 7 if row.combine in ("minimum", "maximum") else 5
    return casts + (own + facts * out + held * points) * wide
