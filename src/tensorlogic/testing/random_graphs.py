"""Random graphs: operations drawn one after another, on values of every dtype, with views, loops and odd numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..errors import TensorLogicError
from ..ir.algebra import ALGEBRAS
from ..ir.builder import GraphBuilder
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import EinsumGraph
from ..ir.ops import Barrier, Transfer
from ..ir.packed_numbers import KINDS, PACKED, packed_size
from ..ir.sizes import evaluate
from ..ir.tensor import Tensor
from ..ir.types import FLOATS

# those that every backend has; bfloat16 may be named besides
DTYPES = (
    "float32",
    "float64",
    "bool",
    "int64",
    "int8",
    "uint8",
    "int32",
    "uint64",
    "float16",
    "int16",
    "uint16",
    "uint32",
)
SIZES = (3, 1, 2, 5, 8, 17, 65, 0)
NAMES = ("n", "m", "k")
MOST = 5000  # elements of any value
EQUATIONS = (
    "ij,jk->ik", "ij,j->i", "ij->ji", "ij->j", "ij->", "ii->i", "ii->", "ij,ij->i", "ij,kj->ki", "i,j->ij", "i,i->",
    "bij,bjk->bik", "bij,jk->bik", "ij,ij->ji", "ij,jk,kl->il", "ij,ji->ij", "iij->j",
)  # fmt: skip

# functions that jump somewhere, or whose slope grows without bound: only of operands that are the same to the last bit on every road
JUMPS = frozenset(
    "sign step floor ceil trunc rint isnan isinf isfinite logical_not equal not_equal less less_equal greater greater_equal logical_and "
    "logical_or logical_xor where floor_divide remainder godel_implies goguen_implies reciprocal log log1p log2 divide power sqrt tan "
    "arctan2 arcsin arccos sinh cosh exp expm1 square multiply".split()
)
ROUNDED = frozenset(
    "exp expm1 log log1p log2 sin cos tan arcsin arccos arctan sinh cosh tanh erf sigmoid power arctan2 logaddexp".split()
)  # functions that kernels round differently
SUMS = ("real", "log_sum_exp", "noisy_or", "max_product", "min_product", "lukasiewicz", "goguen_residuum")
SMOOTH = {  # functions with a slope almost everywhere, by the number of their operands
    1: "tanh sin cos sigmoid square exp negative arctan erf",
    2: "add subtract multiply logaddexp maximum",
}
# of integers that overflow, the order of three factors decides which is largest
WRAPS = ("max_product", "max_plus", "min_plus")


Below = Callable[[int], int]  # gives a whole number below the one it is given, such as random.Random(0).randrange


class GraphCase(NamedTuple):
    """A graph, arrays for its inputs, and the outputs that have the same bits however sums are ordered."""

    graph: EinsumGraph
    inputs: dict[str, Any]
    exact: frozenset[str]

    def __repr__(self) -> str:
        arrays = "\n".join(f"{name} = {value!r}" for name, value in self.inputs.items())
        return f"{self.graph}\n{arrays}\nexact outputs: {', '.join(sorted(self.exact)) or 'none'}"


class _Value(NamedTuple):
    tensor: Tensor
    exact: bool = True


def arrays(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, *, odd: float = 0.03) -> Any:
    """Return an array with few distinct values, so that ties occur, and some odd ones: NaN, infinity, -0, extremes of integers.

    >>> arrays(np.random.default_rng(0), (3,), "int8").dtype
    dtype('int8')
    """
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.4)
    if dtype == "bfloat16":
        import ml_dtypes  # noqa: F401 - NumPy has it from there
    if dtype in FLOATS:
        values = np.asarray(np.round(rng.uniform(-3, 3, shape) * 8) / 8)
        others = rng.random(shape) < odd
        return np.where(others, rng.choice([np.nan, np.inf, -np.inf, -0.0], shape), values).astype(dtype)
    info = np.iinfo(dtype)
    low, high = (info.min, info.max) if rng.random() < odd * 5 else (max(info.min, -5), 5)
    return np.asarray(rng.integers(low, high, shape, dtype=dtype, endpoint=True))


class Graphs:
    """A graph that grows by what is drawn."""

    def __init__(self, below: Below, dtypes: Sequence[str], bodies: bool, smooth: bool, sizes: Sequence[int]) -> None:
        self.below, self.bodies, self.smooth, self.dtypes = below, bodies, smooth, dtypes
        self.rng = np.random.default_rng(below(2**32))
        self.b = GraphBuilder(intern=self.chance(70))
        self.env = {name: self.pick(sizes[:5] if smooth else sizes) for name in NAMES}
        self.named = self.chance(30)
        self.values: list[_Value] = []
        self.inputs: dict[str, Any] = {}
        for n in range(1 + below(3)):
            names = self.pick([(), ("n",), ("n", "m"), ("n", "m"), ("n", "n"), ("m", "k"), ("k", "n", "m"), ("n", 1)])
            dtype = self.pick(dtypes)
            shape = tuple(self.env.get(d, d) if isinstance(d, str) else d for d in names)
            declared = names if self.named else shape
            self.inputs[f"x{n}"] = arrays(self.rng, shape, dtype, odd=0.0 if smooth else 0.03)
            self.values.append(_Value(self.b.input(f"x{n}", declared, dtype if self.chance(85) or smooth else None)))

    def pick(self, values: Sequence[Any]) -> Any:
        return values[self.below(len(values))]

    def chance(self, percent: int) -> bool:
        return self.below(100) >= 100 - percent

    def any(self) -> _Value:
        value: _Value = self.pick(self.values[::-1][:8])
        return value

    def shape(self, v: _Value) -> tuple[int, ...]:
        return tuple(int(evaluate(d, self.env)) for d in v.tensor.shape or ())

    def dtype(self, v: _Value) -> str:
        return v.tensor.dtype or "unknown"

    def floating(self, v: _Value) -> bool:
        return self.dtype(v) in FLOATS

    def rounds(self, tensor: Tensor) -> bool:
        """Tell whether sums of such elements depend on their order, or may."""
        return tensor.dtype is None or tensor.dtype in FLOATS

    def grow(self) -> None:
        """Add one operation, unless the operands that were drawn do not go together."""
        kinds = "unary binary literal reduce view einsum einsum choose cumulate cast index join layer windows count small".split()
        kind = self.pick(kinds + (["body"] if self.bodies else []))
        try:
            tensor = getattr(self, kind)(self.any())
        except TensorLogicError:
            return
        for v in tensor if isinstance(tensor, list) else [tensor]:
            if v is not None and v.tensor.shape is not None and len(v.tensor.shape) < 5 and prod(self.shape(v)) <= MOST:
                self.values.append(v)

    def function(self, arity: int, exact: bool) -> str:
        names = [n for n, row in FUNCTIONS.items() if row.arity == arity and n != "where" and (exact or n not in JUMPS)]
        return str(self.pick(SMOOTH[arity].split() if self.smooth else names))

    def unary(self, x: _Value) -> _Value:
        fn = self.function(1, x.exact)
        if fn == "reciprocal" and not self.floating(x):
            fn = "negative"  # of the integer 0 it is not defined
        return _Value(getattr(self.b, fn)(x.tensor), x.exact and fn not in ROUNDED)

    def binary(self, x: _Value) -> _Value:
        y = self.any()
        fn = self.function(2, x.exact and y.exact)
        return _Value(getattr(self.b, fn)(x.tensor, y.tensor), x.exact and y.exact and fn not in ROUNDED)

    def literal(self, x: _Value) -> _Value:
        number = self.pick([0.5, -1.0, 2.0, 0.1]) if self.floating(x) else self.pick([0, 1, 2, 3])
        fn = self.pick(["add", "multiply", "maximum", "subtract"])
        pair = (number, x.tensor) if self.chance(50) else (x.tensor, number)
        return _Value(getattr(self.b, fn)(*pair), x.exact)

    def reduce(self, x: _Value) -> _Value:
        kinds = ["sum", "max", "min", "mean", "any", "all", "prod", "argmax", "argmin"]
        kind = self.pick(["sum", "mean"] if self.smooth else kinds if x.exact else ["sum", "max", "min", "mean"])
        rank = len(x.tensor.shape or ())
        axis = self.pick([None, *range(rank), *([tuple(range(rank))[1:], (0, rank - 1)] if rank > 1 else [])])
        if kind.startswith("arg") and isinstance(axis, tuple):
            axis = None
        y = getattr(self.b, kind)(x.tensor, axis, keepdims=self.chance(40))
        return _Value(y, x.exact and not (kind in ("sum", "mean", "prod") and self.rounds(y)))

    def view(self, x: _Value) -> _Value:
        b, t, rank = self.b, x.tensor, len(x.tensor.shape or ())
        ways: list[Callable[[], Tensor]] = [lambda: b.expand_dims(t, 0), lambda: b.apply(Barrier(), t)]
        if not self.smooth:
            ways.append(lambda: b.stop_gradient(t))
        ways += [lambda: b.broadcast_to(t, (2, *(t.shape or ()))), lambda: b.apply(Transfer("cpu:1"), t)]
        if rank:
            ways += [
                lambda: b.transpose(t),
                lambda: t[::-1],
                lambda: t[..., ::2],
                lambda: t[1:],
                lambda: t[..., 0],
                lambda: t[-1:],
                lambda: b.reshape(t, (-1,)),
                lambda: b.pad(t, [(1, 0)] * rank, 1),
                lambda: b.transpose(t, [int(k) for k in self.rng.permutation(rank)]),
            ]
        return _Value(self.pick(ways)(), x.exact)

    def einsum(self, x: _Value) -> _Value:
        equation = self.pick(EQUATIONS)
        operands = [x, *(self.any() for _ in range(equation.count(",")))]
        exact = all(v.exact for v in operands)
        algebra = "real" if self.smooth else self.pick(["real", "boolean", *ALGEBRAS])
        tensors = [v.tensor for v in operands]
        if ALGEBRAS[algebra].numbers and algebra in SUMS and algebra != "real":
            if not all(self.floating(v) for v in operands):
                return _Value(self.b.einsum(equation, *tensors, algebra="max_min"), exact)
            tensors = [self.b.sigmoid(t) for t in tensors]
            exact = False
        elif not exact:
            if algebra in ("boolean", "godel_residuum", "goguen_residuum"):
                algebra = "max_min"
            tensors = [self.b.tanh(t) if self.floating(v) else t for t, v in zip(tensors, operands, strict=True)]
        if algebra in WRAPS and len(tensors) > 2 and not all(self.floating(v) for v in operands):
            algebra = "max_min"
        y = self.b.einsum(equation, *tensors, algebra=algebra)
        if algebra in ("max_min", "min_max") and exact and all(self.floating(v) for v in operands) and self.chance(30):
            wrt = self.below(len(tensors))
            return _Value(self.b.contract_vjp(equation, algebra, wrt, *tensors, y, y), False)
        return _Value(y, exact and (algebra not in SUMS or not self.rounds(y)))

    def windows(self, x: _Value) -> _Value | None:
        b, rank = self.b, len(x.tensor.shape or ())
        if not rank:
            return None
        axis, size, step, apart = self.below(rank), 1 + self.below(3), 1 + self.below(2), 1 + self.below(2)
        if (size - 1) * apart >= self.shape(x)[axis]:
            return None
        windows = b.window(x.tensor, axis, size, step=step, dilation=apart)
        if self.chance(50):
            return _Value(windows, x.exact)
        length = (x.tensor.shape or ())[axis]
        together = b.overlap_add(windows, axis, length, step=step, dilation=apart)
        return _Value(together, x.exact and not self.rounds(together))

    def count(self, x: _Value) -> _Value | None:
        if self.smooth:
            return None
        size = self.pick([d for d in x.tensor.shape or () if d != 1] or [3])
        return _Value(self.b.iota(size, self.pick([d for d in self.dtypes if d != "bool"] or ["int64"])))

    def choose(self, x: _Value) -> _Value:
        y, z = self.any(), self.any()
        if self.smooth or not z.exact:
            return _Value(self.b.maximum(x.tensor, y.tensor), x.exact and y.exact)
        condition = z.tensor if self.dtype(z) == "bool" else self.b.greater(z.tensor, 0)
        return _Value(self.b.where(condition, x.tensor, y.tensor), x.exact and y.exact)

    def cumulate(self, x: _Value) -> _Value:
        rank = len(x.tensor.shape or ())
        kind = self.pick(["sum"] if self.smooth else ["sum", "max", "min", *(["prod"] if x.exact else [])])
        if not rank:
            return x
        y = getattr(self.b, f"cum{kind}")(x.tensor, self.pick(range(rank)), reverse=self.chance(40))
        return _Value(y, x.exact and (kind in ("max", "min") or not self.rounds(y)))

    def cast(self, x: _Value) -> _Value | None:
        if self.smooth:
            return None
        to = self.pick(self.dtypes)
        if not self.floating(x):
            return _Value(self.b.cast(x.tensor, to), x.exact) if self.dtype(x) != "unknown" else None
        if to in FLOATS:
            return _Value(self.b.cast(x.tensor, to), x.exact)
        if not x.exact:
            return None
        tame = self.b.where(self.b.isfinite(x.tensor), self.b.clip(x.tensor, 0, 9), 0)  # other casts are not defined
        return _Value(self.b.cast(tame, to))

    def index(self, x: _Value) -> _Value | list[_Value] | None:
        b, t, rank = self.b, x.tensor, len(x.tensor.shape or ())
        if not rank:
            return None
        batch = int(rank > 1 and self.chance(30))
        axis = self.pick(range(batch, rank))
        size = self.shape(x)[axis]
        if size < 1:  # below 0 where a slice begins at 1 of none; such a graph is refused when it runs
            return None
        way = self.pick(["gather", "scatter", "sort", "argsort", "top_k"])
        if way in ("gather", "scatter"):
            if batch and self.shape(x)[0] < 0:
                return None
            each = self.pick([(2,), (3, 2), (0,), ()])
            places = self.rng.integers(-size if self.chance(30) else 0, size, (*self.shape(x)[:batch], *each))
            row = b.gather(t, places, axis, batch=batch)
            if way == "gather":
                return _Value(row, x.exact)
            added = b.scatter_add(t, places, row, axis, batch=batch)
            return _Value(added, x.exact and not self.floating(x))
        if self.smooth or not (x.exact or way == "sort"):
            return None
        if way == "sort":
            return _Value(b.sort(t, axis, descending=self.chance(50)), x.exact)
        if way == "argsort":
            return _Value(b.argsort(t, axis, descending=self.chance(50)))
        return [_Value(v) for v in b.top_k(t, self.pick([1, size]), axis)]

    def small(self, x: _Value) -> _Value | list[_Value] | None:
        """Numbers of few bits: floats to them and back, or those that bytes hold."""
        b, t, shape = self.b, x.tensor, self.shape(x)
        if self.smooth or not x.exact or any(d < 0 for d in shape):
            return None
        if self.chance(40):
            kind, count = self.pick(PACKED), 1 + self.below(9)
            whole = self.rng.integers(0, 256, (*shape[:1], packed_size(count, KINDS[kind].bits)), "uint8")
            return _Value(b.unpack(b.constant(whole), kind, count))
        if self.dtype(x) not in ("float32", "float64"):
            return None
        kind = self.pick(["int8", "uint8", "int16", "int32", *PACKED])
        how: dict[str, int] = self.pick([{}, {"axis": self.below(len(shape))}, {"group": 2}]) if shape else {}
        scales = (shape[how["axis"]],) if "axis" in how else (*shape[:-1], -(-shape[-1] // 2)) if how else ()
        scale = np.asarray(2.0 ** self.rng.integers(-3, 1, scales), "float32")
        zero = 3 if kind in ("int8", "uint8", "int16", "int32") else 0
        q = b.quantize(b.where(b.isfinite(t), t, 0), scale, zero, kind, **how)
        return [_Value(q), _Value(b.dequantize(q, scale, zero, **how))]

    def join(self, x: _Value) -> _Value:
        y, rank = self.any(), len(x.tensor.shape or ())
        axis = self.pick(range(max(rank, 1)))
        pair = [x.tensor, y.tensor] if self.chance(60) else [x.tensor, x.tensor]
        tensor = self.b.concat(pair, axis) if rank and self.chance(60) else self.b.stack(pair, 0)
        return _Value(tensor, x.exact and y.exact)

    def layer(self, x: _Value) -> _Value:
        b = self.b
        t = x.tensor if self.floating(x) else b.cast(x.tensor, "float32")
        fns = [b.softmax, b.log_softmax, b.logsumexp, b.gelu, b.silu, b.softplus, b.elu]
        return _Value(self.pick(fns[:-1] if x.exact else fns[:3])(b.tanh(t)), False)

    def body(self, x: _Value) -> _Value | list[_Value] | None:
        b, t, y = self.b, x.tensor, self.any()
        floats = self.floating(x)
        exact = x.exact and y.exact and not floats
        shape = t.shape or ()
        cap = b.sum(b.tanh(y.tensor) if self.floating(y) else b.greater(y.tensor, 1) if y.exact else y.tensor)
        small = b.cast(b.tanh(cap), t.dtype) if floats and t.dtype else None
        ways = [
            "scan",
            "scan through",
            "scan reverse",
            "scan drawn",
            "fixpoint",
            "fixpoint or",
            "fixpoint flipped",
            "fixpoint settling",
            "cond",
            "cond same",
            "cond drawn",
        ]
        match self.pick(ways):
            case "scan drawn" if shape and t.dtype is not None and self.shape(x)[0] > 0:
                last, outs = b.scan(lambda c, r: self.drawn(c, r, x.exact and not floats, x.exact), t[0], t)
                return [_Value(last, x.exact and not floats), _Value(outs, False)]
            case "cond drawn" if y.exact and t.dtype is not None:
                branches = [lambda: self.drawn(t, t, x.exact, x.exact)[0], lambda: t]
                test = b.any(b.greater(y.tensor, 1))
                return _Value(b.cond(test, *(branches if self.chance(50) else branches[::-1])), x.exact)
            case "scan" if shape and floats and small is not None:
                last, outs = b.scan(lambda c, r: (b.tanh(c + r * small), b.tanh(c) - r), b.sum(b.tanh(t), 0), t)
                return [_Value(last, False), _Value(outs, False)]
            case "scan through" if shape and not self.smooth:  # carries that are handed on as they came, or swapped
                pair = (t, b.logical_not(t)) if t.dtype == "bool" else (t, t)
                (c, d), (o,) = b.scan(lambda c, r: ((c[1], c[0]), (r[0],)), pair, (t,))
                return [_Value(c, x.exact), _Value(d, x.exact), _Value(o, x.exact)]
            case "scan reverse" if shape and t.dtype is not None:
                last, outs = b.scan(lambda c, r: (b.maximum(c, r), c), b.cast(b.max(t, 0), t.dtype), t, reverse=True)
                return [_Value(last, x.exact), _Value(outs, x.exact)]
            case "fixpoint" if floats and x.exact and not self.smooth:
                return _Value(b.fixpoint(lambda c: b.minimum(c + 1, 4), b.where(b.isfinite(t), t, 0)))
            case "fixpoint or" if t.dtype == "bool" and len(shape) == 2 and shape[0] == shape[1]:
                closure = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, t, algebra="boolean"), t, combine="or")
                return _Value(closure, x.exact)
            case "fixpoint flipped" if shape and x.exact and not self.smooth:
                start = b.where(b.isfinite(t), t, 0) if floats else t
                combine = "or" if t.dtype == "bool" else self.pick(["max", "min"])
                return _Value(b.fixpoint(lambda c: c[::-1], start, combine=combine))
            case "fixpoint settling" if self.smooth and t.dtype is not None:  # at one value, wherever it starts
                start, step = self.pick([t, t * 0, b.square(t)]), self.pick([b.tanh, b.floor, lambda _: b.sin(cap)])
                settle = self.pick([lambda c: c * 0.5 + step(t), lambda c: b.tanh(c) * 0.2 - b.tanh(step(t)), b.tanh])
                return _Value(b.fixpoint(lambda c: settle(c) * 0.5, start), False)
            case "cond" if y.exact and t.dtype is not None:
                test = b.any(b.greater(y.tensor, 1))
                return _Value(b.cond(test, lambda: t, lambda: b.maximum(t, t[::-1]) if shape else t), x.exact)
            case "cond same" if y.exact and not self.smooth:
                results = b.cond(b.all(b.less(y.tensor, 1)), lambda: (t, y.tensor), lambda: (t, y.tensor))
                return [_Value(v, w.exact) for v, w in zip(results, (x, y), strict=True)]
        return None if not exact else x

    def drawn(self, carry: Tensor, row: Tensor, exact: bool, row_exact: bool) -> tuple[Tensor, Tensor]:
        """Draw some operations on a carry and a row, in a body; return the next carry, of the same type, and something else."""
        outside, self.values = self.values, [_Value(carry, exact), _Value(row, row_exact)]
        try:
            for _ in range(1 + self.below(3)):
                self.grow()
            inside = self.values
        finally:
            self.values = outside
        fit = [
            v.tensor for v in inside
            if v.tensor.shape == carry.shape and v.tensor.dtype == carry.dtype and v.exact >= exact
        ]  # fmt: skip
        return fit[-1], inside[-1].tensor

    def finished(self) -> GraphCase:
        several = self.below(4)
        chosen = [self.values[-1], *(self.any() if self.chance(70) else self.pick(self.values) for _ in range(several))]
        named = {f"y{n}": v for n, v in enumerate(chosen)}
        graph = self.b.build({name: v.tensor for name, v in named.items()})
        inputs = {name: self.inputs[name] for name in graph.inputs}
        return GraphCase(graph, inputs, frozenset(name for name, v in named.items() if v.exact))
