"""Streams that stop and go on: whatever happened and whenever, the answer is bit for bit that of an uninterrupted run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.streams import array_sinks, table_sinks
from tensorlogic.runtime.streams.sinks import sink_of
from tensorlogic.testing import failing_at

sys.path.insert(0, str(Path(__file__).parent))
import stream_kills

EX = tl.Executor()
ROWS = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
SINKS = ["out.npz", "out.parquet", "out.csv"]


def graph(scale: float = 2.0) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3), "float32")
    return b.build(y=x * scale, s=b.sum(x, axis=1), total=b.sum(x, axis=0), mean=b.mean(x * x))


def run(folder, sink="out.npz", *, resume=True, source=None, made=None, rows=3, wrap=(), **options):
    """Run a stream in a folder of checkpoints, with file operations wrapped."""
    made = graph() if made is None else made
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(rows), prefetch=0).with_checkpointing(2)
    into = sink_of(folder / sink, made.output_names, staged=True, wrap=wrap)
    saved = tl.CheckpointManager(folder / "saved", wrap=wrap)
    given = {"x": ROWS} if source is None else source
    return EX.execute_stream(made, given, config, sink=into, checkpoint=saved, resume=resume, **options)


@pytest.fixture
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    return {
        sink: (run_all(folder / sink.replace(".", ""), sink), (folder / sink.replace(".", "") / sink).read_bytes())
        for sink in SINKS
    }


def run_all(folder, sink):
    folder.mkdir()
    return run(folder, sink, resume=False).result()


def check(folder, sink, stream, whole):
    outputs, content = whole[sink]
    found = stream.result()
    for name, value in outputs.items():
        np.testing.assert_array_equal(found[name], value, strict=True)
    assert (folder / sink).read_bytes() == content
    assert {p.name for p in folder.iterdir()} == {sink, "saved"}


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("operation", ["write", "fsync", "replace", "rename", "mkdir"])
def test_any_file_operation_may_fail(sink, operation, tmp_path, whole):
    number, failed = 1, 0
    while True:
        folder = tmp_path / f"{operation}{number}"
        folder.mkdir()
        fault = failing_at(operation, call=number, error=OSError(28, "No space left on device"))
        try:
            run(folder, sink, resume=False, wrap=[fault]).result()
        except tl.TensorLogicError as error:
            failed += 1
            assert "No space left" in str(error)
        if not fault.strikes:
            break
        check(folder, sink, run(folder, sink), whole)
        number += 1 + number // 3
    assert failed or operation == "replace"


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("seed", [0])
def test_kills_at_random_moments(sink, seed, tmp_path):
    assert stream_kills.killed_and_resumed(tmp_path, seed, kills=2, sink=sink) in (1, 2)


def test_a_source_that_fails_is_resumed_after_the_chunk_before(tmp_path, whole):
    def failing():
        yield {"x": ROWS[:10]}
        yield {"x": ROWS[10:20]}
        raise ConnectionError("gone")

    with pytest.raises(tl.InputError, match="ConnectionError"):
        run(tmp_path, source=failing(), resume=False).result()
    again = run(tmp_path, source=iter([{"x": ROWS[:31]}, {"x": ROWS[31:]}]))
    results = list(again)
    assert results[0].metadata.start == 18
    check(tmp_path, "out.npz", again, whole)


def test_stopping_early_and_a_cancelled_run_can_be_resumed(tmp_path, whole):
    stream = run(tmp_path, resume=False)
    for _, _ in zip(range(5), stream, strict=False):
        pass
    stream.close()
    context = tl.ExecutionContext()
    stream = run(tmp_path)
    with pytest.raises(tl.CancelledError), context:
        for result in stream:
            assert result.metadata.chunk_id >= 5
            if result.metadata.chunk_id == 8:
                context.cancel()
    again = run(tmp_path)
    assert next(again).metadata.chunk_id == 9
    check(tmp_path, "out.npz", again, whole)
    done = run(tmp_path)  # once more: nothing runs
    assert list(done) == []
    check(tmp_path, "out.npz", done, whole)


def test_a_run_in_the_same_folder_is_refused(tmp_path):
    stream = run(tmp_path, resume=False)
    next(stream)
    with pytest.raises(tl.CheckpointError, match="in use by process"):
        next(run(tmp_path))
    stream.close()
    with pytest.raises(tl.CheckpointError, match="has checkpoints of a run already") as caught:
        next(run(tmp_path, resume=False))
    assert caught.value.diagnostic.code == "E546"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"made": graph(3.0)}, "another graph"),
        ({"rows": 4}, "chunks of another size: FixedChunk\\(rows=3\\) then, FixedChunk\\(rows=4\\) now"),
        ({"source": {"x": ROWS[:20]}}, "another source"),
    ],
)
def test_checkpoints_of_something_else_are_refused(options, message, tmp_path):
    stream = run(tmp_path, resume=False)
    next(stream)
    stream.close()
    with pytest.raises(tl.CheckpointError, match=message) as caught:
        next(run(tmp_path, **options))
    assert caught.value.diagnostic.code == "E547"


def test_other_weights_and_another_version_are_refused(tmp_path):
    b = tl.GraphBuilder()
    made = b.build(y=b.input("x", ("n", 3), "float32") * b.input("w", (3,), "float32"))
    stream = run(tmp_path, made=made, resume=False, inputs={"w": np.ones(3, "float32")})
    next(stream)
    stream.close()
    with pytest.raises(tl.CheckpointError, match="other inputs"):
        next(run(tmp_path, made=made, inputs={"w": np.zeros(3, "float32")}))
    manager = tl.CheckpointManager(tmp_path / "saved")
    newest = manager.latest()
    manager.save(newest.arrays, {**newest.facts, "format": 99})
    manager.close()
    with pytest.raises(tl.CheckpointError, match="another version of tensorlogic: 99 then"):
        next(run(tmp_path, made=made, inputs={"w": np.ones(3, "float32")}))


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path, whole):
    stream = run(tmp_path, resume=False)
    for _, _ in zip(range(6), stream, strict=False):
        pass
    stream.close()
    manager = tl.CheckpointManager(tmp_path / "saved")
    newest = manager.path(manager.numbers()[-1])
    (newest / "manifest.json").write_bytes(b"{")
    with pytest.warns(tl.CheckpointWarning, match="the one before is used"):
        again = run(tmp_path)
        assert next(again).metadata.chunk_id == 4
    check(tmp_path, "out.npz", again, whole)


def test_a_sink_that_is_gone_is_told(tmp_path):
    stream = run(tmp_path, resume=False)
    for _, _ in zip(range(6), stream, strict=False):
        pass
    stream.close()
    for part in tmp_path.glob("*.part"):
        part.unlink()
    with pytest.raises(tl.FormatError, match=r"should have .* bytes") as caught:
        next(run(tmp_path))
    assert caught.value.diagnostic.code == "E545"


class Killed(BaseException):
    """Ends a run as a kill would: nothing is removed after it."""


@pytest.mark.parametrize("removed", [0, 1])
def test_an_archive_that_has_its_name_while_its_parts_are_there(removed, tmp_path, whole, monkeypatch):
    taken = []

    def until_killed(path):
        if len(taken) == removed:
            raise Killed
        taken.append(path)
        path.unlink()

    monkeypatch.setattr(array_sinks, "remove", until_killed)
    with pytest.raises(Killed):
        run(tmp_path, resume=False).result()
    monkeypatch.undo()
    assert len(list(tmp_path.glob("out.npz.*.part"))) == 2 - removed
    check(tmp_path, "out.npz", run(tmp_path), whole)


def test_a_table_that_was_killed_while_it_became_parquet_leaves_nothing(tmp_path, whole, monkeypatch):
    def killed(path, call):
        if path.suffix == ".part":
            raise Killed

    monkeypatch.setattr(table_sinks, "to_disk", killed)
    monkeypatch.setattr(table_sinks, "remove", lambda path: None)
    with pytest.raises(Killed):
        run(tmp_path, "out.parquet", resume=False).result()
    monkeypatch.undo()
    check(tmp_path, "out.parquet", run(tmp_path, "out.parquet"), whole)


@pytest.mark.parametrize("sink", ["out.npz", "out.npy", "out.csv", "out.parquet"])
def test_a_file_of_an_earlier_run_is_not_taken_for_the_answer(sink, tmp_path, monkeypatch):
    b = tl.GraphBuilder()
    made = b.build(total=b.sum(b.input("x", ("n", 3), "float32")))
    (tmp_path / sink).write_bytes(b"of another run")

    def killed(*_):
        raise Killed

    into = type(sink_of(tmp_path / sink, made.output_names, staged=True))
    monkeypatch.setattr(into, "finish", killed)
    with pytest.raises(Killed):
        run(tmp_path, sink, made=made, resume=False).result()
    monkeypatch.undo()
    assert run(tmp_path, sink, made=made).result()["total"] == pytest.approx(ROWS.sum(), rel=1e-5)
    assert (tmp_path / sink).read_bytes() != b"of another run"


def test_adaptive_sizes_go_on_as_they_were(tmp_path):
    config = tl.StreamingConfig(tl.StreamingMode.Adaptive(4), prefetch=0)
    stream = EX.execute_stream(graph(), {"x": ROWS}, config, checkpoint=tmp_path / "saved")
    for _, _ in zip(range(4), stream, strict=False):
        pass
    state, rows = stream._sizes.state(), stream.rows
    stream.close()
    again = EX.execute_stream(graph(), {"x": ROWS}, config, checkpoint=tmp_path / "saved", resume=True)
    assert next(again).metadata.start == rows
    assert again._sizes.state()["first"] == state["first"]
    np.testing.assert_allclose(again.result()["total"], ROWS.sum(axis=0), rtol=1e-5)


# the command line


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph().save("model.json")
    np.save("x.npy", np.repeat(ROWS, 5, axis=0))
    return tmp_path


def command(*words, **options):
    return subprocess.run(
        [sys.executable, "-m", "tensorlogic", "run", "model.json", *words],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def test_the_command_line_streams_and_goes_on(model):
    base = ("--stream", "x.npy", "--chunk", "50")
    saved = ("--checkpoint", "saved", "--every", "1", "-o", "out.npz")
    done = command(*base, *saved)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("rows") for line in lines] == [50, 50, 50, 50, 200]
    assert lines[-1]["done"]
    assert lines[-1]["outputs"]["mean"]["dtype"] == "float32"
    with np.load("out.npz") as found:
        np.testing.assert_array_equal(found["y"], np.load("x.npy") * 2)
    refused = command(*base, *saved)
    assert refused.returncode == 1
    assert "has checkpoints of a run already" in refused.stderr
    again = command(*base, *saved, "--resume")
    assert json.loads(again.stdout) == lines[-1]
    manager = tl.CheckpointManager("saved")
    (manager.path(manager.numbers()[-1]) / "manifest.json").write_bytes(b"{")
    manager.close()
    warned = command(*base, *saved, "--resume")
    assert json.loads(warned.stdout.splitlines()[-1]) == lines[-1]
    assert warned.stderr.startswith("CheckpointWarning: checkpoint 6 in 'saved' is damaged")
    assert warned.stderr.count("\n") == 1  # and no line of our own code
    shown = command(*base, "--json")
    assert json.loads(shown.stdout.splitlines()[0])["outputs"]["y"]["shape"] == [50, 3]


def test_ctrl_c_leaves_a_state_and_says_how_to_go_on(model):
    import shlex
    import signal

    words = [
        sys.executable,
        "-m",
        "tensorlogic",
        "run",
        "model.json",
        "--stream",
        "x.npy",
        "--chunk",
        "1",
        "--checkpoint",
        "saved",
        "-o",
        "out.npz",
    ]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for _ in range(3):
        child.stdout.readline()
    child.send_signal(signal.SIGINT)
    out, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    last = json.loads(out.splitlines()[-1])
    assert last["stopped"]
    assert 3 <= last["rows"] < 200
    assert f"stopped after {last['rows']:,} rows; to go on: {last['resume']}" in errors
    rest = shlex.split(last["resume"])
    assert rest[:3] == ["tensorlogic", "run", "model.json"]
    done = command(*rest[3:])
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout.splitlines()[0])
    assert first["start"] == last["rows"]
    with np.load("out.npz") as found:
        np.testing.assert_array_equal(found["y"], np.load("x.npy") * 2)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--chunk", "3"), 2, "are for --stream FILE"), (("--stream", "x.npy", "--resume"), 2, "--resume needs --checkpoint"),
        (("--stream", "x.npy", "--chunk", "3", "--memory", "3"), 2, "not both"), (("--stream", "x.npy", "--csv"), 2, "for graph files"),
        (("--stream", "y.npy"), 1, "there is no file"), (("--stream", "x.npy", "--over", "z"), 1, "no size and no input"),
        (("--stream", "x.npy", "-o", "out.txt"), 1, "what kind of file"),
    ],
)  # fmt: skip
def test_mistakes_on_the_command_line(model, words, code, message):
    from click.testing import CliRunner

    from tensorlogic.cli import main

    done = CliRunner().invoke(main, ["run", "model.json", *words])
    assert done.exit_code == code
    assert message in done.output


def test_help_says_the_exit_codes():
    from click.testing import CliRunner

    from tensorlogic.cli import main

    said = CliRunner().invoke(main, ["run", "--help"]).output
    assert "Exit codes:" in said
    assert "130" in said
