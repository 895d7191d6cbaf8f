"""Sets of codes and their joins against Python's sets, by kernels and by NumPy, on one thread and on several."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tensorlogic.backends import packed, sparse_rows, tuples
from tensorlogic.backends.native import support

HUGE = (1 << 62) + 12345


@pytest.fixture(params=["native", "numpy"])
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways that codes are computed with: by kernels, and by NumPy where numba is absent."""
    if request.param == "native":
        assert support.usable()
        packed.load()
        monkeypatch.setattr(tuples, "SMALL", 1)
    else:
        for module in (sparse_rows, tuples, packed):
            monkeypatch.setattr(module, "_native", lambda work: None)
    return str(request.param)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module, name in ((tuples, "SPLIT"), (sparse_rows, "SPLIT_PAIRS")):
        monkeypatch.setattr(module, name, 0)
        monkeypatch.setattr(module, "workers", lambda: request.param)
    return int(request.param)


def codes(values: Any) -> Any:
    return np.array(values, np.int64)


def is_set(x: Any) -> Any:
    assert x.dtype == np.int64
    assert (np.diff(x) > 0).all()
    return x


LISTS = {
    "none": codes([]),
    "one": codes([7]),
    "same": codes([5] * 100),
    "near the end": codes([HUGE, HUGE - 1, 0, HUGE, 3] * 20),
    "sorted": np.arange(1000),
    "sorted twice": np.repeat(np.arange(500), 2),
    "reversed": np.arange(1000)[::-1],
    "close": np.random.default_rng(0).integers(0, 3000, 5000),
    "apart": np.random.default_rng(1).integers(0, 1 << 62, 5000),
    "halves": np.concatenate([np.random.default_rng(2).integers(0, 99, 3000), HUGE - np.random.default_rng(2).integers(0, 99, 3000)]),
    "large": np.random.default_rng(3).integers(0, 1 << 40, 100_000),
    "large and close": np.random.default_rng(4).integers(1 << 50, (1 << 50) + 300_000, 100_000),
}  # fmt: skip


@pytest.mark.parametrize("name", LISTS)
def test_unique(name: str, tier: str, threads: int) -> None:
    x = LISTS[name]
    before = x.copy()
    np.testing.assert_array_equal(is_set(tuples.unique(x)), np.unique(x))
    np.testing.assert_array_equal(x, before)
    narrow = (x % 1000).astype(np.int32)
    np.testing.assert_array_equal(is_set(tuples.unique(narrow)), np.unique(narrow))


@pytest.mark.parametrize("first", LISTS)
@pytest.mark.parametrize("second", LISTS)
def test_sets(first: str, second: str, tier: str, threads: int) -> None:
    a, b = np.unique(LISTS[first]), np.unique(LISTS[second])
    np.testing.assert_array_equal(is_set(tuples.merge(a, b)), np.union1d(a, b))
    np.testing.assert_array_equal(is_set(tuples.minus(a, b)), np.setdiff1d(a, b))
    np.testing.assert_array_equal(is_set(tuples.common(a, b)), np.intersect1d(a, b))
    np.testing.assert_array_equal(tuples.member(LISTS[first], b), np.isin(LISTS[first], b))
    np.testing.assert_array_equal(tuples.find(LISTS[first], b), np.searchsorted(b, LISTS[first]))


@pytest.mark.parametrize("sizes", [(0, 0), (0, 5), (5, 0), (1, 1), (300, 400), (600, 700)])
@pytest.mark.parametrize("keys", [1, 7, 50, 1 << 61])
def test_joins(sizes: tuple[int, int], keys: int, tier: str, threads: int) -> None:
    rng = np.random.default_rng(0)
    named = np.unique(rng.integers(0, keys, 40))
    left, right = (rng.integers(0, 30, n) for n in sizes)
    left_keys, right_keys = (rng.choice(named, n) for n in sizes)
    pairs = {k: (set(left[left_keys == k].tolist()), set(right[right_keys == k].tolist())) for k in named.tolist()}
    expected = sorted({a * 31 + b for xs, ys in pairs.values() for a in xs for b in ys})
    np.testing.assert_array_equal(is_set(tuples.join_codes(left * 31, left_keys, right, right_keys)), expected)
    turned = sorted({a + b * 30 for xs, ys in pairs.values() for a in xs for b in ys})
    np.testing.assert_array_equal(is_set(tuples.join_codes(left, left_keys, right * 30, right_keys)), turned)
    right_keys = np.sort(right_keys)
    found = list(tuples.match(left_keys, right_keys, 1000))
    every = [(i, j) for a, b in found for i, j in zip(a.tolist(), b.tolist(), strict=True)]
    i, j = np.nonzero(left_keys[:, None] == right_keys[None])
    assert every == list(zip(i.tolist(), j.tolist(), strict=True))
    assert all(len(a) for a, _ in found)


def table(rng: Any, arity: int, size: int, count: int) -> list[Any]:
    rows = np.unique(rng.integers(0, size, (count, arity)), axis=0)
    return [np.ascontiguousarray(c) for c in rows.T.astype(np.int32 if count % 2 else np.int64)]


