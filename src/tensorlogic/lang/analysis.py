"""Analysis of a program before it runs: its tensors, domains, sizes and order of evaluation.

Text becomes statements (:mod:`.grammar`), :func:`analyse` finds out what they mean together, and lowering turns one component
after the other into a graph. Mistakes that need no values are found here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

from ..diagnostics import SourceLocation
from ..errors import GraphError, nearest
from ..ir.types import FLOATS, promote
from . import syntax as s
from .checks import check_body, check_constants, check_marks, check_queries, check_slice
from .declarations import GivenTensor, Statement, declare, find_scalars, literal_array
from .domain_inference import DomainKey, Places, infer_places, unknown_constant
from .domains import Domain
from .extents import ReadPlace, Slice, forms, solve_extents, variable_ranges
from .format import text_of
from .index_names import named
from .number_growth import grow
from .strata import Component, check_safety, components, is_rule

__all__ = ["Analysis", "Component", "DomainKey", "GivenTensor", "TensorInfo", "analyse"]

COMBINED = ("max=", "min=", "avg=", "count=")
OPERATORS = ("=", "+=", *COMBINED)
NO_DATA = "give data for a tensor that has the index, or write a literal"
Function = Callable[..., Any]


class TensorInfo(NamedTuple):
    """One tensor: its places' domains, whether it holds truth values, and how it comes about."""

    name: str
    arity: int
    boolean: bool
    places: tuple[DomainKey, ...]
    derived: bool  # it has rules or equations
    facts: bool  # it has facts
    given: bool  # data are given for it
    operator: str  # what combines the elements that several equations, or one, give: = max= min= avg= count=
    virtual: int | None  # the place of which only the last position is kept
    at: SourceLocation | None


