"""What a random program means, three times over: by clingo, by DuckDB where it can, and by a plain evaluator in Python."""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from datalog import Aggregate, Atom, Compare, Const, Plus, Program, Rule, Term, Tuple, Value, Var

COMPARE: dict[str, Any] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
Relations = dict[str, set[Tuple]]


# by hand: every rule again and again until nothing is new


def _value(term: Term, bound: Mapping[str, Value]) -> Value:
    if isinstance(term, Const):
        return term.value
    if isinstance(term, Plus):
        return int(bound[term.variable.name]) + term.number
    return bound[term.name]


def _same(a: Value, b: Value) -> bool:
    return type(a) is type(b) and a == b


def matches(terms: tuple[Term, ...], row: Tuple, bound: Mapping[str, Value]) -> dict[str, Value] | None:
    """Return the variables with those that make the terms this row; None where nothing does."""
    found = dict(bound)
    for term, value in zip(terms, row, strict=True):
        if isinstance(term, Const):
            if not _same(term.value, value):
                return None
        else:
            assert isinstance(term, Var)
            if not _same(found.setdefault(term.name, value), value):
                return None
    return found


def solutions(body: tuple[Atom | Compare, ...], known: Relations) -> Iterator[dict[str, Value]]:
    """Go through the variables of a body that make it true."""
    positive = [b for b in body if isinstance(b, Atom) and not b.negated]
    tests = [b for b in body if isinstance(b, Compare) or b.negated]
    found: list[dict[str, Value]] = [{}]
    for atom in positive:
        found = [new for b in found for row in known[atom.relation] if (new := matches(atom.terms, row, b)) is not None]
    for bound in found:
        if all(_holds(t, bound, known) for t in tests):
            yield bound


def _holds(test: Atom | Compare, bound: Mapping[str, Value], known: Relations) -> bool:
    if isinstance(test, Atom):
        return tuple(_value(t, bound) for t in test.terms) not in known[test.relation]
    left, right = _value(test.left, bound), _value(test.right, bound)
    if test.operator in ("=", "!="):
        return _same(left, right) == (test.operator == "=")
    return bool(COMPARE[test.operator](left, right))


def by_hand(program: Program) -> Relations:
    known: Relations = defaultdict(set, {name: set(rows) for name, rows in program.facts.items()})
    for name in program.derived:
        known[name] |= set()
    for stratum in program.rules:
        size = -1
        while size != (size := sum(map(len, known.values()))):
            for rule in stratum:
                new = [tuple(_value(t, b) for t in rule.head.terms) for b in solutions(rule.body, known)]
                known[rule.head.relation].update(new)
    return dict(known)


def answers(query: Atom, known: Relations) -> set[Tuple]:
    """Return the values of a question's variables, in order of first occurrence."""
    names = list(dict.fromkeys(t.name for t in query.terms if isinstance(t, Var)))
    found = (matches(query.terms, row, {}) for row in known[query.relation])
    return {tuple(m[n] for n in names) for m in found if m is not None}


def aggregated(aggregate: Aggregate, known: Relations) -> dict[Tuple, float]:
    """Return the value of every group that has tuples."""
    groups: dict[Tuple, list[Tuple]] = defaultdict(list)
    for row in known[aggregate.relation]:
        groups[tuple(row[k] for k in aggregate.group)].append(row)
    if aggregate.kind == "count":
        return {group: len(rows) for group, rows in groups.items()}
    arity = len(next(iter(known[aggregate.relation]), ()))
    last = max((k for k in range(arity) if k not in aggregate.group), default=0)
    one = {"sum": sum, "max": max, "min": min, "avg": lambda v: sum(v) / len(v)}[aggregate.kind]
    return {group: one([int(row[last]) for row in rows]) for group, rows in groups.items()}


# clingo


def _clingo_term(term: Term) -> str:
    if isinstance(term, Const):
        return str(term.value) if isinstance(term.value, int) else f'"{term.value}"'
    if isinstance(term, Plus):
        return f"{_clingo_term(term.variable)}+({term.number})"
    return term.name.upper().replace("'", "_")


def _clingo_literal(literal: Atom | Compare) -> str:
    if isinstance(literal, Compare):
        return f"{_clingo_term(literal.left)} {literal.operator} {_clingo_term(literal.right)}"
    inside = ",".join(_clingo_term(t) for t in literal.terms)
    return f"{'not ' * literal.negated}{literal.relation.lower()}" + (f"({inside})" if inside else "")


def clingo_text(program: Program) -> str:
    lines = [
        f"{_clingo_literal(Atom(n, tuple(Const(v) for v in row)))}."
        for n, rows in program.facts.items()
        for row in rows
    ]
    lines += [
        f"{_clingo_literal(r.head)} :- {', '.join(_clingo_literal(b) for b in r.body)}." for r in program.all_rules()
    ]
    return "\n".join(lines)


def by_clingo(program: Program) -> Relations:
    """Return the relations of the only stable model of a stratified program."""
    import clingo

    control = clingo.Control(["--warn=none"])
    control.add("base", [], clingo_text(program))
    control.ground([("base", [])])
    known: Relations = {name: set() for name in program.sorts}
    names = {name.lower(): name for name in program.sorts}
    with control.solve(yield_=True) as handle:
        models = [list(model.symbols(atoms=True)) for model in handle]
    assert len(models) == 1, f"{len(models)} stable models"
    number = clingo.SymbolType.Number
    for symbol in models[0]:
        row = tuple(a.number if a.type == number else a.string for a in symbol.arguments)
        known[names[symbol.name]].add(row)
    return known


