"""The executor: what a user types, what it refuses and how, and that results belong to the caller."""

from __future__ import annotations

import contextlib
import itertools
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.ir.graph import Node, bodies
from tensorlogic.passes.for_numpy import has_bfloat16

Build = Callable[[tl.GraphBuilder, Any], Any]


def _layer() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 784)), b.input("w", (784, 10))
    return b.build(y=b.relu(b.einsum("ni,ij->nj", x, w)))


def _graph(build: Build, shape: Any = ("n",), dtype: Any = None) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    made = build(b, b.input("x", shape, dtype))
    return b.build({f"y{n}": t for n, t in enumerate(made)} if isinstance(made, tuple | list) else {"y": made})


def _run(build: Build, x: Any, **options: Any) -> tl.Outputs:
    return tl.Executor(**options).execute(_graph(build, np.shape(x)), {"x": x})


# what a user types


def test_the_design_page_as_far_as_it_is_built() -> None:
    rng = np.random.default_rng(0)
    X, W = rng.normal(size=(64, 784)), rng.normal(size=(784, 10))
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 784)), b.input("w", (784, 10))
    y = b.relu(b.einsum("ni,ij->nj", x, w))
    layer = b.build(y=y)
    ex = tl.Executor()
    out = ex.execute(layer, {"x": X, "w": W})
    np.testing.assert_allclose(out["y"], np.maximum(X @ W, 0))
    assert out[0] is out["y"]
    assert [v.shape for v in out] == [(64, 10)]
    assert len(out) == 1
    assert list(out.keys()) == ["y"]
    assert dict(out).keys() == {"y"}
    text = str(ex.plan(layer, {"x": X, "w": W}))
    assert "einsum ni,ij->nj" in text
    assert "2 steps" in text
    loss = b.build(loss=b.sum(b.square(y)))
    np.testing.assert_allclose(ex.execute(loss, {"x": X, "w": W})["loss"], np.sum(np.maximum(X @ W, 0) ** 2))


def test_outputs_answer_to_names_positions_and_slices() -> None:
    out = _run(lambda b, x: (x + 1, x * 2, -x), np.arange(3.0))
    assert list(out.keys()) == ["y0", "y1", "y2"]
    assert out[-1] is out["y2"]
    assert [v.tolist() for v in out[:2]] == [[1, 2, 3], [0, 2, 4]]
    assert [name for name, _ in out.items()] == ["y0", "y1", "y2"]
    assert "y1=array" in repr(out)
    with pytest.raises(tl.InputError, match=r"no output 'y11'(.|\n)*did you mean 'y1'"):
        out["y11"]


def test_a_name_is_in_the_outputs() -> None:
    out = _run(lambda b, x: (x + 1, x * 2), np.arange(3.0))
    assert "y0" in out
    assert "y9" not in out


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_lists_scalars_and_array_likes(backend: str) -> None:
    class Alike:
        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.array([1.0, 2.0])

    ex = tl.Executor(backend)
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", (2,), "float32") + b.input("s", (), "float32"))
    out = ex.execute(graph, {"x": [1, 2], "s": 0.5})["y"]
    assert out.dtype == np.float32
    assert out.tolist() == [1.5, 2.5]
    plain = _graph(lambda b, x: x * 2, (2,))
    assert ex.execute(plain, {"x": Alike()})["y"].tolist() == [2, 4]
    assert ex.execute(plain, {"x": (3, 4)})["y"].dtype == np.int64
    assert ex.execute(plain, {"x": [True, False]})["y"].tolist() == [2, 0]


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("int64", [1.5, 2.5]), ("int8", [300, 1]), ("uint8", [-1, 1]), ("int8", [float("nan"), 1.0]), ("bool", [0.5, 2])],
)
def test_a_list_that_its_declared_dtype_cannot_hold_is_refused(dtype: str, value: list[Any]) -> None:
    with pytest.raises(tl.TensorLogicError, match=rf"'x'(.|\n)*{dtype}"):
        tl.Executor().execute(_graph(lambda b, x: b.cast(x, "float64"), (2,), dtype), {"x": value})


def test_a_graph_without_inputs() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.constant([1.0, 2.0]) * 2, z=b.iota(3))
    out = tl.Executor().execute(graph)
    assert out["y"].tolist() == [2, 4]
    assert out["z"].tolist() == [0, 1, 2]


# bad input


def _two() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(y=b.input("weights", ("n", 3), "float32") @ b.input("features", (3,), "float32"))


GOOD = {"weights": np.ones((2, 3), np.float32), "features": np.ones(3, np.float32)}