def brute(atoms: Any, variables: int) -> set[tuple[int, ...]]:
    """Every result of a join, by trying each tuple of an atom after the other."""
    found: set[tuple[int, ...]] = {(-1,) * variables}
    for columns, own in atoms:
        rows = set(zip(*(c.tolist() for c in columns), strict=True))
        found = {
            tuple(row[own.index(v)] if v in own else known[v] for v in range(variables))
            for known in found
            for row in rows
            if all(known[v] in (-1, x) for v, x in zip(own, row, strict=True))
        }
    return found


SHAPES = {
    "triangle": [(0, 1), (1, 2), (0, 2)],
    "path": [(0, 1), (1, 2)],
    "star": [(0, 1), (0, 2), (0, 3)],
    "square": [(0, 1), (1, 2), (2, 3), (0, 3)],
    "apart": [(0,), (1,)],
    "single": [(0, 1, 2)],
    "wide": [(0, 1, 2), (1, 3), (0, 2, 3)],
    "unary": [(0,), (0, 1), (1,)],
    "clique": [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)],
    "later": [(1, 2), (0, 2)],
    "twice": [(0, 1), (0, 1)],
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("count", [0, 1, 9, 25, 100])
def test_multiway(name: str, count: int, tier: str, threads: int) -> None:
    rng = np.random.default_rng(count)
    variables = 1 + max(itertools.chain(*SHAPES[name]))
    size = 6
    atoms = [(table(rng, len(own), size, count if k else max(count, 1)), own) for k, own in enumerate(SHAPES[name])]
    if count == 100 and name in ("star", "apart"):
        atoms = [([c[:20] for c in columns], own) for columns, own in atoms]
    whole = brute(atoms, variables)
    for outputs in range(variables + 1):
        expected = sorted({known[:outputs] for known in whole})
        strides = [size**k for k in reversed(range(outputs))]
        found = is_set(tuples.multiway(atoms, outputs, strides))
        np.testing.assert_array_equal(found, [sum(map(int.__mul__, row, strides)) for row in expected])
        np.testing.assert_array_equal(
            is_set(tuples.multiway(atoms, outputs, strides[::-1])),
            sorted({sum(map(int.__mul__, row, strides[::-1])) for row in expected}),
        )


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("size", [150, 20_000])
def test_multiway_of_sparse_tables(name: str, size: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables where most values have no match; so many places that columns are not indexed, too."""
    packed.load()
    rng = np.random.default_rng(1)
    values = np.sort(rng.choice(size, 60, replace=False))
    atoms = [([values[c] for c in table(rng, len(own), 60, 150)], own) for own in SHAPES[name]]
    variables = 1 + max(itertools.chain(*SHAPES[name]))
    for outputs in range(variables + 1):
        strides = [1 if name == "star" else size**k for k in reversed(range(outputs))]
        found = tuples.multiway(atoms, outputs, strides)
        with monkeypatch.context() as patch:
            patch.setattr(tuples, "_native", lambda work: None)
            np.testing.assert_array_equal(found, tuples.multiway(atoms, outputs, strides))


def test_multiway_with_huge_values(tier: str) -> None:
    x = np.array([0, 5, 1 << 40])
    y = np.array([1 << 41, 3, 2])
    atoms = [((x, y), (0, 1)), ((np.array([3, 1 << 41]),), (1,))]
    np.testing.assert_array_equal(tuples.multiway(atoms, 1, (1,)), [0, 5])
    np.testing.assert_array_equal(tuples.multiway(atoms, 2, (1, 0)), [0, 5])


@pytest.mark.parametrize("shape", [(), (0,), (1,), (63,), (64,), (65,), (3, 0), (0, 3), (3, 70), (2, 3, 130)])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_words_and_columns(shape: tuple[int, ...], density: float, tier: str, threads: int) -> None:
    dense = np.random.default_rng(0).random(shape) < density
    own = np.flatnonzero(dense)
    words = packed.pack(dense)
    np.testing.assert_array_equal(tuples.to_words(own, shape), words)
    np.testing.assert_array_equal(is_set(tuples.from_words(words, shape)), own)
    columns = tuples.decode(own, shape)
    np.testing.assert_array_equal(columns, np.nonzero(dense) if shape else np.empty((0,)))
    if shape:
        np.testing.assert_array_equal(tuples.encode(columns, shape), own)


def test_columns_of_huge_sizes() -> None:
    shape = (1 << 20, 1 << 42)
    columns = tuples.decode(codes([0, (1 << 62) - 1]), shape)
    assert [c.dtype for c in columns] == [np.int32, np.int64]
    assert [c.tolist() for c in columns] == [[0, (1 << 20) - 1], [0, (1 << 42) - 1]]


def test_by_group() -> None:
    keys = np.array([3, 1, 3, 3])
    assert tuples.count_by(keys, 5).tolist() == [0, 1, 0, 3, 0]
    assert tuples.count_by(keys[:0], 0).tolist() == []


@given(st.lists(st.integers(0, HUGE)), st.lists(st.integers(0, 200)))
def test_sets_of_anything(first: list[int], second: list[int]) -> None:
    packed.load()
    a, b = tuples.unique(codes(first)), tuples.unique(codes(second))
    assert tuples.merge(a, b).tolist() == sorted({*first, *second})
    assert tuples.minus(a, b).tolist() == sorted(set(first) - set(second))
    assert tuples.common(a, b).tolist() == sorted(set(first) & set(second))
