"""The reference backend: the definition of every operation, element by element, in plain Python.

Slow on purpose. Every other backend is tested against it. :func:`evaluate` runs a graph without plan or loop.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from ..ir import ops, spec
from ..ir.algebra import Algebra, algebra, check_domain
from ..ir.graph import OPS, Cond, EinsumGraph, Fixpoint, Scan, bodies, meets_others
from ..ir.ops import Op
from ..ir.packed_numbers import FLOAT8, KINDS, float8_table
from ..ir.type_rules import Scope, label_sizes, normal_axis, reduced_axes
from ..ir.types import DTYPES, FLOATS, TensorShape, TensorType, promote
from ..passes.levels import Pass
from ..passes.specialize import specialize
from ..plan.build import Step
from .base import BackendCapabilities, Device, Kernel, RunBody
from .collectives import COLLECTIVES, bind_collective, moves_anywhere
from .control import not_settled
from .numpy import as_numpy
from .scalars import NAN, SCALARS

Array = Any  # a NumPy array; the plan says more about it than a type could
Index = tuple[int, ...]
Run = Callable[[Sequence[Array]], Sequence[Array]]  # of a body: the values of its inputs in, its outputs out


class ReferenceBackend:
    """Runs plans by the definitions in this module, without reordering anything.

    >>> import tensorlogic as tl
    >>> b = tl.GraphBuilder()
    >>> graph = b.build(y=b.input("x", (2,)) * 3)
    >>> tl.Executor(backend="reference").execute(graph, {"x": [1.0, 2.0]})["y"]
    array([3., 6.])
    """

    name = "reference"
    passes: tuple[Pass, ...] = ()

    def capabilities(self) -> BackendCapabilities:
        """Say that everything is here but bfloat16, and that it is slow."""
        dtypes = tuple(d for d in DTYPES if d != "bfloat16")
        return BackendCapabilities(self.name, (Device.CPU(0),), dtypes, (*OPS, "slow"))

    def asarray(self, value: Any, dtype: str | None) -> Array:
        """Take what NumPy can read."""
        return as_numpy(value, dtype)

    def guard(self) -> AbstractContextManager[Any]:
        """Rounding to a narrower dtype may overflow to infinity without a warning."""
        return np.errstate(all="ignore")

    def finish(self, value: Any, shared: bool) -> Array:
        """Return an output as an array of its own."""
        return np.array(value)

    def bind(self, step: Step, run_body: RunBody) -> Kernel:
        """Return the definition of a step's operation; bodies run as plans, so that hooks and wrappers see their steps."""
        runs = [_arrays(run_body(body)) for body in step.bodies]

        def kernel(*args: Any) -> Any:
            results = define(step.op, [np.asarray(a) for a in args], step.arg_types, step.types, runs)
            return results[0] if len(results) == 1 else results

        return kernel


