"""Names for indices that have none, or that mean different things under one name: ``_``, slices, and the terms of a sum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

from ..errors import GraphError
from . import syntax as s
from .affine import affine
from .declarations import Scalars
from .extents import Slice, slice_start

PROJECTING = ("=", "+=")


def named(equation: s.Equation, scalars: Scalars, slices: list[Slice]) -> s.Equation:
    """Return an equation in which every index has a name of its own.

    Every ``_`` is a variable of its own. A slice has the index of the left side that stands nowhere on the right:
    ``Y[i] = X[4:8]`` is ``Y[i] = X[i+4]``, and ``Y = X[4:8]`` is the same; how long it is goes to ``slices``. In a sum
    of products, an index that each sums for itself is local to each.
    """
    result = equation
    if "_" in s.variables(equation):
        numbers = count(1)
        result = s.with_variables(equation, lambda v: s.Variable(f"_{next(numbers)}", at=v.at) if v.name == "_" else v)
    if any(isinstance(part, s.Range) for part in s.walk(result)):
        result = _sliced(result, scalars, slices)
    if any(isinstance(part, s.Operation) and part.operator in "+-" for part in s.walk(result.value)):
        head = frozenset(s.variables(result.head))
        value = _local(result.value, head, linear=result.operator in PROJECTING)
        if value is not result.value:
            result = s.Equation(result.head, result.operator, value, at=result.at)
    return result


# slices


def _sliced(equation: s.Equation, scalars: Scalars, slices: list[Slice]) -> s.Equation:
    """Give slices the names of indices that stand on the left side alone."""
    head = equation.head
    inside = set(s.variables(equation.value))
    new = [v for v in s.variables(head) if v not in inside]
    if not head.places and equation.operator == "=" and _bare(equation.value):
        tensors = [p for p in s.walk(equation.value) if isinstance(p, s.Tensor)]
        most = max(sum(isinstance(place.index, s.Range) for place in t.places) for t in tensors)
        new = [f"i{n}" for n in range(most)]
        head = s.Tensor(head.name, tuple(s.Place(s.Variable(v, at=head.at), at=head.at) for v in new), at=head.at)

    def change(part: s.Part) -> s.Part | None:
        if not isinstance(part, s.Tensor):
            return None
        names = iter(new)
        places = tuple(place(part, p, names) for p in range(len(part.places)))
        return s.Tensor(part.name, places, part.boolean, at=part.at)

    def place(tensor: s.Tensor, p: int, names: Iterator[str]) -> s.Place:
        found = tensor.places[p]
        index = found.index
        if not isinstance(index, s.Range):
            return found
        start = slice_start(index, scalars)
        stop = None if index.stop is None else affine(index.stop, scalars).constant
        if start < 0 or (stop is not None and stop < start):
            message = f"a slice runs from 0 upwards, got {start}:{'' if stop is None else stop}"
            raise GraphError(message, "write the smaller number first", code="E678", location=index.at)
        name = next(names, None)
        if name is None:
            return found
        if stop is not None:
            slices.append(Slice(name, tensor.name, p, start, stop - start, index))
        moved = s.Arithmetic("+", s.Variable(name, at=index.at), s.Constant(start), at=index.at)
        return s.Place(moved, found.normalised, found.virtual, at=found.at)

    return s.Equation(head, equation.operator, s.changed(equation.value, change), at=equation.at)


def _bare(value: s.Part) -> bool:
    """Tell whether nothing in an expression projects: no function, and no product of two tensors."""
    parts = s.walk(value)
    return not any(isinstance(p, s.Call) or (isinstance(p, s.Product) and len(_factors(p)) > 1) for p in parts)


# the terms of a sum


def _factors(part: s.Expression) -> list[s.Expression]:
    """Return the factors of a product that are no numbers."""
    if not isinstance(part, s.Product):
        return [] if isinstance(part, s.Number) else [part]
    return [f for factor in part.factors for f in _factors(factor)]


def _terms(part: s.Expression) -> list[s.Expression]:
    if isinstance(part, s.Operation) and part.operator in "+-":
        return _terms(part.left) + _terms(part.right)
    return [part]


def _local(part: Any, outer: frozenset[str], *, linear: bool) -> Any:
    """Rename indices that each product of a sum sums for itself, wherever a sum is what is projected."""
    match part:
        case s.Operation(operator="+" | "-") if linear:
            terms = _terms(part)
            shared = _shared(terms, outer)
            renamed = {id(term): _primed(term, shared, n) for n, term in enumerate(terms) if n}
            return _replaced(part, renamed, outer)
        case s.Negative(value=value, at=at):
            return s.Negative(_local(value, outer, linear=linear), at=at)
        case s.Call(function=function, arguments=arguments, at=at):
            return s.Call(function, _each_local(arguments, outer, linear=True), at=at)
        case s.Product(factors=factors, at=at):
            return s.Product(_each_local(factors, outer, linear=False), at=at)
        case s.Operation(operator=operator, left=left, right=right, at=at):
            one = _local(left, outer | set(s.variables(right)), linear=linear and operator == "/")
            return s.Operation(operator, one, _local(right, outer | set(s.variables(left)), linear=False), at=at)
    return part


def _each_local(parts: Sequence[s.Expression], outer: frozenset[str], *, linear: bool) -> tuple[Any, ...]:
    """Rename in each of some parts; the indices of the others are outside of it."""
    used = [s.variables(part) for part in parts]
    around = [outer.union(*used[:n], *used[n + 1 :]) for n in range(len(parts))]
    return tuple(_local(part, others, linear=linear) for part, others in zip(parts, around, strict=True))


def _replaced(part: Any, renamed: dict[int, s.Expression], outer: frozenset[str]) -> Any:
    """Put renamed terms in their places in a sum, and look into each term."""
    if isinstance(part, s.Operation) and part.operator in "+-":
        one, two = (
            _replaced(side, renamed, outer | set(s.variables(other)))
            for side, other in ((part.left, part.right), (part.right, part.left))
        )
        return s.Operation(part.operator, one, two, at=part.at)
    return _local(renamed.get(id(part), part), outer, linear=False)


def _shared(terms: list[s.Expression], outer: frozenset[str]) -> set[str]:
    """Return the indices that several terms have, and that each of them has in a tensor of a product."""
    counts = Counter(name for term in terms for name in s.variables(term))
    found = {name for name, count in counts.items() if count > 1 and name not in outer}
    for term in terms:
        factors = _factors(term.value if isinstance(term, s.Negative) else term)
        direct = {v for f in factors if isinstance(f, s.Tensor) for v in s.variables(f)} if len(factors) > 1 else set()
        found -= set(s.variables(term)) - direct
    return found


def _primed(term: s.Expression, names: set[str], count: int) -> s.Expression:
    """Return a term with primes behind the names of some of its indices."""
    if names.isdisjoint(s.variables(term)):
        return term
    primes = "\N{PRIME}" * count
    renamed: s.Expression = s.with_variables(
        term, lambda v: s.Variable(v.name + primes, at=v.at) if v.name in names else v
    )
    return renamed
