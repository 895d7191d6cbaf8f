"""Bottlenecks on a machine whose speeds are known, and advice that holds."""

import json

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.backends.contract import COMBINE
from tensorlogic.ir.algebra import ALGEBRAS
from tensorlogic.observe.bottleneck import LIKE_BOOLEAN

M = tl.Machine(flops32=200e9, flops64=100e9, bandwidth=10e9, call=1e-6)


def op(ms, *, count=10, flops=0, moved=0, dtype="float32", kernel="map", total=None):
    return tl.OpProfile(
        count, ms if total is None else total, ms, (ms / count,), moved_bytes=moved, flops=flops, dtype=dtype, kernel=kernel
    )  # fmt: skip


def analyzed(least=1.0, **ops):
    return tl.BottleneckAnalyzer(M, least=least).analyze(tl.ProfileData(ops, (0.1,) * 10))


@pytest.mark.parametrize(
    ("one", "bound", "fraction"),
    [
        (op(10, flops=10**9), "compute", 0.5),
        (op(10, flops=10**9, dtype="float64"), "compute", 1.0),
        (op(10, moved=5 * 10**7), "memory", 0.5),
        (op(10, moved=2 * 10**8), "memory", 2.0),  # in a cache
        (op(10, moved=5 * 10**7, flops=10**9), "compute", 0.5),
        (op(0.02, moved=1000), "overhead", 0.005),
        (op(0.1, moved=200_000), "overhead", 0.2),  # more than one call, but it may be a few of them
        (op(100, moved=200_000), "memory", 0.0002),  # no number of small calls takes so long
        (op(10, kernel="loop"), "overhead", 0.0),
        (op(1, kernel="view"), "overhead", 0.0),
    ],
)
def test_bounds(one, bound, fraction):
    (found,) = analyzed(x=one).bottlenecks
    assert found.bound == bound
    assert found.fraction == pytest.approx(fraction)
    assert found.percentage == 100
    assert found.calls == one.count


def test_shares_never_exceed_the_whole():
    report = analyzed(fixpoint=op(4, total=10, kernel="loop"), einsum=op(6, flops=10**9), idle=op(0), tiny=op(0.001))
    assert [b.operation for b in report.bottlenecks] == ["einsum", "fixpoint"]
    assert sum(b.percentage for b in report.bottlenecks) <= 100
    assert report.bottlenecks[0].total_time_ms == 6
    assert [b.operation for b in analyzed(least=50, a=op(1), b=op(3)).bottlenecks] == ["b"]


def test_nothing():
    for profile in (tl.ProfileData(), tl.ProfileData({"idle": op(0)})):
        report = tl.BottleneckAnalyzer(M).analyze(profile)
        assert report.bottlenecks == report.recommendations == ()
        assert str(report) == "nothing takes any time"


def test_float64():
    advice = analyzed(
        a=op(10, flops=10**9, dtype="float64", kernel="matmul"), b=op(10, moved=10**8, dtype="float64"),
        c=op(10, flops=10**9, dtype="float64", kernel="blocks"), d=op(1, moved=10**7, dtype="float64"),
    ).recommendations  # fmt: skip
    assert len(advice) == 2, "nothing is known of c, and d is not worth a word"
    assert "a computes in float64" in advice[0]
    assert "2.0 times as fast" in advice[0]
    assert "b computes in float64" in advice[1]
    assert "half the bytes" in advice[1]


def test_a_machine_as_fast_in_float64_gets_no_advice():
    even = tl.BottleneckAnalyzer(tl.Machine(100e9, 100e9, 10e9, 1e-6))
    profile = tl.ProfileData({"a": op(10, flops=10**9, dtype="float64", kernel="matmul")})
    assert even.analyze(profile).recommendations == ()


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (op(100, flops=10**9, dtype="int64", kernel="matmul"), "without BLAS, at 10%"),
        (op(10, flops=10**9, dtype="float16", kernel="matmul"), "converts float16"),
        (op(10, flops=10**9, dtype="int64", kernel="map"), None),
        (op(10, flops=10**9, dtype="float32", kernel="matmul"), None),
        (op(10, moved=10**8, dtype="bool"), None),
    ],
)
def test_dtypes(one, said):
    advice = analyzed(einsum=one).recommendations
    assert advice == () if said is None else said in advice[0]


def test_fuzzy_contractions():
    advice = analyzed(**{"einsum ij,jk->ik (max_min)": op(10, flops=10**7, kernel="blocks")}).recommendations
    assert 'strategy="hard_boolean"' in advice[0]
    assert analyzed(**{"einsum ij,jk->ik (min_plus)": op(10, flops=10**7, kernel="blocks")}).recommendations == ()


