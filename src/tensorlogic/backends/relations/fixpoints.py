"""Fixpoints of rules over relations: each round joins what the last one added, until nothing is new.

A transitive closure is found by the components of its graph; relations that fill up go on as packed bits.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache

from ...events import check_contexts, span
from ...ir.graph import Fixpoint
from ...plan.memory import available_memory
from ...plan.queries import Atom, Query
from ...plan.query_reader import Loop, Queries, Slot
from ..control import not_settled
from ..sparse import SparseTensor
from .bit_rows import Sides, grow_rows, read_sides
from .closures import Relation, follow, packed_bytes, walk_of
from .joins import Joins
from .rules import Rules
from .tables import nothing, too_many_tuples, union
from .update import Past, begin_update, reclosed
from .worklist import is_chain, read_chains, run_chains

SMALL_BITS = 1 << 17  # bytes of packed carries below which they are packed from the beginning
# bytes of a packed relation up to which it grows as rows of bits from the beginning, where its rules allow it
BITS_AT_ONCE = 1 << 20
FILLED = 128  # one place in so many filled: the rest goes on as bits
RATIO = 4  # a relation is held in pieces, each so many times as large as the next
MANY = 1_000_000  # rounds; a lower limit counts them, so that no short cut may be taken
ROUNDS = 64  # rounds after which it is quicker to begin anew than to go on from what was computed before

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
    room = cache(lambda: available_memory() // 4)
    words = sum(packed_bytes(shapes[c]) for c in loop.carries)
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
    if history is None and (walk := walk_of(loop, rules, joins, shapes, op)) is not None:
        closed = follow(walk, room)
        if closed is not None:
            return [closed]
    facts = {slot: SparseTensor(x) for slot, x in zip(loop.carries, starts, strict=True)}
    cells = sum(math.prod(shapes[c]) for c in loop.carries)

    def filled(count: int) -> bool:
        """Tell whether so many tuples are better held as bits."""
        return bits is not None and count * FILLED > cells and words <= room()

    def begin(slot: Slot, queries: Sequence[Query]) -> SparseTensor:
        """Return the facts of a relation, and what some of its rules derive at once."""
        own = [facts[slot]] if slot in facts else []
        return union([*(joins.answer(q, shapes[slot]) for q in queries), *own], shapes[slot])

    def grown_rows(derived: SparseTensor | None = None) -> Relation | None:
        """Return the relation, grown as rows of bits from its facts and what is derived already; None where its rules do not allow it."""
        sides = None if bits is None else _sides(loop, rules, joins, shapes)
        if sides is None:
            return None
        [carry] = loop.carries
        start = begin(carry, rules.once[carry])  # it may not all be derived yet
        return grow_rows(sides, start if derived is None else start | derived)

    shortcut = history is None and op.limit >= MANY
    if shortcut and words <= BITS_AT_ONCE and (grown := grown_rows()) is not None:
        return [grown]
    if shortcut and (chained := _chained(rules, joins, begin, filled, room)) is not None:
        grown_to, complete = chained
        carried = [grown_to[c] for c in loop.carries]
        # growing takes four times the bits
        if not complete and 2 * words <= room() and (grown := grown_rows(carried[0])) is not None:
            return [grown]
        return list(carried) if complete or bits is None else bits(carried)
    begun = {slot: begin(slot, rules.once[slot]) for slot in (*loop.carries, *rules.between)}
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
        # twice that while they are merged
        if sum(grown.nbytes for grown in state.values()) + joins.nbytes > 2 * room():
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


def _sides(loop: Loop, rules: Rules, joins: Joins, shapes: dict[Slot, tuple[int, ...]]) -> list[Sides] | None:
    """Return what stands beside the only relation that grows in each of its rules; None where there are others, or rules of another form."""
    if len(loop.carries) != 1 or rules.between:
        return None
    [carry] = loop.carries
    return read_sides(rules.carried[carry], carry, joins, shapes[carry]) if len(shapes[carry]) == 2 else None


def _chained(
    rules: Rules,
    joins: Joins,
    begin: Callable[[Slot, Sequence[Query]], SparseTensor],
    filled: Callable[[int], bool],
    room: Callable[[], int],
) -> tuple[dict[Slot, SparseTensor], bool] | None:
    """Run rules that chain two-column relations by a queue; None where they are something else.

    What holds from the beginning is derived by the queue too, where its rules are chains.
    """
    heads = {**rules.between, **rules.carried}
    if not all(is_chain(q) for queries in heads.values() for q in queries):
        return None
    once = {slot: [q for q in rules.once[slot] if is_chain(q)] for slot in heads}
    chains = read_chains({slot: (*once[slot], *queries) for slot, queries in heads.items()})
    starts = {slot: begin(slot, [q for q in rules.once[slot] if q not in once[slot]]) for slot in heads}
    firing = {a.slot for queries in once.values() for q in queries for a in q.atoms}
    read = dict.fromkeys(
        a.slot for groups in (once, heads) for queries in groups.values() for q in queries for a in q.atoms
    )
    given = {slot: joins.find(slot) for slot in read if slot not in heads}
    return run_chains(chains, given, starts, firing, filled, lambda: 3 * room())


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
    op = loop.step.op
    assert isinstance(op, Fixpoint)
    now, then = (walk_of(loop, rules, known, shapes, op) for known in (joins, past.joins))
    if now is not None and then is not None and now.is_closure and then.is_closure:
        changed = (now.edges - then.edges) | (then.edges - now.edges)
        closed = reclosed(old[loop.carries[0]], now.edges, changed)
        return None if closed is None else [closed]
    every = {}
    for carry, slot, copy in zip(loop.carries, loop.starts, loop.copies, strict=True):
        begin = Query(copy.terms, (Atom(slot, copy.terms),))
        every[carry] = (begin, *rules.once[carry], *rules.carried[carry])
    start = begin_update(old, every, joins, past)
    if start is None:
        return None
    state = {slot: Growing(start.old[slot], start.new[slot]) for slot in loop.carries}
    for n in range(ROUNDS):
        if not any(new.count for new in _round(n, state, rules, joins, {}).values()):
            return [state[slot].whole() for slot in loop.carries]
    return None
