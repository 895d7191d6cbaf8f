"""Before and after: how much faster, how much less memory, and how sure of it one can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from ..diagnostics import bytes_text, value_text
from ..errors import FormatError, InputError, expect
from ..ir.whole_files import as_path
from ..plan.machine import host
from ..tables import html_text, table
from .profile import Count, ProfileData, Time
from .trace_files import reason, write_file
from .trace_names import short_names

FEWEST = 6  # of fewer values, even least and greatest enclose the median with less than 95% certainty: 2 · ½ⁿ > 5%
RESAMPLES = 4000
T = TypeVar("T")
Interval = tuple[float, float]


class PerformanceBaseline(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Run times and memory of an earlier version, to compare later ones with; it saves as JSON.

    >>> baseline = PerformanceBaseline.from_profile(ProfileData(run_times_ms=(2.0, 1.0, 9.0), peak_memory_bytes=64))
    >>> baseline.median_ms, baseline
    (2.0, <PerformanceBaseline 3 runs, median 2.000 ms, peak 64 B>)
    """

    run_times_ms: tuple[Time, ...]
    peak_memory_bytes: Count = 0
    op_times_ms: dict[str, Time] = {}  # of one run, on average, without the bodies of loops
    machine: str = ""

    @classmethod
    def from_profile(cls, profile: ProfileData) -> PerformanceBaseline:
        """Keep of a profile what later ones are compared with."""
        runs = max(1, len(profile.run_times_ms))
        per_run = {name: op.self_time_ms / runs for name, op in profile.op_profiles.items()}
        return cls(profile.run_times_ms, profile.peak_memory_bytes, per_run, host())

    @property
    def median_ms(self) -> float:
        """The median time of a run; 0 where there is none."""
        return float(np.median(self.run_times_ms)) if self.run_times_ms else 0.0

    def save(self, path: str | Path) -> None:
        """Write it as JSON; the file appears whole or not at all."""
        save_json(path, self)

    @classmethod
    def load(cls, path: str | Path) -> PerformanceBaseline:
        """Read what :meth:`save` wrote."""
        return load_json(path, cls, "baseline")

    def __repr__(self) -> str:
        peak = bytes_text(self.peak_memory_bytes)
        return f"<PerformanceBaseline {len(self.run_times_ms):,} runs, median {self.median_ms:.3f} ms, peak {peak}>"


