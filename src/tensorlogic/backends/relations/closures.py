"""Transitive closures, and where edges lead to from some elements: by the components of a graph, or by searching it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...ir.graph import Fixpoint
from ...plan.queries import Query
from ...plan.query_reader import Loop, Slot
from .. import packed, sparse_rows
from ..bits import BitTensor
from ..sparse import SparseTensor
from .joins import Joins
from .rules import Rules
from .tables import too_many_tuples, union

TUPLE = 24  # bytes that a pair of a closure takes, in the forms that it is made and asked for in
FEW = 64  # sources, of which each is followed by itself
NEAR = 256  # one element for so many edges: more are reached by rows


Relation = SparseTensor | BitTensor


def packed_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of a relation of a shape as packed bits."""
    return 8 * math.prod(shape[:-1]) * packed.width(shape[-1] if shape else 1)


class Walk(NamedTuple):
    """A loop that follows edges from where it starts: on the right of what it has, on the left, or by joining paths (a square)."""

    kind: str
    start: SparseTensor
    edges: SparseTensor

    @property
    def is_closure(self) -> bool:
        """Whether it starts with the edges themselves."""
        return self.start.same(self.edges)


def walk_of(loop: Loop, rules: Rules, joins: Joins, shapes: dict[Slot, tuple[int, ...]], op: Fixpoint) -> Walk | None:
    """Return what edges a loop follows, and from where; None where it does something else."""
    if len(loop.carries) != 1 or rules.between:
        return None
    [carry] = loop.carries
    shape = shapes[carry]
    if len(shape) != 2 or shape[0] != shape[1] or op.limit <= shape[0]:
        return None
    sides = [_side(q, carry) for q in rules.carried[carry]]
    kinds = {side[0] for side in sides if side is not None}
    if None in sides or len(kinds) != 1 or (kind := kinds.pop()) not in ("square", "left", "right"):
        return None
    parts = [joins.answer(q, shape) for q in rules.once[carry]]
    start = union([joins.find(loop.starts[0]), *parts], shape)
    if kind == "square":
        return Walk(kind, start, start)
    steps = [_oriented(joins.find(slot), flip) for _, slot, flip in (s for s in sides if s is not None)]
    return Walk(kind, start, union(steps, shape))


def follow(walk: Walk, room: Callable[[], int]) -> Relation | None:
    """Return where a walk leads to; None where it does not fit into ``room()`` bytes in one go."""
    if walk.is_closure:
        return _closed(walk.edges, room)
    if walk.kind == "left":
        made = _followed(walk.start.transpose(), walk.edges.transpose(), room)
        return None if made is None else made.transpose()
    return _followed(walk.start, walk.edges, room)


def _oriented(tensor: SparseTensor, flip: bool) -> SparseTensor:
    return tensor.transpose() if flip else tensor


def _side(query: Query, carry: Slot) -> tuple[str, Slot, bool] | None:
    """Return what is joined to the carry, on which side, and whether it is turned round: T(x,z) <- T(x,y), E(y,z) has E on the right."""
    if len(query.atoms) != 2 or query.tests or any(a.negated or len(a.terms) != 2 for a in query.atoms):
        return None
    variables = {t for a in query.atoms for t in a.terms}
    if not all(isinstance(t, int) for t in (*variables, *query.terms)) or len(variables) != 3:
        return None
    x, z = query.terms
    [y] = variables - {x, z}
    own = [a for a in query.atoms if a.slot == carry]
    if len(own) == 2:
        return ("square", carry, False) if {a.terms for a in own} == {(x, y), (y, z)} else None
    if len(own) != 1:
        return None
    [other] = [a for a in query.atoms if a.slot != carry]
    if own[0].terms == (x, y) and set(other.terms) == {y, z}:
        return "right", other.slot, other.terms == (z, y)
    if own[0].terms == (y, z) and set(other.terms) == {x, y}:
        return "left", other.slot, other.terms == (y, x)
    return None


def _closed(edges: SparseTensor, room: Callable[[], int]) -> Relation:
    """Return the closure of a graph: as rows where it stays sparse, as bits where it fills up."""
    cells = packed_bytes(edges.shape)
    most = min(max(cells // 8, 4 * edges.count), room() // TUPLE)
    found = sparse_rows.closure_rows(edges.rows, most)
    if found is not None:
        return SparseTensor.of_rows(*found, edges.shape)
    if cells > room():
        raise too_many_tuples(most)
    return BitTensor.of(sparse_rows.closure_bits(edges.rows), edges.shape)


def _followed(start: SparseTensor, edges: SparseTensor, room: Callable[[], int]) -> Relation | None:
    """Return where a start leads to, over any number of edges."""
    first = start.columns[0]
    sources = np.unique(first)
    if len(sources) <= FEW:
        rows, columns = [], []
        for source in sources:
            found = _reached(edges, start.columns[1][first == source])
            rows.append(np.full(len(found), source))
            columns.append(found)
        if not rows:
            return start
        return SparseTensor.of_columns([np.concatenate(rows), np.concatenate(columns)], start.shape, ordered=True)
    paths = _closed(edges, room)
    if isinstance(paths, BitTensor):
        if 3 * packed_bytes(edges.shape) > room():
            return None
        begun = start.bits()
        return begun | (begun @ paths)
    made = sparse_rows.join_rows(start.rows, paths.rows, start.shape[1])
    return start | SparseTensor.of_rows(*made, start.shape)


def _reached(edges: SparseTensor, sources: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the elements that edges lead to, in any number of steps or none; few of them are found without rows of all edges."""
    seen = None
    if edges.has_codes_only:
        seen = sparse_rows.reach_few(edges.codes, sources, edges.shape[0], edges.count // NEAR)
    if seen is None:
        seen = sparse_rows.reach(edges.rows, sources)
    seen[sources] = True
    return np.flatnonzero(seen)
