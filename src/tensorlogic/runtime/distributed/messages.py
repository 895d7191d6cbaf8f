"""What a driver and its workers tell each other: a line of JSON on a pipe, and arrays in a file that both have open."""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Mapping, Sequence
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np

from ...diagnostics import Diagnostic
from .rank import RankTimes

Array = Any
ALIGNMENT = 64
STRETCH = 1 << 26  # bytes by which the file grows at least; pages that nobody writes take no memory


class ArrayPlace(msgspec.Struct, frozen=True):
    """Where an array lies in a file: the stretch that is mapped as one, and the place in it."""

    start: int
    length: int
    offset: int
    shape: tuple[int, ...]
    dtype: str


class TaskMessage(msgspec.Struct):
    """A graph that was sent, by its number, its inputs, the outputs that are asked for, and those that are combined over tasks."""

    graph: int
    inputs: dict[str, ArrayPlace]
    wanted: list[str]
    one_thread: bool = False
    totals: dict[str, str] = {}


class Setup(msgspec.Struct, tag="setup"):
    """What a worker is told when it starts; later calls must have the same token."""

    rank: int
    size: int
    address: str
    token: str
    timeout: float
    inputs: int  # the descriptor of the file that the driver writes
    outputs: int  # and of that which this worker writes
    kind: tuple[str, str, str]  # of the executor: its backend, optimization level and policy


class Call(msgspec.Struct, tag="call"):
    """What a driver asks for: new graphs, each as JSON, and the tasks of the rank."""

    token: str
    mesh: tuple[int, int, int]
    tasks: list[TaskMessage]
    graphs: dict[int, str] = {}
    kept: int = 0  # the number of the values that stay with the rank, if any
    put: dict[str, ArrayPlace] = {}  # values that stay from now on
    carried: list[str] = []  # values that stay, and that outputs of the same names take the place of
    take: list[str] = []  # values that stay, and are asked for
    drop: list[int] = []  # values that are not needed any more
    alone: bool = False  # without the other ranks, to be timed


class Answer(msgspec.Struct, tag="answer"):
    """What a worker answers: the outputs of each task, and its times; or why there are none."""

    outputs: list[dict[str, ArrayPlace]] = []
    times: RankTimes = RankTimes()
    failure: Diagnostic | None = None


class KeptMessage(NamedTuple):
    """What stays with a rank: the number of those values, new ones, those that outputs take the place of, and those asked for."""

    number: int = 0
    put: Mapping[str, Any] = {}
    carried: Sequence[str] = ()
    take: Sequence[str] = ()


Message = Setup | Call | Answer
_DECODER = msgspec.json.Decoder(Message)


def send(pipe: IO[bytes], message: Message) -> None:
    """Write a message as one line."""
    pipe.write(msgspec.json.encode(message) + b"\n")
    pipe.flush()


def receive(pipe: IO[bytes]) -> Message | None:
    """Read a message; None where the other side has gone."""
    line = pipe.readline()
    return _DECODER.decode(line) if line.endswith(b"\n") else None


class Arena:
    """A file without a name that a driver and its workers have open, and map into their memory: arrays are read where they stand."""

    def __init__(self, descriptor: int, *, writes: bool = True) -> None:
        self.descriptor, self._access = descriptor, mmap.ACCESS_WRITE if writes else mmap.ACCESS_READ
        self._maps: dict[int, Array] = {}  # bytes of stretches of the file, by where they start
        self._used: dict[tuple[int, int], int] = {}  # bytes of each stretch that are taken

    def take(self, nbytes: int) -> tuple[int, int, int]:
        """Return a free place for so many bytes: the stretch, its length, and the offset in it."""
        nbytes = -(-nbytes // ALIGNMENT) * ALIGNMENT
        for (start, length), used in self._used.items():
            if used + nbytes <= length:
                self._used[start, length] = used + nbytes
                return start, length, used
        start, length = os.fstat(self.descriptor).st_size, max(STRETCH, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        os.ftruncate(self.descriptor, start + length)
        self._used[start, length] = nbytes
        return start, length, 0

    def put(self, x: Array) -> ArrayPlace:
        """Write an array behind the others and tell where."""
        place = ArrayPlace(*self.take(x.nbytes), x.shape, x.dtype.name)
        np.copyto(self.view(place), x)
        return place

    def put_all(self, arrays: Mapping[str, Array]) -> dict[str, ArrayPlace]:
        """Write arrays and tell where each is."""
        return {name: self.put(array) for name, array in arrays.items()}

    def views(self, places: Mapping[str, ArrayPlace]) -> dict[str, Array]:
        """Return arrays as they stand in the file."""
        return {name: self.view(place) for name, place in places.items()}

    def clear(self) -> None:
        """Let the next arrays stand where the first did."""
        self._used = dict.fromkeys(self._used, 0)

    def view(self, place: ArrayPlace) -> Array:
        """Return an array as it stands in the file."""
        if place.start not in self._maps:
            stretch = mmap.mmap(self.descriptor, place.length, access=self._access, offset=place.start)
            self._maps[place.start] = np.frombuffer(stretch, np.uint8)
        dtype = np.dtype(place.dtype)
        count = math.prod(place.shape) * dtype.itemsize
        found: Array = self._maps[place.start][place.offset : place.offset + count].view(dtype).reshape(place.shape)
        return found
