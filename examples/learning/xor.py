"""XOR, the smallest task that one layer cannot learn: two layers do, by every optimizer.

Minsky and Papert (1969): no single layer of weights gets more than 3 of the 4 cases right. Run it: python examples/learning/xor.py
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

CASES = {"x": np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "float32"), "y": np.array([0, 1, 1, 0], "float32")}
OPTIMIZERS = {
    "sgd": tl.optim.sgd(1.0),
    "momentum": tl.optim.momentum(0.2),
    "adam": tl.optim.adam(0.05),
    "lion": tl.optim.lion(0.02),
}


def loss_graph(hidden: int) -> tl.EinsumGraph:
    """Build a classifier with one hidden layer, or with none."""
    b = tl.GraphBuilder()
    x, y = b.input("x", ("n", 2), "float32"), b.input("y", ("n",), "float32")
    if hidden:
        x = b.tanh(b.linear(x, b.input("w1", (2, hidden), "float32"), b.input("c1", (hidden,), "float32")))
    logits = b.linear(x, b.input("w", (hidden or 2, 1), "float32"), b.input("c", (1,), "float32"))[:, 0]
    right = b.equal(logits > 0, y > 0.5)
    return b.build(loss=b.binary_cross_entropy(logits, y), accuracy=b.mean(b.cast(right, "float32")))


def learn(hidden: int, optimizer: Any, epochs: int, seed: int) -> tl.History:
    """Learn the four cases and return the history."""
    graph = loss_graph(hidden)
    params = tl.initial(graph, [n for n in graph.inputs if n not in CASES], seed=seed)
    config = tl.TrainerConfig(optimizer=optimizer, epochs=epochs, batch_size=4, seed=seed)
    return tl.Trainer(tl.Executor(), config).fit(graph, params, CASES)


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Learn with one layer and with two, and print how many of the four cases are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    found, rows = {}, []
    runs = [
        ("one layer, adam", 0, OPTIMIZERS["adam"]),
        *((f"two layers, {n}", options.hidden, o) for n, o in OPTIMIZERS.items()),
    ]
    for name, hidden, optimizer in runs:
        histories = [learn(hidden, optimizer, options.epochs, seed) for seed in range(options.seeds)]
        right = [4 * history["accuracy"][-1] for history in histories]
        found[name] = float(np.mean(right))
        loss = np.mean([history["loss"][-1] for history in histories])
        rows.append([name, f"{found[name]:.1f}", "at most 3" if not hidden else "4", f"{loss:.4f}"])
    print(f"XOR, {options.epochs} epochs, mean of {options.seeds} seeds")
    print(table(["network", "right of 4", "possible", "loss"], rows, right={1, 2, 3}))
    return found


if __name__ == "__main__":
    main()
