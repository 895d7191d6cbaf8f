"""The facts of a program as they were added: blocks of tuples, each with where it came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import SourceLocation
from ..lang.data import Table
from ..lang.declarations import GivenTensor
from ..lang.domains import Column, Name, column_of
from ..lang.syntax import Facts

LARGE = 20_000  # facts of a relation from which the analysis is told of a few of them
Rows = np.ndarray[Any, Any]  # numbers of rows, or a truth value for each


class Block(NamedTuple):
    """Tuples that were added together; their lines where they stand in a program's text, or the file they came from."""

    table: Table
    at: SourceLocation | None = None
    lines: tuple[int, ...] = ()

    def location(self, row: int) -> SourceLocation | None:
        """Return where a tuple stands."""
        return self.at.with_line(self.lines[row]) if self.at is not None and row < len(self.lines) else self.at

    def without(self, kept: Rows) -> Block:
        """Return the block with some rows alone."""
        columns = tuple(Column(c.codes[kept], c.names) for c in self.table.columns)
        lines = tuple(np.asarray(self.lines)[kept].tolist()) if self.lines else ()
        return Block(Table(columns, int(np.count_nonzero(kept)) if kept.dtype == bool else len(kept)), self.at, lines)


def block_of(facts: Facts) -> Block:
    """Code the facts of a program's text."""
    columns = tuple(column_of(list(c)) for c in facts.columns)
    return Block(Table(columns, len(facts)), facts.at, facts.lines)


class FactStore:
    """The facts of every relation, in the order they were added."""

    def __init__(self) -> None:
        self.blocks: dict[str, list[Block]] = {}

    def add(self, name: str, block: Block) -> None:
        """Keep one more block."""
        self.blocks.setdefault(name, []).append(block)

    def arity(self, name: str) -> int | None:
        """Return the number of places of a relation's facts, None where it has none."""
        found = self.blocks.get(name)
        return found[0].table.arity if found else None

    def count(self, name: str | None = None) -> int:
        """Return the number of tuples that were added, to one relation or to all."""
        names = self.blocks if name is None else [name]
        return sum(b.table.count for n in names for b in self.blocks.get(n, ()))

    def given(self, name: str) -> GivenTensor | None:
        """Describe the facts that were added from Python for the analysis: their arity, and the elements that they name."""
        tables = [b.table for b in self.blocks[name] if not b.lines]
        if not tables:
            return None
        arity = tables[0].arity
        large = sum(t.count for t in tables) > LARGE
        elements = Elements([_sample(t) for t in tables] if large else tables)
        return GivenTensor((None,) * arity, boolean=True, dtype="bool", elements=elements)

    def samples(self) -> set[Name]:
        """Return the names that stand for those of large tables in what the analysis is told."""
        found: set[Name] = set()
        for blocks in self.blocks.values():
            tables = [b.table for b in blocks if not b.lines]
            if sum(t.count for t in tables) > LARGE:
                found.update(name for t in tables for c in _sample(t).columns for name in c.values())
        return found


def _sample(table: Table) -> Table:
    """Return a small table that says of a large one what kinds of names it has, and its least and greatest numbers."""
    columns = []
    for place, column in enumerate(table.columns):
        if column.names is None:
            whole = column.codes if table.sizes is None else np.arange(table.sizes[place])
            found: list[Name] = [int(whole.min()), int(whole.max())] if len(whole) else []
        else:
            numbers = [n for n in column.names if not isinstance(n, str)]
            words = [n for n in column.names[:1000] if isinstance(n, str)] or [
                n for n in column.names if isinstance(n, str)
            ]
            found = [*words[:1], *([min(numbers), max(numbers)] if numbers else [])]
        columns.append(found)
    length = max((len(c) for c in columns), default=0)
    filled = [c * length if len(c) == 1 else (c + c[-1:] * length)[:length] for c in columns]
    return Table(tuple(column_of(c[:length]) if c else column_of([]) for c in filled), length)


class Elements(tuple[Iterable[Name], ...]):
    """The names in each place of some tables, each at least once; gone through only where the analysis asks."""

    tables: list[Table]

    def __new__(cls, tables: list[Table]) -> Elements:
        """Make the elements of tables of one arity."""
        made = super().__new__(cls, (_Place(tables, n) for n in range(tables[0].arity)))
        made.tables = tables
        return made

    def joint(self, places: Sequence[int]) -> Iterator[Name]:
        """Go through the names in some places, in the order in which they appear, row by row."""
        for table in self.tables:
            rows: list[Name] = []
            firsts: list[np.ndarray[Any, Any]] = []
            for k, place in enumerate(places):
                names, first = _first_rows(table, place)
                rows += names
                firsts.append(first * len(places) + k)
            order = np.argsort(np.concatenate(firsts), kind="stable") if firsts else ()
            yield from (rows[n] for n in order)


class _Place(Iterable[Name]):
    def __init__(self, tables: list[Table], place: int) -> None:
        self.tables, self.place = tables, place

    def __iter__(self) -> Iterator[Name]:
        for table in self.tables:
            names, first = _first_rows(table, self.place)
            yield from (names[n] for n in np.argsort(first, kind="stable"))


def _first_rows(table: Table, place: int) -> tuple[list[Name], np.ndarray[Any, Any]]:
    """Return the names in a place of a table, and the row in which each first appears."""
    column = table.columns[place]
    if table.sizes is not None and column.names is None:  # an array: all positions of its axis
        return list(range(table.sizes[place])), np.arange(table.sizes[place])
    unique, first = np.unique(column.codes, return_index=True)
    if column.names is None:
        return unique.tolist(), first
    rows = np.full(len(column.names), len(column))  # a name that no row has comes last
    rows[unique] = first
    return list(column.names), rows
