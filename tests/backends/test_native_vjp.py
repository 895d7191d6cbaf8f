"""Gradients of contractions as native kernels, beside the NumPy path and finite differences."""

from __future__ import annotations

import sys
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.backends import threads
from tensorlogic.backends.contract import bind_contraction
from tensorlogic.backends.contract_vjp import bind_contract_vjp
from tensorlogic.backends.native import bind, semiring, support, vjp
from tensorlogic.ir import ops
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.ir.types import TensorShape, TensorType
from tensorlogic.plan import groups
from tensorlogic.plan.cost import contraction
from tensorlogic.runtime import programs

pytestmark = pytest.mark.skipif(not support.usable(), reason="numba cannot be used here")

NAMES = sorted(semiring.ROWS)
EXTREMES = [name for name in NAMES if ALGEBRAS[name].reduce in ("max", "min")]
# matrix forms in every order, batches, diagonals, sizes of 1 that broadcast, several reduced indices, no results
EQUATIONS = """
ij,jk->ik ij,kj->ki ji,jk->ki ij,j->i j,kj->k bij,bjk->bik bij,jbk->kbi ij,ij->i ij,ij->j ij,ji-> i,i-> aij,ajk->ik
iij,jk->ik Ij,jk->ik ijab,abk->kij
""".split()
SIZES = {"i": 9, "j": 37, "k": 11, "l": 3, "m": 2, "a": 4, "b": 5}


def _bound(equation: str, algebra: str, a: Any, b: Any, wrt: int) -> tuple[Any, Any, Any]:
    """Return the native kernel, the NumPy path's, and what computes the result."""
    form = contraction(equation, algebra, [TensorShape(x.shape) for x in (a, b)])
    factors = [TensorType(TensorShape(x.shape), x.dtype.name) for x in (a, b)]
    made = TensorType(TensorShape([form.sizes[x] for x in form.spec.output]), np.result_type(a, b).name)
    op, args = ops.ContractVJP(equation, algebra, wrt), [*factors, made, made]
    native = vjp.bind_native_vjp(op, form, factors[wrt], args)
    forward = bind_contraction(ops.Einsum(equation, algebra), form, factors, made)
    return native, bind_contract_vjp(op, form, factors[wrt], args), forward


def _operands(equation: str, dtype: str, seed: int = 0, sizes: dict[str, int] | None = None) -> list[Any]:
    rng = np.random.default_rng(seed)
    sizes = SIZES if sizes is None else sizes
    shapes = [[1 if x.isupper() else sizes[x] for x in part] for part in equation.split("->")[0].split(",")]
    return [rng.random(shape).astype(dtype) for shape in shapes]


