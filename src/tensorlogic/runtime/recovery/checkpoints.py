"""Checkpoints: arrays and facts about them, saved so that a machine may die at any moment and none is half there.

Each is a folder with the arrays in the safetensors layout, written straight from memory, and a manifest with their checksums.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import stat
import sys
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Self, TypeVar
from warnings import warn

import msgspec
import numpy as np

from ...diagnostics import bytes_text, value_text
from ...errors import CheckpointError, InputError, expect, expect_whole
from ...events import span
from ...ir.types import SAFETENSORS, named_array
from ...ir.whole_files import (
    Beside,
    EarlyDisk,
    as_path,
    expect_regular,
    mode_of,
    remove,
    set_aside,
    wrapped_files,
    write_all,
    write_folder,
)
from ...store import Lock, of_one_process
from .folder_lock import FolderLock

FORMAT, VERSION = "tensorlogic-checkpoint", 1
NAME = re.compile(r"checkpoint-(\d{8,})")
LEFTOVER = re.compile(r"\.checkpoint-\d+\.[0-9a-f]+\.(tmp|old)")  # of a process that stopped while it wrote or deleted
ARRAYS, MANIFEST = "values.safetensors", "manifest.json"
RUNS = {
    "config": "a training",
    "chunks": "a stream",
    "left": "a run with recovery",
}  # kinds of runs, by a fact of their checkpoints
PIECE = 1 << 22  # bytes written at a time
EARLY = 64 << 20  # bytes after which the disk begins to take what is written, while the rest is
PAGE = 4096  # bytes summed up at a time
CODES = {name: code for code, name in SAFETENSORS.items()}
T = TypeVar("T")


class CheckpointWarning(UserWarning):
    """A problem with a checkpoint that does not stop the run, such as a damaged file that is skipped.

    >>> issubclass(CheckpointWarning, UserWarning)
    True
    """


class Checkpoint(NamedTuple):
    """One saved checkpoint: arrays by name, and facts such as the step number.

    >>> Checkpoint(7, {}, {"step": 3}).facts["step"]
    3
    """

    number: int
    arrays: dict[str, Any]
    facts: dict[str, Any]


class _Array(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    dtype: str
    shape: tuple[int, ...]
    checksum: int = 0

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * int(_dtype(self.dtype).itemsize)


class _Manifest(msgspec.Struct):
    format: str
    version: int
    package: str  # the version of tensorlogic that wrote it
    facts: dict[str, Any]
    arrays: list[_Array]  # in the order of the file


class _File(msgspec.Struct, forbid_unknown_fields=True):
    crc32: int  # of the manifest as it stands in the file
    manifest: msgspec.Raw


class CheckpointManager:
    """A folder of checkpoints: the newest few are kept, one run at a time may write, and damaged ones are skipped.

    ``save`` returns when the checkpoint is on the disk; until then the ones before are untouched. The first ``save`` locks the
    folder for this run, or ``with manager:`` does so at once; ``close`` unlocks it. ``wrap`` surrounds the operations on
    files as an executor's surrounds steps, to make some fail: see :func:`tensorlogic.testing.failing_at`.

    >>> import tempfile, numpy as np
    >>> with tempfile.TemporaryDirectory() as folder, CheckpointManager(folder, keep=2) as manager:
    ...     for step in (1, 2, 3):
    ...         number = manager.save({"w": np.full(2, step)}, {"step": step})
    ...     manager.numbers(), manager.latest().arrays["w"], manager.latest().facts
    ([2, 3], array([3, 3]), {'step': 3})
    """

    def __init__(self, folder: str | Path, keep: int = 3, *, wrap: Sequence[Callable[[Any], Any]] = ()) -> None:
        where = as_path(folder, "a folder")
        expect_whole("keep", keep, 1)
        if not str(folder) or stat.S_ISREG(mode_of(where)):
            what = f"{str(folder)!r} is a file" if str(folder) else "the name of the folder is empty"
            raise InputError(
                f"checkpoints are kept in a folder, and {what}", 'write "run", or another name', code="E301"
            )
        self.folder, self.keep = where, keep
        self._call = wrapped_files(wrap)
        self._lock, self._saving = FolderLock(self.folder), Lock()

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a checkpoint manager", "make one in each process: CheckpointManager(folder)")

    def __enter__(self) -> Self:
        self.lock()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def lock(self) -> None:
        """Make the folder this run's own; where another run has it, the error names its process."""
        if not self._lock.held:
            self._tried("take the lock", self._take)

    def _take(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        for path in self.folder.iterdir():
            if LEFTOVER.fullmatch(path.name):
                remove(path)

    def close(self) -> None:
        """Let another run have the folder."""
        self._lock.release()

    def numbers(self) -> list[int]:
        """Return the numbers of the checkpoints, the oldest first; damaged ones are among them."""
        found = []
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = [int(m[1]) for path in self.folder.iterdir() if (m := NAME.fullmatch(path.name))]
        return sorted(found)

    def path(self, number: int) -> Path:
        """Return the folder of a checkpoint."""
        return self.folder / f"checkpoint-{number:08}"

    def save(self, arrays: Mapping[str, Any], facts: Mapping[str, Any] | None = None) -> int:
        """Write a checkpoint and return its number; then let those go that are more than is kept.

        Arrays are written as they are in memory, and must not change meanwhile. Facts are what JSON can hold.
        """
        expect(arrays, Mapping, "a checkpoint holds arrays by name", 'write save({"w": w})')
        with self._saving:
            self.lock()
            checked = _checked_facts({} if facts is None else facts)
            number = max(self.numbers(), default=0) + 1
            with span(f"checkpoint {number}"):
                table, views = _table(arrays)
                manifest = _Manifest(FORMAT, VERSION, _package_version(), checked, table)

                def fill(place: Path) -> None:
                    self._write(place / ARRAYS, _header(table), table, views)
                    body = msgspec.json.encode(manifest)
                    content = msgspec.json.encode(_File(zlib.crc32(body), msgspec.Raw(body)))
                    self._write(place / MANIFEST, content)

                size = sum(row.nbytes for row in table)
                write = lambda: write_folder(self.path(number), fill, replace=False, call=self._call)  # noqa: E731
                self._tried(f"write {bytes_text(size)} as checkpoint {number}", write)
            self.prune()
            return number

    def _tried(self, what: str, action: Callable[[], T]) -> T:
        """Do something with files; what goes wrong is an error that says what stays as it was."""
        before = self.numbers() if self.folder.is_dir() else []
        try:
            return action()
        except CheckpointError:
            raise
        except OSError as error:
            earlier = (
                f"the earlier ones, up to {before[-1]}, are untouched" if before else "there are no earlier checkpoints"
            )
            hint = "make room or permit writing there, or choose another folder; then run again to go on"
            message = f"cannot {what} in {str(self.folder)!r}: {error.strerror or error}; {earlier}"
            raise CheckpointError(message, hint, code="E580") from error

    def _write(self, path: Path, head: bytes, table: Sequence[_Array] = (), views: Sequence[Any] = ()) -> None:
        """Write a file piece by piece; of a large one the checksums are made on a thread, and the disk begins before all is written."""
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o644)
        disk, beside, written = EarlyDisk(handle), Beside(sum(map(len, views)) >= EARLY), 0
        try:
            write_all(handle, head, self._call)
            sums = [beside.call(checksum, view) for view in views]
            for view in views:
                for start in range(0, len(view), PIECE):
                    piece = view[start : start + PIECE]
                    write_all(handle, piece, self._call)
                    written += len(piece)
                    if written >= EARLY:
                        disk.begin()
                        written = 0
            for row, total in zip(table, sums, strict=True):
                row.checksum = total()
            disk.finish()
        finally:
            disk.close()
            beside.close()
            os.close(handle)

    def refuse_used(self, kind: str) -> None:
        """Refuse a folder that has checkpoints, for a run of some kind that begins anew: it would write over those of another run."""
        if self.folder.is_dir() and self.numbers():
            if (found := self._kind(max(self.numbers()))) not in (None, kind):
                message = f"{str(self.folder)!r} has checkpoints of another kind of run: {found}"
                raise CheckpointError(message, "give another folder", code="E546")
            hint = "resume that run (resume=True, Trainer.resume, or --resume), or give another folder"
            raise CheckpointError(f"{str(self.folder)!r} has checkpoints of a run already", hint, code="E546")

    def _kind(self, number: int) -> str | None:
        """Return what kind of run a checkpoint is of; None where it is damaged, or of none of ours."""
        try:
            facts = _read_manifest(self.path(number) / MANIFEST).facts
        except (CheckpointError, OSError, ValueError, OverflowError, msgspec.MsgspecError):
            return None
        return next((kind for fact, kind in RUNS.items() if fact in facts), None)

    def prune(self) -> list[int]:
        """Delete all but the newest ``keep``; return the numbers that are gone."""
        return self._remove(self.numbers()[: -self.keep])

    def clear(self) -> list[int]:
        """Delete all checkpoints, as when what they are for is done; return the numbers that are gone."""
        self.lock()
        return self._remove(self.numbers())

    def _remove(self, numbers: list[int]) -> list[int]:
        for number in numbers:
            try:
                old = set_aside(self.path(number))
            except OSError as error:
                warn(
                    f"checkpoint {number} in {str(self.folder)!r} cannot be removed: {error}",
                    CheckpointWarning,
                    stacklevel=3,
                )
                continue
            if old is not None:
                remove(old)
        return numbers

    def verify(self, number: int) -> None:
        """Read a checkpoint and compare its checksums; raise the error that says what is wrong with it."""
        self.load(number)

    def load(self, number: int) -> Checkpoint:
        """Return a checkpoint by its number, or raise the error that says what is wrong with it."""
        expect_whole("the number of a checkpoint", number, 0)
        place = self.path(number)
        if not place.is_dir():
            there = ", ".join(map(str, self.numbers())) or "none"
            message = f"there is no checkpoint {number} in {str(self.folder)!r}"
            raise CheckpointError(message, f"there: {there}", code="E588")
        try:
            manifest = _read_manifest(place / MANIFEST)
            return Checkpoint(number, _read_arrays(place / ARRAYS, manifest.arrays), manifest.facts)
        except CheckpointError:
            raise
        except (OSError, ValueError, OverflowError, msgspec.MsgspecError) as error:
            if not place.is_dir():  # another run pruned it meanwhile
                return self.load(number)
            hint = "an earlier one may be good: latest() finds it"
            raise CheckpointError(
                f"checkpoint {number} in {str(self.folder)!r} is damaged: {error}", hint, code="E582"
            ) from None

    def latest(self) -> Checkpoint | None:
        """Return the newest good checkpoint, or None where there is none; damaged ones are passed over with a warning.

        Where all are damaged this is an error: a run that began anew without a word would hide that something was lost.
        """
        numbers = self.numbers()
        for number in reversed(numbers):
            try:
                return self.load(number)
            except CheckpointError as error:
                if error.diagnostic.code == "E588":  # another run pruned it meanwhile
                    continue
                if error.diagnostic.code != "E582":
                    raise
                then = "the one before is used" if number != numbers[0] else "there is none before it"
                warn(f"{error.diagnostic.message}; {then}", CheckpointWarning, stacklevel=2)
        if numbers:
            message = f"none of the {len(numbers)} checkpoints in {str(self.folder)!r} can be read"
            raise CheckpointError(message, "delete the folder to begin anew", code="E583")
        return None