@pytest.mark.parametrize("name", sorted(LIKE_BOOLEAN))
def test_advice_holds_boolean_answers_the_same_for_truth_values(name):
    assert "hard_boolean" in tl.STRATEGIES
    assert ALGEBRAS[name].combine in COMBINE
    rng = np.random.default_rng(0)
    x, y = ((rng.random((7, 7)) < 0.3).astype(float) for _ in range(2))

    def contracted(algebra):
        b = tl.GraphBuilder()
        graph = b.build(z=b.einsum("ij,jk->ik", b.input("x", (7, 7)), b.input("y", (7, 7)), algebra=algebra))
        return tl.Executor().plan(graph), tl.Executor().execute(graph, {"x": x, "y": y})["z"]

    plan, boolean = contracted("boolean")
    assert plan.steps[0].kernel == "matmul"
    slow, fuzzy = contracted(name)
    assert slow.steps[0].kernel == "blocks"
    np.testing.assert_array_equal(fuzzy != 0, boolean)


def test_calls():
    calls = op(1, count=500, moved=50_000)
    _, advice = analyzed(relu=calls, exp=calls, add=calls, tanh=calls).recommendations
    assert "100% of the time is the cost of calls" in advice
    assert "more rows" in advice
    assert advice.count(",") >= 4
    assert analyzed(relu=calls, einsum=op(10, flops=10**9)).recommendations == ()
    assert analyzed(fixpoint=op(1, kernel="loop"), transpose=op(1, kernel="view")).recommendations == ()


def test_chains_of_small_steps_are_to_be_compiled():
    steps = {
        "relu": op(5, moved=4 * 10**7),
        "add": op(5, moved=4 * 10**7),
        "einsum": op(2, flops=10**8, kernel="matmul"),
    }
    (advice,) = analyzed(**steps).recommendations
    assert advice.startswith("83% of the time goes to element-wise steps (relu, add), which compiling makes one: ")
    assert analyzed(relu=op(5, moved=4 * 10**7)).recommendations == (), "one step is one already"
    b = tl.GraphBuilder()
    x = b.input("x", (64,))
    y = b.exp(x)
    for _ in range(8):  # so many that one step is quicker on any machine, however busy
        y = b.relu(y * 0.5) + 1.0
    graph = b.build(y=y)
    ex = tl.Executor()
    ex.enable_profiling()
    for _ in range(20):
        ex.execute(graph, {"x": np.ones(64)})
    (advice, *_) = tl.BottleneckAnalyzer(M).analyze(ex.get_profile_data()).recommendations
    config = tl.CompilationConfig(optimization_level=tl.OptimizationLevel.AGGRESSIVE)
    assert "compile_graph(graph, CompilationConfig(optimization_level=OptimizationLevel.AGGRESSIVE))" in advice
    assert len(ex.compile_graph(graph, config).plan().steps) == 1 < len(ex.plan(graph).steps)


def test_a_scan_is_to_be_compiled():
    b = tl.GraphBuilder()
    rows = b.input("rows", (300, 4))
    graph = b.build(y=b.scan(lambda c, r: (b.tanh(c * 0.5 + r), b.sum(c)), np.zeros(4), rows)[1])
    ex = tl.Executor()
    ex.enable_profiling()
    ex.execute(graph, {"rows": np.ones((300, 4))})
    advice = tl.BottleneckAnalyzer(M).analyze(ex.get_profile_data()).recommendations
    assert any("in a scan (" in text and "compile_graph" in text for text in advice)


def test_one_function_again_and_again_is_to_be_compiled():
    ops = {"relu": op(5, count=12, moved=4 * 10**7)}
    (advice,) = tl.BottleneckAnalyzer(M).analyze(tl.ProfileData(ops, (5.0,))).recommendations
    assert "element-wise steps (relu), which compiling makes one" in advice
    assert tl.BottleneckAnalyzer(M).analyze(tl.ProfileData(ops, (0.4,) * 12)).recommendations == ()


def test_what_numpy_computes_as_fast_is_not_to_be_compiled():
    large, small = op(5, count=12, moved=4 * 10**7), op(0.02, count=12)
    assert analyzed(exp=large, multiply=op(2, moved=2 * 10**7)).recommendations == (), "a function takes what it takes"
    assert "sort" not in str(analyzed(sort=large, sin=large).recommendations), "a sort is no element-wise step"
    assert "(exp, multiply), which compiling" in analyzed(exp=small, multiply=small).recommendations[0], (
        "calls are saved"
    )
    sums = op(5, count=10, flops=9 * 10**8)  # by several calls of NumPy
    assert "(sigmoid, multiply), which compiling" in analyzed(sigmoid=sums, multiply=op(1)).recommendations[0]


