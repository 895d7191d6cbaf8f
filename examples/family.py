"""A family as a program: facts and rules in a file, questions by name, more facts from Python, and why an answer holds.

Recursion runs until nothing is new, however deep the family is. Run it: python examples/family.py
"""

import os
from pathlib import Path

import tensorlogic as tl

HERE = Path(__file__).parent


def without_folder(reason: object) -> str:
    """Write a reason with the file's name only."""
    return str(reason).replace(f"{HERE}{os.sep}", "")


def main() -> None:
    """Ask the program, add a fact, ask again, and ask for reasons."""
    family = tl.load(HERE / "family.tl")
    print("The aunts of Emil:\n")
    print(family.query("Aunt(x, Emil)?"))
    print("\nThe ancestors of Hanna:", [x for (x,) in family.query("Ancestor(x, Hanna)?")])
    family.add("Parent", [("Zoe", "Alice")])
    print("With Zoe, Alice's mother:", [x for (x,) in family.query("Ancestor(x, Hanna)?")])
    print(f"\n{len(family.relation('Ancestor'))} pairs of ancestor and descendant;", end=" ")
    print("Zoe is Hanna's ancestor:", ("Zoe", "Hanna") in family.relation("Ancestor"))
    print("\nWhy is Dora Emil's aunt?\n")
    print(without_folder(family.why("Aunt(Dora, Emil)")))
    print("\nWhy is Bob not?\n")
    print(without_folder(family.why_not("Aunt(Bob, Emil)")))


if __name__ == "__main__":
    main()
