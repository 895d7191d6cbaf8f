"""Sparse Boolean matrices as rows: joins, reachability, components and closures, natively or by SciPy where numba is absent.

*Rows* are a pair (indptr, indices) as in scipy's CSR: int64 offsets, one more than there are rows, and int32 column numbers,
sorted within a row and without duplicates.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np

from ..events import check_contexts
from . import packed, tuples
from .native import support
from .packed import Words
from .threads import ranges, together, together_or_stop, workers

Rows = tuple[Any, Any]
ENOUGH = 1 << 14  # elements worth loading numba for, where it is not loaded yet
SPLIT_PAIRS = 1 << 16  # pairs of matching elements that are worth two threads
SPREAD = 256  # columns for each element of b from which a join numbers its columns anew
ROOM = 1 << 24  # columns of a result that are allocated at a time; what is not written to takes no memory
PAUSE_PAIRS = 1 << 25  # matching pairs of a join after which it can be stopped


@cache
def _kernels() -> Any:
    from .native import sparse_rows

    return sparse_rows


def _native(work: int) -> Any:
    """Return the module of kernels, or None where SciPy serves: little work and numba not loaded, or no numba."""
    return _kernels() if support.loaded() or (work >= ENOUGH and support.usable()) else None


def _native_graphs(work: int) -> Any:
    """Return the module of kernels over graphs, or None where SciPy serves."""
    if _native(work) is None:
        return None
    from .native import graph_rows

    return graph_rows


def rows_of(first: Any, second: Any, size: int) -> Rows:
    """Return rows of two columns that are sorted lexicographically; ``size`` is the number of rows.

    >>> [x.tolist() for x in rows_of(np.array([0, 0, 2]), np.array([1, 2, 0]), 3)]
    [[0, 2, 2, 3], [1, 2, 0]]
    """
    indptr = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(first, minlength=size), out=indptr[1:])
    return indptr, np.ascontiguousarray(second, np.int32)


def rows_of_codes(codes: Any, shape: Sequence[int]) -> Rows:
    """Return the rows of a matrix whose true places have these codes, sorted.

    >>> [x.tolist() for x in rows_of_codes(np.array([1, 2, 6]), (3, 3))]
    [[0, 2, 2, 3], [1, 2, 0]]
    """
    kernels = _native(len(codes))
    if kernels is None:
        first, second = tuples.decode(codes, shape)
        return rows_of(first, second, shape[0])
    indptr, indices = np.empty(shape[0] + 1, np.int64), np.empty(len(codes), np.int32)
    kernels.split(codes, shape[1], indptr, indices)
    return indptr, indices


def columns_of(rows: Rows) -> tuple[Any, Any]:
    """Return the two columns of rows, sorted lexicographically.

    >>> [x.tolist() for x in columns_of((np.array([0, 2, 2, 3]), np.array([1, 2, 0])))]
    [[0, 0, 2], [1, 2, 0]]
    """
    indptr, indices = rows
    kernels = _native(len(indices))
    if kernels is None:
        return np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr)), indices
    first = np.empty(len(indices), np.int32)
    kernels.repeat(indptr, first)
    return first, indices


def transposed(rows: Rows, size: int) -> Rows:
    """Exchange rows and columns; ``size`` is the number of columns.

    >>> [x.tolist() for x in transposed((np.array([0, 2, 2, 3]), np.array([1, 2, 0], np.int32)), 3)]
    [[0, 1, 2, 3], [2, 0, 0]]
    """
    kernels = _native(len(rows[1]))
    if kernels is None:
        first, second = columns_of(rows)
        order = np.argsort(second, kind="stable")
        return rows_of(second[order], first[order], size)
    ends, out = np.zeros(size + 1, np.int64), np.empty(len(rows[1]), np.int32)
    kernels.transpose(*rows, ends, out)
    return ends, out


def join_rows(a: Rows, b: Rows, size: int) -> Rows:
    """Join and project: row i of the result has every j such that some k is in row i of a and j is in row k of b.

    ``size`` is the number of columns of b and of the result.

    >>> edges = rows_of(np.array([0, 1]), np.array([1, 2]), 3)
    >>> [x.tolist() for x in join_rows(edges, edges, 3)]
    [[0, 1, 1, 1], [2]]
    """
    if size > SPREAD * (len(b[1]) + 1):  # bitmaps of all columns would be mostly zero: number those that there are
        names, fewer = _renumbered(b)
        indptr, indices = join_rows(a, fewer, len(names))
        return indptr, names[indices]
    n = len(a[0]) - 1
    kernels = _native(len(a[1]) + len(b[1]))
    if kernels is None:
        made = _matrix(a, len(b[0]) - 1) @ _matrix(b, size)
        made.sort_indices()
        return made.indptr.astype(np.int64), made.indices.astype(np.int32)
    edges, bounds = _parts(a, b)
    ends = np.zeros(n + 1, np.int64)
    parts: list[list[Any]] = [[] for _ in bounds]

    def run(k: int) -> None:
        lo, hi = edges[k], edges[k + 1]
        maps = _bitmaps(size)
        room = bounds[k]
        while lo < hi:
            out = np.empty(min(room, max(ROOM, size)), np.int32)
            done = kernels.join(*a, *b, lo, hi, size, ends[1:], out, *maps)
            used = int(ends[done]) if done > lo else 0
            ends[lo + 1 : done + 1] += sum(map(len, parts[k]))
            parts[k].append(out[:used])
            lo = done

    together_or_stop([partial(run, k) for k in range(len(bounds))])
    sizes = [sum(map(len, chunks)) for chunks in parts]
    for k in range(1, len(bounds)):
        ends[edges[k] + 1 : edges[k + 1] + 1] += sum(sizes[:k])
    return ends, _joined([chunk for chunks in parts for chunk in chunks])


def _renumbered(rows: Rows) -> tuple[Any, Rows]:
    """Return the columns that occur, sorted, and the same rows with the place of each there."""
    names = tuples.unique(rows[1]).astype(np.int32)
    return names, (rows[0], np.searchsorted(names, rows[1]).astype(np.int32))


def _parts(a: Rows, b: Rows) -> tuple[list[int], list[int]]:
    """Cut the rows of a so that the parts of a join have as many pairs, one for each thread or more; also return each part's pairs."""
    n = len(a[0]) - 1
    pairs = np.zeros(len(a[1]) + 1, np.int64)  # of all elements of a before each
    np.cumsum(np.diff(b[0])[a[1]], out=pairs[1:])
    total = int(pairs[-1])
    count = max(1, min(max(workers(), total // PAUSE_PAIRS), n)) if total >= SPLIT_PAIRS else 1
    before = pairs[a[0]]
    edges = [0, *(int(np.searchsorted(before, total * k // count)) for k in range(1, count)), n]
    return edges, [int(before[hi] - before[lo]) for lo, hi in pairwise(edges)]


def _bitmaps(size: int) -> tuple[Words, Words, Words]:
    """Return the bitmap of so many columns, that of its words, and that of that one's words, all zero."""
    low = packed.width(max(size, 1))
    middle = packed.width(low)
    return np.zeros(low, np.uint64), np.zeros(middle, np.uint64), np.zeros(packed.width(middle), np.uint64)


def _joined(chunks: list[Any]) -> Any:
    """Put chunks one after another, and let each go as soon as it is copied."""
    if len(chunks) == 1:
        return chunks[0]
    out = np.empty(sum(map(len, chunks)), np.int32)
    place = len(out)
    while chunks:
        chunk = chunks.pop()
        place -= len(chunk)
        out[place : place + len(chunk)] = chunk
    return out


def reach(rows: Rows, sources: Any) -> Any:
    """Tell of each node of a graph whether one of the sources leads to it in one step or more.

    >>> reach(rows_of(np.array([0, 1, 3]), np.array([1, 2, 0]), 4), [0])
    array([False,  True,  True, False])
    """
    sources = np.ascontiguousarray(sources, np.int64)
    seen = np.zeros(len(rows[0]) - 1, np.bool_)
    kernels = _native_graphs(len(rows[1]))
    if kernels is None:
        _reach_by_rounds(rows, sources, seen)
    else:
        kernels.reach(*rows, sources, seen)
    return seen


def reach_few(codes: Any, sources: Any, size: int, limit: int) -> Any:
    """Do as :func:`reach` does for a graph that is given as sorted codes, without rows; None where more than ``limit`` nodes are met.

    >>> reach_few(np.array([1, 6, 12]), [0], 4, 10)
    array([False,  True,  True, False])
    """
    kernels = _native_graphs(len(codes))
    if kernels is None:
        return reach(rows_of_codes(codes, (size, size)), sources)
    seen = np.zeros(size, np.bool_)
    met = kernels.reach_few(codes, np.ascontiguousarray(sources, np.int64), size, limit, seen)
    return seen if met <= limit else None


def reach_each(rows: Rows, sources: Any, limit: int) -> Rows | None:
    """Return what each of some sources leads to in one step or more, as rows; None where there are more than ``limit`` pairs.

    >>> [x.tolist() for x in reach_each(rows_of(np.array([0, 1]), np.array([1, 2]), 3), [0, 2], 10)]
    [[0, 2, 2], [1, 2]]
    """
    n = len(rows[0]) - 1
    kernels = _native_graphs(len(rows[1]))
    if kernels is None:
        found = [np.flatnonzero(reach(rows, [source])).astype(np.int32) for source in sources]
        ends = np.cumsum([0, *map(len, found)])
        return (ends, np.concatenate([np.empty(0, np.int32), *found])) if ends[-1] <= limit else None
    ends, out = np.zeros(len(sources) + 1, np.int64), np.empty(limit + n, np.int32)
    done = kernels.reach_each(*rows, np.ascontiguousarray(sources, np.int32), limit, ends, out, *_bitmaps(n))
    return (ends, out[: ends[-1]].copy()) if done == len(sources) and ends[-1] <= limit else None


def replaced(rows: Rows, at: Any, part: Rows) -> Rows:
    """Return rows with some of them replaced: those numbered ``at``, ascending, by the rows of a part.

    >>> rows = rows_of(np.array([0, 0, 2]), np.array([1, 2, 0]), 3)
    >>> [x.tolist() for x in replaced(rows, np.array([1, 2]), (np.array([0, 1, 1]), np.array([2], np.int32)))]
    [[0, 2, 3, 3], [1, 2, 2]]
    """
    indptr, indices = rows
    lengths = np.diff(indptr)
    lengths[at] = np.diff(part[0])
    pieces, end = [], 0
    for k, row in enumerate(at.tolist()):
        pieces += [indices[end : indptr[row]], part[1][part[0][k] : part[0][k + 1]]]
        end = indptr[row + 1]
    return np.concatenate(([0], np.cumsum(lengths))), np.concatenate([*pieces, indices[end:]])


def _reach_by_rounds(rows: Rows, sources: Any, seen: Any) -> None:
    indptr, indices = rows
    done = np.zeros(len(seen), np.bool_)
    front = np.unique(sources)
    while len(front):
        done[front] = True
        counts = indptr[front + 1] - indptr[front]
        first = np.repeat(indptr[front] - (np.cumsum(counts) - counts), counts)
        found = indices[first + np.arange(int(counts.sum()))]
        seen[found] = True
        front = np.unique(found[~done[found]]).astype(np.int64)


def components(rows: Rows) -> tuple[int, Any]:
    """Return the number of strongly connected components, and that of each node; a component leads to lower numbers only.

    >>> count, labels = components(rows_of(np.array([0, 1, 2]), np.array([1, 0, 0]), 3))
    >>> count, labels.tolist()
    (2, [0, 0, 1])
    """
    n = len(rows[0]) - 1
    kernels = _native_graphs(n + len(rows[1]))
    labels = np.empty(n, np.int32)
    if kernels is None:
        return _components_by_scipy(rows, labels)
    return int(kernels.components(*rows, labels)), labels


def _components_by_scipy(rows: Rows, labels: Any) -> tuple[int, Any]:
    from scipy.sparse import csgraph

    n = len(labels)
    if not n:
        return 0, labels
    count, found = csgraph.connected_components(_matrix(rows, n), connection="strong")
    first, second = columns_of(rows)
    a, b = found[first], found[second]
    waiting = np.unique(np.stack((a, b))[:, a != b], axis=1)  # which component waits for which to be numbered
    number = np.full(count, -1, np.int32)
    given = 0
    while given < count:  # the sinks of what is left
        ready = np.setdiff1d(np.flatnonzero(number < 0), waiting[0])
        number[ready] = np.arange(given, given + len(ready))
        given += len(ready)
        waiting = waiting[:, number[waiting[1]] < 0]
    labels[:] = number[found]
    return int(count), labels


def closure_bits(rows: Rows) -> Words:
    """Return what each node of a graph leads to in one step or more, as packed bits: a row of words for every node.

    >>> closure_bits(rows_of(np.array([0, 1]), np.array([1, 2]), 3)).tolist()
    [[6], [4], [0]]
    """
    n = len(rows[0]) - 1
    kernels = _native_graphs(n * n)
    if kernels is None:
        return packed.closure(packed.pack(_matrix(rows, n).toarray()))
    out = np.zeros((n, packed.width(n)), np.uint64)
    labels, count, ends, listed = _grouped(kernels, rows)
    width, flat = packed.width(n), out.reshape(-1)
    done = 0
    while done < count:
        check_contexts()
        done = int(kernels.closure_bits(*rows, labels, count, ends, listed, done, packed.PAUSE, width, flat))
    step = max(1, packed.PAUSE // max(1, width))
    copy = partial(kernels.copy_bits, labels, ends, listed, width, flat)
    for lo in range(0, n, step) if count < n else ():
        check_contexts()
        hi = min(n, lo + step)
        parts = ranges(hi - lo, workers() if (hi - lo) * width > SPLIT_PAIRS else 1)
        together([partial(copy, lo + r.start, lo + r.stop) for r in parts])
    return out


def closure_rows(rows: Rows, limit: int = 1 << 62) -> Rows | None:
    """Return what each node leads to in one step or more, as rows; None where there are more than ``limit`` pairs.

    >>> [x.tolist() for x in closure_rows(rows_of(np.array([0, 1]), np.array([1, 2]), 3))]
    [[0, 2, 3, 3], [1, 2, 2]]
    """
    n = len(rows[0]) - 1
    kernels = _native_graphs(n + len(rows[1]))
    if kernels is None:
        total, new = rows, rows
        while len(new[1]) and len(total[1]) <= limit:
            check_contexts()
            more = _matrix(join_rows(new, rows, n), n)
            fresh = (more > _matrix(total, n)).tocsr()
            both = (more + _matrix(total, n)).tocsr()
            fresh.sort_indices()
            both.sort_indices()
            total, new = ((x.indptr.astype(np.int64), x.indices.astype(np.int32)) for x in (both, fresh))
        return total if len(total[1]) <= limit else None
    labels, count, ends, listed = _grouped(kernels, rows)
    sizes = np.diff(ends)
    tops, maps = np.zeros(count + 1, np.int64), _bitmaps(n)
    out = np.empty(max(len(rows[1]) * 2, n, min(limit, ROOM), 1), np.int32)  # what is not written to takes no memory
    kernel = partial(kernels.closure_rows, *rows, labels, count, ends, listed)
    done = pairs = 0
    while done < count:
        check_contexts()
        before, done = done, int(kernel(done, packed.PAUSE, tops, out, *maps))
        pairs = int((np.diff(tops[: done + 1]) * sizes[:done]).sum())
        if pairs > limit:
            return None
        if done == before:  # there was no room for the next
            out, old = np.empty(len(out) * 2 + n, np.int32), out
            out[: tops[done]] = old[: tops[done]]
    lengths = np.diff(tops)
    indptr = np.zeros(n + 1, np.int64)
    np.cumsum(lengths[labels], out=indptr[1:])
    indices = np.empty(pairs, np.int32)
    kernels.copy_rows(tops, out, labels, indptr, indices)
    return indptr, indices


def _grouped(kernels: Any, rows: Rows) -> tuple[Any, int, Any, Any]:
    """Return the component of each node, how many there are, and the nodes of each."""
    labels = np.empty(len(rows[0]) - 1, np.int32)
    count = int(kernels.components(*rows, labels))
    ends, listed = np.zeros(count + 1, np.int64), np.empty(len(labels), np.int32)
    kernels.members(labels, count, ends, listed)
    return labels, count, ends, listed


def _matrix(rows: Rows, size: int) -> Any:
    from scipy import sparse

    indptr, indices = rows
    return sparse.csr_array((np.ones(len(indices), np.bool_), indices, indptr), shape=(len(indptr) - 1, size))
