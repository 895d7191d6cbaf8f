"""Tables as the source of a stream: Parquet and Arrow files, folders of them, Arrow objects in memory, CSV and TSV.

An input of one axis is the column of its name. An input of two axes is a column of lists, the columns ``x_0``, ``x_1``, ... of an input
``x``, or all columns where it is the only input that is streamed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...diagnostics import SourceLocation
from ...errors import FormatError, InputError, TensorLogicError, nearest
from ...lang.data_files import arrow_module
from .source_marks import file_mark
from .sources import Block, Wanted, _from

Columns = dict[str, list[str]]  # by input
LONGEST_LINE = 1 << 24  # characters of a row of text
TILE = 2048  # rows that columns are put together for at once
FILE_BUFFER = 1 << 16  # bytes of each column of a Parquet file that are read at once


def columns_for(there: Sequence[str], wanted: Wanted, what: str) -> Columns:
    """Return which columns each input is made of.

    >>> from tensorlogic import TensorType
    >>> columns_for(["x_1", "x_0", "y"], Wanted({"x": 0, "y": 0}, {"x": TensorType(None, None), "y": TensorType(None, None)}), "a table")
    {'x': ['x_0', 'x_1'], 'y': ['y']}
    """
    if len(set(there)) < len(there):
        twice = next(name for n, name in enumerate(there) if name in there[:n])
        raise FormatError(f"{what} has two columns {twice!r}", code="E535")
    found: Columns = {}
    for name in wanted.names:
        shape = wanted.types[name].shape
        if wanted.axes[name] != 0 or (shape is not None and not 1 <= len(shape) <= 2):
            message = (
                f"the rows of a table are axis 0 of an input with one or two axes; {name!r} is {wanted.types[name]}"
            )
            raise InputError(message, code="E536")
        numbered = [(int(m[1]), c) for c in there if (m := re.fullmatch(re.escape(name) + r"_(\d+)", c))]
        if name in there:
            found[name] = [name]
        elif numbered:
            found[name] = [column for _, column in _unbroken(sorted(numbered), name, there, what)]
        elif len(wanted.names) == 1 and there and (shape is None or len(shape) == 2 or len(there) == 1):
            found[name] = list(there)
        else:
            raise InputError(f"{what} has no column for input {name!r}", *nearest(name, there), code="E534")
    return found


def _unbroken(numbered: list[tuple[int, str]], name: str, there: Sequence[str], what: str) -> list[tuple[int, str]]:
    """Refuse columns with a gap in their numbers, which is a name typed wrongly: nothing says that a column is left out."""
    for number, (own, _) in enumerate(numbered):
        if own != number:
            missing = f"{name}_{number}"
            used = {column for _, column in numbered}
            hints = nearest(missing, [column for column in there if column not in used])
            message = f"{what} has columns for input {name!r} up to {numbered[-1][1]!r}, but no column {missing!r}"
            raise InputError(message, *hints, code="E534")
    return numbered


def batch_rows(batch: Any, columns: Columns, wanted: Wanted, start: int) -> Block:
    """Return the rows of an Arrow batch as arrays by input; ``start`` is the row of the stream that it begins at."""
    block: Block = {}
    for name, own in columns.items():
        shape = wanted.types[name].shape
        if len(own) == 1 and (shape is None or len(shape) == 1 or _is_list(batch.column(own[0]).type)):
            block[name] = column_values(batch.column(own[0]), own[0], start)
            continue
        parts = [column_values(batch.column(column), column, start) for column in own]
        dtype = np.result_type(*{part.dtype for part in parts})
        block[name] = array = np.empty((batch.num_rows, len(own)), dtype)
        for start_row in range(0, batch.num_rows, TILE):  # a few rows at a time, so that they stay in the cache
            tile = array[start_row : start_row + TILE]
            for n, part in enumerate(parts):
                tile[:, n] = part[start_row : start_row + TILE]
    return block


def _is_list(kind: Any) -> bool:
    types = arrow_module("pyarrow.types", "to read a table")
    return bool(types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind))


def column_values(column: Any, name: str, start: int = 0) -> Any:
    """Return a column of an Arrow table as an array, one of lists as a matrix; ``start`` is the row that it begins at."""
    if column.null_count:
        at = start + np.flatnonzero(np.asarray(column.is_null()))[0]
        hint = "fill it, or leave such rows out"
        raise FormatError(f"column {name!r} has no value at row {at:,}", hint, code="E538")
    kind = column.type
    if not _is_list(kind):
        array = column.to_numpy(zero_copy_only=False)
        if array.dtype.kind not in "biuf":
            raise FormatError(f"column {name!r} holds {kind}, and no numbers or truth values", code="E538")
        return array
    flat = column.flatten() if hasattr(column, "flatten") else column
    if hasattr(column, "num_chunks"):
        flat = arrow_module("pyarrow", "to read a table").concat_arrays([c.flatten() for c in column.chunks])
    width, rest = divmod(len(flat), max(1, len(column)))
    lengths = (
        {len(column[0])}
        if not arrow_module("pyarrow.types", "to read a table").is_fixed_size_list(kind) and len(column)
        else set()
    )
    if rest or (lengths and not _even(column, width)):
        raise FormatError(f"column {name!r} has lists of different lengths near row {start:,}", code="E538")
    return column_values(flat, name, start).reshape(len(column), width)


def _even(column: Any, width: int) -> bool:
    compute = arrow_module("pyarrow.compute", "to read a table")
    return bool(compute.all(compute.equal(compute.list_value_length(column), width)).as_py())


class Batches:
    """Rows that come as Arrow batches, from a function that opens them at a row."""

    reader_bytes = 32 << 20  # that Arrow and its allocator take, whatever is read: measured
    copies = 9  # measured: pages, decoded columns, and what the allocator of Arrow keeps

    def __init__(
        self,
        opened: Any,
        schema: Any,
        rows: int | None,
        wanted: Wanted,
        what: str,
        mark: str | None = None,
        *,
        rewinds: bool = True,
    ) -> None:
        self.rows, self.what, self.wanted, self.mark = rows, what, wanted, mark
        self.rewinds = rewinds  # whether it can be opened a second time
        self.columns = columns_for(schema.names, wanted, what)
        self.schema, self._open = schema, opened
        self._batches: Iterator[Any] | None = None
        self._at, self._skip = 0, 0

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [column for own in self.columns.values() for column in own]

    def read(self, rows: int) -> Block | None:
        """Return the next batch."""
        try:
            if self._batches is None:
                self._batches, begins = self._open(self._at, rows, self.names)
                self._skip, self._at = self._at - begins, begins
            while True:
                batch = next(self._batches, None)
                if batch is None:
                    return None
                start = self._at
                self._at += batch.num_rows
                if batch.num_rows > self._skip:
                    break
                self._skip -= batch.num_rows
            block = batch_rows(batch, self.columns, self.wanted, start)
        except TensorLogicError:
            raise
        except Exception as error:  # Arrow has kinds of its own, and they are no relatives
            if not _is_arrow(error):
                raise
            raise unreadable(self.what, error) from None
        if self._skip:
            block, self._skip = {n: _from(v, 0, self._skip) for n, v in block.items()}, 0
        return block

    def empty(self) -> Block | None:
        """Return no rows, in the right shapes; None where only a row tells them."""
        pyarrow = arrow_module("pyarrow", "to read a table")
        kinds = {column: self.schema.field(column).type for column in self.names}
        if any(_is_list(kind) and not hasattr(kind, "list_size") for kind in kinds.values()):
            return None
        batch = pyarrow.RecordBatch.from_arrays([pyarrow.array([], kind) for kind in kinds.values()], names=self.names)
        block = batch_rows(batch, self.columns, self.wanted, 0)
        widths = {
            name: kinds[own[0]].list_size for name, own in self.columns.items() if hasattr(kinds[own[0]], "list_size")
        }
        return {name: value.reshape(0, widths[name]) if name in widths else value for name, value in block.items()}

    def seek(self, row: int) -> None:
        """Go to a row."""
        self._batches, self._at, self._skip = None, row, 0

    def close(self) -> None:
        """Let go of the file."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches = None

    def facts(self) -> dict[str, Any]:
        """Return what tells this source from another."""
        return {
            "rows": self.rows,
            "columns": {n: [f"{c}: {self.schema.field(c).type}" for c in own] for n, own in self.columns.items()},
            "mark": self.mark,
        }


