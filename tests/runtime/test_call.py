"""The one call: what it returns is the caller's, equal calls give equal bits, donated arrays, frames, passes of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.frame import Frame
from tensorlogic.testing.every_plan import every_program

AGGRESSIVE = tl.CompilationConfig(tl.OptimizationLevel.AGGRESSIVE)


def layer() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x, w, c = b.input("x", ("n", 64), "float32"), b.input("w", (64, 32), "float32"), b.input("c", (32,), "float32")
    return b.build(y=b.tanh(b.relu(x @ w + c) * 2), t=x.T)


def given(n: int, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    shapes = {"x": (n, 64), "w": (64, 32), "c": (32,)}
    return {name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()}


class Values(tl.Hook):
    def on_step(self, plan: Any, event: tl.StepEvent, values: tuple[Any, ...]) -> None:
        pass


def roads(graph: tl.EinsumGraph, inputs: dict[str, Any]) -> dict[str, Any]:
    """Every way to run a graph, as functions of nothing."""
    plain, native = tl.Executor(), tl.Executor(native=True)
    watched = tl.Executor(native=True, context=tl.ExecutionContext([Values()]))
    compiled = plain.compile_graph(graph, AGGRESSIVE)
    jit = tl.JitConfig(hot_path_threshold=2, exact=False)
    return {
        "plain": lambda: plain.execute(graph, inputs),
        "native": lambda: native.execute(graph, inputs),
        "compiled": lambda: compiled(inputs),
        "jit": lambda: plain.execute_jit(graph, inputs, jit),
        "a value hook": lambda: watched.execute(graph, inputs),
        "threads": lambda ex=tl.Executor(threads=2): ex.execute(graph, inputs),
        "budget": lambda: plain.execute(graph, inputs, budget=2_000_000),
    }


@pytest.mark.parametrize("n", [4, 2000])
def test_no_output_shows_an_input_on_any_road(n: int) -> None:
    graph, inputs = layer(), given(n)
    for name, run in roads(graph, inputs).items():
        for _ in range(25):
            for value in run():
                assert not any(np.shares_memory(value, x) for x in inputs.values()), name
    with tl.trace(detail="op"):
        for value in tl.Executor(native=True).execute(graph, inputs):
            assert not any(np.shares_memory(value, x) for x in inputs.values())


def test_a_carry_that_a_scan_hands_through_is_copied() -> None:
    b = tl.GraphBuilder()
    c, x = b.input("c", (3,), "float32"), b.input("x", (5, 3), "float32")
    last, rows = b.scan(lambda c, x: (c, c + x), c, x)
    inputs = {"c": np.ones(3, "float32"), "x": np.ones((5, 3), "float32")}
    for name, run in roads(b.build(last=last, rows=rows), inputs).items():
        for _ in range(3):
            assert not np.shares_memory(run()["last"], inputs["c"]), name


@pytest.mark.parametrize("n", [4, 2000])
def test_equal_calls_give_equal_bits(n: int) -> None:
    graph, inputs = layer(), given(n)
    for name, run in roads(graph, inputs).items():
        if name == "jit":
            continue  # exact=False says that they may differ once it is hot
        first = [np.array(v) for v in run()]
        for _ in range(25):
            for value, before in zip(run(), first, strict=True):
                np.testing.assert_array_equal(value, before, name)


def test_a_hook_that_wants_values_changes_no_answer() -> None:
    graph, inputs = layer(), given(500)
    executor = tl.Executor(native=True)
    plain = executor.execute(graph, inputs)
    with tl.trace(detail="op") as trace:
        watched = executor.execute(graph, inputs)
    assert "tanh" in str(trace)
    np.testing.assert_array_equal(watched["y"], plain["y"])


def test_the_plan_that_is_printed_is_the_one_that_runs() -> None:
    graph, inputs = layer(), given(2000)
    for executor in (tl.Executor(), tl.Executor(native=True), tl.Executor(threads=2)):
        printed = executor.plan(graph, inputs)
        executor.execute(graph, inputs)
        [program] = executor.programs.store.values()
        assert program.plan is printed or program.plan == printed
        names = executor.plan(graph, inputs)
        assert names is program.plan


def test_every_candidate_is_a_complete_plan() -> None:
    graph, inputs = layer(), given(2000)
    for program in every_program(tl.Executor(native=True), graph, inputs):
        text = str(program.plan)
        if program.plan.name != "one step after another":
            assert text.startswith(program.plan.name)
        assert [step.kernel for step in program.plan.steps]


# donated inputs


def update() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    w, g = b.input("w", ("n", "n"), "float32"), b.input("g", ("n", "n"), "float32")
    return b.build(w=w - g * 0.1, norm=b.sum(g * g))


@pytest.mark.parametrize("options", [{}, {"native": True}], ids=str)
@pytest.mark.parametrize("n", [3, 400])
def test_a_donated_input_becomes_the_output(options: dict[str, Any], n: int) -> None:
    rng = np.random.default_rng(0)
    w, g = rng.normal(size=(n, n)).astype("f4"), rng.normal(size=(n, n)).astype("f4")
    want, executor = w - g * np.float32(0.1), tl.Executor(**options)
    for _ in range(3):
        mine = w.copy()
        out = executor.execute(update(), {"w": mine, "g": g}, donate=["w"])
        assert out["w"] is mine
        np.testing.assert_allclose(mine, want, rtol=1e-6)
    kept = w.copy()
    assert executor.execute(update(), {"w": kept, "g": g})["w"] is not kept  # not donated
    np.testing.assert_array_equal(kept, w)


def test_what_is_still_read_is_not_written_over() -> None:
    b = tl.GraphBuilder()
    w = b.input("w", (300, 300), "float32")
    y = w * 2.0
    graph = b.build(y=y, z=b.sum(w @ y))
    value = np.random.default_rng(0).random((300, 300)).astype("f4")
    want = tl.Executor().execute(graph, {"w": value})
    got = tl.Executor().execute(graph, {"w": value.copy()}, donate=["w"])
    np.testing.assert_array_equal(got["y"], want["y"])
    np.testing.assert_array_equal(got["z"], want["z"])


def test_an_array_that_is_two_inputs_or_read_only_is_left_alone() -> None:
    g = np.ones((400, 400), "f4")
    out = tl.Executor().execute(update(), {"w": g, "g": g}, donate=["w"])
    assert out["w"] is not g and (g == 1).all()
    fixed = np.ones((400, 400), "f4")
    fixed.flags.writeable = False
    assert tl.Executor().execute(update(), {"w": fixed, "g": g}, donate=["w"])["w"] is not fixed


@pytest.mark.parametrize("donate", [True, 3, [["x"]]])
def test_a_donation_that_names_no_inputs_is_refused(donate: Any) -> None:
    b = tl.GraphBuilder()
    with pytest.raises(tl.InputError, match="takes the names of inputs"):
        tl.Executor().execute(b.build(y=b.exp(b.input("x", (3,)))), {"x": np.ones(3)}, donate=donate)


def test_a_donation_of_nothing_is_named() -> None:
    with pytest.raises(tl.InputError, match="no input 'v' to donate"):
        tl.Executor().execute(update(), {"w": np.ones((2, 2), "f4"), "g": np.ones((2, 2), "f4")}, donate=["v"])


# frames


def test_a_frame_stops_after_any_step_and_goes_on(tmp_path: Path) -> None:
    graph, inputs = layer(), given(300)
    executor = tl.Executor()
    want = executor.execute(graph, inputs)
    steps = len(executor.plan(graph, inputs).steps)
    for stop in range(steps + 1):
        frame = executor.frame(graph, inputs)
        for _ in range(stop):
            frame.advance()
        assert frame.at == stop and frame.done == (stop == steps)
        frame.save(tmp_path / "frame.safetensors")
        again = Frame.load(tmp_path / "frame.safetensors", frame.program)
        for each in (frame, again):
            outputs = each.run()
            for name in ("y", "t"):
                np.testing.assert_array_equal(outputs[name], want[name])
                assert not np.shares_memory(outputs[name], inputs["x"])


def test_two_frames_do_not_share_their_values() -> None:
    executor, graph = tl.Executor(), layer()
    first, second = executor.frame(graph, given(50, 1)), executor.frame(graph, given(50, 2))
    while not first.done:
        first.advance()
        second.advance()
    for frame, seed in ((first, 1), (second, 2)):
        np.testing.assert_array_equal(frame.run()["y"], executor.execute(graph, given(50, seed))["y"])


def test_a_frame_runs_until_it_is_told_to_stop() -> None:
    frame = tl.Executor().frame(layer(), given(5))
    assert frame.run(until=lambda f: f.at == 2) is None
    assert frame.at == 2
    assert frame.run()["y"].shape == (5, 32)


def test_a_frame_of_another_plan_or_a_broken_file_is_refused(tmp_path: Path) -> None:
    executor = tl.Executor()
    frame = executor.frame(layer(), given(5))
    frame.advance()
    frame.save(tmp_path / "frame")
    other = executor.frame(update(), {"w": np.ones((2, 2), "f4"), "g": np.ones((2, 2), "f4")})
    with pytest.raises(tl.InputError, match="another plan"):
        Frame.load(tmp_path / "frame", other.program)
    (tmp_path / "frame").write_bytes((tmp_path / "frame").read_bytes()[:50])
    with pytest.raises(tl.FormatError, match="no saved frame"):
        Frame.load(tmp_path / "frame", frame.program)


def test_passes_of_the_user_run() -> None:
    seen: list[int] = []

    def noted(graph: tl.EinsumGraph) -> tl.EinsumGraph:
        seen.append(len(graph))
        return graph

    tl.Executor(passes=[noted]).execute(layer(), given(3))
    assert seen


@pytest.mark.parametrize("chosen", [0, -1], ids=["the plainest plan", "the last plan"])
def test_compiling_is_visible(chosen: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever plan is chosen: kernels of the others took time too."""
    monkeypatch.setattr("tensorlogic.runtime.tuning.choose", lambda programs, *_: programs[chosen])
    b = tl.GraphBuilder()
    graph = b.build(y=b.softmax(b.tanh(b.input("x", (400, 300), "float32"))))
    executor = tl.Executor(native=True)
    with tl.trace() as trace:
        executor.execute(graph, {"x": np.ones((400, 300), "f4")})
    names = [span.name for span in trace.spans if span.name.startswith("compile ")]
    assert names
    assert executor.explain().count("kernel ready after") == len(names)


