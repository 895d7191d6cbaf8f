"""Convolution and pooling, built from pads, windows, products and reductions, so that every pass and gradient applies.

The tensors hold channels last: ``(batch, length, channels)`` along one axis, ``(batch, height, width, channels)`` along two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from ..diagnostics import value_text
from ..errors import ShapeError
from .methods import TensorMethods
from .sizes import Dim, integer, prod

T = TypeVar("T")
Numbers = int | Sequence[int]  # one for all axes, or one for each
Padding = str | int | Sequence[int | tuple[int, int]]


class _Axis(NamedTuple):
    """How a window goes along one axis, and how far the axis is padded at both ends."""

    size: int
    stride: int
    dilation: int
    pad: tuple[int, int]


class Convolutions(TensorMethods[T], Generic[T]):
    """Convolution, and the largest and the mean element of windows."""

    def conv(
        self,
        x: Any,
        weight: Any,
        bias: Any = None,
        *,
        stride: Numbers = 1,
        padding: Padding = "valid",
        dilation: Numbers = 1,
        groups: int = 1,
    ) -> T:
        """Slide a window of weights over the axes between the first and the last, as neural networks do (without flipping it).

        ``x`` is (batch, ..., channels) and ``weight`` (..., channels / groups, outputs): (3, 3, 16, 32) is a window of 3 by 3. With
        ``padding="same"`` an axis of n has ceil(n / stride) places; "valid" pads nothing; a number pads that many zeros at both ends
        of every axis, and a list says so for each. ``groups`` divide channels and outputs into parts that do not see each other.

        >>> import numpy as np, tensorlogic as tl
        >>> b = tl.GraphBuilder()
        >>> x, w = b.input("x", ("n", 5, 1)), b.input("w", (3, 1, 1))
        >>> graph = b.build(y=b.conv(x, w, padding="same"))
        >>> tl.Executor().execute(graph, {"x": np.arange(5.0).reshape(1, 5, 1), "w": np.ones((3, 1, 1))})["y"].ravel()
        array([1., 3., 6., 9., 7.])
        """
        sizes, window = self._shape(x, "conv"), self._shape(weight, "conv")
        if len(sizes) != len(window) or len(window) < 3 or not all(isinstance(d, int) for d in window):
            hint = "write (batch, height, width, channels) and (3, 3, channels, outputs)"
            raise ShapeError(f"conv: weights {list(window)} do not fit {list(sizes)}", hint, code="E881")
        *spatial, depth, outputs = window
        axes = _axes("conv", sizes, [int(d) for d in spatial], stride, padding, dilation)
        parts = integer(groups, "conv: a number of groups")
        channels = sizes[-1]
        if parts < 1 or int(outputs) % parts or (isinstance(channels, int) and channels != parts * int(depth)):
            message = (
                f"conv: {channels} channels and {outputs} outputs in {parts} groups do not fit weights {list(window)}"
            )
            raise ShapeError(message, "weights have channels / groups channels", code="E881")
        x = self._padded(x, axes, 0)
        rank, inner = len(axes), math.prod(int(d) for d in window[:-1])
        if parts == 1:
            windows = self._windows(x, axes)  # (batch, places..., window..., channels)
            places = self._shape(windows, "conv")[: rank + 1]
            columns = self.reshape(windows, (*places, inner))  # the copy that makes it one matrix product
            y = self.einsum("...k,ko->...o", columns, self.reshape(weight, (inner, outputs)))
        else:
            apart = self.reshape(x, (*self._shape(x, "conv")[:-1], parts, depth))
            windows = self._windows(apart, axes)
            places = self._shape(windows, "conv")[: rank + 1]
            group = 2 * rank + 1
            windows = self.transpose(windows, [group, *range(group), group + 1])
            columns = self.reshape(windows, (parts, prod(tuple(places)), inner))
            kernel = self.reshape(weight, (inner, parts, int(outputs) // parts))
            y = self.reshape(self.einsum("gpk,kgo->pgo", columns, kernel), (*places, outputs))
        return y if bias is None else self.add(y, bias)

    def max_pool(
        self, x: Any, size: Numbers, *, stride: Numbers | None = None, padding: Padding = "valid", dilation: Numbers = 1
    ) -> T:
        """Return the largest element of each window over the axes between the first and the last; ``stride`` is the size if left out.

        >>> import numpy as np, tensorlogic as tl
        >>> b = tl.GraphBuilder()
        >>> graph = b.build(y=b.max_pool(b.input("x", (1, 4, 1)), 2))
        >>> tl.Executor().execute(graph, {"x": np.array([1.0, 3.0, 2.0, 0.0]).reshape(1, 4, 1)})["y"].ravel()
        array([3., 2.])
        """
        sizes = self._shape(x, "max_pool")
        axes = _pool_axes("max_pool", sizes, size, stride, padding, dilation)
        windows, reduced = self._pools(self._padded(x, axes, -math.inf), axes)
        return self.max(windows, reduced)

    def mean_pool(
        self, x: Any, size: Numbers, *, stride: Numbers | None = None, padding: Padding = "valid", dilation: Numbers = 1
    ) -> T:
        """Return the mean of each window over the axes between the first and the last; zeros that pad an axis are not counted.

        >>> import numpy as np, tensorlogic as tl
        >>> b = tl.GraphBuilder()
        >>> graph = b.build(y=b.mean_pool(b.input("x", (1, 4, 1)), 2))
        >>> tl.Executor().execute(graph, {"x": np.array([1.0, 3.0, 2.0, 0.0]).reshape(1, 4, 1)})["y"].ravel()
        array([2., 1.])
        """
        sizes = self._shape(x, "mean_pool")
        axes = _pool_axes("mean_pool", sizes, size, stride, padding, dilation)
        windows, reduced = self._pools(self._padded(x, axes, 0), axes)
        if all(axis.pad == (0, 0) for axis in axes):
            return self.mean(windows, reduced)
        # as many ones as there are elements, in the dtype of x whatever that will be
        ones = self.maximum(self.minimum(self.stop_gradient(x), 1), 1)
        counts, _ = self._pools(self._padded(ones, axes, 0), axes)
        return self.divide(self.sum(windows, reduced), self.sum(counts, reduced))

    def _padded(self, x: Any, axes: Sequence[_Axis], value: Any) -> Any:
        if all(axis.pad == (0, 0) for axis in axes):
            return x
        return self.pad(x, [(0, 0), *(axis.pad for axis in axes), (0, 0)], value)

    def _windows(self, x: Any, axes: Sequence[_Axis]) -> T:
        """Return all windows: the axes in front of them, the places within a window, and the axes behind.

        The last axis is cut first. So each further window, and each gradient of one, goes along runs of memory that are as long as
        can be.
        """
        rank = len(self._shape(x, "a window"))
        for n in reversed(range(len(axes))):
            size, stride, dilation, _ = axes[n]
            x = self.window(x, n + 1, size, step=stride, dilation=dilation)
            x = self.transpose(x, [*range(len(axes) + 1), rank, *range(len(axes) + 1, rank)])
            rank += 1
        windows: T = x
        return windows

    def _pools(self, x: Any, axes: Sequence[_Axis]) -> tuple[T, tuple[int, ...]]:
        """Return what to reduce, and over which axes: a plain view where windows stand side by side, else all windows."""
        sizes = self._shape(x, "a pool")
        beside = all(
            isinstance(d, int) and axis.stride == axis.size and axis.dilation == 1 and d % axis.size == 0
            for d, axis in zip(sizes[1:-1], axes, strict=True)
        )
        if not beside:
            return self._windows(x, axes), tuple(range(len(axes) + 1, 2 * len(axes) + 1))
        shape: list[Dim] = [sizes[0]]
        for d, axis in zip(sizes[1:-1], axes, strict=True):
            shape += [int(d) // axis.size, axis.size]
        return self.reshape(x, [*shape, sizes[-1]]), tuple(range(2, 2 * len(axes) + 1, 2))


def _pool_axes(
    what: str, sizes: Sequence[Dim], size: Numbers, stride: Numbers | None, padding: Padding, dilation: Numbers
) -> list[_Axis]:
    if len(sizes) < 3:
        raise ShapeError(f"{what}: {list(sizes)} has no axes between the first and the last", code="E881")
    each = _each(what, "size", size, len(sizes) - 2)
    return _axes(what, sizes, each, each if stride is None else stride, padding, dilation)


def _axes(
    what: str, sizes: Sequence[Dim], window: Sequence[int], stride: Numbers, padding: Padding, dilation: Numbers
) -> list[_Axis]:
    """Return how windows go along each axis."""
    strides, apart = (_each(what, word, n, len(window)) for word, n in (("stride", stride), ("dilation", dilation)))
    pads = _pads(what, sizes[1:-1], window, strides, apart, padding)
    return [_Axis(*own) for own in zip(window, strides, apart, pads, strict=True)]


def _each(what: str, word: str, given: Numbers, count: int) -> list[int]:
    found = [given] * count if not isinstance(given, Sequence) else list(given)
    whole = [integer(n, f"{what}: a {word}") for n in found]
    if len(whole) != count or any(n < 1 for n in whole):
        hint = f"write {word}=2, or {word}={tuple([2] * count)}"
        raise ShapeError(
            f"{what}: a {word} is from 1, for each of {count} axes, got {value_text(given)}", hint, code="E882"
        )
    return whole


def _pads(
    what: str,
    sizes: Sequence[Dim],
    window: Sequence[int],
    strides: Sequence[int],
    apart: Sequence[int],
    padding: Padding,
) -> list[tuple[int, int]]:
    count = len(window)
    if padding == "valid":
        return [(0, 0)] * count
    if padding == "same":
        found = []
        for size, reach, stride in zip(sizes, _reaches(window, apart), strides, strict=True):
            if stride == 1:
                short = reach - 1
            elif isinstance(size, int):
                short = max(0, (-(-size // stride) - 1) * stride + reach - size)
            else:
                hint = "give the axis a number as its size, or the padding as numbers"
                raise ShapeError(
                    f"{what}: 'same' with a stride needs the size of an axis, got {size!r}", hint, code="E882"
                )
            found.append((short // 2, short - short // 2))
        return found
    each = [padding] * count if not isinstance(padding, Sequence) or isinstance(padding, str) else list(padding)
    try:
        pairs = [p if isinstance(p, tuple) else (p, p) for p in each]
        whole = [(integer(a, "a width"), integer(b, "a width")) for a, b in pairs]
    except (ShapeError, TypeError, ValueError):
        whole = []
    if len(whole) != count or any(n < 0 for pair in whole for n in pair):
        hint = f"write padding='same', padding=1, or padding={[(1, 1)] * count}"
        raise ShapeError(f"{what}: there is no padding {value_text(padding)} for {count} axes", hint, code="E882")
    return whole


def _reaches(window: Sequence[int], apart: Sequence[int]) -> list[int]:
    return [(size - 1) * dilation + 1 for size, dilation in zip(window, apart, strict=True)]
