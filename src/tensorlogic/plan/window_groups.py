"""Windows as one step: all windows of an array copied side by side, and the same backwards, added up where they overlap.

Windows and transposes are views, so that a chain of them is one strided view of the array it begins with. What copies the chain, or
adds up along it, goes through runs of memory: a table of where each run begins within one example is all that a kernel needs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..ir import ops
from ..ir.graph import EinsumGraph
from ..ir.types import dims, normal_axis
from .fused_steps import Fusable

if TYPE_CHECKING:
    from .build import Step

Shape = tuple[int, ...]
TITLES = {"windows": "copy of windows", "overlaps": "sum of windows"}
FLOATS = ("float32", "float64")
MOST_RUNS = 1 << 20  # in one example: more would be a table larger than the work is worth


class View(NamedTuple):
    """An array seen through windows and transposes: the shape of the view, and its strides in elements of the array."""

    shape: Shape
    strides: Shape

    @classmethod
    def of(cls, shape: Shape) -> View:
        """Return an array as it lies in memory."""
        return cls(shape, tuple(math.prod(shape[a + 1 :]) for a in range(len(shape))))

    def window(self, axis: int, count: int, size: int, step: int, dilation: int) -> View:
        """Return so many windows along an axis, the place within a window last."""
        shape, strides = [*self.shape, size], [*self.strides, self.strides[axis] * dilation]
        shape[axis], strides[axis] = count, strides[axis] * step
        return View(tuple(shape), tuple(strides))

    def transpose(self, order: Sequence[int]) -> View:
        """Return the axes in another order."""
        return View(tuple(self.shape[a] for a in order), tuple(self.strides[a] for a in order))


class Runs(NamedTuple):
    """A view as runs of memory: where each begins within an example, their length, the elements of an example, and the examples."""

    starts: Any
    length: int
    example: int
    examples: int


class Sums(NamedTuple):
    """Windows along one axis added up, within an example: runs of the result, each the sum of some runs of what is read.

    There is a run for each place before the axis, along it and after it.
    """

    length: int  # of a run
    terms: list[list[int]]  # for each place along the axis, where the runs begin that are added up: in NumPy's order
    begun: list[bool]  # whether sums begin with their first term, not with 0: this tells 0 and -0 apart
    outer: Any  # where runs begin in what is read, by the place before the axis
    inner: Any  # and by the place after it
    size: int  # elements of an example of the result


Link = tuple[ops.Op, Shape, Shape]  # an operation of a chain, the shape that it reads and the one that it makes


def window_groups(graph: EinsumGraph, live: Sequence[int]) -> list[Fusable]:
    """Return the copies of windows that are one step each, and the sums of windows that overlap."""
    nodes = graph.nodes
    uses = Counter(a for i in live for a in nodes[i].args) + Counter(i for _, i in graph.outputs)
    found, taken = [], set[int]()
    for i in reversed(live):
        kind = "windows" if _copies(graph, i) else "overlaps" if isinstance(nodes[i].op, ops.OverlapAdd) else ""
        if i in taken or not kind or graph.type_of(i).dtype not in FLOATS:
            continue
        inner = ops.Window if kind == "windows" else ops.OverlapAdd
        chain = [i]
        while isinstance(nodes[below := nodes[chain[0]].args[0]].op, inner | ops.Transpose) and uses[below] == 1:
            chain.insert(0, below)
        links = [(nodes[n].op, dims(graph.type_of(nodes[n].args[0])), dims(graph.type_of(n))) for n in chain]
        table = runs_of(links) if kind == "windows" else sums_of(links)
        if any(isinstance(op, inner) for op, _, _ in links) and table is not None:
            taken.update(chain)
            found.append(Fusable(tuple(chain), TITLES[kind], kind))
    return found


def _copies(graph: EinsumGraph, i: int) -> bool:
    op = graph.nodes[i].op
    return isinstance(op, ops.Cast) and graph.type_of(graph.nodes[i].args[0]).dtype == op.dtype


def links_of(step: Step) -> list[Link]:
    """Return the chain of a fused step."""
    return [(part.op, dims(part.arg_types[0]), dims(part.types[0])) for part in step.parts]


def runs_of(chain: Sequence[Link]) -> Runs | None:
    """Return the runs of the view that a chain makes of an array; None where an example is no piece of the array."""
    shape = chain[0][1]
    view = View.of(shape)
    for op, before, after in chain:
        match op:
            case ops.Window():
                axis = normal_axis(op.axis, len(before), "window")
                view = view.window(axis, after[axis], after[-1], op.step, op.dilation)
            case ops.Transpose():
                view = view.transpose(op.order)
    if 0 in view.shape or len(shape) < 2 or view.shape[0] != shape[0] or view.strides[0] != math.prod(shape[1:]):
        return None
    length, at = _run(view)
    starts = _starts(view.shape[1:at], view.strides[1:at])
    return Runs(starts, length, math.prod(shape[1:]), shape[0]) if len(starts) <= MOST_RUNS else None


def sums_of(chain: Sequence[Link]) -> list[Sums] | None:
    """Return the sums of a chain that adds up windows axis by axis; None where an example is no piece of the array."""
    view, found = View.of(chain[0][1]), []
    for op, before, after in chain:
        if isinstance(op, ops.Transpose):
            view = view.transpose(op.order)
        if not isinstance(op, ops.OverlapAdd):
            continue
        axis = normal_axis(op.axis, len(after), "overlap_add")
        if 0 in before or 0 in after or axis == 0 or view.strides[0] != math.prod(before[1:]):
            return None
        length, at = _run(View(view.shape[:-1], view.strides[:-1]), axis)
        if math.prod(after[1:at]) * before[-1] > MOST_RUNS:
            return None
        along: list[list[tuple[int, int]]] = [[] for _ in range(after[axis])]  # places in windows, and starts
        for k in range(before[-1]):
            for n in range(before[axis]):
                start = n * view.strides[axis] + k * view.strides[-1]
                along[n * op.step + k * op.dilation].append((k, start))
        terms = [[start for _, start in place] for place in along]
        apart = (before[-1] - 1) * op.dilation < op.step
        begun = [bool(place) and (apart or place[0][0] == 0) for place in along]
        outer = _starts(after[1:axis], view.strides[1:axis])
        inner = _starts(after[axis + 1 : at], view.strides[axis + 1 : at])
        found.append(Sums(length, terms, begun, outer, inner, math.prod(after[1:])))
        view = View.of(after)
    return found


def _run(view: View, least: int = 0) -> tuple[int, int]:
    """Return how many last elements of a view lie side by side, and the axes before them: at least one, and those up to ``least``."""
    length, at = 1, len(view.shape)
    while at > least + 1 and (view.strides[at - 1] == length or view.shape[at - 1] == 1):
        length *= view.shape[at - 1]
        at -= 1
    return length, at


def _starts(shape: Shape, strides: Shape) -> Any:
    starts = np.zeros(1, np.int64)
    for size, stride in zip(shape, strides, strict=True):
        starts = (starts[:, None] + stride * np.arange(size)).reshape(-1)
    return starts
