"""A run that dies three times, and goes on each time from its last checkpoint."""

from __future__ import annotations

import os
import tempfile

import numpy as np

import tensorlogic as tl
from tensorlogic.testing import failing_at


def model() -> tuple[tl.EinsumGraph, dict[str, np.ndarray]]:
    b = tl.GraphBuilder()
    h, w = b.input("x", (64, 32)), b.input("w", (32, 32))
    for _ in range(6):
        h = b.tanh(h @ w)
    rng = np.random.default_rng(0)
    return b.build(y=h), {"x": rng.normal(size=(64, 32)), "w": rng.normal(size=(32, 32)) / 4}


def die_at(call: int, config: tl.RecoveryConfig) -> None:
    """Run in a child process that is killed before one of its steps."""
    if (child := os.fork()) == 0:
        graph, inputs = model()
        executor = tl.Executor(wrap=[failing_at(call=call, kill=True)])
        executor.execute_with_recovery(graph, inputs, config)
        os._exit(0)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    kept = tl.CheckpointManager(config.folder or "").numbers()
    print(f"a process was killed before its step {call} (signal {-ended}); checkpoints: {kept}")


def main() -> None:
    graph, inputs = model()
    with tempfile.TemporaryDirectory() as folder:
        config = tl.RecoveryConfig(tl.RecoveryStrategy.CHECKPOINT, checkpoint_steps=1).with_folder(folder, keep=2)
        for call in (4, 3, 5):
            die_at(call, config)
        match tl.Executor().execute_with_recovery(graph, inputs, config):
            case tl.RecoveryResult.Success(result, stats):
                same = np.array_equal(result["y"], tl.Executor().execute(graph, inputs)["y"])
                print(f"done, from checkpoint {stats.resumed_from}; the same as one plain run: {same}")
            case other:
                print(other)


if __name__ == "__main__":
    main()
