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
