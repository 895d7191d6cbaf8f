"""Contraction order: a chain of pairs gives what the whole einsum gives, and costs no more than the best known path."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import opt_einsum
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic import EinsumGraph, GraphBuilder, TensorShape, TensorType
from tensorlogic.ir import ops, spec
from tensorlogic.passes import contraction_paths
from tensorlogic.passes.contraction_paths import BLAS, best_path, pair_cost
from tensorlogic.passes.for_numpy import order_contractions
from tensorlogic.passes.specialize import specialize

FAST, SLOW = tl.Executor("numpy"), tl.Executor("reference")


def einsum_graph(equation: str, arrays: list[Any], algebra: str = "real") -> tuple[EinsumGraph, dict[str, Any]]:
    b = GraphBuilder()
    inputs = [b.input(f"x{n}", a.shape, a.dtype) for n, a in enumerate(arrays)]
    return b.build(y=b.einsum(equation, *inputs, algebra=algebra)), {f"x{n}": a for n, a in enumerate(arrays)}


def ordered(equation: str, arrays: list[Any], algebra: str = "real") -> EinsumGraph:
    graph, inputs = einsum_graph(equation, arrays, algebra)
    types = {n: TensorType(TensorShape(a.shape), a.dtype.name) for n, a in inputs.items()}
    return order_contractions(specialize(graph, types))


@st.composite
def problems(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    letters = "abcd"
    size = {c: draw(st.sampled_from([2, 3, 1, 0])) for c in letters}
    parts, shapes = [], []
    for _ in range(draw(st.integers(3, 4))):
        labels = draw(st.lists(st.sampled_from(letters), max_size=3))
        shape = [size[c] for c in labels]
        for n, c in enumerate(labels):
            if labels.count(c) == 1 and draw(st.integers(0, 6)) == 0:
                shape[n] = 1  # a literal 1 that broadcasts
        parts.append("".join(labels))
        shapes.append(tuple(shape))
    used = sorted(set("".join(parts)))
    output = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
    return ",".join(parts) + "->" + "".join(output), shapes


@settings(deadline=None, max_examples=60)
@given(problems(), st.sampled_from(["real", "boolean", "min_plus", "max_min"]), st.integers(0, 2**32 - 1))
def test_pairs_give_what_the_whole_gives(problem: tuple[str, list[tuple[int, ...]]], algebra: str, seed: int):
    equation, shapes = problem
    rng = np.random.default_rng(seed)
    arrays = [rng.random(s) < 0.6 if algebra == "boolean" else np.round(rng.random(s), 3) for s in shapes]
    graph, inputs = einsum_graph(equation, arrays, algebra)
    found, expected = FAST.execute(graph, inputs)["y"], SLOW.execute(graph, inputs)["y"]
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    if algebra == "real":
        np.testing.assert_allclose(found, np.einsum(equation, *arrays), rtol=1e-12)
    if algebra == "boolean":
        np.testing.assert_array_equal(found, np.einsum(equation, *[a.astype(int) for a in arrays]) > 0)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 2**32 - 1), st.sampled_from(["max_product", "max_plus", "log_sum_exp", "lukasiewicz", "noisy_or"])
)
def test_the_other_algebras(seed: int, algebra: str):
    rng = np.random.default_rng(seed)
    arrays = [rng.random(s) for s in ((2, 3), (3, 2), (2, 4), (4,))]
    graph, inputs = einsum_graph("ij,jk,kl,l->i", arrays, algebra)
    found, expected = FAST.execute(graph, inputs)["y"], SLOW.execute(graph, inputs)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_noisy_or_is_never_reordered():
    arrays = [np.ones((2, 3)), np.ones((3, 4)), np.ones((4, 5))]
    assert sum(isinstance(n.op, ops.Einsum) for n in ordered("ij,jk,kl->il", arrays, "noisy_or")) == 1
    assert sum(isinstance(n.op, ops.Einsum) for n in ordered("ij,jk,kl->il", arrays, "log_sum_exp")) == 2


def test_what_has_no_long_einsum_is_left_alone():
    graph, _ = einsum_graph("ij,jk->ik", [np.ones((2, 3)), np.ones((3, 4))])
    assert order_contractions(graph) is graph


EQUATIONS = {
    "chain": ("ab,bc,cd,de->ae", {"a": 50, "b": 3, "c": 40, "d": 2, "e": 30}),
    "matrix vector": ("ij,jk,kl,l->i", {"i": 60, "j": 60, "k": 60, "l": 60}),
    "star": ("ai,bi,ci,di->abcd", {"a": 4, "b": 5, "c": 6, "d": 7, "i": 30}),
    "ring": ("ab,bc,cd,de,ea->", dict.fromkeys("abcde", 12)),
    "attention": ("bqd,bkd,bke,eo->bqo", {"b": 2, "q": 9, "k": 11, "d": 5, "e": 6, "o": 7}),
    "outer": ("a,b,c->abc", {"a": 3, "b": 4, "c": 5}),
    "batch": ("zab,zbc,zcd->zad", {"z": 8, "a": 20, "b": 3, "c": 20, "d": 3}),
}


def cost(equations: list[tuple[list[str], str]], size: dict[str, int]) -> int:
    return sum(math.prod(size[c] for c in set("".join(inputs))) for inputs, _ in equations)


@pytest.mark.parametrize("name", EQUATIONS)
def test_the_path_costs_no_more_than_opt_einsums(name: str):
    equation, size = EQUATIONS[name]
    inputs, output = equation.split("->")
    shapes = [tuple(size[c] for c in part) for part in inputs.split(",")]
    graph = ordered(equation, [np.broadcast_to(np.float64(1), s) for s in shapes])
    ours = []
    sizes = dict(size)
    for node in graph.nodes:
        if isinstance(node.op, ops.Einsum):
            assert len(node.args) == 2
            form = spec.parse(node.op.spec)
            for labels, arg in zip(form.inputs, node.args, strict=True):
                assert graph.type_of(arg).shape == tuple(sizes[c] for c in labels)
            ours.append((["".join(x) for x in form.inputs], "".join(form.output)))
    path, _ = opt_einsum.contract_path(equation, *shapes, shapes=True, optimize="auto")
    pending, theirs = inputs.split(","), []
    for pair in path:
        chosen = [pending.pop(n) for n in sorted(pair, reverse=True)]
        keep = set("".join(pending)) | set(output)
        rest = "".join(dict.fromkeys(c for part in chosen for c in part if c in keep))
        theirs.append((chosen, rest))
        pending.append(rest)
    assert cost(ours, size) <= cost(theirs, size)
    assert len(ours) == len(shapes) - 1


def test_narrow_integers_do_not_wrap():
    arrays: list[Any] = [np.full((3, 4), 100, np.int8), np.full((4, 5), 100, np.int8), np.full((5,), 0.5, np.float32)]
    graph, inputs = einsum_graph("ij,jk,k->i", arrays)
    out = FAST.execute(graph, inputs)["y"]
    assert out.dtype == np.float32
    np.testing.assert_array_equal(out, np.full(3, 100 * 100 * 0.5 * 20, np.float32))
    np.testing.assert_array_equal(out, SLOW.execute(graph, inputs)["y"])
    np.testing.assert_array_equal(out, np.einsum("ij,jk,k->i", *arrays))


def test_half_precision_is_rounded_once():
    arrays: list[Any] = [
        np.full((2, 64), 64, np.float16),
        np.full((64, 64), 64, np.float16),
        np.full((64,), 2.0**-12, np.float16),
    ]
    graph, inputs = einsum_graph("ij,jk,k->i", arrays)
    out = FAST.execute(graph, inputs)["y"]
    assert out.dtype == np.float16
    np.testing.assert_array_equal(out, np.full(2, 64 * 64 * 64 * 64 * 2.0**-12, np.float16))


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("bool", "bool", "bool"), "bool"),
        (("bool", "bool", "float32"), "float32"),
        (("int8", "uint8", "int8"), "int16"),
        (("float16", "float32", "float64"), "float64"),
        (("int16", "uint16", "float32"), "float32"),
    ],
)
def test_dtypes_are_numpys(dtypes: tuple[str, ...], expected: str):
    arrays: list[Any] = [np.ones((2, 2), d) for d in dtypes]
    graph, inputs = einsum_graph("ij,jk,kl->il", arrays)
    whole = np.einsum("ij,jk,kl->il", *arrays)
    assert whole.dtype == expected
    for executor in (FAST, SLOW):
        out = executor.execute(graph, inputs)["y"]
        assert out.dtype == expected
        np.testing.assert_array_equal(out, whole)


def test_an_ellipsis_and_a_diagonal_within_a_chain():
    rng = np.random.default_rng(3)
    arrays = [rng.random(s) for s in ((5, 2, 3, 3), (2, 3, 4), (1, 4, 6))]
    equation = "...ii,...ij,...jk->...k"
    graph, inputs = einsum_graph(equation, arrays)
    np.testing.assert_allclose(FAST.execute(graph, inputs)["y"], np.einsum(equation, *arrays), rtol=1e-12)


def test_bodies_are_ordered_too():
    b = GraphBuilder()
    x = b.input("x", ("n", "n"))
    graph = b.build(y=b.scan(lambda c, _: (b.einsum("ij,jk,kl->il", c, x, x) * 0.1, None), x, (), length=3)[0])
    plan = FAST.plan(graph, {"x": np.ones((4, 4))})
    (body,) = next(step.bodies for step in plan.steps if step.bodies)
    assert all(len(step.reads) <= 2 for step in body.steps)
    rng = np.random.default_rng(0)
    X = rng.random((4, 4))
    expected = X
    for _ in range(3):
        expected = expected @ X @ X * 0.1
    np.testing.assert_allclose(FAST.execute(graph, {"x": X})["y"], expected)


def test_many_operands():
    n = 40
    rng = np.random.default_rng(0)
    arrays = [rng.random((2, 2)) for _ in range(n)]
    equation = ",".join(spec.symbol(i) + spec.symbol(i + 1) for i in range(n)) + "->" + spec.symbol(0) + spec.symbol(n)
    graph, inputs = einsum_graph(equation, arrays)
    np.testing.assert_allclose(FAST.execute(graph, inputs)["y"], np.linalg.multi_dot(arrays))


# the cost of an order


def every_path(count: int) -> Iterator[list[tuple[int, int]]]:
    if count == 1:
        yield []
        return
    for pair in itertools.combinations(range(count), 2):
        for rest in every_path(count - 1):
            yield [pair, *rest]


def cost_by_hand(path: list[Any], equation: str, size: dict[str, int], algebra: str, dtype: str) -> int:
    inputs, output = equation.split("->")
    pending, total = [set(part) for part in inputs.split(",")], 0
    for pair in path:
        a, b = (pending.pop(n) for n in sorted(pair, reverse=True))
        left = (a | b) & set(output).union(*pending)
        if algebra != "real":  # an index that only one of them has is reduced before they meet
            for one, other in ((a, b), (b, a)):
                if one - other - left:
                    total += pair_cost(algebra, dtype, math.prod(size[c] for c in one), False, 0)
            a, b = a & (b | left), b & (a | left)
        points, elements = (math.prod(size[c] for c in part) for part in (a | b, left))
        total += pair_cost(algebra, dtype, points, bool((a | b) - left), elements if pending else 0)
        pending.append(left)
    return total


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True), min_size=3, max_size=5),
    st.sets(st.sampled_from("abcde"), max_size=3),
    st.lists(st.sampled_from([1, 2, 30, 700, 5000]), min_size=5, max_size=5),
    st.sampled_from([("real", "float32"), ("real", "int64"), ("boolean", "bool"), ("min_plus", "float64")]),
)
def test_no_order_is_cheaper(parts: list[list[str]], output: set[str], sizes: list[int], kind: tuple[str, str]):
    equation = ",".join(map("".join, parts)) + "->" + "".join(sorted(output & set().union(*parts)))
    size = dict(zip("abcde", sizes, strict=True))
    inputs = [tuple(part) for part in parts]
    path = best_path(inputs, tuple(equation.split("->")[1]), size, *kind)
    best = min(cost_by_hand(each, equation, size, *kind) for each in every_path(len(parts)))
    assert cost_by_hand(path, equation, size, *kind) == best


def test_bits_make_products_cheap_and_joins_dear():
    labels, size = [("a", "c"), ("a",), ("b",)], {"a": 10, "b": 10, "c": 1000}
    assert best_path(labels, ("b", "c"), size, "real", "float32")[0] == (0, 1)
    # a join of ac and a takes 10,000 bytes; on packed bits the product with the smaller join is nothing beside it
    assert best_path(labels, ("b", "c"), size, "boolean", "bool")[0] == (1, 2)


def test_a_large_result_between_costs_its_bytes(monkeypatch: pytest.MonkeyPatch):
    labels: list[Any] = [("b", "a"), ("a", "d"), ("c", "a"), ("c", "d")]
    size = {"a": 3000, "b": 10, "c": 1000, "d": 2}
    assert best_path(labels, ("b", "c"), size, "real", "float32")[0] == (0, 1)  # more flops, and nothing of c by a
    monkeypatch.setattr(contraction_paths, "BYTE", 0)
    assert best_path(labels, ("b", "c"), size, "real", "float32")[0] == (1, 3)
    small, large = (pair_cost("real", "float32", n, False, n) for n in (1 << 18, 1 << 20))
    assert small == BLAS << 18
    assert large == 4 * small  # with nothing to pay for bytes


def test_few_operands_need_no_library_and_many_take_the_best_proposal():
    chain = [(spec.symbol(n), spec.symbol(n + 1)) for n in range(11)]
    size = {spec.symbol(n): (3 if n % 2 else 50) for n in range(12)}
    for algebra, dtype in (("real", "float64"), ("boolean", "bool"), ("max_min", "float32")):
        path = best_path(chain, (chain[0][0], chain[-1][1]), size, algebra, dtype)
        assert len(path) == 10
        assert all(len(pair) == 2 for pair in path)


def test_sizes_beyond_any_float():
    labels = [(c, d) for c, d in itertools.pairwise("abcdefgh")]
    assert len(best_path(labels, ("a", "h"), dict.fromkeys("abcdefgh", 10**60), "boolean", "bool")) == 6
