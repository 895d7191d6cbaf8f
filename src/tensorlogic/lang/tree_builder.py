"""The parts of the syntax tree, built while the grammar recognises them: expressions, indices and places."""

from __future__ import annotations

from math import isinf
from typing import Any, NoReturn

from ..diagnostics import SourceLocation
from ..errors import nearest
from .format import is_variable, text_of
from .syntax import (
    Arithmetic,
    Call,
    Comparison,
    Constant,
    Expression,
    Index,
    ListLiteral,
    Negative,
    Not,
    Number,
    Operation,
    Part,
    Place,
    Product,
    Range,
    Tensor,
    Text,
    Variable,
)
from .syntax_errors import FOREIGN
from .tokens import FUNCTIONS, MAX_PLACES, Token, unquoted


class Refused(Exception):  # noqa: N818 - it becomes a FormatError where the text is known
    """A form that the grammar allows but the language does not."""

    def __init__(self, at: SourceLocation | None, code: str, message: str, *hints: str) -> None:
        super().__init__(message)
        self.at, self.code, self.message, self.hints = at or SourceLocation(), code, message, hints


MAX_FACTORS = 200  # of one product


def refuse(part: Part | Token, code: str, message: str, *hints: str) -> NoReturn:
    """Refuse a part of a program where it stands."""
    raise Refused(part.at, code, message, *hints)


class Tree:
    """One method for each form of the grammar, called with its parts: tokens, and what the methods returned."""

    @staticmethod
    def start(parts: list[Any]) -> list[Any]:
        return parts

    @staticmethod
    def first(parts: list[Any]) -> list[Any]:
        return parts

    @staticmethod
    def more(parts: list[Any]) -> list[Any]:
        items: list[Any] = parts[0]
        items.append(parts[2])
        return items

    @staticmethod
    def adjacent(parts: list[Any]) -> list[Any]:
        items: list[Any] = parts[0]
        for part in (items[-1], parts[1]):
            if isinstance(part, Variable) and part.name in FOREIGN:
                code, hint = FOREIGN[part.name]
                refuse(part, code, f"{part.name!r} is not part of the language", hint)
        if isinstance(parts[1], ListLiteral):
            hint = "indices stand in one pair of brackets: X[i,j]; a product with a list is written with *"
            refuse(parts[1], "E648", "a list cannot follow a value", hint)
        if isinstance(items[-1], Text) or isinstance(parts[1], Text):
            hint = "write ',' between two places, and \\' or \\\" for a quote inside a string"
            refuse(parts[1], "E642", "a string stands beside something else", hint)
        items.append(parts[1])
        return items

    @staticmethod
    def quotient(parts: list[Any]) -> list[Any]:
        chain, _, divisor = parts
        left = Tree.product([chain])
        return [Operation("/", left, divisor, at=left.at)]

    @staticmethod
    def product(parts: list[Any]) -> Any:
        factors: list[Any] = parts[0]
        if len(factors) > MAX_FACTORS:
            hint = "give parts of the product names of their own"
            refuse(
                factors[0],
                "E660",
                f"a product of {len(factors):,} factors is too long: up to {MAX_FACTORS} are read",
                hint,
            )
        return factors[0] if len(factors) == 1 else Product(tuple(factors), at=factors[0].at)

    @staticmethod
    def group(parts: list[Any]) -> Any:
        return parts[1]

    @staticmethod
    def operation(parts: list[Any]) -> Operation:
        left, sign, right = parts
        return Operation(sign.text, left, right, at=left.at)

    @staticmethod
    def negative(parts: list[Any]) -> Expression:
        sign, value = parts
        if isinstance(value, Number):
            return Number(-value.value, at=sign.at)
        return Negative(value, at=sign.at)

    @staticmethod
    def negative_number(parts: list[Any]) -> Expression:
        return Tree.negative([parts[0], Tree.number(parts[1:])])

    @staticmethod
    def comparison(parts: list[Any]) -> Comparison:
        left, sign, right = parts
        return Comparison(sign.text, left, right, at=left.at)

    @staticmethod
    def negation(parts: list[Any]) -> Not:
        sign, atom = parts
        if isinstance(atom, Tensor) and not atom.places:
            atom = Tensor(atom.name, (), True, at=atom.at)
        if not isinstance(atom, Tensor):
            hint = "a comparison is turned round: x != y, x >= y" if not isinstance(atom, Call) else ""
            refuse(atom, "E646", "'not' stands before an atom, such as not R(x)", *([hint] if hint else []))
        return Not(atom, at=sign.at)

    @staticmethod
    def number(parts: list[Token]) -> Number:
        token = parts[0]
        if token.text.isdigit():
            return Number(int(token.text), at=token.at)
        value = float(token.text)
        if isinf(value):
            refuse(token, "E650", "a number is larger than any float64", "the largest is about 1.8e308")
        return Number(value, at=token.at)

    @staticmethod
    def string(parts: list[Token]) -> Text:
        try:
            return Text(unquoted(parts[0].text), at=parts[0].at)
        except KeyError as unknown:
            hint = "write \\\\ for a backslash, and / in paths"
            refuse(parts[0], "E642", f"a string has an unknown escape: \\{unknown.args[0]}", hint)

    @staticmethod
    def name(parts: list[Token]) -> Variable | Tensor:
        token = parts[0]
        return Variable(token.text, at=token.at) if is_variable(token.text) else Tensor(token.text, at=token.at)

    @staticmethod
    def proposition(parts: list[Token]) -> Tensor:
        return Tensor(parts[0].text, (), True, at=parts[0].at)

    @staticmethod
    def tensor(parts: list[Any]) -> Tensor:
        name, bracket, places, _ = parts
        if len(places) > MAX_PLACES:
            message = f"{name.text} has {len(places)} places: at most {MAX_PLACES} are possible"
            refuse(name, "E651", message, "split it into several tensors that share an index")
        made = tuple(p if isinstance(p, Place) else Place(_index(p, name), at=p.at) for p in places)
        return Tensor(name.text, made, bracket.text == "(", at=name.at)

    @staticmethod
    def call(parts: list[Any]) -> Call:
        return Call(parts[0].text, tuple(parts[2]), at=parts[0].at)

    @staticmethod
    def place(parts: list[Any]) -> Any:
        virtual = isinstance(parts[0], Token)
        normalised = isinstance(parts[-1], Token)
        value = parts[1 if virtual else 0]
        if not virtual and not normalised:
            return value  # a place of a tensor whose name is known later
        index = _index(value, None)
        if normalised and not isinstance(index, Variable):
            refuse(value, "E648", f"only an index variable can be normalised, not {text_of(index)}", "write p. or p'.")
        if virtual and not isinstance(index, Variable | Arithmetic):
            refuse(value, "E648", f"only an index variable can be virtual, not {text_of(index)}", "write *t or *t+1")
        return Place(index, normalised, virtual, at=parts[0].at)

    @staticmethod
    def range(parts: list[Any]) -> Place:
        colon = next(n for n, p in enumerate(parts) if isinstance(p, Token))
        start = _index(parts[0], None) if colon else None
        stop = _index(parts[-1], None) if colon + 1 < len(parts) else None
        return Place(Range(start, stop, at=parts[0].at), at=parts[0].at)

    @staticmethod
    def list(parts: list[Any]) -> ListLiteral:
        values: list[Any] = parts[1]
        lengths = {len(v.values) if isinstance(v, ListLiteral) else -1 for v in values}
        if len(lengths) > 1:
            first = values[0]
            odd = next(v for v in values if _length(v) != _length(first))
            message = f"a list has {_described(first)} first and {_described(odd)} here"
            refuse(odd, "E654", message, "the rows of a literal have equal lengths")
        return ListLiteral(tuple(values), at=parts[0].at)


