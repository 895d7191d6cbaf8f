"""The calls that tritonclient's http, grpc and aio examples make, against a server: ``python triton_calls.py HTTP_URL GRPC_URL``."""

from __future__ import annotations

import asyncio
import queue
import sys
from functools import partial

import numpy as np
import tritonclient.grpc as grpc
import tritonclient.grpc.aio as grpc_aio
import tritonclient.http as http
import tritonclient.http.aio as http_aio
from grpc import insecure_channel
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException

A, B = np.arange(16, dtype=np.int32).reshape(1, 16), np.ones((1, 16), np.int32)


def tensors(module, **form):
    inputs = [module.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for tensor, value in zip(inputs, (A, B), strict=True):
        tensor.set_data_from_numpy(value, **form)
    return inputs, [module.InferRequestedOutput(name, **form) for name in ("OUTPUT0", "OUTPUT1")]


def check(result) -> None:
    assert (result.as_numpy("OUTPUT0") == A + B).all()
    assert (result.as_numpy("OUTPUT1") == A - B).all()


def health_and_control(client) -> None:
    assert client.is_server_live(headers={"test": "1"}) and client.is_server_ready() and client.is_model_ready("simple")
    for get in (client.get_server_metadata, client.get_model_repository_index):
        get()
    for get in (client.get_model_metadata, client.get_model_config, client.get_inference_statistics):
        assert "simple" in str(get("simple"))
    for call, message in (
        (client.get_model_metadata, "Request for unknown model"),
        (client.load_model, "failed to load"),
        (partial(client.load_model, config='{"max_batch_size": "16"}'), "failed to load"),
    ):
        try:
            call("wrong_model_name")
        except InferenceServerException as error:
            assert message in error.message(), error
        else:
            raise AssertionError("an unknown model was found")
    client.unload_model("simple")
    assert not client.is_model_ready("simple")
    client.load_model("simple")
    assert client.is_model_ready("simple")


def over_http(url: str) -> None:
    with http.InferenceServerClient(url=url, concurrency=4) as client:
        for binary in (True, False):
            inputs, outputs = tensors(http, binary_data=binary)
            check(client.infer("simple", inputs, outputs=outputs, request_id="1", query_params={"test": 1}))
            check(client.infer("simple", inputs))
        inputs[0].set_data_from_numpy(A, binary_data=True)  # one in binary form, one in JSON, there and back
        outputs[1] = http.InferRequestedOutput("OUTPUT1", binary_data=True)
        for algorithm in (None, "gzip", "deflate"):
            form = {"request_compression_algorithm": algorithm, "response_compression_algorithm": algorithm}
            check(client.infer("simple", inputs, outputs=outputs, **form))
        for request in [client.async_infer("simple", inputs, outputs=outputs) for _ in range(8)]:
            check(request.get_result())
        health_and_control(client)


def over_grpc(url: str) -> None:
    with grpc.InferenceServerClient(url=url) as client:
        inputs, outputs = tensors(grpc)
        check(client.infer("simple", inputs, outputs=outputs, request_id="1", client_timeout=20))
        check(client.infer("simple", inputs, compression_algorithm="gzip"))
        answers: queue.Queue = queue.Queue()
        client.async_infer("simple", inputs, lambda result, error: answers.put((result, error)), outputs=outputs)
        client.start_stream(lambda result, error: answers.put((result, error)))
        for n in range(4):
            client.async_stream_infer("simple", inputs, request_id=str(n), outputs=outputs)
        for _ in range(5):
            result, error = answers.get(timeout=20)
            assert error is None, error
            check(result)
        client.stop_stream()
        health_and_control(client)


def explicit_contents(url: str) -> None:
    """Send numbers as numbers and not as bytes, as the example grpc_explicit_int_content_client does."""
    with insecure_channel(url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = service_pb2.ModelInferRequest(model_name="simple")
        for name, value in (("INPUT0", A), ("INPUT1", B)):
            tensor = request.inputs.add(name=name, datatype="INT32", shape=[1, 16])
            tensor.contents.int_contents[:] = value.ravel().tolist()
        answer = stub.ModelInfer(request)
        assert (np.frombuffer(answer.raw_output_contents[0], np.int32) == A + B).all()


async def awaited(http_url: str, grpc_url: str) -> None:
    for module, plain, url in ((http_aio, http, http_url), (grpc_aio, grpc, grpc_url)):
        async with module.InferenceServerClient(url=url) as client:
            assert await client.is_server_ready() and await client.is_model_ready("simple")
            inputs, outputs = tensors(plain)
            for result in await asyncio.gather(*(client.infer("simple", inputs, outputs=outputs) for _ in range(8))):
                check(result)


if __name__ == "__main__":
    over_http(sys.argv[1])
    over_grpc(sys.argv[2])
    explicit_contents(sys.argv[2])
    asyncio.run(awaited(sys.argv[1], sys.argv[2]))
    print("tritonclient: http, grpc and aio agree")
