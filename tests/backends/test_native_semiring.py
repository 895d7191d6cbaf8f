"""Contractions in other algebras as native kernels, beside the NumPy path and the definitions."""

from __future__ import annotations

import sys
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorlogic.backends import reference, threads
from tensorlogic.backends.contract import bind_contraction
from tensorlogic.backends.native import semiring, support
from tensorlogic.errors import GraphError
from tensorlogic.ir import ops
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.ir.types import TensorShape, TensorType
from tensorlogic.plan.cost import Contraction, contraction

pytestmark = pytest.mark.skipif(not support.usable(), reason="numba cannot be used here")

NAMES = sorted(semiring.ROWS)
EXACT = [name for name in NAMES if ALGEBRAS[name].reduce in ("max", "min")]
# matrix forms in every order, batches, diagonals, sizes of 1 that broadcast, indices that one factor has alone, no results
EQUATIONS = """
ij,jk->ik ij,kj->ik ji,jk->ki ij,j->i ji,j->i j,jk->k j,kj->k bij,bjk->bik bij,jbk->kbi ij,ij->i ij,ij->j ij,ji-> i,i->
aij,ajk->ik ijl,jk->ik ij,jkl->ki ijl,jkm->ik iij,jk->ik Ij,jk->ik iJ,jk->ik ij,kl->ik i,j->ij ijab,abk->kij ij,ij->ij
""".split()
SIZES = {"i": 19, "j": 37, "k": 21, "l": 3, "m": 2, "a": 4, "b": 5}


def _bound(equation: str, algebra: str, operands: list[Any], dtype: str | None = None) -> tuple[Any, Any, Contraction]:
    """Return the native kernel, the NumPy path's, and the form."""
    op = ops.Einsum(equation, algebra)
    form = contraction(equation, algebra, [TensorShape(x.shape) for x in operands])
    args = [TensorType(TensorShape(x.shape), x.dtype.name) for x in operands]
    kind = dtype or np.result_type(*operands).name
    result = TensorType(TensorShape([form.sizes[x] for x in form.spec.output]), kind)
    return semiring.bind_semiring(op, form, args, result), bind_contraction(op, form, args, result), form


def _operands(equation: str, dtype: str, seed: int = 0, sizes: dict[str, int] | None = None) -> list[Any]:
    rng = np.random.default_rng(seed)
    sizes = SIZES if sizes is None else sizes
    shapes = [[1 if x.isupper() else sizes[x] for x in part] for part in equation.split("->")[0].split(",")]
    return [rng.random(shape).astype(dtype) for shape in shapes]


def _check(got: Any, expected: Any, algebra: str) -> None:
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype
    if ALGEBRAS[algebra].reduce in ("max", "min"):
        np.testing.assert_array_equal(got, expected)
    else:  # a few roundings of 1 and of the largest term
        near = 64 * np.finfo(got.dtype).eps
        np.testing.assert_allclose(got, expected, rtol=near, atol=near)


def _agree(equation: str, algebra: str, operands: list[Any]) -> Any:
    native, by_numpy, _ = _bound(equation.lower(), algebra, operands)
    with np.errstate(all="ignore"):  # as the backend's guard
        expected, got = by_numpy(*operands), native(*operands)
    _check(got, expected, algebra)
    return got


