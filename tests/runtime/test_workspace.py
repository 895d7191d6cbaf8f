"""The pools: what they give never overlaps, what somebody holds is never given again, and the figures add up."""

from __future__ import annotations

import gc
import os
import random
import re
import subprocess
import sys
import threading
import tracemalloc
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from forked import in_child
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import tensorlogic as tl
from tensorlogic import AllocationStrategy, MemoryPool, SharedWorkspacePool, WorkspacePool
from tensorlogic.runtime.arena import ALIGN, ARENA, Arena, PoolStats
from tensorlogic.runtime.workspace import Workspace, WorkspaceStats
from tensorlogic.store import Lock

STRATEGIES = list(AllocationStrategy)
MB = 1 << 20


# the memory pool


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "bool", "int8", "uint8", "complex128", "float16", np.int64, float]
)
@pytest.mark.parametrize("shape", [(3, 4), (), (0,), (5, 0, 2), (7,), 7, [2, 3], (np.int64(4), 2)])
def test_arrays_are_aligned_and_contiguous(shape, dtype):
    pool = MemoryPool()
    x = pool.allocate(shape, dtype)
    like = np.empty(shape, dtype)
    assert (x.shape, x.dtype) == (like.shape, like.dtype)
    assert x.ctypes.data % 64 == 0
    assert x.flags.c_contiguous
    assert x.flags.writeable
    x[...] = 1
    assert np.all(x == 1)
    pool.deallocate(x)
    assert pool.stats().bytes_in_use == 0


def test_memory_is_used_again_by_another_shape_and_dtype():
    pool = MemoryPool()
    x = pool.allocate((64, 10))
    address = x.ctypes.data
    pool.deallocate(x)
    del x
    y = pool.allocate((32, 40), "float32")
    assert y.ctypes.data == address
    assert pool.stats() == PoolStats(2, 1, bytes_in_use=5120, bytes_kept=0, peak_bytes=5120)
    assert pool.stats().reuse_rate == 0.5
    assert MemoryPool().stats().reuse_rate == 0


def test_two_arrays_in_use_never_share_memory():
    pool = MemoryPool()
    rng = random.Random(0)
    held: dict[int, np.ndarray] = {}
    for n in range(2000):
        if held and rng.random() < 0.5:
            key = rng.choice(list(held))
            x = held.pop(key)
            assert np.all(x == key)
            pool.deallocate(x)
            del x
        else:
            held[n] = pool.allocate((rng.randrange(40), rng.randrange(1, 40)), "int64")
            held[n][...] = n
    assert all(np.all(x == n) for n, x in held.items())
    stats = pool.stats()
    assert stats.allocations > stats.reuses > 0
    assert stats.peak_bytes >= stats.bytes_in_use >= sum(x.nbytes for x in held.values())
    for key in list(held):
        pool.deallocate(held.pop(key))
    assert pool.stats().bytes_in_use == 0
    pool.clear()
    assert pool.stats().bytes_kept == 0


def test_what_the_caller_still_has_is_not_overwritten():
    pool = MemoryPool()
    x = pool.allocate(1000)
    x[:] = 7
    pool.deallocate(x)
    y = pool.allocate(1000)  # x still has its memory
    y[:] = 9
    assert np.all(x == 7)
    part = memoryview(x)  # something else than an array that shows it
    del x
    z = pool.allocate(1000)
    z[:] = 9
    assert np.all(np.asarray(part) == 7)
    assert pool.stats().reuses == 0
    del part
    assert pool.allocate(1000) is not None
    assert pool.stats().reuses == 1


def test_a_loop_that_rebinds_one_name_uses_two_chunks():
    pool = MemoryPool()
    for _ in range(10):
        x = pool.allocate(100)  # the last round's array is alive until this is bound
        pool.deallocate(x)
    assert pool.stats().reuses == 8
    assert pool.stats().bytes_kept == 2 * 832


def test_a_view_that_somebody_keeps_is_an_error():
    pool = MemoryPool()
    x = pool.allocate((4, 4))
    view, turned = x[1:], x.T.ravel(order="K")
    with pytest.raises(
        tl.ViewError, match=r"2 other arrays still show the memory of the array float64\[4, 4\]"
    ) as error:
        pool.deallocate(x)
    assert error.value.diagnostic.code == "E954"
    assert "view.copy()" in str(error.value)
    del turned
    with pytest.raises(tl.ViewError, match="1 other array still shows the memory"):
        pool.deallocate(x)
    assert pool.stats().bytes_in_use == 128
    del view
    pool.deallocate(x)
    assert pool.stats().bytes_in_use == 0


