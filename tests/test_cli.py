"""The command line, as people and scripts use it."""

import json
import subprocess
import sys

import click
import numpy as np
import pytest
from click.testing import CliRunner

import tensorlogic as tl
from tensorlogic.cli import COMMANDS, main

RUST = {
    "tensors": ["a", "b", "c"],
    "nodes": [{"op": {"Einsum": {"spec": "ij,jk->ik"}}, "inputs": [0, 1], "outputs": [2]}],
    "inputs": [0, 1],
    "outputs": [2],
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3), "float64")
    w = b.constant(np.arange(60.0).reshape(3, 20))
    b.build(y=b.relu(x @ w), total=b.sum(x)).save("layer.json")
    (tmp_path / "rust.json").write_text(json.dumps(RUST))
    (tmp_path / "broken.json").write_text('{"tensors": ["a"], "nodes": [], "inputs": [0], "outputs": [7]}')
    np.save("x.npy", np.ones((2, 3)))
    np.savez("all.npz", x=np.full((1, 3), 2.0))
    return tmp_path


def call(*args):
    return CliRunner().invoke(main, list(args))


def test_run_prints_every_output(folder):
    done = call("run", "layer.json", "-i", "x=x.npy")
    assert done.exit_code == 0, done.output
    assert "y: float64[2, 20]" in done.output
    assert "total: float64[]" in done.output


@pytest.mark.parametrize("value", ["x=all.npz:x", "x=[[2, 2, 2]]", "x=x.json"])
def test_inputs_from_archives_json_and_files(folder, value):
    (folder / "x.json").write_text("[[2.0, 2.0, 2.0]]")
    done = call("run", "layer.json", "-i", value, "--json")
    assert json.loads(done.output)["outputs"]["total"] == {"dtype": "float64", "shape": [], "data": 6.0}


@pytest.mark.parametrize(
    ("name", "spoilt"),
    [
        ("all.npz:x", lambda data: data[: len(data) // 2]),  # BadZipFile
        ("all.npz:x", lambda data: data.replace(b"NUMPY", b"NUMPI")),  # a checksum that does not fit
        ("x.npy", lambda data: data.replace(b"(2, 3)", b"(2,((3")),  # a header that tokenize gives up on
        ("x.npy", lambda data: data[:20]),
    ],
)
def test_a_broken_array_file_is_an_error_of_ours(folder, name, spoilt):
    path = folder / name.partition(":")[0]
    path.write_bytes(spoilt(path.read_bytes()))
    done = call("run", "layer.json", "-i", f"x={name}")
    assert done.exit_code == 1 and isinstance(done.exception, SystemExit), done.exception
    assert "input 'x': cannot read" in done.output


def test_run_writes_an_archive(folder):
    assert call("run", "layer.json", "-i", "x=x.npy", "-o", "out.npz").exit_code == 0
    with np.load("out.npz") as written:
        assert written["total"] == 6.0
        np.testing.assert_array_equal(written["y"], np.ones((2, 3)) @ np.arange(60.0).reshape(3, 20))


def test_json_has_no_nan_tokens(folder):
    b = tl.GraphBuilder()
    b.build(y=b.log(b.input("x", (3,)))).save("log.json")
    done = call("run", "log.json", "-i", "x=[-1.0, 0.0, 1.0]", "--json")
    assert json.loads(done.output)["outputs"]["y"]["data"] == ["nan", "-inf", 0.0]


def test_rust_graphs_run(folder):
    done = call("run", "rust.json", "-i", "a=[[1, 2]]", "-i", "b=[[3], [4]]", "--json")
    assert json.loads(done.output)["outputs"]["c"]["data"] == [[11]]


def test_explain(folder, golden):
    done = call("explain", "layer.json", "--size", "n=64")
    assert done.exit_code == 0
    golden("cli_explain.txt", done.output)
    plan = json.loads(call("explain", "layer.json", "--size", "n=64", "--json").output)
    assert [s["operation"] for s in plan["steps"]] == ["einsum ij,jk->ik", "relu", "sum"]
    assert plan["peak_bytes"] == 2 * 64 * 20 * 8 + 8  # a buffer for the product, the relu that is an output, the sum


@pytest.mark.parametrize(
    ("form", "start"),
    [("text", "graph {"), ("json", "{"), ("dot", "digraph"), ("mermaid", "flowchart"), ("graphml", "<?xml")],
)
def test_graph_formats(folder, form, start):
    done = call("graph", "layer.json", "--format", form)
    assert done.exit_code == 0
    assert done.output.startswith(start)
    assert call("graph", "layer.json", "-f", form, "-o", "out").exit_code == 0
    assert (folder / "out").read_text(encoding="utf-8").startswith(start)


def test_text_form_is_a_graph_file_too(folder):
    text = call("graph", "layer.json").output
    (folder / "layer.txt").write_text(text)
    assert call("check", "layer.txt").exit_code == 0


def test_check(folder):
    assert call("check", "layer.json").exit_code == 0
    found = json.loads(call("check", "layer.json", "--json").output)
    assert found == {"valid": True, "nodes": 5, "diagnostics": []}
    done = call("check", "broken.json", "--json")
    assert done.exit_code == 1
    assert "7" in json.loads(done.output)["error"]["message"]


def test_check_lists_warnings(folder):
    b = tl.GraphBuilder(intern=False)
    x = b.input("x", (3,))
    b.exp(x)
    b.build(y=x + x).save("dead.json")
    done = call("check", "dead.json")
    assert done.exit_code == 0
    assert "is not used by any output" in done.output


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "layer.json"], 1, "input 'x' is missing"),
        (["run", "layer.json", "-i", "X=x.npy"], 1, "did you mean 'x'?"),
        (["run", "layer.json", "-i", "x=[[1, 2]]"], 1, "axis 1 must be 3, got 2"),
        (["run", "layer.json", "-i", "x=nope.npy"], 1, "there is no file 'nope.npy'"),
        (["run", "layer.json", "-i", "x=all.npz:z"], 1, "has no array 'z'"),
        (["run", "layer.json", "-i", "x=[[1,"], 1, "cannot read"),
        (["run", "layer.json", "-i", "x=x.npy", "--backend", "numpi"], 1, "did you mean 'numpy'?"),
        (["run", "layer.json", "-i", "x=x.npy", "-o", "out.csv"], 1, "written as .npz"),
        (["run", "nope.json", "-o", "out.csv"], 1, "written as .npz"),
        (["run", "layer.json", "-i", "x=x.npy", "-o", "no/out.npz"], 1, "cannot write 'no/out.npz': No such file"),
        (["graph", "layer.json", "-o", "no/out.txt"], 1, "cannot write 'no/out.txt': No such file"),
        (["graph", "layer.json", "-o", "."], 1, "cannot write '.'"),
        (["compile", "p(x)", "-d", "P=3", "-v", "x=P", "-o", "no/g.json"], 1, "cannot write 'no/g.json'"),
        (["explain", "layer.json", "--size", "n=²"], 2, "whole number"),
        (["explain", "layer.json", "--size", "n=" + "9" * 5000], 2, "whole number"),
        (["compile", "p(x)", "-d", "P=" + "9" * 5000, "-v", "x=P"], 2, "whole number"),
        (["run", "layer.jsn"], 1, "did you mean 'layer.json'?"),
        (["run", "broken.json"], 1, "7"),
        (["explain", "layer.json"], 1, "--size n=64"),
        (["run", "layer.json", "-i", "x"], 2, "NAME=VALUE"),
        (["explain", "layer.json", "--size", "n=many"], 2, "whole number"),
        (["graph", "layer.json", "--format", "png"], 2, "png"),
        (["paint", "layer.json"], 2, "paint"),
    ],
)
def test_mistakes(folder, args, code, said):
    done = call(*args)
    assert done.exit_code == code, done.output
    assert said in done.output
    assert "Traceback" not in done.output


