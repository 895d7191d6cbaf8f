"""One bounded store: the cache behind plans, compiled graphs, tensors and models."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from .errors import InputError

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
        self,
        bound: int,
        policy: EvictionPolicy = EvictionPolicy.LRU,
        measure: Callable[[V], int] = lambda _: 1,
    ) -> None:
        if bound < 0:
            raise InputError(f"the bound of a store cannot be negative, got {bound}", code="E301")
        self.bound, self.policy = bound, policy
        self._measure = measure
        self._entries: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._uses: dict[K, int] = {}
        self._lock = threading.RLock()  # a value that goes may look into the store
        self._size = self._hits = self._misses = self._evictions = 0

    def get(self, key: K) -> V | None:
        """Return the value kept under a key, or None."""
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                self._misses += 1
                return None
            self._hits += 1
            self._uses[key] += 1
            if self.policy is EvictionPolicy.LRU:
                self._entries.move_to_end(key)
            return found[0]

    def peek(self, key: K) -> V | None:
        """Return what is kept under a key, or None; this counts neither as a look-up nor as use."""
        with self._lock:
            entry = self._entries.get(key)
        return None if entry is None else entry[0]

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
            self._entries[key] = (value, size)
            self._uses[key] = 0
            self._size += size

    def _victim(self) -> K:
        if self.policy is EvictionPolicy.LFU:
            return min(self._entries, key=self._uses.__getitem__)
        return next(iter(self._entries))

    def _drop(self, key: K) -> None:
        found = self._entries.pop(key, None)
        if found is not None:
            self._size -= found[1]
            del self._uses[key]

    def values(self) -> list[V]:
        """Return what is kept, without counting it as looked for."""
        with self._lock:
            return [value for value, _ in self._entries.values()]

    def clear(self) -> None:
        """Forget everything kept; the counts go on."""
        with self._lock:
            self._entries.clear()
            self._uses.clear()
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
