"""The conformance table: named cases that every backend must answer as the reference does."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import DTypeError
from ..ir import ops
from ..ir.algebra import ALGEBRAS
from ..ir.builder import GraphBuilder
from ..ir.elementwise import FUNCTIONS
from ..ir.graph import EinsumGraph
from ..ir.spec import parse
from ..ir.tensor import Tensor
from ..ir.types import DTYPES, FLOATS

Array = NDArray[Any]
GraphAndInputs = tuple[EinsumGraph, dict[str, Array]]
Make = Callable[[GraphBuilder, Tensor], Any]


class Case(NamedTuple):
    """A graph and its inputs, made on demand; ``sampled`` cases run in every test run, the rest in full runs.

    >>> next(cases()).name
    'einsum/i->/real/bool'
    """

    name: str
    make: Callable[[], GraphAndInputs]
    sampled: bool = True


# operands' sizes by letter; upper case is 1, so that AB,bc and the like broadcast; 0 is an empty axis
SIZES = {"a": 2, "b": 3, "c": 4, "d": 2, "e": 3, "f": 2, "g": 2, "h": 2, "i": 3, "j": 4, "k": 2, "l": 3, "z": 0}
LOWER = str.maketrans("IJ", "ij")  # the index of the wide axis that an axis of 1 broadcasts with
DEGREES = ("max_product", "min_product", "max_min", "lukasiewicz", "noisy_or")  # algebras of numbers from 0 to 1
EQUATIONS = """
i-> ij-> ij->i ij->j ij->ji ii ii->i ii-> iii->i iij->ij iij->j iji->ij ijji->ij i,i i,i-> i,j i,j->ji i,i->i ij,j
ij,j->i ij,i->j ji,j ij,jk ij,jk->ik ij,jk->ki ij,kj->ik ji,jk->ik ji,kj->ki ij,ij ij,ij->ij ij,ji->ij ij,ij->i ij,ij->
ij,k->ikj ij,kl->ilkj ijk,jil->kl ijk,jik ijk,kj->i bij,bjk->bik ijb,bjk->bik ijb,jkb->ikb ab,bcc->ac aab,bc->ac
aab,bcc->ac baa,bcc->ac aab,ccb->ac ,-> ,i->i i,->i i,-> ,ij->ji ... ...i->... ...i->i... i...->...
...ij,...jk->...ik i...,i...->... ...,... i...j->j...i ij...,jk...->ik... ab,ab,c-> ab,ab,c->c a,ab,abc->abc a,b,ab->ab
ab,cd,ef->acdf ab,bc,cd->ad ab,bcd,cd->abd ea,fb,gc,hd,abcd->efgh eb,cb,fb->cef dd,fb,be,cdb->cef bca,cdb,dbf,afc->
dcc,fce,ea,dbf->ab fdf,cdd,ccd,afe->ae ed,fcd,ff,bcf->be baa,dcf,af,cde->be efc,dbc,acf,fd->abe fff,fae,bef,def->abd
zi-> zi->i zi->z iz,zj->ij zi,ij->zj iz,zj,jk->ik z,z-> I,i->i Ij,ij->ij iJ,jk->ik iJ,Jk->ik IJ,jk->ik ij,Jk->ik
i,j,k->kij i,i,i-> abcd,cdef->feba abcd,efdc
""".split()


def cases(*, full: bool = False) -> Iterator[Case]:
    """Return the table, case by case; with ``full`` the whole product of cases and dtypes."""
    return (case for case in chain(_einsums(), _elementwise(), _others()) if full or case.sampled)


def _numbers(name: str, shape: tuple[int, ...], dtype: str, low: float = -2.0, high: float = 2.0) -> Array:
    """Return repeatable numbers of a dtype; few distinct values, so that ties occur."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if dtype == "bool":
        return rng.random(shape) < 0.4
    if dtype in FLOATS:
        return (np.round(rng.uniform(low, high, shape) * 8) / 8).astype(dtype)
    least = int(max(-3, low)) if dtype.startswith("i") and low else 0
    return rng.integers(least, 2 if high == 1 else 4, shape).astype(dtype)


def _operand_shape(labels: tuple[str, ...], name: str) -> tuple[int, ...]:
    shape: list[int] = []
    for label in labels:
        if label == "...":
            shape += [2, 3] if not name.endswith("1") else [3]  # the second operand's ellipsis is narrower
        else:
            shape.append(1 if label.isupper() else SIZES[label])
    return tuple(shape)


