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
from typing import Any, NamedTuple

import numpy as np
import prediction
from harness import Table, Timing

import tensorlogic as tl

ROUNDS, TURNS, BATCH, WIDE, RATE = 20, 3, 1024, 4096, 0.01
MEETINGS = 25  # all_reduces of a turn of those that are timed alone
S = tl.DistributedParallelismStrategy
Call = Callable[[], object]
Arrays = dict[str, Any]


class Case(NamedTuple):
    """A graph, its inputs, and how two ranks share it."""

    graph: tl.EinsumGraph
    inputs: Arrays
    strategy: Any


def own_rank() -> int:
    """Return which of the two processes this is."""
    return int(os.environ["RANK"])


def devices(count: int) -> list[tl.Device]:
    """Return as many devices of this processor."""
    return [tl.Device.CPU(n) for n in range(count)]


def in_one(case: Case) -> Call:
    """Return the call of a graph in one process."""
    compiled = tl.Executor(native=True).compile_graph(case.graph)
    return lambda: compiled(case.inputs)


def in_two(case: Case) -> Call:
    """Return the call of a graph that two processes share."""
    executor, config = tl.Executor(native=True), tl.DistributedConfig(devices(2), "torch", case.strategy)
    return lambda: executor.execute_distributed(case.graph, case.inputs, config)


def apart(case: Case) -> Call:
    """Return the call of this process's share of a graph that gives nothing to the other: what the machine can do at the best."""
    from tensorlogic.ir.types import TensorType
    from tensorlogic.runtime.distributed.job import Job
    from tensorlogic.runtime.distributed.rank import run_rank
    from tensorlogic.runtime.distributed.timing import SilentCommunication

    executor, config = tl.Executor(native=True), tl.DistributedConfig(devices(2), "torch", case.strategy)
    job = Job(case.graph, {n: TensorType.of(x) for n, x in case.inputs.items()}, config, executor)
    tasks = job.tasks(own_rank(), [job.part(0)], [case.inputs])
    ways = {axis: SilentCommunication(2, own_rank()) for axis in ("data", "model")}
    return lambda: run_rank(executor, ways, tasks)


def mlp() -> Case:
    """Return a training step of the MLP, by shares of the rows."""
    from training import data, step_graph

    inputs, weights = data(BATCH)
    return Case(step_graph(BATCH, list(weights)), {**inputs, **weights}, S.DataParallel(2, over="x"))


def block() -> Case:
    """Return a training step of a transformer block, by shares of the sequences."""
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
    given = dict(zip(names, block_graph(x.shape, weights, True).constants.values(), strict=True))
    return Case(graph, {"x": x, **given}, S.DataParallel(2, over="x"))


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


def wide() -> Case:
    """Return a layer of 4096 by 4096 and back, by shares of the weights."""
    graph, inputs, spec = wide_case(2)
    return Case(graph, inputs, S.ModelParallel(spec))


def wide_case(parts: int) -> tuple[tl.EinsumGraph, Arrays, tl.ShardingSpec]:
    """Return the wide layer, its inputs, and how its weights are shared."""
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    x = b.input("x", (64, WIDE), "float32")
    y = b.relu(x @ b.input("w", (WIDE, WIDE), "float32")) @ b.input("v", (WIDE, WIDE), "float32")
    shapes = {"x": (64, WIDE), "w": (WIDE,) * 2, "v": (WIDE,) * 2}
    inputs = {name: rng.random(shape, "float32") / 64 for name, shape in shapes.items()}
    return b.build(y=y), inputs, tl.ShardingSpec().shard_tensor("w", 1, parts)


def _share(x: Any, ranks: int) -> Any:
    import torch

    return torch.from_numpy(np.array_split(x, ranks)[own_rank() if ranks > 1 else 0].copy())


def _trained(model: Any, loss: Callable[[Any], Any], ranks: int) -> Call:
    """Return PyTorch's training step of a model, with DistributedDataParallel where there are several ranks."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def call() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss(model).backward()
        optimizer.step()

    return call


def mlp_torch(ranks: int) -> Call:
    """Return PyTorch's step of the same MLP."""
    import torch
    from training import WIDTHS, data

    layers: list[Any] = []
    for n, (i, o) in enumerate(pairwise(WIDTHS)):
        layers += [torch.nn.Linear(i, o)] + [torch.nn.ReLU()] * (n < len(WIDTHS) - 2)
    inputs, _ = data(BATCH)
    x, targets = _share(inputs["x"], ranks), _share(inputs["t"], ranks).argmax(1)
    return _trained(torch.nn.Sequential(*layers), lambda m: torch.nn.functional.cross_entropy(m(x), targets), ranks)


