"""A loop of a plan as rules: what each relation that grows is derived by."""

from __future__ import annotations

from typing import NamedTuple

from ...plan.queries import Query
from ...plan.query_reader import Loop, Queries, Slot


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
