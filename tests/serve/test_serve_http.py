"""The server over HTTP: every part of the Open Inference Protocol, ids and traces, tokens and TLS, reloads, going down."""

import asyncio
import io
import json
import re
import ssl
import subprocess
import threading
import time
from itertools import pairwise

import numpy as np
import pytest
from live_server import Wire, ask, binary, double, head, infer, running, save, save_models, vector

import tensorlogic as tl
from tensorlogic.serve.access_log import AccessLog
from tensorlogic.serve.limits import Limits
from tensorlogic.serve.protocol import GivenTensor, InferRequest
from tensorlogic.serve.repository import Repository
from tensorlogic.serve.service import Service


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    with running(save_models(tmp_path_factory.mktemp("models"))) as server:
        yield server


def test_a_request_that_is_cancelled_while_it_is_planned_is_told_so(tmp_path):
    save(tmp_path, "double", double())
    service, planned, outcomes = Service(Repository(tmp_path, Limits()), Limits()), threading.Event(), []
    service.repository.load("double")
    service.repository.find("double").admit = lambda inputs: planned.wait(20)

    async def ask_and_leave():
        service.loop, told = asyncio.get_running_loop(), asyncio.Event()
        query = InferRequest("", [GivenTensor("x", (2,), "FP32", [1.0, 2.0])], (), {})
        cancel = service.infer("double", "", query, None, lambda _, outcome: (outcomes.append(outcome), told.set()))
        cancel()
        planned.set()
        await asyncio.wait_for(told.wait(), 20)

    asyncio.run(ask_and_leave())
    service.close()
    assert [type(outcome) for outcome in outcomes] == [tl.CancelledError]


def test_health_and_metadata(served):
    for path in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/double/ready",
        "/v2/models/double/versions/1/ready",
    ):
        assert ask(served.port, "GET", path).status == 200
    assert ask(served.port, "GET", "/v2").json["name"] == "tensorlogic"
    found = ask(served.port, "GET", "/v2/models/double").json
    assert found == {
        "name": "double", "versions": ["1"], "platform": "tensorlogic",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1]}], "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1]}],
    }  # fmt: skip
    assert ask(served.port, "GET", "/v2/models/double/config").json["input"][0]["data_type"] == "TYPE_FP32"


def test_infer_in_json(served):
    found = infer(served.port, "double", vector(1, 2.5), id="42", headers=("X-Request-Id: abc",))
    assert (found.status, found.headers["x-request-id"]) == (200, "abc")
    output = {"name": "y", "datatype": "FP32", "shape": [2], "data": [2.0, 5.0]}
    assert found.json == {"model_name": "double", "model_version": "1", "id": "42", "outputs": [output]}
    assert infer(served.port, "double", vector(1)).headers["x-request-id"]  # made where none is given
    nested = {"name": "INPUT0", "shape": [1, 16], "datatype": "INT32", "data": [list(range(16))]}
    found = infer(served.port, "simple", nested, {**nested, "name": "INPUT1"}, outputs=[{"name": "OUTPUT1"}])
    assert [o["name"] for o in found.json["outputs"]] == ["OUTPUT1"]
    assert found.json["outputs"][0]["data"] == [0] * 16


def test_infer_with_binary_tensors(served):
    values = np.linspace(-1, 1, 100_001, dtype="float32")  # larger than one read, and not aligned
    described, data = binary("x", values, "FP32")
    text = json.dumps({"inputs": [described], "outputs": [{"name": "y", "parameters": {"binary_data": True}}]}).encode()
    for pad in range(5):
        start = text + b" " * pad
        found = ask(
            served.port,
            "POST",
            "/v2/models/double/infer",
            start + data,
            f"Inference-Header-Content-Length: {len(start)}",
        )
        assert found.status == 200
        length = int(found.headers["inference-header-content-length"])
        assert json.loads(found.body[:length])["outputs"][0]["parameters"] == {"binary_data_size": 400_004}
        assert np.array_equal(np.frombuffer(found.body[length:], "float32"), 2 * values)


