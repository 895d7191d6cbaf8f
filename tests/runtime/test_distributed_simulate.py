"""Predictions of distributed runs: by hand where that is possible, by their own plans, and the strategy that is chosen by them."""

from __future__ import annotations

import json
import os
import threading

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.distributed import timing

S = tl.DistributedParallelismStrategy
RNG = np.random.default_rng(0)
PLAIN = {"flops": 1e9, "memory_bandwidth": 1e15, "bandwidth": 1e6, "latency": 1e-3, "call": 1e-12}


def devices(count):
    return [tl.Device.CPU(n) for n in range(count)]


def layers(count=8, width=64, rows="n", gradients=True):
    b = tl.GraphBuilder()
    h = b.input("x", (rows, width), "float32")
    for n in range(count):
        h = h @ b.input(f"w{n}", (width, width), "float32")
    graph = b.build(loss=b.sum(b.square(h)), y=h) if gradients else b.build(y=h)
    return tl.value_and_grad(graph, wrt=[f"w{n}" for n in range(count)], of="loss") if gradients else graph


def arrays(count, width, rows):
    given = {"x": RNG.normal(size=(rows, width)).astype("f4")}
    return given | {f"w{n}": (RNG.normal(size=(width, width)) / width**0.5).astype("f4") for n in range(count)}


def test_a_collective_costs_what_a_ring_or_a_tree_does():
    b = tl.GraphBuilder()
    graph = b.build(total=b.sum(b.input("x", ("n", 1000), "float32"), axis=0))
    big, small = (tl.Cluster(**PLAIN | {"latency": latency}) for latency in (1e-9, 1.0))
    for ranks in (2, 4, 64):
        config = tl.DistributedConfig(devices(ranks))
        ring = tl.simulate(graph, config, big, sizes={"n": 64})
        assert ring.stages[0].communication_seconds == pytest.approx(2 * (ranks - 1) / ranks * 4000 / 1e6, rel=1e-3)
        assert ring.bytes_per_link == {"data": round(2 * (ranks - 1) / ranks * 4000)}
        tree = tl.simulate(graph, config, small, sizes={"n": 64})
        assert tree.stages[0].communication_seconds == pytest.approx(2 * np.log2(ranks), rel=1e-2)