def _agree(equation: str, algebra: str, a: Any, b: Any, cotangent: Any = None) -> list[Any]:
    """Compare the gradients for both factors with the NumPy path's, and return them."""
    found = []
    for wrt in (0, 1):
        native, by_numpy, forward = _bound(equation.lower(), algebra, a, b, wrt)
        with np.errstate(all="ignore"):  # as the backend's guard
            y = np.asarray(forward(a, b))
            g = np.random.default_rng(1).normal(size=y.shape).astype(y.dtype) if cotangent is None else cotangent
            expected, got = by_numpy(a, b, y, g), native(a, b, y, g)
        assert got.shape == expected.shape == (a, b)[wrt].shape
        assert got.dtype == expected.dtype
        # sums of positive and negative shares, in another order; results of log-sum-exp are rounded themselves
        near = (256 if ALGEBRAS[algebra].reduce in ("max", "min") else 2048) * np.finfo(got.dtype).eps
        finite = np.abs(expected[np.isfinite(expected)])
        np.testing.assert_allclose(got, expected, rtol=near, atol=near * max(1, finite.max(initial=0)))
        found.append(got)
    return found


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algebra", NAMES)
def test_every_form_answers_as_the_numpy_path(algebra: str, dtype: str) -> None:
    for equation in EQUATIONS:
        _agree(equation, algebra, *_operands(equation, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algebra", NAMES)
def test_ties_are_shared_as_on_the_numpy_path(algebra: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    for equation, first, second in [("ij,jk->ik", (7, 300), (300, 9)), ("ij,j->i", (20, 130), (130,))]:
        a, b = (rng.integers(0, 4, shape).astype(dtype) / 4 for shape in (first, second))
        _agree(equation, algebra, a, b)


@pytest.mark.parametrize("algebra", NAMES)
@pytest.mark.parametrize("inner", [1, 2, 31, 32, 33, 127, 128, 129, 160, 161, 255, 256, 300])
def test_any_number_of_terms(algebra: str, inner: int) -> None:
    _agree("ij,jk->ik", algebra, *_operands("ij,jk->ik", "float32", seed=inner, sizes={"i": 3, "j": inner, "k": 5}))


@pytest.mark.parametrize("algebra", NAMES)
def test_the_extreme_may_be_anywhere(algebra: str) -> None:
    """Each place of a row of 170 terms is the extreme once, in a stretch that is whole or not."""
    size = 170
    least, most = (0.25, 0.75) if ALGEBRAS[algebra].reduce != "min" else (0.75, 0.25)
    a = np.where(np.eye(size, dtype=bool), most, least)
    b = np.full((size, 2), 0.5 if ALGEBRAS[algebra].combine != "lukasiewicz" else 1.0)
    d, _ = _agree("ij,jk->ik", algebra, a, b, np.ones((size, 2)))
    if ALGEBRAS[algebra].combine in ("multiply", "add", "lukasiewicz") and algebra in EXTREMES:
        assert ((d != 0) == np.eye(size, dtype=bool)).all()


@pytest.mark.parametrize("algebra", NAMES)
def test_gradient_is_the_finite_difference(algebra: str) -> None:
    rng = np.random.default_rng(3)
    a, b = np.split(rng.permutation(np.linspace(0.3, 0.97, 60)), [24])  # no two are near enough for a tie
    a, b, step = a.reshape(4, 6), b.reshape(6, 6), 1e-6
    for wrt in (0, 1):
        native, _, forward = _bound("ij,jk->ik", algebra, a, b, wrt)
        g = rng.uniform(0.5, 2, (4, 6))
        got = native(a, b, forward(a, b), g)
        for index in np.ndindex(got.shape):
            ends = []
            for sign in (1, -1):
                moved = [a.copy(), b.copy()]
                moved[wrt][index] += sign * step
                ends.append(np.sum(forward(*moved) * g))
            assert got[index] == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=1e-5, abs=1e-7)


def _special(algebra: str, dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Factors among which there is everything that the algebra's domain allows."""
    domain = ALGEBRAS[algebra].domain
    strange = [0, 1, -1, 1e-30, np.inf, -np.inf, np.nan] if domain is None else [0, 1, np.nan]
    strange += [2, np.inf] if domain == (0, np.inf) else []
    return np.where(rng.random(shape) < 0.01, rng.choice(strange, shape), rng.random(shape)).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algebra", NAMES)
def test_nan_and_infinity_are_as_on_the_numpy_path(algebra: str, dtype: str) -> None:
    rng = np.random.default_rng(4)
    for equation, first, second in [("ij,jk->ik", (12, 50), (50, 10)), ("bi,bi->b", (40, 30), (40, 30))]:
        for cotangents in ([1, -2, 0], [1, 0, np.inf], [1, np.nan, -1, 2, 3]):
            a, b = _special(algebra, dtype, first, rng), _special(algebra, dtype, second, rng)
            shape = (12, 10) if equation[0] == "i" else (40,)
            g = np.where(rng.random(shape) < 0.9, 0.5, rng.choice(cotangents, shape)).astype(dtype)
            _agree(equation, algebra, a, b, g)


@pytest.mark.parametrize("algebra", ["min_plus", "max_plus", "log_sum_exp"])
def test_places_that_cannot_be_reached(algebra: str) -> None:
    zero, rng = ALGEBRAS[algebra].zero, np.random.default_rng(5)
    a, b = (np.where(rng.random((60, 60)) < 0.97, zero, rng.normal(size=(60, 60))) for _ in range(2))
    d, _ = _agree("ij,jk->ik", algebra, a, b)
    assert np.isfinite(d).all()
    assert d.any()


@pytest.mark.parametrize("spread", [1.0, 80.0, 5000.0])
def test_log_sum_exp_of_terms_that_lie_apart(spread: float) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.uniform(-spread, spread, (30, 30)) for _ in range(2))
    first, _ = _agree("ij,jk->ik", "log_sum_exp", a, b, np.ones((30, 30)))
    np.testing.assert_allclose(first.sum(), 900)  # what a result gives to its terms adds up to 1
    far = np.where(np.eye(30, dtype=bool), 0.0, -900.0)  # no term is near the sum of the largest
    _agree("ij,jk->ik", "log_sum_exp", far, np.roll(far, 1, 0) - 50 * rng.random((30, 30)))
    _agree("ij,jk->ik", "log_sum_exp", a, b, np.full((30, 30), 1e200))


def test_noisy_or_with_certain_terms() -> None:
    a = np.array([[1.0, 0.5, 0.5], [1.0, 1.0, 0.5], [0.5, 0.25, 0.0]])
    d, _ = _agree("ij,jk->ik", "noisy_or", a, np.ones((3, 1)), np.ones((3, 1)))
    np.testing.assert_array_equal(d, [[0.25, 0, 0], [0, 0, 0], [0.75, 0.5, 0.375]])
    many = np.full((4, 3000), 0.9, "float32")  # the product of what they leave is less than any number
    assert not _agree("ij,jk->ik", "noisy_or", many, np.ones((3000, 2), "float32"))[0].any()


@pytest.mark.parametrize("algebra", NAMES)
def test_operands_may_have_any_strides_and_need_not_be_writable(algebra: str) -> None:
    rng = np.random.default_rng(7)
    wide = rng.random((40, 45)).astype("float32")
    fixed = rng.random((20, 45)).astype("float32")
    fixed.flags.writeable = False
    for a in (wide[::2], wide[::-2], fixed):
        for b in (wide.T[:, :9], np.asfortranarray(wide.T), np.broadcast_to(wide[0, :, None], (45, 7))):
            _agree("ij,jk->ik", algebra, a, b)


@pytest.mark.parametrize("algebra", NAMES)
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ji,kj->ki", "iij,jk->ik", "i,i->"])
def test_a_gradient_is_written_where_out_says(algebra: str, equation: str) -> None:
    a, b = _operands(equation, "float32", seed=8)
    native, _, forward = _bound(equation, algebra, a, b, 0)
    y = np.asarray(forward(a, b))
    out = np.full(a.shape, np.nan, "float32")
    assert native(a, b, y, np.ones_like(y), out=out) is out
    np.testing.assert_array_equal(out, native(a, b, y, np.ones_like(y)))


def test_factors_are_cast_to_the_dtype_of_the_one_that_is_asked_for() -> None:
    rng = np.random.default_rng(9)
    a, b = rng.random((5, 40)), rng.random((40, 6)).astype("float32")
    first, second = _agree("ij,jk->ik", "max_product", a, b)
    assert (first.dtype, second.dtype) == (np.float64, np.float32)


@pytest.mark.parametrize(
    ("algebra", "equation", "shapes", "dtype"),
    [
        ("real", "ij,jk->ik", [(2, 3), (3, 4)], "float32"),
        ("max_min", "ij,jk->ik", [(2, 3), (3, 4)], "float16"),
        ("max_min", "ij,jk->ik", [(2, 3), (3, 4)], "int32"),
        ("max_min", "ij,jk->ik", [(2, 0), (0, 4)], "float32"),
        ("max_min", "ij,jk->ik", [(0, 3), (3, 4)], "float32"),
        ("max_min", "ij,jk->i", [(2, 3), (3, 4)], "float32"),
        ("noisy_or", "i,j->ij", [(2,), (3,)], "float32"),
    ],
)
def test_what_has_no_native_kernel(algebra: str, equation: str, shapes: list[tuple[int, int]], dtype: str) -> None:
    a, b = (np.ones(s, dtype) for s in shapes)
    assert _bound(equation, algebra, a, b, 0)[0] is None


@pytest.mark.parametrize("algebra", ["max_product", "noisy_or", "log_sum_exp"])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "j,jk->k", "ij,j->i"])
def test_threads_share_rows_and_results(monkeypatch: pytest.MonkeyPatch, algebra: str, equation: str) -> None:
    a, b = _operands(equation, "float64", seed=10, sizes={"i": 25, "j": 130, "k": 40})
    if algebra == "log_sum_exp":
        a[..., ::2] -= 600  # term by term
        b[1::2] -= 600
    alone = _agree(equation, algebra, a, b)
    shared = []
    monkeypatch.setattr(vjp, "allowed", lambda: 3)
    real = threads.together
    for module in (threads, vjp):
        monkeypatch.setattr(module, "together", lambda calls, n: (shared.append(len(calls)), real(calls, n)))
    for one, many in zip(alone, _agree(equation, algebra, a, b), strict=True):
        np.testing.assert_allclose(many, one, rtol=1e-12, atol=1e-12)
    assert 3 in shared


