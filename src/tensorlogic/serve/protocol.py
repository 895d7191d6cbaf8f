"""The Open Inference Protocol, version 2: bytes to arrays and back, in JSON and in its binary tensor extension. Nothing here waits."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import FormatError, InputError, ShapeError, nearest
from .limits import Limits

DATATYPES = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "FP32": "float32", "FP64": "float64",
}  # fmt: skip
NAME_OF = {dtype: name for name, dtype in DATATYPES.items()}
NUMPY = {name: np.dtype(dtype).newbyteorder("<") for name, dtype in DATATYPES.items()}
LARGEST = {np.dtype(t).newbyteorder("<"): float(np.finfo(t).max) for t in ("float16", "float32", "float64")}
LEAF = {"b": bool, "i": int, "u": int, "f": float}  # what JSON may hold, by the kind of the dtype
SAFE = {dtype: min(largest**2, 1e300) for dtype, largest in LARGEST.items() if largest < 1e100} | {
    np.dtype("<f8"): 1e300
}
FEW, SMALL = 16, 6e4  # elements that are looked at one by one, and numbers that every float holds
MANY = 1 << 16  # elements that are not passed as arguments of one call
Array = np.ndarray[Any, Any]
Names = list[tuple[str, ...]]
EMPTY: dict[str, Any] = {}


class TensorSpec(NamedTuple):
    """An input or output of a model: its datatype (None: any), its shape (None: any rank; -1: any size) and the names along its axes.

    With ``names`` it is a relation, whose tuples of names go over the wire as BYTES where the caller does not say otherwise.
    """

    name: str
    datatype: str | None
    shape: tuple[int, ...] | None
    axis_names: tuple[tuple[str | int, ...] | None, ...] | None = None
    names: bool = False
    optional: bool = False

    def metadata(self) -> dict[str, Any]:
        """Return what the model's metadata says of it."""
        datatype, shape = self.datatype or "FP32", [-1] if self.shape is None else list(self.shape)
        if self.names:
            datatype, shape = "BYTES", [-1, len(self.shape or ())]
        found: dict[str, Any] = {"name": self.name, "datatype": datatype, "shape": shape}
        parameters: dict[str, Any] = {"optional": True} if self.optional else {}
        if self.axis_names is not None and sum(len(axis or ()) for axis in self.axis_names) <= 1000:
            parameters["axis_names"] = [None if axis is None else [str(n) for n in axis] for axis in self.axis_names]
        return {**found, "parameters": parameters} if parameters else found


class GivenTensor(msgspec.Struct):
    """An input as a request gives it: its data is JSON text (``Raw``), little-endian bytes, or a list of Python values."""

    name: str
    shape: tuple[int, ...]
    datatype: str
    data: msgspec.Raw = msgspec.Raw(b"")
    parameters: dict[str, Any] = EMPTY


class WantedOutput(NamedTuple):
    """An output that a request asks for, and in which form; None leaves the form to the model."""

    name: str
    binary: bool
    names: bool | None = None


class InferRequest(NamedTuple):
    """A request to infer, before its tensors are looked at."""

    id: str
    inputs: Sequence[GivenTensor]
    outputs: Sequence[WantedOutput]
    parameters: Mapping[str, Any]
    binary: bool = False  # the form of outputs when none is asked for by name


class _Output(msgspec.Struct):
    name: str
    parameters: dict[str, Any] = EMPTY


class _Body(msgspec.Struct):
    inputs: list[GivenTensor]
    id: str = ""
    parameters: dict[str, Any] = EMPTY
    outputs: list[_Output] = []


_body = msgspec.json.Decoder(_Body)


def malformed(message: str, *hints: str) -> FormatError:
    """Return the error of a request that does not follow the protocol."""
    return FormatError(message, *hints, code="E470")


