"""Graphs on several ranks that are threads: the answers of one, faults that are named, and figures that were measured."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.distributed.local import local_group
from tensorlogic.runtime.distributed.resident import Resident
from tensorlogic.testing import failing_at

S = tl.DistributedParallelismStrategy
RNG = np.random.default_rng(0)


def layers(count=3):
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 8), "float32")
    for n in range(count):
        h = b.tanh(h @ b.input(f"w{n}", (8, 8), "float32"))
    return b.build(y=h, loss=b.mean(b.square(h)), top=b.max(h, axis=0))


def inputs(rows=20, count=3):
    return {"x": RNG.normal(size=(rows, 8)).astype("f4")} | {
        f"w{n}": RNG.normal(size=(8, 8)).astype("f4") for n in range(count)
    }


def devices(count):
    return [tl.Device.CPU(n) for n in range(count)]


STRATEGIES = {
    "data": S.DataParallel(3),
    "model": S.ModelParallel(tl.ShardingSpec().shard_tensor("w0", 1, 3).shard_tensor("w2", 0, 3)),
    "pipeline": S.PipelineParallel(3, 7),
    "hybrid": S.Hybrid(2, 2, 2),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_gives_the_answer_of_one_device(name):
    graph, given = layers(), inputs()
    config = tl.DistributedConfig(devices(8 if name == "hybrid" else 3), strategy=STRATEGIES[name])
    executor = tl.Executor()
    for _ in range(2):
        outputs = executor.execute_distributed(graph, given, config)
        for key, value in tl.Executor().execute(graph, given).items():
            np.testing.assert_allclose(outputs[key], value, rtol=1e-5, atol=1e-6)
            assert outputs[key].dtype == value.dtype
            assert not np.shares_memory(outputs[key], given["x"])
    stats = executor.get_distributed_stats()
    assert len(stats.ranks) == config.mesh.size and 0 < stats.efficiency <= 1
    assert stats.waiting_time_ms <= stats.communication_time_ms
    assert sum(stats.bytes.values()) > 0
    assert "efficiency" in str(stats)


def test_a_training_step_is_that_of_one_device():
    b = tl.GraphBuilder()
    x, w, t = b.input("x", ("n", 5), "float64"), b.input("w", (5, 2), "float64"), b.input("t", ("n", 2), "float64")
    step = tl.value_and_grad(b.build(loss=b.mean(b.square(b.relu(x @ w) - t))), wrt=["w"])
    given = {"x": RNG.normal(size=(17, 5)), "w": RNG.normal(size=(5, 2)), "t": RNG.normal(size=(17, 2))}
    outputs = tl.Executor().execute_distributed(step, given, tl.DistributedConfig(devices(4)))
    want = tl.Executor().execute(step, given)
    np.testing.assert_allclose(outputs["w"], want["w"], rtol=1e-12)


def test_equal_runs_have_equal_bits():
    graph, given = layers(), inputs()
    executor, config = tl.Executor(), tl.DistributedConfig(devices(3))
    first = executor.execute_distributed(graph, given, config)
    for _ in range(5):
        for a, b in zip(first, executor.execute_distributed(graph, given, config), strict=True):
            np.testing.assert_array_equal(a, b)


def test_an_error_names_the_rank_and_stops_the_others():
    graph, given = layers(), inputs()
    executor = tl.Executor(wrap=[failing_at("tanh", call=2, error=ConnectionError("gone"))])
    before = threading.active_count()
    with pytest.raises(tl.TensorLogicError, match=r"rank \d: .*gone"):
        executor.execute_distributed(graph, given, tl.DistributedConfig(devices(3), timeout=20))
    assert threading.active_count() == before
    executor.execute_distributed(graph, given, tl.DistributedConfig(devices(3)))  # and the next run is like any other


def test_a_trace_shows_every_rank():
    graph, given = layers(), inputs()
    executor = tl.Executor()
    with tl.trace() as trace:
        executor.execute_distributed(graph, given, tl.DistributedConfig(devices(3)))
    assert {event.device for event in trace.events() if event.device} >= {"cpu:0", "cpu:1", "cpu:2"}


def test_a_rank_that_does_not_come_is_named():
    ways = local_group(3, timeout=0.1)

    def meet(rank):
        with pytest.raises(tl.ExecutionError, match="rank 2"):
            ways[rank].all_reduce(np.ones(2), "add")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(meet, range(2)))


def test_ranks_that_do_different_things_are_named():
    ways = local_group(2, timeout=5)

    def meet(rank):
        with pytest.raises(tl.ExecutionError, match="do not do the same: rank 0: all_reduce add, rank 1: all_gather"):
            (ways[0].all_reduce(np.ones(2), "add") if rank == 0 else ways[1].all_gather(np.ones(2), 0, 4))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(meet, range(2)))


def test_a_collective_alone_says_how_to_run_it():
    b = tl.GraphBuilder()
    from tensorlogic.ir import ops

    graph = b.build(y=b.apply(ops.AllReduce("data", 2, 0), b.input("x", (2,))))
    with pytest.raises(tl.ExecutionError, match="execute_distributed"):
        tl.Executor().execute(graph, {"x": np.ones(2)})


UNEQUAL = tl.ShardingSpec().shard_tensor("v", 0, 2).shard_tensor("w", 0, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.DistributedConfig([]), "no devices"),
        (lambda: tl.DistributedConfig(devices(3), strategy=S.DataParallel(4)), "needs 4 devices"),
        (lambda: tl.DistributedConfig(devices(3), communication="toch"), "not 'toch'"),
        (lambda: tl.DistributedConfig(devices(2), timeout=0), "timeout"),
        (lambda: S.DataParallel(0), "num_replicas"),
        (lambda: tl.DistributedConfig(devices(2), strategy=S.ModelParallel(tl.ShardingSpec())), "names no tensor"),
        (lambda: tl.DistributedConfig(devices(2), strategy=S.ModelParallel(UNEQUAL)), "'v' into 2, 'w' into 4"),
        (lambda: run(S.ModelParallel(tl.ShardingSpec().shard_tensor("w9", 0, 2))), "no input 'w9'"),
        (lambda: run(S.DataParallel(2, over="m")), "no size and no input 'm'"),
        (lambda: run(S.DataParallel(2), rows=1), "which 2 ranks cannot share"),
        (lambda: run(S.DataParallel(2), rows=0), "0 places, which 2 ranks cannot share"),
        (lambda: run(S.PipelineParallel(2, 4), count=0), "cannot be cut into 2 stages"),
    ],
)
def test_mistakes(make, message):
    with pytest.raises(tl.TensorLogicError, match=message):
        make()


def run(strategy, rows=4, count=1):
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 8), "float32")
    for n in range(count):
        h = b.tanh(h @ b.input(f"w{n}", (8, 8), "float32"))
    config = tl.DistributedConfig(devices(2), strategy=strategy)
    return tl.Executor().execute_distributed(b.build(y=h), inputs(rows, count), config)


@pytest.mark.parametrize(
    ("make", "hint"),
    [
        (
            lambda: tl.DistributedConfig(devices(2), strategy=S.ModelParallel(tl.ShardingSpec())),
            'shard_tensor("w", 0, 4)',
        ),
        (lambda: run(S.DataParallel(2), rows=0), "run it whole: executor.execute"),
        (lambda: run(S.DataParallel(2), rows=1), "use at most 1 ranks"),
    ],
)
def test_mistakes_say_what_to_write(make, hint):
    with pytest.raises(tl.TensorLogicError) as found:
        make()
    assert hint in str(found.value)


@pytest.mark.parametrize("communication", ["local", "torch"])
def test_devices_that_are_not_there_are_refused_before_anything_runs(communication):
    b = tl.GraphBuilder()
    graph = b.build(total=b.sum(b.input("x", ("n",), "float64")))
    cards = tl.DistributedConfig(
        [tl.Device.CPU(0), tl.Device.GPU(1)], communication
    )  # which a prediction may be made for
    calls = [
        lambda: tl.Executor().execute_distributed(graph, {"x": np.ones(4)}, cards),
        lambda: Resident(tl.Executor(), graph, [], cards).run({"x": np.ones(4)}),
    ]
    for call in calls:
        with pytest.raises(tl.InputError, match=r"the numpy backend has no Device\.GPU\(1\) here") as found:
            call()
        assert found.value.diagnostic.code == "E377" and "Device.CPU(n) for n in range(2)" in str(found.value)
