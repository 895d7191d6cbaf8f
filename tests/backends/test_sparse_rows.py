"""Sparse rows against dense matrices: joins, reachability, components and closures, natively and by SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tensorlogic.backends import packed, sparse_rows, tuples
from tensorlogic.backends.native import support
from tensorlogic.backends.sparse_rows import Rows

SHAPES = [
    (0, 0, 0),
    (3, 0, 2),
    (0, 4, 3),
    (1, 1, 1),
    (4, 5, 0),
    (7, 9, 11),
    (40, 64, 65),
    (30, 30, 1000),
    (5, 200, 9000),
]


@pytest.fixture(params=["native", "numpy"])
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways that rows are computed: by kernels, and by SciPy where numba is absent."""
    if request.param == "native":
        assert support.usable()
        packed.load()
    else:
        for module in (sparse_rows, tuples, packed):
            monkeypatch.setattr(module, "_native", lambda work: None)
    return str(request.param)


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sparse_rows, "SPLIT_PAIRS", 0)
    monkeypatch.setattr(sparse_rows, "workers", lambda: request.param)
    return int(request.param)


def flags(shape: tuple[int, int], density: float, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape) < density


def rows_of(matrix: Any) -> Rows:
    first, second = np.nonzero(matrix)
    return sparse_rows.rows_of(first, second, len(matrix))


def dense(rows: Rows, size: int) -> Any:
    """The matrix of rows, which are checked to be sorted and without duplicates."""
    indptr, indices = rows
    assert (indptr.dtype, indices.dtype) == (np.int64, np.int32)
    assert indptr[0] == 0 and indptr[-1] == len(indices)
    out = np.zeros((len(indptr) - 1, size), np.bool_)
    for i in range(len(out)):
        own = indices[indptr[i] : indptr[i + 1]]
        assert (np.diff(own) > 0).all()
        out[i, own] = True
    return out


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.02, 0.3, 1.0])
def test_join(shape: tuple[int, int, int], density: float, tier: str, threads: int) -> None:
    n, k, m = shape
    a, b = flags((n, k), density), flags((k, m), density, 1)
    expected = a.astype(int) @ b.astype(int) > 0
    np.testing.assert_array_equal(dense(sparse_rows.join_rows(rows_of(a), rows_of(b), m), m), expected)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (40, 300), (300, 40)])
@pytest.mark.parametrize("density", [0.0, 0.02, 0.5, 1.0])
def test_rows_of_codes(shape: tuple[int, int], density: float, tier: str) -> None:
    """Rows and columns read off codes, with rows that are empty at the beginning, in between and at the end."""
    expected = flags(shape, density)
    expected[: shape[0] // 4] = expected[shape[0] - shape[0] // 4 :] = False
    rows = sparse_rows.rows_of_codes(np.flatnonzero(expected), shape)
    np.testing.assert_array_equal(dense(rows, shape[1]), expected)
    for found, column in zip(sparse_rows.columns_of(rows), np.nonzero(expected), strict=True):
        np.testing.assert_array_equal(found, column)


def test_join_of_many_columns(tier: str, threads: int) -> None:
    """Rows by every method: few columns, some, and so many that a third bitmap is used, or that they are numbered anew."""
    rng = np.random.default_rng(0)
    for size in (1 << 12, 1 << 18, 1 << 20, (1 << 31) - 1):
        a = rows_of(flags((20, 50), 0.3))
        counts = rng.integers(0, 200, 50)
        columns = [np.unique(rng.integers(0, size, c)) for c in counts]
        columns[7] = np.array([0, size - 1])
        b = sparse_rows.rows_of(np.repeat(np.arange(50), list(map(len, columns))), np.concatenate(columns), 50)
        indptr, indices = sparse_rows.join_rows(a, b, size)
        for i in range(20):
            own = [columns[k] for k in a[1][a[0][i] : a[0][i + 1]]]
            expected = np.unique(np.concatenate(own)) if own else []
            np.testing.assert_array_equal(indices[indptr[i] : indptr[i + 1]], expected)


def test_join_in_many_chunks(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    packed.load()
    monkeypatch.setattr(sparse_rows, "ROOM", 10)
    a, b = flags((60, 50), 0.2), flags((50, 40), 0.2, 1)
    expected = a.astype(int) @ b.astype(int) > 0
    np.testing.assert_array_equal(dense(sparse_rows.join_rows(rows_of(a), rows_of(b), 40), 40), expected)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (1, 1), (6, 90)])
def test_transposed(shape: tuple[int, int], tier: str) -> None:
    a = flags(shape, 0.3)
    np.testing.assert_array_equal(dense(sparse_rows.transposed(rows_of(a), shape[1]), shape[0]), a.T)
    first, second = sparse_rows.columns_of(rows_of(a))
    np.testing.assert_array_equal(np.stack((first, second)), np.stack(np.nonzero(a)))


