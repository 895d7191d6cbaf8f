"""MNIST addition: learn to read digits from nothing but the sums of numbers that images show.

A pair of images is labelled with their sum, and no image with its digit. The network gives each image a distribution over ten digits; the
rule sum(s) <- digit(image1, d), digit(image2, e), d + e = s gives a sum its probability, exactly: an einsum of both distributions with the
table of d + e = s. The loss is -log p(sum). Numbers of several digits (--digits 4) are added as at school, from the right, with a carry of
0 or 1: the probability of a result is that of a chain whose state is the carry, one scan over the places. No image is used twice.

Run it: make data, then python examples/learning/mnist_addition.py [--pairs 3000] [--digits 4]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from digit_networks import NETWORKS, mnist

import tensorlogic as tl
from tensorlogic.tables import table

PUBLISHED = {  # by digits and pairs to learn from: per cent of sums right
    (1, 30_000): {"DeepProbLog": 97.2, "LTN": 98.0},
    (1, 3_000): {"DeepProbLog": 92.2, "LTN": 93.5},
    (4, 7_500): {"DeepProbLog": "timeout"},
    (15, 2_000): {"DeepProbLog": "timeout"},
}
TINY = 1e-7  # what a probability is raised by before its logarithm
D, E, T = np.ogrid[:10, :10, :19]
ADDS = (D + E == T).astype("float32")  # adds(d, e, t): d + e = t
C, T, S, K = np.ogrid[:2, :19, :10, :2]
CARRIES = (C + T == 10 * K + S).astype("float32")  # carries(c, t, s, k): c + t = 10 k + s; k is the next carry
Array = np.ndarray[Any, Any]


def sum_loss(b: tl.GraphBuilder, p: tl.Tensor, total: tl.Tensor) -> tl.Tensor:
    """Return -log p(sum) of one digit and another; p is (pairs, 2, 1, 10)."""
    sums = b.einsum("nd,ne,det->nt", p[:, 0, 0], p[:, 1, 0], ADDS)
    number = total[:, 0] + 10 * total[:, 1]
    return -b.mean(b.log(b.gather(sums, number, 1, batch=1) + TINY))


def chain_loss(b: tl.GraphBuilder, p: tl.Tensor, total: tl.Tensor) -> tl.Tensor:
    """Return -log p(result) of numbers of several digits; p is (pairs, 2, digits, 10), the digits of results begin at the right."""
    sums = b.einsum("nid,nie,det->int", p[:, 0], p[:, 1], ADDS)  # of both digits at each place, without the carry
    moves = b.einsum("int,nis,ctsk->inck", sums, b.one_hot(total[:, :-1], 10), CARRIES)  # from a carry to the next

    def place(carry: tl.Tensor, move: tl.Tensor) -> tuple[tl.Tensor, tl.Tensor]:
        after = b.einsum("nc,nck->nk", carry, move)
        share = b.sum(after, -1, keepdims=True) + TINY
        return after / share, b.log(share[:, 0])

    first = b.sum(sums[0], -1, keepdims=True) * np.array([1.0, 0.0], "float32")  # no carry at the right end
    carry, logs = b.scan(place, first, moves)
    last = b.log(b.gather(carry, total[:, -1], 1, batch=1) + TINY)  # the last carry is the first digit of the result
    return -b.mean(b.sum(logs, 0) + last)


def loss_graph(digits: int, network: str, dropout: float) -> tl.EinsumGraph:
    """Build the loss of pairs of numbers, given as places of their images among all."""
    b = tl.GraphBuilder()
    images = b.input("images", ("images", 28, 28), "uint8")
    places, total = b.input("places", ("n", 2, digits), "int64"), b.input("total", ("n", digits + 1), "int64")
    shown = b.cast(b.gather(images, places.reshape(-1)), "float32") * (1 / 255)
    p = b.softmax(NETWORKS[network](b, shown, dropout)).reshape(-1, 2, digits, 10)
    return b.build(loss=sum_loss(b, p, total) if digits == 1 else chain_loss(b, p, total), digits=p)


def digits_of_sums(read: Array) -> Array:
    """Return the digits of sums, from the right, of numbers (pairs, 2, digits) whose digits begin at the right."""
    carry, found = np.zeros(len(read), "int64"), []
    for place in range(read.shape[2]):
        at = read[:, 0, place] + read[:, 1, place] + carry
        found.append(at % 10)
        carry = at // 10
    return np.stack([*found, carry], 1)


def pairs(labels: Array, digits: int, count: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return pairs of numbers, each image in at most one, and the digits of their sums."""
    count = min(count, len(labels) // (2 * digits))
    places = rng.permutation(len(labels))[: count * 2 * digits].reshape(count, 2, digits)
    return {"places": places, "total": digits_of_sums(labels[places])}


def share_right(p: Array, total: Array) -> float:
    """Return the share of right sums: the likeliest sum of two digits, or the sum of numbers as they are read digit by digit."""
    if p.shape[2] == 1:
        sums = np.einsum("nd,ne,det->nt", p[:, 0, 0], p[:, 1, 0], ADDS).argmax(1)
        return float((sums == total[:, 0] + 10 * total[:, 1]).mean())
    return float((digits_of_sums(p.argmax(-1)) == total).all(1).mean())


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Learn from sums, and print how many sums of unseen images are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--digits", type=int, default=1, help="of each number")
    parser.add_argument(
        "--pairs", type=int, default=30_000, help="to learn from, at most as many as there are images for"
    )
    parser.add_argument("--network", choices=list(NETWORKS), default="convolutions")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="images are twice as many, times the digits")
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--dropout", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints are kept; a run that was stopped goes on from there"
    )
    options = parser.parse_args(arguments)
    data = mnist(options.data)
    rng = np.random.default_rng(options.seed)
    learned = pairs(data["train_labels"], options.digits, options.pairs, rng)
    unseen = pairs(data["test_labels"], options.digits, len(data["test_labels"]), rng)
    graph = loss_graph(options.digits, options.network, options.dropout)
    params = tl.initial(graph, [n for n in graph.inputs if n.endswith(("_w", "_c"))], "he", seed=options.seed)
    count = len(learned["total"])
    steps = options.epochs * -(-count // options.batch)
    config = tl.TrainerConfig(
        optimizer=tl.optim.adam(tl.optim.cosine(options.rate, steps=steps)),
        epochs=options.epochs,
        batch_size=options.batch,
        clip_norm=1.0,
        average=0.995,
        seed=options.seed,
        folder=options.folder,
    )
    if options.folder is not None and options.folder.exists():
        trainer = tl.Trainer.resume(options.folder)
    else:
        trainer = tl.Trainer(tl.Executor(), config)
    start = perf_counter()
    history = trainer.fit(graph, params, learned, fixed={"images": data["train_images"]})
    seconds = perf_counter() - start
    trainer.replace(trainer.averages)
    p = trainer.predict({"places": unseen["places"]}, "digits", fixed={"images": data["test_images"]})
    read = p.argmax(-1) == data["test_labels"][unseen["places"]]
    found = {"sums": share_right(p, unseen["total"]), "digits": float(read.mean()), "loss": history["loss"][-1]}
    rows = [["here", f"{100 * found['sums']:.1f}", f"{100 * found['digits']:.2f}"]]
    for name, figure in PUBLISHED.get((options.digits, count), {}).items():
        rows.append([f"published, {name}", str(figure), ""])
    print(
        f"{count:,} pairs of {options.digits}-digit numbers, {options.epochs} epochs in {seconds:.0f} s; loss {found['loss']:.4f}"
    )
    print(table([f"per cent right, {len(unseen['total']):,} unseen pairs", "sums", "digits"], rows, right={1, 2}))
    return found


if __name__ == "__main__":
    main()
