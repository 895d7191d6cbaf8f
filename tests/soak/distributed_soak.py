"""Ranks that are killed at random moments: ``python tests/soak/distributed_soak.py --seconds 600``; see ``make soak``.

A driver runs a graph on worker processes again and again, by one strategy or another, while one of them may be killed or stopped. Each run must give the
right answer, or raise an error that names the rank, within the timeout and a little more. At the end no process and no open file may be left.
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import tensorlogic as tl

TIMEOUT = 4.0
SLACK = 60.0  # seconds beside the timeout that a run may take: for starting workers on a busy machine
S = tl.DistributedParallelismStrategy
STRATEGIES = (
    S.DataParallel(2),
    S.ModelParallel(tl.ShardingSpec().shard_tensor("w", 1, 2)),
    S.PipelineParallel(2, 5),
)
CODES = {"E373": "lost", "E374": "late", "E382": "ended"}


def graph() -> tl.EinsumGraph:
    """A graph whose ranks meet several times, whatever they share."""
    b = tl.GraphBuilder()
    x, w, v = b.input("x", ("n", 6), "float64"), b.input("w", (6, 8), "float64"), b.input("v", (8, 4), "float64")
    h = b.relu(x @ w) @ v
    return b.build(y=h, total=b.sum(h), most=b.max(h, axis=0), odds=b.logsumexp(h, axis=0))


def inputs(rng: np.random.Generator) -> dict[str, np.ndarray[Any, Any]]:
    """Return random inputs of a random number of rows."""
    rows = int(rng.integers(6, 30))
    shapes = {"x": (rows, 6), "w": (6, 8), "v": (8, 4)}
    return {name: rng.normal(size=shape) for name, shape in shapes.items()}


def strike(executor: tl.Executor, rng: random.Random, counts: Counter[str]) -> threading.Timer | None:
    """Kill or stop a worker in a moment, or do nothing."""
    workers = executor.distributed.workers if executor.distributed is not None else None
    if workers is None or rng.random() < 0.3:
        return None
    victim, how = rng.choice(workers._processes), rng.choice(["kills", "kills", "kills", "stops"])
    number = signal.SIGKILL if how == "kills" else signal.SIGSTOP

    def send() -> None:
        if victim.poll() is None:
            os.kill(victim.pid, number)
            counts[how] += 1

    timer = threading.Timer(rng.random() * 0.02, send)
    timer.start()
    return timer


def trial(executor: tl.Executor, seed: int, counts: Counter[str]) -> None:
    """Run the graph a few times by one strategy, under fire."""
    rng = random.Random(seed)
    devices = [tl.Device.CPU(0), tl.Device.CPU(1)]
    config = tl.DistributedConfig(devices, "torch", rng.choice(STRATEGIES), TIMEOUT)
    for n in range(3):
        given = inputs(np.random.default_rng([seed, n]))
        timer = strike(executor, rng, counts) if n else None
        begin = time.monotonic()
        try:
            outputs = executor.execute_distributed(graph(), given, config)
        except tl.ExecutionError as error:
            kind = CODES.get(error.diagnostic.code or "")
            assert kind is not None and "rank" in str(error), f"seed {seed}: {error}"
            counts[kind] += 1
        else:
            for name, value in tl.Executor().execute(graph(), given).items():
                np.testing.assert_allclose(outputs[name], value, rtol=1e-9, err_msg=f"seed {seed}")
            counts["answers"] += 1
        finally:
            if timer is not None:
                timer.join()
        assert time.monotonic() - begin < TIMEOUT + SLACK, f"seed {seed}: a run took too long"
    counts["trials"] += 1


def held() -> tuple[int, int]:
    """Return how many open files and children this process has; files of arrays have no name, and go when they are closed."""
    gc.collect()
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    return len(os.listdir("/proc/self/fd")), len(children.read_text().split()) if children.exists() else 0


def main(arguments: list[str] | None = None) -> Counter[str]:
    """Run trials until the time is over, and look at what is left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--until", type=int, default=1_000_000, help="trials after which it is enough")
    told = parser.parse_args(arguments)
    executor, counts = tl.Executor(), Counter[str]()
    before, begin = held(), time.monotonic()
    while time.monotonic() - begin < told.seconds and counts["trials"] < told.until:
        trial(executor, told.seed + counts["trials"], counts)
    if executor.distributed is not None:
        executor.distributed.close()
    left = held()
    assert left == before, f"open files and children were {before}, and are {left}"
    print(f"{dict(counts)}; nothing was left after {time.monotonic() - begin:.0f} s")
    return counts


if __name__ == "__main__":
    main()
