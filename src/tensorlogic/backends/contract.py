"""Contractions in NumPy: BLAS where there is a matrix form, cache-sized blocks of the index space elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ir import ops
from ..ir.algebra import ALGEBRAS, Algebra, check_domain
from ..ir.spec import Labels
from ..ir.types import TensorType
from ..plan.cost import BLOCK, Contraction, block_labels, block_sides
from .base import Kernel

Array = Any  # a NumPy array; the plan says more about it than a type could
LARGE = 1 << 14  # numbers of a matrix that are not copied without need


def bind_contraction(op: ops.Einsum, form: Contraction, args: Sequence[TensorType], result: TensorType) -> Kernel:
    """Return the kernel of an einsum whose sizes are known."""
    row = ALGEBRAS[op.algebra]
    dtype = np.dtype(result.dtype or "float64")
    prepare = [prepared(own, kept) for own, kept in zip(form.spec.inputs, form.labels, strict=True)]
    kernel: Kernel | None
    match form.kernel:
        case "matmul":
            same = all(t.dtype == result.dtype and not t.weak for t in args)
            kernel = _plain_matmul(form, dtype) if same else None
            kernel = kernel or _matmul(row, form, prepare, dtype)
        case "product" | "view" | "reduce" if row.distributive:
            kernel = _product(row, form, prepare, dtype)
        case _:
            kernel = _blocked(row, form, prepare, dtype)
    if row.domain is None or form.kernel == "view":
        return kernel

    def checked(*operands: Array) -> Array:
        for x in operands:
            if x.size:
                check_domain(row, np.fmin.reduce(x, axis=None), np.fmax.reduce(x, axis=None))  # NaN hides nothing
        return kernel(*operands)

    return checked


def prepared(own: Labels, kept: Labels) -> Callable[[Array], Array]:
    """Return what takes diagonals and drops size-1 axes that broadcast; the identity where there is nothing to do."""
    if own == kept:
        return np.asarray
    if len(set(own)) > 52:  # more than NumPy's einsum has labels

        def strided(x: Array) -> Array:
            strides = dict.fromkeys(own, 0)
            for label, stride in zip(own, x.strides, strict=True):
                strides[label] += stride
            sizes = dict(zip(own, x.shape, strict=True))
            keep = [label for label in strides if label in kept]
            return np.lib.stride_tricks.as_strided(x, [sizes[k] for k in keep], [strides[k] for k in keep])

        return strided
    number = {x: n for n, x in enumerate(dict.fromkeys(own))}
    labels = [number[x] for x in own]
    unique = list(number.values())
    drop = tuple(0 if x not in kept else slice(None) for x in number)
    # einsum of one operand without a sum is a view: the diagonal costs nothing
    return lambda x: np.einsum(x, labels, unique)[drop]


def _reducer(row: Algebra, dtype: np.dtype[Any]) -> Callable[[Array, tuple[int, ...]], Array]:
    """Return how the algebra removes axes of an array that has them all."""
    match row.reduce:
        case "sum":
            if dtype == np.bool_:
                return lambda x, axes: np.any(x, axis=axes)
            if dtype == np.float16:
                return lambda x, axes: np.sum(x, axis=axes, dtype=np.float32)
            return lambda x, axes: np.sum(x, axis=axes, dtype=dtype)
        case "any" | "max" | "min":
            function: Any = {"any": np.any, "max": np.max, "min": np.min}[row.reduce]
            return lambda x, axes: function(x, axis=axes)
        case "logsumexp":
            return _logsumexp
        case "noisy_or":
            return lambda x, axes: 1 - np.prod(1 - x, axis=axes)
        case other:
            raise AssertionError(other)


def _logsumexp(x: Array, axes: tuple[int, ...]) -> Array:
    top = np.max(x, axis=axes, keepdims=True)
    shift = np.where(np.isfinite(top), top, 0).astype(x.dtype)
    rest = np.asarray(x - shift)
    total = np.log(np.sum(np.exp(rest, out=rest), axis=axes, keepdims=True)) + shift
    return np.squeeze(total, axes)


def without(row: Algebra, x: Array, labels: Labels, gone: set[str], dtype: np.dtype[Any]) -> tuple[Array, Labels]:
    """Remove labels from one operand by the algebra's reduction."""
    axes = tuple(n for n, label in enumerate(labels) if label in gone)
    kept = tuple(label for label in labels if label not in gone)
    if not axes:
        return x, kept
    if any(x.shape[a] == 0 for a in axes):
        return np.full([x.shape[labels.index(k)] for k in kept], row.zero, dtype), kept
    return _reducer(row, dtype)(x, axes), kept