def test_formulas_and_programs_have_names_in_and_out(served):
    def names(name, *rows):
        return {"name": name, "shape": [len(rows), 2], "datatype": "BYTES", "data": [w for row in rows for w in row]}

    found = infer(served.port, "aunt", names("sister", ("alice", "bob")), names("parent", ("bob", "carol")))
    assert found.json["outputs"][0]["data"] == ["alice", "carol"]
    found = infer(served.port, "family")  # its own facts
    assert found.json["outputs"] == [
        {
            "name": "Ancestor",
            "datatype": "BYTES",
            "shape": [3, 2],
            "data": ["Alice", "Bob", "Alice", "Charlie", "Bob", "Charlie"],
        }
    ]
    found = infer(served.port, "family", names("Parent", ("Charlie", "Alice")))
    assert found.json["outputs"][0]["data"] == ["Charlie", "Alice"]
    dense = infer(served.port, "family", outputs=[{"name": "Ancestor", "parameters": {"names": False}}]).json[
        "outputs"
    ][0]
    assert (dense["datatype"], dense["shape"], sum(dense["data"])) == ("BOOL", [3, 3], 3)


def test_all_datatypes_come_back_as_they_went(tmp_path):
    from tensorlogic.serve.protocol import DATATYPES

    b = tl.GraphBuilder()
    save(
        tmp_path,
        "same",
        b.build(**{f"{t}_out": b.input(t, (2,), dtype).reshape((1, 2)) for t, dtype in DATATYPES.items()}),
    )
    with running(tmp_path) as server:
        data = {t: [True, False] if t == "BOOL" else [1, 0] for t in DATATYPES}
        found = infer(
            server.port, "same", *[{"name": t, "shape": [2], "datatype": t, "data": v} for t, v in data.items()]
        )
        assert {o["name"]: o["data"] for o in found.json["outputs"]} == {f"{t}_out": v for t, v in data.items()}
        described, buffers = zip(*[binary(t, np.array(v, DATATYPES[t]), t) for t, v in data.items()], strict=True)
        text = json.dumps({"inputs": described, "parameters": {"binary_data_output": True}}).encode()
        body = text + b"".join(buffers)
        found = ask(server.port, "POST", "/v2/models/same/infer", body, f"Inference-Header-Content-Length: {len(text)}")
        assert found.body[int(found.headers["inference-header-content-length"]) :] == b"".join(buffers)


def test_versions_loads_and_unloads(tmp_path):
    save(tmp_path, "m", double(2), 1)
    with running(tmp_path) as server:
        save(tmp_path, "m", double(3), 2)
        assert infer(server.port, "m", vector(1)).json["outputs"][0]["data"] == [2]  # nothing changes by itself
        assert ask(server.port, "POST", "/v2/repository/models/m/load").status == 200
        assert infer(server.port, "m", vector(1)).json["outputs"][0]["data"] == [3]  # the latest
        assert infer(server.port, "m/versions/1", vector(1)).json["outputs"][0]["data"] == [2]
        assert ask(server.port, "GET", "/v2/models/m").json["versions"] == ["1", "2"]
        (tmp_path / "m" / "model.toml").write_text('versions = "latest"')
        assert ask(server.port, "POST", "/v2/repository/models/m/load").status == 200
        found = infer(server.port, "m/versions/1", vector(1))
        assert (found.status, found.json["code"]) == (404, "E477")
        assert ask(server.port, "POST", "/v2/repository/models/m/unload").status == 200
        assert infer(server.port, "m", vector(1)).json["code"] == "E476"
        states = {(r["version"], r["state"]) for r in ask(server.port, "POST", "/v2/repository/index").json}
        assert states == {("1", "UNAVAILABLE"), ("2", "UNAVAILABLE")}
        (tmp_path / "m" / "2" / "model.json").write_text("{")
        found = ask(server.port, "POST", "/v2/repository/models/m/load")
        assert found.status >= 400 and "failed to load" in found.json["error"]


def test_a_load_that_fails_leaves_what_was_served(tmp_path):
    save(tmp_path, "m", double(2))
    with running(tmp_path) as server:
        (tmp_path / "m" / "1" / "model.json").write_text("{}")
        assert ask(server.port, "POST", "/v2/repository/models/m/load").status >= 400
        assert infer(server.port, "m", vector(1)).json["outputs"][0]["data"] == [2]
        (tmp_path / "m" / "model.toml").write_text("batchin = 3")
        assert ask(server.port, "POST", "/v2/repository/models/m/load").json["code"] == "E490"
        assert infer(server.port, "m", vector(1)).status == 200


