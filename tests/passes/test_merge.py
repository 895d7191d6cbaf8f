"""Merged einsums: the same answers to rounding, never more work, and an order as good as opt_einsum's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import opt_einsum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opt_einsum.testing import build_shapes, rand_equation
from opt_einsum.tests.test_contract import tests as EQUATIONS

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder, OptimizationLevel
from tensorlogic.ir import ops
from tensorlogic.passes.for_numpy import order_contractions
from tensorlogic.passes.merge import OPERANDS, merge_einsums, stack_products
from tensorlogic.plan.build import lay_out

PLAIN = tl.Executor(optimization_level=OptimizationLevel.NONE)
MOST = tl.Executor(optimization_level=OptimizationLevel.AGGRESSIVE)


def flops(graph: EinsumGraph) -> int:
    return lay_out(order_contractions(graph)).flops


def einsums(graph: EinsumGraph) -> list[str]:
    return [n.op.spec for n in graph.nodes if isinstance(n.op, ops.Einsum)]


def one(equation: str, shapes: Any, algebra: str = "real") -> EinsumGraph:
    b = GraphBuilder()
    return b.build(
        y=b.einsum(equation, *(b.input(f"x{n}", s, "float64") for n, s in enumerate(shapes)), algebra=algebra)
    )


# order


def cost(graph: EinsumGraph, size: dict[str, int]) -> int:
    """Return what opt_einsum counts for the pairs of a graph of one einsum."""
    total = 0
    for n in graph.nodes:
        if isinstance(n.op, ops.Einsum):
            inputs, output = n.op.spec.split("->")
            total += opt_einsum.helpers.flop_count(
                set(inputs) - {","}, bool(set(inputs) - set(output) - {","}), len(n.args), size
            )
    return total


def check_order(equation: str, size: dict[str, int]) -> None:
    shapes = build_shapes(equation, dimension_dict=size)
    graph = order_contractions(one(equation, shapes))
    for search in ("auto", "optimal") if len(shapes) <= OPERANDS else ("auto",):
        best = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize=search)[1].opt_cost
        assert cost(graph, size) <= best, (equation, search)


@pytest.mark.parametrize("equation", sorted({e for e in EQUATIONS if e.count(",") >= 2 and "..." not in e}))
def test_the_order_is_never_worse_than_opt_einsums_on_its_own_equations(equation: str) -> None:
    for seed in range(3):
        rng = random.Random(seed)
        check_order(equation, {c: rng.choice([2, 3, 5, 8, 13]) for c in sorted(set(equation) - set(",->"))})


@pytest.mark.parametrize("operands", [4, 6, 9])
@pytest.mark.parametrize("seed", range(10))
def test_the_order_is_never_worse_on_random_equations(seed: int, operands: int) -> None:
    equation, _, size = rand_equation(operands, 3, n_out=2, d_min=2, d_max=9, seed=seed, return_size_dict=True)
    check_order(equation, size)


# merging


@st.composite
def chains(draw: st.DrawFn) -> tuple[EinsumGraph, dict[str, Any]]:
    """Einsums of einsums, with sums between them, over sizes that make some orders far better than others."""
    size = {c: draw(st.sampled_from([2, 3, 7, 11])) for c in "abcdef"}
    b = GraphBuilder()
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    inputs: dict[str, Any] = {}

    def operand() -> tuple[str, Any]:
        labels = "".join(draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=3, unique=True)))
        name = f"x{len(inputs)}"
        inputs[name] = rng.random([size[c] for c in labels])
        return labels, b.input(name, inputs[name].shape, "float64")

    labels, y = operand()
    for _ in range(draw(st.integers(1, 4))):
        others = [operand() for _ in range(draw(st.integers(0, 2)))]
        every = sorted(set(labels).union(*(set(part) for part, _ in others)))
        output = "".join(draw(st.permutations(every))[: draw(st.integers(0, min(3, len(every))))])
        y = b.einsum(",".join([labels, *(part for part, _ in others)]) + "->" + output, y, *(t for _, t in others))
        labels = output
        if labels and draw(st.integers(0, 3)) == 0:
            y, labels = b.sum(y, 0), labels[1:]
    return b.build(y=y), inputs


@settings(deadline=None, max_examples=150)
@given(chains())
def test_merging_never_makes_more_work(made: tuple[EinsumGraph, dict[str, Any]]) -> None:
    graph, inputs = made
    merged = merge_einsums(graph)
    assert len(merged) <= len(graph)
    assert flops(merged) <= flops(graph), (einsums(graph), einsums(merged), einsums(order_contractions(merged)))
    np.testing.assert_allclose(MOST.execute(graph, inputs)["y"], PLAIN.execute(graph, inputs)["y"], rtol=1e-10)


def test_a_better_order_is_found() -> None:
    b = GraphBuilder()
    a, c, v = b.input("a", (50, 50), "float64"), b.input("c", (50, 50), "float64"), b.input("v", (50, 1), "float64")
    graph = b.build(y=(a @ c) @ v)
    merged = merge_einsums(graph)
    assert einsums(merged) == ["ab,bc,cd->ad"]
    assert flops(merged) * 10 < flops(graph)


@pytest.mark.parametrize(
    "algebra", ["real", "boolean", "max_product", "min_plus", "max_min", "log_sum_exp", "lukasiewicz"]
)
def test_algebras_that_distribute_merge(algebra: str) -> None:
    dtype = "bool" if algebra == "boolean" else "float64"
    rng = np.random.default_rng(0)
    inputs = {n: rng.random((3, 3)) if dtype == "float64" else rng.random((3, 3)) < 0.5 for n in "acd"}
    b = GraphBuilder()
    a, c, d = (b.input(n, (3, 3), dtype) for n in "acd")
    graph = b.build(y=b.einsum("ij,jk->ik", b.einsum("ij,jk->ik", a, c, algebra=algebra), d, algebra=algebra))
    assert einsums(merge_einsums(graph)) == ["ab,bc,cd->ad"]
    np.testing.assert_allclose(MOST.execute(graph, inputs)["y"], PLAIN.execute(graph, inputs)["y"], rtol=1e-12)


def _left(build: Any, dtypes: tuple[str, ...] = ("float64",) * 3) -> int:
    b = GraphBuilder()
    return len(einsums(merge_einsums(b.build(build(b, *(b.input(f"x{n}", (3, 3), d) for n, d in enumerate(dtypes)))))))


def test_where_einsums_stay_apart() -> None:
    assert _left(lambda b, x, y, z: {"p": (x @ y) @ z, "q": x @ y}) == 2  # someone else reads the inner one
    assert _left(lambda b, x, y, z: {"p": b.exp(x @ y) @ z}) == 2  # something stands between
    assert _left(lambda b, x, y, z: {"p": (x @ y) @ (x @ y)}) == 2  # it is read twice
    assert _left(lambda b, x, y, z: {"p": (x @ y) @ z}, ("float16",) * 3) == 2  # each rounds
    assert _left(lambda b, x, y, z: {"p": (x @ y) @ z}, ("int8",) * 3) == 2  # each wraps
    assert _left(lambda b, x, y, z: {"p": (x @ y) @ z}, ("float32", "float32", "float64")) == 2
    mixed = _left(lambda b, x, y, z: {"p": b.einsum("ij,jk->ik", b.einsum("ij,jk->ik", x, y), z, algebra="max_min")})
    assert mixed == 2
    noisy = _left(lambda b, x, y, z: {
        "p": b.einsum("ij,jk->ik", b.einsum("ij,jk->ik", x, y, algebra="noisy_or"), z, algebra="noisy_or")})  # fmt: skip
    assert noisy == 2


def test_sums_of_products_become_part_of_them() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (3, 4), "float64"), b.input("y", (4, 5), "float64")
    graph = b.build(
        rows=b.sum(x @ y, 1), all=b.sum(x.T @ (x * 2)), kept=b.sum(y.T @ y, 0, keepdims=True), most=b.max(x @ (y + 1))
    )
    assert [n.op.name for n in merge_einsums(graph).nodes if isinstance(n.op, ops.Reduce)] == ["sum", "max"]
    rng = np.random.default_rng(0)
    inputs = {"x": rng.random((3, 4)), "y": rng.random((4, 5))}
    for found, wanted in zip(MOST.execute(graph, inputs), PLAIN.execute(graph, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12)


def test_the_sum_of_nothing_beside_what_is_not_finite() -> None:
    b = GraphBuilder()
    x, y, z = b.input("x", (2, 0), "float64"), b.input("y", (0, 2), "float64"), b.input("z", (2, 2), "float64")
    graph = b.build(y=(x @ y) @ z)
    inputs = {"x": np.ones((2, 0)), "y": np.ones((0, 2)), "z": np.full((2, 2), np.inf)}
    np.testing.assert_array_equal(MOST.execute(graph, inputs)["y"], PLAIN.execute(graph, inputs)["y"])  # 0 * inf


# stacking


@pytest.mark.parametrize("shape", [(3,), (2, 3), (2, 2, 3), (0, 3)])
def test_stacked_products_give_the_same(shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    b = GraphBuilder()
    x = b.input("x", shape, "float32")
    weights = [rng.standard_normal((3, w)).astype("float32") for w in (4, 1, 5)]
    labels = "abc"[: len(shape) - 1]
    products = [b.einsum(f"{labels}i,ij->{labels}j", x, b.constant(w)) for w in weights]
    graph = b.build({"a": products[0], "b": b.exp(products[1]), "c": products[2] + b.sum(products[0])})
    assert len(einsums(stack_products(graph))) == 1
    inputs = {"x": rng.standard_normal(shape).astype("float32")}
    for found, wanted in zip(MOST.execute(graph, inputs), PLAIN.execute(graph, inputs), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    plan = MOST.plan(graph, inputs)
    assert not any(isinstance(s.op, ops.Concat) for s in plan.steps)  # folded


def test_where_products_are_not_stacked() -> None:
    b = GraphBuilder()
    x, y = b.input("x", (2, 3), "float32"), b.input("y", (2, 3), "float32")
    w, v = (b.constant(np.full((3, 4), n, "float32")) for n in (1, 2))
    for outputs in (
        {"p": x @ w},
        {"p": x @ w, "q": y @ v},  # of two operands
        {"p": x @ w, "q": x @ b.input("u", (3, 4), "float32")},  # one weight is not constant
        {"p": x @ w, "q": b.einsum("ij,kj->ik", x, b.constant(np.ones((4, 3), "float32")))},  # another form
    ):
        graph = b.build(outputs)
        assert stack_products(graph) is graph


def test_linear_layers_on_one_input_become_one_product() -> None:
    rng = np.random.default_rng(0)
    b = tl.GraphBuilder()
    x = b.input("x", (2, 5, 4), "float32")
    weights = [rng.normal(size=(4, n)).astype("float32") for n in (3, 6, 2)]
    graph = b.build({f"y{n}": b.linear(x, b.constant(w)) for n, w in enumerate(weights)})
    executor = tl.Executor(optimization_level=tl.OptimizationLevel.AGGRESSIVE)
    assert [s.op.name for s in executor.plan(graph).steps] == ["einsum", "slice", "slice", "slice"]
    rows = rng.normal(size=(2, 5, 4)).astype("float32")
    out = executor.execute(graph, {"x": rows})
    for n, w in enumerate(weights):
        np.testing.assert_allclose(out[f"y{n}"], rows @ w, rtol=1e-5)


def test_einsums_with_dots_merge_too() -> None:
    b = tl.GraphBuilder()
    x, v, w = b.input("x", (2, 30, 4), "float64"), b.input("v", (4, 30), "float64"), b.input("w", (30, 3), "float64")
    graph = b.build(y=b.transpose(b.linear(b.linear(x, v), w), (1, 0, 2)))
    merged = merge_einsums(graph)
    assert [len(n.args) for n in merged.nodes if isinstance(n.op, ops.Einsum)] == [3]
    rng = np.random.default_rng(0)
    fed = {"x": rng.random((2, 30, 4)), "v": rng.random((4, 30)), "w": rng.random((30, 3))}
    got = tl.Executor(optimization_level=tl.OptimizationLevel.AGGRESSIVE).execute(graph, fed)["y"]
    np.testing.assert_allclose(got, (fed["x"] @ fed["v"] @ fed["w"]).transpose(1, 0, 2))


# views around products


def check_same(graph: EinsumGraph, inputs: dict[str, Any]) -> None:
    for found, expected in zip(MOST.execute(graph, inputs), PLAIN.execute(graph, inputs), strict=True):
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-10)


def names(graph: EinsumGraph) -> list[str]:
    return [n.op.name for n in graph.nodes if n.op.name != "input"]


def test_a_transposed_product_is_computed_the_other_way_round() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (5, 6), "float64"), b.input("w", (6, 7), "float64")
    graph = b.build(y=b.transpose(x @ w))
    assert einsums(merge_einsums(graph)) == ["ab,bc->ca"]
    assert names(merge_einsums(graph)) == ["einsum"]
    rng = np.random.default_rng(0)
    check_same(graph, {"x": rng.random((5, 6)), "w": rng.random((6, 7))})


def test_a_transpose_that_would_make_a_copy_stays_a_view() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (5, 6), "float64"), b.input("w", (6, 3, 4), "float64")
    heads = b.einsum("ni,ihd->nhd", x, w)
    graph = b.build(y=b.transpose(heads, (1, 0, 2)))  # h n d: neither rows before columns nor the other way round
    assert names(merge_einsums(graph)) == ["einsum", "transpose"]
    batched = b.einsum("bnij,bjk->bnik", b.input("q", (2, 3, 4, 5), "float64"), b.input("k", (2, 5, 6), "float64"))
    swapped = b.build(y=b.transpose(batched, (0, 2, 1, 3)))  # the rows n, i of the left operand would be copied
    assert names(merge_einsums(swapped)) == ["einsum", "transpose"]
    rng = np.random.default_rng(0)
    check_same(graph, {"x": rng.random((5, 6)), "w": rng.random((6, 3, 4))})
    check_same(swapped, {"q": rng.random((2, 3, 4, 5)), "k": rng.random((2, 5, 6))})


def test_other_algebras_put_out_any_order() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (5, 6), "float64"), b.input("w", (6, 3, 4), "float64")
    graph = b.build(y=b.transpose(b.einsum("ni,ihd->nhd", x, w, algebra="min_plus"), (1, 0, 2)))
    assert names(merge_einsums(graph)) == ["einsum"]
    rng = np.random.default_rng(0)
    check_same(graph, {"x": rng.random((5, 6)), "w": rng.random((6, 3, 4))})


def test_transposes_of_many_operands_become_part_of_the_spec() -> None:
    b = GraphBuilder()
    x, y, z = (b.input(n, s, "float64") for n, s in (("x", (4, 3, 2)), ("y", (5, 4)), ("z", (5, 6))))
    made = b.einsum("ijk,kl,lm->jim", b.transpose(x, (1, 2, 0)), b.transpose(y), z)
    graph = b.build(y=made)
    merged = merge_einsums(graph)
    assert names(merged) == ["einsum"]
    rng = np.random.default_rng(0)
    fed = {"x": rng.random((4, 3, 2)), "y": rng.random((5, 4)), "z": rng.random((5, 6))}
    check_same(graph, fed)
    expected = np.einsum("ijk,kl,lm->jim", fed["x"].transpose(1, 2, 0), fed["y"].T, fed["z"])
    np.testing.assert_allclose(MOST.execute(graph, fed)["y"], expected)


def test_batch_axes_are_not_joined_and_split_again() -> None:
    b = GraphBuilder()
    q, k = b.input("q", (2, 3, 5, 4), "float64"), b.input("k", (2, 3, 4, 6), "float64")
    scores = b.einsum("bij,bjk->bik", b.reshape(q, (6, 5, 4)), b.reshape(k, (6, 4, 6)))
    graph = b.build(y=b.reshape(scores, (2, 3, 5, 6)))
    assert einsums(merge_einsums(graph)) == ["abcd,abde->abce"]
    assert names(merge_einsums(graph)) == ["einsum"]
    rng = np.random.default_rng(0)
    fed = {"q": rng.random((2, 3, 5, 4)), "k": rng.random((2, 3, 4, 6))}
    assert MOST.execute(graph, fed)["y"].tobytes() == PLAIN.execute(graph, fed)["y"].tobytes()
    np.testing.assert_allclose(MOST.execute(graph, fed)["y"], fed["q"] @ fed["k"])


@pytest.mark.parametrize(
    ("left", "right", "result"),
    [
        ((3, 2, 5, 4), (2, 3, 4, 6), (2, 3, 5, 6)),  # joined of other axes
        ((2, 3, 5, 4), (2, 3, 4, 6), (3, 2, 5, 6)),  # split into others
        ((2, 3, 5, 4), (2, 3, 4, 6), (6, 30)),  # joined further
        ((6, 5, 4), (2, 3, 4, 6), (2, 3, 5, 6)),  # one that is joined already
        ((2, 3, 5, 4), (2, 3, 4, 6), (1, 6, 5, 6)),
        ((2, 3, 5, 4), (2, 3, 4, 6), (2, 3, 5, 6, 1)),
        ((2, 3, 20), (2, 3, 4, 6), (2, 3, 5, 6)),
    ],
)
def test_other_reshapes_stay(left: tuple[int, ...], right: tuple[int, ...], result: tuple[int, ...]) -> None:
    b = GraphBuilder()
    q, k = b.input("q", left, "float64"), b.input("k", right, "float64")
    scores = b.einsum("bij,bjk->bik", b.reshape(q, (6, 5, 4)), b.reshape(k, (6, 4, 6)))
    graph = b.build(y=b.reshape(scores, result))
    rng = np.random.default_rng(0)
    check_same(graph, {"q": rng.random(left), "k": rng.random(right)})
    assert names(merge_einsums(graph)) == names(graph)


def test_rows_stay_one_axis_for_blas_and_not_elsewhere() -> None:
    rng = np.random.default_rng(0)
    fed = {"x": rng.random((2, 3, 4)), "w": rng.random((4, 5))}
    for algebra, kept in (("real", True), ("max_plus", False)):
        b = GraphBuilder()
        x, w = b.input("x", (2, 3, 4), "float64"), b.input("w", (4, 5), "float64")
        made = b.einsum("ij,jk->ik", b.reshape(x, (6, 4)), w, algebra=algebra)
        graph = b.build(y=b.reshape(made, (2, 3, 5)))
        assert ("reshape" in names(merge_einsums(graph))) == kept
        check_same(graph, fed)


def test_what_others_read_is_not_rewritten() -> None:
    b = GraphBuilder()
    x, w = b.input("x", (2, 5, 6), "float64"), b.input("w", (2, 6, 7), "float64")
    made = x @ w
    graph = b.build(y=b.transpose(made, (0, 2, 1)), z=made)
    assert names(merge_einsums(graph)) == ["einsum", "transpose"]
