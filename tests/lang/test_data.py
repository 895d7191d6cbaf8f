"""Tables in and out: every kind of table gives the same facts, and a bad one is refused with its place."""

import os

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.errors import FormatError, InputError
from tensorlogic.lang.data import table_of, whole_numbers
from tensorlogic.lang.data_files import read_array, read_table, read_tensor
from tensorlogic.lang.domains import Domain, column_of
from tensorlogic.lang.written_files import write_array, write_table

ROWS = [("Alice", "Bob"), ("Bob", "Carol"), ("Alice", "Carol")]
NUMBERED = [("Alice", 3), ("Bob", 5)]


def frame_of(kind, rows, tmp_path):
    columns = {"x": [r[0] for r in rows], "y": [r[1] for r in rows]}
    path = tmp_path / f"facts.{kind}"
    match kind:
        case "list":
            return rows
        case "generator":
            return (row for row in rows)
        case "lists":
            return [list(row) for row in rows]
        case "array":
            return np.array(rows, object)
        case "mapping":
            return columns
        case "pandas" | "parquet":
            frame = pytest.importorskip("pandas").DataFrame(columns)
            if kind == "parquet":
                frame.to_parquet(path)
            return frame if kind == "pandas" else path
        case "polars":
            return pytest.importorskip("polars").DataFrame(columns)
        case "arrow":
            return pytest.importorskip("pyarrow").table(columns)
        case "csv" | "tsv":
            separator = "," if kind == "csv" else "\t"
            path.write_text("".join(separator.join(map(str, row)) + "\n" for row in rows))
            return str(path)
    raise ValueError(kind)


KINDS = ["list", "generator", "lists", "array", "mapping", "pandas", "polars", "arrow", "csv", "tsv", "parquet"]


@pytest.mark.parametrize("rows", [ROWS, NUMBERED], ids=["names", "numbers"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_table_gives_the_same_rows(kind, rows, tmp_path):
    table = table_of(frame_of(kind, rows, tmp_path), 2)
    assert table.rows() == rows
    assert {type(v) for row in table.rows() for v in row} <= {str, int}
    assert table.columns[1].names is None or rows is ROWS  # whole numbers are their own codes


def test_sets_come_in_a_fixed_order():
    assert table_of(set(ROWS), 2).rows() == sorted(ROWS)


def test_arrays_of_truth_values_are_places():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    dense = np.array([[False, True, False], [True, False, False]])
    for given in (dense, scipy_sparse.csr_array(dense), scipy_sparse.coo_matrix(dense.astype(float))):
        table = table_of(given, 2)
        assert sorted(table.rows()) == [(0, 1), (1, 0)]
        assert table.sizes == (2, 3)


def test_single_names_are_tuples_of_one_place():
    assert table_of(["Alice", "Bob"], 1).rows() == [("Alice",), ("Bob",)]
    assert table_of(np.array(["Alice", "Bob"]), 1).rows() == [("Alice",), ("Bob",)]
    assert table_of([()], 0).count == 1


def test_numpy_names_become_plain_ones():
    (name, number), *_ = table_of([(np.str_("a"), np.int32(3))], 2).rows()
    assert (type(name), type(number)) == (str, int)


@pytest.mark.parametrize(
    ("rows", "code", "said"),
    [
        ([("a", None)], "E774", "missing in row 1 of column 2"),
        ([("a", "b"), ("a", float("nan"))], "E774", "missing in row 2 of column 2"),
        ([("a", 1.5)], "E775", "1.5 in row 1 of column 2 of R cannot be a name"),
        ([("a", True)], "E775", "of type bool"),
        ([("a", "b"), ("c",)], "E778", "row 2 has 1: ('c',)"),
        ([("a", "b", "c")], "E778", "R has 2 places, but row 1 has 3"),
        (("a", "b"), "E778", "put the tuple in a list: [('a', 'b')]"),
        ([("a", "b"), None], "E779", "row 2 is no tuple"),
        (3, "E779", "int is no table"),
        (np.zeros((2, 2)), "E779", "float64 holds no facts"),
        (np.zeros((2, 2, 2), bool), "E778", "has 3 axes"),
        ({"x": ["a"], "y": ["b", "c"]}, "E778", "different lengths"),
        ("facts.xyz", "E771", "known are .csv"),
        ("nothing.csv", "E770", "does not exist"),
    ],
)
def test_what_is_no_table_is_refused(rows, code, said):
    with pytest.raises((InputError, FormatError)) as caught:
        table_of(rows, 2, name="R")
    assert caught.value.diagnostic.code == code
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "options", "rows"),
    [
        ("Int\tInt\n73\t74\n46\t81\n", {}, [(73, 74), (46, 81)]),  # tabs in a .csv, a header over numbers
        ("a,b\nc,d\n", {}, [("a", "b"), ("c", "d")]),
        ("a,b\nc,d\n", {"header": True}, [("c", "d")]),
        ("x,y\nc,d\n", {"heads": ("x", "y")}, [("c", "d")]),
        ("1,2\n3,4\n", {}, [(1, 2), (3, 4)]),
        ('"a, b",c\n"d ""e""",f\n', {}, [("a, b", "c"), ('d "e"', "f")]),
        ("007,1\n7,2\n", {}, [("007", 1), (7, 2)]),
        ("a,1\n\nb,2\n", {}, [("a", 1), ("b", 2)]),
        ("a,-1\r\nb,x\r\n", {}, [("a", -1), ("b", "x")]),
        ("\ufeffa,b\n", {}, [("a", "b")]),
        ("a,NA\nnull,b\n", {}, [("a", "NA"), ("null", "b")]),
        ("é,ü\n", {}, [("é", "ü")]),
    ],
)
@pytest.mark.parametrize("arrow", [True, False])
def test_csv(tmp_path, monkeypatch, text, options, rows, arrow):
    if not arrow:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = tmp_path / "facts.csv"
    path.write_bytes(text.encode())
    assert read_table(path, 2, **options).rows() == rows


