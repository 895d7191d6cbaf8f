"""Datalog rules of a program to graphs: a rule is one Boolean einsum, heads that need each other are one fixpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from itertools import count
from typing import NamedTuple, NoReturn

import numpy as np

from ..errors import GraphError
from ..ir.builder import GraphBuilder
from ..ir.spec import write
from ..ir.tensor import Tensor
from . import syntax as s
from .analysis import Analysis, Component
from .domains import Domain
from .equations import comparison, located
from .number_growth import as_value
from .rules import round_limit
from .strata import body_of

Values = dict[str, Tensor]
ARITHMETIC = {"+": "add", "-": "subtract", "*": "multiply", "/": "floor_divide", "^": "power"}


class Factor(NamedTuple):
    """An operand of a rule's einsum: a Boolean tensor, and the variable of each of its axes."""

    tensor: Tensor
    axes: tuple[str, ...]


class Rule(NamedTuple):
    """A rule in plain form: an output variable for each place of the head, and literals with nothing but variables to bind."""

    name: str
    output: tuple[str, ...]
    literals: tuple[s.Expression, ...]
    domains: Mapping[str, Domain]
    statement: s.Rule | s.Equation


def lower_component(component: Component, analysis: Analysis, b: GraphBuilder, values: Values) -> None:
    """Add the rules of one component to a graph; each head becomes a tensor in ``values``.

    What stands in ``values`` under a head's name before is its facts. Relations that are not there yet become inputs.

    >>> from tensorlogic.lang.analysis import analyse
    >>> from tensorlogic.lang.grammar import parse
    >>> found = analyse(parse("Edge(0,1); Edge(1,2); Path(x,y) <- Edge(x,y); Path(x,z) <- Path(x,y), Edge(y,z)").statements)
    >>> b, values = GraphBuilder(), {}
    >>> for part in found.components:
    ...     lower_component(part, found, b, values)
    >>> print(b.build(Path=values["Path"]))
    graph {
      Edge: bool[3, 3] = input()
      %1: bool[] = literal(False)
      %2: bool[3, 3] = broadcast(%1, shape=[3, 3], axes=[])
      %3: bool[3, 3] = fixpoint(%2, Edge, combine="or", body={
        c0: bool[3, 3] = input()
        k0: bool[3, 3] = input()
        %2: bool[3, 3] = einsum(c0, k0, spec="ab,bc->ac", algebra="boolean")
        %3: bool[3, 3] = logical_or(k0, %2)
        return r0=%3
      })
      return Path=%3
    }
    """
    lowering = _Lowering(analysis, b, values)
    rules = {name: list[Rule]() for name in component.names}
    for statement in component.statements:
        rules[statement.head.name].append(plain(statement, analysis))
    if component.recursive:
        lowering.fixpoint(rules)
        return
    for name, group in rules.items():
        facts = [values[name]] if name in values else []
        values[name] = lowering.union([*facts, *(lowering.rule(rule) for rule in group)])


# rules in plain form


def plain(statement: s.Rule | s.Equation, analysis: Analysis) -> Rule:
    """Bring a statement into plain form.

    Constants, repeated variables and arithmetic in the head, and arithmetic in atoms, become variables of their own with an equation.
    """
    head = statement.head
    domains = {name: analysis.domain(statement, name) for name in s.variables(statement)}
    fresh = (f"${n}" for n in count())  # which no variable of a program is called
    literals: list[s.Expression] = []

    def variable_for(index: s.Index, domain: Domain) -> s.Variable:
        variable = s.Variable(next(fresh), at=index.at)
        domains[variable.name] = domain
        literals.append(s.Comparison("=", variable, as_value(index), at=index.at))
        return variable

    for literal in body_of(statement):
        atom = literal.atom if isinstance(literal, s.Not) else literal
        if not isinstance(atom, s.Tensor):
            literals.append(literal)
            continue
        places: list[s.Place] = []
        for p, place in enumerate(atom.places):
            index = place.index
            if isinstance(index, s.Arithmetic):
                index = variable_for(index, analysis.place(atom.name, p))
            elif isinstance(index, s.Range):
                _refuse("a range in a rule", index, "compare the index instead: x >= 4, x < 8")
            places.append(s.Place(index, at=place.at))
        atom = s.Tensor(atom.name, tuple(places), atom.boolean, at=atom.at)
        literals.append(s.Not(atom, at=literal.at) if isinstance(literal, s.Not) else atom)
    output: list[str] = []
    for p, place in enumerate(head.places):
        index = place.index
        if not isinstance(index, s.Variable) or index.name in output:
            if isinstance(index, s.Range):
                _refuse("a range in the head of a rule", index, "compare the index in the body: x >= 4, x < 8")
            index = variable_for(index, analysis.place(head.name, p))
        output.append(index.name)
    return Rule(head.name, tuple(output), tuple(literals), domains, statement)


def _refuse(what: str, part: s.Part, *hints: str) -> NoReturn:
    raise GraphError(f"{what} is not there", *hints, code="E755", location=part.at)


# plain rules to tensors


