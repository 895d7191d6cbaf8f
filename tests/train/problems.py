"""Small things to learn."""

import numpy as np

import tensorlogic as tl


def regression(dtype="float32"):
    """A linear model of three inputs, with a squared error and its mean absolute one as a figure."""
    b = tl.GraphBuilder()
    x, y = b.input("x", ("n", 3), dtype), b.input("y", ("n",), dtype)
    w, c = b.input("w", (3,), dtype), b.input("c", (), dtype)
    p = b.einsum("ni,i->n", x, w) + c
    return b.build(loss=b.mean_squared_error(p, y), error=b.mean_absolute_error(p, y), p=p)


def regression_data(rows=40, dtype="float32"):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, 3)).astype(dtype)
    return {"x": x, "y": (x @ np.array([1.0, -2.0, 0.5], dtype) + 3).astype(dtype)}


def regression_params(dtype="float32"):
    return {"w": np.array([0.1, 0.2, 0.3], dtype), "c": np.array(0.0, dtype)}


def gradients(params, data):
    """The gradients of the regression, by hand."""
    x, y = data["x"], data["y"]
    away = 2 * (x @ params["w"] + params["c"] - y) / len(y)
    return {"w": away @ x, "c": away.sum()}
