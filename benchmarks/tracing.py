"""What tracing costs: one recorded step, and questions to a trace of five million entries."""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from time import perf_counter, perf_counter_ns

import numpy as np
from harness import Table, Timing, contest, peer

import tensorlogic as tl

STEPS = 1000
ENTRIES = 5_000_000
OPERATIONS = 200
TOP = 100
ROUNDS = 21
PAIRS = 101


def tables() -> list[Table]:
    return [cost_of_a_step(), grouping(), longest(), hotspots(), memory()]


# one recorded step


def chain() -> Callable[[], object]:
    """Return a run of many steps that hardly compute anything, so that what watches them shows."""
    b = tl.GraphBuilder(intern=False)
    z = b.input("x", (4,), "float32")
    for n in range(STEPS):
        z = b.maximum(z, float(n % 2)) if n % 2 else b.relu(z)
    graph, executor = b.build(z=z), tl.Executor()
    x = {"x": np.ones(4, "float32")}
    return lambda: executor.execute(graph, x)


def traced(run: Callable[[], object]) -> Callable[[], object]:
    def call() -> object:
        with tl.trace() as t:
            run()
        return t

    return call


def appends() -> list[tuple[int, int]]:
    """Write down the least that tells when something ran, by hand."""
    noted: list[tuple[int, int]] = []
    note, clock = noted.append, perf_counter_ns
    for n in range(STEPS):
        note((n, clock()))
    return noted


def empty() -> None:
    for _ in range(STEPS):
        pass


def torch_steps(profiled: bool) -> Callable[[], object]:
    import torch

    torch.set_num_threads(1)
    x = torch.ones(4)

    def run() -> object:
        z = x
        for _ in range(STEPS):
            z = torch.relu(z)
        return z

    def watched() -> object:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
            return run()

    return watched if profiled else run


@contextmanager
def quiet() -> Iterator[None]:
    """Keep stderr empty: PyTorch's profiler writes two lines to it on every start."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def cost_of_a_step() -> Table:
    """Time with and without, turn by turn, and report the difference for one step."""
    run = chain()
    pairs: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "a list: append and clock": (appends, empty),
        "tl.trace()": (traced(run), run),
        "nobody watches": (run, run),
    }
    skipped: list[tuple[str, str]] = []
    made = peer("torch", lambda: torch_steps(profiled=True))
    if isinstance(made, str):
        skipped.append(("torch.profiler, CPU", f"{made}: make bench TORCH=1"))
    else:
        pairs["torch.profiler, CPU"] = (made, torch_steps(profiled=False))
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in pairs}
    with quiet():
        for n in range(PAIRS):
            for name, both in pairs.items():
                times = []
                for call in reversed(both):
                    start = perf_counter()
                    call()
                    times.append(perf_counter() - start)
                if n:  # the first time plans and warms up
                    taken[name].append((times[0], times[1]))
    found = []
    for name, rounds in taken.items():
        plain, watched = zip(*rounds, strict=True)
        each = tuple((w - p) / STEPS for p, w in rounds)
        found.append(Timing(name, (min(watched) - min(plain)) / STEPS, statistics.median(each), each))
    return Table(
        "One recorded step",
        f"A run of {STEPS:,} tiny steps watched, minus the same run unwatched, for one step: the least of each, and "
        "the median difference. Goal: at most 250 ns. The row without a trace is the noise of the measurement.",
        tuple(found),
        skipped=tuple(skipped),
    )


# questions to a large trace


@cache
def columns() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    operation = rng.integers(0, OPERATIONS, ENTRIES).astype(np.int32)
    memory = (np.arange(OPERATIONS, dtype=np.int64) + 1) * 4096
    return operation, rng.exponential(10.0, ENTRIES), memory[operation]


@cache
def recorded() -> tl.RecordedExecutionTrace:
    operation, duration, _ = columns()
    kinds = [tl.RecordedTraceEntry(0, f"op{n}").with_output_shape([512 * (n + 1)]) for n in range(OPERATIONS)]
    return tl.RecordedExecutionTrace.from_columns(kinds, operation, duration)


def duckdb_over(query: str, kept: str) -> Callable[[], object]:
    """Return a query over the same columns: in DuckDB's own table, or where they lie."""
    import duckdb

    operation, duration, memory = columns()
    connection = duckdb.connect()
    if kept == "arrow":
        import pyarrow

        names = ["operation", "duration", "memory"]
        connection.register("entries", pyarrow.table([operation, duration, memory], names=names))
    else:
        connection.register("given", {"operation": operation, "duration": duration, "memory": memory})
        kind = "table" if kept == "table" else "view"
        connection.execute(f"create {'temp ' if kind == 'view' else ''}{kind} entries as select * from given")
    return lambda: connection.execute(query).fetchall()


