"""Batches and streams over ranks: the answers of one device, and every row once though a worker is killed."""

from __future__ import annotations

import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.distributed.rows import ATTEMPTS
from tensorlogic.testing import failing_at

S = tl.DistributedParallelismStrategy
RNG = np.random.default_rng(0)


def graph() -> tl.EinsumGraph:
    """An output of each kind: two that keep the rows, and sums, means and maxima over them."""
    b = tl.GraphBuilder()
    x, k, w = b.input("x", ("n", 3), "float64"), b.input("k", ("n",), "int64"), b.input("w", (3, 2), "float64")
    y = b.tanh(x @ w)
    return b.build(y=y, number=k * 2, mean=b.mean(y, axis=0), top=b.max(x), total=b.sum(k))


WEIGHTS = RNG.normal(size=(3, 2))


def devices(count: int) -> list[tl.Device]:
    return [tl.Device.CPU(n) for n in range(count)]


def rows(count: int) -> dict[str, np.ndarray]:
    return {"x": RNG.normal(size=(count, 3)), "k": np.arange(count)}


@pytest.mark.parametrize("ranks", [2, 3])
def test_a_stream_over_ranks_gives_the_answers_of_one(ranks: int) -> None:
    given, config = (
        rows(26),
        tl.StreamingConfig(tl.StreamingMode.FixedChunk(8)),
    )  # the last chunk has fewer rows than ranks
    plain = tl.Executor().execute_stream(graph(), given, config, inputs={"w": WEIGHTS})
    executor = tl.Executor()
    spread = executor.execute_stream(
        graph(), given, config, inputs={"w": WEIGHTS}, distributed=tl.DistributedConfig(devices(ranks))
    )
    for a, b in zip(plain, spread, strict=True):
        assert a.metadata == b.metadata
        for name, value in a.outputs.items():
            np.testing.assert_allclose(b.outputs[name], value, rtol=1e-12)
    assert spread.outputs["total"] == 26 * 25 // 2
    assert len(executor.get_distributed_stats().ranks) == ranks


def test_positions_and_rows_of_what_is_whole_are_shared_too() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (12,), "float64")
    graph = b.build(y=x * b.iota(12) + b.constant(np.arange(12.0) ** 2), best=b.max(x))
    config, given = tl.StreamingConfig(tl.StreamingMode.FixedChunk(5)), {"x": RNG.normal(size=12)}
    stream = tl.Executor().execute_stream(graph, given, config, distributed=tl.DistributedConfig(devices(2)))
    parts = [result.outputs["y"] for result in stream]
    np.testing.assert_allclose(np.concatenate(parts), tl.Executor().execute(graph, given)["y"])


def test_a_batch_over_ranks_gives_the_answers_of_one() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (4, 3), "float64"), b.input("w", (3, 2), "float64")
    graph = b.build(y=b.relu(x @ w), total=b.sum(x))
    items = [{"x": RNG.normal(size=(4, 3)), "w": WEIGHTS} for _ in range(7)]
    executor = tl.Executor()
    spread = executor.execute_batch(graph, items, distributed=tl.DistributedConfig(devices(3)))
    for a, b in zip(tl.Executor().execute_batch(graph, items), spread, strict=True):
        np.testing.assert_allclose(b["y"], a["y"])
        np.testing.assert_allclose(b["total"], a["total"])
    assert not spread.errors and len(executor.get_distributed_stats().ranks) == 3


def test_an_item_that_fails_does_so_alone() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", (4,), "float64")))
    executor = tl.Executor(wrap=[failing_at("exp", call=range(1, 4), error=ConnectionError("gone"))])
    items = [{"x": np.full(4, float(n))} for n in range(5)]
    result = executor.execute_batch(graph, items, distributed=tl.DistributedConfig(devices(2)))
    assert list(result.errors) in (
        [],
        [0],
    )  # both ranks failed with all items, or one did, and then the first item by itself
    np.testing.assert_array_equal(result[4]["y"], np.exp(np.full(4, 4.0)))


@pytest.mark.parametrize("mode", ["execute_batch", "execute_stream"])
def test_what_cannot_be_shared_by_rows_is_refused(mode: str) -> None:
    config = tl.DistributedConfig(devices(2), strategy=S.PipelineParallel(2, 4))
    with pytest.raises(tl.InputError, match="DataParallel, not PipelineParallel"):
        getattr(tl.Executor(), mode)(graph(), [rows(4)], distributed=config)


def test_one_process_drives_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(tl.InputError, match="driven by one process"):
        tl.Executor().execute_batch(graph(), [rows(4)], distributed=tl.DistributedConfig(devices(2), "torch"))


def shards(folder: Path, count: int, each: int) -> dict[str, np.ndarray]:
    """Write a data set of several Parquet files, and return all of it."""
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder.mkdir()
    given = rows(count * each)
    for n in range(count):
        own = {name: value[n * each : (n + 1) * each] for name, value in given.items()}
        columns = {f"x_{axis}": own["x"][:, axis] for axis in range(3)} | {"k": own["k"]}
        parquet.write_table(pa.table(columns), folder / f"part-{n:02}.parquet")
    return given


@pytest.mark.skipif(not find_spec("torch"), reason="make test TORCH=1 installs PyTorch")
def test_ten_files_are_processed_exactly_once_though_a_worker_is_killed(tmp_path: Path) -> None:
    given = shards(tmp_path / "data", 10, 30)
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(30)).with_checkpointing(1)
    executor = tl.Executor()
    stream = executor.execute_stream(
        graph(), tmp_path / "data", config, inputs={"w": WEIGHTS}, sink=tmp_path / "out.npz", checkpoint=tmp_path / "run",
        distributed=tl.DistributedConfig(devices(2), "torch", timeout=30),
    )  # fmt: skip
    started = set()
    for result in stream:
        workers = executor.distributed.workers
        started.add(workers)
        if result.metadata.chunk_id == 3:
            victim = workers._processes[1]
            os.kill(victim.pid, signal.SIGSTOP)  # so that it dies within the next chunk, while rank 0 waits for it
            threading.Timer(0.3, victim.kill).start()
    executor.distributed.close()
    assert len(started) == 2  # new ones took over
    assert stream.outputs["total"] == 300 * 299 // 2
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["number"], given["k"] * 2)  # each row once, in order
        np.testing.assert_allclose(out["y"], np.tanh(given["x"] @ WEIGHTS), rtol=1e-12)
    np.testing.assert_allclose(stream.outputs["mean"], np.tanh(given["x"] @ WEIGHTS).mean(0), rtol=1e-12)


def test_workers_that_always_die_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorlogic.runtime.distributed.run import Distributed

    runs = []

    def execute(*_: object) -> None:
        runs.append(1)
        raise tl.ExecutionError("the process of rank 1 ended by signal 9 while it ran", code="E382")

    monkeypatch.setattr(Distributed, "execute", execute)
    stream = tl.Executor().execute_stream(
        graph(), rows(8), inputs={"w": WEIGHTS}, distributed=tl.DistributedConfig(devices(2))
    )
    with pytest.raises(tl.ExecutionError, match="ended by signal 9"):
        stream.result()
    assert len(runs) == ATTEMPTS
