"""The left side of an equation: how the other indices are summed out, and where the result goes in the tensor."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np

from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from . import syntax as s
from .affine import Affine
from .analysis import TensorInfo
from .declarations import literal_array
from .evaluate import Evaluation, factors_of, free
from .indexing import Ranges, Value, aligned, contract, length, position, tensor_of, with_axes
from .strata import is_logical

INF = float("inf")
REDUCE = {"=": "sum", "max=": "max", "min=": "min", "count=": "sum"}
FILL = {"=": 0, "max=": -INF, "min=": INF, "count=": 0}  # what takes part in no projection


class Contribution(NamedTuple):
    """What one equation says of a tensor: all of its elements, and whether it derives every one of them."""

    tensor: Tensor
    complete: bool


class Target(NamedTuple):
    """One place of the left side: a position or an index, and how far the axis goes."""

    form: Affine | int
    extent: int


def contribution(at: Evaluation, operator: str, targets: Sequence[Target], combined: str) -> Contribution:
    """Evaluate an equation and put the result in its places.

    ``operator`` is the equation's own, ``combined`` that of the tensor: an equation with ``=`` for a tensor that another one
    combines by ``max=`` says what takes part in the maximum.
    """
    b = at.b
    way = combined if operator in ("=", "+=") and combined in ("max=", "min=") else operator.replace("+=", "=")
    if way == "avg=":
        return _average(at, targets)
    value, derived = _projected(at, operator.replace("+=", "="))
    mask = at.valid()
    if mask is not None:
        value = at.elementwise(lambda d, x: b.where(d, x, _fill_like(x, FILL[way])), mask, at.numeric(value))
    tensor, covered = place(at, value, targets, way)
    return Contribution(tensor, covered and derived and mask is None)


def _fill_like(tensor: Any, fill: float) -> Any:
    """Return a fill as a number of the tensor's kind."""
    whole = isinstance(tensor, Tensor) and tensor.dtype is not None and "int" in tensor.dtype
    return int(fill) if whole and abs(fill) != INF else float(fill)


def _projected(at: Evaluation, operator: str) -> tuple[Value, bool]:
    """Return the value by the indices of the left side, and whether every element of it is derived."""
    expression, head = at.equation.value, frozenset(at.head)
    b = at.b
    if isinstance(expression, s.ListLiteral):
        array = literal_array(expression).astype(at.analysis.dtype)
        if array.ndim != len(at.head):
            message = f"a literal of {array.ndim} indices is given for {len(at.head)} on the left side"
            raise at.fail(message, part=expression, code="E686")
        return Value(b.constant(array), at.head), True
    if operator == "=":
        found = at.value(expression, head, free(expression) - head)
        return at.sum(found, frozenset(found.axes) - head), True
    if operator == "count=":
        held: list[Value] = []
        for factor in factors_of(expression):
            value = at.value(factor, head | free(expression))
            held.append(value if value.boolean else Value(b.not_equal(tensor_of(b, value), 0), value.axes))
        return at.count(held, at.sorted({a for v in held for a in v.axes} & head), "int64"), True
    terms = terms_of(expression)
    algebra = {"min=": "min_plus", "max=": "max_plus"}[operator]
    if len(terms) > 1:
        values = []
        for sign, term in terms:
            value = at.numeric(at.value(term, head.union(*(free(t) for _, t in terms if t is not term))))
            values.append(value if sign > 0 else at.elementwise(b.negative, value))
        numbers = [v for v in values if not isinstance(v.tensor, Tensor)]
        joined = [v for v in values if isinstance(v.tensor, Tensor)]
        axes = at.sorted({a for v in joined for a in v.axes} & head)
        total = sum(v.tensor for v in numbers)
        if joined:
            result = contract(b, joined, axes, algebra)
            return (at.elementwise(b.add, result, Value(total)) if total else result), True
        return Value(total), True
    conditions, rest = _split(at, expression)
    if operator == "max=" and at.recursive and len(rest) > 1:  # rounds that are to settle need an algebra
        factors = [at.numeric(at.value(f, head | free(expression))) for f in (*rest, *conditions)]
        numbers = [f for f in factors if not isinstance(f.tensor, Tensor)]
        joined = [f for f in factors if isinstance(f.tensor, Tensor)]
        best = contract(b, joined, at.sorted({a for f in joined for a in f.axes} & head), "max_product")
        return reduce(partial(at.elementwise, at.times), numbers, best), not conditions
    value = _kept(at, rest, expression)
    if conditions:
        truths = (at.value(condition, head | free(expression)) for condition in conditions)
        guard = reduce(partial(at.elementwise, b.logical_and), truths)
        value = at.elementwise(lambda c, x: b.where(c, x, FILL[operator]), guard, value)
    return at.reduced(b.max if operator == "max=" else b.min, value, head), not conditions


