"""What the server is compared with: ``python serving_peers.py bare|starlette|unbatched|socket PORT``, or ``forward ROWS``. Two answer y = 2x + 1 for x of 4 numbers:

``bare`` is a handler on uvloop and httptools that does nothing but read JSON, gather the requests of one turn of the event loop into
a batch, and write JSON. ``starlette`` does the same in an application on uvicorn. ``unbatched`` answers an MLP there, one request at a time. ``socket`` reads
float32 behind a length of 8 bytes. ``forward`` serves nobody: it times the MLP alone, row by row and in a batch, and prints seconds for a row.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from time import perf_counter
from typing import Any

import httptools
import msgspec
import numpy as np
import uvloop

import tensorlogic as tl


class Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class Body(msgspec.Struct):
    inputs: list[Input]


decode = msgspec.json.Decoder(Body).decode
encode = msgspec.json.Encoder().encode


class Batch:
    """Requests that came in one turn of the event loop, run together in the next."""

    def __init__(self) -> None:
        self.waiting: list[tuple[list[float], Any]] = []

    def add(self, row: list[float], done: Any) -> None:
        if not self.waiting:
            asyncio.get_running_loop().call_soon(self.run)
        self.waiting.append((row, done))

    def run(self) -> None:
        batch, self.waiting = self.waiting, []
        answers = np.array([row for row, _ in batch], np.float32) * 2 + 1
        for (_, done), row in zip(batch, answers.tolist(), strict=True):
            done(row)


def answer(row: list[float]) -> bytes:
    output = {"name": "y", "datatype": "FP32", "shape": [4], "data": row}
    return encode({"model_name": "tiny", "model_version": "1", "outputs": [output]})


class Bare(asyncio.Protocol):
    def __init__(self, batch: Batch) -> None:
        self.batch, self.body = batch, b""
        self.parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        body, self.body = self.body, b""
        self.batch.add(decode(body).inputs[0].data, self.reply)

    def reply(self, row: list[float]) -> None:
        body = answer(row)
        self.transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
        )


async def serve_bare(port: int) -> None:
    batch = Batch()
    server = await asyncio.get_running_loop().create_server(lambda: Bare(batch), "127.0.0.1", port)
    await server.serve_forever()


def serve_starlette(port: int) -> None:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    batch = Batch()

    async def infer(request: Request) -> Response:
        row = decode(await request.body()).inputs[0].data
        done = asyncio.get_running_loop().create_future()
        batch.add(row, done.set_result)
        return Response(answer(await done), media_type="application/json")

    app = Starlette(routes=[Route("/v2/models/{name}/infer", infer, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="error", access_log=False)


def serve_unbatched(port: int) -> None:
    """Answer an MLP one request at a time, with binary tensors, in an application on uvicorn."""
    import uvicorn
    from serving import WIDTHS, mlp_model
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    graph, params = mlp_model()
    executor = tl.Executor()
    output = {
        "name": "y",
        "datatype": "FP32",
        "shape": [WIDTHS[-1]],
        "parameters": {"binary_data_size": 4 * WIDTHS[-1]},
    }

    async def infer(request: Request) -> Response:
        body, length = await request.body(), int(request.headers["inference-header-content-length"])
        msgspec.json.decode(body[:length])
        y = executor.execute(graph, {"x": np.frombuffer(body[length:], np.float32), **params})["y"]
        text = encode({"model_name": "alone", "model_version": "1", "outputs": [output]})
        return Response(text + y.tobytes(), headers={"Inference-Header-Content-Length": str(len(text))})

    app = Starlette(routes=[Route("/v2/models/{name}/infer", infer, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="error", access_log=False)


def serve_socket(port: int) -> None:
    """Answer one connection after the other: a length, so many bytes of float32, and twice them back."""
    b = tl.GraphBuilder()
    graph = b.build(y=b.input("x", ("n",), "float32") * 2.0)
    executor = tl.Executor()
    with socket.create_server(("127.0.0.1", port)) as server:
        while True:
            connection, _ = server.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with connection:
                while head := connection.recv(8, socket.MSG_WAITALL):
                    data = np.empty(int.from_bytes(head, "little") // 4, np.float32)
                    view, got = data.view(np.uint8).data, 0
                    while got < len(view):
                        got += connection.recv_into(view[got:])
                    y = executor.execute(graph, {"x": data})["y"]
                    connection.sendall(y.nbytes.to_bytes(8, "little"))
                    connection.sendall(y.view(np.uint8).data)


def time_forward(rows: int) -> None:
    """Print the seconds that the MLP takes for one row, alone and as one of a batch."""
    from serving import WIDTHS, mlp_model

    graph, params = mlp_model()
    executor, x = tl.Executor(), np.ones((rows, WIDTHS[0]), np.float32)
    calls = {"alone": (graph, {"x": x[0], **params}), "batch": (tl.batched(graph, over=["x"]), {"x": x, **params})}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(45):
        for name, (each, inputs) in calls.items():
            start = perf_counter()
            for _ in range(5):
                executor.execute(each, inputs)
            times[name].append((perf_counter() - start) / (5 * rows if name == "batch" else 5))
    print(encode({name: t[5:] for name, t in times.items()}).decode())  # the first ones plan


if __name__ == "__main__":
    kind, port = sys.argv[1], int(sys.argv[2])
    if kind == "bare":
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_bare(port))
    else:
        {"starlette": serve_starlette, "unbatched": serve_unbatched, "socket": serve_socket, "forward": time_forward}[
            kind
        ](port)
