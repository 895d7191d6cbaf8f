"""Trace files: every form both ways, real ones of PyTorch, and broken ones that say where."""

import contextlib
import csv
import gzip
import json
import os
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import process_time

import pytest

import tensorlogic as tl
from tensorlogic.observe import trace_files
from tensorlogic.observe.compare_traces import totals
from tensorlogic.observe.trace_files import form_of, load, read, save

REAL = next(
    (
        p / "shared" / "data" / "traces"
        for p in Path(__file__).resolve().parents
        if (p / "shared" / "data" / "traces").is_dir()
    ),
    Path("shared/data/traces"),
)
real = pytest.mark.skipif(not REAL.is_dir(), reason=f"the real traces are not in {REAL}")


def event(name, start, end, thread=0, kind="step", **args):
    return tl.TraceEvent(name, kind, start, end, thread, None, args)


def facts(trace):
    return [(e.name, e.start_ns, e.end_ns, trace.thread_name(e.thread)) for e in trace.events()]


@pytest.fixture
def traced():
    return tl.Trace(
        [
            event("load; data", 1_000_000_001, 1_000_000_900, kind="span"),
            event(
                "relu",
                1_000_000_100,
                1_000_000_207,
                device="cpu:0",
                outputs=["float32[4, 2]"],
                inputs=["float32[4, 2]"],
            ),
            event("雪\n", 1_000_000_100, 1_000_000_100, 1),
        ],
        threads={0: "main", 1: "io"},
    )


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", "t.speedscope.json", "t.speedscope.json.gz"])
def test_both_ways_with_times(traced, tmp_path, name):
    traced.save(tmp_path / name)
    assert facts(tl.Trace.load(tmp_path / name)) == facts(traced)


def test_chrome_keeps_kinds_and_arguments(traced, tmp_path):
    traced.save(tmp_path / "t.json")
    loaded = tl.Trace.load(tmp_path / "t.json")
    assert [(e.kind, e.facts()) for e in loaded.events()] == [(e.kind, e.facts()) for e in traced.events()]
    assert len(loaded.spans) == 1


def test_collapsed_both_ways(traced, tmp_path):
    traced.save(tmp_path / "t.collapsed")
    loaded = tl.Trace.load(tmp_path / "t.collapsed")
    assert {r.name: r.self_ns for r in totals(loaded)} == {"load; data": 792, "relu": 107}
    loaded.save(tmp_path / "again.folded")
    assert (tmp_path / "again.folded").read_text(encoding="utf-8") == (tmp_path / "t.collapsed").read_text(
        encoding="utf-8"
    )


def test_rust_both_ways(traced, tmp_path):
    traced.save(tmp_path / "t.rust.json")
    recorded = tl.RecordedExecutionTrace.from_json((tmp_path / "t.rust.json").read_text(encoding="utf-8"))
    assert [(e.operation, e.device_id, e.output_shape, e.memory_bytes, e.duration_us) for e in recorded.entries] == [
        ("relu", "cpu:0", (4, 2), 32, 0.107), ("雪\n", None, (), 0, 0.0),
    ]  # fmt: skip
    assert tl.Trace.load(tmp_path / "t.rust.json").to_recorded() == recorded


def test_flame_is_written_by_suffix(traced, tmp_path):
    traced.save(tmp_path / "t.svg")
    assert (tmp_path / "t.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("a.json", "chrome"),
        ("a.json.gz", "chrome"),
        ("a.svg.gz", "flame"),
        ("speedscope.json", "speedscope"),
        ("a.txt", "collapsed"),
        ("a.rust.json", "rust"),
    ],
)
def test_form_by_name(name, form):
    assert form_of(name) == form


def chrome(*events, **more):
    return json.dumps({"traceEvents": list(events), **more}).encode()


def x(ts, dur, name="op", **more):
    return {"ph": "X", "name": name, "ts": ts, "dur": dur, **more}


def test_nanoseconds_survive():
    t = read(b'{"traceEvents": [{"ph":"X","name":"k","ts":1661938466265032.123,"dur":0.007}]}')
    assert (t.events()[0].start_ns, t.events()[0].duration_ns) == (1_661_938_466_265_032_123, 7)


def test_begin_and_end_pair_up_by_thread_in_any_order():
    t = read(chrome(
        {"ph": "E", "ts": 9, "tid": 1, "args": {"r": 2}}, {"ph": "B", "name": "a", "ts": 1, "tid": 1, "args": {"q": 1}},
        {"ph": "B", "name": "b", "ts": 2, "tid": 2}, {"ph": "B", "name": "c", "ts": 3, "tid": 1}, {"ph": "E", "ts": 4, "tid": 1},
        {"ph": "E", "ts": 8, "tid": 2},
    ))  # fmt: skip
    assert [(e.name, e.start_ns, e.end_ns) for e in t.events()] == [
        ("a", 1000, 9000),
        ("b", 2000, 8000),
        ("c", 3000, 4000),
    ]
    assert t.events()[0].args == {"q": 1, "r": 2}


