"""Python's operators on tensors, and the tensors of a graph that is being built, on which they add nodes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import numpy as np

from ..errors import GraphError, TensorLogicError, known_names
from .elementwise import FUNCTIONS
from .graph import Node
from .methods import Axes, TensorMethods
from .ops import Op
from .types import Results, TensorShape, TensorType

if TYPE_CHECKING:
    from .builder import GraphBuilder

R = TypeVar("R")
_AS_NUMPY = (  # methods of a builder that take what the NumPy functions of their names take
    "sum prod max min mean any all argmax argmin var where clip reshape transpose expand_dims squeeze broadcast_to stack sort argsort einsum"
).split()


class TensorOperators(Generic[R]):
    """Python's operators and NumPy's methods of a tensor; what they mean is for its ``builder`` to say."""

    __slots__ = ()
    builder: TensorMethods[R]

    # fmt: off
    def __add__(self, other: Any) -> R: return self.builder.add(self, other)
    def __radd__(self, other: Any) -> R: return self.builder.add(other, self)
    def __sub__(self, other: Any) -> R: return self.builder.subtract(self, other)
    def __rsub__(self, other: Any) -> R: return self.builder.subtract(other, self)
    def __mul__(self, other: Any) -> R: return self.builder.multiply(self, other)
    def __rmul__(self, other: Any) -> R: return self.builder.multiply(other, self)
    def __truediv__(self, other: Any) -> R: return self.builder.divide(self, other)
    def __rtruediv__(self, other: Any) -> R: return self.builder.divide(other, self)
    def __floordiv__(self, other: Any) -> R: return self.builder.floor_divide(self, other)
    def __rfloordiv__(self, other: Any) -> R: return self.builder.floor_divide(other, self)
    def __mod__(self, other: Any) -> R: return self.builder.remainder(self, other)
    def __rmod__(self, other: Any) -> R: return self.builder.remainder(other, self)
    def __pow__(self, other: Any) -> R: return self.builder.power(self, other)
    def __rpow__(self, other: Any) -> R: return self.builder.power(other, self)
    def __matmul__(self, other: Any) -> R: return self.builder.matmul(self, other)
    def __rmatmul__(self, other: Any) -> R: return self.builder.matmul(other, self)
    def __and__(self, other: Any) -> R: return self.builder.truth("logical_and", self, other)
    def __rand__(self, other: Any) -> R: return self.builder.truth("logical_and", other, self)
    def __or__(self, other: Any) -> R: return self.builder.truth("logical_or", self, other)
    def __ror__(self, other: Any) -> R: return self.builder.truth("logical_or", other, self)
    def __xor__(self, other: Any) -> R: return self.builder.truth("logical_xor", self, other)
    def __rxor__(self, other: Any) -> R: return self.builder.truth("logical_xor", other, self)
    def __invert__(self) -> R: return self.builder.truth("logical_not", self)
    def __neg__(self) -> R: return self.builder.negative(self)
    def __abs__(self) -> R: return self.builder.absolute(self)
    def __eq__(self, other: object) -> R: return self.builder.equal(self, other)  # type: ignore[override]
    def __ne__(self, other: object) -> R: return self.builder.not_equal(self, other)  # type: ignore[override]
    def __lt__(self, other: Any) -> R: return self.builder.less(self, other)
    def __le__(self, other: Any) -> R: return self.builder.less_equal(self, other)
    def __gt__(self, other: Any) -> R: return self.builder.greater(self, other)
    def __ge__(self, other: Any) -> R: return self.builder.greater_equal(self, other)
    def __getitem__(self, key: Any) -> R: return self.builder.index(self, key)
    __hash__ = object.__hash__

    @property
    def T(self) -> R: return self.builder.transpose(self)  # noqa: N802
    def reshape(self, *shape: Any) -> R: return self.builder.reshape(self, _sizes_or_axes(shape))
    def transpose(self, *order: Any) -> R: return self.builder.transpose(self, _sizes_or_axes(order) or None)
    def sum(self, axis: Axes = None, *, keepdims: bool = False) -> R: return self.builder.sum(self, axis, keepdims=keepdims)
    def mean(self, axis: Axes = None, *, keepdims: bool = False) -> R: return self.builder.mean(self, axis, keepdims=keepdims)
    def max(self, axis: Axes = None, *, keepdims: bool = False) -> R: return self.builder.max(self, axis, keepdims=keepdims)
    def min(self, axis: Axes = None, *, keepdims: bool = False) -> R: return self.builder.min(self, axis, keepdims=keepdims)
    def astype(self, dtype: Any) -> R: return self.builder.cast(self, dtype)
    def stop_gradient(self) -> R: return self.builder.stop_gradient(self)
    # fmt: on


def _sizes_or_axes(values: tuple[Any, ...]) -> Sequence[Any]:
    """Return sizes or axes that are given one by one, or as one sequence."""
    whole = len(values) == 1 and isinstance(values[0], Sequence) and not isinstance(values[0], str)
    return values[0] if whole else values


# What NumPy and PyTorch have under names that graphs do not, as it is written here. Names that are close may mean the opposite.
ELSEWHERE = {
    "arange": "b.iota(n)",
    "astype": "b.cast(x, dtype)",
    "backward": "tl.grad(graph, wrt=['x'])",
    "bmm": "b.matmul(x, y)",
    "bool": "b.cast(x, 'bool')",
    "cat": "b.concat([x, y], axis)",
    "chunk": "x[:n], x[n:]",
    "clamp": "b.clip(x, low, high)",
    "clone": "x",
    "compile": "executor.compile_graph(graph)",
    "concatenate": "b.concat([x, y], axis)",
    "copy": "x",
    "dense": "b.linear(x, w, c)",
    "detach": "b.stop_gradient(x)",
    "diag": "b.einsum('ii->i', x)",
    "diagonal": "b.einsum('ii->i', x)",
    "dim": "len(x.shape)",
    "div": "x / y",
    "dot": "x @ y",
    "double": "b.cast(x, 'float64')",
    "embedding": "b.gather(table, indices)",
    "eq": "b.equal(x, y)",
    "eye": "b.constant(np.eye(n))",
    "flatten": "b.reshape(x, (-1,))",
    "flip": "x[::-1]",
    "float": "b.cast(x, 'float32')",
    "for_loop": "b.scan(body, init, xs)",
    "fori_loop": "b.scan(body, init, xs)",
    "forward": "executor.execute(graph, inputs)",
    "full": "b.constant(np.full(shape, value))",
    "ge": "x >= y",
    "gt": "x > y",
    "half": "b.cast(x, 'float16')",
    "if_": "b.cond(condition, then, otherwise)",
    "index_select": "b.gather(x, indices, axis)",
    "inner": "b.einsum('i,i->', x, y)",
    "int": "b.cast(x, 'int32')",
    "item": "executor.execute(graph, inputs)['y']",
    "l1_loss": "b.mean_absolute_error(x, y)",
    "le": "x <= y",
    "long": "b.cast(x, 'int64')",
    "lt": "x < y",
    "masked_fill": "b.where(mask, value, x)",
    "mm": "x @ y",
    "mse": "b.mean_squared_error(x, y)",
    "mse_loss": "b.mean_squared_error(x, y)",
    "mul": "x * y",
    "ndim": "len(x.shape)",
    "ne": "b.not_equal(x, y)",
    "neg": "-x",
    "norm": "b.sqrt(b.sum(b.square(x)))",
    "numpy": "executor.execute(graph, inputs)['y']",
    "ones": "b.constant(np.ones(shape))",
    "ones_like": "b.broadcast_to(1.0, x.shape)",
    "outer": "b.einsum('i,j->ij', x, y)",
    "param": "b.input('w', shape)",
    "parameter": "b.input('w', shape)",
    "permute": "b.transpose(x, order)",
    "placeholder": "b.input('w', shape)",
    "pow": "x ** y",
    "ravel": "b.reshape(x, (-1,))",
    "reduce_max": "b.max(x)",
    "reduce_mean": "b.mean(x)",
    "reduce_sum": "b.sum(x)",
    "round": "b.rint(x)",
    "rsqrt": "1 / b.sqrt(x)",
    "run": "executor.execute(graph, inputs)",
    "size": "x.shape",
    "split": "x[:n], x[n:]",
    "std": "b.sqrt(b.var(x))",
    "sub": "x - y",
    "swapaxes": "b.transpose(x, order)",
    "swish": "b.silu(x)",
    "T": "b.transpose(x)",
    "take": "b.gather(x, indices, axis)",
    "tensordot": "b.einsum('ij,jk->ik', x, y)",
    "tile": "b.concat([x, x], axis)",
    "to": "b.cast(x, dtype)",
    "tolist": "executor.execute(graph, inputs)['y'].tolist()",
    "trace": "b.einsum('ii->', x)",
    "tril": "b.where(np.tri(n, dtype=bool), x, 0)",
    "triu": "b.where(np.tri(n, dtype=bool).T, x, 0)",
    "type": "b.cast(x, dtype)",
    "unsqueeze": "b.expand_dims(x, axis)",
    "variable": "b.input('w', shape)",
    "variance": "b.var(x)",
    "view": "b.reshape(x, shape)",
    "vmap": "tl.batched(graph, over=['x'])",
    "xor": "b.logical_xor(x, y)",
    "zeros": "b.constant(np.zeros(shape))",
    "zeros_like": "b.broadcast_to(0.0, x.shape)",
}
BITWISE = {f"bitwise_{word}": f"logical_{word}" for word in ("and", "or", "xor")} | {"invert": "logical_not"}


class Tensor(TensorOperators["Tensor"]):
    """A value in a graph being built; arithmetic on it adds nodes.

    >>> from tensorlogic import GraphBuilder
    >>> b = GraphBuilder()
    >>> x = b.input("x", ("n", 4), "float32")
    >>> (x * 2 + 1)[:, 0]
    <Tensor float32[n]>
    """

    __slots__ = ("builder", "node", "scope")

    def __init__(self, builder: GraphBuilder, scope: GraphDraft, node: int) -> None:
        self.builder, self.scope, self.node = builder, scope, node

    @property
    def type(self) -> TensorType:
        """The tensor's shape and dtype, as far as they are known."""
        return self.scope.types[self.node][0]

    @property
    def shape(self) -> TensorShape | None:
        """The tensor's shape; None where its rank is unknown."""
        return self.type.shape

    @property
    def dtype(self) -> str | None:
        """The tensor's dtype; None where it depends on the bound array."""
        return self.type.dtype

    def __repr__(self) -> str:
        return f"<Tensor {self.type}>"

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *operands: Any, **options: Any) -> Tensor:
        """Add the node that a NumPy function stands for: ``np.exp(x)`` is ``b.exp(x)``, ``array + x`` is ``b.add(array, x)``."""
        name = ufunc.__name__
        if options.keys() == {"out"} and options["out"][0] is operands[0]:
            options = {}  # array += x: the array's name now stands for the sum
        if method != "__call__" or options or not (name in FUNCTIONS or name in BITWISE or name == "matmul"):
            hint = f"write b.{name}(...)" if name in FUNCTIONS else _instead(name, FUNCTIONS)
            how = f".{method}" if method != "__call__" else f" with {', '.join(options)}=" if options else ""
            raise GraphError(f"np.{name}{how} on a tensor of a graph is not there", hint, code="E142")
        if name in BITWISE:
            return self.builder.truth(BITWISE[name], *operands)
        result: Tensor = getattr(self.builder, name)(*operands)
        return result

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        """Add the node of a NumPy function that is no ufunc: ``np.sum(x, 0)`` is ``b.sum(x, 0)``."""
        name = function.__name__
        if name in ("shape", "ndim"):
            shape = self.builder._shape(self, f"np.{name}")
            return len(shape) if name == "ndim" else shape
        if name not in _AS_NUMPY:
            hint = f"write b.{name}(...)" if hasattr(self.builder, name) else _instead(name, _AS_NUMPY)
            raise GraphError(f"np.{name} on a tensor of a graph is not there", hint, code="E142")
        try:
            return getattr(self.builder, name)(*args, **options)
        except TensorLogicError:
            raise
        except TypeError as error:  # an argument that only NumPy has
            hint = f"write b.{name}(...) with the arguments that it has"
            raise GraphError(f"np.{name} on a tensor of a graph: {error}", hint, code="E142") from None

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        hint = "use the builder's functions, such as b.sum(x), or execute the graph first"
        several = "tensors of a list are joined by b.stack([x, y]); those of an einsum stand side by side"
        raise GraphError("a tensor in a graph has no values while it is being built", hint, several, code="E106")

    def __bool__(self) -> NoReturn:
        hint = "use b.where(condition, x, y) or b.cond(condition, then, otherwise)"
        raise GraphError("a tensor in a graph has no truth value while it is being built", hint, code="E106")

    def __iter__(self) -> NoReturn:
        hint = "index it, x[0], or use b.scan(body, init, xs=x)"
        raise GraphError("a tensor in a graph cannot be iterated over while it is being built", hint, code="E106")

    def __len__(self) -> NoReturn:
        hint = "x.shape[0] is the size of its first axis, a number or a name"
        raise GraphError("a tensor in a graph has no length while it is being built", hint, code="E106")

    def __float__(self) -> NoReturn:
        hint = "execute the graph first: float(executor.execute(graph, inputs)['y'])"
        raise GraphError("a tensor in a graph has no values while it is being built", hint, code="E106")

    __int__ = __float__

    def __setitem__(self, index: Any, value: Any) -> NoReturn:
        hint = "make another: b.where(condition, value, x), or b.concat of its parts"
        raise GraphError("a tensor in a graph does not change", hint, code="E106")

    def __getattr__(self, name: str) -> NoReturn:
        """Say how a method of NumPy's arrays is written; only asked for what a tensor does not have."""
        if name.startswith("_") or name in Tensor.__slots__:
            raise AttributeError(name)
        ours = f"b.{name}(x)" if hasattr(type(self.builder), name) else ELSEWHERE.get(name, "")
        raise AttributeError(f"a tensor in a graph has no {name!r}{ours and '; write '}{ours}", name=name, obj=self)


def _instead(name: str, known: Iterable[str]) -> str:
    """Return what to write for a function that NumPy has and a graph does not: it is no misspelt one."""
    return f"write {ELSEWHERE[name]}" if name in ELSEWHERE else known_names(list(known))[0]


class GraphDraft:
    """The nodes of one graph being built: the whole program's, or a body's."""

    def __init__(self, parent: GraphDraft | None) -> None:
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.nodes: list[Node] = []
        self.types: list[Results] = []
        self.interned: dict[tuple[Op, tuple[int, ...]], int] = {}
        self.inputs: dict[str, int] = {}
        self.captures: dict[int, tuple[Tensor, int]] = {}  # node of the parent -> (itself, input here)