def _define(equation: str, algebra: str, operands: list[Any]) -> Any:
    form = contraction(equation, algebra, [TensorShape(x.shape) for x in operands])
    given = [TensorType(TensorShape(x.shape), x.dtype.name) for x in operands]
    made = [TensorType(TensorShape([form.sizes[x] for x in form.spec.output]), operands[0].dtype.name)]
    return reference.define(ops.Einsum(equation, algebra), operands, given, made, ())[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algebra", NAMES)
def test_every_form_answers_as_the_numpy_path(algebra: str, dtype: str) -> None:
    for equation in EQUATIONS:
        _agree(equation, algebra, _operands(equation, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algebra", NAMES)
def test_answers_are_the_definitions(algebra: str, dtype: str) -> None:
    small = dict.fromkeys(SIZES, 3) | {"j": 5}
    for equation in ("ij,jk->ik", "ij,j->i", "bij,bjk->kbi", "ijl,jk->ik"):
        operands = _operands(equation, dtype, seed=1, sizes=small)
        native, _, _ = _bound(equation, algebra, operands)
        near = 64 * np.finfo(dtype).eps
        np.testing.assert_allclose(native(*operands), _define(equation, algebra, operands), rtol=near, atol=near)


def _special(algebra: str, dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Any:
    """Factors among which there is everything that the algebra's domain allows."""
    domain = ALGEBRAS[algebra].domain
    strange = [0, 1, -1, np.inf, -np.inf, np.nan] if domain is None else [0, 1, np.nan]
    strange += [2, np.inf] if domain == (0, np.inf) else []
    plain = rng.random(shape)
    return np.where(rng.random(shape) < 0.03, rng.choice(strange, shape), plain).astype(dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("algebra", NAMES)
def test_nan_and_infinity_are_as_on_the_numpy_path(algebra: str, dtype: str) -> None:
    rng = np.random.default_rng(2)
    for equation, first, second in [
        ("ij,jk->ik", (40, 70), (70, 50)),
        ("ij,jk->ik", (40, 5), (5, 50)),
        ("ij,j->i", (60, 80), (80,)),
        ("i,ij->j", (60,), (60, 80)),
        ("ijl,jk->ik", (5, 6, 3), (6, 20)),
    ]:
        a, b = _special(algebra, dtype, first, rng), _special(algebra, dtype, second, rng)
        got = _agree(equation, algebra, [a, b])
        if equation == "ij,jk->ik" and first[1] > 10:
            assert np.isnan(got).any() and not np.isnan(got).all()


@pytest.mark.parametrize("algebra", NAMES)
def test_one_nan_spoils_its_row_or_its_column_only(algebra: str) -> None:
    a, b = np.full((20, 90), 0.5, "float32"), np.full((90, 40), 0.25, "float32")
    native, _, _ = _bound("ij,jk->ik", algebra, [a, b])
    a[3, 77] = b[88, 5] = np.nan
    expected = np.zeros((20, 40), bool)
    expected[3], expected[:, 5] = True, True
    np.testing.assert_array_equal(np.isnan(native(a, b)), expected)


@pytest.mark.parametrize("algebra", ["min_plus", "max_plus", "log_sum_exp"])
def test_infinite_factors_are_unreachable_places(algebra: str) -> None:
    zero, rng = ALGEBRAS[algebra].zero, np.random.default_rng(3)
    a, b = (np.where(rng.random((60, 60)) < 0.97, zero, rng.normal(size=(60, 60))) for _ in range(2))
    got = _agree("ij,jk->ik", algebra, [a, b])
    assert (got == zero).any() and np.isfinite(got).any()
    _agree("ij,jk->ik", algebra, [a.astype("float32"), b.astype("float32")])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [1.0, 80.0, 5000.0])
def test_log_sum_exp_is_shifted(dtype: str, spread: float) -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.uniform(-spread, spread, (50, 50)).astype(dtype) for _ in range(2))
    native, _, _ = _bound("ij,jk->ik", "log_sum_exp", [a, b])
    terms = a.astype(np.longdouble)[:, :, None] + b.astype(np.longdouble)[None]
    top = terms.max(1)
    exact = top + np.log(np.exp(terms - top[:, None]).sum(1))
    near = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(native(a, b), exact.astype("float64"), rtol=near, atol=near * spread)
    far = np.full((9, 9), 1e30, dtype)  # nothing overflows
    native, _, _ = _bound("ij,jk->ik", "log_sum_exp", [far, far])
    np.testing.assert_allclose(native(far, -far), np.full((9, 9), np.log(9.0)), rtol=1e-6)
    np.testing.assert_allclose(native(far, far), np.full((9, 9), 2e30), rtol=1e-6)


@pytest.mark.parametrize("algebra", NAMES)
def test_sizes_of_zero(algebra: str) -> None:
    for equation, first, second in [
        ("ij,jk->ik", (3, 0), (0, 4)),
        ("ij,jk->ik", (0, 3), (3, 4)),
        ("ij,jk->ik", (3, 4), (4, 0)),
        ("ijl,jk->ik", (3, 2, 0), (2, 4)),
        ("bij,bjk->bik", (0, 2, 3), (0, 3, 4)),
        ("i,i->", (0,), (0,)),
    ]:
        got = _agree(equation, algebra, [np.ones(first, "float32"), np.ones(second, "float32")])
        assert (got == ALGEBRAS[algebra].zero).all()


@pytest.mark.parametrize("algebra", NAMES)
def test_operands_may_have_any_strides_and_need_not_be_writable(algebra: str) -> None:
    rng = np.random.default_rng(5)
    wide = rng.random((80, 90)).astype("float32")
    fixed = rng.random((40, 90)).astype("float32")
    fixed.flags.writeable = False
    for a in (wide[::2], wide[40:], wide[::-2], wide.T[:40, :80].repeat(2, axis=1)[:, :90], fixed):
        for b in (wide.T[:, :50], np.asfortranarray(wide.T), np.broadcast_to(wide[0, :, None], (90, 30))):
            _agree("ij,jk->ik", algebra, [a, b])
    whole = np.zeros(4 * 9 + 1, np.uint8)
    askew = whole[1:].view("float32").reshape(3, 3)
    assert not askew.flags.aligned
    _agree("ij,jk->ik", algebra, [askew, askew])
    swapped = np.ones((3, 3), ">f4")  # read by casting it
    native, _, _ = _bound("ij,jk->ik", algebra, [askew, askew])
    np.testing.assert_array_equal(native(swapped, swapped), native(np.ones((3, 3), "f4"), np.ones((3, 3), "f4")))


@pytest.mark.parametrize("algebra", NAMES)
@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "ij,jk->ki", "ij,j->i", "i,j->ij", "ijl,jk->ik", "i,i->", "ij,ij->j"]
)
def test_a_result_is_written_where_out_says(algebra: str, equation: str) -> None:
    operands = _operands(equation, "float32", seed=6)
    native, _, _ = _bound(equation, algebra, operands)
    expected = native(*operands)
    out = np.full(expected.shape, np.nan, "float32")
    assert native(*operands, out=out) is out
    np.testing.assert_array_equal(out, expected)


def test_mixed_dtypes_are_cast_to_the_results() -> None:
    a, b = np.array([[True, False], [True, True]]), np.array([[0.5, 0.25], [0.75, 1.0]], "float32")
    native, by_numpy, _ = _bound("ij,jk->ik", "max_min", [a, b])
    _check(native(a, b), by_numpy(a, b), "max_min")
    assert native(a, b).dtype == np.float32


@pytest.mark.parametrize(
    ("algebra", "shapes", "dtype"),
    [
        ("real", [(2, 3), (3, 4)], "float32"),
        ("boolean", [(2, 3), (3, 4)], "bool"),
        ("max_min", [(2, 3), (3, 4)], "int32"),
        ("max_min", [(2, 3), (3, 4)], "float16"),
        ("max_min", [(2, 3), (3, 4)], "bool"),
        ("max_min", [(2, 3)], "float32"),
        ("noisy_or", [(2, 3), (3, 4), (4, 5)], "float32"),
    ],
)
def test_what_has_no_native_kernel(algebra: str, shapes: list[tuple[int, ...]], dtype: str) -> None:
    equation = ",".join(["ij", "jk", "kl"][: len(shapes)]) + "->i"
    native, _, _ = _bound(equation, algebra, [np.ones(s, dtype) for s in shapes])
    assert native is None


@pytest.mark.parametrize(("algebra", "wrong"), [("max_product", -0.5), ("min_product", 1.5), ("lukasiewicz", 1.5)])
def test_factors_outside_of_the_domain_are_refused(algebra: str, wrong: float) -> None:
    a = np.full((4, 4), 0.5)
    native, _, _ = _bound("ij,jk->ik", algebra, [a, a])
    a[2, 2], a[1, 1] = wrong, np.nan  # which hides nothing
    with pytest.raises(GraphError, match=f"a factor is {wrong}; the {algebra} algebra is for factors in"):
        native(a, np.full((4, 4), 0.5))


@pytest.mark.parametrize("algebra", ["max_min", "noisy_or", "log_sum_exp"])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "i,ij->j", "ij,j->i", "ji,jk->ik"])
def test_threads_share_rows_and_columns(monkeypatch: pytest.MonkeyPatch, algebra: str, equation: str) -> None:
    operands = _operands(equation, "float32", seed=7, sizes={"i": 45, "j": 130, "k": 70})
    native, _, _ = _bound(equation, algebra, operands)
    shared = []
    real = threads.together
    monkeypatch.setattr(threads, "together", lambda calls, n: (shared.append(len(calls)), real(calls, n)))
    alone = threads.with_threads(native, 1)(*operands)
    assert shared == []
    np.testing.assert_array_equal(threads.with_threads(native, 3)(*operands), alone)
    assert shared == [3]


