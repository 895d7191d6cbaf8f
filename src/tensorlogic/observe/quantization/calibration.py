"""Calibration: hooks that watch activations while a graph runs on data, and the ranges that they find.

Each method is a row of ``RANGES``: from what was seen of a tensor to the range that its numbers cover.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import InputError
from ...events import Hook, StepEvent
from ...ir.graph import EinsumGraph
from ...ir.ops import Dequantize, Quantize
from ...ir.quantization_config import CalibrationMethod, QuantizationConfig
from ...ir.quantize_arrays import dequantize_array, quantize_array
from ...ir.quantize_scales import range_scales
from ...ir.types import Array
from ...plan.build import ExecutionPlan

BINS = 2048  # on each side of 0
LEVELS = 128  # of int8 on one side of 0, for the entropy
FULL = 200  # values that a bin has on average before the entropy is trusted
TRIALS = 64  # ranges that a search tries


class Seen:
    """What was seen of one tensor: its range, the moving average of the ranges of runs, and a histogram of its values.

    The histogram is as wide on both sides of 0; where a value is beyond it, it becomes twice as wide and pairs of bins one.

    >>> seen = Seen()
    >>> seen.add(np.array([-1.0, 3.0]), momentum=0.9)
    >>> seen.low, seen.high, int(seen.counts.sum())
    (-1.0, 3.0, 2)
    """

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.average: tuple[float, float] | None = None
        self.width = 0.0  # of the histogram, on each side
        self.counts = np.zeros(2 * BINS)

    def add(self, values: Array, momentum: float) -> None:
        """Take the values of one run into account."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        self.low, self.high = min(self.low, low), max(self.high, high)
        before = (low, high) if self.average is None else self.average
        self.average = (momentum * before[0] + (1 - momentum) * low, momentum * before[1] + (1 - momentum) * high)
        most = max(-low, high)
        self.width = self.width or most
        while most > self.width:
            pairs = self.counts.reshape(-1, 2).sum(1)
            self.counts = np.concatenate([np.zeros(BINS // 2), pairs, np.zeros(BINS // 2)])
            self.width *= 2
        if self.width:
            self.counts += np.histogram(values, 2 * BINS, (-self.width, self.width))[0]

    @property
    def middles(self) -> Array:
        """The values in the middle of the bins."""
        return (np.arange(2 * BINS) + 0.5 - BINS) * (self.width / BINS)

    def clipped(self, most: float) -> tuple[float, float]:
        """Return the range that was seen, as far as it is within a distance of 0."""
        return max(self.low, -most), min(self.high, most)


def _percentile(seen: Seen, config: QuantizationConfig) -> tuple[float, float]:
    """Leave out the outermost values, on both sides together as many as the config says."""
    share = np.cumsum(seen.counts) / max(seen.counts.sum(), 1)
    out = (1 - config.percentile / 100) / 2
    edges = (np.arange(2 * BINS + 1) - BINS) * (seen.width / BINS)
    first, last = int(np.searchsorted(share, out, "right")), int(np.searchsorted(share, 1 - out))
    return max(seen.low, edges[first]), min(seen.high, edges[min(last + 1, 2 * BINS)])


def _entropy(seen: Seen, config: QuantizationConfig) -> tuple[float, float]:
    """Choose the range whose few levels tell the distribution of the sizes of values with the least loss (Kullback-Leibler)."""
    sizes = seen.counts[BINS:] + seen.counts[:BINS][::-1]
    while len(sizes) > 2 * LEVELS and sizes.sum() < FULL * len(sizes):  # chance must not look like structure
        sizes = sizes.reshape(-1, 2).sum(1)
    sizes[0] = sizes[1]  # zeros, such as relu makes many of, are told exactly whatever the range
    best, found = np.inf, len(sizes)
    for stop in np.unique(np.linspace(LEVELS, len(sizes), TRIALS).astype(int)):
        inside = sizes[:stop].copy()
        inside[-1] += sizes[stop:].sum()
        level = np.arange(stop) * LEVELS // stop
        filled = sizes[:stop] > 0
        total = np.bincount(level, sizes[:stop], LEVELS)
        places = np.bincount(level, filled, LEVELS)
        spread = np.where(filled, (total / np.maximum(places, 1))[level], 0)
        loss = _divergence(inside, spread)
        if loss < best:
            best, found = loss, int(stop)
    return seen.clipped(found * seen.width / len(sizes))


def _divergence(p: Array, q: Array) -> float:
    """Return how much is lost by taking one distribution for another; what the other has nothing of counts as very little."""
    p, q = p / max(p.sum(), 1), q / max(q.sum(), 1)
    here = p > 0
    return float(np.sum(p[here] * np.log(p[here] / np.maximum(q[here], 1e-9))))


def _mse(seen: Seen, config: QuantizationConfig) -> tuple[float, float]:
    """Choose the range with the least squared error of the values that were seen."""
    values, counts = seen.middles, seen.counts
    best, found = np.inf, seen.width
    for most in np.linspace(seen.width / TRIALS, seen.width, TRIALS):
        low, high = seen.clipped(most)
        scale, zero = range_scales(np.float64(low), np.float64(high), "int8", symmetric=False)
        numbers = quantize_array(values, scale, zero, Quantize("int8"))
        error = float(counts @ np.square(dequantize_array(numbers, scale, zero, Dequantize(), "float64") - values))
        if error < best:
            best, found = error, float(most)
    return seen.clipped(found)


RANGES: dict[CalibrationMethod, Callable[[Seen, QuantizationConfig], tuple[float, float]]] = {
    CalibrationMethod.MIN_MAX: lambda seen, config: (seen.low, seen.high),
    CalibrationMethod.MOVING_AVERAGE: lambda seen, config: seen.average or (0.0, 0.0),
    CalibrationMethod.PERCENTILE: _percentile,
    CalibrationMethod.ENTROPY: _entropy,
    CalibrationMethod.MSE: _mse,
}


class CalibrationHook(Hook):
    """Calls a function with the values of named outputs of a graph while it runs.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> seen = Seen()
    >>> hook = CalibrationHook({"y": lambda values: seen.add(values, 0.9)})
    >>> executor = tl.Executor(context=tl.ExecutionContext([hook]))
    >>> out = executor.execute(b.build(y=b.input("x", (2,)) * 2.0), {"x": [1.0, -4.0]})
    >>> seen.low, seen.high
    (-8.0, 2.0)
    """

    def __init__(self, watched: Mapping[str, Callable[[Array], None]]) -> None:
        self.watched = watched

    def on_start(self, plan: ExecutionPlan, inputs: Sequence[Any], *, body: bool) -> None:
        """Look at outputs that are inputs as they are."""
        if not body:
            given = {slot: value for (_, slot, _), value in zip(plan.inputs, inputs, strict=True)}
            self._tell(plan, given)

    def on_step(self, plan: ExecutionPlan, event: StepEvent, values: tuple[Any, ...]) -> None:
        """Look at what a step makes."""
        step = plan.steps[event.step]
        self._tell(plan, dict(zip(step.writes, values, strict=False)))

    def _tell(self, plan: ExecutionPlan, values: Mapping[int, Any]) -> None:
        for name, slot, _ in plan.outputs:
            if slot in values and name in self.watched:
                self.watched[name](np.asarray(values[slot]))


def run_watched(
    graph: EinsumGraph, nodes: Mapping[int, Callable[[Array], None]], batches: Iterable[Mapping[str, Any]], backend: Any
) -> None:
    """Run a graph on batches and hand the values of some nodes on, each as it is made."""
    from ...runtime.context import ExecutionContext
    from ...runtime.executor import Executor

    watched = {f"watched.{i}": tell for i, tell in nodes.items()}
    outputs = list(zip(watched, nodes, strict=True))
    probe = EinsumGraph(graph.nodes, outputs, graph.constants)
    executor = Executor(backend, context=ExecutionContext([CalibrationHook(watched)]))
    for batch in batches:
        executor.execute(probe, batch)


def checked_activations(name: str, values: Array) -> Array:
    """Return activations, or say that calibration data made some that are no numbers."""
    if not np.isfinite(values).all():
        message = f"calibration data make NaN or infinite values where they meet the weight {name!r}"
        hint = "look for the first bad value with tensorlogic.debug.TensorInspector"
        raise InputError(message, hint, code="E327")
    return values