def test_the_only_view_left_may_be_given_back():
    pool = MemoryPool()
    flat = pool.allocate((4, 4)).reshape(16)
    pool.deallocate(flat)
    assert pool.stats().bytes_kept == 128


def test_giving_back_twice_or_what_is_not_the_pools():
    pool, other = MemoryPool(), MemoryPool()
    x = pool.allocate(3)
    pool.deallocate(x)
    with pytest.raises(tl.InputError, match=r"the array float64\[3\] was given back before"):
        pool.deallocate(x)
    with pytest.raises(tl.InputError, match="does not come from this pool"):
        other.deallocate(x)
    for foreign in (np.empty(3), np.empty(3)[1:], None, [1.0], memoryview(b"abc")):
        with pytest.raises(tl.InputError, match="does not come from this pool"):
            pool.deallocate(foreign)
    assert pool.stats().bytes_in_use == 0


@pytest.mark.parametrize("shape", [(-1,), (-2, -3), (2.0,), ("a",), None, "ab", (2**70,), (2**40, 2**30), (10**13,)])
def test_shapes_that_cannot_be(shape):
    pool = MemoryPool()
    with pytest.raises((tl.ShapeError, tl.OutOfMemoryError)):
        pool.allocate(shape)
    assert pool.stats() == PoolStats(0, 0, 0, 0, 0)


@pytest.mark.parametrize("dtype", [object, "O", "no such", "U", "S0", 3])
def test_dtypes_that_cannot_be(dtype):
    with pytest.raises(tl.DTypeError):
        MemoryPool().allocate(3, dtype)


@pytest.mark.parametrize("bound", [-1, 1.5, True, None, "1"])
def test_bounds_that_cannot_be(bound):
    with pytest.raises(tl.InputError, match="max_bytes is a number of bytes"):
        MemoryPool(bound)


def test_what_exceeds_the_bound_goes_back_to_the_system():
    pool = MemoryPool(max_bytes=3 * MB)
    tracemalloc.start()
    try:
        held = [pool.allocate(MB, "uint8") for _ in range(6)]
        assert tracemalloc.get_traced_memory()[0] > 6 * MB
        while held:
            pool.deallocate(held.pop())
        assert pool.stats().bytes_kept == 3 * MB
        assert tracemalloc.get_traced_memory()[0] < 3.1 * MB
        pool.clear()
        assert tracemalloc.get_traced_memory()[0] < 0.1 * MB
    finally:
        tracemalloc.stop()


def test_what_was_free_for_longest_goes_first():
    pool = MemoryPool(max_bytes=2048)
    for size in (1024, 512, 768):
        pool.deallocate(pool.allocate(size, "uint8"))
    assert pool.stats().bytes_kept == 1280
    for size, reused in ((512, 1), (768, 2), (1024, 2)):
        pool.deallocate(pool.allocate(size, "uint8"))
        assert pool.stats().reuses == reused
    huge = pool.allocate(4096, "uint8")  # more than may be kept
    pool.deallocate(huge)
    assert pool.stats().bytes_kept <= 2048
    assert MemoryPool(0).allocate(3).shape == (3,)


def test_an_array_that_is_dropped_is_no_leak():
    pool = MemoryPool()
    tracemalloc.start()
    try:
        for _ in range(50):
            pool.allocate(MB, "uint8")
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 0.1 * MB
    finally:
        tracemalloc.stop()
    assert pool.stats().bytes_in_use == 0
    assert pool.stats().peak_bytes <= 2 * MB
    x = pool.allocate(10)
    del pool
    x[:] = 1  # an array outlives its pool
    assert x.sum() == 10


def test_the_pool_prints():
    pool = MemoryPool()
    x = pool.allocate(1)
    assert repr(pool) == "MemoryPool(1 allocation, 0% reused; 64 B in use, 0 B kept, at most 64 B in use)"
    pool.deallocate(x)


def _in_threads(work, count=8):
    failed = []

    def guarded(n):
        try:
            work(n)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(n,)) for n in range(count)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    if failed:
        raise failed[0]


def test_threads_share_a_memory_pool():
    pool = MemoryPool()

    def work(n):
        rng = random.Random(n)
        for k in range(300):
            x = pool.allocate(rng.randrange(1, 300), "int64")
            x[:] = n * 1000 + k
            assert np.all(x == n * 1000 + k)
            if rng.random() < 0.9:
                pool.deallocate(x)
            del x

    _in_threads(work)
    stats = pool.stats()
    assert stats.allocations == 2400
    assert stats.bytes_in_use == 0


