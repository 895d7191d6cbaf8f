"""The trainer: what it learns, what it keeps, and how it goes on."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
from problems import gradients, regression, regression_data, regression_params

import tensorlogic as tl
from tensorlogic.runtime.arena import ARENA


def trained(**options):
    callbacks = options.pop("callbacks", ())
    executor = options.pop("executor", None)
    config = tl.TrainerConfig(**{"optimizer": tl.optim.adam(0.05), "epochs": 5, "batch_size": 8, **options})
    trainer = tl.Trainer(executor, config, callbacks=callbacks)
    trainer.fit(regression(), regression_params(), regression_data(), regression_data(10))
    return trainer


def trained_without_validation(executor):
    trainer = tl.Trainer(executor, tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=5, batch_size=8))
    trainer.fit(regression(), regression_params(), regression_data())
    return trainer


def same(one, other):
    assert one.values.keys() == other.values.keys()
    for name, value in one.values.items():
        np.testing.assert_array_equal(value, other.values[name], err_msg=name)
    assert one.history.epochs == other.history.epochs
    assert (one.epoch, one.batch, one.steps) == (other.epoch, other.batch, other.steps)


def test_it_learns():
    trainer = trained(epochs=100)
    np.testing.assert_allclose(trainer.params["w"], [1, -2, 0.5], atol=1e-2)
    assert set(trainer.history) == {"loss", "error", "validation_loss", "validation_error", "rate"}
    assert len(trainer.history["loss"]) == 100
    assert trainer.predict({"x": regression_data()["x"]}, "p").shape == (40,)
    np.testing.assert_allclose(trainer.predict(regression_data(), "p"), regression_data()["y"], atol=0.05)


def test_equal_seeds_give_equal_bits_and_others_do_not():
    same(trained(), trained())
    assert not np.array_equal(trained().params["w"], trained(seed=1).params["w"])


def test_the_arrays_given_are_not_written():
    params, data = regression_params(), regression_data()
    before = {n: v.copy() for n, v in {**params, **data}.items()}
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=2))
    trainer.fit(regression(), params, data)
    for name, value in {**params, **data}.items():
        np.testing.assert_array_equal(value, before[name])
    held = trainer.params["w"]
    kept = held.copy()
    trainer.config = tl.TrainerConfig(epochs=4)
    trainer.fit(data=data)
    np.testing.assert_array_equal(held, kept)
    assert trainer.epoch == 4


def test_clipping():
    data, params = regression_data(), regression_params()
    slopes = gradients(params, data)
    length = np.sqrt(sum((g * g).sum() for g in slopes.values()))
    options = {"optimizer": tl.optim.sgd(1.0), "epochs": 1, "batch_size": 40}
    by_norm, by_value = trained(clip_norm=0.5, **options), trained(clip_value=0.1, **options)
    for name, w in params.items():
        np.testing.assert_allclose(by_norm.params[name], w - slopes[name] * 0.5 / length, rtol=1e-4)
        np.testing.assert_allclose(by_value.params[name], w - np.clip(slopes[name], -0.1, 0.1), rtol=1e-4)


def test_accumulating_gradients_is_one_larger_batch():
    whole = trained(batch_size=40, optimizer=tl.optim.sgd(0.1))
    parts = trained(batch_size=40, optimizer=tl.optim.sgd(0.1), accumulate=4)
    for name in whole.params:
        np.testing.assert_allclose(parts.params[name], whole.params[name], rtol=1e-5)
    np.testing.assert_allclose(parts.history["loss"], whole.history["loss"], rtol=1e-5)
    with pytest.raises(tl.InputError, match="a batch of 8 examples has no 3 equal parts"):
        trained(accumulate=3)


def test_settings_by_name_and_pattern():
    start = regression_params()
    frozen = trained(settings={"c": {"frozen": True}})
    assert frozen.params["c"] == start["c"] and not np.array_equal(frozen.params["w"], start["w"])
    slow = trained(optimizer=tl.optim.sgd(0.1), settings={"*": {"rate": 0.5}})
    np.testing.assert_allclose(slow.params["w"], trained(optimizer=tl.optim.sgd(0.05)).params["w"], rtol=1e-5)
    decayed = trained(settings={"w": {"weight_decay": 10.0}}, optimizer=tl.optim.sgd(0.01))
    assert np.abs(decayed.params["w"]).sum() < np.abs(trained(optimizer=tl.optim.sgd(0.01)).params["w"]).sum()
    with pytest.raises(tl.InputError, match="there is no parameter 'v'"):
        trained(settings={"v": {"frozen": True}})
    with pytest.raises(tl.InputError, match="there is no 'frozn'"):
        trained(settings={"w": {"frozn": True}})
    with pytest.raises(tl.InputError, match="every parameter is frozen"):
        trained(settings={"*": {"frozen": True}})


@pytest.mark.parametrize("make", [tl.optim.sgd, tl.optim.momentum, tl.optim.adamw, tl.optim.rmsprop, tl.optim.lion])
def test_the_weight_decay_of_a_parameter_takes_the_place_of_the_optimizers(make):
    def run(own, **settings):
        return trained(optimizer=make(0.01, weight_decay=own), settings=settings).params

    without, strong = run(0.0), run(0.3)
    for of_both, settings, want in (
        (0.3, {"*": {"weight_decay": 0.0}}, without),  # as biases often have none
        (0.0, {"*": {"weight_decay": 0.3}}, strong),
        (0.1, {"*": {"weight_decay": 0.3}}, strong),
        (0.3, {"*": {"rate": 1.0}}, strong),
    ):
        found = run(of_both, **settings)
        for name, value in want.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-6)


def test_an_optimizer_without_weight_decay_adds_it_to_the_gradient():
    options = {"optimizer": tl.optim.adam(0.01), "settings": {"*": {"weight_decay": 0.3}}}

    def update(b, w, g, state, rate, t):
        return tl.optim.adam().update(b, w, g + 0.3 * w, state, rate, t)

    own = tl.optim.custom(update, 0.01, slots=("mean", "square"))
    np.testing.assert_allclose(trained(**options).params["w"], trained(optimizer=own).params["w"], rtol=1e-6)


def test_moving_averages():
    trainer = trained(average=0.5, epochs=1, batch_size=40, optimizer=tl.optim.sgd(0.1))
    start = regression_params()["w"]
    np.testing.assert_allclose(trainer.averages["w"], (start + trainer.params["w"]) / 2, rtol=1e-6)


def test_half_precision_scales_the_loss():
    trainer = trained(precision="float16", epochs=60)
    assert trainer.params["w"].dtype == np.float32
    np.testing.assert_allclose(trainer.params["w"], [1, -2, 0.5], atol=0.05)
    assert trainer.values["optimizer.scale"] >= 1


def test_an_overflow_halves_the_scale_and_changes_nothing_else():
    trainer = tl.Trainer(
        None, tl.TrainerConfig(precision="float16", epochs=1, batch_size=4, optimizer=tl.optim.sgd(0.1))
    )
    data = {"x": np.full((4, 3), 200, "float32"), "y": np.zeros(4, "float32")}
    trainer.fit(regression(), regression_params(), data)
    np.testing.assert_array_equal(trainer.params["w"], regression_params()["w"])
    assert trainer.values["optimizer.scale"] == 2.0**14


def test_dropout_repeats_and_is_off_when_it_counts():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 50), "float32"), b.input("w", (50,), "float32")
    kept = b.dropout(x, 0.5)
    graph = b.build(loss=b.mean(b.square(b.einsum("ni,i->n", kept, w))), y=b.einsum("ni,i->n", kept, w))
    data = {"x": np.ones((8, 50), "float32")}

    def run(seed):
        trainer = tl.Trainer(
            None, tl.TrainerConfig(epochs=3, batch_size=4, seed=seed, shuffle=False, optimizer=tl.optim.sgd(1e-4))
        )
        trainer.fit(graph, {"w": np.ones(50, "float32")}, data)
        return trainer

    same(run(1), run(1))
    assert not np.array_equal(run(1).params["w"], run(2).params["w"])
    trainer = run(1)
    np.testing.assert_allclose(trainer.predict(data, "y"), np.full(8, trainer.params["w"].sum()), rtol=1e-5)


def test_states_are_handed_on():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n",), "float32"), b.input("w", (), "float32")
    mean = b.input("mean", (), "float32")
    graph = b.build(loss=b.mean(b.square(x * w - 1.0)), mean=0.5 * mean + 0.5 * b.mean(x))
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=2, batch_size=2, shuffle=False))
    data = {"x": np.float32([1, 3, 5, 7])}
    trainer.fit(graph, {"w": np.float32(1)}, data, states={"mean": np.float32(0)})
    expected = 0.0
    for batch in (2.0, 6.0, 2.0, 6.0):
        expected = 0.5 * expected + 0.5 * batch
    assert trainer.states["mean"] == pytest.approx(expected)
    with pytest.raises(tl.InputError, match="'mean' is handed on from batch to batch, and has no first value"):
        tl.Trainer().fit(graph, {"w": np.float32(1)}, data)


def test_fixed_inputs_are_given_whole():
    b = tl.GraphBuilder()
    x, a, w = b.input("x", ("n", 2), "float32"), b.input("a", (2, 2), "float32"), b.input("w", (2,), "float32")
    graph = b.build(loss=b.mean(b.square(x @ a @ w - 1.0)))
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=1))
    trainer.fit(
        graph, {"w": np.ones(2, "float32")}, {"x": np.ones((40, 2), "float32")}, fixed={"a": np.eye(2, dtype="float32")}
    )
    assert trainer.evaluate({"x": np.ones((4, 2), "float32")})["loss"] > 0


# going on


@pytest.mark.parametrize("stop", [2, 5, 6, 11])
def test_a_resumed_run_is_bit_equal(tmp_path, stop):
    options = {"optimizer": tl.optim.adamw(tl.optim.cosine(0.05, steps=20)), "epochs": 4, "average": 0.9}
    whole = trained(**options)

    class Stop(tl.Callback):
        def on_batch(self, trainer, figures):
            if trainer.steps == stop:
                raise RuntimeError("stopped")

    config = tl.TrainerConfig(batch_size=8, folder=tmp_path, every=1, **options)
    data, validation = regression_data(), regression_data(10)
    with pytest.raises(RuntimeError, match="stopped"):
        tl.Trainer(None, config, callbacks=[Stop()]).fit(regression(), regression_params(), data, validation)
    resumed = tl.Trainer.resume(tmp_path)
    assert resumed.steps in (stop, stop - 1)
    resumed.fit(data=data, validation=validation)
    same(resumed, whole)


CHILD = """
    import signal, sys, time
    sys.path.insert(0, {tests!r})
    import tensorlogic as tl
    from problems import regression, regression_data, regression_params
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for what they run in the background
    class Slow(tl.Callback):
        def on_batch(self, trainer, figures):
            print(trainer.steps, flush=True)
            time.sleep(0.01)
    folder = {folder!r}
    try:
        trainer = tl.Trainer.resume(folder, callbacks=[Slow()])
    except tl.FormatError:
        config = tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=5, batch_size=8, folder=folder, every=2)
        trainer = tl.Trainer(None, config, callbacks=[Slow()])
    trainer.fit(regression(), regression_params(), regression_data(), regression_data(10))
