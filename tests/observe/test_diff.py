"""Totals of one trace, and two traces compared."""

import json

import pytest

import tensorlogic as tl
from tensorlogic.observe import trace_names
from tensorlogic.observe.compare_traces import diff, totals
from tensorlogic.observe.trace_names import operation_names, short_names


def event(name, start, end, thread=1, kind="step", **args):
    return tl.TraceEvent(name, kind, start, end, thread, None, args)


def test_self_time_leaves_out_what_is_inside():
    t = tl.Trace(
        [event("loop", 0, 100), event("add", 10, 30), event("add", 40, 80), event("load", 0, 200, kind="span")]
    )
    assert [(r.name, r.count, r.total_ns, r.self_ns, r.max_ns) for r in totals(t)] == [
        ("add", 2, 60, 60, 40), ("loop", 1, 100, 40, 100),
    ]  # fmt: skip
    assert [(r.name, r.self_ns) for r in totals(t, kind="span")] == [("load", 100)]


def test_what_is_inside_of_its_own_kind_counts_once():
    t = tl.Trace([event("call", 0, 100), event("call", 10, 90), event("other", 20, 60), event("call", 30, 50)])
    rows = {r.name: r for r in totals(t)}
    assert (rows["call"].total_ns, rows["call"].self_ns, rows["call"].sum_ns) == (100, 80, 200)
    assert rows["call"].mean_ns == 200 / 3
    assert sum(r.self_ns for r in rows.values()) == 100
    assert [(r.name, r.total_ns) for r in totals(t, by="thread")] == [("thread 1", 100)]


def test_a_thread_is_busy_once_where_entries_overlap():
    times = {"a": (60, 70, 1), "b": (65, 75, 1), "c": (74, 80, 2), "d": (90, 95, 1)}
    events = [event(name, start * 10**6, end * 10**6, thread) for name, (start, end, thread) in times.items()]
    rows = {r.name: r for r in totals(tl.Trace([*events, event("load", 0, 10**8, kind="span")]), by="thread")}
    assert rows["thread 1"].total_ns == rows["thread 1"].self_ns == 20 * 10**6
    assert rows["thread 1"].sum_ns == 25 * 10**6
    assert rows["thread 2"].total_ns == 6 * 10**6


def test_a_recorded_trace_keeps_one_name_on_two_devices_apart():
    t = tl.Trace(
        [event("step 6", 0, 50, kind="annotation"), event("step 6", 10, 40, 2, kind="gpu"), event("add", 1, 2)]
    )
    summary = tl.TraceAnalyzer.operation_summary(t.to_recorded())
    assert {name: s.count for name, s in summary.items()} == {"step 6 (annotation)": 1, "add": 1, "step 6 (gpu)": 1}


def test_one_name_on_two_devices_has_two_rows():
    t = tl.Trace(
        [event("step 6", 0, 50, kind="user_annotation"), event("step 6", 10, 40, 2, kind="gpu_user_annotation")]
    )
    assert [(r.name, r.kind, r.total_ns) for r in totals(t)] == [
        ("step 6", "user_annotation", 50), ("step 6", "gpu_user_annotation", 30),
    ]  # fmt: skip
    assert [line.split("  ")[0] for line in str(t).splitlines()[1:3]] == [
        "step 6 (user_annotation)",
        "step 6 (gpu_user_annotation)",
    ]
    assert [(r.name, r.ratio) for r in t.diff(t).rows] == [("step 6", 1.0)] * 2


def test_long_names_stay_apart():
    long = "void kernel<float, " + "x" * 80
    t = tl.Trace([event(f"{long}{end}", n, n + 1) for n, end in enumerate(["<4>()", "<8>()", "<8> ()"])])
    names = [line.rsplit(maxsplit=6)[0].strip() for line in str(t).splitlines()[1:4]]
    assert len(set(names)) == 3
    assert all(len(name) <= 60 for name in names)
    inner = tl.Trace([event("a" * 40 + middle + "b" * 40, 0, 1, n) for n, middle in enumerate("xy")])
    names = [line.rsplit(maxsplit=6)[0].strip() for line in str(inner).splitlines()[1:3]]
    assert [name[14:40] for name in names] == [f"aa…aaa{middle}{'b' * 19}" for middle in "xy"]


def test_names_that_differ_in_the_middle_show_where():
    kernels = [f"void at::native::kernel<4, {'x' * 40}, {op}<float>, {'y' * 40}>(int)" for op in ("Add", "Mul", "Mu")]
    shown = short_names([*kernels, kernels[0].replace("float", "half"), "relu"])
    assert ["Add<float>" in shown[0], "Mul<float>" in shown[1], "Mu<float>" in shown[2], "Add<half>" in shown[3]]
    assert len(set(shown)) == 5
    assert all(len(name) <= 60 and "#" not in name for name in shown)
    assert short_names(["a" * 70, "a" * 71, "b"]) == [f"{'a' * 16}…{'a' * 26}…{'a' * 16} #{n}" for n in (1, 2)] + ["b"]


