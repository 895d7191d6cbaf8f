"""Relations: joins, closures, points-to, families and queries beside clingo, DuckDB, SciPy and Nemo; the same answers from all."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from harness import HERE, Contender, Table, Timing, contest, peer

import tensorlogic as tl

OURS = "tl.Program, facts in, relation out"
CLOSURE = "Path(x,y) <- Edge(x,y)\nPath(x,z) <- Path(x,y), Edge(y,z)"
SAME_GENERATION = "Same(x,y) <- Up(x,p), Up(y,p)\nSame(x,y) <- Up(x,u), Same(u,v), Up(y,v)"
POINTS_TO = """ValueFlow(y,x) <- Assign(y,x)
ValueFlow(x,y) <- Assign(x,z), MemoryAlias(z,y)
ValueFlow(x,y) <- ValueFlow(x,z), ValueFlow(z,y)
ValueFlow(x,x) <- Assign(x,y)
ValueFlow(x,x) <- Assign(y,x)
MemoryAlias(x,w) <- Dereference(y,x), ValueAlias(y,z), Dereference(z,w)
MemoryAlias(x,x) <- Assign(y,x)
MemoryAlias(x,x) <- Assign(x,y)
ValueAlias(x,y) <- ValueFlow(z,x), ValueFlow(z,y)
ValueAlias(x,y) <- ValueFlow(z,x), MemoryAlias(z,w), ValueFlow(w,y)"""
FAMILY = """Sibling(x,y) <- Parent(p,x), Parent(p,y), x != y
Uncle(x,z) <- Male(x), Sibling(x,y), Parent(y,z)
Uncle(x,z) <- Married(x,w), Sibling(w,y), Parent(y,z)
Aunt(x,z) <- Female(x), Sibling(x,y), Parent(y,z)
Cousin(x,y) <- Parent(p,x), Sibling(p,q), Parent(q,y)
Grandchild(z,x) <- Parent(x,y), Parent(y,z)"""
LABELLED = "Path(x,y,l) <- Edge(x,y,l)\nPath(x,z,l) <- Path(x,y,l), Edge(y,z,l)"
TRIANGLES = "Triangle(x,y,z) <- Edge(x,y), Edge(y,z), Edge(x,z)"
FAIR = (
    "Ours adds the facts from arrays and counts; DuckDB has them in tables; clingo reads them from text and Nemo from CSV, "
    "and their tuples are counted outside the time."
)
ROUNDS = 3
LONGEST = 5.0  # seconds after which one run of a peer has to do
PATIENCE = 20  # seconds that a peer is given for one run

Facts = Mapping[str, np.ndarray]
Counts = dict[str, int]


def relations_of(rules: str, facts: Facts) -> tuple[str, ...]:
    """Return the derived relations of a program, in order."""
    heads = dict.fromkeys(re.findall(r"^(\w+)\(.*<-", rules, re.MULTILINE))
    return tuple(name for name in heads if name not in facts)


class Engine:
    """A contender whose answer is counted apart from what is timed: reading tuples one by one in Python is not its work."""

    def __init__(self, run: Callable[[], Any], count: Callable[[Any], Counts]) -> None:
        self.run, self.count, self.state = run, count, None

    def __call__(self) -> object:
        self.state = None
        self.state = self.run()
        return None

    def counts(self) -> Counts:
        state, self.state = self.state, None
        return self.count(state)


def counts_of(call: Callable[[], object]) -> Any:
    """Run a contender once and return what it counts."""
    found = call()
    return call.counts() if isinstance(call, Engine) else found


# contenders: each takes rules and facts and returns a call that counts the tuples of every derived relation


def ours(rules: str, facts: Facts) -> Callable[[], Counts]:
    names = relations_of(rules, facts)

    def call() -> Counts:
        program = tl.Program(rules)
        for name, rows in facts.items():
            program.add(name, rows)
        return {name: len(program.relation(name)) for name in names}

    return call


def _terms(text: str, one: Callable[[str], str]) -> str:
    return re.sub(r"\b[a-z]\b", lambda m: one(m[0]), text)


def clingo_rules(rules: str) -> str:
    lower = re.sub(r"[A-Z]\w+", lambda m: m[0].lower(), rules)
    return "".join(_terms(line.replace("<-", ":-"), str.upper) + ".\n" for line in lower.splitlines())


def clingo_facts(facts: Facts) -> str:
    return "".join(
        f"{name.lower()}({','.join(map(str, row))}).\n" for name, rows in facts.items() for row in rows.tolist()
    )


def with_clingo(rules: str, facts: Facts) -> Engine:
    import clingo

    names, text, given = relations_of(rules, facts), clingo_rules(rules), clingo_facts(facts)

    def run() -> Any:
        control = clingo.Control(["--warn=none"])
        control.add("base", [], given + text)
        control.ground([("base", [])])  # grounding a program without choice derives everything
        return control

    def count(control: Any) -> Counts:
        atoms = control.symbolic_atoms
        return {n: sum(1 for _ in atoms.by_signature(n.lower(), _arity(rules, n))) for n in names}

    return Engine(run, count)


def _arity(rules: str, name: str) -> int:
    found = re.search(rf"\b{name}\(([^)]*)\)", rules)
    return found[1].count(",") + 1 if found else 0


def with_nemo(rules: str, facts: Facts) -> Engine:
    import nmo_python

    names = relations_of(rules, facts)
    folder = Path(tempfile.mkdtemp(prefix="nemo"))
    lines = []
    for name, rows in facts.items():
        np.savetxt(folder / f"{name}.csv", rows, "%d", delimiter=",")
        kinds = ",".join(["int"] * rows.shape[1])
        lines.append(f'@import {name} :- csv{{resource="{folder / name}.csv", format=({kinds})}} .')
    lines += [_terms(line.replace("<-", ":-"), lambda v: "?" + v) + " ." for line in rules.splitlines()]
    lines += [f"@output {name} ." for name in names]
    text = "\n".join(lines)

    def run() -> Any:
        engine = nmo_python.NemoEngine(nmo_python.load_string(text))
        engine.reason()
        return engine

    def count(engine: Any) -> Counts:
        return {name: sum(1 for _ in engine.result(name)) for name in names}

    return Engine(run, count)


class Duck:
    """DuckDB with the facts in tables; a rule is a select, a recursion either a recursive query or rounds of inserts."""

    def __init__(self, facts: Facts) -> None:
        import duckdb

        self.connection = duckdb.connect()
        for name, rows in facts.items():
            self.connection.register("given", {f"c{k}": np.ascontiguousarray(rows[:, k]) for k in range(rows.shape[1])})
            self.connection.execute(f"create table {name} as select * from given")
            self.connection.unregister("given")

    def one(self, query: str) -> int:
        return int(self.connection.execute(query).fetchall()[0][0])


def rule_query(rule: str, tables: Mapping[str, str] | None = None) -> str:
    """Return the select of a rule; ``tables`` names others to read from, by the atom's place in the body."""
    head, body = rule.split("<-")
    columns: dict[str, str] = {}
    froms, where = [], []
    for k, (name, inside) in enumerate(re.findall(r"(\w+)\(([^)]*)\)", body)):
        froms.append(f"{(tables or {}).get(str(k), name)} t{k}")
        for c, variable in enumerate(inside.split(",")):
            if columns.setdefault(variable, f"t{k}.c{c}") != f"t{k}.c{c}":
                where.append(f"{columns[variable]} = t{k}.c{c}")
    where += [f"{columns[a]} != {columns[b]}" for a, b in re.findall(r"(\w) != (\w)", body)]
    chosen = re.findall(r"\w+", head)[1:]
    kept = ", ".join(f"{columns[v]} as c{c}" for c, v in enumerate(chosen))
    return f"select {kept} from {', '.join(froms)}" + (f" where {' and '.join(where)}" if where else "")


