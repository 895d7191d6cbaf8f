"""Bringing relations up to date: where facts were added or taken back, only what follows from those is derived again.

What is taken back may take more with it. All that was derived with the help of it goes first; what still follows from the rest comes
back (delete and rederive). What is added derives more, as a round of a recursion does. A relation that is negated counts the other way round.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...events import check_contexts
from ...plan.queries import Atom, Fixed, Query
from ...plan.query_reader import Queries, Slot
from .. import sparse_rows, tuples
from ..sparse import SparseTensor
from .joins import Joins
from .tables import nothing, union

SHARE = 8  # one tuple in so many changed, up to which it pays to go on
LOST = 2  # one tuple in so many taken out, up to which it pays to see what comes back
EDGES = 64  # edges that may change for a closure to be brought up to date
SOURCES = 1 << 12  # elements that are followed again, each by itself
_state = threading.local()  # kernels run in contexts of their own, which would not see a context variable


class Earlier(NamedTuple):
    """What relations were before facts changed."""

    results: Mapping[int, SparseTensor]  # what was derived, by the id of the facts that each relation has now
    reads: Mapping[int, Any]  # what the rules read, by the id of what each is now


@contextmanager
def resumed(earlier: Earlier | None) -> Iterator[None]:
    """Let the steps that run inside go on from what relations were before, where they can."""
    around = getattr(_state, "earlier", None)
    _state.earlier = earlier
    try:
        yield
    finally:
        _state.earlier = around


class Change(NamedTuple):
    """The tuples that a relation has gained and lost."""

    added: SparseTensor
    removed: SparseTensor


class Past:
    """The relations of one step before facts changed; each is worked out when it is asked for."""

    def __init__(self, earlier: Earlier, joins: Joins, given: Mapping[Slot, Any]) -> None:
        self.earlier, self.now, self.given = earlier, joins, given
        self.joins = Joins(joins.sizes, self.find)
        self.queries: dict[Slot, tuple[Queries, tuple[int, ...]]] = {}  # of relations that are computed on the way
        self._relations: dict[Slot, SparseTensor] = {}
        self._changes: dict[Slot, Change | None] = {}

    def result(self, slot: Slot) -> SparseTensor | None:
        """Return what a relation had become, given the slot of the facts that it has now."""
        return self.earlier.results.get(id(self.given.get(slot)))

    def find(self, slot: Slot) -> SparseTensor:
        """Return what a relation was that rules read."""
        if slot not in self._relations:
            now = self.given.get(slot)
            if slot in self.queries:
                queries, shape = self.queries[slot]
                same = all(self.change(a.slot) is None for q in queries for a in q.atoms)
                found = self.now.find(slot) if same else union([self.joins.answer(q, shape) for q in queries], shape)
            elif now is None or self.earlier.reads[id(now)] is now:
                found = self.now.find(slot)
            else:
                found = self.earlier.reads[id(now)]
            self._relations[slot] = found
        return self._relations[slot]

    def change(self, slot: Slot) -> Change | None:
        """Return what a relation has gained and lost; None where it is as it was."""
        if slot not in self._changes:
            was, now = self.find(slot), self.now.find(slot)
            change = None if was is now else Change(now - was, was - now)
            self._changes[slot] = change if change is not None and any(t.count for t in change) else None
        return self._changes[slot]


def past_of(joins: Joins, given: Mapping[Slot, Any]) -> Past | None:
    """Return what the operands of a step were; None where nothing is known, or not of all."""
    earlier: Earlier | None = getattr(_state, "earlier", None)
    if earlier is None or any(id(x) not in earlier.reads for x in given.values()):
        return None
    return Past(earlier, joins, given)


class Start(NamedTuple):
    """Where relations go on from: what is left of each, and what follows from that and the changes at once."""

    old: dict[Slot, SparseTensor]
    new: dict[Slot, SparseTensor]


def begin_update(
    old: Mapping[Slot, SparseTensor], rules: Mapping[Slot, Queries], joins: Joins, past: Past
) -> Start | None:
    """Return where relations go on from, given what they were and their rules; None where it is quicker to begin anew."""
    atoms = [a for queries in rules.values() for q in queries for a in q.atoms if a.slot not in old]
    slots = dict.fromkeys(a.slot for a in atoms)
    changes = {slot: change for slot in slots if (change := past.change(slot)) is not None}
    moved = sum(t.count for change in changes.values() for t in change)
    if moved * SHARE > sum(joins.find(slot).count for slot in slots) + sum(t.count for t in old.values()):
        return None
    gone = _taken_out(old, rules, changes, past)
    if gone is None:
        return None
    left = {slot: old[slot] - gone[slot] if gone[slot].count else old[slot] for slot in old}
    new = {}
    for slot, queries in rules.items():
        shape = old[slot].shape
        parts = _touched(queries, left, changes, joins, shape, added=True)
        if gone[slot].count:
            for query in queries:
                asked = query._replace(atoms=(*query.atoms, Atom(slot, query.terms)))
                own = {**_own(query, left), len(query.atoms): gone[slot]}
                parts.append(joins.answer(asked, shape, given=own, first=len(query.atoms)))
        new[slot] = union(parts, shape) - left[slot]
    return Start(left, new)


def _taken_out(
    old: Mapping[Slot, SparseTensor], rules: Mapping[Slot, Queries], changes: Mapping[Slot, Change], past: Past
) -> dict[Slot, SparseTensor] | None:
    """Return all that was derived with the help of what is there no more; None where that is much."""
    most = sum(t.count for t in old.values()) // LOST
    gone = {slot: nothing(t.shape) for slot, t in old.items()}
    new = {
        slot: union(_touched(queries, old, changes, past.joins, old[slot].shape, added=False), old[slot].shape)
        for slot, queries in rules.items()
    }
    while any(t.count for t in new.values()):
        check_contexts()
        gone = {slot: t | new[slot] for slot, t in gone.items()}
        if sum(t.count for t in gone.values()) > most:
            return None
        found: dict[Slot, list[SparseTensor]] = {slot: [] for slot in old}
        for slot, queries in rules.items():
            for query in queries:
                own = _own(query, old)
                for n in own:
                    part = new[query.atoms[n].slot]
                    if part.count:
                        found[slot].append(past.joins.answer(query, old[slot].shape, given={**own, n: part}, first=n))
        new = {slot: union(parts, old[slot].shape) - gone[slot] for slot, parts in found.items()}
    return gone


def _touched(
    queries: Queries,
    own: Mapping[Slot, SparseTensor],
    changes: Mapping[Slot, Change],
    joins: Joins,
    shape: Sequence[int],
    *,
    added: bool,
) -> list[SparseTensor]:
    """Return what queries derive with the help of something that a change has ``added``, or else taken away."""
    found = []
    for query in queries:
        for n, atom in enumerate(query.atoms):
            if atom.slot not in changes:
                continue
            part = changes[atom.slot].added if added != atom.negated else changes[atom.slot].removed
            if part.count:
                positive = (*query.atoms[:n], atom._replace(negated=False), *query.atoms[n + 1 :])
                given = {**_own(query, own), n: part}
                found.append(joins.answer(query._replace(atoms=positive), shape, given=given, first=n))
    return found


def _own(query: Query, relations: Mapping[Slot, SparseTensor]) -> dict[int, SparseTensor]:
    """Return the relations that are being brought up to date, by the number of the atom."""
    return {n: relations[a.slot] for n, a in enumerate(query.atoms) if a.slot in relations}


def updated_union(queries: Queries, slot: Slot, joins: Joins, past: Past) -> SparseTensor | None:
    """Return a relation that is a union of queries, brought up to date; None where what it was is not known."""
    for query in queries:
        old = past.result(query.atoms[0].slot) if _is_copy(query) else None
        if old is not None:
            start = begin_update({slot: old}, {slot: queries}, joins, past)
            return None if start is None else start.old[slot] | start.new[slot]
    return None


def _is_copy(query: Query) -> bool:
    """Tell whether a query is one relation as it is."""
    if len(query.atoms) != 1 or query.tests or query.atoms[0].negated or query.atoms[0].terms != query.terms:
        return False
    free = [t for t in query.terms if not isinstance(t, Fixed)]
    return len(set(free)) == len(free)


# transitive closures


def reclosed(closure: SparseTensor, edges: SparseTensor, changed: SparseTensor) -> SparseTensor | None:
    """Return the closure of edges, given what it was before a few of them changed; None where that would be much work.

    Whatever leads to the first element of a changed edge is followed again; all else leads where it did.
    """
    if changed.count > EDGES:
        return None
    indptr, indices = closure.rows
    starts = tuples.unique(changed.columns[0])
    before = [np.searchsorted(indptr, np.flatnonzero(indices == u), "right") - 1 for u in starts.tolist()]
    sources = tuples.unique(np.concatenate([starts, *before]))
    listed = int((indptr[sources + 1] - indptr[sources]).sum())
    if len(sources) > SOURCES or listed * LOST > closure.count + EDGES:
        return None
    found = sparse_rows.reach_each(edges.rows, sources, closure.count // LOST + EDGES)
    return (
        None
        if found is None
        else SparseTensor.of_rows(*sparse_rows.replaced(closure.rows, sources, found), closure.shape)
    )
