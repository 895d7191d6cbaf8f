"""Several devices, as the seed's README shows them: every strategy gives the answer of one device.

The seed's four GPUs are virtual CPU devices here, so that the tests run anywhere.
"""

import numpy as np

import tensorlogic as tl


def run(executor, graph, inputs, strategy, devices=4):
    config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(devices)]).with_strategy(strategy)
    return executor.execute_distributed(graph, inputs, config)


def test_tl_distributed_executor(executor, layer, inputs, relu_of):
    devices = [tl.Device.CPU(0), tl.Device.CPU(1), tl.Device.CPU(2), tl.Device.CPU(3)]
    config = tl.DistributedConfig(devices).with_strategy(tl.DistributedParallelismStrategy.DataParallel(num_replicas=4))
    outputs = executor.execute_distributed(layer, inputs, config)
    np.testing.assert_allclose(outputs["y"], relu_of(inputs))
    assert isinstance(executor, tl.TlDistributedExecutor)

    stats = executor.get_distributed_stats()
    assert isinstance(stats, tl.DistributedStats)
    assert stats.communication_time_ms >= 0
    assert stats.computation_time_ms > 0
    assert 0 < stats.efficiency <= 1


def test_data_parallel(executor, layer, make_inputs, relu_of):
    strategy = tl.DistributedParallelismStrategy.DataParallel(num_replicas=4)
    assert strategy.num_replicas == 4
    inputs = make_inputs(rows=66)  # four replicas do not get equal shares
    np.testing.assert_allclose(run(executor, layer, inputs, strategy)["y"], relu_of(inputs))


def test_model_parallel(executor):
    spec = tl.ShardingSpec().shard_tensor("weights", 0, 4)  # the contracted dimension: shards are summed
    strategy = tl.DistributedParallelismStrategy.ModelParallel(sharding_spec=spec)
    b = tl.GraphBuilder()
    x, weights = b.input("x", ("n", 16)), b.input("weights", (16, 6))
    graph = b.build(y=b.einsum("ni,ij->nj", x, weights))
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(8, 16)), "weights": rng.normal(size=(16, 6))}
    np.testing.assert_allclose(run(executor, graph, inputs, strategy)["y"], inputs["x"] @ inputs["weights"])


def four_layers():
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 10))
    for n in range(4):
        h = b.tanh(b.einsum("ni,ij->nj", h, b.input(f"w{n}", (10, 10))))
    rng = np.random.default_rng(0)
    inputs = {"x": rng.normal(size=(128, 10))} | {f"w{n}": rng.normal(size=(10, 10)) for n in range(4)}
    expected = inputs["x"]
    for n in range(4):
        expected = np.tanh(expected @ inputs[f"w{n}"])
    return b.build(y=h), inputs, expected


def test_pipeline_parallel(executor):
    strategy = tl.DistributedParallelismStrategy.PipelineParallel(num_stages=4, micro_batch_size=32)
    graph, inputs, expected = four_layers()
    np.testing.assert_allclose(run(executor, graph, inputs, strategy)["y"], expected)


def test_hybrid(executor):
    strategy = tl.DistributedParallelismStrategy.Hybrid(
        data_parallel_groups=2, model_parallel_size=2, pipeline_stages=2
    )
    graph, inputs, expected = four_layers()
    np.testing.assert_allclose(run(executor, graph, inputs, strategy, devices=8)["y"], expected)
