"""Requests that repeat, but for their numbers, get the answers that the long way gives; whatever is unusual about one of them is still seen."""

import gzip
import json
import time

import numpy as np
import pytest
from live_server import Wire, ask, binary, head, running, save

import tensorlogic as tl
from tensorlogic.serve import templates

PATH = "/v2/models/{}/infer"
KIND = "Content-Type: application/json"


def line(offset: float = 0.0) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(y=b.log(b.input("x", (2, 2), "float32")) + offset)


@pytest.fixture
def served(tmp_path):
    save(tmp_path, "log", line())
    b = tl.GraphBuilder()
    n, x = b.input("n", (3,), "int32"), b.input("x", (3,), "float64")
    save(tmp_path, "sum", b.build(s=n + x))
    with running(tmp_path) as server:
        server.folder = tmp_path
        yield server


@pytest.fixture
def counted(monkeypatch):
    """How many requests took the short way."""
    found = []
    begin = templates.Template.begin

    def counting(self, *arguments):
        fits = begin(self, *arguments)
        found.append(fits)
        return fits

    monkeypatch.setattr(templates.Template, "begin", counting)
    return found


def body_of(values, **more) -> bytes:
    return json.dumps({"inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": values}], **more}).encode()


def post(wire, model, body, *headers):
    wire.send(head("POST", PATH.format(model), len(body), *headers) + body)
    return wire.reply()


def test_answers_are_those_of_the_long_way(served, counted):
    with Wire(served.port) as wire:
        for n in range(6):
            values = [1.5, 2.5, 3.5, float(n + 1)]
            found = post(wire, "log", body_of(values, id="7"), KIND, "X-Request-Id: mine")
            alone = ask(
                served.port, "POST", PATH.format("log"), body_of(values, id="7") + b" ", KIND, "X-Request-Id: mine"
            )
            assert (found.status, found.json, found.headers.keys()) == (200, alone.json, alone.headers.keys())
            assert found.headers["x-request-id"] == "mine"
            assert found.json["outputs"][0]["shape"] == [2, 2]
            assert np.allclose(found.json["outputs"][0]["data"], np.log(values))
        assert sum(counted) >= 4
        ids = {post(wire, "log", body_of([1.5, 2.5, 3.5, 4.5]), KIND).headers["x-request-id"] for _ in range(5)}
        assert len(ids) == 5
    text = ask(served.port, "GET", "/metrics").body.decode()
    assert 'tensorlogic_requests_total{model="log",version="1",protocol="http",code="ok"} 17' in text
    assert "tensorlogic_in_flight 0" in text


def test_binary_tensors_of_several_inputs_in_any_order(served, counted):
    with Wire(served.port) as wire:
        for n in range(5):
            given = {"x": np.array([0.5, n, np.nan]), "n": np.array([n, 2, -3], "int32")}
            parts = [binary(name, array, "FP64" if name == "x" else "INT32") for name, array in given.items()]
            asked = {"inputs": [described for described, _ in parts], "parameters": {"binary_data_output": True}}
            text = json.dumps(asked).encode()
            found = post(
                wire, "sum", text + b"".join(d for _, d in parts), f"Inference-Header-Content-Length: {len(text)}"
            )
            length = int(found.headers["inference-header-content-length"])
            assert json.loads(found.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 24}
            assert np.array_equal(np.frombuffer(found.body[length:]), given["n"] + given["x"], equal_nan=True)
    assert sum(counted) >= 3


