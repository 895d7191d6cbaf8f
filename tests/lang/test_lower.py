"""Random formulas against brute force, for every logic, on both backends; and the laws each logic has."""

import itertools
import warnings

import numpy as np
import pytest
from brute import evaluate
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl

LOGICS = list(tl.STRATEGIES)
VARIABLES = [tl.Term.var(n, "D") for n in "xyz"]
PREDICATES = {"n0": 0, "p1": 1, "q1": 1, "r2": 2, "s2": 2, "t3": 3}
NAMES = ["ann", "bob", "cat", "dan"]


def formulas(size):
    """Random formulas: arity up to 3, constants, repeated variables, shadowing and vacuous quantifiers."""
    terms = st.sampled_from(VARIABLES + [tl.Term.const(NAMES[i]) for i in range(size)])
    leaf = st.sampled_from(sorted(PREDICATES)).flatmap(
        lambda n: st.tuples(*[terms] * PREDICATES[n]).map(lambda ts: tl.pred(n, *ts))
    )
    leaf = st.one_of(leaf, leaf, leaf, st.sampled_from([True, False]).map(tl.constant))
    over = st.lists(st.sampled_from(VARIABLES), min_size=1, max_size=2, unique=True)
    return st.recursive(
        leaf,
        lambda inner: st.one_of(
            st.tuples(inner, inner).map(lambda ab: ab[0] & ab[1]),
            st.tuples(inner, inner).map(lambda ab: ab[0] | ab[1]),
            inner.map(lambda a: ~a),
            st.tuples(inner, inner).map(lambda ab: ab[0] >> ab[1]),
            st.tuples(inner, inner).map(lambda ab: tl.iff(*ab)),
            st.tuples(inner, inner).map(lambda ab: tl.xor(*ab)),
            st.tuples(over, inner).map(lambda vb: tl.exists(*vb)),
            st.tuples(over, inner).map(lambda vb: tl.forall(*vb)),
            st.tuples(inner, inner, inner).map(lambda abc: tl.if_then_else(*abc)),
            st.tuples(inner, inner).map(lambda ab: ab[0] < ab[1]),
        ),
        max_leaves=8,
    )


def arrays_for(strategy, size, seed, dtype="float64"):
    rng = np.random.default_rng(seed)
    shapes = {n: (size,) * a for n, a in PREDICATES.items()}
    if strategy == "hard_boolean":
        return {n: rng.random(s) < 0.5 for n, s in shapes.items()}
    return {n: (np.round(rng.random(s) * 8) / 8).astype(dtype) for n, s in shapes.items()}


def answer(expr, context, strategy, arrays, backend="numpy", **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.LogicWarning)
        graph = tl.compile(expr, context, strategy=strategy, **options)
    return tl.Executor(backend).execute(graph, {n: arrays[n] for n in graph.inputs})["result"]


def brute(expr, size, arrays, strategy, clip=False):
    free = expr.free_variables()
    places = {n: i for i, n in enumerate(NAMES)}
    kind = bool if strategy == "hard_boolean" and expr.kind not in ("if", "constant") else float
    out = np.zeros((size,) * len(free), kind)
    for index in itertools.product(range(size), repeat=len(free)):
        out[index] = evaluate(expr, dict(zip(free, index, strict=True)), arrays, places, {"D": size}, strategy, clip)
    return out


@pytest.mark.parametrize("strategy", LOGICS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), size=st.integers(1, 4), seed=st.integers(0, 99))
def test_random_formulas(strategy, data, size, seed):
    expr = data.draw(formulas(size))
    arrays = arrays_for(strategy, size, seed)
    context = tl.CompilerContext({"D": NAMES[:size]}, predicates={n: ("D",) * a for n, a in PREDICATES.items()})
    want = brute(expr, size, arrays, strategy)
    for backend in ("numpy", "reference") if seed % 5 == 0 else ("numpy",):
        got = answer(expr, context, strategy, arrays, backend)
        assert got.shape == want.shape
        np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=1e-9, atol=1e-9, err_msg=str(expr))


X, Y, Z = VARIABLES
CONTEXT = tl.CompilerContext({"D": NAMES[:3]}, predicates={n: ("D",) * a for n, a in PREDICATES.items()})
P, Q, R, S = tl.pred("r2", X, Y), tl.pred("s2", Y, Z), tl.pred("p1", Y), tl.pred("q1", Y)
EXACT = {"rtol": 1e-9, "atol": 1e-9}


