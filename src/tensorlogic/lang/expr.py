"""Logical expressions: predicates, connectives, quantifiers and arithmetic as immutable trees.

Nothing here recurses over a tree, so an expression may be as deep as it likes; a part that stands in several places is seen once.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

import msgspec
import numpy as np
from msgspec.structs import force_setattr

from ..diagnostics import SourceLocation, caller, value_text
from ..errors import GraphError, expect_text
from ..ir.types import too_large

CONNECTIVES = ("and", "or", "imply", "iff", "xor")
QUANTIFIERS = ("exists", "forall")
ARITHMETIC = ("add", "subtract", "multiply", "divide", "power", "minimum", "maximum")
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
FUNCTIONS = ("negative", "absolute", "sqrt", "exp", "log")
NAME = re.compile(r"[^\W\d]\w*'*")  # a plain word; the notation quotes other names


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
        if not isinstance(name, str) or not NAME.fullmatch(name):
            hint = "use letters, digits and _, and no digit first"
            raise GraphError(f"a variable needs a name, which is one word, got {value_text(name)}", hint, code="E601")
        if domain is not None and (not isinstance(domain, str) or not domain):
            raise GraphError(f"the domain of variable {name!r} needs a name, got {value_text(domain)}", code="E601")
        if domain is not None:
            expect_text("the name of a domain", domain)
        return cls(name, True, domain)

    @classmethod
    def const(cls, value: str | int) -> Term:
        """Make a constant: a name of the domain, or a number of one that is given by its size."""
        if isinstance(value, str):
            expect_text("the name", value)
            return cls(str(value), False)
        try:
            if not isinstance(value, bool | np.bool_) and (number := operator.index(value)).bit_length() < 4096:
                return cls(number, False)
        except TypeError:
            pass  # said below
        message = f"an argument of a predicate is a variable, a name or a number, got {value_text(value)}"
        raise GraphError(message, "make variables with tl.variables('x y')", code="E301")

    def __repr__(self) -> str:
        return str(self.name) if self.is_variable else repr(self.name)


class TLExpr(msgspec.Struct, eq=False):
    """A logical expression; ``& | ~ >>`` are and, or, not and implies, comparisons and arithmetic work as usual.

    ``==`` compares structure; use :meth:`equals` for a comparison inside the logic.

    >>> from tensorlogic import pred, variables
    >>> x, y = variables("x y", domain="Person")
    >>> rule = pred("parent", x, y) >> ~pred("parent", y, x)
    >>> print(rule)
    parent(x, y) → ¬parent(y, x)
    >>> rule == pred("parent", x, y) >> ~pred("parent", y, x)
    True
    """

    kind: str
    args: tuple[TLExpr, ...] = ()
    name: str = ""
    terms: tuple[Term, ...] = ()
    value: float | bool | int = 0
    location: SourceLocation | None = None
    _free_names: tuple[str, ...] | None = None
    _hash: int = 0

    __array_ufunc__ = None  # NumPy leaves its operators to ours

    def __post_init__(self) -> None:
        parts = tuple([a._hash for a in self.args])
        force_setattr(self, "_hash", hash((self.kind, self.name, self.terms, repr(self.value), parts)))
        if self.location is None:
            force_setattr(self, "location", caller())

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"an expression cannot be changed: {name!r} is set where it is made")

    def __delattr__(self, name: str) -> NoReturn:
        self.__setattr__(name, None)

    def __reduce__(self) -> tuple[Any, ...]:
        place = {id(e): n for n, e in enumerate(self.walk())}
        rows = [(e.kind, [place[id(a)] for a in e.args], e.name, e.terms, e.value, e.location) for e in self.walk()]
        return _restore, (rows,)

    def __hash__(self) -> int:
        return self._hash

    def __ne__(self, other: object) -> bool:  # that of msgspec does not ask __eq__
        return not self == other

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TLExpr):
            return NotImplemented
        pending, seen = [(self, other)], set()
        while pending:
            a, b = pending.pop()
            if a is b or (id(a), id(b)) in seen:
                continue
            seen.add((id(a), id(b)))
            if a._hash != b._hash or len(a.args) != len(b.args):
                return False
            if (a.kind, a.name, a.terms, repr(a.value)) != (b.kind, b.name, b.terms, repr(b.value)):
                return False
            pending.extend(zip(a.args, b.args, strict=True))
        return True

    def __bool__(self) -> NoReturn:
        hint = "use & | ~ in place of and, or, not; compile and execute it to get an answer"
        raise GraphError("a logical expression has no truth value of its own", hint, code="E602")

    # fmt: off
    def __and__(self, other: Any) -> TLExpr: return binary("and", self, other)
    def __rand__(self, other: Any) -> TLExpr: return binary("and", other, self)
    def __or__(self, other: Any) -> TLExpr: return binary("or", self, other)
    def __ror__(self, other: Any) -> TLExpr: return binary("or", other, self)
    def __xor__(self, other: Any) -> TLExpr: return binary("xor", self, other)
    def __rxor__(self, other: Any) -> TLExpr: return binary("xor", other, self)
    def __rshift__(self, other: Any) -> TLExpr: return binary("imply", self, other)
    def __rrshift__(self, other: Any) -> TLExpr: return binary("imply", other, self)
    def __invert__(self) -> TLExpr: return TLExpr("not", (self,))
    def __add__(self, other: Any) -> TLExpr: return binary("add", self, other)
    def __radd__(self, other: Any) -> TLExpr: return binary("add", other, self)
    def __sub__(self, other: Any) -> TLExpr: return binary("subtract", self, other)
    def __rsub__(self, other: Any) -> TLExpr: return binary("subtract", other, self)
    def __mul__(self, other: Any) -> TLExpr: return binary("multiply", self, other)
    def __rmul__(self, other: Any) -> TLExpr: return binary("multiply", other, self)
    def __truediv__(self, other: Any) -> TLExpr: return binary("divide", self, other)
    def __rtruediv__(self, other: Any) -> TLExpr: return binary("divide", other, self)
    def __pow__(self, other: Any) -> TLExpr: return binary("power", self, other)
    def __rpow__(self, other: Any) -> TLExpr: return binary("power", other, self)
    def __neg__(self) -> TLExpr: return TLExpr("negative", (self,))
    def __abs__(self) -> TLExpr: return TLExpr("absolute", (self,))
    def __lt__(self, other: Any) -> TLExpr: return binary("less", self, other)
    def __le__(self, other: Any) -> TLExpr: return binary("less_equal", self, other)
    def __gt__(self, other: Any) -> TLExpr: return binary("greater", self, other)
    def __ge__(self, other: Any) -> TLExpr: return binary("greater_equal", self, other)
    # fmt: on

    def equals(self, other: Any) -> TLExpr:
        """Return the comparison of two values for equality; ``==`` compares expressions."""
        return binary("equal", self, other)

    def differs(self, other: Any) -> TLExpr:
        """Return the comparison of two values for inequality."""
        return binary("not_equal", self, other)

    def free_variables(self) -> tuple[str, ...]:
        """Return the names of the free variables in order of first occurrence.

        >>> from tensorlogic import exists, pred, variables
        >>> x, y, z = variables("x y z")
        >>> exists(y, pred("p", x, y) & pred("q", y, z)).free_variables()
        ('x', 'z')
        """
        # found when they are first asked for: each part has a list of its own
        pending = [self] if self._free_names is None else []
        while pending:
            part = pending[-1]
            unknown = [a for a in part.args if a._free_names is None]
            pending.extend(unknown)
            if not unknown:
                force_setattr(pending.pop(), "_free_names", _free(part.kind, part.args, part.terms))
        return self._free_names or ()

    def substitute(self, values: Mapping[str, Term | str | int]) -> TLExpr:
        """Replace free variables by terms; bound variables are renamed where a new one would be captured.

        >>> from tensorlogic import exists, pred, variables
        >>> x, y = variables("x y")
        >>> print(exists(y, pred("p", x, y)).substitute({"x": y}))
        ∃y'. p(y, y')
        """
        return _substitute(self, {k: as_term(v) for k, v in values.items()})

    def walk(self) -> Iterator[TLExpr]:
        """Go through the expression and all of its parts, each part once and before what it stands in.

        >>> from tensorlogic import pred
        >>> p = pred("p")
        >>> [e.kind for e in (p & ~p).walk()]
        ['pred', 'not', 'and']
        """
        seen: set[int] = set()
        pending: list[tuple[TLExpr, bool]] = [(self, False)]
        while pending:
            item, ready = pending.pop()
            if ready:
                yield item
            elif id(item) not in seen:
                seen.add(id(item))
                pending.append((item, True))
                pending.extend((a, False) for a in reversed(item.args))

    def __str__(self) -> str:
        return _written(self, "UNICODE")

    def __repr__(self) -> str:
        return f"<TLExpr {self.to_ascii()}>"

    def to_ascii(self) -> str:
        """Return the expression in plain ASCII notation, which :func:`parse_expr` reads too."""
        return _written(self, "ASCII")

    def to_latex(self) -> str:
        """Return the expression as LaTeX mathematics."""
        return _written(self, "LATEX")

    def _repr_latex_(self) -> str:
        return f"${self.to_latex()}$"


def _written(expr: TLExpr, style: str) -> str:
    from . import notation

    return notation.write(expr, getattr(notation, style))


def _free(kind: str, args: tuple[TLExpr, ...], terms: tuple[Term, ...]) -> tuple[str, ...]:
    """Return the free variables of an expression from those of its parts; a tuple that a part has is shared."""
    if kind in QUANTIFIERS:
        inner, bound = args[0].free_variables(), {t.name for t in terms}
        return inner if bound.isdisjoint(inner) else tuple([n for n in inner if n not in bound])
    if not args:
        return tuple(dict.fromkeys([str(t.name) for t in terms if t.is_variable]))
    found = args[0].free_variables()
    for a in args[1:]:
        own = a.free_variables()
        if own is not found and own:
            merged = tuple(dict.fromkeys(found + own))
            found = found if len(merged) == len(found) else own if merged == own else merged
    return found


def _restore(rows: list[tuple[Any, ...]]) -> TLExpr:
    """Make an expression from its parts in order, as pickle keeps it."""
    results: list[TLExpr] = []
    for kind, args, *rest in rows:
        results.append(TLExpr(kind, tuple(results[n] for n in args), *rest))
    return results[-1]


def as_term(value: Any) -> Term:
    """Return a term as it is, and a name or a number as a constant."""
    return value if isinstance(value, Term) else Term.const(value)


def as_scalar(value: Any) -> float | bool | int | None:
    """Return a number or truth value of Python or NumPy as Python's own; None for anything else."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | np.integer):
        if abs(int(value)) >> 1024:
            raise too_large(int(value))
        return int(value)
    return float(value) if isinstance(value, float | np.floating) else None


