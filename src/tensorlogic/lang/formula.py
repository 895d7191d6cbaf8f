"""Formulas in normal form: every variable has its own name, equal subformulas are shared, and negation is at the leaves."""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
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


def once(results: dict[Any, Any], key: Any, steps: Steps) -> Steps:
    """Run steps, unless their result is known."""
    if key not in results:
        results[key] = yield steps
    return results[key]


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


def parts(formula: Formula) -> list[Formula]:
    """Return a formula and all of its parts, each once and before what it stands in."""
    found: dict[Formula, None] = {}
    pending = [(formula, False)]
    while pending:
        f, ready = pending.pop()
        if ready:
            found[f] = None
        elif f not in found:
            pending.append((f, True))
            pending.extend((a, False) for a in reversed(f.args))
    return list(found)


class Formulas:
    """Makes formulas from expressions; the same parts make the same formula."""

    def __init__(self, domains: DomainTable, warn: Callable[[str, SourceLocation | None], None]) -> None:
        self.domains = domains
        self.warn = warn
        self._formulas: dict[Any, Formula] = {}
        self._uses: dict[int, int] = {}  # how many formulas each one is a part of
        self._negated: dict[tuple[int, bool], Formula] = {}
        self._readings: dict[Any, Formula] = {}
        self.predicates: dict[str, SourceLocation | None] = {}
        self.variables: set[str] = set()

    def make(
        self,
        kind: str,
        args: tuple[Formula, ...] = (),
        *,
        name: str = "",
        over: tuple[Any, ...] = (),
        value: Any = None,
        location: SourceLocation | None = None,
    ) -> Formula:
        """Return the formula with these parts."""
        key = (kind, tuple(map(id, args)), name, over, repr(value))
        found = self._formulas.get(key)
        if found is None:
            found = self._formulas[key] = Formula(kind, args, name, over, value)
            found.location = location
            for a in args:
                self._uses[id(a)] = self._uses.get(id(a), 0) + 1
        return found

    def shared(self, f: Formula) -> bool:
        """Tell whether a formula is part of several."""
        return self._uses.get(id(f), 0) > 1

    def check_names(self) -> None:
        """Refuse a name that is both a predicate and a variable."""
        for name, location in self.predicates.items():
            if name in self.variables:
                raise GraphError(f"{name!r} is used both as a predicate and as a variable", code="E611").at(location)

    def read(self, expr: TLExpr, free: dict[str, Variable]) -> Formula:
        """Tell variables apart and note what is said of domains; ``free`` collects the free variables."""
        result: Formula = run_steps(self._read(expr, {}, free))
        self.variables.update(free)
        self._readings.clear()  # its keys are the ids of this expression's parts
        return result

    def _read(self, expr: TLExpr, bound: dict[str, Variable], free: dict[str, Variable]) -> Steps:
        key = (id(expr), *(bound.get(n) for n in expr.free_variables()))
        return once(self._readings, key, self._reading(expr, bound, free))

    def _reading(self, expr: TLExpr, bound: dict[str, Variable], free: dict[str, Variable]) -> Steps:
        kind = expr.kind
        if kind == "pred":
            return self._predicate(expr, bound, free)
        if kind == "same":
            place = ("=", object())  # of this reading: elsewhere the same expression may be about other variables
            first, second = (self._place(t, place, expr, bound, free) for t in expr.terms)
            return self.make("equation", over=(first, second), location=expr.location)
        if kind == "constant":
            return self.make("constant", value=expr.value, location=expr.location)
        if kind in QUANTIFIERS:
            inner = dict(bound)
            over = []
            for t in expr.terms:
                variable = Variable(str(t.name))
                if t.domain is not None:
                    self.domains.say(variable, t.domain, f"variable {t.name}", expr.location)
                inner[str(t.name)] = variable
                self.variables.add(variable.name)
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
        self.predicates.setdefault(expr.name, expr.location)
        over = tuple(self._place(t, (expr.name, i), expr, bound, free) for i, t in enumerate(expr.terms))
        return self.make("pred", name=expr.name, over=over, location=expr.location)

    def _place(
        self, t: Term, place: tuple[str, object], expr: TLExpr, bound: dict[str, Variable], free: dict[str, Variable]
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
        return run_steps(self._normal(formula, False, strategy))  # type: ignore[no-any-return]

    def _normal(self, f: Formula, negated: bool, s: Strategy) -> Steps:
        return once(self._negated, (id(f), negated), self._normalized(f, negated, s))

    def _normalized(self, f: Formula, negated: bool, s: Strategy) -> Steps:
        kind, at = f.kind, f.location
        if kind == "not" and s.de_morgan:
            return (yield self._normal(f.args[0], not negated, s))
        if kind in ("iff", "xor"):
            (a, b), make = f.args, partial(self.make, location=at)
            if kind == "iff":
                both = make("and", (make("imply", (a, b)), make("imply", (b, a))))
            else:
                both = make("and", (make("or", (a, b)), make("not", (make("and", (a, b)),))))
            return (yield self._normal(both, negated, s))
        if (joined := self._effective(f, negated, s)) is not None:
            parts: list[Formula] = []
            for part, against in self._operands(f, negated, joined, s):
                parts.append((yield self._normal(part, against, s)))
            return self.make(joined, tuple(parts), location=at)
        if kind in QUANTIFIERS and (s.de_morgan or not negated):
            body = yield self._normal(f.args[0], negated, s)
            turned = {"exists": "forall", "forall": "exists"}[kind] if negated else kind
            return self.make(turned, (body,), over=f.over, location=at)
        parts = []
        for a in f.args:
            parts.append((yield self._normal(a, False, s)))
        plain = self.make(kind, tuple(parts), name=f.name, over=f.over, value=f.value, location=at)
        return self.make("not", (plain,), location=at) if negated else plain

    def _effective(self, f: Formula, negated: bool, s: Strategy) -> str | None:
        """Return the connective that a formula is once negation has passed it; None where it stays as it is."""
        if negated and not s.de_morgan:
            return None
        if f.kind == "imply":
            return None if s.imply is not None else "and" if negated else "or"
        return {"and": "or", "or": "and"}.get(f.kind) if negated else f.kind if f.kind in ("and", "or") else None

    def _operands(self, f: Formula, negated: bool, joined: str, s: Strategy) -> list[tuple[Formula, bool]]:
        """Flatten nested connectives that come to the same one, except those that stand elsewhere too."""
        found: list[tuple[Formula, bool]] = []
        pending = [(f, negated)]
        while pending:
            part, against = pending.pop()
            while part.kind == "not" and s.de_morgan:
                part, against = part.args[0], not against
            if self._effective(part, against, s) != joined or (part is not f and self.shared(part)):
                found.append((part, against))
            elif part.kind == "imply":
                pending += [(part.args[1], against), (part.args[0], not against)]
            else:
                pending += [(a, against) for a in reversed(part.args)]
        return found
