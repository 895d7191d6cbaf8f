"""numba, loaded on first need: how kernels are compiled and where their machine code is kept.

Modules that hold kernels import numba when they are imported, so nobody imports them before :func:`usable` said yes.
"""

from __future__ import annotations

import _frozen_importlib
import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from threading import current_thread, get_ident, main_thread
from time import monotonic, sleep
from typing import Any, TypeVar

from ...ir.whole_files import Beside
from ...store import Lock

F = TypeVar("F", bound=Callable[..., Any])
# what may be reordered: sums of floats; never what NaN and infinity are
FAST = frozenset({"contract", "reassoc", "nsz", "arcp"})
COMPILING = Lock()  # held by whoever compiles
LONGEST_IMPORT = 60.0  # seconds that a fork waits for other threads to have imported what they import
_held: dict[int, list[Any]] = {}  # the locks that a fork holds, by thread


class NativeWarning(UserWarning):
    """Something of the native tier could not be used; the answers are the same, only slower."""


@cache
def usable() -> bool:
    """Tell whether numba is there and works; the first time it is not, say so once."""
    mind_forks()
    try:
        numba = _imported("numba")
    except Exception as error:  # a broken installation raises anything
        warnings.warn(f"numba cannot be used, so plans run without native code: {error}", NativeWarning, stacklevel=3)
        return False
    return not numba.config.DISABLE_JIT


def _imported(name: str) -> Any:
    """Import a module on another thread than the main one, where an interrupt may come: what it leaves half imported is never whole again."""
    beside = Beside(name not in sys.modules and current_thread() is main_thread())
    try:
        return beside.call(import_module, name)()
    finally:
        beside.close()


def loaded() -> bool:
    """Tell whether numba is loaded already, so that using it costs no time."""
    return "numba" in sys.modules and usable()


def _compilers() -> list[Any]:
    """Return the locks under which something is compiled, ours and then numba's: the order in which they are taken."""
    if "numba" not in sys.modules:
        return [COMPILING]
    from numba.core.compiler_lock import global_compiler_lock

    return [COMPILING, global_compiler_lock]


def _importing() -> bool:
    """Tell whether another thread is in the midst of importing a module of this package or of numba."""
    me, locks = get_ident(), list(getattr(_frozen_importlib, "_module_locks", {}).items())
    held = [ref() for name, ref in locks if name.partition(".")[0] in ("tensorlogic", "numba", "llvmlite")]
    return any(lock is not None and lock.owner not in (None, me) for lock in held)


def _hold() -> None:
    held = _held.setdefault(get_ident(), [])
    end = monotonic() + LONGEST_IMPORT
    while _importing() and monotonic() < end:
        sleep(0.001)
    for lock in _compilers():
        held.append(lock)  # an interrupt may come as it is taken
        lock.acquire()


def _let_go() -> None:
    held = _held.get(get_ident(), [])
    while held:
        with contextlib.suppress(RuntimeError):  # it was not taken
            held[-1].release()
        held.pop()


@cache
def mind_forks() -> None:
    """Let a fork wait for compilations and imports: the child would wait for ever for one that a thread it does not have was in.

    What is registered last is asked first, so this comes after logging, which holds a lock meanwhile that numba takes as it is imported, and
    after concurrent.futures, which SciPy imports.
    """
    if hasattr(os, "register_at_fork"):
        import logging  # noqa: F401

        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)
        os.register_at_fork(after_in_parent=_let_go, after_in_child=_let_go)  # where an interrupt cut the other one off


def kernel(function: F | None = None, *, inline: bool = False, fast: bool = True, **options: Any) -> Any:
    """Decorate a function that numba compiles: without the GIL, with NumPy's division, cached on disk where that is possible.

    ``inline`` ones are for other kernels to call; ``fast=False`` keeps floating-point operations in their written order.
    """
    import numba

    from .code_cache import CodeCache

    mind_forks()

    def decorate(f: F) -> F:
        chosen: dict[str, Any] = {"nogil": True, "error_model": "numpy", **options}
        if fast:
            chosen["fastmath"] = set(FAST)
        if inline:
            chosen["inline"] = "always"
        dispatcher = numba.njit(**chosen)(f)
        if not inline:
            with contextlib.suppress(OSError):  # it is not written in a file
                dispatcher._cache = CodeCache.of(f)
        result: F = dispatcher
        return result

    return decorate if function is None else decorate(function)
