"""Tables of integer-coded tuples: sets of codes and their joins, by native kernels or, where numba is absent, by NumPy.

A tuple (i, j, k) of a tensor of shape (a, b, c) is one code, ``(i * b + j) * c + k``, an int64; a *set* is a sorted array of
codes without duplicates. A table of two columns can also be held as *rows*: a pair (indptr, indices) as in scipy's CSR, whose
indices are sorted within a row; see :mod:`.sparse_rows` for what is done with those.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import numpy as np

from . import tuples_numpy as plain
from .native import support
from .packed import Words, width

Codes = Any  # an array of int64
Column = Any  # an array of int32 or int64
ENOUGH = 1 << 14  # elements worth loading numba for, where it is not loaded yet
SPLIT = 1 << 17  # elements worth two threads
CHUNK = 1 << 22  # pairs of rows that are held at once


@cache
def _kernels() -> Any:
    from .native import tuples

    return tuples


def _native(work: int) -> Any:
    """Return the module of kernels, or None where NumPy serves: little work and numba not loaded, or no numba."""
    return _kernels() if support.loaded() or (work >= ENOUGH and support.usable()) else None


def unique(codes: Codes, space: int | None = None) -> Codes:
    """Return codes, in any order and with duplicates, as a set; ``space`` is above every code where that is known.

    >>> unique(np.array([3, 1, 3, 2]))
    array([1, 2, 3])
    """
    return plain.unique(_codes(codes))


def merge(a: Codes, b: Codes) -> Codes:
    """Return what is in either of two sets.

    >>> merge(np.array([1, 3]), np.array([2, 3]))
    array([1, 2, 3])
    """
    return plain.merge(a, b)


def minus(a: Codes, b: Codes) -> Codes:
    """Return what is in the first of two sets and not in the second.

    >>> minus(np.array([1, 3]), np.array([2, 3]))
    array([1])
    """
    return a[~plain.member(a, b)]


def common(a: Codes, b: Codes) -> Codes:
    """Return what is in both of two sets.

    >>> common(np.array([1, 3]), np.array([2, 3]))
    array([3])
    """
    return a[plain.member(a, b)]


def member(keys: Codes, table: Codes) -> Any:
    """Tell of each key, in any order, whether it is in a set.

    >>> member(np.array([7, 1, 1]), np.array([1, 3]))
    array([False,  True,  True])
    """
    return plain.member(keys, table)


def match(left: Codes, right: Codes, limit: int = CHUNK) -> Iterator[tuple[Column, Column]]:
    """Yield the pairs (place in left, place in right) of equal keys, at most about ``limit`` at a time.

    Left keys are in any order, right keys sorted; both may have duplicates. Pairs come in the order of the left, then of the right.

    >>> [(a.tolist(), b.tolist()) for a, b in match(np.array([5, 4, 5]), np.array([4, 5, 5]))]
    [([0, 0, 1, 2, 2], [1, 2, 0, 1, 2])]
    """
    yield from plain.match(left, right, limit)


def join_codes(left: Codes, left_keys: Codes, right: Codes, right_keys: Codes, *, limit: int = CHUNK) -> Codes:
    """Return the set of ``left[i] + right[j]`` over all i and j whose keys are equal: join and project, whatever the columns.

    ``left[i]`` is what row i of the left table adds to the code of a result (the sum of its columns times their strides), and
    ``right[j]`` likewise. The right table is sorted by its keys. What is held meanwhile is bounded by the results, not by the
    pairs that make them.

    >>> join_codes(np.array([10, 20]), np.array([0, 1]), np.array([3, 3, 4]), np.array([0, 1, 1]))
    array([13, 23, 24])
    """
    return plain.join_codes(left, left_keys, right, right_keys, limit)


def multiway(atoms: Sequence[tuple[Sequence[Column], Sequence[int]]], outputs: int, strides: Sequence[int]) -> Codes:
    """Join many tables at once, variable by variable, so that no intermediate result is larger than need be.

    Variables are numbered in the order in which they are bound, the ones of the result first: there are ``outputs`` of those. An atom is
    its columns, sorted lexicographically and without duplicates, and the variable of each, ascending. Every variable is in
    some atom. The result is the set of codes of the output variables, by their strides.

    >>> x, y = np.array([0, 0, 1]), np.array([1, 2, 2])                            # edges 0-1, 0-2, 1-2
    >>> multiway([((x, y), (0, 1)), ((x, y), (1, 2)), ((x, y), (0, 2))], 3, (9, 3, 1))  # triangles: 0 1 2
    array([5])
    """
    return plain.multiway(atoms, outputs, strides)


def multiway_count(atoms: Sequence[tuple[Sequence[Column], Sequence[int]]], outputs: int) -> int:
    """Return how many results :func:`multiway` has, without making them."""
    return plain.multiway_count(atoms, outputs)


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
        if n:
            rest, column = np.divmod(rest, max(size, 1))
        else:
            column = rest
        columns.append(column.astype(np.int32 if size < 1 << 31 else np.int64))
    return tuple(reversed(columns))


def to_words(codes: Codes, shape: Sequence[int]) -> Words:
    """Return a set as packed bits along the last axis of a shape.

    >>> to_words(np.array([1, 65]), (2, 64)).tolist()
    [[2], [2]]
    """
    last = shape[-1] if len(shape) else 1
    out = np.zeros((*shape[:-1], width(last)), np.uint64)
    if len(codes):
        row, column = np.divmod(codes, last)
        plain.set_bits(out.reshape(-1), row * width(last) * 64 + column)
    return out


def from_words(words: Words, shape: Sequence[int]) -> Codes:
    """Return packed bits as a set of codes.

    >>> from_words(np.array([[2], [2]], np.uint64), (2, 64))
    array([ 1, 65])
    """
    last = shape[-1] if len(shape) else 1
    places = plain.places(words.reshape(-1))
    row, column = np.divmod(places, max(1, width(last) * 64))
    return row * last + column


def count_by(keys: Column, size: int) -> Codes:
    """Return how often each key from 0 up to a size occurs.

    >>> count_by(np.array([2, 0, 2]), 4)
    array([1, 0, 2, 0])
    """
    return np.bincount(keys, minlength=size).astype(np.int64, copy=False)


def min_by(keys: Column, values: Any, size: int, initial: Any) -> Any:
    """Return the least of the values of each key, and ``initial`` for keys that do not occur.

    >>> min_by(np.array([2, 0, 2]), np.array([5, 6, 4]), 4, -1)
    array([ 6, -1,  4, -1])
    """
    return plain.extreme_by(np.minimum, keys, values, size, initial)


def max_by(keys: Column, values: Any, size: int, initial: Any) -> Any:
    """Return the greatest of the values of each key, and ``initial`` for keys that do not occur.

    >>> max_by(np.array([2, 0, 2]), np.array([5, 6, 4]), 4, -1)
    array([ 6, -1,  5, -1])
    """
    return plain.extreme_by(np.maximum, keys, values, size, initial)


def _codes(x: Any) -> Codes:
    return np.ascontiguousarray(x, np.int64)