def _length(value: ListLiteral | Number) -> int:
    return len(value.values) if isinstance(value, ListLiteral) else -1


def _described(value: ListLiteral | Number) -> str:
    return f"a row of {len(value.values)}" if isinstance(value, ListLiteral) else "a number"


def _index(value: Expression, tensor: Token | None) -> Index:
    """Return a value that stands in a place of a tensor as an index."""
    pending: list[Any] = [value]  # values to turn into indices, and operators to apply: nesting may be deep
    indices: list[Any] = []
    while pending:
        match part := pending.pop():
            case (str(), _):
                right, left = indices.pop(), indices.pop()
                indices.append(Arithmetic(part[0], left, right, at=part[1]))
            case Variable():
                indices.append(part)
            case Tensor(name=name, places=(), boolean=False):
                indices.append(Constant(name, at=part.at))
            case Number(value=int(number)):
                indices.append(Constant(number, at=part.at))
            case Text(value=text):
                indices.append(Constant(text, True, at=part.at))
            case Operation(operator="+" | "-" | "/" as sign, left=left, right=right):
                pending += [(sign, part.at), right, left]
            case Negative(value=negated):
                indices.append(Constant(0, at=part.at))
                pending += [("-", part.at), negated]
            case Product(factors=factors):
                for factor in reversed(factors[1:]):
                    pending += [("*", part.at), factor]
                pending.append(factors[0])
            case _:
                _refuse_index(part, tensor)
    found: Index = indices[0]
    return found


def _refuse_index(part: Part, tensor: Token | None) -> NoReturn:
    of = f" of {tensor.text}" if tensor is not None else ""
    match part:
        case Number():
            hint = f'an index is a whole number; write "{text_of(part)}" for a name'
            refuse(part, "E648", f"a place{of} holds {text_of(part)}, which is no whole number", hint)
        case Operation(operator="^"):
            refuse(part, "E648", f"a place{of} holds a power", "indices are combined with + - * /")
        case ListLiteral():
            refuse(part, "E648", f"a place{of} holds a list", "a range of an index is written 4:8")
    hint = "a place holds an index: a variable, a constant, x+1 or 4:8"
    if tensor is not None and tensor.type == "RELATION":
        hint += f"; for a product write {tensor.text} * (...)"
    shown = _shortened(text_of(part))
    if tensor is not None and tensor.type == "RELATION":
        close = nearest(tensor.text, sorted(FUNCTIONS))[0]
        if is_variable(tensor.text) or tensor.text.lower() in FUNCTIONS:
            message = f"there is no function {tensor.text!r}, and a relation holds indices, not the value {shown}"
            refuse(part, "E648", message, close, hint)
    refuse(part, "E648", f"a place{of} holds a value: {shown}", hint)


def _shortened(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
