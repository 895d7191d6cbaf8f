"""Which new numbers the arithmetic of rules can derive: ``y = x + 1`` may derive numbers that no fact has, and domains grow to hold them."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import product
from typing import NamedTuple

from ..errors import GraphError
from . import syntax as s
from .declarations import Statement
from .domain_inference import DomainKey, integers
from .domains import Domain
from .strata import Component, body_of, calculated, variables_of_atoms

FLIPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "="}
Bounds = tuple[float, float]  # the least and the greatest value
MAX_NUMBER = 2**31 - 2  # rules that derive larger ones are taken to have no end
ENDLESS: Bounds = (-math.inf, math.inf)
KeyOf = Callable[[Statement, str | int], DomainKey | None]  # of a variable, or of a place of the head


class Derived(NamedTuple):
    """A number that a rule derives: the domain that must hold it, and its value."""

    rule: Statement
    key: DomainKey
    value: s.Expression
    name: str  # in messages


def grow(
    parts: Sequence[Component],
    domains: dict[DomainKey, Domain],
    key_of: KeyOf,
    scalars: Mapping[str, int | float],
    fixed: Collection[DomainKey],
    positions: Collection[DomainKey],
) -> frozenset[DomainKey]:
    """Let domains hold every number that rules derive, and return those that grew; refuse rules whose numbers have no end.

    Domains whose size is ``fixed`` by data stay: numbers beyond them do not exist. Nor do numbers below 0 among ``positions``.
    """
    grown: set[DomainKey] = set()
    for part in parts:
        derived = [d for rule in part.statements for d in _derived(rule, key_of) if d.key not in fixed]
        before = {key: _reach(info) for key, info in domains.items()}  # what other components derive stays within
        changed: Derived | None = None
        for _ in range(len(derived) + 2 if part.recursive else 1):
            changed = None
            for d in derived:
                low, high = _reach(domains[d.key])
                reach = {key: _reach(info) for key, info in domains.items()}
                least = 0 if d.key in positions else -math.inf
                around = {**reach, d.key: (least, math.inf)} if part.recursive else reach
                first, last = _bounds(d, part, before, around, key_of, scalars)
                first = max(first, least)
                if part.recursive and (first == -math.inf or last == math.inf):  # is it closed, at least?
                    closed = _bounds(d, part, before, reach, key_of, scalars)
                    closed = max(closed[0], least), closed[1]
                    if (first == -math.inf and closed[0] < low) or (last == math.inf and closed[1] > high):
                        raise _endless(d, down=first == -math.inf and closed[0] < low)
                    first, last = (closed[n] if abs(x) == math.inf else x for n, x in enumerate((first, last)))
                if last >= MAX_NUMBER or first <= -MAX_NUMBER:
                    raise _endless(d, down=last < MAX_NUMBER)
                if first < low or last > high:
                    largest = last if high == math.inf else max(last, high)  # nothing else fixes the size of the domain
                    domains[d.key] = _widened(d, math.floor(min(first, low)), int(largest))
                    grown.add(d.key)
                    changed = d
            if changed is None:
                break
        if changed is not None and part.recursive:
            raise _endless(changed)
    return frozenset(grown)


def _reach(info: Domain) -> Bounds:
    """Return the least and the greatest number of a domain."""
    if info.kind == "integers" and info.elements:
        return min(map(int, info.elements)), max(map(int, info.elements))
    return (0, math.inf) if info.size is None else (0, info.size - 1)


def _widened(d: Derived, first: int, last: int) -> Domain:
    """Return a domain that holds the numbers from one to another."""
    if first >= 0:
        return Domain(size=last + 1)
    try:
        return integers(first, last)
    except GraphError as error:
        raise error.at(d.value.at or d.rule.at) from None


def _endless(d: Derived, *, down: bool = False) -> GraphError:
    message = f"the numbers of {d.name} in the rule of {d.rule.head.name} have no end"
    name = d.name if d.name.isidentifier() else next(iter(s.variables(d.value)), "x")
    hint = f"bound them in the body: {name} {'>= 0' if down else '<= 100'}"
    return GraphError(message, hint, code="E756", location=d.value.at or d.rule.at)


def _derived(rule: Statement, key_of: KeyOf) -> list[Derived]:
    """Return the numbers of a rule that an equation or arithmetic in its head makes, not an atom."""
    if isinstance(rule, s.Equation) and not rule.head.boolean:
        return []
    found: list[Derived] = []
    for name, value in calculated(body_of(rule)).items():
        key = key_of(rule, name)
        if key is not None:
            found.append(Derived(rule, key, s.Variable(name, at=value.at), name))
    for p, place in enumerate(rule.head.places):
        key = key_of(rule, p)
        if isinstance(place.index, s.Arithmetic) and key is not None:
            found.append(Derived(rule, key, as_value(place.index), "the head"))
    return found


def as_value(index: s.Index) -> s.Expression:
    """Return an index as a value, as it stands in a comparison.

    >>> as_value(s.Arithmetic("+", s.Variable("x"), s.Constant(1))).operator
    '+'
    """
    match index:
        case s.Arithmetic(operator="*", left=left, right=right):
            return s.Product((as_value(left), as_value(right)), at=index.at)
        case s.Arithmetic(operator=operator, left=left, right=right):
            return s.Operation(operator, as_value(left), as_value(right), at=index.at)
        case s.Variable() | s.Constant():
            return index
    raise AssertionError(index)


def _comparisons(body: Sequence[s.Expression]) -> list[tuple[str, str, s.Expression]]:
    """Return the comparisons with a variable on one side, turned so that it stands left."""
    found = []
    for part in body:
        if isinstance(part, s.Comparison) and part.operator in FLIPPED:
            if isinstance(part.left, s.Variable):
                found.append((part.left.name, part.operator, part.right))
            if isinstance(part.right, s.Variable):
                found.append((part.right.name, FLIPPED[part.operator], part.left))
    return found


def _bounds(
    d: Derived,
    part: Component,
    before: Mapping[DomainKey, Bounds],
    reach: Mapping[DomainKey, Bounds],
    key_of: KeyOf,
    scalars: Mapping[str, int | float],
) -> Bounds:
    """Return the bounds of a derived number from the domains of the variables and what the rule compares them with."""
    body = body_of(d.rule)
    known: dict[str, Bounds] = {}
    lower = variables_of_atoms(body, part.names)
    for name in variables_of_atoms(body):
        key = key_of(d.rule, name)
        known[name] = (before if name in lower else reach).get(key, ENDLESS) if key is not None else ENDLESS
    compared = _comparisons(body)
    for _ in range(len(compared) + 1):
        for name, sign, other in compared:
            if not all(v in known for v in s.variables(other)) or not (name in known or sign == "="):
                continue
            low, high = known.get(name, ENDLESS)
            first, last = _value(other, known, scalars)
            step = 1 if sign in "<>" else 0
            if sign in ("<", "<=", "="):
                high = min(high, last - step)
            if sign in (">", ">=", "="):
                low = max(low, first + step)
            known[name] = (low, high)
    return _value(d.value, known, scalars)


def _value(part: s.Expression, known: Mapping[str, Bounds], scalars: Mapping[str, int | float]) -> Bounds:
    """Return the bounds of an expression."""
    match part:
        case s.Number(value=number):
            return number, number
        case s.Variable(name=name):
            return known.get(name, ENDLESS)
        case s.Constant(value=value) if isinstance(value, int):
            return value, value
        case s.Constant(value=str(name)) | s.Tensor(name=name, places=()) if name in scalars:
            return scalars[name], scalars[name]
        case s.Negative(value=inner):
            low, high = _value(inner, known, scalars)
            return -high, -low
        case s.Product(factors=factors):
            found: Bounds = (1, 1)
            for factor in factors:
                found = _ends(_times, found, _value(factor, known, scalars))
            return found
        case s.Operation(operator=operator, left=left, right=right):
            a, b = _value(left, known, scalars), _value(right, known, scalars)
            if operator == "+":
                return a[0] + b[0], a[1] + b[1]
            if operator == "-":
                return a[0] - b[1], a[1] - b[0]
            if operator == "/" and b[0] >= 1:
                return _ends(lambda x, y: x / y if abs(x) != math.inf else x, a, b)
            if operator == "^" and a[0] >= 0 and b[0] >= 0 and b[1] <= 64 and a[1] <= MAX_NUMBER:
                return a[0] ** b[0], a[1] ** b[1]
    return ENDLESS


def _times(x: float, y: float) -> float:
    return 0 if x == 0 or y == 0 else x * y


def _ends(function: Callable[[float, float], float], a: Bounds, b: Bounds) -> Bounds:
    every = [function(x, y) for x, y in product(a, b)]
    return min(every), max(every)