def test_threads_are_named_as_the_file_does():
    names = [{"ph": "M", "name": "thread_name", "pid": 1, "tid": "s", "args": {"name": "stream 7 "}},
             {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}]  # fmt: skip
    one = read(chrome(*names, x(0, 1, pid=1, tid="s")))
    assert [one.thread_name(e.thread) for e in one.events()] == ["stream 7"]
    two = read(chrome(*names, x(0, 1, pid=1, tid="s"), x(0, 1, pid="other", tid=4)))
    assert sorted(two.thread_name(e.thread) for e in two.events()) == ["other: thread 4", "python 1: stream 7"]


def test_what_is_not_an_entry_is_left_out_and_extra_fields_are_fine():
    t = read(
        chrome({"ph": "i", "name": "mark", "ts": 1}, {"ph": "s", "id": 1, "ts": 1}, x(0, 1, sf=3), schemaVersion=1)
    )
    assert len(t) == 1
    assert len(read(b"[]")) == len(read(b'{"traceEvents": []}')) == len(read(b"")) == 0


def test_lists_without_an_object_around_are_chrome_too():
    assert len(read(json.dumps([x(0, 1), x(1, 2)]).encode())) == 2


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (chrome({"name": "a"}), "missing required field `ph` - at `$.traceEvents[0]`"),
        (chrome(x(0, 1, name=7)), "Expected `str`, got `int` - at `$.traceEvents[0].name`"),
        (chrome(x(0, "soon")), "at `$.traceEvents[0].dur`"),
        (json.dumps([x(0, "soon")]).encode(), "at `$[0].dur`"),
        (b'{"traceEvents": [\n{"ph": "X" "ts": 1}]}', "line 2, column 12"),
        (b'{"traceEvents": [{"ph": "X", "ts": 1', "stops short at byte 36, line 1, after"),
        (b'{"a": 1}', "this JSON is not a trace"),
        (b"[" * 100_000, ""),
        (b'{"traceEvents": [{"ph": "X", "name": "\xff"}]}', "UTF-8"),
        (b"main;load\n", "line 1 is not a stack and its weight: 'main;load'"),
        (b"a 1\nb x\n", "line 2"),
        (b"a 1" + b"0" * 50, "line 1 is not a stack"),
        (b"started\nstep 1\nstep 2\ndone\n", "line 1 is not a stack"),
        (b"\xff\xfe 1", "not UTF-8"),
        (b'{"entries": [{"step": 0}], "total_duration_us": 0, "metadata": {}}', "$.entries[0]"),
        (b'{"entries": []}', "missing required field `total_duration_us`"),
        (b'{"a": NaN}', "this JSON is not a trace"),
        (b'{"profiles": [NaN}', "byte 14), line 1, column 15"),
    ],
)  # fmt: skip
def test_broken_files_say_where(data, said, tmp_path):
    (tmp_path / "t.json").write_bytes(data)
    with pytest.raises(tl.FormatError) as caught:
        load(tmp_path / "t.json")
    assert said in caught.value.diagnostic.message
    assert "t.json" in caught.value.diagnostic.message


GOOD = b'{"ph": "X", "name": "a", "ts": 1661938466265032.123, "dur": 0.007}'


@pytest.mark.parametrize(
    ("data", "skipped"),
    [
        (b'{"traceEvents": [%s, {"ph": "X", "name": "b", "ts": NaN, "dur": 1}]}' % GOOD, {"without a time": 1}),
        (b'{"traceEvents": [{"ph": "X", "name": "b", "ts": 0, "dur": Infinity}, %s]}' % GOOD, {"without a duration": 1}),
        (b'{"traceEvents": [%s' % GOOD, {}),
        (b"[%s," % GOOD, {}),
        (b'[%s,\n{"ph": "X", "na' % GOOD, {"that are no events": 1}),
        (b'[{"ph": "X" "ts": 1}, {"ph": 3}, %s]' % GOOD, {"that are no events": 2}),
        (b'[{"ph": "B", "name": "never", "ts": 3}, %s]' % GOOD, {"that begin and never end": 1}),
        (b'[{"ph": "E", "ts": 3}, {"ph": "E", "ts": 1e300}, %s]' % GOOD,
         {"that end and never begin": 1, "with a time out of range": 1}),
        (b'[{"ph": "X", "name": "\xff", "ts": 1, "dur": 2}, %s]' % GOOD, {"that are no events": 1}),
        (b'[{"ph": "X", "ts": 1}, {"ph": "X", "ts": 1, "dur": -5}, {"ph": "X"}, %s]' % GOOD,
         {"without a duration": 2, "without a time": 1}),
        (b'{"traceEvents": [%s], 5, {"ph": "X"}, {"ph": "X"}]}' % GOOD, {"that are no events": 2}),
        (b'{"traceEvents": [%s]} {"traceEvents": [{"ph": "X"}]}' % GOOD, {"that are no events": 1}),
        (b'[%s, {"ph" "X"} {"ph": "X"} {"ph": "X"}' % GOOD, {"that are no events": 3}),
    ],
)  # fmt: skip
def test_what_can_be_read_is_read_and_the_rest_counted(data, skipped):
    trace = read(data)
    assert [(e.name, e.start_ns, e.duration_ns) for e in trace.events()] == [("a", 1_661_938_466_265_032_123, 7)]
    assert trace.skipped == skipped
    count = sum(skipped.values())
    assert (f"{count} event{'' if count == 1 else 's'} of the file skipped" in str(trace)) == bool(skipped)


