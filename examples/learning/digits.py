"""scikit-learn's digits, 1,797 images of 8 by 8: a perceptron and convolutions, in seconds.

The first half is learned, each image also moved by one place in all directions, and the second half is asked: the split of scikit-learn's
own example "Recognizing hand-written digits", whose support vector classifier gets 97 per cent right.

Run it: make data, then python examples/learning/digits.py [--epochs 8] [--seeds 3]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from digit_networks import NETWORKS, arrays_of

import tensorlogic as tl
from tensorlogic.tables import table

PUBLISHED = ("support vectors, published (scikit-learn)", "97", "", "")


def loss_graph(network: str, dropout: float) -> tl.EinsumGraph:
    """Build the cross entropy of images from 0 to 16, with the share that is right."""
    b = tl.GraphBuilder()
    images, labels = b.input("images", ("n", 8, 8), "uint8"), b.input("labels", ("n",), "int64")
    logits = NETWORKS[network](b, b.cast(images, "float32") * (1 / 16), dropout)
    right = b.mean(b.cast(b.equal(b.argmax(logits, -1), labels), "float32"))
    return b.build(loss=b.cross_entropy(logits, labels), accuracy=right)


def shifted(data: dict[str, Any]) -> dict[str, Any]:
    """Return images as they are and moved by one place, in all eight directions."""
    padded = np.pad(data["images"], [(0, 0), (1, 1), (1, 1)])
    moves = [padded[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)]
    return {"images": np.concatenate(moves), "labels": np.tile(data["labels"], len(moves))}


def learn(network: str, data: dict[str, Any], epochs: int, dropout: float, seed: int) -> float:
    """Learn the first half, and return the share of the second that is right."""
    half = len(data["labels"]) // 2
    graph = loss_graph(network, dropout)
    params = tl.initial(graph, [n for n in graph.inputs if n.endswith(("_w", "_c"))], "he", seed=seed)
    learned = shifted({name: a[:half] for name, a in data.items()})
    rate = tl.optim.cosine(2e-3, steps=epochs * -(-len(learned["labels"]) // 64))
    trainer = tl.Trainer(
        tl.Executor(), tl.TrainerConfig(optimizer=tl.optim.adam(rate), epochs=epochs, batch_size=64, seed=seed)
    )
    trainer.fit(graph, params, learned)
    return trainer.evaluate({name: a[half:] for name, a in data.items()})["accuracy"]


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Learn with both networks and print how much of the second half is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(arguments)
    data = arrays_of(options.data / "digits.npz")
    found, rows = {}, []
    for network in NETWORKS:
        start = perf_counter()
        right = [learn(network, data, options.epochs, options.dropout, seed) for seed in range(options.seeds)]
        found[network] = float(np.mean(right))
        each = " ".join(f"{100 * r:.1f}" for r in right)
        rows.append(
            [f"{network}, here", f"{100 * found[network]:.1f}", each, f"{(perf_counter() - start) / options.seeds:.0f}"]
        )
    half = len(data["labels"]) // 2
    print(
        f"{half} images learned, {len(data['labels']) - half} asked; {options.epochs} epochs, mean of {options.seeds} seeds"
    )
    print(table(["network", "per cent right", "each seed", "seconds"], [*rows, list(PUBLISHED)], right={1, 3}))
    return found


if __name__ == "__main__":
    main()
