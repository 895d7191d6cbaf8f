"""Run every benchmark, or those named: ``python benchmarks/run.py [name ...]``; write JSON and docs/benchmarks.md."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import beside
import glance
import plots
from harness import HERE, RESULTS, machine, read, write

NAMES = (
    "startup",
    "loop",
    "small",
    "models",
    "contractions",
    "logic",
    "bits",
    "algebras",
    "memory",
    "scaling",
    "tracing",
    "relations",
    "modes",
    "training",
    "distributed",
    "quantization",
    "quantization_kernels",
    "serving_batcher",
    "serving",
)
INTRODUCTION = """# Benchmarks

Measured by `make bench`: contenders take turns round after round in one process, so compare ratios, not times; the first row of each
table is the yardstick. The machine is shared: differences under 1.3 are within noise.
"""


def main(names: list[str]) -> None:
    for name in names or NAMES:
        print(f"{name} ...", flush=True)
        found = importlib.import_module(name).tables()
        write(name, found)
        for table in found:
            print("\n" + table.title)
            for row in table.rows():
                print("  " + "  ".join(f"{cell:>{34 if i == 0 else 10}}" for i, cell in enumerate(row)))
    write_page()


def write_page() -> None:
    """Write docs/benchmarks.md from the results."""
    page = [INTRODUCTION, f"Machine: {machine()}\n", glance.markdown()]
    drawn = plots.draw()
    for name in NAMES:
        if (path := RESULTS / f"{name}.json").exists():
            page += [t.markdown() for t in read(path)]
            page += [f"![{title}](plots/{p.name})\n" for title, p in drawn.get(name, [])]
    page += [beside.markdown()]
    Path(HERE.parent / "docs" / "benchmarks.md").write_text("\n".join(page).rstrip() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