def caster(row: Algebra, dtype: np.dtype[Any]) -> Callable[[Array], Array]:
    """Return what gives an operand the dtype that an algebra computes in."""
    if row.name == "boolean":
        return lambda x: x if x.dtype == np.bool_ else x != 0
    return lambda x: x if x.dtype == dtype else x.astype(dtype)


def _product(
    row: Algebra, form: Contraction, prepare: Sequence[Callable[[Array], Array]], dtype: np.dtype[Any]
) -> Kernel:
    """One operand, or two that share no reduced index: reduce each alone, then combine by broadcasting."""
    output = form.spec.output
    gone = {x for own in form.labels for x in own if x not in output}
    working = np.dtype("float32") if gone and dtype == np.float16 else dtype
    cast = caster(row, working)
    combine = COMBINE[row.combine]
    single = len(form.labels) == 1
    shape = tuple(form.sizes[x] for x in output)

    def product(*operands: Array) -> Array:
        parts = []
        for x, ready, own in zip(operands, prepare, form.labels, strict=True):
            part, kept = without(row, cast(ready(x)), own, gone, working)
            part = np.asarray(part).transpose([kept.index(label) for label in output if label in kept])
            if single:
                return part.astype(dtype, copy=False)
            parts.append(part.reshape([form.sizes[label] if label in kept else 1 for label in output]))
        result = np.asarray(combine(*parts))
        return (result if result.shape == shape else np.broadcast_to(result, shape)).astype(dtype, copy=False)

    return product


def _plain_matmul(form: Contraction, dtype: np.dtype[Any]) -> Kernel | None:
    """Return NumPy's own matmul where operands and result already have its form, up to a transposed matrix.

    Several indices that stand side by side in both are one, where there is no batch.
    """
    if dtype.kind != "f" or dtype.itemsize < 4 or form.spec.inputs != form.labels:
        return None
    single = all(len(group) == 1 for group in (form.left, form.right, form.inner))
    if form.spec.output != (*form.batch, *form.left, *form.right) or not (single or not form.batch):
        return None
    flips = []
    for own, (one, other) in zip(form.labels, ((form.left, form.inner), (form.inner, form.right)), strict=True):
        if own not in ((*form.batch, *one, *other), (*form.batch, *other, *one)):
            return None
        flips.append(own != (*form.batch, *one, *other))
    if not single:
        return _merged_matmul(form, flips)
    match flips:
        case [False, False]:
            if form.batch:
                return np.matmul
            large = any(_size(own, form.sizes) >= LARGE for own in form.labels)
            return _large_dot if large else np.dot  # the same product as matmul; dot checks less
        case [False, True]:
            return lambda a, b, out=None: np.matmul(a, b.swapaxes(-1, -2), out=out)
        case [True, False]:
            return lambda a, b, out=None: np.matmul(a.swapaxes(-1, -2), b, out=out)
        case _:
            return lambda a, b, out=None: np.matmul(a.swapaxes(-1, -2), b.swapaxes(-1, -2), out=out)


def _large_dot(a: Array, b: Array, out: Array = None) -> Array:
    """Multiply two matrices: dot would copy one that is a part of the columns of another, such as a rank's share of weights.

    One row or column is added up in another order where it lies apart, so there the copy stays: equal numbers give equal bits.
    """
    apart = a.shape[0] > 1 and b.shape[1] > 1 and _in_rows(a) and _in_rows(b)
    return (np.matmul if apart else np.dot)(a, b, out=out)