def with_duckdb(rules: str, facts: Facts) -> Callable[[], Counts]:
    """Return a call for rules that use one another without recursion."""
    duck, names = Duck(facts), relations_of(rules, facts)

    def call() -> Counts:
        for name in names:
            parts = [rule_query(r) for r in rules.splitlines() if r.startswith(name + "(")]
            duck.connection.execute(
                f"create or replace table {name} as {' union '.join(parts)}".replace("select", "select distinct")
            )
        return {name: duck.one(f"select count(*) from {name}") for name in names}

    return call


def with_recursive_query(rules: str, facts: Facts) -> Callable[[], Counts]:
    """Return a call for one relation with linear recursion."""
    duck, (name,) = Duck(facts), relations_of(rules, facts)
    first, again = (rule_query(r) for r in rules.splitlines())
    query = f"with recursive {name}(c0, c1) as ({first} union {again}) select count(*) from {name}"
    return lambda: {name: duck.one(query)}


def with_rounds(rules: str, facts: Facts) -> Callable[[], Counts]:
    """Return a call for mutual recursion that is not linear, which no recursive query does: inserts until nothing is new."""
    duck, names = Duck(facts), relations_of(rules, facts)

    def call() -> Counts:
        for name in names:
            duck.connection.execute(f"create or replace table {name} (c0 bigint, c1 bigint)")
        before = -1
        while before != (before := sum(duck.one(f"select count(*) from {name}") for name in names)):
            for rule in rules.splitlines():
                name = rule.split("(")[0]
                duck.connection.execute(f"insert into {name} ({rule_query(rule)}) except select * from {name}")
        return {name: duck.one(f"select count(*) from {name}") for name in names}

    return call


