"""Profiles and timelines: sums of a trace whose times are known, and of real runs."""

import itertools
import json
import threading

import msgspec
import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.events import RunRecord
from tensorlogic.observe.profile import SAMPLES, moved_bytes, work_dtype

MS = 1_000_000


def layer():
    b = tl.GraphBuilder()
    return b.build(y=b.relu(b.input("x", ("n", 3), "float32") @ b.input("w", (3, 2), "float32")))


def closure():
    b = tl.GraphBuilder()
    e = b.input("edge", ("n", "n"), "bool")
    return b.build(path=b.fixpoint(lambda r: b.einsum("xy,yz->xz", r, e, algebra="boolean"), e, combine="or"))


def inputs(rows=4):
    return {"x": np.ones((rows, 3), "float32"), "w": np.ones((3, 2), "float32")}


def fed(trace, plan, times, thread=1, starts=()):
    """Give a trace one run of a plan with times in milliseconds."""
    record = RunRecord(plan, [round(t * MS) for t in times], thread)
    record.starts = [round(t * MS) for t in starts]
    trace.on_run(record)


@pytest.fixture
def plan():
    return tl.Executor().plan(layer(), sizes={"n": 4})


@pytest.fixture
def known(plan):
    """Three runs of two steps: 1, 2, 3 ms and 1 ms each."""
    trace = tl.Trace()
    for at, first in ((0, 1), (10, 2), (20, 3)):
        fed(trace, plan, [at, at + first, at + first + 1])
    return trace


def test_sums(known):
    profile = tl.ProfileData.from_trace(known)
    assert list(profile.op_profiles) == ["einsum ij,jk->ik", "relu"]
    einsum = profile.op_profiles["einsum ij,jk->ik"]
    assert (einsum.count, einsum.total_time_ms, einsum.self_time_ms, einsum.avg_time_ms) == (3, 6, 6, 2)
    assert (einsum.min_time_ms, einsum.max_time_ms, einsum.p50_time_ms) == (1, 3, 2)
    assert einsum.percentile(75) == np.quantile([1, 2, 3], 0.75)
    assert einsum.p50_time_ms <= einsum.p90_time_ms <= einsum.p99_time_ms <= einsum.max_time_ms
    assert (einsum.memory_bytes, einsum.peak_bytes, einsum.moved_bytes) == (96, 32, 3 * (48 + 24 + 32))
    assert (einsum.flops, einsum.dtype, einsum.kernel) == (3 * 48, "float32", "matmul")
    assert einsum.gflops_per_second == pytest.approx(144 / 6e-3 / 1e9)
    assert einsum.gb_per_second == pytest.approx(312 / 6e-3 / 1e9)
    assert profile.run_times_ms == (2, 3, 4)
    assert profile.total_time_ms == 9
    assert profile.peak_memory_bytes == known.plans()[0].peak_bytes
    assert profile.share("relu") == pytest.approx(100 / 3)


def test_a_loop_leaves_its_body_out_of_its_own_time():
    plan = tl.Executor().plan(closure(), sizes={"n": 5})
    (body,) = plan.steps[0].bodies
    trace = tl.Trace()
    for at, thread in ((0, 1), (0, 2), (100, 1)):  # at once on two threads, then once more
        for round_ in (at + 1, at + 4, at + 7):
            fed(trace, body, [round_, round_ + 2], thread)
        fed(trace, plan, [at, at + 10], thread)
    profile = tl.ProfileData.from_trace(trace)
    loop, einsum = profile.op_profiles["fixpoint"], profile.op_profiles["einsum xy,yz->xz (boolean)"]
    assert (loop.count, loop.total_time_ms, loop.self_time_ms) == (3, 30, 12)
    assert (einsum.count, einsum.total_time_ms, einsum.self_time_ms) == (9, 18, 18)
    assert profile.total_time_ms == sum(profile.run_times_ms) == 30
    assert len(profile.run_times_ms) == 3, "rounds are no runs"


