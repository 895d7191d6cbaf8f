"""Ranks that are killed, late, strange or not of one kind: each is named, in time, and nothing is left behind."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.ir import ops
from tensorlogic.runtime.distributed.config import Mesh

pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
from tensorlogic.runtime.distributed import joining
from tensorlogic.runtime.distributed.messages import Call, receive, send
from tensorlogic.runtime.distributed.rank import Task
from tensorlogic.runtime.distributed.workers import Workers

linux = pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="it reads /proc")
COLLECTIVES = {
    "all_reduce": lambda rank: ops.AllReduce("data", 2, rank),
    "all_gather": lambda rank: ops.AllGather("data", 2, rank, 0, 8),
    "reduce_scatter": lambda rank: ops.ReduceScatter("data", 2, rank, 0),
    "all_to_all": lambda rank: ops.AllToAll("data", 2, rank, 1, 0, 8),
    "broadcast_from": lambda rank: ops.BroadcastFrom("data", 2, rank, 1),
    "receive": lambda rank: ops.Receive("data", 2, rank, 1 - rank, "label", (4, 4), "int64"),
    "wait": lambda rank: ops.Wait("data", 2, rank, "label"),
}
CALLS = {"broadcast_from": "broadcast", "wait": "all_reduce"}  # what a carrier calls them, where that differs
SAMPLED = ("all_reduce",)


def graph(name: str, rank: int) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", (4, 4), "int64")
    op = COLLECTIVES[name](rank)
    if isinstance(op, ops.Wait):
        x = b.apply(ops.StartAllReduce("data", 2, rank, "add", "label"), x)
    y = b.apply(op) if isinstance(op, ops.Receive) else b.apply(op, x)  # the line that errors name
    return b.build(y=b.sum(y), z=b.sum(x))


LINE = next(n for n, line in enumerate(Path(__file__).read_text().splitlines(), 1) if "the line that errors" in line)


def tasks(name: str) -> list[list[Task]]:
    return [[Task(graph(name, rank), {"x": np.ones((4, 4), int)})] for rank in range(2)]


def killed_at(name: str, workers: Workers) -> tl.ExecutionError:
    """Kill rank 1 while rank 0 waits for it in a collective, and return what the driver raises."""
    victim = workers._processes[1]
    os.kill(victim.pid, signal.SIGSTOP)  # it does not come
    late = threading.Timer(0.5, victim.kill)
    late.start()
    with pytest.raises(tl.ExecutionError) as found:
        workers.run(Mesh(data=2), tasks(name))
    late.join()
    return found.value


def check_kill(name: str) -> None:
    workers = Workers(tl.Executor(), 2, timeout=20)
    error = killed_at(name, workers)
    workers.close()
    assert error.diagnostic.code == "E382"
    text = str(error)
    assert "the process of rank 1 ended by signal 9" in text
    assert f"ended while rank 0 was in {CALLS.get(name, name)}" in text  # what the survivor raised
    assert f"In step %{dict(graph(name, 0).outputs)['y'] - 1}: {name}" in text
    # workers know the name of a file only, and the driver where it is
    assert error.diagnostic.location.line == LINE and Path(error.diagnostic.location.file) == Path(__file__)
    assert all(process.poll() is not None for process in workers._processes)


@pytest.mark.parametrize("name", SAMPLED)
def test_a_rank_that_is_killed_is_named_with_the_step_and_the_line(name: str) -> None:
    before = leftovers()
    check_kill(name)
    assert leftovers() == before


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in COLLECTIVES if name not in SAMPLED])
def test_a_rank_that_is_killed_at_any_collective(request: pytest.FixtureRequest, name: str) -> None:
    if "full" not in request.config.option.markexpr:
        pytest.skip("the others run with -m full (make conformance)")
    check_kill(name)


def leftovers() -> int:
    """Return how many files this process has open: those of arrays in memory have no name, and go when they are closed."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


@pytest.fixture(scope="module")
def workers():
    started = Workers(tl.Executor(), 2, timeout=1.5)
    yield started
    started.close()


@linux
def test_workers_listen_on_the_loopback_interface_only(workers: Workers) -> None:
    workers.run(Mesh(data=2), tasks("all_reduce"))
    found = set()
    for process in workers._processes:
        own = {os.readlink(link) for link in Path(f"/proc/{process.pid}/fd").iterdir() if os.path.lexists(link)}
        for table in ("tcp", "tcp6"):
            for line in Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]:
                columns = line.split()
                if columns[3] == "0A" and f"socket:[{columns[9]}]" in own:  # it listens
                    found.add(columns[1].partition(":")[0])
    assert found == {"0100007F"}  # 127.0.0.1


