"""Types: promotion is NumPy 2's for every pair of dtypes and for Python scalars; shapes and names of dtypes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tensorlogic import DTypeError, GraphBuilder, ShapeError, TensorShape, TensorType
from tensorlogic.ir.elementwise import FUNCTIONS
from tensorlogic.ir.types import DTYPES, FLOATS, INTEGERS, ITEMSIZE, dtype_name, promote, scalar_dtype, ufunc_dtype

NUMPY = [d for d in DTYPES if d != "bfloat16"]
OWN = {name for name in FUNCTIONS if not isinstance(getattr(np, name, None), np.ufunc)}
SCALARS: list[Any] = [True, 1, 1.0]


def weak(value: Any) -> tuple[str, bool]:
    return scalar_dtype(value), True


def outcome(make: Any, *args: Any) -> str | None:
    """The name of the dtype that comes out, None where there is none."""
    try:
        with np.errstate(all="ignore"):
            return str(make(*args).dtype.name)
    except TypeError:
        return None


def ours(ufunc: np.ufunc, types: tuple[tuple[str, bool], ...]) -> str | None:
    try:
        return ufunc_dtype(ufunc, types)
    except DTypeError:
        return None


@pytest.mark.parametrize("fn", sorted(f.name for f in FUNCTIONS.values() if f.arity == 1 and f.name not in OWN))
def test_unary(fn: str):
    for d in NUMPY:
        expected = outcome(getattr(np, fn), np.ones(1, d))
        assert ours(FUNCTIONS[fn].dtype_like, ((d, False),)) == expected, d


@pytest.mark.parametrize("fn", sorted(f.name for f in FUNCTIONS.values() if f.arity == 2 and f.name not in OWN))
def test_binary(fn: str):
    ufunc = getattr(np, fn)
    row = FUNCTIONS[fn].dtype_like
    for a, b in itertools.product(NUMPY, NUMPY):
        expected = outcome(ufunc, np.ones(1, a), np.ones(1, b))
        assert ours(row, ((a, False), (b, False))) == expected, (a, b)
    for a, scalar in itertools.product(NUMPY, SCALARS):
        array = np.ones(1, a)
        assert ours(row, ((a, False), weak(scalar))) == outcome(ufunc, array, scalar), (a, scalar)
        assert ours(row, (weak(scalar), (a, False))) == outcome(ufunc, scalar, array), (scalar, a)
    for s, t in itertools.product(SCALARS, SCALARS):
        assert ours(row, (weak(s), weak(t))) == outcome(ufunc, s, t), (s, t)


def test_where():
    b = GraphBuilder()
    for x, y in itertools.product(NUMPY, NUMPY):
        expected = np.where(True, np.ones(1, x), np.ones(1, y)).dtype.name
        assert b.where(True, np.ones(1, x), np.ones(1, y)).dtype == expected
    for x, y in itertools.product(NUMPY, SCALARS):
        assert b.where(True, np.ones(1, x), y).dtype == np.where(True, np.ones(1, x), y).dtype.name


def test_promote_pairs():
    for a, b in itertools.product(NUMPY, NUMPY):
        assert promote([(a, False), (b, False)]) == np.result_type(a, b).name
    for a, scalar in itertools.product(NUMPY, SCALARS):
        expected = np.result_type(np.dtype(a), scalar).name
        assert promote([(a, False), weak(scalar)]) == expected
        assert promote([weak(scalar), (a, False)]) == expected
    for s, t in itertools.product(SCALARS, SCALARS):
        assert promote([weak(s), weak(t)]) == np.result_type(s, t).name


def test_promote_does_not_depend_on_order():
    for three in itertools.product(NUMPY, repeat=3):
        assert promote([(d, False) for d in three]) == np.result_type(*three).name, three


def test_an_einsum_of_three_dtypes():
    arrays = [np.ones(2, d) for d in ("int16", "uint16", "float32")]
    assert GraphBuilder().einsum("i,i,i->i", *arrays).dtype == np.einsum("i,i,i->i", *arrays).dtype.name


BRAIN = ("bfloat16", False)


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        (("bfloat16", False), "bfloat16"),
        (("float16", False), "float32"),
        (("float32", False), "float32"),
        (("float64", False), "float64"),
        (("bool", False), "bfloat16"),
        (("int8", False), "bfloat16"),
        (("int64", False), "bfloat16"),
        (("uint64", False), "bfloat16"),
        (weak(True), "bfloat16"),
        (weak(1), "bfloat16"),
        (weak(1.0), "bfloat16"),
    ],
)
def test_bfloat16(other: tuple[str, bool], expected: str):
    for ufunc in (np.add, np.multiply, np.maximum, np.divide):
        assert ufunc_dtype(ufunc, (BRAIN, other)) == expected
        assert ufunc_dtype(ufunc, (other, BRAIN)) == expected
    assert promote([BRAIN, other]) == promote([other, BRAIN]) == expected
    assert ufunc_dtype(np.less, (BRAIN, other)) == "bool"


def test_bfloat16_of_one_operand():
    assert ufunc_dtype(np.exp, (BRAIN,)) == "bfloat16"
    assert ufunc_dtype(np.isnan, (BRAIN,)) == "bool"
    b = GraphBuilder()
    x = b.input("x", (3,), "bfloat16")
    assert [t.dtype for t in (b.relu(x), b.sum(x), b.mean(x), b.softmax(x), b.gelu(x))] == ["bfloat16"] * 5
    assert (x + 1).dtype == (2 * x).dtype == "bfloat16"


def test_the_dtype_that_is_not_defined_is_named():
    with pytest.raises(DTypeError, match="subtract is not defined for bool and bool") as caught:
        ufunc_dtype(np.subtract, (("bool", False), ("bool", False)))
    assert caught.value.diagnostic.code == "E121"


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("float32", "float32"),
        (np.float32, "float32"),
        (np.dtype(">f4"), "float32"),
        ("f8", "float64"),
        (bool, "bool"),
        (int, "int64"),
        (float, "float64"),
        ("bfloat16", "bfloat16"),
        (np.dtype("u1"), "uint8"),
    ],
)
def test_dtype_names(given: Any, name: str):
    assert dtype_name(given) == name


@pytest.mark.parametrize("given", ["float23", "complex64", "object", "S4", object(), 3, {}, "", "f4,f4", [1], None])
def test_unsupported_dtypes(given: Any):
    with pytest.raises(DTypeError) as caught:
        dtype_name(given)
    assert caught.value.diagnostic.code == "E103"


def test_the_nearest_dtype_is_suggested():
    with pytest.raises(DTypeError) as caught:
        dtype_name("flaot32")
    assert caught.value.diagnostic.suggestions == ("did you mean 'float32'?",)


def test_tables():
    assert {d: np.dtype(d).itemsize for d in NUMPY} == {d: ITEMSIZE[d] for d in NUMPY}
    assert {d for d in NUMPY if np.dtype(d).kind in "iu"} == INTEGERS
    assert {d for d in NUMPY if np.dtype(d).kind == "f"} | {"bfloat16"} == FLOATS


def test_shapes():
    shape = TensorShape(["n", 3, "n + 1"])
    assert (shape.rank, shape.is_static, str(shape)) == (3, False, "[n, 3, n+1]")
    assert repr(shape) == "TensorShape(['n', 3, 'n+1'])"
    assert TensorShape.static_shape([64, 128]) == (64, 128)
    assert TensorShape().is_static
    for bad in ([-1], [1.5], ["n+"], [None]):
        with pytest.raises(ShapeError):
            TensorShape(bad)


def test_types_print():
    assert str(TensorType(TensorShape([2]), None)) == "any[2]"
    assert str(TensorType(None, "int8")) == "int8"
    assert str(TensorType(None, None)) == "any"
