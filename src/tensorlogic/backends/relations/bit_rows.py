"""Fixpoints of rules S(x,w) <- L(x,u), S(u,v), R(v,w), such as same generation: S grows as rows of bits, L and R are sparse rows.

What is new of S is ORed together row by row along L, and each of its bits moved along R, so that no matrix is ever transposed. It
serves where R has few elements in a row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...events import check_contexts, span
from ...plan.queries import Atom, Query
from ...plan.query_reader import Slot
from .. import packed, sparse_rows
from ..bits import BitTensor
from ..native import support
from ..sparse import SparseTensor
from .joins import Joins
from .worklist import chain_of, is_chain

THIN = 4  # elements of R in a row, on average, up to which its bits are moved one by one
# that may match where relations on one side are joined to one; beyond, the rules are better followed as they stand
PAIRS = 1 << 22
BUDGET = 1 << 24  # words read, after which the loop can be stopped at the end of a round


class Sides(NamedTuple):
    """What stands on the left and on the right of the relation that grows, in one of its rules; None where there is nothing."""

    left: SparseTensor | None
    right: SparseTensor | None


def read_sides(queries: Sequence[Query], carry: Slot, joins: Joins, shape: Sequence[int]) -> list[Sides] | None:
    """Return the sides of rules that read a relation once each, between others that do not grow; None where one does something else."""
    found = []
    for query in queries:
        if len(query.atoms) < 2 or len(set(query.terms)) != 2 or not is_chain(query):
            return None
        chain = chain_of(query.atoms, *query.terms)
        at = [n for n, (atom, _) in enumerate(chain) if atom.slot == carry]
        if len(at) != 1 or chain[at[0]][1]:  # not once, or turned round
            return None
        right = _composed(chain[at[0] + 1 :], joins)
        if right is None or any(x.shape != (shape[1], shape[1]) or x.count > THIN * shape[1] for x in right):
            return None
        left = _composed(chain[: at[0]], joins)
        if left is None or any(x.shape != (shape[0], shape[0]) for x in left):
            return None
        found.append(Sides(*(side[0] if side else None for side in (left, right))))
    return found or None


def _composed(chain: Sequence[tuple[Atom, bool]], joins: Joins) -> list[SparseTensor] | None:
    """Return where a chain of relations leads to, as one relation or none; None where joining them takes too much."""
    found: list[SparseTensor] = []
    for atom, turned in chain:
        step = joins.find(atom.slot)
        step = step.transpose() if turned else step
        if found:
            before = found[0]
            (_, middles), (indptr, _) = before.rows, step.rows
            if int(np.diff(indptr)[middles].sum()) > PAIRS:
                return None
            made = sparse_rows.join_rows(before.rows, step.rows, step.shape[1])
            step = SparseTensor.of_rows(*made, (before.shape[0], step.shape[1]))
        found = [step]
    return found


def grow_rows(rules: Sequence[Sides], start: SparseTensor) -> BitTensor | None:
    """Return what a relation becomes under rules, from a start; None where there are no native kernels."""
    if not support.usable():
        return None
    from ..native import bit_rows

    rows, columns = start.shape
    width = packed.width(columns)
    known = start.bits().words.copy()
    work = np.zeros((2, rows, width), np.uint64)
    work[0] = known
    lists = np.full(5 * rows, -1, np.int32)
    hot = np.flatnonzero(known.any(axis=1))
    lists[: len(hot)] = hot
    counts = np.array([0, len(hot), 0])
    same = np.arange(rows + 1), np.arange(rows, dtype=np.int32)
    left = _one_after_another([same if r.left is None else r.left.rows for r in rules])
    turned = _one_after_another([same if r.left is None else r.left.transpose().rows for r in rules])
    nothing = np.full(columns + 1, -1), np.empty(0, np.int32)
    right = _one_after_another([nothing if r.right is None else r.right.rows for r in rules])
    done = False
    while not done:
        check_contexts()
        with span(f"round {counts[2] + 1} on rows of bits"):
            done = bool(
                bit_rows.advance(
                    *left, *turned, *right, known.reshape(-1), work.reshape(-1), lists, counts, rows, columns, BUDGET
                )
            )
    return BitTensor.of(known, start.shape)


def _one_after_another(parts: Sequence[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return the offsets of several sparse rows and their elements, each after those before it."""
    before, offsets = 0, []
    for indptr, indices in parts:
        offsets.append(np.where(indptr < 0, -1, indptr + before))
        before += len(indices)
    return np.concatenate(offsets), np.ascontiguousarray(np.concatenate([i for _, i in parts]), np.int32)
