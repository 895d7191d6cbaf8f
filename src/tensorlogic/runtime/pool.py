"""The memory pool: arrays whose memory is used again, from free lists by size.

Memory that was given back is used again only when no array shows it any more: the interpreter counts who holds it. So a
result that somebody still has is never overwritten.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from operator import index
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import bytes_text
from ..errors import DTypeError, InputError, OutOfMemoryError, ShapeError, ViewError
from ..ir.types import DTYPES

Array = np.ndarray[Any, Any]
ALIGN = 64  # bytes: a cache line, and the widest vector register
_LOOK = 16  # how many chunks of a size are looked at for one that nobody holds any more


class Holder:
    """Something with one reference to an array, to find out what the interpreter counts for that."""

    __slots__ = ("kept",)

    def __init__(self) -> None:
        self.kept = np.empty(0, np.uint8)


_probe = Holder()
ALONE = getrefcount(_probe.kept)  # the count of an array that one attribute or one view refers to


class PoolStats(NamedTuple):
    """What a :class:`MemoryPool` has done so far, and what it holds.

    >>> print(PoolStats(allocations=4, reuses=3, bytes_in_use=64, bytes_kept=128, peak_bytes=192))
    4 allocations, 75% reused; 64 B in use, 128 B kept, at most 192 B in use
    """

    allocations: int
    reuses: int
    bytes_in_use: int
    bytes_kept: int  # free, waiting to be used again
    peak_bytes: int  # the most that was in use at once

    @property
    def reuse_rate(self) -> float:
        """The share of allocations that took memory used before, 0 where there was none."""
        return self.reuses / self.allocations if self.allocations else 0.0

    def __str__(self) -> str:
        return (
            f"{self.allocations:,} allocation{'s' * (self.allocations != 1)}, {self.reuse_rate:.0%} reused; "
            f"{bytes_text(self.bytes_in_use)} in use, {bytes_text(self.bytes_kept)} kept, "
            f"at most {bytes_text(self.peak_bytes)} in use"
        )


class _Chunk(weakref.ref[Array]):
    """A piece of memory from the system; ``kept`` holds it while it is free, its user's array while it is in use."""

    __slots__ = ("kept", "key", "since", "size", "start")
    kept: Array | None
    key: int
    since: int  # when it was given back, counted in allocations
    size: int
    start: int  # of the first aligned byte


