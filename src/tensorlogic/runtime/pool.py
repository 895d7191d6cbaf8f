"""The memory pool: arrays whose memory is used again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, NoReturn

import numpy as np

from ..diagnostics import value_text
from ..errors import DTypeError, InputError, ShapeError
from ..store import of_one_process
from .arena import Arena, Array, PoolStats
from .values import NUMPY


class MemoryPool:
    """Gives out arrays and reuses their memory once they are given back and no longer referenced.

    ``allocate`` gives an uninitialised, contiguous array that starts at a multiple of 64 bytes; ``deallocate`` takes it back.
    At most ``max_bytes`` of free memory are kept. An array that is dropped and never given back is lost to the pool, not
    leaked. ``MemoryPool(arena=ARENA)`` shows the memory that runs use.

    >>> pool = MemoryPool()
    >>> x = pool.allocate((64, 10))
    >>> pool.deallocate(x)
    >>> del x  # until then its memory is not used again
    >>> y = pool.allocate((80, 8))
    >>> print(pool.stats())
    2 allocations, 50% reused; 5.0 KiB in use, 0 B kept, at most 5.0 KiB in use
    """

    def __init__(self, max_bytes: int = 256 << 20, *, arena: Arena | None = None) -> None:
        self._arena = Arena(whole_bytes(max_bytes, "max_bytes")) if arena is None else arena

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a memory pool", "make one in each process: MemoryPool()")

    @property
    def max_bytes(self) -> int:
        """The most bytes of free memory that are kept."""
        return self._arena.most_free

    def allocate(self, shape: int | Sequence[int], dtype: Any = "float64") -> Array:
        """Return an array whose contents are whatever was there before."""
        kind = NUMPY.get(dtype) if type(dtype) is str else None
        if kind is None:
            kind = number_dtype(dtype)
        sizes = whole_shape(shape)
        memory, start = self._arena.memory(math.prod(sizes) * kind.itemsize)
        return np.ndarray(sizes, kind, memory, start)

    def deallocate(self, array: Array) -> None:
        """Take an array's memory back; it is used again once the caller has dropped the array.

        No other array may show the memory: a view that somebody keeps is an error, and the array stays in use.
        """
        self._arena.give(array, unseen=True)

    def clear(self) -> None:
        """Give all free memory back to the system; arrays in use stay as they are, and the counts go on."""
        self._arena.trim()

    def stats(self) -> PoolStats:
        """Return the counts so far; bytes are those of the size classes."""
        return self._arena.stats()

    def __repr__(self) -> str:
        return f"MemoryPool({self.stats()})"


def number_dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's dtype for a name, refusing those that uninitialised memory cannot hold."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise DTypeError(f"NumPy has no dtype {value_text(dtype)}", code="E951") from None
    if kind.hasobject or not kind.itemsize:
        raise DTypeError(f"a pool holds numbers, not {kind}", "use np.empty for objects", code="E951")
    return kind


def whole_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of integers."""
    try:
        sizes = (index(shape),) if hasattr(shape, "__index__") else tuple([index(d) for d in shape])
    except TypeError:
        raise ShapeError(f"a shape is a tuple of integers, got {value_text(shape)}", code="E950") from None
    if min(sizes, default=0) < 0:
        raise ShapeError(f"a shape cannot have negative sizes, got {value_text(list(sizes))}", code="E950")
    if max(sizes, default=0) >= 2**63:
        raise ShapeError(f"a size must be below 2^63, got {value_text(max(sizes))}", code="E950")
    return sizes


def whole_bytes(value: Any, name: str) -> int:
    """Return a number of bytes, given under a name, as an integer."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise InputError(f"{name} is a number of bytes, got {value_text(value)}", code="E310")
    return index(value)
