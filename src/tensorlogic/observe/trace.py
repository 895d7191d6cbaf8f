"""Tracing real runs: every step of every execution inside a ``with``, in columns."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from threading import current_thread, get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..diagnostics import clean, value_text
from ..errors import InputError, expect
from ..events import Hook, RunRecord, watching
from ..ir.types import ITEMSIZE
from ..plan.build import ExecutionPlan, Step
from ..plan.cost import nbytes
from ..plan.printing import describe
from ..store import Lock
from ..tables import table
from .columns import FAR, EventColumns, Names
from .recorded_traces import LIMIT, RecordedExecutionTrace, RecordedTraceEntry, Shape
from .trace_names import operation_names

if TYPE_CHECKING:
    from .compare_traces import TraceDiff

PACKED = 300_000  # numbers that may wait in lists before they are packed into arrays
SHOWN = 40  # operations in print
TYPE = re.compile(r"([^\[]*)\[((?:\d{1,18}(?:, *\d{1,18})*)?)\]")  # as it prints, such as float32[4, 2]


class TraceEvent(NamedTuple):
    """One step or span of a trace; times are nanoseconds of ``time.perf_counter_ns``, or of the file it was read from.

    >>> TraceEvent("relu", "step", 5, 9, 1).duration_ns
    4
    """

    name: str
    kind: str  # "step" or "span"; of a file, the category that stands there
    start_ns: int
    end_ns: int
    thread: int
    step: Step | None = None
    args: Mapping[str, Any] | None = None  # what a file says of it
    chrome: Mapping[str, bytes] | None = None  # further fields that a Chrome file gives it, each as JSON

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns

    @property
    def device(self) -> str | None:
        """Where it ran, if that is known; a file that numbers its devices means its accelerators."""
        if self.step is not None:
            return self.step.device
        device = (self.args or {}).get("device")
        if type(device) is int:
            return f"gpu:{device}" if device >= 0 else "cpu"
        return device if isinstance(device, str) else None

    def facts(self) -> dict[str, Any]:
        """Return what is known of it: for a step device, shapes, dtypes, bytes, flops, node and source line."""
        if self.step is None:
            return dict(self.args or {})
        s = self.step
        return {
            "device": s.device,
            "node": s.node,
            "kernel": s.kernel,
            "inputs": [str(t) for t in s.arg_types],
            "outputs": [str(t) for t in s.types],
            "bytes": s.nbytes,
            "flops": s.flops,
            "source": None if s.location is None else clean(str(s.location)),
        }


class TracedRun(NamedTuple):
    """The steps of one run: the number of its plan, its thread, and starts above ends of the first steps of the plan."""

    plan: int
    thread: int
    times: NDArray[np.int64]


class ChromeParts(NamedTuple):
    """What a Chrome file holds beside events with a duration; writing the trace as Chrome gives it back."""

    fields: Mapping[str, bytes]  # of the file, as JSON, without the events
    others: Sequence[bytes]  # metadata, counters, flows and instants, each as JSON
    threads: Mapping[int, tuple[int | str, int | str]]  # process and thread, as the file has them


_EVENT = 'write Trace([TraceEvent("relu", "step", 0, 2_000, 1)])'


class Trace(Hook):
    """The steps and spans recorded inside ``with tl.trace() as t``, or read from a trace file; 16 bytes a step once packed.

    It prints as a table of operations; it converts to a :class:`RecordedExecutionTrace` and exports to the viewers people use.

    >>> Trace()
    <Trace 0 steps, 0 spans>
    >>> print(Trace([TraceEvent("relu", "step", 0, 2_000_000, 1), TraceEvent("add", "step", 2_000_000, 3_000_000, 1)]))
    operation  count  total ms  self ms  mean µs  max µs  share
    relu           1     2.000    2.000   2000.0  2000.0  66.7%
    add            1     1.000    1.000   1000.0  1000.0  33.3%
    2 steps, 0 spans, 3.000 ms
    """

    def __init__(
        self, events: Iterable[TraceEvent] = (), *, threads: Mapping[int, str] | None = None, detail: str = "step"
    ) -> None:
        if not isinstance(detail, str) or detail not in ("step", "op"):
            hint = "write trace(detail='op') to see every operation of a step that holds many"
            raise InputError(f"the detail of a trace is 'step' or 'op', got {value_text(detail)}", hint, code="E704")
        expect({} if threads is None else threads, Mapping, "threads= are names by number", 'write {1: "main"}')
        expect(events, Iterable, "events are a list", _EVENT)
        self.detail = detail
        self.threads = dict(threads or {})  # names, where they are known
        self.skipped: dict[str, int] = {}  # what a file holds that could not be read: why, and how often
        self.damage: str | None = None  # why a file could not be read to its end, or not all of it
        self.chrome: ChromeParts | None = None  # of a trace that was read from such a file
        self._plans: list[ExecutionPlan] = []
        self._numbers: dict[int, int] = {}
        self._fresh: list[tuple[int, RunRecord]] = []  # plan and times, as the loop left them
        self._waiting = 0
        self._runs: list[TracedRun] = []
        self._lock = Lock()  # runs of several threads end when they like
        self.spans: list[TraceEvent] = []
        self._given: list[TraceEvent] = []
        for n, event in enumerate(events):
            _check_times(event, n)
            (self.spans if event.kind == "span" else self._given).append(event)

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy or a pickle needs: neither the lock, nor the ids of plans, which are others there."""
        self.runs()
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name not in ("_lock", "_numbers")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lock=Lock(), _numbers={id(plan): n for n, plan in enumerate(state["_plans"])})

    def on_run(self, record: RunRecord) -> None:
        """Keep the steps of one run; the plan says everything else about them."""
        with self._lock:
            number = self._numbers.get(id(record.plan))
            if number is None:
                number = self._numbers[id(record.plan)] = len(self._plans)
                self._plans.append(record.plan)  # kept alive, so its id stays its own
            self._name(record.thread)
            self._fresh.append((number, record))
            self._waiting += len(record.times)
            if self._waiting > PACKED:
                self.runs()

    def runs(self) -> list[TracedRun]:
        """Return the runs, in the order they ended; this packs the lists they left into arrays, 16 bytes a step."""
        with self._lock:
            fresh, self._fresh, self._waiting = self._fresh, [], 0
            for plan, record in fresh:
                ends = np.array(record.times[1:], np.int64)
                starts = np.array((record.starts or record.times)[: len(ends)], np.int64)
                self._runs.append(TracedRun(plan, record.thread, np.stack([starts, ends])))
            return list(self._runs)

    def plans(self) -> list[ExecutionPlan]:
        """Return the plans of the runs, by the numbers that runs have for them; ask after :meth:`runs`."""
        with self._lock:
            return list(self._plans)

    def _name(self, thread: int) -> None:
        """Call a thread what it calls itself, when it is the one that tells of a run or span."""
        if thread not in self.threads and thread == get_ident():
            name = current_thread().name
            self.threads[thread] = f"{name} {thread}" if name in self.threads.values() else name

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Keep a span."""
        with self._lock:
            self._name(thread)
            self.spans.append(TraceEvent(name, "span", start_ns, end_ns, thread))

    def __len__(self) -> int:
        return self.step_count() + len(self.spans)

    def step_count(self) -> int:
        """Return the number of steps."""
        return sum(int(run.times.shape[1]) for run in self.runs()) + len(self._given)

    def thread_name(self, thread: int) -> str:
        """Return what to call a thread in print."""
        return self.threads.get(thread, f"thread {thread}")

    def events(self) -> list[TraceEvent]:
        """Return steps and spans by start, what encloses before what it encloses."""
        c = self.columns()
        rows = zip(c.kind.tolist(), c.start.tolist(), c.end.tolist(), c.thread.tolist(), strict=True)
        return [
            k if (k := c.kinds[n]).step is None else TraceEvent(k.name, k.kind, start, end, c.threads[thread], k.step)
            for n, start, end, thread in rows
        ]

    def columns(self) -> EventColumns:
        """Return what :meth:`events` does, as columns: some nanoseconds an event, where objects take microseconds."""
        runs, plans = self.runs(), self.plans()
        loose = [*self._given, *self.spans]
        kinds = [TraceEvent(describe(s.op), "step", 0, 0, 0, s) for plan in plans for s in plan.steps]
        offsets = np.cumsum([0, *(len(plan.steps) for plan in plans)])
        threads = Names()
        kind = [offsets[p] + np.arange(t.shape[1]) for p, _, t in runs]
        thread = [np.full(t.shape[1], threads.number(ident), np.intp) for _, ident, t in runs]
        kind.append(len(kinds) + np.arange(len(loose)))
        thread.append(np.array([threads.number(e.thread) for e in loose], np.intp))
        far = max((max(abs(e.start_ns), abs(e.end_ns)) for e in loose), default=0)
        times = np.empty((2, len(loose)), np.int64 if far < FAR else object)
        times[0], times[1] = [e.start_ns for e in loose], [e.end_ns for e in loose]
        start, end = np.concatenate([*(t for _, _, t in runs), times], axis=1)
        events = EventColumns(kinds + loose, np.concatenate(kind), start, end, np.concatenate(thread), list(threads))
        later, same = start[1:] > start[:-1], start[1:] == start[:-1]
        if np.all(later | (same & (end[1:] <= end[:-1]))):  # as runs that follow one another are
            return events
        order = np.argsort(-end, kind="stable")
        order = order[np.argsort(start[order], kind="stable")]  # in turn, which Python's integers can be sorted by too
        return events.take(order)

    def to_recorded(self) -> RecordedExecutionTrace:
        """Return the steps as a recorded trace, in order of their start; a name that several kinds have says which one it is."""
        steps = self.columns()
        steps = steps.where(k.kind != "span" for k in steps.kinds)
        keys = Names()
        number = [keys.number((k.name, k.kind)) for k in steps.kinds]
        names = operation_names(list(keys))
        kinds = [_recorded_kind(k, names[n]) for k, n in zip(steps.kinds, number, strict=True)]
        return RecordedExecutionTrace.from_columns(kinds, steps.kind, (steps.end - steps.start) / 1e3)

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a trace: Chrome JSON of this package or of PyTorch, speedscope, collapsed stacks or the Rust crate's JSON; gzip too."""
        from .trace_files import load

        return load(path)

    def save(self, path: str | Path) -> None:
        """Write the trace in the form that the name asks for.

        ``.json`` for Chrome and Perfetto, ``.speedscope.json``, ``.rust.json``, ``.collapsed``, ``.folded`` or ``.txt``,
        ``.svg`` for a flame graph; compressed where ``.gz`` follows.
        """
        from .trace_files import save

        save(self, path)

    def diff(self, other: Trace) -> TraceDiff:
        """Compare with a later trace, operation by operation."""
        from .compare_traces import diff

        return diff(self, other)

    def __str__(self) -> str:
        from .compare_traces import counts, lengths, totals, totals_cells

        rows = totals(self)
        length = lengths(self, sum(r.self_ns for r in rows))
        return f"{table(*totals_cells(rows, limit=SHOWN))}\n{counts(self)}, {length}"

    def __repr__(self) -> str:
        return f"<Trace {self.step_count():,} steps, {len(self.spans):,} spans>"

    def _repr_html_(self) -> str:
        from html import escape

        from .flame import flame_svg

        picture = flame_svg(self, script=False, width=960, most=500)
        picture = picture.partition("?>")[2]  # a page has no place for an XML declaration
        return f"<pre>{escape(str(self))}</pre>{picture}"