def test_requests_during_reloads_are_all_answered_by_one_model_or_the_other(tmp_path):
    save(tmp_path, "m", double(2))
    with running(tmp_path) as server:
        stop, answers = threading.Event(), []

        def hammer():
            with tl.Client(f"http://127.0.0.1:{server.port}", retries=0) as client:
                while not stop.is_set():
                    answers.append(float(client.infer("m", {"x": np.ones(1, "float32")})["y"][0]))

        threads = [threading.Thread(target=hammer) for _ in range(4)]
        for thread in threads:
            thread.start()
        for n in range(12):
            save(tmp_path, "m", double(3 + n))
            assert ask(server.port, "POST", "/v2/repository/models/m/load").status == 200
        last = infer(server.port, "m", vector(1)).json["outputs"][0]["data"]
        stop.set()
        for thread in threads:
            thread.join()
    assert last == [14.0]
    assert len(answers) > 20 and set(answers) <= {float(n) for n in range(2, 15)}


def test_compiled_graphs_and_parameters(tmp_path):
    from safetensors.numpy import save_file

    b = tl.GraphBuilder()
    graph = b.build(y=b.relu(b.input("x", (3,), "float32") @ b.input("w", (3, 2), "float32")))
    folder = save(tmp_path, "layer", graph)
    save_file({"w": np.ones((3, 2), "float32")}, folder / "params.safetensors")
    (tmp_path / "compiled").mkdir()
    tl.Executor().compile_graph(double(5)).save(tmp_path / "compiled" / "1")
    with running(tmp_path) as server:
        assert infer(server.port, "layer", vector(1, 2, 3)).json["outputs"][0]["data"] == [6, 6]
        assert [i["name"] for i in ask(server.port, "GET", "/v2/models/layer").json["inputs"]] == ["x"]
        assert infer(server.port, "compiled", vector(1, 2)).json["outputs"][0]["data"] == [5, 10]


def test_paths_and_methods(served):
    found = ask(served.port, "GET", "/v2/models/double/infer")
    assert (found.status, found.headers["allow"], found.json["code"]) == (405, "POST", "E484")
    assert ask(served.port, "GET", "/v3").json["code"] == "E483"
    assert ask(served.port, "GET", "/v2/models/%2e%2e%2f%2e%2e").status == 404
    assert ask(served.port, "POST", "/v2/repository/models/..%2F..%2Fetc/load").json["code"] == "E476"


def test_keep_alive_pipelining_and_answers_in_order(served):
    with Wire(served.port) as wire:
        bodies = [json.dumps({"inputs": [vector(n)]}).encode() for n in range(300)]
        wire.send(b"".join(head("POST", "/v2/models/double/infer", len(b)) + b for b in bodies))
        assert [wire.reply().json["outputs"][0]["data"][0] for _ in bodies] == [2 * n for n in range(300)]
        wire.send(head("GET", "/v2/health/live", None, "Connection: close"))
        assert wire.reply().status == 200
        assert wire.reply() is None


@pytest.mark.parametrize("cuts", [[], [150], [40, 70_000, 400_000]])
def test_large_bodies_and_what_follows_them_on_one_connection(served, cuts):
    x = np.arange(60_000, dtype="float32")
    described, data = binary("x", x, "FP32")
    text = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    form = f"Inference-Header-Content-Length: {len(text)}"
    large = head("POST", "/v2/models/double/infer", len(text) + len(data), form) + text + data
    small = json.dumps({"inputs": [vector(7)]}).encode()
    small = head("POST", "/v2/models/double/infer", len(small)) + small
    sent = large + small + large + small + small
    with Wire(served.port) as wire:
        for start, stop in pairwise([0, *cuts, len(sent)]):
            wire.send(sent[start:stop])
            time.sleep(0.01)
        for expected in (x, None, x, None, None):
            found = wire.reply()
            if expected is None:
                assert found.json["outputs"][0]["data"] == [14]
            else:
                length = int(found.headers["inference-header-content-length"])
                assert np.array_equal(np.frombuffer(found.body[length:], "float32"), 2 * expected)
    with Wire(served.port) as wire:  # one that leaves in the middle
        wire.send(large[:100_000])
    for _ in range(200):
        if not served.listener.buffered:
            break
        time.sleep(0.02)
    assert served.listener.buffered == 0


