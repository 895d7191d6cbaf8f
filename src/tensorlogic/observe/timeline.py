"""Timelines: when every step and span of a trace ran."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import expect
from ..events import Hook, RunRecord
from ..tables import counted, html_text, table
from .profile import ProfileData
from .trace import Trace
from .trace_names import one_line
from .tracks import tracks

BAR = 40  # characters that a timeline is wide


class TimelineEntry(NamedTuple):
    """One step or span of a timeline, in milliseconds from its beginning.

    >>> TimelineEntry("relu", 0.5, 0.25, "step", 0).duration_ms
    0.25
    """

    name: str
    start_ms: float
    duration_ms: float
    kind: str  # "step" or "span"
    thread: int


class TimelineProfiler:
    """Records when each step ran, thread by thread, through a :class:`ProfilerHook`; it prints as bars.

    >>> import tensorlogic as tl
    >>> profiler = TimelineProfiler()
    >>> context = tl.ExecutionContext([ProfilerHook(profiler)])
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.relu(b.input("x", ("n",))))
    >>> out = tl.Executor(context=context).execute(graph, {"x": [1.0, -1.0]})
    >>> [entry.name for entry in profiler.entries() if entry.kind == "step"]
    ['relu']
    """

    def __init__(self, trace: Trace | None = None) -> None:
        self._trace = Trace() if trace is None else trace

    def to_trace(self) -> Trace:
        """Return the trace that the timeline is drawn from; it exports to the viewers people use."""
        return self._trace

    def entries(self) -> list[TimelineEntry]:
        """Return the steps and spans by their start, what encloses before what it encloses."""
        events = self._trace.events()
        begin = events[0].start_ns if events else 0
        rows = ((e, (e.start_ns - begin) / 1e6, e.duration_ns / 1e6) for e in events)
        return [TimelineEntry(e.name, start, took, e.kind, e.thread) for e, start, took in rows]

    def profile(self) -> ProfileData:
        """Return what the operations of the timeline cost."""
        return ProfileData.from_trace(self._trace)

    def text(self, limit: int = 60) -> str:
        """Return the timeline as bars, the first ``limit`` of each thread."""
        events = self._trace.columns()
        threads = tracks(self._trace, events)
        if not threads:
            return "no steps were profiled"
        begin = min(int(track.start[0]) for track in threads)
        length = max(int(track.inner_end.max()) for track in threads) - begin or 1
        lines = [f"{counted(len({track.thread for track in threads}), 'thread')}, {length / 1e6:,.3f} ms"]
        for track in threads:
            rows = []
            columns = [c[: max(0, limit)].tolist() for c in (track.kind, track.start, track.inner_end, track.depth)]
            for kind, start, end, depth in zip(*columns, strict=True):
                left = min(BAR - 1, (start - begin) * BAR // length)
                wide = max(1, (end - begin) * BAR // length - left)
                bar = " " * left + "█" * wide + " " * (BAR - left - wide)
                name = "  " * depth + one_line(events.kinds[kind].name)
                rows.append([f"{(start - begin) / 1e6:,.3f}", f"{(end - start) / 1e6:,.3f}", f"|{bar}|", name])
            lines.append(table(["start ms", "ms", one_line(track.name), "name"], rows, right={0, 1}))
            if len(track.kind) > limit:
                lines.append(f"... {len(track.kind) - max(0, limit):,} more")
        return "\n".join(lines)

    def __len__(self) -> int:
        return len(self._trace)

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<TimelineProfiler {len(self):,} entries>"

    _repr_html_ = html_text


class ProfilerHook(Hook):
    """The hook that feeds a timeline; attach it to the context of one or several executors.

    >>> ProfilerHook(TimelineProfiler()).profiler
    <TimelineProfiler 0 entries>
    """

    def __init__(self, profiler: TimelineProfiler) -> None:
        expect(profiler, TimelineProfiler, "a TimelineProfiler is expected", "write ProfilerHook(TimelineProfiler())")
        self.profiler = profiler

    def on_run(self, record: RunRecord) -> None:
        """Keep the steps of a run."""
        self.profiler.to_trace().on_run(record)

    def on_span(self, name: str, start_ns: int, end_ns: int, thread: int) -> None:
        """Keep a span."""
        self.profiler.to_trace().on_span(name, start_ns, end_ns, thread)
