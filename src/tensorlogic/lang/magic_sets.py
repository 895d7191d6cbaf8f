"""Demand: rules rewritten so that a query with constants explores only what it needs (magic sets).

``Ancestor(Alice, x)?`` asks for the ancestors of one person. Each relation is copied for the places of it that are known when it is
asked for (its *adornment*: ``bf``, bound and free), and each copy has a relation of demands, which holds the values that are asked for.
A rule of the copy holds only where there is a demand; the demands of one rule follow from the literals that stand before an atom.
Relations under a negation or an aggregate, and those that are asked for without any value, are computed in full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from .syntax import Comparison, Constant, Equation, Expression, Not, Place, Rule, Tensor, Variable, variables

MAX_COPIES = 500  # copies of relations, over which the whole program is cheaper
ANSWER, DEMAND, FACTS = "answer", "demand", "facts"
Step = Callable[[Place, Place], Tensor]


class Demand(NamedTuple):
    """Rewritten rules: their answers are in ``answer``, once ``seed`` holds the tuple of ``constants``.

    ``full`` names the derived relations that the rules read as they are; ``facts`` those whose facts alone are read, under the
    name that :func:`facts_name` gives.
    """

    rules: tuple[Rule, ...]
    answer: str
    seed: str
    constants: tuple[Constant, ...]
    heads: tuple[str, ...]  # the variables of the query, in the last places of the answer
    full: frozenset[str]
    facts: frozenset[str]


def facts_name(name: str) -> str:
    """Return the name under which the facts of a relation that has rules too are read."""
    return f"{name}@{FACTS}"


def as_rule(body: Sequence[Expression]) -> tuple[Rule, tuple[Constant, ...], tuple[str, ...]]:
    """Turn a query into a rule whose head has the query's constants in its first places, as variables, and then its variables."""
    constants: list[Constant] = []
    literals: list[Expression] = []
    for literal in body:
        if isinstance(literal, Tensor):
            places = []
            for place in literal.places:
                if isinstance(place.index, Constant):
                    constants.append(place.index)
                    place = Place(index=_constant_variable(len(constants)))
                places.append(place)
            literal = Tensor(name=literal.name, places=tuple(places), boolean=literal.boolean, at=literal.at)
        literals.append(literal)
    heads = _asked(body)
    names = [_constant_variable(n + 1) for n in range(len(constants))] + [Variable(name=h) for h in heads]
    head = Tensor(name=f"@{ANSWER}", places=tuple(Place(index=v) for v in names), boolean=True)
    return Rule(head=head, body=tuple(literals)), tuple(constants), heads


def _asked(body: Sequence[Expression]) -> tuple[str, ...]:
    """Return the variables that a query asks for: all of its own, each once; ``_`` and those of negated atoms alone are none."""
    shown = dict.fromkeys(v for literal in body if not isinstance(literal, Not) for v in variables(literal))
    return tuple(v for v in shown if not v.startswith("_"))


def _constant_variable(number: int) -> Variable:
    return Variable(name=f"@{number}")


def demanded(
    statements: Iterable[object], body: Sequence[Expression], facts: Collection[str] = (), *, as_written: bool = False
) -> Demand | None:
    """Rewrite rules for a query; ``facts`` names the relations that have facts. None where it does not pay or cannot be done.

    ``as_written`` keeps the form of every rule, so that what its body needs is derived: a proof needs to know that.

    >>> from tensorlogic.lang.format import text_of
    >>> x, y, z = (Place(index=Variable(name=n)) for n in "xyz")
    >>> path = lambda *p: Tensor(name="Path", places=p, boolean=True)
    >>> edge = lambda *p: Tensor(name="Edge", places=p, boolean=True)
    >>> rules = [Rule(head=path(x, y), body=(edge(x, y),)), Rule(head=path(x, z), body=(edge(x, y), path(y, z)))]
    >>> found = demanded(rules, [path(Place(index=Constant(value="A")), y)])
    >>> for rule in found.rules:
    ...     print(text_of(rule))
    Path@bf@demand(@1) <- @answer@bf@demand(@1)
    @answer@bf(@1, y) <- @answer@bf@demand(@1), Path@bf(@1, y)
    Path@bf(@x, @y) <- Path@bf@demand(@x), Edge(@x, @y)
    Path@bf(@x, @z) <- Path@bf(@x, @y), Edge(@y, @z)
    """
    rules: dict[str, list[Rule]] = {}
    whole: set[str] = set()  # relations that are not only made of plain rules
    for statement in statements:
        if isinstance(statement, Rule):
            rules.setdefault(statement.head.name, []).append(statement)
        elif isinstance(statement, Equation):
            whole.add(statement.head.name)
    for name, group in rules.items():
        if name not in whole and not all(_plain(rule) for rule in group):
            whole.add(name)
    query, constants, heads = as_rule(body)
    if not constants or not _plain(query):
        return None
    return _Rewriting(rules, whole, set(facts), as_written).run(query, constants, heads)


