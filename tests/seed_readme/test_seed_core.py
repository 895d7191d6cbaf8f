"""Running, checking and watching a graph, as the seed's README shows them."""

import logging

import numpy as np

import tensorlogic as tl


def test_tl_executor(executor, layer, inputs, relu_of):
    class Doubling:
        """A backend of someone else's: the protocol asks for no base class."""

        def execute(self, graph, inputs):
            return [2 * array for array in inputs.values()]

    assert isinstance(executor, tl.TlExecutor)
    assert isinstance(Doubling(), tl.TlExecutor)
    outputs = executor.execute(layer, inputs)
    assert len(outputs) == 1
    np.testing.assert_allclose(outputs[0], relu_of(inputs))


def test_tl_capabilities(executor):
    assert isinstance(executor, tl.TlCapabilities)
    caps = executor.capabilities()
    assert isinstance(caps, tl.BackendCapabilities)
    assert tl.Device.CPU(0) in caps.devices
    assert {"bool", "int64", "float32", "float64"} <= set(caps.dtypes)
    assert caps.features


def test_execution_context(caplog):
    context = tl.ExecutionContext()
    with caplog.at_level(logging.DEBUG, logger="tensorlogic"):
        context.add_hook(tl.LoggingHook())
        context.notify(tl.ExecutionPhase.GRAPH_LOAD)
        context.notify(tl.ExecutionPhase.EXECUTION)
        context.notify(tl.ExecutionPhase.COMPLETE)
    seen = [record.getMessage().lower().replace("_", " ") for record in caplog.records]
    assert len(seen) == 3
    for phase, message in zip(("graph load", "execution", "complete"), seen, strict=True):
        assert phase in message


def test_graph_validator(layer):
    validator = tl.GraphValidator()
    result = validator.validate(layer)
    assert result.is_valid()
    assert not result.errors

    dangling = tl.EinsumGraph(layer.nodes, [("y", 99)])
    result = validator.validate(dangling)
    assert not result.is_valid()
    for error in result.errors:
        assert isinstance(error, tl.Diagnostic)
        assert error.severity >= tl.Severity.ERROR
        assert str(error).startswith("[ERROR]")
    assert any("99" in str(error) for error in result.errors)


def test_shape_inference_context(layer):
    ctx = tl.ShapeInferenceContext()
    ctx.set_input_shape("x", [64, 10])
    inferred = ctx.infer_shapes(layer)
    assert {name: tuple(shape) for name, shape in inferred.items()}.items() >= {
        "x": (64, 10), "w": (10, 4), "%2": (64, 4), "y": (64, 4),
    }.items()  # fmt: skip
    assert all(isinstance(shape, tl.TensorShape) for shape in inferred.values())


def test_dummy_executor(layer, inputs):
    executor = tl.DummyExecutor()
    outputs = executor.execute(layer, inputs)
    assert len(outputs) == 1
    assert outputs[0].shape == outputs["y"].shape == (64, 4)
    assert outputs[0].dtype == np.float64


def test_basic_execution(inputs):
    b = tl.GraphBuilder()
    graph = b.build(y=b.sum(b.square(b.input("x", ("n", 10))), axis=1))
    executor = tl.Executor()
    inputs = {"x": inputs["x"]}
    outputs = executor.execute(graph, inputs)
    np.testing.assert_allclose(outputs["y"], np.square(inputs["x"]).sum(axis=1))


def test_reference_backend(layer, inputs, relu_of):
    executor = tl.Executor(backend="reference")
    np.testing.assert_allclose(executor.execute(layer, inputs)[0], relu_of(inputs))
