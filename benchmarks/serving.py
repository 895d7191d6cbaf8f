"""Serving: throughput and latency beside a bare handler, batches, large tensors, idle connections. Server on one core, client on the other."""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from time import monotonic, perf_counter, sleep
from typing import Any

import numpy as np
from harness import CORES, HERE, Table, Timing

import tensorlogic as tl

WIDTHS = (784, 512, 256, 10)
EVERY = sorted(os.sched_getaffinity(0))
STARLETTE = bool(find_spec("starlette") and find_spec("uvicorn"))
SERVER, CLIENT = EVERY[0], EVERY[min(1, CORES - 1)]  # cores
TINY = {"inputs": [{"name": "x", "shape": [4], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}]}


def pinned(core: int, *command: object) -> list[str]:
    """Return a command that keeps to one core."""
    return ["taskset", "-c", str(core), *map(str, command)]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def started(*command: object) -> Iterator[tuple[int, int]]:
    """Run a server whose last argument is its port; yields the port and the process id once it answers."""
    port = free_port()
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryFile() as said:
        line = pinned(SERVER, sys.executable, *command, port)
        process = subprocess.Popen(line, env=env, stdout=said, stderr=said)
        try:
            deadline = monotonic() + 60
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), timeout=5).close()
                    break
                except OSError:
                    if process.poll() is not None or monotonic() > deadline:
                        said.seek(0)
                        raise RuntimeError(said.read().decode()) from None
                    sleep(0.05)
            yield port, process.pid
        finally:
            process.terminate()
            process.wait(30)


def served(folder: Path) -> Any:
    """Run ``tensorlogic serve`` on a folder."""
    return started("-m", "tensorlogic", "serve", folder, "--port")


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process took so far, all its threads together."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def load(server: tuple[int, int], path: str, body: Path, **options: Any) -> dict[str, Any]:
    """Run the load client for a while against a port of a process, and return what it measured; errors end the benchmark.

    ``busy`` is the processor time that the server took for a request: what others do on the machine hardly changes it.
    """
    port, pid = server
    told = [
        word
        for name, value in options.items()
        if value is not None
        for word in (f"--{name.replace('_', '-')}", str(value))
    ]
    line = pinned(CLIENT, sys.executable, HERE / "serving_client.py", port, path, body, *told)
    before = processor_seconds(pid)
    found: dict[str, Any] = json.loads(subprocess.run(line, capture_output=True, check=True, text=True).stdout)
    if found["errors"] or not found["requests"]:
        raise RuntimeError(f"port {port}, {path}: {found}")
    found["busy"] = (processor_seconds(pid) - before) / found["answers"]
    return found


def timing(name: str, times: list[float]) -> Timing:
    return Timing(name, min(times), statistics.median(times), tuple(times))


def mlp_model() -> tuple[tl.EinsumGraph, dict[str, np.ndarray[Any, Any]]]:
    """Return the graph of an MLP and its weights."""
    b, params, rng = tl.GraphBuilder(), {}, np.random.default_rng(0)
    y = b.input("x", (WIDTHS[0],), "float32")
    for n, (rows, columns) in enumerate(pairwise(WIDTHS)):
        params[f"w{n}"] = (rng.normal(size=(rows, columns)) / rows**0.5).astype("float32")
        y = y @ b.input(f"w{n}", (rows, columns), "float32")
        y = b.relu(y) if n < len(WIDTHS) - 2 else y
    return b.build(y=y), params


def save_models(root: Path) -> None:
    """Save the models of the benchmarks: a tiny one, one that doubles, and an MLP with batches and without."""
    from safetensors.numpy import save_file

    def save(name: str, graph: tl.EinsumGraph, settings: str = "") -> Path:
        folder = root / name / "1"
        folder.mkdir(parents=True)
        graph.save(folder / "model.json")
        (root / name / "model.toml").write_text(settings)
        return folder

    b = tl.GraphBuilder()
    save("tiny", b.build(y=b.input("x", (4,), "float32") * 2.0 + 1.0))
    b = tl.GraphBuilder()
    save("double", b.build(y=b.input("x", ("n",), "float32") * 2.0))
    graph, params = mlp_model()
    for name, settings in (("mlp", ""), ("alone", "[batching]\nmax_batch = 1\n")):
        save_file(params, save(name, graph, settings) / "params.safetensors")


