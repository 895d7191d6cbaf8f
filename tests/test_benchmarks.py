"""The benchmarks' own logic: what is timed, compared, left out, saved and drawn. Nothing here looks at a real clock."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

import tensorlogic as tl

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def bench(monkeypatch, tmp_path):
    """The modules of benchmarks/, with a clock that only contenders move and results in a folder of the test's."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("harness", "models", "plots", "small"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import harness
    import models
    import plots
    import small

    now = [0.0]

    def move(seconds):
        now[0] += seconds

    monkeypatch.setattr(harness, "perf_counter", lambda: now[0])
    monkeypatch.setattr(harness, "sleep", move)
    monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(harness, "machine", lambda: "a machine")
    yield SimpleNamespace(harness=harness, models=models, plots=plots, small=small, move=move)
    for name in ("harness", "models", "plots", "small"):
        sys.modules.pop(name, None)


def taking(bench, *seconds, answer=1.0):
    """A contender that takes so long, call after call; the last again and again."""
    left = list(seconds)

    def call():
        bench.move(left.pop(0) if len(left) > 1 else left[0])
        return answer

    return call


def test_best_and_median_come_from_interleaved_rounds(bench):
    order = []
    contenders = {
        name: (lambda name=name, call=taking(bench, *times): (order.append(name), call()))
        for name, times in {"a": (9, 1, 2, 3), "b": (9, 6, 4, 5)}.items()
    }
    table = bench.harness.contest("title", "note", contenders, rounds=3, calls=1)
    assert order == ["a", "b"] * 4  # once to warm up, then in turn
    assert [(t.best, t.median, t.times) for t in table.timings] == [(1, 2, (1, 2, 3)), (4, 5, (6, 4, 5))]
    assert [row[3:] for row in table.rows()] == [["1.00", "1.00"], ["4.00", "2.50"]]  # no peers, no limit: no columns


def test_short_calls_are_repeated_within_a_round(bench):
    table = bench.harness.contest("title", "note", {"a": taking(bench, 1 / 1024)}, rounds=2)
    assert table.timings[0].best == 1 / 1024
    calls = []
    bench.harness.contest("t", "n", {"a": lambda: (calls.append(1), bench.move(1 / 1024))}, rounds=2)
    assert len(calls) == 2 + 2 * 20


def test_a_pause_is_not_timed_and_is_followed_by_an_untimed_call(bench):
    table = bench.harness.contest("t", "n", {"a": taking(bench, 5, 7, 1, 7, 1)}, rounds=2, calls=1, pause=100)
    assert table.timings[0].times == (1, 1)


def test_with_each_a_round_counts_as_its_fastest_call(bench):
    found = bench.harness.contest("t", "n", {"a": taking(bench, 9, 3, 2, 8, 5)}, rounds=2, calls=2, each=True)
    assert found.timings[0].times == (2, 5)


def table(bench, **more):
    h = bench.harness
    contenders = {
        "peer": taking(bench, 2), "quick peer": taking(bench, 1), "ours": taking(bench, 1.5),
        "absent": h.peer("tensorlogic_no_such_package", lambda: taking(bench, 1)),
    }  # fmt: skip
    return h.contest("A title", "A note.", contenders, rounds=3, calls=1, **more)


def test_rows_are_set_beside_the_best_peer_and_the_limit(bench, golden):
    limits = iter([0.5, 0.25, 0.5])
    found = table(bench, ours=("ours",), limit=lambda: next(limits))
    assert found.limit == 0.25  # the best that was seen counts
    assert found.best_peer().name == "quick peer"
    assert [row[5:] for row in found.rows()] == [["2.00", "8.00"], ["1.00", "4.00"], ["1.50", "6.00"], ["–", "–"]]
    assert {len(row) for row in found.rows()} == {len(found.header())}
    golden("benchmarks_table.md", found.markdown())


def test_a_package_that_is_absent_is_said_in_a_word(bench):
    found = table(bench)
    assert found.skipped == (("absent", "tensorlogic_no_such_package is not installed"),)
    assert found.rows()[-1] == ["absent", "tensorlogic_no_such_package is not installed", "–", "–", "–"]
    assert bench.harness.peer("json math", lambda: list) is list
    with pytest.raises(ValueError, match="nobody takes part: x is not installed"):
        bench.harness.contest("t", "n", {"a": "x is not installed"})


