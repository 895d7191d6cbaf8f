"""Climbing: a kernel that begins on NumPy and becomes native once that has paid for loading numba.

Whoever cannot know how often a kernel will run does well to wait until what was lost equals what the change costs.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

from ..events import wants_every_step
from .base import Kernel
from .native import support

LOAD = 1.0  # seconds to load numba and compile, or read from disk, a kernel
READY = 0.05  # the same where numba is loaded already
POINT = {"blocks": 3e-9, "matmul": 2.5e-11}  # seconds that NumPy takes for one point of an index space


def _made(make: Callable[[], Kernel | None]) -> Kernel | None:
    """Return the native kernel, or None with a warning where there can be none."""
    try:
        return make()
    except Exception as error:  # numba raises anything where it cannot compile
        said = f"{type(error).__name__}: {error}"
        warnings.warn(
            f"a step stays on NumPy, because no kernel could be made of it: {said}", support.NativeWarning, stacklevel=3
        )
        return None


def climbing(slow: Kernel, make: Callable[[], Kernel | None], seconds: float, *, visible: bool = False) -> Kernel:
    """Return a kernel that runs ``slow`` until it has taken as long as loading the native one would.

    ``seconds`` is what one run is thought to take. A ``visible`` kernel has rounds that some hooks want to see; for those it stays slow.
    """
    lock = threading.Lock()
    native: Kernel | None = None
    tried, spent, expected = False, 0.0, seconds

    def run(*operands: Any) -> Any:
        nonlocal native, tried, spent, expected
        if not tried and spent + expected >= (READY if support.loaded() else LOAD):
            with lock:
                if not tried:
                    native = _made(make) if support.usable() else None
                    tried = True
        if native is not None and not (visible and wants_every_step()):
            return native(*operands)
        if tried:
            return slow(*operands)
        start = perf_counter()
        made = slow(*operands)
        expected = perf_counter() - start
        spent += expected
        return made

    return run