def block_torch(ranks: int) -> Call:
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

    own = _share(x, ranks)
    return _trained(Block(), lambda m: m(own).square().mean(), ranks)


def meetings(world: Any) -> dict[str, Call]:
    """Return an all_reduce of 1,024 numbers: through the way that collectives take, and as PyTorch does it."""
    import torch
    import torch.distributed as dist

    x, y = np.ones(1024, "f4"), torch.ones(1024)
    return {"torch.distributed": lambda: dist.all_reduce(y), "CommunicationBackend": lambda: world.all_reduce(x, "add")}


CASES: dict[str, Callable[[], Case]] = {"mlp": mlp, "block": block, "wide": wide}
TORCH: dict[str, Callable[[int], Call]] = {"mlp": mlp_torch, "block": block_torch}
ALONE = ("one process", "PyTorch, one process")  # of which the other process waits for the end


def rank_main(names: list[str]) -> None:
    """Run cases in this process, beside one that does the same; turn by turn, so that a busy moment hits all of them."""
    import torch.distributed as dist

    from tensorlogic.runtime.distributed.torch_ways import world_from_environment

    world = world_from_environment(60)
    calls: dict[str, Call] = {}
    for name in names:
        if name == "meetings":
            calls |= {f"{name}/{label}": call for label, call in meetings(world).items()}
            continue
        case = CASES[name]()
        calls |= {f"{name}/one process": in_one(case), f"{name}/two processes": in_two(case)}
        calls[f"{name}/two processes that give each other nothing"] = apart(case)
        if name in TORCH:
            calls |= {
                f"{name}/PyTorch, one process": TORCH[name](1),
                f"{name}/PyTorch DDP, two processes": TORCH[name](2),
            }
    times: dict[str, list[float]] = {label: [] for label in calls}
    for n in range(ROUNDS + 1):
        for label, call in calls.items():
            dist.barrier()
            if label.endswith(ALONE) and world.rank and n:
                continue
            for _ in range(MEETINGS if label.startswith("meetings") else TURNS):
                start = perf_counter()
                call()
                if n:  # the first round warms up
                    times[label].append(perf_counter() - start)
    if world.rank == 0:
        print(json.dumps(times), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measured(names: list[str]) -> dict[str, dict[str, list[float]]]:
    """Return the times of cases, by name and contender, on two processes with one BLAS thread each."""
    with tempfile.TemporaryDirectory() as folder:
        one = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1")
        env = {**os.environ, **one, "WORLD_SIZE": "2", "TENSORLOGIC_MEETING": (Path(folder) / "meeting").as_uri()}
        processes = [
            subprocess.Popen(
                [sys.executable, __file__, *names], env={**env, "RANK": str(r)}, stdout=subprocess.PIPE, text=True
            )
            for r in range(2)
        ]
        said = [process.communicate(timeout=300)[0] for process in processes]
    found: dict[str, dict[str, list[float]]] = {name: {} for name in names}
    for label, times in json.loads(said[0].splitlines()[-1]).items():
        name, _, contender = label.partition("/")
        found[name][contender] = times
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
    times = measured([*CASES, "meetings"])
    note = (
        "Processes with one BLAS thread each, on one machine, turn by turn; the first row is one process, while the other waits. "
        "Two that give each other nothing compute their shares only: the most that this machine allows."
    )

    def of(title: str, name: str, note: str = note) -> Table:
        return Table(title, note, tuple(timing(label, found) for label, found in times[name].items()))

    raw = "Through the way that collectives take, beside torch.distributed's own call."
    return [
        of(f"Training step of an MLP by shares of rows, batch {BATCH}", "mlp"),
        of("Training step of a transformer block by shares of sequences", "block"),
        of(f"A layer of {WIDE} by {WIDE} and back, 64 rows, by shares of weights", "wide", f"{note} {memory()}"),
        of("An all_reduce of 4 KiB between two processes", "meetings", raw),
        driver(),
        *prediction.tables(),
    ]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        rank_main(sys.argv[1:])
    else:
        for each in tables():
            print(each.markdown())
