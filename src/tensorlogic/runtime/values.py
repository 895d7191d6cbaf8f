"""Inputs and outputs of a run: inputs by name, checked before anything is planned, and outputs by name."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from typing import Any, overload

import numpy as np

from ..backends.base import Backend
from ..diagnostics import value_text
from ..errors import BackendError, InputError, TensorLogicError, expect, expect_known, nearest
from ..ir.check import expect_graph, expect_inputs
from ..ir.graph import EinsumGraph
from ..ir.types import DTYPES, TensorType
from ..passes.specialize import checked_sizes, input_types

Inputs = Mapping[str, Any]
Sizes = Mapping[str, int] | None  # by name


def check_call(graph: object, inputs: object) -> None:
    """Refuse what is no graph, or no mapping of inputs."""
    if type(graph) is not EinsumGraph:
        expect_graph(graph)
    if type(inputs) is not dict:
        hint = 'write {"x": frame["x"]}' if hasattr(inputs, "columns") else 'write {"x": array}'
        expect(inputs, Mapping, "inputs must be a mapping of names to arrays", hint)


def check_names(graph: EinsumGraph, inputs: Inputs, *, required: bool) -> None:
    """Refuse inputs that the graph lacks and, where they are required, a call without one that it has."""
    expect_inputs(graph, inputs)
    for name, node in graph.inputs.items():
        if required and name not in inputs:
            hint, declared = f"give all of: {', '.join(map(repr, graph.inputs))}", graph.type_of(node)
            raise InputError(f"input {name!r} is missing", hint, code="E303", context=[f"it is declared as {declared}"])


def input_arrays(
    graph: EinsumGraph, inputs: Inputs, backend: Backend, *, relations: bool
) -> tuple[list[str], list[Any]]:
    """Return the names of a graph's inputs and what is given for them as arrays; ``relations`` may stay such."""
    check_call(graph, inputs)
    if inputs.keys() != graph.inputs.keys():
        check_names(graph, inputs, required=True)
    sparse = relations and any(getattr(x, "layout", "") == "sparse" for x in inputs.values())
    declared = ((name, graph.nodes[i].op.dtype) for name, i in graph.inputs.items())  # type: ignore[attr-defined]
    return list(graph.inputs), [_array(name, inputs[name], dtype, backend, sparse) for name, dtype in declared]


def types_of_call(
    graph: EinsumGraph, inputs: Inputs | None, sizes: Sizes, backend: Backend, *, relations: bool
) -> dict[str, TensorType]:
    """Return the types of all inputs: of those given, else as declared."""
    given = {} if inputs is None else inputs
    check_call(graph, given)
    check_names(graph, given, required=False)
    declared = {name: graph.type_of(graph.inputs[name]).dtype for name in given}
    known = {n: TensorType.of(_array(n, x, declared[n], backend, relations)) for n, x in given.items()}
    return input_types(graph, known, checked_sizes(graph, sizes), what="plan")


def _array(name: str, value: Any, dtype: str | None, backend: Backend, relations: bool) -> Any:
    """Return a value as an array of the backend; a relation as it is, where plans can run on relations."""
    if relations and getattr(value, "layout", "") == "sparse" and dtype in (None, "bool"):
        return value
    try:
        return backend.asarray(value, dtype)
    except TensorLogicError as error:
        raise error.renamed(f"input {name!r}: {error.diagnostic.message}") from None


def checked_donations(graph: EinsumGraph, donate: Iterable[str]) -> tuple[str, ...]:
    """Return the names of inputs whose arrays may be written over, each of which the graph has."""
    expect(donate, Iterable, "donate= takes the names of inputs", f"write donate={list(graph.inputs)!r}")
    names = (donate,) if isinstance(donate, str) else tuple(donate)
    for name in names:
        expect(name, str, "donate= takes the names of inputs")
        if name not in graph.inputs:
            raise InputError(
                f"the graph has no input {value_text(name)} to donate", *nearest(name, graph.inputs), code="E316"
            )
    return names


