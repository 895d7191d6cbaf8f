"""Mistakes on the command line of training: told before anything is learned, with an error of ours."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

import tensorlogic as tl
from tensorlogic.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, scale in (("loss.json", 1.0), ("other.json", 2.0)):
        b = tl.GraphBuilder()
        x, y, w = b.input("x", ("n", 2)), b.input("y", ("n",)), b.input("w", (2,))
        b.build(loss=b.mean_squared_error(x @ w, y) * scale).save(tmp_path / name)
    np.savez(tmp_path / "rows.npz", x=np.ones((40, 2)), y=np.ones(40))
    np.savez(tmp_path / "no_y.npz", x=np.ones((40, 2)))
    np.savez(tmp_path / "wide.npz", x=np.ones((40, 3)), y=np.ones(40))
    np.save(tmp_path / "w.npy", np.ones(2))
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors at all")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["--params", "missing.npz"], ["--params", "bad.npz"], ["--params", "w.npy"], ["--params", "bad.safetensors"],
        ["-o", "no/such/w.npz"], ["-o", "no/such/w.safetensors"], ["-o", "w.txt"],
        ["--validation", "missing.npz"], ["--validation", "bad.npz"], ["--validation", "rows.csv"], ["--validation", "no_y.npz"],
        ["--validation", "wide.npz"],
        ["--config", "optimizer = 5"], ["--config", "initial = 5"],
    ],
)  # fmt: skip
def test_a_mistake_is_told_before_anything_is_learned(folder, words):
    if words[0] == "--config":
        (folder / "train.toml").write_text(words[1])
        words = ["--config", "train.toml"]
    result = CliRunner().invoke(main, ["train", "loss.json", "--data", "rows.npz", "--folder", "run", *words])
    assert result.exit_code == 1 and isinstance(result.exception, SystemExit)
    assert "Error: " in result.output
    assert not (folder / "run").exists()


def test_parameters_stay_in_the_archive(folder):
    b = tl.GraphBuilder()
    x, y, w = b.input("x", ("n", 2)), b.input("y", ("n",)), b.input("../../evil", (2,))
    b.build(loss=b.mean_squared_error(x @ w, y)).save(folder / "evil.json")
    words = ["train", "evil.json", "--data", "rows.npz", "--folder", "run"]
    result = CliRunner().invoke(main, [*words, "-o", "evil.npz"])
    assert result.exit_code == 1 and "input '../../evil' cannot be a member of an archive" in result.output
    assert not (folder / "run").exists() and not (folder / "evil.npz").exists()
    assert CliRunner().invoke(main, [*words, "-o", "evil.safetensors"]).exit_code == 0
    resumed = CliRunner().invoke(main, [*words, "--resume", "-o", "evil.npz"])
    assert resumed.exit_code == 1 and "cannot be a member of an archive" in resumed.output


def test_another_graph_is_not_resumed(folder):
    assert CliRunner().invoke(main, ["train", "loss.json", "--data", "rows.npz", "--folder", "run"]).exit_code == 0
    result = CliRunner().invoke(main, ["train", "other.json", "--data", "rows.npz", "--folder", "run", "--resume"])
    assert result.exit_code == 1 and "this trainer learns" in result.output


def test_a_label_out_of_range_is_told_without_the_code_of_the_command_line(folder):
    b = tl.GraphBuilder()
    x, w, labels = b.input("x", ("n", 2)), b.input("w", (2, 3)), b.input("labels", ("n",), "int64")
    b.build(loss=b.cross_entropy(x @ w, labels)).save(folder / "labels.json")
    np.savez(folder / "labels.npz", x=np.ones((40, 2)), labels=np.full(40, 7))
    result = CliRunner().invoke(main, ["train", "labels.json", "--data", "labels.npz"])
    assert result.exit_code == 1 and "label 7 is no class: the logits have 3 classes (0 to 2)" in result.output
    assert "click" not in result.output
    assert "\n  operand 0" in result.output


def test_learned_parameters_are_a_file_that_others_may_read(folder):
    words = ["train", "loss.json", "--data", "rows.npz"]
    for name in ("w.npz", "w.safetensors"):
        assert CliRunner().invoke(main, [*words, "-o", name]).exit_code == 0
    (folder / "plain").write_bytes(b"")
    modes = {(folder / name).stat().st_mode for name in ("plain", "w.npz", "w.safetensors")}
    assert len(modes) == 1
    assert not list(folder.glob(".*tmp"))
