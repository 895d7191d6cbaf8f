"""Prolog and Datalog files: clauses whose lower-case words are constants and whose capitalised words are variables."""

from __future__ import annotations

import re

from ..errors import expect
from .facts import INTEGER, STRING, constant_of, fact_syntax
from .format import quote
from .grammar import parse_dialect
from .syntax import Module
from .tokens import Dialect

_ATOM = r"[^\W\d_A-Z]\w*+(?:-\w++)*+"  # south-eastern_asia is one name; upper-case letters beyond A to Z are looked at later
_BLOCK = re.compile(rf"{STRING}|%.*+|/\*(?:[^*]|\*(?!/))*+\*/")


def _constant(raw: str) -> str | int | None:
    if raw[0] in "\"'-0123456789":
        return constant_of(raw)
    return None if raw[0].isupper() else raw


_FACTS = fact_syntax(
    name=r"[^\W\d_A-Z]\w*+",
    constant=rf"{_ATOM}|{INTEGER}|{STRING}",
    comment=r"%.*+",
    end=r"\.(?![0-9])",
    goes_on=None,
    value=_constant,
    letters=("a", "{"),
)

_OPERATORS = {"=<": "<=", "\\=": "!=", "\\==": "!=", "=\\=": "!=", "=:=": "==", "==": "==", "=": "="}


def _convert(kind: str, word: str) -> tuple[str, str]:
    """Return a word of a clause as the language has it: variables are lower-case, and constants in quotes."""
    match kind:
        case "VARIABLE":
            return "NAME", word[0].lower() + word[1:]
        case "ATOM":
            if word in ("not", "is"):
                return ("NAME", "not") if word == "not" else ("COMPARE", "==")
            return ("NAME", word[0].lower() + word[1:]) if word[0].isupper() else ("STRING", quote(word))
        case "OPERATOR":
            return "COMPARE", _OPERATORS.get(word, word)
        case "NEGATION":
            return "NAME", "not"
    return kind, word


_PROLOG = Dialect(
    re.compile(
        rf"""(?P<SPACE>[^\S\n]+|%.*)
        |(?P<NEWLINE>\n)
        |(?P<RELATION>[^\W\d_A-Z]\w*(?=\())
        |(?P<ATOM>{_ATOM})
        |(?P<VARIABLE>[^\W\d]\w*)
        |(?P<NUMBER>[0-9]++(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)
        |(?P<STRING>{STRING})
        |(?P<ARROW>:-|<-)
        |(?P<NEGATION>\\\+)
        |(?P<OPERATOR>=<|>=|<=|=:=|=\\=|\\==|\\=|!=|==|=|<|>)
        |(?P<SYMBOL>[][(),.+*/?-])""",
        re.VERBOSE,
    ),
    newline_ends=False,
    convert=_convert,
)


def parse_prolog(text: str, file: str | None = None, *, bulk: bool = True) -> Module:
    r"""Read a Prolog or Datalog file: facts and rules that end in a dot, comments after ``%``.

    Lower-case words and quoted text are constants, capitalised words and ``_`` are variables (which become
    lower-case), ``\+`` and ``not`` negate, and a name may have hyphens.

    >>> parse_prolog("near(south-east_asia, oceania). linked(X, Y) :- near(X, Y).").statements[0].columns
    (('south-east_asia',), ('oceania',))
    """
    expect(text, str, "a program is text")
    if "/*" in text:
        text = _BLOCK.sub(lambda m: re.sub(r".", " ", m[0]) if m[0].startswith("/*") else m[0], text)
    return parse_dialect(text, file, _PROLOG, _FACTS, frozenset(), {}, bulk)
