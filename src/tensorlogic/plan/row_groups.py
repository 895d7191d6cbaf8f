"""Row-wise groups: element-wise operations, casts and reductions that share their leading axes, found in one sweep, and what to call them.

The axes that all members share are the frame; a kernel goes through it once, and for each place in it through a row. Groups
do not overlap, nothing leaves one and comes back, and there is an order in which all of them can run. The name of a group (softmax, layer norm)
is for reading: it decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any, NamedTuple

from ..ir import ops
from ..ir.graph import EinsumGraph, Node, reachable
from ..ir.sizes import Dim
from ..ir.type_rules import reduced_axes
from ..ir.types import Results, TensorType, dims
from .cost import nbytes
from .fused_steps import Fusable

if TYPE_CHECKING:
    from .build import Step

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


def read_graph(graph: EinsumGraph) -> Reading:
    """Return what groups are sought by."""
    types = graph.inference.types
    live = tuple(reachable(graph.nodes, (i for _, i in graph.outputs)))
    return Reading(graph.nodes, types, live, tuple(sum(map(nbytes, own)) for own in types))


def single_rows(graph: EinsumGraph, runs_in_rows: RunsInRows) -> list[Fusable]:
    """Return every node that can be part of a row kernel in such groups, those of one node too: for a graph that becomes one function."""
    return [Fusable(m, title(graph.nodes, m)) for m in row_groups(read_graph(graph), runs_in_rows)]


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


class RowLayout(NamedTuple):
    """The axes of a group: the outer ones are gone through one by one, the inner ones as one row."""

    outer: tuple[int, ...]
    inner: tuple[int, ...]
    shape: tuple[int, ...]  # both, as members have them
    cells: bool  # whether some members have one element for each place only

    @property
    def flat(self) -> bool:
        """Whether there is one row only, which may be cut anywhere."""
        return not self.outer and not self.cells

    @property
    def places(self) -> int:
        """Into how many parts the work can be cut: outer places, or elements of the one row."""
        return math.prod(self.inner if self.flat else self.outer)


def row_layout(step: Step) -> RowLayout | None:
    """Return which axes of a fused step are gone through one by one and which as one row; None where members do not fit together."""
    shapes: set[tuple[int, ...]] = set()
    axis = None
    for p in step.parts:
        shapes.add(dims(p.types[0]))
        if isinstance(p.op, ops.Reduce):
            whole = dims(p.arg_types[0])
            shapes.add(whole)
            axes = sorted(reduced_axes(p.op, len(whole)))
            axis = axes[0] if axes else len(whole)
    found = frame_of(shapes, axis)
    if found is None:
        return None
    frame = max(shapes, key=len)[: found[0]]
    row = tuple(int(d) for d in found[1])
    if math.prod(row) > 1 or axis is not None:
        return RowLayout(frame, row, (*frame, *row), True)
    whole = (*frame, *row)
    cut = len(whole)  # a chain over whole tensors: the row is as many last axes as every operand has in full or lacks
    inside = {s for p in step.parts for s in p.writes}
    uses = [
        present_axes(dims(t), dims(p.types[0]), whole)
        for p in step.parts
        for s, t in zip(p.reads, p.arg_types, strict=True)
        if s not in inside and not t.weak
    ]
    while cut > 0 and all(len({u[a] for a in range(cut - 1, len(whole)) if whole[a] != 1}) < 2 for u in uses):
        cut -= 1
    return RowLayout(whole[:cut], whole[cut:], whole, False)


def present_axes(own: tuple[int, ...], reader: tuple[int, ...], whole: tuple[int, ...]) -> tuple[bool, ...]:
    """Tell along which axes of the whole an operand of a member extends; broadcasting aligns at the member's end."""
    found = [False] * len(whole)
    for n in range(1, len(own) + 1):
        at = len(reader) - n
        if at < len(whole):  # what has one element may have more axes than a row
            found[at] = own[-n] != 1 and own[-n] == whole[at]
    return tuple(found)


class Group:
    """A group of nodes while it grows.

    Whatever reads a member from outside stands on a higher level than the group, and so does all that depends on it; a member
    reads only what is not above its group. So nothing leaves a group and comes back, and groups never wait for each other.
    """

    __slots__ = ("axis", "level", "members", "read_outside", "shapes")

    def __init__(self, members: list[int], shapes: frozenset[Shape], axis: int | None, level: int) -> None:
        self.members, self.shapes, self.axis, self.level = members, shapes, axis, level
        self.read_outside = False


# whether an operation can be part of a row kernel, from the types of its operands and those that are Python scalars
RunsInRows = Callable[[ops.Op, Sequence[TensorType], Sequence[ops.Literal | None]], bool]
MOST = 128  # operations of one kernel, because compiling takes time with its length


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
    i: int, near: Sequence[Group], base: int, own: Footing, fits: Callable[[int, Sequence[Group], Footing], bool]
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


def row_groups(
    r: Reading, runs_in_rows: RunsInRows, allowed: Callable[[int], bool] = lambda _: True
) -> list[tuple[int, ...]]:
    """Return the row-wise groups of nodes that are allowed, in the order of their first nodes, those of one node too."""

    def footing_of(i: int) -> Footing | None:
        own = footing(r, i) if allowed(i) else None
        if own is None:
            return None
        node = r.nodes[i]
        operands = [r.nodes[a].op for a in node.args]
        literals = [op if isinstance(op, ops.Literal) else None for op in operands]
        return own if runs_in_rows(node.op, [r.types[a][0] for a in node.args], literals) else None

    def fits(i: int, chosen: Sequence[Group], own: Footing) -> bool:
        if sum(len(g.members) for g in chosen) >= MOST:
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
