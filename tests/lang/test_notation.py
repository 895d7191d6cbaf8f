"""Expressions as values: equality, free variables, substitution, and the notation both ways."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl

terms = st.one_of(
    st.sampled_from(["x", "y", "z'", "X", "if"]).map(tl.Term.var),
    st.sampled_from(["Alice", "bob", 'a "quoted" name', "naïve", "", "x"]).map(tl.Term.const),
    st.integers(0, 9).map(tl.Term.const),
)
leaves = st.one_of(
    st.tuples(st.sampled_from(["p", "parent", "Likes"]), st.lists(terms, max_size=3)).map(
        lambda pt: tl.pred(pt[0], *pt[1])
    ),
    st.one_of(
        st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -2.5, 1e30, -0.0, float("inf"), -float("inf")])
    ).map(tl.constant),
)
variables = st.sampled_from(["x", "y", "w"]).map(tl.Term.var)
BINARY = [tl.and_, tl.or_, tl.imply, tl.iff, tl.xor, *(lambda a, b, k=k: tl.TLExpr(k, (a, b)) for k in (
    "add", "subtract", "multiply", "divide", "power", "minimum", "maximum", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal"))]  # fmt: skip
UNARY = [tl.not_, *(lambda a, k=k: tl.TLExpr(k, (a,)) for k in ("negative", "absolute", "sqrt", "exp", "log"))]
exprs = st.recursive(
    leaves,
    lambda e: st.one_of(
        st.tuples(st.sampled_from(BINARY), e, e).map(lambda t: t[0](t[1], t[2])),
        st.tuples(st.sampled_from(UNARY), e).map(lambda t: t[0](t[1])),
        st.tuples(
            st.sampled_from([tl.exists, tl.forall]), st.lists(variables, min_size=1, max_size=2, unique=True), e
        ).map(lambda t: t[0](t[1], t[2])),
        st.tuples(e, e, e).map(lambda t: tl.if_then_else(*t)),
    ),
    max_leaves=10,
)


@settings(max_examples=400, deadline=None)
@given(exprs)
def test_what_is_written_reads_back(expr):
    assert tl.parse_expr(str(expr)) == expr
    assert tl.parse_expr(expr.to_ascii()) == expr
    assert hash(tl.parse_expr(str(expr))) == hash(expr)
    assert expr.to_latex()


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="pxyA01.,()&|~->∀∃∧¬ if then else\"'<=*+", max_size=30))
def test_any_text_reads_or_says_why_not(text):
    try:
        expr = tl.parse_expr(text)
    except tl.FormatError as error:
        assert error.diagnostic.location is not None
    else:
        assert tl.parse_expr(str(expr)) == expr


def test_precedence():
    same = [
        ("a & b | c", "(a & b) | c"), ("a -> b -> c", "a -> (b -> c)"), ("~a & b", "(~a) & b"),
        ("a | b -> c", "(a | b) -> c"), ("forall x. p(x) -> q(x)", "forall x. (p(x) -> q(x))"),
        ("a & exists x. p(x) | b", "a & (exists x. (p(x) | b))"), ("~p < q", "~(p < q)"), ("a - b - c", "(a - b) - c"),
        ("a ** b ** c", "a ** (b ** c)"), ("-p ** 2", "-(p ** 2)"), ("not a and b or c xor d", "((~a & b) | c) xor d"),
        ("a && b || !c => d", "((a & b) | ~c) -> d"),
    ]  # fmt: skip
    for left, right in same:
        assert tl.parse_expr(left) == tl.parse_expr(right), (left, str(tl.parse_expr(left)))


def test_domains_and_kinds_of_terms():
    expr = tl.parse_expr("∀x∈Person. p(x, Bob, 'eve', 3, ?Y) → q(z)", domains={"z": "City"})
    p, q = (e for e in expr.walk() if e.kind == "pred")
    assert p.terms == (
        tl.Term.var("x", "Person"),
        tl.Term.const("Bob"),
        tl.Term.const("eve"),
        tl.Term.const(3),
        tl.Term.var("Y"),
    )
    assert q.terms == (tl.Term.var("z", "City"),)
    assert str(expr) == '∀x∈Person. p(x, Bob, "eve", 3, ?Y) → q(z)'


@pytest.mark.parametrize(
    ("text", "message", "column"),
    [
        ("p(x", "',' is expected", 4), ("p(x) q(x)", "a connective is expected", 6), ("p &", "got the end", 4),
        ("(p", "not closed", 1), ("p)", "closes nothing", 2), ("p @ q", "'@' is not part", 3), ("1 < 2 < 3", "do not chain", 7),
        ("if p then q", "not finished", 1), ("min(p)", "takes 2 value", 4), ("", "got the end", 1),
        ("∀. p", "needs a variable", 2), ("p(q(x))", "',' is expected", 4), ("∀x p(x)", "followed by variables and a dot", 5),
    ],
)  # fmt: skip
def test_mistakes_have_a_place(text, message, column):
    with pytest.raises(tl.FormatError, match=message.replace("(", r"\(")) as caught:
        tl.parse_expr(text)
    assert caught.value.diagnostic.location.column == column


def test_free_variables_and_shadowing():
    expr = tl.parse_expr("p(x) & exists x. q(x, y) & forall y. r(x, y, z)")
    assert expr.free_variables() == ("x", "y", "z")


def test_substitution_avoids_capture():
    expr = tl.parse_expr("exists y. p(x, y) & exists x. q(x, y)")
    assert str(expr.substitute({"x": tl.Term.var("y")})) == "∃y'. p(y, y') ∧ (∃x. q(x, y'))"
    assert str(expr.substitute({"x": "Bob"})) == "∃y. p(Bob, y) ∧ (∃x. q(x, y))"
    assert expr.substitute({"y": "Bob"}) == expr
    assert expr.substitute({}) == expr


def test_expressions_are_values():
    x = tl.variables("x")
    assert tl.pred("p", x) == tl.pred("p", x)
    assert tl.pred("p", x) != tl.pred("p", "x")
    assert tl.constant(1) != tl.constant(1.0) != tl.constant(True)
    assert len({tl.pred("p", x), tl.pred("p", x), tl.pred("q", x)}) == 2
    with pytest.raises(tl.GraphError, match="no truth value"):
        bool(tl.pred("p", x))
    with pytest.raises(tl.GraphError, match="an argument of a predicate"):
        tl.pred("p", 1.5)
    with pytest.raises(tl.GraphError, match="an expression is expected"):
        tl.pred("p", x) & "q"
    with pytest.raises(tl.GraphError, match="ranges over variables"):
        tl.exists("x", tl.pred("p", x))
    with pytest.raises(tl.GraphError, match="twice"):
        tl.exists((x, x), tl.pred("p", x))


def test_show_lists_true_tuples_by_name():
    import numpy as np

    assert tl.show(np.array([[0.5, 0.0], [0.9, 0.1]]), ["a", "b"], ["c", "d"], heads=["x", "y"]).splitlines() == [
        "x  y  value", "b  c  0.9", "a  c  0.5", "b  d  0.1", "3 of 4",
    ]  # fmt: skip
    assert tl.show(np.array(True)) == "true"
    assert tl.show(np.ones((60,), bool), 60).endswith("60 of 60, the first 50 shown")
    with pytest.raises(tl.ShapeError, match="its domain has 3"):
        tl.show(np.ones(2, bool), ["a", "b", "c"])
