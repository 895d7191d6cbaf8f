"""The types of a graph's inputs: of what is given, else as declared, for sizes that are known or stood in for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import InputError, nearest
from ..ir.graph import EinsumGraph
from ..ir.sizes import evaluate, names
from ..ir.types import TensorShape, TensorType, dtype_name

DTYPE = "float32"  # of inputs that declare none and are not given


class Known(NamedTuple):
    """What is known of a graph's inputs before it runs."""

    types: dict[str, TensorType]  # without those of unknown rank
    sizes: dict[str, int]
    assumed: tuple[str, ...]  # sizes that nobody gave
    unranked: tuple[str, ...]  # inputs that declare no shape and are not given


def known_inputs(
    graph: EinsumGraph,
    inputs: Mapping[str, Any] | None,
    sizes: Mapping[str, int] | None,
    *,
    dtype: str = DTYPE,
    stand_in: int | None = None,
) -> Known:
    """Return the types of inputs, arrays or types that are given by name; a size nobody gave is ``stand_in``, or stays open.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.input("x", ("n", "m")) @ b.input("w", ("m", 4)))
    >>> known_inputs(graph, {"x": np.ones((2, 3))}, None).types["w"]
    TensorType(shape=TensorShape([3, 4]), dtype='float32', weak=False)
    >>> known_inputs(graph, {}, {"n": 2}, stand_in=64).assumed
    ('m',)
    """
    given, known = {} if inputs is None else inputs, dict(sizes or {})
    if not isinstance(given, Mapping):
        message = f"inputs must be a mapping of names to arrays or types, got {type(given).__name__}"
        raise InputError(message, 'write {"x": array}', code="E301")
    for name in known:
        if name not in graph.size_names:
            raise InputError(f"the graph has no size {name!r}", *nearest(str(name), graph.size_names), code="E304")
    types: dict[str, TensorType] = {}
    bound = set(known)
    for name, value in given.items():
        if name not in graph.inputs:
            raise InputError(f"the graph has no input {name!r}", *nearest(str(name), graph.inputs), code="E302")
        declared, own = graph.type_of(graph.inputs[name])[:2]
        found = value if isinstance(value, TensorType) else _type_of(value, own)
        if found.shape is None:
            continue
        types[name] = found._replace(dtype=found.dtype or own or dtype)
        if declared is not None and len(declared) == len(found.shape):
            bound |= {n for d in declared if isinstance(d, str) for n in names(d)}
            for d, actual in zip(declared, found.shape, strict=True):
                if isinstance(d, str) and d.isidentifier() and isinstance(actual, int):
                    known.setdefault(d, int(actual))
    assumed = () if stand_in is None else tuple(sorted(graph.size_names - bound))
    known |= dict.fromkeys(assumed, stand_in or 0)
    unranked = []
    for name, node in graph.inputs.items():
        t = graph.type_of(node)
        if name in types:
            continue
        if t.shape is None:
            unranked.append(name)
        else:
            types[name] = TensorType(TensorShape(evaluate(d, known) for d in t.shape), t.dtype or dtype)
    return Known(types, known, assumed, tuple(unranked))


def input_types(
    graph: EinsumGraph,
    inputs: Mapping[str, Any] | None,
    sizes: Mapping[str, int] | None,
    dtype: str = DTYPE,
    what: str = "estimate",
) -> dict[str, TensorType]:
    """Return the type of every input, or say what else must be given for it to be known."""
    found = known_inputs(graph, inputs, sizes, dtype=dtype)
    for name in graph.inputs:
        if name in found.unranked:
            message = f"the {what} needs input {name!r}, whose shape is not declared"
            raise InputError(message, f"give the inputs: {what}(graph, {{{name!r}: array}})", code="E303")
        missing = sorted({n for d in found.types[name].shape or () for n in names(d)})
        if missing:
            wanted = ", ".join(f"{n!r}: 64" for n in missing)
            hint = f"give sizes={{{wanted}}} (--size {missing[0]}=64 on the command line), or the inputs"
            raise InputError(f"the {what} needs the size {missing[0]!r} of input {name!r}", hint, code="E304")
    return {name: found.types[name] for name in graph.inputs}


def _type_of(value: Any, declared: str | None) -> TensorType:
    """Return the type of an array of any library; lists and numbers take the declared dtype, as they do in a run."""
    if not (hasattr(value, "shape") and hasattr(value, "dtype")):
        array = np.asarray(value)
        return TensorType(TensorShape(array.shape), declared or dtype_name(array.dtype))
    dtype = value.dtype if isinstance(value.dtype, np.dtype) else str(value.dtype).removeprefix("torch.")
    return TensorType(TensorShape(value.shape), dtype_name(dtype))