def test_many_names_are_cut_a_few_times_each_and_numbered_in_turn(monkeypatch):
    cuts, numbers = [], []
    cut, count = trace_names._cut, trace_names.count
    monkeypatch.setattr(trace_names, "_cut", lambda *given: cuts.append(1) or cut(*given))
    monkeypatch.setattr(trace_names, "count", lambda start: (numbers.append(n) or n for n in count(start)))
    names = ["a" * n + "b" + "a" * (5000 - n) for n in range(2000)]
    assert len(set(short_names(names))) == 2000
    assert len(cuts) <= 2000 * (1 + trace_names.ROUNDS)
    assert len(set(short_names(["x"] * 50_000))) == 50_000
    assert len(numbers) < 2000 + 50_001


def test_numbers_never_make_a_name_that_is_there():
    assert operation_names([("a (x)", "x"), ("a", "x"), ("a", "y"), ("a (x) #1", "z")]) == [
        "a (x) #2", "a (x) #3", "a (y)", "a (x) #1",
    ]  # fmt: skip


def test_names_do_nothing_to_a_terminal():
    t = tl.Trace([event("two\nlines\x1b[31m", 0, 5), event("\x9bred \u202eback\x00", 5, 9)])
    assert [line.split("  ")[0] for line in str(t).splitlines()[1:3]] == [
        "two lines\ufffd[31m",
        "\ufffdred \ufffdback\ufffd",
    ]


def test_by_device_and_thread():
    t = tl.Trace(
        [event("a", 0, 5, 1, device="cpu:0"), event("b", 0, 7, 2, device=1), event("c", 9, 10, 2)], threads={2: "io"}
    )
    assert [(r.name, r.total_ns) for r in totals(t, by="device")] == [("gpu:1", 7), ("cpu:0", 5), ("unknown", 1)]
    assert [(r.name, r.count) for r in totals(t, by="thread")] == [("io", 2), ("thread 1", 1)]
    with pytest.raises(tl.InputError, match="not 'devise'") as caught:
        totals(t, by="devise")
    assert "device" in caught.value.diagnostic.suggestions[0]


def test_sorted_by_change_with_new_and_gone():
    before = tl.Trace([event("same", 0, 10), event("slower", 10, 20), event("gone", 20, 45)])
    after = tl.Trace([event("same", 0, 10), event("slower", 10, 50), event("new", 50, 55), event("new", 55, 60)])
    rows = before.diff(after).rows
    assert [(r.name, r.change_ns, r.ratio, r.state) for r in rows] == [
        ("slower", 30, 4.0, "both"), ("gone", -25, 0.0, "gone"), ("new", 10, None, "new"), ("same", 0, 1.0, "both"),
    ]  # fmt: skip
    found = json.loads(before.diff(after).to_json())["rows"]
    assert found[2] == {
        "name": "new", "state": "new", "change_ns": 10, "ratio": None,
        "before": {"name": "new", "kind": "", "count": 0, "total_ns": 0, "self_ns": 0, "sum_ns": 0, "mean_ns": 0.0, "max_ns": 0},
        "after": {"name": "new", "kind": "step", "count": 2, "total_ns": 10, "self_ns": 10, "sum_ns": 10, "mean_ns": 5.0, "max_ns": 5},
    }  # fmt: skip


def test_no_time_before_is_no_ratio():
    found = diff(tl.Trace([event("a", 5, 5)]), tl.Trace([event("a", 5, 9)]))
    assert found.rows[0].ratio is None
    assert str(found).splitlines()[1].split()[-1] == "-"


def test_prints(golden):
    before = tl.Trace(
        [event("matmul", 0, 2_000_000), event("relu", 2_000_000, 2_100_000), event("exp [x]", 3_000_000, 4_000_000)]
    )
    after = tl.Trace(
        [event("matmul", 0, 1_000_000), event("relu", 2_000_000, 2_100_000), event("k" * 90, 3_000_000, 3_000_500)]
    )
    golden("trace_diff.txt", f"{before.diff(after)}\n")
    assert before.diff(after)._repr_html_().startswith("<pre>operation")


def test_empty():
    found = diff(tl.Trace(), tl.Trace())
    assert found.rows == ()
    assert str(found).splitlines()[-1] == "0.000 ms before, 0.000 ms after: +0.000 ms; 0 new, 0 gone"
    assert json.loads(found.to_json()) == {"rows": []}


def test_events_that_overlap_without_nesting_count_no_moment_twice():
    events = [
        tl.TraceEvent("enter", "step", 0, 20, 1),
        tl.TraceEvent("step", "step", 18, 1018, 1),
        tl.TraceEvent("work", "step", 100, 1000, 1),
    ]
    late = [
        tl.TraceEvent("long", "step", 2000, 9000, 1),
        tl.TraceEvent("beyond", "step", 5000, 12000, 1),
        tl.TraceEvent("in", "step", 5000, 5500, 1),
    ]
    found = {row.name: row.self_ns for row in totals(tl.Trace([*events, *late]))}
    assert found == {"enter": 18, "step": 100, "work": 900, "long": 3000, "beyond": 6500, "in": 500}
