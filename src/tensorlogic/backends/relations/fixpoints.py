"""Fixpoints of rules over relations: each round joins what the last one added, until nothing is new.

A transitive closure is found by the components of its graph; relations that fill up go on as packed bits.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from ...events import check_contexts, span
from ...ir.graph import Fixpoint
from ...plan.memory import available_memory
from ...plan.queries import Atom, Query
from ...plan.query_reader import Loop, Queries, Slot
from .. import packed, sparse_rows
from ..bits import BitTensor
from ..control import not_settled
from ..sparse import SparseTensor
from .joins import Joins, nothing, too_many_tuples, union
from .update import Past, begin_update, pairs_through, with_edges
from .worklist import read_chains, run_chains

SMALL_BITS = 1 << 17  # bytes of packed carries below which they are packed from the beginning
FILLED = 128  # one place in so many filled: the rest goes on as bits
TUPLE = 24  # bytes that a pair of a closure takes, in the forms that it is made and asked for in
RATIO = 4  # a relation is held in pieces, each so many times as large as the next
MANY = 1_000_000  # rounds; a lower limit counts them, so that no short cut may be taken
FEW = 64  # sources, of which each is followed by itself
ROUNDS = 64  # rounds after which it is quicker to begin anew than to go on from what was computed before

Relation = SparseTensor | BitTensor
_watched = threading.local()  # kernels run in contexts of their own, which would not see a context variable


@contextmanager
def recorded_rounds() -> Iterator[dict[int, list[SparseTensor]]]:
    """Have the loops that run inside note, by the slot of each result, what every round added; they take no short cuts then.

    A tuple of round n follows from tuples of earlier rounds, which is what a proof needs to know.
    """
    found: dict[int, list[SparseTensor]] = {}
    around = getattr(_watched, "rounds", None)
    _watched.rounds = found
    try:
        yield found
    finally:
        _watched.rounds = around


OnBits = Callable[[Sequence[Relation]], list[Relation]]  # the kernel of the same fixpoint on packed bits


class Growing:
    """A relation that grows: what it was before the last round, in a few sorted pieces, and what the last round added."""

    def __init__(self, old: SparseTensor, new: SparseTensor) -> None:
        self.shape = new.shape
        self.old = [old] if old.count else []
        self.new = new

    def known(self) -> list[SparseTensor]:
        """Return the pieces, the newest too."""
        return [*self.old, self.new] if self.new.count else self.old

    @property
    def count(self) -> int:
        """The number of tuples."""
        return sum(p.count for p in self.old) + self.new.count

    @property
    def nbytes(self) -> int:
        """The bytes of all pieces, in the forms that they are held in."""
        return sum(p.nbytes for p in self.known())

    def settle(self) -> list[SparseTensor]:
        """Count the newest to the old ones; return the pieces that were merged and are no more."""
        gone = []
        if self.new.count:
            self.old.append(self.new)
        while len(self.old) > 1 and self.old[-2].count < RATIO * self.old[-1].count:
            b, a = self.old.pop(), self.old.pop()
            gone += [a, b]
            self.old.append(a | b)
        self.new = nothing(self.shape)
        return gone

    def fresh(self, parts: Sequence[SparseTensor]) -> SparseTensor:
        """Return what is in some relations and not known yet."""
        found = union(parts, self.shape)
        for piece in self.known():
            found = found - piece
        return found

    def whole(self) -> SparseTensor:
        """Return all of it as one relation."""
        return union(self.known(), self.shape)


class Rules(NamedTuple):
    """A loop ready to run: for each relation that grows, what it is derived by; those between come before the carries."""

    between: dict[Slot, Queries]
    carried: dict[Slot, Queries]
    once: dict[Slot, list[Query]]  # what holds from the beginning


def read_rules(loop: Loop) -> Rules:
    """Return the rules of a loop, which negates nothing that grows."""
    rules = dict(loop.rules)
    growing = {*loop.carries, *rules}
    used = [a.slot for qs in rules.values() for q in qs for a in q.atoms]
    carried: dict[Slot, Queries] = dict.fromkeys(loop.carries, ())
    for carry, result, copy in zip(loop.carries, loop.results, loop.copies, strict=True):
        if result == carry:
            continue
        if result in rules and result not in used and loop.results.count(result) == 1:
            carried[carry] = rules.pop(result)
        else:
            carried[carry] = (copy,)
    once: dict[Slot, list[Query]] = {}
    for heads in (rules, carried):
        for slot, queries in heads.items():
            varying = tuple(q for q in queries if any(a.slot in growing for a in q.atoms))
            once[slot] = [q for q in queries if q not in varying]
            heads[slot] = varying
    return Rules(rules, carried, once)


def run_loop(
    loop: Loop,
    rules: Rules,
    joins: Joins,
    values: dict[Slot, Relation],
    shapes: dict[Slot, tuple[int, ...]],
    bits: OnBits | None,
    past: Past | None,
) -> list[Relation]:
    """Return the carries of a loop once nothing changes any more; ``bits`` computes the same on packed bits.

    ``past`` has what relations were before facts changed.
    """
    op = loop.step.op
    assert isinstance(op, Fixpoint)
    starts = [values[s] for s in loop.starts]
    history: dict[int, list[SparseTensor]] | None = getattr(_watched, "rounds", None)
    if history is not None:
        bits = None
    room = available_memory() // 4
    words = sum(_packed_bytes(shapes[c]) for c in loop.carries)
    if bits is not None and words <= SMALL_BITS:
        return bits(starts)
    for slot, queries in loop.fixed.items():
        values[slot] = union([joins.answer(q, shapes[slot]) for q in queries], shapes[slot])
        if past is not None:
            past.queries[slot] = queries, shapes[slot]
    if history is None and op.limit >= MANY and past is not None:
        updated = _updated(loop, rules, joins, shapes, past)
        if updated is not None:
            return list(updated)
    if history is None and (walk := _walk(loop, rules, joins, shapes, op)) is not None:
        closed = _walked(walk, room)
        if closed is not None:
            return [closed]
    begun: dict[Slot, SparseTensor] = {}
    for slot in (*loop.carries, *rules.between):
        first = [joins.answer(q, shapes[slot]) for q in rules.once[slot]]
        if slot in loop.carries:
            first.append(SparseTensor(starts[loop.carries.index(slot)]))
        begun[slot] = union(first, shapes[slot])
    cells = sum(math.prod(shapes[c]) for c in loop.carries)

    def filled(count: int) -> bool:
        """Tell whether so many tuples are better held as bits."""
        return bits is not None and words <= room and count * FILLED > cells

    if (
        history is None
        and op.limit >= MANY
        and (chained := _chained(rules, joins, shapes, begun, filled, 3 * room)) is not None
    ):
        grown_to, complete = chained
        carried = [grown_to[c] for c in loop.carries]
        return list(carried) if complete or bits is None else bits(carried)
    targets = dict(zip(loop.carries, loop.step.writes, strict=True))
    state = {slot: Growing(nothing(shapes[slot]), nothing(shapes[slot])) for slot in (*loop.carries, *rules.between)}
    for slot in loop.carries:
        state[slot].new = begun[slot]
        if history is not None:
            history[targets[slot]] = [state[slot].new]
    moved: list[Slot] = []
    for n in range(op.limit):
        fresh = _round(n, state, rules, joins, begun if n == 0 else {})
        if history is not None:
            for slot, new in fresh.items():
                history[targets[slot]].append(new)
        moved = [slot for slot, new in fresh.items() if new.count]
        if not moved:
            return [state[slot].whole() for slot in loop.carries]
        count = sum(grown.count for grown in state.values())
        if filled(count) and bits is not None:
            return bits([state[c].whole() for c in loop.carries])
        if sum(grown.nbytes for grown in state.values()) + joins.nbytes > 2 * room:  # twice that while they are merged
            raise too_many_tuples(count).at(loop.step.location)
    places = [loop.carries.index(slot) for slot in moved]
    raise not_settled(op, places, [state[slot].new.count for slot in moved]).at(loop.step.location)


def _round(
    n: int, state: dict[Slot, Growing], rules: Rules, joins: Joins, begun: dict[Slot, SparseTensor]
) -> dict[Slot, SparseTensor]:
    """Join what the last round added; add what is new of each carry, and return it."""
    check_contexts()
    with span(f"round {n + 1}: {sum(grown.count for grown in state.values()):,} tuples"):
        for slot, queries in rules.between.items():  # in order: they read what this round has added to others
            own = [begun[slot]] if slot in begun else []
            state[slot].new = state[slot].fresh(own + _derived(queries, state, joins, state[slot].shape))
        found = {slot: _derived(queries, state, joins, state[slot].shape) for slot, queries in rules.carried.items()}
        fresh = {slot: state[slot].fresh(parts) for slot, parts in found.items()}
        for grown in state.values():
            joins.forget(grown.settle())
    for slot, new in fresh.items():
        state[slot].new = new
    return fresh


def _chained(
    rules: Rules,
    joins: Joins,
    shapes: dict[Slot, tuple[int, ...]],
    begun: dict[Slot, SparseTensor],
    filled: Callable[[int], bool],
    memory: int,
) -> tuple[dict[Slot, SparseTensor], bool] | None:
    """Run rules that chain two-column relations by a queue, within some bytes of memory; None where they are something else."""
    heads = {**rules.between, **rules.carried}
    chains = read_chains(heads, shapes)
    if chains is None:
        return None
    slots = {a.slot for queries in heads.values() for q in queries for a in q.atoms if a.slot not in begun}
    return run_chains(chains, {slot: joins.find(slot) for slot in slots}, begun, filled, memory)


def _packed_bytes(shape: Sequence[int]) -> int:
    return 8 * math.prod(shape[:-1]) * packed.width(shape[-1] if shape else 1)


def _derived(queries: Queries, state: dict[Slot, Growing], joins: Joins, shape: tuple[int, ...]) -> list[SparseTensor]:
    """Return what queries give for what is new: of each atom that grows the new part, with all of those before it and the old of those after."""
    found = []
    for query in queries:
        growing = [n for n, a in enumerate(query.atoms) if a.slot in state]
        for n in growing:
            new = state[query.atoms[n].slot].new
            if not new.count:
                continue
            others = [m for m in growing if m != n]
            choices = [state[query.atoms[m].slot].known() if m < n else state[query.atoms[m].slot].old for m in others]
            for pieces in itertools.product(*choices):
                given = {n: new, **dict(zip(others, pieces, strict=True))}
                found.append(joins.answer(query, shape, given=given, first=n))
    return found


def _updated(
    loop: Loop, rules: Rules, joins: Joins, shapes: dict[Slot, tuple[int, ...]], past: Past
) -> list[SparseTensor] | None:
    """Return the carries of a loop, brought up to date after facts changed; None where it has to begin anew."""
    old: dict[Slot, SparseTensor] = {}
    for carry, slot in zip(loop.carries, loop.starts, strict=True):
        was = past.result(slot)
        if was is None or rules.between:
            return None
        old[carry] = was
    gone: dict[Slot, SparseTensor] | None = None
    op = loop.step.op
    assert isinstance(op, Fixpoint)
    now, then = (_walk(loop, rules, known, shapes, op) for known in (joins, past.joins))
    if now is not None and then is not None and now.is_closure and then.is_closure:
        [carry] = loop.carries
        added, removed = now.edges - then.edges, then.edges - now.edges
        if not removed.count:
            more = with_edges(old[carry], added)
            return None if more is None else [more]
        through = pairs_through(old[carry], removed)
        if through is None:
            return None
        gone = {carry: through}
    every = {}
    for carry, slot, copy in zip(loop.carries, loop.starts, loop.copies, strict=True):
        begin = Query(copy.terms, (Atom(slot, copy.terms),))
        every[carry] = (begin, *rules.once[carry], *rules.carried[carry])
    start = begin_update(old, every, joins, past, gone)
    if start is None:
        return None
    state = {slot: Growing(start.old[slot], start.new[slot]) for slot in loop.carries}
    for n in range(ROUNDS):
        if not any(new.count for new in _round(n, state, rules, joins, {}).values()):
            return [state[slot].whole() for slot in loop.carries]
    return None


# transitive closures


class Walk(NamedTuple):
    """A loop that follows edges from where it starts: on the right of what it has, on the left, or by joining paths (a square)."""

    kind: str
    start: SparseTensor
    edges: SparseTensor

    @property
    def is_closure(self) -> bool:
        """Whether it starts with the edges themselves."""
        return self.start.same(self.edges)


def _walk(loop: Loop, rules: Rules, joins: Joins, shapes: dict[Slot, tuple[int, ...]], op: Fixpoint) -> Walk | None:
    """Return what edges a loop follows, and from where; None where it does something else."""
    if len(loop.carries) != 1 or rules.between:
        return None
    [carry] = loop.carries
    shape = shapes[carry]
    if len(shape) != 2 or shape[0] != shape[1] or op.limit <= shape[0]:
        return None
    sides = [_side(q, carry) for q in rules.carried[carry]]
    kinds = {side[0] for side in sides if side is not None}
    if None in sides or len(kinds) != 1 or (kind := kinds.pop()) not in ("square", "left", "right"):
        return None
    parts = [joins.answer(q, shape) for q in rules.once[carry]]
    start = union([joins.find(loop.starts[0]), *parts], shape)
    if kind == "square":
        return Walk(kind, start, start)
    steps = [_oriented(joins.find(slot), flip) for _, slot, flip in (s for s in sides if s is not None)]
    return Walk(kind, start, union(steps, shape))


def _walked(walk: Walk, room: int) -> Relation | None:
    """Return where a walk leads to; None where there is no memory to find it in one go."""
    if walk.is_closure:
        return _closed(walk.edges, room)
    if walk.kind == "left":
        made = _followed(walk.start.transpose(), walk.edges.transpose(), room)
        return None if made is None else made.transpose()
    return _followed(walk.start, walk.edges, room)


def _oriented(tensor: SparseTensor, flip: bool) -> SparseTensor:
    return tensor.transpose() if flip else tensor


def _side(query: Query, carry: Slot) -> tuple[str, Slot, bool] | None:
    """Return what is joined to the carry, on which side, and whether it is turned round: T(x,z) <- T(x,y), E(y,z) has E on the right."""
    if len(query.atoms) != 2 or query.tests or any(a.negated or len(a.terms) != 2 for a in query.atoms):
        return None
    variables = {t for a in query.atoms for t in a.terms}
    if not all(isinstance(t, int) for t in (*variables, *query.terms)) or len(variables) != 3:
        return None
    x, z = query.terms
    [y] = variables - {x, z}
    own = [a for a in query.atoms if a.slot == carry]
    if len(own) == 2:
        return ("square", carry, False) if {a.terms for a in own} == {(x, y), (y, z)} else None
    if len(own) != 1:
        return None
    [other] = [a for a in query.atoms if a.slot != carry]
    if own[0].terms == (x, y) and set(other.terms) == {y, z}:
        return "right", other.slot, other.terms == (z, y)
    if own[0].terms == (y, z) and set(other.terms) == {x, y}:
        return "left", other.slot, other.terms == (y, x)
    return None


def _closed(edges: SparseTensor, room: int) -> Relation:
    """Return the closure of a graph: as rows where it stays sparse, as bits where it fills up."""
    cells = _packed_bytes(edges.shape)
    most = min(max(cells // 8, 4 * edges.count), room // TUPLE)
    found = sparse_rows.closure_rows(edges.rows, most)
    if found is not None:
        return SparseTensor.of_rows(*found, edges.shape)
    if cells > room:
        raise too_many_tuples(most)
    return BitTensor.of(sparse_rows.closure_bits(edges.rows), edges.shape)


def _followed(start: SparseTensor, edges: SparseTensor, room: int) -> Relation | None:
    """Return where a start leads to, over any number of edges."""
    first = start.columns[0]
    sources = np.unique(first)
    if len(sources) <= FEW:
        rows, columns = [], []
        for source in sources:
            seen = sparse_rows.reach(edges.rows, start.columns[1][first == source], start=True)
            found = np.flatnonzero(seen)
            rows.append(np.full(len(found), source))
            columns.append(found)
        if not rows:
            return start
        return SparseTensor.of_columns([np.concatenate(rows), np.concatenate(columns)], start.shape, ordered=True)
    paths = _closed(edges, room)
    if isinstance(paths, BitTensor):
        if 3 * _packed_bytes(edges.shape) > room:
            return None
        begun = start.bits()
        return begun | (begun @ paths)
    made = sparse_rows.join_rows(start.rows, paths.rows, start.shape[1])
    return start | SparseTensor.of_rows(*made, start.shape)
