"""Expressions made by functions: variables, predicates, connectives and quantifiers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial, reduce
from typing import Any

from ..diagnostics import value_text
from ..errors import GraphError, expect_text
from .expr import Term, TLExpr, as_expr, as_scalar, as_term, binary


def variables(names: str, domain: str | None = None) -> Any:
    """Make variables from names separated by spaces or commas: one for one name, a tuple for several.

    >>> x, y = variables("x y", domain="Person")
    >>> y
    y
    """
    if not isinstance(names, str):
        raise GraphError(
            f"variables are named by text, got {value_text(names)}", "write tl.variables('x y')", code="E301"
        )
    terms = tuple(Term.var(n, domain) for n in names.replace(",", " ").split())
    if not terms:
        raise GraphError("variables needs at least one name", code="E601")
    return terms[0] if len(terms) == 1 else terms


def pred(name: str, *terms: Any) -> TLExpr:
    """Make a predicate, or a real-valued score, over variables and constants.

    >>> print(pred("parent", "alice", variables("z")))
    parent("alice", z)
    """
    if not isinstance(name, str) or not name:
        raise GraphError(f"a predicate needs a name, got {value_text(name)}", code="E601")
    expect_text("the name of a predicate", name)
    return TLExpr("pred", name=name, terms=tuple(as_term(t) for t in terms))


def constant(value: float | bool | int) -> TLExpr:
    """Make a numeric constant, or a truth value.

    >>> print(constant(0.5))
    0.5
    """
    number = as_scalar(value)
    if number is None:
        hint = "names of a domain stand in predicates: tl.pred('likes', x, 'bob')"
        raise GraphError(f"a constant is a number or a truth value, got {value_text(value)}", hint, code="E301")
    return TLExpr("constant", value=number)


def _many(kind: str, parts: Sequence[Any]) -> TLExpr:
    if not parts:
        raise GraphError(f"{kind} needs at least one part", code="E618")
    return reduce(partial(binary, kind), parts[1:], as_expr(parts[0]))


def and_(*parts: Any) -> TLExpr:
    """Return the conjunction of several expressions.

    >>> print(and_(pred("p"), pred("q"), pred("r")))
    p() ∧ q() ∧ r()
    """
    return _many("and", parts)


def or_(*parts: Any) -> TLExpr:
    """Return the disjunction of several expressions.

    >>> print(or_(pred("p"), pred("q")))
    p() ∨ q()
    """
    return _many("or", parts)


def not_(part: Any) -> TLExpr:
    """Return the negation of an expression.

    >>> print(not_(pred("p")))
    ¬p()
    """
    return TLExpr("not", (as_expr(part),))


def imply(a: Any, b: Any) -> TLExpr:
    """Return the implication from one expression to another.

    >>> print(imply(pred("p"), pred("q")))
    p() → q()
    """
    return binary("imply", a, b)


def iff(a: Any, b: Any) -> TLExpr:
    """Return the equivalence of two expressions: each implies the other.

    >>> print(iff(pred("p"), pred("q")))
    p() ↔ q()
    """
    return binary("iff", a, b)


def xor(a: Any, b: Any) -> TLExpr:
    """Return that one of two expressions holds, but not both.

    >>> print(xor(pred("p"), pred("q")))
    p() ⊕ q()
    """
    return binary("xor", a, b)


def if_then_else(condition: Any, then: Any, otherwise: Any) -> TLExpr:
    """Choose between two values by a truth value; a soft truth value mixes them.

    >>> print(if_then_else(pred("p"), 1.0, 0.5))
    if p() then 1.0 else 0.5
    """
    return TLExpr("if", (as_expr(condition), as_expr(then), as_expr(otherwise)))


def same(a: Any, b: Any) -> TLExpr:
    """Return that two variables, or a variable and a constant, are the same; ``==`` compares Python objects.

    >>> x, y = variables("x y")
    >>> print(pred("parent", x, y) & ~same(x, y))
    parent(x, y) ∧ x ≠ y
    """
    terms = (as_term(a), as_term(b))
    if not any(t.is_variable for t in terms):
        raise GraphError(f"same compares a variable with something, got {terms[0]!r} and {terms[1]!r}", code="E619")
    return TLExpr("same", terms=terms if terms[0].is_variable else terms[::-1])


def _quantified(kind: str, over: Any, body: Any) -> TLExpr:
    several = isinstance(over, Iterable) and not isinstance(over, Term | str)
    terms = tuple(over) if several else (over,)
    for t in terms:
        if not isinstance(t, Term) or not t.is_variable:
            hint = "make variables with tl.variables('x y')"
            raise GraphError(f"{kind} ranges over variables, got {value_text(t)}", hint, code="E301")
    if not terms:
        raise GraphError(f"{kind} needs a variable", code="E618")
    if len({t.name for t in terms}) != len(terms):
        raise GraphError(f"{kind} names a variable twice: {', '.join(map(repr, terms))}", code="E620")
    return TLExpr(kind, (as_expr(body),), terms=terms)


def exists(over: Term | Sequence[Term], body: Any) -> TLExpr:
    """Return that a body holds for some value of a variable, or of several.

    >>> x, y = variables("x y")
    >>> print(exists((x, y), pred("p", x, y)))
    ∃x y. p(x, y)
    """
    return _quantified("exists", over, body)


def forall(over: Term | Sequence[Term], body: Any) -> TLExpr:
    """Return that a body holds for every value of a variable, or of several.

    >>> x = variables("x")
    >>> print(forall(x, pred("p", x)))
    ∀x. p(x)
    """
    return _quantified("forall", over, body)