# measuring


def compared(
    title: str, note: str, rules: str, facts: Facts, others: Mapping[str, Contender], *, rounds: int = 3
) -> Table:
    """Time contenders that all count the same tuples; a peer that takes long runs once."""
    contenders: dict[str, Contender] = {OURS: ours(rules, facts), **others}
    counts: dict[str, object] = {}
    once: list[Timing] = []
    for name, call in list(contenders.items()):
        if isinstance(call, str):
            continue
        if name == OURS:
            counts[name] = call()
            continue
        tried = tried_apart(call)
        if tried is None:
            contenders[name] = f"more than {PATIENCE} s"
            continue
        taken, counts[name] = tried
        if taken > LONGEST:
            once.append(Timing(name, taken, taken, (taken,)))
            del contenders[name]
    expected = counts[OURS]
    for name, counted in counts.items():
        if counted != expected:
            raise ValueError(f"{title}: {name} counts {counted}, {OURS} counts {expected}")
    total = ", ".join(f"{name} {count:,}" for name, count in dict(expected).items())  # type: ignore[call-overload]
    table = contest(title, f"{note} Tuples: {total}. {FAIR}", contenders, rounds=rounds, calls=1, ours=(OURS,))
    return table._replace(timings=(*table.timings, *once))


def tried_apart(call: Callable[[], object]) -> tuple[float, Any] | None:
    """Run a peer once in a process of its own, which ends when it takes too long; return its seconds and what it counted."""
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        start = perf_counter()
        found = call()
        taken = perf_counter() - start
        counts = call.counts() if isinstance(call, Engine) else found
        os.write(writes, json.dumps([taken, counts]).encode())
        os._exit(0)
    os.close(writes)
    ready, _, _ = select.select([reads], [], [], PATIENCE)
    if not ready:
        os.kill(child, signal.SIGKILL)
    text = os.read(reads, 1 << 16)
    os.close(reads)
    os.waitpid(child, 0)
    return tuple(json.loads(text)) if text else None


