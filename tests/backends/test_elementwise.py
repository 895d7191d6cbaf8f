"""Element-wise functions against NumPy and SciPy themselves, special values and weak scalars included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import special

import tensorlogic as tl
from tensorlogic.ir.elementwise import FUNCTIONS

DTYPES = ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]  # fmt: skip
TOLERANCE = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-13}


def _sigmoid(x: Any) -> Any:
    return special.expit(x.astype(np.float64))


def _lukasiewicz(x: Any, y: Any) -> Any:
    wide = np.float64 if x.dtype.kind == "f" else object
    return np.maximum(x.astype(wide) + y.astype(wide) - 1, 0)


def _implies(x: Any, y: Any, otherwise: Any) -> Any:
    return np.where(np.isnan(x), np.nan, np.where(x <= y, 1.0, otherwise))


OWN: dict[str, Callable[..., Any]] = {
    "relu": lambda x: np.where(x > 0, x, x * 0 if x.dtype.kind != "f" else np.where(np.isnan(x), np.nan, 0)),
    "step": lambda x: (x > 0).astype(x.dtype),
    "sigmoid": _sigmoid,
    "erf": lambda x: special.erf(x.astype(np.float64)),
    "lukasiewicz": _lukasiewicz,
    "godel_implies": lambda x, y: _implies(x, y, y),
    "goguen_implies": lambda x, y: _implies(x, y, np.divide(y, x)),
    "where": lambda c, x, y: np.where(c.astype(bool), x, y),
}


def _values(dtype: str, which: int) -> Any:
    """Return 16 values with the ends of the dtype's range, zeros of both signs, NaN and infinities among them."""
    if dtype == "bool":
        return np.array([True, False, True, True] * 4 if which else [True, True, False, False] * 4)
    if dtype.startswith("float"):
        top = float(np.finfo(dtype).max)
        special_values = [
            0.0,
            -0.0,
            math.nan,
            math.inf,
            -math.inf,
            1.0,
            -1.0,
            0.5,
            -0.5,
            1.5,
            2.5,
            top,
            -top,
            3.0,
            -7.25,
            1e-3,
        ]
        return np.roll(np.array(special_values, dtype), 5 * which)
    info = np.iinfo(dtype)
    plain = [0, 1, 2, 3, 5, 7, 11, 100, info.max, info.min, max(-1, info.min), max(-2, info.min), 4, 6, 9, 10]
    return np.roll(np.array(plain, dtype), 3 * which)


def _run(fn: str, operands: list[Any], backend: str = "numpy") -> Any:
    b = tl.GraphBuilder()
    tensors = [b.input(f"x{n}", np.shape(x), x.dtype) for n, x in enumerate(operands)]
    graph = b.build(y=getattr(b, fn)(*tensors))
    return tl.Executor(backend).execute(graph, {f"x{n}": x for n, x in enumerate(operands)})["y"]


def _one(build: Callable[[tl.GraphBuilder, Any], Any], x: Any, backend: str = "numpy") -> Any:
    b = tl.GraphBuilder()
    graph = b.build(y=build(b, b.input("x", np.shape(x), np.asarray(x).dtype)))
    return tl.Executor(backend).execute(graph, {"x": x})["y"]