@dataclass(eq=False, repr=False)
class Analysis:
    """The meaning of a program: see the attributes, and :meth:`shape`, :meth:`code` and :meth:`domain` for questions about it.

    >>> from tensorlogic.lang.syntax import Facts, Place, Rule, Tensor, Variable
    >>> x, y = Place(Variable("x")), Place(Variable("y"))
    >>> rule = Rule(Tensor("Old", (x,), True), (Tensor("Parent", (x, y), True),))
    >>> found = analyse([Facts("Parent", (("Ann", "Bob"), ("Bob", "Cid"))), rule])
    >>> found.shape("Old"), found.code("Old", 0, "Bob"), found.components[0].names
    ((2,), 1, ('Old',))
    """

    statements: tuple[s.Statement, ...]
    tensors: dict[str, TensorInfo]
    domains: dict[DomainKey, Domain]
    components: tuple[Component, ...]
    scalars: dict[str, int | float]  # scalars of known value, which may stand in indices
    functions: Mapping[str, Function]  # attached Python functions, by name
    dtype: str  # of numbers that come from truth values, indices and literals
    grown: frozenset[DomainKey]  # domains that hold numbers which only rules derive
    _places: Places

    def __post_init__(self) -> None:
        from_files = {x.head.name for x in self.statements if isinstance(x, s.Read)}
        self.inputs = tuple(  # read, but neither defined, nor given, nor in a file
            n for n, t in self.tensors.items() if not (t.derived or t.facts or t.given or n in from_files)
        )
        # the position that is kept of tensors with a virtual index, once they are lowered
        self.kept: dict[str, int] = {}
        self._numbers = {id(statement): n for n, statement in enumerate(self.statements)}
        self._equations: dict[int, s.Equation] = {}  # by the id of the rule
        self._aliases: list[s.Equation] = []

    def domain(self, statement: s.Statement, variable: str) -> Domain:
        """Return the domain of a variable of a statement."""
        return self._by_root[self._places.find((self._numbers[id(statement)], variable))]

    def place(self, name: str, place: int) -> Domain:
        """Return the domain of a place of a tensor."""
        return self.domains[self.tensors[name].places[place]]

    def size(self, statement: s.Statement, variable: str) -> int | None:
        """Return the number of elements that a variable of a statement runs over; None where nothing fixes it."""
        return self._sizes.get(self._places.find((self._numbers[id(statement)], variable)))

    def extent(self, name: str, place: int) -> int | None:
        """Return how far an axis of a tensor goes; None where nothing fixes it."""
        known = self._extents.get((name, place))
        return known if known is not None else self._sizes.get(self._places.find((name, place)))

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; an axis that nothing fixes is an error that names its index.

        The axis that a virtual index steps along counts, though only its last position is kept.
        """
        found = []
        for p in range(self.tensors[name].arity):
            extent = self.extent(name, p)
            if extent is None:
                raise self._unknown_size(name, p)
            found.append(extent)
        return tuple(found)

    def _unknown_size(self, name: str, place: int) -> GraphError:
        """Return the error of an index whose size nothing fixes."""
        variable = self._places.known((name, place)).variable
        what = f"index {variable.name!r}" if variable else "the index"
        unsized = f"the size of {what} (place {place + 1} of {name!r})"
        needed = self._sized_by(self._places.find((name, place)))
        message, hint = self._not_given(unsized, needed[0]) if needed else (f"nothing fixes {unsized}", NO_DATA)
        return GraphError(message, hint, code="E679", location=(variable and variable.at) or self.tensors[name].at)

    def _sized_by(self, root: object) -> list[str]:
        """Return the inputs whose shapes would fix the size of an index."""
        return [n for n in self.inputs if any(self._places.find((n, p)) == root for p in range(self.tensors[n].arity))]

    def _not_given(self, unsized: str, name: str) -> tuple[str, str]:
        """Return the message and the hint where an input whose shape would fix a size is not given."""
        boolean = self.tensors[name].boolean
        message = f"the {'relation' if boolean else 'tensor'} {name!r} is not given, and nothing else fixes {unsized}"
        return message, f"give it: program.add({name!r}, rows)" if boolean else how_to_give(name)

    def constant_value(self, constant: s.Constant) -> Any:
        """Return what a constant stands for: the name of a scalar for its value, as a whole number where it is one."""
        value: Any = constant.value
        if isinstance(value, str) and not constant.quoted:
            value = self.scalars.get(value, value)
        return int(value) if isinstance(value, float) and value.is_integer() else value

    def code(self, name: str, place: int, constant: str | int | s.Constant) -> int:
        """Return the position of a constant in a place of a tensor; the name of a scalar stands for its value."""
        at = constant.at if isinstance(constant, s.Constant) else None
        value = self.constant_value(constant) if isinstance(constant, s.Constant) else constant
        info = self.place(name, place)
        extent = self.extent(name, place)
        inside = isinstance(value, int) and value >= 0 and (extent is None or value < extent)
        code = (int(value) if inside else None) if info.kind == "range" else info.code(value)
        if code is None:
            shown = Domain(size=extent) if info.kind == "range" else info
            raise unknown_constant(name, place, value, shown).at(at)
        return code

    def ranges(self, equation: s.Equation) -> tuple[dict[str, tuple[int, int]], list[ReadPlace]]:
        """Return where each variable of an equation starts and stops, and the reads that this does not keep in range."""
        found, beyond = variable_ranges(
            equation, self.scalars, lambda v: None if v[0] == ":" else self.size(equation, v), self.extent
        )
        result = {}
        for name, (start, stop) in found.items():
            if stop is None:
                raise self._unsized_variable(equation, name)
            result[name] = (start, max(start, stop))
        return result, beyond

    def _unsized_variable(self, equation: s.Equation, name: str) -> GraphError:
        at = next((p.at for p in s.walk(equation) if isinstance(p, s.Variable) and p.name == name), equation.at)
        if name[0] == ":":
            hint = "give data for a tensor that has the index"
            return GraphError("nothing fixes the size of a slice", hint, code="E679", location=at)
        needed = self._sized_by(self._places.find((self._numbers[id(equation)], name)))
        unsized = f"the size of index {name!r}"
        message, hint = self._not_given(unsized, needed[0]) if needed else (f"nothing fixes {unsized}", NO_DATA)
        stepped = [isinstance(p.index, s.Arithmetic) and name in s.variables(p) for p in equation.head.places]
        if any(stepped) and not needed:
            last = s.Place(s.Constant(10))
            places = (last if step else p for step, p in zip(stepped, equation.head.places, strict=True))
            element = text_of(s.Tensor(equation.head.name, tuple(places)))
            hint = f"an element that is asked for says how far it goes: {element}?, or in an equation Y = {element}"
        if name not in s.variables(equation.value):
            hint = f"{name} stands on the left side only: use it on the right side too, or leave it out"
        return GraphError(message, hint, code="E679", location=at)

    def as_equation(self, rule: Statement) -> s.Equation:
        """Return a rule as an equation between truth values; an equation as it is."""
        if isinstance(rule, s.Equation):
            return rule
        if id(rule) not in self._equations:
            value = rule.body[0] if len(rule.body) == 1 else s.Product(rule.body, at=rule.at)
            self._equations[id(rule)] = equation = s.Equation(rule.head, "=", value, at=rule.at)
            self._numbers[id(equation)] = self._numbers[id(rule)]
        return self._equations[id(rule)]

    def alias(self, equation: s.Equation, statement: s.Statement) -> Analysis:
        """Let an equation that is made of a part of a statement have the statement's variables."""
        self._numbers[id(equation)] = self._numbers[id(statement)]
        self._aliases.append(equation)  # so that no other object gets its identity
        return self

    def solve(self, given: Mapping[str, GivenTensor]) -> None:
        """Work out all sizes from the domains as they are now; call it again after adding names to a domain."""
        self.given = given
        roots = self._places.roots()
        self._by_root: dict[object, Domain] = {self._places.find(key): d for key, d in self.domains.items()}
        for root in roots:
            if root not in self._by_root:
                self._by_root[root] = self._places.domain(root)
        self._sizes: dict[object, int | None] = {root: self._by_root[root].size for root in roots}
        equations = [(n, e) for n, e in enumerate(self.statements) if isinstance(e, s.Equation)]
        fixed = {
            (name, p): size
            for name, data in given.items()
            if self.tensors[name].derived and not self.tensors[name].boolean
            for p, size in enumerate(data.shape)
            if size is not None
        }
        derived = {t.name: t.arity for t in self.tensors.values() if t.derived and not t.boolean}
        self._extents = solve_extents(
            equations,
            self.scalars,
            self._sizes,
            self._places.find,
            fixed,
            derived,
            lambda root: self._by_root[root].kind != "range",
            {name: n for n, part in enumerate(self.components) for name in part.names},
        )
        for key, info in self.domains.items():
            size = self._sizes.get(self._places.find(key))
            if info.kind == "range" and size is not None:
                self.domains[key] = self._by_root[self._places.find(key)] = Domain(size=size)


