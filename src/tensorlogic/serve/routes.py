"""The paths of the server: a table of who answers what, which the OpenAPI description is made of too."""

from __future__ import annotations

import hmac
import itertools
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
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
from .repository import ServedModel
from .service import LARGE, Service
from .templates import Template, TemplateRequest

EXTENSIONS = ["binary_tensor_data", "model_repository", "model_configuration", "statistics"]
LOCAL = re.compile(rb"(localhost|127\.0\.0\.1|\[::1\])(:[0-9]+)?")
CACHED = 1024  # paths of requests to infer that are looked up at once
Handler = Callable[["Routes", Request, Mapping[str, str]], "Reply | Awaitable[Reply]"]


class Route(NamedTuple):
    """A method and a path, who answers, and what the description says of it."""

    method: str
    path: str
    handler: Handler
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
        if self.tokens and not self._is_public(request):
            given = request.headers.get(b"authorization", b"")
            if not allowed(given, self.tokens):
                raise InputError("a token is needed", "send Authorization: Bearer TOKEN", code="E482")

    def _is_public(self, request: Request) -> bool:
        path = request.url.partition(b"?")[0]
        return any(r.public and r.path.encode() == path for r in ROUTES)

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
            if route.handler is infer:
                if len(self.infers) < CACHED and values["name"] in self.service.repository.ready:
                    self.infers[request.url] = values["name"], values.get("version", "")
                HttpInfer(self, connection, request, values["name"], values.get("version", "")).start()
                return
            self._send(connection, request, partial(route.handler, self, request, values))
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
        answer.told = template.wanted
        answer.done(template.model, outcome)

    def _send(self, connection: Connection, request: Request, handler: Callable[[], Any]) -> None:
        try:
            found = handler()
        except TensorLogicError as error:
            found = error_reply(error)
        if isinstance(found, Reply):
            self.finish(connection, request, found)
            return
        loop = self.service.loop
        assert loop is not None
        task = loop.create_task(found)

        def done(task: Any) -> None:
            error = None if task.cancelled() else task.exception()
            self.finish(connection, request, task.result() if error is None else error_reply(error))

        task.add_done_callback(done)

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


