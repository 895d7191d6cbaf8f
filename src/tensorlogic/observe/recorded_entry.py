"""One recorded operation, and the Rust crate's JSON of many."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import timedelta
from typing import Annotated

import msgspec

from ..errors import InputError

Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # checked where JSON is read
Shape = tuple[Natural, ...]


class RecordedTraceEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One recorded operation; the ``with_*`` methods fill it in and return it, so calls chain.

    A shape alone counts 8 bytes an element; give ``itemsize`` where the dtype is known.

    >>> entry = RecordedTraceEntry(0, "matmul").with_output_shape([2, 3]).with_duration(timedelta(microseconds=3))
    >>> entry.output_elements, entry.memory_bytes, entry.throughput_elements_per_us()
    (6, 48, 2.0)
    """

    step: Natural
    operation: str
    device_id: str | None = None
    input_shapes: list[Shape] = []
    output_shape: Shape = ()
    duration_us: float = 0.0
    output_elements: Natural = 0
    memory_bytes: Natural = 0

    def with_device_id(self, device_id: str) -> RecordedTraceEntry:
        """Say where it ran."""
        self.device_id = str(device_id)
        return self

    def with_input_shapes(self, shapes: Iterable[Iterable[int]]) -> RecordedTraceEntry:
        """Say the shapes of its operands."""
        self.input_shapes = [_shape(s) for s in shapes]
        return self

    def with_output_shape(self, shape: Iterable[int], itemsize: int = 8) -> RecordedTraceEntry:
        """Say the shape of its result, and with it elements and bytes; a scalar has one element."""
        self.output_shape = _shape(shape)
        self.output_elements = math.prod(self.output_shape)
        self.memory_bytes = self.output_elements * itemsize
        return self

    def with_duration(self, duration: timedelta) -> RecordedTraceEntry:
        """Say how long it took."""
        if not isinstance(duration, timedelta):
            raise InputError(f"a duration is a timedelta, got {duration!r}", code="E701",
                             suggestions=["write timedelta(microseconds=5)"])  # fmt: skip
        self.duration_us = duration / timedelta(microseconds=1)
        return self

    def throughput_elements_per_us(self) -> float:
        """Return elements per microsecond; 0 where no time passed."""
        return 0.0 if self.duration_us < 1e-9 else self.output_elements / self.duration_us


def _shape(dims: Iterable[int]) -> Shape:
    shape = tuple(int(d) for d in dims)
    if any(d < 0 for d in shape):
        raise InputError(f"a shape cannot have negative sizes, got {list(shape)}", code="E701")
    return shape


class FileEntry(msgspec.Struct, forbid_unknown_fields=True):
    """An entry as the Rust crate writes it: with everything in it, but for a device that is not known."""

    step: Natural
    operation: str
    input_shapes: list[Shape]
    output_shape: Shape
    duration_us: float
    output_elements: Natural
    memory_bytes: Natural
    device_id: str | None = None


class TraceFile(msgspec.Struct, forbid_unknown_fields=True):
    """The Rust crate's JSON of a trace."""

    entries: list[FileEntry]
    total_duration_us: float
    metadata: dict[str, str]


def converted(entry: RecordedTraceEntry | FileEntry, n: int) -> RecordedTraceEntry:
    """Return an entry with fields of the right types, such as shapes that were given as lists; or say what is wrong."""
    try:
        fields = msgspec.structs.asdict(entry)
        return msgspec.convert(fields, RecordedTraceEntry, strict=True)
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError(f"entry {n} cannot be recorded: {error}", code="E701") from None