def test_a_compiled_graph_says_how_its_plan_was_chosen_and_tunes_on_request(tmp_path: Path) -> None:
    graph, inputs = layer(), given(2000)
    compiled = tl.Executor().compile_graph(graph, AGGRESSIVE, example=inputs)
    assert "measured on the example given" in compiled.explain()
    before = compiled(inputs)
    compiled.save(tmp_path / "kept")
    loaded = tl.CompiledGraph.load(tmp_path / "kept")
    assert "measured on the example given" in loaded.explain()
    for a, c in zip(loaded(inputs), before, strict=True):
        np.testing.assert_array_equal(a, c)
    assert "measured on made-up inputs" in compiled.tune()
    assert "measured on the example given" in compiled.tune(inputs)
    np.testing.assert_allclose(compiled(inputs)["y"], before["y"], rtol=1e-4, atol=1e-4)


def test_there_are_three_policies() -> None:
    with pytest.raises(tl.InputError, match="no policy 'quick'"):
        tl.Executor(policy="quick")
    assert tl.Executor(policy="fast").native and not tl.Executor(policy="adaptive").native
    with pytest.raises(tl.BackendError, match="makes no machine code"):
        tl.Executor("reference", policy="fast")


def test_a_program_that_had_to_go_comes_back_with_the_same_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensorlogic.runtime import tuning

    executor = tl.Executor(native=True, plans=1)
    first = executor.execute(layer(), given(2000))
    name = executor.plan(layer(), given(2000)).name
    executor.execute(layer(), given(3))  # takes the only place there is
    monkeypatch.setattr(tuning.AdaptiveOptimizer, "best", lambda self, plan: 1.0 if plan == name else 0.0)
    again = executor.execute(layer(), given(2000))
    np.testing.assert_array_equal(again["y"], first["y"])


