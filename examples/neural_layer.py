"""A small neural layer: y = softmax(relu(x w1 + b1) w2), from the same einsum graph as logic.

Run it: python examples/neural_layer.py
"""

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table


def layer_graph() -> tl.EinsumGraph:
    """Build the layer for any number n of rows."""
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 4), "float32")
    w1, b1 = b.input("w1", (4, 8), "float32"), b.input("b1", (8,), "float32")
    w2 = b.input("w2", (8, 3), "float32")
    hidden = b.relu(b.einsum("ni,ih->nh", x, w1) + b1)
    return b.build(y=b.softmax(b.einsum("nh,hc->nc", hidden, w2)))


def main() -> None:
    """Run the layer on five rows and show the answer, the graph and the plan."""
    rng = np.random.default_rng(0)
    inputs = {
        "x": rng.normal(size=(5, 4)).astype("float32"),
        "w1": rng.normal(size=(4, 8)).astype("float32"),
        "b1": np.zeros(8, "float32"),
        "w2": rng.normal(size=(8, 3)).astype("float32"),
    }
    graph = layer_graph()
    executor = tl.Executor()
    y = executor.execute(graph, inputs)["y"]

    print("y[n,c] = softmax(relu(x[n,i] w1[i,h] + b1[h]) w2[h,c])\n")
    rows = [[str(n), *(f"{p:.3f}" for p in row), f"class {row.argmax()}"] for n, row in enumerate(y)]
    print(table(["row", "P(0)", "P(1)", "P(2)", "answer"], rows, right={0, 1, 2, 3}))
    print("\nThe graph:\n")
    print(graph)
    print("\nIts plan:\n")
    print(executor.plan(graph, inputs))


if __name__ == "__main__":
    main()
