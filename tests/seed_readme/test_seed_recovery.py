"""Retries and checkpoints, as the seed's README shows them."""

import numpy as np
import pytest

import tensorlogic as tl


def test_tl_recoverable_executor(executor, layer, inputs, relu_of):
    config = (
        tl.RecoveryConfig()
        .with_strategy(tl.RecoveryStrategy.RETRY_WITH_BACKOFF)
        .with_retry_policy(tl.RetryPolicy.exponential(3, 100))
        .with_checkpointing(True)
    )
    assert config == tl.RecoveryConfig(
        strategy=tl.RecoveryStrategy.RETRY_WITH_BACKOFF,
        retry_policy=tl.RetryPolicy.exponential(3, 100),
        checkpointing=True,
    )
    match executor.execute_with_recovery(layer, inputs, config):
        case tl.RecoveryResult.Success(result=result, stats=stats):
            assert stats.retries == 0
            np.testing.assert_allclose(result["y"], relu_of(inputs))
        case tl.RecoveryResult.PartialSuccess(failed_nodes=failed_nodes):
            pytest.fail(f"nodes {failed_nodes} failed")
        case tl.RecoveryResult.Failure(error=error):
            raise error
    assert isinstance(executor, tl.TlRecoverableExecutor)


def test_checkpoint(executor, layer, inputs, relu_of, tmp_path):
    config = tl.RecoveryConfig(strategy=tl.RecoveryStrategy.CHECKPOINT, checkpointing=True)
    executor.execute_with_recovery(layer, inputs, config)
    executor.save_checkpoint(tmp_path / "run")
    assert (tmp_path / "run").exists()

    resumed = tl.Executor()
    resumed.load_checkpoint(tmp_path / "run")
    match resumed.execute_with_recovery(layer, inputs, config):
        case tl.RecoveryResult.Success(result=result):
            np.testing.assert_allclose(result["y"], relu_of(inputs))
        case other:
            pytest.fail(str(other))
