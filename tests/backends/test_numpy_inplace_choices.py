"""Kernels that choose between elements: the quick ways answer bit by bit as NumPy's own do."""

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.numpy_inplace import _where

RNG = np.random.default_rng(0)


def ran(build, last="exp", **inputs):
    b = tl.GraphBuilder()
    given = {name: b.input(name, value.shape, str(value.dtype)) for name, value in inputs.items()}
    return tl.Executor().execute(b.build(y=getattr(b, last)(build(b, **given))), inputs)["y"]


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("shape", [(64, 4, 2, 32), (3, 1, 1, 5), (1, 1, 1, 1)])
def test_zero_where_a_mask_is_false(dtype, shape):
    x = RNG.normal(size=(shape[0], 1, shape[2], 1)).astype(dtype)
    x[0] = -np.inf
    mask = RNG.random(shape) < 0.5
    with np.errstate(all="ignore"):
        expected = np.exp(np.where(mask, x, np.zeros((), dtype)))
    np.testing.assert_array_equal(ran(lambda b, mask, x: b.where(mask, x, 0), mask=mask, x=x), expected)


def test_zero_where_a_mask_is_false_and_the_rest_lies_anyhow():
    x, mask = RNG.normal(size=(9, 70, 40)).astype("float32"), RNG.random((30, 60, 8)) < 0.5
    expected = np.exp(np.where(mask, x[1:9, 5:65, :30].transpose(2, 1, 0), np.float32(0)))
    found = ran(lambda b, mask, x: b.where(mask, b.transpose(x[1:9, 5:65, :30], (2, 1, 0)), 0), mask=mask, x=x)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bool", "int8"])
@pytest.mark.parametrize("size", [1, 7, 70_000])
def test_one_of_two_by_a_mask(dtype, size):
    x, y = (RNG.normal(size=(2, size)).astype(dtype) for _ in range(2))
    if dtype.startswith("float"):
        x[0, 0], y[0, 0], y[1, 0] = np.nan, -0.0, np.inf
    for mask in (RNG.random((2, size)) < 0.5, RNG.random(size) < 0.5, np.array(True)):
        for b, c in ((x, y), (x[:1], y), (x[0, 0], y), (y, x[0, 0]), (np.zeros((), dtype), y), (x[::-1], y[:, :1])):
            out = np.empty((2, size), dtype)
            _where(mask, np.asarray(b), np.asarray(c), out)
            assert out.tobytes() == np.where(mask, b, c).astype(dtype).tobytes()


def test_sums_of_slices_and_of_rows_have_the_bits_of_numpys_sums():
    slices = (((9, 4, 2, 4, 2, 32), (2, 4)), ((4, 900, 8), (0,)), ((40, 3, 4, 17), (1, 2)))
    rows = (((9, 8, 8, 32), (0, 1, 2)), ((4097, 2), (0,)), ((300, 2, 64), (0,)))
    for shape, axes in (*slices, *rows):
        x = (RNG.normal(size=shape) * 10.0 ** RNG.integers(-4, 4, shape)).astype("float32")
        x[..., :3] = -0.0
        for keepdims in (False, True):
            found = ran(lambda b, x, a=axes, k=keepdims: b.sum(x, a, keepdims=k), "negative", x=x)
            assert found.tobytes() == (-np.sum(x, axes, keepdims=keepdims)).tobytes()  # signs of zeros too


@pytest.mark.parametrize("keepdims", [False, True])
@pytest.mark.parametrize("axes", [(2, 4), (1,), (0, 2)])
@pytest.mark.parametrize("kind", ["max", "min"])
def test_extremes_over_short_axes(kind, axes, keepdims):
    x = RNG.normal(size=(4, 4, 2, 8, 2, 32)).astype("float32")
    x[0, 0, 0, 0, 1, 3], x[1, 1, 1, 1, 0, 0] = np.nan, -np.inf
    expected = np.exp(getattr(np, kind)(x, axes, keepdims=keepdims))
    np.testing.assert_array_equal(ran(lambda b, x: getattr(b, kind)(x, axes, keepdims=keepdims), x=x), expected)
