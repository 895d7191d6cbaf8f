"""Facts added and taken back in random programs: what is brought up to date is what a new program derives, and nothing else is touched."""

from __future__ import annotations

import random

import numpy as np
import pytest
from datalog import Program, program_of_seed, text
from oracles import by_hand

import tensorlogic as tl
from tensorlogic.backends.relations import closures, fixpoints, update
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
    monkeypatch.setattr(fixpoints, "begin_update", lambda *a, f=fixpoints.begin_update: (begun.append(1), f(*a))[1])
    for seed in range(batch * 10, batch * 10 + 10):
        changed(program_of_seed(seed, aggregates=False), seed, 3)
    assert begun  # it was not all computed anew


CLOSURE = "P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)"


def tree(n):
    child = np.arange(1, n)
    return np.stack([child, child // 2], axis=1)


def fresh(rules, **facts):
    program = tl.Program(rules)
    for name, rows in facts.items():
        program.add(name, rows)
    return program


def test_edges_are_taken_from_a_closure_without_beginning_anew(monkeypatch):
    program = fresh(CLOSURE, E=tree(3000))
    program.add("E", [(17, 2), (2999, 3)])
    program.relation("P")
    monkeypatch.setattr(closures, "_closed", lambda *_: pytest.fail("it began anew"))
    for gone in ([(17, 2)], [(17, 8), (2999, 3)], [(40, 20)]):
        program.retract("E", gone)
        program.relation("P")
    monkeypatch.undo()
    rows = [r for r in tree(3000).tolist() if r not in ([17, 8], [40, 20])]
    assert set(program.relation("P")) == set(fresh(CLOSURE, E=rows).relation("P"))


def test_a_pair_that_another_path_still_joins_stays(always):
    program = fresh(CLOSURE, E=[(0, 1), (1, 2), (2, 3), (0, 2), (3, 1)])
    program.relation("P")
    program.retract("E", [(1, 2)])
    assert set(program.relation("P")) == {(0, 1), (0, 2), (0, 3), (2, 3), (2, 1), (3, 1)}


class Steps(tl.Hook):
    """Notes what ran."""

    def __init__(self):
        self.names = []

    def on_span(self, name, start_ns, end_ns, thread):
        self.names.append(name)


def watched(program, *names):
    hook = Steps()
    with tl.ExecutionContext([hook]):
        for name in names:
            program.relation(name)
    return hook.names


RULES = (
    CLOSURE
    + """
Q(x,y) <- F(x,y)
Q(x,z) <- Q(x,y), F(y,z)
Both(x,y) <- P(x,y), Q(x,y)
Apart(x,y) <- G(x,y), not P(x,y)"""
)


def test_strata_that_a_change_does_not_reach_are_not_touched(monkeypatch):
    program = fresh(RULES, E=tree(300), F=tree(200), G=tree(100))
    for name in ("P", "Q", "Both", "Apart"):
        program.relation(name)
    ran = []
    run = tl.Executor.execute
    monkeypatch.setattr(tl.Executor, "execute", lambda *a, **k: (ran.append(a[1].output_names), run(*a, **k))[1])
    program.retract("F", [(7, 3)])
    kept = program.relation("P"), program.relation("Apart")
    assert not ran
    program.relation("Both")
    assert [set(names) for names in ran] in ([{"Q"}, {"Both"}], [{"Q", "Both"}])
    program.retract("G", [(7, 3)])
    ran.clear()
    for name in ("P", "Q", "Both"):
        program.relation(name)
    assert not ran
    assert (7, 3) in kept[0] and (7, 3) not in program.relation("Apart") and ran


def test_a_change_that_changes_nothing_below_ends_there(always, monkeypatch):
    program = fresh(RULES, E=[(0, 1), (1, 2), (0, 2)], F=[(0, 2)], G=[(0, 2)])
    for name in ("Both", "Apart"):
        program.relation(name)
    program.retract("E", [(0, 2)])  # 0 leads to 2 by way of 1
    assert set(program.relation("Both")) == {(0, 2)} and not len(program.relation("Apart"))


def test_a_relation_that_reads_nothing_grows_with_its_domain(always):
    program = fresh("P(Ann) <- 1 < 2\nQ(x,y) <- P(x), E(x,y)\nQ(x,z) <- Q(x,y), E(y,z)", E=[("Ann", "Bob")])
    assert set(program.relation("Q")) == {("Ann", "Bob")}
    program.add("E", [("Bob", "Carol"), ("Dan", "Ann")])
    assert set(program.relation("P")) == {("Ann",)} and program.relation("P").dense().shape == (4,)
    assert set(program.relation("Q")) == {("Ann", "Bob"), ("Ann", "Carol")}


def test_joins_are_brought_up_to_date_from_what_changed(monkeypatch):
    rng = np.random.default_rng(0)
    rows = np.unique(rng.integers(0, 2000, (20_000, 2)), axis=0)
    rules = "J(x,z) <- A(x,y), A(y,z)\nK(x,z) <- J(x,z), not A(x,z)"
    program = fresh(rules, A=rows)
    program.relation("K"), program.relation("J")
    calls = []
    updated = update.begin_update
    monkeypatch.setattr(update, "begin_update", lambda *a: (calls.append(1), updated(*a))[1])
    for _ in range(2):  # after the first change all that lies between is kept
        program.retract("A", rows[:3])
        program.relation("K")
        program.add("A", rows[:2])
        found = program.relation("K")
    assert calls
    expected = fresh(rules, A=np.concatenate([rows[:2], rows[3:]]))
    assert set(found) == set(expected.relation("K")) and set(program.relation("J")) == set(expected.relation("J"))
