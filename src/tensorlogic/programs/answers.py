"""What a program answers: the tuples of a query by name, and relations as sets of name tuples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np

from ..backends.sparse import SparseTensor
from ..diagnostics import value_text
from ..errors import InputError, expect, expect_whole, nearest
from ..lang.data_files import arrow_module
from ..lang.domains import Codes, Domain, Name
from ..lang.show import PrintsAsTable, Shown, by_value, scalar_shown, shown
from ..lang.written_files import one_kind
from ..tables import counted

LISTED = 20  # answers that repr lists


class Answers(PrintsAsTable, Sequence[tuple[Any, ...]]):
    """The answers of a query: a list of tuples, one for each answer, in the order of the domains.

    A query without variables is answered by its truth (one empty tuple, or none); the tuples of a numeric tensor end in its value.
    Answers print as a table and are shown as one in a notebook, values from the largest to the smallest.

    >>> found = Answers(["x"], [np.array([1, 0])], [Domain(["Bob", "Ann"])])
    >>> found
    [('Ann',), ('Bob',)]
    >>> found == [("Ann",), ("Bob",)], len(found), ("Bob",) in found, bool(found)
    (True, 2, True, True)
    >>> print(found)
    x
    Ann
    Bob
    2 answers
    """

    __hash__ = None  # type: ignore[assignment]  # compares with lists

    def __init__(
        self,
        heads: Sequence[str],
        codes: Sequence[Codes],
        domains: Sequence[Domain],
        *,
        count: int | None = None,
        values: np.ndarray[Any, Any] | None = None,
        tensor: Any = None,
    ) -> None:
        self.heads = tuple(heads)
        self.values = None if values is None else _read_only(values)  # of a numeric tensor, one for each tuple
        self._codes, self._domains = list(codes), list(domains)
        self._count = count if count is not None else len(codes[0]) if codes else 0
        self._tensor = tensor
        self._rows: list[tuple[Any, ...]] | None = None

    def __len__(self) -> int:
        return self._count

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all answers as a list of tuples."""
        return list(self._listed())

    def _listed(self) -> list[tuple[Any, ...]]:
        if self._rows is None:
            columns = list(self.columns().values())
            self._rows = list(zip(*columns, strict=True)) if columns else [()] * self._count
        return self._rows

    def columns(self) -> dict[str, list[Any]]:
        """Return the answers column by column, by the variable of each; values are in a column ``value``."""
        named = [d.names(c) for c, d in zip(self._codes, self._domains, strict=True)]
        titles = _titles(self.heads, self.values is not None)
        if self.values is not None:
            named.append(self.values.tolist())
        return dict(zip(titles, named, strict=True))

    @overload
    def __getitem__(self, index: int) -> tuple[Any, ...]: ...
    @overload
    def __getitem__(self, index: slice) -> list[tuple[Any, ...]]: ...
    def __getitem__(self, index: int | slice) -> tuple[Any, ...] | list[tuple[Any, ...]]:
        return self._listed()[index]

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self._listed())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Answers):
            return self._listed() == other._listed()
        return self._listed() == list(other) if isinstance(other, list | tuple) else NotImplemented

    @property
    def value(self) -> Any:
        """The one value of an answer: of a numeric tensor, the number; of a relation, the truth."""
        if self.values is None and not self.heads:
            return bool(self)
        if self.values is None or len(self) != 1:
            hint = "iterate over the answers, or take .array()"
            raise InputError(f"there are {len(self):,} answers, not one value", hint, code="E784")
        return self.values[0].item()

    def __float__(self) -> float:
        return float(self.value)

    def array(self) -> np.ndarray[Any, Any]:
        """Return a NumPy array: the values of a numeric tensor with its axes, or the names, a row for each answer."""
        if self._tensor is not None:
            return np.array(self._tensor)
        if self.values is not None:
            return self.values.copy()
        columns = [np.asarray(c) for c in self.columns().values()]
        if not columns:
            return np.empty((len(self), 0), np.int64)
        kinds = {c.dtype.kind for c in columns if c.size}
        if len(kinds) > 1 or any(len(set(map(type, c))) > 1 for c in self.columns().values()):
            columns = [_objects(c) for c in self.columns().values()]
        return np.stack(columns, axis=1)

    def to_arrow(self) -> Any:
        """Return a table of Arrow."""
        pyarrow = arrow_module("pyarrow", "for a table of Arrow")
        columns = self.columns()
        return pyarrow.table([pyarrow.array(one_kind(c)) for c in columns.values()], names=list(columns))

    def to_pandas(self) -> Any:
        """Return a data frame of pandas."""
        return arrow_module("pandas", "for a data frame of pandas").DataFrame(self.columns())

    def to_polars(self) -> Any:
        """Return a data frame of polars."""
        columns = {k: one_kind(c) for k, c in self.columns().items()}
        return arrow_module("polars", "for a data frame of polars").DataFrame(columns)

    def shown(self, limit: int = 50) -> Shown:
        """Return the answers as a table, the values of a numeric tensor from the largest to the smallest."""
        expect_whole("limit=", limit)
        if not self.heads:
            return scalar_shown(self.value)
        order = np.arange(len(self))[:limit] if self.values is None else by_value(self.values)[:limit]
        cells = [[str(n) for n in d.names(c[order])] for c, d in zip(self._codes, self._domains, strict=True)]
        if self.values is not None:
            cells.append([f"{v:.4g}" for v in self.values[order].tolist()])
        titles = list(_titles(self.heads, self.values is not None))
        more = f", the first {limit} shown" if len(self) > limit else ""
        note = f"{len(self):,} answer{'' if len(self) == 1 else 's'}{more}"
        return shown(titles, [list(row) for row in zip(*cells, strict=True)], note)

    def __repr__(self) -> str:
        if len(self) <= LISTED:
            return repr(self._listed())
        first = list(zip(*(d.names(c[:LISTED]) for c, d in zip(self._codes, self._domains, strict=True)), strict=True))
        if self.values is not None:
            first = [(*row, v) for row, v in zip(first, self.values[:LISTED].tolist(), strict=True)]
        return f"[{', '.join(map(repr, first))}, ... {len(self):,} answers]"