def test_an_error_while_writing_is_json_too(folder):
    done = call("run", "layer.json", "-i", "x=x.npy", "-o", "no/out.npz", "--json")
    assert done.exit_code == 1
    found = json.loads(done.output)["error"]
    assert found["kind"] == "FormatError"
    assert "cannot write" in found["message"]
    assert found["location"] is None


def test_outputs_with_any_name_are_written(folder):
    b = tl.GraphBuilder()
    x = b.input("x", (2,), "float64")
    b.build({"file": x + 1, "allow_pickle": x + 2, "arr_0": x + 3}).save("names.json")
    assert call("run", "names.json", "-i", "x=[0, 0]", "-o", "out.npz").exit_code == 0
    with np.load("out.npz") as written:
        assert {n: written[n].tolist() for n in written} == {"file": [1, 1], "allow_pickle": [2, 2], "arr_0": [3, 3]}


def test_an_error_is_renamed_with_its_guess():
    error = tl.GraphError("no", code="E1")
    again = error.renamed("input 'x': no")
    assert type(again) is tl.GraphError
    assert (again.guessed, again.diagnostic.message, again.diagnostic.code) == (True, "input 'x': no", "E1")
    assert again.diagnostic.location == error.diagnostic.location
    assert "test_cli.py" in str(again)
    assert again.render(guessed=False) == "input 'x': no"
    placed = error.at(tl.SourceLocation("a.json", 3)).renamed("yes")
    assert placed.render(guessed=False) == str(placed) == "yes\n  at a.json:3"


def test_compile_and_run_a_formula(folder):
    formula = "exists y. sister(x, y) & parent(y, z)"
    options = ["-d", "P=ann,bob,cat", "-v", "x=P", "-v", "y=P", "-v", "z=P"]
    done = call("compile", formula, *options)
    assert done.exit_code == 0, done.output
    assert 'spec="ab,bc->ac", algebra="boolean"' in done.output
    assert call("compile", formula, *options, "-o", "aunt.json").exit_code == 0
    sister, parent = "[[0,1,0],[0,0,0],[0,0,0]]", "[[0,0,0],[0,0,1],[0,0,0]]"
    out = call("run", "aunt.json", "-i", f"sister={sister}", "-i", f"parent={parent}", "--json")
    assert np.argwhere(json.loads(out.output)["outputs"]["result"]["data"]).tolist() == [[0, 2]]
    for wrong, said in (("p(x", "is not closed"), ("p(x)", "nothing says the domain"), ("p(Zed)", "is in no domain")):
        done = call("compile", wrong, "-d", "P=ann", "-d", "Q=bob")
        assert done.exit_code == 1
        assert said in done.output


