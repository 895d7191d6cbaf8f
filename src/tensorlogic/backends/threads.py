"""Threads: BLAS keeps to one where its products are small, and costly functions of large arrays run on several.

A batch of small products is faster on one thread, because each would wait for the others. A function that takes many cycles
an element is not bound by memory, so that its halves run side by side; it takes no more threads than BLAS would.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cache, partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

from ..plan.contract import Contraction
from .base import Kernel

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

WIDE = 30_000_000  # arithmetic operations from which a product is worth handing half of it to another thread
SMALL = 4_000_000  # arithmetic operations of one matrix product below which a batch of them runs on one thread
_lock = Lock()
_inside = 0  # how many are in such a product now
_before: list[tuple[Any, int]] = []  # libraries, and the number of threads that each goes back to


def _libraries() -> list[Any]:
    """Return the controllers of the BLAS libraries that are loaded; SciPy brings one of its own."""
    return _found("scipy.linalg" in sys.modules)


@cache
def _found(several: bool) -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


def on_one_thread(kernel: Kernel) -> Kernel:
    """Return a kernel during which BLAS keeps to one thread; what it had before comes back when the last one ends."""

    def run(*operands: Any, **options: Any) -> Any:
        global _inside, _before  # noqa: PLW0603 - the setting is the process's, so its owner is the module
        libraries = _libraries()
        with _lock:
            if _inside == 0:
                _before = [(library, library.get_num_threads()) for library in libraries]
                _set([(library, 1) for library in libraries])
            _inside += 1
        try:
            return kernel(*operands, **options)
        finally:
            with _lock:
                _inside -= 1
                if _inside == 0:
                    _set(_before)

    return run


def _set(counts: Sequence[tuple[Any, int]]) -> None:
    for library, count in counts:
        library.set_num_threads(count)


@cache
def _pool(workers: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # loaded by those who use threads

    return ThreadPoolExecutor(workers, thread_name_prefix="tensorlogic")


def _in_child() -> None:
    """Begin anew after a fork: threads stay behind, and whoever held the lock with them."""
    global _lock, _inside
    if _inside:
        _set(_before)
    _lock, _inside = Lock(), 0
    _pool.cache_clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Return how many threads to use: as many as BLAS may, so that one setting rules both."""
    libraries = _libraries()
    if not libraries:
        return 1
    with _lock:  # while others keep BLAS to one thread, what it may have is what it goes back to
        given = [count for _, count in _before] if _inside else [lib.get_num_threads() for lib in libraries]
    return min([_cores(), 8, *given])


_inside_together = threading.local()


def together(calls: Sequence[Callable[[], Any]], threads: int | None = None) -> None:
    """Run calls at the same time, the first on this thread; all have ended when this returns or raises.

    What runs so already runs its own calls one after another: the threads are taken, and waiting for them could last for ever.
    """
    if getattr(_inside_together, "busy", False) or len(calls) == 1:
        for call in calls:
            call()
        return
    from concurrent.futures import wait

    workers = max(1, (threads or _cores()) - 1)
    futures, here = [], [calls[0]]
    for call in calls[1:]:
        try:
            futures.append(_pool(workers).submit(copy_context().run, _taken, call))
        except RuntimeError:  # the process is ending, and has no threads any more
            here.append(call)
    try:
        for call in here:
            _taken(call)
    finally:
        wait(futures)
    for future in futures:
        future.result()


def _taken(call: Callable[[], Any]) -> None:
    _inside_together.busy = True
    try:
        call()
    finally:
        _inside_together.busy = False


def ranges(size: int, count: int) -> list[slice]:
    """Cut a size into as many ranges.

    >>> ranges(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    edges = [size * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def in_parts(kernel: Kernel, count: int) -> Kernel:
    """Return a kernel of one operand whose parts run on so many threads where the array is contiguous."""

    def run(x: Any, out: Any) -> Any:
        if count < 2 or not (x.flags.c_contiguous and out.flags.c_contiguous):
            return kernel(x, out=out)
        source, target = x.reshape(-1), out.reshape(-1)
        together([partial(kernel, source[p], out=target[p]) for p in ranges(source.size, count)])
        return out

    return run


def in_rows(bind: Callable[[Contraction], Kernel], form: Contraction, threads: int) -> Kernel:
    """Return the kernel of a product with BLAS on one thread; so many threads of ours share the rows of a large one."""
    whole = bind(form)
    if form.flops < WIDE or not form.in_order or form.spec.inputs != form.labels:
        return on_one_thread(whole)
    label = form.spec.output[0]
    count = min(threads, form.sizes[label])
    if count < 2:
        return on_one_thread(whole)
    parts = ranges(form.sizes[label], count)
    kernels = [bind(form._replace(sizes={**form.sizes, label: r.stop - r.start})) for r in parts]
    axes = [own.index(label) if label in own else None for own in form.spec.inputs]

    def cut(x: Any, axis: int | None, r: slice) -> Any:
        return x if axis is None else x[(slice(None),) * axis + (r,)]

    def run(a: Any, b: Any, out: Any) -> Any:
        together([
            partial(kernel, cut(a, axes[0], r), cut(b, axes[1], r), out=out[r])
            for kernel, r in zip(kernels, parts, strict=True)
        ])  # fmt: skip
        return out

    return on_one_thread(run)
