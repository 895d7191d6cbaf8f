"""Einsum specs: every form that NumPy reads, and for every other one an error with a caret."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tensorlogic import GraphBuilder, SpecError
from tensorlogic.ir import spec


@st.composite
def equations(draw: st.DrawFn) -> tuple[str, list[tuple[int, ...]]]:
    """A spec and shapes that fit it."""
    letters = "abC"
    size = {c: draw(st.integers(0, 4)) for c in letters}
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    parts, shapes = [], []
    for _ in range(draw(st.integers(1, 3))):
        labels = draw(st.lists(st.sampled_from(letters), max_size=3))
        shape = [size[c] for c in labels]
        for n, c in enumerate(labels):  # a literal 1 broadcasts, but not within a diagonal
            if labels.count(c) == 1 and draw(st.integers(0, 5)) == 0:
                shape[n] = 1
        text = labels
        if draw(st.booleans()):
            at = draw(st.integers(0, len(labels)))
            own = [1 if draw(st.integers(0, 3)) == 0 else d for d in batch[draw(st.integers(0, len(batch))) :]]
            text = [*labels[:at], "...", *labels[at:]]
            shape[at:at] = own
        parts.append("".join(text))
        shapes.append(tuple(shape))
    equation = draw(st.sampled_from([",", " , "])).join(parts)
    if draw(st.booleans()):
        used = sorted(set(equation) & set(letters))
        kept = draw(st.permutations(used))[: draw(st.integers(0, len(used)))]
        dots = ["..."] if "..." in equation else []
        at = draw(st.integers(0, len(kept)))
        equation += "->" + "".join([*kept[:at], *dots, *kept[at:]])
    return equation, shapes


@settings(deadline=None, max_examples=300)
@given(equations())
def test_shapes_are_numpys(case: tuple[str, list[tuple[int, ...]]]):
    equation, shapes = case
    arrays = [np.ones(s) for s in shapes]
    expected = np.einsum(equation, *arrays).shape
    assert GraphBuilder().einsum(equation, *arrays).shape == expected


@settings(deadline=None, max_examples=200)
@given(equations())
def test_a_spec_prints_as_a_spec(case: tuple[str, list[tuple[int, ...]]]):
    form = spec.parse(case[0])
    assert spec.parse(str(form)) == form
    full = spec.expand(form, tuple(map(len, case[1])))
    assert all(len(labels) == len(shape) for labels, shape in zip(full.inputs, case[1], strict=True))
    assert set(full.contracted).isdisjoint(full.output)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("ij,jk", "ik"),
        ("ba", "ab"),
        ("ii", ""),
        ("aB", "Ba"),  # as NumPy: upper case first
        ("...ij,...jk", "...ik"),
        ("i...", "...i"),
        (" i j , j k ", "ik"),
        ("", ""),
        (",", ""),
        ("ij->ji", "ji"),
        ("i->", ""),
        ("αβ,βγ", "αγ"),
        ("日本,本->日", "日"),
        ("ij , jk\t->\n ik", "ik"),
    ],
)
def test_output(text: str, output: str):
    assert "".join(spec.parse(text).output) == output


@pytest.mark.parametrize("text", ["ij,jk->ik", "ba", "aB", "...a,a...", "a...b->b...a", "abc,cd,db", "i->..."])
def test_output_is_numpys(text: str):
    shapes = [tuple(2 + ord(c) % 7 for c in part if c.isalpha()) for part in text.split("->")[0].split(",")]
    arrays = [np.ones(s) for s in shapes]
    try:
        expected = np.einsum(text, *arrays).shape
    except ValueError:
        with pytest.raises(SpecError):
            GraphBuilder().einsum(text, *arrays)
    else:
        assert GraphBuilder().einsum(text, *arrays).shape == expected


@pytest.mark.parametrize("text", ["i->...i", "i->i...", "ij,jk->...ik"])
def test_the_result_may_have_an_empty_ellipsis(text: str):
    arrays = [np.ones((2,) * len(part)) for part in text.split("->")[0].split(",")]
    expected = np.einsum(text, *arrays)
    assert GraphBuilder().einsum(text, *arrays).shape == expected.shape


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        ("ij,j1->i", 4, "'1' cannot be an index"),
        ("ij;jk", 2, "';' cannot be an index"),
        ("ij->ik", 5, "the result has index 'k', which no operand has"),
        ("ij->ii", 5, "the result has index 'i' twice"),
        ("i->j->k", 4, "at most one '->'"),
        ("...i...", 4, "at most one '...'"),
        ("...i,i......->...i", 9, "at most one '...'"),
        ("...i->......i", 9, "at most one '...'"),
        ("i..j", 1, "'.' cannot be an index"),
        ("i....j", 4, "'.' cannot be an index"),
        ("ij-", 2, "'-' cannot be an index"),
        ("ij>ji", 2, "'>' cannot be an index"),
        ("ij - > ji", 3, "'-' cannot be an index"),
        ("i,j->i,j", 6, "',' cannot be an index"),
        ("a_b", 1, "'_' cannot be an index"),
        ("a…", 1, "'…' cannot be an index"),
        ("a\0b", 1, "cannot be an index"),
    ],
)
def test_malformed_specs_have_a_caret(text: str, at: int, reason: str):
    with pytest.raises(SpecError) as caught:
        spec.parse(text)
    found = caught.value.diagnostic
    assert reason in found.message
    assert found.code == "E101"
    line, caret = found.context
    assert (line, caret) == (text, " " * at + "^")
    assert found.suggestions


@pytest.mark.parametrize(
    ("text", "ranks", "reason"),
    [
        ("ij,jk", (2,), "is for 2 operand(s), got 1"),
        ("ij", (2, 2), "is for 1 operand(s), got 2"),
        ("ij", (), "is for 1 operand(s), got 0"),
        ("ij", (3,), "operand 0 has 3 axes but 2 indices 'ij'"),
        ("i,jk", (1, 1), "operand 1 has 1 axes but 2 indices 'jk'"),
        ("...ij", (1,), "operand 0 has 1 axes but 2 indices"),
        ("...i->i", (3,), "stands for 2 axes that the result does not have"),
    ],
)
def test_ranks_that_do_not_fit(text: str, ranks: tuple[int, ...], reason: str):
    with pytest.raises(SpecError) as caught:
        spec.expand(spec.parse(text), ranks)
    assert reason in caught.value.diagnostic.message
    assert caught.value.diagnostic.suggestions


def test_an_ellipsis_aligns_at_the_right():
    full = spec.expand(spec.parse("...i,...i->...i"), (3, 2))
    assert full.inputs == (("…1", "…0", "i"), ("…0", "i"))
    assert full.output == ("…1", "…0", "i")


def test_integer_labels():
    assert spec.from_integers([[0, 1], [1, 2]], [0, 2]) == spec.parse("ab,bc->ac")
    assert spec.from_integers([[..., 0], [0]], [...]) == spec.parse("...a,a->...")
    assert spec.from_integers([[np.int64(0), 0]], []) == spec.parse("aa->")
    many = spec.from_integers([list(range(200))], list(range(200)[::-1]))
    assert len(set(many.inputs[0])) == 200
    assert many.output == many.inputs[0][::-1]


@pytest.mark.parametrize("labels", [[[30, 0]], [[0, 30]], [[51, 26, 25]], [[3, 2], [2, 40]]])
def test_integer_labels_without_a_result_are_in_order_of_number(labels: list[list[int]]):
    arrays = [np.ones([2 + n % 7 for n in own]) for own in labels]
    operands: list[Any] = [x for pair in zip(arrays, labels, strict=True) for x in pair]
    assert GraphBuilder().einsum(labels, *arrays).shape == np.einsum(*operands).shape


@pytest.mark.parametrize("labels", [[[-1]], [[1.5]], [[True]], [["a"]], [[None]], [[10**7]], [[10**30]]])
def test_what_is_not_an_integer_label(labels: Any):
    with pytest.raises(SpecError):
        spec.from_integers(labels, None)
    assert spec.symbol(60) == "È"  # and the next user is not affected


@pytest.mark.parametrize("equation", [b"ij", 5, None, [0, 1], [[0, 1], 1]])
def test_what_is_not_a_spec(equation: Any):
    with pytest.raises(SpecError):
        GraphBuilder().einsum(equation, np.ones((2, 3)))


def test_an_einsum_of_nothing():
    for text in ("", "->"):
        with pytest.raises(SpecError, match="got 0"):
            GraphBuilder().einsum(text)


def test_at_most_a_thousand_labels():
    assert len(spec.from_integers([list(range(1000))], []).inputs[0]) == 1000
    with pytest.raises(SpecError, match="1000 labels"):
        spec.from_integers([list(range(1001))], [])


def test_symbols_are_letters_and_differ():
    symbols = [spec.symbol(n) for n in range(3000)]
    assert len(set(symbols)) == 3000
    assert all(s.isalpha() and len(s) == 1 for s in symbols)


def test_symbols_from_several_threads():
    failures: list[BaseException] = []
    start = threading.Barrier(8)

    def ask(base: int) -> None:
        start.wait()
        try:
            for n in range(base, base + 4000):
                spec.symbol(n)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(5000 + 10 * n,)) for n in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures
    assert len({spec.symbol(n) for n in range(9000)}) == 9000
