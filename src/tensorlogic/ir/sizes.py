"""Sizes of axes: integers, names, or integer expressions of names such as ``n-k+1``.

A size is an ``int`` or a ``str`` in canonical form, so two sizes are equal exactly when they compare equal.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Mapping
from functools import lru_cache, reduce

import numpy as np

from ..diagnostics import value_text
from ..errors import ShapeError

Dim = int | str
Atom = str | tuple["Poly", "Poly"]  # a name, or a floor division
Poly = tuple[tuple[tuple[Atom, ...], int], ...]  # sorted monomials with their coefficients

_TOKEN = re.compile(r"\s*(?:(\d+)|([^\W\d][\w.']*)|(//|[-+*()]))")
_LIMIT = 1000  # characters of an expression
_TERMS = 100  # of an expression multiplied out
_LARGEST = 2**63 - 1


def dim(value: object) -> Dim:
    """Check one size as a user wrote it and return its canonical form.

    >>> dim("k + n - 1*k + 2"), dim(5)
    ('n+2', 5)
    """
    if isinstance(value, str):
        size = _show(_parse(value))
        if isinstance(size, str):
            return size
    elif isinstance(value, bool | tuple | list):  # a truth value would count as 0 or 1
        hint = "write a whole number, such as 1" if isinstance(value, bool) else "write sizes side by side: ('n', 3)"
        raise ShapeError(f"a size must be an integer or a name, got {value_text(value)}", hint, code="E301")
    else:
        size = integer(value, "a size", "or a name ", bounded=False)
    if not 0 <= size <= _LARGEST:
        hints = ["a size that is not known yet has a name: ('n', 3)"] if size < 0 else []
        raise ShapeError(f"a size must be 0 to 2^63 - 1, got {value_text(size)}", *hints, code="E118")
    return size


def integer(value: object, what: str, otherwise: str = "", *, bounded: bool = True) -> int:
    """Return an integer that a user gave, as Python's own, or raise where it is none.

    >>> integer(True, "an axis")
    1
    """
    try:
        number = int(operator.index(value))  # type: ignore[arg-type]
    except TypeError:
        message = f"{what} must be an integer {otherwise}".rstrip()
        raise ShapeError(
            f"{message}, got {value_text(value)}", "write a whole number, such as 1", code="E301"
        ) from None
    if bounded and not -(2**63) <= number < 2**63:  # files hold no others
        raise ShapeError(f"{what} must fit 64 bits, got {value_text(value)}", code="E301")
    return number


def flag(value: object, what: str) -> bool:
    """Return whether something is asked for, as Python's own bool; 0 and 1 are as good as False and True.

    >>> flag(np.True_, "keepdims="), flag(0, "keepdims=")
    (True, False)
    """
    if not isinstance(value, bool | int | np.bool_) or value not in (0, 1):
        raise ShapeError(f"{what} must be True or False, got {value_text(value)}", f"write {what}True", code="E301")
    return bool(value)


def add(a: Dim, b: Dim) -> Dim:
    """Return ``a + b``.

    >>> add("n", 3), sub("n", "n"), mul("n+1", 2), floordiv("4*n", 2), floordiv("n", 2)
    ('n+3', 0, '2*n+2', '2*n', 'n//2')
    """
    return a + b if isinstance(a, int) and isinstance(b, int) else _show(_sum(_poly(a), _poly(b)))


def sub(a: Dim, b: Dim) -> Dim:
    """Return ``a - b``."""
    return a - b if isinstance(a, int) and isinstance(b, int) else _show(_difference(_poly(a), _poly(b)))


def mul(a: Dim, b: Dim) -> Dim:
    """Return ``a * b``."""
    return a * b if isinstance(a, int) and isinstance(b, int) else _show(_product(_poly(a), _poly(b)))


def floordiv(a: Dim, b: Dim) -> Dim:
    """Return ``a // b``."""
    return a // b if b and isinstance(a, int) and isinstance(b, int) else _show(_quotient(_poly(a), _poly(b)))


