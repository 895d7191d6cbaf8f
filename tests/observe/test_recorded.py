"""The recorded trace: the seed module's own tests in Python form, its rules at the edges, and scale."""

import json
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl


def us(n):
    return timedelta(microseconds=n)


def entry(operation, duration=0.0, device=None, shape=None, step=0):
    made = tl.RecordedTraceEntry(step, operation)
    made.duration_us = float(duration)
    if device is not None:
        made.with_device_id(device)
    return made if shape is None else made.with_output_shape(shape)


def trace_of(*entries):
    return tl.RecordedExecutionTrace(entries)


# the seed's tests


def test_entry_new():
    e = tl.RecordedTraceEntry(0, "matmul")
    assert (e.step, e.operation, e.device_id, e.input_shapes, e.output_shape) == (0, "matmul", None, [], ())
    assert (e.duration_us, e.output_elements, e.memory_bytes) == (0.0, 0, 0)


def test_entry_builder():
    e = (
        tl.RecordedTraceEntry(1, "conv2d")
        .with_device_id("gpu:0")
        .with_input_shapes([[1, 3, 32, 32], [16, 3, 3, 3]])
        .with_output_shape([1, 16, 30, 30])
        .with_duration(us(500))
    )
    assert e.device_id == "gpu:0"
    assert len(e.input_shapes) == 2
    assert e.output_shape == (1, 16, 30, 30)
    assert e.output_elements == 16 * 30 * 30
    assert e.memory_bytes == 16 * 30 * 30 * 8
    assert e.duration_us == 500.0


def test_throughput():
    assert (
        tl.RecordedTraceEntry(0, "add").with_output_shape([1000]).with_duration(us(100)).throughput_elements_per_us()
        == 10.0
    )
    assert tl.RecordedTraceEntry(0, "noop").throughput_elements_per_us() == 0.0


def test_empty_trace():
    trace = tl.RecordedExecutionTrace()
    assert len(trace.entries) == 0
    assert trace.total_duration_us == 0.0
    assert trace.metadata == {}
    assert trace.peak_memory_bytes() == trace.total_memory_bytes() == trace.step_count() == 0
    assert trace.slowest_ops(3) == []
    assert tl.TraceAnalyzer.operation_summary(trace) == {}
    assert tl.TraceAnalyzer.flamegraph_collapsed(trace) == ""
    assert tl.TraceAnalyzer.load_balance_metrics(trace) is None
    assert tl.RecordedExecutionTrace.from_json(trace.to_json()) == trace


def test_totals():
    trace = trace_of(entry("a", 100, shape=[10]), entry("b", 200, shape=[100]), entry("c", 0, shape=[50]))
    assert trace.total_duration_us == 300.0
    assert trace.step_count() == 3
    assert trace.total_memory_bytes() == 160 * 8
    assert trace.peak_memory_bytes() == 800


def test_slowest():
    trace = trace_of(entry("fast", 10), entry("slow", 500), entry("medium", 100))
    assert [e.operation for e in trace.slowest_ops(2)] == ["slow", "medium"]


def test_json_both_ways():
    trace = trace_of(entry("matmul", 1.5, "cpu:0", [4, 4]).with_input_shapes([[4, 2], [2, 4]])).with_metadata("k", "v")
    text = trace.to_json()
    assert '"operation": "matmul"' in text
    assert '"output_shape": [' in text
    assert tl.RecordedExecutionTrace.from_json(text) == trace
    rust = """{"entries": [{"step": 0, "operation": "relu", "device_id": null, "input_shapes": [[2]], "output_shape": [2],
               "duration_us": 1.25, "output_elements": 2, "memory_bytes": 16}], "total_duration_us": 1.25, "metadata": {}}"""
    assert tl.RecordedExecutionTrace.from_json(rust).entries[0].input_shapes == [(2,)]


def test_metadata():
    trace = tl.RecordedExecutionTrace().with_metadata("model", "resnet50").with_metadata("device", "cpu")
    assert trace.metadata == {"model": "resnet50", "device": "cpu"}


def test_operation_summary():
    trace = trace_of(entry("matmul", 100, shape=[10]), entry("matmul", 200, shape=[20]), entry("relu", 50, shape=[10]))
    found = tl.TraceAnalyzer.operation_summary(trace)
    assert found["matmul"] == tl.OpSummary(2, 300.0, 240)
    assert found["relu"].count == 1
    assert tl.TraceAnalyzer.avg_duration_by_op(trace) == {"matmul": 150.0, "relu": 50.0}