GROUP = "select operation, count(*), sum(duration), sum(memory) from entries group by operation"
LONGEST = f"select * from entries order by duration desc limit {TOP}"


def numpy_groups() -> object:
    operation, duration, memory = columns()
    return np.bincount(operation), np.bincount(operation, duration), np.bincount(operation, memory)


def check() -> None:
    """Refuse to time different answers."""
    ours = tl.TraceAnalyzer.operation_summary(recorded())
    counts, times, memory = numpy_groups()  # type: ignore[misc]
    for n in range(OPERATIONS):
        row = ours[f"op{n}"]
        assert (row.count, row.total_memory_bytes) == (counts[n], memory[n])
        assert abs(row.total_duration_us - times[n]) <= 1e-9 * times[n]
    longest = [e.duration_us for e in recorded().slowest_ops(TOP)]
    assert longest == np.sort(columns()[1])[::-1][:TOP].tolist()


def grouping() -> Table:
    check()
    contenders = {
        "DuckDB, its own table": peer("duckdb", lambda: duckdb_over(GROUP, "table")),
        "TraceAnalyzer.operation_summary": lambda: tl.TraceAnalyzer.operation_summary(recorded()),
        "DuckDB over NumPy": peer("duckdb", lambda: duckdb_over(GROUP, "numpy")),
        "DuckDB over Arrow": peer("duckdb pyarrow", lambda: duckdb_over(GROUP, "arrow")),
        "NumPy, three bincounts": numpy_groups,
    }
    note = (
        f"Count, time and memory of {OPERATIONS} operations in {ENTRIES:,} entries. Goal: within twice DuckDB's time."
    )
    ours = ("TraceAnalyzer.operation_summary",)
    return contest("Grouping five million entries", note, contenders, rounds=ROUNDS, calls=1, ours=ours)


def longest() -> Table:
    contenders = {
        "DuckDB, its own table": peer("duckdb", lambda: duckdb_over(LONGEST, "table")),
        "slowest_ops": lambda: recorded().slowest_ops(TOP),
        "DuckDB over NumPy": peer("duckdb", lambda: duckdb_over(LONGEST, "numpy")),
        "DuckDB over Arrow": peer("duckdb pyarrow", lambda: duckdb_over(LONGEST, "arrow")),
        "NumPy, argpartition": lambda: np.argpartition(columns()[1], -TOP)[-TOP:],
    }
    note = f"The {TOP} longest of {ENTRIES:,} entries, as entries. Goal: within twice DuckDB's time."
    return contest(
        "The longest of five million entries", note, contenders, rounds=ROUNDS, calls=1, ours=("slowest_ops",)
    )


def hotspots() -> Table:
    least = 4096 * (OPERATIONS - 2)
    query = f"select * from entries where memory > {least}"
    contenders = {
        "DuckDB, its own table": peer("duckdb", lambda: duckdb_over(query, "table")),
        "memory_hotspots": lambda: tl.TraceAnalyzer.memory_hotspots(recorded(), least),
        "memory_hotspots, every entry read": lambda: tl.TraceAnalyzer.memory_hotspots(recorded(), least)[:],
        "DuckDB over NumPy": peer("duckdb", lambda: duckdb_over(query, "numpy")),
    }
    note = f"The entries whose result is among the largest hundredth of {ENTRIES:,}, as entries, which are built as they are read. Goal: within twice DuckDB's time."
    return contest(
        "The largest results of five million entries", note, contenders, rounds=5, calls=1, ours=("memory_hotspots",)
    )


def memory() -> Table:
    """Time building the columns; how large they are stands in the note."""
    operation, duration, _ = columns()
    kinds = [tl.RecordedTraceEntry(0, f"op{n}") for n in range(OPERATIONS)]
    many = 100_000

    def one_by_one() -> None:
        trace = tl.RecordedExecutionTrace()
        for kind, took in zip(operation[:many].tolist(), duration[:many].tolist(), strict=True):
            entry = kinds[kind]
            entry.duration_us = took
            trace.add_entry(entry)

    contenders = {
        "add_entry, one by one": one_by_one,
        "from_columns": lambda: tl.RecordedExecutionTrace.from_columns(kinds, operation[:many], duration[:many]),
    }
    each = recorded().nbytes() / ENTRIES
    note = f"{many:,} entries. An entry takes {each:g} bytes in columns, a traced step 16 before that; goal: under 64."
    return contest("Building a recorded trace", note, contenders, rounds=5, calls=1)
