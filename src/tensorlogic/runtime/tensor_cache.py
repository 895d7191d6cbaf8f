"""The tensor cache: results kept by key, within a bound of memory, that nobody can change."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from ..backends.numpy import as_numpy
from ..diagnostics import bytes_text
from ..errors import InputError
from ..store import EvictionPolicy, Store, StoreStats

Array = np.ndarray[Any, Any]


class TensorCache:
    """Keeps arrays under keys, at most ``limit_mb`` million bytes of them; the policy says which go first.

    What is kept never changes: ``insert`` makes a copy, unless the array and all that owns its memory are read-only
    already, and ``get`` returns a read-only array. Safe to use from several threads.

    >>> cache = TensorCache(EvictionPolicy.LRU, limit_mb=100)
    >>> cache.insert("weights", [1.0, 2.0])
    True
    >>> cache.get("weights"), cache.get("other")
    (array([1., 2.]), None)
    >>> cache
    TensorCache(1 tensor, 16 B of 95.4 MiB, LRU, hit rate 50%)
    """

    def __init__(self, policy: EvictionPolicy = EvictionPolicy.LRU, limit_mb: float = 1000) -> None:
        if not isinstance(policy, EvictionPolicy):
            raise InputError(f"policy is an EvictionPolicy, got {policy!r}", code="E301",
                             suggestions=[f"write EvictionPolicy.{p.name}" for p in EvictionPolicy])  # fmt: skip
        if isinstance(limit_mb, bool) or not isinstance(limit_mb, int | float) or not 0 <= limit_mb < math.inf:
            raise InputError(f"limit_mb is a number of megabytes, got {limit_mb!r}", code="E301")
        self._store: Store[Hashable, Array] = Store(int(limit_mb * 1e6), policy, lambda a: a.nbytes)

    def insert(self, key: Hashable, tensor: Any) -> bool:
        """Keep a tensor under a key, in place of what was there; tell whether it is small enough to be kept."""
        array = as_numpy(tensor, None)
        fits = bool(array.nbytes <= self._store.bound)
        self._store.put(key, _frozen(array) if fits else array)  # too large a one is not kept, so not copied
        return fits

    def get(self, key: Hashable) -> Array | None:
        """Return the tensor kept under a key, read-only, or None; ``array.copy()`` is one to write into."""
        found = self._store.get(key)
        return None if found is None else found.view()  # a view of its own: shape and strides can be assigned

    def contains(self, key: Hashable) -> bool:
        """Tell whether a tensor is kept under a key; this does not count as use."""
        return key in self._store

    def stats(self) -> StoreStats:
        """Return hits, misses, evictions, the number of tensors and their bytes."""
        return self._store.stats()

    def clear(self) -> None:
        """Forget every tensor; the counts go on."""
        self._store.clear()

    def __contains__(self, key: object) -> bool:
        return key in self._store

    def __len__(self) -> int:
        return len(self._store)

    def __repr__(self) -> str:
        s = self.stats()
        return (
            f"TensorCache({s.entries} tensor{'s' * (s.entries != 1)}, {bytes_text(s.size)} of "
            f"{bytes_text(self._store.bound)}, {self._store.policy.name}, hit rate {s.hit_rate:.0%})"
        )


def _frozen(array: Array) -> Array:
    """Return an array that nobody writes into: the one given where that is so already, else a copy."""
    owner: Any = array
    while type(owner) is np.ndarray and not owner.flags.writeable and owner.base is not None:
        owner = owner.base
    if (type(owner) is np.ndarray and not owner.flags.writeable) or type(owner) is bytes:
        whole = owner.nbytes if type(owner) is np.ndarray else len(owner)
        if whole == array.nbytes:  # a small view would keep all of its owner alive, and the bound would not see it
            return array
    copy = np.array(array)
    copy.flags.writeable = False
    return copy