class _Dtypes(dict[str, np.dtype[Any]]):
    """NumPy's dtypes by name; that of bfloat16 it has from the package ml_dtypes, which is loaded when it is asked for."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        import ml_dtypes  # noqa: F401

        self[name] = np.dtype(name)
        return self[name]


NUMPY = _Dtypes({n: np.dtype(n) for n in DTYPES if n != "bfloat16"})  # comparing with a name would cost microseconds


class Outputs(Sequence[Any]):
    """The results of a run: a sequence of arrays, also by name: ``out[0]`` or ``out["y"]``; a gradient also by the name of its input.

    >>> out = Outputs(("y", "d_w"), (1, 2))
    >>> out[0] == out["y"], list(out), dict(out), out["w"]
    (True, [1, 2], {'y': 1, 'd_w': 2}, 2)
    """

    __slots__ = ("_names", "_values")

    def __init__(self, names: Sequence[str], values: Sequence[Any]) -> None:
        self._names, self._values = tuple(names), tuple(values)

    @overload
    def __getitem__(self, key: int | str) -> Any: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[Any, ...]: ...
    def __getitem__(self, key: int | str | slice) -> Any:
        if isinstance(key, str):
            if key not in self._names and f"d_{key}" in self._names:
                key = f"d_{key}"  # the gradient for an input, which is named after it
            if key not in self._names:
                raise InputError(f"there is no output {value_text(key)}", *nearest(key, self._names), code="E305")
            return self._values[self._names.index(key)]
        try:
            return self._values[key]
        except IndexError:
            message = f"there is no output {value_text(key)}: there are {len(self._values)}, {', '.join(self._names)}"
            raise IndexError(message) from None

    def __contains__(self, name: object) -> bool:
        return name in self._names or f"d_{name}" in self._names

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values)

    def keys(self) -> KeysView[str]:
        """Return the names of the outputs."""
        return dict.fromkeys(self._names).keys()

    def values(self) -> tuple[Any, ...]:
        """Return the outputs in order."""
        return self._values

    def items(self) -> list[tuple[str, Any]]:
        """Return the outputs with their names."""
        return list(zip(self._names, self._values, strict=True))

    def __repr__(self) -> str:
        return "Outputs(" + ", ".join(f"{n}={v!r}" for n, v in self.items()) + ")"


def writable(array: Any, name: str, t: TensorType) -> Any:
    """Check an array that an output is to be written into."""
    if array is None:
        return None
    if hasattr(array, "writable_array"):  # a TensorView
        array = array.writable_array()
    if not isinstance(array, np.ndarray) or array.shape != t.shape or array.dtype != NUMPY[t.dtype or ""]:
        raise InputError(f"out[{name!r}] must be an array {t}, got {_described(array)}", code="E308")
    if not array.flags.writeable:
        raise InputError(f"out[{name!r}] cannot be written to", code="E931")
    return array


def arrays_for(outputs: Sequence[tuple[str, TensorType]], out: Any) -> list[Any]:
    """Return the arrays that outputs are to be written into, None where there is none."""
    expect(out, Mapping, "out= must be a mapping of names to arrays", 'write out={"y": array}')
    names = [name for name, _ in outputs]
    expect_known("the graph has no output", out, names, "E305")
    arrays = [writable(out.get(name), name, t) for name, t in outputs]
    given = [(name, array) for name, array in zip(names, arrays, strict=True) if array is not None]
    for (one, a), (other, b) in itertools.combinations(given, 2):
        if np.shares_memory(a, b):
            raise InputError(f"out[{one!r}] and out[{other!r}] stand in the same memory", code="E932")
    return arrays


def write_outputs(done: list[Any], targets: Sequence[Any]) -> list[Any]:
    """Put every output that has an array of the caller's there, where it does not stand there already."""
    for n, array in enumerate(targets):
        if array is not None and array is not done[n]:
            np.copyto(array, done[n])
            done[n] = array
    return done


def as_planned(value: Any, name: str, t: TensorType) -> Any:
    """Check an output against its plan: a backend or wrapper that made something else is named, not believed."""
    if getattr(value, "shape", None) != t.shape or value.dtype != NUMPY[t.dtype or ""]:
        hint = "look at the wrappers, and check the backend with BackendTestAdapter(backend).run()"
        raise BackendError(f"output {name!r} should be {t}, but came as {_described(value)}", hint, code="E404")
    return value


def _described(value: Any) -> str:
    return f"{getattr(value, 'dtype', type(value).__name__)} {list(getattr(value, 'shape', ()))}"
