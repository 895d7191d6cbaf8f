"""Gradients beside JAX's: a perceptron, a transformer block, a GRU by scan, and a max-product join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tensorlogic as tl

jax = pytest.importorskip("jax", reason="the bench extra installs JAX")
jnp = jax.numpy


def agree(graph: tl.EinsumGraph, loss: Any, params: dict[str, Any], data: dict[str, Any] | None = None) -> None:
    data = data or {}
    both = tl.value_and_grad(graph, wrt=list(params))
    value, *grads = tl.Executor().execute(both, {**params, **data})
    with jax.enable_x64(True):
        their_value, theirs = jax.jit(jax.value_and_grad(lambda p: loss(**p, **data)))(params)
    np.testing.assert_allclose(value, their_value, rtol=1e-12)
    for name, got in zip(params, grads, strict=True):
        np.testing.assert_allclose(got, theirs[name], rtol=1e-9, atol=1e-12, err_msg=name)


def numbers(rng: Any, **shapes: tuple[int, ...]) -> dict[str, Any]:
    return {name: rng.normal(size=shape) / max(1, shape[0]) ** 0.5 for name, shape in shapes.items()}


def test_perceptron_with_cross_entropy():
    rng = np.random.default_rng(0)
    params = numbers(rng, b0=(16,), b1=(4,), w0=(12, 16), w1=(16, 4))
    x, target = rng.normal(size=(7, 12)), np.eye(4)[rng.integers(0, 4, 7)]
    b = tl.GraphBuilder()
    p = {n: b.input(n, v.shape) for n, v in params.items()}
    h = b.relu(b.linear(b.input("x", ("n", 12)), p["w0"], p["b0"]))
    graph = b.build(loss=b.cross_entropy(b.linear(h, p["w1"], p["b1"]), b.input("target", ("n", 4))))

    def loss(x, target, w0, b0, w1, b1):
        z = jnp.maximum(x @ w0 + b0, 0) @ w1 + b1
        return -jnp.mean(jnp.sum(target * jax.nn.log_softmax(z), -1))

    agree(graph, loss, params, {"x": x, "target": target})


@pytest.mark.parametrize("approximate", [False, True])
def test_transformer_block(approximate):
    batch, length, heads, head = 2, 5, 2, 3
    d = heads * head
    rng = np.random.default_rng(1)
    shapes = {"qkv": (d, 3 * d), "out": (d, d), "up": (d, 4 * d), "down": (4 * d, d)}
    params = numbers(rng, **{f"w_{k}": s for k, s in shapes.items()}, **{f"b_{k}": (s[1],) for k, s in shapes.items()})
    params |= numbers(rng, scale1=(d,), scale2=(d,), bias1=(d,), bias2=(d,), x=(batch, length, d))
    b = tl.GraphBuilder()
    w = {n: b.input(n, v.shape) for n, v in params.items()}
    mask = np.tri(length, dtype=bool)

    def split(z: Any, reshape: Any, transpose: Any) -> list[Any]:
        parts = [z[..., n * d : (n + 1) * d] for n in range(3)]
        return [transpose(reshape(part, (batch, length, heads, head)), (0, 2, 1, 3)) for part in parts]

    x = w["x"]
    z = b.linear(b.layer_norm(x, w["scale1"], w["bias1"]), w["w_qkv"], w["b_qkv"])
    z = b.attention(*split(z, b.reshape, b.transpose), b.constant(mask))
    z = b.reshape(b.transpose(z, (0, 2, 1, 3)), (batch, length, d))
    x = x + b.linear(z, w["w_out"], w["b_out"])
    z = b.linear(b.layer_norm(x, w["scale2"], w["bias2"]), w["w_up"], w["b_up"])
    x = x + b.linear(b.gelu(z, approximate=approximate), w["w_down"], w["b_down"])
    graph = b.build(loss=b.mean(b.square(x)))

    def norm(x, scale, bias):
        away = x - x.mean(-1, keepdims=True)
        return away / jnp.sqrt((away * away).mean(-1, keepdims=True) + 1e-5) * scale + bias

    def loss(x, **w):
        z = norm(x, w["scale1"], w["bias1"]) @ w["w_qkv"] + w["b_qkv"]
        q, k, v = split(z, jnp.reshape, jnp.transpose)
        scores = jnp.where(mask, q @ k.swapaxes(-1, -2) / head**0.5, -jnp.inf)
        z = (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(x.shape)
        x = x + z @ w["w_out"] + w["b_out"]
        z = norm(x, w["scale2"], w["bias2"]) @ w["w_up"] + w["b_up"]
        return jnp.mean((x + jax.nn.gelu(z, approximate=approximate) @ w["w_down"] + w["b_down"]) ** 2)

    agree(graph, loss, params)


@pytest.mark.parametrize("keep", [None, 3])
def test_gru_by_scan(keep):
    steps, size, hidden = 8, 4, 5
    rng = np.random.default_rng(2)
    params = numbers(rng, h0=(hidden,), u=(hidden, 3 * hidden), w=(size, 3 * hidden), x=(steps, size))
    b = tl.GraphBuilder()
    p = {n: b.input(n, ("time", size) if n == "x" else v.shape) for n, v in params.items()}

    def cell(h: Any, x: Any, w: Any, u: Any, of: Any) -> Any:
        a, c = x @ w, h @ u
        update = of.sigmoid(a[:hidden] + c[:hidden])
        reset = of.sigmoid(a[hidden : 2 * hidden] + c[hidden : 2 * hidden])
        return (1 - update) * h + update * of.tanh(a[2 * hidden :] + reset * c[2 * hidden :])

    def step(h, x):
        after = cell(h, x, p["w"], p["u"], b)
        return after, after

    last, states = b.scan(step, p["h0"], p["x"])
    graph = b.build(loss=b.sum(b.square(states)) + b.sum(last))

    def loss(h0, u, w, x):
        def one(h, row):
            after = cell(h, row, w, u, Names)
            return after, after

        end, every = jax.lax.scan(one, h0, x)
        return jnp.sum(every**2) + jnp.sum(end)

    class Names:
        sigmoid, tanh = staticmethod(jax.nn.sigmoid), staticmethod(jnp.tanh)

    both = tl.grad(graph, wrt=list(params), keep=keep)
    with jax.enable_x64(True):
        theirs = jax.jit(jax.grad(lambda p: loss(**p)))(params)
    for name, got in zip(params, tl.Executor().execute(both, params), strict=True):
        np.testing.assert_allclose(got, theirs[name], rtol=1e-9, atol=1e-12)


def test_max_product_join():
    rng = np.random.default_rng(3)
    params = {"a": rng.random((6, 7)), "c": rng.random((7, 5))}
    weight = rng.normal(size=(6, 5))
    b = tl.GraphBuilder()
    y = b.einsum("ij,jk->ik", b.input("a", (6, 7)), b.input("c", (7, 5)), algebra="max_product")
    graph = b.build(loss=b.sum(y * weight))
    agree(graph, lambda a, c: jnp.sum(jnp.max(a[:, :, None] * c[None], axis=1) * weight), params)


def test_hessian_vector_products():
    rng = np.random.default_rng(4)
    params = numbers(rng, w=(4, 3), x=(5, 4))
    v = rng.normal(size=(4, 3))
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 4)), b.input("w", (4, 3))
    graph = b.build(loss=b.sum(b.log_softmax(b.tanh(x @ w)) ** 2))
    ours = tl.Executor().execute(tl.jvp(tl.grad(graph, "w"), "w"), {**params, "t_w": v})["t_d_w"]
    with jax.enable_x64(True):
        by_w = jax.grad(lambda w: jnp.sum(jax.nn.log_softmax(jnp.tanh(params["x"] @ w)) ** 2))
        theirs = jax.jit(lambda w: jax.jvp(by_w, (w,), (v,))[1])(params["w"])
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
