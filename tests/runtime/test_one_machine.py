"""Processes of one machine that give each other arrays, here as threads."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.distributed import one_machine
from tensorlogic.runtime.distributed.one_machine import SMALL, Neighbours, find_neighbours

pytestmark = pytest.mark.skipif(not hasattr(one_machine.os, "memfd_create"), reason="Linux has such memory")


def together(size: int, act: Callable[[Neighbours], Any], timeout: float = 20.0) -> list[Any]:
    """Return what every rank does, each on a thread, or what it raises."""
    given: list[Any] = [None] * size
    barrier = threading.Barrier(size)

    def run(rank: int) -> Any:
        def gather(x: np.ndarray) -> Sequence[np.ndarray]:
            given[rank] = x
            barrier.wait()
            found = list(given)
            barrier.wait()
            return found

        near = find_neighbours(rank, size, gather, timeout)
        assert near is not None
        try:
            return act(near)
        except Exception as error:
            return error
        finally:
            near.close()

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))


@pytest.mark.parametrize("count", [0, 3, SMALL // 8 + 1])
def test_every_rank_gets_what_all_give(count: int) -> None:
    def act(near: Neighbours) -> list[float]:
        sums = []
        for turn in range(5):  # more than there are rooms
            values = near.exchange("call", np.full(count, near.rank + turn, "float64"), 8 * count)
            assert values is not None
            sums.append(sum(v[: 8 * count].view("float64").sum() for v in values))
        return sums

    for sums in together(3, act):
        assert sums == [count * (3 + 3 * turn) for turn in range(5)]


def test_a_rank_that_runs_ahead_of_one_that_does_not_read_fills_no_socket_for_good() -> None:
    labels = [f"started {n}" for n in range(600)]  # more messages than a socket holds

    def act(near: Neighbours) -> int:
        for label in labels:
            near.begin(label, [np.full(100, near.rank, "uint8")], 100)
        return sum(int(v.sum()) for label in reversed(labels) for v in near.end(label))

    assert together(2, act) == [100 * len(labels)] * 2


def test_ranks_that_do_different_things_are_told_both() -> None:
    def act(near: Neighbours) -> Any:
        return near.exchange("all_reduce add" if near.rank else "all_gather 0", np.ones(2), 16)

    first, second = together(2, act)
    assert isinstance(first, tl.ExecutionError) and first.diagnostic.code == "E375"
    assert "rank 0: all_gather 0 of 16 bytes, rank 1: all_reduce add of 16 bytes" in str(first)
    assert isinstance(second, Exception)


def test_a_rank_that_is_gone_or_late_is_not_waited_for_forever() -> None:
    done = threading.Event()

    def gone(near: Neighbours) -> Any:
        return near.exchange("call", np.ones(2), 16) if near.rank == 0 else None

    assert "rank 1 is gone" in str(together(2, gone)[0])

    def late(near: Neighbours) -> Any:
        if near.rank:
            done.wait(20)
            return None
        try:
            return near.exchange("call", np.ones(2), 16)
        finally:
            done.set()

    assert str(together(2, late, timeout=0.2)[0]) == "timed out"


def test_no_memory_left_is_agreed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_machine, "MOST_BYTES", 0)
    assert together(2, lambda near: near.exchange("call", np.ones(SMALL), 8 * SMALL)) == [None, None]
    assert together(2, lambda near: near.begin("started 1", [np.ones(SMALL)], 8 * SMALL)) == [False, False]


def test_many_ranks_and_other_machines_take_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_neighbours(0, one_machine.MOST_RANKS + 1, lambda x: [x], 1.0) is None
    elsewhere = lambda x: [x, np.roll(x, 1)]  # noqa: E731
    assert find_neighbours(0, 2, elsewhere, 1.0) is None
