"""Sets and joins of tuple codes by NumPy alone: what runs where numba is absent, and for the smallest tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Codes = Any
Column = Any
STEP = 1 << 16  # words whose bits are looked at together
Atoms = Sequence[tuple[Sequence[Column], Sequence[int]]]


def unique(codes: Codes) -> Codes:
    """Sort codes and drop duplicates."""
    codes = np.sort(codes)
    return codes[first(codes)]


def first(sorted_codes: Codes) -> Any:
    """Tell of each of sorted codes whether it differs from the one before."""
    out = np.ones(len(sorted_codes), np.bool_)
    np.not_equal(sorted_codes[1:], sorted_codes[:-1], out=out[1:])
    return out


def merge(a: Codes, b: Codes) -> Codes:
    """Return the union of two sets."""
    return unique(np.concatenate((a, b)))


def member(keys: Codes, table: Codes) -> Any:
    """Tell of each key whether it is in a set."""
    if not len(table):
        return np.zeros(len(keys), np.bool_)
    place: Any = np.searchsorted(table, keys)
    place[place == len(table)] = 0
    return table[place] == keys


def pairs(start: Any, stop: Any, limit: int) -> Iterator[tuple[Column, Column]]:
    """Yield each row with every place from its start to its stop, a bounded number at a time; one row's places stay together."""
    total = np.cumsum(stop - start)
    row = 0
    while row < len(start):
        done = total[row - 1] if row else 0
        end = max(row + 1, int(np.searchsorted(total, done + limit, "right")))
        many = (stop - start)[row:end]
        offset = np.repeat(start[row:end] - (np.cumsum(many) - many), many)
        if len(offset):
            yield np.repeat(np.arange(row, end), many), offset + np.arange(len(offset))
        row = end


def _join(atoms: Atoms) -> dict[int, Column]:
    """Return the columns of the join of all atoms, by variable."""
    known: dict[int, Column] = {}
    for columns, variables in atoms:
        own = dict(zip(variables, (np.asarray(c, np.int64) for c in columns), strict=True))
        if not known:
            known = own
            continue
        shared = sorted(own.keys() & known.keys())
        a, b = np.zeros(len(next(iter(known.values()))), np.int64), np.zeros(len(next(iter(own.values()))), np.int64)
        for v in shared:  # the pair of what was shared so far and this variable, numbered anew
            both = np.concatenate((known[v], own[v]))
            _, number = np.unique(np.stack((np.concatenate((a, b)), both)), axis=1, return_inverse=True)
            a, b = number.reshape(-1)[: len(a)], number.reshape(-1)[len(a) :]
        order = np.argsort(b, kind="stable")
        keys = b[order]
        parts = list(pairs(np.searchsorted(keys, a, "left"), np.searchsorted(keys, a, "right"), 1 << 62))
        i, j = parts[0] if parts else (np.empty(0, np.int64), np.empty(0, np.int64))
        known = {v: c[i] for v, c in known.items()} | {v: c[order[j]] for v, c in own.items() if v not in known}
    return known


def multiway(atoms: Atoms, outputs: int, strides: Sequence[int]) -> Codes:
    """Return the codes of the output variables of a join of all atoms."""
    known = _join(atoms)
    size = min((len(c) for c in known.values()), default=1)
    codes = np.zeros(size, np.int64)
    for v in range(outputs):
        codes += known[v] * strides[v]
    return unique(codes)


def set_bits(flat: Any, places: Codes) -> None:
    """Set bits of words, given their places."""
    word, bit = places >> 6, np.uint64(1) << (places & 63).astype(np.uint64)
    start = np.flatnonzero(first(word))
    flat[word[start]] |= np.bitwise_or.reduceat(bit, start)


def places(flat: Any) -> Codes:
    """Return the places of the set bits of words."""
    parts = [np.empty(0, np.int64)]
    for lo in range(0, len(flat), STEP):
        octets = np.ascontiguousarray(flat[lo : lo + STEP]).astype("<u8", copy=False).view(np.uint8)
        parts.append(np.flatnonzero(np.unpackbits(octets, bitorder="little")) + lo * 64)
    return np.concatenate(parts)
