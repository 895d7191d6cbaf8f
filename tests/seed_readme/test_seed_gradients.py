"""Forward and backward passes, as the seed's README shows them."""

import numpy as np

import tensorlogic as tl


def test_quick_start(executor, layer, inputs, relu_of):
    outputs = executor.forward(layer, inputs)
    np.testing.assert_allclose(outputs[0], relu_of(inputs))

    executor.backward(outputs, [np.ones_like(outputs[0])])
    param_grads = executor.get_gradients()
    alive = (relu_of(inputs) > 0).astype(float)
    assert set(param_grads) == {"x", "w"}
    np.testing.assert_allclose(param_grads["w"], inputs["x"].T @ alive)
    np.testing.assert_allclose(param_grads["x"], alive @ inputs["w"].T)


def test_tl_autodiff(executor, inputs):
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 10)), b.input("w", (10, 4))
    graph = b.build(loss=b.sum(b.square(b.tanh(b.einsum("ni,ij->nj", x, w)))))

    outputs = executor.forward(graph, inputs)
    executor.backward(outputs, [np.float64(1)])
    grads = executor.get_gradients()
    assert isinstance(executor, tl.TlAutodiff)

    def loss(w):
        return np.square(np.tanh(inputs["x"] @ w)).sum()

    w, step = inputs["w"], 1e-6
    for i, j in [(0, 0), (3, 2), (9, 3)]:
        nudge = np.zeros_like(w)
        nudge[i, j] = step
        np.testing.assert_allclose(grads["w"][i, j], (loss(w + nudge) - loss(w - nudge)) / (2 * step), rtol=1e-6)


def test_training_with_autodiff(executor, layer, inputs, make_inputs, relu_of):
    targets = relu_of({**inputs, "w": make_inputs(1)["w"]})
    params = {"w": inputs["w"].copy()}
    losses = []
    for _ in range(20):
        # forward pass
        outputs = executor.forward(layer, {"x": inputs["x"], **params})
        losses.append(np.square(outputs[0] - targets).mean())

        # compute loss gradients
        loss_grads = [2 * (outputs[0] - targets) / targets.size]

        # backward pass
        executor.backward(outputs, loss_grads)

        # get parameter gradients, update parameters
        grads = executor.get_gradients()
        for name in params:
            params[name] -= 0.5 * grads[name]
    assert losses[-1] < 0.5 * losses[0]