def _einsum(equation: str, algebra: str, dtype: str) -> GraphAndInputs:
    spec = parse(equation.split("->")[0])
    low, high = (0.0, 1.0) if algebra in DEGREES else (-2.0, 2.0)
    b = GraphBuilder()
    inputs = {}
    tensors = []
    for n, labels in enumerate(spec.inputs):
        shape = _operand_shape(labels, f"x{n}")
        inputs[f"x{n}"] = _numbers(f"{equation}{n}", shape, dtype, low, high)
        tensors.append(b.input(f"x{n}", shape))
    return b.build(y=b.einsum(equation.translate(LOWER), *tensors, algebra=algebra)), inputs


def _einsums() -> Iterator[Case]:
    for equation in EQUATIONS:
        for name, row in ALGEBRAS.items():
            if name.endswith("residuum") and equation.count(",") != 1:
                continue  # an implication has two sides
            for dtype in DTYPES:
                if dtype == "bfloat16" or (row.numbers and dtype == "bool"):
                    continue
                if dtype not in FLOATS and "z" in equation and not np.isfinite(row.zero):
                    continue  # infinity, the sum of nothing, is not an integer
                usual = ("float64", "bool", "float32") if name in ("real", "boolean") else ("float64",)
                wanted = dtype in usual or equation in ("ij,jk->ik", "ij->i", "ab,bc,cd->ad")
                yield Case(f"einsum/{equation}/{name}/{dtype}", partial(_einsum, equation, name, dtype), wanted)


def _elementwise_case(fn: str, dtypes: tuple[str, ...], special: bool) -> GraphAndInputs:
    b = GraphBuilder()
    inputs: dict[str, Array] = {}
    tensors = []
    for n, dtype in enumerate(dtypes):
        shape = ((4, 3), (3,), (4, 1))[n]
        values = _numbers(f"{fn}{n}", shape, dtype)
        if special and dtype in FLOATS:
            values.flat[:3] = (np.nan, np.inf, -np.inf) if n == 0 else (0.0, 1.0, np.nan)
        if fn == "power" and dtype not in FLOATS:
            values = np.abs(values) if n else values
        inputs[f"x{n}"] = values
        tensors.append(b.input(f"x{n}", shape, dtype))
    return b.build(y=getattr(b, fn)(*tensors)), inputs


def _elementwise() -> Iterator[Case]:
    usable = [d for d in DTYPES if d != "bfloat16"]
    for fn, row in FUNCTIONS.items():
        for dtype in usable:
            if fn == "reciprocal" and dtype not in FLOATS:
                continue  # the reciprocal of integer 0 is undefined
            try:
                make = partial(_elementwise_case, fn, (dtype,) * row.arity, False)
                make()
            except DTypeError:
                continue
            yield Case(f"elementwise/{fn}/{dtype}", make, dtype in ("float32", "float64", "int8", "bool"))
        for dtype in ("float32", "float64"):
            yield Case(f"elementwise/{fn}/special/{dtype}", partial(_elementwise_case, fn, (dtype,) * row.arity, True))
    mixed = [("int32", "float32"), ("bool", "int8"), ("uint8", "int8"), ("float16", "int16"), ("int64", "float32")]
    for pair in mixed:
        for fn in ("add", "multiply", "maximum", "less", "divide"):
            yield Case(f"elementwise/{fn}/{'-'.join(pair)}", partial(_elementwise_case, fn, pair, False))


def _one(fn: Make, shape: tuple[int, ...], dtype: str, name: str) -> GraphAndInputs:
    b = GraphBuilder()
    x = b.input("x", shape)
    result = fn(b, x)
    outputs = {f"y{n}": t for n, t in enumerate(result)} if isinstance(result, tuple) else {"y": result}
    return b.build(outputs), {"x": _numbers(name, shape, dtype)}