def test_what_is_unusual_is_seen(served, counted):
    good = body_of([1.5, 2.5, 3.5, 4.5])
    with Wire(served.port) as wire:
        for _ in range(3):
            assert post(wire, "log", good, KIND).status == 200
        same_length = {
            "[0.0, 2.5, 3.5, 4.5]": (422, "E491"),  # JSON has no word for its logarithm
            "[1.5, 2.5, 3.5,1e39]": (400, "E474"),
            "[1.5, 2.5, 3.5, NaN]": (400, "E470"),
            "[1.5, 2.5, 3.5, 4.5": (400, "E470"),
            "[1.5, 2.5, 35555.5]": (400, "E475"),
            '[1.5, 2.5, 3.5,"44"]': (400, "E474"),
            "[[1.5,2.5],[3.5,45]]": (200, None),
        }
        for values, (status, code) in same_length.items():
            wrong = good.replace(b"[1.5, 2.5, 3.5, 4.5]", values.encode().ljust(20))
            found = post(wire, "log", wrong, KIND)
            assert (found.status, found.json.get("code")) == (status, code), (values, found.body)
            assert post(wire, "log", good, KIND).status == 200
        renamed = good.replace(b'"x"', b'"z"')
        assert post(wire, "log", renamed, KIND).json["code"] == "E473"
        packed = gzip.compress(good)
        for _ in range(3):
            assert post(wire, "log", packed, KIND, "Content-Encoding: gzip").status == 200
        wire.send((head("POST", PATH.format("log"), len(good), KIND) + good) * 5)  # ahead of their answers
        assert [wire.reply().status for _ in range(5)] == [200] * 5
        wire.send(head("POST", PATH.format("log"), len(good), KIND) + good)
        wire.socket.shutdown(1)  # nothing more is asked
        assert wire.reply().status == 200
        assert wire.reply() is None


def test_a_full_queue_says_so_and_clients_that_leave_are_forgotten(tmp_path):
    save(tmp_path, "log", line())
    (tmp_path / "log" / "model.toml").write_text("[batching]\nmax_queue = 1\nmax_batch = 1\n")
    request = head("POST", PATH.format("log"), len(body_of([1.5] * 4)), KIND) + body_of([1.5] * 4)
    with running(tmp_path) as server:
        batcher = server.service.repository.find("log").batcher
        wires = [Wire(server.port) for _ in range(8)]
        for wire in wires:
            for _ in range(3):
                wire.send(request)
                assert wire.reply().status == 200
        with batcher._lock:  # nothing is taken in while all of them ask
            for wire in wires:
                wire.send(request)
        statuses = [wire.reply().status for wire in wires]
        assert set(statuses) <= {200, 429} and 200 in statuses
        for wire in wires:
            wire.send(request)
            wire.__exit__()
        again = ask(server.port, "POST", PATH.format("log"), body_of([1.5] * 4), KIND)
        assert again.status in (200, 429)
    assert server.service.metrics.in_flight == 0
    assert server.listener.busy == 0


def test_a_reload_answers_anew_and_lets_go_of_the_old_model(served, counted):
    body = body_of([1.0, 1.0, 1.0, 1.0])
    with Wire(served.port) as wire:
        for offset in (0.0, 5.0, 7.0):
            save(served.folder, "log", line(offset))
            assert ask(served.port, "POST", "/v2/repository/models/log/load").status == 200
            for _ in range(4):
                assert post(wire, "log", body, KIND).json["outputs"][0]["data"] == [offset] * 4
        assert all(t.models is served.service.repository.ready for t in served.service.repository.templates.values())
        assert ask(served.port, "POST", "/v2/repository/models/log/unload").status == 200
        assert not served.service.repository.templates
        assert post(wire, "log", body, KIND).status == 404
    assert any(counted)


def test_no_request_is_planned(served):
    """Every size of a batch is planned when the model is loaded."""
    model = served.service.repository.find("log")
    programs = model.batcher._graph.executor.programs
    before = programs.store.stats().misses
    with Wire(served.port) as wire:
        for n in range(20):
            assert post(wire, "log", body_of([1.5, 2.5, 3.5, n + 1.5]), KIND).status == 200
    assert programs.store.stats().misses == before > 0


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_body_or_half_a_head_is_never_taken_for_a_request(served, cut):
    """A segment that looks like a request that was asked before, but is the rest of one that has begun."""
    usual = head("POST", PATH.format("log"), len(body_of([1.0] * 4)), KIND) + body_of([1.0] * 4)
    with Wire(served.port) as wire:
        for _ in range(4):
            wire.send(usual)
            assert wire.reply().status == 200
        other = head(
            "POST", PATH.format("log"), len(usual), KIND
        )  # whose body is the text of a request, which is no JSON
        wire.send(usual + other[:cut])
        assert wire.reply().status == 200
        wire.send(other[cut:])
        time.sleep(0.02)
        wire.send(usual)
        assert wire.reply().status == 400
        wire.send(usual)
        assert wire.reply().status == 200
