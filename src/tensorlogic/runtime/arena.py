"""The arena: reusable blocks of memory. Runs take the arrays that they write into from :data:`ARENA`.

A block that was given back is used again only when no array shows it any more: the interpreter counts who holds it. So
a result that somebody still has is never overwritten.
"""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Sequence
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import bytes_text
from ..errors import InputError, OutOfMemoryError, ViewError
from ..store import Lock

Array = np.ndarray[Any, Any]
ALIGN = 64  # bytes: a cache line, and the widest vector register
_BYTE = np.dtype(np.uint8)
_LOOK = 16  # how many free blocks of a size are looked at for one that nobody holds any more


class PoolStats(NamedTuple):
    """What an :class:`Arena`, or the :class:`~tensorlogic.MemoryPool` that shows one, has done and holds.

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


class _Block(weakref.ref[Array]):
    """A piece of memory from the system; ``memory`` holds it while it is free, its user's array while it is in use."""

    __slots__ = ("key", "memory", "since", "size", "start")
    memory: Array | None
    key: int  # the identity of the memory
    since: int  # when it was given back, counted in allocations
    size: int
    start: int  # of the first aligned byte


_probe = _Block(np.empty(0))
_probe.memory = np.empty(0)
ALONE = getrefcount(_probe.memory)  # what the interpreter counts for an array that one attribute refers to


class Arena:
    """Blocks of bytes in free lists, one for each size class; safe to use from several threads, finalizers and forks.

    At most ``most_free`` bytes of free memory are kept; the rest, what was free for longest, goes back to the system. A
    block that is dropped and never given back is lost to the arena, not leaked.

    >>> arena = Arena()
    >>> block = arena.take(1000)
    >>> block.size, block.ctypes.data % 64
    (1000, 0)
    >>> arena.give(block)
    >>> del block  # until then its memory is not used again
    >>> again = arena.take(990)
    >>> print(arena.stats())
    2 allocations, 50% reused; 1.0 KiB in use, 0 B kept, at most 1.0 KiB in use
    """

    def __init__(self, most_free: int = 256 << 20) -> None:
        self.most_free = most_free
        self._free: dict[int, list[_Block]] = {}  # by size class, the oldest first
        self._known: dict[int, _Block] = {}  # by the identity of the memory, free or in use
        # blocks given back, and those whose memory was dropped: noted at any moment, in a finalizer too, and sorted in later
        self._returned: deque[Any] = deque()
        self._allocations = self._reuses = self._in_use = self._kept = self._peak = 0
        self._lock = Lock()

    def take(self, nbytes: int) -> Array:
        """Return a block of ``nbytes`` bytes, aligned to 64, with undefined contents."""
        memory, start = self.memory(nbytes)
        return np.ndarray((nbytes,), _BYTE, memory, start)

    def memory(self, nbytes: int) -> tuple[Array, int]:
        """Return aligned memory of at least ``nbytes`` bytes, for an array of any shape and dtype."""
        # near sizes share a class: steps of 64 bytes, for large ones a thirty-second of their power of two
        step = 1 << max(6, nbytes.bit_length() - 6)
        size = (nbytes + step - 1) & -step or ALIGN
        memory = None
        with self._lock:
            if self._returned:
                self._settle()
            blocks = self._free.get(size)
            held: list[_Block] = []
            while blocks and len(held) < _LOOK:
                block = blocks.pop()
                if getrefcount(block.memory) == ALONE:
                    memory, block.memory = block.memory, None
                    self._kept -= size
                    self._reuses += 1
                    break
                held.append(block)
            if blocks is not None and held:
                blocks += held[::-1]
            if memory is None:
                memory = system_bytes(size + ALIGN)
                block = _Block(memory, self._returned.append)
                block.memory, block.key, block.start = None, id(memory), -memory.ctypes.data % ALIGN
                self._known[block.key] = block
                block.size = size  # at last: one that an interrupt left without counts for nothing
            self._allocations += 1
            self._in_use += size
            if self._in_use > self._peak:
                self._peak = self._in_use
        return memory, block.start

    def give(self, array: Array, *, unseen: bool = False) -> None:
        """Take a block back; it is used again once nobody holds an array over it, with ``unseen`` refused until then."""
        memory = array.base if isinstance(array, np.ndarray) else None
        block = self._known.get(id(memory))
        if block is None or block() is not memory:
            hint = "give back what it gave, to the same pool"
            raise InputError(f"{_described(array)} does not come from this pool", hint, code="E952")
        if block.memory is not None:
            raise InputError(f"{_described(array)} was given back before", "give an array back once", code="E953")
        del memory
        others = getrefcount(array.base) - ALONE if unseen else 0
        if others:
            hint = "drop the views first (del view), or keep a copy of what they show (view.copy())"
            shown = f"{others} other array{'s still show' if others > 1 else ' still shows'}"
            raise ViewError(f"{shown} the memory of {_described(array)}", hint, code="E954")
        block.memory = array.base
        self._returned.append(block)
        if self._lock.acquire(blocking=False):  # else whoever has it, or comes next, sorts it in
            try:
                self._settle()
            finally:
                self._lock.release()

    def trim(self, most_free: int = 0) -> None:
        """Give free memory beyond a bound back to the system, what was free for longest first."""
        with self._lock:
            self._settle()
            self._trim(most_free)

    def _trim(self, most_free: int) -> None:
        while self._kept > most_free:
            self._free = {size: blocks for size, blocks in self._free.items() if blocks}
            if not self._free:  # an interrupt took blocks away before they were counted off
                self._kept = 0
                break
            block = min(self._free.values(), key=lambda blocks: blocks[0].since).pop(0)
            del self._known[block.key]
            self._kept -= block.size

    def stats(self) -> PoolStats:
        """Return the counts so far; bytes are those of the size classes."""
        with self._lock:
            self._settle()
            return PoolStats(self._allocations, self._reuses, self._in_use, self._kept, self._peak)

    def _settle(self) -> None:
        """Sort in what came back, and forget what was dropped."""
        while self._returned:
            block: _Block = self._returned.popleft()
            if not hasattr(block, "size"):  # an interrupt came while it was made
                self._known = {key: other for key, other in self._known.items() if other is not block}
                continue
            self._in_use -= block.size
            if block.memory is None:
                if self._known.get(block.key) is block:  # else new memory has its identity
                    del self._known[block.key]
                continue
            block.since = self._allocations
            self._kept += block.size
            self._free.setdefault(block.size, []).append(block)
        if self._kept > self.most_free:
            self._trim(self.most_free)


