"""Errors in a statement that cannot be parsed: what was expected, in plain words, and what was probably meant."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple, NoReturn

from .tokens import Source, Token

ONE_LINE = "write each statement on a line of its own, or ';' between them"
COMMENTS = "a comment begins with # or //, and ends with its line"

# words of other languages: the code of the mistake, and what to write instead
FOREIGN = {
    "and": ("E646", "write ',' between the literals of a body"),
    "or": ("E656", "write two rules with the same head for 'or'"),
    "if": ("E658", "a rule is written head <- body"),
    "else": ("E658", "write two rules with the same head, one with 'not'"),
    "where": ("E658", "conditions stand in the body of a rule: P(x) <- Q(x), x > 3"),
    "def": ("E658", "rules are written head <- body"),
    "import": ("E658", 'a file is read by X(i,j) = "file.csv"'),
    "from": ("E658", 'a file is read by X(i,j) = "file.csv"'),
    "for": ("E658", "an index runs over all of its values by itself"),
    "while": ("E658", "recursion is written as a rule that mentions its head"),
    "lambda": ("E658", "functions are attached from Python"),
    "return": ("E658", "ask for a tensor with ?: Y?"),
    "class": ("E658", "relations need no declaration"),
    "let": ("E658", "write Y = 3"),
    "var": ("E658", "write Y = 3"),
    "const": ("E658", "write Y = 3"),
}
# signs of other languages: the code of the mistake, and what to write instead
PAIRS = {
    **dict.fromkeys(("->", "=>"), ("E640", "the head stands first: head <- body")),
    **dict.fromkeys(("*=", "/=", "-="), ("E640", "the projections are = += max= min= avg= count=")),
    "**": ("E640", "a power is written ^"),
    "=<": ("E659", "write <="),
}
_OPERATORS = frozenset("PLUS MINUS STAR SLASH CARET".split())
_SIGNS = frozenset(("EQUAL", "COMPARE"))
_WORDS = frozenset("NAME RELATION TENSOR FUNCTION NUMBER STRING".split())


class _Mistake(NamedTuple):
    hint: str = ""
    message: str = ""  # in place of what is expected
    at: Token | None = None
    code: str = "E640"


def unexpected(source: Source, tokens: list[Token], token: Token, accepted: Collection[str]) -> NoReturn:
    """Refuse a statement at the token that does not fit."""
    ended = token.type == "$END"
    at = len(tokens) if ended else tokens.index(token)
    found = _recognised(tokens, at, ended, accepted) or _Mistake()
    place = found.at or token
    if ended and found.at is None:  # the caret stands behind the last word
        place = token._replace(column=token.column + len(token.text))
    shown = "the end of the statement" if ended else repr(token.text)
    message = found.message or f"{expected(accepted)} is expected, got {shown}"
    source.fail(place, found.code, message, *([found.hint] if found.hint else []))


def expected(accepted: Collection[str]) -> str:
    """Return in words what may come next.

    >>> expected({"COMMA", "RPAR", "PLUS", "NAME"}), expected({"NAME", "NUMBER", "MINUS", "LPAR"})
    ("',' or ')'", 'a value')
    """
    closing = [word for kind, word in (("COMMA", "','"), ("RPAR", "')'"), ("RSQB", "']'")) if kind in accepted]
    if "PLUS" in accepted:  # a value has been read
        if "$END" in accepted:
            return "an operator or the end of the statement"
        words = closing or ["an operator"]
    elif "NAME" in accepted:
        words = ["a value"]
    elif "NUMBER" in accepted:
        words = ["a number"]
    else:
        words = closing or ["the end of the statement"]
    return " or ".join(words)


def _recognised(tokens: list[Token], at: int, ended: bool, accepted: Collection[str]) -> _Mistake | None:
    """Return the mistake that was probably made, from the words around the one that does not fit."""
    for n, token in enumerate(tokens[: at + 1]):
        beside = n == 0 or tokens[n - 1].type in _WORDS or (n + 1 < len(tokens) and tokens[n + 1].type in _WORDS)
        if token.text in FOREIGN and token.type == "NAME" and beside:
            return _foreign(token.text, FOREIGN[token.text], token)
    before = tokens[at - 1] if at else None
    last = before.type if before else ""
    if ended:
        bodiless = "a rule needs a body; a fact is written without <-"
        return _Mistake(bodiless if last == "ARROW" else "write what is missing, or remove the operator")
    token = tokens[at]
    pair = (before.text if before and before.start + len(before.text) == token.start else " ") + token.text
    if pair in PAIRS:
        return _foreign(pair, PAIRS[pair], before)
    after = token.text + (tokens[at + 1].text if at + 1 < len(tokens) else "")
    if at == 0 and after == "/*":
        return _foreign(after, ("E640", COMMENTS))
    if after == ":=":
        return _foreign(after, ("E640", "an equation is written with =, a rule with <- or :-"))
    earlier = {t.type for t in tokens[:at]}
    match token.type:
        case "RPAR" | "RSQB":
            return _closed_early(tokens, at)
        case "QUESTION" if "ARROW" in earlier:
            return _Mistake("ask for its head, or for its body alone: P(x), Q(x)?", "a rule does not end in ?")
        case "QUESTION":
            hint = "a question is what is asked for and one ?: Parent(x, Alice)?"
            return _Mistake(hint) if "NAME" in accepted else None
        case "COMMA" if "$END" in accepted and "PROJECT" in earlier:
            return _Mistake("factors stand side by side, without a comma: P(x,y) Q(y,z)")
        case "ARROW" if at == 0:
            return _Mistake("a rule begins with its head: P(x) <- Q(x)")
        case "EQUAL" | "PROJECT" if at == 0:
            return _Mistake("an equation begins with its left side: Y = ...")
        case kind if kind in _OPERATORS and last in _OPERATORS:
            return _Mistake("write one operator between two values")
        case "COMMA" if last in ("COMMA", "LPAR", "LSQB"):
            return _Mistake("remove the ',', or write what is missing")
        case kind if kind in _SIGNS:
            return _second_sign(tokens, at)
    if last == "LSQB" and at > 1 and tokens[at - 2].type in ("RPAR", "RSQB"):
        hint = "indices stand in one pair of brackets: X[i,j]; give a function's value a name of its own to index it"
        return _Mistake(hint, "indices follow the name of a tensor", before, "E648")
    if "NUMBER" in accepted and "NAME" not in accepted:
        return _Mistake("a list holds numbers; names are kept by facts")
    if "NOT" in (last, token.type):
        return _Mistake("'not' stands before an atom of a body: P(x) <- Q(x), not R(x)")
    if token.type == "ARROW" and earlier & {"ARROW", *_SIGNS}:
        return _Mistake(ONE_LINE, code="E657") if last != "ARROW" else None
    if token.type == "END":
        return _Mistake("write ',' between places")
    return _line_goes_on(before, token)


def _foreign(text: str, row: tuple[str, str], at: Token | None = None) -> _Mistake:
    code, hint = row
    return _Mistake(hint, f"{text!r} is not part of the language", at, code)


def _closed_early(tokens: list[Token], at: int) -> _Mistake | None:
    before, opener = tokens[at - 1], tokens[at - 2] if at > 1 else tokens[0]
    if before.type == "COMMA":
        return _Mistake("remove the ',' before it")
    if before.type not in ("LPAR", "LSQB"):
        return None
    hint, message = "", "a list needs at least one number" if before.type == "LSQB" else "parentheses are empty"
    if opener.type == "TENSOR":
        hint, message = f"a scalar is written without brackets: {opener.text}", "brackets are empty"
    if opener.type == "FUNCTION":
        hint, message = f"write {opener.text}(X[i])", f"{opener.text} needs a value"
    return _Mistake(hint, message, before, "E653")


def _second_sign(tokens: list[Token], at: int) -> _Mistake | None:
    """Tell what a second = or < of a statement, or one after a negation, probably means."""
    token = tokens[at]
    earlier = [t for t in tokens[:at] if t.type in _SIGNS]
    start = max((n for n, t in enumerate(tokens[:at]) if t.type in ("COMMA", "ARROW")), default=-1) + 1
    if tokens[start].type == "NOT":
        hint = "a comparison is turned round: x != y, x >= y"
        return _Mistake(hint, "'not' stands before an atom only", code="E646")
    if at and tokens[at - 1].type in _SIGNS:
        return _Mistake("write one sign: = != < <= > >=", code="E659")
    if not earlier:
        return None
    if any(t.type in ("PLUS", "MINUS", "COMMA", "ARROW") and t.line < token.line for t in tokens[at - 2 : at]):
        return _line_goes_on(tokens[at - 2], token)
    if token.text in "==" and earlier[0].text in "==" and not any(t.type == "ARROW" for t in tokens):
        return _Mistake(ONE_LINE, code="E657")
    return _Mistake("comparisons do not chain: write x < y, y < z", code="E659")


def _line_goes_on(before: Token | None, token: Token) -> _Mistake | None:
    if before is None or token.line == before.line or before.type in ("RPAR", "RSQB", "NAME", "NUMBER", "STRING"):
        return None
    return _Mistake(f"line {before.line} ends in {before.text!r}, so the statement goes on here")
