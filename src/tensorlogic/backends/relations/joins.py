"""Answering conjunctive queries: atoms are joined one after another, smallest first, and what is not needed any more is projected away.

Queries whose atoms form a circle, such as triangles, are joined variable by variable instead, so that no intermediate result is
larger than need be.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ...errors import OutOfMemoryError
from ...plan.memory import available_memory
from ...plan.queries import Atom, Fixed, Query, Test, Variable
from .. import sparse_rows, tuples
from ..sparse import SparseTensor
from .tables import (
    CODES,
    EMPTY,
    Rows,
    Source,
    among,
    bound_by,
    crossed,
    distinct_rows,
    in_a_circle,
    nothing,
    paired,
    relation_of,
    strides_of,
    variables_of,
    weighted,
)

DENSE_JOIN = 8  # a join goes row by row where the left table has at least one tuple in so many rows
CIRCULAR = 4096  # tuples from which a circular join is done variable by variable
ROW = 48  # bytes that a row of two columns takes while it is joined and sorted; one more column takes 8
EXPANDED = 1 << 21  # pairs of rows up to which a join is written out and sorted
OFFSETS = 8  # keys for each tuple, up to which a table of where each begins is made
FEW = 1 << 12  # rows that there is memory for without asking


class Joins:
    """Answers queries over relations; what is worked out about a relation, such as the keys it is looked up by, is kept."""

    def __init__(self, sizes: Sequence[int], find: Callable[[Any], SparseTensor]) -> None:
        self.sizes, self.find = sizes, find
        self._kept: dict[tuple[Any, ...], tuple[SparseTensor, Any]] = {}

    @cached_property
    def most(self) -> int:
        """The rows that an intermediate result may have."""
        return max(available_memory() // ROW, 1)

    def forget(self, tensors: Iterable[SparseTensor]) -> None:
        """Let go of what is kept about relations that are there no more."""
        gone = {id(t) for t in tensors}
        self._kept = {k: v for k, v in self._kept.items() if k[0] not in gone}

    @property
    def nbytes(self) -> int:
        """The bytes of what is kept about relations, beside what they hold themselves."""
        return sum(int(made.nbytes) for key, (_, made) in self._kept.items() if key[1] != "order")

    def _once(self, tensor: SparseTensor, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        found = self._kept.get((id(tensor), *key))
        if found is None:
            found = self._kept[(id(tensor), *key)] = (tensor, make())
        return found[1]

    def answer(
        self,
        query: Query,
        shape: Sequence[int],
        *,
        given: dict[int, SparseTensor] | None = None,
        first: int | None = None,
    ) -> SparseTensor:
        """Return the answers of a query as a relation of some shape.

        ``given`` has other relations for some of the atoms, by number; ``first`` is the atom to begin with.
        """
        given = given or {}
        sources: list[Source] = []
        begin: Source | None = None
        negated: list[Atom] = []
        for n, atom in enumerate(query.atoms):
            if atom.negated:
                negated.append(atom)
                continue
            source = self._selected(given[n] if n in given else self.find(atom.slot), atom.terms)
            if source.tensor.count == 0:
                return nothing(shape)
            if not source.variables:
                continue
            if n == first:
                begin = source
            else:
                sources.append(source)
        if len(sources) + (begin is not None) == 1 and not negated and not query.tests:
            alone = self._turned(query, begin or sources[0], shape)
            if alone is not None:
                return alone
        shown = tuple(dict.fromkeys(t for t in query.terms if not isinstance(t, Fixed)))
        product = self._product(query, [*([begin] if begin else []), *sources], negated, shape)
        if product is not None:
            return product
        codes = self._circular(query, sources, shown, negated, shape) if begin is None else None
        if codes is not None:
            return SparseTensor.of_codes(codes, shape)
        self._refuse_independent([*([begin] if begin else []), *sources], shown)
        return relation_of(self._joined(query, sources, begin, shown, negated), query, shape)

    def _selected(self, tensor: SparseTensor, terms: Sequence[Any]) -> Source:
        """Return a relation where its constants hold and repeated variables agree, over its different variables."""
        different = tuple(dict.fromkeys(t for t in terms if not isinstance(t, Fixed)))
        if len(different) == len(terms):
            return Source(tensor, different)
        pattern = tuple(t if isinstance(t, Fixed) else -1 - different.index(t) for t in terms)

        def select() -> SparseTensor:
            columns = tensor.columns
            mask = np.ones(tensor.count, np.bool_)
            places: dict[Any, int] = {}
            for axis, t in enumerate(terms):
                if isinstance(t, Fixed):
                    mask &= columns[axis] == t.code
                elif t in places:
                    mask &= columns[axis] == columns[places[t]]
                else:
                    places[t] = axis
            chosen = [columns[places[t]][mask] for t in different]
            if not chosen:
                return SparseTensor.of_codes(np.zeros(int(mask.any()), np.int64), ())
            return SparseTensor.of_columns(chosen, [tensor.shape[places[t]] for t in different])

        return Source(self._once(tensor, ("select", pattern), select), different)

    def _turned(self, query: Query, source: Source, shape: Sequence[int]) -> SparseTensor | None:
        """Return the one relation of a query as it is, or with some of its columns, in another order; None where that is not all."""
        variables = source.variables
        if not query.terms or not all(t in variables for t in query.terms):
            return None
        sizes = [source.tensor.shape[variables.index(t)] for t in query.terms if not isinstance(t, Fixed)]
        if sizes != list(shape):
            return None
        if len(set(query.terms)) == len(query.terms) == len(variables):
            return self._ordered(source, [t for t in query.terms if not isinstance(t, Fixed)])
        return SparseTensor.of_columns([source.tensor.columns[variables.index(t)] for t in query.terms], shape)

    # one atom after another

    def _joined(
        self, query: Query, sources: list[Source], begin: Source | None, shown: Sequence[Variable], negated: list[Atom]
    ) -> Rows:
        tests, negated = list(query.tests), list(negated)
        sources = list(sources)
        if begin is None and sources:
            begin = min(sources, key=lambda s: s.tensor.count)
            sources.remove(begin)
        if begin is None:
            rows = Rows((), (), 1)
        else:
            rows = Rows(begin.variables, begin.tensor.columns, begin.tensor.count)
        while True:
            rows = self._filtered(rows, tests, negated)
            if rows.length == 0:
                return Rows(tuple(shown), tuple(EMPTY for _ in shown), 0)
            if not sources:
                break
            n = self._next(rows, sources)
            source = sources.pop(n)
            needed = {*shown, *variables_of(sources, tests, negated)}
            self._refuse_more(self._pairs(rows, source, needed), len(needed))
            rows = self._extended(rows, source, needed)
        bound = set(rows.variables)
        for v in dict.fromkeys((*shown, *variables_of([], tests, negated))):
            if v not in bound:  # nothing says what it is: every element of its domain
                self._refuse_more(rows.length * self.sizes[v], len(rows.variables) + 1)
                rows = crossed(rows, v, self.sizes[v])
                rows = self._filtered(rows, tests, negated)
        return rows

    def _pairs(self, rows: Rows, source: Source, needed: set[Variable]) -> int:
        """Return the most rows that a join can give; they are counted only where there might be too many."""
        bound = set(rows.variables)
        most = rows.length * source.tensor.count
        kept = math.prod(self.sizes[v] for v in {*rows.variables, *source.variables} if v in needed)
        if min(most, kept) <= FEW or not any(v in needed and v not in bound for v in source.variables):
            return 0
        if rows.length > FEW and min(most, kept) <= self.most // len(source.variables):
            return 0  # a few rows are counted sooner than the memory is asked for
        shared = tuple(v for v in source.variables if v in bound)
        tensor = self._ordered(source, (*shared, *(v for v in source.variables if v not in bound)))
        return min(int(self._matches(rows, tensor, shared)[1].sum()), kept)

    def _refuse_more(self, rows: int, columns: int) -> None:
        if rows <= FEW:
            return
        most = self.most * 6 // max(4 + columns, 6)
        if rows > most:
            message = f"a rule would join up to {rows:,} tuples at once, and there is memory for {most:,}"
            hint = "add an atom that the rule's variables share, or ask for fewer variables in its head"
            raise OutOfMemoryError(message, hint, code="E449")

    def _refuse_independent(self, sources: Sequence[Source], shown: Sequence[Variable]) -> None:
        """Refuse a query whose atoms share nothing, and of which every combination would be an answer, before it begins."""
        answers = 1
        for n, s in enumerate(sources):
            others = {v for m, o in enumerate(sources) if m != n for v in o.variables}
            if set(s.variables) <= set(shown) and others.isdisjoint(s.variables):
                answers *= s.tensor.count
        self._refuse_more(answers, len(shown))

    def _next(self, rows: Rows, sources: Sequence[Source]) -> int:
        """Return the atom to join next: one that only filters, else the one that is thought to give the fewest rows."""
        bound = set(rows.variables)

        def cost(n: int) -> tuple[int, float]:
            s = sources[n]
            shared = [v for v in s.variables if v in bound]
            if len(shared) == len(s.variables):
                return 0, s.tensor.count
            if not shared:
                return 2, s.tensor.count
            distinct = min(math.prod(self.sizes[v] for v in shared), max(rows.length, s.tensor.count))
            return 1, rows.length * s.tensor.count / max(distinct, 1)

        return min(range(len(sources)), key=cost)

    def _extended(self, rows: Rows, source: Source, needed: set[Variable]) -> Rows:
        """Return the join of rows with an atom, without the variables that nobody needs any more."""
        bound = set(rows.variables)
        shared = tuple(v for v in source.variables if v in bound)
        new = tuple(v for v in source.variables if v not in bound)
        if not new:
            return among(rows, source.tensor, source.variables)
        kept = tuple(v for v in (*rows.variables, *new) if v in needed)
        if not any(v in needed for v in new):  # only whether there is one
            narrowed = self._projected(source, shared)
            return distinct_rows(among(rows, narrowed, shared), kept, self.sizes)
        tensor = self._ordered(source, (*shared, *new))
        sizes = [self.sizes[v] for v in kept]
        starts, counts = self._matches(rows, tensor, shared)
        pairs = int(counts.sum())
        if math.prod(sizes) >= CODES:
            i, j = paired(starts, counts)
            right_columns = dict(zip((*shared, *new), tensor.columns, strict=True))
            columns = tuple(rows.column(v)[i] if v in bound else right_columns[v][j] for v in kept)
            return distinct_rows(Rows(kept, columns, pairs), kept, self.sizes)
        strides = dict(zip(kept, strides_of(sizes), strict=True))
        mine = tuple(strides.get(v, 0) for v in new)
        own = [v for v in rows.variables if v in strides]
        left = weighted([rows.column(v) for v in own], [strides[v] for v in own], rows.length)
        if pairs <= EXPANDED:
            i, j = paired(starts, counts)
            right = [tensor.column(a, j) for a in range(len(shared), tensor.ndim)]
            codes = tuples.unique(left[i] + weighted(right, mine))
        else:
            left_keys, keys = self._key_columns(rows, tensor, shared)
            right = weighted(tensor.columns[len(shared) :], mine)
            codes = tuples.join_codes(left, left_keys, right, keys)
        return Rows(kept, tuples.decode(codes, sizes), len(codes))

    def _matches(self, rows: Rows, tensor: SparseTensor, shared: Sequence[Variable]) -> tuple[Any, Any]:
        """Return, for each row, where the tuples of a relation begin that agree with it, and how many there are."""
        count, width = tensor.count, len(shared)
        if not shared:
            return np.zeros(rows.length, np.int64), np.full(rows.length, count)
        space = math.prod(tensor.shape[:width])
        if tensor.ndim == 2 and width == 1 and space <= OFFSETS * count:
            return tensor.spans(rows.column(shared[0]))
        left, keys = self._key_columns(rows, tensor, shared)
        if space <= OFFSETS * count:

            def offsets() -> Any:
                found = np.zeros(space + 1, np.int64)
                np.cumsum(np.bincount(keys, minlength=space), out=found[1:])
                return found

            known = self._once(tensor, ("offsets", width), offsets)
            starts = known[left]
            return starts, known[left + 1] - starts
        starts = np.searchsorted(keys, left)
        return starts, np.searchsorted(keys, left, "right") - starts

    def _key_columns(self, rows: Rows, tensor: SparseTensor, shared: Sequence[Variable]) -> tuple[Any, Any]:
        """Return the values of shared variables as one number, of each row and of each tuple of a relation that begins with them."""
        width = len(shared)
        if not shared:
            return np.zeros(rows.length, np.int64), np.zeros(tensor.count, np.int64)
        own = [rows.column(v) for v in shared]
        if math.prod(tensor.shape[:width]) >= CODES:
            return tuples.numbered(own, tensor.columns[:width])[:2]
        keys = self._once(tensor, ("keys", width), lambda: tuples.encode(tensor.columns[:width], tensor.shape[:width]))
        return tuples.encode(own, [self.sizes[v] for v in shared]), keys

    def _product(
        self, query: Query, sources: Sequence[Source], negated: Sequence[Atom], shape: Sequence[int]
    ) -> SparseTensor | None:
        """Return the join of two tables of two columns over one of them, row by row; None where the query is something else, or small."""
        if len(sources) != 2 or negated or query.tests or len(set(query.terms)) != 2 or len(query.terms) != 2:
            return None
        x, z = query.terms
        if isinstance(x, Fixed) or isinstance(z, Fixed):
            return None
        left, right = sources if x in sources[0].variables else sources[::-1]
        between = set(left.variables) & set(right.variables)
        if len(left.variables) != 2 or len(right.variables) != 2 or len(between) != 1 or between & {x, z}:
            return None
        [y] = between
        if {x, y} != set(left.variables) or {y, z} != set(right.variables) or max(shape) >= 1 << 31:
            return None
        if min(left.tensor.count, right.tensor.count) * DENSE_JOIN < self.sizes[x]:
            return None
        made = sparse_rows.join_rows(self._ordered(left, (x, y)).rows, self._ordered(right, (y, z)).rows, self.sizes[z])
        return SparseTensor.of_rows(*made, shape)

    def _ordered(self, source: Source, order: Sequence[Variable]) -> SparseTensor:
        if tuple(order) == source.variables:
            return source.tensor
        axes = [source.variables.index(v) for v in order]
        found: SparseTensor = self._once(source.tensor, ("order", *axes), lambda: source.tensor.transpose(*axes))
        return found

    def _projected(self, source: Source, variables: Sequence[Variable]) -> SparseTensor:
        """Return a relation without the variables that are not listed."""
        tensor, axes = source.tensor, [source.variables.index(v) for v in variables]

        def project() -> SparseTensor:
            if not axes:
                return SparseTensor.of_codes(np.zeros(min(1, tensor.count), np.int64), ())
            return SparseTensor.of_columns([tensor.columns[a] for a in axes], [tensor.shape[a] for a in axes])

        found: SparseTensor = self._once(tensor, ("project", *axes), project)
        return found

    def _filtered(self, rows: Rows, tests: list[Test], negated: list[Atom]) -> Rows:
        """Apply the tests and negated atoms whose variables are bound, and take them off their lists; a test may bind one more."""
        moved = True
        while moved:
            moved = False
            bound = set(rows.variables)
            for test in list(tests):
                unbound = test.variables() - bound
                if not unbound:
                    tests.remove(test)
                    held = test.holds(dict(zip(rows.variables, rows.columns, strict=True)))
                    rows = rows.where(np.broadcast_to(held, (rows.length,)))
                elif len(unbound) == 1 and (wider := bound_by(test, unbound.pop(), rows, self.sizes)) is not None:
                    tests.remove(test)
                    rows, moved = wider, True
                    break
            bound = set(rows.variables)
            for atom in list(negated):
                if all(isinstance(t, Fixed) or t in bound for t in atom.terms):
                    negated.remove(atom)
                    source = self._selected(self.find(atom.slot), atom.terms)
                    rows = among(rows, source.tensor, source.variables, absent=True)
        return rows

    # all atoms at once

    def _circular(
        self,
        query: Query,
        sources: Sequence[Source],
        shown: Sequence[Variable],
        negated: Sequence[Atom],
        shape: Sequence[int],
    ) -> Any:
        """Return the answers of a query whose atoms form a circle, or None where they do not, or where that would not pay."""
        if len(sources) < 3 or negated or query.tests or not shown or math.prod(shape) >= CODES:
            return None
        if max(s.tensor.count for s in sources) < CIRCULAR or not in_a_circle(sources):
            return None
        hidden = dict.fromkeys(v for s in sources for v in s.variables if v not in shown)
        if not {*shown}.issubset({v for s in sources for v in s.variables}):
            return None
        number = {v: n for n, v in enumerate((*shown, *hidden))}
        atoms = []
        for s in sources:
            order = sorted(s.variables, key=number.__getitem__)
            atoms.append((self._ordered(s, order).columns, tuple(number[v] for v in order)))
        weight = dict.fromkeys(shown, 0)
        start = 0
        for t, stride in zip(query.terms, strides_of(shape), strict=True):
            if isinstance(t, Fixed):
                start += t.code * stride
            else:
                weight[t] += stride
        codes = tuples.multiway(atoms, len(shown), [weight[v] for v in shown])
        return codes if start == 0 else codes + start
