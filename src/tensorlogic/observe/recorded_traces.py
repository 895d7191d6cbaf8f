"""Recorded traces: entries in columns, so that millions of them stay small and group fast; and the Rust crate's JSON."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from time import perf_counter_ns
from typing import Annotated, Any, NamedTuple, overload

import msgspec
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..diagnostics import value_text
from ..errors import FormatError, InputError, expect
from ..ir.sizes import integer
from .columns import Groups, Names, longest

AT_ONCE = 1000  # entries built together while all are gone through
LIMIT = 1 << 63  # what a column of whole numbers can hold ends below
Natural = Annotated[int, msgspec.Meta(ge=0, le=LIMIT - 1)]  # checked where JSON is read
Shape = tuple[Natural, ...]


class RecordedTraceEntry(msgspec.Struct, gc=False):  # entries hold numbers and texts, never one another
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
        expect(shapes, Iterable, "the shapes of operands are a sequence of shapes", "write [[2, 3], [3, 4]]")
        self.input_shapes = [_shape(s) for s in shapes]
        return self

    def with_output_shape(self, shape: Iterable[int], itemsize: int = 8) -> RecordedTraceEntry:
        """Say the shape of its result, and with it elements and bytes; a scalar has one element."""
        self.output_shape = _shape(shape)
        self.output_elements = math.prod(self.output_shape)
        self.memory_bytes = self.output_elements * integer(itemsize, "the itemsize of a dtype")
        return self

    def with_duration(self, duration: timedelta | np.timedelta64) -> RecordedTraceEntry:
        """Say how long it took; below a microsecond, where a timedelta is 0, with ``np.timedelta64(100, "ns")``."""
        hints = ("write timedelta(microseconds=5)", 'below a microsecond, write np.timedelta64(100, "ns")')
        expect(duration, (timedelta, np.timedelta64), "a duration is a timedelta", *hints)
        try:
            if isinstance(duration, timedelta):
                microseconds = duration / timedelta(microseconds=1)
            else:
                microseconds = float(duration / np.timedelta64(1, "us"))
        except TypeError:  # years and months have no fixed length
            microseconds = math.nan
        if not microseconds >= 0:
            raise InputError(f"a duration is a time of 0 or more, got {value_text(duration)}", *hints, code="E701")
        self.duration_us = microseconds
        return self

    def throughput_elements_per_us(self) -> float:
        """Return elements per microsecond; 0 where no time passed."""
        return 0.0 if self.duration_us < 1e-9 else self.output_elements / self.duration_us


def _shape(dims: Iterable[int]) -> Shape:
    if isinstance(dims, str | bytes):
        raise InputError(f"a shape is a sequence of sizes, got {value_text(dims)}", "write [2, 3]", code="E301")
    expect(dims, Iterable, "a shape is a sequence of sizes", "write [2, 3]")
    shape = tuple(integer(d, "a size of a shape") for d in dims)
    if any(d < 0 for d in shape):
        raise InputError(f"a shape cannot have negative sizes, got {list(shape)}", code="E722")
    return shape


class _FileEntry(msgspec.Struct):
    """An entry as the Rust crate writes it: with everything in it, but for a device that is not known."""

    step: Natural
    operation: str
    input_shapes: list[Shape]
    output_shape: Shape
    duration_us: float
    output_elements: Natural
    memory_bytes: Natural
    device_id: str | None = None


class _TraceFile(msgspec.Struct):
    entries: list[_FileEntry]
    total_duration_us: float
    metadata: dict[str, str]


class EntryKind(NamedTuple):
    """What entries of one kind have in common: everything but step and duration."""

    operation: str
    device: str | None
    inputs: tuple[Shape, ...]
    output: Shape
    elements: int
    memory: int


def _kind(e: RecordedTraceEntry | _FileEntry) -> EntryKind:
    return EntryKind(e.operation, e.device_id, tuple(e.input_shapes), e.output_shape, e.output_elements, e.memory_bytes)


class Entries(Sequence[RecordedTraceEntry]):
    """Entries of a trace, all or those at some places, each built from the columns when it is asked for."""

    __slots__ = ("_places", "_trace")
    __hash__ = None  # type: ignore[assignment] # a trace grows

    def __init__(self, trace: RecordedExecutionTrace, places: NDArray[np.intp] | None = None) -> None:
        self._trace, self._places = trace, places

    def __len__(self) -> int:
        return self._trace.step_count() if self._places is None else self._places.size

    @overload
    def __getitem__(self, i: int) -> RecordedTraceEntry: ...
    @overload
    def __getitem__(self, i: slice) -> list[RecordedTraceEntry]: ...
    def __getitem__(self, i: int | slice) -> RecordedTraceEntry | list[RecordedTraceEntry]:
        if isinstance(i, slice):
            return self._trace.pick(range(*i.indices(len(self))) if self._places is None else self._places[i])
        if not -len(self) <= i < len(self):
            raise IndexError(f"there are {len(self)} entries, so no entry {i}")
        return self._trace.pick([i % len(self) if self._places is None else int(self._places[i])])[0]

    def __iter__(self) -> Iterator[RecordedTraceEntry]:
        return (entry for at in range(0, len(self), AT_ONCE) for entry in self[at : at + AT_ONCE])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or isinstance(other, str | bytes):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    def __repr__(self) -> str:
        return f"<{len(self)} entries>"


class RecordedExecutionTrace:
    """A trace: entries in columns of 24 bytes each, their total duration, and metadata.

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
        self.kinds: list[EntryKind] = []  # in order of first occurrence
        self._numbers = Names()  # of the kinds
        self._step, self._kind, self._duration = array("q"), array("q"), array("d")
        for entry in entries:
            self.add_entry(entry)

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
            shapes = f"kind {which.shape}, duration_us {took.shape}, step {steps.shape}"
            raise InputError(f"columns must be equally long, got {shapes}", code="E723")
        for name, column, end in (("kind", which, len(kinds)), ("step", steps, LIMIT)):
            if which.size and (column.dtype.kind not in "iu" or not 0 <= int(column.min()) <= int(column.max()) < end):
                raise InputError(f"{name} must hold whole numbers from 0 to {end - 1}", code="E724")
        n, which = which.size, which.astype(np.intp, copy=False)
        first = np.full(len(kinds), n)
        first[which[::-1]] = np.arange(n)[::-1]  # of equal places the last written stays, which is the first entry
        order = np.argsort(first, kind="stable")[: np.count_nonzero(first < n)]
        trace = cls((kinds[i] for i in order.tolist()), metadata)  # kinds count in the order in which they occur
        number = np.zeros(len(kinds), np.intp)
        number[order] = trace.column("kind")
        trace._step = array("q", np.ascontiguousarray(steps, np.int64).tobytes())
        trace._kind = array("q", number[which].tobytes())
        trace._duration = array("d", took.tobytes())
        trace.total_duration_us = float(took.sum())
        return trace

    def add_entry(self, entry: RecordedTraceEntry | _FileEntry) -> None:
        """Add one entry at the end; for many at once see :meth:`from_columns`."""
        step, duration = entry.step, entry.duration_us
        try:
            known = self._numbers.get(_kind(entry))
        except TypeError:  # a shape that is a list
            known = None
        if known is None or type(step) is not int or not 0 <= step < LIMIT or type(duration) is not float:
            entry = _checked(entry, self.step_count())
            step, duration, key = entry.step, entry.duration_us, _kind(entry)
            known = self._numbers.number(key)
            if known == len(self.kinds):
                self.kinds.append(key)
        try:
            self._step.append(step)
            self._kind.append(known)
            self._duration.append(duration)
        except BufferError:  # someone looks at a column: it stays as it is, and the trace goes on with a copy
            n = min(len(self._step), len(self._kind), len(self._duration))
            self._step, self._kind, self._duration = self._step[:n], self._kind[:n], self._duration[:n]
            self.add_entry(entry)
        else:
            self.total_duration_us += duration

    def pick(self, places: Iterable[int] | NDArray[np.intp]) -> list[RecordedTraceEntry]:
        """Build the entries at some places from the columns."""
        rows = np.fromiter(places, np.intp) if not isinstance(places, np.ndarray) else places
        columns = (self.column(name)[rows].tolist() for name in ("step", "kind", "duration"))
        kinds = self.kinds
        return [
            RecordedTraceEntry(step, operation, device, [*inputs], output, duration, elements, memory)
            for step, kind, duration in zip(*columns, strict=True)
            for operation, device, inputs, output, elements, memory in (kinds[kind],)
        ]

    @property
    def entries(self) -> Sequence[RecordedTraceEntry]:
        """The entries, built as they are read."""
        return Entries(self)

    def with_metadata(self, key: str, value: str) -> RecordedExecutionTrace:
        """Add one piece of metadata and return the trace."""
        self.metadata[str(key)] = str(value)
        return self

    def step_count(self) -> int:
        """Return the number of entries."""
        return len(self._step)

    def total_memory_bytes(self) -> int:
        """Return the bytes of all results together, however large that is."""
        counts = self.by_kind().counts().tolist()
        return sum(count * kind.memory for count, kind in zip(counts, self.kinds, strict=True))

    def peak_memory_bytes(self) -> int:
        """Return the bytes of the largest result; 0 of an empty trace."""
        return max((kind.memory for kind in self.kinds), default=0)

    def slowest_ops(self, n: int) -> list[RecordedTraceEntry]:
        """Return the n longest entries, longest first; equal ones in the order they came, NaN last."""
        return self.pick(longest(self.column("duration"), n)) if n > 0 and self._duration else []

    def by_kind(self) -> Groups:
        """Return the entries grouped by their kinds, of which every other grouping follows."""
        return Groups(self.column("kind"), len(self.kinds))

    def column(self, name: str) -> NDArray[Any]:
        """Return a column: step, kind and duration as they lie, without a copy; operation, device, elements and memory by kind."""
        if name in ("step", "kind", "duration"):
            return np.frombuffer(getattr(self, f"_{name}"), np.float64 if name == "duration" else np.int64)
        of_kind = [getattr(k, name) for k in self.kinds]
        if name in ("operation", "device"):
            names = getattr(self, f"{name}_names")
            of_kind = [-1 if value is None else names.index(value) for value in of_kind]
        column: NDArray[np.int64] = np.array(of_kind, np.int64)[self.column("kind")]
        return column

    @property
    def operation_names(self) -> list[str]:
        """The distinct operations, by the numbers that the operation column holds."""
        return list(dict.fromkeys(kind.operation for kind in self.kinds))

    @property
    def device_names(self) -> list[str]:
        """The distinct devices, by the numbers that the device column holds; -1 stands for none."""
        return list(dict.fromkeys(kind.device for kind in self.kinds if kind.device is not None))

    def nbytes(self) -> int:
        """Return the bytes that the columns take."""
        return 24 * self.step_count()

    def to_json(self) -> str:
        """Return the trace as the Rust crate writes it."""
        for n in np.flatnonzero(~np.isfinite(self.column("duration")))[:1].tolist():
            raise FormatError(f"entry {n} has the duration {self._duration[n]}, which JSON cannot hold", code="E256")
        if not math.isfinite(self.total_duration_us):
            message = f"the durations add up to {self.total_duration_us}, which JSON cannot hold"
            raise FormatError(message, code="E256")
        file = {"entries": list(self.entries), "total_duration_us": self.total_duration_us, "metadata": self.metadata}
        try:
            return msgspec.json.format(msgspec.json.encode(file), indent=2).decode()
        except UnicodeEncodeError as error:
            raise half_a_character(error) from None

    @classmethod
    def from_json(cls, text: str | bytes) -> RecordedExecutionTrace:
        """Read a trace of the Rust crate or of :meth:`to_json`; what is wrong is said with its path, other fields are ignored."""
        try:
            file = msgspec.json.decode(text, type=_TraceFile)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise FormatError(f"this is not a trace: {error}", code="E702") from None
        trace = cls(metadata=file.metadata)
        for entry in file.entries:
            trace.add_entry(entry)
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


def _checked(entry: RecordedTraceEntry | _FileEntry, n: int) -> RecordedTraceEntry:
    """Return an entry with fields of the right types, such as shapes that were given as lists; or say what is wrong."""
    try:
        return msgspec.convert(msgspec.structs.asdict(entry), RecordedTraceEntry, strict=True)
    except (msgspec.ValidationError, TypeError) as error:
        raise InputError(f"entry {n} cannot be recorded: {error}", code="E701") from None


def half_a_character(error: UnicodeEncodeError) -> FormatError:
    """Return the error of a text that JSON cannot hold."""
    return FormatError(f"the text {error.object!r} holds half a character, which JSON cannot", code="E231")


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
