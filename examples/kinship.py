"""A kinship question over named people: who is whose aunt, and who is whose ancestor.

A rule is a Boolean einsum: Aunt(x,z) <- Sister(x,y), Parent(y,z) joins over y and projects it away. Two witnesses still give
one answer. A recursive rule is a fixpoint. Run it: python examples/kinship.py
"""

import numpy as np

import tensorlogic as tl
from tensorlogic.tables import table

PEOPLE = ["Alice", "Bob", "Carol", "Dan", "Eve", "Fay"]
SISTER = [("Alice", "Bob"), ("Alice", "Carol"), ("Carol", "Alice"), ("Carol", "Bob")]
PARENT = [("Bob", "Dan"), ("Carol", "Dan"), ("Dan", "Eve"), ("Eve", "Fay")]


def relation(facts: list[tuple[str, str]]) -> np.ndarray:
    """Turn facts about named people into a Boolean matrix."""
    matrix = np.zeros((len(PEOPLE), len(PEOPLE)), dtype=bool)
    for first, second in facts:
        matrix[PEOPLE.index(first), PEOPLE.index(second)] = True
    return matrix


def tuples(matrix: np.ndarray) -> list[list[str]]:
    """Return the true entries of a relation by name."""
    return [[PEOPLE[i] for i in place] for place in np.argwhere(matrix)]


def family_graph() -> tl.EinsumGraph:
    """Build both rules as one graph."""
    b = tl.GraphBuilder()
    sister = b.input("sister", ("person", "person"), "bool")
    parent = b.input("parent", ("person", "person"), "bool")
    aunt = b.einsum("xy,yz->xz", sister, parent, algebra="boolean")
    ancestor = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, parent, algebra="boolean"), parent, combine="or")
    return b.build(aunt=aunt, ancestor=ancestor)


def main() -> None:
    """Ask both questions and show the answers, the graph and the plan."""
    graph = family_graph()
    facts = {"sister": relation(SISTER), "parent": relation(PARENT)}
    executor = tl.Executor()
    out = executor.execute(graph, facts)

    print("Aunt(x,z) <- Sister(x,y), Parent(y,z)\n")
    print(table(["aunt", "of"], tuples(out["aunt"])))
    print("\nAncestor(x,y) <- Parent(x,y);  Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)\n")
    print(table(["ancestor", "of"], tuples(out["ancestor"])))
    print("\nThe graph:\n")
    print(graph)
    print("\nIts plan:\n")
    print(executor.plan(graph, facts))


if __name__ == "__main__":
    main()
