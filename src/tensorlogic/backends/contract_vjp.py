"""Gradients of contractions in algebras whose gradient needs a mask: blocks of the index space, with NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import ops
from ..ir.algebra import ALGEBRAS, Algebra
from ..ir.spec import Labels
from ..ir.types import TensorType
from ..plan.cost import Contraction
from .base import Kernel
from .contract import MERGE, Array, along_space, index_blocks, join_factors, prepared, take_block


def bind_contract_vjp(op: ops.ContractVJP, form: Contraction, result: TensorType, args: Sequence[TensorType]) -> Kernel:
    """Return the gradient of a contraction for one factor, without an array over the whole index space."""
    row = ALGEBRAS[op.algebra]
    output, gone = form.spec.output, form.spec.contracted
    space = (*output, *gone)
    shape = [form.sizes[x] for x in space]
    prepare = [prepared(own, kept) for own, kept in zip(form.spec.inputs, form.labels, strict=True)]
    own = form.labels[op.wrt]
    summed = tuple(n for n, x in enumerate(space) if x not in own)
    reduced = tuple(range(len(output), len(space)))
    dtype = np.dtype(result.dtype or "float64")
    working = np.promote_types(dtype, np.float32)

    def vjp(*operands: Array) -> Array:
        factors, value, cotangent = operands[:-2], operands[-2], operands[-1]
        parts = [
            along_space(ready(x).astype(working, copy=False), labels, space)
            for x, ready, labels in zip(factors, prepare, form.labels, strict=True)
        ]
        outer = (slice(None),) * len(output) + (None,) * len(gone)
        value, cotangent = (np.asarray(v).astype(working, copy=False)[outer] for v in (value, cotangent))
        total = np.zeros([n if x in own else 1 for n, x in zip(shape, space, strict=True)], working)
        if 0 not in shape:
            if row.reduce in ("max", "min"):  # in this dtype exactly, so that every result has a term equal to it
                value = _extreme(row, parts, shape, reduced, working)
            facts = _ties(row, parts, value, shape, reduced, working)
            for block in index_blocks(shape):
                inside = [take_block(x, block) for x in parts]
                term = join_factors(row, inside)
                weight = _weight(row, term, take_block(value, block), [take_block(f, block) for f in facts])
                share = weight * take_block(cotangent, block) * _slope(row, inside, op.wrt)
                share = np.broadcast_to(share, [s.stop - s.start for s in block])
                take_block(total, block)[...] += np.sum(share, axis=summed, keepdims=True)
        return placed(total, space, own, form, op.wrt, args[op.wrt], dtype)

    return vjp


def _extreme(
    row: Algebra, parts: Sequence[Array], shape: Sequence[int], reduced: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Recompute the maximum or minimum over the reduced axes, a block at a time."""
    function = np.max if row.reduce == "max" else np.min
    worst = -np.inf if row.reduce == "max" else np.inf
    out = np.full([1 if n in reduced else s for n, s in enumerate(shape)], worst, dtype)
    for block in index_blocks(shape):
        term = np.broadcast_to(
            join_factors(row, [take_block(x, block) for x in parts]), [s.stop - s.start for s in block]
        )
        target = take_block(out, block)
        target[...] = MERGE[row.reduce](target, function(term, axis=reduced, keepdims=True))
    return out


def _ties(
    row: Algebra,
    parts: Sequence[Array],
    value: Array,
    shape: Sequence[int],
    reduced: tuple[int, ...],
    dtype: np.dtype[Any],
) -> list[Array]:
    """Collect per result what a term's weight needs: the number of ties, or the zeros and the product of 1 - x."""
    if row.reduce not in ("max", "min", "noisy_or"):
        return []
    small = [1 if n in reduced else s for n, s in enumerate(shape)]
    facts = [np.zeros(small, dtype)] if row.reduce != "noisy_or" else [np.zeros(small, dtype), np.ones(small, dtype)]
    for block in index_blocks(shape):
        term = np.broadcast_to(
            join_factors(row, [take_block(x, block) for x in parts]), [s.stop - s.start for s in block]
        )
        if row.reduce == "noisy_or":
            rest = 1 - term
            take_block(facts[0], block)[...] += np.sum(rest == 0, axis=reduced, keepdims=True)
            take_block(facts[1], block)[...] *= np.prod(np.where(rest == 0, 1, rest), axis=reduced, keepdims=True)
        else:
            take_block(facts[0], block)[...] += np.sum(term == take_block(value, block), axis=reduced, keepdims=True)
    return facts


def _weight(row: Algebra, term: Array, value: Array, facts: Sequence[Array]) -> Array:
    """Return the derivative of the reduction for each term of a block."""
    match row.reduce:
        case "sum":
            return np.ones_like(term)
        case "max" | "min":
            return np.where(term == value, 1 / np.maximum(facts[0], 1), 0)
        case "logsumexp":
            return np.where(np.isfinite(value), np.exp(term - np.where(np.isfinite(value), value, 0)), 0)
        case "noisy_or":
            zeros, product = facts
            rest = 1 - term
            others = np.where(zeros == 0, product / np.where(rest == 0, 1, rest), 0)
            return np.where((rest == 0) & (zeros == 1), product, others)
        case other:
            raise AssertionError(other)


def _slope(row: Algebra, factors: Sequence[Array], wrt: int) -> Array:
    """Return the derivative of the join for one factor, over a block."""
    others = [x for n, x in enumerate(factors) if n != wrt]
    match row.combine:
        case "add":
            return np.ones_like(factors[wrt])
        case "multiply":
            return join_factors(row, others) if others else np.ones_like(factors[wrt])
        case "minimum" | "maximum":
            extreme = join_factors(row, factors)
            ties = sum((x == extreme).astype(factors[wrt].dtype) for x in factors)
            return (factors[wrt] == extreme) / ties
        case "godel_implies":
            return (factors[0] > factors[1]) * np.asarray(wrt, factors[0].dtype)
        case "goguen_implies":
            slope = np.divide(1, factors[0]) if wrt else np.divide(-factors[1], np.square(factors[0]))
            return np.where(factors[0] > factors[1], slope, 0)
        case "lukasiewicz":
            return (join_factors(row, factors) > 0).astype(factors[wrt].dtype) if others else np.ones_like(factors[wrt])
        case other:
            raise AssertionError(other)


def placed(
    total: Array,
    space: Labels,
    own: Labels,
    form: Contraction,
    wrt: int,
    like: TensorType,
    dtype: np.dtype[Any],
    out: Array = None,
) -> Array:
    """Give a gradient over the index space the shape of its factor: its axis order, diagonals and size-1 axes.

    What comes out in order is the gradient itself; with ``out`` it is written there.
    """
    squeezed = total.reshape([form.sizes[x] for x in space if x in own])
    inside = [x for x in space if x in own]
    ordered = squeezed.transpose([inside.index(x) for x in own])
    shape = [int(d) for d in like.shape or ()]
    labels = form.spec.inputs[wrt]
    if len(set(labels)) == len(labels):
        if out is None:
            return np.asarray(ordered.reshape(shape), dtype, order="C")
        out[...] = ordered.reshape(shape)
        return out
    out = np.empty(shape, dtype) if out is None else out
    out[...] = 0
    grid = np.ogrid[tuple(slice(0, form.sizes[x]) for x in own)]
    key = tuple(grid[own.index(x)] if x in own else 0 for x in labels)
    out[key] = ordered
    return out
