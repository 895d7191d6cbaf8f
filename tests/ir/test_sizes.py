"""Sizes: canonical forms, arithmetic that agrees with Python's, solving, and text that cannot be read."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tensorlogic import GraphBuilder, ShapeError, TensorShape
from tensorlogic.ir import sizes

NAMES = ("n", "m", "k")
envs = st.fixed_dictionaries({name: st.integers(0, 12) for name in NAMES})


def _binary(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(
        lambda a, op, b: f"({a}){op}({b})", children, st.sampled_from(["+", "-", "*", "//"]), children
    ) | children.map(lambda a: f"-({a})")


# also valid Python, which is what they are compared with
expressions = st.recursive(st.sampled_from(NAMES) | st.integers(0, 9).map(str), _binary, max_leaves=7)


def python(text: str, env: dict[str, int]) -> int:
    try:
        return int(eval(text, {"__builtins__": {}}, dict(env)))
    except ZeroDivisionError:
        assume(False)
        raise


def canonical(text: str) -> sizes.Dim:
    try:
        return sizes.add(text, 0)
    except ShapeError as error:
        assume("division by zero" not in str(error))
        raise


@settings(deadline=None, max_examples=400)
@given(expressions, envs)
def test_evaluate_agrees_with_python(text: str, env: dict[str, int]):
    expected = python(text, env)
    assert sizes.evaluate(canonical(text), env) == expected


@settings(deadline=None, max_examples=400)
@given(expressions)
def test_the_canonical_form_is_its_own(text: str):
    form = canonical(text)
    assert sizes.add(form, 0) == form
    assert type(form) in (int, str)


@settings(deadline=None, max_examples=200)
@given(expressions, expressions, envs)
def test_arithmetic_on_canonical_forms(a: str, b: str, env: dict[str, int]):
    left, right = python(a, env), python(b, env)
    x, y = canonical(a), canonical(b)
    assert sizes.evaluate(sizes.add(x, y), env) == left + right
    assert sizes.evaluate(sizes.sub(x, y), env) == left - right
    assert sizes.evaluate(sizes.mul(x, y), env) == left * right
    if right and y != 0:
        assert sizes.evaluate(sizes.floordiv(x, y), env) == left // right


@settings(deadline=None, max_examples=200)
@given(expressions, expressions)
def test_equal_sizes_have_one_form(a: str, b: str):
    x, y = canonical(a), canonical(b)
    assert sizes.add(x, y) == sizes.add(y, x)
    assert sizes.mul(x, y) == sizes.mul(y, x)
    assert sizes.sub(x, x) == 0
    assert sizes.sub(sizes.add(x, y), y) == x


@settings(deadline=None, max_examples=200)
@given(expressions, envs, st.sets(st.sampled_from(NAMES)))
def test_names_may_be_replaced_in_two_goes(text: str, env: dict[str, int], first: set[str]):
    expected = python(text, env)
    form = canonical(text)
    partly = {name: env[name] for name in first}
    try:
        halfway = sizes.evaluate(form, partly)
    except ShapeError as error:
        assert "division by zero" in str(error)
        assume(False)
    assert not sizes.names(halfway) & first
    assert sizes.evaluate(halfway, env) == expected


@settings(deadline=None, max_examples=200)
@given(st.integers(-5, 5).filter(bool), st.integers(0, 50), st.integers(-20, 20), st.integers(-3, 3), st.integers(0, 9))
def test_solve_inverts(coefficient: int, n: int, offset: int, other: int, m: int):
    size = sizes.add(sizes.add(sizes.mul(coefficient, "n"), sizes.mul(other, "m")), offset)
    value = coefficient * n + other * m + offset
    assert sizes.solve(size, value, {"m": m}) == {"n": n}
    found = sizes.solve(size, value + 1, {"m": m})
    assert found is None or coefficient * found["n"] + other * m + offset == value + 1


@pytest.mark.parametrize(
    ("size", "value", "env"),
    [("n+m", 4, {}), ("n*m", 4, {}), ("n*n", 4, {}), ("n//2", 4, {}), ("n+5", 4, {}), ("2*n", 5, {}), (7, 7, {})],
)
def test_what_no_single_name_solves(size: Any, value: int, env: dict[str, int]):
    assert sizes.solve(size, value, env) is None


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("n-k+1", "n-k+1"),
        ("1+n-k", "n-k+1"),
        ("2*(n+1)", "2*n+2"),
        ("n*m", "m*n"),
        ("  n ", "n"),
        ("n-n", 0),
        ("4*n//2", "2*n"),
        ("7//2", 3),
        ("(n+1)//2", "(n+1)//2"),
        ("größe+1", "größe+1"),
        ("x.0", "x.0"),
        ("n'", "n'"),
        ("007", 7),
    ],
)
def test_canonical_forms(text: str, form: sizes.Dim):
    assert sizes.dim(text) == form


def test_a_leading_subtracted_division_keeps_its_value():
    assert sizes.evaluate(sizes.dim("5-n//2"), {"n": 3}) == 4
    assert sizes.evaluate(sizes.dim(sizes.dim("5-n//2")), {"n": 3}) == 4
    b = GraphBuilder()
    assert b.iota("9-n//2").shape == TensorShape(["9-n//2"])


@pytest.mark.parametrize(
    ("text", "position"),
    [("", 1), ("n+", 3), ("n n", 3), ("2n", 2), ("n%2", 2), ("n/2", 2), ("(n", 3), ("n)", 2), ("n+*2", 3), ("n²+²", 4)],
)
def test_bad_text_says_where(text: str, position: int):
    with pytest.raises(ShapeError, match=f"at character {position}") as caught:
        sizes.dim(text)
    assert caught.value.diagnostic.code == "E102"
    assert caught.value.diagnostic.suggestions


@pytest.mark.parametrize(
    ("code", "value"),
    [*(("E118", v) for v in (-1, 2**63, "0-3", "9" * 30)),
     *(("E301", v) for v in (1.5, None, [3], np.array(2.5), np.array([1, 2])))],
)  # fmt: skip
def test_what_is_not_a_size(code: str, value: object):
    with pytest.raises(ShapeError) as caught:
        sizes.dim(value)
    assert caught.value.diagnostic.code == code


@pytest.mark.parametrize("text", ["²", "n+²", "①"])
def test_digits_that_are_no_decimals_are_refused(text: str):
    with pytest.raises(ShapeError):
        sizes.dim(text)


@pytest.mark.parametrize(
    "text",
    ["(" * 400 + "n" + ")" * 400, "-" * 990 + "n", "n+" * 600 + "n", "*".join(["(n+m)"] * 5 + ["(k+1)"] * 60)],
    ids=["parentheses", "signs", "long", "product"],
)
def test_hostile_text_is_refused_without_recursion(text: str):
    try:
        assert sizes.dim(text)
    except ShapeError as error:
        assert len(str(error)) < 2000


def test_products_stay_small():
    wide = "(" + "+".join(f"a{i}" for i in range(20)) + ")"
    with pytest.raises(ShapeError, match="terms"):
        sizes.dim(f"{wide}*{wide}")


@pytest.mark.parametrize("env", [{"k": 0}, {"n": 3, "k": 0}])
def test_division_by_a_zero_that_is_bound_later(env: dict[str, int]):
    with pytest.raises(ShapeError, match="division by zero"):
        sizes.evaluate("n//k", env)


def test_division_by_zero():
    for make in (lambda: sizes.dim("3//0"), lambda: sizes.floordiv(3, 0), lambda: sizes.floordiv("n", 0)):
        with pytest.raises(ShapeError, match="division by zero"):
            make()


def test_integers_of_every_kind():
    assert sizes.dim(np.int32(5)) == 5
    assert type(sizes.dim(np.int64(5))) is int
    assert sizes.dim(2**63 - 1) == 2**63 - 1
    assert sizes.prod((2, "n", 3, "n")) == "6*n*n"
    assert sizes.prod(()) == 1


def test_shapes_refuse_what_sizes_refuse():
    assert TensorShape([2**63 - 1]) == (2**63 - 1,)
    with pytest.raises(ShapeError):
        TensorShape([2**63])


def test_a_division_that_comes_out_even_is_simplified():
    assert sizes.floordiv(sizes.mul("n", "m"), "m") == "n"


def test_many_sizes_do_not_recurse():
    limit = sys.getrecursionlimit()
    size: sizes.Dim = "n"
    with pytest.raises(ShapeError):
        for _ in range(limit):
            size = sizes.floordiv(sizes.add(size, 1), "k")
