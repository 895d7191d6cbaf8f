"""Files and folders that appear whole or not at all, whatever happens while they are written.

What is new is written under a temporary name beside its place, brought to the disk, and renamed. Every operation on which that
depends goes through a call ``(operation, args) -> value``, as the steps of a run do; so the same wrappers can make one fail.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from ..errors import FormatError, InputError, TensorLogicError, expect
from ..events import tell_wrappers

FileCall = Callable[[str, tuple[Any, ...]], Any]  # the operation is the name of a function of the module os
OPERATIONS = ("write", "fsync", "replace", "rename", "mkdir")
OTHER_CAME_FIRST = (errno.EEXIST, errno.ENOTEMPTY)
NOT_FOR_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # of systems that cannot bring a folder to the disk
LONGEST = 255  # bytes of a name, on nearly every system
_WRAPPER = "write wrap=[lambda call: lambda operation, args: call(operation, args)]"


def file_call(operation: str, args: tuple[Any, ...]) -> Any:
    """Do one operation of the module os, such as ``write`` or ``fsync``."""
    return getattr(os, operation)(*args)


def wrapped_files(wrap: Sequence[Callable[[Any], Any]]) -> FileCall:
    """Return file operations with wrappers around them, the first outermost."""
    call: FileCall = file_call
    expect(wrap, Sequence, "wrap= is a list of functions around operations on files", _WRAPPER)
    for wrapper in wrap:
        expect(wrapper, Callable, "a wrapper is a function", _WRAPPER)  # type: ignore[arg-type]
    tell_wrappers(wrap, OPERATIONS, "operations on files")
    for wrapper in reversed(wrap):
        call = wrapper(call)
    return call


def expect_folder(path: Path, code: str = "E228") -> None:
    """Refuse a file that could not be written, because of its folder or because it is one, before there is anything to write."""
    if not path.absolute().parent.is_dir():
        message = f"there is no folder {str(path.parent)!r} to write {path.name!r} into"
        raise InputError(message, f"make it first: mkdir -p {path.parent}", code=code)
    if stat.S_ISDIR(mode_of(path)):
        raise InputError(f"{str(path)!r} is a folder, and a file is to be written", "name a file in it", code=code)
    if not os.access(path.absolute().parent, os.W_OK):
        message = f"you may not write into the folder {str(path.parent)!r}"
        raise InputError(message, "give a file in a folder that can be written", code=code)


def expect_members(names: Iterable[str], what: str) -> None:
    """Refuse names of arrays that would be unpacked outside of their folder as members of an archive, before anything is computed."""
    for name in names:
        drive = name[:1].isalpha() and name[1:2] == ":"
        if drive or name.startswith("/") or "\\" in name or "\0" in name or ".." in name.split("/"):
            raise FormatError(f"{what} {name!r} cannot be a member of an archive", f"rename the {what}", code="E214")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say clearly that a file cannot be written."""
    try:
        yield
    except TensorLogicError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        hint = "give a file in a folder that can be written"
        raise FormatError(f"cannot write {str(path)!r}: {why}", hint, code="E228") from None


def write_all(handle: int, data: Any, call: FileCall = file_call) -> None:
    """Write bytes to an open file; the system may take them in several pieces."""
    left = memoryview(data)
    while left:
        left = left[call("write", (handle, left)) :]


def as_path(path: object, what: str = "a file") -> Path:
    """Return the path that was given, if it is one."""
    expect(
        path,
        (str, os.PathLike),
        f"{what} is given by its path",
        f'write "{"model.json" if what == "a file" else "run"}"',
    )
    assert isinstance(path, str | os.PathLike)
    try:
        raw = os.fsencode(path)
        possible = b"\0" not in raw and all(len(part) <= LONGEST for part in raw.split(os.fsencode(os.sep)))
    except UnicodeError:
        possible = False
    if not possible:
        raise FormatError(f"{path!r} can be no name of {what}", "use letters, digits, - and _", code="E229")
    return Path(path)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place and move it there, so that it appears whole or not at all; devices and pipes are written to."""
    mode = mode_of(path)
    if mode and not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        write(path)  # a file in the place of /dev/null would be there for everyone
        return
    temporary = temporary_name(path)
    try:
        write(temporary)
        to_disk(temporary)
        file_call("replace", (temporary, path))
    finally:
        temporary.unlink(missing_ok=True)
    to_disk(path.parent)


def write_folder(
    path: Path, fill: Callable[[Path], object], *, replace: bool = True, call: FileCall = file_call
) -> Path:
    """Fill a folder beside its place and move it there, so that it appears whole or not at all; return its path.

    What has the name already gives way. Of two processes that write it at once, either may win. With ``replace=False``
    it stays, and FileExistsError is raised.
    """
    temporary = temporary_name(path)
    old: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        call("mkdir", (temporary,))
        fill(temporary)
        for file in temporary.iterdir():
            to_disk(file, call)
        to_disk(temporary, call)
        if replace:
            old = set_aside(path)
        try:
            call("rename", (temporary, path))
        except OSError as error:  # systems call it by several names when another process came first
            taken = error.errno in OTHER_CAME_FIRST or path.exists()  # a third may have deleted it since
            if taken and not replace:
                raise FileExistsError(str(path)) from error
            if not taken:
                if old is not None:  # what was there stays
                    old.rename(path)
                    old = None
                raise
    finally:
        remove(temporary)
        if old is not None:
            remove(old)
    to_disk(path.parent, call)
    return path


def set_aside(path: Path) -> Path | None:
    """Rename a file or folder that is to be deleted, so that of several processes one takes it; None if another did.

    It has a name that a :class:`~tensorlogic.CompilationCache` sweeps away, should this process stop before it is deleted.
    """
    old = path.with_name(f".{path.name}.{os.urandom(6).hex()}.old")
    with contextlib.suppress(FileNotFoundError):
        return path.rename(old)
    return None


def expect_regular(path: Path) -> Path:
    """Return the path of a regular file; OSError for all else that may have its name: a FIFO is waited for, a device has no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise OSError(errno.EINVAL, "this is no regular file", str(path))
    return path


