"""The memory of streams stays within the target of DynamicChunk, whatever the file looks like."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stream_memory import WIDTH, graph, measured_peak

import tensorlogic as tl

pa = pytest.importorskip("pyarrow")
ROWS = 300_000
WEIGHTS = {"w": np.ones((WIDTH, 16), "float32")}


def columns(dtype: str) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    if dtype == "int32":
        return {f"x_{n}": rng.integers(0, 100, ROWS, dtype="int32") for n in range(WIDTH)}
    return {f"x_{n}": rng.random(ROWS, dtype=dtype) for n in range(WIDTH)}


def lists() -> dict[str, Any]:
    flat = np.random.default_rng(0).random(ROWS * WIDTH, dtype="float32")
    return {"x": pa.FixedSizeListArray.from_arrays(pa.array(flat), WIDTH)}


FILES: dict[str, tuple[Any, dict[str, Any]]] = {  # what is in it, and how it is written
    "small row groups": (lambda: columns("float32"), {"row_group_size": 10_000}),
    "one row group": (lambda: columns("float32"), {"row_group_size": ROWS}),
    "float64, large pages": (lambda: columns("float64"), {"row_group_size": ROWS, "data_page_size": 4 << 20, "use_dictionary": False}),
    "integers in dictionaries": (lambda: columns("int32"), {"row_group_size": ROWS // 2}),
    "lists, compressed": (lists, {"row_group_size": 100_000, "compression": "zstd"}),
}  # fmt: skip


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", FILES)
def test_parquet_stays_within_the_target(tmp_path: Path, kind: str) -> None:
    from pyarrow import parquet

    make, options = FILES[kind]
    parquet.write_table(pa.table(make()), tmp_path / "x.parquet", **options)
    target = 32
    assert 0 < measured_peak(tmp_path / "x.parquet", target) < target


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_arrays_stay_within_the_target(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((4 * ROWS, WIDTH), dtype="float32"))
    assert 0 < measured_peak(tmp_path / "x.npy", 16) < 16


def test_a_reader_that_needs_more_than_the_target_is_refused_and_the_default_goes_on(tmp_path: Path) -> None:
    from pyarrow import parquet

    parquet.write_table(pa.table(columns("float32")), tmp_path / "x.parquet", row_group_size=ROWS)
    small = tl.StreamingConfig(tl.StreamingMode.DynamicChunk(2))
    with pytest.raises(tl.OutOfMemoryError, match="and reading it") as caught:
        tl.Executor().execute_stream(graph(), tmp_path / "x.parquet", small, inputs=WEIGHTS).result()
    assert caught.value.diagnostic.code == "E533"
    assert tl.Executor().execute_stream(graph(), tmp_path / "x.parquet", inputs=WEIGHTS).result()["mean"].shape == (16,)


def test_with_less_memory_arrow_is_asked_for_fewer_rows_at_once() -> None:
    from tensorlogic.runtime.streams.blocks import Wanted
    from tensorlogic.runtime.streams.table_sources import Batches

    wanted = Wanted({"x": 0}, {"x": tl.TensorType(None, None)})
    schema = pa.schema([(f"x_{n}", pa.float32()) for n in range(WIDTH)])
    asked: list[int] = []

    def held(names: list[str], rows: int) -> int:
        asked.append(rows)
        return 100 * rows

    for limit, want in {1 << 30: [131072], 8 << 20: [131072, 32768], 1: [131072, 32768, 8192]}.items():
        asked.clear()
        source = Batches(lambda row, rows, names: (iter(()), rows), schema, None, wanted, "a table", held=held)
        assert source.reader_bytes(limit) == 100 * want[-1]
        assert asked == want
        assert source._open(0, source._rows_at_once(), [])[1] == want[-1]  # and so it is read


def test_the_array_of_the_first_chunk_is_used_again(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.ones((1000, WIDTH), "float32"))
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(100), prefetch=0)
    with tl.Executor().execute_stream(graph(), tmp_path / "x.npy", config, inputs=WEIGHTS) as stream:
        places = {stream.take().values["x"].ctypes.data for _ in range(5)}
    assert len(places) == 1
