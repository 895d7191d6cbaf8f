"""Small matrix products for kernels that hold a whole graph; BLAS takes longer to call than these take to run."""

from __future__ import annotations

from functools import partial
from typing import Any

from .bind import part

Array = Any


@partial(part, fast=True)
def product(a: Array, b: Array, o: Array, rows: int, inner: int, columns: int) -> None:
    """Write the product of two flat matrices; four rows of the second at a time, so that a result is loaded and stored less."""
    whole = inner // 4
    for i in range(rows):
        x = a[i * inner : i * inner + inner]
        z = o[i * columns : i * columns + columns]
        for j in range(columns):
            z[j] = 0
        for four in range(whole):
            k = 4 * four
            v0, v1, v2, v3 = x[k], x[k + 1], x[k + 2], x[k + 3]
            y0 = b[k * columns : k * columns + columns]
            y1 = b[(k + 1) * columns : (k + 1) * columns + columns]
            y2 = b[(k + 2) * columns : (k + 2) * columns + columns]
            y3 = b[(k + 3) * columns : (k + 3) * columns + columns]
            for j in range(columns):
                z[j] += v0 * y0[j] + v1 * y1[j] + v2 * y2[j] + v3 * y3[j]
        for k in range(4 * whole, inner):
            v, y = x[k], b[k * columns : k * columns + columns]
            for j in range(columns):
                z[j] += v * y[j]
