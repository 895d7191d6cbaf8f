"""Random Datalog programs: constants, repeated variables, negation, comparisons, aggregates, recursion of every shape; arities 0 to 4."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from hypothesis import strategies as st

Value = str | int
Tuple = tuple[Value, ...]

# what may stand in a place: names and quoted strings, whole numbers (these compare and add), or all of them mixed
POOLS: dict[str, tuple[Value, ...]] = {
    "name": ("Ann", "Bob", "x y", "not a name"),
    "int": (0, 1, 2, 5, -3),
    "any": (1, "1", "Ann", "a,b"),
}
VARIABLES = ("x", "y", "z", "w", "u", "v", "x'", "y'")


@dataclass(frozen=True)
class Var:
    name: str


@dataclass(frozen=True)
class Const:
    value: Value


@dataclass(frozen=True)
class Plus:
    """A variable and a whole number added to it; in comparisons, and in heads of rules that are not recursive."""

    variable: Var
    number: int


Term = Var | Const | Plus


@dataclass(frozen=True)
class Atom:
    relation: str
    terms: tuple[Term, ...]
    negated: bool = False


@dataclass(frozen=True)
class Compare:
    operator: str
    left: Term
    right: Term


@dataclass(frozen=True)
class Rule:
    head: Atom
    body: tuple[Atom | Compare, ...]
    equation: bool = False  # written as a Boolean equation, R(x) = P(x,y) Q(y)


@dataclass(frozen=True)
class Aggregate:
    """A tensor equation over one relation: tuples of the other places are counted, or their weights added, by group."""

    name: str
    kind: str  # count, or sum, max, min and avg of the numbers in the last place that is left out
    relation: str
    group: tuple[int, ...]  # the places that are kept


@dataclass(frozen=True)
class Program:
    """A program: sorts of every relation's places, facts, rules by stratum, aggregates, and questions."""

    sorts: dict[str, tuple[str, ...]]
    facts: dict[str, tuple[Tuple, ...]]
    rules: tuple[tuple[Rule, ...], ...]  # stratum after stratum
    aggregates: tuple[Aggregate, ...] = ()
    queries: tuple[Atom, ...] = ()
    later: dict[str, tuple[Tuple, ...]] = field(default_factory=dict)  # facts that come (or go) afterwards

    @property
    def derived(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(rule.head.relation for stratum in self.rules for rule in stratum))

    def all_rules(self) -> Iterator[Rule]:
        for stratum in self.rules:
            yield from stratum

    def __repr__(self) -> str:
        more = f"\n# later: {self.later}" if any(self.later.values()) else ""
        return f"\n{text(self)}{''.join(f'{atom_text(q)}?' + chr(10) for q in self.queries)}{more}"


# as the language writes it


def constant_text(value: Value) -> str:
    if isinstance(value, int):
        return str(value)
    return value if value.isidentifier() and value[0].isupper() else f'"{value}"'


def term_text(term: Term) -> str:
    if isinstance(term, Var):
        return term.name
    if isinstance(term, Const):
        return constant_text(term.value)
    return f"{term.variable.name} {'-' if term.number < 0 else '+'} {abs(term.number)}"


def atom_text(atom: Atom) -> str:
    inside = ", ".join(term_text(t) for t in atom.terms)
    return f"{'not ' if atom.negated else ''}{atom.relation}({inside})"


def literal_text(literal: Atom | Compare) -> str:
    if isinstance(literal, Atom):
        return atom_text(literal)
    return f"{term_text(literal.left)} {literal.operator} {term_text(literal.right)}"


def rule_text(rule: Rule) -> str:
    if rule.equation:
        return f"{atom_text(rule.head)} = {' '.join(literal_text(b) for b in rule.body)}"
    return f"{atom_text(rule.head)} <- {', '.join(literal_text(b) for b in rule.body)}"


def aggregate_text(aggregate: Aggregate, program: Program) -> str:
    places = VARIABLES[: len(program.sorts[aggregate.relation])]
    kept = ", ".join(places[k] for k in aggregate.group)
    head = f"{aggregate.name}[{kept}]" if kept else aggregate.name
    body = f"{aggregate.relation}({', '.join(places)})"
    if aggregate.kind == "count":
        return f"{head} count= {body}"
    last = max(k for k in range(len(places)) if k not in aggregate.group)
    operator = {"sum": "+=", "max": "max=", "min": "min=", "avg": "avg="}[aggregate.kind]
    return f"{head} {operator} {body} {places[last]}"


