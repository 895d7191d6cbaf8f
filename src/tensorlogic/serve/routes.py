"""The paths of the server: a table of who answers what, which the OpenAPI description is made of too."""

from __future__ import annotations

import asyncio
import hmac
import itertools
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple
from urllib.parse import unquote

import msgspec

from .. import __version__
from ..errors import InputError, TensorLogicError
from . import status_page
from .access_log import AccessLog
from .http import Connection
from .http_infer import KINDS, HttpInfer, wrong_kind
from .http_messages import KnownHead, Reply, Request, error_reply, json_reply
from .metrics import prometheus
from .protocol import malformed
from .service import LARGE, Service
from .templates import Template, TemplateRequest

LOCAL = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?")
CACHED = 1024  # paths of requests to infer that are looked up at once
# returns a reply, or a value that becomes JSON, or something to wait for that does
Handler = Callable[[Service, Request, Mapping[str, str]], Any]


class Route(NamedTuple):
    """A method and a path, who answers, and what the description says of it."""

    method: str
    path: str
    handler: Handler | None  # None: HttpInfer answers
    about: str
    body: str = ""  # the schema of the request
    answer: str = ""  # and of a good answer; "" is no JSON
    public: bool = False  # asked for without a token


class Routes:
    """Answers requests of HTTP: looks up the path, checks the token, and hands over to the service."""

    def __init__(
        self, service: Service, tokens: Sequence[str] = (), log: AccessLog | None = None, *, local: bool = True
    ) -> None:
        self.service, self.log, self.local = service, log, local
        self.tokens = [f"Bearer {token}".encode() for token in tokens]
        self.infers: dict[bytes, tuple[str, str]] = {}
        self.prefix, self.count = os.urandom(4).hex().encode(), itertools.count(1)  # of ids of requests that have none

    # before the body is there

    def refuse_early(self, request: Request) -> None:
        """Refuse a request of another site's page, or without the right token, before its body is read."""
        origin = request.headers.get(b"origin")
        if origin is not None:
            place = origin.partition(b"//")[2]
            elsewhere = self.local and LOCAL.fullmatch(place) is None  # a name of someone's that leads to this machine
            if elsewhere or place != request.headers.get(b"host"):
                raise InputError("pages of other sites may not ask here", code="E480")
        public = not self.tokens or request.url.partition(b"?")[0] in PUBLIC
        if not public and not allowed(request.headers.get(b"authorization", b""), self.tokens):
            raise InputError("a token is needed", "send Authorization: Bearer TOKEN", code="E482")

    # answering

    def template(self, head: KnownHead) -> Template | None:
        """Return how requests with a head that came before are answered, where that is known."""
        return self.service.repository.templates.get(head)

    def answer(self, connection: Connection, request: Request) -> None:
        """Answer a request that is complete."""
        target = self.infers.get(request.url)
        if target is not None and request.method == b"POST":
            HttpInfer(self, connection, request, *target).start()
            return
        path = request.url.partition(b"?")[0].decode("latin-1")
        allow = []
        for route, pattern in PATTERNS:
            if (found := pattern.fullmatch(path)) is None:
                continue
            if route.method.encode() != request.method:
                allow.append(route.method)
                continue
            values = {name: unquote(text) for name, text in found.groupdict().items()}
            if route.handler is None:
                if len(self.infers) < CACHED and values["name"] in self.service.repository.ready:
                    self.infers[request.url] = values["name"], values.get("version", "")
                HttpInfer(self, connection, request, values["name"], values.get("version", "")).start()
                return
            self._send(connection, request, partial(route.handler, self.service, request, values))
            return
        if allow:
            error: TensorLogicError = InputError(f"{path[:200]} takes {' and '.join(allow)}", code="E484")
            reply = error_reply(error)
            reply.headers += f"Allow: {', '.join(allow)}\r\n".encode()
        else:
            error = InputError(f"there is no path {path[:200]!r}", "/openapi.json describes them all", code="E483")
            reply = error_reply(error)
        self.finish(connection, request, reply)

    def answer_in_full(self, request: TemplateRequest, outcome: Any) -> None:
        """Answer a request that a template began, the long way: it failed, its connection is to be closed, or JSON cannot hold its output."""
        template, connection = request.template, request.connection
        whole = Request(template.head, request.started, request.body, repeated=True)
        if connection.current is request:
            connection.current = whole
        answer = HttpInfer(self, connection, whole, template.model.name, template.model.version)
        answer.query = template.query
        answer.done(template.model, outcome)

    def _send(self, connection: Connection, request: Request, handler: Callable[[], Any]) -> None:
        def answer(found: Any) -> None:
            self.finish(connection, request, found if isinstance(found, Reply) else json_reply(found))

        def done(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            answer(task.result() if error is None else error_reply(error))

        try:
            found = handler()
        except TensorLogicError as error:
            found = error_reply(error)
        if asyncio.iscoroutine(found):
            assert self.service.loop is not None
            self.service.loop.create_task(found).add_done_callback(done)
        else:
            answer(found)

    def finish(self, connection: Connection, request: Request, reply: Reply, model: str = "") -> None:
        """Send a reply and write it to the log."""
        if reply.code:
            self.service.metrics.refuse(reply.code)
        connection.reply(request, reply)
        if self.log is not None and self.log.requests:
            self.log.request(request, reply, model, perf_counter() - request.started)


def allowed(given: bytes, tokens: Sequence[bytes]) -> bool:
    """Tell whether a token is among those that are known; how long this takes tells nothing about them.

    >>> allowed(b"Bearer abc", [b"Bearer xyz", b"Bearer abc"])
    True
    """
    return sum([hmac.compare_digest(given, token) for token in tokens]) > 0


# the table


def _ready(service: Service, *_: Any) -> Any:
    if service.draining:
        raise TensorLogicError("the server is going down", "ask another one", code="E487")
    return {"ready": True}


def _model(values: Mapping[str, str]) -> tuple[str, str]:
    """Return the name and the version of the model in a path; one that is not there is empty."""
    return values.get("name", ""), values.get("version", "")


def _metadata(service: Service, _: Any, values: Mapping[str, str]) -> Any:
    return service.metadata(*_model(values))


def _model_ready(service: Service, _: Any, values: Mapping[str, str]) -> Any:
    return {"name": service.repository.find(*_model(values)).name, "ready": True}


def _config(service: Service, _: Any, values: Mapping[str, str]) -> Any:
    return service.repository.find(*_model(values)).config()


def _statistics(service: Service, _: Any, values: Mapping[str, str]) -> Any:
    return service.statistics(*_model(values))


def _index(service: Service, request: Request, _: Any) -> Any:
    return service.repository.index(_json_body(request).get("ready") is True)


def loaded_with_parameters(name: str) -> TensorLogicError:
    """Return the error of a request to load a model in another way than its folder says."""
    return malformed(f"failed to load {name[:100]!r}: a model is loaded as its folder says, without parameters")


async def _load(service: Service, request: Request, values: Mapping[str, str]) -> Any:
    if _json_body(request).get("parameters"):
        raise loaded_with_parameters(values["name"])
    await service.change("load", values["name"])
    return {}


async def _unload(service: Service, request: Request, values: Mapping[str, str]) -> Any:
    _json_body(request)
    await service.change("unload", values["name"])
    return {}


def _json_body(request: Request) -> dict[str, Any]:
    if not request.body:
        return {}
    kind = request.headers.get(b"content-type")
    if kind is not None and kind.partition(b";")[0].strip().lower() not in KINDS:
        raise wrong_kind(kind)
    if len(request.body) > LARGE:
        raise malformed("the body is far larger than anything that is said here")
    try:
        return msgspec.json.decode(request.body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise malformed(f"the body is no JSON object: {error}") from None


async def _metrics(service: Service, *_: Any) -> Reply:
    text = prometheus(await service.all_snapshots())
    return Reply(200, [text.encode()], b"text/plain; version=0.0.4; charset=utf-8")


async def _status(service: Service, *_: Any) -> Any:
    versions = {name: list(models) for name, models in service.repository.ready.items()}
    models = [{**m.metadata(versions[m.name]), "version": m.version} for m in service.models()]
    seconds = perf_counter() - service.started
    found = {"server": service.name, "version": __version__, "seconds": seconds, "draining": service.draining}
    return {**found, "models": models, "index": service.repository.index(), **await service.all_snapshots()}


def _page(*_: Any) -> Reply:
    return Reply(200, [status_page.PAGE], b"text/html; charset=utf-8", status_page.HEADERS)


def _openapi(*_: Any) -> Any:
    from .openapi import description

    return description(ROUTES)


MODEL, VERSION = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
ROUTES = [
    Route("GET", "/v2/health/live", lambda *_: {"live": True}, "Whether the server answers at all.", answer="Live", public=True),
    Route("GET", "/v2/health/ready", _ready, "Whether the server takes requests; not while it goes down.", answer="Ready", public=True),
    Route("GET", "/v2", lambda service, *_: service.about(), "The name, version and extensions of the server.", answer="ServerMetadata"),
    *(Route("POST", f"{path}/infer", None, "Run the model on inputs.", "InferRequest", "InferResponse") for path in (MODEL, VERSION)),
    *(Route("GET", path, _metadata, "The inputs and outputs of the model.", answer="ModelMetadata") for path in (MODEL, VERSION)),
    *(Route("GET", f"{path}/ready", _model_ready, "Whether the model is served.", answer="ModelReady") for path in (MODEL, VERSION)),
    *(Route("GET", f"{path}/config", _config, "How the model is configured.", answer="ModelConfig") for path in (MODEL, VERSION)),
    *(Route("GET", f"{path}/stats", _statistics, "What was counted for the model.", answer="Statistics") for path in (MODEL, VERSION)),
    Route("GET", "/v2/models/stats", _statistics, "What was counted for all models.", answer="Statistics"),
    Route("POST", "/v2/repository/index", _index, "Every model and version, and whether it is served.", "IndexRequest", "Index"),
    Route("POST", "/v2/repository/models/{name}/load", _load, "Load a model, or load it anew.", "LoadRequest", "Empty"),
    Route("POST", "/v2/repository/models/{name}/unload", _unload, "Stop serving a model.", "LoadRequest", "Empty"),
    Route("GET", "/metrics", _metrics, "Metrics in the text format of Prometheus."),
    Route("GET", "/status.json", _status, "What the status page shows.", answer="Status"),
    Route("GET", "/openapi.json", _openapi, "This description.", answer="Description"),
    Route("GET", "/", _page, "The status page.", public=True),
]  # fmt: skip
ROUTES.sort(key=lambda r: "{" in r.path)  # a path without names before one that could be taken for it
PUBLIC = {route.path.encode() for route in ROUTES if route.public}
PATTERNS = [(route, re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(route.path)))) for route in ROUTES]
