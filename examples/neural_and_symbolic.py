"""A classifier inside a rule: two handwritten digits, and how likely their sum is seven.

The predicate digit(image, d) is the output of a small network. Sum(i,j,s) <- digit(i,a), digit(j,b), a+b=s is a rule over its scores, and
one graph holds both. Run it: python examples/neural_and_symbolic.py
"""

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

DIGITS = 10
PROTOTYPES = np.random.default_rng(0).normal(size=(DIGITS, 16)).astype("float32")  # what each digit looks like


def classifier() -> tl.EinsumGraph:
    """Build digit(image, d): softmax of the similarity of an image to every prototype."""
    b = tl.GraphBuilder()
    image = b.input("image", (2, 16), "float32")
    return b.build(digit=b.softmax(b.einsum("if,df->id", image, b.constant(PROTOTYPES))))


def sum_rule() -> tl.EinsumGraph:
    """Compile the rule; the two images are constants 0 and 1 of their domain."""
    context = tl.CompilerContext(
        domains={"Image": 2, "Digit": DIGITS, "Sum": 2 * DIGITS - 1},
        predicates={"digit": ("Image", "Digit")},
        graphs={"digit": classifier()},
    )
    a, c = tl.variables("a c", domain="Digit")
    s = tl.variables("s", domain="Sum")
    body = tl.pred("digit", 0, a) & tl.pred("digit", 1, c) & tl.pred("adds", a, c, s)
    return tl.compile(tl.exists((a, c), body), context, strategy="soft_differentiable")


def main() -> None:
    """Show the most likely sums of a clear three and a blurred four."""
    graph = sum_rule()
    a, c, s = np.indices((DIGITS, DIGITS, 2 * DIGITS - 1))
    noise = np.random.default_rng(1).normal(size=16).astype("float32")
    image = np.stack([PROTOTYPES[3], 0.4 * PROTOTYPES[4] + 0.3 * PROTOTYPES[5] + 0.1 * noise])
    executor = tl.Executor()
    inputs = {"image": image, "adds": (a + c == s).astype("float32")}
    p = executor.execute(graph, inputs)["result"]
    print("Sum(s) <- digit(0,a), digit(1,c), a + c = s\n")
    best = np.argsort(-p)[:4]
    print(table(["sum", "probability"], [[str(n), f"{p[n]:.3f}"] for n in best], right={0, 1}))
    print(f"\nall sums together: {p.sum():.3f}\n\nThe plan:\n")
    print(executor.plan(graph, inputs))


if __name__ == "__main__":
    main()