def binary_request(array: np.ndarray[Any, Any], path: Path) -> int:
    """Write an infer request with a binary tensor; return the length of its JSON."""
    described = {
        "name": "x",
        "shape": list(array.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": array.nbytes},
    }
    text = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    path.write_bytes(text + array.tobytes())
    return len(text)


def tiny(root: Path, server: tuple[int, int], rounds: int = 5, seconds: float = 1.2) -> list[Table]:
    """Measure requests a second of a tiny model in JSON, and the 99th percentile at half of that."""
    body, path = root / "tiny.json", "/v2/models/tiny/infer"
    body.write_text(json.dumps(TINY))
    peers = HERE / "serving_peers.py"
    skipped = () if STARLETTE else (("Starlette on uvicorn", "starlette or uvicorn is not installed"),)
    with ExitStack() as stack:
        servers = {"bare uvloop + httptools": stack.enter_context(started(peers, "bare")), "tensorlogic serve": server}
        if STARLETTE:
            servers["Starlette on uvicorn"] = stack.enter_context(started(peers, "starlette"))
        for each in servers.values():
            load(each, path, body, seconds=1.0)
        times: dict[str, list[float]] = {name: [] for name in servers}
        busy: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(rounds):
            for name, each in servers.items():
                found = load(each, path, body, seconds=seconds)
                times[name].append(1 / found["rate"])
                busy[name].append(found["busy"])
        half = 0.5 / min(times["tensorlogic serve"])
        late: dict[str, list[float]] = {name: [] for name in servers}
        for _ in range(rounds):
            for name, each in servers.items():
                late[name].append(load(each, path, body, seconds=seconds, rate=half)["p99"])
    rates = {name: 1 / min(t) for name, t in times.items()}
    share = rates["tensorlogic serve"] / rates["bare uvloop + httptools"]
    note = f"64 connections, 4 numbers in JSON; time for one request, so {', '.join(f'{n} {r:,.0f} a second' for n, r in rates.items())}. "
    note += f"tensorlogic serve reaches {share:.2f} of the bare handler (goal: 0.5), with routing, checks, limits and metrics on. "
    if "Starlette on uvicorn" in rates:
        note += f"It is {rates['tensorlogic serve'] / rates['Starlette on uvicorn']:.1f} times Starlette (goal: 2)."
    least = {name: min(t) for name, t in busy.items()}
    spent = f"Processor time of the server for a request, of the same runs: {least['bare uvloop + httptools'] / least['tensorlogic serve']:.2f} of the bare handler's throughput on a core of its own."
    return [
        Table("A tiny model in JSON", note, tuple(timing(n, t) for n, t in times.items()), skipped=skipped),
        Table(
            "A tiny model in JSON, processor time", spent, tuple(timing(n, t) for n, t in busy.items()), skipped=skipped
        ),
        Table(
            "99th percentile at half load",
            f"The same at {half:,.0f} requests a second for all (goal: 3 times the bare handler's).",
            tuple(timing(n, t) for n, t in late.items()),
            skipped=skipped,
        ),
    ]


def forward(rows: int) -> tuple[Timing, Timing]:
    """Time the MLP alone on the server's core: a row by itself, and a row of a batch."""
    line = pinned(SERVER, sys.executable, HERE / "serving_peers.py", "forward", rows)
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    found = json.loads(subprocess.run(line, env=env, capture_output=True, check=True, text=True).stdout)
    return timing("the forward pass alone, a row", found["alone"]), timing(
        f"the forward pass alone, a row of {rows}", found["batch"]
    )


def mlp(root: Path, server: tuple[int, int], rounds: int = 4) -> list[Table]:
    """Measure an MLP under 64 clients, in batches and one by one, and its latency against load."""
    body, text = root / "mlp.bin", root / "mlp.json"
    row = np.random.default_rng(1).normal(size=WIDTHS[0]).astype("float32")
    length = binary_request(row, body)
    given = {"name": "x", "shape": [WIDTHS[0]], "datatype": "FP32", "data": row.tolist()}
    text.write_text(json.dumps({"inputs": [given]}))
    path, alone = "/v2/models/mlp/infer", "/v2/models/alone/infer"
    with ExitStack() as stack:
        calls: dict[str, tuple[tuple[int, int], str, Path, int | None]] = {
            "one by one": (server, alone, body, length),
            "in batches": (server, path, body, length),
            "one by one, JSON": (server, alone, text, None),
            "in batches, JSON": (server, path, text, None),
        }
        if STARLETTE:
            unbatched = stack.enter_context(started(HERE / "serving_peers.py", "unbatched"))
            calls["one by one, Starlette on uvicorn"] = unbatched, alone, body, length
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in calls}
        for n in range(rounds + 1):
            for name, (where, target, sent, json_length) in calls.items():
                run = load(where, target, sent, seconds=1.0, json_length=json_length)
                if n:  # the first round warms up
                    found[name].append(run)
    rates = {name: max(r["rate"] for r in each) for name, each in found.items()}
    p99 = {name: min(r["p99"] for r in each) for name, each in found.items()}
    gains = " and ".join(
        f"{rates['in batches'] / r:.1f} times that of {n}"
        for n, r in rates.items()
        if n.startswith("one") and "JSON" not in n
    )
    late = ", ".join(f"{1e3 * t:.1f} ms {n}" for n, t in p99.items())
    row, batch = forward(64)
    busy = {name: min(r["busy"] for r in each) for name, each in found.items()}
    rest = busy["in batches"] - batch.best
    note = f"64 connections, 784 numbers in binary form unless it says JSON; time for one request. The throughput of batches is {gains} (goal: 5); p99 {late}."
    spent = (
        f"Processor time of the server for a request, of the same runs: {busy['one by one'] / busy['in batches']:.1f} times as much one by one. The forward pass alone, on the server's core, "
        f"takes {1e6 * row.best:.0f} µs for a row and {1e6 * batch.best:.1f} µs for a row of 64: batches could bring {row.best / batch.best:.1f} times if all else were free, and "
        f"{(row.best + rest) / (batch.best + rest):.1f} times if what a request in batches takes beside it, {1e6 * rest:.0f} µs, were what it takes alone, too. It takes more alone, "
        "because each single row reads all the weights and so pushes the server's own data out of the caches."
    )
    tables = [
        Table(
            "MLP 784-512-256-10, 64 clients",
            note,
            tuple(timing(n, [1 / r["rate"] for r in each]) for n, each in found.items()),
        ),
        Table(
            "MLP 784-512-256-10, 64 clients, processor time",
            spent,
            (*(timing(n, [r["busy"] for r in each]) for n, each in found.items()), row, batch),
        ),
    ]
    names = {"one by one": "alone", "in batches": "mlp"}
    for share in (0.1, 0.25, 0.5, 0.75, 0.9):
        rate = round(share * rates["in batches"], -1)
        rows = []
        for name, model in names.items():
            if rate > 0.95 * rates[name]:
                continue  # it cannot keep up, and its queue would only grow
            runs = [
                load(server, f"/v2/models/{model}/infer", body, seconds=1.2, rate=rate, json_length=length)
                for _ in range(2)
            ]
            rows += [timing(f"{name}, {p}", [r[p] for r in runs]) for p in ("p50", "p99")]
        tables.append(
            Table(
                f"MLP at {rate:,.0f} requests a second",
                f"Latency at {share:.0%} of what the server can do.",
                tuple(rows),
            )
        )
    return tables


