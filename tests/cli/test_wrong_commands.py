"""What the command line says to commands that are typed wrongly."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tensorlogic as tl
from tensorlogic.cli import main


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    b.build(y=x @ w).save("model.json")
    np.save("x.npy", np.ones((4, 3)))
    np.save("w.npy", np.ones((3, 2)))
    np.savez("both.npz", x=np.ones((4, 3)), w=np.ones((3, 2)))
    Path("family.tl").write_text("Parent(Ann, Bob)\nAncestor(x,y) <- Parent(x,y)\n")
    Path("bad.tl").write_text("Parent(Ann, Bob\n")
    return tmp_path


@pytest.mark.parametrize(
    ("command", "code", "words"),
    [
        ("run x.npy", 1, "'x.npy' is not a graph file: it is a NumPy array"),
        ("run model.json -i x=both.npz -i w=w.npy", 1, "holds arrays by name: x, w\n  hint: write -i x=both.npz:x"),
        ("run model.json --stream x.npy", 1, "on the command line: -i w=w.npy, or --over n"),
        ("run model.json -i w=w.npy --stream x.npy --every 3", 2, "--every needs --checkpoint DIR"),
        ("run model.json -i w=w.npy --stream x.npy -o x.npy", 1, "'x.npy' is the source, and would be overwritten"),
        ("run model.json -i w=w.npy --stream x.npy --checkpoint w.npy", 1, "'w.npy' is a file"),
        ("query model.json y?", 1, "is a graph file, and a program (.tl) is expected"),
        ("fmt bad.tl", 1, "at bad.tl:1:7"),
        (
            "why family.tl Ancestor(Bob,Ann)",
            1,
            "hint: ask what is missing: tensorlogic why-not family.tl 'Ancestor(Bob,Ann)'",
        ),
        ("why-not family.tl Ancestor(Ann,Bob)", 0, "holds: tensorlogic why family.tl 'Ancestor(Ann,Bob)' says why"),
        ("explain-error E1", 1, "--list shows them all"),
        ("explain-error 683", 0, "E683: an unsafe rule"),
        ("query family.tl Ancestor(Ann)", 1, "\n  more: tensorlogic explain-error E778"),
        ("query family.tl Ancestor(Anne,x)", 0, "note: no fact has the name 'Anne'; did you mean 'Ann'?"),
        (
            "why family.tl Ancestor(Ann,x)?",
            1,
            "hint: name the elements; tensorlogic query family.tl 'Ancestor(Ann,x)?' says for which it holds",
        ),
        ("runn family.tl", 2, "No such command 'runn'. Did you mean 'run'?"),
        ("trace sumary run.json", 2, "No such command 'sumary'. Did you mean 'summary'?"),
        ("trace record family.tl", 1, "it is a program; make its graph a file: tensorlogic graph family.tl -f json"),
        ("graph model.json -i x=x.npy", 2, "--input is for programs"),
        ("quantize model.json --report report.pdf", 1, "hint: write --report report.html"),
        ("compile p(x,y)", 1, "on the command line -v x=Person"),
    ],
)
def test_what_is_said(files, command, code, words):
    found = CliRunner().invoke(main, command.split())
    assert (found.exit_code, words in found.output) == (code, True), found.output
    assert np.load("x.npy").shape == (4, 3)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_no_traceback(files):
    command = [sys.executable, "-m", "tensorlogic", "run", "model.json", "-i", "x=x.npy", "-i", "w=w.npy"]
    with Path("/dev/full").open("w") as full:
        found = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert found.returncode == 1 and "No space left" in found.stderr and "Traceback" not in found.stderr
