"""Facts read many at a time: runs of lines that hold facts become columns, by regular expressions over the whole run."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import accumulate, takewhile
from operator import itemgetter, methodcaller
from typing import NamedTuple

from ..diagnostics import SourceLocation
from .format import is_variable, quote
from .syntax import Constant, Facts, Tensor
from .tokens import GOES_ON, MAX_PLACES, Source, is_name, unquoted

STRING = r'"(?:[^"\\\n]|\\.)*+"' + r"|'(?:[^'\\\n]|\\.)*+'"
INTEGER = r"-?[0-9]{1,18}+"
LONG = 1 << 12  # characters of lines that are written alike from which they are taken at once


class FactSyntax(NamedTuple):
    """How facts are written."""

    fact: re.Pattern[str]  # what stands before it (blank lines, comments), its name and its places; or nothing
    # lines of one relation written alike: blank lines before, the indentation, the name, the end of each
    run: re.Pattern[str]
    constant: re.Pattern[str]
    goes_on: re.Pattern[str] | None  # what may follow a fact and makes it the beginning of something longer
    value: Callable[[str], str | int | None]  # the constant that a word stands for; None where it is no constant
    letters: tuple[str, str]  # words in this range stand for themselves


def fact_syntax(
    *,
    name: str,
    constant: str,
    comment: str,
    end: str,
    goes_on: str | None,
    value: Callable[[str], str | int | None],
    letters: tuple[str, str],
) -> FactSyntax:
    """Make the expressions from those of a relation's name, a constant, a comment and the end of a fact."""
    blank = r"[^\S\n]*+"
    places = rf"(?:{constant}){blank}(?:,{blank}(?:{constant}){blank})*+"
    row = rf"\({blank}{places}\)"
    return FactSyntax(
        re.compile(rf"((?>{blank}(?:{comment})?+\n)*+{blank})({name}){blank}\({blank}({places})\){blank}{end}|"),
        re.compile(rf"((?:{blank}\n)*+)({blank})({name}){row}({end})\n(?:\2\3{row}\4\n)*+"),
        re.compile(constant),
        re.compile(goes_on) if goes_on is not None else None,
        value,
        letters,
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
    return None if is_variable(raw) or not is_name(raw) else raw


TL_FACTS = fact_syntax(
    name=r"[^\W\d]\w*+'*+",
    constant=rf"[^\W\d_a-z]\w*+'*+|{INTEGER}|{STRING}",
    comment=r"(?:\#|//).*+",
    end=r"(?:[.;](?![0-9])|(?=\n|\#|//|\Z))",
    goes_on=GOES_ON,
    value=constant_of,
    letters=("A", "["),
)


class Block:
    """Facts of one relation that stand together, as they are written: they become ``Facts`` when all of a program is read."""

    __slots__ = ("at", "columns", "lines", "name")

    def __init__(self, name: str, arity: int, at: SourceLocation) -> None:
        self.name, self.at = name, at
        self.columns: list[list[str]] = [[] for _ in range(arity)]
        self.lines: list[int] = []

    def add(self, columns: Sequence[Iterable[str]], lines: Iterable[int]) -> None:
        """Add facts: the words of each place, and the line of each fact."""
        for column, words in zip(self.columns, columns, strict=True):
            column.extend(words)
        self.lines.extend(lines)

    def facts(self, values: Mapping[str, str | int]) -> Facts:
        """Return the facts, with the constants that the words stand for."""
        columns = tuple(tuple(map(values.__getitem__, column)) for column in self.columns)
        return Facts(self.name, columns, tuple(self.lines), at=self.at)


class _Values(dict[str, "str | int"]):
    """What the words of facts stand for, each worked out once."""

    def __init__(self, syntax: FactSyntax) -> None:
        self.syntax = syntax

    def __missing__(self, raw: str) -> str | int:
        found = self.syntax.value(raw)
        if found is None:
            raise KeyError(raw)
        self[raw] = found
        return found

    def learn(self, words: Iterable[str]) -> None:
        """Work out many words; KeyError where one is no constant."""
        words = set(words).difference(self)
        first, last = self.syntax.letters
        names = [word for word in words if first <= word < last and word.isascii()]
        numbers = [word for word in words if "0" <= word < ":"]
        self.update(zip(names, names, strict=True))
        self.update(zip(numbers, map(int, numbers), strict=True))
        if len(names) + len(numbers) < len(words):
            for word in words:
                self[word]


_Group = tuple[str, Sequence[int], list[list[str]]]  # a relation, which facts, and their columns
_newlines, _commas = methodcaller("count", "\n"), methodcaller("count", ",")


class FactReader:
    """Gathers the facts of a program: runs of lines at once, and single facts as the grammar reads them."""

    def __init__(self, source: Source, syntax: FactSyntax, reserved: Collection[str]) -> None:
        self.source, self.syntax, self.reserved = source, syntax, {*reserved, "not"}
        self.values = _Values(syntax)
        self.gathered: dict[tuple[str, int], Block] = {}
        self.refused = -1  # where a fact stands that the grammar must look at

    def take_run(self, position: int, line: int) -> tuple[int, int]:
        """Take the facts that begin here, as far as they reach; return the position and line after them."""
        text, syntax = self.source.text, self.syntax
        if position == self.refused:
            return position, line
        while (after := self._take_lines(position, line)) != (position, line):
            position, line = after
        matches = list(takewhile(itemgetter(2), syntax.fact.finditer(text, position)))
        if not matches:
            return position, line
        before, names, places = zip(*[m.groups() for m in matches], strict=True)
        lines = list(accumulate(map(_newlines, before), initial=line))[1:]
        groups = self._groups(names, places)
        end, count = matches[-1].end(), len(matches)
        if syntax.goes_on is not None and text[end - 1] not in ".;" and syntax.goes_on.match(text, end):
            count -= 1
        count = min(count, self._first_wrong(names, groups))
        if count < len(matches):
            end = self.refused = matches[count].start(2)
            groups = self._groups(names[:count], places[:count])
        for name, members, rows in groups:
            first = matches[members[0]].start(2)
            at = SourceLocation(self.source.file, lines[members[0]], first - text.rfind("\n", 0, first))
            block = self.gathered.setdefault((name, len(rows)), Block(name, len(rows), at))
            block.add(rows, [lines[n] for n in members])
        return end, lines[min(count, len(lines) - 1)]

    def _take_lines(self, position: int, line: int) -> tuple[int, int]:
        """Take many facts of one relation that are written alike, a line each; return the position and line after them."""
        text = self.source.text
        found = self.syntax.run.match(text, position)
        if found is None or found.end() - position < LONG:
            return position, line
        before, indent, name, end = found.groups()
        start, stop = found.start(3), found.end()
        stem = f"{name}("
        places = text[start + len(stem) : stop - len(end) - 2].split(f"){end}\n{indent}{stem}")
        if not end and self.syntax.goes_on is not None and self.syntax.goes_on.match(text, stop):
            stop -= len(f"{indent}{stem}{places.pop()})\n")  # the last one is the beginning of something longer
        groups = self._by_arity(name, range(len(places)), places)
        if self._first_wrong([name] * len(places), groups) < len(places):
            return position, line
        line += before.count("\n")
        at = SourceLocation(self.source.file, line, start - text.rfind("\n", 0, start))
        for _, members, rows in groups:
            block = self.gathered.setdefault((name, len(rows)), Block(name, len(rows), at.with_line(line + members[0])))
            block.add(rows, [line + n for n in members])
        return stop, line + len(places)

    def _groups(self, names: Sequence[str], places: Sequence[str]) -> list[_Group]:
        """Return the facts of each relation and arity: which they are, and the words of each place."""
        if len(set(names)) == 1:
            return self._by_arity(names[0], range(len(names)), places)
        members: dict[str, list[int]] = {}
        for n, name in enumerate(names):
            members.setdefault(name, []).append(n)
        groups = [g for name, chosen in members.items() for g in self._by_arity(name, chosen, places)]
        return sorted(groups, key=lambda group: group[1][0])  # by their first facts

    def _by_arity(self, name: str, members: Sequence[int], places: Sequence[str]) -> list[_Group]:
        chosen = places if len(members) == len(places) else [places[n] for n in members]
        joined = ",".join(chosen)
        if '"' not in joined and "'" not in joined:
            arities = set(map(_commas, chosen))
            if len(arities) == 1:
                words = "".join(joined.split()).split(",")
                arity = arities.pop() + 1
                return [(name, members, [words[n::arity] for n in range(arity)])]
        rows: dict[int, tuple[list[int], list[list[str]]]] = {}
        for n, row in zip(members, map(self.syntax.constant.findall, chosen), strict=True):
            group = rows.setdefault(len(row), ([], []))
            group[0].append(n)
            group[1].append(row)
        return [(name, which, [list(c) for c in zip(*found, strict=True)]) for which, found in rows.values()]

    def _first_wrong(self, names: Sequence[str], groups: list[_Group]) -> int:
        """Return which fact is the first that is none after all: that of a function, or one with a variable or too many places."""
        wrong = [members[0] for name, members, columns in groups if not self._relation(name, len(columns))]
        for _, members, columns in groups:
            for column in columns:
                try:
                    self.values.learn(column)
                except KeyError:
                    wrong.append(next(n for n, w in zip(members, column, strict=True) if self.syntax.value(w) is None))
        return min(wrong, default=len(names))

    def _relation(self, name: str, arity: int) -> bool:
        return name not in self.reserved and is_name(name) and arity <= MAX_PLACES

    def take_fact(self, fact: Tensor) -> None:
        """Take one fact whose places are constants."""
        where = fact.at or SourceLocation()
        row = [_word(p.index) for p in fact.places if isinstance(p.index, Constant)]
        block = self.gathered.setdefault((fact.name, len(row)), Block(fact.name, len(row), where))
        block.add([[word] for word in row], [where.line or 1])

    def blocks(self) -> Iterable[Block]:
        """Return the facts since the last call, those of one relation and arity together."""
        found, self.gathered = list(self.gathered.values()), {}
        return found


def _word(index: Constant) -> str:
    if isinstance(index.value, int):
        return str(index.value)
    return quote(index.value) if index.quoted else index.value