@pytest.mark.parametrize(
    ("event", "skipped"),
    [
        (b'{"ph": "B", "name": "a", "ts": 1}', {"that begin and never end": 1}),
        (b'{"ph": "E", "ts": 1}', {"that end and never begin": 1}),
        (b'{"ph": "X", "name": "a", "ts": NaN, "dur": 1}', {"without a time": 1}),
        (b'{"ph": "X", "name": "a", "ts": 1}', {"without a duration": 1}),
        (b'{"ph": "X", "name": "a", "ts": 1, "dur": -1}', {"without a duration": 1}),
        (b'{"ph": "X", "name": "a", "ts": 1e300, "dur": 1}', {"with a time out of range": 1}),
    ],
)
@pytest.mark.parametrize("form", [b'{"traceEvents": [%s]}', b"[%s]", b"[%s"])
def test_a_file_of_which_all_events_were_skipped_is_an_empty_trace_that_says_so(event, skipped, form):
    trace = read(form % event)
    assert (len(trace), trace.skipped) == (0, skipped)
    assert str(trace).splitlines()[-1].endswith("0.000 ms: nothing in this trace can be read")
    counter = b'{"name": "q", "ph": "C", "ts": 1, "args": {"v": 1}}'
    trace = read(form % (event + b", " + counter))
    assert (len(trace), trace.skipped, [json.loads(e) for e in trace.chrome.others]) == (
        0,
        skipped,
        [json.loads(counter)],
    )
    assert str(trace).splitlines()[-1].endswith("only 1 event without a duration, such as counters")


def packed(text, cut):
    """Return text as gzip without its last bytes, or with other bytes there."""
    whole = gzip.compress(text, mtime=0)
    return whole[:cut] if isinstance(cut, int) else whole[: -len(cut)] + cut


@pytest.mark.parametrize(
    ("cut", "least", "damage"),
    [
        (-1, 1000, "its gzip data end early"),
        (-9, 990, "its gzip data end early"),
        (-500, 500, "its gzip data end early"),
        (b"\0" * 8, 1000, "its gzip data are broken: CRC check failed"),
        (b"\xff" * 900, 10, "its gzip data "),
    ],
)
def test_a_damaged_gzip_file_is_read_as_far_as_it_goes(tmp_path, cut, least, damage):
    text = chrome(*(x(n, 1, name=f"op{n}") for n in range(1000)))
    (tmp_path / "t.json.gz").write_bytes(packed(text, cut))
    found = load(tmp_path / "t.json.gz")
    assert [e.name for e in found.events()][:least] == [f"op{n}" for n in range(least)]
    assert len(found) <= 1000
    assert found.damage.startswith(damage)
    assert f", the file is damaged ({damage}" in str(found).splitlines()[-1]


def test_of_several_gzip_files_in_one_the_last_may_be_cut(tmp_path):
    text = chrome(*(x(n, 1) for n in range(1000)))
    parts = gzip.compress(text[:20_000]) + gzip.compress(text[20_000:])
    (tmp_path / "t.json.gz").write_bytes(parts)
    assert (len(load(tmp_path / "t.json.gz")), load(tmp_path / "t.json.gz").damage) == (1000, None)
    (tmp_path / "t.json.gz").write_bytes(parts[:-50])
    assert 200 < len(load(tmp_path / "t.json.gz")) < 1000


@pytest.mark.parametrize(
    ("form", "cut", "found"),
    [
        ("speedscope", -60, None),
        ("speedscope", -8, 300),
        ("rust", -60, None),
        ("rust", -8, 300),
        ("collapsed", -60, 200),
        ("collapsed", -8, 299),  # the last line may have lost digits
        ("chrome", 20, None),
        ("chrome", 5, None),
        ("collapsed", 20, None),
    ],
)
def test_a_cut_gzip_file_of_any_form_is_read_or_refused(tmp_path, form, cut, found):
    text = trace_files.write(tl.Trace([event(f"op{n:03}", n, n + 1) for n in range(300)]), form)
    (tmp_path / "t.gz").write_bytes(packed(text.encode(), cut))
    if found is None:
        with pytest.raises(
            tl.FormatError, match=r"t\.gz' is not whole, its gzip data end early; .*cannot be read: "
        ) as e:
            load(tmp_path / "t.gz")
        assert e.value.diagnostic.code == "E244"
    else:
        t = load(tmp_path / "t.gz")
        assert found <= len(t) <= 300
        assert {e.duration_ns for e in t.events()} == {1}
        assert t.damage == "its gzip data end early"


MISSING = "a ] is missing before its field 'schemaVersion'"