_SCALES = np.array([0.1, 0.5, 2.0, 0.3, 1.0, 0.7] * 2, "f4").reshape(2, 3, 2)
_BYTES = {"int4": [0x81, 0x7F], "int2": [0xE4], "ternary": [0x07], "binary": [0x05], "e4m3": [56, 184, 126, 1]}
_UNARY: Mapping[str, Make] = {
    "literal": lambda b, x: x * 2 + 1.5,
    "reduce/all axes": lambda b, x: (b.sum(x), b.max(x), b.mean(x), b.argmax(x), b.any(x)),
    "reduce/keepdims": lambda b, x: (b.sum(x, 1, keepdims=True), b.min(x, (0, 2), keepdims=True)),
    "cumulate/reverse": lambda b, x: (b.cumsum(x, 1, reverse=True), b.cummax(x, 0)),
    "sort/values": lambda b, x: (b.sort(x), b.sort(x, 0, descending=True)),
    "sort/indices": lambda b, x: (b.argsort(x, 1), b.argsort(x, 2, descending=True)),
    "top_k": lambda b, x: (*b.top_k(x, 2), *b.top_k(x, 3, axis=1)),
    "view/slice": lambda b, x: (x[0], x[:, 1:], x[..., ::-1], x[:, ::2], x[1:1], x[-1, None, :, 0]),
    "view/reshape": lambda b, x: (b.reshape(x, (-1,)), b.reshape(x, (4, 6)), b.expand_dims(x, 1)),
    "view/transpose": lambda b, x: (x.T, b.transpose(x, (1, 0, 2))),
    "view/broadcast": lambda b, x: (b.broadcast_to(x, (5, 2, 3, 4)), b.broadcast_to(x[:, :1], (2, 3, 4))),
    "view/window": lambda b, x: (b.window(x, 1, 2), b.window(x, 2, 2, step=2), b.window(x, 2, 2, dilation=2)),
    "overlap_add": lambda b, x: (
        b.overlap_add(x, 1, 6),
        b.overlap_add(x, 1, 14, step=5),
        b.overlap_add(x, 1, 11, step=3),
        b.overlap_add(x, 0, 8, dilation=2),
    ),
    "pad": lambda b, x: b.pad(x, [(1, 0), (0, 2), (1, 1)], 3),
    "concat": lambda b, x: (b.concat([x, x, x], 1), b.stack([x, x], -1)),
    "gather": lambda b, x: (b.gather(x, np.array([[1, 0], [1, 1]]), 1), b.gather(x, np.array([2, 0, -1]), 2)),
    "gather/batch": lambda b, x: b.gather(x, np.array([[0, 2, 1], [1, 1, 1]]), 1, batch=1),
    "scatter_add": lambda b, x: b.scatter_add(x, np.array([0, 0, 2]), x, 1),
    "scatter_add/batch": lambda b, x: b.scatter_add(x, np.array([[0, 0, 1], [2, 2, 2]]), x, 1, batch=1),
    "cast": lambda b, x: (b.cast(x, "int32"), b.cast(x, "float16"), b.cast(x, "bool")),
    "iota": lambda b, x: x + b.iota(4),
    "stop_gradient": lambda b, x: (b.stop_gradient(x), b.stop_gradient(x * 2) + x, b.apply(ops.Barrier(), x) * x),
    "transfer": lambda b, x: (b.apply(ops.Transfer("cpu:1"), x), b.apply(ops.Transfer("cpu:1"), x * 2) + 1),
    "collectives": lambda b, x: (  # of one rank, which meets nobody
        b.apply(ops.AllReduce("data", 1, 0), x),
        b.apply(ops.AllGather("data", 1, 0, 1, 3), x),
        b.apply(ops.ReduceScatter("data", 1, 0, 1), x),
        b.apply(ops.AllToAll("data", 1, 0, 0, 1, 3), x),
        b.apply(ops.BroadcastFrom("data", 1, 0), x) + x,
    ),
    "collectives/started": lambda b, x: b.apply(
        ops.Wait("data", 1, 0, "1"), b.apply(ops.StartAllReduce("data", 1, 0, "add", "1"), x, x)
    ),
    "quantize": lambda b, x: b.quantize(x, np.float32(0.1), 3),
    "quantize/axis": lambda b, x: b.dequantize(
        b.quantize(x, np.array([0.1, 0.5, 2.0], "f4"), np.array([0, 1, -1]), axis=1),
        np.array([0.1, 0.5, 2.0], "f4"),
        np.array([0, 1, -1]),
        axis=1,
    ),
    "quantize/group": lambda b, x: b.dequantize(
        b.quantize(x, _SCALES, np.zeros((2, 3, 2), "i1"), "int4", group=3), _SCALES, np.zeros((2, 3, 2), "i1"), group=3
    ),
    "quantize/kinds": lambda b, x: tuple(
        b.cast(b.quantize(x, np.float32(0.7), 0, kind), "float32")
        for kind in ("int2", "ternary", "binary", "e4m3", "e5m2")
    ),
    "quantize/unpack": lambda b, x: tuple(
        x * b.cast(b.unpack(np.array(row, "u1"), kind, 4), "float32") for kind, row in _BYTES.items()
    ),
    "layers/softmax": lambda b, x: (b.softmax(x), b.log_softmax(x, 1), b.logsumexp(x, (0, 1))),
    "layers/norms": lambda b, x: (b.layer_norm(x), b.rms_norm(x), b.var(x, 1)),
    "layers/activations": lambda b, x: (b.gelu(x), b.gelu(x, approximate=True), b.silu(x), b.elu(x), b.softplus(x)),
    "layers/attention": lambda b, x: b.attention(x, x, x),
    "cond": lambda b, x: b.cond(b.sum(x) > 0, lambda: x * 2, lambda: x - 1),
    "scan": lambda b, x: b.scan(lambda c, r: (c + r, c * r), b.sum(x, 0), x),
    "scan/reverse": lambda b, x: b.scan(lambda c, r: (c - r, c), x[0], x, reverse=True),
    "scan/two carries": lambda b, x: b.scan(lambda c, r: ((c[1], c[0] + r[0]), (c[0],)), (x[0], x[1]), (x,))[1],
    "fixpoint/replace": lambda b, x: b.fixpoint(lambda c: b.minimum(c + 1, 3), x),
    "fixpoint/max": lambda b, x: b.fixpoint(lambda c: c[:, ::-1], x, combine="max"),
    "fixpoint/two carries": lambda b, x: b.fixpoint(lambda c, d: (b.minimum(c + 1, 4), b.maximum(c, d)), x, x),
}
_FLOAT_ONLY = ("layers", "quantize", "cond", "scan", "fixpoint")


