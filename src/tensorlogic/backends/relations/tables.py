"""Tables over variables, which joins are made of, and the relations that they become."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import OutOfMemoryError
from ...plan.queries import Atom, Fixed, Query, Test, Variable
from .. import tuples
from ..sparse import SparseTensor

CODES = 1 << 62  # a table whose codes are below this is deduplicated by code
EMPTY = np.zeros(0, np.int64)


class Rows(NamedTuple):
    """A table over variables: a column for each, all of one length."""

    variables: tuple[Variable, ...]
    columns: tuple[Any, ...]
    length: int

    def column(self, v: Variable) -> Any:
        """Return the column of a variable."""
        return self.columns[self.variables.index(v)]

    def where(self, mask: Any) -> Rows:
        """Return the rows for which a mask is set."""
        return Rows(self.variables, tuple(c[mask] for c in self.columns), int(np.count_nonzero(mask)))


class Source(NamedTuple):
    """A relation with a different variable for each of its axes."""

    tensor: SparseTensor
    variables: tuple[Variable, ...]


def too_many_tuples(count: int) -> OutOfMemoryError:
    """Return the error for a recursion that there is no memory for."""
    message = f"a recursive rule derives more than {count:,} tuples, and there is no memory for more"
    hint = "ask for less: a query with constants, such as Path(1, x)?, derives only what they need"
    return OutOfMemoryError(message, hint, code="E450")


def nothing(shape: Sequence[int]) -> SparseTensor:
    """Return the empty relation of a shape."""
    if math.prod(shape) < CODES:
        return SparseTensor.of_codes(EMPTY, shape)
    return SparseTensor.of_columns([EMPTY] * len(shape), shape)


def union(parts: Sequence[SparseTensor], shape: Sequence[int]) -> SparseTensor:
    """Return the union of relations of one shape."""
    parts = [p for p in parts if p.count]
    if len(parts) < 2:
        return parts[0] if parts else nothing(shape)
    if math.prod(shape) < CODES:
        codes = parts[0].codes
        for p in sorted(parts[1:], key=lambda p: p.count):
            codes = tuples.merge(codes, p.codes)
        return SparseTensor.of_codes(codes, shape)
    columns = [np.concatenate([p.columns[a] for p in parts]) for a in range(len(shape))]
    return SparseTensor.of_columns(columns, shape)


def is_increasing(codes: Any) -> bool:
    """Tell whether codes are sorted and all different."""
    return len(codes) < 2 or bool((codes[1:] > codes[:-1]).all())


def variables_of(sources: Iterable[Source], tests: Iterable[Test], negated: Iterable[Atom]) -> set[Variable]:
    """Return the variables of atoms and tests."""
    found = {v for s in sources for v in s.variables}
    found |= {v for t in tests for v in t.variables()}
    return found | {t for a in negated for t in a.terms if not isinstance(t, Fixed)}


def strides_of(sizes: Sequence[int]) -> list[int]:
    """Return by how much a code grows with each of its places."""
    strides, total = [], 1
    for n in reversed(sizes):
        strides.append(total)
        total *= n
    return strides[::-1]


def paired(starts: Any, counts: Any) -> tuple[Any, Any]:
    """Return every row with each of the places from its start on."""
    first = np.cumsum(counts) - counts
    i = np.repeat(np.arange(len(counts)), counts)
    return i, np.arange(len(i)) + np.repeat(starts - first, counts)


def weighted(columns: Sequence[Any], weights: Sequence[int], count: int | None = None) -> Any:
    """Return the sum of columns, each times its weight."""
    total = np.zeros(len(columns[0]) if count is None else count, np.int64)
    for column, weight in zip(columns, weights, strict=True):
        if weight:
            total += column.astype(np.int64) * weight
    return total


def distinct_rows(rows: Rows, kept: Sequence[Variable], sizes: Sequence[int]) -> Rows:
    """Return rows of some variables only, each once."""
    columns = [rows.column(v) for v in kept]
    own = [sizes[v] for v in kept]
    if not kept:
        return Rows((), (), min(1, rows.length))
    if math.prod(own) < CODES:
        codes = tuples.unique(tuples.encode(columns, own))
        return Rows(tuple(kept), tuples.decode(codes, own), len(codes))
    order = np.lexsort(columns[::-1])
    columns = [c[order] for c in columns]
    fresh = np.ones(rows.length, np.bool_)
    if rows.length:
        fresh[1:] = np.logical_or.reduce([c[1:] != c[:-1] for c in columns])
    return Rows(tuple(kept), tuple(c[fresh] for c in columns), int(np.count_nonzero(fresh)))


def crossed(rows: Rows, v: Variable, size: int) -> Rows:
    """Return rows with every value of one more variable."""
    columns = (*(np.repeat(c, size) for c in rows.columns), np.tile(np.arange(size, dtype=np.int64), rows.length))
    return Rows((*rows.variables, v), columns, rows.length * size)


def in_a_circle(sources: Sequence[Source]) -> bool:
    """Tell whether atoms cannot be taken off one by one, each with all that it shares within one other (Graham's reduction)."""
    edges = [set(s.variables) for s in sources]
    moved = True
    while moved and len(edges) > 1:
        moved = False
        for n, edge in enumerate(edges):
            others = edges[:n] + edges[n + 1 :]
            shared = {v for v in edge if any(v in o for o in others)}
            if any(shared <= o for o in others):
                edges = others
                moved = True
                break
    return len(edges) > 1


def among(rows: Rows, tensor: SparseTensor, variables: Sequence[Variable], *, absent: bool = False) -> Rows:
    """Return the rows whose values of some variables are, or are not, in a relation."""
    if not variables:
        held = tensor.count > 0
        return rows if held != absent else Rows(rows.variables, tuple(c[:0] for c in rows.columns), 0)
    mask = tensor.holds([rows.column(v) for v in variables])
    return rows.where(~mask if absent else mask)


def bound_by(test: Test, v: Variable, rows: Rows, sizes: Sequence[int]) -> Rows | None:
    """Return rows with a variable that a test says the value of; None where it does not."""
    if test.fn != "equal":
        return None
    for own, other in ((test.left, test.right), (test.right, test.left)):
        if v in set(other.variables()):
            continue
        columns = dict(zip(rows.variables, rows.columns, strict=True))
        if own.op == "index":
            value = np.broadcast_to(np.asarray(other.compute(columns)), (rows.length,))
            inside = (value >= 0) & (value < sizes[v])
            narrowed = rows.where(inside)
            return Rows((*rows.variables, v), (*narrowed.columns, value[inside].astype(np.int64)), narrowed.length)
        if own.op == "table" and own.args[1].op == "index":
            value = np.broadcast_to(np.asarray(other.compute(columns)), (rows.length,)).astype(np.int64)
            order = np.argsort(own.args[0], kind="stable")
            pairs = list(tuples.match(np.ascontiguousarray(value), own.args[0][order].astype(np.int64)))
            i = np.concatenate([a for a, _ in pairs]) if pairs else EMPTY
            j = np.concatenate([b for _, b in pairs]) if pairs else EMPTY
            return Rows((*rows.variables, v), (*(c[i] for c in rows.columns), order[j]), len(i))
    return None


def relation_of(rows: Rows, query: Query, shape: Sequence[int]) -> SparseTensor:
    """Return the terms of a query for each of some rows, as a relation."""
    if not query.terms:
        return SparseTensor.of_codes(np.zeros(min(1, rows.length), np.int64), shape)
    columns = [np.full(rows.length, t.code, np.int64) if isinstance(t, Fixed) else rows.column(t) for t in query.terms]
    if math.prod(shape) >= CODES:
        return SparseTensor.of_columns(columns, shape)
    codes = tuples.encode(columns, shape)
    return SparseTensor.of_codes(codes, shape, is_increasing(codes))
