"""What a training step starts from: the parameters as arrays of the trainer's own, and the values that the optimizer keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InputError, expect, expect_known
from ..ir.graph import EinsumGraph
from ..ir.types import FLOATS
from .step import OWN, TrainingStep

Array = Any


def own_array(name: str, value: Any) -> Array:
    """Return the values of a parameter as an array that nobody else holds."""
    try:
        array = np.array(value)
    except ValueError as error:
        raise InputError(f"the values of {name!r} are no array: {error}", code="E866") from None
    if array.dtype.kind not in "fiub" and str(array.dtype) not in FLOATS:
        raise InputError(f"parameter {name!r} is of {array.dtype}; only floats can be learned", code="E866")
    return array


def own_arrays(graph: EinsumGraph, params: Mapping[str, Any] | None) -> dict[str, Array]:
    """Return the parameters of a loss graph as arrays that nobody else holds; each is an input of the graph, and of floats."""
    expect(params, Mapping, "params are arrays by name", 'write params={"w": W}')
    assert params is not None
    if not params:
        raise InputError("params= is empty: there is nothing to learn", 'write params={"w": W}', code="E301")
    found = {name: own_array(name, value) for name, value in params.items()}
    for name, array in found.items():
        expect_known("the graph has no input", [name], graph.inputs)
        if str(array.dtype) not in FLOATS:
            hint = f"give floats: {name}.astype('float32')"
            raise InputError(f"parameter {name!r} is of {array.dtype}; only floats can be learned", hint, code="E866")
    return found


def are_swapped(graph: EinsumGraph, params: object, data: object) -> bool:
    """Tell whether params= and data= look swapped: what should be learned has rows of any number, and what should be rows has not."""
    if not isinstance(params, Mapping) or not isinstance(data, Mapping) or not {*params, *data} <= graph.inputs.keys():
        return False
    fixed = {
        name: (shape := graph.type_of(graph.inputs[name]).shape) is not None and shape.is_static
        for name in (*params, *data)
    }
    return all(fixed[name] for name in data) and not any(fixed[name] for name in params)


def starting_values(step: TrainingStep, params: Mapping[str, Array], states: Mapping[str, Any]) -> dict[str, Array]:
    """Return all that the first step is handed: parameters, running values of the graph, and what the optimizer keeps."""
    missing = [n for n in step.carried if n not in params and not n.startswith(OWN) and n not in states]
    if missing:
        hint = f"give what it begins with: fit(..., states={{{missing[0]!r}: ...}})"
        raise InputError(f"{missing[0]!r} is handed on from batch to batch, and has no first value", hint, code="E867")
    return {
        **params,
        **{name: np.array(states[name]) for name in step.carried if name in states},
        **{label: np.zeros_like(params[name]) for label, name in step.zeros.items()},
        **{label: params[name].copy() for label, name in step.averages.items()},
        **{label: np.array(value, "float32") for label, value in step.starts.items()},
    }
