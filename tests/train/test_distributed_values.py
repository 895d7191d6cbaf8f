"""Training on several devices: values that stay with them, sums in a fixed order, shares of what the optimizer keeps."""

from __future__ import annotations

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.passes.blocks import in_blocks
from tensorlogic.runtime.distributed.local import local_group
from tensorlogic.runtime.distributed.rank import meeting
from tensorlogic.runtime.distributed.resident import Resident

S = tl.DistributedParallelismStrategy


def devices(count):
    return [tl.Device.CPU(n) for n in range(count)]


def graph():
    b = tl.GraphBuilder()
    x, t = b.input("x", ("n", 6), "float32"), b.input("t", ("n",), "int64")
    h = b.tanh(x @ b.input("w", (6, 8), "float32") + b.input("c", (8,), "float32"))
    return b.build(loss=b.cross_entropy(h @ b.input("v", (8, 3), "float32"), t))


def trainer_of(distributed, *, rows=50, **options):
    rng = np.random.default_rng(0)
    params = {"w": rng.normal(size=(6, 8)), "c": np.zeros(8), "v": rng.normal(size=(8, 3))}
    params = {name: value.astype("float32") for name, value in params.items()}
    x = rng.normal(size=(rows, 6)).astype("float32")
    config = tl.TrainerConfig(**{"optimizer": tl.optim.adam(0.01), "epochs": 3, "batch_size": 16, "seed": 1, **options})
    trainer = tl.Trainer(tl.Executor(), config, distributed=distributed)
    trainer.fit(graph(), params=params, data={"x": x, "t": np.argmax(x[:, :3], axis=1)})
    return trainer


def equal(a, b):
    assert a.history["loss"] == b.history["loss"]
    assert a.values.keys() == b.values.keys()
    for name, value in a.values.items():
        np.testing.assert_array_equal(b.values[name], value, err_msg=name)


@pytest.mark.parametrize("options", [{}, {"clip_norm": 0.1, "average": 0.9}, {"accumulate": 2, "drop_last": True}])
def test_deterministic_runs_have_the_bits_of_one_device(options):
    one = trainer_of(tl.DistributedConfig(devices(1), deterministic=True), **options)
    for count in (2, 3, 4):
        equal(one, trainer_of(tl.DistributedConfig(devices(count), deterministic=True), **options))
    plain = trainer_of(None, **options)
    np.testing.assert_allclose(one.history["loss"], plain.history["loss"], rtol=1e-6)


def test_deterministic_is_for_shares_of_rows():
    spec = tl.ShardingSpec().shard_tensor("w", 1, 2)
    with pytest.raises(tl.InputError, match="share rows and nothing else, not ModelParallel"):
        tl.DistributedConfig(devices(2), strategy=S.ModelParallel(spec), deterministic=True)
    with pytest.raises(tl.InputError, match="leave shard_optimizer"):
        tl.DistributedConfig(devices(2), deterministic=True, shard_optimizer=True)


@pytest.mark.parametrize("rows", [5, 8, 11])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_blocks_make_every_kind_of_result(rows, ranks):
    from concurrent.futures import ThreadPoolExecutor

    b = tl.GraphBuilder()
    x = b.input("x", (rows, 4), "float32")
    s = b.sigmoid(x)
    odds = b.einsum("ij,ij->j", s, s, algebra="noisy_or")
    made = {"y": b.exp(x), "mean": b.mean(x, axis=0), "most": b.max(x), "some": b.any(x > 1, axis=0), "odds": odds}
    whole = b.build(
        made | {"order": b.sort(x, axis=0), "logs": b.logsumexp(x, axis=0), "half": b.sum(b.cast(x, "float16"))}
    )
    value = np.random.default_rng(0).normal(size=(rows, 4)).astype("float32")
    ways, executor = local_group(ranks), tl.Executor()

    def run(rank):
        with meeting({"data": ways[rank]}):
            return executor.execute(in_blocks(whole, {"x": 0}, ranks, rank), {"x": value})

    want = tl.Executor().execute(whole, {"x": value})
    with ThreadPoolExecutor(ranks) as pool:
        for outputs in pool.map(run, range(ranks)):
            for name, expected in want.items():
                np.testing.assert_allclose(outputs[name], expected, rtol=2e-3 if name == "half" else 1e-5, atol=1e-5)
                assert outputs[name].dtype == expected.dtype