class MemoryPool:
    """Arrays whose memory is used again: free lists, one for each size class.

    ``allocate`` gives an uninitialised, contiguous array that starts at a multiple of 64 bytes; ``deallocate`` takes it back.
    At most ``max_bytes`` of free memory are kept; the rest, what was free for longest, goes back to the system. An
    array that is dropped and never given back is lost to the pool, not leaked. Safe to use from several threads.

    >>> pool = MemoryPool()
    >>> x = pool.allocate((64, 10))
    >>> pool.deallocate(x)
    >>> del x  # until then its memory is not used again
    >>> y = pool.allocate((80, 8))
    >>> print(pool.stats())
    2 allocations, 50% reused; 5.0 KiB in use, 0 B kept, at most 5.0 KiB in use
    """

    def __init__(self, max_bytes: int = 256 << 20) -> None:
        self.max_bytes = whole_bytes(max_bytes, "max_bytes")
        self._lock = threading.Lock()
        self._free: dict[int, list[_Chunk]] = {}  # by size class, the oldest first
        self._known: dict[int, _Chunk] = {}  # by the identity of the memory, free or in use
        # memory dropped without deallocate: the callback may come at any time, so it only makes a note
        self._lost: deque[weakref.ref[Array]] = deque()
        self._allocations = self._reuses = self._in_use = self._kept = self._peak = 0

    def allocate(self, shape: int | Sequence[int], dtype: Any = "float64") -> Array:
        """Return an array whose contents are whatever was there before."""
        kind = _DTYPES.get(dtype) if type(dtype) is str else None
        if kind is None:
            kind = number_dtype(dtype)
        try:
            count = math.prod(shape) if type(shape) is tuple and (not shape or min(shape) >= 0) else None
        except TypeError:
            count = None
        if type(count) is not int:
            shape = whole_shape(shape)
            count = math.prod(shape)
        nbytes = count * kind.itemsize
        # near sizes share a class: steps of 64 bytes, for large ones an eighth of their power of two
        step = 1 << max(6, nbytes.bit_length() - 4)
        size = (nbytes + step - 1) & -step or ALIGN
        raw = None
        with self._lock:
            if self._lost:
                self._forget_lost()
            chunks = self._free.get(size)
            if chunks:
                for n in range(len(chunks) - 1, max(-1, len(chunks) - 1 - _LOOK), -1):
                    chunk = chunks[n]
                    if getrefcount(chunk.kept) == ALONE:
                        del chunks[n]
                        raw, chunk.kept = chunk.kept, None
                        self._kept -= size
                        self._reuses += 1
                        break
            if raw is None:
                raw = fresh_bytes(size + ALIGN)
                chunk = _Chunk(raw, self._lost.append)
                chunk.kept, chunk.key, chunk.size = None, id(raw), size
                chunk.start = -raw.ctypes.data % ALIGN
                self._known[chunk.key] = chunk
            self._allocations += 1
            self._in_use += size
            if self._in_use > self._peak:
                self._peak = self._in_use
        return np.ndarray(shape, kind, raw, chunk.start)

    def deallocate(self, array: Array) -> None:
        """Take an array's memory back; it is used again once the caller has dropped the array.

        No other array may show the memory: a view that somebody keeps is an error, and the array stays in use.
        """
        raw = array.base if isinstance(array, np.ndarray) else None
        with self._lock:
            if self._lost:
                self._forget_lost()
            chunk = self._known.get(id(raw))
            if chunk is None or chunk() is not raw:
                raise InputError(f"{_named(array)} does not come from this pool", code="E802",
                                 suggestions=["give back what pool.allocate returned, to the same pool"])  # fmt: skip
            if chunk.kept is not None:
                raise InputError(f"{_named(array)} was given back before", code="E803",
                                 suggestions=["deallocate an array once"])  # fmt: skip
            del raw
            others = getrefcount(array.base) - ALONE
            if others:
                raise ViewError(
                    f"{others} other array{'s' * (others > 1)} still show{'s' * (others == 1)} the memory of "
                    f"{_named(array)}", code="E804",
                    suggestions=["drop the views first (del view), or keep a copy of what they show (view.copy())"],
                )  # fmt: skip
            size = chunk.size
            self._in_use -= size
            self._kept += size
            chunk.kept = array.base
            chunk.since = self._allocations
            chunks = self._free.get(size)
            if chunks is None:
                self._free[size] = [chunk]
            else:
                chunks.append(chunk)
            if self._kept > self.max_bytes:
                self._trim(self.max_bytes)

    def clear(self) -> None:
        """Give all free memory back to the system; arrays in use stay as they are, and the counts go on."""
        with self._lock:
            self._trim(0)

    def stats(self) -> PoolStats:
        """Return the counts so far; bytes are those of the size classes."""
        with self._lock:
            self._forget_lost()
            return PoolStats(self._allocations, self._reuses, self._in_use, self._kept, self._peak)

    def _trim(self, bound: int) -> None:
        while self._kept > bound:
            self._free = {size: chunks for size, chunks in self._free.items() if chunks}
            oldest = min(self._free.values(), key=lambda chunks: chunks[0].since)
            chunk = oldest.pop(0)
            del self._known[chunk.key]
            self._kept -= chunk.size

    def _forget_lost(self) -> None:
        while self._lost:
            chunk = self._lost.popleft()
            assert isinstance(chunk, _Chunk)
            self._in_use -= chunk.size
            if self._known.get(chunk.key) is chunk:
                del self._known[chunk.key]

    def __repr__(self) -> str:
        return f"MemoryPool({self.stats()})"


_DTYPES = {name: np.dtype(name) for name in DTYPES if name != "bfloat16"}  # making one takes as long as all the rest


def number_dtype(dtype: Any) -> np.dtype[Any]:
    """Return NumPy's dtype for a name, refusing those that uninitialised memory cannot hold."""
    try:
        kind: np.dtype[Any] = np.dtype(dtype)
    except (TypeError, ValueError):
        raise DTypeError(f"NumPy has no dtype {dtype!r}", code="E801") from None
    if kind.hasobject or not kind.itemsize:
        raise DTypeError(f"a pool holds numbers, not {kind}", code="E801", suggestions=["use np.empty for objects"])
    return kind


def _named(array: Any) -> str:
    if not isinstance(array, np.ndarray):
        return f"this {type(array).__name__}"
    return f"the array {array.dtype}{list(array.shape)}"


def whole_shape(shape: Any) -> tuple[int, ...]:
    """Return a shape as a tuple of integers."""
    try:
        sizes = tuple(index(d) for d in shape) if not hasattr(shape, "__index__") else (index(shape),)
    except TypeError:
        raise ShapeError(f"a shape is a tuple of integers, got {shape!r}", code="E801") from None
    if min(sizes, default=0) < 0:
        raise ShapeError(f"a shape cannot have negative sizes, got {list(sizes)}", code="E801")
    return sizes


def whole_bytes(value: Any, name: str) -> int:
    """Return a number of bytes, given under a name, as an integer."""
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise InputError(f"{name} is a number of bytes, got {value!r}", code="E801")
    return index(value)


def fresh_bytes(nbytes: int) -> Array:
    """Return fresh bytes from the system."""
    try:
        return np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError, OverflowError):  # NumPy calls a size beyond the address space a bad value
        raise OutOfMemoryError(f"the system has no {bytes_text(nbytes)} to give", code="E003",
                               suggestions=["ask for less, or use a narrower dtype"]) from None  # fmt: skip
