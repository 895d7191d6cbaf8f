"""What a user gets wrong at first with a trainer: each is refused early, in words that say what to write."""

import dataclasses

import numpy as np
import pytest
from problems import regression, regression_data, regression_params

import tensorlogic as tl


def fit(data=None, *, callbacks=(), **options):
    trainer = tl.Trainer(None, tl.TrainerConfig(**{"epochs": 2, "batch_size": 8, **options}), callbacks=callbacks)
    trainer.fit(regression(), regression_params(), regression_data() if data is None else data)
    return trainer


def refused(call, message, hint):
    with pytest.raises(tl.TensorLogicError, match=message) as caught:
        call()
    assert hint in "\n".join(caught.value.diagnostic.suggestions), caught.value.diagnostic.suggestions


@pytest.mark.parametrize(
    ("callbacks", "message", "hint"),
    [
        ([tl.EarlyStopping], "got the class EarlyStopping", "callbacks=[EarlyStopping()]"),
        ([lambda *_: 1], "derived from tl.Callback, got <function", "class Show(tl.Callback)"),
        (tl.EarlyStopping(), "a list of callbacks, got EarlyStopping", "callbacks=[tl.EarlyStopping()]"),
    ],
)
def test_what_is_no_callback_is_refused_at_once(callbacks, message, hint):
    refused(lambda: tl.Trainer(None, tl.TrainerConfig(), callbacks=callbacks), message, hint)


@pytest.mark.parametrize("devices", [2, [tl.Device.CPU(0), tl.Device.CPU(1)]])
def test_what_is_no_distributed_config_is_refused_at_once(devices):
    refused(lambda: tl.Trainer(distributed=devices), "distributed= is a DistributedConfig", "DistributedConfig([")


@pytest.mark.parametrize("log", [tl.CSVLog, tl.JSONLog, tl.PlotFile])
def test_a_log_in_no_folder_is_refused_before_the_first_epoch(tmp_path, log):
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=1), callbacks=[log(tmp_path / "nope" / "log")])
    refused(lambda: trainer.fit(regression(), regression_params(), regression_data()), "no folder '.*nope'", "mkdir -p")
    assert trainer.steps == 0
    (tmp_path / "nope").mkdir()
    trainer.fit(data=regression_data())
    assert trainer.epoch == 1 and (tmp_path / "nope" / "log").exists()


def test_a_data_function_is_called_with_the_epoch():
    batches = [regression_data()]

    def own(a, b):
        return batches

    refused(lambda: fit(lambda: batches), r"called with the number of the epoch, <lambda>\(0\)", "lambda epoch:")
    refused(lambda: fit(own), r"own\(0\), but it is own\(a, b\)", "def batches(epoch)")
    refused(lambda: fit(lambda epoch: None), "returns the batches of an epoch, got None", "yield")
    assert fit(lambda epoch=0, *more: batches).epoch == 2


def test_one_parameter_may_be_named_by_itself():
    graph = regression()
    np.testing.assert_array_equal(tl.initial(graph, "w")["w"], tl.initial(graph, ["w"])["w"])
    refused(lambda: tl.initial(graph, "w1"), "no input 'w1'", "'w'")


def test_a_fit_after_all_epochs_is_told_of():
    trainer = fit(epochs=2)
    before = trainer.params["w"]
    with pytest.warns(tl.TrainingWarning, match=r"all 2 epochs .*replace\(trainer.config, epochs=4\)"):
        trainer.fit(data=regression_data())
    np.testing.assert_array_equal(trainer.params["w"], before)
    trainer.config = dataclasses.replace(trainer.config, epochs=4)
    trainer.fit(data=regression_data())
    np.testing.assert_array_equal(trainer.params["w"], fit(epochs=4).params["w"])


def test_lengths_that_differ_suggest_a_transpose_where_it_fits():
    data = regression_data()
    refused(lambda: fit({**data, "x": data["x"].T}), "'x' has 3 examples, but 'y' has 40", "as x.T")
    refused(lambda: fit({**data, "y": data["y"][1:]}), "'x' has 40 examples, but 'y' has 39", "a row for each example")