@pytest.mark.parametrize(
    ("text", "fields", "damage"),
    [
        ('{"displayTimeUnit": "ns", "traceEvents": [%s, {"ts": NaN}], "otherData": {"a": 1.50}}',
         {"displayTimeUnit": "ns", "otherData": {"a": 1.5}}, None),
        ('{"otherData": {"loss": NaN, "n": 1}, "a\\u00e9": 1, "traceEvents": [%s], "b": [2]}',
         {"otherData": {"loss": None, "n": 1}, "aé": 1, "b": [2]}, None),
        ('{"traceEvents": [{"ph":"X" "args":{"l":[{"a":1}, {"a":2}]}}, %s, {"ph":"X" "ts":1}], "b": [{"c":1}, {"c":2}]}',
         {"b": [{"c": 1}, {"c": 2}]}, None),
        ('{"a": {"b" 1, "c": "}"}, "d": 1, "traceEvents": [%s]}', {"d": 1}, "its field 'a' cannot be read"),
        ('{"a": {"b, "d": 1, "traceEvents": [%s], "e": 2}', {"e": 2}, "its field 'a' cannot be read"),
        ('{"a": 1, b: 2, "traceEvents": [%s], "e": 2}', {"a": 1, "e": 2}, "its JSON is broken between its fields"),
        ('{"a": 1, "traceEvents": [%s], "e": {"f": 2', {"a": 1}, "its field 'e' cannot be read"),
        ('{"a": 1, "traceEvents": [%s]', {"a": 1}, "its JSON stops short"),
        ('{"a": 1, "traceEvents": [%s, {"ph"', {"a": 1}, "its JSON stops short"),
        ('{"a": 1, "traceEvents": [%s]} {"ph": 1}', {"a": 1}, "more stands behind the end of its JSON"),
        ("[%s] ?", {}, "more stands behind the end of its JSON"),
        ("[%s,\n", {}, None),  # as Chrome itself writes
        ('{"a": 1, "traceEvents": [%s}', {"a": 1}, None),
        ('{"traceEvents": [%s, "schemaVersion": 1, "k": 2}', {"schemaVersion": 1, "k": 2}, MISSING),
        ('{"traceEvents": ["schemaVersion": 1, %s], "k": 2}', {"schemaVersion": 1, "k": 2}, MISSING),
        ('{"traceEvents": [%s "schemaVersion": {"b" 1}, "k": 2', {"k": 2}, MISSING),
        ('{"traceEvents": ["schemaVersion": 1, "traceEvents": [%s]}', {"schemaVersion": 1}, MISSING),
        ('{"a": 1e99999999999999999999, "traceEvents": [%s], "e": NaN}', {"e": None}, "its field 'a' cannot be read"),
        ('{"a": 1, "traceEvents": [%s, {"ph": "X", "ts": NaN, "dur": 1e99999999999999999999}]}', {"a": 1}, None),
    ],
)  # fmt: skip
def test_a_broken_place_leaves_the_other_fields(text, fields, damage):
    found = read((text % GOOD.decode()).encode())
    assert [e.name for e in found.events()] == ["a"]
    assert {name: json.loads(value) for name, value in found.chrome.fields.items()} == fields
    assert found.damage == damage


def test_fields_behind_events_without_a_bracket_are_kept(tmp_path):
    found = read(b'{"traceEvents":[{"ph":"X","ts":1,"dur":2},{"ph":"X","ts":3,"dur":2},"schemaVersion":1,"k":2}')
    assert (len(found), found.skipped, found.damage) == (2, {}, MISSING)
    found.save(tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert (len(again["traceEvents"]), again["schemaVersion"], again["k"]) == (2, 1, 2)


def test_nan_in_what_an_event_says_is_nothing():
    trace = read(b'[{"ph": "X", "name": "a", "ts": 0.5, "dur": 1, "args": {"loss": NaN, "n": 1.5}}]')
    assert [e.args for e in trace.events()] == [{"loss": None, "n": 1.5}]
    assert trace.skipped == {}


def test_a_trace_with_nothing_in_it_says_so():
    assert str(read(b"")).splitlines()[-1] == "0 steps, 0 spans, 0.000 ms: there is nothing in this trace"
    counters = chrome({"ph": "C", "name": "memory", "ts": 1, "args": {"b": 2}}, {"ph": "M", "name": "process_name"})
    assert str(read(counters)).splitlines()[-1].endswith(": only 2 events without a duration, such as counters")


def test_chrome_in_chrome_out_loses_nothing(tmp_path):
    others = [
        {"ph": "M", "name": "process_name", "pid": 7, "args": {"name": "python"}},
        {"ph": "M", "name": "thread_sort_index", "pid": 7, "tid": "s", "args": {"sort_index": 3}},
        {"ph": "s", "id": 5, "pid": 7, "tid": "s", "ts": 1.5, "cat": "ac2g", "name": "flow"},
        {"ph": "f", "id": 5, "pid": 0, "tid": 9, "ts": 2.5, "cat": "ac2g", "name": "flow", "bp": "e"},
        {"ph": "i", "s": "g", "name": "mark", "ts": 1, "pid": 7, "tid": "s"},
        {"ph": "C", "name": "memory", "ts": 1, "pid": 7, "args": {"bytes": 3}},
    ]
    timed = [x(0, 1.25, pid=7, tid="s", cat="cpu_op", args={"k": 1}), x(2, 1, pid=0, tid=9, cat="kernel", args={})]
    read(chrome(*others, *timed, schemaVersion=1, deviceProperties=[{"id": 0}])).save(tmp_path / "again.json")
    file = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert {k: v for k, v in file.items() if k != "traceEvents"} == {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0}],
    }
    assert sorted(file["traceEvents"], key=json.dumps) == sorted([*others, *timed], key=json.dumps)
    again = load(tmp_path / "again.json")
    again.save(tmp_path / "twice.json")
    assert (tmp_path / "twice.json").read_text(encoding="utf-8") == (tmp_path / "again.json").read_text(
        encoding="utf-8"
    )


