"""Messages of HTTP/1.1: requests, replies and their heads."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from math import ceil
from typing import Any

import msgspec

from ..errors import FormatError
from .protocol import too_large
from .service import error_body, status_of

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type", 422: "Unprocessable Content",
    429: "Too Many Requests", 431: "Request Header Fields Too Large", 499: "Client Closed Request", 500: "Internal Server Error",
    503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
HEADS = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason.encode()) for status, reason in REASONS.items()}
JSON = b"application/json"
HEAD = 1024  # bytes of a head that may be kept
# requests with these are always read in full
NOT_REPEATED = {b"expect", b"upgrade", b"transfer-encoding", b"content-encoding"}

_encode = msgspec.json.Encoder().encode


class KnownHead:
    """The head of a request that was parsed before: requests that begin with the same bytes share what is known of it."""

    __slots__ = ("headers", "infer_facts", "keep", "length", "method", "raw", "url")

    def __init__(self, method: bytes, url: bytes, headers: dict[bytes, bytes], keep: bool) -> None:
        self.method, self.url, self.headers, self.keep = method, url, headers, keep
        self.length, self.raw = -1, b""  # of the body, and the bytes of the head; -1 where it came in pieces
        self.infer_facts: Any = None  # what its headers say to a request to infer


class Request:
    """One request: its head, and its body once that is there."""

    __slots__ = ("body", "cancel", "head", "headers", "keep", "method", "repeated", "started", "url")

    def __init__(self, head: KnownHead, started: float, body: Any = b"", *, repeated: bool = False) -> None:
        self.head, self.started, self.body = head, started, body
        self.method, self.url, self.headers, self.keep = head.method, head.url, head.headers, head.keep
        self.repeated = repeated  # whether its head came before, byte for byte
        self.cancel: Callable[[], object] | None = None  # how to give it up while it is being answered


def may_repeat(head: KnownHead, data: bytes) -> bool:
    """Tell whether requests may be known by their head, given one that came whole, and note its bytes and the length of its body."""
    length, end = head.headers.get(b"content-length", b""), data.find(b"\r\n\r\n") + 4
    if not length.isdigit() or len(data) != end + int(length) or end > HEAD or head.headers.keys() & NOT_REPEATED:
        return False
    head.length, head.raw = int(length), data[:end]
    return True


class Reply:
    """What is sent back: a status, the parts of a body, and headers beside those that every reply has."""

    __slots__ = ("code", "headers", "kind", "parts", "status")

    def __init__(self, status: int, parts: list[Any], kind: bytes = JSON, headers: bytes = b"", code: str = "") -> None:
        self.status, self.parts, self.kind, self.headers, self.code = status, parts, kind, headers, code


def json_reply(value: Any) -> Reply:
    """Return a reply with a JSON body."""
    return Reply(200, [_encode(value)])


def error_reply(error: BaseException) -> Reply:
    """Return the reply that says what went wrong, with a code for programs and a message for people."""
    status, body = status_of(error), error_body(error)
    headers = b""
    if "retry_after" in body:
        headers = b"Retry-After: %d\r\n" % max(1, ceil(body["retry_after"]))
    elif status == 503:
        headers = b"Retry-After: 1\r\n"
    elif status == 401:
        headers = b"WWW-Authenticate: Bearer\r\n"
    return Reply(status, [_encode(body)], JSON, headers, body["code"])


def head_of(reply: Reply, length: int, *, keep: bool) -> bytes:
    """Return the head of a reply whose body has so many bytes."""
    return b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
        HEADS[reply.status], reply.kind, length, reply.headers, b"" if keep else b"Connection: close\r\n",
    )  # fmt: skip


def decompress(body: Any, encoding: bytes, limit: int) -> bytes:
    """Return a body that came compressed; one that would become larger than the limit is refused while it grows."""
    kinds = {b"gzip": 31, b"deflate": 15, b"identity": 0}
    bits = kinds.get(encoding.strip().lower())
    if bits is None:
        message = f"the content encoding {encoding[:40]!r} is not read here"
        raise FormatError(message, "send gzip or deflate", code="E485")
    if not bits:
        return bytes(body)
    reader = zlib.decompressobj(bits)
    try:
        found = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise FormatError(f"the body is not {encoding.decode()}: {error}", code="E470") from None
    if len(found) > limit:
        raise too_large("the body", len(found), limit)
    if not reader.eof:
        raise FormatError(f"the body ends within its {encoding.decode()} stream", code="E470")
    return found
