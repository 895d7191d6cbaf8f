"""Recursion that does not go along an index: rounds until nothing changes, in the algebra of the left sides."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from . import syntax as s
from .analysis import Analysis, Component
from .equations import Statement, Values, contributions, data_of, reader, reads_of
from .heads import Contribution, merge, settled, zero

ROUNDS = 100_000  # after which a recursion is given up of which nobody knows how many rounds it takes


def split(component: Component) -> tuple[list[Statement], list[Statement]]:
    """Return the statements that read tensors of the component, and those that do not."""
    inside = [x for x in component.statements if reads_of(x, component.names)]
    return inside, [x for x in component.statements if not reads_of(x, component.names)]


def lower_fixpoint(component: Component, analysis: Analysis, b: GraphBuilder, values: Values) -> None:
    """Apply the equations to what they gave in the round before, from the zero of each algebra, until nothing changes."""
    inside, outside = split(component)
    outer = reader(analysis, b, values)
    base: dict[str, list[Contribution]] = {}
    starts = []
    for name in component.names:
        info = analysis.tensors[name]
        base[name] = contributions(name, outside, analysis, b, outer) + data_of(name, analysis, b, values)
        dtype = "bool" if info.boolean else analysis.dtype
        start = b.constant(np.asarray(zero(info, component.statements), dtype))
        starts.append(b.broadcast_to(start, analysis.shape(name)))
    others = dict.fromkeys(name for statement in inside for name in _others(statement, component.names, analysis))
    read = [outer(name) for name in others]  # inputs are declared outside of the body
    read += [part.tensor for parts in base.values() for part in parts]
    finite = _finite(b, read)

    def body(*carries: Tensor) -> tuple[Tensor, ...]:
        here = dict(zip(component.names, carries, strict=True))

        def lookup(name: str) -> Any:
            return here[name] if name in here else outer(name)

        result = []
        for name, before in zip(component.names, carries, strict=True):
            parts = contributions(name, inside, analysis, b, lookup, recursive=True)
            info = analysis.tensors[name]
            after = settled(b, merge(b, [*parts, *base[name]], info), info, zero(info, component.statements))
            if not info.boolean and info.operator == "=":
                after = _swinging(b, before, after, finite)
            result.append(cast(b, after, before.dtype))
        return tuple(result)

    count = int(sum(np.prod(analysis.shape(name), dtype=np.int64) for name in component.names))
    operators = {analysis.tensors[name].operator for name in component.names}
    bounded = operators in ({"min="}, {"max="}) and not any(map(_curved, inside))
    # a minimum or maximum of sums or products over n elements settles within n rounds, or never
    limit = max(count + 2, 8) if bounded else ROUNDS
    linear = operators <= {"=", "+="} and all(_linear(x, component.names) for x in inside)
    found = b.fixpoint(body, *starts, limit=limit, linear=linear)
    for name, tensor in zip(component.names, found if isinstance(found, tuple) else (found,), strict=True):
        values[name] = tensor


def _curved(statement: Statement) -> bool:
    """Tell whether a statement has more in it than sums and products."""
    parts = s.walk(statement)
    return any(isinstance(p, s.Call) or (isinstance(p, s.Operation) and p.operator in "/^") for p in parts)


def _linear(statement: Statement, names: Sequence[str]) -> bool:
    """Tell whether a statement adds multiples of the tensors of a recursion to what does not depend on them."""
    if not isinstance(statement, s.Equation):
        return False
    degrees: dict[int, int] = {}  # in those tensors, by the id of a part; 2 is that or more
    for part in reversed(s.walk(statement.value)):  # what is inside comes first
        inside = [degrees[id(x)] for x in s.children(part)]
        match part:
            case s.Tensor(name=name) if name in names:
                degree = 1
            case s.Product() | s.Negative():
                degree = sum(inside)
            case s.Operation(operator="+" | "-"):
                degree = max(inside)
            case s.Operation(operator="/"):
                degree = inside[0] + 2 * inside[1]
            case _:
                degree = 2 * max(inside, default=0)
        degrees[id(part)] = min(degree, 2)
    return degrees[id(statement.value)] <= 1


def _finite(b: GraphBuilder, tensors: Sequence[Any]) -> Any:
    """Return whether all of some tensors are finite."""
    found: Any = True
    for tensor in tensors:
        if isinstance(tensor, Tensor) and tensor.dtype != "bool":
            here = b.all(b.isfinite(tensor))
            found = here if found is True else b.logical_and(found, here)
    return found


def _swinging(b: GraphBuilder, before: Tensor, after: Tensor, finite: Any) -> Tensor:
    """Let a sum that has grown beyond every number swing between inf and -inf, so that its rounds never seem to settle."""
    known = b.isfinite(after) if finite is True else b.logical_or(b.isfinite(after), b.logical_not(finite))
    return b.where(known, after, b.where(b.greater(before, 0), -np.inf, np.inf))


def _others(statement: Statement, names: Sequence[str], analysis: Analysis) -> list[str]:
    known = set(analysis.tensors) - set(names) - set(analysis.scalars)
    return [tensor.name for tensor in reads_of(statement, known)]


def cast(b: GraphBuilder, tensor: Tensor, dtype: str | None) -> Tensor:
    """Convert to a dtype, unless it has it."""
    return tensor if dtype is None or tensor.dtype == dtype else b.cast(tensor, dtype)
