"""Kernels over sets of codes: sorting without duplicates, union, difference, intersection, and finding keys.

Sorting puts codes into buckets by their highest digits, then makes each bucket, which fits into the nearest caches, a set by
itself: by a bitmap where its codes lie close together, by a radix sort where they do not.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .explicit import CODES, CODES_OUT, FLAGS_OUT, NUMBER, PLACES_OUT, WORDS_OUT, explicit
from .support import kernel
from .words import lowest

ONE = np.uint64(1)
FEW = 24  # codes that are sorted by insertion
CLOSE = 64  # places of a bitmap for each code up to which it is faster than a radix sort


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
def _insertion(codes: Any, start: Any, stop: Any) -> Any:
    """Make a few codes a set, in place; return where it ends."""
    end = start
    for k in range(start, stop):
        code = codes[k]
        at = end
        while at > start and codes[at - 1] > code:
            at -= 1
        if at > start and codes[at - 1] == code:
            continue
        for m in range(end, at, -1):
            codes[m] = codes[m - 1]
        codes[at] = code
        end += 1
    return end


@kernel
def _by_bitmap(codes: Any, start: Any, stop: Any, base: Any, words: Any, bitmap: Any) -> Any:
    """Make codes a set by a bitmap of the places from a base on, which is zero before and after."""
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


@kernel
def _by_digits(codes: Any, start: Any, stop: Any, bits: Any, other: Any, counts: Any) -> Any:
    """Make codes that differ in so many lowest bits a set by a radix sort of eight bits at a time; ``other`` is as long."""
    n = stop - start
    here = True  # or in the other array
    for shift in range(0, bits, 8):
        for d in range(256):
            counts[d] = 0
        if here:
            for k in range(start, stop):
                counts[codes[k] >> shift & 255] += 1
        else:
            for k in range(n):
                counts[other[k] >> shift & 255] += 1
        if counts[(codes[start] if here else other[0]) >> shift & 255] == n:  # all the same
            continue
        total = 0
        for d in range(256):
            total, counts[d] = total + counts[d], total
        if here:
            for k in range(start, stop):
                d = codes[k] >> shift & 255
                other[counts[d]] = codes[k]
                counts[d] += 1
        else:
            for k in range(n):
                d = other[k] >> shift & 255
                codes[start + counts[d]] = other[k]
                counts[d] += 1
        here = not here
    if not here:
        for k in range(n):
            codes[start + k] = other[k]
    end = start + 1
    for k in range(start + 1, stop):
        if codes[k] != codes[end - 1]:
            codes[end] = codes[k]
            end += 1
    return end


@explicit(CODES_OUT, CODES, NUMBER, NUMBER, NUMBER, CODES_OUT)
def sets(codes: Any, starts: Any, shift: int, lo: int, hi: int, ends: Any) -> None:
    """Make each of a range of buckets a set, in place, and tell where it ends."""
    most, wide = np.int64(0), np.int64(1)
    for b in range(lo, hi):
        n = starts[b + 1] - starts[b]
        if n > FEW:
            if shift < 40 and (np.int64(1) << shift) <= CLOSE * n:
                wide = np.int64(1) << shift
            else:
                most = max(most, n)
    bitmap = np.zeros((wide + 63) >> 6, np.uint64)
    other = np.empty(most, np.int64)
    counts = np.empty(256, np.int64)
    for b in range(lo, hi):
        start, stop = starts[b], starts[b + 1]
        if stop - start <= FEW:
            ends[b] = _insertion(codes, start, stop)
        elif shift < 40 and (np.int64(1) << shift) <= CLOSE * (stop - start):
            ends[b] = _by_bitmap(codes, start, stop, b << shift, ((np.int64(1) << shift) + 63) >> 6, bitmap)
        else:
            ends[b] = _by_digits(codes, start, stop, shift, other, counts)


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


@explicit(CODES, CODES, NUMBER, NUMBER, CODES_OUT)
def find(keys: Any, table: Any, lo: int, hi: int, places: Any) -> None:
    """Write the place of each of a range of keys in a sorted table: the first whose code is not less."""
    n = table.size
    before = np.int64(0)
    for k in range(lo, hi):
        key = keys[k]
        if before < n and table[before] <= key:  # keys that ascend are found near the one before
            before = _seek(table, key, before, n)
        else:
            first, size = np.int64(0), np.int64(n)
            while size > 0:
                half = size >> 1
                below = table[first + half] < key
                first += (half + 1) * below
                size = half + (size - 2 * half - 1) * below
            before = first
        places[k] = before


@explicit(CODES, NUMBER, PLACES_OUT)
def offsets(table: Any, least: int, out: Any) -> None:
    """Write for every code from the least on how many of a sorted table are less."""
    place = 0
    for c in range(out.size):
        while place < table.size and table[place] - least < c:
            place += 1
        out[c] = place


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
