"""Sources and checkpoints of streams that are not what they should be: refused, and never half believed."""

from __future__ import annotations

import contextlib
import io
import zipfile

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.streams import text_sources

EX = tl.Executor()
ROWS = np.arange(20.0).reshape(10, 2)


def chunks(rows: int, prefetch: int = 0) -> tl.StreamingConfig:
    return tl.StreamingConfig(tl.StreamingMode.FixedChunk(rows), prefetch=prefetch)


def graph(shape=("n", 2), dtype=None) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", shape, dtype)
    return b.build(y=x * 2, total=b.sum(x, axis=0))


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_generator_may_fill_the_same_array_again(rows, prefetch):
    def filled():
        array = np.empty((2, 2))
        for k in range(6):
            array[:] = k
            yield {"x": array}

    stream = EX.execute_stream(graph(), filled(), chunks(rows, prefetch))
    found = np.concatenate([result.outputs["y"] for result in stream])
    np.testing.assert_array_equal(found[:, 0], 2 * np.repeat(np.arange(6), 2))
    assert stream.outputs["total"].tolist() == [30, 30]


def test_a_row_that_was_pushed_may_be_written_over():
    b = tl.GraphBuilder()
    x = b.input("x", ("n",))
    processor = tl.StreamProcessor(EX, b.build(y=b.sum(x) * b.cast(b.sum(b.iota("n")), "float64") + b.sum(x)))
    row = np.array([5.0])
    processor.push({"x": row})
    row[0] = 7.0
    assert processor.outputs["y"] == 5.0


def head(text: str) -> bytes:
    line = text.encode().ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line + np.arange(6.0).tobytes()


@pytest.mark.parametrize("suffix", [".npy", ".npz"])
@pytest.mark.parametrize("shape", ["(-6,)", "()", "(True,)", "(9223372036854775807, 9223372036854775807)", "(" * 50])
def test_a_head_that_lies_is_refused(tmp_path, suffix, shape):
    data = head(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}}}")
    path = tmp_path / f"x{suffix}"
    path.write_bytes(data)
    if suffix == ".npz":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("x.npy", data)
    with pytest.raises(tl.TensorLogicError):
        EX.execute_stream(graph(None), path, chunks(3)).result()


def test_damaged_archives_are_refused(tmp_path):
    made = io.BytesIO()
    np.savez_compressed(made, x=np.random.default_rng(0).normal(size=(40, 2)))
    whole = made.getvalue()
    path = tmp_path / "x.npz"
    for place in range(0, len(whole), 13):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        with contextlib.suppress(tl.TensorLogicError):  # what a flipped bit left readable may be read
            EX.execute_stream(graph(), path, chunks(7)).result()
    path.write_bytes(b"")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x", b"no array")
    with pytest.raises(tl.InputError):
        EX.execute_stream(graph(), path, chunks(7))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"a,b\n1,2\n3,4,5\n", "E538"),  # a cell too many
        (b"x_0,x_2\n1,2\n", "E534"),  # a column that is missing
        (b"x_0,x_00\n1,2\n", "E534"),  # a column that is there twice
        (b"a\xe9,b\n1,2\n", "E535"),
        (b"a,b\n1,\xe9\n", "E535"),
        ("a,b\n1,2\n".encode("utf-16"), "E535"),
    ],
)
def test_text_that_is_no_table_is_refused(tmp_path, text, code):
    path = tmp_path / "rows.csv"
    path.write_bytes(text)
    with pytest.raises(tl.TensorLogicError) as caught:
        EX.execute_stream(graph(), path, chunks(3)).result()
    assert caught.value.diagnostic.code == code


@pytest.mark.parametrize("text", ["1," * 5000, "a,b\n" + "1," * 5000])
def test_a_line_of_any_length_is_not_read_whole(tmp_path, monkeypatch, text):
    monkeypatch.setattr(text_sources, "LONGEST_LINE", 1000)
    path = tmp_path / "rows.csv"
    path.write_text(text)
    with pytest.raises(tl.FormatError, match="a line of more than 1,000 characters"):
        EX.execute_stream(graph(), path, chunks(3)).result()


@pytest.mark.parametrize("name", ["y.csv", "y.parquet"])
def test_rows_of_no_numbers_are_no_table(tmp_path, name):
    pytest.importorskip("pyarrow")
    b = tl.GraphBuilder()
    with pytest.raises(tl.InputError, match="rows of no numbers"):
        made = b.build(y=b.input("x", ("n", 0)) * 2)
        EX.execute_stream(made, {"x": np.ones((3, 0))}, chunks(2), sink=tmp_path / name).result()


