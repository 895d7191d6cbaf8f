"""Memory: the peak of a chain of joins in every logic, of gradients of products, and what budgets cost."""

import math
import tracemalloc
from collections.abc import Callable
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
from harness import Contender, Table, Timing, contest

import tensorlogic as tl

Given = dict[str, Any]


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


def budgets() -> list[Table]:
    """Measure runs within budgets, the least that is not refused and one halfway to the peak, beside runs at once."""
    found = []
    for native in (False, True):
        for name, (graph, given) in _large().items():
            executor = tl.Executor(native=native)
            peak, least = executor.plan(graph, given).peak_bytes, _least(executor, graph, given)
            between = math.isqrt(peak * least)
            contenders: dict[str, Contender] = {f"at once, {peak:,} bytes": partial(executor.execute, graph, given)}
            for budget in dict.fromkeys((between, least)):
                parts = [len(s.cut.ranges) for s in executor.plan(graph, given, budget=budget).steps if s.cut]
                title = f"{budget:,} bytes, {' and '.join(map(str, parts))} parts"
                contenders[title] = partial(executor.execute, graph, given, budget=budget)
            title = f"Budgets: {name}" + ", native" * native
            note = "The last budget is the least that is not refused. Goal: at most three times as long as at once, or some milliseconds."
            found.append(contest(title, note, contenders, agree=1e-3))
    return found


def _least(executor: tl.Executor, graph: tl.EinsumGraph, given: Given) -> int:
    try:
        executor.plan(graph, given, budget=1)
    except tl.OutOfMemoryError as error:
        return int(error.diagnostic.suggestions[0].split(" bytes")[0].removeprefix("allow ").replace(",", ""))
    return 1


def _large() -> dict[str, tuple[tl.EinsumGraph, Given]]:
    """Return graphs whose whole takes much more memory than what they give."""
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()

    def floats(**shapes: tuple[int, ...]) -> tuple[list[tl.Tensor], Given]:
        given = {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}
        return [b.input(name, shape, "float32") for name, shape in shapes.items()], given

    made = {}
    (q, k, v), given = floats(q=(4000, 64), k=(4000, 64), v=(4000, 64))
    made["attention, 4000×64"] = b.build(y=b.attention(q, k, v)), given
    (m, n), given = floats(m=(1500, 32), n=(1500, 32))
    far = b.sum(b.square(b.reshape(m, (1500, 1, 32)) - n), axis=2)
    made["distances of 1500 points to 1500"] = b.build(least=b.min(far, axis=1)), given
    (rows, w, u), given = floats(rows=(20_000, 256), w=(256, 1024), u=(1024, 16))
    made["two layers, 20,000 rows"] = b.build(y=b.softmax(b.relu(rows @ w) @ u)), given
    (left, right), given = floats(left=(64, 200, 200), right=(64, 200, 200))
    made["64 products of 200×200"] = b.build(z=b.sum(b.tanh(left @ right), axis=0)), given
    h, given = _layers(b, rng)
    made["six layers of 1000"] = b.build(y=b.sum(h, axis=1)), given
    p, r = (b.input(name, (250, 250, 250), "bool") for name in "pr")
    three = b.einsum("xyw,yzw->xzw", p, r, algebra="boolean")
    made["Boolean join of three axes, n=250"] = b.build(z=three), {k: rng.random((250, 250, 250)) < 0.01 for k in "pr"}
    x, y = b.input("x", (6000, 6000), "bool"), b.input("y", (6000, 6000), "bool")
    some = b.any(b.einsum("xy,yz->xz", x, y, algebra="boolean"), axis=1)
    made["Boolean join, n=6000"] = b.build(some=some), {k: rng.random((6000, 6000)) < 1e-3 for k in "xy"}
    edge = b.input("edge", (3000, 3000), "bool")
    path = b.fixpoint(lambda p: b.einsum("xy,yz->xz", p, edge, algebra="boolean"), edge, combine="or")
    made["closure, n=3000"] = b.build(path=path), {"edge": rng.random((3000, 3000)) < 7e-4}
    return made


def _layers(b: tl.GraphBuilder, rng: np.random.Generator) -> tuple[tl.Tensor, Given]:
    h, given = b.input("h", (1000, 1000), "float32"), {"h": rng.random((1000, 1000), np.float32)}
    for n in range(6):
        h = b.tanh(h @ b.input(f"w{n}", (1000, 1000), "float32"))
        given[f"w{n}"] = rng.normal(size=(1000, 1000), scale=0.03).astype("float32")
    return h, given


def tables() -> list[Table]:
    return [memory(), gradients(), *budgets()]