@pytest.mark.parametrize("backend", ["numpy", "reference", "null"])
@pytest.mark.parametrize(
    ("change", "error", "pattern"),
    [
        ({"wieghts": 1}, tl.InputError, r"no input 'wieghts'(.|\n)*did you mean 'weights'"),
        ({"weights": None, "zzz": 1}, tl.InputError, r"no input 'zzz'(.|\n)*known: 'weights', 'features'"),
        ({3: 1}, tl.InputError, r"no input 3"),
        ({"weights": ...}, tl.InputError, r"input 'weights' is missing(.|\n)*float32\[n, 3\]"),
        ({"features": np.ones((3, 1), np.float32)}, tl.ShapeError, r"'features'(.|\n)*1 axes are declared, got 2"),
        ({"features": np.ones(4, np.float32)}, tl.ShapeError, r"'features'(.|\n)*axis 0 must be 3, got 4"),
        ({"features": np.float32(1)}, tl.ShapeError, r"'features'(.|\n)*1 axes are declared, got 0"),
        ({"features": np.ones(3)}, tl.DTypeError, r"input 'features' must be float32, got float64"),
        ({"features": np.ones(3, np.int32)}, tl.DTypeError, r"input 'features' must be float32, got int32"),
        ({"features": np.ones(3) * 1j}, tl.DTypeError, r"'features'(.|\n)*complex128"),
        ({"features": np.array(["a", "b", "c"])}, tl.DTypeError, r"'features'(.|\n)*<U1"),
        ({"features": np.array([None, 1, 2])}, tl.DTypeError, r"'features'(.|\n)*object"),
        ({"features": None}, tl.DTypeError, r"'features'(.|\n)*None is given"),
        ({"features": [[1.0], [2.0, 3.0]]}, tl.DTypeError, r"'features'(.|\n)*rectangular"),
        ({"features": np.ones(3, np.longdouble)}, tl.DTypeError, r"'features'(.|\n)*(float128|longdouble)"),
        ({"features": np.array(["2020"] * 3, "M8[Y]")}, tl.DTypeError, r"'features'(.|\n)*datetime64"),
        ({"features": [2**70, 1, 1]}, tl.DTypeError, r"'features'"),
    ],
)  # fmt: skip
def test_bad_inputs(backend: str, change: dict[Any, Any], error: type[Exception], pattern: str) -> None:
    given: dict[Any, Any] = {k: v for k, v in {**GOOD, **change}.items() if v is not ...}
    executor = tl.Executor(backend)
    with pytest.raises(error, match=pattern) as caught:
        executor.execute(_two(), given)
    assert isinstance(caught.value, tl.TensorLogicError)
    assert caught.value.diagnostic.code
    assert executor.execute(_two(), GOOD)["y"].shape == (2,)  # an error leaves it as it was


def test_inputs_that_are_not_a_mapping() -> None:
    for given in ([np.ones(3)], np.ones(3), "x"):
        with pytest.raises(tl.InputError, match="mapping of names to arrays"):
            tl.Executor().execute(_layer(), given)  # type: ignore[arg-type]
        with pytest.raises(tl.InputError, match="mapping of names to arrays"):
            tl.Executor().plan(_layer(), given)  # type: ignore[arg-type]


@pytest.mark.parametrize("wrong", [None, "graph", tl.GraphBuilder()])
def test_something_else_than_a_graph(wrong: Any) -> None:
    with pytest.raises(tl.TensorLogicError, match="EinsumGraph"):
        tl.Executor().execute(wrong, {})


def test_sizes_that_disagree_name_both_places() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", "k")) @ b.input("w", ("k", 2)))
    with pytest.raises(tl.ShapeError, match=r"'k' is 3 by axis 1 of input 'x', but axis 0 of input 'w' is 4"):
        tl.Executor().execute(graph, {"x": np.ones((5, 3)), "w": np.ones((4, 2))})


def test_a_named_size_of_one_does_not_broadcast() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n",)) + b.input("w", ("m",)))
    assert tl.Executor().execute(graph, {"x": np.ones(3), "w": np.ones(3)})["y"].shape == (3,)
    with pytest.raises(tl.ShapeError, match="only a literal size 1 broadcasts"):
        tl.Executor().execute(graph, {"x": np.ones(3), "w": np.ones(1)})


def test_errors_point_at_the_line_that_built_the_node() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n",))
    y = b.top_k(x, 4)[0]  # this line
    with pytest.raises(tl.ShapeError, match="top_k asks for 4 of 3") as caught:
        tl.Executor().execute(b.build(y=y), {"x": np.ones(3)})
    assert "y = b.top_k(x, 4)[0]  # this line" in str(caught.value)


