"""Rules in text, as ``.tl`` programs write them, read for :func:`tensorlogic.compile`."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import reduce
from typing import NoReturn

from ..errors import GraphError
from . import syntax
from .expr import Term, TLExpr
from .notation_reader import text_file
from .rules import Rule
from .strata import body_of, check_safety

_ASIDE = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\\\n]*'|#[^\n]*|//[^\n]*")  # quoted text and comments
_ARROW = re.compile(r"<-|:-|←")
_OPERATIONS = {"+": "add", "-": "subtract", "/": "divide", "^": "power"}


def holds_rules(text: str) -> bool:
    """Tell whether a text holds rules, not one expression: an arrow stands in it.

    >>> holds_rules("p(x) <- q(x)"), holds_rules("exists x. p(x, '<-')")
    (True, False)
    """
    return _ARROW.search(_ASIDE.sub(" ", text)) is not None


def read_rules(text: str) -> list[Rule]:
    """Read rules from text in the notation of ``.tl`` programs.

    >>> for rule in read_rules("Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Edge(y,z), not Closed(z, _)"):
    ...     print(rule)
    Path(x, y) ← Edge(x, y)
    Path(x, z) ← Path(x, y) ∧ Edge(y, z) ∧ ¬(∃_1. Closed(z, _1))
    """
    from .grammar import parse

    return [_rule(statement) for statement in parse(text, text_file(text)).statements]


def _rule(statement: syntax.Statement) -> Rule:
    match statement:
        case syntax.Rule(head=head) | syntax.Equation(head=head, operator="=") if head.boolean:
            check_safety(statement)
        case syntax.Facts(name=name):
            hint = "give facts as the inputs of a run, or use tl.Program"
            raise GraphError(f"facts of {name} stand among the rules", hint, code="E752", location=statement.at)
        case _:
            hint = "tl.Program takes equations, queries and files too"
            raise GraphError("a set of rules holds rules alone", hint, code="E752", location=statement.at)
    names = Counter(part.name for part in syntax.walk(statement) if isinstance(part, syntax.Variable))
    blanks = frozenset(name for name, times in names.items() if times == 1)
    literals = [_literal(part, blanks) for part in body_of(statement)]
    return Rule(_atom(head), reduce(lambda a, b: TLExpr("and", (a, b), location=b.location), literals))


def _literal(part: syntax.Part, blanks: Collection[str]) -> TLExpr:
    """Return the expression of one literal of a body; no value of a blank may make a negated atom hold."""
    match part:
        case syntax.Not(atom=atom):
            inner = _atom(atom)
            hidden = tuple(t for t in inner.terms if t.is_variable and t.name in blanks)
            if hidden:
                inner = TLExpr("exists", (inner,), terms=hidden, location=part.at)
            return TLExpr("not", (inner,), location=part.at)
        case syntax.Comparison(operator=operator, left=left, right=right):
            first, second = _term(left), _term(right)
            if operator in ("=", "!=") and first is not None and second is not None:
                if not first.is_variable and not second.is_variable:
                    _refuse(part, "a comparison of two constants")
                terms = (first, second) if first.is_variable else (second, first)
                same = TLExpr("same", terms=terms, location=part.at)
                return same if operator == "=" else TLExpr("not", (same,), location=part.at)
            return TLExpr(syntax.COMPARISONS[operator], (_value(left), _value(right)), location=part.at)
        case syntax.Tensor():
            return _atom(part)
    _refuse(part, "this literal")


def _term(part: syntax.Part) -> Term | None:
    """Return one side of an equation between indices; None where it is a value."""
    match part:
        case syntax.Variable(name=name):
            return Term.var(name)
        case syntax.Constant(value=value) | syntax.Text(value=value):
            return Term.const(value)
        case syntax.Number(value=int(value)):
            return Term.const(value)
        case syntax.Tensor(name=name, places=()) if not part.boolean:
            return Term.const(name)
    return None


def _value(part: syntax.Part) -> TLExpr:
    """Return the expression of a number, a score, or arithmetic between them."""
    match part:
        case syntax.Number(value=value):
            return TLExpr("constant", value=value, location=part.at)
        case syntax.Tensor():
            return _atom(part)
        case syntax.Negative(value=inner):
            return TLExpr("negative", (_value(inner),), location=part.at)
        case syntax.Product(factors=factors):
            return reduce(lambda a, b: TLExpr("multiply", (a, b), location=part.at), map(_value, factors))
        case syntax.Operation(operator=operator, left=left, right=right):
            return TLExpr(_OPERATIONS[operator], (_value(left), _value(right)), location=part.at)
    _refuse(part, "an index as a number" if isinstance(part, syntax.Variable) else "this value")


def _atom(tensor: syntax.Tensor) -> TLExpr:
    """Return a predicate over variables and constants."""
    terms = []
    for place in tensor.places:
        match place.index:
            case syntax.Variable(name=name):
                terms.append(Term.var(name))
            case syntax.Constant(value=value):
                terms.append(Term.const(value))
            case other:
                _refuse(other, "arithmetic or a range in an index")
    return TLExpr("pred", name=tensor.name, terms=tuple(terms), location=tensor.at)


def _refuse(part: syntax.Part, what: str) -> NoReturn:
    hint = "tl.Program knows the numbers of its indices"
    raise GraphError(f"{what} cannot be compiled against a context", hint, code="E753", location=part.at)