def test_the_bubble_is_that_of_equal_stages():
    fast = tl.Cluster(**PLAIN | {"bandwidth": 1e15, "latency": 1e-12})
    graph = layers(gradients=False)
    for stages, batches in ((2, 4), (4, 8), (8, 8)):
        config = tl.DistributedConfig(devices(stages), strategy=S.PipelineParallel(stages, 64 // batches))
        found = tl.simulate(graph, config, fast, sizes={"n": 64})
        assert found.micro_batches == batches
        assert found.bubble == pytest.approx((stages - 1) / (batches + stages - 1), rel=1e-6)


def test_schedules_differ_in_memory_alone():
    fast = tl.Cluster(**PLAIN | {"bandwidth": 1e15, "latency": 1e-12})
    found = {}
    for schedule in ("gpipe", "1f1b"):
        config = tl.DistributedConfig(devices(4), strategy=S.PipelineParallel(4, 4, schedule=schedule))
        found[schedule] = tl.simulate(layers(), config, fast, sizes={"n": 128})
    assert found["1f1b"].step_seconds == pytest.approx(found["gpipe"].step_seconds, rel=0.05)
    assert found["1f1b"].stages[0].live_batches == 4 and found["gpipe"].stages[0].live_batches == 32
    assert found["gpipe"].stages[0].kept_bytes == 8 * found["1f1b"].stages[0].kept_bytes
    assert found["1f1b"].memory_bytes < found["gpipe"].memory_bytes


def test_what_is_kept_and_sent_is_what_a_run_keeps_and_sends():
    graph, given = layers(6, 16), arrays(6, 16, 40)
    for strategy in (S.PipelineParallel(3, 4), S.PipelineParallel(2, 4, schedule="gpipe"), S.Hybrid(2, 1, 2, 8)):
        count = tl.runtime.distributed.config.mesh_of(strategy).size
        config = tl.DistributedConfig(devices(count), strategy=strategy)
        executor = tl.Executor()
        executor.execute_distributed(graph, given, config)
        stats = executor.get_distributed_stats()
        found = tl.simulate(graph, config, tl.Cluster(**PLAIN), given, executor=executor)
        assert max(own.kept_bytes for own in found.stages) == stats.kept_bytes
        sent = [rank.moved.get("send", 0) for rank in stats.ranks]
        assert max(own.link_bytes.get("stage", 0) for own in found.stages) == max(sent)


def test_devices_that_share_cores_are_slower_and_machines_are_linked_by_the_network():
    crowded = tl.Cluster(**PLAIN | {"machine_flops": 2e9})
    graph = layers(gradients=False)
    seconds = [
        tl.simulate(graph, tl.DistributedConfig(devices(n)), crowded, sizes={"n": 64}).step_seconds for n in (1, 2, 4)
    ]
    assert seconds == pytest.approx([seconds[0], seconds[0] / 2, seconds[0] / 2], rel=1e-3)
    net = {"devices_per_machine": 4, "network_bandwidth": 1e5, "network_latency": 1e-2}
    cluster = tl.Cluster(**PLAIN | net)
    near, far = (
        tl.simulate(layers(2), tl.DistributedConfig(devices(n)), cluster, sizes={"n": 64}).stages[0] for n in (4, 8)
    )
    assert far.communication_seconds > 5 * near.communication_seconds
    assert cluster.crowding(8) == 1


def test_ranks_wait_for_the_cores_that_they_share():
    graph = layers(gradients=False)
    shared = tl.Cluster(**PLAIN | {"cores_per_machine": 2})
    seconds = [
        tl.simulate(graph, tl.DistributedConfig(devices(n)), shared, sizes={"n": 64}).step_seconds for n in (1, 2, 4)
    ]
    assert seconds == pytest.approx([seconds[0], seconds[0] / 2, seconds[0] / 2], rel=1e-3)
    found = {}
    for cores in (1, 2, 3, 4):
        cluster = tl.Cluster(**PLAIN | {"bandwidth": 1e15, "latency": 1e-12, "cores_per_machine": cores})
        config = tl.DistributedConfig(devices(4), strategy=S.PipelineParallel(4, 8))
        found[cores] = tl.simulate(graph, config, cluster, sizes={"n": 64}).step_seconds
    unit = found[1] / (4 * 8)  # one core does the 8 micro-batches of all 4 stages in turn
    assert found[4] == pytest.approx((8 + 3) * unit, rel=1e-3)
    # two at a time, but for the first and the last unit, which are alone
    assert found[2] == pytest.approx((4 * 8 - 2) / 2 * unit + 2 * unit, rel=1e-3)
    assert found[4] < found[3] < found[2]


def test_what_stages_send_may_take_a_way_of_its_own():
    config = tl.DistributedConfig(devices(2), strategy=S.PipelineParallel(2, 64))
    slow = tl.Cluster(**PLAIN | {"send_bandwidth": 1e5, "send_latency": 0.5})
    one, other = (
        tl.simulate(layers(gradients=False), config, each, sizes={"n": 64}).step_seconds
        for each in (tl.Cluster(**PLAIN), slow)
    )
    handed = 64 * 64 * 4  # bytes, once
    assert other - one == pytest.approx(0.5 - 1e-3 + handed * (1e-5 - 1e-6), rel=1e-6)
    crowded = {"crowded_latency": 2.0, "cores_per_machine": 1}  # the same bytes, which the only core carries
    other = tl.simulate(layers(gradients=False), config, tl.Cluster(**PLAIN | crowded), sizes={"n": 64}).step_seconds
    assert other - one == pytest.approx(2.0 - 1e-3, rel=1e-6)
    measured = tl.Cluster.measure("local", ranks=1)
    assert measured.send_latency > 0 and measured.send_bandwidth > 0 and measured.crowded_latency > 0
    assert measured.cores_per_machine == os.cpu_count()


def test_steps_are_timed_on_as_many_ranks_at_once_as_compute_at_a_time(monkeypatch):
    asked = []
    real = timing.run_alone
    monkeypatch.setattr(timing, "run_alone", lambda *given: (asked.append(threading.get_ident()), real(*given))[1])
    graph, given, config = layers(4, 32), arrays(4, 32, 64), tl.DistributedConfig(devices(3))
    for cores in (1, 2, 8):
        asked.clear()
        tl.simulate(graph, config, tl.Cluster(**PLAIN), given, here=tl.Cluster(**PLAIN | {"cores_per_machine": cores}))
        rounds = len(asked) // min(cores, 3)
        assert len(asked) == rounds * min(cores, 3) and rounds >= timing.LEAST_ROUNDS


def test_a_thousand_devices_print_and_have_json():
    cluster = tl.Cluster(
        60e12, 2e12, 250e9, 5e-6, memory=80 << 30, devices_per_machine=8, network_bandwidth=25e9, network_latency=2e-5
    )
    config = tl.DistributedConfig(devices(1024), strategy=S.Hybrid(64, 4, 4))
    found = tl.simulate(layers(8, 1024), config, cluster, sizes={"n": 65536})
    text = json.loads(found.to_json())
    assert text["devices"] == 1024 and text["mesh"] == {"data": 64, "model": 4, "stage": 4}
    assert text["step_seconds"] == found.step_seconds and len(text["stages"]) == 4 and found.fits
    assert "predicted for 1,024 devices (64 data × 4 model × 4 stage, 8 micro-batches)" in str(found)
    assert "network_bandwidth" in str(cluster)


def test_steps_can_be_timed_here_and_scaled():
    here = tl.Cluster(**PLAIN)
    twice = tl.Cluster(**PLAIN | {"flops": 2e9})
    graph, given, config = layers(4, 32), arrays(4, 32, 64), tl.DistributedConfig(devices(2))
    found = tl.simulate(graph, config, twice, given, here=here)
    assert found.measured and found.step_seconds > 0 and "timed here" in str(found)


def test_the_plan_of_all_ranks_prints(golden):
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 8), "float32")
    for n in range(4):
        h = b.tanh(h @ b.input(f"w{n}", (8, 8), "float32"))
    step = tl.value_and_grad(b.build(loss=b.mean(b.square(h))), wrt=[f"w{n}" for n in range(4)])
    executor = tl.Executor()
    shown = [
        executor.plan_distributed(
            step, None, tl.DistributedConfig(devices(len(places)), strategy=strategy), sizes={"n": 66}
        )
        for places, strategy in (
            (range(4), S.DataParallel(4)),
            (range(2), S.ModelParallel(tl.ShardingSpec().shard_tensor("w0", 1, 2))),
            (range(4), S.Hybrid(2, 1, 2, 16)),
        )
    ]
    golden("distributed_plan", "\n\n".join(map(str, shown)) + "\n")