def _is_arrow(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] == "pyarrow" or isinstance(error, OSError | ValueError)


def unreadable(what: str, error: Exception) -> FormatError:
    """Return the error of a file that is not what its name says."""
    return FormatError(
        f"{what} cannot be read: {str(error).splitlines()[0] if str(error) else type(error).__name__}", code="E535"
    )


def of_file(path: Path, wanted: Wanted) -> Batches:
    """Return the rows of a Parquet or Arrow file, or of a folder of Parquet files."""
    what = repr(str(path) if path.is_dir() else path.name)
    try:
        if path.is_dir():
            if not any(path.rglob("*.parquet")):
                raise InputError(
                    f"the folder {what} has no Parquet files", "give a file, or another folder", code="E534"
                )
            found = of_arrow(arrow_module("pyarrow.dataset", f"to read {what}").dataset(path), wanted, what)
            found.mark = file_mark(path)
            return found
        if path.suffix.lower() == ".parquet":
            return _parquet(path, wanted, what)
        return _ipc(path, wanted, what)
    except TensorLogicError:
        raise
    except Exception as error:
        if not _is_arrow(error):
            raise
        raise unreadable(what, error) from None


def _parquet(path: Path, wanted: Wanted, what: str) -> Batches:
    parquet = arrow_module("pyarrow.parquet", f"to read {what}")

    def opened(row: int, rows: int, names: list[str]) -> tuple[Iterator[Any], int]:
        file = parquet.ParquetFile(path, buffer_size=FILE_BUFFER, pre_buffer=False)
        begin, first = 0, 0
        while first < file.num_row_groups and begin + file.metadata.row_group(first).num_rows <= row:
            begin += file.metadata.row_group(first).num_rows
            first += 1
        groups = list(range(first, file.num_row_groups))
        return file.iter_batches(batch_size=rows, row_groups=groups, columns=names), begin

    with parquet.ParquetFile(path) as file:
        return Batches(opened, file.schema_arrow, file.metadata.num_rows, wanted, what, file_mark(path))


