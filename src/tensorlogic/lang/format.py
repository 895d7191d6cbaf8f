"""Programs as text: their parts as they are written, and whole programs in the canonical layout."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeVar

from . import syntax as s
from .expr import NAME
from .tokens import FUNCTIONS, TL, Source, Token, is_name, plain_text, statements

# how tightly a part binds: what binds less than its place asks for stands in parentheses
_SUM, _TERM, _CHAIN, _FACTOR, _ATOM = range(1, 6)

_Piece = str | tuple[s.Part, int]
P = TypeVar("P")


def is_variable(name: str) -> bool:
    """Tell whether a name is that of an index variable: it begins with a lower-case letter or an underscore.

    >>> is_variable("x'"), is_variable("Alice")
    (True, False)
    """
    return name[:1].islower() or name[:1] == "_"


def text_of(part: s.Part) -> str:
    """Return a part of a program as it would be written in a program.

    >>> x, y = s.Place(s.Variable("x")), s.Place(s.Variable("y"))
    >>> text_of(s.Rule(s.Tensor("Child", (y, x), True), (s.Tensor("Parent", (x, y), True),)))
    'Child(y, x) <- Parent(x, y)'
    """
    return written(part, _pieces)


def written(part: P, pieces: Callable[[P, int], Sequence[str | tuple[P, int]]]) -> str:
    """Write something nested from left to right, however deep it is.

    ``pieces`` gives what a part consists of: text, and smaller parts with how tightly each of them must bind.
    """
    texts: list[str] = []
    pending: list[str | tuple[P, int]] = [(part, 0)]
    while pending:
        piece = pending.pop()
        if isinstance(piece, str):
            texts.append(piece)
        else:
            pending.extend(reversed(pieces(*piece)))
    return "".join(texts)


def _binds(part: s.Part) -> int:
    match part:
        case s.Operation(operator="+" | "-") | s.Arithmetic(operator="+" | "-"):
            return _SUM
        case s.Negative():
            return _TERM
        case s.Number(value=value) | s.Constant(value=value) if not isinstance(value, str) and str(value)[0] == "-":
            return _TERM
        case s.Product() | s.Operation(operator="/") | s.Arithmetic():
            return _CHAIN
        case s.Operation():
            return _FACTOR
        case s.Comparison() | s.Not():
            return 0
    return _ATOM


def _pieces(part: s.Part, least: int) -> list[_Piece]:
    """Return what a part is written as, from left to right: text, and smaller parts with how tightly they must bind."""
    if _binds(part) < least:
        return ["(", (part, 0), ")"]
    match part:
        case s.Variable(name=name):
            return [name]
        case s.Constant(value=value, quoted=quoted):
            return [quote(value) if quoted and isinstance(value, str) else constant(value)]
        case s.Number(value=number):
            return [repr(number)]
        case s.Text(value=text):
            return [quote(text)]
        case s.Place(index=index, normalised=normalised, virtual=virtual):
            return ["*" if virtual else "", (index, 0), "." if normalised else ""]
        case s.Arithmetic(operator=sign, left=left, right=right):
            tight = sign in "*/"
            return [(left, _CHAIN if tight else _SUM), sign, (right, _FACTOR if tight else _TERM)]
        case s.Range(start=start, stop=stop):
            return [(start, 0) if start else "", ":", (stop, 0) if stop else ""]
        case s.Tensor(name=name, places=places, boolean=boolean):
            if not places:
                return [f"{name}()" if boolean else name]
            opening, closing = "()" if boolean else "[]"
            return [name, opening, *_listed(places), closing]
        case s.ListLiteral(values=values):
            return ["[", *_listed(values), "]"]
        case s.Call(function=function, arguments=arguments):
            return [function, "(", *_listed(arguments), ")"]
        case s.Product():
            return _product(part)
        case s.Negative(value=negated):
            return ["-", (negated, _TERM)]
        case s.Operation(operator="^", left=left, right=right):
            bare = isinstance(right, s.Number)  # x^-3
            return [(left, _ATOM), "^", (right, 0 if bare else _FACTOR)]
        case s.Operation(operator=sign, left=left, right=right):
            tight = sign == "/"
            return [(left, _CHAIN if tight else _SUM), f" {sign} ", (right, _FACTOR if tight else _TERM)]
        case s.Not(atom=atom):
            return ["not ", (atom, 0)]
        case s.Comparison(operator=sign, left=left, right=right):
            return [(left, _SUM), f" {sign} ", (right, _SUM)]
    return _statement(part)


def _statement(part: s.Part) -> list[_Piece]:
    match part:
        case s.Facts():
            return ["\n".join(_facts(part))]
        case s.Rule(head=head, body=body):
            return [(head, 0), " <- ", *_listed(body)] if body else [(head, 0)]
        case s.Equation(head=head, operator=operator, value=value):
            return [(head, 0), f" {operator} ", (value, 0)]
        case s.Query(body=body):
            return [*_listed(body), "?"]
        case s.Read(head=head, path=path):
            return [(head, 0), " = ", quote(path)]
        case s.Write(path=path, value=value):
            return [quote(path), " = ", (value, 0)]
        case s.Module(statements=statements):
            scalars = {x.head.name for x in statements if isinstance(x, s.Equation) and not x.head.places}
            pieces: list[_Piece] = []
            for statement in statements:
                shown = "\n".join(_facts(statement, scalars)) if isinstance(statement, s.Facts) else text_of(statement)
                pieces += ["; " if shown.startswith("-") else "", shown, "\n"]  # no line goes on with a question
            return pieces
    return [repr(part)]


def _listed(parts: Iterable[s.Part]) -> list[_Piece]:
    pieces: list[_Piece] = []
    for part in parts:
        pieces += [", ", (part, 0)] if pieces else [(part, 0)]
    return pieces


def _product(product: s.Product) -> list[_Piece]:
    pieces: list[_Piece] = []
    for factor in product.factors:
        quotient = isinstance(factor, s.Operation) and factor.operator == "/"
        least = _CHAIN if quotient and not pieces else _FACTOR
        if pieces:  # a name before a parenthesis or bracket would be read as a relation or tensor
            plain = _binds(factor) >= least and not isinstance(_first(factor), s.Number | s.ListLiteral)
            pieces.append(" " if plain else " * ")
        pieces.append((factor, least))
    return pieces


def _first(factor: s.Part) -> s.Part:
    """Return the part that a factor begins with."""
    while isinstance(factor, s.Operation):
        if _binds(factor.left) < _ATOM:
            return s.ListLiteral(())  # begins with a bracket
        factor = factor.left
    return factor


def shortened(part: s.Part) -> str:
    """Return the beginning of a part as text, for an error."""
    text = text_of(part)
    return text if len(text) <= 60 else text[:57] + "..."


def _facts(facts: s.Facts, quoted: Collection[str] = ()) -> Iterable[str]:
    for row in facts.rows():
        shown = (quote(value) if value in quoted and isinstance(value, str) else constant(value) for value in row)
        yield f"{facts.name}({', '.join(shown)})"


def constant(value: str | int) -> str:
    """Return a constant as it is written: a capitalised word bare, any other text in quotes.

    >>> constant("Bob"), constant("bob"), constant(3)
    ('Bob', '"bob"', '3')
    """
    if isinstance(value, str) and (is_variable(value) or not NAME.fullmatch(value) or not is_name(value)):
        return quote(value)
    return str(value)


def quote(text: str) -> str:
    r"""Return text in double quotes, as a program reads it back.

    >>> print(quote('say "yes"'))
    "say \"yes\""
    """
    return json.dumps(text, ensure_ascii=False)


def format_program(text: str, *, functions: Collection[str] = ()) -> str:
    r"""Return a program in the canonical layout: one statement a line, comments and line breaks where they stood.

    A program that cannot be read is refused as by ``parse``; what is returned reads as the same program.

    >>> print(format_program("P(x):-Q( x,y ),R(y)  # why\nY[i]=W[i,j]X[j];Z=Y[i]+1"), end="")
    P(x) <- Q(x, y), R(y)  # why
    Y[i] = W[i, j] X[j]
    Z = Y[i] + 1
    """
    from .grammar import parse  # it imports this module

    parse(text, functions=functions)
    source = Source(plain_text(text))
    page = _Page()
    position = 0
    for tokens in statements(source, TL, FUNCTIONS.union(functions), None):
        page.between(source.text[position : tokens[0].start])
        page.statement(source.text, tokens)
        position = tokens[-1].start + len(tokens[-1].text)
    page.between(source.text[position:] + "\n")
    return "".join(f"{line}\n" for line in page.lines)


_BINARY = frozenset("PLUS MINUS STAR SLASH".split())
_SPACED = frozenset("EQUAL COMPARE ARROW PROJECT".split())
_VALUE_ENDS = frozenset("NAME NUMBER STRING RPAR RSQB".split())


class _Page:
    """The lines of a program, and whether a blank line is due."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.blank = False

    def add(self, line: str) -> None:
        if self.blank and self.lines:
            self.lines.append("")
        self.blank = False
        self.lines.append(line)

    def between(self, gap: str) -> None:
        """Write what stands between statements: a comment behind the first of them, comments and blank lines."""
        behind, *below = gap.split("\n")
        self.comment(behind, "")
        for line in below[:-1]:
            if not line.strip(" \t;."):
                self.blank = True
            elif comment := _comment(line):
                self.add(comment)

    def comment(self, gap: str, indent: str) -> None:
        """Write the comment that stands behind a word, if there is one."""
        if not (comment := _comment(gap)):
            return
        if self.lines and not self.blank:
            self.lines[-1] += f"  {comment}"
        else:
            self.add(indent + comment)

    def statement(self, text: str, tokens: list[Token]) -> None:
        """Write a statement; it keeps its line breaks, and what follows one is indented."""
        tight = [False]  # in the places of tensors operators have no spaces around them
        written = "; " if tokens[0].type == "MINUS" else ""  # else the line above would go on here
        before: Token | None = None
        unary = True
        for token in tokens:
            if before is not None:
                gap = text[before.start + len(before.text) : token.start]
                if "\n" in gap:
                    self.add(written)
                    behind, *below = gap.split("\n")
                    self.comment(behind, "    ")
                    for comment in filter(None, map(_comment, below)):
                        self.add(f"    {comment}")
                    written = "    "
                elif _spaced(before, token, tight[-1], unary):
                    written += " "
            unary = before is None or before.type not in _VALUE_ENDS
            if token.type in ("LPAR", "LSQB") and before is not None and before.type in ("RELATION", "TENSOR"):
                tight.append(True)
            elif token.type in ("LPAR", "LSQB"):
                tight.append(tight[-1] and (before is None or before.type != "FUNCTION"))
            elif token.type in ("RPAR", "RSQB"):
                tight.pop()
            written += "<-" if token.type == "ARROW" else token.text
            before = token
        self.add(written)


def _comment(gap: str) -> str:
    """Return the comment in what stands between two words of a line, or nothing."""
    return gap.strip().lstrip(" \t;.").rstrip()


def _spaced(before: Token, token: Token, tight: bool, unary: bool) -> bool:
    """Tell whether a space stands between two words; ``unary`` tells whether an operator before it has no left side."""
    left, right = before.type, token.type
    if right in ("RPAR", "RSQB", "COMMA", "QUESTION", "DOT", "COLON", "CARET"):
        return False
    if left in ("LPAR", "LSQB", "COLON", "CARET", "RELATION", "TENSOR", "FUNCTION"):
        return False
    if left in ("COMMA", "NOT") or left in _SPACED or right in _SPACED:
        return True
    if left in _BINARY:
        return not unary and not tight
    return not (right in _BINARY and tight)