# workspaces


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_blocks_are_cut_released_and_joined(strategy):
    pool = WorkspacePool(strategy, capacity=4096)
    works = [pool.allocate(n) for n in (1000, 10, 500, 0)]
    assert [w.asked for w in works] == [1000, 10, 500, 0]
    spans = sorted((w.offset, w.offset + w.size) for w in works)
    assert all(a[1] <= b[0] for a, b in pairwise(spans))
    assert all(w.array().ctypes.data % 64 == 0 for w in works)
    stats = pool.stats()
    assert (stats.hits, stats.misses, stats.asked) == (4, 0, 1510)
    assert stats.efficiency == 1510 / sum(w.size for w in works)
    for w in works:
        pool.release(w)
    pool.defragment()
    assert pool.stats() == stats._replace(asked=0, taken=0, largest_free=4096)
    assert pool.stats().fragmentation == 0
    assert pool.stats().efficiency == 1


def _holes(strategy):
    """A pool with free blocks of 512, 128 and 256 bytes, in this order, and a free end of 1024."""
    pool = WorkspacePool(strategy, capacity=2176)
    works = [pool.allocate(n) for n in (512, 64, 128, 128, 256, 64)]
    for w in works[::2]:
        pool.release(w)
    return pool, works


@pytest.mark.parametrize(
    ("strategy", "asked", "offset", "size"),
    [
        (AllocationStrategy.BEST_FIT, 100, 576, 128),
        (AllocationStrategy.BEST_FIT, 200, 832, 256),
        (AllocationStrategy.BEST_FIT, 300, 0, 320),
        (AllocationStrategy.FIRST_FIT, 100, 0, 128),
        (AllocationStrategy.FIRST_FIT, 600, 1152, 640),
        (AllocationStrategy.EXACT_FIT, 128, 576, 128),
        (AllocationStrategy.EXACT_FIT, 500, 0, 512),
        (AllocationStrategy.EXACT_FIT, 192, 1152, 192),  # no block of this size: cut from the end
        (AllocationStrategy.POWER_OF_TWO, 130, 832, 256),
        (AllocationStrategy.POWER_OF_TWO, 300, 0, 512),
    ],
)
def test_which_block_a_strategy_takes(strategy, asked, offset, size):
    pool, works = _holes(strategy)
    assert pool.stats().largest_free == 1024
    w = pool.allocate(asked)
    assert (w.offset, w.size) == (offset, size)
    assert pool.stats().misses == 0
    assert works[1].array().size == 64


def test_exact_fit_keeps_sizes_until_they_are_needed():
    pool = WorkspacePool(AllocationStrategy.EXACT_FIT, capacity=1024, limit=1024)
    works = [pool.allocate(256) for _ in range(4)]
    for w in works:
        pool.release(w)
    assert pool.stats().largest_free == 256  # four blocks, ready for the same size
    assert pool.stats().fragmentation == 0.75
    assert pool.allocate(1024).size == 1024  # now they had to be joined
    assert pool.stats().misses == 0


def test_defragmenting_joins_neighbours_and_empty_arenas():
    pool = WorkspacePool(AllocationStrategy.EXACT_FIT, capacity=512, growth=1)
    first = [pool.allocate(256), pool.allocate(256)]
    more = [pool.allocate(512), pool.allocate(512)]
    kept = first[1].array(4, "float64")
    kept[:] = [1, 2, 3, 4]
    assert pool.stats().arenas == 3
    pool.release(first[0])
    for w in more:
        pool.release(w)
    assert pool.defragment() == 512  # 512 before, 1024 now
    stats = pool.stats()
    assert (stats.arenas, stats.capacity, stats.largest_free) == (2, 1536, 1024)
    assert kept.tolist() == [1, 2, 3, 4]  # in use, so not moved
    assert first[1].array(4, "float64").tolist() == [1, 2, 3, 4]
    assert pool.allocate(1024).arena == 3
    assert pool.stats().misses == 2
    assert pool.defragment() == 0


