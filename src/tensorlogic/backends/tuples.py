"""Tables of integer-coded tuples: sets of codes and their joins, by native kernels or, where numba is absent, by NumPy.

A tuple (i, j, k) of a tensor of shape (a, b, c) is one code, ``(i * b + j) * c + k``, an int64; a *set* is a sorted array of
codes without duplicates. A table of two columns can also be held as *rows*: a pair (indptr, indices) as in scipy's CSR, whose
indices are sorted within a row; see :mod:`.sparse_rows` for what is done with those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache, partial, reduce
from itertools import pairwise
from typing import Any

import numpy as np

from . import packed
from . import tuples_numpy as plain
from .multiway import leapfrog
from .native import support
from .packed import Words, width
from .threads import ranges, share, together, workers

Codes = Any  # an array of int64
Column = Any  # an array of int32 or int64
ENOUGH = 1 << 14  # elements worth loading numba for, where it is not loaded yet
SPLIT = 1 << 17  # elements worth two threads
SMALL = 1 << 9  # codes that NumPy sorts as fast
BITMAP = 19  # bits of the places of a bitmap that fits into the nearest caches
CLOSE = 64  # places of a bitmap for each code up to which it is faster than a search
FEW = 16  # times as many codes in the other set, from which each is looked up by itself
CHUNK = 1 << 22  # pairs of rows that are held at once


@cache
def _kernels() -> Any:
    from .native import tuples

    return tuples


def _native(work: int) -> Any:
    """Return the module of kernels, or None where NumPy serves: little work and numba not loaded, or no numba."""
    return _kernels() if support.loaded() or (work >= ENOUGH and support.usable()) else None


def _native_bits(work: int) -> Any:
    if _native(work) is None:
        return None
    from .native import sparse_rows

    return sparse_rows


def unique(codes: Codes) -> Codes:
    """Return codes, in any order and with duplicates, as a set; what is a set already is returned as it is.

    >>> unique(np.array([3, 1, 3, 2]))
    array([1, 2, 3])
    """
    codes = _codes(codes)
    n = len(codes)
    kernels = _native(n)
    if kernels is None or n < SMALL:
        return plain.unique(codes)
    found = np.empty(3, np.int64)
    kernels.survey(codes, found)
    least, greatest, order = found.tolist()
    if order:
        return codes if order == 2 else codes[plain.first(codes)]
    count = _threads(n)
    if greatest - least >= CLOSE * n:
        parts = [codes[r].copy() for r in ranges(n, count)]
        together([part.sort for part in parts])
        return reduce(merge, [part[plain.first(part)] for part in parts])
    return _by_bitmaps(kernels, codes, least, (greatest - least).bit_length(), count)


def _by_bitmaps(kernels: Any, codes: Codes, least: int, bits: int, count: int) -> Codes:
    """Make codes of so many bits above the least a set: by buckets whose bitmaps fit into the nearest cache."""
    n = len(codes)
    shift = min(bits, BITMAP)
    buckets = 1 << bits - shift
    ways = ranges(n, count)
    counts = np.zeros((count, buckets), np.int64)
    together([partial(kernels.histogram, codes, least, shift, r.start, r.stop, counts[k]) for k, r in enumerate(ways)])
    starts = np.zeros(buckets + 1, np.int64)
    np.cumsum(counts.sum(axis=0), out=starts[1:])
    places = np.cumsum(counts, axis=0) - counts + starts[:-1]
    grouped = np.empty(n, np.int64)
    together(
        [partial(kernels.scatter, codes, least, shift, r.start, r.stop, places[k], grouped) for k, r in enumerate(ways)]
    )
    ends = np.empty(buckets, np.int64)
    cuts = [*(int(np.searchsorted(starts, n * k // count)) for k in range(count)), buckets]
    together([partial(kernels.sets, grouped, starts, shift, lo, hi, ends) for lo, hi in pairwise(cuts)])
    sizes = ends - starts[:-1]
    out = np.empty(int(sizes.sum()), np.int64)
    target = np.cumsum(sizes) - sizes
    together([partial(kernels.compact, grouped, starts, ends, target, least, lo, hi, out) for lo, hi in pairwise(cuts)])
    return out


def merge(a: Codes, b: Codes) -> Codes:
    """Return what is in either of two sets.

    >>> merge(np.array([1, 3]), np.array([2, 3]))
    array([1, 2, 3])
    """
    a, b = _codes(a), _codes(b)
    if not len(a) or not len(b):
        return a if len(a) else b
    kernels = _native(len(a) + len(b))
    if kernels is None:
        return plain.merge(a, b)
    return _combined(kernels.merge, *((a, b) if len(a) >= len(b) else (b, a)), whole=True)


def minus(a: Codes, b: Codes) -> Codes:
    """Return what is in the first of two sets and not in the second.

    >>> minus(np.array([1, 3]), np.array([2, 3]))
    array([1])
    """
    a, b = _codes(a), _codes(b)
    if not len(a) or not len(b):
        return a
    kernels = None if len(a) * FEW < len(b) else _native(len(a) + len(b))
    return a[~plain.member(a, b)] if kernels is None else _combined(kernels.minus, a, b)


def common(a: Codes, b: Codes) -> Codes:
    """Return what is in both of two sets.

    >>> common(np.array([1, 3]), np.array([2, 3]))
    array([3])
    """
    a, b = _codes(a), _codes(b)
    kernels = _native(len(a) + len(b))
    if kernels is None:
        return a[plain.member(a, b)]
    return _combined(kernels.common, *((a, b) if len(a) <= len(b) else (b, a)))


def _combined(kernel: Any, a: Codes, b: Codes, *, whole: bool = False) -> Codes:
    """Combine two sets by a kernel that goes through both, each thread through a part of the codes.

    A result has at most as many codes as the first set, or with ``whole`` as both.
    """
    count = min(_threads(len(a) + len(b)), max(1, len(a)))
    edges = np.array([r.start for r in ranges(len(a), count)])
    first = [*edges.tolist(), len(a)]
    second = [0, *np.searchsorted(b, a[edges[1:]]).tolist(), len(b)]
    parts: list[Any] = [None] * count

    def run(k: int) -> None:
        x, y = a[first[k] : first[k + 1]], b[second[k] : second[k + 1]]
        out = np.empty(len(x) + (len(y) if whole else 0), np.int64)
        parts[k] = out[: kernel(x, y, out)]

    together([partial(run, k) for k in range(count)])
    return parts[0] if count == 1 else np.concatenate(parts)


def member(keys: Codes, table: Codes) -> Any:
    """Tell of each key, in any order, whether it is in a set.

    >>> member(np.array([7, 1, 1]), np.array([1, 3]))
    array([False,  True,  True])
    """
    keys, table = _codes(keys), _codes(table)
    kernels = None if len(keys) * FEW < len(table) else _native(len(keys) + len(table))
    if kernels is None or not len(table):
        return plain.member(keys, table)
    least, greatest = int(table[0]), int(table[-1])
    if greatest - least < CLOSE * (len(keys) + len(table)):
        bitmap = np.zeros((greatest - least >> 6) + 1, np.uint64)
        kernels.mark(table, least, bitmap)
        out = np.empty(len(keys), np.bool_)
        share(lambda lo, hi: kernels.marked(keys, least, bitmap, lo, hi, out), len(keys), _threads(len(keys)))
        return out
    places = find(keys, table)
    places[places == len(table)] = 0
    return table[places] == keys


def find(keys: Codes, table: Codes) -> Codes:
    """Return the place of each key, in any order, in a sorted table: the first whose code is not less.

    >>> find(np.array([7, 1, 2]), np.array([1, 3]))
    array([2, 0, 1])
    """
    keys, table = _codes(keys), _codes(table)
    kernels = _native(len(keys) + len(table))
    if kernels is None:
        return np.searchsorted(table, keys)
    places = np.zeros(len(keys), np.int64)
    if len(table):
        least, known, shift = _index(kernels, table, 4 * len(table) + len(keys) // 2)
        run = partial(kernels.find, keys, table, least, shift, known)
        share(lambda lo, hi: run(lo, hi, places), len(keys), _threads(len(keys)))
    return places


def _index(kernels: Any, table: Codes, size: int) -> tuple[int, Any, int]:
    """Return the least of a sorted table, an index of its highest digits of about that size, and the digits that it leaves out."""
    least, span = int(table[0]), int(table[-1]) - int(table[0]) + 1
    shift = max(0, (span // max(size, 1)).bit_length())
    out = np.empty((span - 1 >> shift) + 2, np.int32)
    kernels.index(table, least, shift, out)
    return least, out, shift


def match(left: Codes, right: Codes, limit: int = CHUNK) -> Iterator[tuple[Column, Column]]:
    """Yield the pairs (place in left, place in right) of equal keys, at most about ``limit`` at a time.

    Left keys are in any order, right keys sorted; both may have duplicates. Pairs come in the order of the left, then of the right.

    >>> [(a.tolist(), b.tolist()) for a, b in match(np.array([5, 4, 5]), np.array([4, 5, 5]))]
    [([0, 0, 1, 2, 2], [1, 2, 0, 1, 2])]
    """
    left, right = _codes(left), _codes(right)
    names = right[plain.first(right)]
    ends = np.append(np.flatnonzero(plain.first(right)), len(right))
    place = find(left, names)
    found = np.append(names, 0)[place] == left
    found &= place < len(names)
    start = np.where(found, ends[place], 0)
    stop = np.where(found, ends[np.minimum(place + 1, len(names))], 0)
    yield from plain.pairs(start, stop, limit)


def join_codes(left: Codes, left_keys: Codes, right: Codes, right_keys: Codes) -> Codes:
    """Return the set of ``left[i] + right[j]`` over all i and j whose keys are equal: join and project, whatever the columns.

    ``left[i]`` is what row i of the left table adds to the code of a result (the sum of its columns times their strides), and
    ``right[j]`` likewise. Both tables are in any order. What is held meanwhile is bounded by the tables and the results, not by
    the pairs that make them.

    >>> join_codes(np.array([10, 20]), np.array([0, 1]), np.array([3, 3, 4]), np.array([0, 1, 1]))
    array([13, 23, 24])
    """
    from .sparse_rows import join_rows

    left, left_keys, right, right_keys = map(_codes, (left, left_keys, right, right_keys))
    names = unique(right_keys)
    matching = member(left_keys, names)
    if not matching.all():
        left, left_keys = left[matching], left_keys[matching]
    if not len(left):
        return np.empty(0, np.int64)
    heads, tails = unique(left), unique(right)
    a = unique(find(left, heads) * len(names) + find(left_keys, names))
    b = unique(find(right_keys, names) * len(tails) + find(right, tails))
    indptr, indices = join_rows(_rows(a, len(heads), len(names)), _rows(b, len(names), len(tails)), len(tails))
    codes = np.repeat(heads, np.diff(indptr))
    codes += tails[indices]
    return codes if len(heads) == 1 or np.diff(heads).min() > tails[-1] - tails[0] else unique(codes)


def _rows(codes: Codes, size: int, width: int) -> tuple[Any, Any]:
    """Return the rows of a set of codes of a matrix."""
    indptr = find(np.arange(size + 1) * width, codes)
    return indptr, (codes - np.repeat(np.arange(size) * width, np.diff(indptr))).astype(np.int32)


def multiway(atoms: Sequence[tuple[Sequence[Column], Sequence[int]]], outputs: int, strides: Sequence[int]) -> Codes:
    """Join many tables at once, variable by variable, so that no intermediate result is larger than need be.

    Variables are numbered in the order in which they are bound, the ones of the result first: there are ``outputs`` of those. An atom is
    its columns, sorted lexicographically and without duplicates, and the variable of each, ascending. Every variable is in
    some atom. The result is the set of codes of the output variables, by their strides.

    >>> x, y = np.array([0, 0, 1]), np.array([1, 2, 2])                            # edges 0-1, 0-2, 1-2
    >>> multiway([((x, y), (0, 1)), ((x, y), (1, 2)), ((x, y), (0, 2))], 3, (9, 3, 1))  # triangles: 0 1 2
    array([5])
    """
    rows = sum(len(columns[0]) for columns, _ in atoms)
    if _native(rows) is None:
        return plain.multiway(atoms, outputs, strides)
    parts = leapfrog(atoms, outputs, strides, _threads(rows))
    return unique(np.concatenate([codes[:total] for codes, total in parts]))


def encode(columns: Sequence[Column], shape: Sequence[int]) -> Codes:
    """Return the code of each tuple, given its columns and the size of each.

    >>> encode([np.array([1, 2]), np.array([0, 3])], (3, 4))
    array([ 4, 11])
    """
    codes = np.zeros(len(columns[0]) if columns else 1, np.int64)
    for column, size in zip(columns, shape, strict=True):
        codes *= size
        codes += column
    return codes


def decode(codes: Codes, shape: Sequence[int]) -> tuple[Column, ...]:
    """Return the columns of codes: int32 where the sizes allow it.

    >>> [c.tolist() for c in decode(np.array([4, 11]), (3, 4))]
    [[1, 2], [0, 3]]
    """
    columns = []
    rest = codes
    for n, size in reversed(list(enumerate(shape))):
        column, rest = rest, rest // max(size, 1) if n else rest
        if n:
            column = column - rest * size
        columns.append(column.astype(np.int32 if size < 1 << 31 else np.int64))
    return tuple(reversed(columns))


def numbered(a: Sequence[Column], b: Sequence[Column]) -> tuple[Codes, Codes, list[Column]]:
    """Number the different rows of two tables together, in order: the number of each row, and the columns of what is numbered.

    For tables whose tuples are too wide for a code.

    >>> mine, theirs, columns = numbered([np.array([1, 4]), np.array([0, 3])], [np.array([4]), np.array([3])])
    >>> mine.tolist(), theirs.tolist(), [c.tolist() for c in columns]
    ([0, 1], [1], [[1, 4], [0, 3]])
    """
    columns = [np.concatenate(pair) for pair in zip(a, b, strict=True)]
    order = np.lexsort(columns[::-1])
    fresh = np.ones(len(order), np.bool_)
    fresh[1:] = np.logical_or.reduce([c[order[1:]] != c[order[:-1]] for c in columns])
    numbers = np.empty(len(order), np.int64)
    numbers[order] = np.cumsum(fresh) - 1
    return numbers[: len(a[0])], numbers[len(a[0]) :], [c[order[fresh]] for c in columns]


def to_words(codes: Codes, shape: Sequence[int]) -> Words:
    """Return a set as packed bits along the last axis of a shape.

    >>> to_words(np.array([1, 65]), (2, 64)).tolist()
    [[2], [2]]
    """
    last = shape[-1] if len(shape) else 1
    out = np.zeros((*shape[:-1], width(last)), np.uint64)
    if len(codes):
        kernels = _native_bits(len(codes) + out.size)
        if kernels is None:
            row = codes // last
            plain.set_bits(out.reshape(-1), codes + row * (width(last) * 64 - last))
        else:
            kernels.set_bits(_codes(codes), last, width(last), out.reshape(-1), 0, len(codes))
    return out


def from_words(words: Words, shape: Sequence[int]) -> Codes:
    """Return packed bits as a set of codes.

    >>> from_words(np.array([[2], [2]], np.uint64), (2, 64))
    array([ 1, 65])
    """
    last = shape[-1] if len(shape) else 1
    flat = np.ascontiguousarray(words).reshape(-1)
    kernels = _native_bits(len(flat))
    if kernels is None:
        places = plain.places(flat)
        return places - places // (64 * max(1, width(last))) * (64 * width(last) - last)
    parts = ranges(len(flat), _threads(len(flat)))
    counts = [packed.count(flat[r]) for r in parts]
    codes = np.empty(sum(counts), np.int64)
    together(
        [
            partial(kernels.list_bits, flat, last, width(last), codes, sum(counts[:k]), r.start, r.stop)
            for k, r in enumerate(parts)
            if r.start < r.stop
        ]
    )
    return codes


def count_by(keys: Column, size: int) -> Codes:
    """Return how often each key from 0 up to a size occurs.

    >>> count_by(np.array([2, 0, 2]), 4)
    array([1, 0, 2, 0])
    """
    return np.bincount(keys, minlength=size).astype(np.int64, copy=False)


def _threads(work: int) -> int:
    """Return how many threads to share work of so many elements among."""
    return workers() if work >= SPLIT else 1


def _codes(x: Any) -> Codes:
    return np.ascontiguousarray(x, np.int64)
