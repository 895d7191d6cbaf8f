"""Packed bits: Boolean joins beside BLAS, SciPy and a C loop; transitive closures beside DuckDB."""

import ctypes
from collections.abc import Callable

import numpy as np
from harness import Contender, Table, contest, in_c, peer

import tensorlogic as tl

C_LOOP = r"""
#include <stdint.h>
#include <string.h>
void join(const uint64_t *restrict a, const uint64_t *restrict b, uint64_t *restrict out, long n, long width) {
  memset(out, 0, n * width * 8);
  for (long i = 0; i < n; i++) {
    uint64_t *restrict row = out + i * width;
    for (long w = 0; w < width; w++)
      for (uint64_t word = a[i * width + w]; word; word &= word - 1) {
        const uint64_t *other = b + (w * 64 + __builtin_ctzll(word)) * width;
        for (long j = 0; j < width; j++) row[j] |= other[j];
      }
  }
}
"""
QUERY = """
with recursive path(a, b) as (select a, b from edge union select path.a, edge.b from path join edge on path.b = edge.a)
select count(*) from path
"""


def c_join(a: tl.BitTensor, b: tl.BitTensor) -> Contender:
    """Return the packed join as a C loop, or the word that there is no compiler."""
    library = in_c(C_LOOP)
    if isinstance(library, str):
        return library
    out = np.empty_like(a.words)
    pointers = [ctypes.c_void_p(x.ctypes.data) for x in (a.words, b.words, out)]
    n, width = (ctypes.c_long(k) for k in a.words.shape)

    def call() -> object:
        library.join(*pointers, n, width)
        return tl.BitTensor.of(out, a.shape)

    return call


def join(x: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    """Return the join through the executor, NumPy arrays in and out."""
    b = tl.GraphBuilder()
    graph = b.build(
        z=b.einsum("xy,yz->xz", b.input("x", x.shape, "bool"), b.input("y", y.shape, "bool"), algebra="boolean")
    )
    executor, inputs = tl.Executor(native=True), {"x": x, "y": y}
    executor.execute(graph, inputs)  # the plan is chosen
    return lambda: executor.execute(graph, inputs)["z"]


def scipy_join(x: np.ndarray, y: np.ndarray) -> Callable[[], object]:
    from scipy.sparse import csr_array

    a, b = csr_array(x), csr_array(y)

    def call() -> object:
        return (a @ b).toarray()

    return call


def agreed(title: str, contenders: dict[str, Contender]) -> dict[str, Contender]:
    """Return contenders that give the same truth values."""
    answers = [np.asarray(call(), bool) for call in contenders.values() if not isinstance(call, str)]
    if not all(np.array_equal(x, answers[0]) for x in answers):
        raise ValueError(f"{title}: the answers differ")
    return contenders


def joins() -> list[Table]:
    """Time the join-project at growing n, dense and packed."""
    found = []
    rng = np.random.default_rng(0)
    for n in (1000, 3000):
        x, y = (rng.random((n, n)) < 0.02 for _ in range(2))
        contenders: dict[str, Contender] = {
            "packed bits, bool in and out": join(x, y),
            "NumPy: float32 BLAS, > 0": lambda x=x, y=y: (x.astype("float32") @ y.astype("float32")) > 0,
            "SciPy sparse, sparse in": peer("scipy", lambda x=x, y=y: scipy_join(x, y)),
        }
        note = f"n={n}, density 2%, bool arrays in and out; the goal: {8 if n == 1000 else 25} times as fast as BLAS."
        title = f"Boolean join-project, n={n}"
        mine = ("packed bits, bool in and out",)
        found.append(contest(title, note, agreed(title, contenders), rounds=7, calls=2, each=True, ours=mine))
    for n in (1000, 4000):
        a, b = (tl.BitTensor(rng.random((n, n)) < 0.02) for _ in range(2))
        contenders = {"C loop, gcc -O3, one thread": c_join(a, b), "BitTensor @ BitTensor": lambda a=a, b=b: a @ b}
        note = f"n={n}, density 2%, packed in and out; the goal: at most {3 if n == 1000 else 2.5} times the C loop."
        title = f"Packed join-project, n={n}"
        found.append(contest(title, note, agreed(title, contenders), rounds=15, calls=3, each=True))
    return found


def duckdb_closure(edge: np.ndarray, expected: int) -> Callable[[], object]:
    import duckdb

    a, b = (np.ascontiguousarray(k) for k in np.nonzero(edge))
    connection = duckdb.connect()
    connection.register("given", {"a": a, "b": b})
    connection.execute("create table edge as select a, b from given")

    def call() -> object:
        return connection.execute(QUERY).fetchall()[0][0]

    if call() != expected:
        raise ValueError(f"DuckDB finds other paths: {call()}, not {expected}")
    return call


def blas_closure(edge: np.ndarray) -> np.ndarray:
    """Return the closure by squaring."""
    paths = edge
    while True:
        floats = paths.astype("float32")
        more = paths | (floats @ floats > 0)
        if np.array_equal(more, paths):
            return paths
        paths = more


def closure(edge: np.ndarray, *, masked: bool = False) -> Callable[[], np.ndarray]:
    """Return the fixpoint of path(x,z) <- path(x,y), edge(y,z); masked ones are no plain closure, so they run in rounds."""
    b = tl.GraphBuilder()
    e = b.input("edge", edge.shape, "bool")

    def rule(path: tl.Tensor) -> tl.Tensor:
        more = b.einsum("xy,yz->xz", path, e, algebra="boolean")
        return b.logical_and(more, b.constant(np.ones(len(edge), bool))) if masked else more

    graph = b.build(path=b.fixpoint(rule, e, combine="or"))
    executor = tl.Executor(native=True)
    executor.execute(graph, {"edge": edge})
    return lambda: executor.execute(graph, {"edge": edge})["path"]


def closures() -> list[Table]:
    """Time transitive closures, bool in and out."""
    rng = np.random.default_rng(1)
    graphs = {
        "2,000 nodes of degree 2": rng.random((2000, 2000)) < 2 / 2000,
        "2,000 nodes of degree 8": rng.random((2000, 2000)) < 8 / 2000,
        "a chain of 1,000": np.eye(1000, k=1, dtype=bool),
    }
    found = []
    for name, edge in graphs.items():
        ours = closure(edge)
        count = int(ours().sum())
        rounds = closure(edge, masked=True)
        if int(rounds().sum()) != count or not np.array_equal(blas_closure(edge), ours()):
            raise ValueError(f"{name}: the closures differ")
        contenders: dict[str, Contender] = {
            "Fixpoint, recognised as a closure": ours,
            "Fixpoint, in rounds on what is new": rounds,
            "DuckDB, recursive query": peer("duckdb", lambda edge=edge, count=count: duckdb_closure(edge, count)),
            "NumPy: BLAS, by squaring": lambda edge=edge: blas_closure(edge),
        }
        note = f"{count:,} paths, bool arrays in and out; the goal: ten times as fast as DuckDB."
        mine = ("Fixpoint, in rounds on what is new", "Fixpoint, recognised as a closure")
        found.append(contest(f"Transitive closure, {name}", note, contenders, rounds=3, calls=1, ours=mine))
    return found


def tables() -> list[Table]:
    return joins() + closures()