def _operands(fn: str, dtype: str) -> list[Any]:
    operands = [_values(dtype, n) for n in range(FUNCTIONS[fn].arity)]
    if dtype.startswith("float") or dtype == "bool":
        return operands
    if fn == "power":
        operands[1] = np.abs(operands[1] % 5)
    if fn == "reciprocal":
        operands[0][operands[0] == 0] = 1
    if fn == "lukasiewicz":
        operands = [x % 2 for x in operands]
    return operands


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_function(fn: str, dtype: str) -> None:
    operands = _operands(fn, dtype)
    function = OWN.get(fn) or getattr(np, fn)
    with np.errstate(all="ignore"):
        try:
            expected = np.asarray(function(*operands))
        except TypeError:  # NumPy does not define it either
            with pytest.raises(tl.DTypeError, match=f"not defined for {dtype}"):
                _run(fn, operands)
            return
        if fn == "lukasiewicz" and dtype == "bool":
            with pytest.raises(tl.DTypeError):
                _run(fn, operands)
            return
    got = _run(fn, operands)
    promised = {"relu": dtype, "step": dtype, "lukasiewicz": dtype, "where": dtype}.get(fn)
    if fn in ("erf", "sigmoid"):
        promised = str(np.exp(np.zeros(1, dtype)).dtype)
    if fn.endswith("_implies"):
        promised = str(np.divide(np.ones(1, dtype), np.ones(1, dtype)).dtype)
    assert got.dtype == (promised or expected.dtype)
    assert got.shape == expected.shape
    with np.errstate(all="ignore"):
        wanted = expected.astype(got.dtype)
    if got.dtype.kind == "f":
        tolerance = TOLERANCE[got.dtype.name]
        np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)
        np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted))
    else:
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(
    "fn", ["negative", "sqrt", "sin", "tan", "arctan", "tanh", "sinh", "erf", "floor", "trunc", "rint"]
)
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_the_sign_of_zero(fn: str, backend: str) -> None:
    x = np.array([0.0, -0.0])
    expected = special.erf(x) if fn == "erf" else getattr(np, fn)(x)
    np.testing.assert_array_equal(np.signbit(_run(fn, [x], backend)), np.signbit(expected))


@pytest.mark.parametrize("fn", ["add", "multiply", "maximum", "divide", "less", "where", "arctan2"])
def test_broadcasting(fn: str) -> None:
    rng = np.random.default_rng(0)
    operands = [rng.random((4, 1, 3)), rng.random((5, 1)), rng.random((1,))][: FUNCTIONS[fn].arity]
    function = OWN.get(fn) or getattr(np, fn)
    np.testing.assert_allclose(_run(fn, operands), function(*operands))


@pytest.mark.parametrize("left", DTYPES)
@pytest.mark.parametrize("fn", ["add", "divide", "floor_divide", "maximum", "less", "power", "arctan2"])
def test_mixed_dtypes_promote_as_numpy_does(fn: str, left: str) -> None:
    for right in DTYPES:
        x, y = np.ones(2, left), np.ones(2, right)
        with np.errstate(all="ignore"):
            expected = getattr(np, fn)(x, y)
        got = _run(fn, [x, y])
        assert got.dtype == expected.dtype, (left, right)
        np.testing.assert_array_equal(got, expected)


# Python scalars are weak: they do not widen what they meet


