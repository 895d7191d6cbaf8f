"""The facts of a program as they were added: blocks of tuples, each with where it came from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..backends.sparse import SparseTensor
from ..diagnostics import SourceLocation
from ..lang.data import Table
from ..lang.declarations import GivenTensor, mentions
from ..lang.domains import Column, Name, column_of
from ..lang.syntax import Facts, Statement

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

    @classmethod
    def of(cls, table: Table, rows: Any) -> Block:
        """Return the block of a table that was given as rows, or as the path of a file."""
        return cls(table, SourceLocation(str(rows)) if isinstance(rows, str | os.PathLike) else None)

    @property
    def is_blank(self) -> bool:
        """Whether it has neither tuples nor places, so that it says only that there is such a relation."""
        return not self.table.count and not self.table.arity

    def without_tuples(self, tuples: SparseTensor, codes: Sequence[Any]) -> Block:
        """Return the block without some tuples, given the codes of its columns."""
        kept = ~tuples.holds(codes) if tuples.shape else np.zeros(self.table.count, bool)
        return self if kept.all() else self.rows(kept)

    def without_rows(self, rows: Iterable[Sequence[Name]]) -> Block:
        """Return the block without a few rows, given by name."""
        kept = np.ones(self.table.count, bool)
        for row in rows:
            places = zip(self.table.columns, row, strict=True)
            kept &= ~np.logical_and.reduce([c.codes == c.code(name) for c, name in places])
        return self if kept.all() else self.rows(kept)

    def rows(self, kept: Rows) -> Block:
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
        self.replace(name, [*self.blocks.get(name, ()), block])

    def replace(self, name: str, blocks: Sequence[Block]) -> None:
        """Keep other blocks for a relation; none: it is as if it had never had facts."""
        if blocks:
            self.blocks[name] = [b for b in blocks if not b.is_blank] or list(blocks[:1])
        else:
            self.blocks.pop(name, None)

    def arity(self, name: str) -> int | None:
        """Return the number of places of a relation's facts, None where they do not say."""
        found = self.blocks.get(name)
        return found[0].table.arity if found and not found[0].is_blank else None

    def count(self, name: str | None = None) -> int:
        """Return the number of tuples that were added, to one relation or to all."""
        names = self.blocks if name is None else [name]
        return sum(b.table.count for n in names for b in self.blocks.get(n, ()))

    def given(self, statements: Iterable[Statement]) -> dict[str, GivenTensor]:
        """Describe the facts that were added from Python for the analysis: their arity, and the elements that they name.

        A relation that was only said to be there has the places that statements give it.
        """
        blank = {n for n, blocks in self.blocks.items() if blocks[0].is_blank}
        if blank:
            blank &= {m.tensor.name for x in statements for m in mentions(x) if m.role != "whole"}
        found = {
            n: self._given([b.table for b in self.blocks[n] if not b.lines]) for n in self.blocks if n not in blank
        }
        return {name: given for name, given in found.items() if given is not None}

    def _given(self, tables: list[Table]) -> GivenTensor | None:
        if not tables:
            return None
        large = sum(t.count for t in tables) > LARGE
        names = partial(_names, [_sample(t) for t in tables] if large else tables)
        return GivenTensor((None,) * tables[0].arity, boolean=True, dtype="bool", elements=names)

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


def _names(tables: Iterable[Table], places: Sequence[int]) -> Iterator[Name]:
    """Go through the names in some places of tables, in the order in which they appear, row by row."""
    for table in tables:
        found = [_first_rows(table, place) for place in places]
        names = [name for own, _ in found for name in own]
        rows = np.concatenate([first * len(places) + k for k, (_, first) in enumerate(found)])
        yield from map(names.__getitem__, np.argsort(rows, kind="stable").tolist())


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
