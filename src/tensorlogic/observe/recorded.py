"""Recorded traces: entries kept in columns, so that millions of them stay small and group fast."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from time import perf_counter_ns
from typing import Any, overload

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..errors import FormatError, InputError

Shape = tuple[int, ...]


class RecordedTraceEntry(msgspec.Struct, forbid_unknown_fields=True):
    """One recorded operation; the ``with_*`` methods fill it in and return it, so calls chain.

    A shape alone counts 8 bytes an element; give ``itemsize`` where the dtype is known.

    >>> entry = RecordedTraceEntry(0, "matmul").with_output_shape([2, 3]).with_duration(timedelta(microseconds=3))
    >>> entry.output_elements, entry.memory_bytes, entry.throughput_elements_per_us()
    (6, 48, 2.0)
    """

    step: int
    operation: str
    device_id: str | None = None
    input_shapes: list[Shape] = []
    output_shape: Shape = ()
    duration_us: float = 0.0
    output_elements: int = 0
    memory_bytes: int = 0

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


class _TraceFile(msgspec.Struct, forbid_unknown_fields=True):
    """The Rust crate's JSON of a trace."""

    entries: list[RecordedTraceEntry]
    total_duration_us: float
    metadata: dict[str, str]


class _Entries(Sequence[RecordedTraceEntry]):
    """The entries of a trace, each built from the columns when it is asked for."""

    __slots__ = ("_trace",)

    def __init__(self, trace: RecordedExecutionTrace) -> None:
        self._trace = trace

    def __len__(self) -> int:
        return self._trace.step_count()

    @overload
    def __getitem__(self, i: int) -> RecordedTraceEntry: ...
    @overload
    def __getitem__(self, i: slice) -> list[RecordedTraceEntry]: ...
    def __getitem__(self, i: int | slice) -> RecordedTraceEntry | list[RecordedTraceEntry]:
        if isinstance(i, slice):
            return [self._trace.entry(n) for n in range(*i.indices(len(self)))]
        if not -len(self) <= i < len(self):
            raise IndexError(f"the trace has {len(self)} entries, so no entry {i}")
        return self._trace.entry(i % len(self))

    def __iter__(self) -> Iterator[RecordedTraceEntry]:
        return (self._trace.entry(n) for n in range(len(self)))

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"


class _Words:
    """Values kept once each, by number."""

    __slots__ = ("number", "values")

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.number: dict[Any, int] = {}

    def of(self, value: Any) -> int:
        found = self.number.get(value)
        if found is None:
            found = self.number[value] = len(self.values)
            self.values.append(value)
        return found