"""


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_goes_on(tmp_path, kind):
    text = textwrap.dedent(CHILD.format(tests=os.path.dirname(__file__), folder=str(tmp_path)))
    for stop in (3, 9, 16):
        with subprocess.Popen(
            [sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as child:
            for line in child.stdout:
                if int(line) >= stop:
                    child.send_signal(kind)
                    break
            message = child.communicate()[1]
        assert child.returncode != 0
        if kind == signal.SIGINT:
            assert "to go on: trainer = tl.Trainer.resume(" in message
    trainer = tl.Trainer.resume(tmp_path)
    assert trainer.steps >= 14
    trainer.fit(data=regression_data(), validation=regression_data(10))
    same(trainer, trained())


def test_a_damaged_checkpoint_is_passed_over(tmp_path):
    trained(folder=tmp_path)
    newest = max(tmp_path.glob("checkpoint-*"))
    file = next(newest.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-4] + b"oops")
    with pytest.warns(UserWarning):
        trainer = tl.Trainer.resume(tmp_path)
    assert trainer.epoch == 4
    trainer.fit(data=regression_data(), validation=regression_data(10))
    same(trainer, trained())


def test_checkpoints_of_something_else(tmp_path):
    with pytest.raises(tl.FormatError, match="no checkpoint of a trainer"):
        tl.Trainer.resume(tmp_path / "nothing")
    trainer = trained()
    trainer.save(tmp_path)
    b = tl.GraphBuilder()
    other = b.build(loss=b.sum(b.square(b.input("w", (3,), "float32"))))
    with pytest.raises(tl.InputError, match="this trainer learns"):
        tl.Trainer.resume(tmp_path).fit(other, data=regression_data())
    other.save(tmp_path / "loss.json")
    with pytest.raises(tl.FormatError, match="the checkpoint is of a graph"):
        tl.Trainer.resume(tmp_path)
    own = tl.Trainer(
        None, tl.TrainerConfig(epochs=1, optimizer=tl.optim.custom(lambda b, w, g, s, r, t: (w - r * g, {}), 0.1))
    )
    own.fit(regression(), regression_params(), regression_data())
    own.save(tmp_path / "own")
    with pytest.raises(tl.InputError, match="not one of tensorlogic's own"):
        tl.Trainer.resume(tmp_path / "own")
    assert tl.Trainer.resume(tmp_path / "own", optimizer=tl.optim.sgd(0.1)).epoch == 1


# callbacks


def test_early_stopping_puts_the_best_back():
    class Worse(tl.Callback):
        def on_epoch(self, trainer, figures):
            if trainer.epoch == 3:
                self.best = trainer.params
            if trainer.epoch >= 3:
                trainer.replace({"w": trainer.params["w"] + 5})

    worse = Worse()
    trainer = trained(epochs=50, callbacks=[tl.EarlyStopping("validation_loss", patience=2), worse])
    assert trainer.epoch < 10
    # the last to be called adds 5 again
    np.testing.assert_allclose(trainer.params["w"] - 5, worse.best["w"], rtol=1e-5)
    with pytest.raises(tl.InputError, match="no figure 'validation_los'"):
        trained(callbacks=[tl.EarlyStopping("validation_los")])


def test_logs(tmp_path):
    lines = []
    trainer = trained(
        callbacks=[
            tl.CSVLog(tmp_path / "log.csv"), tl.JSONLog(tmp_path / "log.jsonl"), tl.JSONLog(lines.append, batches=True),
            tl.PlotFile(tmp_path / "loss.svg"), tl.BestCheckpoint(tmp_path / "best", "loss"),
        ]
    )  # fmt: skip
    rows = (tmp_path / "log.csv").read_text(encoding="utf-8").splitlines()
    assert rows[0].startswith("epoch,loss,error") and len(rows) == 6
    epochs = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [e["epoch"] for e in epochs] == [1, 2, 3, 4, 5]
    assert len(lines) == 5 + 25
    assert (tmp_path / "loss.svg").read_text(encoding="utf-8").count("<polyline") == 2
    assert tl.Trainer.resume(tmp_path / "best").epoch == int(np.argmin(trainer.history["loss"])) + 1


def test_the_history_prints():
    history = tl.History([{"loss": 0.5}, {"loss": 0.25, "accuracy": 1.0}])
    assert str(history).splitlines()[1].split() == ["1", "0.5"]
    assert repr(history) == "<History of 2 epochs: loss, accuracy>"
    with pytest.raises(tl.InputError, match="no 'los'"):
        history["los"]


# what goes wrong


def test_nan_names_the_tensor_and_the_batch():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n",), "float32"), b.input("w", (), "float32")
    graph = b.build(loss=b.mean(b.log(x * w)))
    data = {"x": np.float32([1, 2, 3, 4, -5, 6])}
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=2, batch_size=2, shuffle=False, optimizer=tl.optim.sgd(0.01)))
    with pytest.raises(tl.TrainingError, match=r"the loss is nan at batch 3 of epoch 1 \(step 3\)") as caught:
        trainer.fit(graph, {"w": np.float32(1)}, data)
    assert "log" in "\n".join(caught.value.diagnostic.context)
    good = tl.Trainer(None, tl.TrainerConfig(epochs=1, batch_size=2, shuffle=False, optimizer=tl.optim.sgd(0.01)))
    good.fit(graph, {"w": np.float32(1)}, {"x": data["x"][:4]})
    assert trainer.params["w"] == good.params["w"]  # those before the bad batch


def test_a_cancelled_run_stands_between_two_steps():
    context = tl.ExecutionContext()

    class Cancel(tl.Callback):
        def on_batch(self, trainer, figures):
            if trainer.steps == 7:
                context.cancel("enough")

    config = tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=5, batch_size=8)
    trainer = tl.Trainer(None, config, callbacks=[Cancel()])
    with pytest.raises(tl.CancelledError, match="enough"), context:
        trainer.fit(regression(), regression_params(), regression_data(), regression_data(10))
    assert trainer.steps == 7
    trainer.callbacks.clear()
    trainer.fit(data=regression_data(), validation=regression_data(10))
    same(trainer, trained())


def test_a_step_that_fails_leaves_the_parameters_before_it():
    failing = False

    def fail(call):
        def inner(step, args):
            nonlocal failing
            if failing and step.op.name == "einsum":
                failing = False
                raise OSError("no")
            return call(step, args)

        return inner

    class Fail(tl.Callback):
        def on_batch(self, trainer, figures):
            nonlocal failing
            failing = trainer.steps == 8

    config = tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=5, batch_size=8)
    trainer = tl.Trainer(tl.Executor(wrap=[fail]), config, callbacks=[Fail()])
    with pytest.raises(tl.ExecutionError):
        trainer.fit(regression(), regression_params(), regression_data())
    assert trainer.steps == 8
    trainer.callbacks.clear()
    trainer.fit(data=regression_data())
    same(trainer, trained_without_validation(tl.Executor(wrap=[fail])))


def test_labels_out_of_range_name_the_batch_and_the_labels():
    b = tl.GraphBuilder()
    x, labels, w = b.input("x", ("n", 4)), b.input("labels", ("n",), "int64"), b.input("w", (4, 3))
    trainer = tl.Trainer(None, tl.TrainerConfig(batch_size=8, shuffle=False))
    data = {"x": np.ones((16, 4)), "labels": np.repeat([2, -4], 8)}
    with pytest.raises(tl.ExecutionError) as caught:
        trainer.fit(b.build(loss=b.cross_entropy(b.linear(x, w), labels)), {"w": np.zeros((4, 3))}, data)
    assert "in batch 2 of epoch 1 (step 2): 'labels' has -4 to -4" in str(caught.value)
    assert trainer.steps == 1


MISTAKES = {
    "no loss": (lambda: tl.Trainer().fit(data=regression_data()), "there is no loss graph"),
    "no params": (lambda: tl.Trainer().fit(regression(), data=regression_data()), "params are arrays by name"),
    "whole numbers": (
        lambda: tl.Trainer().fit(regression(), {"w": [1, 2, 3], "c": 0.0}, regression_data()),
        "parameter 'w' is of int64; only floats can be learned",
    ),
    "unequal lengths": (
        lambda: tl.Trainer().fit(
            regression(), regression_params(), {**regression_data(), "y": np.zeros(39, "float32")}
        ),
        "data 'x' has 40 examples, but 'y' has 39",
    ),
    "a batch larger than the data": (
        lambda: tl.Trainer(None, tl.TrainerConfig(batch_size=64, drop_last=True)).fit(
            regression(), regression_params(), regression_data()
        ),
        "a batch of 64 is larger than the data: 40 examples",
    ),
    "no examples": (
        lambda: tl.Trainer(None, tl.TrainerConfig(batch_size=1)).fit(
            regression(), regression_params(), {"x": np.zeros((0, 3), "float32"), "y": np.zeros(0, "float32")}
        ),
        "the data has no examples",
    ),
    "no data": (lambda: tl.Trainer().fit(regression(), regression_params(), {}), "there is no data"),
    "another kind of data": (lambda: tl.Trainer().fit(regression(), regression_params(), 3), "data is given as arrays"),
    "a name the graph lacks": (
        lambda: tl.Trainer().fit(regression(), regression_params(), {**regression_data(), "z": np.zeros(40)}),
        "no input 'z' for data",
    ),
    "an input nobody gives": (
        lambda: tl.Trainer().fit(regression(), regression_params(), {"x": regression_data()["x"]}),
        "nothing is given for the input 'y'",
    ),
    "negative epochs": (lambda: tl.TrainerConfig(epochs=-1), "epochs"),
    "a precision that is none": (
        lambda: tl.TrainerConfig(precision="float8"),
        "precision= is a dtype of half the size",
    ),
    "evaluate before fit": (lambda: tl.Trainer().evaluate(regression_data()), "has learned nothing yet"),
    "save before fit": (lambda: tl.Trainer().save("x"), "has learned nothing yet"),
    "a fixed input the graph lacks": (
        lambda: tl.Trainer().fit(regression(), regression_params(), regression_data(), fixed={"ys": 1.0}),
        "the loss graph has no input 'ys'",
    ),
    "a state the graph lacks": (
        lambda: tl.Trainer().fit(regression(), regression_params(), regression_data(), states={"mean": 1.0}),
        "the loss graph has no input 'mean'",
    ),
    "shuffled by a word": (lambda: tl.TrainerConfig(shuffle="no"), "shuffle= is True or False"),
    "a path of another kind": (
        lambda: tl.Trainer().fit(regression(), regression_params(), "x.txt"),
        "neither .npz nor .parquet",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes(name):
    act, message = MISTAKES[name]
    with pytest.raises(tl.TensorLogicError, match=message):
        act()


def test_a_loss_that_is_no_scalar_or_missing():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n",), "float32"), b.input("w", (), "float32")
    with pytest.raises(tl.ShapeError, match="the loss 'loss' is of shape"):
        tl.Trainer().fit(b.build(loss=x * w), {"w": np.float32(1)}, {"x": np.ones(40, "float32")})
    with pytest.raises(tl.GraphError, match="no output 'loss'"):
        tl.Trainer().fit(b.build(cost=b.sum(x * w)), {"w": np.float32(1)}, {"x": np.ones(40, "float32")})


def test_a_parameter_nothing_depends_on():
    b = tl.GraphBuilder()
    x, w, v = b.input("x", ("n",), "float32"), b.input("w", (), "float32"), b.input("v", (), "float32")
    graph = b.build(loss=b.mean(b.square(x * w)), other=v * 1.0)
    with pytest.raises(tl.InputError, match="the loss does not depend on the parameter 'v'"):
        tl.Trainer().fit(graph, {"w": np.float32(1), "v": np.float32(1)}, {"x": np.ones(40, "float32")})


# what a step costs


@pytest.mark.parametrize("policy", ["exact", "fast"])
def test_a_step_allocates_nothing_after_the_first(policy):
    b = tl.GraphBuilder()
    x, y = b.input("x", (64, 256), "float32"), b.input("y", (64, 128), "float32")
    w = b.input("w", (256, 128), "float32")
    graph = b.build(loss=b.mean_squared_error(b.tanh(x @ w), y))
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(640, 256)).astype("float32"), "y": rng.normal(size=(640, 128)).astype("float32")}
    peaks, blocks = [], []

    class Peak(tl.Callback):
        def on_batch(self, trainer, figures):
            peaks.append(tracemalloc.get_traced_memory()[1])
            blocks.append(ARENA.stats().allocations)
            tracemalloc.reset_peak()

    config = tl.TrainerConfig(optimizer=tl.optim.adam(1e-3), epochs=3, batch_size=64)
    trainer = tl.Trainer(tl.Executor(policy=policy), config, callbacks=[Peak()])
    tracemalloc.start()
    try:
        trainer.fit(graph, {"w": rng.normal(size=(256, 128)).astype("float32")}, data)
    finally:
        tracemalloc.stop()
    steady = peaks[15:]
    assert max(steady) - min(steady) < 20_000  # arrays are 32 KiB and more
    assert len(set(blocks[1:])) == 1
    assert (
        len({trainer.values[n].__array_interface__["data"][0] for n in trainer.values if trainer.values[n].ndim}) == 3
    )


def test_a_full_disk_at_checkpoint_time_loses_nothing(tmp_path):
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    class Full(tl.Callback):
        def on_epoch(self, trainer, figures):
            if trainer.epoch == 2:
                resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))  # files can be no longer

    def trainer_for(**options):
        callbacks = options.pop("callbacks", ())
        config = tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=3, batch_size=8, **options)
        return tl.Trainer(None, config, callbacks=callbacks)

    trainer, whole = trainer_for(folder=tmp_path, callbacks=[Full()]), trainer_for()
    try:
        with pytest.raises(tl.CheckpointError, match="File too large"):
            trainer.fit(regression(), regression_params(), regression_data())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert trainer.epoch == 2 and tl.Trainer.resume(tmp_path).epoch == 1  # what was learned, and what was saved before
    trainer.callbacks.clear()
    trainer.fit(data=regression_data())
    whole.fit(regression(), regression_params(), regression_data())
    same(trainer, whole)
    assert tl.Trainer.resume(tmp_path).epoch == 3


def test_a_folder_belongs_to_one_run(tmp_path):
    first = trained(folder=tmp_path)
    with pytest.raises(tl.CheckpointError, match="has checkpoints of a run already"):
        trained(folder=tmp_path)
    kept = tl.Trainer.resume(tmp_path).params
    assert all(np.array_equal(kept[name], value) for name, value in first.params.items())


def test_fewer_examples_than_a_batch_are_one_short_batch():
    data = {name: array[:8] for name, array in regression_data().items()}
    few, whole = (
        tl.Trainer(None, tl.TrainerConfig(epochs=3, batch_size=size)).fit(regression(), regression_params(), data)
        for size in (32, 8)
    )
    assert few["loss"] == whole["loss"]


def test_params_and_data_that_are_swapped_are_told_apart():
    for data in (regression_data(), {**regression_data(), "y": regression_data()["y"].astype(int)}):
        with pytest.raises(tl.InputError) as caught:
            tl.Trainer().fit(regression(), data, regression_params())
        assert "the parameters come first: fit(graph, params, data)" in caught.value.diagnostic.suggestions


def test_a_folder_with_another_kind_of_run_is_named_as_such(tmp_path):
    b = tl.GraphBuilder()
    graph = b.build(y=b.exp(b.input("x", ("n",), "float32")))
    stream = tl.Executor().execute_stream(graph, np.zeros(4, "float32"), checkpoint=tmp_path / "stream")
    assert len(list(stream)) > 0
    with pytest.raises(tl.CheckpointError, match="has checkpoints of another kind of run: a stream"):
        trained(folder=tmp_path / "stream")
    trained(folder=tmp_path / "training")
    with pytest.raises(tl.CheckpointError, match="has checkpoints of another kind of run: a training"):
        list(tl.Executor().execute_stream(graph, np.zeros(4, "float32"), checkpoint=tmp_path / "training"))


@pytest.mark.parametrize(
    "option",
    [
        {"clip_norm": -1}, {"clip_value": -1.0}, {"clip_norm": float("nan")}, {"average": 2}, {"every": 0}, {"every": "a"},
        {"settings": 5}, {"settings": {"w": 5}}, {"settings": {"w": {"rate": -1}}}, {"folder": 5},
    ],
)  # fmt: skip
def test_a_config_refuses_numbers_that_would_turn_training_around(option):
    with pytest.raises(tl.InputError):
        tl.TrainerConfig(**option)


def fitted(data, **options):
    b = tl.GraphBuilder()
    x, y, w = b.input("x", ("n", 2)), b.input("y", ("n",)), b.input("w", (2,))
    graph = b.build(loss=b.mean_squared_error(x @ w, y), p=x @ w)
    trainer = tl.Trainer(config=tl.TrainerConfig(optimizer=tl.optim.sgd(0.1), epochs=2, batch_size=2))
    trainer.fit(graph, {"w": np.zeros(2)}, data, **options)
    return trainer


SMALL = {"x": np.arange(8.0).reshape(4, 2) / 8, "y": np.ones(4)}


@pytest.mark.parametrize("lists", [[[1.0], [2.0, 3.0, 4.0]] * 2, [None, [1.0, 2.0, 3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]])
def test_lists_of_different_lengths_are_no_rows(tmp_path, lists):
    pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pa.table({"x": lists, "y": np.ones(4)}), tmp_path / "rows.parquet")
    with pytest.raises(tl.FormatError):
        fitted(tmp_path / "rows.parquet")


def test_data_files_that_are_damaged_are_refused(tmp_path):
    path = tmp_path / "rows.npz"
    np.savez_compressed(path, x=np.random.default_rng(0).normal(size=(40, 2)), y=np.ones(40))
    whole = path.read_bytes()
    for place in range(60, len(whole) - 100, 31):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with contextlib.suppress(tl.TensorLogicError):  # what a flipped bit left readable may be read
            fitted(path)


def test_no_batches_to_measure_or_predict_is_said():
    trainer = fitted(SMALL)
    for call, code in (
        (lambda: trainer.evaluate([]), "E855"),
        (lambda: trainer.predict([], "p"), "E855"),
        (lambda: fitted(SMALL, validation=iter([SMALL])), "E851"),  # used up after the first epoch
    ):
        with pytest.raises(tl.InputError) as caught:
            call()
        assert caught.value.diagnostic.code == code


def test_parameters_that_do_not_fit_are_refused(tmp_path):
    trainer = fitted(SMALL)
    for values in (np.zeros(5), "x", [[1], [1, 2]]):
        with pytest.raises(tl.InputError):
            trainer.replace({"w": values})
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(tl.InputError, match="is a file"):
        tl.Trainer.resume(tmp_path / "file")


def test_a_resumed_run_chooses_the_same_plans_again(tmp_path, monkeypatch):
    """Under policy="fast" plans are chosen by their times; which one may change from process to process."""
    from tensorlogic.runtime import tuning

    fastest = {"name": "native steps"}

    def best(self, name):
        return 0.0 if name == fastest["name"] else 1.0

    monkeypatch.setattr(tuning.AdaptiveOptimizer, "best", best)

    def run(epochs, **options):
        config = tl.TrainerConfig(optimizer=tl.optim.adam(0.05), epochs=epochs, batch_size=16, **options)
        trainer = tl.Trainer(tl.Executor(policy="fast"), config)
        trainer.fit(regression(), regression_params(), regression_data(), regression_data(10))
        return trainer

    def plans(trainer):
        return {n: p.plan.name for n, p in enumerate(trainer.executor.programs.store.values())}

    first = run(2, folder=tmp_path)
    assert "native steps" in plans(first).values()
    fastest["name"] = "one step after another"
    assert "native steps" not in plans(run(1, seed=3)).values()  # what it would choose now
    first.save(tmp_path)
    resumed = tl.Trainer.resume(tmp_path, tl.Executor(policy="fast"))
    resumed.config = tl.TrainerConfig(optimizer=resumed.config.optimizer, epochs=4, batch_size=16)
    resumed.fit(data=regression_data(), validation=regression_data(10))
    assert plans(resumed) == plans(first)


def test_parameters_may_have_sizes_by_name():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", "m"), "float32"), b.input("w", ("m",), "float32")
    graph = b.build(loss=b.mean(b.square(x @ w - 1.0)) + 0.01 * b.mean(b.square(b.sin(w))))
    trainer = tl.Trainer(None, tl.TrainerConfig(optimizer=tl.optim.adam(0.1), epochs=50, batch_size=4))
    history = trainer.fit(graph, {"w": np.zeros(3, "float32")}, {"x": np.ones((8, 3), "float32")})
    assert history["loss"][-1] < 0.1 * history["loss"][0]


def convolution():
    """Two convolutions, a pool and a linear layer, with data of 40 images."""
    b = tl.GraphBuilder()
    x, labels = b.input("x", ("n", 8, 8, 1), "float32"), b.input("labels", ("n",), "int64")
    shapes = {"w1": (3, 3, 1, 4), "c1": (4,), "w2": (3, 3, 4, 8), "w3": (128, 3)}
    p = {name: b.input(name, shape, "float32") for name, shape in shapes.items()}
    h = b.max_pool(b.relu(b.conv(b.relu(b.conv(x, p["w1"], p["c1"], padding="same")), p["w2"], padding="same")), 2)
    graph = b.build(loss=b.cross_entropy(b.reshape(h, ("n", 128)) @ p["w3"], labels))
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(40, 8, 8, 1)).astype("float32"), "labels": rng.integers(0, 3, 40)}
    return graph, tl.initial(graph, list(shapes)), data


@pytest.mark.parametrize("optimizer", [tl.optim.sgd(0.1), tl.optim.adam(0.01), tl.optim.momentum(0.1)])
def test_a_long_run_is_compiled_and_has_the_bits_of_a_short_one(tmp_path, monkeypatch, optimizer):
    graph, params, data = convolution()

    def fit(seconds, epochs, folder=None, trainer=None):
        monkeypatch.setattr("tensorlogic.runtime.programs.LONG_RUN", seconds)
        config = tl.TrainerConfig(optimizer=optimizer, epochs=epochs, batch_size=16, seed=3, folder=folder)
        if trainer is None:
            trainer = tl.Trainer(None, config)
            trainer.fit(graph, params, data)
        else:
            trainer.config = config
            trainer.fit(data=data)
        return trainer

    short, long = fit(1e9, 4), fit(1e-9, 4)
    assert "native steps" not in short.executor.explain() and "native steps" in long.executor.explain()
    assert "measured" not in long.executor.explain()  # equal runs have equal plans
    fit(1e9, 2, tmp_path)
    resumed = fit(1e-9, 4, tmp_path, tl.Trainer.resume(tmp_path))
    assert "native steps" in resumed.executor.explain()
    for other in (long, resumed):
        assert {n: v.tobytes() for n, v in other.values.items()} == {n: v.tobytes() for n, v in short.values.items()}
        assert other.history.epochs == short.history.epochs


@pytest.mark.parametrize(
    ("epochs", "options", "compiled"),
    [
        (2, {}, False),
        (10**6, {}, True),
        (10**6, {"threads": 2}, False),
        (10**6, {"wrap": [lambda call: call]}, False),
    ],
)
def test_a_run_is_long_by_its_epochs_and_batches(epochs, options, compiled):
    class Once(tl.Callback):
        def on_epoch(self, trainer, figures):
            trainer.stop("one is enough")

    graph, params, data = convolution()
    trainer = tl.Trainer(tl.Executor(**options), tl.TrainerConfig(epochs=epochs, batch_size=16), callbacks=[Once()])
    trainer.fit(graph, params, data)
    assert ("native steps" in trainer.executor.explain()) == compiled
    trainer.config = tl.TrainerConfig(epochs=10**6, batch_size=16)  # one that becomes long is compiled then
    trainer.fit(data=data)
    assert ("native steps" in trainer.executor.explain()) == (not options)
