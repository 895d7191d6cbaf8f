"""Einsums: NumPy's own test equations, random specs, and every other algebra against a broadcast formula."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.backends import contract
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.plan.cost import contraction

# the sizes that NumPy's test_einsum gives the letters a to k; upper case is an axis of size 1
SIZES = dict(zip("abcdefghijk", [2, 3, 4, 5, 4, 3, 2, 6, 5, 4, 3], strict=True)) | {"l": 3, "m": 2, "n": 4, "z": 0}

# the lists of numpy/_core/tests/test_einsum.py: sums, traces, transposes, products, matrix forms and many operands
ONE = """
i-> i->i ij-> ij->i ij->j ij->ij ij->ji ab->ba abc->cba abc->bca abc->b abcd->dbca i... i...->... ...i->... ...i->i...
...->... ij...->ji... i...j->...ij ii ii-> ii->i ii... ...ii->... ...ii->...i i...i->... i...i->i... iii-> iii->i ijj->i
iji->j iij->ij ijji-> ijij->ij abba->ab iijj->ij z-> zi->i iz->i
""".split()
TWO = """
i,i i,i-> i,i->i i,j i,j->ij i,j->ji i,j-> i,-> ,i ,ij->ij , ij,j ij,j->i ij,j->j ji,j ji,i-> ij,jk ij,jk->ik ij,jk->ki
ij,kj->ik ji,jk->ik ij,ij->ij ij,ji-> ij,ij ij,kl->ijkl ijk,jil->kl abc,bad ijk,jkl->il efabc,eabcd->efd fdf,cdd bcc,abd
aab,bcc->ac aab,bcc ab,bcc->ac aab,bcc->ab aab,abb->ab ...,... ...ij,...jk->...ik i...,i...->... ij...,jk...->ik...
...i,... ...ij,j->...i b...i,...i ...ab,...bc ki,...k->i... ...k,kj->...j I,i->i Ij,ij->ij iJ,jk->ik ij,Jk->ik Ij,Ij
IJ,ij->ij abI,bid->ad zi,ij->zj iz,zj->ij
""".split()
MANY = """
a,ab,abc->abc a,b,ab->ab ea,fb,gc,hd,abcd->efgh ea,fb,abcd,gc,hd->efgh abcd,ea,fb,gc,hd->efgh
acdf,jbje,gihb,hfac acdf,jbje,gihb,hfac,gfac,gifabc,hfac chd,bde,agbc,hiad,hgc,hgi,hiad ab,ab,c-> ab,ab,c->c ab,ab,cd,cd->
ab,ab,cd,cd->ac ab,ab,cd,cd->cd ab,ab,cd,cd,ef,ef-> ab,cd,ef->abcdef ab,cd,ef->acdf ab,cd,de->abcde ab,cd,de->be
ab,bcd,cd->abcd ab,bcd,cd->abd eb,cb,fb->cef dd,fb,be,cdb->cef bca,cdb,dbf,afc-> dcc,fce,ea,dbf->ab fdf,cdd,ccd,afe->ae
ed,fcd,ff,bcf->be baa,dcf,af,cde->be bd,db,eac->ace fff,fae,bef,def->abd efc,dbc,acf,fd->abe ba,ac,da->bcd
aab,fa,df,ecc->bde ecb,fef,bad,ed->ac bcf,bbb,fbf,fc-> bb,ff,be->e bcb,bb,fc,fff-> fbb,dfd,fc,fc-> afd,ba,cc,dc->bf
adb,bc,fa,cfc->d bbd,bda,fc,db->acf dba,ead,cad->bce aef,fbc,dca->bde ij,ij,jk->ik i,i,i-> i,ij,j-> ...a,...ab,b...->...
Ij,jk,kI->jk aI,Ib,bci->ac ,a,-> z,za,ab->b
""".split()  # fmt: skip
EQUATIONS = [*ONE, *TWO, *MANY]


def _numpy_form(equation: str) -> str:
    return equation.translate(str.maketrans("IJ", "ij"))


def _operands(equation: str, dtype: str) -> list[Any]:
    rng = np.random.default_rng(len(equation) * 7 + ord(equation[0]))
    found = []
    for part in equation.split("->")[0].split(","):
        shape: list[int] = []
        for label in part.replace("...", "."):
            shape += [2, 3] if label == "." else [1 if label.isupper() else SIZES[label]]
        if dtype == "bool":
            found.append(rng.random(shape) < 0.5)
        elif dtype.startswith("float"):
            found.append(rng.uniform(-1, 1, shape).astype(dtype))
        else:
            found.append(rng.integers(-3 if dtype[0] == "i" else 0, 4, shape).astype(dtype))
    return found


def _run(equation: Any, operands: list[Any], algebra: str = "real", backend: str = "numpy") -> Any:
    b = tl.GraphBuilder()
    tensors = [b.input(f"x{n}", np.shape(x)) for n, x in enumerate(operands)]
    graph = b.build(y=b.einsum(equation, *tensors, algebra=algebra))
    return tl.Executor(backend).execute(graph, {f"x{n}": x for n, x in enumerate(operands)})["y"]


def _expected(equation: str, operands: list[Any]) -> Any:
    return np.asarray(np.einsum(_numpy_form(equation), *operands, optimize=len(operands) > 2))


MANY_FACTORS = [name for name in ALGEBRAS if not name.endswith("residuum")]  # an implication has two sides


def test_there_are_enough_equations() -> None:
    assert len(set(EQUATIONS)) == len(EQUATIONS) >= 120


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64", "uint8"])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_numpy_equations(equation: str, dtype: str) -> None:
    operands = _operands(equation, dtype)
    expected = _expected(equation, operands)
    got = _run(_numpy_form(equation), operands)
    assert got.shape == expected.shape
    assert got.dtype == expected.dtype == dtype
    if dtype.startswith("float"):
        tolerance = 1e-4 if dtype == "float32" else 1e-11
        size = max(1.0, float(np.max(np.abs(expected), initial=0)))
        np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance * size)
    else:
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("equation", [e for e in EQUATIONS if len(e) < 12])
def test_numpy_equations_over_bool(equation: str) -> None:
    operands = _operands(equation, "bool")
    got = _run(_numpy_form(equation), operands)
    assert got.dtype == np.bool_
    np.testing.assert_array_equal(got, np.einsum(_numpy_form(equation), *operands))


@pytest.mark.parametrize(
    "dtypes",
    [("int8", "float32"), ("bool", "int16"), ("uint8", "int8"), ("float16", "float64"), ("int64", "float32")],
)
def test_mixed_dtypes_promote_as_numpy_does(dtypes: tuple[str, str]) -> None:
    a, b = (np.arange(12).reshape(3, 4) % 2).astype(dtypes[0]), (np.arange(8).reshape(4, 2) % 3).astype(dtypes[1])
    expected = np.einsum("ij,jk->ik", a, b)
    got = _run("ij,jk->ik", [a, b])
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected)


@pytest.mark.parametrize(
    ("algebra", "combine"), [("max_product", np.multiply), ("max_plus", np.add), ("min_plus", np.add)]
)
def test_integers_wrap_before_the_largest_is_chosen(algebra: str, combine: np.ufunc) -> None:
    x, y = (np.random.default_rng(n).integers(100, 255, (4, 4)).astype("uint8") for n in (0, 1))
    reduce = np.minimum if algebra.startswith("min") else np.maximum
    want = reduce.reduce(combine(x[:, :, None], y[None]), 1)
    b = tl.GraphBuilder()
    graph = b.build(
        z=b.einsum("ij,jk->ik", b.input("x", (4, 4), "uint8"), b.input("y", (4, 4), "uint8"), algebra=algebra)
    )
    for backend in ("numpy", "reference"):
        np.testing.assert_array_equal(tl.Executor(backend).execute(graph, {"x": x, "y": y})["z"], want)


def test_integers_wrap_as_numpy_does() -> None:
    a = np.full((3, 3), 100, np.int8)
    with np.errstate(all="ignore"):
        expected = np.einsum("ij,jk->ik", a, a)
    np.testing.assert_array_equal(_run("ij,jk->ik", [a, a]), expected)


def test_float16_is_summed_in_float32() -> None:
    x = np.full(4096, 0.25, np.float16)
    assert _run("i->", [x]) == np.float16(1024)
    assert _run("i,i->", [x, np.ones_like(x)]) == np.float16(1024)
    assert _run("i,i,i->", [x, np.ones_like(x), np.ones_like(x)]) == np.float16(1024)


@pytest.mark.parametrize("algebra", [a for a, row in ALGEBRAS.items() if row.inexact and "residuum" not in a])
def test_float16_reductions_do_not_overflow_on_the_way(algebra: str) -> None:
    got = _run("i->", [np.zeros(70_000, np.float16)], algebra)
    expected = np.log(70_000) if algebra == "log_sum_exp" else 0.0
    assert got.dtype == np.float16
    np.testing.assert_allclose(float(got), expected, rtol=1e-3)


@st.composite
def _specs(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    count = draw(st.integers(1, 4))
    letters = "abcde"
    sizes = {x: draw(st.sampled_from([0, 1, 2, 2, 3, 3])) for x in letters}
    parts, shapes = [], []
    for _ in range(count):
        part = draw(st.text(letters, max_size=4))
        shrunk = {x for x in set(part) if draw(st.integers(0, 5)) == 0}  # size 1 here: it broadcasts
        parts.append(part)
        shapes.append(tuple(1 if x in shrunk else sizes[x] for x in part))
    text = ",".join(parts)
    if draw(st.booleans()):
        used = sorted(set("".join(parts)))
        kept = draw(st.lists(st.sampled_from(used), unique=True)) if used else []
        text += "->" + "".join(kept)
    return text, shapes


@settings(deadline=None, max_examples=300)
@given(_specs(), st.sampled_from(["float64", "int64"]))
def test_random_specs(given_spec: tuple[str, list[tuple[int, ...]]], dtype: str) -> None:
    equation, shapes = given_spec
    rng = np.random.default_rng(0)
    operands = [rng.integers(-3, 4, shape).astype(dtype) for shape in shapes]
    expected = np.einsum(equation, *operands)
    got = _run(equation, operands)
    assert got.shape == np.shape(expected)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, expected)  # small integers: exact in either dtype


@settings(deadline=None, max_examples=150)
@given(_specs(), st.sampled_from(sorted(ALGEBRAS)))
def test_random_specs_in_every_algebra_answer_as_the_reference(
    given_spec: tuple[str, list[tuple[int, ...]]], algebra: str
) -> None:
    equation, shapes = given_spec
    assume(algebra in MANY_FACTORS or len(shapes) == 2)
    rng = np.random.default_rng(1)
    operands = [rng.integers(0, 9, shape) / 8 for shape in shapes]
    got, expected = (_run(equation, operands, algebra, backend) for backend in ("numpy", "reference"))
    assert got.dtype == expected.dtype
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


def test_sixty_distinct_integer_labels() -> None:
    rng = np.random.default_rng(2)
    chain = [rng.random((2, 3) if n % 2 == 0 else (3, 2)) for n in range(59)]
    labels = [[n, n + 1] for n in range(59)]
    got = _run([*labels, [0, 59]], chain)
    np.testing.assert_allclose(got, np.linalg.multi_dot(chain), rtol=1e-10)


def test_integer_labels_beyond_the_alphabet_in_two_operands() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.random((2,) * 8), rng.random((2,) * 8)
    got = _run([[100, 200, 300, 400, 500, 501, 502, 503], [503, 502, 501, 500, 1, 2, 3, 4], [400, 1, 2, 3, 4]], [a, b])
    np.testing.assert_allclose(got, np.einsum("abcdefgh,hgfeijkl->dijkl", a, b), rtol=1e-12)


def test_a_diagonal_of_an_array_with_more_axes_than_the_alphabet_has_letters() -> None:
    x = np.ones((2, *(1,) * 53, 2))
    x[0, ..., 0], x[1, ..., 1] = 3, 4
    got = _run([[*range(54), 0], [0]], [x])
    np.testing.assert_array_equal(got, [3, 4])


# every other algebra, by a formula over the whole index space

JOIN: dict[str, Callable[[Any, Any], Any]] = {
    "multiply": np.multiply,
    "logical_and": np.logical_and,
    "minimum": np.minimum,
    "maximum": np.maximum,
    "add": np.add,
    "lukasiewicz": lambda x, y: np.maximum(0, x + y - 1),
    "godel_implies": lambda x, y: np.where(x <= y, 1, y),
    "goguen_implies": lambda x, y: np.where(x <= y, 1, y / x),
}
REDUCE: dict[str, Callable[[Any, int], Any]] = {
    "sum": np.sum,
    "any": np.any,
    "max": np.max,
    "min": np.min,
    "logsumexp": lambda x, axis: np.log(np.sum(np.exp(x), axis=axis)),
    "noisy_or": lambda x, axis: 1 - np.prod(1 - x, axis=axis),
}


def _formula(algebra: str, x: Any, y: Any) -> Any:
    row = ALGEBRAS[algebra]
    return REDUCE[row.reduce](JOIN[row.combine](x[:, :, None], y[None, :, :]), 1)


@pytest.mark.parametrize("block", [None, 1, 7, 64, 2000, 2001])
@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_join_and_project_in_blocks(monkeypatch: pytest.MonkeyPatch, algebra: str, block: int | None) -> None:
    small = block is not None and block < 100
    shape = (5, 6, 7) if small else (30, 40, 50)
    if block is not None:
        monkeypatch.setattr(contract, "BLOCK", block)
    rng = np.random.default_rng(4)
    x, y = rng.random(shape[:2]), rng.random(shape[1:])
    if algebra == "boolean":
        x, y = x < 0.1, y < 0.1
    np.testing.assert_allclose(_run("ij,jk->ik", [x, y], algebra), _formula(algebra, x, y), rtol=1e-12)
    np.testing.assert_allclose(_run("ij,jk->ki", [x, y], algebra), _formula(algebra, x, y).T, rtol=1e-12)


@pytest.mark.parametrize("block", [1, 5, 1 << 18])
@pytest.mark.parametrize("algebra", MANY_FACTORS)
def test_contracting_everything_and_three_factors(monkeypatch: pytest.MonkeyPatch, algebra: str, block: int) -> None:
    monkeypatch.setattr(contract, "BLOCK", block)
    rng = np.random.default_rng(5)
    x, y, z = rng.random((4, 3)), rng.random((3, 5)), rng.random(5)
    row = ALGEBRAS[algebra]
    join, reduce = JOIN[row.combine], REDUCE[row.reduce]
    if algebra == "boolean":
        x, y, z = x < 0.5, y < 0.5, z < 0.5
    terms = join(join(x[:, :, None], y[None, :, :]), z[None, None, :])
    np.testing.assert_allclose(_run("ij,jk,k->", [x, y, z], algebra), reduce(terms.reshape(-1), 0), rtol=1e-12)
    flat = reduce(terms.reshape(4, -1), 1)
    np.testing.assert_allclose(_run("ij,jk,k->i", [x, y, z], algebra), flat, rtol=1e-12)
    np.testing.assert_allclose(_run("ij->j", [x], algebra), reduce(x, 0), rtol=1e-12)


@pytest.mark.parametrize("algebra", ALGEBRAS)
def test_an_empty_contraction_is_the_algebras_zero(algebra: str) -> None:
    expected = np.full((2, 3), ALGEBRAS[algebra].zero)
    for equation, shapes in (("ij,jk->ik", [(2, 0), (0, 3)]), ("ij,kl->ik", [(2, 0), (3, 4)])):
        got = _run(equation, [np.ones(s) for s in shapes], algebra)
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("equation", ["i->", "i,i->"])
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_infinity_is_not_an_integer(backend: str, equation: str) -> None:
    operands = [np.zeros(0, np.int32)] * (1 + equation.count(","))
    with pytest.raises(tl.TensorLogicError, match=r"min_plus"):
        _run(equation, operands, "min_plus", backend)


@pytest.mark.parametrize("algebra", ["min_plus", "max_plus", "log_sum_exp"])
def test_infinite_factors_are_unreachable_places(algebra: str) -> None:
    zero = ALGEBRAS[algebra].zero
    x = np.array([[zero, 1.0], [zero, zero]])
    got = _run("ij,jk->ik", [x, x], algebra)
    np.testing.assert_array_equal(got, np.full((2, 2), zero))


def test_log_sum_exp_is_shifted() -> None:
    x = np.array([[1000.0, 1000.0]])
    np.testing.assert_allclose(_run("ij,jk->ik", [x, x.T], "log_sum_exp"), [[2000 + np.log(2)]])
    np.testing.assert_allclose(_run("ij->i", [-x], "log_sum_exp"), [-1000 + np.log(2)])


@pytest.mark.parametrize(("algebra", "low", "high"), [("max_product", -0.5, 1.0), ("lukasiewicz", 0.0, 1.5)])
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_factors_outside_of_the_domain_are_refused(algebra: str, low: float, high: float, backend: str) -> None:
    with pytest.raises(tl.TensorLogicError, match=f"the {algebra} algebra is for factors in"):
        _run("i,i->", [np.array([low, high]), np.array([0.5, 0.5])], algebra, backend)
    with pytest.raises(tl.TensorLogicError, match="is for factors in"):  # NaN does not hide it
        _run("ij->i", [np.array([[np.nan, low, high]])], algebra, backend)
    assert np.isnan(_run("ij->i", [np.array([[np.nan, 0.5]])], algebra, backend)).all()


def test_nan_is_not_hidden_by_an_algebra() -> None:
    x = np.array([[0.5, np.nan], [0.25, 0.5]])
    for algebra in ("real", "max_min", "min_plus", "max_plus", "log_sum_exp", "noisy_or", "max_product"):
        got = _run("ij,jk->ik", [x, np.eye(2) * 0.5], algebra)
        assert np.isnan(got[0]).any(), algebra
        assert not np.isnan(got[1]).any(), algebra


def test_max_min_join_never_builds_the_whole_index_space(measured: Any) -> None:
    n = 300
    rng = np.random.default_rng(6)
    x, y = rng.random((n, n)), rng.random((n, n))
    b = tl.GraphBuilder()
    graph = b.build(y=b.einsum("ij,jk->ik", b.input("x", (n, n)), b.input("y", (n, n)), algebra="max_min"))
    executor = tl.Executor()
    executor.execute(graph, {"x": x, "y": y})  # planned, and compiled where numba is loaded already
    got, peak = measured(executor.execute, graph, {"x": x, "y": y})
    assert peak < n**3 * 8 / 10
    for i in (0, 17, n - 1):
        np.testing.assert_array_equal(got["y"][i], np.max(np.minimum(x[i][:, None], y), axis=0))


def test_boolean_join_of_500() -> None:
    rng = np.random.default_rng(7)
    sister, parent = rng.random((500, 500)) < 0.004, rng.random((500, 500)) < 0.004
    got = _run("xy,yz->xz", [sister, parent], "boolean")
    expected = (sister.astype(np.int32) @ parent.astype(np.int32)) > 0
    assert 0 < expected.sum() < expected.size
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "equation", ["xy,y->x", "x,xy->y", "xy,xy->x", "xy,xy->y", "xy,xy->", "xzy,y->x", "bxy,by->bx"]
)
@pytest.mark.parametrize("dtype", ["bool", "float32"])
def test_truth_values_that_are_used_once_are_not_cast(
    monkeypatch: pytest.MonkeyPatch, equation: str, dtype: str
) -> None:
    sizes = {"b": 3, "x": 1000, "y": 800, "z": 2}
    rng = np.random.default_rng(5)
    shapes = [[sizes[c] for c in part] for part in equation.split("->")[0].split(",")]
    values = [rng.random(shape) < 0.02 for shape in shapes]
    b = tl.GraphBuilder()
    inputs = [b.input(f"x{n}", shape, dtype) for n, shape in enumerate(shapes)]
    graph = b.build(y=b.einsum(equation, *inputs, algebra="boolean"))
    given = {f"x{n}": v.astype(dtype) for n, v in enumerate(values)}
    plan = tl.Executor().plan(graph, given)
    casts = 0 if dtype == "bool" else sum(v.size for v in values)
    assert casts <= plan.peak_bytes <= casts + 3 * contract.BLOCK  # 4 bytes for each truth value with BLAS
    expected = np.einsum(equation, *[v.astype(np.float32) for v in values]) > 0
    for block in (contract.BLOCK, 1000):
        monkeypatch.setattr(contract, "BLOCK", block)
        assert np.array_equal(tl.Executor().execute(graph, given)[0], expected)


@pytest.mark.parametrize(
    ("equation", "copied"),
    [
        ("ijk,nik->nj", 1), ("nik,ijk->nj", 1), ("abc,cb->a", 1), ("abc,bcd->ad", 0), ("bac,bdc->bad", 0), ("abc,dbc->ad", 0), ("acb,cd->abd", 1),
    ],
)  # fmt: skip
def test_copies_of_factors_into_matrices_are_planned(equation: str, copied: int, measured: Any) -> None:
    b = tl.GraphBuilder()
    shapes = [[40 + 7 * (ord(c) - 97) for c in part] for part in equation.split("->")[0].split(",")]
    inputs = [b.input(f"x{n}", shape, "float32") for n, shape in enumerate(shapes)]
    graph, executor = b.build(y=b.einsum(equation, *inputs)), tl.Executor()
    values = {f"x{n}": np.ones(shape, "float32") for n, shape in enumerate(shapes)}
    planned = executor.plan(graph, values).peak_bytes
    out = executor.execute(graph, values)["y"]
    assert (planned - out.nbytes in {v.nbytes for v in values.values()}) == bool(copied)
    # the other result is held, so that its memory is not used again
    _, peak = measured(executor.execute, graph, values)
    assert peak == pytest.approx(planned, rel=0.02, abs=20_000)


def _measured(executor: tl.Executor, graph: tl.EinsumGraph, values: Any, budget: int | None = None) -> int:
    held = executor.execute(graph, values, budget=budget)  # so that its memory is not used again
    tracemalloc.start()
    try:
        executor.execute(graph, values, budget=budget)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        del held


SLACK = 128 << 10  # buffers of NumPy's loops, and what Python itself takes
MOVED = (
    "ij,jk->ik", "ij,kj->ik", "ji,jk->ki", "bij,bjk->ibk", "abcd,bde->ace", "aij,bjk->kbai", "byx,by->bx", "ij,ij->i",
    "ijp,jk->ik", "ij,ik->ijk", "ij,j,jk->ik", "ijk->ki", "aab,bc->ac",
)  # fmt: skip


@pytest.mark.parametrize("policy", ["exact", "fast"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bool"])
@pytest.mark.parametrize("algebra", sorted(ALGEBRAS))
def test_what_contractions_take_while_they_run_is_planned(algebra: str, dtype: str, policy: str) -> None:
    row, rng = ALGEBRAS[algebra], np.random.default_rng(11)
    if row.numbers and dtype == "bool":
        pytest.skip("truth values are cast first")
    many = 260_000 if policy == "exact" else 1_600_000 if dtype == "bool" or algebra == "boolean" else 100_000
    for equation in MOVED:
        parts = equation.split("->")[0].split(",")
        if len(parts) != 2 and algebra.endswith("residuum"):
            continue
        side = math.ceil(many ** (1 / len({*equation} - {*",->"})))
        b = tl.GraphBuilder()
        inputs = [b.input(f"x{n}", [side] * len(part), dtype) for n, part in enumerate(parts)]
        graph, executor = b.build(y=b.einsum(equation, *inputs, algebra=algebra)), tl.Executor(policy=policy)
        values = {f"x{n}": (rng.random([side] * len(part)) < 0.1).astype(dtype) for n, part in enumerate(parts)}
        planned = executor.plan(graph, values).peak_bytes
        assert _measured(executor, graph, values) <= 1.1 * planned + SLACK, equation


def test_factors_are_spread_over_indices_of_the_other_one_part_after_another() -> None:
    b = tl.GraphBuilder()
    shapes = {"x": (200, 40), "y": (40, 2000)}
    x, y = (b.input(name, shape, "float32") for name, shape in shapes.items())
    graph, executor = b.build(y=b.einsum("ij,jk->", x, y, algebra="godel_residuum")), tl.Executor()
    values = {name: np.full(shape, 0.5, "float32") for name, shape in shapes.items()}
    assert _measured(executor, graph, values) <= 1.1 * executor.plan(graph, values).peak_bytes + SLACK


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize(
    ("equation", "algebra"),
    [
        ("ij,kj->ik", "min_plus"), ("ij,kj->ik", "log_sum_exp"), ("ij,jk->ik", "max_product"), ("abcd,bde->ace", "max_product"),
        ("abcd,bde->ace", "boolean"), ("bij,bkj->bik", "noisy_or"), ("ij,kj->ki", "lukasiewicz"), ("xzy,y->x", "boolean"),
    ],
)  # fmt: skip
def test_budgets_hold_with_kernels_that_copy_factors(equation: str, algebra: str, dtype: str) -> None:
    parts, rng = equation.split("->")[0].split(","), np.random.default_rng(12)
    side = math.ceil(8_000_000 ** (1 / len({*equation} - {*",->"})))
    b = tl.GraphBuilder()
    inputs = [b.input(f"x{n}", [side] * len(part), dtype) for n, part in enumerate(parts)]
    y = b.einsum(equation, *inputs, algebra=algebra)
    graph, executor = b.build(y=b.any(y) if algebra == "boolean" else b.max(y)), tl.Executor()
    values = {f"x{n}": (rng.random([side] * len(part)) < 0.1).astype(dtype) for n, part in enumerate(parts)}
    whole, held = executor.plan(graph, values).peak_bytes, 0
    for share in (0.9, 0.5, 0.2):
        try:
            executor.plan(graph, values, budget=int(share * whole))
        except tl.OutOfMemoryError:
            continue
        held += 1
        assert _measured(executor, graph, values, int(share * whole)) <= 1.1 * share * whole + SLACK
    assert held


@pytest.mark.parametrize(
    ("equation", "kernel"),
    [
        ("xy,y->x", "blocks"), ("bxy,by->bx", "matmul"), ("xz,z->x", "matmul"), ("xz,xz->", "blocks"), ("yx,y->x", "blocks"),
        ("zyx,zy->zx", "blocks"), ("yxz,yz->yx", "matmul"),
    ],
)  # fmt: skip
def test_truth_values_are_compared_where_rows_are_long(equation: str, kernel: str) -> None:
    sizes = {"b": 3, "x": 20_000, "y": 300, "z": 20}
    shapes = [tl.TensorShape([sizes[c] for c in part]) for part in equation.split("->")[0].split(",")]
    assert contraction(equation, "boolean", shapes).kernel == kernel


def test_boolean_takes_any_number_as_truth() -> None:
    x, y = np.array([[2.5, 0.0], [-1.0, np.nan]]), np.array([[0, 3], [0, 0]], np.int8)
    np.testing.assert_array_equal(_run("ij,jk->ik", [x, y], "boolean"), [[False, True], [False, True]])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("equation", ["ij,jk->ik", "ji,jk->ik", "ij,kj->ki", "bij,bjk->bik", "ijb,jkb->ikb"])
def test_matrix_forms_with_any_memory_order(equation: str, order: Any) -> None:
    sizes = {"i": 5, "j": 6, "k": 7, "b": 3}
    rng = np.random.default_rng(8)
    parts = equation.split("->")[0].split(",")
    operands = [np.asarray(rng.random([sizes[x] for x in p]), order=order) for p in parts]
    np.testing.assert_allclose(_run(equation, operands), np.einsum(equation, *operands), rtol=1e-12)
    if equation == "ij,jk->ik":
        flipped = [operands[0][:, ::-2], operands[1][::-2]]
        np.testing.assert_allclose(_run(equation, flipped), np.einsum(equation, *flipped), rtol=1e-12)


def test_a_part_of_the_columns_of_a_matrix_is_not_copied(measured: Any) -> None:
    n = 512
    rng = np.random.default_rng(10)
    inputs = {"x": rng.random((n, n))[:, : n // 4], "w": rng.random((n, n))[: n // 4, n // 2 :]}
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", (n, n // 4)) @ b.input("w", (n // 4, n // 2)))
    executor, out = tl.Executor(), np.empty((n, n // 2))
    executor.execute(graph, inputs, out={"y": out})
    _, peak = measured(executor.execute, graph, inputs, out={"y": out})
    assert peak < inputs["w"].nbytes / 2
    np.testing.assert_allclose(out, inputs["x"] @ inputs["w"], rtol=1e-12)


@pytest.mark.parametrize("shape", [(1, 20_000, 3), (3, 20_000, 1), (7, 5000, 9)])
def test_a_part_of_the_columns_gives_the_bits_of_its_copy(shape: tuple[int, int, int]) -> None:
    rows, inner, columns = shape
    rng = np.random.default_rng(11)
    x = rng.normal(size=(rows, inner + 4)).astype("float32")[:, :inner]
    w = rng.normal(size=(inner, columns + 4)).astype("float32")[:, :columns]
    copies = [np.ascontiguousarray(x), np.ascontiguousarray(w)]
    assert _run("ij,jk->ik", [x, w]).tobytes() == _run("ij,jk->ik", copies).tobytes()


def test_an_outer_product_is_computed_without_a_second_copy(measured: Any) -> None:
    n = 1000
    x = np.random.default_rng(9).random(n)
    b = tl.GraphBuilder()
    graph = b.build(y=b.einsum("i,j->ij", b.input("x", (n,)), b.input("x", (n,))))
    executor = tl.Executor()
    executor.execute(graph, {"x": x})
    _, peak = measured(executor.execute, graph, {"x": x})
    assert peak < 1.5 * n * n * 8


@pytest.mark.parametrize(
    ("equation", "shapes", "message"),
    [
        ("ij,jk->ik", [(2, 3), (4, 5)], r"index 'j' is 3 in operand 0 .* but 4 in operand 1"),
        ("ii->i", [(2, 3)], r"index 'i' is 2 and 3 in operand 0"),
        ("ij->i", [(2,)], r"operand 0 has 1 axes but 2 indices 'ij'"),
        ("ij->ik", [(2, 3)], r"index 'k', which no operand has"),
        ("ij->ii", [(2, 3)], r"index 'i' twice"),
        ("ij,j", [(2, 3)], r"for 2 operand\(s\), got 1"),
        ("i.j->i", [(2, 3)], r"'\.' cannot be an index"),
        ("i->j->i", [(2,)], r"at most one '->'"),
        ("...i->i", [(2, 3)], r"'\.\.\.' stands for 1 axes"),
    ],
)
def test_specs_that_do_not_fit(equation: str, shapes: list[tuple[int, ...]], message: str) -> None:
    with pytest.raises(tl.GraphError, match=message) as caught:
        _run(equation, [np.ones(s) for s in shapes])
    assert caught.value.diagnostic.location is not None


def test_an_unknown_algebra_suggests_the_nearest() -> None:
    with pytest.raises(tl.GraphError, match=r"unknown algebra 'min_pls'(.|\n)*did you mean 'min_plus'"):
        _run("i->", [np.ones(2)], "min_pls")


@pytest.mark.parametrize("spec", ["ij->ji", "ii->i", "i...->i..."])
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_what_only_moves_is_no_factor(spec: str, backend: str) -> None:
    """The reference once refused a transpose of numbers that the algebra could not multiply."""
    b = tl.GraphBuilder()
    graph = b.build(y=b.einsum(spec, b.input("x", (2, 2)), algebra="max_product"))
    x = np.array([[1.0, -2.0], [3.0, 4.0]])
    np.testing.assert_array_equal(tl.Executor(backend).execute(graph, {"x": x})["y"], np.einsum(spec, x))