def _in_rows(x: Array) -> bool:
    """Tell whether a matrix lies row after row, which may have something between them: all that BLAS needs."""
    return bool(x.strides[1] == x.itemsize and x.strides[0] >= x.shape[1] * x.itemsize)


def _merged_matmul(form: Contraction, flips: Sequence[bool]) -> Kernel:
    """Return the product of matrices whose rows, columns or inner index are several indices side by side."""
    rows, inner, columns = (_size(labels, form.sizes) for labels in (form.left, form.inner, form.right))
    left, right = ((inner, rows) if flips[0] else (rows, inner)), ((columns, inner) if flips[1] else (inner, columns))
    shape = tuple(form.sizes[x] for x in form.spec.output)

    def matmul(a: Array, b: Array, out: Array = None) -> Array:
        a, b = a.reshape(left), b.reshape(right)
        a, b = a.T if flips[0] else a, b.T if flips[1] else b
        if out is None:
            return np.matmul(a, b).reshape(shape)
        np.matmul(a, b, out.reshape(rows, columns))
        return out

    return matmul


def bind_matmul_into(op: ops.Einsum, form: Contraction, result: TensorType) -> Kernel:
    """Return the kernel of a matrix product whose result comes out in order and is written where ``out=`` says."""
    dtype = np.dtype(result.dtype or "float64")
    prepare = [prepared(own, kept) for own, kept in zip(form.spec.inputs, form.labels, strict=True)]
    return _plain_matmul(form, dtype) or _matmul(ALGEBRAS[op.algebra], form, prepare, dtype)


def _matmul(
    row: Algebra, form: Contraction, prepare: Sequence[Callable[[Array], Array]], dtype: np.dtype[Any]
) -> Kernel:
    """Two operands as one (batched) matrix product."""
    boolean = dtype == np.bool_
    working = np.dtype("float32") if boolean or dtype == np.float16 else dtype
    output, sizes = form.spec.output, form.sizes
    first, second = 0, 1
    left, right = form.left, form.right
    if right and left and output.index(right[0]) < output.index(left[0]):
        first, second, left, right = 1, 0, right, left  # so that the result comes out in order
    gone = {x for own in form.labels for x in own if x not in output and x not in form.inner}
    batch_shape = [sizes[x] for x in form.batch]
    inner = _size(form.inner, sizes)
    shapes = ([*batch_shape, _size(left, sizes), inner], [*batch_shape, inner, _size(right, sizes)])
    orders = ((*form.batch, *left, *form.inner), (*form.batch, *form.inner, *right))
    labels = (*form.batch, *left, *right)
    final_shape = [sizes[x] for x in labels]
    final_order = [labels.index(x) for x in output]
    in_order = final_order == list(range(len(labels)))
    cast = caster(row, dtype)

    def operand(x: Array, which: int, side: int) -> Array:
        ready = cast(prepare[which](x)) if boolean else prepare[which](x)
        part, kept = without(row, ready.astype(working, copy=False), form.labels[which], gone, working)
        return part.transpose([kept.index(label) for label in orders[side]]).reshape(shapes[side])

    def matmul(*operands: Array, out: Array = None) -> Array:
        a, b = operand(operands[first], first, 0), operand(operands[second], second, 1)
        if out is not None:
            np.matmul(a, b, out.reshape((*batch_shape, a.shape[-2], b.shape[-1])))
            return out
        product = np.matmul(a, b)
        if boolean:
            product = product > 0
        elif working is not dtype:
            product = product.astype(dtype)
        product = product.reshape(final_shape)
        return product if in_order else product.transpose(final_order)

    return matmul


def _size(labels: Labels, sizes: dict[str, int]) -> int:
    return math.prod(sizes[x] for x in labels)


def _lukasiewicz(x: Array, y: Array) -> Array:
    """The part of a sum above 1, made in one array; in this order unsigned integers are safe."""
    total = np.asarray(np.add(x, y))
    np.maximum(total, 1, out=total)
    total -= 1
    return total


def _residuum(x: Array, y: Array, otherwise: Array) -> Array:
    """1 where x is at most y; NaN of either stays NaN."""
    return np.where(np.isnan(x), x, np.where(np.less_equal(x, y), 1, otherwise))


