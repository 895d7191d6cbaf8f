"""Recording runs to a folder, replaying them, and the report of everything."""

import json
import re
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.numpy import NumpyBackend
from tensorlogic.debug import BreakpointManager, ExecutionRecorder, ExecutionTracer, Recording
from tensorlogic.testing import cases


def chain():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    return b.build(y=b.square(b.relu(x @ w) * 0.25))


INPUTS = {"x": np.array([[1.0, 2.0, 3.0], [0.5, -4.0, 0.0]]), "w": np.ones((3, 2))}


class Altered(NumpyBackend):
    """NumPy's backend, with the results of one operation changed."""

    name = "altered"

    def __init__(self, word="relu", change=lambda x: x * 1.01):
        self._word, self._change = word, change

    def bind(self, step, run_body):
        kernel = super().bind(step, run_body)
        return (lambda *args: self._change(kernel(*args))) if step.op.name == self._word else kernel


def record(folder, graph=None, inputs=None, **options):
    with ExecutionRecorder(**options).capture(folder) as recorder:
        out = tl.Executor().execute(graph or chain(), inputs or INPUTS)
    return recorder, out


@pytest.fixture
def recording(tmp_path):
    record(tmp_path)
    return Recording.load(tmp_path)


def plain(text):
    return re.sub(r"\S*(test_replay.py):\d+:\d+", r"\1", str(text)) + "\n"


def test_what_is_recorded(recording):
    plan = tl.Executor().plan(chain(), INPUTS)
    assert recording.plan.graph == plan.graph
    assert list(recording.inputs()) == ["x", "w"]
    assert np.array_equal(recording.inputs()["x"], INPUTS["x"])
    assert [s.op for s in recording.plan.steps] == [s.op for s in plan.steps]
    assert np.array_equal(recording.recorded(0)[0], INPUTS["x"] @ INPUTS["w"])
    assert len(recording.durations_ns) == len(plan.steps)
    assert recording.versions["numpy"] == np.__version__
    assert str(recording) == f"recording of {len(plan.steps)} steps, with inputs x, w and outputs y"
    with pytest.raises(tl.InputError, match="so no step 99"):
        recording.recorded(99)


