"""Tables as the source of a stream: Parquet and Arrow files, folders of them, and Arrow objects in memory.

An input of one axis is the column of its name. An input of two axes is a column of lists, the columns ``x_0``, ``x_1``, ... of an input
``x``, or all columns where it is the only input that is streamed.

Arrow reads a little at a time, and what it reads is copied into arrays that are used again; so what Arrow takes does not depend on
how large the chunks are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...errors import FormatError, InputError, ShapeError, TensorLogicError, nearest
from ...lang.data_files import arrow_module
from .blocks import Block, Buffers, Wanted
from .source_fingerprints import file_mark

Columns = dict[str, list[str]]  # by input
TILE = 2048  # rows that a few columns are put together for at once, so that they stay in the cache
MANY = 12  # columns from which they are first put side by side, as rows of a block, which is then turned
BLOCK = 1 << 17  # cells of such a block
APART = 16  # elements between two rows of it: in steps of a power of two they would have the same place in the cache
BATCH = 1 << 18  # cells that Arrow is asked for at once
LISTS = 1 << 15  # the same where some are in lists, for each of which it takes more memory
UNKNOWN = 32  # elements of a list that may have any number of them
INDEXES = ("", "Unnamed: 0", "index")  # names that data frames give to a column of row numbers
EXACT = 1 << 53  # up to which float64 has every whole number


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
            continue
        if numbered:
            found[name] = [column for _, column in _unbroken(sorted(numbered), name, there, what)]
        elif len(wanted.names) == 1 and there and (shape is None or len(shape) == 2 or len(there) == 1):
            found[name] = list(there)
        else:
            raise InputError(f"{what} has no column for input {name!r}", *nearest(name, there), code="E534")
        width = shape[1] if shape is not None and len(shape) == 2 else None
        if isinstance(width, int) and width != len(found[name]) and (numbered or len(there) > 1):
            raise _other_width(name, width, found[name], there, what)
    return found


def _other_width(name: str, width: int, used: Sequence[str], there: Sequence[str], what: str) -> ShapeError:
    """Return the error of a table that has more or fewer columns for an input than it is wide, which names them."""
    shown = ", ".join(map(repr, used[:8])) + (", ..." if len(used) > 8 else "")
    message = f"input {name!r} does not fit: axis 1 must be {width}, but {what} has {len(used)} columns for it: {shown}"
    hints = [f"columns of {name!r} are named {name}_0 to {name}_{width - 1}; others are left out"]
    if len(used) == width + 1 and used[0] in INDEXES:
        hints.insert(
            0, "the first column looks like the index of a data frame: save it without, to_csv(path, index=False)"
        )
    if rest := [column for column in there if column not in used]:
        hints.insert(0, f"not used: {', '.join(map(repr, rest[:8]))}{', ...' if len(rest) > 8 else ''}")
    return ShapeError(message, *hints, code="E001")


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


class Parts(NamedTuple):
    """What a batch has for one input: an array, or the arrays of columns that become one matrix."""

    arrays: list[Any]
    one: bool
    dtype: Any

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of a row."""
        return self.arrays[0].shape[1:] if self.one else (len(self.arrays),)

    def copy(self, start: int, stop: int, target: Any, buffers: Buffers) -> None:
        """Copy a range of rows."""
        if self.one:
            target[...] = self.arrays[0][start:stop]
            return
        many = len(self.arrays) >= MANY
        rows = min(stop - start, max(1, BLOCK // len(self.arrays)) if many else TILE)
        block = buffers.array((len(self.arrays), rows + APART), self.dtype) if many else None
        for row in range(start, stop, max(1, rows)):
            end = min(stop, row + rows)
            tile = target[row - start : end - start]
            columns = tile.T if block is None else block[:, : end - row]
            for n, array in enumerate(self.arrays):
                columns[n] = array[row:end]
            if block is not None:
                tile[...] = columns.T


def batch_parts(batch: Any, columns: Columns, wanted: Wanted, start: int) -> dict[str, Parts]:
    """Return what an Arrow batch has for each input; ``start`` is the row of the stream that it begins at."""
    found: dict[str, Parts] = {}
    for name, own in columns.items():
        shape = wanted.types[name].shape
        arrays = [column_values(batch.column(column), column, start) for column in own]
        one = len(own) == 1 and (shape is None or len(shape) == 1 or arrays[0].ndim == 2)
        dtypes = {array.dtype for array in arrays}
        dtype = np.result_type(*dtypes)
        if len(dtypes) > 1 and dtype.kind == "f":
            for column, array in zip(own, arrays, strict=True):
                _refuse_rounding(array, column, start)
        found[name] = Parts(arrays, one, dtype)
    return found


def _refuse_rounding(array: Any, column: str, start: int) -> None:
    """Refuse whole numbers that float64 does not have, in a column that becomes part of a matrix of floats."""
    if array.dtype.kind in "iu" and array.dtype.itemsize == 8:
        beyond = np.flatnonzero((array > EXACT) | (array < -EXACT if array.dtype.kind == "i" else False))
        if len(beyond):
            message = (
                f"column {column!r} has {array[beyond[0]]} at row {start + beyond[0]:,}, which float64 may not have"
            )
            hint = "other columns of the same input are floats; give this one an input of its own"
            raise FormatError(message, hint, code="E548")


def batch_rows(batch: Any, columns: Columns, wanted: Wanted) -> Block:
    """Return the rows of an Arrow batch as arrays by input."""
    block: Block = {}
    for name, parts in batch_parts(batch, columns, wanted, 0).items():
        if parts.one:
            block[name] = parts.arrays[0]
            continue
        block[name] = np.empty((batch.num_rows, *parts.row_shape), parts.dtype)
        parts.copy(0, batch.num_rows, block[name], Buffers())
    return block


@cache
def _list_kinds() -> frozenset[int]:
    """Return the numbers that Arrow gives to types of lists."""
    lib = arrow_module("pyarrow.lib", "to read a table")
    return frozenset({lib.Type_LIST, lib.Type_LARGE_LIST, lib.Type_FIXED_SIZE_LIST})


def is_list(kind: Any) -> bool:
    """Tell whether a column of a type holds lists."""
    return kind.id in _list_kinds()


def column_values(column: Any, name: str, start: int = 0) -> Any:
    """Return a column of an Arrow table as an array, one of lists as a matrix; ``start`` is the row that it begins at."""
    if column.null_count:
        at = start + np.flatnonzero(np.asarray(column.is_null()))[0]
        hint = "fill it, or leave such rows out"
        raise FormatError(f"column {name!r} has no value at row {at:,}", hint, code="E538")
    kind = column.type
    if not is_list(kind):
        array = column.to_numpy(zero_copy_only=False)
        if array.dtype.kind not in "biuf":
            raise FormatError(f"column {name!r} holds {kind}, and no numbers or truth values", code="E538")
        return array
    if hasattr(column, "num_chunks"):
        flat = arrow_module("pyarrow", "to read a table").concat_arrays([c.flatten() for c in column.chunks])
    else:
        flat = column.flatten()
    width, rest = divmod(len(flat), max(1, len(column)))
    if rest or (len(column) and not hasattr(kind, "list_size") and not _even(column, width)):
        raise FormatError(f"column {name!r} has lists of different lengths near row {start:,}", code="E538")
    return column_values(flat, name, start).reshape(len(column), width)


def _even(column: Any, width: int) -> bool:
    compute = arrow_module("pyarrow.compute", "to read a table")
    return bool(compute.all(compute.equal(compute.list_value_length(column), width)).as_py())


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

    @property
    def names(self) -> list[str]:
        """The columns that are read."""
        return [column for own in self.columns.values() for column in own]

    @property
    def reader_bytes(self) -> int:
        """The bytes that reading takes, whatever the chunks are: those of Arrow, and of columns on their way into rows."""
        most = max(map(len, self.columns.values()))
        turned = 8 * (BLOCK + APART * most) if most >= MANY else 0
        return self._held(self.names, self._rows_at_once()) + turned

    def _rows_at_once(self) -> int:
        """Return how many rows Arrow is asked for at a time."""
        kinds = [self.schema.field(column).type for column in self.names]
        cells = sum(getattr(kind, "list_size", UNKNOWN) if is_list(kind) else 1 for kind in kinds)
        return max(64, (LISTS if any(map(is_list, kinds)) else BATCH) // cells)

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


def written_columns(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the columns that an output of one or two axes is written as: its name, or ``y_0``, ``y_1``, ...

    >>> written_columns("y", (100,)), written_columns("y", (100, 2))
    (['y'], ['y_0', 'y_1'])
    """
    return [name] if len(shape) == 1 else [f"{name}_{n}" for n in range(shape[1])]
