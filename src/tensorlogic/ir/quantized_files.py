"""Quantized tensors in safetensors files: packed bytes, scales and zero points, and in the header what they are."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import msgspec
import numpy as np

from ..errors import FormatError, nearest
from .files import no_file
from .packed_numbers import KINDS, packed_size
from .quantized import QuantizedTensor
from .types import Array
from .whole_files import write_whole

FORMAT = "tensorlogic-quantized"
PARTS = ("packed", "scales", "zero_points")


class _Facts(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    kind: str
    shape: tuple[int, ...]
    axis: int | None = None
    group: int | None = None


def save_quantized(tensors: Mapping[str, QuantizedTensor], path: str | Path) -> None:
    """Write quantized tensors by name as one safetensors file, which appears whole or not at all.

    >>> import tempfile
    >>> from tensorlogic import QuantizedTensor
    >>> path = Path(tempfile.mkdtemp()) / "w.safetensors"
    >>> save_quantized({"w": QuantizedTensor.of([0.5, -1.0])}, path)
    >>> load_quantized(path)
    {'w': <QuantizedTensor int8[2] per tensor, 6 bytes>}
    """
    from safetensors.numpy import save

    arrays = {f"{name}.{part}": np.array(getattr(t, part), order="C") for name, t in tensors.items() for part in PARTS}
    facts = {name: _Facts(t.kind, t.shape, t.axis, t.group) for name, t in tensors.items()}
    header = {"format": FORMAT, "tensors": msgspec.json.encode(facts).decode("ascii")}
    target = Path(path)
    try:
        write_whole(target, lambda temporary: temporary.write_bytes(save(arrays, header)))
    except OSError as error:
        raise FormatError(f"cannot write {str(path)!r}: {error}", code="E228") from None


def load_quantized(path: str | Path) -> dict[str, QuantizedTensor]:
    """Read the quantized tensors of a file; one that is cut short or lies about its sizes is refused."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework="np") as file:
            header = file.metadata() or {}
            if header.get("format") != FORMAT:
                hint = "QuantizedTensor.save writes such files; graphs are read by tl.EinsumGraph.load"
                raise FormatError(f"{str(path)!r} holds no quantized tensors", hint, code="E322")
            facts = msgspec.json.decode(header["tensors"], type=dict[str, _Facts])
            held = set(file.keys())
            return {name: _read(name, own, file, held) for name, own in facts.items()}
    except FileNotFoundError:
        raise no_file(Path(path)) from None
    except (SafetensorError, msgspec.DecodeError, KeyError, OSError) as error:
        hint = "restore the file, or quantize the tensors again"
        raise FormatError(f"{str(path)!r} is no whole file of quantized tensors: {error}", hint, code="E322") from None


def _read(name: str, facts: _Facts, file: object, held: set[str]) -> QuantizedTensor:
    for part in PARTS:
        if f"{name}.{part}" not in held:
            raise _lie(name, f"its {part} are missing")
    packed, scales, zeros = (file.get_tensor(f"{name}.{part}") for part in PARTS)  # type: ignore[attr-defined]
    if facts.kind not in KINDS:
        raise _lie(name, f"there is no kind {facts.kind!r}", *nearest(facts.kind, KINDS))
    rank = len(facts.shape)
    if any(d < 0 for d in facts.shape) or (facts.axis is not None and not 0 <= facts.axis < rank):
        raise _lie(name, f"its shape {list(facts.shape)} and axis {facts.axis} cannot be")
    if facts.group is not None and (facts.group < 1 or rank == 0):
        raise _lie(name, f"groups of {facts.group} cannot be")
    whole = facts.shape or (1,)
    size = (*whole[:-1], packed_size(whole[-1], KINDS[facts.kind].bits))
    _check(name, "packed", packed, size, "uint8")
    own: tuple[int, ...] = ()
    if facts.group is not None:
        own = (*whole[:-1], math.ceil(whole[-1] / facts.group))
    elif facts.axis is not None:
        own = (facts.shape[facts.axis],)
    _check(name, "scales", scales, own, "float32")
    _check(name, "zero_points", zeros, own, "int32")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise _lie(name, "a scale is no finite number above 0")
    return QuantizedTensor(packed, facts.kind, facts.shape, scales, zeros, facts.axis, facts.group)


def _check(name: str, part: str, array: Array, shape: tuple[int, ...], dtype: str) -> None:
    if array.shape != shape or array.dtype != dtype:
        found = f"{array.dtype}{list(array.shape)}"
        raise _lie(name, f"its {part} should be {dtype}{list(shape)} and are {found}")


def _lie(name: str, what: str, *hints: str) -> FormatError:
    return FormatError(f"the quantized tensor {name!r} does not hold what it says: {what}", *hints, code="E323")
