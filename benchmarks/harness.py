"""Measuring contenders side by side: interleaved rounds, best and median, ratios within one run."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, NamedTuple

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1

Contender = Callable[[], object] | str  # a call, or the reason why it does not take part


class Timing(NamedTuple):
    """The best and the median of one contender's rounds, in seconds for one call, and every round."""

    name: str
    best: float
    median: float
    times: tuple[float, ...] = ()


class Table(NamedTuple):
    """One benchmark's outcome: a title, what it shows, and rows of timings; the first contender is the yardstick.

    With ``ours`` named, the others are peers and every row is set beside the fastest of them; with a ``limit``, beside the
    seconds that the machine could do it in.
    """

    title: str
    note: str
    timings: tuple[Timing, ...]
    ours: tuple[str, ...] = ()
    limit: float | None = None
    skipped: tuple[tuple[str, str], ...] = ()

    def best_peer(self) -> Timing | None:
        """Return the fastest contender that is not ours; None where nothing says which are."""
        return min(
            (t for t in self.timings if self.ours and t.name not in self.ours), key=lambda t: t.best, default=None
        )

    def header(self) -> list[str]:
        more = [("to the best peer", self.best_peer()), ("to the limit", self.limit)]
        return ["contender", "best", "median", "best ratio", "median ratio", *(name for name, there in more if there)]

    def rows(self) -> list[list[str]]:
        head, peer = self.header(), self.best_peer()
        found = []
        for t in self.timings:
            base = self.timings[0]
            row = [
                t.name,
                seconds(t.best),
                seconds(t.median),
                f"{t.best / base.best:.2f}",
                f"{t.median / base.median:.2f}",
            ]
            row += [f"{t.best / peer.best:.2f}"] if peer else []
            row += [f"{t.best / self.limit:.2f}"] if self.limit else []
            found.append(row)
        return found + [[name, why, *["–"] * (len(head) - 2)] for name, why in self.skipped]

    def markdown(self) -> str:
        head = self.header()
        note = self.note + (f" Limit of the machine: {seconds(self.limit)}." if self.limit else "")
        lines = [f"## {self.title}", "", note, "", "| " + " | ".join(head) + " |"]
        lines += ["| --- |" + " ---: |" * (len(head) - 1), *("| " + " | ".join(r) + " |" for r in self.rows()), ""]
        return "\n".join(lines)


def contest(
    title: str,
    note: str,
    contenders: Mapping[str, Contender],
    *,
    rounds: int = 15,
    calls: int = 0,
    ours: tuple[str, ...] = (),
    limit: Callable[[], float] | None = None,
    agree: float | None = None,
    pause: float = 0.0,
    each: bool = False,
) -> Table:
    """Time contenders in turn, round after round, so that a busy moment hits all of them.

    ``limit`` measures what the machine could do (see :func:`least_seconds`); it takes its turn too, and the best counts.
    With ``agree``, their answers must be that close to the first one's, relative to its largest element, before anything is
    timed. Thread pools spin for a while after their work: a ``pause`` before each turn keeps one from slowing the next.
    A round's time is the mean of its calls; with ``each``, that of its fastest call, for calls long enough to be timed alone: on
    a busy machine few rounds pass undisturbed, but many calls do.
    """
    ready = {name: call for name, call in contenders.items() if not isinstance(call, str)}
    skipped = tuple((name, why) for name, why in contenders.items() if isinstance(why, str))
    if not ready:
        raise ValueError(f"{title}: nobody takes part: {'; '.join(why for _, why in skipped)}")
    answers = {name: call() for name, call in ready.items()}  # plans, caches and pages are warm
    if agree is not None:
        compare(title, answers, agree)
    del answers
    if not calls:
        start = perf_counter()
        next(iter(ready.values()))()
        calls = max(1, min(2000, int(0.02 / max(perf_counter() - start, 1e-7))))
    taken: dict[str, list[float]] = {name: [] for name in ready}
    floors = []
    for _ in range(rounds):
        if limit is not None:
            floors.append(limit())
        for name, call in ready.items():
            if pause:
                sleep(pause)
                call()  # wakes its own threads
            if each:
                taken[name].append(min(_timed(call) for _ in range(calls)))
                continue
            start = perf_counter()
            for _ in range(calls):
                call()
            taken[name].append((perf_counter() - start) / calls)
    timings = tuple(Timing(n, min(t), statistics.median(t), tuple(t)) for n, t in taken.items())
    return Table(title, note, timings, ours, min(floors, default=None), skipped)


def _timed(call: Callable[[], object]) -> float:
    start = perf_counter()
    call()
    return perf_counter() - start


def native(graph: Any, inputs: Mapping[str, Any], **options: Any) -> Callable[..., Any]:
    """Return a graph compiled to machine code, by the plan that is fastest on these inputs."""
    import tensorlogic as tl

    config = tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE)
    compiled = tl.Executor().compile_graph(graph, config, example=inputs, **options)
    return lambda **more: compiled(inputs, **more)