def closed(edges: Any) -> Any:
    paths = edges.copy()
    for k in range(len(edges)):
        paths |= paths[:, k : k + 1] & paths[k : k + 1]
    return paths


GRAPHS = {
    "nothing": np.zeros((0, 0), np.bool_),
    "one": np.zeros((1, 1), np.bool_),
    "loop": np.ones((1, 1), np.bool_),
    "chain": np.eye(150, k=1, dtype=np.bool_),
    "back": np.eye(150, k=-1, dtype=np.bool_),
    "ring": np.roll(np.eye(70, dtype=np.bool_), 1, axis=1),
    "rings": np.kron(np.eye(9, dtype=np.bool_), np.roll(np.eye(8, dtype=np.bool_), 1, axis=1)) | np.eye(72, k=8, dtype=np.bool_) & flags((72, 72), 0.2),
    "tree": np.array([[j in (2 * i + 1, 2 * i + 2) for j in range(63)] for i in range(63)]),
    "few": flags((200, 200), 0.006),
    "some": flags((130, 130), 0.02),
    "many": flags((90, 90), 0.4),
    "order": np.triu(flags((100, 100), 0.2), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", GRAPHS)
def test_closures(name: str, tier: str) -> None:
    edges = GRAPHS[name]
    n, rows, expected = len(edges), rows_of(GRAPHS[name]), closed(GRAPHS[name])
    np.testing.assert_array_equal(sparse_rows.closure_bits(rows), packed.pack(expected))
    made = sparse_rows.closure_rows(rows)
    assert made is not None
    np.testing.assert_array_equal(dense(made, n), expected)
    total = int(expected.sum())
    assert sparse_rows.closure_rows(rows, total) is not None
    assert total == 0 or sparse_rows.closure_rows(rows, total - 1) is None
    for sources in ([], [0], [n - 1, 0, n - 1], range(0, n, 7)):
        if n or not len(sources):
            reached = expected[list(sources)].any(axis=0) if len(sources) else np.zeros(n, np.bool_)
            np.testing.assert_array_equal(sparse_rows.reach(rows, list(sources)), reached)
            codes = np.flatnonzero(edges)
            np.testing.assert_array_equal(sparse_rows.reach_few(codes, list(sources), n, n), reached)
            each = sparse_rows.reach_each(rows, sorted(set(sources)), n * n)
            assert each is not None
            np.testing.assert_array_equal(dense(each, n), expected[sorted(set(sources))])
            total = len(each[1])
            assert total == 0 or sparse_rows.reach_each(rows, sorted(set(sources)), total - 1) is None
            whole = sparse_rows.replaced(rows, np.array(sorted(set(sources)), np.int64), each)
            mixed = edges.copy()
            mixed[sorted(set(sources))] = expected[sorted(set(sources))]
            np.testing.assert_array_equal(dense(whole, n), mixed)
            met = np.flatnonzero(reached | np.isin(np.arange(n), list(sources)))
            if tier == "native" and len(met):
                assert sparse_rows.reach_few(codes, list(sources), n, len(met)) is not None
                assert sparse_rows.reach_few(codes, list(sources), n, len(met) - 1) is None


@pytest.mark.parametrize("name", GRAPHS)
def test_closures_that_are_stopped_on_the_way(name: str, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "PAUSE", 10)
    rows, expected = rows_of(GRAPHS[name]), closed(GRAPHS[name])
    np.testing.assert_array_equal(sparse_rows.closure_bits(rows), packed.pack(expected))
    made = sparse_rows.closure_rows(rows)
    assert made is not None
    np.testing.assert_array_equal(dense(made, len(GRAPHS[name])), expected)


@pytest.mark.parametrize("name", GRAPHS)
def test_components(name: str, tier: str) -> None:
    edges = GRAPHS[name]
    count, labels = sparse_rows.components(rows_of(edges))
    paths = closed(edges)
    together = paths & paths.T | np.eye(len(edges), dtype=np.bool_)
    np.testing.assert_array_equal(labels[:, None] == labels[None], together)
    assert sorted(set(labels.tolist())) == list(range(count))
    first, second = np.nonzero(edges)
    assert (labels[first] >= labels[second]).all()


def test_a_deep_graph_needs_no_stack(tier: str) -> None:
    n = 20_000 if tier == "native" else 300
    rows = sparse_rows.rows_of(np.arange(n - 1), np.arange(1, n), n)
    assert sparse_rows.components(rows)[0] == n
    assert sparse_rows.reach(rows, [0]).sum() == n - 1


def test_read_only_rows_are_taken(tier: str) -> None:
    rows = rows_of(flags((30, 30), 0.1))
    for x in rows:
        x.flags.writeable = False
    sparse_rows.join_rows(rows, rows, 30)
    sparse_rows.closure_bits(rows)
    sparse_rows.closure_rows(rows)
    sparse_rows.transposed(rows, 30)