def both(a, b, strategy, seed=1):
    arrays = arrays_for(strategy, 3, seed)
    np.testing.assert_allclose(
        answer(a, CONTEXT, strategy, arrays).astype(float), answer(b, CONTEXT, strategy, arrays).astype(float), **EXACT
    )


@pytest.mark.parametrize("strategy", LOGICS)
def test_de_morgan_and_duality(strategy):
    both(~(P & Q), ~P | ~Q, strategy)
    both(~(P | Q), ~P & ~Q, strategy)
    both(~tl.exists(Y, P & Q), tl.forall(Y, ~(P & Q)), strategy)
    both(tl.forall(Y, P | Q), ~tl.exists(Y, ~P & ~Q), strategy)
    both(~~P, P, strategy)


@pytest.mark.parametrize("strategy", ["hard_boolean", "fuzzy_godel"])
def test_lattices_distribute_and_absorb(strategy):
    both(R & (S | P), (R & S) | (R & P), strategy)
    both(R | (R & S), R, strategy)
    both(tl.exists(Y, R | S), tl.exists(Y, R) | tl.exists(Y, S), strategy)


@pytest.mark.parametrize("strategy", LOGICS)
def test_raising_a_positive_predicate_never_lowers_the_answer(strategy):
    expr = tl.exists(Y, P & (Q | R)) | tl.forall(Y, R & S)
    arrays = arrays_for(strategy, 3, 7)
    clip = strategy == "soft_differentiable"  # counts above 1 are not truth values
    before = answer(expr, CONTEXT, strategy, arrays, clip=clip).astype(float)
    for name in ("r2", "s2", "p1", "q1"):
        more = {
            **arrays,
            name: arrays[name] | True if strategy == "hard_boolean" else np.minimum(1, arrays[name] + 0.25),
        }
        assert (answer(expr, CONTEXT, strategy, more, clip=clip).astype(float) >= before - 1e-12).all()


@pytest.mark.parametrize("dtype", ["bool", "int64", "float32", "float64", "float16"])
@pytest.mark.parametrize("strategy", LOGICS)
def test_every_dtype_of_facts(strategy, dtype):
    facts = {n: (np.indices(a.shape).sum(0) % 2).astype(dtype) for n, a in arrays_for("hard_boolean", 3, 0).items()}
    expr = tl.exists(Y, P & Q) | tl.forall(Y, R >> S)
    got = answer(expr, CONTEXT, strategy, facts)
    want = brute(expr, 3, {n: a.astype(float) for n, a in facts.items()}, strategy)
    np.testing.assert_allclose(got.astype(float), want.astype(float), atol=1e-2 if dtype == "float16" else 1e-6)
    if strategy != "hard_boolean" and dtype.startswith("float"):
        assert got.dtype == dtype, "float facts keep their dtype"


@pytest.mark.parametrize("strategy", LOGICS)
def test_empty_domain(strategy):
    context = tl.CompilerContext({"D": 0, "E": ["one"]}, predicates={"p": ("D",), "q": ("E", "D"), "r": ("E",)})
    x, e = tl.variables("x", domain="D"), tl.variables("e", domain="E")
    facts = {"p": np.zeros(0), "q": np.zeros((1, 0)), "r": np.ones(1)}
    assert answer(tl.exists(x, tl.pred("p", x)), context, strategy, facts) == 0
    assert answer(tl.forall(x, tl.pred("p", x)), context, strategy, facts) == 1
    assert answer(tl.exists(x, tl.pred("p", x) | tl.pred("r", e)), context, strategy, facts) == 0
    assert answer(tl.forall(x, tl.pred("p", x) & tl.pred("q", e, x)), context, strategy, facts) == 1
    assert answer(tl.forall(x, tl.pred("p", x) >> tl.pred("q", e, x)), context, strategy, facts) == 1


def test_slices_and_diagonals_mean_what_logic_says():
    arrays = arrays_for("hard_boolean", 3, 3)
    np.testing.assert_array_equal(answer(tl.pred("r2", "bob", Z), CONTEXT, "hard_boolean", arrays), arrays["r2"][1])
    np.testing.assert_array_equal(answer(tl.pred("r2", X, X), CONTEXT, "hard_boolean", arrays), np.diag(arrays["r2"]))
    np.testing.assert_array_equal(
        answer(tl.pred("t3", X, "cat", X), CONTEXT, "hard_boolean", arrays), np.einsum("xx->x", arrays["t3"][:, 2])
    )


