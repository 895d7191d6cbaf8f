"""What a driver has sent: arrays stay where its workers see them, and are written again only where they changed."""

from __future__ import annotations

from typing import Any, NamedTuple
from weakref import ref

import numpy as np

from .messages import Arena, ArrayPlace

Array = Any
IDLE = 16  # calls after which an array that none of them used has to go
CHUNK = 1 << 18  # elements that are compared at once
Key = tuple[int, tuple[int, ...], tuple[int, ...], str]  # where an array stands in the driver's memory, and how


class _Entry(NamedTuple):
    place: ArrayPlace
    owner: Any  # a weak reference to the array whose memory it is
    fixed: bool  # nobody can write to it


class SharedInputs:
    """Arrays in the file that all workers of a driver see.

    An array that comes again, and is the same object or a part of it, is compared with what was sent; one that is read-only is not even
    compared. Ranks that need the same part of an array see the same copy.
    """

    def __init__(self, arena: Arena) -> None:
        self._arena, self._call = arena, 0
        self._entries: dict[Key, _Entry] = {}
        self._used: dict[Key, int] = {}  # the call that used an entry last
        self._free: dict[int, list[ArrayPlace]] = {}  # by bytes
        self.sent_bytes = 0  # that were written so far

    def begin(self) -> None:
        """Begin a call: let go of what nobody has any more, or no call has used for long."""
        self._call += 1
        for key, entry in list(self._entries.items()):
            if entry.owner() is None or self._used[key] + IDLE < self._call:
                del self._entries[key], self._used[key]
                self._free.setdefault(_size(entry.place), []).append(entry.place)

    def put(self, x: Array) -> ArrayPlace:
        """Return where workers find an array, which is written there unless it is there already."""
        key: Key = x.__array_interface__["data"][0], x.shape, x.strides, x.dtype.name
        owner, fixed = _owner(x)
        entry = self._entries.get(key)
        if entry is not None and entry.owner() is owner:
            if self._used[key] < self._call:  # else another rank has it from this call
                self._used[key] = self._call
                view = self._arena.view(entry.place)
                if not (entry.fixed and fixed) and not same_bits(view, x):
                    self._write(view, x)
            return entry.place
        if entry is not None:
            self._free.setdefault(_size(entry.place), []).append(entry.place)
        place = self._place(x)
        self._entries[key], self._used[key] = _Entry(place, ref(owner), fixed), self._call
        self._write(self._arena.view(place), x)
        return place

    def _place(self, x: Array) -> ArrayPlace:
        found = self._free.get(x.nbytes)
        if found:
            old = found.pop()
            return ArrayPlace(old.start, old.length, old.offset, x.shape, x.dtype.name)
        return ArrayPlace(*self._arena.take(x.nbytes), x.shape, x.dtype.name)

    def _write(self, view: Array, x: Array) -> None:
        np.copyto(view, x)
        self.sent_bytes += x.nbytes


def _size(place: ArrayPlace) -> int:
    return int(np.prod(place.shape, dtype=np.int64)) * np.dtype(place.dtype).itemsize


def _owner(x: Array) -> tuple[Array, bool]:
    """Return the array whose memory an array shows, and whether nobody can write to it."""
    fixed = not x.flags.writeable
    while isinstance(x.base, np.ndarray):
        x = x.base
        fixed = fixed and not x.flags.writeable
    return x, fixed and x.base is None


def same_bits(a: Array, b: Array) -> bool:
    """Tell whether two arrays of one shape and dtype hold the same bits; signs of zeros and NaNs count.

    >>> same_bits(np.array([0.0, np.nan]), np.array([0.0, np.nan])), same_bits(np.array([0.0]), np.array([-0.0]))
    (True, False)
    """
    if a.dtype.itemsize not in (1, 2, 4, 8):
        return False
    whole = np.dtype(f"u{a.dtype.itemsize}")
    a, b = a.view(whole), b.view(whole)
    if not a.ndim:
        return bool(a == b)
    rows = max(1, CHUNK * len(a) // max(1, a.size))
    return all(np.array_equal(a[n : n + rows], b[n : n + rows]) for n in range(0, len(a), rows))
