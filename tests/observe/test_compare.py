"""Comparisons: what is faster, what is slower, and what is only noise."""

import itertools
import json
import os

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.observe.performance import bootstrap_medians, ratio_interval


def profile(times, peak=1000, **ops):
    made = {n: tl.OpProfile(len(times), t, t, (t,)) for n, t in ops.items()}
    return tl.ProfileData(made, tuple(float(t) for t in times), peak)


def noisy(seed, ms=10.0, runs=30):
    """Run times with 8% of noise, and one in ten runs that something else held up."""
    rng = np.random.default_rng(seed)
    return ms * rng.lognormal(0, 0.08, runs) * np.where(rng.random(runs) < 0.1, 3, 1)


def compared(before, after, **options):
    return tl.PerformanceComparison(tl.PerformanceBaseline.from_profile(profile(before)), profile(after), **options)


@pytest.mark.parametrize("runs", [1, 2, 5, 6, 7, 100])
def test_identical_profiles(runs):
    times = noisy(0, runs=runs)
    found = compared(times, times)
    assert found.speedup == 1
    assert found.memory_reduction_pct == 0
    assert not found.is_regression
    assert not found.is_improvement
    if found.interval is not None:
        assert found.interval[0] <= 1 <= found.interval[1]


def test_noise_is_not_a_regression():
    verdicts = [compared(noisy(seed), noisy(seed + 10_000)).verdict for seed in range(150)]
    assert verdicts.count("regression") == verdicts.count("improvement") == 0


def test_what_is_slower_is_found():
    verdicts = [compared(noisy(seed), noisy(seed + 10_000, ms=13)).verdict for seed in range(100)]
    assert verdicts.count("regression") >= 98
    assert verdicts.count("improvement") == 0


def test_what_is_faster_is_found():
    found = compared(noisy(1, ms=20), noisy(2, ms=10))
    assert found.speedup == pytest.approx(2, rel=0.1)
    assert found.is_improvement
    low, high = found.interval
    assert 1.05 < low < found.speedup < high


@pytest.mark.parametrize("counts", [(5, 100), (100, 5), (1, 1)])
def test_few_runs_tell_nothing(counts):
    before, after = counts
    found = compared([10.0] * before, [20.0] * after)
    assert found.speedup == 0.5
    assert found.interval is None
    assert found.verdict == "unsure"
    assert f"too few runs to tell: {before} and {after}" in str(found)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [(100, 50, 50), (100, 100, 0), (100, 150, -50), (0, 0, 0), (0, 8, -np.inf), (100, 0, 100)],
)
def test_memory(before, after, said):
    found = tl.PerformanceComparison(profile([1.0], before), profile([1.0], after))
    assert found.memory_reduction_pct == said


def test_runs_without_any_time():
    assert compared([0.0] * 6, [0.0] * 6).speedup == 1
    assert compared([0.0] * 6, [0.0] * 6).interval == (1, 1)
    slower = compared([0.0] * 6, [1.0] * 6)
    assert (slower.speedup, slower.interval, slower.is_regression) == (0, (0, 0), True)
    assert compared([1.0] * 6, [0.0] * 6).is_improvement


def test_the_seed_decides():
    a, b = noisy(0), noisy(1)
    assert compared(a, b).interval == compared(a, b).interval
    assert compared(a, b, seed=1).interval != compared(a, b).interval
    narrow, wide = compared(a, b, confidence=0.5).interval, compared(a, b, confidence=0.99).interval
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


@pytest.mark.parametrize("n", [6, 7, 20, 21])
def test_bootstrap_is_that_of_drawing_and_sorting(n):
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=n)
    drawn = np.median(rng.choice(values, (20_000, n)), axis=1)
    made = np.concatenate([bootstrap_medians(values, rng) for _ in range(5)])
    quantiles = [0.025, 0.1, 0.5, 0.9, 0.975]
    np.testing.assert_allclose(np.quantile(made, quantiles), np.quantile(drawn, quantiles), rtol=0.06)
    assert made.mean() == pytest.approx(drawn.mean(), rel=0.02)


def test_the_interval_holds_the_truth_as_often_as_it_says():
    held = 0
    for seed in range(400):
        a, b = (np.random.default_rng([seed, n]).lognormal(0, 0.2, 25) for n in (0, 1))
        low, high = ratio_interval(a, b)
        held += low <= 1 <= high
    assert 0.92 <= held / 400 <= 0.99


def test_a_million_runs():
    many = np.random.default_rng(0).lognormal(0, 0.1, 1_000_000)
    low, high = ratio_interval(many * 2, many)
    assert 1.99 < low < high < 2.01


