"""Memory: the peak of a chain of joins in every logic."""

import tracemalloc
from collections.abc import Callable
from time import perf_counter

import numpy as np
from harness import Table, Timing

import tensorlogic as tl


def measured(name: str, call: Callable[[], object], n: int) -> tuple[Timing, str]:
    """Return the time of one call, and its peak memory in n² float32 elements, under a name."""
    tracemalloc.start()
    start = perf_counter()
    call()
    taken = perf_counter() - start
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return Timing(name, taken, taken), f"{name} {peak / (4 * n * n):.2f}"


def memory(n: int = 2000) -> Table:
    """Measure the peak memory of a chain of three predicates in every logic, in n² elements."""
    x, y, z, w = tl.variables("x y z w", domain="D")
    chain = tl.exists(y, tl.pred("p", x, y) & tl.exists(z, tl.pred("q", y, z) & tl.pred("r", z, w)))
    rng = np.random.default_rng(0)
    facts = {k: rng.random((n, n)).astype("float32") for k in "pqr"}
    timings, peaks = [], []
    for strategy in tl.STRATEGIES:
        graph, executor = tl.compile(chain, tl.CompilerContext({"D": n}), strategy=strategy), tl.Executor()
        executor.plan(graph, facts)
        timing, peak = measured(strategy, lambda e=executor, g=graph: e.execute(g, facts), n)
        timings.append(timing)
        peaks.append(peak)
    note = f"∃y. p(x,y) ∧ ∃z. q(y,z) ∧ r(z,w) at n={n}, float32, one run. Peak memory in n² float32 elements (goal: under 6): "
    return Table(f"Chain of three predicates, n={n}", note + ", ".join(peaks) + ".", tuple(timings))


def gradients(n: int = 4000) -> Table:
    """Measure the peak memory of gradients of products, in n² elements: a Jacobian would take n⁴, a mask n³."""
    b = tl.GraphBuilder()
    x, w = b.input("x", (n, n), "float32"), b.input("w", (n, n), "float32")
    graphs = {
        "real": tl.grad(b.build(loss=b.sum(b.tanh(x @ w))), wrt=["x", "w"]),
        "max_product": tl.grad(b.build(loss=b.sum(b.einsum("ij,jk->ik", x, w, algebra="max_product"))), wrt=["w"]),
    }
    rng = np.random.default_rng(0)
    facts = {k: rng.random((n, n)).astype("float32") for k in "xw"}
    timings, peaks = [], []
    for name, graph in graphs.items():
        executor = tl.Executor(native=True)
        given = {k: facts[k] for k in graph.inputs}
        executor.plan(graph, given)
        small = {k: v[:64, :64] for k, v in given.items()}
        tl.Executor(native=True).execute(_resized(name), small)  # what is compiled is compiled before it is measured
        timing, peak = measured(name, lambda e=executor, g=graph, v=given: e.execute(g, v), n)
        timings.append(timing)
        peaks.append(peak)
    note = f"Gradients of tanh(x @ w) for both factors, and of a max-product join for one, at n={n}, float32, one run, compilation and planning aside. Peak memory in n² float32 elements: "
    return Table(f"Gradients of products, n={n}", note + ", ".join(peaks) + ".", tuple(timings))


def _resized(name: str) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w = b.input("x", (64, 64), "float32"), b.input("w", (64, 64), "float32")
    if name == "real":
        return tl.grad(b.build(loss=b.sum(b.tanh(x @ w))), wrt=["x", "w"])
    return tl.grad(b.build(loss=b.sum(b.einsum("ij,jk->ik", x, w, algebra="max_product"))), wrt=["w"])


def tables() -> list[Table]:
    return [memory(), gradients()]