def test_chrome_in_chrome_out_keeps_every_field(tmp_path):
    more = {"id": "0x5", "tts": 7, "tdur": 1.5, "cname": "good", "bind_id": 12345678901234567890, "flow_in": True}
    timed = [
        x(0, 1, args={}, cat="c", pid=1, tid=2, **more, flow_out=False, sf=3, stack=["f"], esf=4, estack=[]),
        x(2, 1, args={}, cat="c", pid=1, tid=2, id=5),
        x(4, 1, args={}, cat="c", pid=1, tid=2, **{'my "own"': {"a": [None, "é"]}}),
    ]
    loaded = read(chrome(*timed))
    assert loaded.skipped == {}
    loaded.save(tmp_path / "again.json")
    written = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))["traceEvents"]
    assert [e for e in written if e["ph"] == "X"] == timed


def test_begin_and_end_become_one_event_with_the_fields_of_both(tmp_path):
    place = {"cat": "c", "pid": 1, "tid": 2}
    begin = {"ph": "B", "name": "a", "ts": 1, **place, "args": {"n": 1}, "tts": 3, "sf": 1, "id": 9}
    end = {"ph": "E", "ts": 4, **place, "args": {"m": 2}, "tts": 5, "sf": 2, "cname": "bad"}
    read(chrome(begin, end)).save(tmp_path / "again.json")
    written = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))["traceEvents"]
    both = {"args": {"n": 1, "m": 2}, "tts": 3, "sf": 1, "esf": 2, "id": 9, "cname": "bad"}
    assert [e for e in written if e["ph"] == "X"] == [x(1, 3, **place, name="a") | both]


def test_text_that_is_no_utf8_in_a_field_that_is_only_kept_does_not_stop_writing():
    found = read(b'{"traceEvents": [%s], "otherData": "\xff"}' % GOOD)
    assert json.loads(trace_files.write(found, "chrome"))["otherData"] == "\ufffd"


@pytest.mark.parametrize(
    "data",
    [
        b'[{"ph"' + b"[" * 1_000_000,
        b'{"ph": {"a' + b'\\"' * 1_000_000,
        b'{"ph": 1' + b', "ph": x' * 100_000,
        b'{"traceEvents": [' + b'{"ph" [{"a"]}, ' * 100_000,
        b"a" + b" " * 1_000_000 + b"x",
        b" " * 1_000_000,
        b'{"ph":' + b" " * 1_000_000 + b"NaN",
        b'[{"ph": "X"},' + b" " * 1_000_000 + b"NaN",
        b'{"traceEvents"' + b" " * 1_000_000 + b'"ph"',
        b'[{"ph"' + b"}, " * 300_000,
        b'[{"ph": 1}' + b"}, {" * 100_000,
        b'[{"ph": 1}' + b"}, {}" * 100_000,
        b'[{"ph": 1}' + (b"]" + b" " * 1000) * 1000 + b"}",
        b"a;" * 500_000 + b"1",
    ],
)
def test_hostile_files_take_no_time(data):
    start = process_time()
    with contextlib.suppress(tl.FormatError):
        read(data)
    assert process_time() - start < 5


@pytest.mark.parametrize("text", ["NaN", "sNaN", "-Infinity", "1e999999999", "-1"])
@pytest.mark.parametrize("field", ["ts", "dur"])
def test_times_that_are_texts_of_no_numbers_are_skipped(field, text):
    trace = read(chrome(x(1, 2), {**x(3, 4), field: text}))
    assert [e.start_ns for e in trace.events()][-1:] == [1000]


def test_a_small_file_does_not_unpack_without_bound(tmp_path, monkeypatch):
    monkeypatch.setattr(trace_files, "UNPACKED", 1 << 16)
    (tmp_path / "bomb.json.gz").write_bytes(gzip.compress(b"[" + b" " * (1 << 24)))
    with pytest.raises(tl.FormatError, match=r"unpack to more than .* MiB") as caught:
        load(tmp_path / "bomb.json.gz")
    assert caught.value.diagnostic.code == "E253"


@pytest.mark.parametrize("name", ["{0}", "[unknown]", "{}", '{"a": 1}', "[{", "\\x7b", "[1"])
def test_names_that_begin_like_json_survive_collapsed_stacks(name, tmp_path):
    trace = tl.Trace([event(name, 0, 9), event(name, 2, 5)])
    trace.save(tmp_path / "t.collapsed")
    assert {r.name: r.self_ns for r in totals(load(tmp_path / "t.collapsed"))} == {name: 9}
    assert [e.name for e in read(b"[unknown];main 3\n{0};main 4").events()].count("main") == 2


