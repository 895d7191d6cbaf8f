"""Breakpoints: what they match, what happens at a hit, and the prompt."""

import io
import logging
import os
import re
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.debug import BreakpointManager
from tensorlogic.observe.prompt import parse_index


def chain():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    return b.build(y=b.sum(b.log(b.relu(x @ w)) * 0.5, axis=1))


INPUTS = {"x": np.array([[1.0, 2.0, 3.0], [0.0, 0.0, 0.0]]), "w": np.ones((3, 2))}


def execute(manager, graph=None, inputs=None):
    return tl.Executor(context=tl.ExecutionContext([manager])).execute(graph or chain(), inputs or INPUTS)


@pytest.fixture
def met():
    return []


@pytest.fixture
def manager(met):
    made = BreakpointManager(lambda hit: met.append((hit.node_id, hit.values[0].tolist())))
    made.enable()
    return made


@pytest.mark.parametrize(
    ("word", "nodes"),
    [
        ("einsum", [2]),
        ("einsum ij,jk->ik", [2]),
        ("matmul", [2]),
        ("relu", [3]),
        ("sum", [7]),
        ("sum over 1", [7]),
        ("map", [3, 4, 6, 7]),
        ("rel", []),
    ],
)
def test_operations_by_each_of_their_names(manager, met, word, nodes):
    manager.add_operation_breakpoint(word)
    execute(manager)
    assert [node for node, _ in met] == nodes


def test_a_node_and_its_values(manager, met):
    point = manager.add_node_breakpoint(2)
    execute(manager)
    assert met == [(2, [[6.0, 6.0], [0.0, 0.0]])]
    assert point.hits == 1
    assert [hit.values for hit in manager.hits] == [()], "values are valid while stopped only"
    assert manager.hits[0].step.op.name == "einsum"
    assert not manager.is_paused()


@pytest.mark.parametrize(("nan_only", "nodes"), [(False, [4]), (True, [])])
def test_numerical_issues(manager, met, nan_only, nodes):
    manager.add_numerical_issue_breakpoint(nan_only=nan_only)
    execute(manager)
    assert [node for node, _ in met] == nodes
    assert all(hit.has_inf and not hit.has_nan for hit in manager.hits)


def test_bad_values_are_met_where_they_are_made(manager, met):
    b = tl.GraphBuilder()
    x = b.input("x", (4,))
    last, _ = b.scan(lambda h, u: (b.log(h * u),) * 2, np.float64(1.0), x)
    graph = b.build(y=last * 2.0, z=b.sqrt(x - 5.0) + 1.0)
    manager.add_numerical_issue_breakpoint()
    execute(manager, graph, {"x": np.array([1.0, 2.0, 3.0, 4.0])})
    names = [hit.operation for hit in manager.hits]
    assert sorted(names) == ["log", "sqrt"], "not the loop, later rounds or what reads them"
    execute(manager, graph, {"x": np.array([1.0, 2.0, 3.0, 4.0])})
    assert len(manager.hits) == 4, "and again in the next run"


def test_the_first_nan_that_is_made_of_infinities_is_met(manager, met):
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    logs = b.log(x)
    manager.add_numerical_issue_breakpoint(nan_only=True)
    execute(manager, b.build(y=(logs - logs) * 2), {"x": np.zeros(3)})
    assert [hit.operation for hit in manager.hits] == ["subtract"]


@pytest.mark.parametrize("nan_only", [False, True])
def test_an_input_that_is_bad_is_met_once(manager, met, nan_only):
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "float64")
    manager.add_numerical_issue_breakpoint(nan_only=nan_only)
    execute(manager, b.build(a=b.exp(x), c=b.sin(x), d=b.sum(x) * 2), {"x": np.full(3, np.nan)})
    assert len(manager.hits) == 1


def test_all_breakpoints_on_a_step_count(manager, met):
    points = [
        manager.add_node_breakpoint(3),
        manager.add_operation_breakpoint("relu"),
        manager.add_breakpoint(lambda hit: True),
    ]
    points[0].ignore = 1
    for _ in range(2):
        execute(manager)
    assert [p.hits for p in points] == [1, 2, 10]
    assert [hit.breakpoint.id for hit in manager.hits if hit.node_id == 3] == [2, 1]
    assert len(met) == 10, "and the run is stopped once"


