"""What a stream says to the mistakes that people make, and that no mistake mixes the answers of two runs."""

import asyncio

import numpy as np
import pytest

import tensorlogic as tl

ROWS, WEIGHTS = np.arange(30.0).reshape(10, 3), np.ones((3, 2))
CONFIG = tl.StreamingConfig(tl.StreamingMode.FixedChunk(4))


def doubled():
    b = tl.GraphBuilder()
    x, w = b.input("x", ("n", 3)), b.input("w", (3, 2))
    y = x @ w
    return b.build(y=y, mean=b.mean(y, axis=0))


GRAPH = doubled()


def stream(source, weights=WEIGHTS, config=CONFIG, **options):
    return tl.Executor().execute_stream(GRAPH, source, config, inputs={"w": weights}, **options)


def stop_early(source, folder, **options):
    with stream(source, checkpoint=folder, **options) as first:
        next(first)


def pieces(rows, start=0):
    return ({"x": rows[n : n + 2]} for n in range(start, len(rows), 2))


@pytest.mark.parametrize("made", [lambda a: {"x": a}, pieces, lambda a: a], ids=["mapping", "chunks", "array"])
def test_rows_that_changed_are_not_gone_on_with(made, tmp_path):
    stop_early(made(ROWS), tmp_path / "run")
    with pytest.raises(tl.CheckpointError, match="another source, or one that has changed") as caught:
        stream(made(ROWS + 1), checkpoint=tmp_path / "run", resume=True).result()
    assert caught.value.diagnostic.code == "E547"
    mean = stream(made(ROWS), checkpoint=tmp_path / "run", resume=True).result()["mean"]
    assert np.array_equal(mean, (ROWS @ WEIGHTS).mean(axis=0))


@pytest.mark.parametrize("kind", [".npy", ".npz", ".csv", ".parquet"])
def test_a_file_that_changed_is_not_gone_on_with(kind, tmp_path):
    def write(rows):
        path = tmp_path / f"x{kind}"
        if kind == ".npy":
            np.save(path, rows)
        elif kind == ".npz":
            np.savez(path, x=rows)
        elif kind == ".csv":
            np.savetxt(path, rows, delimiter=",", header="x_0,x_1,x_2", comments="")
        else:
            parquet, arrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
            parquet.write_table(arrow.table({f"x_{n}": rows[:, n] for n in range(3)}), path)
        return path

    stop_early(write(ROWS), tmp_path / "run")
    with pytest.raises(tl.CheckpointError, match="another source, or one that has changed"):
        stream(write(ROWS * 2), checkpoint=tmp_path / "run", resume=True).result()
    mean = stream(write(ROWS), checkpoint=tmp_path / "run", resume=True).result()["mean"]
    assert np.allclose(mean, (ROWS @ WEIGHTS).mean(axis=0))


def test_chunks_that_begin_where_the_run_stopped_are_refused(tmp_path):
    stop_early(pieces(ROWS), tmp_path / "run")
    with pytest.raises(tl.CheckpointError, match="given from its first chunk again"):
        stream(pieces(ROWS, 4), checkpoint=tmp_path / "run", resume=True).result()


def test_a_table_reader_loses_no_rows_when_it_is_resumed(tmp_path):
    arrow = pytest.importorskip("pyarrow")

    def reader():
        lists = arrow.array(ROWS.tolist(), arrow.list_(arrow.float64()))
        return arrow.table({"x": lists}).to_reader(max_chunksize=2)

    assert np.array_equal(stream(reader()).result()["mean"], (ROWS @ WEIGHTS).mean(axis=0))
    stop_early(reader(), tmp_path / "run")
    resumed = stream(reader(), checkpoint=tmp_path / "run", resume=True)
    assert np.array_equal(resumed.result()["mean"], (ROWS @ WEIGHTS).mean(axis=0))


