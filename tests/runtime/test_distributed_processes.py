"""Graphs on several ranks that are processes, carried by torch.distributed: the same answers, and workers that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl

pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
S = tl.DistributedParallelismStrategy
RNG = np.random.default_rng(0)


@pytest.fixture(scope="module")
def executor():
    executor = tl.Executor()
    yield executor
    executor.distributed.close()


def graph():
    b = tl.GraphBuilder()
    x, w, v = b.input("x", ("n", 6), "float32"), b.input("w", (6, 9), "float32"), b.input("v", (9, 4), "float32")
    h = b.relu(x @ w)
    facts = b.einsum("ij,jk->ik", x > 0, w > 0, algebra="boolean")
    return b.build(y=h @ v, total=b.sum(h), some=facts, most=b.max(h, axis=0), odds=b.logsumexp(h, axis=0))


GIVEN = {
    "x": RNG.normal(size=(11, 6)).astype("f4"),
    "w": RNG.normal(size=(6, 9)).astype("f4"),
    "v": RNG.normal(size=(9, 4)).astype("f4"),
}


def config(strategy, timeout=60):
    count = tl.DistributedConfig([tl.Device.CPU(0)] * 2, strategy=strategy).mesh.size
    return tl.DistributedConfig([tl.Device.CPU(n) for n in range(count)], "torch", strategy, timeout)


@pytest.mark.parametrize(
    "strategy",
    [S.DataParallel(2), S.ModelParallel(tl.ShardingSpec().shard_tensor("w", 1, 2)), S.PipelineParallel(2, 4)],
    ids=["data", "model", "pipeline"],
)
def test_processes_give_the_answer_of_one(executor, strategy):
    outputs = executor.execute_distributed(graph(), GIVEN, config(strategy))
    for name, value in tl.Executor().execute(graph(), GIVEN).items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-5, atol=1e-6)
        assert outputs[name].dtype == value.dtype
    stats = executor.get_distributed_stats()
    assert stats.computation_time_ms > 0 and len(stats.ranks) == 2


def test_a_worker_that_is_killed_is_named_and_replaced(executor):
    executor.execute_distributed(graph(), GIVEN, config(S.DataParallel(2)))
    workers = executor.distributed.workers
    processes = workers._processes
    os.kill(processes[1].pid, signal.SIGSTOP)  # it is there, and does not come
    os.kill(processes[1].pid, signal.SIGKILL)
    processes[1].wait()
    # found before the run: started anew
    outputs = executor.execute_distributed(graph(), GIVEN, config(S.DataParallel(2)))
    np.testing.assert_allclose(outputs["y"], tl.Executor().execute(graph(), GIVEN)["y"], rtol=1e-5, atol=1e-6)
    assert all(process.poll() is not None for process in processes)


def test_a_worker_that_dies_during_a_run_is_named(executor):
    executor.execute_distributed(graph(), GIVEN, config(S.DataParallel(2)))
    workers = executor.distributed.workers
    with pytest.raises(tl.ExecutionError, match="the process of rank 1 ended by signal 9"):
        tell = workers._tell

        def tell_and_kill(rank, call):
            if rank == 1:
                workers._processes[1].kill()
                workers._processes[1].wait()
            tell(rank, call)

        workers._tell = tell_and_kill
        executor.execute_distributed(graph(), GIVEN, config(S.DataParallel(2)))
    assert executor.distributed.workers is None
    assert all(process.poll() is not None for process in workers._processes)


SCRIPT = """
import dataclasses
import sys
import numpy as np
import tensorlogic as tl
from tensorlogic.testing import failing_at
b = tl.GraphBuilder()
x, w = b.input("x", ("n", 4), "float64"), b.input("w", (4, 2), "float64")
width = 2 + int(sys.argv[1] == "different" and __import__("os").environ["RANK"] == "1")
graph = b.build(y=x @ w, total=b.sum(x) * width)
config = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)], communication="torch", timeout=30)
inputs = {"x": np.arange(12.0).reshape(3, 4), "w": np.ones((4, 2))}
executor = tl.Executor(wrap=[failing_at("wait", call=2)])
out = executor.execute_distributed(graph, inputs, config)
assert np.array_equal(out["y"], inputs["x"] @ inputs["w"]) and out["total"] == 132.0, out
try:
    executor.execute_distributed(graph, inputs, config)
except tl.ExecutionError as error:
    sys.stdout.write("failed;")
inputs["x"] += 1
out = executor.execute_distributed(graph, inputs, config)  # takes nothing for its own that was begun before
assert out["total"] == 156.0, out
rank = int(__import__("os").environ["RANK"])
shares = dataclasses.replace(config, own_shares=True)
for cut, expected in ((2, None), (1, "E388")):  # of three rows, the first two belong to rank 0
    own = {"x": inputs["x"][cut:] if rank else inputs["x"][:cut], "w": inputs["w"]}
    try:
        out = executor.execute_distributed(graph, own, shares)
        assert not expected and out["total"] == 156.0 and np.array_equal(out["y"], inputs["x"] @ inputs["w"]), out
    except tl.ShapeError as error:
        assert error.diagnostic.code == expected, error
if rank == 1:
    graph = b.build(y=x @ w, total=b.sum(x) * 5)
try:
    executor.execute_distributed(graph, inputs, config)  # which rank 0 knows, and rank 1 does not
except tl.ExecutionError as error:
    sys.stdout.write(f"later {error.diagnostic.code};")
print("ok")
"""


def test_own_shares_are_refused_where_nobody_is_a_rank():
    with pytest.raises(tl.InputError, match="own_shares= is for processes of one script"):
        tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)], own_shares=True)
    own = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)], "torch", own_shares=True)
    with pytest.raises(tl.BackendError, match="for a script that every rank runs"):
        tl.Executor().execute_distributed(graph(), GIVEN, own)


@pytest.mark.parametrize("kind", ["same", "different"])
def test_a_script_as_several_ranks(tmp_path, kind):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, "-m", "tensorlogic", "launch", "-n", "2", str(script), kind]
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=200)
    if kind == "same":
        assert done.returncode == 0 and done.stdout.count("ok") == done.stdout.count("failed") == 2, done.stderr
        assert done.stdout.count("later E383;") == 2, done.stdout
    else:
        assert done.returncode != 0
        assert "was given something else than rank" in done.stderr
