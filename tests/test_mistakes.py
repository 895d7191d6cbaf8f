"""What the package says to the mistakes of somebody new to it: batches, recovery, async calls, programs and files."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import tensorlogic as tl


def layer():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n",)), b.input("w", ("n", 2))
    return b.build(y=b.relu(x @ w))


LAYER = layer()
ITEM = {"x": np.ones(3), "w": np.ones((3, 2))}
EX = tl.Executor()


def test_items_of_a_batch_are_numbered():
    result = EX.execute_batch(LAYER, [ITEM, ITEM])
    with pytest.raises(IndexError, match="there is no item 7: the batch has 2"):
        result[7]
    with pytest.raises(tl.InputError, match=r"write result\[0\]\['y'\] for one item, or result.stacked\('y'\) for all"):
        result["y"]
    with pytest.raises(IndexError, match="there is no output 3: there are 1, y"):
        EX.execute(LAYER, ITEM)[3]


def test_a_data_frame_is_no_batch_and_no_mapping():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"x": [1.0, 2.0, 3.0]})
    with pytest.raises(tl.InputError, match="a batch is a list of mappings of names to arrays, got a DataFrame"):
        EX.execute_batch(LAYER, frame)
    with pytest.raises(tl.InputError, match=r'got DataFrame(.|\n)*write \{"x": frame\["x"\]\}'):
        EX.execute(LAYER, frame)


@pytest.mark.parametrize("path", ["layer.json", Path("layer.json")])
def test_the_name_of_a_file_is_no_graph(path):
    with pytest.raises(tl.InputError, match=r"read it: tl.EinsumGraph.load\("):
        EX.execute(path, ITEM)


def test_the_name_of_a_file_is_no_program():
    with pytest.raises(tl.InputError, match=r"write tl.load\('family.tl'\)"):
        tl.Program("family.tl")


def test_options_of_an_async_call_are_checked_at_once():
    with pytest.raises(tl.InputError, match=r"AsyncConfig\(timeout=5\)"):
        EX.execute_async(LAYER, ITEM, timeout=5)
    with pytest.raises(tl.InputError, match=r"has no option 'budgt'(.|\n)*did you mean 'budget'"):
        EX.execute_async(LAYER, ITEM, budgt=5)

    async def wait():
        return await EX.execute_async(LAYER, ITEM, budget=1 << 30)

    assert asyncio.run(wait())["y"].tolist() == [3.0, 3.0]


@pytest.mark.parametrize("folder", [None, 5])
def test_a_folder_is_a_path(folder):
    with pytest.raises(tl.InputError, match="a folder is given by its path"):
        tl.RecoveryConfig().with_folder(folder)


def test_a_folder_of_checkpoints_is_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("run").write_text("a file")
    for folder, message in (("run", "'run' is a file"), ("", "the name of the folder is empty")):
        with pytest.raises(tl.InputError, match=message):
            tl.CheckpointManager(folder)
    with (
        tl.CheckpointManager("other") as manager,
        pytest.raises(tl.InputError, match="a checkpoint holds arrays by name, got None"),
    ):
        manager.save(None)


def test_the_oldest_checkpoint_has_none_before_it(tmp_path):
    with tl.CheckpointManager(tmp_path) as manager:
        manager.save({"w": np.ones(2)})
        (tmp_path / "checkpoint-00000001" / "values.safetensors").write_bytes(b"")
        with (
            pytest.warns(tl.CheckpointWarning, match="is damaged.*there is none before it"),
            pytest.raises(tl.CheckpointError, match="none of the 1 checkpoints"),
        ):
            manager.latest()
