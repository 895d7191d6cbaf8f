"""Domains: the names of an index's elements and their codes, which are the places on a tensor's axis."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

import msgspec
import numpy as np

from ..errors import InputError

Name = str | int
Codes = np.ndarray[Any, np.dtype[np.int64]]
SPREAD = 16  # numbers are sorted where the span from the least to the greatest is more than so many times their count
MANY = 1 << 12  # a number is looked up in a sorted array, not in a dictionary, where there are more names than this
FEW = 16  # names are looked up one by one where they are less than one in so many of all names


class Column(msgspec.Struct, frozen=True, eq=False):
    """One place of many tuples: a code for each tuple, and the names that the codes stand for.

    Where ``names`` is None, the codes are the whole numbers themselves.

    >>> column_of(["b", "a", "b"])
    Column(codes=array([0, 1, 0]), names=['b', 'a'])
    >>> column_of([3, 5])
    Column(codes=array([3, 5]), names=None)
    """

    codes: Codes
    names: Sequence[Name] | None

    def __len__(self) -> int:
        return len(self.codes)

    def code(self, name: Name) -> int | None:
        """Return the code that stands for a name here; None where nothing does."""
        if self.names is None:
            return name if isinstance(name, int) else None
        return next((n for n, own in enumerate(self.names) if own == name), None)

    def values(self) -> list[Name]:
        """Return the name in each tuple."""
        if self.names is None:
            return list(self.codes.tolist())
        return list(map(self.names.__getitem__, self.codes.tolist()))


def column_of(values: Any, where: str = "") -> Column:
    """Code the values of a column: a list, or a NumPy array of text, whole numbers or objects."""
    if isinstance(values, np.ndarray):
        if values.dtype.kind in "iu":
            return _numbers(values)
        if values.dtype.kind not in "USOT":
            found = values.tolist()
            raise _no_name(next((v for v in found if v != v), found[0] if found else values.dtype), where, found)
        values = values.tolist()
    elif not isinstance(values, list | tuple):
        values = list(values)
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            return Column(np.array(values, np.int64), None)
        except OverflowError:
            pass  # numbers beyond 64 bits are coded as names
    if not kinds <= {str, int}:
        values = _plain(values, kinds, where)
        if set(map(type, values)) == {int}:
            return column_of(values, where)
    names: defaultdict[Name, int] = defaultdict(count().__next__)  # a new name takes the next code
    codes = np.fromiter(map(names.__getitem__, values), np.int64, len(values))
    try:
        "".join(n for n in names if isinstance(n, str)).encode()
    except UnicodeEncodeError as error:
        half = next(n for n in names if isinstance(n, str) and error.object[error.start] in n)
        message = f"{half!r}{_of_row(half, values, where)} has half of a surrogate pair, which is no text"
        raise InputError(message, "give names that UTF-8 can hold", code="E231") from None
    return Column(codes, list(names))


def _numbers(values: np.ndarray[Any, Any]) -> Column:
    if values.dtype.kind == "u" and values.size and values.max() > np.iinfo(np.int64).max:
        return column_of(values.tolist())
    return Column(values.astype(np.int64), None)


def _plain(values: Iterable[Any], kinds: set[type], where: str) -> list[Name]:
    """Turn the texts and numbers of NumPy into Python's; refuse what is no name."""
    values = list(values)
    ways: dict[type, Any] = {}
    for kind in kinds:
        if issubclass(kind, str):
            ways[kind] = str
        elif issubclass(kind, int | np.integer) and not issubclass(kind, bool):
            ways[kind] = int
    if len(ways) < len(kinds):
        raise _no_name(next(v for v in values if type(v) not in ways), where, values)
    return [ways[type(v)](v) for v in values]


def _of_row(value: Any, values: Sequence[Any], where: str) -> str:
    """Return where a value stands: the row, and the column."""
    row = next((n for n, v in enumerate(values, 1) if v is value or v == value), None)
    return ("" if row is None else f" in row {row:,}") + (f" of {where}" if where else "")


