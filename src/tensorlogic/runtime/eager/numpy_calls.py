"""NumPy's functions on variables: which ones there are, and what to write in place of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ...diagnostics import value_text
from ...errors import DTypeError, GraphError, ShapeError, nearest
from ...ir.elementwise import FUNCTIONS
from ...ir.types import normal_axis
from .variable import Variable, eager

VALUE = "or call it on the array: x.value, which ends the gradient there"


def ufunc_called(ufunc: Any, method: str, inputs: Sequence[Any], options: dict[str, Any]) -> Any:
    """Run a NumPy ufunc on operands of which one is a variable.

    >>> np.tanh(Variable([0.0]))
    Variable([0.])
    """
    name = ufunc.__name__
    _refuse_out(name, options.pop("out", None))
    dtype = options.pop("dtype", None)
    if dtype is not None and not all(t.endswith("?") for t in ufunc.types if "O" not in t):
        # NumPy computes in it, and what narrower numbers give could be another; a reduction casts whatever it is given
        to: Any = eager.cast if method == "reduce" else partial(_cast, name)
        inputs = [to(x, dtype) if isinstance(x, Variable | np.ndarray | np.generic) else x for x in inputs]
    if method == "reduce" and name in _REDUCTIONS:
        axis, keepdims = options.pop("axis", 0), options.pop("keepdims", False)
        _refuse(f"{name}.reduce", options)
        result: Variable = getattr(eager, _REDUCTIONS[name])(inputs[0], axis, keepdims=bool(keepdims))
    elif method != "__call__":
        raise _unknown(f"{name}.{method}")
    else:
        _refuse(name, options)
        function = _UFUNCS.get(name)
        if function is None:
            raise _unknown(name)
        result = function(*inputs)
    return result if dtype is None else _cast(name, result, dtype)


def function_called(function: Any, args: Sequence[Any], options: dict[str, Any]) -> Any:
    """Run a NumPy function on arguments of which one is a variable.

    >>> np.concatenate([Variable([0.0]), [1.0]])
    Variable([0., 1.])
    """
    name = function.__name__
    _refuse_out(name, options.pop("out", None))
    ours = _FUNCTIONS.get(name)
    if ours is None or function.__module__ not in ("numpy", "numpy.linalg"):
        raise _unknown(name)
    try:
        return ours(*args, **options)
    except TypeError as error:
        if isinstance(error, GraphError) or error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise
        hint = "leave that argument out, or call NumPy on x.value"
        raise GraphError(f"np.{name} on a variable: {error}", hint, code="E901") from None


def _refuse_out(name: str, out: Any) -> None:
    if out is not None:
        message = f"np.{name} cannot write into an array here: recorded values do not change in place"
        raise GraphError(message, f"write y = np.{name}(...)", "or take the array itself: x.value", code="E900")


def _cast(name: str, x: Any, dtype: Any) -> Any:
    if not np.can_cast(x.dtype, dtype, "same_kind"):
        hint = f"cast what it makes: np.{name}(...).astype('{np.dtype(dtype)}')"
        raise DTypeError(f"np.{name} on a variable: {x.dtype} does not go into {np.dtype(dtype)}", hint, code="E901")
    return x if x.dtype == dtype else eager.cast(x, dtype)


def _only(name: str, word: str, value: Any, *usual: Any) -> None:
    """Refuse an argument whose value would be ignored."""
    if not any(value is u or (type(value) is type(u) and value == u) for u in usual):
        message = f"np.{name} on a variable takes no {word}={value_text(value)}, only {word}={usual[0]!r}"
        raise GraphError(message, f"leave {word}= out", VALUE, code="E901")


def _refuse(name: str, options: dict[str, Any]) -> None:
    for word, value in options.items():
        usual = {"where": True, "casting": "same_kind", "order": "K", "subok": True, "initial": None}
        if word not in usual or value is not usual[word]:
            hint = "use np.where(mask, new, old)"
            raise GraphError(f"np.{name} on a variable takes no {word}=", hint, VALUE, code="E901")


def _unknown(name: str) -> GraphError:
    message = f"np.{name} is not recorded, so it cannot be used on a variable"
    return GraphError(message, *nearest(name, [*_UFUNCS, *_FUNCTIONS]), VALUE, code="E901")


def _floating(ufunc: np.ufunc, x: Any) -> Any:
    """Return an operand in the float dtype that a ufunc computes it in."""
    held = x.dtype if isinstance(x, Variable) else np.asarray(x).dtype
    dtype = ufunc(*[np.ones((), held)] * ufunc.nin).dtype
    return x if held == dtype else eager.cast(x, dtype)


_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}
_UFUNCS: dict[str, Callable[..., Variable]] = {
    name: getattr(eager, name) for name in FUNCTIONS if isinstance(getattr(np, name, None), np.ufunc)
} | {
    "matmul": eager.matmul,
    "positive": lambda x: x,
    "fabs": lambda x: eager.absolute(_floating(np.fabs, x)),
    "true_divide": eager.divide,
    "log10": lambda x: eager.divide(eager.log(x), float(np.log(10))),
    "exp2": lambda x: eager.power(2.0, _floating(np.exp2, x)),
    "float_power": lambda x, y: eager.power(_floating(np.float_power, x), _floating(np.float_power, y)),
    "bitwise_and": lambda x, y: eager.truth("logical_and", x, y),
    "bitwise_or": lambda x, y: eager.truth("logical_or", x, y),
    "bitwise_xor": lambda x, y: eager.truth("logical_xor", x, y),
    "invert": lambda x: eager.truth("logical_not", x),
}


def _extreme(name: str) -> Callable[..., Variable]:
    def reduced(a: Any, axis: Any = None, out: Any = None, keepdims: bool = False) -> Variable:
        _refuse_out(name, out)
        result: Variable = getattr(eager, name)(a, axis, keepdims=keepdims)
        return result

    return reduced


def _total(name: str) -> Callable[..., Variable]:
    def reduced(a: Any, axis: Any = None, dtype: Any = None, out: Any = None, keepdims: bool = False) -> Variable:
        return _extreme(name)(a if dtype is None else eager.cast(a, dtype), axis, out, keepdims)

    return reduced


def _std(a: Any, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Variable:
    return eager.sqrt(_var(a, axis, ddof=ddof, keepdims=keepdims))


def _var(a: Any, axis: Any = None, *, ddof: int = 0, keepdims: bool = False) -> Variable:
    found = eager.var(a, axis, keepdims=keepdims)
    if not ddof:
        return found
    shape = eager.shape_of(a)
    axes = range(len(shape)) if axis is None else axis if isinstance(axis, tuple | list) else [axis]
    count = prod(int(shape[n]) for n in axes)
    return found * (count / (count - ddof) if count > ddof else float("inf"))  # as NumPy, where 0 / 0 is NaN


def _where(condition: Any, x: Any = None, y: Any = None) -> Variable:
    if x is None or y is None:
        hint = "write np.where(condition, x, y)"
        raise GraphError("np.where of a condition alone has a shape that depends on values", hint, code="E903")
    return eager.where(condition, x, y)


def _concatenate(arrays: Sequence[Any], axis: int | None = 0) -> Variable:
    return eager.concat([eager.reshape(a, (-1,)) for a in arrays] if axis is None else list(arrays), axis or 0)


def _einsum(equation: Any, *operands: Any, optimize: Any = None) -> Variable:
    return eager.einsum(equation, *operands)


def _clip(a: Any, a_min: Any = None, a_max: Any = None, *, min: Any = None, max: Any = None) -> Variable:
    low, high = (a_min if min is None else min), (a_max if max is None else max)
    a = a if low is None else eager.maximum(a, low)
    return a if high is None else eager.minimum(a, high)


def _dot(a: Any, b: Any) -> Variable:
    if not eager.shape_of(a) or not eager.shape_of(b):
        return eager.multiply(*(x if isinstance(x, Variable) else np.asarray(x) for x in (a, b)))  # 2 is an int64 to it
    if len(eager.shape_of(b)) <= 2:
        return eager.matmul(a, b)
    raise ShapeError("np.dot of so many axes is not there", "write tl.eager.einsum", code="E901")


def _take(a: Any, indices: Any, axis: int | None = None) -> Variable:
    return eager.gather(eager.reshape(a, (-1,)) if axis is None else a, indices, axis or 0)


def _norm(x: Any, ord: Any = None, axis: Any = None, keepdims: bool = False) -> Variable:
    rank = len(eager.shape_of(x)) if axis is None else len(axis) if isinstance(axis, tuple | list) else 1
    usual = {1: (None, 2, 2.0), 2: (None, "fro")}.get(rank, (None,))
    _only("linalg.norm", "ord", ord, *usual)
    if axis is not None and rank > 2:
        hint = "write np.sqrt(np.sum(np.square(x), axis))"
        raise ShapeError(f"np.linalg.norm goes over one axis or two, got axis={axis}", hint, code="E901")
    held = x.dtype if isinstance(x, Variable) else np.asarray(x).dtype
    x = x if held.kind == "f" else eager.cast(x, "float64")  # whole numbers would run over
    return eager.sqrt(eager.sum(eager.square(x), axis, keepdims=keepdims))


def _shape(shape: Any) -> tuple[Any, ...]:
    return tuple(shape) if np.iterable(shape) else (shape,)


def _reshaped(a: Any, shape: Any, order: Any = "C") -> Variable:
    _only("reshape", "order", order, "C")
    return eager.reshape(a, _shape(shape))


def _raveled(a: Any, order: Any = "C") -> Variable:
    _only("ravel", "order", order, "C")
    return eager.reshape(a, (-1,))


def _padded(a: Any, pad_width: Any, mode: Any = "constant", *, constant_values: Any = 0) -> Variable:
    _only("pad", "mode", mode, "constant")
    rank = len(eager.shape_of(a))
    try:
        widths = np.broadcast_to(np.asarray(pad_width), (rank, 2))
    except ValueError:
        widths = np.empty(0)
    if widths.size != 2 * rank or widths.dtype.kind not in "iu" or (widths < 0).any():
        hint = "give whole numbers from 0: n, (before, after), or one such pair for each axis"
        raise ShapeError(f"np.pad of {rank} axes cannot take pad_width={value_text(pad_width)}", hint, code="E901")
    if eager.shape_of(constant_values):
        hint = "pad one side after another"
        raise GraphError("np.pad on a variable takes one number for constant_values=", hint, code="E901")
    return eager.pad(a, [(int(before), int(after)) for before, after in widths], constant_values)


def _flipped(a: Any, axis: Any = None) -> Variable:
    rank = len(eager.shape_of(a))
    axes = range(rank) if axis is None else [normal_axis(n, rank, "flip") for n in _shape(axis)]
    return eager.index(a, tuple(slice(None, None, -1 if n in axes else None) for n in range(rank)))


def _moved(a: Any, source: int, destination: int) -> Variable:
    rank = len(eager.shape_of(a))
    order = [n for n in range(rank) if n != normal_axis(source, rank, "moveaxis")]
    order.insert(normal_axis(destination, rank, "moveaxis"), normal_axis(source, rank, "moveaxis"))
    return eager.transpose(a, order)


def _swapped(a: Any, axis1: int, axis2: int) -> Variable:
    order = list(range(len(eager.shape_of(a))))
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return eager.transpose(a, order)


def _squeezed(a: Any, axis: int | None = None) -> Variable:
    if axis is not None:
        return eager.squeeze(a, axis)
    return eager.reshape(a, [d for d in eager.shape_of(a) if d != 1])


def _full(a: Any, fill_value: Any, dtype: Any = None) -> Any:
    return np.full(tuple(eager.shape_of(a)), fill_value, a.dtype if dtype is None else dtype)


def _as_array(name: str) -> Callable[..., Any]:
    """Return a function that only looks: it runs on the arrays."""

    def look(*args: Any, **options: Any) -> Any:
        options = {k: a.value if isinstance(a, Variable) else a for k, a in options.items()}
        return getattr(np, name)(*[a.value if isinstance(a, Variable) else a for a in args], **options)

    return look


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: _total(name) for name in ("sum", "mean", "prod")},
    **{name: _extreme(name) for name in ("max", "min", "any", "all", "argmax", "argmin")},
    "amax": _extreme("max"),
    "amin": _extreme("min"),
    "var": _var,
    "std": _std,
    **{
        name: _as_array(name)
        for name in (
            "shape ndim size array_equal allclose isclose array_repr array_str array2string result_type "
            "may_share_memory shares_memory"
        ).split()
    },
    "where": _where,
    "concatenate": _concatenate,
    "stack": lambda arrays, axis=0: eager.stack(list(arrays), axis),
    "vstack": lambda arrays: eager.concat(
        [a if len(eager.shape_of(a)) > 1 else eager.reshape(a, (1, -1)) for a in arrays], 0
    ),
    "hstack": lambda arrays: eager.concat(list(arrays), 0 if len(eager.shape_of(arrays[0])) == 1 else 1),
    "einsum": _einsum,
    "clip": _clip,
    "dot": _dot,
    "take": _take,
    "norm": _norm,
    "outer": lambda a, b: eager.einsum("i,j->ij", eager.reshape(a, (-1,)), eager.reshape(b, (-1,))),
    "inner": lambda a, b: (
        eager.einsum("...i,...i->...", a, b) if len(eager.shape_of(b)) == 1 else eager.einsum("...i,ji->...j", a, b)
    ),
    "trace": lambda a: eager.einsum("ii->", a),
    "diagonal": lambda a: eager.einsum("ii->i", a),
    "reshape": _reshaped,
    "ravel": _raveled,
    "transpose": lambda a, axes=None: eager.transpose(a, axes),
    "permute_dims": lambda a, axes=None: eager.transpose(a, axes),
    "matrix_transpose": lambda a: _swapped(a, -1, -2),
    "moveaxis": _moved,
    "swapaxes": _swapped,
    "squeeze": _squeezed,
    "expand_dims": eager.expand_dims,
    "broadcast_to": lambda a, shape, subok=False: eager.broadcast_to(a, _shape(shape)),
    "cumsum": lambda a, axis=None: eager.cumsum(*((eager.reshape(a, (-1,)), 0) if axis is None else (a, axis))),
    "cumprod": lambda a, axis=None: eager.cumprod(*((eager.reshape(a, (-1,)), 0) if axis is None else (a, axis))),
    "sort": lambda a, axis=-1: eager.sort(a, axis),
    "argsort": lambda a, axis=-1: eager.argsort(a, axis),
    "flip": _flipped,
    "pad": _padded,
    "copy": lambda a: a,
    "zeros_like": lambda a, dtype=None: _full(a, 0, dtype),
    "ones_like": lambda a, dtype=None: _full(a, 1, dtype),
    "full_like": _full,
}


def indexed(x: Any, key: Any) -> Variable | None:
    """Index with arrays of integers; None where there are none, and basic indexing does.

    >>> eager.index(Variable([[1.0, 2.0], [3.0, 4.0]]), ([0, 1], [1, 0]))
    Variable([2., 3.])
    """
    keys = key if type(key) is tuple else (key,)
    if not any(isinstance(k, np.ndarray | list | Variable) for k in keys):
        return None
    shape = eager.shape_of(x)
    taken = sum(k is not None and k is not Ellipsis for k in keys)
    if taken > len(shape) or sum(k is Ellipsis for k in keys) > 1:
        raise ShapeError(f"{taken} indices do not fit shape {shape}", code="E913")
    whole: list[Any] = []
    for k in (*keys, Ellipsis) if not any(k is Ellipsis for k in keys) else keys:
        whole += [slice(None)] * (len(shape) - taken) if k is Ellipsis else [k]
    chosen = [k is not None and not isinstance(k, slice) for k in whole]  # integers go along with arrays, as in NumPy
    runs = [k is not None and not isinstance(k, slice) and k is not Ellipsis for k in keys]
    sliced = eager.index(x, tuple(slice(None) if c else k for c, k in zip(chosen, whole, strict=True)))
    at = [n for n, c in enumerate(chosen) if c]
    places = [_whole_numbers(whole[n], eager.shape_of(sliced)[n], n) for n in at]
    if not all(runs[runs.index(True) : len(runs) - runs[::-1].index(True)]):  # NumPy puts what is scattered first
        rest = [n for n in range(len(whole)) if n not in at]
        sliced, at = eager.transpose(sliced, [*at, *rest]), list(range(len(at)))
    if len(at) == 1:
        return eager.gather(sliced, places[0], at[0])
    sizes = [int(d) for d in eager.shape_of(sliced)]
    flat = places[0]
    for place, n in zip(places[1:], at[1:], strict=True):
        flat = flat * sizes[n] + place
    joined = eager.reshape(sliced, [*sizes[: at[0]], prod(sizes[n] for n in at), *sizes[at[-1] + 1 :]])
    return eager.gather(joined, flat, at[0])


def _whole_numbers(k: Any, size: Any, axis: int) -> Any:
    """Return an index that counts from the front, checked against the size of its axis."""
    array = k.value if isinstance(k, Variable) else np.asarray(k)
    if array.size == 0 and not isinstance(k, Variable | np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "iu":
        masks = array.dtype == bool
        words = "a mask of truth values has a result whose shape depends on them" if masks else "no whole numbers"
        raise DTypeError(
            f"index of {array.dtype} on axis {axis}: {words}",
            "write np.where(mask, x, 0)",
            "or give the positions: np.flatnonzero(mask)",
            code="E903" if masks else "E914",
        )
    if array.size and (int(array.min()) < -size or int(array.max()) >= size):
        wrong = array[(array < -size) | (array >= size)].flat[0]
        raise ShapeError(f"index {wrong} is out of range for axis {axis} of size {size}", code="E913")
    if isinstance(k, Variable):
        wide = k if k.dtype == np.int64 else k.astype("int64")  # places are multiplied by sizes
        return eager.where(wide < 0, wide + int(size), wide)
    array = array.astype(np.int64)
    return np.where(array < 0, array + int(size), array)
