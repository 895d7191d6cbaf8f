"""SparseTensor: a tensor of truth values that holds only its true places, sorted; for large domains with few facts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from ..diagnostics import bytes_text, value_text
from ..errors import DTypeError, OutOfMemoryError, ShapeError, expect
from ..ir.types import plain_array
from ..plan.memory import available_memory
from . import packed, sparse_rows, tuples
from .bits import BitTensor, TruthTensor
from .sparse_rows import Rows
from .tuples import Codes, Column

MOST_CODES = 1 << 63  # places that an int64 can number
FEW = 256  # one tuple in so many, up to which each is found by itself and no columns or rows are made of all


class SparseTensor(TruthTensor):
    """A tensor of truth values, held as the sorted list of its true places; it does not change.

    It is made of anything NumPy can read (what is not zero is true), of a scipy.sparse array or of bits, and turns back into a
    NumPy array wherever one is expected. Use it where the tensor is large and few of its places are true.

    >>> import numpy as np
    >>> parent = SparseTensor([[0, 1, 0], [0, 0, 1], [0, 0, 0]])
    >>> parent
    SparseTensor(shape=(3, 3), 2 set, 16 B)
    >>> [c.tolist() for c in parent.columns], (0, 1) in parent
    ([[0, 1], [1, 2]], True)
    >>> (parent | parent.transpose()).count
    4
    """

    __slots__ = ("__weakref__", "_codes", "_columns", "_count", "_rows", "_turned")
    layout = "sparse"  # which plans ask for
    _count: int
    _codes: Codes | None
    _columns: tuple[Column, ...] | None
    _rows: Rows | None
    _turned: dict[tuple[int, ...], SparseTensor]

    def __new__(cls, values: Any) -> SparseTensor:
        """Find the true places of values; a SparseTensor is taken as it is."""
        if isinstance(values, SparseTensor):
            return values
        if isinstance(values, BitTensor):
            codes = tuples.from_words(values.words, values.shape)
            return cls.of_codes(codes, values.shape)
        if hasattr(values, "tocoo"):
            return _from_scipy(values)
        array = plain_array(values)
        if array.dtype.kind not in "biuf":
            hint = "give truth values or numbers, such as np.asarray(x, dtype=bool)"
            raise DTypeError(f"a sparse tensor cannot be made of {array.dtype}", hint, code="E412")
        return cls.of_codes(np.flatnonzero(array), array.shape)

    @classmethod
    def of_codes(cls, codes: Codes, shape: Sequence[int], ordered: bool = True) -> SparseTensor:
        """Make a tensor of the numbers of its true places, counted in C order; sorted and unique where they are ``ordered``.

        The array becomes the tensor's own: do not write to it afterwards.

        >>> SparseTensor.of_codes(np.array([5, 1, 5]), (2, 3), ordered=False).columns
        (array([0, 1], dtype=int32), array([1, 2], dtype=int32))
        """
        shape = _shape(shape)
        codes = _whole("codes", codes)
        _refuse_huge(shape)
        if not ordered:
            codes = tuples.unique(codes)
        if len(codes) and not (codes[0] >= 0 and int(codes[-1]) < math.prod(shape)):
            message = f"codes from {codes[0]} to {codes[-1]} are beyond the {math.prod(shape)} places of shape {shape}"
            raise ShapeError(message, "give the shape that the codes were made with", code="E441")
        return _make(shape, len(codes), codes=_fixed(codes))

    @classmethod
    def of_columns(cls, columns: Sequence[Any], shape: Sequence[int], *, ordered: bool = False) -> SparseTensor:
        """Make a tensor of tuples, given column by column; sorted and unique where they are ``ordered``.

        Columns that are ordered become the tensor's own: do not write to them afterwards.

        >>> SparseTensor.of_columns([[2, 0, 2], [1, 1, 1]], (3, 2)).count
        2
        """
        shape = _shape(shape)
        expect(columns, Sequence, "columns are given as a list", "write [[0, 1], [1, 2]], a list for each axis")
        arrays = [_column(c, n, size) for n, (c, size) in enumerate(zip(columns, shape, strict=False))]
        if len(columns) != len(shape) or len({len(c) for c in arrays}) > 1:
            found = f"{len(columns)} columns of {sorted({len(c) for c in columns})} elements"
            hint = "give one column for each axis, all of one length"
            raise ShapeError(f"a tensor of shape {shape} cannot be made of {found}", hint, code="E440")
        if not arrays:
            raise ShapeError("a tensor without axes has no columns", "write SparseTensor(True) or False", code="E440")
        if not ordered:
            if math.prod(shape) < MOST_CODES:
                return cls.of_codes(tuples.encode(arrays, shape), shape, ordered=False)
            order = np.lexsort(arrays[::-1])
            arrays = [c[order] for c in arrays]
            first = np.ones(len(order), np.bool_)
            first[1:] = np.logical_or.reduce([c[1:] != c[:-1] for c in arrays])
            arrays = [c[first] for c in arrays]
        return _make(shape, len(arrays[0]), columns=tuple(map(_fixed, arrays)))

    @classmethod
    def of_rows(cls, indptr: Any, indices: Any, shape: Sequence[int]) -> SparseTensor:
        """Make a matrix of rows as scipy's CSR has them: offsets, and columns that are sorted and unique within a row.

        The arrays become the tensor's own: do not write to them afterwards.

        >>> SparseTensor.of_rows([0, 1, 1], [2], (2, 3)).columns
        (array([0], dtype=int32), array([2], dtype=int32))
        """
        shape = _shape(shape)
        indptr, indices = _whole("offsets", indptr), plain_array(indices)
        if (
            len(shape) != 2
            or indices.ndim != 1
            or len(indptr) != shape[0] + 1
            or indptr[0] != 0
            or indptr[-1] != len(indices)
        ):
            message = f"{len(indptr)} offsets of {indices.size} columns do not make a matrix of shape {shape}"
            hint = "offsets start at 0, end at the number of columns listed, and are one more than the rows"
            raise ShapeError(message, hint, code="E445")
        listed = _column(indices, 1, shape[1])
        return _make(shape, len(listed), rows=(_fixed(indptr), _fixed(listed)))

    @property
    def count(self) -> int:
        """The number of true places."""
        return self._count

    @property
    def nbytes(self) -> int:
        """The bytes of all that it holds now: the forms that were asked for stay until it goes."""
        arrays = [self._codes, *(self._columns or ()), *(self._rows or ())]
        own = {id(x): int(x.nbytes) for x in arrays if x is not None}
        return sum(own.values()) + sum(t.nbytes for t in self._turned.values())

    @property
    def codes(self) -> Codes:
        """The number of each true place in C order, sorted: int64, not to be written to."""
        if self._codes is None:
            _refuse_huge(self._shape)
            self._codes = _fixed(tuples.encode(self.columns, self._shape))
        return self._codes

    @property
    def columns(self) -> tuple[Column, ...]:
        """One array for each axis: the tuples, sorted lexicographically; int32 where the size allows it."""
        if self._columns is None:
            if self._rows is not None or self._has_few_rows():
                first, second = sparse_rows.columns_of(self.rows)
                self._columns = _fixed(first), second
            else:
                self._columns = tuple(map(_fixed, tuples.decode(self._codes, self._shape)))
        return self._columns

    def column(self, axis: int, places: Any = None) -> Column:
        """Return one of the :attr:`columns`, or its elements at some places; the second of a matrix is found without the first."""
        if places is not None and self.has_codes_only and len(places) * FEW < self._count:
            return tuples.decode(self.codes[places], self._shape)[axis]
        if axis == 1 and self._columns is None and (self._rows is not None or self._has_few_rows()):
            found = self.rows[1]
        else:
            found = self.columns[axis]
        return found if places is None else found[places]

    def spans(self, values: Any) -> tuple[Any, Any]:
        """Return where the tuples of a matrix begin that have each of some values in their first place, and how many there are.

        >>> [x.tolist() for x in SparseTensor.of_columns([[0, 2, 2], [1, 0, 1]], (3, 3)).spans(np.array([2, 1, 0]))]
        [[1, 1, 0], [2, 0, 1]]
        """
        if self.has_codes_only and len(values) * FEW < self._count:
            values = np.asarray(values, np.int64)
            starts, ends = (np.searchsorted(self.codes, (values + n) * self._shape[1]) for n in (0, 1))
            return starts, ends - starts
        offsets = self.rows[0]
        starts = offsets[values]
        return starts, offsets[values + 1] - starts

    @property
    def has_codes_only(self) -> bool:
        """Whether its tuples are held as codes, and neither as columns nor as rows."""
        return self._rows is None and self._columns is None

    @property
    def rows(self) -> Rows:
        """The offsets and the columns of a matrix's rows, as scipy's CSR has them."""
        if self._rows is None:
            if self.ndim != 2:
                message = f"rows are those of a matrix, but the shape is {self._shape}"
                raise ShapeError(message, "use .columns for other ranks", code="E446")
            if self._codes is not None and self._columns is None and max(self._shape) < 1 << 31:
                indptr, indices = sparse_rows.rows_of_codes(self._codes, self._shape)
            else:
                first, second = self.columns
                indptr, indices = sparse_rows.rows_of(first, second, self._shape[0])
            self._rows = _fixed(indptr), _fixed(indices)
        return self._rows

    def _has_few_rows(self) -> bool:
        """Tell whether it is a matrix whose rows are quicker to find than the digits of its codes."""
        return self.ndim == 2 and max(self._shape) < 1 << 31 and self._shape[0] <= 4 * self._count

    @property
    def T(self) -> SparseTensor:  # noqa: N802 - as NumPy calls it
        """The tensor with its axes in reverse."""
        return self.transpose()

    def transpose(self, *order: int) -> SparseTensor:
        """Return the axes in another order, in reverse where none is given; the result is kept."""
        rank, axes = self.ndim, self._checked_axes(order)
        if axes == tuple(range(rank)):
            return self
        found = self._turned.get(axes)
        if found is None:
            shape = [self._shape[a] for a in axes]
            if rank == 2 and max(shape) < 1 << 31 and max(shape) <= 4 * self._count:
                found = SparseTensor.of_rows(*sparse_rows.transposed(self.rows, self._shape[1]), shape)
            else:
                found = SparseTensor.of_columns([self.columns[a] for a in axes], shape)
            self._turned[axes] = found
        return found

    def bits(self) -> BitTensor:
        """Return the same truth values as packed bits.

        >>> SparseTensor([[0, 1]]).bits()
        BitTensor(shape=(1, 2), 1 set, 8 B)
        """
        last = self._shape[-1] if self._shape else 1
        self._refuse_memory(math.prod(self._shape[:-1]) * packed.width(last) * 8, "as packed bits")
        return BitTensor.of(tuples.to_words(self.codes, self._shape), self._shape)

    def same(self, other: Any) -> bool:
        """Tell whether another tensor has the same shape and the same true places.

        >>> SparseTensor([1, 0]).same([True, False])
        True
        """
        b = SparseTensor(other)
        if self._shape != b.shape or self._count != b.count:
            return False
        if self.size < MOST_CODES:
            return bool(np.array_equal(self.codes, b.codes))
        return all(map(np.array_equal, self.columns, b.columns))

    def __contains__(self, place: Any) -> bool:
        given = place if isinstance(place, tuple | list) else (place,)
        if len(given) != self.ndim:
            message = f"{value_text(place)} has {len(given)} indices, but the tensor has {self.ndim} axes"
            raise ShapeError(message, code="E447")
        if any(not isinstance(i, int | np.integer) or not 0 <= i < n for i, n in zip(given, self._shape, strict=True)):
            return False
        if self.size < MOST_CODES:
            code = 0
            for i, n in zip(given, self._shape, strict=True):
                code = code * n + int(i)
            at = int(np.searchsorted(self.codes, code))
            return at < self._count and bool(self.codes[at] == code)
        lo, hi = 0, self._count
        for i, column in zip(given, self.columns, strict=True):
            span = column[lo:hi]
            lo, hi = lo + int(np.searchsorted(span, i)), lo + int(np.searchsorted(span, i, "right"))
        return lo < hi

    def holds(self, columns: Sequence[Column]) -> Any:
        """Tell of tuples, given column by column, whether each is in it.

        >>> SparseTensor.of_columns([[0, 1], [1, 2]], (3, 3)).holds([np.array([1, 2]), np.array([2, 0])])
        array([ True, False])
        """
        if self.size >= MOST_CODES:
            mine, theirs, _ = tuples.numbered(self.columns, columns)
            return tuples.member(theirs, mine)
        return tuples.member(tuples.encode(columns, self._shape), self.codes)

    def _with(self, other: Any, function: Callable[[Codes, Codes], Codes]) -> SparseTensor:
        b = SparseTensor(other)
        if b.shape != self._shape:
            message = f"shapes {self._shape} and {b.shape} differ"
            raise ShapeError(message, "sets of tuples are combined over the same domains", code="E443")
        if self.size >= MOST_CODES:
            mine, theirs, columns = tuples.numbered(self.columns, b.columns)
            kept = function(mine, theirs)
            return SparseTensor.of_columns([c[kept] for c in columns], self._shape, ordered=True)
        codes = function(self.codes, b.codes)
        return _make(self._shape, len(codes), codes=_fixed(codes))

    def __or__(self, other: Any) -> SparseTensor:
        return self._with(other, tuples.merge)

    def __and__(self, other: Any) -> SparseTensor:
        return self._with(other, tuples.common)

    def __sub__(self, other: Any) -> SparseTensor:
        return self._with(other, tuples.minus)

    __ror__, __rand__ = __or__, __and__

    def __rsub__(self, other: Any) -> SparseTensor:
        return SparseTensor(other) - self

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ValueError(f"a tensor of shape {self._shape} is neither true nor false; compare .count with 0")
        return self._count > 0

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        if copy is False:
            raise ValueError("a sparse tensor cannot become a NumPy array without a copy")
        self._refuse_memory(self.size, "as a dense array")
        array = np.zeros(self._shape, np.bool_)
        array.reshape(-1)[self.codes] = True
        return array if dtype is None else array.astype(dtype, copy=False)

    def _refuse_memory(self, nbytes: int, form: str) -> None:
        if nbytes > available_memory():
            message = f"a tensor of shape {self._shape} takes {bytes_text(nbytes)} {form}"
            message += f", and {bytes_text(available_memory())} are free"
            raise OutOfMemoryError(message, "keep it sparse: .columns and .codes list its true places", code="E444")

    def __reduce__(self) -> tuple[Any, ...]:
        if self._columns is not None and self._codes is None and self._columns:
            return _unpickled, (self._columns, self._shape)
        return SparseTensor.of_codes, (self.codes, self._shape)

    def __repr__(self) -> str:
        return f"SparseTensor(shape={self._shape}, {self._count:,} set, {bytes_text(self.nbytes)})"


def _unpickled(columns: tuple[Column, ...], shape: tuple[int, ...]) -> SparseTensor:
    return SparseTensor.of_columns(columns, shape, ordered=True)


def _make(
    shape: tuple[int, ...],
    count: int,
    *,
    codes: Codes | None = None,
    columns: tuple[Column, ...] | None = None,
    rows: Rows | None = None,
) -> SparseTensor:
    self = object.__new__(SparseTensor)
    self._shape, self._count = shape, count
    self._codes, self._columns, self._rows, self._turned = codes, columns, rows, {}
    return self


def _shape(shape: Sequence[int]) -> tuple[int, ...]:
    sizes = tuple(shape) if isinstance(shape, Iterable) else None
    if sizes is None or not all(isinstance(n, int | np.integer) and n >= 0 for n in sizes):
        raise ShapeError(f"a shape is a tuple of sizes, got {value_text(shape)}", "write (3, 4)", code="E440")
    return tuple(map(int, sizes))


def _flat(what: str, values: Any) -> Any:
    """Return a flat array of whole numbers."""
    array = plain_array(values)
    if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
        message = f"{what} {array.dtype} of shape {array.shape}"
        raise ShapeError(message, "give a flat array of whole numbers", code="E442")
    return array


def _whole(what: str, values: Any) -> Codes:
    """Return a flat array of whole numbers as int64."""
    return np.ascontiguousarray(_flat(f"{what} are", values), np.int64)


def _fixed(x: Any) -> Any:
    """Return an array that cannot be written to."""
    x = x.view()
    x.flags.writeable = False
    return x


def _column(values: Any, place: int, size: int) -> Column:
    """Return a column of indices, checked, as int32 where its size allows it."""
    column = _flat(f"column {place} holds", values)
    if column.size and not (int(column.min()) >= 0 and int(column.max()) < size):
        wrong = int(column.min()) if int(column.min()) < 0 else int(column.max())
        message = f"column {place} holds {wrong}, but its axis has {size} places"
        raise ShapeError(message, f"use indices from 0 to {size - 1}", code="E441")
    return np.ascontiguousarray(column, np.int32 if size < 1 << 31 else np.int64)


def _refuse_huge(shape: tuple[int, ...]) -> None:
    if math.prod(shape) >= MOST_CODES:
        message = f"a tensor of shape {shape} has {math.prod(shape):,} places, more than can be numbered in 63 bits"
        raise ShapeError(message, "use smaller domains, or relations of fewer columns", code="E448")


def _from_scipy(values: Any) -> SparseTensor:
    """Take a scipy.sparse array; entries of one place are added up, as scipy has it."""
    if values.ndim == 2:
        matrix = values.tocsr()
        if not matrix.has_canonical_format:
            matrix = matrix.copy()
            matrix.sum_duplicates()
        if matrix.dtype != np.bool_ or not matrix.data.all():
            matrix = matrix.astype(np.bool_)
            matrix.eliminate_zeros()
        own = matrix is not values and not np.may_share_memory(matrix.indices, getattr(values, "indices", ()))
        indptr, indices = (matrix.indptr, matrix.indices) if own else (matrix.indptr.copy(), matrix.indices.copy())
        return SparseTensor.of_rows(indptr, indices, matrix.shape)
    entries = values.tocoo(copy=True)
    entries.sum_duplicates()
    kept = entries.data != 0
    return SparseTensor.of_columns([c[kept] for c in entries.coords], entries.shape)
