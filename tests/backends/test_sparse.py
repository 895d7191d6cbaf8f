"""SparseTensor against NumPy's truth values: how it is made, its forms, sets, and what it refuses."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import numpy as np
import pytest
from scipy import sparse

import tensorlogic as tl
from tensorlogic.backends import packed

SHAPES = [(), (0,), (1,), (70,), (3, 0), (0, 3), (1, 1), (5, 70), (3, 4, 5), (2, 0, 4), (2, 3, 2, 65)]


def flags(shape: Any, density: float = 0.3, seed: int = 0) -> Any:
    return np.random.default_rng(seed).random(shape) < density


def check(t: tl.SparseTensor, expected: Any) -> None:
    """Every form of a tensor, and that none of them can be written to."""
    expected = np.asarray(expected)
    assert isinstance(t, tl.SparseTensor)
    assert (t.shape, t.ndim, t.dtype, t.size) == (expected.shape, expected.ndim, np.bool_, expected.size)
    assert t.count == expected.sum()
    np.testing.assert_array_equal(np.asarray(t), expected)
    np.testing.assert_array_equal(t.codes, np.flatnonzero(expected))
    assert t.codes.dtype == np.int64
    assert len(t.columns) == expected.ndim
    for column, own in zip(t.columns, np.nonzero(expected) if expected.ndim else (), strict=True):
        assert column.dtype == np.int32
        np.testing.assert_array_equal(column, own)
    if expected.ndim == 2:
        matrix = sparse.csr_array(expected)
        np.testing.assert_array_equal(t.rows[0], matrix.indptr)
        np.testing.assert_array_equal(t.rows[1], matrix.indices)
    assert not any(x.flags.writeable for x in (t.codes, *t.columns))
    np.testing.assert_array_equal(t.bits().words, packed.pack(expected))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_every_way_to_make_one(shape: Any, density: float) -> None:
    dense = flags(shape, density)
    check(tl.SparseTensor(dense), dense)
    check(tl.SparseTensor(dense.astype(np.float32) * -2), dense)
    check(tl.SparseTensor(tl.BitTensor(dense)), dense)
    own = np.flatnonzero(dense)
    check(tl.SparseTensor.of_codes(own, shape), dense)
    check(tl.SparseTensor.of_codes(np.concatenate((own[::-1], own)), shape, ordered=False), dense)
    if shape:
        columns = np.nonzero(dense)
        check(tl.SparseTensor.of_columns(columns, shape, ordered=True), dense)
        check(tl.SparseTensor.of_columns([np.concatenate((c[::-1], c)) for c in columns], shape), dense)
        check(tl.SparseTensor.of_columns([c.tolist() for c in columns], shape), dense)
    if len(shape) == 2:
        matrix = sparse.csr_array(dense)
        check(tl.SparseTensor.of_rows(matrix.indptr, matrix.indices, shape), dense)
        for kind in (sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix, sparse.lil_array):
            check(tl.SparseTensor(kind(dense)), dense)
    made = tl.SparseTensor(dense)
    assert tl.SparseTensor(made) is made
    for twin in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        check(twin, dense)


def test_scipy_entries_of_one_place_add_up() -> None:
    entries = ([1.0, -1.0, 2.0, 0.0], ([0, 0, 1, 2], [1, 1, 2, 0]))
    check(tl.SparseTensor(sparse.coo_array(entries, shape=(3, 3))), [[0, 0, 0], [0, 0, 1], [0, 0, 0]])
    check(tl.SparseTensor(sparse.coo_array([0, 3, 0])), [0, 1, 0])


@pytest.mark.parametrize("shape", SHAPES)
def test_sets(shape: Any) -> None:
    a, b = flags(shape), flags(shape, seed=1)
    x, y = tl.SparseTensor(a), tl.SparseTensor(b)
    check(x | y, a | b)
    check(x & y, a & b)
    check(x - y, a & ~b)
    check(x | b, a | b)
    check(b | x, a | b)
    check(b - x, b & ~a)
    assert x.same(a) and x.same(tl.SparseTensor(a))
    assert x.same(b) == np.array_equal(a, b)
    assert not x.same(np.zeros((*shape, 2), np.bool_))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (-1, 0, 1)])
def test_transpose(order: tuple[int, ...]) -> None:
    dense = flags((3, 70, 5))
    t = tl.SparseTensor(dense)
    check(t.transpose(*order), dense.transpose(order))
    assert t.transpose(*order) is t.transpose(*order)
    check(t.transpose(*np.array(order)), dense.transpose(order))
    np.testing.assert_array_equal(tl.BitTensor(dense).transpose(*np.array(order)), dense.transpose(order))
    check(t.T, dense.T)
    matrix = flags((4, 9))
    check(tl.SparseTensor(matrix).T, matrix.T)


def test_membership() -> None:
    dense = flags((4, 5))
    t = tl.SparseTensor(dense)
    assert all(((i, j) in t) == dense[i, j] for i in range(4) for j in range(5))
    assert (4, 0) not in t
    assert (-1, 0) not in t
    assert 1 in tl.SparseTensor([0, 1])
    assert () in tl.SparseTensor(True)
    with pytest.raises(tl.ShapeError, match="has 1 indices, but the tensor has 2 axes"):
        _ = 3 in t


def test_a_tensor_without_axes() -> None:
    assert bool(tl.SparseTensor(True)) and not tl.SparseTensor(False)
    assert tl.SparseTensor(True).columns == ()
    with pytest.raises(ValueError, match="neither true nor false"):
        bool(tl.SparseTensor([1, 0]))
    with pytest.raises(TypeError, match="no length"):
        len(tl.SparseTensor(True))
    assert len(tl.SparseTensor([1, 0, 1])) == 3


def test_large_domains_cost_what_is_true() -> None:
    n = 1 << 31
    t = tl.SparseTensor.of_columns([[5, n - 1, 5], [n - 1, 0, n - 1]], (n, n - 1 + 1))
    assert t.count == 2
    assert [c.dtype for c in t.columns] == [np.int64, np.int64]
    assert (n - 1, 0) in t and (0, 0) not in t
    assert t.nbytes < 100
    check_codes = t.codes
    assert check_codes.tolist() == [5 * n + n - 1, (n - 1) * n]
    with pytest.raises(tl.OutOfMemoryError, match="as a dense array") as caught:
        np.asarray(t)
    assert caught.value.diagnostic.code == "E444"
    with pytest.raises(tl.OutOfMemoryError, match="as packed bits"):
        t.bits()


def test_more_places_than_can_be_numbered() -> None:
    n = 1 << 32
    t = tl.SparseTensor.of_columns([[3, 1, 3], [2, 0, 2]], (n, n))
    assert t.count == 2
    assert [c.tolist() for c in t.columns] == [[1, 3], [0, 2]]
    assert (3, 2) in t and (3, 1) not in t
    assert t.T.same(tl.SparseTensor.of_columns([[2, 0], [3, 1]], (n, n)))
    assert pickle.loads(pickle.dumps(t)).same(t)
    with pytest.raises(tl.ShapeError, match="more than can be numbered in 63 bits"):
        _ = t.codes


@pytest.mark.parametrize(
    ("make", "code", "message"),
    [
        (lambda: tl.SparseTensor(["a"]), "E412", "cannot be made of <U1"),
        (lambda: tl.SparseTensor.of_columns([[1]], (3, 3)), "E440", "cannot be made of 1 columns"),
        (lambda: tl.SparseTensor.of_columns([[1], [1, 2]], (3, 3)), "E440", r"2 columns of \[1, 2\] elements"),
        (lambda: tl.SparseTensor.of_columns([], ()), "E440", "has no columns"),
        (lambda: tl.SparseTensor.of_columns([[3]], (3,)), "E441", "column 0 holds 3, but its axis has 3 places"),
        (lambda: tl.SparseTensor.of_columns([[0], [-1]], (3, 3)), "E441", "column 1 holds -1"),
        (lambda: tl.SparseTensor.of_codes(np.array([9]), (3, 3)), "E441", "beyond the 9 places"),
        (lambda: tl.SparseTensor.of_columns([[1.5]], (3,)), "E442", "column 0 holds float64"),
        (lambda: tl.SparseTensor.of_columns([[[1]]], (3,)), "E442", r"of shape \(1, 1\)"),
        (lambda: tl.SparseTensor([1]) | tl.SparseTensor([1, 0]), "E443", r"shapes \(1,\) and \(2,\) differ"),
        (lambda: tl.SparseTensor.of_rows([0, 1], [0], (2, 2)), "E445", "2 offsets of 1 columns"),
        (lambda: tl.SparseTensor([1]).rows, "E446", "rows are those of a matrix"),
        (lambda: tl.SparseTensor([[1]]).transpose(0, 0), "E422", "does not name each of 2 axes once"),
        (lambda: tl.SparseTensor.of_codes(np.array([1]), (1 << 32, 1 << 32)), "E448", "more than can be numbered"),
    ],
)
def test_refusals(make: Any, code: str, message: str) -> None:
    with pytest.raises(tl.TensorLogicError, match=message) as caught:
        make()
    assert caught.value.diagnostic.code == code


def test_repr() -> None:
    assert repr(tl.SparseTensor([[0, 1], [1, 1]])) == "SparseTensor(shape=(2, 2), 3 set, 24 B)"
