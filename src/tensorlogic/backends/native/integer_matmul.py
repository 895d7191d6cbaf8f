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
from .dot_instructions import STRIP, DotForm, dot_form, ones_in, strip_of, tile_of
from .explicit import NUMBER, Explicit

Array = Any
SLAB = 256  # four-byte steps of the reduced index in a slab: panels of a tile stay in the first cache
BLOCK = 128  # rows whose panels stay in the second cache
FEW = 4  # rows of a result up to which every weight is read once, in the order of memory
_WORDS, _WORDS_OUT = types.Array(types.int32, 1, "C", readonly=True), types.Array(types.int32, 1, "C")
_SUMS_OUT = types.Array(types.int32, 2, "C")


def _bytes_in_rows(dtype: str) -> Any:
    return types.Array(getattr(types, dtype), 2, "A", readonly=True)


@cache
def _packing(form: DotForm, width: int, dtype: str, flip: bool) -> Explicit:
    """Return the loop that lays out panels of so many rows."""
    terms, unsigned, mask = form.terms, dtype == "uint8", 0x80 if flip else 0
    strip, part = strip_of(terms, width, unsigned, flip), 32 // terms

    def pack(x: Any, panels: Any, first: int, last: int, lo: int, hi: int) -> None:
        """Lay out the panels ``lo`` to ``hi`` of the columns ``first`` to ``last``; what is missing is 0."""
        steps = (last - first + terms - 1) // terms
        whole = (last - first) // (terms * STRIP) * STRIP
        for panel in range(lo, hi):
            start = panel * width * steps
            done = 0
            if (panel + 1) * width <= x.shape[0]:
                for step in range(0, whole, STRIP):
                    strip(x, panel * width, first + step * terms, panels, start + step * width)
                done = whole
            for n in range(width):
                row = panel * width + n
                for step in range(done, steps):
                    word, k = np.int64(0), first + step * terms
                    for t in range(terms):
                        if row < x.shape[0] and k + t < last:
                            word |= ((np.int64(x[row, k + t]) ^ mask) & ((1 << part) - 1)) << (part * t)
                    panels[start + step * width + n] = np.int32(word)

    made_for = f"{terms} {width} {flip}"
    return Explicit(pack, (_bytes_in_rows(dtype), _WORDS_OUT, *[NUMBER] * 4), made_for)


@cache
def _multiplying(form: DotForm) -> Explicit:
    """Return the loop over tiles."""
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

    return Explicit(multiply, (_WORDS, _WORDS, _SUMS_OUT, *[NUMBER] * 3), repr(form))


@cache
def _dotting(left: str, right: str) -> Explicit:
    """Return the loop over dot products, for few rows: LLVM finds the instruction itself, and every factor is read once."""

    def dots(a: Any, b: Any, sums: Any, lo: int, hi: int) -> None:
        """Write the sums of the columns ``lo`` to ``hi``."""
        for j in range(lo, hi):
            y = b[j]
            for i in range(len(a)):
                x = a[i]
                total = np.int32(0)
                for k in range(len(x)):
                    total += np.int32(np.int32(x[k]) * np.int32(y[k]))
                sums[i, j] = total

    rows = [types.Array(getattr(types, kind), 2, "C", readonly=True) for kind in (left, right)]
    return Explicit(dots, (*rows, _SUMS_OUT, NUMBER, NUMBER), f"{left} {right}")


def integer_matmul(a: Array, b: Array, out: Array, form: DotForm | None = None) -> None:
    """Write the sums over k of a[i, k] * b[j, k] into int32 ``out[i, j]``, which is contiguous; the factors may be strided.

    Sums beyond int32 wrap; :func:`most_terms` of them never are.
    """
    a, b = (x if x.strides[1] == 1 else np.ascontiguousarray(x) for x in (a, b))
    if form is not None or min(len(a), len(b)) > FEW:
        _in_panels(a, b, out, form or dot_form(), allowed())
    elif len(b) < len(a):
        turned = np.empty(out.shape[::-1], np.int32)
        integer_matmul(b, a, turned)
        out[...] = turned.T
    else:
        loop = partial(_dotting(a.dtype.name, b.dtype.name), np.ascontiguousarray(a), np.ascontiguousarray(b), out)
        share(loop, len(b), min(allowed(), max(1, len(b))))


