"""Performance in CI: measure functions, compare with saved times, and fail on what is slower beyond noise."""

from __future__ import annotations

import math
import platform
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from ..diagnostics import value_text
from ..errors import InputError, expect, expect_whole
from ..observe.performance import Interval, check_threshold, load_json, ratio, ratio_interval, save_json, verdict
from ..observe.profile import Times
from ..plan.machine import host
from ..tables import html_text, table

SHORTEST = 1e-3  # seconds that a measurement should take; a shorter function is called more often for each
LOOPS = 1000  # but no more often than this
COLORS = {"regression": "#b00020", "improvement": "#0a7d33", "unsure": "#8a6d00", "ok": "#333", "new": "#1a5fb4"}


class _Saved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The times of one case, and where they were measured."""

    times_ms: Times
    machine: str
    versions: dict[str, str]


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of baselines."""

    format: Literal["tensorlogic performance 1"]
    cases: dict[str, _Saved]


class PerfCase(NamedTuple):
    """How one case did: median times, the ratio of now to the baseline with its interval, and what that means.

    The verdict is ``ok``, ``regression``, ``improvement``, ``new`` (no baseline yet) or ``unsure`` (too noisy, or too few).

    >>> PerfCase("relu", "regression", 1.5, 1.0, 1.5, (1.4, 1.6)).ratio
    1.5
    """

    name: str
    verdict: str
    now_ms: float
    baseline_ms: float | None = None
    ratio: float | None = None
    interval: Interval | None = None


class PerfReport(NamedTuple):
    """How all cases did; it prints as a table, and its exit code is 1 where something got slower.

    >>> report = PerfReport((PerfCase("relu", "regression", 1.5, 1.0, 1.5, (1.4, 1.6)),))
    >>> print(report)
    case  baseline ms  now ms  ratio  95% interval  verdict
    relu       1.0000  1.5000  1.50x  1.40 to 1.60  regression
    1 case: 1 regression
    >>> report.exit_code
    1
    """

    cases: tuple[PerfCase, ...]
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """What to give to ``sys.exit``: 1 where there is a regression, else 0."""
        return int(any(c.verdict == "regression" for c in self.cases))

    def text(self) -> str:
        """Return the report as a table."""
        cases = table(_HEAD, [_cells(c) for c in self.cases], right={1, 2, 3})
        return "\n".join([cases, *(f"warning: {w}" for w in self.warnings), self._summary()])

    def html(self) -> str:
        """Return the report as one page that needs nothing else."""
        rows = []
        for case in self.cases:
            *cells, last = (escape(cell) for cell in _cells(case))
            style = f' style="color:{COLORS[case.verdict]};font-weight:bold"'
            rows.append("<tr>" + "".join(f"<td>{c}</td>" for c in cells) + f"<td{style}>{last}</td></tr>")
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Performance</title>\n'
            "<style>body{font:15px sans-serif;margin:2em}td,th{padding:.3em .9em;border-bottom:1px solid #ddd;"
            "text-align:right}td:first-child,th:first-child,td:last-child,th:last-child{text-align:left}"
            "table{border-collapse:collapse}</style></head><body>\n"
            f"<h1>Performance</h1>\n<p>{escape(self._summary())}</p>\n"
            + "".join(f"<p>Warning: {escape(w)}</p>\n" for w in self.warnings)
            + "<table><tr>"
            + "".join(f"<th>{escape(h)}</th>" for h in _HEAD)
            + "</tr>\n"
            + "\n".join(rows)
            + "\n</table></body></html>\n"
        )

    def _summary(self) -> str:
        counts = Counter(c.verdict for c in self.cases)
        counts_text = ", ".join(f"{counts[v]} {v}" for v in COLORS if counts[v])
        return f"{len(self.cases)} case{'' if len(self.cases) == 1 else 's'}: {counts_text}"

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        return html_text(self)


_HEAD = ["case", "baseline ms", "now ms", "ratio", "95% interval", "verdict"]


def _cells(case: PerfCase) -> list[str]:
    before = "-" if case.baseline_ms is None else f"{case.baseline_ms:,.4f}"
    times = "-" if case.ratio is None else f"{case.ratio:.2f}x"
    between = "-" if case.interval is None else f"{case.interval[0]:.2f} to {case.interval[1]:.2f}"
    return [case.name, before, f"{case.now_ms:,.4f}", times, between, case.verdict]


