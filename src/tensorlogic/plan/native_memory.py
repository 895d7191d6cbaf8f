"""What native kernels of contractions take while they run, beside their results: casts, copies in another order, packed words.

Operands are thought to lie in order in memory. A part of one along its last axes is read where it lies, where a kernel can.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from ..ir import ops
from ..ir.algebra import ALGEBRAS, Algebra
from ..ir.spec import Labels
from ..ir.types import ITEMSIZE, TensorType
from .cost import REDUCED, Contraction, cast_bytes, elements, is_copied, points_of, without_ones
from .sharing import DENSE, ORED_ROWS, THIN

NARROW = 16  # columns too few for the inner loop
FEW = 16  # rows too few to look for NaN beforehand, or to be shared among threads
DEPTH = 32  # rows of a block of the second factor: NaN is looked for in so many at a time
AT_A_TIME = 1 << 15  # places of a result of log-sum-exp whose logarithms are taken at a time
PIECE = 1 << 16  # elements that are made truth values, or brought in order, at a time
LISTED = 1 << 17  # bytes in which a product of packed matrices lists set bits, on each thread
SQUARE = 90  # ORs of 16 words that take as long as the transpose of 64 by 64 bits


class Layout(NamedTuple):
    """Where the indices of two factors go."""

    batch: Labels  # in both factors and the result
    left: Labels  # in the first and the result
    right: Labels
    inner: Labels  # in both, reduced
    alone: tuple[Labels, Labels]  # reduced, in one factor only

    def points(self, form: Contraction) -> list[int]:
        """Return how many points the indices of each kind have, those that are alone by factor."""
        return [points_of(form, x) for x in (self.batch, self.left, self.right, self.inner, *self.alone)]


def join_layout(form: Contraction) -> Layout:
    """Return where the indices of two factors go."""
    a, b = form.labels
    output = form.spec.output
    return Layout(
        batch=tuple(x for x in output if x in a and x in b),
        left=tuple(x for x in output if x in a and x not in b),
        right=tuple(x for x in output if x in b and x not in a),
        inner=tuple(x for x in a if x in b and x not in output),
        alone=(
            tuple(x for x in a if x not in b and x not in output),
            tuple(x for x in b if x not in a and x not in output),
        ),
    )


def native_bytes(
    op: ops.Einsum | ops.ContractVJP, form: Contraction, args: Sequence[TensorType], result: TensorType
) -> int:
    """Return the bytes that a contraction, or its gradient, takes while a native kernel runs it."""
    if isinstance(op, ops.ContractVJP):
        return _native_gradient_bytes(op, form, args, result)
    if result.dtype == "bool":
        return _bit_bytes(form, args)
    if result.dtype == "uint8":  # a maximum of minima of bytes: both factors in order, and the result in another order
        batch, left, right, inner, _ = join_layout(form)
        orders = (*batch, *left, *inner), (*batch, *inner, *right)
        pairs = zip(form.labels, orders, strict=True)
        return elements(result) + sum(points_of(form, own) for own, order in pairs if not same_order(form, own, order))
    return _join_bytes(ALGEBRAS[op.algebra], form, args, result)


class _Side(NamedTuple):
    """A factor laid out as a stack of matrices: its elements, and which of the three axes lies together in memory."""

    points: int
    last: str  # "batch", "outer" (rows of the first, columns of the second) or "inner"


def _join_bytes(row: Algebra, form: Contraction, args: Sequence[TensorType], result: TensorType) -> int:
    """Return what a join of floats in another algebra takes."""
    size, out = ITEMSIZE[result.dtype or "float64"], elements(result)
    layout = join_layout(form)
    spread = any(layout.alone)
    total = cast_bytes(form, args, result, size)
    if not same_order(form, (*layout.batch, *layout.left, *layout.right), form.spec.output):
        total += out * size
    inners = [(*layout.inner, *own) for own in layout.alone]
    sides = []
    for n, (own, outer, inner) in enumerate(zip(form.labels, (layout.left, layout.right), inners, strict=True)):
        points = points_of(form, own)
        ordered = (layout.batch, inner, outer) if n else (layout.batch, outer, inner)
        # where the last axis has one place, this may be a part of a longer one, which does not lie together
        last = without_ones(form, own)[-1:] if own and form.sizes[own[-1]] != 1 else ()
        if is_copied(form, own, (layout.batch, outer, inner)):
            total += points * size
            last = without_ones(form, [x for group in ordered for x in group])[-1:]
        sides.append(
            _Side(points, next((w for w, x in (("outer", outer), ("inner", inner)) if {*last} & {*x}), "batch"))
        )
    if spread:
        total += _spread_bytes(row, form, layout, size, out)
    shape = points_of(form, layout.left), points_of(form, layout.right), points_of(form, inners[0])
    swaps = row.combine not in ("godel_implies", "goguen_implies")
    return total + _loop_bytes(row, sides, shape, swaps, size, out)


def same_order(form: Contraction, labels: Sequence[str], others: Sequence[str]) -> bool:
    """Tell whether indices stand in one order, those of size 1 left aside."""
    return without_ones(form, labels) == without_ones(form, others)


def spread_steps(form: Contraction, layout: Layout) -> tuple[int, int]:
    """Return over how many places of the indices that the second and the first factor have alone the other is spread at a time.

    So many that the copies are no larger than what is there anyway.
    """
    n, i, j, k, p, q = layout.points(form)
    room = max(n * i * k * p, n * k * q * j, n * i * j) // max(1, n * k * max(i, j))
    return min(q, max(1, room)), min(p, max(1, room // max(1, q)))


def _spread_bytes(row: Algebra, form: Contraction, layout: Layout, size: int, out: int) -> int:
    """Return what indices take that one factor has alone: it is reduced before, or both are spread over them part by part."""
    n, i, j, k, p, q = layout.points(form)
    second, first = spread_steps(form, layout)
    both, parts = first * second, (second < q) + (first < p)
    copies = (n * i * k * both if second > 1 or first < p else 0) + (n * k * both * j if first > 1 or second < q else 0)
    spread = size * (copies + (2 * out if parts else 0))
    if not row.distributive:
        return spread
    terms, values = REDUCED.get(row.reduce, (0, 1))
    alone = [(n * i * k, p)] * (p > 1) + [(n * k * j, q)] * (q > 1)
    left = sum(size * values * points for points, _ in alone)
    left += max((points * times * max(1, terms * size) for points, times in alone), default=0)
    return max(spread if row.combine in ("multiply", "add") else 0, left)


def _loop_bytes(
    row: Algebra, sides: Sequence[_Side], shape: tuple[int, int, int], swaps: bool, size: int, out: int
) -> int:
    """Return what the loop takes that is chosen by which index is long, and which one the memory has last."""
    (first, second), (rows, columns, inner) = sides, shape
    summed = 8 * out if row.reduce == "logsumexp" else 0
    if summed and min(rows, columns) > THIN:  # exponentials in float64; again with care where those underflow
        care = second.points * size if second.last != "outer" else 0
        batch = out // max(1, rows * columns)
        kept = first.points + second.points + batch * (rows + columns) * 2
        return summed + max(8 * kept, care, 16 * max(AT_A_TIME, batch * columns))
    way = loop_way(rows, inner, columns, second.last == "inner", first.last == "outer", swaps)
    if way == "swapped":
        turned = _loop_bytes(row, (second, first), (columns, rows, inner), swaps, size, out)
        return turned + (out * size if columns != 1 else 0)
    if way == "dot":
        return sum(side.points * size for side in sides if side.last != "inner" and inner != 1)
    tables = (first.points // max(1, inner)) * (inner // DEPTH + 1) if rows >= FEW else 0
    return tables + (second.points * size if second.last != "outer" else 0) + summed


def loop_way(rows: int, inner: int, columns: int, inner_last: bool, rows_last: bool, swaps: bool) -> str:
    """Choose the loop of a native kernel by which index is long.

    ``inner_last`` says that the reduced index lies nearer together in the second factor than its columns do, ``rows_last`` that the
    rows of the first lie nearer together than the reduced index.
    """
    if columns >= NARROW:
        return "dot" if rows <= 4 and inner >= NARROW and inner_last else "outer"
    return "swapped" if swaps and rows >= NARROW and (inner < NARROW or rows_last) else "dot"


def _native_gradient_bytes(
    op: ops.ContractVJP, form: Contraction, args: Sequence[TensorType], result: TensorType
) -> int:
    """Return what a gradient takes: factors, result and cotangent in the kernel's order, and the gradient in that order."""
    row, size, layout = ALGEBRAS[op.algebra], ITEMSIZE[result.dtype or "float64"], join_layout(form)
    free = (layout.left, layout.right) if op.wrt == 0 else (layout.right, layout.left)
    x, y = (points_of(form, form.labels[f]) for f in (op.wrt, 1 - op.wrt))
    out = points_of(form, form.spec.output)
    total = 0
    for f, outer in zip((op.wrt, 1 - op.wrt), free, strict=True):
        own = form.labels[f]
        if not (same_order(form, own, (*layout.batch, *outer, *layout.inner)) and args[f].dtype == result.dtype):
            total += points_of(form, own) * size
    for t in args[-2:]:
        if not (same_order(form, form.spec.output, (*layout.batch, *free[0], *free[1])) and t.dtype == result.dtype):
            total += out * size
    total += x * size + out * size  # the gradient in that order; a cotangent is often one number, broadcast
    if row.reduce == "logsumexp":
        return total + max(24 * out, 8 * out + 4 * out + 16 * x + 8 * y)
    if row.combine == "goguen_implies":
        total += max(x, y) * (size + 2)
    few = points_of(form, (*layout.batch, *free[0])) < FEW
    return total + (min(7, points_of(form, free[1]) - 1) * x * size if few else 0)  # a gradient for each thread


