"""Rules made ready for proving: their literals over coded tuples, in the order in which they are looked up."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from ..backends.sparse import SparseTensor
from ..errors import InputError
from ..ir.builder import GraphBuilder
from ..ir.graph import EinsumGraph
from ..lang import syntax as s
from ..lang.analysis import Analysis
from ..lang.datalog import plain
from ..lang.domains import Domain
from ..lang.format import text_of
from ..lang.functions import ONE, SEVERAL
from ..runtime.executor import Executor

HASHED = 300_000  # tuples up to which a relation is looked up in dictionaries

Codes = tuple[int, ...]
Bindings = tuple[int | None, ...]  # a code for each variable of a clause; None where it is not known
Pattern = tuple[int, ...]  # the places of a relation that are known

COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge
}  # fmt: skip


class Literal(NamedTuple):
    """One literal of a rule: an atom, a negated atom or a comparison; each place of an atom is a variable or a code."""

    part: s.Expression
    kind: str  # "atom", "not", "compare"
    name: str  # the relation
    terms: tuple[tuple[str, int], ...]  # ("variable", number) or ("code", code; -1: no element)
    variables: frozenset[int]
    written: bool = True  # in the text; else it says what an index of the text is


class Clause:
    """A rule over numbered variables: its head, its literals, and the domain of each variable."""

    def __init__(self, number: int, statement: s.Rule | s.Equation, analysis: Analysis) -> None:
        self.plain = rule = plain(statement, analysis)
        self.number, self.statement, self.analysis = number, statement, analysis
        self.name = rule.name
        self.names: list[str] = []  # of the variables
        self.domains: list[Domain] = []
        self._rule_domains = rule.domains
        self.head = tuple(self._variable(v) for v in rule.output)
        own = {id(p) for p in s.walk(statement)}
        self.literals = tuple(self._literal(p, id(p) in own) for p in rule.literals)

    def as_rule(self) -> s.Rule:
        """Return the clause as a rule whose atoms have nothing but variables and constants."""
        places = tuple(s.Place(s.Variable(v)) for v in self.plain.output)
        rule = s.Rule(s.Tensor(self.name, places, True), self.plain.literals, at=self.statement.at)
        # the names of others stay free
        found: s.Rule = s.with_variables(rule, lambda v: s.Variable(v.name.replace("$", "%")))
        return found

    def _variable(self, name: str) -> int:
        if name not in self.names:
            self.names.append(name)
            self.domains.append(self._rule_domains[name])
        return self.names.index(name)

    def _literal(self, part: s.Expression, own: bool) -> Literal:
        atom = part.atom if isinstance(part, s.Not) else part
        if not isinstance(atom, s.Tensor):
            found = frozenset(self._variable(v) for v in s.variables(part))
            return Literal(part, "compare", "", (), found, own)
        terms: list[tuple[str, int]] = []
        for p, place in enumerate(atom.places):
            if isinstance(place.index, s.Variable):
                terms.append(("variable", self._variable(place.index.name)))
            else:
                assert isinstance(place.index, s.Constant)
                code = self.code(place.index, self.analysis.place(atom.name, p))
                terms.append(("code", -1 if code is None else code))
        used = frozenset(v for kind, v in terms if kind == "variable")
        return Literal(part, "not" if isinstance(part, s.Not) else "atom", atom.name, tuple(terms), used)

    def code(self, constant: s.Constant, domain: Domain) -> int | None:
        """Return the code of a constant; the name of a scalar stands for its value."""
        return domain.code(self.analysis.constant_value(constant))

    def key(self, literal: Literal, bindings: Bindings) -> tuple[Pattern, Codes]:
        """Return which places of an atom are known, and their codes."""
        places, codes = [], []
        for place, (kind, value) in enumerate(literal.terms):
            code = value if kind == "code" else bindings[value]
            if code is not None:
                places.append(place)
                codes.append(code)
        return tuple(places), tuple(codes)

    def bound(self, literal: Literal, bindings: Bindings, row: Codes) -> Bindings | None:
        """Return the bindings with what a tuple of an atom says; None where a constant or a variable says otherwise."""
        found = list(bindings)
        for (kind, value), code in zip(literal.terms, row, strict=True):
            if kind == "variable" and found[value] is None:
                found[value] = code
            elif code != (value if kind == "code" else found[value]):
                return None
        return tuple(found)

    def unified(self, row: Sequence[int | None]) -> Bindings:
        """Return the bindings that a tuple of the head says; None in a place leaves it open."""
        found: list[int | None] = [None] * len(self.names)
        for variable, code in zip(self.head, row, strict=True):
            found[variable] = code
        return tuple(found)


class Values:
    """What comparisons of rules need: the values of indices, constants and tensors of numbers."""

    def __init__(self, analysis: Analysis, tensor: Callable[[str], Any]) -> None:
        self.analysis, self.tensor = analysis, tensor

    def solutions(self, clause: Clause, literal: Literal, bindings: Bindings) -> list[Bindings]:
        """Return the bindings under which a comparison holds; what nothing else says runs over its whole domain."""
        part = literal.part
        assert isinstance(part, s.Comparison)
        unknown = [v for v in sorted(literal.variables) if bindings[v] is None]
        if part.operator == "=" and len(unknown) == 1:
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if isinstance(one, s.Variable) and clause.names.index(one.name) == unknown[0] and one != other:
                    if one.name in s.variables(other):
                        continue
                    value = self.value(clause, other, bindings)
                    whole = int(value) if isinstance(value, float) and value.is_integer() else value
                    code = clause.domains[unknown[0]].code(whole) if isinstance(whole, str | int) else None
                    return [] if code is None else [with_code(bindings, unknown[0], code)]
        pending = [bindings]
        for variable in unknown:
            size = clause.domains[variable].size or 0
            pending = [with_code(b, variable, code) for b in pending for code in range(size)]
        return [b for b in pending if self.holds(clause, part, b)]

    def holds(self, clause: Clause, part: s.Comparison, bindings: Bindings) -> bool:
        """Tell whether a comparison holds."""
        left, right = (self.value(clause, side, bindings) for side in (part.left, part.right))
        if part.operator not in ("=", "!=") and (isinstance(left, str) or isinstance(right, str)):
            return False
        return bool(COMPARE[part.operator](left, right))

    def value(self, clause: Clause, part: s.Part, bindings: Bindings) -> Any:
        """Return the value of an expression: a number, or the name of an element."""
        match part:
            case s.Variable(name=name):
                number = clause.names.index(name)
                code = bindings[number]
                assert code is not None
                return clause.domains[number].element(code)
            case s.Number(value=value) | s.Text(value=value):
                return value
            case s.Constant(value=value, quoted=quoted):
                return value if quoted or not isinstance(value, str) else self.analysis.scalars.get(value, value)
            case s.Tensor(name=name, places=()) if not part.boolean and name in self.analysis.scalars:
                return self.analysis.scalars[name]
            case s.Tensor(name=name, places=()) if not part.boolean and name not in self.analysis.tensors:
                return name
            case s.Tensor(name=name, places=places):
                index = [self._position(clause, name, p, place.index, bindings) for p, place in enumerate(places)]
                array = np.asarray(self.tensor(name))
                inside = all(0 <= i < n for i, n in zip(index, array.shape, strict=True))
                return array[tuple(index)].item() if inside else 0
            case s.Negative(value=inner):
                return -self.value(clause, inner, bindings)
            case s.Product(factors=factors):
                return math.prod(self.value(clause, f, bindings) for f in factors)
            case (
                s.Operation(operator=sign, left=left, right=right) | s.Arithmetic(operator=sign, left=left, right=right)
            ):
                return calculated(sign, self.value(clause, left, bindings), self.value(clause, right, bindings))
            case s.Call(function=function, arguments=arguments) if len(arguments) == _arity(function):
                return _applied(function, [self.value(clause, a, bindings) for a in arguments])
        hint = "give the value a name in an equation of its own, and compare that"
        raise InputError(f"a proof cannot compute {text_of(part)}", hint, code="E794", location=part.at)

    def _position(self, clause: Clause, name: str, place: int, index: s.Index, bindings: Bindings) -> int:
        match index:
            case s.Variable(name=variable):
                code = bindings[clause.names.index(variable)]
                assert code is not None
                return code
            case s.Constant():
                found = clause.code(index, self.analysis.place(name, place))
                return -1 if found is None else found
        return int(self.value(clause, index, bindings))


def calculated(sign: str, left: Any, right: Any) -> Any:
    """Return a sum, difference, product, quotient or power; of whole numbers the whole quotient."""
    whole = isinstance(left, int) and isinstance(right, int)
    match sign:
        case "+":
            return left + right
        case "-":
            return left - right
        case "*":
            return left * right
        case "/":
            if right == 0:
                return 0 if whole else math.nan
            return left // right if whole else left / right
    return left**right


def with_code(bindings: Bindings, variable: int, code: int) -> Bindings:
    """Return bindings with one more variable known."""
    return (*bindings[:variable], code, *bindings[variable + 1 :])


class Stored:
    """A relation that is known in full, looked up by any of its places."""

    def __init__(self, tensor: SparseTensor) -> None:
        self.tensor = tensor
        self._indexes: dict[Pattern, tuple[Any, tuple[Any, ...]]] = {}
        self._by_key: dict[Pattern, dict[int, list[Codes]]] = {}

    def rows(self, places: Pattern, codes: Codes) -> list[Codes]:
        """Return the tuples that have some codes in some places."""
        tensor = self.tensor
        if not tensor.count:
            return []
        if not tensor.shape:
            return [()]
        key = 0
        for place, code in zip(places, codes, strict=True):
            size = tensor.shape[place]
            if not 0 <= code < size:
                return []
            key = key * size + code
        if tensor.count <= HASHED:
            return self._hashed(places).get(key, [])
        keys, columns = self._index(places)
        first, last = keys.searchsorted((key, key + 1)).tolist()
        if first == last:
            return []
        return list(zip(*(c[first:last].tolist() for c in columns), strict=True))

    def has(self, row: Codes) -> bool:
        """Tell whether a tuple is there."""
        return bool(self.rows(tuple(range(len(row))), row))

    def tuples_per_choice(self, places: Pattern) -> float:
        """Return how many tuples there are for one choice of some places, on average."""
        if not self.tensor.count or not self.tensor.shape:
            return float(self.tensor.count)
        keys = self._index(places)[0]
        return len(keys) / (1 + int(np.count_nonzero(keys[1:] != keys[:-1])))

    def _hashed(self, places: Pattern) -> dict[int, list[Codes]]:
        if places not in self._by_key:
            keys, columns = self._index(places)
            found: dict[int, list[Codes]] = {}
            for key, row in zip(keys.tolist(), zip(*(c.tolist() for c in columns), strict=True), strict=True):
                found.setdefault(key, []).append(row)
            self._by_key[places] = found
        return self._by_key[places]

    def _index(self, places: Pattern) -> tuple[Any, tuple[Any, ...]]:
        if places not in self._indexes:
            columns = self.tensor.columns
            keys = np.zeros(self.tensor.count, np.int64)
            for place in places:
                keys = keys * self.tensor.shape[place] + columns[place].astype(np.int64)
            order = np.argsort(keys, kind="stable")
            self._indexes[places] = (keys[order], tuple(c[order] for c in columns))
        return self._indexes[places]


def _arity(function: str) -> int:
    """Return how many values a function of the language takes element by element; 0 where it is none of those."""
    return 1 if function in ONE else SEVERAL[function][0] if function in SEVERAL else 0


@cache
def _graph(function: str) -> EinsumGraph:
    b = GraphBuilder()
    values = [b.input(f"x{n}", (), "float64") for n in range(_arity(function))]
    return b.build(y=ONE[function](b, *values) if function in ONE else SEVERAL[function][1](b, *values))


def _applied(function: str, values: Sequence[Any]) -> float:
    """Return a function of numbers, computed as the language has it."""
    inputs = {f"x{n}": np.float64(v) for n, v in enumerate(values)}
    return float(Executor().execute(_graph(function), inputs)["y"])
