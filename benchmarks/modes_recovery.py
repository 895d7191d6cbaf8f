"""Recovery: what a checkpoint costs beside writing its bytes, and what a run that can be saved costs beside a plain one."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import numpy as np
from harness import Table, contest

import tensorlogic as tl

SIZE = 1 << 30  # bytes of live values
ARRAYS = 16


def checkpoint(folder: Path) -> Table:
    """Write live values: plainly, as safetensors does, and as a checkpoint; each keeps one file and lets the one before go."""
    title = "A checkpoint of 1 GiB of live values"
    note = (
        "Each row writes the values, brings them to the disk and lets the ones before go. A checkpoint adds checksums, a manifest and a "
        "rename, and stays within 1.3 of the first row."
    )
    needed = 4 * SIZE
    if shutil.disk_usage(folder).free < needed:
        return Table(title, note, (), skipped=(("write and fsync", f"needs {needed >> 30} GiB of free disk"),))
    rng = np.random.default_rng(0)
    arrays = {f"value{n}": rng.random(SIZE // ARRAYS // 8) for n in range(ARRAYS)}
    manager = tl.CheckpointManager(folder / "checkpoints", keep=1)
    plain, new = folder / "plain", folder / "new"

    def write() -> None:
        handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for array in arrays.values():
            left = memoryview(array).cast("B")
            while left:
                left = left[os.write(handle, left) :]
        os.fsync(handle)
        os.close(handle)
        new.replace(plain)

    def safetensors() -> None:
        from safetensors.numpy import save_file

        save_file(arrays, new)
        handle = os.open(new, os.O_RDWR)
        os.fsync(handle)
        os.close(handle)
        new.replace(plain)

    contenders = {
        "write and fsync": write,
        "CheckpointManager.save": lambda: manager.save(arrays, {"step": 1}),
        "safetensors save_file and fsync": safetensors,
    }
    table = contest(title, note, contenders, rounds=7, calls=1)
    manager.close()
    return table


def run() -> Table:
    """Run a chain of 100 steps with recovery and without."""
    b = tl.GraphBuilder()
    x = b.input("x", (256, 256), "float32")
    h, w = x, b.input("w", (256, 256), "float32")
    for _ in range(50):
        h = b.tanh(h @ w)
    graph = b.build(y=h)
    rng = np.random.default_rng(0)
    inputs = {name: (rng.normal(size=(256, 256)) / 16).astype("float32") for name in "xw"}
    executor = tl.Executor()

    def recovering(strategy: tl.RecoveryStrategy) -> object:
        config = tl.RecoveryConfig(strategy)
        return lambda: executor.execute_with_recovery(graph, inputs, config)

    contenders = {"execute": lambda: executor.execute(graph, inputs)} | {
        f"execute_with_recovery, {strategy.value}": recovering(strategy)
        for strategy in (
            tl.RecoveryStrategy.FAIL_FAST,
            tl.RecoveryStrategy.CHECKPOINT,
            tl.RecoveryStrategy.RETRY_WITH_BACKOFF,
        )
    }
    note = "50 layers of 256×256 where nothing fails. A run that retries keeps the operands of each step, so it does not write in place."
    return contest("A run with recovery", note, contenders)  # type: ignore[arg-type]


def tables() -> list[Table]:
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".checkpoints-") as place:
        return [run(), checkpoint(Path(place))]
