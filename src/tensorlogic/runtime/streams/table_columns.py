"""Columns of tables as arrays by input.

An input of one axis is the column of its name. An input of two axes is a column of lists, the columns ``x_0``, ``x_1``, ... of an input
``x``, or all columns where it is the only input that is streamed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ...errors import FormatError, InputError, ShapeError, nearest
from ...lang.data_files import arrow_module
from .blocks import Block, Buffers, Wanted

Columns = dict[str, list[str]]  # by input
TILE = 2048  # rows that a few columns are put together for at once, so that they stay in the cache
MANY = 12  # columns from which they are first put side by side, as rows of a block, which is then turned
BLOCK = 1 << 17  # cells of such a block
APART = 16  # elements between two rows of it: in steps of a power of two they would have the same place in the cache
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
            number_them = f"the columns of {name!r} are numbered from 0, without a gap: {name}_0, {name}_1, ..."
            hints = hints if hints[0].startswith("did you") else [number_them]
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


def turning_bytes(columns: Columns) -> int:
    """Return the bytes that many columns take on their way into the rows of a matrix."""
    most = max(map(len, columns.values()))
    return 8 * (BLOCK + APART * most) if most >= MANY else 0


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
            hint = f"give names as numbers: numbers, names = pandas.factorize(frame[{name!r}])"
            raise FormatError(f"column {name!r} holds {kind}, and no numbers or truth values", hint, code="E538")
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


def written_columns(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return the columns that an output of one or two axes is written as: its name, or ``y_0``, ``y_1``, ...

    >>> written_columns("y", (100,)), written_columns("y", (100, 2))
    (['y'], ['y_0', 'y_1'])
    """
    return [name] if len(shape) == 1 else [f"{name}_{n}" for n in range(shape[1])]