def prod(dims: tuple[Dim, ...]) -> Dim:
    """Return the product of several sizes."""
    return reduce(mul, dims) if dims else 1


@lru_cache(65536)
def names(size: Dim) -> frozenset[str]:
    """Return the names that a size depends on.

    >>> sorted(names("n-k+1"))
    ['k', 'n']
    """
    return frozenset(_atoms(_poly(size)))


def evaluate(size: Dim, env: Mapping[str, int]) -> Dim:
    """Replace the names that ``env`` knows.

    >>> evaluate("n-k+1", {"n": 10, "k": 3}), evaluate("n-k", {"k": 3})
    (8, 'n-3')
    """
    if isinstance(size, int):
        return size
    known = env.get(size)
    if known is not None:
        return known
    return _show(_substitute(_parse(size), env))


def solve(size: Dim, value: int, env: Mapping[str, int]) -> dict[str, int] | None:
    """Find the one unknown name that makes ``size`` equal ``value``; None where no single name does.

    >>> solve("2*n+1", 9, {}), solve("2*n", 9, {}), solve("n*m", 4, {})
    ({'n': 4}, None, None)
    """
    poly = _poly(evaluate(size, env))
    offset = dict(poly).get((), 0)
    rest = [(m, c) for m, c in poly if m]
    if len(rest) != 1 or len(rest[0][0]) != 1 or not isinstance(rest[0][0][0], str):
        return None
    (atom,), coefficient = rest[0]
    found, remainder = divmod(value - offset, coefficient)
    return {str(atom): found} if remainder == 0 and found >= 0 else None


def _poly(size: Dim) -> Poly:
    return _constant(size) if isinstance(size, int) else _parse(size)


def _constant(value: int) -> Poly:
    return (((), value),) if value else ()


@lru_cache(65536)
def _parse(text: str) -> Poly:
    if len(text) > _LIMIT:
        raise ShapeError(f"a size expression may have at most {_LIMIT} characters, got {len(text)}", code="E119")
    tokens: list[str] = []
    starts: list[int] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None:
            raise _bad(text, position)
        tokens.append(match.group().strip())
        starts.append(match.start(match.lastindex or 0))
        position = match.end()
        # superscripts and the like, which \\w lets through
        if tokens[-1][0].isnumeric() and not tokens[-1].isdecimal():
            raise _bad(text, starts[-1])
    result, end = _expression(tokens, 0, text, 0)
    if end != len(tokens):
        raise _bad(text, starts[end])
    return result


def _bad(text: str, position: int) -> ShapeError:
    hint = "write an integer, a name, or an expression of + - * // such as 'n-k+1'"
    return ShapeError(f"cannot read the size {text!r} at character {position + 1}", hint, code="E102")


def _expression(tokens: list[str], at: int, text: str, depth: int, above: int = 0) -> tuple[Poly, int]:
    """Read one operand and the operators after it that bind more tightly than ``above``."""
    if at >= len(tokens):
        raise _bad(text, len(text))
    if depth > 50:
        raise ShapeError(f"the size {text[:40]!r}... is nested too deeply", code="E119")
    token, at = tokens[at], at + 1
    if token == "(":
        total, at = _expression(tokens, at, text, depth + 1)
        if at >= len(tokens) or tokens[at] != ")":
            raise _bad(text, len(text))
        at += 1
    elif token == "-":
        inner, at = _expression(tokens, at, text, depth + 1, 2)
        total = _difference((), inner)
    elif token.isdecimal():
        total = _constant(int(token))
    elif token in ("+", "*", "//", ")"):
        raise _bad(text, text.find(token))
    else:
        total = (((token,), 1),)
    while at < len(tokens) and (found := _OPERATORS.get(tokens[at])) is not None and found[0] > above:
        level, operate = found
        right, at = _expression(tokens, at + 1, text, depth, level)
        total = operate(total, right)
    return total, at