def test_axes_are_free_variables_in_order_of_first_occurrence():
    arrays = arrays_for("hard_boolean", 3, 3)
    got = answer(tl.pred("r2", Z, X) & tl.pred("p1", X), CONTEXT, "hard_boolean", arrays)
    np.testing.assert_array_equal(got, arrays["r2"] & arrays["p1"])
    got = answer(tl.pred("p1", X) & tl.pred("r2", Z, X), CONTEXT, "hard_boolean", arrays)
    np.testing.assert_array_equal(got, (arrays["r2"] & arrays["p1"]).T)


def test_real_scores_compare_and_add():
    context = tl.CompilerContext({"D": 3}, predicates={"score": ("D",), "ok": ("D",)})
    facts = {"score": np.array([0.2, 0.7, 0.9]), "ok": np.array([True, True, False])}
    score, ok = tl.pred("score", X), tl.pred("ok", X)
    assert answer((score > 0.5) & ok, context, "hard_boolean", facts).tolist() == [False, True, False]
    np.testing.assert_allclose(answer(score * 2 + 1, context, "hard_boolean", facts), [1.4, 2.4, 2.8])
    np.testing.assert_allclose(answer(tl.if_then_else(ok, score, 0.0), context, "hard_boolean", facts), [0.2, 0.7, 0])
    assert answer(score.equals(0.7), context, "hard_boolean", facts).tolist() == [False, True, False]


def test_soft_counts_and_their_clip():
    facts = arrays_for("soft_differentiable", 3, 2)
    expr = tl.exists(Y, tl.exists(X, P) & R)
    for clip in (False, True):
        got = answer(expr, CONTEXT, "soft_differentiable", facts, clip=clip)
        np.testing.assert_allclose(got, brute(expr, 3, facts, "soft_differentiable", clip), **EXACT)
    assert answer(expr, CONTEXT, "soft_differentiable", facts) > 1


def test_a_seventh_logic_is_one_more_row():
    yager = tl.Strategy(
        "drastic_or",
        and_=lambda b, x, y: b.minimum(x, y),
        or_=lambda b, x, y: b.where(b.equal(b.minimum(x, y), 0.0), b.maximum(x, y), 1.0),
        not_=lambda b, x: b.subtract(1.0, x),
        join="max_min",
        forall=lambda b, x, axes: b.min(x, axes),
    )
    facts = {"p": np.array([0.0, 0.5]), "q": np.array([0.25, 0.5])}
    context = tl.CompilerContext({"D": 2})
    x = tl.variables("x", domain="D")
    assert answer(tl.pred("p", x) | tl.pred("q", x), context, yager, facts).tolist() == [0.25, 1.0]
    assert answer(tl.exists(x, tl.pred("p", x) & tl.pred("q", x)), context, yager, facts) == 0.5
    assert answer(~(tl.pred("p", x) | tl.pred("q", x)), context, yager, facts).tolist() == [0.75, 0.0]


@pytest.mark.parametrize("strategy", LOGICS)
def test_a_chain_of_joins_needs_little_memory(strategy, measured):
    n = 300
    x, y, z, w = tl.variables("x y z w", domain="D")
    expr = tl.exists(y, tl.pred("p", x, y) & tl.exists(z, tl.pred("q", y, z) & tl.pred("r", z, w)))
    graph = tl.compile(expr, tl.CompilerContext({"D": n}), strategy=strategy)
    rng = np.random.default_rng(0)
    facts = {k: rng.random((n, n)).astype("float32") for k in "pqr"}
    executor = tl.Executor()
    executor.execute(graph, facts)
    _, peak = measured(executor.execute, graph, facts)
    block = 4 * 2**18 * 4  # what the blocked kernels hold whatever n is
    assert peak < 6 * n * n * 4 + block


def test_quantified_conjunctions_are_single_contractions():
    x, y, z = tl.variables("x y z", domain="D")
    shape = {s: str(tl.compile(tl.exists(y, tl.pred("p", x, y) & tl.pred("q", y, z)), tl.CompilerContext({"D": 9}), strategy=s))
             for s in LOGICS}  # fmt: skip
    for text in shape.values():
        assert text.count("einsum") == 1
        assert 'spec="ab,bc->ac"' in text
        assert "9, 9, 9" not in text
    rule = tl.compile(
        tl.forall(y, tl.pred("p", x, y) >> tl.pred("q", y, z)), tl.CompilerContext({"D": 9}), strategy="fuzzy_godel"
    )
    assert "9, 9, 9" not in str(rule)


