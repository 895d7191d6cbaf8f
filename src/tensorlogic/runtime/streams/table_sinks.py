"""Tables as the sink of a stream: a row of the stream is a row of a CSV or Parquet file, and a chunk is a row group.

An output of one axis is a column. One of two axes is a column of lists in Parquet, and the columns ``y_0``, ``y_1``, ... in CSV. Where no output
keeps the streamed index, the outputs of the whole stream are the only row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...ir.whole_files import FileCall, remove, to_disk
from ...lang.data_files import arrow_module
from .growing_files import Staging, State, Values, writing
from .table_columns import written_columns

LINES = 65536  # rows of text that are made at once


class _Table(ABC):
    """What tables have in common: which outputs they hold, and when they are complete."""

    def __init__(self, path: Path, outputs: tuple[str, ...], staged: bool, call: FileCall) -> None:
        self.path, self.outputs, self.call = path, outputs, call
        self.staging, self.staged = Staging(path, staged, call), staged
        self.names: list[str] = []
        self.rows = False  # whether outputs keep the streamed index
        self.started = False  # whether the head, or the schema, is written

    def begin(self, kept: Mapping[str, int], ranks: Mapping[str, int]) -> None:
        """Choose the outputs: those that keep the streamed index, else all, as one row."""
        self.names = [name for name in self.outputs if name in kept]
        self.rows = bool(self.names)
        self.names = self.names or list(self.outputs)
        for name in self.names:
            if kept.get(name, 0) != 0 or ranks[name] > 1 + self.rows:
                hint = f"write {self.path.stem}.npz instead, or transpose the output"
                raise InputError(
                    f"output {name!r} has {ranks[name]} axes, and is no column of a table", hint, code="E543"
                )

    def write(self, values: Values) -> None:
        """Append the rows of a chunk."""
        if self.rows:
            self.add({name: _columns(name, values[name]) for name in self.names})

    @abstractmethod
    def add(self, columns: dict[str, Any]) -> None:
        """Append rows."""

    def add_rest(self, final: Values, empty: Values) -> None:
        """Append what has not come with a chunk: the only row, or nothing but the head."""
        if not self.rows:
            self.add({name: _columns(name, np.asarray(final[name])[None]) for name in self.names})
        elif empty:
            self.add({name: _columns(name, empty[name]) for name in self.names})

    def state(self) -> State:
        """Return what is safely written."""
        return self.staging.state() | {"started": self.started}

    def restore(self, state: State, *, complete: bool) -> None:
        """Continue a file from a saved state."""
        self.staging.restore(state, complete=complete)
        self.started = bool(state["started"])

    def close(self) -> None:
        """Close the file."""
        self.staging.drop()


def _columns(name: str, value: Any) -> Any:
    array = np.asarray(value)
    if array.ndim == 2 and not array.shape[1]:
        hint = "write .npz instead"
        raise InputError(f"output {name!r} has rows of no numbers, which are no column of a table", hint, code="E543")
    return array


class Csv(_Table):
    """Columns of numbers as text, with a head; truth values are 1 and 0."""

    def __init__(self, path: Path, outputs: tuple[str, ...], staged: bool, call: FileCall) -> None:
        super().__init__(path, outputs, staged, call)
        self.separator = "\t" if path.suffix.lower() == ".tsv" else ","

    def add(self, columns: dict[str, Any]) -> None:
        """Append rows."""
        if not self.started:
            names = [column for name, value in columns.items() for column in written_columns(name, value.shape)]
            self.staging.append((self.separator.join(names) + "\n").encode())
            self.started = True
        count = len(next(iter(columns.values())))
        for start in range(0, count, LINES):
            texts: list[list[str]] = []
            for value in columns.values():
                own = value[start : start + LINES]
                own = own.astype(np.int8) if own.dtype == bool else own
                texts += [[str(v) for v in column] for column in ([own] if own.ndim == 1 else own.T)]
            lines = map(self.separator.join, zip(*texts, strict=True))
            self.staging.append(("\n".join(lines) + "\n").encode())

    def finish(self, final: Values, empty: Values) -> None:
        """Complete the file."""
        if not self.staging.published:
            self.add_rest(final, empty)
        self.staging.publish()


class Parquet(_Table):
    """Columns in Parquet; with checkpoints they are kept as Arrow batches, which can be cut back, and turned into Parquet at the end."""

    def __init__(self, path: Path, outputs: tuple[str, ...], staged: bool, call: FileCall) -> None:
        super().__init__(path, outputs, staged, call)
        self.arrow = arrow_module("pyarrow", f"to write {path.name!r}")
        self.parquet = arrow_module("pyarrow.parquet", f"to write {path.name!r}")
        self.writer: Any = None

    def add(self, columns: dict[str, Any]) -> None:
        """Append rows: a row group, or a batch."""
        batch = self.arrow.RecordBatch.from_arrays(
            [self._column(value) for value in columns.values()], names=list(columns)
        )
        if self.staged:
            if not self.started:
                self.staging.append(batch.schema.serialize())
            self.staging.append(batch.serialize())
        else:
            with writing(self.path):
                if self.writer is None:
                    self.writer = self.parquet.ParquetWriter(self.staging.part, batch.schema)
                self.writer.write_table(self.arrow.Table.from_batches([batch]), row_group_size=max(1, batch.num_rows))
        self.started = True

    def _column(self, value: Any) -> Any:
        flat = self.arrow.array(np.ascontiguousarray(value).reshape(-1))
        return flat if value.ndim == 1 else self.arrow.FixedSizeListArray.from_arrays(flat, value.shape[1])

    def finish(self, final: Values, empty: Values) -> None:
        """Complete the file."""
        if self.staging.published:
            return
        self.add_rest(final, empty)
        if not self.staged:
            with writing(self.path):
                self.writer.close()
                self.writer = None
                to_disk(self.staging.part, self.call)
                self.call("replace", (self.staging.part, self.path))
                to_disk(self.path.absolute().parent, self.call)
            self.staging.published = True
            return
        self.staging.safe_length()
        whole = self.path.with_name(self.path.name + ".whole.part")  # one name, so that a resumed run takes its place
        with writing(self.path):
            try:
                reader = self.arrow.ipc.open_stream(self.arrow.OSFile(str(self.staging.part)))
                with self.parquet.ParquetWriter(whole, reader.schema) as writer:
                    for batch in reader:
                        writer.write_table(
                            self.arrow.Table.from_batches([batch]), row_group_size=max(1, batch.num_rows)
                        )
                to_disk(whole, self.call)
                self.call("replace", (whole, self.path))
            finally:
                remove(whole)
            to_disk(self.path.absolute().parent, self.call)
        self.staging.close()
        remove(self.staging.part)
        self.staging.published = True

    def close(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        super().close()
