"""Identities: each one fires where it keeps every bit, and not in the nearest case where it would not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import GraphBuilder, OptimizationLevel
from tensorlogic.ir import ops
from tensorlogic.ir.types import DTYPES
from tensorlogic.passes.simplify import simplify

Build = Callable[[GraphBuilder, Any], Any]
USABLE = [d for d in DTYPES if d != "bfloat16"]


def names(build: Build, shape: Any = (4, 3), dtype: str | None = "float32") -> list[str]:
    """Return the operations that are left beside the input and literals."""
    b = GraphBuilder(intern=False)
    graph = simplify(b.build(y=build(b, b.input("x", shape, dtype))))
    return [n.op.name for n in graph.nodes if not isinstance(n.op, ops.Input | ops.Literal)]


FIRES: dict[str, tuple[Build, str, list[str]]] = {
    "x * 1": (lambda b, x: x * 1, "float32", []),
    "1 * x": (lambda b, x: 1 * x, "float32", []),
    "x * 1.0": (lambda b, x: x * 1.0, "float16", []),
    "int x * 1": (lambda b, x: x * 1, "int8", []),
    "x / 1": (lambda b, x: x / 1, "float64", []),
    "x ** 1": (lambda b, x: x**1, "float64", []),
    "x - 0": (lambda b, x: x - 0, "float32", []),
    "x - 0.0": (lambda b, x: x - 0.0, "float32", []),
    "int x + 0": (lambda b, x: x + 0, "int32", []),
    "0 + int x": (lambda b, x: 0 + x, "uint8", []),
    "x and true": (lambda b, x: b.logical_and(x, True), "bool", []),
    "false or x": (lambda b, x: b.logical_or(False, x), "bool", []),
    "x xor false": (lambda b, x: b.logical_xor(x, False), "bool", []),
    "max(x, x)": (lambda b, x: b.maximum(x, x), "float32", []),
    "min(x, x)": (lambda b, x: b.minimum(x, x), "float32", []),
    "x and x": (lambda b, x: b.logical_and(x, x), "bool", []),
    "where(c, x, x)": (lambda b, x: b.where(x > 0, x, x), "float32", []),
    "-(-x)": (lambda b, x: b.negative(b.negative(x)), "float32", []),
    "not not x": (lambda b, x: b.logical_not(b.logical_not(x)), "bool", []),
    "||x||": (lambda b, x: b.absolute(b.absolute(x)), "int8", ["absolute"]),
    "relu relu": (lambda b, x: b.relu(b.relu(x)), "float32", ["relu"]),
    "floor floor": (lambda b, x: b.floor(b.floor(x)), "float32", ["floor"]),
    "a + b and b + a": (lambda b, x: (x + b.exp(x)) * (b.exp(x) + x), "float32", ["exp", "add", "multiply"]),
    "cast to its own dtype": (lambda b, x: b.cast(x, "float32"), "float32", []),
    "cast through a wider dtype": (lambda b, x: b.cast(b.cast(x, "float64"), "float16"), "float32", ["cast"]),
    "cast there and back": (lambda b, x: b.cast(b.cast(x, "float64"), "int8"), "int8", []),
    "transpose twice": (lambda b, x: x.T.T, "float32", []),
    "transposes join": (
        lambda b, x: b.transpose(b.transpose(b.reshape(x, (2, 2, 3)), (1, 0, 2)), (0, 2, 1)), "float32",
        ["reshape", "transpose"]),
    "reshape to its own shape": (lambda b, x: b.reshape(x, (4, 3)), "float32", []),
    "reshapes join": (lambda b, x: b.reshape(b.reshape(x, (12,)), (3, 4)), "float32", ["reshape"]),
    "reshape with -1 inside": (lambda b, x: b.reshape(b.reshape(x, (-1,)), (3, 4)), "float32", ["reshape"]),
    "slice of all": (lambda b, x: x[:], "float32", []),
    "slices join": (lambda b, x: x[1:][::-1][:2], "float32", ["slice"]),
    "two reversals": (lambda b, x: x[::-1][::-1], "float32", []),
    "broadcast to its own shape": (lambda b, x: b.broadcast_to(x, (4, 3)), "float32", []),
    "pad by nothing": (lambda b, x: b.pad(x, [(0, 0), (0, 0)], 1), "float32", []),
    "concat of one": (lambda b, x: b.concat([x], 0), "float32", []),
    "max over no axes": (lambda b, x: b.max(x, ()), "float32", []),
    "einsum that reorders": (lambda b, x: b.einsum("ij->ji", x), "float32", ["transpose"]),
    "einsum that does nothing": (lambda b, x: b.einsum("...->...", x), "float32", []),
    "boolean einsum of booleans": (lambda b, x: b.einsum("ij->ij", x, algebra="boolean"), "bool", []),
    "transposed operand": (lambda b, x: b.einsum("ij,jk->ik", x, x.T), "float32", ["einsum"]),
    "sorted integers": (lambda b, x: b.sort(b.sort(x, -1), 1), "int8", ["sort"]),
}  # fmt: skip


@pytest.mark.parametrize("name", FIRES)
def test_it_fires(name: str) -> None:
    build, dtype, left = FIRES[name]
    assert names(build, dtype=dtype) == left


STAYS: dict[str, tuple[Build, str, list[str]]] = {
    "x + 0.0 turns -0.0 into 0.0": (lambda b, x: x + 0.0, "float32", ["add"]),
    "x + 0 does too": (lambda b, x: x + 0, "float32", ["add"]),
    "x - -0.0": (lambda b, x: x - -0.0, "float32", ["subtract"]),
    "0 - x": (lambda b, x: 0 - x, "float32", ["subtract"]),
    "int x * 1.0 is a float": (lambda b, x: x * 1.0, "int32", ["multiply"]),
    "bool x * 1 is an integer": (lambda b, x: x * 1, "bool", ["multiply"]),
    "int x / 1 is a float": (lambda b, x: x / 1, "int32", ["divide"]),
    "1 / x": (lambda b, x: 1 / x, "float32", ["divide"]),
    "1 ** x": (lambda b, x: b.power(1, x), "float32", ["power"]),
    "x * -1": (lambda b, x: x * -1, "float32", ["multiply"]),
    "x * True is no truth": (lambda b, x: x * True, "float32", ["multiply"]),
    "x * 0 may be NaN": (lambda b, x: x * 0, "float32", ["multiply"]),
    "x - x may be NaN": (lambda b, x: x - x, "float32", ["subtract"]),
    "x and true of floats is bool": (lambda b, x: b.logical_and(x, True), "float32", ["logical_and"]),
    "x and x of floats is bool": (lambda b, x: b.logical_and(x, x), "float32", ["logical_and"]),
    "not not of floats is bool": (lambda b, x: b.logical_not(b.logical_not(x)), "float32", ["logical_not", "logical_not"]),
    "x xor x": (lambda b, x: b.logical_xor(x, x), "bool", ["logical_xor"]),
    "a literal that widens the shape": (lambda b, x: b.maximum(x[:1], x), "float32", ["slice", "maximum"]),
    "where that broadcasts": (lambda b, x: b.where(x > 0, x[:1], x[:1]), "float32", ["greater", "slice", "where"]),
    "max(a, b) and max(b, a)": (
        lambda b, x: b.maximum(x, b.exp(x)) + b.maximum(b.exp(x), x), "float32", ["exp", "maximum", "maximum", "add"]),
    "a - b and b - a": (
        lambda b, x: (x - b.exp(x)) * (b.exp(x) - x), "float32", ["exp", "subtract", "subtract", "multiply"]),
    "floor of ceil": (lambda b, x: b.floor(b.ceil(x)), "float32", ["ceil", "floor"]),
    "exp of exp": (lambda b, x: b.exp(b.exp(x)), "float32", ["exp", "exp"]),
    "cast through a narrower dtype": (lambda b, x: b.cast(b.cast(x, "float16"), "float32"), "float32", ["cast", "cast"]),
    "cast of int64 through float64": (lambda b, x: b.cast(b.cast(x, "float64"), "int64"), "int64", ["cast", "cast"]),
    "cast through bool": (lambda b, x: b.cast(b.cast(x, "bool"), "int8"), "int8", ["cast", "cast"]),
    "cast through floats to what cannot hold it": (
        lambda b, x: b.cast(b.cast(x, "float64"), "int8"), "uint32", ["cast", "cast"]),
    "one transpose": (lambda b, x: x.T, "float32", ["transpose"]),
    "reshape that leaves a size open": (
        lambda b, x: b.apply(ops.Reshape((-1, 2)), b.reshape(x, (12,))), "float32", ["reshape", "reshape"]),
    "slice of a part": (lambda b, x: x[:3], "float32", ["slice"]),
    "one reversal": (lambda b, x: x[::-1], "float32", ["slice"]),
    "broadcast that widens": (lambda b, x: b.broadcast_to(x, (2, 4, 3)), "float32", ["broadcast"]),
    "pad on one side": (lambda b, x: b.pad(x, [(0, 1), (0, 0)], 1), "float32", ["pad"]),
    "concat of two": (lambda b, x: b.concat([x, x], 0), "float32", ["concat"]),
    "sum over no axes widens": (lambda b, x: b.sum(x, ()), "int8", ["sum"]),
    "einsum that sums": (lambda b, x: b.einsum("ij->i", x), "float32", ["einsum"]),
    "diagonal": (lambda b, x: b.einsum("ii->i", x[:3]), "float32", ["slice", "einsum"]),
    "boolean einsum of numbers": (lambda b, x: b.einsum("ij->ij", x, algebra="boolean"), "float32", ["einsum"]),
    "noisy-or of one": (lambda b, x: b.einsum("ij->ij", x, algebra="noisy_or"), "float32", ["einsum"]),
    "transpose of a float product": (lambda b, x: (x @ x.T).T, "float32", ["einsum", "transpose"]),
    "sorted floats, whose zeros may change places": (lambda b, x: b.sort(b.sort(x)), "float32", ["sort", "sort"]),
    "sorted along another axis": (lambda b, x: b.sort(b.sort(x, 0), 1), "int8", ["sort", "sort"]),
    "sorted the other way": (lambda b, x: b.sort(b.sort(x), descending=True), "int8", ["sort", "sort"]),
    "indices of what is sorted": (lambda b, x: b.argsort(b.sort(x)), "int8", ["sort", "sort"]),
}  # fmt: skip


@pytest.mark.parametrize("name", STAYS)
def test_it_does_not_fire(name: str) -> None:
    build, dtype, left = STAYS[name]
    assert names(build, dtype=dtype) == left


def test_what_has_no_dtype_yet_is_left_alone() -> None:
    assert names(lambda b, x: x * 1, dtype=None) == ["multiply"]
    assert names(lambda b, x: x + 0, dtype=None) == ["add"]
    assert names(lambda b, x: b.cast(x, "float32"), dtype=None) == ["cast"]


def test_sizes_with_names() -> None:
    assert names(lambda b, x: x.T.T[:] * 1, ("n", "m")) == []
    b = GraphBuilder(intern=False)
    x, y = b.input("x", ("n",), "float32"), b.input("y", ("m",), "float32")
    graph = b.build(p=x + y, q=y + x)  # n and m are the same size, but the types are written differently
    done = simplify(graph)
    assert [str(done.type_of(i)) for _, i in done.outputs] == [str(graph.type_of(i)) for _, i in graph.outputs]
    with pytest.raises(tl.ShapeError):
        tl.Executor().execute(done, {"x": np.ones(2, "float32"), "y": np.ones(3, "float32")})


@pytest.mark.parametrize("op", [ops.Transpose(()), ops.Reshape(()), ops.Slice(()), ops.Broadcast((), ())])
def test_a_view_of_a_python_scalar_is_a_tensor(op: ops.Op) -> None:
    b = GraphBuilder(intern=False)
    graph = b.build(y=b.input("x", (2,), "float32") + b.apply(op, b.apply(ops.Literal.of(0.5))))
    assert graph.type_of(graph.outputs[0][1]).dtype == "float64"
    for level in OptimizationLevel:
        out = tl.Executor(optimization_level=level).execute(graph, {"x": np.ones(2, "float32")})["y"]
        assert out.dtype == np.float64


def _specials(dtype: str) -> Any:
    if dtype == "bool":
        return np.array([True, False])
    if dtype.startswith("float"):
        with np.errstate(over="ignore"):
            return np.array(
                [0, -0.0, 1.5, -1.5, np.nan, np.inf, -np.inf, 300, -4e4, 3e9, -3e9, 1e19, -1e30] * 3
            ).astype(dtype)
    info = np.iinfo(dtype)
    return np.array(
        [0, 1, info.min, info.max, info.max // 2 + 2, info.min // 2, info.max // 3, info.min // 3] * 4, dtype
    )


@pytest.mark.parametrize("first", USABLE)
def test_casts_of_casts_keep_every_bit(first: str) -> None:
    x = _specials(first)
    for between, last in itertools.product(USABLE, USABLE):
        b = GraphBuilder(intern=False)
        graph = b.build(y=b.cast(b.cast(b.input("x", x.shape, first), between), last))
        plain, simple = (
            tl.Executor(optimization_level=level).execute(graph, {"x": x})["y"]
            for level in (OptimizationLevel.NONE, OptimizationLevel.STANDARD)
        )
        assert plain.tobytes() == simple.tobytes(), (first, between, last)


@pytest.mark.parametrize(
    "outer", [slice(None, None, -1), slice(1, None), slice(4, 0, -2), slice(None, None, 3), slice(2, 2)]
)
@pytest.mark.parametrize(
    "inner", [slice(None, None, -1), slice(1, None, 2), slice(8, 0, -1), slice(3, 3), slice(-5, None)]
)
def test_slices_of_slices(inner: slice, outer: slice) -> None:
    x = np.arange(10.0)
    b = GraphBuilder(intern=False)
    graph = b.build(y=b.input("x", (10,), "float64")[inner][outer])
    assert sum(n.op.name == "slice" for n in simplify(graph).nodes) <= 1
    np.testing.assert_array_equal(tl.Executor().execute(graph, {"x": x})["y"], x[inner][outer])


def test_reshapes_of_nothing() -> None:
    b = GraphBuilder(intern=False)
    x = b.input("x", (0, 3), "float32")
    graph = b.build(y=b.reshape(b.reshape(b.reshape(x, (-1,)), (5, 0)), (0, 7)))
    assert tl.Executor().execute(graph, {"x": np.ones((0, 3), "float32")})["y"].shape == (0, 7)


@pytest.mark.parametrize(
    ("name", "count"),
    [("boolean", 1), ("max_min", 1), ("min_max", 1), ("real", 2), ("max_product", 2), ("min_plus", 2)],
)
def test_a_factor_that_is_there_twice_counts_once_where_the_algebra_says_so(name: str, count: int) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3, 4), "float64")
    graph = b.build(y=b.einsum("ij,ij->i", x, x, algebra=name))
    assert [len(n.args) for n in simplify(graph).nodes if n.op.name == "einsum"] == [count]
    given = np.random.default_rng(0).random((3, 4)).round(1)
    want = tl.Executor("reference").execute(graph, {"x": given})["y"]
    np.testing.assert_allclose(tl.Executor().execute(graph, {"x": given})["y"], want)


@pytest.mark.parametrize(("name", "one", "other"), [("real", 1.0, 2.0), ("min_plus", 0.0, 1.0), ("max_min", 1.0, 0.5)])
def test_the_one_of_an_algebra_is_dropped(name: str, one: float, other: float) -> None:
    for value, count in ((one, 1), (other, 2)):
        b = tl.GraphBuilder()
        x = b.input("x", (3, 4), "float64")
        graph = b.build(y=b.einsum("ij,->i", x, value, algebra=name))
        assert [len(n.args) for n in simplify(graph).nodes if n.op.name == "einsum"] == [count]
        given = np.random.default_rng(0).random((3, 4))
        want = tl.Executor("reference").execute(graph, {"x": given})["y"]
        np.testing.assert_allclose(tl.Executor().execute(graph, {"x": given})["y"], want)
