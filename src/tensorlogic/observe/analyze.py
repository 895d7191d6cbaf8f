"""What a recorded trace says: pure functions of its columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec
import numpy as np

from ..errors import expect
from .recorded_traces import Entries, RecordedExecutionTrace, RecordedTraceEntry

COMMUNICATION = re.compile("allreduce|all_gather|reduce_scatter|broadcast|send|recv|comm", re.IGNORECASE | re.ASCII)
_SPLITS = re.compile("[;\n\r\\\\\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\ud800-\udfff]")
_ESCAPED = re.compile(r"\\x(3b|0a|0d|5c|0b|0c|1c|1d|1e|5b|7b|85|2028|2029|d[89a-f][0-9a-f]{2})")  # and no others


class OpSummary(msgspec.Struct):
    """Count and durations of all entries of one operation.

    >>> OpSummary()
    OpSummary(count=0, total_duration_us=0.0, total_memory_bytes=0)
    """

    count: int = 0
    total_duration_us: float = 0.0
    total_memory_bytes: int = 0


class DeviceSummary(msgspec.Struct):
    """Count and durations of all entries of one device.

    >>> DeviceSummary().op_count
    0
    """

    op_count: int = 0
    total_duration_us: float = 0.0
    total_memory_bytes: int = 0


class CommunicationBottleneck(msgspec.Struct):
    """A communicating operation that takes a large share of the time.

    >>> CommunicationBottleneck("allreduce", 600.0, 0.6, 2).ratio_of_total
    0.6
    """

    operation: str
    total_duration_us: float
    ratio_of_total: float
    call_count: int


class LoadBalanceMetrics(msgspec.Struct):
    """How evenly devices are loaded; an imbalance of 0 is perfect.

    >>> LoadBalanceMetrics(2, 400.0, 200.0, 300.0, 0.5, [("gpu:0", 300.0), ("gpu:1", 100.0)]).imbalance_ratio
    0.5
    """

    device_count: int
    total_duration_us: float
    ideal_duration_us: float
    max_duration_us: float
    imbalance_ratio: float
    per_device_duration_us: list[tuple[str, float]]


class TraceAnalyzer:
    """Summaries of a recorded trace: by operation, by device, hotspots, load balance and communication.

    >>> from tensorlogic import RecordedExecutionTrace, RecordedTraceEntry
    >>> trace = RecordedExecutionTrace([RecordedTraceEntry(0, "matmul").with_device_id("gpu:0")])
    >>> TraceAnalyzer.operation_summary(trace)["matmul"].count
    1
    """

    @staticmethod
    def operation_summary(trace: RecordedExecutionTrace) -> dict[str, OpSummary]:
        """Return count, time and memory of each operation, in order of first occurrence."""
        return _summaries(trace, "operation", OpSummary)

    @staticmethod
    def memory_hotspots(trace: RecordedExecutionTrace, threshold_bytes: int) -> Sequence[RecordedTraceEntry]:
        """Return the entries whose result takes more than a threshold, in order; each is built as it is read."""
        _expect_recorded(trace)
        large = np.array([kind.memory > threshold_bytes for kind in trace.kinds], bool)
        return Entries(trace, np.flatnonzero(large[trace.column("kind")]))

    @staticmethod
    def avg_duration_by_op(trace: RecordedExecutionTrace) -> dict[str, float]:
        """Return the mean duration of each operation."""
        return {name: s.total_duration_us / s.count for name, s in TraceAnalyzer.operation_summary(trace).items()}

    @staticmethod
    def per_device_summary(trace: RecordedExecutionTrace) -> dict[str, DeviceSummary]:
        """Return count, time and memory of each device; entries without one do not count."""
        return _summaries(trace, "device", DeviceSummary)

    @staticmethod
    def load_balance_metrics(trace: RecordedExecutionTrace) -> LoadBalanceMetrics | None:
        """Return how evenly time is spread over devices; None below two devices."""
        summary = TraceAnalyzer.per_device_summary(trace)
        if len(summary) < 2:
            return None
        per_device = sorted((name, s.total_duration_us) for name, s in summary.items())
        total = sum(t for _, t in per_device)
        ideal = total / len(per_device)
        longest = max(0.0, *(t for _, t in per_device))
        imbalance = max(0.0, (longest - ideal) / ideal) if ideal > 0 else 0.0
        return LoadBalanceMetrics(len(per_device), total, ideal, longest, imbalance, per_device)

    @staticmethod
    def communication_bottlenecks(
        trace: RecordedExecutionTrace, min_ratio_of_total: float
    ) -> list[CommunicationBottleneck]:
        """Return communicating operations that take at least a share of the total time, longest first."""
        summary = TraceAnalyzer.operation_summary(trace)
        total = max(1e-9, trace.total_duration_us)  # in this order a total that is no number counts as the least
        rows = [
            CommunicationBottleneck(name, s.total_duration_us, s.total_duration_us / total, s.count)
            for name, s in summary.items()
            if COMMUNICATION.search(name) and s.total_duration_us / total >= min_ratio_of_total
        ]
        return sorted(rows, key=lambda b: -b.total_duration_us)

    @staticmethod
    def flamegraph_collapsed(trace: RecordedExecutionTrace) -> str:
        """Return collapsed stacks ``trace;device;operation weight``, one a line, sorted; weights are whole microseconds."""
        _expect_recorded(trace)
        lines: Counter[str] = Counter()
        whole = np.floor(np.clip(np.fmax(trace.column("duration"), 1.0), 1.0, 2.0**62) + 0.5)  # NaN counts as 1
        for kind, weight in zip(trace.kinds, trace.by_kind().sums(whole.astype(np.int64)).tolist(), strict=True):
            device = "unknown" if kind.device is None else kind.device
            lines[f"trace;{frame_name(device)};{frame_name(kind.operation)}"] += weight
        return "\n".join(f"{stack} {weight}" for stack, weight in sorted(lines.items()))


def _expect_recorded(trace: RecordedExecutionTrace) -> None:
    hint = "of a trace that tl.trace() made, give trace.to_recorded()"
    expect(trace, RecordedExecutionTrace, "a RecordedExecutionTrace is expected", hint)


S = TypeVar("S", OpSummary, DeviceSummary)


def _summaries(trace: RecordedExecutionTrace, field: str, summary: Callable[[int, float, int], S]) -> dict[str, S]:
    """Sum count, time and memory up by a field of the entries' kinds, in order of first occurrence."""
    _expect_recorded(trace)
    groups = trace.by_kind()
    totals: dict[str | None, tuple[int, float, int]] = {}
    columns = (trace.kinds, groups.counts().tolist(), groups.sums(trace.column("duration")).tolist())
    for kind, count, time in zip(*columns, strict=True):
        n, took, size = totals.get(getattr(kind, field), (0, 0.0, 0))
        totals[getattr(kind, field)] = n + count, took + time, size + count * kind.memory
    return {name: summary(*total) for name, total in totals.items() if name is not None}


def frame_name(name: str) -> str:
    r"""Escape what would split a stack, ``;`` and line breaks, and what no file can hold.

    >>> print(frame_name("a;b"), frame_text(frame_name("a;b")))
    a\x3bb a;b
    """
    return _SPLITS.sub(lambda c: f"\\x{ord(c[0]):02x}", name)


def first_frame(frame: str) -> str:
    """Escape a bracket at the beginning of a line of stacks, which would be taken for JSON."""
    return f"\\x{ord(frame[0]):02x}{frame[1:]}" if frame[:1] in ("{", "[") else frame


def frame_text(frame: str) -> str:
    """Return the name that :func:`frame_name` escaped."""
    return _ESCAPED.sub(lambda code: chr(int(code[1], 16)), frame)