def text(program: Program) -> str:
    """Write the program down: facts, then rules, then aggregates."""
    lines = [
        atom_text(Atom(name, tuple(Const(v) for v in row))) for name, rows in program.facts.items() for row in rows
    ]
    lines += [rule_text(rule) for rule in program.all_rules()]
    lines += [aggregate_text(a, program) for a in program.aggregates]
    return "".join(line + "\n" for line in lines)


# making one


class Choices(Protocol):
    """Where chance comes from: a seed, or Hypothesis, which makes what fails smaller."""

    def below(self, bound: int) -> int: ...


class Seeded:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def below(self, bound: int) -> int:
        return self.random.randrange(bound)


class Drawn:
    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw

    def below(self, bound: int) -> int:
        return int(self.draw(st.integers(0, bound - 1)))


class Maker:
    """Makes one program out of choices; ``recursive`` and ``negation`` leave a feature out where an oracle cannot follow."""

    def __init__(
        self, choices: Choices, *, recursive: bool = True, negation: bool = True, aggregates: bool = True
    ) -> None:
        self.choices, self.recursive, self.negation, self.with_aggregates = choices, recursive, negation, aggregates
        self.sorts: dict[str, tuple[str, ...]] = {}
        self.main = "name"  # the sort that most places have

    def chance(self, out_of_ten: int) -> bool:
        return self.choices.below(10) >= 10 - out_of_ten  # zero, what Hypothesis shrinks to, means no

    def pick(self, options: Sequence[Any]) -> Any:
        return options[self.choices.below(len(options))]

    def program(self) -> Program:
        self.main = self.pick(tuple(POOLS))
        given = [self.relation(f"E{k}") for k in range(1 + self.choices.below(3))]
        facts = {name: self.rows(name, 1 + self.choices.below(12)) for name in given}
        later = {name: self.rows(name, 1) for name in given if self.chance(3)}
        below, rules = list(given), []
        count = 0
        for _ in range(1 + self.choices.below(3)):
            names = [self.relation(f"R{count + k}") for k in range(1 + self.choices.below(2))]
            count += len(names)
            stratum = [self.rule(n, below, names, first=True) for n in names]
            stratum += [self.rule(self.pick(names), below, names) for _ in range(self.choices.below(4))]
            rules.append(tuple(stratum))
            below += names
        aggregates = self.aggregates(below) if self.with_aggregates else ()
        queries = tuple(self.query(name) for name in below[len(given) :])
        return Program(dict(self.sorts), facts, tuple(rules), aggregates, queries, later)

    def relation(self, name: str) -> str:
        arity = self.pick((2, 2, 2, 1, 1, 3, 3, 4, 0))
        self.sorts[name] = tuple(self.pick(tuple(POOLS)) if self.chance(2) else self.main for _ in range(arity))
        return name

    def rows(self, name: str, count: int) -> tuple[Tuple, ...]:
        made = {tuple(self.pick(POOLS[s]) for s in self.sorts[name]): None for _ in range(count)}
        return tuple(made)

    def term(self, sort: str, bound: dict[str, list[Var]], *, fresh: bool, constants: int) -> Term:
        known = bound.setdefault(sort, [])
        if self.chance(constants) and self.chance(5):
            return Const(self.pick(POOLS[sort]))
        free = [v for v in VARIABLES if all(v != b.name for group in bound.values() for b in group)]
        if fresh and free and (not known or self.chance(6)):
            known.append(Var(free[0]))
            return known[-1]
        return self.pick(known) if known else Const(self.pick(POOLS[sort]))

    def rule(self, name: str, below: list[str], same: list[str], *, first: bool = False) -> Rule:
        bound: dict[str, list[Var]] = {}
        body: list[Atom | Compare] = []
        for k in range(1 + self.choices.below(3)):
            recursive = self.recursive and not first and (k == 0 or self.chance(4))
            relation = self.pick(same if recursive else below)
            terms = tuple(self.term(s, bound, fresh=True, constants=1) for s in self.sorts[relation])
            body.append(Atom(relation, terms))
        variables = {s: tuple(vs) for s, vs in bound.items() if vs}
        bare = len(body)
        if self.negation and self.chance(2):
            relation = self.pick(below)
            terms = tuple(self.term(s, bound, fresh=False, constants=1) for s in self.sorts[relation])
            body.append(Atom(relation, terms, negated=True))
        if variables and self.chance(2):
            body.append(self.comparison(variables))
        head = tuple(self.term(s, bound, fresh=False, constants=1) for s in self.sorts[name])
        if first and self.chance(2):
            head = tuple(
                Plus(t, self.pick((1, -2))) if s == "int" and isinstance(t, Var) else t
                for t, s in zip(head, self.sorts[name], strict=True)
            )
            bare = -1  # an equation has no arithmetic on its left side here
        return Rule(Atom(name, head), tuple(body), equation=len(body) == bare and self.chance(1))

    def comparison(self, variables: dict[str, tuple[Var, ...]]) -> Compare:
        sort = self.pick(tuple(variables))
        left: Term = self.pick(variables[sort])
        right: Term = self.pick(variables[sort]) if self.chance(6) else Const(self.pick(POOLS[sort]))
        if sort != "int":
            return Compare(self.pick(("!=", "=")), left, right)
        if isinstance(left, Var) and self.chance(4):
            left = Plus(left, self.pick((1, 2, -1)))
        return Compare(self.pick(("<", "!=", "<=", "=", ">", ">=")), left, right)

    def aggregates(self, names: list[str]) -> tuple[Aggregate, ...]:
        made = []
        for k in range(self.choices.below(3)):
            relation = self.pick(names)
            places = self.sorts[relation]
            if not places:
                continue
            group = tuple(p for p in range(len(places)) if self.chance(5))
            left = [p for p in range(len(places)) if p not in group]
            kind = "count"
            if left and places[left[-1]] == "int" and self.chance(6):
                kind = self.pick(("sum", "max", "min", "avg"))
            made.append(Aggregate(f"A{k}", kind, relation, group if left else group[:-1]))
        return tuple(made)

    def query(self, name: str) -> Atom:
        bound: dict[str, list[Var]] = {}
        return Atom(name, tuple(self.term(s, bound, fresh=True, constants=6) for s in self.sorts[name]))


