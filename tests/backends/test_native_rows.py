"""Row-wise groups as kernels: the answers of NumPy, whatever is broadcast, reduced or of which dtype."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.native import rows
from tensorlogic.backends.native.support import NativeWarning
from tensorlogic.testing.every_plan import native_plan

Build = Callable[[tl.GraphBuilder], dict[str, Any]]
f4, f8, i4, i8, b1 = "float32", "float64", "int32", "int64", "bool"


def softmax_of_sum(b: tl.GraphBuilder) -> dict[str, Any]:
    x, c = b.input("x", ("n", 7), f4), b.input("c", (7,), f4)
    return {"y": b.softmax(x * 2.0 + c)}


def norm_kept(b: tl.GraphBuilder) -> dict[str, Any]:
    """A residual that is a result and is normalised."""
    x, r, g, c = (b.input(n, s, f4) for n, s in (("x", ("n", 3, 5)), ("r", ("n", 3, 5)), ("g", (5,)), ("c", (5,))))
    h = x + r
    return {"h": h, "y": b.layer_norm(h, g, c)}


def column(b: tl.GraphBuilder) -> dict[str, Any]:
    """Rows against a column and a scalar array."""
    x, c, s = b.input("x", ("n", 6), f8), b.input("c", ("n", 1), f8), b.input("s", (), f8)
    return {"y": b.maximum(x - c, s) / (b.absolute(c) + 1.0)}


def middle(b: tl.GraphBuilder) -> dict[str, Any]:
    """An operand that extends along some outer axes only."""
    x, m, k = b.input("x", (2, 3, 4, 5), f4), b.input("m", (3, 1, 5), f4), b.input("k", (2, 1, 4, 1), f4)
    return {"y": b.tanh(x * m) - k}


def reductions(b: tl.GraphBuilder) -> dict[str, Any]:
    x = b.input("x", ("n", 9), f4)
    y = x * x - 1.0
    out = {k: getattr(b, k)(y, axis=1) for k in ("sum", "max", "min", "mean", "prod")}
    return out | {"any": b.any(y > 0.5, axis=1), "all": b.all(y > -2.0, axis=1)}


def whole(b: tl.GraphBuilder) -> dict[str, Any]:
    x = b.input("x", ("n", 4), f4)
    return {"y": b.sum(b.exp(x)), "z": b.max(b.absolute(x))}


def mixed_dtypes(b: tl.GraphBuilder) -> dict[str, Any]:
    i, f, t = b.input("i", ("n",), i4), b.input("f", ("n",), f4), b.input("t", ("n",), b1)
    return {"y": i + f, "z": b.where(t, f, i * 2), "w": b.cast(t, f8) * f, "q": (i * i - 3) + i, "e": t & (f > 0.0)}


def integers(b: tl.GraphBuilder) -> dict[str, Any]:
    i, j = b.input("i", ("n",), "int8"), b.input("j", ("n",), "int8")
    return {"a": i * j + j, "m": b.maximum(i, j) - j, "d": b.floor_divide(i, j), "r": b.remainder(i, j), "n": -(i + j)}


def bools(b: tl.GraphBuilder) -> dict[str, Any]:
    s, t = b.input("s", ("n",), b1), b.input("t", ("n",), b1)
    return {"a": (s + t) * t, "o": b.logical_not(s | t) ^ s, "c": b.equal(s & t, t)}


def fuzzy(b: tl.GraphBuilder) -> dict[str, Any]:
    x, y = b.input("x", ("n",), f4), b.input("y", ("n",), f4)
    return {"l": b.lukasiewicz(x, y) * y, "g": b.godel_implies(x, y) + 1.0, "p": b.goguen_implies(x, y) * x}


def two_levels(b: tl.GraphBuilder) -> dict[str, Any]:
    """A reduction of what a reduction went into, twice; and a cell that only cells go into."""
    x = b.input("x", ("n", 8), f8)
    low = x - b.min(x, axis=1, keepdims=True)
    high = low / b.max(low, axis=1, keepdims=True)
    total = b.sum(high, axis=1, keepdims=True)
    return {"y": high / total, "t": b.sqrt(total) * 2.0}


def one_element_rows(b: tl.GraphBuilder) -> dict[str, Any]:
    x = b.input("x", ("n", 1), f4)
    return {"y": b.softmax(x) * b.sum(x, axis=1, keepdims=True)}


CASES: list[Build] = [
    softmax_of_sum, norm_kept, column, middle, reductions, whole, mixed_dtypes, integers, bools, fuzzy, two_levels,
    one_element_rows,
]  # fmt: skip


def values(graph: tl.EinsumGraph, n: int, seed: int = 0, *, odd: bool = False) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    made = {}
    for name, node in graph.inputs.items():
        t = graph.type_of(node)
        shape = [n if d == "n" else int(d) for d in t.shape or ()]
        kind = np.dtype(t.dtype or f8).kind
        x = (
            rng.normal(size=shape)
            if kind == "f"
            else rng.integers(-9, 9, shape)
            if kind == "i"
            else rng.random(shape) < 0.5
        )
        made[name] = np.asarray(x).astype(t.dtype)
        if odd and kind == "f" and made[name].size:
            flat = made[name].reshape(-1)
            places = np.arange(0, flat.size, max(1, flat.size // 5))
            flat[places] = np.resize([np.nan, np.inf, -np.inf, -0.0, 0.0], len(places))
    return made


def graph_of(build: Build) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(**build(b))


def both(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> tuple[Any, Any]:
    return tl.Executor().execute(graph, inputs), tl.Executor(native=True).execute(graph, inputs)


@pytest.mark.parametrize("build", CASES, ids=lambda f: f.__name__)
def test_kernels_answer_as_numpy_does(build: Build) -> None:
    graph = graph_of(build)
    plan = native_plan(tl.Executor(native=True), graph, values(graph, 6))
    assert any(step.parts for step in plan.steps)
    for n, odd in ((6, False), (1, False), (40, True)):
        inputs = values(graph, n, n, odd=odd)
        want, found = both(graph, inputs)
        for name, value in want.items():
            assert found[name].dtype == value.dtype and found[name].shape == value.shape
            np.testing.assert_allclose(found[name], value, rtol=3e-6, atol=3e-6, err_msg=f"{name} n={n}")


def test_operands_in_any_memory_order_and_read_only() -> None:
    graph = graph_of(softmax_of_sum)
    inputs = values(graph, 10)
    inputs["x"] = np.asfortranarray(inputs["x"])
    inputs["c"].setflags(write=False)
    want, found = both(graph, inputs)
    np.testing.assert_allclose(found["y"], want["y"], rtol=1e-6)


def test_results_are_written_where_the_caller_says_and_never_over_what_somebody_holds() -> None:
    graph = graph_of(norm_kept)
    executor = tl.Executor(native=True)
    inputs = values(graph, 3000)
    target = np.empty((3000, 3, 5), f4)
    first = executor.execute(graph, inputs, out={"y": target})
    assert first["y"] is target
    held, copy = first["h"], first["h"].copy()
    other = executor.execute(graph, values(graph, 3000, 7))
    assert other["h"] is not held
    np.testing.assert_array_equal(held, copy)


def test_long_rows_of_float32_are_summed_precisely() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n",), f4)
    graph = b.build(y=b.sum(x * 1.0))
    x = np.full(3_000_000, 0.1, f4)
    [found] = tl.Executor(native=True).execute(graph, {"x": x})
    np.testing.assert_allclose(found, float(x[0]) * x.size, rtol=1e-6)


def test_a_kernel_that_cannot_be_compiled_leaves_its_steps_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorlogic.backends.native import bind

    def broken(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no machine code today")

    monkeypatch.setattr(bind, "compiled", broken)
    graph = graph_of(norm_kept)
    inputs = values(graph, 100_000)  # too large to be one function
    with pytest.warns(NativeWarning, match=r"layer norm .*no machine code today"):
        found = tl.Executor(native=True).execute(graph, inputs)
    want = tl.Executor().execute(graph, inputs)
    np.testing.assert_array_equal(found["y"], want["y"])
    np.testing.assert_array_equal(found["h"], want["h"])


def test_one_kernel_serves_every_size() -> None:
    graph = graph_of(softmax_of_sum)
    texts = set()
    for n in (3, 50, 1000):
        [step] = native_plan(tl.Executor(native=True), graph, values(graph, n)).steps
        made = rows.row_source(step)
        assert made is not None
        texts.add(made.text)
    assert len(texts) == 1


def test_no_warnings_reach_the_user() -> None:
    graph = graph_of(column)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tl.Executor(native=True).execute(graph, values(graph, 10, odd=True))
