"""The recorder: tracer, inspector and breakpoints together, and runs captured to a folder."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..diagnostics import bytes_text
from ..errors import FormatError, InputError, expect
from ..events import RunRecord, StepEvent, watching
from ..ir.constants import all_constants
from ..ir.whole_files import write_folder
from ..plan.build import ExecutionPlan
from ..plan.cost import nbytes
from ..store import Lock
from ..tables import html_text, table
from .breakpoints import BreakpointHit, BreakpointManager
from .inspect import Problem, TensorInspector
from .open_runs import DebugHook, OpenRuns
from .replay import FORMAT, GRAPH, MANIFEST, VALUES, VERSION, Manifest, input_name, recorded_runs, step_name
from .tracer import ExecutionTrace, ExecutionTracer

MAX_BYTES = 1 << 30  # of one run, unless told otherwise
SLOWEST = 5  # operations that a report shows
HITS = 20  # and hits of breakpoints


class DebugReport(NamedTuple):
    """What a recorder has seen: the trace, what is bad and the path to it, and where runs were stopped.

    >>> print(DebugReport(ExecutionTrace(None, ()), (), ()))
    operations
      0 operations, 0.000 ms
    problems
      none
    breakpoints
      no hits
    """

    trace: ExecutionTrace
    problems: tuple[Problem, ...]
    hits: tuple[BreakpointHit, ...]
    recorded: tuple[Path, ...] = ()

    def __str__(self) -> str:
        parts = {"operations": str(self.trace.summary())}
        slowest = self.trace.slowest_operations(SLOWEST)
        if slowest:
            rows = [[f"%{e.node_id}", e.operation, f"{e.duration_ms():.3f}"] for e in slowest]
            parts["slowest"] = table(["node", "operation", "ms"], rows, right={2})
        parts["problems"] = "\n".join(map(str, self.problems)) or "none"
        more = [f"... {len(self.hits) - HITS:,} more hits"] if len(self.hits) > HITS else []
        parts["breakpoints"] = "\n".join([*map(str, self.hits[:HITS]), *more]) or "no hits"
        if self.recorded:
            parts["recorded"] = "\n".join(map(str, self.recorded))
        return "\n".join(f"{name}\n  " + text.replace("\n", "\n  ") for name, text in parts.items())

    def _repr_html_(self) -> str:
        return html_text(self)


class ExecutionRecorder(DebugHook):
    """Traces, inspects and stops runs, and captures them to a folder to be replayed. It is off until enabled.

    With ``folder`` every run it watches is written there; :meth:`capture` does so for a while, for every run in the
    process. A captured run is a folder of its own, for :class:`Recording` to load. ``max_bytes`` bounds one run.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> recorder = ExecutionRecorder()
    >>> recorder.enable()
    >>> executor = tl.Executor(context=tl.ExecutionContext([recorder]))
    >>> out = executor.execute(b.build(y=b.log(b.input("x", (2,)))), {"x": [1.0, 0.0]})
    >>> report = recorder.generate_report()
    >>> report.trace.summary().total_operations, [p.stats.num_infs for p in report.problems]
    (1, [1])
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        max_bytes: int = MAX_BYTES,
        tracer: ExecutionTracer | None = None,
        inspector: TensorInspector | None = None,
        breakpoints: BreakpointManager | None = None,
    ) -> None:
        self._tracer = tracer or ExecutionTracer()
        self._inspector = inspector or TensorInspector()
        self._breakpoints = breakpoints or BreakpointManager()
        self._parts: tuple[DebugHook, ...] = (self._tracer, self._inspector, self._breakpoints)
        self._folder = None if folder is None else Path(folder)
        self._max_bytes = max_bytes
        self._written: list[Path] = []
        self._lock = Lock()
        self._runs = OpenRuns()  # what they keep are copies of the values, by their names in the file

    def tracer(self) -> ExecutionTracer:
        """Return the tracer."""
        return self._tracer

    def inspector(self) -> TensorInspector:
        """Return the inspector."""
        return self._inspector

    def breakpoints(self) -> BreakpointManager:
        """Return the breakpoints."""
        return self._breakpoints

    def enable(self) -> None:
        """Record from now on, with all three parts."""
        super().enable()
        for part in self._parts:
            part.enable()

    def disable(self) -> None:
        """Record no more; what is known stays."""
        super().disable()
        for part in self._parts:
            part.disable()

    @contextmanager
    def capture(self, folder: str | Path, *, max_bytes: int | None = None) -> Iterator[ExecutionRecorder]:
        """Write every run in the process to a folder, inside a ``with``; the recorder is enabled for as long."""
        expect(folder, (str, Path), "a folder is given by its path", 'write capture("run")')
        before, parts = (self._folder, self._max_bytes), (self, *self._parts)
        enabled = [part.enabled for part in parts]
        self._folder, self._max_bytes = Path(folder), self._max_bytes if max_bytes is None else max_bytes
        self.enable()
        try:
            with watching(self):
                yield self
        finally:
            self._folder, self._max_bytes = before
            for part, was in zip(parts, enabled, strict=True):
                part.enabled = was

    def recorded(self) -> list[Path]:
        """Return the folders of the runs captured so far, for :meth:`Recording.load`."""
        with self._lock:
            return list(self._written)

    def generate_report(self) -> DebugReport:
        """Return everything that is known so far, to read or to print."""
        trace, problems = self._tracer.get_trace(), self._inspector.problems()
        return DebugReport(trace, tuple(problems), tuple(self._breakpoints.hits), tuple(self.recorded()))

    def on_start(self, plan: ExecutionPlan, inputs: Sequence[Any], *, body: bool) -> None:
        """Begin to keep a run, if it fits."""
        if not self.enabled or self._again(inputs):
            return
        self._inspector.on_start(plan, inputs, body=body)
        self._breakpoints.on_start(plan, inputs, body=body)
        run = self._runs.enter(plan, body=body)
        if not body and self._folder is not None:
            needed = sum(nbytes(t) for _, _, t in plan.inputs) + sum(nbytes(t) for s in plan.steps for t in s.types)
            needed += sum(a.nbytes for a in all_constants(plan.graph).values())
            if needed > self._max_bytes:
                sizes = f"{bytes_text(needed)}, but max_bytes allows {bytes_text(self._max_bytes)}"
                hint = f"give max_bytes={needed}, or record a smaller input"
                raise InputError(f"recording this run takes {sizes}", hint, code="E715")
            run.folder = self._folder
            # copies, because the run may write over its own values
            run.values = {input_name(n): np.array(value, order="C") for n, value in enumerate(inputs)}

    def on_step(self, plan: ExecutionPlan, event: StepEvent, values: tuple[Any, ...]) -> None:
        """Keep the results of a step, look at them, and stop where a breakpoint says so."""
        if not self.enabled or self._again(event):
            return
        run = self._runs.find(plan)
        if run is not None and run.folder is not None:
            run.values.update((step_name(event.step, n), np.array(v, order="C")) for n, v in enumerate(values))
        self._inspector.on_step(plan, event, values)
        self._breakpoints.on_step(plan, event, values)

    def on_run(self, record: RunRecord) -> None:
        """Write the run, if it is captured; one that failed is written as far as it came."""
        if self._again(record):
            return
        for part in self._parts:
            part.on_run(record)
        run = self._runs.find(record.plan)
        self._runs.leave(record.plan)
        if run is None or run.folder is None:
            return
        durations = [event.duration_ns for event in record]
        recorded = [d for n, d in enumerate(durations) if step_name(n, 0) in run.values]
        if len(recorded) < len(durations) and not self.enabled:
            return  # switched off while it ran, so the rest is missing
        with self._lock:  # numbers follow the order in which runs end
            number = len(recorded_runs(run.folder))
            self._written.append(save_run(run.folder, number, record.plan, run.values, recorded))

    def _again(self, what: object) -> bool:
        """Tell whether this was heard just now: a recorder that is attached and captures too hears all twice."""
        known, self._runs.last = self._runs.last, what
        return known is what

    def __str__(self) -> str:
        return str(self.generate_report())


def save_run(
    folder: Path, number: int, plan: ExecutionPlan, values: Mapping[str, Any], durations_ns: Sequence[int]
) -> Path:
    """Write one run as a folder that appears whole or not at all, and return its path."""
    from safetensors import SafetensorError
    from safetensors.numpy import save as to_bytes

    from .. import __version__

    versions = {"tensorlogic": __version__, "numpy": np.__version__, "python": platform.python_version()}
    manifest = Manifest(FORMAT, VERSION, versions, plan.graph.digest, list(durations_ns))

    def fill(temporary: Path) -> None:
        plan.graph.save(temporary / GRAPH)
        (temporary / VALUES).write_bytes(to_bytes(dict(values)))
        (temporary / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))

    try:
        while True:  # another process may record into the same folder
            path = folder / f"run-{number:06}"
            if not path.exists():
                try:
                    return write_folder(path, fill, replace=False)
                except FileExistsError:
                    if not path.exists():  # it is the folder around it that is a file
                        raise
            number += 1
    except (OSError, SafetensorError) as error:
        raise FormatError(f"cannot record the run in {str(folder)!r}: {error}", code="E730") from None
