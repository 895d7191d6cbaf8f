"""Showing answers by name: the true tuples of a relation, or the values of a score."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from numbers import Real
from typing import Any

import numpy as np

from ..diagnostics import value_text
from ..errors import InputError, ShapeError, TensorLogicError, expect_whole
from ..ir.types import number_array, plain_scalar
from ..tables import html_table, table

Names = Sequence[Any] | int


class Shown(str):
    """A table as text, which a notebook shows as a table; it is the text wherever text is expected.

    ``rows`` holds the tuples that are shown, by name, ``heads`` the titles of their columns; of several outputs, ``parts`` has a
    table of each by its name.

    >>> answer = show(np.array([True, False]), ["alice", "bob"], heads=["who"])
    >>> answer.rows, answer.heads, answer.splitlines()
    ([['alice']], ['who'], ['who', 'alice', '1 of 2'])
    """

    heads: list[str]
    rows: list[list[str]]
    note: str
    parts: dict[str, Shown]

    def _repr_html_(self) -> str:
        if self.parts:
            return "\n".join(html_table(p.heads, p.rows, p.note, title=name) for name, p in self.parts.items())
        return html_table(self.heads, self.rows, self.note)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))


class PrintsAsTable(ABC):
    """What prints as a table and is shown as one in a notebook."""

    @abstractmethod
    def shown(self, limit: int = 50) -> Shown:
        """Return the table, with so many rows at the most."""

    def __str__(self) -> str:
        return str(self.shown())

    def _repr_html_(self) -> str:
        return self.shown()._repr_html_()


def shown(heads: list[str], rows: list[list[str]], note: str, text: str | None = None) -> Shown:
    """Make the table of rows under their heads, with a line below it."""
    result = Shown(f"{table(heads, rows)}\n{note}" if text is None else text)
    result.heads, result.rows, result.note, result.parts = heads, rows, note, {}
    return result


def shown_parts(parts: dict[str, Shown]) -> Shown:
    """Join the tables of several outputs, each under its name; one alone stands for itself."""
    parts = {
        f"{name} {inner}".rstrip(): each
        for name, part in parts.items()
        for inner, each in (part.parts or {"": part}).items()
    }
    if len(parts) == 1:
        return next(iter(parts.values()))
    result = shown([], [], "", "\n\n".join(f"{name}\n{part}" for name, part in parts.items()))
    result.parts = parts
    return result


def show(value: Any, *domains: Names, heads: Sequence[str] = (), limit: int = 50, above: float = 0.0) -> Shown:
    """Return a table of the true tuples of an answer, by the names of its domains; scores are shown largest first.

    ``domains`` gives, for each axis, its names or its size; one stands for all axes, and none for numbers. Of several
    outputs, as a run returns them, or of a mapping, each is shown under its name, of a list of arrays under its place. The
    answers of a program's query know their names. Scores are shown ``above`` a number.

    >>> print(show(np.array([[False, True], [False, False]]), ["alice", "bob"], heads=["x", "z"]))
    x      z
    alice  bob
    1 of 4
    """
    if hasattr(value, "shown") and not domains:  # answers, and relations of a program
        found: Shown = value.shown(limit=limit)
        return found
    heads = _titles(heads)
    expect_whole("limit=", limit)
    if not isinstance(above, Real) or above != above:
        raise InputError(f"above= is a number, got {value_text(above)}", "write above=0.5", code="E301")
    if (several := _several(value)) is not None:
        parts = {}
        for name, each in several.items():
            try:
                parts[name] = show(each, *domains, heads=heads, limit=limit, above=above)
            except TensorLogicError as error:
                raise error.renamed(f"output {name!r}: {error.diagnostic.message}") from None
        return shown_parts(parts)
    shape, columns, scores = _entries(value, above)
    rank = len(shape)
    given = [_in_order(d) for d in domains] or list(shape)
    given = given if len(domains) != 1 else given * rank
    if len(given) != rank:
        raise ShapeError(f"{len(given)} domains for an answer of {rank} axes", code="E616")
    for axis, (d, size) in enumerate(zip(given, shape, strict=True)):
        if (count := d if isinstance(d, int) else len(d)) != size:
            raise ShapeError(f"axis {axis} has {size} elements, but its domain has {count}", code="E616")
    if heads and len(heads) != rank:
        raise ShapeError(f"{len(heads)} heads for an answer of {rank} axes", code="E616")
    if rank == 0:
        return scalar_shown(np.asarray(value).item())
    named = [
        [str(i) if isinstance(d, int) else str(plain_scalar(d[i])) for i in c[:limit].tolist()]
        for c, d in zip(columns, given, strict=True)
    ]
    titles = heads or [f"axis {n}" for n in range(rank)]
    if scores is not None:
        named.append([f"{score:.4g}" for score in scores[:limit].tolist()])
        titles.append("value")
    count = len(columns[0])
    more = f", the first {limit} shown" if count > limit else ""
    note = f"{count:,} of {math.prod(shape):,}{more}"
    return shown(titles, [list(row) for row in zip(*named, strict=True)], note)


def _several(value: Any) -> dict[str, Any] | None:
    """Return answers by their names, or by their places where they have none; None of one answer, such as a nested list of numbers."""
    if hasattr(value, "keys"):  # the outputs of a run, or a mapping
        return {str(name): value[name] for name in value.keys()}  # noqa: SIM118
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):  # such as the results of a batch
        own = list(value)
        if any(hasattr(v, "keys") or hasattr(v, "shown") or getattr(v, "ndim", 0) for v in own):
            return {str(n): v for n, v in enumerate(own)}
    return None


def _in_order(domain: Any) -> Names:
    """Return a domain as its size, or as names of which each has a place."""
    if isinstance(domain, set | frozenset):
        hint = "give the list of names that the answer was computed with"
        raise InputError("a domain is a set, whose elements have no order", hint, code="E605")
    if isinstance(domain, int | np.integer) and not isinstance(domain, bool):
        return int(domain)
    if isinstance(domain, str | bytes | bool) or not isinstance(domain, Iterable) or getattr(domain, "ndim", 1) != 1:
        hint = 'write show(answer, ["alice", "bob"]), or show(answer, 2)'
        raise InputError(f"a domain is a size or a list of names, got {value_text(domain)}", hint, code="E301")
    if hasattr(domain, "tolist"):  # an array, whose elements may print as tensor(0)
        domain = domain.tolist()
    return domain if isinstance(domain, Sequence) else list(domain)


def _titles(heads: Any) -> list[str]:
    """Return the titles of the columns in their order."""
    if isinstance(heads, set | frozenset):
        hint = f"give a list, such as {sorted(map(str, heads))}, in the order of the axes"
        raise InputError("heads= is a set, whose elements have no order", hint, code="E605")
    found = list(heads) if isinstance(heads, Iterable) and getattr(heads, "ndim", 1) == 1 else [None]
    if isinstance(heads, str | bytes) or not all(isinstance(title, str) for title in found):
        hint = 'write heads=["x", "y"]'
        raise InputError(f"heads= is a list of titles, one for each axis, got {value_text(heads)}", hint, code="E301")
    return list(map(str, found))


def scalar_shown(value: Any) -> Shown:
    """Show one value that has no index."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return shown(["value"], [[text]], "", text)


def _entries(
    value: Any, above: float
) -> tuple[tuple[int, ...], list[np.ndarray[Any, Any]], np.ndarray[Any, Any] | None]:
    """Return the shape of an answer, the places that are shown, column by column, and their scores, largest first."""
    if isinstance(getattr(value, "columns", None), tuple) and value.columns:  # a sparse relation
        return tuple(value.shape), [np.asarray(c) for c in value.columns], None
    array = number_array(value)
    if array.ndim == 0:
        return (), [], None
    if array.dtype == bool:
        return array.shape, list(np.argwhere(array).T), None
    places = np.argwhere(array > above)
    scores = array[tuple(places.T)]
    order = by_value(scores)
    return array.shape, list(places[order].T), scores[order]


def by_value(scores: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return the order from the largest score to the smallest; equal ones stay in their order."""
    return len(scores) - 1 - np.argsort(scores[::-1], kind="stable")[::-1]  # unsigned scores have no negatives