def test_values_are_checked_only_where_asked(manager, met, monkeypatch):
    from tensorlogic.observe import breakpoints

    checked = []
    count_bad = breakpoints.count_bad
    monkeypatch.setattr(breakpoints, "count_bad", lambda value: checked.append(value) or count_bad(value))
    manager.add_node_breakpoint(4)
    manager.add_numerical_issue_breakpoint().enabled = False
    execute(manager)
    assert [node for node, _ in met] == [4]
    assert len(checked) == 1, "what is stopped at, and no other step"
    manager.add_node_breakpoint(6)
    execute(manager)
    made, *_, handed_on = manager.hits
    assert (made.node_id, made.has_nan, made.has_inf, made.inherited) == (4, False, True, False)
    assert (handed_on.node_id, handed_on.has_nan, handed_on.has_inf, handed_on.inherited) == (6, False, True, True)


def test_a_predicate_sees_bad_values(manager, met):
    manager.add_breakpoint(lambda hit: hit.has_inf and not hit.inherited)
    execute(manager)
    assert [node for node, _ in met] == [4]
    nan = manager.add_breakpoint(lambda hit: hit.has_nan)
    execute(manager, inputs={**INPUTS, "w": np.full((3, 2), np.nan)})
    assert nan.hits == 5


def test_a_predicate_sees_the_values(manager, met):
    manager.add_breakpoint(lambda hit: hit.values[0].ndim == 1, "one axis")
    execute(manager)
    assert [node for node, _ in met] == [7]
    assert str(manager.hits[0]).startswith("breakpoint 1 (one axis), at node %7: sum over 1, ")
    with pytest.raises(tl.InputError, match="a breakpoint is a function"):
        manager.add_breakpoint("relu")


def test_times(manager):
    manager.add_time_threshold_breakpoint(5000)
    assert manager.should_break(1, "relu", 5000, False) is None
    assert manager.should_break(1, "relu", 5001, False).breakpoint.text == "over 5,000 µs"
    never = BreakpointManager(lambda hit: pytest.fail("too slow to believe"))
    never.enable()
    never.add_time_threshold_breakpoint(1e15)
    execute(never)


def test_removed_disabled_and_ignored(manager, met):
    gone, off, later = (manager.add_operation_breakpoint("relu") for _ in range(3))
    manager.remove(gone)
    off.enabled = False
    later.ignore = 2
    for _ in range(4):
        execute(manager)
    assert len(met) == later.hits == 2
    assert (gone.hits, off.hits) == (0, 0)
    assert [str(p) for p in manager.breakpoints()] == [
        "breakpoint 2 (operation relu), disabled",
        "breakpoint 3 (operation relu)",
    ]
    with pytest.raises(tl.InputError, match="there is no breakpoint 1"):
        manager.remove(gone)


def test_stepping(met):
    def callback(hit):
        met.append(hit.node_id)
        if hit.node_id < 4:
            manager.step()
        else:
            manager.continue_execution()

    manager = BreakpointManager(callback)
    manager.enable()
    manager.add_node_breakpoint(2)
    execute(manager)
    assert met == [2, 3, 4]
    assert [str(hit.breakpoint) for hit in manager.hits] == ["breakpoint 1 (node %2)", "next step", "next step"]
    assert all(hit.names for hit in manager.hits)


def test_a_step_asked_for_before_a_run_stops_at_its_first(manager, met):
    manager.step()
    execute(manager)
    execute(manager)
    assert [node for node, _ in met] == [2]


def test_by_hand_it_is_paused_until_it_goes_on(manager):
    manager.add_node_breakpoint(3)
    assert manager.should_break(3, "add", 10, False).node_id == 3
    assert manager.is_paused()
    manager.continue_execution()
    assert not manager.is_paused()
    manager.disable()
    assert manager.should_break(3, "add", 10, False) is None


def test_rounds_of_a_body(manager):
    b = tl.GraphBuilder()
    graph = b.build(y=b.fixpoint(lambda r: b.minimum(r + 1.0, 3.0), b.input("x", (2,))))
    manager.add_operation_breakpoint("minimum")
    for _ in range(2):
        execute(manager, graph, {"x": [0.0, 0.0]})
    assert [(hit.body, hit.round) for hit in manager.hits] == [(True, n) for n in (1, 2, 3, 4)] * 2
    assert ", round 2 of a body" in str(manager.hits[1])


def test_a_callback_may_run_graphs_and_may_raise(met):
    def callback(hit):
        met.append(hit.node_id)
        execute(manager)  # not stopped at
        if len(met) == 2:
            raise RuntimeError("enough")

    manager = BreakpointManager(callback)
    manager.enable()
    manager.add_node_breakpoint(3)
    execute(manager)
    with pytest.raises(RuntimeError, match="enough"):
        execute(manager)
    assert met == [3, 3]
    assert not manager.is_paused()


