"""HTTP/1.1 on an event loop: one object for each connection, parsed by httptools; a request is refused as early as it can be."""

from __future__ import annotations

import asyncio
from collections import deque
from time import perf_counter
from typing import Any

import httptools

from ..errors import DeadlineError, FormatError, InputError, TensorLogicError
from .http_body import BodyReader, body_memory
from .http_messages import KnownHead, Reply, Request, decompress, error_reply, head_of, may_repeat
from .protocol import too_large

DIRECT = 64 << 10  # bytes; a larger body is read into its own memory, and an answer of so many is sent in parts
PIPELINED = 8  # requests of one connection that may wait for the one before them
HEADS = 1024  # heads of requests that are kept because the next one may be the same
LINGER = 2.0  # seconds that a connection which is to be closed is still read, so that its client sees the answer


class Listener:
    """What the connections of one server share: who answers, the limits, and who is open.

    ``routes`` refuses a head (``refuse_early``), answers a request (``answer``), and knows how to answer those whose head came before (``template``).
    """

    def __init__(self, routes: Any, limits: Any, metrics: Any) -> None:
        self.limits, self.metrics = limits, metrics
        self.answer, self.refuse_early, self.template = routes.answer, routes.refuse_early, routes.template
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


class Connection(asyncio.Protocol):
    """One connection. It answers one request at a time, in order; those sent ahead wait, and then reading pauses."""

    __slots__ = (
        "body", "chunks", "current", "deadline", "direct", "half_closed", "head_bytes", "headers", "idle", "known", "last", "lingering", "listener",
        "parser", "paused", "reader", "received", "request", "started", "transport", "url", "waiting",
    )  # fmt: skip

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.transport: Any = None
        self.parser = httptools.HttpRequestParser(self)
        self.current: Any = None  # the request being answered: one of ours, or of a template's
        self.known: KnownHead | None = None  # which the last request had, and the next one may have
        self.request: Request | None = None  # being received, its head is complete
        self.waiting: deque[Request] | None = None
        self.direct: memoryview | None = None  # where a large body is read into
        self.reader: BodyReader | None = None  # what reads it then
        self.last: Request | None = None  # received last
        self.received = self.head_bytes = self.body = 0
        self.lingering = self.paused = self.half_closed = False
        self.idle = True
        self.deadline = 0.0

    # the transport

    def connection_made(self, transport: Any) -> None:
        listener = self.listener
        self.transport = transport
        self.deadline = perf_counter() + listener.limits.idle_seconds
        listener.connections.add(self)
        listener.metrics.connections = len(listener.connections)
        if len(listener.connections) > listener.limits.connections:
            self.refuse(TensorLogicError("too many connections are open", "come back later", code="E499"))

    def connection_lost(self, error: Exception | None) -> None:
        listener = self.listener
        listener.connections.discard(self)
        listener.metrics.connections = len(listener.connections)
        self.waiting = self.transport = None
        self._drop_body()
        if (request := self.current) is not None:
            self._ended()
            if request.cancel is not None:
                request.cancel()  # nobody waits for it any more

    def data_received(self, data: bytes) -> None:
        between = self.request is None and not self.head_bytes  # no part of a request has come yet
        if between and self.known is not None and self.idle and not self.paused:
            template = self.listener.template(self.known)
            if template is not None and template.begin(self, data):
                return
        if self.lingering or (between and self._known(data)):
            return
        if self.request is None:
            self.head_bytes += len(data)
        try:
            whole = self.head_bytes == len(data)
            self._feed(data)
            if whole and self.last is not None and self.request is None:
                self._remember(self.last, data)
            self.last = None
        except httptools.HttpParserError as error:
            if not self.lingering:
                self.refuse(FormatError(f"this is no HTTP request: {error}", code="E470"))
        if self.head_bytes > self.listener.limits.head_bytes and not self.lingering:
            limit = self.listener.limits.head_bytes
            self.refuse(InputError(f"the headers have more than {limit:,} bytes", code="E492"))

    def _known(self, data: bytes) -> bool:
        """Take in a whole request whose head is byte for byte one that was parsed before; False where it is none."""
        end = data.find(b"\r\n\r\n") + 4
        known = self.listener.heads.get(data[:end])
        if known is None or len(data) != end + known.length:
            return False
        if self.current is None and not self.paused:
            self.known, template = known, self.listener.template(known)
            if template is not None and template.begin(self, data):
                return True
        self.idle = False
        self._take(Request(known, perf_counter(), data[end:], repeated=True))
        return True

    def _remember(self, request: Request, data: bytes) -> None:
        """Keep the head of a request that came whole, so that the next one like it need not be parsed."""
        heads, head = self.listener.heads, request.head
        if may_repeat(head, data):
            if len(heads) >= HEADS:
                heads.clear()
            heads[head.raw] = head

    def _feed(self, data: bytes) -> None:
        end = data.find(b"\r\n\r\n") + 4 if len(data) > DIRECT and self.request is None else 0
        try:
            if end > 3 and self.direct is None:  # perhaps the beginning of a large body, which need not be parsed
                self.parser.feed_data(data[:end])
                data = data[end:] if self.direct is None else self._fill(data, end)
            if data:
                self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:  # another protocol was offered: go on with this one
            self.parser = httptools.HttpRequestParser(self)
            self._feed(data[upgrade.args[0] :])
        if self.direct is not None and self.reader is None:
            self._switch(BodyReader(self))

    def _fill(self, data: bytes, start: int) -> bytes:
        """Copy the beginning of a large body to where it stays, and return what follows it."""
        assert self.direct is not None
        rest = memoryview(data)[start : start + len(self.direct) - self.received]
        self.direct[self.received : self.received + len(rest)] = rest
        self.body_grew(len(rest))
        return data[start + len(rest) :]

    def body_grew(self, count: int) -> None:
        """Note that bytes of a large body were read into its memory."""
        self.received += count
        if self.direct is not None and self.received == len(self.direct):
            self._complete()
            self.parser = httptools.HttpRequestParser(self)  # which has not seen the body

    def _switch(self, reader: BodyReader | None) -> None:
        """Read into the memory of a large body from now on, or none."""
        self.reader = reader
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()  # a transport looks at its protocol when it begins to read
            self.transport.set_protocol(reader or self)
            self.transport.resume_reading()

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
        head = KnownHead(parser.get_method(), self.url, headers, parser.should_keep_alive())
        request = self.request = Request(head, self.started)
        self.chunks: list[bytes] = []
        self.body = 0
        try:
            self.listener.refuse_early(request)
            length = headers.get(b"content-length")
            if length is not None:
                size = int(length)  # the parser lets nothing else through
                if size > limits.body_bytes:
                    raise too_large("the body", size, limits.body_bytes)
                if size > DIRECT:
                    self._count_buffered(size)
                    self.direct = body_memory(size, headers)
        except TensorLogicError as error:
            self.refuse(error)
            return
        if headers.get(b"expect", b"").lower() == b"100-continue":
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _count_buffered(self, size: int) -> None:
        listener = self.listener
        if listener.buffered + size > listener.limits.buffered_bytes:
            raise TensorLogicError("too many large requests are being received", "come back later", code="E499")
        listener.buffered += size
        self.body += size

    def _drop_body(self) -> None:
        self.listener.buffered -= self.body
        self.body, self.direct = 0, None
        if self.reader is not None:
            self._switch(None)

    def on_body(self, chunk: bytes) -> None:
        if self.lingering:
            return
        if self.direct is not None:
            self.direct[self.received : self.received + len(chunk)] = chunk
            self.received += len(chunk)
            return
        self.received += len(chunk)
        self.chunks.append(chunk)
        if self.received > DIRECT:  # in chunks, without a length that was said before
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
        self.begin(request, request.started)
        encoding = request.headers.get(b"content-encoding")
        try:
            if encoding is not None:
                request.body = decompress(request.body, encoding, self.listener.limits.body_bytes)
            self.listener.answer(self, request)
        except Exception as error:  # whatever it is, this request fails and the next one is served
            self.reply(request, error_reply(error))

    def begin(self, request: Any, started: float) -> None:
        """Note which request is being answered, since when."""
        self.current = request
        self.listener.busy += 1
        self.deadline = started + self.listener.limits.seconds

    def reply(self, request: Request, reply: Reply) -> None:
        """Send the answer to the request that is being answered, then go on with the next one."""
        if self.current is not request:
            return  # the client has left
        parts = reply.parts
        length = len(parts[0]) if len(parts) == 1 else sum(map(len, parts))
        keep = request.keep and self.stays_open()
        head = head_of(reply, length, keep=keep)
        if length < DIRECT:
            self.transport.write(b"".join((head, *parts)))
        else:
            self.transport.writelines([head, *parts])
        if keep:
            self.answered(perf_counter())
        else:
            self._ended()
            self.close()

    def stays_open(self) -> bool:
        """Tell whether the connection is for more than the request that is being answered."""
        return not (self.listener.draining or self.lingering or (self.half_closed and not self.waiting))

    def answered(self, now: float) -> None:
        """Go on with the next request, after one whose answer was written."""
        self._ended()
        if self.waiting:
            self._next()
        else:
            self.idle = self.request is None and not self.head_bytes
            if not self.paused:
                self.deadline = now + self.listener.limits.idle_seconds

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
        head = head_of(reply, sum(map(len, reply.parts)), keep=False)
        self._drop_body()
        self.request, self.lingering, self.idle = None, True, False
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
            request, hint = self.current, "ask for less, or raise --limit seconds=..."
            error = DeadlineError("the time for the request was over", hint, code="E481")
            self.reply(request, error_reply(error))
            if request.cancel is not None:
                request.cancel()
        elif self.idle:
            self.close()
        else:
            self.refuse(TensorLogicError("the request did not arrive in time", "send it without a pause", code="E486"))