def _plain(rule: Rule) -> bool:
    """Tell whether a rule has nothing but atoms over variables and constants, negated atoms and comparisons."""
    atoms = [rule.head, *(b.atom if isinstance(b, Not) else b for b in rule.body)]
    if not all(isinstance(a, Tensor | Comparison) for a in atoms):
        return False
    return all(
        isinstance(p.index, Variable | Constant) and not p.virtual and not p.normalised
        for a in atoms
        if isinstance(a, Tensor)
        for p in a.places
    )


class _Rewriting:
    """The copies that are made, and those that wait to be."""

    def __init__(self, rules: Mapping[str, list[Rule]], whole: set[str], facts: set[str], as_written: bool) -> None:
        self.rules, self.whole, self.facts, self.as_written = rules, whole, facts, as_written
        self.full: set[str] = set()
        self.read_facts: set[str] = set()
        self.waiting: deque[tuple[str, str]] = deque()
        self.copies: set[tuple[str, str]] = set()
        self.new_rules: list[Rule] = []

    def run(self, query: Rule, constants: tuple[Constant, ...], heads: tuple[str, ...]) -> Demand | None:
        adornment = "b" * len(constants) + "f" * len(heads)
        name = query.head.name
        self.rewrite(query, adornment)
        while self.waiting:
            if len(self.copies) > MAX_COPIES:
                return None
            relation, bound = self.waiting.popleft()
            for rule in self.forms(relation, bound):
                self.rewrite(rule, bound)
            if relation in self.facts:
                self.copy_facts(relation, bound)
        if not self.copies:  # no derived relation is asked for by value
            return None
        answer = _copy(name, adornment)
        rules = tuple(dict.fromkeys(self.new_rules))
        full, read = frozenset(self.full), frozenset(self.read_facts)
        return Demand(rules, answer, _demand(name, adornment), constants, heads, full, read)

    def forms(self, relation: str, adornment: str) -> Sequence[Rule]:
        """Return the rules of a relation; those of a closure begin where its values are known, so that it is followed one way."""
        group = self.rules[relation]
        keep = self.as_written or relation in self.facts or "b" not in adornment
        step = None if keep else closure_step(group)
        if step is None:
            return group
        x, y, z = (Place(index=Variable(name=f"@{n}")) for n in "xyz")
        first = Rule(head=_atom(relation, (x, y)), body=(step(x, y),), at=group[0].at)
        body = (_atom(relation, (x, y)), step(y, z)) if adornment[0] == "b" else (step(x, y), _atom(relation, (y, z)))
        return [first, Rule(head=_atom(relation, (x, z)), body=body, at=group[1].at)]

    def rewrite(self, rule: Rule, adornment: str) -> None:
        """Add the copy of a rule for an adornment of its head, and the demands that follow from it."""
        places = [p for p, a in zip(rule.head.places, adornment, strict=True) if a == "b"]
        known = {p.index.name for p in places if isinstance(p.index, Variable)}
        done: list[Expression] = [_atom(_demand(rule.head.name, adornment), places)]
        for literal in _ordered(rule.body, known):
            if isinstance(literal, Not):
                self.use_in_full(literal.atom.name)
            if not isinstance(literal, Tensor):
                done.append(literal)
                continue
            if literal.name in self.rules and literal.name not in self.whole:
                done.append(self.copied(literal, known, done))
            else:
                self.use_in_full(literal.name)
                done.append(literal)
            known |= set(variables(literal))
        head = Tensor(name=_copy(rule.head.name, adornment), places=rule.head.places, boolean=True, at=rule.head.at)
        if not self.as_written and any(_asks_the_same(head, literal, adornment) for literal in done):
            del done[0]  # a tuple of the copy is there only where it was asked for
        self.new_rules.append(Rule(head=head, body=tuple(done), at=rule.at))

    def copied(self, atom: Tensor, known: set[str], before: list[Expression]) -> Tensor:
        """Return the atom of the copy that an atom asks for, and note the demand for it."""
        adornment = "".join("b" if _known(p, known) else "f" for p in atom.places)
        if "b" not in adornment:
            self.use_in_full(atom.name)
            return atom
        if (atom.name, adornment) not in self.copies:
            self.copies.add((atom.name, adornment))
            self.waiting.append((atom.name, adornment))
        request = _atom(
            _demand(atom.name, adornment), [p for p, a in zip(atom.places, adornment, strict=True) if a == "b"]
        )
        if [request] != before:  # what is asked for is asked for already
            needed = _needed(before, set(variables(request)))
            self.new_rules.append(Rule(head=request, body=tuple(needed), at=atom.at))
        return Tensor(name=_copy(atom.name, adornment), places=atom.places, boolean=True, at=atom.at)

    def copy_facts(self, relation: str, adornment: str) -> None:
        """Let the facts of a relation that also has rules be part of its copy, where they are asked for."""
        self.read_facts.add(relation)
        places = [Place(index=Variable(name=f"@{n}")) for n in range(len(adornment))]
        bound_places = [p for p, a in zip(places, adornment, strict=True) if a == "b"]
        body = (_atom(_demand(relation, adornment), bound_places), _atom(facts_name(relation), places))
        self.new_rules.append(Rule(head=_atom(_copy(relation, adornment), places), body=body))

    def use_in_full(self, name: str) -> None:
        if name in self.rules or name in self.whole:
            self.full.add(name)


