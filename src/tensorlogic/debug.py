"""Debugging: trace what ran, look into tensors, stop at breakpoints, record runs and replay them.

Every tool is a hook that does nothing until it is enabled: attach it with ``ExecutionContext([tool])``, or let it watch all
runs with :func:`watching`.

>>> import tensorlogic as tl
>>> recorder = tl.debug.ExecutionRecorder()
>>> recorder.enable()
>>> executor = tl.Executor(context=tl.ExecutionContext([recorder]))
"""

from __future__ import annotations

from .events import watching
from .observe.breakpoints import Breakpoint, BreakpointHit, BreakpointManager
from .observe.inspect import Problem, TensorInspector
from .observe.recorder import DebugReport, ExecutionRecorder
from .observe.replay import Comparison, Recording, ReplayStep
from .observe.tensorstats import Histogram, TensorStats
from .observe.tracer import ExecutionTrace, ExecutionTracer, TraceEntry, TraceSummary

__all__ = [
    "Breakpoint",
    "BreakpointHit",
    "BreakpointManager",
    "Comparison",
    "DebugReport",
    "ExecutionRecorder",
    "ExecutionTrace",
    "ExecutionTracer",
    "Histogram",
    "Problem",
    "Recording",
    "ReplayStep",
    "TensorInspector",
    "TensorStats",
    "TraceEntry",
    "TraceSummary",
    "watching",
]