def _no_name(value: Any, where: str, values: Sequence[Any]) -> InputError:
    """Return the error for a value that cannot be a name."""
    at = _of_row(value, values, where)
    missing = value is None or (value != value) is True or type(value).__name__ in ("NAType", "NaTType")
    if missing:
        return InputError(f"a value is missing{at}", "drop the rows that have no name", code="E774")
    shown = repr(value) if len(repr(value)) < 60 else type(value).__name__
    hint = "a name is text or a whole number; write str(value) for others"
    return InputError(f"{shown}{at} cannot be a name: it is of type {type(value).__name__}", hint, code="E775")


def _ranks(places: Codes) -> Codes:
    """Return of each of some different places how many are less, without sorting."""
    marks = np.zeros(int(places.max()) + 1, np.int64)
    marks[places] = 1
    return (np.cumsum(marks) - 1)[places]


class Domain:
    """The elements of an index and their codes, which are places on an axis.

    ``kind`` is "range" (whole numbers from 0 up to the size, each its own code), "names" (the code is the place in the list of
    ``elements``; a whole number among names is a name like the others) or "integers" (coded alike, but all of them are whole
    numbers, to compare and calculate with). Names that are added come last, so that codes stay.

    >>> people = Domain(["Alice", "Bob"])
    >>> people.add(column_of(["Bob", "Carol"])).tolist(), people.size, people.names([2, 0])
    ([1, 2], 3, ['Carol', 'Alice'])
    >>> Domain(size=6).code(5), Domain(size=6).code(6)
    (5, None)
    """

    def __init__(
        self, elements: Iterable[Name] | None = None, size: int | None = None, *, integers: bool = False
    ) -> None:
        self.kind = "range" if elements is None else "integers" if integers else "names"
        self.axis = size  # how long arrays along the index are, where that is known; there may be fewer names
        self.set_elements(elements or ())

    def set_elements(self, elements: Iterable[Name]) -> None:
        """Let the domain have some names, in this order, in place of those it has."""
        self.elements = names = list(elements)
        self._codes: dict[Name, int] = {}  # made when it is first needed, for many numbers are found without it
        self._array: np.ndarray[Any, Any] | None = None
        self._sorted: tuple[Codes, Codes] | None = None  # names that are numbers, sorted, and their codes
        whole = set(map(type, names)) == {int} and -(2**63) < min(names) <= max(names) < 2**63  # type: ignore[operator]
        self._whole = whole or not names  # whether all names are numbers

    @property
    def numbers(self) -> bool:
        """Whether the elements are the whole numbers from 0, each its own code."""
        return self.kind == "range"

    @property
    def size(self) -> int | None:
        """The number of elements, with or without a name; None where nothing fixes it."""
        return self.axis if self.numbers else max(len(self.elements), self.axis or 0)

    def __len__(self) -> int:
        return self.axis or 0 if self.numbers else len(self.elements)

    def add(self, column: Column) -> Codes:
        """Add what a column names and return the code of each of its values."""
        if column.names is not None:
            return self._indices(column.names)[column.codes]
        if not len(column):
            return column.codes
        low, high = int(column.codes.min()), int(column.codes.max())
        if high - low > SPREAD * len(column):
            unique, first, inverse = np.unique(column.codes, return_index=True, return_inverse=True)
            return self._number_codes(unique, first)[inverse]
        shifted = column.codes - low  # close together: a table of all numbers between is faster than sorting
        rows = np.full(high - low + 1, -1)
        rows[shifted[::-1]] = np.arange(len(shifted) - 1, -1, -1)  # the first row that has the number is written last
        there = np.flatnonzero(rows >= 0)
        codes = np.empty(len(rows), np.int64)
        codes[there] = self._number_codes(there + low, rows[there])
        return codes[shifted]

    def _number_codes(self, numbers: Codes, first: Codes) -> Codes:
        """Return the codes of sorted numbers; new ones are added in the order of the rows in which they first stand."""
        if not self._whole:
            order = np.argsort(first)
            found = np.empty(len(numbers), np.int64)
            found[order] = self._indices(numbers[order].tolist())
            return found
        values, codes = self._number_table()
        place = np.minimum(np.searchsorted(values, numbers), max(0, len(values) - 1))
        known = values[place] == numbers if len(values) else np.zeros(len(numbers), bool)
        found = codes[place] if len(values) else np.empty(len(numbers), np.int64)
        fresh = np.flatnonzero(~known)
        if len(fresh):
            order = _ranks(first[fresh])
            found[fresh] = len(self.elements) + order
            names = np.empty(len(fresh), np.int64)
            names[order] = numbers[fresh]
            self.elements += names.tolist()
            if len(values):
                at = np.searchsorted(values, numbers[fresh])
                self._sorted = np.insert(values, at, numbers[fresh]), np.insert(codes, at, found[fresh])
            else:
                self._sorted = numbers, found.copy()
        return found

    def _number_table(self) -> tuple[Codes, Codes]:
        if self._sorted is None:
            values = np.array(self.elements, np.int64)
            order = np.argsort(values)
            self._sorted = values[order], order
        return self._sorted

    def _indices(self, names: Sequence[Name]) -> Codes:
        known = self._known()
        fresh = [n for n in dict.fromkeys(names) if n not in known]
        if fresh:
            known.update(zip(fresh, count(len(self.elements)), strict=False))
            self.elements += fresh
            self._sorted = None
            self._whole = self._whole and not any(isinstance(n, str) or abs(n) >= 2**63 for n in fresh)
        return np.fromiter(map(known.__getitem__, names), np.int64, len(names))

    def _known(self) -> dict[Name, int]:
        """Return the codes by name."""
        start = len(self._codes)
        if start < len(self.elements):
            self._codes.update(zip(self.elements[start:], count(start), strict=False))
        return self._codes

    def code(self, name: Name) -> int | None:
        """Return the code of a name, None where it is not in the domain."""
        if self.numbers:
            return name if isinstance(name, int) and name >= 0 and (self.axis is None or name < self.axis) else None
        if self._whole and len(self) > MANY and isinstance(name, int) and abs(name) < 2**63:
            values, codes = self._number_table()
            place = int(np.searchsorted(values, name))
            return int(codes[place]) if place < len(values) and values[place] == name else None
        return self._known().get(name)

    def element(self, code: int) -> Name:
        """Return the element of a code: its name, or the number itself."""
        return code if self.numbers or code >= len(self.elements) else self.elements[code]

    def values(self) -> list[int] | None:
        """Return the whole number of each code; None where the elements are names."""
        if self.numbers:
            return None if self.axis is None else list(range(self.axis))
        return [int(n) for n in self.elements] if self.kind == "integers" else None

    def codes(self, column: Column) -> Codes:
        """Return the code of each value of a column, -1 where the domain does not have it; nothing is added.

        >>> Domain(["Ann", "Bob"]).codes(column_of(["Bob", "Carol"])).tolist()
        [1, -1]
        """
        if self.numbers and column.names is None:
            return np.where((column.codes >= 0) & (column.codes < len(self)), column.codes, -1)
        if column.names is None:
            names, values = np.unique(column.codes, return_inverse=True)
        else:
            names, values = np.asarray(column.names, object), column.codes
        look_up = self.code if self.numbers else self._known().get
        return np.array([-1 if (code := look_up(n)) is None else code for n in names.tolist()], np.int64)[values]

    def names(self, codes: Any = None) -> list[Name]:
        """Return the names of codes, or of all elements; an element without a name is its number."""
        if self.numbers:
            return list(range(len(self))) if codes is None else np.asarray(codes, np.int64).tolist()
        if codes is None:
            return list(self.elements)
        listed, known = np.asarray(codes, np.int64), len(self.elements)
        if listed.size and listed.max() >= known:  # an array along the index has more elements than there are names
            return [self.elements[c] if c < known else c for c in listed.tolist()]
        if self._array is None or len(self._array) < known:
            if len(listed) < known // FEW:  # not worth an array of all names
                return [self.elements[c] for c in listed.tolist()]
            self._array = np.empty(known, object)
            self._array[:] = self.elements
        return list(self._array[listed].tolist())

    def __iter__(self) -> Any:
        return iter(self.names())

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str | int) and self.code(name) is not None

    def __repr__(self) -> str:
        if self.numbers:
            return f"Domain(numbers 0 to {len(self) - 1:,})" if len(self) else "Domain()"
        shown = ", ".join(map(str, self.elements[:4])) + (", ..." if len(self.elements) > 4 else "")
        return f"Domain({len(self):,}: {shown})"