def analyse(
    statements: Iterable[s.Statement],
    *,
    given: Mapping[str, GivenTensor] | None = None,
    functions: Mapping[str, Function] | None = None,
) -> Analysis:
    """Find out what statements mean together; ``given`` describes tensors that are bound from Python."""
    data = {} if given is None else dict(given)
    slices: dict[int, list[Slice]] = {}
    scalars = find_scalars(program := tuple(statements), data)
    program = tuple(
        named(x, scalars, slices.setdefault(n, [])) if isinstance(x, s.Equation) else x for n, x in enumerate(program)
    )
    attached = {} if functions is None else dict(functions)
    defined = [x for x in program if isinstance(x, s.Rule | s.Equation)]
    for x in defined:
        if isinstance(x, s.Equation) and x.operator not in OPERATORS:
            hints = nearest(x.operator, OPERATORS)
            raise GraphError(f"unknown operator {x.operator!r}", *hints, code="E680", location=x.at)
    tensors = declare(program, data, attached)
    check_queries(program, tensors)
    derived = {x.head.name for x in defined}
    literals = {
        x.head.name: literal_array(x.value).shape
        for x in defined
        if isinstance(x, s.Equation) and isinstance(x.value, s.ListLiteral) and _whole(x, scalars)
    }
    places = infer_places(program, tensors, scalars, data, derived, literals, slices)
    facts = {x.name for x in program if isinstance(x, s.Facts)}
    first: dict[object, DomainKey] = {}
    infos: dict[str, TensorInfo] = {}
    by_head: dict[str, list[Statement]] = {}
    for x in defined:
        by_head.setdefault(x.head.name, []).append(x)
    for t in tensors.values():
        keys = tuple(first.setdefault(places.find((t.name, p)), (t.name, p)) for p in range(t.arity))
        own = by_head.get(t.name, [])
        origin = bool(own), t.name in facts, t.name in data
        infos[t.name] = TensorInfo(t.name, t.arity, t.boolean, keys, *origin, _operator(own), _virtual(own), t.at)
    domains = {key: places.domain(key) for key in dict.fromkeys(first.values())}
    for x in defined:
        if is_rule(x, tensors):
            check_body(x, tensors)
            check_safety(x)
    parts = components(defined, tensors, scalars)
    check_marks(parts)
    dtypes = [g.dtype for g in data.values() if g.dtype in FLOATS]
    dtype = promote([(str(d), False) for d in dtypes]) if dtypes else "float64"
    numbers = {id(x): n for n, x in enumerate(program)}

    def key_of(rule: Statement, index: str | int) -> DomainKey | None:
        key = (rule.head.name, index) if isinstance(index, int) else (numbers[id(rule)], index)
        return first.get(places.find(key))

    sized = {key for key in domains if places.known(key).data}
    positions = {key for key in domains if places.known(key).positions}
    grown = grow([p for p in parts if p.boolean], domains, key_of, scalars, sized, positions)
    result = Analysis(program, infos, domains, parts, scalars, attached, dtype, grown, places)
    result.solve(data)
    check_constants(result)
    for part in chain.from_iterable(slices.values()):
        check_slice(result, part)
    return result