def test_large_joins_of_truth_values_are_to_be_compiled():
    large, small = (
        op(10, flops=10**9, kernel="matmul", dtype="bool"),
        op(10, flops=10**7, kernel="matmul", dtype="bool"),
    )
    (advice,) = analyzed(**{"einsum ijk,jkl->il (boolean)": large}).recommendations
    assert "einsum ijk,jkl->il (boolean)), which run on packed bits once compiled" in advice
    assert "compile_graph" in advice
    assert not any("packed bits" in text for text in analyzed(einsum=small).recommendations)
    assert analyzed(einsum=op(10, flops=10**9, kernel="fused", dtype="bool")).recommendations == ()


def test_what_runs_compiled_is_not_to_be_compiled():
    slow = {"relu": op(5, moved=4 * 10**7), "add": op(5, moved=4 * 10**7)}
    assert analyzed(**slow).recommendations
    assert tl.BottleneckAnalyzer(M).analyze(tl.ProfileData(slow, (0.1,) * 10, compiled=True)).recommendations == ()
    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.input("x", (64,), "float64") + 1.0))
    config = tl.CompilationConfig(optimization_level=tl.OptimizationLevel.AGGRESSIVE)

    def profiled(executor, run):
        executor.enable_profiling()
        run()
        return executor.get_profile_data()

    plain, native = tl.Executor(), tl.Executor(policy="fast")
    inputs = {"x": np.ones(64)}
    compiled = plain.compile_graph(graph, config)
    assert not profiled(plain, lambda: plain.execute(graph, inputs)).compiled
    plain.disable_profiling()
    assert profiled(plain, lambda: plain.execute_compiled(compiled, inputs)).compiled
    assert profiled(native, lambda: native.execute(graph, inputs)).compiled
    plain.execute(graph, inputs)
    assert not plain.get_profile_data().compiled, "some of it is not"


def test_steps_of_others_get_no_advice_on_our_calls(tmp_path):
    events = [{"name": f"aten::{n}", "cat": "cpu_op", "ph": "X", "ts": k, "dur": 1} for k, n in enumerate("ab" * 9)]
    (tmp_path / "torch.json").write_text(json.dumps({"traceEvents": events}))
    profile = tl.ProfileData.from_trace(tl.Trace.load(tmp_path / "torch.json"))
    report = tl.BottleneckAnalyzer(M).analyze(profile)
    assert len(report.bottlenecks) == 2
    assert report.recommendations == ()


def test_a_real_profile_on_this_machine():
    b = tl.GraphBuilder()
    x = b.input("x", ("n", "n"))
    graph = b.build(y=b.sum(b.einsum("ij,jk->ik", x, x), axis=0))
    ex = tl.Executor()
    ex.enable_profiling()
    ex.execute(graph, {"x": np.ones((300, 300))})
    report = tl.BottleneckAnalyzer().analyze(ex.get_profile_data())
    assert report.machine == tl.machine()
    assert {found.operation for found in report.bottlenecks} <= {"einsum ij,jk->ik", "sum over 0"}
    assert report.bottlenecks
    assert sum(found.percentage for found in report.bottlenecks) <= 100.001


def test_it_prints(golden):
    report = analyzed(**{
        "einsum ij,jk->ik": op(10, flops=10**9, moved=10**6, dtype="float64", kernel="matmul"),
        "relu <漢字>": op(5, moved=4 * 10**7), "add": op(0.2, count=100, moved=100),
    })  # fmt: skip
    golden("bottlenecks.txt", f"{report}\n")
    assert "&lt;漢字&gt;" in report._repr_html_()
    assert str(report.bottlenecks[-1]) == "add: 1.3% of the time, bound by overhead"


def test_names_in_print_are_short_and_on_one_line():
    odd = "two\nlines\x1b[31m" + "z" * 100
    report = analyzed(**{odd: op(10, flops=10**9, dtype="float64", kernel="matmul"), "relu": op(5, moved=4 * 10**7)})
    lines = str(report).splitlines()
    assert len(lines) == 7
    assert lines[1].startswith("two lines\ufffd[31mzz") and lines[-1].startswith("  - two lines\ufffd[31mzz")
    assert len(lines[1]) < 140
    assert report.bottlenecks[0].operation == odd
    assert "\x1b" not in str(report.bottlenecks[0])


def test_wrong_arguments():
    with pytest.raises(tl.InputError, match="a ProfileData is expected, got <Trace"):
        tl.BottleneckAnalyzer(M).analyze(tl.Trace())
    with pytest.raises(tl.InputError, match="percentage between 0 and 100"):
        tl.BottleneckAnalyzer(M, least=-1)


def test_a_machine_is_a_machine():
    with pytest.raises(tl.InputError, match="machine= is a Machine, got 'fast'"):
        tl.BottleneckAnalyzer("fast")
