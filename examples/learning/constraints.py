"""Rules in place of labels: MNIST digits from very few labels, with rules that say which digits are even and which are small.

Of a few images it is known which digit they show; of many more only whether it is even, and whether it is below 5. The rules say what that
has to do with digits: digit(x, 4) -> even(x), digit(x, 4) -> small(x), digit(x, 7) -> ~even(x), and so on. How far they are from true under
soft logic is a term of the loss (tl.rule_loss). The same network is learned from the labels alone; with even and small as two more outputs,
which share its layers and know no rules; and with the rules. Several seeds draw labels and first weights anew.

Run it: make data, then python examples/learning/constraints.py [--labels 50] [--seeds 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from digit_networks import mnist
from scipy import stats

import tensorlogic as tl
from tensorlogic.tables import table

DIGITS = [str(d) for d in range(10)]
KINDS = {"even": np.arange(10) % 2 == 0, "small": np.arange(10) < 5}  # of each digit
WAYS = ("labels only", "labels, and even and small as outputs", "labels and rules")
Array = np.ndarray[Any, Any]


def rules(b: tl.GraphBuilder, p: tl.Tensor, known: dict[str, tl.Tensor], rows: int, strategy: str) -> tl.Tensor:
    """Return how far it is from true that each digit is of its kinds."""
    context = tl.CompilerContext(
        domains={"Image": rows, "Digit": DIGITS},
        predicates={"digit": ("Image", "Digit"), "even": ("Image",), "small": ("Image",)},
    )
    x = tl.variables("x", domain="Image")
    formulas = []
    for kind, of_digits in KINDS.items():
        for digit, holds in zip(DIGITS, of_digits, strict=True):
            then = tl.pred(kind, x)
            formulas.append(tl.pred("digit", x, digit) >> (then if holds else ~then))
    return tl.rule_loss(b, formulas, context, strategy=strategy, inputs={"digit": p, **known})


def loss_graph(way: str, rows: int, weight: float, width: int, strategy: str) -> tl.EinsumGraph:
    """Build the loss of batches of so many rows; ``labelled`` is 1 where the digit is known."""
    b = tl.GraphBuilder()
    images = b.cast(b.input("images", ("n", 784), "uint8"), "float32") * (1 / 255)
    digit, labelled = b.input("digit", ("n",), "int64"), b.input("labelled", ("n",), "float32")
    known = {kind: b.input(kind, ("n",), "float32") for kind in KINDS} if way != WAYS[0] else {}
    hidden = b.relu(b.linear(images, b.input("w1", (784, width), "float32"), b.input("c1", (width,), "float32")))
    hidden = b.dropout(hidden, 0.3)
    logits = b.linear(hidden, b.input("w2", (width, 10), "float32"), b.input("c2", (10,), "float32"))
    loss = b.cross_entropy(logits, digit, weights=labelled)
    if way == WAYS[1]:
        kinds = b.linear(hidden, b.input("w3", (width, 2), "float32"), b.input("c3", (2,), "float32"))
        for n, target in enumerate(known.values()):
            loss = loss + b.binary_cross_entropy(kinds[:, n], target)
    elif way == WAYS[2]:
        loss = loss + weight * rules(b, b.softmax(logits), known, rows, strategy)
    return b.build(loss=loss, answer=b.argmax(logits, -1))


def batches(data: dict[str, Array], seed: int, labels: int, images: int, rows: int) -> list[dict[str, Array]]:
    """Return batches that each hold all labelled images, as many of each digit, and a part of the others."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(data["train_labels"]))[:images]
    digits = data["train_labels"][chosen]
    labelled = np.concatenate([np.flatnonzero(digits == d)[: labels // 10] for d in range(10)])
    others = np.setdiff1d(np.arange(images), labelled)
    width, found = rows - len(labelled), []
    for start in range(0, len(others) - width + 1, width):
        own = chosen[np.concatenate([labelled, others[start : start + width]])]
        shown = data["train_labels"][own]
        is_labelled = np.arange(rows) < len(labelled)
        kinds = {kind: of_digits[shown].astype("float32") for kind, of_digits in KINDS.items()}
        found.append(
            {
                "images": data["train_images"][own].reshape(rows, 784),
                "digit": np.where(is_labelled, shown, 0),  # what is not labelled is not told
                "labelled": is_labelled.astype("float32"),
                **kinds,
            }
        )
    return found


def accuracy(way: str, data: dict[str, Array], seed: int, options: argparse.Namespace) -> float:
    """Learn in one of the ways, and return the share of unseen images that are read right."""
    graph = loss_graph(way, options.batch, options.weight, options.width, options.strategy)
    given = batches(data, seed, options.labels, options.images, options.batch)
    learned = [{name: a for name, a in batch.items() if name in graph.inputs} for batch in given]
    params = tl.initial(graph, [n for n in graph.inputs if n[0] in "wc"], "he", seed=seed)
    trainer = tl.Trainer(
        tl.Executor(), tl.TrainerConfig(optimizer=tl.optim.adam(1e-3), epochs=options.epochs, seed=seed)
    )
    trainer.fit(graph, params, learned)
    answer = trainer.predict({"images": data["test_images"].reshape(-1, 784)}, "answer")
    return float((answer == data["test_labels"]).mean())


def main(arguments: list[str] | None = None) -> dict[str, list[float]]:
    """Learn in each way by several seeds, and print means with 95% intervals."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--labels", type=int, default=50, help="images whose digit is known")
    parser.add_argument(
        "--images", type=int, default=3050, help="images of which it is known whether they are even and small"
    )
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--weight", type=float, default=20.0, help="of the rules in the loss")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--strategy", default="soft_differentiable", help="the logic of the rules")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    data = mnist(options.data)
    found = {way: [accuracy(way, data, seed, options) for seed in range(options.seeds)] for way in WAYS}
    print(
        f"{options.labels} images with their digit, {options.images:,} with even and small; unseen digits right, {options.seeds} seeds"
    )
    rows = [[way, *_interval(right), " ".join(f"{100 * r:.1f}" for r in right)] for way, right in found.items()]
    gains = [a - b for a, b in zip(found[WAYS[2]], found[WAYS[1]], strict=True)]
    rows.append(["what the rules add to the outputs", *_interval(gains), " ".join(f"{100 * g:+.1f}" for g in gains)])
    print(table(["learned from", "per cent", "95% interval", "each seed"], rows, right={1, 2}))
    return found


def _interval(values: list[float]) -> tuple[str, str]:
    mean = 100 * float(np.mean(values))
    if len(values) < 2:
        return f"{mean:.1f}", ""
    half = 100 * float(stats.t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1)) / len(values) ** 0.5
    return f"{mean:.1f}", f"{mean - half:.1f} to {mean + half:.1f}"


if __name__ == "__main__":
    main()
