"""Answers of the Open Inference Protocol: which outputs a request gets, and how they are written in JSON and in binary form."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import InputError, nearest
from .protocol import DATATYPES, NUMPY, Array, InferRequest, Names, TensorSpec, short_repr

DATATYPE = {np.dtype(dtype): name for name, dtype in DATATYPES.items()}


class OutputTensor(NamedTuple):
    """An output as it goes over the wire: an array, or rows of names."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    value: Any
    binary: bool


def outputs_of(
    request: InferRequest, outputs: Any, specs: Mapping[str, TensorSpec], binary: bool | None = None
) -> list[OutputTensor]:
    """Return the outputs that a request asks for, all where it names none; ``binary`` overrules the request."""
    if not request.outputs:
        default = request.binary if binary is None else binary
        return [_output(specs[name], array, specs[name].names, default) for name, array in outputs.items()]
    found = []
    for each in request.outputs:
        spec = specs[each.name]
        as_names = spec.names if each.names is None else each.names
        found.append(_output(spec, outputs[each.name], as_names, each.binary if binary is None else binary))
    return found


def _output(spec: TensorSpec, array: Array, as_names: bool, binary: bool) -> OutputTensor:
    if as_names:
        rows = names_of(array, spec)
        return OutputTensor(spec.name, "BYTES", (len(rows), array.ndim), rows, binary)
    return OutputTensor(spec.name, DATATYPE[array.dtype], array.shape, array, binary)


def check_outputs(request: InferRequest, specs: Mapping[str, TensorSpec]) -> None:
    """Refuse a request for an output that the model does not have, or in a form that it cannot have; before anything is run."""
    for each in request.outputs:
        spec = specs.get(each.name)
        if spec is None:
            message = f"the model has no output {short_repr(each.name)}"
            raise InputError(message, *nearest(each.name[:100], specs), code="E478")
        if each.names and (spec.axis_names is None or spec.datatype != "BOOL"):
            raise InputError(f"output {each.name!r} has no tuples of names, it holds {spec.datatype}", code="E478")


def names_of(array: Array, spec: TensorSpec) -> Names:
    """Return the tuples that hold in a relation, by name."""
    axes = spec.axis_names or (None,) * array.ndim
    return [
        tuple(str(n if axis is None else axis[n]) for n, axis in zip(row, axes, strict=True))
        for row in np.argwhere(array).tolist()
    ]


_encode = msgspec.json.Encoder().encode


def encode_response(head: bytes, id: str, tensors: Sequence[OutputTensor]) -> tuple[list[Any], int | None]:
    """Return the parts of a response body, and the length of its JSON where binary tensors follow.

    ``head`` is how every response of the model begins: ``{"model_name":"mlp","model_version":"1"``.
    """
    tensor_texts: list[bytes] = []
    buffers: list[Any] = []
    for tensor in tensors:
        start = _tensor_head(tensor.name, tensor.datatype, tensor.shape)
        if tensor.binary:
            data = binary_data(tensor)
            tensor_texts.append(b'%b,"parameters":{"binary_data_size":%d}}' % (start, len(data)))
            buffers.append(data)
        else:
            tensor_texts.append(b'%b,"data":%b}' % (start, _encode(json_data(tensor))))
    if id:
        head = b'%b,"id":%b' % (head, _encode(id))
    text = b'%b,"outputs":[%b]}' % (head, b",".join(tensor_texts))
    return [text, *buffers], len(text) if buffers else None


@lru_cache(1024)
def _tensor_head(name: str, datatype: str, shape: tuple[int, ...]) -> bytes:
    return _encode({"name": name, "datatype": datatype, "shape": shape})[:-1]


def json_data(tensor: OutputTensor) -> list[Any]:
    """Return the elements of an output as JSON can hold them; NaN and infinities it cannot."""
    if tensor.datatype == "BYTES":
        return [word for row in tensor.value for word in row]
    array: Array = tensor.value
    values: list[Any] = array.ravel().tolist()
    if array.dtype.kind == "f" and not math.isfinite(sum(values)) and not np.isfinite(array).all():
        hint = 'ask for it in binary form: "parameters": {"binary_data": true}'
        raise InputError(f"output {tensor.name!r} holds NaN or infinity, which JSON has no word for", hint, code="E491")
    return values


def binary_data(tensor: OutputTensor) -> memoryview | bytes:
    """Return an output in its binary form."""
    if tensor.datatype == "BYTES":
        words = [word.encode() for row in tensor.value for word in row]
        return b"".join(struct.pack("<I", len(word)) + word for word in words)
    array = np.ascontiguousarray(tensor.value, NUMPY[tensor.datatype])
    return array.reshape(-1).view(np.uint8).data if array.size else b""
