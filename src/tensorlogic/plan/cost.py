"""What steps cost: arithmetic operations and bytes; for a contraction, its form: which indices are shared, free or reduced, and the kernel that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from ..ir import ops, spec
from ..ir.algebra import ALGEBRAS, Algebra
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import Cond, Fixpoint, Scan
from ..ir.ops import Op
from ..ir.spec import Labels
from ..ir.type_rules import label_sizes, reduced_axes
from ..ir.types import ITEMSIZE, Scope, TensorShape, TensorType

FEW = 1 << 13  # elements from which it matters how they are added up
LONG = 256  # elements of a row of truth values from which NumPy compares it faster than BLAS multiplies it, cast before
SLICES, SHORTEST_RUN = 16, 8  # slices that are combined as wholes, at most, and the elements of their runs at least


class Contraction(NamedTuple):
    """An einsum with its sizes known.

    ``labels`` are each operand's own indices after diagonals are taken and size-1 axes that broadcast are dropped.
    """

    spec: spec.Spec
    sizes: dict[str, int]
    labels: tuple[Labels, ...]
    kernel: str  # "matmul", "product", "reduce", "view" or "blocks"
    batch: Labels = ()
    left: Labels = ()
    right: Labels = ()
    inner: Labels = ()

    @property
    def in_order(self) -> bool:
        """Whether it is a matrix product that comes out with its axes in order."""
        both = ((*self.batch, *self.left, *self.right), (*self.batch, *self.right, *self.left))
        return self.kernel == "matmul" and self.spec.output in both

    @property
    def flops(self) -> int:
        """A multiply-add counts as two; a pure product or view as what it touches."""
        points = math.prod(self.sizes.values())
        return 0 if self.kernel == "view" else points if self.kernel in ("product", "reduce") else 2 * points


# arrays of a block that are held at once while two factors are joined, beside truth values, and while terms are reduced
_JOINED = {"lukasiewicz": 1, "godel_implies": 2, "goguen_implies": 3}
REDUCED = {"logsumexp": (1, 5), "noisy_or": (1, 2)}  # of the terms, and of what becomes of them; elsewhere none and one
LARGEST = 10**30  # of the counts that become floats, which hold no larger ones than 1e308
BLOCK = 1 << 18  # points of the index space that an algebra without a matrix form holds at once
# elements that these work on at once, and what they hold of each beside the operand and the result
_HELD = {"erf": (1 << 14, 24), "sigmoid": (1 << 16, 9)}


def scratch_bytes(op: Op, form: Contraction | None, args: Sequence[TensorType], result: TensorType) -> int:
    """Return the bytes that NumPy takes while an operation runs, beside its results: masks, blocks, copies and casts."""
    size = ITEMSIZE[result.dtype or "float64"]
    match op:
        case ops.Einsum() | ops.ContractVJP() if form is not None:
            return _contraction_bytes(op, form, args, result)
        case ops.Elementwise("erf" | "sigmoid" as fn):
            block, each = _HELD[fn]
            held = each * min(block, elements(result)) if fn == "sigmoid" or result.dtype == "float32" else 0
            return held + (nbytes(result) if args[0].dtype != result.dtype else 0)
        case ops.Elementwise(fn):
            values = {"godel_implies": 1, "goguen_implies": 2}.get(fn, 0)
            return elements(result) * (1 + values * size) if values else 0
        case ops.Reduce(kind) if kind in ("argmax", "argmin"):
            shape = tuple(map(int, args[0].shape or ()))
            axis = reduced_axes(op, len(shape))[-1] if shape and op.axes is not None else len(shape)
            return nbytes(args[0]) if math.prod(shape[axis + 1 :]) > 1 else 0
        case ops.Cumulate(kind):
            half = result.dtype == "float16" and kind in ("sum", "prod")
            return elements(result) * (8 if half else size if args[0].dtype != result.dtype else 0)
        case _:
            return 0


def _contraction_bytes(
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
    return _block_bytes(row, form, wide) + cast_bytes(form, args, result, wide) + out


def points_of(form: Contraction, labels: Sequence[str]) -> int:
    """Return how many points indices have."""
    return math.prod(form.sizes[x] for x in labels)


def without_ones(form: Contraction, labels: Sequence[str]) -> Labels:
    """Return indices but for those of size 1, which have no place in memory of their own."""
    return tuple(x for x in labels if form.sizes[x] != 1)


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


def block_sides(sizes: Sequence[int], points: int) -> list[int]:
    """Return the sides of a block of an index space: of at most so many points, whole along the last axes.

    >>> block_sides([5, 300, 1000], 1 << 18)
    [1, 262, 1000]
    """
    sides, room = [], points
    for size in reversed(sizes):
        sides.append(max(1, min(size, room)))
        room //= max(1, size)
    return sides[::-1]


def _block_bytes(row: Algebra, form: Contraction, wide: int) -> int:
    """Return what one block of the index space takes: its terms, and what they are reduced to, twice where that joins another's."""
    if 0 in form.sizes.values():
        return 0
    labels = block_labels(form, row)
    sides = dict(zip(labels, block_sides([form.sizes[x] for x in labels], BLOCK), strict=True))
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
    own = without_ones(form, own)
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
    given = [t for t in args[-2:] if t.dtype != result.dtype or wide != ITEMSIZE[result.dtype or "float64"]]
    casts += len(given) * out * wide
    points = math.prod(block_sides([form.sizes[x] for x in (*form.spec.output, *form.spec.contracted)], BLOCK))
    held = 7 if row.combine in ("minimum", "maximum", "goguen_implies") else 5
    return casts + (own + facts * out + held * points) * wide


