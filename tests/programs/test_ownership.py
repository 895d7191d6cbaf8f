"""What a program returns is the caller's, what it was given stays the caller's, and what it cannot take is refused plainly."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse

import tensorlogic as tl

RULES = """
Y[i] = W[i,j] X[j]
Z[i,j] = W[i,j]
A = [1, 2]
B(i) <- C(i)
C(1); C(2)
"""


@pytest.fixture
def given() -> dict[str, Any]:
    return {"W": np.arange(4.0).reshape(2, 2), "X": np.array([3.0, 4.0])}


@pytest.mark.parametrize("bound", [False, True])
def test_results_may_be_written_to(given: dict[str, Any], bound: bool) -> None:
    p = tl.Program(RULES)
    if bound:
        p.bind(given)
    ask = p.run if bound else lambda: p.run(given)
    wanted = {name: np.array(array) for name, array in ask().items()}
    results = ask()
    for name in (*wanted, "W", "X"):
        assert not any(np.shares_memory(results[name], array) for array in given.values()), name
        results[name][...] = True if results[name].dtype == bool else 99
    for name, array in ask().items():
        np.testing.assert_array_equal(array, wanted[name], name)
    assert given["W"].tolist() == [[0.0, 1.0], [2.0, 3.0]]


def test_what_was_written_to_is_not_read_by_later_results(given: dict[str, Any]) -> None:
    results = tl.Program("Y[i] = W[i,j] X[j]\nV[i] = Y[i] + Y[i]").run(given)
    results["Y"][:] = 0
    assert results["V"].tolist() == [8.0, 36.0]


def test_a_bound_tensor_is_a_copy_unless_nobody_can_write_to_it(given: dict[str, Any]) -> None:
    p = tl.Program(RULES).bind(given)
    assert p.run()["Y"].tolist() == [4.0, 18.0]
    given["X"][:] = 0
    assert p.run()["Y"].tolist() == [4.0, 18.0]
    p.bind(W=np.eye(2))  # Y is computed again, of the X that was bound
    assert p.run()["Y"].tolist() == [3.0, 4.0]
    fixed = np.eye(2)
    fixed.flags.writeable = False
    assert p.bind(W=fixed).bound["W"] is fixed
    view = np.broadcast_to(given["X"], (2, 2))  # cannot be written to, but what it shows can
    assert not np.shares_memory(p.bind(W=view).bound["W"], given["X"])


def test_answers_may_be_written_to(given: dict[str, Any]) -> None:
    p = tl.Program(RULES).bind(given)
    answers = p.query("Y[i]?")
    answers.array()[:] = 5
    answers.rows().clear()
    answers.columns()["value"].clear()
    assert answers == p.query("Y[i]?") == [(0, 4.0), (1, 18.0)]
    assert answers.values is not None and not answers.values.flags.writeable
    assert p.query("Y[1]?").value == 18.0


def test_a_relation_keeps_its_names_and_places() -> None:
    p = tl.Program("P(x,y) <- E(x,y)")
    p.add("E", [("a", "b")])
    relation = p.relation("P")
    p.add("E", [("c", "d")])
    assert (relation.names(0), relation.names(1), relation.shape) == (["a"], ["b"], (1, 1))
    assert ("c", "d") not in relation and ("a", "b") in relation and ("c", "d") in p.relation("P")


def test_bits_know_no_names_that_came_later() -> None:
    p = tl.Program("P(x,y) <- E(x,y)\nP(x,z) <- P(x,y), E(y,z)")
    pairs = np.random.default_rng(0).integers(0, 300, (3000, 2)).tolist()
    p.add("E", [(f"n{a}", f"n{b}") for a, b in pairs])
    relation = p.relation("P")
    p.add("E", [("later", "n1")])
    assert ("later", "later") not in relation and relation.dense().shape == relation.shape


@pytest.mark.parametrize("form", ["csr_array", "csc_array", "coo_array"])
def test_a_sparse_tensor_is_no_view_of_scipys(form: str) -> None:
    given = getattr(scipy.sparse, form)(np.eye(4, dtype=bool))
    tensor = tl.SparseTensor(given)
    for name in ("indices", "indptr", "data", "row", "col"):
        if hasattr(given, name):
            getattr(given, name)[:] = 0
    np.testing.assert_array_equal(np.asarray(tensor), np.eye(4, dtype=bool))


WRONG: list[Any] = [None, object(), [[1], [1, 2]], np.ones(2, complex), np.zeros((0, 3)), {1, 2}, -1, b"ab", len]


@pytest.mark.parametrize("value", WRONG, ids=lambda v: type(v).__name__)
def test_wrong_arguments_are_refused(value: Any, tmp_path: Path) -> None:
    """Nothing but our errors comes out, whatever is given where."""
    p = tl.Program("S(1,2); R(a,b) <- S(a,b); Y[i] = W[i,j] X[j]")
    relation = tl.Program("S(1,2)").relation("S")
    eye = tl.SparseTensor(np.eye(3, dtype=bool))
    something = "1" if value is None else value  # where None is a choice
    calls = [
        lambda: tl.Program(value), lambda: p.add_rule(value), lambda: p.add(value, [(1, 2)]), lambda: p.add("S", value), lambda: p.add("S", {"a": value}),
        lambda: p.retract(value, [(1, 2)]), lambda: p.retract("S", value), lambda: p.bind(something), lambda: p.run(something),
        lambda: p.run(W=value, X=[1.0])["Y"], lambda: p.run()[value], lambda: p.query(value), lambda: p.relation(value), lambda: p.names(value),
        lambda: p.names("S", something), lambda: p.why(value), lambda: p.why_not(value), lambda: p.attach(value, len), lambda: p.graph(value),
        lambda: p.plan(value), lambda: p.graph(inputs=something), lambda: p.save(value), lambda: tl.load(value), lambda: relation.shown(value),
        lambda: tl.SparseTensor.of_codes(value, (3, 3)), lambda: tl.SparseTensor.of_codes(np.array([1]), value), lambda: tl.SparseTensor.of_columns(value, (3, 3)),
        lambda: tl.SparseTensor.of_rows(value, [1], (1, 3)), lambda: eye.transpose(value), lambda: eye | value,
        lambda: tl.ExecutionContext(deadline="soon" if isinstance(something, int | str) else value),
        lambda: tl.ExecutionContext(labels=something), lambda: tl.ExecutionContext(clock=None if value is len else value),
    ]  # fmt: skip
    refused = 0
    for call in calls:
        try:
            call()
        except tl.TensorLogicError:
            refused += 1
    assert refused > len(calls) // 2
    assert (value, value) not in relation and value not in p.run()
    assert (value, value) not in eye


def test_a_saved_program_is_whole_or_refused(tmp_path: Path) -> None:
    p = tl.Program("Old(x) <- Age(x, n), n > 30")
    p.add("Age", [("Ann", 31), ("Bob", 7)])
    p.save(tmp_path / "p")
    assert list(tl.load(tmp_path / "p").relation("Old")) == [("Ann",)]
    text = (tmp_path / "p" / "program.tl").read_text(encoding="utf-8")
    (tmp_path / "p" / "program.tl").write_text(text.replace("30", "3"))
    with pytest.raises(tl.FormatError, match=r"program\.tl is not the file that was saved with it"):
        tl.load(tmp_path / "p")
    (tmp_path / "p" / "program.tl").write_text(text)
    manifest = json.loads((tmp_path / "p" / "program.json").read_text(encoding="utf-8"))
    for key, value in (("order", [["Age", "n", ["x"]]]), ("facts", [{**manifest["facts"][0], "name": 5}]), ("order", [["Age", -1, ["x"]]])):  # fmt: skip
        (tmp_path / "p" / "program.json").write_text(json.dumps({**manifest, key: value}))
        with pytest.raises(tl.FormatError, match="cannot be read"):
            tl.load(tmp_path / "p")


def test_a_save_that_fails_leaves_no_program(tmp_path: Path) -> None:
    p = tl.Program("P(x) <- Q(x); Q(1)")
    p.save(tmp_path / "p")
    (tmp_path / "p" / "program.safetensors").unlink()
    (tmp_path / "p" / "program.safetensors").mkdir()  # nothing can be written there
    with pytest.raises(tl.FormatError, match="cannot write"):
        p.save(tmp_path / "p")
    with pytest.raises(tl.FormatError, match="there is no program"):
        tl.load(tmp_path / "p")
