"""A server on a thread of the test, on a port of its own, and plain sockets to talk to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import tensorlogic as tl
from tensorlogic.serve.limits import Limits
from tensorlogic.serve.server import Server, ServerConfig, event_loop


def save_models(root: Path) -> Path:
    """Save a small model of each kind: a graph, one with parameters, a rule, a program, and one whose answers are not finite."""
    save(root, "double", double())
    b = tl.GraphBuilder()
    x, y = b.input("INPUT0", (1, 16), "int32"), b.input("INPUT1", (1, 16), "int32")
    save(root, "simple", b.build(OUTPUT0=x + y, OUTPUT1=x - y))
    b = tl.GraphBuilder()
    save(root, "log", b.build(y=b.log(b.input("x", (2,), "float32"))))
    x, y, z = tl.variables("x y z", domain="Person")
    aunt = tl.exists(y, tl.pred("sister", x, y) & tl.pred("parent", y, z))
    context = tl.CompilerContext(domains={"Person": ["alice", "bob", "carol"]})
    save(root, "aunt", tl.compile(aunt, context, strategy="hard_boolean"))
    (root / "aunt" / "model.toml").write_text('names = true\npriority = "high"\n')
    folder = root / "family" / "1"
    folder.mkdir(parents=True)
    (folder / "model.tl").write_text(
        "Parent(Alice, Bob)\nParent(Bob, Charlie)\nAncestor(x,y) <- Parent(x,y)\nAncestor(x,z) <- Ancestor(x,y), Parent(y,z)\n"
    )
    return root


def double(factor: float = 2.0) -> tl.EinsumGraph:
    """A graph that multiplies a vector of any length."""
    b = tl.GraphBuilder()
    return b.build(y=b.input("x", ("n",), "float32") * factor)


def save(root: Path, name: str, graph: tl.EinsumGraph, version: int = 1) -> Path:
    """Save a graph as a version of a model."""
    folder = root / name / str(version)
    folder.mkdir(parents=True, exist_ok=True)
    graph.save(folder / "model.json")
    return folder


@contextmanager
def running(folder: Path, *, limits: Limits = Limits(), log=None, **options):
    """Serve a folder until the end of the ``with``; yields the server."""
    loop = event_loop()
    server = Server(ServerConfig(str(folder), port=0, limits=limits, **options), log)
    ready = threading.Event()
    ended: list[BaseException] = []

    async def main():
        stop = asyncio.Event()
        server.stop = lambda: loop.call_soon_threadsafe(stop.set)
        try:
            await server.start()
        finally:
            ready.set()
        await stop.wait()
        await server.drain()

    def run():
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
        except BaseException as error:
            ended.append(error)
        finally:
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(60)
    try:
        if ended:
            raise ended[0]
        yield server
    finally:
        if loop.is_running():
            server.stop()
        thread.join(60)
    assert not thread.is_alive()
    if ended:
        raise ended[0]


def head(method: str, path: str, length: int | None, *headers: str) -> bytes:
    """Return the head of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test", *headers]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


class Reply:
    """An answer, read whole."""

    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Wire:
    """One connection, byte by byte."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def reply(self) -> Reply | None:
        """Read one answer; None where the server closed the connection."""
        line = self.file.readline()
        if not line:
            return None
        headers = {}
        while (each := self.file.readline().strip()) and b":" in each:
            name, _, value = each.decode().partition(":")
            headers[name.lower()] = value.strip()
        return Reply(int(line.split()[1]), headers, self.file.read(int(headers["content-length"])))

    def __enter__(self) -> Wire:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()
        self.socket.close()


def ask(port: int, method: str, path: str, body: bytes | None = None, *headers: str) -> Reply:
    """Send one request and return the answer."""
    with Wire(port) as wire:
        wire.send(head(method, path, None if body is None else len(body), *headers) + (body or b""))
        found = wire.reply()
    assert found is not None
    return found


def infer(port: int, model: str, *inputs: dict, headers: tuple[str, ...] = (), **more) -> Reply:
    """Ask a model in JSON."""
    body = json.dumps({"inputs": list(inputs), **more}).encode()
    return ask(port, "POST", f"/v2/models/{model}/infer", body, "Content-Type: application/json", *headers)


def vector(*values: float, name: str = "x") -> dict:
    """Describe a float32 vector as JSON."""
    return {"name": name, "shape": [len(values)], "datatype": "FP32", "data": list(values)}


def binary(name: str, array: np.ndarray, datatype: str) -> tuple[dict, bytes]:
    """Describe an array that follows the JSON."""
    data = array.tobytes()
    return {
        "name": name,
        "shape": list(array.shape),
        "datatype": datatype,
        "parameters": {"binary_data_size": len(data)},
    }, data
