"""The names of what people build: softmax, norms, activations and attention, recognised again among the nodes of a graph.

A name is for reading. What may be fused is decided by shapes and by who reads what (see :mod:`tensorlogic.plan.fuse`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ir import ops, spec
from ..ir.graph import Node
from ..ir.type_rules import Results

ACTIVATIONS = frozenset({"relu", "tanh", "sigmoid"})


def words(nodes: Sequence[Node], members: Sequence[int]) -> list[str]:
    """Return the names of what stands among some nodes, in order; empty where there is nothing that has one."""
    found: list[str] = []
    used: set[int] = set()  # what is part of a longer name already
    for i in sorted(members, reverse=True):  # longer names end later, so they come first
        name, parts = _named(nodes, i)
        if name and i not in used:
            found.append(name)
            used.update(parts)
    return found[::-1]


def title(nodes: Sequence[Node], members: Sequence[int]) -> str:
    """Return the name of a group that runs row by row.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.softmax(b.input("x", ("n", 8))))
    >>> title(graph.nodes, range(1, len(graph)))
    'softmax'
    """
    found = words(nodes, members)
    if any(w not in ACTIVATIONS for w in found):
        return " + ".join(found)
    inside = set(members)
    reductions = [i for i in members if isinstance(nodes[i].op, ops.Reduce)]
    if not reductions:
        return "element-wise chain"
    return "map then reduce" if any(a in inside for i in reductions for a in nodes[i].args) else "reduce then map"


def product(nodes: Sequence[Node], types: Sequence[Results], einsum: int, members: Sequence[int]) -> str:
    """Return the name of a product and the group that reads it: "matmul + bias + relu"."""
    bias = [i for i in members if _is(nodes, i, "add") and _adds_bias(nodes[i], types, einsum)]
    found = words(nodes, members)
    known = ["bias"] * bool(bias) + found
    if not found and len(members) == 1 and not bias:
        known.append(nodes[members[0]].op.name)
    elif not found and len(members) > len(bias):
        known.append(title(nodes, members))
    return " + ".join(["matmul", *known])


def _adds_bias(node: Node, types: Sequence[Results], einsum: int) -> bool:
    """Tell whether an addition adds something of fewer axes to a product."""
    if einsum not in node.args or node.args[0] == node.args[1]:
        return False
    other = node.args[node.args[0] == einsum]
    whole, part = types[einsum][0].shape, types[other][0].shape
    return whole is not None and part is not None and len(part) < len(whole)


def is_product(op: ops.Op) -> bool:
    """Tell whether an operation multiplies two tensors and sums over an index of both."""
    if not isinstance(op, ops.Einsum) or op.algebra != "real":
        return False
    form = spec.parse(op.spec)
    return len(form.inputs) == 2 and any(x in form.inputs[0] and x in form.inputs[1] for x in form.contracted)


def _named(nodes: Sequence[Node], i: int) -> tuple[str, set[int]]:
    """Return the name of what ends at a node, and the nodes it is made of."""
    op = nodes[i].op
    match op.fn if isinstance(op, ops.Elementwise) else "":
        case "divide":
            return _softmax(nodes, i) or _norm(nodes, i) or ("", set())
        case "multiply":
            return _gelu(nodes, i) or _silu(nodes, i) or ("", set())
        case "subtract":
            return _log_softmax(nodes, i) or ("", set())
        case fn if fn in ACTIVATIONS:
            return fn, {i}
        case _:
            return "", set()


def _is(nodes: Sequence[Node], i: int, fn: str) -> bool:
    op = nodes[i].op
    return isinstance(op, ops.Elementwise) and op.fn == fn


def _reduces(nodes: Sequence[Node], i: int, kind: str) -> bool:
    op = nodes[i].op
    return isinstance(op, ops.Reduce) and op.kind == kind


def _literal(nodes: Sequence[Node], i: int, value: float | None = None) -> bool:
    op = nodes[i].op
    return isinstance(op, ops.Literal) and (value is None or op.value == value)


def _both(nodes: Sequence[Node], i: int) -> Iterator[tuple[int, int]]:
    a, b = nodes[i].args
    yield a, b
    yield b, a


def _softmax(nodes: Sequence[Node], i: int) -> tuple[str, set[int]] | None:
    e, total = nodes[i].args
    if not (_is(nodes, e, "exp") and _reduces(nodes, total, "sum") and nodes[total].args == (e,)):
        return None
    shifted = nodes[e].args[0]
    if not (_is(nodes, shifted, "subtract") and _reduces(nodes, nodes[shifted].args[1], "max")):
        return None
    return "softmax", {i, e, total, shifted, nodes[shifted].args[1]}


def _log_softmax(nodes: Sequence[Node], i: int) -> tuple[str, set[int]] | None:
    x, whole = nodes[i].args
    if not _is(nodes, whole, "add"):
        return None
    for log, _ in _both(nodes, whole):
        if _is(nodes, log, "log") and _reduces(nodes, total := nodes[log].args[0], "sum"):
            e = nodes[total].args[0]
            if _is(nodes, e, "exp") and x in nodes[nodes[e].args[0]].args:
                return "log softmax", {i, whole, log, total, e, nodes[e].args[0]}
    return None


def _norm(nodes: Sequence[Node], i: int) -> tuple[str, set[int]] | None:
    """Recognise a division by sqrt(variance + eps): by its own, it is a layer norm; by a given one, a batch norm."""
    away, root = nodes[i].args
    if not (_is(nodes, root, "sqrt") and _is(nodes, shifted := nodes[root].args[0], "add")):
        return None
    for var, eps in _both(nodes, shifted):
        if not _literal(nodes, eps):
            continue
        parts = {i, away, root, shifted, var}
        centred = _is(nodes, away, "subtract")
        if _reduces(nodes, var, "mean") and _is(nodes, power := nodes[var].args[0], "square"):
            if nodes[power].args == (away,):
                return ("layer norm" if centred else "rms norm"), {*parts, power}
        elif centred and not _reduces(nodes, nodes[away].args[1], "mean"):
            return "batch norm", parts
    return None


def _gelu(nodes: Sequence[Node], i: int) -> tuple[str, set[int]] | None:
    for half, below in _both(nodes, i):
        if not (_is(nodes, half, "multiply") and _is(nodes, below, "add")):
            continue
        for one, curve in _both(nodes, below):
            bent = _is(nodes, curve, "erf") or _is(nodes, curve, "tanh")
            if bent and _literal(nodes, one, 1) and any(_literal(nodes, a, 0.5) for a in nodes[half].args):
                return "gelu", {i, half, below, curve}
    return None


def _silu(nodes: Sequence[Node], i: int) -> tuple[str, set[int]] | None:
    for x, gate in _both(nodes, i):
        if _is(nodes, gate, "sigmoid") and nodes[gate].args == (x,):
            return "silu", {i, gate}
    return None