def test_loops_inside_of_loops():
    b = tl.GraphBuilder()

    def outer(h, x):
        inner, _ = b.scan(lambda c, y: (c + y,) * 2, np.float32(0), x)
        return (h + inner,) * 2

    last, _ = b.scan(outer, np.float32(0), b.input("u", (3, 4), "float32"))
    ex = tl.Executor()
    ex.enable_profiling()
    for _ in range(5):
        ex.execute(b.build(last=last), {"u": np.ones((3, 4), "float32")})
    profile = ex.get_profile_data()
    assert profile.op_profiles["scan"].count == 5 * (1 + 3)
    assert profile.op_profiles["add"].count == 5 * 3 * (1 + 4)
    assert len(profile.run_times_ms) == 5
    assert profile.total_time_ms == pytest.approx(sum(profile.run_times_ms))
    assert sum(profile.share(name) for name in profile.op_profiles) == pytest.approx(100)
    assert profile.op_profiles["scan"].self_time_ms < profile.op_profiles["scan"].total_time_ms


def test_what_hooks_take_between_steps_does_not_count(plan):
    trace = tl.Trace()
    fed(trace, plan, [0, 2, 9], starts=[1, 8])
    profile = tl.ProfileData.from_trace(trace)
    assert profile.run_times_ms == (2,)
    assert profile.total_time_ms == 2


def test_a_failed_run_is_told_apart(plan):
    trace = tl.Trace()
    fed(trace, plan, [0, 1, 2])
    fed(trace, plan, [5, 6])
    fed(trace, plan, [7])
    profile = tl.ProfileData.from_trace(trace)
    assert profile.run_times_ms == (2,)
    assert profile.failed_runs == 2
    assert profile.op_profiles["einsum ij,jk->ik"].count == 2
    assert "1 run, 2 failed" in str(profile)


def test_many_calls_keep_their_quantiles(plan):
    times = np.random.default_rng(0).lognormal(size=5000)
    trace = tl.Trace()
    for t in times:
        fed(trace, plan, [0, t, t])
    op = tl.ProfileData.from_trace(trace).op_profiles["einsum ij,jk->ik"]
    assert op.count == 5000
    assert len(op.times_ms) == SAMPLES
    assert op.min_time_ms == pytest.approx(times.min(), abs=1e-6)
    assert op.max_time_ms == pytest.approx(times.max(), abs=1e-6)
    for q in (50, 90, 99):
        assert op.percentile(q) == pytest.approx(np.quantile(times, q / 100), rel=0.01)


def test_shapes_of_one_operation_add_up():
    ex = tl.Executor()
    ex.enable_profiling()
    for rows in (1, 10, 0):
        ex.execute(layer(), inputs(rows))
    op = ex.get_profile_data().op_profiles["relu"]
    assert op.count == 3
    assert op.memory_bytes == 11 * 2 * 4
    assert op.peak_bytes == 10 * 2 * 4
    assert ex.get_profile_data().peak_memory_bytes == ex.plan(layer(), inputs(10)).peak_bytes


def test_nothing():
    for empty in (tl.ProfileData(), tl.ProfileData.from_trace(tl.Trace()), tl.Executor().get_profile_data()):
        assert empty.op_profiles == {}
        assert empty.total_time_ms == 0
        assert str(empty) == "no steps were profiled"
        assert tl.ProfileData.from_json(empty.to_json()) == empty


def test_a_graph_without_steps():
    b = tl.GraphBuilder()
    ex = tl.Executor()
    ex.enable_profiling()
    ex.execute(b.build(y=b.input("x", (2,))), {"x": [1.0, 2.0]})
    profile = ex.get_profile_data()
    assert profile.run_times_ms == (0,)
    assert profile.op_profiles == {}


def test_steps_that_took_no_time_have_a_share_of_none(plan):
    trace = tl.Trace()
    fed(trace, plan, [0, 0, 0])
    profile = tl.ProfileData.from_trace(trace)
    assert profile.share("relu") == 0
    assert profile.op_profiles["relu"].gflops_per_second == 0
    assert "0.0%" in str(profile)


def test_events_without_a_plan():
    events = [
        tl.TraceEvent("outer", "cpu_op", 0, 10 * MS, 1), tl.TraceEvent("innér", "cpu_op", 2 * MS, 5 * MS, 1),
        tl.TraceEvent("innér", "cpu_op", 6 * MS, 7 * MS, 1), tl.TraceEvent("all", "span", 0, 20 * MS, 1),
    ]  # fmt: skip
    profile = tl.ProfileData.from_trace(tl.Trace(events))
    assert {n: (op.count, op.total_time_ms, op.self_time_ms) for n, op in profile.op_profiles.items()} == {
        "outer": (1, 10, 6), "innér": (2, 4, 4),
    }  # fmt: skip


