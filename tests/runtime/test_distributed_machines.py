"""Ranks of several machines: where they listen, who is missing, and how long that takes to be known; two network namespaces stand for machines."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import tensorlogic as tl
from tensorlogic.runtime.distributed import joining, torch_ways
from tensorlogic.runtime.distributed.joining import Meeting, Missing

dist = pytest.importorskip("torch.distributed", reason="make test TORCH=1 installs PyTorch")

SOURCES = str(Path(tl.__file__).parents[1])


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def ended_process() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def world(meeting: object, timeout: float = 1.0) -> torch_ways.TorchCommunication:
    return torch_ways.TorchCommunication((0, 1), 0, None, timeout, meeting)  # type: ignore[arg-type]


class Said:
    """A meeting that says who is missing, after a while."""

    def __init__(self, missing: Missing, seconds: float = 0.0) -> None:
        self.found, self.seconds, self.call = missing, seconds, 0

    def missing(self, *_: object) -> Missing:
        time.sleep(self.seconds)
        return self.found

    def leave(self, *_: object) -> None:
        time.sleep(self.seconds)


def test_a_rank_that_waits_for_the_first_one_says_so_in_time() -> None:
    begin = time.monotonic()
    with pytest.raises(tl.ExecutionError, match=r"rank 0 did not come within 0\.5 s: 127\.0\.0\.1:\d+: ") as found:
        joining.open_store(f"tcp://127.0.0.1:{free_port()}", 1, 2, 0.5)
    assert found.value.diagnostic.code == "E374"
    assert time.monotonic() - begin < 5


def test_a_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(tl.ExecutionError, match=f"ranks cannot meet at {address}: ") as found:
            joining.open_store(f"tcp://{address}", 0, 2, 1.0)
    assert found.value.diagnostic.code == "E396"


def test_processes_of_another_machine_are_not_looked_for_here_though_it_has_the_same_name(tmp_path: Path) -> None:
    store = joining.open_store((tmp_path / "meeting").as_uri(), 0, 2, 5.0)
    gone = ended_process()
    assert Meeting(store, ((joining.machine(), os.getpid()), (socket.gethostname(), gone))).ended() == []
    assert Meeting(store, ((joining.machine(), os.getpid()), (joining.machine(), gone))).ended() == [1]


def test_a_rank_that_stopped_in_an_earlier_call_may_end_in_a_later_one(tmp_path: Path) -> None:
    store = joining.open_store((tmp_path / "meeting").as_uri(), 0, 2, 5.0)
    meeting = Meeting(store, ((joining.machine(), os.getpid()), (joining.machine(), ended_process())))
    meeting.leave(1, "x does not fit")
    assert meeting.missing((0, 1), 0, "lost") == Missing([], [], {1: "x does not fit"})
    meeting.call = 1
    assert meeting.missing((0, 1), 0, "lost") == Missing([1], [], {})


RESET = "[/some/gloo/pair.cc:537] Read error [10.77.0.2]:29315: Connection reset by peer. This is typically caused by"


def test_a_rank_whose_connection_is_lost_is_named() -> None:
    error = world(Said(Missing(silent=[1])))._lost("all_reduce", RuntimeError(RESET))
    expected = (
        "rank 0 lost the connection to rank 1 in all_reduce: Read error [10.77.0.2]:29315: Connection reset by peer"
    )
    assert error.diagnostic.message == expected and error.diagnostic.code == "E373"


def test_nobody_waits_for_a_store_to_which_there_is_no_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_ways, "ANSWER", 0.2)
    begin, cut = time.monotonic(), world(Said(Missing(), 30))
    error = cut._lost("all_reduce", RuntimeError("Timed out waiting 1000ms for recv operation to complete"))
    cut.leave("lost")
    assert error.diagnostic.message == "rank 0 waited in all_reduce for rank 1 for 1 s"
    assert time.monotonic() - begin < 5


def test_connecting_takes_no_longer_than_the_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")  # which would stay for other tests
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: time.sleep(30))
    begin = time.monotonic()
    with pytest.raises(tl.ExecutionError, match=r"rank 0 cannot reach the others: not within 0\.3 s") as found:
        torch_ways.join_world(0, 1, (tmp_path / "meeting").as_uri(), 0.3)
    assert found.value.diagnostic.code == "E374" and "GLOO_SOCKET_IFNAME" in str(found.value)
    assert time.monotonic() - begin < 5


def test_ranks_listen_where_the_others_reach_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert joining.interface_to("127.0.0.1", 80) is None  # which leads to nobody else
    monkeypatch.setattr(os, "environ", {})
    joining.choose_interface("file:///tmp/meeting")
    assert os.environ == {"GLOO_SOCKET_IFNAME": joining.LOOPBACK_INTERFACE}
    monkeypatch.setattr(joining, "interface_to", lambda host, port: f"to {host} {port}")
    joining.choose_interface("tcp://10.77.0.1:29500")
    assert os.environ["GLOO_SOCKET_IFNAME"] == joining.LOOPBACK_INTERFACE  # what was said before counts
    monkeypatch.setattr(os, "environ", {"MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29501"})
    joining.choose_interface("env://")
    assert os.environ["GLOO_SOCKET_IFNAME"] == "to 10.77.0.1 29501"


def test_ranks_that_do_not_fit_together_all_hear_of_it_before_the_store_goes(tmp_path: Path) -> None:
    stores = [joining.open_store((tmp_path / "meeting").as_uri(), rank, 2, 5.0) for rank in range(2)]

    def late() -> None:
        time.sleep(0.3)
        with pytest.raises(tl.ExecutionError, match="do not fit together"):
            joining.agree(stores[1], 1, 2, 5.0, {"torch": "another"})
        heard.append(time.monotonic())

    heard: list[float] = []
    other = threading.Thread(target=late)
    other.start()
    with pytest.raises(tl.ExecutionError, match="do not fit together"):
        joining.agree(stores[0], 0, 2, 5.0)
    assert stores[0].check(["seen/1"])
    other.join()
    assert heard


def test_a_first_rank_that_ends_while_ranks_meet_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*_: object) -> None:
        raise RuntimeError("Failed to recv, got 0 bytes")

    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setattr(dist, "is_initialized", lambda: False)
    monkeypatch.setattr(torch_ways, "agree", lost)
    with pytest.raises(tl.ExecutionError, match="the process of rank 0 ended before rank 1 had met it: Failed to recv"):
        torch_ways.join_world(1, 2, (tmp_path / "meeting").as_uri(), 1.0)


# two network namespaces, each with a name, a /dev/shm and process numbers of its own

SCRIPT = """
import os, sys
import numpy as np
import tensorlogic as tl
from tensorlogic.testing import failing_at
rank = int(os.environ["RANK"])
b = tl.GraphBuilder()
x, w = b.input("x", ("n", 4), "float64"), b.input("w", (4, 4), "float64")
y = b.relu(x @ w)
graph = b.build(y=y, total=b.sum(y), top=b.max(y, axis=0))
rng = np.random.default_rng(0)
inputs = {"x": rng.normal(size=(9, 4)), "w": rng.normal(size=(4, 4))}
expected = tl.Executor().execute(graph, inputs)
executor = tl.Executor(wrap=[failing_at("all_reduce", call=8, kill=True)] if rank == 1 else [])
S = tl.DistributedParallelismStrategy
devices = [tl.Device.CPU(0), tl.Device.CPU(1)]
strategies = [S.ModelParallel(tl.ShardingSpec().shard_tensor("w", 1, 2)), S.PipelineParallel(2, 4), S.DataParallel(2)]
for strategy in (*strategies, *[S.DataParallel(2)] * 20):
    outputs = executor.execute_distributed(graph, inputs, tl.DistributedConfig(devices, "torch", strategy, timeout=10))
    for name, value in expected.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-12)
    print("same", executor.distributed.world._neighbours, flush=True)