def evaluate(graph: EinsumGraph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """Run a graph by the definitions alone: no plan, no slots, no order but that of the nodes."""
    arrays = {n: as_numpy(inputs[n], graph.type_of(i).dtype) for n, i in graph.inputs.items()}
    types = {n: TensorType.of(a) for n, a in arrays.items()}
    return _evaluate(specialize(graph, types), arrays)


def _evaluate(graph: EinsumGraph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    values: list[tuple[Array, ...]] = []
    types = graph.inference.types
    for i, node in enumerate(graph.nodes):
        op = node.op
        match op:
            case ops.Input():
                values.append((inputs[op.label],))
            case ops.Constant():
                values.append((graph.constants[op.digest],))
            case ops.Literal():
                values.append((np.asarray(op.value),))
            case ops.Item():
                values.append((values[node.args[0]][op.index],))
            case _:
                runs = [partial(_run, body) for body in bodies(op)]
                given = [types[a][0] for a in node.args]
                values.append(define(op, [values[a][0] for a in node.args], given, types[i], runs))
    return {name: values[i][0] for name, i in graph.outputs}


def define(
    op: Op, args: list[Array], given: Sequence[TensorType], types: Sequence[TensorType], runs: Sequence[Run]
) -> tuple[Array, ...]:
    """Return the results of one operation: of arrays of the ``given`` types, of ``types``, with what runs its bodies."""
    match op:
        case Fixpoint():
            return _fixpoint(op, args, types, runs[0])
        case Scan():
            return _scan(op, args, types, runs[0])
        case Cond():
            return tuple(runs[0 if args[0].item() else 1](args[1:]))
        case ops.Elementwise():
            _check_literals(op, args, given, np.dtype(types[0].dtype or "float64"))
            args = _rounded_literals(args, given, types[0].dtype)
    if isinstance(op, ops.Same):
        return (args[0],)
    return (DEFINITIONS[type(op)](op, args, types),)


def _check_literals(op: ops.Elementwise, args: list[Array], given: Sequence[TensorType], dtype: np.dtype[Any]) -> None:
    """Refuse a Python integer that does not fit the integers it is to become; a comparison makes none."""
    if dtype.kind not in "iu":
        return
    info = np.iinfo(dtype)
    for n, (x, t) in enumerate(zip(args, given, strict=True)):
        if t.weak and not (op.fn == "where" and n == 0) and not info.min <= x.item() <= info.max:
            raise OverflowError(f"Python integer {x.item()} out of bounds for {dtype}")


def _rounded_literals(args: list[Array], given: Sequence[TensorType], result: str | None) -> list[Array]:
    """Round Python's numbers to the floats they meet, as NumPy does: the 0.1 beside a float32 is the float32 nearest to it."""
    if not any(t.weak for t in given) or all(t.weak for t in given):
        return args
    dtype = result if result in FLOATS else promote((t.dtype or "float64", t.weak) for t in given)
    if dtype not in FLOATS:
        return args
    with np.errstate(over="ignore"):
        return [x.astype(dtype) if t.weak and x.dtype.kind in "iuf" else x for t, x in zip(given, args, strict=True)]


def _indices(shape: Sequence[Any]) -> Iterator[Index]:
    return itertools.product(*(range(int(n)) for n in shape))


def _fill(t: TensorType, element: Callable[[Index], Any]) -> Array:
    """Make an array by saying what each element is; integers wrap around, as in NumPy."""
    shape = tuple(int(d) for d in t.shape or ())
    dtype = np.dtype(t.dtype or "float64")
    out = np.zeros(shape, dtype)
    for index in _indices(shape):
        out[index] = _wrap(element(index), dtype)
    return out


def _wrap(value: Any, dtype: np.dtype[Any]) -> Any:
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
    function = SCALARS[op.fn]
    floats = np.dtype(types[0].dtype or "float64").kind == "f" and op.fn not in ("where",)

    def element(index: Index) -> Any:
        values = [_at(x, index) for x in args]
        return function(*(float(v) for v in values)) if floats else function(*values)

    return _fill(types[0], element)


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

    return _fill(types[0], element)


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

    return _fill(types[0], element)


def _terms(form: spec.Spec, args: list[Array], row: Algebra) -> tuple[dict[str, int], Callable[[dict[str, int]], Any]]:
    """Return the sizes of an einsum's labels, and the joined factors at one point of its index space."""
    sizes = {
        k: int(v) for k, v in label_sizes(form, [TensorShape(x.shape) for x in args], Scope(0, str, (), [])).items()
    }
    join, dtype = SCALARS[row.combine], np.result_type(*args)

    def term(point: dict[str, int]) -> Any:
        total = _factor(form.inputs[0], args[0], point)
        for labels, x in zip(form.inputs[1:], args[1:], strict=True):
            total = _wrap(join(total, _factor(labels, x, point)), dtype)  # before the largest is chosen
        return total

    return sizes, term


def _factor(labels: spec.Labels, x: Array, point: dict[str, int]) -> Any:
    return x[tuple(0 if n == 1 else point[label] for label, n in zip(labels, x.shape, strict=True))].item()


def _einsum(op: ops.Einsum, args: list[Array], types: Sequence[TensorType]) -> Array:
    row = algebra(op.algebra)
    dtype = np.dtype(types[0].dtype or "float64")
    if row.name != "boolean":
        args = [x.astype(dtype) for x in args]
    form = spec.expand(spec.parse(op.spec), tuple(x.ndim for x in args))
    for x in args if row.domain and (len(args) > 1 or form.contracted) else ():  # one that only moves is no factor
        for place in _indices(x.shape):
            check_domain(row, x[place].item(), x[place].item())
    sizes, term = _terms(form, args, row)
    kind = "any" if dtype == np.bool_ and row.reduce == "sum" else row.reduce

    def element(index: Index) -> Any:
        point = dict(zip(form.output, index, strict=True))
        values = [
            term(point | dict(zip(form.contracted, inner, strict=True)))
            for inner in _indices([sizes[x] for x in form.contracted])
        ]
        if not values:
            return row.zero
        if not form.contracted and kind != "noisy_or":
            return bool(values[0]) if row.name == "boolean" else values[0]
        return _reduce_values(kind, values)

    return _fill(types[0], element)


def _contract_vjp(op: ops.ContractVJP, args: list[Array], types: Sequence[TensorType]) -> Array:
    row = algebra(op.algebra)
    factors, cotangent = [x.astype(np.float64) for x in args[:-2]], args[-1]
    form = spec.expand(spec.parse(op.spec), tuple(x.ndim for x in factors))
    sizes, term = _terms(form, factors, row)
    gradient = np.zeros(factors[op.wrt].shape)
    for index in _indices([sizes[x] for x in form.output]):
        points = [
            dict(zip(form.output, index, strict=True)) | dict(zip(form.contracted, inner, strict=True))
            for inner in _indices([sizes[x] for x in form.contracted])
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


def _slice(op: ops.Slice, args: list[Array], types: Sequence[TensorType]) -> Array:
    starts = [(int(a), s) for a, _, s in op.ranges]
    return _fill(
        types[0], lambda index: args[0][tuple(a + i * s for i, (a, s) in zip(index, starts, strict=True))].item()
    )


def _reshape(op: ops.Reshape, args: list[Array], types: Sequence[TensorType]) -> Array:
    flat = [args[0][i] for i in _indices(args[0].shape)]
    shape = [int(d) for d in types[0].shape or ()]
    out = np.zeros(shape, args[0].dtype)
    for index, value in zip(_indices(shape), flat, strict=True):
        out[index] = value
    return out


def _transpose(op: ops.Transpose, args: list[Array], types: Sequence[TensorType]) -> Array:
    def element(index: Index) -> Any:
        source = [0] * len(index)
        for i, axis in zip(index, op.order, strict=True):
            source[axis] = i
        return args[0][tuple(source)].item()

    return _fill(types[0], element)


def _broadcast(op: ops.Broadcast, args: list[Array], types: Sequence[TensorType]) -> Array:
    x = args[0]
    return _fill(
        types[0],
        lambda index: x[tuple(0 if n == 1 else index[a] for a, n in zip(op.axes, x.shape, strict=True))].item(),
    )


def _window(op: ops.Window, args: list[Array], types: Sequence[TensorType]) -> Array:
    axis = normal_axis(op.axis, args[0].ndim, "window")

    def element(index: Index) -> Any:
        *outer, within = index
        outer[axis] = outer[axis] * op.step + within * op.dilation
        return args[0][tuple(outer)].item()

    return _fill(types[0], element)


def _overlap_add(op: ops.OverlapAdd, args: list[Array], types: Sequence[TensorType]) -> Array:
    x, axis = args[0], normal_axis(op.axis, args[0].ndim - 1, "overlap_add")

    def element(index: Index) -> Any:
        terms = []
        for within in range(x.shape[-1]):
            place, rest = divmod(index[axis] - within * op.dilation, op.step)
            if rest == 0 and 0 <= place < x.shape[axis]:
                terms.append(x[(*index[:axis], place, *index[axis + 1 :], within)].item())
        return _wrap(sum(terms), x.dtype)

    return _fill(types[0], element)


def _pad(op: ops.Pad, args: list[Array], types: Sequence[TensorType]) -> Array:
    x, value = args[0], args[1].astype(args[0].dtype).item()
    if x.dtype.kind in "iu" and value != args[1].item():
        raise OverflowError(f"the value {args[1].item()} does not fit {x.dtype}")

    def element(index: Index) -> Any:
        source = tuple(i - low for i, (low, _) in zip(index, op.widths, strict=True))
        return x[source].item() if all(0 <= i < n for i, n in zip(source, x.shape, strict=True)) else value

    return _fill(types[0], element)


def _concat(op: ops.Concat, args: list[Array], types: Sequence[TensorType]) -> Array:
    axis = normal_axis(op.axis, args[0].ndim, "concat")

    def element(index: Index) -> Any:
        place = index[axis]
        for x in args:
            if place < x.shape[axis]:
                return x[(*index[:axis], place, *index[axis + 1 :])].item()
            place -= x.shape[axis]
        raise AssertionError(index)

    return _fill(types[0], element)


def _gathered(op: ops.Gather | ops.ScatterAdd, x: Array, indices: Array, index: Index) -> Index:
    """Return the place in x that a gather reads, or a scatter writes, for one place of its result or updates."""
    axis = normal_axis(op.axis, x.ndim, op.name)
    inner = indices.ndim - op.batch
    chosen = indices[(*index[: op.batch], *index[axis : axis + inner])].item()
    if not -x.shape[axis] <= chosen < x.shape[axis]:
        raise IndexError(f"{op.name}: index {chosen} is out of range for an axis of {x.shape[axis]} elements")
    return (*index[:axis], chosen % x.shape[axis], *index[axis + inner :])


def _gather(op: ops.Gather, args: list[Array], types: Sequence[TensorType]) -> Array:
    return _fill(types[0], lambda index: args[0][_gathered(op, args[0], args[1], index)].item())


def _scatter_add(op: ops.ScatterAdd, args: list[Array], types: Sequence[TensorType]) -> Array:
    dtype = np.dtype(types[0].dtype or "float64")
    out = args[0].astype(dtype)
    for index in _indices(args[2].shape):
        place = _gathered(op, args[0], args[1], index)
        total = out[place].item() or 0
        out[place] = (
            _wrap(total + args[2][index].item(), dtype) if dtype != np.bool_ else total or args[2][index].item()
        )
    return out


def _cast(op: ops.Cast, args: list[Array], types: Sequence[TensorType]) -> Array:
    return args[0].astype(op.dtype)


def _channel(x: Array, op: ops.Quantize | ops.Dequantize, index: Index) -> Any:
    if not x.ndim:
        return x.item()
    if op.group is not None:
        return x[(*index[:-1], index[-1] // op.group)].item()
    return x[index[op.axis or 0]].item()


def _quantize(op: ops.Quantize, args: list[Array], types: Sequence[TensorType]) -> Array:
    x, scale, zero = args
    row = KINDS.get(op.kind or "")
    low, high = (row.low, row.high) if row else (int(np.iinfo(op.dtype).min), int(np.iinfo(op.dtype).max))

    def element(index: Index) -> Any:
        value = SCALARS["divide"](x[index].item(), _channel(scale, op, index))
        if op.kind in FLOAT8:
            return _nearest_float8(value + _channel(zero, op, index), op.kind)
        if op.kind == "binary":
            return -1 if value < 0 else 1
        if math.isnan(value):
            return 0
        if math.isinf(value):
            return high if value > 0 else low
        return max(low, min(high, round(value) + _channel(zero, op, index)))

    return _fill(types[0], element)


def _nearest_float8(value: float, kind: str) -> float:
    """Return the finite value of the table that is nearest, of two the one with the even code."""
    if math.isnan(value):
        return value
    size, sign = min(abs(value), KINDS[kind].high), math.copysign(1.0, value)
    codes = [
        (abs(float(v) - size), code % 2, float(v)) for code, v in enumerate(float8_table(kind)[:128]) if v < math.inf
    ]
    return sign * min(codes)[2]


def _dequantize(op: ops.Dequantize, args: list[Array], types: Sequence[TensorType]) -> Array:
    q, scale, zero = args
    return _fill(types[0], lambda index: (q[index].item() - _channel(zero, op, index)) * _channel(scale, op, index))


def _unpack(op: ops.Unpack, args: list[Array], types: Sequence[TensorType]) -> Array:
    kind = KINDS[op.kind]
    each = 8 // kind.bits

    def element(index: Index) -> Any:
        byte = args[0][(*index[:-1], index[-1] // each)].item()
        if op.kind in FLOAT8:
            return float8_table(op.kind)[byte].item()
        code = byte >> kind.bits * (index[-1] % each) & ((1 << kind.bits) - 1)
        if op.kind == "binary":
            return 2 * code - 1
        return code if kind.low == 0 or code < 1 << (kind.bits - 1) else code - (1 << kind.bits)

    return _fill(types[0], element)


def _run(body: EinsumGraph, args: Sequence[Array]) -> list[Array]:
    return list(_evaluate(body, dict(zip(body.inputs, args, strict=True))).values())


def _arrays(run: Run) -> Run:
    return lambda values: [np.asarray(v) for v in run(values)]


def _fixpoint(op: Fixpoint, args: list[Array], types: Sequence[TensorType], run: Run) -> tuple[Array, ...]:
    join = {
        "replace": lambda old, new: new,
        "or": SCALARS["logical_or"],
        "max": SCALARS["maximum"],
        "min": SCALARS["minimum"],
    }[op.combine]
    state = args[: op.carries]
    meeting = meets_others(op.body)
    for _ in range(op.limit):
        new = run([*state, *args[op.carries :]])
        moved: dict[int, int] = {}
        after = []
        for n, (old, x, t) in enumerate(zip(state, new, types, strict=True)):
            joined = _fill(t, _pointwise(join, old, x))
            far = sum(_far(old[i].item(), joined[i].item(), op.tolerance) for i in _indices(old.shape))
            if far:
                moved[n] = far
            after.append(joined)
        state = after
        if not moves_anywhere(meeting, bool(moved)):
            return tuple(state)
    raise not_settled(op, list(moved), list(moved.values()))


def _pointwise(join: Callable[[Any, Any], Any], old: Array, new: Array) -> Callable[[Index], Any]:
    return lambda index: join(old[index].item(), new[index].item())


def _far(a: Any, b: Any, tolerance: float) -> bool:
    if a == b or (a != a and b != b):
        return False
    return not abs(a - b) <= tolerance if isinstance(a, float) else True


def _scan(op: Scan, args: list[Array], types: Sequence[TensorType], run: Run) -> tuple[Array, ...]:
    state: Sequence[Array] = args[: op.carries]
    scanned = args[op.carries : op.carries + op.scanned]
    length = int(op.length) if op.length is not None else scanned[0].shape[0]
    rows: list[list[Array]] = [[] for _ in types[op.carries :]]
    for i in reversed(range(length)) if op.reverse else range(length):
        out = run([*state, *(x[i] for x in scanned), *args[op.carries + op.scanned :]])
        state = out[: op.carries]
        for row, value in zip(rows, out[op.carries :], strict=True):
            row.insert(0, value) if op.reverse else row.append(value)
    stacked = [
        np.array(row, t.dtype).reshape([int(d) for d in t.shape or ()])
        for row, t in zip(rows, types[op.carries :], strict=True)
    ]
    return (*state, *stacked)


def _collective(op: Any, args: list[Array], types: Sequence[TensorType]) -> Array:
    return np.asarray(bind_collective(op, (), types[0])(*args))


DEFINITIONS: dict[type[Op], Callable[[Any, list[Array], Sequence[TensorType]], Array]] = {
    ops.Iota: lambda op, args, types: _fill(types[0], lambda index: index[0]),
    ops.Einsum: _einsum, ops.ContractVJP: _contract_vjp, ops.Elementwise: _elementwise, ops.Reduce: _reduce,
    ops.Cumulate: _cumulate, ops.Sort: _sort, ops.TopK: _sort, ops.Slice: _slice, ops.Reshape: _reshape,
    ops.Transpose: _transpose, ops.Broadcast: _broadcast, ops.Window: _window, ops.OverlapAdd: _overlap_add, ops.Pad: _pad, ops.Concat: _concat,
    ops.Gather: _gather, ops.ScatterAdd: _scatter_add, ops.Cast: _cast, ops.Quantize: _quantize,
    ops.Dequantize: _dequantize, ops.Unpack: _unpack, **dict.fromkeys(COLLECTIVES, _collective),
}  # fmt: skip
