"""The value of an expression: products are joins that project where they stand, functions project what they are given."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from ..errors import GraphError
from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from . import syntax as s
from .affine import Affine
from .analysis import Analysis
from .extents import forms, slice_variable
from .functions import apply_function
from .indexing import Value, aligned, contract, length, read

Indices = frozenset[str]
NOTHING: Indices = frozenset()
LARGE = 1 << 26  # elements of a relation beyond which its numbers would fill the memory


def free(part: s.Part) -> Indices:
    """Return the indices of an expression; slices count as indices, too."""
    found = set(s.variables(part))
    for piece in s.walk(part):
        if isinstance(piece, s.Tensor):
            slices = sum(isinstance(place.index, s.Range) for place in piece.places)
            found.update(slice_variable(n) for n in range(slices))
    return frozenset(found)


def factors_of(part: s.Expression) -> list[s.Expression]:
    """Return the factors of a product, those of products within it included."""
    if not isinstance(part, s.Product):
        return [part]
    return [f for factor in part.factors for f in factors_of(factor)]


def places_of(analysis: Analysis, tensor: s.Tensor) -> list[Affine | int]:
    """Return what stands in each place of a tensor: a position, or the form of an index."""
    result: list[Affine | int] = []
    for p, (place, form) in enumerate(zip(tensor.places, forms(tensor, analysis.scalars), strict=True)):
        if form is None:
            assert isinstance(place.index, s.Constant)
            result.append(analysis.code(tensor.name, p, place.index))
        else:
            result.append(form)
    return result


def reads_last(analysis: Analysis, statement: s.Statement, part: s.Tensor) -> bool:
    """Tell whether a tensor with a virtual index is read at the position that is kept.

    That is so at its number, and for ``X[i,*t]`` where ``t`` stands nowhere else in the statement.
    """
    at = analysis.tensors[part.name].virtual
    if at is None or part.name not in analysis.kept:
        return False
    place = part.places[at]
    if isinstance(place.index, s.Constant):
        return analysis.code(part.name, at, place.index) == analysis.kept[part.name]
    if not isinstance(place.index, s.Variable):
        return False
    name = place.index.name
    return place.virtual and sum(isinstance(p, s.Variable) and p.name == name for p in s.walk(statement)) == 1


class Evaluation:
    """Evaluates the expressions of one equation; every variable runs over one range wherever it stands."""

    def __init__(self, analysis: Analysis, b: GraphBuilder, equation: s.Equation, lookup: Callable[[str], Any]) -> None:
        self.analysis, self.b, self.equation, self.lookup = analysis, b, equation, lookup
        self.ranges, self.beyond = analysis.ranges(equation)
        self.recursive = False
        found = zip(equation.head.places, forms(equation.head, analysis.scalars), strict=True)
        indices = [(v, place.normalised) for place, form in found if form is not None for v in form.variables]
        self.head = tuple(dict.fromkeys(v for v, _ in indices))
        self.order = tuple(dict.fromkeys([*self.head, *self.ranges]))
        self.masks: list[Value] = []
        self.normalised = tuple(v for v, normalised in indices if normalised)

    def numeric(self, value: Value) -> Value:
        """Turn truth values into 0 and 1."""
        return Value(self.b.cast(value.tensor, self.analysis.dtype), value.axes) if value.boolean else value

    def sorted(self, axes: Collection[str]) -> tuple[str, ...]:
        """Return axes in the order in which values of this equation have them."""
        return tuple(a for a in self.order if a in axes)

    def elementwise(self, function: Callable[..., Any], *values: Value) -> Value:
        """Apply a function element by element, with what lacks an index the same for all its values."""
        axes = self.sorted({a for v in values for a in v.axes})
        return Value(function(*(aligned(self.b, v, axes) for v in values)), axes)

    def reduced(self, function: Callable[..., Any], value: Value, kept: Collection[str]) -> Value:
        """Reduce the axes of a value that are not to be kept; ``function`` gets the tensor and the places of those axes."""
        over = [n for n, a in enumerate(value.axes) if a not in kept]
        return Value(function(value.tensor, over), tuple(a for a in value.axes if a in kept)) if over else value

    def sum(self, value: Value, over: Indices) -> Value:
        """Sum over the axes that a value has of some."""
        if over.isdisjoint(value.axes):
            return value
        return self.reduced(self.b.sum, self.numeric(value), frozenset(value.axes) - over)

    def fail(self, message: str, *hints: str, part: s.Part, code: str) -> GraphError:
        """Return an error that points at a part of the equation."""
        return GraphError(message, *hints, code=code, location=part.at or self.equation.at)

    # expressions

    def value(self, part: s.Expression, outer: Indices, sums: Indices = NOTHING) -> Value:
        """Evaluate an expression; ``outer`` are the indices that occur outside of it, ``sums`` those that may be summed right here.

        An index that is in neither stays, unless a product or a function inside sums it.
        """
        b = self.b
        match part:
            case s.Number(value=number):
                return Value(number)
            case s.Negative(value=inner):
                return self.elementwise(b.negative, self.numeric(self.value(inner, outer, sums)))
            case s.Operation(operator="+" | "-" as sign, left=left, right=right):
                both = sums & free(left) & free(right)  # a sum of sums
                one = self.value(left, outer | free(right), both)
                two = self.value(right, outer | free(left), both)
                function = b.add if sign == "+" else b.subtract
                return self.sum(self.elementwise(function, self.numeric(one), self.numeric(two)), sums)
            case s.Operation(operator="/", left=left, right=right):
                inside = (sums & free(left)) - free(right)
                one = self.value(left, outer | free(right), inside)
                two = self.value(right, outer | free(left))
                return self.sum(self.elementwise(b.divide, self.numeric(one), self.numeric(two)), sums)
            case s.Operation(operator="^", left=left, right=right):
                one = self.numeric(self.value(left, outer | free(right)))
                two = self.numeric(self.value(right, outer | free(left)))
                if isinstance(two.tensor, int | float) and two.tensor == 2 and isinstance(one.tensor, Tensor):
                    return self.sum(Value(b.square(one.tensor), one.axes), sums)
                return self.sum(self.elementwise(self._power, one, two), sums)
            case s.Product():
                return self.product(part, outer, sums)
            case s.Call():
                return self.sum(apply_function(self, part, outer), sums)
            case s.Tensor():
                return self.sum(self.tensor(part), sums)
            case s.Variable(name=name):
                return self.sum(self.index(part, name), sums)
            case s.Comparison(operator=operator, left=left, right=right):
                one = self.side(part, left, outer | free(right))
                two = self.side(part, right, outer | free(left))
                return self.sum(self.elementwise(getattr(b, s.COMPARISONS[operator]), one, two), sums)
            case s.Not(atom=atom):
                found = self.tensor(atom)
                return self.sum(Value(b.logical_not(found.tensor), found.axes), sums)
            case s.ListLiteral():
                message = "a literal stands inside an expression, so its indices have no names"
                hint = "give it a name in an equation of its own: W = [1, 2, 3]"
                raise self.fail(message, hint, part=part, code="E686")
        raise self.fail("a text is no value of an equation", "compare with it, or read a file", part=part, code="E687")

    def _power(self, base: Any, exponent: Any) -> Any:
        if not isinstance(base, Tensor) and not isinstance(exponent, Tensor):
            return _number_power(base, exponent)
        if isinstance(exponent, int) and exponent < 0:  # whole numbers have no negative powers in NumPy
            exponent = float(exponent)
        return self.b.power(base, exponent)

    def times(self, a: Any, b: Any) -> Any:
        """Multiply tensors or numbers."""
        return self.b.multiply(a, b) if isinstance(a, Tensor) or isinstance(b, Tensor) else a * b

    def product(self, part: s.Product, outer: Indices, sums: Indices) -> Value:
        """Join the factors and project onto the indices that occur outside: one einsum."""
        factors = factors_of(part)
        others = [f for f in factors if not isinstance(f, s.Number)]
        number = math.prod(f.value for f in factors if isinstance(f, s.Number))
        if len(others) == 1:
            result = self.numeric(self.value(others[0], outer, sums))
        elif not others:
            return Value(number)
        else:
            indices = [free(f) for f in others]
            values = []
            for n, factor in enumerate(others):
                around = frozenset().union(*(f for k, f in enumerate(indices) if k != n))
                values.append(self.value(factor, outer | around))
            remaining = self.sorted({a for v in values for a in v.axes if a in outer and a not in sums})
            if all(v.boolean for v in values):
                return self.count(values, remaining, self.analysis.dtype)
            values = [self.numeric(v) for v in values]
            result = (
                contract(self.b, [v for v in values if v.axes], remaining)
                if remaining or any(v.axes for v in values)
                else Value(1)
            )
            for scalar in (v for v in values if not v.axes):
                one = not isinstance(result.tensor, Tensor) and result.tensor == 1
                result = scalar if one else self.elementwise(self.times, result, scalar)
        return result if number == 1 else self.elementwise(self.times, result, Value(number))

    def count(self, values: Sequence[Value], remaining: tuple[str, ...], dtype: str) -> Value:
        """Count the tuples for which all of some truth values hold, by the axes that are kept.

        Relations too large for dense arrays are joined as relations, and then counted.
        """
        b = self.b
        if max(self.positions(v.axes) for v in values) < LARGE:
            return contract(b, [Value(b.cast(v.tensor, dtype), v.axes) for v in values], remaining)
        whole = self.sorted({a for v in values for a in v.axes})
        joined = contract(b, values, whole, "boolean")
        return self.sum(Value(b.cast(joined.tensor, dtype), whole), frozenset(whole) - frozenset(remaining))

    def side(self, comparison: s.Comparison, part: s.Expression, outer: Indices) -> Value:
        """Return one side of a comparison; a name stands for its position where the other side is an index."""
        match part:
            case s.Text(value=word):
                pass
            case s.Tensor(name=word, places=()) if word not in self.analysis.tensors:
                pass
            case _:
                return self.numeric(self.value(part, outer))
        other = comparison.right if part is comparison.left else comparison.left
        if not isinstance(other, s.Variable) or comparison.operator not in ("=", "!="):
            raise self.fail(f"{word!r} is a name, which only = and != compare with an index", part=part, code="E687")
        code = self.analysis.domain(self.equation, other.name).code(word)
        return Value(-1 if code is None else code)

    def index(self, part: s.Part, name: str) -> Value:
        """Return an index variable as a number."""
        start, stop = self.ranges[name]
        info = self.analysis.domain(self.equation, name)
        dtype = self.analysis.dtype
        if info.kind == "integers":
            known = info.values() or []
            return Value(self.b.constant(np.array(known[start:stop], dtype)), (name,))
        counted = self.b.cast(self.b.iota(stop - start), dtype)
        return Value(self.b.add(counted, start) if start else counted, (name,))

    def tensor(self, part: s.Tensor) -> Value:
        """Read a tensor by its indices."""
        if not part.places and part.name in self.analysis.scalars:
            return Value(self.analysis.scalars[part.name])
        tensor, places = self.lookup(part.name), places_of(self.analysis, part)
        at = self.analysis.tensors[part.name].virtual
        if at is not None and reads_last(self.analysis, self.equation, part):
            places[at] = self.analysis.kept[part.name] if int(tensor.shape[at]) > 1 else 0
        return self.read(part, tensor, places)

    def read(self, part: s.Tensor, tensor: Tensor, places: Sequence[Affine | int]) -> Value:
        """Read a tensor by what stands in each place, and note where that is beyond its axes."""
        if len(tensor.shape or ()) != len(places):
            info = self.analysis.tensors[part.name]
            hint = f"write its indices: {part.name}[{', '.join('ijklmnop'[: info.arity])}]"
            raise self.fail(f"{part.name!r} has {info.arity} places, but none is written", hint, part=part, code="E674")
        found, masks = read(self.b, tensor, places, self.ranges, self.beyond)
        self.masks += masks
        return found

    def valid(self) -> Value | None:
        """Return where all that was read is in range, by the indices of the left side; None where it is everywhere."""
        total: Value | None = None
        for mask in self.masks:
            here = self.reduced(self.b.all, mask, self.head)
            total = here if total is None else self.elementwise(self.b.logical_and, total, here)
        return total

    def positions(self, axes: Sequence[str]) -> int:
        """Return over how many elements some axes run."""
        return int(np.prod([length(self.ranges, a) for a in axes], dtype=np.int64))


def _number_power(base: float, exponent: float) -> float:
    """Return a power of two numbers: exact where it is a small whole number, else as NumPy has it."""
    if isinstance(base, int) and isinstance(exponent, int) and 0 <= abs(base).bit_length() * exponent <= 63:
        return int(base**exponent)
    with np.errstate(all="ignore"):
        return float(np.float64(base) ** np.float64(exponent))
