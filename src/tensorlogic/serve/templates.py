"""Requests that repeat: callers send the same head and the same JSON again and again, and only the numbers differ.

A template is what such requests of one head have in common, worked out once: the bytes around the numbers, the model, the beginning of the
answer. A request that fits it is answered without reading the rest of it anew. Whatever is unusual takes the long way, which is ``http_infer.py``.
"""

from __future__ import annotations

import math
from time import perf_counter
from typing import Any, NamedTuple

import msgspec
import numpy as np

from ..errors import CancelledError, InputError, QueueFullError
from ..events import watchers
from ..runtime.values import Outputs
from .batch_queue import Request
from .http import Connection
from .http_messages import KnownHead
from .http_messages import Request as HttpRequest
from .protocol import FEW, FLAT, NUMPY, SMALL, Array, InferRequest, doubles
from .repository import ServedModel
from .responses import encode_response, outputs_of

BODY = 32 << 10  # bytes of a body that is compared with the one before it
SHORT = 4096  # elements of an output that is written at once
_encode = msgspec.json.Encoder().encode


class Numbers(NamedTuple):
    """Where the numbers of an input stand in a request, as JSON or in binary form behind it, and what array they are."""

    start: int
    stop: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Pattern(NamedTuple):
    """The bytes that all requests of a template share, and where the numbers of their inputs stand between them.

    Numbers in binary form follow the JSON, which is ``before``; a list of floats stands within it, between ``before`` and ``after``.
    """

    before: bytes
    after: bytes | None
    inputs: tuple[Numbers, ...]
    length: int

    def arrays(self, data: bytes) -> list[Array] | None:
        """Return the inputs of a request like this; None where it is not, or where something about it has to be looked at."""
        if len(data) != self.length or not data.startswith(self.before):
            return None
        if self.after is None:
            return [np.ndarray(shape, dtype, data[start:stop]) for start, stop, dtype, shape in self.inputs]
        if not data.endswith(self.after):
            return None
        start, stop, dtype, shape = self.inputs[0]
        try:
            values = FLAT[float].decode(data[start:stop])
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None
        size = len(values)
        if size != math.prod(shape):
            return None
        if size <= FEW:
            if not math.hypot(*values) < SMALL:  # so that no number is beyond it
                return None
            array = np.array(values, dtype)
        else:
            exact = doubles(values)
            if not exact.dot(exact) < SMALL * SMALL:
                return None
            array = exact.astype(dtype)
        return [array if len(shape) == 1 else array.reshape(shape)]


def pattern_of(head: bytes, body: bytes, request: InferRequest, model: ServedModel) -> Pattern | None:
    """Return the pattern of a request, where its body is small and its numbers are in binary form, or in one flat list of floats."""
    if type(body) is not bytes or len(body) > BODY or len(request.inputs) != len(model.inputs):
        return None
    if request.parameters and request.parameters.keys() != {"binary_data_output"}:
        return None
    given: dict[str, Any] = {each.name: each for each in request.inputs}
    dtypes = [NUMPY.get(each.datatype) for each in request.inputs]
    if any(
        dtype is None or dtype.kind not in "fiu" or not dtype.isnative or not math.prod(given[n].shape)
        for n, dtype in zip(given, dtypes, strict=True)
    ):
        return None
    data = head + body
    if all(isinstance(each.data, memoryview) for each in given.values()):
        places, stop = {}, len(data) - sum(len(each.data) for each in given.values())
        before = data[:stop]
        for each in given.values():
            start, stop = stop, stop + len(each.data)
            places[each.name] = Numbers(start, stop, NUMPY[each.datatype], each.shape)
        return Pattern(before, None, tuple([places[name] for name in model.inputs]), len(data))
    sole = next(iter(given.values()))
    if len(given) > 1 or isinstance(sole.data, memoryview) or NUMPY[sole.datatype].kind != "f":
        return None
    text = bytes(sole.data)
    if body.count(text) != 1 or text[1:64].lstrip()[:1] == b"[":
        return None
    start = len(head) + body.index(text)
    stop = start + len(text)
    return Pattern(data[:start], data[stop:], (Numbers(start, stop, NUMPY[sole.datatype], sole.shape),), len(data))


