"""Formulas with every variable told apart, shared subformulas shared, and negation at the leaves."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from ..diagnostics import SourceLocation
from ..errors import GraphError
from .context import DomainTable
from .expr import QUANTIFIERS, Term, TLExpr
from .strategies import Strategy

Steps = Generator[Any, Any, Any]  # yields what it needs computed first, returns its result


def run_steps(first: Steps) -> Any:
    """Run a recursion written as generators without Python's stack."""
    stack, value = [first], None
    while stack:
        try:
            stack.append(stack[-1].send(value))
            value = None
        except StopIteration as done:
            stack.pop()
            value = done.value
    return value


class Variable:
    """A variable of one quantifier, or a free one; two of the same name are different."""

    __slots__ = ("domain", "name")

    def __init__(self, name: str) -> None:
        self.name = name
        self.domain = ""

    def __repr__(self) -> str:
        return self.name


class Formula:
    """A node of a formula; equal ones are the same object."""

    __slots__ = ("args", "free", "kind", "location", "name", "over", "value")

    def __init__(self, kind: str, args: tuple[Formula, ...], name: str, over: tuple[Any, ...], value: Any) -> None:
        self.kind, self.args, self.name, self.over, self.value = kind, args, name, over, value
        free = frozenset().union(*(a.free for a in args)) if args else frozenset()
        own = frozenset(v for v in over if isinstance(v, Variable))
        self.free: frozenset[Variable] = free - own if kind in QUANTIFIERS else free | own
        self.location: SourceLocation | None = None


class Formulas:
    """Makes formulas from expressions; the same parts make the same formula."""

    def __init__(self, domains: DomainTable, warn: Callable[[str, SourceLocation | None], None]) -> None:
        self.domains = domains
        self.warn = warn
        self._made: dict[Any, Formula] = {}
        self._negated: dict[tuple[int, bool], Formula] = {}
        self.predicates: set[str] = set()

    def make(self, kind: str, args: tuple[Formula, ...] = (), *, name: str = "", over: tuple[Any, ...] = (),
             value: Any = None, location: SourceLocation | None = None) -> Formula:  # fmt: skip
        """Return the formula with these parts."""
        key = (kind, tuple(map(id, args)), name, over, repr(value))
        found = self._made.get(key)
        if found is None:
            found = self._made[key] = Formula(kind, args, name, over, value)
            found.location = location
        return found

    def read(self, expr: TLExpr, free: dict[str, Variable]) -> Formula:
        """Tell variables apart and note what is said of domains; ``free`` collects the free variables."""
        result: Formula = run_steps(self._read(expr, {}, free))
        clash = next((n for n in free if n in self.predicates), None)
        if clash is not None:
            raise GraphError(f"{clash!r} is used both as a predicate and as a variable", code="E611").at(expr.location)
        return result

    def _read(self, expr: TLExpr, bound: dict[str, Variable], free: dict[str, Variable]) -> Steps:
        kind = expr.kind
        if kind == "pred":
            return self._predicate(expr, bound, free)
        if kind == "constant":
            return self.make("constant", value=expr.value, location=expr.location)
        if kind in QUANTIFIERS:
            inner = dict(bound)
            over = []
            for t in expr.terms:
                variable = Variable(str(t.name))
                if t.domain is not None:
                    self.domains.say(variable, t.domain, f"variable {t.name}", expr.location)
                if t.name in self.predicates:
                    raise GraphError(f"{t.name!r} is used both as a predicate and as a variable", code="E611").at(
                        expr.location
                    )
                inner[str(t.name)] = variable
                over.append(variable)
            body = yield self._read(expr.args[0], inner, free)
            used = tuple(v for v in over if v in body.free)
            for v in over:
                if v not in body.free:
                    self.warn(f"variable {v.name!r} of {kind} does not occur in its body", expr.location)
            return self.make(kind, (body,), over=used, location=expr.location) if used else body
        parts = []
        for a in expr.args:
            parts.append((yield self._read(a, bound, free)))
        return self.make(kind, tuple(parts), location=expr.location)

    def _predicate(self, expr: TLExpr, bound: dict[str, Variable], free: dict[str, Variable]) -> Formula:
        self.domains.use(expr.name, len(expr.terms), expr.location)
        self.predicates.add(expr.name)
        if expr.name in bound:
            raise GraphError(f"{expr.name!r} is used both as a predicate and as a variable", code="E611").at(
                expr.location
            )
        over: list[Any] = []
        for i, t in enumerate(expr.terms):
            over.append(self._place(t, (expr.name, i), expr, bound, free))
        return self.make("pred", name=expr.name, over=tuple(over), location=expr.location)

    def _place(
        self, t: Term, place: tuple[str, int], expr: TLExpr, bound: dict[str, Variable], free: dict[str, Variable]
    ) -> Any:
        if not t.is_variable:
            self.domains.constant(place, t.name, expr.location)
            return t
        name = str(t.name)
        variable = bound.get(name) or free.setdefault(name, Variable(name))
        if t.domain is not None:
            self.domains.say(variable, t.domain, f"variable {name}", expr.location)
        self.domains.join(place, variable)
        return variable

    def normal(self, formula: Formula, strategy: Strategy) -> Formula:
        """Write everything by and, or, not and quantifiers; push negation to the leaves where the logic allows it."""
        result: Formula = run_steps(self._normal(formula, False, strategy))
        return result

    def _normal(self, f: Formula, negated: bool, s: Strategy) -> Steps:
        known = self._negated.get((id(f), negated))
        if known is None:
            known = yield self._normalized(f, negated, s)
            self._negated[id(f), negated] = known
        return known

    def _normalized(self, f: Formula, negated: bool, s: Strategy) -> Steps:
        kind, at = f.kind, f.location
        if kind == "not":
            return (
                (yield self._normal(f.args[0], not negated, s))
                if s.de_morgan
                else (yield self._plain_not(f, negated, s))
            )
        if kind in ("iff", "xor"):
            a, b = f.args
            if kind == "iff":
                both = self.make(
                    "and",
                    (self.make("imply", (a, b), location=at), self.make("imply", (b, a), location=at)),
                    location=at,
                )
            else:
                either = self.make("or", (a, b), location=at)
                both = self.make(
                    "and",
                    (either, self.make("not", (self.make("and", (a, b), location=at),), location=at)),
                    location=at,
                )
            return (yield self._normal(both, negated, s))
        if kind == "imply" and s.imply is None:
            arrow = self.make("or", (self.make("not", (f.args[0],), location=at), f.args[1]), location=at)
            return (yield self._normal(arrow, negated, s))
        if kind in ("and", "or", *QUANTIFIERS) and (s.de_morgan or not negated):
            if negated:
                kind = {"and": "or", "or": "and", "exists": "forall", "forall": "exists"}[kind]
            parts: list[Formula] = []
            for a in f.args:
                part = yield self._normal(a, negated, s)
                parts += part.args if part.kind == kind and kind in ("and", "or") else (part,)
            return self.make(kind, tuple(parts), over=f.over, location=at)
        parts = []
        for a in f.args:
            parts.append((yield self._normal(a, False, s)))
        plain = self.make(kind, tuple(parts), name=f.name, over=f.over, value=f.value, location=at)
        return self.make("not", (plain,), location=at) if negated else plain

    def _plain_not(self, f: Formula, negated: bool, s: Strategy) -> Steps:
        inner = yield self._normal(f.args[0], False, s)
        once = self.make("not", (inner,), location=f.location)
        return self.make("not", (once,), location=f.location) if negated else once
