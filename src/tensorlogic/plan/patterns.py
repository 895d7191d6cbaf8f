"""The names of what people build: softmax, norms and activations, recognised again among the nodes of a graph.

A name is for reading. Which nodes run as one step is decided elsewhere, by shapes and by who reads what.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

from ..ir import ops
from ..ir.graph import Node

ACTIVATIONS = frozenset({"relu", "tanh", "sigmoid"})
COMMUTATIVE = frozenset({"add", "multiply"})

# A template is a function of templates, ("e=exp", ...) names its node; a number is that literal, "#" any literal, "_" any
# node, and a letter the same node wherever it stands. Of several rows that fit, the first counts.
TEMPLATES: tuple[tuple[str, Any], ...] = (
    ("softmax", ("divide", ("e=exp", ("subtract", "_", ("max", "_"))), ("sum", "e"))),
    ("log softmax", ("subtract", "x", ("add", ("log", ("sum", ("exp", ("subtract", "x", "_")))), "_"))),
    ("layer norm", ("divide", ("c=subtract", "_", "_"), ("sqrt", ("add", ("mean", ("square", "c")), "#")))),
    ("rms norm", ("divide", "c", ("sqrt", ("add", ("mean", ("square", "c")), "#")))),
    ("batch norm", ("divide", ("subtract", "_", "_"), ("sqrt", ("add", "_", "#")))),
    ("gelu", ("multiply", ("multiply", "_", 0.5), ("add", 1, ("erf", "_")))),
    ("gelu", ("multiply", ("multiply", "_", 0.5), ("add", 1, ("tanh", "_")))),
    ("silu", ("multiply", "x", ("sigmoid", "x"))),
    *((name, (name, "_")) for name in sorted(ACTIVATIONS)),
)


def title(nodes: Sequence[Node], members: Sequence[int]) -> str:
    """Return the name of a group of nodes that runs row by row.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.softmax(b.input("x", ("n", 8))))
    >>> title(graph.nodes, range(1, len(graph)))
    'softmax'
    """
    names: list[str] = []
    used: set[int] = set()  # part of a longer name already
    for i in sorted(members, reverse=True):  # longer names end later
        name, parts = _recognised(nodes, i)
        if name and i not in used:
            names.append(name)
            used |= parts
    if not ACTIVATIONS.issuperset(names):
        return " + ".join(reversed(names))
    inside = set(members)
    reductions = [i for i in members if isinstance(nodes[i].op, ops.Reduce)]
    if not reductions:
        return "element-wise chain"
    return "map then reduce" if any(a in inside for i in reductions for a in nodes[i].args) else "reduce then map"


def _recognised(nodes: Sequence[Node], i: int) -> tuple[str, set[int]]:
    """Return the name of what ends at a node and the nodes it is made of."""
    for name, template in TEMPLATES:
        known = _match(nodes, i, template, {})
        if known is not None:
            return name, {n for key, n in known.items() if key.startswith("%")}
    return "", set()


def _match(nodes: Sequence[Node], i: int, template: Any, known: dict[str, int]) -> dict[str, int] | None:
    """Return the nodes that names stand for, and those of functions as "%i", where a template fits what ends at a node."""
    op = nodes[i].op
    match template:
        case "_":
            return known
        case str() if template != "#":
            return known | {template: i} if known.get(template, i) == i else None
        case "#" | int() | float():
            return known if isinstance(op, ops.Literal) and template in ("#", op.value) else None
    head, *parts = template
    label, _, fn = head.rpartition("=")
    word = op.fn if isinstance(op, ops.Elementwise) else op.kind if isinstance(op, ops.Reduce) else ""
    if word != fn:
        return None
    known = known | {f"%{i}": i} | ({label: i} if label else {})
    for order in permutations(parts) if fn in COMMUTATIVE else (parts,):
        found: dict[str, int] | None = known
        for part, a in zip(order, nodes[i].args, strict=True):
            found = None if found is None else _match(nodes, a, part, found)
        if found is not None:
            return found
    return None