def test_an_error_inside_a_peer_that_is_installed_is_not_hidden(bench):
    def broken():
        raise ImportError("half of it is missing")

    with pytest.raises(ImportError, match="half of it"):
        bench.harness.peer("json", broken)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.array([1.0, 2.1]), "b is 0.1 away from a"),
        (np.array([1.0, np.nan]), "b is nan away"),
        (np.ones(3), r"b answers \(3,\)"),
    ],
)
def test_answers_that_differ_are_not_timed(bench, answer, message):
    contenders = {"a": taking(bench, 1, answer=np.array([1.0, 2.0])), "b": taking(bench, 1, answer=answer)}
    with pytest.raises(ValueError, match=message):
        bench.harness.contest("t", "n", contenders, agree=1e-3)
    contenders["b"] = taking(bench, 1, answer=np.array([1.0, 2.001]))
    assert len(bench.harness.contest("t", "n", contenders, agree=1e-3, rounds=1).timings) == 2


def test_the_limit_is_the_longer_of_arithmetic_and_reading(bench, monkeypatch):
    def took(rows, inner, columns):  # 1 GFLOP/s and 1 GB/s
        return 2 * rows * inner * columns / 1e9 if columns > 1 else 4 * rows * inner / 1e9

    monkeypatch.setattr(bench.harness, "_product_seconds", took)
    least = bench.harness.least_seconds
    assert least(3e9, 1e6) == pytest.approx(3)
    assert least(1e6, 4e9) == pytest.approx(4)
    assert least(0, 1000) == pytest.approx(1e-6) and least(0, 0) == 0


def test_json_keeps_everything(bench):
    found = [table(bench, ours=("ours",), limit=lambda: 0.5), table(bench)]
    bench.harness.write("some", found)
    path = bench.harness.RESULTS / "some.json"
    assert bench.harness.read(path) == found
    assert '"times": [ 2.0, 2.0, 2.0 ]' in path.read_text(encoding="utf-8")


def test_results_without_rounds_are_read(bench, tmp_path):
    path = tmp_path / "old.json"
    path.write_text('{"tables": [{"title": "t", "note": "", "timings": [{"name": "a", "best": 1, "median": 2}]}]}')
    assert bench.harness.read(path) == [bench.harness.Table("t", "", (bench.harness.Timing("a", 1, 2),))]


# drawing


def test_a_plot_is_svg_with_a_line_for_each_series(bench):
    text = bench.plots.svg(
        "a < b & c", {"NumPy": [(10, 1e-3), (100, 1e-1)], "ours": [(10, 1e-4), (100, 1e-3)]}, "n", "time"
    )
    root = ElementTree.fromstring(text)
    assert root.find(f"{SVG}title").text == "a < b & c"
    lines = [[tuple(map(float, p.split(","))) for p in x.get("points").split()] for x in root.iter(f"{SVG}polyline")]
    (low, high), (under, _) = lines
    assert low[0] < high[0] and low[1] > high[1] and under[1] > low[1]  # to the right is more, down is faster
    words = [x.text for x in root.iter(f"{SVG}text")]
    assert {"NumPy", "ours", "n", "time", "10", "100", "1 ms", "10 ms"} <= set(words)


def test_equal_steps_of_a_factor_are_equal_steps_on_paper(bench):
    root = ElementTree.fromstring(bench.plots.svg("t", {"a": [(n, n / 1e6) for n in (1, 10, 100)]}, "n", "time"))
    points = [tuple(map(float, p.split(","))) for p in next(root.iter(f"{SVG}polyline")).get("points").split()]
    steps = np.diff(np.array(points), axis=0)
    np.testing.assert_allclose(steps[0], steps[1], atol=0.2)


@pytest.mark.parametrize("points", [[], [(0, 1)], [(1, 0)], [(1, -1)], [(1, float("nan"))], [(1, float("inf"))]])
def test_what_has_no_logarithm_is_not_drawn(bench, points):
    with pytest.raises(ValueError, match="a title: "):
        bench.plots.svg("a title", {"a": points}, "n", "time")


def test_one_point_and_many_equal_lines_are_drawn(bench):
    bench.plots.svg("t", {"a": [(5, 1)]}, "n", "time")
    root = ElementTree.fromstring(bench.plots.svg("t", {f"line {n}": [(1, 1), (2, 1)] for n in range(12)}, "n", "time"))
    heights = [float(x.get("y")) for x in root.iter(f"{SVG}text") if x.text.startswith("line ")]
    assert len(heights) == 12 and min(np.diff(sorted(heights))) >= 14  # no label covers another


def test_plots_are_made_of_the_tables_whose_titles_match(bench, tmp_path):
    h = bench.harness
    tables = [
        h.Table(f"Graph of {n:,} nodes", "", (h.Timing("plan", n / 1e3, 1), h.Timing("run", 1, 1)))
        for n in (2000, 1000)
    ]
    h.write("scaling", [*tables, h.Table("Another", "", (h.Timing("plan", 1, 1),))])
    assert bench.plots.series(tables, r"of ([\d,]+) nodes")["plan"] == [(1000, 1), (2000, 2)]
    made = bench.plots.draw(tmp_path / "plots", h.RESULTS)
    assert made == {"scaling": [("Whole graphs: time by nodes", tmp_path / "plots" / "nodes.svg")]}
    ElementTree.parse(tmp_path / "plots" / "nodes.svg")


