"""Processes of one machine that give each other arrays, here as threads."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.combine import combine_to, combined
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

        near = None
        try:
            near = find_neighbours(rank, size, gather, timeout)
            assert near is not None
            return act(near)
        except Exception as error:
            return error
        finally:
            if near is not None:
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


def test_memory_that_is_used_up_is_so_on_every_rank_at_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_machine, "MOST_BYTES", 4 * 2 * 8 * SMALL)  # two rooms for two ranks, twice

    def act(near: Neighbours) -> list[bool]:
        found = []
        for label in "abcabc":
            found.append(near.begin(label, [np.ones(SMALL)], 8 * SMALL))
            if found[-1]:
                near.end(label)
        return found

    assert together(2, act) == [[True, True, False, True, True, False]] * 2


def total(near: Neighbours, label: str, x: np.ndarray, sums: int = 1) -> float:
    """Return the sum over all ranks of the first places of an array, which is exchanged some times."""
    for _ in range(sums):
        near.begin(label, [x], x.nbytes)
        found = sum(float(v.view("float64")[0]) for v in near.end(label))
    return found


@pytest.mark.parametrize("size", [1, SMALL])
@pytest.mark.parametrize("told", [False, True])
def test_sums_that_were_abandoned_are_no_part_of_later_ones(size: int, told: bool) -> None:
    def act(near: Neighbours) -> list[float]:
        near.begin("started 1", [np.full(size, 1.0 + 9 * near.rank)], 8 * size)
        if told:
            near.abandon()
        return [total(near, "started 1", np.full(size, n * (1 + 9.0 * near.rank)), 3) for n in (2, 3)]

    assert together(2, act) == [[22.0, 33.0]] * 2


@pytest.mark.parametrize("size", [1, SMALL])
def test_ranks_that_abandoned_different_numbers_of_sums_go_on_together(size: int) -> None:
    def act(near: Neighbours) -> float:
        for n in range(near.rank):  # a large one meets the others first, to find room for it
            near.begin(f"started {n}", [np.ones(1)], 8)
        near.abandon()
        return total(near, "started 0", np.full(size, 1.0 + near.rank), 3)

    assert together(3, act) == [6.0] * 3


@pytest.mark.parametrize("size", [1, SMALL])
def test_a_rank_that_saw_no_error_is_told_of_one_that_begins_anew(size: int) -> None:
    """Then it has seen one, too, and both go on."""

    def act(near: Neighbours) -> Any:
        total(near, "started 1", np.ones(size))
        if near.rank == 0:
            near.abandon()
            return total(near, "started 1", np.full(size, 2.0))
        with pytest.raises(tl.ExecutionError, match="rank 0: to begin anew after an error") as found:
            total(near, "started 1", np.full(size, 10.0))
        assert found.value.diagnostic.code == "E375"
        return total(near, "started 1", np.full(size, 20.0))

    assert together(2, act) == [22.0] * 2


def test_after_an_error_in_a_group_what_else_was_begun_is_gone() -> None:
    def act(near: Neighbours) -> float:
        near.begin("started 1", [np.ones(1)], 8)
        near.begin(f"started {2 + near.rank}", [np.ones(1)], 8)
        with pytest.raises(tl.ExecutionError, match="do not do the same"):
            near.end(f"started {2 + near.rank}")
        with pytest.raises(RuntimeError, match="started 1 was given up"):
            near.end("started 1")
        return total(near, "started 1", np.full(1, 5.0))

    assert together(2, act) == [10.0] * 2


def test_ranks_that_differ_are_told_so_while_their_sockets_are_full() -> None:
    both = threading.Barrier(2)

    def act(near: Neighbours) -> str | None:
        with pytest.raises(tl.ExecutionError) as found:
            for n in range(600):
                near.begin(f"started {n} on {near.rank}", [np.ones(100)], 800)
        both.wait(20)  # nobody has left
        return found.value.diagnostic.code

    assert together(2, act) == ["E375"] * 2


def test_many_sums_in_a_ring_of_ranks_that_each_wait_for_another() -> None:
    def act(near: Neighbours) -> int:
        for n in range(300):
            near.begin(f"started {n}", [np.full(SMALL, near.rank, "uint8")], SMALL)
            if n == 100 * near.rank:
                near.end("started 0")
        return sum(int(v[0]) for n in range(1, 300) for v in near.end(f"started {n}"))

    assert together(3, act) == [3 * 299] * 3


def test_a_rank_that_has_given_everything_may_leave() -> None:
    left = threading.Event()

    def act(near: Neighbours) -> Any:
        if near.rank == 1:
            left.wait(20)
        near.begin("call", [np.ones(1)], 8)
        if near.rank == 2:
            for way in near._sockets:
                if way is not None:
                    way.shutdown(socket.SHUT_WR)
            left.set()
        return len(near.end("call"))

    assert together(3, act) == [3] * 3


def test_a_rank_that_has_no_such_memory_still_takes_part_in_the_question(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    def gather(x: np.ndarray) -> Sequence[np.ndarray]:
        asked.append(bytes(x))
        return [x]

    here = one_machine._machine()
    monkeypatch.delattr(one_machine.os, "memfd_create")
    assert find_neighbours(0, 1, gather, 1.0) is None
    assert len(asked) == 1 and not asked[0].startswith(here)


def open_files() -> int:
    gc.collect()
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_silent_stranger_is_sent_away(monkeypatch: pytest.MonkeyPatch) -> None:
    strangers: list[socket.socket] = []
    listen, plain = socket.socket.listen, socket.socket

    class Listener(socket.socket):
        """Somebody else of this machine is there before the ranks."""

        def listen(self, backlog: int = 0, /) -> None:
            listen(self, backlog)
            strangers.append(plain(socket.AF_UNIX, socket.SOCK_SEQPACKET))
            strangers[-1].connect(self.getsockname())

    monkeypatch.setattr(one_machine.socket, "socket", Listener)
    assert together(2, lambda near: total(near, "a", np.ones(1)), timeout=5.0) == [2.0, 2.0]
    for stranger in strangers:
        stranger.close()


@pytest.mark.parametrize("lost", ["recv_fds", "send_fds"])
def test_ranks_that_do_not_meet_leave_nothing_open(monkeypatch: pytest.MonkeyPatch, lost: str) -> None:
    def gone(*args: Any) -> Any:
        if lost == "send_fds":
            raise BrokenPipeError("rank 1 is gone")
        return b"", [], 0, None

    monkeypatch.setattr(one_machine.socket, lost, gone)
    before = open_files()
    errors = together(2, lambda near: None, timeout=5.0)
    error = errors[lost == "recv_fds"]
    assert isinstance(error, OSError) and "is gone" in str(error)
    del errors, error
    assert open_files() == before


def test_many_ranks_and_other_machines_take_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_neighbours(0, one_machine.MOST_RANKS + 1, lambda x: [x], 1.0) is None
    elsewhere = lambda x: [x, np.roll(x, 1)]  # noqa: E731
    assert find_neighbours(0, 2, elsewhere, 1.0) is None


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_sums_into_an_array_are_those_of_an_array_of_their_own(dtype: str) -> None:
    values = [np.array([x], dtype) for x in (2048, 1, 1)]
    found = np.empty(1, dtype)
    combine_to("add", values, found)
    assert found[0] == combined("add", values)[0] == 2050
