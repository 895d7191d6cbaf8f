"""What a batch gives: the outputs of each item, the errors of those that failed, and how long it took."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import repeat
from types import MappingProxyType
from typing import Any, NamedTuple, overload

import numpy as np

from ..diagnostics import value_text
from ..errors import InputError, nearest
from .values import Outputs


class Piece(NamedTuple):
    """Outputs of some items: arrays that hold all of them in their first axis, or of a single item without that axis."""

    items: Sequence[int]
    values: Sequence[Any]
    single: bool = False


class BatchResult(Sequence[Outputs]):
    """The outputs of each item of a batch, in order, as a sequence; reading an item that failed raises its error.

    Items that ran together are rows of one array each output, which :meth:`stacked` returns. ``str()`` says how they ran.

    >>> from tensorlogic import Executor, GraphBuilder
    >>> b = GraphBuilder()
    >>> graph = b.build(y=b.sum(b.square(b.input("x", (2,)))))
    >>> result = Executor().execute_batch(graph, [{"x": [3.0, 4.0]}, {"x": [1.0, 2.0, 3.0]}, {"x": [0.0, 2.0]}])
    >>> [float(result[n]["y"]) for n in (0, 2)], list(result.errors)
    ([25.0, 4.0], [1])
    """

    __slots__ = ("_names", "_pieces", "_places", "_size", "_ways", "errors", "total_time_ms")

    def __init__(
        self,
        size: int,
        pieces: Sequence[Piece],
        errors: Mapping[int, Exception],
        ways: Sequence[Callable[[], str]],
        total_time_ms: float,
        names: Sequence[str],
    ) -> None:
        self._size, self._pieces, self._names = size, pieces, tuple(names)
        self._places: list[tuple[Piece, int] | None] | None = None  # of each item, made when the first one is asked for
        self.errors: Mapping[int, Exception] = MappingProxyType(dict(errors))  # by the place of the item
        self._ways = ways
        self.total_time_ms = total_time_ms

    def __reduce__(self) -> tuple[Any, ...]:
        ways = [partial(str, way) for way in self.how]
        made = self._size, self._pieces, dict(self.errors), ways, self.total_time_ms, self._names
        return BatchResult, made

    @property
    def how(self) -> tuple[str, ...]:
        """How the items ran: a line for each group of them that ran alike."""
        return tuple([way() for way in self._ways])

    @property
    def throughput(self) -> float:
        """Items a second."""
        return self._size / (self.total_time_ms / 1e3) if self.total_time_ms else 0.0

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, key: int) -> Outputs: ...
    @overload
    def __getitem__(self, key: slice) -> list[Outputs]: ...
    def __getitem__(self, key: int | slice) -> Any:
        if isinstance(key, slice):
            return [self[n] for n in range(*key.indices(self._size))]
        if isinstance(key, str):
            hint = f"write result[0][{value_text(key)}] for one item, or result.stacked({value_text(key)}) for all"
            raise InputError(f"items of a batch are numbered, got {value_text(key)}", hint, code="E301")
        try:
            number = range(self._size)[key]
        except IndexError:
            raise IndexError(f"there is no item {value_text(key)}: the batch has {self._size:,}") from None
        if self._places is None:
            places: list[tuple[Piece, int] | None] = [None] * self._size
            for piece in self._pieces:
                for row, n in enumerate(piece.items):
                    places[n] = (piece, row)
            self._places = places
        found = self._places[number]
        if found is None:
            raise self.errors[number]
        piece, row = found
        return Outputs(self._names, piece.values if piece.single else [v[row, ...] for v in piece.values])

    def __iter__(self) -> Iterator[Outputs]:
        if not self._whole:
            return (self[n] for n in range(self._size))
        columns = [_rows(value) for value in self._pieces[0].values]
        rows = zip(*columns, strict=True) if columns else repeat((), self._size)
        return (Outputs(self._names, row) for row in rows)

    @property
    def _whole(self) -> bool:
        """Whether all items ran together."""
        return len(self._pieces) == 1 and not self._pieces[0].single and len(self._pieces[0].items) == self._size

    def stacked(self, name: str) -> Any:
        """Return an output of all items as one array, the items in its first axis; their shapes must agree.

        >>> from tensorlogic import Executor, GraphBuilder
        >>> b = GraphBuilder()
        >>> graph = b.build(y=b.input("x", (2,)) * 2)
        >>> Executor().execute_batch(graph, [{"x": [1.0, 2.0]}, {"x": [3.0, 4.0]}]).stacked("y")
        array([[2., 4.],
               [6., 8.]])
        """
        if name not in self._names:
            raise InputError(f"there is no output {value_text(name)}", *nearest(name, self._names), code="E305")
        if self._whole:
            return self._pieces[0].values[self._names.index(name)]
        if not self._size:
            raise InputError("a batch of nothing has no array of its items", "give it one item at least", code="E513")
        rows = [outputs[name] for outputs in self]
        shapes = {row.shape for row in rows}
        if len(shapes) != 1:
            message = f"{name!r} of {len(rows)} items cannot be one array: its shapes are {sorted(shapes)}"
            raise InputError(message, "read the items one by one: result[0]['y']", code="E513")
        return np.stack(rows)

    def __repr__(self) -> str:
        failed = f", {len(self.errors)} failed" if self.errors else ""
        return f"<BatchResult: {self._size:,} items{failed}, {self.total_time_ms:.3g} ms>"

    def __str__(self) -> str:
        head = f"{self._size:,} items in {self.total_time_ms:.3g} ms, {self.throughput:,.0f} a second"
        wrong = [f"  {type(error).__name__} {error}".splitlines()[0] for error in list(self.errors.values())[:5]]
        more = [f"  and {len(self.errors) - 5} more errors"] if len(self.errors) > 5 else []
        return "\n".join([head, *(f"  {line}" for line in self.how), *wrong, *more])


def _rows(value: Any) -> Iterator[Any]:
    """Return the rows of an array, as arrays also where they are scalars."""
    return iter(value) if value.ndim > 1 else (value[n, ...] for n in range(len(value)))