def test_callers_that_come_first_together_have_the_same_bits() -> None:
    from concurrent.futures import ThreadPoolExecutor

    executor, inputs = tl.Executor(native=True), given(2000)
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda _: executor.execute(layer(), inputs)["y"], range(8)))
    assert all(np.array_equal(outputs[0], y) for y in outputs)


def test_a_budget_holds_and_wrappers_see_its_steps_while_values_are_watched() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 8), "float32")
    graph = b.build(near=b.min(b.sum(b.square(x.reshape("n", 1, 8) - x), axis=2), axis=1))
    inputs = {"x": np.random.default_rng(0).random((64, 8)).astype("f4")}
    seen: list[str] = []

    def noted(call: Any) -> Any:
        return lambda step, args: (seen.append(step.op.name), call(step, args))[1]

    executor = tl.Executor(wrap=[noted], context=tl.ExecutionContext([Values()]))
    out = executor.execute(graph, inputs, budget=50_000)
    np.testing.assert_array_equal(out["near"], tl.Executor().execute(graph, inputs)["near"])
    assert seen.count("square") > 1


def test_a_frame_saves_scalars_as_scalars(tmp_path: Path) -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (), "float32")
    executor = tl.Executor()
    frame = executor.frame(b.build(y=b.negative(x)), {"x": np.float32(2)})
    frame.save(tmp_path / "frame")
    assert Frame.load(tmp_path / "frame", frame.program).run()["y"].shape == ()


