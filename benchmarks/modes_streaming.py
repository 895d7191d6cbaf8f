"""Streaming: a file ten times the memory that the stream may have, beside reading it and computing it, each by itself."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
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
ROUNDS = 3
TILES = (4096, 32768)  # rows at a time in which reading and computing are timed by themselves


def tables() -> list[Table]:
    """Measure the stream of an .npy and of a Parquet file, each in a process of its own; the files are deleted."""
    found = []
    with tempfile.TemporaryDirectory(prefix="stream-") as folder:
        for name in ("x.npy", "x.parquet"):
            path = Path(folder) / name
            write(path)
            said = subprocess.run(
                [sys.executable, __file__, str(path)], capture_output=True, text=True, check=True
            ).stdout
            told = json.loads(said.splitlines()[-1])
            times = {key: Timing(key, min(t), sorted(t)[len(t) // 2], tuple(t)) for key, t in told["times"].items()}
            limit = max(times["reading"].best, times["computing"].best)
            note = (
                f"mean of tanh(x @ w) over {ROWS:,} rows of {WIDTH} float32, {10 * BOUND} MB, in chunks of {told['rows']:,} rows chosen by "
                f"DynamicChunk({BOUND}); goals: within 1.1 of the larger of reading and computing, each at its fastest number of rows at a "
                f"time, and a peak under {BOUND} MB. Measured: "
                f"{times['streaming'].best / limit:.2f}, and {told['peak'] / MB:.1f} MB of resident memory above what the process had."
            )
            order = tuple(times[key] for key in ("streaming", "reading", "computing"))
            found.append(Table(f"Streaming {name.removeprefix('x')}, {10 * BOUND} MB", note, order, limit=limit))
            path.unlink()
    return found


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


def child(path: Path) -> dict[str, Any]:
    """Stream the file, read it, and compute as much, in turn; watch the memory while it is streamed."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", WIDTH), "float32"), b.input("w", (WIDTH, 64), "float32")
    graph, executor = b.build(mean=b.mean(b.tanh(x @ w), axis=0)), tl.Executor()
    weights = {"w": np.random.default_rng(1).standard_normal((WIDTH, 64), dtype="float32")}
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
    times: dict[str, list[float]] = {"streaming": [], "reading": [], "computing": []}
    stream = executor.execute_stream(graph, path, config, inputs=weights)
    rows = next(stream).metadata.size
    stream.result()
    watching = False
    watcher.join()
    parts = {size: stream.processor.split.part(size) for size in {rows, *TILES}}
    data = np.random.default_rng(2).standard_normal((max(parts), WIDTH), dtype="float32")

    def compute(size: int) -> None:
        for _ in range(-(-ROWS // size)):
            executor.execute(parts[size], {"x": data[:size], **weights})

    calls: dict[str, list[Any]] = {  # of reading and computing the fastest way counts
        "reading": [partial(read, path, size) for size in TILES],
        "computing": [partial(compute, size) for size in parts],
        "streaming": [lambda: executor.execute_stream(graph, path, config, inputs=weights).result()],
    }
    for _ in range(ROUNDS):
        for key, ways in calls.items():
            times[key].append(min(timed(way) for way in ways))
    return {"times": times, "rows": rows, "peak": peak - before}


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

    for batch in parquet.ParquetFile(path).iter_batches(batch_size=rows):
        for n in range(WIDTH):
            array[: batch.num_rows, n] = batch.column(n).to_numpy()


if __name__ == "__main__":
    print(json.dumps(child(Path(sys.argv[1]))))
