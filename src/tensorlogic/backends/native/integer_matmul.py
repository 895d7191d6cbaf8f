"""Exact products of matrices of bytes: int8 or uint8 times int8 or uint8, summed in int32.

The factors are cut into slabs of the reduced index; of each slab, rows are laid out in panels that the innermost loop reads in order.
What the sums are does not depend on the processor, on the threads or on the order: integers are exact, and int32 wraps.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
from numba import types

from ..threads import allowed, share
from .dot_instructions import DotForm, dot_form, tile_of
from .explicit import NUMBER, Explicit

Array = Any
SLAB = 256  # four-byte steps of the reduced index in a slab: panels of a tile stay in the first cache
BLOCK = 128  # rows whose panels stay in the second cache
FEW = 4  # rows of a result up to which every weight is read once, in the order of memory
_WORDS, _WORDS_OUT = types.Array(types.int32, 1, "C", readonly=True), types.Array(types.int32, 1, "C")
_SUMS_OUT = types.Array(types.int32, 2, "C")
_ANY = {
    kind: types.Array(getattr(types, kind), 2, "A", readonly=True) for kind in ("int8", "uint8")
}
_ROWS = {kind: types.Array(getattr(types, kind), 2, "C", readonly=True) for kind in ("int8", "uint8")}


class Kernels:
    """The loops for one form of dot products; each is compiled when it is first used."""

    def __init__(self, form: DotForm) -> None:
        self.form = form
        self.multiply = Explicit(_multiplying(form), (_WORDS, _WORDS, _SUMS_OUT, *[NUMBER] * 3), repr(form))
        self.pack = {
            kind: Explicit(_packing(form.terms), (_ANY[kind], _panels(form), *[NUMBER] * 6), f"{form.terms} {kind}")
            for kind in _ANY
        }


def _panels(form: DotForm) -> Any:
    return types.Array(types.int16 if form.terms == 2 else types.int8, 1, "C")


def _packing(terms: int) -> Any:
    def pack(x: Any, panels: Any, width: int, first: int, last: int, lo: int, hi: int, shift: int) -> None:
        """Lay out the panels ``lo`` to ``hi`` of so many rows each: columns ``first`` to ``last``; what is missing is 0."""
        steps = (last - first + terms - 1) // terms
        whole = (last - first) // terms
        for panel in range(lo, hi):
            start = panel * width * steps * terms
            for n in range(width):
                row = panel * width + n
                if row >= x.shape[0]:
                    for step in range(steps):
                        for t in range(terms):
                            panels[start + (step * width + n) * terms + t] = 0
                    continue
                for step in range(whole):
                    at, k = start + (step * width + n) * terms, first + step * terms
                    for t in range(terms):
                        panels[at + t] = x[row, k + t] + shift
                for step in range(whole, steps):
                    at, k = start + (step * width + n) * terms, first + step * terms
                    for t in range(terms):
                        panels[at + t] = x[row, k + t] + shift if k + t < last else 0

    return pack


def _multiplying(form: DotForm) -> Any:
    tile, height, width = tile_of(form), form.rows, form.columns
    block = max(1, BLOCK // height)

    def multiply(left: Any, right: Any, sums: Any, depth: int, lo: int, hi: int) -> None:
        """Add the product of panels of rows ``lo`` to ``hi``, and of all columns, to the sums."""
        rows, columns = sums.shape
        flat = sums.reshape(rows * columns)
        edge = np.empty(height * width, np.int32)
        for first in range(lo, hi, block):
            for j in range(-(-columns // width)):
                for i in range(first, min(hi, first + block)):
                    row, column = i * height, j * width
                    if row + height <= rows and column + width <= columns:
                        at = row * columns + column
                        tile(left, i * height * depth, right, j * width * depth, flat, at, columns, depth)
                    else:
                        edge[:] = 0
                        tile(left, i * height * depth, right, j * width * depth, edge, 0, width, depth)
                        for r in range(min(height, rows - row)):
                            for c in range(min(width, columns - column)):
                                sums[row + r, column + c] += edge[r * width + c]

    return multiply


@cache
def kernels(form: DotForm) -> Kernels:
    """Return the loops for a form."""
    return Kernels(form)


def integer_matmul(a: Array, b: Array, out: Array, form: DotForm | None = None) -> None:
    """Write the sums over k of a[i, k] * b[j, k] into int32 ``out[i, j]``; strides are free, and out is contiguous."""
    form = form or dot_form()
    loops = kernels(form)
    (rows, depth), columns = a.shape, len(b)
    out.fill(0)
    shift_a, shift_b = (0, 0) if form.terms == 2 else _shifts(form, a.dtype, b.dtype)
    left_panels, right_panels = -(-rows // form.rows), -(-columns // form.columns)
    size = min(SLAB, -(-depth // form.terms))
    store = np.int16 if form.terms == 2 else np.int8
    left = np.empty(left_panels * form.rows * size * form.terms, store)
    right = np.empty(right_panels * form.columns * size * form.terms, store)
    count = allowed()
    for first in range(0, depth, SLAB * form.terms):
        last = min(depth, first + SLAB * form.terms)
        steps = -(-(last - first) // form.terms)
        for x, panels, width, number, shift in (
            (a, left, form.rows, left_panels, shift_a), (b, right, form.columns, right_panels, shift_b),
        ):  # fmt: skip
            pack = loops.pack[x.dtype.name]
            share(
                lambda lo, hi, x=x, panels=panels, width=width, shift=shift, pack=pack: pack(
                    x, panels, width, first, last, lo, hi, shift
                ),
                number,
                min(count, number),
            )
        share(
            partial(loops.multiply, left.view(np.int32), right.view(np.int32), out, steps), left_panels, min(count, left_panels)
        )
