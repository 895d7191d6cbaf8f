"""Conjunctive queries: what a Boolean step of a plan asks for, as atoms over stored relations and tests of index values.

A query has a term for every axis of its result: a variable, or a constant. ``einsum("xy,yz->xz", sister, parent)`` is the query
``(x, z) <- sister(x, y), parent(y, z)``. Views, complements and comparisons of indices are read into the queries that use them; only
unions and what is used several times are relations of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np


class Fixed(NamedTuple):
    """A constant in the place of a variable."""

    code: int


Variable = int  # numbered by the reader, which knows the size of each
Term = Variable | Fixed


class Atom(NamedTuple):
    """A stored relation, by its slot, with a term for each of its axes; negated: where it does not hold."""

    slot: Any
    terms: tuple[Term, ...]
    negated: bool = False


class Value(NamedTuple):
    """A number made of index variables: a variable, a constant, a look-up in a table, or a function of two values."""

    op: str  # "index", "number", "table", or the name of an element-wise function
    args: tuple[Any, ...]

    def variables(self) -> Iterator[Variable]:
        """Go through the variables it depends on."""
        if self.op == "index":
            yield from (t for t in self.args if not isinstance(t, Fixed))
        else:
            for a in self.args:
                if isinstance(a, Value):
                    yield from a.variables()

    def replaced(self, term: Callable[[Term], Term]) -> Value:
        """Return the value over other terms."""
        if self.op == "index":
            return Value("index", (term(self.args[0]),))
        return Value(self.op, tuple(a.replaced(term) if isinstance(a, Value) else a for a in self.args))

    def compute(self, columns: dict[Variable, Any]) -> Any:
        """Return the value for each row of some columns."""
        match self.op:
            case "index":
                [t] = self.args
                return np.int64(t.code) if isinstance(t, Fixed) else columns[t].astype(np.int64, copy=False)
            case "number":
                return self.args[0]
            case "table":
                return self.args[0][self.args[1].compute(columns)]
            case _:
                return FUNCTIONS[self.op](*[a.compute(columns) for a in self.args])


class Test(NamedTuple):
    """A comparison of two values."""

    fn: str
    left: Value
    right: Value

    def variables(self) -> set[Variable]:
        """Return the variables it depends on."""
        return {*self.left.variables(), *self.right.variables()}

    def replaced(self, term: Callable[[Term], Term]) -> Test:
        """Return the comparison over other terms."""
        return Test(self.fn, self.left.replaced(term), self.right.replaced(term))

    def holds(self, columns: dict[Variable, Any]) -> Any:
        """Return, for each row of some columns, whether it holds."""
        return FUNCTIONS[self.fn](self.left.compute(columns), self.right.compute(columns))


class Query(NamedTuple):
    """A conjunction: the tuples of ``terms`` for which every atom and every test holds."""

    terms: tuple[Term, ...]
    atoms: tuple[Atom, ...] = ()
    tests: tuple[Test, ...] = ()

    def variables(self) -> set[Variable]:
        """Return every variable, those that the result does not show too."""
        found = {t for t in self.terms if not isinstance(t, Fixed)}
        found |= {t for atom in self.atoms for t in atom.terms if not isinstance(t, Fixed)}
        return found.union(*(test.variables() for test in self.tests))

    def replaced(self, term: Callable[[Term], Term]) -> Query:
        """Return the query over other terms."""
        return Query(
            tuple(map(term, self.terms)),
            tuple(Atom(a.slot, tuple(map(term, a.terms)), a.negated) for a in self.atoms),
            tuple(t.replaced(term) for t in self.tests),
        )


class Number(NamedTuple):
    """A tensor of numbers that is a function of its indices: a term for each axis, and the value."""

    terms: tuple[Term, ...]
    value: Value


FUNCTIONS: dict[str, Callable[..., Any]] = {
    name: getattr(np, name)
    for name in (
        "add subtract multiply floor_divide negative remainder minimum maximum absolute equal not_equal less less_equal greater "
        "greater_equal"
    ).split()
}
OPPOSITE = {
    "equal": "not_equal",
    "not_equal": "equal",
    "less": "greater_equal",
    "greater_equal": "less",
    "greater": "less_equal",
    "less_equal": "greater",
}
COMPARISONS = frozenset(OPPOSITE)


class Clash(Exception):  # noqa: N818 - it says that a query has no answers, which is no error
    """Two constants that would have to be equal and are not."""


class Unifier:
    """Terms that must be equal: what each variable stands for; ``sizes`` gives the size of each variable."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = sizes
        self.tests: list[Test] = []  # that a variable which stands for a shorter one is within its range
        self._stands_for: dict[Variable, Term] = {}

    def __call__(self, term: Term) -> Term:
        """Return what a term stands for."""
        while not isinstance(term, Fixed) and term in self._stands_for:
            term = self._stands_for[term]
        return term

    def equate(self, a: Term, b: Term) -> None:
        """Make two terms equal; raise :class:`Clash` where they are different constants."""
        a, b = self(a), self(b)
        if a == b:
            return
        if isinstance(a, Fixed):
            a, b = b, a
        if isinstance(a, Fixed):
            raise Clash
        if isinstance(b, Fixed):
            if not 0 <= b.code < self.sizes[a]:
                raise Clash
        elif self.sizes[a] < self.sizes[b]:
            self.tests.append(Test("less", Value("index", (b,)), Value("number", (self.sizes[a],))))
        elif self.sizes[b] < self.sizes[a]:
            self.tests.append(Test("less", Value("index", (b,)), Value("number", (self.sizes[b],))))
        self._stands_for[a] = b


def conjoined(
    terms: Sequence[Term],
    parts: Iterable[Query],
    sizes: Sequence[int],
    equal: Iterable[tuple[Term, Term]] = (),
    tests: Iterable[Test] = (),
) -> Query | None:
    """Return the conjunction of queries under equations of their terms, or None where it can have no answers."""
    unify = Unifier(sizes)
    parts = tuple(parts)
    try:
        for a, b in equal:
            unify.equate(a, b)
    except Clash:
        return None
    whole = Query(tuple(terms), tuple(a for q in parts for a in q.atoms), tuple(t for q in parts for t in q.tests))
    return _settled(whole._replace(tests=(*whole.tests, *tests)), unify)


def _settled(query: Query, unify: Unifier) -> Query | None:
    """Replace terms by what they stand for; tests that only say which term a variable is become equations."""
    while True:
        query = query._replace(tests=(*query.tests, *unify.tests)).replaced(unify)
        unify.tests = []
        found = [t for t in query.tests if t.fn == "equal" and t.left.op == t.right.op == "index"]
        if not found:
            break
        try:
            for test in found:
                unify.equate(test.left.args[0], test.right.args[0])
        except Clash:
            return None
        query = query._replace(tests=tuple(t for t in query.tests if t not in found))
    open_tests = []
    for test in query.tests:
        if test.variables():
            open_tests.append(test)
        elif not test.holds({}):
            return None
    return query._replace(atoms=tuple(dict.fromkeys(query.atoms)), tests=tuple(open_tests))
