"""Answers are lists of name tuples that turn into tables; shown things are text and HTML."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tensorlogic as tl
from tensorlogic.lang.domains import Domain
from tensorlogic.programs.answers import Answers, Relation

PEOPLE = Domain(["Ann", "Bob", "Cid"])


def pairs():
    return Answers(["x", "y"], [np.array([0, 1]), np.array([1, 2])], [PEOPLE, PEOPLE])


def test_answers_are_a_list_of_tuples():
    found = pairs()
    assert found == [("Ann", "Bob"), ("Bob", "Cid")]
    assert found == pairs()
    assert found != [("Ann", "Bob")]
    assert (found[0], found[-1], found[:1]) == (("Ann", "Bob"), ("Bob", "Cid"), [("Ann", "Bob")])
    assert (len(found), ("Ann", "Bob") in found, next(reversed(found))) == (2, True, ("Bob", "Cid"))
    assert repr(found) == "[('Ann', 'Bob'), ('Bob', 'Cid')]"
    assert {type(v) for row in found for v in row} == {str}


def test_truth_of_a_ground_query():
    yes, no = Answers([], [], [], count=1), Answers([], [], [], count=0)
    assert (bool(yes), bool(no), yes.value, no.value) == (True, False, True, False)
    assert (str(yes), str(no), yes == [()], no == []) == ("true", "false", True, True)


def test_values_of_numbers_are_shown_from_the_largest():
    found = Answers(["x"], [np.arange(3)], [PEOPLE], values=np.array([0.5, 2.0, 1.0]), tensor=np.array([0.5, 2.0, 1.0]))
    assert found == [("Ann", 0.5), ("Bob", 2.0), ("Cid", 1.0)]
    assert str(found).splitlines() == ["x    value", "Bob  2", "Cid  1", "Ann  0.5", "3 answers"]
    assert found.array().tolist() == [0.5, 2.0, 1.0]
    with pytest.raises(tl.InputError):
        found.value
    assert float(Answers([], [], [], count=1, values=np.array([3.5]))) == 3.5


def test_tables_of_other_libraries():
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    arrow = pytest.importorskip("pyarrow")
    found = pairs()
    assert found.to_pandas().equals(pandas.DataFrame({"x": ["Ann", "Bob"], "y": ["Bob", "Cid"]}))
    assert found.to_polars().equals(polars.DataFrame({"x": ["Ann", "Bob"], "y": ["Bob", "Cid"]}))
    assert found.to_arrow().equals(arrow.table({"x": ["Ann", "Bob"], "y": ["Bob", "Cid"]}))
    assert found.array().tolist() == [["Ann", "Bob"], ["Bob", "Cid"]]
    mixed = Answers(["x"], [np.array([0, 1])], [Domain(["a", 1])])
    assert mixed.array().tolist() == [["a"], [1]]
    assert mixed.to_arrow().column("x").to_pylist() == ["a", "1"]


def test_many_answers_are_cut_short():
    many = Answers(["n"], [np.arange(100)], [Domain(size=100)])
    assert repr(many).endswith("(19,), ... 100 answers]")
    assert str(many).endswith("100 answers, the first 50 shown")
    assert many.array().dtype == np.int64


def test_html_escapes_names():
    found = Answers(["x"], [np.array([0])], [Domain(["<b>"])])
    assert "<td>&lt;b&gt;</td>" in found._repr_html_()
    assert "<p>1 answer</p>" in found._repr_html_()


def test_relations_are_sets_of_names():
    tensor = tl.SparseTensor.of_columns([[0, 1], [1, 2]], (3, 3))
    relation = Relation("Parent", tensor, [PEOPLE, PEOPLE], ["x", "y"])
    assert (len(relation), bool(relation), set(relation) == relation) == (2, True, True)
    assert ("Ann", "Bob") in relation
    assert ("Bob", "Ann") not in relation
    assert ("Zed", "Ann") not in relation
    assert relation.dense().sum() == relation.bits().sum() == relation.sparse().count == 2
    assert relation.names(1) == ["Ann", "Bob", "Cid"]
    assert repr(relation) == "<Relation Parent/2, 2 tuples>"
    with pytest.raises(tl.InputError):
        assert ("Ann",) in relation
    with pytest.raises(tl.InputError):
        relation.names(2)
    assert relation.to_pandas().shape == (2, 2)
    assert relation.array().tolist() == [["Ann", "Bob"], ["Bob", "Cid"]]
    numbers = Relation("Next", tensor, [Domain(size=3), Domain(size=3)])
    assert (np.int64(0), np.int32(1)) in numbers
    assert (np.int64(1), np.int32(1)) not in numbers


def test_shown_is_text_and_a_table():
    shown = tl.show({"a": np.array([True, False]), "b": np.array([0.5, 0.7])}, ["ann", "bob"], heads=["x"])
    assert isinstance(shown, str)
    assert list(shown.parts) == ["a", "b"]
    html = shown._repr_html_()
    assert "<caption>a</caption>" in html
    assert html.index("0.7") < html.index("0.5")
    assert tl.show(tl.SparseTensor([[0, 1], [0, 0]]), 2).rows == [["0", "1"]]
    assert tl.show(pairs()) == str(pairs())
    assert "<table>" in tl.show(np.array(3.0))._repr_html_()


# whole numbers in facts: values below 0 and far apart


SALES = "Sale(Ann, 5); Sale(Ann, -3); Sale(Bob, -2); Sale(Bob, 1000000000)\n"


@pytest.mark.parametrize(
    ("equation", "expected"),
    [
        ("T[x] += Sale(x,a) a", {"Ann": 2, "Bob": 999_999_998}),
        ("T[x] max= Sale(x,a) a", {"Ann": 5, "Bob": 1_000_000_000}),
        ("T[x] min= Sale(x,a) a", {"Ann": -3, "Bob": -2}),
        ("T[x] avg= Sale(x,a) a", {"Ann": 1, "Bob": 499_999_999}),
        ("T[a] count= Sale(x,a)", {5: 1, -3: 1, -2: 1, 1_000_000_000: 1}),
    ],
)
def test_numbers_of_facts_are_values_wherever_they_lie(equation: str, expected: dict[Any, float]) -> None:
    assert dict(tl.Program(SALES + equation).query("T[x]?")) == expected


def test_numbers_below_zero_are_added_later() -> None:
    p = tl.Program("Sale(Ann, 5)\nT[x] += Sale(x,a) a\nN[a] count= Sale(x,a)")
    assert list(p.query("N[5]?")) == [(1,)]
    p.add("Sale", [("Ann", -3)])
    assert list(p.query("T[Ann]?")) == [(2,)] and list(p.query("N[-3]?")) == [(1,)]


# numbers by name in files


@pytest.mark.parametrize("form", ["csv", "tsv", "parquet"])
def test_numbers_go_to_files_by_name_and_come_back(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"w.{form}"
    tl.Program(f'W[Ann, 7] = 0.5; W["b, c", 7] = -2\n"{path}" = W[x,n]').write_files()
    p = tl.Program(f'Knows(Ann); Knows(Dan)\nW[x,n] = "{path}"\nY[x] = Knows(x) W[x,n]')
    assert set(p.query("W[x,n]?")) >= {("Ann", 7, 0.5), ("b, c", 7, -2.0)}
    assert dict(p.query("Y[x]?"))["Ann"] == 0.5
    p.save(tmp_path / "saved")
    assert dict(tl.load(tmp_path / "saved").query("Y[x]?"))["Ann"] == 0.5


# what a run prints, and series


def test_a_run_prints_names_under_the_variables_of_its_equations() -> None:
    p = tl.Program("Likes(Ann, Jazz); Likes(Bob, Rock)\nS[who] = Likes(who,g) W[g]")
    assert str(p.run(W=[1.0, 2.0])) == "who  value\nBob  2\nAnn  1\n2 of 2"


@pytest.mark.parametrize("library", ["pandas", "polars"])
def test_series_and_lazy_frames_are_facts(library: str) -> None:
    frames = pytest.importorskip(library)
    p = tl.Program("Old(x) <- Person(x), not Young(x)")
    p.add("Person", frames.Series(["Ann", "Bob"]))
    p.add("Young", frames.Series(["Bob"]) if library == "pandas" else frames.LazyFrame({"who": ["Bob"]}))
    assert list(p.query("Old(x)?")) == [("Ann",)]


def test_errors_of_questions_show_the_question() -> None:
    p = tl.Program("Parent(Alice, Bob)\nChild(y,x) <- Parent(x,y)")
    for ask in (p.query, p.why, p.why_not):
        with pytest.raises(tl.TensorLogicError) as caught:
            ask("Chidl(Bob, Alice)")
        assert caught.value.diagnostic.source == "Chidl(Bob, Alice)?"


def test_elements_of_an_array_beyond_the_names_are_numbers() -> None:
    program = tl.Program("Q(Ann); Q(Bob); S(i) <- Q(i), W[i] > 0; P(i) <- W[i] > 0; R(i,j) <- W[i] > 1, W[j] > 0")
    program.bind(W=np.array([1, 2, 0, 3]))
    assert program.query("P(i)?") == [("Ann",), ("Bob",), (3,)]
    assert program.query("R(i, _)?") == [("Bob",), (3,)]
    assert list(program.relation("P")) == [("Ann",), ("Bob",), (3,)]


def test_a_bare_name_is_a_question_whatever_its_case() -> None:
    p = tl.Program("parent(Alice, Bob)\nY = [1, 2]")
    assert p.query("parent?") == p.query("parent") == [("Alice", "Bob")]
    with pytest.raises(tl.InputError, match="no relation or tensor 'y'") as refused:
        p.query("y?")
    assert refused.value.diagnostic.suggestions == ("did you mean 'Y'?",)


def test_files_that_are_not_there_have_hints(tmp_path: Path) -> None:
    (tmp_path / "family.tl").write_text("Parent(Alice, Bob)")
    (tmp_path / "parents.csv").write_text("Alice,Bob\n")
    for file, read in (("other.tl", tl.load), ("no.csv", lambda path: tl.Program().add("Parent", path))):
        with pytest.raises(tl.FormatError) as refused:
            read(str(tmp_path / file))
        beside = "family.tl" if file == "other.tl" else "parents.csv"
        assert refused.value.diagnostic.suggestions == (f"known: {beside!r}",)