def test_auto_runs_the_mesh_that_is_predicted_to_be_fastest():
    graph, given, said = layers(4, 16), arrays(4, 16, 24), []
    executor = tl.Executor()
    for cluster in (tl.Cluster(**PLAIN), tl.Cluster(**PLAIN | {"bandwidth": 1e15, "latency": 1e-15})):
        config = tl.DistributedConfig(devices(4), strategy=S.Auto(cluster=cluster, show=said.append))
        for _ in range(2):
            outputs = executor.execute_distributed(graph, given, config)
            for name, value in tl.Executor().execute(graph, given).items():
                np.testing.assert_allclose(outputs[name], value, rtol=1e-3, atol=1e-4)
        best = tl.simulate(graph, config, cluster, given).step_seconds
        for mesh in ((4, 1, 1), (1, 4, 1), (2, 2, 1), (2, 1, 2), (1, 1, 4)):
            other = tl.DistributedConfig(devices(4), strategy=S.Hybrid(*mesh))
            assert best <= tl.simulate(graph, other, cluster, given).step_seconds
    assert len(said) == 4  # once for each graph and cluster that runs, once for each that is simulated
    assert said[0].splitlines()[1].endswith("runs") and len(said[0].splitlines()) == 8
    assert len(executor.get_distributed_stats().ranks) == 4


