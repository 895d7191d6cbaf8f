"""The arrays of constants: read as NumPy arrays, frozen, and named by a digest of what they hold."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import DTypeError, TensorLogicError
from . import ops
from .types import dtype_name

if TYPE_CHECKING:
    pass


Array = NDArray[Any]


def constant_digest(array: Array) -> str:
    """Return the name under which a constant is kept: a digest of its dtype, shape and bytes."""
    h = hashlib.blake2b(f"{array.dtype.str}{array.shape}".encode(), digest_size=16)
    # bfloat16 is no buffer
    h.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data if array.size else b"")
    return h.hexdigest()


def constant_op(array: Array) -> ops.Constant:
    """Return the operation that stands for an array."""
    return ops.Constant(constant_digest(array), array.shape, dtype_name(array.dtype))


def plain_array(value: object) -> Array:
    """Return a value as a NumPy array, or say plainly why there is none."""
    if value is None:
        hint = "give an array, a list or a number; a run without the input leaves its name out"
        raise DTypeError("None is given where an array is expected", hint, code="E123")
    try:
        return np.asarray(value)
    except TensorLogicError:  # a list of tensors of a graph
        raise
    except ValueError as error:
        hint = "give rows of equal lengths, all of them numbers: pad short ones, or leave them out"
        raise DTypeError(f"a rectangular array is expected: {error}", hint, code="E123") from None
    except Exception as error:  # an array of another library that does not let its values go
        hint = "detach it first: x.detach().cpu().numpy()" if hasattr(value, "detach") else "give a NumPy array"
        raise DTypeError(f"a {type(value).__name__} cannot be read as an array: {error}", hint, code="E123") from None


def frozen_copy(value: object) -> Array:
    """Return a read-only copy of an array, in C order and native byte order, so that its digest stays true."""
    array = plain_array(value)
    name = dtype_name(array.dtype)
    copy = np.array(array, dtype=np.dtype(name), order="C", copy=True)
    copy.setflags(write=False)
    return copy


def frozen(value: Array) -> Array:
    """Return an array that nobody can write to: itself, or a copy where it or what it is a view of can be."""
    whole: Any = value
    while isinstance(whole, np.ndarray):
        if whole.flags.writeable:
            return frozen_copy(value)
        whole = whole.base
    return value if isinstance(value, np.ndarray) else frozen_copy(value)
