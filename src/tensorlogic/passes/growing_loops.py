"""Loops over truth values that only ever grow, written as loops that combine their rounds by or.

``r <- r | f(r)`` is r, or-ed with f(r) in each round: the same value after every round, whatever f is. So is ``r <- e | f(r)`` from e, where f
makes no less of more: each round then holds the one before. Engines know the combined loop: they join only what is new, or find a closure at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from ..ir import ops
from ..ir.algebra import ALGEBRAS
from ..ir.graph import EinsumGraph, Fixpoint, Node, extract
from ..ir.types import TensorType
from .rewrite import Draft

OR = frozenset({"logical_or", "maximum", "add"})  # of truth values
AND = frozenset({"logical_and", "minimum", "multiply"})
# with these, and with contractions that combine by AND, more true operands make no less true
MONOTONE = OR | AND
REDUCTIONS = frozenset({"any", "all", "sum", "max", "min"})


def combine_by_or(draft: Draft, op: Fixpoint, args: tuple[int, ...]) -> int | None:
    """Let a loop that replaces its carries by more of the same combine its rounds by or; None where it may lose something.

    >>> from tensorlogic import GraphBuilder
    >>> from tensorlogic.passes.simplify import simplify
    >>> b = GraphBuilder()
    >>> edge = b.input("edge", ("n", "n"), "bool")
    >>> graph = b.build(path=b.fixpoint(lambda r: edge | b.einsum("xy,yz->xz", r, edge), edge))
    >>> [node.op.combine for node in simplify(graph).nodes if node.op.name == "fixpoint"]
    ['or']
    """
    if op.combine != "replace" or any(draft.type(a).dtype != "bool" for a in args[: op.carries]):
        return None
    body, places = op.body, list(op.body.inputs.values())
    captures = dict(zip(places[op.carries :], args[op.carries :], strict=True))
    terms = [_terms(body.nodes, body.type_of, i) for _, i in body.outputs]
    held: list[set[int]] = []  # for each carry the inputs of the body that it holds from the start
    by_itself = True
    for own, carry, start in zip(terms, places, args, strict=False):
        parts = _terms(draft.nodes, draft.type, start)
        starts = {start, *parts}
        known = {place: a for place, a in captures.items() if a in starts}
        held.append({carry, *known})
        if carry not in own:
            by_itself = False
            kept = {known[t] for t in own if t in known}
            if start not in kept and not all(a in kept or _is_false(draft, a) for a in parts):
                return None
    if not by_itself and not _is_monotone(body, places[: op.carries]):
        return None
    results = draft.results(op, args)
    for less in (_without(body, terms, held), body):
        found = msgspec.structs.replace(op, body=less, combine="or")
        if draft.results(found, args) == results:
            return draft.add(found, args, results)
    return None


def _terms(nodes: Sequence[Node], type_of: Callable[[int], TensorType], i: int) -> list[int]:
    """Return the nodes that are or-ed into one, from left to right; a node that is no or is its only term."""
    found: dict[int, None] = {}
    pending = [i]
    seen: set[int] = set()
    while pending:
        i = pending.pop()
        if i in seen:
            continue
        seen.add(i)
        op, args = nodes[i].op, nodes[i].args
        if isinstance(op, ops.Elementwise) and op.fn in OR and all(type_of(a).dtype == "bool" for a in args):
            pending += args[::-1]
        else:
            found[i] = None
    return list(found)


def _is_false(draft: Draft, i: int) -> bool:
    """Tell whether a node is known to hold no true value."""
    while isinstance(op := draft.op(i), ops.Broadcast):
        (i,) = draft.args(i)
    if isinstance(op, ops.Constant):
        return not draft.constants[op.digest].any()
    return isinstance(op, ops.Literal) and not op.value


def _is_monotone(body: EinsumGraph, carries: Sequence[int]) -> bool:
    """Tell whether more true values in the carries never make a result of the body less true."""
    varying = set(carries)
    for i, node in enumerate(body.nodes):
        read = varying.intersection(node.args)
        if not read:
            continue
        if any(body.type_of(n).dtype != "bool" for n in (i, *read)):
            return False
        match node.op:
            case ops.Elementwise(fn):
                keeps = fn in MONOTONE
            case ops.Einsum(algebra=name):
                keeps = ALGEBRAS[name].combine in AND and ALGEBRAS[name].reduce in REDUCTIONS
            case ops.Reduce(kind):
                keeps = kind in REDUCTIONS
            case op:
                keeps = isinstance(op, ops.Cast | ops.Concat) or (op.is_view and not isinstance(op, ops.Collective))
        if not keeps:
            return False
        varying.add(i)
    return True


def _without(body: EinsumGraph, terms: Sequence[Sequence[int]], held: Sequence[set[int]]) -> EinsumGraph:
    """Return a body that no longer ors what each carry holds anyway; a result that would lose its shape stays as it is."""
    nodes, outputs = list(body.nodes), []
    for (name, i), own, spare in zip(body.outputs, terms, held, strict=True):
        rest, last = [t for t in own if t not in spare], i
        if len(rest) < len(own) and any(body.type_of(t) == body.type_of(i) for t in rest):
            last = rest[0]
            for t in rest[1:]:
                nodes.append(Node(ops.Elementwise("logical_or"), (last, t), body.nodes[i].locations))
                last = len(nodes) - 1
        outputs.append((name, last))
    return extract(nodes, outputs, body.constants, list(body.inputs.values()))
