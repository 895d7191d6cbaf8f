"""Profiles and timelines, as the seed's README shows them."""

import numpy as np
import pytest

import tensorlogic as tl


def profile_of(executor, graph, inputs, calls=3):
    executor.enable_profiling()
    for _ in range(calls):
        executor.execute(graph, inputs)
    executor.disable_profiling()
    return executor.get_profile_data()


def test_tl_profiled_executor(executor, layer, inputs):
    profile = profile_of(executor, layer, inputs)
    assert isinstance(executor, tl.TlProfiledExecutor)
    assert isinstance(profile, tl.ProfileData)
    assert any("einsum" in op_name for op_name in profile.op_profiles)
    for stats in profile.op_profiles.values():
        assert stats.count == 3
        assert stats.avg_time_ms > 0

    executor.execute(layer, inputs)  # nobody is looking
    assert {stats.count for stats in executor.get_profile_data().op_profiles.values()} == {3}


def test_timeline_profiler(layer, inputs, relu_of):
    profiler = tl.TimelineProfiler()
    hook = tl.ProfilerHook(profiler)

    # attach to context
    context = tl.ExecutionContext()
    context.add_hook(hook)

    # execute
    outputs = tl.Executor(context=context).execute(layer, inputs)
    np.testing.assert_allclose(outputs["y"], relu_of(inputs))

    # analyze timeline
    entries = profiler.entries()
    assert any("einsum" in entry.name for entry in entries)
    assert all(entry.duration_ms >= 0 for entry in entries)


def test_bottleneck_analyzer(executor):
    analyzer = tl.BottleneckAnalyzer()
    b = tl.GraphBuilder()
    x = b.input("x", ("n", "n"))
    graph = b.build(y=b.sum(b.einsum("ij,jk->ik", x, x), axis=0))
    profile_data = profile_of(executor, graph, {"x": np.ones((600, 600))})
    report = analyzer.analyze(profile_data)

    worst = report.bottlenecks[0]
    assert "einsum" in worst.operation
    assert 50 < worst.percentage <= 100
    assert sum(bottleneck.percentage for bottleneck in report.bottlenecks) <= 100.001
    assert all(str(rec) for rec in report.recommendations)


def test_performance_comparison(executor, layer, make_inputs):
    from tensorlogic import PerformanceBaseline, PerformanceComparison

    profile1 = profile_of(executor, layer, make_inputs(rows=200_000))
    profile2 = profile_of(tl.Executor(), layer, make_inputs(rows=16))
    baseline = PerformanceBaseline.from_profile(profile1)
    comparison = PerformanceComparison(baseline, profile2)
    assert comparison.speedup > 1
    assert 0 < comparison.memory_reduction_pct <= 100

    same = PerformanceComparison(baseline, profile1)
    assert same.speedup == pytest.approx(1)
    assert same.memory_reduction_pct == pytest.approx(0)


def test_perf_regression(executor, layer, inputs, tmp_path):
    perf = tl.PerfRegression(tmp_path / "baselines.json", warmup=1, repeats=6)
    perf.measure("layer", lambda: executor.execute(layer, inputs))
    assert perf.check().cases[0].verdict == "new"
    perf.save()
    report = perf.check()
    assert report.cases[0].ratio == 1
    assert report.exit_code == 0
