"""Reads files of facts and tensors: CSV, TSV, Parquet, npy, npz, safetensors and plain text."""

from __future__ import annotations

import csv
import itertools
import os
import stat
from collections.abc import Iterator, Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..diagnostics import SourceLocation
from ..errors import FormatError, InputError, nearest
from ..ir.files import files_beside
from ..ir.whole_files import mode_of
from ..tables import counted
from .data import Table, arrow_table, empty, of_columns, table_of, whole_numbers
from .domains import Column, Name, column_of

SEPARATED = {".csv": ",", ".tsv": "\t", ".facts": "\t"}
ARRAYS = (".npy", ".npz", ".safetensors")
READ = (*SEPARATED, ".parquet", *ARRAYS, ".txt")
SAMPLE = 100  # rows that are looked at to see whether the first one is a header


def read_table(
    path: str | os.PathLike[str],
    arity: int | None = None,
    *,
    header: bool | None = None,
    heads: Sequence[str] = (),
    name: str = "the table",
) -> Table:
    """Read the facts of a file.

    CSV and TSV: a cell that is written as a whole number is one, all others are text; a ``.csv`` file whose first line has tabs and no
    commas is separated by tabs. The first row is a header where ``header=True`` says so, where its cells are the ``heads`` (the
    variables of the place that reads the file), or where it has a word above a column of whole numbers; else it is a fact.
    Text files become position and word, separated by white space, or just the words where there is one place.
    """
    file = found_file(path, READ)
    kind = file.suffix.lower()
    if kind in SEPARATED:
        return _read_separated(file, SEPARATED[kind], header, heads, name)
    if kind == ".parquet":
        return arrow_table(_parquet(file, name), name)
    if kind in ARRAYS:
        return table_of(read_array(file, name), arity, name=name)
    words = _text(file).split()
    column = column_of(words)
    places = Column(np.arange(len(words), dtype=np.int64), None)
    return of_columns([column] if arity == 1 else [places, column])


def found_file(path: str | os.PathLike[str], kinds: Sequence[str]) -> Path:
    """Return a path that is a file of a known kind; say what is wrong where it is not."""
    file = Path(path)
    if file.suffix.lower() not in kinds:
        hints = [f"known are {', '.join(kinds)}"] + ([] if file.suffix else ["facts are given as tuples in a list"])
        raise FormatError(f"cannot tell from its name what kind of file {str(path)!r} is", *hints, code="E771")
    if not stat.S_ISREG(mode_of(file)):
        raise no_file(path)
    return file


def no_file(path: str | os.PathLike[str]) -> FormatError:
    """Return the error for a path that is no file."""
    file = Path(path)
    mode = mode_of(file)
    what = "is a folder" if stat.S_ISDIR(mode) else "is no regular file" if mode else "does not exist"
    hints = (
        ["the file comes first: query family.tl 'Ancestor(Alice, x)?'"]
        if file.name.endswith("?")
        else files_beside(file)
    )
    return FormatError(f"the file {str(path)!r} {what}", *hints, code="E770")


# CSV and TSV


def _read_separated(file: Path, separator: str, header: bool | None, heads: Sequence[str], name: str) -> Table:
    sample, separator = _sample(file, separator)
    if not sample:
        return Table((), 0) if not heads else empty(len(heads))
    skip = _has_header(sample, heads) if header is None else header
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError:
        return _slow_separated(file, separator, skip, name)
    quotes = _count_quotes(file)
    if quotes % 2:
        return _slow_separated(file, separator, skip, name)  # a quote that is never closed
    names = [str(n) for n in range(1, len(sample[0]) + 1)]
    try:
        table = pyarrow.csv.read_csv(
            file,
            read_options=pyarrow.csv.ReadOptions(column_names=names, skip_rows=int(skip), encoding="utf8"),
            parse_options=pyarrow.csv.ParseOptions(delimiter=separator, newlines_in_values=quotes > 0),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={n: pyarrow.dictionary(pyarrow.int32(), pyarrow.string()) for n in names},
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
            ),
        )
    except (pyarrow.ArrowInvalid, UnicodeDecodeError):
        return _slow_separated(file, separator, skip, name)  # finds the line that is wrong
    return arrow_table(table, name, digits=True)


def _sample(file: Path, separator: str) -> tuple[list[list[str]], str]:
    """Return the first rows of a file, and what separates their cells."""
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            first = list(itertools.islice(lines, SAMPLE))
    except UnicodeDecodeError:
        _bad_encoding(file)
    if separator == "," and first and "\t" in first[0] and "," not in first[0]:
        separator = "\t"
    try:
        return [row for row in csv.reader(first, delimiter=separator) if row], separator
    except csv.Error as error:  # a cell of more than 131,072 letters
        raise FormatError(f"the file {str(file)!r} cannot be read: {error}", code="E772") from None


