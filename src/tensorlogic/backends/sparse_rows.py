"""Sparse Boolean matrices as rows: joins, reachability, components and closures, natively or by SciPy where numba is absent.

*Rows* are a pair (indptr, indices) as in scipy's CSR: int64 offsets, one more than there are rows, and int32 column numbers,
sorted within a row and without duplicates.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from . import packed
from .packed import Words

Rows = tuple[Any, Any]


def rows_of(first: Any, second: Any, size: int) -> Rows:
    """Return rows of two columns that are sorted lexicographically; ``size`` is the number of rows.

    >>> [x.tolist() for x in rows_of(np.array([0, 0, 2]), np.array([1, 2, 0]), 3)]
    [[0, 2, 2, 3], [1, 2, 0]]
    """
    indptr = np.zeros(size + 1, np.int64)
    np.cumsum(np.bincount(first, minlength=size), out=indptr[1:])
    return indptr, np.ascontiguousarray(second, np.int32)


def columns_of(rows: Rows) -> tuple[Any, Any]:
    """Return the two columns of rows, sorted lexicographically.

    >>> [x.tolist() for x in columns_of((np.array([0, 2, 2, 3]), np.array([1, 2, 0])))]
    [[0, 0, 2], [1, 2, 0]]
    """
    indptr, indices = rows
    return np.repeat(np.arange(len(indptr) - 1, dtype=np.int32), np.diff(indptr)), indices


def transposed(rows: Rows, size: int) -> Rows:
    """Exchange rows and columns; ``size`` is the number of columns.

    >>> [x.tolist() for x in transposed((np.array([0, 2, 2, 3]), np.array([1, 2, 0], np.int32)), 3)]
    [[0, 1, 2, 3], [2, 0, 0]]
    """
    first, second = columns_of(rows)
    order = np.argsort(second, kind="stable")
    return rows_of(second[order], first[order], size)


def _matrix(rows: Rows, size: int) -> Any:
    from scipy import sparse

    indptr, indices = rows
    return sparse.csr_array((np.ones(len(indices), np.bool_), indices, indptr), shape=(len(indptr) - 1, size))


def join_rows(a: Rows, b: Rows, size: int) -> Rows:
    """Join and project: row i of the result has every j such that some k is in row i of a and j is in row k of b.

    ``size`` is the number of columns of b and of the result.

    >>> edges = rows_of(np.array([0, 1]), np.array([1, 2]), 3)
    >>> [x.tolist() for x in join_rows(edges, edges, 3)]
    [[0, 1, 1, 1], [2]]
    """
    made = _matrix(a, len(b[0]) - 1) @ _matrix(b, size)
    made.sort_indices()
    return made.indptr.astype(np.int64), made.indices.astype(np.int32)


def join_rows_count(a: Rows, b: Rows, size: int) -> Any:
    """Return how many elements each row of :func:`join_rows` has, without making them."""
    return np.diff(join_rows(a, b, size)[0])


def reach(rows: Rows, sources: Any, *, start: bool = False) -> Any:
    """Tell of each node of a graph whether one of the sources leads to it in one step or more; with ``start``, also in none.

    >>> reach(rows_of(np.array([0, 1, 3]), np.array([1, 2, 0]), 4), [0])
    array([False,  True,  True, False])
    """
    indptr, indices = rows
    seen = np.zeros(len(indptr) - 1, np.bool_)
    done = seen.copy()
    front = np.unique(np.asarray(sources, np.int64))
    if start:
        seen[front] = True
    while len(front):
        done[front] = True
        counts = indptr[front + 1] - indptr[front]
        first = np.repeat(indptr[front] - (np.cumsum(counts) - counts), counts)
        found = indices[first + np.arange(int(counts.sum()))]
        seen[found] = True
        front = np.unique(found[~done[found]]).astype(np.int64)
    return seen


def components(rows: Rows) -> tuple[int, Any]:
    """Return the number of strongly connected components, and that of each node; a component leads to lower numbers only.

    >>> count, labels = components(rows_of(np.array([0, 1, 2]), np.array([1, 0, 0]), 3))
    >>> count, labels.tolist()
    (2, [0, 0, 1])
    """
    raise NotImplementedError


def closure_bits(rows: Rows) -> Words:
    """Return what each node of a graph leads to in one step or more, as packed bits: a row of words for every node.

    >>> closure_bits(rows_of(np.array([0, 1]), np.array([1, 2]), 3)).tolist()
    [[6], [4], [0]]
    """
    n = len(rows[0]) - 1
    return packed.closure(packed.pack(_matrix(rows, n).toarray()))


def closure_rows(rows: Rows, limit: int = 1 << 62) -> Rows | None:
    """Return what each node leads to in one step or more, as rows; None where there are more than ``limit`` pairs.

    >>> [x.tolist() for x in closure_rows(rows_of(np.array([0, 1]), np.array([1, 2]), 3))]
    [[0, 2, 3, 3], [1, 2, 2]]
    """
    raise NotImplementedError
