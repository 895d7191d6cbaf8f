"""The optimizer, the planner and what they decide about memory, as the seed's README shows them."""

import numpy as np
import pytest

import tensorlogic as tl


@pytest.fixture
def chain():
    """An element-wise chain and a node that nothing reads."""
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (64, 10))
    b.cos(x)
    return b.build(y=b.exp(b.sin(b.square(x))))


@pytest.fixture
def diamond():
    """Two products that do not wait for each other, and their sum."""
    b = tl.GraphBuilder()
    x, u, v = b.input("x", (64, 64)), b.input("u", (64, 64)), b.input("v", (64, 64))
    return b.build(y=b.add(b.einsum("ni,ij->nj", x, u), b.einsum("ni,ij->nj", x, v)))


def work(graph):
    """The nodes that compute, each with what it reads."""
    return {n: node.args for n, node in enumerate(graph.nodes) if node.args}


def test_graph_optimizer(chain):
    optimizer = tl.GraphOptimizer()
    result = optimizer.analyze(chain)
    assert isinstance(result, tl.OptimizationResult)
    assert len(result.fusion_opportunities) >= 1
    assert len(result.dead_nodes) == 1
    assert result.estimated_speedup > 1


def test_fusion_planner(chain):
    planner = tl.FusionPlanner()
    opportunities = planner.find_fusion_opportunities(chain)
    assert [opp.fusion_type for opp in opportunities] == [tl.FusionType.ELEMENT_WISE]
    assert len({tl.FusionType.ELEMENT_WISE, tl.FusionType.REDUCTION, tl.FusionType.EINSUM}) == 3

    b = tl.GraphBuilder()
    x, u, v = b.input("x", (64, 64)), b.input("u", (64, 64)), b.input("v", (64, 64))
    product = b.build(y=b.einsum("ni,ij->nj", b.einsum("ni,ij->nj", x, u), v))
    assert tl.FusionType.EINSUM in {opp.fusion_type for opp in planner.find_fusion_opportunities(product)}


def test_scheduler(diamond):
    scheduler = tl.Scheduler(tl.SchedulingStrategy.CostBased(cost_threshold=1000))
    schedule = scheduler.schedule(diamond)
    order, reads = list(schedule.node_order), work(diamond)
    assert set(reads) <= set(order)
    for node, args in reads.items():
        assert all(order.index(arg) < order.index(node) for arg in args if arg in order)
    groups = [set(group) for group in schedule.parallel_groups]
    assert set().union(*groups) == set(order)
    for group in groups:
        assert not any(set(reads.get(node, ())) & group for node in group)
    products = {node for node, args in reads.items() if 0 in args}
    assert any(products <= group for group in groups)


def test_placement_optimizer(diamond):
    devices = [tl.Device.CPU(0), tl.Device.CPU(1)]
    optimizer = tl.PlacementOptimizer(devices, tl.PlacementStrategy.LOAD_BALANCE)
    plan = optimizer.optimize(diamond)
    placed = dict(plan.node_placements)
    assert set(work(diamond)) <= set(placed)
    assert set(placed.values()) == set(devices)
    first, second = (placed[node] for node, args in work(diamond).items() if 0 in args)
    assert first != second


def test_tensor_cache():
    cache = tl.TensorCache(tl.EvictionPolicy.LRU, 1000)  # 1000 MB limit
    tensor = np.arange(6.0)
    cache.insert("key", tensor)
    np.testing.assert_array_equal(cache.get("key"), tensor)
    assert cache.get("other") is None

    small = tl.TensorCache(tl.EvictionPolicy.LRU, 1)
    for key in "abc":
        small.insert(key, np.zeros(50_000))  # 0.4 MB each: two fit
        small.get("a")
    assert small.get("a") is not None
    assert small.get("b") is None


def test_memory_pool():
    pool = tl.MemoryPool()
    tensor = pool.allocate((64, 10))
    assert tensor.shape == (64, 10)
    address = tensor.ctypes.data

    pool.deallocate(tensor)
    del tensor
    assert pool.allocate((64, 10)).ctypes.data == address
    assert pool.stats().reuse_rate == 0.5


def test_execution_strategy(layer):
    strategy = tl.ExecutionStrategy(
        mode=tl.ExecutionMode.GRAPH,  # GRAPH, EAGER or JIT
        precision=tl.PrecisionMode.FP32,
        memory=tl.MemoryStrategy.OPTIMIZE,
        parallelism=tl.ParallelismStrategy.AUTO,
        gradient=tl.GradientStrategy.EAGER,
    )
    assert {tl.ExecutionMode.GRAPH, tl.ExecutionMode.EAGER, tl.ExecutionMode.JIT} == set(tl.ExecutionMode)
    optimizer = tl.StrategyOptimizer()
    optimized = optimizer.optimize_for_throughput(layer, strategy)
    assert isinstance(optimized, tl.ExecutionStrategy)
    assert optimized.precision == tl.PrecisionMode.FP32  # a faster strategy may not answer less exactly
    assert optimized.explain()


def test_memory_estimator(diamond):
    estimator = tl.MemoryEstimator()
    estimate = estimator.estimate(diamond)
    one = 64 * 64 * 4 / 1e6  # a matrix of float32 in MB
    assert 2 * one * 0.9 <= estimate.peak_memory_mb <= 7 * one  # both products are alive before the sum
    assert estimate.lifetimes