class PerformanceComparison:
    """A profile against a baseline: the ratio of their median run times, with a confidence interval.

    The interval is a bootstrap over the runs of both. A regression or an improvement is only what lies beyond 1 by more
    than the threshold with all of the interval; fewer than six runs on either side can tell nothing.

    >>> before = ProfileData(run_times_ms=(4.0, 4.1, 3.9, 4.0, 4.2, 4.0, 4.0), peak_memory_bytes=200)
    >>> after = ProfileData(run_times_ms=(2.0, 2.1, 1.9, 2.0, 2.2, 2.0, 2.0), peak_memory_bytes=150)
    >>> comparison = PerformanceComparison(PerformanceBaseline.from_profile(before), after)
    >>> comparison.speedup, comparison.memory_reduction_pct, comparison.is_improvement
    (2.0, 25.0, True)
    """

    speedup: float  # the median run of the baseline over that of now
    interval: Interval | None  # of the speedup; None where there are too few runs

    def __init__(
        self,
        baseline: PerformanceBaseline | ProfileData,
        profile: PerformanceBaseline | ProfileData,
        *,
        threshold: float = 1.05,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        check_threshold(threshold)
        self.baseline, self.now = (_baseline(p, which) for p, which in ((baseline, "baseline"), (profile, "profile")))
        self.threshold, self.confidence = threshold, confidence
        self.speedup = ratio(self.baseline.median_ms, self.now.median_ms)
        before, after = self.baseline.run_times_ms, self.now.run_times_ms
        self.interval = ratio_interval(before, after, confidence=confidence, seed=seed)

    @property
    def memory_reduction_pct(self) -> float:
        """The percentage by which the peak of memory fell; negative where it rose."""
        before, after = self.baseline.peak_memory_bytes, self.now.peak_memory_bytes
        return 100 * (1 - ratio(after, before))

    @property
    def verdict(self) -> str:
        """One of ``improvement``, ``regression``, ``ok`` (no slower by more than the threshold) and ``unsure``."""
        slower = None if self.interval is None else (ratio(1, self.interval[1]), ratio(1, self.interval[0]))
        return verdict(slower, self.threshold)

    @property
    def is_regression(self) -> bool:
        """Whether it is slower by more than the threshold, beyond noise."""
        return self.verdict == "regression"

    @property
    def is_improvement(self) -> bool:
        """Whether it is faster by more than the threshold, beyond noise."""
        return self.verdict == "improvement"

    def __str__(self) -> str:
        before, after = self.baseline.op_times_ms, self.now.op_times_ms
        names = sorted({**before, **after}, key=lambda n: -max(before.get(n, 0), after.get(n, 0)))
        rows = [
            [
                shown,
                *(f"{ops[name]:,.3f}" if name in ops else "-" for ops in (before, after)),
                f"{ratio(before[name], after[name]):.2f}x" if name in before and name in after else "-",
            ]
            for name, shown in zip(names, short_names(names), strict=True)
        ]
        medians = [f"{side.median_ms:,.3f}" for side in (self.baseline, self.now)]
        rows.append(["median run", *medians, f"{self.speedup:.2f}x"])
        head, less = ["operation", "baseline ms", "now ms", "speedup"], self.memory_reduction_pct
        peaks = [bytes_text(b.peak_memory_bytes) for b in (self.baseline, self.now)]
        change = f": {abs(less):.1f}% {'more' if less < 0 else 'less'}" if less and math.isfinite(less) else ""
        memory = f"memory {peaks[0]} before, {peaks[1]} now{change}"
        lines = [table(head, rows, right={1, 2, 3}), self._summary(), memory]
        if self.baseline.machine != self.now.machine:
            lines.append(f"measured on different machines: {self.baseline.machine!r}, {self.now.machine!r}")
        return "\n".join(lines)

    def _summary(self) -> str:
        if self.interval is None:
            counts = [len(b.run_times_ms) for b in (self.baseline, self.now)]
            return f"too few runs to tell: {counts[0]} and {counts[1]}, and {FEWEST} of each are needed"
        low, high = self.interval
        text = {
            "improvement": "faster",
            "regression": "slower",
            "ok": f"not slower by more than {self.threshold:g}x",
            "unsure": f"too noisy to say whether it is slower by more than {self.threshold:g}x",
        }[self.verdict]
        return f"speedup {self.speedup:.2f}x, {self.confidence:.0%} interval {low:.2f}x to {high:.2f}x: {text}"

    def __repr__(self) -> str:
        return f"<PerformanceComparison speedup {self.speedup:.2f}x: {self.verdict}>"

    _repr_html_ = html_text


def _baseline(given: PerformanceBaseline | ProfileData, which: str) -> PerformanceBaseline:
    hint = "write PerformanceBaseline.from_profile(executor.get_profile_data())"
    expect(given, (PerformanceBaseline, ProfileData), f"the {which} is a ProfileData or a PerformanceBaseline", hint)
    if not given.run_times_ms:
        raise InputError(f"the {which} holds no runs", "call executor.enable_profiling() before the runs", code="E718")
    for n, took in enumerate(given.run_times_ms):
        if not 0 <= took < math.inf:
            raise InputError(f"run {n} of the {which} took {took} ms, which is no time", code="E719")
    return PerformanceBaseline.from_profile(given) if isinstance(given, ProfileData) else given


def ratio(a: float, b: float) -> float:
    """Divide two amounts that are not negative; of nothing and nothing the ratio is 1.

    >>> ratio(3, 2), ratio(0, 0), ratio(1, 0)
    (1.5, 1.0, inf)
    """
    return a / b if b else 1.0 if not a else math.inf


def verdict(interval: Interval | None, threshold: float) -> str:
    """Judge the ratio of a new time to an old one by its interval: all of it must lie beyond the threshold.

    >>> verdict((1.2, 1.4), 1.1), verdict((0.98, 1.04), 1.1), verdict((0.9, 1.3), 1.1), verdict((0.5, 0.6), 1.1)
    ('regression', 'ok', 'unsure', 'improvement')
    """
    if interval is None:
        return "unsure"
    low, high = interval
    if low > threshold:
        return "regression"
    if high < 1 / threshold:
        return "improvement"
    return "ok" if high <= threshold else "unsure"


def check_threshold(threshold: float) -> None:
    """Refuse a threshold that would call every difference a regression, or none."""
    if not 1 <= threshold < math.inf:
        hint = "write 1.10 for 10% slower"
        raise InputError(f"a threshold is a ratio of at least 1, got {value_text(threshold)}", hint, code="E728")


def ratio_interval(
    a: Sequence[float], b: Sequence[float], *, confidence: float = 0.95, seed: int = 0
) -> Interval | None:
    """Return an interval of the ratio of two medians, ``a`` to ``b``; None where there are too few values to tell.

    >>> ratio_interval([2.0] * 6, [1.0] * 6), ratio_interval([2.0] * 3, [1.0] * 3)
    ((2.0, 2.0), None)
    """
    if not 0 < confidence < 1:
        raise InputError(f"a confidence is between 0 and 1, got {value_text(confidence)}", code="E726")
    if min(len(a), len(b)) < FEWEST:
        return None
    rng = np.random.default_rng(seed)
    above, below = bootstrap_medians(a, rng), bootstrap_medians(b, rng)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where((above == 0) & (below == 0), 1.0, above / below)
    edge = (1 - confidence) / 2
    low, high = np.quantile(ratios, [edge, 1 - edge], method="nearest")  # nothing lies between infinity and a number
    return float(low), float(high)


def bootstrap_medians(values: Sequence[float], rng: np.random.Generator) -> NDArray[np.float64]:
    """Return the medians of many resamples of some values.

    The k-th least of n draws with replacement is the value at a rank that a beta distribution gives, so nothing is drawn n
    times and sorted: a million values cost what ten do.
    """
    ordered = np.sort(np.asarray(values, np.float64))
    n = len(ordered)
    k = (n + 1) // 2
    rank = rng.beta(k, n - k + 1, RESAMPLES)
    middle = ordered[np.minimum((rank * n).astype(np.int64), n - 1)]
    if n % 2:
        return middle
    following = rank + (1 - rank) * rng.beta(1, n - k, RESAMPLES)
    return (middle + ordered[np.minimum((following * n).astype(np.int64), n - 1)]) / 2


def save_json(path: str | Path, value: Any) -> None:
    """Write a record as JSON; the file appears whole or not at all."""
    write_file(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")


def load_json(path: str | Path, kind: type[T], what: str) -> T:
    """Read a record from JSON; what is wrong is said with the file and the path in it."""
    try:
        return msgspec.json.decode(as_path(path).read_bytes(), type=kind)
    except OSError as error:
        raise FormatError(f"cannot read {str(path)!r}: {reason(error)}", code="E229") from None
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        hint = "take the file from version control, or delete it and save again"
        raise FormatError(f"{str(path)!r} is not a {what}: {error}", hint, code="E706") from None