def _check_times(event: TraceEvent, n: int) -> None:
    expect(event, TraceEvent, "an event is a TraceEvent", _EVENT)
    start, end = event.start_ns, event.end_ns
    if not (isinstance(start, int) and isinstance(end, int)):
        message = f"event {n} ({event.name!r}) runs from {value_text(start)} to {value_text(end)}: times are whole nanoseconds"
        raise InputError(message, "write int(1000 * microseconds)", code="E720")
    if end < start:
        raise InputError(
            f"event {n} ({event.name!r}) ends at {value_text(end)} ns, before it starts at {value_text(start)} ns",
            code="E721",
        )


def _recorded_kind(event: TraceEvent, name: str) -> RecordedTraceEntry:
    """Return what a plan or a file says of an event, as far as recorded entries hold it; without its duration."""
    if event.step is not None:
        types, results = event.step.arg_types, event.step.types
        shape = tuple(int(d) for d in results[0].shape or ())
        inputs = [tuple(int(d) for d in t.shape or ()) for t in types]
        elements, size = math.prod(shape), sum(nbytes(t) for t in results)
    else:
        args = event.args or {}
        outputs, inputs = _types(args.get("outputs")), [shape for _, shape in _types(args.get("inputs"))]
        shape = outputs[0][1] if outputs else ()
        elements = math.prod(shape) if outputs else 0
        known = sum(math.prod(s) * ITEMSIZE.get(dtype, 8) for dtype, s in outputs)
        stated = (args.get("memory_bytes"), None if outputs else args.get("bytes"))
        size = next((s for s in stated if isinstance(s, int) and s >= 0), known)
    return RecordedTraceEntry(0, name, event.device, inputs, shape, 0.0, elements, min(size, LIMIT - 1))


def _types(types: Any) -> list[tuple[str, Shape]]:
    """Read types as they print; what else there is does not count."""
    texts = [text for text in types if isinstance(text, str)] if isinstance(types, list) else []
    return [(t[1], tuple(map(int, t[2].split(",") if t[2] else ()))) for t in map(TYPE.fullmatch, texts) if t]


def trace(*, detail: str = "step") -> AbstractContextManager[Trace]:
    """Record every execution in the process inside a ``with``, whatever executor and thread it runs on.

    With ``detail="op"`` a step that holds many operations runs them one by one, so that each is recorded.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", ("n",))))
    >>> with tl.trace() as t:
    ...     out = tl.Executor().execute(graph, {"x": [1.0, -1.0]})
    >>> [e.name for e in t.events() if e.kind == "step"]
    ['relu']
    """
    return watching(Trace(detail=detail))  # type: ignore[return-value]
