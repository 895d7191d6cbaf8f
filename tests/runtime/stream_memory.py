"""The memory that a stream takes, measured in a process of its own: ``python stream_memory.py rows.parquet 16``."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

import tensorlogic as tl

WIDTH = 8


def graph() -> tl.EinsumGraph:
    """A mean over the rows, and a maximum."""
    b = tl.GraphBuilder()
    x = b.input("x", ("n", WIDTH))
    y = b.tanh(x @ b.input("w", (WIDTH, 16), "float32"))
    return b.build(mean=b.mean(y, axis=0), top=b.max(y))


def measured_peak(path: Path, megabytes: float) -> float:
    """Return the megabytes that a stream over a file takes at most, beyond what a process has that streamed a little of it."""
    command = [sys.executable, __file__, str(path), str(megabytes)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def resident() -> int:
    """Return the bytes of this process that are in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def main(path: Path, megabytes: float) -> None:
    """Print the peak."""
    executor, inputs = tl.Executor(), {"w": np.ones((WIDTH, 16), "float32")}
    first = tl.StreamingConfig(tl.StreamingMode.FixedChunk(64))
    with executor.execute_stream(graph(), path, first, inputs=inputs) as warm:
        next(warm)
    before, peak, watching = resident(), 0, True

    def watch() -> None:
        nonlocal peak
        while watching:
            peak = max(peak, resident())
            time.sleep(0.001)

    watcher = threading.Thread(target=watch, daemon=True)  # it ends with the process where the stream fails
    watcher.start()
    config = tl.StreamingConfig(tl.StreamingMode.DynamicChunk(megabytes))
    executor.execute_stream(graph(), path, config, inputs=inputs).result()
    watching = False
    watcher.join()
    print((peak - before) / (1 << 20))


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
