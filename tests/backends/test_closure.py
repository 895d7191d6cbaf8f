"""Fixpoints over packed bits against the plain loop and the reference backend."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import networkx as nx
import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import bit_fixpoints, packed
from tensorlogic.backends.bit_fixpoints import bind_fixpoint, loop_on_bits
from tensorlogic.backends.native import facts
from tensorlogic.backends.relations import bit_rows, fixpoints, worklist
from tensorlogic.passes.specialize import specialize
from tensorlogic.plan import groups
from tensorlogic.plan.build import Step, lay_out

Rule = Callable[..., Any]


@pytest.fixture(autouse=True)
def even_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "SMALL", 0)
    monkeypatch.setattr(groups, "MANY_ROWS", 0)  # what kernels are compared with stays the plain loop


def flags(shape: Any, density: float, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape) < density


def fixpoint(body: Rule, carries: list[Any], captures: list[Any], **options: Any) -> tuple[Step, list[Any], Any]:
    """Return the step of a fixpoint, the arrays it reads, and its graph with inputs."""
    b = tl.GraphBuilder()
    c = [b.input(f"c{n}", x.shape, "bool") for n, x in enumerate(carries)]
    k = [b.input(f"k{n}", x.shape, "bool") for n, x in enumerate(captures)]
    made = b.fixpoint(lambda *s: body(b, *s, *k), *c, **options)
    graph = b.build(**{f"r{n}": x for n, x in enumerate(made if isinstance(made, tuple | list) else [made])})
    given = {f"c{n}": x for n, x in enumerate(carries)} | {f"k{n}": x for n, x in enumerate(captures)}
    given = {name: given[name] for name in graph.inputs}
    types = {name: tl.TensorType(tl.TensorShape(x.shape), "bool") for name, x in given.items()}
    plan = lay_out(specialize(graph, types))
    step = plan.steps[-1]
    slots = {slot: given[name] for name, slot, _ in plan.inputs}
    return step, [slots[s] for s in step.reads], (graph, given)


def outcome(call: Callable[[], Any]) -> Any:
    """Return the arrays that a call gives, or its error in words."""
    try:
        found = call()
    except tl.ConvergenceError as error:
        return str(error).splitlines()[0], error.diagnostic.location is not None
    return [np.asarray(x) for x in (found if isinstance(found, tuple | list) else [found])]


def agree(step: Step, args: list[Any], graph: Any, backend: str = "numpy") -> Any:
    kernel = bind_fixpoint(step)
    assert kernel is not None
    before = [x.copy() for x in args]
    got = outcome(lambda: kernel(*args))
    expected = outcome(lambda: [*tl.Executor(backend=backend).execute(*graph)])
    assert type(got) is type(expected), (got, expected)
    if isinstance(got, tuple):
        assert got == expected
    else:
        assert len(got) == len(expected)
        for a, b in zip(got, expected, strict=True):
            assert a.dtype == np.bool_
            np.testing.assert_array_equal(a, b)
    for a, b in zip(args, before, strict=True):
        np.testing.assert_array_equal(a, b)  # nobody's input changes
    return got


def join(b: Any, x: Any, y: Any) -> Any:
    return b.einsum("xy,yz->xz", x, y, algebra="boolean")


CLOSURES: dict[str, Rule] = {
    "right": join,
    "right or edge": lambda b, s, e: b.logical_or(e, join(b, s, e)),
    "left": lambda b, s, e: b.maximum(join(b, e, s), e),
    "both": lambda b, s, e: b.logical_or(join(b, e, s), join(b, s, e)),
    "square": lambda b, s, e: b.logical_or(join(b, s, s), b.logical_or(e, s)),
    "transposed": lambda b, s, e: b.einsum("xy,zy->xz", s, e, algebra="boolean"),
    "second first": lambda b, s, e: b.einsum("yz,xy->xz", e, s, algebra="boolean"),
    "two graphs": lambda b, s, e: b.logical_or(
        join(b, s, e), join(b, s, b.logical_not(b.logical_not(b.transpose(e, (1, 0)))))
    ),
}
NOT_CLOSURES: dict[str, Rule] = {
    "carry transposed": lambda b, s, e: b.einsum("yx,yz->xz", s, e, algebra="boolean"),
    "square and edge": lambda b, s, e: b.logical_or(join(b, s, s), join(b, s, e)),
    "masked": lambda b, s, e: b.logical_and(join(b, s, e), b.logical_not(e)),
    "broadcast": lambda b, s, e: b.logical_or(join(b, s, e), b.any(e, axis=0, keepdims=True)),
    "same side": lambda b, s, e: b.einsum("xy,xy->xy", join(b, s, e), e, algebra="boolean"),
}  # fmt: skip


@pytest.mark.parametrize("name", [*CLOSURES, *NOT_CLOSURES])
@pytest.mark.parametrize(
    ("n", "density"), [(1, 1.0), (5, 0.3), (63, 0.02), (65, 0.03), (130, 0.01), (70, 0.0), (66, 1.0)]
)
def test_closures_and_what_looks_alike(name: str, n: int, density: float, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    plain = bit_fixpoints._closed
    monkeypatch.setattr(bit_fixpoints, "_closed", lambda *a: (found.append(1), plain(*a))[1])
    rule = {**CLOSURES, **NOT_CLOSURES}[name]
    for combine in ("or", "max"):
        for start in (flags((n, n), density, 1), flags((n, n), density, 2), np.zeros((n, n), bool)):
            agree(*fixpoint(rule, [start], [flags((n, n), density, 1)], combine=combine))
    assert len(found) == (6 if name in CLOSURES or (n == 1 and name == "broadcast") else 0)


@pytest.mark.parametrize("name", ["right", "right or edge", "left", "both", "square", "masked"])
@pytest.mark.parametrize("kind", ["chain", "ring", "random"])
def test_every_limit_is_the_plain_loops(name: str, kind: str) -> None:
    n = 9
    edge = {
        "chain": np.eye(n, k=1, dtype=bool),
        "ring": np.roll(np.eye(n, dtype=bool), 1, 1),
        "random": flags((n, n), 0.2),
    }[kind]
    rule = {**CLOSURES, **NOT_CLOSURES}[name]
    outcomes = set()
    for limit in range(1, 2 * n + 3):
        for start in (edge, np.zeros((n, n), bool), np.eye(n, dtype=bool)):
            got = agree(*fixpoint(rule, [start], [edge], combine="or", limit=limit))
            outcomes.add(isinstance(got, tuple))
    assert outcomes == {True, False}


def sides(b: Any, s: Any, left: Any, right: Any) -> Any:
    return b.logical_or(join(b, left, s), join(b, s, right))


@pytest.mark.parametrize(("rows", "columns"), [(1, 66), (3, 9), (9, 3), (70, 5), (0, 4), (4, 0)])
def test_what_some_nodes_reach(rows: int, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    plain = bit_fixpoints._closed
    monkeypatch.setattr(bit_fixpoints, "_closed", lambda *a: (found.append(1), plain(*a))[1])
    for density in (0.02, 0.1, 0.5):
        start = flags((rows, columns), density, 1)
        left, right = flags((rows, rows), density, 2), flags((columns, columns), density, 3)
        agree(*fixpoint(join, [start], [right], combine="or"))
        agree(*fixpoint(lambda b, s, e: b.logical_or(s, join(b, e, s)), [start], [left], combine="or"))
        agree(*fixpoint(sides, [start], [left, right], combine="max"))
    assert len(found) == 9 or not rows * columns
    chains = np.eye(rows, k=-1, dtype=bool), np.eye(columns, k=1, dtype=bool)
    start = np.zeros((rows, columns), bool)
    start[:1, :1] = True
    for limit in range(1, min(rows + columns + 3, 20)):
        agree(*fixpoint(join, [start], [chains[1]], combine="or", limit=limit))
        agree(*fixpoint(sides, [start], chains, combine="or", limit=limit))


def test_a_small_closure_takes_few_products_and_no_machine_code() -> None:
    program = """