class WordOrders(NamedTuple):
    """How two factors of truth values, packed along their last indices, are ordered for their product."""

    turned: bool  # whether they change places
    batch: Labels  # of both factors and the product
    left: Labels
    right: Labels
    inner: Labels

    @property
    def factors(self) -> tuple[Labels, Labels]:
        """The indices of either factor in order."""
        return (*self.batch, *self.left, *self.inner), (*self.batch, *self.inner, *self.right)

    @property
    def product(self) -> Labels:
        """The indices of the product in order."""
        return (*self.batch, *self.left, *self.right)


def word_orders(a: Labels, b: Labels, output: Labels) -> WordOrders:
    """Return how two factors are ordered that share indices which vanish, and have none alone that does."""
    left, right = (tuple(x for x in output if x in f and x not in g) for f, g in ((a, b), (b, a)))
    batch = tuple(x for x in output if x in a and x in b)
    turned = bool(right) if not left else bool(right) and output[-1] == left[-1]
    if turned:  # so that what is packed in the result is packed in the second
        a, b, left, right = b, a, right, left
    if not right and left and a[-1] in left:  # a vector times a matrix: its rows are ORed as they are
        a, b, left, right, turned = b, a, right, tuple(x for x in a if x in left), not turned
    inner = tuple(x for x in a if x not in output)
    if a[-1] in inner:
        inner = (*(x for x in inner if x != a[-1]), a[-1])
    return WordOrders(turned, batch, left, right, inner)


