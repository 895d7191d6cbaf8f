"""Columns: traces made at once, and grouping and the longest entries by every path that the size chooses."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tensorlogic as tl
from tensorlogic.observe import columns

durations = st.floats(0, 1e9) | st.sampled_from([0.0, 5.0, math.nan, math.inf, -1.0])


def kinds(n):
    return [
        tl.RecordedTraceEntry(0, f"op{i % 3}", [None, "cpu:0", "gpu:1"][i % 3]).with_output_shape([i, 2])
        for i in range(n)
    ]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 100), st.floats(0, 1e6))))
def test_columns_are_the_same_as_entries(count, rows):
    which = [k % count for k, _ in rows]
    entries = []
    for n, (k, (_, took)) in enumerate(zip(which, rows, strict=True)):
        entry = kinds(count)[k]
        entry.step, entry.duration_us = n, took
        entries.append(entry)
    made, expected = (
        tl.RecordedExecutionTrace.from_columns(kinds(count), np.array(which, int), [took for _, took in rows]),
        tl.RecordedExecutionTrace(entries),
    )
    assert list(made.entries) == list(expected.entries)
    assert made.operation_names == expected.operation_names, "in order of first occurrence, and no others"
    assert made.device_names == expected.device_names
    assert made.total_duration_us == pytest.approx(expected.total_duration_us)


def test_columns_go_on_growing():
    trace = tl.RecordedExecutionTrace.from_columns(kinds(3), [2, 0], [1.0, 2.0], step=[7, 9], metadata={"k": "v"})
    trace.add_entry(tl.RecordedTraceEntry(10, "op2"))
    assert [(e.step, e.operation, e.device_id) for e in trace.entries] == [
        (7, "op2", "gpu:1"), (9, "op0", None), (10, "op2", None),
    ]  # fmt: skip
    assert trace.operation_names == ["op2", "op0"]
    assert trace.metadata == {"k": "v"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (([0, 1], [1.0]), "equally long"),
        (([0, 3], [1.0, 1.0]), "from 0 to 2"),
        (([-1], [1.0]), "from 0 to 2"),
        (([0.5], [1.0]), "whole numbers"),
        (([[0]], [[1.0]]), "equally long"),
    ],
)
def test_columns_that_do_not_fit(given, said):
    with pytest.raises(tl.InputError, match=said):
        tl.RecordedExecutionTrace.from_columns(kinds(3), *given)
    with pytest.raises(tl.InputError, match="step"):
        tl.RecordedExecutionTrace.from_columns(kinds(3), [0], [1.0], step=[-1])


def test_an_entry_too_large_for_its_column_leaves_the_rest_alone():
    big = tl.RecordedTraceEntry(0, "a", memory_bytes=1 << 70)
    trace = tl.RecordedExecutionTrace([tl.RecordedTraceEntry(0, "a")])
    with pytest.raises(tl.InputError, match=r"entry 1 cannot be recorded: .* at `\$.memory_bytes`"):
        trace.add_entry(big)
    assert len(trace.entries) == 1 and trace.operation_names == ["a"]
    assert trace.column("step").size == trace.column("memory").size == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), durations), max_size=40))
def test_grouping(rows):
    trace = tl.RecordedExecutionTrace.from_columns(
        kinds(6), np.array([k for k, _ in rows], int), [took for _, took in rows]
    )
    operations, devices = tl.TraceAnalyzer.operation_summary(trace), tl.TraceAnalyzer.per_device_summary(trace)
    for found, key in ((operations, "operation"), (devices, "device_id")):
        entries = [e for e in trace.entries if getattr(e, key) is not None]
        assert set(found) == {getattr(e, key) for e in entries}
        for name, row in found.items():
            own = [e for e in entries if getattr(e, key) == name]
            count = row.count if key == "operation" else row.op_count
            assert count == len(own)
            assert row.total_duration_us == pytest.approx(sum(e.duration_us for e in own), nan_ok=True)
            assert row.total_memory_bytes == sum(e.memory_bytes for e in own)


def test_sums_are_exact_beyond_64_bits():
    huge = tl.RecordedTraceEntry(0, "a", "cpu:0", memory_bytes=(1 << 60) + 1, duration_us=2.0**61)
    trace = tl.RecordedExecutionTrace.from_columns([huge], [0] * 70, [2.0**61] * 70)
    assert trace.total_memory_bytes() == 70 * ((1 << 60) + 1)
    assert tl.TraceAnalyzer.operation_summary(trace)["a"].total_memory_bytes == 70 * ((1 << 60) + 1)
    assert tl.TraceAnalyzer.per_device_summary(trace)["cpu:0"].total_memory_bytes == 70 * ((1 << 60) + 1)
    assert tl.TraceAnalyzer.flamegraph_collapsed(trace) == f"trace;cpu:0;a {70 * 2**61}"


def test_groups_of_whole_numbers():
    groups = columns.Groups(np.array([1, 1, 0]), 3)
    assert groups.sums(np.array([1 << 61, 1 << 61, 5])).tolist() == [5, 1 << 62, 0]
    assert groups.sums(np.array([1 << 62, 1 << 62, -5])).tolist() == [-5, 1 << 63, 0]
    assert groups.largest(np.array([7, 9, 5])).tolist() == [5, 9, 0]
    assert [v.tolist() for v in groups.ordered(np.array([7, 3, 5]))] == [[5], [3, 7], []]


@settings(max_examples=100, deadline=None)
@given(st.lists(durations, max_size=40), st.integers(-1, 45), st.sampled_from([1, 4, 4096]))
def test_the_longest_by_every_path(values, n, chunk):
    trace = tl.RecordedExecutionTrace.from_columns(kinds(1), [0] * len(values), values)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "CHUNK", chunk)
        found = [e.step for e in trace.slowest_ops(n)]
    rank = sorted(
        range(len(values)), key=lambda i: (math.isnan(values[i]), -values[i] if values[i] == values[i] else 0)
    )
    assert found == rank[: max(0, n)]


def test_an_entry_takes_few_bytes():
    trace = tl.RecordedExecutionTrace.from_columns(kinds(6), np.arange(500_000) % 6, np.ones(500_000))
    assert trace.nbytes() <= 64 * 500_000
    assert sum(s.count for s in tl.TraceAnalyzer.operation_summary(trace).values()) == 500_000


@pytest.mark.parametrize("name", ["step", "kind", "duration", "operation", "device", "elements", "memory"])
def test_a_column_in_use_stays_as_it_is_while_the_trace_grows(name):
    trace = tl.RecordedExecutionTrace([tl.RecordedTraceEntry(0, "a", "cpu:0", duration_us=1.0)])
    column = trace.column(name)
    before = column.tolist()
    trace.add_entry(tl.RecordedTraceEntry(1, "b", "cpu:1"))
    trace.add_entry(tl.RecordedTraceEntry(2, "b", "cpu:1"))
    assert column.tolist() == before
    assert trace.column(name).tolist()[:1] == before
    assert [(e.step, e.device_id) for e in trace.entries] == [(0, "cpu:0"), (1, "cpu:1"), (2, "cpu:1")]