def mode_of(path: Path) -> int:
    """Return the mode of what has a name; 0 where nothing has, or could have: names may be too long for the system."""
    try:
        return path.stat().st_mode
    except (OSError, ValueError):
        return 0


def temporary_name(path: Path) -> Path:
    """Return a name beside a path that nobody else uses."""
    return path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")


def remove(path: Path) -> None:
    """Delete a file or a whole folder, as far as that is possible; nothing relies on its being gone."""
    import shutil  # loaded by those who save

    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError, ValueError):  # no file has a name with a zero byte
            path.unlink()


class _Job:
    """A call that another thread makes."""

    __slots__ = ("_call", "_done", "_ended", "_error", "_value")

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call, self._done, self._ended = call, allocate_lock(), False
        self._value: Any = None
        self._error: BaseException | None = None
        self._done.acquire()

    def run(self) -> None:
        """Make the call."""
        try:
            self._value = self._call()
        except BaseException as error:
            self._error = error
        finally:
            self._ended = True
            self._done.release()

    def result(self) -> Any:
        """Wait for what the call gives, or raise what it raises."""
        if not self._ended:  # an interrupt as the lock was taken may have left it so
            self._done.acquire()
        if self._error is not None:
            raise self._error
        return self._value


class Beside:
    """A thread for something that is done while a file is written; without one, it is done at once."""

    # no ThreadPoolExecutor: a process waits at its end for its threads, also for one that an interrupt kept it from noting
    def __init__(self, thread: bool) -> None:
        self._jobs: SimpleQueue[_Job | None] | None = SimpleQueue() if thread else None
        self._begun = False

    def call(self, function: Callable[..., Any], *args: Any) -> Callable[[], Any]:
        """Begin a call; what is returned waits for what it gives, or raises what it raises."""
        if self._jobs is not None and not self._begun:
            try:
                start_new_thread(_do_jobs, (self._jobs,))
                self._begun = True
            except RuntimeError:  # the process is ending, or has too many threads
                self._jobs = None
        if self._jobs is None:
            value = function(*args)
            return lambda: value
        job = _Job(partial(function, *args))
        self._jobs.put(job)
        return job.result

    def close(self) -> None:
        """Wait for what is under way, leave the rest, and end the thread."""
        if self._jobs is not None and self._begun:
            with contextlib.suppress(Empty):
                while True:
                    self._jobs.get_nowait()
            last = _Job(bool)
            self._jobs.put(last)
            self._jobs.put(None)
            last.result()
            self._begun = False


def _do_jobs(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        job.run()


class EarlyDisk:
    """Brings a growing file to the disk on a thread while more is written, so that little is left for the end.

    It only saves time: whoever writes the file brings it to the disk once more when it is complete.
    """

    def __init__(self, handle: int) -> None:
        self._handle = handle
        self._beside: Beside | None = None
        self._under_way: Callable[[], Any] | None = None

    def begin(self) -> None:
        """Let the disk take what was written so far, once it has taken what there was before."""
        self.finish()
        if self._beside is None:
            self._beside = Beside(thread=True)
        self._under_way = self._beside.call(getattr(os, "fdatasync", os.fsync), self._handle)

    def finish(self) -> None:
        """Wait for what is under way, and raise what went wrong with it: the system tells an error once."""
        if self._under_way is not None:
            self._under_way()
            self._under_way = None

    def close(self) -> None:
        """End the thread."""
        if self._beside is not None:
            self._beside.close()


def to_disk(path: Path, call: FileCall = file_call) -> None:
    """Have the system write a file or folder out before anything relies on it; not every system can do so with folders."""
    folder = path.is_dir()
    try:
        handle = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
    except PermissionError:
        if folder:
            return
        raise
    try:
        call("fsync", (handle,))
    except OSError as error:
        if not folder or error.errno not in NOT_FOR_FOLDERS:
            raise
    finally:
        os.close(handle)