def test_no_file_is_code_and_none_is_left_half_written(tmp_path):
    record(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run-000000"]
    assert sorted(p.name for p in (tmp_path / "run-000000").iterdir()) == [
        "graph.json", "manifest.json", "values.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("backend", ["numpy", "reference"])
def test_the_same_again(recording, backend):
    steps = list(recording.replay(backend))
    assert [s.difference for s in steps] == [None] * len(recording.plan.steps)
    assert all(np.allclose(s.value[0], s.recorded[0]) for s in steps)
    compared = recording.compare(backend)
    assert compared.same
    assert compared.first is None
    assert str(compared) == f"{len(steps)} steps on {backend}: all equal within the tolerance of their dtype"


def test_the_first_step_that_differs(recording, golden):
    compared = recording.compare(Altered())
    assert not compared.same
    assert compared.first.operation == "relu"
    golden("debug_compare.txt", plain(compared))
    assert "relu" in compared._repr_html_()


def test_the_worst_element_is_shown(recording):
    found = recording.compare(Altered(change=lambda x: x + np.diag([1e-3, 0.5]))).first.difference
    assert (found.place, found.wrong, found.error) == ((1, 1), 2, 0.5)


def test_isolated_steps_start_from_what_was_recorded(recording):
    assert [s.operation for s in recording.compare(Altered(), isolate=True).differing] == ["relu"]
    assert len(recording.compare(Altered()).differing) == 3


def test_a_tolerance_of_ones_own(recording):
    assert recording.compare(Altered(), rtol=0.1).same
    assert not recording.compare(Altered(change=lambda x: x * (1 + 1e-12)), rtol=1e-14).same
    assert "within a tolerance of 0.1" in str(recording.compare(Altered(), rtol=0.1))


def test_a_changed_shape_or_dtype_differs(recording):
    narrowed = recording.compare(Altered("square", lambda x: x.astype(np.float32)))
    assert str(narrowed.first.difference) == "dtype float32, expected float64"
    cut = recording.compare(Altered("square", lambda x: x[:1]))
    assert str(cut.first.difference) == "shape (1, 2), expected (2, 2)"
    assert "(1, 2)" in str(cut)


def test_replay_is_step_by_step(recording):
    calls = []
    steps = recording.replay(Altered("relu", lambda x: calls.append("relu") or x))
    assert next(steps).operation.startswith("einsum")
    assert calls == []
    assert str(next(steps)) == "step 1, %3 = relu: same"
    assert calls == ["relu"]


def test_a_backend_without_values_is_refused(recording):
    with pytest.raises(tl.BackendError, match="the null backend computes no values"):
        recording.compare("null")


@pytest.mark.parametrize(
    "case", [c for c in cases() if c.name.startswith(("fixpoint/", "scan/", "cond/", "view/", "cast"))], ids=lambda c: c.name
)  # fmt: skip
def test_every_kind_of_step_replays(case, tmp_path):
    graph, inputs = case.make()
    record(tmp_path, graph, inputs)
    recording = Recording.load(tmp_path)
    for isolate in (False, True):
        compared = recording.compare("numpy", isolate=isolate)
        assert compared.same, compared
        assert compared.compared == compared.planned


def test_constants_literals_and_odd_sizes(tmp_path):
    b = tl.GraphBuilder()
    x = b.input("größe", ("n", 3), "float32")
    graph = b.build(y=b.where(x > 0, x * b.constant(np.float32([1, 2, 3])), 0.5), z=b.sum(x), u=x)
    for n in (0, 2):
        with ExecutionRecorder().capture(tmp_path / str(n)):
            tl.Executor().execute(graph, {"größe": np.ones((n, 3), np.float32)})
        recording = Recording.load(tmp_path / str(n))
        assert recording.compare().same
        assert list(recording.inputs()) == ["größe"]


def test_several_runs_in_a_folder(tmp_path):
    recorder = ExecutionRecorder(tmp_path)
    recorder.enable()
    ex = tl.Executor(context=tl.ExecutionContext([recorder]))
    for scale in (1.0, 2.0):
        ex.execute(chain(), {**INPUTS, "x": INPUTS["x"] * scale})
    recorder.disable()
    ex.execute(chain(), INPUTS)
    assert recorder.recorded() == [tmp_path / "run-000000", tmp_path / "run-000001"]
    assert Recording.load(tmp_path, -1).inputs()["x"][0, 0] == 2.0
    assert Recording.load(tmp_path / "run-000000").inputs()["x"][0, 0] == 1.0
    with pytest.raises(tl.InputError, match="holds 2 recorded runs, counted from 0, so none numbered 2"):
        Recording.load(tmp_path, 2)
    record(tmp_path)
    assert len(list(tmp_path.iterdir())) == 3, "a later recorder goes on counting"


def test_values_are_copies_and_the_run_is_unharmed(tmp_path):
    given = {k: v.copy() for k, v in INPUTS.items()}
    _, out = record(tmp_path, None, given)
    expected = tl.Executor().execute(chain(), INPUTS)["y"]
    assert np.array_equal(out["y"], expected)
    out["y"][:] = 0
    given["x"][:] = 0
    assert np.array_equal(Recording.load(tmp_path).recorded(len(Recording.load(tmp_path).plan.steps) - 1)[0], expected)


def test_attached_and_capturing_it_hears_each_step_once(tmp_path):
    recorder = ExecutionRecorder()
    ex = tl.Executor(context=tl.ExecutionContext([recorder]))
    with recorder.capture(tmp_path):
        ex.execute(chain(), INPUTS)
    steps = len(ex.plan(chain(), INPUTS).steps)
    assert recorder.tracer().get_trace().summary().total_operations == steps
    assert len(recorder.inspector().stats()) == steps + 2
    assert len(recorder.recorded()) == 1
    ex.execute(chain(), INPUTS)
    assert recorder.tracer().get_trace().summary().total_operations == steps, "off again"


def test_too_large_is_refused_before_it_runs(tmp_path):
    recorder = ExecutionRecorder(tmp_path, max_bytes=100)
    recorder.enable()
    ex = tl.Executor(context=tl.ExecutionContext([recorder]))
    with pytest.raises(tl.InputError, match="recording this run takes 224 B, but max_bytes allows 100 B") as caught:
        ex.execute(chain(), INPUTS)
    assert caught.value.diagnostic.suggestions[0].startswith("give max_bytes=224")
    assert recorder.tracer().get_trace().entries == ()
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_is_recorded_as_far_as_it_came(tmp_path):
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    graph = b.build(y=b.fixpoint(lambda r: r + x, b.exp(x), limit=3))
    with pytest.raises(tl.ConvergenceError):
        record(tmp_path, graph, {"x": [1.0, 2.0]})
    recording = Recording.load(tmp_path)
    assert str(recording) == "recording of 1 step of 2, then it failed, with inputs x and outputs y"
    assert recording.recorded(1) is None
    steps = recording.replay()
    assert next(steps).difference is None
    with pytest.raises(tl.ConvergenceError):
        next(steps)


def test_quitting_at_a_breakpoint_keeps_what_ran(tmp_path):
    def stop(hit):
        raise tl.ExecutionError("enough")

    breakpoints = BreakpointManager(stop)
    breakpoints.add_operation_breakpoint("relu")
    with pytest.raises(tl.ExecutionError, match="enough"):
        record(tmp_path, breakpoints=breakpoints)
    recording = Recording.load(tmp_path)
    assert len(recording.durations_ns) == 2
    compared = recording.compare()
    assert str(compared).endswith("all equal within the tolerance of their dtype (2 were not recorded)")


def test_several_threads_record_side_by_side(tmp_path):
    graph, ex = chain(), tl.Executor()
    with ExecutionRecorder().capture(tmp_path) as recorder:
        threads = [
            threading.Thread(target=ex.execute, args=(graph, {**INPUTS, "x": INPUTS["x"] * n})) for n in range(1, 7)
        ]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
    assert len(set(recorder.recorded())) == 6
    loaded = [Recording.load(path) for path in recorder.recorded()]
    assert {r.inputs()["x"][0, 0] for r in loaded} == {1.0, 2.0, 3.0, 4.0, 5.0, 6.0}
    assert all(r.compare().same for r in loaded)


# folders from elsewhere


def _truncate(path):
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])


