"""One training step of an MLP, forward, backward and update as one graph, beside NumPy by hand, JAX and PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
import training_loop
from harness import Contender, Table, contest, native, peer

import tensorlogic as tl

WIDTHS = (784, 512, 256, 10)
RATE = 0.01
PAUSE = 0.15  # OpenBLAS and others spin after their work, and halve the speed of whoever comes next
Array = Any


def data(batch: int) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return the inputs and the weights."""
    rng = np.random.default_rng(0)
    weights = {}
    for n, (i, o) in enumerate(pairwise(WIDTHS)):
        weights[f"w{n}"] = (rng.normal(size=(i, o)) / i**0.5).astype("float32")
        weights[f"b{n}"] = np.zeros(o, "float32")
    labels = np.eye(WIDTHS[-1], dtype="float32")[rng.integers(0, WIDTHS[-1], batch)]
    return {"x": rng.normal(size=(batch, WIDTHS[0])).astype("float32"), "t": labels}, weights


def loss_graph(batch: int) -> tl.EinsumGraph:
    """Return the mean cross-entropy of the network."""
    b = tl.GraphBuilder()
    z, last = b.input("x", (batch, WIDTHS[0]), "float32"), len(WIDTHS) - 2
    t = b.input("t", (batch, WIDTHS[-1]), "float32")
    for n, (i, o) in enumerate(pairwise(WIDTHS)):
        z = b.linear(z, b.input(f"w{n}", (i, o), "float32"), b.input(f"b{n}", (o,), "float32"))
        z = b.relu(z) if n < last else z
    return b.build(loss=-b.sum(t * b.log_softmax(z)) * (1.0 / batch))


def step_graph(batch: int, names: list[str]) -> tl.EinsumGraph:
    """Return the loss and the weights after one step down its gradient."""
    b = tl.GraphBuilder()
    made = b.inline(tl.value_and_grad(loss_graph(batch), wrt=names))
    given = {n: b.input(n, made[f"d_{n}"].shape, "float32") for n in names}
    return b.build(loss=made["loss"], **{n: given[n] - RATE * made[f"d_{n}"] for n in names})


def ours(batch: int, config: tl.CompilationConfig) -> Contender:
    """Return the step as one compiled graph; new weights go where those before the last stood."""
    inputs, weights = data(batch)
    compiled = tl.Executor().compile_graph(step_graph(batch, list(weights)), config)
    now, then = ({n: w.copy() for n, w in weights.items()} for _ in range(2))

    def call() -> float:
        nonlocal now, then
        loss = compiled({**inputs, **now}, out=then)["loss"]
        now, then = then, now
        return float(loss)

    for _ in range(3000):
        call()
        if "not decided" not in compiled.executor.explain():
            break
    return call


def by_hand(batch: int) -> Callable[[], float]:
    """Return the step as anyone would write it who keeps buffers and updates in place."""
    inputs, weights = data(batch)
    x, t = inputs["x"], inputs["t"]
    w, c = ([weights[f"{k}{n}"].copy() for n in range(3)] for k in "wb")
    h = [np.empty((batch, o), "float32") for o in WIDTHS[1:]]
    d = [np.empty((batch, o), "float32") for o in WIDTHS[1:]]
    g = [np.empty_like(m) for m in w]

    def call() -> float:
        below = x
        for n in range(3):
            np.matmul(below, w[n], out=h[n])
            np.add(h[n], c[n], out=h[n])
            below = np.maximum(h[n], 0, out=h[n]) if n < 2 else h[n]
        z = h[2] - h[2].max(axis=1, keepdims=True)
        e = np.exp(z)
        s = e.sum(axis=1, keepdims=True)
        loss = -float((t * (z - np.log(s))).sum()) / batch
        np.divide(e, s, out=d[2])
        np.subtract(d[2], t, out=d[2])
        np.multiply(d[2], np.float32(1 / batch), out=d[2])
        for n in (2, 1, 0):
            np.matmul((h[n - 1] if n else x).T, d[n], out=g[n])
            bias = d[n].sum(axis=0)
            if n:
                np.matmul(d[n], w[n].T, out=d[n - 1])
                np.multiply(d[n - 1], h[n - 1] > 0, out=d[n - 1])
            np.multiply(g[n], np.float32(RATE), out=g[n])
            np.subtract(w[n], g[n], out=w[n])
            np.subtract(c[n], np.float32(RATE) * bias, out=c[n])
        return loss

    return call


