"""Statistics of a tensor's values, computed block by block, so that a large tensor is not copied."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

BLOCK = 1 << 16  # elements that are looked at together
BINS = 16


class Histogram(NamedTuple):
    """How finite values are spread: counts between edges, one more edge than counts; prints as a line of bars.

    >>> print(Histogram((1, 4, 8), (0.0, 1.0, 2.0, 3.0)))
    ▁▄█
    """

    counts: tuple[int, ...]
    edges: tuple[float, ...]

    def __str__(self) -> str:
        most = max(self.counts, default=0)
        return "".join(" " if c == 0 else "▁▂▃▄▅▆▇█"[math.ceil(8 * c / most) - 1] for c in self.counts)


class TensorStats(msgspec.Struct):
    """What the values of a tensor are like; minimum, maximum, mean and deviation are those of the finite ones.

    >>> stats = TensorStats.of("x", np.array([1.0, 3.0, np.nan]))
    >>> stats.min, stats.max, stats.mean, stats.std, stats.num_nans, stats.num_infs
    (1.0, 3.0, 2.0, 1.0, 1, 0)
    >>> print(TensorStats.of("x", np.arange(4)))
    x: int64[4] in 0 .. 3, mean 1.5, std 1.11803  ████

    By hand, as counted elsewhere:

    >>> TensorStats(4, [64, 128], "f64").with_statistics(0.0, 1.0, 0.5, 0.25, 3, 0).has_problem()
    True
    """

    tensor_id: int | str
    shape: Sequence[int]
    dtype: str
    min: float | None = None
    max: float | None = None
    mean: float | None = None
    std: float | None = None
    num_nans: int | None = None
    num_infs: int | None = None
    histogram: Histogram | None = None
    name: str = ""  # how the plan prints it
    operation: str = ""  # what made it

    def with_statistics(
        self, min: float, max: float, mean: float, std: float, num_nans: int, num_infs: int
    ) -> TensorStats:
        """Fill in the numbers and return the same object, so calls chain."""
        self.min, self.max, self.mean, self.std = min, max, mean, std
        self.num_nans, self.num_infs = int(num_nans), int(num_infs)
        return self

    @classmethod
    def of(cls, tensor_id: int | str, array: Any) -> TensorStats:
        """Compute the statistics of an array, in blocks; of something that holds no numbers, only its shape and dtype."""
        values = _numbers(array)
        stats = cls(tensor_id, values.shape, str(getattr(array, "dtype", values.dtype)))
        if values.dtype.kind in "biufc":
            stats.num_nans, stats.num_infs = count_bad(values)
        if values.dtype.kind in "biuf":
            _describe(stats, values)
        return stats

    def has_problem(self, *, nan_only: bool = False) -> bool:
        """Tell whether there is a NaN, or an infinity unless those are fine."""
        return bool(self.num_nans or (self.num_infs and not nan_only))

    def __str__(self) -> str:
        text = f"{self.label}: {self.dtype}[{', '.join(map(str, self.shape))}]"
        if self.min is not None and self.max is not None:
            text += f" in {short(self.min)} .. {short(self.max)}, mean {self.mean:.6g}, std {self.std:.6g}"
        text += f", {bad_text(self)}" if self.has_problem() else ""
        return text + (f"  {self.histogram}" if self.histogram else "")

    @property
    def label(self) -> str:
        """What to call the tensor in print."""
        return self.name or (f"%{self.tensor_id}" if isinstance(self.tensor_id, int) else self.tensor_id)


def bad_text(stats: TensorStats) -> str:
    """Say how many values are bad, of how many."""
    found = [f"{n:,} {what}" for n, what in ((stats.num_nans, "NaN"), (stats.num_infs, "infinite")) if n]
    return " and ".join(found) + f" of {math.prod(stats.shape):,}"


def short(value: float) -> str:
    """Write a number: integers in full, others to six digits."""
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def _blocks(values: Any) -> Iterator[Any]:
    """Go through an array of any layout in flat pieces."""
    return np.nditer(values, flags=["external_loop", "buffered", "zerosize_ok"], buffersize=BLOCK)


def _numbers(value: Any) -> Any:
    """Return a value as an array of numbers that NumPy can count in, where it is one."""
    array = np.asarray(value)
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array


def count_bad(value: Any) -> tuple[int, int]:
    """Return how many values of an array are NaN, and how many infinite.

    >>> count_bad([1.0, np.nan, np.inf, -np.inf])
    (1, 2)
    """
    nans = infs = 0
    values = _numbers(value)
    if values.dtype.kind not in "fc":
        return 0, 0
    for block in _blocks(values):
        if not np.isfinite(block).all():
            n = int(np.count_nonzero(np.isnan(block)))
            nans, infs = nans + n, infs + int(np.count_nonzero(~np.isfinite(block))) - n
    return nans, infs


def is_bad(value: Any, *, nan_only: bool = False) -> bool:
    """Tell whether a value holds a NaN, or an infinity unless those are fine."""
    nans, infs = count_bad(value)
    return bool(nans or (infs and not nan_only))


def _describe(stats: TensorStats, values: Any) -> None:
    """Fill in range, mean, deviation and histogram. Integers are exact: they are counted from their minimum."""
    whole = values.dtype.kind != "f"
    low, high = _range(values)
    if low is None or high is None:
        return  # nothing finite in it
    stats.min, stats.max = low, high
    # floats are scaled by a power of two, which is exact, so that squares neither overflow nor vanish
    scale = 1.0 if whole else math.ldexp(1.0, min(1020, math.frexp(max(abs(low), abs(high)))[1]))
    span = high - low if whole else high / scale - low / scale
    bins = int(min(BINS, span + 1)) if whole else BINS if span else 1
    counts = np.zeros(bins, np.int64)
    n, mean, squares, total = 0, 0.0, 0.0, 0
    for block in _blocks(values):
        if whole:
            offset = block.astype(np.uint64) - np.uint64(low % 2**64)  # wraps, and comes out right
            total += (int((offset >> 32).sum()) << 32) + int((offset & 0xFFFFFFFF).sum())
            x = offset.astype(np.float64)
            start = 0.0
        else:
            x = block[np.isfinite(block)].astype(np.float64) / scale
            start = low / scale
        if not x.size:
            continue
        place = (x - start) * (bins / (span + 1 if whole and span < BINS else span)) if span else np.zeros(x.size)
        counts += np.bincount(np.minimum(place.astype(np.int64), bins - 1), minlength=bins)
        here = float(x.mean())
        apart = here - mean  # merge what is known of two parts
        squares += float(np.square(x - here).sum()) + apart * apart * n * x.size / (n + x.size)
        mean += apart * x.size / (n + x.size)
        n += x.size
    stats.mean = (low * n + total) / n if whole else mean * scale
    stats.std = math.sqrt(squares / n) * scale
    if whole and span < BINS:
        edges = [low + i - 0.5 for i in range(bins + 1)]
    else:
        edges = [(low / scale + span / bins * i) * scale for i in range(bins)] + [float(high)]
    stats.histogram = Histogram(tuple(counts.tolist()), tuple(map(float, edges)))


def _range(values: Any) -> tuple[Any, Any]:
    """Return the least and the greatest finite value, as Python numbers; None where there is none."""
    lows, highs = [], []
    for block in _blocks(values.view(np.uint8) if values.dtype.kind == "b" else values):
        finite = block[np.isfinite(block)] if block.dtype.kind == "f" else block
        if finite.size:
            lows.append(finite.min().item())
            highs.append(finite.max().item())
    return (min(lows), max(highs)) if lows else (None, None)