def test_save_and_load(tmp_path):
    baseline = tl.PerformanceBaseline.from_profile(profile([1.0, 2.0, 3.0], relu=3.0, exp=1.5))
    assert baseline.op_times_ms == {"relu": 1.0, "exp": 0.5}
    assert baseline.median_ms == 2
    for _ in range(2):  # over itself too
        baseline.save(tmp_path / "b.json")
    assert tl.PerformanceBaseline.load(tmp_path / "b.json") == baseline
    assert os.listdir(tmp_path) == ["b.json"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "truncated"), ("{}", "run_times_ms"), ('{"run_times_ms": [1, -2]}', r"\$\.run_times_ms\[1\]"),
        ('{"run_times_ms": [NaN]}', "malformed"), ('{"run_times_ms": [], "x": 1}', "x"),
    ],
)  # fmt: skip
def test_files_that_are_no_baseline(tmp_path, text, said):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(tl.FormatError, match=rf"bad\.json' is not a baseline: .*{said}"):
        tl.PerformanceBaseline.load(path)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(tl.FormatError, match="cannot read"):
        tl.PerformanceBaseline.load(tmp_path / "none.json")
    with pytest.raises(tl.FormatError, match="cannot write"):
        tl.PerformanceBaseline((1.0,)).save(tmp_path / "none" / "b.json")


def test_wrong_arguments():
    with pytest.raises(tl.InputError, match="the profile holds no runs"):
        tl.PerformanceComparison(profile([1.0]), tl.ProfileData())
    with pytest.raises(tl.InputError, match=r"the baseline is a ProfileData or a PerformanceBaseline, got \{\}"):
        tl.PerformanceComparison({}, profile([1.0]))
    for threshold in (0.9, float("nan"), float("inf")):
        with pytest.raises(tl.InputError, match="ratio of at least 1"):
            compared([1.0], [1.0], threshold=threshold)
    with pytest.raises(tl.InputError, match="between 0 and 1"):
        compared([1.0], [1.0], confidence=95)


def test_it_prints(golden):
    before = profile([8.0, 8.1, 7.9, 8.0, 8.2, 8.0], 4096, **{"einsum ij,jk->ik": 30.0, "relu": 18.0})
    after = profile([4.0, 4.1, 3.9, 4.0, 4.2, 4.0], 1024, **{"einsum ij,jk->ik": 20.0, "<漢字>": 4.2})
    found = tl.PerformanceComparison(before, after)
    golden("comparison.txt", f"{found}\n")
    assert repr(found) == "<PerformanceComparison speedup 2.00x: improvement>"
    assert "&lt;漢字&gt;" in found._repr_html_()


def test_what_is_said_of_each_verdict():
    wide = np.linspace(5, 15, 8)
    said = {
        "faster": ([10.0] * 6, [5.0] * 6), "slower": ([5.0] * 6, [10.0] * 6),
        "not slower by more than 1.05x": ([10.0] * 6, [10.1] * 6), "too noisy": (wide, wide),
    }  # fmt: skip
    for words, (before, after) in said.items():
        assert words in str(compared(before, after))
    assert len({str(compared(a, b)) for a, b in itertools.chain(said.values())}) == 4


def test_other_machines_are_named(tmp_path):
    path = tmp_path / "b.json"
    tl.PerformanceBaseline.from_profile(profile([1.0])).save(path)
    data = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**data, "machine": "abacus"}))
    found = tl.PerformanceComparison(tl.PerformanceBaseline.load(path), profile([1.0]))
    assert "different machines: 'abacus'" in str(found)


@pytest.mark.parametrize("took", [-1.0, float("nan"), float("inf")])
def test_times_that_are_none_are_refused(took):
    good = tl.ProfileData(run_times_ms=(1.0,) * 6)
    with pytest.raises(tl.InputError, match=f"run 1 of the baseline took {took} ms"):
        tl.PerformanceComparison(tl.ProfileData(run_times_ms=(1.0, took)), good)
    with pytest.raises(tl.InputError, match=f"run 1 of the profile took {took} ms"):
        tl.PerformanceComparison(good, tl.ProfileData(run_times_ms=(1.0, took)))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (64, 64, "64 B now"), (0, 0, "0 B now"), (0, 64, "64 B now"), (100, 75, "75 B now: 25.0% less"),
        (50, 75, "75 B now: 50.0% more"),
    ],
)  # fmt: skip
def test_memory_is_said_in_words(before, after, said):
    old, new = (tl.ProfileData(run_times_ms=(1.0,) * 6, peak_memory_bytes=size) for size in (before, after))
    assert str(tl.PerformanceComparison(old, new)).endswith(said)
