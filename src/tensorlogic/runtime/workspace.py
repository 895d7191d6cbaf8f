"""Workspaces: scratch memory in arenas of bytes that are cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum
from sys import getrefcount
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..diagnostics import bytes_text, value_text
from ..errors import InputError, OutOfMemoryError, ShapeError, expect
from ..store import Lock, of_one_process
from .arena import ALIGN, ALONE, ARENA, Array
from .pool import number_dtype, whole_bytes, whole_shape


class AllocationStrategy(Enum):
    """Which free block of a :class:`WorkspacePool` a request gets.

    >>> AllocationStrategy.BEST_FIT.value
    'the smallest block that is large enough'
    """

    BEST_FIT = "the smallest block that is large enough"
    FIRST_FIT = "the first block that is large enough"
    EXACT_FIT = "a block of just this size, else a new one"
    POWER_OF_TWO = "the smallest block, sizes rounded up to a power of two"


class _Stretch:
    """One stretch of memory, and its free spans (offset, size) in order."""

    __slots__ = ("free", "memory", "number", "size")

    def __init__(self, number: int, size: int) -> None:
        self.memory = memoryview(ARENA.take(size).data)
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


Place = tuple[_Stretch, int]  # a stretch and the number of one of its free spans


def _find(strategy: AllocationStrategy, stretches: Sequence[_Stretch], size: int) -> Place | None:
    """Return the free span that a request gets, None where no span is large enough."""
    fitting = [(s, n) for s in stretches for n, (_, free) in enumerate(s.free) if free >= size]
    if not fitting or strategy is AllocationStrategy.FIRST_FIT:
        return fitting[0] if fitting else None
    smallest = min(fitting, key=lambda place: place[0].free[place[1]][1])
    if strategy is not AllocationStrategy.EXACT_FIT or smallest[0].free[smallest[1]][1] == size:
        return smallest
    ends = [(s, n) for s, n in fitting if sum(s.free[n]) == s.size]  # where new blocks are cut
    return ends[-1] if ends else None


class Workspace:
    """A block of a :class:`WorkspacePool`: bytes from ``offset`` on in one of its arenas.

    >>> pool = WorkspacePool(capacity=1024)
    >>> work = pool.allocate(100)
    >>> work, work.array((3, 4), "float32").shape
    (Workspace(id=0, arena=0, offset=0, size=128), (3, 4))
    """

    __slots__ = ("_memory", "_stretch", "arena", "asked", "id", "offset", "released", "size")

    def __init__(self, id: int, stretch: _Stretch, offset: int, size: int, asked: int) -> None:
        self.id, self.arena, self.offset, self.size, self.asked = id, stretch.number, offset, size, asked
        self.released = False
        self._stretch = stretch
        # views of an array whose base is no array have that array as their base, so it counts who looks at the block
        self._memory: Array | None = np.frombuffer(stretch.memory[offset : offset + size], np.uint8)

    def array(self, shape: int | Sequence[int] | None = None, dtype: Any = "uint8") -> Array:
        """Return the block, or its beginning, as an uninitialised array; without a shape, all that was asked for."""
        if self.released or self._memory is None:
            raise InputError(f"workspace {self.id} was released", "allocate another one", code="E956")
        kind = number_dtype(dtype)
        sizes = (self.asked // kind.itemsize,) if shape is None else whole_shape(shape)
        needed = math.prod(sizes) * kind.itemsize
        if needed > self.asked:
            message = f"{kind}{list(sizes)} takes {needed:,} bytes, and workspace {self.id} has {self.asked:,}"
            raise ShapeError(message, f"allocate({needed})", code="E955")
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
    released while an array shows it waits until that array is gone. Safe to use from several threads.

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
        expect(strategy, AllocationStrategy, "an AllocationStrategy is expected", "write AllocationStrategy.BEST_FIT")
        if not isinstance(growth, int | float) or not 1 <= growth < math.inf:
            raise InputError(f"growth is a factor of at least 1, got {value_text(growth)}", code="E957")
        self.strategy, self.growth = strategy, growth
        self.limit = None if limit is None else whole_bytes(limit, "limit")
        first = -(-whole_bytes(capacity, "capacity") // ALIGN) * ALIGN
        if self.limit is not None and first > self.limit:
            raise InputError(f"capacity ({first}) is beyond the limit ({self.limit})", code="E957")
        self._lock = Lock()
        self._arenas: list[_Stretch] = []
        self._added = 0  # arenas so far; each keeps its number
        if first:
            self._add(first)
        self._waiting: list[Workspace] = []  # released, but perhaps still shown by an array
        self._next = self._hits = self._misses = self._asked = self._taken = self._peak = 0

    def __reduce__(self) -> NoReturn:
        raise of_one_process("a workspace pool", "make one in each process: WorkspacePool()")

    def allocate(self, nbytes: int) -> Workspace:
        """Allocate a block of at least ``nbytes`` bytes, aligned to 64."""
        nbytes = whole_bytes(nbytes, "nbytes")
        size = max(ALIGN, -(-nbytes // ALIGN) * ALIGN)
        if self.strategy is AllocationStrategy.POWER_OF_TWO:
            size = 1 << (size - 1).bit_length()
        with self._lock:
            self._settle()
            place = _find(self.strategy, self._arenas, size)
            if place is None and self.strategy is AllocationStrategy.EXACT_FIT:
                self._merge()
                place = _find(self.strategy, self._arenas, size)
            if place is None:
                self._misses += 1
                place = self._grown(size)
            else:
                self._hits += 1
            stretch, n = place
            offset, free = stretch.free[n]
            stretch.free[n : n + 1] = [(offset + size, free - size)] if free > size else []
            workspace = Workspace(self._next, stretch, offset, size, nbytes)
            self._next += 1
            self._asked += nbytes
            self._taken += size
            self._peak = max(self._peak, self._taken)
            return workspace

    def release(self, workspace: Workspace) -> None:
        """Take a block back; it is cut again once no array shows it."""
        hint = "release what pool.allocate returned, once"
        with self._lock:
            if isinstance(workspace, Workspace) and workspace.released:
                raise InputError(f"{workspace!r} was released before", hint, code="E953")
            if not isinstance(workspace, Workspace) or workspace._stretch not in self._arenas:
                raise InputError(f"{value_text(workspace)} does not come from this pool", hint, code="E952")
            workspace.released = True
            self._asked -= workspace.asked
            self._taken -= workspace.size
            self._waiting.append(workspace)
            self._settle()

    def defragment(self) -> int:
        """Join free neighbours, and arenas in which nothing is in use; return how much the largest free block grew.

        Memory in use is never moved. An arena that stands for several empty ones has their size together.
        """
        with self._lock:
            self._settle()
            before = self._largest()
            self._merge()
            size = sum(s.size for s in self._arenas if s.is_empty)
            if sum(s.is_empty for s in self._arenas) > 1:
                self._arenas = [s for s in self._arenas if not s.is_empty]
                self._add(size)
            return self._largest() - before

    def stats(self) -> WorkspaceStats:
        """Return the counts so far and the state of the arenas."""
        with self._lock:
            self._settle()
            return WorkspaceStats(
                self._hits,
                self._misses,
                len(self._arenas),
                self._capacity(),
                self._asked,
                self._taken,
                sum(w.size for w in self._waiting),
                self._largest(),
                self._peak,
            )

    def _capacity(self) -> int:
        return sum(s.size for s in self._arenas)

    def _largest(self) -> int:
        return max((size for s in self._arenas for _, size in s.free), default=0)

    def _merge(self) -> None:
        for stretch in self._arenas:
            stretch.merge()

    def _settle(self) -> None:
        """Make free what was released and nobody looks at any more."""
        still = []
        for workspace in self._waiting:
            if getrefcount(workspace._memory) != ALONE:
                still.append(workspace)
                continue
            workspace._memory = None
            stretch = workspace._stretch
            stretch.free.append((workspace.offset, workspace.size))
            stretch.free.sort()
            if self.strategy is not AllocationStrategy.EXACT_FIT:  # which keeps a block's size for the next request
                stretch.merge()
        self._waiting = still

    def _grown(self, size: int) -> Place:
        """Add an arena that holds a block, or find one by joining empty arenas where the limit leaves no other way."""
        room = math.inf if self.limit is None else self.limit - self._capacity()
        if size > room:
            self.defragment()
            place = _find(AllocationStrategy.BEST_FIT, self._arenas, size)  # whatever the strategy: there is no other
            if place is not None:
                return place
            room += sum(s.size for s in self._arenas if s.is_empty)  # one at most, now; it may give way to a larger one
            if size > room:
                waiting = sum(w.size for w in self._waiting)
                hint = "release workspaces, or raise the limit: WorkspacePool(limit=...)"
                message = (
                    f"no block of {bytes_text(size)} is free: {bytes_text(self._taken)} of {bytes_text(self._capacity())} "
                    f"are taken, {bytes_text(waiting)} wait for arrays that still show them, the largest free block has "
                    f"{bytes_text(self._largest())}, and the limit is {bytes_text(self.limit or 0)}"
                )
                raise OutOfMemoryError(message, hint, code="E958")
            self._arenas = [s for s in self._arenas if not s.is_empty]
        wanted = -(-int(self._capacity() * (self.growth - 1)) // ALIGN) * ALIGN
        return self._add(max(size, wanted if wanted <= room else int(room) // ALIGN * ALIGN)), 0

    def _add(self, size: int) -> _Stretch:
        stretch = _Stretch(self._added, size)
        self._arenas.append(stretch)
        self._added += 1
        return stretch


class SharedWorkspacePool(WorkspacePool):
    """The :class:`WorkspacePool` under the name that says it is shared: both are safe to use from several threads.

    >>> pool = SharedWorkspacePool(capacity=1024)
    >>> work = pool.allocate(1000)
    >>> pool.release(work)
    >>> pool.stats().taken, pool.stats().peak_bytes
    (0, 1024)
    """
