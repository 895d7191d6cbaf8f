"""What a batcher did so far: counts of outcomes, sizes of batches, times."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..runtime.aio.executor_pool import percentile
from ..tables import table

KEPT = 10_000  # latencies that percentiles are taken of: the latest


class BatcherStats(NamedTuple):
    """What a batcher did so far; each request that came in is in exactly one of the first seven counts. It prints as a table.

    >>> sizes = {4: 2, 1: 1}
    >>> print(BatcherStats(8, 1, 0, 0, 2, 0, 0, 3, sizes, 64, 0.0, 0.001, 0.004, 0.005, 0.005))
    8 completed, 1 failed, 0 late, 0 cancelled, 2 refused; 0 waiting, 0 running
    3 batches of 3.0 on average, at most 64, waiting 0.000 ms for more
    in line 1.000 ms on average; latency 4.000 ms (p50), 5.000 ms (p95), 5.000 ms (p99)
    requests in a batch  batches
                      1        1
                      4        2
    """

    completed: int
    failed: int
    late: int
    cancelled: int
    refused: int
    waiting: int
    running: int
    batches: int
    batch_sizes: Mapping[int, int]  # how many batches had so many requests
    batch_limit: int  # the most requests that a batch takes now, learned or given
    wait: float  # seconds for which a batch waits for more requests now
    avg_queue_time: float  # seconds
    latency_p50: float
    latency_p95: float
    latency_p99: float

    @property
    def avg_batch_size(self) -> float:
        """Requests in a batch, on average; 0 before the first."""
        return sum(n * count for n, count in self.batch_sizes.items()) / self.batches if self.batches else 0.0

    def __str__(self) -> str:
        p50, p95, p99 = (f"{1e3 * t:.3f} ms" for t in (self.latency_p50, self.latency_p95, self.latency_p99))
        rows = [[str(size), str(count)] for size, count in sorted(self.batch_sizes.items())]
        return (
            f"{self.completed:,} completed, {self.failed:,} failed, {self.late:,} late, {self.cancelled:,} cancelled, "
            f"{self.refused:,} refused; {self.waiting:,} waiting, {self.running:,} running\n"
            f"{self.batches:,} batches of {self.avg_batch_size:.1f} on average, at most {self.batch_limit}, "
            f"waiting {1e3 * self.wait:.3f} ms for more\n"
            f"in line {1e3 * self.avg_queue_time:.3f} ms on average; latency {p50} (p50), {p95} (p95), {p99} (p99)\n"
            + table(["requests in a batch", "batches"], rows, right=range(2))
        )


class Counts:
    """What is counted while a batcher works."""

    def __init__(self) -> None:
        self.completed = self.failed = self.late = self.cancelled = self.refused = 0
        self.sizes: Counter[int] = Counter()
        self.queue_time = 0.0
        self.latencies: deque[float] = deque(maxlen=KEPT)

    def taken(self, arrivals: Sequence[float], now: float) -> None:
        """Count a batch, by when its requests came."""
        self.sizes[len(arrivals)] += 1
        self.queue_time += len(arrivals) * now - sum(arrivals)

    def finished(self, latencies: Sequence[float], failed: int) -> None:
        """Count the requests of a batch that were told an outcome, some of them an error."""
        self.failed += failed
        self.completed += len(latencies) - failed
        self.latencies.extend(latencies)

    def report(self, waiting: int, running: int, limit: int, wait: float) -> BatcherStats:
        """Return the counts so far."""
        times: Sequence[float] = sorted(self.latencies)
        p50, p95, p99 = (percentile(times, share) for share in (0.50, 0.95, 0.99))
        taken = sum(size * count for size, count in self.sizes.items())
        queued = self.queue_time / taken if taken else 0.0
        return BatcherStats(
            self.completed, self.failed, self.late, self.cancelled, self.refused, waiting, running,
            self.sizes.total(), dict(self.sizes), limit, wait, queued, p50, p95, p99,
        )  # fmt: skip
