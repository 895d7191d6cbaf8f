"""How many rows a chunk of a stream has: a fixed number, as many as fit in some memory, or what is measured to be fastest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Protocol

from ...diagnostics import bytes_text, value_text
from ...errors import InputError, OutOfMemoryError, expect_whole

MEGABYTE = 1 << 20
LARGEST = 1 << 24  # rows of a chunk, whatever the memory
# a chunk of more bytes than this does not fit the caches of a processor, and is slower than two of half its size
ENOUGH = 20 << 20
SPARE = 0.85  # of the memory, that chunks are planned for: the interpreter has small objects too
BETTER = 1.05  # times as fast, which a larger chunk must be to be worth its memory
ROUNDS = 2  # chunks of a size that are measured, after one that is not: it is planned meanwhile


class StreamingMode:
    """How a stream chooses the rows of its chunks: ``FixedChunk``, ``DynamicChunk`` or ``Adaptive``.

    >>> StreamingMode.FixedChunk(64).rows
    64
    >>> match StreamingMode.DynamicChunk(target_memory_mb=512):
    ...     case StreamingMode.DynamicChunk(most):
    ...         print(most)
    512
    """

    FixedChunk: ClassVar[type[FixedChunk]]
    DynamicChunk: ClassVar[type[DynamicChunk]]
    Adaptive: ClassVar[type[Adaptive]]


@dataclass(frozen=True, slots=True)
class FixedChunk(StreamingMode):
    """Chunks of a fixed number of rows; the last may have fewer."""

    rows: int

    def __post_init__(self) -> None:
        expect_whole("the rows of a chunk", self.rows, 1, "write StreamingMode.FixedChunk(4096)")


@dataclass(frozen=True, slots=True)
class DynamicChunk(StreamingMode):
    """Chunks as large as the memory allows (inputs that were read ahead, what computing takes, and the results), and caches make fast."""

    target_memory_mb: float

    def __post_init__(self) -> None:
        if (
            isinstance(self.target_memory_mb, bool)
            or not isinstance(self.target_memory_mb, int | float)
            or not self.target_memory_mb > 0
        ):
            hint = "write StreamingMode.DynamicChunk(target_memory_mb=512)"
            raise InputError(
                f"target_memory_mb must be a number above 0, got {value_text(self.target_memory_mb)}", hint, code="E532"
            )


@dataclass(frozen=True, slots=True)
class Adaptive(StreamingMode):
    """Chunks of the size that is measured to be fastest, beginning with ``initial_chunk`` rows."""

    initial_chunk: int

    def __post_init__(self) -> None:
        expect_whole("initial_chunk", self.initial_chunk, 1, "write StreamingMode.Adaptive(initial_chunk=1024)")


StreamingMode.FixedChunk, StreamingMode.DynamicChunk, StreamingMode.Adaptive = FixedChunk, DynamicChunk, Adaptive


DEFAULT = DynamicChunk(64)  # for those who say nothing


class ChunkSizes(Protocol):
    """Says how many rows the next chunk has, and hears how long chunks took."""

    def next(self) -> int: ...
    def note(self, rows: int, seconds: float) -> None: ...
    def state(self) -> dict[str, Any]: ...
    def restore(self, state: dict[str, Any]) -> None: ...


class Constant:
    """Chunks of one size."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def next(self) -> int:
        """Return the rows of the next chunk."""
        return self.rows

    def note(self, rows: int, seconds: float) -> None:
        """Hear how long a chunk took."""

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"rows": self.rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on as a checkpoint says."""
        self.rows = int(state["rows"])


class Fastest:
    """Doubles the chunk while that makes it faster, else halves it, and stays with the fastest size that it met.

    >>> sizes = Fastest(64, most=1 << 20)
    >>> for _ in range(40):  # a machine for which chunks of 256 rows are best
    ...     rows = sizes.next()
    ...     sizes.note(rows, rows * (1 + abs(rows - 256) / 256))
    >>> sizes.next(), sizes.settled
    (256, True)
    """

    def __init__(self, rows: int, most: int) -> None:
        self.rows, self.most, self.settled = min(rows, most), most, False
        self.first = self.rows
        self.best, self.best_rate, self.shrinking = self.rows, 0.0, False
        self._rates: list[float] = []

    def next(self) -> int:
        """Return the rows of the next chunk."""
        return self.rows

    def note(self, rows: int, seconds: float) -> None:
        """Hear how long a chunk took; those of another size were read ahead, before the size was changed."""
        if self.settled or rows != self.rows:
            return
        self._rates.append(rows / max(seconds, 1e-9))
        if len(self._rates) <= ROUNDS:
            return
        rate = max(self._rates[1:])
        self._rates = []
        if rate > self.best_rate * BETTER or (self.shrinking and rate > self.best_rate):
            self.best, self.best_rate = rows, rate
            following = rows // 2 if self.shrinking else rows * 2
        elif not self.shrinking and self.best == self.first:
            self.shrinking, following = True, self.first // 2
        else:
            following = 0
        if not 1 <= following <= self.most:
            following = self.first // 2 if not self.shrinking and self.best == self.first else 0
            self.shrinking = True
        self.settled = following < 1
        self.rows = self.best if self.settled else following

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {
            "rows": self.rows,
            "settled": self.settled,
            "first": self.first,
            "best": self.best,
            "best_rate": self.best_rate,
            "shrinking": self.shrinking,
            "rates": list(self._rates),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on as a checkpoint says."""
        self.rows, self.settled, self.first = int(state["rows"]), bool(state["settled"]), int(state["first"])
        self.best, self.best_rate, self.shrinking = (
            int(state["best"]),
            float(state["best_rate"]),
            bool(state["shrinking"]),
        )
        self._rates = [float(rate) for rate in state["rates"]]