def infer(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    """Stands in the table for the requests that :class:`HttpInfer` answers before they come here."""
    raise AssertionError("HttpInfer answers these")


def _live(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    return json_reply({"live": True})


def _ready(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    if routes.service.draining:
        raise TensorLogicError("the server is going down", "ask another one", code="E487")
    return json_reply({"ready": True})


def _server(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    return json_reply({"name": routes.service.name, "version": __version__, "extensions": EXTENSIONS})


def _metadata(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    repository = routes.service.repository
    model = repository.find(values["name"], values.get("version", ""))
    return json_reply(model.metadata(list(repository.ready[model.name])))


def _model_ready(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    model = routes.service.repository.find(values["name"], values.get("version", ""))
    return json_reply({"name": model.name, "ready": True})


def _config(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    return json_reply(routes.service.repository.find(values["name"], values.get("version", "")).config())


def _stats(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    service = routes.service
    models = (
        [service.repository.find(values["name"], values.get("version", ""))] if "name" in values else service.models()
    )
    return json_reply({"model_stats": [statistics(service, model) for model in models]})


def statistics(service: Service, model: ServedModel) -> dict[str, Any]:
    """Return what was counted for a model, in the fields that Triton's clients read."""
    found = service.metrics.model(model.name, model.version)
    good = sum(count for (_, code), count in found.codes.items() if code == "ok")
    bad = sum(found.codes.values()) - good
    stats = model.batcher.stats()
    sizes, whole = stats.batch_sizes, int(found.seconds.total * 1e9)
    queue = min(whole, int(stats.avg_queue_time * stats.completed * 1e9))
    return {
        "name": model.name,
        "version": model.version,
        "inference_count": good,
        "execution_count": sum(sizes.values()),
        "inference_stats": {
            "success": {"count": good, "ns": whole},
            "fail": {"count": bad, "ns": 0},
            "queue": {"count": good, "ns": queue},
            "compute_input": {"count": good, "ns": 0},
            "compute_infer": {"count": good, "ns": whole - queue},
            "compute_output": {"count": good, "ns": 0},
        },
        "batch_stats": [{"batch_size": size} for size in sorted(sizes)],
    }


def _index(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    told = _json_body(request)
    return json_reply(routes.service.repository.index(told.get("ready") is True))


def loaded_with_parameters(name: str) -> TensorLogicError:
    """Return the error of a request to load a model in another way than its folder says."""
    return malformed(f"failed to load {name[:100]!r}: a model is loaded as its folder says, without parameters")


async def _load(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    told = _json_body(request)
    if told.get("parameters"):
        raise loaded_with_parameters(values["name"])
    await routes.service.change("load", values["name"])
    return json_reply({})


async def _unload(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    _json_body(request)
    await routes.service.change("unload", values["name"])
    return json_reply({})


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


async def _metrics(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    text = prometheus(await routes.service.all_snapshots())
    return Reply(200, [text.encode()], b"text/plain; version=0.0.4; charset=utf-8")


async def _status(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    service = routes.service
    versions = {name: list(models) for name, models in service.repository.ready.items()}
    models = [{**m.metadata(versions[m.name]), "version": m.version} for m in service.models()]
    seconds = perf_counter() - service.started
    found = {"server": service.name, "version": __version__, "seconds": seconds, "draining": service.draining}
    return json_reply({**found, "models": models, "index": service.repository.index(), **await service.all_snapshots()})


def _page(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    return Reply(200, [status_page.PAGE], b"text/html; charset=utf-8", status_page.HEADERS)


def _openapi(routes: Routes, request: Request, values: Mapping[str, str]) -> Reply:
    from .openapi import description

    return json_reply(description(ROUTES))


MODEL, VERSION = "/v2/models/{name}", "/v2/models/{name}/versions/{version}"
ROUTES = [
    Route("GET", "/v2/health/live", _live, "Whether the server answers at all.", answer="Live", public=True),
    Route("GET", "/v2/health/ready", _ready, "Whether the server takes requests; not while it goes down.", answer="Ready", public=True),
    Route("GET", "/v2", _server, "The name, version and extensions of the server.", answer="ServerMetadata"),
    *(Route("POST", f"{path}/infer", infer, "Run the model on inputs.", "InferRequest", "InferResponse") for path in (MODEL, VERSION)),
    *(Route("GET", path, _metadata, "The inputs and outputs of the model.", answer="ModelMetadata") for path in (MODEL, VERSION)),
    *(Route("GET", f"{path}/ready", _model_ready, "Whether the model is served.", answer="ModelReady") for path in (MODEL, VERSION)),
    *(Route("GET", f"{path}/config", _config, "How the model is configured.", answer="ModelConfig") for path in (MODEL, VERSION)),
    *(Route("GET", f"{path}/stats", _stats, "What was counted for the model.", answer="Statistics") for path in (MODEL, VERSION)),
    Route("GET", "/v2/models/stats", _stats, "What was counted for all models.", answer="Statistics"),
    Route("POST", "/v2/repository/index", _index, "Every model and version, and whether it is served.", "IndexRequest", "Index"),
    Route("POST", "/v2/repository/models/{name}/load", _load, "Load a model, or load it anew.", "LoadRequest", "Empty"),
    Route("POST", "/v2/repository/models/{name}/unload", _unload, "Stop serving a model.", "LoadRequest", "Empty"),
    Route("GET", "/metrics", _metrics, "Metrics in the text format of Prometheus."),
    Route("GET", "/status.json", _status, "What the status page shows.", answer="Status"),
    Route("GET", "/openapi.json", _openapi, "This description.", answer="Description"),
    Route("GET", "/", _page, "The status page.", public=True),
]  # fmt: skip
ROUTES.sort(key=lambda r: "{" in r.path)  # a path without names before one that could be taken for it
PATTERNS = [(route, re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(route.path)))) for route in ROUTES]