def terms_of(part: s.Expression, sign: int = 1) -> list[tuple[int, s.Expression]]:
    """Return the terms of a sum with their signs."""
    if isinstance(part, s.Operation) and part.operator in "+-":
        return terms_of(part.left, sign) + terms_of(part.right, sign if part.operator == "+" else -sign)
    return [(sign, part)]


def _split(at: Evaluation, expression: s.Expression) -> tuple[list[s.Expression], list[s.Expression]]:
    """Return the factors that are conditions (relations, comparisons), and the others; relations alone are what is projected."""
    factors = factors_of(expression)
    conditions = [f for f in factors if is_logical(f, at.analysis.tensors)]
    rest = [f for f in factors if f not in conditions]
    return (conditions, rest) if rest else ([], factors)


def _kept(at: Evaluation, factors: Sequence[s.Expression], expression: s.Expression) -> Value:
    """Multiply factors element by element: nothing is summed, because another projection follows."""
    everything = frozenset(at.head) | free(expression)
    values = (at.numeric(at.value(factor, everything)) for factor in factors)
    return reduce(partial(at.elementwise, at.times), values)


def _average(at: Evaluation, targets: Sequence[Target]) -> Contribution:
    """The mean of what is left over, where its conditions hold; 0 where there is none."""
    b, head = at.b, frozenset(at.head)
    conditions, rest = _split(at, at.equation.value)
    value = _kept(at, rest, at.equation.value)
    weights = [at.numeric(at.value(c, head | free(at.equation.value))) for c in conditions]
    parts = [value, *weights] if isinstance(value.tensor, Tensor) else weights
    remaining = at.sorted({a for v in parts for a in v.axes} & head)
    total = contract(b, parts, remaining) if parts else value
    if not isinstance(value.tensor, Tensor) and parts:
        total = at.elementwise(b.multiply, total, value)
    count = contract(b, weights, at.sorted({a for v in weights for a in v.axes} & head)) if weights else Value(1)
    alone = {a for v in parts for a in v.axes} - head - {a for v in weights for a in v.axes}
    if alone:
        count = at.elementwise(at.times, count, Value(float(at.positions(sorted(alone)))))
    count = with_axes(b, count, at.head, at.ranges, at.analysis.dtype)
    top, covered = place(at, total, targets, "=")
    below, _ = place(at, count, targets, "=")
    some = b.greater(below, 0)
    return Contribution(b.where(some, b.divide(top, b.where(some, below, 1.0)), 0.0), covered)


# several equations


def zero(info: TensorInfo, statements: Sequence[s.Rule | s.Equation]) -> float:
    """Return what an element of a recursion is before anything derives it: the zero of the algebra that the left side asks for."""
    if info.operator == "min=":
        return INF
    own = [x for x in statements if x.head.name == info.name and isinstance(x, s.Equation) and x.operator == "max="]
    return -INF if any(len(terms_of(x.value)) > 1 for x in own) else 0


def merge(b: GraphBuilder, parts: Sequence[Contribution], info: TensorInfo) -> Contribution:
    """Combine what several equations say of a tensor: added, or the greatest, the least, or any of them."""
    join = b.maximum if info.operator == "max=" else b.minimum if info.operator == "min=" else b.add
    join = b.logical_or if info.boolean else join
    return reduce(lambda x, y: Contribution(join(x.tensor, y.tensor), x.complete or y.complete), parts)


def settled(b: GraphBuilder, part: Contribution, info: TensorInfo, none: float) -> Tensor:
    """Return a tensor whose elements that nobody derives are what they should be."""
    nothing = FILL.get(info.operator)  # an infinite one is nothing that was derived
    if not nothing or part.complete or none == nothing or info.boolean:
        return part.tensor
    return b.where(b.equal(part.tensor, nothing), none, part.tensor)


# placing


