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
