"""Counters and histograms of a server, as Prometheus text and as plain data that several processes add up."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
RECENT = 512  # answers that are counted together
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
ABOUT = {
    "tensorlogic_requests_total": ("counter", "Requests to infer, by model and outcome."),
    "tensorlogic_request_seconds": ("histogram", "Time from the first byte of a request to its answer."),
    "tensorlogic_refusals_total": ("counter", "Requests that were refused, by the code of the reason."),
    "tensorlogic_batch_size": ("histogram", "Requests that ran as one batch."),
    "tensorlogic_queue_depth": ("gauge", "Requests that wait to be run."),
    "tensorlogic_connections": ("gauge", "Connections that are open."),
    "tensorlogic_in_flight": ("gauge", "Requests that are being answered."),
    "tensorlogic_model_ready": ("gauge", "Whether a version of a model is served."),
    "process_resident_memory_bytes": ("gauge", "Memory of the process."),
}


class Histogram:
    """How many values fell between each two bounds, and their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.counts, self.total = bounds, [0] * (len(bounds) + 1), 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Add a value, once or several times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    def plain(self) -> list[Any]:
        """Return bounds, counts and sum."""
        return [list(self.bounds), list(self.counts), self.total]


class ModelMetrics:
    """What is counted for one version of a model."""

    __slots__ = ("_codes", "_recent", "_seconds", "labels")

    def __init__(self, name: str, version: str) -> None:
        self.labels = labels(model=name, version=version)
        self._codes: Counter[tuple[str, str]] = Counter()
        self._seconds = Histogram(SECONDS)
        self._recent: list[float] = []  # the times of good answers over HTTP that are not counted yet

    def count(self, protocol: str, code: str, seconds: float) -> None:
        """Count one answer."""
        self._codes[protocol, code] += 1
        self._seconds.observe(seconds)

    def count_good(self, seconds: float) -> None:
        """Count a good answer over HTTP, as most are: many at one time."""
        self._recent.append(seconds)
        if len(self._recent) >= RECENT:
            self._count_recent()

    def _count_recent(self) -> None:
        recent, self._recent = self._recent, []
        if recent:
            self._codes["http", "ok"] += len(recent)
            for seconds in recent:
                self._seconds.observe(seconds)

    @property
    def codes(self) -> Counter[tuple[str, str]]:
        """How many answers there were, by protocol and by the code of what went wrong."""
        self._count_recent()
        return self._codes

    @property
    def seconds(self) -> Histogram:
        """How long answers took."""
        self._count_recent()
        return self._seconds


def labels(**values: object) -> str:
    r"""Return labels as Prometheus writes them.

    >>> labels(model='a"b', code=200)
    'model="a\\"b",code="200"'
    """
    escaped = {k: str(v).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in values.items()}
    return ",".join(f'{k}="{v}"' for k, v in escaped.items())


class Metrics:
    """The metrics of one process."""

    def __init__(self) -> None:
        self.models: dict[tuple[str, str], ModelMetrics] = {}
        self.refusals: dict[str, int] = {}
        self.connections = 0
        self.in_flight = 0

    def model(self, name: str, version: str) -> ModelMetrics:
        """Return what is counted for one version of a model; it goes on counting after a reload."""
        found = self.models.get((name, version))
        if found is None:
            found = self.models[name, version] = ModelMetrics(name, version)
        return found

    def refuse(self, code: str) -> None:
        """Count a request that was refused."""
        self.refusals[code] = self.refusals.get(code, 0) + 1

    def snapshot(self, models: Iterable[Any]) -> dict[str, Any]:
        """Return everything as plain data: numbers by metric and labels, and histograms as bounds, counts and sums."""
        numbers: dict[str, dict[str, float]] = {name: {} for name, (kind, _) in ABOUT.items() if kind != "histogram"}
        histograms: dict[str, dict[str, Any]] = {name: {} for name, (kind, _) in ABOUT.items() if kind == "histogram"}
        for each in self.models.values():
            for (protocol, code), count in each.codes.items():
                key = f"{each.labels},{labels(protocol=protocol, code=code)}"
                numbers["tensorlogic_requests_total"][key] = count
            histograms["tensorlogic_request_seconds"][each.labels] = each.seconds.plain()
        for model in models:
            key, stats = labels(model=model.name, version=model.version), model.batcher.stats()
            numbers["tensorlogic_queue_depth"][key] = stats.waiting
            numbers["tensorlogic_model_ready"][key] = 1
            sizes = Histogram(SIZES)
            for size, count in stats.batch_sizes.items():
                sizes.observe(size, count)
            histograms["tensorlogic_batch_size"][key] = sizes.plain()
        numbers["tensorlogic_refusals_total"] = {labels(reason=code): n for code, n in self.refusals.items()}
        numbers["tensorlogic_connections"][""] = self.connections
        numbers["tensorlogic_in_flight"][""] = self.in_flight
        numbers["process_resident_memory_bytes"][""] = resident_bytes()
        return {"numbers": numbers, "histograms": histograms}


def resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError, ValueError):
        return 0


def sum_snapshots(snapshots: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the sum of the snapshots of several processes.

    >>> one = {"numbers": {"a": {"": 1}}, "histograms": {"h": {"": [[1, 2], [0, 1, 0], 2.0]}}}
    >>> sum_snapshots([one, one])
    {'numbers': {'a': {'': 2}}, 'histograms': {'h': {'': [[1, 2], [0, 2, 0], 4.0]}}}
    """
    numbers: dict[str, dict[str, float]] = {}
    histograms: dict[str, dict[str, list[Any]]] = {}
    for each in snapshots:
        for metric, series in each["numbers"].items():
            into = numbers.setdefault(metric, {})
            for key, value in series.items():
                into[key] = into.get(key, 0) + value
        for metric, found in each["histograms"].items():
            target = histograms.setdefault(metric, {})
            for key, (bounds, counts, total) in found.items():
                _, before, sum_before = target.get(key, (bounds, [0] * len(counts), 0.0))
                target[key] = [bounds, [a + b for a, b in zip(before, counts, strict=True)], sum_before + total]
    return {"numbers": numbers, "histograms": histograms}


def prometheus(snapshot: Mapping[str, Any]) -> str:
    """Return a snapshot in the text format that Prometheus reads."""
    lines = []
    for metric, (kind, about) in ABOUT.items():
        lines += [f"# HELP {metric} {about}", f"# TYPE {metric} {kind}"]
        for key, value in snapshot["numbers"].get(metric, {}).items():
            lines.append(f"{metric}{{{key}}} {value}" if key else f"{metric} {value}")
        for key, (bounds, counts, total) in snapshot["histograms"].get(metric, {}).items():
            count = 0
            for bound, more in zip([*bounds, "+Inf"], counts, strict=True):
                count += more
                lines.append(f'{metric}_bucket{{{key},le="{bound}"}} {count}')
            lines += [f"{metric}_sum{{{key}}} {total}", f"{metric}_count{{{key}}} {count}"]
    return "\n".join(lines) + "\n"
