"""Where the rows of a stream come from: arrays in memory or in files, iterables of chunks, and (see table_sources) tables.

A source is read like a file: ``read(rows)`` returns the next rows, or None at the end; ``seek(row)`` goes to a row.
"""

from __future__ import annotations

import math
import os
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from pathlib import Path
from tokenize import TokenError
from typing import Any, Protocol

import numpy as np

from ...errors import FormatError, InputError, TensorLogicError, nearest
from ...ir.files import no_file
from ...ir.types import TensorType
from .source_marks import array_mark

Block = dict[str, Any]  # by input, arrays with as many rows each
TABLES = (".parquet", ".arrow", ".feather", ".ipc", ".arrows")
TEXT = (".csv", ".tsv")
UNHELD = sys.getrefcount([object()][0]) + 1  # what the interpreter counts for something that only a list holds
HEAD_ERRORS = (
    ValueError,
    OSError,
    EOFError,
    TypeError,
    SyntaxError,
    TokenError,
    MemoryError,
    RecursionError,
)  # of NumPy's reader
PACK_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    NotImplementedError,
    RuntimeError,
)  # of damaged, unknown and encrypted members
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


def source_of(given: Any, wanted: Wanted) -> Source:
    """Return the source that a caller's value stands for: arrays by name, a path, a table, or an iterable of chunks."""
    if isinstance(given, str | os.PathLike):
        return _of_path(Path(given), wanted)
    if isinstance(given, Mapping):
        wanted.checked(given, "the source")
        for name in given:
            if name not in wanted.names:
                raise not_streamed(name, "the source", wanted.types)
        return Arrays({name: _array(given[name], wanted, name) for name in wanted.names}, wanted)
    if isinstance(given, np.ndarray):
        return Arrays({wanted.only("an array"): _array(given, wanted, wanted.names[0])}, wanted)
    if type(given).__module__.partition(".")[0] == "pyarrow" or hasattr(given, "__arrow_c_stream__"):
        from .table_sources import of_arrow

        return of_arrow(given, wanted)
    if all(hasattr(given, name) for name in ("read", "seek", "close", "facts")):
        return given  # type: ignore[no-any-return]
    if not isinstance(given, Iterable):
        hint = "give arrays by name, a file, an Arrow table or dataset, or an iterable of chunks"
        raise InputError(f"this cannot be streamed: {type(given).__name__}", hint, code="E534")
    return Chunks(given, wanted)


def not_streamed(name: str, what: str, inputs: Iterable[str]) -> InputError:
    """Return the error of an array that is given for an input that is whole, or for none."""
    if name not in inputs:
        return InputError(f"{what} has {name!r}, but the graph has no such input", *nearest(name, inputs), code="E534")
    hint = f"give what is whole apart: inputs={{{name!r}: array}}"
    return InputError(f"{what} has {name!r}, which is no input that is streamed", hint, code="E534")


def _of_path(path: Path, wanted: Wanted) -> Source:
    kind = path.suffix.lower()
    if not path.exists():
        missing = no_file(path).diagnostic
        raise InputError(f"the source: {missing.message}", *missing.suggestions, code="E534")
    if kind == ".npy":
        name = wanted.only(path.name)
        return Arrays({name: _array(path, wanted, name)}, wanted)
    if kind == ".npz":
        return Archive(path, wanted)
    if kind in TABLES or path.is_dir():
        from .table_sources import of_file

        return of_file(path, wanted)
    if kind in TEXT:
        from .table_sources import Lines

        return Lines(path, wanted)
    hint = f"known are .npy, .npz, {', '.join((*TEXT, *TABLES))}, and folders of Parquet files"
    raise InputError(f"cannot tell from its name how to read {str(path)!r}", hint, code="E534")


def _mapped(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)  # what np.load would take for a pickle
        with np.errstate(over="ignore"):  # a head may claim more elements than can be counted
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except HEAD_ERRORS as error:
        raise FormatError(f"{path.name!r} is no array that can be read: {error}", code="E535") from None


def _array(value: Any, wanted: Wanted, name: str) -> Any:
    if isinstance(value, str | os.PathLike) and Path(value).suffix.lower() == ".npy":
        array = _mapped(Path(value))
    else:
        array = value if isinstance(value, np.ndarray) else np.asarray(value, wanted.types[name].dtype)
    check_axes(array, name, wanted.axes[name])
    return array


