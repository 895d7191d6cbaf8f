"""Views of tensors that never copy: ranges, indices, strides, reversals and windows over memory someone else owns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np

from ..diagnostics import value_text
from ..errors import ViewError, expect, expect_whole
from ..ir.sizes import integer
from .slices import SliceSpec, Spec, as_spec, known_places, merge, places
from .view_memory import Array, Window, aliased, refuse_cast, safe_operand, shifted, windows_of


@dataclass(frozen=True, slots=True, init=False, eq=False, repr=False)
class TensorView:
    """A part of an array, of another view, or of a tensor that is only named; it never copies.

    >>> base = np.arange(12.0).reshape(3, 4)
    >>> part = TensorView(base, [SliceSpec.Range(1, 3), SliceSpec.Index(2)])
    >>> part
    <TensorView of float64[3, 4] at [1:3, 2], shape [2]>
    >>> np.asarray(part), part.rank(), part.is_contiguous()
    (array([ 6., 10.]), 1, False)
    >>> part.update(np.add, 100).resolve(), base[2]
    (array([106., 110.]), array([  8.,   9., 110.,  11.]))
    >>> TensorView("weights", [SliceSpec.Range(10, 50), SliceSpec.Full]).to_index()
    (slice(10, 50, None), slice(None, None, None))
    """

    base: Any
    specs: tuple[SliceSpec, ...]
    base_shape: tuple[int, ...] | None
    offset: int
    window: Window | None

    def __init__(
        self,
        base: Any,
        specs: Iterable[Spec] = (),
        base_shape: Sequence[int] | None = None,
        offset: int = 0,
        window: Window | None = None,
    ) -> None:
        expect(specs, Iterable, "specs are a list, one for each axis", "write [SliceSpec.Range(0, 2)]")
        expect(() if base_shape is None else base_shape, Iterable, "base_shape= is a sequence of sizes", "write (2, 3)")
        expect(window, (Window, NoneType), "window= is a Window", "call view.windows(axis, size)")
        taken = tuple(as_spec(s) for s in specs)
        shape = None if base_shape is None else tuple(integer(d, "base_shape: a size") for d in base_shape)
        axes = len(taken) if shape is None else len(shape)
        if not isinstance(base, str | int):
            base = base if isinstance(base, TensorView) else _array(base)
            if shape not in (None, base.shape):
                raise ViewError(f"base_shape is {shape}, but the base has shape {base.shape}", code="E962")
            shape, axes = base.shape, base.rank() if isinstance(base, TensorView) else base.ndim
        if len(taken) > axes:
            raise ViewError(f"{len(taken)} specs [{_join(taken)}] for a tensor of {axes} axes", code="E962")
        taken += (SliceSpec.Full,) * (axes - len(taken))
        for field, value in zip(
            self.__slots__, (base, taken, shape, integer(offset, "an offset"), window), strict=True
        ):
            object.__setattr__(self, field, value)
        for axis, spec in enumerate(taken):  # both raise what is wrong
            known_places(spec) if shape is None else places(spec, shape[axis], axis)
        if self.window is not None and shape is not None:
            self.window.places(self._sliced_shape(shape)[self.window.axis])
        if self.offset and isinstance(self._root(), np.ndarray):
            self.resolve()  # checks the bounds

    def _sliced_shape(self, shape: Sequence[int]) -> list[int]:
        pairs = enumerate(zip(self.specs, shape, strict=True))
        return [len(places(spec, n, axis)) for axis, (spec, n) in pairs if spec.kind != "index"]

    def _root(self) -> Any:
        return self.base._root() if isinstance(self.base, TensorView) else self.base

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The sizes of the axes that are left; None where the base's shape is not known."""
        if self.base_shape is None:
            return None
        sizes, w = self._sliced_shape(self.base_shape), self.window
        if w is not None:
            sizes = [*sizes[: w.axis], w.places(sizes[w.axis]), *sizes[w.axis + 1 :], w.size]
        return tuple(sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the elements."""
        return self.resolve().dtype

    def rank(self) -> int:
        """Return the number of axes that are left."""
        return sum(s.kind != "index" for s in self.specs) + (self.window is not None)

    def is_contiguous(self) -> bool:
        """Tell whether the elements lie side by side; of a base that is not an array, judged by the specs alone."""
        if isinstance(self._root(), np.ndarray):
            return bool(self.resolve().flags.c_contiguous)
        if self.window is not None:
            return False
        flat = self._flat()
        specs = () if flat is None else flat.specs
        lead = next((n for n, s in enumerate(specs) if s.kind != "index"), len(specs))
        whole = all(s == SliceSpec.Full for s in specs[lead + 1 :])
        return flat is not None and whole and all(s.stride == 1 for s in specs[lead : lead + 1])

    def _flat(self) -> TensorView | None:
        """Return this view as one of the root, where specs alone can say it."""
        if not isinstance(self.base, TensorView):
            return self
        below = self.base._flat()
        return None if below is None or below.window is not None else _stack(below, self)

    def to_index(self) -> tuple[Any, ...]:
        """Return the view as an index: ``array[view.to_index()]``, and the same for tensors of a builder."""
        flat = self._flat()
        if flat is None or flat.window is not None or flat.offset:
            what = "an offset" if flat is not None and flat.offset else "windows"
            hint = "use view.resolve(array), or b.window(x, axis, size) in a graph"
            raise ViewError(f"a view with {what} is not an index: {self!r}", hint, code="E966")
        index = tuple(s.to_index() for s in flat.specs)
        # NumPy would copy a single element out, were it not for the dots
        return index if any(isinstance(i, slice) for i in index) else (*index, ...)

    def resolve(self, array: Any = None) -> Array:
        """Return the view as a NumPy array over the same memory; ``array`` stands for a base that is only named."""
        root = self._root() if array is None else _array(array)
        if not isinstance(root, np.ndarray):
            raise ViewError(f"tensor {root!r} is only named here", "give the array: view.resolve(array)", code="E967")
        return self._over(root)

    def _over(self, root: Array) -> Array:
        array = self.base._over(root) if isinstance(self.base, TensorView) else root
        if array.ndim != len(self.specs) or self.base_shape not in (None, array.shape):
            wanted = f"{len(self.specs)} axes" if self.base_shape is None else f"shape {list(self.base_shape)}"
            found = list(array.shape)
            raise ViewError(f"the view is of a tensor of {wanted}, the array has shape {found}", code="E962")
        for axis, spec in enumerate(self.specs):
            places(spec, array.shape[axis], axis)  # NumPy would clip what is out of range
        part = array[(*(s.to_index() for s in self.specs), ...)]
        part = shifted(part, self.offset, root)
        return part if self.window is None else windows_of(part, self.window)

    def compose(self, other: TensorView) -> TensorView:
        """Return the view of this view that ``other`` describes; ``other``'s own tensor plays no part.

        >>> every_second = TensorView("x", [SliceSpec.Strided(0, 100, 2)])
        >>> every_second.compose(TensorView("y", [SliceSpec.Range(10, 20)]))
        <TensorView of 'x' at [20:39:2]>
        """
        layers, below = [other], other.base
        while isinstance(below, TensorView) and below != self:  # TensorView(self, specs) says the same as its specs
            layers.append(below)
            below = below.base
        result = self
        for layer in reversed(layers):
            result = _stack(result, layer)
        return result

    def view(self, *specs: Spec) -> TensorView:
        """Return the view of this view that the specs say."""
        return _stack(self, TensorView(self, specs))

    def windowed(self, axis: int, size: int, step: int = 1, dilation: int = 1) -> TensorView:
        """Return all windows of a size along an axis, as one more axis at the end; they can only be read.

        >>> view(np.arange(5)).windowed(0, 3).resolve().tolist()
        [[0, 1, 2], [1, 2, 3], [2, 3, 4]]
        """
        if min(size, step, dilation) < 1:
            found = f"{size}, {step} and {dilation}"
            raise ViewError(f"a window needs size, step and dilation of at least 1, got {found}", code="E964")
        window = Window(_axis(axis, self.rank()), size, step, dilation)
        if self.window is None:
            return TensorView(self.base, self.specs, self.base_shape, self.offset, window)
        return TensorView(self, (SliceSpec.Full,) * self.rank(), window=window)

    def with_offset(self, n: int) -> TensorView:
        """Return the view whose start is ``n`` elements further in the base's memory, gaps between its elements included.

        >>> view(np.arange(6), slice(0, 2)).with_offset(3).resolve()
        array([3, 4])
        """
        return TensorView(self.base, self.specs, self.base_shape, self.offset + n, self.window)

    def update(self, ufunc: np.ufunc, *operands: Any) -> TensorView:
        """Replace every element by ``ufunc(element, *operands)``, in place or not at all."""
        if not isinstance(ufunc, np.ufunc) or ufunc.signature or ufunc.nout != 1 or ufunc.nin != 1 + len(operands):
            needed = f"an element-wise ufunc of {1 + len(operands)} operands and one result"
            raise ViewError(f"update needs {needed}, got {value_text(ufunc)}", code="E969")
        target = self.writable_array()
        given = [safe_operand(target, x, f"operand {n} of {ufunc.__name__}") for n, x in enumerate(operands, 1)]
        try:
            ufunc(target, *given, out=target, casting="same_kind")
        except (TypeError, OverflowError) as error:
            refuse_cast(target, error)
        return self

    def assign(self, values: Any) -> TensorView:
        """Replace the elements by values, in place or not at all."""
        target = self.writable_array()
        given = safe_operand(target, values, "the value")
        try:
            if not isinstance(given, np.ndarray):  # a Python number takes the target's dtype where that holds its kind
                given = np.asarray(given, dtype=np.result_type(target.dtype, given))
            if given is not target:
                np.copyto(target, given, casting="same_kind")
        except (TypeError, OverflowError) as error:
            refuse_cast(target, error)
        return self

    def writable_array(self) -> Array:
        """Return the view as an array to write into, or raise why writing would not be safe."""
        below: Any = self
        while isinstance(below, TensorView):
            if below.window is not None:
                message = "windows share their elements, so they cannot be written to"
                raise ViewError(message, "write to the base", code="E968")
            below = below.base
        target = self.resolve()
        if not target.flags.writeable:
            raise ViewError("the base is read-only", "view(array.copy(), ...) can be written to", code="E968")
        for array in (below, target):
            if aliased(array):
                how = f"(shape {list(array.shape)}, strides {list(array.strides)})"
                hint = "write to array.copy(), or to the array that was broadcast"
                raise ViewError(f"elements of the base share memory {how}", hint, code="E968")
        return target

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.resolve()
        if dtype is None or np.dtype(dtype) == array.dtype:
            return array.copy() if copy else array
        if copy is False:
            message = f"{array.dtype} elements cannot be seen as {np.dtype(dtype)} without a copy"
            raise ViewError(message, "leave out copy=False", code="E960")
        return array.astype(dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.resolve().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.resolve().__dlpack_device__()

    def _key(self) -> tuple[Any, ...]:
        base = self.base
        named = isinstance(base, str | int | TensorView)
        return (type(base), base if named else id(base), self.specs, self.base_shape, self.offset, self.window)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorView) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        base = self.base
        what = f"{base.dtype}{list(base.shape)}" if isinstance(base, np.ndarray) else repr(base)
        text = f"<TensorView of {what} at [{_join(self.specs)}]"
        if self.offset:
            text += f" offset {self.offset}"
        if self.window is not None:
            text += f" windows({', '.join(f'{k}={v}' for k, v in self.window._asdict().items())})"
        return text + ("" if self.shape is None else f", shape {list(self.shape)}") + ">"


def _join(specs: Iterable[SliceSpec]) -> str:
    return ", ".join(map(str, specs))


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ViewError(f"there is no axis {axis} in a tensor of {rank} axes", code="E971")
    return axis % rank


def _array(value: Any) -> Array:
    """Return an array over a value's own memory."""
    try:
        return np.asarray(value, copy=False)
    except (ValueError, TypeError) as error:
        kind = type(value).__name__
        raise ViewError(
            f"a {kind} has no memory to look at without a copy",
            "make the array first: np.asarray(value)",
            code="E960",
            context=[str(error).splitlines()[0]],
        ) from None


def _stack(below: TensorView, layer: TensorView) -> TensorView:
    """Return what a layer takes of the view below it, as one view where specs can say it."""
    if below.window is not None:
        return TensorView(below, layer.specs, offset=layer.offset, window=layer.window)
    if len(layer.specs) > below.rank():
        specs = f"{len(layer.specs)} specs [{_join(layer.specs)}]"
        raise ViewError(f"{specs} for a view of {below.rank()} axes: {below!r}", code="E962")
    inner = iter(layer.specs + (SliceSpec.Full,) * (below.rank() - len(layer.specs)))
    sizes = below.base_shape or (None,) * len(below.specs)
    merged = [
        outer if outer.kind == "index" else merge(outer, next(inner), size, axis)
        for axis, (outer, size) in enumerate(zip(below.specs, sizes, strict=True))
    ]
    return TensorView(below.base, tuple(merged), below.base_shape, below.offset + layer.offset, layer.window)


class ViewBuilder:
    """Builds a view axis by axis with chained calls; axes that are not named are taken whole.

    >>> ViewBuilder("activations", 3).range_dim(0, 10, 20).index_dim(1, 5).with_offset(100).build()
    <TensorView of 'activations' at [10:20, 5, :] offset 100>
    """

    __slots__ = ("_base", "_offset", "_specs")

    def __init__(self, tensor: Any, rank: int | None = None) -> None:
        if not isinstance(tensor, str | int | TensorView):
            tensor = _array(tensor)
        known = tensor.rank() if isinstance(tensor, TensorView) else getattr(tensor, "ndim", rank)
        if known is None:
            hint = f"ViewBuilder({tensor!r}, rank)"
            raise ViewError(f"the rank of tensor {tensor!r} is not known", hint, code="E962")
        expect_whole("a rank", known)
        if rank not in (None, known):
            raise ViewError(f"the rank is given as {rank}, but the tensor has {known} axes", code="E962")
        self._base, self._specs, self._offset = tensor, [SliceSpec.Full] * known, 0

    def _put(self, axis: int, spec: SliceSpec) -> Self:
        self._specs[_axis(axis, len(self._specs))] = spec
        return self

    def range_dim(self, axis: int, start: int | range | slice | None, end: int | None = None) -> Self:
        """Take a range of an axis."""
        return self._put(axis, SliceSpec.Range(start, end))

    def index_dim(self, axis: int, i: int) -> Self:
        """Take one element of an axis, which is dropped."""
        return self._put(axis, SliceSpec.Index(i))

    def stride_dim(self, axis: int, start: int | None, end: int | None, stride: int) -> Self:
        """Take every ``stride``-th element of an axis."""
        return self._put(axis, SliceSpec.Strided(start, end, stride))

    def reverse_dim(self, axis: int) -> Self:
        """Take an axis backwards."""
        return self._put(axis, SliceSpec.Reverse)

    def with_offset(self, n: int) -> Self:
        """Start ``n`` elements further in the base's memory."""
        self._offset += n
        return self

    def build(self) -> TensorView:
        """Return the view."""
        return TensorView(self._base, tuple(self._specs), offset=self._offset)


@runtime_checkable
class TensorViewable(Protocol):
    """Anything with a method ``view`` that returns views of itself; NumPy arrays match too, but only by the name of their method.

    >>> isinstance(view(np.arange(3)), TensorViewable)
    True
    """

    def view(self, *specs: Spec) -> TensorView:
        """Return the view that the specs say."""
        ...


def view(tensor: Any, *specs: Spec) -> TensorView:
    """Return a view of an array, of another view, or of a tensor that is only named.

    >>> view(np.arange(10), slice(2, 8)).view(SliceSpec.Reverse).resolve()
    array([7, 6, 5, 4, 3, 2])
    """
    return tensor.view(*specs) if isinstance(tensor, TensorView) else TensorView(tensor, specs)
