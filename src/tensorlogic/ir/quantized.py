"""Quantized tensors: small numbers packed into bytes, with the scales that say what they stand for.

The number q stands for ``(q - zero_point) * scale``. A value is rounded to the nearest number, a tie to the even one, and what
is beyond the range to its end. Zero is always among the values that numbers stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import numpy as np

from ..diagnostics import value_text
from ..errors import DTypeError, InputError, ShapeError, expect, expect_whole
from .ops import Dequantize, Quantize
from .packed_numbers import KINDS, NumberKind, pack_numbers, unpack_numbers
from .quantize_arrays import dequantize_array, quantize_array
from .quantize_scales import scales_of
from .types import FLOATS, Array, dtype_name, normal_axis, plain_array


class QuantizationType(Enum):
    """The kinds of small numbers that tensors are quantized to.

    >>> [(t.name, t.bits) for t in QuantizationType][:4]
    [('INT8', 8), ('UINT8', 8), ('INT4', 4), ('INT2', 2)]
    >>> QuantizationType.FP8 is QuantizationType.FP8_E4M3
    True
    """

    INT8 = "int8"
    UINT8 = "uint8"
    INT4 = "int4"
    INT2 = "int2"
    FP8_E4M3 = "e4m3"
    FP8_E5M2 = "e5m2"
    TERNARY = "ternary"
    BINARY = "binary"
    FP8 = "e4m3"  # noqa: PIE796 - another name of the one that weights are mostly kept in

    @property
    def row(self) -> NumberKind:
        """What is known of the numbers: their range, and what holds them."""
        return KINDS[self.value]

    @property
    def bits(self) -> int:
        """The bits that one number takes."""
        return self.row.bits

    @property
    def is_float(self) -> bool:
        """Whether the numbers are floats of 8 bits."""
        return self.row.dtype == "float32"


class QuantizationGranularity(msgspec.Struct, frozen=True):
    """Which elements share a scale: ``PER_TENSOR`` all, ``PER_CHANNEL(axis)`` a slice, ``PER_GROUP(size)`` some of the last axis.

    ``PER_CHANNEL()`` leaves the axis to who quantizes: of a weight it is the one that the product keeps. A last group may be
    smaller than the others.

    >>> print(QuantizationGranularity.PER_CHANNEL(1))
    per channel of axis 1
    >>> print(QuantizationGranularity.PER_GROUP(32))
    per group of 32
    """

    PER_TENSOR: ClassVar[QuantizationGranularity]
    PER_CHANNEL: ClassVar[Callable[..., QuantizationGranularity]]
    PER_GROUP: ClassVar[Callable[..., QuantizationGranularity]]
    word: str = "tensor"
    axis: int | None = None
    size: int | None = None

    def __str__(self) -> str:
        if self.word == "group":
            return f"per group of {self.size}"
        return f"per {self.word}" + ("" if self.axis is None else f" of axis {self.axis}")


def _per_channel(axis: int | None = None) -> QuantizationGranularity:
    """Return the granularity of one scale for each slice along an axis."""
    if axis is not None and (isinstance(axis, bool) or not isinstance(axis, int)):
        raise InputError(f"an axis is a whole number, got {value_text(axis)}", "write PER_CHANNEL(0)", code="E310")
    return QuantizationGranularity("channel", axis)


def _per_group(size: int = 32) -> QuantizationGranularity:
    """Return the granularity of one scale for every so many elements of the last axis."""
    expect_whole("the size of a group", size, 1, "write PER_GROUP(32)")
    return QuantizationGranularity("group", None, size)


QuantizationGranularity.PER_TENSOR = QuantizationGranularity()
QuantizationGranularity.PER_CHANNEL = staticmethod(_per_channel)
QuantizationGranularity.PER_GROUP = staticmethod(_per_group)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class QuantizedTensor:
    """A tensor as packed small numbers with scales and zero points. ``np.asarray`` of it is what it stands for.

    >>> rows = QuantizationGranularity.PER_CHANNEL(0)
    >>> t = QuantizedTensor.of([[0.7, -0.4, 0.1], [0.0, 0.2, -0.2]], QuantizationType.INT4, rows)
    >>> t
    <QuantizedTensor int4[2, 3] per channel of axis 0, 12 bytes>
    >>> t.numbers().tolist()
    [[7, -4, 1], [0, 7, -7]]
    >>> np.asarray(t)
    array([[ 0.7, -0.4,  0.1],
           [ 0. ,  0.2, -0.2]], dtype=float32)
    """

    packed: Array
    kind: str
    shape: tuple[int, ...]
    scales: Array
    zero_points: Array
    axis: int | None = None
    group: int | None = None

    @classmethod
    def of(
        cls,
        array: Any,
        type: QuantizationType = QuantizationType.INT8,
        granularity: QuantizationGranularity = QuantizationGranularity.PER_TENSOR,
        *,
        symmetric: bool = True,
        search: bool = False,
        name: str = "",
    ) -> QuantizedTensor:
        """Quantize an array of floats; ``search`` seeks, for each scale, the one with the least squared error.

        The error of a NaN or an infinity names the tensor by ``name``. Where all values of a scale are 0 the numbers are 0, or
        stand for less than 1e-37 where a kind has no 0.
        """
        expect(type, QuantizationType, "a QuantizationType is expected", "write QuantizationType.INT8")
        values = checked_floats(array, name)
        axis, group = placed(granularity, values.shape)
        scales, zeros = scales_of(values, type.value, axis, group, symmetric=symmetric, search=search)
        return cls.rounded(values, type.value, scales, zeros, axis, group)

    @classmethod
    def rounded(
        cls, values: Array, kind: str, scales: Array, zeros: Array, axis: int | None, group: int | None
    ) -> QuantizedTensor:
        """Round values to the numbers of a kind, by scales that are known."""
        op = Quantize(KINDS[kind].dtype, axis, group, kind)
        return cls.from_numbers(quantize_array(values, scales, zeros, op), kind, scales, zeros, axis, group)

    @classmethod
    def from_numbers(
        cls, numbers: Array, kind: str, scales: Array, zeros: Array, axis: int | None, group: int | None
    ) -> QuantizedTensor:
        """Pack numbers of a kind that are at hand."""
        flat = numbers.reshape(1) if numbers.ndim == 0 else numbers
        return cls(pack_numbers(flat, kind), kind, numbers.shape, scales, zeros, axis, group)

    def numbers(self) -> Array:
        """Return the numbers unpacked, as int8, uint8 or float32."""
        count = self.shape[-1] if self.shape else 1
        return unpack_numbers(self.packed, self.kind, count).reshape(self.shape)

    def dequantize(self, dtype: Any = "float32") -> Array:
        """Return the values that the numbers stand for."""
        name = dtype_name(dtype)
        if name not in FLOATS:
            raise DTypeError(f"a tensor is dequantized to floats, not to {name}", "use 'float32'", code="E121")
        op = Dequantize(self.axis, self.group)
        return dequantize_array(self.numbers(), self.scales, self.zero_points, op, name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        values = self.dequantize()
        return values if dtype is None else values.astype(dtype)

    @property
    def dtype(self) -> Any:
        """The dtype of what it stands for."""
        return np.dtype("float32")

    @property
    def granularity(self) -> QuantizationGranularity:
        """Which elements share a scale."""
        if self.group is not None:
            return QuantizationGranularity.PER_GROUP(self.group)
        tensor = QuantizationGranularity.PER_TENSOR
        return tensor if self.axis is None else QuantizationGranularity.PER_CHANNEL(self.axis)

    @property
    def nbytes(self) -> int:
        """The bytes of the packed numbers, the scales, and the zero points where there are any."""
        zeros = self.zero_points.nbytes if self.zero_points.any() else 0
        return int(self.packed.nbytes + self.scales.nbytes + zeros)

    def __repr__(self) -> str:
        return f"<QuantizedTensor {self.kind}{list(self.shape)} {self.granularity}, {self.nbytes:,} bytes>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, QuantizedTensor):
            return NotImplemented
        arrays = ((self.packed, other.packed), (self.scales, other.scales), (self.zero_points, other.zero_points))
        facts = [(t.kind, t.shape, t.axis, t.group) for t in (self, other)]
        return facts[0] == facts[1] and all(np.array_equal(a, b) for a, b in arrays)

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    def save(self, path: str | Path) -> None:
        """Write the tensor as a safetensors file."""
        from .quantized_files import save_quantized

        save_quantized({"tensor": self}, path)

    @classmethod
    def load(cls, path: str | Path) -> QuantizedTensor:
        """Read a tensor that :meth:`save` wrote."""
        from .quantized_files import load_quantized

        return next(iter(load_quantized(path).values()))


def checked_floats(array: Any, name: str = "") -> Array:
    """Return an array of finite floats, or say which value is none; ``name`` is what to call it.

    >>> checked_floats([1.0, 2.0])
    array([1., 2.], dtype=float32)
    """
    values = plain_array(array)
    what = f"the tensor {name!r}" if name else "the tensor"
    if str(values.dtype) not in FLOATS:
        hint = "quantize the floats that it was made of, or cast it: x.astype('float32')"
        raise DTypeError(f"{what} is of {values.dtype}; only floats are quantized", hint, code="E320")
    with np.errstate(over="ignore"):  # beyond float32 is infinite, and told so
        values = values.astype(np.float32, copy=False)
    bad = ~np.isfinite(values)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        found = (
            f"{int(bad.sum()):,} of {values.size:,} values of {what} are NaN or infinite, the first at {list(place)}"
        )
        hint = "find out where it comes from: tensorlogic.debug.TensorInspector"
        raise InputError(f"{found}: {values[place]}", hint, code="E321")
    return values


def placed(granularity: QuantizationGranularity, shape: tuple[int, ...]) -> tuple[int | None, int | None]:
    """Return the axis and the group of a granularity for a tensor of some shape."""
    expect(
        granularity, QuantizationGranularity, "a granularity is expected", "write QuantizationGranularity.PER_TENSOR"
    )
    if granularity.word == "tensor":
        return None, None
    if not shape:
        raise ShapeError(f"a scalar has no axis for scales {granularity}", "use PER_TENSOR", code="E319")
    if granularity.word == "group":
        return None, min(granularity.size or 1, max(shape[-1], 1))
    return normal_axis(granularity.axis or 0, len(shape), str(granularity)), None
