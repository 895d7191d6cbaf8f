"""From source to machine code: each kernel is a file in a folder of the user's, beside which numba keeps what it made of it."""

from __future__ import annotations

import hashlib
import importlib.util
import linecache
import os
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from ...ir.types import TensorType
from ..base import Kernel
from .support import FAST, NativeWarning

HEAD = """\
import numpy as np
from tensorlogic.backends.native.build import part
from tensorlogic.backends.native.small_matmul import product
from tensorlogic.backends.native.functions import FUNCTIONS, accumulate
from tensorlogic.backends.native.minmax import LEAST32, LEAST64, LOW32, LOW64, highest, lowest, unkey

"""
_made: dict[str, Any] = {}  # by digest; machine code is never given back
_lock = threading.RLock()


def _compilers() -> list[Any]:
    """Return the locks under which something is compiled, ours and then numba's: the order in which they are taken."""
    from numba.core.compiler_lock import global_compiler_lock

    return [_lock, global_compiler_lock]


def _hold() -> None:
    for lock in _compilers():
        lock.acquire()


def _let_go() -> None:
    for lock in reversed(_compilers()):
        lock.release()


@cache
def _mind_forks() -> None:
    """Let a fork wait for compilations: the child would wait for ever for one that a thread it does not have was in.

    What is registered last is asked first, so this comes after numba has loaded logging, which holds a lock of its own meanwhile.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)


@cache
def folder() -> Path | None:
    """Return where kernels are kept, a folder of the user's own; None where nothing can be written."""
    from ... import __version__
    from .functions import PARTS

    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    held = b"".join(Path(__file__).with_name(name).read_bytes() for name in ("small_matmul.py", "minmax.py", *PARTS))
    name = f"native-{__version__}-{hashlib.blake2b(held, digest_size=6).hexdigest()}"
    for place in (Path(home) / "tensorlogic", None):  # else one for this process alone
        try:
            base = Path(tempfile.mkdtemp(prefix="tensorlogic-")) if place is None else place
            base.mkdir(parents=True, exist_ok=True, mode=0o700)
            (base / name).mkdir(exist_ok=True, mode=0o700)
            if _ours(base) and _ours(base / name):
                with tempfile.TemporaryFile(dir=base / name):
                    return base / name
        except OSError:
            continue
    return None


def _ours(place: Path) -> bool:
    """Tell whether a folder is the user's own, and nobody else can write to it: what is in it will be run."""
    told = place.lstat()
    if not stat.S_ISDIR(told.st_mode):
        return False
    return not hasattr(os, "getuid") or (told.st_uid == os.getuid() and not told.st_mode & 0o022)


def array_type(t: TensorType, *, written: bool) -> Any:
    """Return what numba calls an array of a type; one that is only read may be read-only."""
    from numba import from_dtype, types

    rank = len(t.shape or ())
    return types.Array(from_dtype(np.dtype(t.dtype or "float64")), rank, "C", readonly=not written)


def compiled(
    text: str, reads: Sequence[TensorType], writes: Sequence[TensorType], numbers: int, *, listed: bool = False
) -> Kernel:
    """Return the machine code of ``kernel`` in a source, from memory, from disk, or newly made.

    It takes arrays, then an array of numbers where some are ``listed``, then so many numbers.
    """
    from numba import types

    _mind_forks()
    last = [types.Array(types.int64, 1, "C", readonly=True)] * listed + [types.int64] * numbers
    signature = (
        *(array_type(t, written=False) for t in reads), *(array_type(t, written=True) for t in writes), *last,
    )  # fmt: skip
    digest = hashlib.blake2b(f"{text}{signature}".encode(), digest_size=12).hexdigest()
    with _lock:
        found = _made.get(digest)
        if found is None:
            found = _made[digest] = _compile(text, digest, signature)
        return found


def _compile(text: str, digest: str, signature: tuple[Any, ...]) -> Any:
    where = folder()
    if where is None:
        return _from_text(text, digest, signature)
    path = where / f"k_{digest}.py"
    try:
        return _from_file(path, text, digest, signature)
    except OSError:  # the folder cannot be written to any more
        return _from_text(text, digest, signature)
    except Exception as error:
        kept = list((where / "__pycache__").glob(f"k_{digest}.*"))
        if not kept:
            raise
        warnings.warn(
            f"a kernel in {str(where)!r} cannot be used and is made anew: {error}", NativeWarning, stacklevel=2
        )
        for file in kept:
            file.unlink(missing_ok=True)
        return _from_file(path, text, digest, signature)


def _from_text(text: str, digest: str, signature: tuple[Any, ...]) -> Any:
    names: dict[str, Any] = {}
    shown = f"<kernel {digest}>"
    linecache.cache[shown] = (len(text), None, (HEAD + text).splitlines(keepends=True), shown)
    exec(compile(HEAD + text, shown, "exec"), names)
    return _jitted(names["kernel"], signature, keep=False)


def _from_file(path: Path, text: str, digest: str, signature: tuple[Any, ...]) -> Any:
    whole = HEAD + text + "\n"
    if not path.exists() or path.read_text() != whole:  # numba looks at the time of the file, so it is left alone
        from ...ir.files import write_whole

        write_whole(path, lambda file: file.write_text(whole))
    spec = importlib.util.spec_from_file_location(f"tensorlogic_kernel_{digest}", path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # machine code on disk names the module that it belongs to
    spec.loader.exec_module(module)
    return _jitted(module.kernel, signature, keep=True)


def part(function: Any, *, keep: bool = False, fast: bool = False) -> Any:
    """Decorate a function that a kernel calls, whose arrays do not overlap.

    Unless it is ``fast``, every operation is done as it is written, so that NaN and rounding are as NumPy has them.
    """
    import numba

    made = numba.njit(nogil=True, error_model="numpy", fastmath=set(FAST) if fast else False, cache=keep)(function)
    made._compiler.targetdescr = _restricted()
    return made


def _jitted(function: Any, signature: tuple[Any, ...], *, keep: bool) -> Any:
    made = part(function, keep=keep)
    made.compile(signature)
    made.disable_compile()
    return made


@cache
def _restricted() -> Any:
    """Return numba's target with one option more: the arrays that a kernel is given do not overlap.

    Without it LLVM does not vectorise loops over more than a few arrays.
    """
    from numba.core.cpu import CPUTargetOptions
    from numba.core.registry import cpu_target

    class Options(CPUTargetOptions):
        def finalize(self, flags: Any, options: Any) -> None:
            super().finalize(flags, options)
            flags.noalias = True

    class Target:
        options = Options
        typing_context = cpu_target.typing_context
        target_context = cpu_target.target_context

    return Target
