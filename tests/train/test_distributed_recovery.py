"""Training in several processes: one that is killed, the last checkpoint, and as many processes or fewer; scripts that are ranks themselves."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl

pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")


def devices(count):
    return [tl.Device.CPU(n) for n in range(count)]


def graph():
    b = tl.GraphBuilder()
    x, t = b.input("x", ("n", 6), "float32"), b.input("t", ("n",), "int64")
    h = b.tanh(x @ b.input("w", (6, 8), "float32") + b.input("c", (8,), "float32"))
    return b.build(loss=b.cross_entropy(h @ b.input("v", (8, 3), "float32"), t))


RNG = np.random.default_rng(0)
PARAMS = {"w": RNG.normal(size=(6, 8)).astype("f4"), "c": np.zeros(8, "f4"), "v": RNG.normal(size=(8, 3)).astype("f4")}
X = RNG.normal(size=(48, 6)).astype("f4")
DATA = {"x": X, "t": np.argmax(X[:, :3], axis=1)}


class Kills(tl.Callback):
    """Kills a worker once, after some steps."""

    def __init__(self, step):
        self.step = step

    def on_batch(self, trainer, figures):
        if trainer.steps == self.step:
            self.step = -1
            worker = trainer.executor.distributed.workers._processes[1]
            worker.kill()
            worker.wait()


def config(folder=None):
    return tl.TrainerConfig(optimizer=tl.optim.adam(0.01), epochs=3, batch_size=16, seed=1, folder=folder, every=2)


def test_a_killed_worker_and_the_last_checkpoint(tmp_path):
    whole = tl.Trainer(tl.Executor(), config(), distributed=tl.DistributedConfig(devices(1), deterministic=True))
    whole.fit(graph(), params=PARAMS, data=DATA)

    executor = tl.Executor()
    two = tl.DistributedConfig(devices(2), "torch", deterministic=True)
    try:
        killed = tl.Trainer(executor, config(tmp_path / "run"), distributed=two, callbacks=[Kills(5)])
        with pytest.raises(tl.ExecutionError, match="rank 1"):
            killed.fit(graph(), params=PARAMS, data=DATA)
        assert killed.steps == 5, "the run stands before the batch that failed"
        left = {"fewer": tl.DistributedConfig(devices(1), deterministic=True), "same": two}
        for name in left:
            shutil.copytree(tmp_path / "run", tmp_path / name)
        for name, distributed in left.items():
            trainer = tl.Trainer.resume(tmp_path / name, executor, distributed=distributed)
            assert trainer.steps == 4, "the last checkpoint"
            trainer.fit(data=DATA)
            assert trainer.history["loss"] == whole.history["loss"]
            for label, value in whole.values.items():
                np.testing.assert_array_equal(trainer.values[label], value, err_msg=label)
    finally:
        executor.distributed.close()


SCRIPT = """
import sys
from pathlib import Path
import numpy as np
import tensorlogic as tl
sys.path.insert(0, sys.argv[2])
from test_distributed_recovery import DATA, PARAMS, config, devices, graph
shares = tl.DistributedConfig(devices(2), "torch", shard_optimizer=True, timeout=60)
trainer = tl.Trainer(tl.Executor(), config(sys.argv[1]), distributed=shares)
trainer.fit(graph(), params=PARAMS, data=DATA)
held = trainer.executor.get_distributed_stats().ranks[0].held_bytes
state = sum(value.nbytes for name, value in trainer.values.items() if name.startswith("optimizer."))
others = sum(value.nbytes for value in PARAMS.values()) + 8 * (6 * 4 + 8) + 16  # eight rows, the rate and the step
assert held == others + state // 2, (held, others, state)
print("loss", trainer.history["loss"][-1])
"""


def test_a_script_that_learns_as_several_ranks(tmp_path):
    want = tl.Trainer(tl.Executor(), config())
    want.fit(graph(), params=PARAMS, data=DATA)
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(SCRIPT)
    here = str(Path(__file__).parent)
    command = [sys.executable, "-m", "tensorlogic", "launch", "-n", "2", str(script), str(folder), here]
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split("loss ")[1]) for line in done.stdout.splitlines() if "loss " in line]
    assert len(losses) == 2 and losses[0] == losses[1]
    np.testing.assert_allclose(losses[0], want.history["loss"][-1], rtol=1e-5)
    resumed = tl.Trainer.resume(folder)  # written by one of the ranks
    for name, value in want.values.items():
        np.testing.assert_allclose(resumed.values[name], value, rtol=1e-3, atol=1e-5)