def test_four_threads_at_once() -> None:
    names = ["max_min", "min_plus", "noisy_or", "log_sum_exp"]
    operands = _operands("ij,jk->ik", "float32", seed=8)
    kernels = [threads.with_threads(_bound("ij,jk->ik", name, operands)[0], 2) for name in names]
    expected = [kernel(*operands) for kernel in kernels]
    together, wrong = Barrier(4), []

    def work(n: int) -> None:
        together.wait()
        for _ in range(20):
            if not np.array_equal(kernels[n](*operands), expected[n]):
                wrong.append(names[n])

    workers = [Thread(target=work, args=(n,)) for n in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert wrong == []


@pytest.mark.parametrize("algebra", NAMES)
def test_memory_is_that_of_the_result_and_of_copies(algebra: str, measured: Any) -> None:
    n = 300
    operands = _operands("ij,jk->ki", "float32", seed=9, sizes=dict.fromkeys("ijk", n))
    native = threads.with_threads(_bound("ij,jk->ki", algebra, operands)[0], 1)  # each more has exponentials of its own
    native(*operands)
    _, peak = measured(native, *operands)
    arrays = 3 if algebra != "log_sum_exp" else 10  # there in float64, and again as exponentials
    assert peak < arrays * 4 * n * n + 65536  # and small objects of the interpreter


def test_an_index_that_one_factor_has_alone_is_spread_in_parts(measured: Any) -> None:
    n = 24
    operands = _operands("ijl,jkm->ik", "float64", seed=10, sizes=dict.fromkeys("ijklm", n))
    native, by_numpy, _ = _bound("ijl,jkm->ik", "goguen_residuum", operands)
    native(*operands)
    peaks = []
    for _ in range(3):  # what other threads of the process allocate meanwhile is no part of it
        got, peak = measured(native, *operands)
        peaks.append(peak)
    _check(got, by_numpy(*operands), "goguen_residuum")
    assert min(peaks) < 6 * 8 * n**3  # spread whole, each factor would be n**4


def test_what_is_worth_a_kernel_and_what_is_ready() -> None:
    large, small = np.ones((40, 40), "float32"), np.ones((4, 4), "float32")
    forms = {
        (equation, algebra, x.shape): _bound(equation, algebra, [x, x])[2]
        for equation in ("ij,jk->ik", "ij,kl->ijkl")
        for algebra in ("max_min", "real")
        for x in (large, small)
    }
    assert [k for k, form in forms.items() if semiring.worth(form)] == [("ij,jk->ik", "max_min", (40, 40))]
    tall = np.ones((1000, 40), "float32")
    assert semiring.worth(_bound("ij,ij->i", "max_min", [tall, tall])[2])
    assert not semiring.worth(_bound("ij,ij->j", "max_min", [tall, tall])[2])  # NumPy does it in one pass
    from tensorlogic.backends.native import semiring_kernels

    semiring.make_ready(ALGEBRAS["max_min"], "float32")
    before = set(semiring_kernels._entries)
    run, _, _ = _bound("ij,jk->ik", "max_min", [large, large])
    run(large, large)
    assert set(semiring_kernels._entries) == before  # nothing was left to compile


def test_kernels_are_compiled_for_one_signature_each() -> None:
    from tensorlogic.backends.native import semiring_kernels

    rng = np.random.default_rng(11)
    a = rng.random((40, 40)).astype("float32")
    fixed = a.copy()
    fixed.flags.writeable = False
    _agree("ij,jk->ik", "max_min", [a, a])
    before = len(semiring_kernels.outer.signatures)
    for x in (a.T, a[::-1], a[:, ::2].repeat(2, axis=1), fixed):
        _agree("ij,jk->ik", "max_min", [x, x])
    assert len(semiring_kernels.outer.signatures) == before


def test_the_benchmarks_contenders_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    for name in ("harness", "algebras"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import algebras
    import harness

    rng = np.random.default_rng(12)
    a, b = (rng.random((45, 45)).astype("float32") for _ in range(2))
    loops = algebras.in_c(algebras.source())
    for name in (*algebras.LOOPS, "log_sum_exp"):
        native, plain = algebras.kernels(name, a, b)
        in_c = algebras.by_c(loops, name, a, b)
        answers = {"native": native(), "plain": plain()} | ({} if isinstance(in_c, str) else {"in C": in_c()})
        assert isinstance(in_c, str) == (isinstance(loops, str) or name == "log_sum_exp")
        harness.compare(name, answers, 1e-5)
    for name in ("harness", "algebras"):
        del sys.modules[name]


@st.composite
def _specs(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    sizes = {x: draw(st.sampled_from([0, 1, 2, 3, 5, 18])) for x in "abcd"}
    parts, shapes = [], []
    for _ in range(2):
        part = draw(st.text("abcd", max_size=3))
        narrow = {x for x in set(part) if draw(st.integers(0, 5)) == 0}  # size 1 here: it broadcasts
        parts.append(part)
        shapes.append(tuple(1 if x in narrow else sizes[x] for x in part))
    used = sorted(set("".join(parts)))
    kept = draw(st.lists(st.sampled_from(used), unique=True)) if used else []
    return ",".join(parts) + "->" + "".join(kept), shapes


@settings(deadline=None, max_examples=300)
@given(_specs(), st.sampled_from(NAMES), st.sampled_from(["float32", "float64"]), st.integers(0, 99), st.booleans())
def test_random_specs_answer_as_the_numpy_path(
    given_spec: tuple[str, list[tuple[int, ...]]], algebra: str, dtype: str, seed: int, strange: bool
) -> None:
    equation, shapes = given_spec
    rng = np.random.default_rng(seed)
    if strange and algebra in EXACT:
        operands = [np.asarray(_special(algebra, dtype, shape, rng)) for shape in shapes]
    else:
        operands = [np.asarray(rng.random(shape)).astype(dtype) for shape in shapes]
    _agree(equation, algebra, operands)