def test_shared_subformulas_are_computed_once():
    x, y, z, u = tl.variables("x y z u", domain="D")
    aunt = tl.exists(y, tl.pred("sister", x, y) & tl.pred("parent", y, z))
    again = tl.exists(u, tl.pred("sister", x, u) & tl.pred("parent", u, z))
    graph = tl.compile(aunt & ~again | aunt, tl.CompilerContext({"D": 5}))
    assert str(graph).count("einsum") == 1


# rules


def test_rules_of_one_head_are_or_ed_and_heads_feed_heads():
    person = ["ann", "bob", "cat"]
    x, y, z = tl.variables("x y z", domain="Person")
    rules = [
        tl.Rule(tl.pred("parent", x, y), tl.pred("mother", x, y)),
        tl.Rule(tl.pred("parent", x, y), tl.pred("father", x, y)),
        tl.Rule(tl.pred("grandparent", x, z), tl.pred("parent", x, y) & tl.pred("parent", y, z)),
    ]
    graph = tl.compile(rules, tl.CompilerContext({"Person": person}))
    mother, father = np.zeros((3, 3), bool), np.zeros((3, 3), bool)
    mother[0, 1] = father[1, 2] = True
    out = tl.Executor().execute(graph, {"mother": mother, "father": father})
    assert np.argwhere(out["grandparent"]).tolist() == [[0, 2]]
    np.testing.assert_array_equal(out["parent"], mother | father)


def test_heads_with_constants_and_repeated_variables():
    x = tl.variables("x", domain="D")
    rules = [tl.Rule(tl.pred("h", x, "bob"), tl.pred("p", x)), tl.Rule(tl.pred("same", x, x), tl.pred("p", x))]
    graph = tl.compile(rules, tl.CompilerContext({"D": ["ann", "bob", "cat"]}))
    out = tl.Executor().execute(graph, {"p": [True, False, True]})
    assert np.argwhere(out["h"]).tolist() == [[0, 1], [2, 1]]
    assert np.argwhere(out["same"]).tolist() == [[0, 0], [2, 2]]


def test_rules_combine_by_the_or_of_their_logic():
    x = tl.variables("x", domain="D")
    rules = [tl.Rule(tl.pred("h", x), tl.pred("p", x)), tl.Rule(tl.pred("h", x), tl.pred("q", x))]
    graph = tl.compile(rules, tl.CompilerContext({"D": 2}), strategy="probabilistic")
    out = tl.Executor().execute(graph, {"p": [0.5, 0.0], "q": [0.5, 0.25]})
    np.testing.assert_allclose(out["h"], [0.75, 0.25])


def test_a_predicate_may_be_a_graph():
    b = tl.GraphBuilder()
    image = b.input("image", (3, 4), "float32")
    classifier = b.build(score=b.softmax(b.linear(image, b.input("w", (4, 2), "float32"))))
    x = tl.variables("x", domain="Item")
    context = tl.CompilerContext({"Item": 3, "Class": ["cat", "dog"]}, graphs={"is": classifier})
    graph = tl.compile(tl.pred("is", x, "dog") & ~tl.pred("banned", x), context, strategy="fuzzy_product")
    assert sorted(graph.inputs) == ["banned", "image", "w"]
    rng = np.random.default_rng(0)
    im, w = rng.normal(size=(3, 4)).astype("f4"), rng.normal(size=(4, 2)).astype("f4")
    out = tl.Executor().execute(graph, {"image": im, "w": w, "banned": np.array([0, 1, 0], "f4")})["result"]
    logits = np.exp(im @ w)
    np.testing.assert_allclose(out, logits[:, 1] / logits.sum(1) * [1, 0, 1], rtol=1e-5)


# mistakes


def fails(message, expr, context=None, **options):
    with pytest.raises(tl.TensorLogicError, match=message) as caught:
        tl.compile(expr, context or tl.CompilerContext({"Person": ["alice", "bob"], "City": 3}), **options)
    assert caught.value.diagnostic.location is not None
    return caught.value


