"""Predictions beside real runs: steps on 1 to 4 processes of this machine, and what a cluster that is not here would take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from time import perf_counter
from typing import Any

import numpy as np
from harness import Table, Timing

import tensorlogic as tl

S = tl.DistributedParallelismStrategy
ROUNDS = 25
PREDICTIONS = (
    6,
    12,
    18,
)  # rounds before which the step is predicted: what this machine does changes from one second to the next
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
LAYERS, WIDTH, ROWS = 16, 8192, 1 << 17
DEVICES = (8, 16, 32, 64, 128, 256, 512, 1024)
CLUSTER = tl.Cluster(
    flops=100e12,
    memory_bandwidth=2e12,
    bandwidth=200e9,
    latency=5e-6,
    memory=80 << 30,
    devices_per_machine=8,
    network_bandwidth=25e9,
    network_latency=20e-6,
)


def devices(count: int) -> list[tl.Device]:
    return [tl.Device.CPU(n) for n in range(count)]


def layers(count: int, width: int, rows: int | str) -> tl.EinsumGraph:
    """Return the loss of square layers and its gradients."""
    b = tl.GraphBuilder()
    h = b.input("x", (rows, width), "float32")
    names = [f"w{n}" for n in range(count)]
    for name in names:
        h = b.relu(h @ b.input(name, (width, width), "float32"))
    return tl.value_and_grad(b.build(loss=b.mean(b.square(h))), wrt=names)


def jobs() -> dict[str, tuple[tl.EinsumGraph, dict[str, Any], list[Any]]]:
    """Return graphs, inputs, and the strategies that they run by."""
    from training import data, step_graph

    inputs, weights = data(1024)
    mlp = step_graph(1024, list(weights))
    rng = np.random.default_rng(0)
    wide = tl.GraphBuilder()
    x, w, v = (wide.input(n, s, "float32") for n, s in (("x", (64, 4096)), ("w", (4096, 4096)), ("v", (4096, 4096))))
    both = wide.build(y=wide.relu(x @ w) @ v)
    given = {
        n: (rng.normal(size=s) / 64).astype("f4")
        for n, s in (("x", (64, 4096)), ("w", (4096,) * 2), ("v", (4096,) * 2))
    }
    deep = layers(8, 512, "n")
    square = {"x": rng.normal(size=(1024, 512)).astype("f4")} | {
        f"w{n}": (rng.normal(size=(512, 512)) / 16).astype("f4") for n in range(8)
    }
    spec = {p: tl.ShardingSpec().shard_tensor("w", 1, p) for p in (2, 4)}
    return {
        "MLP step by shares of rows": (mlp, {**inputs, **weights}, [S.DataParallel(p, over="x") for p in (1, 2, 4)]),
        "4096-wide layers by shares of weights": (both, given, [S.ModelParallel(spec[p]) for p in (2, 4)]),
        "8 layers of 512 in stages": (deep, square, [S.PipelineParallel(p, 128) for p in (2, 4)]),
    }


def main() -> None:
    """Predict and run every job, and print the times of both as JSON."""
    executor = tl.Executor()
    here = tl.Cluster.measure("torch", executor=executor)
    print(here, file=sys.stderr)
    found = []
    for name, (graph, inputs, strategies) in jobs().items():
        for strategy in strategies:
            ranks = getattr(strategy, "num_replicas", 0) or getattr(strategy, "num_stages", 0)
            ranks = ranks or strategy.sharding_spec.tensors["w"].parts
            config = tl.DistributedConfig(devices(ranks), "torch", strategy)
            times, bubbles, predictions = [], [], []
            for n in range(ROUNDS):
                if n in PREDICTIONS:
                    start = perf_counter()
                    predictions.append(tl.simulate(graph, config, here, inputs, executor=executor, here=here))
                    took = perf_counter() - start
                for _ in range(1 if n else 3):
                    executor.execute_distributed(graph, inputs, config)
                stats = executor.get_distributed_stats()
                times.append(max(t.total_ns for t in stats.ranks) / 1e9)
                bubbles.append(stats.bubble)
            timed = sorted(predictions, key=lambda found: found.step_seconds)[len(predictions) // 2]
            guess = tl.simulate(graph, config, here, inputs, executor=executor)
            bubble = bubbles[times.index(min(times))]
            found.append([name, ranks, times, timed.step_seconds, guess.step_seconds, bubble, timed.bubble, took])
    if executor.distributed is not None:
        executor.distributed.close()
    print(json.dumps(found))


def beside_real_runs() -> list[Table]:
    """Return a table for each job: the measured step, what was predicted from timed steps, and from the plan alone."""
    done = subprocess.run(
        [sys.executable, __file__], env={**os.environ, **ONE_THREAD}, stdout=subprocess.PIPE, text=True, check=True
    )
    tables = []
    for name, ranks, times, timed, guess, bubble, predicted_bubble, _ in json.loads(done.stdout.splitlines()[-1]):
        note = "Processes with one BLAS thread each, on one machine; a prediction is one figure, the middle of three that were made among the runs."
        if "stages" in name:
            note += f" The bubble was {bubble:.0%}, predicted {predicted_bubble:.0%}."
        rows = (
            Timing("measured step", min(times), sorted(times)[len(times) // 2], tuple(times)),
            Timing("predicted, steps timed here", timed, timed),
            Timing("predicted from the plan", guess, guess),
        )
        tables.append(Table(f"{name}, {ranks} process{'es' * (ranks > 1)}", note, rows))
    return tables


def scaling() -> list[Table]:
    """Return the predicted step of deep layers on clusters of more and more devices."""
    graph = layers(LAYERS, WIDTH, "n")
    given = {"sizes": {"n": ROWS}}
    note = (
        "Predicted, not measured: devices of 100 TFLOP/s with 80 GiB, 8 to a machine with 200 GB/s between them, 25 GB/s between machines. "
        f"Training step, {LAYERS} layers of {WIDTH:,} by {WIDTH:,}, {ROWS:,} rows in all."
    )
    executor = tl.Executor()
    tables = []
    for count in DEVICES:
        ways = {
            "rows alone": S.DataParallel(count),
            "rows × 8 shares of weights": S.Hybrid(count // 8, 8, 1),
            "rows × 4 stages": S.Hybrid(count // 4, 1, 4, ROWS // 16),
            "what Auto finds": S.Auto(show=None, micro_batch_size=ROWS // 16),
        }
        timings = []
        for name, strategy in ways.items():
            config = tl.DistributedConfig(devices(count), strategy=strategy)
            took = tl.simulate(graph, config, CLUSTER, executor=executor, **given).step_seconds
            timings.append(Timing(name, took, took))
        tables.append(Table(f"Predicted step on {count:,} devices", note, tuple(timings)))
    return tables


def tables() -> list[Table]:
    """Measure, and predict."""
    return [*beside_real_runs(), *scaling()]


if __name__ == "__main__":
    main()
