"""The JIT, as the seed's README shows it: it never answers differently."""

import numpy as np

import tensorlogic as tl


def test_tl_jit_executor(executor, layer, make_inputs, relu_of):
    config = tl.JitConfig().with_hot_path_threshold(10).with_max_cache_size(100)
    assert config == tl.JitConfig(hot_path_threshold=10, max_cache_size=100)
    for call in range(25):
        inputs = make_inputs(call)
        outputs = executor.execute_jit(layer, inputs, config)
        np.testing.assert_allclose(outputs["y"], relu_of(inputs))
    assert isinstance(executor, tl.TlJitExecutor)

    stats = executor.get_jit_stats()
    assert stats.hot_paths_detected == 1
    assert 0 <= stats.cache_hit_rate <= 1
    executor.clear_jit_cache()
    np.testing.assert_allclose(executor.execute_jit(layer, inputs, config)["y"], relu_of(inputs))