def test_a_straggler_is_named_and_work_of_strangers_is_refused(workers: Workers) -> None:
    process = workers._processes[0]
    send(process.stdin, Call("guess", (2, 1, 1), []))
    answer = receive(process.stdout)
    assert answer.failure.code == "E397" and "without the token" in answer.failure.message
    workers.run(Mesh(data=2), tasks("all_reduce"))  # those who belong to the group go on
    os.kill(workers._processes[1].pid, signal.SIGSTOP)
    with pytest.raises(tl.ExecutionError, match=r"rank 0 waited in all_reduce for rank 1 for 1\.5 s") as found:
        workers.run(Mesh(data=2), tasks("all_reduce"))
    assert found.value.diagnostic.code == "E374" and found.value.diagnostic.location.line == LINE
    workers.close()
    assert all(process.poll() is not None for process in workers._processes)


SCRIPT = """
import os, signal
import numpy as np
import tensorlogic as tl
from tensorlogic.testing import failing_at
b = tl.GraphBuilder()
x = b.input("x", ("n", 4), "int64")
graph = b.build(total=b.sum(x), top=b.max(x, axis=0))
wrap = [failing_at("all_reduce", call=3, kill=True)] if os.environ["RANK"] == "1" else []
executor = tl.Executor(wrap=wrap)
config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(3)], communication="torch", timeout=20)
for n in range(5):
    executor.execute_distributed(graph, {"x": np.ones((9, 4), int)}, config)
"""


def test_every_survivor_of_a_script_names_the_rank_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "tensorlogic", "launch", "-n", "3", str(tmp_path / "script.py")]
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 128 + signal.SIGKILL
    for rank in (0, 2):
        assert f"the process of rank 1 ended while rank {rank} was in all_reduce" in done.stderr, done.stderr
    assert "rank 1 was ended by signal 9; the others are stopped" in done.stderr
    assert done.stderr.count("script.py:8:") >= 2 and done.stderr.count("In step %") >= 2


# before ranks come together


def together(*ways):
    """Call each on a thread of its own, and return what they return or raise."""

    def outcome(way):
        try:
            return way()
        except tl.TensorLogicError as error:
            return error

    with ThreadPoolExecutor(len(ways)) as pool:
        return list(pool.map(outcome, ways))


def join(folder: Path, rank: int, size: int, token: str = "ours", timeout: float = 20, **facts: str):
    def way():
        store = joining.open_store((folder / "meeting").as_uri(), rank, size, timeout, token)
        return joining.agree(store, rank, size, timeout, facts)

    return way


def test_ranks_agree_before_they_begin(tmp_path: Path) -> None:
    meetings = together(*(join(tmp_path, rank, 3) for rank in range(3)))
    assert all([process for _, process in meeting.places] == [os.getpid()] * 3 for meeting in meetings)


@pytest.mark.parametrize(("first", "second"), [(2, 3), (3, 2)])
def test_world_sizes_that_differ_are_shown(tmp_path: Path, first: int, second: int) -> None:
    for error in together(join(tmp_path, 0, first), join(tmp_path, 1, second)):
        assert error.diagnostic.code == "E395"
        assert f"world size is {first} on rank 0" in str(error) or f"{first} on rank 0" in str(error)
        assert str(second) in str(error)


def test_versions_that_differ_are_shown(tmp_path: Path) -> None:
    errors = together(join(tmp_path, 0, 2), join(tmp_path, 1, 2, tensorlogic="0.0.9"))
    for error in errors:
        assert error.diagnostic.code == "E395"
        assert "0.0.9 on rank 1" in str(error) and f"{tl.__version__} on rank 0" in str(error)


def test_a_process_with_another_token_meets_nobody(tmp_path: Path) -> None:
    begin = time.monotonic()
    first, stranger = together(join(tmp_path, 0, 2, timeout=0.5), join(tmp_path, 1, 2, token="theirs", timeout=0.5))
    assert first.diagnostic.code == "E374" and "rank 1 did not come" in str(first)
    assert stranger.diagnostic.code == "E374" and "rank 0 did not come" in str(stranger)
    assert time.monotonic() - begin < 60


def test_an_address_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(tl.InputError, match="cannot meet"):
        joining.open_store("somewhere", 0, 1, 1.0)


@pytest.mark.parametrize("timeout", [0, -1.0, float("nan"), float("inf"), 1e12, True, "60"])
def test_a_timeout_that_nothing_can_wait_is_refused(timeout):
    with pytest.raises(tl.InputError, match="timeout is a number of seconds above 0") as caught:
        tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)], "torch", timeout=timeout)
    assert caught.value.diagnostic.code == "E377"