def _normal(terms: dict[tuple[Atom, ...], int]) -> Poly:
    kept = [(m, c) for m, c in terms.items() if c]
    # negative terms last, so that n-k+1 does not print as -k+n+1; the constant comes at the very end
    return tuple(sorted(kept, key=lambda t: (not t[0], t[1] < 0, -len(t[0]), str(t[0]))))


def _sum(a: Poly, b: Poly) -> Poly:
    terms = dict(a)
    for monomial, coefficient in b:
        terms[monomial] = terms.get(monomial, 0) + coefficient
    return _normal(terms)


def _difference(a: Poly, b: Poly) -> Poly:
    return _sum(a, tuple((m, -c) for m, c in b))


def _product(a: Poly, b: Poly) -> Poly:
    if len(a) * len(b) > _TERMS:
        raise ShapeError(f"a size expression may have at most {_TERMS} terms when multiplied out", code="E119")
    terms: dict[tuple[Atom, ...], int] = {}
    for left, x in a:
        for right, y in b:
            monomial = tuple(sorted(left + right, key=str))
            terms[monomial] = terms.get(monomial, 0) + x * y
    return _normal(terms)


def _quotient(a: Poly, b: Poly) -> Poly:
    if not b:
        raise ShapeError("division by zero in a size expression", code="E120")
    if a == b:
        return _constant(1)
    if len(b) == 1:
        monomial, divisor = b[0]
        exact = _divided(a, monomial, divisor)  # a term that divides every other one: n*m // m is n
        if exact is not None:
            return exact
        if not monomial and all(not m for m, _ in a):
            return _constant(a[0][1] // divisor)
    return ((((a, b),), 1),)


_OPERATORS = {"+": (1, _sum), "-": (1, _difference), "*": (2, _product), "//": (2, _quotient)}


def _divided(a: Poly, monomial: tuple[Atom, ...], divisor: int) -> Poly | None:
    terms: dict[tuple[Atom, ...], int] = {}
    for atoms, coefficient in a:
        rest = list(atoms)
        for atom in monomial:
            if atom not in rest:
                return None
            rest.remove(atom)
        if coefficient % divisor:
            return None
        terms[tuple(rest)] = coefficient // divisor
    return _normal(terms)


def _atoms(poly: Poly) -> set[str]:
    found: set[str] = set()
    for monomial, _ in poly:
        for atom in monomial:
            found |= {atom} if isinstance(atom, str) else _atoms(atom[0]) | _atoms(atom[1])
    return found


def _substitute(poly: Poly, env: Mapping[str, int]) -> Poly:
    total: Poly = ()
    for monomial, coefficient in poly:
        term = _constant(coefficient)
        for atom in monomial:
            if isinstance(atom, str):
                factor = _constant(env[atom]) if atom in env else (((atom,), 1),)
            else:
                factor = _quotient(_substitute(atom[0], env), _substitute(atom[1], env))
            term = _product(term, factor)
        total = _sum(total, term)
    return total


@lru_cache(65536)
def _show(poly: Poly) -> Dim:
    if not poly:
        return 0
    if len(poly) == 1 and not poly[0][0]:
        return poly[0][1]
    text = ""
    for monomial, coefficient in poly:
        sign = "-" if coefficient < 0 else "+" if text else ""
        alone = len(monomial) == 1 and (coefficient == 1 or (coefficient == -1 and text != ""))  # -n//2 is (-n)//2
        body = "*".join(_show_atom(a, alone=alone) for a in monomial)
        if not monomial:
            body = str(abs(coefficient))
        elif abs(coefficient) != 1:
            body = f"{abs(coefficient)}*{body}"
        text += sign + body
    return text


def _show_atom(atom: Atom, *, alone: bool) -> str:
    if isinstance(atom, str):
        return atom
    top, bottom = (str(_show(p)) for p in atom)
    text = f"{_wrapped(top)}//{_wrapped(bottom)}"
    return text if alone else f"({text})"


def _wrapped(text: str) -> str:
    return text if re.fullmatch(r"\d+|[^\W\d][\w.']*", text) else f"({text})"
