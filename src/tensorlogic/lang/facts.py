"""Facts read many at a time: runs of lines that hold facts become columns, by regular expressions over the whole run."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import chain
from typing import NamedTuple

from ..diagnostics import SourceLocation
from .format import is_variable, quote
from .syntax import Constant, Facts, Tensor
from .tokens import GOES_ON, MAX_PLACES, Source, unquoted

STRING = r'"(?:[^"\\\n]|\\.)*+"' + r"|'(?:[^'\\\n]|\\.)*+'"
INTEGER = r"-?[0-9]{1,18}+"


class FactSyntax(NamedTuple):
    """How facts are written."""

    run: re.Pattern[str]  # facts, blank lines and comments, as far as they reach
    fact: re.Pattern[str]  # one of them: its name and what stands in the parentheses; or a comment
    constant: re.Pattern[str]
    goes_on: re.Pattern[str] | None  # what may follow a run and makes its last fact the beginning of something longer
    value: Callable[[str], str | int | None]  # the constant that a word stands for; None where it is no constant


def fact_syntax(
    *, name: str, constant: str, comment: str, end: str, goes_on: str | None, value: Callable[[str], str | int | None]
) -> FactSyntax:
    """Make the expressions of whole runs from those of a relation's name, a constant, a comment and the end of a fact."""
    blank = r"[^\S\n]*+"
    places = rf"(?:{constant}){blank}(?:,{blank}(?:{constant}){blank})*+"
    return FactSyntax(
        re.compile(rf"(?>{blank}{name}{blank}\({blank}{places}\){blank}{end}|{blank}(?:{comment})?+\n)*+"),
        re.compile(rf"({name}){blank}\({blank}({places})\)|{comment}"),
        re.compile(constant),
        re.compile(goes_on) if goes_on is not None else None,
        value,
    )


def constant_of(raw: str) -> str | int | None:
    """Return the constant that a word of a fact stands for, or None where it is no constant.

    >>> constant_of("Bob"), constant_of('"bob"'), constant_of("7"), constant_of("bob")
    ('Bob', 'bob', 7, None)
    """
    if raw[0] in "\"'":
        try:
            return unquoted(raw)
        except KeyError:
            return None
    if raw[0] in "-0123456789":
        return int(raw)
    return None if is_variable(raw) else raw


TL_FACTS = fact_syntax(
    name=r"[^\W\d]\w*+'*+",
    constant=rf"[^\W\d_a-z]\w*+'*+|{INTEGER}|{STRING}",
    comment=r"(?:\#|//).*+",
    end=r"(?:[.;](?![0-9])|(?=\n|\#|//|\Z))",
    goes_on=GOES_ON,
    value=constant_of,
)


class Block:
    """Facts of one relation that stand together, as they are written: they become ``Facts`` when all of a program is read."""

    __slots__ = ("arity", "at", "lines", "name", "words")

    def __init__(self, name: str, arity: int, at: SourceLocation) -> None:
        self.name, self.arity, self.at = name, arity, at
        self.words: list[str] = []  # row by row
        self.lines: list[int] = []

    def facts(self, values: Mapping[str, str | int]) -> Facts:
        """Return the facts, with the constants that the words stand for."""
        found = list(map(values.__getitem__, self.words))
        columns = tuple(tuple(found[place :: self.arity]) for place in range(self.arity))
        return Facts(self.name, columns, tuple(self.lines), at=self.at)


class _Values(dict[str, "str | int"]):
    """What the words of facts stand for, each worked out once."""

    def __init__(self, value: Callable[[str], str | int | None]) -> None:
        self.value = value

    def __missing__(self, raw: str) -> str | int:
        found = self.value(raw)
        if found is None:
            raise KeyError(raw)
        self[raw] = found
        return found


class FactReader:
    """Gathers the facts of a program: runs of lines at once, and single facts as the grammar reads them."""

    def __init__(self, source: Source, syntax: FactSyntax, reserved: Collection[str]) -> None:
        self.source, self.syntax, self.reserved = source, syntax, reserved
        self.values = _Values(syntax.value)
        self.gathered: dict[tuple[str, int], Block] = {}
        self.refused = -1  # where a fact stands that the grammar must look at

    def take_run(self, position: int, line: int) -> tuple[int, int]:
        """Take the facts that begin here, as far as they reach; return the position and line after them."""
        text, syntax = self.source.text, self.syntax
        match = syntax.run.match(text, position) if position != self.refused else None
        if match is None or match.end() == position:
            return position, line
        end = match.end()
        facts = [m for m in syntax.fact.finditer(text, position, end) if m[1]]
        if (
            facts
            and syntax.goes_on is not None
            and syntax.goes_on.match(text, end)
            and not _END.match(text, facts[-1].end())
        ):
            end = facts.pop().start()
        names = [m[1] for m in facts]
        rows = self._rows([m[2] for m in facts])
        wrong = self._first_wrong(names, rows)
        if wrong is not None:
            end = self.refused = facts[wrong].start()
            del facts[wrong:], names[wrong:], rows[wrong:]
        self._add(names, rows, [m.start() for m in facts], position, line)
        return end, line + text.count("\n", position, end)

    def _rows(self, places: list[str]) -> list[list[str]]:
        """Return the words of each fact from what stands in its parentheses."""
        if any('"' in p or "'" in p for p in places):
            return list(map(self.syntax.constant.findall, places))
        return ["".join(p.split()).split(",") for p in places]

    def _first_wrong(self, names: list[str], rows: list[list[str]]) -> int | None:
        """Return which fact is the first that is not one after all, such as one of a function or with a variable."""
        values = self.values
        try:
            for word in set(chain.from_iterable(rows)):
                values[word]
        except KeyError:
            return next(n for n, row in enumerate(rows) if any(self.syntax.value(w) is None for w in row))
        bad = {name for name in set(names) if name in self.reserved or name == "not"}
        if bad or max(map(len, rows), default=0) > MAX_PLACES:
            return next(n for n, row in enumerate(rows) if names[n] in bad or len(row) > MAX_PLACES)
        return None

    def _add(self, names: list[str], rows: list[list[str]], starts: list[int], position: int, line: int) -> None:
        text, file = self.source.text, self.source.file
        count = text.count
        block, key = None, None
        for name, row, start in zip(names, rows, starts, strict=True):
            line += count("\n", position, start)
            position = start
            if (name, len(row)) != key:
                key = (name, len(row))
                block = self.gathered.get(key)
                if block is None:
                    column = start - text.rfind("\n", 0, start)
                    block = self.gathered[key] = Block(name, len(row), SourceLocation(file, line, column))
                words, lines = block.words, block.lines
            words += row
            lines.append(line)

    def take_fact(self, fact: Tensor) -> None:
        """Take one fact whose places are constants."""
        where = fact.at or SourceLocation()
        row = [_word(p.index) for p in fact.places if isinstance(p.index, Constant)]
        block = self.gathered.setdefault((fact.name, len(row)), Block(fact.name, len(row), where))
        block.words += row
        block.lines.append(where.line or 1)

    def blocks(self) -> Iterable[Block]:
        """Return the facts since the last call, those of one relation and arity together."""
        found, self.gathered = list(self.gathered.values()), {}
        return found


_END = re.compile(r"[^\S\n]*[.;]")


def _word(index: Constant) -> str:
    if isinstance(index.value, int):
        return str(index.value)
    return quote(index.value) if index.quoted else index.value