def speedscope(*marks, unit="nanoseconds", kind="evented"):
    profile = {"type": kind, "name": "p", "unit": unit, "startValue": 0, "endValue": 9,
               "events": [{"type": t, "frame": f, "at": at} for t, f, at in marks]}  # fmt: skip
    return json.dumps({"shared": {"frames": [{"name": "a"}, {"name": "b"}]}, "profiles": [profile]}).encode()


def test_speedscope_units():
    t = read(speedscope(("O", 0, 0.5), ("C", 0, 2), unit="milliseconds"))
    assert facts(t) == [("a", 500_000, 2_000_000, "p")]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (speedscope(("P", 0, 1)), "Invalid enum value 'P' - at `$.profiles[0].events[0].type`"),
        (speedscope(("O", "a", 1)), "at `$.profiles[0].events[0].frame`"),
        (speedscope(unit="bytes"), "the unit 'bytes' is no time"),
        (speedscope(kind="sampled"), "only evented profiles are read"),
    ],
)
def test_broken_speedscope_says_where(data, said):
    with pytest.raises(tl.FormatError) as caught:
        read(data)
    assert said in caught.value.diagnostic.message


@pytest.mark.parametrize(
    ("marks", "skipped"),
    [
        ([("O", 1, 5)], {"that begin and never end": 1}),
        ([("C", 0, 5)], {"that end and never begin": 1}),
        ([("O", 5, 5), ("C", -1, 6)], {"of a frame that is not in the file": 2}),
        ([("O", 1, 3), ("C", 1, 5)], {"whose time goes back": 1, "that end and never begin": 1}),
        ([("O", 1, 5), ("C", 1, float("nan")), ("?", 0, 6)], {"without a time": 1, "that are no events": 1, "that begin and never end": 1}),
        ([("O", 1, 1e300)], {"with a time out of range": 1}),
    ],
)  # fmt: skip
def test_what_can_be_read_of_speedscope_is_read_and_the_rest_counted(marks, skipped):
    good = [("O", 0, 1), ("C", 0, 4)]
    trace = read(speedscope(*good, *marks))
    assert (facts(trace), trace.skipped) == ([("a", 1, 4, "p")], skipped)
    assert f", {sum(skipped.values())} event" in str(trace)
    assert len(read(speedscope(marks[0]))) == 0


def test_a_frame_that_is_never_closed_ends_with_what_is_around_it_in_no_time():
    trace = read(speedscope(("O", 0, 1), ("O", 1, 2), ("O", 1, 3), ("C", 1, 4), ("C", 0, 5)))
    assert (facts(trace), trace.skipped) == ([("a", 1, 5, "p"), ("b", 3, 4, "p")], {"that begin and never end": 1})
    trace = read(speedscope(*[("O", 0, n) for n in range(50_000)], *[("C", 1, 50_000)] * 50_000))
    assert trace.skipped == {"that end and never begin": 50_000, "that begin and never end": 50_000}


def rust(duration, **more):
    entry = {
        "step": 0,
        "operation": "a",
        "input_shapes": [],
        "output_shape": [2],
        "output_elements": 2,
        "memory_bytes": 8,
    }
    return json.dumps(entry | {"duration_us": duration} | more)


@pytest.mark.parametrize(
    ("broken", "skipped"),
    [
        (rust(float("nan")), {"without a duration": 1}),
        (rust(None), {"without a duration": 1}),
        (rust(-1), {"without a duration": 1}),
        (rust(1e300), {"with a time out of range": 1}),
        (rust(1, step=-1), {"that are no events": 1}),
        ("{}", {"that are no events": 1}),
    ],
)
@pytest.mark.parametrize("total", ["3.5", "NaN"])
def test_what_can_be_read_of_recorded_traces_is_read_and_the_rest_counted(broken, skipped, total):
    text = f'{{"entries": [{rust(1.5)}, {broken}, {rust(2)}], "total_duration_us": {total}, "metadata": {{}}}}'
    trace = read(text.encode())
    assert ([(e.start_ns, e.end_ns) for e in trace.events()], trace.skipped) == ([(0, 1500), (1500, 3500)], skipped)


@pytest.mark.parametrize(
    ("text", "skipped"),
    [("main;a 3\njunk\nmain;b 4\n", 1), ("main;a 3\nmain;b 4\nmain;c", 1), ("main;a 3\nmain;b 4\nmain;c 1e3\n", 1),
     ("main;a 3\nmain;b 4\nx 1" + "0" * 25 + "\n", 1), ("main;a 3\nmain;b 4", 0)],
)  # fmt: skip
def test_what_can_be_read_of_stacks_is_read_and_the_rest_counted(text, skipped):
    trace = read(text.encode())
    assert {r.name: r.self_ns for r in totals(trace)} == {"a": 3, "b": 4, "main": 0}
    assert trace.skipped == ({"that are no stacks": 1} if skipped else {})


