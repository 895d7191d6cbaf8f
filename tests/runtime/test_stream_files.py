"""Where streams come from and go to: every kind of file and table, read and written."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.runtime.streams.sinks import sink_of
from tensorlogic.testing import failing_at

pa = pytest.importorskip("pyarrow")
dataset = pytest.importorskip("pyarrow.dataset")
feather = pytest.importorskip("pyarrow.feather")
parquet = pytest.importorskip("pyarrow.parquet")
text = pytest.importorskip("pyarrow.csv")

EX = tl.Executor()
ROWS = np.random.default_rng(0).normal(size=(200, 3))
TABLE = pa.table({f"x_{n}": ROWS[:, n] for n in range(3)})
CONFIG = tl.StreamingConfig(tl.StreamingMode.FixedChunk(17), prefetch=1)


def graph(shape: tuple[Any, ...] = ("n", 3)) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", shape)
    return b.build(y=x * 2, total=b.sum(x, axis=0))


def npz(path, save):
    save(path, x=ROWS)
    return path


def folder_of_parquet(path):
    path.mkdir()
    parquet.write_table(TABLE.slice(0, 90), path / "a.parquet")
    parquet.write_table(TABLE.slice(90), path / "b.parquet")
    return path


def written(path, write, table=TABLE, **options):
    write(table, path, **options)
    return path


def arrow_stream(path):
    with pa.ipc.new_stream(str(path), TABLE.schema) as out:
        out.write_table(TABLE, max_chunksize=30)
    return path


def array_file(path, array=ROWS):
    np.save(path, array)
    return path


LISTS = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(ROWS.ravel()), 3)})
SOURCES = {
    "array": lambda f: {"x": ROWS}, "bare array": lambda f: ROWS, "column order": lambda f: {"x": np.asfortranarray(ROWS)},
    "npy": lambda f: array_file(f / "x.npy"), "npy in column order": lambda f: array_file(f / "x.npy", np.asfortranarray(ROWS)),
    "mapped": lambda f: {"x": np.load(array_file(f / "x.npy"), mmap_mode="r")},
    "part of a mapped one": lambda f: {"x": np.load(array_file(f / "x.npy", np.concatenate([ROWS[:9], ROWS])), mmap_mode="r")[9:]},
    "npz": lambda f: npz(f / "x.npz", np.savez), "packed npz": lambda f: npz(f / "x.npz", np.savez_compressed),
    "parquet": lambda f: written(f / "x.parquet", parquet.write_table, row_group_size=23),
    "lists": lambda f: written(f / "x.parquet", parquet.write_table, LISTS, row_group_size=23),
    "open lists": lambda f: written(f / "x.parquet", parquet.write_table, pa.table({"x": ROWS.tolist()}), row_group_size=23),
    "feather": lambda f: written(f / "x.feather", feather.write_feather), "arrow stream": lambda f: arrow_stream(f / "x.arrows"),
    "csv": lambda f: written(f / "x.csv", text.write_csv), "folder": lambda f: folder_of_parquet(f / "parts"),
    "dataset": lambda f: dataset.dataset(folder_of_parquet(f / "parts")), "table": lambda f: TABLE, "reader": lambda f: TABLE.to_reader(20),
    "batches": lambda f: TABLE.to_batches(max_chunksize=13), "chunks": lambda f: [{"x": ROWS[:90]}, {"x": ROWS[90:]}],
    "arrays": lambda f: iter([ROWS[:90], ROWS[90:]]),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("skip", [0, 50])
def test_every_source_gives_its_rows(name, skip, tmp_path):
    stream = EX.execute_stream(graph(), SOURCES[name](tmp_path), CONFIG)
    stream.processor.rows = skip  # as a run that is resumed there
    results = list(stream)
    np.testing.assert_array_equal(np.concatenate([r.outputs["y"] for r in results]), ROWS[skip:] * 2)
    np.testing.assert_allclose(stream.outputs["total"], ROWS[skip:].sum(axis=0))


def test_columns_of_several_inputs_and_dtypes(tmp_path):
    b = tl.GraphBuilder()
    a, k, t = b.input("a", ("n",), "float32"), b.input("k", ("n",), "int64"), b.input("t", ("n",), "bool")
    made = b.build(y=b.where(t, a, 0.0), total=b.sum(k))
    (tmp_path / "t.csv").write_text('k,"a",t,note\n9007199254740993,0.5,1,"x, y"\n\n2,1.5,0,z\n')
    stream = EX.execute_stream(made, tmp_path / "t.csv", CONFIG)
    np.testing.assert_array_equal(next(stream).outputs["y"], np.array([0.5, 0], "float32"), strict=True)
    assert stream.outputs["total"] == 9007199254740995
    table = pa.table({"t": [True, False], "a": pa.array([0.5, 1.5], pa.float32()), "k": [1, 2]})
    assert EX.execute_stream(made, table, CONFIG).result()["total"] == 3


@pytest.mark.parametrize(
    ("content", "message", "code"),
    [
        ("x_0,x_1,x_2\n1,2,3\n4,,6\n", r"'x_1': a value is missing\n  at .*x.csv:3\n    4,,6", "E538"),
        ("x_0,x_1,x_2\n1,2,3\n\n4,five,6\n", r"'x_1': 'five' is no number\n  at .*x.csv:4\n", "E538"),
        ("x_0,x_1,x_2\n1,2,3\n4,5\n", r"a row of 2 cells, where the first line has 3\n  at .*x.csv:3\n    4,5", "E538"),
        ("x_0,x_l,x_2\n1,2,3\n", "no column 'x_1'(.|\n)*did you mean 'x_l'", "E534"),
        ("x_1,x_2,x_3\n1,2,3\n", "no column 'x_0'", "E534"),
        ("a,b\n1,2\n", "axis 1 must be 3", "E001"),
        ("x_0,x_0,x_2\n1,2,3\n", "two columns 'x_0'", "E535"),
        ("", "has no line", "E535"),
    ],
)
def test_bad_text(content, message, code, tmp_path):
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(tl.TensorLogicError, match=message) as caught:
        EX.execute_stream(graph(), tmp_path / "x.csv", CONFIG).result()
    assert caught.value.diagnostic.code == code


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (pa.table({"x_0": [1.0, None], "x_1": [1.0, 2], "x_2": [1.0, 2]}), "'x_0' has no value at row 1"),
        (pa.table({"x_0": ["a", "b"], "x_1": [1.0, 2], "x_2": [1.0, 2]}), "holds string"),
        (pa.table({"x": [[1.0, 2, 3], [1.0, 2]]}), "lists of different lengths"),
        (pa.table({"x": [[1.0, 2, 3], [1.0, 2], [1.0, 2, 3, 4]]}), "lists of different lengths"),
    ],
)
def test_bad_tables(table, message):
    with pytest.raises(tl.FormatError, match=message) as caught:
        EX.execute_stream(graph(), table, CONFIG).result()
    assert caught.value.diagnostic.code == "E538"


@pytest.mark.parametrize("name", ["x.npy", "x.npz", "x.parquet", "x.arrow", "x.unknown"])
def test_files_that_are_not_what_their_name_says(name, tmp_path):
    (tmp_path / name).write_bytes(b"not at all")
    with pytest.raises(tl.TensorLogicError) as caught:
        EX.execute_stream(graph(), tmp_path / name, CONFIG).result()
    assert caught.value.diagnostic.code in ("E535", "E534")


def test_a_file_that_is_cut_short_while_it_is_read(tmp_path):
    path = array_file(tmp_path / "x.npy", np.ones((100_000, 3)))
    stream = EX.execute_stream(graph(), path, tl.StreamingConfig(tl.StreamingMode.FixedChunk(1000), prefetch=0))
    next(stream)
    os.truncate(path, 200_000)
    with pytest.raises(tl.FormatError, match="cut short"):
        stream.result()
    assert stream.rows > 0


# sinks


def both() -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3))
    return b.build(y=x * 2, flag=b.sum(x, axis=1) > 0, turned=b.transpose(x), total=b.sum(x, axis=0), n=b.max(x))


def test_every_sink_holds_the_whole_answer(tmp_path):
    made, source = both(), {"x": ROWS.astype("float32")}
    whole = EX.execute(made, source)
    EX.execute_stream(made, source, CONFIG, sink=tmp_path / "out.npz").result()
    with np.load(tmp_path / "out.npz") as found:
        assert set(found) == set(whole.keys())
        for name in found:
            np.testing.assert_allclose(found[name], whole[name], rtol=1e-5)
    paths = {name: tmp_path / f"{name}.npy" for name in whole.keys()}  # noqa: SIM118 - Outputs iterates over values
    EX.execute_stream(made, source, CONFIG, sink=paths).result()
    for name, path in paths.items():
        np.testing.assert_allclose(np.load(path), whole[name], rtol=1e-5)
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3))
    rows = b.build(y=x * 2, flag=b.sum(x, axis=1) > 0, total=b.sum(x))
    for name in ("out.parquet", "out.csv", "out.tsv"):
        EX.execute_stream(rows, source, CONFIG, sink=tmp_path / name).result()
    table = parquet.read_table(tmp_path / "out.parquet")
    assert parquet.ParquetFile(tmp_path / "out.parquet").num_row_groups == 12
    np.testing.assert_array_equal(np.array(table["y"].to_pylist(), "float32"), whole["y"])
    np.testing.assert_array_equal(table["flag"].to_numpy(), whole["flag"])
    for name, separator in (("out.csv", ","), ("out.tsv", "\t")):
        back = np.loadtxt(tmp_path / name, delimiter=separator, skiprows=1, dtype="float32")
        np.testing.assert_array_equal(back[:, :3], whole["y"])
        np.testing.assert_array_equal(back[:, 3] == 1, whole["flag"])
    assert not [p.name for p in tmp_path.iterdir() if p.suffix in (".part", ".tmp")]


def test_only_totals_are_one_row(tmp_path):
    b = tl.GraphBuilder()
    x = b.input("x", ("n", 3))
    made = b.build(total=b.sum(x, axis=0), top=b.max(x))
    for name in ("a.parquet", "a.csv", "a.npz"):
        EX.execute_stream(made, {"x": np.ones((5, 3))}, CONFIG, sink=tmp_path / name).result()
    assert parquet.read_table(tmp_path / "a.parquet").to_pylist() == [{"total": [5.0, 5.0, 5.0], "top": 1.0}]
    assert (tmp_path / "a.csv").read_text(encoding="utf-8") == "total_0,total_1,total_2,top\n5.0,5.0,5.0,1.0\n"
    assert np.load(tmp_path / "a.npz")["top"] == 1


def test_no_rows_are_a_file_of_no_rows(tmp_path):
    for name in ("out.npz", "out.csv", "out.parquet"):
        EX.execute_stream(graph(), {"x": np.ones((0, 3))}, CONFIG, sink=tmp_path / name).result()
    assert np.load(tmp_path / "out.npz")["y"].shape == (0, 3)
    assert (tmp_path / "out.csv").read_text(encoding="utf-8").strip() == "y_0,y_1,y_2"
    assert parquet.read_table(tmp_path / "out.parquet").num_rows == 0


@pytest.mark.parametrize(
    ("sink", "message"),
    [
        ("out.npy", "holds one array"), ("out.parquet", "is no column"), ("out.txt", "what kind of file"), ("no/out.npy", "no folder"),
        (7, "a sink is a path"), ({"z": "z.npy"}, "no output 'z'"),
    ],
)  # fmt: skip
def test_sinks_that_cannot_hold_the_outputs(sink, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(tl.InputError, match=message):
        EX.execute_stream(both(), {"x": ROWS}, CONFIG, sink=sink).result()
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_stops_leaves_no_file(tmp_path):
    for name in ("out.npz", "out.csv", "out.parquet"):
        stream = EX.execute_stream(graph(), {"x": ROWS}, CONFIG, sink=tmp_path / name)
        next(stream)
        stream.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", ["write", "fsync", "replace"])
def test_a_full_disk_is_told_and_what_was_there_stays(operation, tmp_path):
    target = tmp_path / "out.npz"
    target.write_bytes(b"before")
    full = failing_at(operation, call=1, error=OSError(28, "No space left on device"))
    stream = EX.execute_stream(
        graph(), {"x": ROWS}, CONFIG, sink=sink_of(target, ("y", "total"), staged=False, wrap=[full])
    )
    with pytest.raises(tl.FormatError, match="No space left on device") as caught:
        stream.result()
    assert caught.value.diagnostic.code == "E544"
    assert [p.name for p in tmp_path.iterdir()] == ["out.npz"]
    assert target.read_bytes() == b"before"


# whole numbers, and folders

LARGE = (1 << 53) + 1  # which float64 does not have


def largest(dtype: str | None, shape: tuple[Any, ...] = ("n",)) -> tl.EinsumGraph:
    b = tl.GraphBuilder()
    return b.build(top=b.max(b.input("id", shape, dtype)))


def test_whole_numbers_of_text_are_exact_or_refused(tmp_path):
    (tmp_path / "ids.csv").write_text(f'name,id\n1,3\n\n2,"{LARGE}"\n3,-{LARGE - 1}\n')
    assert EX.execute_stream(largest("int64"), tmp_path / "ids.csv").result()["top"] == LARGE
    with pytest.raises(tl.FormatError, match=f"column 'id': {LARGE} is a whole number") as caught:
        EX.execute_stream(largest(None), tmp_path / "ids.csv").result()
    assert caught.value.diagnostic.code == "E548" and caught.value.diagnostic.location.line == 4
    (tmp_path / "ids.csv").write_text(f"id\n{LARGE - 1}\n1e300\n-{1 << 60}\n")  # which float64 has
    assert EX.execute_stream(largest(None), tmp_path / "ids.csv").result()["top"] == 1e300


def test_whole_numbers_of_tables_are_not_rounded_beside_floats(tmp_path):
    table = pa.table({"id_0": pa.array([1, LARGE]), "id_1": pa.array([0.5, 1.5])})
    parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(tl.FormatError, match=f"column 'id_0' has {LARGE} at row 1") as caught:
        EX.execute_stream(largest(None, ("n", 2)), tmp_path / "x.parquet").result()
    assert caught.value.diagnostic.code == "E548"
    parquet.write_table(table.select(["id_0"]).rename_columns(["id"]), tmp_path / "x.parquet")
    assert EX.execute_stream(largest(None), tmp_path / "x.parquet").result()["top"] == LARGE


def test_files_of_a_folder_follow_each_other_and_must_be_alike(tmp_path):
    folder = folder_of_parquet(tmp_path / "parts")
    (folder / "_metadata.parquet").write_text("no table")
    stream = EX.execute_stream(graph(), folder, CONFIG)
    assert stream.total == 200
    np.testing.assert_array_equal(np.concatenate([r.outputs["y"] for r in stream]), 2 * ROWS)
    parquet.write_table(TABLE.select(["x_0", "x_1"]), folder / "c.parquet")
    with pytest.raises(tl.FormatError, match=r"'c\.parquet' has no column 'x_2'"):
        EX.execute_stream(graph(), folder, CONFIG).result()
    columns = {f"x_{n}": ROWS[:, n].astype("float32") for n in range(3)}
    parquet.write_table(pa.table(columns), folder / "c.parquet")
    with pytest.raises(tl.InputError, match="near row 200 input 'x' is float32"):
        EX.execute_stream(graph(), folder, CONFIG).result()


@pytest.mark.parametrize("kind", ["table", "file"])
@pytest.mark.parametrize("columns", [2, 11, 12, 13, 40])
def test_few_and_many_columns_become_one_matrix(tmp_path, monkeypatch, columns, kind):
    from tensorlogic.runtime.streams import table_columns, table_sources

    monkeypatch.setattr(table_columns, "BLOCK", 128)  # some blocks in each chunk, the last of them smaller
    monkeypatch.setattr(table_sources, "BATCH", 64 * 40)
    rng = np.random.default_rng(columns)
    own = [rng.integers(-9, 9, 300).astype("int32"), *rng.normal(size=(columns - 1, 300)).astype("float32")]
    table = pa.table({f"x_{n}": value for n, value in enumerate(own)})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=120)
    b = tl.GraphBuilder()
    x = b.input("x", ("n", columns))
    config = tl.StreamingConfig(tl.StreamingMode.FixedChunk(77))
    stream = tl.Executor().execute_stream(
        b.build(y=x * 2), table if kind == "table" else tmp_path / "x.parquet", config
    )
    found = np.concatenate([result.outputs["y"] for result in stream])
    want = np.stack(own, 1) * 2
    assert found.dtype == want.dtype == "float64"
    np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", ["../evil", "/tmp/abs", "a/../../evil", "c:\\e", "C:evil", "nul\0"])
def test_members_of_an_archive_stay_in_it(tmp_path, name):
    b = tl.GraphBuilder()
    bad = b.build({name: b.input("x", ("n", 3)) * 2})
    for checkpoint in (None, tmp_path / "run"):
        with pytest.raises(tl.FormatError, match="cannot be a member of an archive"):
            EX.execute_stream(bad, {"x": ROWS}, sink=tmp_path / "y.npz", checkpoint=checkpoint)
    assert not list(tmp_path.iterdir())
    EX.execute_stream(bad, {"x": ROWS}, sink=tmp_path / "y.npy").result()
    assert np.array_equal(np.load(tmp_path / "y.npy"), ROWS * 2)