class Arrays:
    """Arrays by name, cut as they are read: views of what is in memory; what is in a file is read from there.

    >>> wanted = Wanted({"x": 0}, {"x": TensorType(None, None)})
    >>> source = Arrays({"x": np.arange(5.0)}, wanted)
    >>> source.rows, source.read(3), source.read(3), source.read(3)
    (5, {'x': array([0., 1., 2.])}, {'x': array([3., 4.])}, None)
    """

    copies = 0

    def __init__(self, arrays: Mapping[str, Any], wanted: Wanted) -> None:
        self.axes = wanted.axes
        counts = {name: a.shape[wanted.axes[name]] for name, a in arrays.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name!r} has {n:,}" for name, n in counts.items())
            raise InputError(f"inputs that are streamed together have as many rows each: {told}", code="E536")
        self.rows: int | None = next(iter(counts.values()))
        self._at = 0
        self._marks: dict[str, str] | None = None
        self._files = {name: _FileRows.of(array, wanted.axes[name]) for name, array in arrays.items()}
        self.arrays = {n: a.view(np.ndarray) if self._files[n] is None else a for n, a in arrays.items()}

    def read(self, rows: int) -> Block | None:
        """Return the next rows."""
        assert self.rows is not None
        stop = min(self._at + rows, self.rows)
        if stop <= self._at:
            return None
        start, self._at = self._at, stop
        block: Block = {}
        for name, array in self.arrays.items():
            file = self._files[name]
            own = (slice(None),) * self.axes[name] + (slice(start, stop),)
            block[name] = array[own] if file is None else file.read(start, stop)
        return block

    def empty(self) -> Block:
        """Return no rows, in the right shapes."""
        return {n: np.asarray(a[(slice(None),) * self.axes[n] + (slice(0, 0),)]) for n, a in self.arrays.items()}

    def seek(self, row: int) -> None:
        """Go to a row."""
        self._at = row

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            if file is not None:
                file.file.close()

    def facts(self) -> dict[str, Any]:
        """Return what tells this source from another."""
        if (
            self._marks is None
        ):  # once: an array that is written to while it is streamed must not look like another later
            self._marks = {n: array_mark(a, self.axes[n]) for n, a in self.arrays.items()}
        types = {n: f"{a.dtype}{list(a.shape)}" for n, a in self.arrays.items()}
        return {"rows": self.rows, "types": types, "marks": self._marks}


