"""Products with packed weights: near what the unpacked weights give, within a bound that is stated."""

from __future__ import annotations

import numpy as np
import pytest

from tensorlogic.backends.native import support

if not support.usable():
    pytest.skip("numba cannot be used", allow_module_level=True)

from tensorlogic.backends.native import weight_matmul as kernels
from tensorlogic.backends.native.dot_instructions import PLAIN, DotForm
from tensorlogic.backends.native.weight_matmul import FEW, Weights, weight_matmul
from tensorlogic.backends.threads import with_threads
from tensorlogic.ir.packed_numbers import KINDS, pack

EPS = 2.0**-24
SHAPES = [(3, 5), (7, 64), (9, 333), (4, 1024), (1, 1)]


def draw(
    rng: np.random.Generator, kind: str, rows: int, depth: int, group: int | None, zeros: bool
) -> tuple[Weights, np.ndarray]:
    """Packed weights of a kind, and (number - zero) as whole numbers beside the scale of each."""
    row = KINDS[kind]
    numbers = rng.integers(row.low, row.high + 1, (rows, depth))
    if kind == "binary":
        numbers = np.where(numbers < 0, -1, 1)
    small = numbers.astype(row.dtype)
    data = small.view(np.uint8) if row.bits == 8 else pack(small, row.bits)
    size = group or depth
    groups = -(-depth // size)
    scales = (rng.random((rows, groups)) + 0.5).astype(np.float32)
    zero = rng.integers(row.low, row.high + 1, (rows, groups)).astype(np.int32) if zeros else None
    away = numbers - (0 if zero is None else np.repeat(zero, size, 1)[:, :depth])
    return Weights(data, row.bits, row.low < 0, depth, scales, zero, size), away * np.repeat(scales, size, 1)[
        :, :depth
    ].astype(float)


def check(x: np.ndarray, weights: Weights, floats: np.ndarray) -> None:
    out = np.full((len(x), len(floats)), np.nan, np.float32)
    weight_matmul(x, weights, out)
    exact = x.astype(float) @ floats.T
    # as many roundings as terms at the most, of products of what the bits can be, not of what they happen to be
    most = np.repeat(weights.scales, weights.group, 1)[:, : weights.depth] * 2.0**weights.bits
    bound = EPS * (weights.depth / 8 + 16) * (np.abs(x).astype(float) @ (np.abs(floats) + most).T)
    assert (np.abs(out - exact) <= bound).all(), np.abs(out - exact).max()


@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "int2", "ternary", "binary"])
def test_products_are_near_those_of_the_unpacked_weights(kind: str) -> None:
    rng = np.random.default_rng(0)
    for rows in (1, 3, FEW + 1):
        for columns, depth in SHAPES:
            for group in (None, 32, 64, 128, 256, 96, 7) if kind == "int4" else (None, 32, 7):
                x = rng.standard_normal((rows, depth)).astype(np.float32)
                zeros = kind != "binary" and group in (None, 32, 128)
                check(x, *draw(rng, kind, columns, depth, group, zeros))


def test_weights_are_rounded_once() -> None:
    """Each weight is (number - zero) * scale rounded once; with one 1 in a row, the product is the weight."""
    weights, floats = draw(np.random.default_rng(1), "int4", 6, 64, 32, zeros=True)
    for rows in (1, 64):
        for first in range(0, 64, rows):
            out = np.empty((rows, 6), np.float32)
            weight_matmul(np.eye(64, dtype=np.float32)[first : first + rows], weights, out)
            np.testing.assert_array_equal(out, floats.T.astype(np.float32)[first : first + rows])


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_few_rows_are_added_up_exactly(kind: str) -> None:
    """A row is rounded to 2 ** -23 of its largest element at the least; nothing else is rounded before the sums are scaled."""
    rng = np.random.default_rng(6)
    weights, floats = draw(rng, kind, 5, 3001, None, zeros=True)
    x = rng.standard_normal((1, 3001)).astype(np.float32) * np.exp(rng.normal(size=3001) * 3).astype(np.float32)
    out = np.empty((1, 5), np.float32)
    weight_matmul(x, weights, out)
    exact = x.astype(float) @ floats.T
    lost = 2.0**-24 * np.abs(x).max() * np.abs(floats).sum(1)
    assert (np.abs(out - exact) <= lost + 16 * EPS * (np.abs(x).astype(float) @ np.abs(floats).T)).all()
    whole = rng.integers(-1000, 1000, x.shape).astype(np.float32)
    ones = weights._replace(scales=np.ones_like(weights.scales))
    weight_matmul(whole, ones, out)
    assert weights.zeros is not None
    numbers = np.rint(floats / weights.scales)  # what the scales were multiplied with
    np.testing.assert_array_equal(out, (whole.astype(float) @ numbers.T).astype(np.float32))