def test_a_donated_input_that_a_loop_hands_on_is_not_written() -> None:
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float32")
    (last, _), (rows,) = b.scan(lambda c, r: ((c[1], c[0]), (r[0],)), (x, x), (x,))
    given = np.arange(3, dtype="f4") + 1
    y, same = tl.Executor().execute(b.build(y=-rows, same=last), {"x": given}, donate=["x"])
    np.testing.assert_array_equal(y, [-1, -2, -3])
    np.testing.assert_array_equal(same, [1, 2, 3])
    z = tl.Executor().execute(b.build(z=x * 2 + last[::-1]), {"x": np.arange(3, dtype="f4")}, donate=["x"])["z"]
    np.testing.assert_array_equal(z, [2, 3, 4])


def test_a_donated_input_that_a_loop_reads_is_written_where_nothing_hands_it_on() -> None:
    b = tl.GraphBuilder()
    w, x = b.input("w", (3,), "float32"), b.input("x", (5, 3), "float32")
    last, _ = b.scan(lambda c, r: (c + r * w, None), b.constant(np.zeros(3, "f4")), x)
    given = np.ones(3, "f4")
    new = tl.Executor().execute(b.build(w=w - 0.5 * last), {"w": given, "x": np.ones((5, 3), "f4")}, donate=["w"])["w"]
    assert new is given
    np.testing.assert_array_equal(new, [-1.5] * 3)


@pytest.mark.parametrize(
    ("at", "value"), [("x", np.zeros(3, "f4")), ("9", np.zeros(3, "f4")), ("0", np.zeros(4, "f4")), ("0", np.zeros(3))]
)
def test_a_frame_whose_file_was_changed_is_refused(tmp_path: Path, at: str, value: Any) -> None:
    from safetensors.numpy import save_file

    b = tl.GraphBuilder()
    frame = tl.Executor().frame(b.build(y=-b.input("x", (3,), "float32")), {"x": np.zeros(3, "f4")})
    plan = frame.program.plan
    path = tmp_path / "frame"
    save_file({"0": value}, path, {"at": at, "graph": plan.graph.digest, "plan": plan.name})
    with pytest.raises(tl.FormatError, match="is not in the plan"):
        Frame.load(path, frame.program)
