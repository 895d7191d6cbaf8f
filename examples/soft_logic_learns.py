"""A rule teaches a classifier what no label says: penguins are birds, and do not fly.

Robins and fish are labelled; of penguins it is only known that they are penguins. From the labels alone the classifier is undecided about
them. The formula penguin(x) -> bird(x) & ~flies(x), under soft semantics, is one more term of the loss: its gradient pulls the classifier
toward satisfying it. Plain gradient steps, no trainer. Run it: python examples/soft_logic_learns.py
"""

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

KINDS, CLASSES, EACH = ["robin", "fish", "penguin"], ["penguin", "bird", "flies"], 40
CENTRES = np.array([[-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]])  # features: swims, has feathers
LABELS = np.array([[0.0, 1.0, 1.0], [0.0, 0.0, 0.0], [1.0, 0.0, 0.0]])
KNOWN = np.array([[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 0.0, 0.0]])  # of penguins only that they are
STEPS, SPEED, SHOWN = 300, 2.0, (0, 10, 30, 100, 300)


def classifier() -> tl.EinsumGraph:
    """Build label(x, class): a logistic regression for each class."""
    b = tl.GraphBuilder()
    x, w, bias = b.input("x", ("n", 2)), b.input("w", (2, 3)), b.input("bias", (3,))
    return b.build(label=b.sigmoid(b.einsum("nf,fc->nc", x, w) + bias))


def loss(weight: float) -> tl.EinsumGraph:
    """Build the loss: cross entropy where a label is known, and the formula's share that is not satisfied, by a weight."""
    context = tl.CompilerContext(
        domains={"Animal": len(KINDS) * EACH, "Class": CLASSES},
        predicates={"label": ("Animal", "Class")},
        graphs={"label": classifier()},
    )
    a = tl.variables("a", domain="Animal")
    formula = tl.pred("label", a, "penguin") >> (tl.pred("label", a, "bird") & ~tl.pred("label", a, "flies"))
    rule = tl.compile(formula, context, strategy="soft_differentiable")  # how true it is of each animal
    b = tl.GraphBuilder()
    satisfaction = b.mean(b.inline(rule)["result"])
    p = b.inline(classifier())["label"]
    target, known = b.input("target", ("n", 3)), b.input("known", ("n", 3))
    entropy = -(target * b.log(p) + (1.0 - target) * b.log(1.0 - p)) * known
    labelled = b.sum(entropy) / b.sum(known)
    return b.build(loss=labelled + weight * (1.0 - satisfaction), satisfaction=satisfaction, p=p)


def learn(weight: float, data: dict[str, np.ndarray]) -> tuple[list[float], np.ndarray]:
    """Take plain gradient steps; return the satisfaction before each, and what is thought of each kind at the end."""
    step = tl.value_and_grad(loss(weight), wrt=["w", "bias"], of="loss")  # one graph: values and gradients
    executor = tl.Executor()
    params = {"w": np.zeros((2, 3)), "bias": np.zeros(3)}
    history = []
    for _ in range(STEPS + 1):
        out = executor.execute(step, {**data, **params})
        history.append(float(out["satisfaction"]))
        params = {name: value - SPEED * out[f"d_{name}"] for name, value in params.items()}
    return history, out["p"].reshape(len(KINDS), EACH, len(CLASSES)).mean(axis=1)


def drawn(curves: dict[str, list[float]], low: float, width: int = 61, height: int = 9) -> str:
    """Return curves from ``low`` to 1 as text, each in its own letter."""
    grid = [[" "] * width for _ in range(height)]
    for letter, history in curves.items():
        for n in range(width):
            value = history[round(n * (len(history) - 1) / (width - 1))]
            grid[round((1.0 - value) / (1.0 - low) * (height - 1))][n] = letter
    lines = [f"{1.0 - r * (1.0 - low) / (height - 1):5.2f} |" + "".join(row).rstrip() for r, row in enumerate(grid)]
    return "\n".join([*lines, "      +" + "-" * width, f"       0{f'step {STEPS}':>{width - 1}}"])


def main() -> None:
    """Learn without the rule and with it, and show what became of the penguins."""
    rng = np.random.default_rng(0)
    data = {
        "x": np.repeat(CENTRES, EACH, axis=0) + 0.25 * rng.normal(size=(len(KINDS) * EACH, 2)),
        "target": np.repeat(LABELS, EACH, axis=0),
        "known": np.repeat(KNOWN, EACH, axis=0),
    }
    plain, thought = learn(0.0, data)
    ruled, taught = learn(1.0, data)
    print("penguin(a) -> bird(a) & ~flies(a)\n\nHow true the formula is on average:\n")
    rows = [[str(n), f"{plain[n]:.3f}", f"{ruled[n]:.3f}"] for n in SHOWN]
    print(table(["step", "labels only", "labels and rule"], rows, right={0, 1, 2}))
    print("\nWhat is thought of each kind in the end, labels only -> labels and rule:\n")
    pairs = [[f"{a:.2f} -> {b:.2f}" for a, b in zip(*each, strict=True)] for each in zip(thought, taught, strict=True)]
    print(table(["kind", *CLASSES], [[kind, *row] for kind, row in zip(KINDS, pairs, strict=True)]))
    print("\nHow true the formula is over the steps, by labels and rule (o) and by labels only (.):\n")
    print(drawn({".": plain, "o": ruled}, low=0.6))


if __name__ == "__main__":
    main()