def as_expr(value: Any) -> TLExpr:
    """Return an expression as it is, text as what it says, and a number as a constant."""
    if isinstance(value, TLExpr):
        return value
    if isinstance(value, str):
        from .notation_reader import parse_expr

        return parse_expr(value)
    number = as_scalar(value)
    if isinstance(number, bool):
        message = (
            f"a formula has the Python value {number} in it: a comparison of variables that Python has made already?"
        )
        hints = ("write tl.same(x, y) or ~tl.same(x, y)", "write tl.constant(True) for truth itself")
        raise GraphError(message, *hints, code="E617")
    if number is not None:
        return TLExpr("constant", value=number)
    raise GraphError(
        f"an expression is expected, got {value_text(value)}", "write tl.pred(name, ...) or a number", code="E301"
    )


def binary(kind: str, a: Any, b: Any) -> TLExpr:
    """Make an expression of two parts."""
    return TLExpr(kind, (as_expr(a), as_expr(b)))


def _substitute(root: TLExpr, values: Mapping[str, Term]) -> TLExpr:
    """Substitute without recursion: environments travel down on a stack, results come up on another.

    What becomes of a part depends on the part and what replaces its own free variables, and is made once for each.
    """
    done: list[TLExpr] = []
    memo: dict[Any, TLExpr] = {}
    pending: list[tuple[TLExpr, Mapping[str, Term], tuple[Term, ...], Any]] = [(root, values, (), None)]
    while pending:
        item, env, terms, ready = pending.pop()
        if ready is not None:
            n = len(item.args)
            parts = tuple(done[len(done) - n :])
            del done[len(done) - n :]
            new = TLExpr(item.kind, parts, item.name, terms, item.value, item.location)
            memo[ready] = new
            done.append(new)
            continue
        env = {k: env[k] for k in item.free_variables() if k in env}
        key = (id(item), tuple(env.items()))
        known = memo.get(key) if env else item
        if known is not None:
            done.append(known)
            continue
        if item.kind in QUANTIFIERS:
            terms, env = _uncaptured(item, env)
        else:
            terms = tuple(env.get(str(t.name), t) if t.is_variable else t for t in item.terms)
        pending.append((item, env, terms, key))
        pending.extend((a, env, (), None) for a in reversed(item.args))
    return done[0]


def _uncaptured(item: TLExpr, env: dict[str, Term]) -> tuple[tuple[Term, ...], dict[str, Term]]:
    """Return a quantifier's variables, renamed where they would capture one that arrives, and the environment of its body."""
    arriving = {str(v.name) for v in env.values() if v.is_variable}
    taken = arriving.union(item.args[0].free_variables(), [str(t.name) for t in item.terms])
    terms: list[Term] = []
    for t in item.terms:
        if t.name in arriving:
            name = str(t.name)
            while name in taken:
                name += "'"
            taken.add(name)
            new = Term.var(name, t.domain)
            env = {**env, str(t.name): new}
            t = new
        terms.append(t)
    return tuple(terms), env
