"""The types of what ranks make together, and the shares that they have of an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..diagnostics import value_text
from ..errors import DTypeError, GraphError, ShapeError
from . import ops
from .ops import Op
from .sizes import Dim, add, floordiv, prod
from .types import TensorShape, TensorType, dtype_name

TRUTH = ("or", "and")


def share(size: int, ranks: int, rank: int) -> range:
    """Return the places of an axis that a rank has: ranges of nearly equal length, the longer ones first.

    >>> [len(share(66, 4, rank)) for rank in range(4)]
    [17, 17, 16, 16]
    """
    short, longer = divmod(size, ranks)
    start = rank * short + min(rank, longer)
    return range(start, start + short + (rank < longer))


def share_size(size: Dim, ranks: int, rank: int) -> Dim:
    """Return the length of a rank's share of a size that may have a name."""
    return len(share(size, ranks, rank)) if isinstance(size, int) else floordiv(add(size, ranks - 1 - rank), ranks)


def _group(op: ops.Collective) -> None:
    if op.ranks < 1 or not 0 <= op.rank < op.ranks:
        raise GraphError(f"{op.name}: there is no rank {op.rank} among {op.ranks}", code="E363")


def _axis(op: Op, axis: int, t: TensorType) -> TensorShape:
    if t.shape is None or not 0 <= axis < len(t.shape):
        raise ShapeError(f"{op.name}: {t} has no axis {axis}", code="E364")
    return t.shape


def _resized(t: TensorType, sizes: dict[int, Dim]) -> TensorType:
    shape = TensorShape([sizes.get(a, d) for a, d in enumerate(t.shape or ())])
    return TensorType(shape, t.dtype)


def _combination(op: Any, t: TensorType) -> None:
    if op.how not in ops.COMBINATIONS:
        raise GraphError(
            f"{op.name}: values are combined by {', '.join(ops.COMBINATIONS)}, not {value_text(op.how)}", code="E365"
        )
    if op.how in TRUTH and t.dtype not in (None, "bool"):
        raise DTypeError(f"{op.name}: {op.how!r} combines truth values, not {t.dtype}", code="E365")


def _all_reduce(op: ops.AllReduce, t: TensorType) -> TensorType:
    _combination(op, t)
    return t._replace(weak=False)


def _start_all_reduce(op: ops.StartAllReduce, args: Sequence[TensorType], scope: Any) -> tuple[TensorType, ...]:
    _group(op)
    total: Dim = 0
    for t in args:
        _combination(op, t)
        if t.shape is None or t.dtype != args[0].dtype:
            raise DTypeError(
                f"start_all_reduce: operands of one dtype and known shapes are expected, got {t}", code="E384"
            )
        total = add(total, prod(t.shape))
    if not args:
        raise GraphError("start_all_reduce: there is nothing to combine", code="E384")
    return (TensorType(TensorShape((total,)), args[0].dtype),)


def _all_gather(op: ops.AllGather, t: TensorType) -> TensorType:
    shape = _axis(op, op.axis, t)
    own = share_size(op.size, op.ranks, op.rank)
    if isinstance(own, int) and isinstance(shape[op.axis], int) and own != shape[op.axis]:
        message = (
            f"all_gather: the share of rank {op.rank} of {op.size} is {own}, but axis {op.axis} has {shape[op.axis]}"
        )
        raise ShapeError(message, code="E366")
    return _resized(t, {op.axis: op.size})


def _reduce_scatter(op: ops.ReduceScatter, t: TensorType) -> TensorType:
    _combination(op, t)
    shape = _axis(op, op.axis, t)
    return _resized(t, {op.axis: share_size(shape[op.axis], op.ranks, op.rank)})


def _all_to_all(op: ops.AllToAll, t: TensorType) -> TensorType:
    shape = _axis(op, op.cut, t)
    _axis(op, op.joined, t)
    if op.cut == op.joined:
        raise ShapeError(f"all_to_all: axis {op.cut} cannot be cut and joined at once", code="E364")
    return _resized(t, {op.cut: share_size(shape[op.cut], op.ranks, op.rank), op.joined: op.size})


_RESULTS: dict[type[Op], Callable[[Any, TensorType], TensorType]] = {
    ops.AllReduce: _all_reduce,
    ops.AllGather: _all_gather,
    ops.ReduceScatter: _reduce_scatter,
    ops.AllToAll: _all_to_all,
    ops.BroadcastFrom: lambda op, t: t._replace(weak=False),
    ops.Send: lambda op, t: t._replace(weak=False),
    ops.Wait: lambda op, t: t._replace(weak=False),
}


def _result(op: Any, args: Sequence[TensorType], scope: Any) -> tuple[TensorType, ...]:
    _group(op)
    return (_RESULTS[type(op)](op, args[0]),)


def _receive(op: ops.Receive, args: Sequence[TensorType], scope: Any) -> tuple[TensorType, ...]:
    _group(op)
    return (TensorType(TensorShape(op.shape), dtype_name(op.dtype)),)


RULES: dict[type[Op], Callable[..., tuple[TensorType, ...]]] = {
    **dict.fromkeys(_RESULTS, _result),
    ops.Receive: _receive,
    ops.StartAllReduce: _start_all_reduce,
}
