"""The tensors of a run, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import expect
from ..lang.show import PrintsAsTable, Shown, show, shown_parts
from ..store import Lock
from .answers import unknown_relation
from .ask import place_heads
from .evaluate import Evaluation
from .sources import Sources


class Results(PrintsAsTable, Mapping[str, Any]):
    """The tensors that a program derives, by name; each is computed when it is first asked for, and is a NumPy array.

    A relation becomes an array of truth values; ``Program.relation`` gives it by names, and without the memory of an array. Arrays
    are the caller's own: writing to one changes neither the program, nor what was given, nor another run. What was given is read
    when a tensor is computed, so leave it as it is until then.

    >>> from tensorlogic import Program
    >>> found = Program("X = [1, 2]; Y = X[i] X[i]; Z[i] = X[i] + Y").run()
    >>> list(found), found["Y"].item(), found["Z"].tolist()
    (['X', 'Y', 'Z'], 5.0, [6.0, 7.0])
    """

    def __init__(self, evaluation: Evaluation, lock: Lock, sources: Sources) -> None:
        self._evaluation, self._lock, self._sources = evaluation, lock, sources
        self._names = [n for c in evaluation.model.analysis.components for n in c.names]
        self._found: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        expect(name, str, "a tensor is named by text", 'such as results["Y"]')
        if name not in self._found:
            with self._lock, self._sources:
                if name not in self._evaluation.model.analysis.tensors:
                    raise unknown_relation(name, list(self._evaluation.model.analysis.tensors))
                value = self._evaluation.value(name)
            # the program goes on to use what it computed, and what it was given is the caller's
            self._found[name] = value.copy() if isinstance(value, np.ndarray) else np.asarray(value)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name in self._evaluation.model.analysis.tensors

    def missing_inputs(self) -> list[str]:
        """Return the tensors and relations that the program reads and that nothing gives yet.

        >>> from tensorlogic import Program
        >>> Program("Y[i] = W[i,j] X[j]; X = [1, 2]").run().missing_inputs()
        ['W']
        """
        model, bound = self._evaluation.model, self._evaluation.bound
        derived = {n for c in model.analysis.components for n in c.names}
        return [n for n in model.analysis.tensors if not (n in derived or n in bound or model.has_facts(n))]

    def shown(self, limit: int = 50) -> Shown:
        """Return a table of each tensor, by names."""
        model = self._evaluation.model
        parts = {}
        for n in self:
            names = [d.names() for d in model.place_domains(n)]
            parts[n] = _shown(self[n], names, place_heads(model, n), limit)
        return shown_parts(parts)

    def __repr__(self) -> str:
        return f"Results({', '.join(self._names)})"


def _shown(array: Any, names: list[list[Any]], heads: list[str], limit: int) -> Shown:
    fits = len(names) == array.ndim and all(len(n) == size for n, size in zip(names, array.shape, strict=True))
    titles = heads if len(heads) == array.ndim else []
    return show(array, *(names if fits else array.shape), heads=titles, limit=limit, above=-np.inf)
