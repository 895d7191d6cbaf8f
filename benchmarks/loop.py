"""The slot loop beside the same NumPy calls written by hand."""

import numpy as np
from harness import Table, contest, native

import tensorlogic as tl


def tables() -> list[Table]:
    rng = np.random.default_rng(0)
    x, w = (rng.normal(size=(16, 16)).astype("float32") for _ in range(2))
    b = tl.GraphBuilder()
    tx, tw = b.input("x", (16, 16), "float32"), b.input("w", (16, 16), "float32")
    z = tx
    for _ in range(5):
        z = b.tanh(b.maximum(z @ tw + tx, 0.0))
    graph, executor, inputs = b.build(z=z), tl.Executor(), {"x": x, "w": w}

    def by_hand() -> np.ndarray:
        z = x
        for _ in range(5):
            z = np.tanh(np.maximum(np.matmul(z, w) + x, 0.0))
        return z

    def by_einsum() -> np.ndarray:
        z = x
        for _ in range(5):
            z = np.tanh(np.maximum(np.einsum("ij,jk->ik", z, w) + x, 0.0))
        return z

    watched = tl.Executor(context=tl.ExecutionContext([tl.Hook()]))
    contenders = {
        "NumPy by hand": by_hand,
        "Executor.execute": lambda: executor.execute(graph, inputs),
        "compiled to one function": native(graph, inputs),
        "the same with a hook attached": lambda: watched.execute(graph, inputs),
        "NumPy by hand with np.einsum": by_einsum,
    }
    return [contest("20 small operations on 16×16", "Per call, argument checks included.", contenders, rounds=30)]