def test_bfloat16_is_refused_clearly(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("passes.for_numpy", "backends.numpy"):
        monkeypatch.setattr(f"tensorlogic.{module}.has_bfloat16", lambda: False)  # as without ml_dtypes
    for backend in ("numpy", "reference"):
        ex = tl.Executor(backend)
        with pytest.raises(tl.BackendError, match=rf"the {backend} backend has no bfloat16(.|\n)*cast to float32"):
            ex.execute(_graph(lambda b, x: b.cast(x, "bfloat16"), (2,)), {"x": [1.0, 2.0]})
        declared = _graph(lambda b, x: x + 1, (2,), "bfloat16")
        with pytest.raises(tl.TensorLogicError, match="bfloat16"):
            ex.execute(declared, {"x": [1.0, 2.0]})
        with pytest.raises(tl.TensorLogicError, match="bfloat16"):
            ex.execute(declared, {"x": np.ones(2)})
        with pytest.raises(tl.BackendError, match="bfloat16"):
            ex.plan(declared)


@pytest.mark.parametrize(("given", "pattern"), [("nunpy", "did you mean 'numpy'"), (3, "is not a backend")])
def test_backends_that_are_not_there(given: Any, pattern: str) -> None:
    with pytest.raises(tl.BackendError, match=pattern):
        tl.Executor(given)


def test_a_backend_class_in_place_of_a_backend() -> None:
    with pytest.raises(tl.BackendError, match="NumpyBackend"):
        tl.Executor(NumpyBackend)  # type: ignore[arg-type]
    assert tl.Executor(NumpyBackend()).capabilities().name == "numpy"


@pytest.mark.parametrize(
    "wrong", [lambda: tl.Executor(plans=-1), lambda: tl.ExecutionContext().add_hook(3)], ids=["plans", "hook"]
)  # fmt: skip
def test_every_exception_derives_from_one_base(wrong: Callable[[], Any]) -> None:
    with pytest.raises(tl.TensorLogicError) as caught:
        wrong()
    assert caught.value.diagnostic.message


# memory


def _refused(build: Build, **options: Any) -> tuple[tl.OutOfMemoryError, int]:
    graph = _graph(build, (1,))
    executor = tl.Executor(**options)
    with pytest.raises(tl.OutOfMemoryError):
        executor.execute(graph, {"x": np.ones(1)})  # loads modules, which are not what is measured
    tracemalloc.start()
    try:
        with pytest.raises(tl.OutOfMemoryError) as caught:
            executor.execute(graph, {"x": np.ones(1)})
        return caught.value, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_plan_that_does_not_fit_is_refused_before_anything_is_allocated() -> None:
    error, peak = _refused(lambda b, x: b.sum(x + b.cast(b.iota(4_000_000), "float64")), memory_limit=10_000_000)
    assert peak < 1_000_000
    text = str(error)
    assert "61.0 MiB requested" in text or "91.6 MiB requested" in text
    assert "9.5 MiB available" in text
    assert "the largest result is" in text
    assert "test_executor.py" in text


def test_more_than_the_machine_has() -> None:
    error, peak = _refused(lambda b, x: b.broadcast_to(x, (10**6, 10**7)) + 1)
    assert peak < 1_000_000
    assert "72.8 TiB" in str(error)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: b.broadcast_to(x, (10**6, 10**7)),
        lambda b, x: b.broadcast_to(x + 1, (10**6, 10**7)),
        lambda b, x: (x, b.broadcast_to(x, (10**13,))),
    ],
)
def test_an_output_that_is_a_view_must_fit_too(build: Build) -> None:
    _, peak = _refused(build)
    assert peak < 1_000_000


def test_sizes_beyond_every_machine() -> None:
    _refused(lambda b, x: b.broadcast_to(x, (10**10, 10**10)) + 1)
    _refused(lambda b, x: b.broadcast_to(x, (10**10, 10**10)))


@pytest.mark.parametrize(("dtype", "helps"), [("bool", False), ("float32", False), ("float64", True)])
def test_a_narrower_dtype_is_advised_only_where_there_is_one(dtype: str, helps: bool) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (64, 64), dtype)
    graph = b.build(y=b.einsum("ij,jk->ik", x, x, algebra="boolean" if dtype == "bool" else "real"))
    with pytest.raises(tl.OutOfMemoryError) as caught:
        tl.Executor(memory_limit=10).execute(graph, {"x": np.ones((64, 64), dtype)})
    assert any("narrower" in hint for hint in caught.value.diagnostic.suggestions) is helps