def _along(method: str, *axes: int) -> Make:
    return lambda b, x: tuple(getattr(b, method)(x, axis) for axis in axes)


def _others() -> Iterator[Case]:
    for name, fn in _UNARY.items():
        floats = name.startswith(_FLOAT_ONLY)
        for dtype in ("float64", "float32", "float16", "int64", "int8", "uint8", "bool"):
            if (floats and dtype not in ("float64", "float32")) or (
                dtype == "bool" and name in ("scatter_add", "overlap_add")
            ):
                continue
            yield Case(f"{name}/{dtype}", partial(_one, fn, (2, 3, 4), dtype, name), dtype != "uint8")
    for kind in ("sum", "prod", "max", "min", "mean", "any", "all", "argmax", "argmin"):
        for dtype in ("float64", "float32", "float16", "int64", "int32", "int8", "uint8", "bool"):
            yield Case(f"reduce/{kind}/{dtype}", partial(_one, _along(kind, 1), (2, 3, 4), dtype, kind))
    for kind in ("cumsum", "cumprod", "cummax", "cummin"):
        for dtype in ("float64", "float32", "int64", "int8", "bool"):
            yield Case(f"cumulate/{kind}/{dtype}", partial(_one, _along(kind, 1), (2, 3), dtype, kind))
    for kind in ("sum", "prod", "mean", "any", "all"):
        yield Case(f"empty/{kind}", partial(_one, _along(kind, 0, 1), (0, 3), "float64", kind))
    views: Make = lambda b, x: (x.T, x[:, 1:], b.concat([x, x], 0), b.softmax(x))  # noqa: E731
    yield Case("empty/views", partial(_one, views, (0, 3), "float64", "e"))
    yield Case("fixpoint/closure", _closure)
    for name, row in ALGEBRAS.items():
        if row.differentiable:
            for equation in ("ij,jk->ik", "ij->i", "ii,ij->j", "i,i->", "ij,Jk->ik", "ab,bc,c->a"):
                if name.endswith("residuum") and equation.count(",") != 1:
                    continue
                yield Case(f"contract_vjp/{equation}/{name}", partial(_vjp, equation, name))


def _closure() -> GraphAndInputs:
    b = GraphBuilder()
    edge = b.input("edge", ("n", "n"), "bool")
    path = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or")
    return b.build(path=path), {"edge": _numbers("closure", (7, 7), "bool") & _numbers("thin", (7, 7), "bool")}


def _vjp(equation: str, algebra: str) -> GraphAndInputs:
    _, inputs = _einsum(equation, algebra, "float64")
    spec = parse(equation.translate(LOWER))
    b = GraphBuilder()
    tensors = [b.input(n, x.shape) for n, x in inputs.items()]
    y = b.einsum(str(spec), *tensors, algebra=algebra)
    shape = tuple(int(d) for d in y.shape or ())
    g = b.constant(_numbers("cotangent" + equation, shape, "float64"))
    grads = {f"d_x{n}": b.contract_vjp(str(spec), algebra, n, *tensors, y, g) for n in range(len(tensors))}
    return b.build(grads), inputs
