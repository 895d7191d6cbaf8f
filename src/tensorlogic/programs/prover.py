"""Proving atoms: what a goal needs is derived, and every derivation is kept, so that the lowest proof can be read off.

A table holds the tuples of a relation that have some codes in some places. A rule whose literal asks a table waits for its tuples; the
first to ask makes the table, and so nothing is derived that nobody asks for. All waiting is in lists: depth costs no stack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from ..lang import syntax as s
from .clauses import Bindings, Clause, Codes, Literal, Pattern, Stored, Values
from .evaluate import Evaluation

MOST_STEPS = 500_000  # ways to derive an atom that the search for a proof keeps

Atom = tuple[str, Codes]
Rows = Callable[[str, Pattern, Codes], list[Codes]]  # the tuples of a relation that have some codes in some places


class Instance(NamedTuple):
    """A rule with its variables bound, so that its body holds."""

    clause: Clause
    bindings: Bindings
    derived: tuple[Atom, ...]  # the atoms of its body that rules derive
    facts: int  # how many atoms of its body are facts


class _Table:
    """The tuples of a relation that fit a question, and the rules that wait for more of them."""

    def __init__(self) -> None:
        self.answers: list[Codes] = []
        self.known: set[Codes] = set()
        self.waiting: list[tuple[_Order, int, Bindings]] = []


class _Lookup(NamedTuple):
    """A literal where some variables are known: the key that it is looked up by, and what its tuples say."""

    literal: Literal
    derived: bool
    places: Pattern
    key: tuple[tuple[bool, int], ...]  # a code, or the number of a variable
    new: tuple[tuple[int, int], ...]  # places, and the variables that they bind
    same: tuple[tuple[int, int], ...]  # places, and variables that stand in an earlier place too

    def codes(self, bindings: Bindings) -> Codes:
        """Return the codes of the places that are known."""
        return tuple([value if fixed else bindings[value] for fixed, value in self.key])  # type: ignore[misc]

    def bound(self, bindings: Bindings, row: Codes) -> Bindings | None:
        """Return the bindings with what a tuple says that has the key; None where it does not fit."""
        if len(self.new) == 1:
            [(place, variable)] = self.new
            found = (*bindings[:variable], row[place], *bindings[variable + 1 :])
        elif self.new:
            extended = list(bindings)
            for place, variable in self.new:
                extended[variable] = row[place]
            found = tuple(extended)
        else:
            return bindings
        for place, variable in self.same:
            if found[variable] != row[place]:
                return None
        return found


def _lookup(literal: Literal, known: set[int], derived: bool) -> _Lookup:
    places, key, new, same = [], [], [], []
    bound: set[int] = set()
    for place, (kind, value) in enumerate(literal.terms):
        if kind == "code" or value in known:
            places.append(place)
            key.append((kind == "code", value))
        elif value in bound:
            same.append((place, value))
        else:
            bound.add(value)
            new.append((place, value))
    return _Lookup(literal, derived, tuple(places), tuple(key), tuple(new), tuple(same))


class _Order(NamedTuple):
    """A clause for a head some places of which are known: its literals in the order in which they are looked up."""

    clause: Clause
    table: tuple[str, Pattern]
    lookups: tuple[_Lookup, ...]
    derived: tuple[tuple[str, tuple[tuple[str, int], ...]], ...]  # the atoms of its body that rules derive
    facts: int  # how many others there are


class TooMany(Exception):  # noqa: N818 - it is caught here: the engine goes on
    """There are more ways to derive things than are kept."""


class Prover:
    """Answers questions about the relations of an evaluation, and keeps how each answer is derived."""

    def __init__(self, evaluation: Evaluation) -> None:
        self.evaluation, self.model = evaluation, evaluation.model
        analysis = self.model.analysis
        self.clauses: dict[str, list[Clause]] = defaultdict(list)
        number = 0
        for component in analysis.components:
            for statement in component.statements:
                if component.boolean:
                    self.clauses[statement.head.name].append(Clause(number, statement, analysis))
                number += 1
        self.values = Values(analysis, evaluation.value)
        self.instances: dict[Atom, list[Instance]] = defaultdict(list)
        self._stored: dict[str, Stored] = {}
        self._facts: dict[str, Stored] = {}
        self._tables: dict[tuple[str, Pattern, Codes], _Table] = {}
        self._orders: dict[tuple[str, Pattern], list[_Order]] = {}
        self._tasks: list[tuple[_Order, int, Bindings]] = []
        self.steps = 0
        self.given_up = False  # the search took too long; relations are looked up in full

    def derived(self, name: str) -> bool:
        """Tell whether rules derive a relation."""
        return name in self.clauses

    def facts(self, name: str) -> Stored:
        """Return the facts of a relation that rules derive too."""
        if name not in self._facts:
            self._facts[name] = Stored(self.evaluation.facts(name))
        return self._facts[name]

    def stored(self, name: str) -> Stored:
        """Return a relation in full."""
        if name not in self._stored:
            self._stored[name] = Stored(self.evaluation.relation(name))
        return self._stored[name]

    def rows(self, name: str, places: Pattern, codes: Codes) -> list[Codes]:
        """Return the tuples of a relation that have some codes in some places."""
        found = self._searched(name, places, codes) if self.derived(name) else None
        return self.stored(name).rows(places, codes) if found is None else found

    def _searched(self, name: str, places: Pattern, codes: Codes) -> list[Codes] | None:
        """Return the tuples of a derived relation that a search finds; None where it takes too long."""
        if self.given_up:
            return None
        try:
            table = self._table(name, places, codes)
            self._run()
        except TooMany:
            self.given_up = True
            for kept in (self.instances, self._tables, self._tasks):
                kept.clear()
            return None
        return table.answers

    def proofs(self, goal: Atom) -> dict[Atom, Best] | None:
        """Return the lowest proof of an atom and of all below it; None where it does not hold."""
        found = self._searched(goal[0], tuple(range(len(goal[1]))), goal[1])
        if found is None:
            from .rounds import lowest_by_rounds

            return lowest_by_rounds(self, goal)
        return lowest(self, goal) if found else None

    def absent(self, clause: Clause, literal: Literal, bindings: Bindings) -> bool:
        """Tell whether no tuple fits a negated atom."""
        places, codes = clause.key(literal, bindings)
        found = self.stored(literal.name).rows(places, codes)
        return not any(clause.bound(literal, bindings, row) is not None for row in found)

    def solutions(
        self, clause: Clause, literal: Literal, bindings: Bindings, rows: Rows | None = None
    ) -> list[Bindings]:
        """Return the bindings under which one literal of a clause holds; ``rows`` gives the tuples of an atom."""
        if literal.kind == "compare":
            return self.values.solutions(clause, literal, bindings)
        if literal.kind == "not":
            return [bindings] if self.absent(clause, literal, bindings) else []
        found = (rows or self.rows)(literal.name, *clause.key(literal, bindings))
        return [b for row in found if (b := clause.bound(literal, bindings, row)) is not None]

    def matches(self, clause: Clause, bindings: Bindings, rows: Rows | None = None) -> Iterator[Bindings]:
        """Go through the ways in which the body of a clause holds."""
        literals = self.order(clause, [v for v, code in enumerate(bindings) if code is not None])
        pending = [(0, bindings)]
        while pending:
            position, known = pending.pop()
            if position == len(literals):
                yield known
            else:
                found = self.solutions(clause, literals[position], known, rows)
                pending.extend((position + 1, b) for b in reversed(found))

    # tables

    def _table(self, name: str, places: Pattern, codes: Codes) -> _Table:
        key = (name, places, codes)
        table = self._tables.get(key)
        if table is None:
            table = self._tables[key] = _Table()
            if min(codes, default=0) < 0:
                return table  # a constant that no tuple has
            for row in self.facts(name).rows(places, codes):
                self._add(table, row)
            start: list[int | None] = [None] * self.model.analysis.tensors[name].arity
            for place, code in zip(places, codes, strict=True):
                start[place] = code
            self._tasks += [(order, 0, order.clause.unified(start)) for order in self._ordered(name, places)]
        return table

    def _add(self, table: _Table, row: Codes) -> None:
        if row in table.known:
            return
        table.known.add(row)
        table.answers.append(row)
        for order, position, bindings in table.waiting:
            if (extended := order.lookups[position - 1].bound(bindings, row)) is not None:
                self._tasks.append((order, position, extended))

    def _run(self) -> None:
        tasks = self._tasks
        while tasks:
            order, position, bindings = tasks.pop()
            if position == len(order.lookups):
                self._derive(order, bindings)
                continue
            lookup = order.lookups[position]
            literal = lookup.literal
            position += 1
            if literal.kind == "compare":
                found = self.values.solutions(order.clause, literal, bindings)
                tasks += [(order, position, b) for b in found]
            elif literal.kind == "not":
                if self.absent(order.clause, literal, bindings):
                    tasks.append((order, position, bindings))
            else:
                codes = lookup.codes(bindings)
                if lookup.derived:
                    table = self._table(literal.name, lookup.places, codes)
                    table.waiting.append((order, position, bindings))
                    rows = table.answers
                else:
                    rows = self._stored[literal.name].rows(lookup.places, codes)
                for row in rows:
                    if (extended := lookup.bound(bindings, row)) is not None:
                        tasks.append((order, position, extended))

    def _derive(self, order: _Order, bindings: Bindings) -> None:
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise TooMany
        name, places = order.table
        row: Codes = tuple([bindings[v] for v in order.clause.head])  # type: ignore[misc]
        derived = tuple(
            [(other, tuple([v if k == "code" else bindings[v] for k, v in terms])) for other, terms in order.derived]
        )
        self.instances[name, row].append(Instance(order.clause, bindings, derived, order.facts))  # type: ignore[arg-type]
        self._add(self._tables[name, places, tuple([row[p] for p in places])], row)

    def _ordered(self, name: str, places: Pattern) -> list[_Order]:
        if (name, places) not in self._orders:
            self._orders[name, places] = [self._order(c, places) for c in self.clauses[name]]
        return self._orders[name, places]

    def _order(self, clause: Clause, places: Pattern) -> _Order:
        known = {clause.head[p] for p in places}
        lookups = []
        for literal in self.order(clause, known):
            derived = self.derived(literal.name)
            if literal.kind == "atom" and not derived:
                self.stored(literal.name)
            lookups.append(_lookup(literal, known, derived))
            known |= literal.variables
        atoms = [x for x in clause.literals if x.kind == "atom"]
        below = tuple((x.name, x.terms) for x in atoms if self.derived(x.name))
        return _Order(clause, (clause.name, places), tuple(lookups), below, len(atoms) - len(below))

    def order(self, clause: Clause, known: Iterable[int]) -> list[Literal]:
        """Return the literals of a clause in the order in which to look them up: what is known and what leaves few choices first."""
        have, rest, found = set(known), list(clause.literals), []
        while rest:
            chosen = min(rest, key=lambda x: self.rank(clause, x, have))
            rest.remove(chosen)
            have |= chosen.variables
            found.append(chosen)
        return found

    def rank(self, clause: Clause, literal: Literal, have: set[int]) -> tuple[int, float]:
        """Return how early to look a literal up, where some variables are known: the least first."""
        open_ = literal.variables - have
        match literal.kind:
            case "compare":
                if not open_:
                    return 0, 0.0
                return (0, 1.0) if binds(clause, literal, open_) else (6, float(len(open_)))
            case "not":
                elsewhere = {v for x in clause.literals if x is not literal for v in x.variables}
                return (0, 2.0) if not open_ & elsewhere else (7, 0.0)
        places = tuple(p for p, (kind, v) in enumerate(literal.terms) if kind == "code" or v in have)
        share = len(places) / max(1, len(literal.terms))
        if not self.derived(literal.name):
            return (1 if not open_ else 2 if places else 4), self.stored(literal.name).tuples_per_choice(places)
        return (1 if not open_ else 3 if places else 5), 1.0 - share


def binds(clause: Clause, literal: Literal, open_: frozenset[int] | set[int]) -> bool:
    """Tell whether an equation says what its one unknown variable is."""
    part = literal.part
    if not isinstance(part, s.Comparison) or part.operator != "=" or len(open_) != 1:
        return False
    [variable] = open_
    name = clause.names[variable]
    sides = ((part.left, part.right), (part.right, part.left))
    return any(isinstance(a, s.Variable) and a.name == name and name not in s.variables(b) for a, b in sides)


class Best(NamedTuple):
    """The lowest proof of an atom: its height, how many facts it has, counted in each branch, and its last step."""

    height: int
    size: int
    instance: Instance | None  # None: a fact


def lowest(prover: Prover, goal: Atom) -> dict[Atom, Best]:
    """Return the lowest proofs of the goal and of the atoms below it; of several the one with the fewest facts.

    A round finds all that follows from the rounds before, so that the number of the round is the height.
    """
    waiting: dict[Atom, list[tuple[Atom, Instance]]] = defaultdict(list)
    missing: dict[int, int] = {}
    best: dict[Atom, Best] = {}
    ready: list[tuple[Atom, Instance]] = []
    new: list[Atom] = []
    for atom, instances in prover.instances.items():
        for instance in instances:
            below = set(instance.derived)
            missing[id(instance)] = len(below)
            for other in below:
                waiting[other].append((atom, instance))
            if not below:
                ready.append((atom, instance))
    atoms = {goal, *prover.instances, *waiting}
    for atom in atoms:
        if prover.facts(atom[0]).has(atom[1]):
            best[atom] = Best(0, 1, None)
            new.append(atom)
    height = 0
    while goal not in best and (new or ready):
        for atom in new:
            for head, instance in waiting[atom]:
                missing[id(instance)] -= 1
                if not missing[id(instance)]:
                    ready.append((head, instance))
        height += 1
        found: dict[Atom, Best] = {}
        for head, instance in ready:
            if head in best:
                continue
            size = instance.facts + sum(best[a].size for a in instance.derived)
            before = found.get(head)
            if before is None or (size, _first(instance)) < (before.size, _first(before.instance)):
                found[head] = Best(height, size, instance)
        best.update(found)
        new, ready = list(found), []
    return best


def _first(instance: Instance | None) -> tuple[int, Sequence[int]]:
    assert instance is not None
    return instance.clause.number, [-1 if b is None else b for b in instance.bindings]