import sys, numpy as np, tensorlogic as tl
b = tl.GraphBuilder()
edge = b.input("edge", ("n", "n"), "bool")
paths = b.fixpoint(lambda p: b.einsum("xy,yz->xz", p, edge, algebra="boolean"), edge, combine="or")
graph, executor = b.build(y=paths), tl.Executor()
for n in (130, 300):
    chain = {"edge": np.eye(n, k=1, dtype=bool)}
    assert "closure by few products" in str(executor.plan(graph, chain))
    assert np.array_equal(executor.execute(graph, chain)[0], np.triu(np.ones((n, n), bool), 1))
rare = tl.Executor()  # one that goes round by round is no closure
twice = b.fixpoint(lambda p: b.einsum("xy,yz->xz", p, b.logical_not(p), algebra="boolean"), edge, combine="or")
assert "packed" not in str(rare.plan(b.build(y=twice), chain))
print("numba" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "False\n", done.stderr


@pytest.mark.parametrize("shape", [(129, 129), (90, 300), (300, 300)])
def test_a_small_closure_takes_the_memory_that_is_planned(
    monkeypatch: pytest.MonkeyPatch, shape: Any, measured: Any
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(packed, "_native", lambda bits: None)  # as where numba is not loaded
    b = tl.GraphBuilder()
    start, edge = b.input("start", shape, "bool"), b.input("edge", (shape[1], shape[1]), "bool")
    graph = b.build(y=b.fixpoint(lambda s: join(b, s, edge), start, combine="or"))
    inputs = {"start": flags(shape, 0.01), "edge": flags((shape[1], shape[1]), 0.007)}
    executor = tl.Executor()
    planned = executor.plan(graph, inputs).peak_bytes
    executor.execute(graph, inputs)
    _, peak = measured(executor.execute, graph, inputs)
    assert 0.8 * planned < peak <= planned


@pytest.mark.parametrize("policy", ["exact", "adaptive"])
def test_closures_take_few_products_where_there_is_no_machine_code(
    monkeypatch: pytest.MonkeyPatch, policy: Any
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(facts.NativeFacts, "usable", lambda self: False)
    b, n = tl.GraphBuilder(), 500
    edge = b.input("edge", (n, n), "bool")
    graph = b.build(y=b.fixpoint(lambda s: join(b, s, edge), edge, combine="or"))
    assert "closure by few products" in str(tl.Executor(policy=policy).plan(graph))
    start = b.input("start", (n // 5, n), "bool")  # few rows are sooner done in rounds
    few = b.build(y=b.fixpoint(lambda s: join(b, s, edge), start, combine="or"))
    assert "closure" not in str(tl.Executor(policy=policy).plan(few))


def test_the_error_is_the_plain_loops_and_points_at_the_rule() -> None:
    step, args, _ = fixpoint(
        CLOSURES["right"], [np.eye(70, k=1, dtype=bool)], [np.eye(70, k=1, dtype=bool)], combine="or", limit=5
    )
    with pytest.raises(tl.ConvergenceError, match=r"within 5 rounds: carry 0 \(64 elements still change\)") as caught:
        bind_fixpoint(step)(*args)
    assert "test_closure.py" in str(caught.value)


@pytest.mark.parametrize(("n", "density"), [(300, 0.004), (300, 0.01), (400, 0.002), (60, 0.3)])
def test_closures_are_networkx(n: int, density: float) -> None:
    edge = flags((n, n), density, n)
    graph = nx.transitive_closure(nx.from_numpy_array(edge, create_using=nx.DiGraph))
    expected = nx.to_numpy_array(graph, nodelist=range(n)) > 0
    for name in ("right", "left", "square"):
        step, args, _ = fixpoint(CLOSURES[name], [edge], [edge], combine="or")
        np.testing.assert_array_equal(bind_fixpoint(step)(*args), expected)
        # too close to be sure: in rounds
        step, args, _ = fixpoint(CLOSURES[name], [edge], [edge], combine="or", limit=n)
        np.testing.assert_array_equal(bind_fixpoint(step)(*args), expected)


def test_a_long_chain_is_searched_without_recursion() -> None:
    n = 3000
    edge = np.eye(n, k=1, dtype=bool)
    np.testing.assert_array_equal(
        packed.unpack(packed.closure(packed.pack(edge)), n), np.triu(np.ones((n, n), bool), 1)
    )


def test_closure_without_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    edge = flags((90, 90), 0.03)
    native = packed.closure(packed.pack(edge))
    monkeypatch.setattr(packed, "_native", lambda bits: None)
    np.testing.assert_array_equal(packed.closure(packed.pack(edge)), native)


# rules in general


def test_two_relations_that_feed_each_other() -> None:
    def rules(b: Any, even: Any, odd: Any, edge: Any) -> Any:
        return b.logical_or(even, join(b, odd, edge)), join(b, even, edge)

    edge = flags((66, 66), 0.03, 3)
    for combine in ("or", "max"):
        agree(*fixpoint(rules, [np.eye(66, dtype=bool), np.zeros((66, 66), bool)], [edge], combine=combine))


def test_carries_that_change_places() -> None:
    x, y = flags((5, 66), 0.3, 1), flags((5, 66), 0.3, 2)
    for rules in (
        lambda b, c, d, k: (d, b.logical_and(c, join(b, c, k))),
        lambda b, c, d, k: (b.cast(d, "bool"), join(b, c, k)),
    ):
        for combine in ("or", "max", "min"):
            agree(*fixpoint(rules, [x, y], [flags((66, 66), 0.02, 3)], combine=combine))


def test_same_generation() -> None:
    def rule(b: Any, s: Any, up: Any) -> Any:
        return b.einsum(
            "xy,zy->xz", b.einsum("ax,ab->xb", up, s, algebra="boolean"), b.transpose(up, (1, 0)), algebra="boolean"
        )

    agree(*fixpoint(rule, [np.eye(70, dtype=bool)], [flags((70, 70), 0.02)], combine="or"))


def test_negation_runs_in_plain_rounds() -> None:
    def win(b: Any, w: Any, move: Any) -> Any:  # a position is won if some move leads to one that is not
        return b.einsum("xy,y->x", move, b.logical_not(w), algebra="boolean")

    move = np.triu(flags((70, 70), 0.1), 1)
    agree(*fixpoint(win, [np.zeros(70, bool)], [move]))
    loop = np.roll(np.eye(5, dtype=bool), 1, 1)
    got = agree(*fixpoint(win, [np.zeros(5, bool)], [loop], limit=6))
    assert isinstance(got, tuple)  # it never settles
    got = agree(*fixpoint(win, [np.zeros(5, bool)], [loop], limit=5000))
    assert "every 2 rounds its values are the same again" in got[0]  # it is not run to its limit


def test_random_bodies_are_the_references() -> None:
    rng = np.random.default_rng(0)
    kinds = set()
    for _ in range(60):
        n, m = int(rng.choice([2, 4, 7])), int(rng.choice([1, 3, 5]))
        parts = rng.integers(0, 1000, 20).tolist()
        monotone = bool(rng.random() < 0.7)

        def rules(
            b: Any,
            s: Any,
            t: Any,
            e: Any,
            v: Any,
            parts: Any = parts,
            m: int = m,
            n: int = n,
            monotone: bool = monotone,
        ) -> Any:
            squares, rows = [s, e], [t, v]
            for p in range(6):
                x, y = (squares[parts[3 * p + k] % len(squares)] for k in (0, 1))
                r = rows[parts[3 * p + 1] % len(rows)]
                options = [
                    lambda: squares.append(join(b, x, y)),  # noqa: B023
                    lambda: squares.append(b.logical_or(x, b.transpose(y, (1, 0)))),  # noqa: B023
                    lambda: squares.append(b.logical_and(x, y)),  # noqa: B023
                    lambda: squares.append(b.logical_and(x, b.any(y, axis=1, keepdims=True))),  # noqa: B023
                    lambda: squares.append(b.logical_or(x, b.all(y, axis=0))),  # noqa: B023
                    lambda: rows.append(b.einsum("mx,xy->my", r, x, algebra="boolean")),  # noqa: B023
                    lambda: rows.append(b.logical_and(r, b.einsum("xx->x", x, algebra="boolean"))),  # noqa: B023
                    lambda: squares.append(b.logical_or(x, r[:1])),  # noqa: B023
                    lambda: squares.append(b.maximum(x, b.einsum("mx,my->xy", r, r, algebra="boolean"))),  # noqa: B023
                    lambda: squares.append(b.minimum(x, x)),  # noqa: B023
                    lambda: rows.append(b.logical_or(r, b.broadcast_to(b.reshape(b.any(x, axis=0), (1, n)), (m, n)))),  # noqa: B023
                ]
                if not monotone:
                    options += [
                        lambda: squares.append(b.logical_not(x)),  # noqa: B023
                        lambda: squares.append(b.logical_xor(x, y)),  # noqa: B023
                        lambda: rows.append(b.where(r, b.logical_not(r), rows[0])),  # noqa: B023
                    ]
                options[parts[3 * p + 2] % len(options)]()
            return join(b, squares[-1], squares[-2]), rows[-1]

        carries = [rng.random((n, n)) < 0.2, rng.random((m, n)) < 0.3]
        captures = [rng.random((n, n)) < 0.3, rng.random((m, n)) < 0.2]
        options = {
            "combine": str(rng.choice(["or", "max", "replace", "min"], p=[0.4, 0.3, 0.15, 0.15])),
            "limit": int(rng.integers(1, 9)),
        }
        case = fixpoint(rules, carries, captures, **options)
        got = agree(*case, backend="reference")
        kinds.add((monotone and options["combine"] in ("or", "max"), isinstance(got, tuple)))
    assert len(kinds) == 4  # by what is new and in plain rounds, settled and not


def test_semi_naive_rounds_join_only_what_is_new(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    plain = packed.multiply
    monkeypatch.setattr(packed, "multiply", lambda a, b, out=None: (read.append(packed.count(a)), plain(a, b, out))[1])
    edge = np.eye(70, k=1, dtype=bool)
    agree(*fixpoint(NOT_CLOSURES["masked"], [edge], [np.eye(70, k=1, dtype=bool)], combine="or"))
    assert read[0] == 69 and read[1:] == list(range(68, 0, -1))  # one step less at each round, not all pairs so far


# what does not fit


def test_what_is_not_boolean_or_too_small_is_left_to_the_plain_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    x = flags((8, 8), 0.3)
    step, _, _ = fixpoint(lambda b, s, e: b.logical_and(join(b, s, e), b.sum(s, axis=0) > 1), [x], [x], combine="or")
    assert bind_fixpoint(step) is None
    step, _, _ = fixpoint(CLOSURES["right"], [x], [x], combine="or")
    assert bind_fixpoint(step) is not None
    assert loop_on_bits(step.op, step.arg_types)
    monkeypatch.undo()
    assert not loop_on_bits(step.op, step.arg_types)  # so small that packing does not pay


def test_bits_go_in_as_they_are() -> None:
    edge = flags((70, 70), 0.03)
    step, args, _ = fixpoint(CLOSURES["right"], [edge], [edge], combine="or")
    kernel = bind_fixpoint(step)
    np.testing.assert_array_equal(kernel(*(tl.BitTensor(x) for x in args)), kernel(*args))
    np.testing.assert_array_equal(kernel(*(np.asfortranarray(x) for x in args)), kernel(*args))


def test_many_callers_at_once() -> None:
    edges = [flags((150, 150), 0.01, n) for n in range(8)]
    step, _, _ = fixpoint(NOT_CLOSURES["square and edge"], [edges[0]], [edges[0]], combine="or")
    kernel = bind_fixpoint(step)
    expected = [kernel(e, e) for e in edges]
    with ThreadPoolExecutor(8) as pool:
        for got in (list(pool.map(lambda e: kernel(e, e), edges)) for _ in range(5)):
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_array_equal(a, b)


def test_a_closure_can_be_stopped_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    packed.load()
    monkeypatch.setattr(packed, "PAUSE", 50)
    edges = flags((200, 200), 0.01, seed=3)
    stops: list[int] = []
    monkeypatch.setattr(packed, "check_contexts", lambda: stops.append(1))
    paths = np.zeros_like(edges)
    for start, end in nx.transitive_closure(nx.from_numpy_array(edges, create_using=nx.DiGraph)).edges:
        paths[start, end] = True
    np.testing.assert_array_equal(packed.closure(packed.pack(edges)), packed.pack(paths))
    assert len(stops) > 20


BESIDE = [
    "Same(x,y) <- Up(x,p), Up(y,p)\nSame(x,y) <- Up(x,u), Same(u,v), Up(y,v)",
    "Same(x,y) <- Up(x,y)\nSame(x,y) <- Same(x,v), Up(v,y)\nSame(x,y) <- Down(x,u), Same(u,y)",
    "Same(x,y) <- Down(x,y)\nSame(x,y) <- Up(x,u), Down(u,w), Same(w,v), Down(v,y)\nSame(x,y) <- Same(x,v), Up(v,p), Up(p,y)",
]


@pytest.mark.parametrize("rules", BESIDE)
@pytest.mark.parametrize("at_once", [0, 1 << 20])
def test_relations_that_grow_as_rows_of_bits(rules: str, at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixpoints, "SMALL_BITS", -1)
    monkeypatch.setattr(fixpoints, "BITS_AT_ONCE", at_once)
    monkeypatch.setattr(bit_rows, "BUDGET", 5)  # it goes on where it was
    monkeypatch.setattr(worklist, "BUDGET", 5)
    grown = []
    monkeypatch.setattr(fixpoints, "grow_rows", lambda *args: grown.append(1) or bit_rows.grow_rows(*args))
    rng = np.random.default_rng(len(rules))
    facts = {name: rng.integers(0, 30, (40, 2)) for name in ("Up", "Down")}
    program = tl.Program(rules)
    for name in facts:
        if name in rules:
            program.add(name, facts[name])
    known = {name: set(map(tuple, rows.tolist())) for name, rows in facts.items()}
    assert set(program.relation("Same")) == _plain_fixpoint(rules, known)
    assert grown


def test_chains_that_match_too_often_are_not_joined_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixpoints, "SMALL_BITS", -1)
    monkeypatch.setattr(bit_rows, "PAIRS", 3)
    joined = []
    monkeypatch.setattr(bit_rows.sparse_rows, "join_rows", lambda *args: joined.append(args))
    program = tl.Program("Same(x,y) <- Up(x,y)\nSame(x,y) <- Up(x,c), Up(z,c), Same(z,y)")
    rows = [(n, n % 3) for n in range(30)]
    program.add("Up", rows)
    assert set(program.relation("Same")) == _plain_fixpoint(
        "Same(x,y) <- Up(x,y)\nSame(x,y) <- Up(x,c), Up(z,c), Same(z,y)", {"Up": set(rows)}
    )
    assert not joined


def test_a_body_that_does_not_read_what_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fixpoints, "SMALL_BITS", -1)
    b = tl.GraphBuilder()
    start, edge = b.input("start", (9, 9), "bool"), b.input("edge", (9, 9), "bool")
    two = b.fixpoint(lambda _: b.einsum("ij,jk->ik", edge, edge, algebra="boolean"), start, combine="or")
    edges, first = np.eye(9, k=1, dtype=bool), np.eye(9, k=-4, dtype=bool)
    given = {"start": tl.SparseTensor(first), "edge": tl.SparseTensor(edges)}
    found = np.asarray(tl.Executor().execute(b.build(two=two), given)["two"])
    np.testing.assert_array_equal(found, first | np.eye(9, k=2, dtype=bool))


def _plain_fixpoint(rules: str, known: dict[str, set[Any]]) -> set[Any]:
    """Join the atoms of every rule from left to right, all tuples with all, until nothing is new."""
    known = {**known, "Same": set()}
    before = -1
    while before != (before := len(known["Same"])):
        for rule in rules.splitlines():
            rows: list[dict[str, int]] = [{}]
            for name, a, b in re.findall(r"(\w+)\((\w),(\w)\)", rule.split("<-")[1]):
                found = {
                    frozenset({**row, a: x, b: y}.items())
                    for row in rows
                    for x, y in known[name]
                    if row.get(a, x) == x and row.get(b, y) == y
                }
                rows = [dict(row) for row in found]
            known["Same"] |= {(row["x"], row["y"]) for row in rows}
    return known["Same"]
