"""Ranks that are threads of this process: they meet, hand each other arrays, and go on."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from time import monotonic, perf_counter_ns
from typing import Any

import numpy as np

from ...backends.collectives import put_end_to_end
from ...backends.combine import combined
from ...errors import ExecutionError
from ...ir.collectives import share
from ...store import Lock
from ..parts import range_of

Array = Any


class _Place:
    """Where the ranks of one group meet: what each brought, who is there, and what was sent and not yet received."""

    def __init__(self, size: int, timeout: float) -> None:
        self.size, self.timeout = size, timeout
        self.lock = Lock()
        self.changed = threading.Condition(self.lock)
        self.calls: list[str] = [""] * size  # what each rank is about to do
        self.values: list[Any] = [None] * size
        self.arrived = self.read = 0  # ranks that brought a value, and that have read those of all
        self.met = self.parted = 0  # how often all were here, and went on
        self.mail: dict[tuple[int, int, str], deque[Array]] = {}
        self.failure: str = ""

    def fail(self, message: str) -> None:
        """Let everyone who waits here, or comes later, raise."""
        with self.lock:
            self.failure = self.failure or message
            self.changed.notify_all()

    def wait_for(self, ready: Callable[[], bool], describe: Callable[[], str]) -> None:
        """Wait, holding the lock, until something is so; raise where a rank failed or too much time goes by."""
        end = monotonic() + self.timeout
        while not ready():
            if self.failure:
                raise ExecutionError(self.failure, code="E373")
            if (left := end - monotonic()) <= 0:
                self.failure = f"{describe()} for {self.timeout:g} s"
                self.changed.notify_all()
                raise ExecutionError(
                    self.failure, "look at the rank that is missing, or allow more time: timeout=", code="E374"
                )
            self.changed.wait(left)


class LocalCommunication:
    """The way from one thread to the others of its group (``communication="local"``).

    >>> from concurrent.futures import ThreadPoolExecutor
    >>> ways = local_group(2)
    >>> with ThreadPoolExecutor(2) as threads:
    ...     list(threads.map(lambda way: way.all_reduce(np.array([1.0, way.rank]), "add").tolist(), ways))
    [[2.0, 1.0], [2.0, 1.0]]
    """

    def __init__(
        self, rank: int, places: dict[tuple[int, ...], _Place], ranks: tuple[int, ...], lock: Any, timeout: float
    ) -> None:
        self.rank, self.size = ranks.index(rank), len(ranks)
        self._own, self._places, self._ranks, self._lock, self._timeout = rank, places, ranks, lock, timeout
        with lock:
            self._place = places.setdefault(ranks, _Place(len(ranks), timeout))
        self.waited_ns = 0
        self.moved: Counter[str] = Counter()  # bytes that this rank gave, by what it was for

    def all_reduce(self, x: Array, how: str) -> Array:
        """Return the values of all ranks combined, in the order of the ranks."""
        return self._meet("all_reduce " + how, x, lambda values: combined(how, values))

    def start_all_reduce(self, operands: Sequence[Array], total: Array, how: str, label: str) -> None:
        """Combine the values of all ranks at once; threads of one process gain nothing by going on meanwhile."""
        put_end_to_end(operands, total)
        np.copyto(total, self.all_reduce(total, how))

    def wait(self, label: str) -> None:
        """Go on: what was started is over."""

    def all_gather(self, x: Array, axis: int, length: int) -> Array:
        """Return the shares of all ranks end to end."""
        return self._meet("all_gather", x, lambda values: np.concatenate(values, axis))

    def reduce_scatter(self, x: Array, axis: int, how: str) -> Array:
        """Return this rank's share of the values of all ranks combined."""
        own = share(x.shape[axis], self.size, self.rank)
        return self._meet(
            "reduce_scatter " + how, x, lambda values: combined(how, [range_of(v, axis, own) for v in values])
        )

    def all_to_all(self, x: Array, cut: int, joined: int, length: int) -> Array:
        """Return this rank's share along the axis ``cut`` of what lay in shares along ``joined``."""
        own = share(x.shape[cut], self.size, self.rank)
        return self._meet(
            "all_to_all", x, lambda values: np.concatenate([range_of(v, cut, own) for v in values], joined)
        )

    def broadcast(self, x: Array, root: int) -> Array:
        """Return the value of one rank."""
        return self._meet("broadcast", x, lambda values: np.array(values[root]), gives=self.rank == root)

    def send(self, x: Array, to: int, label: str) -> None:
        """Hand a copy of an array to another rank."""
        place, value = self._place, np.array(x)
        self.moved["send"] += value.nbytes
        with place.lock:
            place.mail.setdefault((self.rank, to, label), deque()).append(value)
            place.changed.notify_all()

    def receive(self, source: int, label: str, shape: tuple[int, ...], dtype: str) -> Array:
        """Return what another rank sent, once it is there."""
        place, key = self._place, (source, self.rank, label)
        start = perf_counter_ns()
        with place.lock:
            missing = f"rank {self._ranks[self.rank]} waited for {label!r} of rank {self._ranks[source]}"
            place.wait_for(lambda: bool(place.mail.get(key)), lambda: missing)
            value = place.mail[key].popleft()
        self.waited_ns += perf_counter_ns() - start
        return value

    def group(self, ranks: Sequence[int]) -> LocalCommunication:
        """Return the way to some of the ranks, by their numbers here."""
        chosen = tuple(self._ranks[r] for r in ranks)
        return LocalCommunication(self._own, self._places, chosen, self._lock, self._timeout)

    def fail(self, message: str) -> None:
        """Let every rank of every group raise instead of waiting."""
        with self._lock:
            places = list(self._places.values())
        for place in places:
            place.fail(message)

    def close(self) -> None:
        """Let nobody wait for this rank any longer."""
        self._place.fail(f"rank {self._own} has left")

    def _meet(self, call: str, x: Array, answer: Callable[[list[Array]], Array], gives: bool = True) -> Array:
        """Wait until every rank is here with its value, and return what this one makes of them before anybody goes on."""
        place, start = self._place, perf_counter_ns()
        with place.lock:
            this = place.met
            place.calls[self.rank], place.values[self.rank] = call, x
            place.arrived += 1
            if place.arrived == place.size:
                place.met += 1
                place.changed.notify_all()
            place.wait_for(lambda: place.met > this, self._missing)
            values = list(place.values)
            if any(other != call for other in place.calls):
                there = ", ".join(f"rank {r}: {c}" for r, c in zip(self._ranks, place.calls, strict=True))
                place.failure = place.failure or f"the ranks do not do the same: {there}"
                place.changed.notify_all()
                raise ExecutionError(place.failure, "give every rank the graph that was made for it", code="E375")
        self.waited_ns += perf_counter_ns() - start
        self.moved[call.partition(" ")[0]] += x.nbytes if gives else 0
        try:
            return answer(values)
        finally:  # what a rank gave stays as it is until all have read it
            with place.lock:
                place.read += 1
                if place.read == place.size:
                    place.arrived = place.read = 0
                    place.values = [None] * place.size
                    place.parted = place.met
                    place.changed.notify_all()
                place.wait_for(lambda: place.parted > this, self._missing)

    def _missing(self) -> str:
        here = self._place.values
        absent = [str(r) for r, value in zip(self._ranks, here, strict=True) if value is None]
        return f"rank {self._own} waited for rank {', '.join(absent) or 'none'}"


def local_group(size: int, timeout: float = 60.0) -> list[LocalCommunication]:
    """Return the ways of the ranks of a group of threads, one for each.

    >>> [way.rank for way in local_group(3)]
    [0, 1, 2]
    """
    places: dict[tuple[int, ...], _Place] = {}
    lock = Lock()
    return [LocalCommunication(rank, places, tuple(range(size)), lock, timeout) for rank in range(size)]