@pytest.mark.parametrize(("low", "high", "expected"), [(1, 100, [1, 10, 100]), (1, 6, [1, 2, 5]), (3, 6, [3, 4, 5, 6])])
def test_ticks_are_round_numbers(bench, low, high, expected):
    assert bench.plots.ticks(low, high) == expected


# the models


@pytest.mark.parametrize("row", ["mlp1", "mlp64", "block", "block_tanh", "fuzzy", "fuzzy_sigmoid"])
def test_by_hand_and_executor_agree(bench, monkeypatch, row):
    m = bench.models
    for name, value in {"CELLS": 100, "BATCH": 2, "LENGTH": 6, "WIDTHS": (12, 8, 3)}.items():
        monkeypatch.setattr(m, name, value)
    monkeypatch.setattr(m, "peer", lambda packages, make: "left out of this test")
    case = m.ROWS[row]()
    answers = {name: call() for name, call in case.peers.items() if not isinstance(call, str)}
    assert answers
    answers[m.OURS] = tl.Executor().execute(case.graph, case.inputs)[0]
    bench.harness.compare(case.title, answers, 1e-4)


def test_a_library_in_c_leaves_the_processor_as_it_was(bench):
    library = bench.harness.in_c("double f(double x) { return x + 1; }", "-ffast-math")
    if isinstance(library, str):
        pytest.skip(library)
    small = np.array([2.0**-1074]) * 1.0
    assert small.view("int64").tolist() == [
        1
    ]  # its bits: a processor that takes it for zero finds it equal to zero too


def test_where_the_time_goes_adds_up(bench):
    text = bench.models.steps(bench.models.mlp(1), runs=2)
    assert text.startswith("MLP 784-512-256-10, batch 1: ")
    assert all(f" {k}" in text for k in ("einsum", "relu", "add", "(around the steps"))


def test_an_unknown_row_is_named(bench):
    with pytest.raises(SystemExit, match="no row mlp2; there are: mlp1, mlp64"):
        bench.models.main(["mlp2"])


def test_small_layers_agree(bench):
    by_hand, executed = bench.small.layers(3)
    bench.harness.compare("layers", {"by hand": by_hand(), "executor": executed()}, 1e-4)
    by_hand, executed = bench.small.formula()
    bench.harness.compare("formula", {"by hand": by_hand(), "executor": executed()}, 1e-5)


def test_every_job_at_a_glance_has_its_result(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import glance

    lines = [line for line in glance.markdown().splitlines() if line.startswith("| ")]
    assert len(lines) == len(glance.JOBS) + 2  # with the head and its rule
    for name in ("glance", "harness"):
        sys.modules.pop(name, None)


def test_two_trees_take_turns_and_their_rows_become_a_table(bench, monkeypatch, tmp_path):
    """Two trees with a harness and a benchmark of their own: the shared rows are timed, peers and other titles are not."""
    import beside

    harness = "def Timing(*x): return x\ndef Table(*x): return x\ndef contest(*x, **y): raise AssertionError\n"
    for name, other in (("old", "only old"), ("new", "only new")):
        folder = tmp_path / name / "benchmarks"
        (folder / "results").mkdir(parents=True)
        (folder / "harness.py").write_text(harness)
        code = "from harness import contest\ndef tables():\n"
        for title in (other, "shared"):
            code += (
                f"    contest({title!r}, '', {{'NumPy by hand': int, 'ours': list, {name!r}: int, 'absent': 'no'}})\n"
            )
        (folder / "toy.py").write_text(code)
        (folder / "results" / "toy.json").write_text(f'{{"tables": [{{"title": "{other}"}}, {{"title": "shared"}}]}}')
    monkeypatch.setattr(beside, "SECONDS", 0.0)
    found = beside.beside(tmp_path / "old", tmp_path / "new", "toy", "")
    assert list(found) == ["shared: ours"] and all(t > 0 for t in found["shared: ours"])
    monkeypatch.setattr(beside, "KEPT", tmp_path / "kept.json")
    assert beside.markdown() == ""
    (tmp_path / "kept.json").write_text('{"toy": {"a: x": [1.0, 1.02, 1.0, 1.0], "a: y": [1.0, 2.0, 1.0, 3.0]}}')
    assert "1 of 2 rows" in beside.markdown() and "| a: y | 2.00 | 3.00 |\n| a: x | 1.02 | 1.00 |" in beside.markdown()
