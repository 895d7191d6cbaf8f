"""The server as a command: several processes on one port, signals, and what it says when it cannot start."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
from live_server import Wire, ask, double, head, infer, save, vector

from tensorlogic.serve.grpc_messages import CLASSES, SERVICE


@contextmanager
def command(folder, *options):
    """Run ``tensorlogic serve``; yields the process and its port, and ends it."""
    line = [sys.executable, "-m", "tensorlogic", "serve", str(folder), "--port", "0", "--json", *options]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        assert said, process.stderr.read()
        process.grpc_port = json.loads(said)["grpc_port"]
        yield process, int(json.loads(said)["url"].rpartition(":")[2])
    finally:
        process.terminate()
        process.communicate(timeout=60)


def until(true):
    deadline = time.monotonic() + 60
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def ready(port):
    try:
        return ask(port, "GET", "/v2/models/m/ready").status == 200
    except OSError:
        return False


def workers_of(port):
    """The processes that listen on a port, by the kernel's table."""
    text = f":{port:04X}"
    with open("/proc/net/tcp") as table:
        return sum(text in line.split()[1] and line.split()[3] == "0A" for line in table)


def test_workers_that_cannot_begin_end_the_server(tmp_path):
    save(tmp_path, "m", double(2))
    (tmp_path / "no.pem").write_text("")
    told = ["--workers", "2", "--port", "0", "--tls-cert", tmp_path / "no.pem", "--tls-key", tmp_path / "no.pem"]
    line = [sys.executable, "-m", "tensorlogic", "serve", tmp_path, *told]
    found = subprocess.run(line, capture_output=True, text=True, timeout=60, check=False)
    assert found.returncode == 1 and not found.stdout
    assert (
        "a worker process ended before it listened" in found.stderr and "the certificate cannot be used" in found.stderr
    )


def test_several_processes_share_a_port_models_and_metrics(tmp_path):
    save(tmp_path, "m", double(2))
    with command(tmp_path, "--workers", "2", "--grpc-port", "0") as (process, port):
        assert workers_of(port) == 2 and ready(port)  # what is announced listens
        with grpc.insecure_channel(f"127.0.0.1:{process.grpc_port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ServerReady", None, CLASSES["ServerReadyResponse"].FromString)
            assert call(b"", timeout=60, wait_for_ready=True).ready
        assert all(infer(port, "m", vector(1)).json["outputs"][0]["data"] == [2] for _ in range(40))
        text = ask(port, "GET", "/metrics").body.decode()
        assert re.search(r'requests_total\{model="m",version="1",protocol="http",code="ok"\} 40\b', text), text
        save(tmp_path, "m", double(3))
        assert ask(port, "POST", "/v2/repository/models/m/load").status == 200
        assert all(infer(port, "m", vector(1)).json["outputs"][0]["data"] == [3] for _ in range(20))  # whoever answers
        assert ask(port, "POST", "/v2/repository/models/nope/load").json["code"] == "E476"
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        until(lambda: workers_of(port) == 1)
        until(lambda: workers_of(port) == 2)  # another one takes its place
        assert infer(port, "m", vector(1)).status == 200
        process.terminate()
        assert process.wait(60) == 0
    assert workers_of(port) == 0


def test_workers_of_an_empty_folder_listen_and_serve_what_comes_with_sighup(tmp_path):
    with command(tmp_path, "--workers", "2") as (process, port):
        assert workers_of(port) == 2 and not ready(port)
        save(tmp_path, "m", double(2))
        process.send_signal(signal.SIGHUP)
        until(lambda: all(ready(port) for _ in range(20)))  # whoever answers


def test_a_reload_reaches_a_worker_that_does_not_listen_yet(tmp_path):
    save(tmp_path, "m", double(2))
    slow = save(tmp_path, "n", double(2)) / "model.toml"
    os.mkfifo(slow)
    code = (
        "import sys; from tensorlogic.serve.server import ServerConfig; from tensorlogic.serve.workers import run; "
        "run(ServerConfig(sys.argv[1], port=0), 1, lambda chosen: print(chosen.port, flush=True))"
    )
    pipes = []

    def is_read():
        with suppress(OSError):  # nobody reads it yet
            pipes.append(os.open(slow, os.O_WRONLY | os.O_NONBLOCK))
        return pipes

    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        until(is_read)  # then m is loaded
        save(tmp_path, "m", double(3))
        slow.unlink()
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)  # for the parent to see the signal while the worker waits
        os.close(pipes[0])
        port = int(process.stdout.readline())
        until(lambda: infer(port, "m", vector(1)).json["outputs"][0]["data"] == [3])
    finally:
        process.terminate()
        process.communicate(timeout=60)


def test_what_goes_wrong_once_the_workers_listen_ends_the_command(tmp_path):
    with open("/dev/full", "w") as full:
        line = [sys.executable, "-m", "tensorlogic", "serve", tmp_path, "--port", "0", "--workers", "2"]
        found = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert found.returncode and "No space left" in found.stderr


def test_sigterm_under_load_loses_no_request(tmp_path):
    save(tmp_path, "m", double(2))
    with command(tmp_path) as (process, port):
        until(lambda: ready(port))
        lost, answered = [], []
        body = json.dumps({"inputs": [vector(1)]}).encode()
        request = head("POST", "/v2/models/m/infer", len(body), "Content-Type: application/json") + body

        def hammer():
            with Wire(port) as wire:
                closing = False
                while not closing:
                    wire.send(request)
                    found = wire.reply()
                    if found is None or found.status != 200:
                        lost.append(found)
                        return
                    answered.append(found.json["outputs"][0]["data"][0])
                    closing = found.headers.get("connection") == "close"

        threads = [threading.Thread(target=hammer) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: len(answered) > 200)
        process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(60)
        assert process.wait(60) == 0
        events = [json.loads(line)["event"] for line in process.stderr.read().splitlines()]
    assert not lost
    assert set(answered) == {2.0}
    assert events == ["listening", "draining", "ended"]


def test_a_port_in_use_and_other_reasons_not_to_start(tmp_path):
    save(tmp_path, "m", double(2))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        line = [sys.executable, "-m", "tensorlogic", "serve", str(tmp_path), "--port", str(taken.getsockname()[1])]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
        assert done.returncode == 1 and "cannot listen on" in done.stderr
    from click.testing import CliRunner

    from tensorlogic.cli import main

    (tmp_path / "tokens").write_text("short\n")
    for options, said in (
        ([str(tmp_path / "nowhere")], "there is no folder"),
        ([str(tmp_path), "--token-file", str(tmp_path / "tokens")], "at least 16 characters"),
        ([str(tmp_path), "--limit", "bodybytes=3"], "bodybytes"),
        ([str(tmp_path), "--limit", "rank=many"], "--limit"),
    ):
        found = CliRunner().invoke(main, ["serve", *options])
        assert found.exit_code == 1 and said in found.output, found.output
