"""Arrays as the source of a stream: in memory, in .npy files that are read by range, and as members of .npz archives."""

from __future__ import annotations

import math
import os
import sys
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from ...diagnostics import value_text
from ...errors import FormatError, InputError
from ...ir.types import named_array
from .blocks import Block, Buffers, Wanted, check_axes, same_rows
from .source_fingerprints import array_mark

# of NumPy's reader
HEAD_ERRORS = (ValueError, OSError, EOFError, TypeError, SyntaxError, TokenError, MemoryError, RecursionError)
# of damaged, unknown and encrypted members
PACK_ERRORS = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError)


def _mapped(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            np.lib.format.read_magic(file)  # what np.load would take for a pickle
        with np.errstate(over="ignore"):  # a head may claim more elements than can be counted
            return np.load(path, mmap_mode="r", allow_pickle=False)
    except HEAD_ERRORS as error:
        raise FormatError(f"{path.name!r} is no array that can be read: {error}", code="E535") from None


def array_of(value: Any, wanted: Wanted, name: str) -> Any:
    """Return what is given for an input as an array; an .npy file stays where it is."""
    if isinstance(value, str | os.PathLike) and Path(value).suffix.lower() == ".npy":
        array = _mapped(Path(value))
    else:
        array = (
            value
            if isinstance(value, np.ndarray)
            else named_array(f"input {value_text(name)}", value, wanted.types[name].dtype)
        )
    check_axes(array, name, wanted.axes[name])
    return array


class Arrays:
    """Arrays by name, cut as they are read: views of what is in memory; what is in a file is read from there.

    >>> from tensorlogic import TensorType
    >>> wanted = Wanted({"x": 0}, {"x": TensorType(None, None)})
    >>> source = Arrays({"x": np.arange(5.0)}, wanted)
    >>> source.rows, source.read(3), source.read(3), source.read(3)
    (5, {'x': array([0., 1., 2.])}, {'x': array([3., 4.])}, None)
    """

    copies = 0

    def __init__(self, arrays: Mapping[str, Any], wanted: Wanted) -> None:
        self.axes = wanted.axes
        self.rows: int | None = same_rows({name: a.shape[wanted.axes[name]] for name, a in arrays.items()})
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
        # once: an array that is written to while it is streamed must not look like another later
        if self._marks is None:
            self._marks = {n: array_mark(a, self.axes[n]) for n, a in self.arrays.items()}
        types = {n: f"{a.dtype}{list(a.shape)}" for n, a in self.arrays.items()}
        return {"rows": self.rows, "types": types, "marks": self._marks}


class _FileRows:
    """Rows of a memory-mapped array, read by range: pages that were mapped would stay in memory, and count as taken."""

    def __init__(self, array: Any, offset: int) -> None:
        self.file = Path(array.filename).open("rb", buffering=0)  # noqa: SIM115 - closed with the source
        self.shape, self.dtype, self.offset = array.shape, array.dtype, offset
        self.row_bytes = int(array.nbytes // max(1, array.shape[0]))
        self._buffers = Buffers()

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
        array = self._buffers.array((stop - start, *self.shape[1:]), self.dtype)
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
        self.rows: int | None = same_rows({name: shape[0] for name, (shape, _, _) in self._types.items()})
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
