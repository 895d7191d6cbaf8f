"""Writes relations and tensors to files: CSV, TSV, Parquet, npy, npz and safetensors."""

from __future__ import annotations

import contextlib
import csv
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FormatError
from .data_files import ARRAYS, SEPARATED, arrow_module

WRITTEN = (".csv", ".tsv", ".parquet", *ARRAYS)


def write_table(path: str | os.PathLike[str], columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of names, and of values, as CSV or TSV without a header, or as Parquet with one."""
    file = Path(path)
    kind = file.suffix.lower()
    values = [c.tolist() if isinstance(c, np.ndarray) else list(c) for c in columns.values()]
    with _writing(file):
        if kind == ".parquet":
            pyarrow, parquet = (arrow_module(m, "to write Parquet") for m in ("pyarrow", "pyarrow.parquet"))
            parquet.write_table(pyarrow.table([pyarrow.array(one_kind(v)) for v in values], names=list(columns)), file)
            return
        with file.open("w", encoding="utf-8", newline="") as out:
            csv.writer(out, delimiter=SEPARATED[kind], lineterminator="\n").writerows(zip(*values, strict=True))


def one_kind(values: list[Any]) -> list[Any]:
    """Return names of one type: a column of text and numbers becomes text, as libraries want it."""
    return [str(v) for v in values] if len(set(map(type, values)) & {str, int}) == 2 else values


def write_array(path: str | os.PathLike[str], name: str, array: np.ndarray[Any, Any]) -> None:
    """Write an array as npy, npz or safetensors, under its name."""
    file = Path(path)
    array = np.ascontiguousarray(array) if array.ndim else np.asarray(array)
    with _writing(file):
        if file.suffix == ".npy":
            np.save(file, array, allow_pickle=False)
        elif file.suffix == ".npz":
            np.savez(file, allow_pickle=False, **{name: array})
        else:
            from safetensors import numpy as safetensors

            file.write_bytes(safetensors.save({name: array}))


def written_kind(path: str | os.PathLike[str]) -> str:
    """Return the kind of file that a path names, of those that can be written."""
    kind = Path(path).suffix.lower()
    if kind not in WRITTEN:
        hint = f"known are {', '.join(WRITTEN)}"
        raise FormatError(f"cannot tell from its name what kind of file {str(path)!r} is to be", hint, code="E771")
    return kind


@contextlib.contextmanager
def _writing(file: Path) -> Iterator[None]:
    """Say clearly that a file cannot be written."""
    try:
        yield
    except OSError as error:
        hint = "give a file in a folder that can be written"
        raise FormatError(f"cannot write {str(file)!r}: {error.strerror or error}", hint, code="E783") from None