def test_hotspots_are_strictly_above():
    trace = trace_of(entry("small", shape=[10]), entry("big", shape=[1000]), entry("medium", shape=[100]))
    assert [e.operation for e in tl.TraceAnalyzer.memory_hotspots(trace, 500)] == ["big", "medium"]
    assert [e.operation for e in tl.TraceAnalyzer.memory_hotspots(trace, 800)] == ["big"]


def test_hotspots_are_built_as_they_are_read():
    """Of millions of entries that are hot, those that nobody reads cost nothing."""
    trace = trace_of(*(entry(name, shape=[n]) for n, name in enumerate("abcdef")))
    found = tl.TraceAnalyzer.memory_hotspots(trace, 16)
    assert len(found) == 3 and found[0].operation == "d" and found[-1].operation == "f"
    assert [e.operation for e in found[1:]] == ["e", "f"]
    assert found == list(found) == trace.entries[3:] and found != trace.entries
    trace.add_entry(entry("g", shape=[100]))
    assert len(found) == 3  # it is what was found
    with pytest.raises(IndexError, match="there are 3 entries, so no entry 3"):
        found[3]


def test_devices():
    trace = trace_of(
        entry("matmul", 100, "gpu:0", [32, 32]),
        entry("relu", 50, "gpu:0", [32, 32]),
        entry("allreduce", 250, "gpu:1"),
        entry("none", 9),
    )
    found = tl.TraceAnalyzer.per_device_summary(trace)
    assert found == {"gpu:0": tl.DeviceSummary(2, 150.0, 2 * 8192), "gpu:1": tl.DeviceSummary(1, 250.0, 0)}


def test_load_balance():
    trace = trace_of(entry("m", 300, "gpu:1"), entry("m", 100, "gpu:0"))
    found = tl.TraceAnalyzer.load_balance_metrics(trace)
    assert found == tl.LoadBalanceMetrics(2, 400.0, 200.0, 300.0, 0.5, [("gpu:0", 100.0), ("gpu:1", 300.0)])
    assert tl.TraceAnalyzer.load_balance_metrics(trace_of(entry("m", 1, "gpu:0"))) is None
    idle = tl.TraceAnalyzer.load_balance_metrics(trace_of(entry("m", 0, "a"), entry("m", 0, "b")))
    assert idle is not None
    assert idle.imbalance_ratio == 0.0


def test_communication_bottlenecks_are_at_or_above():
    trace = trace_of(entry("AllReduce", 600), entry("matmul", 100), entry("broadcast", 300), entry("Comm_x", 0))
    found = tl.TraceAnalyzer.communication_bottlenecks(trace, 0.3)
    assert [(b.operation, b.ratio_of_total, b.call_count) for b in found] == [
        ("AllReduce", 0.6, 1),
        ("broadcast", 0.3, 1),
    ]
    assert len(tl.TraceAnalyzer.communication_bottlenecks(trace, 0.0)) == 3


@pytest.mark.parametrize("shape", ["ab", b"ab", None, 3, [2.5], ["a"], [None], [2**70], [-1]])
def test_what_is_no_shape_is_refused(shape):
    recorder = tl.TraceRecorder()
    recorder.begin_op("a")
    for refused in (
        lambda: tl.RecordedTraceEntry(0, "a").with_output_shape(shape),
        lambda: tl.RecordedTraceEntry(0, "a").with_input_shapes([shape]),
        lambda: recorder.end_op_with_shapes([], shape),
    ):
        with pytest.raises(tl.TensorLogicError, match="shape") as caught:
            refused()
        assert caught.value.diagnostic.code in ("E301", "E722")


def test_shapes_of_operands_are_several():
    for shapes in (None, 3, [2, 3], "ab"):
        with pytest.raises(tl.InputError, match="sequence of s"):
            tl.RecordedTraceEntry(0, "a").with_input_shapes(shapes)
    entry = tl.RecordedTraceEntry(0, "a").with_input_shapes(np.ones((2, 3), int)).with_output_shape((np.int32(4),))
    assert (entry.input_shapes, entry.output_shape, entry.memory_bytes) == ([(1, 1, 1)] * 2, (4,), 32)
    with pytest.raises(tl.ShapeError, match="the itemsize of a dtype must be an integer"):
        entry.with_output_shape([2], None)


def test_collapsed_stacks():
    trace = trace_of(
        entry("matmul", 123, "gpu:0"), entry("matmul", 77, "gpu:0"), entry("relu", 50, "gpu:1"), entry("x", 0.2)
    )
    assert tl.TraceAnalyzer.flamegraph_collapsed(trace).split("\n") == [
        "trace;gpu:0;matmul 200", "trace;gpu:1;relu 50", "trace;unknown;x 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("duration", "weight"), [(2.5, 3), (1.5, 2), (0.0, 1), (1.49, 1), (-5.0, 1), (float("nan"), 1), (1e3, 1000)]
)
def test_weights_round_halves_away_from_zero(duration, weight):
    assert tl.TraceAnalyzer.flamegraph_collapsed(trace_of(entry("op", duration))) == f"trace;unknown;op {weight}"


