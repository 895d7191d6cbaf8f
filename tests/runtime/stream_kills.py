"""A stream that is killed again and again, and resumed, beside one that is not: run by the tests, and for longer by the soak."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

import tensorlogic as tl

ROWS, WIDTH, CHUNK = 6000, 3, 50


def graph() -> tl.EinsumGraph:
    """An output of each kind: two that keep the index, sums that depend on their order, and what is made of them."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", WIDTH), "float32"), b.input("w", (WIDTH, 2), "float32")
    y = b.tanh(x @ w)
    mean = b.mean(y, axis=0)
    return b.build(y=y, norm=b.sum(x * x, axis=1), mean=mean, spread=b.mean(y * y, axis=0) - mean * mean, top=b.max(x))


def run(folder: Path, sink: str, *, every: int, mode: str, pause: float = 0.0, resume: bool = True) -> tl.Outputs:
    """Run the stream, or go on with it."""
    weights = np.arange(6, dtype="float32").reshape(WIDTH, 2) / 7
    chosen = tl.StreamingMode.FixedChunk(CHUNK) if mode == "fixed" else tl.StreamingMode.DynamicChunk(0.01)
    config = tl.StreamingConfig(chosen, prefetch=2).with_checkpointing(every)
    stream = tl.Executor().execute_stream(
        graph(), folder / "x.npy", config, inputs={"w": weights}, sink=folder / sink, checkpoint=folder / "saved", resume=resume
    )  # fmt: skip
    print("begun", flush=True)
    for _ in stream:
        time.sleep(pause)
    return stream.outputs


def make(folder: Path, seed: int) -> None:
    """Write the source."""
    folder.mkdir(parents=True)
    np.save(folder / "x.npy", np.random.default_rng(seed).normal(size=(ROWS, WIDTH)).astype("float32"))


def killed_and_resumed(folder: Path, seed: int, *, kills: int, sink: str = "out.npz") -> int:
    """Kill a stream at random moments, resume it until it ends, and compare what it wrote, byte for byte; return the kills."""
    rng = random.Random(seed)
    every, mode = rng.choice([1, 3, 10]), rng.choice(["fixed", "dynamic"])
    make(folder / "whole", seed)
    make(folder / "killed", seed)
    whole = run(folder / "whole", sink, every=every, mode=mode, resume=False)
    done = 0
    command = [sys.executable, __file__, str(folder / "killed"), sink, str(every), mode]
    while True:
        pause = "0.01" if done < kills else "0"  # long enough to be killed within
        child = subprocess.Popen([*command, pause], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert child.stdout is not None
        if done < kills:
            child.stdout.readline()
            time.sleep(rng.uniform(0, 0.5))
            child.send_signal(signal.SIGKILL)
            done += child.wait() == -signal.SIGKILL
        said, errors = child.communicate()
        if child.returncode == 0:
            break
        assert child.returncode == -signal.SIGKILL, errors + said
    assert (folder / "whole" / sink).read_bytes() == (folder / "killed" / sink).read_bytes()
    again = run(folder / "killed", sink, every=every, mode=mode)  # it has ended: nothing runs, the answers are there
    for name, value in whole.items():
        np.testing.assert_array_equal(again[name], value, strict=True)
    left = {path.name for path in (folder / "killed").iterdir()}
    assert left == {"x.npy", sink, "saved"}, left
    return done


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2], every=int(sys.argv[3]), mode=sys.argv[4], pause=float(sys.argv[5]))
