"""Programs on the command line: run, query, check, explain and fmt."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tensorlogic as tl
from tensorlogic.cli import main

FAMILY = """# a family
Parent(Alice, Bob); Parent(Bob, Charlie)
Ancestor(x,y) <- Parent(x,y)
Ancestor(x,z) <- Ancestor(x,y), Parent(y,z)
Ancestor(Alice, x)?
Ancestor(Charlie, Alice)?
Count[x] count= Ancestor(x,y)
Count[x]?
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "family.tl").write_text(FAMILY)
    (tmp_path / "layer.tl").write_text("Y[i] = W[i,j] X[j]\nX = [1, 2]\n")
    (tmp_path / "countries.pl").write_text("near(a, b). near(b, c).\nlinked(X, Y) :- near(X, Y).\n")
    (tmp_path / "wrong.tl").write_text("P(x) <- Q(y)\n")
    np.save("w.npy", np.eye(2))
    return tmp_path


def call(*args):
    return CliRunner().invoke(main, list(args))


def test_words_are_utf8_whatever_the_locale_takes_them_for(folder):
    (folder / "north.tl").write_text("Near(Ærø, Fyn)\nY[i] = Bø[i]\n", encoding="utf-8")
    np.save("b.npy", np.ones(2))

    def words(text):  # as Python hands them on where the locale is not UTF-8
        return text.encode().decode("ascii", "surrogateescape")

    assert json.loads(call("query", "north.tl", words("Near(Ærø, x)?"), "--json").output)["rows"] == [["Fyn"]]
    assert "Near(Ærø, Fyn)" in call("why", "north.tl", words("Near(Ærø, Fyn)")).output
    assert "Ærø" in call("why-not", "north.tl", words("Near(Fyn, Ærø)")).output
    assert call("query", "north.tl", "Y[0]?", "-i", words("Bø=b.npy")).exit_code == 0
    found = call("compile", words("∃x:Ø. nær(x, Ærø)"), "-d", words("Ø=Fyn,Ærø"))
    assert "nær: any[2, 2] = input()" in found.output


def test_words_in_a_locale_of_plain_letters(folder):
    (folder / "north.tl").write_text("Near(Ærø, Fyn)\n", encoding="utf-8")
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "utf-8"}
    for words, expected in (
        (["compile", "∃x:Ø. nær(x, Ærø)", "-d", "Ø=Fyn,Ærø"], "nær: any[2, 2] = input()"),
        (["why", "north.tl", "Near(Ærø, Fyn)"], "Near(Ærø, Fyn)  fact"),
    ):
        command = [sys.executable, "-m", "tensorlogic", *words]
        done = subprocess.run(command, env=plain, check=False, capture_output=True, encoding="utf-8", timeout=100)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_characters_that_the_output_does_not_have(folder):
    (folder / "hat.tl").write_text("P(Ω)\nQ(x) <- P(x)\n", encoding="utf-8")
    runner = CliRunner(charset="cp1252")
    why = runner.invoke(main, ["why", "hat.tl", "Q(Ω)"])
    assert why.exit_code == 0, why.output
    assert why.output.splitlines()[0].startswith("Q(\\u03a9)  by Q(x) <- P(x)")
    assert json.loads(runner.invoke(main, ["query", "hat.tl", "Q(x)?", "--json"]).output)["rows"] == [["Ω"]]
    assert "\\u03a9" in runner.invoke(main, ["query", "hat.tl", "Q(Ω"]).output


def test_run_answers_the_queries(folder):
    done = call("run", "family.tl")
    assert done.exit_code == 0, done.output
    assert done.output.splitlines() == [
        "Ancestor(Alice, x)?", "x", "Bob", "Charlie", "2 answers", "",
        "Ancestor(Charlie, Alice)?", "false", "",
        "Count[x]?", "x        value", "Alice    2", "Bob      1", "Charlie  0", "3 answers",
    ]  # fmt: skip


def test_run_for_machines(folder):
    found = json.loads(call("run", "family.tl", "--json").output)
    assert found["answers"][0] == {"query": "Ancestor(Alice, x)?", "columns": ["x"], "rows": [["Bob"], ["Charlie"]]}
    assert found["answers"][1] == {"query": "Ancestor(Charlie, Alice)?", "value": False}
    assert call("run", "family.tl", "--csv").output == (
        "x\nBob\nCharlie\n\nvalue\nfalse\n\nx,value\nAlice,2\nBob,1\nCharlie,0\n"
    )