def test_mistakes_are_named():
    x, c = tl.variables("x", domain="Person"), tl.variables("c", domain="City")
    u = tl.variables("u")
    fails("nothing says the domain of variable 'u'", tl.pred("p", u))
    fails("has domain 'Persn', which is not given", tl.pred("p", tl.variables("x", domain="Persn")))
    error = fails("'alicia' is not in domain 'Person'", tl.pred("p", x) & tl.pred("p", "alicia"))
    assert "did you mean 'alice'?" in str(error)
    fails("numbers 0 to 2", tl.pred("lives", c) & tl.pred("lives", 7))
    fails("has 2 arguments here, but 1 where it is used at", tl.pred("p", x) & tl.pred("p", x, x))
    fails("domain 'City', but .* has domain 'Person'", tl.pred("p", x) & tl.pred("p", c))
    fails("used both as a predicate and as a variable", tl.pred("x", x))
    fails("used both as a predicate and as a variable", tl.exists(x, tl.pred("p", x) & tl.pred("x", x)))
    fails("there is no strategy 'fuzzy_goedel'", tl.pred("p", x), strategy="fuzzy_goedel")
    fails("reach ← ¬reach", [tl.Rule(tl.pred("reach", x), ~tl.pred("reach", x) & tl.pred("p", x))])
    fails("does not occur in the body", [tl.Rule(tl.pred("h", x, c), tl.pred("p", x))])
    fails("the head of a rule is a predicate", [tl.Rule(~tl.pred("h", x), tl.pred("p", x))])


def test_an_impossible_answer_is_refused_with_its_size():
    terms = tl.variables("a b c d e f g", domain="D")
    with pytest.raises(tl.OutOfMemoryError, match="1,000,000,000,000,000,000,000") as caught:
        tl.compile(tl.and_(*(tl.pred("p", t) for t in terms)), tl.CompilerContext({"D": 1000}))
    assert "a=1,000" in str(caught.value)


def test_a_vacuous_quantifier_is_its_body_with_a_warning():
    x, y = tl.variables("x y", domain="D")
    with pytest.warns(tl.LogicWarning, match="'y' of exists does not occur"):
        graph = tl.compile(tl.exists(y, tl.pred("p", x)), tl.CompilerContext({"D": 2}), strategy="soft_differentiable")
    np.testing.assert_array_equal(tl.Executor().execute(graph, {"p": [0.5, 0.25]})["result"], [0.5, 0.25])


@pytest.mark.parametrize("strategy", LOGICS)
def test_ten_thousand_nested_connectives(strategy):
    x = tl.variables("x", domain="D")
    expr = tl.pred("p", x)
    for i in range(10_000):
        expr = [~expr, expr & tl.pred("q", x), expr | tl.pred("p", x), tl.pred("q", x) >> expr][i % 4]
    graph = tl.compile(expr, tl.CompilerContext({"D": 2}), strategy=strategy)
    out = tl.Executor().execute(graph, {"p": np.array([0.5, 1.0]), "q": np.array([1.0, 0.5])})["result"]
    assert np.isfinite(out.astype(float)).all()


def test_deep_quantifiers():
    x, y = tl.variables("x y", domain="D")
    expr = tl.pred("p", x, y)
    for i in range(2000):
        expr = tl.exists(x, expr & tl.pred("q", x)) if i % 2 else tl.forall(y, expr | tl.pred("p", x, y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.LogicWarning)
        tl.compile(expr, tl.CompilerContext({"D": 2}), strategy="fuzzy_godel")


def nodes_of(expr, strategy="hard_boolean", size=4):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tl.LogicWarning)
        return tl.compile(expr, tl.CompilerContext({"D": size}), strategy=strategy)


def test_shared_python_objects_are_compiled_once():
    x = tl.variables("x", domain="D")
    expr = tl.pred("p", x) & tl.pred("q", x)
    for _ in range(40):
        expr = expr & expr
    for strategy in LOGICS:
        assert len(nodes_of(expr, strategy)) < 100
    expr = tl.pred("p", x)
    for _ in range(40):
        expr = tl.xor(expr, tl.iff(expr, tl.pred("q", x)))
    assert len(nodes_of(expr, "probabilistic")) < 2000


