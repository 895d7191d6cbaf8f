"""Memory: the peak of a chain of joins in every logic."""

import tracemalloc
from time import perf_counter

import numpy as np
from harness import Table, Timing

import tensorlogic as tl


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
        tracemalloc.start()
        start = perf_counter()
        executor.execute(graph, facts)
        taken = perf_counter() - start
        peaks.append(f"{strategy} {tracemalloc.get_traced_memory()[1] / (4 * n * n):.2f}")
        tracemalloc.stop()
        timings.append(Timing(strategy, taken, taken))
    note = f"∃y. p(x,y) ∧ ∃z. q(y,z) ∧ r(z,w) at n={n}, float32, one run. Peak memory in n² float32 elements (goal: under 6): "
    return Table(f"Chain of three predicates, n={n}", note + ", ".join(peaks) + ".", tuple(timings))


def tables() -> list[Table]:
    return [memory()]
