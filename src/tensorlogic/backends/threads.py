"""How many threads BLAS takes: small products in a batch are faster on one, because each would wait for the others."""

from __future__ import annotations

from functools import cache
from threading import Lock
from typing import Any

from .base import Kernel

SMALL = 4_000_000  # arithmetic operations of one matrix product below which a batch of them runs on one thread
_lock = Lock()
_inside = 0  # how many are in such a product now
_before = 1  # the number of threads to go back to


@cache
def _libraries() -> list[Any]:
    """Return the controllers of the BLAS libraries that are loaded."""
    from threadpoolctl import ThreadpoolController

    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


def on_one_thread(kernel: Kernel) -> Kernel:
    """Return a kernel during which BLAS keeps to one thread; what it had before comes back when the last one ends."""

    def run(*operands: Any, **options: Any) -> Any:
        global _inside, _before  # noqa: PLW0603 - the setting is the process's, so its owner is the module
        libraries = _libraries()
        with _lock:
            if _inside == 0 and libraries:
                _before = libraries[0].get_num_threads()
                _set(libraries, 1)
            _inside += 1
        try:
            return kernel(*operands, **options)
        finally:
            with _lock:
                _inside -= 1
                if _inside == 0:
                    _set(libraries, _before)

    return run


def _set(libraries: list[Any], count: int) -> None:
    for library in libraries:
        library.set_num_threads(count)
