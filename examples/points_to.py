"""A points-to analysis: three relations that define one another, run to the end over the statements of a small program.

The rules are in points_to.tl, the facts come from Python: one tuple for each statement. Run it: python examples/points_to.py
"""

import os
from pathlib import Path

import tensorlogic as tl

HERE = Path(__file__).parent
ASSIGN = [("a", "p"), ("a", "q"), ("q", "r"), ("b", "s")]  # p = a; q = a; r = q; s = b
DEREFERENCE = [("p", "p*"), ("r", "r*"), ("s", "s*")]  # what p, r and s point to is used


def main() -> None:
    """Load the rules, add the statements, and print what may be the same."""
    analysis = tl.load(HERE / "points_to.tl")
    analysis.add("Assign", ASSIGN)
    analysis.add("Dereference", DEREFERENCE)
    pairs = [(x, y) for x, y in analysis.relation("MemoryAlias") if x < y]
    print("Cells that may be the same:", pairs)
    print("p may hold what these hold:", [x for (x,) in analysis.query('ValueAlias("p", x)?')])
    for name in ("ValueFlow", "ValueAlias", "MemoryAlias"):
        print(f"{name}: {len(analysis.relation(name))} pairs")
    print("\nWhy may p* and r* be the same cell?\n")
    print(str(analysis.why('MemoryAlias("p*", "r*")')).replace(f"{HERE}{os.sep}", ""))


if __name__ == "__main__":
    main()
