"""Tracing real runs: what is recorded, and how it prints."""

import copy
import itertools
import json
import pickle
import threading

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic import events
from tensorlogic.observe.trace_export import to_chrome, to_collapsed, to_speedscope


def layer():
    b = tl.GraphBuilder()
    return b.build(y=b.relu(b.input("x", ("n", 3), "float32") @ b.input("w", (3, 2), "float32")))


def closure():
    b = tl.GraphBuilder()
    e = b.input("edge", ("n", "n"), "bool")
    return b.build(path=b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, e, algebra="boolean"), e, combine="or"))


INPUTS = {"x": np.ones((4, 3), "float32"), "w": np.ones((3, 2), "float32")}


@pytest.fixture
def traced():
    ex = tl.Executor()
    with tl.trace() as t, tl.span("outer; with\nodd name"):
        ex.execute(layer(), INPUTS)
        ex.execute(layer(), INPUTS)
        ex.execute(closure(), {"edge": np.eye(5, k=1, dtype=bool)})
    return t


def test_every_step_and_span_is_there(traced):
    events = traced.events()
    names = [e.name for e in events]
    assert names.count("einsum ij,jk->ik") == names.count("relu") == 2
    assert names.count("plan") == 2, "the second run of a graph finds its plan"
    assert names.count("einsum xy,yz->xz (boolean)") == 4, "rounds of a fixpoint are steps too"
    assert all(a.start_ns <= b.start_ns for a, b in itertools.pairwise(events))
    relu = next(e for e in events if e.name == "relu")
    facts = relu.facts()
    assert facts["outputs"] == ["float32[4, 2]"]
    assert facts["bytes"] == 32
    assert facts["device"] == "cpu:0"
    assert "test_trace.py" in facts["source"]


def test_nothing_is_recorded_outside():
    with tl.trace() as t:
        pass
    tl.Executor().execute(layer(), INPUTS)
    assert len(t) == 0
    assert t.events() == []
    for export in (to_chrome, to_speedscope, to_collapsed):
        export(t)


