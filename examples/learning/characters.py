"""A transformer that learns to write, character by character: the text is this project's licence, or any files.

Each character is predicted from those before it: embeddings, blocks of causal attention and two layers, a softmax. The last tenth of the
text is held out. What is learned is measured in bits per character there, beside the entropy of single characters and a table of pairs,
which know nothing of longer contexts. Run it: python examples/learning/characters.py [--text FILE ...] [--steps 600]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

LICENCE = Path(__file__).resolve().parents[2] / "LICENSE"
Array = np.ndarray[Any, Any]


def loss_graph(letters: int, context: int, width: int, heads: int, blocks: int, dropout: float) -> tl.EinsumGraph:
    """Build the loss of predicting each next character; inputs that are no data are parameters."""
    b = tl.GraphBuilder()

    def weight(name: str, *shape: int) -> tl.Tensor:
        return b.input(name, shape, "float32")

    def norm(x: tl.Tensor, name: str) -> tl.Tensor:
        return b.layer_norm(x, weight(f"{name}_scale", width), weight(f"{name}_shift", width))

    text, after = (b.input(name, ("n", context), "int64") for name in ("text", "after"))
    x = b.gather(weight("letter", letters, width), text) + weight("place", context, width)
    causal = np.tril(np.ones((context, context), bool))
    for n in range(blocks):
        h = norm(x, f"{n}.attention")
        query, key, value = (
            b.einsum("ntd,dhk->nhtk", h, weight(f"{n}.{name}", width, heads, width // heads))
            for name in ("query", "key", "value")
        )
        seen = b.einsum(
            "nhtk,hkd->ntd", b.attention(query, key, value, causal), weight(f"{n}.join", heads, width // heads, width)
        )
        x = x + b.dropout(seen, dropout)
        h = b.linear(
            norm(x, f"{n}.layers"), weight(f"{n}.wide", width, 4 * width), weight(f"{n}.wide_shift", 4 * width)
        )
        h = b.linear(
            b.gelu(h, approximate=True), weight(f"{n}.narrow", 4 * width, width), weight(f"{n}.narrow_shift", width)
        )
        x = x + b.dropout(h, dropout)
    logits = b.linear(norm(x, "last"), weight("out", width, letters), weight("out_shift", letters))
    return b.build(loss=b.cross_entropy(logits, after), logits=logits)


def windows(text: Array, context: int) -> dict[str, Array]:
    """Return every stretch of the text of one length, and the same stretches one character later."""
    found = np.lib.stride_tricks.sliding_window_view(text, context + 1)
    return {"text": found[:, :-1], "after": found[:, 1:]}


def counted_bits(learned: Array, unseen: Array, letters: int) -> dict[str, float]:
    """Return the bits per character of tables of single characters and of pairs, counted on the text to learn from."""
    singles = np.bincount(learned, minlength=letters) + 0.1
    pairs = np.full((letters, letters), 0.1)
    np.add.at(pairs, (learned[:-1], learned[1:]), 1)
    p1, p2 = singles / singles.sum(), pairs / pairs.sum(1, keepdims=True)
    return {
        "single characters, counted": float(-np.log2(p1[unseen[1:]]).mean()),
        "pairs, counted": float(-np.log2(p2[unseen[:-1], unseen[1:]]).mean()),
    }


def written(trainer: tl.Trainer, start: Array, count: int, warmth: float, seed: int) -> list[int]:
    """Return more characters after a start, each drawn from what the network expects."""
    rng, context, text = np.random.default_rng(seed), len(start), [int(c) for c in start]
    for _ in range(count):
        logits = trainer.predict({"text": np.array([text[-context:]])}, "logits")[0, -1].astype("float64") / warmth
        p = np.exp(logits - logits.max())
        text.append(int(rng.choice(len(p), p=p / p.sum())))
    return text[context:]


def main(arguments: list[str] | None = None) -> dict[str, float]:
    """Learn a text, measure on the part held out, and print a sample."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, nargs="+", default=[LICENCE])
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--sample", type=int, default=200, help="characters to write in the end")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    whole = " ".join(" ".join(path.read_text(encoding="utf-8") for path in options.text).split())
    letters = sorted(set(whole))
    text = np.array([letters.index(c) for c in whole])
    learned, unseen = text[: len(text) * 9 // 10], text[len(text) * 9 // 10 :]

    graph = loss_graph(len(letters), options.context, options.width, options.heads, options.blocks, options.dropout)
    names = [name for name in graph.inputs if name not in ("text", "after") and not name.startswith("training")]
    params = tl.initial(graph, names, {"*_scale": "ones", "*_shift": "zeros", "*": "normal"}, seed=options.seed)
    rate = tl.optim.warmup(tl.optim.cosine(options.rate, steps=options.steps), steps=options.steps // 20 + 1)
    rng = np.random.default_rng(options.seed)
    every = windows(learned, options.context)
    rows = rng.integers(0, len(every["text"]), options.steps * options.batch)
    config = tl.TrainerConfig(
        optimizer=tl.optim.adamw(rate, weight_decay=0.1),
        epochs=1,
        batch_size=options.batch,
        clip_norm=1.0,
        seed=options.seed,
    )
    trainer = tl.Trainer(tl.Executor(), config)
    start = perf_counter()
    trainer.fit(graph, params, {name: a[rows] for name, a in every.items()})
    seconds = perf_counter() - start
    held = {name: a[:: options.context] for name, a in windows(unseen, options.context).items()}
    found = counted_bits(learned, unseen, len(letters))
    found["transformer, learned"] = trainer.evaluate(held)["loss"] / float(np.log(2))
    size = sum(a.size for a in params.values())
    print(
        f"{len(learned):,} characters of {len(letters)} kinds, {size:,} parameters, {options.steps} steps in {seconds:.0f} s"
    )
    print(
        table(["on the tenth held out", "bits per character"], [[k, f"{v:.2f}"] for k, v in found.items()], right={1})
    )
    if options.sample:
        start_text = learned[: options.context]
        said = "".join(letters[c] for c in written(trainer, start_text, options.sample, 0.7, options.seed))
        print(f"\n{''.join(letters[c] for c in start_text)} ...\n{said}")
    return found


if __name__ == "__main__":
    main()
