"""Regressions of performance, on clocks that only move when a function under test says so."""

import json
import os
from html.parser import HTMLParser

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.testing import PerfCase, PerfRegression, PerfReport
from tensorlogic.testing.perf import LOOPS


class Clock:
    """A clock, and functions that take time on it."""

    def __init__(self):
        self.now = 0.0
        self.calls = 0

    def __call__(self):
        return self.now

    def takes(self, seconds, seed=None):
        """Return a function that takes so long; with a seed, 8% of noise and now and then three times as long."""
        rng = np.random.default_rng(seed)

        def function():
            self.calls += 1
            noise = 1.0 if seed is None else rng.lognormal(0, 0.08) * (3 if rng.random() < 0.1 else 1)
            self.now += seconds * noise

        return function


def kit(path, **options):
    clock = Clock()
    return clock, PerfRegression(path, clock=clock, **options)


def checked(path, before, after, **options):
    """Measure and save one function, measure another under its name, and return the case."""
    clock, perf = kit(path, **options)
    perf.measure("case", clock.takes(*before))
    perf.save()
    clock, perf = kit(path, **options)
    perf.measure("case", clock.takes(*after))
    return perf.check().cases[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "baselines.json"


def test_noise_is_not_a_regression(path):
    verdicts = [checked(path, (0.01, seed), (0.01, seed + 1000)).verdict for seed in range(60)]
    assert set(verdicts) <= {"ok", "unsure"}
    assert verdicts.count("ok") > 40


def test_a_slowdown_of_30_percent_is_found(path):
    verdicts = [checked(path, (0.01, seed), (0.013, seed + 1000)).verdict for seed in range(40)]
    assert verdicts.count("regression") >= 38
    assert set(verdicts) <= {"regression", "unsure"}


def test_an_improvement_is_found(path):
    case = checked(path, (0.02, 1), (0.01, 2))
    assert case.verdict == "improvement"
    assert case.ratio == pytest.approx(0.5, rel=0.1)
    assert case.interval[0] < case.ratio < case.interval[1]


@pytest.mark.parametrize(
    ("slower", "threshold", "verdict"),
    [(1.05, 1.10, "ok"), (1.2, 1.10, "regression"), (1.2, 1.30, "ok"), (0.8, 1.10, "improvement"), (0.95, 1.1, "ok")],
)
def test_the_threshold_decides(path, slower, threshold, verdict):
    assert checked(path, (0.01,), (0.01 * slower,), threshold=threshold).verdict == verdict


def test_few_repeats_tell_nothing(path):
    case = checked(path, (0.01,), (0.1,), repeats=5)
    assert (case.verdict, case.interval) == ("unsure", None)
    assert case.ratio == pytest.approx(10)


def test_warm_up_is_not_measured(path):
    clock, perf = kit(path, warmup=3, repeats=4)
    slow, fast = clock.takes(9.0), clock.takes(0.5)

    def function():
        (slow if clock.calls < 3 else fast)()

    assert perf.measure("case", function) == pytest.approx(500)
    assert clock.calls == 7


def test_a_short_function_is_called_more_often(path):
    clock, perf = kit(path, warmup=1, repeats=5)
    assert perf.measure("short", clock.takes(1e-4)) == pytest.approx(0.1)
    assert clock.calls == 1 + 5 * 10
    clock, perf = kit(path, warmup=1, repeats=5)
    assert perf.measure("nothing", clock.takes(0)) == 0
    assert clock.calls == 1 + 5 * LOOPS
    clock, perf = kit(path, warmup=0, repeats=5)
    perf.measure("cold", clock.takes(1e-4))
    assert clock.calls == 5


def test_measuring_again_adds(path):
    clock, perf = kit(path, repeats=3)
    perf.measure("case", clock.takes(1.0))
    perf.measure("case", clock.takes(2.0))
    assert perf.check().cases[0].now_ms == pytest.approx(1500)


def test_a_clock_that_goes_back_measures_nothing(path):
    times = iter(np.arange(1000.0)[::-1])
    perf = PerfRegression(path, clock=lambda: next(times), warmup=0, repeats=2)
    assert perf.measure("case", lambda: None) == 0


def test_cases_that_were_not_measured_keep_their_baseline(path):
    clock, perf = kit(path)
    perf.measure("a", clock.takes(0.01))
    perf.measure("ü; 漢字", clock.takes(0.01))
    assert [c.verdict for c in perf.check().cases] == ["new", "new"]
    perf.save()
    clock, perf = kit(path)
    perf.measure("b", clock.takes(0.02))
    report = perf.check()
    assert [(c.name, c.verdict) for c in report.cases] == [("b", "new")]
    assert report.warnings == ("baseline of a, ü; 漢字: not measured now",)
    perf.save()
    assert list(json.loads(path.read_text(encoding="utf-8"))["cases"]) == ["a", "b", "ü; 漢字"]
    assert os.listdir(path.parent) == [path.name]


def test_baselines_of_elsewhere_are_compared_with_a_warning(path):
    clock, perf = kit(path)
    perf.measure("case", clock.takes(0.01))
    perf.save()
    data = json.loads(path.read_text(encoding="utf-8"))
    data["cases"]["case"] |= {"machine": "abacus", "versions": {"numpy": "0.1"}}
    path.write_text(json.dumps(data))
    report = perf.check()
    assert report.cases[0].verdict == "ok"
    assert "another machine (abacus;" in report.warnings[0]
    assert "measured with numpy 0.1, now" in report.warnings[1]
    assert "warning: baseline of case: measured on another machine" in report.text()
    assert "another machine" in report.html()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "truncated"), ("not json", "malformed"), ("{}", "format"), ('{"format": "other", "cases": {}}', r"\$\.format"),
        ('{"format": "tensorlogic performance 1", "cases": {"a": {"times_ms": [], "machine": "", "versions": {}}}}', "times_ms"),
        ('{"format": "tensorlogic performance 1", "cases": {"a": {"times_ms": [-1], "machine": "", "versions": {}}}}', "times_ms"),
    ],
)  # fmt: skip
def test_a_file_that_is_corrupt_is_neither_believed_nor_overwritten(path, text, said):
    path.write_text(text)
    clock, perf = kit(path)
    perf.measure("case", clock.takes(0.01))
    for act in (perf.check, perf.save):
        with pytest.raises(tl.FormatError, match=rf"baselines\.json' is not a file of performance baselines: .*{said}"):
            act()
    assert path.read_text(encoding="utf-8") == text