def test_a_program_without_queries_shows_what_it_derives(folder):
    done = call("run", "layer.tl", "-i", "W=w.npy", "-o", "out.npz")
    assert "Y\n" in done.output
    with np.load("out.npz") as written:
        assert written["Y"].tolist() == [1, 2]
    assert call("run", "layer.tl").exit_code == 1
    assert "'W' is not given" in call("run", "layer.tl").output or "nothing fixes" in call("run", "layer.tl").output


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("low.tl", "parent(Al, Bo); parent(Bo, Cy)\ngrand(x,z) <- parent(x,y), parent(y,z)", "grand\nx   z\nAl  Cy\n"),
        (
            "low.pl",
            "parent(al, bo). parent(bo, cy).\ngrand(X,Z) :- parent(X,Y), parent(Y,Z).",
            "grand\nx   z\nal  cy\n",
        ),
        ("low.tl", "W = [1, 2]\nloss[i] = 3 W[i]", "loss\ni  value\n1  6\n0  3\n"),
        ("low.tl", "W = [1, 2]\nloss[i] = 3 W[i]\nloss?", "loss?\ni  value\n1  6\n0  3\n"),
    ],
)
def test_names_in_lower_case_are_shown_and_asked_for(folder, file, text, said):
    (folder / file).write_text(text)
    done = call("run", file)
    assert done.exit_code == 0, done.output
    assert said in done.output


def test_files_are_written_by_run_alone(folder):
    (folder / "out.tl").write_text('Parent(Alice, Bob)\n"out.csv" = Parent(x,y)\n')
    tl.load("out.tl").query("Parent(x,y)?")
    assert call("check", "out.tl").exit_code == 0
    assert not (folder / "out.csv").exists()
    done = call("run", "out.tl", "--json")
    assert json.loads(done.output)["written"] == ["out.csv"]
    assert (folder / "out.csv").read_text(encoding="utf-8") == "Alice,Bob\n"


def test_query(folder):
    assert call("query", "family.tl", "Ancestor(x, Charlie)?").output == "x\nAlice\nBob\n2 answers\n"
    assert call("query", "family.tl", "Ancestor(x, Charlie)", "--csv").output == "x\nAlice\nBob\n"
    found = json.loads(call("query", "layer.tl", "Y[i]?", "-i", "W=w.npy", "--json").output)
    assert found["rows"] == [[0, 1.0], [1, 2.0]]
    assert call("query", "countries.pl", "linked(x, y)?", "--csv").output == "x,y\na,b\nb,c\n"


def test_check_and_explain(folder):
    assert "is valid" in call("check", "family.tl").output
    assert json.loads(call("check", "family.tl", "--json").output)["valid"] is True
    assert "Ancestor" in call("explain", "family.tl").output
    assert json.loads(call("explain", "family.tl", "--json").output)["steps"]


def test_a_datalog_file_of_another_ending(folder):
    (folder / "near.dl").write_text("near(a, b).\n")
    assert "ends in .tl, or in .pl for Prolog and Datalog" in call("run", "near.dl").output


def test_check_says_what_run_still_needs(folder):
    assert call("check", "layer.tl").output.endswith("is valid, and runs once W is given\n")
    assert json.loads(call("check", "layer.tl", "--json").output)["needs"] == ["W"]
    (folder / "spelling.tl").write_text("Ancestor(x,y) <- Parnt(x,y), Livng(x)\n")
    assert call("check", "spelling.tl").output.endswith("is valid, and runs once Parnt, Livng are given\n")
    assert call("run", "spelling.tl").exit_code == 1


def test_fmt(folder):
    done = call("fmt", "family.tl")
    assert done.output.startswith("# a family\nParent(Alice, Bob)")
    assert call("fmt", "--check", "family.tl").exit_code == 1
    assert call("fmt", "-w", "family.tl").exit_code == 0
    assert (folder / "family.tl").read_text(encoding="utf-8") == done.output
    assert call("fmt", "--check", "family.tl").exit_code == 0
    assert json.loads(call("fmt", "family.tl", "--json").output) == {"changed": []}


def test_saved_folders_run_with_names(folder):
    tl.load("family.tl").save("family")
    assert call("query", "family", "Ancestor(Alice, x)?", "--csv").output == "x\nBob\nCharlie\n"


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["run", "nope.tl"], 1, "does not exist"),
        (["run", "familly.tl"], 1, "did you mean 'family.tl'?"),
        (["query", "family.tl", "Ancester(x, y)?"], 1, "did you mean 'Ancestor'?"),
        (["query", "family.tl", "Ancestor(x)?"], 1, "has 2 places"),
        (["query", "family.tl", "Ancestor(x, "], 1, "hint"),
        (["check", "wrong.tl"], 1, "'x'"),
        (["fmt", "nope.tl"], 1, "nope.tl"),
        (["run", "family.tl", "-i", "Z=[1]"], 1, "no tensor 'Z'"),
        (["query", "family.tl"], 2, "QUERY"),
    ],
)
def test_mistakes(folder, args, code, said):
    done = call(*args)
    assert done.exit_code == code, done.output
    assert said in done.output
    if code == 1:
        assert json.loads(call(*args, "--json").output)["error"]["code"]


