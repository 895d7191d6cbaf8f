"""Two versions side by side: ``python benchmarks/beside.py OLD NEW [name ...] [--only WORDS]``.

OLD and NEW are source trees, each with its own ``src`` and ``benchmarks``. Each tree has a child process that goes through the
benchmark of that name; wherever both come to the table of one title, they take turns, row by row and round by round, so that a busy moment
hits both. Printed is new / old. ``results/beside/rows.json`` keeps what each run found; ``benchmarks/run.py`` makes a page of it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

PEERS = re.compile(r"NumPy|np\.|C loop|C,|SciPy|DuckDB|torch|PyTorch|JAX|pytensorlogic|numexpr|ONNX|a list:")
# At most so many rounds, and so long for both sides of one row, but never fewer than FEWEST rounds.
ROUNDS, SECONDS = 100, 4.0
FEWEST = 5
ROUND = 0.003  # seconds: of many short rounds some are undisturbed, of a few long ones on a busy machine none
LIMIT = 1.05  # up to which a row counts as unchanged
KEPT = Path(__file__).resolve().parent / "results" / "beside" / "rows.json"


class Side:
    """One tree's child process, and the table it has come to."""

    def __init__(self, tree: Path, name: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        environment.pop(
            "PYTHONDONTWRITEBYTECODE", None
        )  # an installed package is compiled, and start-up is what users wait for
        command = [sys.executable, str(Path(__file__).resolve()), "--child", name]
        self.process = subprocess.Popen(
            command, cwd=tree / "benchmarks", env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.title: str | None = None
        self.names: list[str] = []

    def ask(self, **question: Any) -> Any:
        """Send a question to the child, and return its answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(question) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the child in {self.process.args!r} ended with {self.process.wait()}")
        return json.loads(line)

    def advance(self, answer: Any) -> None:
        """Take note of the next table, or that there is none."""
        self.title, self.names = answer["title"], answer["names"]


def beside(old: Path, new: Path, name: str, only: str) -> dict[str, tuple[float, float, float, float]]:
    """Return best and median seconds of each shared row, old and new, by its title and contender."""
    shared = titles(old, name) & titles(new, name)
    sides = [Side(old, name), Side(new, name)]
    found: dict[str, tuple[float, float, float, float]] = {}
    for side in sides:
        side.advance(side.answer())
    while True:
        for side in sides:
            while side.title is not None and (side.title not in shared or not re.search(only, side.title)):
                side.advance(side.ask(leave=True))
        if sides[0].title is None or sides[0].title != sides[1].title:
            break
        for contender in [n for n in sides[0].names if n in sides[1].names]:
            times = turns(sides, contender)
            row = f"{sides[0].title}: {contender}"
            found[row] = (min(times[0]), min(times[1]), statistics.median(times[0]), statistics.median(times[1]))
            print(f"  {found[row][1] / found[row][0]:6.2f} {found[row][3] / found[row][2]:6.2f}  {row}", flush=True)
        for side in sides:
            side.advance(side.ask(leave=True))
    for side in sides:
        side.process.kill()
        side.process.communicate()
    return found


def turns(sides: list[Side], contender: str) -> list[list[float]]:
    """Time one row of both sides in turn; the side that begins changes from round to round."""
    first = [side.ask(run=contender, calls=1) for side in sides]
    calls = max(1, min(2000, int(ROUND / max(*first, 1e-7))))
    times: list[list[float]] = [[], []]
    start = perf_counter()
    while len(times[0]) < ROUNDS and (len(times[0]) < FEWEST or perf_counter() - start < SECONDS):
        for k in (0, 1) if len(times[0]) % 2 else (1, 0):
            times[k].append(sides[k].ask(run=contender, calls=calls))
    return times


def titles(tree: Path, name: str) -> set[str]:
    """Return the titles of a benchmark's tables, as its results have them."""
    path = tree / "benchmarks" / "results" / f"{name}.json"
    return {t["title"] for t in json.loads(path.read_text(encoding="utf-8"))["tables"]} if path.exists() else set()


def child(name: str) -> None:
    """Go through a benchmark; at each table, time what is asked for until asked to leave it. Peers take no part."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a benchmark prints is not an answer
    sys.path[0] = str(Path.cwd())  # the tree's own harness
    harness = importlib.import_module("harness")

    def tell(answer: Any) -> None:
        out.write(json.dumps(answer) + "\n")
        out.flush()

    def contest(title: str, note: str, contenders: Mapping[str, Any], **options: Any) -> Any:
        ours = options.get("ours") or [n for n in contenders if not PEERS.match(n)]
        ready = {n: c for n, c in contenders.items() if n in ours and not isinstance(c, str)}
        tell({"title": title, "names": list(ready)})
        while "run" in (question := json.loads(sys.stdin.readline())):
            tell(timed(ready[question["run"]], question["calls"]))
        return harness.Table(title, note, tuple(harness.Timing(n, 1.0, 1.0) for n in contenders))

    harness.contest = contest
    harness.peer = harness.in_c = lambda *_: "a peer"
    importlib.import_module(name).tables()
    tell({"title": None, "names": []})
    sys.stdin.readline()


def timed(call: Callable[[], object], calls: int) -> float:
    """Return the seconds of one call, after one that wakes threads and caches."""
    call()
    start = perf_counter()
    for _ in range(calls):
        call()
    return (perf_counter() - start) / calls


def markdown() -> str:
    """Return the rows that were kept as a table, the slowest against the earlier version first; nothing where there are none."""
    if not KEPT.exists():
        return ""
    found = json.loads(KEPT.read_text(encoding="utf-8"))
    rows = [(new / old, later / before, row) for r in found.values() for row, (old, new, before, later) in r.items()]
    within = sum(ratio <= LIMIT for ratio, _, _ in rows)
    note = (
        "The last version in which forms of a plan raced while they ran, beside this one, measured by `benchmarks/beside.py`: a process each, which take "
        f"turns row by row and round by round; new / old, so that less is faster. {within} of {len(rows)} rows are within {LIMIT} by their best "
        "rounds. Rows of neither version (`import numpy`, `python -c pass`) show the noise. The earlier version also compiled what ran often while "
        'it ran, which this one does under `policy="adaptive"` only: a rule join of 200 is such a row.'
    )
    lines = ["## An earlier version beside this one", "", note, "", "| row | best, new / old | median, new / old |"]
    lines += [
        "| --- | ---: | ---: |",
        *(f"| {name} | {best:.2f} | {mid:.2f} |" for best, mid, name in sorted(rows)[::-1]),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--only", default="", help="tables whose title this regular expression finds")
    parser.add_argument("--save", action="store_true", help="keep the rows in results/beside/rows.json")
    given = parser.parse_args()
    print("   best median  (new / old)")
    for name in given.names:
        found = beside(given.old.resolve(), given.new.resolve(), name, given.only)
        if given.save:
            rows = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
            rows.setdefault(name, {}).update(found)
            KEPT.parent.mkdir(exist_ok=True)
            KEPT.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    child(sys.argv[2]) if sys.argv[1:2] == ["--child"] else main()
