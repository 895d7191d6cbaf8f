"""Joins of fuzzy truth values in 8 bits: 0 is false, 255 is true, and q stands for q / 255.

Max-min is exact: minima and maxima of rounded numbers are the rounded minima and maxima, so that a result is as near as its factors were,
half a step (1/510), however many joins follow each other. Max-product takes the largest of the exact products and rounds it once: with
factors that are e and f away from what they stand for, a result is at most e + f + e f + 1/510 away; 3/510 and a little more after one join.
A product of two such numbers never lies halfway between two others, so that it does not matter how a tie would be rounded.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
from numba import types

from ...ir.types import TensorType, dims
from ...plan.cost import Contraction
from ...plan.native_memory import join_layout
from ..base import Kernel
from ..threads import allowed, share
from .explicit import NUMBER, Explicit
from .semiring import laid_out

Array = Any
# columns and rows of a block of the second factor that stays near while rows of the first go by
WIDTH, DEPTH = 2048, 32
_BYTES = types.Array(types.uint8, 3, "C", readonly=True)


@cache
def _joining(products: bool) -> Explicit:
    wide = np.uint16 if products else np.uint8

    def join(a: Any, b: Any, best: Any, lo: int, hi: int) -> None:
        """Raise the best of [n, i, j] to the joins of [n, i, k] with [n, k, j]: rows ``lo`` to ``hi`` of all n * i of them."""
        rows, inner, columns = a.shape[1], a.shape[2], b.shape[2]
        for left in range(0, columns, WIDTH):
            right = min(columns, left + WIDTH)
            for first in range(0, inner, DEPTH):
                last = min(inner, first + DEPTH)
                whole = first + (last - first) // 2 * 2
                for row in range(lo, hi):
                    n = row // rows
                    i = row - n * rows
                    target = best[n, i, left:right]
                    for k in range(first, whole, 2):
                        x0, x1 = wide(a[n, i, k]), wide(a[n, i, k + 1])
                        y0, y1 = b[n, k, left:right], b[n, k + 1, left:right]
                        for j in range(len(target)):
                            if products:
                                target[j] = max(target[j], wide(x0 * wide(y0[j])), wide(x1 * wide(y1[j])))
                            else:
                                target[j] = max(target[j], min(x0, y0[j]), min(x1, y1[j]))
                    for k in range(whole, last):
                        x0, y0 = wide(a[n, i, k]), b[n, k, left:right]
                        for j in range(len(target)):
                            term = wide(x0 * wide(y0[j])) if products else min(x0, y0[j])
                            target[j] = max(target[j], term)

    target = types.Array(types.uint16 if products else types.uint8, 3, "C")
    return Explicit(join, (_BYTES, _BYTES, target, NUMBER, NUMBER), "products" if products else "minima")


def rounded_products(products: Array, out: Array) -> None:
    """Write products of two numbers of 8 bits, divided by 255 and rounded to the nearest."""
    more = products + np.uint16(128)
    np.right_shift(more + (more >> np.uint16(8)), np.uint16(8), out=out, casting="unsafe")


def bind_fuzzy(algebra: str, form: Contraction, result: TensorType) -> Kernel:
    """Return the kernel of a max-min or max-product join of two factors of 8 bits."""
    layout, products = join_layout(form), algebra == "max_product"
    lay = laid_out(form.labels, layout, form.sizes)
    labels = (*layout.batch, *layout.left, *layout.right)
    axes, shape = [labels.index(x) for x in form.spec.output], dims(result)
    beside, loop = [form.sizes[x] for x in labels], _joining(products)
    loop.load()

    def run(a: Array, b: Array, out: Array = None) -> Array:
        out = np.empty(shape, np.uint8) if out is None else out
        x, y = (np.ascontiguousarray(v) for v in lay(a, b))
        best = np.zeros((*x.shape[:2], y.shape[2]), np.uint16 if products else np.uint8)
        rows = len(x) * x.shape[1]
        share(partial(loop, x, y, best), rows, min(allowed(), max(1, rows)))
        if products:
            rounded = np.empty(best.shape, np.uint8)
            rounded_products(best, rounded)
            best = rounded
        out[...] = best.reshape(beside).transpose(axes)
        return out

    return run
