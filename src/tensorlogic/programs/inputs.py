"""The tensors that a program is given from Python: read, checked and described."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..backends.sparse import SparseTensor
from ..errors import InputError, expect
from ..ir.types import named_array, plain_array
from ..lang import syntax as s
from ..lang.declarations import GivenTensor
from .model import Model


def read_tensors(given: Mapping[str, Any] | None, named: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the tensors that a call was given, in a mapping and as keywords."""
    if given is not None:
        expect(given, Mapping, "tensors are given in a mapping, by name", 'write {"W": array}, or W=array')
    found = {**(given or {}), **(named or {})}
    for name in found:
        expect(name, str, "a tensor is named by text")
    return {name: _read_tensor(name, value) for name, value in found.items()}


def _read_tensor(name: str, value: Any) -> Any:
    if isinstance(value, SparseTensor) or hasattr(value, "words"):
        return value
    if hasattr(value, "tocoo"):
        return SparseTensor(value) if value.dtype == bool else plain_array(value.toarray())
    if isinstance(value, set | frozenset | Mapping):
        kind = type(value).__name__
        hint = "give a list or an array, whose order says which element stands where"
        raise InputError(f"the tensor {name!r} cannot be a {kind}, which has no order", hint, code="E779")
    array = named_array(f"tensor {name!r}", value)
    if array.dtype.kind not in "biuf":
        kind = "text" if array.dtype.kind in "USOT" else str(array.dtype)
        if array.dtype.kind == "O":
            others = [v for v in array.flat if not isinstance(v, str | int | float | np.number)]
            kind = kind if not others else "None" if others[0] is None else type(others[0]).__name__
        hint = (
            f'facts by name are added with program.add(name, rows), or read by the program: {name}(x,y) = "facts.csv"'
        )
        if kind == "None":
            hint = "put a number where nothing is known, such as 0 or np.nan"
        raise InputError(f"the tensor {name!r} needs numbers or truth values, not {kind}", hint, code="E779")
    return array


def unchanging(value: Any) -> Any:
    """Return a tensor that nobody can write to: itself where that is so already, else a copy."""
    if not isinstance(value, np.ndarray):
        return value
    owner: Any = value
    while isinstance(owner, np.ndarray) and not owner.flags.writeable:
        owner = owner.base
    if not isinstance(owner, np.ndarray):
        return value
    copy = value.copy()
    copy.flags.writeable = False
    return copy


def described(tensors: Mapping[str, Any]) -> dict[str, GivenTensor]:
    """Return what the analysis has to know of tensors."""
    return {
        name: GivenTensor.of(value) if isinstance(value, np.ndarray) else GivenTensor(tuple(value.shape), True, "bool")
        for name, value in tensors.items()
    }


def check_kind(name: str, value: Any, model: Model) -> None:
    """Refuse numbers for a relation."""
    tensor = model.analysis.tensors.get(name)
    if tensor is not None and tensor.boolean and value.dtype != bool:
        message = f"{name!r} stands in parentheses, so it is true or false, but it is given as {value.dtype}"
        hints = f"give truth values: {name}={name.lower()} > 0.5", f"write {name}[...] to calculate with the numbers"
        raise InputError(message, *hints, code="E831", location=tensor.at)


# what statements say of a name


def atoms_of(statement: s.Statement) -> Iterable[s.Tensor]:
    """Return the tensors of a statement that are written with places."""
    if isinstance(statement, s.Facts):
        places = tuple(s.Place(s.Variable("x")) for _ in statement.columns)
        return [s.Tensor(statement.name, places, True)]
    return [t for t in s.walk(statement) if isinstance(t, s.Tensor) and (t.places or t.boolean)]


def is_mentioned(statements: Iterable[s.Statement], name: str) -> bool:
    """Tell whether statements have a tensor or a constant of a name."""
    return any(
        getattr(x, "name", None) == name
        or any(
            isinstance(t, s.Tensor | s.Constant) and name in (getattr(t, "name", None), getattr(t, "value", None))
            for t in s.walk(x)
        )
        for x in statements
    )


def defining_equation(statements: Iterable[s.Statement], name: str) -> s.Equation | None:
    """Return the first equation that defines a tensor of numbers, if there is one."""
    return next(
        (x for x in statements if isinstance(x, s.Equation) and x.head.name == name and not x.head.boolean), None
    )


def holds_numbers(statements: Iterable[s.Statement], name: str) -> bool:
    """Tell whether a tensor is written with brackets, or defined as a scalar."""
    heads = [x.head for x in statements if isinstance(x, s.Equation)]
    return any(t.name == name and not t.boolean for t in [*heads, *(t for x in statements for t in atoms_of(x))])