@pytest.mark.parametrize("optimizer", [tl.optim.adam(0.01), tl.optim.momentum(0.1)], ids=["adam", "momentum"])
def test_shares_of_what_the_optimizer_keeps(optimizer):
    whole = trainer_of(None, optimizer=optimizer, average=0.9)
    plain = trainer_of(tl.DistributedConfig(devices(2)), optimizer=optimizer, average=0.9)
    shared = trainer_of(tl.DistributedConfig(devices(2), shard_optimizer=True), optimizer=optimizer, average=0.9)
    for name, value in whole.values.items():
        np.testing.assert_allclose(shared.values[name], value, rtol=1e-4, atol=1e-6)
    state = sum(v.nbytes for n, v in whole.values.items() if n.startswith("optimizer."))
    for before, after in zip(*(t.executor.get_distributed_stats().ranks for t in (plain, shared)), strict=True):
        assert abs(before.held_bytes - after.held_bytes - state / 2) <= 64  # but for scalars
    moved = shared.executor.get_distributed_stats().bytes
    assert {"reduce_scatter", "all_gather"} <= moved.keys()


def test_shares_need_devices_that_share_rows():
    with pytest.raises(tl.InputError, match="shard_optimizer= needs devices that share rows"):
        trainer_of(tl.DistributedConfig(devices(1), shard_optimizer=True))


@pytest.mark.parametrize(
    "strategy",
    [S.ModelParallel(tl.ShardingSpec().shard_tensor("w", 1, 2)), S.PipelineParallel(2, 8), S.Hybrid(1, 2, 1)],
    ids=["model", "pipeline", "hybrid"],
)
def test_every_strategy_learns_as_one_device(strategy):
    trainer = trainer_of(tl.DistributedConfig(devices(2), strategy=strategy))
    np.testing.assert_allclose(trainer.history["loss"], trainer_of(None).history["loss"], rtol=1e-5)


def test_a_short_batch_at_the_end():
    want = trainer_of(None, rows=49).history["loss"]  # the last batch has one row
    np.testing.assert_allclose(trainer_of(tl.DistributedConfig(devices(3)), rows=49).history["loss"], want, rtol=1e-5)


class Looks(tl.Callback):
    """Looks at the parameters after every batch, and puts others in their place once."""

    def __init__(self):
        self.seen = []

    def on_batch(self, trainer, figures):
        if trainer.steps == 3:
            trainer.replace({"c": np.full(8, 0.5, "float32")})
        self.seen.append(trainer.params["c"].sum())


def test_parameters_are_what_they_are_now_whenever_somebody_looks():
    seen = []
    for distributed in (None, tl.DistributedConfig(devices(2))):
        rng, looks = np.random.default_rng(0), Looks()
        x = rng.normal(size=(32, 6)).astype("float32")
        params = {"w": np.ones((6, 8), "f4"), "c": np.zeros(8, "f4"), "v": np.ones((8, 3), "f4")}
        config = tl.TrainerConfig(optimizer=tl.optim.sgd(0.1), epochs=2, batch_size=8, seed=1)
        trainer = tl.Trainer(tl.Executor(), config, distributed=distributed, callbacks=[looks])
        trainer.fit(graph(), params=params, data={"x": x, "t": np.argmax(x[:, :3], axis=1)})
        seen.append(looks.seen)
    np.testing.assert_allclose(seen[1], seen[0], rtol=1e-4, atol=1e-5)
    assert len(set(np.round(seen[0], 6))) == 8


def test_values_that_change_their_shares():
    b = tl.GraphBuilder()
    w = b.input("w", (4, 2), "float64")
    run = Resident(
        tl.Executor(),
        b.build(w=w + b.sum(b.input("x", ("n",), "float64"))),
        ["w"],
        tl.DistributedConfig(devices(2)),
        {"w": 0},
    )
    run.put({"w": np.arange(8.0).reshape(4, 2)})
    for rows in (4, 3, 1):  # one row is for all
        run.run({"x": np.ones(rows)})
    np.testing.assert_array_equal(run.fetch()["w"], np.arange(8.0).reshape(4, 2) + 8)
