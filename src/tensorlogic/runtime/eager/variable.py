"""Eager execution: a :class:`Variable` is an array whose operations run at once and are recorded.

A record holds the operation, what it read and the result. Records point from results to operands only, so that a
variable which goes out of scope takes with it whatever nothing else was computed from. The gradient of a record is
:mod:`~tensorlogic.runtime.eager.backward`; the graph of one :mod:`~tensorlogic.runtime.eager.tape`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np

from ...diagnostics import caller
from ...errors import DTypeError, GraphError, ShapeError, expect
from ...ir import ops
from ...ir.elementwise import FUNCTIONS
from ...ir.layers import Layers
from ...ir.methods import Axes, matmul_spec
from ...ir.ops import Op
from ...ir.tensor import TensorOperators
from ...ir.types import TensorShape
from ...plan.printing import describe
from ..tensor_cache import frozen
from .kernels import SCALARS, Array, einsum_op, operand_array, run
from .record import Leaf, Record, mode


class Variable(TensorOperators["Variable"]):
    """An array whose operations run at once and are recorded, so that ``backward`` can fill in gradients.

    Its value is a read-only copy of what it is given; :meth:`assign` gives it another. Numbers of a float dtype want gradients
    unless ``requires_grad=False``. Every NumPy operator and many NumPy functions work; others are in ``tl.eager``.

    >>> w = Variable([1.0, 2.0], name="w")
    >>> loss = ((w * 3.0) ** 2).sum()
    >>> loss
    Variable(45.)
    >>> loss.backward()
    >>> w.grad
    array([18., 36.])
    """

    _spent: bool
    __slots__ = ("__weakref__", "_grad", "_name", "_record", "_spent")  # the others are there once they are set

    def __init__(self, value: Any, *, requires_grad: bool | None = None, name: str | None = None) -> None:
        array = _copied(value)
        if requires_grad and array.dtype.kind != "f":
            hint = "write 1.0 in place of 1, give np.asarray(x, 'float32'), or leave out requires_grad"
            raise DTypeError(f"a variable of {array.dtype} has no gradient: only floats do", hint, code="E904")
        if name is not None:
            expect(name or None, str, "the name of a variable is text")
            self._name = name
        needs = array.dtype.kind == "f" if requires_grad is None else requires_grad
        self._record: Record = Leaf(array, needs, self, name)

    @property
    def name(self) -> str | None:
        """What it is called, in graphs and messages."""
        return getattr(self, "_name", None)

    @property
    def grad(self) -> Array | None:
        """The gradient that backward filled in, None before."""
        return getattr(self, "_grad", None)

    @grad.setter
    def grad(self, value: Array | None) -> None:
        self._grad = value

    @property
    def value(self) -> Array:
        """The array itself, which cannot be written to."""
        array = self._record.value
        array.setflags(write=False)  # here and not where it is made, because most are never looked at
        return array

    def numpy(self) -> Array:
        """Return the array itself, which cannot be written to."""
        return self.value

    @property
    def requires_grad(self) -> bool:
        """Whether gradients reach this variable, or what it was computed from."""
        return self._record.needs

    @property
    def is_leaf(self) -> bool:
        """Whether it was given, not computed."""
        return self._record.op is None

    def assign(self, value: Any) -> None:
        """Take another value of the same shape and dtype; what was recorded before keeps the old one."""
        if not self.is_leaf:
            hint = "assign to what it was computed from, or make a new Variable"
            raise GraphError("a computed value is not assigned to: its record would be false", hint, code="E900")
        old = self._record
        array = _copied(value)
        if array.shape != old.value.shape or not np.can_cast(array.dtype, old.value.dtype, "same_kind"):
            have, new = (f"{a.dtype}{list(a.shape)}" for a in (old.value, array))
            raise ShapeError(f"a variable {have} cannot take a value {new}", "make a new Variable", code="E912")
        self._record = Leaf(array.astype(old.value.dtype, copy=False), old.needs, self, self.name)

    def detach(self) -> Variable:
        """Return a variable of the same value that nothing was recorded for, and that wants no gradient."""
        variable, record = _new(Variable), self._record
        taped = mode.get().tapes
        variable._record = Record(record.value, _STOP, (record,), False, caller()) if taped else Record(record.value)
        return variable

    def __reduce__(self) -> Any:  # for copies and pickles: the value, and nothing of how it was computed
        return _restored, (self.value, self.requires_grad, self.name)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad = None

    def backward(self, grad: Any = None, *, check_nan: bool = False, again: bool = False) -> None:
        """Add the gradient of this scalar to the ``grad`` of every variable that it was computed from.

        Of what is no scalar, give the cotangent ``grad``. With ``check_nan`` the first tensor that has a NaN is named.
        A second time needs ``again=True``, because gradients would add up.
        """
        from .backward import backward

        backward(self, grad, check_nan=check_nan, again=again)

    # what arrays have

    def __repr__(self) -> str:
        inner = repr(self._record.value).removeprefix("array(").removesuffix(")")
        return f"Variable({inner}{f', name={self.name!r}' if self.name else ''})"

    def __len__(self) -> int:
        return len(self._record.value)

    def __iter__(self) -> Iterator[Variable]:
        if not self.shape:
            raise ShapeError("a scalar cannot be iterated over", code="E913")
        return (self[n] for n in range(len(self)))

    def __contains__(self, x: object) -> bool:
        return x in self._record.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.value, dtype) if copy else np.asarray(self.value, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        op = _UFUNCS.get(ufunc)
        if op is not None and method == "__call__" and not options:
            return eager.apply(op, *inputs)
        from .numpy_calls import ufunc_called

        return ufunc_called(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        from .numpy_calls import function_called

        return function_called(function, args, options)

    def _changed(self, fn: str, other: Any) -> Variable:
        """Update in place: a leaf under no_grad takes the new value; a computed value makes way for a new one."""
        if not (self.is_leaf and self.requires_grad):
            return eager._map(fn, self, other)
        if mode.get().on:
            message = "a recorded variable is not changed in place: its gradient would be of something else"
            raise GraphError(message, "write `with tl.no_grad(): w -= step`", "or w.assign(array)", code="E900")
        old, new = self._record, eager._map(fn, self, other)._record.value
        if new.shape != old.value.shape or new.dtype != old.value.dtype:
            self.assign(new)
        else:
            self._record = Leaf(new, old.needs, self, self.name)  # nobody else has it, so it is not copied
        return self

    # fmt: off
    @property
    def shape(self) -> tuple[int, ...]: return self._record.value.shape  # type: ignore[no-any-return]
    @property
    def dtype(self) -> Any: return self._record.value.dtype
    @property
    def ndim(self) -> int: return self._record.value.ndim  # type: ignore[no-any-return]
    @property
    def size(self) -> int: return self._record.value.size  # type: ignore[no-any-return]
    def item(self) -> Any: return self._record.value.item()
    def tolist(self) -> Any: return self._record.value.tolist()
    def __bool__(self) -> bool: return bool(self._record.value)
    def __float__(self) -> float: return float(self._record.value)
    def __int__(self) -> int: return int(self._record.value)
    def __index__(self) -> int: return self._record.value.__index__()  # type: ignore[no-any-return]
    def __format__(self, form: str) -> str: return format(self._record.value[()], form) if not self.shape else str(self)

    # the commonest by a shorter way than through the builder
    def __add__(self, other: Any) -> Variable: return eager.apply(_ADD, self, other)
    def __radd__(self, other: Any) -> Variable: return eager.apply(_ADD, other, self)
    def __sub__(self, other: Any) -> Variable: return eager.apply(_SUBTRACT, self, other)
    def __rsub__(self, other: Any) -> Variable: return eager.apply(_SUBTRACT, other, self)
    def __mul__(self, other: Any) -> Variable: return eager.apply(_MULTIPLY, self, other)
    def __rmul__(self, other: Any) -> Variable: return eager.apply(_MULTIPLY, other, self)
    def __pow__(self, other: Any) -> Variable: return eager.square(self) if type(other) is int and other == 2 else eager.power(self, other)  # as NumPy
    def __pos__(self) -> Variable: return self
    def __iadd__(self, other: Any) -> Variable: return self._changed("add", other)
    def __isub__(self, other: Any) -> Variable: return self._changed("subtract", other)
    def __imul__(self, other: Any) -> Variable: return self._changed("multiply", other)
    def __itruediv__(self, other: Any) -> Variable: return self._changed("divide", other)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise GraphError("a recorded value is not written to",
                         "write np.where(mask, new, x), or tl.eager.scatter_add(x, indices, updates)", code="E900")

    def flatten(self) -> Variable: return eager.reshape(self, (-1,))
    ravel = flatten
    def prod(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.prod(self, axis, keepdims=keepdims)
    def any(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.any(self, axis, keepdims=keepdims)
    def all(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.all(self, axis, keepdims=keepdims)
    def var(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.var(self, axis, keepdims=keepdims)
    def argmax(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.argmax(self, axis, keepdims=keepdims)
    def argmin(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.argmin(self, axis, keepdims=keepdims)
    def cumsum(self, axis: int = 0) -> Variable: return eager.cumsum(self, axis)
    def clip(self, low: Any, high: Any) -> Variable: return eager.clip(self, low, high)
    def exp(self) -> Variable: return eager.exp(self)
    def log(self) -> Variable: return eager.log(self)
    def sqrt(self) -> Variable: return eager.sqrt(self)
    def tanh(self) -> Variable: return eager.tanh(self)
    def relu(self) -> Variable: return eager.relu(self)
    def sigmoid(self) -> Variable: return eager.sigmoid(self)
    def squeeze(self, axis: int) -> Variable: return eager.squeeze(self, axis)
    # fmt: on


_ADD, _SUBTRACT, _MULTIPLY = (ops.Elementwise(fn) for fn in ("add", "subtract", "multiply"))
_STOP = ops.StopGradient()
_UFUNCS = {getattr(np, fn): ops.Elementwise(fn) for fn in FUNCTIONS if isinstance(getattr(np, fn, None), np.ufunc)}
_new = object.__new__
_elementwise = cache(ops.Elementwise)


def _copied(value: Any) -> Array:
    return np.array(operand_array(value.value if isinstance(value, Variable) else value), order="C")


def _restored(value: Array, requires_grad: bool, name: str | None) -> Variable:
    return Variable(value, requires_grad=requires_grad, name=name)


class Eager(Layers[Variable]):
    """Every operation and layer of the graph builder, run at once: ``tl.eager``.

    >>> from tensorlogic import eager
    >>> eager.einsum("ij,jk->ik", [[0.5, 0.9]], [[0.4], [0.8]], algebra="max_min")
    Variable([[0.8]])
    >>> eager.softmax(Variable([0.0, 0.0])).value
    array([0.5, 0.5])
    >>> print(eager.graph_of(lambda x, w: eager.relu(x @ w), np.ones((2, 3)), np.ones((3, 1))))
    graph {
      x: float64[2, 3] = input()
      w: float64[3, 1] = input()
      %2: float64[2, 1] = einsum(x, w, spec="ij,jk->ik")
      %3: float64[2, 1] = relu(%2)
      return y=%3
    }
    """

    def shape_of(self, x: Any) -> TensorShape:
        """Return the shape of an operand."""
        return TensorShape(np.shape(x._record.value if isinstance(x, Variable) else x))

    def apply(self, op: Op, *operands: Any) -> Variable:
        """Run one operation that has one result, and record it where it matters."""
        values: list[Any] = []
        kept: list[Any] = []
        needs, lost = False, None
        for x in operands:
            if type(x) is Variable:
                record = x._record
                values.append(record.value)
                kept.append(record)
                if record.needs:
                    needs = True
                elif record.lost is not None:
                    lost = record.lost
            elif type(x) in SCALARS:
                values.append(x)
                kept.append(x)
            else:
                array = operand_array(x)
                if op.is_view or (len(operands) == 1 and type(op) is ops.Einsum):
                    array = frozen(array)  # the result may show this memory
                values.append(array)
                kept.append(array)
        value = run(op, values)
        variable = _new(Variable)
        on, tapes = mode.get()
        stopped = needs and not on  # in a graph, the gradient ends here
        if stopped or type(op) is ops.StopGradient:
            needs = False
        elif needs and value.dtype.kind != "f":
            needs, lost = False, f"{describe(op)}, whose result is {value.dtype}"
        if needs or tapes:
            for n, x in enumerate(kept):
                if type(x) is np.ndarray:
                    kept[n] = frozen(x)
            place = caller()
            variable._record = Record(value, op, tuple(kept), needs, place, lost)
            if stopped:
                variable._record = Record(value, _STOP, (variable._record,), False, place, lost)
            for tape in tapes:
                tape.note(variable)
        else:
            variable._record = Record(value, lost=lost)
        return variable

    def einsum(self, equation: Any, *operands: Any, algebra: str = "real") -> Variable:
        """Join and project: ``einsum("ij,jk->ik", a, b)``, in any algebra."""
        if not isinstance(equation, str):
            return super().einsum(equation, *operands, algebra=algebra)
        return self.apply(einsum_op(equation, algebra), *operands)

    def matmul(self, a: Any, b: Any) -> Variable:
        """Multiply matrices as NumPy's ``@`` does, vectors and batches included."""
        left, right = (x._record.value.shape if type(x) is Variable else np.shape(x) for x in (a, b))
        return self.apply(einsum_op(matmul_spec(left, right), "real"), a, b)

    def _map(self, fn: str, *operands: Any) -> Variable:
        return self.apply(_elementwise(fn), *operands)

    def _reduce(self, kind: str, x: Any, axis: Axes, keepdims: bool) -> Variable:
        if axis is None:
            return self.apply(ops.Reduce(kind, None, keepdims), x)
        return super()._reduce(kind, x, axis, keepdims)

    def index(self, x: Any, key: Any) -> Variable:
        """Index as NumPy does: integers, slices, ``...``, None, and arrays of integers; truth values are refused."""
        from .numpy_calls import indexed

        found = indexed(x, key)
        return super().index(x, key) if found is None else found

    def graph_of(self, fn: Any, *examples: Any) -> Any:
        """Return the graph of a function of arrays, traced with example inputs: see :func:`.tape.graph_of`."""
        from .tape import graph_of

        return graph_of(fn, *examples)

    def compile(self, fn: Any, *examples: Any, config: Any = None) -> Any:
        """Return a function of arrays as a compiled graph, traced with example inputs."""
        from ..executor import Executor

        return Executor().compile_graph(self.graph_of(fn, *examples), config)

    def __repr__(self) -> str:
        return "<tensorlogic.eager>"


eager = Eager()
Variable.builder = eager  # type: ignore[misc]  # of the class: all variables have the one
