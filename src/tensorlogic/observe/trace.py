"""Tracing real runs: every step of every execution inside a ``with``, in columns."""

from __future__ import annotations

import math
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

PACKED = 300_000  # numbers that may wait in lists before they are packed into arrays


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
    """What happened inside ``with tl.trace() as t``; 16 bytes a step once packed.

    It prints as a table of operations; it converts to a :class:`RecordedExecutionTrace` and exports to the viewers people use.

    >>> Trace()
    <Trace 0 steps, 0 spans>
    """

    def __init__(self) -> None:
        self._plans: list[ExecutionPlan] = []
        self._numbers: dict[int, int] = {}
        self._fresh: list[tuple[int, RunRecord]] = []  # plan and times, as the loop left them
        self._waiting = 0
        self._runs: list[tuple[int, int, NDArray[np.int64]]] = []  # plan, thread, starts and ends of its first steps
        self.spans: list[TraceEvent] = []

    def on_run(self, record: RunRecord) -> None:
        """Keep the steps of one run; the plan says everything else about them."""
        number = self._numbers.get(id(record.plan))
        if number is None:
            number = self._numbers[id(record.plan)] = len(self._plans)
            self._plans.append(record.plan)  # kept alive, so its id stays its own
        self._fresh.append((number, record))
        self._waiting += len(record.times)
        if self._waiting > PACKED:
            self._pack()

    def _pack(self) -> list[tuple[int, int, NDArray[np.int64]]]:
        """Turn the lists that runs left into arrays of starts and ends, 16 bytes a step."""
        fresh, self._fresh, self._waiting = self._fresh, [], 0
        for plan, record in fresh:
            ends = np.array(record.times[1:], np.int64)
            starts = np.array((record.starts or record.times)[: len(ends)], np.int64)
            self._runs.append((plan, record.thread, np.stack([starts, ends])))
        return self._runs

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Keep a span."""
        self.spans.append(TraceEvent(name, "span", start_ns, end_ns, thread))

    def __len__(self) -> int:
        return self.step_count() + len(self.spans)

    def step_count(self) -> int:
        """Return the number of steps recorded."""
        return sum(times.shape[1] for _, _, times in self._pack())

    def events(self) -> list[TraceEvent]:
        """Return steps and spans by start, what encloses before what it encloses."""
        steps = [
            TraceEvent(describe(self._plans[p].steps[n].op), "step", start, end, thread, self._plans[p].steps[n])
            for p, thread, times in self._pack()
            for n, (start, end) in enumerate(times.T.tolist())
        ]
        return sorted([*steps, *self.spans], key=lambda e: (e.start_ns, -e.end_ns))

    def to_recorded(self) -> RecordedExecutionTrace:
        """Return the steps as a recorded trace, in order of their start."""
        runs = self._pack()
        if not runs:
            return RecordedExecutionTrace()
        counts = [times.shape[1] for _, _, times in runs]
        plans = np.repeat([p for p, _, _ in runs], counts)
        steps = np.concatenate([np.arange(n) for n in counts])
        starts, ends = np.concatenate([times for _, _, times in runs], axis=1)
        recorded = RecordedExecutionTrace()
        made: dict[tuple[int, int], RecordedTraceEntry] = {}
        order = np.argsort(starts, kind="stable")
        taken = ((ends - starts) / 1e3)[order].tolist()
        for n, (p, step, took) in enumerate(zip(plans[order].tolist(), steps[order].tolist(), taken, strict=True)):
            entry = made.get((p, step))
            if entry is None:
                entry = made[p, step] = _entry(self._plans[p].steps[step])
            entry.step, entry.duration_us = n, took
            recorded.add_entry(entry)
        return recorded

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
            + f"\n{self.step_count():,} steps, {len(self.spans):,} spans, {total / 1e6:.3f} ms"
        )

    def __repr__(self) -> str:
        return f"<Trace {self.step_count():,} steps, {len(self.spans):,} spans>"

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
