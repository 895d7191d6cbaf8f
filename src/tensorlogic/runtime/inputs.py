"""What a caller gives: a graph, inputs by name and sizes, checked before anything is planned."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..errors import InputError, expect, nearest
from ..ir.graph import EinsumGraph

if TYPE_CHECKING:
    from .program import Program

Inputs = Mapping[str, Any]
Sizes = Mapping[str, int] | None  # by name


def check_call(graph: object, inputs: object) -> None:
    """Refuse what is no graph, or no mapping of inputs."""
    if type(graph) is not EinsumGraph:
        hint = (
            f"read it: tl.EinsumGraph.load({graph!r})" if isinstance(graph, str | Path) else "build one: b.build(y=y)"
        )
        expect(graph, EinsumGraph, "an EinsumGraph is expected", hint)
    if type(inputs) is not dict:
        hint = 'write {"x": frame["x"]}' if hasattr(inputs, "columns") else 'write {"x": array}'
        expect(inputs, Mapping, "inputs must be a mapping of names to arrays", hint)


def checked_sizes(graph: EinsumGraph, sizes: Sizes) -> Sizes:
    """Return sizes by name, each of which the graph has."""
    if sizes is None:
        return None
    if type(sizes) is not dict:
        expect(sizes, Mapping, "sizes= must be a mapping of names to integers")
    for name, value in sizes.items():
        if not isinstance(name, str) or not isinstance(value, str | int | float | np.integer):
            raise InputError(f"sizes= must map names to integers, got {name!r}: {value!r}", code="E301")
        if name not in graph.size_names:
            raise InputError(f"the graph has no size {name!r}", *nearest(name, graph.size_names), code="E304")
    return sizes


def check_names(graph: EinsumGraph, inputs: Inputs, *, required: bool) -> None:
    """Refuse inputs that the graph lacks and, where they are required, a call without one that it has."""
    for name in inputs:
        if name not in graph.inputs:
            raise InputError(f"the graph has no input {name!r}", *nearest(name, graph.inputs), code="E302")
    for name, node in graph.inputs.items():
        if required and name not in inputs:
            hint, declared = f"give all of: {', '.join(map(repr, graph.inputs))}", graph.type_of(node)
            raise InputError(f"input {name!r} is missing", hint, code="E303", context=[f"it is declared as {declared}"])


class LastCall(NamedTuple):
    """A graph, what its inputs were, and the program that ran."""

    graph: EinsumGraph
    signature: tuple[tuple[str, type[Any], Any, Any], ...]
    program: Program


def same_again(ready: LastCall, graph: EinsumGraph, inputs: Any) -> list[Any] | None:
    """Return the values of inputs that are just like the last ones, so that nothing else needs checking; else None."""
    if ready.graph is not graph or type(inputs) is not dict or len(inputs) != len(ready.signature):
        return None
    given: dict[str, Any] = inputs
    values = []
    for name, kind, shape, dtype in ready.signature:
        value: Any = given.get(name)
        if type(value) is not kind or value.dtype is not dtype or value.shape != shape:
            return None
        values.append(value)
    return values


def checked_donations(graph: EinsumGraph, donate: Iterable[str]) -> tuple[str, ...]:
    """Return the names of inputs whose arrays may be written over, each of which the graph has."""
    names = (donate,) if isinstance(donate, str) else tuple(donate)
    for name in names:
        if name not in graph.inputs:
            raise InputError(f"the graph has no input {name!r} to donate", *nearest(name, graph.inputs), code="E316")
    return names