def test_recorder():
    recorder = tl.TraceRecorder()
    recorder.begin_op("conv")
    recorder.end_op_with_shapes([[1, 3, 8, 8]], [1, 16, 6, 6])
    recorder.begin_op("relu")
    recorder.begin_op("pool")
    assert recorder.current_trace().step_count() == 2
    recorder.end_op()
    recorder.end_op()
    trace = recorder.finish()
    assert [(e.step, e.operation) for e in trace.entries] == [(0, "conv"), (1, "relu"), (2, "pool")]
    assert trace.entries[0].output_elements == 16 * 36
    assert trace.entries[1].output_elements == 1, "no shape is a scalar's, as in the seed"
    assert trace.total_duration_us > 0


def test_summaries_default_to_zero():
    assert tl.OpSummary() == tl.OpSummary(0, 0.0, 0)
    assert tl.DeviceSummary() == tl.DeviceSummary(0, 0.0, 0)


# the edges


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.text(max_size=6),
            st.floats(0, 1e9),
            st.none() | st.text(max_size=3),
            st.lists(st.integers(0, 9), max_size=3),
        )
    )
)
def test_columns_answer_as_entries_do(rows):
    entries = [entry(op, d, dev, shape, step=n) for n, (op, d, dev, shape) in enumerate(rows)]
    trace = tl.RecordedExecutionTrace(entries)
    assert list(trace.entries) == entries
    assert tl.RecordedExecutionTrace.from_json(trace.to_json()) == trace
    for name, found in tl.TraceAnalyzer.operation_summary(trace).items():
        own = [e for e in entries if e.operation == name]
        assert found.count == len(own)
        assert found.total_duration_us == pytest.approx(sum(e.duration_us for e in own))
        assert found.total_memory_bytes == sum(e.memory_bytes for e in own)
    for k in (0, 1, 3, 100):
        assert trace.slowest_ops(k) == sorted(entries, key=lambda e: -e.duration_us)[:k]
    lines = tl.TraceAnalyzer.flamegraph_collapsed(trace).split("\n") if entries else []
    for line in lines:
        stack, _, weight = line.rpartition(" ")
        assert stack.count(";") == 2
        assert int(weight) >= 1
    assert len(lines) == len(set(lines))


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ('{"entries": [{"step": 0}], "total_duration_us": 0, "metadata": {}}', "$.entries[0]"),
        ('{"entries": [{"step": "0", "operation": "a"}], "total_duration_us": 0, "metadata": {}}', "$.entries[0].step"),
        ('{"entries": [{"step": -1, "operation": "a"}], "total_duration_us": 0, "metadata": {}}', "$.entries[0].step"),
        ('{"entries": [{"step": 0, "operation": "a", "output_shape": [-1]}], "total_duration_us": 0, "metadata": {}}', "output_shape"),
        ('{"entries": [{"step": 0, "operation": "a", "duration_us": NaN}], "total_duration_us": 0, "metadata": {}}', "byte"),
        ('{"entries": [], "metadata": {}}', "total_duration_us"),
        ('{"entries": [{"step": 0, "operation": "a", "input_shapes": [], "output_shape": [], "output_elements": 0, "memory_bytes": 0}], '
         '"total_duration_us": 0, "metadata": {}}', "missing required field `duration_us` - at `$.entries[0]`"),
        ("[" * 100_000, ""),
        ("", ""),
    ],
)  # fmt: skip
def test_bad_json_says_where(text, path):
    with pytest.raises(tl.FormatError, match="not a trace") as caught:
        tl.RecordedExecutionTrace.from_json(text)
    assert path in caught.value.diagnostic.message


def test_unknown_fields_are_ignored_as_the_crate_does():
    known = trace_of(entry("a", 2.0, "cpu:0", [3]))
    file = json.loads(known.to_json())
    file["entries"][0]["extra"] = {"anything": [1]}
    file["version"] = 2
    assert tl.RecordedExecutionTrace.from_json(json.dumps(file)) == known


def test_what_json_cannot_hold_is_refused():
    with pytest.raises(tl.FormatError, match="entry 0 has the duration nan"):
        trace_of(entry("a", float("nan"))).to_json()
    with pytest.raises(tl.InputError, match="negative"):
        tl.RecordedTraceEntry(0, "a").with_output_shape([-1])