def jax_step(batch: int) -> Contender:
    import jax
    import jax.numpy as jnp

    inputs, weights = data(batch)

    def loss(w: dict[str, Array], x: Array, t: Array) -> Array:
        for n in range(3):
            x = x @ w[f"w{n}"] + w[f"b{n}"]
            x = jnp.maximum(x, 0) if n < 2 else x
        return -jnp.sum(t * jax.nn.log_softmax(x)) / batch

    @partial(jax.jit, donate_argnums=0)
    def step(w: dict[str, Array], x: Array, t: Array) -> Any:
        value, d = jax.value_and_grad(loss)(w, x, t)
        return value, {n: v - RATE * d[n] for n, v in w.items()}

    state = {n: jax.device_put(v) for n, v in weights.items()}
    x, t = jax.device_put(inputs["x"]), jax.device_put(inputs["t"])

    def call() -> float:
        nonlocal state
        value, state = step(state, x, t)
        return float(value.block_until_ready())

    return call


def torch_step(batch: int) -> Contender:
    import torch

    inputs, weights = data(batch)
    x, labels = torch.from_numpy(inputs["x"]), torch.from_numpy(inputs["t"].argmax(axis=1))
    state = {n: torch.from_numpy(v.copy()).requires_grad_() for n, v in weights.items()}
    optimizer = torch.optim.SGD(state.values(), lr=RATE)

    def call() -> float:
        z = x
        for n in range(3):
            z = torch.addmm(state[f"b{n}"], z, state[f"w{n}"])
            z = torch.relu(z) if n < 2 else z
        loss = torch.nn.functional.cross_entropy(z, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return call


def backward(title: str, graph: tl.EinsumGraph, inputs: dict[str, Array], weights: list[str], calls: int) -> Table:
    """Time a loss alone, with its gradients for the weights, and with those for all inputs."""
    graphs = {
        "forward": graph,
        "forward and backward, weights": tl.value_and_grad(graph, wrt=weights),
        "forward and backward, all inputs": tl.value_and_grad(graph),
    }
    contenders: dict[str, Contender] = {name: native(g, inputs) for name, g in graphs.items()}
    note = "Compiled to machine code; the goal is 3.2 in all, backward at most 2.2 times forward."
    return contest(title, note, contenders, rounds=15, calls=calls, pause=PAUSE, each=True)


def backwards() -> list[Table]:
    """Time the backward runs of the MLP and of a transformer block with all weights as parameters."""
    found = []
    for batch, calls in ((64, 20), (1024, 5)):
        inputs, weights = data(batch)
        title = f"Backward of the MLP, batch {batch}"
        found.append(backward(title, loss_graph(batch), {**inputs, **weights}, list(weights), calls))
    import models

    case = models.block(True)
    b = tl.GraphBuilder()
    weights = {f"p{n}": v for n, v in enumerate(case.graph.constants.values())}
    made = b.inline(models.parameters(case.graph))["y"]
    graph = b.build(loss=b.sum(b.square(made)))
    return [*found, backward("Backward of the transformer block", graph, {**case.inputs, **weights}, list(weights), 4)]


def losses(call: Contender, steps: int) -> list[float]:
    return [call() for _ in range(steps)]  # type: ignore[operator, misc]


def tables() -> list[Table]:
    found = []
    for batch in (64, 1024):
        first = losses(by_hand(batch), 5)
        for level in (tl.OptimizationLevel.STANDARD, tl.OptimizationLevel.AGGRESSIVE):  # the same descent
            inputs, weights = data(batch)
            graph, executor = step_graph(batch, list(weights)), tl.Executor(optimization_level=level)
            seen = []
            for _ in range(5):
                out = executor.execute(graph, {**inputs, **weights})
                seen.append(float(out["loss"]))
                weights = {n: out[n] for n in weights}
            np.testing.assert_allclose(seen, first, rtol=1e-4)
        plain, machine = "compiled, STANDARD", "compiled to machine code"
        trainers = {"the step of a trainer": "exact", 'the step of a trainer, policy="fast"': "fast"}
        inputs, weights = data(batch)
        contenders: dict[str, Contender] = {
            "NumPy by hand": by_hand(batch),
            "JAX jit": peer("jax", lambda batch=batch: jax_step(batch)),
            "PyTorch": peer("torch", lambda batch=batch: torch_step(batch)),
            plain: ours(batch, tl.CompilationConfig()),
            machine: ours(batch, tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE)),
        }
        for name, policy in trainers.items():
            bound = training_loop.ready(loss_graph(batch), weights, inputs, tl.optim.sgd(RATE), policy)
            contenders[name] = training_loop.stepping(bound, inputs, RATE)
        note = "784-512-256-10, cross-entropy, SGD, float32. The goal is 1.0 of NumPy by hand, and less than JAX and PyTorch."
        found.append(
            contest(
                f"Training step of an MLP, batch {batch}",
                note,
                contenders,
                rounds=20,
                calls=20 if batch == 64 else 5,
                ours=(plain, machine, *trainers),
                pause=PAUSE,
                each=True,
            )
        )
    return [*found, *backwards(), *training_loop.tables()]


if __name__ == "__main__":
    for table in tables():
        print(table.markdown())
