"""One more leading axis: a batched graph gives each item the answer that it has alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import groupby
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.ir.graph import Cond, Fixpoint, Scan
from tensorlogic.passes.batch import batched
from tensorlogic.testing.cases import Case, cases
from tensorlogic.testing.strategies import graph_case

TOLERANCE = {"float16": 2e-2, "float32": 2e-5, "float64": 1e-12}
CASES = {name: list(group) for name, group in groupby(cases(), lambda case: case.name.split("/")[0])}


def stacked(items: list[dict[str, Any]], over: list[str], shared: dict[str, Any]) -> dict[str, Any]:
    """Return the inputs of a batched graph: those named in over stacked, the others as they are."""
    return {
        name: np.array([item[name] for item in items], value.dtype).reshape(len(items), *value.shape)
        if name in over
        else value
        for name, value in shared.items()
    }


def check(graph: tl.EinsumGraph, items: list[dict[str, Any]], over: list[str], backend: str = "numpy") -> Any:
    """Compare a batched graph with a loop; return the outputs."""
    executor = tl.Executor(backend)
    with np.errstate(all="ignore"):
        together = executor.execute(batched(graph, over), stacked(items, over, items[0]))
        for n, item in enumerate(items):
            for name, want in executor.execute(graph, item).items():
                got = together[name][n, ...]
                assert got.dtype == want.dtype
                near = TOLERANCE.get(want.dtype.name, 0.0)
                np.testing.assert_allclose(got, want, rtol=near, atol=near, err_msg=f"{name} of item {n}")
    return together


def rolled(inputs: dict[str, Any], over: list[str], count: int) -> list[dict[str, Any]]:
    """Return items that hold the numbers of one item in other places."""
    return [
        {k: np.roll(v.reshape(-1), n).reshape(v.shape) if k in over else v for k, v in inputs.items()}
        for n in range(count)
    ]


@pytest.mark.parametrize("group", CASES)
def test_conformance_cases_give_each_item_its_answer(group: str) -> None:
    # there are many: equations, algebras and dtypes take turns
    some = CASES[group][::3] if group == "einsum" else CASES[group]
    for n, case in enumerate(some):
        _batch_case(case, "reference" if n % 12 == 0 else "numpy", only_first=n % 2 == 1)


def _batch_case(case: Case, backend: str, *, only_first: bool) -> None:
    graph, inputs = case.make()
    over = list(inputs)[:1] if only_first else list(inputs)
    try:
        check(graph, rolled(inputs, over, 3), over, backend)
    except Exception as error:
        error.add_note(case.name)
        raise


@pytest.mark.parametrize("count", [0, 1])
def test_a_batch_of_none_and_of_one(count: int) -> None:
    for group in CASES.values():
        for case in group[:: 1 + len(group) // 6]:
            graph, inputs = case.make()
            over = list(inputs)
            outputs = tl.Executor().execute(batched(graph, over), stacked(rolled(inputs, over, count), over, inputs))
            types = graph.inference.types
            for name, i in graph.outputs:
                assert outputs[name].shape[0] == count, case.name
                assert len(outputs[name].shape) == 1 + len(types[i][0].shape or ()), case.name


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(seed: int) -> None:
    below = random.Random(seed).randrange
    for case in [graph_case(below, most=8, smooth=True, dtypes=("float64",), sizes=(3, 2)) for _ in range(6)]:
        over = list(case.inputs)[:2]
        items = [{k: v * (1 + 0.1 * n) if k in over else v for k, v in case.inputs.items()} for n in range(3)]
        graph = batched(case.graph, over)
        assert tl.EinsumGraph.from_json(graph.to_json()) == graph
        assert tl.EinsumGraph.from_text(graph.to_text()) == graph
        try:
            answers = [tl.Executor().execute(case.graph, item) for item in items]
        except tl.TensorLogicError:  # such as values of two devices that meet
            continue
        outputs = tl.Executor().execute(graph, stacked(items, over, items[0]))
        for name, value in outputs.items():
            for n, answer in enumerate(answers):
                np.testing.assert_allclose(value[n, ...], answer[name], rtol=1e-9, atol=1e-9)


def rows(count: int, *shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal((count, *shape))


def _vmapped(fn: Callable[..., Any], axes: tuple[int | None, ...]) -> Callable[..., Any]:
    import jax

    return jax.vmap(fn, in_axes=axes)


def _in_both(name: str) -> tuple[tl.EinsumGraph, Callable[..., Any], dict[str, tuple[int, ...]]]:
    """Return a function as a graph, the same in JAX, and the shapes of its operands."""
    import jax
    import jax.numpy as jnp

    b = tl.GraphBuilder()
    x, w = b.input("x", (4, 3), "float32"), b.input("w", (3, 3), "float32")
    table: dict[str, tuple[Any, Callable[..., Any]]] = {
        "softmax": (b.softmax(x @ w), lambda x, w: jax.nn.softmax(x @ w)),
        "attention": (b.attention(x, x @ w, x), lambda x, w: jax.nn.softmax(x @ (x @ w).T / jnp.sqrt(3.0)) @ x),
        "norm": (b.layer_norm(x @ w), lambda x, w: jax.nn.standardize(x @ w, epsilon=1e-5)),
        "scan": (b.scan(lambda c, r: (b.tanh(c @ w + r), c), x[0], x)[1],
                 lambda x, w: jax.lax.scan(lambda c, r: (jnp.tanh(c @ w + r), c), x[0], x)[1]),
        "sort": (b.cumsum(b.sort(x @ w, 0), 1), lambda x, w: jnp.cumsum(jnp.sort(x @ w, 0), 1)),
        "cond": (b.cond(b.sum(x) > 0, lambda: x @ w, lambda: x - 1),
                 lambda x, w: jax.lax.cond(jnp.sum(x) > 0, lambda: x @ w, lambda: x - 1)),
    }  # fmt: skip
    ours, theirs = table[name]
    return b.build(y=ours), theirs, {"x": (4, 3), "w": (3, 3)}


@pytest.mark.parametrize("name", ["softmax", "attention", "norm", "scan", "sort", "cond"])
@pytest.mark.parametrize("over", [["x"], ["w"], ["x", "w"]], ids=",".join)
def test_it_is_what_vmap_is(name: str, over: list[str]) -> None:
    pytest.importorskip("jax")
    graph, theirs, shapes = _in_both(name)
    arrays = {k: rows(5, *s).astype("f4") if k in over else rows(1, *s)[0].astype("f4") for k, s in shapes.items()}
    want = _vmapped(theirs, tuple(0 if k in over else None for k in shapes))(*arrays.values())
    got = tl.Executor().execute(batched(graph, over), arrays)["y"]
    np.testing.assert_allclose(got, np.broadcast_to(want, got.shape), rtol=2e-5, atol=2e-5)


# what is shared stays so


def test_what_all_items_share_is_computed_once() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (3,), "float32"), b.input("w", (3, 2), "float32")
    scaled = b.exp(w) * 2
    graph = batched(b.build(y=x @ scaled, w=scaled), "x")
    assert [str(graph.type_of(i)) for i in range(len(graph)) if isinstance(graph.nodes[i].op, ops.Elementwise)] == [
        "float32[3, 2]"
    ] * 2
    y, again = tl.Executor().execute(graph, {"x": np.ones((4, 3), "f4"), "w": np.zeros((3, 2), "f4")})
    assert (y.shape, again.shape) == ((4, 2), (4, 3, 2))
    np.testing.assert_array_equal(again, np.full((4, 3, 2), 2))


def test_captures_of_a_body_stay_shared_and_carries_that_differ_do_so_from_the_start() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (4, 3)), b.input("w", (3, 3))
    zero = b.cast(0.0, "float64")
    (steps, state), seen = b.scan(lambda c, r: ((c[0] + 1, b.tanh(c[1] @ w + r[0])), (c[0],)), (zero, w[0]), (x,))
    graph = b.build(steps=steps, state=state, seen=seen[0])
    many = batched(graph, "x")
    (scan,) = [node.op for node in many.nodes if isinstance(node.op, Scan)]
    shapes = [scan.body.type_of(i).shape for i in scan.body.inputs.values()]
    assert [list(s or ()) for s in shapes] == [[], ["batch", 3], ["batch", 3], [3, 3]]
    items = [{"x": r, "w": rows(1, 3, 3, seed=1)[0]} for r in rows(3, 4, 3)]
    check(graph, items, ["x"])
    check(graph, [{"x": items[0]["x"], "w": w} for w in rows(3, 3, 3)], ["w"])


def test_sizes_names_and_places_stay() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("batch", "n"), "float32")
    y = b.window(x, 1, 3)[:, ::2]
    graph = b.build(y=b.reshape(b.sum(y, -1), (-1,)), n=b.sum(b.iota("n")))
    many = batched(graph, "x")
    assert many.type_of(many.inputs["x"]).shape == ("batch_", "batch", "n")
    assert batched(many, "x").type_of(many.inputs["x"]).shape == ("batch__", "batch_", "batch", "n")
    assert batched(graph, "x", size=7).type_of(many.inputs["x"]).shape == (7, "batch", "n")
    told = {node.location.line for node in many.nodes if node.location}
    assert told == {node.location.line for node in graph.nodes if node.location}
    check(graph, [{"x": r} for r in rows(3, 2, 9).astype("f4")], ["x"])
    with pytest.raises(tl.TensorLogicError):  # a size that was given is kept to
        tl.Executor().execute(batched(graph, "x", size=7), {"x": np.ones((3, 2, 9), "f4")})


def test_batches_of_batches() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (4,)), b.input("w", (4, 4))
    graph = b.build(y=b.fixpoint(lambda c: b.tanh(c @ w * 0.2 + x), x, tolerance=1e-6))
    twice = batched(batched(graph, "x"), ["x", "w"])
    xs, ws = rows(6, 4).reshape(2, 3, 4), rows(2, 4, 4, seed=2)
    got = tl.Executor().execute(twice, {"x": xs, "w": ws})["y"]
    for i in range(2):
        for j in range(3):
            want = tl.Executor().execute(graph, {"x": xs[i, j], "w": ws[i]})["y"]
            np.testing.assert_allclose(got[i, j], want, rtol=1e-12)


# odd operands


def test_operands_of_which_each_item_has_its_own() -> None:
    b = tl.GraphBuilder()
    x, i = b.input("x", (3, 4), "float32"), b.input("i", (2,), "int64")
    s, z = b.input("s", (), "float32"), b.input("z", (), "int64")
    scales = b.input("scales", (3,), "float32")
    graph = b.build(
        pad=b.pad(x, [(1, 0), (0, 2)], s), taken=b.gather(x, i, 1), rows=b.gather(x, i, 0), alone=b.gather(x, z, 0),
        added=b.scatter_add(x, i, x[:2], 0), one=b.scatter_add(scales, z, 2.0, 0),
        small=b.quantize(x, s, z), channels=b.dequantize(b.quantize(x, scales, z, axis=0), scales, z, axis=0),
        best=b.argmax(x), best_row=b.argmin(x, keepdims=True), total=b.sum(s), least=b.min(s),
    )  # fmt: skip
    rng = np.random.default_rng(3)
    items = [
        {"x": rng.standard_normal((3, 4)).astype("f4"), "i": rng.integers(-3, 3, 2), "s": np.float32(rng.random() + 0.1).reshape(()),
         "z": rng.integers(-2, 2, ()), "scales": (rng.random(3) + 0.1).astype("f4")} for _ in range(4)
    ]  # fmt: skip
    items = [{k: np.asarray(v) for k, v in item.items()} for item in items]
    names = list(items[0])
    for over in [names, *([n] for n in names), ["i", "scales"], ["x", "s"], ["s", "z"]]:
        own = [{k: item[k] if k in over else items[0][k] for k in names} for item in items]
        check(graph, own, over)
        check(graph, own[:2], over, "reference")


# conds


def _choice() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    p, x, i = b.input("p", (), "bool"), b.input("x", (3,), "float64"), b.input("i", (2,), "int64")
    return b.build(y=b.cond(p, lambda: b.sum(b.gather(x, i, 0)), lambda: b.sum(b.sqrt(x))))


@pytest.mark.parametrize("picks", [[True, True], [False, False], [True, False, True, False], [False, True], []])
def test_a_branch_that_an_item_does_not_take_cannot_harm_it(picks: list[bool]) -> None:
    items = [
        {"p": np.array(p), "x": np.array([4.0, 1.0, 9.0]) * (-1 if p else 1), "i": np.array([0, 2] if p else [7, 9])}
        for p in picks
    ]  # places beyond the end where they are not read, roots of negative numbers where they are not taken
    graph = batched(_choice(), ["p", "x", "i"])
    types = {"p": (), "x": (3,), "i": (2,)}
    like = {k: np.zeros(s, {"p": "?", "x": "f8", "i": "i8"}[k]) for k, s in types.items()}
    for backend in ("numpy", "reference"):
        got = tl.Executor(backend).execute(graph, stacked(items, list(types), like))["y"]
        np.testing.assert_allclose(got, [-13.0 if p else 6.0 for p in picks])


def test_nor_can_it_harm_gradients() -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (), "float64"), b.input("w", (), "float64")
    y = b.cond(x > 0, lambda: b.sqrt(x) * w, lambda: x * w)
    loss = b.build(loss=y)
    many = batched(loss, "x")
    total = tl.grad(_summed(many), ["x", "w"])
    got = tl.Executor().execute(total, {"x": np.array([4.0, 0.0, -1.0]), "w": np.array(2.0)})
    np.testing.assert_allclose(got["x"], [0.5, 2.0, 2.0])
    np.testing.assert_allclose(got["w"], 2.0 + 0.0 - 1.0)


def _summed(graph: tl.EinsumGraph) -> tl.EinsumGraph:
    """Return the graph of the sum of all of its outputs."""
    from tensorlogic.passes.grad_tape import Tape, added

    t = Tape(graph)
    t.copy(graph)
    total = added(t.sum(v) for v in t.outputs.values())
    assert total is not None
    return t.finish([("loss", total)])


def test_a_cond_on_what_all_items_share_stays_one() -> None:
    b = tl.GraphBuilder()
    x, p = b.input("x", (3,)), b.input("p", ())
    graph = b.build(y=b.cond(p, lambda: x * 2, lambda: x * 0 + 1))
    many = batched(graph, "x")
    (cond,) = [node.op for node in many.nodes if isinstance(node.op, Cond)]
    assert not any(isinstance(n.op, Cond) for body in (cond.then, cond.otherwise) for n in body.nodes)
    for p_value in (0.0, 1.0, np.nan):
        check(graph, [{"x": r, "p": np.array(p_value)} for r in rows(3, 3)], ["x"])
    check(graph, [{"x": np.ones(3), "p": np.array(v)} for v in (0.0, 2.0, np.nan)], ["p"])


def test_conds_in_conds() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    inner = lambda: b.cond(x[0] > 2, lambda: x + 100, lambda: x + 10)  # noqa: E731
    graph = b.build(y=b.cond(x[1] > 0, inner, lambda: -x))
    check(graph, [{"x": np.array(v)} for v in ([3.0, 1], [1.0, 1], [3.0, -1], [1.0, -1])], ["x"])


# fixpoints


@pytest.mark.parametrize("tolerance", [0.0, 1e-3, 0.6])
@pytest.mark.parametrize("combine", ["replace", "max", "min"])
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_items_end_in_rounds_of_their_own(combine: str, tolerance: float, backend: str) -> None:
    b = tl.GraphBuilder()
    x, rate = b.input("x", (2,), "float64"), b.input("rate", (), "float64")
    target = 3.0 if combine != "min" else -3.0
    graph = b.build(y=b.fixpoint(lambda c: c + (target - c) * rate, x, combine=combine, tolerance=tolerance))
    items = [
        {"x": np.array([0.0, k]), "rate": np.array(r)} for k, r in ((1.0, 0.5), (2.0, 0.9), (0.0, 1.0), (-0.0, 0.25))
    ]
    got = check(graph, items, ["x", "rate"], backend)["y"]
    if backend == "numpy":  # the same arithmetic, so the same bits
        for n, item in enumerate(items):
            np.testing.assert_array_equal(got[n], tl.Executor().execute(graph, item)["y"])


def test_several_carries_end_together() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (), "float64")
    one, two = b.fixpoint(lambda c, d: (c * 0.5, d * 0.5 + c), x, x * 0, tolerance=0.3, limit=99)
    graph = b.build(one=one, two=two)
    check(graph, [{"x": np.array(v)} for v in (1.0, 64.0, 0.0, np.nan, 5.0)], ["x"])


def test_a_body_that_tells_zeros_apart() -> None:
    b = tl.GraphBuilder()
    x, k = b.input("x", (), "float64"), b.input("k", (), "float64")
    body = lambda c, n: (-c, b.minimum(n + 1, k + b.where(b.divide(1.0, c) > 0, 0.0, 0.0)))  # noqa: E731
    c, n = b.fixpoint(body, x, k * 0)
    graph = b.build(sign=b.divide(1.0, c), n=n)
    items = [{"x": np.array(0.0), "k": np.array(float(k))} for k in (1, 2, 5, 6)]
    check(graph, items, ["x", "k"])


def test_truth_values_need_no_flags() -> None:
    b = tl.GraphBuilder()
    edge = b.input("edge", ("n", "n"), "bool")
    path = b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, edge, algebra="boolean"), edge, combine="or")
    graph = b.build(path=path)
    (loop,) = [node.op for node in batched(graph, "edge").nodes if isinstance(node.op, Fixpoint)]
    assert loop.carries == 1
    rng = np.random.default_rng(0)
    check(graph, [{"edge": rng.random((6, 6)) < p} for p in (0.0, 0.1, 0.2, 0.5, 1.0)], ["edge"])


@pytest.mark.parametrize("tolerance", [0.0, 1e-9])
def test_the_limit_of_rounds_is_that_of_an_item(tolerance: float) -> None:
    def graph(limit: int) -> tl.EinsumGraph:
        b = tl.GraphBuilder()
        x = b.input("x", (), "float64")
        return b.build(y=b.fixpoint(lambda c: b.minimum(c + 1, 5.0), x, limit=limit, tolerance=tolerance))

    xs = {"x": np.array([5.0, 0.0, 3.0])}
    np.testing.assert_array_equal(tl.Executor().execute(batched(graph(6), "x"), xs)["y"], [5, 5, 5])
    tl.Executor().execute(graph(6), {"x": np.array(0.0)})
    for run in (
        lambda: tl.Executor().execute(graph(5), {"x": np.array(0.0)}),
        lambda: tl.Executor().execute(batched(graph(5), "x"), xs),
    ):
        with pytest.raises(tl.ConvergenceError) as caught:
            run()
        assert caught.value.diagnostic.code == "E501"


# gradients


@pytest.mark.parametrize("name", ["softmax", "scan", "cond", "fixpoint", "max_product", "sort"])
def test_the_gradient_of_a_batch_is_the_batch_of_gradients(name: str) -> None:
    b = tl.GraphBuilder()
    x, w = b.input("x", (3,), "float64"), b.input("w", (3, 3), "float64")
    y = {
        "softmax": lambda: b.softmax(x @ w) * x,
        "scan": lambda: b.scan(lambda c, r: (b.tanh(c @ w + r), c), x, w)[1],
        "cond": lambda: b.cond(b.sum(x) > 0, lambda: b.sin(x @ w), lambda: x * x),
        "fixpoint": lambda: b.fixpoint(lambda c: b.tanh(c @ w * 0.2 + x), x, tolerance=1e-12),
        "max_product": lambda: b.einsum("i,ij->j", b.sigmoid(x), b.sigmoid(w), algebra="max_product"),
        "sort": lambda: b.sort(x @ w) * x,
    }[name]()
    loss = b.build(loss=b.sum(b.square(y)))
    inputs = {"x": rows(4, 3), "w": rows(1, 3, 3, seed=5)[0]}
    each = tl.Executor().execute(batched(tl.grad(loss, ["x", "w"]), "x"), inputs)
    total = tl.Executor().execute(tl.grad(_summed(batched(loss, "x")), ["x", "w"]), inputs)
    np.testing.assert_allclose(each["x"], total["x"], rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(each["w"].sum(0), total["w"], rtol=1e-8, atol=1e-9)
    for n, row in enumerate(inputs["x"]):
        alone = tl.Executor().execute(tl.grad(loss, ["x", "w"]), {"x": row, "w": inputs["w"]})
        np.testing.assert_allclose(each["x"][n], alone["x"], rtol=1e-8, atol=1e-9)


def test_rounds_that_are_combined_still_have_no_equation() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float64")
    graph = b.build(y=b.fixpoint(lambda c: c * 0.5 + 1, x, combine="max", tolerance=1e-3))
    with pytest.raises(tl.GraphError) as caught:
        tl.grad(_summed(batched(graph, "x")), "x")
    assert caught.value.diagnostic.code == "E113"


# what is refused


def _layer() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(y=b.input("x", (3,)) @ b.input("w", (3, 2)))


@pytest.mark.parametrize(
    ("over", "code"), [([], "E510"), (["z"], "E302"), (7, "E301"), (["x", "v"], "E302")], ids=["none", "unknown", "no names", "one unknown"]
)  # fmt: skip
def test_over_names_inputs(over: Any, code: str) -> None:
    with pytest.raises(tl.TensorLogicError) as caught:
        batched(_layer(), over)
    assert caught.value.diagnostic.code == code


@pytest.mark.parametrize("size", [-1, 2.5, True])
def test_a_size_is_a_whole_number_or_a_name(size: Any) -> None:
    with pytest.raises(tl.InputError):
        batched(_layer(), "x", size)


def test_an_input_of_unknown_rank() -> None:
    b = tl.GraphBuilder()
    x, y = b.input("x"), b.input("y", (3,))
    graph = b.build(z=x + y)
    for over in ("x", "y"):
        with pytest.raises(tl.ShapeError) as caught:
            batched(graph, over)
        assert caught.value.diagnostic.code == "E511"


def test_what_is_no_graph() -> None:
    with pytest.raises(tl.InputError):
        batched("x", "x")  # type: ignore[arg-type]


def test_items_choose_between_bodies_that_end_on_different_devices() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (), "float32")
    graph = b.build(y=b.cond(x > 0, lambda: x, lambda: b.apply(tl.ir.ops.Transfer("cpu:1"), -x)))
    many = tl.batched(graph, over=["x"])
    values = np.array([-1.5, 2.0, 0.25, -3.0], np.float32)
    assert tl.Executor().execute(many, {"x": values})["y"].tolist() == [1.5, 2.0, 0.25, 3.0]