COMBINE: dict[str, Callable[..., Any]] = {
    "multiply": np.multiply,
    "logical_and": np.logical_and,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "add": np.add,
    "lukasiewicz": _lukasiewicz,
    "godel_implies": lambda x, y: _residuum(x, y, y),
    "goguen_implies": lambda x, y: _residuum(x, y, np.divide(y, x)),
}


def join_factors(row: Algebra, parts: Sequence[Array]) -> Array:
    """Combine factors element by element, as an algebra does."""
    term = parts[0]
    for part in parts[1:]:
        term = COMBINE[row.combine](term, part)
    return np.asarray(term)


def along_space(x: Array, labels: Labels, space: Labels) -> Array:
    """Lay an operand out over an index space: its axes in order, size 1 where it lacks an index."""
    ordered = x.transpose([labels.index(s) for s in space if s in labels])
    return ordered.reshape([x.shape[labels.index(s)] if s in labels else 1 for s in space])


def index_blocks(shape: Sequence[int], order: Sequence[int] | None = None) -> Iterator[tuple[slice, ...]]:
    """Cut an index space into blocks of at most BLOCK points, whole along the last axes, or the last ones in an order."""
    order = range(len(shape)) if order is None else order
    steps = dict(zip(order, block_sides([shape[axis] for axis in order], BLOCK), strict=True))
    ranges = [[slice(a, min(a + steps[axis], n)) for a in range(0, n, steps[axis])] for axis, n in enumerate(shape)]
    return itertools.product(*ranges)


def take_block(x: Array, block: tuple[slice, ...]) -> Array:
    """Return what an array has in a block of the index space; an axis of size 1 is in every block."""
    return x[tuple(slice(None) if n == 1 else s for n, s in zip(x.shape, block, strict=True))]


MERGE: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "any": np.logical_or,
    "max": np.maximum,
    "min": np.minimum,
    "logsumexp": np.logaddexp,
    "noisy_or": lambda a, b: 1 - (1 - a) * (1 - b),
}


def _blocked(
    row: Algebra, form: Contraction, prepare: Sequence[Callable[[Array], Array]], dtype: np.dtype[Any]
) -> Kernel:
    """Any algebra and any number of operands, a block of the whole index space at a time."""
    wide = {x for x, n in form.sizes.items() if n != 1}  # axes of size 1 only count against NumPy's limit of 64
    output = tuple(x for x in form.spec.output if x in wide)
    space = (*output, *(x for x in form.spec.contracted if x in wide))
    shape = [form.sizes[x] for x in space]
    final = [form.sizes[x] for x in form.spec.output]
    owned = [tuple(x for x in own if x in wide) for own in form.labels]
    reduced = tuple(range(len(output), len(space)))
    working = np.dtype("float32") if dtype == np.float16 else dtype
    reduce, merge, cast = _reducer(row, working), MERGE[row.reduce], caster(row, working)
    order = [space.index(x) for x in block_labels(form, row) if x in wide]

    def reduced_block(parts: Sequence[Array], block: tuple[slice, ...]) -> Array:
        term = join_factors(row, [take_block(x, block) for x in parts])
        term = np.broadcast_to(term, [s.stop - s.start for s in block])
        return reduce(term, reduced) if reduced or row.reduce == "noisy_or" else term

    def contract(*operands: Array) -> Array:
        out = np.full(shape[: len(output)], row.zero, working)
        if 0 in shape:
            return out.astype(dtype, copy=False).reshape(final)
        parts = [
            along_space(cast(ready(x)).reshape([form.sizes[label] for label in own]), own, space)
            for x, ready, own in zip(operands, prepare, owned, strict=True)
        ]
        for block in index_blocks(shape, order):
            target = block[: len(output)]  # nothing of one block is held while the next is joined
            if all(s.start == 0 for s in block[len(output) :]):
                out[target] = reduced_block(parts, block)
            else:
                out[target] = merge(out[target], reduced_block(parts, block))
        return out.astype(dtype, copy=False).reshape(final)

    return contract
