"""Facts that are added and taken back: the same answers as of a program that had them from the beginning, derived from what was known."""

import random

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.relations import closures, fixpoints

RECURSIONS = {
    "closure": "P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)",
    "closure from the left": "P(x,y) <- E(x,y)\nP(x,z) <- E(x,y), P(y,z)",
    "not linear": "P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), P(y,z)",
    "same generation": "P(x,y) <- E(x,p), E(y,p)\nP(x,y) <- E(x,u), P(u,v), E(y,v)",
    "mutual": "P(x,y) <- E(x,y)\nQ(x,z) <- P(x,y), E(y,z)\nP(x,z) <- Q(x,y), E(y,z)",
    "with a test": "P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), F(y,z), x != z",
    "three places": "P(x,y,y) <- E(x,y)\nP(x,y,w) <- P(x,y,z), E(z,w), not F(z,w)",
    "constants": "P(x) <- E(3,x)\nP(y) <- P(x), E(x,y), F(x,_)",
    "two strata": "Q(x,y) <- F(x,y)\nQ(x,z) <- Q(x,y), F(y,z)\nP(x,y) <- E(x,y)\nP(x,z) <- P(x,y), Q(y,z)",
    "own facts": "P(x,z) <- P(x,y), E(y,z)\nP(x,y) <- F(y,x)",
}


@pytest.fixture(params=[0, 1 << 17], ids=["tuples", "bits"])
def layout(request, monkeypatch):
    monkeypatch.setattr(fixpoints, "SMALL_BITS", request.param)


@pytest.mark.parametrize("rules", RECURSIONS.values(), ids=RECURSIONS)
@pytest.mark.parametrize("seed", range(4))
def test_facts_change_one_by_one_and_the_answers_are_those_of_a_new_program(rules, seed, layout):
    rng = random.Random(seed)
    names = [n for n in ("E", "F", "P") if n != "P" or "F(y,x)" in rules]
    facts = {n: {(rng.randrange(12), rng.randrange(12)) for _ in range(14)} for n in names}
    program = tl.Program(rules)
    for name in names:
        program.add(name, sorted(facts[name]))
    program.relation("P")
    for _ in range(8):
        name = rng.choice(names)
        if rng.random() < 0.7:
            rows = {(rng.randrange(13), rng.randrange(13)) for _ in range(rng.choice([1, 1, 2]))}
            program.add(name, sorted(rows))
            facts[name] |= rows
        else:
            rows = set(rng.sample(sorted(facts[name]), 1))
            assert program.retract(name, sorted(rows)) == 1
            facts[name] -= rows
        again = tl.Program(rules)
        for n in names:
            again.add(n, sorted(facts[n]))
        asked = [r for r in ("P", "Q") if f"{r}(" in rules]
        for r in rng.sample(asked, rng.randint(1, len(asked))):
            assert set(program.relation(r)) == set(again.relation(r))


class Rounds(tl.Hook):
    """Notes how many tuples a recursion had at the beginning of each round."""

    def __init__(self):
        self.counts = []

    def on_span(self, name, start_ns, end_ns, thread):
        if name.startswith("round "):
            self.counts.append(int(name.split(": ")[1].split()[0].replace(",", "")))


def rounds_of(program, name):
    hook = Rounds()
    with tl.ExecutionContext([hook]):
        program.relation(name)
    return hook.counts


def chain(n):
    return np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)


def test_a_recursion_goes_on_from_what_it_had():
    program = tl.Program("P(x,y,y) <- E(x,y)\nP(x,y,w) <- P(x,y,z), E(z,w)")
    program.add("E", chain(300))
    before = len(program.relation("P"))
    program.add("E", [(0, 290)])
    assert min(rounds_of(program, "P")) >= before
    program.retract("E", [(0, 290)])
    assert min(rounds_of(program, "P")) >= before  # what was derived from it is gone, and all else is there still
    assert len(program.relation("P")) == before
    program.retract("E", [(290, 291)])
    assert min(rounds_of(program, "P")) >= len(program.relation("P")) // 2


def test_two_recursions_that_were_computed_at_different_times_go_on_from_their_own():
    rules = "P(x,y,y) <- E(x,y)\nP(x,y,w) <- P(x,y,z), E(z,w)\nQ(x,y,y) <- E(y,x)\nQ(x,y,w) <- Q(x,y,z), E(w,z)"
    program = tl.Program(rules)
    program.add("E", chain(60))
    program.relation("P")
    program.add("E", [(5, 50)])
    program.relation("Q")  # P is not brought up to date
    program.add("E", [(7, 40)])
    again = tl.Program(rules)
    again.add("E", [*chain(60).tolist(), (5, 50), (7, 40)])
    for name in ("P", "Q"):
        assert set(program.relation(name)) == set(again.relation(name))


def test_edges_are_added_to_a_closure_without_beginning_anew(monkeypatch):
    program = tl.Program("P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)")
    child = np.arange(1, 3000)
    program.add("E", np.stack([child, child // 2], axis=1))
    program.relation("P")
    monkeypatch.setattr(closures, "_closed", lambda *_: pytest.fail("it began anew"))
    program.add("E", [(100, 5000), (5000, 5001), (17, 2000)])
    found = set(program.relation("P"))
    assert {(100, 5001), (17, 1), (17, 1000), (200, 5000), (35, 500)} < found and not {(5001, 0), (50, 5000)} & found


RULES_OF_WIDE_RELATIONS = """Domain(a,b,c,d,e) <- R(a,b,c,d,e)
Domain(a,b,c,d,e) <- S(a,b,c,d,e)
Joined(x,y) <- R(a,b,c,d,x), S(a,b,c,d,y)
Only(a,b,c,d,e) <- R(a,b,c,d,e), not S(a,b,c,d,e)
Turned(a,b,c,d,e) <- R(a,b,c,d,e)
Turned(b,a,c,d,e) <- Turned(a,b,c,d,e)"""


def test_relations_too_wide_for_a_number_each_tuple_are_joined_added_to_and_taken_from():
    rng = np.random.default_rng(0)
    wide = np.stack([np.arange(20_000)] * 5, axis=1)  # 20,000 to the fifth is more than 63 bits
    given = rng.integers(0, 20_000, (2000, 5))
    other = given[rng.permutation(2000)[:1000]].copy()
    other[:, 4] = (other[:, 4] + rng.integers(0, 2, 1000)) % 20_000
    program = tl.Program(RULES_OF_WIDE_RELATIONS)
    program.add("R", wide)
    program.add("R", given)
    program.add("S", other)
    r, s = {tuple(x) for x in [*wide.tolist(), *given.tolist()]}, {tuple(x) for x in other.tolist()}
    by_start = {}
    for row in r:
        by_start.setdefault(row[:4], set()).add(row[4])

    def check():
        assert set(program.relation("Only")) == r - s
        assert set(program.relation("Domain")) == r | s
        assert set(program.relation("Joined")) == {(x, row[4]) for row in s for x in by_start.get(row[:4], ())}
        assert set(program.relation("Turned")) == r | {(b, a, *rest) for a, b, *rest in r}

    check()
    gone = [x for x in sorted(s)[:5] if x not in r]
    assert program.retract("S", gone) == len(gone)
    s -= set(gone)
    program.add("R", [(1, 2, 3, 4, 5)])
    r.add((1, 2, 3, 4, 5))
    by_start.setdefault((1, 2, 3, 4), set()).add(5)
    check()
