"""Rules: the join beside plain NumPy and the seed's Python package, and compile time."""

import numpy as np
from harness import Table, contest

import tensorlogic as tl


def seed_package(n: int, sister: np.ndarray, parent: np.ndarray):
    """Return the same join in pytensorlogic; None where it is not installed."""
    try:
        import pytensorlogic as p
    except ImportError:
        return None
    x, y, z = (p.var(v) for v in "xyz")
    context = p.compiler_context()
    context.add_domain("D", n)
    expr = p.exists("y", "D", p.and_(p.pred("sister", [x, y]), p.pred("parent", [y, z])))
    graph = p.compile_with_context(expr, context)
    inputs = {"sister": sister.astype(float), "parent": parent.astype(float)}
    return lambda: p.execute(graph, inputs)


def joins() -> list[Table]:
    """Time Aunt(x,z) <- Sister(x,y), Parent(y,z) at growing n."""
    found = []
    x, y, z = tl.variables("x y z", domain="D")
    aunt = tl.exists(y, tl.pred("sister", x, y) & tl.pred("parent", y, z))
    for n in (200, 500, 1000):
        rng = np.random.default_rng(n)
        sister, parent = (rng.random((n, n)) < 0.02 for _ in range(2))
        graph, executor = tl.compile(aunt, tl.CompilerContext({"D": n})), tl.Executor()
        facts = {"sister": sister, "parent": parent}
        contenders = {
            "NumPy: float32 BLAS, > 0": lambda s=sister, p=parent: (s.astype("float32") @ p.astype("float32")) > 0,
            "tl.compile, Executor.execute": lambda g=graph, e=executor, f=facts: e.execute(g, f),
        }
        note = f"Aunt(x,z) <- Sister(x,y), Parent(y,z) over {n} people, density 2%, bool in and out."
        peer = seed_package(n, sister, parent) if n <= 200 else None
        if peer is not None:
            contenders["pytensorlogic 0.1.2"] = peer
            note += " pytensorlogic builds the n³ join, so it runs at this n only."
        found.append(contest(f"Rule join, n={n}", note, contenders, rounds=5, calls=1))
    return found


def compile_times() -> Table:
    """Time compiling 1,000 rules that use one another."""
    x, y, z = tl.variables("x y z", domain="D")
    rules = []
    for i in range(1000):
        first = tl.pred(f"h{i - 1}", x, y) if i % 10 else tl.pred("base", x, y)
        rules.append(tl.Rule(tl.pred(f"h{i}", x, z), first & tl.pred(f"edge{i}", y, z) & ~tl.pred("bad", z)))
    context = tl.CompilerContext({"D": 50})
    contenders = {
        "1,000 rules": lambda: tl.compile(rules, context),
        "parse 1,000 rules' bodies": lambda texts=[str(r.body) for r in rules]: [tl.parse_expr(t) for t in texts],
    }
    return contest("Compiling rules", "The goal is 2 s for 1,000 rules.", contenders, rounds=3, calls=1)


def tables() -> list[Table]:
    return [*joins(), compile_times()]
