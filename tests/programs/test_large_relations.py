"""Relations that are larger than a list of their tuples could be, and what programs of one text share."""

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import tuples
from tensorlogic.lang.domains import Column, Domain

CLOSURE = "P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)"


def test_a_question_about_a_relation_in_bits_lists_only_what_it_asks_for(monkeypatch):
    rng = np.random.default_rng(0)
    edges = rng.integers(0, 200, (400, 2))
    program, other = tl.Program(CLOSURE), tl.Program(CLOSURE)
    program.add("E", edges)
    other.add("E", edges)
    assert len(program.relation("P")) == len(pairs := set(other.relation("P")))
    listed = []
    plain = tuples.from_words
    monkeypatch.setattr(tuples, "from_words", lambda w, shape: listed.append(np.prod(shape)) or plain(w, shape))
    a, b = edges[0].tolist()
    assert set(program.query(f"P({a}, x)?")) == {(y,) for x, y in pairs if x == a}
    assert set(program.query(f"P(x, {b})?")) == {(x,) for x, y in pairs if y == b}
    assert bool(program.query(f"P({a}, {b})?")) == ((a, b) in pairs)
    assert bool(program.query(f"P({b}, {a})?")) == ((b, a) in pairs)
    assert listed and max(listed) <= 200


@pytest.mark.parametrize("shape", [(3, 5), (4, 64), (2, 3, 70), (5, 129)])
def test_elements_of_bits_are_those_of_the_array(shape):
    array = np.random.default_rng(1).random(shape) < 0.5
    bits = tl.BitTensor(array)
    last = shape[-1] - 1
    for key in [(0, last), (slice(None), last), (1, slice(None)), (slice(0, 2), 0), (0, -1)]:
        full = (*key[:-1], *[slice(None)] * (len(shape) - len(key)), key[-1])
        np.testing.assert_array_equal(np.asarray(bits[full]), array[full])


def test_numbers_that_are_added_in_turns_keep_their_codes():
    rng = np.random.default_rng(2)
    domain = Domain([])
    first = {}
    for _ in range(20):
        numbers = rng.choice([10**9, 50]) * rng.integers(-20, 20, rng.integers(1, 9))
        for n in numbers.tolist():
            first.setdefault(n, len(first))
        assert domain.add(Column(numbers, None)).tolist() == [first[n] for n in numbers.tolist()]
        assert {n: domain.code(n) for n in first} == first and domain.code(7) is None
        assert domain.names(list(first.values())[:1]) == list(first)[:1]
    assert domain.names() == list(first)


def test_programs_of_one_text_share_plans_and_nothing_else():
    one, two = tl.Program(CLOSURE), tl.Program(CLOSURE)
    one.add("E", [("a", "b"), ("b", "c")])
    two.add("E", [("u", "v"), ("v", "w")])
    assert set(one.relation("P")) == {("a", "b"), ("b", "c"), ("a", "c")}
    made = one.executor.programs.stats().misses
    assert set(two.relation("P")) == {("u", "v"), ("v", "w"), ("u", "w")}
    assert two.executor.programs.stats().misses == made
    assert one.executor is not two.executor
    one.add_rule("P(x,x) <- E(x,_)")
    assert ("u", "u") not in two.relation("P") and ("a", "a") in one.relation("P")


def test_a_recursion_that_grows_says_which_and_how():
    program = tl.Program("W = [[0, 1, 9], [9, 0, 2], [-4, 9, 0]]\nD[x,y] min= W[x,y]\nD[x,z] min= D[x,y] + W[y,z]")
    with pytest.raises(tl.ConvergenceError, match=r"recursion of D did not .* \[0, 2\] went from 1 to 0"):
        program.run()["D"]