def parse_request(body: bytes | bytearray, json_length: int | None, limits: Limits) -> InferRequest:
    """Read the body of an infer request; ``json_length`` says how many bytes of it are JSON where binary tensors follow."""
    end = len(body) if json_length is None else json_length
    if end > len(body):
        raise FormatError(f"the header says {end:,} bytes of JSON, the body has {len(body):,}", code="E471")
    if end > limits.json_bytes:
        raise too_large("the JSON", end, limits.json_bytes)
    try:
        message = _body.decode(body if end == len(body) else memoryview(body)[:end])
    except RecursionError:
        raise malformed("the JSON is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        hint = 'send {"inputs": [{"name": ..., "shape": ..., "datatype": ..., "data": ...}]}'
        raise malformed(f"the body is no infer request: {error}", hint) from None
    at = end
    for each in message.inputs:
        if not each.parameters:
            continue
        if (size := each.parameters.get("binary_data_size")) is not None:
            if type(size) is not int or size < 0:
                raise FormatError(f"binary_data_size of {each.name!r} is {short_repr(size)}, no size", code="E471")
            if bytes(each.data):
                raise malformed(f"input {each.name!r} has both data and binary_data_size")
            if at + size > len(body):
                left = f"{len(body) - at:,} are left in the body"
                raise FormatError(f"input {each.name!r} says {size:,} binary bytes, {left}", code="E471")
            each.data = memoryview(body)[at : at + size]  # type: ignore[assignment]
            at += size
        elif "shared_memory_region" in each.parameters:
            raise malformed("shared memory is not served", "send the data in the body")
    if at != len(body):
        raise FormatError(f"{len(body) - at:,} bytes of the body belong to no input", code="E471")
    binary = message.parameters.get("binary_data_output", False) is True if message.parameters else False
    outputs = [_wanted(o.name, o.parameters, binary) for o in message.outputs] if message.outputs else ()
    return InferRequest(message.id, message.inputs, outputs, message.parameters, binary)


def _wanted(name: str, parameters: Mapping[str, Any], binary: bool) -> WantedOutput:
    if not parameters:
        return WantedOutput(name, binary)
    for key in ("classification", "shared_memory_region"):
        if key in parameters:
            raise malformed(
                f"output {name!r}: {key} is not served", "ask for the tensor, and work on it where it arrives"
            )
    names = parameters.get("names")
    return WantedOutput(name, parameters.get("binary_data", binary) is True, None if names is None else names is True)


def too_large(what: str, size: int, limit: int) -> InputError:
    """Return the error of a body, or part of one, that is over its limit."""
    message = f"{what} has {size:,} bytes, the limit is {limit:,}"
    return InputError(message, "send less at a time, or raise the limit", code="E472")


def arrays_of(request: InferRequest, specs: Mapping[str, TensorSpec], limits: Limits) -> dict[str, Array]:
    """Return the inputs of a request as arrays, checked against what the model takes; the error says which one is wrong."""
    if len(request.inputs) > len(specs):
        raise InputError(f"{len(request.inputs)} inputs are given, the model has {len(specs)}", code="E473")
    found: dict[str, Array] = {}
    for given in request.inputs:
        spec = specs.get(given.name)
        if spec is None:
            message = f"the model has no input {short_repr(given.name)}"
            raise InputError(message, *nearest(given.name[:100], specs), code="E473")
        if given.name in found:
            raise InputError(f"input {given.name!r} is given twice", code="E473")
        found[given.name] = _array(given, spec, limits)
    if len(found) < len(specs):
        missing = [name for name, spec in specs.items() if name not in found and not spec.optional]
        if missing:
            raise InputError(f"input {missing[0]!r} is missing", f"the model takes {', '.join(specs)}", code="E473")
    return found


def _array(given: GivenTensor, spec: TensorSpec, limits: Limits) -> Array:
    name, shape = given.name, given.shape
    if len(shape) > limits.rank:
        raise ShapeError(f"input {name!r} has {len(shape)} axes, the limit is {limits.rank}", code="E497")
    if shape != spec.shape or given.datatype != spec.datatype or -1 in shape:
        if min(shape, default=0) < 0:
            raise ShapeError(f"input {name!r} has the shape {list(shape)}, with a size below 0", code="E475")
        if given.datatype == "BYTES":
            return _relation(given, spec, math.prod(shape))
        if given.datatype not in NUMPY or (spec.datatype is not None and given.datatype != spec.datatype):
            wanted = spec.datatype or f"one of {', '.join(DATATYPES)}"
            message = f"input {name!r} has the datatype {short_repr(given.datatype)}, the model takes {wanted}"
            raise InputError(message, code="E474")
        if spec.shape is not None and (
            len(shape) != len(spec.shape) or any(a not in (b, -1) for b, a in zip(shape, spec.shape, strict=True))
        ):
            message = f"input {name!r} has the shape {list(shape)}, the model takes {list(spec.shape)}"
            raise ShapeError(message, code="E475")
    dtype, count, data = NUMPY[given.datatype], math.prod(shape), given.data
    if isinstance(data, memoryview):
        if len(data) != count * dtype.itemsize:
            what = f"{len(data):,} bytes, its shape {list(shape)} of {given.datatype} takes {count * dtype.itemsize:,}"
            raise FormatError(f"input {name!r} has {what}", code="E471")
        array = np.frombuffer(data, dtype).reshape(shape)
        if given.datatype == "BOOL" and count and array.view(np.uint8).max() > 1:
            raise InputError(f"input {name!r} is BOOL and holds bytes that are neither 0 nor 1", code="E474")
        return array if array.flags.aligned else np.frombuffer(bytes(data), dtype).reshape(shape)
    return _of_values(given, dtype, count)


@lru_cache(256)
def _decoder(leaf: type, depth: int) -> msgspec.json.Decoder[Any]:
    kind: Any = leaf
    for _ in range(depth):
        kind = list[kind]
    return msgspec.json.Decoder(kind)


FLAT: dict[type, Any] = {leaf: msgspec.json.Decoder(list[leaf]) for leaf in (bool, int, float, str)}  # type: ignore[valid-type]


def _values(given: GivenTensor, leaf: type, count: int) -> Any:
    """Return the data of an input as a list: flat, or nested as its shape says."""
    raw: Any = given.data
    if isinstance(raw, list):
        if len(raw) != count:
            raise _wrong_count(given, len(raw), count)
        return raw
    text = bytes(raw)
    if not text:
        raise malformed(f"input {given.name!r} has no data")
    if leaf is not str and (commas := text.count(b",")) >= (count or 1):  # before anything is made of it
        raise _wrong_count(given, commas + 1, count)
    try:
        if text[1:64].lstrip()[:1] == b"[":
            return _decoder(leaf, max(len(given.shape), 1)).decode(text)
        return FLAT[leaf].decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        code = "E474" if isinstance(error, msgspec.ValidationError) else "E470"
        hint = f"data is a flat list, or nested as the shape {list(given.shape)} says"
        message = f"the data of input {given.name!r} is not {given.datatype}: {error}"
        raise InputError(message, hint, code=code) from None


def _wrong_count(given: GivenTensor, found: int, count: int) -> ShapeError:
    what = f"{found:,} elements, its shape {list(given.shape)} takes {count:,}"
    return ShapeError(f"input {given.name!r} has {what}", code="E475")


def doubles(values: list[float]) -> Array:
    """Return a flat list of floats as an array, which is not to be written to; several times as fast as ``numpy.array``.

    >>> doubles([0.5, 2.0])
    array([0.5, 2. ])
    """
    if len(values) > MANY:
        return np.array(values, np.float64)
    return np.frombuffer(struct.pack(f"{len(values)}d", *values))


def _of_values(given: GivenTensor, dtype: np.dtype[Any], count: int) -> Array:
    values = _values(given, LEAF[dtype.kind], count)
    try:
        if dtype.kind == "f" and not (
            0 < len(values) <= FEW and type(values[0]) is float and -SMALL < min(values) <= max(values) < SMALL
        ):
            array = doubles(values) if values and type(values[0]) is float else np.array(values, np.float64)
            flat = array.reshape(-1)
            if (
                not flat.dot(flat) < SAFE[dtype]
                and isinstance(given.data, msgspec.Raw)
                and np.abs(flat).max() > LARGEST[dtype]
            ):
                raise OverflowError("a number is too large")  # JSON has no infinity, and none is made of it
            array = array.astype(dtype)
        else:
            array = np.array(values, dtype)
    except (ValueError, OverflowError, TypeError) as error:
        raise InputError(f"the data of input {given.name!r} is not {given.datatype}: {error}", code="E474") from None
    if array.size != count or (array.ndim > 1 and array.shape != given.shape):
        raise _wrong_count(given, array.size, count)
    return array if array.shape == given.shape else array.reshape(given.shape)


def _relation(given: GivenTensor, spec: TensorSpec, count: int) -> Array:
    """Return the truth values of a relation that is given by tuples of names."""
    axes = spec.axis_names
    if axes is None or spec.shape is None or spec.datatype not in ("BOOL", None):
        raise InputError(f"input {given.name!r} takes no names, but {spec.datatype or 'numbers'}", code="E474")
    places = len(axes)
    if given.shape[1:] != (places,) and not (places == 1 and len(given.shape) == 1):
        message = f"input {given.name!r} has the shape {list(given.shape)}, names take [-1, {places}]"
        raise ShapeError(message, code="E475")
    data: Any = given.data
    if isinstance(data, memoryview):
        words = list(strings_of(data, given.name, count))
    else:
        found = _values(given, str, count)
        words = [w for row in found for w in row] if found and isinstance(found[0], list) else found
        if len(words) != count:
            raise _wrong_count(given, len(words), count)
    dense = np.zeros([s if a is None else len(a) for s, a in zip(spec.shape, axes, strict=True)], bool)
    columns = [_codes(words[n::places], axis, dense.shape[n], given.name) for n, axis in enumerate(axes)]
    dense[tuple(columns)] = True
    return dense


def _codes(words: Sequence[str], axis: tuple[str | int, ...] | None, size: int, name: str) -> list[int]:
    table = _codes_of(axis) if axis is not None else None
    codes = []
    for word in words:
        code = (
            table.get(word)
            if table is not None
            else int(word)
            if word.isascii() and word.isdigit() and len(word) < 19
            else None
        )
        if code is None or not 0 <= code < size:
            known = nearest(word[:100], table) if table is not None else [f"numbers from 0 to {size - 1}"]
            raise InputError(f"input {name!r}: {short_repr(word)} is unknown to the model", *known, code="E496")
        codes.append(code)
    return codes


@lru_cache(256)
def _codes_of(axis: tuple[str | int, ...]) -> dict[str, int]:
    return {str(name): n for n, name in enumerate(axis)}


def strings_of(data: memoryview, name: str, count: int) -> Iterator[str]:
    """Yield the elements of a BYTES tensor in its binary form: each is its length, four bytes, and the text."""
    at = 0
    for _ in range(count):
        length = struct.unpack_from("<I", data, at)[0] if at + 4 <= len(data) else len(data)
        if at + 4 + length > len(data):
            raise FormatError(f"input {name!r} ends within an element", code="E471")
        try:
            yield str(data[at + 4 : at + 4 + length], "utf-8")
        except UnicodeDecodeError:
            raise malformed(f"input {name!r} holds bytes that are no UTF-8") from None
        at += 4 + length
    if at != len(data):
        raise FormatError(f"input {name!r} has {len(data) - at:,} bytes more than its {count:,} elements", code="E471")


def short_repr(value: object) -> str:
    """Return something a caller sent, short enough for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:76]}...{text[-1]}"
