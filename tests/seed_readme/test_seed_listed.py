"""Components that the seed's README lists but shows no code for."""

import json
import xml.etree.ElementTree as ElementTree

import numpy as np

import tensorlogic as tl


def test_visualization(layer):
    assert layer.to_dot().startswith("digraph")
    assert "ni,ij->nj" in layer.to_dot()
    assert tl.EinsumGraph.from_json(layer.to_json()) == layer
    assert json.loads(layer.to_json())
    nodes = [e for e in ElementTree.fromstring(layer.to_graphml()).iter() if e.tag.endswith("}node")]
    assert len(nodes) >= len(layer)


def test_backend_test_adapter():
    class Broken:
        """A backend that always answers zero."""

        def execute(self, graph, inputs):
            return [0.0 * array for array in tl.Executor().execute(graph, inputs)]

    matrix_products = ["einsum/ij,jk->ik/real/float*"]
    assert tl.BackendTestAdapter("numpy").run(include=matrix_products).passed
    assert tl.BackendTestAdapter(tl.Executor()).run(include=matrix_products).passed

    broken = tl.BackendTestAdapter(Broken())
    assert not broken.run(include=matrix_products).passed
    assert broken.run(include=matrix_products, xfail={"einsum/*": "always zero"}).passed


def test_gradient_checker(inputs):
    from tensorlogic.testing import GradientChecker

    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 10)), b.input("w", (10, 4))
    loss = b.build(loss=b.sum(b.tanh(b.einsum("ni,ij->nj", x, w))))
    report = GradientChecker().check(loss, inputs, wrt=["w"])
    assert report.passed


def test_variable_and_eager_tape(inputs):
    w = tl.Variable(inputs["w"])
    with tl.EagerTape():
        loss = (np.tanh(inputs["x"] @ w) ** 2).sum()
    loss.backward()
    y = np.tanh(inputs["x"] @ inputs["w"])
    np.testing.assert_allclose(w.grad, inputs["x"].T @ (2 * y * (1 - y**2)))


def test_quantization(inputs):
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n", 10), "float64") @ b.input("w", (10, 4), "float64"))
    assert {"INT8", "INT4", "INT2", "FP8_E4M3", "FP8_E5M2", "BINARY", "TERNARY"} <= {
        t.name for t in tl.QuantizationType
    }
    granularity = tl.QuantizationGranularity
    for kind in tl.QuantizationType:
        for scales in (granularity.PER_TENSOR, granularity.PER_CHANNEL()):
            for symmetric in (True, False):
                config = tl.QuantizationConfig(
                    kind, scales, symmetric=symmetric, activations=tl.ActivationMode.WEIGHT_ONLY
                )
                report = tl.QuantizationReport.of(graph, config, params={"w": inputs["w"]}, data={"x": inputs["x"]})
                assert report.bytes_after < report.bytes_before
                assert np.isfinite(report.outputs["y"].sqnr_db)
    fake = tl.fake_quantize(graph, tl.QuantizationConfig(tl.QuantizationType.INT4), params={"w": inputs["w"]})
    assert set(fake.scales) == {"w.scale"}


def test_dynamic_batching(layer, inputs):
    assert [p.name for p in tl.Priority] == ["LOW", "NORMAL", "HIGH", "CRITICAL"]
    for strategy in (tl.BatchingStrategy.LATENCY, tl.BatchingStrategy.THROUGHPUT, tl.BatchingStrategy.ADAPTIVE):
        with tl.DynamicBatcher(tl.Executor(), layer, tl.BatcherConfig(strategy=strategy, max_queue=100)) as batcher:
            futures = [batcher.submit_nowait(inputs, priority, timeout=30) for priority in tl.Priority]
            for future in futures:
                np.testing.assert_allclose(future.result()[0], tl.Executor().execute(layer, inputs)[0])
        assert batcher.stats().completed == 4


def test_multi_model_coordination(layer, inputs):
    assert {s.name for s in tl.EnsembleStrategy} == {"AVERAGING", "VOTING", "STACKING", "BOOSTING"}
    assert {s.name for s in tl.RoutingStrategy} == {"PRIORITY", "LATENCY", "ACCURACY", "ROUND_ROBIN", "CASCADE"}
    coordinator = tl.MultiModelCoordinator()
    for name in ("one", "other"):
        coordinator.register(name, layer)
    coordinator.ensemble("both", ["one", "other"], tl.EnsembleStrategy.AVERAGING)
    expected = tl.Executor().execute(layer, inputs)[0]
    np.testing.assert_allclose(coordinator.run("both", inputs)[0], expected)
    routed = coordinator.route(inputs, tl.RoutingStrategy.CASCADE, confidence=0.0)  # every row leaves early
    np.testing.assert_allclose(
        routed.outputs[0][routed.cascade.decided_by == 0], expected[routed.cascade.decided_by == 0]
    )
    assert {row.model: row.calls for row in coordinator.stats().models}["both@1"] == 1