@pytest.mark.parametrize(
    ("build", "x", "expected"),
    [
        (lambda b, x: x * 2.0, np.float32([1.5]), np.float32([3.0])),
        (lambda b, x: 2.0 * x, np.float16([1.5]), np.float16([3.0])),
        (lambda b, x: x + 1, np.int8([126, 127]), np.int8([127, -128])),
        (lambda b, x: 1 - x, np.uint8([0, 2]), np.uint8([1, 255])),
        (lambda b, x: x + 1.0, np.int8([1]), np.float64([2.0])),
        (lambda b, x: x + 1, np.array([True, False]), np.int64([2, 1])),
        (lambda b, x: x + True, np.int8([1]), np.int8([2])),
        (lambda b, x: x < 300, np.uint8([0, 255]), np.array([True, True])),
        (lambda b, x: x > -1, np.uint8([0, 255]), np.array([True, True])),
        (lambda b, x: x == 2**70, np.int64([5]), np.array([False])),
        (lambda b, x: x // 0, np.int32([3, -3]), np.int32([0, 0])),
        (lambda b, x: x % 0, np.int32([3, -3]), np.int32([0, 0])),
        (lambda b, x: x // 0, np.float64([1, -1, 0]), np.float64([np.inf, -np.inf, np.nan])),
        (lambda b, x: x / 0, np.int32([1, -1, 0]), np.float64([np.inf, -np.inf, np.nan])),
        (lambda b, x: x**2, np.int8([11, 12]), np.int8([121, -112])),
        (lambda b, x: x**0.5, np.float32([4.0]), np.float32([2.0])),
        (lambda b, x: x**2.0, np.int32([3]), np.float64([9.0])),
        (lambda b, x: b.where(x > 0, x, 0.0), np.float32([1, -1]), np.float32([1, 0])),
        (lambda b, x: b.maximum(x, 0), np.float16([1, -1]), np.float16([1, 0])),
        (lambda b, x: b.clip(x, 0, 1), np.int8([-5, 5]), np.int8([0, 1])),
        (lambda b, x: -x, np.uint8([1, 0]), np.uint8([255, 0])),
        (lambda b, x: abs(x), np.int8([-128, -1]), np.int8([-128, 1])),
        (lambda b, x: ~(x > 1) ^ True, np.int8([0, 2]), np.array([False, True])),
        (lambda b, x: x + (b.add(1, 2) * 1.5), np.float32([0]), np.float64([4.5])),
    ],
)  # fmt: skip
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_weak_scalars(build: Any, x: Any, expected: Any, backend: str) -> None:
    got = _one(build, x, backend)
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "build",
    [
        lambda b, x: x + 300,
        lambda b, x: 300 - x,
        lambda b, x: x // 300,
        lambda b, x: b.maximum(x, -1),
        lambda b, x: b.where(x > 0, x, 300),
        lambda b, x: b.pad(x, [(1, 1)], 300),
    ],
    ids=["add", "subtract", "floor_divide", "maximum", "where", "pad"],
)
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_a_python_integer_that_the_dtype_cannot_hold_is_refused(build: Any, backend: str) -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=build(b, b.input("x", (2,), "uint8")))
    with pytest.raises(tl.ExecutionError, match=r"300|-1") as caught:
        tl.Executor(backend).execute(graph, {"x": np.uint8([0, 1])})
    assert "test_elementwise.py" in str(caught.value)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda b, x: x < 300, np.array([True, True])),
        (lambda b, x: x >= -1, np.array([True, True])),
        (lambda b, x: b.equal(x, 300), np.array([False, False])),
        (lambda b, x: x / 300, np.array([0, 1 / 300])),
        (lambda b, x: b.where(300, x, 7), np.uint8([0, 1])),
        (lambda b, x: x + 255, np.uint8([255, 0])),
    ],
    ids=["less", "greater_equal", "equal", "divide", "where", "add"],
)
@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_a_python_integer_that_makes_no_narrow_integer_is_free(build: Any, expected: Any, backend: str) -> None:
    b = tl.GraphBuilder()
    graph = b.build(y=build(b, b.input("x", (2,), "uint8")))
    got = tl.Executor(backend).execute(graph, {"x": np.uint8([0, 1])})["y"]
    assert got.dtype == expected.dtype
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", ["int64", "int8", "uint64"])
def test_large_powers_of_integers_wrap_as_numpys_do(dtype: str) -> None:
    limits = np.iinfo(dtype)
    values = np.array([0, 1, 2, 3, limits.max, limits.min, limits.max - 1, limits.min + 7], dtype)
    powers = np.array([0, 1, 63, 64, 65, 100, limits.max, limits.max - 1], dtype)
    b = tl.GraphBuilder()
    graph = b.build(y=b.power(b.input("x", (8, 1), dtype), b.input("p", (1, 8), dtype)))
    for backend in ("numpy", "reference"):  # without the last 64 bits alone, the reference would need all digits
        out = tl.Executor(backend).execute(graph, {"x": values[:, None], "p": powers[None]})["y"]
        np.testing.assert_array_equal(out, np.power(values[:, None], powers[None]))


