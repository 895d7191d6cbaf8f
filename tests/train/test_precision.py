"""Half precision: bfloat16 in two bytes, computed in float32; losses are scaled so that gradients do not vanish."""

import numpy as np
import pytest
from problems import regression, regression_data, regression_params

import tensorlogic as tl
from tensorlogic.passes import for_numpy

ml_dtypes = pytest.importorskip("ml_dtypes")
BRAIN = np.dtype(ml_dtypes.bfloat16)


def rounded(x):
    return np.asarray(x, "float32").astype(BRAIN)


CASES = {
    "exp": (lambda b, x, w: b.exp(x), lambda x, w: np.exp(x)),
    "times a number": (lambda b, x, w: x * 1.5 - 0.25, lambda x, w: rounded(x * 1.5).astype("float32") - 0.25),
    "product": (lambda b, x, w: x @ w, lambda x, w: x @ w),
    "sum": (lambda b, x, w: b.sum(x, axis=1), lambda x, w: x.sum(1)),
    "largest": (lambda b, x, w: b.max(x, axis=0), lambda x, w: x.max(0)),
    "chosen": (lambda b, x, w: b.where(x > 0, x, 0.0), lambda x, w: np.where(x > 0, x, 0)),
    "views": (lambda b, x, w: b.pad(x[1:, ::2].T, [(0, 1), (1, 0)], 0.0), lambda x, w: np.pad(x[1:, ::2].T, [(0, 1), (1, 0)])),
    "scan": (
        lambda b, x, w: b.scan(lambda c, row: (c + row, c * row), b.sum(x, axis=0) * 0.0, x)[0],
        lambda x, w: summed(x),
    ),
}  # fmt: skip


def summed(x):
    total = np.zeros(x.shape[1], "float32")
    for row in x:
        total = rounded(total + row).astype("float32")
    return total


@pytest.mark.parametrize("name", CASES)
def test_operations_round_once(name):
    build, oracle = CASES[name]
    b = tl.GraphBuilder()
    x, w = b.input("x", (6, 4), "bfloat16"), b.input("w", (4, 3), "bfloat16")
    rng = np.random.default_rng(0)
    values = {"x": rounded(rng.normal(size=(6, 4))), "w": rounded(rng.normal(size=(4, 3)))}
    graph = b.build(y=build(b, x, w))
    found = tl.Executor().execute(graph, {n: values[n] for n in graph.inputs})["y"]
    assert found.dtype == BRAIN
    want = rounded(oracle(*(v.astype("float32") for v in values.values())))
    np.testing.assert_allclose(found.astype("float32"), want.astype("float32"), rtol=2**-8)


def test_lists_take_the_declared_dtype_and_jax_arrays_are_taken():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", (2,), "bfloat16") + 1)
    assert tl.Executor().execute(graph, {"x": [1.0, 2.0]})["y"].astype("float32").tolist() == [2, 3]
    jax = pytest.importorskip("jax.numpy")
    assert tl.Executor().execute(graph, {"x": jax.ones(2, "bfloat16")})["y"].astype("float32").tolist() == [2, 2]


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_training_in_half_precision(precision, policy):
    config = tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=60, batch_size=8, precision=precision)
    trainer = tl.Trainer(tl.Executor(policy=policy), config)
    trainer.fit(regression(), regression_params(), regression_data())
    assert trainer.params["w"].dtype == np.float32
    np.testing.assert_allclose(trainer.params["w"], [1, -2, 0.5], atol=0.05)
    halves = [t for p in trainer.executor.programs.store.values() for s in p.plan.steps for t in s.types]
    assert precision in {t.dtype for t in halves}  # what the loss is made of is kept in two bytes


