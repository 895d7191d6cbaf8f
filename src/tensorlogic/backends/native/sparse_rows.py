"""Kernels over sparse rows: joins by Gustavson's method, rows of codes, transposing.

A row of a result is gathered in a bitmap of all columns, with a second and a third bitmap that tell which words of the one
below are not zero: so duplicates vanish, and the columns come out sorted, without looking at words that are zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .explicit import CODES, CODES_OUT, NUMBER, PLACES, PLACES_OUT, WORDS, WORDS_OUT, explicit, prefetch
from .support import kernel
from .words import lowest

ONE = np.uint64(1)
AHEAD = 16  # elements of a whose rows of b are brought near before they are needed
FEW = 12  # columns of a row that are sorted by insertion


@kernel
def _emit(word: Any, base: Any, out: Any, place: Any) -> Any:
    """Write the places of a word's bits; return where the next ones go."""
    while word:
        out[place] = base + lowest(word)
        place += 1
        word &= word - ONE
    return place


@kernel
def _emit_words(word: Any, base: Any, low: Any, out: Any, place: Any) -> Any:
    """Write the places of the bits of the words that the bits of a word name, and clear them."""
    while word:
        w = base + lowest(word)
        bits = low[w]
        low[w] = 0
        place = _emit(bits, w << 6, out, place)
        word &= word - ONE
    return place


@kernel
def gather(j: Any, low: Any, middle: Any, top: Any) -> None:
    """Set the bit of a column in all three bitmaps."""
    j = np.uint64(j)
    w = j >> np.uint64(6)
    m = j >> np.uint64(12)
    low[w] |= ONE << (j & np.uint64(63))
    middle[m] |= ONE << (w & np.uint64(63))
    top[j >> np.uint64(18)] |= ONE << (m & np.uint64(63))


@kernel
def drain(low: Any, middle: Any, top: Any, out: Any, place: Any) -> Any:
    """Write the columns that were gathered, sorted, and clear the bitmaps."""
    for t in range(top.size):
        word = top[t]
        top[t] = 0
        while word:
            m = (t << 6) + lowest(word)
            named = middle[m]
            middle[m] = 0
            place = _emit_words(named, m << 6, low, out, place)
            word &= word - ONE
    return place


@explicit(CODES, PLACES, CODES, PLACES, NUMBER, NUMBER, NUMBER, CODES_OUT, PLACES_OUT, WORDS_OUT, WORDS_OUT, WORDS_OUT)
def join(
    aptr: Any, aidx: Any, bptr: Any, bidx: Any, lo: int, hi: int, n: int,
    ends: Any, out: Any, low: Any, middle: Any, top: Any,
) -> Any:  # fmt: skip
    """Write rows of a join while there is room for them; return the first row that was not made.

    ``ends[i]`` becomes where row i ends in ``out``. The bitmaps are all zero, before and after.
    """
    place: Any = 0
    for i in range(lo, hi):
        first, last = aptr[i], aptr[i + 1]
        bound = np.int64(0)
        for p in range(first, last):
            if p + AHEAD < aidx.size:
                prefetch(bidx, bptr[aidx[p + AHEAD]])
            bound += bptr[aidx[p] + 1] - bptr[aidx[p]]
        if place + min(bound, n) > out.size:
            return i
        start = place
        if last - first == 1:
            for q in range(bptr[aidx[first]], bptr[aidx[first] + 1]):
                out[place] = bidx[q]
                place += 1
        elif bound <= FEW:
            for p in range(first, last):
                for q in range(bptr[aidx[p]], bptr[aidx[p] + 1]):
                    j = bidx[q]
                    at = place
                    while at > start and out[at - 1] > j:
                        at -= 1
                    if at > start and out[at - 1] == j:
                        continue
                    for m in range(place, at, -1):
                        out[m] = out[m - 1]
                    out[at] = j
                    place += 1
        elif bound << 5 >= n:  # most words are not zero
            for p in range(first, last):
                for q in range(bptr[aidx[p]], bptr[aidx[p] + 1]):
                    c = np.uint64(bidx[q])
                    low[c >> np.uint64(6)] |= ONE << (c & np.uint64(63))
            for w in range(low.size):
                bits = low[w]
                low[w] = 0
                place = _emit(bits, w << 6, out, place)
        elif top.size == 1:  # the second bitmap is short enough to be looked through
            for p in range(first, last):
                for q in range(bptr[aidx[p]], bptr[aidx[p] + 1]):
                    c = np.uint64(bidx[q])
                    word = c >> np.uint64(6)
                    low[word] |= ONE << (c & np.uint64(63))
                    middle[c >> np.uint64(12)] |= ONE << (word & np.uint64(63))
            for m in range(middle.size):
                bits = middle[m]
                middle[m] = 0
                place = _emit_words(bits, m << 6, low, out, place)
        else:
            for p in range(first, last):
                for q in range(bptr[aidx[p]], bptr[aidx[p] + 1]):
                    gather(bidx[q], low, middle, top)
            place = drain(low, middle, top, out, place)
        ends[i] = place
    return hi


@explicit(CODES, NUMBER, CODES_OUT, PLACES_OUT)
def split(codes: Any, width: int, ends: Any, out: Any) -> None:
    """Write the rows of a set of codes of a matrix of so many columns; ``ends`` is one longer than there are rows."""
    row, start = np.int64(0), np.int64(0)
    ends[0] = 0
    for k in range(codes.size):
        if codes[k] - start >= width:
            here = codes[k] // width
            while row < here:
                row += 1
                ends[row] = k
            start = row * width
        out[k] = codes[k] - start
    for i in range(row + 1, ends.size):
        ends[i] = codes.size


@explicit(CODES, PLACES_OUT)
def repeat(indptr: Any, out: Any) -> None:
    """Write the number of the row of each element."""
    for i in range(indptr.size - 1):
        for k in range(indptr[i], indptr[i + 1]):
            out[k] = i


@explicit(CODES, PLACES, CODES_OUT, PLACES_OUT)
def transpose(indptr: Any, indices: Any, ends: Any, out: Any) -> None:
    """Exchange rows and columns; ``ends`` is zero, one longer than there are columns, and becomes the offsets."""
    for p in range(indices.size):
        ends[indices[p]] += 1
    for j in range(1, ends.size):
        ends[j] += ends[j - 1]
    for i in range(indptr.size - 2, -1, -1):  # from behind, so that each column's elements come out sorted
        for p in range(indptr[i], indptr[i + 1]):
            ends[indices[p]] -= 1
            out[ends[indices[p]]] = i


@explicit(CODES, NUMBER, NUMBER, WORDS_OUT, NUMBER, NUMBER)
def set_bits(codes: Any, size: int, width: int, flat: Any, lo: int, hi: int) -> None:
    """Set the bits of a range of codes, of rows of so many places and words."""
    row, start = np.int64(-1), np.int64(0)
    for k in range(lo, hi):
        if row < 0 or codes[k] - start >= size:
            row = codes[k] // size
            start = row * size
        j = codes[k] - start
        flat[row * width + (j >> 6)] |= ONE << np.uint64(j & 63)


@explicit(WORDS, NUMBER, NUMBER, CODES_OUT, NUMBER, NUMBER, NUMBER)
def list_bits(flat: Any, size: int, width: int, codes: Any, place: int, lo: int, hi: int) -> None:
    """Write the codes of the set bits of a range of words, from a place on."""
    row = lo // width
    w = lo - row * width
    for k in range(lo, hi):
        place = _emit(flat[k], row * size + (w << 6), codes, place)
        w += 1
        if w == width:
            w = 0
            row += 1
