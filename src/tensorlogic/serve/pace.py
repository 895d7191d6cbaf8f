"""How many requests a batch takes, and how long it waits for more of them: fixed by the config, or learned from what is measured."""

from __future__ import annotations

from enum import Enum

import msgspec

from ..diagnostics import value_text
from ..errors import InputError, expect, expect_whole, nearest
from ..runtime.context import seconds

FORGET = 0.95  # the weight of a batch falls to so much with each one after it
GAPS = 4.0  # a pause of so many usual gaps between requests: more are not on their way
SHRINK = 0.9  # of a batch that took too long: the size of the next
STEP = 0.02  # of the target: by how much the learned wait grows after a batch that was early enough


class BatchingStrategy(Enum):
    """What a batcher waits for once it could run.

    ``LATENCY`` waits for nobody (or for ``max_wait``), ``THROUGHPUT`` until a batch is full or ``max_wait`` (10 ms) is over.
    ``ADAPTIVE`` learns size and wait so that requests take no longer than ``target_latency``. None waits so long that a
    deadline could not be kept any more.

    >>> BatchingStrategy("adaptive")
    <BatchingStrategy.ADAPTIVE: 'adaptive'>
    """

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    ADAPTIVE = "adaptive"


MAX_WAIT = {BatchingStrategy.LATENCY: 0.0, BatchingStrategy.THROUGHPUT: 0.010, BatchingStrategy.ADAPTIVE: 1.0}


class BatcherConfig(msgspec.Struct, frozen=True):
    """How requests gather: the size of a batch, how many may wait and how long, and which shapes go together.

    Times are seconds. ``aging`` is the time in line that is worth one priority: a LOW request is overtaken by no HIGH one
    that comes more than twice as long after it. ``pad`` names sizes that are filled up with zeros to a multiple, so that
    requests of different lengths share a batch: ``{"n": 32}``. ``workers`` is how many batches may run at one time.

    >>> BatcherConfig(max_batch=32, strategy=BatchingStrategy.THROUGHPUT).max_batch
    32
    """

    max_batch: int = 64
    max_queue: int = 1024
    strategy: BatchingStrategy = BatchingStrategy.LATENCY
    max_wait: float | None = None  # that of the strategy
    target_latency: float = 0.020  # which ADAPTIVE learns to keep
    timeout: float | None = None  # of requests that have none of their own
    aging: float = 1.0
    pad: dict[str, int] = {}
    workers: int = 1

    def __post_init__(self) -> None:
        for name in ("max_batch", "max_queue", "workers"):
            expect_whole(name, getattr(self, name), 1)
        if not isinstance(self.strategy, BatchingStrategy):
            names = [s.name for s in BatchingStrategy]
            hints = nearest(self.strategy, [f"BatchingStrategy.{name}" for name in names])
            raise InputError(
                f"a strategy is one of {', '.join(names)}, got {value_text(self.strategy)}", *hints, code="E301"
            )
        for name in ("max_wait", "timeout", "target_latency", "aging"):
            value = getattr(self, name)
            if value is not None or name in ("target_latency", "aging"):
                msgspec.structs.force_setattr(self, name, seconds(value, name))
        expect(self.pad, dict, "pad= names sizes and the multiple they are filled up to", 'write pad={"n": 32}')
        for multiple in self.pad.values():
            expect_whole("a multiple of pad=", multiple, 1)


class Pace:
    """What is known of the time that batches take, and what follows from it: the most requests of a batch, and the wait for more.

    A batch of ``n`` is taken to last ``fixed + each * n`` seconds: the line through what was measured, old batches counting less
    and less.

    >>> pace = Pace(BatcherConfig(strategy=BatchingStrategy.ADAPTIVE, target_latency=0.020, max_batch=256))
    >>> for _ in range(100):
    ...     pace.finished(pace.limit, 0.001 + 0.0005 * pace.limit, 0.010)
    >>> round(pace.estimate(8), 4), 16 <= pace.limit <= 19
    (0.005, True)
    """

    def __init__(self, config: BatcherConfig) -> None:
        self._config = config
        self._adaptive = config.strategy is BatchingStrategy.ADAPTIVE
        self._max_wait = MAX_WAIT[config.strategy] if config.max_wait is None else config.max_wait
        self.limit = 1 if self._adaptive else config.max_batch
        self.wait = 0.0 if self._adaptive else self._max_wait
        self._weight = self._sizes = self._times = self._squares = self._products = 0.0
        self._gap = self._last = -1.0  # between requests, on average; when the last one came

    def estimate(self, size: int) -> float:
        """Return the seconds that a batch of a size is expected to take; 0 while nothing is known."""
        if not self._weight:
            return 0.0
        mean, time = self._sizes / self._weight, self._times / self._weight
        spread = self._squares / self._weight - mean * mean
        if spread > 1e-3 * mean * mean:  # else all are of one size, and nobody knows what a smaller one would take
            each = max(0.0, (self._products / self._weight - mean * time) / spread)
            fixed = time - each * mean
            if fixed >= 0:
                return fixed + each * size
        return time / mean * size

    def arrived(self, now: float) -> None:
        """Note that a request came."""
        if self._adaptive:
            if self._last >= 0:
                gap = now - self._last
                self._gap = gap if self._gap < 0 else self._gap + 0.1 * (gap - self._gap)
            self._last = now

    def ready_at(self, oldest: float) -> float:
        """Return when requests that are too few for a full batch run, the oldest of which came at a time."""
        if not self._adaptive:
            return oldest + self.wait
        if self._gap < 0 or self._gap > self.wait:  # waiting would bring nobody
            return oldest
        return min(oldest + self.wait, self._last + GAPS * self._gap)

    def finished(self, size: int, took: float, latency: float) -> None:
        """Note how long a batch ran, and the latency of the request that had waited longest."""
        self._weight = FORGET * self._weight + 1
        self._sizes = FORGET * self._sizes + size
        self._times = FORGET * self._times + took
        self._squares = FORGET * self._squares + size * size
        self._products = FORGET * self._products + size * took
        if self._adaptive:
            self._learn(size, took, latency)

    def _learn(self, size: int, took: float, latency: float) -> None:
        """Let batches grow while two of them, the one that a request just missed and its own, are within the target.

        Where requests are late because more come than batches of this size serve, they grow up to where one alone takes that long: smaller
        ones would serve still fewer.
        """
        target = self._config.target_latency
        late = latency > target
        if took > target or (2 * took > target and not late):
            self.limit = max(1, min(self.limit, int(SHRINK * size)))
        elif size >= self.limit:
            part = 1 if 4 * took <= target else 4 if late else 16
            self.limit = min(self._config.max_batch, self.limit + max(1, self.limit // part))
        most = min(self._max_wait, max(0.0, target - 2 * self.estimate(self.limit)))
        self.wait = 0.5 * self.wait if late else min(self.wait + STEP * target, most)