def test_wrong_arguments(path):
    for options in ({"warmup": -1}, {"repeats": 0}, {"threshold": 0.9}):
        with pytest.raises(tl.InputError):
            PerfRegression(path, **options)
    perf = PerfRegression(path)
    for act in (perf.check, perf.save):
        with pytest.raises(tl.InputError, match="nothing was measured"):
            act()
    with pytest.raises(tl.InputError, match="a case has a name"):
        perf.measure("", print)
    with pytest.raises(tl.InputError, match="needs a function"):
        perf.measure("case", 3)
    with pytest.raises(ZeroDivisionError):
        perf.measure("case", lambda: 1 / 0)
    assert repr(perf).endswith("baselines.json', 0 cases measured>")
    assert not path.exists()


CASES = (
    PerfCase("layer", "ok", 1.01, 1.0, 1.01, (0.99, 1.03)),
    PerfCase("<b>closure</b> & 漢字", "regression", 13.0, 10.0, 1.3, (1.25, 1.36)),
    PerfCase("fast", "improvement", 0.5, 1.0, 0.5, (0.48, 0.52)),
    PerfCase("first", "new", 2.0),
    PerfCase("noisy", "unsure", 1.5, 1.0, 1.5, None),
)


def test_report(golden):
    report = PerfReport(CASES, ("baseline of <layer>: measured on another machine",))
    assert report.exit_code == 1
    golden("perf_report.txt", f"{report}\n")
    golden("perf_report.html", report.html())
    assert "&lt;b&gt;" in report._repr_html_()


def test_exit_code():
    assert PerfReport(CASES[:1] + CASES[2:]).exit_code == 0
    assert PerfReport(()).exit_code == 0


def test_html_needs_nothing_else_and_closes_what_it_opens():
    class Reader(HTMLParser):
        open, rows = [], 0

        def handle_starttag(self, tag, attrs):
            assert not {"src", "href"} & {name for name, _ in attrs}
            self.rows += tag == "tr"
            if tag != "meta":
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    reader = Reader()
    reader.feed(PerfReport(CASES).html())
    assert reader.open == []
    assert reader.rows == 1 + len(CASES)


def test_the_advice_for_a_broken_file_works(tmp_path):
    path = tmp_path / "baselines.json"
    path.write_text("{")
    perf = tl.PerfRegression(path, warmup=0, repeats=6)
    perf.measure("a", lambda: None)
    with pytest.raises(tl.FormatError) as caught:
        perf.save()
    assert "delete it and save again" in caught.value.diagnostic.suggestions[0]
    path.unlink()
    perf.save()
    assert perf.check().cases[0].ratio == 1


def test_a_file_that_cannot_be_read_is_named_once(tmp_path):
    with pytest.raises(tl.FormatError, match=r"cannot read '.*no\.json': No such file or directory\n"):
        tl.PerformanceBaseline.load(tmp_path / "no.json")


@pytest.mark.parametrize("given", [{"repeats": 0}, {"repeats": 2.5}, {"warmup": -1}, {"warmup": "3"}])
def test_counts_are_whole_numbers(tmp_path, given):
    with pytest.raises(
        tl.InputError,
        match=r"(warmup= must be a whole number of at least 0|repeats= must be a whole number of at least 1)",
    ):
        tl.PerfRegression(tmp_path / "b.json", **given)