def _titles(heads: Sequence[str], valued: bool) -> tuple[str, ...]:
    return (*heads, "value") if valued else tuple(heads)


def _read_only(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that cannot be written through: the memory is that of the program."""
    view = values.view()
    view.flags.writeable = False
    return view


def _objects(values: Sequence[Any]) -> np.ndarray[Any, Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


class Relation(PrintsAsTable):
    """A relation of a program: a set of name tuples; ``dense()``, ``bits()`` and ``sparse()`` give it as a tensor.

    Made by ``Program.relation``. It is what the relation was when it was asked for.

    >>> from tensorlogic import Program
    >>> parent = Program("Parent(Alice, Bob); Old(x,z) <- Parent(x,y), Parent(y,z)").relation("Parent")
    >>> len(parent), ("Alice", "Bob") in parent, list(parent)
    (1, True, [('Alice', 'Bob')])
    >>> parent.dense()
    array([[False,  True],
           [False, False]])
    """

    __hash__ = None  # type: ignore[assignment]  # compares with sets

    def __init__(self, name: str, tensor: Any, domains: Sequence[Domain], heads: Sequence[str] = ()) -> None:
        expect(domains, Sequence, "domains are a list, one for each place")
        expect(heads, Sequence, "heads= are titles, one for each place", 'write heads=["parent", "child"]')
        self.name = name
        self.domains = tuple(domains)
        self.heads = tuple(heads) or tuple(f"{n}" for n in range(1, len(self.domains) + 1))
        self._tensor = tensor
        self._answers: Answers | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of elements that each place can have."""
        return tuple(self._tensor.shape)

    @property
    def arity(self) -> int:
        """The number of places."""
        return len(self.domains)

    def sparse(self) -> Any:
        """Return the SparseTensor of the relation, whose axes are in the order of :meth:`names`."""
        return SparseTensor(self._tensor)

    def bits(self) -> Any:
        """Return the relation as packed bits, a BitTensor."""
        return self._tensor if self._tensor.layout == "bits" else self._tensor.bits()

    def dense(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return the relation as a NumPy array of truth values."""
        return np.asarray(self._tensor)

    def names(self, place: int = 0) -> list[Name]:
        """Return the names along an axis, in order."""
        found = names_along(self.name, self.domains, place)
        return found[: self.shape[place]]  # facts that came later may have brought more

    @property
    def answers(self) -> Answers:
        """The tuples as answers, which can be turned into tables and data frames."""
        if self._answers is None:
            tensor = self.sparse()
            columns = [np.asarray(c, np.int64) for c in tensor.columns] if self.arity else []
            self._answers = Answers(self.heads, columns, self.domains, count=int(tensor.count))
        return self._answers

    def to_pandas(self) -> Any:
        """Return a data frame of pandas."""
        return self.answers.to_pandas()

    def to_polars(self) -> Any:
        """Return a data frame of polars."""
        return self.answers.to_polars()

    def to_arrow(self) -> Any:
        """Return a table of Arrow."""
        return self.answers.to_arrow()

    def array(self) -> np.ndarray[Any, Any]:
        """Return the names as a NumPy array, a row for each tuple; :meth:`dense` is the tensor."""
        return self.answers.array()

    def shown(self, limit: int = 50) -> Shown:
        """Return the tuples as a table."""
        return self.answers.shown(limit)

    def __len__(self) -> int:
        return int(self._tensor.count if self._tensor.layout == "sparse" else self._tensor.sum())

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        return iter(self.answers)

    def __contains__(self, row: object) -> bool:
        given = row if isinstance(row, tuple | list) else (row,)
        if len(given) != self.arity:
            message = f"{self.name} has {counted(self.arity, 'place')}, but {value_text(row)} has {len(given)}"
            raise InputError(message, code="E778")
        plain = [v.item() if isinstance(v, np.integer) else v for v in given]
        codes = [d.code(v) if isinstance(v, str | int) else None for v, d in zip(plain, self.domains, strict=True)]
        if not codes:
            return len(self) > 0
        if any(code is None or code >= size for code, size in zip(codes, self.shape, strict=True)):
            return False
        return bool(self._tensor[tuple(codes)]) if self._tensor.layout == "bits" else tuple(codes) in self._tensor

    def __eq__(self, other: object) -> bool:
        return set(self) == set(other) if isinstance(other, set | frozenset | Relation) else NotImplemented

    def __repr__(self) -> str:
        return f"<Relation {self.name}/{self.arity}, {len(self):,} tuples>"


def names_along(name: str, domains: Sequence[Domain], place: int) -> list[Name]:
    """Return the names in a place of a relation or tensor, in order."""
    if not -len(domains) <= place < len(domains):
        raise InputError(f"{name} has {counted(len(domains), 'place')}, so none is number {place}", code="E784")
    return domains[place].names()


def unknown_relation(name: str, known: Sequence[str]) -> InputError:
    """Return the error for a name that the program does not have."""
    return InputError(f"the program has no relation or tensor {value_text(name)}", *nearest(name, known), code="E785")
