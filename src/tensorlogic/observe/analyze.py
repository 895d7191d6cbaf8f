"""What a recorded trace says: pure functions of its columns."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import numpy as np
from numpy.typing import NDArray

from .recorded import RecordedExecutionTrace, RecordedTraceEntry

COMMUNICATION = ("allreduce", "all_gather", "reduce_scatter", "broadcast", "send", "recv", "comm")


class OpSummary(msgspec.Struct):
    """The entries of one operation together.

    >>> OpSummary()
    OpSummary(count=0, total_duration_us=0.0, total_memory_bytes=0)
    """

    count: int = 0
    total_duration_us: float = 0.0
    total_memory_bytes: int = 0


class DeviceSummary(msgspec.Struct):
    """The entries of one device together.

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
    """The questions people ask of a trace.

    >>> from tensorlogic import RecordedExecutionTrace, RecordedTraceEntry
    >>> trace = RecordedExecutionTrace([RecordedTraceEntry(0, "matmul").with_device_id("gpu:0")])
    >>> TraceAnalyzer.operation_summary(trace)["matmul"].count
    1
    """

    @staticmethod
    def operation_summary(trace: RecordedExecutionTrace) -> dict[str, OpSummary]:
        """Return count, time and memory of each operation, in order of first occurrence."""
        rows = _grouped(trace, trace.column("operation"), len(trace.operation_names), OpSummary)
        return dict(zip(trace.operation_names, rows, strict=True))

    @staticmethod
    def memory_hotspots(trace: RecordedExecutionTrace, threshold_bytes: int) -> list[RecordedTraceEntry]:
        """Return the entries whose result takes more than a threshold, in order."""
        return [trace.entry(int(i)) for i in np.flatnonzero(trace.column("memory") > threshold_bytes)]

    @staticmethod
    def avg_duration_by_op(trace: RecordedExecutionTrace) -> dict[str, float]:
        """Return the mean duration of each operation."""
        return {name: s.total_duration_us / s.count for name, s in TraceAnalyzer.operation_summary(trace).items()}

    @staticmethod
    def per_device_summary(trace: RecordedExecutionTrace) -> dict[str, DeviceSummary]:
        """Return count, time and memory of each device; entries without one do not count."""
        rows = _grouped(trace, trace.column("device"), len(trace.device_names), DeviceSummary)
        return dict(zip(trace.device_names, rows, strict=True))

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
        total = max(trace.total_duration_us, 1e-9)
        found = [
            CommunicationBottleneck(name, s.total_duration_us, s.total_duration_us / total, s.count)
            for name, s in TraceAnalyzer.operation_summary(trace).items()
            if any(word in _ascii_lower(name) for word in COMMUNICATION)
        ]
        kept = [b for b in found if b.ratio_of_total >= min_ratio_of_total]
        return sorted(kept, key=lambda b: -b.total_duration_us)

    @staticmethod
    def flamegraph_collapsed(trace: RecordedExecutionTrace) -> str:
        """Return collapsed stacks ``trace;device;operation weight``, one a line, sorted; weights are whole microseconds.

        ``;`` and line breaks in names are escaped, so that every line reads as one stack and one number.
        """
        operations, devices = trace.operation_names, trace.device_names
        if not operations:
            return ""
        weights = _weights(trace.column("duration"))
        pair = (trace.column("device").astype(np.int64) + 1) * len(operations) + trace.column("operation")
        present, inverse = np.unique(pair, return_inverse=True)
        totals = np.zeros(len(present), np.int64)
        np.add.at(totals, inverse, weights)
        lines: dict[str, int] = {}
        for key, total in zip(present.tolist(), totals.tolist(), strict=True):
            device, operation = divmod(key, len(operations))
            name = devices[device - 1] if device else "unknown"
            stack = f"trace;{frame_name(name)};{frame_name(operations[operation])}"
            lines[stack] = lines.get(stack, 0) + total
        return "\n".join(f"{stack} {weight}" for stack, weight in sorted(lines.items()))


def _ascii_lower(text: str) -> str:
    """Lower ASCII letters only: what else there is stays as it is."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in text)


def _weights(duration: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return durations as whole numbers of at least 1, halves rounded away from zero; NaN counts as 1."""
    at_least = np.fmax(duration, 1.0)
    return np.floor(np.minimum(at_least, 2.0**62) + 0.5).astype(np.int64)


def _grouped(
    trace: RecordedExecutionTrace, key: NDArray[np.int32], groups: int, make: Callable[[int, float, int], object]
) -> list:  # type: ignore[type-arg]
    """Sum time and memory by a column of numbers; negative numbers are in no group."""
    duration, memory = trace.column("duration"), trace.column("memory")
    if key.size and key.min() < 0:
        keep = key >= 0
        key, duration, memory = key[keep], duration[keep], memory[keep]
    counts = np.bincount(key, minlength=groups)
    times = np.bincount(key, weights=duration, minlength=groups)
    if memory.size and int(memory.max()) > (1 << 53) // max(1, memory.size):
        total = np.zeros(groups, np.int64)  # exact where float64 would not be
        np.add.at(total, key, memory)
    else:
        total = np.bincount(key, weights=memory, minlength=groups).astype(np.int64)
    return [make(c, t, m) for c, t, m in zip(counts.tolist(), times.tolist(), total.tolist(), strict=True)]


def frame_name(name: str) -> str:
    r"""Escape what would split a stack: ``;`` and line breaks.

    >>> print(frame_name("a;b"))
    a\x3bb
    """
    if not any(c in name for c in ";\n\r\\\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"):
        return name
    return "".join(f"\\x{ord(c):02x}" if c in ";\\" or c.splitlines() == [""] else c for c in name)