def closure_step(rules: Sequence[Rule]) -> Step | None:
    """Return the step of a relation that is the transitive closure of one, however its rule is turned; else None.

    >>> x, y, z = (Place(index=Variable(name=n)) for n in "xyz")
    >>> path = lambda *p: Tensor(name="Path", places=p, boolean=True)
    >>> edge = lambda *p: Tensor(name="Edge", places=p, boolean=True)
    >>> rules = [Rule(head=path(x, y), body=(edge(x, y),)), Rule(head=path(x, z), body=(edge(x, y), path(y, z)))]
    >>> closure_step(rules)(y, x) == edge(y, x)
    True
    """
    if len(rules) != 2:
        return None
    start, loop = sorted(rules, key=lambda r: len(r.body))
    name = start.head.name
    if len(start.body) != 1 or len(loop.body) != 2 or not _pair(start.head) or not _pair(loop.head):
        return None
    base = start.body[0]
    if not isinstance(base, Tensor) or base.name == name or set(variables(base)) != set(variables(start.head)):
        return None
    a, b = variables(start.head)

    def step(first: Place, second: Place) -> Tensor:
        chosen = {a: first.index, b: second.index}
        places = (Place(index=chosen[p.index.name]) if isinstance(p.index, Variable) else p for p in base.places)
        return Tensor(name=base.name, places=tuple(places), boolean=True, at=base.at)

    for one, two in (loop.body, loop.body[::-1]):
        if not isinstance(one, Tensor) or not isinstance(two, Tensor):
            return None
        x, z = loop.head.places
        between = [v for v in dict.fromkeys((*variables(one), *variables(two))) if v not in variables(loop.head)]
        if len(between) == 1:
            y = Place(index=Variable(name=between[0]))
            closed = _atom(name, (x, y)), _atom(name, (y, z))
            if (one, two) in ((closed[0], step(y, z)), (step(x, y), closed[1]), closed):
                return step
    return None


def _pair(atom: Tensor) -> bool:
    return len(atom.places) == 2 == len(variables(atom)) and all(isinstance(p.index, Variable) for p in atom.places)


def _known(place: Place, known: Collection[str]) -> bool:
    return isinstance(place.index, Constant) or (isinstance(place.index, Variable) and place.index.name in known)


def _ordered(body: Sequence[Expression], known: Collection[str]) -> Iterator[Expression]:
    """Go through the literals of a body so that each one stands where most of it is known; negations come last."""
    have, rest = set(known), list(body)
    while rest:
        ready = [b for b in rest if not isinstance(b, Tensor) and set(variables(b)) <= have]
        atoms = [b for b in rest if isinstance(b, Tensor)]
        chosen: Expression
        if ready:
            chosen = ready[0]
        elif atoms:
            chosen = max(atoms, key=lambda a: _bound_share(a, have))  # the first of several
        else:
            chosen = rest[0]
        rest = [b for b in rest if b is not chosen]
        have |= set(variables(chosen))
        yield chosen


def _bound_share(atom: Expression, known: Collection[str]) -> tuple[bool, float]:
    places = atom.places if isinstance(atom, Tensor) else ()
    share = sum(_known(p, known) for p in places) / max(1, len(places))
    return share > 0, share


def _asks_the_same(head: Tensor, literal: Expression, adornment: str) -> bool:
    """Tell whether a literal is the relation of the head, with the same values in the places that are known."""
    if not isinstance(literal, Tensor) or literal.name != head.name:
        return False
    places = zip(head.places, literal.places, adornment, strict=True)
    return all(mine.index == theirs.index for mine, theirs, known in places if known == "b")


def _needed(literals: Sequence[Expression], wanted: set[str]) -> list[Expression]:
    """Return the literals that have to do with some variables; others that are linked to none of them only ask whether they hold."""
    first, *others = literals
    connected: list[Expression] = []
    have = set(wanted)
    pending = list(others)
    while linked := [b for b in pending if set(variables(b)) & have]:
        connected += linked
        have |= {v for b in linked for v in variables(b)}
        pending = [b for b in pending if not any(b is k for k in linked)]
    return [first, *(b for b in others if any(b is k for k in connected))]


def _atom(name: str, places: Sequence[Place]) -> Tensor:
    return Tensor(name=name, places=tuple(places), boolean=True)


def _copy(name: str, adornment: str) -> str:
    return f"{name}@{adornment}"


def _demand(name: str, adornment: str) -> str:
    return f"{name}@{adornment}@{DEMAND}"