def _has_header(sample: list[list[str]], heads: Sequence[str]) -> bool:
    first, rest = sample[0], sample[1:]
    if heads and [c.strip().casefold() for c in first] == [h.casefold() for h in heads]:
        return True
    if not rest:
        return False
    columns = [[row[n] for row in rest if n < len(row)] for n in range(len(first))]
    return any(
        (first[n].strip()[:1].isalpha() or first[n].strip()[:1] == "_")
        and cells
        and all(isinstance(v, int) for v in whole_numbers(cells))
        for n, cells in enumerate(columns)
    )


def _count_quotes(file: Path) -> int:
    count = 0
    with file.open("rb") as data:
        while block := data.read(1 << 24):
            count += block.count(b'"')
    return count


def _slow_separated(file: Path, separator: str, skip: bool, name: str) -> Table:
    """Read without Arrow, and say which line is wrong."""
    if not _count_quotes(file) and (table := _split(_text(file), separator, skip)) is not None:
        return table
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader = csv.reader(text, delimiter=separator, strict=True)
        try:
            rows = list(reader)
        except UnicodeDecodeError:
            _bad_encoding(file)
        except csv.Error as error:
            at = SourceLocation(str(file), reader.line_num)
            raise FormatError(f"{name}: this row cannot be read: {error}", code="E772", location=at) from None
    filled_rows = [row for row in rows if row]
    if not filled_rows:
        return Table((), 0)
    width = len(filled_rows[0])
    odd = next((row for row in filled_rows if len(row) != width), None)
    if odd is not None:
        line = next((n for n, row in _numbered_rows(file, separator) if row == odd), None)
        message = f"{name}: a row of {counted(len(odd), 'cell')}, where the first one has {width}"
        at = SourceLocation(str(file), line)
        raise FormatError(message, code="E772", location=at, source=separator.join(odd)[:200])
    columns = [_column(list(c)) for c in zip(*filled_rows[int(skip) :], strict=True)] or list(empty(width).columns)
    return Table(tuple(columns), len(filled_rows) - int(skip))


def _split(text: str, separator: str, skip: bool) -> Table | None:
    """Read rows without quotes by splitting the text once; None where their lengths differ."""
    lines = [line for line in text.splitlines() if line]
    widths = set(map(methodcaller("count", separator), lines))
    if len(widths) != 1:
        return None
    width = widths.pop() + 1
    cells = separator.join(lines[int(skip) :]).split(separator) if len(lines) > int(skip) else []
    columns = [_column(cells[n::width]) for n in range(width)]
    return Table(tuple(columns), len(lines) - int(skip))


def row_lines(path: str) -> list[int]:
    """Return the line at which each row of a CSV or TSV file begins; nothing for files of other kinds, or that are gone."""
    file = Path(path)
    known = file.suffix.lower() in SEPARATED and file.is_file()
    return [line for line, _ in _numbered_rows(file)] if known else []


def _numbered_rows(file: Path, separator: str = ",") -> Iterator[tuple[int, list[str]]]:
    """Go through the rows of a file that are not empty, each with the line at which it begins."""
    with file.open(encoding="utf-8-sig", newline="") as text:
        reader, start = csv.reader(text, delimiter=separator), 1
        for row in reader:
            if row:
                yield start, row
            start = reader.line_num + 1


def _column(cells: list[str]) -> Column:
    column = column_of(cells)
    names = whole_numbers([str(n) for n in column.names or ()])
    if names and all(isinstance(n, int) for n in names):
        return Column(np.array(names, np.int64)[column.codes], None)
    return Column(column.codes, names)


