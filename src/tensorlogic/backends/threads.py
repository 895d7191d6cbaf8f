"""Threads: the pool that shares a step's work, and BLAS kept to one while it does. How many share a step, its plan says."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import cache, partial
from itertools import pairwise, product
from queue import SimpleQueue
from typing import Any, TypeVar

import numpy as np

from ..events import active_contexts
from ..plan.cost import Contraction
from ..store import Lock
from .base import Kernel

ALONE = 1 << 18  # multiplications of a matrix product up to which BLAS takes one thread anyway
PARTS = 4  # of an array, for each thread that computes some
PART = 1 << 16  # elements that such a part has at the least


T = TypeVar("T")
_lock = Lock()
_limits: set[object] = set()  # one for each kernel that runs now with BLAS on one thread
_before: list[tuple[Any, int]] = []  # libraries that are limited, and the number of threads that each goes back to


def _libraries() -> list[Any]:
    """Return the controllers of the BLAS libraries that are loaded; SciPy brings one of its own."""
    return _controllers("scipy.linalg" in sys.modules)


@cache
def _controllers(several: bool) -> list[Any]:
    from threadpoolctl import ThreadpoolController

    return [lib for lib in ThreadpoolController().lib_controllers if lib.user_api == "blas"]


def on_one_thread(kernel: Kernel) -> Kernel:
    """Return a kernel during which BLAS keeps to one thread; what it had before comes back when the last one ends.

    An interrupt may come at any moment, also while the old numbers are being set; then they are set again.
    """

    def run(*operands: Any, **options: Any) -> Any:
        limit, limited, interrupt = object(), True, None
        try:
            with _lock:
                _begin(limit)
            return kernel(*operands, **options)
        finally:
            while limited:
                try:
                    with _lock:
                        _end(limit)
                    limited = False
                except BaseException as error:
                    interrupt = error
            if interrupt is not None:
                raise interrupt

    return run


def _begin(limit: object) -> None:
    """Keep BLAS to one thread, unless it is already, for one more kernel."""
    if not _before:
        _before[:] = [(library, library.get_num_threads()) for library in _libraries()]
    if not _limits:
        for library, _ in _before:
            _setter(library)(1)
    _limits.add(limit)


def _end(limit: object) -> None:
    _limits.discard(limit)
    _restore()


def _restore() -> None:
    """Give BLAS its threads back, unless a kernel still needs it on one."""
    if not _limits:
        for library, count in _before:
            _setter(library)(count)
        _before.clear()


@cache
def _setter(library: Any) -> Callable[[int], Any]:
    """Return what gives a library a number of threads: OpenBLAS's own function, as far as it has threads of its own.

    threadpoolctl would do so too, but from version 3.8 on it ignores all threads of Python but the first that asked.
    """
    if getattr(library, "internal_api", "") == "openblas" and library.threading_layer == "pthreads":
        for prefix, suffix in product(("", "scipy_"), ("", "64_", "_64")):
            own = getattr(library.dynlib, f"{prefix}openblas_set_num_threads{suffix}", None)
            if own is not None:
                return own  # type: ignore[no-any-return]
    return library.set_num_threads  # type: ignore[no-any-return]


def _in_child() -> None:
    """Begin anew after a fork: threads stay behind, and whoever held the lock with them."""
    global _tickets, _threads
    _tickets, _threads = SimpleQueue(), 0
    _limits.clear()
    _restore()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


@cache
def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Return how many threads there are to use: as many as BLAS may, so that one setting rules both."""
    libraries = _libraries()
    if not libraries:
        return 1

    with _lock:  # while BLAS is kept to one thread, what it may have is what it goes back to
        counts = [count for _, count in _before] or [library.get_num_threads() for library in libraries]
    return min([_cores(), 8, *counts])


def with_threads(kernel: Kernel, count: int) -> Kernel:
    """Return a kernel that shares its work among at most so many threads; see :func:`allowed`."""

    def run(*operands: Any, **options: Any) -> Any:
        before = getattr(_own, "allowed", None)
        _own.allowed = count
        try:
            return kernel(*operands, **options)
        finally:
            _own.allowed = before

    return run


