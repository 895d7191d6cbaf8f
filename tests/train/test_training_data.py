"""Data that a trainer takes: frames and tables, fewer rows than a batch to measure on, and other data in a run that goes on."""

import numpy as np
import pytest
from problems import regression, regression_data, regression_params

import tensorlogic as tl


def trained(data, **options):
    config = tl.TrainerConfig(**{"optimizer": tl.optim.adam(0.05), "epochs": 2, "batch_size": 8, **options})
    trainer = tl.Trainer(None, config)
    trainer.fit(regression(), regression_params(), data)
    return trainer


def frame():
    pandas = pytest.importorskip("pandas")
    data = regression_data()
    return pandas.DataFrame({**{f"x_{n}": data["x"][:, n] for n in range(3)}, "y": data["y"], "unused": 1.0})


def test_frames_and_tables_are_data():
    polars, arrow = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    whole, table = trained(regression_data()), frame()
    lists = arrow.table({"x": list(regression_data()["x"]), "y": regression_data()["y"]})
    for data in (table, polars.from_pandas(table), arrow.table(table), lists):
        trainer = trained(data)
        for name, value in whole.params.items():
            np.testing.assert_array_equal(trainer.params[name], value)
        assert trainer.evaluate(data) == pytest.approx(whole.evaluate(regression_data()))
        assert trainer.predict(data, "p").shape == (40,)
    with pytest.raises(tl.InputError, match=r"the data frame has no array 'y'"):
        trained(table.rename(columns={"y": "why"}))


def test_columns_of_a_parquet_file_are_a_matrix(tmp_path):
    parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
    parquet.write_table(arrow.table(frame()), tmp_path / "rows.parquet")
    found = trained(tmp_path / "rows.parquet")
    np.testing.assert_array_equal(found.params["w"], trained(regression_data()).params["w"])


def test_fewer_rows_than_a_batch_can_be_measured_on(tmp_path):
    np.savez(tmp_path / "few.npz", **regression_data(3))
    trainer = trained(regression_data())
    assert trainer.evaluate(tmp_path / "few.npz") == pytest.approx(trainer.evaluate(regression_data(3)))
    assert trainer.predict(tmp_path / "few.npz", "p").shape == (3,)


def stopped(folder, steps, **options):
    class Stop(tl.Callback):
        def on_batch(self, trainer, figures):
            if trainer.steps == steps:
                raise RuntimeError("stopped")

    config = tl.TrainerConfig(epochs=3, batch_size=8, folder=folder, every=1, **options)
    with pytest.raises(RuntimeError, match="stopped"):
        tl.Trainer(None, config, callbacks=[Stop()]).fit(regression(), regression_params(), regression_data())
    return tl.Trainer.resume(folder)


def other_data(kind):
    data = regression_data(48 if kind == "longer" else 40)
    if kind == "other values":
        data["y"] = data["y"] + 1
    return {**data, "y": data["y"].astype("float64")} if kind == "another dtype" else data


@pytest.mark.parametrize("kind", ["longer", "other values", "another dtype"])
def test_other_data_within_an_epoch_is_refused(tmp_path, kind):
    resumed = stopped(tmp_path, 8)
    with pytest.raises(tl.InputError, match="stands after batch 2 of epoch 2 of other data") as caught:
        resumed.fit(data=other_data(kind))
    assert caught.value.diagnostic.code == "E884"
    resumed.fit(data=regression_data())
    assert resumed.epoch == 3


def test_other_data_between_epochs_is_told_of(tmp_path):
    saved = trained(regression_data(), folder=tmp_path)
    resumed = tl.Trainer.resume(tmp_path)
    assert resumed.evaluate(regression_data()) == saved.evaluate(regression_data())  # before anything is learned anew
    resumed.config = tl.TrainerConfig(epochs=3, batch_size=8)
    with pytest.warns(tl.CheckpointWarning, match="the data is not what the run learned from"):
        resumed.fit(data=other_data("other values"))
    resumed.config = tl.TrainerConfig(epochs=4, batch_size=8)
    resumed.fit(data=regression_data())  # in one process, other data is meant
    assert resumed.epoch == 4


def test_averages_of_a_resumed_run_are_there(tmp_path):
    saved = trained(regression_data(), folder=tmp_path, average=0.9)
    found = tl.Trainer.resume(tmp_path).averages
    assert found.keys() == {"w", "c"}
    np.testing.assert_array_equal(found["w"], saved.averages["w"])


def test_batches_are_read_ahead_on_a_thread():
    import threading

    data, threads = regression_data(), set()

    def batches(epoch):
        for start in range(0, 40, 8):
            threads.add(threading.current_thread())
            yield {name: value[start : start + 8] for name, value in data.items()}

    def run(prefetch):
        return trained(batches, prefetch=prefetch, shuffle=False).params["w"]

    plain = run(0)
    assert threads == {threading.main_thread()}
    np.testing.assert_array_equal(run(2), plain)
    assert len(threads) > 1 and not any(t.is_alive() for t in threads - {threading.main_thread()})

    def broken(epoch):
        yield {name: value[:8] for name, value in data.items()}
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        trained(broken, prefetch=3)