def most_terms(left: str, right: str) -> int:
    """Return how many products of bytes of some dtypes always fit a sum in int32.

    >>> most_terms("int8", "int8"), most_terms("uint8", "int8"), most_terms("uint8", "uint8")
    (131071, 65793, 33025)
    """
    largest = {"int8": 128, "uint8": 255}
    return (2**31 - 1) // (largest[left] * largest[right])


def make_ready(rows: int, columns: int, left: str, right: str) -> None:
    """Compile the loops of a product of some size, or load them from the disk."""
    if min(rows, columns) <= FEW:
        _dotting(*((left, right) if rows <= columns else (right, left))).load()
        return
    form = dot_form()
    _multiplying(form).load()
    for dtype, width, flip in zip((left, right), (form.rows, form.columns), _flips(form, left, right), strict=True):
        _packing(form, width, dtype, flip).load()


def _flips(form: DotForm, left: str, right: str) -> list[bool]:
    """Return whether the highest bit of each factor is turned over, for an instruction that takes bytes of the other kind."""
    wanted = ("uint8" if form.unsigned_left else "int8", "int8")
    return [form.terms == 4 and dtype != want for dtype, want in zip((left, right), wanted, strict=True)]


def _in_panels(a: Array, b: Array, out: Array, form: DotForm, count: int) -> None:
    depth, slab = a.shape[1], SLAB * form.terms
    loop = _multiplying(form)
    flips = _flips(form, a.dtype.name, b.dtype.name)
    panels = []
    for x, width, flip in zip((a, b), (form.rows, form.columns), flips, strict=True):
        number = -(-len(x) // width)
        words = np.empty(number * width * min(SLAB, -(-depth // form.terms)), np.int32)
        panels.append((partial(_packing(form, width, x.dtype.name, flip), x, words), words, number))
    out.fill(0)
    (pack_left, left, rows), (pack_right, right, columns) = panels
    for first in range(0, depth, slab):
        last = min(depth, first + slab)
        share(partial(pack_left, first, last), rows, min(count, rows))
        share(partial(pack_right, first, last), columns, min(count, columns))
        share(partial(loop, left, right, out, -(-(last - first) // form.terms)), rows, min(count, rows))
    _take_off(a, b, out, flips)


def _take_off(a: Array, b: Array, out: Array, flips: list[bool]) -> None:
    """Take off what the bytes had more, or less, than they stand for: a flip adds 128 to an int8, and takes 128 off a uint8."""
    more_a, more_b = (128 * flip * (1 if x.dtype == np.int8 else -1) for x, flip in zip((a, b), flips, strict=True))
    if more_a:
        out -= (more_a * b.sum(1, dtype=np.int64)).astype(np.int32)  # wraps, as the sums did
    if more_b:
        out -= (more_b * (a.sum(1, dtype=np.int64) + more_a * a.shape[1])).astype(np.int32)[:, None]


@cache
def counting() -> Explicit:
    """Return the loop that counts bits in which rows differ."""

    def count(a: Any, b: Any, sums: Any, depth: int, lo: int, hi: int) -> None:
        """Write the sums of the columns ``lo`` to ``hi``: places that agree less places that differ."""
        for j in range(lo, hi):
            y = b[j]
            for i in range(len(a)):
                x = a[i]
                different = np.int64(0)
                for k in range(len(x)):
                    different += ones_in(x[k] ^ y[k])
                sums[i, j] = np.int32(depth - 2 * different)

    words = types.Array(types.uint64, 2, "C", readonly=True)
    return Explicit(count, (words, words, _SUMS_OUT, *[NUMBER] * 3), "bits")


def binary_matmul(a: Array, b: Array, depth: int, out: Array) -> None:
    """Write the sums of products of -1 and 1 into int32 ``out``; factors are rows of packed bits, filled up with zeros."""
    words = []
    for x in (a, b):
        if x.shape[1] % 8 or not x.flags.c_contiguous:
            wide = np.zeros((len(x), -(-x.shape[1] // 8) * 8), np.uint8)
            wide[:, : x.shape[1]] = x
            x = wide
        words.append(x.view(np.uint64))
    share(partial(counting(), *words, out, depth), len(b), min(allowed(), max(1, len(b))))
