"""A lock on a folder: one run at a time writes there, in whatever process. The system lets go of it when the process dies."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Self

from ...errors import CheckpointError
from ...store import reset_in_child

NAME = ".lock"
FAR = 1 << 20  # where Windows locks a byte: the process number before it stays readable


class FolderLock:
    """The right to write into a folder; a second process that wants it gets an error that names the first.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder, FolderLock(Path(folder)) as lock:
    ...     lock.held
    True
    """

    _handle: int | None = None

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        reset_in_child(self)

    @property
    def held(self) -> bool:
        """Whether this is the one that may write."""
        return self._handle is not None

    def acquire(self) -> None:
        """Take the lock, or raise the error that names the process which has it."""
        if self._handle is not None:
            return
        handle = os.open(self.folder / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _lock(handle)
        except OSError:
            os.lseek(handle, 0, os.SEEK_SET)
            holder = os.read(handle, 32)
            os.close(handle)
            who = f"process {holder.decode('ascii', 'replace').strip() or 'unknown'}"
            who += " (this one)" if holder.strip() == str(os.getpid()).encode() else ""
            hint = "wait until it is done, or give this run a folder of its own"
            raise CheckpointError(f"{str(self.folder)!r} is in use by {who}", hint, code="E581") from None
        self._handle = handle
        with contextlib.suppress(OSError):  # a disk that is full: the lock holds without the name of who has it
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())

    def release(self) -> None:
        """Let others have it, even while a process that was forked just now has a copy of the file."""
        if self._handle is not None:
            handle, self._handle = self._handle, None
            with contextlib.suppress(OSError):  # a disk that is full: the name of the holder stays, without its lock
                os.ftruncate(handle, 0)
            _unlock(handle)
            os.close(handle)

    def reset_lock(self) -> None:
        """Leave the lock to the process that forked this one: it must not stay taken because a child lives on."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def __del__(self) -> None:
        self.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


if sys.platform == "win32":  # loaded now: a lock may be let go while Python ends
    import msvcrt

    def _lock(handle: int) -> None:
        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        os.lseek(handle, 0, os.SEEK_SET)

    def _unlock(handle: int) -> None:
        os.lseek(handle, FAR, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)