@pytest.mark.parametrize("line", [b"main;\xe9 3\n", b"\xff\xfe\x00 12\n", b"main;b\xc3 4\n"])
def test_bytes_that_are_no_text_leave_the_other_stacks(line):
    trace = read("main;é 1\n".encode() + line + b"main;a 3\n")
    assert {r.name: r.self_ns for r in totals(trace)} == {"é": 1, "a": 3, "main": 0}
    assert trace.skipped == {"that are no stacks": 1}
    with pytest.raises(tl.FormatError, match="not UTF-8 text") as caught:
        read(line + line)
    assert caught.value.diagnostic.code == "E231"


def test_missing_and_cut_files(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(tl.FormatError, match="there is no file") as caught:
        load(tmp_path / "rum.json")
    assert "run.json" in caught.value.diagnostic.suggestions[0]
    whole = gzip.compress(chrome(*(x(n, 1, name=str(n)) for n in range(100))))
    (tmp_path / "cut.json.gz").write_bytes(whole[:-20])
    assert load(tmp_path / "cut.json.gz").damage == "its gzip data end early"
    with pytest.raises(tl.FormatError, match="cannot read"):
        load(tmp_path)


def test_many_names(tmp_path):
    save(tl.Trace([event(f"op{n}", n, n + 1) for n in range(100_000)]), tmp_path / "t.json")
    assert len(totals(load(tmp_path / "t.json"))) == 100_000


@real
@pytest.mark.parametrize("name", ["h100_bert_small", "mi300_vit"])
def test_kernel_sums_agree_with_another_tool(name):
    expected = defaultdict(lambda: [0.0, 0])
    with (REAL / f"{name}.kernel_summary.csv").open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            expected[row["Kernel name"]][0] += float(row["Kernel duration (µs)_sum"])
            expected[row["Kernel name"]][1] += int(row["Kernel duration (µs)_count"])
    found = {r.name: r for r in totals(load(REAL / f"{name}.json.gz"), kind="kernel")}
    assert len(expected) > 5
    for kernel, (total, count) in expected.items():
        if kernel.startswith("Memset"):
            continue  # of the category gpu_memset
        assert found[kernel].count == count
        assert found[kernel].total_ns == pytest.approx(total * 1000, abs=1)


@real
@pytest.mark.parametrize("path", sorted(REAL.glob("*.json*")), ids=lambda p: p.name)
def test_real_files_survive_every_form(path, tmp_path):
    t = load(path)
    raw = json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())["traceEvents"]
    complete = [e for e in raw if e.get("ph") == "X"]
    assert len(t) == len(complete) > 0
    sums = sum(e.duration_ns for e in t.events())
    assert sums == pytest.approx(sum(round(e["dur"] * 1000) for e in complete), abs=len(complete))
    t.save(tmp_path / "again.json")
    again = load(tmp_path / "again.json")
    assert sorted((e.name, e.start_ns, e.end_ns) for e in again.events()) == sorted(
        (e.name, e.start_ns, e.end_ns) for e in t.events()
    )
    assert t.to_recorded().step_count() == len(complete)
    t.save(tmp_path / "again.speedscope.json")
    assert len(load(tmp_path / "again.speedscope.json")) == len(complete)


@real
def test_a_real_file_adds_up_and_comes_back(tmp_path):
    t = load(REAL / "h100_bert_small.json.gz")
    events = t.events()
    length = max(e.end_ns for e in events) - min(e.start_ns for e in events)
    rows = totals(t)
    calls = next(r for r in rows if "_call_impl" in r.name)
    assert calls.total_ns <= length < calls.sum_ns, "calls inside of calls count once"
    assert len([r for r in rows if r.name == "ProfilerStep#6"]) == 2, "on the CPU and on the GPU"
    assert f" threads within {length / 1e6:.3f} ms" in str(t)
    t.save(tmp_path / "again.json")
    before = json.loads(gzip.decompress((REAL / "h100_bert_small.json.gz").read_bytes()))
    after = json.loads((tmp_path / "again.json").read_text(encoding="utf-8"))
    assert before.keys() == after.keys()
    places = [
        Counter((e["ph"], e.get("name"), str(e.get("pid")), str(e.get("tid"))) for e in file["traceEvents"])
        for file in (before, after)
    ]
    assert places[0] == places[1]


@real
def test_before_and_after():
    found = load(REAL / "kineto_before.json.gz").diff(load(REAL / "kineto_after.json.gz"))
    assert [abs(r.change_ns) for r in found.rows] == sorted((abs(r.change_ns) for r in found.rows), reverse=True)
    assert {r.state for r in found.rows} == {"both", "new", "gone"}


@pytest.mark.parametrize("name", ["a.xyz", "a.png", "a", "a.gz", "json"])
def test_a_name_that_says_no_form_is_refused(tmp_path, name):
    with pytest.raises(tl.FormatError, match="does not say what form the trace should have") as caught:
        tl.Trace().save(tmp_path / name)
    assert ".speedscope.json" in caught.value.diagnostic.suggestions[0]
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_says_why(tmp_path):
    with pytest.raises(tl.FormatError, match=r"cannot write '.*no.a\.json': No such file or directory\n") as caught:
        tl.Trace().save(tmp_path / "no" / "a.json")
    assert "folder" in caught.value.diagnostic.suggestions[0]
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(tl.FormatError, match="Is a directory"):
        tl.Trace().save(tmp_path / "folder.json")
    assert [p.name for p in tmp_path.iterdir()] == ["folder.json"]