def _bad_encoding(file: Path) -> NoReturn:
    with file.open("rb") as data:
        for number, line in enumerate(data, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError as error:
                at = SourceLocation(str(file), number, error.start + 1)
                hint = "save the file as UTF-8"
                raise FormatError(f"{file.name!r} is not UTF-8 text", hint, code="E773", location=at) from None
    raise FormatError(f"{file.name!r} is not UTF-8 text", code="E773")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        _bad_encoding(file)


def _parquet(file: Path, name: str) -> Any:
    parquet = arrow_module("pyarrow.parquet", f"{name}: to read Parquet")
    try:
        return parquet.read_table(file)
    except (OSError, ValueError) as error:
        reason = str(error).split("\n")[0]
        raise FormatError(f"{file.name!r} is not a readable Parquet file: {reason}", code="E781") from None


def arrow_module(module: str, why: str) -> Any:
    """Import a part of Arrow, or say how to install it."""
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError:
        hint = 'pip install "tensorlogic-infer[data]"'
        raise FormatError(f"{why}, pyarrow must be installed", hint, code="E780") from None


# arrays


def read_array(path: str | os.PathLike[str], name: str = "the tensor") -> np.ndarray[Any, Any]:
    """Read the array of a file; of several in one file, the one of that name."""
    file = found_file(path, ARRAYS)
    try:
        if file.suffix == ".npy":
            return np.asarray(np.load(file, allow_pickle=False))
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as archive:
                return np.asarray(archive[_pick(list(archive), name, file)])
        from safetensors import safe_open

        with safe_open(str(file), framework="numpy") as tensors:
            return np.asarray(tensors.get_tensor(_pick(list(tensors.keys()), name, file)))
    except (InputError, FormatError):
        raise
    except Exception as error:  # each library has its own kinds
        reason = str(error).split("\n")[0]
        raise FormatError(f"{file.name!r} cannot be read: {reason}", code="E781") from None


def _pick(there: list[str], name: str, file: Path) -> str:
    if name in there:
        return name
    if len(there) == 1:
        return there[0]
    raise FormatError(f"{file.name!r} has no array {name!r}", *nearest(name, there), code="E782")


class NamedNumbers(NamedTuple):
    """The elements of a tensor that are given by name: what stands in each place, row by row, and the numbers."""

    rows: list[tuple[Name, ...]]
    values: list[float]


def read_tensor(
    path: str | os.PathLike[str], arity: int, name: str = "the tensor"
) -> np.ndarray[Any, Any] | NamedNumbers:
    """Read the numbers of a tensor: an array file, or CSV, TSV or Parquet with the indices and a value in each row.

    Indices are whole numbers from 0, or names. A table of two places whose columns are not two indices and a value is read as a
    matrix, one of one column as a vector.
    """
    if Path(path).suffix.lower() in ARRAYS:
        array = read_array(path, name)
        if array.ndim != arity:
            message = f"{name} has {counted(arity, 'place')}, but the array in {str(path)!r} has {array.ndim} axes"
            raise InputError(message, code="E778")
        return array
    file = found_file(path, READ)
    if file.suffix.lower() == ".parquet":
        found = _parquet(file, name)
        columns = [found.column(n) for n in range(found.num_columns)]
        named = [str(c.type) in ("string", "large_string") for c in columns]
        numbers: list[Any] = [
            column_of(c.to_pylist()) if text else _numeric(np.asarray(c), name, path)
            for c, text in zip(columns, named, strict=True)
        ]
    else:
        cells = read_table(path, name=name).columns
        named = [c.names is not None and not all(map(is_number, c.names)) for c in cells]
        numbers = [c if text else _as_floats(c) for c, text in zip(cells, named, strict=True)]
    if arity and len(numbers) == arity + 1 and not named[arity] and any(named):
        rows = zip(*(n.values() if isinstance(n, Column) else n.tolist() for n in numbers[:arity]), strict=True)
        return NamedNumbers(list(rows), np.asarray(numbers[arity], float).tolist())
    if any(named):
        place = arity if len(named) == arity + 1 and named[arity] else named.index(True)
        raise _no_number(file, place, numbers[place], name)
    whole = all(n.dtype.kind == "i" and (not n.size or n.min() >= 0) for n in numbers[:arity])
    if len(numbers) == arity + 1 and (whole or arity != 2):
        if not whole:
            raise InputError(f"{name}: the indices in {str(path)!r} must be whole numbers from 0", code="E778")
        shape = tuple(int(n.max()) + 1 if n.size else 0 for n in numbers[:arity])
        result = np.zeros(shape)
        np.add.at(result, tuple(numbers[:arity]), numbers[arity])
        return result
    if arity == 2:
        return np.stack(numbers, axis=1).astype(float)
    if arity == 1 and len(numbers) == 1:
        return np.asarray(numbers[0], float)
    message = f"{name} has {counted(arity, 'place')}, but {str(path)!r} has {counted(len(numbers), 'column')}"
    raise InputError(message, "give a column for each index and one for the value", code="E778")


def _numeric(values: np.ndarray[Any, Any], name: str, path: str | os.PathLike[str]) -> np.ndarray[Any, Any]:
    if values.dtype.kind not in "iuf":
        raise InputError(f"{name}: {str(path)!r} has a column of {values.dtype}, not of numbers", code="E772")
    return values.astype(np.int64) if values.dtype.kind == "u" else values


def is_number(cell: Name) -> bool:
    """Tell whether a cell of a table reads as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _as_floats(column: Column) -> np.ndarray[Any, Any]:
    return column.codes if column.names is None else np.array([float(v) for v in column.names])[column.codes]


def _no_number(file: Path, place: int, column: Column, name: str) -> InputError:
    """Return the error of a cell that is no number, with its line."""
    cell = next(n for n in column.names or () if not is_number(n))
    at = None
    if file.suffix.lower() in SEPARATED:
        rows = enumerate(_text(file).splitlines(), 1)
        at = next((SourceLocation(str(file), n) for n, line in rows if str(cell) in line), None)
    message = f"{name}: {str(cell)!r} in column {place + 1} of {file.name!r} is no number"
    hint = "names stand in the columns of the indices, and numbers in the last one"
    return InputError(message, hint, code="E772", location=at)