def test_gradients_that_bfloat16_cannot_hold_halve_the_scale():
    data = {"x": np.full((4, 3), 1e18, "float32"), "y": np.zeros(4, "float32")}
    config = tl.TrainerConfig(precision="bfloat16", epochs=1, batch_size=4, optimizer=tl.optim.sgd(0.1))
    trainer = tl.Trainer(None, config)
    trainer.fit(regression(), regression_params(), data)
    np.testing.assert_array_equal(trainer.params["w"], regression_params()["w"])
    assert trainer.values["optimizer.scale"] == 2.0**14


def test_clipping_hides_no_overflow_from_the_scale():
    data = {"x": np.full((16, 3), 20, "float32"), "y": np.full(16, -200, "float32")}
    for clipped in ({}, {"clip_value": 0.5}, {"clip_norm": 0.5}):
        config = tl.TrainerConfig(precision="float16", epochs=4, batch_size=4, optimizer=tl.optim.sgd(1e-6), **clipped)
        trainer = tl.Trainer(None, config)
        trainer.fit(regression(), regression_params(), data)
        assert trainer.values["optimizer.scale"] == 4.0, clipped


def normed():
    b = tl.GraphBuilder()
    x, y = b.input("x", ("n", 3), "float32"), b.input("y", ("n",), "float32")
    h, running = b.running_batch_norm(x, "norm")
    graph = b.build(loss=b.mean_squared_error(h @ b.input("w", (3,), "float32"), y), **running)
    return graph, {"norm.mean": np.zeros(3, "float32"), "norm.var": np.ones(3, "float32")}


def test_a_batch_that_overflows_leaves_running_statistics_alone():
    data, (graph, states) = regression_data(), normed()
    data["x"][5] = 1e5  # which float32 can hold and float16 cannot
    trainer = tl.Trainer(None, tl.TrainerConfig(precision="float16", epochs=2, batch_size=8))
    trainer.fit(graph, {"w": np.ones(3, "float32")}, data, states=states)
    assert all(np.isfinite(value).all() for value in trainer.states.values())
    assert not np.array_equal(trainer.states["norm.mean"], states["norm.mean"])


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_what_is_no_number_in_any_precision_stops_the_run(precision):
    data = regression_data()
    data["x"][20, 1] = np.nan
    config = tl.TrainerConfig(precision=precision, epochs=2, batch_size=8, shuffle=False)
    trainer = tl.Trainer(None, config)
    with pytest.raises(tl.TrainingError, match=r"the loss is nan at batch 3 of epoch 1(.|\n)*x has 1 NaN"):
        trainer.fit(regression(), regression_params(), data)
    assert trainer.steps == 2


def test_parameters_kept_in_bfloat16_are_saved_and_go_on(tmp_path):
    def run(epochs, **options):
        config = tl.TrainerConfig(optimizer=tl.optim.sgd(0.1), epochs=epochs, batch_size=8, **options)
        trainer = tl.Trainer(None, config)
        params = {name: rounded(value) for name, value in regression_params().items()}
        trainer.fit(regression("bfloat16"), params, {n: rounded(v) for n, v in regression_data().items()})
        return trainer

    whole = run(12)
    assert whole.params["w"].dtype == BRAIN
    np.testing.assert_allclose(whole.params["w"].astype("float32"), [1, -2, 0.5], atol=0.1)
    run(3, folder=tmp_path)
    resumed = tl.Trainer.resume(tmp_path)
    resumed.config = whole.config
    resumed.fit(data={n: rounded(v) for n, v in regression_data().items()})
    np.testing.assert_array_equal(resumed.params["w"], whole.params["w"])


def test_without_the_package_it_is_refused(monkeypatch):
    from tensorlogic.backends import numpy as numpy_backend

    for module in (for_numpy, numpy_backend):
        monkeypatch.setattr(module, "has_bfloat16", lambda: False)
    trainer = tl.Trainer(None, tl.TrainerConfig(precision="bfloat16", batch_size=8))
    with pytest.raises(tl.BackendError, match=r"no bfloat16(.|\n)*pip install ml_dtypes"):
        trainer.fit(regression(), regression_params(), regression_data())