@pytest.mark.parametrize("where", ["executor", "threads", "context", "with", "with, after a run without"])
@pytest.mark.parametrize("loop", [False, True])
def test_truth_values_are_packed_where_they_would_not_fit(loop: bool, where: str) -> None:
    b, n = tl.GraphBuilder(), 300
    x, y = b.input("x", (n, n), "bool"), b.input("y", (n, n), "bool")

    def join(x: Any) -> Any:
        return b.einsum("ij,jk->ik", x, y, algebra="boolean")

    graph = b.build(z=b.fixpoint(join, x, combine="or") if loop else join(x))
    values = dict(zip("xy", np.random.default_rng(3).random((2, n, n)) < 0.01, strict=True))
    plain = tl.Executor()
    assert plain.plan(graph, values).peak_bytes > 10 * n * n  # casts for BLAS
    limit = 3 * n * n
    limits: dict[str, Any] = {"executor": {"memory_limit": limit}, "threads": {"memory_limit": limit, "threads": 2}}
    limits["context"] = {"context": tl.ExecutionContext(memory_limit=limit)}
    packed = tl.Executor(**limits.get(where, {}))
    if where.endswith("after a run without"):
        packed.execute(graph, values)
    for _ in range(2):
        with tl.ExecutionContext(memory_limit=limit) if where.startswith("with") else contextlib.nullcontext():
            assert packed.plan(graph, values).peak_bytes <= limit
            found = packed.execute(graph, values)["z"]
        assert np.array_equal(found, plain.execute(graph, values)["z"])
        if where.startswith("with"):  # what a context leaves is no matter outside of it
            assert str(packed.plan(graph, values)) == str(plain.plan(graph, values))
            packed.execute(graph, values)
    with pytest.raises(tl.OutOfMemoryError, match="available"):
        tl.Executor(memory_limit=n * n).execute(graph, values)


@pytest.mark.parametrize("policy", ["fast", "adaptive"])
@pytest.mark.parametrize("where", ["executor", "context"])
def test_kernels_of_numpy_run_where_native_ones_would_not_fit(where: str, policy: str) -> None:
    b, n = tl.GraphBuilder(), 1 << 17
    x, y = b.input("x", (n, 4), "float64"), b.input("y", (n, 6), "float64")
    graph = b.build(z=b.einsum("ki,kj->ij", x, y, algebra="max_plus"))
    values = {"x": np.random.default_rng(3).random((n, 4)), "y": np.random.default_rng(4).random((n, 6))}
    assert tl.Executor(policy=policy).plan(graph, values).peak_bytes > 10 * n * 8  # copies with k last
    limit = 3 << 20
    executor = tl.Executor(policy=policy, memory_limit=limit if where == "executor" else None)
    with tl.ExecutionContext(memory_limit=limit) if where == "context" else contextlib.nullcontext():
        assert executor.plan(graph, values).peak_bytes <= limit
        found = executor.execute(graph, values)["z"]
    assert np.array_equal(found, (values["x"][:, :, None] + values["y"][:, None]).max(0))


def test_memory_inside_of_bodies_counts() -> None:
    def build(b: tl.GraphBuilder, x: Any) -> Any:
        return b.scan(lambda c, r: (c, b.sum(r + b.cast(b.iota(5_000_000), "float64"))), np.float64(0), x)[1]

    error, peak = _refused(build, memory_limit=1_000_000)
    assert peak < 1_000_000
    assert "MiB requested" in str(error)


def test_after_a_refusal_the_executor_goes_on() -> None:
    executor = tl.Executor(memory_limit=1000)
    graph = _graph(lambda b, x: x + 1)
    with pytest.raises(tl.OutOfMemoryError):
        executor.execute(graph, {"x": np.ones(1000)})
    assert executor.execute(graph, {"x": np.ones(100)})["y"].sum() == 200


# plans


def test_a_plan_is_made_once_for_each_signature() -> None:
    executor = tl.Executor()
    graph = _graph(lambda b, x: x + 1)
    for x in (np.ones(3), np.zeros(3), np.ones(4), np.ones(3, np.float32), np.ones(3)):
        executor.execute(graph, {"x": x})
    stats = executor.cache_stats()
    assert (stats.hits, stats.misses, stats.entries) == (2, 3, 3)
    executor.execute(_graph(lambda b, x: x + 1), {"x": np.ones(3)})  # an equal graph, built again
    assert executor.cache_stats().hits == 3
    executor.execute(_graph(lambda b, x: x + 1.0), {"x": np.ones(3)})  # not equal: another literal
    assert executor.cache_stats().misses == 4


def test_plans_are_bounded() -> None:
    executor = tl.Executor(plans=2)
    graph = _graph(lambda b, x: x + 1)
    for n in range(1, 6):
        assert executor.execute(graph, {"x": np.ones(n)})["y"].shape == (n,)
    stats = executor.cache_stats()
    assert (stats.entries, stats.evictions) == (2, 3)


def test_symbolic_graphs_at_several_sizes() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", "k"))
    graph = b.build(gram=x @ x.T, windows=b.window(x, 0, 2), mean=b.mean(x, 0))
    executor = tl.Executor()
    for n, k in ((2, 1), (3, 5), (7, 2), (3, 5), (2, 0)):
        given = np.random.default_rng(n).random((n, k))
        out = executor.execute(graph, {"x": given})
        np.testing.assert_allclose(out["gram"], given @ given.T)
        assert out["windows"].shape == (n - 1, k, 2)
        np.testing.assert_allclose(out["mean"], given.mean(0))