def test_threads_are_told_apart():
    ex = tl.Executor()
    graph = layer()
    with tl.trace() as t:
        threads = [threading.Thread(target=ex.execute, args=(graph, INPUTS)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len([e for e in t.events() if e.name == "relu"]) == 4
    assert len(json.loads(to_speedscope(t))["profiles"]) == len({e.thread for e in t.events()})


def test_a_failing_run_keeps_its_steps():
    b = tl.GraphBuilder()
    x = b.input("x", (3,), "int64")
    graph = b.build(y=b.gather(x, x + 1))
    with tl.trace() as t, pytest.raises(tl.ExecutionError):
        tl.Executor().execute(graph, {"x": [5, 6, 7]})
    assert [e.name for e in t.events() if e.kind == "step"] == ["add"]


def test_recorded(traced):
    recorded = traced.to_recorded()
    steps = [e for e in traced.events() if e.kind == "step"]
    assert recorded.step_count() == len(steps)
    assert [e.step for e in recorded.entries] == list(range(len(steps)))
    assert recorded.total_duration_us == pytest.approx(sum(e.duration_ns for e in steps) / 1e3)
    first = recorded.entries[0]
    assert (first.operation, first.device_id, first.input_shapes, first.output_shape, first.memory_bytes) == (
        "einsum ij,jk->ik", "cpu:0", [(4, 3), (3, 2)], (4, 2), 32,
    )  # fmt: skip
    assert tl.TraceAnalyzer.operation_summary(recorded)["relu"].count == 2


def test_recorded_from_several_plans_and_a_file(traced, tmp_path):
    traced.save(tmp_path / "run.json")
    loaded = tl.Trace.load(tmp_path / "run.json")
    again, once = loaded.to_recorded(), traced.to_recorded()
    assert again == once, "shapes, bytes and devices survive the Chrome form"
    names = list(tl.TraceAnalyzer.operation_summary(once))
    assert names == list(dict.fromkeys(e.operation for e in once.entries)), "operations in order of first occurrence"


def test_plans_of_several_threads_are_not_mixed_up():
    t = tl.Trace()
    plans = [tl.Executor().plan(layer(), INPUTS), tl.Executor().plan(closure(), {"edge": np.eye(3, dtype=bool)})] * 20
    start = threading.Barrier(4)

    def send():
        start.wait()
        for n, plan in enumerate(plans):
            t.on_run(tl.RunRecord(plan, [n, n + 1, n + 2][: len(plan.steps) + 1], threading.get_ident()))

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = {name: s.count for name, s in tl.TraceAnalyzer.operation_summary(t.to_recorded()).items()}
    assert counts == {"einsum ij,jk->ik": 80, "relu": 80, "fixpoint": 80}


@pytest.mark.parametrize("again", [lambda t: pickle.loads(pickle.dumps(t)), copy.deepcopy], ids=["pickle", "copy"])
def test_copies_hold_what_the_trace_held_and_go_on_apart(traced, again):
    other = again(traced)
    count = len(traced.events())
    assert other.events() == traced.events()
    b = tl.GraphBuilder()
    with events.watching(other):
        tl.Executor().execute(b.build(y=b.exp(b.input("z", (2,)))), {"z": np.ones(2)})
    assert [e.name for e in other.events()].count("exp") == 1
    assert len(traced.events()) == count


def test_detail_is_kept():
    with tl.trace(detail="op") as t:
        pass
    assert t.detail == "op"
    assert tl.Trace().detail == "step"
    with pytest.raises(tl.InputError, match="'step' or 'op', got 'all'"), tl.trace(detail="all"):
        pass


def test_it_prints(traced):
    lines = str(traced).splitlines()
    assert lines[0].split() == "operation count total ms self ms mean µs max µs share".split()
    assert lines[-1].startswith(f"9 steps, {len(traced.spans)} spans, ")
    shares = [float(line.split()[-1].rstrip("%")) for line in lines[1:-1]]
    assert sum(shares) == pytest.approx(100, abs=0.5), "the rounds of a fixpoint do not count twice"
    assert str(tl.Trace()).splitlines()[-1] == "0 steps, 0 spans, 0.000 ms: there is nothing in this trace"


def test_notebooks_show_table_and_picture(traced):
    page = traced._repr_html_()
    assert page.startswith("<pre>operation")
    assert "<svg" in page
    assert "<script" not in page
    assert "<?xml" not in page
    odd = tl.Trace([tl.TraceEvent("<b>&", "step", 0, 5, 1)])
    assert "<b>" not in odd._repr_html_()


def test_a_long_table_says_what_it_leaves_out():
    events = [tl.TraceEvent(f"op{n}", "step", n, n + 1, 0) for n in range(100)]
    text = str(tl.Trace(events))
    assert "... 60 more" in text
    assert len(text.splitlines()) == 43


@pytest.mark.parametrize(("start", "end", "said"), [
    (10, 5, "event 1 ('b') ends at 5 ns, before it starts at 10 ns"),
    (0, float("nan"), "times are whole nanoseconds"),
    (1.5, 3, "times are whole nanoseconds"),
])  # fmt: skip
def test_times_that_are_none_are_refused(start, end, said):
    with pytest.raises(tl.InputError) as caught:
        tl.Trace([tl.TraceEvent("a", "step", 0, 5, 1), tl.TraceEvent("b", "step", start, end, 1)])
    assert said in caught.value.diagnostic.message


def test_threads_have_the_names_they_have():
    graph = layer()
    with tl.trace() as t:
        with tl.span("all"):
            tl.Executor().execute(graph, INPUTS)
        together = threading.Barrier(2)  # both are alive at once, so their numbers differ

        def work():
            tl.Executor().execute(graph, INPUTS)
            together.wait()

        threads = [threading.Thread(target=work, name="worker") for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    names = list(t.threads.values())
    assert names[:2] == [threading.current_thread().name, "worker"]
    assert names[2].startswith("worker ")  # two threads of one name stay two
    assert len(names) == 3
    assert '"name":"worker"' in to_chrome(t)


def test_a_wrong_detail_is_told_where_it_was_written():
    with pytest.raises(tl.InputError, match="'step' or 'op'") as caught:
        tl.trace(detail="ops")
    assert caught.value.diagnostic.location.file == __file__


def test_mixed_up_traces_say_so(traced):
    with pytest.raises(tl.InputError, match=r"two traces are compared, got 'before\.json'"):
        traced.diff("before.json")
    with pytest.raises(tl.InputError, match="a Trace is expected, got <RecordedExecutionTrace"):
        tl.ProfileData.from_trace(traced.to_recorded())


@pytest.mark.parametrize(("entering", "time"), [(False, 1), (True, 2), (False, 2)])
def test_an_interrupt_leaves_no_trace_on(monkeypatch: pytest.MonkeyPatch, entering: bool, time: int) -> None:
    """One as a trace began or ended once left it on for the rest of the process, which it slowed down and filled up."""

    class Interrupted:  # a signal is seen as a call of a lock's returns
        def __init__(self) -> None:
            self.lock, self.entered, self.left = threading.Lock(), 0, 0

        def __enter__(self) -> None:
            self.entered += 1
            if entering and self.entered == time:
                raise KeyboardInterrupt
            self.lock.acquire()

        def __exit__(self, *error: object) -> None:
            self.left += 1
            self.lock.release()
            if not entering and self.left == time:
                raise KeyboardInterrupt

    monkeypatch.setattr(events, "_lock", Interrupted())
    with pytest.raises(KeyboardInterrupt), tl.trace(detail="op"):
        pass
    assert events.watchers() == ()