@pytest.mark.parametrize("command", ["run", "query", "check", "explain", "fmt"])
def test_help_has_examples(command):
    assert ".tl" in call(command, "--help").output


def test_saved_graphs_keep_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A graph of a program, or of a formula, says its answers by name after it was saved."""
    monkeypatch.chdir(tmp_path)
    p = tl.Program("Parent(Ann, Bob); Parent(Bob, Cid)\nAnc(x,y) <- Parent(x,y)\nAnc(x,z) <- Anc(x,y), Parent(y,z)")
    p.graph("Anc").save("anc.json")
    done = CliRunner().invoke(
        main, ["run", "anc.json", "-i", "Parent=[[false,true,false],[false,false,true],[false,false,false]]"]
    )
    assert done.exit_code == 0, done.output
    assert [line.split() for line in done.output.splitlines()[2:5]] == [["Ann", "Bob"], ["Ann", "Cid"], ["Bob", "Cid"]]
    context = tl.CompilerContext(domains={"P": ["ann", "bob", "cat"], "N": 2})
    x, y = tl.variables("x y", domain="P")
    n, _ = tl.variables("n m", domain="N")
    graph = tl.compile(tl.exists(y, tl.pred("knows", x, y) & tl.pred("age", y, n)), context)
    assert graph.axis_names == {
        "knows": (("ann", "bob", "cat"),) * 2, "age": (("ann", "bob", "cat"), None), "result": (("ann", "bob", "cat"), None)
    }  # fmt: skip
    assert tl.EinsumGraph.from_json(graph.to_json()).axis_names == graph.axis_names


def test_capitals_for_variables_are_doubted(folder):
    (folder / "capitals.tl").write_text("Parent(Alice, Bob)\nChild(Y,X) <- Parent(X,Y), Alive(X)\n")
    found = call("check", "capitals.tl")
    assert found.exit_code == 0 and found.output.endswith("is valid, and runs once Alive is given\n")
    assert "warning: the relation 'Alive' has no facts and no rules\n  at capitals.tl:2:28" in found.output
    assert "warning: no fact has the name 'X'\n  at capitals.tl:2:22\n    Child(Y,X) <- Parent(X,Y)" in found.output
    assert "hint: a variable begins with a lower-case letter: x" in found.output
    listed = json.loads(call("check", "capitals.tl", "--json").output)["diagnostics"]
    assert [d["severity"] for d in listed] == ["warning"] * 3 and [d["code"] for d in listed] == [
        "E786",
        "E777",
        "E777",
    ]
    (folder / "capitals.tl").write_text("Parent(Alice, Bob)\nChild(Y,X) <- Parent(X,Y)\n")
    assert "note: no fact has the name 'X'" in call("run", "capitals.tl").stderr


def test_names_that_rules_and_files_give_are_not_doubted(folder):
    (folder / "weights.csv").write_text("Ann,0.5\nBob,2\n")
    (folder / "near.csv").write_text("Ann,Bob\n")
    (folder / "given.tl").write_text(
        """W[x] = "weights.csv"; Near(x,y) = "near.csv"; L = 0; V = [1, 2]; Y = V[L]
        R(Zed) <- Near(x,y)
        S(x) <- R(Zed), Near(x,Bob), W[x] > 0, x != Cid
        S(Bob)?
        """
    )
    assert "warning" not in call("check", "given.tl").output
    assert "note" not in call("run", "given.tl").stderr


def test_the_graph_of_a_program(folder):
    assert "return Ancestor=%" in call("graph", "family.tl").output
    assert call("graph", "family.tl", "-f", "json", "-o", "family.json").exit_code == 0
    assert call("check", "family.json").exit_code == 0
    assert "W: float64[2, 2] = input()" in call("graph", "layer.tl", "-i", "W=w.npy").output
    assert "on the command line: -i W=FILE.npy" in call("query", "layer.tl", "W?").output


def test_an_empty_file_is_an_empty_relation(folder):
    (folder / "empty.csv").write_text("")
    program = tl.Program("Parent(Alice, Bob)\nOrphan(x) <- Parent(_,x), not Known(x,_)")
    program.add("Known", "empty.csv")
    assert program.query("Orphan(x)?") == [("Bob",)]
    program.add("Parent", "empty.csv")
    assert len(program.relation("Parent")) == 1
