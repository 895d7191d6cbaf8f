"""Kernels that write where they are told: they answer just as those that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import GraphBuilder, OptimizationLevel
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.ir import ops
from tensorlogic.ir.elementwise import FUNCTIONS
from tensorlogic.ir.types import TensorShape, TensorType
from tensorlogic.passes.for_numpy import order_contractions
from tensorlogic.plan.build import build_plan
from tensorlogic.runtime.call import run
from tensorlogic.runtime.program import bind
from tensorlogic.testing import cases

BACKEND = tl.Executor().backend
DTYPES = ["float64", "float32", "float16", "int64", "int8", "uint8", "bool"]


def both(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> tuple[Any, Any]:
    """Run a graph with and without buffers."""
    types = {n: TensorType(TensorShape(x.shape), x.dtype.name) for n, x in inputs.items()}
    found = []
    for in_place in (True, False):
        plan = build_plan(graph, types, passes=[order_contractions], in_place=in_place)
        assert in_place or not plan.buffers
        with np.errstate(all="ignore"):
            found.append([np.array(v) for v in run(bind(plan, BACKEND), [inputs[n] for n, _, _ in plan.inputs])])
    return found[0], found[1]


def same(found: Any, wanted: Any) -> bool:
    return found.dtype == wanted.dtype and found.shape == wanted.shape and np.array_equal(found, wanted, equal_nan=wanted.dtype.kind == "f") and (
        wanted.dtype.kind != "f" or np.array_equal(np.signbit(found)[wanted == 0], np.signbit(wanted)[wanted == 0]))  # fmt: skip


def special(dtype: str, shape: tuple[int, ...], seed: int) -> Any:
    rng = np.random.default_rng(seed)
    if dtype.startswith("float"):
        return rng.choice([0.0, -0.0, 1, -1, 0.3, 2.5, np.nan, np.inf, -np.inf], shape).astype(dtype)
    if dtype == "bool":
        return rng.random(shape) < 0.5
    return rng.choice([0, 1, 3, np.iinfo(dtype).max, np.iinfo(dtype).min], shape).astype(dtype)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_elementwise(fn: str) -> None:
    tried = 0
    for n, dtype in enumerate(DTYPES):
        b = GraphBuilder(intern=False)
        arity = FUNCTIONS[fn].arity
        shapes = [(5, 7), (7,), (5, 1)][:arity]
        inputs = {f"x{k}": special(dtype, shape, n + k) for k, shape in enumerate(shapes)}
        if fn == "power" and dtype != "bool":
            inputs["x1"] = np.abs(inputs["x1"] // 100) if dtype[0] in "iu" else inputs["x1"]
            inputs["x1"][inputs["x1"] < 0] = 0
        try:
            tensors = [b.input(name, x.shape, dtype) for name, x in inputs.items()]
            made = getattr(b, fn)(*tensors)
            graph = b.build(y=b.where(True, made, made))  # the function itself is not an output, so it has a buffer
        except tl.DTypeError:
            continue
        tried += 1
        found, wanted = both(graph, inputs)
        assert same(found[0], wanted[0]), dtype
    assert tried


@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "any", "all", "mean"])
@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_reductions(kind: str, order: str) -> None:
    for dtype in DTYPES:
        x = np.random.default_rng(0).integers(0, 2, (9, 8, 7)).astype(dtype)
        if dtype.startswith("float"):
            x = (np.random.default_rng(0).standard_normal((9, 8, 7)) * 1.1).astype(dtype)
        x = {"C": x, "F": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=1)[:, ::2]}[order]
        for axis in (None, 0, 1, 2, (0, 2), ()):
            b = GraphBuilder(intern=False)
            made = getattr(b, kind)(b.input("x", x.shape, dtype), axis, keepdims=axis == 1)
            found, wanted = both(b.build(y=b.where(True, made, made)), {"x": x})
            assert same(found[0], wanted[0]), (dtype, axis)


def test_empty_reductions() -> None:
    for kind in ("sum", "prod", "mean", "any", "all"):
        b = GraphBuilder(intern=False)
        made = getattr(b, kind)(b.input("x", (0, 3), "float32"), 0)
        found, wanted = both(b.build(y=b.where(True, made, made)), {"x": np.ones((0, 3), "float32")})
        assert same(found[0], wanted[0]), kind


@pytest.mark.parametrize("source", DTYPES)
def test_casts(source: str) -> None:
    for target in DTYPES:
        x = special(source, (11,), 3)
        if source.startswith("float") and target[0] in "iu":
            x = np.array([0.0, 1.5, 2.9], source)  # beyond the dtype the processor decides
        b = GraphBuilder(intern=False)
        made = b.cast(b.input("x", x.shape, source), target)
        found, wanted = both(b.build(y=b.where(True, made, made)), {"x": x})
        assert same(found[0], wanted[0]), target


@pytest.mark.parametrize(
    ("value", "target"), [(300, "int8"), (-1, "uint8"), (1e5, "float16"), (2.7, "int32"), (True, "float32")]
)
def test_casts_of_python_scalars(value: Any, target: str) -> None:
    b = GraphBuilder(intern=False)
    made = b.cast(b.apply(ops.Literal.of(value)), target)
    found, wanted = both(b.build(y=b.where(True, made, made)), {})
    assert same(found[0], wanted[0])
    with np.errstate(all="ignore"):
        assert same(found[0], np.asarray(value).astype(target))


WHERE: list[tuple[Any, Any, Any]] = [
    (np.array([1.0, 0.0]), np.array([5, 6], "int32"), 1),
    (np.array([1.0, 0.0]), np.array([5, 6], "int64"), 2**53 + 1),
    (np.array([1, 0], "uint64"), np.array([5, 6], "int8"), 1),
    (np.array([True, False]), np.array([5, 6], "float16"), 0.1),
    (np.array([np.nan, -0.0]), np.array([5, 6], "float32"), -0.0),
    (1e-300, np.array([5, 6], "float32"), 1),
]


@pytest.mark.parametrize(("pick", "x", "other"), WHERE)
@pytest.mark.parametrize("buffered", [True, False])
def test_where_takes_no_dtype_from_its_condition(pick: Any, x: Any, other: Any, buffered: bool) -> None:
    b = GraphBuilder(intern=False)
    inputs = {"x": x}
    if isinstance(pick, np.ndarray):
        inputs["c"] = pick
    tensors = {n: b.input(n, v.shape, v.dtype.name) for n, v in inputs.items()}
    made = b.where(tensors.get("c", pick), tensors["x"], other)
    out = tl.Executor(optimization_level=OptimizationLevel.NONE).execute(
        b.build(y=b.maximum(made, made) if buffered else made), inputs
    )["y"]
    assert same(out, np.where(np.asarray(pick).astype(bool), x, np.asarray(other, x.dtype)))


def test_over_an_operand_that_is_also_read_as_a_view() -> None:
    x = np.random.default_rng(0).random((40, 40))
    for fn in ("add", "lukasiewicz", "maximum", "subtract"):
        b = GraphBuilder(intern=False)
        t = b.exp(b.input("x", x.shape, "float64"))
        graph = b.build(y=b.sum(getattr(b, fn)(t, t.T), 0), z=b.sum(getattr(b, fn)(b.exp(t)[::-1], t), 0))
        found, wanted = both(graph, {"x": x})
        assert all(same(f, w) for f, w in zip(found, wanted, strict=True)), fn


@pytest.mark.parametrize("part", range(4))
def test_the_conformance_table(part: int) -> None:
    wrong = []
    for case in list(cases())[part * 7 :: 30]:
        graph, inputs = case.make()
        found, wanted = both(graph, inputs)
        if not all(same(f, w) for f, w in zip(found, wanted, strict=True)):
            wrong.append(case.name)
    assert not wrong


def test_scalars_become_what_numpy_would_make_of_them() -> None:
    def of(value: Any, *dtypes: str) -> Any:
        return NumpyBackend().scalar(value, tuple(TensorType(TensorShape((3,)), d) for d in dtypes))

    assert of(1, "float32").dtype == np.float32
    assert of(1.5, "int32").dtype == np.float64
    assert of(1, "bool").dtype == np.int64
    assert of(1e300, "float32") == np.inf
    assert of(300, "int8") == 300  # does not fit: what NumPy says of it, it says in the run
    assert type(of(300, "int8")) is int
    assert type(of(2)) is int
    assert not of(1, "float32").flags.writeable


@pytest.mark.parametrize("fn", ["less", "equal", "greater_equal"])
@pytest.mark.parametrize(
    ("dtype", "value"), [("uint8", -1), ("int8", 300), ("int64", 2**70), ("float16", 70000), ("int64", 0.5)]
)
def test_comparisons_with_what_does_not_fit(fn: str, dtype: str, value: Any) -> None:
    x = np.array([0, 1, 100], dtype)
    b = GraphBuilder(intern=False)
    made = getattr(b, fn)(b.input("x", (3,), dtype), value)
    out = tl.Executor().execute(b.build(y=b.logical_not(made)), {"x": x})["y"]
    with np.errstate(all="ignore"):
        assert out.tolist() == np.logical_not(getattr(np, fn)(x, value)).tolist()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_the_mean_of_nothing_is_nan_without_a_warning(dtype: str, shape: tuple[int, int]) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", shape, dtype)
    graph = b.build(y=b.mean(x, 0), z=b.mean(x), w=b.mean(x, 1) * 2.0)
    given = {"x": np.zeros(shape, dtype)}
    want = tl.Executor("reference").execute(graph, given)
    for level in tl.OptimizationLevel:
        got = tl.Executor(optimization_level=level).execute(graph, given)
        for name in want.keys():  # noqa: SIM118 - iterating gives values
            np.testing.assert_array_equal(got[name], want[name])
            assert got[name].dtype == dtype


@pytest.mark.parametrize("dtype", ["bool", "int8", "int16", "uint32", "int64", "float32", "float64"])
def test_where_chooses_bit_by_bit_what_numpy_chooses(dtype: str) -> None:
    rng = np.random.default_rng(0)
    for n in (0, 1, 7, 70_000):
        x, y = (rng.integers(-100, 100, n).astype(dtype) for _ in range(2))
        if x.dtype.kind == "f" and n > 3:
            x[:3], y[1:4] = [np.nan, np.inf, -0.0], [-np.inf, np.nan, -0.0]
        mask = rng.random(n) < 0.5
        b = tl.GraphBuilder()
        p, q, c = b.input("x", (n,), dtype), b.input("y", (n,), dtype), b.input("c", (n,), "bool")
        zero = b.cast(b.literal(0), dtype)
        graph = b.build(a=b.where(c, p, q), z=b.where(c, p, zero), o=b.where(c, zero, q))
        found = tl.Executor().execute(graph, {"x": x, "y": y, "c": mask})
        null = np.zeros((), dtype)
        for value, want in zip(
            found, (np.where(mask, x, y), np.where(mask, x, null), np.where(mask, null, y)), strict=True
        ):
            assert value.dtype == want.dtype
            np.testing.assert_array_equal(value.view(np.uint8), want.view(np.uint8))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "int64"])
def test_relu_of_any_size_and_layout(dtype: str) -> None:
    for shape in [(3, 0), (1,), (5, 7), (130, 127), (3, 16384)]:
        x = special(dtype, shape, 1)
        b = GraphBuilder()
        tensor = b.input("x", shape)
        turned = b.transpose(tensor, tuple(range(x.ndim))[::-1])
        found, wanted = both(b.build(y=b.relu(tensor), z=b.relu(turned)), {"x": x})
        assert same(found[0], wanted[0]) and same(found[1], wanted[1])
        assert same(found[0], np.maximum(x, x.dtype.type(0)))
