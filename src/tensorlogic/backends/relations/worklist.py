"""Fixpoints of rules that chain two-column relations, such as a points-to analysis: one native loop over a queue of tuples.

A rule ``H(x,w) <- A(x,y), B(y,z), C(z,w)`` becomes ``I(x,z) <- A(x,y), B(y,z)`` and ``H(x,w) <- I(x,z), C(z,w)``. Every tuple that is new is
joined once with the tuples before it that share an element with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...events import check_contexts, span
from ...plan.queries import Atom, Fixed, Query, Term
from ...plan.query_reader import Slot
from ..native import support
from ..sparse import SparseTensor
from .tables import too_many_tuples

MOST_LISTS = 1 << 26  # beginnings of lists: relations times elements
MOST_GIVEN = 1 << 20  # tuples that it begins with; more are joined by sorting, on several threads
BUDGET = 2_000_000  # joins after which the loop can be stopped
LITTLE = 1 << 26  # bytes that there is memory for without asking
TUPLE = 28  # bytes of a tuple in the queue: its relation and elements, its number, and its places in two lists


class Chains(NamedTuple):
    """Rules ready for the queue: a number for each relation, and for each the rules that its tuples take part in."""

    number: dict[Slot, int]
    rules: list[list[tuple[int, int, int, int, int]]]


def read_chains(heads: Mapping[Slot, Sequence[Query]]) -> Chains:
    """Return rules that are all chains, ready for the queue."""
    chains = Chains({}, [])
    for head, queries in heads.items():
        for query in queries:
            _add(chains, head, query)
    return chains


def is_chain(query: Query) -> bool:
    """Tell whether a rule chains two-column relations from one variable of its head to the other.

    >>> is_chain(Query((0, 2), (Atom("A", (0, 1)), Atom("B", (1, 2))))), is_chain(Query((0, 1), (Atom("A", (0, 1)), Atom("B", (0, 1)))))
    (True, False)
    """
    if query.tests or not query.atoms or len(query.terms) != 2:
        return False
    terms = [query.terms, *(a.terms for a in query.atoms)]
    if any(isinstance(t, Fixed) for own in terms for t in own) or any(a.negated for a in query.atoms):
        return False
    if any(len(own) != 2 or len(set(own)) != 2 for own in terms[1:]):
        return False
    x, z = query.terms
    if len(query.atoms) == 1:
        return {x, z} <= set(query.atoms[0].terms)
    return _chain(query.atoms, x, z) is not None


def chain_of(atoms: Sequence[Atom], x: Term, z: Term) -> list[tuple[Atom, bool]]:
    """Return the atoms of a chain in the order in which they lead from one variable to another, each with whether it is turned round."""
    found = _chain(atoms, x, z)
    assert found is not None
    return found


def _relation(chains: Chains, slot: Slot) -> int:
    if slot not in chains.number:
        chains.number[slot] = len(chains.rules)
        chains.rules.append([])
    return chains.number[slot]


def _add(chains: Chains, head: Slot, query: Query) -> None:
    """Add a rule that is a chain."""
    x, z = query.terms
    target = _relation(chains, head)
    if len(query.atoms) == 1:
        [atom] = query.atoms
        a, b = atom.terms
        if x == z:
            rule = (0, target, 1, int(x == b), 0)  # H(x,x) <- R(x,y)
        else:
            rule = (0, target, 0, int((x, z) == (b, a)), 0)
        chains.rules[_relation(chains, atom.slot)].append(rule)
        return
    order = chain_of(query.atoms, x, z)
    left, turned = order[0][0].slot, order[0][1]
    for n, (atom, flip) in enumerate(order[1:], 1):
        last = n == len(order) - 1
        made = target if last else _relation(chains, ("chain", len(chains.rules)))
        a, b = _relation(chains, left), _relation(chains, atom.slot)
        chains.rules[a].append((1, made, b, int(turned), int(flip)))
        chains.rules[b].append((2, made, a, int(flip), int(turned)))
        if not last:
            left, turned = next(s for s, k in chains.number.items() if k == made), False


def _chain(atoms: Sequence[Atom], x: Term, z: Term) -> list[tuple[Atom, bool]] | None:
    """Return atoms in the order in which they lead from one variable to another, each with whether it is turned round."""
    rest = list(atoms)
    at: Any = x
    seen = {x}
    found: list[tuple[Atom, bool]] = []
    while rest:
        fitting = [a for a in rest if at in a.terms]
        if len(fitting) != 1:
            return None
        [atom] = fitting
        rest.remove(atom)
        turned = atom.terms[1] == at
        at = atom.terms[0] if turned else atom.terms[1]
        if at in seen:
            return None
        seen.add(at)
        found.append((atom, turned))
    return found if at == z else None


def run_chains(
    chains: Chains,
    given: Mapping[Slot, SparseTensor],
    starts: Mapping[Slot, SparseTensor],
    firing: Collection[Slot],
    stop: Callable[[int], bool],
    memory: Callable[[], int],
) -> tuple[dict[Slot, SparseTensor], bool] | None:
    """Return what each relation with a start has become, and whether that is all; None where there is too much to begin with.

    ``given`` are the relations that do not change; ``firing`` names those of them that alone may derive something.
    ``stop`` is asked now and then, with the number of tuples. Where more than ``memory()`` bytes would be needed, it is an error.
    """
    size = max((n for t in (*given.values(), *starts.values()) for n in t.shape), default=0)
    relations = len(chains.rules)
    begun = sum(t.count for t in (*given.values(), *starts.values()))
    if not size or relations * size > MOST_LISTS or relations * size * size >= 1 << 62 or begun > MOST_GIVEN:
        return None
    if not support.usable():
        return None
    from ..native import worklist

    waiting = sorted(given, key=lambda slot: slot in firing)  # those that derive nothing alone come first
    tables = [
        (chains.number[s], t) for s, t in [*((s, given[s]) for s in waiting), *starts.items()] if s in chains.number
    ]
    quiet = sum(t.count for s, t in given.items() if s not in firing)
    known = sum(t.count for t in given.values())
    total = sum(t.count for _, t in tables)
    room = max(1 << 15, 4 * total)
    fixed_bytes = 2 * 4 * relations * size

    def fits(size: int) -> bool:
        return size <= LITTLE or size <= memory()

    if not fits(fixed_bytes + _bytes(room)):
        return None
    arrays = [np.empty(room, np.int32) for _ in range(3)]
    keys = np.empty(room, np.int64)
    _fill(arrays, tables)
    keys[:total] = (arrays[0][:total] * np.int64(size) + arrays[1][:total]) * size + arrays[2][:total]
    links = [np.empty(room, np.int32) for _ in range(2)]
    lists = [np.full(relations * size, -1, np.int32) for _ in range(2)]
    rows = np.array([x for own in chains.rules for rule in own for x in rule], np.int32)
    begins = np.cumsum([0, *map(len, chains.rules)]).astype(np.int32)
    counts = np.array([quiet, total, 0])
    table = _table(worklist, keys[known:total], room)
    for n in itertools.count(1):
        check_contexts()
        with span(f"round {n}: {total:,} tuples"):
            status = worklist.derive(*arrays, keys, *links, *lists, table, counts, begins, rows, size, BUDGET)
        total = int(counts[1])
        if status == worklist.DONE or stop(total):
            break
        if status == worklist.FULL:
            copied = fixed_bytes + TUPLE * room  # what there is stays until it is copied
            larger = [r for r in (4 * room, 2 * room) if fits(copied + _bytes(r))]
            if not larger:
                raise too_many_tuples(total)
            room, table = larger[0], None
            arrays, links = (
                [np.concatenate((x[:total], np.empty(room - total, np.int32))) for x in group]
                for group in (arrays, links)
            )
            keys = np.concatenate((keys[:total], np.empty(room - total, np.int64)))
            table = _table(worklist, keys[known:total], room)
    found = {}
    for slot, start in starts.items():
        if slot not in chains.number:  # no rule reads it or derives it
            found[slot] = start
            continue
        own = np.flatnonzero(arrays[0][:total] == chains.number[slot])
        codes = arrays[1][own] * np.int64(start.shape[1]) + arrays[2][own]
        found[slot] = SparseTensor.of_codes(codes, start.shape, ordered=False)
    return found, bool(counts[0] == total)


def _bytes(room: int) -> int:
    """Return the bytes that a queue with room for so many tuples takes, with its table."""
    return TUPLE * room + 8 * _slots(room)


def _slots(room: int) -> int:
    return 1 << math.ceil(math.log2(2 * room))


def _fill(arrays: Sequence[Any], tables: Sequence[tuple[int, SparseTensor]]) -> None:
    at = 0
    for number, tensor in tables:
        end = at + tensor.count
        arrays[0][at:end] = number
        arrays[1][at:end], arrays[2][at:end] = tensor.columns
        at = end


def _table(kernels: Any, keys: Any, room: int) -> Any:
    table = np.full(_slots(room), -1, np.int64)
    kernels.rehash(keys, table)
    return table
