"""Streams, as the seed's README shows them: the parts, put together, are the whole."""

import numpy as np

import tensorlogic as tl


def blocks_of(rows, size):
    """A stream: blocks of rows that never stand in memory together."""
    for start in range(0, len(rows), size):
        yield {"x": rows[start : start + size]}


def test_tl_streaming_executor(executor, fixed_layer):
    graph, w = fixed_layer
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(64))
    rows = np.random.default_rng(0).normal(size=(1000, 10))
    results = list(executor.execute_stream(graph, blocks_of(rows, 100), config))
    assert isinstance(executor, tl.TlStreamingExecutor)
    assert all(isinstance(result, tl.StreamResult) for result in results)
    assert [result.metadata.size for result in results] == [64] * 15 + [40]
    np.testing.assert_allclose(np.concatenate([r.outputs["y"] for r in results]), np.maximum(rows @ w, 0))


def test_execute_chunk(executor, fixed_layer):
    graph, w = fixed_layer
    metadata = tl.ChunkMetadata(chunk_id=3, size=32)
    rows = np.random.default_rng(0).normal(size=(32, 10))
    result = executor.execute_chunk(graph, {"x": rows}, metadata)
    assert result.metadata == metadata
    np.testing.assert_allclose(result.outputs["y"], np.maximum(rows @ w, 0))


def test_streaming_modes():
    # fixed chunk size
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(64)).with_prefetch(2).with_checkpointing(100)
    assert config == tl.StreamingConfig(tl.StreamingMode.FixedChunk(64), prefetch=2, checkpointing=100)

    # dynamic chunk sizing based on memory
    config = tl.StreamingConfig(tl.StreamingMode.DynamicChunk(target_memory_mb=512))
    assert config.mode.target_memory_mb == 512

    # adaptive chunking based on performance
    config = tl.StreamingConfig(tl.StreamingMode.Adaptive(initial_chunk=32))
    assert config.mode.initial_chunk == 32
    assert config.mode != tl.StreamingMode.Adaptive(initial_chunk=64)


def test_streaming_large_datasets(executor, fixed_layer):
    graph, w = fixed_layer
    config = tl.StreamingConfig(tl.StreamingMode.Adaptive(initial_chunk=64)).with_prefetch(2)
    rows = np.random.default_rng(0).normal(size=(1000, 10))
    results = list(executor.execute_stream(graph, blocks_of(rows, 250), config))

    assert [result.metadata.chunk_id for result in results] == list(range(len(results)))
    assert results[0].metadata.size == 64
    assert sum(result.metadata.size for result in results) == 1000
    assert all(result.processing_time_ms >= 0 for result in results)
    np.testing.assert_allclose(np.concatenate([r.outputs["y"] for r in results]), np.maximum(rows @ w, 0))