def test_one_name_on_two_devices_is_two_operations():
    rows = [
        ("step 6", "user_annotation", 50),
        ("step 6", "gpu_user_annotation", 30),
        ("step 6", "gpu_user_annotation", 9),
    ]
    events = [tl.TraceEvent(name, kind, 100 * n, 100 * n + took, n) for n, (name, kind, took) in enumerate(rows)]
    profile = tl.ProfileData.from_trace(tl.Trace([*events, tl.TraceEvent("relu", "kernel", 0, 5, 9)]))
    assert {name: (op.count, op.total_time_ms) for name, op in profile.op_profiles.items()} == {
        "step 6 (user_annotation)": (1, 50e-6), "step 6 (gpu_user_annotation)": (2, 39e-6), "relu": (1, 5e-6),
    }  # fmt: skip
    again = tl.ProfileData.from_trace(tl.Trace([tl.TraceEvent("step 6", "span", 0, 9, 1), *events[:1]]))
    assert list(again.op_profiles) == ["step 6"], "spans are no operations"


ODD = "two\nlines\x1b[31m"


def test_names_in_print_are_short_and_on_one_line():
    long = [f"void at::native::kernel<{'x' * 40}, {op}, {'y' * 40}>(int)" for op in ("Add", "Mul")]
    one = tl.OpProfile(1, 1.0, 1.0, (1.0,))
    lines = str(tl.ProfileData(dict.fromkeys([ODD, *long], one))).splitlines()
    assert len(lines) == 5
    assert lines[1].startswith("two lines\ufffd[31m  ")
    assert "Add" in lines[2] and "Mul" in lines[3] and len(lines[2]) < 150


def test_a_timeline_prints_one_line_for_each_entry():
    t = tl.Trace([tl.TraceEvent(ODD, "step", 0, 5, 1)], threads={1: "a\x1b]0;title"})
    text = str(tl.TimelineProfiler(t))
    assert len(text.splitlines()) == 3
    assert "\x1b" not in text


def test_json(known):
    profile = tl.ProfileData.from_trace(known)
    again = tl.ProfileData.from_json(profile.to_json())
    assert again == profile
    assert str(again) == str(profile)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda p: p["op_profiles"]["relu"].update(count=0), r"\$\.op_profiles\[\.\.\.\]\.count"),
        (lambda p: p["op_profiles"]["relu"].update(times_ms=[]), r"\$\.op_profiles\[\.\.\.\]\.times_ms"),
        (lambda p: p.update(run_times_ms=[1, -1]), r"\$\.run_times_ms\[1\]"),
        (lambda p: p.update(peak_memory_bytes="many"), r"\$\.peak_memory_bytes"),
        (lambda p: p.update(more=1), "unknown field `more`"),
    ],
)
def test_json_that_is_wrong_is_said_with_its_path(known, change, where):
    data = json.loads(tl.ProfileData.from_trace(known).to_json())
    change(data)
    with pytest.raises(tl.FormatError, match=rf"not a profile: .*{where}"):
        tl.ProfileData.from_json(json.dumps(data))


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, "3"])
def test_no_json(text):
    with pytest.raises(tl.FormatError, match="not a profile"):
        tl.ProfileData.from_json(text)


@pytest.mark.parametrize("q", [-1, 101, float("nan")])
def test_percentiles_have_bounds(q):
    with pytest.raises(tl.InputError, match="between 0 and 100"):
        tl.OpProfile(1, 1.0, 1.0, (1.0,)).percentile(q)


def test_it_prints(known, golden):
    profile = msgspec.structs.replace(tl.ProfileData.from_trace(known), peak_memory_bytes=2048)
    golden("profile.txt", f"{profile}\n")
    assert "<pre>" in profile._repr_html_()
    assert "->" not in profile._repr_html_()
    assert repr(profile) == "<ProfileData 2 operations, 3 runs, 9.000 ms>"
    assert repr(profile.op_profiles["relu"]) == "<OpProfile 3 calls, 3.000 ms, mean 1.000 ms>"


