"""Text as the source of a stream: the columns of CSV and TSV files, with a header or without one."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np

from ...diagnostics import SourceLocation
from ...errors import FormatError
from ...lang.data_files import is_number
from .blocks import Block, Wanted
from .source_fingerprints import file_mark
from .table_columns import EXACT, columns_for

LONGEST_LINE = 1 << 24  # characters of a row of text


class Lines:
    """The rows of a CSV or TSV file with a header, or without one where the first row has only numbers."""

    rows: int | None = None
    copies = 16  # a number as text is a Python object

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path, self.wanted = path, wanted
        self.separator = "\t" if path.suffix.lower() == ".tsv" else ","
        with self._opened() as file:
            first = self._line(file).rstrip("\r\n")
        cells = [cell.strip().strip('"') for cell in first.split(self.separator)] if first else []
        self.header = not all(map(is_number, cells))
        names = cells if self.header else [f"column {n}" for n in range(len(cells))]
        if not cells:
            raise FormatError(f"{path.name!r} has no line", code="E535")
        self._names = names
        self.columns = columns_for(names, wanted, repr(path.name))
        self._types = {
            column: _text_type(wanted.types[name].dtype) for name, own in self.columns.items() for column in own
        }
        self._declared = {c for name, own in self.columns.items() if wanted.types[name].dtype for c in own}
        self._places = [names.index(column) for column in self._types]
        self._cells = len(names)
        self._file: Any = None
        self._at = 0
        self._mark = file_mark(path)

    def _opened(self) -> Any:
        return self.path.open(encoding="utf-8-sig", newline="")

    def _line(self, file: Any) -> str:
        """Return the next line, of a length that a table may have: a file that is no table may be one line of any length."""
        try:
            line: str = file.readline(LONGEST_LINE)
        except UnicodeDecodeError as error:
            message = f"{self.path.name!r} is no text in UTF-8: {error.reason} at byte {error.start:,} of a piece"
            raise FormatError(message, "save it as UTF-8", code="E535") from None
        if len(line) >= LONGEST_LINE:
            message = f"{self.path.name!r} has a line of more than {LONGEST_LINE:,} characters"
            raise FormatError(message, "write a row on each line", code="E535")
        return line

    def read(self, rows: int) -> Block | None:
        """Return the next rows."""
        if self._file is None:
            self._file = self._opened()
            passed = self._at + self.header
            while passed and (line := self._line(self._file)):
                passed -= bool(line.strip())
        lines: list[str] = []
        while len(lines) < rows and (line := self._line(self._file)):
            if not line.strip():
                continue
            if line.count(self.separator) >= self._cells and '"' not in line:
                message = f"{self.path.name!r}: row {self._at + len(lines):,} has {line.count(self.separator) + 1} cells, and there are {self._cells} columns"
                raise FormatError(message, code="E538")
            lines.append(line)
        if not lines:
            return None
        form = np.dtype([(f"c{n}", dtype) for n, dtype in enumerate(self._types.values())])
        try:
            table = np.loadtxt(
                lines, dtype=form, delimiter=self.separator, usecols=self._places, quotechar='"', comments=None, ndmin=1
            )
        except ValueError as error:
            raise self._misread(error, lines) from None
        self._check_whole(table, lines)
        self._at += len(lines)
        return self._block(table)

    def _check_whole(self, table: Any, lines: list[str]) -> None:
        """Refuse a whole number that was rounded: without a declared dtype, columns are read as float64."""
        for n, (place, name) in enumerate(zip(self._places, self._types, strict=True)):
            if name in self._declared:
                continue
            for row in np.flatnonzero(np.abs(table[f"c{n}"]) >= EXACT):
                line = lines[row].rstrip("\r\n")
                cell = next(csv.reader([line], delimiter=self.separator))[place].strip()
                if re.fullmatch(r"[+-]?\d+", cell) and int(cell) != int(table[f"c{n}"][row]):
                    where = SourceLocation(str(self.path), self._line_number(self._at + int(row)))
                    message = f"column {name!r}: {cell} is a whole number that float64 does not have"
                    hint = "declare the dtype of the input, such as b.input(..., 'int64')"
                    raise FormatError(message, hint, location=where, source=line, code="E548")

    def _misread(self, error: ValueError, lines: list[str]) -> FormatError:
        """Return the error of a line that NumPy could not read, with its place in the file."""
        bad = re.search(r"string '(.*)' to \w+ at row (\d+), column (\d+)", str(error))
        short = re.search(r"at row (\d+) with (\d+) columns", str(error))  # rows from 1 here
        if bad is None and short is None:
            return FormatError(f"{self.path.name!r}: {str(error).splitlines()[0]}", code="E538")
        row = int(bad[2]) if bad else int(short[1]) - 1  # type: ignore[index]
        line = lines[row].rstrip("\r\n")
        where = SourceLocation(str(self.path), self._line_number(self._at + row))
        if bad is None:
            count = len(line.split(self.separator))
            message = f"{self.path.name!r}: a row of {count} cells, where the first line has {len(self._names)}"
            return FormatError(message, location=where, source=line, code="E538")
        column = self._names[int(bad[3]) - 1]
        what = f"{bad[1]!r} is no number" if bad[1] else "a value is missing"
        hint = "write nan for a number that is not known, or leave the row out"
        return FormatError(f"column {column!r}: {what}", hint, location=where, source=line, code="E538")

    def _line_number(self, row: int) -> int:
        """Return the line of the file that a row stands on; empty lines are no rows."""
        left = row + self.header
        with self._opened() as file:
            for number, line in enumerate(file, 1):
                left -= bool(line.strip())
                if left < 0:
                    return number
        return number

    def _block(self, table: Any) -> Block:
        place = {column: f"c{n}" for n, column in enumerate(self._types)}
        block: Block = {}
        for name, own in self.columns.items():
            shape = self.wanted.types[name].shape
            one = len(own) == 1 and (shape is None or len(shape) == 1)
            values = table[place[own[0]]].copy() if one else np.stack([table[place[column]] for column in own], axis=1)
            block[name] = values.astype(bool) if self.wanted.types[name].dtype == "bool" else values
        return block

    def empty(self) -> Block:
        """Return no rows, in the right shapes."""
        return self._block(np.empty(0, [(f"c{n}", dtype) for n, dtype in enumerate(self._types.values())]))

    def seek(self, row: int) -> None:
        """Go to a row."""
        self.close()
        self._at = row

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def facts(self) -> dict[str, Any]:
        """Return what tells this source from another."""
        return {"columns": self.columns, "mark": self._mark}


def _text_type(declared: str | None) -> Any:
    return np.dtype("int8") if declared == "bool" else np.dtype(declared or "float64")