class RecordedExecutionTrace:
    """A trace: entries in columns of 48 bytes each, their total duration, and metadata.

    >>> trace = RecordedExecutionTrace().with_metadata("model", "resnet50")
    >>> trace.add_entry(RecordedTraceEntry(0, "matmul").with_output_shape([4, 4]))
    >>> trace.step_count(), trace.total_memory_bytes(), trace.entries[0].operation
    (1, 128, 'matmul')
    >>> RecordedExecutionTrace.from_json(trace.to_json()) == trace
    True
    """

    def __init__(self, entries: Iterable[RecordedTraceEntry] = (), metadata: Mapping[str, str] | None = None) -> None:
        self.total_duration_us = 0.0
        self.metadata: dict[str, str] = dict(metadata or {})
        self._operations, self._devices, self._inputs, self._outputs = _Words(), _Words(), _Words(), _Words()
        self._step, self._elements, self._memory = array("q"), array("q"), array("q")
        self._duration = array("d")
        self._operation, self._device, self._input, self._output = array("i"), array("i"), array("i"), array("i")
        for entry in entries:
            self.add_entry(entry)

    def add_entry(self, entry: RecordedTraceEntry) -> None:
        """Add one entry at the end."""
        self.total_duration_us += entry.duration_us
        self._step.append(entry.step)
        self._operation.append(self._operations.of(entry.operation))
        self._device.append(-1 if entry.device_id is None else self._devices.of(entry.device_id))
        self._input.append(self._inputs.of(tuple(entry.input_shapes)))
        self._output.append(self._outputs.of(entry.output_shape))
        self._duration.append(entry.duration_us)
        self._elements.append(entry.output_elements)
        self._memory.append(entry.memory_bytes)

    def entry(self, n: int) -> RecordedTraceEntry:
        """Build entry ``n`` from the columns."""
        device = self._device[n]
        return RecordedTraceEntry(
            self._step[n],
            self._operations.values[self._operation[n]],
            None if device < 0 else self._devices.values[device],
            list(self._inputs.values[self._input[n]]),
            self._outputs.values[self._output[n]],
            self._duration[n],
            self._elements[n],
            self._memory[n],
        )

    @property
    def entries(self) -> Sequence[RecordedTraceEntry]:
        """The entries, built as they are read."""
        return _Entries(self)

    def with_metadata(self, key: str, value: str) -> RecordedExecutionTrace:
        """Add one piece of metadata and return the trace."""
        self.metadata[str(key)] = str(value)
        return self

    def step_count(self) -> int:
        """Return the number of entries."""
        return len(self._step)

    def total_memory_bytes(self) -> int:
        """Return the bytes of all results together."""
        return int(self.column("memory").sum())

    def peak_memory_bytes(self) -> int:
        """Return the bytes of the largest result; 0 of an empty trace."""
        memory = self.column("memory")
        return int(memory.max()) if memory.size else 0

    def slowest_ops(self, n: int) -> list[RecordedTraceEntry]:
        """Return the n longest entries, longest first; equal ones in the order they came, NaN last."""
        duration = np.nan_to_num(self.column("duration"), nan=-np.inf)
        if n <= 0 or not duration.size:
            return []
        if n < duration.size:
            least = np.partition(duration, duration.size - n)[duration.size - n]
            chosen = np.concatenate([np.flatnonzero(duration > least), np.flatnonzero(duration == least)])
            places = chosen[np.argsort(-duration[chosen], kind="stable")][:n]
        else:
            places = np.argsort(-duration, kind="stable")
        return [self.entry(int(i)) for i in places]

    def column(self, name: str) -> NDArray[Any]:
        """Return a column as a NumPy array without copying it: step, operation, device, duration, elements or memory."""
        kept: array[Any] = getattr(self, f"_{name}")
        return np.frombuffer(kept, dtype={"q": np.int64, "d": np.float64, "i": np.int32}[kept.typecode])

    @property
    def operation_names(self) -> list[str]:
        """The distinct operations, by the numbers that the operation column holds."""
        return list(self._operations.values)

    @property
    def device_names(self) -> list[str]:
        """The distinct devices, by the numbers that the device column holds; -1 stands for none."""
        return list(self._devices.values)

    def nbytes(self) -> int:
        """Return the bytes that the columns take."""
        kept = (
            self._step,
            self._operation,
            self._device,
            self._input,
            self._output,
            self._duration,
            self._elements,
            self._memory,
        )
        return sum(column.itemsize * len(column) for column in kept)

    def to_json(self) -> str:
        """Return the trace as the Rust crate writes it."""
        for n, d in enumerate(self._duration):
            if not math.isfinite(d):
                raise FormatError(f"entry {n} has the duration {d}, which JSON cannot hold", code="E702")
        file = _TraceFile(list(self.entries), self.total_duration_us, self.metadata)
        return msgspec.json.format(msgspec.json.encode(file), indent=2).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordedExecutionTrace:
        """Read a trace of the Rust crate or of :meth:`to_json`; what is wrong is said with its path."""
        try:
            file = msgspec.json.decode(text, type=_TraceFile)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise FormatError(f"this is not a trace: {error}", code="E702") from None
        for n, entry in enumerate(file.entries):
            wrong = [f for f in ("step", "output_elements", "memory_bytes") if not 0 <= getattr(entry, f) < 1 << 63]
            wrong += [f for f, shapes in (("output_shape", [entry.output_shape]), ("input_shapes", entry.input_shapes))
                      if any(d < 0 for s in shapes for d in s)]  # fmt: skip
            if wrong:
                raise FormatError(
                    f"this is not a trace: a number is out of range - at `$.entries[{n}].{wrong[0]}`", code="E702"
                )
        trace = cls(file.entries, file.metadata)
        trace.total_duration_us = file.total_duration_us
        return trace

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RecordedExecutionTrace):
            return NotImplemented
        return (
            self.metadata == other.metadata
            and self.total_duration_us == other.total_duration_us
            and list(self.entries) == list(other.entries)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<RecordedExecutionTrace {self.step_count():,} entries, {self.total_duration_us / 1e3:,.3f} ms>"


class TraceRecorder:
    """Times operations one after another, by hand, on a nanosecond clock.

    >>> recorder = TraceRecorder()
    >>> recorder.begin_op("matmul")
    >>> recorder.end_op_with_shapes([[2, 3], [3, 4]], [2, 4])
    >>> recorder.finish().entries[0].output_elements
    8
    """

    def __init__(self) -> None:
        self._trace = RecordedExecutionTrace()
        self._operation: str | None = None
        self._start = 0

    def begin_op(self, operation: str) -> None:
        """Start timing an operation; one that is still running ends."""
        self.end_op()
        self._operation = str(operation)
        self._start = perf_counter_ns()

    def end_op(self) -> None:
        """End the running operation, if there is one, without shapes."""
        self.end_op_with_shapes([], [])

    def end_op_with_shapes(self, input_shapes: Iterable[Iterable[int]], output_shape: Iterable[int]) -> None:
        """End the running operation, if there is one, with the shapes it saw."""
        end = perf_counter_ns()
        if self._operation is None:
            return
        entry = RecordedTraceEntry(self._trace.step_count(), self._operation)
        entry.with_input_shapes(input_shapes).with_output_shape(output_shape).duration_us = (end - self._start) / 1e3
        self._operation = None
        self._trace.add_entry(entry)

    def finish(self) -> RecordedExecutionTrace:
        """End the running operation and return the trace."""
        self.end_op()
        return self._trace

    def current_trace(self) -> RecordedExecutionTrace:
        """Return what is recorded so far."""
        return self._trace
