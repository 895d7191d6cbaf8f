"""The variables of queries, and what joins, broadcasting and views make of queries over them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..ir import ops
from ..ir.ops import Op
from .queries import Fixed, Number, Query, Term, Test, Value, conjoined

ZERO = Fixed(0)


class Variables:
    """Numbers variables; ``sizes`` has the size of each."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def variable(self, size: int) -> int:
        """Return a new variable."""
        self.sizes.append(size)
        return len(self.sizes) - 1

    def terms(self, shape: Sequence[int]) -> tuple[Term, ...]:
        """Return new variables for the axes of a shape; an axis of size 1 has the constant 0."""
        return tuple(ZERO if n == 1 else self.variable(n) for n in shape)

    def renamed(self, read: Query | Number) -> Any:
        """Return a query or number over variables of its own."""
        if isinstance(read, Query):
            every = read.variables()
        else:
            every = {t for t in read.terms if not isinstance(t, Fixed)}.union(read.value.variables())
        names = {v: self.variable(self.sizes[v]) for v in every}

        def rename(t: Term) -> Term:
            return t if isinstance(t, Fixed) else names[t]

        if isinstance(read, Query):
            return read.replaced(rename)
        return Number(tuple(map(rename, read.terms)), read.value.replaced(rename))

    def joined(self, parts: Sequence[Query], labels: Sequence[Sequence[str]], output: Sequence[str]) -> Query | None:
        """Return the einsum of queries: places with one label are equal. None where it can have no answers."""
        terms: dict[str, Term] = {}
        equal: list[tuple[Term, Term]] = []
        for part, own in zip(parts, labels, strict=True):
            for t, label in zip(part.terms, own, strict=True):
                if label not in terms or (terms[label] == ZERO and t != ZERO and self._wide(t)):
                    terms[label] = t
                elif t != ZERO or not self._wide(terms[label]):
                    equal.append((terms[label], t))
        return conjoined([terms[x] for x in output], parts, self.sizes, equal)

    def _wide(self, t: Term) -> bool:
        return not isinstance(t, Fixed) and self.sizes[t] != 1

    def both(
        self, a: Query | None, a_shape: Sequence[int], b: Query | None, b_shape: Sequence[int], shape: Sequence[int]
    ) -> Query | None:
        """Return the conjunction of two queries, repeated to a shape; None where it can have no answers."""
        if a is None or b is None:
            return None
        return self.aligned([a, b], [a_shape, b_shape], shape)

    def aligned(
        self,
        parts: Sequence[Query | Number],
        shapes: Sequence[Sequence[int]],
        shape: Sequence[int],
        test: Test | None = None,
    ) -> Query | None:
        """Return the conjunction of what operands say, with NumPy's rules of broadcasting."""
        terms, equal = self.broadcast(parts, shapes, shape)
        queries = [q for q in parts if isinstance(q, Query)]
        return conjoined(terms, queries, self.sizes, equal, [] if test is None else [test])

    def broadcast(
        self, parts: Sequence[Query | Number], shapes: Sequence[Sequence[int]], shape: Sequence[int]
    ) -> tuple[list[Term], list[tuple[Term, Term]]]:
        """Return the terms of operands repeated to a shape, and those that are equal."""
        terms: list[Term] = []
        equal: list[tuple[Term, Term]] = []
        for axis, n in enumerate(shape):
            own = [
                p.terms[axis - len(shape) + len(s)]
                for p, s in zip(parts, shapes, strict=True)
                if axis - len(shape) + len(s) >= 0 and s[axis - len(shape) + len(s)] == n
            ]
            terms.append(own[0] if own else self.variable(n))
            equal += [(own[0], t) for t in own[1:]]
        return terms, equal

    def shifted(
        self,
        query: Query,
        offsets: Sequence[int],
        before: Sequence[int],
        shape: Sequence[int],
        step: Sequence[int] = (),
    ) -> Query | None:
        """Return a query whose axes stand for index - offset of those it had, within another shape."""
        terms: list[Term] = []
        tests: list[Test] = []
        equal: list[tuple[Term, Term]] = []
        for axis, (t, offset, old, n) in enumerate(zip(query.terms, offsets, before, shape, strict=True)):
            every = step[axis] if step else 1
            if offset == 0 and every == 1 and old <= n:
                terms.append(t)
            elif isinstance(t, Fixed) and every == 1:
                if not 0 <= t.code + offset < n:
                    return None
                terms.append(Fixed(t.code + offset))
            elif n == 1:
                equal.append((t, Fixed(-offset)))
                terms.append(ZERO)
            else:
                new = self.variable(n)
                moved = Value("index", (new,))
                if every != 1:
                    moved = Value("multiply", (moved, Value("number", (every,))))
                sign = "subtract" if offset > 0 else "add"
                there = Value(sign, (moved, Value("number", (abs(offset),)))) if offset else moved
                tests.append(Test("equal", Value("index", (t,)), there))
                terms.append(new)
        return conjoined(terms, [query], self.sizes, equal, tests)

    def view(self, op: Op, read: Query, before: tuple[int, ...], shape: tuple[int, ...]) -> Query | None:
        """Return a query whose axes are sliced, reshaped, transposed or repeated; None where it can have no answers."""
        match op:
            case ops.Slice():
                offsets = [-int(start) for start, _, _ in op.ranges]
                steps = [every for _, _, every in op.ranges]
                return self.shifted(read, offsets, before, shape, steps)
            case _:
                terms = self.viewed(op, read.terms, before, shape)
                return read._replace(terms=terms)

    def viewed(self, op: Op, terms: Sequence[Term], before: Sequence[int], shape: Sequence[int]) -> tuple[Term, ...]:
        """Return the terms of a reshaped, transposed or repeated tensor."""
        match op:
            case ops.Transpose():
                return tuple(terms[a] for a in op.order)
            case ops.Broadcast():
                place = {axis: n for n, axis in enumerate(op.axes)}
                return tuple(
                    terms[place[a]] if a in place and before[place[a]] == n else self.variable(n)
                    for a, n in enumerate(shape)
                )
            case _:  # axes of size 1 come and go
                rest = iter([t for t, n in zip(terms, before, strict=True) if n != 1])
                return tuple(ZERO if n == 1 else next(rest) for n in shape)
