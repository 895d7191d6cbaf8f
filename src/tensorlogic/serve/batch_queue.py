"""The policy of a batcher: which requests run together, when, who is late and who is refused.

A state machine without threads, clocks or sleeps: every method is given the time. What carries it out is in ``batcher.py``.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum
from math import ceil, inf
from typing import Any, NamedTuple

from .pace import BatcherConfig, Pace

RETRY = 0.05  # seconds after which to come back while nothing was measured


class Priority(IntEnum):
    """How urgent a request is; one that waits long overtakes more urgent ones that come later (see ``BatcherConfig.aging``).

    >>> Priority.CRITICAL > Priority.HIGH > Priority.NORMAL > Priority.LOW
    True
    """

    LOW = 0
    NORMAL = 1
    HIGH = 2
    CRITICAL = 3


WAITING, RUNNING, DONE = "waiting", "running", "done"


class Request:
    """One request: what it asks for, how urgent it is, until when, and how far it is."""

    tell: Callable[[Any], object]  # is called with the outcome
    arrived: float
    rank: float
    number: int
    __slots__ = (
        "arrived", "deadline", "kind", "loop", "number", "priority", "rank", "sizes", "state", "tell", "values",
    )  # fmt: skip

    def __init__(
        self,
        kind: Any,
        values: Any = None,
        priority: Priority = Priority.NORMAL,
        deadline: float = inf,
        sizes: Any = None,
    ) -> None:
        self.kind, self.values, self.sizes = kind, values, sizes
        self.priority, self.deadline = priority, deadline
        self.state = ""
        self.loop: Any = None  # the event loop that calls tell; None: any thread does

    def __lt__(self, other: Request) -> bool:
        return self.number < other.number  # between equal deadlines


class Batch:
    """Requests that run together, since when, and the earliest of their deadlines."""

    __slots__ = ("begun", "deadline", "requests")

    def __init__(self, requests: list[Request], begun: float, deadline: float) -> None:
        self.requests, self.begun, self.deadline = requests, begun, deadline


class Decision(NamedTuple):
    """What is to be done now: run a batch, tell requests that they are late, and ask again by a time, if nothing happens before."""

    batch: Batch | None
    late: list[Request]
    wake_at: float


class BatchQueue:
    """Requests that wait or run. Each leaves it exactly once: taken and finished, late, cancelled, or never let in.

    Of requests that could run together those with the least *rank* go first: the time of arrival, less ``aging`` for each step of
    priority. So an urgent request overtakes, and none is overtaken by what comes much later.

    >>> queue = BatchQueue(BatcherConfig(max_batch=2))
    >>> for priority in (Priority.LOW, Priority.NORMAL, Priority.HIGH):
    ...     refused = queue.add(Request("a", priority=priority), now=0.0)
    >>> [request.priority.name for request in queue.take(now=0.0).batch.requests]
    ['HIGH', 'NORMAL']
    """

    def __init__(self, config: BatcherConfig) -> None:
        self.config, self.pace = config, Pace(config)
        self.lines: dict[Any, tuple[OrderedDict[Request, None], ...]] = {}  # by kind, those of each priority, in order
        self.running: list[Batch] = []
        self.waiting = 0
        self.draining = False  # run what there is, without waiting for more
        self._deadlines: list[tuple[float, Request]] = []  # a heap; who does not wait any more is dropped in time
        self._worth = [priority * config.aging for priority in Priority]  # seconds in line
        self._count = 0

    def add(self, request: Request, now: float) -> float | None:
        """Let a request in; where the queue is full, return the seconds after which to come back."""
        if self.waiting >= self.config.max_queue:
            return self.retry_after()
        self._count += 1
        request.number, request.arrived, request.state = self._count, now, WAITING
        request.rank = now - self._worth[request.priority]
        lines = self.lines.get(request.kind)
        if lines is None:
            lines = self.lines[request.kind] = tuple(OrderedDict() for _ in Priority)
        lines[request.priority][request] = None
        self.waiting += 1
        if request.deadline != inf:
            heapq.heappush(self._deadlines, (request.deadline, request))
            if len(self._deadlines) > 2 * self.waiting + 64:
                self._deadlines = [entry for entry in self._deadlines if entry[1].state is WAITING]
                heapq.heapify(self._deadlines)
        self.pace.arrived(now)
        return None

    def retry_after(self) -> float:
        """Return the seconds after which those who wait now will have run."""
        size = self.pace.limit
        rounds = ceil((self.waiting / size + len(self.running)) / self.config.workers)
        return max(0.001, rounds * self.pace.estimate(size)) if self.pace.estimate(size) else RETRY

    def take(self, now: float) -> Decision:
        """Decide what to do now; a batch that is returned counts as running until :meth:`finish`."""
        late = self._late(now)
        if not self.waiting or len(self.running) >= self.config.workers:
            return Decision(None, late, self.next_deadline())
        kind, ready_at = self._next_kind(now)
        if ready_at > now:
            return Decision(None, late, min(ready_at, self.next_deadline()))
        requests = self._leave(kind)
        deadline = inf
        for request in requests:
            request.state = RUNNING
            if request.deadline < deadline:
                deadline = request.deadline
        batch = Batch(requests, now, deadline)
        self.running.append(batch)
        return Decision(batch, late, self.next_deadline())

    def next_deadline(self) -> float:
        """Return when the next request is late, waiting or running; infinity where none has a deadline."""
        first, soonest = self._earliest_deadline(), inf
        for batch in self.running:
            soonest = min(soonest, batch.deadline)
        return soonest if first is None else min(soonest, first.deadline)

    def _next_kind(self, now: float) -> tuple[Any, float]:
        """Return the kind that runs next, and when: of those that are ready the one with the least rank."""
        pace, limit, first = self.pace, self.pace.limit, self._earliest_deadline()
        if not pace.wait and len(self.lines) == 1:  # as most of the time
            return next(iter(self.lines)), now
        chosen: list[tuple[Any, Any]] = []  # the kinds that are ready, each with the request that goes first
        soonest, soonest_kind = inf, None
        for kind, lines in self.lines.items():
            heads = [next(iter(line)) for line in lines if line]
            count = sum(map(len, lines))
            ready_at = now
            if count < limit and not self.draining:
                ready_at = pace.ready_at(min(head.arrived for head in heads))
                if first is not None and first.kind is kind:
                    ready_at = min(ready_at, first.deadline - pace.estimate(count))
            if ready_at <= now:
                chosen.append((min(heads, key=_order), kind))
            elif ready_at < soonest:
                soonest, soonest_kind = ready_at, kind
        if not chosen:
            return soonest_kind, soonest
        return min(chosen, key=lambda entry: _order(entry[0]))[1], now

    def _leave(self, kind: Any) -> list[Request]:
        """Take the requests of a batch out of line: those with the least ranks, as many as a batch takes."""
        lines = self.lines[kind]
        busy = [line for line in lines if line]
        limit = self.pace.limit
        taken: list[Request] = []
        if len(busy) == 1 and len(busy[0]) <= limit:  # as most of the time
            taken, busy = list(busy[0]), []
        while busy and len(taken) < limit:
            line = busy[0] if len(busy) == 1 else min(busy, key=lambda line: _order(next(iter(line))))
            taken.append(line.popitem(last=False)[0])
            if not line:
                busy.remove(line)
        if not busy:
            del self.lines[kind]
        self.waiting -= len(taken)
        return taken

    def finish(self, batch: Batch, now: float) -> list[Request]:
        """Note that a batch has run; return its requests that are still to be told, those that are neither late nor cancelled."""
        self.running.remove(batch)
        arrived = min(request.arrived for request in batch.requests)
        self.pace.finished(len(batch.requests), now - batch.begun, now - arrived)
        return self._end(request for request in batch.requests if request.state is RUNNING)

    def cancel(self, request: Request) -> bool:
        """Take a request out, whether it waits or runs; False where it is done already."""
        if request.state is WAITING:
            self._remove(request)
        elif request.state is not RUNNING:
            return False
        request.state = DONE
        return True

    def cancel_waiting(self) -> list[Request]:
        """Take out all requests that wait."""
        found = list(self)
        self.lines.clear()
        self._deadlines.clear()
        self.waiting = 0
        return self._end(found)

    def __iter__(self) -> Iterator[Request]:
        return (request for lines in self.lines.values() for line in lines for request in line)

    def _late(self, now: float) -> list[Request]:
        """Take out the requests whose time is over, whether they wait or run."""
        found = []
        while (first := self._earliest_deadline()) is not None and first.deadline <= now:
            self._remove(first)
            found.append(first)
            first.state = DONE
        for batch in self.running:
            if batch.deadline <= now:
                found += self._end(r for r in batch.requests if r.state is RUNNING and r.deadline <= now)
                batch.deadline = min((r.deadline for r in batch.requests if r.state is RUNNING), default=inf)
        return found

    def _earliest_deadline(self) -> Request | None:
        heap = self._deadlines
        while heap and heap[0][1].state is not WAITING:
            heapq.heappop(heap)
        return heap[0][1] if heap else None

    def _remove(self, request: Request) -> None:
        lines = self.lines[request.kind]
        del lines[request.priority][request]
        self.waiting -= 1
        if not any(lines):
            del self.lines[request.kind]

    def _end(self, requests: Iterable[Request]) -> list[Request]:
        found = list(requests)
        for request in found:
            request.state = DONE
        return found


def _order(request: Request) -> tuple[float, int, int]:
    """Return what requests are sorted by: their rank; of equal ones the more urgent, then the earlier goes first."""
    return request.rank, -request.priority, request.number