def _ipc(path: Path, wanted: Wanted, what: str) -> Batches:
    pyarrow, ipc = arrow_module("pyarrow", f"to read {what}"), arrow_module("pyarrow.ipc", f"to read {what}")

    def reader() -> tuple[Any, Iterator[Any]]:
        file = pyarrow.OSFile(str(path))
        try:
            made = ipc.open_file(file)
            return made.schema, (made.get_batch(n) for n in range(made.num_record_batches))
        except pyarrow.ArrowInvalid:  # a stream has no footer
            file.seek(0)
            made = ipc.open_stream(file)
            return made.schema, iter(made)

    return Batches(lambda row, rows, names: (reader()[1], 0), reader()[0], None, wanted, what, file_mark(path))


def of_arrow(given: Any, wanted: Wanted, what: str = "the table") -> Batches:
    """Return the rows of an Arrow table, batch, reader or dataset, or of anything that can be read as an Arrow stream."""
    pyarrow = arrow_module("pyarrow", "to read a table")
    if hasattr(given, "to_batches") and hasattr(given, "count_rows"):  # a dataset
        return Batches(
            lambda row, rows, names: (iter(given.to_batches(columns=names, batch_size=rows, batch_readahead=1, fragment_readahead=1)), 0),
            given.schema, None, wanted, what,
        )  # fmt: skip
    if isinstance(given, pyarrow.RecordBatch):
        given = pyarrow.Table.from_batches([given])
    if isinstance(given, pyarrow.Table):
        table: Any = given
        return Batches(
            lambda row, rows, names: (iter(table.to_batches(max_chunksize=rows)), 0),
            given.schema,
            given.num_rows,
            wanted,
            what,
        )
    reader = given if isinstance(given, pyarrow.RecordBatchReader) else pyarrow.RecordBatchReader.from_stream(given)
    return Batches(lambda row, rows, names: (iter(reader), 0), reader.schema, None, wanted, what, rewinds=False)


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
        self.header = not all(_is_number(cell) for cell in cells)
        names = cells if self.header else [f"column {n}" for n in range(len(cells))]
        if not cells:
            raise FormatError(f"{path.name!r} has no line", code="E535")
        self._names = names
        self.columns = columns_for(names, wanted, repr(path.name))
        self._types = {
            column: _text_type(wanted.types[name].dtype) for name, own in self.columns.items() for column in own
        }
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
        self._at += len(lines)
        return self._block(table)

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


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _text_type(declared: str | None) -> Any:
    return np.dtype("int8") if declared == "bool" else np.dtype(declared or "float64")


def written_columns(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the columns that an output of one or two axes is written as: its name, or ``y_0``, ``y_1``, ...

    >>> written_columns("y", (100,)), written_columns("y", (100, 2))
    (['y'], ['y_0', 'y_1'])
    """
    return [name] if len(shape) == 1 else [f"{name}_{n}" for n in range(shape[1])]