def stopped(folder, source, sink):
    stream = EX.execute_stream(graph(), source, chunks(2), sink=sink, checkpoint=folder / "run")
    next(stream)
    stream.close()


def saved(folder, kind, rows):
    path = folder / f"rows.{kind}"
    if kind == "npy":
        np.save(path, rows)
    elif kind == "npz":
        np.savez(path, x=rows)
    elif kind == "csv":
        np.savetxt(path, rows, delimiter=",", header="a,b", comments="")
    else:
        pa, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(pa.table({"a": rows[:, 0], "b": rows[:, 1]}), path)
    return path


@pytest.mark.parametrize("kind", ["npy", "npz", "csv", "parquet"])
def test_a_source_with_other_rows_is_not_resumed(tmp_path, kind):
    stopped(tmp_path, saved(tmp_path, kind, ROWS), None)
    changed = saved(tmp_path, kind, ROWS + 100)
    with pytest.raises(tl.CheckpointError) as caught:
        EX.execute_stream(graph(), changed, chunks(2), checkpoint=tmp_path / "run", resume=True).result()
    assert caught.value.diagnostic.code == "E547"
    again = saved(tmp_path, kind, ROWS)
    found = EX.execute_stream(graph(), again, chunks(2), checkpoint=tmp_path / "run", resume=True).result()
    assert found["total"].tolist() == ROWS.sum(0).tolist()


@pytest.mark.parametrize(("first", "then"), [("y.npz", "y.csv"), ("y.csv", "y.npz"), ("y.npy", {"y": "y.npy"})])
def test_another_kind_of_sink_is_not_resumed(tmp_path, monkeypatch, first, then):
    monkeypatch.chdir(tmp_path)
    stopped(tmp_path, {"x": ROWS}, first)
    with pytest.raises(tl.CheckpointError) as caught:
        EX.execute_stream(graph(), {"x": ROWS}, chunks(2), sink=then, checkpoint=tmp_path / "run", resume=True).result()
    assert caught.value.diagnostic.code == "E547"


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "float16", "float64"])
def test_logsumexp_of_whole_numbers_is_streamed_too(dtype):
    b = tl.GraphBuilder()
    made = b.build(y=b.logsumexp(b.input("x", ("n", 2), dtype), axis=0))
    rows = np.random.default_rng(0).integers(0, 2, (9, 2)).astype(dtype)
    found = EX.execute_stream(made, {"x": rows}, chunks(4)).result()["y"]
    plain = EX.execute(made, {"x": rows})["y"]
    assert found.dtype == plain.dtype
    np.testing.assert_allclose(found, plain, rtol=1e-3 if dtype == "float16" else 1e-12)


def blocks(count: int):
    return ({"x": ROWS[2 * k : 2 * k + 2]} for k in range(count))


def test_an_iterable_whose_rows_are_all_done_is_resumed_to_its_end(tmp_path):
    def run(count: int, resume: bool) -> tl.Stream:
        return EX.execute_stream(
            graph(), blocks(count), chunks(2), sink=tmp_path / "y.npz", checkpoint=tmp_path / "run", resume=resume
        )

    first = run(5, resume=False)
    for _ in range(3):
        next(first)
    first.close()
    with pytest.raises(tl.CheckpointError, match="rows 4 to 5 are not those that were read then"):
        run(2, resume=True).result()
    with pytest.raises(tl.InputError, match="2 rows before"):
        run(1, resume=True).result()
    assert run(3, resume=True).result()["total"].tolist() == ROWS[:6].sum(0).tolist()
    np.testing.assert_array_equal(np.load(tmp_path / "y.npz")["y"], 2 * ROWS[:6])


def test_outputs_of_a_stream_are_the_callers():
    stream = EX.execute_stream(graph(), {"x": ROWS}, chunks(4))
    for result in stream:
        for value in result.outputs:
            value[...] = 99
    stream.result()["total"][...] = 99
    assert stream.outputs["total"].tolist() == ROWS.sum(0).tolist()


def test_a_run_that_has_ended_takes_no_more_rows(tmp_path):
    def run(count: int) -> tl.Stream:
        return EX.execute_stream(
            graph(), blocks(count), chunks(2), sink=tmp_path / "y.npz", checkpoint=tmp_path / "run", resume=True
        )

    run(3).result()
    with pytest.raises(tl.InputError, match="had ended after 6 rows"):
        run(5).result()
    assert run(3).result()["total"].tolist() == ROWS[:6].sum(0).tolist()
