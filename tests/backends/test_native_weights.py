"""Products with packed weights: near what the unpacked weights give, within a bound that is stated."""

from __future__ import annotations

import numpy as np
import pytest

from tensorlogic.backends.native import support

if not support.usable():
    pytest.skip("numba cannot be used", allow_module_level=True)

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
    for rows in (1, 3, 5, FEW + 1):
        for columns, depth in SHAPES:
            for group in (None, 32, 64, 128, 256, 7):
                x = rng.standard_normal((rows, depth)).astype(np.float32)
                zeros = kind != "binary" and group in (None, 32, 128)
                check(x, *draw(rng, kind, columns, depth, group, zeros))


def test_weights_are_rounded_once() -> None:
    """Each weight is (number - zero) * scale rounded once; with one 1 in a row, the product is the weight."""
    rng = np.random.default_rng(1)
    weights, floats = draw(rng, "int4", 6, 40, 8, zeros=True)
    for times in (1, FEW // 40 + 1):
        out = np.empty((40 * times, 6), np.float32)
        weight_matmul(np.tile(np.eye(40, dtype=np.float32), (times, 1)), weights, out)
        np.testing.assert_array_equal(out, np.tile(floats.T.astype(np.float32), (times, 1)))


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
