"""Fitting a budget of memory: a graph that does not fit is cut along an index, in as few parts as will do.

The budget covers what a plan's peak covers: results of steps, what they need while running, and outputs. Inputs and constants
are the caller's.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from ..diagnostics import bytes_text, value_text
from ..errors import InputError, OutOfMemoryError
from ..ir import ops
from ..ir.graph import EinsumGraph, node_name
from ..ir.types import TensorType, dims
from ..passes.for_numpy import order_contractions
from ..passes.indices import indices
from ..passes.pipeline import optimize
from ..passes.rewrite import Pass
from ..passes.specialize import specialize
from ..passes.split import Split, split
from .build import ExecutionPlan, Groups, lay_out
from .cost import nbytes
from .durations import seconds, seconds_of_parts
from .memory import has_wide_types, largest_step, lighter
from .nested import copied_bytes, joined_bytes, nested_plan
from .printing import describe

NODES = 12  # how many of the largest nodes are looked at for an index to cut
DEPTH = 4  # cuts within cuts
PARTS = 1 << 20  # of one cut: their ranges are listed
# Times as long as at once that running in parts may take by estimate; estimates err, and three is promised.
SLOWER = 2.25
AT_ONCE = 0.005  # seconds that it may take in any case
TRIED = 3  # of the indices that do not suffice alone, how many are cut further
# the search ends after so many nodes of cuts and plans, a second or two; of a large graph, after this many times its own
SEARCHED, TIMES_THE_LARGEST = 40_000, 6
MANY_AXES = 6  # a node of so many axes counts as one, of more as several


class Slicing(NamedTuple):
    """How a graph runs within a budget: cut along one index, each stage by a plan or cut again. It prints as an outline.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> x, y = b.input("x", (64, 8), "float32"), b.input("y", (64, 8), "float32")
    >>> distance = b.sum(b.square(x.reshape(64, 1, 8) - y), axis=2)
    >>> types = {n: tl.TensorType(tl.TensorShape((64, 8)), "float32") for n in "xy"}
    >>> print(slicing_for(b.build(nearest=b.min(distance, axis=1)), types, 50_000))
    axis 0 of 'x' (64) in 4 parts of 16: peak 36.3 KiB, at once 144.2 KiB
    """

    split: Split
    number: int  # of parts
    before: Piece
    pieces: dict[int, Piece]  # by the size of a part
    after: Piece
    peak_bytes: int
    seconds: float  # by estimate
    whole_bytes: int  # the peak of the graph when it is not cut
    held: tuple[int, int]  # bytes kept from part to part, results so far and what all parts read; and of those after

    def __str__(self) -> str:
        size = max(self.pieces)
        lines = [
            f"{self.split.place} ({self.split.size}) in {self.number} parts of {size}: "
            f"peak {bytes_text(self.peak_bytes)}, at once {bytes_text(self.whole_bytes)}"
        ]
        for name, piece in (("before", self.before), ("each part", self.pieces[size]), ("after", self.after)):
            if isinstance(piece, Slicing):
                lines += [f"  {name}: " + str(piece).replace("\n", "\n  ")]
        return "\n".join(lines)


class Whole(NamedTuple):
    """How a graph runs that need not be cut: by its plan."""

    plan: ExecutionPlan
    peak_bytes: int
    seconds: float  # by estimate, as a part


Piece = Whole | Slicing


class Plans:
    """Makes plans of graphs whose sizes are known, and keeps them: cuts within cuts lead to the same graphs.

    ``lowering`` is what the backend wants done to each part.
    """

    def __init__(
        self,
        lowering: Sequence[Pass],
        in_place: bool,
        groups: Groups | None = None,
        threads: Callable[[], int] | None = None,
    ) -> None:
        self._lowering = lowering
        self._lay_out = partial(lay_out, in_place=in_place, groups=groups, threads=threads)
        self._known: dict[EinsumGraph, Whole] = {}
        self._count, self._largest = 0, 0

    def plan(self, graph: EinsumGraph) -> Whole:
        """Return the plan of a graph."""
        found = self._known.get(graph)
        if found is None:
            self.count(graph)
            plan = lighter(self._lay_out(optimize(graph, self._lowering).graph), self._lay_out)
            found = self._known[graph] = Whole(plan, plan.peak_bytes, seconds(plan, part=True))
        return found

    def count(self, graph: EinsumGraph) -> None:
        """Add the nodes of a graph to those that the search went through."""
        size = sum(max(1, len(dims(t[0])) // MANY_AXES) for t in graph.inference.types)  # each axis is looked at too
        self._count += size
        self._largest = max(self._largest, size)

    @property
    def exhausted(self) -> bool:
        """Whether the search went through so many nodes that it ends with what it has."""
        return self._count > max(SEARCHED, TIMES_THE_LARGEST * self._largest)


def slicing_for(graph: EinsumGraph, types: Mapping[str, TensorType], budget: int) -> Slicing | None:
    """Find the fewest parts in which a graph fits a budget of bytes; None where it fits as it is."""
    piece = fitted(specialize(graph, types), budget, Plans((order_contractions,), in_place=True))
    return piece if isinstance(piece, Slicing) else None


def check_budget(budget: object) -> None:
    """Raise unless this is a number of bytes; what looks a plan up by its budget checks it first, as it may have no hash."""
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer) or budget < 0:
        raise InputError(
            f"a budget is a number of bytes, got {value_text(budget)}", "write 64 << 20 for 64 MiB", code="E301"
        )


def fitted(
    graph: EinsumGraph, budget: int, plans: Plans, whole_plans: Callable[[], Sequence[ExecutionPlan]] | None = None
) -> Piece:
    """Return how a graph whose sizes are known runs within a budget; raise where nothing is found.

    What parts may take is measured by the seconds of this plan at once, or by those of the quickest of all ``whole_plans``; of
    those that fit, the quickest is taken.
    """
    check_budget(budget)
    whole = plans.plan(graph)
    piece: Piece = whole
    if whole.peak_bytes > budget:
        others = [whole.plan] if whole_plans is None else whole_plans()
        # parts run one after the other: what several threads do side by side is no measure for them
        alone = [plan for plan in others if all(s.cut is None or s.cut.threads == 1 for s in plan.steps)]
        most = max(AT_ONCE, SLOWER * min(map(seconds, alone or [whole.plan])))
        quick = [own for own in (Whole(plan, plan.peak_bytes, seconds(plan)) for plan in others) if own.seconds <= most]
        fitting = [own for own in quick if own.peak_bytes <= budget]
        if fitting:
            return min(fitting, key=lambda p: p.seconds)
        piece = _nearest(graph, budget, plans, DEPTH, most)
        if piece.peak_bytes > budget:  # the least that works may be another plan of the whole
            piece = min(piece, *quick, key=lambda p: p.peak_bytes)
    if piece.peak_bytes > budget:
        raise _misfit(piece, budget, plans.exhausted)
    return piece


def _nearest(graph: EinsumGraph, room: int, plans: Plans, depth: int, most: float) -> Piece:
    """Return how a graph runs in some room and at most so many seconds: the plan, the cut of fewest parts, or what comes nearest."""
    whole = plans.plan(graph)
    if whole.peak_bytes <= room or depth == 0 or plans.exhausted:
        return whole
    best: Slicing | None = None
    near: list[Slicing] = []
    for cut in candidates(graph):
        plans.count(graph)
        slicing = None if plans.exhausted else _sliced(cut, room, plans, whole, best, most)
        if slicing is None:
            continue
        if slicing.peak_bytes > room:
            near.append(slicing)
        elif best is None or (slicing.number, slicing.peak_bytes) < (best.number, best.peak_bytes):
            best = slicing
    if best is not None:
        return best
    near.sort(key=lambda s: s.peak_bytes)
    for slicing in near[:TRIED] if depth > 1 else ():
        deeper = _deeper(slicing, room, plans, depth - 1, most)
        if deeper.seconds <= most:
            near.append(deeper)
            if deeper.peak_bytes <= room:
                return deeper
    every: list[Piece] = [whole, *near]
    return min(every, key=lambda p: p.peak_bytes)


def candidates(graph: EinsumGraph) -> Iterator[Split]:
    """Yield the ways to cut a graph that may save memory: along indices of its largest nodes, and axes of its inputs, large ones first."""
    types = graph.inference.types
    seeds: dict[tuple[int, int, int | None], None] = {}

    def weight(i: int) -> int:
        node = graph.nodes[i]
        if isinstance(node.op, ops.Input | ops.Constant | ops.Literal | ops.Item):
            return 0
        many = isinstance(node.op, ops.Einsum) and len(node.args) > 2  # what is between its pairs may be larger
        return sum(map(nbytes, types[i])) + (1 + many) * sum(nbytes(types[a][0]) for a in node.args)

    heavy = sorted(range(len(graph.nodes)), key=weight, reverse=True)[:NODES]
    for i in filter(weight, heavy):
        node = graph.nodes[i]
        args = [types[a][0] for a in node.args]
        seeds |= {(i, axis, None): None for axis in range(len(dims(types[i][0])))}
        for index in indices(node.op, args, types[i]):
            if index.how:
                n = next(n for n, axis in enumerate(index.args) if axis is not None)
                seeds[i, index.args[n] or 0, n] = None
    for i in sorted(graph.inputs.values(), key=lambda i: -nbytes(types[i][0])):
        seeds |= {(i, axis, None): None for axis in range(len(dims(types[i][0])))}
    seen = set()
    for i, axis, operand in seeds:
        cut = split(graph, i, axis, operand=operand)
        if cut is not None and (key := (cut.roles, tuple(sorted(cut.picks.items())))) not in seen:
            seen.add(key)
            given = [f for f in cut.feeds if f.axis is not None and isinstance(graph.nodes[f.node].op, ops.Input)]
            yield (
                cut._replace(place=f"axis {given[0].axis} of {node_name(graph.nodes, given[0].node)}") if given else cut
            )


def _held(cut: Split) -> tuple[int, int]:
    """Return the bytes held while parts run, and while what comes after does."""
    part = cut.part(1)
    types = {name: part.type_of(i) for name, i in part.outputs}
    joins = sum(joined_bytes(join, types[join.label]) for join in cut.joins)
    size = {name: nbytes(cut.before.type_of(i)) for name, i in cut.before.outputs}
    needed = set(cut.after.inputs) | {name for _, stage, name in cut.outputs if stage == "before"}
    return joins + sum(size.values()), joins + sum(n for name, n in size.items() if name in needed)


def _sliced(cut: Split, room: int, plans: Plans, whole: Whole, best: Slicing | None, most: float) -> Slicing | None:
    """Return the cut in the fewest parts that fit; where none do, in as many as are quick enough; None where another is better."""
    before, after = plans.plan(cut.before), plans.plan(cut.after)
    held = _held(cut)

    @cache
    def slicing(size: int) -> Slicing:
        number = -(-cut.size // size)
        pieces: dict[int, Piece] = {own: plans.plan(cut.part(own)) for own in _lengths(cut.size, number)}
        return _slicing(cut, number, before, pieces, after, whole.peak_bytes, held)

    def fits(size: int) -> bool:
        return slicing(size).peak_bytes <= room

    def quick(size: int) -> bool:  # larger parts are fewer, and take less time
        return -(-cut.size // size) <= PARTS and slicing(size).seconds <= most

    # more parts than the best has are of no use
    smallest = 1 if best is None else -(-cut.size // best.number)
    sizes = [-(-cut.size // 2)]
    while sizes[-1] > smallest and quick(sizes[-1]):
        sizes.append(max(smallest, sizes[-1] // 2))
    # kernels change with sizes, so that smaller parts may take more memory: the first that fit are sought, not the smallest
    fitting = next((n for n, size in enumerate(sizes) if fits(size)), None)
    if fitting is not None:
        high = sizes[max(0, fitting - 1)]
        size = high - bisect_left(range(high - sizes[fitting]), True, key=lambda less: fits(high - less))
        if quick(size):
            return slicing(size)
    if best is not None or not quick(sizes[0]):
        return None
    slowest = sizes[-1]
    if not quick(slowest):
        slowest += 1 + bisect_left(range(slowest + 1, sizes[-2]), True, key=quick)
    return min((slicing(size) for size in (*sizes[:-1], slowest)), key=lambda s: s.peak_bytes)


def _lengths(size: int, number: int) -> set[int]:
    """Return the lengths of parts that :func:`parts` makes."""
    return {-(-size // number), size // number}


def _part_bytes(cut: Split, piece: Piece) -> int:
    return piece.peak_bytes + (copied_bytes(cut, piece.plan) if isinstance(piece, Whole) else 0)


def _slicing(
    cut: Split, number: int, before: Piece, pieces: dict[int, Piece], after: Piece, whole: int, held: tuple[int, int]
) -> Slicing:
    each = held[0] + max(_part_bytes(cut, p) for p in pieces.values())
    peak = max(before.peak_bytes, each, held[1] + after.peak_bytes)
    parts = seconds_of_parts(cut, number, max(p.seconds for p in pieces.values()))  # a kernel of less may be another
    return Slicing(cut, number, before, pieces, after, peak, before.seconds + parts + after.seconds, whole, held)


def _deeper(outer: Slicing, room: int, plans: Plans, depth: int, most: float) -> Slicing:
    """Cut those stages of a cut again that do not fit."""
    during, later = outer.held

    def again(piece: Piece, graph: EinsumGraph, own: int, times: int = 1) -> Piece:
        return piece if piece.peak_bytes <= own else _nearest(graph, own, plans, depth, most / times)

    number, cut = outer.number, outer.split
    if all(p.peak_bytes <= room - during for p in outer.pieces.values()):  # then fewer parts may do
        while number > 2:
            fewer: dict[int, Piece] = {own: plans.plan(cut.part(own)) for own in _lengths(cut.size, -(-number // 2))}
            if any(p.peak_bytes > room - during for p in fewer.values()):
                break
            number, outer = -(-number // 2), outer._replace(pieces=fewer)
    pieces = {size: again(piece, cut.part(size), room - during, number) for size, piece in outer.pieces.items()}
    before, after = again(outer.before, cut.before, room), again(outer.after, cut.after, room - later)
    return _slicing(cut, number, before, pieces, after, outer.whole_bytes, outer.held)


def plan_of(piece: Piece) -> ExecutionPlan:
    """Return how a graph runs within a budget as one plan: a stage before, the parts, and a stage after, each with its own plan."""
    if isinstance(piece, Whole):
        return piece.plan
    cut, sizes = piece.split, sorted(piece.pieces, reverse=True)
    name = f"{cut.place} ({cut.size}) in {piece.number} parts of {sizes[0]}"
    bodies = [plan_of(piece.pieces[size]) for size in sizes]
    return nested_plan(cut, piece.number, bodies, plan_of(piece.before), plan_of(piece.after), name=name)


def _misfit(piece: Piece, budget: int, ended: bool) -> OutOfMemoryError:
    lines = [f"the best cut found: {str(piece).splitlines()[0]}"] if isinstance(piece, Slicing) else []
    graph = piece.plan.graph if isinstance(piece, Whole) else piece.split.graph
    worst = piece
    while isinstance(worst, Slicing):
        worst = max((worst.before, *worst.pieces.values(), worst.after), key=lambda p: p.peak_bytes)
    step = largest_step(worst.plan)
    if step is not None:
        lines.append(f"the largest result left is {', '.join(map(str, step.types))}, of {describe(step.op)}")
    outputs = sum(nbytes(graph.type_of(i)) for i in {i for _, i in graph.outputs})
    if ended:
        lines.append("the search ended before every cut of this graph was looked at")
    lines.append(f"the outputs are {bytes_text(outputs)} and must be held")
    narrower = ", or a narrower dtype" if has_wide_types(graph) else ""
    hints = [f"allow {piece.peak_bytes:,} bytes, the least that is known to work{narrower}"]
    if outputs > budget // 2:
        hints.append("reduce the outputs in the graph, such as to a sum, a top_k or one column")
    error = OutOfMemoryError(
        f"the graph takes {bytes_text(piece.peak_bytes)} in the best way found to cut it, "
        f"{bytes_text(piece.peak_bytes - budget)} more than the budget of {bytes_text(budget)}",
        code="E003",
        context=lines,
        suggestions=hints,
    )
    return error.at(None if step is None else step.location)
