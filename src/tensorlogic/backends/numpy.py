"""The numpy backend: every step as a NumPy call whose form is chosen when it is bound."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import Context
from typing import Any

import numpy as np

from ..errors import BackendError, DTypeError
from ..ir import ops
from ..ir.graph import OPS, Cond, Fixpoint, Scan
from ..ir.ops import Op
from ..ir.packed_numbers import unpack_numbers
from ..ir.type_rules import reduced_axes
from ..ir.types import DTYPES, TensorType, index_error, normal_axis, plain_array
from ..passes.for_numpy import compute_in_float32, copy_windows, has_bfloat16, order_contractions
from ..plan.build import ExecutionPlan, Step
from .base import BackendCapabilities, Device, Kernel, RunBody
from .contract import COMBINE, bind_contraction
from .erf import bind_erf
from .native.facts import NativeFacts
from .numpy_inplace import bind_into, sigmoid
from .numpy_windows import bind_overlap_add, bind_pad, bind_window
from .threads import on_one_thread

Array = Any  # a NumPy array; the plan says more about it than a type could


class NumpyBackend:
    """Runs plans with NumPy; contractions go to BLAS where they have a matrix form.

    >>> import tensorlogic as tl
    >>> tl.Executor(backend="numpy").capabilities().devices
    (Device.CPU(0),)
    """

    name = "numpy"
    passes = (order_contractions, copy_windows, compute_in_float32)

    def capabilities(self) -> BackendCapabilities:
        """Say what NumPy can do: every operation, on the processor, in every dtype; in bfloat16 where ml_dtypes is installed."""
        dtypes = tuple(d for d in DTYPES if d != "bfloat16" or has_bfloat16())
        return BackendCapabilities(self.name, (Device.CPU(0),), dtypes, (*OPS, "in_place", "native"), np.__version__)

    def asarray(self, value: Any, dtype: str | None) -> Array:
        """Take arrays as they are, without a copy; lists and scalars take the declared dtype."""
        return as_numpy(value, dtype)

    def guard(self) -> AbstractContextManager[Any]:
        """Division by zero and the like give infinities and NaN without warnings, as on every engine."""
        return np.errstate(all="ignore")

    def context(self) -> Context:
        """Return a context in which NumPy does not warn."""
        quiet = Context()
        quiet.run(np.seterr, all="ignore")  # NumPy keeps this in a context variable
        return quiet

    def finish(self, value: Any, shared: bool) -> Array:
        """Return an output as an array of its own; relations, which do not change, as they are."""
        if hasattr(value, "layout"):
            return value
        array = np.asarray(value)
        return array.copy() if shared or not array.flags.writeable else array

    def facts(self) -> NativeFacts:
        """Return what kernels compiled by numba can do."""
        return NativeFacts()

    def bind_into(self, step: Step) -> Kernel:
        """Choose the kernel of a step that writes into a buffer."""
        return self._fused(step) if step.parts else bind_into(step)

    def _fused(self, step: Step) -> Kernel:
        from .native.bind import bind_fused

        return bind_fused(step)

    def scalar(self, value: Any, types: tuple[TensorType, ...]) -> Any:
        """Return a Python scalar as the array that NumPy would make of it beside operands of these types, once and for all.

        A number that does not fit stays as it is: what NumPy says of it, it says at run time.
        """
        others = [np.dtype(t.dtype or "float64") for t in types if not t.weak]
        if not others:
            return value
        try:
            with np.errstate(all="ignore"):
                array = np.asarray(value, np.result_type(*others, value))
        except (OverflowError, TypeError):
            return value
        array.setflags(write=False)
        return array

    def bind(self, step: Step, run_body: RunBody) -> Kernel:
        """Choose the kernel of one step."""
        op = step.op
        if step.parts:
            return self._fused(step)
        if isinstance(op, Fixpoint | Scan | Cond):
            from .control import bind_control  # loaded by graphs with loops

            kernel = bind_control(step, run_body)
        elif isinstance(op, ops.Elementwise):
            # Python scalars go in as they are: they must not widen the result
            return elementwise(op.fn, step.arg_types, step.types[0])
        elif isinstance(op, ops.Einsum) and step.contraction is not None:
            kernel = bind_contraction(op, step.contraction, step.arg_types, step.types[0])
            kernel = on_one_thread(kernel) if step.threads else kernel
        elif isinstance(op, ops.ContractVJP) and step.contraction is not None:
            from .contract_vjp import bind_contract_vjp

            kernel = bind_contract_vjp(op, step.contraction, step.types[0], step.arg_types)
        else:
            maker = MAKERS.get(type(op)) or (_same if isinstance(op, ops.Same) else None)
            if maker is None and isinstance(op, ops.Collective):
                from .collectives import bind_collective as maker
            if maker is None:
                raise BackendError(f"the numpy backend has no {op.name}", code="E403")
            kernel = maker(op, step.arg_types, step.types[0])
        if any(t.weak for t in step.arg_types):
            dtypes = [t.dtype if t.weak else None for t in step.arg_types]
            return lambda *args: kernel(
                *(a if d is None else np.asarray(a, d) for a, d in zip(args, dtypes, strict=True))
            )
        return kernel


def no_bodies(plan: ExecutionPlan) -> Any:
    """Stand for what runs bodies, where a step has none."""
    raise AssertionError("this step has no bodies")


def as_numpy(value: Any, dtype: str | None) -> Array:
    """Return a value as a NumPy array in native byte order; refuse what has no numbers in it."""
    if type(value) is np.ndarray and value.dtype.isnative and value.dtype.kind in "biuf" and value.dtype.itemsize <= 8:
        return value  # what nearly everyone gives
    if isinstance(value, np.ndarray) and hasattr(value, "mask"):  # naming numpy.ma would import it
        raise DTypeError("a masked array would lose its mask", "fill it: array.filled(0)", code="E410")
    if isinstance(value, np.ndarray):
        array: Array = np.asarray(value)  # a matrix is no plain array
    elif hasattr(value, "__array__") or isinstance(value, np.generic):
        array = plain_array(value)
    elif hasattr(value, "__dlpack__"):
        array = np.from_dlpack(value)
    else:
        array = plain_array(value)
        if dtype is not None and array.dtype.kind in "biuf":
            array = _declared(array, dtype)
    if array.dtype.name != "bfloat16" and (array.dtype.kind not in "biuf" or array.dtype.itemsize > 8):
        hints = [f"give numbers or truth values, such as np.asarray(x, dtype={dtype or 'float32'!r})"]
        if array.dtype.kind in "SU":
            hints.append("give each name its number, its place in a list of names; tl.Program takes names as they are")
        raise DTypeError(f"an array of {array.dtype} cannot be used", *hints, code="E412")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _declared(array: Array, dtype: str) -> Array:
    if dtype == "bfloat16":
        if not has_bfloat16():
            return array  # the plan says that there is no such dtype
        import ml_dtypes  # noqa: F401 - NumPy knows the dtype by name from here on
    with np.errstate(all="ignore"):
        cast = array.astype(dtype)
    if cast.dtype.kind not in "fV" and not np.array_equal(cast, array):
        hint = "give an array of the dtype that is meant"
        raise DTypeError(f"the values given do not all fit {dtype}", hint, code="E413")
    return cast


_SPECIAL: dict[str, Callable[..., Any]] = {
    "relu": lambda x: np.maximum(x, 0),
    "step": lambda x: (np.asarray(x) > 0).astype(np.asarray(x).dtype),
    "lukasiewicz": COMBINE["lukasiewicz"],
    "godel_implies": COMBINE["godel_implies"],
    "goguen_implies": COMBINE["goguen_implies"],
    "where": lambda c, x, y: np.where(np.asarray(c).astype(bool), x, y),
}


def elementwise(fn: str, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    """Return the NumPy function of an element-wise operation, with the dtype that inference promised."""
    if fn == "sigmoid":
        return lambda x: sigmoid(np.asarray(x, np.dtype(result.dtype or "float64")))
    if fn == "erf":
        return bind_erf(np.dtype(result.dtype or "float64"), args[0].dtype)
    special = _SPECIAL.get(fn)
    if special is None:
        function: Kernel = getattr(np, fn)
        return function
    if fn == "relu" and args[0].dtype == "bool":
        return np.array  # a copy
    dtype = np.dtype(result.dtype or "float64")
    if fn == "where":
        weak = [t.weak for t in args[1:]]  # a Python scalar must fit the dtype, or NumPy says so
        return lambda c, *xs: special(
            c, *(np.asarray(x, dtype) if w else x for x, w in zip(xs, weak, strict=True))
        ).astype(dtype, copy=False)
    if fn in ("lukasiewicz", "godel_implies", "goguen_implies"):
        return lambda *args: np.asarray(special(*args)).astype(dtype, copy=False)
    return special


def _reduce(op: ops.Reduce, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    axes = reduced_axes(op, len(args[0].shape or ()))
    keep = op.keepdims
    if op.kind in ("argmax", "argmin"):
        function = getattr(np, op.kind)
        axis = None if op.axes is None else axes[0]
        return lambda x: np.asarray(function(x, axis=axis, keepdims=keep), np.int64)
    dtype = np.dtype(result.dtype or "float64")
    function = getattr(np, op.kind)
    if op.kind in ("sum", "prod", "mean"):
        if op.kind == "mean" and any((args[0].shape or ())[a] == 0 for a in axes):
            shape = tuple(int(d) for d in result.shape or ())
            return lambda x: np.full(shape, np.nan, dtype)
        if dtype == np.float16:  # accumulate in float32, round once
            return lambda x: np.asarray(function(x, axis=axes, keepdims=keep, dtype=np.float32)).astype(dtype)
        return lambda x: function(x, axis=axes, keepdims=keep, dtype=dtype)
    return lambda x: function(x, axis=axes, keepdims=keep)


def _cumulate(op: ops.Cumulate, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    ufunc = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op.kind]
    axis = normal_axis(op.axis, len(args[0].shape or ()), "cumulate")
    dtype = np.dtype(result.dtype or "float64")
    working = np.dtype("float32") if dtype == np.float16 and op.kind in ("sum", "prod") else dtype
    if op.reverse:
        return lambda x: np.flip(ufunc.accumulate(np.flip(x, axis), axis, dtype=working), axis).astype(
            dtype, copy=False
        )
    return lambda x: ufunc.accumulate(x, axis, dtype=working).astype(dtype, copy=False)


def _order(x: Array, axis: int, descending: bool) -> Array:
    """Return the stable order along an axis; NaN is greatest, so it comes first when descending."""
    if not descending:
        return np.argsort(x, axis=axis, kind="stable")
    # reversing before and after keeps equal elements in their first order
    return x.shape[axis] - 1 - np.flip(np.argsort(np.flip(x, axis), axis=axis, kind="stable"), axis)


def _sort(op: ops.Sort, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    axis = normal_axis(op.axis, len(args[0].shape or ()), "sort")
    if op.indices:
        return lambda x: _order(x, axis, op.descending)
    if op.descending:
        return lambda x: np.flip(np.sort(x, axis=axis), axis)
    return lambda x: np.sort(x, axis=axis)


def _top_k(op: ops.TopK, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    axis = normal_axis(op.axis, len(args[0].shape or ()), "top_k")

    def top(x: Array) -> Array:
        first = np.take(_order(x, axis, True), range(op.k), axis)
        return first if op.indices else np.take_along_axis(x, first, axis)

    return top


def _slice(op: ops.Slice, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    key = tuple(python_slice(int(a), int(n), s) for a, n, s in op.ranges)
    return lambda x: x[key]


def python_slice(start: int, count: int, step: int) -> slice:
    """Return the slice of so many elements from a start."""
    if count == 0:
        return slice(0, 0)
    stop = start + count * step
    return slice(start, None if stop < 0 else stop, step)


def _broadcast(op: ops.Broadcast, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    shape = tuple(int(d) for d in op.shape)
    own = [1] * len(shape)
    for axis, size in zip(op.axes, args[0].shape or (), strict=True):
        own[axis] = int(size)
    return lambda x: np.broadcast_to(np.reshape(x, own), shape)


def _concat(op: ops.Concat, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    return lambda *xs: np.concatenate(xs, axis=op.axis, dtype=result.dtype)


def _places(x: Array, indices: Array, op: ops.Gather | ops.ScatterAdd) -> tuple[Any, ...]:
    """Return the index tuple that addresses what a gather reads or a scatter writes."""
    axis = normal_axis(op.axis, x.ndim, op.name)
    rank = x.ndim - 1 + indices.ndim - op.batch
    key: list[Any] = []
    place = 0
    for a in range(x.ndim):
        if a == axis:
            shape = [1] * rank
            shape[: op.batch] = indices.shape[: op.batch]
            shape[place : place + indices.ndim - op.batch] = indices.shape[op.batch :]
            key.append(indices.reshape(shape))
            place += indices.ndim - op.batch
        else:
            shape = [1] * rank
            shape[place] = x.shape[a]
            key.append(np.arange(x.shape[a]).reshape(shape))
            place += 1
    return tuple(key)


def _check_range(indices: Array, size: int, name: str) -> None:
    if indices.size and (int(indices.min()) < -size or int(indices.max()) >= size):
        place = tuple(np.argwhere((indices < -size) | (indices >= size))[0])
        raise index_error(name, int(indices[place]), place, size)


def _gather(op: ops.Gather, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    axis = normal_axis(op.axis, len(args[0].shape or ()), "gather")

    def gather(x: Array, indices: Array) -> Array:
        indices = np.asarray(indices)
        _check_range(indices, x.shape[axis], "gather")
        return np.take(x, indices, axis) if op.batch == 0 else x[_places(x, indices, op)]

    return gather


def _scatter_add(op: ops.ScatterAdd, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    axis = normal_axis(op.axis, len(args[0].shape or ()), "scatter_add")
    dtype = np.dtype(result.dtype or "float64")

    def scatter(x: Array, indices: Array, updates: Array) -> Array:
        indices = np.asarray(indices)
        _check_range(indices, x.shape[axis], "scatter_add")
        out = x.astype(dtype)
        np.add.at(out, _places(x, indices, op), np.asarray(updates).astype(dtype, copy=False))
        return out

    return scatter


def _quantize(op: ops.Quantize, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    from ..ir.quantize_arrays import quantize_array

    return lambda x, scale, zero: quantize_array(x, scale, zero, op)


def _dequantize(op: ops.Dequantize, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    from ..ir.quantize_arrays import dequantize_array

    return lambda q, scale, zero: dequantize_array(q, scale, zero, op, result.dtype or "float32")


def _same(op: Op, args: tuple[TensorType, ...], result: TensorType) -> Kernel:
    return lambda x: x


MAKERS: dict[type[Op], Callable[[Any, tuple[TensorType, ...], TensorType], Kernel]] = {
    ops.Iota: lambda op, args, t: lambda: np.arange(op.size, dtype=op.dtype),
    ops.Reduce: _reduce,
    ops.Cumulate: _cumulate,
    ops.Sort: _sort,
    ops.TopK: _top_k,
    ops.Slice: _slice,
    ops.Reshape: lambda op, args, t: lambda x, s=tuple(t.shape or ()): np.reshape(x, s),
    ops.Transpose: lambda op, args, t: lambda x: np.transpose(x, op.order),
    ops.Broadcast: _broadcast,
    ops.Window: bind_window,
    ops.OverlapAdd: bind_overlap_add,
    ops.Pad: bind_pad,
    ops.Concat: _concat,
    ops.Gather: _gather,
    ops.ScatterAdd: _scatter_add,
    ops.Cast: lambda op, args, t: lambda x: np.asarray(x).astype(op.dtype),
    ops.Quantize: _quantize,
    ops.Dequantize: _dequantize,
    ops.Unpack: lambda op, args, t: lambda x: unpack_numbers(x, op.kind, int(op.count)),
}
