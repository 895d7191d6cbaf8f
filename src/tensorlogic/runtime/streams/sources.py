"""Where the rows of a stream come from: what a caller gives becomes a source (see array_sources, table_sources, text_sources).

A source is read like a file: ``read(rows)`` returns the next rows, or None at the end; ``seek(row)`` goes to a row.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError, TensorLogicError
from ...ir.files import no_file
from ...ir.types import plain_array
from ...ir.whole_files import mode_of
from .array_sources import Archive, Arrays, array_of
from .blocks import Block, Source, Wanted, empty_source, from_row, not_streamed, rows_of

TABLES = (".parquet", ".arrow", ".feather", ".ipc", ".arrows")
TEXT = (".csv", ".tsv")


def source_of(given: Any, wanted: Wanted) -> Source:
    """Return the source that a caller's value stands for: arrays by name, a path, a table, or an iterable of chunks."""
    if isinstance(given, str | os.PathLike):
        return _of_path(Path(given), wanted)
    if isinstance(given, Mapping):
        wanted.checked(given, "the source")
        for name in given:
            if name not in wanted.names:
                raise not_streamed(name, "the source", wanted.types)
        return Arrays({name: array_of(given[name], wanted, name) for name in wanted.names}, wanted)
    if isinstance(given, np.ndarray):
        return Arrays({wanted.only("an array"): array_of(given, wanted, wanted.names[0])}, wanted)
    if type(given).__module__.partition(".")[0] == "pyarrow" or hasattr(given, "__arrow_c_stream__"):
        from .table_sources import of_arrow

        return of_arrow(given, wanted)
    if hasattr(given, "__array__"):  # of another library
        return source_of(plain_array(given), wanted)
    if all(hasattr(given, name) for name in ("read", "seek", "close", "facts")):
        return given  # type: ignore[no-any-return]
    if not isinstance(given, Iterable):
        hint = "give arrays by name, a file, an Arrow table or dataset, or an iterable of chunks"
        if hasattr(given, "__aiter__"):
            hint = "an async iterable is read by async for result in executor.execute_stream_async(graph, source)"
        raise InputError(f"this cannot be streamed: {type(given).__name__}", hint, code="E534")
    return Chunks(given, wanted)


def _of_path(path: Path, wanted: Wanted) -> Source:
    kind = path.suffix.lower()
    if not mode_of(path):
        missing = no_file(path).diagnostic
        raise InputError(f"the source: {missing.message}", *missing.suggestions, code="E534")
    if kind == ".npy":
        name = wanted.only(path.name)
        return Arrays({name: array_of(path, wanted, name)}, wanted)
    if kind == ".npz":
        return Archive(path, wanted)
    if kind in TABLES or path.is_dir():
        from .table_sources import of_file

        return of_file(path, wanted)
    if kind in TEXT:
        from .text_sources import Lines

        return Lines(path, wanted)
    hint = f"known are .npy, .npz, {', '.join((*TEXT, *TABLES))}, and folders of Parquet files"
    raise InputError(f"cannot tell from its name how to read {str(path)!r}", hint, code="E534")


class Chunks:
    """An iterable of chunks: mappings from inputs to arrays, arrays where there is one input, or Arrow batches."""

    rows: int | None = None
    copies = 1

    def __init__(self, given: Iterable[Any], wanted: Wanted) -> None:
        self.wanted, self.given = wanted, given
        self._iterator: Iterator[Any] | None = None
        self._skip, self._read = 0, 0
        self._passed: Block | None = None  # no rows, in the shapes of those that are left out
        self._fresh = isinstance(given, Sequence)  # else an iterator may fill the same array again for its next chunk
        if isinstance(given, Sized) and len(given) == 0:
            raise empty_source()

    def read(self, rows: int) -> Block | None:
        """Return the next chunk, whatever its size."""
        while True:
            if self._iterator is None:
                self._iterator = iter(self.given)
            number = self._read
            try:
                item = next(self._iterator)
            except StopIteration:
                if self._skip:
                    raise self._shorter() from None
                found, self._passed = self._passed, None  # all rows are done: no row, in the right shapes
                return found
            except TensorLogicError:
                raise
            self._read += 1
            block = self._block(item, number)
            count = rows_of(block, self.wanted.axes, number)
            if not self._skip:
                self._passed = None
                return block
            self._passed = {n: from_row(v, self.wanted.axes[n], count) for n, v in block.items()}
            taken = min(count, self._skip)  # what a run that is resumed has read before
            self._skip -= taken
            if count > taken:
                self._passed = None
                return {n: from_row(v, self.wanted.axes[n], taken) for n, v in block.items()}

    def _shorter(self) -> InputError:
        message = f"the source ended {self._skip:,} rows before those that the run to be resumed has done"
        return InputError(message, "give the source that it had", code="E547")

    def _block(self, item: Any, number: int) -> Block:
        if type(item).__module__.partition(".")[0] == "pyarrow":
            from .table_columns import batch_rows, columns_for

            return batch_rows(item, columns_for(item.schema.names, self.wanted, f"chunk {number}"), self.wanted)
        if not isinstance(item, Mapping):
            item = {self.wanted.only(f"chunk {number}"): item}
        self.wanted.checked(item, f"chunk {number}")
        for name in item:
            if name not in self.wanted.names:
                raise not_streamed(name, f"chunk {number}", self.wanted.types)
        return {n: self._array(n, v) for n, v in item.items()}

    def _array(self, name: str, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return np.array(value, self.wanted.types[name].dtype)
        return value if self._fresh else value.copy()

    def seek(self, row: int) -> None:
        """Start from the beginning and skip the rows that are done."""
        self._iterator, self._skip, self._read = None, row, 0

    def close(self) -> None:
        """Close a generator."""
        close = getattr(self._iterator if self._iterator is not None else self.given, "close", None)
        if close is not None and hasattr(self.given, "__next__"):
            close()

    def facts(self) -> dict[str, Any]:
        """Return what tells this source from another: nothing is known."""
        return {}