def in_c(source: str, *flags: str) -> Any:
    """Return C code compiled by gcc as a library of functions, or the word that there is no compiler."""
    if shutil.which("gcc") is None:
        return "gcc is not installed"
    with tempfile.TemporaryDirectory() as folder:
        code, part, made = (Path(folder, name) for name in ("code.c", "code.o", "code.so"))
        code.write_text(source)
        subprocess.run(
            ["gcc", "-O3", "-march=native", "-fPIC", *flags, "-c", "-o", part, code], check=True, capture_output=True
        )
        # linked with -ffast-math, a library would let the processor round the smallest numbers to zero, for all code of the process
        linked = [flag for flag in flags if flag != "-ffast-math"]
        subprocess.run(["gcc", "-shared", *linked, "-o", made, part, "-lm"], check=True, capture_output=True)
        return ctypes.CDLL(str(made))


def compare(title: str, answers: Mapping[str, Any], tolerance: float) -> None:
    """Refuse to time contenders whose answers differ."""
    import numpy as np

    (first, expected), *others = answers.items()
    expected = np.asarray(expected)
    allowed = tolerance * max(1e-30, float(np.abs(expected).max(initial=0)))
    for name, answer in others:
        answer = np.asarray(answer)
        if answer.shape != expected.shape:
            raise ValueError(f"{title}: {name} answers {answer.shape}, {first} answers {expected.shape}")
        away = float(np.abs(np.subtract(answer, expected, dtype=float)).max(initial=0))
        if not away <= allowed:  # NaN differs too
            raise ValueError(f"{title}: {name} is {away:.3g} away from {first}; {allowed:.3g} is allowed")


def peer(packages: str, make: Callable[[], Callable[[], object]]) -> Contender:
    """Return the contender that ``make`` builds, or the word that a package it needs is not installed."""
    for package in packages.split():
        try:
            import_module(package)
        except ImportError:
            return f"{package} is not installed"
    return make()


def least_seconds(flops: float, nbytes: float) -> float:
    """Return the time this machine needs at best: the longer of the arithmetic and of reading so many bytes once.

    Both speeds are measured now: of a float32 matrix product, and of a matrix of that size times a vector, again and again,
    so that what fits a cache is read from the cache.
    """
    found = 0.0
    if flops:
        n = 512
        found = flops * _product_seconds(n, n, n) / (2 * n**3)
    if nbytes:
        columns = max(1, min(int(nbytes), 1 << 27) // 2048)
        found = max(found, nbytes * _product_seconds(512, columns, 1) / (2048 * columns))
    return found


@cache
def _operands(rows: int, inner: int, columns: int) -> Any:
    import numpy as np

    return [np.ones(shape, "float32") for shape in ((rows, inner), (inner, columns), (rows, columns))]


def _product_seconds(rows: int, inner: int, columns: int) -> float:
    """Time one matrix product, the best of ten: short, so that one of them passes undisturbed."""
    import numpy as np

    a, b, out = _operands(rows, inner, columns)
    return min(_timed(lambda: np.matmul(a, b, out=out)) for _ in range(10))


def process(code: str) -> Callable[[], object]:
    """Return a contender that runs code in a fresh interpreter, with bytecode of all modules on disk, as an installed package has."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return lambda: subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=environment)


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
            line.split(":", 1)[1].strip()
            for line in info.read_text(encoding="utf-8").splitlines()
            if line.startswith("model name")
        ]
        cpu = names[0] if names else cpu
    parts = [f"{cpu}, {os.cpu_count()} cores", f"Python {platform.python_version()}"]
    for package in ("numpy", "scipy", "opt_einsum", "onnxruntime", "jax", "numexpr", "tensorlogic-infer"):
        try:
            parts.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            parts.append(f"{package} absent")
    return "; ".join(parts)


def write(name: str, tables: list[Table]) -> None:
    """Save one benchmark's tables as JSON, every round included."""
    RESULTS.mkdir(exist_ok=True)
    found = {
        "machine": machine(),
        "tables": [
            {
                **t._asdict(),
                "timings": [{**x._asdict(), "times": [float(f"{s:.4g}") for s in x.times]} for x in t.timings],
            }
            for t in tables
        ],
    }
    text = json.dumps(found, indent=1, ensure_ascii=False)
    # the rounds of a contender on one line
    text = re.sub(r"\[[\s\d.e+,-]*\]", lambda m: re.sub(r"\s+", " ", m[0]), text)
    (RESULTS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> list[Table]:
    """Return the tables that :func:`write` saved."""
    found = []
    for t in json.loads(path.read_text(encoding="utf-8"))["tables"]:
        timings = tuple(Timing(**{**x, "times": tuple(x.get("times", ()))}) for x in t["timings"])
        skipped = tuple((name, why) for name, why in t.get("skipped", ()))
        found.append(Table(t["title"], t["note"], timings, tuple(t.get("ours", ())), t.get("limit"), skipped))
    return found
