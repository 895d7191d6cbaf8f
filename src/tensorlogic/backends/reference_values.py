"""The definitions of operations that compute, element by element: functions, reductions, contractions, sorting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..ir import ops, spec
from ..ir.algebra import ALGEBRAS, Algebra, check_domain
from ..ir.ops import Op
from ..ir.type_rules import label_sizes, reduced_axes
from ..ir.types import Scope, TensorShape, TensorType, normal_axis
from .scalars import NAN, SCALARS

Array = Any  # a NumPy array; the plan says more about it than a type could
Index = tuple[int, ...]
# (operation, operands, types of its results) -> result
Definition = Callable[[Any, list[Array], Sequence[TensorType]], Array]


def indices(shape: Sequence[Any]) -> Iterator[Index]:
    """Go through the places of an array, the last axis first."""
    return itertools.product(*(range(int(n)) for n in shape))


def fill(t: TensorType, element: Callable[[Index], Any]) -> Array:
    """Make an array by saying what each element is; integers wrap around, as in NumPy."""
    shape = tuple(int(d) for d in t.shape or ())
    dtype = np.dtype(t.dtype or "float64")
    out = np.zeros(shape, dtype)
    for index in indices(shape):
        out[index] = wrap(element(index), dtype)
    return out


def wrap(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return a whole number as one of a dtype, around which it wraps; other numbers as they are."""
    if dtype.kind in "iu":
        bits = dtype.itemsize * 8
        number = int(value) % (1 << bits)
        return number - (1 << bits) if dtype.kind == "i" and number >= 1 << (bits - 1) else number
    return value


def _at(x: Array, index: Index) -> Any:
    """Read an element by a broadcast index, as a Python scalar."""
    own = index[len(index) - x.ndim :] if x.ndim else ()
    value = x[tuple(0 if n == 1 else i for i, n in zip(own, x.shape, strict=True))]
    return value.item() if isinstance(value, np.generic) else value  # an integer beyond 64 bits stands as it is


def _elementwise(op: ops.Elementwise, args: list[Array], types: Sequence[TensorType]) -> Array:
    function, dtype = SCALARS[op.fn], np.dtype(types[0].dtype or "float64")
    floats = dtype.kind == "f" and op.fn not in ("where",)
    if op.fn == "lukasiewicz" and dtype.kind in "iu":  # a sum that overflows wraps around before it is bounded
        function = lambda x, y: max(wrap(x + y, dtype), 1) - 1  # noqa: E731

    def element(index: Index) -> Any:
        values = [_at(x, index) for x in args]
        return function(*(float(v) for v in values)) if floats else function(*values)

    return fill(types[0], element)


def _reduce_values(kind: str, values: list[Any]) -> Any:
    """Reduce a list of Python scalars; the algebras' reductions are among the kinds."""
    if kind in ("max", "min") and any(v != v for v in values):
        return NAN
    match kind:
        case "sum":
            return math.fsum(values) if _summable(values) else sum(values)
        case "prod":
            return math.prod(values)
        case "mean":
            return NAN if not values else float(_reduce_values("sum", values)) / len(values)
        case "max":
            return max(values)
        case "min":
            return min(values)
        case "any":
            return any(values)
        case "all":
            return all(values)
        case "logsumexp":
            return _logsumexp(values)
        case "noisy_or":
            return 1 - math.prod(1 - v for v in values)
        case other:
            raise AssertionError(other)


def _summable(values: list[Any]) -> bool:
    return all(isinstance(v, float) and math.isfinite(v) for v in values) and abs(sum(values)) < 1e300


def _logsumexp(values: list[float]) -> float:
    if any(math.isnan(v) for v in values):
        return NAN
    top = max(values, default=-math.inf)
    return top if math.isinf(top) else top + math.log(math.fsum(math.exp(v - top) for v in values))


