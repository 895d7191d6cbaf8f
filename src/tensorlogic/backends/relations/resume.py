"""Going on from a fixpoint that was computed before: where facts were only added, only what follows from those is derived."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from ...plan.query_reader import Loop, Queries, Slot
from .. import tuples
from ..sparse import SparseTensor
from .joins import Joins, union

SHARE = 8  # one tuple in so many added, up to which it pays to go on
EDGES = 64  # edges that are added to a closure one by one
_state = threading.local()  # kernels run in contexts of their own, which would not see a context variable


class Earlier(NamedTuple):
    """What a recursive relation had become, and what the relations were then that its rules read, by the ``id`` of what each is now."""

    result: SparseTensor
    reads: Mapping[int, SparseTensor]


Before = dict[int, Earlier]  # by the id of the facts that a recursive relation starts from


@contextmanager
def resumed(before: Before) -> Iterator[None]:
    """Let the loops that run inside go on from what they had computed before, where they can."""
    around = before_now()
    _state.before = before
    try:
        yield
    finally:
        _state.before = around


def before_now() -> Before | None:
    """Return what the loops of this thread may go on from."""
    return getattr(_state, "before", None)


class Step(NamedTuple):
    """Where a loop goes on from: what each carry was, and what the added facts derive at once."""

    old: dict[Slot, SparseTensor]
    new: dict[Slot, SparseTensor]


def earlier_results(loop: Loop, values: Mapping[Slot, Any]) -> dict[Slot, Earlier] | None:
    """Return what every carry of a loop was before, all at one time; None where that is not known."""
    before = before_now()
    found = {}
    for carry, start in zip(loop.carries, loop.starts, strict=True):
        was = None if before is None else before.get(id(values[start]))
        if was is None or was.result.shape != values[start].shape:
            return None
        found[carry] = was
    first = next(iter(found.values()))
    return found if all(was.reads is first.reads for was in found.values()) else None


def next_step(
    loop: Loop,
    rules: Mapping[Slot, Queries],
    joins: Joins,
    values: Mapping[Slot, Any],
    shapes: Mapping[Slot, tuple[int, ...]],
    earlier: Mapping[Slot, Earlier],
) -> Step | None:
    """Return where a loop goes on from, of all the rules of each carry; None where it has to begin anew."""
    if loop.fixed or rules.keys() != earlier.keys():
        return None
    old = {carry: was.result for carry, was in earlier.items()}
    reads = next(iter(earlier.values())).reads
    atoms = [a for queries in rules.values() for q in queries for a in q.atoms if a.slot not in old]
    added: dict[Slot, SparseTensor] = {}
    total = 0
    for slot in dict.fromkeys(a.slot for a in atoms):
        now = values.get(slot)
        was = reads.get(id(now))
        if was is None or now is None or was.shape != now.shape:
            return None
        total += now.count
        more = now if was is now else now - was
        if was is not now and more.count:
            added[slot] = more
    if any(a.negated and a.slot in added for a in atoms) or sum(t.count for t in added.values()) * SHARE > total:
        return None
    new = {}
    for start, (carry, queries) in zip(loop.starts, rules.items(), strict=True):
        parts = [SparseTensor(values[start])]
        for query in queries:
            given = {m: old[a.slot] for m, a in enumerate(query.atoms) if a.slot in old}
            parts += [
                joins.answer(query, shapes[carry], given={**given, n: added[a.slot]}, first=n)
                for n, a in enumerate(query.atoms)
                if a.slot in added
            ]
        new[carry] = union(parts, shapes[carry]) - old[carry]
    return Step(old, new)


def with_edges(closure: SparseTensor, edges: SparseTensor) -> SparseTensor | None:
    """Return the closure of a graph with a few more edges, given the closure without them; None where that would be much work."""
    if edges.count > EDGES:
        return None
    first, second = closure.columns
    more = [np.empty(0, first.dtype)], [np.empty(0, second.dtype)]
    for u, v in zip(*(c.tolist() for c in edges.columns), strict=True):
        x, y = np.concatenate(more[0]), np.concatenate(more[1])
        targets = slice(*np.searchsorted(first, [v, v + 1]))
        sources = tuples.unique(np.concatenate([[u], first[second == u], x[y == u]]))
        reached = tuples.unique(np.concatenate([[v], second[targets], y[x == v]]))
        if len(sources) * len(reached) > closure.count + EDGES:
            return None
        more[0].append(np.repeat(sources, len(reached)))
        more[1].append(np.tile(reached, len(sources)))
    return closure | SparseTensor.of_columns([np.concatenate(m) for m in more], closure.shape)
