"""The memory behind views: windows, offsets, and checks of what may be written."""

from __future__ import annotations

from typing import Any, NamedTuple, NoReturn

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..errors import ViewError

Array = NDArray[Any]
WORK: Any = 100_000  # to spend on telling whether two arrays overlap


class Window(NamedTuple):
    """All windows along an axis, as one more axis at the end.

    >>> Window(axis=0, size=3, step=2).places(10)
    4
    """

    axis: int
    size: int
    step: int = 1
    dilation: int = 1

    def places(self, length: int) -> int:
        """Return the number of windows on an axis of a length."""
        reach = (self.size - 1) * self.dilation + 1
        if reach > length:
            window = f"a window that reaches over {reach} elements (size {self.size}, dilation {self.dilation})"
            raise ViewError(f"{window} does not fit axis {self.axis} of size {length}", code="E964")
        return (length - reach) // self.step + 1


class _Memory:
    """Lets NumPy look at memory from another start, and keeps its owner alive."""

    def __init__(self, interface: dict[str, Any], owner: Array) -> None:
        self.__array_interface__, self.owner = interface, owner


def shifted(part: Array, offset: int, memory: Array) -> Array:
    """Return the same layout further on in memory, if all of it lies inside the given array's."""
    if offset == 0 or part.size == 0:
        return part
    (low, high), (first, last) = byte_bounds(memory), byte_bounds(part)
    move = offset * part.itemsize
    if first + move < low or last + move > high:
        lowest, highest = -((first - low) // part.itemsize), (high - last) // part.itemsize
        hint = f"{lowest} to {highest} would fit"
        raise ViewError(f"an offset of {offset} elements leaves the base's memory", hint, code="E965")
    interface = dict(part.__array_interface__)
    interface["data"] = (interface["data"][0] + move, not part.flags.writeable)
    interface["strides"] = part.strides
    return np.asarray(_Memory(interface, part)).view(part.dtype)


def windows_of(part: Array, window: Window) -> Array:
    """Return the windows of an array, which can only be read."""
    axis, size, step, dilation = window
    shape, strides, stride = list(part.shape), list(part.strides), part.strides[axis]
    shape[axis], strides[axis] = window.places(part.shape[axis]), stride * step
    return as_strided(part, (*shape, size), (*strides, stride * dilation), writeable=False)


def aliased(array: Array) -> bool:
    """Tell whether two elements may lie in the same memory: each stride must step over all the smaller ones reach."""
    reach = array.itemsize
    for stride, size in sorted((abs(s), n) for s, n in zip(array.strides, array.shape, strict=True) if n != 1):
        if stride < reach:
            return array.size > 0
        reach += stride * (size - 1)
    return False


def safe_operand(target: Array, value: Any, what: str) -> Any:
    """Return an operand that is safe to read while the target is written, or raise why it is not."""
    if isinstance(value, bool | int | float | complex) and not isinstance(value, np.generic):
        return value
    array = np.asarray(value)
    try:
        spread = np.broadcast_to(array, target.shape)
    except ValueError:
        raise ViewError(
            f"{what} has shape {list(array.shape)}, which does not fit the view's {list(target.shape)}", code="E969"
        ) from None
    if not np.may_share_memory(target, array):
        return array
    if spread.dtype == target.dtype and _mapping(spread) == _mapping(target):
        return target  # the same elements in the same places, in a form in which NumPy sees it
    try:
        shared = np.shares_memory(target, array, max_work=WORK)
    except np.exceptions.TooHardError:
        shared = True
    if shared:
        hint = "pass a copy: operand.copy()"
        raise ViewError(f"{what} overlaps the view's memory in another layout", hint, code="E968")
    return array


def _mapping(array: Array) -> tuple[Any, ...]:
    strides = [s for s, n in zip(array.strides, array.shape, strict=True) if n != 1]
    return array.__array_interface__["data"][0], strides


def refuse_cast(target: Array, error: Exception) -> NoReturn:
    """Raise that a value does not fit the dtype of the array it is written into."""
    hint = f"convert the operand: np.asarray(operand, dtype={target.dtype.name!r})"
    raise ViewError(f"the result does not fit {target.dtype} elements: {error}", hint, code="E969") from None
