"""The commands for traces, as people and scripts use them."""

import gzip
import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import tensorlogic as tl
from tensorlogic.cli import common, main


def event(name, start, end, thread=0, kind="step", **args):
    return tl.TraceEvent(name, kind, start, end, thread, None, args)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    b = tl.GraphBuilder()
    b.build(y=b.relu(b.input("x", ("n", 3), "float64") @ b.constant(np.ones((3, 2))))).save("layer.json")
    np.save("x.npy", np.ones((2, 3)))
    tl.Trace([
        event("matmul [a]", 0, 5_000_000, device="cpu:0"), event("relu", 5_000_000, 6_000_000, device="cpu:0"),
        event("relu", 6_000_000, 8_000_000, 1, device="cpu:1"), event("plan", 0, 9_000_000, kind="span"),
    ], threads={0: "main", 1: "io"}).save("a.json")  # fmt: skip
    tl.Trace([event("relu", 0, 4_000_000), event("exp", 4_000_000, 4_500_000)]).save("b.speedscope.json")
    return tmp_path


def call(*args):
    return CliRunner().invoke(main, ["trace", *args])


def test_record_a_graph(folder):
    done = call("record", "layer.json", "-i", "x=x.npy", "--repeat", "5", "-o", "run.json")
    assert done.exit_code == 0, done.output
    assert "10 steps, " in done.output
    loaded = tl.Trace.load("run.json")
    assert [e.name for e in loaded.events() if e.kind == "step"] == ["einsum ij,jk->ik", "relu"] * 5
    note = json.loads(call("record", "layer.json", "-i", "x=x.npy", "-o", "run.svg", "--json").output)
    assert note["steps"] == 2
    assert note["written"] == "run.svg"
    ElementTree.parse("run.svg")


SCRIPT = """import sys
import tensorlogic as tl
import beside
b = tl.GraphBuilder()
tl.Executor().execute(b.build(y=b.relu(b.input("x", (2,)))), {"x": [1.0, -1.0]})
print(__name__, sys.argv, beside.here)
"""


def test_record_a_script(folder):
    (folder / "code").mkdir()
    (folder / "code" / "beside.py").write_text("here = 'found'")
    (folder / "code" / "own.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-W",
        "error",
        "-m",
        "tensorlogic",
        "trace",
        "record",
        "code/own.py",
        "-o",
        "own.json",
        "--",
        "--epochs",
        "3",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "__main__ ['code/own.py', '--epochs', '3'] found\n"
    assert "1 step, " in done.stderr
    assert [e.name for e in tl.Trace.load("own.json").events() if e.kind == "step"] == ["relu"]


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        ("sys.exit(3)", 3, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('no luck')", 1, "no luck\n"),
        ("raise ValueError('no luck')", 1, "ValueError: no luck"),
        ("raise KeyboardInterrupt", 130, ""),
    ],
)
def test_a_script_that_ends_early_leaves_its_trace_and_code(folder, end, code, said):
    (folder / "own.py").write_text(SCRIPT.replace("import beside\n", "").replace(", beside.here", "") + end)
    argv, search = sys.argv, list(sys.path)
    done = call("record", "own.py", "-o", "own.json")
    assert done.exit_code == code, done.output
    assert said in done.output
    assert "runpy" not in done.output
    assert len([e for e in tl.Trace.load("own.json").events() if e.kind == "step"]) == 1
    assert (sys.argv, sys.path) == (argv, search)


def test_a_graph_that_fails_leaves_its_trace(folder):
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "int64")
    b.build(y=b.gather(x, x + 1)).save("bad.json")
    done = call("record", "bad.json", "-i", "x=[5, 6, 7]", "-o", "bad.trace.json")
    assert done.exit_code == 1
    assert [e.name for e in tl.Trace.load("bad.trace.json").events() if e.kind == "step"] == ["add"]


def test_summary(folder, golden):
    done = call("summary", "a.json")
    assert done.exit_code == 0, done.output
    golden("cli_trace_summary.txt", done.output)
    assert "more" in call("summary", "a.json", "--top", "1").output
    rows = json.loads(call("summary", "a.json", "--by", "device", "--json").output)["rows"]
    assert [(r["name"], r["count"], r["total_ns"]) for r in rows] == [("cpu:0", 2, 6_000_000), ("cpu:1", 1, 2_000_000)]
    rows = json.loads(call("summary", "a.json", "--by", "thread", "--top", "1", "--json").output)["rows"]
    assert [r["name"] for r in rows] == ["main"]
    assert "plan" in call("summary", "a.json", "--kind", "span").output