def test_growth_and_its_limit():
    pool = WorkspacePool(capacity=1024, growth=2, limit=3072)
    a = pool.allocate(1024)
    b = pool.allocate(64)
    stats = pool.stats()
    assert (stats.capacity, stats.arenas, stats.hits, stats.misses, stats.hit_rate) == (2048, 2, 1, 1, 0.5)
    c = pool.allocate(1000)  # doubling would be too much
    assert pool.stats().capacity == 3072
    with pytest.raises(tl.OutOfMemoryError) as error:
        pool.allocate(2000)
    text = str(error.value)
    assert "no block of 2.0 KiB is free: 2.1 KiB of 3.0 KiB are taken" in text
    assert "the largest free block has 960 B, and the limit is 3.0 KiB" in text
    assert "raise the limit" in text
    assert pool.stats().misses == 3
    assert pool.stats().taken == 1024 + 64 + 1024
    for w in (a, b, c):
        pool.release(w)
    assert pool.allocate(3072).size == 3072  # the arenas are empty: one takes their place
    assert pool.stats().arenas == 1


def test_a_request_larger_than_growth_gets_its_own_size():
    pool = WorkspacePool(capacity=0)
    assert pool.stats().capacity == 0
    assert pool.allocate(5000).size == 5056
    assert pool.allocate(100_000).size == 100_032
    one_by_one = WorkspacePool(capacity=64, growth=1)
    for _ in range(4):
        one_by_one.allocate(64)
    assert one_by_one.stats().capacity == 256


def test_an_empty_arena_gives_way_to_a_larger_one_within_the_limit():
    pool = WorkspacePool(capacity=1024, limit=1536)
    assert pool.allocate(1500).size == 1536
    assert (pool.stats().capacity, pool.stats().arenas) == (1536, 1)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_block_waits_while_an_array_shows_it(strategy):
    pool = WorkspacePool(strategy, capacity=1024, limit=1024)
    w = pool.allocate(1000)
    view = w.array((10, 10), "float64")[2:].T
    view[...] = 5
    pool.release(w)
    stats = pool.stats()
    assert (stats.taken, stats.waiting, stats.free) == (0, 1024, 0)
    assert "1.0 KiB waiting" in str(stats)
    with pytest.raises(tl.OutOfMemoryError, match="wait for arrays that still show them"):
        pool.allocate(10)
    assert pool.defragment() == 0
    assert np.all(view == 5)
    del view
    assert pool.allocate(1000).offset == 0
    assert pool.stats().waiting == 0


def test_arrays_of_a_workspace():
    pool = WorkspacePool(capacity=1024)
    w = pool.allocate(100)
    assert w.array().shape == (100,)
    assert w.array(dtype="float64").shape == (12,)
    assert w.array((0, 3), "float32").shape == (0, 3)
    assert w.array((), bool).shape == ()
    with pytest.raises(tl.ShapeError, match=r"float64\[13\] takes 104 bytes, and workspace 0 has 100"):
        w.array(13, "float64")
    with pytest.raises(tl.DTypeError):
        w.array(1, object)
    with pytest.raises(tl.ShapeError):
        w.array((-1, 2))
    x = w.array((5, 5), "float32")
    x[...] = np.arange(25).reshape(5, 5)
    assert w.array((25,), "float32").tolist() == list(range(25))  # the same memory


def test_releasing_twice_or_what_is_not_the_pools():
    pool, other = WorkspacePool(capacity=256), WorkspacePool(capacity=256)
    w = pool.allocate(10)
    with pytest.raises(tl.InputError, match="does not come from this pool"):
        other.release(w)
    pool.release(w)
    with pytest.raises(tl.InputError, match=r"Workspace\(id=0, arena=0, offset=0, size=64\) was released before"):
        pool.release(w)
    with pytest.raises(tl.InputError, match="workspace 0 was released"):
        w.array()
    with pytest.raises(tl.InputError):
        pool.release(None)


@pytest.mark.parametrize(
    "options",
    [{"strategy": "best"}, {"growth": 0.5}, {"growth": float("nan")}, {"growth": float("inf")}, {"capacity": -1},
     {"capacity": 1.5}, {"limit": -5}, {"capacity": 2048, "limit": 1024}],
)  # fmt: skip
@pytest.mark.parametrize("kind", [WorkspacePool, SharedWorkspacePool])
def test_options_that_cannot_be(kind, options):
    with pytest.raises(tl.InputError):
        kind(**options)


@pytest.mark.parametrize("nbytes", [-1, 1.5, None, "10", True])
def test_sizes_that_cannot_be(nbytes):
    with pytest.raises(tl.InputError, match="nbytes is a number of bytes"):
        WorkspacePool(capacity=64).allocate(nbytes)


