"""Training steps that go through the stages of a pipeline and back: answers of one device, schedules, what is kept and sent."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.passes.stages import KEEP, cut_units, stage_of_unit, unit_of_nodes
from tensorlogic.plan.node_costs import known_costs
from tensorlogic.runtime.distributed.schedule import live_batches, turns_of

S = tl.DistributedParallelismStrategy
RNG = np.random.default_rng(0)
LAYERS = 6


def training_step(rows="n", width=8):
    b = tl.GraphBuilder()
    h = b.input("x", (rows, width), "float32")
    for n in range(LAYERS):
        h = b.relu(h @ b.input(f"w{n}", (width, width), "float32"))
    loss = b.mean(b.square(h - b.input("t", (rows, width), "float32")))
    return tl.value_and_grad(b.build(loss=loss, y=h), wrt=[f"w{n}" for n in range(LAYERS)], of="loss")


def inputs(rows=33, width=8):
    given = {name: RNG.normal(size=(rows, width)).astype("f4") for name in "xt"}
    return given | {f"w{n}": (RNG.normal(size=(width, width)) / 3).astype("f4") for n in range(LAYERS)}


def config(strategy, communication="local"):
    count = tl.runtime.distributed.config.mesh_of(strategy).size
    return tl.DistributedConfig([tl.Device.CPU(n) for n in range(count)], communication, strategy, timeout=60)


def check(executor, graph, given, how):
    outputs = executor.execute_distributed(graph, given, how)
    for name, value in tl.Executor().execute(graph, given).items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-4, atol=1e-5)
        assert outputs[name].dtype == value.dtype


@pytest.mark.parametrize(
    "strategy",
    [
        S.PipelineParallel(3, 4),
        S.PipelineParallel(3, 4, schedule="gpipe"),
        S.PipelineParallel(2, 7, measure=True),
        S.PipelineParallel(4, 50),
        S.Hybrid(2, 1, 2, 8),
        S.Hybrid(1, 2, 3, schedule="gpipe"),
    ],
    ids=str,
)
def test_a_training_step_is_that_of_one_device(strategy):
    check(tl.Executor(), training_step(), inputs(), config(strategy))


@pytest.mark.parametrize("how", ["logsumexp", "max", "prod"])
def test_totals_are_combined_as_their_reduction_says(how):
    b = tl.GraphBuilder()
    h = b.input("x", ("n", 4), "float64")
    for n in range(3):
        h = b.tanh(h @ b.input(f"w{n}", (4, 4), "float64"))
    graph = b.build(r=getattr(b, how)(h, axis=0), y=h)
    given = {"x": RNG.normal(size=(13, 4))} | {f"w{n}": RNG.normal(size=(4, 4)) for n in range(3)}
    check(tl.Executor(), graph, given, config(S.PipelineParallel(3, 3)))


def test_1f1b_keeps_less_than_gpipe():
    graph, given, kept = training_step(), inputs(64), {}
    for schedule in ("gpipe", "1f1b"):
        executor = tl.Executor()
        executor.execute_distributed(graph, given, config(S.PipelineParallel(2, 4, schedule=schedule)))
        stats = executor.get_distributed_stats()
        kept[schedule] = stats.kept_bytes
        assert 0 <= stats.bubble < 1 and "bubble" in str(stats)
    assert kept["gpipe"] == 8 * kept["1f1b"]  # of 16 micro-batches, 2 at a time


def test_weights_stay_on_one_stage_and_what_is_needed_again_is_kept():
    graph = training_step(16)
    units = cut_units(graph, unit_of_nodes(graph, known_costs(graph).cost, 3, ["x", "t"]), 3, ["x", "t"])
    assert [unit.stage for unit in units] == [0, 1, 2, 1, 0] == [stage_of_unit(n, 3) for n in range(5)]
    homes = {}
    for unit in units:
        for name in unit.graph.inputs:
            if name.startswith("w"):
                homes.setdefault(name, set()).add(unit.stage)
    assert all(len(stages) == 1 for stages in homes.values()) and set(homes) == {f"w{n}" for n in range(LAYERS)}
    assert any(name.startswith(KEEP) for name in units[-1].graph.inputs)
    assert {name for unit in units for name in unit.outputs} == set(graph.output_names)
    assert all(tl.GraphValidator().validate(unit.graph).is_valid() for unit in units)


def test_a_graph_without_a_way_back_is_a_row_of_stages():
    b = tl.GraphBuilder()
    h = b.input("x", (8, 8), "float32")
    for n in range(4):
        h = b.relu(h @ b.input(f"w{n}", (8, 8), "float32"))
    graph = b.build(y=h)
    assert max(unit_of_nodes(graph, [1] * len(graph.nodes), 2, ["x"])) == 1


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_turns_run_everything_once_and_forward_first(schedule):
    for stage in range(3):
        turns = turns_of(schedule, stage, 4, 10, True)
        assert sorted(turns) == [(way, n) for way in range(2) for n in range(10)]
        live = most = 0
        for way, n in turns:
            assert way == 0 or (0, n) in turns[: turns.index((1, n))]
            live += 1 if way == 0 else -1
            most = max(most, live)
        assert most == live_batches(schedule, stage, 4, 10)


def test_an_unknown_schedule_is_refused_with_the_known_ones():
    with pytest.raises(tl.InputError, match="one of gpipe, 1f1b, not '1fb1'") as caught:
        S.PipelineParallel(2, 4, schedule="1fb1")
    assert caught.value.diagnostic.code == "E390"


def test_processes_go_forward_and_back():
    pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
    executor = tl.Executor()
    try:
        for strategy in (
            S.PipelineParallel(2, 4),
            S.PipelineParallel(2, 5, schedule="gpipe"),
            S.PipelineParallel(2, 9),
        ):
            check(executor, training_step(), inputs(), config(strategy, "torch"))
    finally:
        executor.distributed.close()


SCRIPT = """
import numpy as np
import tensorlogic as tl
S = tl.DistributedParallelismStrategy
b = tl.GraphBuilder()
h = b.input("x", ("n", 4), "float64")
for n in range(4):
    h = b.tanh(h @ b.input(f"w{n}", (4, 4), "float64"))
