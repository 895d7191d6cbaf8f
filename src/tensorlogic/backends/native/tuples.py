"""Kernels over sets of codes: sorting without duplicates, union, difference, intersection, and finding keys.

Codes that lie close together are put into buckets by their highest digits, then each bucket becomes a set by a bitmap that
fits into the nearest caches. (NumPy sorts the ones that lie far apart in vectors.)
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .explicit import CODES, CODES_OUT, FLAGS_OUT, NUMBER, PLACES, PLACES_OUT, WORDS_OUT, explicit, prefetch
from .support import kernel
from .words import lowest

ONE = np.uint64(1)
AHEAD = 16  # keys that are looked at before their turn, so that what they need is brought near


@explicit(CODES, CODES_OUT)
def survey(codes: Any, found: Any) -> None:
    """Find the least code, the greatest one, and whether they ascend: 2 without duplicates, 1 with some, 0 if they do not."""
    least, greatest, order = codes[0], codes[0], 2
    for k in range(1, codes.size):
        least = min(least, codes[k])
        greatest = max(greatest, codes[k])
    for k in range(1, codes.size):
        if codes[k] <= codes[k - 1]:
            order = 1
            if codes[k] < codes[k - 1]:
                order = 0
                break
    found[0], found[1], found[2] = least, greatest, order


@explicit(CODES, NUMBER, NUMBER, NUMBER, NUMBER, CODES_OUT)
def histogram(codes: Any, least: int, shift: int, lo: int, hi: int, counts: Any) -> None:
    """Count the codes of a range that belong to each bucket."""
    for k in range(lo, hi):
        counts[(codes[k] - least) >> shift] += 1


@explicit(CODES, NUMBER, NUMBER, NUMBER, NUMBER, CODES_OUT, CODES_OUT)
def scatter(codes: Any, least: int, shift: int, lo: int, hi: int, places: Any, out: Any) -> None:
    """Put the codes of a range, less the least, into their buckets, from the given places on."""
    for k in range(lo, hi):
        code = codes[k] - least
        b = code >> shift
        out[places[b]] = code
        places[b] += 1


@kernel
def _by_bitmap(codes: Any, start: Any, stop: Any, base: Any, words: Any, bitmap: Any) -> Any:
    """Make codes a set by a bitmap of the places from a base on, which is zero before and after."""
    if start == stop:
        return start
    for k in range(start, stop):
        j = np.uint64(codes[k] - base)
        bitmap[j >> np.uint64(6)] |= ONE << (j & np.uint64(63))
    end = start
    for w in range(words):
        word = bitmap[w]
        bitmap[w] = 0
        while word:
            codes[end] = base + (w << 6) + lowest(word)
            end += 1
            word &= word - ONE
    return end


@explicit(CODES_OUT, CODES, NUMBER, NUMBER, NUMBER, CODES_OUT)
def sets(codes: Any, starts: Any, shift: int, lo: int, hi: int, ends: Any) -> None:
    """Make each of a range of buckets a set, in place, and tell where it ends."""
    words = ((np.int64(1) << shift) + 63) >> 6
    bitmap = np.zeros(words, np.uint64)
    for b in range(lo, hi):
        ends[b] = _by_bitmap(codes, starts[b], starts[b + 1], b << shift, words, bitmap)


@explicit(CODES, CODES, CODES, CODES, NUMBER, NUMBER, NUMBER, CODES_OUT)
def compact(codes: Any, starts: Any, ends: Any, places: Any, least: int, lo: int, hi: int, out: Any) -> None:
    """Copy a range of buckets to where they belong, the least code added again."""
    for b in range(lo, hi):
        place, start = places[b], starts[b]
        for k in range(ends[b] - start):
            out[place + k] = codes[start + k] + least


@kernel
def _seek(table: Any, code: Any, start: Any, stop: Any) -> Any:
    """Return the first place from a start on whose code is not less: by steps that double, then by halves."""
    step = 1
    lo = start
    while lo + step < stop and table[lo + step] < code:
        lo += step
        step <<= 1
    hi = min(stop, lo + step + 1)
    while lo < hi:
        middle = (lo + hi) >> 1
        if table[middle] < code:
            lo = middle + 1
        else:
            hi = middle
    return lo


@explicit(CODES, CODES, CODES_OUT)
def merge(a: Any, b: Any, out: Any) -> Any:
    """Write the union of two sets; return its size."""
    i, j, k = 0, 0, 0
    if a.size > 16 * b.size:  # runs of a between the codes of b
        for code in b:
            stop = _seek(a, code, i, a.size)
            while i < stop:
                out[k] = a[i]
                i += 1
                k += 1
            out[k] = code
            k += 1
            if i < a.size and a[i] == code:
                i += 1
        j = b.size
    while i < a.size and j < b.size:
        x, y = a[i], b[j]
        out[k] = min(x, y)
        i += x <= y
        j += y <= x
        k += 1
    while i < a.size:
        out[k] = a[i]
        i += 1
        k += 1
    while j < b.size:
        out[k] = b[j]
        j += 1
        k += 1
    return k


@explicit(CODES, CODES, CODES_OUT)
def minus(a: Any, b: Any, out: Any) -> Any:
    """Write the first set without the second; return the size of the result."""
    i, j, k = 0, 0, 0
    if a.size > 16 * b.size:
        for code in b:
            stop = _seek(a, code, i, a.size)
            while i < stop:
                out[k] = a[i]
                i += 1
                k += 1
            if i < a.size and a[i] == code:
                i += 1
        j = b.size
    elif b.size > 16 * a.size:
        for code in a:
            j = _seek(b, code, j, b.size)
            out[k] = code
            k += j == b.size or b[j] != code
        return k
    while i < a.size and j < b.size:
        x, y = a[i], b[j]
        out[k] = x
        k += x < y
        i += x <= y
        j += y <= x
    while i < a.size:
        out[k] = a[i]
        i += 1
        k += 1
    return k


@explicit(CODES, CODES, CODES_OUT)
def common(a: Any, b: Any, out: Any) -> Any:
    """Write the intersection of two sets, the first of which is not the larger; return its size."""
    i, j, k = 0, 0, 0
    if b.size > 16 * a.size:
        for code in a:
            j = _seek(b, code, j, b.size)
            if j < b.size and b[j] == code:
                out[k] = code
                k += 1
        return k
    while i < a.size and j < b.size:
        x, y = a[i], b[j]
        out[k] = x
        k += x == y
        i += x <= y
        j += y <= x
    return k


@explicit(CODES, NUMBER, NUMBER, PLACES_OUT)
def index(table: Any, least: int, shift: int, out: Any) -> None:
    """Write how many of a sorted table have highest digits less than 0, 1, 2 and so on; they are counted from the least code."""
    place = 0
    for digits in range(out.size):
        while place < table.size and (table[place] - least) >> shift < digits:
            place += 1
        out[digits] = place


@explicit(CODES, CODES, NUMBER, NUMBER, PLACES, NUMBER, NUMBER, CODES_OUT)
def find(keys: Any, table: Any, least: int, shift: int, known: Any, lo: int, hi: int, places: Any) -> None:
    """Write the place of each of a range of keys in a sorted table: the first whose code is not less.

    ``known`` is the table's :func:`index`.
    """
    for k in range(lo, hi):
        if k + AHEAD < hi:
            prefetch(known, min(max(keys[k + AHEAD] - least, 0) >> shift, known.size - 1))
        key = keys[k] - least
        if key < 0:
            places[k] = 0
            continue
        digits = key >> shift
        if digits >= known.size - 1:
            places[k] = table.size
            continue
        first, last = known[digits], known[digits + 1]
        while first < last:
            middle = (first + last) >> 1
            if table[middle] - least < key:
                first = middle + 1
            else:
                last = middle
        places[k] = first


@explicit(CODES, NUMBER, WORDS_OUT)
def mark(codes: Any, least: int, bitmap: Any) -> None:
    """Set the bit of every code, counted from the least."""
    for code in codes:
        j = np.uint64(code - least)
        bitmap[j >> np.uint64(6)] |= ONE << (j & np.uint64(63))


@explicit(CODES, NUMBER, WORDS_OUT, NUMBER, NUMBER, FLAGS_OUT)
def marked(keys: Any, least: int, bitmap: Any, lo: int, hi: int, out: Any) -> None:
    """Tell of each of a range of keys whether its bit is set."""
    bits = np.uint64(bitmap.size << 6)
    for k in range(lo, hi):
        j = np.uint64(keys[k] - least)  # what is below the least becomes greater than any
        out[k] = j < bits and bitmap[j >> np.uint64(6)] >> (j & np.uint64(63)) & ONE != 0