def _table(arrays: Mapping[str, Any]) -> tuple[list[_Array], list[Any]]:
    """Return what the manifest says of arrays, widest elements first so that all are aligned, and their bytes."""
    rows = []
    for name, value in arrays.items():
        array = np.asarray(None) if value is None else named_array(f"array {value_text(name)}", value)
        if not isinstance(name, str) or array.dtype.name not in CODES:
            message = f"a checkpoint holds arrays of numbers by name, not {value_text(name)} of dtype {array.dtype}"
            raise InputError(message, f"dtypes: {', '.join(CODES)}", code="E587")
        view = _bytes(array)
        rows.append((-array.itemsize, _Array(name, array.dtype.name, array.shape), view))
    rows.sort(key=lambda row: (row[0], row[1].name))
    return [row for _, row, _ in rows], [view for _, _, view in rows]


def _bytes(array: Any) -> Any:
    """Return the elements of an array in order, as bytes: in place where they stand so, else copied."""
    if sys.byteorder == "big" or array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("<"))
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def checksum(data: Any, before: int = 0) -> int:
    """Return a checksum of an array of bytes: the CRC of the sums of its pages, five times as fast as the CRC of all bytes.

    It tells a changed, missing or exchanged page, which is how disks and file systems fail. ``before`` is that of whole pages that
    stand before.

    >>> checksum(np.arange(10, dtype=np.uint8)) == checksum(np.arange(1, 11, dtype=np.uint8))
    False
    """
    whole = len(data) // PAGE * PAGE
    sums = data[:whole].view("<u8").reshape(-1, PAGE // 8).sum(axis=1, dtype="<u8")
    return zlib.crc32(data[whole:], zlib.crc32(sums, before))


def _header(table: Sequence[_Array]) -> bytes:
    """Return the head of the safetensors file; it follows from the manifest, so that reading it is comparing it."""
    entries: dict[str, Any] = {}
    at = 0
    for row in table:
        entries[row.name] = {"dtype": CODES[row.dtype], "shape": row.shape, "data_offsets": [at, at + row.nbytes]}
        at += row.nbytes
    text = msgspec.json.encode(entries)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _checked_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts as JSON will give them back, or refuse what it would change or cannot hold."""
    expect(facts, Mapping, "facts are a mapping from names to what JSON can hold", 'write {"step": 3}')
    try:
        again = msgspec.json.decode(msgspec.json.encode(facts))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"the facts cannot be written as JSON: {error}", code="E587") from None
    if again != facts:
        hint = "use text as keys, lists for tuples, and no NaN"
        raise InputError(
            f"JSON would give {value_text(again)} back for the facts {value_text(facts)}", hint, code="E587"
        )
    return dict(again)


def _read_manifest(path: Path) -> _Manifest:
    file = msgspec.json.decode(expect_regular(path).read_bytes(), type=_File)
    if zlib.crc32(bytes(file.manifest)) != file.crc32:
        raise ValueError(f"{path.name} does not have its checksum")
    manifest = msgspec.json.decode(file.manifest, type=dict[str, Any])
    written = (manifest.get("format"), manifest.get("version"))
    if written != (FORMAT, VERSION):
        message = f"{str(path.parent)!r} is a checkpoint of format {written[0]} {written[1]}, by tensorlogic {manifest.get('package')}"
        hint = "go on with the version that wrote it, or begin anew in another folder"
        raise CheckpointError(f"{message}; this version reads {FORMAT} {VERSION}", hint, code="E584")
    return msgspec.convert(manifest, _Manifest)


def _read_arrays(path: Path, table: Sequence[_Array]) -> dict[str, Any]:
    head = _header(table)
    found: dict[str, Any] = {}
    with path.open("rb", buffering=0) as file:
        size, needed = os.fstat(file.fileno()).st_size, len(head) + sum(row.nbytes for row in table)
        if size != needed:
            raise ValueError(f"{path.name} has {size:,} bytes of {needed:,}")
        if file.read(len(head)) != head:
            raise ValueError(f"{path.name} holds other arrays than the manifest names")
        for row in table:
            array = np.empty(row.shape, _dtype(row.dtype))
            content: Any = array.reshape(-1).view(np.uint8)
            left = memoryview(content)
            while left:
                count = file.readinto(left)
                if not count:
                    raise ValueError(f"{path.name} ends early")
                left = left[count:]
            if checksum(content) != row.checksum:
                raise ValueError(f"array {row.name!r} does not have its checksum")
            found[row.name] = array
    return found


def _dtype(name: str) -> Any:
    if name == "bfloat16":
        from ml_dtypes import bfloat16  # comes with JAX, whose arrays have this dtype

        return np.dtype(bfloat16)
    if name not in CODES:
        raise ValueError(f"there is no dtype {name!r}")
    return np.dtype(name)


def _package_version() -> str:
    from ... import __version__

    return str(__version__)
