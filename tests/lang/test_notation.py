"""Expressions as values: equality, free variables, substitution, and the notation both ways."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl

terms = st.one_of(
    st.sampled_from(["x", "y", "z'", "X", "if"]).map(tl.Term.var),
    st.sampled_from(["Alice", "bob", 'a "quoted" name', "naïve", "Élise", "X", "", "x"]).map(tl.Term.const),
    st.integers(-1, 9).map(tl.Term.const),
)
leaves = st.one_of(
    st.tuples(
        st.sampled_from(["p", "parent", "Likes", "exp", "min", "if", "has child", 'a "b" \\\n', "?x", "7"]),
        st.lists(terms, max_size=3),
    ).map(lambda pt: tl.pred(pt[0], *pt[1])),
    st.one_of(
        st.booleans(), st.integers(-3, 3), st.sampled_from([0.5, -2.5, 1e30, -0.0, float("inf"), -float("inf")])
    ).map(tl.constant),
)
variables = st.one_of(
    st.sampled_from(["x", "y", "X", "if"]).map(tl.Term.var),
    st.sampled_from([None, "Person", "My Dom", "if", "exp", 'a "b"']).map(partial(tl.Term.var, "w")),
)
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
            st.sampled_from([tl.exists, tl.forall]),
            st.lists(variables, min_size=1, max_size=2, unique_by=lambda v: v.name),
            e,
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
@given(st.text(alphabet="pxyAÉ01.,()&|~->∀∃∧¬ if then else\"'<=*+^:?", max_size=30))
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
        ("a && b || !c => d", "((a & b) | ~c) -> d"), ("-2 ** 2", "-(2 ** 2)"), ("-2 ^ p", "-(2 ** p)"), ("-inf ** 2", "-(inf ** 2)"),
        ("2 ** -2", "2 ** (-2)"), ("-2 * p", "(-2) * p"), ("2 ** -2 ** 2", "2 ** (-(2 ** 2))"),
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
        ("p(x", "the '(' of p is not closed", 4), ("p(x) q(x)", "a connective is expected", 6), ("p &", "got the end", 4),
        ("(p", "not closed", 1), ("p)", "closes nothing", 2), ("p @ q", "'@' is not part", 3), ("1 < 2 < 3", "do not chain", 7),
        ("if p then q", "not finished", 1), ("min(p)", "takes 2 value", 1), ("", "got the end", 1),
        ("∀. p", "needs a variable", 2), ("p(q(x))", "',' is expected", 4), ("∀x p(x)", "followed by variables and a dot", 5),
        ("forall x: p(x)", "a dot ends the variables of forall, not ':'", 9),
        ('"p q" & r', "is expected, got", 1), ('""(x)', "a predicate needs a name", 1), ('∀x∈"". p(x)', "a domain needs a name", 4),
        ("∀x x. p(x)", "names a variable twice", 4), ("p &\n  @", "not part", 3), ("∀x∈?D. p(x)", "a domain is a name", 4),
    ],
)  # fmt: skip
def test_mistakes_have_a_place(text, message, column):
    with pytest.raises(tl.FormatError, match=message.replace("(", r"\(")) as caught:
        tl.parse_expr(text)
    assert caught.value.diagnostic.location.column == column


def test_names_that_are_not_plain_words_are_quoted():
    x = tl.variables("x", domain="My Dom")
    expr = tl.exists(x, tl.pred("has child", x) & tl.pred("exp", x) & tl.pred("exponent", x))
    assert str(expr) == '∃x∈"My Dom". "has child"(x) ∧ "exp"(x) ∧ exponent(x)'
    assert expr.to_ascii() == 'exists x:"My Dom". "has child"(x) & "exp"(x) & exponent(x)'
    assert tl.parse_expr(str(expr)) == tl.parse_expr(expr.to_ascii()) == expr
    assert tl.parse_expr("'if'(x)") == tl.pred("if", tl.Term.var("x"))
    assert tl.parse_expr("exp(p)").kind == "exp"


@pytest.mark.parametrize("name", ["a b", "", "1x", "?x", "x y", "x-y", "x'y", None, 3])
def test_a_variable_is_one_word(name):
    with pytest.raises(tl.GraphError, match="a variable needs a name"):
        tl.Term.var(name)


@pytest.mark.parametrize("domain", ["", 3])
def test_a_domain_has_a_name(domain):
    with pytest.raises(tl.GraphError, match="the domain of variable 'x' needs a name"):
        tl.Term.var("x", domain)


def test_capitals_of_every_alphabet_are_constants():
    expr = tl.parse_expr("lives(Élise, Ωmega, élise, 名)")
    assert [t.is_variable for t in expr.terms] == [False, False, True, True]
    assert str(expr) == "lives(Élise, Ωmega, élise, 名)"
    assert str(tl.pred("lives", tl.Term.var("Élise"))) == "lives(?Élise)"


def test_a_capital_stands_for_a_variable_only_where_it_was_bound_so():
    assert tl.parse_expr("∀X. p(X)").args[0].terms == (tl.Term.var("X"),)
    assert tl.parse_expr("∀?X. p(X, ?X)").args[0].terms == (tl.Term.const("X"), tl.Term.var("X"))
    both = tl.parse_expr("(∀X∈A. (∀?X∈B. p(X, ?X)) & q(X)) & r(X)")
    shown = {e.name: e.terms for e in both.walk() if e.kind == "pred"}
    assert shown == {
        "p": (tl.Term.const("X"), tl.Term.var("X", "B")), "q": (tl.Term.var("X", "A"),), "r": (tl.Term.const("X"),),
    }  # fmt: skip


def test_what_is_read_knows_its_place():
    text = 'if p(x) then ~q(x)\n  else min(-r, -2) ** "s"(x)'
    places = {e.kind + e.name: (e.location.line, e.location.column) for e in tl.parse_expr(text).walk()}
    assert places == {
        "predp": (1, 4), "predq": (1, 15), "not": (1, 14), "predr": (2, 13), "negative": (2, 12), "constant": (2, 16),
        "minimum": (2, 8), "preds": (2, 23), "power": (2, 20), "if": (1, 1),
    }  # fmt: skip
    quantified = tl.parse_expr("p & ∃x. q(x)")
    assert [e.location.column for e in quantified.walk()] == [1, 9, 5, 3]


def test_errors_after_reading_show_the_formula():
    expr = tl.parse_expr("p(x) &\n  knows(x, Bob)", domains={"x": "Person"})
    context = tl.CompilerContext(domains={"Person": ["alice"]}, predicates={"knows": ("Person", "Person")})
    with pytest.raises(tl.GraphError, match="'Bob' is not in domain") as caught:
        tl.compile(expr, context)
    lines = str(caught.value).splitlines()
    assert lines[1].startswith("  at <expression ") and lines[1].endswith(">:2:3")
    assert lines[2:4] == ["    knows(x, Bob)", "    ^"]


def test_texts_are_kept_for_errors_but_not_for_ever():
    import linecache

    from tensorlogic.lang.notation_reader import MAX_TEXTS

    first = tl.parse_expr("first(x)").location
    assert tl.parse_expr("first(x)").location == first  # so a warning about it is given once
    assert linecache.getline(first.file, 1) == "first(x)\n"
    linecache.checkcache()
    assert linecache.getline(first.file, 1) == "first(x)\n"
    for n in range(MAX_TEXTS):
        tl.parse_expr(f"p(x{n})")
    assert linecache.getline(first.file, 1) == ""
    assert sum(name.startswith("<expression ") for name in linecache.cache) == MAX_TEXTS


@pytest.mark.parametrize(
    ("text", "latex"),
    [
        ("p(x) ** 10 ** 2", r"\mathrm{p}(x)^{10^{2}}"), ("(p ** 2) ** (q + 1)", r"(\mathrm{p}()^{2})^{\mathrm{q}() + 1}"),
        ("has_child(x_1, Bob, 'a_b')", r'\mathrm{has\_child}(x\_1, \text{Bob}, \text{"a\_b"})'),
        ('"100% & #1 ${}"(x)', r"\text{100\% \& \#1 \$\{\}}(x)"), ("p('~^')", r'\mathrm{p}(\text{"\textasciitilde{}\textasciicircum{}"})'),
        ("∃?X∈my_dom y. p(?X, 3)", r"\exists X \in \mathrm{my\_dom}\ y. \mathrm{p}(X, 3)"),
        ("if p then exp(1) else 2", r"\text{if }\mathrm{p}()\text{ then }\mathrm{exp}(1)\text{ else }2"),
    ],
)  # fmt: skip
def test_latex(text, latex):
    assert tl.parse_expr(text).to_latex() == latex


def test_signs_and_powers_read_back():
    assert str(tl.constant(-2) ** 2) == "(-2) ** 2"
    assert str(-(tl.constant(2) ** 2)) == "-(2 ** 2)"
    assert tl.parse_expr("(-2) ** 2") == tl.constant(-2) ** 2
    assert tl.parse_expr("-2") == tl.constant(-2)


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
    assert tl.pred("p", x) & "q(x)" == tl.pred("p", x) & tl.pred("q", x)
    with pytest.raises(tl.GraphError, match="an expression is expected"):
        tl.pred("p", x) & None
    with pytest.raises(tl.GraphError, match="ranges over variables"):
        tl.exists("x", tl.pred("p", x))
    with pytest.raises(tl.GraphError, match="twice"):
        tl.exists((x, x), tl.pred("p", x))


@pytest.mark.parametrize(
    ("given", "value"),
    [(np.float64(0.5), 0.5), (np.float32(0.5), 0.5), (np.int64(3), 3), (np.uint8(3), 3), (np.longdouble(2), 2.0)],
)  # fmt: skip
def test_numpy_scalars_become_pythons(given, value):
    p = tl.pred("p")
    assert tl.constant(given) == tl.constant(value)
    assert type(tl.constant(given).value) is type(value)
    assert p + given == p + value and given + p == value + p
    assert (given < p) == (p > value)
    assert given ** p == value ** p  # fmt: skip
    assert tl.and_(p, given) == tl.and_(p, value)


def test_mistakes_in_making_expressions():
    p, x = tl.pred("p"), tl.variables("x")
    for make, message in [
        (lambda: tl.constant("abc"), "a constant is a number"), (lambda: tl.constant(None), "a constant is a number"),
        (lambda: tl.constant(np.ones(2)), "a constant is a number"), (lambda: tl.variables(5), "named by text, got 5"),
        (lambda: tl.exists(3, p), "ranges over variables, got 3"), (lambda: tl.forall(None, p), "ranges over variables, got None"),
        (lambda: tl.exists("xy", p), "ranges over variables, got 'xy'"), (lambda: tl.exists([x, 3], p), "variables, got 3"),
        (lambda: tl.exists((), p), "needs a variable"), (lambda: p + np.ones(2), "an expression is expected"),
        (lambda: np.ones(2) + p, "an expression is expected"), (lambda: tl.pred("q", np.ones(2)), "an argument of a predicate"),
        (lambda: tl.Term.const(1.5), "an argument of a predicate"), (lambda: tl.pred("q", True), "an argument of a predicate"),
        (lambda: tl.parse_expr("p(x)", domains="x"), "domains are given by variable"),
    ]:  # fmt: skip
        with pytest.raises(tl.GraphError, match=message):
            make()
    for text in (5, None, p, b"p"):
        with pytest.raises(tl.FormatError, match="read from text"):
            tl.parse_expr(text)


def test_operators_from_the_right():
    p = tl.pred("p")
    assert str(1 ^ p) == "1 ⊕ p()"
    assert str(1 >> p) == "1 → p()"
    assert str(2 ** p) == "2 ** p()"  # fmt: skip


def test_expressions_cannot_be_changed():
    p = tl.pred("p")
    for name in ("kind", "args", "location", "_hash", "other"):
        with pytest.raises(AttributeError, match="cannot be changed"):
            setattr(p, name, None)
    with pytest.raises(AttributeError, match="cannot be changed"):
        del p.kind
    assert p == tl.pred("p")


def test_expressions_can_be_copied_and_pickled():
    e = tl.parse_expr("∀x∈Person. p(x) -> exists y. q(x, y, 'a')")
    deep = e
    for _ in range(10_000):
        deep = ~deep
    shared = e
    for _ in range(100):
        shared = shared & shared
    for expr in (e, deep, shared):
        again = pickle.loads(pickle.dumps(expr))
        assert again == expr and hash(again) == hash(expr)
        assert [n.location for n in again.walk()] == [n.location for n in expr.walk()]
        assert copy.copy(expr) == expr == copy.deepcopy(expr)


def test_shared_parts_are_seen_once():
    x, y = tl.variables("x y")

    def shared():
        e = tl.pred("p", x, y)
        for n in range(100):
            e = tl.exists(y, e & e) | e if n % 10 == 0 else e & e
        return e

    e = shared()
    assert len(list(e.walk())) == 121
    assert e.free_variables() == ("x", "y")
    assert e == shared() and e != (shared() & e)
    changed = e.substitute({"x": y})
    assert changed.free_variables() == ("y",)
    assert len(list(changed.walk())) < 300
    assert e.substitute({"z": "Bob"}) is e


def test_free_variables_share_their_tuple():
    x, y = tl.variables("x y")
    left = right = tl.pred("p", x, y)
    for _ in range(10_000):
        left, right = left & tl.pred("q", x), tl.pred("q", x) >> right
    assert len({id(e.free_variables()) for e in left.walk() if e.kind == "and"}) == 1
    assert len({id(e.free_variables()) for e in right.walk() if e.kind == "imply"}) == 1


def test_depth_costs_nothing():
    text = "(" * 10_000 + "p(x)" + " & ~q(x))" * 10_000
    e = tl.parse_expr(text)
    assert tl.parse_expr(str(e)) == e
    assert e.to_latex() and e.substitute({"x": "Bob"}).free_variables() == ()
    quantified = tl.parse_expr("∀x. ∃y. " * 5_000 + "p(x, y)")
    assert quantified.free_variables() == ()
    assert tl.parse_expr(str(quantified)) == quantified


def test_renaming_leaves_other_bound_variables_alone():
    expr = tl.parse_expr("exists y, y'. p(x, y)")
    assert str(expr.substitute({"x": tl.Term.var("y")})) == "∃y'' y'. p(y, y'')"


def test_show_lists_true_tuples_by_name():
    assert tl.show(np.array([[0.5, 0.0], [0.9, 0.1]]), ["a", "b"], ["c", "d"], heads=["x", "y"]).splitlines() == [
        "x  y  value", "b  c  0.9", "a  c  0.5", "b  d  0.1", "3 of 4",
    ]  # fmt: skip
    assert tl.show(np.array(True)) == "true"
    assert tl.show(np.ones((60,), bool), 60).endswith("60 of 60, the first 50 shown")
    with pytest.raises(tl.ShapeError, match="its domain has 3"):
        tl.show(np.ones(2, bool), ["a", "b", "c"])


def test_variables_are_compared_by_same():
    x, y = tl.variables("x y")
    assert tl.parse_expr("p(x, y) & x != y") == tl.pred("p", x, y) & ~tl.same(x, y)
    assert tl.parse_expr("x = Bob") == tl.same(x, "Bob") == tl.same("Bob", x)
    assert tl.parse_expr("forall x. x = 3 -> p(x)") == tl.forall(x, tl.same(x, 3) >> tl.pred("p", x))
    assert tl.parse_expr("p() = q()").kind == "equal"
    for expr in (
        tl.same(x, y),
        ~tl.same(x, 3),
        tl.same(x, "bob"),
        tl.same(tl.Term.var("X"), y),
        tl.same(x, "Bob") & tl.pred("p"),
    ):
        assert tl.parse_expr(str(expr)) == expr
        assert tl.parse_expr(expr.to_ascii()) == expr
    with pytest.raises(tl.GraphError, match="Python value False"):
        tl.pred("p", x) & (x == y)
    with pytest.raises(tl.FormatError, match="this is a rule"):
        tl.parse_expr("q(x) <- p(x)")


def test_show_sorts_unsigned_scores():
    scores = np.array([0, 3, 0, 7], np.uint8)
    rows = tl.show(scores, ["a", "b", "c", "d"], above=-1).splitlines()[1:-1]
    assert [row.split() for row in rows] == [["d", "7"], ["b", "3"], ["a", "0"], ["c", "0"]]