"""
HOST = 'ip netns exec "$0" unshare -u -m -i -p -f --kill-child --mount-proc sh -c \'hostname here; mount -t tmpfs none /dev/shm; "$@"; exit $?\' sh "$@"'


@pytest.fixture
def hosts():
    if os.geteuid() != 0 or not all(map(shutil.which, ("ip", "unshare"))):
        pytest.skip("network namespaces need root, ip and unshare")
    names = [f"tl-{os.getpid()}-{n}" for n in range(2)]
    ends = [f"tl{os.getpid() % 10**6}-{n}" for n in range(2)]
    commands = [f"ip netns add {name}" for name in names]
    commands += [f"ip link add {ends[0]} netns {names[0]} type veth peer name {ends[1]} netns {names[1]}"]
    for n, name in enumerate(names):
        commands += [f"ip -n {name} addr add 10.77.1.{n + 1}/24 dev {ends[n]}"]
        commands += [f"ip -n {name} link set {ends[n]} up", f"ip -n {name} link set lo up"]
    commands += [f"ip netns exec {names[0]} unshare -u -m -i -p -f --mount-proc true"]
    try:
        for command in commands:
            if subprocess.run(command.split(), capture_output=True, check=False).returncode:
                pytest.skip(f"network namespaces are not allowed here: {command}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_two_machines_give_the_answer_of_one_and_name_a_rank_that_is_killed(hosts: list[str], tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    processes = []
    for rank, name in enumerate(hosts):
        own = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.1.1", "MASTER_PORT": "29500"}
        env = {**os.environ, **own, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"}
        env.pop("GLOO_SOCKET_IFNAME", None)
        command = ["sh", "-c", HOST, name, sys.executable, str(tmp_path / "script.py")]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen(command, env=env, stdout=pipe, stderr=pipe, text=True))
    try:
        (out, err), (_, other) = [process.communicate(timeout=60) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert processes[1].returncode == 137, other
    assert set(out.split("\n")) == {"same False", ""} and out.count("same") >= 4, (
        err
    )  # through the network, not as neighbours
    assert "rank 0 lost the connection to rank 1 in all_reduce" in err or "in all_gather" in err, err
    assert "script.py:" in err and "ExecutionError" in err
