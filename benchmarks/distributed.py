"""Two processes with one BLAS thread each beside one: training steps by shares of rows, a wide layer by shares of weights, PyTorch's DDP, a driver."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import prediction
from harness import Table, Timing

import tensorlogic as tl

ROUNDS, REPEATS, BATCH, WIDE, RATE = 12, 3, 1024, 4096, 0.01
MEETINGS = 300  # all_reduces of a round of those that are timed alone
S = tl.DistributedParallelismStrategy
Call = Callable[[], object]
Arrays = dict[str, Any]


def size() -> int:
    """Return how many processes take part."""
    return int(os.environ["WORLD_SIZE"])


def devices(count: int) -> list[tl.Device]:
    """Return as many devices of this processor."""
    return [tl.Device.CPU(n) for n in range(count)]


def run(graph: tl.EinsumGraph, inputs: Arrays, strategy: Any) -> Call:
    """Return the call of a graph: compiled in one process, spread by a strategy over several."""
    if size() == 1:
        compiled = tl.Executor().compile_graph(graph)
        return lambda: compiled(inputs)
    executor, config = tl.Executor(), tl.DistributedConfig(devices(size()), "torch", strategy)
    return lambda: executor.execute_distributed(graph, inputs, config)


def mlp() -> Call:
    """Return a training step of the MLP on a share of the rows."""
    from training import data, step_graph

    inputs, weights = data(BATCH)
    return run(step_graph(BATCH, list(weights)), {**inputs, **weights}, S.DataParallel(size(), over="x"))


def block() -> Call:
    """Return a training step of a transformer block on a share of the sequences."""
    from models import block_graph, parameters

    x, weights = block_data()
    forward = parameters(block_graph(x.shape, weights, True))
    b = tl.GraphBuilder()
    loss = b.build(loss=b.mean(b.square(b.inline(forward)["y"])))
    names = [name for name in loss.inputs if name != "x"]
    c = tl.GraphBuilder()
    made = c.inline(tl.value_and_grad(loss, wrt=names))
    now = {n: c.input(n, made[f"d_{n}"].shape, "float32") for n in names}
    graph = c.build(loss=made["loss"], **{n: now[n] - RATE * made[f"d_{n}"] for n in names})
    given = dict(zip(names, _constants(x.shape, weights).values(), strict=True))
    return run(graph, {"x": x, **given}, S.DataParallel(size(), over="x"))


def _constants(shape: tuple[int, ...], weights: Arrays) -> Arrays:
    from models import block_graph

    return dict(block_graph(shape, weights, True).constants)


def block_data() -> tuple[Any, Arrays]:
    """Return the sequences and the weights of the block."""
    from models import LENGTH, D

    rng = np.random.default_rng(0)
    shapes = {"qkv": (D, 3 * D), "out": (D, D), "up": (D, 4 * D), "down": (4 * D, D)}
    weights = {f"w_{k}": (rng.normal(size=s) / s[0] ** 0.5).astype("float32") for k, s in shapes.items()}
    weights |= {f"b_{k}": rng.normal(size=s[1]).astype("float32") * np.float32(0.1) for k, s in shapes.items()}
    for n in "12":
        weights |= {f"{k}{n}": rng.normal(size=D).astype("float32") for k in ("scale", "bias")}
    from models import BATCH as SEQUENCES

    return rng.normal(size=(SEQUENCES, LENGTH, D)).astype("float32"), weights


def wide() -> Call:
    """Return a layer of 4096 by 4096 and back, of which each rank has a share of the weights."""
    graph, inputs, spec = wide_case(max(2, size()))
    return run(graph, inputs, S.ModelParallel(spec))


def wide_case(parts: int) -> tuple[tl.EinsumGraph, Arrays, tl.ShardingSpec]:
    """Return the wide layer, its inputs, and how its weights are shared."""
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    x = b.input("x", (64, WIDE), "float32")
    y = b.relu(x @ b.input("w", (WIDE, WIDE), "float32")) @ b.input("v", (WIDE, WIDE), "float32")
    shapes = {"x": (64, WIDE), "w": (WIDE,) * 2, "v": (WIDE,) * 2}
    inputs = {name: rng.random(shape, "float32") / 64 for name, shape in shapes.items()}
    return b.build(y=y), inputs, tl.ShardingSpec().shard_tensor("w", 1, parts)


def _share(x: Any) -> Any:
    import torch

    return torch.from_numpy(np.array_split(x, size())[int(os.environ["RANK"])].copy())


def _trained(model: Any, loss: Callable[[Any], Any]) -> Call:
    """Return PyTorch's training step of a model, with DistributedDataParallel where there are several ranks."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    if size() > 1:
        from tensorlogic.runtime.distributed.torch_ways import world_from_environment

        world_from_environment(60)
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model).backward()
        optimizer.step()

    return call


