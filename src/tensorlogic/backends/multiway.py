"""Joins of many tables at once: how their columns are laid out for the kernel, and how threads share the work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .threads import ranges, together_or_stop

Codes = Any  # an array of int64
Column = Any  # an array of int32 or int64
Atoms = Sequence[tuple[Sequence[Column], Sequence[int]]]  # the columns of tables, and the variable of each
NARROW = (1 << 31) - 2  # the greatest value that a column of int32 may have
MARKED = 1 << 25  # the greatest value that a bitmap is made for
PIECES = 8  # parts of the work for each thread, because some take longer than others
PAUSE = 1 << 12  # rows of the table that leads, after which the work can be stopped


def leapfrog(atoms: Atoms, outputs: int, strides: Sequence[int], threads: int) -> list[tuple[Codes, int]]:
    """Run the kernel for parts of the first variable's values; return the codes of each part, and how many of them count."""
    from .native import multiway as kernels

    if any(not len(columns[0]) for columns, _ in atoms) or not atoms:
        return [(np.zeros(1, np.int64), 0 if atoms else 1)]
    layout = participants(atoms)
    run = kernels.narrow if layout.data.dtype == np.int32 else kernels.wide
    weights = np.array([*strides, 0], np.int64)
    driver = max((columns[0] for columns, own in atoms if own[0] == 0), key=len)
    pieces = max(PIECES * threads if threads > 1 else 1, len(driver) // PAUSE) if outputs else 1
    cuts = [
        *sorted({0, *(int(driver[r.start]) for r in ranges(len(driver), min(pieces, len(driver)))[1:])}),
        (1 << 63) - 1,
    ]
    parts: list[Any] = [None] * (len(cuts) - 1)

    def part(k: int) -> None:
        total = np.zeros(1, np.int64)
        codes = run(*layout, weights, outputs, cuts[k], cuts[k + 1], total)
        parts[k] = codes, int(total[0])

    together_or_stop([partial(part, k) for k in range(len(parts))], threads)
    return parts


class Participants(NamedTuple):
    """The columns of a multiway join, variable by variable, as its kernel takes them."""

    data: Column  # all columns, one after another
    index: Any  # of first columns: for every value how many are less
    first: Codes  # the first participant of each variable
    column: Codes  # where each participant's column begins in data
    rows: Codes
    after: Codes  # the participant that is the next column of the same table, or -1
    indexed: Codes  # where each participant's index begins, or -1, and its length
    wedge: Codes  # the participants of the last two variables, where those are done at once, and the words of a bitmap


def participants(atoms: Atoms) -> Participants:
    """Lay out the columns of a multiway join; columns that several atoms share are held once."""
    wide = any(c.dtype.itemsize > 4 and c.max() > NARROW for columns, _ in atoms for c in columns)
    dtype = np.int64 if wide else np.int32
    order = sorted((v, n, k) for n, (_, own) in enumerate(atoms) for k, v in enumerate(own))
    number = {(n, k): p for p, (_, n, k) in enumerate(order)}
    held, indices = _Pool(dtype), _Pool(np.int32)
    column, rows, after, indexed = [], [], [], []
    for _, n, k in order:
        own = atoms[n][0][k]
        column.append(held.add(own))
        rows.append(len(own))
        after.append(number.get((n, k + 1), -1))
        size = int(own[-1]) + 2 if k == 0 else 0  # a first column is sorted
        if 0 < size <= 8 * len(own) + 1024:
            place = indices.add(own, index=True)
        else:
            place = -1
        indexed += [place, size]
    variables = [v for v, _, _ in order]
    first = np.searchsorted(variables, np.arange(variables[-1] + 2))
    wedge = _wedge(first.tolist(), after, indexed, max(int(c.max()) for columns, _ in atoms for c in columns))
    lists = [np.array(x, np.int64) for x in (first, column, rows, after, indexed, wedge)]
    return Participants(held.whole(), indices.whole(), *lists)


def _wedge(first: list[int], after: list[int], indexed: list[int], greatest: int) -> list[int]:
    """Tell whether the last two variables are like those of a triangle x, y, z: E(x, y), E(y, z), E(x, z), and x is bound before."""
    if len(first) < 4 or first[-1] - first[-2] != 2 or first[-2] - first[-3] != 2 or greatest > MARKED:
        return []
    one, other = first[-3], first[-3] + 1
    p, q = (one, other) if indexed[2 * other] >= 0 else (other, one)
    last = {first[-2], first[-2] + 1}
    if indexed[2 * q] < 0 or indexed[2 * p] >= 0 or after[p] >= 0 or after[q] not in last:
        return []
    (fixed,) = last - {after[q]}
    return [p, q, fixed, (greatest >> 6) + 1] if fixed in after else []


class _Pool:
    """Arrays one after another, each source once."""

    def __init__(self, dtype: Any) -> None:
        self.dtype, self.size = dtype, 0
        self.parts: list[Any] = []
        self.places: dict[tuple[Any, ...], int] = {}

    def add(self, source: Any, *, index: bool = False) -> int:
        """Return where a source begins, or its index."""
        key = source.__array_interface__["data"][0], len(source), source.strides, source.dtype
        if key not in self.places:
            self.places[key] = self.size
            self.parts.append(np.append(0, np.cumsum(np.bincount(source))) if index else source)
            self.size += len(self.parts[-1])
        return self.places[key]

    def whole(self) -> Any:
        """Return all arrays as one."""
        if len(self.parts) == 1 and self.parts[0].dtype == self.dtype and self.parts[0].flags.c_contiguous:
            return self.parts[0]
        return np.concatenate([np.empty(0, self.dtype), *self.parts]).astype(self.dtype, copy=False)
