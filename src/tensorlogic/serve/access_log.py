"""Structured logs: one JSON object a line, written on a thread, so that a slow reader of the log does not hold up requests."""

from __future__ import annotations

import queue
import threading
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from time import time
from typing import Any, TextIO

import msgspec

from ..backends.threads import start_thread
from .http_messages import Reply, Request

PENDING = 10_000  # lines that wait to be written; beyond that they are counted, and dropped


class AccessLog:
    r"""Writes what happened, and with ``requests`` every request, as lines of JSON.

    >>> import io
    >>> out = io.StringIO()
    >>> log = AccessLog(out, clock=lambda: 0.0)
    >>> log.event("started", port=8000)
    >>> log.close()
    >>> out.getvalue()
    '{"time":"1970-01-01T00:00:00.000Z","event":"started","port":8000}\n'
    """

    def __init__(self, stream: TextIO, *, requests: bool = False, clock: Callable[[], float] = time) -> None:
        self.stream, self.requests, self.clock = stream, requests, clock
        self.dropped = 0
        self._lines: queue.Queue[dict[str, Any] | None] = queue.Queue(PENDING)
        self._thread = threading.Thread(target=self._write, name="tensorlogic-log", daemon=True)
        start_thread(self._thread)

    def event(self, event: str, **facts: Any) -> None:
        """Write that something happened."""
        try:
            self._lines.put_nowait({"time": self.clock(), "event": event, **facts})
        except queue.Full:
            self.dropped += 1

    def request(self, request: Request, reply: Reply, model: str, seconds: float) -> None:
        """Write one request."""
        headers = request.headers
        facts: dict[str, Any] = {
            "method": request.method.decode("latin-1"), "path": request.url[:200].decode("latin-1"), "status": reply.status,
            "ms": round(seconds * 1e3, 3), "bytes_in": len(request.body), "bytes_out": sum(map(len, reply.parts)),
        }  # fmt: skip
        if model:
            facts["model"] = model
        if reply.code:
            facts["code"] = reply.code
        for name, key in ((b"x-request-id", "id"), (b"traceparent", "traceparent")):
            if name in headers:
                facts[key] = headers[name][:128].decode("latin-1")
        self.event("request", **facts)

    def failure(self, error: BaseException, trace: str) -> None:
        """Write what failed on the server's side, with the place in the code."""
        where = "".join(traceback.format_exception(error, limit=-5))
        self.event("failure", error=str(error)[:500], kind=type(error).__name__, where=where, trace=trace)

    def _write(self) -> None:
        encode = msgspec.json.Encoder().encode
        while (line := self._lines.get()) is not None:
            moment = datetime.fromtimestamp(line["time"], UTC)
            line["time"] = f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"
            try:
                self.stream.write(encode(line).decode() + "\n")
                if self._lines.empty():
                    self.stream.flush()
            except (OSError, ValueError):
                self.dropped += 1  # the disk is full, or nobody reads any more: requests are more important

    def close(self) -> None:
        """Write what is left."""
        self._lines.put(None)
        self._thread.join(5)
