"""Reductions between ranks while each goes on: gradients that are ready are added up while the backward pass still runs.

An ``all_reduce`` becomes a ``start_all_reduce``, as soon as its operand is there, and a ``wait`` where nothing else is left to do without
its result. Small operands travel together in one array (a bucket); a large product is made in parts, so that the first is on its
way while the next is computed. Every rank does the same in the same order. Sizes must be known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..ir import ops
from ..ir.collectives import share
from ..ir.graph import EinsumGraph, Node, extract
from ..ir.ops import Op
from ..ir.spec import parse
from ..ir.types import ITEMSIZE, TensorType, dims

# operands that are ready are sent once they have this many bytes: sending fewer costs more time than it hides
BUCKET = 1 << 20
MOST_PARTS = 4  # of one product


def overlap_reductions(graph: EinsumGraph, bucket: int = BUCKET) -> EinsumGraph:
    """Return a graph whose sums over ranks are started when their operands are ready, and waited for when they are needed.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, y = b.input("x", (2,), "float32"), b.input("y", (3,), "float32")
    >>> total = lambda x: b.apply(ops.AllReduce("data", 2, 0), x)
    >>> print(overlap_reductions(b.build(x=b.relu(total(x)), y=b.tanh(total(y)), z=b.exp(x))))
    graph {
      x: float32[2] = input()
      y: float32[3] = input()
      %2: float32[2] = exp(x)
      %3: float32[5] = start_all_reduce(x, y, over="data", ranks=2, rank=0, label="1")
      %4: float32[5] = wait(%3, over="data", ranks=2, rank=0, label="1")
      %5: float32[2] = slice(%4, ranges=[[0, 2, 1]])
      %6: float32[3] = slice(%4, ranges=[[2, 3, 1]])
      %7: float32[2] = relu(%5)
      %8: float32[3] = tanh(%6)
      return x=%7, y=%8, z=%2
    }
    """
    if not any(_starts(graph, i) for i in range(len(graph.nodes))):
        return graph
    return _Schedule(_in_parts(graph, bucket), bucket).run()


def _starts(graph: EinsumGraph, i: int) -> bool:
    """Tell whether a node is a sum over ranks that can go on by itself."""
    op, t = graph.nodes[i].op, graph.type_of(i)
    return isinstance(op, ops.AllReduce) and op.ranks > 1 and op.how == "add" and t.dtype in ("float32", "float64")


def _in_parts(graph: EinsumGraph, bucket: int) -> EinsumGraph:
    """Return a graph in which large products that are only added up over ranks are made, and added up, in parts."""
    readers: list[list[int]] = [[] for _ in graph.nodes]
    for i, node in enumerate(graph.nodes):
        for a in node.args:
            readers[a].append(i)
    for _, i in graph.outputs:
        readers[i].append(i)
    nodes: list[Node] = []
    place = [-1] * len(graph.nodes)

    def add(op: Op, args: Sequence[int], old: Node) -> int:
        nodes.append(Node(op, tuple(args), old.locations))
        return len(nodes) - 1

    for i, node in enumerate(graph.nodes):
        if place[i] >= 0:
            continue
        reader = readers[i][0] if len(readers[i]) == 1 else i
        cut = _cut(graph, i, bucket) if _starts(graph, reader) and reader != i else None
        args = [place[a] for a in node.args]
        if cut is None:
            place[i] = add(node.op, args, node)
            continue
        operand, axis, count = cut
        whole, total, parts = dims(graph.type_of(node.args[operand])), graph.nodes[reader], []
        for n in range(count):
            own = share(whole[axis], count, n)
            ranges = tuple([(own.start, len(own), 1) if a == axis else (0, size, 1) for a, size in enumerate(whole)])
            cut_arg = add(ops.Slice(ranges), (place[node.args[operand]],), node)
            product = add(node.op, [cut_arg if k == operand else a for k, a in enumerate(args)], node)
            parts.append(add(total.op, (product,), total))
        place[reader] = add(ops.Concat(0), parts, total)
    sources = [place[i] for i in graph.inputs.values()]
    return extract(nodes, [(name, place[i]) for name, i in graph.outputs], graph.constants, sources)


def _cut(graph: EinsumGraph, i: int, bucket: int) -> tuple[int, int, int] | None:
    """Return the operand of a large product, the axis of it that is the first of the result, and how many parts to make."""
    op, shape = graph.nodes[i].op, dims(graph.type_of(i))
    if not isinstance(op, ops.Einsum) or op.algebra != "real" or _bytes(graph.type_of(i)) < 2 * bucket:
        return None
    row = _bytes(graph.type_of(i)) // shape[0]
    count = min(MOST_PARTS, shape[0] // -(-bucket // row))  # each a bucket at least
    spec = parse(op.spec)
    first = spec.output[0]
    having = [(n, labels.index(first)) for n, labels in enumerate(spec.inputs) if first in labels]
    plain = first != "..." and len(having) == 1 and spec.inputs[having[0][0]].count(first) == 1
    return (*having[0], count) if plain and count > 1 else None


class _Bucket(NamedTuple):
    """Sums that travel together, by their nodes, and the label they have."""

    label: str
    members: list[int]


class _Schedule:
    """Writes the nodes in an order in which as much as possible stands between the start of a sum and its end."""

    def __init__(self, graph: EinsumGraph, bucket: int) -> None:
        self.graph, self.bucket = graph, bucket
        self.nodes: list[Node] = []
        self.place = [-1] * len(graph.nodes)
        self.open: dict[tuple[str, str | None], _Bucket] = {}  # that may take more, by group of ranks and dtype
        self.started: list[tuple[_Bucket, int]] = []  # and not yet waited for, each with its node
        self.count = 0
        self.readers: list[list[int]] = [[] for _ in graph.nodes]
        self.missing = [0] * len(graph.nodes)
        for i, node in enumerate(graph.nodes):
            for a in set(node.args):
                self.readers[a].append(i)
                self.missing[i] += 1
        self.ready = [(i, i) for i, n in enumerate(self.missing) if not n]  # when it is due, and the node
        heapify(self.ready)

    def run(self) -> EinsumGraph:
        """Go on with what is ready, in the order of the graph; wait where nothing is."""
        while self.ready or self.open or self.started:
            while self.ready:
                _, i = heappop(self.ready)
                if _starts(self.graph, i):
                    self._put(i)
                else:
                    node = self.graph.nodes[i]
                    self._done(i, self._add(node.op, self._args(node.args), node))
            for key in list(self.open):
                self._start(key)
            if self.started:
                self._wait(*self.started.pop(0))
        outputs = [(name, self.place[i]) for name, i in self.graph.outputs]
        return extract(self.nodes, outputs, self.graph.constants, [self.place[i] for i in self.graph.inputs.values()])

    def _add(self, op: Op, args: tuple[int, ...], *old: Node) -> int:
        locations = tuple(dict.fromkeys(place for node in old for place in node.locations))
        self.nodes.append(Node(op, args, locations))
        return len(self.nodes) - 1

    def _args(self, args: Sequence[int]) -> tuple[int, ...]:
        return tuple([self.place[a] for a in args])

    def _done(self, i: int, at: int) -> None:
        self.place[i] = at
        for reader in self.readers[i]:
            self.missing[reader] -= 1
            if not self.missing[reader]:
                heappush(self.ready, (i if _starts(self.graph, reader) else reader, reader))

    def _put(self, i: int) -> None:
        """Put a sum whose operand is ready into its bucket."""
        op = self.graph.nodes[i].op
        assert isinstance(op, ops.AllReduce)
        key = op.over, self.graph.type_of(i).dtype
        if key not in self.open:
            self.count += 1
            self.open[key] = _Bucket(str(self.count), [])
        members = self.open[key].members
        members.append(i)
        if sum(_bytes(self.graph.type_of(m)) for m in members) >= self.bucket:
            self._start(key)

    def _start(self, key: tuple[str, str | None]) -> None:
        found = self.open.pop(key)
        members = [self.graph.nodes[m] for m in found.members]
        op = members[0].op
        assert isinstance(op, ops.AllReduce)
        start = ops.StartAllReduce(op.over, op.ranks, op.rank, op.how, found.label)
        self.started.append((found, self._add(start, self._args([m.args[0] for m in members]), *members)))

    def _wait(self, found: _Bucket, start: int) -> None:
        members = [self.graph.nodes[m] for m in found.members]
        op = members[0].op
        assert isinstance(op, ops.AllReduce)
        total = self._add(ops.Wait(op.over, op.ranks, op.rank, found.label), (start,), *members)
        shapes = [dims(self.graph.type_of(m)) for m in found.members]
        ends = accumulate(map(math.prod, shapes), initial=0)
        for m, shape, (begin, end) in zip(found.members, shapes, pairwise(ends), strict=True):
            own, node = total, self.graph.nodes[m]
            if len(members) > 1:
                own = self._add(ops.Slice(((begin, end - begin, 1),)), (own,), node)
            if len(shape) != 1:
                own = self._add(ops.Reshape(shape), (own,), node)
            self._done(m, own)


def _bytes(t: TensorType) -> int:
    return math.prod(dims(t)) * ITEMSIZE[t.dtype or "float64"]