def test_a_terminal_gets_a_rich_table(folder, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    common.print_table(["operation", "n"], [["matmul [a]", "12"], ["[/bold]", "3"]], {1})
    out = capsys.readouterr().out
    assert "─" in out
    assert "matmul [a]" in out
    assert "[/bold]" in out


def test_progress_gives_every_item_and_shows_late(monkeypatch, capsys):
    ticks = iter(range(1000))
    assert list(common.progress(range(5), 5, "run", lambda: next(ticks), after=100)) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    assert list(common.progress(range(5), 5, "run", lambda: next(ticks), after=2)) == [0, 1, 2, 3, 4]
    assert list(common.progress([], 0, "run")) == []


NOTHING_LOST = {"steps": 0, "spans": 0, "other_events": 0, "skipped": {}, "damage": None}


@pytest.mark.parametrize("form", ["chrome", "speedscope", "collapsed", "rust"])
def test_export(folder, form):
    printed = call("export", "a.json", "--to", form)
    assert printed.exit_code == 0, printed.output
    done = call("export", "a.json", "--to", form, "-o", "out", "--json")
    assert json.loads(done.output) == {"written": "out", **NOTHING_LOST, "steps": 3, "spans": 1, "other_events": 2}
    assert (folder / "out").read_text(encoding="utf-8") == printed.output.removesuffix("\n")
    assert tl.Trace.load("out").step_count() >= 3


def test_flame(folder):
    done = call("flame", "a.json", "-o", "a.svg")
    assert done.exit_code == 0, done.output
    text = (folder / "a.svg").read_text(encoding="utf-8")
    assert "matmul [a]" in text
    assert ">a.json</text>" in text
    assert call("flame", "a.json").output == text


def test_diff(folder, golden):
    done = call("diff", "a.json", "b.speedscope.json")
    assert done.exit_code == 0, done.output
    golden("cli_trace_diff.txt", done.output)
    found = json.loads(call("diff", "a.json", "b.speedscope.json", "--top", "2", "--json").output)["rows"]
    assert [(r["name"], r["state"], r["change_ns"]) for r in found] == [
        ("matmul [a]", "gone", -5_000_000),
        ("relu", "both", 1_000_000),
    ]


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["summary", "c.json"], 1, "there is no file 'c.json'"),
        (["summary", "layer.json"], 1, "this JSON is not a trace"),
        (["summary", "a.json", "--by", "colour"], 2, "colour"),
        (["summary", "a.json", "--top", "0"], 2, "0"),
        (["summary", "a.json", "--kind", "spam"], 1, "did you mean 'span'?"),
        (["diff", "a.json", "a.json", "--kind", "kernel"], 1, "no entry is of the kind 'kernel'"),
        (["export", "a.json"], 2, "--to"),
        (["export", "a.json", "--to", "chrome", "-o", "no/out.json"], 1, "cannot write 'no/out.json': No such file"),
        (["flame", "a.json", "-o", "no/out.svg"], 1, "cannot write 'no/out.svg'"),
        (["record", "own.py"], 1, "there is no file 'own.py'"),
        (["record", "layer.json"], 1, "input 'x' is missing"),
        (["record", "layer.json", "-i", "x=x.npy", "--", "more"], 2, "arguments are for scripts"),
        (["record", "x.py", "-i", "x=x.npy"], 2, "a script takes its arguments after --"),
        (["record", "layer.json", "--repeat", "0"], 2, "0"),
        (["record", "layer.json", "-i", "x=x.npy", "-o", "no/out.json"], 1, "there is no folder 'no'"),
        (["record", "layer.json", "-i", "x=x.npy", "-o", "out.xyz"], 1, "does not say what form"),
        (["flame", "a.json", "-o", "a.json"], 1, "a flame graph is an SVG file, not 'a.json'"),
        (["flame", "a.json", "-o", "a.png"], 1, "does not say what form"),
        (["summary", "x.npy"], 1, "this is not a trace: it is not UTF-8 text"),
        (["record", "layer.json", "--detail", "all"], 2, "all"),
    ],
)
def test_mistakes(folder, args, code, said):
    done = call(*args)
    assert done.exit_code == code, done.output
    assert said in done.output
    assert "Traceback" not in done.output


def test_mistakes_are_json_too(folder):
    done = call("diff", "a.json", "c.json", "--json")
    assert done.exit_code == 1
    assert json.loads(done.output)["error"]["code"] == "E221"


@pytest.mark.parametrize("command", ["record", "summary", "export", "flame", "diff"])
def test_help_has_examples(command):
    done = call(command, "--help")
    assert done.exit_code == 0
    assert f"tensorlogic trace {command}" in done.output


def test_the_command_starts_without_the_libraries_of_its_parts():
    code = "import sys, tensorlogic.cli\nfound = {'numpy', 'rich', 'scipy'} & set(sys.modules)\nassert not found, found"
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


@pytest.mark.parametrize("output", ["no/out.json", "out.xyz"])
def test_a_place_that_cannot_be_written_is_told_before_the_run(folder, output):
    (folder / "own.py").write_text("open('ran', 'w').close()")
    assert call("record", "own.py", "-o", output).exit_code == 1
    assert not (folder / "ran").exists()


def test_the_last_line_counts_the_kind(folder):
    assert call("summary", "a.json", "--kind", "span").output.splitlines()[-1] == "1 of the kind span, 3.000 ms"
    assert call("summary", "a.json").output.splitlines()[-1].startswith("3 steps, 1 span, ")


