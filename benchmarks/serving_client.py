"""A client that keeps a server busy: so many connections, each with one request under way, or so many requests a second.

``python serving_client.py PORT PATH BODY --connections 64 --seconds 2 [--rate N] [--json-length N]`` prints what it measured as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import deque
from pathlib import Path
from time import perf_counter
from typing import Any


class Load:
    """One measurement: when it begins and ends, and the latencies seen in between."""

    def __init__(self, request: bytes, seconds: float, warm: float) -> None:
        self.request = request
        self.begin = perf_counter() + warm
        self.end = self.begin + seconds
        self.latencies: list[float] = []
        self.errors = self.open = self.answers = 0
        self.done = asyncio.get_running_loop().create_future()

    def finished(self) -> None:
        self.open -= 1
        if not self.open and not self.done.done():
            self.done.set_result(None)


class Caller(asyncio.Protocol):
    """One connection: sends, waits for the whole answer, sends again (or waits for its turn, where there is a rate)."""

    def __init__(self, load: Load, paced: bool) -> None:
        self.load, self.paced = load, paced
        self.got = bytearray()
        self.need = -1
        self.due: deque[float] = deque()  # when requests were to be sent: a late one counts from then
        self.sent = 0.0
        self.busy = False

    def connection_made(self, transport: Any) -> None:
        self.transport = transport
        self.load.open += 1
        if not self.paced:
            self.send(perf_counter())

    def ask(self, due: float) -> None:
        if self.busy:
            self.due.append(due)
        else:
            self.send(due)

    def send(self, due: float) -> None:
        self.busy, self.sent = True, due
        self.transport.write(self.load.request)

    def data_received(self, data: bytes) -> None:
        if self.need < 0:
            self.got += data
            end = self.got.find(b"\r\n\r\n")
            if end < 0:
                return
            head = bytes(self.got[:end]).lower()
            length = int(head.split(b"content-length:")[1].split(b"\r\n")[0])
            if not self.got.startswith(b"HTTP/1.1 200"):
                self.load.errors += 1
            self.need = end + 4 + length - len(self.got)
            self.got.clear()
        else:
            self.need -= len(data)
        if self.need > 0:
            return
        self.need, self.busy = -1, False
        now, load = perf_counter(), self.load
        load.answers += 1
        if now >= load.begin:
            load.latencies.append(now - self.sent)
        if now >= load.end:
            self.transport.close()
        elif self.due:
            self.send(self.due.popleft())
        elif not self.paced:
            self.send(now)

    def connection_lost(self, error: Exception | None) -> None:
        if perf_counter() < self.load.end:
            self.load.errors += 1
        self.load.finished()


async def pace(load: Load, callers: list[Caller], rate: float) -> None:
    """Ask the callers in turn, so many times a second."""
    start, sent = perf_counter(), 0
    while (now := perf_counter()) < load.end:
        while sent < (now - start) * rate:
            callers[sent % len(callers)].ask(start + sent / rate)
            sent += 1
        await asyncio.sleep(0.0005)
    await asyncio.sleep(0.3)
    for caller in callers:
        caller.transport.close()


async def measure(port: int, request: bytes, connections: int, seconds: float, rate: float | None) -> dict[str, Any]:
    loop = asyncio.get_running_loop()
    load = Load(request, seconds, 0.3)
    callers = []
    for _ in range(connections):
        _, caller = await loop.create_connection(lambda: Caller(load, rate is not None), "127.0.0.1", port)
        callers.append(caller)
    if rate is not None:
        await pace(load, callers, rate)
    await load.done
    times = sorted(load.latencies)
    share = [times[min(len(times) - 1, int(q * len(times)))] if times else 0.0 for q in (0.5, 0.99)]
    return {
        "requests": len(times),
        "rate": len(times) / seconds,
        "p50": share[0],
        "p99": share[1],
        "errors": load.errors,
        "answers": load.answers,  # before the measurement began, too
    }


def request_bytes(path: str, body: bytes, json_length: int | None) -> bytes:
    """Return a POST as clients send it."""
    more = "" if json_length is None else f"Inference-Header-Content-Length: {json_length}\r\n"
    kind = "application/json" if json_length is None else "application/octet-stream"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def main() -> None:
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("body", type=Path)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--json-length", type=int)
    told = parser.parse_args()
    request = request_bytes(told.path, told.body.read_bytes(), told.json_length)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(measure(told.port, request, told.connections, told.seconds, told.rate))))


if __name__ == "__main__":
    main()