@pytest.mark.parametrize("kind", ["int8", "uint8", "int4", "int2"])
def test_the_largest_sums_of_long_rows_do_not_wrap(kind: str) -> None:
    row = KINDS[kind]
    low_limbs = (127 * 2**16 - 128 * 2**8 - 128) * 2.0**-23  # limbs of bytes are as large, and as small, as they can be
    for number, zero in ((row.low, row.high), (row.high, row.low)):
        numbers = np.full((2, 40_000), number, row.dtype)
        data = numbers.view(np.uint8) if row.bits == 8 else pack(numbers, row.bits)
        ones = np.ones((2, 1), np.float32)
        weights = Weights(data, row.bits, row.low < 0, 40_000, ones, np.full((2, 1), zero, np.int32), 40_000)
        out = np.empty((1, 2), np.float32)
        for value in (1 - 2.0**-24, low_limbs, -low_limbs):
            weight_matmul(np.full((1, 40_000), value, np.float32), weights, out)
            np.testing.assert_allclose(out, (number - zero) * 40_000 * value, rtol=1e-6)


def test_zero_points_beyond_the_numbers_are_not_lost() -> None:
    rng = np.random.default_rng(7)
    weights, floats = draw(rng, "int4", 4, 64, None, zeros=False)
    far = weights._replace(zeros=np.full((4, 1), 100_000, np.int32))
    check(rng.standard_normal((1, 64)).astype(np.float32), far, floats - 1e5 * weights.scales.astype(float))


# instructions of other processors, as plain vector arithmetic
OTHERS = {
    "vpdpbusd": DotForm(4, 8, 6, 2, "", True),
    "wide vpdpbusd": DotForm(4, 16, 6, 2, "", True),
    "sdot": DotForm(4, 4, 8, 3, ""),
    "pairs": PLAIN,
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_forms_of_other_processors_give_products_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "dot_form", lambda: OTHERS[name])
    rng = np.random.default_rng(8)
    kinds = {"vpdpbusd": "int8 uint8 int4 binary", "sdot": "int8 uint8 int4 binary", "pairs": "int4 int2 binary"}
    for kind in kinds.get(name, "int4").split():
        zeros, group = kind == "uint8", 32 if kind == "int4" else None
        check(rng.standard_normal((2, 256)).astype(np.float32), *draw(rng, kind, 3, 256, group, zeros))
    x = rng.standard_normal((FEW + 1, 200)).astype(np.float32)
    check(x, *draw(rng, "int4", 3, 200, None, False))


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_what_is_not_finite_or_too_small_gives_what_blas_gives(kind: str) -> None:
    rng = np.random.default_rng(2)
    weights, floats = draw(rng, kind, 9, 100, None, zeros=True)
    for special in (np.inf, -np.inf, np.nan, np.float32(1e-40), np.float32(3e38)):
        x = np.zeros((2, 100), np.float32)
        x[:, 3], x[1, 4] = special, 1
        out = np.empty((2, 9), np.float32)
        with np.errstate(all="ignore"):
            weight_matmul(x, weights, out)
            expected = x @ floats.astype(np.float32).T
        np.testing.assert_allclose(out, expected, rtol=1e-6, atol=0)


def test_threads_share_columns_and_give_the_same_bits() -> None:
    rng = np.random.default_rng(3)
    weights, _ = draw(rng, "int4", 37, 200, 64, zeros=False)
    x = rng.standard_normal((2, 200)).astype(np.float32)
    results = []
    for count in (1, 3):
        out = np.empty((2, 37), np.float32)
        with_threads(weight_matmul, count)(x, weights, out)
        results.append(out)
    np.testing.assert_array_equal(*results)


def test_empty_products() -> None:
    weights, _ = draw(np.random.default_rng(4), "int4", 5, 8, None, zeros=False)
    weight_matmul(np.zeros((0, 8), np.float32), weights, np.empty((0, 5), np.float32))
    out = np.ones((2, 5), np.float32)
    nothing = weights._replace(data=weights.data[:, :0], depth=0)
    weight_matmul(np.zeros((2, 0), np.float32), nothing, out)
    assert not out.any()
