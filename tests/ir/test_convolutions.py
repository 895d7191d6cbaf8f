"""Convolution, pooling and batch norm beside JAX and plain NumPy."""

import itertools

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.passes.for_numpy import copy_windows

jax = pytest.importorskip("jax")
RNG = np.random.default_rng(0)


def normal(*shape):
    return RNG.normal(size=shape).astype("float32")


def case_of(rank, channels, outputs, groups, **options):
    b = tl.GraphBuilder()
    sizes = (9, 7)[:rank]
    x, w = (
        b.input("x", ("n", *sizes, channels), "float32"),
        b.input("w", (3,) * rank + (channels // groups, outputs), "float32"),
    )
    loss = b.build(loss=b.sum(b.sin(b.conv(x, w, groups=groups, **options))))
    return loss, {"x": normal(2, *sizes, channels), "w": normal(*(3,) * rank, channels // groups, outputs)}


def in_jax(rank, groups, stride, padding, dilation):
    sign = "HW"[:rank]
    pads = padding.upper() if isinstance(padding, str) else [(padding, padding)] * rank

    def loss(x, w):
        y = jax.lax.conv_general_dilated(
            x, w, (stride,) * rank, pads, rhs_dilation=(dilation,) * rank, feature_group_count=groups,
            dimension_numbers=(f"N{sign}C", f"{sign}IO", f"N{sign}C"),
        )  # fmt: skip
        return jax.numpy.sum(jax.numpy.sin(y))

    return jax.value_and_grad(loss, (0, 1))


@pytest.mark.parametrize(
    ("rank", "stride", "padding", "dilation", "groups"),
    [*itertools.product((1,), (1, 2), ("same", "valid", 2), (1, 2), (1, 2)),
     (2, 1, "same", 1, 1), (2, 2, "same", 1, 2), (2, 2, "valid", 2, 1), (2, 1, 1, 2, 4)],
)  # fmt: skip
def test_values_and_gradients_are_those_of_jax(rank, stride, padding, dilation, groups):
    graph, inputs = case_of(rank, 4, 8, groups, stride=stride, padding=padding, dilation=dilation)
    found = tl.Executor().execute(tl.value_and_grad(graph), inputs)
    value, slopes = in_jax(rank, groups, stride, padding, dilation)(inputs["x"], inputs["w"])
    np.testing.assert_allclose(found["loss"], value, rtol=1e-4, atol=1e-4)
    for name, slope in zip("xw", slopes, strict=True):
        np.testing.assert_allclose(found[f"d_{name}"], slope, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_every_plan_answers_as_the_reference_does(policy):
    inputs = {"x": normal(2, 5, 4, 2), "w": normal(3, 3, 2, 2)}
    b = tl.GraphBuilder()
    x, w = b.input("x", (2, 5, 4, 2), "float32"), b.input("w", (3, 3, 2, 2), "float32")
    graph = tl.value_and_grad(b.build(loss=b.sum(b.max_pool(b.conv(x, w, padding="same"), 2, stride=1))))
    expected = tl.Executor("reference").execute(graph, inputs)
    for name, value in tl.Executor(policy=policy).execute(graph, inputs).items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_forward_and_backward_are_matrix_products_over_one_copy_of_the_windows():
    graph, inputs = case_of(2, 4, 8, 1, padding="same")
    plan = tl.Executor().plan(tl.value_and_grad(graph), inputs)
    products = [step for step in plan.steps if step.contraction is not None]
    assert [step.contraction.kernel for step in products] == ["matmul"] * 3
    assert len([step for step in plan.steps if isinstance(step.op, ops.Cast) and step.into]) == 1
    adding = [step for step in plan.steps if isinstance(step.op, ops.OverlapAdd)]
    assert len(adding) == 2 and all(step.into for step in adding[:1])


def test_windows_that_stand_side_by_side_are_not_copied():
    b = tl.GraphBuilder()
    graph = b.build(y=b.reshape(b.window(b.input("x", (8,), "float32"), 0, 2, step=2), (8,)))
    assert copy_windows(graph) is graph


POOLS = [(2, None, "valid", 1), (3, 1, "same", 1), (3, 2, 1, 1), (2, 3, "same", 2)]


@pytest.mark.parametrize(("size", "stride", "padding", "dilation"), POOLS)
@pytest.mark.parametrize("kind", ["max", "mean"])
def test_pools_and_their_gradients_are_those_of_jax(kind, size, stride, padding, dilation):
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 8, 6, 3), "float32")
    y = getattr(b, f"{kind}_pool")(x, size, stride=stride, padding=padding, dilation=dilation)
    graph = tl.value_and_grad(b.build(loss=b.sum(b.sin(y))))
    values = normal(2, 8, 6, 3)
    by = stride or size
    pads = padding.upper() if isinstance(padding, str) else [(0, 0), (padding, padding), (padding, padding), (0, 0)]

    def reduced(x, start, function):
        return jax.lax.reduce_window(
            x, start, function, (1, size, size, 1), (1, by, by, 1), pads, window_dilation=(1, dilation, dilation, 1)
        )

    def loss(x):
        if kind == "max":
            return jax.numpy.sum(jax.numpy.sin(reduced(x, -np.inf, jax.lax.max)))
        ones = reduced(np.ones_like(values), 0.0, jax.lax.add)
        return jax.numpy.sum(jax.numpy.sin(reduced(x, 0.0, jax.lax.add) / ones))

    found = tl.Executor().execute(graph, {"x": values})
    np.testing.assert_allclose(found["loss"], loss(values), rtol=1e-4, atol=1e-4)
    if kind == "mean" or dilation == 1:  # JAX has no gradient of the other
        np.testing.assert_allclose(found["d_x"], jax.grad(loss)(values), rtol=1e-4, atol=1e-5)


def test_eager_execution_has_them_too():
    x, w = normal(1, 6, 2), normal(3, 2, 1)
    b = tl.GraphBuilder()
    graph = b.build(y=b.mean_pool(b.conv(b.input("x", (1, 6, 2), "float32"), b.input("w", (3, 2, 1), "float32")), 2))
    y = tl.eager.mean_pool(tl.eager.conv(tl.Variable(x), w), 2)
    np.testing.assert_allclose(np.asarray(y), tl.Executor().execute(graph, {"x": x, "w": w})["y"], rtol=1e-6)


WRONG = {
    "weights .* do not fit": lambda b, x: b.conv(x, np.ones((3, 4, 8))),
    "4 channels and 8 outputs in 3 groups": lambda b, x: b.conv(x, np.ones((3, 3, 4, 8)), groups=3),
    "a stride is from 1, for each of 2 axes, got 0": lambda b, x: b.conv(x, np.ones((3, 3, 4, 8)), stride=0),
    "a dilation is from 1, for each of 2 axes": lambda b, x: b.conv(x, np.ones((3, 3, 4, 8)), dilation=(1, 1, 1)),
    "there is no padding 'full' for 2 axes": lambda b, x: b.conv(x, np.ones((3, 3, 4, 8)), padding="full"),
    "there is no padding -1 for 2 axes": lambda b, x: b.max_pool(x, 2, padding=-1),
    "a window that reaches over 12 elements": lambda b, x: b.max_pool(x, 12, stride=1),
    "'same' with a stride needs the size": lambda b, x: b.conv(b.input("s", (1, "h", 8, 4)), np.ones((3, 3, 4, 8)), stride=2, padding="same"),
    "has no axes between": lambda b, x: b.max_pool(b.input("v", (3, 4)), 2),
    "running_batch_norm of": lambda b, x: b.running_batch_norm(b.input("v", (3,)), "norm"),
    "an axis of 9 has 7 windows of 3, but": lambda b, x: b.overlap_add(b.input("v", (5, 3)), 0, 9),
}  # fmt: skip


@pytest.mark.parametrize("message", WRONG)
def test_what_does_not_fit_is_refused(message):
    b = tl.GraphBuilder()
    with pytest.raises(tl.TensorLogicError, match=message):
        WRONG[message](b, b.input("x", ("n", 8, 8, 4), "float32"))


def test_batch_norm_keeps_running_statistics():
    b = tl.GraphBuilder()
    x, scale = b.input("x", ("n", 3), "float32"), b.input("scale", (3,), "float32")
    y, running = b.running_batch_norm(x, "norm", scale, momentum=0.5)
    graph = b.build(loss=b.mean(b.square(y - 2.0)), y=y, **running)
    data = {"x": (normal(16, 3) * np.float32([1, 2, 3]) + 5).astype("float32")}
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=2, batch_size=8, shuffle=False, optimizer=tl.optim.sgd(1e-30)))
    starts = tl.initial(graph, ["norm.mean", "norm.var"], {"*.mean": "zeros", "*.var": "ones"})
    trainer.fit(graph, {"scale": np.ones(3, "float32")}, data, states=starts)
    mean, var = np.zeros(3), np.ones(3)
    for _ in range(2):
        for rows in (data["x"][:8], data["x"][8:]):
            mean, var = 0.5 * mean + 0.5 * rows.mean(0), 0.5 * var + 0.5 * rows.var(0)
    np.testing.assert_allclose(trainer.states["norm.mean"], mean, rtol=1e-5)
    np.testing.assert_allclose(trainer.states["norm.var"], var, rtol=1e-5)
    expected = (data["x"] - mean) / np.sqrt(var + 1e-5)  # without training the running statistics count
    np.testing.assert_allclose(trainer.predict(data, "y"), expected, rtol=1e-4, atol=1e-5)
    outputs = tl.Executor().execute(
        graph, {**data, **starts, "scale": np.ones(3, "float32"), "training": np.array(True)}
    )
    np.testing.assert_allclose(outputs["y"].mean(0), 0, atol=1e-5)
    np.testing.assert_allclose(outputs["y"].std(0), 1, atol=1e-4)
