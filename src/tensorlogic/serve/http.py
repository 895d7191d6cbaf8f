"""HTTP/1.1 on an event loop: one object for each connection, parsed by httptools; a request is refused as early as it can be."""

from __future__ import annotations

import asyncio
import zlib
from collections import deque
from collections.abc import Callable
from math import ceil
from time import perf_counter
from typing import Any, NamedTuple

import httptools
import msgspec
import numpy as np

from ..errors import DeadlineError, FormatError, InputError, TensorLogicError
from .protocol import too_large
from .service import described, status_of

REASONS = {
    200: "OK", 400: "Bad Request", 401: "Unauthorized", 403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed",
    408: "Request Timeout", 413: "Content Too Large", 415: "Unsupported Media Type", 422: "Unprocessable Content",
    429: "Too Many Requests", 431: "Request Header Fields Too Large", 499: "Client Closed Request", 500: "Internal Server Error",
    503: "Service Unavailable", 504: "Gateway Timeout",
}  # fmt: skip
HEADS = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason.encode()) for status, reason in REASONS.items()}
JSON = b"application/json"
RECEIVE = 64 << 10  # bytes that are read at one time; a larger body is read into its own memory
PIPELINED = 8  # requests of one connection that may wait for the one before them
HEAD = 1024  # bytes of a head that is kept because the next one may be the same
HEADS_KEPT = 1024
LINGER = 2.0  # seconds that a connection which is to be closed is still read, so that its client sees the answer
ALIGN = 64

_encode = msgspec.json.Encoder().encode


class Request:
    """One request: its method, path, headers and body."""

    __slots__ = ("body", "headers", "keep", "method", "notes", "repeated", "started", "url")

    def __init__(self, method: bytes, url: bytes, headers: dict[bytes, bytes], keep: bool, started: float) -> None:
        self.method, self.url, self.headers, self.keep, self.started = method, url, headers, keep, started
        self.body: Any = b""
        self.notes: dict[str, Any] = {}  # what is known of its head; requests with the same head share them
        self.repeated = False  # whether its head came before, byte for byte


class Reply:
    """What is sent back: a status, the parts of a body, and headers beside those that every reply has."""

    __slots__ = ("code", "headers", "kind", "parts", "status")

    def __init__(self, status: int, parts: list[Any], kind: bytes = JSON, headers: bytes = b"", code: str = "") -> None:
        self.status, self.parts, self.kind, self.headers, self.code = status, parts, kind, headers, code


def json_reply(value: Any, status: int = 200) -> Reply:
    """Return a reply with a JSON body."""
    return Reply(status, [_encode(value)])


def error_reply(error: BaseException) -> Reply:
    """Return the reply that says what went wrong, with a code for programs and a message for people."""
    status, body = status_of(error), described(error)
    headers = b""
    if "retry_after" in body:
        headers = b"Retry-After: %d\r\n" % max(1, ceil(body["retry_after"]))
    elif status == 503:
        headers = b"Retry-After: 1\r\n"
    elif status == 401:
        headers = b"WWW-Authenticate: Bearer\r\n"
    return Reply(status, [_encode(body)], JSON, headers, body["code"])


class KnownHead(NamedTuple):
    """The head of a request that was parsed before, and the length of the body that it announces."""

    method: bytes
    url: bytes
    headers: dict[bytes, bytes]
    keep: bool
    length: int
    notes: dict[str, Any]


class Listener:
    """What the connections of one server share: who answers, the limits, the buffer they read into, and who is open."""

    def __init__(
        self,
        answer: Callable[[Connection, Request], None],
        limits: Any,
        metrics: Any,
        refuse_early: Callable[[Request], None],
    ) -> None:
        self.answer, self.limits, self.metrics, self.refuse_early = answer, limits, metrics, refuse_early
        self.buffer = memoryview(bytearray(RECEIVE))
        self.connections: set[Connection] = set()
        self.draining = False
        self.heads: dict[bytes, KnownHead] = {}
        self.buffered = 0  # bytes of bodies that are being received
        self.busy = 0  # requests that are being answered

    def __call__(self) -> Connection:
        return Connection(self)

    def sweep(self) -> None:
        """Close the connections whose time is over."""
        now = perf_counter()
        for connection in [c for c in self.connections if c.deadline < now]:
            connection.expire()

    def close_idle(self) -> None:
        """Close the connections that wait for their next request."""
        for connection in [c for c in self.connections if c.idle]:
            connection.close()