def test_sizes_give_what_no_input_fixes() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    graph = b.build(y=b.broadcast_to(x, ("n", 2)), z=b.iota("n"))
    executor = tl.Executor()
    with pytest.raises(tl.ShapeError, match=r"no input fixes the size 'n'(.|\n)*sizes="):
        executor.execute(graph, {"x": np.ones(2)})
    for n in (3, 4):
        out = executor.execute(graph, {"x": np.ones(2)}, sizes={"n": n})
        assert (out["y"].shape, out["z"].shape) == ((n, 2), (n,))


@pytest.mark.parametrize(
    ("sizes", "pattern"),
    [
        ({"n": 4}, "size 'n' is 4 by sizes=, but axis 0 of input 'x' is 2"),
        ({"n": -1}, "-1"),
        ({"n": "many"}, "'many'"),
        ({"n": 2.0}, "2.0"),
        ({"n": np.array([2, 2])}, "'n'|integer"),
        ([("n", 2)], "mapping|sizes"),
        ({"n": 2, 3: 4}, "3"),
    ],
)
def test_bad_sizes(sizes: Any, pattern: str) -> None:
    with pytest.raises(tl.TensorLogicError, match=pattern):
        tl.Executor().execute(_graph(lambda b, x: x + 1), {"x": np.ones(2)}, sizes=sizes)


def test_a_plan_without_inputs() -> None:
    executor = tl.Executor()
    graph = _layer()
    assert executor.plan(graph, sizes={"n": 64}).steps[0].types[0].shape == (64, 10)
    with pytest.raises(tl.InputError, match=r"the plan needs the size 'n' of input 'x'(.|\n)*sizes="):
        executor.plan(graph)
    b = tl.GraphBuilder()
    with pytest.raises(tl.InputError, match="needs input 'x', whose shape is not declared"):
        executor.plan(b.build(y=b.relu(b.input("x"))))


def test_a_plan_from_some_inputs_knows_the_sizes_they_fix() -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", 3)) @ b.input("w", (3, "n")))
    plan = tl.Executor().plan(graph, {"x": np.ones((5, 3), np.float32)})
    assert plan.outputs[0][2].shape == (5, 5)


# results belong to the caller

VIEWS: dict[str, Build] = {
    "input": lambda b, x: x,
    "twice": lambda b, x: ((y := x + 1), y),
    "slice": lambda b, x: x[1:],
    "slice of a result": lambda b, x: ((y := x + 1), y[1:], y[:1]),
    "reshape": lambda b, x: (b.reshape(x, (-1,)), b.reshape(x + 1, (-1,)), x + 1),
    "transpose": lambda b, x: (x.T, (x + 1).T, x + 1),
    "broadcast": lambda b, x: (b.broadcast_to(x, (2, 3, 3)), b.broadcast_to(x + 1, (2, 3, 3))),
    "window": lambda b, x: (b.window(x, 0, 2), b.window(x + 1, 0, 2)),
    "diagonal": lambda b, x: (b.einsum("ii->i", x), b.einsum("ij->ji", x)),
    "einsum of one": lambda b, x: tuple(b.einsum("ij->ij", x, algebra=a) for a in ("real", "max_min", "boolean")),
    "squeeze": lambda b, x: (b.expand_dims(x, 0), b.squeeze(b.expand_dims(x, 0), 0)),
    "cast": lambda b, x: (b.cast(x, "float64"), x.astype("float64") + 0),
    "concat": lambda b, x: (b.concat([x]), b.pad(x, [(0, 0), (0, 0)])),
    "constant": lambda b, x: (b.constant(np.ones(3)), b.constant(np.ones(3)), b.constant(np.eye(3)).T, x + 1),
    "number": lambda b, x: (b.cast(2, "float64"), b.constant(np.float64(3)), x + 0),
    "cond": lambda b, x: b.cond(b.sum(x) > 0, lambda: x, lambda: -x),
    "cond of views": lambda b, x: b.cond(b.sum(x) > 0, lambda: (x, x[1:], x.T), lambda: (-x, x[1:], x.T)),
    "cond repeated": lambda b, x: b.cond(b.sum(x) > 0, lambda: ((y := x * 2), y, y[1:]), lambda: (x, x, x[1:])),
    "cond of a result": lambda b, x: ((y := x + 1), b.cond(b.sum(x) > 0, lambda: y, lambda: -y)),
    "fixpoint": lambda b, x: b.fixpoint(lambda c: c, x),
    "fixpoint of views": lambda b, x: b.fixpoint(lambda c, d: (c, c), x, x),
    "fixpoint repeated": lambda b, x: b.fixpoint(lambda c, d: ((y := b.minimum(c + 1, 9)), y), x, x),
    "scan of no steps": lambda b, x: b.scan(lambda c, _: (c + 1, None), x, (), length=0)[0],
    "scan": lambda b, x: (b.scan(lambda c, r: (c, r), x, x)),
    "scan swaps": lambda b, x: b.scan(lambda c, r: ((c[1], c[0]), None), (x, x), (x,))[0],
    "top_k": lambda b, x: b.top_k(x, 3),
    "sort": lambda b, x: (b.sort(x), b.sort(x, descending=True)),
}  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize("name", VIEWS)
def test_outputs_are_arrays_of_their_own(name: str, backend: str) -> None:
    x = np.arange(1.0, 10.0).reshape(3, 3)
    graph = _graph(VIEWS[name], (3, 3))
    executor = tl.Executor(backend)
    values = list(executor.execute(graph, {"x": x}))
    kept = [v.copy() for v in values]
    bodies = [g for n in graph.nodes for g in (getattr(n.op, "body", None), getattr(n.op, "then", None)) if g]
    constants = [c for g in (graph, *bodies) for c in g.constants.values()]
    for v in values:
        assert v.flags.writeable
        assert not np.shares_memory(v, x)
        assert not any(np.shares_memory(v, c) for c in constants)
    for a, b in itertools.combinations(values, 2):
        assert not np.shares_memory(a, b)
    for v in values:
        v[...] = 0
    for again, first in zip(executor.execute(graph, {"x": x}), kept, strict=True):
        np.testing.assert_array_equal(again, first)


