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
from tensorlogic.runtime.distributed.calls import checksum

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


def test_steps_are_timed_by_the_workers_that_are_there_and_these_go_on(executor):
    strategy = S.PipelineParallel(2, 4)
    before = executor.execute_distributed(graph(), GIVEN, config(strategy))
    workers = executor.distributed.workers
    here = tl.Cluster(1e10, 1e10, 1e9, 1e-4, cores_per_machine=2)
    for each in (strategy, S.DataParallel(2)):
        found = tl.simulate(graph(), config(each), here, GIVEN, executor=executor, here=here)
        assert found.measured and all(own.computation_seconds > 0 for own in found.stages)
    after = executor.execute_distributed(graph(), GIVEN, config(strategy))
    assert executor.distributed.workers is workers
    assert all(np.array_equal(after[name], value) for name, value in before.items())


def test_workers_begin_when_the_inputs_of_all_are_there(executor, monkeypatch):
    executor.execute_distributed(graph(), GIVEN, config(S.DataParallel(2)))
    workers, did = executor.distributed.workers, []
    for owner, name in ((workers.inputs, "put"), (workers, "_tell")):
        act = lambda *given, name=name, real=getattr(owner, name): (did.append(name), real(*given))[1]  # noqa: E731
        monkeypatch.setattr(owner, name, act)
    executor.execute_distributed(graph(), GIVEN, config(S.DataParallel(2)))
    assert did == ["put"] * 6 + ["_tell"] * 2


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


ONE_RANK_FAILS = """
import os, sys
import numpy as np
import tensorlogic as tl
from tensorlogic.runtime.distributed import one_machine
rank = int(os.environ["RANK"])
b = tl.GraphBuilder()
x = b.input("x", ("n", 2), "float32")
graph = b.build(total=b.sum(x))

def call(executor, x, config):
    try:
        return float(executor.execute_distributed(graph, {} if x is None else {"x": x}, config)["total"])
    except Exception as error:
        told = getattr(error, "diagnostic", None)
        return f"{told.code} {told.message}" if told else repr(error)

def config(count, **options):
    return tl.DistributedConfig([tl.Device.CPU(n) for n in range(count)], "torch", timeout=20, **options)

for ranks in (8, 0):  # meet as neighbours, or through gloo
    one_machine.MOST_RANKS = ranks
    executor = tl.Executor()
    found = [call(executor, np.ones((3, 2), "f4"), config(2))]
    for step in range(6):  # first with shares, then with the whole: the total is 6 * 10**step
        rows = np.full((1 if step < 4 else 3, 2), 10.0**step, "f4")
        given = {1: rows[0], 2: rows[:, :1], 4: None}.get(step, rows) if rank == 1 else rows
        found.append(call(executor, given, config(3, own_shares=step < 4)))
    if rank == 1:
        call(executor, rows, None)  # the others know nothing of this call
    found.append(call(executor, rows, config(3)))
    sys.stdout.write("\\n".join([f"{rank}: {each}" for each in found]) + "\\n")
"""


