"""Training on several devices: the loss curve of one."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl


def graph():
    b = tl.GraphBuilder()
    x, t = b.input("x", ("n", 6), "float64"), b.input("t", ("n",), "int64")
    h = b.tanh(x @ b.input("w", (6, 8), "float64") + b.input("c", (8,), "float64"))
    return b.build(loss=b.cross_entropy(h @ b.input("v", (8, 3), "float64"), t))


def fitted(distributed, optimizer):
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(6, 8)), "c": np.zeros(8), "v": rng.normal(size=(8, 3))}
    x = rng.normal(size=(50, 6))
    config = tl.TrainerConfig(optimizer=optimizer, epochs=3, batch_size=16, seed=1)
    trainer = tl.Trainer(tl.Executor(), config, distributed=distributed)
    history = trainer.fit(graph(), params=params, data={"x": x, "t": np.argmax(x[:, :3], axis=1)})
    return trainer.params, history["loss"]


@pytest.mark.parametrize("optimizer", [tl.optim.sgd(0.1), tl.optim.adam(0.01)], ids=["sgd", "adam"])
def test_the_curve_is_that_of_one_device(optimizer):
    devices = [tl.Device.CPU(0), tl.Device.CPU(1)]
    params, losses = fitted(tl.DistributedConfig(devices), optimizer)
    want, curve = fitted(None, optimizer)
    np.testing.assert_allclose(losses, curve, rtol=1e-12)
    for name, value in want.items():
        np.testing.assert_allclose(params[name], value, rtol=1e-9)
    again, repeated = fitted(tl.DistributedConfig(devices), optimizer)
    assert repeated == losses
    for name, value in again.items():
        np.testing.assert_array_equal(params[name], value)
