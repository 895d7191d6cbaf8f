"""The Open Inference Protocol over gRPC, on the same event loop, models and limits as HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from ..errors import BackendError, FormatError, InputError, TensorLogicError
from .grpc_messages import CLASSES, SERVICE
from .protocol import DATATYPES, GivenTensor, InferRequest, WantedOutput, malformed
from .repository import ServedModel
from .responses import binary_data, outputs_of
from .routes import allowed, loaded_with_parameters
from .service import GRPC, Service, error_body, status_of

CONTENTS = {  # the field that holds the elements of a datatype where they do not come as raw bytes
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents", "INT64": "int64_contents",
    "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
TYPES = ["", *DATATYPES, "STRING"]  # of a model config, in the order of their numbers
Fields = dict[str, Any]  # of a message
Method = Callable[[Any], Any]  # from the message of a request to the fields of its response


class GrpcServer:
    """The gRPC side of a server."""

    def __init__(self, service: Service, config: Any) -> None:
        self.service, self.config = service, config
        self.tokens = [f"Bearer {token}".encode() for token in config.tokens]
        self._server: Any = None
        calls: dict[str, Method] = {
            "ServerLive": lambda _: {"live": True},
            "ServerReady": lambda _: {"ready": not service.draining},
            "ServerMetadata": lambda _: service.about(),
            "ModelReady": self._model_ready,
            "ModelMetadata": self._model_metadata,
            "ModelConfig": self._model_config,
            "ModelStatistics": lambda request: service.statistics(request.name, request.version),
            "ModelInfer": self._infer,
            "RepositoryIndex": lambda request: {"models": service.repository.index(request.ready)},
            "RepositoryModelLoad": self._load,
            "RepositoryModelUnload": lambda request: service.change("unload", request.model_name),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                partial(self._guarded, name, call), None, CLASSES[f"{name}Response"].SerializeToString
            )
            for name, call in calls.items()
        }
        handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream, None, CLASSES["ModelStreamInferResponse"].SerializeToString
        )
        self._handlers = grpc.method_handlers_generic_handler(SERVICE, handlers)

    async def start(self) -> int:
        """Listen; return the port."""
        size = self.config.limits.body_bytes
        self._server = aio.server(
            options=[("grpc.max_receive_message_length", size), ("grpc.max_send_message_length", size), ("grpc.so_reuseport", 1),
                     ("grpc.max_metadata_size", self.config.limits.head_bytes)],
            maximum_concurrent_rpcs=self.config.limits.connections,
        )  # fmt: skip
        self._server.add_generic_rpc_handlers((self._handlers,))
        address = f"{self.config.host}:{self.config.grpc_port}"
        try:
            if self.config.certificate is None:
                port = self._server.add_insecure_port(address)
            else:
                pair = Path(self.config.key).read_bytes(), Path(self.config.certificate).read_bytes()
                port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except (RuntimeError, OSError) as error:
            raise BackendError(f"cannot listen on {address}: {error}", code="E495") from None
        await self._server.start()
        return int(port)

    async def drain(self, seconds: float) -> None:
        """Take in no more calls, and end once all are answered."""
        await self._server.stop(seconds)

    def _check_token(self, context: Any) -> None:
        given = dict(context.invocation_metadata() or ()).get("authorization", "")
        if not allowed(given.encode() if isinstance(given, str) else given, self.tokens):
            raise InputError("a token is needed", "send authorization: Bearer TOKEN", code="E482")

    async def _guarded(self, name: str, call: Method, data: bytes, context: Any) -> Any:
        """Answer a call; what goes wrong becomes a status of gRPC with the same code and message that HTTP has."""
        try:
            if self.tokens and name not in ("ServerLive", "ServerReady"):
                self._check_token(context)
            found = call(_message(name, data))
            if asyncio.iscoroutine(found):
                found = await found
            return CLASSES[f"{name}Response"](**(found or {}))
        except asyncio.CancelledError:
            raise
        except Exception as error:
            await self._abort(error, context)

    async def _abort(self, error: Exception, context: Any) -> None:
        """End a call with what went wrong."""
        body = error_body(error)
        self.service.metrics.refuse(body["code"])
        trailing = [("tensorlogic-code", body["code"])]
        if "retry_after" in body:
            trailing.append(("retry-after", str(body["retry_after"])))
        status = getattr(grpc.StatusCode, GRPC.get(status_of(error), "INTERNAL"))
        await context.abort(status, body["error"], tuple(trailing))

    def _model_ready(self, request: Any) -> Fields:
        try:
            self.service.repository.find(request.name, request.version)
        except TensorLogicError:
            return {"ready": False}
        return {"ready": True}

    def _model_metadata(self, request: Any) -> Fields:
        found = self.service.metadata(request.name, request.version)
        for tensor in (*found["inputs"], *found["outputs"]):
            tensor.pop("parameters", None)
        return found

    def _model_config(self, request: Any) -> Fields:
        found = self.service.repository.find(request.name, request.version).config()
        for tensor in (*found["input"], *found["output"]):
            tensor["data_type"] = TYPES.index(tensor["data_type"].removeprefix("TYPE_"))
        return {"config": found}

    async def _load(self, request: Any) -> None:
        if request.parameters:
            raise loaded_with_parameters(request.model_name)
        await self.service.change("load", request.model_name)

    async def _infer(self, request: Any) -> Fields:
        started, service = perf_counter(), self.service
        query = request_of(request)
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[ServedModel, Any]] = loop.create_future()

        def done(model: ServedModel | None, outputs: Any) -> None:
            if not answer.done():
                answer.set_result((model, outputs))  # type: ignore[arg-type]

        service.metrics.in_flight += 1
        try:
            cancel = service.infer(request.model_name, request.model_version, query, service.limits.seconds, done)
            try:
                model, outputs = await answer
            except asyncio.CancelledError:  # the client has left
                cancel()
                raise
        finally:
            service.metrics.in_flight -= 1
        wrong = isinstance(outputs, BaseException)
        code = error_body(outputs)["code"] if wrong else "ok"
        service.metrics.model(model.name, model.version).count("grpc", code, perf_counter() - started)
        if wrong:
            raise outputs
        return response_of(model, query, outputs)

    async def _stream(self, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Any]:
        """Answer the requests of a stream in order; one that fails says so and the next is answered."""
        response = CLASSES["ModelStreamInferResponse"]
        if self.tokens:
            try:
                self._check_token(context)
            except InputError as error:
                await self._abort(error, context)
        async for data in requests:
            id = ""
            try:
                request = _message("ModelInfer", data)
                id = request.id
                yield response(infer_response=await self._infer(request))
            except Exception as error:
                yield response(error_message=error_body(error)["error"], infer_response={"id": id})


def _message(name: str, data: bytes) -> Any:
    """Return the message of a request; grpc itself would say no more than that something is wrong with it."""
    try:
        return CLASSES[f"{name}Request"].FromString(data)
    except DecodeError as error:
        raise malformed(f"this is no {name}Request: {error}") from None


def _parameters(given: Mapping[str, Any]) -> dict[str, Any]:
    choices = {name: (p, p.WhichOneof("parameter_choice")) for name, p in given.items()}
    return {name: getattr(p, choice) for name, (p, choice) in choices.items() if choice}


def request_of(request: Any) -> InferRequest:
    """Return a request to infer from its message; its tensors are raw bytes, or lists of elements."""
    raw = request.raw_input_contents
    if raw:
        for each in request.inputs:
            if each.HasField("contents"):  # in the words of Triton, which its examples look for
                what = "contents field must not be specified when using raw_input_contents"
                raise malformed(f"{what} for {each.name!r} for model {request.model_name!r}")
        if len(raw) != len(request.inputs):
            raise FormatError(f"{len(raw)} raw contents are given for {len(request.inputs)} inputs", code="E471")
    inputs = []
    for n, each in enumerate(request.inputs):
        if "shared_memory_region" in each.parameters:
            raise malformed("shared memory is not served", "send the data in the message")
        data: Any = memoryview(raw[n]) if raw else _elements(each)
        inputs.append(GivenTensor(each.name, tuple(each.shape), each.datatype, data))
    outputs = []
    for output in request.outputs:
        parameters = _parameters(output.parameters)
        if "classification" in parameters or "shared_memory_region" in parameters:
            raise malformed(f"output {output.name!r}: classification and shared memory are not served")
        outputs.append(WantedOutput(output.name, True, parameters.get("names")))
    return InferRequest(request.id, inputs, outputs, _parameters(request.parameters), True)


def _elements(tensor: Any) -> list[Any]:
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        raise InputError(f"input {tensor.name!r} of {tensor.datatype[:40]!r} goes as raw contents", code="E474")
    try:
        elements = list(getattr(tensor.contents, field))
        return [x.decode() for x in elements] if tensor.datatype == "BYTES" else elements
    except UnicodeDecodeError:
        raise malformed(f"input {tensor.name!r} holds bytes that are no UTF-8") from None


def response_of(model: ServedModel, query: InferRequest, outputs: Any) -> Fields:
    """Return the fields of the message that answers a request; tensors go as raw bytes."""
    tensors = outputs_of(query, outputs, model.outputs, binary=True)
    return {
        "model_name": model.name,
        "model_version": model.version,
        "id": query.id,
        "outputs": [{"name": t.name, "datatype": t.datatype, "shape": t.shape} for t in tensors],
        "raw_output_contents": [bytes(binary_data(t)) for t in tensors],
    }