def mlp_ddp() -> Call:
    """Return PyTorch's step of the same MLP."""
    import torch
    from training import WIDTHS, data

    layers: list[Any] = []
    for n, (i, o) in enumerate(pairwise(WIDTHS)):
        layers += [torch.nn.Linear(i, o)] + [torch.nn.ReLU()] * (n < len(WIDTHS) - 2)
    inputs, _ = data(BATCH)
    x, targets = _share(inputs["x"]), _share(inputs["t"]).argmax(1)
    return _trained(torch.nn.Sequential(*layers), lambda m: torch.nn.functional.cross_entropy(m(x), targets))


def block_ddp() -> Call:
    """Return PyTorch's step of the same transformer block."""
    import torch
    from models import HEAD, HEADS
    from torch.nn import functional

    x, weights = block_data()

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.from_numpy(v)) for n, v in weights.items()})

        def forward(self, x: Any) -> Any:
            w, width = self.w, x.shape[-1]
            z = functional.layer_norm(x, (width,), w["scale1"], w["bias1"]) @ w["w_qkv"] + w["b_qkv"]
            q, k, v = (t.reshape(*x.shape[:2], HEADS, HEAD).transpose(1, 2) for t in z.split(width, -1))
            z = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
            x = x + z @ w["w_out"] + w["b_out"]
            z = functional.layer_norm(x, (width,), w["scale2"], w["bias2"]) @ w["w_up"] + w["b_up"]
            return x + functional.gelu(z, approximate="tanh") @ w["w_down"] + w["b_down"]

    own = _share(x)
    return _trained(Block(), lambda m: m(own).square().mean())


def meeting() -> Call:
    """Return an all_reduce of 1,024 numbers through the way that collectives take."""
    from tensorlogic.runtime.distributed.torch_ways import world_from_environment

    world, x = world_from_environment(60), np.ones(1024, "f4")
    return lambda: world.all_reduce(x, "add")


def raw_meeting() -> Call:
    """Return the same all_reduce as PyTorch does it."""
    import torch
    import torch.distributed as dist

    from tensorlogic.runtime.distributed.torch_ways import world_from_environment

    world_from_environment(60)
    x = torch.ones(1024)
    return lambda: dist.all_reduce(x)


TOGETHER: dict[str, Callable[[], Call]] = {"raw_meeting": raw_meeting, "meeting": meeting}
JOBS = {"mlp": mlp, "mlp_ddp": mlp_ddp, "block": block, "block_ddp": block_ddp, "wide": wide}