class _FileRows:
    """Rows of a memory-mapped array, read by range: pages that were mapped would stay in memory, and count as taken."""

    def __init__(self, array: Any, offset: int) -> None:
        self.file = Path(array.filename).open("rb", buffering=0)  # noqa: SIM115 - closed with the source
        self.shape, self.dtype, self.offset = array.shape, array.dtype, offset
        self.row_bytes = int(array.nbytes // max(1, array.shape[0]))
        self._buffers: list[Any] = []

    @classmethod
    def of(cls, array: Any, axis: int) -> _FileRows | None:
        """Return how to read an array's rows from its file; None where it is in memory, or not laid out row by row."""
        mapped = isinstance(array, np.memmap) and array.filename is not None and array.mode in ("r", "r+")
        if not mapped or axis != 0 or not array.flags.c_contiguous or not array.size:
            return None
        begin = np.frombuffer(array._mmap, np.uint8).ctypes.data
        import mmap

        base = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        return cls(array, base + array.ctypes.data - begin)

    def read(self, start: int, stop: int) -> Any:
        """Return some rows, in an array that nobody else holds."""
        array = self._buffer((stop - start, *self.shape[1:]))
        self.file.seek(self.offset + start * self.row_bytes)
        into = memoryview(array.reshape(-1).view(np.uint8))
        while len(into):
            count = self.file.readinto(into)
            if not count:
                raise FormatError(
                    f"{self.file.name!r} ends in the middle: it was cut short while it was read", code="E535"
                )
            into = into[count:]
        return array

    def _buffer(self, shape: tuple[int, ...]) -> Any:
        """Return an array over bytes that were read into before, where nobody holds those any more; else over new ones."""
        size = shape[0] * self.row_bytes
        for n in range(len(self._buffers)):
            if len(self._buffers[n]) >= size and sys.getrefcount(self._buffers[n]) <= UNHELD:
                return self._buffers[n][:size].view(self.dtype).reshape(shape)
        if len(self._buffers) >= BUFFERS:
            self._buffers.clear()
        self._buffers.append(np.empty(size, np.uint8))
        return self._buffers[-1][:].view(self.dtype).reshape(shape)


class Archive:
    """The members of an .npz file, each read from its beginning to its end; compressed ones are unpacked as they are read."""

    copies = 0

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self.path = path
        try:
            self._zip = zipfile.ZipFile(path)
        except (*PACK_ERRORS, OSError, ValueError) as error:
            raise FormatError(f"{path.name!r} is no archive that can be read: {error}", code="E535") from None
        there = [name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")]
        members = {name: name for name in wanted.names}
        if len(members) == 1 and len(there) == 1:
            members = {wanted.names[0]: there[0]}
        wanted.checked([n for n in wanted.names if members[n] in there] or there, path.name)
        self._members: dict[str, Any] = {}
        self._types: dict[str, tuple[tuple[int, ...], Any, int]] = {}
        self._marks: dict[str, str] = {}
        for name, member in members.items():
            if wanted.axes[name] != 0:
                hint = "save it as .npy, or transpose it"
                raise InputError(
                    f"{path.name!r} can be streamed along axis 0 only, not {wanted.axes[name]}", hint, code="E536"
                )
            self._members[name], *kind = _opened(self._zip, member, f"{path.name}:{member}")
            self._types[name] = (kind[0], kind[1], kind[2])
            self._marks[name] = f"{self._zip.getinfo(member + '.npy').CRC:08x}"
        counts = {name: shape[0] for name, (shape, _, _) in self._types.items()}
        if len(set(counts.values())) > 1:
            told = ", ".join(f"{name!r} has {n:,}" for name, n in counts.items())
            raise InputError(f"inputs that are streamed together have as many rows each: {told}", code="E536")
        self.rows: int | None = next(iter(counts.values()))
        self._at = 0

    def read(self, rows: int) -> Block | None:
        """Return the next rows."""
        assert self.rows is not None
        count = min(rows, self.rows - self._at)
        if count <= 0:
            return None
        self._at += count
        return {name: self._rows(name, count) for name in self._members}

    def _rows(self, name: str, count: int) -> Any:
        shape, dtype, _ = self._types[name]
        array = np.empty((count, *shape[1:]), dtype)
        into = memoryview(array.reshape(-1).view(np.uint8).data)
        try:
            while len(into):
                piece = self._members[name].read(min(len(into), 1 << 20))
                if not piece:
                    raise EOFError("it ends in the middle")
                into[: len(piece)] = piece
                into = into[len(piece) :]
        except (*PACK_ERRORS, EOFError, OSError, ValueError) as error:
            raise FormatError(f"{self.path.name}:{name} cannot be read: {error}", code="E535") from None
        return array

    def empty(self) -> Block:
        """Return no rows, in the right shapes."""
        return {name: np.empty((0, *shape[1:]), dtype) for name, (shape, dtype, _) in self._types.items()}

    def seek(self, row: int) -> None:
        """Go to a row."""
        for name, (shape, dtype, begin) in self._types.items():
            self._members[name].seek(begin + row * dtype.itemsize * int(np.prod(shape[1:], dtype=np.int64)))
        self._at = row

    def close(self) -> None:
        """Close the file."""
        for member in self._members.values():
            member.close()
        self._zip.close()

    def facts(self) -> dict[str, Any]:
        """Return what tells this source from another."""
        types = {n: f"{d}{list(s)}" for n, (s, d, _) in self._types.items()}
        return {"rows": self.rows, "types": types, "marks": self._marks}


def _opened(archive: zipfile.ZipFile, member: str, what: str) -> tuple[Any, tuple[int, ...], Any, int]:
    """Return a member of an archive with its shape, its dtype and where its rows begin."""
    form = np.lib.format
    try:
        file = archive.open(member + ".npy")
        version = form.read_magic(file)
        read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
        shape, fortran, dtype = read(file)
        if not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"its shape is {shape}")
        row_bytes = dtype.itemsize * math.prod(shape[1:])
        if row_bytes > sys.maxsize:
            raise ValueError(f"a row of it would take {row_bytes:,} bytes")
    except (*HEAD_ERRORS, *PACK_ERRORS) as error:
        raise FormatError(f"{what} is no array that can be read: {error}", code="E535") from None
    if dtype.hasobject or not shape or (fortran and len(shape) > 1):
        why = (
            "holds Python objects"
            if dtype.hasobject
            else "is a single number"
            if not shape
            else "is stored column by column"
        )
        raise FormatError(f"{what} {why}, and cannot be streamed", "save it with np.ascontiguousarray", code="E535")
    return file, shape, dtype, file.tell()


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
            self._passed = {n: _from(v, self.wanted.axes[n], count) for n, v in block.items()}
            taken = min(count, self._skip)  # what a run that is resumed has read before
            self._skip -= taken
            if count > taken:
                self._passed = None
                return {n: _from(v, self.wanted.axes[n], taken) for n, v in block.items()}

    def _shorter(self) -> InputError:
        message = f"the source ended {self._skip:,} rows before those that the run to be resumed has done"
        return InputError(message, "give the source that it had", code="E547")

    def _block(self, item: Any, number: int) -> Block:
        if type(item).__module__.partition(".")[0] == "pyarrow":
            from .table_sources import batch_rows, columns_for

            return batch_rows(item, columns_for(item.schema.names, self.wanted, f"chunk {number}"), self.wanted, 0)
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
        """Begin anew and leave out so many rows."""
        self._iterator, self._skip, self._read = None, row, 0

    def close(self) -> None:
        """Close a generator."""
        close = getattr(self._iterator if self._iterator is not None else self.given, "close", None)
        if close is not None and hasattr(self.given, "__next__"):
            close()

    def facts(self) -> dict[str, Any]:
        """Return what tells this source from another: nothing is known."""
        return {}


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
        told = ", ".join(f"{name!r} has {n:,}" for name, n in counts.items())
        raise InputError(f"chunk {number}: its inputs have as many rows each, but {told}", code="E536")
    return int(next(iter(counts.values())))


def _from(value: Any, axis: int, start: int) -> Any:
    return value[(slice(None),) * axis + (slice(start, None),)]
