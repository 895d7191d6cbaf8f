"""Recursive rule sets: against brute force and networkx, in every logic, on both backends; and what is refused."""

import itertools
import pickle

import networkx as nx
import numpy as np
import pytest
from brute import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.lang.rules import strongly_connected
from tensorlogic.testing.strategies import rule_sets

SETTLES = ["hard_boolean", "fuzzy_godel", "fuzzy_product", "fuzzy_lukasiewicz"]
BACKENDS = ["numpy", "reference"]
X, Y, Z, W = tl.variables("x y z w", domain="D")
P = tl.pred
PATH = [tl.Rule(P("path", X, Y), P("edge", X, Y)), tl.Rule(P("path", X, Z), P("path", X, Y) & P("edge", Y, Z))]


def run(rules, size, arrays, backend="numpy", strategy="hard_boolean"):
    graph = tl.compile(rules, tl.CompilerContext({"D": size}), strategy=strategy)
    return tl.Executor(backend).execute(graph, {n: arrays[n] for n in graph.inputs})


def naive(rules, size, arrays, strategy):
    """Apply the rules to whole tables, round by round, until no value moves."""
    heads = {r.head.name: len(r.head.terms) for r in rules}
    kind = bool if strategy == "hard_boolean" else float
    state = {n: np.zeros((size,) * k, kind) for n, k in heads.items()}
    either = {
        "hard_boolean": lambda a, b: a or b,
        "fuzzy_godel": max,
        "fuzzy_product": lambda a, b: a + b - a * b,
        "fuzzy_lukasiewicz": lambda a, b: min(1, a + b),
    }[strategy]
    for _ in range(10_000):
        new = {n: np.zeros_like(a) for n, a in state.items()}
        for rule in rules:
            names = [str(t.name) for t in rule.head.terms if t.is_variable]
            hidden = [n for n in rule.body.free_variables() if n not in names]
            body = tl.exists([tl.Term.var(n, "D") for n in hidden], rule.body) if hidden else rule.body
            for values in itertools.product(range(size), repeat=len(set(names))):
                env = dict(zip(dict.fromkeys(names), values, strict=True))
                at = tuple(env[t.name] if t.is_variable else t.name for t in rule.head.terms)
                places = {i: i for i in range(size)}
                got = evaluate(body, env, {**arrays, **state}, places, {"D": size}, strategy)
                new[rule.head.name][at] = either(new[rule.head.name][at].item(), got)
        if all(np.allclose(new[n], state[n], rtol=0, atol=1e-13) for n in state):
            return new
        state = new
    raise AssertionError("it does not settle")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [P("path", X, Y) & P("edge", Y, Z), P("edge", Y, Z) & P("path", X, Y),
                                  P("edge", X, Y) & P("path", Y, Z), P("path", X, Y) & P("path", Y, Z)])  # fmt: skip
def test_paths_are_those_of_networkx(step, backend):
    rng = np.random.default_rng(3)
    for size in (1, 2, 6, 9):
        edge = rng.random((size, size)) < 1.3 / size
        got = run([PATH[0], tl.Rule(P("path", X, Z), step)], size, {"edge": edge}, backend)["path"]
        closure = nx.transitive_closure(nx.from_numpy_array(edge, create_using=nx.DiGraph), reflexive=False)
        np.testing.assert_array_equal(got, nx.to_numpy_array(closure, nodelist=range(size)) > 0)


def test_a_chain_of_thousands_is_complete():
    edge = np.eye(1500, k=1, dtype=bool)
    assert run(PATH, 1500, {"edge": edge})["path"].sum() == 1500 * 1499 // 2


@settings(max_examples=80, deadline=None)
@given(case=rule_sets(), backend=st.sampled_from(["numpy", "numpy", "reference"]))
def test_random_rule_sets(case, backend):
    term = {n: tl.Term.var(n, "D") for n in "xyzw"}
    rules = [
        tl.Rule(P(h, term[a], term[c]), tl.and_(*(P(n, term[i], term[j]) for n, i, j in atoms)))
        for (h, a, c), atoms in case.rules
    ]
    out = run(rules, case.size, case.facts, backend)
    for name, want in case.consequences().items():
        assert {tuple(map(int, p)) for p in np.argwhere(out[name])} == want


