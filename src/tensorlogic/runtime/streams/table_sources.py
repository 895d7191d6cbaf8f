"""Tables as the source of a stream: Parquet and Arrow files, folders of them, and Arrow objects in memory.

Arrow reads a little at a time, and what it reads is copied into arrays that are used again; so what Arrow takes does not depend on
how large the chunks are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ...errors import FormatError, InputError, TensorLogicError
from ...lang.data_files import arrow_module
from .blocks import Block, Buffers, Wanted
from .source_fingerprints import file_mark
from .table_columns import Parts, batch_parts, batch_rows, columns_for, is_list, turning_bytes

BATCH = 1 << 20  # cells that Arrow is asked for at once: a quarter of them takes a seventh more time
READER = 2 / 3  # of the memory of a stream, what reading may take before Arrow is asked for fewer
FEWEST = 16  # times fewer cells, at most
LISTS = 1 << 15  # the same where some are in lists, for each of which it takes more memory
UNKNOWN = 32  # elements of a list that may have any number of them
Opened = tuple[Iterator[Any], int]  # batches, and the row that the first of them begins at
Opener = Callable[[int, int, list[str]], Opened]  # from a row, rows at once, columns


class Batches:
    """Rows that come as Arrow batches, from a function that opens them at a row."""

    copies = 0

    def __init__(
        self,
        opened: Opener,
        schema: Any,
        rows: int | None,
        wanted: Wanted,
        what: str,
        mark: str | None = None,
        *,
        rewinds: bool = True,
        held: Callable[[list[str], int], int] = lambda names, rows: 0,
    ) -> None:
        self.rows, self.what, self.wanted, self.mark = rows, what, wanted, mark
        self.rewinds = rewinds  # whether it can be opened a second time
        self.columns = columns_for(schema.names, wanted, what)
        self.schema, self._open, self._held = schema, opened, held
        self._batches: Iterator[Any] | None = None
        self._parts: dict[str, Parts] = {}  # of the batch that rows are taken from now
        self._at = self._place = self._stop = 0  # the row of the stream; that of the batch, and where it ends
        self._buffers, self._turned = Buffers(), Buffers()  # of chunks, and of columns on their way
        self._fewer = 1  # times fewer cells at once than there would be with memory enough

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [column for own in self.columns.values() for column in own]

    def reader_bytes(self, limit: int) -> int:
        """Return the bytes that reading takes, whatever the chunks are: those of Arrow, and of columns on their way into rows.

        Where they are most of the memory that the stream may have, Arrow is asked for fewer rows at a time from here on.
        """
        taken = self._held(self.names, self._rows_at_once()) + turning_bytes(self.columns)
        if taken <= READER * limit or self._fewer == FEWEST:
            return taken
        self._fewer *= 4
        return self.reader_bytes(limit)

    def _rows_at_once(self) -> int:
        """Return how many rows Arrow is asked for at a time."""
        kinds = [self.schema.field(column).type for column in self.names]
        cells = sum(getattr(kind, "list_size", UNKNOWN) if is_list(kind) else 1 for kind in kinds)
        return max(64, (LISTS if any(map(is_list, kinds)) else BATCH // self._fewer) // cells)

    def read(self, rows: int) -> Block | None:
        """Return the next rows: as many as are wanted, where there are so many left."""
        block: Block = {}
        there = 0
        try:
            while there < rows and self._more():
                count = min(rows - there, self._stop - self._place)
                for name, parts in self._parts.items():
                    if name not in block:
                        block[name] = self._buffers.array((rows, *parts.row_shape), parts.dtype)
                    into = self._fitting(block[name], parts, name)[there : there + count]
                    parts.copy(self._place, self._place + count, into, self._turned)
                there, self._place, self._at = there + count, self._place + count, self._at + count
        except TensorLogicError:
            raise
        except Exception as error:  # Arrow has kinds of its own, and they are no relatives
            if not _is_arrow(error):
                raise
            raise unreadable(self.what, error) from None
        return {name: array[:there] for name, array in block.items()} if there else None

    def _more(self) -> bool:
        """Go to the next batch where the one before is used up; False at the end."""
        skip = 0
        if self._batches is None:
            self._batches, begins = self._open(self._at, self._rows_at_once(), self.names)
            skip, self._place, self._stop = self._at - begins, 0, 0
        while self._place == self._stop:
            self._parts = {}
            batch = next(self._batches, None)
            if batch is None:
                return False
            self._place, self._stop = min(skip, batch.num_rows), batch.num_rows
            skip -= self._place
            if self._place < self._stop:
                self._parts = batch_parts(batch, self.columns, self.wanted, self._at - self._place)
        return True

    def _fitting(self, array: Any, parts: Parts, name: str) -> Any:
        """Refuse a batch whose rows are not like those before it."""
        if array.shape[1:] == parts.row_shape and array.dtype == parts.dtype:
            return array
        message = (
            f"{self.what}: near row {self._at:,} input {name!r} is {parts.dtype} of {list(parts.row_shape)} a row, "
        )
        message += f"but was {array.dtype} of {list(array.shape[1:])} before"
        raise InputError(message, "all rows have the same columns and types", code="E536")

    def empty(self) -> Block | None:
        """Return no rows, in the right shapes; None where only a row tells them."""
        pyarrow = arrow_module("pyarrow", "to read a table")
        kinds = {column: self.schema.field(column).type for column in self.names}
        if any(is_list(kind) and not hasattr(kind, "list_size") for kind in kinds.values()):
            return None
        batch = pyarrow.RecordBatch.from_arrays([pyarrow.array([], kind) for kind in kinds.values()], names=self.names)
        block = batch_rows(batch, self.columns, self.wanted)
        widths = {
            name: kinds[own[0]].list_size for name, own in self.columns.items() if hasattr(kinds[own[0]], "list_size")
        }
        return {name: value.reshape(0, widths[name]) if name in widths else value for name, value in block.items()}

    def seek(self, row: int) -> None:
        """Go to a row."""
        self._batches, self._parts, self._place, self._stop, self._at = None, {}, 0, 0, row

    def close(self) -> None:
        """Let go of the file."""
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()
        self._batches, self._parts, self._place, self._stop = None, {}, 0, 0

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
        if path.is_dir() or path.suffix.lower() == ".parquet":
            from .parquet_files import of_parquet

            return of_parquet(path, wanted, what)
        return _ipc(path, wanted, what)
    except TensorLogicError:
        raise
    except Exception as error:
        if not _is_arrow(error):
            raise
        raise unreadable(what, error) from None


def _ipc(path: Path, wanted: Wanted, what: str) -> Batches:
    pyarrow, ipc = arrow_module("pyarrow", f"to read {what}"), arrow_module("pyarrow.ipc", f"to read {what}")

    def reader() -> tuple[Any, Iterator[Any]]:
        file = pyarrow.OSFile(str(path))
        try:
            reader = ipc.open_file(file)
            return reader.schema, (reader.get_batch(n) for n in range(reader.num_record_batches))
        except pyarrow.ArrowInvalid:  # a stream has no footer
            file.seek(0)
            reader = ipc.open_stream(file)
            return reader.schema, iter(reader)

    def held(names: list[str], rows: int) -> int:
        first = next(reader()[1], None)
        return 0 if first is None else 2 * first.nbytes  # one is read while the last rows of another are there

    schema = reader()[0]
    return Batches(lambda row, rows, names: (reader()[1], 0), schema, None, wanted, what, file_mark(path), held=held)


def _largest_row_group(dataset: Any) -> int:
    """Return the bytes of the largest row group of a dataset of Parquet files, of which Arrow holds one and reads the next; 0 of others."""
    fragments = dataset.get_fragments()
    return max((g.total_byte_size for f in fragments for g in getattr(f, "row_groups", ())), default=0)


def of_arrow(given: Any, wanted: Wanted) -> Batches:
    """Return the rows of an Arrow table, batch, reader or dataset, or of anything that can be read as an Arrow stream."""
    pyarrow = arrow_module("pyarrow", "to read a table")
    if hasattr(given, "to_batches") and hasattr(given, "count_rows"):  # a dataset
        return Batches(
            lambda row, rows, names: (
                iter(given.to_batches(columns=names, batch_size=rows, batch_readahead=1, fragment_readahead=1)),
                0,
            ),
            given.schema,
            None,
            wanted,
            "the table",
            held=lambda names, rows: 3 * _largest_row_group(given),
        )
    if isinstance(given, pyarrow.RecordBatch):
        given = pyarrow.Table.from_batches([given])
    if isinstance(given, pyarrow.Table):
        table: Any = given
        return Batches(
            lambda row, rows, names: (iter(table.to_batches(max_chunksize=rows)), 0),
            given.schema,
            given.num_rows,
            wanted,
            "the table",
        )
    reader = given if isinstance(given, pyarrow.RecordBatchReader) else pyarrow.RecordBatchReader.from_stream(given)
    return Batches(lambda row, rows, names: (iter(reader), 0), reader.schema, None, wanted, "the table", rewinds=False)
