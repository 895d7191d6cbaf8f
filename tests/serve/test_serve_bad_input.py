"""Whatever is sent, the server answers with a reason that a program can read, in bounded memory, and serves the next request."""

import gzip
import json
import socket
import struct
import time

import msgspec
import numpy as np
import pytest
from live_server import Wire, ask, binary, double, head, infer, running, save, save_models, vector

import tensorlogic as tl
from tensorlogic.serve.limits import Limits
from tensorlogic.serve.metrics import resident_bytes
from tensorlogic.serve.protocol import GivenTensor, InferRequest, TensorSpec, arrays_of

JSON = "Content-Type: application/json"
PATH = "/v2/models/double/infer"
LIMITS = Limits(body_bytes=1 << 20, json_bytes=1 << 18, seconds=1.0, idle_seconds=2.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with running(save_models(tmp_path_factory.mktemp("models")), limits=LIMITS) as server:
        yield server


@pytest.fixture(autouse=True)
def next_request_is_served(served):
    yield
    assert infer(served.port, "double", vector(1)).json["outputs"][0]["data"] == [2]
    deadline = time.monotonic() + 10
    while (
        served.listener.busy or served.listener.buffered or served.service.metrics.in_flight
    ) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (served.listener.busy, served.listener.buffered, served.service.metrics.in_flight) == (0, 0, 0)


def tensor(**changes):
    return {"name": "x", "shape": [2], "datatype": "FP32", "data": [1, 2], **changes}


def body(*inputs, **more):
    return json.dumps({"inputs": list(inputs), **more}).encode()


BODIES = {
    "nothing": (b"", 400, "E470"),
    "no JSON": (b"{", 400, "E470"),
    "no text": (b"\xff\xfe", 400, "E470"),
    "a list": (b"[]", 400, "E470"),
    "no inputs": (b"{}", 400, "E470"),
    "cut off": (body(tensor())[:-5], 400, "E470"),
    "text behind": (body(tensor()) + b"x", 400, "E470"),
    "deep": (b'{"inputs": ' + b"[" * 100_000, 400, "E470"),
    "deep data": (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]}", 400, None),
    "deep parameters": (b'{"inputs": [], "parameters": ' + b'{"a":' * 40_000 + b"1" + b"}" * 40_000 + b"}", 400, "E470"),
    "huge": (body(tensor(data=[1] * 100_000)), 413, "E472"),
    "NaN": (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [NaN]}]}', 400, "E470"),
    "infinity": (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [-Infinity]}]}', 400, "E470"),
    "beyond a double": (b'{"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "data": [1e999]}]}', 400, None),
    "beyond a float": (body(tensor(data=[1e39, 0])), 400, "E474"),
    "null": (body(tensor(data=[None, 1])), 400, "E474"),
    "words": (body(tensor(data=["1", "2"])), 400, "E474"),
    "wrong name": (body(tensor(name="z")), 400, "E473"),
    "a long name": (body(tensor(name="z" * 100_000)), 400, "E473"),
    "twice": (body(tensor(), tensor()), 400, "E473"),
    "missing": (body(), 400, "E473"),
    "thousands of inputs": (body(*[tensor(name=str(n), shape=[1], data=[1]) for n in range(3000)]), 400, "E473"),
    "wrong datatype": (body(tensor(datatype="INT32")), 400, "E474"),
    "unknown datatype": (body(tensor(datatype="FP128")), 400, "E474"),
    "names where numbers go": (body(tensor(datatype="BYTES", data=["a", "b"])), 400, "E474"),
    "wrong rank": (body(tensor(shape=[1, 2])), 400, "E475"),
    "too many axes": (body(tensor(shape=[1] * 60)), 400, "E497"),
    "a size below 0": (body(tensor(shape=[-2])), 400, "E475"),
    "a huge shape": (body(tensor(shape=[2**62])), 400, "E475"),
    "a shape beyond integers": (body(tensor(shape=[10**30])), 400, None),
    "too few elements": (body(tensor(data=[1])), 400, "E475"),
    "no elements": (body(tensor(data=[])), 400, "E475"),
    "too many elements": (body(tensor(data=[1] * 1000)), 400, "E475"),
    "ragged": (body(tensor(data=[[1], [2, 3]])), 400, None),
    "no data": (body({"name": "x", "shape": [2], "datatype": "FP32"}), 400, "E470"),
    "data and binary": (body(tensor(parameters={"binary_data_size": 0})), 400, "E470"),
    "unknown output": (body(tensor(), outputs=[{"name": "nope"}]), 400, "E478"),
    "names of numbers": (body(tensor(), outputs=[{"name": "y", "parameters": {"names": True}}]), 400, "E478"),
    "classification": (body(tensor(), outputs=[{"name": "y", "parameters": {"classification": 3}}]), 400, "E470"),
    "shared memory": (body({"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"shared_memory_region": "a"}}), 400, "E470"),
    "priority": (body(tensor(), parameters={"priority": "urgent"}), 400, "E470"),
    "timeout": (body(tensor(), parameters={"timeout": -1}), 400, "E470"),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_body(served, name):
    data, status, code = BODIES[name]
    found = ask(served.port, "POST", PATH, data, JSON)
    assert found.status == status, found.body
    assert found.json["error"] and re_code(found.json["code"])
    assert code is None or found.json["code"] == code, found.body


def re_code(code):
    return len(code) == 4 and code[0] == "E" and code[1:].isdigit()


def test_sizes_below_0_are_no_wildcards_where_the_model_takes_any_size():
    specs = {"x": TensorSpec("x", "FP32", (-1, -1))}
    for data in (msgspec.Raw(b"[1]"), memoryview(bytes(4))):
        with pytest.raises(tl.ShapeError, match="a size below 0"):
            arrays_of(InferRequest("", [GivenTensor("x", (-1, -1), "FP32", data)], [], {}), specs, Limits())


def test_the_error_says_which_input_and_what_it_should_be(served):
    message = infer(
        served.port, "simple", {"name": "INPUT1", "shape": [1, 15], "datatype": "INT32", "data": [0] * 15}
    ).json["error"]
    assert "'INPUT1'" in message and "[1, 15]" in message and "[1, 16]" in message
    message = infer(
        served.port, "simple", {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [1.5] * 16}
    ).json["error"]
    assert "'INPUT0'" in message and "INT32" in message
    assert (
        infer(
            served.port, "simple", {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [2**31] * 16}
        ).json["code"]
        == "E474"
    )
    assert "did you mean 'INPUT0'?" in infer(served.port, "simple", vector(1, name="input0")).json["hints"]


BINARY = {
    "JSON longer than the body": (lambda text, data: (text + data, len(text + data) + 1), "E471"),
    "JSON shorter": (lambda text, data: (text + data, 10), "E470"),
    "no number": (lambda text, data: (text + data, "ten"), "E471"),
    "a negative number": (lambda text, data: (text + data, -3), "E471"),
    "a huge number": (lambda text, data: (text + data, 10**40), "E471"),
    "data cut off": (lambda text, data: (text + data[:-1], len(text)), "E471"),
    "data left": (lambda text, data: (text + data + b"x", len(text)), "E471"),
}


@pytest.mark.parametrize("name", BINARY)
def test_lying_lengths_of_binary_tensors(served, name):
    change, code = BINARY[name]
    described, data = binary("x", np.ones(5, "float32"), "FP32")
    sent, length = change(json.dumps({"inputs": [described]}).encode(), data)
    found = ask(served.port, "POST", PATH, sent, f"Inference-Header-Content-Length: {length}")
    assert (found.status, found.json["code"]) == (400, code)


@pytest.mark.parametrize("size", [-1, 2**70, "4", 1.5, None, True, 7])
def test_lying_binary_sizes(served, size):
    described = {"name": "x", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [described]}).encode()
    found = ask(served.port, "POST", PATH, text + bytes(7), f"Inference-Header-Content-Length: {len(text)}")
    assert found.status == 400 and found.json["code"] in ("E470", "E471")


def test_lying_lengths_of_names_and_truth_values(served):
    described = {"name": "Parent", "shape": [1, 2], "datatype": "BYTES"}
    word = struct.pack("<I", 5) + b"Alice"
    for data in (
        word,
        word + struct.pack("<I", 2**32 - 1) + b"Bob",
        word + b"\x01",
        word * 3,
        word + struct.pack("<I", 1) + b"\xff",
    ):
        text = json.dumps({"inputs": [{**described, "parameters": {"binary_data_size": len(data)}}]}).encode()
        found = ask(
            served.port, "POST", "/v2/models/family/infer", text + data, f"Inference-Header-Content-Length: {len(text)}"
        )
        assert found.status == 400, found.body
    found = infer(served.port, "family", {**described, "data": ["Alice", "Zoe"]})
    assert (found.status, found.json["code"]) == (400, "E496") and "Zoe" in found.json["error"]
    text = json.dumps(
        {"inputs": [{"name": "Parent", "shape": [3, 3], "datatype": "BOOL", "parameters": {"binary_data_size": 9}}]}
    ).encode()
    found = ask(
        served.port,
        "POST",
        "/v2/models/family/infer",
        text + b"\x02" * 9,
        f"Inference-Header-Content-Length: {len(text)}",
    )
    assert (found.status, found.json["code"]) == (400, "E474")


def test_content_types_and_encodings(served):
    good = body(tensor())
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "x" * 500):
        found = ask(served.port, "POST", PATH, good, f"Content-Type: {kind}")
        assert (found.status, found.json["code"]) == (415, "E485")
    assert ask(served.port, "POST", PATH, good, "Content-Type: application/JSON; charset=utf-8").status == 200
    assert ask(served.port, "POST", PATH, gzip.compress(good), JSON, "Content-Encoding: gzip").status == 200
    assert ask(served.port, "POST", PATH, good, JSON, "Content-Encoding: br").json["code"] == "E485"
    assert ask(served.port, "POST", PATH, good, JSON, "Content-Encoding: gzip").json["code"] == "E470"
    assert (
        ask(served.port, "POST", PATH, gzip.compress(good)[:-12], JSON, "Content-Encoding: gzip").json["code"] == "E470"
    )
    bomb = gzip.compress(bytes(200 << 20))
    before = resident_bytes()
    assert ask(served.port, "POST", PATH, bomb, JSON, "Content-Encoding: gzip").json["code"] == "E472"
    assert resident_bytes() - before < 64 << 20


HEADS = {
    "no HTTP": (b"\x16\x03\x01\x02\x00" * 20, 400, "E470"),
    "another protocol": (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", 400, "E470"),
    "no number": (b"POST " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: ten\r\n\r\n", 400, "E470"),
    "a negative length": (b"POST " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "E470"),
    "two lengths": (b"POST " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "E470"),
    "a length and chunks": (b"POST " + PATH.encode() + b" HTTP/1.1\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400, "E470"),
    "too large": (head("POST", PATH, 1 << 30), 413, "E472"),
    "a length beyond all": (head("POST", PATH, 10**17), 413, "E472"),
    "an endless path": (b"GET /" + b"a" * 100_000, 431, "E492"),
    "endless headers": (b"GET / HTTP/1.1\r\n" + b"X-A: b\r\n" * 10_000, 431, "E492"),
    "a wrong chunk": (b"POST " + PATH.encode() + b" HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "E470"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADS)
def test_head(served, name):
    data, status, code = HEADS[name]
    with Wire(served.port) as wire:
        wire.send(data)
        found = wire.reply()
        assert (found.status, found.json["code"], found.headers["connection"]) == (status, code, "close")
        wire.socket.shutdown(socket.SHUT_WR)
        assert wire.reply() is None


def test_an_upgrade_is_not_taken_up(served):
    with Wire(served.port) as wire:
        one = b"GET /v2/health/live HTTP/1.1\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
        wire.send(one + one)
        assert [wire.reply().status, wire.reply().status] == [200, 200]


def test_a_head_that_goes_on_is_not_taken_for_a_new_one(served):
    good = head("POST", PATH, len(body(tensor())), JSON) + body(tensor())
    with Wire(served.port) as wire:
        for _ in range(3):  # its head is known from now on
            wire.send(good)
            assert wire.reply().status == 200
        wire.send(good + b"GET /v2/health/live HTTP/1.1\r\nX-Rest: ")
        assert wire.reply().status == 200
        time.sleep(0.05)
        wire.send(good)  # the value of a header, the rest of the head, and a body
        assert wire.reply().json == {"live": True}


def test_a_client_that_closes_its_side_gets_its_answers(served):
    with Wire(served.port) as wire:
        wire.send((head("POST", PATH, len(body(tensor())), JSON) + body(tensor())) * 20)
        wire.socket.shutdown(socket.SHUT_WR)
        assert [wire.reply().status for _ in range(20)] == [200] * 20
        assert wire.reply() is None


def test_thousands_of_small_parts(served):
    data = body(tensor())
    chunks = b"".join(b"1\r\n" + data[n : n + 1] + b"\r\n" for n in range(len(data))) + b"0\r\n\r\n"
    with Wire(served.port) as wire:
        wire.send(head("POST", PATH, None, JSON, "Transfer-Encoding: chunked") + chunks)
        assert wire.reply().json["outputs"][0]["data"] == [2, 4]
        padded = data + b" " * (LIMITS.json_bytes - len(data))
        parts = b"".join(b"40\r\n" + padded[n : n + 64] + b"\r\n" for n in range(0, len(padded), 64)) + b"0\r\n\r\n"
        wire.send(head("POST", PATH, None, JSON, "Transfer-Encoding: chunked") + parts)
        assert wire.reply().status == 200
        wire.send(head("POST", PATH, None, JSON, "Transfer-Encoding: chunked"))
        try:
            for _ in range(3 * LIMITS.body_bytes // 65536):
                wire.send(b"10000\r\n" + b" " * 65536 + b"\r\n")
        except OSError:
            pass  # it was refused while we sent
        assert wire.reply().json["code"] == "E472"


def test_slow_clients_are_told_and_closed(served):
    with Wire(served.port) as slow, Wire(served.port) as slower:
        slow.send(b"POST /v2/models/dou")
        slower.send(head("POST", PATH, 500_000, JSON) + b"{" * 100)
        for wire in (slow, slower):
            found = wire.reply()
            assert (found.status, found.json["code"]) == (408, "E486")
            assert wire.reply() is None
    with Wire(served.port) as idle:
        assert idle.reply() is None  # after idle_seconds, without a word


def test_clients_that_do_not_read_are_left(served):
    described, data = binary("x", np.ones(200_000, "float32"), "FP32")
    text = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    request = head("POST", PATH, len(text + data), f"Inference-Header-Content-Length: {len(text)}") + text + data
    before = resident_bytes()
    with Wire(served.port) as wire:
        wire.socket.settimeout(0.2)
        try:
            for _ in range(100):  # 80 MB of answers that nobody reads
                wire.send(request)
        except OSError:
            pass
        assert resident_bytes() - before < 64 << 20
        deadline = time.monotonic() + 15
        while served.listener.connections and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not served.listener.connections


def test_clients_that_leave(served):
    good = head("POST", PATH, len(body(tensor())), JSON) + body(tensor())
    for n in range(60):
        with Wire(served.port) as wire:
            wire.send(good[: len(good) - n] if n % 2 else good)
            if n % 3 == 0:  # at once, without a word
                wire.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_bodies_that_are_promised_take_no_memory(served):
    before = resident_bytes()
    wires = [Wire(served.port) for _ in range(200)]
    for wire in wires:
        wire.send(head("POST", PATH, LIMITS.body_bytes, JSON))
    assert infer(served.port, "double", vector(1)).status == 200
    assert resident_bytes() - before < 64 << 20
    for wire in wires:
        wire.__exit__()


def test_bodies_under_way_are_bounded_together(tmp_path):
    save(tmp_path, "double", double())
    with running(tmp_path, limits=Limits(body_bytes=1 << 20, buffered_bytes=3 << 20)) as server:
        wires = [Wire(server.port) for _ in range(4)]
        for wire in wires:
            wire.send(head("POST", PATH, 1 << 20, JSON))
            time.sleep(0.02)
        found = wires[3].reply()
        assert (found.status, found.json["code"], found.headers["retry-after"]) == (503, "E499", "1")
        for wire in wires:
            wire.__exit__()


def test_connections_are_bounded(tmp_path):
    save(tmp_path, "double", double())
    with running(tmp_path, limits=Limits(connections=5)) as server:
        wires = [Wire(server.port) for _ in range(6)]
        assert wires[5].reply().status == 503
        wires[0].send(head("GET", "/v2/health/live", None))
        assert wires[0].reply().status == 200
        for wire in wires:
            wire.__exit__()


def test_answers_that_json_cannot_hold(served):
    found = infer(served.port, "log", vector(0, 1))
    assert (found.status, found.json["code"]) == (422, "E491")
    found = infer(served.port, "log", vector(0, 1), outputs=[{"name": "y", "parameters": {"binary_data": True}}])
    assert found.status == 200 and np.frombuffer(found.body[-8:], "float32").tolist() == [-np.inf, 0]


def test_a_full_queue_says_when_to_come_back(tmp_path):
    save(tmp_path, "double", double())
    (tmp_path / "double" / "model.toml").write_text(
        '[batching]\nstrategy = "throughput"\nmax_wait = 1.0\nmax_queue = 2\n'
    )
    with running(tmp_path) as server:
        data = body(tensor())
        wires = [Wire(server.port) for _ in range(6)]
        for wire in wires:
            wire.send(head("POST", PATH, len(data), JSON) + data)
        replies = [wire.reply() for wire in wires]
        refused = [r for r in replies if r.status == 429]
        assert {r.status for r in replies} == {200, 429} and refused
        assert all(int(r.headers["retry-after"]) >= 1 and r.json["retry_after"] > 0 for r in refused)
        for wire in wires:
            wire.__exit__()


def test_a_request_that_takes_too_long_is_told_so(tmp_path):
    save(tmp_path, "double", double())
    save(tmp_path, "quick", double())
    (tmp_path / "double" / "model.toml").write_text('[batching]\nstrategy = "throughput"\nmax_wait = 60.0\n')
    with running(tmp_path, limits=Limits(seconds=0.5)) as server:
        found = ask(server.port, "POST", PATH, body(tensor()), JSON)
        assert (found.status, found.json["code"]) == (504, "E481")
        assert infer(server.port, "quick", vector(1)).status == 200
