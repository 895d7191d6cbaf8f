"""The tracer: which operation ran when, from what and for how long; of real runs, or told by hand."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import value_text
from ..errors import InputError
from ..events import RunRecord
from ..store import Lock
from ..tables import counted, html_text, table
from .analyze import OpSummary, TraceAnalyzer
from .columns import Names
from .open_runs import DebugHook
from .profile import body_ids
from .recorded_traces import RecordedExecutionTrace, RecordedTraceEntry
from .trace import SHOWN, Trace


class TraceEntry(NamedTuple):
    """One operation that ran: its node, what it read and made, and when.

    >>> TraceEntry(4, "relu", (3,), (4,), {}, start_ns=0, end_ns=2_500_000).duration_ms()
    2.5
    """

    node_id: int
    operation: str
    input_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    metadata: Mapping[str, Any]
    start_ns: int
    end_ns: int
    thread: int = 0
    body: bool = False  # inside of a fixpoint, scan or cond, whose own entry holds its time too

    def duration_ms(self) -> float:
        """Return how long it took, in milliseconds."""
        return (self.end_ns - self.start_ns) / 1e6


class TraceSummary(NamedTuple):
    """A trace in numbers: how many operations, how long, and each operation's count and time; prints as a table.

    >>> print(TraceSummary(3, 0.75, {"relu": OpSummary(3, 750.0)}))
    operation  count  total ms  mean µs
    relu           3     0.750    250.0
    3 operations, 0.750 ms
    """

    total_operations: int
    total_time_ms: float  # what ran inside of another operation counts once
    operations: Mapping[str, OpSummary]

    def __str__(self) -> str:
        rows = [
            [name, f"{s.count:,}", f"{s.total_duration_us / 1e3:.3f}", f"{s.total_duration_us / s.count:.1f}"]
            for name, s in sorted(self.operations.items(), key=lambda item: -item[1].total_duration_us)
        ]
        head = table(["operation", "count", "total ms", "mean µs"], rows, right={1, 2, 3}) + "\n" if rows else ""
        return f"{head}{counted(self.total_operations, 'operation')}, {self.total_time_ms:.3f} ms"


class ExecutionTrace(NamedTuple):
    """What a tracer recorded, in order of start.

    >>> ExecutionTrace(7, (TraceEntry(4, "relu", (3,), (4,), {}, 0, 2_500_000),)).summary().total_time_ms
    2.5
    """

    graph_id: Any
    entries: tuple[TraceEntry, ...]

    def summary(self) -> TraceSummary:
        """Return the totals, and each operation's."""
        time = sum(e.end_ns - e.start_ns for e in self.entries if not e.body) / 1e6
        return TraceSummary(len(self.entries), time, TraceAnalyzer.operation_summary(self.to_recorded()))

    def slowest_operations(self, n: int) -> list[TraceEntry]:
        """Return the n longest entries, longest first; equal ones in the order they ran."""
        return [self.entries[r.step] for r in self.to_recorded().slowest_ops(n)]

    def to_recorded(self) -> RecordedExecutionTrace:
        """Return the entries in columns, for the analyses and files of recorded traces; ``step`` is the place here."""
        names = Names()
        kind = np.array([names.number(e.operation) for e in self.entries], int)
        kinds = [RecordedTraceEntry(0, name) for name in names]
        return RecordedExecutionTrace.from_columns(kinds, kind, [(e.end_ns - e.start_ns) / 1e3 for e in self.entries])

    def __str__(self) -> str:
        rows = []
        for e in self.entries[:SHOWN]:
            reads = " ".join(f"%{i}" for i in e.input_ids)
            rows.append([f"{'  ' * e.body}%{e.node_id}", e.operation, reads, f"{e.duration_ms():.3f}"])
        lines = [table(["node", "operation", "reads", "ms"], rows, right={3})] if rows else []
        if len(self.entries) > SHOWN:
            lines.append(f"... {len(self.entries) - SHOWN:,} more operations")
        name = "" if self.graph_id is None else f" of graph {self.graph_id}"
        return "\n".join([*lines, f"trace{name}: {str(self.summary()).rsplit(chr(10), 1)[-1]}"])

    def _repr_html_(self) -> str:
        return html_text(self)


