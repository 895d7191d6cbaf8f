"""Parts of a program as text: for messages and for printing."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable

from .syntax import (
    Arithmetic,
    Call,
    Comparison,
    Constant,
    Equation,
    Facts,
    ListLiteral,
    Module,
    Negative,
    Not,
    Number,
    Operation,
    Part,
    Place,
    Product,
    Query,
    Range,
    Read,
    Rule,
    Tensor,
    Text,
    Variable,
    Write,
)

NAME = re.compile(r"[^\W\d]\w*'*")

# how tightly a part binds: what binds less than its place asks for stands in parentheses
_SUM, _TERM, _CHAIN, _FACTOR, _ATOM = range(1, 6)

_Piece = str | tuple[Part, int]


def is_variable(name: str) -> bool:
    """Tell whether a name is that of an index variable: it begins with a lower-case letter or an underscore.

    >>> is_variable("x'"), is_variable("Alice")
    (True, False)
    """
    return name[:1].islower() or name[:1] == "_"


def text_of(part: Part) -> str:
    """Return a part of a program as it would be written in a program.

    >>> x, y = Place(Variable("x")), Place(Variable("y"))
    >>> text_of(Rule(Tensor("Child", (y, x), True), (Tensor("Parent", (x, y), True),)))
    'Child(y, x) <- Parent(x, y)'
    """
    written: list[str] = []
    waiting: list[_Piece] = [(part, 0)]
    while waiting:
        piece = waiting.pop()
        if isinstance(piece, str):
            written.append(piece)
        else:
            waiting.extend(reversed(_pieces(*piece)))
    return "".join(written)


def _binds(part: Part) -> int:
    match part:
        case Operation(operator="+" | "-") | Arithmetic(operator="+" | "-"):
            return _SUM
        case Negative():
            return _TERM
        case Number(value=value) | Constant(value=value) if not isinstance(value, str) and value < 0:
            return _TERM
        case Product() | Operation(operator="/") | Arithmetic():
            return _CHAIN
        case Operation():
            return _FACTOR
        case Comparison() | Not():
            return 0
    return _ATOM


def _pieces(part: Part, least: int) -> list[_Piece]:
    """Return what a part is written as, from left to right: text, and smaller parts with how tightly they must bind."""
    if _binds(part) < least:
        return ["(", (part, 0), ")"]
    match part:
        case Variable(name=name):
            return [name]
        case Constant(value=value, quoted=quoted):
            return [quote(value) if quoted and isinstance(value, str) else constant(value)]
        case Number(value=number):
            return [repr(number)]
        case Text(value=text):
            return [quote(text)]
        case Place(index=index, normalised=normalised, virtual=virtual):
            return ["*" if virtual else "", (index, 0), "." if normalised else ""]
        case Arithmetic(operator=sign, left=left, right=right):
            tight = sign in "*/"
            return [(left, _CHAIN if tight else _SUM), sign, (right, _FACTOR if tight else _TERM)]
        case Range(start=start, stop=stop):
            return [(start, 0) if start else "", ":", (stop, 0) if stop else ""]
        case Tensor(name=name, places=places, boolean=boolean):
            if not places:
                return [f"{name}()" if boolean else name]
            opening, closing = "()" if boolean else "[]"
            return [name, opening, *_listed(places), closing]
        case ListLiteral(values=values):
            return ["[", *_listed(values), "]"]
        case Call(function=function, arguments=arguments):
            return [function, "(", *_listed(arguments), ")"]
        case Product():
            return _product(part)
        case Negative(value=negated):
            return ["-", (negated, _TERM)]
        case Operation(operator="^", left=left, right=right):
            bare = isinstance(right, Number)  # x^-3
            return [(left, _ATOM), "^", (right, 0 if bare else _FACTOR)]
        case Operation(operator=sign, left=left, right=right):
            tight = sign == "/"
            return [(left, _CHAIN if tight else _SUM), f" {sign} ", (right, _FACTOR if tight else _TERM)]
        case Not(atom=atom):
            return ["not ", (atom, 0)]
        case Comparison(operator=sign, left=left, right=right):
            return [(left, _SUM), f" {sign} ", (right, _SUM)]
    return _statement(part)


def _statement(part: Part) -> list[_Piece]:
    match part:
        case Facts():
            return ["\n".join(_facts(part))]
        case Rule(head=head, body=body):
            return [(head, 0), " <- ", *_listed(body)] if body else [(head, 0)]
        case Equation(head=head, operator=operator, value=value):
            return [(head, 0), f" {operator} ", (value, 0)]
        case Query(body=body):
            return [*_listed(body), "?"]
        case Read(head=head, path=path):
            return [(head, 0), " = ", quote(path)]
        case Write(path=path, value=value):
            return [quote(path), " = ", (value, 0)]
        case Module(statements=statements):
            scalars = {s.head.name for s in statements if isinstance(s, Equation) and not s.head.places}
            pieces: list[_Piece] = []
            for statement in statements:
                shown: _Piece = (
                    "\n".join(_facts(statement, scalars)) if isinstance(statement, Facts) else (statement, 0)
                )
                pieces += [shown, "\n"]
            return pieces
    return [repr(part)]


def _listed(parts: Iterable[Part]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for part in parts:
        pieces += [", ", (part, 0)] if pieces else [(part, 0)]
    return pieces


def _product(product: Product) -> list[_Piece]:
    pieces: list[_Piece] = []
    for factor in product.factors:
        quotient = isinstance(factor, Operation) and factor.operator == "/"
        least = _CHAIN if quotient and not pieces else _FACTOR
        if pieces:  # a name before a parenthesis or bracket would be read as a relation or tensor
            plain = _binds(factor) >= least and not isinstance(_first(factor), Number | ListLiteral)
            pieces.append(" " if plain else " * ")
        pieces.append((factor, least))
    return pieces


def _first(factor: Part) -> Part:
    """Return the part that a factor begins with."""
    while isinstance(factor, Operation):
        if _binds(factor.left) < _ATOM:
            return ListLiteral(())  # begins with a bracket
        factor = factor.left
    return factor


def _facts(facts: Facts, quoted: Collection[str] = ()) -> Iterable[str]:
    for row in facts.rows():
        shown = (quote(value) if value in quoted and isinstance(value, str) else constant(value) for value in row)
        yield f"{facts.name}({', '.join(shown)})"


def constant(value: str | int) -> str:
    """Return a constant as it is written: a capitalised word bare, any other text in quotes.

    >>> constant("Bob"), constant("bob"), constant(3)
    ('Bob', '"bob"', '3')
    """
    if isinstance(value, str) and (is_variable(value) or not NAME.fullmatch(value)):
        return quote(value)
    return str(value)


def quote(text: str) -> str:
    r"""Return text in double quotes, as a program reads it back.

    >>> print(quote('say "yes"'))
    "say \"yes\""
    """
    return json.dumps(text, ensure_ascii=False)