def test_auto_measures_this_machine_when_no_cluster_is_given(capsys):
    graph, given = layers(2, 8), arrays(2, 8, 12)
    outputs = tl.Executor().execute_distributed(graph, given, tl.DistributedConfig(devices(2), strategy=S.Auto()))
    np.testing.assert_allclose(outputs["y"], tl.Executor().execute(graph, given)["y"], rtol=1e-4, atol=1e-5)
    assert "steps timed here" in capsys.readouterr().out


def test_auto_refuses_what_no_mesh_can_run_or_hold():
    graph = layers(1, 2, gradients=False)
    cluster = tl.Cluster(**PLAIN)
    auto = tl.DistributedConfig(devices(5), strategy=S.Auto(show=None))
    with pytest.raises(tl.InputError, match="no mesh of 5 devices can run this graph") as caught:
        tl.simulate(graph, auto, cluster, sizes={"n": 3})
    assert caught.value.diagnostic.code == "E392"
    with pytest.raises(tl.InputError, match=r"no mesh of 2 devices fits: .* are needed on each, 100 B are there"):
        two = tl.DistributedConfig(devices(2), strategy=S.Auto(show=None))
        tl.simulate(layers(), two, tl.Cluster(**PLAIN | {"memory": 100}), sizes={"n": 64})
    with pytest.raises(tl.InputError, match="no mesh before it has seen a graph"):
        _ = auto.mesh


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"flops": 0}, "flops of a cluster is a number above 0, got 0"),
        ({"latency": "fast"}, "latency of a cluster is a number above 0, got 'fast'"),
        ({"devices_per_machine": 8}, "machines of 8 devices need network_bandwidth and network_latency"),
    ],
)
def test_a_cluster_that_cannot_be(figures, message):
    with pytest.raises(tl.InputError, match=message):
        tl.Cluster(**PLAIN | figures)


def test_wrong_mesh_sizes_are_refused_with_both_values():
    with pytest.raises(tl.InputError, match=r"PipelineParallel needs 3 devices \(3 along stage\), got 2"):
        tl.DistributedConfig(devices(2), strategy=S.PipelineParallel(3, 4))
    with pytest.raises(tl.InputError, match="the simulation needs the size 'n'"):
        tl.simulate(layers(), tl.DistributedConfig(devices(2)), tl.Cluster(**PLAIN))


def test_a_prediction_does_not_depend_on_the_memory_that_this_machine_has_left(monkeypatch) -> None:
    """It said other seconds and bytes while other processes held memory."""
    b = tl.GraphBuilder()
    h, names = b.input("x", ("n", 4096), "float32"), [f"w{n}" for n in range(12)]
    for name in names:
        h = b.relu(h @ b.input(name, (4096, 4096), "float32"))
    step = tl.value_and_grad(b.build(loss=b.mean(b.square(h))), wrt=names)
    auto = tl.DistributedParallelismStrategy.Auto(micro_batch_size=1 << 12)
    config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(8)], strategy=auto)
    cluster = tl.Cluster(flops=60e12, memory_bandwidth=2e12, bandwidth=1e9, latency=5e-6)
    one = str(tl.simulate(step, config, cluster, sizes={"n": 1 << 16}))
    monkeypatch.setattr("tensorlogic.runtime.programs.available_memory", lambda: 1 << 20)
    assert str(tl.simulate(step, config, cluster, sizes={"n": 1 << 16})) == one
