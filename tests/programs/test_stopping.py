"""Recursions can be stopped, and tell how far they are, in whatever layout they run; the same query then gives the whole answer."""

import itertools

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import multiway, packed, sparse_rows
from tensorlogic.backends.relations import worklist


def chain(n):
    return np.stack([np.arange(n - 1), np.arange(1, n)], axis=1)


def grid(n):
    """Return the edges from every number to each that is larger, and no more than n away."""
    first = np.repeat(np.arange(5 * n), n)
    return np.stack([first, first + np.tile(np.arange(1, n + 1), 5 * n)], axis=1)


def relations(rules, edges):
    program = tl.Program(rules)
    program.add("E", edges)
    return program, lambda: set(program.relation("P"))


def numbers(rules):
    program = tl.Program(rules)
    weights = np.full((30, 30), np.inf if "min=" in rules else 0.0)
    weights[np.arange(29), np.arange(1, 30)] = 0.5
    program.bind(W=weights)
    return program, lambda: [program.run()["D"].tolist()]


MADE = {
    "packed bits": lambda: relations("P(x,y) <- E(x,y)\nP(x,z) <- E(x,y), P(y,w), E(w,z)", chain(40)),
    "tuples": lambda: relations("P(x,y,y) <- E(x,y)\nP(x,w,z) <- P(x,w,y), E(y,z)", chain(40)),
    "a queue of tuples": lambda: relations("P(x,y) <- E(x,y)\nP(x,z) <- E(x,y), P(y,w), E(w,z)", chain(400)),
    "a closure as rows": lambda: relations("P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)", chain(2000)),
    "a closure as bits": lambda: relations(
        "P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)",
        np.concatenate([chain(1200), [[1199, 0]], np.stack([np.arange(1200), np.arange(1200)[::-1]], 1)]),
    ),
    "a join": lambda: relations("P(x,z) <- E(x,y), E(z,y)", grid(60)),
    "a join of a circle": lambda: relations("P(x,y,z) <- E(x,y), E(y,z), E(x,z)", grid(30)),
    "min-plus": lambda: numbers("D[x,y] min= W[x,y]\nD[x,z] min= D[x,y] + W[y,z]"),
    "max-product": lambda: numbers("D[x,y] max= W[x,y]\nD[x,z] max= D[x,y] W[y,z]"),
    "sums": lambda: numbers("D[x,y] = W[x,y] + D[x,z] W[z,y]"),
}


@pytest.mark.parametrize("make", MADE.values(), ids=MADE)
def test_a_recursion_is_stopped_between_rounds_and_answers_when_asked_again(make, monkeypatch):
    monkeypatch.setattr(worklist, "BUDGET", 100)
    monkeypatch.setattr(packed, "PAUSE", 100)
    monkeypatch.setattr(sparse_rows, "PAUSE_PAIRS", 1000)
    monkeypatch.setattr(multiway, "PAUSE", 100)
    _, whole = make()
    expected = whole()
    for _ in range(2):  # the second time it is planned already, as it is below
        counted = itertools.count()
        with tl.ExecutionContext(deadline=1_000_000, clock=counted.__next__):
            make()[1]()
        checks = next(counted)
    assert checks > 6  # it asks for the time while it runs
    _, ask = make()
    clock = itertools.count()
    with pytest.raises(tl.DeadlineError), tl.ExecutionContext(deadline=checks - 4, clock=clock.__next__):
        ask()
    assert ask() == expected


def test_a_thread_that_shares_a_join_stops_too(monkeypatch):
    monkeypatch.setattr(sparse_rows, "PAUSE_PAIRS", 1000)
    monkeypatch.setattr(sparse_rows, "workers", lambda: 2)
    began = []
    bitmaps = sparse_rows._bitmaps
    monkeypatch.setattr(sparse_rows, "_bitmaps", lambda size: (began.append(size), bitmaps(size))[1])
    _, ask = MADE["a join"]()
    ask()
    parts = len(began)
    context = tl.ExecutionContext()

    def cancelling(size):
        began.append(size)
        if len(began) == 5:
            context.cancel()
        return bitmaps(size)

    monkeypatch.setattr(sparse_rows, "_bitmaps", cancelling)
    began.clear()
    _, ask = MADE["a join"]()
    with pytest.raises(tl.CancelledError), context:
        ask()
    assert 5 <= len(began) < 10 < parts


class Spans(tl.Hook):
    def __init__(self):
        self.names = []

    def on_span(self, name, start_ns, end_ns, thread):
        self.names.append(name)


@pytest.mark.parametrize("name", ["packed bits", "tuples", "a queue of tuples", "min-plus", "sums"])
def test_rounds_are_told_to_those_who_watch(name, monkeypatch):
    monkeypatch.setattr(worklist, "BUDGET", 100)
    _, ask = MADE[name]()
    hook = Spans()
    with tl.ExecutionContext([hook]):
        ask()
    rounds = [n for n in hook.names if n.startswith("round ")]
    assert rounds[0].startswith("round 1") and len(rounds) > 3
