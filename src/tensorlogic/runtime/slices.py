"""What a view takes of an axis: ranges, indices, strides and reversals, and how they compose."""

from __future__ import annotations

import operator
from typing import ClassVar, NamedTuple

import msgspec
import numpy as np

from ..errors import ViewError

NEEDS_SIZE = "give the base's shape, TensorView(base, specs, base_shape=(...)), or count from one end only"


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
                raise ViewError(
                    f"a Range has step 1, got {start}", suggestions=[f"SliceSpec.Strided({first}, {last}, {step})"]
                )
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
            raise ViewError(
                f"Strided({start}, {end}, 0): a stride cannot be 0", suggestions=["use Index for one element"]
            )
        return cls("strided", _integer(start), _integer(end), operator.index(stride))

    def to_index(self) -> int | slice:
        """Return what stands for this in square brackets."""
        if self.kind == "index":
            assert self.start is not None
            return self.start
        return (
            slice(None, None, -1)
            if self.kind == "reverse"
            else slice(self.start, self.end, None if self.stride == 1 else self.stride)
        )

    def __str__(self) -> str:
        if self.kind == "index":
            return str(self.start)
        start, end, stride = ("" if n is None else str(n) for n in (self.start, self.end, self.stride))
        return "::-1" if self.kind == "reverse" else f"{start}:{end}" + (f":{stride}" if self.stride != 1 else "")

    def __repr__(self) -> str:
        given = {
            "range": (self.start, self.end),
            "index": (self.start,),
            "strided": (self.start, self.end, self.stride),
        }
        shown = f"({', '.join(map(str, given[self.kind]))})" if self.kind in given else ""
        return f"SliceSpec.{self.kind.capitalize()}{shown}"


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
            return _spec(Run(given.start, len(given), given.step))
        case bool():
            pass
        case _ if hasattr(given, "__index__") and np.ndim(given) == 0:
            return SliceSpec.Index(given)
    raise ViewError(
        f"{given!r} cannot select along an axis without a copy",
        suggestions=["use an integer, a slice or a SliceSpec; array.take(indices, axis) makes the copy"],
    )


class Run(NamedTuple):
    """The elements start, start + step, ...; a negative start counts from the end of an axis of unknown size.

    >>> Run(8, 3, -2)
    Run(start=8, length=3, step=-2)
    """

    start: int
    length: int
    step: int


def run_of(spec: SliceSpec, size: int, axis: int) -> Run:
    """Return the elements that a spec takes of an axis, or raise where the axis does not have them."""
    match spec.kind:
        case "full":
            return Run(0, size, 1)
        case "reverse":
            return Run(size - 1, size, -1)
        case "index":
            place = spec.start or 0
            if not -size <= place < size:
                raise ViewError(f"index {place} is out of range for axis {axis} of size {size}")
            return Run(place % size, 1, 1)
    step = spec.stride
    low, high = (0, size) if step > 0 else (-1, size - 1)  # where a bound may stand
    start = (low if step > 0 else high) if spec.start is None else spec.start + size * (spec.start < 0)
    end = (high if step > 0 else low) if spec.end is None else spec.end + size * (spec.end < 0)
    if not (low <= start <= high and low <= end <= high):
        raise ViewError(
            f"{spec!r} is out of range for axis {axis} of size {size}",
            suggestions=[
                f"start and end may be {max(low, 0)} to {high}" if size else "the axis has no elements: use Full"
            ],
        )
    if (end - start) * step < 0:
        raise ViewError(
            f"{spec!r} of axis {axis} of size {size} runs from {start} away from {end}",
            suggestions=[f"exchange them, or write Strided({spec.start}, {spec.end}, {-step})"],
        )
    return Run(start, len(range(start, end, step)), step)


def known_run(spec: SliceSpec) -> Run | None:
    """Return the elements a spec takes of an axis of unknown size; None where their number depends on the size."""
    if spec.kind in ("full", "reverse"):
        return None
    ahead = spec.stride > 0
    start, end = ((0 if ahead else -1) if n is None else n for n in (spec.start, spec.end))
    from_front = (start >= 0, not ahead if spec.end is None else end >= 0)
    if from_front[0] != from_front[1]:
        return None
    if (end - start) * spec.stride < 0:
        raise ViewError(f"{spec!r} runs from {start} away from {end}", suggestions=["exchange start and end"])
    return Run(start, len(range(start, end, spec.stride)), spec.stride)


def _spec(run: Run, size: int | None = None) -> SliceSpec:
    """Return the spec that takes the given elements, in its simplest form."""
    start, length, step = run
    if length == size and (step in (1, -1) or size < 2):
        return SliceSpec.Full if step == 1 or size < 2 else SliceSpec.Reverse
    if length == 0:
        return SliceSpec.Range(0, 0)
    past = start + (length - 1) * step + (1 if step > 0 or length == 1 else -1)
    end = None if past == (-1 if start >= 0 else 0) else past  # which would count from the other end
    return SliceSpec.Range(start, end) if step == 1 or length == 1 else SliceSpec.Strided(start, end, step)


def merge(outer: SliceSpec, inner: SliceSpec, size: int | None, axis: int) -> SliceSpec:
    """Return the spec that takes ``inner`` of what ``outer`` takes of an axis."""
    if inner == SliceSpec.Full:
        return outer
    if outer == SliceSpec.Full:
        return inner
    run = known_run(outer) if size is None else run_of(outer, size, axis)
    if run is not None:
        found = run_of(inner, run.length, axis)
        place = run.start + found.start * run.step
        return (
            SliceSpec.Index(place)
            if inner.kind == "index"
            else _spec(Run(place, found.length, found.step * run.step), size)
        )
    if outer == SliceSpec.Reverse:  # element i from one end is element ~i from the other
        if inner == SliceSpec.Reverse:
            return SliceSpec.Full
        if inner.kind == "index":
            return SliceSpec.Index(~(inner.start or 0))
        mirrored = known_run(inner)
        if mirrored is not None:
            return _spec(Run(~mirrored.start, mirrored.length, -mirrored.step))
    raise ViewError(
        f"{inner!r} of {outer!r} depends on the size of axis {axis}, which is unknown", suggestions=[NEEDS_SIZE]
    )
