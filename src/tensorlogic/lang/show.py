"""Showing answers by name: the true tuples of a relation, or the values of a score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ShapeError, expect_whole
from ..tables import table

Names = Sequence[str] | int


def show(value: Any, *domains: Names, heads: Sequence[str] = (), limit: int = 50, above: float = 0.0) -> str:
    """Return a table of the true tuples of an answer, by the names of its domains; scores are shown largest first.

    ``domains`` gives, for each axis, its names or its size; one stands for all axes. Of several outputs, as a run returns
    them, or of a mapping, each is shown under its name.

    >>> print(show(np.array([[False, True], [False, False]]), ["alice", "bob"], heads=["x", "z"]))
    x      z
    alice  bob
    1 of 4
    """
    if hasattr(value, "keys"):  # the outputs of a run, or a mapping
        names = tuple(value.keys())
        texts = [show(value[name], *domains, heads=heads, limit=limit, above=above) for name in names]
        titled = (f"{name}\n{text}" for name, text in zip(names, texts, strict=True))
        return "\n\n".join(titled if len(names) > 1 else texts)
    array = np.asarray(value)
    expect_whole("limit=", limit)
    given = list(domains) if len(domains) != 1 else list(domains) * array.ndim
    if len(given) != array.ndim:
        raise ShapeError(f"{len(given)} domains for an answer of {array.ndim} axes", code="E616")
    for axis, (d, size) in enumerate(zip(given, array.shape, strict=True)):
        if (count := d if isinstance(d, int) else len(d)) != size:
            raise ShapeError(f"axis {axis} has {size} elements, but its domain has {count}", code="E616")
    if heads and len(heads) != array.ndim:
        raise ShapeError(f"{len(heads)} heads for an answer of {array.ndim} axes", code="E616")
    if array.ndim == 0:
        return str(array.item()).lower() if array.dtype == bool else str(array.item())
    places = np.argwhere(array > above) if array.dtype != bool else np.argwhere(array)
    scores = array[tuple(places.T)]
    if array.dtype != bool:
        order = len(scores) - 1 - np.argsort(scores[::-1], kind="stable")[::-1]  # unsigned scores have no negatives
        places, scores = places[order], scores[order]
    rows = [
        [*(str(i) if isinstance(d, int) else str(d[i]) for i, d in zip(place, given, strict=True)),
         *([] if array.dtype == bool else [f"{score:.4g}"])]
        for place, score in zip(places[:limit].tolist(), scores[:limit].tolist(), strict=True)
    ]  # fmt: skip
    titles = [*(heads or [f"axis {n}" for n in range(array.ndim)]), *([] if array.dtype == bool else ["value"])]
    more = f", the first {limit} shown" if len(places) > limit else ""
    return table(titles, rows) + f"\n{len(places):,} of {array.size:,}{more}"