def allowed() -> int:
    """Return how many threads may share work that is done here: what the plan says of the step, or all outside of one."""
    count: int | None = getattr(_own, "allowed", None)
    return workers() if count is None else count


class _Ticket:
    """Leave for one more thread to take part in some work, until the caller takes it back."""

    __slots__ = ("done", "ended", "owner", "task")

    def __init__(self, work: Callable[[], None]) -> None:
        self.task: Callable[[], None] | None = partial(copy_context().run, work)
        self.done, self.ended = threading.Lock(), False
        self.owner: dict[str, str] = {}
        self.done.acquire()

    def use(self) -> None:
        """Take part, on a thread of the pool, unless the caller no longer waits for it."""
        if self.owner.setdefault("owner", "thread") == "thread" and self.task is not None:
            try:
                self.task()
            finally:
                self.task = None  # its arrays are the caller's again, to let go of
                self.ended = True
                self.done.release()

    def finish(self) -> None:
        """Return when nobody takes part with this ticket nor ever will; it may be asked again, also after an interrupt.

        That may come right after the lock was taken, which nobody would give back then: so ``ended`` says whether to wait at all.
        """
        if self.owner.setdefault("owner", "caller") == "caller":
            self.task = None  # with the arrays it holds: a thread may come to this ticket only much later
        elif not self.ended:
            self.done.acquire()


_tickets: SimpleQueue[_Ticket] = SimpleQueue()
_threads = 0  # that wait for tickets
_own = threading.local()  # of each thread: whether it takes part in shared work, and how many threads a step may use


def _serve(tickets: SimpleQueue[_Ticket]) -> None:
    while True:
        tickets.get().use()


def _hand_out(tickets: Sequence[_Ticket]) -> None:
    """Offer tickets to the pool, which grows to their number; a process that is ending has no new threads."""
    with contextlib.suppress(RuntimeError), _lock:
        _grow(len(tickets))
    for ticket in tickets:
        _tickets.put(ticket)


def _grow(count: int) -> None:
    global _threads  # noqa: PLW0603 - the pool is the process's, so its owner is the module
    while _threads < count:
        start_new_thread(_serve, (_tickets,))  # Thread.start() has places where an interrupt would be lost
        _threads += 1


def with_interrupts(function: Callable[[], T]) -> T:
    """Call a function that waits. Python's own waiting, when interrupted, may raise RuntimeError; this raises the KeyboardInterrupt."""
    try:
        return function()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def start_thread(thread: threading.Thread) -> None:
    """Start a thread, such that an interrupt meanwhile keeps no later thread from starting."""
    try:
        with_interrupts(thread.start)
    except BaseException:
        lock = getattr(threading, "_active_limbo_lock", None)  # from Python 3.14 on it may stay taken
        if lock is not None and getattr(lock, "_is_owned", bool)():
            lock.release()
        raise


def surely(function: Callable[[], object]) -> None:
    """Call a function until no interrupt cuts it off, and then raise the last interrupt; for what may be done twice."""
    interrupt = None
    while True:
        try:
            function()
            break
        except KeyboardInterrupt as error:
            interrupt = error
    if interrupt is not None:
        raise interrupt


def together(calls: Sequence[Callable[[], Any]], threads: int | None = None) -> None:
    """Run calls at the same time, some on this thread; all have ended when this returns or raises.

    This thread does whatever no other has begun, so it never waits for a thread that is busy or gone. What runs so already
    runs its own calls one after another, because the threads are taken.
    """
    if getattr(_own, "taking_part", False) or len(calls) == 1:
        for call in calls:
            call()
        return
    rest, errors = enumerate(calls), list[tuple[int, BaseException]]()

    def work() -> None:
        _own.taking_part = True
        try:
            for n, call in rest:  # whoever is free takes the next
                try:
                    call()
                except BaseException as error:
                    errors.append((n, error))
                    if not isinstance(error, Exception):  # an interrupt: nobody begins another
                        deque(rest, maxlen=0)
        finally:
            _own.taking_part = False

    tickets = [_Ticket(work) for _ in range(min(len(calls), threads or _cores()) - 1)]
    interrupt = None
    try:
        _hand_out(tickets)
        work()
    finally:
        while tickets:
            try:
                while tickets:
                    tickets[-1].finish()
                    tickets.pop()
            except BaseException as error:  # the threads still write to the caller's arrays
                interrupt = error
        if interrupt is not None:
            raise interrupt
    if errors:
        raise min(errors, key=lambda entry: (isinstance(entry[1], Exception), entry[0]))[1]


