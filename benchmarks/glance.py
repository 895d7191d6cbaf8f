"""The first table of docs/benchmarks.md: how fast the main jobs are beside the best known way to do each."""

from __future__ import annotations

from harness import RESULTS, Table, Timing, read, seconds

# (what is done, benchmark, title of its table, our row, the row it is set beside)
JOBS = (
    ("join of two sparse relations", "relations", "Sparse join-project, 100,000 nodes", 0, "SciPy"),
    ("the same", "relations", "Sparse join-project, 100,000 nodes", 0, "DuckDB"),
    ("join of two Boolean matrices", "bits", "Boolean join-project, n=1000", 0, "SciPy"),
    ("rule, all pairs of 200", "logic", "Rule join, n=200", 1, "pytensorlogic"),
    ("transitive closure", "relations", "Transitive closure as a program, 2,000 nodes of degree 2", 0, "DuckDB"),
    ("points-to analysis", "relations", "Points-to, cspa1k", 0, "Nemo"),
    ("triangles of a graph", "relations", "Triangles", 0, "DuckDB"),
    ("what one node of a million edges reaches", "relations", "One source of a million edges", 1, "SciPy"),
    ("max-min product, n=1000", "algebras", "max-min contraction, n=1000", 1, "C loop"),
    ("20 small operations", "loop", "20 small operations on 16×16", 2, "NumPy by hand"),
    ("MLP, batch 64", "models", "MLP 784-512-256-10, batch 64", "compiled to machine code", "ONNX Runtime"),
    ("transformer block", "models", "Transformer block, gelu by erf", "compiled to machine code", "ONNX Runtime"),
    ("fuzzy formula, 10M elements", "models", "Fuzzy formula over 10M elements", "compiled", "C, OpenMP"),
    ("training step, batch 64", "training", "Training step of an MLP, batch 64", "the step of a trainer", "PyTorch"),
    ("training step, batch 1024", "training", "Training step of an MLP, batch 1024", "the step of a trainer", "PyTorch"),
    ("the same", "training", "Training step of an MLP, batch 1024", "the step of a trainer", "NumPy by hand"),
    ("the same on two processes", "distributed", "Training step of an MLP by shares of rows, batch 1024", 1, "PyTorch DDP"),
    ("epoch of a convolution", "training", "An epoch of a convolution", "trainer", "PyTorch"),
    ("batch of 256 small inputs", "modes", "Batch of 256: a perceptron 32-64-10 on one row", 1, "a loop of execute"),
    ("one row by INT4 weights", "quantization_kernels", "One row by 4096×4096 packed weights", "our INT4", "our float32"),
    ("INT8 product", "quantization_kernels", "int8 × int8 → int32, 1024³", "our int8", "ONNX Runtime int8"),
    ("requests for a tiny model", "serving", "A tiny model in JSON", 1, "Starlette"),
    ("the same", "serving", "A tiny model in JSON", 1, "bare uvloop"),
    ("totals of five million trace entries", "tracing", "Grouping five million entries", 1, "DuckDB"),
)  # fmt: skip


def _row(table: Table, which: int | str) -> Timing:
    return (
        table.timings[which] if isinstance(which, int) else next(t for t in table.timings if t.name.startswith(which))
    )


def markdown() -> str:
    """Return the table as Markdown, made of the results that are saved; jobs without results are left out."""
    tables = {(p.stem, t.title): t for p in RESULTS.glob("*.json") for t in read(p)}
    lines = [
        "## At a glance",
        "",
        "How many times as fast as the other, best against best; the tables below have the rest.",
        "",
    ]
    lines += ["| what | ours | beside | theirs | times as fast |", "| --- | ---: | --- | ---: | ---: |"]
    for what, benchmark, title, ours, beside in JOBS:
        if table := tables.get((benchmark, title)):
            us, them = _row(table, ours), _row(table, beside)
            times = them.best / us.best
            cells = (
                what,
                seconds(us.best),
                them.name,
                seconds(them.best),
                f"{times:.{0 if times > 20 else 1 if times > 3 else 2}f}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])
