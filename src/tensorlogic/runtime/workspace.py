"""Workspaces: scratch memory in arenas of bytes that are cut into blocks.

As in the memory pool, a block is used again only when no array shows it any more.
"""

from __future__ import annotations

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from sys import getrefcount
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import bytes_text
from ..errors import InputError, OutOfMemoryError, ShapeError
from .pool import ALIGN, ALONE, Array, Holder, fresh_bytes, number_dtype, whole_bytes, whole_shape


class AllocationStrategy(Enum):
    """Which free block of a :class:`WorkspacePool` a request gets.

    >>> AllocationStrategy.BEST_FIT.value
    'the smallest block that is large enough'
    """

    BEST_FIT = "the smallest block that is large enough"
    FIRST_FIT = "the first block that is large enough"
    EXACT_FIT = "a block of just this size, else a new one"
    POWER_OF_TWO = "the smallest block, sizes rounded up to a power of two"


class _Arena:
    """One stretch of memory, and its free spans (offset, size) in order."""

    __slots__ = ("free", "memory", "number", "size")

    def __init__(self, number: int, size: int) -> None:
        raw = fresh_bytes(size + ALIGN)
        start = -raw.ctypes.data % ALIGN
        self.memory = memoryview(raw.data)[start : start + size]
        self.number, self.size = number, size
        self.free = [(0, size)] if size else []

    def merge(self) -> None:
        """Make one span of free neighbours."""
        merged: list[tuple[int, int]] = []
        for offset, size in self.free:
            if merged and sum(merged[-1]) == offset:
                merged[-1] = (merged[-1][0], merged[-1][1] + size)
            else:
                merged.append((offset, size))
        self.free = merged

    @property
    def is_empty(self) -> bool:
        """Whether nothing in it is in use."""
        return sum(size for _, size in self.free) == self.size


Place = tuple[_Arena, int]  # an arena and the number of one of its free spans


def _fitting(arenas: Sequence[_Arena], size: int) -> Iterator[Place]:
    return ((a, n) for a in arenas for n, (_, free) in enumerate(a.free) if free >= size)


def _smallest(arenas: Sequence[_Arena], size: int) -> Place | None:
    return min(_fitting(arenas, size), key=lambda place: place[0].free[place[1]][1], default=None)


def _first(arenas: Sequence[_Arena], size: int) -> Place | None:
    return next(_fitting(arenas, size), None)


def _equal(arenas: Sequence[_Arena], size: int) -> Place | None:
    """Find a block of just this size, else the end of an arena, where new blocks are cut."""
    ends = None
    for arena, n in _fitting(arenas, size):
        offset, free = arena.free[n]
        if free == size:
            return arena, n
        if offset + free == arena.size:
            ends = arena, n
    return ends


