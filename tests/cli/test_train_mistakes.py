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
    np.save(tmp_path / "w.npy", np.ones(2))
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors at all")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["--params", "missing.npz"], ["--params", "bad.npz"], ["--params", "w.npy"], ["--params", "bad.safetensors"],
        ["-o", "no/such/w.npz"], ["-o", "no/such/w.safetensors"], ["-o", "w.txt"],
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


def test_another_graph_is_not_resumed(folder):
    assert CliRunner().invoke(main, ["train", "loss.json", "--data", "rows.npz", "--folder", "run"]).exit_code == 0
    result = CliRunner().invoke(main, ["train", "other.json", "--data", "rows.npz", "--folder", "run", "--resume"])
    assert result.exit_code == 1 and "this trainer learns" in result.output
