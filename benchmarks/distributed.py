"""Two processes with one BLAS thread each beside one: a training step by shares of rows, a wide layer by shares of weights, PyTorch's DDP."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import prediction
from harness import Table, Timing

import tensorlogic as tl

ROUNDS, REPEATS, BATCH, WIDE = 15, 3, 1024, 4096


def step() -> Callable[[], object]:
    """Return a training step of the MLP on a share of the rows."""
    from training import data, step_graph

    inputs, weights = data(BATCH)
    graph = step_graph(BATCH, list(weights))
    size = int(os.environ["WORLD_SIZE"])
    if size == 1:
        compiled = tl.Executor().compile_graph(graph)
        return lambda: compiled({**inputs, **weights})
    strategy = tl.DistributedParallelismStrategy.DataParallel(size, over="x")
    return _distributed(graph, {**inputs, **weights}, strategy)


def wide() -> Callable[[], object]:
    """Return a layer of 4096 by 4096 and back, of which each rank has a share of the weights."""
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    x = b.input("x", (64, WIDE), "float32")
    y = b.relu(x @ b.input("w", (WIDE, WIDE), "float32")) @ b.input("v", (WIDE, WIDE), "float32")
    graph = b.build(y=y)
    inputs = {
        n: (rng.normal(size=s) / 64).astype("f4")
        for n, s in {"x": (64, WIDE), "w": (WIDE,) * 2, "v": (WIDE,) * 2}.items()
    }
    size = int(os.environ["WORLD_SIZE"])
    if size == 1:
        compiled = tl.Executor().compile_graph(graph)
        return lambda: compiled(inputs)
    spec = tl.ShardingSpec().shard_tensor("w", 1, size)
    return _distributed(graph, inputs, tl.DistributedParallelismStrategy.ModelParallel(spec))


def _distributed(graph: tl.EinsumGraph, inputs: dict[str, Any], strategy: Any) -> Callable[[], object]:
    executor = tl.Executor()
    devices = [tl.Device.CPU(n) for n in range(int(os.environ["WORLD_SIZE"]))]
    config = tl.DistributedConfig(devices, "torch", strategy)
    return lambda: executor.execute_distributed(graph, inputs, config)


def ddp() -> Callable[[], object]:
    """Return PyTorch's step of the same MLP, with DistributedDataParallel where there are several ranks."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from training import WIDTHS, data

    torch.set_num_threads(1)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    layers: list[Any] = []
    for n, (i, o) in enumerate(pairwise(WIDTHS)):
        layers += [torch.nn.Linear(i, o)] + [torch.nn.ReLU()] * (n < len(WIDTHS) - 2)
    model: Any = torch.nn.Sequential(*layers)
    if size > 1:
        dist.init_process_group("gloo", init_method=os.environ["TENSORLOGIC_MEETING"], rank=rank, world_size=size)
        model = DistributedDataParallel(model)
    inputs, _ = data(BATCH)
    x, labels = (torch.from_numpy(np.array_split(inputs[n], size)[rank]) for n in ("x", "t"))
    targets = labels.argmax(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), targets).backward()
        optimizer.step()

    return call


def meeting() -> Callable[[], object]:
    """Return an all_reduce of 1,024 numbers through the way that collectives take."""
    from tensorlogic.runtime.distributed.torch_ways import world_from_environment

    world, x = world_from_environment(60), np.ones(1024, "f4")
    return lambda: world.all_reduce(x, "add")


def raw_meeting() -> Callable[[], object]:
    """Return the same all_reduce as PyTorch does it."""
    import torch
    import torch.distributed as dist

    from tensorlogic.runtime.distributed.torch_ways import world_from_environment

    world_from_environment(60)
    x = torch.ones(1024)
    return lambda: dist.all_reduce(x)


JOBS = {"step": step, "wide": wide, "ddp": ddp, "meeting": meeting, "raw_meeting": raw_meeting}


def rank_main(name: str) -> None:
    """Run one job in this process and print the time of every round."""
    call = JOBS[name]()
    rounds = 300 if "meeting" in name else ROUNDS
    for _ in range(3):
        call()
    times = []
    for _ in range(rounds):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    if os.environ["RANK"] == "0":
        print(json.dumps(times))


def measured(job: str, ranks: int) -> list[float]:
    """Return the times of a job on so many processes with one BLAS thread each."""
    with tempfile.TemporaryDirectory() as folder:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        env = {**os.environ, **one, "WORLD_SIZE": str(ranks), "TENSORLOGIC_MEETING": (Path(folder) / "meeting").as_uri(),
               "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
        command = [sys.executable, __file__, job]
        processes = [
            subprocess.Popen(command, env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True)
            for r in range(ranks)
        ]
        said = [process.communicate(timeout=300)[0] for process in processes]
    return [float(t) for t in json.loads(said[0].splitlines()[-1])]


def _timings(contenders: dict[str, tuple[str, int]]) -> tuple[Timing, ...]:
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(REPEATS):
        for name, (job, ranks) in contenders.items():
            times[name] += measured(job, ranks)
    return tuple(Timing(name, min(t), statistics.median(t), tuple(t)) for name, t in times.items())


def tables() -> list[Table]:
    """Measure."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return []
    note = "Processes with one BLAS thread each, on one machine; the first row is one process."
    return [
        Table(
            f"Training step of an MLP by shares of rows, batch {BATCH}",
            note,
            _timings(
                {
                    "one process": ("step", 1),
                    "two processes": ("step", 2),
                    "PyTorch, one process": ("ddp", 1),
                    "PyTorch DDP, two processes": ("ddp", 2),
                }
            ),
        ),
        Table(
            f"A layer of {WIDE} by {WIDE} and back, 64 rows, by shares of weights",
            note,
            _timings({"one process": ("wide", 1), "two processes": ("wide", 2)}),
        ),
        Table(
            "An all_reduce of 4 KiB between two processes",
            "Through the way that collectives take, beside torch.distributed's own call.",
            _timings({"torch.distributed": ("raw_meeting", 2), "CommunicationBackend": ("meeting", 2)}),
        ),
        *prediction.tables(),
    ]


if __name__ == "__main__":
    rank_main(sys.argv[1])
