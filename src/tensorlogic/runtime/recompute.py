"""Gradients that compute forward values again instead of keeping them.

Values that are cheap to make are made again just before they are read, or the forward part is cut into segments whose
values are made again one segment at a time, so that less is held at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from ..diagnostics import bytes_text
from ..errors import OutOfMemoryError, expect, expect_whole
from ..ir import ops
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan
from ..ir.types import ITEMSIZE, TensorType
from ..passes.grad_tape import unused
from ..plan.node_costs import STAND_IN
from .executor import Executor
from .values import Inputs, Sizes

N = TypeVar("N", bound=Hashable)
T = TypeVar("T")
Match = Sequence[int | None]  # for each node of a gradient, the node of the forward graph that it is
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
    inputs: Inputs | None = None,
    sizes: Sizes = None,
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
    for graph in (gradient, forward):
        expect(graph, EinsumGraph, "a gradient and the graph it is of are expected", "recompute(tl.grad(loss), loss)")
    match = match_nodes(gradient, forward)
    if budget is None:
        saved_nodes = expensive_nodes(gradient, match) if segments is None else segment_ends(gradient, match, segments)
        return recomputed_graph(gradient, match, saved_nodes)
    expect_whole("budget", budget)
    runner = executor or Executor()

    def attempt(saved_nodes: Collection[int]) -> tuple[EinsumGraph, int]:
        graph = recomputed_graph(gradient, match, saved_nodes)
        return graph, runner.plan(graph, inputs, sizes=sizes).peak_bytes

    return fitting(gradient, match, budget, attempt)


def fitting(gradient: EinsumGraph, match: Match, budget: int, attempt: Callable[[Collection[int]], tuple[T, int]]) -> T:
    """Return what is made of the first way to keep values whose peak is within a budget, or say by how much none is."""
    peaks = []
    for kept in keep_options(gradient, match):
        found, peak = attempt(kept)
        if peak <= budget:
            return found
        peaks.append(peak)
    least = min(peaks)
    beyond = f"{bytes_text(least - budget)} more than the budget of {bytes_text(budget)}"
    message = f"the gradient needs {bytes_text(least)} however much of it is computed again: {beyond}"
    hint = "give a larger budget, or split the batch: executor.backward(..., accumulate=True) adds gradients up"
    raise OutOfMemoryError(message, hint, code="E928", context=[f"{len(peaks)} ways to keep fewer values were planned"])


def keep_options(gradient: EinsumGraph, match: Match) -> Iterator[Collection[int]]:
    """Yield what to keep: everything, what is dear, then what passes between ever more segments."""
    every = all_nodes(gradient, match)
    yield every
    yield expensive_nodes(gradient, match)
    segments = 2
    while segments <= max(2, len(every) // 2):
        yield segment_ends(gradient, match, segments)
        segments = max(segments + 1, segments * 4 // 3)


def all_nodes(gradient: EinsumGraph, match: Match) -> frozenset[int]:
    """Return every value of the forward part that could be kept."""
    return frozenset(i for i, m in enumerate(match) if m is not None and can_keep(gradient, i))


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


def expensive_nodes(gradient: EinsumGraph, match: Match) -> frozenset[int]:
    """Return what to keep where all that is cheap is computed again: what is dear, and the ends of long cheap chains."""
    saved_nodes = set()
    depth: dict[int, int] = {}
    for i, m in enumerate(match):
        if m is None or isinstance(gradient.nodes[i].op, _GIVEN):
            continue
        node = gradient.nodes[i]
        depth[i] = max((depth.get(a, 0) for a in node.args), default=0) + (not node.op.is_view)
        if can_keep(gradient, i) and (isinstance(node.op, _EXPENSIVE) or depth[i] > CHAIN):
            saved_nodes.add(i)
            depth[i] = 0
    return frozenset(saved_nodes)


def segment_ends(gradient: EinsumGraph, match: Match, segments: int) -> frozenset[int]:
    """Return what to keep where the forward part is cut into segments of about equal size: what passes between them."""
    expect_whole("segments", segments, 1)
    nodes = [i for i, m in enumerate(match) if m is not None and not isinstance(gradient.nodes[i].op, _GIVEN)]
    weights = [sum(_bytes(t) for t in gradient.inference.types[i]) for i in nodes]
    total, so_far = sum(weights), 0
    segment: dict[int, int] = {}
    for i, weight in zip(nodes, weights, strict=True):
        segment[i] = min(segments - 1, so_far * segments // total if total else 0)
        so_far += weight
    saved_nodes = {i for i in nodes if segment[i] == segments - 1}  # the last is read at once
    for i in nodes:
        saved_nodes.update(a for a in gradient.nodes[i].args if a in segment and segment[a] != segment[i])
    saved_nodes.update(i for _, i in gradient.outputs if i in segment)
    return frozenset(i for i in saved_nodes if can_keep(gradient, i))


def _bytes(t: TensorType) -> int:
    sizes = [d if isinstance(d, int) else STAND_IN for d in t.shape or ()]
    return math.prod(sizes) * ITEMSIZE[t.dtype or "float32"]


def recomputed_graph(gradient: EinsumGraph, match: Match, saved_nodes: Collection[int]) -> EinsumGraph:
    """Return a gradient graph in which forward values that are not kept are computed again where they are read."""
    nodes = gradient.nodes
    result: list[Node] = []
    barriers: dict[int, int] = {}  # by the value that stands behind one
    ends = [*saved_nodes, *(i for _, i in gradient.outputs if match[i] is not None), *gradient.inputs.values()]
    first: dict[int, int] = {}  # what the forward part computes once
    for i in sorted(operands_first(ends, lambda i: nodes[i].args)):
        first[i] = _add(result, nodes[i], [first[a] for a in nodes[i].args])

    def stays(i: int) -> bool:
        return i in first and (i in saved_nodes or isinstance(nodes[i].op, _GIVEN))

    place: dict[int, int] = {}  # of what the gradient reads: kept, computed again, or its own
    for i in operands_first([i for i, m in enumerate(match) if m is None], lambda i: () if stays(i) else nodes[i].args):
        if stays(i):
            place[i] = first[i]
            continue
        args = [place[a] for a in nodes[i].args]
        for n, a in enumerate(nodes[i].args):  # what a copy reads of the first run stands behind a barrier
            if match[i] is not None and stays(a) and not isinstance(nodes[a].op, _GIVEN[1:]):
                if args[n] not in barriers:
                    barriers[args[n]] = _add(result, Node(_BARRIER, (), nodes[a].locations), [args[n]])
                args[n] = barriers[args[n]]
        place[i] = _add(result, nodes[i], args)
    outputs = [(name, first[i] if match[i] is not None else place[i]) for name, i in gradient.outputs]
    return EinsumGraph(result, outputs, gradient.constants, scores=gradient.scores)


def rest_of_gradient(
    gradient: EinsumGraph, match: Match, saved_nodes: Collection[int]
) -> tuple[EinsumGraph, dict[str, int]]:
    """Return the rest of a gradient graph once its forward part ran: kept values are inputs, by name and node.

    What is not kept is computed again just before it is read. Views of a kept value are made again from it.
    """
    result: list[Node] = []
    place: dict[int, int] = {}
    labels: dict[str, int] = {}
    taken = set(gradient.inputs)

    def given(i: int) -> bool:
        return match[i] is not None and i in saved_nodes

    roots = [*(i for i, m in enumerate(match) if m is None), *(i for _, i in gradient.outputs)]
    for i in operands_first(roots, lambda i: () if given(i) else gradient.nodes[i].args):
        node = gradient.nodes[i]
        if given(i):
            label = unused(f"v{match[i]}", taken)
            labels[label] = i
            t = gradient.inference.types[i][0]
            node = Node(ops.Input(label, None if t.shape is None else tuple(t.shape), t.dtype), (), node.locations)
        place[i] = _add(result, node, [place[a] for a in node.args])
    return EinsumGraph(result, [(name, place[i]) for name, i in gradient.outputs], gradient.constants), labels


def _add(nodes: list[Node], node: Node, args: Sequence[int]) -> int:
    """Append a node with other arguments, and return its number."""
    nodes.append(Node(node.op, tuple(args), node.locations))
    return len(nodes) - 1


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
