"""The parts of the syntax tree, built while the grammar recognises them: expressions, indices and places."""

from __future__ import annotations

from math import isinf
from typing import Any, NoReturn

from ..diagnostics import SourceLocation
from ..errors import nearest
from . import syntax as s
from .format import is_variable, shortened, text_of
from .syntax_errors import FOREIGN
from .tokens import FUNCTIONS, MAX_PLACES, Token, unquoted


class Refused(Exception):  # noqa: N818 - it becomes a FormatError where the text is known
    """A form that the grammar allows but the language does not."""

    def __init__(self, at: SourceLocation | None, code: str, message: str, *hints: str) -> None:
        super().__init__(message)
        self.at, self.code, self.message, self.hints = at or SourceLocation(), code, message, hints


_AGGREGATES = {"count": "count=", "sum": "=", "max": "max=", "min": "min=", "avg": "avg=", "mean": "avg="}
MAX_FACTORS = 200  # of one product


def refuse(part: s.Part | Token, code: str, message: str, *hints: str) -> NoReturn:
    """Refuse a part of a program where it stands."""
    raise Refused(part.at, code, message, *hints)


class Tree:
    """One method for each form of the grammar, called with its parts: tokens, and what the methods returned."""

    def first(self, parts: list[Any]) -> list[Any]:
        return parts

    start = first

    def more(self, parts: list[Any]) -> list[Any]:
        items: list[Any] = parts[0]
        items.append(parts[2])
        return items

    def adjacent(self, parts: list[Any]) -> list[Any]:
        items: list[Any] = parts[0]
        for part in (items[-1], parts[1]):
            if isinstance(part, s.Variable) and part.name in FOREIGN:
                code, hint = FOREIGN[part.name]
                refuse(part, code, f"{part.name!r} is not part of the language", hint)
        if isinstance(parts[1], s.ListLiteral):
            hint = "indices stand in one pair of brackets: X[i,j]; a product with a list is written with *"
            refuse(parts[1], "E648", "a list cannot follow a value", hint)
        if isinstance(items[-1], s.Text) or isinstance(parts[1], s.Text):
            hint = "write ',' between two places, and \\' or \\\" for a quote inside a string"
            refuse(parts[1], "E642", "a string stands beside something else", hint)
        items.append(parts[1])
        return items

    def quotient(self, parts: list[Any]) -> list[Any]:
        chain, _, divisor = parts
        left = self.product([chain])
        return [s.Operation("/", left, divisor, at=left.at)]

    def product(self, parts: list[Any]) -> Any:
        factors: list[Any] = parts[0]
        if len(factors) > MAX_FACTORS:
            message = f"a product of {len(factors):,} factors is too long: up to {MAX_FACTORS} are read"
            refuse(factors[0], "E660", message, "give parts of the product names of their own")
        return factors[0] if len(factors) == 1 else s.Product(tuple(factors), at=factors[0].at)

    def group(self, parts: list[Any]) -> Any:
        return parts[1]

    def operation(self, parts: list[Any]) -> s.Operation:
        left, sign, right = parts
        return s.Operation(sign.text, left, right, at=left.at)

    def negative(self, parts: list[Any]) -> s.Expression:
        sign, value = parts
        if isinstance(value, s.Number):
            return s.Number(-value.value, at=sign.at)
        return s.Negative(value, at=sign.at)

    def negative_number(self, parts: list[Any]) -> s.Expression:
        return self.negative([parts[0], self.number(parts[1:])])

    def comparison(self, parts: list[Any]) -> s.Comparison:
        left, sign, right = parts
        return s.Comparison(sign.text, left, right, at=left.at)

    def negation(self, parts: list[Any]) -> s.Not:
        sign, atom = parts
        if isinstance(atom, s.Tensor) and not atom.places:
            atom = s.Tensor(atom.name, (), True, at=atom.at)
        if not isinstance(atom, s.Tensor):
            hints = [] if isinstance(atom, s.Call) else ["a comparison is turned round: x != y, x >= y"]
            refuse(atom, "E646", "'not' stands before an atom, such as not R(x)", *hints)
        return s.Not(atom, at=sign.at)

    def number(self, parts: list[Token]) -> s.Number:
        token = parts[0]
        if token.text.isdigit():
            return s.Number(int(token.text), at=token.at)
        value = float(token.text)
        if isinf(value):
            refuse(token, "E650", "a number is larger than any float64", "the largest is about 1.8e308")
        return s.Number(value, at=token.at)

    def string(self, parts: list[Token]) -> s.Text:
        try:
            return s.Text(unquoted(parts[0].text), at=parts[0].at)
        except KeyError as unknown:
            if len(unknown.args[0]) > 1:
                message = f"a string has half of a surrogate pair, which is no text: \\{unknown.args[0]}"
                refuse(parts[0], "E231", message, "write the character itself")
            hint = "write \\\\ for a backslash, and / in paths"
            refuse(parts[0], "E642", f"a string has an unknown escape: \\{unknown.args[0]}", hint)

    def name(self, parts: list[Token]) -> s.Variable | s.Tensor:
        token = parts[0]
        return s.Variable(token.text, at=token.at) if is_variable(token.text) else s.Tensor(token.text, at=token.at)

    def proposition(self, parts: list[Token]) -> s.Tensor:
        return s.Tensor(parts[0].text, (), True, at=parts[0].at)

    def tensor(self, parts: list[Any]) -> s.Tensor:
        name, bracket, places, _ = parts
        if len(places) > MAX_PLACES:
            message = f"{name.text} has {len(places)} places: at most {MAX_PLACES} are possible"
            refuse(name, "E651", message, "split it into several tensors that share an index")
        indexed = tuple(p if isinstance(p, s.Place) else s.Place(_index(p, name), at=p.at) for p in places)
        return s.Tensor(name.text, indexed, bracket.text == "(", at=name.at)

    def call(self, parts: list[Any]) -> s.Call:
        return s.Call(parts[0].text, tuple(parts[2]), at=parts[0].at)

    def place(self, parts: list[Any]) -> Any:
        virtual = isinstance(parts[0], Token)
        normalised = isinstance(parts[-1], Token)
        value = parts[1 if virtual else 0]
        if not virtual and not normalised:
            return value  # a place of a tensor whose name is known later
        index = _index(value, None)
        if normalised and not isinstance(index, s.Variable):
            refuse(value, "E648", f"only an index variable can be normalised, not {text_of(index)}", "write p. or p'.")
        if virtual and not isinstance(index, s.Variable | s.Arithmetic):
            refuse(value, "E648", f"only an index variable can be virtual, not {text_of(index)}", "write *t or *t+1")
        return s.Place(index, normalised, virtual, at=parts[0].at)

    def range(self, parts: list[Any]) -> s.Place:
        colon = next(n for n, p in enumerate(parts) if isinstance(p, Token))
        start = _index(parts[0], None) if colon else None
        stop = _index(parts[-1], None) if colon + 1 < len(parts) else None
        return s.Place(s.Range(start, stop, at=parts[0].at), at=parts[0].at)

    def list(self, parts: list[Any]) -> s.ListLiteral:
        values: list[Any] = parts[1]
        first = _described(values[0])
        for value in values:
            if (here := _described(value)) != first:
                message = f"a list has {first} first and {here} here"
                refuse(value, "E654", message, "the rows of a literal have equal lengths")
        return s.ListLiteral(tuple(values), at=parts[0].at)


