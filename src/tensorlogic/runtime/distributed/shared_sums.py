"""Sums of processes on one machine, through memory that all of them see; torch.distributed only tells when it is written.

Gloo moves what ranks of one machine give each other through sockets: adding up 2 MB takes each of two processes 4 ms of its processor, as much as
a fifth of a training step. Here each writes its values once and reads those of the others, which takes a tenth of that.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

import numpy as np

Array = Any
LEAST = 1 << 15  # bytes from which it pays
MOST_RANKS = 4  # each reads what all have written
MOST_BYTES = 1 << 30  # of a file
TOKEN = 16  # random bytes by which a rank knows that it opened the right file


class _Way(Protocol):
    rank: int
    size: int

    def all_reduce(self, x: Array, how: str) -> Array: ...
    def broadcast(self, x: Array, root: int) -> Array: ...


class Room(NamedTuple):
    """Places for the values of each rank, twice: while one is read, the other may be written already."""

    turns: tuple[list[Array], list[Array]]  # bytes, by rank


class SharedSums:
    """A file in memory that the ranks of a group have open.

    A rank writes its values, says so, and reads those of all once all have said so. By the time it writes to the same place again, it has heard
    twice from every other rank, which has therefore read it.
    """

    def __init__(self, descriptor: int, way: _Way) -> None:
        self._descriptor, self._way, self._end = descriptor, way, mmap.PAGESIZE
        self._rooms: dict[tuple[str, int], Room | None] = {}
        self._turns: dict[tuple[str, int], int] = {}

    def write(self, values: Array, label: str) -> list[Array] | None:
        """Write this rank's values, and return where those of each rank are, or will be; None where there is no room for them."""
        key = label, values.nbytes
        if key not in self._rooms:
            self._rooms[key] = self._new_room(values.nbytes)
        room = self._rooms[key]
        if room is None:
            return None
        turn = self._turns[key] = 1 - self._turns.get(key, 1)
        places = [place.view(values.dtype) for place in room.turns[turn]]
        np.copyto(places[self._way.rank], values)
        return places

    def _new_room(self, nbytes: int) -> Room | None:
        """Return room for values of all ranks; every rank asks for the same in the same order, so that all find the same places."""
        size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
        start, whole = self._end, 2 * self._way.size * size
        if start + whole > MOST_BYTES:
            return None
        self._end += whole
        able = 0
        with suppress(OSError):  # no room: those who have some must not use it either
            os.posix_fallocate(self._descriptor, start, whole)
            able = 1
        if not self._way.all_reduce(np.array([able]), "minimum")[0]:
            return None
        stretch = np.frombuffer(mmap.mmap(self._descriptor, whole, offset=start), np.uint8)
        places = [stretch[n * size : n * size + nbytes] for n in range(2 * self._way.size)]
        return Room((places[: self._way.size], places[self._way.size :]))

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


def shared_sums(way: _Way) -> SharedSums | None:
    """Return memory that all ranks of a group see; None where they are many, or on different machines. All ranks must ask."""
    if way.size > MOST_RANKS:
        return None
    descriptor, note = -1, np.zeros(2 + TOKEN // 8, np.int64)
    if way.rank == 0 and hasattr(os, "memfd_create"):
        descriptor, token = os.memfd_create("tensorlogic-sums"), os.urandom(TOKEN)
        os.write(descriptor, token)
        note[:2], note[2:] = (os.getpid(), descriptor), np.frombuffer(token, np.int64)
    note = way.broadcast(note, 0)
    if way.rank and note[0]:
        with suppress(OSError):  # of another machine, or of another user
            descriptor = os.open(f"/proc/{note[0]}/fd/{note[1]}", os.O_RDWR)
            if os.pread(descriptor, TOKEN, 0) != note[2:].tobytes():
                os.close(descriptor)
                descriptor = -1
    if way.all_reduce(np.array([descriptor]), "minimum")[0] >= 0:
        return SharedSums(descriptor, way)
    if descriptor >= 0:
        os.close(descriptor)
    return None


def add_up(total: Array, places: Sequence[Array]) -> None:
    """Add up the values of all ranks in their order, so that every rank has the same bits.

    >>> total = np.zeros(2)
    >>> add_up(total, [np.ones(2), np.array([1.0, 2.0])])
    >>> total
    array([2., 3.])
    """
    np.add(places[0], places[1], out=total)
    for place in places[2:]:
        np.add(total, place, out=total)
