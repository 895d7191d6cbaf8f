"""Batches, as the seed's README shows them: a batch answers as a loop would."""

import numpy as np

import tensorlogic as tl


def test_tl_batch_executor(executor, layer, make_inputs, relu_of):
    batch_inputs = [make_inputs(seed, rows=8) for seed in range(5)]
    result = executor.execute_batch(layer, batch_inputs)
    assert isinstance(executor, tl.TlBatchExecutor)
    assert isinstance(result, tl.BatchResult)
    parallel = executor.execute_batch_parallel(layer, batch_inputs, num_threads=2)
    assert len(result) == len(parallel) == 5
    for inputs, one, other in zip(batch_inputs, result, parallel, strict=True):
        np.testing.assert_allclose(one["y"], relu_of(inputs))
        np.testing.assert_allclose(other["y"], relu_of(inputs))
    assert executor.optimal_batch_size(layer) >= 1


def test_batch_processing(executor, layer, make_inputs, relu_of):
    inputs1, inputs2, inputs3 = (make_inputs(seed) for seed in (1, 2, 3))
    batch_inputs = [inputs1, inputs2, inputs3]
    result = executor.execute_batch_parallel(layer, batch_inputs, 4)
    assert len(result) == 3
    assert result.total_time_ms > 0
    for outputs, inputs in zip(result, batch_inputs, strict=True):
        np.testing.assert_allclose(outputs[0], relu_of(inputs))
