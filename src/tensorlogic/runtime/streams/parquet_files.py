"""Parquet files, one or a folder of them, read row group by row group in the order of their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import FormatError, InputError
from ...lang.data_files import arrow_module
from .blocks import Wanted
from .source_fingerprints import file_mark
from .table_columns import is_list
from .table_sources import LISTS, Batches, Opened

FILE_BUFFER = 1 << 16  # bytes of each column that are read at once
SPARE = 1.25  # times what Arrow says it holds, which its allocator takes
OTHER = 2 << 20  # bytes beside that
LIST_BYTES = 256  # beside that, for an element of a list: measured with zstd and snappy


def of_parquet(path: Path, wanted: Wanted, what: str) -> Batches:
    """Return the rows of a Parquet file, or of all those in a folder."""
    parquet = arrow_module("pyarrow.parquet", f"to read {what}")
    files = [path]
    if path.is_dir():  # what begins so is no data: temporary files, and summaries that others write
        files = sorted(f for f in path.rglob("*.parquet") if not any(p[0] in "._" for p in f.relative_to(path).parts))
    if not files:
        raise InputError(f"the folder {what} has no Parquet files", "give a file, or another folder", code="E534")
    metadata = [parquet.read_metadata(file) for file in files]
    schema = parquet.read_schema(files[0])

    def open_file(file: Path) -> Any:
        return parquet.ParquetFile(file, buffer_size=FILE_BUFFER, pre_buffer=False)

    def opened(row: int, rows: int, names: list[str]) -> Opened:
        begin, groups = 0, list[tuple[int, int]]()
        for n, own in enumerate(metadata):
            for group in range(own.num_row_groups):
                count = own.row_group(group).num_rows
                if not groups and begin + count <= row:
                    begin += count
                else:
                    groups.append((n, group))
        return batches(groups, rows, names), begin

    def batches(groups: Sequence[tuple[int, int]], rows: int, names: list[str]) -> Iterator[Any]:
        for n in dict.fromkeys(n for n, _ in groups):
            with open_file(files[n]) as file:
                _check_columns(file.schema_arrow, names, files[n])
                chosen = [group for own, group in groups if own == n]  # on threads it would take more memory
                yield from file.iter_batches(rows, chosen, names, use_threads=False)

    def held(names: list[str], rows: int) -> int:
        """Return what Arrow says that it holds after the first rows of the largest row group: pages, dictionaries and the rows.

        It does not tell what it takes for the places of elements in lists.
        """
        sizes = [
            (own.row_group(g).total_byte_size, n, g)
            for n, own in enumerate(metadata)
            for g in range(own.num_row_groups)
        ]
        pool = arrow_module("pyarrow", f"to read {what}").default_memory_pool()
        before = pool.bytes_allocated()
        first = batches([max(sizes)[1:]] if sizes else [], rows, names)
        batch = next(first, None)
        taken = pool.bytes_allocated() - before + (0 if batch is None else batch.nbytes)
        first.close()  # type: ignore[attr-defined]
        lists = any(is_list(schema.field(name).type) for name in names)
        return int(SPARE * max(0, taken)) + OTHER + lists * LIST_BYTES * LISTS

    rows = sum(own.num_rows for own in metadata)
    return Batches(opened, schema, rows, wanted, what, file_mark(path), held=held)


def _check_columns(schema: Any, names: Sequence[str], file: Path) -> None:
    for name in names:
        if name not in schema.names:
            raise FormatError(
                f"{file.name!r} has no column {name!r}, which the first file of the folder has", code="E535"
            )
