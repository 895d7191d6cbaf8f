"""A kinship question over named people: who is whose aunt, and who is whose ancestor.

A rule is a Boolean einsum: Aunt(x,z) <- Sister(x,y), Parent(y,z) joins over y and projects it away. Two witnesses still give
one answer. A recursive rule is a fixpoint. Run it: python examples/kinship.py
"""

import numpy as np

import tensorlogic as tl

PEOPLE = ["Alice", "Bob", "Carol", "Dan", "Eve", "Fay"]
SISTER = [("Alice", "Bob"), ("Alice", "Carol"), ("Carol", "Alice"), ("Carol", "Bob")]
PARENT = [("Bob", "Dan"), ("Carol", "Dan"), ("Dan", "Eve"), ("Eve", "Fay")]


def relation(facts: list[tuple[str, str]]) -> np.ndarray:
    """Turn facts about named people into a Boolean matrix."""
    matrix = np.zeros((len(PEOPLE), len(PEOPLE)), dtype=bool)
    for first, second in facts:
        matrix[PEOPLE.index(first), PEOPLE.index(second)] = True
    return matrix


def aunt_graph() -> tl.EinsumGraph:
    """Compile the rule, read from its text."""
    domains = dict.fromkeys("xyz", "Person")
    rule = tl.parse_expr("exists y. sister(x, y) & parent(y, z)", domains)
    return tl.compile(rule, tl.CompilerContext({"Person": PEOPLE}), strategy="hard_boolean")


def ancestor_graph() -> tl.EinsumGraph:
    """Build the recursive rule by hand: join with parent until nothing is added."""
    b = tl.GraphBuilder()
    parent = b.input("parent", ("person", "person"), "bool")
    step = lambda r: b.einsum("xy,yz->xz", r, parent, algebra="boolean")  # noqa: E731
    return b.build(ancestor=b.fixpoint(step, parent, combine="or"))


def main() -> None:
    """Ask both questions and show the answers, the graphs and their plans."""
    facts = {"sister": relation(SISTER), "parent": relation(PARENT)}
    executor = tl.Executor()
    questions = [
        ("Aunt(x,z) <- Sister(x,y), Parent(y,z)", aunt_graph(), ["aunt", "of"]),
        (
            "Ancestor(x,y) <- Parent(x,y);  Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)",
            ancestor_graph(),
            ["ancestor", "of"],
        ),
    ]
    for rule, graph, heads in questions:
        inputs = {name: facts[name] for name in graph.inputs}
        print(f"{rule}\n")
        print(tl.show(executor.execute(graph, inputs), PEOPLE, heads=heads))
        print(f"\nThe graph:\n\n{graph}\n\nIts plan:\n\n{executor.plan(graph, inputs)}\n")


if __name__ == "__main__":
    main()
