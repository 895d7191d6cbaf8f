"""Sharding: the graph that one of several ranks runs, where some inputs lie in shares along an axis.

The axes are followed through the graph by the rules of the one split (:mod:`~tensorlogic.passes.indices`). Where an index survives, each rank
goes on with its share; where it is contracted, the partial results are combined by the algebra's reduction; where an operation needs
what other ranks have, the shares are gathered or change place. Of several ways the one that leaves
operands where they are is taken, then the one that moves least. Sizes must be known.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..diagnostics import value_text
from ..errors import GraphError, ShapeError, expect, nearest
from ..ir import ops
from ..ir.check import expect_graph
from ..ir.collectives import share
from ..ir.graph import Cond, EinsumGraph, Fixpoint, Node, Scan, extract, node_name, reachable
from ..ir.ops import Op, add_constant
from ..ir.types import ITEMSIZE, TensorType, dims, normal_axis
from .follow_index import cut_input, matching, resized
from .indices import Index, indices
from .shard_loops import joined_in_blocks, loop_in_shares
from .split import mean_divisor, working_dtype

MEETING = 100_000  # bytes that could be moved in the time that ranks take to meet at all


class Sharded(NamedTuple):
    """The graph of one rank, and the axis that each of its inputs and outputs has a share of; those without one are whole.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, w = b.input("x", (66, 8), "float32"), b.input("w", (8, 2), "float32")
    >>> own = shard(b.build(y=b.relu(x @ w), loss=b.sum(x)), {"x": 0}, ranks=4, rank=0)
    >>> print(own.graph)
    graph {
      x: float32[17, 8] = input()
      w: float32[8, 2] = input()
      %2: float32[17, 2] = einsum(x, w, spec="ij,jk->ik")
      %3: float32[17, 2] = relu(%2)
      %4: float32[] = sum(x)
      %5: float32[] = all_reduce(%4, over="data", ranks=4, rank=0)
      return y=%3, loss=%5
    }
    >>> own.inputs, own.outputs
    ({'x': 0}, {'y': 0})
    """

    graph: EinsumGraph
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def shard(
    graph: EinsumGraph, axes: Mapping[str, int], ranks: int, rank: int, over: str = "data", carried: Sequence[str] = ()
) -> Sharded:
    """Return the graph of one rank: inputs named in ``axes`` lie in shares along an axis, the others are the same everywhere.

    An input of which every reader needs its share only comes as a share too. Outputs that are ``carried`` lie as the inputs of their names do.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x, w, v = b.input("x", (6, 4), "float32"), b.input("w", (4, 8), "float32"), b.input("v", (8, 2), "float32")
    >>> own = shard(b.build(y=b.relu(x @ w) @ v), {"w": 1}, ranks=2, rank=0, over="model")
    >>> own.inputs, [node.op.name for node in own.graph.nodes][-1]
    ({'w': 1, 'v': 0}, 'all_reduce')
    """
    chosen = _checked(graph, axes, ranks)
    wishes: dict[int, int] = {}
    while True:
        draft = Draft(graph, chosen, wishes, ranks, rank, over)
        found = draft.run(carried)
        more = {name: axis for name, axis in draft.only_shares().items() if name not in chosen}
        new = {i: axis for i, axis in draft.wishes_after().items() if i not in wishes}
        if not more and not new:
            return found
        chosen |= more
        wishes |= new


def _checked(graph: EinsumGraph, axes: Mapping[str, int], ranks: int) -> dict[str, int]:
    expect_graph(graph)
    expect(axes, Mapping, "axes= says which axis of which input is shared", 'write {"w": 1}')
    for name in axes:
        if name not in graph.inputs:
            raise GraphError(
                f"the graph has no input {value_text(name)} to shard", *nearest(name, graph.inputs), code="E369"
            )
    for name, i in graph.inputs.items():
        t = graph.type_of(i)
        if t.shape is None or not t.shape.is_static:
            hint = "bind its sizes first: tensorlogic.passes.specialize.specialize(graph, types)"
            raise ShapeError(f"sharding needs sizes that are known; {name!r} is {t}", hint, code="E304")
    found = {}
    for name, axis in axes.items():
        t = graph.type_of(graph.inputs[name])
        assert t.shape is not None
        found[name] = normal_axis(axis, len(t.shape), f"sharding {name!r}")
        size = dims(t)[found[name]]
        if size < ranks:
            message = f"axis {axis} of {name!r} has {size} places, which {ranks} ranks cannot share"
            hint = f"use at most {size} ranks, or shard another axis" if size else "run it whole: executor.execute"
            raise ShapeError(message, hint, code="E370")
    return found


class _Values:
    """What stands for one value of the whole graph on this rank: all of it, shares along axes, or a part of a sum."""

    __slots__ = ("partial", "shares", "whole")

    def __init__(self) -> None:
        self.whole: int | None = None
        self.shares: dict[int, int] = {}
        self.partial: tuple[int, str] | None = None


class Draft:
    """The graph of one rank while it is written: what each value of the whole graph is on this rank."""

    def __init__(
        self, graph: EinsumGraph, axes: Mapping[str, int], wishes: Mapping[int, int], ranks: int, rank: int, over: str
    ) -> None:
        self.graph, self.axes, self.ranks, self.rank, self.over = graph, axes, ranks, rank, over
        self.wishes = wishes  # nodes of which only shares along an axis are needed
        # by node: who reads it, and which share
        self.readings: list[list[tuple[int, int | None]]] = [[] for _ in graph.nodes]
        self.types = graph.inference.types
        self.nodes: list[Node] = []
        self.constants = dict(graph.constants)
        self.values = [_Values() for _ in graph.nodes]
        self.outs: dict[int, tuple[int | None, ...]] = {}  # of loops that run on shares: the axis of each result
        # by input: the axis along which a share of it is needed, or None for all of it
        self.requests: dict[str, set[int | None]] = {}
        self.sources: dict[int, int] = {}  # the inputs
        self.origin = 0
        self.in_blocks = False  # whether rows of other ranks come one rank after the other, as in the body of a loop

    def place_all(self) -> None:
        """Write what every node is on this rank."""
        live = reachable(self.graph.nodes, [i for _, i in self.graph.outputs])
        for i in sorted({*live, *self.graph.inputs.values()}):
            self.origin = i
            self._place(i, self.graph.nodes[i])

    def run(self, carried: Sequence[str] = ()) -> Sharded:
        """Write the graph of the rank, node by node."""
        self.place_all()
        self._refuse_what_is_never_shared()
        outputs, found = [], {}
        for name, i in self.graph.outputs:
            self.origin = i
            values = self.values[i]
            if name in carried and name in self.axes:
                own = self.share(i, self.axes[name])
                found[name] = self.axes[name]
            elif name not in carried and values.whole is None and values.partial is None:
                axis, own = next(iter(values.shares.items()))
                found[name] = axis
            else:
                own = self._whole(i)
            outputs.append((name, own))
        made = extract(self.nodes, outputs, self.constants, [self.sources[i] for i in self.graph.inputs.values()])
        return Sharded(made, dict(self.axes), found)

    def only_shares(self) -> dict[str, int]:
        """Return the inputs of which only shares along one axis are asked for."""
        return {
            name: axis
            for name, asked in self.requests.items()
            if len(asked) == 1 and (axis := next(iter(asked))) is not None
        }

    def wishes_after(self) -> dict[int, int]:
        """Return element-wise nodes that were computed whole though only shares along one axis of them are read, by others or in the end."""
        found: dict[int, int] = {}
        for i in range(len(self.graph.nodes) - 1, -1, -1):
            asked = {self._asked(i, reader, axis, found) for reader, axis in self.readings[i]}
            axis = next(iter(asked)) if len(asked) == 1 else None
            if axis is not None and self.graph.nodes[i].op.is_pointwise and self.values[i].whole is not None:
                found[i] = axis
        return found

    def _asked(self, i: int, reader: int, axis: int | None, found: Mapping[int, int]) -> int | None:
        same = reader != i and self.types[reader][0].shape == self.types[i][0].shape
        return found.get(reader) if axis is None and same else axis

    def add(self, op: Op, args: tuple[int, ...] = ()) -> int:
        """Write a node and return its number."""
        self.nodes.append(Node(op, args, self.graph.nodes[self.origin].locations))
        return len(self.nodes) - 1

    def _place(self, i: int, node: Node) -> None:
        values = self.values[i]
        op = node.op
        if isinstance(op, ops.Input) and op.label in self.axes:
            axis = self.axes[op.label]
            own = len(share(dims(self.types[i][0])[axis], self.ranks, self.rank))
            self.sources[i] = values.shares[axis] = self.add(cut_input(op.label, self.types[i][0], axis, own))
        elif isinstance(op, ops.Item) and node.args[0] in self.outs:
            axis_of = self.outs[node.args[0]][op.index]
            assert axis_of is not None
            (loop,) = self.values[node.args[0]].shares.values()
            values.shares[axis_of] = self.add(op, (loop,))
        else:
            pick = self._choice(i, node)
            together = self._loop(node, pick)
            if together is not None:
                self._place_loop(i, node, *together)
            elif pick is None:
                values.whole = self.add(op, tuple([self._whole(a) for a in node.args]))
                if isinstance(op, ops.Input):
                    self.sources[i] = values.whole
            else:
                self._part(i, node, pick)

    def _loop(self, node: Node, pick: Index | None) -> tuple[Fixpoint, dict[int, int]] | None:
        """Return a fixpoint whose body meets other ranks, where an operand would have to be gathered else."""
        if not isinstance(node.op, Fixpoint):
            return None
        held = {
            n: next(iter(v.shares)) for n, a in enumerate(node.args) if (v := self.values[a]).whole is None and v.shares
        }
        if not held or (pick is not None and all(pick.args[n] == axis for n, axis in held.items())):
            return None
        return loop_in_shares(self, node, held)

    def _place_loop(self, i: int, node: Node, loop: Fixpoint, axes: Mapping[int, int]) -> None:
        args = [self.share(a, axes[n]) if n in axes else self._whole(a) for n, a in enumerate(node.args)]
        self.values[i].shares[axes[0]] = self.add(loop, tuple(args))
        self.outs[i] = tuple(axes[k] for k in range(loop.carries))

    def _part(self, i: int, node: Node, pick: Index) -> None:
        """Write what a node does for this rank's share of an index."""
        result = self.types[i][0]
        if self.in_blocks and (total := joined_in_blocks(self, node, pick)) is not None:
            self.values[i].shares[next(a for a in pick.outs if a is not None)] = total
            return
        args = [
            self._whole(a) if axis is None else self.share(a, axis)
            for a, axis in zip(node.args, pick.args, strict=True)
        ]
        op = resized(node.op, pick, self.types[i], len(share(pick.size, self.ranks, self.rank)))
        values = self.values[i]
        if not pick.how:
            axis = next(a for a in pick.outs if a is not None)
            values.shares[axis] = self.add(op, tuple(args))
            if isinstance(node.op, Fixpoint | Scan | Cond):
                self.outs[i] = pick.outs
            return
        if pick.how == "mean" and isinstance(op, ops.Reduce):
            op = ops.Reduce("sum", op.axes, op.keepdims)
        working = working_dtype(pick.how, result.dtype or "float64")
        if working is not None:
            args = [
                n if (t := self.types[a][0]).dtype == working or t.weak else self.add(ops.Cast(working), (n,))
                for n, a in zip(args, node.args, strict=True)
            ]
        values.partial = self.add(op, tuple(args)), pick.how

    def _whole(self, i: int) -> int:
        """Return the node that is all of a value."""
        values, op = self.values[i], self.graph.nodes[i].op
        self.readings[i].append((self.origin, None))
        if isinstance(op, ops.Input):
            self.requests.setdefault(op.label, set()).add(None)
        if values.whole is None:
            if values.partial is not None:
                total, how = values.partial
                meeting = ops.AllReduce(self.over, self.ranks, self.rank, _joined(how))
                values.whole = self._finished(i, self.add(meeting, (total,)), how)
            else:
                axis, own = next(iter(values.shares.items()))
                size = dims(self.types[i][0])[axis]
                values.whole = self.add(ops.AllGather(self.over, self.ranks, self.rank, axis, size), (own,))
        return values.whole

    def share(self, i: int, axis: int) -> int:
        """Return the node that is this rank's share of a value along an axis."""
        values, op = self.values[i], self.graph.nodes[i].op
        self.readings[i].append((self.origin, axis))
        if isinstance(op, ops.Input):
            self.requests.setdefault(op.label, set()).add(axis)
        if axis not in values.shares:
            shape = dims(self.types[i][0])
            if values.whole is not None:
                values.shares[axis] = self._own_range(values.whole, op, shape, axis)
            elif values.partial is not None:
                total, how = values.partial
                meeting = ops.ReduceScatter(self.over, self.ranks, self.rank, axis, _joined(how))
                values.shares[axis] = self._finished(i, self.add(meeting, (total,)), how)
            else:
                other, own = next(iter(values.shares.items()))
                meet = ops.AllToAll(self.over, self.ranks, self.rank, axis, other, shape[other])
                values.shares[axis] = self.add(meet, (own,))
        return values.shares[axis]

    def _own_range(self, whole: int, op: Op, shape: Sequence[int], axis: int) -> int:
        places = share(shape[axis], self.ranks, self.rank)
        if isinstance(op, ops.Constant):  # a rank keeps no more of it than it needs
            part = self.constants[op.digest][(slice(None),) * axis + (slice(places.start, places.stop),)]
            return self.add(add_constant(self.constants, part))
        ranges = [(places.start, len(places), 1) if a == axis else (0, n, 1) for a, n in enumerate(shape)]
        return self.add(ops.Slice(tuple(ranges)), (whole,))

    def _finished(self, i: int, total: int, how: str) -> int:
        result = self.types[i][0]
        if how == "mean":
            count = self.add(ops.Literal.of(float(mean_divisor(self.graph, i))))
            total = self.add(ops.Elementwise("divide"), (total, count))
        if working_dtype(how, result.dtype or "float64") not in (None, result.dtype):
            total = self.add(ops.Cast(result.dtype or "float64"), (total,))
        return total

    def _choice(self, i: int, node: Node) -> Index | None:
        """Return the index along which a node runs in shares; None where each rank does all of it."""
        held = [
            None if self.values[a].whole is not None or self.values[a].partial else self.values[a].shares
            for a in node.args
        ]
        known = {n: next(iter(shares)) for n, shares in enumerate(held) if shares}
        args = [self.types[a][0] for a in node.args]
        if i in self.wishes:
            wished = (p for p in indices(node.op, args, self.types[i]) if p.outs == (self.wishes[i],) and not p.how)
            return next((pick for pick in wished if pick.size >= self.ranks), None)
        if not known:
            return None
        if isinstance(node.op, Fixpoint | Scan | Cond):
            pick = matching(node.op, args, self.types[i], known)
            return pick if pick is not None and pick.size >= self.ranks else None
        best, least = None, (math.inf, 0)
        for index in indices(node.op, args, self.types[i]):
            if index.size < self.ranks or not any(axis is not None for axis in index.args):
                continue
            moves = [self._move_cost(node.args[n], args[n], axis) for n, axis in enumerate(index.args)]
            cost = sum(map(bool, moves)), sum(moves) + (_reduce_cost(self.types[i][0]) if index.how else 0)
            if cost < least:
                best, least = index, cost
        return best

    def _move_cost(self, a: int, t: TensorType, axis: int | None) -> int:
        """Return what it costs to have a share of an operand along an axis, or all of it, in bytes."""
        values = self.values[a]
        if values.partial is not None:
            return _reduce_cost(t) if axis is None else _gather_cost(t)
        if axis in values.shares or values.whole is not None:
            return 0
        return _gather_cost(t) if axis is None else _gather_cost(t) // self.ranks

    def _refuse_what_is_never_shared(self) -> None:
        """Raise for an input that was to be shared, but whose every reader needs all of it."""
        for name, axis in self.axes.items():
            if self.requests.get(name) == {None}:
                i = self.graph.inputs[name]
                reader, node = next((n, node) for n, node in enumerate(self.graph.nodes) if i in node.args)
                message = f"{name!r} cannot be sharded along axis {axis}: {node_name(self.graph.nodes, reader)} ({node.op.name}) needs all of it"
                raise ShapeError(message, "shard another axis, or leave it whole", code="E371").at(node.location)


def _joined(how: str) -> str:
    return "add" if how == "mean" else how


def _gather_cost(t: TensorType) -> int:
    return MEETING + math.prod(dims(t)) * ITEMSIZE[t.dtype or "float64"]


def _reduce_cost(t: TensorType) -> int:
    return 2 * _gather_cost(t) - MEETING
