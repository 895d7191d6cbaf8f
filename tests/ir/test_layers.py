"""Layers against plain NumPy formulas, on both backends."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import GraphBuilder, ShapeError

RNG = np.random.default_rng(7)
X = RNG.normal(size=(3, 5))
WIDE = np.concatenate([X * 400, [[0.0, -800.0, 800.0, 1e-3, -1e-3]]])
ERF = np.vectorize(math.erf)


def check(
    make: Callable[..., Any],
    expected: Any,
    *arrays: Any,
    shapes: tuple[Any, ...] | None = None,
    rtol: float = 1e-12,
    atol: float = 1e-14,
) -> None:
    """Build ``make(b, *inputs)`` and compare with the expected array, with static, named and unknown shapes."""
    arrays = tuple(np.asarray(a) for a in arrays)
    for given in (tuple(a.shape for a in arrays), shapes):
        if given is None:
            continue
        b = GraphBuilder()
        inputs = [b.input(f"x{n}", s, a.dtype) for n, (s, a) in enumerate(zip(given, arrays, strict=True))]
        graph = b.build(y=make(b, *inputs))
        for backend in ("numpy", "reference"):
            found = tl.Executor(backend).execute(graph, {f"x{n}": a for n, a in enumerate(arrays)})["y"]
            assert found.dtype == graph.type_of(graph.outputs[0][1]).dtype
            assert found.shape == np.shape(expected)
            np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def softmax(x: Any, axis: Any = -1) -> Any:
    with np.errstate(invalid="ignore"):
        e = np.exp(x - np.max(x, axis=axis, keepdims=True))
        return e / e.sum(axis=axis, keepdims=True)


@pytest.mark.parametrize("axis", [-1, 0, 1, (0, 1)])
def test_softmax(axis: Any):
    check(lambda b, x: b.softmax(x, axis), softmax(X, axis), X, shapes=(("n", "m"),))
    check(lambda b, x: b.softmax(x, axis), softmax(WIDE, axis), WIDE)


def test_softmax_without_a_known_rank():
    check(lambda b, x: b.softmax(x), softmax(X), X, shapes=(None,))


def test_softmax_with_some_minus_infinity():
    x = np.array([[0.0, -np.inf, 1.0], [-np.inf, -np.inf, 2.0]])
    check(lambda b, x: b.softmax(x), softmax(x), x)


@pytest.mark.parametrize("axis", [-1, 0, None, (0, 1)])
@pytest.mark.parametrize("keepdims", [False, True])
def test_logsumexp(axis: Any, keepdims: bool):
    top = WIDE.max(axis=axis, keepdims=True)
    expected = np.log(np.exp(WIDE - top).sum(axis=axis, keepdims=True)) + top
    if not keepdims:
        expected = expected.sum(axis=axis)
    check(lambda b, x: b.logsumexp(x, axis, keepdims=keepdims), expected, WIDE, shapes=(("n", "m"),))


def test_logsumexp_of_infinities():
    x = np.array([[-np.inf, -np.inf], [-np.inf, 1.0], [np.inf, 0.0], [np.inf, -np.inf], [np.nan, 0.0]])
    check(lambda b, x: b.logsumexp(x), np.array([-np.inf, 1.0, np.inf, np.inf, np.nan]), x)


def test_log_softmax():
    check(lambda b, x: b.log_softmax(x), np.log(softmax(X)), X, shapes=(("n", "m"),), rtol=1e-10)
    top = WIDE.max(1, keepdims=True)
    expected = WIDE - top - np.log(np.exp(WIDE - top).sum(1, keepdims=True))
    check(lambda b, x: b.log_softmax(x, 1), expected, WIDE)


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 1)])
def test_var(axis: Any):
    check(lambda b, x: b.var(x, axis), X.var(axis=axis), X, shapes=(("n", "m"),))
    check(lambda b, x: b.var(x, axis, keepdims=True), X.var(axis=axis, keepdims=True), X)
    whole = np.arange(6).reshape(2, 3)
    check(lambda b, x: b.var(x, axis), whole.var(axis=axis), whole)


def test_layer_norm():
    scale, bias = RNG.normal(size=5), RNG.normal(size=5)
    expected = (X - X.mean(-1, keepdims=True)) / np.sqrt(X.var(-1, keepdims=True) + 1e-5)
    check(lambda b, x: b.layer_norm(x), expected, X, shapes=(("n", "m"),))
    check(lambda b, x, s, c: b.layer_norm(x, s, c), expected * scale + bias, X, scale, bias)
    check(lambda b, x, s: b.layer_norm(x, s), expected * scale, X, scale)
    check(lambda b, x, c: b.layer_norm(x, bias=c), expected + bias, X, bias)
    both = (X - X.mean()) / np.sqrt(X.var() + 0.5)
    check(lambda b, x: b.layer_norm(x, axis=(0, 1), eps=0.5), both, X)


def test_rms_norm():
    scale = RNG.normal(size=5)
    expected = X / np.sqrt((X**2).mean(-1, keepdims=True) + 1e-5)
    check(lambda b, x: b.rms_norm(x), expected, X, shapes=(("n", "m"),))
    check(lambda b, x, s: b.rms_norm(x, s), expected * scale, X, scale)
    check(lambda b, x: b.rms_norm(x, axis=0, eps=2.0), X / np.sqrt((X**2).mean(0) + 2), X)


def test_batch_norm():
    mean, var, scale, bias = RNG.normal(size=5), RNG.random(5), RNG.normal(size=5), RNG.normal(size=5)
    expected = (X - mean) / np.sqrt(var + 1e-5)
    check(lambda b, x, m, v: b.batch_norm(x, m, v), expected, X, mean, var)
    check(lambda b, x, m, v: b.batch_norm(x, m, v, scale, bias, eps=0.1),
          (X - mean) / np.sqrt(var + 0.1) * scale + bias, X, mean, var, shapes=(("n", "m"), ("m",), ("m",)))  # fmt: skip


def test_gelu():
    check(lambda b, x: b.gelu(x), 0.5 * X * (1 + ERF(X / np.sqrt(2))), X, shapes=(None,))
    inner = np.sqrt(2 / np.pi) * (X + 0.044715 * X**3)
    check(lambda b, x: b.gelu(x, approximate=True), 0.5 * X * (1 + np.tanh(inner)), X, shapes=(("n", "m"),))
    far = np.array([-1e3, -40.0, 0.0, 40.0, 1e3])
    check(lambda b, x: b.gelu(x), np.maximum(far, 0), far)
    check(lambda b, x: b.gelu(x, approximate=True), np.maximum(far, 0), far)


def test_silu():
    check(lambda b, x: b.silu(x), X / (1 + np.exp(-X)), X, shapes=(None,))
    far = np.array([-1e3, 1e3])
    check(lambda b, x: b.silu(x), np.array([0.0, 1e3]), far)


def test_elu():
    check(lambda b, x: b.elu(x), np.where(X > 0, X, np.expm1(np.minimum(X, 0))), X, shapes=(None,))
    check(lambda b, x: b.elu(x, 0.3), np.where(X > 0, X, 0.3 * np.expm1(np.minimum(X, 0))), X)
    check(lambda b, x: b.elu(x), np.array([1e3, -1.0]), np.array([1e3, -1e3]))


def test_leaky_relu():
    check(lambda b, x: b.leaky_relu(x), np.where(X > 0, X, 0.01 * X), X, shapes=(None,))
    check(lambda b, x: b.leaky_relu(x, 0.2), np.where(X > 0, X, 0.2 * X), X)


def test_softplus():
    check(lambda b, x: b.softplus(x), np.log1p(np.exp(X)), X, shapes=(None,))
    check(lambda b, x: b.softplus(x), np.array([0.0, 1000.0]), np.array([-1000.0, 1000.0]))


def test_relu_and_sigmoid():
    check(lambda b, x: b.relu(x), np.maximum(X, 0), X, shapes=(None,))
    check(lambda b, x: b.sigmoid(x), 1 / (1 + np.exp(-X)), X, shapes=(None,))
    check(lambda b, x: b.sigmoid(x), np.array([0.0, 0.5, 1.0]), np.array([-1e3, 0.0, 1e3]))


@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_linear(lead: tuple[int, ...]):
    x, w, c = RNG.normal(size=(*lead, 4)), RNG.normal(size=(4, 2)), RNG.normal(size=2)
    check(lambda b, x, w: b.linear(x, w), x @ w, x, w, shapes=(None, ("i", "j")))
    check(lambda b, x, w, c: b.linear(x, w, c), x @ w + c, x, w, c)


def test_linear_refuses_other_widths():
    b = GraphBuilder()
    with pytest.raises(ShapeError, match=r"index 'i' is 5 in operand 0 \('x'\) but 4 in operand 1 \('w'\)"):
        b.linear(b.input("x", (3, 5)), b.input("w", (4, 2)))


def attention(q: Any, k: Any, v: Any, mask: Any = None) -> Any:
    scores = q @ np.swapaxes(k, -1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf)
    return softmax(scores) @ v


@pytest.mark.parametrize("lead", [(), (2,), (2, 3)])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(lead: tuple[int, ...], masked: bool):
    q, k, v = (RNG.normal(size=(*lead, n, d)) for n, d in ((3, 5), (4, 5), (4, 2)))
    names = tuple(f"l{n}" for n in range(len(lead)))
    shapes = ((*names, "q", "d"), (*names, "k", "d"), (*names, "k", "e"))
    if not masked:
        check(lambda b, q, k, v: b.attention(q, k, v), attention(q, k, v), q, k, v, shapes=shapes)
        return
    mask = RNG.random((3, 4)) < 0.6
    mask[:, 0] = True
    expected = attention(q, k, v, mask)
    check(lambda b, q, k, v, m: b.attention(q, k, v, m), expected, q, k, v, mask, shapes=(*shapes, ("q", "k")))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_attention_keeps_its_dtype_whether_sizes_are_named_or_not(dtype: str):
    for width in (4, "d"):
        b = GraphBuilder()
        q, k, v = (b.input(n, (r, width), dtype) for n, r in (("q", 2), ("k", 3), ("v", 3)))
        assert b.attention(q, k, v).dtype == dtype


def test_mean_squared_error():
    y = RNG.normal(size=(3, 5))
    check(lambda b, x, y: b.mean_squared_error(x, y), ((X - y) ** 2).mean(), X, y, shapes=(("n", "m"), ("n", "m")))


@pytest.mark.parametrize("axis", [-1, 0])
def test_cross_entropy(axis: int):
    target = softmax(RNG.normal(size=(3, 5)), axis)
    expected = -(target * np.log(softmax(X, axis))).sum(axis).mean()
    check(lambda b, x, t: b.cross_entropy(x, t, axis), expected, X, target, shapes=(("n", "m"), ("n", "m")))


def test_one_hot():
    index = np.array([[0, 2], [1, 3]])
    expected = np.eye(4, dtype="float32")[index]
    check(lambda b, i: b.one_hot(i, 4), expected, index, shapes=(("n", "m"),))
    check(lambda b, i: b.one_hot(i, 4, "bool"), expected.astype(bool), index)
    check(lambda b, i: b.one_hot(i, 4), np.zeros((1, 4), "float32"), np.array([9]))
    check(lambda b, i: b.one_hot(i, 3), np.array([0, 1, 0], "float32"), np.array(1))


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_layers_keep_the_dtype(dtype: str):
    b = GraphBuilder()
    x = b.input("x", (3, 4), dtype)
    layers = [
        b.softmax(x), b.log_softmax(x), b.logsumexp(x), b.layer_norm(x), b.rms_norm(x), b.gelu(x), b.silu(x), b.elu(x),
        b.gelu(x, approximate=True), b.leaky_relu(x), b.softplus(x), b.relu(x), b.sigmoid(x), b.var(x), b.attention(x, x, x),
        b.linear(x, np.ones((4, 2), dtype)), b.cross_entropy(x, x), b.mean_squared_error(x, x), b.clip(x, 0, 1),
    ]  # fmt: skip
    assert {t.dtype for t in layers} == {dtype}
    out = tl.Executor().execute(b.build({f"y{n}": t for n, t in enumerate(layers)}), {"x": np.ones((3, 4), dtype)})
    assert {a.dtype.name for a in out} == {dtype}


def test_layers_that_need_a_rank_say_so():
    b = GraphBuilder()
    x = b.input("x")
    for make in (lambda: b.attention(x, x, x), lambda: b.one_hot(x, 3), lambda: x.T, lambda: x[0], lambda: x @ x):
        with pytest.raises(ShapeError, match="rank") as caught:
            make()
        assert "b.input('x', ('n', 3))" in caught.value.diagnostic.suggestions[0]
