"""Eager execution: a :class:`Variable` is an array whose operations run at once and are recorded.

A record holds the operation, what it read and the result. Records point from results to operands only, so that a
variable which goes out of scope takes with it whatever nothing else was computed from. The gradient of a record is
:mod:`~tensorlogic.runtime.eager_backward`; the graph of one :mod:`~tensorlogic.runtime.eager_tape`.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import ContextDecorator
from contextvars import ContextVar, Token
from typing import Any, NamedTuple

import numpy as np

from ..diagnostics import SourceLocation, caller
from ..errors import DTypeError, GraphError, InputError, ShapeError
from ..ir import ops, spec
from ..ir.algebra import algebra as lookup
from ..ir.layers import Layers
from ..ir.methods import Axes
from ..ir.ops import Op
from ..ir.types import TensorShape
from ..plan.build import describe
from .eager_kernels import SCALARS, Array, given, run


class Record:
    """One value: of a leaf (no operation), or what an operation made of records, arrays and Python scalars."""

    __slots__ = ("args", "lost", "name", "needs", "op", "owner", "place", "value")

    def __init__(self, value: Array, op: Op | None, args: tuple[Any, ...], needs: bool) -> None:
        self.value, self.op, self.args, self.needs = value, op, args, needs
        self.place: SourceLocation | None = None
        self.owner: weakref.ref[Variable] | None = None  # of a leaf: who gets its gradient
        self.name: str | None = None
        self.lost: str | None = None  # what ended the gradient, where something did


class Mode(NamedTuple):
    """Whether operations are recorded, and the tapes that take note of what is made."""

    on: bool = True
    tapes: tuple[Any, ...] = ()


mode: ContextVar[Mode] = ContextVar("mode", default=Mode())  # each thread, and each task, has its own


class no_grad(ContextDecorator):  # noqa: N801 - reads as a word, as in `with no_grad():`
    """Run operations without recording them: for predictions, and for changing variables.

    >>> w = Variable([1.0, 2.0])
    >>> with no_grad():
    ...     w -= 0.5
    >>> w, (w * 2).requires_grad
    (Variable([0.5, 1.5]), True)
    """

    def __init__(self) -> None:
        self._tokens: list[Token[Mode]] = []

    def __enter__(self) -> no_grad:
        self._tokens.append(mode.set(Mode(False)))
        return self

    def __exit__(self, *_: object) -> None:
        mode.reset(self._tokens.pop())


class Variable:
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

    __slots__ = ("__weakref__", "_record", "_spent", "grad", "name")

    def __init__(self, value: Any, *, requires_grad: bool | None = None, name: str | None = None) -> None:
        array = np.array(given(value.value if isinstance(value, Variable) else value), order="C")
        if requires_grad and array.dtype.kind != "f":
            raise DTypeError(
                f"a variable of {array.dtype} has no gradient: only numbers of a float dtype do",
                code="E110",
                suggestions=["write 1.0 in place of 1, or give np.asarray(x, 'float32')", "or leave out requires_grad"],
            )
        if name is not None and (not isinstance(name, str) or not name):
            raise InputError(f"the name of a variable is text, got {name!r}", code="E301")
        self.name, self.grad, self._spent = name, None, False
        self._leaf(array, array.dtype.kind == "f" if requires_grad is None else requires_grad)

    grad: Array | None

    def _leaf(self, array: Array, needs: bool) -> None:
        array.setflags(write=False)
        self._record = Record(array, None, (), needs)
        self._record.name = self.name
        self._record.owner = weakref.ref(self)

    @property
    def value(self) -> Array:
        """The array itself, which cannot be written to."""
        return self._record.value

    def numpy(self) -> Array:
        """Return the array itself, which cannot be written to."""
        return self._record.value

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
            raise GraphError("a computed value is not assigned to: its record would no longer be true", code="E112",
                             suggestions=["assign to what it was computed from, or make a new Variable"])  # fmt: skip
        old = self._record
        array = np.array(given(value.value if isinstance(value, Variable) else value), order="C")
        if array.shape != old.value.shape or array.dtype.kind != old.value.dtype.kind:
            raise ShapeError(
                f"a variable {old.value.dtype}{list(old.value.shape)} cannot take a value "
                f"{array.dtype}{list(array.shape)}", code="E001", suggestions=["make a new Variable"],
            )  # fmt: skip
        self._leaf(array.astype(old.value.dtype, copy=False), old.needs)

    def detach(self) -> Variable:
        """Return a variable of the same value that nothing was recorded for, and that wants no gradient."""
        return _plain(self._record.value)

    def zero_grad(self) -> None:
        """Forget the gradient."""
        self.grad = None

    def backward(self, grad: Any = None, *, check_nan: bool = False, again: bool = False) -> None:
        """Add the gradient of this scalar to the ``grad`` of every variable that it was computed from.

        Of what is no scalar, give the cotangent ``grad``. With ``check_nan`` the first tensor that has a NaN is named.
        A second time needs ``again=True``, because gradients would add up.
        """
        from .eager_backward import backward

        backward(self, grad, check_nan=check_nan, again=again)

    # what arrays have

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the axes."""
        return tuple(self._record.value.shape)

    @property
    def dtype(self) -> Any:
        """The NumPy dtype."""
        return self._record.value.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return int(self._record.value.ndim)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(self._record.value.size)

    def __repr__(self) -> str:
        inner = repr(self._record.value).removeprefix("array(").removesuffix(")")
        return f"Variable({inner}{f', name={self.name!r}' if self.name else ''})"

    def __len__(self) -> int:
        return len(self._record.value)

    def __iter__(self) -> Iterator[Variable]:
        if not self.shape:
            raise ShapeError("a scalar cannot be iterated over", code="E001")
        return (self[n] for n in range(len(self)))

    def __contains__(self, x: object) -> bool:
        return x in self._record.value

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self._record.value, dtype) if copy else np.asarray(self._record.value, dtype)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        from .eager_numpy import ufunc_called

        return ufunc_called(ufunc, method, inputs, options)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        from .eager_numpy import function_called

        return function_called(function, args, options)

    def _changed(self, fn: str, other: Any) -> Variable:
        """Update in place: a leaf under no_grad takes the new value; a computed value makes way for a new one."""
        if not (self.is_leaf and self.requires_grad):
            return eager._map(fn, self, other)
        if mode.get().on:
            raise GraphError(
                "a recorded variable is not changed in place: its gradient would no longer be of what was computed",
                code="E112",
                suggestions=["write `with tl.no_grad(): w -= step`", "or w.assign(array)"],
            )
        self.assign(eager._map(fn, self, other).value)
        return self

    # fmt: off
    def item(self) -> Any: return self._record.value.item()
    def tolist(self) -> Any: return self._record.value.tolist()
    def __bool__(self) -> bool: return bool(self._record.value)
    def __float__(self) -> float: return float(self._record.value)
    def __int__(self) -> int: return int(self._record.value)
    def __index__(self) -> int: return self._record.value.__index__()  # type: ignore[no-any-return]
    def __format__(self, form: str) -> str: return format(self._record.value[()], form) if not self.shape else str(self)
    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Variable: return eager.apply(_ADD, self, other)
    def __radd__(self, other: Any) -> Variable: return eager.apply(_ADD, other, self)
    def __sub__(self, other: Any) -> Variable: return eager.apply(_SUBTRACT, self, other)
    def __rsub__(self, other: Any) -> Variable: return eager.apply(_SUBTRACT, other, self)
    def __mul__(self, other: Any) -> Variable: return eager.apply(_MULTIPLY, self, other)
    def __rmul__(self, other: Any) -> Variable: return eager.apply(_MULTIPLY, other, self)
    def __truediv__(self, other: Any) -> Variable: return eager.divide(self, other)
    def __rtruediv__(self, other: Any) -> Variable: return eager.divide(other, self)
    def __floordiv__(self, other: Any) -> Variable: return eager.floor_divide(self, other)
    def __rfloordiv__(self, other: Any) -> Variable: return eager.floor_divide(other, self)
    def __mod__(self, other: Any) -> Variable: return eager.remainder(self, other)
    def __rmod__(self, other: Any) -> Variable: return eager.remainder(other, self)
    def __pow__(self, other: Any) -> Variable: return eager.power(self, other)
    def __rpow__(self, other: Any) -> Variable: return eager.power(other, self)
    def __matmul__(self, other: Any) -> Variable: return eager.matmul(self, other)
    def __rmatmul__(self, other: Any) -> Variable: return eager.matmul(other, self)
    def __and__(self, other: Any) -> Variable: return eager.truth("logical_and", self, other)
    def __rand__(self, other: Any) -> Variable: return eager.truth("logical_and", other, self)
    def __or__(self, other: Any) -> Variable: return eager.truth("logical_or", self, other)
    def __ror__(self, other: Any) -> Variable: return eager.truth("logical_or", other, self)
    def __xor__(self, other: Any) -> Variable: return eager.truth("logical_xor", self, other)
    def __rxor__(self, other: Any) -> Variable: return eager.truth("logical_xor", other, self)
    def __invert__(self) -> Variable: return eager.truth("logical_not", self)
    def __iadd__(self, other: Any) -> Variable: return self._changed("add", other)
    def __isub__(self, other: Any) -> Variable: return self._changed("subtract", other)
    def __imul__(self, other: Any) -> Variable: return self._changed("multiply", other)
    def __itruediv__(self, other: Any) -> Variable: return self._changed("divide", other)
    def __neg__(self) -> Variable: return eager.negative(self)
    def __pos__(self) -> Variable: return self
    def __abs__(self) -> Variable: return eager.absolute(self)
    def __eq__(self, other: object) -> Variable: return eager.equal(self, other)  # type: ignore[override]
    def __ne__(self, other: object) -> Variable: return eager.not_equal(self, other)  # type: ignore[override]
    def __lt__(self, other: Any) -> Variable: return eager.less(self, other)
    def __le__(self, other: Any) -> Variable: return eager.less_equal(self, other)
    def __gt__(self, other: Any) -> Variable: return eager.greater(self, other)
    def __ge__(self, other: Any) -> Variable: return eager.greater_equal(self, other)
    def __getitem__(self, key: Any) -> Variable: return eager.index(self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        raise GraphError("a recorded value is not written to", code="E112",
                         suggestions=["write np.where(mask, new, x), or tl.eager.scatter_add(x, indices, updates)"])

    @property
    def T(self) -> Variable: return eager.transpose(self)  # noqa: N802
    def reshape(self, *shape: Any) -> Variable: return eager.reshape(self, shape[0] if len(shape) == 1 and isinstance(shape[0], Sequence) else shape)
    def transpose(self, *order: Any) -> Variable: return eager.transpose(self, order[0] if len(order) == 1 and isinstance(order[0], Sequence) else order or None)
    def flatten(self) -> Variable: return eager.reshape(self, (-1,))
    ravel = flatten
    def sum(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.sum(self, axis, keepdims=keepdims)
    def mean(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.mean(self, axis, keepdims=keepdims)
    def prod(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.prod(self, axis, keepdims=keepdims)
    def max(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.max(self, axis, keepdims=keepdims)
    def min(self, axis: Any = None, *, keepdims: bool = False) -> Variable: return eager.min(self, axis, keepdims=keepdims)
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
    def astype(self, dtype: Any) -> Variable: return eager.cast(self, dtype)
    def squeeze(self, axis: int) -> Variable: return eager.squeeze(self, axis)
    # fmt: on


_ADD, _SUBTRACT, _MULTIPLY = (ops.Elementwise(fn) for fn in ("add", "subtract", "multiply"))
_new = object.__new__


def _plain(value: Array) -> Variable:
    """Return a variable of a value that is not copied and wants no gradient."""
    made = _new(Variable)
    made.name, made.grad, made._spent = None, None, False
    made._record = Record(value, None, (), False)
    return made


def frozen(array: Array) -> Array:
    """Return an array that nobody can write to: itself, or a copy where it or what it is a view of can be."""
    whole = array
    while type(whole) is np.ndarray:
        if whole.flags.writeable:
            copy = np.array(array)
            copy.setflags(write=False)
            return copy
        whole = whole.base
    return array


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
                needs = needs or record.needs
                lost = lost or record.lost
            elif type(x) in SCALARS:
                values.append(x)
                kept.append(x)
            else:
                array = given(x)
                values.append(array)
                kept.append(array)
        value = run(op, values)
        made = _new(Variable)
        made.name, made.grad, made._spent = None, None, False
        now = mode.get()
        if not now.on or not (needs or now.tapes):
            made._record = record = Record(value, None, (), False)
            record.lost = lost
            return made
        if needs and value.dtype.kind != "f":
            needs, lost = False, f"{describe(op)}, whose result is {value.dtype}"
        if needs or now.tapes:
            record = Record(value, op, tuple([frozen(k) if type(k) is np.ndarray else k for k in kept]), needs)
        else:
            record = Record(value, None, (), False)
        record.place, record.lost = caller(), lost
        made._record = record
        for tape in now.tapes:
            tape.note(made)
        return made

    def einsum(self, equation: Any, *operands: Any, algebra: str = "real") -> Variable:
        """Join and project: ``einsum("ij,jk->ik", a, b)``, in any algebra."""
        if not isinstance(equation, str):
            return super().einsum(equation, *operands, algebra=algebra)
        op = _einsums.get((equation, algebra))
        if op is None:
            op = ops.Einsum(str(spec.parse(equation)), lookup(algebra).name)
            if len(_einsums) < 4096:
                _einsums[equation, algebra] = op
        return self.apply(op, *operands)

    def matmul(self, a: Any, b: Any) -> Variable:
        """Multiply matrices as NumPy's ``@`` does, vectors and batches included."""
        left, right = np.shape(a), np.shape(b)
        op = _matmuls.get((len(left), len(right)))
        if op is None or left[-1] == 1 or right[-1 if len(right) == 1 else -2] == 1:
            made = super().matmul(a, b)
            if made._record.op is not None:
                _matmuls[len(left), len(right)] = made._record.op
            return made
        return self.apply(op, a, b)

    def truth(self, fn: str, *operands: Any) -> Variable:
        """Apply a logical function to truth values; bit operations on numbers are refused."""
        for x in operands:
            dtype = x.dtype if isinstance(x, Variable) else np.asarray(x).dtype
            if dtype != np.bool_:
                raise DTypeError(f"& | ^ ~ are for truth values, got {dtype}", code="E103",
                                 suggestions=[f"write tl.eager.{fn}(...) if non-zero should count as true"])  # fmt: skip
        return self._map(fn, *operands)

    def _map(self, fn: str, *operands: Any) -> Variable:
        op = _maps.get(fn)
        if op is None:
            op = _maps[fn] = ops.Elementwise(fn)
        return self.apply(op, *operands)

    def _reduce(self, kind: str, x: Any, axis: Axes, keepdims: bool) -> Variable:
        if axis is None:
            return self.apply(ops.Reduce(kind, None, keepdims), x)
        return super()._reduce(kind, x, axis, keepdims)

    def index(self, x: Any, key: Any) -> Variable:
        """Index as NumPy does: integers, slices, ``...``, None, and arrays of integers; truth values are refused."""
        from .eager_numpy import indexed

        found = indexed(x, key)
        return super().index(x, key) if found is None else found

    def graph_of(self, fn: Any, *examples: Any) -> Any:
        """Return the graph of a function of arrays, traced with example inputs: see :func:`.eager_tape.graph_of`."""
        from .eager_tape import graph_of

        return graph_of(fn, *examples)

    def compile(self, fn: Any, *examples: Any, config: Any = None) -> Any:
        """Return a function of arrays as a compiled graph, traced with example inputs."""
        from .executor import Executor

        return Executor().compile_graph(self.graph_of(fn, *examples), config)

    def __repr__(self) -> str:
        return "<tensorlogic.eager>"


_einsums: dict[tuple[str, str], ops.Einsum] = {}
_matmuls: dict[tuple[int, int], Op] = {}
_maps: dict[str, ops.Elementwise] = {}
eager = Eager()