def test_metrics_and_openapi(served):
    before = infer(served.port, "double", vector(1))
    assert before.status == 200
    text = ask(served.port, "GET", "/metrics").body.decode()
    assert re.search(r'tensorlogic_requests_total\{model="double",version="1",protocol="http",code="ok"\} [1-9]', text)
    assert re.search(r'tensorlogic_request_seconds_bucket\{model="double",version="1",le="\+Inf"\} [1-9]', text)
    for line in text.splitlines():
        assert line.startswith("#") or re.fullmatch(r'[a-z_]+(\{([a-z]+="[^"]*",?)+\})? [0-9.e+-]+', line), line
    described = ask(served.port, "GET", "/openapi.json").json
    assert described["paths"]["/v2/models/{name}/infer"]["post"]["requestBody"]["required"]
    for path in described["paths"]:
        if "{" not in path and "get" in described["paths"][path]:
            assert ask(served.port, "GET", path).status == 200, path


def test_pages_of_other_sites_are_refused(served):
    for origin, host in (
        ("http://evil.example", "127.0.0.1"),
        ("http://evil.example", "evil.example"),
        ("null", "localhost"),
    ):
        with Wire(served.port) as wire:
            wire.send(
                f"POST /v2/repository/models/double/unload HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\r\n".encode()
            )
            found = wire.reply()
            assert (found.status, found.json["code"]) == (403, "E480")
    with Wire(served.port) as wire:
        wire.send(b"GET /v2 HTTP/1.1\r\nHost: localhost:8000\r\nOrigin: http://localhost:8000\r\n\r\n")
        assert wire.reply().status == 200


def test_tokens_are_asked_for_before_the_body_is_read(tmp_path):
    save(tmp_path, "m", double())
    with running(tmp_path, tokens=("first-token-of-two", "second-token-of-two")) as server:
        with Wire(server.port) as wire:
            wire.send(head("POST", "/v2/models/m/infer", 10_000_000))
            found = wire.reply()  # although no body was sent
            assert (found.status, found.json["code"], found.headers["www-authenticate"]) == (401, "E482", "Bearer")
        assert ask(server.port, "GET", "/v2", None, "Authorization: Bearer wrong").status == 401
        for token in ("first-token-of-two", "second-token-of-two"):
            assert ask(server.port, "GET", "/v2", None, f"Authorization: Bearer {token}").status == 200
        assert ask(server.port, "GET", "/v2/health/ready").status == 200
        client = tl.Client(f"http://127.0.0.1:{server.port}", token="second-token-of-two")
        assert client.infer("m", {"x": np.ones(2, "float32")})["y"].tolist() == [2, 2]
        client.close()


def test_tls(tmp_path):
    save(tmp_path / "models", "m", double())
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
               "-addext", "subjectAltName=IP:127.0.0.1", "-out", cert, "-keyout", key]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)
    with running(tmp_path / "models", certificate=str(cert), key=str(key)) as server:
        trusted = ssl.create_default_context(cafile=cert)
        x = np.arange(200_000, dtype="float32")
        with tl.Client(f"https://127.0.0.1:{server.port}", tls=trusted) as client:
            assert np.array_equal(client.infer("m", {"x": x})["y"], 2 * x)
        with pytest.raises(tl.ServerError, match="does not answer"):
            tl.Client(f"https://127.0.0.1:{server.port}", retries=0).metadata()


def test_every_request_is_a_span_from_the_socket_to_the_kernels(tmp_path):
    save(tmp_path, "m", double())
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with tl.trace() as found, running(tmp_path) as server:
        for n in range(3):
            infer(
                server.port,
                "m",
                vector(1),
                headers=(f"X-Request-Id: r{n}", f"traceparent: 00-{trace_id}-b7ad6b7169203331-01"),
            )
    spans = {e.name.split()[1]: e for e in found.events() if e.kind == "span" and e.name.startswith("request ")}
    assert spans.keys() == {"r0", "r1", "r2"}
    assert all(trace_id in e.name and "model=m" in e.name for e in spans.values())
    steps = [e for e in found.events() if e.kind == "step"]
    assert len(steps) >= 3
    for span in spans.values():
        assert any(span.start_ns <= step.start_ns and step.end_ns <= span.end_ns for step in steps)