MUTUAL = [
    tl.Rule(P("odd", X, Y), P("edge", X, Y)),
    tl.Rule(P("odd", X, Z), P("even", X, Y) & P("edge", Y, Z)),
    tl.Rule(P("even", X, Z), P("odd", X, Y) & P("edge", Y, Z)),
]
SHAPES = {
    "linear": PATH,
    "square": [PATH[0], tl.Rule(P("path", X, Z), P("path", X, Y) & P("path", Y, Z))],
    "mutual": MUTUAL,
    "constants and repeats": [
        tl.Rule(P("h", X, 1), P("edge", X, X)),
        tl.Rule(P("h", X, X), P("h", X, Y) & P("edge", Y, 0)),
        tl.Rule(P("h", 0, Y), P("h", Y, X) & P("h", 2, X)),
    ],
    "or and forall": [
        tl.Rule(P("h", X), P("p", X) | tl.exists(Y, P("h", Y) & P("edge", Y, X))),
        tl.Rule(P("h", X), tl.forall(Y, P("edge", X, Y) >> P("h", Y))),
    ],
    "lower negation": [
        tl.Rule(P("open", X, Y), P("edge", X, Y) & ~P("p", Y)),
        tl.Rule(P("path", X, Y), P("open", X, Y)),
        tl.Rule(P("path", X, Z), P("path", X, Y) & P("open", Y, Z)),
        tl.Rule(P("apart", X, Y), ~P("path", X, Y)),
    ],
    "no base": [tl.Rule(P("h", X), P("h", X) & P("p", X))],
    "propositions": [tl.Rule(P("a"), P("b")), tl.Rule(P("b"), P("a")), tl.Rule(P("b"), tl.exists(X, P("p", X)))],
    "double negation": [PATH[0], tl.Rule(P("path", X, Z), ~~P("path", X, Y) & ~(~P("edge", Y, Z)))],
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("strategy", SETTLES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_logic_that_settles(shape, strategy, backend):
    if strategy != "hard_boolean" and shape == "double negation":
        pytest.skip("the same formula in each logic")
    rng = np.random.default_rng(len(shape))
    edge, p = np.round(rng.random((3, 3)), 2) * (rng.random((3, 3)) < 0.7), np.round(rng.random(3), 2)
    arrays = {"edge": edge, "p": p}
    if strategy == "hard_boolean":
        arrays = {"edge": edge > 0.3, "p": p > 0.5}
    ordered = sorted(SHAPES[shape], key=lambda r: r.head.name == "apart")
    lower = [r for r in ordered if r.head.name not in ("apart",)]
    want = naive(lower, 3, arrays, strategy)
    if lower != ordered:
        want |= naive(ordered[len(lower) :], 3, {**arrays, **want}, strategy)
    got = run(SHAPES[shape], 3, arrays, backend, strategy)
    assert set(got.keys()) == set(want)
    for name, value in want.items():
        np.testing.assert_allclose(got[name].astype(float), value.astype(float), atol=1e-9)


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", "float16", "float64"])
@pytest.mark.parametrize("strategy", SETTLES)
def test_every_dtype_of_facts(strategy, dtype):
    edge = np.eye(4, k=1).astype(dtype)
    out = run(MUTUAL, 4, {"edge": edge}, strategy=strategy)
    np.testing.assert_array_equal(out["even"].astype(float), np.eye(4, k=2))
    if strategy == "hard_boolean" or dtype.startswith("float"):
        assert out["even"].dtype == (bool if strategy == "hard_boolean" else dtype)


def test_facts_of_two_dtypes_meet():
    rules = [tl.Rule(P("h", X), P("a", X)), tl.Rule(P("h", X), P("g", X)), tl.Rule(P("g", X), P("h", X) & P("b", X))]
    arrays = {"a": np.array([0.5, 0.25], "f4"), "b": np.array([0.5, 1.0], "f8")}
    out = run(rules, 2, arrays, strategy="fuzzy_godel")
    assert out["h"].dtype == out["g"].dtype == "float64"
    np.testing.assert_array_equal(out["g"], [0.5, 0.25])


def test_what_stays_the_same_is_made_before_the_loop():
    rules = [PATH[0], tl.Rule(P("path", X, Z), P("path", X, Y) & P("edge", Y, Z) & ~P("closed", Z))]
    (loop,) = [n.op for n in tl.compile(rules, tl.CompilerContext({"D": 3})).nodes if n.op.name == "fixpoint"]
    assert [n.op.name for n in loop.body.nodes if n.op.name != "input"] == ["einsum", "logical_or"]


@pytest.mark.parametrize("size", [0, 1])
def test_empty_and_single_domains(size):
    for strategy in SETTLES:
        assert run(PATH, size, {"edge": np.ones((size, size))}, strategy=strategy)["path"].shape == (size, size)


def test_a_predicate_of_a_loop_may_be_a_graph():
    b = tl.GraphBuilder()
    near = b.build(near=b.greater(b.input("score", (4, 4), "float64"), 0.5))
    context = tl.CompilerContext({"D": 4}, graphs={"edge": near})
    graph = tl.compile(PATH, context)
    assert list(graph.inputs) == ["score"]
    assert tl.Executor().execute(graph, {"score": np.eye(4, k=1)})["path"].sum() == 6


# text


def test_rules_as_text():
    text = """
        # who comes before whom
        Ancestor(x,y) <- Parent(x,y)
        Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)
        Self(x) :- Ancestor(x,x), x != Bob
        Childless(x) <- Person(x), not Parent(x,_)
        Old(x) <- Age[x] > 40, Person(x)
    """
    names = ["Ann", "Bob", "Cat"]
    graph = tl.compile(text, tl.CompilerContext({"D": names}))
    parent = np.array([[0, 1, 0], [0, 0, 1], [0, 0, 0]], bool)
    facts = {"Parent": parent, "Person": np.ones(3, bool), "Age": np.array([50, 40, 41.0])}
    out = tl.Executor().execute(graph, facts)
    assert np.argwhere(out["Ancestor"]).tolist() == [[0, 1], [0, 2], [1, 2]]
    assert not out["Self"].any()
    assert out["Childless"].tolist() == [False, False, True]
    assert out["Old"].tolist() == [True, False, True]


def test_texts_and_rules_stand_side_by_side():
    context = tl.CompilerContext({"D": 3})
    mixed = tl.compile(["path(x,y) <- edge(x,y)", tl.Rule("path(x,z)", "exists y. path(x,y) & edge(y,z)")], context)
    both = tl.compile("path(x,y) <- edge(x,y); path(x,z) <- path(x,y), edge(y,z)", context)
    assert mixed == both == tl.compile(PATH, context)
    assert tl.exists(Y, "p(x, y)") == tl.exists(Y, P("p", tl.variables("x"), tl.variables("y")))


def test_rules_are_values():
    rule = tl.Rule("p(x)", "q(x) & r(x)")
    assert rule == tl.Rule("p(x) <- q(x), r(x)") == pickle.loads(pickle.dumps(rule))
    assert len({rule, tl.Rule("p(x) <- q(x), r(x)"), tl.Rule("p(x)", "q(x)")}) == 2
    assert repr(rule) == "<Rule p(x) <- q(x) & r(x)>"
    with pytest.raises(AttributeError, match="cannot be changed"):
        rule.head = rule.body


# what is refused


def refused(code, rules, strategy="hard_boolean", domains=None):
    with pytest.raises(tl.GraphError) as caught:
        tl.compile(rules, tl.CompilerContext(domains or {"D": 3}), strategy=strategy)
    found = caught.value.diagnostic
    assert (found.code, found.location is not None) == (code, True)
    return found


@pytest.mark.parametrize(
    ("text", "cycle"),
    [
        ("win(x) <- move(x,y), not win(y)", "win ← ¬win"),
        ("p(x) <- q(x), not r(x); r(x) <- s(x); s(x) <- p(x)", "p ← ¬r ← s ← p"),
        ("p(x) <- p(x), q(x), p(x) > 0.5", "p ← a comparison of p"),
    ],
)
def test_rules_that_are_not_stratified(text, cycle):
    found = refused("E750", text)
    assert found.message.endswith(cycle)
    assert all(" at <expression" in line for line in found.context)


@pytest.mark.parametrize(
    "body",
    [P("h", X) >> P("p", X), tl.iff(P("h", X), P("p", X)), tl.xor(P("h", X), P("p", X)),
     tl.if_then_else(P("h", X), P("p", X), P("q", X)), 1 - P("h", X), P("h", X) * -1, P("h", X).equals(P("p", X))],
)  # fmt: skip
def test_whatever_may_turn_a_head_around_is_refused(body):
    refused("E750", [tl.Rule(P("h", X), body)])


@pytest.mark.parametrize("strategy", ["probabilistic", "soft_differentiable"])
def test_logics_whose_rounds_do_not_settle(strategy):
    found = refused("E751", PATH, strategy)
    assert "the rules of path are recursive" in found.message
    assert found.context[1].startswith("path(x, z) ← path(x, y) ∧ edge(y, z) at ")
    assert "hard_boolean" in found.suggestions[0]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("p(A, B)\nq(x) <- p(x, y)", "E752"),
        ("q(x) <- p(x, y)\nq(x)?", "E752"),
        ("q(x) <- p(x, y), x < y", "E753"),
        ("q(x) <- p(x, y), y = x + 1", "E753"),
        ("q(x) <- p(x + 1, y), r(x)", "E753"),
    ],
)
def test_texts_that_a_context_cannot_take(text, code):
    refused(code, text)


def test_one_rule_is_one_rule():
    for wrong in ("p(x) <- q(x); p(x) <- r(x)", P("p", X), 3):
        with pytest.raises(tl.GraphError):
            tl.Rule(wrong)
    with pytest.raises(tl.GraphError, match="the body of a rule is an expression"):
        tl.Rule(P("p", X), 3)
    with pytest.raises(tl.GraphError, match="at least one"):
        tl.compile([], tl.CompilerContext({"D": 3}))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=20))
def test_components_are_those_of_networkx(edges):
    graph = nx.DiGraph(edges)
    groups = strongly_connected(graph, lambda n: list(graph[n]))
    assert {frozenset(g) for g in groups} == {frozenset(c) for c in nx.strongly_connected_components(graph)}
    place = {n: k for k, g in enumerate(groups) for n in g}
    assert all(place[b] <= place[a] for a, b in edges)


def test_thousands_of_heads_in_a_row():
    rules = [tl.Rule(P(f"h{n}", X), P(f"h{n + 1}", X)) for n in range(2000)]
    rules.append(tl.Rule(P("h2000", X), P("h1999", X)))
    graph = tl.compile(rules, tl.CompilerContext({"D": 1}))
    assert len(graph.outputs) == 2001