def rank_main(names: list[str]) -> None:
    """Run jobs in this process, round after round in turn, and print the times of each."""
    calls = {name: (JOBS | TOGETHER)[name]() for name in names}
    for call in calls.values():
        for _ in range(3):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            for _ in range(MEETINGS // ROUNDS if name in TOGETHER else 1):
                start = perf_counter()
                call()
                times[name].append(perf_counter() - start)
    if os.environ["RANK"] == "0":
        print(json.dumps(times), flush=True)
    if size() > 1:
        import torch.distributed as dist

        dist.destroy_process_group()


def measured(names: list[str], ranks: int) -> dict[str, list[float]]:
    """Return the times of jobs on so many processes with one BLAS thread each."""
    with tempfile.TemporaryDirectory() as folder:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        env = {
            **os.environ,
            **one,
            "WORLD_SIZE": str(ranks),
            "TENSORLOGIC_MEETING": (Path(folder) / "meeting").as_uri(),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        command = [sys.executable, __file__, *names]
        processes = [
            subprocess.Popen(command, env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True)
            for r in range(ranks)
        ]
        said = [process.communicate(timeout=300)[0] for process in processes]
    found: dict[str, list[float]] = json.loads(said[0].splitlines()[-1])
    return found


def timing(name: str, times: list[float]) -> Timing:
    """Return the best and the median of times."""
    return Timing(name, min(times), statistics.median(times), tuple(times))


def driver() -> Table:
    """Measure what a call of the driver takes beside what its ranks take, with warm workers and weights that stay."""
    from training import data, loss_graph

    executor = tl.Executor()
    config = tl.DistributedConfig(devices(2), "torch", S.DataParallel(2, over="x"))
    inputs, weights = data(64)
    for weight in weights.values():
        weight.setflags(write=False)  # so that it is known not to change
    calls, ranks = [], []
    call = partial(executor.execute_distributed, loss_graph(64), {**inputs, **weights}, config)
    for n in range(205):
        start = perf_counter()
        call()
        if n >= 5:
            calls.append(perf_counter() - start)
            ranks.append(max(own.total_ns for own in executor.get_distributed_stats().ranks) / 1e9)
    executor.distributed.close()  # type: ignore[union-attr]
    over = statistics.median(a - b for a, b in zip(calls, ranks, strict=True))
    note = f"The loss of the MLP on 64 rows, weights read-only; the driver adds {over * 1e3:.2f} ms (median)."
    return Table(
        "A call of a driver with two warm workers", note, (timing("the ranks", ranks), timing("the call", calls))
    )


def memory() -> str:
    """Return what each of four processes holds of the weights of the wide layer, and of the optimizer's state of the MLP, in words."""
    graph, inputs, spec = wide_case(4)
    executor = tl.Executor()
    executor.execute_distributed(graph, inputs, tl.DistributedConfig(devices(4), "torch", S.ModelParallel(spec)))
    most = max(own.held_bytes for own in executor.get_distributed_stats().ranks) - inputs["x"].nbytes
    executor.distributed.close()  # type: ignore[union-attr]
    share = most / (inputs["w"].nbytes + inputs["v"].nbytes)
    held = [optimizer_bytes(shares) for shares in (False, True)]
    text = f"Four processes hold {share:.1%} of the weights each at most. "
    return (
        text
        + f"A rank of four that train the MLP with Adam holds {held[0] / 1e6:.1f} MB, with shard_optimizer {held[1] / 1e6:.1f} MB."
    )


def optimizer_bytes(shares: bool) -> int:
    """Return the most that one of four ranks holds while it trains the MLP with Adam."""
    from training import data, loss_graph

    inputs, weights = data(64)
    config = tl.DistributedConfig(devices(4), strategy=S.DataParallel(4, over="x"), shard_optimizer=shares)
    trainer = tl.Trainer(
        tl.Executor(), tl.TrainerConfig(optimizer=tl.optim.adam(), epochs=1, batch_size=64), distributed=config
    )
    trainer.fit(loss_graph(64), params=weights, data=inputs)
    return max(own.held_bytes for own in trainer.executor.get_distributed_stats().ranks)


def tables() -> list[Table]:
    """Measure."""
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        return []
    times: dict[tuple[str, int], list[float]] = {}
    for _ in range(REPEATS):
        for ranks in (1, 2):
            for name, found in measured([*JOBS, *(TOGETHER if ranks > 1 else ())], ranks).items():
                times.setdefault((name, ranks), []).extend(found)
    count = ("one process", "two processes")
    note = "Processes with one BLAS thread each, on one machine; the first row is one process."

    def rows(ours: str, peer: str = "") -> tuple[Timing, ...]:
        own = [timing(count[n - 1], times[ours, n]) for n in (1, 2)]
        return *own, *(timing(f"PyTorch{' DDP' * (n > 1)}, {count[n - 1]}", times[peer, n]) for n in (1, 2) if peer)

    return [
        Table(f"Training step of an MLP by shares of rows, batch {BATCH}", note, rows("mlp", "mlp_ddp")),
        Table("Training step of a transformer block by shares of sequences", note, rows("block", "block_ddp")),
        Table(
            f"A layer of {WIDE} by {WIDE} and back, 64 rows, by shares of weights", f"{note} {memory()}", rows("wide")
        ),
        Table(
            "An all_reduce of 4 KiB between two processes",
            "Through the way that collectives take, beside torch.distributed's own call.",
            (timing("torch.distributed", times["raw_meeting", 2]), timing("CommunicationBackend", times["meeting", 2])),
        ),
        driver(),
        *prediction.tables(),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(sys.argv[1:])
    else:
        for each in tables():
            print(each.markdown())
