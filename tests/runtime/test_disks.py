"""Disks that are really full, and folders that really cannot be written: small file systems that are mounted for the test."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl

SIZE = 4 << 20
ROWS = np.random.default_rng(0).normal(size=(2000, 8))
FINE = tl.StreamingConfig(tl.StreamingMode.FixedChunk(100)).with_checkpointing(3)


def mount(*words: str) -> None:
    subprocess.run(["mount", *words], check=True, capture_output=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of four megabytes."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        mount("-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(place))
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("file systems cannot be mounted here")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def graph() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 8), "float64")
    return b.build(y=b.tanh(x), total=b.sum(x, axis=0))


def stream(folder: Path, sink: Path) -> tl.Outputs:
    running = tl.Executor().execute_stream(
        graph(), {"x": ROWS}, FINE, sink=sink, checkpoint=folder / "run", resume=True
    )
    return running.result()


def fill(disk: Path, leaving: int) -> Path:
    """Leave so many bytes of a disk free."""
    ballast, there = disk / "ballast", os.statvfs(disk)
    ballast.write_bytes(bytes(there.f_bavail * there.f_frsize - leaving))
    return ballast


def read_only(disk: Path, how: str) -> None:
    mount("-o", f"remount,{how}", str(disk))


def test_a_checkpoint_on_a_full_disk_is_refused_and_the_ones_before_stay(disk: Path) -> None:
    with tl.CheckpointManager(disk / "run") as manager:
        manager.save({"x": np.arange(10)}, {"n": 1})
        ballast = fill(disk, leaving=100_000)
        with pytest.raises(
            tl.CheckpointError, match="No space left on device; the earlier ones, up to 1, are untouched"
        ):
            manager.save({"x": np.ones(50_000)}, {"n": 2})
        assert manager.latest().facts == {"n": 1}
        ballast.unlink()
        assert manager.save({"x": np.ones(50_000)}, {"n": 3}) == 2


@pytest.mark.parametrize("where", ["checkpoints", "sink"])
def test_a_stream_that_fills_the_disk_is_resumed_when_there_is_room(disk: Path, tmp_path: Path, where: str) -> None:
    whole = stream(tmp_path, tmp_path / "whole.npy")
    folder, sink = (disk, tmp_path / "y.npy") if where == "checkpoints" else (tmp_path / "runs", disk / "y.npy")
    folder.mkdir(exist_ok=True)
    ballast = fill(disk, leaving=8192 if where == "checkpoints" else 60_000)
    with pytest.raises(tl.TensorLogicError, match="No space left on device"):
        stream(folder, sink)
    assert not sink.exists()
    ballast.unlink()
    again = stream(folder, sink)
    np.testing.assert_array_equal(again["total"], whole["total"], strict=True)
    assert sink.read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_folder_that_becomes_read_only_is_told_and_the_run_can_be_resumed(disk: Path, tmp_path: Path) -> None:
    whole = stream(tmp_path, tmp_path / "whole.npy")
    running = tl.Executor().execute_stream(
        graph(), {"x": ROWS}, FINE, sink=tmp_path / "y.npy", checkpoint=disk / "run", resume=True
    )
    for _ in range(4):
        next(running)
    running.close()
    read_only(disk, "ro")
    with pytest.raises(tl.CheckpointError, match="Read-only file system"):
        stream(disk, tmp_path / "y.npy")
    read_only(disk, "rw")
    again = stream(disk, tmp_path / "y.npy")
    np.testing.assert_array_equal(again["total"], whole["total"], strict=True)
    assert (tmp_path / "y.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_a_run_with_recovery_on_a_full_disk_goes_on_when_there_is_room(disk: Path) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (100, 100), "float64")
    made = b.build(y=b.sum(b.exp(b.tanh(x @ x)) @ x))
    inputs = {"x": np.random.default_rng(0).normal(size=(100, 100))}
    config = tl.RecoveryConfig(tl.RecoveryStrategy.CHECKPOINT, checkpoint_steps=1).with_folder(disk / "run")
    ballast = fill(disk, leaving=100_000)
    result = tl.Executor().execute_with_recovery(made, inputs, config)
    assert isinstance(result, tl.RecoveryResult.Failure) and "No space left on device" in str(result.error)
    ballast.unlink()
    again = tl.Executor().execute_with_recovery(made, inputs, config)
    assert isinstance(again, tl.RecoveryResult.Success) and again.stats.resumed_from == 1
    np.testing.assert_array_equal(again.result["y"], tl.Executor().execute(made, inputs)["y"])
