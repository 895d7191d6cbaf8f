"""The order of evaluation: which tensors depend on which, in strongly connected components, and what must not be in a circle."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, NamedTuple

from ..errors import GraphError
from . import syntax as s
from .declarations import Declaration, Statement, mentions
from .recurrence_steps import find_step
from .rules import shortest_way, strongly_connected

SETTLED_FIRST = ("count=", "avg=")  # projections that need all of what they run over


class Component(NamedTuple):
    """Tensors that depend on each other (or one by itself), with the statements that define them.

    ``boolean`` is true where all of it is logic: rules, and equations between relations.
    """

    names: tuple[str, ...]
    statements: tuple[Statement, ...]
    recursive: bool
    boolean: bool


class Edge(NamedTuple):
    """One tensor reads another, in a statement; ``after`` where the other must be complete before."""

    head: str
    read: str
    statement: Statement
    after: str  # "", "not", or the operator of an aggregate
    part: s.Tensor


def is_logical(value: s.Expression, tensors: Mapping[str, Any]) -> bool:
    """Tell whether an expression is made of relations, negations and comparisons alone."""
    match value:
        case s.Tensor(name=name):
            return name in tensors and tensors[name].boolean
        case s.Not() | s.Comparison():
            return True
        case s.Product(factors=factors):
            return all(is_logical(f, tensors) for f in factors)
        case s.Operation(operator="+", left=left, right=right):
            return is_logical(left, tensors) and is_logical(right, tensors)
    return False


def is_rule(statement: Statement, tensors: Mapping[str, Declaration]) -> bool:
    """Tell whether a statement is logic: a rule, or an equation of a relation with relations.

    >>> is_rule(s.Rule(s.Tensor("R"), ()), {})
    True
    """
    if isinstance(statement, s.Rule):
        return True
    boolean = tensors[statement.head.name].boolean
    return boolean and statement.operator == "=" and is_logical(statement.value, tensors)


def body_of(statement: Statement) -> tuple[s.Expression, ...]:
    """Return the literals of a rule, or of an equation that is one.

    >>> body_of(s.Equation(s.Tensor("R"), "=", s.Tensor("P")))
    (Tensor(name='P', places=(), boolean=False, at=None),)
    """
    if isinstance(statement, s.Rule):
        return statement.body
    return statement.value.factors if isinstance(statement.value, s.Product) else (statement.value,)


def edges(statement: Statement, tensors: Mapping[str, Declaration]) -> Iterator[Edge]:
    """Go through what a statement reads, once for each occurrence."""
    operator = statement.operator if isinstance(statement, s.Equation) else ""
    aggregate = operator if operator in SETTLED_FIRST else ""
    for mention in mentions(statement):
        if mention.role != "head" and mention.tensor.name in tensors:
            after = "not" if mention.role == "not" else aggregate
            yield Edge(statement.head.name, mention.tensor.name, statement, after, mention.tensor)


def components(
    statements: Sequence[Statement], tensors: Mapping[str, Declaration], scalars: Mapping[str, int | float]
) -> tuple[Component, ...]:
    """Return the components in order; what would have to be settled before itself is refused, with the circle shown."""
    own: dict[str, list[tuple[int, Statement]]] = {}
    reads: dict[str, list[Edge]] = {}
    for n, statement in enumerate(statements):
        own.setdefault(statement.head.name, []).append((n, statement))
        reads.setdefault(statement.head.name, []).extend(edges(statement, tensors))
    result = []
    place = {name: n for n, name in enumerate(own)}
    for members in strongly_connected(own, lambda name: dict.fromkeys(e.read for e in reads[name] if e.read in own)):
        names = tuple(sorted(members, key=place.__getitem__))
        inside = [e for name in names for e in reads[name] if e.read in members]
        mine = tuple(statement for _, statement in sorted((x for name in names for x in own[name]), key=itemgetter(0)))
        component = Component(names, mine, bool(inside), all(is_rule(m, tensors) for m in mine))
        if inside:
            _check_circle(component, inside, tensors, scalars)
        result.append(component)
    return tuple(result)


def _check_circle(
    component: Component, inside: Sequence[Edge], tensors: Mapping[str, Declaration], scalars: Mapping[str, int | float]
) -> None:
    """Refuse negation in a circle, and aggregates unless an index step orders the rounds."""
    stepped = not component.boolean and find_step(component.names, component.statements, scalars) is not None
    for edge in inside:
        if edge.after == "not" or (edge.after and not stepped):
            circle = _shortest_cycle(edge, inside)
            shown = " <- ".join([edge.head, *(f"{e.after} {e.read}".strip() for e in circle)])
            what = "negation" if edge.after == "not" else f"an aggregate ({edge.after})"
            context = [f"{e.head} reads {f'{e.after} {e.read}'.strip()} at {e.part.at}" for e in circle]
            message = f"{what} stands in a circle, so there is no order to evaluate it in: {shown}"
            hint = "let what is negated or aggregated not depend on the head"
            raise GraphError(message, hint, code="E681", location=edge.part.at or edge.statement.at, context=context)
    kinds = {tensors[name].boolean for name in component.names}
    if len(kinds) > 1 and not stepped:
        first = next(e for e in inside if tensors[e.head].boolean != tensors[e.read].boolean)
        circle = _shortest_cycle(first, inside)
        shown = " <- ".join([first.head, *(e.read for e in circle)])
        message = f"truth values and numbers depend on each other in a circle: {shown}"
        hint = "write the circle with relations alone, or with numbers alone"
        raise GraphError(message, hint, code="E682", location=first.part.at or first.statement.at)


def _shortest_cycle(edge: Edge, inside: Sequence[Edge]) -> list[Edge]:
    """Return a shortest way from an edge back to where it starts."""
    way = shortest_way(edge.read, edge.head, lambda name: [e.read for e in inside if e.head == name])
    return [edge, *(next(e for e in inside if (e.head, e.read) == pair) for pair in pairwise(way))]


def check_safety(statement: Statement) -> None:
    """Refuse a rule with a variable that nothing of its body binds.

    A positive atom binds its variables, a tensor of numbers that is compared binds its own, and ``y = x + 1`` binds ``y`` where ``x`` is
    bound. A blank (``_``) in a negated atom needs nothing: no value fits.
    """
    body = body_of(statement)
    bound = bound_variables(body)
    for part, where in [(statement.head, "the head"), *((b, "") for b in body if not isinstance(b, s.Tensor))]:
        for piece in s.walk(part):
            if not isinstance(piece, s.Variable) or piece.name in bound:
                continue
            if isinstance(part, s.Not) and piece.name[0] == "_" and _is_blank(piece.name, statement):
                continue
            words = where or ("a negated atom" if isinstance(part, s.Not) else "a comparison")
            message = f"variable {piece.name!r} of {words} stands in no positive atom of the body"
            hint = f"add an atom that says what {piece.name} may be"
            raise GraphError(message, hint, code="E683", location=piece.at or part.at or statement.at)


def bound_variables(body: Sequence[s.Expression]) -> set[str]:
    """Return the variables that the literals of a body bind.

    >>> x, y = s.Variable("x"), s.Variable("y")
    >>> step = s.Comparison("=", y, s.Operation("+", x, s.Number(1)))
    >>> sorted(bound_variables([step, s.Tensor("P", (s.Place(x),), True)]))
    ['x', 'y']
    """
    bound, before = variables_of_atoms(body), -1
    while len(bound) > before:
        before = len(bound)
        for one, other in _equated(body):
            if bound.issuperset(s.variables(other)):
                bound.add(one.name)
    return bound


def _equated(body: Sequence[s.Expression]) -> Iterator[tuple[s.Variable, s.Expression]]:
    """Go through the equations of a body with a variable on one side: the variable, and the other side."""
    for part in body:
        if isinstance(part, s.Comparison) and part.operator == "=":
            for one, other in ((part.left, part.right), (part.right, part.left)):
                if isinstance(one, s.Variable):
                    yield one, other


def variables_of_atoms(body: Sequence[s.Expression], without: Collection[str] = ()) -> set[str]:
    """Return the variables that stand in positive atoms, or in tensors that are compared; those of some relations do not count.

    >>> x, y = (s.Place(s.Variable(name)) for name in "xy")
    >>> variables_of_atoms([s.Tensor("P", (x,), True), s.Not(s.Tensor("Q", (y,), True))])
    {'x'}
    """
    return {
        place.index.name
        for part in body
        if not isinstance(part, s.Not)
        for tensor in s.walk(part)
        if isinstance(tensor, s.Tensor) and tensor.name not in without
        for place in tensor.places
        if isinstance(place.index, s.Variable)
    }


def calculated(body: Sequence[s.Expression]) -> dict[str, s.Expression]:
    """Return the variables of a body that no atom binds but arithmetic does, with their values, such as y in ``y = x + 1``.

    >>> x, y = s.Variable("x"), s.Variable("y")
    >>> step = s.Comparison("=", y, s.Operation("+", x, s.Number(1)))
    >>> list(calculated([step, s.Tensor("P", (s.Place(x),), True)]))
    ['y']
    """
    in_atoms = variables_of_atoms(body)
    found: dict[str, s.Expression] = {}
    for variable, value in _equated(body):
        if variable.name not in in_atoms and isinstance(value, s.Operation | s.Product | s.Negative):
            found.setdefault(variable.name, value)
    return found


def _is_blank(name: str, statement: Statement) -> bool:
    return sum(isinstance(p, s.Variable) and p.name == name for p in s.walk(statement)) == 1
