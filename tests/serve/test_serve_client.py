"""The clients: they come back when the server says so, not more often than told, and say what the server said."""

import asyncio
import json
import random
import socket
import threading

import numpy as np
import pytest
from live_server import running, save_models

import tensorlogic as tl


class Scripted:
    """A server that answers with the next of some bytes, one for each request; None closes the connection."""

    def __init__(self, *answers):
        self.answers, self.seen = list(answers), 0
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.socket.getsockname()[1]}"
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def serve(self):
        while self.answers:
            connection, _ = self.socket.accept()
            with connection, connection.makefile("rb") as file:
                while self.answers:
                    length, line = 0, file.readline()
                    if not line:
                        break
                    while line not in (b"\r\n", b""):
                        line = file.readline()
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    file.read(length)
                    self.seen += 1
                    answer = self.answers.pop(0)
                    if answer is None:
                        break
                    connection.sendall(answer)

    def close(self):
        self.thread.join(20)
        self.socket.close()


def answer(status, body, *headers):
    data = json.dumps(body).encode()
    lines = "".join(f"{h}\r\n" for h in headers)
    return f"HTTP/1.1 {status} X\r\n{lines}Content-Length: {len(data)}\r\n\r\n".encode() + data


GOOD = answer(200, {"outputs": [{"name": "y", "datatype": "FP32", "shape": [1], "data": [7.0]}]})
BUSY = answer(429, {"error": "full", "code": "E458", "retry_after": 0.25}, "Retry-After: 1")
LATER = answer(503, {"error": "later", "code": "E499"}, "Retry-After: 3")


def call(kind, server, retries=4):
    """Ask once with either client; return the answer and the pauses it made."""
    slept = []
    if kind == "plain":
        with tl.Client(server.url, retries=retries, sleep=slept.append, rng=random.Random(0)) as client:
            return client.infer("m", {"x": np.ones(1, "float32")}), slept

    async def sleep(seconds):
        slept.append(seconds)

    async def main():
        async with tl.AsyncClient(server.url, retries=retries, sleep=sleep, rng=random.Random(0)) as client:
            return await client.infer("m", {"x": np.ones(1, "float32")})

    return asyncio.run(main()), slept


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_it_comes_back_when_the_server_says(kind):
    server = Scripted(BUSY, LATER, None, GOOD)
    found, slept = call(kind, server)
    server.close()
    assert found["y"].tolist() == [7]
    assert slept[:2] == [0.25, 3.0] and len(slept) == 3 and 0 < slept[2] < 1  # its own pause where nobody says


@pytest.mark.parametrize("kind", ["plain", "async"])
def test_it_gives_up_in_the_end_and_at_once_where_coming_back_is_no_use(kind):
    server = Scripted(BUSY, BUSY)
    with pytest.raises(tl.ServerError) as caught:
        call(kind, server, retries=1)
    server.close()
    assert (caught.value.status, caught.value.server_code, server.seen) == (429, "E458", 2)
    server = Scripted(answer(400, {"error": "no", "code": "E475", "hints": ["do this"]}))
    with pytest.raises(tl.ServerError, match="do this") as caught:
        call(kind, server)
    server.close()
    assert (caught.value.status, server.seen) == (400, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    server.url = f"http://127.0.0.1:{port}"
    with pytest.raises(tl.ServerError, match="does not answer"):
        call(kind, server, retries=0)


def test_against_the_server(tmp_path):
    with running(save_models(tmp_path)) as server, tl.Client(f"http://127.0.0.1:{server.port}") as client:
        assert client.is_live() and client.is_ready() and client.is_ready("double") and not client.is_ready("nope")
        assert client.metadata()["name"] == "tensorlogic" and client.metadata("double")["inputs"][0]["name"] == "x"
        assert client.infer("family", {"Parent": [("Charlie", "Bob")]})["Ancestor"] == [("Charlie", "Bob")]
        assert client.infer("aunt", {"sister": [("alice", "bob")], "parent": np.ones((3, 3), bool)}, priority="high")[
            "result"
        ][0] == ("alice", "alice")
        client.unload("double")
        assert not client.is_ready("double")
        client.load("double")
        assert {m["state"] for m in client.models()} == {"READY"}
        with pytest.raises(tl.FormatError, match="complex128"):
            client.infer("double", {"x": np.ones(2, complex)})

        async def main():
            async with tl.AsyncClient(f"http://127.0.0.1:{server.port}") as many:
                assert await many.is_live() and (await many.metadata("double"))["name"] == "double"
                found = await asyncio.gather(
                    *[many.infer("double", {"x": np.full(3, n, "float32")}) for n in range(30)]
                )
                assert [out["y"][0] for out in found] == [2 * n for n in range(30)]

        asyncio.run(main())