@pytest.mark.parametrize("kind", [object, "U", "S"])
def test_names_of_classes_suggest_class_numbers(kind):
    names = np.array(["cat", "dog"] * 20).astype(kind)
    refused(lambda: fit({**regression_data(), "y": names}), "such as b?'cat'", "np.unique(y, return_inverse=True)")


def test_text_for_an_input_suggests_numbers():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("labels", ("n",), "int64") + 1)
    refused(lambda: tl.Executor().execute(graph, {"labels": ["a"]}), "'labels'", "give each name its number")
    refused(lambda: tl.Executor().execute(graph, {"labels": ["a"]}), "'labels'", "dtype='int64'")


@pytest.mark.parametrize("name", ["trian.npz", "trian.parquet"])
def test_a_data_file_that_is_not_there_suggests_the_nearest(tmp_path, name):
    near = tmp_path / name.replace("ia", "ai")
    near.touch()
    refused(lambda: fit(tmp_path / name), "there is no file", f"did you mean {near.name!r}")


def root_of_square():
    """A loss whose gradient at 0 is no number, while it is one itself."""
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 2), "float32"), b.input("w", (2,), "float32")
    data = np.ones((10, 2), "float32")
    data[7] = 0
    return b.build(loss=b.mean(b.sqrt(b.square(x @ w)))), {"x": data}


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"every": 1, "folder": "run"}, {"every": 3, "folder": "run"}])
def test_a_gradient_that_is_no_number_names_its_batch_and_loses_nothing(rows, options, tmp_path):
    graph, data = root_of_square()
    if options:
        options = {**options, "folder": tmp_path / "run"}
    config = {"optimizer": tl.optim.sgd(0.01), "batch_size": rows, "shuffle": False}
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=3, **config, **options))
    number = 7 // rows + 1
    with pytest.raises(
        tl.TrainingError, match=rf"'w' is no number after the step at batch {number} of epoch 1"
    ) as caught:
        trainer.fit(graph, {"w": np.float32([0.5, 0.3])}, data)
    assert "its gradient is not" in str(caught.value) and "divide" in str(caught.value)
    before = tl.Trainer(None, tl.TrainerConfig(epochs=1, **config))
    if number > 1:
        before.fit(graph, {"w": np.float32([0.5, 0.3])}, {"x": data["x"][: rows * (number - 1)]})
        np.testing.assert_array_equal(trainer.params["w"], before.params["w"])
    if (tmp_path / "run").exists():
        assert np.isfinite(tl.Trainer.resume(tmp_path / "run").params["w"]).all()


def test_an_iterator_whose_gradient_is_no_number_is_back_where_the_epoch_began():
    graph, data = root_of_square()
    trainer = tl.Trainer(None, tl.TrainerConfig(epochs=1, optimizer=tl.optim.sgd(0.01)))
    with pytest.raises(tl.TrainingError, match="'w' became infinite or NaN in epoch 1"):
        trainer.fit(graph, {"w": np.float32([0.5, 0.3])}, iter([data]))
    np.testing.assert_array_equal(trainer.params["w"], np.float32([0.5, 0.3]))
    good, bad = {"x": data["x"][:4]}, {"x": np.full((4, 2), np.nan, "float32")}
    with pytest.raises(tl.TrainingError, match=r"the loss is nan at batch 2 of epoch 1 \(step 2\)"):
        trainer.fit(data=iter([good, bad]))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_first_tensor_that_went_bad_is_found_with_the_numbers_of_its_step(accumulate):
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 4), "float32"), b.input("w", (4,), "float32")
    graph = b.build(loss=b.mean(b.log(b.sum(b.dropout(x, 0.5) * w, -1))))
    config = tl.TrainerConfig(optimizer=tl.optim.sgd(0.001), epochs=9, batch_size=4, accumulate=accumulate)
    with pytest.raises(tl.TrainingError, match="made by log from finite operands"):
        tl.Trainer(None, config).fit(graph, {"w": np.ones(4, "float32")}, {"x": np.ones((16, 4), "float32")})
