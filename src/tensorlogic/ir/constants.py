"""The arrays of a graph's constants as files hold them."""

from __future__ import annotations

import base64
import binascii
import math

import numpy as np

from ..diagnostics import value_text
from ..errors import FormatError, GraphError, nearest
from . import ops
from .check import no_array, too_deep
from .graph import MAX_BODY_DEPTH, EinsumGraph, bodies
from .ops import constant_digest
from .types import DTYPES, ITEMSIZE, MAX_RANK, Array, frozen, frozen_copy


def all_constants(graph: EinsumGraph, depth: int = 0) -> dict[str, Array]:
    """Return, by digest, the arrays of a graph and of the bodies in it."""
    if depth > MAX_BODY_DEPTH:
        raise too_deep()
    found: dict[str, Array] = {}
    for i, node in enumerate(graph.nodes):
        if isinstance(node.op, ops.Constant):
            if node.op.digest not in graph.constants:
                raise GraphError.of(no_array(node, i, ""))
            found[node.op.digest] = graph.constants[node.op.digest]
        for body in bodies(node.op):
            found.update(all_constants(body, depth + 1))
    return found


def encode(array: Array) -> str:
    """Return an array's bytes, little-endian, as base64."""
    stored = array.astype(array.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(stored.tobytes()).decode("ascii")


def decode(text: str, dtype: str, shape: tuple[int, ...]) -> Array:
    """Make an array of base64, having checked that it holds as many bytes as the shape says."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"the data of a constant is not base64: {error}", code="E235") from None
    if dtype not in ITEMSIZE:
        raise FormatError(f"unsupported dtype {value_text(dtype)}", *nearest(dtype, DTYPES), code="E103")
    if len(shape) > MAX_RANK or any(d < 0 for d in shape):
        raise FormatError(f"a constant cannot have shape {list(shape[:MAX_RANK])}", code="E235")
    need = math.prod(shape) * ITEMSIZE[dtype]
    if need != len(data):
        message = f"a constant {dtype}{list(shape)} has {need} bytes, but {len(data)} are given"
        raise FormatError(message, "correct its shape or dtype, or write the graph again", code="E235")
    try:
        return frozen_copy(np.frombuffer(data, np.dtype(dtype).newbyteorder("<")).reshape(shape))
    except (TypeError, ValueError) as error:
        raise FormatError(f"cannot hold a constant {dtype}{list(shape)}: {error}", code="E235") from None


def verified_constant(digest: str, array: Array, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return a constant that was read, frozen, if it is what the graph says it is."""
    array = frozen(array) if array.dtype.isnative and array.flags.c_contiguous else frozen_copy(array)
    if array.dtype.name != dtype or array.shape != shape:
        message = f"constant {digest} is {array.dtype.name}{list(array.shape)}, the graph says {dtype}{list(shape)}"
        raise FormatError(message, code="E227")
    if dtype == "bool" and array.size and array.view(np.uint8).max() > 1:
        raise FormatError(f"constant {digest} has booleans that are neither 0 nor 1", code="E236")
    real = constant_digest(array)
    if real != digest:
        hint = "restore the file, or write the graph again"
        raise FormatError(f"constant {digest} was changed: its digest is {real}", hint, code="E236")
    return array