graph = tl.value_and_grad(b.build(loss=b.mean(b.square(h)), y=h), wrt=[f"w{n}" for n in range(4)], of="loss")
rng = np.random.default_rng(0)
inputs = {"x": rng.normal(size=(13, 4))} | {f"w{n}": rng.normal(size=(4, 4)) for n in range(4)}
want = tl.Executor().execute(graph, inputs)
cluster = tl.Cluster(flops=1e9, memory_bandwidth=1e9, bandwidth=1e9, latency=1e-6)
executor = tl.Executor()
for strategy in (S.PipelineParallel(2, 3), S.PipelineParallel(2, 5, schedule="gpipe"), S.Auto(cluster=cluster)):
    config = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)], "torch", strategy, timeout=60)
    outputs = executor.execute_distributed(graph, inputs, config)
    for name, value in want.items():
        np.testing.assert_allclose(outputs[name], value, rtol=1e-9, atol=1e-12)
print("ok")
"""


def test_a_script_as_several_ranks_goes_forward_and_back(tmp_path):
    pytest.importorskip("torch", reason="make test TORCH=1 installs PyTorch")
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    env = {**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])}
    command = [sys.executable, "-m", "tensorlogic", "launch", "-n", "2", str(script)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=200)
    assert done.returncode == 0 and done.stdout.count("ok") == 2, done.stderr
    assert done.stdout.count("runs") == 1  # the first process shows what it decided from


@pytest.mark.parametrize(
    ("strategy", "ranks"), [(S.PipelineParallel(2, 2), 2), (S.Hybrid(2, 1, 2), 4)], ids=["stages", "hybrid"]
)
def test_no_rows_go_through_stages(strategy, ranks):
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3), "float32")
    graph = b.build(y=b.relu(x) @ b.input("w", (3, 2), "float32"), total=b.sum(x))
    config = tl.DistributedConfig([tl.Device.CPU(n) for n in range(ranks)], strategy=strategy)
    given = {"x": np.empty((0, 3), "f4"), "w": np.ones((3, 2), "f4")}
    out = tl.Executor().execute_distributed(graph, given, config)
    assert out["y"].shape == (0, 2) and out["total"] == 0


def test_two_names_of_one_value_that_went_through_stages_have_memory_of_their_own():
    b = tl.GraphBuilder()
    y = b.relu(b.input("x", ("n", 3), "float32"))
    total = b.sum(y)
    graph = b.build(y=y, z=y, total=total, again=total)
    config = tl.DistributedConfig([tl.Device.CPU(0), tl.Device.CPU(1)], strategy=S.PipelineParallel(2, 2))
    out = tl.Executor().execute_distributed(graph, {"x": np.ones((5, 3), "f4")}, config)
    out["y"][...] = 7
    out["total"][...] = 7
    assert (out["z"] == 1).all() and out["again"] == 15
