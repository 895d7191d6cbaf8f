"""The kernel of fixpoints of two-column relations: tuples wait in a queue, and each is joined with those that came before it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .explicit import CODES, CODES_OUT, NUMBER, PLACES, PLACES_OUT, explicit
from .support import kernel

DONE, FULL, PAUSED = 0, 1, 2
ALONE, LEFT, RIGHT = 0, 1, 2  # what the tuple at hand is in a rule: its only atom, or one side of a join


@kernel
def _slot(table: Any, key: Any) -> Any:
    """Return the place of a key in a hash table: where it is, or the free one where it would be."""
    mask = np.uint64(table.size - 1)
    h = np.uint64(key) * np.uint64(0x9E3779B97F4A7C15)
    place = (h ^ (h >> np.uint64(29))) & mask
    while table[place] != -1 and table[place] != key:
        place = (place + np.uint64(1)) & mask
    return place


@explicit(CODES, CODES_OUT)
def rehash(keys: Any, table: Any) -> None:
    """Put keys into an empty table, whose size is a power of two."""
    for key in keys:
        table[_slot(table, key)] = key


@explicit(
    PLACES_OUT, PLACES_OUT, PLACES_OUT, CODES_OUT, PLACES_OUT, PLACES_OUT, PLACES_OUT, PLACES_OUT, CODES_OUT, CODES_OUT,
    PLACES, PLACES, NUMBER, NUMBER,
)  # fmt: skip
def derive(
    relation: Any, first: Any, second: Any, keys: Any, next_out: Any, next_in: Any, out: Any, into: Any, table: Any,
    counts: Any, starts: Any, rules: Any, size: int, budget: int,
) -> Any:  # fmt: skip
    """Take tuples off the queue until it is empty, the arrays are full or the budget is spent.

    ``counts`` has the tuple whose turn it is, how many there are, and how many are linked. A tuple of relation r is linked into a list
    of those with its first element (``out``) and one of those with its second (``into``). Rules of relation r are rows of five
    from ``starts[r]`` on: what the tuple is, the head, the other relation, and whether this and the other are turned round.
    A tuple that did not fit is derived again later.
    """
    turn, total, linked = counts[0], counts[1], counts[2]
    room = min(relation.size, table.size // 2)
    square = size * size
    while linked < turn:
        r, x, y = relation[linked], first[linked], second[linked]
        next_out[linked] = out[r * size + x]
        out[r * size + x] = linked
        next_in[linked] = into[r * size + y]
        into[r * size + y] = linked
        linked += 1
    status = DONE
    while turn < total:
        if budget <= 0:
            status = PAUSED
            break
        r, x, y = relation[turn], first[turn], second[turn]
        if linked == turn:
            next_out[turn] = out[r * size + x]
            out[r * size + x] = turn
            next_in[turn] = into[r * size + y]
            into[r * size + y] = turn
            linked += 1
        full = False
        for k in range(starts[r], starts[r + 1]):
            kind, head, other = rules[5 * k], rules[5 * k + 1], rules[5 * k + 2]
            a, b = (y, x) if rules[5 * k + 3] else (x, y)
            if kind == ALONE:
                if other == 1:
                    b = a
                partner = -2
            elif kind == LEFT:  # a is shown, b is joined with the other's first element
                partner = into[other * size + b] if rules[5 * k + 4] else out[other * size + b]
            else:  # b is shown, a is joined with the other's second element
                partner = out[other * size + a] if rules[5 * k + 4] else into[other * size + a]
            while partner != -1:
                u, v = a, b
                if kind == LEFT:
                    v = first[partner] if rules[5 * k + 4] else second[partner]
                    partner = next_in[partner] if rules[5 * k + 4] else next_out[partner]
                elif kind == RIGHT:
                    u = second[partner] if rules[5 * k + 4] else first[partner]
                    partner = next_out[partner] if rules[5 * k + 4] else next_in[partner]
                else:
                    partner = -1
                budget -= 1
                key = head * square + u * size + v
                place = _slot(table, key)
                if table[place] == -1:
                    if total >= room:
                        full = True
                        break
                    table[place] = key
                    relation[total], first[total], second[total], keys[total] = head, u, v, key
                    total += 1
            if full:
                break
        if full:
            status = FULL
            break
        budget -= 1
        turn += 1
    counts[0], counts[1], counts[2] = turn, total, linked
    return status