class Connection(asyncio.BufferedProtocol):
    """One connection. It answers one request at a time, in order; those sent ahead wait, and then reading pauses."""

    __slots__ = (
        "body", "cancel", "chunks", "current", "deadline", "direct", "half_closed", "head_bytes", "headers", "idle", "last", "lingering", "listener",
        "parser", "paused", "received", "request", "started", "transport", "url", "waiting",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.transport: Any = None
        self.parser = httptools.HttpRequestParser(self)
        self.current: Request | None = None  # being answered
        self.request: Request | None = None  # being received, its head is complete
        self.waiting: deque[Request] | None = None
        self.cancel: Callable[[], object] | None = None  # how to give up the one being answered
        self.direct: memoryview | None = None  # where a large body is read into
        self.last: Request | None = None  # received last
        self.received = self.head_bytes = 0
        self.lingering = self.paused = self.half_closed = False
        self.idle = True
        self.deadline = 0.0

    # the transport

    def connection_made(self, transport: Any) -> None:
        listener = self.listener
        self.transport = transport
        self.deadline = perf_counter() + listener.limits.idle_seconds
        if len(listener.connections) >= listener.limits.connections:
            listener.connections.add(self)
            self.refuse(TensorLogicError("too many connections are open", "come back later", code="E499"))
            return
        listener.connections.add(self)
        listener.metrics.connections = len(listener.connections)

    def connection_lost(self, error: Exception | None) -> None:
        listener = self.listener
        listener.connections.discard(self)
        listener.metrics.connections = len(listener.connections)
        self._drop_body()
        if self.cancel is not None:
            self.cancel()  # nobody waits for it any more
        if self.current is not None:
            self._ended()
        self.waiting = self.transport = None

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.listener.buffer if self.direct is None else self.direct[self.received :]

    def buffer_updated(self, count: int) -> None:
        if self.lingering:
            return
        if self.direct is not None:
            self.received += count
            if self.received == len(self.direct):
                self._complete()
                self.parser = httptools.HttpRequestParser(self)  # which has not seen the body
            return
        if self.request is None:
            if not self.head_bytes and self._known(count):
                return
            self.head_bytes += count
        try:
            whole = self.head_bytes == count
            self._feed(self.listener.buffer[:count])
            if whole and self.last is not None and self.request is None:
                self._remember(self.last, count)
            self.last = None
        except httptools.HttpParserError as error:
            if not self.lingering:
                self.refuse(FormatError(f"this is no HTTP request: {error}", code="E470"))
        if self.head_bytes > self.listener.limits.head_bytes and not self.lingering:
            limit = self.listener.limits.head_bytes
            self.refuse(InputError(f"the headers have more than {limit:,} bytes", code="E492"))

    def _known(self, count: int) -> bool:
        """Take in a whole request whose head is byte for byte one that was parsed before; False where it is none."""
        listener = self.listener
        data = bytes(listener.buffer[:count])
        end = data.find(b"\r\n\r\n") + 4
        known = listener.heads.get(data[:end])
        if known is None or count != end + known.length:
            return False
        self.started = perf_counter()
        self.idle = False
        request = Request(known.method, known.url, known.headers, known.keep, self.started)
        request.body, request.repeated, request.notes = data[end:], True, known.notes
        self._take(request)
        return True

    def _remember(self, request: Request, count: int) -> None:
        """Keep the head of a request that came whole, so that the next one like it need not be parsed."""
        listener, data = self.listener, bytes(self.listener.buffer[:count])
        length = request.headers.get(b"content-length", b"")
        end = data.find(b"\r\n\r\n") + 4
        if (
            length.isdigit() and count == end + int(length) and end <= HEAD and len(listener.heads) < HEADS_KEPT
            and b"expect" not in request.headers and b"upgrade" not in request.headers and b"transfer-encoding" not in request.headers
        ):  # fmt: skip
            listener.heads[data[:end]] = KnownHead(
                request.method, request.url, request.headers, request.keep, int(length), request.notes
            )

    def _feed(self, data: memoryview) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # another protocol was offered: go on with this one
            self.parser = httptools.HttpRequestParser(self)
            self._feed(data[upgrade.args[0] :])

    def eof_received(self) -> bool:
        self.half_closed = True
        return self.current is not None or bool(self.waiting)  # what was asked is still answered

    def pause_writing(self) -> None:
        self.paused = True
        self.deadline = perf_counter() + self.listener.limits.seconds

    def resume_writing(self) -> None:
        self.paused = False
        if self.current is None:
            self._next()

    # the parser

    def on_message_begin(self) -> None:
        self.url = b""
        self.headers: dict[bytes, bytes] = {}
        self.started = perf_counter()
        self.received = 0
        self.head_bytes = self.head_bytes or 1  # a head has begun, perhaps behind the request before it
        self.idle = False
        if self.current is None:
            self.deadline = self.started + self.listener.limits.seconds

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.lower()] = value

    def on_headers_complete(self) -> None:
        self.head_bytes = 0
        parser, headers, limits = self.parser, self.headers, self.listener.limits
        request = self.request = Request(
            parser.get_method(), self.url, headers, parser.should_keep_alive(), self.started
        )
        self.chunks: list[bytes] = []
        self.body = 0
        try:
            self.listener.refuse_early(request)
            length = headers.get(b"content-length")
            if length is not None:
                size = int(length)
                if size > limits.body_bytes:
                    raise too_large("the body", size, limits.body_bytes)
                if size > RECEIVE:
                    self._receive_directly(size, headers)
        except (TensorLogicError, ValueError) as error:
            self.refuse(
                error if isinstance(error, TensorLogicError) else FormatError(f"content-length: {error}", code="E470")
            )
            return
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _receive_directly(self, size: int, headers: dict[bytes, bytes]) -> None:
        """Make room for a large body, so that it is read where it stays; binary tensors after the JSON begin at a round address."""
        self._count_buffered(size)
        text = headers.get(b"inference-header-content-length", b"0")
        memory = np.empty(size + ALIGN, np.uint8)  # not touched before bytes arrive
        start = -(memory.ctypes.data + (int(text) if text.isdigit() else 0)) % ALIGN
        self.direct = memory[start : start + size].data

    def _count_buffered(self, size: int) -> None:
        listener = self.listener
        if listener.buffered + size > listener.limits.buffered_bytes:
            raise TensorLogicError("too many large requests are being received", "come back later", code="E499")
        listener.buffered += size
        self.body += size

    def _drop_body(self) -> None:
        self.listener.buffered -= getattr(self, "body", 0)
        self.body, self.direct = 0, None

    def on_body(self, chunk: bytes) -> None:
        if self.lingering:
            return
        if self.direct is not None:
            self.direct[self.received : self.received + len(chunk)] = chunk
            self.received += len(chunk)
            return
        self.received += len(chunk)
        self.chunks.append(chunk)
        if self.received > RECEIVE:  # in chunks, without a length that was said before
            limit = self.listener.limits.body_bytes
            try:
                if self.received > limit:
                    raise too_large("the body", self.received, limit)
                self._count_buffered(len(chunk))
            except TensorLogicError as error:
                self.refuse(error)

    def on_message_complete(self) -> None:
        if not self.lingering and self.request is not None:
            self._complete()

    # answering

    def _complete(self) -> None:
        request = self.last = self.request
        assert request is not None
        if self.direct is not None:
            request.body = self.direct
        else:
            chunks = self.chunks
            request.body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._drop_body()
        self.request = None
        self._take(request)

    def _take(self, request: Request) -> None:
        """Answer a request now, or once those before it are answered."""
        if self.current is None and not self.paused:
            self._begin(request)
            return
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(request)
        if len(self.waiting) >= PIPELINED:
            self.transport.pause_reading()

    def _begin(self, request: Request) -> None:
        self.current = request
        self.listener.busy += 1
        self.deadline = request.started + self.listener.limits.seconds
        encoding = request.headers.get(b"content-encoding")
        try:
            if encoding is not None:
                request.body = inflated(request.body, encoding, self.listener.limits.body_bytes)
            self.listener.answer(self, request)
        except Exception as error:  # whatever it is, this request fails and the next one is served
            self.reply(request, error_reply(error))

    def reply(self, request: Request, reply: Reply) -> None:
        """Send the answer to the request that is being answered, then go on with the next one."""
        if self.current is not request:
            return  # the client has left
        listener, transport = self.listener, self.transport
        self.cancel = None
        parts = reply.parts
        length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        keep = request.keep and not (listener.draining or self.lingering or (self.half_closed and not self.waiting))
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
            HEADS[reply.status], reply.kind, length, reply.headers, b"" if keep else b"Connection: close\r\n",
        )  # fmt: skip
        if length < RECEIVE:
            transport.write(b"".join((head, *parts)))
        else:
            transport.writelines([head, *parts])
        self._ended()
        if not keep:
            self.close()
        elif self.waiting:
            self._next()
        else:
            self.idle = self.request is None
            if not self.paused:
                self.deadline = perf_counter() + listener.limits.idle_seconds

    def _ended(self) -> None:
        self.current = None
        self.listener.busy -= 1

    def _next(self) -> None:
        if self.waiting and not self.paused and self.current is None and self.transport is not None:
            request = self.waiting.popleft()
            if len(self.waiting) < PIPELINED:
                self.transport.resume_reading()
            self._begin(request)

    def refuse(self, error: BaseException) -> None:
        """Answer before the request is complete, and close the connection."""
        reply = error_reply(error)
        self.listener.metrics.refuse(reply.code)
        head = b"%bContent-Type: %b\r\nContent-Length: %d\r\n%bConnection: close\r\n\r\n" % (
            HEADS[reply.status], reply.kind, sum(map(len, reply.parts)), reply.headers,
        )  # fmt: skip
        self._drop_body()
        self.request, self.lingering = None, True
        if self.transport is not None:
            if self.current is None:
                self.transport.write(b"".join((head, *reply.parts)))
            self.deadline = perf_counter() + LINGER

    def close(self) -> None:
        """Close, once what was written is sent."""
        self.idle = False
        self.deadline = perf_counter() + self.listener.limits.seconds
        if self.transport is not None:
            self.transport.close()

    def expire(self) -> None:
        """Give up a client that takes too long: to send, to read, or to ask again."""
        if self.transport is None:
            self.listener.connections.discard(self)
        elif self.lingering or self.paused or self.transport.is_closing():
            self.transport.abort()
        elif self.current is not None:
            cancel, self.cancel = self.cancel, None
            error = DeadlineError(
                "the time for the request was over", "ask for less, or raise --limit seconds=...", code="E481"
            )
            self.reply(self.current, error_reply(error))
            if cancel is not None:
                cancel()
        elif self.idle:
            self.close()
        else:
            self.refuse(TensorLogicError("the request did not arrive in time", "send it without a pause", code="E486"))


def inflated(body: Any, encoding: bytes, limit: int) -> bytes:
    """Return a body that came compressed; one that would become larger than the limit is refused while it grows."""
    kinds = {b"gzip": 31, b"deflate": 15, b"identity": 0}
    bits = kinds.get(encoding.strip().lower())
    if bits is None:
        raise FormatError(
            f"the content encoding {encoding[:40]!r} is not read here", "send gzip or deflate", code="E485"
        )
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