def test_ranks_of_which_one_fails_fail_in_the_same_call_and_go_on_together(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(ONE_RANK_FAILS)
    command = [sys.executable, "-m", "tensorlogic", "launch", "-n", "3", str(script)]
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    fit = "input 'x' does not fit"
    faults = [
        ("E001", f"{fit}: 2 axes are declared, got 1"),
        ("E001", f"{fit}: axis 1 must be 2, got 1"),
        ("E303", "input 'x' is missing"),
    ]
    for rank in range(3):
        failed = [f"{code} rank 1: {why}" if rank == 1 else f"E373 rank 1 failed: {why}" for code, why in faults]
        size = "E376 the config is for 2 ranks, but 3 processes were started"
        expected = [size, "6.0", failed[0], failed[1], "6000.0", failed[2], "600000.0"]
        said = [line[3:] for line in done.stdout.splitlines() if line.startswith(f"{rank}: ")]
        for own in (said[:8], said[8:]):
            assert own[:-1] == expected
            assert own[-1].startswith("E375 the ranks do not do the same: rank") and "a run of call 9: graph" in own[-1]


ENDS_AT_ONCE = """
import sys, time
import numpy as np
import tensorlogic as tl
from tensorlogic.runtime.distributed import one_machine
from tensorlogic.runtime.distributed.torch_ways import world_from_environment
one_machine.MOST_RANKS = 0  # all takes the way through gloo
worlds = [world_from_environment(20), world_from_environment(20)]  # of two executors
for group in (*worlds, *[world.group([2] if world.rank == 2 else [0, 1]) for world in worlds]):
    group.all_reduce(np.ones(3), "add")
sys.setswitchinterval(1000)  # a thread that waits for the interpreter waits until this one sleeps
for world in worlds:
    world.start_all_reduce([np.ones(3)], np.empty(3), "add", "last")
    world.abandon()  # so that a thread of gloo is the last to hold the array
end = time.monotonic() + 0.5
while time.monotonic() < end:
    pass
sys.stdout.write(f"{worlds[0].rank}: ok\\n")
"""


def test_ranks_that_end_while_a_thread_still_holds_an_array_end_well(tmp_path):
    assert launched(ENDS_AT_ONCE, 3, tmp_path) == [["ok"]] * 3


def launched(text: str, ranks: int, folder: Path) -> list[list[str]]:
    """Return what each rank of a launched script says, line by line; a line of rank 1 begins with ``1: ``."""
    script = folder / "script.py"
    script.write_text(text)
    command = [sys.executable, "-m", "tensorlogic", "launch", "-n", str(ranks), str(script)]
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    return [[line[3:] for line in lines if line.startswith(f"{rank}: ")] for rank in range(ranks)]


FAILS_AT_THE_END = """
import os, sys
import numpy as np
import tensorlogic as tl
from tensorlogic.runtime.distributed import job, one_machine, run
rank = int(os.environ["RANK"])
b = tl.GraphBuilder()
graph = b.build(total=b.sum(b.input("x", ("n", 2), "float32")))
config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(3)], "torch", timeout=20)
places = {"steps": (run, "run_rank"), "outputs": (job.Job, "whole")}  # of a call, after the last value of another rank came

def fail_once(where):
    owner, name = places[where]
    real = getattr(owner, name)

    def act(*args, **options):
        setattr(owner, name, real)
        real(*args, **options)
        raise tl.ExecutionError("out of luck")

    setattr(owner, name, act)

def call(executor, step):
    try:
        return float(executor.execute_distributed(graph, {"x": np.full((3, 2), 10.0**step, "f4")}, config)["total"])
    except tl.ExecutionError as error:
        return error.diagnostic.code or error.diagnostic.message

for ranks in (8, 0):  # meet as neighbours, or through gloo
    one_machine.MOST_RANKS = ranks
    executor, found = tl.Executor(), []
    for step, where in enumerate([None, "steps", None, "outputs", None]):
        if rank == 1 and where:
            fail_once(where)
        found.append(call(executor, step))
        if isinstance(found[-1], str):
            found.append(call(executor, step))  # once more
    sys.stdout.write("".join([f"{rank}: {each}\\n" for each in found]))
"""


def test_a_rank_that_fails_after_the_last_exchange_fails_in_the_same_call_as_the_others(tmp_path):
    said = launched(FAILS_AT_THE_END, 3, tmp_path)
    for rank in range(3):
        failed = "rank 1: out of luck" if rank == 1 else "E375"
        expected = ["6.0", failed, "60.0", "600.0", failed, "6000.0", "60000.0"]
        assert said[rank] == expected * 2


OTHER_VALUES = """
import dataclasses, os, sys
import numpy as np
import tensorlogic as tl
from tensorlogic.runtime.distributed import one_machine
rank = int(os.environ["RANK"])
S = tl.DistributedParallelismStrategy
b = tl.GraphBuilder()
x, w = b.input("x", ("n", 40), "float64"), b.input("w", (40, 40), "float64")
graph = b.build(y=b.tanh(x @ w) @ w)
names = [f"v{n}" for n in range(40)]
total = x
for name in names:
    total = total + b.input(name, (), "float64")
many = b.build(y=total)

def call(graph, inputs, config, expected=None):
    try:
        out = executor.execute_distributed(graph, inputs, config)["y"]
        return "wrong" if expected is not None and not np.allclose(out, expected) else "ran"
    except tl.ExecutionError as error:
        return f"{error.diagnostic.code} {error.diagnostic.message} {error.diagnostic.suggestions}"

def learn(params, data):
    b = tl.GraphBuilder()
    graph = b.build(loss=b.mean_squared_error(b.input("x", ("n", 4), "float64") @ b.input("w", (4,), "float64"), b.input("t", ("n",), "float64")))
    found = []
    for strategy in (S.DataParallel(2), S.PipelineParallel(2, 2)):
        config = tl.TrainerConfig(optimizer=tl.optim.adam(0.1), epochs=2, batch_size=4)
        trainer = tl.Trainer(executor, config, distributed=dataclasses.replace(both, strategy=strategy))
        try:
            trainer.fit(graph, params={"w": params}, data={"x": data, "t": np.ones(len(data))})
            found.append("ran")
        except tl.ExecutionError as error:
            found.append(f"{error.diagnostic.code} {error.diagnostic.message}")
    return found

both = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)], "torch", timeout=30)
stages = dataclasses.replace(both, strategy=S.PipelineParallel(2, 3))
shares = dataclasses.replace(both, own_shares=True)
rng = np.random.default_rng(0)
x, w, v = rng.normal(size=(6, 40)), rng.normal(size=(40, 40)), {name: np.ones(()) for name in names}
other = rng.normal(size=(2, 6, 40))[rank]  # each has its own
expected = np.tanh(x @ w) @ w
for ranks in (8, 0):  # meet as neighbours, or through gloo
    one_machine.MOST_RANKS = ranks
    executor = tl.Executor()
    found = [
        call(graph, {"x": other, "w": w}, both),  # before the ranks are known to have the graph
        call(graph, {"x": x if rank else np.asfortranarray(x), "w": w}, both, expected),
        call(graph, {"x": x, "w": w + (rank * np.eye(40))}, both),  # a large input
        call(graph, {"x": x, "w": w}, both, expected),
        call(graph, {"x": other, "w": w}, stages),
        call(graph, {"x": x, "w": w}, stages, expected),
        call(graph, {"x": x[3 * rank : 3 * rank + 3], "w": w}, shares, expected),
        call(graph, {"x": x[3 * rank : 3 * rank + 3], "w": w + rank}, shares),
        call(many, {"x": x, **v}, both),
        call(many, {"x": x, **v, "v39": np.array(float(rank))}, both),
        *learn(np.zeros(4), x[:, :4]),
        *learn(np.full(4, float(rank)), x[:, :4]),
        *learn(np.zeros(4), other[:, :4]),
    ]
    sys.stdout.write("".join([f"{rank}: {each}\\n" for each in found]))
"""


def test_ranks_that_were_given_other_values_of_the_same_shape_all_raise(tmp_path):
    for rank, said in enumerate(launched(OTHER_VALUES, 2, tmp_path)):
        other = f"E383 rank {1 - rank} was given other values of"
        expected = ["x", "ran", "w", "ran", "x", "ran", "ran", "w", "ran", "41 inputs"]
        expected += ["ran", "ran", "w", "w", "x", "x"]
        assert len(said) == 2 * len(expected)
        for line, want in zip(said, expected * 2, strict=True):
            assert line == "ran" if want == "ran" else line.startswith(f"{other} {want} than rank {rank}"), (line, want)
        assert "own_shares=True" in said[0]


def test_a_checksum_does_not_depend_on_the_layout_and_covers_both_ends():
    x = np.random.default_rng(0).normal(size=(70, 90))
    for value in (x, x[:3, :4], x.astype("float16"), x > 0, np.float64(3.0)):
        assert (
            checksum(value)
            == checksum(np.asfortranarray(value))
            == checksum(np.repeat(value, 2, -1)[..., ::2] if np.ndim(value) else value)
        )
    for place in ((0, 0), (69, 89)):
        other = x.copy()
        other[place] += 1
        assert checksum(other) != checksum(x)


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