def test_bytes_and_dtypes_of_steps():
    b = tl.GraphBuilder()
    table, word = b.input("t", (100, 4), "float32"), b.input("w", (2,), "int64")
    x = b.input("x", (3, 4), "float64")
    step = {s.op.name: s for s in tl.Executor().plan(b.build(g=b.gather(table, word), v=x.T, c=x > 1)).steps}
    assert moved_bytes(step["gather"]) == 2 * 32 + 16, "it reads what it takes, not the table"
    assert moved_bytes(step["transpose"]) == 0
    assert work_dtype(step["greater"]) == "float64"


# executors


def test_only_this_executor_is_measured_and_only_while_it_should():
    graph, context = layer(), tl.ExecutionContext()
    ex, other = tl.Executor(context=context), tl.Executor(context=context)
    ex.execute(graph, inputs())
    ex.enable_profiling()
    ex.execute(graph, inputs())
    other.execute(graph, inputs())
    ex.enable_profiling()  # goes on
    ex.execute(graph, inputs())
    ex.disable_profiling()
    ex.disable_profiling()
    ex.execute(graph, inputs())
    assert len(ex.get_profile_data().run_times_ms) == 2
    assert other.get_profile_data() == tl.ProfileData()
    assert context.hooks == []
    ex.enable_profiling()  # begins anew
    ex.execute(graph, inputs())
    assert len(ex.get_profile_data().run_times_ms) == 1


def test_profiles_of_several_threads():
    ex, graph = tl.Executor(), layer()
    ex.enable_profiling()
    seen = []

    def work():
        for _ in range(50):
            ex.execute(graph, inputs())
            seen.append(len(ex.get_profile_data().run_times_ms))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    profile = ex.get_profile_data()
    assert {op.count for op in profile.op_profiles.values()} == {200}
    assert len(profile.run_times_ms) == 200
    assert max(seen) <= 200


def test_a_trace_around_sees_the_same_runs():
    ex = tl.Executor()
    ex.enable_profiling()
    with tl.trace() as t:
        ex.execute(closure(), {"edge": np.eye(5, k=1, dtype=bool)})
    assert tl.ProfileData.from_trace(t) == ex.get_profile_data()


# timelines


@pytest.fixture
def timeline():
    plan = tl.Executor().plan(closure(), sizes={"n": 5})
    (body,) = plan.steps[0].bodies
    trace = tl.Trace()
    trace.on_span("plan", 1000 * MS, 1004 * MS, 7)
    for start in (1005, 1010, 1014):
        fed(trace, body, [start, start + 3], 7)
    fed(trace, plan, [1004, 1020], 7)
    trace.on_span("löad 漢字", 1002 * MS, 1002 * MS, 8)
    return tl.TimelineProfiler(trace)


def test_entries(timeline):
    entries = timeline.entries()
    assert [(e.name, e.start_ms, e.duration_ms, e.kind, e.thread) for e in entries[:3]] == [
        ("plan", 0, 4, "span", 7), ("löad 漢字", 2, 0, "span", 8), ("fixpoint", 4, 16, "step", 7),
    ]  # fmt: skip
    assert len(entries) == len(timeline) == 6
    assert timeline.profile().op_profiles["fixpoint"].self_time_ms == 7


def test_timeline_prints(timeline, golden):
    golden("timeline.txt", f"{timeline}\n")
    assert timeline.text(limit=2).count("more") == 1
    assert "... 3 more" in timeline.text(limit=2)
    assert repr(timeline) == "<TimelineProfiler 6 entries>"
    assert "<pre>" in timeline._repr_html_()
    assert str(tl.TimelineProfiler()) == "no steps were profiled"
    assert tl.TimelineProfiler().entries() == []


def test_one_hook_for_two_executors(tmp_path):
    profiler = tl.TimelineProfiler()
    context = tl.ExecutionContext([tl.ProfilerHook(profiler)])
    for _ in range(2):
        tl.Executor(context=context).execute(layer(), inputs())
    names = [e.name for e in profiler.entries()]
    assert [n for n in names if n in ("plan", "bind", "einsum ij,jk->ik", "relu")] == [
        "plan", "bind", "einsum ij,jk->ik", "relu",
    ] * 2  # fmt: skip
    assert all(a.start_ms <= b.start_ms for a, b in itertools.pairwise(profiler.entries()))
    profiler.to_trace().save(tmp_path / "t.json")
    assert len(json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))["traceEvents"]) >= 8


def test_a_hook_needs_a_profiler():
    with pytest.raises(tl.InputError, match="TimelineProfiler is expected"):
        tl.ProfilerHook(tl.Trace())