def test_four_threads_at_once() -> None:
    names = ["max_product", "max_min", "noisy_or", "log_sum_exp"]
    a, b = _operands("ij,jk->ik", "float32", seed=11)
    kernels, given = [], []
    for name in names:
        native, _, forward = _bound("ij,jk->ik", name, a, b, 1)
        kernels.append(threads.with_threads(native, 2))
        given.append((a, b, forward(a, b), np.ones((9, 11), "float32")))
    expected = [kernel(*args) for kernel, args in zip(kernels, given, strict=True)]
    together, wrong = Barrier(4), []

    def work(n: int) -> None:
        together.wait()
        for _ in range(20):
            if not np.array_equal(kernels[n](*given[n]), expected[n]):
                wrong.append(names[n])

    workers = [Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("algebra", ["max_product", "max_min", "noisy_or", "log_sum_exp", "goguen_residuum"])
def test_memory_is_that_of_the_factors_and_the_result(algebra: str, measured: Any) -> None:
    n = 1500 if algebra in ("max_product", "max_min") else 500
    a, b = _operands("ij,jk->ik", "float32", seed=12, sizes=dict.fromkeys("ijk", n))
    for wrt in (0, 1):
        native, _, _ = _bound("ij,jk->ik", algebra, a, b, wrt)
        y, g = semiring_result(algebra, a, b), np.ones((n, n), "float32")
        native(a, b, y, g)
        _, peak = measured(native, a, b, y, g)
        assert peak < (6 if algebra != "log_sum_exp" else 14) * 4 * n * n  # in float64 there


def semiring_result(algebra: str, a: Any, b: Any) -> Any:
    form = contraction("ij,jk->ik", algebra, [TensorShape(x.shape) for x in (a, b)])
    types = [TensorType(TensorShape(x.shape), x.dtype.name) for x in (a, b)]
    kernel = semiring.bind_semiring(ops.Einsum("ij,jk->ik", algebra), form, types, types[0])
    assert kernel is not None
    return kernel(a, b)


# how it comes into a plan


def _graph(n: int, algebra: str, *, twice: bool = False) -> Any:
    b = tl.GraphBuilder()
    x, y = b.input("x", (n, n), "float32"), b.input("y", (n, n), "float32")
    y = x if twice else y
    r, g = b.input("r", (n, n), "float32"), b.input("g", (n, n), "float32")
    return b.build(d=b.contract_vjp("ij,jk->ik", algebra, 0, x, y, r, g))


def _given(n: int, algebra: str, *, twice: bool = False) -> dict[str, Any]:
    x, y = _operands("ij,jk->ik", "float32", seed=13, sizes=dict.fromkeys("ijk", n))
    y = x if twice else y
    found = {"x": x, "y": y, "r": semiring_result(algebra, x, y), "g": np.ones((n, n), "float32")}
    return {name: v for name, v in found.items() if name != "y" or not twice}


@pytest.mark.parametrize("twice", [False, True])
@pytest.mark.parametrize("algebra", ["max_product", "noisy_or"])
def test_a_compiled_graph_runs_it(monkeypatch: pytest.MonkeyPatch, algebra: str, twice: bool) -> None:
    graph, given = _graph(40, algebra, twice=twice), _given(40, algebra, twice=twice)
    made = []
    monkeypatch.setattr(
        bind.vjp, "bind_native_vjp", lambda *args, real=vjp.bind_native_vjp: made.append(args[0]) or real(*args)
    )
    executor = tl.Executor()
    config = tl.CompilationConfig(optimization_level=tl.OptimizationLevel.AGGRESSIVE)
    compiled = executor.compile_graph(graph, config)
    got = executor.execute_compiled(compiled, given)["d"]
    np.testing.assert_allclose(got, tl.Executor().execute(graph, given)["d"], rtol=1e-4, atol=1e-5)
    assert {op.wrt for op in made} == {0}


def test_a_contraction_of_a_factor_with_itself_runs_natively_too() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (40, 40), "float32")
    graph = b.build(y=b.einsum("ij,jk->ik", x, x, algebra="max_min"))
    (a, _) = _operands("ij,jk->ik", "float32", seed=14, sizes=dict.fromkeys("ijk", 40))
    executor = tl.Executor()
    compiled = executor.compile_graph(graph, tl.CompilationConfig(optimization_level=tl.OptimizationLevel.AGGRESSIVE))
    np.testing.assert_array_equal(
        executor.execute_compiled(compiled, {"x": a})["y"], executor.execute(graph, {"x": a})["y"]
    )