def chunk_sizes(
    mode: StreamingMode, chunk_bytes: Callable[[int], int], room: int, reader_bytes: Callable[[int], int] = lambda _: 0
) -> ChunkSizes:
    """Return what chooses the sizes of chunks; ``chunk_bytes`` tells what a chunk of so many rows takes in all.

    ``reader_bytes`` tells, of a limit, what the source takes whatever the chunks are. Where nobody asked for a limit, that comes on top of it.
    """
    match mode:
        case FixedChunk(rows):
            return Constant(rows)
        case DynamicChunk(megabytes):
            reader = 0 if mode is DEFAULT else reader_bytes(int(megabytes * MEGABYTE))
            taken = cache(chunk_bytes)
            enough = largest_within(lambda rows: taken(rows) - taken(1), ENOUGH)
            if reader + taken(enough) <= megabytes * MEGABYTE * SPARE:  # most often, and a search makes plans
                return Constant(enough)
            return Constant(min(enough, largest_within(lambda rows: reader + taken(rows), int(megabytes * MEGABYTE))))
        case Adaptive(rows):
            try:
                most = largest_within(chunk_bytes, room)
            except OutOfMemoryError:
                most = rows
            return Fastest(rows, max(rows, most))
        case other:
            hint = "write StreamingMode.FixedChunk(4096)"
            raise InputError(f"a StreamingMode is expected, got {value_text(other)}", hint, code="E532")


def largest_within(chunk_bytes: Callable[[int], int], budget: int) -> int:
    """Return the most rows whose chunk stays within a budget of bytes.

    >>> largest_within(lambda rows: 1000 + 8 * rows, 100_000)
    10500
    """
    room, one = int(budget * SPARE), chunk_bytes(1)
    if one > room:
        message = f"a chunk of one row, and reading it, takes {bytes_text(one)}, more than the {bytes_text(budget)} that the stream may have"
        hint = f"allow at least {one / SPARE / MEGABYTE:.3g} MB: StreamingMode.DynamicChunk(...)"
        raise OutOfMemoryError(message, hint, code="E533")
    low, high, rows, turn = 1, LARGEST + 1, 1024, 0
    while high - low > (step := max(1, low // 64)):
        rows = min(max(rows, low + step), high - 1)
        taken = chunk_bytes(rows)
        low, high = (rows, high) if taken <= room else (low, rows)
        turn += 1  # bytes grow nearly on a line, so the first guesses are where a line through two sizes meets the room
        rows = 1 + (room - one) * (rows - 1) // max(1, taken - one) if turn < 6 else (low + high) // 2
    return low
