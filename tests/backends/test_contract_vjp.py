"""Gradients of contractions: finite differences, ties, diagonals, broadcast factors, blocks and memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends import contract
from tensorlogic.ir.algebra import ALGEBRAS

DIFFERENTIABLE = [name for name, row in ALGEBRAS.items() if row.differentiable]
SIZES = {"a": 2, "b": 3, "c": 4, "i": 3, "j": 4, "k": 2, "I": 1, "J": 1}
EQUATIONS = [
    "i->", "i->i", "ij->i", "ij->ji", "ij,jk->ik", "ij,jk->ki", "ij,kj->ik", "ij,ij->", "ij,j->ij", "i,j->ij",
    "ii->i", "ii->", "ii,ij->j", "iij,jk->ik", "iji,j->i", "Ij,ij->i", "ij,Jk->ik", "I,i->", "ab,bc,c->a",
    "ab,bc,ca->", "a,b,c->abc", "aab,bc,cc->ab", "ij,->i", "...i,ij->...j",
]  # fmt: skip

MANY_FACTORS = [name for name in DIFFERENTIABLE if not name.endswith("residuum")]  # an implication has two sides
CASES = [(e, a) for e in EQUATIONS for a in DIFFERENTIABLE if a in MANY_FACTORS or e.count(",") == 1]


def _lower(equation: str) -> str:
    return equation.translate(str.maketrans("IJ", "ij"))


def _operands(equation: str, seed: int = 0) -> list[Any]:
    """Return factors in (0, 1), far enough from each other that no finite difference meets a tie."""
    rng = np.random.default_rng(seed)
    shapes = []
    for part in equation.split("->")[0].split(","):
        shape: list[int] = []
        for x in part.replace("...", "."):
            shape += [2, 2] if x == "." else [SIZES[x]]
        shapes.append(shape)
    total = sum(int(np.prod(s)) for s in shapes)
    pool = list(rng.permutation(np.linspace(0.3, 0.97, total) + rng.uniform(0, 0.3 / total, total)))
    return [np.array([pool.pop() for _ in range(int(np.prod(s)))]).reshape(s) for s in shapes]


def _forward(equation: str, algebra: str, operands: list[Any]) -> Any:
    b = tl.GraphBuilder()
    tensors = [b.input(f"x{n}", x.shape) for n, x in enumerate(operands)]
    graph = b.build(y=b.einsum(equation, *tensors, algebra=algebra))
    return tl.Executor().execute(graph, {f"x{n}": x for n, x in enumerate(operands)})["y"]


def _gradients(equation: str, algebra: str, operands: list[Any], cotangent: Any, backend: str = "numpy") -> list[Any]:
    b = tl.GraphBuilder()
    tensors = [b.input(f"x{n}", x.shape) for n, x in enumerate(operands)]
    y = b.einsum(equation, *tensors, algebra=algebra)
    g = b.input("g", np.shape(cotangent))
    wanted = {f"d{n}": b.contract_vjp(equation, algebra, n, *tensors, y, g) for n in range(len(tensors))}
    given = {f"x{n}": x for n, x in enumerate(operands)} | {"g": cotangent}
    return list(tl.Executor(backend).execute(b.build(wanted), given))


def _differences(equation: str, algebra: str, operands: list[Any], cotangent: Any, step: float = 1e-6) -> list[Any]:
    found = []
    for n, x in enumerate(operands):
        slope = np.zeros_like(x)
        for index in np.ndindex(x.shape):
            ends = []
            for sign in (1, -1):
                moved = [o.copy() for o in operands]
                moved[n][index] += sign * step
                ends.append(np.sum(_forward(equation, algebra, moved) * cotangent))
            slope[index] = (ends[0] - ends[1]) / (2 * step)
        found.append(slope)
    return found


@pytest.mark.parametrize(("equation", "algebra"), CASES)
def test_gradient_is_the_finite_difference(equation: str, algebra: str) -> None:
    operands = _operands(equation)
    lowered = _lower(equation)
    cotangent = np.random.default_rng(1).uniform(0.5, 2, np.shape(_forward(lowered, algebra, operands)))
    got = _gradients(lowered, algebra, operands, cotangent)
    for g, x, d in zip(got, operands, _differences(lowered, algebra, operands, cotangent), strict=True):
        assert g.shape == x.shape
        assert g.dtype == np.float64
        np.testing.assert_allclose(g, d, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("block", [1, 3, 17])
@pytest.mark.parametrize("algebra", DIFFERENTIABLE)
def test_blocks_do_not_change_the_gradient(monkeypatch: pytest.MonkeyPatch, algebra: str, block: int) -> None:
    for equation in ("ij,jk->ik", "ab,bc,ca->", "iij,jk->ik", "ij,Jk->ik", "ij->i"):
        if (equation, algebra) not in CASES:
            continue
        operands, lowered = [np.round(x * 4) / 4 for x in _operands(equation, 2)], _lower(equation)  # with ties
        cotangent = np.ones(np.shape(_forward(lowered, algebra, operands)))
        whole = _gradients(lowered, algebra, operands, cotangent)
        monkeypatch.setattr(contract, "BLOCK", block)
        cut = _gradients(lowered, algebra, operands, cotangent)
        monkeypatch.undo()
        for a, b in zip(whole, cut, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)
        for a, b in zip(whole, _gradients(lowered, algebra, operands, cotangent, "reference"), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


# ties are shared evenly


def test_a_maximum_that_occurs_twice_is_shared() -> None:
    for algebra in ("max_min", "max_plus", "max_product", "lukasiewicz"):
        (g,) = _gradients("i->", algebra, [np.array([0.25, 0.75, 0.75])], np.array(6.0))
        np.testing.assert_array_equal(g, [0, 3, 3])
    (g,) = _gradients("i->", "min_plus", [np.array([0.25, 0.75, 0.25])], np.array(6.0))
    np.testing.assert_array_equal(g, [3, 0, 3])


def test_equal_factors_of_a_minimum_are_shared() -> None:
    x, y = np.array([0.5, 0.2]), np.array([0.5, 0.9])
    gx, gy = _gradients("i,i->i", "max_min", [x, y], np.array([8.0, 8.0]))
    np.testing.assert_array_equal(gx, [4, 8])
    np.testing.assert_array_equal(gy, [4, 0])


def test_tied_terms_of_equal_factors_are_shared_twice() -> None:
    x = np.array([0.5, 0.5])
    gx, gy = _gradients("i,i->", "max_min", [x, x], np.array(8.0))
    np.testing.assert_array_equal(gx, [2, 2])
    np.testing.assert_array_equal(gy, [2, 2])


def test_tied_products_share_by_term() -> None:
    gx, gy = _gradients("i,i->", "max_product", [np.array([0.5, 0.25]), np.array([0.5, 1.0])], np.array(4.0))
    np.testing.assert_array_equal(gx, [1, 2])
    np.testing.assert_array_equal(gy, [1, 0.5])


def test_lukasiewicz_has_no_slope_where_it_is_flat() -> None:
    gx, gy = _gradients("i,i->i", "lukasiewicz", [np.array([0.25, 0.75]), np.array([0.5, 0.5])], np.ones(2))
    np.testing.assert_array_equal(gx, [0, 1])
    np.testing.assert_array_equal(gy, [0, 1])


def test_noisy_or_with_certain_terms() -> None:
    (g,) = _gradients("i->", "noisy_or", [np.array([1.0, 0.5, 0.5])], np.array(1.0))
    np.testing.assert_array_equal(g, [0.25, 0, 0])
    (g,) = _gradients("i->", "noisy_or", [np.array([1.0, 1.0, 0.5])], np.array(1.0))
    np.testing.assert_array_equal(g, [0, 0, 0])


def test_log_sum_exp_of_impossible_terms() -> None:
    (g,) = _gradients("ij->i", "log_sum_exp", [np.array([[-np.inf, -np.inf], [-np.inf, 0.0]])], np.ones(2))
    np.testing.assert_array_equal(g, [[0, 0], [0, 1]])


@pytest.mark.parametrize("algebra", [a for a in MANY_FACTORS if ALGEBRAS[a].reduce in ("max", "min")])
def test_the_weights_of_a_tie_always_add_up(algebra: str) -> None:
    x = np.random.default_rng(3).integers(0, 3, (6, 5)) / 2
    (g,) = _gradients("ij->i", algebra, [x], np.ones(6))
    np.testing.assert_allclose(g.sum(1), 1)


# shapes, dtypes and bad input


@pytest.mark.parametrize("algebra", DIFFERENTIABLE)
@pytest.mark.parametrize(("equation", "shapes"), [("ij,jk->ik", [(2, 0), (0, 3)]), ("zi,ij->zj", [(0, 2), (2, 3)])])
def test_empty_axes(algebra: str, equation: str, shapes: list[tuple[int, ...]]) -> None:
    operands = [np.full(s, 0.5) for s in shapes]
    cotangent = np.ones(np.shape(_forward(equation, algebra, operands)))
    for g, x in zip(_gradients(equation, algebra, operands, cotangent), operands, strict=True):
        assert g.shape == x.shape
        assert not g.any()


@pytest.mark.parametrize("algebra", DIFFERENTIABLE)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_the_gradient_has_the_factors_dtype(algebra: str, dtype: str) -> None:
    operands = [x.astype(dtype).astype(np.float64) for x in _operands("ij,jk->ik", 4)]  # the same terms win in both
    cotangent = np.ones((3, 2))
    exact = _gradients("ij,jk->ik", algebra, operands, cotangent)
    narrow = _gradients("ij,jk->ik", algebra, [x.astype(dtype) for x in operands], cotangent.astype(dtype))
    for a, b in zip(exact, narrow, strict=True):
        assert b.dtype == dtype
        np.testing.assert_allclose(a, b, rtol=0.05 if dtype == "float16" else 1e-4, atol=0.02)


def test_what_cannot_be_asked() -> None:
    b = tl.GraphBuilder()
    x, y, g = b.input("x", (2, 3)), b.input("y", (2,)), b.input("g", (2,))
    with pytest.raises(tl.GraphError, match="boolean algebra has no gradient"):
        b.contract_vjp("ij->i", "boolean", 0, x, y, g)
    with pytest.raises(tl.GraphError, match="no factor 1"):
        b.contract_vjp("ij->i", "max_min", 1, x, y, g)
    with pytest.raises(tl.GraphError, match="takes 1 factors, the result and its cotangent"):
        b.contract_vjp("ij->i", "max_min", 0, x, y)
    with pytest.raises(tl.ShapeError, match="equal shapes"):
        b.contract_vjp("ij->j", "max_min", 0, x, y, g)


@pytest.mark.parametrize("algebra", ["max_min", "min_plus", "noisy_or", "lukasiewicz", "log_sum_exp"])
def test_no_mask_over_the_whole_index_space(algebra: str, measured: Any) -> None:
    n = 300
    rng = np.random.default_rng(5)
    x, y = rng.random((n, n)), rng.random((n, n))
    b = tl.GraphBuilder()
    s, t, r, g = (b.input(name, (n, n)) for name in "xyrg")
    graph = b.build(d=b.contract_vjp("ij,jk->ik", algebra, 0, s, t, r, g))
    result = _forward("ij,jk->ik", algebra, [x, y])
    executor = tl.Executor()
    given = {"x": x, "y": y, "r": result, "g": np.ones((n, n))}
    executor.plan(graph, given)
    _, peak = measured(executor.execute, graph, given)
    assert peak < n**3  # bytes: an eighth of one float64 array over the index space