def test_without_a_terminal_it_warns_and_goes_on(caplog, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    manager = BreakpointManager()
    manager.enable()
    manager.add_operation_breakpoint("relu")
    with caplog.at_level(logging.WARNING, "tensorlogic"):
        assert execute(manager)["y"].shape == (2,)
    (record,) = caplog.records
    assert record.getMessage().startswith("breakpoint 1 (operation relu), at node %3: relu, ")
    assert "test_breakpoints.py" in record.getMessage()
    assert len(manager.hits) == 1


def test_several_threads_stop_on_their_own(met):
    lock = threading.Lock()

    def callback(hit):
        with lock:
            met.append((hit.thread, hit.node_id))
        if hit.node_id == 2:
            manager.step()

    manager = BreakpointManager(callback)
    manager.enable()
    manager.add_node_breakpoint(2)
    threads = [threading.Thread(target=execute, args=(manager,)) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(met) == sorted((t.ident, node) for t in threads for node in (2, 3))


# the prompt


def talk(lines, graph=None, inputs=None, *, node=4):
    out = io.StringIO()
    manager = BreakpointManager(stdin=io.StringIO(lines), stdout=out)
    manager.enable()
    manager.add_node_breakpoint(node)
    try:
        execute(manager, graph, inputs)
    finally:
        said = re.sub(r"[\d.,]+ µs,", "7.0 µs,", out.getvalue())
        said = re.sub(r"\S*/(test_breakpoints.py):\d+:\d+", r"\1", said)
    return said


def test_every_command(golden):
    lines = "help\nh n\nw\np\np 0,1\np [0, 0:1]\np 9,9\np x\nstats\nl\nb\nb %6\nb log\nb nan\nb time x\nb time\nb time 1e15\nd\nd 9\nd 4\n\njump\nn\nd 2\nd 3\nc\n"
    golden("debug_prompt.txt", talk(lines))


def test_a_terminal_that_cannot_show_a_character_shows_a_question_mark():
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    manager = BreakpointManager(stdin=io.StringIO("b\nc\n"), stdout=out)
    manager.enable()
    manager.add_node_breakpoint(4)
    execute(manager)
    out.seek(0)
    assert " ?s," in out.read()


def test_the_prompt_prints_operands():
    said = talk("p x\np w 0,1\nstats\nc\n", node=2)
    assert "[[1. 2. 3.]\n [0. 0. 0.]]" in said
    assert "\n(tl) 1.0\n" in said
    assert "reads x: float64[2, 3] in 0 .. 3" in said
    assert "(tl) [6.]\n" in talk("p %3 0,:1\nc\n", node=3), "what the step made, by its name"
    said = talk("p %6\nn\np %2\nc\n", node=3)
    assert "cannot show that: %6 is not made yet; operands: %2" in said
    assert "cannot show that: index 9 is out of bounds" in talk("p %2 9\nc\n", node=3)
    assert "cannot show that: this step does not read %2; operands: %3" in said
    said = talk("p %4 1\np 0.5\np z\nc\n", node=6)
    assert "[-inf -inf]" in said
    assert "operands: %4, " in said


def test_a_hit_holds_the_frame_of_the_run():
    """Live values, one step more by hand, and a file that goes on later: the run itself, not copies of it."""
    seen = {}

    def look(hit):
        frame = hit.frame
        assert frame.at == hit.number + 1 and hit.values[0] is frame.values()[f"%{hit.node_id}"]
        assert not any(np.may_share_memory(x, hit.values[0]) for x in hit.operands.values())
        seen["live"] = sorted(frame.values())
        seen["next"] = frame.program.plan.steps[frame.at].op.name
        frame.advance()
        seen["at"] = frame.at

    manager = BreakpointManager(look)
    manager.enable()
    manager.add_node_breakpoint(2)
    executor = tl.Executor(context=tl.ExecutionContext([manager]))
    plain = tl.Executor().execute(chain(), INPUTS)
    with tl.trace() as trace:
        outputs = executor.execute(chain(), INPUTS)
    assert seen == {"live": ["%2", "w", "x"], "next": "relu", "at": 2}
    assert [np.array_equal(a, b, equal_nan=True) for a, b in zip(outputs, plain, strict=True)] == [True] * len(plain)
    assert len([e for e in trace.events() if e.step is not None]) == len(tl.Executor().plan(chain(), INPUTS).steps)
    assert manager.hits[0].frame is None, "a run that is over is not held"


def test_a_run_that_may_stop_writes_over_nothing():
    b = tl.GraphBuilder()
    x = b.input("x", (300, 300), "float32")
    graph = b.build(y=b.exp(b.relu(x * 2.0) + 1.0))
    assert any(s.into for s in tl.Executor().plan(graph).steps), "otherwise it shows nothing"
    found = []
    manager = BreakpointManager(
        lambda hit: found.append([float(np.max(v)) for v in (*hit.operands.values(), *hit.values)])
    )
    manager.enable()
    manager.add_breakpoint(lambda hit: True)
    executor, given = tl.Executor(context=tl.ExecutionContext([manager])), {"x": np.full((300, 300), 0.5, np.float32)}
    stopped = executor.execute(graph, given)["y"]
    assert [values[-1] for values in found] == [1.0, 1.0, 2.0, pytest.approx(np.exp(2))]
    assert found[2][0] == 1.0, "what the third step read is still there"
    np.testing.assert_array_equal(stopped, tl.Executor().execute(graph, given)["y"])


@pytest.mark.parametrize("lines", ["q\n", "", "quit\n"], ids=["q", "end of input", "quit"])
def test_quit_gives_the_run_up(lines):
    with pytest.raises(tl.ExecutionError) as caught:
        talk(lines)
    assert caught.value.diagnostic.message == "the run was stopped at node %4 (log), by breakpoint 1 (node %4)"
    assert caught.value.diagnostic.code == "E714"
    assert caught.value.diagnostic.location.file == __file__


def test_the_prompt_in_a_body_and_with_several_results():
    b = tl.GraphBuilder()
    last, rows = b.scan(lambda h, x: (h + x, h * x), np.float64(0.0), b.input("u", (3,)))
    graph = b.build(last=last, rows=rows)
    node = next(s.node for s in tl.Executor().plan(graph, {"u": [1.0, 2.0, 3.0]}).steps if s.bodies)
    said = talk("p\nstats\nc\n" * 9, graph, {"u": [1.0, 2.0, 3.0]}, node=node)
    assert "[0. 2. 9.]" in said
    assert re.search(rf"%{node}\.1: float64\[3\] in 0 \.\. 9", said)


@pytest.mark.parametrize("text", ["a", "1:2:3:4", "1,,2", "__import__('os')"])
def test_an_index_is_read_not_run(text):
    with pytest.raises(ValueError):
        parse_index(text)


@pytest.mark.skipif(os.name != "posix", reason="a pseudo-terminal is a thing of POSIX")
def test_in_a_terminal():
    import pty

    code = """
        import tensorlogic as tl
        from tensorlogic.debug import BreakpointManager
        manager = BreakpointManager()
        manager.enable()
        manager.add_operation_breakpoint("relu")
        b = tl.GraphBuilder()
        graph = b.build(y=b.relu(b.input("x", (2,))))
        out = tl.Executor(context=tl.ExecutionContext([manager])).execute(graph, {"x": [1.0, -7.5]})
        print("done", out["y"].tolist())
    """
    leader, follower = pty.openpty()
    env = {**os.environ, "TERM": "dumb"}
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=follower, stdout=follower, stderr=follower, env=env
    )
    os.close(follower)
    said = b""
    try:
        os.write(leader, b"stats\ncontinue\n")  # waits in the terminal until it is read
        while True:
            try:
                part = os.read(leader, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            said += part
        assert process.wait(timeout=60) == 0, said
    finally:
        process.kill()
        process.wait()
        os.close(leader)
    text = said.decode()
    assert "breakpoint 1 (operation relu), at node %1: relu" in text
    assert "%1: float64[2] in 0 .. 1, mean 0.5" in text
    assert "done [1.0, 0.0]" in text


@pytest.mark.parametrize(
    ("add", "said"),
    [
        (lambda m: m.add_node_breakpoint("y"), "a node is given by its number, got 'y'"),
        (lambda m: m.add_node_breakpoint(True), "got True"),
        (lambda m: m.add_operation_breakpoint(3), "an operation is given by its name, got 3"),
        (lambda m: m.add_time_threshold_breakpoint("long"), "a number of microseconds, 0 or more, got 'long'"),
        (lambda m: m.add_time_threshold_breakpoint(float("nan")), "got nan"),
        (lambda m: m.add_time_threshold_breakpoint(-1), "got -1"),
    ],
)
def test_breakpoints_that_could_never_be_met_are_refused(manager, add, said):
    with pytest.raises(tl.InputError) as caught:
        add(manager)
    assert said in caught.value.diagnostic.message
    assert manager.breakpoints() == []


def test_breakpoints_print_with_their_hits(manager, met):
    assert str(manager) == "there are no breakpoints"
    manager.add_operation_breakpoint("relu")
    manager.add_operation_breakpoint("rleu")
    manager.should_break(3, "relu")
    assert str(manager) == "breakpoint 1 (operation relu), 1 hit\nbreakpoint 2 (operation rleu), 0 hits"