class Template:
    """What requests with one head have in common, and how they are answered."""

    __slots__ = (
        "batcher", "binary", "dtype", "given_id", "head", "kind", "loop", "metrics", "model", "models", "opening", "pattern",
        "priority", "query", "routes", "service", "shape", "start",
    )  # fmt: skip

    def __init__(
        self, routes: Any, model: ServedModel, models: Any, head: KnownHead, pattern: Pattern, query: InferRequest
    ) -> None:
        self.head, self.models = head, models  # those that are served while it holds
        self.routes, self.model, self.pattern, self.query = routes, model, pattern, query
        self.service, self.batcher, self.priority = routes.service, model.batcher, model.priority
        self.loop = self.service.loop
        self.metrics = self.service.metrics.model(model.name, model.version)
        self.given_id = head.infer_facts.id
        zeros = {name: np.zeros(n.shape, n.dtype) for name, n in zip(model.inputs, pattern.inputs, strict=True)}
        self.kind = self.batcher.request(zeros, self.priority).kind
        self.binary = query.outputs[0].binary if query.outputs else query.binary
        self.shape: tuple[int, ...] | None = None  # of the output that the opening describes
        self.dtype: Any = None
        self.start = self.opening = b""  # of the head and of the body of an answer

    def begin(self, connection: Connection, data: bytes) -> bool:
        """Begin to answer a request; False where it does not fit, or everything about it is to be known."""
        service = self.service
        if (
            self.models is not service.repository.ready
            or service.draining
            or watchers()
            or (arrays := self.pattern.arrays(data)) is None
        ):
            return False
        started, full = perf_counter(), None
        request = TemplateRequest(self, connection, started, arrays, data)
        try:
            self.batcher.enter(request, self.loop)
        except QueueFullError as error:
            full = error
        except InputError:  # the model was loaded anew in this moment
            return False
        connection.idle = False
        connection.begin(request, started)
        service.metrics.in_flight += 1
        if full is not None:
            request.tell(full)
        return True

    def answer(self, request_id: bytes, output: Array) -> bytes | None:
        """Return an answer as bytes; None where it is large, or holds what JSON has no word for."""
        if output.shape != self.shape or output.dtype is not self.dtype:
            if output.size > SHORT:
                return None
            self._describe(output)
        if self.binary:
            data, after = output.tobytes(), b""
        else:
            values = output.tolist() if output.ndim == 1 else output.ravel().tolist()
            if not math.isfinite(sum(values)):
                return None
            data, after = _encode(values), b"}]}"
        return b"%b%b\r\nContent-Length: %d\r\n\r\n%b%b%b" % (
            self.start, request_id, len(self.opening) + len(data) + len(after), self.opening, data, after,
        )  # fmt: skip

    def _describe(self, output: Array) -> None:
        """Note how answers begin whose output is like this one."""
        self.shape, self.dtype = output.shape, output.dtype
        model, query = self.model, self.query
        tensors = outputs_of(query, {model.sole_output: np.zeros_like(output)}, model.outputs)
        (text, *_), json_length = encode_response(model.head, query.id, tensors)
        kind, more = b"application/json", b""
        if json_length is None:
            text = text[: text.rindex(b'"data":') + len(b'"data":')]
        else:
            kind, more = b"application/octet-stream", b"Inference-Header-Content-Length: %d\r\n" % json_length
        self.opening = text
        self.start = b"HTTP/1.1 200 OK\r\nContent-Type: %b\r\n%bX-Request-Id: " % (kind, more)


class TemplateRequest(Request):
    """A request that fits a template: one object from the connection to the batch and back."""

    __slots__ = ("connection", "data", "started", "template")
    keep = True  # the connection stays open after it; others have no template

    def __init__(
        self, template: Template, connection: Connection, started: float, arrays: list[Array], data: bytes
    ) -> None:
        super().__init__(template.kind, arrays, template.priority)
        self.template, self.connection, self.started, self.data = template, connection, started, data

    @property
    def body(self) -> bytes:
        """The body of the request."""
        return self.data[len(self.template.head.raw) :]

    def tell(self, outcome: Any) -> None:
        """Answer, once the batch has run; on the event loop."""
        template, connection = self.template, self.connection
        if type(outcome) is Outputs and connection.current is self and connection.stays_open():
            routes = template.routes
            request_id = template.given_id or b"%b-%x" % (routes.prefix, next(routes.count))
            try:
                answer = template.answer(request_id, outcome.values()[0])
            except Exception as error:  # this request fails, and the others of its batch are answered
                answer, outcome = None, error
            if answer is not None:
                now = perf_counter()
                template.service.metrics.in_flight -= 1
                template.metrics.count_good(now - self.started)
                connection.transport.write(answer)
                connection.answered(now)
                return
        template.routes.answer_in_full(self, outcome)

    def cancel(self) -> None:
        """Give it up: nobody waits for it any more."""
        if self.template.batcher.cancel(self):
            self.tell(CancelledError("the request was cancelled", code="E980"))


def template_of(
    routes: Any, models: Any, name: str, version: str, request: HttpRequest, query: InferRequest
) -> Template | None:
    """Return the template of requests like this one; None where the model, the request or the server needs to know all about each of them."""
    versions = models[name]
    model: ServedModel | None = versions.get(version or next(reversed(versions)))
    if (
        model is None
        or model.sole_output is None
        or not model.static
        or model.limits.seconds < routes.service.limits.seconds
    ):
        return None
    config = model.batcher.config
    if config.timeout is not None or config.pad or (routes.log is not None and routes.log.requests):
        return None
    if len(query.outputs) > 1 or any(o.names for o in query.outputs):
        return None
    pattern = pattern_of(request.head.raw, request.body, query, model)
    return None if pattern is None else Template(routes, model, models, request.head, pattern, query)