def _whole(equation: s.Equation, scalars: Mapping[str, int | float]) -> bool:
    """Tell whether a literal says all of a tensor: ``W = [...]`` or ``W[i,j] = [...]``."""
    found = forms(equation.head, scalars)
    return all(f is not None and f.is_plain and f.variables[0][0] != ":" for f in found)


def _operator(own: Sequence[Statement]) -> str:
    """Return what combines a tensor's equations; two that do not go together are refused."""
    chosen: s.Equation | None = None
    for x in own:
        if isinstance(x, s.Equation) and x.operator in COMBINED:
            if chosen is not None and (chosen.operator != x.operator or x.operator == "avg="):
                message = f"{x.head.name!r} is combined by {chosen.operator} at {chosen.at} and by {x.operator} here"
                hint = "give one of the two another name, and combine them in a third equation"
                raise GraphError(message, hint, code="E684", location=x.at)
            chosen = x
    for x in own if chosen is not None else ():
        assert chosen is not None
        if isinstance(x, s.Equation) and x.operator in ("=", "+=") and x.head == chosen.head:
            message = f"{x.head.name!r} is combined by {chosen.operator} at {chosen.at} and by {x.operator} here"
            raise GraphError(message, f"write {chosen.operator} in both", code="E684", location=x.at)
    return "=" if chosen is None else chosen.operator


def _virtual(own: Sequence[Statement]) -> int | None:
    """Return the place of which only the last position is kept: the one with a virtual step, such as ``*t+1``."""
    places = [(p, place) for x in own for p, place in enumerate(x.head.places)]
    return next((p for p, place in places if place.virtual and isinstance(place.index, s.Arithmetic)), None)


def how_to_give(name: str) -> str:
    """Return the hint for a tensor of numbers that is not given."""
    run = f"give it: program.run({name}=array), or program.bind({name}=array)"
    run = run if name.isidentifier() else f"give it: program.run({{{name!r}: array}})"
    return f"{run}; on the command line: -i {name}=FILE.npy"
