"""The functions of the language: element by element, along the dotted index, or over all indices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import nearest
from ..ir.builder import GraphBuilder
from ..ir.tensor import Tensor
from . import syntax as s
from .indexing import Value, aligned, tensor_of, with_axes

if TYPE_CHECKING:
    from .evaluate import Evaluation, Indices


def _method(name: str) -> Callable[..., Any]:
    """Return the function that the builder has under a name."""
    return lambda b, *arguments: getattr(b, name)(*arguments)


_SAME = "step sigmoid relu gelu silu softplus exp log log1p sqrt square sin cos tan tanh erf sign floor ceil".split()
ONE: dict[str, Callable[[GraphBuilder, Any], Any]] = {  # element by element
    **{name: _method(name) for name in _SAME},
    "sig": _method("sigmoid"),
    "abs": _method("absolute"),
    "round": _method("rint"),
    "rsqrt": lambda b, x: b.divide(1.0, b.sqrt(x)),
}
ALONG: dict[str, Callable[[GraphBuilder, Any, Any], Any]] = {  # along the dotted index
    "softmax": _method("softmax"),
    "lnorm": lambda b, x, axis: b.layer_norm(x, axis=axis),
    "rmsnorm": lambda b, x, axis: b.rms_norm(x, axis=axis),
}
OVER: dict[str, Callable[[GraphBuilder, Any, Any], Any]] = {  # over the indices that are left over
    "max": _method("max"),
    "min": _method("min"),
    "avg": _method("mean"),
    "mean": _method("mean"),
    "sum": _method("sum"),
    "count": lambda b, x, axis: b.sum(b.cast(b.not_equal(x, 0), "int64"), axis),
}
SEVERAL: dict[str, tuple[int, Callable[..., Any]]] = {  # of several arguments, element by element
    "mod": (2, _method("remainder")),
    "clip": (3, _method("clip")),
    "where": (3, _method("where")),
}
NAMES = frozenset({*ONE, *ALONG, *OVER, *SEVERAL, "concat"})


def apply_function(at: Evaluation, call: s.Call, outer: Indices) -> Value:
    """Apply a function to its arguments, projected first; ``outer`` are the indices that occur outside of the call."""
    from .evaluate import free

    b, name = at.b, call.function
    count = len(call.arguments)
    if name == "concat":
        return _concat(at, call, outer)
    if name in OVER and count == 1:
        inner = at.numeric(at.value(call.arguments[0], outer | free(call.arguments[0])))
        return at.reduced(partial(OVER[name], b), inner, outer)
    arguments = []
    for n, argument in enumerate(call.arguments):
        around = outer.union(*(free(a) for k, a in enumerate(call.arguments) if k != n))
        value = at.value(argument, around, free(argument) - around)
        arguments.append(
            value if name == "where" and n == 0 else at.numeric(at.sum(value, frozenset(value.axes) - around))
        )
    if name in at.analysis.functions:
        return _attached(at, call, arguments)
    if name in ("max", "min") and count > 1:
        result = arguments[0]
        for other in arguments[1:]:
            result = at.elementwise(b.maximum if name == "max" else b.minimum, result, other)
        return result
    if name in ("sig", "sigmoid") and count == 2:
        return at.elementwise(lambda x, t: _tempered(b, x, t), *arguments)
    if name in SEVERAL:
        _check_count(at, call, SEVERAL[name][0])
        return at.elementwise(lambda *xs: SEVERAL[name][1](b, *xs), *arguments)
    if name not in NAMES:
        hints = nearest(name, [*NAMES, *at.analysis.functions])
        raise at.fail(f"there is no function {name!r}", *hints, part=call, code="E688")
    _check_count(at, call, 1)
    (value,) = arguments
    if name in ALONG:
        dotted = _dotted(at, call)
        missing = [a for a in dotted if a not in value.axes]
        if missing or not isinstance(value.tensor, Tensor):
            axes = at.sorted({*value.axes, *dotted})
            value = with_axes(b, value, axes, at.ranges, at.analysis.dtype)
        return Value(ALONG[name](b, value.tensor, [value.axes.index(a) for a in dotted]), value.axes)
    return Value(ONE[name](b, tensor_of(b, value)), value.axes)


def _check_count(at: Evaluation, call: s.Call, count: int) -> None:
    if len(call.arguments) != count:
        message = f"{call.function} takes {count} argument{'s' * (count != 1)}, got {len(call.arguments)}"
        sign = {"sum": "+=", "mean": "avg="}.get(call.function, f"{call.function}=")
        aggregate = call.function in ("sum", "mean", "count", "avg", "max", "min")
        hints = [f"by group it is an equation: N[x] {sign} R(x,y)"] if aggregate else []
        raise at.fail(message, *hints, part=call, code="E689")


def _tempered(b: GraphBuilder, x: Any, temperature: Any) -> Any:
    """The sigmoid of x over a temperature; at 0 it is the step."""
    if isinstance(temperature, int | float):
        return b.step(x) if temperature == 0 else b.sigmoid(b.divide(x, temperature))
    cold = b.equal(temperature, 0)
    return b.where(cold, b.step(x), b.sigmoid(b.divide(x, b.where(cold, 1.0, temperature))))


def _dotted(at: Evaluation, call: s.Call) -> tuple[str, ...]:
    """Return the indices that a normaliser runs over: the dotted ones of its argument, or of the left side."""
    inside: list[str] = []
    for part in s.walk(call):
        if isinstance(part, s.Place) and part.normalised:
            inside += s.variables(part)
    found = tuple(dict.fromkeys(inside)) or at.normalised
    if not found:
        hint = f"dot the index it runs over on the left side: {at.equation.head.name}[i, j.] = {call.function}(...)"
        raise at.fail(f"{call.function} has no dotted index to run over", hint, part=call, code="E690")
    return found


def _attached(at: Evaluation, call: s.Call, arguments: list[Value]) -> Value:
    """Apply a Python function that builds a part of the graph: it gets tensors, and returns one of the same shape."""
    axes = at.sorted({a for v in arguments for a in v.axes})
    tensors = [with_axes(at.b, v, axes, at.ranges, at.analysis.dtype).tensor for v in arguments]
    result = at.analysis.functions[call.function](*tensors)
    expected = tuple(tensors[0].shape) if tensors else ()
    shape = at.b.shape_of(result)
    if shape is None or tuple(shape) != expected:
        message = f"the attached function {call.function!r} returns a tensor of shape {shape}, not {list(expected)}"
        hint = "an attached function returns a tensor of the shape it is given"
        raise at.fail(message, hint, part=call, code="E691")
    return Value(result, axes)


def _concat(at: Evaluation, call: s.Call, outer: Indices) -> Value:
    """Join the left-over indices of the arguments into the one index of the left side that stands nowhere on the right."""
    from .evaluate import free

    inside = free(at.equation.value)
    new = [v for v in at.head if v not in inside]
    if len(new) != 1:
        hint = "write Merge[p,dm] = concat(Attn[h,p,dv]): dm stands on the left alone"
        message = f"concat needs one index on the left side that stands nowhere on the right, got {len(new)}"
        raise at.fail(message, hint, part=call, code="E692")
    head = frozenset(at.head)
    parts = []
    remaining = at.sorted({v for a in call.arguments for v in free(a) if v in head or v in outer})
    for argument in call.arguments:
        value = at.numeric(at.value(argument, outer | free(argument)))
        extra = tuple(v for v in value.axes if v not in remaining)
        whole = with_axes(at.b, value, (*remaining, *_first(argument, extra)), at.ranges, at.analysis.dtype)
        assert whole.tensor.shape is not None
        parts.append(at.b.reshape(whole.tensor, [*whole.tensor.shape[: len(remaining)], -1]))
    result = parts[0] if len(parts) == 1 else at.b.concat(parts, len(remaining))
    axes = (*remaining, new[0])
    target = at.sorted(axes)
    return Value(aligned(at.b, Value(result, axes), target), target)


def _first(argument: s.Part, extra: tuple[str, ...]) -> tuple[str, ...]:
    """Return indices in the order in which they are written."""
    written = [v for v in s.variables(argument) if v in extra]
    return (*written, *(v for v in extra if v not in written))
