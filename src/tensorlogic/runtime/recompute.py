"""Gradients that compute forward values again instead of keeping them.

The gradient of a graph holds the graph's own nodes and reads their values long after they were made. Here those that
are cheap to make are made again just before they are read, or the forward part is cut into segments whose values are
made again one segment at a time, so that less is held at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from ..diagnostics import bytes_text
from ..errors import OutOfMemoryError, expect_whole
from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan
from ..ir.types import ITEMSIZE, TensorType
from ..passes.grad_tape import unused
from ..plan.node_costs import STAND_IN
from .executor import Executor

N = TypeVar("N", bound=Hashable)
_GIVEN = (ops.Input, ops.Constant, ops.Literal, ops.Iota)
_LOOPS = (Fixpoint, Scan, Cond, ops.Item)
_EXPENSIVE = (ops.Einsum, ops.ContractVJP, ops.Sort, ops.TopK, ops.Cumulate, ops.ScatterAdd, *_LOOPS)
CHAIN = 8  # cheap nodes in a row that are computed again; the one after them is kept
_BARRIER = ops.Barrier()


def recompute(
    gradient: EinsumGraph,
    forward: EinsumGraph,
    *,
    segments: int | None = None,
    budget: int | None = None,
    inputs: Mapping[str, Any] | None = None,
    sizes: Mapping[str, int] | None = None,
    executor: Executor | None = None,
) -> EinsumGraph:
    """Return a gradient graph (of ``tl.grad``, ``value_and_grad`` or ``vjp``) that keeps fewer values of its forward part.

    As it is, everything but contractions, sorts and loops is computed again, from at most eight steps back. ``segments=k`` cuts the forward part in k and
    keeps only what passes from one to the next. With a ``budget`` of bytes, the least of this is done with which a plan for
    the given inputs or sizes fits; if none does, the error says by how much.

    >>> from tensorlogic import GraphBuilder, value_and_grad
    >>> b = GraphBuilder()
    >>> y = x = b.input("x", (1000,), "float64")
    >>> for _ in range(16):
    ...     y = b.sin(b.exp(b.tanh(y)))
    >>> loss = b.build(loss=b.sum(y))
    >>> whole = value_and_grad(loss)
    >>> [Executor().plan(g).peak_bytes // 8000 for g in (whole, recompute(whole, loss, segments=4))]
    [34, 12]
    """
    match = match_nodes(gradient, forward)
    if budget is None:
        kept = expensive_nodes(gradient, match) if segments is None else segment_ends(gradient, match, segments)
        return recomputed_graph(gradient, match, kept)
    expect_whole("budget", budget)
    runner = executor or Executor()
    made: dict[int, EinsumGraph] = {}

    def peak(kept: Collection[int]) -> int:
        graph = made[id(kept)] = recomputed_graph(gradient, match, kept)
        return runner.plan(graph, inputs, sizes=sizes).peak_bytes

    return made[id(fitting(gradient, match, budget, peak))]


def fitting(
    gradient: EinsumGraph, match: Sequence[int | None], budget: int, peak: Callable[[Collection[int]], int]
) -> Collection[int]:
    """Return the first way to keep values whose peak is within a budget of bytes, or say by how much none is."""
    least = None
    tried = []  # kept, because they are told apart by identity
    for kept in keep_options(gradient, match):
        tried.append(kept)
        found = peak(kept)
        if found <= budget:
            return kept
        least = found if least is None else min(least, found)
    assert least is not None
    beyond = f"{bytes_text(least - budget)} more than the budget of {bytes_text(budget)}"
    message = f"the gradient needs {bytes_text(least)} however much of it is computed again: {beyond}"
    hint = "give a larger budget, or split the batch: executor.backward(..., accumulate=True) adds gradients up"
    raise OutOfMemoryError(message, hint, code="E928", context=[f"{len(tried)} ways to keep fewer values were planned"])


def keep_options(gradient: EinsumGraph, match: Sequence[int | None]) -> Iterator[Collection[int]]:
    """Yield what to keep: everything, what is dear, then what passes between ever more segments."""
    every = [i for i, m in enumerate(match) if m is not None and can_keep(gradient, i)]
    yield frozenset(every)
    yield expensive_nodes(gradient, match)
    segments = 2
    while segments <= max(2, len(every) // 2):
        yield segment_ends(gradient, match, segments)
        segments = max(segments + 1, segments * 4 // 3)


def can_keep(graph: EinsumGraph, node: int) -> bool:
    """Tell whether a node is a value of its own that could be kept: computed, and one tensor."""
    return not isinstance(graph.nodes[node].op, _GIVEN) and len(graph.inference.types[node]) == 1


def match_nodes(gradient: EinsumGraph, forward: EinsumGraph) -> list[int | None]:
    """Return for each node of a gradient graph the node of the forward graph that it is, None of its own.

    >>> from tensorlogic import GraphBuilder, grad
    >>> b = GraphBuilder()
    >>> loss = b.build(loss=b.sum(b.exp(b.input("x", (2,), "float32"))))
    >>> match_nodes(grad(loss), loss)
    [0, 1]
    """
    first: dict[tuple[Any, tuple[int, ...]], int] = {}
    canon: list[int] = []  # the first node that is equal, which is the one that a gradient has
    for i, node in enumerate(forward.nodes):
        canon.append(first.setdefault((node.op, tuple([canon[a] for a in node.args])), i))
    match: list[int | None] = []
    for node in gradient.nodes:
        args = [match[a] for a in node.args]
        known = None if any(a is None for a in args) else first.get((node.op, tuple(args)))  # type: ignore[arg-type]
        match.append(known)
    return match


def expensive_nodes(gradient: EinsumGraph, match: Sequence[int | None]) -> frozenset[int]:
    """Return what to keep where all that is cheap is computed again: what is dear, and the ends of long cheap chains."""
    kept = set()
    depth: dict[int, int] = {}
    for i, m in enumerate(match):
        if m is None or isinstance(gradient.nodes[i].op, _GIVEN):
            continue
        node = gradient.nodes[i]
        depth[i] = max((depth.get(a, 0) for a in node.args), default=0) + (not node.op.is_view)
        if can_keep(gradient, i) and (isinstance(node.op, _EXPENSIVE) or depth[i] > CHAIN):
            kept.add(i)
            depth[i] = 0
    return frozenset(kept)


def segment_ends(gradient: EinsumGraph, match: Sequence[int | None], segments: int) -> frozenset[int]:
    """Return what to keep where the forward part is cut into segments of about equal size: what passes between them."""
    expect_whole("segments", segments, 1)
    nodes = [i for i, m in enumerate(match) if m is not None and not isinstance(gradient.nodes[i].op, _GIVEN)]
    weights = [sum(_bytes(t) for t in gradient.inference.types[i]) for i in nodes]
    total, so_far = sum(weights), 0
    segment: dict[int, int] = {}
    for i, weight in zip(nodes, weights, strict=True):
        segment[i] = min(segments - 1, so_far * segments // total if total else 0)
        so_far += weight
    kept = {i for i in nodes if segment[i] == segments - 1}  # the last is read at once
    for i in nodes:
        kept.update(a for a in gradient.nodes[i].args if a in segment and segment[a] != segment[i])
    kept.update(i for _, i in gradient.outputs if i in segment)
    return frozenset(i for i in kept if can_keep(gradient, i))


def _bytes(t: TensorType) -> int:
    sizes = [d if isinstance(d, int) else STAND_IN for d in t.shape or ()]
    return math.prod(sizes) * ITEMSIZE[t.dtype or "float32"]


def recomputed_graph(gradient: EinsumGraph, match: Sequence[int | None], kept: Collection[int]) -> EinsumGraph:
    """Return a gradient graph in which forward values that are not kept are computed again where they are read."""
    nodes, write = gradient.nodes, _Writer(gradient)
    ends = [*kept, *(i for _, i in gradient.outputs if match[i] is not None), *gradient.inputs.values()]
    first: dict[int, int] = {}  # what the forward part computes once
    for i in sorted(operands_first(ends, lambda i: nodes[i].args)):
        first[i] = write.add(nodes[i], [first[a] for a in nodes[i].args])

    def stays(i: int) -> bool:
        return i in first and (i in kept or isinstance(nodes[i].op, _GIVEN))

    place: dict[int, int] = {}  # of what the gradient reads: kept, computed again, or its own
    for i in operands_first([i for i, m in enumerate(match) if m is None], lambda i: () if stays(i) else nodes[i].args):
        if stays(i):
            place[i] = first[i]
            continue
        args = [place[a] for a in nodes[i].args]
        for n, a in enumerate(nodes[i].args):  # what a copy reads of the first run stands behind a barrier
            if match[i] is not None and stays(a) and not isinstance(nodes[a].op, _GIVEN[1:]):
                args[n] = write.add(Node(_BARRIER, (), nodes[a].locations), [args[n]])
        place[i] = write.add(nodes[i], args)
    return write.graph([(name, first[i] if match[i] is not None else place[i]) for name, i in gradient.outputs])


def rest_of_gradient(
    gradient: EinsumGraph, match: Sequence[int | None], kept: Collection[int]
) -> tuple[EinsumGraph, dict[str, int]]:
    """Return the rest of a gradient graph once its forward part ran: kept values are inputs, by name and node.

    What is not kept is computed again just before it is read. Views of a kept value are made again from it.
    """
    write = _Writer(gradient)
    place: dict[int, int] = {}
    labels: dict[str, int] = {}
    taken = set(gradient.inputs)

    def given(i: int) -> bool:
        return match[i] is not None and i in kept

    roots = [*(i for i, m in enumerate(match) if m is None), *(i for _, i in gradient.outputs)]
    for i in operands_first(roots, lambda i: () if given(i) else gradient.nodes[i].args):
        node = gradient.nodes[i]
        if given(i):
            label = unused(f"v{match[i]}", taken)
            labels[label] = i
            t = gradient.inference.types[i][0]
            node = Node(ops.Input(label, None if t.shape is None else tuple(t.shape), t.dtype), (), node.locations)
        place[i] = write.add(node, [place[a] for a in node.args])
    return write.graph([(name, place[i]) for name, i in gradient.outputs]), labels


def operands_first(roots: Iterable[N], operands: Callable[[N], Iterable[N]]) -> Iterator[N]:
    """Yield what the roots are computed from, operands before what reads them, each once; nothing recurses.

    >>> reads = {"y": ["b", "a"], "b": ["a"], "a": []}
    >>> list(operands_first(["y"], reads.__getitem__))
    ['a', 'b', 'y']
    """
    done: set[N] = set()
    for root in roots:
        stack = [root]
        while stack:
            node = stack[-1]
            waiting = [] if node in done else [a for a in operands(node) if a not in done]
            if waiting:
                stack += waiting[::-1]
                continue
            stack.pop()
            if node not in done:
                done.add(node)
                yield node


class _Writer:
    """A graph being written from the nodes of another; barriers of one value are one node."""

    def __init__(self, source: EinsumGraph) -> None:
        self.source = source
        self.nodes: list[Node] = []
        self._barriers: dict[int, int] = {}

    def add(self, node: Node, args: Sequence[int]) -> int:
        if node.op is _BARRIER and args[0] in self._barriers:
            return self._barriers[args[0]]
        self.nodes.append(Node(node.op, tuple(args), node.locations))
        if node.op is _BARRIER:
            self._barriers[args[0]] = len(self.nodes) - 1
        return len(self.nodes) - 1

    def graph(self, outputs: Sequence[tuple[str, int]]) -> EinsumGraph:
        return EinsumGraph(self.nodes, outputs, self.source.constants)
