"""What ranks do together, as kernels: each asks the way to its group that the run was given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ..errors import ExecutionError
from ..events import running
from ..ir import ops
from ..ir.ops import Op
from ..ir.types import TensorType, dims
from .base import Kernel

Array = Any


@runtime_checkable
class CommunicationBackend(Protocol):
    """The way from one rank of a group to the others; threads of this process, or processes on several machines.

    Arrays that are given are not changed, and those that are returned belong to the caller. Every rank of the group makes the same
    calls in the same order. Shares of an axis may differ in length. A carrier with a method ``abandon`` is asked to give up what was started
    when the run of its rank fails.

    >>> from tensorlogic.runtime.distributed.local import local_group
    >>> (alone,) = local_group(1)
    >>> isinstance(alone, CommunicationBackend), alone.rank, alone.size
    (True, 0, 1)
    """

    rank: int
    size: int

    def all_reduce(self, x: Array, how: str) -> Array: ...  # combined over all ranks
    def start_all_reduce(
        self, operands: Sequence[Array], total: Array, how: str, label: str
    ) -> None: ...  # total: filled by wait
    def wait(self, label: str) -> None: ...  # until the total of what was started under a label is there
    def all_gather(self, x: Array, axis: int, length: int) -> Array: ...  # end to end, of a length together
    def reduce_scatter(self, x: Array, axis: int, how: str) -> Array: ...  # this rank's share of what is combined
    def all_to_all(self, x: Array, cut: int, joined: int, length: int) -> Array: ...  # shares of another axis
    def broadcast(self, x: Array, root: int) -> Array: ...
    def send(self, x: Array, to: int, label: str) -> None: ...
    def receive(self, source: int, label: str, shape: tuple[int, ...], dtype: str) -> Array: ...
    def group(self, ranks: Sequence[int]) -> CommunicationBackend: ...  # of some of the ranks, this one among them
    def close(self) -> None: ...


def _way(op: ops.Collective) -> CommunicationBackend:
    ways = running.ranks or {}
    way: CommunicationBackend | None = ways.get(op.over)
    if way is None:
        message = f"{op.name}: this run has no ranks along {op.over!r} to meet"
        raise ExecutionError(
            message, "run the graph with executor.execute_distributed(graph, inputs, config)", code="E367"
        )
    if (way.size, way.rank) != (op.ranks, op.rank):
        message = f"{op.name}: the graph is that of rank {op.rank} of {op.ranks} along {op.over!r}, this is rank {way.rank} of {way.size}"
        raise ExecutionError(message, "give every rank the graph that was made for it", code="E368")
    return way


def _receive(op: ops.Receive) -> Kernel:
    return lambda: _way(op).receive(op.source, op.label, op.shape, op.dtype)


def _send(op: ops.Send) -> Kernel:
    def send(x: Array) -> Array:
        _way(op).send(x, op.to, op.label)
        return x

    return send


def bind_start(op: ops.StartAllReduce, result: TensorType) -> Kernel:
    """Return the kernel that begins to combine its operands, end to end; the total will be in ``out`` where there is one."""
    shape, dtype = dims(result), result.dtype

    def start(*operands: Array, out: Array | None = None) -> Array:
        total = np.empty(shape, dtype) if out is None else out
        if op.ranks > 1:
            _way(op).start_all_reduce(operands, total, op.how, op.label)
        else:
            put_end_to_end(operands, total)
        return total

    return start


def put_end_to_end(operands: Sequence[Array], total: Array) -> None:
    """Write operands one after another into an array of one axis.

    >>> total = np.zeros(3)
    >>> put_end_to_end([np.ones((1, 2)), np.array([5.0])], total)
    >>> total
    array([1., 1., 5.])
    """
    at = 0
    for x in operands:
        np.copyto(total[at : at + x.size].reshape(np.shape(x)), x)
        at += x.size


def _wait(op: ops.Wait) -> Kernel:
    def wait(x: Array) -> Array:
        if op.ranks > 1:
            _way(op).wait(op.label)
        return x

    return wait


_CALLS: dict[type[Op], Callable[[Any, CommunicationBackend, Array], Array]] = {
    ops.AllReduce: lambda op, way, x: way.all_reduce(x, op.how),
    ops.AllGather: lambda op, way, x: way.all_gather(x, op.axis, op.size),
    ops.ReduceScatter: lambda op, way, x: way.reduce_scatter(x, op.axis, op.how),
    ops.AllToAll: lambda op, way, x: way.all_to_all(x, op.cut, op.joined, op.size),
    ops.BroadcastFrom: lambda op, way, x: way.broadcast(x, op.root),
}


def _meeting(op: Any) -> Kernel:
    call = _CALLS[type(op)]
    if op.ranks == 1:
        return np.array
    return lambda x: call(op, _way(op), np.asarray(x))


def bind_collective(op: ops.Collective, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    """Return the kernel of a collective operation."""
    match op:
        case ops.Receive():
            return _receive(op)
        case ops.Send():
            return _send(op)
        case ops.StartAllReduce():
            return bind_start(op, result)
        case ops.Wait():
            return _wait(op)
        case _:
            return _meeting(op)


def moves_anywhere(meeting: ops.Collective | None, moved: bool) -> bool:
    """Tell whether something moved on this rank or on any that it meets in the body of a loop, so that all go round equally often."""
    return moved if meeting is None else bool(_way(meeting).all_reduce(np.array([moved]), "or")[0])


COLLECTIVES: tuple[type[Op], ...] = (*_CALLS, ops.Send, ops.Receive, ops.StartAllReduce, ops.Wait)
