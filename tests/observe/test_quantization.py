"""Quantizing whole models: calibration by hooks, rounding, precision by budget, the report, and what is refused."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner

import tensorlogic as tl
from tensorlogic.cli import main
from tensorlogic.ir.constants import all_constants
from tensorlogic.observe.quantization.calibration import BINS, RANGES, Seen

T, G, A, C, M, R = (
    tl.QuantizationType, tl.QuantizationGranularity, tl.ActivationMode, tl.QuantizationConfig, tl.CalibrationMethod,
    tl.QuantizationRounding,
)  # fmt: skip
RNG = np.random.default_rng(0)
MIX = RNG.normal(size=(64, 64))
X = (RNG.normal(size=(300, 64)) @ MIX / 8).astype("f4")
PARAMS = {
    "w1": (RNG.normal(size=(64, 48)) / 8).astype("f4"), "c1": RNG.normal(size=48).astype("f4") / 4,
    "w2": (RNG.normal(size=(48, 10)) / 7).astype("f4"),
}  # fmt: skip


def _graph() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 64), "float32")
    z = b.relu(b.linear(x, b.input("w1", (64, 48), "float32"), b.input("c1", (48,), "float32")))
    return b.build(y=z @ b.input("w2", (48, 10), "float32"))


GRAPH = _graph()
EXACT = tl.Executor().execute(GRAPH, {"x": X, **PARAMS})["y"]


def small(config: Any = None, **more: Any) -> tl.EinsumGraph:
    return tl.quantize(GRAPH, config, **{"calibration": [{"x": X[:150]}, {"x": X[150:]}], "params": PARAMS, **more})


def error(graph: tl.EinsumGraph) -> float:
    return float(np.sqrt(np.square(tl.Executor().execute(graph, {"x": X})["y"] - EXACT).sum() / np.square(EXACT).sum()))


def test_what_was_seen_covers_every_value_while_the_histogram_grows() -> None:
    seen = Seen()
    batches = [RNG.normal(size=50) * scale for scale in (0.001, 1.0, 0.1, 300.0)]
    for batch in batches:
        seen.add(batch, 0.9)
    assert seen.counts.sum() == 200 and len(seen.counts) == 2 * BINS
    assert (seen.low, seen.high) == (min(map(np.min, batches)), max(map(np.max, batches)))
    everything = np.concatenate(batches)
    coarse = np.histogram(everything, seen.counts.size // 64, (-seen.width, seen.width))[0]
    assert np.abs(seen.counts.reshape(-1, 64).sum(1) - coarse).sum() <= 4  # those on an edge


@pytest.mark.parametrize("method", list(M))
def test_every_method_finds_a_range_and_most_leave_out_what_is_rare(method: Any) -> None:
    seen = Seen()
    for _ in range(10):
        seen.add(np.concatenate([RNG.normal(size=20_000), [25.0]]), 0.9)
    low, high = RANGES[method](seen, C(percentile=99.9))
    assert -6 <= low < -2 and high > 2
    assert (high == 25.0) == (method in (M.MIN_MAX, M.MOVING_AVERAGE))
    assert error(small(C(calibration=method))) < 0.05
    nothing = Seen()
    nothing.add(np.zeros(5), 0.9)
    assert RANGES[method](nothing, C()) == (0.0, 0.0)


def test_better_rounding_pays_at_four_bits() -> None:
    errors = {r.name: error(small(C(T.INT4, G.PER_GROUP(16), rounding=r))) for r in R}
    assert errors["SCALE_SEARCH"] < 0.97 * errors["NEAREST"]
    assert errors["COMPENSATING"] < 0.8 * errors["NEAREST"]
    assert errors["COMPENSATING_SEARCH"] < errors["COMPENSATING"]


def test_budgets_are_kept_and_the_table_tells_what_was_chosen() -> None:
    chosen = tl.assign_precision(GRAPH, calibration=[{"x": X}], params=PARAMS, budget_bytes=3000)
    graph = small(budget_bytes=3000)
    assert sum(a.nbytes for a in all_constants(graph).values()) == chosen.total_bytes <= 3000
    assert str(chosen).splitlines()[0].split()[:2] == ["weight", "shape"]
    assert {row.name for row in chosen.rows} == {"w1", "w2"} == set(chosen)
    assert error(small(chosen)) == pytest.approx(chosen.error, rel=1e-3)
    tight = tl.assign_precision(GRAPH, calibration=[{"x": X}], params=PARAMS, max_error=0.01)
    loose = tl.assign_precision(GRAPH, calibration=[{"x": X}], params=PARAMS, max_error=0.2)
    assert tight.error <= 0.01 < loose.error <= 0.2
    assert loose.total_bytes < tight.total_bytes
    assert tl.assign_precision(GRAPH, params=PARAMS, max_error=0.1).error <= 0.1  # of the weights themselves
    with pytest.raises(tl.InputError, match=r"take 1,\d\d\d bytes at the least"):
        small(budget_bytes=100)


def test_the_report_tells_bytes_errors_accuracy_and_time(tmp_path: Path) -> None:
    ticks = count()
    labels = EXACT.argmax(-1)
    report = tl.QuantizationReport.of(
        GRAPH,
        C(T.INT4, G.PER_GROUP(16)),
        calibration=[{"x": X}],
        params=PARAMS,
        labels=labels,
        clock=lambda: next(ticks),
    )
    assert [t.bytes_after for t in report.tensors] == [48 * 32 + 48 * 4 * 4, 10 * 24 + 10 * 3 * 4]
    assert report.bytes_before == 4 * (64 * 48 + 48 + 48 * 10)
    assert report.bytes_after == sum(a.nbytes for a in all_constants(report.graph).values())
    assert report.accuracy is not None and report.accuracy[0] == 1.0 > report.accuracy[1] > 0.8
    assert report.seconds == (1, 1)
    w1 = report.tensors[0].error
    became = np.asarray(tl.QuantizedTensor.of(PARAMS["w1"].T, T.INT4, G.PER_GROUP(16)))
    assert w1.largest == pytest.approx(np.abs(became - PARAMS["w1"].T).max())
    assert 10 ** (-report.outputs["y"].sqnr_db / 20) == pytest.approx(error(report.graph), rel=1e-3)
    assert len(report.layers) == 2 and report.layers[1].error.sqnr_db == pytest.approx(report.outputs["y"].sqnr_db)
    plain = json.loads(report.to_json())
    assert plain["tensors"][0]["error"]["sqnr_db"] == w1.sqnr_db
    for svg in (report.error_svg(), report.histogram_svg("w1")):
        assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert report.histogram_svg("w1").count("<line") >= 14
    report.save(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert page.count("<svg") == 3 and "w2" in page
    assert "points" in str(report) and "SQNR" in str(report)
    alone = tl.QuantizationReport.of(GRAPH, C(), params=PARAMS)
    assert alone.layers == () and alone.accuracy is None and alone.seconds is None


def _code(call: Any) -> str:
    with pytest.raises(tl.TensorLogicError) as found:
        call()
    return found.value.diagnostic.code


def test_bad_input_is_told_by_its_code() -> None:
    bad = {**PARAMS, "w1": PARAMS["w1"].copy()}
    bad["w1"][3, 4] = np.inf
    wrong = {
        "E326": lambda: small(C(), calibration=[]),
        "E001": lambda: small(C(), calibration=[{"x": np.ones((3, 5), "f4")}]),
        "E303": lambda: small(C(), calibration=[{}]),
        "E302": lambda: small(C(), params={**PARAMS, "w9": 1.0}),
        "E321": lambda: small(C(), params=bad),
        "E327": lambda: small(C(), calibration=[{"x": np.full((2, 64), np.nan, "f4")}]),
        "E328": lambda: tl.quantize(GRAPH, C()),
        "E329": lambda: small(C(), budget_bytes=10),
        "E324": lambda: small(max_error=-1.0),
        "E340": lambda: small({"w3": C()}),
        "E341": lambda: small(C(granularity=G.PER_CHANNEL(0))),
        "E005": lambda: small(C(granularity=G.PER_CHANNEL(7))),
        "E325": lambda: C(T.FP8, activations=A.STATIC),
        "E301": lambda: C("int8"),
        "E343": lambda: tl.QuantizationReport.of(GRAPH, C(), params=PARAMS, data={"x": X}, labels=[1, 2]),
        "E318": lambda: tl.GraphBuilder().unpack(np.zeros(3, "u1"), "int3", 6),
        "E319": lambda: tl.GraphBuilder().quantize(np.ones(3, "f4"), 1.0, 0, group=0),
    }
    assert {code: _code(call) for code, call in wrong.items()} == {code: code for code in wrong}
    assert _code(lambda: small(C(activations=A.STATIC), calibration=None)) == "E326"
    assert _code(lambda: small(C(rounding=R.COMPENSATING, activations=A.WEIGHT_ONLY), calibration=None)) == "E326"
    assert _code(lambda: small(C(), calibration=[{"x": np.ones((0, 64), "f4")}])) == "E326"
    assert small(C(granularity=G.PER_CHANNEL(1))) == small(C())  # the axis that the product keeps


def test_the_command_quantizes_a_file_and_writes_its_report(tmp_path: Path) -> None:
    GRAPH.save(tmp_path / "model.json")
    np.savez(tmp_path / "params.npz", **PARAMS)
    np.savez(tmp_path / "data.npz", x=X, labels=EXACT.argmax(-1))
    base = ["quantize", str(tmp_path / "model.json"), "--params", str(tmp_path / "params.npz"), "--calibrate",
            str(tmp_path / "data.npz"), "--labels", "labels"]  # fmt: skip
    made = [str(tmp_path / "small.json"), str(tmp_path / "report.html")]
    ran = CliRunner().invoke(main, [*base, "--to", "int4", "--group", "16", "-o", made[0], "--report", made[1]])
    assert ran.exit_code == 0, ran.output
    assert "accuracy 100.00% before" in ran.output and "per group of 16" in ran.output
    assert tl.EinsumGraph.load(made[0]) == small(C(T.INT4, G.PER_GROUP(16)))
    assert Path(made[1]).read_text(encoding="utf-8").startswith("<!doctype html>")
    told = CliRunner().invoke(main, [*base, "--to", "int8", "--activations", "dynamic", "--json"])
    assert json.loads(told.output)["bytes_after"] < 5000
    budget = CliRunner().invoke(main, [*base, "--budget", "3000"])
    assert "chosen" in budget.output and budget.exit_code == 0
    assert CliRunner().invoke(main, [*base, "--to", "int8", "--budget", "3000"]).exit_code == 2
    assert CliRunner().invoke(main, [*base[:-1], "none"]).exit_code == 1
    assert "write --labels labels" in CliRunner().invoke(main, base[:-2]).output
    for given, option in (
        (base[:2], "--params"),
        ([*base[:2], "--budget", "3000"], "--params"),
        ([*base[:4], "--activations", "static"], "--calibrate"),
    ):
        bare = CliRunner().invoke(main, given)
        assert bare.exit_code == 1 and re.search(f"hint: .*: {option} ", bare.output), bare.output


def test_loading_a_quantized_graph_takes_little_more_than_its_file(tmp_path: Path, measured: Any) -> None:

    b = tl.GraphBuilder()
    w = RNG.normal(size=(2048, 1024)).astype("f4")
    graph = tl.quantize(b.build(y=b.input("x", ("n", 2048), "float32") @ b.constant(w)))
    graph.save(tmp_path / "small.json")
    tl.EinsumGraph.load(tmp_path / "small.json")  # what is imported is imported
    loaded, peak = measured(tl.EinsumGraph.load, tmp_path / "small.json")
    assert loaded == graph
    assert peak <= 1.3 * (tmp_path / "small.safetensors").stat().st_size


@pytest.mark.parametrize(("declared", "given"), [(None, "float64"), (None, "float32"), ("float32", "float64")])
def test_weights_of_another_dtype_than_the_values(declared, given):
    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.input("x", ("n", 8), declared) @ b.input("w", (8, 4))))
    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(8, 4)).astype(given), rng.normal(size=(5, 8)).astype(declared or given)
    small = tl.quantize(graph, tl.QuantizationConfig(tl.QuantizationType.INT8), params={"w": w})
    found = tl.Executor().execute(small, {"x": x})["y"]
    assert found.dtype == given
    np.testing.assert_allclose(found, np.maximum(x @ w, 0), atol=0.05)


def test_a_size_that_values_share_with_weights_is_a_number():
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", "k"), "float32") @ b.input("w", ("k", 4), "float32"))
    with pytest.raises(tl.InputError, match="must be a number"):
        tl.quantize(graph, tl.QuantizationConfig(tl.QuantizationType.INT8), params={"w": np.ones((8, 4), "float32")})