def _swap_graph(run):
    b = tl.GraphBuilder()
    b.build(y=b.relu(b.input("x", (2,)))).save(run / "graph.json")


def _symbolic(run):
    graph = chain()
    graph.save(run / "graph.json")
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    (run / "manifest.json").write_text(json.dumps({**manifest, "graph": graph.digest}))


def _edit(run, **changes):
    manifest = json.loads((run / "manifest.json").read_text(encoding="utf-8"))
    (run / "manifest.json").write_text(json.dumps({**manifest, **changes}))


def _other_values(run, **extra):
    from safetensors.numpy import save_file

    save_file({"input.0": np.ones((2, 3)), **extra}, run / "values.safetensors")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (shutil.rmtree, "no such folder"),
        (lambda run: (run / "manifest.json").unlink(), "it has no manifest.json and no runs in it"),
        (lambda run: (run / "graph.json").unlink(), "there is no file"),
        (lambda run: (run / "values.safetensors").unlink(), "lacks values.safetensors"),
        (lambda run: _truncate(run / "manifest.json"), "not JSON"),
        (lambda run: _truncate(run / "graph.json"), "not JSON"),
        (lambda run: _truncate(run / "values.safetensors"), "not a readable safetensors file"),
        (lambda run: (run / "values.safetensors").write_bytes(b""), "not a readable safetensors file"),
        (lambda run: (run / "values.safetensors").write_bytes(b"\x80\x04pickle"), "not a readable safetensors file"),
        (lambda run: (run / "manifest.json").write_text("[]"), 'this is not a recording: "format" is list'),
        (lambda run: (run / "manifest.json").write_text("{}"), 'this is not a recording: "format" is None'),
        (lambda run: _edit(run, version=2), "version 2 of the recording format is not known here"),
        (lambda run: _edit(run, version=True), "version True"),
        (lambda run: _edit(run, steps="all"), "Expected `array`, got `str`"),
        (lambda run: _edit(run, steps=[1] * 99), "tells of 99 steps"),
        (lambda run: _edit(run, code="import os"), "unknown field `code`"),
        (_swap_graph, "is not the graph that was recorded"),
        (_symbolic, "sizes or dtypes that are not known"),
        (_other_values, "lacks 'input.1'"),
    ],
)
def test_a_broken_folder_says_so(tmp_path, spoil, said):
    record(tmp_path)
    run = tmp_path / "run-000000"
    spoil(run)
    with pytest.raises(tl.FormatError, match=re.escape(said)):
        Recording.load(run)