class _Lowering:
    """Adds rules to a graph."""

    def __init__(self, analysis: Analysis, b: GraphBuilder, values: Values) -> None:
        self.analysis, self.b, self.values = analysis, b, values

    def relation(self, name: str) -> Tensor:
        """Return a tensor by name; one that is not there yet becomes an input."""
        if name not in self.values:
            dtype = "bool" if self.analysis.tensors[name].boolean else None
            self.values[name] = self.b.input(name, self.analysis.shape(name), dtype)
        return self.values[name]

    def union(self, tensors: Sequence[Tensor]) -> Tensor:
        """Return the or of tensors."""
        return reduce(self.b.logical_or, tensors)

    def fixpoint(self, rules: Mapping[str, Sequence[Rule]]) -> None:
        """Make all heads the carries of one fixpoint, which starts with their facts."""
        heads, shapes = list(rules), [self.analysis.shape(name) for name in rules]
        fixed: dict[int, dict[int, Factor]] = {}  # by rule: the literals that are the same in every round
        done: dict[int, Tensor] = {}
        for rule in (rule for group in rules.values() for rule in group):
            still = [n for n, part in enumerate(rule.literals) if not s.reads(part, rules)]
            if len(still) == len(rule.literals):
                done[id(rule)] = self.rule(rule)
            else:
                fixed[id(rule)] = {n: self.factor(rule.literals[n], rule) for n in still}
        start = [
            self.values[name] if name in self.values else self.b.broadcast_to(self.b.literal(False), shape)
            for name, shape in zip(heads, shapes, strict=True)
        ]
        outside = dict(self.values)

        def body(*carries: Tensor) -> list[Tensor]:
            self.values.update(zip(heads, carries, strict=True))
            return [
                self.union([done[id(r)] if id(r) in done else self.rule(r, fixed[id(r)]) for r in group])
                for group in rules.values()
            ]

        with located(self.b, rules[heads[0]][0].statement.at):
            results = self.b.fixpoint(body, *start, combine="or", limit=round_limit(shapes))
        self.values.update(outside)
        self.values.update(zip(heads, results if isinstance(results, tuple) else (results,), strict=True))

    def rule(self, rule: Rule, fixed: Mapping[int, Factor] | None = None) -> Tensor:
        """Return the tuples that a rule derives: the join of its literals, projected onto its head."""
        known = fixed or {}
        factors = [known[n] if n in known else self.factor(p, rule) for n, p in enumerate(rule.literals)]
        if len(factors) == 1 and factors[0].axes == rule.output:
            return factors[0].tensor
        spec = write([f.axes for f in factors], rule.output)
        with located(self.b, rule.statement.at):
            return self.b.einsum(spec, *(f.tensor for f in factors), algebra="boolean")

    def factor(self, part: s.Expression, rule: Rule) -> Factor:
        """Return what one literal says of its variables."""
        with located(self.b, part.at or rule.statement.at):
            match part:
                case s.Tensor():
                    return self.atom(part)
                case s.Not(atom=atom):
                    return self.negated(atom, rule)
                case s.Comparison():
                    return self.comparison(part, rule)
            _refuse("this literal", part, "a literal of a rule is an atom, a negated atom or a comparison")

    def atom(self, atom: s.Tensor) -> Factor:
        """Return an atom: a slice where constants stand; numbers hold where they are not 0."""
        tensor = self.relation(atom.name)
        key: list[slice | int] = []
        axes: list[str] = []
        for p, place in enumerate(atom.places):
            if isinstance(place.index, s.Variable):
                axes.append(place.index.name)
                key.append(slice(None))
            else:
                assert isinstance(place.index, s.Constant)
                code = self.code(place.index, self.analysis.place(atom.name, p))
                key.append(-1 if code is None else code)
        if -1 in key:  # a constant that no tuple can have
            shape = [n for n, k in zip(self.analysis.shape(atom.name), key, strict=True) if isinstance(k, slice)]
            return Factor(self.b.broadcast_to(self.b.literal(False), shape), tuple(axes))
        if any(isinstance(k, int) for k in key):
            tensor = tensor[tuple(key)]
        if tensor.dtype != "bool":
            tensor = self.b.cast(tensor, "bool")
        return Factor(tensor, tuple(axes))

    def negated(self, atom: s.Tensor, rule: Rule) -> Factor:
        """Return where an atom does not hold; variables that stand nowhere else in the rule are projected away before."""
        tensor, axes = self.atom(atom)
        elsewhere = set(rule.output)
        for part in rule.literals:
            if not (isinstance(part, s.Not) and part.atom is atom):
                elsewhere.update(s.variables(part))
        remaining = tuple(dict.fromkeys(a for a in axes if a in elsewhere))
        if remaining != axes:
            tensor = self.b.einsum(write([axes], remaining), tensor, algebra="boolean")
        return Factor(self.b.logical_not(tensor), remaining)

    # comparisons

    def comparison(self, part: s.Comparison, rule: Rule) -> Factor:
        """Return where a comparison holds, as a tensor over its variables."""
        if not self._of_indices(part):
            found = comparison(part, rule.statement, self.analysis, self.b, self.values)
            return Factor(found.tensor, found.axes)
        axes = s.variables(part)
        left, right = part.left, part.right
        sides: Sequence[Tensor | int | float] | None = None
        if part.operator in ("=", "!="):
            sides = self._codes(left, right, rule, axes) or self._codes(right, left, rule, axes)
        if sides is None:
            sides = [self.value(side, rule, axes) for side in (left, right)]
        return Factor(getattr(self.b, s.COMPARISONS[part.operator])(*sides), axes)

    def _of_indices(self, part: s.Comparison) -> bool:
        """Tell whether a comparison is about indices and numbers alone, not about the elements of tensors."""
        return not any(
            isinstance(p, s.Call) or (isinstance(p, s.Tensor) and self._constant(p) is None) for p in s.walk(part)
        )

    def _codes(
        self, left: s.Expression, right: s.Expression, rule: Rule, axes: Sequence[str]
    ) -> tuple[Tensor, Tensor | int] | None:
        """Return the codes of a variable and of a constant or another variable of its domain; None for other comparisons."""
        if not isinstance(left, s.Variable):
            return None
        domain = rule.domains[left.name]
        column = self._column(self.b.iota(_size(domain)), left.name, axes)
        if isinstance(right, s.Variable):
            if rule.domains[right.name] is not domain:
                return None
            return column, self._column(self.b.iota(_size(domain)), right.name, axes)
        constant = self._constant(right)
        if constant is None:
            return None
        code = self.code(constant, domain)
        return column, -1 if code is None else code

    def _constant(self, part: s.Expression) -> s.Constant | None:
        match part:
            case s.Constant():
                return part
            case s.Text(value=text):
                return s.Constant(text, quoted=True, at=part.at)
            case s.Number(value=int() as number):
                return s.Constant(number, at=part.at)
            case s.Tensor(name=name, places=()) if not part.boolean and (
                name in self.analysis.scalars or name not in self.analysis.tensors
            ):
                return s.Constant(name, at=part.at)
        return None

    def code(self, constant: s.Constant, domain: Domain) -> int | None:
        """Return the place of a constant in a domain; the name of a scalar stands for its value."""
        return domain.code(self.analysis.constant_value(constant))

    def value(self, part: s.Expression, rule: Rule, axes: Sequence[str]) -> Tensor | int | float:
        """Return a value of a comparison as whole numbers over some axes: indices stand for their numbers."""
        match part:
            case s.Number(value=number):
                return number
            case s.Variable(name=name):
                return self._column(self._numbers(part, rule), name, axes)
            case s.Negative(value=inner):
                found = self.value(inner, rule, axes)
                return self.b.negative(found) if isinstance(found, Tensor) else -found
            case s.Product(factors=factors):
                return reduce(self.b.multiply, [self._tensor(f, rule, axes) for f in factors])
            case s.Operation(operator=operator, left=left, right=right) if operator in ARITHMETIC:
                sides = self._tensor(left, rule, axes), self._tensor(right, rule, axes)
                found = getattr(self.b, ARITHMETIC[operator])(*sides)
                assert isinstance(found, Tensor)
                return found
        constant = self._constant(part)
        value = None if constant is None else self.analysis.constant_value(constant)
        if isinstance(value, int | float):
            return value
        message = f"{value!r} is a name, which has no number to compare" if value is not None else "a value is expected"
        raise GraphError(message, "compare names with = and != only", code="E754", location=part.at)

    def _tensor(self, part: s.Expression, rule: Rule, axes: Sequence[str]) -> Tensor:
        found = self.value(part, rule, axes)
        return found if isinstance(found, Tensor) else self.b.literal(found)

    def _numbers(self, variable: s.Variable, rule: Rule) -> Tensor:
        """Return the number that each element of a variable's domain is."""
        domain = rule.domains[variable.name]
        if domain.kind == "range":
            return self.b.iota(_size(domain))
        if domain.kind != "integers":
            names = ", ".join(str(n) for n in domain.elements[:3])
            message = f"index {variable.name!r} stands for names ({names}, ...), which have no order and no numbers"
            raise GraphError(message, "compare names with = and != only", code="E754", location=variable.at)
        numbers = [int(n) for n in domain.elements]
        numbers += range(len(numbers), _size(domain))
        if (long := next((n for n in numbers if not -(2**63) <= n < 2**63), None)) is not None:
            shown = str(long) if long.bit_length() <= 256 else f"a number of {long.bit_length():,} bits"
            message = f"index {variable.name!r} may be {shown}, which does not fit 64 bits and so has no order here"
            hint = "compare such numbers with = and != only, or give smaller ones"
            raise GraphError(message, hint, code="E232", location=variable.at)
        return self.b.constant(np.array(numbers, np.int64))

    def _column(self, tensor: Tensor, name: str, axes: Sequence[str]) -> Tensor:
        """Lay a tensor of one axis out along one of several."""
        if len(axes) == 1:
            return tensor
        size = (tensor.shape or (1,))[0]
        return self.b.reshape(tensor, [size if axis == name else 1 for axis in axes])


def _size(domain: Domain) -> int:
    assert domain.size is not None, "the analysis refuses indices of unknown size"
    return domain.size
