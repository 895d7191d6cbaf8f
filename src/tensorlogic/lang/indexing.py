"""Values with named axes, and how a tensor is read by its indices: slices, diagonals, windows and gathers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from .affine import Affine
from .extents import ReadPlace


class Value(NamedTuple):
    """A tensor of a graph (or a number) whose axes are index variables."""

    tensor: Any
    axes: tuple[str, ...] = ()

    @property
    def boolean(self) -> bool:
        """Whether it holds truth values."""
        return isinstance(self.tensor, Tensor) and self.tensor.dtype == "bool"


Ranges = Mapping[str, tuple[int, int]]


def length(ranges: Ranges, name: str) -> int:
    """Return how many values a variable takes."""
    return ranges[name][1] - ranges[name][0]


def tensor_of(b: GraphBuilder, value: Value) -> Tensor:
    """Return the tensor of a value; a number becomes one."""
    return value.tensor if isinstance(value.tensor, Tensor) else b.literal(value.tensor)


def aligned(b: GraphBuilder, value: Value, axes: Sequence[str]) -> Any:
    """Return a value's tensor with its axes in an order, and axes of size 1 for those it lacks."""
    if not isinstance(value.tensor, Tensor) or not value.axes:
        return value.tensor
    remaining = [a for a in axes if a in value.axes]
    tensor = value.tensor
    if tuple(remaining) != value.axes:
        tensor = b.transpose(tensor, [value.axes.index(a) for a in remaining])
    rest = list(axes)[axes.index(remaining[0]) :]  # axes that are lacking at the front need not be written
    if rest == remaining:
        return tensor
    assert tensor.shape is not None
    sizes = dict(zip(remaining, tensor.shape, strict=True))
    return b.reshape(tensor, [sizes.get(a, 1) for a in rest])


def with_axes(b: GraphBuilder, value: Value, axes: Sequence[str], ranges: Ranges, dtype: str) -> Value:
    """Return a value with all of some axes, repeated along those it lacks."""
    if tuple(axes) == value.axes and isinstance(value.tensor, Tensor):
        return value
    tensor = aligned(b, value, tuple(axes))
    if not isinstance(tensor, Tensor):
        tensor = b.constant(np.asarray(tensor, dtype))
    return Value(b.broadcast_to(tensor, [length(ranges, a) for a in axes]), tuple(axes))


def contract(b: GraphBuilder, values: Sequence[Value], axes: Sequence[str], algebra: str = "real") -> Value:
    """Join values over their axes and project onto some of them, as one einsum."""
    if len(values) == 1 and values[0].axes == tuple(axes):
        return values[0]
    labels: dict[str, int] = {}
    for value in values:
        for axis in value.axes:
            labels.setdefault(axis, len(labels))
    lists = [[labels[a] for a in value.axes] for value in values]
    lists.append([labels[a] for a in axes])
    return Value(b.einsum(lists, *(value.tensor for value in values), algebra=algebra), tuple(axes))


def position(b: GraphBuilder, form: Affine, ranges: Ranges) -> Value:
    """Return the number that an index is, for all values of its variables."""
    axes = form.variables
    total: Any = form.constant
    for name, factor in form.terms:
        start, stop = ranges[name]
        counted: Any = b.iota(stop - start)
        if factor != 1:
            counted = b.multiply(counted, factor)
        if start:
            counted = b.add(counted, factor * start)
        counted = aligned(b, Value(counted, (name,)), axes)
        total = counted if isinstance(total, int) and total == 0 else b.add(total, counted)
    if not axes:
        total = b.constant(np.int64(form.constant // form.divisor))
    elif form.divisor != 1:
        total = b.floor_divide(total, form.divisor)
    return Value(total, axes)


def read(
    b: GraphBuilder, tensor: Tensor, places: Sequence[Affine | int], ranges: Ranges, beyond: Sequence[ReadPlace]
) -> tuple[Value, list[Value]]:
    """Read a tensor by the index in each place (an integer where it is a position).

    Returns what is read, and truth values that say where an index is within its axis, for reads that are not everywhere.
    """
    assert tensor.shape is not None
    keys: list[Any] = []
    axes: list[str] = []
    windows: list[tuple[str, str, int, int]] = []
    gathers: list[tuple[str, Affine]] = []
    for p, form in enumerate(places):
        if isinstance(form, int):
            keys.append(form)
            continue
        extent = int(tensor.shape[p])
        outside = ReadPlace(form, extent) in beyond
        if not form.terms:
            keys.append(form.constant // form.divisor)
        elif len(form.terms) == 1 and form.divisor == 1:
            ((name, factor),) = form.terms
            keys.append(_slice(form.constant + factor * ranges[name][0], length(ranges, name), factor))
            axes.append(name)
        elif (
            len(form.terms) == 2
            and form.divisor == 1
            and not outside
            and all(f > 0 for _, f in form.terms)
            and all(length(ranges, name) > 0 for name in form.variables)
        ):
            (one, step), (other, apart) = form.terms
            low, high = form.bounds(ranges)
            keys.append(slice(low, high + 1))
            axes.append(one)
            windows.append((one, other, step, apart))
        else:
            keys.append(slice(None))
            axes.append(f"?{p}")
            gathers.append((f"?{p}", form))
    result = tensor
    if not _all(keys, tensor):
        result = b.index(tensor, tuple(keys))
    for one, other, step, apart in windows:
        at = axes.index(one)
        result = b.window(result, at, length(ranges, other), step=step, dilation=apart)
        axes.append(other)
    masks: list[Value] = []
    for label, form in gathers:
        at = axes.index(label)
        assert result.shape is not None
        extent = int(result.shape[at])
        where = position(b, form, ranges)
        if ReadPlace(form, extent) in beyond:
            inside = b.logical_and(b.greater_equal(where.tensor, 0), b.less(where.tensor, extent))
            masks.append(Value(inside, where.axes))
            where = Value(b.clip(where.tensor, 0, extent - 1), where.axes)
        result = b.gather(result, where.tensor, at)
        axes[at : at + 1] = where.axes
    return without_repeats(b, Value(result, tuple(axes))), masks


def without_repeats(b: GraphBuilder, value: Value) -> Value:
    """Take the diagonal where a variable has two axes."""
    once = tuple(dict.fromkeys(value.axes))
    return value if once == value.axes else contract(b, [value], once)


def _all(keys: Sequence[Any], tensor: Tensor) -> bool:
    """Tell whether slices take all of every axis."""
    assert tensor.shape is not None
    return all(
        isinstance(key, slice) and key.indices(int(size)) == (0, int(size), 1)
        for key, size in zip(keys, tensor.shape, strict=True)
    )


def _slice(start: int, count: int, step: int) -> slice:
    if count <= 0:
        return slice(0, 0)
    stop = start + step * (count - 1) + (1 if step > 0 else -1)
    return slice(start, stop if stop >= 0 else None, step)