def _reduce(op: ops.Reduce, args: list[Array], types: Sequence[TensorType]) -> Array:
    x = args[0]
    axes = reduced_axes(op, x.ndim)

    def element(index: Index) -> Any:
        kept = iter(index)
        if op.keepdims:
            kept = iter([i for a, i in enumerate(index) if a not in axes])
        ranges = [range(n) if a in axes else (next(kept),) for a, n in enumerate(x.shape)]
        values = [x[place].item() for place in itertools.product(*ranges)]
        if op.kind.startswith("arg"):
            return _arg_extreme(values, op.kind == "argmax")
        return _reduce_values(op.kind, values)

    return fill(types[0], element)


def _arg_extreme(values: list[Any], largest: bool) -> int:
    for n, v in enumerate(values):
        if v != v:
            return n
    return values.index(max(values) if largest else min(values))


def _cumulate(op: ops.Cumulate, args: list[Array], types: Sequence[TensorType]) -> Array:
    x = args[0]
    axis = normal_axis(op.axis, x.ndim, "cumulate")

    def element(index: Index) -> Any:
        span = range(index[axis], x.shape[axis]) if op.reverse else range(index[axis] + 1)
        return _reduce_values(op.kind, [x[(*index[:axis], i, *index[axis + 1 :])].item() for i in span])

    return fill(types[0], element)


def _terms(form: spec.Spec, args: list[Array], row: Algebra) -> tuple[dict[str, int], Callable[[dict[str, int]], Any]]:
    """Return the sizes of an einsum's labels, and the joined factors at one point of its index space."""
    sizes = {
        k: int(v) for k, v in label_sizes(form, [TensorShape(x.shape) for x in args], Scope(0, str, (), [])).items()
    }
    join, dtype = SCALARS[row.combine], np.result_type(*args)

    def term(point: dict[str, int]) -> Any:
        total = _factor(form.inputs[0], args[0], point)
        for labels, x in zip(form.inputs[1:], args[1:], strict=True):
            total = wrap(join(total, _factor(labels, x, point)), dtype)  # before the largest is chosen
        return total

    return sizes, term


def _factor(labels: spec.Labels, x: Array, point: dict[str, int]) -> Any:
    return x[tuple(0 if n == 1 else point[label] for label, n in zip(labels, x.shape, strict=True))].item()


def _einsum(op: ops.Einsum, args: list[Array], types: Sequence[TensorType]) -> Array:
    row = ALGEBRAS[op.algebra]
    dtype = np.dtype(types[0].dtype or "float64")
    if row.name != "boolean":
        args = [x.astype(dtype) for x in args]
    form = spec.expand(spec.parse(op.spec), tuple(x.ndim for x in args))
    for x in args if row.domain and (len(args) > 1 or form.contracted) else ():  # one that only moves is no factor
        for place in indices(x.shape):
            check_domain(row, x[place].item(), x[place].item())
    sizes, term = _terms(form, args, row)
    kind = "any" if dtype == np.bool_ and row.reduce == "sum" else row.reduce

    inner = form.contracted

    def element(index: Index) -> Any:
        point = dict(zip(form.output, index, strict=True))
        values = [term(point | dict(zip(inner, at, strict=True))) for at in indices([sizes[x] for x in inner])]
        if not values:
            return row.zero
        if not inner and kind != "noisy_or":
            return bool(values[0]) if row.name == "boolean" else values[0]
        return _reduce_values(kind, values)

    return fill(types[0], element)