# DuckDB


@cache
def _connection() -> Any:
    import duckdb

    return duckdb.connect(config={"threads": 1})  # the tables are tiny


class Tables:
    """A program's relations as tables of whole numbers; names are written as numbers from 1000 on."""

    def __init__(self, program: Program) -> None:
        self.program, self.connection = program, _connection()
        self.codes: dict[Value, int] = {}
        self.sorts = program.sorts

    def code(self, value: Value) -> int:
        return value if isinstance(value, int) else self.codes.setdefault(value, 1000 + len(self.codes))

    def run(self) -> Relations:
        for name, sorts in self.sorts.items():
            columns = ", ".join(f"c{k} integer" for k in range(len(sorts))) or "c0 integer"
            self.connection.execute(f"create or replace temp table {name} ({columns})")
        for name, rows in self.program.facts.items():
            values = ", ".join(f"({', '.join(str(self.code(v)) for v in row) or '1'})" for row in rows)
            if rows:
                self.connection.execute(f"insert into {name} values {values}")
        for stratum in self.program.rules:
            for name in dict.fromkeys(rule.head.relation for rule in stratum):
                self.derive(name, [rule for rule in stratum if rule.head.relation == name])
        return {name: self.rows(name) for name in self.sorts}

    def derive(self, name: str, rules: list[Rule]) -> None:
        plain = [r for r in rules if name not in _relations(r)]
        again = [r for r in rules if name in _relations(r)]
        first = " union ".join(self.select(r) for r in plain)
        if again:
            columns = ", ".join(f"c{k}" for k in range(max(1, len(self.sorts[name]))))
            more = " union all ".join(self.select(r) for r in again)
            query = f"with recursive {name}_({columns}) as (({first}) union (select * from ({more.replace(name + ' ', name + '_ ')}))) select * from {name}_"
        else:
            query = first
        self.connection.execute(f"insert into {name} {query}")

    def term(self, term: Term, columns: Mapping[str, str]) -> str:
        if isinstance(term, Const):
            return str(self.code(term.value))
        if isinstance(term, Plus):
            return f"({columns[term.variable.name]} + {term.number})"
        return columns[term.name]

    def select(self, rule: Rule) -> str:
        columns: dict[str, str] = {}
        tables, where = [], ["true"]
        for k, atom in enumerate(b for b in rule.body if isinstance(b, Atom) and not b.negated):
            tables.append(f"{atom.relation} t{k}")
            for place, term in enumerate(atom.terms):
                column = f"t{k}.c{place}"
                if isinstance(term, Var) and term.name not in columns:
                    columns[term.name] = column
                else:
                    where.append(f"{column} = {self.term(term, columns)}")
        for b in rule.body:
            if isinstance(b, Compare):
                where.append(f"{self.term(b.left, columns)} {b.operator} {self.term(b.right, columns)}")
            elif b.negated:
                same = " and ".join(f"n.c{k} = {self.term(t, columns)}" for k, t in enumerate(b.terms)) or "true"
                where.append(f"not exists (select 1 from {b.relation} n where {same})")
        head = ", ".join(f"{self.term(t, columns)} as c{k}" for k, t in enumerate(rule.head.terms)) or "1 as c0"
        return f"select distinct {head} from {', '.join(tables)} where {' and '.join(where)}"

    def rows(self, name: str) -> set[Tuple]:
        back = {code: value for value, code in self.codes.items()}
        rows = self.connection.execute(f"select distinct * from {name}").fetchall()
        return {tuple(back.get(v, v) for v in row) if self.sorts[name] else () for row in rows}

    def aggregate(self, aggregate: Aggregate) -> dict[Tuple, float]:
        places = range(len(self.sorts[aggregate.relation]))
        back = {code: value for value, code in self.codes.items()}
        last = max((k for k in places if k not in aggregate.group), default=0)
        kept = "".join(f"c{k}, " for k in aggregate.group)
        what = "count(*)" if aggregate.kind == "count" else f"{aggregate.kind}(c{last})"
        by = f"group by {kept.rstrip(', ')}" if kept else "having count(*) > 0"
        query = f"select {kept}{what} from (select distinct * from {aggregate.relation}) {by}"
        return {
            tuple(back.get(v, v) for v in row[:-1]): float(row[-1]) for row in self.connection.execute(query).fetchall()
        }


def _relations(rule: Rule) -> list[str]:
    return [b.relation for b in rule.body if isinstance(b, Atom)]


def fits_duckdb(program: Program) -> bool:
    """Tell whether every recursion is one relation's own and linear: DuckDB's recursive queries are complete there only."""
    for stratum in program.rules:
        heads = {r.head.relation for r in stratum}
        for rule in stratum:
            used = [name for name in _relations(rule) if name in heads]
            if len(used) > 1 or any(name != rule.head.relation for name in used):
                return False
        if any(all(n in _relations(r) for r in stratum if r.head.relation == n) for n in heads):
            return False  # nothing to begin with
    return True


def by_duckdb(program: Program) -> tuple[Relations, dict[str, dict[Tuple, float]]]:
    """Return the relations and the aggregates."""
    tables = Tables(program)
    return tables.run(), {a.name: tables.aggregate(a) for a in program.aggregates}
