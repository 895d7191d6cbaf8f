"""Facts added and taken back in random programs: what is brought up to date is what a new program derives, and nothing else is touched."""

from __future__ import annotations

import random

import numpy as np
import pytest
from datalog import Program, program_of_seed, text
from oracles import by_hand

import tensorlogic as tl
from tensorlogic.backends.relations import fixpoints, update
from tensorlogic.programs import evaluate


@pytest.fixture
def always(monkeypatch):
    """Bring everything up to date, however small it is and however much of it changed."""
    monkeypatch.setattr(fixpoints, "SMALL_BITS", 0)
    monkeypatch.setattr(fixpoints, "ROUNDS", 10_000)
    monkeypatch.setattr(evaluate, "LARGE", 0)
    monkeypatch.setattr(update, "SHARE", 0)
    monkeypatch.setattr(update, "LOST", 1)


def changed(program: Program, seed: int, changes: int) -> None:
    """Change facts at random, and compare all relations with those of a plain evaluator."""
    rng = random.Random(seed)
    ours = tl.Program(text(program))
    facts = {name: set(rows) for name, rows in program.facts.items()}
    pool = {name: sorted(facts[name] | set(program.later.get(name, ())), key=repr) for name in facts}
    for _ in range(changes):
        for name in program.derived:
            if rng.random() < 0.7:
                ours.relation(name)
        for name in rng.sample(sorted(facts), rng.randint(1, min(2, len(facts)))):
            rows = rng.sample(pool[name], rng.randint(1, min(2, len(pool[name]))))
            if rng.random() < 0.6:
                ours.retract(name, rows)
                facts[name] -= set(rows)
            else:
                ours.add(name, rows)
                facts[name] |= set(rows)
        now = Program(program.sorts, {n: tuple(rows) for n, rows in facts.items()}, program.rules)
        known = by_hand(now)
        for name in rng.sample(program.derived, len(program.derived)):
            assert set(ours.relation(name)) == known[name], (seed, name, facts, program)


@pytest.mark.parametrize("batch", range(4))
def test_random_programs_are_brought_up_to_date(batch, always, monkeypatch):
    begun = []
    monkeypatch.setattr(
        fixpoints, "begin_update", lambda *a, f=fixpoints.begin_update: (begun.append(1), f(*a))[1]
    )
    for seed in range(batch * 10, batch * 10 + 10):
        changed(program_of_seed(seed, aggregates=False), seed, 3)
    assert begun  # it was not all computed anew