def test_scale():
    trace = tl.RecordedExecutionTrace(entry(f"op{n % 100_000}", n % 7, f"gpu:{n % 4}", [8]) for n in range(200_000))
    assert trace.nbytes() <= 64 * trace.step_count()
    assert len(tl.TraceAnalyzer.operation_summary(trace)) == 100_000
    assert tl.TraceAnalyzer.flamegraph_collapsed(trace).count("\n") == 100_000 - 1
    assert np.all(np.diff([e.duration_us for e in trace.slowest_ops(1000)]) <= 0)


def test_json_without_a_device_is_the_crates_too():
    text = trace_of(entry("a", 2.0, shape=[3])).to_json()
    lines = [line for line in text.splitlines() if "device_id" not in line]
    assert tl.RecordedExecutionTrace.from_json("\n".join(lines)).to_json() == text


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (tl.RecordedTraceEntry(-1, "a"), "`$.step`"),
        (tl.RecordedTraceEntry(1.5, "a"), "`$.step`"),
        (tl.RecordedTraceEntry(0, None), "`$.operation`"),
        (tl.RecordedTraceEntry(0, "a", 7), "`$.device_id`"),
        (tl.RecordedTraceEntry(0, "a", output_shape=[-1]), "`$.output_shape[0]`"),
        (tl.RecordedTraceEntry(0, "a", duration_us="long"), "`$.duration_us`"),
        (tl.RecordedTraceEntry(0, "b").with_output_shape([1 << 40, 1 << 40]), "`$.output_elements`"),
    ],
)
def test_an_entry_that_is_none_is_refused_and_leaves_the_trace_alone(made, said):
    trace = trace_of(entry("a", 2.0))
    before = trace.to_json()
    for add in (trace.add_entry, lambda e: tl.RecordedExecutionTrace([entry("new"), e])):
        with pytest.raises(tl.InputError, match=r"entry \d cannot be recorded") as caught:
            add(made)
        assert said in caught.value.diagnostic.message
        assert trace.to_json() == before
        assert trace.operation_names == ["a"]
    trace.add_entry(entry("c", 1.0))
    assert [e.operation for e in trace.entries] == ["a", "c"]


def test_shapes_may_be_lists():
    listed = tl.RecordedTraceEntry(0, "a", input_shapes=[[2, 3]], output_shape=[2])
    trace = trace_of(listed, listed)
    trace.add_entry(listed)
    assert [(e.input_shapes, e.output_shape) for e in trace.entries] == [([(2, 3)], (2,))] * 3


def test_a_duration_is_a_timedelta():
    with pytest.raises(tl.InputError, match="a duration is a timedelta, got 5"):
        tl.RecordedTraceEntry(0, "a").with_duration(5)


@pytest.mark.parametrize(
    "duration",
    [us(-1), np.timedelta64(-5, "ns"), np.timedelta64("NaT", "ns"), np.timedelta64(1, "Y"), np.timedelta64(2, "M")],
)
def test_a_duration_is_0_or_more(duration):
    with pytest.raises(tl.InputError, match="a duration is a time of 0 or more"):
        tl.RecordedTraceEntry(0, "a").with_duration(duration)


def test_durations_below_a_microsecond():
    assert tl.RecordedTraceEntry(0, "a").with_duration(np.timedelta64(100, "ns")).duration_us == 0.1
    assert tl.RecordedTraceEntry(0, "a").with_duration(np.timedelta64(2, "ms")).duration_us == 2000.0


def test_a_total_that_is_no_number_counts_as_the_least():
    trace = trace_of(entry("send", 6.0), entry("relu", float("nan")))
    (found,) = tl.TraceAnalyzer.communication_bottlenecks(trace, 0.5)
    assert found.ratio_of_total == pytest.approx(6e9)


@pytest.mark.parametrize(
    "ask",
    [
        tl.TraceAnalyzer.operation_summary, tl.TraceAnalyzer.avg_duration_by_op, tl.TraceAnalyzer.per_device_summary,
        tl.TraceAnalyzer.load_balance_metrics, tl.TraceAnalyzer.flamegraph_collapsed,
        lambda t: tl.TraceAnalyzer.memory_hotspots(t, 0), lambda t: tl.TraceAnalyzer.communication_bottlenecks(t, 0.5),
    ],
)  # fmt: skip
def test_a_trace_of_another_kind_is_told_how_to_become_one(ask):
    with pytest.raises(tl.InputError, match="a RecordedExecutionTrace is expected, got <Trace 0") as caught:
        ask(tl.Trace())
    assert "to_recorded()" in caught.value.diagnostic.suggestions[0]