def place(at: Evaluation, value: Value, targets: Sequence[Target], way: str) -> tuple[Tensor, bool]:
    """Put a value by the indices of the left side into a tensor with an axis for each place; tell whether that fills it."""
    b = at.b
    axes, forms = _copies(targets)
    value = with_axes(b, at.numeric(value), at.head, at.ranges, at.analysis.dtype)
    tensor: Any = value.tensor
    ranges = {**at.ranges, **{copy: at.ranges[name] for copy, name in axes.items()}}
    order = list(at.head)
    for copy, name in axes.items():  # R[x,x]: the diagonal of two axes
        same = b.equal(
            aligned(b, Value(b.iota(length(ranges, name)), (name,)), (*order, copy)),
            aligned(b, Value(b.iota(length(ranges, name)), (copy,)), (*order, copy)),
        )
        tensor = b.where(same, b.expand_dims(tensor, len(order)), _fill_like(tensor, FILL[way]))
        order.append(copy)
    covered, found = not axes, Value(tensor, tuple(order))
    labels = [f"@{p}" for p in range(len(targets))]
    for label, form, target in zip(labels, forms, targets, strict=True):
        found, whole = _place_one(at, found, form, target.extent, label, ranges, way)
        covered = covered and whole
    return aligned(b, found, labels), covered


def _copies(targets: Sequence[Target]) -> tuple[dict[str, str], list[Affine | int]]:
    """Give a variable that stands in several places of the left side a name of its own in each."""
    seen: set[str] = set()
    copies: dict[str, str] = {}
    result: list[Affine | int] = []
    for p, target in enumerate(targets):
        form = target.form
        if not isinstance(form, int):
            terms = []
            for name, factor in form.terms:
                if name in seen:
                    copies[f"{name}@{p}"] = name
                    name = f"{name}@{p}"
                else:
                    seen.add(name)
                terms.append((name, factor))
            form = Affine(tuple(terms), form.constant, form.divisor)
        result.append(form)
    return copies, result


def _place_one(
    at: Evaluation, value: Value, form: Affine | int, extent: int, label: str, ranges: Ranges, way: str
) -> tuple[Value, bool]:
    """Turn the axes of the variables in one place into the axis of that place; tell whether that fills it."""
    b, fill, (tensor, order) = at.b, FILL[way], value
    if isinstance(form, int) or not form.terms:
        constant = form if isinstance(form, int) else form.constant // form.divisor
        tensor = b.expand_dims(tensor, len(order))
        return Value(_padded(b, tensor, len(order), constant, extent, 1, fill), (*order, label)), extent == 1
    name, factor = form.terms[0]
    axis, renamed = order.index(name), tuple(label if a == name else a for a in order)
    if form.is_step:
        start, count = ranges[name][0] + form.constant, length(ranges, name)
        return Value(_padded(b, tensor, axis, start, extent, count, fill), renamed), (start, count) == (0, extent)
    if len(form.terms) == 1 and factor == 1 and length(ranges, name) > 0:
        return Value(_pooled(b, tensor, axis, form, extent, ranges[name], way), renamed), False
    if way != "=":
        message = f"{at.equation.operator} with an index like this on the left side is not there"
        raise at.fail(message, part=at.equation.head, code="E693")
    where = position(b, form, ranges)
    axes = [order.index(name) for name in form.variables]
    rest = [a for a in range(len(order)) if a not in axes]
    moved = b.transpose(tensor, [*axes, *rest])
    assert moved.shape is not None
    flat = b.reshape(moved, [-1, *moved.shape[len(axes) :]])
    zeros = b.broadcast_to(b.constant(np.zeros((), at.analysis.dtype)), [extent, *moved.shape[len(axes) :]])
    result = b.scatter_add(zeros, b.reshape(where.tensor, [-1]), flat, 0)
    return Value(result, (label, *(order[a] for a in rest))), False


def _padded(b: GraphBuilder, tensor: Any, axis: int, start: int, extent: int, count: int, fill: float) -> Any:
    if (start, count) == (0, extent):
        return tensor
    widths = [(0, 0)] * len(tensor.shape)
    widths[axis] = (start, extent - start - count)
    return b.pad(tensor, widths, _fill_like(tensor, fill))


def _pooled(b: GraphBuilder, tensor: Any, axis: int, form: Affine, extent: int, span: tuple[int, int], way: str) -> Any:
    """Reduce groups of neighbours into one element each: ``x/2`` on the left side."""
    first, last = span[0] + form.constant, span[1] + form.constant
    low, high = first // form.divisor, (last - 1) // form.divisor + 1
    shape = list(tensor.shape)
    widths = [(0, 0)] * len(shape)
    widths[axis] = (first - low * form.divisor, high * form.divisor - last)
    if widths[axis] != (0, 0):
        tensor = b.pad(tensor, widths, _fill_like(tensor, FILL[way]))
    shape[axis : axis + 1] = [high - low, form.divisor]
    grouped = getattr(b, REDUCE[way])(b.reshape(tensor, shape), axis + 1)
    return _padded(b, grouped, axis, low, extent, high - low, FILL[way])