def _aligned(nbytes: int) -> int:
    return max(ALIGN, -(-nbytes // ALIGN) * ALIGN)


def _power(nbytes: int) -> int:
    return max(ALIGN, 1 << (nbytes - 1).bit_length()) if nbytes else ALIGN


class _Rule(NamedTuple):
    rounded: Callable[[int], int]
    find: Callable[[Sequence[_Arena], int], Place | None]
    merges: bool  # whether a freed block joins its neighbours at once, or keeps its size for the next request


_RULES: dict[AllocationStrategy, _Rule] = {
    AllocationStrategy.BEST_FIT: _Rule(_aligned, _smallest, True),
    AllocationStrategy.FIRST_FIT: _Rule(_aligned, _first, True),
    AllocationStrategy.EXACT_FIT: _Rule(_aligned, _equal, False),
    AllocationStrategy.POWER_OF_TWO: _Rule(_power, _smallest, True),
}


class Workspace:
    """A block of a :class:`WorkspacePool`: bytes from ``offset`` on in one of its arenas.

    >>> pool = WorkspacePool(capacity=1024)
    >>> work = pool.allocate(100)
    >>> work, work.array((3, 4), "float32").shape
    (Workspace(id=0, arena=0, offset=0, size=128), (3, 4))
    """

    __slots__ = ("_arena", "_memory", "arena", "asked", "id", "offset", "size")

    def __init__(self, id: int, arena: _Arena, offset: int, size: int, asked: int) -> None:
        self.id, self.arena, self.offset, self.size, self.asked = id, arena.number, offset, size, asked
        self._arena = arena
        # views of an array whose base is no array have that array as their base, so it counts who looks at the block
        self._memory: Array | None = np.frombuffer(arena.memory[offset : offset + size], np.uint8)

    def array(self, shape: int | Sequence[int] | None = None, dtype: Any = "uint8") -> Array:
        """Return the block, or its beginning, as an uninitialised array; without a shape, all that was asked for."""
        if self._memory is None:
            raise InputError(f"workspace {self.id} was released", code="E803", suggestions=["allocate another one"])
        kind = number_dtype(dtype)
        sizes = (self.asked // kind.itemsize,) if shape is None else whole_shape(shape)
        needed = math.prod(sizes) * kind.itemsize
        if needed > self.asked:
            raise ShapeError(
                f"{kind}{list(sizes)} takes {needed:,} bytes, and workspace {self.id} has {self.asked:,}", code="E805",
                suggestions=[f"allocate({needed})"],
            )  # fmt: skip
        return np.ndarray(sizes, kind, self._memory)

    def __repr__(self) -> str:
        return f"Workspace(id={self.id}, arena={self.arena}, offset={self.offset}, size={self.size})"


class WorkspaceStats(NamedTuple):
    """What a :class:`WorkspacePool` has done so far, and what it holds.

    >>> s = WorkspaceStats(hits=3, misses=1, arenas=1, capacity=1024, asked=100, taken=128, waiting=0, largest_free=448,
    ...                    peak_bytes=256)
    >>> print(s)
    3 hits, 1 miss; 128 B of 1.0 KiB taken in 1 arena, efficiency 78%, fragmentation 50%, peak 256 B
    """

    hits: int  # requests that the arenas at hand could serve
    misses: int  # requests that needed a new arena, or were refused
    arenas: int
    capacity: int
    asked: int  # bytes of the blocks in use, as requested
    taken: int  # and as cut
    waiting: int  # bytes released while an array still shows them
    largest_free: int
    peak_bytes: int  # the most that was taken at once

    @property
    def hit_rate(self) -> float:
        """The share of requests that needed no new memory."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    @property
    def free(self) -> int:
        """The bytes that are neither taken nor waiting."""
        return self.capacity - self.taken - self.waiting

    @property
    def efficiency(self) -> float:
        """Bytes asked for by bytes taken: 1 where rounding wastes nothing."""
        return self.asked / self.taken if self.taken else 1.0

    @property
    def fragmentation(self) -> float:
        """The share of free memory that one request cannot have: 0 where all of it is one block."""
        return 1 - self.largest_free / self.free if self.free else 0.0

    def __str__(self) -> str:
        return (
            f"{self.hits:,} hit{'s' * (self.hits != 1)}, {self.misses:,} miss{'es' * (self.misses != 1)}; "
            f"{bytes_text(self.taken)} of {bytes_text(self.capacity)} taken in {self.arenas} "
            f"arena{'s' * (self.arenas != 1)}, efficiency {self.efficiency:.0%}, fragmentation {self.fragmentation:.0%}, "
            f"peak {bytes_text(self.peak_bytes)}" + (f", {bytes_text(self.waiting)} waiting" if self.waiting else "")
        )


class WorkspacePool:
    """Scratch memory in arenas: blocks are cut from them, released, and joined with their free neighbours.

    When no block fits, an arena is added that makes the whole ``growth`` times as large, up to ``limit`` bytes. A block
    released while an array shows it waits until that array is gone. For one thread; see :class:`SharedWorkspacePool`.

    >>> pool = WorkspacePool(AllocationStrategy.BEST_FIT, capacity=1024)
    >>> a, b = pool.allocate(200), pool.allocate(500)
    >>> pool.release(a)
    >>> print(pool.stats())
    2 hits, 0 misses; 512 B of 1.0 KiB taken in 1 arena, efficiency 98%, fragmentation 50%, peak 768 B
    """

    def __init__(
        self,
        strategy: AllocationStrategy = AllocationStrategy.BEST_FIT,
        capacity: int = 1 << 20,
        *,
        growth: float = 2.0,
        limit: int | None = None,
    ) -> None:
        if not isinstance(strategy, AllocationStrategy):
            raise InputError(f"strategy is an AllocationStrategy, got {strategy!r}", code="E801",
                             suggestions=["write AllocationStrategy.BEST_FIT"])  # fmt: skip
        if not 1 <= growth < math.inf:
            raise InputError(f"growth is a factor of at least 1, got {growth!r}", code="E801")
        self.strategy, self.growth = strategy, growth
        self.limit = None if limit is None else whole_bytes(limit, "limit")
        first = -(-whole_bytes(capacity, "capacity") // ALIGN) * ALIGN
        if self.limit is not None and first > self.limit:
            raise InputError(f"capacity ({first}) is beyond the limit ({self.limit})", code="E801")
        self._arenas: list[_Arena] = []
        self._made = 0  # arenas so far; each keeps its number
        if first:
            self._add(first)
        self._used: dict[int, Workspace] = {}
        self._waiting: list[tuple[_Arena, int, int, Holder]] = []
        self._next = self._hits = self._misses = self._asked = self._taken = self._peak = 0

    def allocate(self, nbytes: int) -> Workspace:
        """Cut a block of at least so many bytes, aligned to 64."""
        rule, nbytes = _RULES[self.strategy], whole_bytes(nbytes, "nbytes")
        size = rule.rounded(nbytes)
        self._settle()
        place = rule.find(self._arenas, size)
        if place is None and not rule.merges:
            self._merge()
            place = rule.find(self._arenas, size)
        if place is None:
            self._misses += 1
            place = self._grown(size)
        else:
            self._hits += 1
        arena, n = place
        offset, free = arena.free[n]
        arena.free[n : n + 1] = [(offset + size, free - size)] if free > size else []
        found = Workspace(self._next, arena, offset, size, nbytes)
        self._used[found.id] = found
        self._next += 1
        self._asked += nbytes
        self._taken += size
        self._peak = max(self._peak, self._taken)
        return found

    def release(self, workspace: Workspace) -> None:
        """Take a block back; it is cut again once no array shows it."""
        if not isinstance(workspace, Workspace) or self._used.get(workspace.id) is not workspace:
            before = isinstance(workspace, Workspace) and workspace._memory is None
            raise InputError(
                f"{workspace!r} " + ("was released before" if before else "does not come from this pool"),
                code="E803" if before else "E802", suggestions=["release what pool.allocate returned, once"],
            )  # fmt: skip
        del self._used[workspace.id]
        self._asked -= workspace.asked
        self._taken -= workspace.size
        holder = Holder()
        assert workspace._memory is not None
        holder.kept, workspace._memory = workspace._memory, None
        self._waiting.append((workspace._arena, workspace.offset, workspace.size, holder))
        self._settle()

    def defragment(self) -> int:
        """Join free neighbours, and arenas in which nothing is in use; return how much the largest free block grew.

        Memory in use is never moved. An arena that stands for several empty ones has their size together.
        """
        self._settle()
        before = self._largest()
        self._merge()
        empty = [a for a in self._arenas if a.is_empty]
        if len(empty) > 1:
            size = sum(a.size for a in empty)
            self._arenas = [a for a in self._arenas if a not in empty]
            empty.clear()  # give the memory back before asking for it again
            self._add(size)
        return self._largest() - before

    def stats(self) -> WorkspaceStats:
        """Return the counts so far and the state of the arenas."""
        self._settle()
        return WorkspaceStats(
            self._hits, self._misses, len(self._arenas), sum(a.size for a in self._arenas), self._asked, self._taken,
            sum(size for _, _, size, _ in self._waiting), self._largest(), self._peak,
        )  # fmt: skip

    def _largest(self) -> int:
        return max((size for a in self._arenas for _, size in a.free), default=0)

    def _merge(self) -> None:
        for arena in self._arenas:
            arena.merge()

    def _settle(self) -> None:
        """Make free what was released and nobody looks at any more."""
        if not self._waiting:
            return
        merges = _RULES[self.strategy].merges
        still = []
        for entry in self._waiting:
            arena, offset, size, holder = entry
            if getrefcount(holder.kept) != ALONE:
                still.append(entry)
                continue
            free = arena.free
            n = bisect_left(free, (offset, size))
            if merges and n < len(free) and free[n][0] == offset + size:
                size += free.pop(n)[1]
            if merges and n and sum(free[n - 1]) == offset:
                n -= 1
                before = free.pop(n)
                offset, size = before[0], size + before[1]
            free.insert(n, (offset, size))
        self._waiting = still

    def _grown(self, size: int) -> Place:
        """Add an arena that holds a block, or find one by joining empty arenas where the limit leaves no other way."""
        capacity = sum(a.size for a in self._arenas)
        room = math.inf if self.limit is None else self.limit - capacity
        if size > room:
            self.defragment()
            place = _smallest(self._arenas, size)  # whatever the strategy: there is no other
            if place is not None:
                return place
            empty = [a for a in self._arenas if a.is_empty]  # one at most, now; it may give way to a larger one
            room += sum(a.size for a in empty)
            if size > room:
                waiting = sum(n for _, _, n, _ in self._waiting)
                raise OutOfMemoryError(
                    f"no block of {bytes_text(size)} is free: {bytes_text(self._taken)} of {bytes_text(capacity)} are "
                    f"taken, {bytes_text(waiting)} wait for arrays that still show them, the largest free block has "
                    f"{bytes_text(self._largest())}, and the limit is {bytes_text(self.limit or 0)}", code="E003",
                    suggestions=["release workspaces, or raise the limit: WorkspacePool(limit=...)"],
                )  # fmt: skip
            capacity -= sum(a.size for a in empty)
            self._arenas = [a for a in self._arenas if a not in empty]
        wanted = -(-int(capacity * (self.growth - 1)) // ALIGN) * ALIGN
        return self._add(max(size, wanted if wanted <= room else int(room) // ALIGN * ALIGN)), 0

    def _add(self, size: int) -> _Arena:
        arena = _Arena(self._made, size)
        self._arenas.append(arena)
        self._made += 1
        return arena


class SharedWorkspacePool:
    """A :class:`WorkspacePool` for several threads: the same calls, one at a time.

    >>> pool = SharedWorkspacePool(capacity=1024)
    >>> work = pool.allocate(1000)
    >>> pool.release(work)
    >>> pool.stats().taken, pool.stats().peak_bytes
    (0, 1024)
    """

    def __init__(
        self,
        strategy: AllocationStrategy = AllocationStrategy.BEST_FIT,
        capacity: int = 1 << 20,
        *,
        growth: float = 2.0,
        limit: int | None = None,
    ) -> None:
        self._pool = WorkspacePool(strategy, capacity, growth=growth, limit=limit)
        self._lock = threading.Lock()

    def allocate(self, nbytes: int) -> Workspace:
        """Cut a block of at least so many bytes, aligned to 64."""
        with self._lock:
            return self._pool.allocate(nbytes)

    def release(self, workspace: Workspace) -> None:
        """Take a block back; it is cut again once no array shows it."""
        with self._lock:
            self._pool.release(workspace)

    def defragment(self) -> int:
        """Join free memory; see :meth:`WorkspacePool.defragment`."""
        with self._lock:
            return self._pool.defragment()

    def stats(self) -> WorkspaceStats:
        """Return the counts so far and the state of the arenas."""
        with self._lock:
            return self._pool.stats()
