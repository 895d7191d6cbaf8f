"""The vocabulary of tensors: NumPy's names for element-wise functions, reductions, views and the rest.

Whoever can apply one operation to operands gets all of it; the graph builder is the first to.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from itertools import islice
from numbers import Integral
from typing import Any, Generic, ParamSpec, TypeVar

import numpy as np

from ..diagnostics import value_text
from ..errors import DTypeError, GraphError, ShapeError, SpecError
from . import ops, spec
from .algebra import algebra as lookup
from .elementwise import FUNCTIONS
from .indexing import LONGEST, index_range
from .packed_numbers import KINDS, PACKED
from .sizes import Dim, dim, flag, integer
from .types import TensorShape, dtype_name, normal_axis, of_axes

T = TypeVar("T")
P = ParamSpec("P")
Axes = int | Sequence[int] | None


class _Elementwise(Generic[P]):
    """Stands for an element-wise function in the class below, until the class is made and a method takes its place."""

    def __set_name__(self, owner: type, name: str) -> None:
        one: Callable[..., Any] = lambda self, x: self._map(name, x)  # noqa: E731
        two: Callable[..., Any] = lambda self, x, y: self._map(name, x, y)  # noqa: E731
        method, operands = (one, "x") if FUNCTIONS[name].arity == 1 else (two, "x and y")
        method.__name__, method.__qualname__ = name, f"{owner.__name__}.{name}"
        method.__doc__ = f"Apply {name} to {operands} element by element, with NumPy's broadcasting and dtypes."
        setattr(owner, name, method)

    def __get__(self, builder: TensorMethods[T], kind: type) -> Callable[P, T]:
        raise NotImplementedError  # it is for type checkers


def _unary(count: int) -> list[_Elementwise[[Any]]]:
    return [_Elementwise() for _ in range(count)]


def _binary(count: int) -> list[_Elementwise[[Any, Any]]]:
    return [_Elementwise() for _ in range(count)]


class TensorMethods(ABC, Generic[T]):
    """Everything that can be said with one ``apply(op, *operands)``; operands may be arrays and Python scalars."""

    @abstractmethod
    def apply(self, op: ops.Op, *operands: Any) -> T:
        """Apply one operation that has one result."""

    @abstractmethod
    def shape_of(self, x: Any) -> TensorShape | None:
        """Return the shape of an operand, None where its rank is unknown."""

    def _shape(self, x: Any, what: str) -> TensorShape:
        shape = self.shape_of(x)
        if shape is None:
            hint = "declare the input's shape: b.input('x', ('n', 3)); names stand for unknown sizes"
            raise ShapeError(f"{what} needs to know the rank of its operand", hint, code="E007")
        return shape

    # contraction

    def einsum(self, equation: str | Sequence[Sequence[object]], *operands: Any, algebra: str = "real") -> T:
        """Join and project: ``einsum("ij,jk->ik", a, b)``; integer labels: ``einsum([[0, 1], [1, 2], [0, 2]], a, b)``.

        With integer labels the last list is the result's, and may be left out.
        """
        if isinstance(equation, str):
            form = spec.parse(equation)
        else:
            if isinstance(equation, bytes) or not isinstance(equation, Sequence):
                raise _no_spec(equation, "text or lists of integers")
            lists = list(islice(equation, len(operands) + 2))  # one too many is enough to refuse
            given = len(lists) > len(operands)
            form = spec.from_integers(lists[:-1] if given else lists, lists[-1] if given else None)
        return self.apply(ops.Einsum(str(form), lookup(algebra).name), *operands)

    def matmul(self, a: Any, b: Any) -> T:
        """Multiply matrices as NumPy's ``@`` does, vectors and batches included."""
        return self.einsum(matmul_spec(self._shape(a, "matmul"), self._shape(b, "matmul")), a, b)

    def contract_vjp(self, equation: str, algebra: str, wrt: int, *operands: Any) -> T:
        """Return the gradient of an einsum for factor ``wrt``; operands are the factors, the result, its cotangent."""
        if not isinstance(equation, str):
            raise _no_spec(equation, "text")
        factor = integer(wrt, "contract_vjp: the number of a factor")
        return self.apply(ops.ContractVJP(str(spec.parse(equation)), lookup(algebra).name, factor), *operands)

    # one operand

    def _map(self, fn: str, *operands: Any) -> T:
        return self.apply(ops.Elementwise(fn), *operands)

    negative, absolute, sign, square, sqrt, reciprocal, exp, expm1, log, log1p, log2 = _unary(11)
    sin, cos, tan, arcsin, arccos, arctan, sinh, cosh, tanh, erf, sigmoid, relu, step = _unary(13)
    floor, ceil, trunc, rint, isnan, isinf, isfinite, logical_not = _unary(8)

    # two operands, and three

    add, subtract, multiply, divide, floor_divide, remainder, power, minimum, maximum = _binary(9)
    arctan2, logaddexp, lukasiewicz, godel_implies, goguen_implies = _binary(5)
    equal, not_equal, less, less_equal, greater, greater_equal = _binary(6)
    logical_and, logical_or, logical_xor = _binary(3)

    def abs(self, x: Any) -> T:
        """Apply absolute to x element by element."""
        return self.absolute(x)

    def where(self, condition: Any, x: Any, y: Any) -> T:
        """Choose x or y by a condition element by element, with NumPy's broadcasting and dtypes."""
        return self._map("where", condition, x, y)

    def truth(self, fn: str, *operands: Any) -> T:
        """Apply a logical function to truth values; bit operations on numbers are not what & | ^ ~ mean, so are refused."""
        for x in operands:
            dtype = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype  # of a tensor it may be unknown
            if dtype is not None and str(dtype) != "bool":
                hint = f"call {fn}(...) if non-zero should count as true"
                raise DTypeError(f"& | ^ ~ are for truth values, got {dtype}", hint, code="E121")
        return self._map(fn, *operands)

    def clip(self, x: Any, low: Any, high: Any) -> T:
        """Keep values within ``low`` and ``high``."""
        return self.minimum(self.maximum(x, low), high)

    # reductions

    def _reduce(self, kind: str, x: Any, axis: Axes, keepdims: bool) -> T:
        given = _of_axes(axis, f"{kind}: axes") if isinstance(axis, Sequence) and not isinstance(axis, str) else (axis,)
        axes = None if axis is None else tuple(integer(a, f"{kind}: an axis") for a in given)
        shape = self.shape_of(x)
        if axes is not None and shape is not None:
            axes = tuple(sorted(normal_axis(a, len(shape), kind) for a in axes))
        return self.apply(ops.Reduce(kind, axes, flag(keepdims, "keepdims=")), x)

    # fmt: off
    def sum(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T: return self._reduce("sum", x, axis, keepdims)
    def prod(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T: return self._reduce("prod", x, axis, keepdims)
    def max(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T: return self._reduce("max", x, axis, keepdims)
    def min(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T: return self._reduce("min", x, axis, keepdims)
    def mean(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T: return self._reduce("mean", x, axis, keepdims)
    def any(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T: return self._reduce("any", x, axis, keepdims)
    def all(self, x: Any, axis: Axes = None, *, keepdims: bool = False) -> T: return self._reduce("all", x, axis, keepdims)
    def argmax(self, x: Any, axis: int | None = None, *, keepdims: bool = False) -> T: return self._reduce("argmax", x, axis, keepdims)
    def argmin(self, x: Any, axis: int | None = None, *, keepdims: bool = False) -> T: return self._reduce("argmin", x, axis, keepdims)
    # fmt: on

    def _axis(self, x: Any, axis: int, what: str) -> int:
        place = integer(axis, f"{what}: an axis")
        return normal_axis(place, len(self._shape(x, what)), what) if place < 0 else place

    def _cumulate(self, kind: str, x: Any, axis: int | None, reverse: bool) -> T:
        what = f"cum{kind}"
        if axis is None:
            if len(self._shape(x, what)) != 1:  # NumPy's own flattens it
                hint = f"write b.{what}(x, axis=0), or b.{what}(b.reshape(x, (-1,))) for all elements in a row"
                raise ShapeError(f"{what} runs along an axis, and none is given", hint, code="E301")
            axis = 0
        return self.apply(ops.Cumulate(kind, self._axis(x, axis, what), reverse), x)

    # fmt: off
    def cumsum(self, x: Any, axis: int | None = None, *, reverse: bool = False) -> T: return self._cumulate("sum", x, axis, reverse)
    def cumprod(self, x: Any, axis: int | None = None, *, reverse: bool = False) -> T: return self._cumulate("prod", x, axis, reverse)
    def cummax(self, x: Any, axis: int | None = None, *, reverse: bool = False) -> T: return self._cumulate("max", x, axis, reverse)
    def cummin(self, x: Any, axis: int | None = None, *, reverse: bool = False) -> T: return self._cumulate("min", x, axis, reverse)
    # fmt: on

    def sort(self, x: Any, axis: int = -1, *, descending: bool = False) -> T:
        """Sort along an axis; NaN counts as greatest."""
        return self.apply(ops.Sort(self._axis(x, axis, "sort"), flag(descending, "descending=")), x)

    def argsort(self, x: Any, axis: int = -1, *, descending: bool = False) -> T:
        """Return the indices that sort along an axis, stably."""
        return self.apply(ops.Sort(self._axis(x, axis, "argsort"), flag(descending, "descending="), indices=True), x)

    def top_k(self, x: Any, k: int, axis: int = -1) -> tuple[T, T]:
        """Return the k greatest along an axis, greatest first, and their indices."""
        at, count = self._axis(x, axis, "top_k"), integer(k, "top_k: k")
        return self.apply(ops.TopK(count, at), x), self.apply(ops.TopK(count, at, indices=True), x)

    # views and shapes

    def index(self, x: Any, key: Any) -> T:
        """Slice as NumPy's basic indexing does: integers, slices, ``...`` and None.

        Unlike NumPy, a range that reaches beyond a named size is refused, not clipped: ``x[1:100]`` on a size ``n``
        is an error when ``n`` turns out to be less than 100. On a known size it is clipped.
        """
        keys = list(key) if isinstance(key, tuple) else [key]
        shape = self._shape(x, "indexing")
        taken = sum(k is not None and k is not Ellipsis for k in keys)
        dots = [n for n, k in enumerate(keys) if k is Ellipsis]  # by identity: == on a tensor adds a node
        if len(dots) > 1 or taken > len(shape):
            raise ShapeError(f"index {value_text(key)} does not fit shape {shape}", code="E009")
        if not dots:
            keys.append(Ellipsis)
        at = dots[0] if dots else len(keys) - 1
        keys[at : at + 1] = [slice(None)] * (len(shape) - taken)
        ranges: list[tuple[Dim, Dim, int]] = []
        result: list[Dim] = []
        for k in keys:
            if k is None:
                result.append(1)
                continue
            size = shape[len(ranges)]
            found = index_range(k, size, len(ranges))
            ranges.append(found)
            if isinstance(k, slice):
                result.append(found[1])
        reshaped = result != [count for _, count, _ in ranges]
        if reshaped and all(r == (0, d, 1) for r, d in zip(ranges, shape, strict=True)):
            return self.reshape(x, result)
        sliced = self.apply(ops.Slice(tuple(ranges)), x)
        return self.reshape(sliced, result) if reshaped else sliced

    def reshape(self, x: Any, shape: Sequence[Dim]) -> T:
        """Give the elements another shape; one size may be -1."""
        given = _of_axes(shape, "reshape: a shape")
        sizes = tuple(-1 if isinstance(d, Integral) and d == -1 else dim(d) for d in given)
        return self.apply(ops.Reshape(sizes), x)

    def transpose(self, x: Any, order: Sequence[int] | None = None) -> T:
        """Reorder the axes; reverse them when no order is given."""
        rank = len(self._shape(x, "transpose"))
        given = range(rank)[::-1] if order is None else _of_axes(order, "transpose: an order of axes")
        return self.apply(ops.Transpose(tuple(normal_axis(a, rank, "transpose") for a in given)), x)

    def expand_dims(self, x: Any, axis: int) -> T:
        """Insert an axis of size 1."""
        shape = list(self._shape(x, "expand_dims"))
        shape.insert(normal_axis(axis, len(shape) + 1, "expand_dims"), 1)
        return self.reshape(x, shape)

    def squeeze(self, x: Any, axis: int) -> T:
        """Remove an axis of size 1."""
        shape = list(self._shape(x, "squeeze"))
        at = normal_axis(axis, len(shape), "squeeze")
        if shape[at] != 1:
            raise ShapeError(f"squeeze: axis {at} has size {shape[at]}, not 1", code="E015")
        return self.reshape(x, shape[:at] + shape[at + 1 :])

    def broadcast_to(self, x: Any, shape: Sequence[Dim]) -> T:
        """Repeat to a larger shape, aligned at the right as NumPy does."""
        sizes = tuple(dim(d) for d in _of_axes(shape, "broadcast_to: a shape"))
        rank = len(self._shape(x, "broadcast_to"))
        return self.apply(ops.Broadcast(sizes, tuple(range(len(sizes) - rank, len(sizes)))), x)

    def window(self, x: Any, axis: int, size: Dim, *, step: int = 1, dilation: int = 1) -> T:
        """Return all windows along an axis as one more axis at the end."""
        by, apart = (
            min(integer(n, f"window: a {word}"), LONGEST) for n, word in ((step, "step"), (dilation, "dilation"))
        )
        return self.apply(ops.Window(self._axis(x, axis, "window"), dim(size), by, apart), x)

    def overlap_add(self, x: Any, axis: int, length: Dim, *, step: int = 1, dilation: int = 1) -> T:
        """Put windows, which stand on the last axis, back along an axis of a length, and add up what overlaps.

        It turns :meth:`window` around, and is its gradient.
        """
        by, apart = (
            min(integer(n, f"overlap_add: a {word}"), LONGEST) for n, word in ((step, "step"), (dilation, "dilation"))
        )
        return self.apply(ops.OverlapAdd(self._axis(x, axis, "overlap_add"), dim(length), by, apart), x)

    def pad(self, x: Any, widths: Sequence[tuple[int, int]], value: Any = 0) -> T:
        """Surround with a value; ``widths`` holds (before, after) for every axis."""
        try:
            pairs = tuple((integer(a, "a width"), integer(b, "a width")) for a, b in widths)
        except (TypeError, ValueError):
            message = f"pad takes (before, after) for every axis, got {value_text(widths)}"
            raise ShapeError(message, "write [(1, 1), (0, 0)]", code="E016") from None
        return self.apply(ops.Pad(pairs), x, value)

    def concat(self, tensors: Sequence[Any], axis: int = 0) -> T:
        """Join tensors end to end along an axis."""
        each = _sequence(tensors, "concat: what is joined", "[x, y]")
        if not each:
            raise GraphError("concat needs at least one operand", code="E105")
        return self.apply(ops.Concat(self._axis(each[0], axis, "concat")), *each)

    def stack(self, tensors: Sequence[Any], axis: int = 0) -> T:
        """Join tensors along a new axis."""
        each = _sequence(tensors, "stack: what is joined", "[x, y]")
        shapes = [self._shape(t, "stack") for t in each]
        for n, shape in enumerate(shapes):
            pairs = zip(shape, shapes[0], strict=False)
            other = any(isinstance(i, int) and isinstance(j, int) and i != j for i, j in pairs)
            if len(shape) != len(shapes[0]) or other:
                message = f"stack: operand {n} has shape {shape}, the first one {shapes[0]}; all must have the same"
                raise ShapeError(message, "b.concat joins tensors along an axis that they have", code="E001")
        return self.concat([self.expand_dims(t, axis) for t in each], axis)

    def gather(self, x: Any, indices: Any, axis: int = 0, *, batch: int = 0) -> T:
        """Take indices along an axis, as ``numpy.take``; the first ``batch`` axes run together."""
        op = ops.Gather(self._axis(x, axis, "gather"), integer(batch, "gather: a number of batch axes"))
        return self.apply(op, x, indices)

    def scatter_add(self, x: Any, indices: Any, updates: Any, axis: int = 0, *, batch: int = 0) -> T:
        """Add updates to a copy of ``x`` at indices along an axis; repeated indices add up."""
        op = ops.ScatterAdd(self._axis(x, axis, "scatter_add"), integer(batch, "scatter_add: a number of batch axes"))
        return self.apply(op, x, indices, updates)

    def iota(self, size: Dim, dtype: Any = "int64") -> T:
        """Return the integers 0, 1, ... below ``size``, which may be symbolic."""
        return self.apply(ops.Iota(dim(size), dtype_name(dtype)))

    # element types

    def cast(self, x: Any, dtype: Any) -> T:
        """Convert to another dtype."""
        return self.apply(ops.Cast(dtype_name(dtype)), x)

    def stop_gradient(self, x: Any) -> T:
        """Return the same value as a constant: no gradient goes back to ``x`` through it.

        ``x + b.stop_gradient(b.rint(x) - x)`` rounds, and hands gradients straight through.
        """
        return self.apply(ops.StopGradient(), x)

    def quantize(
        self,
        x: Any,
        scale: Any,
        zero_point: Any,
        dtype: Any = "int8",
        *,
        axis: int | None = None,
        group: int | None = None,
    ) -> T:
        """Return ``round(x / scale) + zero_point`` clamped to an integer dtype, or to a kind of small numbers ("int4").

        Scales are scalars, one for each element of an ``axis``, or one for each ``group`` of so many elements of the last axis.
        """
        at = None if axis is None else self._axis(x, axis, "quantize")
        each = None if group is None else integer(group, "quantize: group")
        kind = dtype if isinstance(dtype, str) and dtype in PACKED else None
        held = dtype_name(dtype) if kind is None else KINDS[kind].dtype
        return self.apply(ops.Quantize(held, at, each, kind), x, scale, zero_point)

    def dequantize(
        self, x: Any, scale: Any, zero_point: Any, *, axis: int | None = None, group: int | None = None
    ) -> T:
        """Return ``(x - zero_point) * scale``; scales as :meth:`quantize` has them."""
        at = None if axis is None else self._axis(x, axis, "dequantize")
        each = None if group is None else integer(group, "dequantize: group")
        return self.apply(ops.Dequantize(at, each), x, scale, zero_point)

    def unpack(self, x: Any, kind: str, count: Dim) -> T:
        """Return the ``count`` small numbers of a kind ("int4", "binary", "e4m3") that bytes hold along the last axis."""
        return self.apply(ops.Unpack(kind, dim(count)), x)


def matmul_spec(left: Sequence[Any], right: Sequence[Any]) -> str:
    """Return the einsum that is NumPy's ``@`` of operands of these shapes.

    >>> matmul_spec((3, 4), (4,)), matmul_spec((2, 3, 4), (4, "n"))
    ('ij,j->i', '...ij,...jk->...ik')
    """
    if not left or not right:
        raise ShapeError("matmul does not take scalars", "use multiply", code="E024")
    inner = (left[-1], right[-1 if len(right) == 1 else -2])
    if inner[0] != inner[1] and 1 in inner:  # an einsum would broadcast it
        raise ShapeError(f"matmul: the inner sizes are {inner[0]} and {inner[1]}", code="E001")
    return _matmul_spec(len(left), len(right))


@cache
def _matmul_spec(left: int, right: int) -> str:
    batch = "..." if max(left, right) > 2 else ""
    first, i = ("j", "") if left == 1 else (f"{batch}ij", "i")
    second, k = ("j", "") if right == 1 else (f"{batch}jk", "k")
    return f"{first},{second}->{batch}{i}{k}"


def _sequence(value: Any, what: str, example: str = "(3,)") -> Sequence[Any]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        hint = f"write a tuple or a list, such as {example}"
        raise ShapeError(f"{what} must be a sequence, got {value_text(value)}", hint, code="E301")
    return value


def _of_axes(value: Any, what: str) -> Sequence[Any]:
    return of_axes(_sequence(value, what), what)


def _no_spec(equation: object, what: str) -> SpecError:
    return SpecError(f"an einsum spec is {what}, got {value_text(equation)}", "write 'ij,jk->ik'", code="E301")


for _kind in ops.REDUCTIONS:
    getattr(TensorMethods, _kind).__doc__ = f"Reduce by {_kind} over an axis, several, or all of them (axis=None)."
for _kind in ops.CUMULATIONS:
    getattr(TensorMethods, f"cum{_kind}").__doc__ = f"Return the running {_kind} along an axis, or from its end."