def _contract_vjp(op: ops.ContractVJP, args: list[Array], types: Sequence[TensorType]) -> Array:
    row = ALGEBRAS[op.algebra]
    factors, cotangent = [x.astype(np.float64) for x in args[:-2]], args[-1]
    form = spec.expand(spec.parse(op.spec), tuple(x.ndim for x in factors))
    sizes, term = _terms(form, factors, row)
    gradient = np.zeros(factors[op.wrt].shape)
    for index in indices([sizes[x] for x in form.output]):
        points = [
            dict(zip(form.output, index, strict=True)) | dict(zip(form.contracted, inner, strict=True))
            for inner in indices([sizes[x] for x in form.contracted])
        ]
        terms = [term(p) for p in points]
        for n, point in enumerate(points):
            values = [_factor(labels, x, point) for labels, x in zip(form.inputs, factors, strict=True)]
            slope = _term_weight(row, terms, n) * _factor_slope(row, values, op.wrt)
            own = form.inputs[op.wrt]
            place = tuple(0 if d == 1 else point[x] for x, d in zip(own, gradient.shape, strict=True))
            gradient[place] += slope * cotangent[index].item()
    return gradient.astype(types[0].dtype)


def _term_weight(row: Algebra, terms: list[float], n: int) -> float:
    """Return the derivative of the reduction for its n-th term; ties share evenly."""
    match row.reduce:
        case "max" | "min":
            best = _reduce_values(row.reduce, terms)
            return 1 / terms.count(best) if terms[n] == best else 0.0
        case "logsumexp":
            total = _logsumexp(terms)
            return math.exp(terms[n] - total) if math.isfinite(total) else 0.0
        case "noisy_or":
            return math.prod(1 - t for i, t in enumerate(terms) if i != n)
        case _:
            return 1.0


def _factor_slope(row: Algebra, values: list[float], wrt: int) -> float:
    """Return the derivative of the join for one factor."""
    match row.combine:
        case "multiply":
            return math.prod(v for i, v in enumerate(values) if i != wrt)
        case "minimum":
            return 1 / values.count(min(values)) if values[wrt] == min(values) else 0.0
        case "maximum":
            return 1 / values.count(max(values)) if values[wrt] == max(values) else 0.0
        case "godel_implies":
            return float(wrt == 1 and values[0] > values[1])
        case "goguen_implies":
            if not values[0] > values[1]:
                return 0.0
            return 1 / values[0] if wrt else -values[1] / values[0] ** 2
        case "lukasiewicz":
            return 1.0 if len(values) == 1 or sum(values) - (len(values) - 1) > 0 else 0.0
        case _:
            return 1.0


def _lines(x: Array, axis: int) -> Iterator[tuple[Index, list[Any]]]:
    """Go through the lines of an array along an axis: where each stands, and its elements."""
    others = [range(1) if a == axis else range(n) for a, n in enumerate(x.shape)]
    for place in itertools.product(*others):
        yield place, [x[(*place[:axis], i, *place[axis + 1 :])].item() for i in range(x.shape[axis])]


def _ranked(values: list[Any], descending: bool) -> list[int]:
    """Return the stable order of values, NaN greatest."""
    nan = [i for i, v in enumerate(values) if v != v]
    rest = sorted((i for i, v in enumerate(values) if v == v), key=lambda i: -values[i] if descending else values[i])
    return nan + rest if descending else rest + nan


def _sort(op: ops.Sort | ops.TopK, args: list[Array], types: Sequence[TensorType]) -> Array:
    x = args[0]
    axis = normal_axis(op.axis, x.ndim, "sort")
    out = np.zeros([int(d) for d in types[0].shape or ()], types[0].dtype)
    for place, values in _lines(x, axis):
        order = _ranked(values, isinstance(op, ops.TopK) or op.descending)
        for i, source in enumerate(order[: out.shape[axis]]):
            out[(*place[:axis], i, *place[axis + 1 :])] = source if op.indices else values[source]
    return out


COMPUTING: dict[type[Op], Definition] = {
    ops.Iota: lambda op, args, types: fill(types[0], lambda index: index[0]),
    ops.Elementwise: _elementwise,
    ops.Reduce: _reduce,
    ops.Cumulate: _cumulate,
    ops.Einsum: _einsum,
    ops.ContractVJP: _contract_vjp,
    ops.Sort: _sort,
    ops.TopK: _sort,
}
