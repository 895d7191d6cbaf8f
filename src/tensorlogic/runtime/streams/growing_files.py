"""A file that is written under a temporary name until it is complete; a resumed run cuts it back to the last checkpoint."""

from __future__ import annotations

import contextlib
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import FormatError
from ...ir.whole_files import FileCall, file_call, remove, temporary_name, to_disk, write_all

Values = Mapping[str, Any]  # outputs by name
State = dict[str, Any]  # of a sink, as a checkpoint holds it
TAIL = 4096  # bytes at the end of a file that tell it from a file of another run


class Staging:
    """A file that grows under another name until it is complete."""

    def __init__(self, path: Path, staged: bool, call: FileCall = file_call) -> None:
        self.path, self.call = path, call
        self.part = path.with_name(path.name + ".part") if staged else temporary_name(path)
        self.staged, self.published = staged, False
        self.head = 0  # bytes at the beginning that are written again in the end
        self._handle: int | None = None

    @property
    def handle(self) -> int:
        """The open file."""
        assert not self.published, "the file has its name already"
        if self._handle is None:
            flags = os.O_RDWR | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
            with writing(self.path):
                self._handle = os.open(self.part, flags, 0o666)
        return self._handle

    def append(self, data: Any) -> None:
        """Write bytes at the end."""
        with writing(self.path):
            write_all(self.handle, data, self.call)

    def overwrite(self, start: int, data: bytes) -> None:
        """Write bytes over others."""
        with writing(self.path):
            os.lseek(self.handle, start, os.SEEK_SET)
            write_all(self.handle, data, self.call)
            os.lseek(self.handle, 0, os.SEEK_END)

    def safe_length(self) -> int:
        """Bring the file to the disk and return its length."""
        with writing(self.path):
            self.call("fsync", (self.handle,))
            return os.fstat(self.handle).st_size

    def state(self) -> State:
        """Bring the file to the disk, and return its length and a checksum of its end."""
        length = self.safe_length()
        return {"length": length, "tail": self._tail(self.handle, length)}

    def _tail(self, handle: int, length: int) -> int:
        """Return the checksum of the bytes before a length."""
        start = max(min(self.head, length), length - TAIL)
        os.lseek(handle, start, os.SEEK_SET)
        checksum = zlib.crc32(os.read(handle, length - start))
        os.lseek(handle, 0, os.SEEK_END)
        return checksum

    def restore(self, state: State, *, complete: bool) -> None:
        """Go on with the file of another process, cut back to a length that it had; a complete one may have its name already."""
        length = int(state["length"])
        if self.part.exists() and self.part.stat().st_size >= length:
            with writing(self.path):
                self._handle = os.open(self.part, os.O_RDWR | getattr(os, "O_BINARY", 0))
                if self._tail(self._handle, length) != state.get("tail"):
                    self.close()
                    message = (
                        f"{str(self.part)!r} is not what the run before wrote: another run has written to it since"
                    )
                    raise FormatError(message, "begin anew in another folder, without resuming", code="E545")
                os.ftruncate(self._handle, length)
                os.lseek(self._handle, 0, os.SEEK_END)
        elif complete and self.path.exists() and not self.part.exists():
            self.published = True
        else:
            there = self.part.stat().st_size if self.part.exists() else 0
            message = f"{str(self.part)!r} should have {length:,} bytes written by the run before, but has {there:,}"
            raise FormatError(message, "begin anew in another folder, without resuming", code="E545")

    def publish(self) -> None:
        """Give the file its name, now that it is complete."""
        if self.published:
            return
        self.safe_length()
        self.close()
        with writing(self.path):
            self.call("replace", (self.part, self.path))
            to_disk(self.path.absolute().parent, self.call)
        self.published = True

    def close(self) -> None:
        """Close the file; without checkpoints nobody can go on with it, so it goes."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def drop(self) -> None:
        """Close the file, and remove it where nobody can go on with it."""
        self.close()
        if not self.staged and not self.published:
            remove(self.part)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say clearly that a file cannot be written."""
    try:
        yield
    except OSError as error:
        hint = "make room, or give a folder that can be written; a run with checkpoints can be resumed"
        raise FormatError(f"cannot write {str(path)!r}: {error.strerror or error}", hint, code="E544") from error
