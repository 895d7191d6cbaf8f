"""Streaming: a file ten times the memory that the stream may have, beside reading it and computing it, each by itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from harness import Table, Timing

import tensorlogic as tl

MB = 1 << 20
BOUND = 64  # megabytes that the stream may take
WIDTH = 32
ROWS = 10 * BOUND * MB // (4 * WIDTH)
ROUNDS = 4
TILE = 32768  # rows at a time that are read where nothing is computed
WORK = {
    "totals": "means, maxima and squares of columns, on one thread",
    "layer": "the mean of tanh(x @ w), on two threads",
}


def tables() -> list[Table]:
    """Measure streams of an .npy and of a Parquet file, each in a process of its own; the files are deleted."""
    found = []
    with tempfile.TemporaryDirectory(prefix="stream-") as folder:
        for name in ("x.npy", "x.parquet"):
            path = Path(folder) / name
            write(path)
            for what, title in WORK.items():
                said = subprocess.run(
                    [sys.executable, __file__, str(path), what], capture_output=True, text=True, check=True
                ).stdout
                found.append(
                    table(f"Streaming {path.suffix}, {10 * BOUND} MB: {title}", json.loads(said.splitlines()[-1]))
                )
            path.unlink()
    return found


def table(title: str, said: dict[str, Any]) -> Table:
    """Make the table of one stream."""
    times = {key: Timing(key, min(t), sorted(t)[len(t) // 2], tuple(t)) for key, t in said["times"].items()}
    limit = max(times["reading"].best, times["computing"].best)
    work = (said["cpu"]["reading"] + said["cpu"]["computing"]) / len(os.sched_getaffinity(0))
    note = (
        f"{ROWS:,} rows of {WIDTH} float32, in chunks of {said['rows']:,} rows chosen by DynamicChunk({BOUND}); goals: within 1.1 of the larger "
        f"of reading and computing, and a peak under {BOUND} MB. Measured: {times['streaming'].best / limit:.2f}, and {said['peak'] / MB:.1f} MB "
        f"of resident memory above what the process had. Reading and computing take {said['cpu']['reading']:.2f} s and "
        f"{said['cpu']['computing']:.2f} s of processor time, so that no stream takes less than {work:.2f} s here"
        + (
            f", more than 1.1 of the larger; it took {times['streaming'].best / work:.2f} of that."
            if work > 1.1 * limit
            else "."
        )
    )
    return Table(title, note, tuple(times[key] for key in ("streaming", "reading", "computing")), limit=limit)


def graph_of(what: str) -> tl.EinsumGraph:
    """Return the graph that is streamed."""
    b = tl.GraphBuilder()
    x = b.input("x", ("n", WIDTH), "float32")
    if what == "totals":
        return b.build(mean=b.mean(x, axis=0), most=b.max(x, axis=0), spread=b.mean(x * x, axis=0))
    return b.build(mean=b.mean(b.tanh(x @ b.input("w", (WIDTH, 64), "float32")), axis=0))


def blocks() -> Iterator[Any]:
    rng = np.random.default_rng(0)
    for start in range(0, ROWS, 65536):
        yield rng.standard_normal((min(65536, ROWS - start), WIDTH), dtype="float32")


def write(path: Path) -> None:
    """Write the source, block by block."""
    if path.suffix == ".npy":
        file = np.lib.format.open_memmap(path, "w+", "float32", (ROWS, WIDTH))
        at = 0
        for block in blocks():
            file[at : at + len(block)] = block
            at += len(block)
        file.flush()
        return
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema([(f"x_{n}", pa.float32()) for n in range(WIDTH)])
    with parquet.ParquetWriter(path, schema) as writer:
        for block in blocks():
            writer.write_table(pa.table(list(block.T.copy()), schema=schema))


def resident() -> int:
    """Return the bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * 4096


def child(path: Path, what: str) -> dict[str, Any]:
    """Stream the file, read it, and compute as much, in turn; watch the memory while it is streamed."""
    graph, executor = graph_of(what), tl.Executor()
    weights = {"w": np.random.default_rng(1).standard_normal((WIDTH, 64), dtype="float32")} if what == "layer" else {}
    config = tl.StreamingConfig(tl.StreamingMode.DynamicChunk(BOUND), prefetch=2)
    with executor.execute_stream(
        graph, path, tl.StreamingConfig(tl.StreamingMode.FixedChunk(256)), inputs=weights
    ) as warm:
        next(warm)  # libraries are loaded: they are no memory of the stream's
    before, peak, watching = resident(), 0, True

    def watch() -> None:
        nonlocal peak
        while watching:
            peak = max(peak, resident())
            time.sleep(0.002)

    watcher = threading.Thread(target=watch)
    watcher.start()
    stream = executor.execute_stream(graph, path, config, inputs=weights)
    rows = next(stream).metadata.size
    stream.result()
    watching = False
    watcher.join()
    part = stream.processor.split.part(rows)
    data = np.random.default_rng(2).standard_normal((rows, WIDTH), dtype="float32")

    def compute() -> None:
        for _ in range(-(-ROWS // rows)):
            executor.execute(part, {"x": data, **weights})

    calls: dict[str, Callable[[], object]] = {
        "reading": lambda: read(path, TILE),
        "computing": compute,
        "streaming": lambda: executor.execute_stream(graph, path, config, inputs=weights).result(),
    }
    times: dict[str, list[float]] = {key: [] for key in calls}
    cpu = dict.fromkeys(calls, float("inf"))
    for _ in range(ROUNDS):
        for key, call in calls.items():
            begin = time.process_time()
            times[key].append(timed(call))
            cpu[key] = min(cpu[key], time.process_time() - begin)
    return {"times": times, "rows": rows, "peak": peak - before, "cpu": cpu}


def timed(call: Callable[[], object]) -> float:
    begin = perf_counter()
    call()
    return perf_counter() - begin


def read(path: Path, rows: int) -> None:
    """Read the file as somebody would who does nothing else with it, so many rows at a time."""
    array = np.empty((rows, WIDTH), "float32")
    if path.suffix == ".npy":
        with path.open("rb", buffering=0) as file:
            while file.readinto(array.reshape(-1).view(np.uint8).data):
                pass
        return
    from pyarrow import parquet

    # with its defaults it takes three times as long
    file = parquet.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False)
    for batch in file.iter_batches(batch_size=rows, use_threads=False):
        for n in range(WIDTH):
            array[: batch.num_rows, n] = batch.column(n).to_numpy()


if __name__ == "__main__":
    print(json.dumps(child(Path(sys.argv[1]), sys.argv[2])))