def test_long_flat_chains_are_linear():
    x = tl.variables("x", domain="D")
    parts = [tl.pred(f"p{i}", x) for i in range(4000)]
    for make in (tl.and_, tl.or_):
        assert len(nodes_of(make(*parts))) < 12_000
    chain = parts[0]
    for part in parts[1:]:
        chain = part >> chain
    assert len(nodes_of(chain)) < 16_000


def test_distribution_is_bounded():
    x, y, z = tl.variables("x y z", domain="D")
    parts = [~tl.pred(f"a{i}", x, y) | tl.pred(f"b{i}", y, z) for i in range(14)]
    assert len(nodes_of(tl.exists(y, tl.and_(*parts)))) < 200


@pytest.mark.parametrize(
    "strategy", ["fuzzy_product", "fuzzy_lukasiewicz", "soft_differentiable", "hard_boolean", "fuzzy_godel"]
)
def test_wide_disjunctions_and_conjunctions_stay_narrow(strategy):
    x, y, z = tl.variables("x y z", domain="D")
    p, q = tl.pred("p", x, y), tl.pred("q", y, z)
    for expr in (tl.exists(y, p | q), tl.forall(y, p & q), tl.forall(y, p | q)):
        assert "7, 7, 7" not in str(nodes_of(expr, strategy, 7)), (strategy, str(expr))


def test_names_that_clash_anywhere():
    x, y = tl.variables("x y", domain="D")
    fails("used both", tl.exists(x, tl.pred("p", x)) & tl.pred("x", y), tl.CompilerContext({"D": 2}))
    fails("used both", [tl.Rule(tl.pred("x", x), tl.pred("p", x))], tl.CompilerContext({"D": 2}))


@pytest.mark.parametrize("wrong", [3.0, None, "abc", True])
def test_what_is_not_a_domain(wrong):
    with pytest.raises(tl.GraphError, match="domain 'D'"):
        tl.CompilerContext({"D": wrong})


def test_domains_take_numpy_sizes_and_compile_says_what_it_wants():
    x = tl.variables("x", domain="D")
    assert tl.CompilerContext({"D": np.int64(3)}).size("D") == 3
    with pytest.raises(tl.GraphError, match="a CompilerContext with the domains is expected, got dict"):
        tl.compile(tl.pred("p", x), {"D": 3})
    with pytest.raises(tl.GraphError, match="a CompilerContext with the domains is expected") as caught:
        tl.compile("p(x)")
    assert "CompilerContext(domains=" in caught.value.diagnostic.suggestions[0]
    for source in ([tl.pred("p", x)], 3, None):
        with pytest.raises(tl.GraphError, match="an expression or rules are expected"):
            tl.compile(source, tl.CompilerContext({"D": 3}))
    b = tl.GraphBuilder()
    for source, shown in ((b.build(y=b.input("x")), "a graph"), (lambda x: x, "a function"), (None, "None")):
        with pytest.raises(tl.GraphError, match=f"an expression or rules are expected, got {shown}"):
            tl.compile(source)


def test_a_logic_whose_exists_is_a_mean():
    mean = tl.STRATEGIES["soft_differentiable"]._replace(
        name="mean", exists=lambda b, v, axes: b.mean(v, axes), forall=lambda b, v, axes: b.mean(v, axes),
        de_morgan=False, merges=False, exists_or=None, forall_and=None,
    )  # fmt: skip
    x = tl.variables("x", domain="D")
    context = tl.CompilerContext({"D": 4})
    assert answer(tl.exists(x, tl.pred("p", x)), context, mean, {"p": np.array([0.0, 1.0, 1.0, 0.0])}) == 0.5


@pytest.mark.parametrize("strategy", LOGICS)
def test_siblings_are_not_their_own(strategy):
    x, y, z = tl.variables("x y z", domain="P")
    sibling = tl.exists(z, tl.pred("parent", z, x) & tl.pred("parent", z, y)) & ~tl.same(x, y)
    parent = np.zeros((3, 3))
    parent[0, 1] = parent[0, 2] = 1
    context = tl.CompilerContext({"P": ["ann", "bob", "cat"]})
    got = answer(sibling, context, strategy, {"parent": parent})
    assert np.argwhere(got).tolist() == [[1, 2], [2, 1]]
    assert (
        answer(tl.exists(x, tl.same(x, "bob") & tl.pred("parent", "ann", x)), context, strategy, {"parent": parent})
        == 1
    )
    assert answer(tl.forall(x, tl.same(x, x)), context, strategy, {}) == 1
