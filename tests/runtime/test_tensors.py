"""The tensor cache: within its bound, by its policy, and nothing in it ever changes."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import EvictionPolicy, TensorCache


def _kept(cache: TensorCache) -> set[str]:
    return {k for k in "abcdef" if cache.contains(k)}


@pytest.mark.parametrize(
    ("policy", "left"),
    [
        (EvictionPolicy.LRU, {"a", "d"}),  # c was not asked for since b
        (EvictionPolicy.FIFO, {"c", "d"}),
        (EvictionPolicy.LFU, {"a", "d"}),
    ],
)
def test_the_policy_says_which_goes(policy, left):
    cache = TensorCache(policy, limit_mb=1)
    for key in "abcd":
        assert cache.insert(key, np.full(50_000, ord(key)))  # 0.4 MB each: two fit
        cache.get("a")
    assert _kept(cache) == left
    assert cache.stats().size == 800_000
    assert cache.stats().evictions == 2
    assert all(cache.get(k)[0] == ord(k) for k in left)


def test_figures():
    cache = TensorCache()
    assert cache.stats().hit_rate == 0
    cache.insert("a", np.ones(3))
    assert cache.get("a").tolist() == [1, 1, 1]
    assert cache.get("b") is None
    assert cache.stats() == tl.StoreStats(hits=1, misses=1, evictions=0, entries=1, size=24)
    assert ("a" in cache, "b" in cache, len(cache)) == (True, False, 1)
    assert cache.stats().hits == 1  # looking whether it is there is no use
    cache.clear()
    assert len(cache) == 0
    assert cache.get("a") is None
    assert cache.stats().size == 0
    assert repr(cache) == "TensorCache(0 tensors, 0 B of 953.7 MiB, LRU, hit rate 33%)"


def test_what_is_kept_does_not_change():
    cache = TensorCache()
    x = np.arange(6.0).reshape(2, 3)
    cache.insert("x", x)
    x[:] = 0
    found = cache.get("x")
    assert found.tolist() == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="read-only"):
        found[0, 0] = 9
    with pytest.raises(ValueError, match=r"read-only|WRITEABLE"):
        found.flags.writeable = True
    assert cache.get("x").reshape(6).shape == (6,)
    assert cache.get("x").shape == (2, 3)
    mine = found.copy()
    mine[:] = 7
    assert cache.get("x")[1, 2] == 5


def test_a_copy_is_made_only_where_something_could_change():
    cache = TensorCache()
    frozen = np.arange(4.0)
    frozen.flags.writeable = False
    cache.insert("frozen", frozen)
    assert np.shares_memory(cache.get("frozen"), frozen)
    cache.insert("again", cache.get("frozen"))
    assert np.shares_memory(cache.get("again"), frozen)
    cache.insert("bytes", np.frombuffer(b"abcd", "uint8"))
    assert cache.get("bytes").tolist() == [97, 98, 99, 100]

    x = np.arange(4.0)
    view = x.view()
    view.flags.writeable = False  # but x is not
    cache.insert("view", view)
    buffer = bytearray(8)
    wrapped = np.frombuffer(buffer, "uint8")
    wrapped.flags.writeable = False
    cache.insert("buffer", wrapped)
    x[:], buffer[0] = 9, 9
    assert cache.get("view").tolist() == [0, 1, 2, 3]
    assert cache.get("buffer")[0] == 0

    large = np.arange(1000.0)
    large.flags.writeable = False
    cache.insert("part", large[:2])  # a copy: it would keep all of large alive
    assert not np.shares_memory(cache.get("part"), large)


@pytest.mark.parametrize(
    "value",
    [np.float32(2.5), 3, True, [[1, 2], [3, 4]], np.zeros((0, 3)), np.array(1.0), np.array([True, False]),
     np.array([np.nan, np.inf]), np.ones((3, 4)).T, np.broadcast_to(np.int8(3), (4, 5)), np.arange(3, dtype=">i4")],
)  # fmt: skip
def test_all_kinds_of_values(value):
    cache = TensorCache()
    assert cache.insert(("key", 1), value)
    np.testing.assert_array_equal(cache.get(("key", 1)), value)
    assert not cache.get(("key", 1)).flags.writeable


def test_what_is_too_large_is_not_kept():
    cache = TensorCache(limit_mb=0.001)
    assert cache.insert("a", np.zeros(125))
    assert not cache.insert("a", np.zeros(126))  # and what was there is out of date
    assert cache.get("a") is None
    assert TensorCache(limit_mb=0).insert("none", np.zeros(0))


@pytest.mark.parametrize("value", [object(), "text", np.array(["a"]), [[1], [2, 3]], np.ma.masked_array([1], [True])])
def test_what_is_no_tensor_is_refused(value):
    with pytest.raises(tl.DTypeError):
        TensorCache().insert("a", value)


@pytest.mark.parametrize("limit", [-1, float("nan"), float("inf"), "10", None, True])
def test_limits_that_cannot_be(limit):
    with pytest.raises(tl.InputError, match="limit_mb is a number of megabytes"):
        TensorCache(EvictionPolicy.LRU, limit)


def test_a_policy_that_is_none():
    with pytest.raises(tl.InputError, match=r"write EvictionPolicy\.LRU"):
        TensorCache("LRU")


def test_threads_share_a_cache():
    cache = TensorCache(limit_mb=0.01)
    wrong = []

    def work(n: int) -> None:
        for k in range(300):
            cache.insert(k % 7, np.full(100 + k % 7, k % 7))
            found = cache.get((k + n) % 7)
            if found is not None and not (np.all(found == (k + n) % 7) and found.size == 100 + (k + n) % 7):
                wrong.append(found)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert cache.stats().size <= 10_000
    assert cache.stats().hits + cache.stats().misses == 1800


def _pipeline():
    b = tl.GraphBuilder()
    x, w = b.input("x", (3, 4), "float64"), b.input("w", (4, 2), "float64")
    return b.build(y=b.tanh(x @ w) * 2.0, t=x.T)


def test_as_a_wrapper_it_keeps_what_steps_give():
    rng = np.random.default_rng(0)
    first, second = ({"x": rng.random((3, 4)), "w": rng.random((4, 2))} for _ in range(2))
    cache, plain = TensorCache(), tl.Executor()
    executor = tl.Executor(wrap=[cache])
    for inputs in (first, second, first):
        out = executor.execute(_pipeline(), inputs)
        np.testing.assert_array_equal(out["y"], plain.execute(_pipeline(), inputs)["y"])
        out["y"][...] = 7  # the caller's own
    stats = cache.stats()
    assert (stats.hits, stats.misses) == (3, 6)  # contraction, tanh and product, each with two kinds of operands
    assert tl.Executor(wrap=[cache.wrap]).execute(_pipeline(), second)["y"].max() < 2
    assert cache.stats().hits == 6


def test_a_wrapper_tells_operands_apart_that_compare_equal():
    b = tl.GraphBuilder()
    graph = b.build(y=b.reciprocal(b.input("x", (), "float64")))
    executor = tl.Executor(wrap=[TensorCache()])
    assert executor.execute(graph, {"x": np.array(0.0)})["y"] == np.inf
    assert executor.execute(graph, {"x": np.array(-0.0)})["y"] == -np.inf
