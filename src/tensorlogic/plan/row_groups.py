"""Row-wise groups: element-wise operations, casts and reductions that share their leading axes, found in one sweep.

The axes that all members share are the frame; a kernel goes through it once, and for each place in it through a row. Groups
do not overlap, nothing leaves one and comes back, and there is an order in which all of them can run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ..ir import ops
from ..ir.graph import Node
from ..ir.sizes import Dim
from ..ir.type_rules import Results, reduced_axes

Shape = tuple[Dim, ...]
KERNEL_DTYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64"}
)
KERNEL_REDUCTIONS = frozenset({"sum", "prod", "max", "min", "mean", "any", "all"})


Footing = tuple[frozenset[Shape], int | None]  # the shapes that a node brings to a group, and the axis it reduces from


class Reading(NamedTuple):
    """What is known of a graph before groups are sought: types, what is alive, and sizes in bytes."""

    nodes: tuple[Node, ...]
    types: Sequence[Results]
    live: tuple[int, ...]
    size: tuple[int, ...]


def footing(r: Reading, i: int) -> Footing | None:
    """Return the shapes that a node brings to a row-wise group and the axis its reduction starts at, or None where it cannot join."""
    op, own = r.nodes[i].op, r.types[i][0]
    if not isinstance(op, ops.Elementwise | ops.Cast | ops.Reduce) or own.weak:
        return None
    every = (own, *(r.types[a][0] for a in r.nodes[i].args))
    if any(t.shape is None or 0 in t.shape or t.dtype not in KERNEL_DTYPES for t in every):
        return None
    if not isinstance(op, ops.Reduce):
        return frozenset({tuple(own.shape or ())}), None
    whole = tuple(every[1].shape or ())
    axes = sorted(reduced_axes(op, len(whole)))
    if op.kind not in KERNEL_REDUCTIONS or not axes or axes != list(range(axes[0], len(whole))):
        return None
    return frozenset({whole, tuple(own.shape or ())}), axes[0]


def frame_of(shapes: Iterable[Shape], axis: int | None) -> tuple[int, Shape] | None:
    """Return how many leading axes shapes share and the row that follows, or None where they are no frame and rows.

    >>> frame_of({("n", 8), ("n", 1)}, 1), frame_of({("n", 8), ("m", 8)}, None), frame_of({(3, 4)}, None)
    ((1, (8,)), None, (2, ()))
    """
    every = sorted(shapes, key=len)
    shared = 0
    while shared < len(every[0]) and all(s[shared] == every[0][shared] for s in every):
        shared += 1
    if axis is None and not shared and len(every) > 1:
        return None  # nothing is gained by running a whole tensor as one row
    if axis is not None and shared < axis:
        return None
    k = shared if axis is None else axis
    tails = {s[k:] for s in every}
    rows = [t for t in tails if any(d != 1 for d in t)]
    if len(rows) > 1:
        return None
    return k, rows[0] if rows else max(tails, key=len)


class Group:
    """A group of nodes while it grows.

    Whatever reads a member from outside stands on a higher level than the group, and so does all that depends on it; a member
    reads only what is not above its group. So nothing leaves a group and comes back, and groups never wait for each other.
    """

    __slots__ = ("axis", "level", "members", "read_outside", "shapes")

    def __init__(self, members: list[int], shapes: frozenset[Shape], axis: int | None, level: int) -> None:
        self.members, self.shapes, self.axis, self.level = members, shapes, axis, level
        self.read_outside = False


Able = Callable[[Reading, int], bool]  # whether a kernel can be made for a node


def grow_groups(
    nodes: Sequence[Node],
    live: Iterable[int],
    footing_of: Callable[[int], Footing | None],
    fits: Callable[[int, Sequence[Group], Footing], bool],
) -> list[tuple[int, ...]]:
    """Return groups of nodes that can run together, in the order of their first nodes, those of one node too.

    ``footing_of`` is None for a node that joins no group; ``fits`` tells whether a node and some groups may become one.
    """
    group: dict[int, Group] = {}
    level: dict[int, int] = {}
    for i in live:
        args = nodes[i].args
        near = list({id(group[a]): group[a] for a in args if a in group}.values())
        base = max((level[a] for a in args if a not in group), default=0)
        own = footing_of(i)
        joined = [] if own is None else _joined(i, near, base, own, fits)
        for g in near:
            g.read_outside |= g not in joined
        height = max([base, *(g.level if g in joined else g.level + 1 for g in near)])
        if own is None:
            level[i] = height
        elif not joined:
            group[i] = Group([i], *own, height)
        else:
            first = max(joined, key=lambda g: len(g.members))  # the smaller one moves, so that moving stays cheap
            first.level, first.read_outside = height, any(g.read_outside for g in joined)
            first.shapes = first.shapes.union(own[0], *(g.shapes for g in joined))
            first.axis = next((a for a in (own[1], *(g.axis for g in joined)) if a is not None), None)
            for g in joined:
                if g is not first:
                    first.members += g.members
                    group.update(dict.fromkeys(g.members, first))
            first.members.append(i)
            group[i] = first
    return sorted(tuple(sorted(g.members)) for g in {id(g): g for g in group.values()}.values())


def _joined(
    i: int,
    near: Sequence[Group],
    base: int,
    own: Footing,
    fits: Callable[[int, Sequence[Group], Footing], bool],
) -> list[Group]:
    """Return the groups of its operands that a node can join, all of which become one."""
    for first in sorted(near, key=lambda g: (-g.level, -len(g.members))):
        others = [g for g in near if g is not first and fits(i, [first, g], own)]
        for chosen in [[first, *others], [first]] if others else [[first]]:
            level = max([base, *(g.level if g in chosen else g.level + 1 for g in near)])
            # a group may only rise while nothing outside has taken its level from it
            settled = all(g.level == level or not g.read_outside for g in chosen)
            if settled and fits(i, chosen, own):
                return chosen
    return []


def row_groups(r: Reading, most: int, able: Able) -> list[tuple[int, ...]]:
    """Return the row-wise groups in the order of their first nodes, those of one node too."""

    def footing_of(i: int) -> Footing | None:
        own = footing(r, i)
        return own if own is not None and able(r, i) else None

    def fits(i: int, chosen: Sequence[Group], own: Footing) -> bool:
        if sum(len(g.members) for g in chosen) >= most:
            return False
        axes = {a for a in (own[1], *(g.axis for g in chosen)) if a is not None}
        found = frame_of(own[0].union(*(g.shapes for g in chosen)), next(iter(axes), None)) if len(axes) < 2 else None
        if found is None:
            return False
        inside = {m for g in chosen for m in g.members} if found[0] else set()
        return all(aligned(r, i, a) for a in r.nodes[i].args if a in inside)

    return grow_groups(r.nodes, r.live, footing_of, fits)


def aligned(r: Reading, i: int, a: int) -> bool:
    """Tell whether the leading axes of an operand are those of the node: broadcasting aligns at the other end."""
    if isinstance(r.nodes[i].op, ops.Reduce):
        return True
    return len(r.types[a][0].shape or ()) == len(r.types[i][0].shape or ())
