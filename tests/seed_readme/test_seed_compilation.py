"""Graphs compiled ahead of time, as the seed's README shows them."""

import numpy as np
import pytest

import tensorlogic as tl


def test_tl_compilable_executor(executor, make_inputs):
    config = (
        tl.CompilationConfig()
        .with_optimization_level(tl.OptimizationLevel.AGGRESSIVE)
        .with_fusion_enabled(True)
        .with_constant_folding(True)
    )
    assert config == tl.CompilationConfig(
        optimization_level=tl.OptimizationLevel.AGGRESSIVE, fusion_enabled=True, constant_folding=True
    )
    b = tl.GraphBuilder(intern=False)
    x, w = b.input("x", ("n", 10)), b.input("w", (10, 4))
    one, other = (b.relu(b.einsum("ni,ij->nj", x, w)) for _ in range(2))  # the same work, written twice
    graph = b.build(y=b.add(one, other))

    # compile once
    compiled = executor.compile_graph(graph, config)
    assert isinstance(executor, tl.TlCompilableExecutor)
    assert isinstance(compiled, tl.CompiledGraph)

    # execute several times with different inputs
    for seed, rows in ((1, 64), (2, 64), (3, 5)):
        inputs = make_inputs(seed, rows)
        outputs = executor.execute_compiled(compiled, inputs)
        np.testing.assert_allclose(outputs["y"], 2 * np.maximum(inputs["x"] @ inputs["w"], 0))

    # check compilation statistics
    stats = compiled.compilation_stats()
    before, after = stats.nodes_before_optimization, stats.nodes_after_optimization
    assert before == len(graph)
    assert after < before
    assert stats.reduction_percentage == pytest.approx(100 * (before - after) / before)


def test_compilation_cache(executor, layer, inputs, relu_of):
    cache = tl.CompilationCache(100)  # up to 100 graphs
    config = tl.CompilationConfig()

    key = tl.CompilationKey.from_graph(layer, config)
    assert key != tl.CompilationKey.from_graph(
        layer, tl.CompilationConfig(optimization_level=tl.OptimizationLevel.NONE)
    )
    assert cache.get(key) is None
    cache.insert(key, executor.compile_graph(layer, config))

    compiled = cache.get(tl.CompilationKey.from_graph(layer, config))
    np.testing.assert_allclose(executor.execute_compiled(compiled, inputs)["y"], relu_of(inputs))
    assert cache.stats().hit_rate == 0.5