def test_a_compressed_flame_graph(folder):
    assert call("flame", "a.json", "-o", "a.svg.gz").exit_code == 0
    assert gzip.decompress((folder / "a.svg.gz").read_bytes()).startswith(b"<?xml")


@pytest.mark.parametrize(("columns", "there"), [("70", "n b a"), ("36", "n a"), ("32", "n")])
def test_a_narrow_screen_leaves_spare_columns_out_and_the_rest_whole(monkeypatch, capsys, columns, there):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", columns)
    common.print_table(["operation", "n", "b", "a"], [["x" * 50, "12", "34567", "3"]], {1, 2, 3}, spare=(2, 3))
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    assert f"operation {there} ──" in " ".join(shown.split())
    assert "12" in shown and ("34567" in shown) == ("b" in there)


def test_the_standard_output_is_a_file_too(folder):
    words = [sys.executable, "-m", "tensorlogic", "trace", "export", "a.json", "--to", "collapsed", "-o", "/dev/stdout"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, call("export", "a.json", "--to", "collapsed").output.rstrip("\n"))


def test_a_summary_says_what_was_skipped_and_what_is_empty(folder):
    event = '{"ph": "X", "name": "a", "ts": 1, "dur": 2}'
    Path("cut.json").write_text(f'[{event}, {{"ph": "X", "name": "b", "ts": NaN, "dur": 1}}, {event}')
    done = call("summary", "cut.json")
    assert done.output.splitlines()[-1] == (
        "2 steps, 0 spans, 1 event of the file skipped (1 without a time), 0.002 ms"
    )
    assert json.loads(call("summary", "cut.json", "--json").output)["skipped"] == {"without a time": 1}
    Path("empty.json").write_text("")
    assert call("summary", "empty.json").output.splitlines()[-1].endswith("there is nothing in this trace")
    Path("counters.json").write_text('[{"ph": "C", "name": "memory", "ts": 1, "args": {"b": 1}}]')
    assert "only 1 event without a duration" in call("summary", "counters.json").output


@pytest.fixture
def spoilt(folder):
    event = '{"ph": "X", "name": "a", "ts": 1, "dur": 2}'
    Path("nan.json").write_text(f'[{event}, {{"ph": "X", "name": "b", "ts": NaN, "dur": 1}}]')
    Path("cut.json").write_text(f'{{"traceEvents": [{event}')
    Path("cut.json.gz").write_bytes(gzip.compress(Path("nan.json").read_bytes())[:-3])
    Path("empty.json").write_text("")
    Path("counters.json").write_text('[{"ph": "C", "name": "memory", "ts": 1, "args": {"b": 1}}]')


SAID = {
    "nan.json": "1 event of the file skipped (1 without a time)",
    "cut.json": "the file is damaged (its JSON stops short)",
    "cut.json.gz": "1 event of the file skipped (1 without a time), the file is damaged (its gzip data end early)",
    "empty.json": "there is nothing in this trace",
    "counters.json": "only 1 event without a duration, such as counters",
}
RECORDS = {
    "nan.json": {"steps": 1, "skipped": {"without a time": 1}},
    "cut.json": {"steps": 1, "damage": "its JSON stops short"},
    "cut.json.gz": {"steps": 1, "skipped": {"without a time": 1}, "damage": "its gzip data end early"},
    "empty.json": {},
    "counters.json": {"other_events": 1},
}


@pytest.mark.parametrize("file", SAID)
def test_every_command_says_what_of_a_file_is_missing(spoilt, file):
    note = f"note: {file}: {SAID[file]}\n"
    assert SAID[file] in call("summary", file).output.splitlines()[-1]
    for args in (["export", file, "--to", "chrome"], ["flame", file]):
        for output in ([], ["-o", "out.svg"]):
            done = call(*args, *output)
            assert (done.exit_code, done.stderr.startswith(note)) == (0, True), done.output
            assert "note" not in done.stdout
    assert call("diff", file, "a.json").stderr == note
    assert call("diff", "a.json", file).stderr == note
    assert call("diff", "a.json", "a.json").stderr == ""


@pytest.mark.parametrize("file", SAID)
def test_json_says_what_of_a_file_is_missing(spoilt, file):
    record = {**NOTHING_LOST, **RECORDS[file]}
    assert json.loads(call("summary", file, "--json").stdout).items() >= record.items()
    for args in (["export", file, "--to", "rust"], ["flame", file]):
        done = call(*args, "-o", "out.svg", "--json")
        assert json.loads(done.output) == {"written": "out.svg", **record}
    sides = json.loads(call("diff", file, "a.json", "--json").output)
    assert (sides["before"], sides["after"]["steps"]) == (record, 3)


def test_a_kind_that_is_counted_says_what_is_missing_too(spoilt):
    last = call("summary", "nan.json", "--kind", "event").output.splitlines()[-1]
    assert last == "1 of the kind event, 1 event of the file skipped (1 without a time), 0.002 ms"
