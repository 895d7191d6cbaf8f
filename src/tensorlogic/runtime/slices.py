"""What a view takes of an axis: ranges, indices, strides and reversals, and how they compose."""

from __future__ import annotations

import operator
from typing import ClassVar

import msgspec
import numpy as np

from ..diagnostics import value_text
from ..errors import ViewError


class SliceSpec(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """What a view takes of one axis; numbers count as Python's do, but past the end is an error, never clipped.

    >>> SliceSpec.Range(10, 50), SliceSpec.Index(42), SliceSpec.Strided(0, 100, 2), SliceSpec.Full, SliceSpec.Reverse
    (SliceSpec.Range(10, 50), SliceSpec.Index(42), SliceSpec.Strided(0, 100, 2), SliceSpec.Full, SliceSpec.Reverse)
    >>> SliceSpec.Range(range(10, 50)) == SliceSpec.Range(slice(10, 50)) == SliceSpec.Range(10, 50)
    True
    """

    kind: str
    start: int | None = None  # where an Index stands, too
    end: int | None = None
    stride: int = 1

    Full: ClassVar[SliceSpec]
    Reverse: ClassVar[SliceSpec]

    @classmethod
    def Range(cls, start: int | range | slice | None, end: int | None = None) -> SliceSpec:  # noqa: N802
        """Take the elements from ``start`` to before ``end``; None is the axis's own end."""
        if isinstance(start, range | slice):
            first, last, step = start.start, start.stop, start.step
            if step not in (None, 1):
                hint = f"SliceSpec.Strided({first}, {last}, {step})"
                raise ViewError(f"a Range has step 1, got {start}", hint, code="E970")
            start, end = first, last
        return cls("range", _integer(start), _integer(end))

    @classmethod
    def Index(cls, i: int) -> SliceSpec:  # noqa: N802
        """Take one element, and drop the axis."""
        return cls("index", operator.index(i))

    @classmethod
    def Strided(cls, start: int | None, end: int | None, stride: int) -> SliceSpec:  # noqa: N802
        """Take every ``stride``-th element from ``start`` to before ``end``; a negative stride goes backwards."""
        if stride == 0:
            hint = "use Index for one element"
            raise ViewError(f"Strided({start}, {end}, 0): a stride cannot be 0", hint, code="E970")
        return cls("strided", _integer(start), _integer(end), operator.index(stride))

    def to_index(self) -> int | slice:
        """Return what stands for this in square brackets."""
        if self.kind == "index":
            assert self.start is not None
            return self.start
        return slice(self.start, self.end, None if self.stride == 1 else self.stride)

    def __str__(self) -> str:
        if self.kind == "index":
            return str(self.start)
        start, end = ("" if n is None else str(n) for n in (self.start, self.end))
        return f"{start}:{end}" + (f":{self.stride}" if self.stride != 1 else "")

    def __repr__(self) -> str:
        numbers = (self.start, self.end, self.stride)[: {"index": 1, "range": 2, "strided": 3}.get(self.kind, 0)]
        return f"SliceSpec.{self.kind.capitalize()}" + (f"({', '.join(map(str, numbers))})" if numbers else "")


Spec = SliceSpec | int | slice | range
SliceSpec.Full = SliceSpec("full")
SliceSpec.Reverse = SliceSpec("reverse", stride=-1)


def _integer(value: int | None) -> int | None:
    return None if value is None else operator.index(value)


def as_spec(given: Spec) -> SliceSpec:
    """Return the spec of an integer, a slice or a range.

    >>> as_spec(3), as_spec(slice(2, None)), as_spec(range(8, -1, -2))
    (SliceSpec.Index(3), SliceSpec.Range(2, None), SliceSpec.Strided(8, None, -2))
    """
    match given:
        case SliceSpec():
            return given
        case slice(start=None, stop=None, step=None | 1):
            return SliceSpec.Full
        case slice(start=None, stop=None, step=-1):
            return SliceSpec.Reverse
        case slice(step=None | 1):
            return SliceSpec.Range(given)
        case slice():
            return SliceSpec.Strided(given.start, given.stop, given.step)
        case range():  # unlike a slice's, its numbers never count from the end
            return _spec(given)
        case bool():
            pass
        case _ if hasattr(given, "__index__") and np.ndim(given) == 0:
            return SliceSpec.Index(given)
    hint = "use an integer, a slice or a SliceSpec; array.take(indices, axis) makes the copy"
    raise ViewError(f"{value_text(given)} cannot select along an axis without a copy", hint, code="E960")


def places(spec: SliceSpec, size: int, axis: int) -> range:
    """Return the elements that a spec takes of an axis, or raise where the axis does not have them.

    >>> places(SliceSpec.Strided(-2, None, -3), 10, 0)
    range(8, -1, -3)
    """
    if spec.kind == "index":
        place = spec.start or 0
        if not -size <= place < size:
            raise ViewError(f"index {value_text(place)} is out of range for axis {axis} of size {size}", code="E961")
        return range(place % size, place % size + 1)
    step = spec.stride
    low, high = (0, size) if step > 0 else (-1, size - 1)  # where a bound may stand
    first, last = (low, high) if step > 0 else (high, low)
    start = first if spec.start is None else spec.start + size * (spec.start < 0)
    end = last if spec.end is None else spec.end + size * (spec.end < 0)
    if not (low <= start <= high and low <= end <= high):
        hint = f"start and end may be {max(low, 0)} to {high}" if size else "the axis has no elements: use Full"
        raise ViewError(f"{value_text(spec)} is out of range for axis {axis} of size {size}", hint, code="E961")
    if (end - start) * step < 0:
        hint = f"exchange them, or write Strided({spec.start}, {spec.end}, {value_text(-step)})"
        raise ViewError(
            f"{value_text(spec)} of axis {axis} of size {size} runs from {start} away from {end}", hint, code="E961"
        )
    return range(start, end, step)


def known_places(spec: SliceSpec) -> range | None:
    """Return the elements (negative: from the end) taken of an axis of unknown size; None where that decides on them."""
    if spec.kind in ("full", "reverse"):
        return None
    if spec.kind == "index":
        return range(spec.start or 0, (spec.start or 0) + 1)
    ahead = spec.stride > 0
    start, end = ((0 if ahead else -1) if n is None else n for n in (spec.start, spec.end))
    if (start >= 0) != (not ahead if spec.end is None else end >= 0):
        return None
    if (end - start) * spec.stride < 0:
        raise ViewError(
            f"{value_text(spec)} runs from {value_text(start)} away from {value_text(end)}",
            "exchange start and end",
            code="E961",
        )
    return range(start, end, spec.stride)


def _spec(taken: range, size: int | None = None) -> SliceSpec:
    """Return the spec that takes the given elements, in its simplest form."""
    if len(taken) == size and (abs(taken.step) == 1 or size < 2):
        return SliceSpec.Full if taken.step == 1 or size < 2 else SliceSpec.Reverse
    if not taken:
        return SliceSpec.Range(0, 0)
    step = 1 if len(taken) == 1 else taken.step
    past = taken[-1] + (1 if step > 0 else -1)
    end = None if past == (-1 if taken.start >= 0 else 0) else past  # which would count from the other end
    return SliceSpec.Range(taken.start, end) if step == 1 else SliceSpec.Strided(taken.start, end, step)


def merge(outer: SliceSpec, inner: SliceSpec, size: int | None, axis: int) -> SliceSpec:
    """Return the spec that takes ``inner`` of what ``outer`` takes of an axis."""
    if inner == SliceSpec.Full:
        return outer
    if outer == SliceSpec.Full:
        return inner
    taken = known_places(outer) if size is None else places(outer, size, axis)
    if taken is not None:
        chosen = places(inner, len(taken), axis)
        if inner.kind == "index":
            return SliceSpec.Index(taken[chosen.start])
        start = taken.start + chosen.start * taken.step
        return _spec(range(start, start + len(chosen) * chosen.step * taken.step, chosen.step * taken.step), size)
    mirrored = known_places(inner)
    if outer == SliceSpec.Reverse and inner == SliceSpec.Reverse:
        return SliceSpec.Full
    if outer == SliceSpec.Reverse and mirrored is not None:  # element i from one end is element ~i from the other
        if inner.kind == "index":
            return SliceSpec.Index(~mirrored.start)
        return _spec(range(~mirrored.start, ~mirrored.stop, -mirrored.step))
    hint = "give the base's shape, TensorView(base, specs, base_shape=(...)), or count from one end only"
    raise ViewError(
        f"{value_text(inner)} of {value_text(outer)} depends on the size of axis {axis}, which is unknown",
        hint,
        code="E963",
    )
