"""Tracing real runs: every step of every execution inside a ``with``, in columns."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..events import Hook, RunRecord, watching
from ..plan.build import ExecutionPlan, Step, describe
from ..plan.cost import nbytes
from ..tables import table
from .recorded import RecordedExecutionTrace, RecordedTraceEntry


class TraceEvent(NamedTuple):
    """One step or span of a trace; times are nanoseconds of ``time.perf_counter_ns``.

    >>> TraceEvent("relu", "step", 5, 9, 1).duration_ns
    4
    """

    name: str
    kind: str  # "step" or "span"
    start_ns: int
    end_ns: int
    thread: int
    step: Step | None = None

    @property
    def duration_ns(self) -> int:
        """How long it took."""
        return self.end_ns - self.start_ns

    def facts(self) -> dict[str, Any]:
        """Return what is known of a step: device, shapes, dtypes, bytes, flops, node and source line."""
        if self.step is None:
            return {}
        s = self.step
        return {
            "device": s.device, "node": s.node, "kernel": s.kernel, "inputs": [str(t) for t in s.arg_types],
            "outputs": [str(t) for t in s.types], "bytes": s.nbytes, "flops": s.flops,
            "source": None if s.location is None else str(s.location),
        }  # fmt: skip


class Trace(Hook):
    """What happened inside ``with tl.trace() as t``; 32 bytes a step while it records.

    It prints as a table of operations; it converts to a :class:`RecordedExecutionTrace` and exports to the viewers people use.

    >>> Trace()
    <Trace 0 steps, 0 spans>
    """

    def __init__(self) -> None:
        self._plans: list[ExecutionPlan] = []
        self._numbers: dict[int, int] = {}
        self._plan, self._step, self._thread = array("i"), array("i"), array("q")
        self._start, self._end = array("q"), array("q")
        self.spans: list[TraceEvent] = []

    def on_run(self, record: RunRecord) -> None:
        """Keep the steps of one run; the plan says everything else about them."""
        number = self._numbers.get(id(record.plan))
        if number is None:
            number = self._numbers[id(record.plan)] = len(self._plans)
            self._plans.append(record.plan)  # kept alive, so its id stays its own
        flat = record.flat
        count = len(flat) // 3
        self._plan.extend([number] * count)
        self._step.extend(flat[0::3])
        self._start.extend(flat[1::3])
        self._end.extend(flat[2::3])
        self._thread.extend([record.thread] * count)

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Keep a span."""
        self.spans.append(TraceEvent(name, "span", start_ns, end_ns, thread))

    def __len__(self) -> int:
        return len(self._step) + len(self.spans)

    def events(self) -> list[TraceEvent]:
        """Return steps and spans by start, what encloses before what it encloses."""
        steps = [
            TraceEvent(describe(self._plans[p].steps[s].op), "step", a, b, t, self._plans[p].steps[s])
            for p, s, a, b, t in zip(self._plan, self._step, self._start, self._end, self._thread, strict=True)
        ]
        return sorted([*steps, *self.spans], key=lambda e: (e.start_ns, -e.end_ns))

    def to_recorded(self) -> RecordedExecutionTrace:
        """Return the steps as a recorded trace, in order of their start."""
        order = np.argsort(self._column(self._start), kind="stable")
        recorded = RecordedExecutionTrace()
        made: dict[tuple[int, int], RecordedTraceEntry] = {}
        duration = (self._column(self._end) - self._column(self._start)) / 1e3
        for n, i in enumerate(order.tolist()):
            key = (self._plan[i], self._step[i])
            entry = made.get(key)
            if entry is None:
                entry = made[key] = _entry(self._plans[key[0]].steps[key[1]])
            entry.step, entry.duration_us = n, float(duration[i])
            recorded.add_entry(entry)
        return recorded

    @staticmethod
    def _column(kept: array[int]) -> NDArray[np.int64]:
        return np.frombuffer(kept, np.int64) if len(kept) else np.zeros(0, np.int64)

    def save(self, path: str | Path) -> None:
        """Write the trace: ``.speedscope.json``, ``.collapsed`` or ``.txt``, else Chrome JSON."""
        from .export import to_chrome, to_collapsed, to_speedscope

        name = Path(path).name
        write = (
            to_collapsed
            if name.endswith((".collapsed", ".txt"))
            else to_speedscope
            if "speedscope" in name
            else to_chrome
        )
        Path(path).write_text(write(self), encoding="utf-8")

    def __str__(self) -> str:
        groups: dict[str, list[int]] = {}
        for e in self.events():
            if e.kind == "step":
                groups.setdefault(e.name, []).append(e.duration_ns)
        total = sum(map(sum, groups.values())) or 1
        rows = [
            [name, str(len(t)), f"{sum(t) / 1e6:.3f}", f"{sum(t) / len(t) / 1e3:.1f}", f"{max(t) / 1e3:.1f}", f"{100 * sum(t) / total:.1f}%"]
            for name, t in sorted(groups.items(), key=lambda g: -sum(g[1]))
        ]  # fmt: skip
        head = ["operation", "count", "total ms", "mean µs", "max µs", "share"]
        return (
            table(head, rows, right={1, 2, 3, 4, 5})
            + f"\n{len(self._step):,} steps, {len(self.spans):,} spans, {total / 1e6:.3f} ms"
        )

    def __repr__(self) -> str:
        return f"<Trace {len(self._step):,} steps, {len(self.spans):,} spans>"

    def _repr_html_(self) -> str:
        from html import escape

        return f"<pre>{escape(str(self))}</pre>"


def _entry(step: Step) -> RecordedTraceEntry:
    shape = tuple(int(d) for d in step.types[0].shape or ())
    return RecordedTraceEntry(
        0, describe(step.op), step.device, [tuple(int(d) for d in t.shape or ()) for t in step.arg_types], shape, 0.0,
        math.prod(shape), sum(nbytes(t) for t in step.types),
    )  # fmt: skip


@contextmanager
def trace() -> Iterator[Trace]:
    """Record every execution in the process inside a ``with``, whatever executor and thread it runs on.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", ("n",))))
    >>> with tl.trace() as t:
    ...     out = tl.Executor().execute(graph, {"x": [1.0, -1.0]})
    >>> [e.name for e in t.events()]
    ['plan', 'bind', 'relu']
    """
    recording = Trace()
    with watching(recording):
        yield recording
