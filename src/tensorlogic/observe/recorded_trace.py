"""Recorded traces: entries kept in columns, so that millions of them stay small and group fast."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from time import perf_counter_ns
from types import NoneType
from typing import Any, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..errors import FormatError, InputError
from .columns import Words, longest
from .recorded_entry import FileEntry, RecordedTraceEntry, TraceFile, converted

AT_ONCE = 10_000  # entries turned into columns together
WHOLE = {
    "step": "step",
    "elements": "output_elements",
    "memory": "memory_bytes",
}  # columns of whole numbers, and their fields
COLUMNS = (*WHOLE, "operation", "device", "input", "output", "duration")


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
        self._operations, self._devices, self._inputs, self._outputs = Words(), Words(), Words(), Words()
        self._step, self._elements, self._memory = array("q"), array("q"), array("q")
        self._duration = array("d")
        self._operation, self._device, self._input, self._output = array("i"), array("i"), array("i"), array("i")
        rest = iter(entries)
        while some := list(islice(rest, AT_ONCE)):
            self._extend(some)

    @classmethod
    def from_columns(
        cls,
        kinds: Sequence[RecordedTraceEntry],
        kind: ArrayLike,
        duration_us: ArrayLike,
        *,
        step: ArrayLike | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> RecordedExecutionTrace:
        """Make a trace of millions of entries at once: each is one of a few kinds, with its own duration.

        Without ``step`` the entries are numbered from 0.

        >>> kinds = [RecordedTraceEntry(0, "matmul"), RecordedTraceEntry(0, "relu")]
        >>> trace = RecordedExecutionTrace.from_columns(kinds, [0, 1, 0], [5.0, 1.0, 4.0])
        >>> [(e.step, e.operation, e.duration_us) for e in trace.entries]
        [(0, 'matmul', 5.0), (1, 'relu', 1.0), (2, 'matmul', 4.0)]
        """
        which, took = np.asarray(kind), np.asarray(duration_us, np.float64)
        steps = np.arange(which.size) if step is None else np.asarray(step)
        if not (which.ndim == 1 and which.shape == took.shape == steps.shape):
            raise InputError(
                f"columns must be equally long, got kind {which.shape}, duration_us {took.shape}, step {steps.shape}",
                code="E701",
            )
        if which.size and (which.dtype.kind not in "iu" or not 0 <= int(which.min()) <= int(which.max()) < len(kinds)):
            raise InputError(
                f"kind must hold whole numbers from 0 to {len(kinds) - 1}, one for each of the kinds given", code="E701"
            )
        if which.size and (steps.dtype.kind not in "iu" or int(steps.min()) < 0 or int(steps.max()) >= 1 << 63):
            raise InputError("step must hold whole numbers from 0 to 2^63 - 1", code="E701")
        n, which = which.size, which.astype(np.intp, copy=False)
        first = np.full(len(kinds), n)
        first[which[::-1]] = np.arange(n)[::-1]  # of equal places the last written stays, which is the first entry
        order = np.argsort(first, kind="stable")[: np.count_nonzero(first < n)]
        used = cls([kinds[i] for i in order.tolist()])  # names count from 0 in the order in which they occur
        trace = cls(metadata=metadata)
        trace._operations, trace._devices = used._operations, used._devices
        trace._inputs, trace._outputs = used._inputs, used._outputs
        trace._step = array("q", np.ascontiguousarray(steps, np.int64).tobytes())
        trace._duration = array("d", took.tobytes())
        for name in ("operation", "device", "input", "output", "elements", "memory"):
            kept: array[Any] = getattr(used, f"_{name}")
            of_kind = np.zeros(len(kinds), kept.typecode)
            of_kind[order] = used.column(name)
            setattr(trace, f"_{name}", array(kept.typecode, of_kind[which].tobytes()))
        trace.total_duration_us = float(took.sum())
        return trace

    def _extend(self, entries: Sequence[RecordedTraceEntry | FileEntry]) -> None:
        """Add entries at the end; all columns are made before the first grows, so that an error leaves none longer."""
        for name in COLUMNS:
            kept: array[Any] = getattr(self, f"_{name}")
            try:
                kept.append(0)
                kept.pop()
            except BufferError:
                raise InputError(f"the trace cannot grow while its column {name!r} is in use", code="E701",
                                 suggestions=[f"keep a copy: trace.column({name!r}).copy()"]) from None  # fmt: skip
        try:
            made = self._made(entries)
        except (TypeError, OverflowError, ValueError):
            made = self._made([converted(e, self.step_count() + n) for n, e in enumerate(entries)])
        for name, column in made.items():
            getattr(self, f"_{name}").extend(column)
        for took in made["duration"]:
            self.total_duration_us += took

    def _made(self, entries: Sequence[RecordedTraceEntry | FileEntry]) -> dict[str, array[Any]]:
        """Return the columns of some entries; what does not belong there is an error of one kind or another."""
        operation, device, input, output = self._operations.of, self._devices.of, self._inputs.of, self._outputs.of
        whole = {name: array("q", [getattr(e, field) for e in entries]) for name, field in WHOLE.items()}
        if any(min(column, default=0) < 0 for column in whole.values()):
            raise ValueError("a negative number")
        if any(type(e.operation) is not str or type(e.device_id) not in (str, NoneType) for e in entries):
            raise TypeError("a name is no text")
        return whole | {
            "duration": array("d", [e.duration_us for e in entries]),
            "input": array("i", [input(tuple(e.input_shapes)) for e in entries]),
            "output": array("i", [output(e.output_shape) for e in entries]),
            # last, so that an error leaves no name that no entry has
            "operation": array("i", [operation(e.operation) for e in entries]),
            "device": array("i", [-1 if e.device_id is None else device(e.device_id) for e in entries]),
        }

    def add_entry(self, entry: RecordedTraceEntry) -> None:
        """Add one entry at the end; for many at once see :meth:`from_columns`."""
        count, device = len(self._step), entry.device_id
        try:
            named = type(entry.operation) is str and (device is None or type(device) is str)
            if not named or min(entry.step, entry.output_elements, entry.memory_bytes) < 0:
                raise ValueError("this is no entry")
            self._step.append(entry.step)
            self._elements.append(entry.output_elements)
            self._memory.append(entry.memory_bytes)
            self._duration.append(entry.duration_us)
            self._input.append(self._inputs.of(tuple(entry.input_shapes)))
            self._output.append(self._outputs.of(entry.output_shape))
            self._device.append(-1)
            self._operation.append(-1)
        except (TypeError, ValueError, OverflowError, BufferError):
            for name in COLUMNS:
                kept: array[Any] = getattr(self, f"_{name}")
                if len(kept) > count:
                    kept.pop()
            self._extend((entry,))  # slower: it converts what can be, and says what is wrong
            return
        # nothing can fail from here on, so that there is no name that no entry has
        self._operation[count] = self._operations.of(entry.operation)
        if device is not None:
            self._device[count] = self._devices.of(device)
        self.total_duration_us += self._duration[count]

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
        if n <= 0 or not self._duration:
            return []
        return [self.entry(int(i)) for i in longest(self.column("duration"), n)]

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
        return sum(self.column(name).nbytes for name in COLUMNS)

    def to_json(self) -> str:
        """Return the trace as the Rust crate writes it."""
        for n in np.flatnonzero(~np.isfinite(self.column("duration")))[:1].tolist():
            raise FormatError(f"entry {n} has the duration {self._duration[n]}, which JSON cannot hold", code="E702")
        file = {"entries": list(self.entries), "total_duration_us": self.total_duration_us, "metadata": self.metadata}
        try:
            return msgspec.json.format(msgspec.json.encode(file), indent=2).decode()
        except UnicodeEncodeError as error:
            raise FormatError(
                f"the text {error.object!r} holds half a character, which JSON cannot", code="E702"
            ) from None

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordedExecutionTrace:
        """Read a trace of the Rust crate or of :meth:`to_json`; what is wrong is said with its path."""
        try:
            file = msgspec.json.decode(text, type=TraceFile)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise FormatError(f"this is not a trace: {error}", code="E702") from None
        trace = cls(metadata=file.metadata)
        trace._extend(file.entries)
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