def with_more_inputs():
    """The regression with dropout, a constant that is given, and an output that needs an input which the loss does not."""
    b = tl.GraphBuilder()
    x, y = b.input("x", ("n", 3), "float32"), b.input("y", ("n",), "float32")
    p = b.dropout(x, 0.5) @ b.input("w", (3,), "float32") + b.input("k", (), "float32")
    return b.build(loss=b.mean_squared_error(p, y), p=p, more=p + b.input("z", ("n",), "float32"))


def with_more_trainer(data, validation=None, **options):
    config = tl.TrainerConfig(**{"optimizer": tl.optim.sgd(0.05), "epochs": 3, "batch_size": 8, **options})
    trainer = tl.Trainer(None, config)
    fixed = {"k": np.float32(3)}
    trainer.fit(with_more_inputs(), {"w": regression_params()["w"]}, data, validation, fixed=fixed)
    return trainer


@pytest.mark.parametrize("options", [{}, {"accumulate": 2}, {"precision": "float16"}])
def test_what_only_other_outputs_need_may_be_given_or_not(options):
    data = regression_data()
    more = {**data, "z": np.ones(40, "float32")}
    one, other = with_more_trainer(data, data, **options), with_more_trainer(more, more, **options)
    np.testing.assert_array_equal(one.params["w"], other.params["w"])
    assert one.history.epochs == other.history.epochs
    np.testing.assert_allclose(one.predict(more, "more"), one.predict(data, "p") + 1, rtol=1e-6)
    batches = with_more_trainer([more] * 2, [more], **options)
    np.testing.assert_array_equal(batches.params["w"], with_more_trainer([data] * 2, [data], **options).params["w"])


def test_batches_are_asked_for_the_names_that_arrays_are():
    data, trainer = regression_data(), with_more_trainer(regression_data())
    for measure in (trainer.evaluate, with_more_trainer, lambda bad: with_more_trainer(data, bad)):
        with pytest.raises(tl.InputError, match="nothing is given for the input 'y'"):
            measure([{"x": data["x"]}])
        with pytest.raises(tl.InputError, match="no input 'yy' for data"):
            measure([{**data, "yy": data["y"]}])
    assert trainer.predict([data], "p").shape == (40,)


def test_fixed_inputs_are_given_again_to_measure_on_after_a_resume(tmp_path):
    trainer = with_more_trainer(regression_data())
    trainer.save(tmp_path)
    again, fixed = tl.Trainer.resume(tmp_path), {"k": np.float32(3)}
    assert again.evaluate(regression_data(), fixed=fixed) == trainer.evaluate(regression_data())
    with pytest.raises(tl.InputError, match="nothing is given for the input 'k'"):
        again.evaluate(regression_data())


def test_validation_that_does_not_fit_is_refused_before_anything_is_learned(tmp_path):
    data, steps = regression_data(), []

    class Count(tl.Callback):
        def on_batch(self, trainer, figures):
            steps.append(trainer.steps)

    np.savez(tmp_path / "no_y.npz", x=data["x"])
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    bad = [{"x": data["x"]}, {**data, "x": data["x"][:, :2]}, {**data, "y": data["y"][:3]}, 7]
    bad += [tmp_path / "none.npz", tmp_path / "no_y.npz", tmp_path / "bad.npz"]
    for validation in bad:
        trainer = tl.Trainer(None, tl.TrainerConfig(epochs=2, batch_size=8), callbacks=[Count()])
        with pytest.raises(tl.TensorLogicError):
            trainer.fit(regression(), regression_params(), data, validation)
    assert not steps


def test_an_iterator_to_measure_on_is_told_from_an_empty_one():
    batches = iter([regression_data()])
    with pytest.raises(tl.InputError, match="an iterator, which can be gone through once"):
        with_more_trainer(regression_data(), batches)


def test_each_part_of_a_batch_has_random_numbers_of_its_own():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 64), "float32"), b.input("w", (64,), "float32")
    graph = b.build(loss=b.mean(b.dropout(x, 0.5) * w))

    def step(**options):
        trainer = tl.Trainer(None, tl.TrainerConfig(optimizer=tl.optim.sgd(64.0), epochs=1, batch_size=4, **options))
        trainer.fit(graph, {"w": np.zeros(64, "float32")}, {"x": np.ones((4, 64), "float32")})
        return trainer.params["w"]

    parts = step(accumulate=4)
    assert set(parts.tolist()) == {0.0, -0.5, -1.0, -1.5, -2.0}  # with the same numbers: 0 and -2
    assert not np.array_equal(parts, step(accumulate=4, seed=1))


def test_random_parts_go_on_bit_for_bit(tmp_path):
    options = {"accumulate": 2, "folder": tmp_path, "every": 3}
    whole = with_more_trainer(regression_data(), **{**options, "folder": None})

    class Stop(tl.Callback):
        def on_batch(self, trainer, figures):
            if trainer.steps == 7:
                raise RuntimeError("killed")

    stopped = tl.Trainer(None, tl.TrainerConfig(optimizer=tl.optim.sgd(0.05), epochs=3, batch_size=8, **options))
    stopped.callbacks.append(Stop())
    fixed = {"k": np.float32(3)}
    with pytest.raises(RuntimeError):
        stopped.fit(with_more_inputs(), {"w": regression_params()["w"]}, regression_data(), fixed=fixed)
    again = tl.Trainer.resume(tmp_path)
    assert again.steps == 6
    again.fit(data=regression_data(), fixed=fixed)
    np.testing.assert_array_equal(again.params["w"], whole.params["w"])
    assert again.history.epochs == whole.history.epochs