def random_edges(nodes: int, edges: int, seed: int) -> np.ndarray:
    """Return distinct edges between random nodes."""
    rng = np.random.default_rng(seed)
    codes = np.unique(rng.integers(0, nodes * nodes, edges + edges // 50))
    codes = rng.permutation(codes)[:edges]
    return np.stack(np.divmod(codes, nodes), axis=1)


def gustavson() -> Callable[..., tuple[np.ndarray, np.ndarray]]:
    """Return the Boolean product of sparse rows as a plain numba loop."""
    import numba

    @numba.njit
    def product(ap, ai, bp, bi, columns):  # type: ignore[no-untyped-def]
        rows = len(ap) - 1
        seen = np.full(columns, -1, np.int64)
        indptr = np.zeros(rows + 1, np.int64)
        for row in range(rows):
            count = 0
            for a in range(ap[row], ap[row + 1]):
                for b in range(bp[ai[a]], bp[ai[a] + 1]):
                    if seen[bi[b]] != row:
                        seen[bi[b]] = row
                        count += 1
            indptr[row + 1] = indptr[row] + count
        indices = np.empty(indptr[rows], np.int32)
        seen[:] = -1
        at = 0
        for row in range(rows):
            for a in range(ap[row], ap[row + 1]):
                for b in range(bp[ai[a]], bp[ai[a] + 1]):
                    if seen[bi[b]] != row:
                        seen[bi[b]] = row
                        indices[at] = bi[b]
                        at += 1
        return indptr, indices

    return product


def joins(nodes: int = 100_000, edges: int = 1_000_000) -> list[Table]:
    """Time a sparse join-project: relations in, a relation out."""
    from scipy.sparse import csr_array

    a, b = random_edges(nodes, edges, 1), random_edges(nodes, edges, 2)
    shape = (nodes, nodes)
    left, right = (csr_array((np.ones(len(e), bool), (e[:, 0], e[:, 1])), shape) for e in (a, b))
    builder = tl.GraphBuilder()
    p, q = builder.input("p", shape, "bool"), builder.input("q", shape, "bool")
    graph = builder.build(r=builder.einsum("xy,yz->xz", p, q, algebra="boolean"))
    inputs = {"p": tl.SparseTensor(left), "q": tl.SparseTensor(right)}
    executor = tl.Executor(native=True, threads=2)
    product = gustavson()
    duck = peer("duckdb", lambda: with_duckdb("Joined(x,z) <- A(x,y), B(y,z)", {"A": a, "B": b}))
    name = "Executor, sparse relations in and out"
    contenders: dict[str, Contender] = {
        name: lambda: executor.execute(graph, inputs)["r"].count,
        "SciPy: sparse product": lambda: (left @ right).nnz,
        "numba: Gustavson, not sorted": lambda: len(
            product(left.indptr, left.indices, right.indptr, right.indices, nodes)[1]
        ),
        "DuckDB: join, distinct": duck if isinstance(duck, str) else lambda: duck()["Joined"],  # type: ignore[index]
    }
    counts = {n: call() for n, call in contenders.items() if not isinstance(call, str)}
    if len(set(counts.values())) != 1:
        raise ValueError(f"the joins differ: {counts}")
    note = f"R(x,z) <- P(x,y), Q(y,z): {nodes:,} nodes, {edges:,} edges each, {counts[name]:,} tuples out. The goal: at most twice the best of SciPy and numba, 5 times ahead of DuckDB."
    return [contest(f"Sparse join-project, {nodes:,} nodes", note, contenders, rounds=5, calls=1, ours=(name,))]


def engines(rules: str, facts: Facts, duck: Callable[[str, Facts], Callable[[], Counts]]) -> dict[str, Contender]:
    return {
        "clingo": peer("clingo", lambda: with_clingo(rules, facts)),
        "DuckDB": peer("duckdb", lambda: duck(rules, facts)),
        "Nemo": peer("nmo_python", lambda: with_nemo(rules, facts)),
    }


def tree(nodes: int, seed: int) -> np.ndarray:
    """Return the edges of a tree from every node to an earlier one."""
    rng = np.random.default_rng(seed)
    child = np.arange(1, nodes)
    return np.stack([child, (rng.random(nodes - 1) * child).astype(np.int64)], axis=1)


def closures() -> list[Table]:
    """Time transitive closures."""
    chain = np.stack([np.arange(999), np.arange(1, 1000)], axis=1)
    graphs = {
        "2,000 nodes of degree 2": random_edges(2000, 4000, 3),
        "2,000 nodes of degree 8": random_edges(2000, 16_000, 4),
        "a chain of 1,000": chain,
        "a tree of 100,000": tree(100_000, 5),
    }
    goal = "The goal: ahead of every engine by at least 3, usually 10."
    return [
        compared(
            f"Transitive closure as a program, {name}",
            f"{len(edge):,} edges. {goal}",
            CLOSURE,
            {"Edge": edge},
            engines(CLOSURE, {"Edge": edge}, with_recursive_query),
        )
        for name, edge in graphs.items()
    ]


def generations() -> list[Table]:
    """Time the same-generation program on a tree."""
    facts = {"Up": tree(2000, 6)}
    others = engines(SAME_GENERATION, facts, with_recursive_query)
    return [
        compared(
            "Same generation, a tree of 2,000", "A join from both sides in every round.", SAME_GENERATION, facts, others
        )
    ]


def points_to() -> list[Table]:
    """Time the points-to analysis on real facts; nothing where they are absent."""
    folder = next(
        (p / "shared" / "data" / "logic" / "cspa1k" for p in HERE.parents if (p / "shared" / "data").is_dir()), None
    )
    if folder is None or not folder.is_dir():
        return []
    facts = {n: np.loadtxt(folder / "facts" / f"{n}.csv", np.int64, skiprows=1) for n in ("Assign", "Dereference")}
    note = "Three mutually recursive relations, ten rules, two of them not linear; facts of a real program."
    return [compared("Points-to, cspa1k", note, POINTS_TO, facts, engines(POINTS_TO, facts, with_rounds))]


def one_source(components: int = 10_000, nodes: int = 50, edges: int = 100) -> list[Table]:
    """Time what one node reaches, on demand, beside the closure of everything: in a graph of many parts, and in one large part."""
    rng = np.random.default_rng(7)
    part = np.repeat(np.arange(components) * nodes, edges)
    parts = np.unique(rng.integers(0, nodes, (components * edges, 2)) + part[:, None], axis=0)
    total = components * edges
    whole = np.unique(rng.integers(0, max(total // 10, 2), (total, 2)), axis=0)
    return [
        _one_source("One source of a million edges", f"in {components:,} parts", parts, components * nodes, ROUNDS),
        _one_source("One source of a million random edges", f"between {total // 10:,} nodes", whole, total // 10, 2),
    ]


def _one_source(title: str, kind: str, edge: Any, size: int, rounds: int) -> Table:
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import breadth_first_order

    matrix = csr_array((np.ones(len(edge), np.int8), (edge[:, 0], edge[:, 1])), (size, size))
    start = int(edge[0, 0])

    def fresh() -> tl.Program:
        program = tl.Program(CLOSURE)
        program.add("Edge", edge)
        return program

    unasked = [fresh() for _ in range(2 * (rounds + 2))]  # for rows without loading: each is asked once
    loaded, asked = fresh(), list[tl.Program]()

    def unasked_one() -> tl.Program:
        asked.append(unasked.pop())  # kept, as a user keeps it (a program with its closure is dropped: a gigabyte each)
        return asked[-1]

    question, everything = f"Path({start}, x)?", "Path"
    query = f"with recursive p(c) as (select c1 from Edge where c0 = {start} union select c1 from p join Edge on c = c0) select count(*) from p"
    duck: Contender = peer("duckdb", lambda: lambda d=Duck({"Edge": edge}): d.one(query))
    reached = len(loaded.query(question))
    looped = start in {x for (x,) in loaded.query(question)}
    contenders: dict[str, Contender] = {
        "the closure, then its rows; facts there": lambda: len(_closed(unasked.pop(), everything, start)),
        "the question on demand; facts there": lambda: len(unasked_one().query(question)),
        "the closure, then its rows; loading too": lambda: len(_closed(fresh(), everything, start)),
        "the question on demand; loading too": lambda: len(fresh().query(question)),
        "the question asked again": lambda: len(loaded.query(question)),
        "DuckDB, recursive query from the node": duck,
        "SciPy: breadth-first search": lambda: (
            len(breadth_first_order(matrix, start, return_predecessors=False)) - (not looped)
        ),
    }
    counts = {n: call() for n, call in contenders.items() if not isinstance(call, str)}
    if set(counts.values()) != {reached}:
        raise ValueError(f"one source: {counts}")
    note = f"{len(edge):,} edges {kind}; the node reaches {reached}. Where facts are there, every run asks a program that was never asked before. The goal: 20 times faster than the closure."
    mine = tuple(name for name in contenders if "the " in name[:4])
    return contest(title, note, contenders, rounds=rounds, calls=1, ours=mine)


def _closed(program: tl.Program, name: str, start: int) -> list[object]:
    program.relation(name)
    return list(program.query(f"{name}({start}, x)?"))


def triangles(nodes: int = 100_000, edges: int = 1_000_000) -> list[Table]:
    """Time a cyclic join on a graph with hubs."""
    from scipy.sparse import csr_array

    rng = np.random.default_rng(8)
    ends = (nodes * rng.random((2 * edges, 2)) ** 1.5).astype(np.int64)
    edge = np.unique(ends[ends[:, 0] < ends[:, 1]], axis=0)
    edge = rng.permutation(edge)[:edges]
    facts = {"Edge": edge}
    m = csr_array((np.ones(len(edge), np.int32), (edge[:, 0], edge[:, 1])), (nodes, nodes))
    others: dict[str, Contender] = {
        "DuckDB": peer("duckdb", lambda: with_duckdb(TRIANGLES, facts)),
        "SciPy: masked product": lambda: {"Triangle": int((m @ m).multiply(m).sum())},
        "clingo": peer("clingo", lambda: with_clingo(TRIANGLES, facts)),
        "Nemo": peer("nmo_python", lambda: with_nemo(TRIANGLES, facts)),
    }
    return [compared("Triangles", f"{len(edge):,} edges, some nodes with many.", TRIANGLES, facts, others)]


# families: time and memory in processes of their own


def family(people: int = 100_000, seed: int = 9) -> dict[str, np.ndarray]:
    """Return a plausible family forest: couples of one generation have up to five children, a tenth are founders, some marry in."""
    rng = np.random.default_rng(seed)
    male = rng.random(people) < 0.5
    generation = [np.arange(max(2, people // 10))]
    parents, married = [], []
    at = len(generation[0])
    while at < people:
        last = rng.permutation(generation[-1])
        men, women = last[male[last]], last[~male[last]]
        couples = min(len(men), len(women))
        married.append(np.stack([men[:couples], women[:couples]], 1))
        children = rng.choice(6, couples, p=[0.12, 0.18, 0.34, 0.22, 0.1, 0.04])
        total = min(int(children.sum()), people - at)
        couple = np.repeat(np.arange(couples), children)[:total]
        born = np.arange(at, at + total)
        parents += [np.stack([men[couple], born], 1), np.stack([women[couple], born], 1)]
        at += total
        newcomers = np.arange(at, min(people, at + total // 10 + 1))  # some marry in
        at += len(newcomers)
        generation.append(np.concatenate([born, newcomers]))
    every = np.arange(people)
    return {
        "Parent": np.concatenate(parents),
        "Married": np.concatenate(married),
        "Male": every[male][:, None],
        "Female": every[~male][:, None],
    }


def in_process(what: str) -> tuple[float, float, Counts]:
    """Run one measurement of this file in a fresh interpreter; return its seconds, its peak in bytes and what it counted."""
    code = f"import sys; sys.path.insert(0, {str(HERE)!r}); import relations; relations.{what}"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], found["bytes"], found["counts"]


def _report(call: Callable[[], object], warm: Callable[[], object]) -> None:
    """Print the time of a call and the memory of the process above what it was before, at its peak."""
    warm()
    before, _ = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    start = perf_counter()
    found = call()
    taken, peak = perf_counter() - start, _resident()[1]
    counts = call.counts() if isinstance(call, Engine) else found
    print(json.dumps({"seconds": taken, "bytes": peak - before, "counts": counts}))


def _resident() -> tuple[int, int]:
    text = Path("/proc/self/status").read_text(encoding="utf-8")
    now, peak = (int(re.search(rf"{key}:\s+(\d+) kB", text)[1]) * 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[index]
    return now, peak


def family_of(engine: str, people: int) -> None:
    """Count relatives with one engine: run in a process of its own."""
    make = {"ours": ours, "duckdb": with_duckdb, "nemo": with_nemo}[engine]
    small, facts = family(1000), family(people)
    _report(make(FAMILY, facts), make(FAMILY, small))


def closure_of(nodes: int, degree: int) -> None:
    """Measure the memory of a closure: run in a process of its own."""
    edge = random_edges(nodes, nodes * degree, 10)
    _report(ours(CLOSURE, {"Edge": edge}), ours(CLOSURE, {"Edge": random_edges(500, 1000, 1)}))


def families(people: int = 100_000) -> list[Table]:
    """Time uncles, aunts, cousins and grandchildren, with peak memory."""
    facts = sum(len(rows) for rows in family(people).values())
    engines = {"ours": OURS, "duckdb": "DuckDB", "nemo": "Nemo"}
    timings, notes, skipped, counts = [], [], [], []
    for engine, name in engines.items():
        package = {"ours": "tensorlogic", "nemo": "nmo_python"}.get(engine, engine)
        if isinstance(missing := peer(package, lambda: int), str):
            skipped.append((name, missing))
            continue
        runs = [in_process(f"family_of({engine!r}, {people})") for _ in range(3)]
        times = sorted(r[0] for r in runs)
        timings.append(Timing(name, times[0], times[1], tuple(times)))
        notes.append(f"{name} {min(r[1] for r in runs) / 1e6:,.0f} MB")
        counts.append(runs[0][2])
    if any(c != counts[0] for c in counts):
        raise ValueError(f"families differ: {counts}")
    total = ", ".join(f"{name} {count:,}" for name, count in counts[0].items())
    note = f"{people:,} people, {facts:,} facts. Tuples: {total}. Peak memory above the start: {', '.join(notes)}. The goal: under 1 s and 1 GB."
    return [Table(f"Relatives among {people:,} people", note, tuple(timings), (OURS,), None, tuple(skipped))]


def texts(count: int = 100_000) -> list[Table]:
    """Time parsing and loading facts written as text."""
    rng = np.random.default_rng(11)
    pairs = rng.integers(0, 30_000, (count, 2))
    text = "".join(f"Parent(P{a}, P{b})\n" for a, b in pairs)
    clingo_text = "".join(f"parent(p{a},p{b}).\n" for a, b in pairs)
    expected = len({(a, b) for a, b in pairs.tolist()})

    def clingo_loads() -> Callable[[], object]:
        import clingo

        def call() -> int:
            control = clingo.Control(["--warn=none"])
            control.add("base", [], clingo_text)
            control.ground([("base", [])])
            return sum(1 for _ in control.symbolic_atoms.by_signature("parent", 2))

        return call

    contenders: dict[str, Contender] = {
        "tl.Program(text)": lambda: len(tl.Program(text).relation("Parent")),
        "clingo: add, ground": peer("clingo", clingo_loads),
    }
    counts = {name: call() for name, call in contenders.items() if not isinstance(call, str)}
    if set(counts.values()) != {expected}:
        raise ValueError(f"facts differ: {counts}, not {expected}")
    note = f"{count:,} facts between 30,000 names as text, until the relation can be read. The goal: under 2 s."
    return [
        contest(f"Loading {count:,} facts from text", note, contenders, rounds=3, calls=1, ours=("tl.Program(text)",))
    ]


def tables_from_files(count: int = 1_000_000) -> list[Table]:
    """Time tuples from CSV and Parquet files until the relation can be read, beside DuckDB and pandas with the files read alone."""
    import pandas
    import pyarrow
    from pyarrow import csv, parquet

    rng = np.random.default_rng(12)
    folder = Path(tempfile.mkdtemp(prefix="tuples"))
    names = np.char.add("person ", np.arange(100_000).astype(str))
    columns = [pyarrow.array(names[rng.integers(0, 100_000, count)]) for _ in range(2)]
    table = pyarrow.table(columns, ["parent", "child"])
    csv.write_csv(table, folder / "names.csv")
    parquet.write_table(table, folder / "names.parquet")
    expected = table.group_by(["parent", "child"]).aggregate([]).num_rows

    def ours_reads(path: Path) -> Callable[[], object]:
        def call() -> int:
            program = tl.Program()
            program.add("Parent", path, header=True)
            return len(program.relation("Parent"))

        return call

    def duckdb_reads() -> Callable[[], object]:
        import duckdb

        query = f"select count(*) from (select distinct * from read_csv('{folder}/names.csv'))"
        return lambda: duckdb.connect().execute(query).fetchall()[0][0]

    contenders: dict[str, Contender] = {
        "Program.add of a CSV file": ours_reads(folder / "names.csv"),
        "Program.add of a Parquet file": ours_reads(folder / "names.parquet"),
        "DuckDB: distinct rows of the CSV file": peer("duckdb", duckdb_reads),
        "pandas: distinct rows of the CSV file": lambda: len(pandas.read_csv(folder / "names.csv").drop_duplicates()),
    }
    counts = {name: call() for name, call in contenders.items() if not isinstance(call, str)}
    if set(counts.values()) != {expected}:
        raise ValueError(f"tuples differ: {counts}, not {expected}")
    note = f"{count:,} tuples of two among 100,000 names, until the relation can be read. The goal: about a second."
    mine = tuple(name for name in contenders if name.startswith("Program"))
    return [contest(f"Loading {count:,} tuples from files", note, contenders, rounds=3, calls=1, ours=mine)]


def changed_facts(chains: int = 100, length: int = 60, parts: int = 1000) -> list[Table]:
    """Time one fact taken back and put back, in a deep recursion and in a closure of many parts, beside computing everything anew."""
    first = (np.arange(chains)[:, None] * length + np.arange(length - 1)).ravel()
    edges = np.concatenate([np.stack([first, first + 1, np.full_like(first, label)], axis=1) for label in (0, 1)])
    deep = f"Paths of one label over {2 * chains:,} chains of {length:,}"
    rng = np.random.default_rng(13)
    shallow = np.unique(rng.integers(0, 50, (100 * parts, 2)) + np.repeat(np.arange(parts) * 50, 100)[:, None], axis=0)
    wide = f"The closure of {len(shallow):,} edges in {parts:,} parts"
    return [
        _changed("Changing one fact of a recursion", deep, LABELLED, edges, length // 2),
        _changed("Changing one edge of a closure", wide, CLOSURE, shallow, len(shallow) // 2),
    ]


def _changed(title: str, what: str, rules: str, edges: np.ndarray, at: int) -> Table:
    program = tl.Program(rules)
    program.add("Edge", edges)
    program.relation("Path")

    def updated() -> int:
        program.retract("Edge", edges[at : at + 1])
        fewer = len(program.relation("Path"))
        program.add("Edge", edges[at : at + 1])
        return len(program.relation("Path")) - fewer

    def anew() -> int:
        rest = np.delete(edges, at, axis=0)
        fewer, every = (ours(rules, {"Edge": e})()["Path"] for e in (rest, edges))
        return every - fewer

    contenders: dict[str, Contender] = {"taken back and put back": updated, "both computed anew": anew}
    counts = {name: call() for name, call in contenders.items() if not isinstance(call, str)}
    if len(set(counts.values())) != 1:
        raise ValueError(f"changed facts differ: {counts}")
    note = f"{what}, when one edge is taken back and then put back."
    return contest(title, note, contenders, rounds=3, calls=1, ours=tuple(contenders)[:1])


def closure_memory() -> list[Table]:
    """Measure the peak memory of a closure beside its packed size."""
    found = []
    for nodes, degree in ((20_000, 2), (30_000, 1)):
        taken, peak, counts = in_process(f"closure_of({nodes}, {degree})")
        packed = nodes * nodes / 8
        note = f"{nodes * degree:,} edges, {counts['Path']:,} paths. Peak memory above the start: {peak / 1e6:,.0f} MB, {peak / packed:.2f} times the packed size of {packed / 1e6:,.0f} MB (the goal: at most 2)."
        found.append(
            Table(
                f"Memory of a closure, {nodes:,} nodes of degree {degree}",
                note,
                (Timing(OURS, taken, taken, (taken,)),),
            )
        )
    return found


ALL = (
    joins,
    closures,
    generations,
    points_to,
    one_source,
    triangles,
    families,
    texts,
    tables_from_files,
    changed_facts,
    closure_memory,
)


def tables() -> list[Table]:
    return [table for part in ALL for table in part()]


if __name__ == "__main__":
    for part in ALL:
        if not sys.argv[1:] or part.__name__ in sys.argv[1:]:
            for table in part():
                print(table.markdown())
