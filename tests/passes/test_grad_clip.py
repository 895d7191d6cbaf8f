"""Clipping and loss scaling, as nodes of the graph that computes the gradients."""

import numpy as np
import pytest

import tensorlogic as tl


def graph(dtype=None):
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n",), dtype), b.input("w", ("n",), dtype)
    return b.build(loss=b.sum(x * x) * 0.5 + b.sum(w * w) * 0.5)


AT = {"x": np.array([3.0, -0.5]), "w": np.array([0.0, 4.0])}


def test_clipping_by_value():
    out = tl.Executor().execute(tl.clip_by_value(tl.value_and_grad(graph()), 1.0), AT)
    assert float(out["loss"]) == 4.625 + 8  # the value is not a gradient
    assert out["d_x"].tolist() == [1.0, -0.5]
    assert out["d_w"].tolist() == [0.0, 1.0]


def test_clipping_by_norm_of_each():
    out = tl.Executor().execute(tl.clip_by_norm(tl.grad(graph()), 4.0), AT)
    np.testing.assert_allclose(out["d_x"], AT["x"])  # short enough
    np.testing.assert_allclose(out["d_w"], [0, 4])
    out = tl.Executor().execute(tl.clip_by_norm(tl.grad(graph()), 1.0, names=["d_w"]), AT)
    np.testing.assert_allclose(out["d_x"], AT["x"])
    np.testing.assert_allclose(out["d_w"], [0, 1])


def test_clipping_by_the_norm_of_all():
    norm = np.sqrt(9.25 + 16)
    for limit in (1.0, 100.0):
        out = tl.Executor().execute(tl.clip_by_global_norm(tl.grad(graph()), limit), AT)
        np.testing.assert_allclose(out["d_x"], AT["x"] * min(1, limit / norm))
        np.testing.assert_allclose(out["d_w"], AT["w"] * min(1, limit / norm))


def test_zero_gradients_stay_zero():
    at = {"x": np.zeros(2), "w": np.zeros(2)}
    for clip in (tl.clip_by_norm, tl.clip_by_global_norm):
        assert not any(g.any() for g in tl.Executor().execute(clip(tl.grad(graph()), 1.0), at))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_clipping_keeps_the_dtype_and_does_not_overflow(dtype):
    at = {"x": np.full(2, 30000, dtype), "w": np.zeros(2, dtype)}
    for clip in (tl.clip_by_value, tl.clip_by_norm, tl.clip_by_global_norm):
        out = tl.Executor().execute(clip(tl.grad(graph(dtype)), 1.0), at)
        assert out["d_x"].dtype == dtype
        assert np.isfinite(out["d_x"]).all()
        assert out["d_x"].all()


def test_a_scaled_loss_saves_small_gradients():
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float16")
    loss = b.build(loss=b.sum(x * x * 1e-6) * np.float16(1e-2))
    at = {"x": np.ones(2, "f2")}
    assert not tl.Executor().execute(tl.grad(loss), at)["d_x"].any()
    scaled = tl.unscale(tl.grad(loss, loss_scale=2.0**14), 2.0**14, dtype="float32")
    np.testing.assert_allclose(tl.Executor().execute(scaled, at)["d_x"], [2e-8, 2e-8], rtol=0.02)


def test_what_is_refused():
    for limit in (0, -1.0, float("nan"), float("inf"), "1"):
        with pytest.raises(tl.InputError, match="positive number"):
            tl.clip_by_value(tl.grad(graph()), limit)
    with pytest.raises(tl.GraphError, match="no output 'd_y'") as error:
        tl.clip_by_norm(tl.grad(graph()), 1.0, names=["d_y"])
    assert "did you mean" in str(error.value)
    with pytest.raises(tl.GraphError, match="no output's name begins with d_"):
        tl.clip_by_norm(graph(), 1.0)
