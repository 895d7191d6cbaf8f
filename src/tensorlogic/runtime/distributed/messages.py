"""What a driver and its workers tell each other: a line of JSON on a pipe, and arrays in a file that both have open."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import IO, Any

import msgspec
import numpy as np

from ...diagnostics import Diagnostic

Array = Any
ALIGNMENT = 64
GROWTH = 1 << 20  # bytes by which the file grows at least


class ArrayPlace(msgspec.Struct, frozen=True):
    """Where an array lies in the file."""

    offset: int
    shape: tuple[int, ...]
    dtype: str


class TaskMessage(msgspec.Struct):
    """A graph that was sent, by its number, its inputs, and the outputs that are combined over tasks."""

    graph: int
    inputs: dict[str, ArrayPlace]
    totals: dict[str, str] = {}


class Setup(msgspec.Struct, tag="setup"):
    """What a worker is told when it starts; later calls must have the same token."""

    rank: int
    size: int
    address: str
    token: str
    timeout: float
    descriptor: int
    backend: str
    level: str
    policy: str


class Call(msgspec.Struct, tag="call"):
    """What a driver asks for: new graphs, each as JSON, and the tasks of the rank."""

    token: str
    mesh: tuple[int, int, int]
    tasks: list[TaskMessage]
    graphs: dict[int, str] = {}
    used: int = 0  # bytes of the file that the driver wrote


class Answer(msgspec.Struct, tag="answer"):
    """What a worker answers: the outputs of each task, and its times; or why there are none."""

    outputs: list[dict[str, ArrayPlace]] = []
    times: tuple[int, int, int, int] = (0, 0, 0, 0)
    moved: dict[str, int] = {}
    kept_bytes: int = 0
    failure: Diagnostic | None = None


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
    """A file without a name that a driver and one worker share: arrays are written one behind the other."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor, self.used = descriptor, 0

    def put(self, x: Array) -> ArrayPlace:
        """Write an array and tell where."""
        array: Array = np.ascontiguousarray(x).reshape(np.shape(x))
        offset = -(-self.used // ALIGNMENT) * ALIGNMENT
        end = offset + array.nbytes
        if end > os.fstat(self.descriptor).st_size:
            os.ftruncate(self.descriptor, max(end, os.fstat(self.descriptor).st_size + GROWTH))
        if array.nbytes:
            view = memoryview(array.reshape(-1).view(np.uint8))
            done = 0
            while done < array.nbytes:
                done += os.pwrite(self.descriptor, view[done:], offset + done)
        self.used = end
        return ArrayPlace(offset, array.shape, array.dtype.name)

    def put_all(self, arrays: Mapping[str, Array]) -> dict[str, ArrayPlace]:
        """Write arrays and tell where each is."""
        return {name: self.put(array) for name, array in arrays.items()}

    def get(self, place: ArrayPlace) -> Array:
        """Read an array."""
        result: Array = np.empty(place.shape, place.dtype)
        view, done = memoryview(result.reshape(-1).view(np.uint8)), 0
        while done < result.nbytes:
            count = os.preadv(self.descriptor, [view[done:]], place.offset + done)
            if not count:
                raise EOFError(f"the file ends within an array at {place.offset}")
            done += count
        return result