def contraction_of(op: Op, args: Sequence[TensorType]) -> Contraction | None:
    """Return the form of an einsum, or of the einsum that an operation is the gradient of; None of other operations."""
    if not isinstance(op, ops.Einsum | ops.ContractVJP):
        return None
    factors = args if isinstance(op, ops.Einsum) else args[:-2]
    return _analysed(op.spec, op.algebra, tuple(t.shape or TensorShape() for t in factors))


def contraction(equation: str, algebra_name: str, shapes: Sequence[TensorShape]) -> Contraction:
    """Analyse an einsum whose sizes are integers; what is found is kept, and not to be changed.

    >>> contraction("bij,bjk->bik", "real", [TensorShape([2, 3, 4]), TensorShape([2, 4, 5])]).kernel
    'matmul'
    """
    return _analysed(equation, algebra_name, tuple(shapes))


@lru_cache(maxsize=4096)
def _analysed(equation: str, algebra_name: str, shapes: tuple[TensorShape, ...]) -> Contraction:
    form = spec.expand(spec.parse(equation), tuple(len(s) for s in shapes))
    contracted = form.contracted
    sizes = {k: int(v) for k, v in label_sizes(form, shapes, Scope(0, str, (), [])).items()}
    labels = tuple(
        tuple(dict.fromkeys(x for x, d in zip(own, shape, strict=True) if d == sizes[x]))
        for own, shape in zip(form.inputs, shapes, strict=True)
    )
    row = ALGEBRAS[algebra_name]
    if any(sizes[x] == 0 for x in contracted):  # the reduction of nothing is the algebra's zero, whatever else there is
        return Contraction(form, sizes, labels, "blocks")
    summed = {x for x in contracted if sizes[x] != 1 or any(x in own for own in labels)}
    if len(labels) == 1:
        return Contraction(form, sizes, labels, "reduce" if summed or not row.distributive else "view")
    alone = {x for x in summed if sum(x in own for own in labels) == 1}
    if len(labels) == 2 and row.distributive:
        a, b = (tuple(x for x in own if x not in alone) for own in labels)
        if not summed - alone:
            return Contraction(form, sizes, labels, "product")
        if row.combine in ("multiply", "logical_and") and row.reduce in ("sum", "any"):
            left = tuple(x for x in form.output if x in a and x not in b)
            right = tuple(x for x in form.output if x in b and x not in a)
            shared = tuple(x for x in form.output if x in a and x in b)
            once = (
                row.reduce == "any"
                and math.prod(sizes.values()) >= BLOCK
                and _compared(sizes, labels, left, right, shared)
            )
            return Contraction(
                form,
                sizes,
                labels,
                "blocks" if once else "matmul",
                batch=shared,
                left=left,
                right=right,
                inner=tuple(x for x in a if x in summed and x in b),
            )
    return Contraction(form, sizes, labels, "blocks")


def _compared(sizes: dict[str, int], labels: Sequence[Labels], left: Labels, right: Labels, batch: Labels) -> bool:
    """Tell whether truth values are compared where they are: where BLAS would use casts once only, and rows in memory are long."""
    rows, columns = (math.prod(sizes[x] for x in free) for free in (left, right))
    if rows > 1 and columns > 1:
        return False
    largest = max(labels, key=lambda own: math.prod(sizes[x] for x in own))
    last = next((sizes[x] for x in reversed(largest) if sizes[x] != 1), 1)
    many = math.prod(sizes[x] for x in batch) > 1  # products of a batch are done by BLAS one by one, in the cache
    return rows == columns == 1 or last >= LONG * (1 + many)


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


def in_few_slices(shape: Sequence[int], axes: Sequence[int]) -> bool:
    """Tell whether whole slices are combined faster than elements one after another: few of them, of runs that are not short."""
    last = max(axes, default=len(shape))
    return 1 < math.prod(shape[a] for a in axes) <= SLICES and math.prod(shape[last + 1 :]) >= SHORTEST_RUN