def test_inputs_of_another_shape(tmp_path):
    from safetensors.numpy import load_file, save_file

    record(tmp_path)
    path = tmp_path / "run-000000" / "values.safetensors"
    save_file({**load_file(path), "input.0": np.ones((5, 3), np.float32)}, path)
    with pytest.raises(tl.FormatError, match=re.escape("input 'x'") + ".* is float32.5, 3., expected float64"):
        Recording.load(tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(tl.FormatError, match="cannot record the run"):
        record(tmp_path / "file")


# the report


def test_the_report(golden):
    recorder = ExecutionRecorder(
        tracer=ExecutionTracer(clock=iter([0, 2_000_000, 3_000_000, 3_500_000]).__next__),
        breakpoints=BreakpointManager(lambda hit: None),
    )
    recorder.enable()
    recorder.breakpoints().add_operation_breakpoint("log")
    b = tl.GraphBuilder()
    graph = b.build(y=b.log(b.relu(b.input("x", (3,)))))
    tl.Executor(context=tl.ExecutionContext([recorder])).execute(graph, {"x": [1.0, -2.0, 3.0]})
    assert recorder.generate_report().trace.summary().total_operations == 2
    recorder.tracer().start_trace("by hand")  # the clock of a real run is not ours to choose
    for node, op in ((1, "relu"), (2, "log")):
        handle = recorder.tracer().record_operation_start(node, op, [node - 1])
        recorder.tracer().record_operation_end(handle, node, op, [node - 1], [node])
    report = recorder.generate_report()._replace(recorded=(Path("folder/run-000000"),))
    golden("debug_report.txt", re.sub(r"[\d.,]+ µs,", "7.0 µs,", plain(report)))
    assert report._repr_html_().startswith("<pre>operations")


def test_a_report_of_nothing_and_of_much():
    recorder = ExecutionRecorder(breakpoints=BreakpointManager(lambda hit: None))
    recorder.enable()
    assert "no hits" in str(recorder)
    recorder.breakpoints().add_node_breakpoint(1)
    for _ in range(25):
        recorder.breakpoints().should_break(1, "relu", 1.0, False)
    assert "... 5 more hits" in str(recorder.generate_report())


def test_runs_inside_of_a_captured_run_are_captured_too(tmp_path):
    b = tl.GraphBuilder()
    x = b.input("x", (2,))
    outer, inner = b.build(y=b.exp(b.relu(x))), b.build(z=b.log(x))

    def callback(hit):
        tl.Executor().execute(inner, {"x": [1.0, 2.0]})

    points = BreakpointManager(callback)
    points.add_operation_breakpoint("relu")
    recorder = ExecutionRecorder(breakpoints=points)
    with recorder.capture(tmp_path):
        tl.Executor().execute(outer, {"x": [1.0, 2.0]})
    names = [Recording.load(tmp_path, n).plan.graph.output_names for n in range(2)]
    assert sorted(map(tuple, names)) == [("y",), ("z",)]
    assert all(Recording.load(tmp_path, n).compare().same for n in range(2))