def test_relu_of_bool_is_not_the_input() -> None:
    x = np.array([True, False])
    out = _run(lambda b, t: b.relu(t), x)["y"]
    assert not np.shares_memory(out, x)


def test_an_earlier_result_is_unchanged_by_a_later_run() -> None:
    executor = tl.Executor()
    b = tl.GraphBuilder()
    x = b.input("x", (4, 4))
    graph = b.build(p=x @ x, q=b.relu(x - 1), r=b.fixpoint(lambda c: b.minimum(c + 1, 5), x), s=b.sum(x))
    first = executor.execute(graph, {"x": np.eye(4)})
    kept = [v.copy() for v in first]
    for n in range(5):
        executor.execute(graph, {"x": np.full((4, 4), float(n))})
    for now, then in zip(first, kept, strict=True):
        np.testing.assert_array_equal(now, then)


def test_changing_an_input_afterwards_changes_no_result() -> None:
    x = np.ones(3)
    graph = _graph(lambda b, t: (t[:], t + 1))
    out = tl.Executor().execute(graph, {"x": x})
    x[:] = 9
    assert out["y0"].tolist() == [1, 1, 1]


def test_a_constant_is_copied_when_the_graph_is_built() -> None:
    array = np.ones(2)
    b = tl.GraphBuilder()
    graph = b.build(y=b.constant(array) + 0)
    array[:] = 5
    assert tl.Executor().execute(graph)["y"].tolist() == [1, 1]


# any memory layout

LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "fortran": np.asfortranarray,
    "strided": lambda x: np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3],
    "reversed": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "transposed": lambda x: x.T.copy().T,
    "byte-swapped": lambda x: x.astype(x.dtype.newbyteorder()),
    "unaligned": lambda x: np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(x.dtype).reshape(x.shape),
    "broadcast": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "float64", "int64"])
def test_memory_layouts(layout: str, dtype: str) -> None:
    x = LAYOUTS[layout](np.arange(12).reshape(4, 3).astype(dtype))
    x.flags.writeable = False
    plain = np.array(x, dtype)

    def build(b: tl.GraphBuilder, t: Any) -> Any:
        return (t @ t.T, t + 1, b.sum(t, 0), b.sort(t, 0), t[1:, ::-1], b.einsum("ij,ij->j", t, t), b.cumsum(t, 1))

    out = tl.Executor().execute(_graph(build, (4, 3)), {"x": x})
    expected = [plain @ plain.T, plain + 1, plain.sum(0), np.sort(plain, 0), plain[1:, ::-1], (plain**2).sum(0),
                np.cumsum(plain, 1)]  # fmt: skip
    for got, wanted in zip(out, expected, strict=True):
        assert got.dtype == wanted.dtype
        assert got.flags.writeable
        np.testing.assert_allclose(got, wanted)
    np.testing.assert_array_equal(np.array(x, dtype), plain)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses_of_arrays_behave_as_plain_arrays() -> None:
    given = np.array([[1.0, 2.0], [3.0, 4.0]])
    for x in (np.matrix(given), given.view(np.recarray)):
        out = _run(lambda b, t: (b.sum(t, 0), t[0], t * t, b.reshape(t, (-1,))), x)
        for got, wanted in zip(out, (given.sum(0), given[0], given * given, given.reshape(-1)), strict=True):
            assert type(got) is np.ndarray
            np.testing.assert_array_equal(got, wanted)


