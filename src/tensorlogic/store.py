"""One bounded store: the cache behind plans, compiled graphs, tensors and models."""

from __future__ import annotations

import os
import sys
import weakref
from _thread import RLock
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from numbers import Real
from typing import Generic, NamedTuple, NoReturn, Protocol, TypeVar

from .diagnostics import value_text
from .errors import InputError, expect

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class EvictionPolicy(Enum):
    """Which entry goes when a store is full.

    >>> EvictionPolicy.LRU.value
    'least recently used'
    """

    LRU = "least recently used"
    FIFO = "first in, first out"
    LFU = "least frequently used"


class StoreStats(NamedTuple):
    """What a store has done so far.

    >>> StoreStats(hits=3, misses=1, evictions=0, entries=1, size=1).hit_rate
    0.75
    """

    hits: int
    misses: int
    evictions: int
    entries: int
    size: int

    @property
    def hit_rate(self) -> float:
        """The share of look-ups that found something, 0 where there was none."""
        looked = self.hits + self.misses
        return self.hits / looked if looked else 0.0


class _Entry(Generic[V]):
    """A value that is kept, its size, and how often it was asked for."""

    __slots__ = ("size", "uses", "value")

    def __init__(self, value: V, size: int) -> None:
        self.value, self.size, self.uses = value, size, 0


class _Locked(Protocol):
    def reset_lock(self) -> None: ...


_locked: weakref.WeakSet[_Locked] = weakref.WeakSet()
_locks: weakref.WeakSet[Lock] = weakref.WeakSet()


def reset_in_child(holder: _Locked) -> None:
    """See to it that a forked process does not wait for a lock that a thread of its parent holds: it has no such thread."""
    _locked.add(holder)


def of_one_process(what: str, *hints: str) -> InputError:
    """Return the error of pickling or copying something that only means something in the process that made it."""
    return InputError(
        f"{what} belongs to the process that made it: it is neither pickled nor copied", *hints, code="E317"
    )


class Lock(RLock):  # type: ignore[misc]  # C lets it be extended
    """A lock for ``with``: its holder may take it again, it is free in a forked process, and an interrupt never leaves it taken.

    A forked process has only the thread that forked, so no other is there to give a lock back. For what is whole at any moment; what a thread
    may have left half changed is put right by :func:`reset_in_child`.

    From Python 3.14 on an interrupt may come between taking a lock and the block of ``with``, where nobody would give it back: Python looks for
    interrupts after it called something of C. Here that is inside of ``try``, and there is no such call between it and the block.

    >>> with Lock() as held:
    ...     held
    True
    """

    def __init__(self) -> None:
        _locks.add(self)

    def __reduce__(self) -> NoReturn:  # what holds one, and says nothing of its own
        raise of_one_process("an object with a lock", "make one in each process")

    if sys.version_info >= (3, 14):

        def __enter__(self) -> bool:  # type: ignore[override] # there it is acquire() itself, which takes arguments
            try:
                return self.acquire()
            except BaseException:
                try:  # noqa: SIM105 - suppress() is a call, and makes room for another interrupt
                    self.release()
                except RuntimeError:  # interrupted while it waited: it was not taken
                    pass
                raise


def _reset_locks() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # type: ignore[attr-defined] # the thread that forks goes on holding its own
            lock._at_fork_reinit()  # type: ignore[attr-defined]
    for holder in list(_locked):
        holder.reset_lock()


if hasattr(os, "register_at_fork"):  # there are no forks on Windows
    os.register_at_fork(after_in_child=_reset_locks)


class Store(Generic[K, V]):
    """A thread-safe mapping that stays within a bound.

    ``measure`` gives the size of a value; the default counts entries, ``lambda a: a.nbytes`` bounds bytes.

    >>> s = Store(2)
    >>> for k in "aba": s.put(k, k.upper())
    >>> s.put("c", "C")
    >>> s.get("a"), s.get("b"), s.stats().evictions
    ('A', None, 1)
    """

    def __init__(
        self, bound: int, policy: EvictionPolicy = EvictionPolicy.LRU, measure: Callable[[V], int] = lambda _: 1
    ) -> None:
        expect(bound, Real, "the bound of a store is a number", "write Store(100)")
        if bound < 0:
            raise InputError(f"the bound of a store cannot be negative, got {value_text(bound)}", code="E311")
        self.bound, self.policy = bound, policy
        self._measure = measure
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()
        self._lock = Lock()  # a value that goes may look into the store
        self._size = self._hits = self._misses = self._evictions = 0
        reset_in_child(self)

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a store", "make one in each process")

    def reset_lock(self) -> None:
        """Start with a free lock; what a thread of the parent process was changing at the fork is forgotten."""
        if not self._lock.acquire(blocking=False):
            self._entries, self._size = OrderedDict(), 0
        self._lock = Lock()

    def get(self, key: K) -> V | None:
        """Return the value kept under a key, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                self._misses += 1
                return None
            self._hits += 1
            entry.uses += 1
            if self.policy is EvictionPolicy.LRU:
                self._entries.move_to_end(key)
            return entry.value

    def peek(self, key: K) -> V | None:
        """Return what is kept under a key, or None; this counts neither as a look-up nor as use."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None else entry.value

    def put(self, key: K, value: V) -> None:
        """Keep a value; others leave until it fits. A value larger than the bound is not kept."""
        size = self._measure(value)
        with self._lock:
            self._drop(key)
            if size > self.bound:
                return
            while self._size + size > self.bound:
                self._drop(self._victim())
                self._evictions += 1
            self._entries[key] = _Entry(value, size)
            self._size += size

    def _victim(self) -> K:
        if self.policy is EvictionPolicy.LFU:
            return min(self._entries, key=lambda key: self._entries[key].uses)
        return next(iter(self._entries))

    def _drop(self, key: K) -> None:
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._size -= entry.size

    def discard(self, key: K) -> bool:
        """Forget what is kept under a key; False where there is nothing."""
        with self._lock:
            there = key in self._entries
            self._drop(key)
            return there

    def values(self) -> list[V]:
        """Return what is kept, without counting it as looked for."""
        with self._lock:
            return [entry.value for entry in self._entries.values()]

    def key_of(self, value: V) -> K | None:
        """Return the key that a value is kept under, or None; this too counts as no use."""
        with self._lock:
            return next((key for key, entry in self._entries.items() if entry.value is value), None)

    def clear(self) -> None:
        """Forget everything kept; the counts go on."""
        with self._lock:
            self._entries.clear()
            self._size = 0

    def stats(self) -> StoreStats:
        """Return the counts so far."""
        with self._lock:
            return StoreStats(self._hits, self._misses, self._evictions, len(self._entries), self._size)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[K]:
        with self._lock:
            return iter(list(self._entries))