def test_an_integer_to_a_negative_power_is_refused() -> None:
    with pytest.raises(tl.ExecutionError, match="negative integer powers"):
        _one(lambda b, x: x**-1, np.int64([2]))


def test_no_warning_escapes() -> None:
    x = np.array([-1.0, 0.0, 1e308, np.nan])
    for fn in ("log", "sqrt", "exp", "reciprocal", "square", "arcsin", "log1p", "sinh"):
        _run(fn, [x])
    _one(lambda b, t: b.cast(t, "int8"), x)
    _one(lambda b, t: b.cast(t, "float16"), x)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_large_and_small_arguments_stay_accurate(dtype: str) -> None:
    x = np.array([-745.0, -100.0, -30.0, -1e-8, 1e-8, 30.0, 88.0], dtype)
    wide = x.astype(np.float64)
    tolerance = 4e-7 if dtype == "float32" else 1e-14
    for fn, exact in (("sigmoid", special.expit), ("expm1", np.expm1), ("erf", special.erf), ("tanh", np.tanh)):
        with np.errstate(all="ignore"):
            wanted = exact(wide).astype(dtype)
        np.testing.assert_allclose(_run(fn, [x]), wanted, rtol=tolerance, atol=np.finfo(dtype).tiny)
    got = _one(lambda b, t: b.softplus(t), x)
    np.testing.assert_allclose(got, np.logaddexp(wide, 0), rtol=tolerance, atol=np.finfo(dtype).tiny)


def test_casts_as_numpy() -> None:
    x = np.array([0.0, -0.0, 1.9, -1.9, 0.1, 250.7])
    for dtype in DTYPES:
        with np.errstate(all="ignore"):
            expected = x.astype(dtype)
        got = _one(lambda b, t, dtype=dtype: b.cast(t, dtype), x)
        assert got.dtype == dtype
        np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_quantize_saturates_at_both_ends(backend: str) -> None:
    x = np.array([np.inf, 1e30, 2.5, 3.5, -1e30, -np.inf, np.nan])
    for dtype in ("int8", "uint8", "int32", "int64"):
        info = np.iinfo(dtype)
        got = _one(lambda b, t, dtype=dtype: b.quantize(t, np.float32(1), 0, dtype), x, backend)
        assert got.tolist() == [info.max, info.max, 2, 4, info.min, info.min, 0], dtype


@pytest.mark.parametrize("backend", ["numpy", "reference"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_literal_is_rounded_to_the_floats_it_meets(dtype: str, backend: str) -> None:
    """The reference once compared and multiplied with the float64 itself, unlike NumPy and every other road."""
    b = tl.GraphBuilder()
    x = b.input("x", (3,), dtype)
    graph = b.build(same=b.equal(x, 0.1), below=b.less(x, 0.1), product=x * 0.1, whole=x + (2**24 + 1))
    data = np.array([0.1, -1.625, 0.7], dtype)
    got = tl.Executor(backend).execute(graph, {"x": data})
    assert np.array_equal(got["same"], data == 0.1) and got["same"][0]
    assert np.array_equal(got["below"], data < 0.1)
    assert np.array_equal(got["product"], data * 0.1)
    with np.errstate(over="ignore"):
        assert np.array_equal(got["whole"], data + (2**24 + 1))


@pytest.mark.parametrize(
    "x", [np.array([-125, -100, 3, 100], "int8"), np.array([200, 3], "uint8"), np.array([-(2**62) - 9, 2**62, 7])]
)
def test_a_lukasiewicz_sum_that_overflows_wraps_around_before_it_is_bounded(x: np.ndarray) -> None:
    b = tl.GraphBuilder()
    y = b.input("x", x.shape)
    graph = b.build(y=b.lukasiewicz(y, y))
    for backend in ("numpy", "reference"):
        assert np.array_equal(tl.Executor(backend).execute(graph, {"x": x})["y"], np.maximum(x + x, 1) - 1)
