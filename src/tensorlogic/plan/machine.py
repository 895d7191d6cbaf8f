"""What this machine can do, measured once: arithmetic, memory, and the cost of one call."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from ..store import Lock
from .cost import LARGEST

WIDE = frozenset({"float64", "int64", "uint64"})  # measured as float64; the others are computed as float32 is
MATRIX = 384  # rows of the matrices that are multiplied: large enough for BLAS, small enough for a slow machine
STREAM = 40 << 20  # bytes of the array that is read and written, beyond the caches of most processors
CALLS = 1000
ONE_THREAD = 64  # rows of those that BLAS leaves to one thread: with a busy machine's others it may wait long
BUDGET = 0.01  # seconds for each of the numbers in each round, as long as it was measured twice
ROUNDS = 2  # apart in time, so that a moment in which others use the machine spoils but one


class Machine(NamedTuple):
    """Speeds of a machine: matrix products in flops a second, streaming in bytes a second, seconds of a small NumPy call.

    >>> print(Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=5e-7))
    float32 100.0 GFLOP/s, float64 50.0 GFLOP/s, memory 10.0 GB/s, 0.50 µs a call
    """

    flops32: float
    flops64: float
    bandwidth: float
    call: float

    def flops(self, dtype: str) -> float:
        """Return the flops a second of a matrix product in a dtype."""
        return self.flops64 if dtype in WIDE else self.flops32

    def __str__(self) -> str:
        return (
            f"float32 {self.flops32 / 1e9:.1f} GFLOP/s, float64 {self.flops64 / 1e9:.1f} GFLOP/s, "
            f"memory {self.bandwidth / 1e9:.1f} GB/s, {self.call * 1e6:.2f} µs a call"
        )


def roofline_seconds(flops: float, nbytes: float, machine: Machine, dtype: str = "float32") -> float:
    """Return the least time that arithmetic and traffic of memory can take: the longer of the two.

    >>> m = Machine(flops32=100e9, flops64=50e9, bandwidth=10e9, call=5e-7)
    >>> roofline_seconds(1e9, 1e6, m), roofline_seconds(1e9, 1e6, m, "float64"), roofline_seconds(1e6, 1e9, m)
    (0.01, 0.02, 0.1)
    """
    return max(min(flops, LARGEST) / machine.flops(dtype), min(nbytes, LARGEST) / machine.bandwidth)


_measured: list[Machine] = []
_lock = Lock()


def machine() -> Machine:
    """Return the speeds of this machine; the first call in a process measures them, in about a quarter of a second.

    >>> machine().bandwidth > 0, machine() is machine()
    (True, True)
    """
    with _lock:  # two threads that measured at once would measure each other
        if not _measured:
            _measured.append(measure())
        return _measured[0]


def measure(clock: Callable[[], float] = perf_counter) -> Machine:
    """Measure now: the best of a few, because whatever else the machine does only makes it look slower."""
    import numpy as np

    def product(size: int, dtype: str) -> Callable[[], Any]:
        x = np.ones((size, size), dtype)
        out = np.empty_like(x)
        return lambda: np.matmul(x, x, out=out)

    stream, small = np.ones(STREAM // 8), np.ones(4)

    def calls() -> None:
        for _ in range(CALLS):
            np.add(small, small)

    sizes = (MATRIX, ONE_THREAD)
    products = [product(size, dtype) for dtype in ("float32", "float64") for size in sizes]
    work: list[Callable[[], Any]] = [*products, lambda: np.negative(stream, out=stream), calls]
    for function in work:
        function()  # touches memory and wakes the threads of BLAS
    rounds = [[_best(function, clock) for function in work] for _ in range(ROUNDS)]
    *multiplied, streamed, called = (min(times) for times in zip(*rounds, strict=True))
    reached = [2 * size**3 / took for size, took in zip(2 * sizes, multiplied, strict=True)]
    return Machine(
        flops32=max(reached[:2]),
        flops64=max(reached[2:]),
        bandwidth=2 * stream.nbytes / streamed,  # read once, written once
        call=called / CALLS,
    )


def _best(function: Callable[[], Any], clock: Callable[[], float]) -> float:
    best, spent, runs = float("inf"), 0.0, 0
    while runs < 2 or (spent < BUDGET and runs < 10):
        start = clock()
        function()
        took = clock() - start
        best, spent, runs = min(best, took), spent + took, runs + 1
    return max(best, 1e-9)  # a clock that stood still measures nothing, and nothing divides by zero


@cache
def host() -> str:
    """Describe the machine in words that stay the same from process to process: processor, cores, system.

    >>> host() == host()
    True
    """
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    name = next(models, platform.processor() or platform.machine())
    return f"{name}, {os.cpu_count()} cpus, {platform.system()} {platform.machine()}"
