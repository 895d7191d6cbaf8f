"""The reading side of a stream: blocks of any size become chunks of the size that is wanted, on a thread that reads ahead."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ...backends.threads import start_thread, with_interrupts
from ...errors import InputError, TensorLogicError
from ...store import Lock
from .blocks import Block, Source, rows_of

T = TypeVar("T")
WAIT = 0.05  # seconds after which somebody who waits for a chunk looks whether the run was cancelled


class Chunk(NamedTuple):
    """Rows to compute: where they begin, how many they are, arrays by input, and whether they are known to be the last."""

    start: int
    rows: int
    values: Block
    last: bool = False


class Cutter:
    """Cuts what a source gives into chunks; all blocks must have the shapes and dtypes of the first, but for their rows.

    >>> from tensorlogic.runtime.streams.array_sources import Arrays
    >>> from tensorlogic.runtime.streams.blocks import Wanted
    >>> from tensorlogic import TensorType
    >>> source = Arrays({"x": np.arange(5)}, Wanted({"x": 0}, {"x": TensorType(None, None)}))
    >>> cutter = Cutter(source, {"x": 0})
    >>> cutter.take(3).values, cutter.take(3).values, cutter.take(3)
    ({'x': array([0, 1, 2])}, {'x': array([3, 4])}, None)
    """

    def __init__(self, source: Source, axes: Mapping[str, int], start: int = 0, *, tell_last: bool = False) -> None:
        self.source, self.axes, self.tell_last = source, dict(axes), tell_last
        self.at, self.ended = start, False
        self._blocks: deque[tuple[int, Block]] = deque()
        self.waiting = 0  # rows that were read and are in no chunk yet
        self._types: dict[str, tuple[Any, Any]] = {}
        self._first: Block | None = None
        self._read = 0  # blocks

    def peek(self, rows: int) -> Block | None:
        """Return no rows in the shapes of the first block, which stays to be taken; None where there is none."""
        while not self._blocks and not self.ended:
            self._more(rows)
        return None if self._first is None else self._range(self._first, 0, 0)

    def take(self, rows: int) -> Chunk | None:
        """Return the next chunk; None at the end. With ``tell_last`` it is known of each whether another follows."""
        ahead = self.tell_last and self.source.rows is None  # else the source says how many rows it has
        while self.waiting < rows + ahead and not self.ended:
            self._more(max(rows - self.waiting, 0) or rows)
        count = min(rows, self.waiting)
        if not count:
            return None
        self.waiting -= count
        start, self.at = self.at, self.at + count
        last = self.tell_last and not self.waiting and (self.ended or self.at == self.source.rows)
        return Chunk(start, count, self._cut(count), last)

    def _more(self, rows: int) -> None:
        block = self.source.read(rows)
        if block is None:
            self.ended = True
            return
        number, count = self._read, rows_of(block, self.axes, self._read)
        self._read += 1
        for name, axis in self.axes.items():
            value = block[name]
            own = (*value.shape[:axis], *value.shape[axis + 1 :]), value.dtype
            first = self._types.setdefault(name, own)
            if own != first:
                raise InputError(
                    f"chunk {number} of the source: input {name!r} is {value.dtype} {list(value.shape)}, "
                    f"but was {first[1]} of {list(first[0])} a row before",
                    "chunks may differ in their number of rows only",
                    code="E536",
                )
        if self._first is None:  # a copy: a view would keep the memory of the block from being used again
            self._first = {n: value.copy() for n, value in self._range(block, 0, 0).items()}
        if count:
            self._blocks.append((count, block))
            self.waiting += count

    def _cut(self, rows: int) -> Block:
        """Take ``rows`` rows off the blocks; rows of a single block are not copied."""
        pieces: list[Block] = []
        while rows:
            count, block = self._blocks.popleft()
            if count > rows:
                self._blocks.appendleft((count - rows, self._range(block, rows, count)))
                count, block = rows, self._range(block, 0, rows)
            pieces.append(block)
            rows -= count
        if len(pieces) == 1:
            return pieces[0]
        return {n: np.concatenate([piece[n] for piece in pieces], axis) for n, axis in self.axes.items()}

    def _range(self, block: Block, start: int, stop: int) -> Block:
        return {n: block[n][(slice(None),) * axis + (slice(start, stop),)] for n, axis in self.axes.items()}


class Ahead(Generic[T]):
    """Reads chunks ahead on a thread, up to a limit; an error comes after the chunks before it."""

    def __init__(self, take: Callable[[], T | None], close: Callable[[], None], most: int) -> None:
        self._ready: deque[T | BaseException | None] = deque()
        self._lock = Lock()
        self._changed = threading.Condition(self._lock)
        self._room, self._closed = most, False
        self._thread = threading.Thread(
            target=_read_ahead, args=(self, take, close), name="tensorlogic-stream", daemon=True
        )
        try:
            start_thread(self._thread)
        except BaseException:  # an interrupt: nobody else would tell the thread to stop
            with self._lock:
                self._closed = True
                self._changed.notify_all()
            raise

    def take(self, check: Callable[[], None]) -> T | None:
        """Return the next chunk, None at the end; ``check`` is called now and then while there is none."""
        while not (taken := with_interrupts(self._taken)):
            check()
        (found,) = taken
        if isinstance(found, TensorLogicError):
            raise found.at_caller()
        if isinstance(found, BaseException):
            raise found
        return found

    def _taken(self) -> list[T | BaseException | None]:
        """Wait a moment, and take what is ready: one, or none."""
        with self._lock:
            if not self._ready:
                self._changed.wait(WAIT)
            if not self._ready:
                return []
            self._room += 1
            self._changed.notify_all()
            return [self._ready.popleft()]

    def close(self) -> None:
        """Stop reading, close the source on the thread that read it, and wait until the thread is gone."""
        with self._lock:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()


def _read_ahead(ahead: Ahead[T], take: Callable[[], T | None], close: Callable[[], None]) -> None:
    lock, changed = ahead._lock, ahead._changed
    try:
        while True:
            with lock:
                while not ahead._room and not ahead._closed:
                    changed.wait()
                if ahead._closed:
                    return
                ahead._room -= 1
            found: T | BaseException | None
            try:
                found = take()
            except BaseException as error:
                found = error
            with lock:
                ahead._ready.append(found)
                changed.notify_all()
            if found is None or isinstance(found, BaseException):
                return
            del found
    finally:
        close()