def test_a_masked_array_is_refused_or_filled_but_never_a_masked_result() -> None:
    masked = np.ma.array([1.0, 2.0], mask=[False, True])
    try:
        out = _run(lambda b, t: t + 1, masked)["y"]
    except tl.TensorLogicError:
        return
    assert type(out) is np.ndarray


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 0, 4)])
def test_empty_inputs(shape: tuple[int, ...]) -> None:
    out = _run(lambda b, t: (t + 1, b.sum(t), b.concat([t, t], 0), b.exp(t), b.any(t)), np.zeros(shape))
    assert out["y0"].shape == out["y3"].shape == shape
    assert out["y1"] == 0
    assert not out["y4"]
    assert out["y2"].shape == (2 * shape[0], *shape[1:])


def test_zero_dimensional_inputs_give_arrays() -> None:
    out = _run(lambda b, t: (t, t + 1, b.sum(t), b.reshape(t, (1, 1)), t[()], t[None]), np.array(3.0))
    assert all(type(v) is np.ndarray for v in out)
    assert [v.shape for v in out] == [(), (), (), (1, 1), (), (1,)]
    assert tl.Executor().execute(_graph(lambda b, x: x * 2, ()), {"x": 4})["y"] == 8


# depth


def test_a_chain_of_fifty_thousand() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "int64")
    y = x
    for n in range(50_000):
        y = b.add(y, n % 7)
    got = tl.Executor().execute(b.build(y=y), {"x": [0, 10]})["y"]
    total = sum(n % 7 for n in range(50_000))
    assert got.tolist() == [total, total + 10]


# shapes only


def test_dummy_executor_has_shapes_and_no_memory(measured: Any) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (1,), "float32")
    wide = b.broadcast_to(x, (10**6, 10**5)) + 1
    last, rows = b.scan(lambda c, r: (c + r, b.cast(c, "int8")), b.sum(wide, 0), wide)
    values, places = b.top_k(wide, 7)
    graph = b.build(wide=wide, last=last, rows=rows, values=values, places=places, any=b.any(wide), total=wide.sum())
    executor = tl.DummyExecutor()
    out, peak = measured(executor.execute, graph, {"x": np.ones(1, np.float32)})
    assert peak < 2_000_000
    assert {n: (v.shape, str(v.dtype)) for n, v in out.items()} == {
        "wide": ((10**6, 10**5), "float32"),
        "last": ((10**5,), "float32"),
        "rows": ((10**6, 10**5), "int8"),
        "values": ((10**6, 7), "float32"),
        "places": ((10**6, 7), "int64"),
        "any": ((), "bool"),
        "total": ((), "float32"),
    }


def test_dummy_executor_has_the_shapes_and_dtypes_that_numpy_gives() -> None:
    for name, build in VIEWS.items():
        graph = _graph(build, (3, 3))
        x = np.ones((3, 3))
        dummy, real = tl.DummyExecutor().execute(graph, {"x": x}), tl.Executor().execute(graph, {"x": x})
        assert [(v.shape, v.dtype) for v in dummy] == [(v.shape, v.dtype) for v in real], name


def test_dummy_executor_refuses_what_no_array_can_have() -> None:
    with pytest.raises(tl.TensorLogicError):
        tl.DummyExecutor().execute(_graph(lambda b, x: b.broadcast_to(x, (10**10, 10**10)) + 1, (1,)), {"x": [1.0]})


# what a backend says of itself


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_capabilities_are_true(backend: str) -> None:
    executor = tl.Executor(backend)
    able = executor.capabilities()
    assert able.name == backend
    assert able.devices == (tl.Device.CPU(0),)
    assert able.supports("einsum")
    assert able.supports("float32")
    assert able.supports("bfloat16") == (backend == "numpy" and has_bfloat16())
    for dtype in set(able.dtypes) - {"bfloat16"}:  # which NumPy does not know by name
        b = tl.GraphBuilder()
        x = b.input("x", (2, 2), dtype)
        graph = b.build(sum=x + x, product=b.einsum("ij,jk->ik", x, x))
        given = np.array([[1, 0], [1, 1]], dtype)
        out = executor.execute(graph, {"x": given})
        np.testing.assert_array_equal(out["sum"], given + given)
        np.testing.assert_array_equal(out["product"], given @ given)
        assert {str(v.dtype) for v in out} == {dtype}