def large(port: int, rounds: int = 40) -> Table:
    """Measure 1 MB in and out, beside a socket that nothing but the bytes goes through."""
    array = np.arange(250_000, dtype="float32")
    described = {"name": "x", "shape": [250_000], "datatype": "FP32", "parameters": {"binary_data_size": array.nbytes}}
    text = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    head = f"POST /v2/models/double/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(text)}\r\nContent-Length: {len(text) + array.nbytes}\r\n\r\n"
    request = head.encode() + text + array.tobytes()

    def over_http(connection: socket.socket, memory: bytearray) -> None:
        connection.sendall(request)
        got = connection.recv_into(memory)
        start = memory.find(b"\r\n\r\n") + 4
        lines = bytes(memory[:start]).lower().splitlines()
        length = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        view = memoryview(memory)
        while got < start + length:
            got += connection.recv_into(view[got:])

    def over_socket(connection: socket.socket, memory: bytearray) -> None:
        connection.sendall(array.nbytes.to_bytes(8, "little"))
        connection.sendall(array.data)
        view, got = memoryview(memory), 0
        while got < array.nbytes + 8:
            got += connection.recv_into(view[got:])

    times: dict[str, list[float]] = {"raw socket": [], "tensorlogic serve": []}
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {CLIENT})
    try:
        with started(HERE / "serving_peers.py", "socket") as (raw, _):
            sleep(0.2)
            calls = {"raw socket": (raw, over_socket), "tensorlogic serve": (port, over_http)}
            sockets = {name: socket.create_connection(("127.0.0.1", p)) for name, (p, _) in calls.items()}
            memory = bytearray(array.nbytes + 65536)
            for n in range(rounds + 5):
                for name, (_, call) in calls.items():
                    start = perf_counter()
                    call(sockets[name], memory)
                    if n >= 5:
                        times[name].append(perf_counter() - start)
            for each in sockets.values():
                each.close()
    finally:
        os.sched_setaffinity(0, before)
    note = "1 MB of float32 there and 1 MB back, doubled, one client (goal: 1.3 times the socket)."
    return Table("Binary tensors of 1 MB", note, tuple(timing(n, t) for n, t in times.items()))


def idle(folder: Path, count: int = 10_000) -> Table:
    """Measure the memory of connections that only wait."""
    import resource

    count = min(count, resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with served(folder) as (port, pid):
            before = resident(pid)
            start = perf_counter()
            open_ones = [socket.create_connection(("127.0.0.1", port)) for _ in range(count)]
            taken = (perf_counter() - start) / count
            sleep(0.5)
            after = resident(pid)
            for each in open_ones:
                each.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    note = f"{count:,} connections take {(after - before) / 1e6:.0f} MB; the whole process {after / 1e6:.0f} MB (goal: under 300). Time to open one."
    return Table(f"{count:,} idle connections", note, (timing("tensorlogic serve", [taken]),))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def tables() -> list[Table]:
    """Measure everything; about three minutes."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        save_models(root / "models")
        with served(root / "models") as server:
            found = [*tiny(root, server), *mlp(root, server), large(server[0])]
        return [*found, idle(root / "models")]


if __name__ == "__main__":
    for table in tables():
        print(table.markdown())
