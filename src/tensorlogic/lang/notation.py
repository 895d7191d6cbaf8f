"""Logic notation: the signs of Unicode, ASCII and LaTeX, and expressions written in them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from .expr import COMPARISONS, NAME, Term, TLExpr
from .format import quote, written

# what binds tighter stands higher
BINDS = {
    "exists": 0, "forall": 0, "if": 0, "iff": 1, "imply": 2, "xor": 3, "or": 4, "and": 5, "not": 6,
    "same": 7, **dict.fromkeys(COMPARISONS, 7), "add": 8, "subtract": 8, "multiply": 9, "divide": 9, "negative": 10, "power": 11,
}  # fmt: skip
RIGHT = {"imply", "power"}  # a → b → c is a → (b → c)
CALLS = {"minimum": "min", "maximum": "max", "absolute": "abs", "sqrt": "sqrt", "exp": "exp", "log": "log"}
ATOM = 12
WORDS = frozenset("exists forall and or not xor if then else true false inf nan".split())
RESERVED = WORDS.union(CALLS.values())  # before "("


class Style(NamedTuple):
    """The symbols of one notation."""

    symbols: Mapping[str, str]
    member: str
    space: str = " "
    latex: bool = False


UNICODE = Style(
    {
        "and": "∧", "or": "∨", "not": "¬", "imply": "→", "iff": "↔", "xor": "⊕", "exists": "∃", "forall": "∀",
        "equal": "=", "not_equal": "≠", "less": "<", "less_equal": "≤", "greater": ">", "greater_equal": "≥",
        "add": "+", "subtract": "-", "multiply": "*", "divide": "/", "power": "**", "negative": "-",
    },
    "∈",
)  # fmt: skip
ASCII = Style(
    {
        **UNICODE.symbols, "and": "&", "or": "|", "not": "~", "imply": "->", "iff": "<->", "xor": "xor",
        "exists": "exists ", "forall": "forall ", "not_equal": "!=", "less_equal": "<=", "greater_equal": ">=",
    },
    ":",
)  # fmt: skip
LATEX = Style(
    {
        **UNICODE.symbols, "and": r"\land", "or": r"\lor", "not": r"\lnot ", "imply": r"\rightarrow",
        "iff": r"\leftrightarrow", "xor": r"\oplus", "exists": r"\exists ", "forall": r"\forall ",
        "not_equal": r"\neq", "less_equal": r"\leq", "greater_equal": r"\geq", "multiply": r"\cdot", "power": "^",
    },
    r" \in ", r"\ ", latex=True,
)  # fmt: skip

_ESCAPED = str.maketrans(
    {c: f"\\{c}" for c in "_%&#${}"}
    | {"\\": r"\textbackslash{}", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}"}
)


def write(root: TLExpr, style: Style) -> str:
    """Write an expression with as few parentheses as reading it back allows."""

    def pieces(expr: TLExpr, needed: int) -> list[str | tuple[TLExpr, int]]:
        parts = _parts(expr, style)
        return parts if _binds(expr) >= needed else ["(", *parts, ")"]

    return written(root, pieces)


def _binds(expr: TLExpr) -> int:
    if expr.kind == "constant":
        negative = not isinstance(expr.value, bool) and (expr.value < 0 or math.copysign(1, expr.value) < 0)
        return BINDS["negative"] if negative else ATOM
    return BINDS.get(expr.kind, ATOM)


def _parts(expr: TLExpr, style: Style) -> list[str | tuple[TLExpr, int]]:
    """Return what an expression consists of: text, and parts with how tightly they must bind."""
    kind, args, symbol = expr.kind, expr.args, style.symbols.get(expr.kind, "")
    level = BINDS.get(kind, ATOM)
    match kind:
        case "pred":
            return [_word(expr.name, style, RESERVED), "(", ", ".join(_term(t, style) for t in expr.terms), ")"]
        case "same":
            return [_equation(expr, style, "equal")]
        case "not" if args[0].kind == "same":
            return [_equation(args[0], style, "not_equal")]
        case "constant":
            return [str(expr.value).lower() if isinstance(expr.value, bool) else repr(expr.value)]
        case "exists" | "forall":
            bound = style.space.join(
                _term(t, style) + (style.member + _word(t.domain, style, WORDS) if t.domain else "") for t in expr.terms
            )
            return [symbol + bound, ". ", (args[0], 0)]
        case "if":
            words = [rf"\text{{{w}}}" if style.latex else w for w in ("if ", " then ", " else ")]
            return [words[0], (args[0], 1), words[1], (args[1], 1), words[2], (args[2], 0)]
        case "not":
            return [symbol, (args[0], level)]
        case "negative":
            return [symbol, (args[0], ATOM if args[0].kind != "constant" else ATOM + 1)]
        case _ if kind in CALLS:
            inner: list[str | tuple[TLExpr, int]] = [part for a in args for part in (", ", (a, 0))]
            return [_word(CALLS[kind], style, WORDS), "(", *inner[1:], ")"]
        case "power" if style.latex:
            return [(args[0], level + 1), "^{", (args[1], 0), "}"]
        case _:
            left, right = (level + 1, level) if kind in RIGHT else (level, level + 1)
            if kind in COMPARISONS:
                left = level + 1
            return [(args[0], left), f" {symbol} ", (args[1], right)]


def _word(name: str, style: Style, reserved: frozenset[str]) -> str:
    """Write the name of a predicate or a domain; in quotes where it would not read as one."""
    plain = NAME.fullmatch(name) is not None
    if style.latex:
        return (r"\mathrm" if plain else r"\text") + f"{{{name.translate(_ESCAPED)}}}"
    return name if plain and name not in reserved else quote(name)


def _equation(expr: TLExpr, style: Style, kind: str) -> str:
    first, second = (_term(t, style) for t in expr.terms)
    plain = isinstance(expr.terms[1].name, str) or first.startswith("?")
    return f"{'' if plain else '?'}{first} {style.symbols[kind]} {second}"  # x = 3 could be x() = 3, ?x = 3 cannot


def _term(t: Term, style: Style) -> str:
    if not isinstance(t.name, str):
        return str(t.name)
    plain, capital = NAME.fullmatch(t.name) is not None, t.name[:1].isupper()
    if t.is_variable:
        if style.latex:
            return t.name.translate(_ESCAPED)
        return t.name if plain and not capital and t.name not in WORDS else f"?{t.name}"
    text = t.name if plain and capital else quote(t.name)
    return rf"\text{{{text.translate(_ESCAPED)}}}" if style.latex else text
