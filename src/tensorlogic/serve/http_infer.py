"""A request to infer over HTTP, from its complete body to its answer."""

from __future__ import annotations

import re
from functools import partial
from time import perf_counter, perf_counter_ns
from typing import Any, NamedTuple

from ..errors import FormatError, TensorLogicError
from ..events import watchers
from .http import Connection
from .http_messages import KnownHead, Reply, Request, error_reply
from .protocol import InferRequest, parse_request
from .repository import ServedModel
from .responses import encode_response, outputs_of
from .service import LARGE, status_of
from .templates import template_of

TRACEPARENT = re.compile(rb"00-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}")
ID = re.compile(rb"[!-~]{1,128}")
TEMPLATES = 1024  # that are kept
KINDS = frozenset({b"application/json", b"application/octet-stream", b"application/vnd.sagemaker-triton.binary+json"})


class HttpInfer:
    """A request to infer on its way: read, handed to the batcher, answered."""

    __slots__ = ("connection", "name", "query", "request", "request_id", "routes", "trace", "version")
    query: InferRequest

    def __init__(self, routes: Any, connection: Connection, request: Request, name: str, version: str) -> None:
        self.routes, self.connection, self.request = routes, connection, request
        self.name, self.version = name, version
        given_id, self.trace, _, _ = _facts(request.head)
        self.request_id = given_id or b"%b-%x" % (routes.prefix, next(routes.count))

    def start(self) -> None:
        """Read the body and hand it to the batcher."""
        body, service = self.request.body, self.routes.service
        service.metrics.in_flight += 1
        try:
            _, _, json_length, wrong = _facts(self.request.head)
            if wrong is not None:
                raise wrong.renamed(wrong.diagnostic.message)
            if (len(body) if json_length is None else json_length) > LARGE:
                service.on_thread(partial(parse_request, body, json_length, service.limits), self._begin, self._fail)
            else:
                self._begin(parse_request(body, json_length, service.limits))
        except Exception as error:
            self._fail(error)

    def _remember(self, query: InferRequest) -> None:
        """Keep what the next request with this head is likely to have in common with this one."""
        request, repository = self.request, self.routes.service.repository
        models, templates = repository.ready, repository.templates
        if not request.repeated or not request.keep or self.name not in models:
            return
        template = template_of(self.routes, models, self.name, self.version, request, query)
        if template is not None:
            if len(templates) >= TEMPLATES:
                templates.clear()
            templates[request.head] = template

    def _begin(self, query: InferRequest) -> None:
        service, request = self.routes.service, self.request
        self.query = query
        if service.draining:
            request.keep = False
        request.cancel = service.infer(self.name, self.version, query, None, self.done)
        self._remember(query)

    def done(self, model: ServedModel | None, outputs: Any) -> None:
        """Answer with the outputs, or with what went wrong."""
        if isinstance(outputs, BaseException):
            self._fail(outputs, model)
            return
        assert model is not None
        try:
            tensors = outputs_of(self.query, outputs, model.outputs)
            args = model.head, self.query.id, tensors
            if any(not t.binary and t.datatype != "BYTES" and t.value.nbytes > LARGE for t in tensors):
                reply, fail = partial(self._reply, model), partial(self._fail, model=model)
                self.routes.service.on_thread(partial(encode_response, *args), reply, fail)
            else:
                self._reply(model, encode_response(*args))
        except Exception as error:
            self._fail(error, model)

    def _reply(self, model: ServedModel, response: tuple[list[Any], int | None]) -> None:
        parts, json_length = response
        headers, kind = b"", b"application/json"
        if json_length is not None:
            kind, headers = b"application/octet-stream", b"Inference-Header-Content-Length: %d\r\n" % json_length
        headers += b"X-Request-Id: %b\r\n" % self.request_id
        self._finish(Reply(200, parts, kind, headers), model)

    def _fail(self, error: BaseException, model: ServedModel | None = None) -> None:
        reply = error_reply(error)
        reply.headers += b"X-Request-Id: %b\r\n" % self.request_id
        if status_of(error) >= 500 and self.routes.log is not None:
            self.routes.log.failure(error, self.trace)
        self._finish(reply, model)

    def _finish(self, reply: Reply, model: ServedModel | None) -> None:
        service, request = self.routes.service, self.request
        service.metrics.in_flight -= 1
        request.cancel = None
        if model is not None:
            seconds = perf_counter() - request.started
            service.metrics.model(model.name, model.version).count("http", reply.code or "ok", seconds)
        self.routes.finish(self.connection, request, reply, self.name)
        if hooks := watchers():
            end = perf_counter_ns()
            start = end - int((perf_counter() - request.started) * 1e9)
            name = f"request {self.request_id.decode()} model={self.name} trace={self.trace or '-'} {reply.status}"
            for hook in hooks:
                hook.on_span(name, start, end, id(self.connection) & 0x7FFF_FFFF)  # a track for each connection


class Facts(NamedTuple):
    """What the headers of a request to infer say: its id, its trace, the length of its JSON, and what is wrong with them."""

    id: bytes
    trace: str
    json_length: int | None
    error: TensorLogicError | None


def _facts(head: KnownHead) -> Facts:
    """Return what the headers of a request to infer say; requests with the same head share it."""
    if head.infer_facts is None:
        head.infer_facts = _read_facts(head.headers)
    return head.infer_facts  # type: ignore[no-any-return]


def _read_facts(headers: dict[bytes, bytes]) -> Facts:
    given, kind = headers.get(b"x-request-id", b""), headers.get(b"content-type")
    length = headers.get(b"inference-header-content-length")
    parent = TRACEPARENT.fullmatch(headers.get(b"traceparent", b""))  # of W3C; the trace that the request belongs to
    id, trace = given if ID.fullmatch(given) else b"", "" if parent is None else parent[1].decode()
    if kind is not None and kind.partition(b";")[0].strip().lower() not in KINDS:
        return Facts(id, trace, None, wrong_kind(kind))
    if length is not None and (not length.isdigit() or len(length) > 18):
        what = f"Inference-Header-Content-Length is {length[:40].decode('latin-1')!r}, no number"
        return Facts(id, trace, None, FormatError(what, code="E471"))
    return Facts(id, trace, None if length is None else int(length), None)


def wrong_kind(kind: bytes) -> FormatError:
    """Return the error of a body that is neither JSON nor JSON with binary tensors."""
    message = f"the content type {kind[:80].decode('latin-1')!r} is not read here"
    return FormatError(message, "send application/json", code="E485")
