"""The tensor cache: results kept by key, or by what they were computed from, within a bound of memory."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NoReturn

import numpy as np

from ..backends.numpy import as_numpy
from ..diagnostics import bytes_text, value_text
from ..errors import InputError, expect
from ..ir.ops import constant_digest
from ..plan.build import Step
from ..store import EvictionPolicy, Store, StoreStats, of_one_process
from .call import Call

Array = np.ndarray[Any, Any]


class TensorCache:
    """Keeps arrays under keys, at most ``limit_mb`` million bytes of them; the policy says which go first.

    What is kept never changes: ``insert`` makes a copy, unless the array and all that owns its memory are read-only
    already, and ``get`` returns a read-only array. Safe to use from several threads.

    As a wrapper of calls, ``Executor(wrap=[cache])``, it keeps the result of every step by its operation and the digests
    of its operands, so that a step which saw the same values before is not computed again.

    >>> cache = TensorCache(EvictionPolicy.LRU, limit_mb=100)
    >>> cache.insert("weights", [1.0, 2.0])
    True
    >>> cache.get("weights"), cache.get("other")
    (array([1., 2.]), None)
    >>> cache
    TensorCache(1 tensor, 16 B of 95.4 MiB, LRU, hit rate 50%)
    >>> from tensorlogic import Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> graph, steps = b.build(y=b.exp(b.input("x", (2,)))), TensorCache()
    >>> executor = Executor(wrap=[steps])
    >>> for _ in range(3): y = executor.execute(graph, {"x": [0.0, 1.0]})["y"]
    >>> steps.stats().hits, steps.stats().misses
    (2, 1)
    """

    def __init__(self, policy: EvictionPolicy = EvictionPolicy.LRU, limit_mb: float = 1000) -> None:
        expect(policy, EvictionPolicy, "an EvictionPolicy is expected", "write EvictionPolicy.LRU, FIFO or LFU")
        if isinstance(limit_mb, bool) or not isinstance(limit_mb, int | float) or not 0 <= limit_mb < math.inf:
            raise InputError(f"limit_mb is a number of megabytes, got {value_text(limit_mb)}", code="E959")
        self._store: Store[Hashable, Array] = Store(int(limit_mb * 1e6), policy, lambda a: a.nbytes)

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a tensor cache", "make one in each process: TensorCache()")

    def insert(self, key: Hashable, tensor: Any) -> bool:
        """Keep a tensor under a key, in place of what was there; tell whether it is small enough to be kept."""
        expect(key, Hashable, "a key has a hash, such as text or a tuple")
        array = as_numpy(tensor, None)
        fits = bool(array.nbytes <= self._store.bound)
        self._store.put(key, frozen(array, whole=True) if fits else array)  # too large a one is not kept, so not copied
        return fits

    def get(self, key: Hashable) -> Array | None:
        """Return the tensor kept under a key, read-only, or None; ``array.copy()`` is one to write into."""
        expect(key, Hashable, "a key has a hash, such as text or a tuple")
        found = self._store.get(key)
        return None if found is None else found.view()  # a view of its own: shape and strides can be assigned

    def wrap(self, call: Call) -> Call:
        """Return a call that looks here first for what a step gives on these operands."""

        def cached(step: Step, args: tuple[Any, ...]) -> Any:
            key = None if step.op.is_view or len(step.writes) != 1 else _call_key(step, args)
            entry = None if key is None else self.get(key)
            if entry is not None:
                return entry.copy()  # the caller may get it, and write into it
            value = call(step, args)
            if key is not None and isinstance(value, np.ndarray):
                self.insert(key, value)
            return value

        return cached

    __call__ = wrap

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


def _call_key(step: Step, args: tuple[Any, ...]) -> Hashable | None:
    """Return what the result of a step depends on; None where an operand is no array of NumPy's and no Python scalar."""
    digests = []
    for x in args:
        if isinstance(x, np.ndarray):
            digests.append(constant_digest(x))
        elif type(x) in (bool, int, float):
            digests.append(repr(x))
        else:
            return None
    return step.op, step.types, tuple(digests)


def frozen(array: Array, *, whole: bool = False) -> Array:
    """Return an array that nobody can write into: the one given where that is so already, else a copy.

    With ``whole`` a view of something larger is copied too, because it would keep all of that alive.
    """
    owner: Any = array
    while type(owner) is np.ndarray and not owner.flags.writeable and owner.base is not None:
        owner = owner.base
    fixed = type(owner) is bytes or (type(owner) is np.ndarray and not owner.flags.writeable)
    if fixed and not (whole and memoryview(owner).nbytes != array.nbytes):
        return array
    copy = np.array(array)
    copy.flags.writeable = False
    return copy