def test_the_operations_that_backends_claim_are_all_there_are() -> None:
    from tensorlogic.ir.graph import OPS

    for backend in ("numpy", "reference", "null"):
        assert set(OPS) <= set(tl.Executor(backend).capabilities().features)


def test_executors_satisfy_the_trait() -> None:
    assert isinstance(tl.Executor(), tl.TlExecutor)
    assert isinstance(tl.Executor(), tl.TlCapabilities)
    assert isinstance(NumpyBackend(), tl.Backend)
    assert not isinstance(3, tl.TlExecutor)


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_an_executor_works_after_a_step_failed(backend: str) -> None:
    executor = tl.Executor(backend)
    b = tl.GraphBuilder()
    graph = b.build(y=b.gather(b.input("x", (3,)), b.input("i", ("k",), "int64")))
    for _ in range(2):
        with pytest.raises(tl.ExecutionError, match="index 5 is out of range"):
            executor.execute(graph, {"x": np.arange(3.0), "i": [0, 5]})
        assert executor.execute(graph, {"x": np.arange(3.0), "i": [2, -1]})["y"].tolist() == [2, 2]


def gathered():
    b = tl.GraphBuilder()
    return b.build(y=b.gather(b.input("t", (4, 2)), b.input("i", ("n",), "int64")))


def gathered_elsewhere():
    b = tl.GraphBuilder()
    return b.build(y=b.gather(b.input("t", (4, 2)), b.input("i", ("n",), "int64")))


def looped():
    b = tl.GraphBuilder()
    t = b.input("t", (4, 2))
    return b.build(y=b.scan(lambda c, i: (c, b.gather(t, i)), np.float64(0), b.input("i", ("n",), "int64"))[1])


def looped_elsewhere():
    b = tl.GraphBuilder()
    t = b.input("t", (4, 2))
    return b.build(y=b.scan(lambda c, i: (c, b.gather(t, i)), np.float64(0), b.input("i", ("n",), "int64"))[1])


@pytest.mark.parametrize("first, second", [(gathered, gathered_elsewhere), (looped, looped_elsewhere)])
@pytest.mark.parametrize("again", [False, True])
def test_an_error_points_at_the_graph_that_was_given_not_at_an_equal_one_that_ran_before(first, second, again):
    def places(graph):
        return {
            str(at)
            for node in graph.nodes
            for n in (node, *(m for g in bodies(node.op) for m in g))
            for at in n.locations
        }

    executor, fine = tl.Executor(), {"t": np.ones((4, 2)), "i": np.array([1, 2])}
    own = second()
    assert own == first()
    executor.execute(first(), fine)
    if again:
        executor.execute(own, fine)
    with pytest.raises(tl.ExecutionError, match="index 7 is out of range") as caught:
        executor.execute(own, {**fine, "i": np.array([1, 7])})
    assert str(caught.value.diagnostic.location) in places(own) - places(first())


def test_an_error_of_a_frame_points_at_the_graph_that_was_given():
    executor, fine = tl.Executor(), {"t": np.ones((4, 2)), "i": np.array([1, 2])}
    executor.execute(gathered(), fine)
    own = gathered_elsewhere()
    with pytest.raises(tl.ExecutionError, match="index 7 is out of range") as caught:
        executor.frame(own, {**fine, "i": np.array([1, 7])}).run()
    assert caught.value.diagnostic.location == own.nodes[-1].location


def test_a_factor_outside_of_the_algebra_is_told_at_the_graph_that_was_given():
    b = tl.GraphBuilder()
    first = b.build(y=b.einsum("ij,jk", b.input("p", (2, 2)), b.input("q", (2, 2)), algebra="max_product"))
    b = tl.GraphBuilder()
    own = b.build(y=b.einsum("ij,jk", b.input("p", (2, 2)), b.input("q", (2, 2)), algebra="max_product"))
    executor, fine = tl.Executor(), {"p": np.ones((2, 2)), "q": np.ones((2, 2))}
    executor.execute(first, fine)
    with pytest.raises(tl.GraphError, match="a factor is -1") as caught:
        executor.execute(own, {**fine, "p": -np.ones((2, 2))})
    assert first == own and caught.value.diagnostic.location == own.nodes[-1].location != first.nodes[-1].location


def test_an_error_points_at_the_call_where_the_graph_has_no_lines():
    executor, fine = tl.Executor(), {"t": np.ones((4, 2)), "i": np.array([1, 2])}
    executor.execute(gathered(), fine)
    same = gathered()
    bare = tl.EinsumGraph([Node(node.op, node.args) for node in same.nodes], same.outputs)
    with pytest.raises(tl.ExecutionError) as caught:
        executor.execute(bare, {**fine, "i": np.array([1, 7])})
    assert caught.value.guessed and caught.value.diagnostic.location.file == __file__