def test_a_contraction_with_a_number_runs_natively_too() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (200, 300), "float32")
    graph = b.build(y=b.einsum("ij,->i", x, 0.5, algebra="noisy_or"))
    given = {"x": np.random.default_rng(15).random((200, 300)).astype("float32") / 100}
    executor = tl.Executor()
    config = tl.CompilationConfig(optimization_level=tl.OptimizationLevel.AGGRESSIVE)
    got = executor.execute_compiled(executor.compile_graph(graph, config), given)["y"]
    np.testing.assert_allclose(got, executor.execute(graph, given)["y"], rtol=1e-5)


def test_a_plan_has_it_from_the_first_call_or_never(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, given = _graph(40, "max_min"), _given(40, "max_min")
    made = []
    monkeypatch.setattr(vjp, "bind_native_vjp", lambda *args, real=vjp.bind_native_vjp: made.append(1) or real(*args))
    small = [tl.Executor().execute(graph, given)["d"] for _ in range(3)]
    assert not made
    monkeypatch.setattr(groups, "PAYS_REORDERED", 1e-4)
    monkeypatch.setattr(programs, "QUICK", 0)
    large = tl.Executor().execute(graph, given)["d"]
    assert made
    np.testing.assert_allclose(large, small[0], rtol=1e-5)


def test_what_is_worth_a_kernel() -> None:
    def types(n: int) -> list[TensorType]:
        return [TensorType(TensorShape((n, n)), "float32")] * 4

    op = ops.ContractVJP("ij,jk->ik", "max_min", 0)
    assert vjp.worth(op, types(64), types(64)[0])
    assert not vjp.worth(op, types(8), types(8)[0])
    short = [TensorType(TensorShape(s), "float32") for s in ((400, 2), (2, 400), (400, 400), (400, 400))]
    assert not vjp.worth(op, short, short[0])
    vjp.make_ready(op, "float32")
    assert ("fast", "minimum", "max", 0, "float32") in sys.modules[f"{vjp.__package__}.vjp_kernels"]._entries


numbers = st.sampled_from([0.0, 0.25, 0.5, 0.5, 0.75, 1.0, float("nan")])


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_small_factors_with_ties_and_nan(data: st.DataObject) -> None:
    algebra = data.draw(st.sampled_from(NAMES))
    i, j, k = (data.draw(st.integers(1, 4)) for _ in range(3))
    draw = [np.array(data.draw(st.lists(numbers, min_size=n, max_size=n))) for n in (i * j, j * k, i * k)]
    _agree("ij,jk->ik", algebra, draw[0].reshape(i, j), draw[1].reshape(j, k), draw[2].reshape(i, k))