@pytest.mark.parametrize("arrow", [True, False])
@pytest.mark.parametrize(
    ("data", "code", "line"),
    [
        (b"a,b\nc,d\n\ne\nf,g\n", "E772", 4),
        (b"a,b\nc,d,e\n", "E772", 2),
        (b'a,b\n"x\ny",d\nc\n', "E772", 4),
        (b"a,b\n\xff,d\n", "E773", 2),
        (b'a,b\nc,"d\n', "E772", 2),
    ],
)
def test_a_bad_row_is_named_by_its_line(tmp_path, monkeypatch, data, code, line, arrow):
    if not arrow:
        monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    path = tmp_path / "facts.csv"
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        read_table(path, 2)
    assert caught.value.diagnostic.code == code
    assert caught.value.diagnostic.location.line == line
    assert caught.value.diagnostic.location.file == str(path)


def test_an_empty_file_is_an_empty_relation(tmp_path):
    (tmp_path / "facts.csv").write_text("")
    assert read_table(tmp_path / "facts.csv", heads=("x", "y")).rows() == []


def test_text_becomes_positions_and_words(tmp_path):
    (tmp_path / "text.txt").write_text("Alice loves\nBob")
    assert read_table(tmp_path / "text.txt", 2).rows() == [(0, "Alice"), (1, "loves"), (2, "Bob")]
    assert read_table(tmp_path / "text.txt", 1).rows() == [("Alice",), ("loves",), ("Bob",)]


@pytest.mark.parametrize("kind", ["csv", "tsv", "parquet"])
def test_what_is_written_reads_back(tmp_path, kind):
    path = tmp_path / f"out.{kind}"
    rows = [("a, b", 1), ('c "d"', -2)]
    write_table(path, {"x": [r[0] for r in rows], "y": [r[1] for r in rows]})
    assert read_table(path, 2).rows() == rows


@pytest.mark.parametrize("kind", ["npy", "npz", "safetensors"])
def test_arrays_read_back(tmp_path, kind):
    path = tmp_path / f"out.{kind}"
    array = np.arange(6.0).reshape(2, 3)
    write_array(path, "W", array)
    np.testing.assert_array_equal(read_array(path, "W"), array)
    np.testing.assert_array_equal(read_tensor(path, 2, "W"), array)
    write_array(path, "R", array > 3)
    assert read_table(path, 2, name="R").rows() == [(1, 1), (1, 2)]