def test_logs_are_json_lines_and_a_full_disk_stops_nothing(tmp_path):
    save(tmp_path, "m", double())
    out = io.StringIO()
    log = AccessLog(out, requests=True)
    with running(tmp_path, log=log) as server:
        infer(server.port, "m", vector(1), headers=("X-Request-Id: one",))
        infer(server.port, "m", vector(1, name="z"))
    log.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    requests = [line for line in lines if line["event"] == "request"]
    assert [(r["status"], r.get("code"), r.get("id")) for r in requests] == [(200, None, "one"), (400, "E473", None)]
    assert [line["event"] for line in lines if line["event"] != "request"] == ["listening", "draining", "ended"]
    full = open("/dev/full", "w", buffering=1)  # noqa: SIM115 - closing it fails, which is looked at
    log = AccessLog(full, requests=True)
    with running(tmp_path, log=log) as server:
        assert all(infer(server.port, "m", vector(n)).status == 200 for n in range(20))
    log.close()
    assert log.dropped > 0
    with pytest.raises(OSError):
        full.close()


def test_going_down_answers_what_was_taken_in(tmp_path):
    save(tmp_path, "m", double())
    (tmp_path / "m" / "model.toml").write_text('[batching]\nstrategy = "throughput"\nmax_wait = 2.0\n')
    with running(tmp_path) as server:
        body = json.dumps({"inputs": [vector(1)]}).encode()
        wires = [Wire(server.port) for _ in range(8)]
        for wire in wires:
            wire.send(head("POST", "/v2/models/m/infer", len(body)) + body)
        deadline = time.monotonic() + 20
        while server.listener.busy < 8 and time.monotonic() < deadline:  # they wait for a full batch
            time.sleep(0.001)
        server.stop()
        replies = [wire.reply() for wire in wires]
        assert [(r.status, r.headers.get("connection")) for r in replies] == [(200, "close")] * 8
        for wire in wires:
            wire.__exit__()


def test_limits_of_arithmetic_memory_and_time(tmp_path):
    b = tl.GraphBuilder()
    x = b.input("x", ("n",), "float32")
    save(tmp_path, "outer", b.build(y=b.einsum("i,j->ij", x, x).sum()))
    with running(tmp_path, limits=Limits(flops=1_000_000, memory_bytes=500_000)) as server:
        assert infer(server.port, "outer", vector(*[1.0] * 100)).status == 200
        found = infer(server.port, "outer", vector(*[1.0] * 2000))
        assert (found.status, found.json["code"]) == (422, "E479")
        assert infer(server.port, "outer", vector(*[1.0] * 100)).status == 200
    (tmp_path / "outer" / "model.toml").write_text("[limits]\nrank = 0\n")
    with running(tmp_path) as server:
        assert infer(server.port, "outer", vector(1)).json["code"] == "E497"


def test_only_loopback_unless_told():
    from tensorlogic.serve.server import ServerConfig

    assert ServerConfig("models").host == "127.0.0.1"


def test_requests_that_differ_in_their_numbers_only_take_a_shorter_way_to_the_same_answers(tmp_path):
    b = tl.GraphBuilder()
    save(tmp_path, "m", b.build(y=b.input("x", (2,), "float32") + 1.0))
    start, end = b'{"inputs":[{"name":"x","shape":[2],"datatype":"FP32","data":', b"}]}"
    path, kind = "/v2/models/m/infer", "Content-Type: application/json"
    asked = {
        b"[10, 20]": [11, 21], b"[30, 40]": [31, 41], b"[ 5,6  ]": [6, 7], b"[[7,8]] ": None, b"[1,2,3] ": None, b"[7,true]": None,
        b'["a",1]': None, b"[NaN, 1]": None, b"[1],1: [": None, b"[5e4,-1]": [50001, 0], b"[1e39,0]": None, b"[0.5, 2]": [1.5, 3],
    }  # fmt: skip
    with running(tmp_path) as server, Wire(server.port) as wire:
        for _ in range(3):
            for data, answer in asked.items():
                body = start + data.ljust(8) + end
                wire.send(head("POST", path, len(body), kind) + body)
                found = wire.reply()
                assert (found.status, found.json["outputs"][0]["data"] if answer else None) == (
                    200 if answer else 400,
                    answer,
                ), data
        assert len(server.listener.heads) == 1
        save(tmp_path, "m", b.build(y=b.input("x", (2,), "float32") + 2.0))
        assert ask(server.port, "POST", "/v2/repository/models/m/load").status == 200
        body = start + b"[10, 20]" + end
        wire.send(head("POST", path, len(body), kind) + body)
        assert wire.reply().json["outputs"][0]["data"] == [12, 22]
        assert ask(server.port, "POST", "/v2/repository/models/m/unload").status == 200
        wire.send(head("POST", path, len(body), kind) + body)
        assert wire.reply().status == 404
