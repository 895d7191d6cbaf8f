"""Tables in: tuples, arrays, data frames, Arrow tables and files become coded columns, without a loop over rows."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import msgspec
import numpy as np

from ..diagnostics import value_text
from ..errors import DTypeError, InputError
from ..tables import counted
from .domains import Column, column_of


class Table(msgspec.Struct, frozen=True, eq=False):
    """A relation's tuples by column; ``sizes`` where they came as the places of a dense or sparse array of that shape.

    >>> table_of([("Alice", "Bob"), ("Bob", "Carol")], 2).columns[0]
    Column(codes=array([0, 1]), names=['Alice', 'Bob'])
    >>> table_of(np.eye(2, dtype=bool), 2).sizes
    (2, 2)
    """

    columns: tuple[Column, ...]
    count: int
    sizes: tuple[int, ...] | None = None

    @property
    def arity(self) -> int:
        """The number of columns."""
        return len(self.columns)

    def rows(self) -> list[tuple[Any, ...]]:
        """Return the tuples by name."""
        return list(zip(*(c.values() for c in self.columns), strict=True)) if self.columns else [()] * self.count


def table_of(
    rows: Any,
    arity: int | None = None,
    *,
    header: bool | None = None,
    heads: Sequence[str] = (),
    name: str = "the table",
) -> Table:
    """Turn rows of any kind into a table.

    Taken are lists, sets and generators of tuples (of single names, where there is one place), NumPy arrays of text or whole
    numbers with a row for each tuple, NumPy arrays of truth values and scipy.sparse arrays (true places are tuples of positions),
    data frames and series of pandas and polars, Arrow tables, mappings of columns, and paths of files (:mod:`tensorlogic.lang.data_files`).
    """
    table = _table_of(rows, arity, header, heads, name)
    if arity is not None and not table.arity and not table.count:  # an empty file is an empty relation
        return Table(tuple(column_of([]) for _ in range(arity)), 0)
    if arity is not None and table.arity != arity:
        in_python = table.count and not isinstance(rows, str | os.PathLike)
        hints = ["give one tuple for each fact, in a list"] if in_python else []
        message = f"{name} has {counted(arity, 'place')}, but the table has {counted(table.arity, 'column')}"
        raise InputError(message, *hints, code="E778")
    return table


def _table_of(rows: Any, arity: int | None, header: bool | None, heads: Sequence[str], name: str) -> Table:
    if isinstance(rows, Table):
        return rows
    if isinstance(rows, str | os.PathLike):
        from .data_files import read_table

        return read_table(rows, arity, header=header, heads=heads, name=name)
    if isinstance(rows, np.ndarray):
        return _of_array(rows, arity, name)
    if hasattr(rows, "tocoo"):
        return _of_sparse(rows)
    if hasattr(rows, "collect") and hasattr(rows, "collect_schema"):  # a lazy frame of polars
        rows = rows.collect()
    if hasattr(rows, "to_list") and not hasattr(rows, "columns"):  # one column of pandas or polars
        return _of_rows(rows.to_list(), arity, name)
    if isinstance(getattr(rows, "columns", None), tuple) and hasattr(rows, "shape") and hasattr(rows, "count"):
        return Table(
            tuple(Column(np.asarray(c, np.int64), None) for c in rows.columns), int(rows.count), tuple(rows.shape)
        )
    if hasattr(rows, "words") and hasattr(rows, "shape"):  # packed bits
        return _of_array(np.asarray(rows), arity, name)
    if hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "column_names"):
        return _of_frame(rows, name)
    if isinstance(rows, Mapping):
        for key, column in rows.items():
            if isinstance(column, str | bytes) or not isinstance(column, Iterable):
                hint = "give a list of names for each column"
                raise InputError(f"{name}: column {key!r} is {value_text(column)}, no list", hint, code="E779")
        return of_columns([column_of(v, f"column {k!r} of {name}") for k, v in rows.items()], name)
    if hasattr(rows, "iloc"):
        return _of_pandas(rows, name)
    if hasattr(rows, "__array__") and not isinstance(rows, Sequence):
        return _of_array(np.asarray(rows), arity, name)
    if isinstance(rows, Iterable) and not isinstance(rows, bytes):
        return _of_rows(rows, arity, name)
    hint = "give tuples, an array, a data frame, an Arrow table or the path of a file"
    raise InputError(f"{name}: {type(rows).__name__} is no table", hint, code="E779")


def of_columns(columns: Sequence[Column], name: str = "the table") -> Table:
    """Make a table of columns of one length."""
    lengths = {len(c) for c in columns}
    if len(lengths) > 1:
        raise InputError(f"{name}: columns of different lengths: {sorted(lengths)}", code="E778")
    return Table(tuple(columns), lengths.pop() if lengths else 0)


def empty(arity: int) -> Table:
    """Return a table without tuples."""
    return Table((Column(np.empty(0, np.int64), None),) * arity, 0)


def _of_rows(rows: Iterable[Any], arity: int | None, name: str) -> Table:
    if isinstance(rows, set | frozenset):  # sets have no order that is the same in every process
        rows = sorted(rows, key=repr)
    rows = rows if isinstance(rows, list) else list(rows)
    if not rows:
        return empty(arity or 0)
    kinds = set(map(type, rows))
    if kinds <= {str, int, np.str_, np.int64, np.int32}:
        if arity is not None and arity != 1:
            row = tuple(rows) if len(rows) == arity else (rows[0],) * arity
            hint = f"put the tuple in a list: [{value_text(row)}]"
            raise InputError(
                f"{name} has {counted(arity, 'place')}, and {value_text(rows[0])} is no tuple", hint, code="E778"
            )
        return of_columns([column_of(rows, name)])
    if not all(issubclass(kind, list | tuple | np.ndarray) for kind in kinds):
        odd = next((n, r) for n, r in enumerate(rows, 1) if not isinstance(r, list | tuple | np.ndarray))
        if not any(issubclass(kind, list | tuple | np.ndarray) for kind in kinds):
            column_of(rows, name)  # says what is wrong with the names
        raise InputError(
            f"{name}: row {odd[0]:,} is no tuple: {value_text(odd[1])}", "give a list of tuples", code="E779"
        )
    lengths = set(map(len, rows))
    if len(lengths) > 1 or (arity is not None and lengths != {arity}):
        wanted = arity if arity is not None else len(rows[0])
        odd = next((n, r) for n, r in enumerate(rows, 1) if len(r) != wanted)
        message = f"{name} has {counted(wanted, 'place')}, but row {odd[0]:,} has {len(odd[1])}: {value_text(odd[1])}"
        raise InputError(message, code="E778")
    if lengths == {0}:
        return Table((), len(rows))
    width = lengths.pop()
    columns = [column_of(list(map(itemgetter(n), rows)), f"column {n + 1} of {name}") for n in range(width)]
    return Table(tuple(columns), len(rows))


def _of_array(array: np.ndarray[Any, Any], arity: int | None, name: str) -> Table:
    if hasattr(array, "mask"):  # naming numpy.ma would import it
        raise DTypeError(f"{name}: a masked array would lose its mask", "fill it: array.filled(0)", code="E410")
    if array.dtype == bool:
        if arity is not None and array.ndim != arity:
            message = f"{name} has {counted(arity, 'place')}, but the array of truth values has {array.ndim} axes"
            raise InputError(message, "an array of truth values has an axis for each place", code="E778")
        places = np.nonzero(array) if array.ndim else ()
        count = len(places[0]) if places else int(bool(array))
        return Table(tuple(Column(p.astype(np.int64), None) for p in places), count, array.shape)
    if array.dtype.names:  # a structured array
        fields = [column_of(array[f].ravel(), f"column {f!r} of {name}") for f in array.dtype.names]
        return of_columns(fields, name)
    if not array.size and array.ndim == 1:
        return empty(arity or 0)
    if array.dtype.kind not in "iuUSOT":
        hint = "an array of truth values (array > 0.5), or of names with a row for each tuple, makes facts"
        other = "numbers are bound to a tensor: program.bind(W=array)"
        raise InputError(f"{name}: an array of {array.dtype} holds no facts", hint, other, code="E779")
    if array.ndim == 1 and arity in (None, 1):
        return of_columns([column_of(array, name)])
    if array.ndim != 2:
        hint = "give an array with a row for each tuple and a column for each place"
        raise InputError(f"{name}: an array of {array.ndim} axes is no table", hint, code="E778")
    columns = tuple(column_of(array[:, n], f"column {n + 1} of {name}") for n in range(array.shape[1]))
    return Table(columns, len(array))


def _of_sparse(rows: Any) -> Table:
    found = rows.tocoo()
    nonzero = np.asarray(found.data) != 0
    places = getattr(found, "coords", None) or (found.row, found.col)
    columns = tuple(Column(np.asarray(p)[nonzero].astype(np.int64), None) for p in places)
    return Table(columns, int(nonzero.sum()), tuple(found.shape))


def _of_pandas(rows: Any, name: str) -> Table:
    return of_columns([column_of(s.to_numpy(), f"column {k!r} of {name}") for k, s in rows.items()], name)


def _of_frame(rows: Any, name: str) -> Table:
    """Read a data frame or an Arrow table: by Arrow where it is installed."""
    try:
        import pyarrow
    except ImportError:
        if hasattr(rows, "iloc"):
            return _of_pandas(rows, name)
        names = list(rows.columns) if hasattr(rows, "to_dict") else list(rows.column_names)
        return of_columns([column_of(rows[n].to_list(), f"column {n!r} of {name}") for n in names], name)
    if hasattr(rows, "iloc"):  # without the row labels of pandas
        table = pyarrow.Table.from_pandas(rows, preserve_index=False)
    else:
        table = rows if isinstance(rows, pyarrow.Table) else pyarrow.table(rows)
    return arrow_table(table, name)


def arrow_table(table: Any, name: str, *, digits: bool = False) -> Table:
    """Turn an Arrow table into coded columns; with ``digits``, text that is a whole number becomes one."""
    columns = [
        arrow_column(table.column(n), f"column {k!r} of {name}", digits) for n, k in enumerate(table.column_names)
    ]
    return Table(tuple(columns), table.num_rows)


def arrow_column(array: Any, where: str, digits: bool = False) -> Column:
    """Code one column of Arrow by its own dictionary encoding."""
    import pyarrow
    import pyarrow.compute

    if array.null_count:
        row = array.is_null().to_numpy(zero_copy_only=False).argmax() if hasattr(array, "chunks") else 0
        message = f"a value is missing in row {int(row) + 1:,} of {where}"
        raise InputError(message, "drop the rows that have no name", code="E774")
    kind = array.type
    if pyarrow.types.is_integer(kind):
        return column_of(array.to_numpy(), where)
    if not pyarrow.types.is_dictionary(kind):
        if not (pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or "view" in str(kind)):
            return column_of(array.to_pylist(), where)
        array = array.dictionary_encode()
    array = array.unify_dictionaries().combine_chunks() if hasattr(array, "chunks") else array
    if hasattr(array, "chunks"):
        array = (
            array.chunk(0)
            if array.num_chunks
            else pyarrow.DictionaryArray.from_arrays(pyarrow.array([], "int32"), pyarrow.array([], "string"))
        )
    codes = array.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    words = array.dictionary
    if pyarrow.types.is_integer(words.type):
        return Column(words.to_numpy(zero_copy_only=False).astype(np.int64)[codes], None)
    if digits and len(words) and (numbers := _arrow_numbers(words)) is not None:
        return Column(numbers[codes], None)
    names = words.to_pylist()
    if digits:
        names = whole_numbers(names)
    if not set(map(type, names)) <= {str, int}:
        column_of(names, where)  # says what is wrong with it
    return Column(codes, names)


def _arrow_numbers(words: Any) -> np.ndarray[Any, Any] | None:
    """Return words as whole numbers where all of them are written as ones, else None."""
    import pyarrow
    import pyarrow.compute as compute

    try:
        numbers = compute.cast(words, pyarrow.int64())
    except pyarrow.ArrowInvalid:
        return None
    return numbers.to_numpy() if numbers.cast(words.type).equals(words) else None


def whole_numbers(words: Sequence[str]) -> list[str | int]:
    """Turn the words that are written as whole numbers into numbers: "12" and "-3", but not "012" or "1.0".

    >>> whole_numbers(["12", "a", "007"])
    [12, 'a', '007']
    """
    return [int(w) if (w.isdecimal() or w[:1] == "-") and w.isascii() and _canonical(w) else w for w in words]


def _canonical(word: str) -> bool:
    digits = word.removeprefix("-")
    return digits.isdecimal() and len(digits) < 19 and (digits[0] != "0" or word == "0")
