"""numba, loaded on first need: how kernels are compiled and where their machine code is kept.

Modules that hold kernels import numba when they are imported, so nobody imports them before :func:`usable` said yes.
"""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

from ...store import Lock

F = TypeVar("F", bound=Callable[..., Any])
# what may be reordered: sums of floats; never what NaN and infinity are
FAST = frozenset({"contract", "reassoc", "nsz", "arcp"})
COMPILING = Lock()  # held by whoever compiles


class NativeWarning(UserWarning):
    """Something of the native tier could not be used; the answers are the same, only slower."""


@cache
def usable() -> bool:
    """Tell whether numba is there and works; the first time it is not, say so once."""
    try:
        import numba
    except Exception as error:  # a broken installation raises anything
        warnings.warn(f"numba cannot be used, so plans run without native code: {error}", NativeWarning, stacklevel=3)
        return False
    return not numba.config.DISABLE_JIT


def loaded() -> bool:
    """Tell whether numba is loaded already, so that using it costs no time."""
    return "numba" in sys.modules and usable()


def _compilers() -> list[Any]:
    """Return the locks under which something is compiled, ours and then numba's: the order in which they are taken."""
    from numba.core.compiler_lock import global_compiler_lock

    return [COMPILING, global_compiler_lock]


def _hold() -> None:
    for lock in _compilers():
        lock.acquire()


def _let_go() -> None:
    for lock in reversed(_compilers()):
        lock.release()


@cache
def mind_forks() -> None:
    """Let a fork wait for compilations: the child would wait for ever for one that a thread it does not have was in.

    What is registered last is asked first, so this comes after numba has loaded logging, which holds a lock of its own meanwhile.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_let_go)


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