def program_of_seed(seed: int, **options: bool) -> Program:
    return Maker(Seeded(seed), **options).program()


@st.composite
def programs(draw: Callable[[Any], Any], **options: bool) -> Program:
    return Maker(Drawn(draw), **options).program()


# making one smaller


def smaller(program: Program) -> Iterator[Program]:
    """Go through programs with one thing less."""
    for k in range(len(program.aggregates)):
        yield replace(program, aggregates=_without(program.aggregates, k))
    for k in range(len(program.queries)):
        yield replace(program, queries=_without(program.queries, k))
    for name in program.later:
        yield replace(program, later={n: rows for n, rows in program.later.items() if n != name})
    for s, stratum in enumerate(program.rules):
        for k, rule in enumerate(stratum):
            yield _with_stratum(program, s, _without(stratum, k))
            for b in range(len(rule.body)):
                changed = replace(rule, body=_without(rule.body, b))
                if changed.body and is_safe(changed):
                    yield _with_stratum(program, s, (*stratum[:k], changed, *stratum[k + 1 :]))
    for name, rows in program.facts.items():
        for k in range(len(rows)):
            if len(rows) > 1:
                yield replace(program, facts={**program.facts, name: _without(rows, k)})
            elif not _reads(program, name):
                yield replace(program, facts={n: r for n, r in program.facts.items() if n != name})


def _without(items: tuple[Any, ...], k: int) -> tuple[Any, ...]:
    return items[:k] + items[k + 1 :]


def _with_stratum(program: Program, s: int, stratum: tuple[Rule, ...]) -> Program:
    changed = replace(program, rules=(*program.rules[:s], stratum, *program.rules[s + 1 :]))
    known = {*changed.facts, *changed.derived}
    asked = {a.relation for a in changed.aggregates} | {q.relation for q in changed.queries}
    used = {b.relation for r in changed.all_rules() for b in r.body if isinstance(b, Atom)}
    return changed if asked | used <= known else program  # a relation without rules is another mistake


def _reads(program: Program, name: str) -> bool:
    used = {b.relation for r in program.all_rules() for b in r.body if isinstance(b, Atom)}
    return (
        name in used or name in program.later or name in {x.relation for x in (*program.aggregates, *program.queries)}
    )


def is_safe(rule: Rule) -> bool:
    """Tell whether every variable of a rule stands in a positive atom."""
    atoms = [b for b in rule.body if isinstance(b, Atom)]
    bound = {t for b in atoms if not b.negated for t in b.terms}
    others = [t for b in (*atoms, rule.head) for t in b.terms]
    others += [t for b in rule.body if isinstance(b, Compare) for t in (b.left, b.right)]
    return all((t.variable if isinstance(t, Plus) else t) in bound for t in others if not isinstance(t, Const))


def shrink(program: Program, fails: Callable[[Program], bool], rounds: int = 400) -> Program:
    """Return a program that still fails and has nothing that could go."""
    again = True
    while again and rounds > 0:
        again = False
        for other in smaller(program):
            rounds -= 1
            if repr(other) != repr(program) and fails(other):
                program, again = other, True
                break
    return program