class PerfRegression:
    """Measures functions and compares them with times saved before; what is within noise is not a regression.

    A case is a regression where all of the 95% interval of the ratio of medians lies above ``threshold``: 1.10 is 10%
    slower. Fewer than six repeats can tell nothing.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "baselines.json"
    >>> perf = PerfRegression(path, warmup=1, repeats=6)
    >>> took_ms = perf.measure("sum", lambda: sum(range(1000)))
    >>> report = perf.check()
    >>> report.cases[0].verdict, report.exit_code
    ('new', 0)
    >>> perf.save()
    >>> perf.check().cases[0].ratio
    1.0
    """

    def __init__(
        self,
        path: str | Path,
        *,
        warmup: int = 3,
        repeats: int = 20,
        threshold: float = 1.10,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        check_threshold(threshold)
        expect_whole("warmup=", warmup, 0)
        expect_whole("repeats=", repeats, 1)
        self.path = Path(path)
        self.warmup, self.repeats, self.threshold, self.clock = warmup, repeats, threshold, clock
        self._times: dict[str, list[float]] = {}

    def measure(self, name: str, function: Callable[[], Any]) -> float:
        """Call a function to warm up, then time it; return the median in milliseconds. Measuring a name again adds to it."""
        if not isinstance(name, str) or not name:
            raise InputError(f"a case has a name, got {value_text(name)}", code="E729")
        hint = "write lambda: executor.execute(graph, inputs)"
        expect(function, Callable, f"the case {name!r} needs a function without arguments", hint)  # type: ignore[arg-type]
        warm = [self._timed(function, 1) for _ in range(self.warmup)]
        once = min(warm, default=SHORTEST)
        loops = 1 if once >= SHORTEST else LOOPS if once <= SHORTEST / LOOPS else math.ceil(SHORTEST / once)
        taken = [1e3 * self._timed(function, loops) for _ in range(self.repeats)]
        self._times.setdefault(name, []).extend(taken)
        return float(np.median(self._times[name]))

    def _timed(self, function: Callable[[], Any], loops: int) -> float:
        start = self.clock()
        for _ in range(loops):
            function()
        return max(0.0, self.clock() - start) / loops

    def check(self) -> PerfReport:
        """Compare what was measured with the saved times; a case without any is new."""
        self._require_cases()
        saved = self._load()
        cases = tuple(_judged(name, times, saved.get(name), self.threshold) for name, times in self._times.items())
        return PerfReport(cases, tuple(_warnings(self._times, saved)))

    def save(self) -> None:
        """Make what was measured the baseline of later checks; cases that were not measured keep theirs."""
        self._require_cases()
        here, versions = host(), _versions()
        new = {name: _Saved(tuple(times), here, versions) for name, times in self._times.items()}
        save_json(self.path, _File("tensorlogic performance 1", dict(sorted({**self._load(), **new}.items()))))

    def _require_cases(self) -> None:
        if not self._times:
            hint = 'write perf.measure("layer", lambda: executor.execute(graph, inputs)) before'
            raise InputError("nothing was measured", hint, code="E737")

    def _load(self) -> Mapping[str, _Saved]:
        return load_json(self.path, _File, "file of performance baselines").cases if self.path.exists() else {}

    def __repr__(self) -> str:
        return f"<PerfRegression {str(self.path)!r}, {len(self._times)} cases measured>"


def _judged(name: str, times: Sequence[float], saved: _Saved | None, threshold: float) -> PerfCase:
    now = float(np.median(times))
    if saved is None:
        return PerfCase(name, "new", now)
    before = float(np.median(saved.times_ms))
    interval = ratio_interval(times, saved.times_ms)
    return PerfCase(name, verdict(interval, threshold), now, before, ratio(now, before), interval)


def _versions() -> dict[str, str]:
    from .. import __version__

    return {"python": platform.python_version(), "numpy": np.__version__, "tensorlogic": __version__}


def _warnings(measured: Mapping[str, object], saved: Mapping[str, _Saved]) -> list[str]:
    """Say what makes a comparison less than fair, once for all the cases that it is true of."""
    here, versions = host(), _versions()
    found: dict[str, list[str]] = {}
    for name, then in ((name, saved[name]) for name in measured if name in saved):
        if then.machine != here:
            machines = f"{then.machine}; this one is {here}"
            reason = f"measured on another machine ({machines}): ratios compare the machines too"
            found.setdefault(reason, []).append(name)
        for part in ("python", "numpy"):
            if then.versions.get(part, versions[part]) != versions[part]:
                reason = f"measured with {part} {then.versions[part]}, now {versions[part]}"
                found.setdefault(reason, []).append(name)
    found["not measured now"] = [name for name in saved if name not in measured]
    return [f"baseline of {', '.join(names)}: {reason}" for reason, names in found.items() if names]
