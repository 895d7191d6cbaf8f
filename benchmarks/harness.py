"""Measuring contenders side by side: interleaved rounds, best and median, ratios within one run."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"


class Timing(NamedTuple):
    """The best and the median of one contender's rounds, in seconds for one call."""

    name: str
    best: float
    median: float


class Table(NamedTuple):
    """One benchmark's outcome: a title, what it shows, and rows of timings; the first contender is the yardstick."""

    title: str
    note: str
    timings: tuple[Timing, ...]

    def rows(self) -> list[list[str]]:
        base = self.timings[0]
        return [
            [t.name, seconds(t.best), seconds(t.median), f"{t.best / base.best:.2f}", f"{t.median / base.median:.2f}"]
            for t in self.timings
        ]

    def markdown(self) -> str:
        lines = [f"## {self.title}", "", self.note, "", "| contender | best | median | best ratio | median ratio |"]
        lines += ["| --- | ---: | ---: | ---: | ---: |", *("| " + " | ".join(r) + " |" for r in self.rows()), ""]
        return "\n".join(lines)


def contest(
    title: str, note: str, contenders: Mapping[str, Callable[[], object]], *, rounds: int = 15, calls: int = 0
) -> Table:
    """Time contenders in turn, round after round, so that a busy moment hits all of them."""
    for call in contenders.values():
        call()  # plans, caches and pages are warm
    if not calls:
        start = perf_counter()
        next(iter(contenders.values()))()
        calls = max(1, min(2000, int(0.02 / max(perf_counter() - start, 1e-7))))
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, call in contenders.items():
            start = perf_counter()
            for _ in range(calls):
                call()
            taken[name].append((perf_counter() - start) / calls)
    return Table(title, note, tuple(Timing(n, min(t), statistics.median(t)) for n, t in taken.items()))


def process(code: str) -> Callable[[], object]:
    """Return a contender that runs code in a fresh interpreter."""
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def seconds(t: float) -> str:
    """Write a duration for people."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if t >= scale:
            return f"{t / scale:.3g} {unit}"
    return f"{t / 1e-9:.3g} ns"


def machine() -> str:
    """Say what this was measured on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [
            line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    parts = [f"{cpu}, {os.cpu_count()} cores", f"Python {platform.python_version()}"]
    for package in ("numpy", "scipy", "opt_einsum", "tensorlogic-infer"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} absent")
    return "; ".join(parts)


def write(name: str, tables: list[Table]) -> None:
    """Save one benchmark's tables as JSON."""
    RESULTS.mkdir(exist_ok=True)
    found = {
        "machine": machine(),
        "tables": [{"title": t.title, "note": t.note, "timings": [x._asdict() for x in t.timings]} for t in tables],
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
