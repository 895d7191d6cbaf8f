"""Machine code on disk: one folder of the user's own, bounded in bytes, whose files are checked before they are used.

A file is named by a hash of everything that its content depends on, begins with a checksum, and is moved into place whole, so that
several processes may read, write and remove files at once: whoever does not find one compiles.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import stat
import tempfile
import time
import warnings
from functools import cache
from pathlib import Path
from typing import Any

from numba.core import serialize
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult

from .support import NativeWarning

MOST_BYTES = 256 << 20  # of the whole folder, code of older versions included
ABANDONED = 3600  # seconds after which a file that was never moved into place belongs to a process that died
_CHECKSUM = 32  # bytes at the beginning of a file


@cache
def folder() -> Path | None:
    """Return the folder of machine code, or None where there is none that only the user can write to."""
    user = os.getuid() if hasattr(os, "getuid") else "me"
    for base in (_user_cache(), Path(tempfile.gettempdir()) / f"tensorlogic-{user}"):
        try:
            if base is None:
                continue
            base.mkdir(parents=True, exist_ok=True, mode=0o700)
            place = base / "native"
            place.mkdir(exist_ok=True, mode=0o700)
            if _private(base) and _private(place):
                with tempfile.TemporaryFile(dir=place):
                    return place
        except OSError:
            continue
    return None


def _user_cache() -> Path | None:
    try:
        told = Path(os.environ.get("XDG_CACHE_HOME", ""))  # a relative one is to be ignored, says its specification
        return (told if told.is_absolute() else Path("~/.cache").expanduser()) / "tensorlogic"
    except RuntimeError:  # the user has no home
        return None


def _private(place: Path) -> bool:
    """Tell whether a folder is the user's own, and nobody else can write to it: what is in it will be run."""
    status = place.lstat()
    if not stat.S_ISDIR(status.st_mode):
        return False
    return not hasattr(os, "getuid") or (status.st_uid == os.getuid() and not status.st_mode & 0o022)


@cache
def _version() -> bytes:
    """Return a hash of the sources whose code kernels hold, and of the compiler's versions."""
    import sys

    import llvmlite
    import numba

    sources = sorted(Path(__file__).parent.glob("*.py"))
    versions = f"{sys.version} {numba.__version__} {llvmlite.__version__}".encode()
    return hashlib.blake2b(versions + b"".join(p.read_bytes() for p in sources)).digest()


class CodeCache(NullCache):
    """Where numba looks for the machine code of one function, and leaves it; the text is what the code was made of."""

    def __init__(self, text: str) -> None:
        self.text = text

    @classmethod
    def of(cls, function: Any) -> CodeCache:
        """Return the cache of a function that is written in a file, and depends on nothing outside of that file and this package."""
        text = Path(function.__code__.co_filename).read_text(encoding="utf-8")
        return cls(f"{function.__module__}.{function.__qualname__}\n{text}")

    def _path(self, signature: Any, context: Any) -> Path | None:
        place = folder()
        if place is None:
            return None
        processor = context.codegen().magic_tuple()
        key = hashlib.blake2b(f"{signature} {processor}\n{self.text}".encode(), key=_version()[:64], digest_size=16)
        return place / f"{key.hexdigest()}.code"

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return the compiled function of a signature, or None; what is damaged is removed, with a warning."""
        from ...ir.whole_files import expect_regular

        path = self._path(sig, target_context)
        try:
            content = expect_regular(path).read_bytes() if path is not None else b""
        except OSError:
            return None
        if path is None:
            return None
        target_context.refresh()
        try:
            if hashlib.blake2b(content[_CHECKSUM:], digest_size=_CHECKSUM).digest() != content[:_CHECKSUM]:
                raise ValueError("its checksum differs")
            found = CompileResult._rebuild(target_context, *pickle.loads(content[_CHECKSUM:]))
        except Exception as error:  # numba raises anything
            warnings.warn(f"machine code in {str(path)!r} is made anew: {error}", NativeWarning, stacklevel=2)
            path.unlink(missing_ok=True)
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used now
        return found

    def save_overload(self, sig: Any, cres: Any) -> None:
        """Keep a compiled function; where that is not possible, the next process compiles it again."""
        from ...ir.whole_files import remove, write_whole

        path = self._path(sig, cres.target_context)
        if path is None or cres.library.has_dynamic_globals:
            return
        content = serialize.dumps(cres._reduce())
        checksum = hashlib.blake2b(content, digest_size=_CHECKSUM).digest()
        with contextlib.suppress(OSError):
            if not path.is_file():
                remove(path)  # a folder or a pipe of this name
            write_whole(path, lambda file: file.write_bytes(checksum + content))
            _make_room(path.parent)


def _make_room(place: Path) -> None:
    """Remove the least recently used files until the folder is within its bound, and what processes that died left behind."""
    files = []
    with os.scandir(place) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process removed it
                status = entry.stat(follow_symlinks=False)
                files.append((status.st_mtime, status.st_size, entry))
    total = sum(size for _, size, _ in files)
    for modified, size, entry in sorted(files, key=lambda file: file[0]):
        abandoned = not entry.name.endswith(".code") and modified < time.time() - ABANDONED
        if total > MOST_BYTES or abandoned:
            with contextlib.suppress(OSError):
                Path(entry.path).unlink()
            total -= size
