"""Cost per node of everything that walks a graph: it should not grow with the graph."""

import numpy as np
from harness import Table, contest

import tensorlogic as tl

HARD = tl.Executor(optimization_level=tl.OptimizationLevel.AGGRESSIVE)


def chain(nodes: int) -> tl.EinsumGraph:
    """Return a chain of so many element-wise operations."""
    b = tl.GraphBuilder()
    z = b.input("x", ("n",), "float32")
    for i in range(nodes // 2):
        z = b.tanh(z + float(i % 7))
    return b.build(z=z)


def tables() -> list[Table]:
    found = []
    x = {"x": np.ones(4, "float32")}
    for nodes in (25_000, 50_000, 100_000):
        graph = chain(nodes)
        text, json = graph.to_text(), graph.to_json()
        ready = tl.Executor()
        ready.execute(graph, x)
        contenders = {
            "run": lambda g=graph, r=ready: r.execute(g, x),
            "build": lambda n=nodes: chain(n),
            "validate": lambda g=graph: tl.GraphValidator().validate(g),
            "optimize (STANDARD) and plan": lambda g=graph: tl.Executor().plan(g, x),
            "optimize (AGGRESSIVE) and plan": lambda g=graph: HARD.plan(g, x),
            "print": lambda g=graph: g.to_text(),
            "parse": lambda t=text: tl.EinsumGraph.from_text(t),
            "to JSON": lambda g=graph: g.to_json(),
            "from JSON": lambda j=json: tl.EinsumGraph.from_json(j),
        }
        note = f"One chain of {nodes:,} nodes, all deep. Times are for the whole graph."
        found.append(contest(f"Graph of {nodes:,} nodes", note, contenders, rounds=3, calls=1))
    return found