class ExecutionTracer(DebugHook):
    """Records operations: those of every run it watches, and those told by hand. It is off until enabled.

    >>> tracer = ExecutionTracer(clock=iter([1_000_000, 3_000_000]).__next__)
    >>> tracer.enable()
    >>> tracer.start_trace("layer")
    >>> handle = tracer.record_operation_start(2, "einsum", [0, 1])
    >>> tracer.record_operation_end(handle, 2, "einsum", [0, 1], [2], {"algebra": "real"})
    >>> print(tracer.get_trace())
    node  operation  reads     ms
    %2    einsum     %0 %1  2.000
    trace of graph layer: 1 operation, 2.000 ms

    Attached to an executor it records by itself:

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> executor = tl.Executor(context=tl.ExecutionContext([tracer]))
    >>> tracer.start_trace()
    >>> out = executor.execute(b.build(y=b.relu(b.input("x", (2,)))), {"x": [1.0, -1.0]})
    >>> [(e.node_id, e.operation, e.input_ids) for e in tracer.get_trace().entries]
    [(1, 'relu', (0,))]
    """

    def __init__(self, *, clock: Callable[[], int] = perf_counter_ns) -> None:
        self._clock = clock
        self._lock = Lock()
        self._fresh(None)

    def _fresh(self, graph_id: Any) -> None:
        self.graph_id = graph_id
        self._runs = Trace()
        self._by_hand: list[TraceEntry] = []
        self._open: dict[int, int] = {}  # handles and when they began
        self._handles = 0

    def start_trace(self, graph_id: Any = None) -> None:
        """Begin a new trace, of a graph called so; what was recorded before is dropped."""
        with self._lock:
            self._fresh(graph_id)

    def record_operation_start(self, node_id: int, operation: str, input_ids: Iterable[int] = ()) -> int:
        """Say that an operation begins, and get the handle to end it with; 0 while the tracer is off."""
        if not self.enabled:
            return 0
        with self._lock:
            self._handles += 1
            self._open[self._handles] = self._clock()
            return self._handles

    def record_operation_end(
        self,
        handle: int,
        node_id: int,
        operation: str,
        input_ids: Iterable[int] = (),
        output_ids: Iterable[int] = (),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Say that the operation of a handle has ended, what it read and made, and anything else worth keeping."""
        if not self.enabled or handle == 0:
            return
        with self._lock:
            end = self._clock()
            start = self._open.pop(handle, None)
            if start is None:
                hint = "end an operation once, with what record_operation_start returned"
                message = f"no operation with the handle {value_text(handle)} is running, of node {node_id}"
                raise InputError(message, hint, code="E711")
            ids = tuple(input_ids), tuple(output_ids), dict(metadata or {})
            self._by_hand.append(TraceEntry(node_id, str(operation), *ids, start, end, threading.get_ident()))

    def on_run(self, record: RunRecord) -> None:
        """Keep the steps of one run."""
        if self.enabled:
            with self._lock:
                self._runs.on_run(record)

    def get_trace(self) -> ExecutionTrace:
        """Return what is recorded so far."""
        with self._lock:
            entries, events, plans = list(self._by_hand), self._runs.events(), self._runs.plans()
        bodies = body_ids(plans)
        known = {id(s): (p.graph.nodes[s.node].args, id(p) in bodies) for p in plans for s in p.steps}
        for e in events:
            if e.step is not None:
                node, (args, body) = e.step.node, known[id(e.step)]
                entries.append(TraceEntry(node, e.name, args, (node,), e.facts(), e.start_ns, e.end_ns, e.thread, body))
        return ExecutionTrace(self.graph_id, tuple(sorted(entries, key=lambda e: (e.start_ns, -e.end_ns))))
