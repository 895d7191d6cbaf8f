"""The trainer beside its own step and beside others: optimizers, an epoch of a convolution, and what the loop costs around a step."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from harness import Contender, Table, contest, peer

import tensorlogic as tl
from tensorlogic.runtime.call import call
from tensorlogic.train.bound_step import BoundStep
from tensorlogic.train.trainer import Trainer

PAUSE = 0.15  # OpenBLAS and others spin after their work, and halve the speed of whoever comes next
IMAGES = 1797  # as many as in the digits of scikit-learn, of the same shape
BATCH = 64
LONG_RUN = 100_000  # steps or epochs, of which as many are taken as are timed
Array = Any


def ready(
    graph: tl.EinsumGraph, params: dict[str, Array], inputs: dict[str, Array], optimizer: Any, policy: str = "fast"
) -> BoundStep:
    """Return the step that a trainer takes, with its parameters and states as they are after one batch."""
    rows = len(next(iter(inputs.values())))
    config = tl.TrainerConfig(optimizer=optimizer, epochs=1, batch_size=rows, shuffle=False, progress=False)
    trainer = tl.Trainer(tl.Executor(policy=policy), config)
    trainer.fit(graph, params, inputs)
    return step_of(trainer)


def step_of(trainer: Trainer) -> BoundStep:
    """Return the step as it is in a long run."""
    assert trainer.loss is not None
    step = trainer.planned(trainer.loss)
    return BoundStep(trainer.executor, step, trainer.values, trainer.given(), calls=LONG_RUN)


def stepping(bound: BoundStep, inputs: dict[str, Array], rate: float) -> Callable[[], float]:
    """Return one step on the same batch again and again."""
    return lambda: bound(inputs, rate, 1)[0]


def optimizers(graph: tl.EinsumGraph, params: dict[str, Array], inputs: dict[str, Array]) -> Table:
    """Time a step of each optimizer on the same network."""
    rows = len(next(iter(inputs.values())))
    makers = {"SGD": tl.optim.sgd, "momentum": tl.optim.momentum, "Adam": tl.optim.adam, "Lion": tl.optim.lion}
    # so small that no optimizer learns the batch by heart: gradients of a loss of 0 are too small for quick arithmetic
    rate = 1e-7
    contenders: dict[str, Contender] = {
        name: stepping(ready(graph, params, inputs, make(rate), "exact"), inputs, rate) for name, make in makers.items()
    }
    note = "The step of a default trainer in a long run, on one batch. The goal is Adam within 1.1 of SGD."
    title = f"Optimizers on the MLP, batch {rows}"
    calls = 20 if rows < 256 else 5
    return contest(title, note, contenders, rounds=12, calls=calls, ours=tuple(contenders), pause=PAUSE, each=True)


def digits_graph() -> tl.EinsumGraph:
    """Return two convolutions, a pool and a linear layer on images of 8 by 8."""
    b = tl.GraphBuilder()
    x, labels = b.input("x", ("n", 8, 8, 1), "float32"), b.input("labels", ("n",), "int64")
    shapes = {"w1": (3, 3, 1, 16), "c1": (16,), "w2": (3, 3, 16, 32), "c2": (32,), "w3": (512, 10), "c3": (10,)}
    p = {name: b.input(name, shape, "float32") for name, shape in shapes.items()}
    h = b.relu(b.conv(x, p["w1"], p["c1"], padding="same"))
    h = b.max_pool(b.relu(b.conv(h, p["w2"], p["c2"], padding="same")), 2)
    return b.build(loss=b.cross_entropy(b.linear(b.reshape(h, ("n", 512)), p["w3"], p["c3"]), labels))


NAMES = ["w1", "c1", "w2", "c2", "w3", "c3"]


def images() -> dict[str, Array]:
    rng = np.random.default_rng(0)
    return {"x": rng.random((IMAGES, 8, 8, 1), "float32"), "labels": rng.integers(0, 10, IMAGES)}


class OneEpoch(tl.Callback):
    """Ends a run after an epoch."""

    def on_epoch(self, trainer: Trainer, figures: object) -> None:
        trainer.stop("an epoch is timed")


def epoch_of(policy: str) -> Callable[[], object]:
    """Return what trains one more epoch of a long run each time."""
    graph, data = digits_graph(), images()
    config = tl.TrainerConfig(optimizer=tl.optim.sgd(0.01), epochs=LONG_RUN, batch_size=BATCH, progress=False)
    trainer = tl.Trainer(tl.Executor(policy=policy), config, callbacks=[OneEpoch()])
    return lambda: trainer.fit(graph, tl.initial(graph, NAMES), data)["loss"][-1]


def jax_epoch() -> Callable[[], object]:
    import jax
    import jax.numpy as jnp

    data, params = images(), {n: jnp.asarray(v) for n, v in tl.initial(digits_graph(), NAMES).items()}

    def conv(x: Array, w: Array, c: Array) -> Array:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jnp.maximum(y + c, 0)

    def loss(p: dict[str, Array], x: Array, labels: Array) -> Array:
        h = conv(conv(x, p["w1"], p["c1"]), p["w2"], p["c2"])
        h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        z = jax.nn.log_softmax(h.reshape(len(x), 512) @ p["w3"] + p["c3"])
        return -jnp.mean(jnp.take_along_axis(z, labels[:, None], 1))

    @partial(jax.jit, donate_argnums=0)
    def step(p: dict[str, Array], x: Array, labels: Array) -> Any:
        value, d = jax.value_and_grad(loss)(p, x, labels)
        return value, {n: v - 0.01 * d[n] for n, v in p.items()}

    rng = np.random.default_rng(0)

    def call() -> object:
        nonlocal params
        order, value = rng.permutation(IMAGES), None
        for start in range(0, IMAGES, BATCH):
            rows = order[start : start + BATCH]
            value, params = step(params, data["x"][rows], data["labels"][rows])
        return float(value)

    return call


def torch_epoch() -> Callable[[], object]:
    import torch

    data = images()
    x, labels = torch.from_numpy(data["x"]).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(data["labels"])
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 16, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(512, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def call() -> object:
        value = 0.0
        for rows in torch.randperm(IMAGES).split(BATCH):
            loss = torch.nn.functional.cross_entropy(model(x[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            value = float(loss.detach())
        return value

    return call


def convolution() -> Table:
    contenders: dict[str, Contender] = {
        "PyTorch": peer("torch", torch_epoch),
        "JAX jit": peer("jax", jax_epoch),
        "trainer": epoch_of("exact"),
        'trainer, policy="fast"': epoch_of("fast"),
    }
    note = f"{IMAGES} images of 8 by 8, batches of {BATCH}, SGD, float32. The goal is to be no slower than PyTorch."
    ours = ("trainer", 'trainer, policy="fast"')
    return contest("An epoch of a convolution", note, contenders, rounds=8, calls=1, ours=ours, pause=PAUSE)


def overhead() -> Table:
    """Time the steps of ``fit`` beside bare calls of the same program: the difference is what the loop costs."""
    b, batches = tl.GraphBuilder(), 1000
    x, labels = b.input("x", ("n", 16), "float32"), b.input("labels", ("n",), "int64")
    graph = b.build(
        loss=b.cross_entropy(b.linear(x, b.input("w", (16, 4), "float32"), b.input("c", (4,), "float32")), labels)
    )
    rng = np.random.default_rng(0)
    data = {"x": rng.random((8 * batches, 16), "float32"), "labels": rng.integers(0, 4, 8 * batches)}
    trainer = tl.Trainer(tl.Executor(policy="fast"))

    def fit() -> object:
        trainer.config = tl.TrainerConfig(
            optimizer=tl.optim.sgd(0.01), epochs=trainer.epoch + 1, batch_size=8, progress=False
        )
        return trainer.fit(graph, tl.initial(graph, ["w", "c"]), data)

    fit()
    bound, batch = step_of(trainer), {name: value[:8].copy() for name, value in data.items()}
    bound(batch, 0.01, 1)
    (program,) = bound.programs.values()
    places = [(bound.inputs.index(name), n) for n, name in bound.carried]

    def bare() -> object:
        inputs = {**bound.given, **bound.values, **batch}
        ordered = [inputs[name] for name in bound.inputs]
        for _ in range(batches):
            results = call(program, ordered)
            for place, n in places:
                ordered[place] = results[n]
        return results[0]

    contenders: dict[str, Contender] = {
        f"{batches:,} bare calls of the program": bare,
        f"fit, {batches:,} batches": fit,
    }
    note = "A linear layer on batches of 8, shuffled. The goal is less than 30 µs a step between the two: 30 ms here."
    return contest("What the loop costs around a step", note, contenders, rounds=12, calls=1)


def tables() -> list[Table]:
    import training

    found = []
    for batch in (64, 1024):
        inputs, weights = training.data(batch)
        found.append(optimizers(training.loss_graph(batch), weights, inputs))
    return [*found, convolution(), overhead()]


if __name__ == "__main__":
    for table in tables():
        print(table.markdown())
