"""BitTensor: truth values packed 64 to a word, as an array type for those who want to stay packed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..diagnostics import bytes_text
from ..errors import DTypeError, ShapeError, SpecError, expect
from ..ir import spec
from ..ir.spec import Labels
from . import packed
from .bitjoin import Factor, Sizes, own_labels, planned
from .packed import Words


class TruthTensor:
    """What tensors of truth values share that are not held as a NumPy array: bits, and sparse ones."""

    __slots__ = ("_shape",)
    __array_priority__ = 1000  # so that NumPy leaves & | ^ - @ == to us
    _shape: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self._shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """The number of places, true or not."""
        return math.prod(self._shape)

    @property
    def dtype(self) -> np.dtype[np.bool_]:
        """The dtype of the NumPy array it turns into: bool."""
        return np.dtype(np.bool_)

    def _checked_axes(self, order: tuple[Any, ...]) -> tuple[int, ...]:
        rank = self.ndim
        for axis in order:
            expect(axis, (int, np.integer), "axes are whole numbers", f"such as {tuple(range(rank))[::-1]}")
        axes = tuple(int(a) + rank if a < 0 else int(a) for a in order) if order else tuple(range(rank))[::-1]
        if sorted(axes) != list(range(rank)):
            hint = f"such as {tuple(range(rank))[::-1]}"
            raise ShapeError(f"{order} does not name each of {rank} axes once", hint, code="E422")
        return axes

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("a tensor without axes has no length")
        return self._shape[0]


class BitTensor(TruthTensor):
    """A tensor of truth values, 64 to a word along its last axis; it does not change.

    It is made of anything NumPy can read (what is not zero is true), and turns back into a NumPy array wherever one is
    expected, so that it can be given to an executor.

    >>> import numpy as np
    >>> parent = BitTensor([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    >>> parent
    BitTensor(shape=(3, 3), 2 set, 24 B)
    >>> np.asarray(parent @ parent)
    array([[False, False,  True],
           [False, False, False],
           [False, False, False]])
    >>> (parent | parent.T).sum(), parent.any(axis=0).tolist()
    (4, [False, True, True])
    """

    __slots__ = ("_words",)
    layout = "bits"
    __hash__ = None  # type: ignore[assignment]  # == compares element by element
    _words: Words

    def __new__(cls, values: Any) -> BitTensor:
        """Pack values; a BitTensor is taken as it is."""
        if isinstance(values, BitTensor):
            return values
        array = np.asarray(values)
        if array.dtype.kind not in "biuf":
            hint = "give truth values or numbers, such as np.asarray(x, dtype=bool)"
            raise DTypeError(f"bits cannot be made of {array.dtype}", hint, code="E412")
        return cls.of(packed.pack(array), array.shape)

    @classmethod
    def from_array(cls, values: Any) -> BitTensor:
        """Pack an array; what is not zero is true."""
        return cls(values)

    @classmethod
    def of(cls, words: Words, shape: Sequence[int]) -> BitTensor:
        """Wrap words that are packed already: bit j of a row in word j // 64, padding bits zero."""
        shape = tuple(int(n) for n in shape)
        expected = (*shape[:-1], packed.width(shape[-1] if shape else 1))
        if words.shape != expected or words.dtype != np.uint64:
            message = f"bits of shape {shape} are words of shape {expected}, not {words.dtype} of {words.shape}"
            raise ShapeError(message, code="E420")
        self = super().__new__(cls)
        self._shape, self._words = shape, words.view()
        self._words.flags.writeable = False
        return self

    @property
    def words(self) -> Words:
        """The words, which cannot be written to."""
        return self._words

    @property
    def nbytes(self) -> int:
        """The bytes that the words take."""
        return int(self._words.nbytes)

    @property
    def T(self) -> BitTensor:  # noqa: N802 - as NumPy calls it
        """The tensor with its axes in reverse."""
        return self.transpose()

    @property
    def mT(self) -> BitTensor:  # noqa: N802 - as NumPy calls it
        """The tensor with its last two axes exchanged."""
        rank = self.ndim
        if rank < 2:
            message = f"a matrix is needed, but the shape is {self._shape}"
            raise ShapeError(message, "write .T for fewer axes", code="E421")
        return self.transpose(*range(rank - 2), rank - 1, rank - 2)

    def transpose(self, *order: int) -> BitTensor:
        """Return the axes in another order, in reverse where none is given."""
        axes = self._checked_axes(order)
        words = packed.permute(self._words, self._shape, axes)
        return BitTensor.of(words, [self._shape[a] for a in axes])

    def reshape(self, shape: Sequence[int]) -> BitTensor:
        """Return the same values under another shape; words move only where the last axis changes."""
        shape = tuple(shape)
        if shape == self._shape:
            return self
        if self._shape and shape and shape[-1] == self._shape[-1] and math.prod(shape) == self.size:
            return BitTensor.of(self._words.reshape((*shape[:-1], self._words.shape[-1])), shape)
        return BitTensor(np.asarray(self).reshape(shape))

    def any(self, axis: int | tuple[int, ...] | None = None) -> BitTensor:
        """Tell where any value along some axes is true; all axes where none is named."""
        return self._reduced(axis, every=False)

    def all(self, axis: int | tuple[int, ...] | None = None) -> BitTensor:
        """Tell where every value along some axes is true; all axes where none is named."""
        return self._reduced(axis, every=True)

    def _reduced(self, axis: int | tuple[int, ...] | None, every: bool) -> BitTensor:
        axes = self._axes(axis)
        kept = [n for a, n in enumerate(self._shape) if a not in axes]
        return BitTensor.of(packed.reduce(self._words, self._shape, axes, every), kept)

    def _axes(self, axis: int | tuple[int, ...] | None) -> tuple[int, ...]:
        rank = self.ndim
        given = tuple(range(rank)) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        axes = tuple(a + rank if a < 0 else a for a in given)
        if any(not 0 <= a < rank for a in axes) or len(set(axes)) < len(axes):
            raise ShapeError(f"axis {axis} is not one of the {rank} of shape {self._shape}", code="E423")
        return axes

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Any:
        """Count the true values: all of them as an integer, or along some axes as an array."""
        axes = self._axes(axis)
        if len(axes) == self.ndim:
            return packed.count(self._words)
        if axes == (self.ndim - 1,):
            return np.bitwise_count(self._words).sum(axis=-1, dtype=np.int64)
        return np.asarray(self).sum(axis=axes)

    def diagonal(self) -> BitTensor:
        """Return the diagonal of the last two axes."""
        if self.ndim < 2 or self._shape[-1] != self._shape[-2]:
            raise ShapeError(f"a square matrix is needed, but the shape is {self._shape}", code="E424")
        return BitTensor.of(packed.diagonal(self._words, self._shape[-1]), self._shape[:-1])

    def matmul(self, other: Any) -> BitTensor:
        """Join and project: true where some k has both ``self[..., i, k]`` and ``other[..., k, j]``."""
        a, b = self, BitTensor(other)
        if not a.ndim or not b.ndim:
            raise ShapeError("a product of matrices needs axes on both sides", "write a & b", code="E425")
        left = "k" if a.ndim == 1 else "...ik"
        right = "k" if b.ndim == 1 else "...kj"
        output = "..." + ("i" if a.ndim > 1 else "") + ("j" if b.ndim > 1 else "")
        return BitTensor.einsum(f"{left},{right}->{output}", a, b)

    @staticmethod
    def einsum(equation: str, *operands: Any) -> BitTensor:
        """Contract one or two tensors over labels: true where some value of the labels that vanish makes all of them true.

        >>> edge = BitTensor([[0, 1], [1, 0]])
        >>> BitTensor.einsum("xy,yz->xz", edge, edge).tolist()
        [[True, False], [False, True]]
        """
        tensors = [BitTensor(x) for x in operands]
        form = spec.expand(spec.parse(equation), tuple(t.ndim for t in tensors))
        if len(tensors) not in (1, 2):
            message = f"{equation} has {len(tensors)} operands; bits are contracted one or two at a time"
            hint = "contract two of them first, or run a graph: it finds a good order"
            raise SpecError(message, hint, code="E426")
        sizes: Sizes = {}
        for own, t in zip(form.inputs, tensors, strict=True):
            for label, n in zip(own, t.shape, strict=True):
                if sizes.setdefault(label, n) != n and n != 1:
                    if sizes[label] != 1:
                        raise ShapeError(f"index {label!r} is {sizes[label]} and {n} in {equation}", code="E427")
                    sizes[label] = n
        kept = [own_labels(t.words, t.shape, own, sizes) for own, t in zip(form.inputs, tensors, strict=True)]
        return contract(kept, form.output, sizes)

    def tolist(self) -> Any:
        """Return the truth values as nested lists."""
        return np.asarray(self).tolist()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("packed bits cannot become a NumPy array without a copy")
        array = packed.unpack(self._words, self._shape[-1] if self._shape else 1).reshape(self._shape)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        keys = key if isinstance(key, tuple) else (key,)
        plain = all(isinstance(k, int | slice) and not isinstance(k, bool) for k in keys)
        if plain and (len(keys) < self.ndim or (len(keys) == self.ndim > 1 and keys[-1] == slice(None))):
            made = self._words[keys]  # the last axis stays whole
            return BitTensor.of(np.ascontiguousarray(made), (*made.shape[:-1], self._shape[-1]))
        if plain and len(keys) == self.ndim > 1 and isinstance(keys[-1], int) and 0 <= keys[-1] < self._shape[-1]:
            bits = self._words[(*keys[:-1], keys[-1] >> 6)] >> np.uint64(keys[-1] & 63) & np.uint64(1)
            return BitTensor(bits) if np.ndim(bits) else bool(bits)
        found = np.asarray(self)[key]
        return BitTensor(found) if np.ndim(found) else bool(found)

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"a tensor of shape {self._shape} is neither true nor false; write .any() or .all()")
        return bool(self._words.any())

    def _with(self, other: Any, function: Callable[[Words, Words], Words]) -> BitTensor:
        b = BitTensor(other)
        return combine(function, self, b)

    def __and__(self, other: Any) -> BitTensor:
        return self._with(other, np.bitwise_and)

    def __or__(self, other: Any) -> BitTensor:
        return self._with(other, np.bitwise_or)

    def __xor__(self, other: Any) -> BitTensor:
        return self._with(other, np.bitwise_xor)

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__

    def __invert__(self) -> BitTensor:
        return BitTensor.of(~self._words & packed.ones(self._shape[-1] if self._shape else 1), self._shape)

    def __eq__(self, other: object) -> BitTensor:  # type: ignore[override]
        return ~(self ^ other)

    def __ne__(self, other: object) -> BitTensor:  # type: ignore[override]
        return self ^ other

    def __matmul__(self, other: Any) -> BitTensor:
        return self.matmul(other)

    def __rmatmul__(self, other: Any) -> BitTensor:
        return BitTensor(other).matmul(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return BitTensor.of, (self._words, self._shape)

    def __repr__(self) -> str:
        return f"BitTensor(shape={self._shape}, {self.sum():,} set, {bytes_text(self.nbytes)})"


def wrap(words: Words, shape: tuple[int, ...]) -> BitTensor:
    """Make a tensor of words that are known to fit the shape."""
    self = object.__new__(BitTensor)
    self._shape, self._words = shape, words.view()
    self._words.flags.writeable = False
    return self


def combine(function: Callable[[Words, Words], Words], a: BitTensor, b: BitTensor) -> BitTensor:
    """Combine two tensors bit by bit, by a function that keeps zero bits zero, with NumPy's broadcasting."""
    if a.shape == b.shape:
        return wrap(function(a.words, b.words), a.shape)
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise ShapeError(f"shapes {a.shape} and {b.shape} do not fit each other", code="E428") from None
    row = shape[-1:]
    parts = [
        x.words if x.shape[-1:] == row else packed.broadcast_words(x.words, x.shape, (*x.shape[:-1], *row))
        for x in (a, b)
    ]
    return wrap(function(parts[0], parts[1]), shape)


def contract(factors: Sequence[Factor], output: Labels, sizes: Sizes) -> BitTensor:
    """Contract one or two factors: or over the labels that are not in the output, of and."""
    run = planned(tuple(own for _, own in factors), output, tuple(sizes.items()))
    return wrap(run(*[words for words, _ in factors]), tuple(sizes[x] for x in output))
