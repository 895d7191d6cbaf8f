"""The results of a run, and the arrays of the caller that they may be written into."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, KeysView, Mapping, Sequence
from typing import Any, overload

import numpy as np

from ..errors import BackendError, InputError, expect, nearest
from ..ir.types import DTYPES, TensorType


class _Dtypes(dict[str, np.dtype[Any]]):
    """NumPy's dtypes by name; that of bfloat16 it has from the package ml_dtypes, which is loaded when it is asked for."""

    def __missing__(self, name: str) -> np.dtype[Any]:
        import ml_dtypes  # noqa: F401

        self[name] = np.dtype(name)
        return self[name]


NUMPY = _Dtypes({n: np.dtype(n) for n in DTYPES if n != "bfloat16"})  # comparing with a name would cost microseconds


class Outputs(Sequence[Any]):
    """The results of a run: a sequence of arrays that also answers to their names; a gradient also to that of its input.

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
                raise InputError(f"there is no output {key!r}", *nearest(key, self._names), code="E305")
            return self._values[self._names.index(key)]
        try:
            return self._values[key]
        except IndexError:
            message = f"there is no output {key}: there are {len(self._values)}, {', '.join(self._names)}"
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
    for name in out:
        if name not in names:
            raise InputError(f"the graph has no output {name!r}", *nearest(name, names), code="E305")
    arrays = [writable(out.get(name), name, t) for name, t in outputs]
    given = [(name, array) for name, array in zip(names, arrays, strict=True) if array is not None]
    for (one, a), (other, b) in itertools.combinations(given, 2):
        if np.shares_memory(a, b):
            raise InputError(f"out[{one!r}] and out[{other!r}] stand in the same memory", code="E932")
    return arrays


def given_back(done: list[Any], targets: Sequence[Any]) -> list[Any]:
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
