"""The server over gRPC, asked by a plain channel: the same models, limits and reasons as over HTTP."""

import grpc
import numpy as np
import pytest
from live_server import double, running, save, save_models

from tensorlogic.serve.grpc_messages import CLASSES, SERVICE
from tensorlogic.serve.limits import Limits


class Channel:
    """Calls methods by name with fields."""

    def __init__(self, port, **options):
        self.channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])
        self.options = options

    def __call__(self, method, /, **fields):
        make, read = CLASSES[f"{method}Request"], CLASSES[f"{method}Response"].FromString
        call = self.channel.unary_unary(f"/{SERVICE}/{method}", make.SerializeToString, read)
        return call(make(**fields), timeout=20, **self.options)

    def infer(self, model, *inputs, raw=(), **more):
        return self("ModelInfer", model_name=model, inputs=inputs, raw_input_contents=raw, **more)

    def stream(self, requests):
        make, read = CLASSES["ModelInferRequest"], CLASSES["ModelStreamInferResponse"].FromString
        call = self.channel.stream_stream(f"/{SERVICE}/ModelStreamInfer", make.SerializeToString, read)
        return list(call(iter([make(**r) for r in requests]), timeout=20, **self.options))


@pytest.fixture(scope="module")
def channel(tmp_path_factory):
    folder = save_models(tmp_path_factory.mktemp("models"))
    with running(folder, grpc_port=0, limits=Limits(body_bytes=1 << 20)) as server:
        found = Channel(server.grpc_port)
        yield found
        found.channel.close()


def test_health_metadata_and_repository(channel):
    assert channel("ServerLive").live and channel("ServerReady").ready and channel("ModelReady", name="double").ready
    assert not channel("ModelReady", name="nope").ready
    assert channel("ServerMetadata").name == "tensorlogic"
    found = channel("ModelMetadata", name="simple")
    assert [(t.name, t.datatype, list(t.shape)) for t in found.inputs] == [
        ("INPUT0", "INT32", [1, 16]),
        ("INPUT1", "INT32", [1, 16]),
    ]
    assert channel("ModelConfig", name="simple").config.input[0].data_type == 8
    channel("RepositoryModelUnload", model_name="log")
    assert {m.name: m.state for m in channel("RepositoryIndex").models}["log"] == "UNAVAILABLE"
    channel("RepositoryModelLoad", model_name="log")
    assert channel("ModelReady", name="log").ready


def test_infer_with_contents_and_with_raw_bytes(channel):
    x = {"name": "x", "datatype": "FP32", "shape": [2]}
    found = channel.infer("double", {**x, "contents": {"fp32_contents": [1, 2.5]}}, id="7")
    assert (found.model_name, found.id, found.outputs[0].name) == ("double", "7", "y")
    assert np.frombuffer(found.raw_output_contents[0], "float32").tolist() == [2, 5]
    found = channel.infer("double", x, raw=[np.array([np.nan, np.inf], "float32").tobytes()])
    assert np.array_equal(np.frombuffer(found.raw_output_contents[0], "float32"), [np.nan, np.inf], equal_nan=True)
    words = {"name": "Parent", "datatype": "BYTES", "shape": [1, 2], "contents": {"bytes_contents": [b"Bob", b"Alice"]}}
    assert channel.infer("family", words).raw_output_contents[0] == b"\x03\0\0\0Bob\x05\0\0\0Alice"
    stats = channel("ModelStatistics", name="double").model_stats[0]
    assert stats.inference_count >= 2


def test_a_stream_goes_on_after_a_request_that_fails(channel):
    good = {
        "model_name": "double",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "contents": {"fp32_contents": [1]}}],
    }
    found = channel.stream([good, {**good, "model_name": "nope", "id": "bad"}, good])
    assert [bool(r.error_message) for r in found] == [False, True, False]
    assert found[1].infer_response.id == "bad" and "nope" in found[1].error_message


def test_bytes_that_are_no_message(channel):
    call = channel.channel.unary_unary(f"/{SERVICE}/ModelInfer")
    with pytest.raises(grpc.RpcError) as caught:
        call(b"\x0a\xff", timeout=20)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert ("tensorlogic-code", "E470") in caught.value.trailing_metadata()
    stream = channel.channel.stream_stream(
        f"/{SERVICE}/ModelStreamInfer", None, CLASSES["ModelStreamInferResponse"].FromString
    )
    assert "no ModelInferRequest" in next(stream(iter([b"\x0a\xff"]), timeout=20)).error_message


X = {"name": "x", "datatype": "FP32", "shape": [2]}
WRONG = {
    "unknown model": (lambda c: c.infer("nope"), "NOT_FOUND", "E476"),
    "unknown version": (lambda c: c.infer("double", model_version="9"), "NOT_FOUND", "E477"),
    "missing": (lambda c: c.infer("double"), "INVALID_ARGUMENT", "E473"),
    "wrong datatype": (lambda c: c.infer("double", {**X, "datatype": "FP64", "contents": {"fp64_contents": [1, 2]}}), "INVALID_ARGUMENT", "E474"),
    "too few": (lambda c: c.infer("double", {**X, "contents": {"fp32_contents": [1]}}), "INVALID_ARGUMENT", "E475"),
    "raw too short": (lambda c: c.infer("double", X, raw=[b"1234567"]), "INVALID_ARGUMENT", "E471"),
    "raw of nobody": (lambda c: c.infer("double", X, raw=[b"12345678", b""]), "INVALID_ARGUMENT", "E471"),
    "both": (lambda c: c.infer("double", {**X, "contents": {"fp32_contents": [1, 2]}}, raw=[b"12345678"]), "INVALID_ARGUMENT", "E470"),
    "unknown output": (lambda c: c.infer("double", X, raw=[b"12345678"], outputs=[{"name": "z"}]), "INVALID_ARGUMENT", "E478"),
    "too large": (lambda c: c.infer("double", X, raw=[bytes(2 << 20)]), "RESOURCE_EXHAUSTED", None),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_has_a_status_and_a_code(channel, name):
    call, status, code = WRONG[name]
    with pytest.raises(grpc.RpcError) as caught:
        call(channel)
    assert caught.value.code().name == status
    assert code is None or dict(caught.value.trailing_metadata())["tensorlogic-code"] == code
    assert channel.infer("double", X, raw=[bytes(8)]).outputs[0].shape == [2]


def test_tokens(tmp_path):
    save(tmp_path, "double", double())
    with running(tmp_path, grpc_port=0, tokens=("a-token-of-enough-length",)) as server:
        channel = Channel(server.grpc_port)
        assert channel("ServerReady").ready
        question = {"model_name": "double", "inputs": [X], "raw_input_contents": [b"12345678"]}
        for call in (lambda: channel("ServerMetadata"), lambda: channel.stream([question])):
            with pytest.raises(grpc.RpcError) as caught:
                call()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        channel.channel.close()
        channel = Channel(server.grpc_port, metadata=[("authorization", "Bearer a-token-of-enough-length")])
        assert channel("ServerMetadata").name == "tensorlogic" and not channel.stream([question])[0].error_message
        channel.channel.close()