def _described(array: Any) -> str:
    """Return how a message calls an array, or what should have been one."""
    if not isinstance(array, np.ndarray):
        return f"this {type(array).__name__}"
    return f"the array {array.dtype}{list(array.shape)}"


def system_bytes(nbytes: int) -> Array:
    """Return new bytes from the system."""
    try:
        return np.empty(nbytes, np.uint8)
    except (MemoryError, ValueError, OverflowError):  # NumPy calls a size beyond the address space a bad value
        hint = "ask for less, or use a narrower dtype"
        raise OutOfMemoryError(f"the system has no {bytes_text(nbytes)} to give", hint, code="E972") from None


ARENA = Arena()  # what runs take their buffers from


class Work(NamedTuple):
    """An array to write into: its slot, the buffer that holds it (-1 - k: output k), its shape and dtype."""

    slot: int
    buffer: int
    shape: tuple[int, ...]
    dtype: str


def _holders(arrays: list[Any], n: int) -> int:
    array = arrays[n]
    return getrefcount(array)


UNHELD = _holders([object()], 0)  # what the interpreter counts for something that only a list holds


def recycled(last: list[Any], n: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Return the n-th array of a list where nobody else holds it any more, else a new one, which takes its place."""
    if last[n] is None or _holders(last, n) > UNHELD:
        last[n] = np.empty(shape, dtype)
    return last[n]


def can_be_written_over(inputs: Sequence[Any], n: int, work: Work) -> bool:
    """Tell whether a donated array can be written into: it is a plain one, and shows no other input."""
    array, flags = inputs[n], inputs[n].flags
    plain = flags.c_contiguous and flags.writeable and flags.aligned and array.dtype == work.dtype
    return plain and not any(np.may_share_memory(array, x) for k, x in enumerate(inputs) if k != n)


def arrays(sizes: Sequence[int], work: Sequence[Work]) -> tuple[Any, list[Any]]:
    """Take buffers from the arena and return their block and the arrays over it, aligned for vector units."""
    block = ARENA.take(sum(sizes))
    at, start = [], 0
    for size in sizes:
        at.append(block[start : start + size])
        start += size
    return block, [
        at[w.buffer][: math.prod(w.shape) * np.dtype(w.dtype).itemsize].view(w.dtype).reshape(w.shape) for w in work
    ]