@pytest.mark.parametrize("command", ["run", "explain", "graph", "check", "compile", "completion"])
def test_help_has_examples(command):
    done = call(command, "--help")
    assert done.exit_code == 0
    assert "Examples:" in done.output
    assert f"tensorlogic {command}" in done.output


def test_completion_scripts():
    for shell in ("bash", "zsh", "fish"):
        assert "_TENSORLOGIC_COMPLETE" in call("completion", shell).output


def test_module_is_the_command(folder):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tensorlogic", "check", "layer.json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "is valid" in done.stdout


def test_levels(folder):
    b = tl.GraphBuilder()
    x = b.input("x", (3, 3), "float64")
    b.build(y=b.transpose(b.transpose((x @ x) @ x)) * 1).save("twice.json")
    steps = {}
    for level in ("none", "basic", "standard", "aggressive"):
        told = json.loads(call("explain", "twice.json", "--level", level, "--json").output)
        steps[level] = len(told["steps"])
        out = json.loads(
            call("run", "twice.json", "-i", "x=[[1,0,0],[0,2,0],[0,0,3]]", "--level", level, "--json").output
        )
        assert out["outputs"]["y"]["data"] == [[1, 0, 0], [0, 8, 0], [0, 0, 27]]
    assert steps["none"] > steps["standard"] == 2
    assert "standard" in call("explain", "twice.json", "--level", "most").output


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("missing.bin", "cannot read 'missing.bin': it is no file, and no JSON"),
        ("nope.json", "there is no file 'nope.json'"),
        ("nope.npz:a", "there is no file 'nope.npz'"),
        ("layer.txt", "cannot read 'layer.txt': it is a file of another kind, and no JSON"),
        ("", "it is no file, and no JSON"),
        ("empty.json", "cannot read 'empty.json': the file is empty"),
        ("cut.json", "cannot read 'cut.json': it is no JSON: "),
        ("[1, 2", "cannot read '[1, 2': it is no JSON: "),
        ("layer.npy", "cannot read 'layer.npy': it holds no array"),
    ],
)
def test_an_input_that_is_no_file(folder, value, said):
    for name, text in {"layer.txt": "3", "empty.json": "\n", "cut.json": "[1, 2", "layer.npy": "3"}.items():
        (folder / name).write_text(text)
    done = call("run", "layer.json", "-i", f"x={value}")
    assert done.exit_code == 1
    assert said in done.output
    assert "Expecting value" not in done.output and "pickle" not in done.output


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/evil", "..", "c:\\evil", "C:evil", "nul\0"])
def test_members_of_an_archive_stay_in_it(folder, name):
    b = tl.GraphBuilder()
    b.build({name: b.input("x", ("n",)) * 2}).save(folder / "evil.json")
    np.save("x.npy", np.ones(4))
    done = call("run", "evil.json", "-i", "x=[1,2]", "-o", "evil.npz")
    assert done.exit_code == 1
    assert "cannot be a member of an archive" in done.output
    assert not (folder / "evil.npz").exists()
    assert call("run", "evil.json", "-i", "x=[1,2]").exit_code == 0
    done = call("run", "evil.json", "--stream", "x.npy", "-o", "evil.npz")
    assert done.exit_code == 1
    assert "cannot be a member of an archive" in done.output
    assert not list(folder.glob("*evil.npz*"))
    assert call("run", "evil.json", "--stream", "x.npy", "-o", "evil.npy").exit_code == 0


def test_names_with_slashes_and_colons_are_members(folder):
    b = tl.GraphBuilder()
    b.build({"layer/dense:0": b.input("x", (2,)) * 2}).save(folder / "named.json")
    assert call("run", "named.json", "-i", "x=[1,2]", "-o", "named.npz").exit_code == 0
    with np.load(folder / "named.npz") as archive:
        assert archive["layer/dense:0"].tolist() == [2, 4]


def test_the_list_of_commands_says_what_each_of_them_does() -> None:
    assert list(COMMANDS) == sorted(COMMANDS)
    for name, (_, _, words) in COMMANDS.items():
        command = main.get_command(click.Context(main), name)
        assert command is not None and command.name == name
        assert " ".join((command.help or "").split()).startswith(words)


def test_help_loads_no_command() -> None:
    code = "import sys; sys.argv = ['tensorlogic', '--help']\ntry: import tensorlogic.__main__\n"
    code += "finally: print([m for m in sys.modules if m.startswith('tensorlogic.cli.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]" and "explain-error" in done.stdout