def test_links_and_devices_stay_what_they_are(tmp_path):
    (tmp_path / "real.json").write_text("old")
    (tmp_path / "link.json").symlink_to(tmp_path / "real.json")
    tl.Trace().save(tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert "traceEvents" in (tmp_path / "real.json").read_text(encoding="utf-8")
    os.mkfifo(tmp_path / "pipe.json")
    with ThreadPoolExecutor() as pool:
        read = pool.submit((tmp_path / "pipe.json").read_text)
        tl.Trace().save(tmp_path / "pipe.json")
        assert "traceEvents" in read.result()
    assert (tmp_path / "pipe.json").is_fifo()


def test_every_event_that_can_be_read_is_read_and_every_other_counted():
    event = '{"ph":"X","name":"%s","ts":%d,"dur":2,"pid":1,"tid":2}'
    good = [event % (f"good{n}", n * 10) for n in range(300)]
    broken = [x for n, each in enumerate(good) for x in (each, *['{"ph":"X" "name":"broken"}'] * (n < 120))]
    found = read(f"[{','.join(broken)}]".encode())
    assert (len(found), found.skipped) == (300, {"that are no events": 120})
    half = '{"ph":"X","name":"\\ud800","ts":1,"dur":2}'
    found = read(f"[{good[0]},{half},{good[1]},{event.replace('%d', 'NaN') % 'x'}]".encode())
    assert [e.name for e in found.events()] == ["good0", "good1"]
    assert found.skipped == {"that are no events": 1, "without a time": 1}


@pytest.mark.parametrize("stray", ["}", "]", "} ", ", }", "\n]\n"])
@pytest.mark.parametrize("form", ['{"traceEvents": [%s], "b": 2}', "[%s]", "[%s,\n"])
def test_a_bracket_too_many_between_events_is_one_that_is_no_event(form, stray):
    first, *others = [json.dumps(x(10 * n, 2, name="a")) for n in range(1000)]
    found = read((form % ",".join([first + stray, *others])).encode())
    assert (len(found), found.skipped, found.damage) == (1000, {"that are no events": 1}, None)
    assert found.chrome.fields == ({"b": b"2"} if "b" in form else {})


@pytest.mark.parametrize(
    "broken",
    [
        '{"ph":"X","name":"lambda [{"a" }, ] }","ts":1,"dur":2}',
        '{"ph":"X","name":"never closed, "ts":1,"dur":2,"args":{"shapes":[[1,2],[3]]}}',
        '{"ph":"X","name":"C:\\Users","ts":1,"dur":2}',
        '{}}"ph":"X","name":"a","ts":1,"dur":2}',
        '{"ph":"X","name":"a"}}{',
    ],
)
def test_a_broken_event_takes_no_others_with_it(broken):
    names = [f"kernel {n}" for n in range(600)]
    names[500] = "a }, 4>"  # which closes the brackets of what looks like one long text to here
    events = [json.dumps(x(10 * n, 2, name=name, args={"dims": [[n, 2], []]})) for n, name in enumerate(names)]
    found = read(f'{{"a": 1, "traceEvents": [{",".join([*events[:300], broken, *events[300:]])}], "b": 2}}'.encode())
    assert len(found) >= 599  # the next one may be seen as a part of it
    assert {e.name for e in found.events()} <= set(names)
    assert 601 <= len(found) + sum(found.skipped.values()) <= 602
    assert (found.chrome.fields, found.damage) == ({"a": b"1", "b": b"2"}, None)


def test_many_broken_events_late_in_a_large_file_leave_all_others():
    good = json.dumps(x(1, 2, args={"stack": "frame " * 3000}))
    broken = '{"ph":"X","name":"say "hello" twice","ts":1,"dur":2}'
    found = read(f"[{','.join([good] * 900 + [good, broken] * 100)}]".encode())
    assert (len(found), found.skipped, found.damage) == (1000, {"that are no events": 100}, None)


def test_control_characters_in_texts_are_read_as_they_stand():
    found = read(b'{"traceEvents": [{"ph": "X", "name": "two\nlines\t\x01", "ts": 1, "dur": 2}], "a": "\r"}')
    assert [e.name for e in found.events()] == ["two\nlines\t\x01"]
    assert (found.skipped, found.damage, found.chrome.fields) == ({}, None, {"a": b'"\\r"'})


@pytest.mark.parametrize("cut", [40, 120, 1000, 5000])
def test_a_file_without_its_beginning_is_read_from_the_next_event_on(cut):
    whole = json.dumps({"traceEvents": [x(10 * n, 2, name=f"op{n}") for n in range(200)], "b": 2}).encode()
    found = read(whole[cut:])
    names = [e.name for e in found.events()]
    assert names == [f"op{n}" for n in range(200)][-len(names) :]
    assert len(names) == whole[cut:].split(b"}, {", 1)[1].count(b'"name"')
    assert (found.skipped, found.damage) == ({"that are no events": 1}, "its beginning is missing")
    assert found.chrome.fields == {"b": b"2"}