def test_workspace_figures_print():
    pool = WorkspacePool(capacity=1024)
    works = [pool.allocate(100) for _ in range(3)]
    pool.release(works[1])
    assert str(pool.stats()) == (
        "3 hits, 0 misses; 256 B of 1.0 KiB taken in 1 arena, efficiency 78%, fragmentation 17%, peak 384 B"
    )
    assert WorkspaceStats(0, 0, 0, 0, 0, 0, 0, 0, 0).hit_rate == 0


def test_threads_share_workspaces():
    pool = SharedWorkspacePool(AllocationStrategy.FIRST_FIT, capacity=4096)

    def work(n):
        rng = random.Random(n)
        for k in range(200):
            w = pool.allocate(rng.randrange(1, 2000))
            w.array()[:] = (n + k) % 251
            if k % 50 == 0:
                pool.defragment()
            assert np.all(w.array() == (n + k) % 251)
            pool.release(w)

    _in_threads(work)
    stats = pool.stats()
    assert stats.hits + stats.misses == 1600
    assert (stats.taken, stats.asked, stats.waiting) == (0, 0, 0)
    pool.defragment()
    assert pool.stats().largest_free == pool.stats().capacity


class Workspaces(RuleBasedStateMachine):
    """Any order of calls: blocks keep what was written into them, and every byte is free, taken or waiting."""

    def __init__(self):
        super().__init__()
        self.pool = WorkspacePool(self.strategy, capacity=1024, growth=1.5, limit=8192)
        self.held: dict[int, Workspace] = {}
        self.kept: dict[int, np.ndarray] = {}  # arrays of blocks released since
        self.requests = self.peak = 0

    @rule(nbytes=st.one_of(st.integers(0, 300), st.integers(0, 9000)))
    def allocate(self, nbytes):
        self.requests += 1
        try:
            w = self.pool.allocate(nbytes)
        except tl.OutOfMemoryError:
            size = max(64, nbytes)
            rounded = 1 << (size - 1).bit_length() if self.strategy is AllocationStrategy.POWER_OF_TWO else size
            assert self.pool.stats().largest_free < rounded
            return
        assert w.size >= w.asked == nbytes
        w.array()[:] = w.id % 251
        self.held[w.id] = w

    @precondition(lambda self: self.held)
    @rule(data=st.data(), keep=st.booleans())
    def release(self, data, keep):
        w = self.held.pop(data.draw(st.sampled_from(sorted(self.held))))
        if keep and w.asked:
            self.kept[w.id] = w.array()[: w.asked // 2 + 1]
        self.pool.release(w)

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def drop(self, data):
        del self.kept[data.draw(st.sampled_from(sorted(self.kept)))]

    @rule()
    def defragment(self):
        before = self.pool.stats()
        grown = self.pool.defragment()
        after = self.pool.stats()
        assert grown >= 0
        assert after.largest_free == before.largest_free + grown
        assert (after.capacity, after.taken) == (before.capacity, before.taken)

    @invariant()
    def nothing_was_overwritten(self):
        for n, w in self.held.items():
            assert np.all(w.array() == n % 251)
        for n, x in self.kept.items():
            assert np.all(x == n % 251)

    @invariant()
    def figures_add_up(self):
        stats = self.pool.stats()
        self.peak = max(self.peak, stats.taken)
        assert stats.taken == sum(w.size for w in self.held.values())
        assert stats.asked == sum(w.asked for w in self.held.values())
        assert stats.hits + stats.misses == self.requests
        assert stats.peak_bytes == self.peak
        assert (stats.waiting > 0) == bool(self.kept)
        assert stats.free == sum(size for a in self.pool._arenas for _, size in a.free)
        assert stats.capacity <= 8192
        assert 0 <= stats.fragmentation <= 1
        assert 0 <= stats.efficiency <= 1
        blocks = [(w.arena, w.offset, w.size) for w in self.held.values()]
        blocks += [(a.number, *span) for a in self.pool._arenas for span in a.free]
        for a, b in pairwise(sorted(blocks)):
            assert a[0] != b[0] or a[1] + a[2] <= b[1]

    def teardown(self):
        self.kept.clear()
        for w in self.held.values():
            self.pool.release(w)
        self.pool.defragment()
        stats = self.pool.stats()
        assert stats.taken == stats.waiting == 0
        assert stats.largest_free == stats.capacity


def _machine(strategy):
    test = type(f"Test{strategy.name}", (Workspaces,), {"strategy": strategy}).TestCase
    test.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
    return test


TestBestFit = _machine(AllocationStrategy.BEST_FIT)
TestFirstFit = _machine(AllocationStrategy.FIRST_FIT)
TestExactFit = _machine(AllocationStrategy.EXACT_FIT)
TestPowerOfTwo = _machine(AllocationStrategy.POWER_OF_TWO)


# the arena under them


def test_an_arena_gives_aligned_bytes_and_uses_them_again():
    arena = Arena()
    for nbytes in (0, 1, 64, 1000, 5_000_000):
        block = arena.take(nbytes)
        assert (block.dtype, block.shape, block.ctypes.data % ALIGN) == (np.uint8, (nbytes,), 0)
        block[...] = 3
        arena.give(block)
    part = arena.take(1000)[10:20]
    arena.give(part)  # any view of a block says which block it is
    other = arena.take(1000)
    assert not np.shares_memory(part, other)  # part is still held
    with pytest.raises(tl.InputError, match="given back before"):
        arena.give(part)
    with pytest.raises(tl.InputError, match="does not come from this pool"):
        ARENA.give(other)


def test_a_finalizer_may_give_back_while_the_arena_works():
    arena = Arena()
    block = arena.take(100)
    with arena._lock:  # as if it were in the middle of something, on another thread
        thread = threading.Thread(target=arena.give, args=(block,))
        thread.start()
        thread.join(5)
        assert not thread.is_alive()
    assert arena.stats().bytes_in_use == 0
    arena.trim()
    assert arena.stats().bytes_kept == 0


@pytest.mark.parametrize("line", range(1, 40))
def test_an_interrupt_at_any_line_leaves_the_arena_usable(line):
    """One between making a block and filling it in once broke every later call of the process."""
    arena, seen = Arena(most_free=4096), 0
    code = Arena.memory.__code__

    def tracer(frame, event, arg):
        nonlocal seen
        if frame.f_code is not code:
            return None
        if event == "line":
            seen += 1
            if seen == line:
                raise KeyboardInterrupt
        return tracer

    before = sys.gettrace()
    try:
        sys.settrace(tracer)
        arena.take(1000)
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    arena.stats()
    block = arena.take(1000)
    arena.give(block)
    del block
    for size in (1000, 50_000, 1000):
        arena.give(arena.take(size))
    arena.trim()
    assert arena.stats().bytes_kept == 0


def test_a_pool_may_show_the_memory_of_runs():
    pool = MemoryPool(arena=ARENA)
    before = pool.stats().bytes_in_use
    block = ARENA.take(1 << 16)
    assert pool.stats().bytes_in_use == before + (1 << 16)
    ARENA.give(block)
    assert pool.max_bytes == ARENA.most_free


FORK = """
import os, signal, threading
import tensorlogic as tl
from tensorlogic.runtime.arena import Arena

arena, store = Arena(), tl.Store(4)
store.put("a", 1)
held, go_on = threading.Event(), threading.Event()

def hold():
    with arena._lock, store._lock:
        held.set()
        go_on.wait(30)

thread = threading.Thread(target=hold)
thread.start()
held.wait(30)
child = os.fork()
if not child:
    signal.alarm(20)  # a child that hangs ends itself
    store.put("b", 2)
    os._exit(0 if store.get("b") == 2 and arena.take(10).size == 10 and arena.stats().allocations == 1 else 1)
go_on.set()
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.get("a") == 1  # the parent keeps what it has
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_does_not_wait_for_a_thread_of_its_parent():
    subprocess.run([sys.executable, "-c", FORK], check=True)  # in a process that has no other threads


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_lock_that_a_thread_holds_is_free_in_a_forked_process():
    lock, owned = Lock(), Lock()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go_on.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)

    def child() -> None:
        assert lock.acquire(timeout=10)
        assert owned._is_owned()  # type: ignore[attr-defined]

    with owned:  # the thread that forks is in the child too
        ended = in_child(child)
    go_on.set()
    thread.join()
    assert ended == 0


def test_no_lock_of_the_package_stays_held_in_a_forked_process():
    """All are of the class that is free after a fork, but two that are no mutexes: those who wait with them are not in the child."""
    others = {"backends/threads.py", "serve/outcomes.py"}
    source = Path(tl.__file__).parent
    for path in source.rglob("*.py"):
        for line in path.read_text(encoding="utf-8").splitlines():
            made = re.search(r"threading\.(R?Lock|Condition)\(\)|from threading import .*Lock", line)
            if made and path.relative_to(source).as_posix() not in others:
                raise AssertionError(f"{path}: {line.strip()}")
