"""tensorlogic train: from files to parameters, stopped and resumed."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file

import tensorlogic as tl
from tensorlogic.cli import main


@pytest.fixture
def files(tmp_path):
    b = tl.GraphBuilder()
    x, y = b.input("x", ("n", 3), "float32"), b.input("y", ("n",), "float32")
    w, c = b.input("w", (3,), "float32"), b.input("c", (), "float32")
    b.build(loss=b.mean_squared_error(b.einsum("ni,i->n", x, w) + c, y)).save(tmp_path / "model.json")
    rng = np.random.default_rng(0)
    inputs = rng.normal(size=(64, 3)).astype("float32")
    target = (inputs @ np.float32([1, 2, 3]) + 4).astype("float32")
    np.savez(tmp_path / "train.npz", x=inputs, y=target)
    rows = pa.FixedSizeListArray.from_arrays(pa.array(inputs.reshape(-1)), 3)
    pq.write_table(pa.table({"x": rows, "y": target}), tmp_path / "train.parquet")
    (tmp_path / "train.toml").write_text(
        'epochs = 40\nbatch_size = 16\n[optimizer]\nname = "adam"\nrate = { schedule = "cosine", rate = 0.3, steps = 160 }\n'
    )
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(main, ["train", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result.output


@pytest.mark.parametrize("kind", ["npz", "parquet"])
def test_it_learns(files, kind):
    shown = run(
        files / "model.json", "--data", files / f"train.{kind}", "--config", files / "train.toml", "-o", files / "p.safetensors",
        "--validation", files / "train.npz",
    )  # fmt: skip
    assert shown.splitlines()[0].split()[:2] == ["epoch", "loss"] and len(shown.splitlines()) == 42
    assert shown.splitlines()[-1] == f"written to {files / 'p.safetensors'}"
    np.testing.assert_allclose(load_file(files / "p.safetensors")["w"], [1, 2, 3], atol=0.05)


def test_resume_is_as_if_never_stopped(files):
    model, data, config = files / "model.json", files / "train.npz", files / "train.toml"
    run(model, "--data", data, "--config", config, "-o", files / "whole.npz")
    short = files / "short.toml"
    short.write_text(config.read_text(encoding="utf-8").replace("epochs = 40", "epochs = 15"))
    run(model, "--data", data, "--config", short, "--folder", files / "run")
    trainer = tl.Trainer.resume(files / "run")
    assert trainer.epoch == 15
    found = json.loads(run(model, "--data", data, "--folder", files / "run", "--resume", "--json"))
    assert len(found["epochs"]) == 15  # as many as its config says
    found = json.loads(run(model, "--data", data, "--config", config, "--folder", files / "run", "--resume", "--json"))
    assert len(found["epochs"]) == 40
    shown = run(model, "--data", data, "--folder", files / "run", "--resume", "-o", files / "resumed.npz")
    assert "all 40 epochs were done before, so nothing was learned; to go on, write epochs = 80" in shown
    assert np.load(files / "whole.npz")["w"].tolist() == np.load(files / "resumed.npz")["w"].tolist()


def test_a_run_does_not_change_under_way(files):
    model, data, config = files / "model.json", files / "train.npz", files / "train.toml"
    options = ("--data", data, "--folder", files / "run")
    run(model, *options, "--config", config)
    assert "has checkpoints of a run already" in run(model, *options, "--config", config, code=1)
    (files / "other.toml").write_text(config.read_text(encoding="utf-8") + "\n[initial]\nw = 'zeros'\n")
    run(model, *options, "--config", files / "other.toml", "--resume")
    (files / "other.toml").write_text("batch_size = 3")
    shown = run(model, *options, "--config", files / "other.toml", "--resume", code=1)
    assert "in the checkpoint, and 3 in the config file" in shown
    assert "leave --params out" in run(model, *options, "--params", data, "--resume", code=2)
    b = tl.GraphBuilder()
    b.build(loss=b.sum(b.input("w", (3,), "float64"))).save(files / "other.json")
    assert "this trainer learns" in run(files / "other.json", *options, "--resume", code=1)


def test_nothing_is_learned_that_cannot_be_written(files):
    model, data = files / "model.json", files / "train.npz"
    for output, message in (("p.txt", "is neither .npz nor .safetensors"), ("none/p.npz", "there is no folder")):
        shown = run(model, "--data", data, "--folder", files / "run", "-o", files / output, code=1)
        assert message in shown and not (files / "run").exists()
    (files / "p.npz").write_text("no archive")
    assert "cannot be read" in run(model, "--data", data, "--params", files / "p.npz", code=1)
    assert "is neither" in run(model, "--data", data, "--params", files / "p.npy", code=1)
    assert "known: 'p.npz'" in run(model, "--data", data, "--params", files / "q.npz", code=1)


def test_a_parameter_may_be_called_file(files):
    b = tl.GraphBuilder()
    x, y, w = b.input("x", ("n", 3), "float32"), b.input("y", ("n",), "float32"), b.input("file", (3,), "float32")
    b.build(loss=b.mean_squared_error(b.einsum("ni,i->n", x, w), y)).save(files / "file.json")
    run(files / "file.json", "--data", files / "train.npz", "-o", files / "p.npz")
    assert np.load(files / "p.npz")["file"].shape == (3,)


def test_a_folder_of_the_config_is_enough_to_go_on(files):
    config = files / "train.toml"
    options = [files / "model.json", "--data", files / "train.parquet", "--config", config]
    text = config.read_text()
    config.write_text(f'folder = "{(files / "run").as_posix()}"\n' + text.replace("epochs = 40", "epochs = 3"))
    run(*options)
    config.write_text(config.read_text().replace("epochs = 3", "epochs = 5"))
    assert run(*options, "--resume").splitlines()[-1].split()[0] == "5"


def test_mistakes(files):
    model, data = files / "model.json", files / "train.npz"
    assert "there is no optimizer 'adm'" in _config_error(files, '[optimizer]\nname = "adm"')
    assert "did you mean 'epochs'" in _config_error(files, "epoch = 3")
    assert "cannot be read" in _config_error(files, "epochs =")
    assert "there is no schedule 'cosin'" in _config_error(files, '[optimizer]\nrate = { schedule = "cosin" }')
    assert 'write rate = {schedule = "cosine"' in _config_error(files, '[optimizer]\nrate = { name = "cosine" }')
    (files / "p.npz").mkdir()
    assert "is a folder, and a file is to be written" in run(model, "--data", data, "-o", files / "p.npz", code=1)
    assert "did you mean 'rate'" in _config_error(files, '[optimizer]\nname = "adam"\nlr = 0.1')
    assert "there is no parameter 'v'" in _config_error(files, '[initial]\nv = "zeros"')
    assert "needs --folder" in run(model, "--data", data, "--resume", code=2)
    assert "did you mean 'train.npz'" in run(model, "--data", files / "trian.npz", code=1)
    for option in ("--config", "--params", "--validation"):
        assert "there is no file" in run(model, "--data", data, option, files / "none.npz", code=1)
    assert "no checkpoint of a trainer" in run(model, "--data", data, "--folder", files / "none", "--resume", code=1)


def _config_error(files, text):
    (files / "bad.toml").write_text(text)
    return run(files / "model.json", "--data", files / "train.npz", "--config", files / "bad.toml", code=1)


def test_what_was_learned_is_given_to_run_and_explain(files):
    b = tl.GraphBuilder()
    x, w, c = b.input("x", ("n", 3), "float32"), b.input("w", (3,), "float32"), b.input("c", (), "float32")
    b.build(y=b.einsum("ni,i->n", x, w) + c).save(files / "use.json")
    for kind in ("npz", "safetensors"):
        run(
            files / "model.json",
            "--data",
            files / "train.npz",
            "--config",
            files / "train.toml",
            "-o",
            files / f"p.{kind}",
        )
    path, given = files / "p.safetensors", ["-i", f"x={files / 'train.npz'}:x"]
    ways = [["--params", path], ["--params", files / "p.npz"], ["-i", f"w={path}", "-i", f"c={path}:c"]]
    shown = [CliRunner().invoke(main, [*map(str, ["run", files / "use.json", *given, *way]), "--json"]) for way in ways]
    assert {s.exit_code for s in shown} == {0} and len({s.output for s in shown}) == 1, [s.output for s in shown]
    learned = load_file(path)
    expected = np.load(files / "train.npz")["x"] @ learned["w"] + learned["c"]
    np.testing.assert_allclose(json.loads(shown[0].output)["outputs"]["y"]["data"], expected, rtol=1e-5)
    plan = CliRunner().invoke(main, [*map(str, ["explain", files / "use.json", *given, "--params", path])])
    assert plan.exit_code == 0, plan.output


@pytest.mark.parametrize(
    "value, message",
    [
        ("p.safetensors:v", "p.safetensors has no tensor 'v'"),
        ("none.safetensors", "there is no file 'none.safetensors'"),
        ("broken.safetensors", "broken.safetensors cannot be read"),
    ],
)
def test_a_tensor_that_cannot_be_had_is_named(files, monkeypatch, value, message):
    monkeypatch.chdir(files)
    run("model.json", "--data", "train.npz", "-o", "p.safetensors")
    (files / "broken.safetensors").write_bytes(b"none")
    done = CliRunner().invoke(main, ["run", "model.json", "-i", f"w={value}"])
    assert done.exit_code == 1 and message in done.output, done.output
