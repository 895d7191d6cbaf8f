"""Logical expressions: predicates, connectives, quantifiers and arithmetic as immutable trees.

Nothing here recurses over a tree, so an expression may be as deep as it likes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

from ..diagnostics import SourceLocation, caller
from ..errors import GraphError

CONNECTIVES = ("and", "or", "imply", "iff", "xor")
QUANTIFIERS = ("exists", "forall")
ARITHMETIC = ("add", "subtract", "multiply", "divide", "power", "minimum", "maximum")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
FUNCTIONS = ("negative", "absolute", "sqrt", "exp", "log")


class Term(NamedTuple):
    """An argument of a predicate: a variable, perhaps with its domain, or a constant of the place's domain.

    >>> Term.var("x", "Person"), Term.const("alice")
    (x, 'alice')
    """

    name: str | int
    is_variable: bool = True
    domain: str | None = None

    @classmethod
    def var(cls, name: str, domain: str | None = None) -> Term:
        """Make a variable."""
        if not isinstance(name, str) or not name:
            raise GraphError(f"a variable needs a name, got {name!r}", code="E601")
        return cls(name, True, domain)

    @classmethod
    def const(cls, value: str | int) -> Term:
        """Make a constant: a name of the domain, or a number of one that is given by its size."""
        return cls(value, False)

    def __repr__(self) -> str:
        return str(self.name) if self.is_variable else repr(self.name)


class TLExpr:
    """A logical expression; ``& | ~ >>`` are and, or, not and implies, comparisons and arithmetic work as usual.

    ``==`` compares structure; use :meth:`equals` for a comparison inside the logic.

    >>> x, y = variables("x y", domain="Person")
    >>> rule = pred("parent", x, y) >> ~pred("parent", y, x)
    >>> print(rule)
    parent(x, y) → ¬parent(y, x)
    >>> rule == pred("parent", x, y) >> ~pred("parent", y, x)
    True
    """

    __slots__ = ("_hash", "args", "kind", "location", "name", "terms", "value")

    def __init__(
        self,
        kind: str,
        args: tuple[TLExpr, ...] = (),
        *,
        name: str = "",
        terms: tuple[Term, ...] = (),
        value: float | bool | int = 0,
        location: SourceLocation | None = None,
    ) -> None:
        self.kind, self.args, self.name, self.terms, self.value = kind, args, name, terms, value
        self.location = location or caller()
        # children have their hashes already, so this never goes deep
        self._hash: int = hash((kind, name, terms, repr(value), tuple([a._hash for a in args])))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TLExpr):
            return NotImplemented
        pending = [(self, other)]
        while pending:
            a, b = pending.pop()
            if a is b:
                continue
            if a._hash != b._hash or a.label() != b.label() or len(a.args) != len(b.args):
                return False
            pending.extend(zip(a.args, b.args, strict=True))
        return True

    def label(self) -> tuple[Any, ...]:
        """Return what the expression is apart from its parts."""
        return (self.kind, self.name, self.terms, repr(self.value))

    def __bool__(self) -> NoReturn:
        raise GraphError(
            "a logical expression has no truth value of its own",
            code="E602",
            suggestions=["use & | ~ in place of and, or, not; compile and execute it to get an answer"],
        )

    # fmt: off
    def __and__(self, other: Any) -> TLExpr: return and_(self, other)
    def __rand__(self, other: Any) -> TLExpr: return and_(other, self)
    def __or__(self, other: Any) -> TLExpr: return or_(self, other)
    def __ror__(self, other: Any) -> TLExpr: return or_(other, self)
    def __xor__(self, other: Any) -> TLExpr: return xor(self, other)
    def __rshift__(self, other: Any) -> TLExpr: return imply(self, other)
    def __invert__(self) -> TLExpr: return not_(self)
    def __add__(self, other: Any) -> TLExpr: return _binary("add", self, other)
    def __radd__(self, other: Any) -> TLExpr: return _binary("add", other, self)
    def __sub__(self, other: Any) -> TLExpr: return _binary("subtract", self, other)
    def __rsub__(self, other: Any) -> TLExpr: return _binary("subtract", other, self)
    def __mul__(self, other: Any) -> TLExpr: return _binary("multiply", self, other)
    def __rmul__(self, other: Any) -> TLExpr: return _binary("multiply", other, self)
    def __truediv__(self, other: Any) -> TLExpr: return _binary("divide", self, other)
    def __rtruediv__(self, other: Any) -> TLExpr: return _binary("divide", other, self)
    def __pow__(self, other: Any) -> TLExpr: return _binary("power", self, other)
    def __neg__(self) -> TLExpr: return TLExpr("negative", (self,))
    def __abs__(self) -> TLExpr: return TLExpr("absolute", (self,))
    def __lt__(self, other: Any) -> TLExpr: return _binary("less", self, other)
    def __le__(self, other: Any) -> TLExpr: return _binary("less_equal", self, other)
    def __gt__(self, other: Any) -> TLExpr: return _binary("greater", self, other)
    def __ge__(self, other: Any) -> TLExpr: return _binary("greater_equal", self, other)
    # fmt: on

    def equals(self, other: Any) -> TLExpr:
        """Return the comparison of two values for equality; ``==`` compares expressions."""
        return _binary("equal", self, other)

    def differs(self, other: Any) -> TLExpr:
        """Return the comparison of two values for inequality."""
        return _binary("not_equal", self, other)

    def free_variables(self) -> tuple[str, ...]:
        """Return the names of the free variables in order of first occurrence.

        >>> x, y, z = variables("x y z")
        >>> exists(y, pred("p", x, y) & pred("q", y, z)).free_variables()
        ('x', 'z')
        """
        found: dict[str, None] = {}
        bound: list[str] = []
        pending: list[tuple[str, Any]] = [("see", self)]
        while pending:
            what, item = pending.pop()
            if what == "unbind":
                del bound[len(bound) - item :]
                continue
            if item.kind in QUANTIFIERS:
                bound += [str(t.name) for t in item.terms]
                pending.append(("unbind", len(item.terms)))
            else:
                found.update((str(t.name), None) for t in item.terms if t.is_variable and t.name not in bound)
            pending.extend(("see", a) for a in reversed(item.args))
        return tuple(found)

    def substitute(self, values: Mapping[str, Term | str | int]) -> TLExpr:
        """Replace free variables by terms; bound variables are renamed where a new one would be captured.

        >>> x, y = variables("x y")
        >>> print(exists(y, pred("p", x, y)).substitute({"x": y}))
        ∃y'. p(y, y')
        """
        return _substitute(self, {k: _term(v) for k, v in values.items()})

    def walk(self) -> Iterator[TLExpr]:
        """Go through the expression and all of its parts, each part before what it stands in."""
        pending: list[tuple[TLExpr, bool]] = [(self, False)]
        while pending:
            item, ready = pending.pop()
            if ready:
                yield item
            else:
                pending.append((item, True))
                pending.extend((a, False) for a in reversed(item.args))

    def __str__(self) -> str:
        from .notation import UNICODE, write

        return write(self, UNICODE)

    def __repr__(self) -> str:
        from .notation import ASCII, write

        return f"<TLExpr {write(self, ASCII)}>"

    def to_ascii(self) -> str:
        """Return the expression in plain ASCII notation, which :func:`parse_expr` reads too."""
        from .notation import ASCII, write

        return write(self, ASCII)

    def to_latex(self) -> str:
        """Return the expression as LaTeX mathematics."""
        from .notation import LATEX, write

        return write(self, LATEX)

    def _repr_latex_(self) -> str:
        return f"${self.to_latex()}$"


def variables(names: str, domain: str | None = None) -> Any:
    """Make variables from names separated by spaces or commas: one for one name, a tuple for several.

    >>> x, y = variables("x y", domain="Person")
    >>> y
    y
    """
    made = tuple(Term.var(n, domain) for n in names.replace(",", " ").split())
    if not made:
        raise GraphError("variables needs at least one name", code="E601")
    return made[0] if len(made) == 1 else made


def _term(value: Any) -> Term:
    if isinstance(value, Term):
        return value
    if isinstance(value, str) or (hasattr(value, "__index__") and not isinstance(value, bool)):
        return Term.const(value if isinstance(value, str) else int(value.__index__()))
    raise GraphError(
        f"an argument of a predicate is a variable, a name or a number, got {value!r}",
        code="E601",
        suggestions=["make variables with tl.variables('x y')"],
    )


def pred(name: str, *terms: Any) -> TLExpr:
    """Make a predicate, or a real-valued score, over variables and constants.

    >>> print(pred("parent", "alice", variables("z")))
    parent("alice", z)
    """
    if not isinstance(name, str) or not name:
        raise GraphError(f"a predicate needs a name, got {name!r}", code="E601")
    return TLExpr("pred", name=name, terms=tuple(_term(t) for t in terms))


def constant(value: float | bool | int) -> TLExpr:
    """Make a numeric constant, or a truth value.

    >>> print(constant(0.5))
    0.5
    """
    return TLExpr("constant", value=value)


def _expr(value: Any) -> TLExpr:
    if isinstance(value, TLExpr):
        return value
    if isinstance(value, bool | int | float):
        return constant(value)
    raise GraphError(
        f"an expression is expected, got {value!r}", code="E601", suggestions=["write tl.pred(name, ...) or a number"]
    )


def _binary(kind: str, a: Any, b: Any) -> TLExpr:
    return TLExpr(kind, (_expr(a), _expr(b)))


def _many(kind: str, parts: Sequence[Any]) -> TLExpr:
    if not parts:
        raise GraphError(f"{kind} needs at least one part", code="E601")
    result = _expr(parts[0])
    for part in parts[1:]:
        result = TLExpr(kind, (result, _expr(part)))
    return result


def and_(*parts: Any) -> TLExpr:
    """Return the conjunction of several expressions.

    >>> print(and_(pred("p"), pred("q"), pred("r")))
    p() ∧ q() ∧ r()
    """
    return _many("and", parts)


def or_(*parts: Any) -> TLExpr:
    """Return the disjunction of several expressions.

    >>> print(or_(pred("p"), pred("q")))
    p() ∨ q()
    """
    return _many("or", parts)


def not_(part: Any) -> TLExpr:
    """Return the negation of an expression.

    >>> print(not_(pred("p")))
    ¬p()
    """
    return TLExpr("not", (_expr(part),))


def imply(a: Any, b: Any) -> TLExpr:
    """Return the implication from one expression to another.

    >>> print(imply(pred("p"), pred("q")))
    p() → q()
    """
    return _binary("imply", a, b)


def iff(a: Any, b: Any) -> TLExpr:
    """Return the equivalence of two expressions: each implies the other.

    >>> print(iff(pred("p"), pred("q")))
    p() ↔ q()
    """
    return _binary("iff", a, b)


def xor(a: Any, b: Any) -> TLExpr:
    """Return that one of two expressions holds, but not both.

    >>> print(xor(pred("p"), pred("q")))
    p() ⊕ q()
    """
    return _binary("xor", a, b)


def if_then_else(condition: Any, then: Any, otherwise: Any) -> TLExpr:
    """Choose between two values by a truth value; a soft truth value mixes them.

    >>> print(if_then_else(pred("p"), 1.0, 0.5))
    if p() then 1.0 else 0.5
    """
    return TLExpr("if", (_expr(condition), _expr(then), _expr(otherwise)))


def _quantified(kind: str, over: Any, body: Any) -> TLExpr:
    terms = (over,) if isinstance(over, Term) else tuple(over)
    for t in terms:
        if not isinstance(t, Term) or not t.is_variable:
            raise GraphError(f"{kind} ranges over variables, got {t!r}", code="E601")
    if not terms:
        raise GraphError(f"{kind} needs a variable", code="E601")
    if len({t.name for t in terms}) != len(terms):
        raise GraphError(f"{kind} names a variable twice: {', '.join(map(repr, terms))}", code="E601")
    return TLExpr(kind, (_expr(body),), terms=terms)


def exists(over: Term | Sequence[Term], body: Any) -> TLExpr:
    """Return that a body holds for some value of a variable, or of several.

    >>> x, y = variables("x y")
    >>> print(exists((x, y), pred("p", x, y)))
    ∃x y. p(x, y)
    """
    return _quantified("exists", over, body)


def forall(over: Term | Sequence[Term], body: Any) -> TLExpr:
    """Return that a body holds for every value of a variable, or of several.

    >>> x = variables("x")
    >>> print(forall(x, pred("p", x)))
    ∀x. p(x)
    """
    return _quantified("forall", over, body)


def rebuild(root: TLExpr, change: Callable[[TLExpr, tuple[TLExpr, ...]], TLExpr]) -> TLExpr:
    """Build an expression anew from its leaves up: ``change`` gets each part and its new parts."""
    done: list[TLExpr] = []
    for item in root.walk():
        n = len(item.args)
        parts = tuple(done[len(done) - n :])
        del done[len(done) - n :]
        done.append(change(item, parts))
    return done[0]


def same_parts(item: TLExpr, parts: tuple[TLExpr, ...]) -> TLExpr:
    """Return an expression with other parts; itself where they are the ones it has."""
    if all(a is b for a, b in zip(item.args, parts, strict=True)):
        return item
    return TLExpr(item.kind, parts, name=item.name, terms=item.terms, value=item.value, location=item.location)


def fresh(name: str, taken: set[str]) -> str:
    """Return a name like the given one that is not taken.

    >>> fresh("x", {"x", "x'"})
    "x''"
    """
    while name in taken:
        name += "'"
    return name


def _substitute(root: TLExpr, values: Mapping[str, Term]) -> TLExpr:
    """Substitute without recursion: environments travel down on a stack, results come up on another."""
    done: list[TLExpr] = []
    pending: list[tuple[str, TLExpr, Mapping[str, Term], tuple[Term, ...]]] = [("see", root, values, ())]
    while pending:
        what, item, env, terms = pending.pop()
        if what == "make":
            n = len(item.args)
            parts = tuple(done[len(done) - n :])
            del done[len(done) - n :]
            done.append(TLExpr(item.kind, parts, name=item.name, terms=terms, value=item.value, location=item.location))
            continue
        terms = item.terms
        if item.kind in QUANTIFIERS:
            free = set(item.args[0].free_variables()) if env else set()
            env = {k: v for k, v in env.items() if k in free and k not in {t.name for t in terms}}
            arriving = {str(v.name) for v in env.values() if v.is_variable}
            renamed: list[Term] = []
            for t in terms:
                if t.name in arriving:
                    new = Term.var(fresh(str(t.name), arriving | free | {str(r.name) for r in renamed}), t.domain)
                    env = {**env, str(t.name): new}
                    t = new
                renamed.append(t)
            terms = tuple(renamed)
        else:
            terms = tuple(env.get(str(t.name), t) if t.is_variable else t for t in terms)
        pending.append(("make", item, env, terms))
        pending.extend(("see", a, env, ()) for a in reversed(item.args))
    return done[0]
