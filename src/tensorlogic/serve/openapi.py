"""The OpenAPI description of the server, made of its table of paths."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .. import __version__
from .protocol import DATATYPES

TEXT, WHOLE, FLAG, ANY = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}, {"type": "object"}
DATATYPE = {"type": "string", "enum": [*DATATYPES, "BYTES"]}
SHAPE = {"type": "array", "items": WHOLE}


def _object(required: str, **properties: Any) -> dict[str, Any]:
    return {"type": "object", "required": required.split(), "properties": properties}


def _list(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_METADATA = _object("name datatype shape", name=TEXT, datatype=DATATYPE, shape=SHAPE, parameters=ANY)
_INPUT = _object(
    "name datatype shape", name=TEXT, datatype=DATATYPE, shape=SHAPE, parameters=ANY, data={"type": "array"}
)
_STATS = _object("name version inference_count", name=TEXT, version=TEXT, inference_count=WHOLE)
SCHEMAS: dict[str, Any] = {
    "Error": _object("error code", error=TEXT, code=TEXT, hints=_list(TEXT), retry_after={"type": "number"}),
    "Live": _object("live", live=FLAG),
    "Ready": _object("ready", ready=FLAG),
    "ServerMetadata": _object("name version extensions", name=TEXT, version=TEXT, extensions=_list(TEXT)),
    "ModelMetadata": _object(
        "name versions platform inputs outputs",
        name=TEXT, versions=_list(TEXT), platform=TEXT, inputs=_list(_METADATA), outputs=_list(_METADATA),
    ),
    "ModelReady": _object("name ready", name=TEXT, ready=FLAG),
    "ModelConfig": _object("name platform input output", name=TEXT, platform=TEXT, input=_list(ANY), output=_list(ANY)),
    "Statistics": _object("model_stats", model_stats=_list(_STATS)),
    "InferRequest": _object(
        "inputs", id=TEXT, parameters=ANY, inputs=_list(_INPUT), outputs=_list(_object("name", name=TEXT, parameters=ANY))
    ),
    "InferResponse": _object(
        "model_name model_version outputs", model_name=TEXT, model_version=TEXT, id=TEXT, outputs=_list(_INPUT)
    ),
    "IndexRequest": {"type": "object", "properties": {"ready": FLAG}},
    "Index": _list(_object("name version state reason", name=TEXT, version=TEXT, state=TEXT, reason=TEXT)),
    "LoadRequest": {"type": "object", "properties": {"parameters": ANY}},
    "Empty": {"type": "object"},
    "Status": _object("models index numbers histograms", models=_list(ANY), index=_list(ANY), numbers=ANY, histograms=ANY),
    "Description": {"type": "object"},
}  # fmt: skip
REFUSALS = {
    400: "The request is malformed, or its names, shapes or datatypes are not the model's.",
    401: "A token is needed.",
    403: "Requests may not change the models here.",
    404: "There is no such path, model or version.",
    405: "The path takes another method.",
    408: "The request did not arrive in time.",
    413: "The body is over its limit.",
    415: "The content type or encoding is not read here.",
    422: "It would take more arithmetic or memory than is allowed, or its answer cannot be written as JSON.",
    429: "The queue is full; Retry-After says when to come back.",
    431: "The headers are over their limit.",
    500: "A model failed, or could not be loaded.",
    503: "The server goes down, or has no room now.",
    504: "The time for the request was over.",
}


def description(routes: Iterable[Any]) -> dict[str, Any]:
    """Return the description of the server's paths."""
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        refusals = {str(status): _answer(about, "Error") for status, about in REFUSALS.items()}
        found: dict[str, Any] = {
            "summary": route.about,
            "operationId": f"{route.method.lower()}{re.sub(r'[^A-Za-z]+', '_', route.path)}",
            "responses": {"200": _answer("The answer.", route.answer, route), **refusals},
        }
        if names := re.findall(r"\{(\w+)\}", route.path):
            kind = {"type": "string", "minLength": 1}
            found["parameters"] = [{"name": n, "in": "path", "required": True, "schema": kind} for n in names]
        if route.body:
            content = {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.body}"}}}
            found["requestBody"] = {"required": route.body == "InferRequest", "content": content}
        if not route.public:
            found["security"] = [{}, {"token": []}]
        paths.setdefault(route.path, {})[route.method.lower()] = found
    return {
        "openapi": "3.1.0",
        "info": {"title": "tensorlogic serve: Open Inference Protocol, version 2", "version": __version__},
        "paths": paths,
        "components": {"schemas": SCHEMAS, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _answer(about: str, schema: str, route: Any = None) -> dict[str, Any]:
    if schema:
        content: dict[str, Any] = {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}}
        if schema == "InferResponse":
            content["application/octet-stream"] = {}
    else:
        content = {"text/html" if route is not None and route.path == "/" else "text/plain": {}}
    return {"description": about, "content": content}