@pytest.mark.parametrize("kind", [".npy", ".npz", ".csv", ".parquet"])
def test_two_runs_do_not_mix_in_one_sink(kind, tmp_path):
    if kind == ".parquet":
        pytest.importorskip("pyarrow")
    sink = tmp_path / f"y{kind}"
    stop_early(ROWS, tmp_path / "one", sink=sink)
    stop_early(ROWS, tmp_path / "two", sink=sink, weights=WEIGHTS * 10)
    with pytest.raises(tl.FormatError, match=r"is not what the run before wrote|should have") as caught:
        stream(ROWS, sink=sink, checkpoint=tmp_path / "one", resume=True).result()
    assert caught.value.diagnostic.code == "E545"
    stream(ROWS, WEIGHTS * 10, sink=sink, checkpoint=tmp_path / "two", resume=True).result()
    if kind == ".npy":
        assert np.array_equal(np.load(sink), ROWS @ WEIGHTS * 10)


def test_a_sink_does_not_take_the_place_of_its_source(tmp_path):
    path = tmp_path / "x.npy"
    np.save(path, ROWS)
    for sink in (path, {"y": tmp_path / "." / "x.npy"}):
        with pytest.raises(tl.InputError, match="is the source, and would be overwritten"):
            stream(path, sink=sink)
    assert np.array_equal(np.load(path), ROWS)


def test_two_outputs_do_not_share_a_file(tmp_path):
    with pytest.raises(tl.InputError, match="outputs 'y' and 'mean' would be written into one file"):
        stream(ROWS, sink={"y": tmp_path / "y.npy", "mean": tmp_path / "y.npy"})


def test_a_stream_that_was_closed_has_no_result():
    closed = stream(ROWS)
    next(closed)
    assert repr(closed) == "<Stream of ['y', 'mean']: 4 of 10 rows, open>"
    closed.close()
    with pytest.raises(tl.InputError, match="closed after 4 rows, before its end"):
        closed.result()
    assert np.array_equal(closed.outputs["mean"], (ROWS[:4] @ WEIGHTS).mean(axis=0))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ({"x": None}, "input 'x': None is given where an array is expected"),
        ([{"x": ROWS}, None], "chunk 1: an array is expected for input 'x', got None"),
        ([{"x": ROWS}, "rows"], "chunk 1: an array is expected for input 'x', got 'rows'"),
        ({"x": ROWS, "z": ROWS}, "the source has 'z', but the graph has no such input"),
        ({"x": ROWS[:, :2]}, r"axis 1 must be 3, got 2(.|\n)*but got: \[rows, 2\]"),
        (iter([]), "used up"),
    ],
)
def test_sources_that_are_wrong(source, message):
    with pytest.raises(tl.TensorLogicError, match=message):
        stream(source).result()


@pytest.mark.parametrize("name", ["x.npy", "x.csv", "."])
def test_files_of_another_kind(name, tmp_path):
    (tmp_path / "x.npy").write_text("no array")
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(
        tl.TensorLogicError, match=r"no array that can be read|no text in UTF-8|has no Parquet files"
    ) as caught:
        stream(tmp_path / name)
    assert "pickle" not in str(caught.value)


def test_an_error_of_the_reading_thread_points_at_the_loop():
    with pytest.raises(tl.InputError) as caught:
        stream([{"x": ROWS}, {"y": ROWS}]).result()
    assert caught.value.diagnostic.location.file == __file__


def test_an_error_of_a_worker_points_at_the_line_that_waits():
    async def wait():
        return await tl.Executor().execute_async(GRAPH, {})

    with pytest.raises(tl.InputError) as caught:
        asyncio.run(wait())
    assert caught.value.diagnostic.location.file == __file__


def test_a_config_that_is_wrong_points_at_its_own_line():
    with pytest.raises(tl.InputError) as caught:
        tl.StreamingConfig(prefetch=-1)
    assert caught.value.diagnostic.location.file == __file__


def test_pushing_what_is_no_chunk():
    processor = tl.StreamProcessor(tl.Executor(), GRAPH, inputs={"w": WEIGHTS})
    for given in (None, ROWS):
        with pytest.raises(tl.InputError, match="a chunk is a mapping from inputs to arrays"):
            processor.push(given)
    with pytest.raises(tl.InputError, match=r"nothing for input 'x'(.|\n)*did you mean 'X'"):
        processor.push({"X": ROWS})