def _described(value: s.ListLiteral | s.Number) -> str:
    return f"a row of {len(value.values)}" if isinstance(value, s.ListLiteral) else "a number"


def _index(value: s.Expression, tensor: Token | None) -> s.Index:
    """Return a value that stands in a place of a tensor as an index."""
    pending: list[Any] = [value]  # values to turn into indices, and operators to apply: nesting may be deep
    indices: list[Any] = []
    while pending:
        match part := pending.pop():
            case (str(), _):
                right, left = indices.pop(), indices.pop()
                indices.append(s.Arithmetic(part[0], left, right, at=part[1]))
            case s.Variable():
                indices.append(part)
            case s.Tensor(name=name, places=(), boolean=False):
                indices.append(s.Constant(name, at=part.at))
            case s.Number(value=int(number)):
                indices.append(s.Constant(number, at=part.at))
            case s.Text(value=text):
                indices.append(s.Constant(text, True, at=part.at))
            case s.Operation(operator="+" | "-" | "/" as sign, left=left, right=right):
                pending += [(sign, part.at), right, left]
            case s.Negative(value=negated):
                indices.append(s.Constant(0, at=part.at))
                pending += [("-", part.at), negated]
            case s.Product(factors=factors):
                for factor in reversed(factors[1:]):
                    pending += [("*", part.at), factor]
                pending.append(factors[0])
            case _:
                _refuse_index(part, tensor)
    return indices[0]  # type: ignore[no-any-return]


def _refuse_index(part: s.Part, tensor: Token | None) -> NoReturn:
    of = f" of {tensor.text}" if tensor is not None else ""
    match part:
        case s.Number():
            hint = f'an index is a whole number; write "{text_of(part)}" for a name'
            refuse(part, "E648", f"a place{of} holds {text_of(part)}, which is no whole number", hint)
        case s.Operation(operator="^"):
            refuse(part, "E648", f"a place{of} holds a power", "indices are combined with + - * /")
        case s.ListLiteral():
            refuse(part, "E648", f"a place{of} holds a list", "a range of an index is written 4:8")
        case s.Call(function=name, arguments=(value,)) if tensor is not None and name in _AGGREGATES:
            shown = text_of(value)
            body = f"P(x, {shown})" + ("" if name == "count" else f" {shown}")
            hint = f"it is an equation, with the other places in brackets: {tensor.text}[x] {_AGGREGATES[name]} {body}"
            refuse(part, "E648", f"a place{of} holds an aggregate: {shortened(part)}", hint)
    hint = "a place holds an index: a variable, a constant, x+1 or 4:8"
    if tensor is not None and tensor.type == "RELATION":
        hint += f"; for a product write {tensor.text} * (...)"
    shown = shortened(part)
    if tensor is not None and tensor.type == "RELATION":
        close = nearest(tensor.text, sorted(FUNCTIONS))[0]
        if is_variable(tensor.text) or tensor.text.lower() in FUNCTIONS:
            message = f"there is no function {tensor.text!r}, and a relation holds indices, not the value {shown}"
            own = f'a function of your own is attached first: p = tl.Program().attach("{tensor.text}", f); p.add_rule(...)'
            refuse(part, "E648", message, close, own, hint)
    refuse(part, "E648", f"a place{of} holds a value: {shown}", hint)