def together_or_stop(calls: Sequence[Callable[[], Any]], threads: int | None = None) -> None:
    """Run calls as :func:`together` does, each only while the run is not cancelled and within its time.

    For work that may take long, cut into calls of a fraction of a second each, whose results are dropped where one is not run.
    """
    contexts = active_contexts()  # those of this thread: others do not know them

    def run(call: Callable[[], Any]) -> None:
        for context in contexts:
            context.check()
        call()

    together([partial(run, call) for call in calls], threads)


def ranges(size: int, count: int) -> list[slice]:
    """Cut a size into as many ranges.

    >>> ranges(5, 2)
    [slice(0, 2, None), slice(2, 5, None)]
    """
    edges = [size * k // count for k in range(count + 1)]
    return [slice(a, b) for a, b in pairwise(edges)]


def share(call: Callable[[int, int], Any], size: int, count: int) -> None:
    """Call for a range of so many places, in as many parts at once."""
    if count < 2:
        call(0, size)
    else:
        together([partial(call, r.start, r.stop) for r in ranges(size, count)], count)


def in_parts(kernel: Kernel, count: int) -> Kernel:
    """Return a kernel of one operand whose parts run on so many threads where the array is contiguous.

    There are some parts for each thread: one that is held up, because something else runs on its core, then does fewer of them.
    """

    def run(x: Any, out: Any) -> Any:
        if count < 2 or not (x.flags.c_contiguous and out.flags.c_contiguous):
            return kernel(x, out=out)
        source, target = x.reshape(-1), out.reshape(-1)
        parts = ranges(source.size, max(count, min(PARTS * count, source.size // PART)))
        together([partial(kernel, source[r], out=target[r]) for r in parts], count)
        return out

    return run


def in_rows(bind: Callable[[Contraction], Kernel], form: Contraction, threads: int) -> Kernel:
    """Return the kernel of a product with BLAS on one thread; so many threads of ours share its rows."""
    if threads < 2:
        return on_one_thread(bind(form))
    label = form.spec.output[0]
    parts = ranges(form.sizes[label], threads)
    kernels = [bind(form._replace(sizes={**form.sizes, label: r.stop - r.start})) for r in parts]
    axes = [own.index(label) if label in own else None for own in form.spec.inputs]

    def cut(x: Any, axis: int | None, r: slice) -> Any:
        return x if axis is None else x[(slice(None),) * axis + (r,)]

    def run(a: Any, b: Any, out: Any) -> Any:
        rows = zip(kernels, parts, strict=True)
        together([partial(kernel, cut(a, axes[0], r), cut(b, axes[1], r), out=out[r]) for kernel, r in rows], threads)
        return out

    return on_one_thread(run)


def shared_matmul(a: Any, b: Any) -> Any:
    """Return the product of stacks of matrices, whose parts as many threads compute as the step may use."""
    stacks = len(a) > 1
    size = len(a) if stacks else a.shape[1]
    count = min(allowed(), size)
    if count < 2 and a[0].size * b.shape[2] <= ALONE:
        return np.matmul(a, b)
    out = np.empty((*a.shape[:2], b.shape[2]), np.result_type(a, b))

    def part(lo: int, hi: int) -> None:
        if stacks:
            np.matmul(a[lo:hi], b[lo:hi], out[lo:hi])
        else:
            np.matmul(a[:, lo:hi], b, out[:, lo:hi])

    on_one_thread(share)(part, size, count)
    return out