def _bit_bytes(form: Contraction, args: Sequence[TensorType]) -> int:
    """Return what a join of truth values takes on packed bits: words of the factors and of the result, in each order they are brought to."""
    pairs = zip(form.labels, args, strict=True)
    # numbers become truth values piece by piece, on some threads
    pieces = [2 * max(PIECE, form.sizes[own[-1]]) for own, t in pairs if own and t.dtype != "bool"]
    labels = [without_ones(form, own) for own in form.labels]
    output = without_ones(form, form.spec.output)

    def words(own: Sequence[str]) -> int:
        return words_bytes([form.sizes[x] for x in own])

    def turned(own: Labels, order: Labels) -> int:  # while its axes change places
        if own == order:
            return 0
        return 2 * words(order) if own[-1:] == order[-1:] else max(words(own), words(order)) + words(order)

    given = sum(map(words, labels))
    a, b = (tuple(x for x in own if x in output or all(x in other for other in labels)) for own in labels)
    alone = sum(
        words(kept) + words(own) // 8 + points_of(form, kept)
        for kept, own in zip((a, b), labels, strict=True)
        if kept != own
    )
    if {*a} <= {*output}:  # nothing but places of size 1 vanishes
        return given + alone + max([4 * words(output) + points_of(form, output), *pieces])
    orders = word_orders(a, b, output)
    first, second = (b, a) if orders.turned else (a, b)
    one, two = orders.factors
    laid, product, beside = words(two) if second != two else 0, words(orders.product), words(one) if first != one else 0
    if orders.right:
        across, lines, last = words(orders.right), orders.inner[:-1], orders.inner[-1]
        laid += _padded_bytes(points_of(form, orders.batch), points_of(form, lines), form.sizes[last], across)
        beside += _multiplied_bytes(form, orders, across)
    else:  # words where both are set
        beside += words(one) * 9 // 8
    beside = max(turned(first, one), beside + product, product + turned(orders.product, output))
    most = max(turned(second, two), laid + beside)
    # where an axis of one place is the last, the result is unpacked, and packed so
    result = points_of(form, output) * 9 if output[-1:] != form.spec.output[-1:] else 0
    return max(alone + most, result, *pieces) + given


def _padded_bytes(count: int, lines: int, last: int, across: int) -> int:
    """Return what a factor takes whose rows are padded to whole words of the other's bits, where several indices vanish."""
    padded = 64 * (last + 63 >> 6)
    return count * lines * padded * across if lines > 1 and padded != last else 0


def _multiplied_bytes(form: Contraction, orders: WordOrders, across: int) -> int:
    """Return what a product of packed matrices takes where it may be found by way of its transpose."""
    count, rows, size = (points_of(form, x) for x in (orders.batch, orders.left, orders.inner))
    last = form.sizes[orders.inner[-1]]
    inner, wide = size // max(1, last) * (last + 63 >> 6), across >> 3
    narrow, blocks = rows + 63 >> 6, wide + 15 >> 4
    work = min(count * rows * size * blocks, count * inner * (rows + 30) * DENSE * blocks)
    squares = count * (narrow * inner + inner * wide + narrow * wide)
    lists = LISTED * (1 + (work > ORED_ROWS))
    if work <= ORED_ROWS // 4 or 2 * SQUARE * squares >= work:
        return lists
    return lists + 8 * count * (64 * wide * inner + 64 * inner * narrow + 64 * wide * narrow + rows * wide)


def words_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of truth values of a shape that are packed along its last axis.

    >>> words_bytes((10, 65)), words_bytes(())
    (160, 8)
    """
    *rows, last = shape or (1,)
    return 8 * math.prod(rows) * (last + 63 >> 6)
