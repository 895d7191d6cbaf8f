"""A transformer in a page of tensor equations: the program is transformer.tl, the weights come from Python.

The words of a sentence are facts, the layers are equations, the blocks a recurrence. Run it: python examples/transformer.py
"""

from pathlib import Path

import numpy as np

import tensorlogic as tl

HERE = Path(__file__).parent
WORDS = ["the", "cat", "sat", "on", "mat"]
SENTENCE = ["the", "cat", "sat", "on", "the", "mat"]
BLOCKS, HEADS, DE, DK, DV, FF = 2, 4, 16, 4, 4, 32


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """Return random weights of every layer."""
    rng = np.random.default_rng(seed)
    shapes = {
        "Emb": (len(WORDS), DE),
        "WQ": (BLOCKS, HEADS, DK, DE),
        "WK": (BLOCKS, HEADS, DK, DE),
        "WV": (BLOCKS, HEADS, DV, DE),
        "WS": (BLOCKS, DE, HEADS * DV),
        "WP": (BLOCKS, FF, DE),
        "WF": (BLOCKS, DE, FF),
        "WO": (len(WORDS), DE),
    }
    return {name: rng.normal(scale=0.3, size=shape) for name, shape in shapes.items()}


def main() -> None:
    """Run the sentence through the blocks and print the likeliest word at each position."""
    program = tl.load(HERE / "transformer.tl")
    x = np.array([[word == other for other in WORDS] for word in SENTENCE])
    places = np.arange(DE)
    found = program.run(X=x, Even=places % 2 == 0, Odd=places % 2 == 1, **weights())
    print(f"Y is {found['Y'].shape}: a distribution over {len(WORDS)} words at each of {len(SENTENCE)} positions.\n")
    for word, row in zip(SENTENCE, found["Y"], strict=True):
        best = int(np.argmax(row))
        print(f"{word:>5} -> {WORDS[best]:<5} {row[best]:.2f}")


if __name__ == "__main__":
    main()