def test_no_pickles(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"a": 1}], object), allow_pickle=True)
    with pytest.raises(FormatError) as caught:
        read_array(tmp_path / "a.npy")
    assert caught.value.diagnostic.code == "E781"


def test_numbers_from_tables(tmp_path):
    path = tmp_path / "w.csv"
    path.write_text("0,1,2.5\n1,0,-1\n0,1,1\n")
    np.testing.assert_array_equal(read_tensor(path, 2), [[0, 3.5], [-1, 0]])
    path.write_text("0.5,1\n2,3\n")
    np.testing.assert_array_equal(read_tensor(path, 2), [[0.5, 1], [2, 3]])
    path.write_text("1.5\n2\n")
    np.testing.assert_array_equal(read_tensor(path, 1), [1.5, 2])


def test_domains_grow_and_keep_their_codes():
    domain = Domain(["a", "b"])
    assert domain.add(column_of(["c", "a"])).tolist() == [2, 0]
    assert domain.names() == ["a", "b", "c"]
    assert domain.add(column_of([7, 7])).tolist() == [3, 3]
    assert (domain.code(7), domain.code("7"), 7 in domain, "z" in domain) == (3, None, True, False)
    assert domain.names([4, 3, 0]) == [4, 7, "a"]
    numbers = Domain(size=5)
    assert (len(numbers), numbers.numbers, numbers.code(9), numbers.names([4])) == (5, True, None, [4])


def test_numbers_beyond_64_bits_are_names():
    assert column_of([2**70, 1]).values() == [2**70, 1]
    assert whole_numbers(["1", "-", "", "٣", "1" * 30]) == [1, "-", "", "٣", "1" * 30]


@pytest.mark.parametrize(
    "rows",
    [[("b", 1), ("a\ud800", 2)], np.array([["b", "c"], ["a\ud800", "b"]]), {"x": ["b", "a\ud800"], "y": [1, 2]}],
    ids=["tuples", "array", "columns"],
)
def test_half_of_a_surrogate_pair_is_no_name(rows):
    program = tl.Program("Q(x) <- P(x, y)")
    with pytest.raises(
        InputError, match=r"'a.ud800' in row 2 of column .* of P has half of a surrogate pair"
    ) as caught:
        program.add("P", rows)
    assert caught.value.diagnostic.code == "E231"
    str(caught.value).encode()


def test_both_halves_of_a_surrogate_pair_are_one_character(tmp_path):
    program = tl.Program(r'P("\ud83d\ude00", "b"); Q(x) <- P(x, y)')
    assert list(program.query("Q(x)?")) == [("\U0001f600",)]
    program.save(tmp_path / "program.tl")
    with pytest.raises(FormatError, match="the text has half of a surrogate pair") as caught:
        program.add_rule('P("a\ud800", "b")')
    str(caught.value).encode()


def test_masked_arrays_are_refused():
    for masked in (np.ma.masked_array([[1, 2]], mask=[[0, 1]]), np.ma.masked_array([[True]], mask=[[True]])):
        with pytest.raises(tl.DTypeError, match="lose its mask"):
            table_of(masked, 2)


def test_files_that_cannot_be_read_are_refused(tmp_path):
    (tmp_path / "long.csv").write_text("a" * 200_000 + ",b\n")
    with pytest.raises(FormatError, match="field larger than field limit"):
        read_table(tmp_path / "long.csv")
    os.mkfifo(tmp_path / "pipe.csv")
    with pytest.raises(FormatError, match="is no regular file"):
        read_table(tmp_path / "pipe.csv")
    name = "x" * 5000
    program = tl.Program("R(A)")
    for attempt in (
        lambda: read_table(name + ".csv"),
        lambda: tl.load(name),
        lambda: tl.load(name + ".tl"),
        lambda: program.save(name + ".tl"),
        lambda: program.save("a\0b"),
        lambda: tl.CheckpointManager(name).latest(),
    ):
        with pytest.raises(tl.TensorLogicError, match=r"does not exist|cannot write|no name of"):
            attempt()
