"""What sources of a stream have in common: blocks of rows by input, what is wanted of them, and arrays to read into."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from ...diagnostics import value_text
from ...errors import InputError, nearest
from ...ir.types import TensorType

Block = dict[str, Any]  # by input, arrays with as many rows each
UNHELD = sys.getrefcount([object()][0]) + 1  # what the interpreter counts for something that only a list holds
BUFFERS = 8  # arrays to read into, at most, that are kept to be used again


class Source(Protocol):
    """What a stream reads: blocks of rows by input, one after the other.

    ``read`` is told how many rows are wanted, and may return fewer or more. ``rows`` is their number, where it is known;
    ``copies`` says how often more a block stands in memory while it is read.
    """

    rows: int | None
    copies: int

    def read(self, rows: int) -> Block | None: ...
    def seek(self, row: int) -> None: ...
    def close(self) -> None: ...
    def facts(self) -> dict[str, Any]: ...  # that tell one source from another, for checkpoints


class Wanted:
    """What a stream needs of a source: the inputs, the axis that is cut of each, and their declared types."""

    def __init__(self, axes: Mapping[str, int], types: Mapping[str, TensorType]) -> None:
        self.axes, self.types = dict(axes), dict(types)
        self.names = tuple(axes)

    def only(self, what: str) -> str:
        """Return the single input that is streamed, for sources that have no names."""
        if len(self.names) == 1:
            return self.names[0]
        hint = f"give them by name: {{{', '.join(f'{n!r}: ...' for n in self.names)}}}"
        raise InputError(
            f"{what} cannot say which input it is for: {', '.join(map(repr, self.names))} are streamed",
            hint,
            code="E534",
        )

    def checked(self, names: Iterable[str], what: str) -> None:
        """Refuse a source that lacks an input."""
        there = list(names)
        for name in self.names:
            if name not in there:
                raise InputError(f"{what} has nothing for input {name!r}", *nearest(name, there), code="E534")


def not_streamed(name: str, what: str, inputs: Iterable[str]) -> InputError:
    """Return the error of an array that is given for an input that is whole, or for none."""
    if name not in inputs:
        return InputError(
            f"{what} has {value_text(name)}, but the graph has no such input", *nearest(name, inputs), code="E534"
        )
    hint = f"give what is whole apart: inputs={{{value_text(name)}: array}}"
    return InputError(f"{what} has {value_text(name)}, which is no input that is streamed", hint, code="E534")


def empty_source() -> InputError:
    """Return the error of a stream without a single chunk."""
    hint = "a stream needs one chunk at least to know the shapes; an array of no rows will do"
    used = "a generator that was read before is used up: make a new one"
    return InputError("the source is empty: no chunk came from it", hint, used, code="E537")


def check_axes(value: Any, name: str, axis: int, prefix: str = "") -> None:
    """Refuse what has no rows: None, text, or a single number."""
    array = np.asarray(value)
    if array.ndim > axis:
        return
    if array.dtype.kind in "OUS":
        shown = repr(array.item()) if array.ndim == 0 else f"an array of {array.dtype}"
        message = f"{prefix}an array is expected for input {name!r}, got {shown}"
    else:
        message = f"{prefix}input {name!r} is streamed along axis {axis}, but has {array.ndim} axes"
    raise InputError(message, "chunks are arrays of rows, or mappings from inputs to such arrays", code="E536")


def rows_of(block: Block, axes: Mapping[str, int], number: int) -> int:
    """Return the rows of a block, which must be as many for every input."""
    counts = {}
    for name, axis in axes.items():
        check_axes(block[name], name, axis, f"chunk {number}: ")
        counts[name] = np.shape(block[name])[axis]
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{name!r} has {n:,}" for name, n in counts.items())
        raise InputError(f"chunk {number}: its inputs have as many rows each, but {lengths}", code="E536")
    return int(next(iter(counts.values())))


def from_row(value: Any, axis: int, start: int) -> Any:
    """Return what an array has from a row on."""
    return value[(slice(None),) * axis + (slice(start, None),)]


def same_rows(counts: Mapping[str, int]) -> int:
    """Return the rows of a source, which must have as many for every input."""
    if len(set(counts.values())) > 1:
        lengths = ", ".join(f"{name!r} has {n:,}" for name, n in counts.items())
        raise InputError(f"inputs that are streamed together have as many rows each: {lengths}", code="E536")
    return next(iter(counts.values()))


class Buffers:
    """Memory to read rows into, used again once nobody holds the array before: fresh pages cost as much as reading them full.

    >>> buffers = Buffers()
    >>> first = buffers.array((2, 3), np.dtype("float32"))
    >>> first is buffers.array((2, 3), np.dtype("float32"))
    False
    """

    def __init__(self) -> None:
        self._kept: list[Any] = []

    def array(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of any content, over bytes that nobody holds any more where there are such."""
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        for n in range(len(self._kept)):
            if len(self._kept[n]) >= size and sys.getrefcount(self._kept[n]) <= UNHELD:
                return self._kept[n][:size].view(dtype).reshape(shape)
        if len(self._kept) >= BUFFERS:
            self._kept.clear()
        self._kept.append(np.empty(size, np.uint8))
        return self._kept[-1][:].view(dtype).reshape(shape)
